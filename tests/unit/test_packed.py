"""Packed linear layers: the same numbers, in models that look at their weights too, and a way back."""

import pytest
import torch
from torch import nn

import tiny
from bifolio.generators import packed
from bifolio.generators.causal import CausalGenerator
from bifolio.generators.seq2seq import Seq2SeqGenerator
from bifolio.protocols import Move, Reading
from bifolio.types import Passage

PASSAGES = (Passage("a", "The valve closes at noon."), Passage("b", "A cat."))
READING = Reading("When does the valve close?", PASSAGES, "short", 12, True)


@pytest.fixture
def all_layers(monkeypatch):
    """Also layers that are too small to be worth it."""
    monkeypatch.setattr(packed, "_SMALLEST", 0)


def rows(generator):
    branches = generator.read([READING])
    (first,) = branches.start()
    (second,) = branches.advance([Move([0, 0], [30, 31])])
    (third,) = branches.advance([Move([1, 0], [32, 33])])
    return torch.cat([first, second, third]), branches.score([[[31, 32, 34]]])[0][0]


def count(generator):
    return sum(isinstance(module, packed.PackedLinear) for module in generator.module.modules())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 1.5)])
@pytest.mark.parametrize("family", ["llama", "bart", "t5", "mt5"])
def test_packed_models_say_what_they_said(tmp_path, all_layers, family, dtype, tolerance):
    made = tiny.causal(tmp_path) if family == "llama" else tiny.seq2seq(tmp_path, family=family)
    kind = CausalGenerator if family == "llama" else Seq2SeqGenerator
    plain = kind(made, dtype=dtype, trainable=True)
    fast = kind(made, dtype=dtype)
    assert count(plain) == 0
    assert count(fast) > 8
    for mine, expected in zip(rows(fast), rows(plain), strict=True):
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=tolerance / 10)


def test_layers_of_which_a_model_asks_too_much_are_put_back(tmp_path, all_layers, monkeypatch):
    made = tiny.seq2seq(tmp_path, family="t5")
    plain = Seq2SeqGenerator(made, dtype="float32", trainable=True)
    monkeypatch.setattr(packed.PackedLinear, "forward", lambda self, x: x.new_zeros((*x.shape[:-1], self.out_features)))
    monkeypatch.setattr(packed, "_packed", packed.PackedLinear)
    wrong = Seq2SeqGenerator(made, dtype="float32")
    assert count(wrong) == 0
    for mine, expected in zip(rows(wrong), rows(plain), strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_layer_that_computes_something_else_is_left_alone(monkeypatch):
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    layers = list(model)
    monkeypatch.setattr(
        packed.PackedLinear, "forward", lambda self, x: 1.01 * nn.functional.linear(x, layers[0].weight)
    )
    assert packed.pack(model) == []
    assert list(model) == layers


def test_packing_and_unpacking():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    x = torch.randn(3, 7, 256)
    with torch.no_grad():
        before = model(x)
        replaced = packed.pack(model)
        assert [name for _, name, _ in replaced] == ["0"]  # the second is too small
        torch.testing.assert_close(model(x), before)
        packed.unpack(replaced)
        assert torch.equal(model(x), before)
    assert model[0].weight.requires_grad
