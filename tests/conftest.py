"""Shapes in signatures are checked while the tests run; real models are used where they are in the cache."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads make a busy machine ten times slower
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests reach loopback only

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# Before any module of bifolio is imported, or its shapes go unchecked.
CHECKED = (
    "marginal", "hypotheses", "decode", "passagewise", "cite", "encoders.transformer",
    "generators.attention", "generators.causal", "generators.ends", "generators.grid", "generators.rows",
    "generators.seq2seq", "generators.seq2seq_prompts", "generators.tree",
)  # fmt: skip
install_import_hook([f"bifolio.{name}" for name in CHECKED], "beartype.beartype")

# Speed belongs in benchmarks/, so no deadline; in CI the same examples are drawn every time.
settings.register_profile("bifolio", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("bifolio")


def _models_are_missing() -> str:
    """Why tests of the default models cannot run; "" when they can."""
    from bifolio import models
    from bifolio.errors import ModelError

    try:
        models.resolve(models.DEFAULT_ENCODER)
        models.resolve(models.DEFAULT_GENERATOR)
    except ModelError as error:
        return str(error)
    return ""


def pytest_collection_modifyitems(config, items):
    """Tests of the default models are deselected, and counted as such, where the models are not in the cache."""
    wanting = [item for item in items if item.get_closest_marker("models")]
    if wanting and (why := _models_are_missing()):
        config.hook.pytest_deselected(items=wanting)
        items[:] = [item for item in items if item not in wanting]
        config.stash[_WHY] = f"{len(wanting)} tests of the default models did not run: {why}"


def pytest_terminal_summary(terminalreporter, config):
    """Say why, at the end, where it is seen."""
    if why := config.stash.get(_WHY, ""):
        terminalreporter.write_line(why, yellow=True)


_WHY = pytest.StashKey[str]()
