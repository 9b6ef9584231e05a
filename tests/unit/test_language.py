"""The guess about a question's language: it warns of the clear cases and leaves the others alone."""

import pytest

from bifolio.language import unfamiliar


@pytest.mark.parametrize(
    ("question", "language"),
    [
        ("Welches Ventil schließt zuerst und warum?", "German"),
        ("Wie hoch ist der Druck in der Pumpe?", "German"),
        ("Quelle est la pression dans la pompe ?", "French"),
        ("Comment est-ce que la vanne se ferme ?", "French"),
        ("¿Cuál es la presión en la bomba?", "Spanish"),
        ("Qual è la pressione della pompa?", "Italian"),
        ("Qual é a pressão da bomba quando não há água?", "Portuguese"),
        ("Wat is de druk van het water in een pomp?", "Dutch"),
        ("Какой клапан закрывается первым?", "Cyrillic script"),
        ("哪个阀门先关闭？", "Chinese, Japanese or Korean script"),
        ("どのバルブが最初に閉まりますか", "Chinese, Japanese or Korean script"),
        ("어느 밸브가 먼저 닫힙니까?", "Chinese, Japanese or Korean script"),
        ("ﾊﾞﾙﾌﾞはどれですか", "Chinese, Japanese or Korean script"),
        ("ποια βαλβίδα κλείνει πρώτη;", "Greek script"),
        ("أي صمام يغلق أولا؟", "Arabic script"),
        ("איזה שסתום נסגר ראשון?", "Hebrew script"),
        ("कौन सा वाल्व पहले बंद होता है?", "Devanagari script"),
        ("วาล์วตัวไหนปิดก่อน", "Thai script"),
        ("Was ist V-12 und wie schließt man es? 你好", "German"),
    ],
)
def test_a_foreign_question_is_told(question, language):
    assert unfamiliar(question, ["en"]) == language
    assert unfamiliar(question.upper(), ["en"]) == language


@pytest.mark.parametrize(
    "question",
    [
        "Who is Los Del Rio?",
        "What is la Tour?",
        "Which valve closes first?",
        "valve V-12",
        "P-7?",
        "Who wrote Das Kapital?",
        "What does que sera sera mean?",
        "Who sang La Vie en Rose?",
        "Who directed Die Hard?",
        "Where is Rio de Janeiro?",
        "la la land director",
        "El Niño",
        "Citroën DS price",
        "What does 你好 mean?",
        "What is the meaning of спутник?",
        "What is μ in σ = μ / n?",
        "𝐖𝐡𝐢𝐜𝐡 𝐯𝐚𝐥𝐯𝐞?",
        "Ｗｈｉｃｈ ｖａｌｖｅ?",
        "",
        "?!",
        "42",
        "🦉🦉",
        "\udcff\0",
    ],
)
def test_english_names_and_scraps_pass(question):
    assert unfamiliar(question, ["en"]) is None


def test_nothing_is_said_of_models_whose_languages_are_unknown():
    assert unfamiliar("Welches Ventil schließt zuerst und warum?", []) is None
    assert unfamiliar("哪个阀门先关闭？", ["zh"]) is None
    assert unfamiliar("Какой клапан?", ["en", "ru"]) is None


def test_any_of_several_languages_will_do():
    assert unfamiliar("Welches Ventil schließt zuerst und warum?", ["en", "de"]) is None
    assert unfamiliar("Quelle est la pression dans la pompe ?", ["en", "de"]) == "French"
