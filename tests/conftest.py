"""Shapes in signatures are checked while the tests run; real models are used where they are in the cache."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests reach loopback only

from jaxtyping import install_import_hook

install_import_hook(["bifolio.marginal", "bifolio.decode"], "beartype.beartype")

from hypothesis import settings

# Speed belongs in benchmarks/, so no deadline; in CI the same examples are drawn every time.
settings.register_profile("bifolio", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("bifolio")
