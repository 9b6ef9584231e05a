"""Weights that are a pickle: converted when told to, value by value, and never run."""

import hashlib
import json
import os
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import load

from bifolio import models
from bifolio.errors import ModelError
from bifolio.models import store, torch_bin
from unit.models_fakes import MODEL, manifest, model_folder
from unit.rag_checkpoints import to_bin, write_rag
from unit.test_models_hub import COMMIT, entries, fake_hub, online  # noqa: F401  fixtures

SETTINGS = {"config.json": MODEL["config.json"], "tokenizer.json": MODEL["tokenizer.json"]}
KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
KINDS += [torch.int8, torch.uint8, torch.bool]


class Bomb:
    """Runs a command when it is unpickled by whoever runs it."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def written(folder, content, name="pytorch_model.bin", **options):
    model_folder(folder, SETTINGS)
    torch.save(content, folder / name, **options)
    return folder


def converted(folder):
    models.pull(f"./{folder.name}", convert_bin=True)
    return load((folder / "model.safetensors").read_bytes())


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "as before torch 1.6"])
def test_every_type_and_shape_keeps_its_values(here, zipped):
    base = torch.arange(24)
    content = {str(kind): (base % 2 if kind == torch.bool else base).to(kind).reshape(2, 3, 4) for kind in KINDS}
    content |= {"scalar": torch.tensor(2.5), "none": torch.zeros(0, 3), "turned": torch.arange(6.0).reshape(2, 3).T}
    content["parameter"] = torch.nn.Parameter(torch.tensor([1.0, float("nan"), float("inf")]))
    found = converted(written(here / "m", content, _use_new_zipfile_serialization=zipped))
    assert set(found) == set(content)
    for name, tensor in content.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        torch.testing.assert_close(found[name], tensor.detach(), rtol=0, atol=0, equal_nan=True)


def test_names_of_one_table_are_all_kept(here):
    table = torch.arange(12.0).reshape(3, 4)
    found = converted(written(here / "m", {"shared": table, "same": table, "part": table[1:]}))
    assert torch.equal(found["shared"], table)
    assert torch.equal(found["same"], table)
    assert torch.equal(found["part"], table[1:])


def test_several_files_with_their_index(here):
    folder = written(here / "m", {"a": torch.ones(2)}, "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.zeros(3)}, folder / "pytorch_model-00002-of-00002.bin")
    places = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    models.pull("./m", convert_bin=True)
    assert models.tensors.read_all(models.tensors.files_of(folder)).keys() == {"a", "b"}
    assert [path.name for path in models.tensors.files_of(folder)] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"w": torch.ones(1), "x": Bomb()}, "which runs no code, refuses it"),
        (Bomb(), "which runs no code, refuses it"),
        ({}, "holds nothing; expected tensors by name"),
        ([torch.ones(1)], "holds a list; expected tensors by name"),
        ({"model": {"w": torch.ones(1)}}, "has a dict under 'model'; expected a tensor"),
        ({3: torch.ones(1)}, "under 3; expected a tensor"),
        ({"w": torch.ones(1).to_sparse()}, r"has w as torch.float32 \(torch.sparse_coo\), which is not converted"),
        ({"w": torch.ones(1, dtype=torch.complex64)}, "has w as torch.complex64"),
        ({"w": torch.ones(1).expand(10**9)}, "far larger than the file"),
    ],
)
def test_what_is_not_weights_is_refused_and_nothing_runs(here, content, words):
    folder = written(here / "m", content)
    with pytest.raises(ModelError, match=f"pytorch_model.bin.*{words}"):
        models.pull("./m", convert_bin=True)
    assert sorted(os.listdir(folder)) == ["config.json", "pytorch_model.bin", "tokenizer.json"]
    assert not (here / "exploded").exists()


def test_damaged_files_are_refused(here):
    folder = written(here / "m", {"w": torch.arange(1000.0)})
    data = (folder / "pytorch_model.bin").read_bytes()
    for bytes_ in (data[: len(data) // 2], b"", b"no pickle", pickle.dumps(Bomb()), pickle.dumps({"w": [1.0]})):
        (folder / "pytorch_model.bin").write_bytes(bytes_)
        with pytest.raises(ModelError, match="pytorch_model.bin"):
            models.pull("./m", convert_bin=True)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("a.txt", "no model")
    with pytest.raises(ModelError, match="refuses it"):
        models.pull("./m", convert_bin=True)
    assert sorted(os.listdir(folder)) == ["config.json", "pytorch_model.bin", "tokenizer.json"]
    assert not (here / "exploded").exists()


def test_which_files_are_converted():
    assert torch_bin.convertible(["pytorch_model.bin", "model.safetensors", "2_Dense/pytorch_model.bin"]) == (
        "2_Dense/pytorch_model.bin",
    )
    assert torch_bin.convertible(
        ["pytorch_model-00001-of-00002.bin", "training_args.bin", "optimizer.bin", "a.pt"]
    ) == ("pytorch_model-00001-of-00002.bin",)


@pytest.fixture
def old_hub(here, fake_hub):  # noqa: F811
    """The hub has a RAG checkpoint as they were published: a pickle, and a folder for each tokenizer."""
    fake_hub.whole = write_rag(here / "rag")
    fake_hub.weights = to_bin(here / "rag")
    files = {path: (here / "rag" / path).read_bytes() for path in store.paths_below(here / "rag")}
    fake_hub.files = {**files, "modeling.py": b"raise SystemExit", "tf_model.h5": b"h5", "optimizer.bin": b"x"}
    return fake_hub


def test_without_the_flag_the_error_names_it(online, old_hub):  # noqa: F811
    with pytest.raises(
        ModelError, match=r"no safetensors on the hub; .* run: bifolio models pull --convert-bin org/name$"
    ):
        models.pull("org/name")
    assert [line for line in old_hub.asked if "resolve" in line] == []
    assert entries(online) == []


def test_a_published_checkpoint_is_fetched_and_converted(online, old_hub):  # noqa: F811
    told = []
    folder = models.pull("org/name", convert_bin=True, on_progress=told.append)
    assert store.paths_below(folder) == [
        "config.json",
        "generation_config.json",
        "generator_tokenizer/tokenizer.json",
        "generator_tokenizer/tokenizer_config.json",
        "model.safetensors",
        "question_encoder_tokenizer/tokenizer.json",
        "question_encoder_tokenizer/tokenizer_config.json",
    ]
    found = load((folder / "model.safetensors").read_bytes())
    assert found.keys() == old_hub.weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in old_hub.weights.items())
    facts = manifest(folder)
    assert (facts["origin"], facts["revision"], facts["source_file"]) == ("hub", COMMIT, "pytorch_model.bin")
    assert facts["source_sha256"] == hashlib.sha256(old_hub.files["pytorch_model.bin"]).hexdigest()
    assert [report.message for report in told if report.stage == "convert" and report.message] == [
        "converting pytorch_model.bin to safetensors, once; no code of it is run"
    ]
    assert [line for line in old_hub.asked if "modeling" in line or "optimizer" in line or "h5" in line] == []
    part = models.pull("org/name#generator")
    assert part == models.resolve("org/name#generator")
    assert entries(online) == ["org--name", part.name]


def test_a_hostile_pickle_from_the_hub_leaves_nothing(online, old_hub):  # noqa: F811
    old_hub.files["pytorch_model.bin"] = pickle.dumps({"w": Bomb()})
    with pytest.raises(ModelError, match="which runs no code, refuses it"):
        models.pull("org/name", convert_bin=True)
    assert entries(online) == []
    assert not os.path.exists("exploded")


def test_the_flag_changes_nothing_where_there_are_safetensors(online, fake_hub):  # noqa: F811
    folder = models.pull("org/name", convert_bin=True)
    assert (folder / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert [line for line in fake_hub.asked if "pytorch_model.bin" in line] == []
