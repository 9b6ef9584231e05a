"""Encoder-decoders: inputs, answers and caches. What all generators must do: ``contracts/test_logit_generator``."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import processors

import tiny
from bifolio import decode
from bifolio.errors import ModelError, UsageError
from bifolio.generators import seq2seq
from bifolio.generators.seq2seq import Layout, Seq2SeqGenerator
from bifolio.generators.seq2seq_prompts import Seq2SeqModel
from bifolio.hypotheses import Mixture, constant
from bifolio.protocols import Kept, Move, Reading
from bifolio.types import Passage
from contracts.logit_generator import PASSAGES, READINGS

QUESTION = "Which valve is it?"
MOVES = [Move([0, 0, 0], [5, 6, 7]), Move([2, 1, 2, 0], [8, 9, 7, 6]), Move([3, 0], [5, 5]), Move([1, 0, 1], [9, 8, 7])]


@pytest.fixture(scope="module", params=["bart", "t5"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, family):
    return tiny.seq2seq(tmp_path_factory.mktemp(family), family=family)


@pytest.fixture(scope="module")
def generator(folder):
    return Seq2SeqGenerator(folder, dtype="float32")


def reading(passages=PASSAGES, question=QUESTION, **changes):
    options = {"style": "short", "max_tokens": 16, "no_passage": True, **changes}
    return Reading(question, tuple(passages), **options)


def inputs(generator, *args, **changes):
    """What each branch reads, as text with its special tokens."""
    ids, _ = generator._inputs(reading(*args, **changes))
    return [generator._tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in ids]


# ---- inputs ----


def test_passage_and_question_are_joined_as_in_the_paper(generator, family):
    start = "<s>" if family == "bart" else ""
    assert inputs(generator) == [
        f"{start}Valves / Close V-12 first. // {QUESTION}</s>",
        f"{start}Pumps / The pump is red. It was built in 1970, says the book. // {QUESTION}</s>",
        f"{start}ok // {QUESTION}</s>",
        f"{start} // {QUESTION}</s>" if family == "bart" else f"// {QUESTION}</s>",
    ]


def test_a_layout_of_ones_own(folder, family):
    layout = Layout(title_sep=": ", doc_sep=" Q: ", prefix="answer: ")
    generator = Seq2SeqGenerator(folder, dtype="float32", layout=layout)
    start = "<s>" if family == "bart" else ""
    found = inputs(generator, [Passage("1", "two  blanks", title='"Quoted"')], no_passage=False)
    assert found == [f"{start}answer: Quoted: two blanks Q: {QUESTION}</s>"]


def test_special_tokens_in_passages_titles_and_questions_are_characters(generator):
    hostile = Passage("1", "</s> <pad> end", title="<s> </s>")
    (ids,), _ = generator._inputs(reading([hostile], "why</s>?", no_passage=False))
    (plain,), _ = generator._inputs(reading([Passage("1", "end", title="t")], "why?", no_passage=False))
    for special in ("<s>", "</s>", "<pad>"):
        special_id = generator._tokenizer.convert_tokens_to_ids(special)
        assert ids.count(special_id) == plain.count(special_id)
    pieces = generator._tokenizer.convert_ids_to_tokens(ids)
    assert "".join(pieces).count("</s>") == 4  # three spelt out, and the end
    answer = generator.answer_ids("</s> no", style="short")
    assert answer.count(generator.spec.eos) == 1
    assert generator.text(answer) == "</s> no"


@pytest.mark.parametrize("length", [100, 250, 2000])
def test_a_long_passage_is_cut_at_its_end_and_the_question_never(generator, length):
    long = Passage("l", "x" * length, title="Long")
    ids, kept = generator._inputs(reading([long, PASSAGES[2]]))
    assert len(ids[0]) <= generator.spec.window
    text = generator._tokenizer.decode(ids[0], skip_special_tokens=True)
    shown = kept[0].read - (kept[0].whole - length)  # T5 has one more token, the mark of a beginning
    assert text == f"Long / {'x' * shown} // {QUESTION}"
    assert (kept[0].read < kept[0].whole) == (
        len("Long / " + "x" * length + " // " + QUESTION) + 2 > generator.spec.window
    )
    if kept[0].read < kept[0].whole:
        assert generator.spec.window - len(ids[0]) <= 2
    assert kept[1] == Kept(kept[1].whole, kept[1].whole)
    assert generator.read([reading([long, PASSAGES[2]])]).kept == (tuple(kept),)


def test_a_title_and_a_question_that_fill_the_window_leave_the_question_whole(folder):
    generator = Seq2SeqGenerator(folder, dtype="float32", layout=Layout(max_length=64))
    assert generator.spec.window == 64
    question = "w" * 48
    passage = Passage("1", "text " * 30, title="title " * 30)
    ids, (kept,) = generator._inputs(reading([passage], question, no_passage=False))
    assert len(ids[0]) <= 64
    assert question in generator._tokenizer.decode(ids[0])
    assert 0 < kept.read < kept.whole
    assert not generator.read([reading([passage], question)]).start()[0].isnan().any()


def test_a_long_title_leaves_room_for_the_text(generator):
    ids, (kept,) = generator._inputs(reading([Passage("t", "text " * 5, title="title " * 300)], no_passage=False))
    assert kept.read == kept.whole
    assert "text text text text text // " in generator._tokenizer.decode(ids[0])


def test_a_question_that_does_not_fit_is_an_error(generator):
    with pytest.raises(UsageError, match="shorten the question"):
        generator.read([reading(question="why " * 300)])


def test_an_answer_that_the_decoder_has_no_positions_for(tmp_path):
    generator = Seq2SeqGenerator(tiny.seq2seq(tmp_path, window=64), dtype="float32")
    with pytest.raises(UsageError, match="an answer of 65 tokens: this model.s decoder has 64 positions"):
        generator.read([reading(max_tokens=65)])
    first = generator.read([reading(max_tokens=64, no_passage=False)])
    found = decode.run(first, [decode.beam(mixture(generator, 3), max_tokens=64, beams=2)])
    assert len(found[0][0].tokens) <= 64


# ---- answers ----


@pytest.mark.parametrize(
    ("family", "pieces"),
    [
        ("bart", ["<s>", "r", "e", "d", "</s>"]),
        ("t5", ["▁", "r", "e", "d", "</s>"]),
        ("pegasus", ["r", "e", "d", "</s>"]),
        ("mbart", ["en_XX", "r", "e", "d", "</s>"]),
    ],
)
def test_an_answer_begins_and_ends_as_its_family_defines(tmp_path, family, pieces):
    generator = Seq2SeqGenerator(tiny.seq2seq(tmp_path, family=family), dtype="float32")
    ids = generator.answer_ids(" red ", style="short")
    assert generator._tokenizer.convert_ids_to_tokens(ids) == pieces
    assert generator.text(ids) == "red"
    assert generator.text(generator.answer_ids("", style="short")) == ""


def test_a_language_that_is_forced_takes_the_place_of_the_tokenizers_own(tmp_path):
    words = tiny.seq2seq_words("mbart")
    words.add_special_tokens({"additional_special_tokens": ["en_XX", "de_DE"]})
    german = words.convert_tokens_to_ids("de_DE")
    folder = tiny.seq2seq(tmp_path, family="mbart", words=words, forced_bos_token_id=german)
    generator = Seq2SeqGenerator(folder, dtype="float32")
    ids = generator.answer_ids("rot", style="short")
    assert generator._tokenizer.convert_ids_to_tokens(ids) == ["de_DE", "r", "o", "t", "</s>"]
    first = generator.read([reading()]).start()[0]
    assert first[0, :, german].tolist() == [0] * 4
    assert first.exp().sum(-1).tolist() == [[1] * 4]
    ((scored, other),) = generator.read([reading()]).score([[ids, ids[1:]]])
    assert scored[:, 0].tolist() == [0] * 4
    assert other[:, 0].tolist() == [-torch.inf] * 4


def test_a_language_behind_the_end_is_no_part_of_an_answer(tmp_path):
    words = tiny.seq2seq_words("mbart")
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s> en_XX", special_tokens=[("</s>", words.eos_token_id), ("en_XX", 3)]
    )
    generator = Seq2SeqGenerator(tiny.seq2seq(tmp_path, family="mbart", words=words), dtype="float32")
    assert generator._tokenizer.convert_ids_to_tokens(generator.answer_ids("a", style="short")) == ["a", "</s>"]
    assert inputs(generator, no_passage=False)[2] == f"ok // {QUESTION}</s>en_XX"


def test_every_eos_that_the_model_names_ends_the_answer(folder, tmp_path):
    one = Seq2SeqGenerator(folder, dtype="float32")
    settings = json.loads((folder / "generation_config.json").read_text())
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [one.spec.eos, 9]}))
    both = Seq2SeqGenerator(tmp_path, dtype="float32")
    assert both.spec.eos == one.spec.eos
    plain, summed = one.read([reading()]).start()[0], both.read([reading()]).start()[0]
    torch.testing.assert_close(summed[..., one.spec.eos], plain[..., [one.spec.eos, 9]].logsumexp(-1))
    assert summed[0, :, 9].tolist() == [-torch.inf] * 4
    ((scored,),) = both.read([reading()]).score([[[5, one.spec.eos]]])
    ((apart, nine),) = one.read([reading()]).score([[[5, one.spec.eos], [5, 9]]])
    torch.testing.assert_close(scored[:, 1], torch.logaddexp(apart[:, 1], nine[:, 1]))


# ---- caches ----


def mixture(generator, k):
    return Mixture(constant(torch.full((k,), 1 / k).log()), lambda prefix: False, generator.spec.eos)


def places(run):
    return [(layer.keys.data_ptr(), layer.values.data_ptr(), layer.keys.shape[0]) for layer in run._cross.layers]


def test_cross_attention_is_computed_once_and_never_copied(generator):
    branches = generator.read([reading()])
    branches.start()
    before = places(branches._run)
    assert [rows for *_, rows in before] == [4, 4]  # a row for each passage, whatever the beam
    for move in MOVES:
        branches.advance([move])
        assert places(branches._run) == before
    branches.start([[5, 6]])
    assert places(branches._run) == before
    branches.score([[[5, 6, 7]]])
    apart = branches.apart()
    apart.start()
    assert places(apart._run) == before


def test_only_questions_that_go_on_keep_their_rows(generator):
    branches = generator.read(list(READINGS))
    branches.start()
    branches.advance([Move([0], [5]), Move([0], [6]), Move([0], [7])])
    assert {rows for *_, rows in places(branches._run)} == {7}
    branches.advance([Move([], []), Move([0, 0], [6, 7]), Move([0], [7])])
    assert {rows for *_, rows in places(branches._run)} == {3}
    done = branches.advance([Move([], [])] * 3)
    assert [rows.shape[0] for rows in done] == [0, 0, 0]


def test_passages_are_encoded_once_and_a_few_at_a_time(generator, monkeypatch):
    seen = []
    hook = generator._model.get_encoder().register_forward_pre_hook(
        lambda module, args, given: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    branches = generator.read(list(READINGS))
    first = branches.start()
    branches.advance([MOVES[0], Move([0], [5]), Move([0], [5])])
    branches.score([[[5, 6]], [[7]], [[8, 9]]])
    assert [rows for rows, _ in seen] == [7]
    monkeypatch.setattr(seq2seq, "_ENCODED_AT_ONCE", 120)
    seen.clear()
    for mine, together in zip(generator.read(list(READINGS)).start(), first, strict=True):
        torch.testing.assert_close(mine, together, atol=1e-4, rtol=0)
    hook.remove()
    assert len(seen) > 2
    assert sum(rows for rows, _ in seen) == 7
    assert all(rows == 1 or rows * width <= 120 for rows, width in seen)


def test_models_that_cannot_share_rows_give_the_same(folder, generator):
    """A row of keys for every hypothesis, in the attention that the model came with."""
    rows = Seq2SeqGenerator(folder, dtype="float32")
    rows._model.set_attn_implementation("sdpa")
    rows._seq2seq = Seq2SeqModel(rows._model, rows._start, shared=False)
    mine, theirs = rows.read(list(READINGS)), generator.read(list(READINGS))
    for a, b in zip(mine.start(), theirs.start(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=0)
    for i, move in enumerate(MOVES):
        moves = [move, MOVES[0] if i == 0 else Move([], []), Move([0], [5])]
        for a, b in zip(mine.advance(moves), theirs.advance(moves), strict=True):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=0)
        if i == 1:
            for a, b in zip(mine.score([[[5, 6]], [], []])[0], theirs.score([[[5, 6]], [], []])[0], strict=True):
                torch.testing.assert_close(a, b, atol=1e-3, rtol=0)


# ---- weights ----


def test_bfloat16_gives_float32_log_probabilities_near_the_exact_ones(folder, generator):
    half = Seq2SeqGenerator(folder, dtype="bfloat16")
    (ours,), (exact,) = half.read([reading()]).start(), generator.read([reading()]).start()
    assert ours.dtype == torch.float32
    assert float(ours.exp().sum(-1).sub(1).abs().max()) < 1e-5
    assert float((ours.exp() - exact.exp()).abs().sum(-1).max()) < 0.5  # total variation under a quarter


def test_weights_that_give_nan_are_no_answer(tmp_path):
    folder = tiny.seq2seq(tmp_path)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("shared.weight"))
    weights[name] = weights[name].clone()
    weights[name][40, 3] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="gave NaN"):
        Seq2SeqGenerator(folder, dtype="float32")


def test_a_decoder_only_model_is_none(tmp_path):
    with pytest.raises(ModelError, match="cannot be loaded"):
        Seq2SeqGenerator(tiny.causal(tmp_path, family="gpt2"), dtype="float32")


def test_a_model_that_names_no_start(tmp_path):
    folder = tiny.seq2seq(tmp_path, family="t5")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, "decoder_start_token_id": None}))
    with pytest.raises(ModelError, match="no token to start the decoder with"):
        Seq2SeqGenerator(folder, dtype="float32")


def test_an_end_that_the_model_does_not_have(tmp_path):
    folder = tiny.seq2seq(tmp_path)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [2, 5000]}))
    with pytest.raises(ModelError, match="a token that the model does not have"):
        Seq2SeqGenerator(folder, dtype="float32")


def test_the_plain_model_is_left_as_it_was(folder):
    """Our attention has a name of its own: a model of transformers beside it computes as ever."""
    load = transformers.AutoModelForSeq2SeqLM
    ids, start = torch.tensor([[5, 6, 7]]), torch.tensor([[2, 5]])
    with torch.inference_mode():
        before = load.from_pretrained(folder)(input_ids=ids, decoder_input_ids=start).logits
        Seq2SeqGenerator(folder, dtype="float32")
        after = load.from_pretrained(folder)(input_ids=ids, decoder_input_ids=start).logits
    assert torch.equal(before, after)
