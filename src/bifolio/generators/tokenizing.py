"""Text of documents and questions to token ids: what looks like a special token in it is characters and no command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bifolio.errors import ModelError


def untrusted(tokenizer: Any, folder: Path) -> Tokenizer:
    """A tokenizer of the same model to which ``<|im_end|>`` is ten characters.

    Of its own and without state: an option of the shared one (``split_special_tokens``) would be switched to and fro
    under the feet of other threads, and it spares added tokens that are not flagged as special. A unigram model knows
    its special tokens as pieces, too: there they are renamed to what no text has.

    Raises:
        ModelError: the tokenizer has no fast form.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{folder}: its tokenizer has no tokenizer.json (no fast form), which is needed here")
    settings = json.loads(backend.to_str())
    special = {added["content"] for added in settings["added_tokens"] if added["special"]}
    model = settings["model"]
    if model.get("type") == "Unigram":
        unknown = model.get("unk_id")
        model["vocab"] = [
            [f"\ue000\ue001{i}" if piece in special and i != unknown else piece, score]
            for i, (piece, score) in enumerate(model["vocab"])
        ]
    made: Tokenizer = Tokenizer.from_str(json.dumps({**settings, "added_tokens": []}))
    made.no_truncation()
    made.no_padding()
    return made
