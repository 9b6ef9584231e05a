"""Attention in which the hypotheses of a branch share the keys and values of its passage.

A batch row of keys is a branch; its queries may belong to many hypotheses. Folding these into one row of queries is
exact, spares a copy of the keys for every hypothesis, and is several times faster on a CPU than one query at a time.
It is registered with transformers under a name of our own, for models that look their attention up there.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

NAME = "bifolio"


def register() -> None:
    """Make the attention known to transformers; again does no harm."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention(
    module: Any,
    query: Float[Tensor, "Q N S d"],
    key: Float[Tensor, "R n L d"],
    value: Float[Tensor, "R n L d"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "Q S N d"], None]:
    """Softmax attention of N query heads over n key heads (n divides N).

    Row ``h * R + r`` of the query belongs to hypothesis h of branch r: Q is a multiple of R. The mask is additive or
    boolean, with 1 or R rows, 1 or N heads, and 1 or S queries. Where Q is more than R, the mask is given (attention
    is not causal by itself then).

    Raises:
        NotImplementedError: the model's attention is another one (soft caps, sinks).
    """
    unlike = ("sinks", "indices", "block_indices")
    if softcap is not None or s_aux is not None or any(others.get(name) is not None for name in unlike):
        raise NotImplementedError("attention with soft caps, sinks or chosen keys")
    rows, heads, length, width = query.shape
    branches, key_heads = key.shape[0], key.shape[1]
    hypotheses, sharing = rows // branches, heads // key_heads
    causal = length > 1 and attention_mask is None
    causal = causal and bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if causal and position_bias is not None:  # the one mask must say both
        attention_mask = torch.ones((length, key.shape[2]), dtype=torch.bool, device=key.device).tril()[None, None]
        causal = False
    mask = _additive(attention_mask, position_bias, query.dtype)
    few = hypotheses > 1 or length < 64  # where one head's queries are many, folding gains nothing
    fold = few and not causal
    if not fold:
        out = functional.scaled_dot_product_attention(
            query, key, value, mask, dropout, causal, scale=scaling, enable_gqa=sharing > 1
        )
        return out.transpose(1, 2).contiguous(), None
    queries = query.view(hypotheses, branches, key_heads, sharing, length, width).permute(1, 2, 3, 0, 4, 5)
    folded = queries.reshape(branches, key_heads, sharing * hypotheses * length, width)
    if mask is not None:
        mask = _fold_mask(mask, key_heads, sharing, hypotheses, length)
    out = functional.scaled_dot_product_attention(folded, key, value, mask, dropout, False, scale=scaling)
    out = out.view(branches, key_heads, sharing, hypotheses, length, width).permute(3, 0, 4, 1, 2, 5)
    return out.reshape(rows, length, heads, width), None


def _additive(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Mask and bias as one additive mask."""
    if mask is not None and mask.dtype == torch.bool:
        if bias is None:
            return mask
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
    if bias is None or mask is None:
        return mask if bias is None else bias.to(dtype)
    return mask + bias.to(dtype)


def _fold_mask(mask: Tensor, key_heads: int, sharing: int, hypotheses: int, length: int) -> Tensor:
    """The mask for queries in the order (sharing, hypothesis, position)."""
    rows, heads, queries, keys = mask.shape
    if queries == 1:  # the same for every query
        if heads == 1:
            return mask
        grid = mask.view(rows, key_heads, sharing, 1, keys).expand(-1, -1, -1, hypotheses * length, -1)
        return grid.reshape(rows, key_heads, -1, keys)
    if queries == length and hypotheses > 1:  # the same for every hypothesis
        mask = mask[:, :, None].expand(-1, -1, hypotheses, -1, -1).reshape(rows, heads, hypotheses * length, keys)
    if heads == 1:
        return mask if sharing == 1 else mask.repeat(1, 1, sharing, 1)
    return mask.reshape(rows, key_heads, -1, keys)
