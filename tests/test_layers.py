"""Imports go down only, in the layers of the architecture, without cycles; and `import bifolio` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "bifolio"

LAYER = {
    "_version": 0, "errors": 0, "types": 0, "protocols": 0, "registry": 0, "answer": 0, "options": 0, "language": 0,
    "retrieval_options": 0, "filters": 0, "fuse": 1,
    "marginal": 1, "segments": 1, "decode": 1, "hypotheses": 1, "passagewise": 1, "decoders": 1,
    "loss": 1, "cite": 1, "topk": 1, "weights": 1, "text_mixture": 1,
    "corpus": 2, "encoders": 2, "indexes": 2, "generators": 2, "rerankers": 2, "models": 2,
    "catalogue": 3, "catalogue_file": 3, "seals": 3, "migration": 3, "history": 3, "draft": 3, "staging": 3,
    "write_lock": 3, "vector_files": 3, "loading": 3, "retriever": 3, "snapshot": 3, "encoding": 3, "imported": 3,
    "vector_sources": 3, "sources": 3, "taking": 3, "ingest": 3, "ingest_options": 3, "ingest_report": 3,
    "deriving": 3, "attributes": 3, "building": 3, "reencoding": 3, "upkeep": 3, "backup": 3, "following": 3,
    "watching": 3, "collection": 3, "text_rag": 3, "rag": 3, "answering": 3,
    "finding": 3, "fitting": 3, "logit_answers": 3, "requery": 3, "own_passages": 3, "pretrained": 3,
    "rag_checkpoint": 3,
    "console": 5, "exits": 5, "doctor": 5, "cli": 5,
}  # fmt: skip


def modules():
    return sorted(SRC.rglob("*.py"))


def name(path):
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path, top_level_only=False):
    """Names of bifolio modules that a file imports; not those for type checking alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "bifolio":
            folder = SRC.parent.joinpath(*node.module.split("."))
            inner = {alias.name for alias in node.names if (folder / f"{alias.name}.py").exists()}
            inner |= {alias.name for alias in node.names if (folder / alias.name / "__init__.py").exists()}
            found.update(f"{node.module}.{name}" for name in inner)
            if any(alias.name not in inner for alias in node.names):
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] == "bifolio")
    return found


def layer(module):
    return LAYER[module.split(".")[1]]


def test_every_module_has_a_layer():
    assert {name(path).split(".")[1] for path in modules() if "." in name(path)} == set(LAYER)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_down(path):
    module = name(path)
    if module == "bifolio":
        return
    for other in imports(path):
        if other in ("bifolio", "bifolio._version"):
            continue
        assert layer(other) <= layer(module), f"{module} imports {other}, which is above it"
        if layer(module) == 2 and layer(other) == 2:  # adapters never import each other
            assert other.split(".")[1] == module.split(".")[1], f"{module} imports its neighbour {other}"


def test_no_cycles():
    graph = {name(path): imports(path, top_level_only=True) for path in modules()}
    done, open_ = set(), []

    def visit(module):
        assert module not in open_, f"cycle: {' -> '.join([*open_, module])}"
        if module in done or module not in graph:
            return
        open_.append(module)
        for other in graph[module] - {"bifolio", module}:
            visit(other)
        done.add(open_.pop())

    for module in graph:
        visit(module)
    assert len(done) == len(graph)


@pytest.mark.parametrize(
    "statement", ["import bifolio", "import bifolio.cli", "import bifolio.collection", "import bifolio.models"]
)
def test_importing_loads_nothing_heavy(statement):
    check = f"{statement}; import sys; print([m for m in ('torch', 'faiss', 'transformers') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", check], text=True) == "[]\n"
