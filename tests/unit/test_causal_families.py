"""Decoder-only families that need something of their own: windows, ALiBi, prefixes of unequal length."""

import pytest
import torch
import transformers

import tiny
from bifolio import decode
from bifolio.errors import UsageError
from bifolio.generators.causal import CausalGenerator
from bifolio.generators.rows import RowPrompts
from bifolio.generators.tree import TreePrompts
from bifolio.hypotheses import Mixture, constant
from bifolio.protocols import Move, Reading
from bifolio.types import Passage
from contracts.logit_generator import ALIBI, READINGS, SHARED, subject


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_a_sliding_window_bounds_prompt_and_answer(family, tmp_path):
    """Within its window such a model attends to everything, as it does in training; beyond it would forget."""
    folder = tiny.causal(tmp_path, family=family, chat=False, window=96)
    generator = CausalGenerator(folder, dtype="float32")
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert plain.config.max_position_embeddings == 384
    assert generator.spec.window == 96
    long = Reading("Why?", (Passage("1", "abc " * 100), Passage("2", "de")), "short", 6)
    branches = generator.read([long])
    ((cut, whole),) = branches.kept
    parts = generator._parts(long)
    assert (len(parts.prefixes[0]) + len(parts.tail) + 6, cut.whole) == (96, 400)
    assert whole.read == whole.whole == 2
    branches.start()
    path: list[int] = []
    for token in (5, 6, 7, 8, 9):
        (rows,) = branches.advance([Move([0], [token])])
        path.append(token)
    with torch.inference_mode():
        for z, prefix in enumerate(parts.prefixes):
            ids = torch.tensor([[*prefix, *parts.tail, *path]])
            theirs = plain(input_ids=ids, use_cache=False).logits[0, -1].log_softmax(-1)
            words = [i for i in range(len(theirs)) if i not in generator._ends["short"].stops.tolist()]
            torch.testing.assert_close(rows[0, z, words], theirs[words], atol=1e-3, rtol=0)
    with pytest.raises(UsageError, match="window of 96 tokens"):
        generator.read([Reading("why " * 20, long.passages, "short", 6)])


def test_a_sliding_window_that_is_switched_off_bounds_nothing(tmp_path):
    words = tiny.tokenizer(chat=False)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Qwen2Config(
        vocab_size=len(words), num_key_value_heads=1, max_position_embeddings=512, sliding_window=64,
        use_sliding_window=False, eos_token_id=words.eos_token_id, bos_token_id=None, **sizes,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    assert CausalGenerator(tmp_path, dtype="float32").spec.window == 512


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ALIBI)
def test_alibi_never_counts_the_columns_of_other_hypotheses(family, seed, tmp_path):
    """In a tree it would, with errors so small in a short text that trying it out does not show them."""
    generator = CausalGenerator(tiny.causal(tmp_path, family=family, seed=seed, chat=False), dtype="float32")
    assert not generator._shared
    branches = generator.read([READINGS[0]])
    assert isinstance(branches._prompts, RowPrompts)
    branches.start()
    crowd = list(range(5, 25))
    for _ in range(6):
        branches.advance([Move([0] * 20, crowd)])
    (rows,) = branches.advance([Move([3], [5])])
    ((scored,),) = branches.score([[[*[5] * 5, 8, 5, 6]]])
    torch.testing.assert_close(rows[0, :, 6], scored[:, 7], atol=1e-3, rtol=0)


@pytest.mark.parametrize("family", ALIBI)
def test_what_cannot_be_shared_is_not_kept(family, tmp_path):
    generator = CausalGenerator(tiny.causal(tmp_path, family=family, chat=False), dtype="float32")
    for _ in range(2):
        branches = generator.read([READINGS[0]])
        branches.start()
        assert [one.cached for one in branches.kept[0]] == [False] * 3
    generator.warm(READINGS[0].passages, style="short")
    assert (generator.cache_statistics.hits, generator.cache_statistics.passages) == (0, 0)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_prefixes_of_unequal_length_start_together(family, tmp_path):
    one = subject(family, tmp_path)
    after = [(5, 6, 7), (), (8,)]
    branches = one.generator.read(READINGS)
    for rows, reading, prefix in zip(branches.start(after), READINGS, after, strict=True):
        one.close(rows[0], one.log_probs(reading, prefix))
    moves = [Move([0, 0], [9, 8]), Move([0], [9]), Move([0], [5])]
    longer = [(5, 6, 7, 9), (9,), (8, 5)]
    for rows, reading, prefix in zip(branches.advance(moves), READINGS, longer, strict=True):
        one.close(rows[0], one.log_probs(reading, prefix))


@pytest.mark.parametrize("family", SHARED)
def test_hypotheses_share_the_columns_of_their_prompt(family, tmp_path):
    """Beams change places without a copy: the keys of the prompt stay where they are."""
    generator = CausalGenerator(tiny.causal(tmp_path, family=family, chat=False), dtype="float32")
    branches = generator.read([READINGS[0]])
    assert isinstance(branches._prompts, TreePrompts)
    branches.start()
    layers = branches._run._layers
    before = [(layer.keys.data_ptr(), layer.values.data_ptr(), layer.length) for layer in layers]
    assert layers[0].keys.shape[0] == 4
    for step, move in enumerate(
        [Move([0] * 4, [5, 6, 7, 8]), Move([3, 2, 1, 0], [5, 6, 7, 8]), Move([1] * 4, [5] * 4)]
    ):
        branches.advance([move])
        now = [(layer.keys.data_ptr(), layer.values.data_ptr(), layer.length - 4 * (step + 1)) for layer in layers]
        assert now == before


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_a_question_that_is_done_takes_no_more_room(family, tmp_path):
    generator = CausalGenerator(tiny.causal(tmp_path, family=family, chat=False), dtype="float32")
    shapes = []
    generator._model.register_forward_pre_hook(
        lambda module, args, given: shapes.append(given["input_ids"].numel()), with_kwargs=True
    )
    branches = generator.read(READINGS)
    branches.start()
    shapes.clear()
    branches.advance([Move([0, 0], [5, 6]), Move([0], [5]), Move([0], [5])])
    branches.advance([Move([0, 1], [5, 6]), Move([], []), Move([0], [5])])
    branches.advance([Move([], []), Move([], []), Move([0], [5])])
    assert shapes == [2 * 7, 2 * 6, 2]
    done = branches.advance([Move([], [])] * 3)
    assert [rows.shape[:2] for rows in done] == [(0, 4), (0, 1), (0, 2)]
    assert len(shapes) == 3


def test_an_answer_longer_than_the_first_room_for_it(tmp_path):
    """More columns are made as they are needed."""
    one = subject("llama", tmp_path)
    branches = one.generator.read(READINGS[:1])
    branches.start()
    path = []
    for i in range(90):
        path.append(5 + i % 7)
        (rows,) = branches.advance([Move([0, 0], [path[-1], 20])])
    one.close(rows[0], one.log_probs(READINGS[0], tuple(path)))
    mixture = Mixture(constant(torch.zeros(4).log_softmax(0)), lambda prefix: False, one.generator.spec.eos)
    ((answer,),) = decode.run(one.generator.read(READINGS[:1]), [decode.beam(mixture, max_tokens=100)])
    ((scored,),) = one.generator.read(READINGS[:1]).score([[answer.tokens]])
    one.close(answer.token_log_probs, scored)
