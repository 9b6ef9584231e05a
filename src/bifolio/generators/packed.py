"""Linear layers whose weights are packed once for the CPU's matrix units.

A weight is otherwise arranged anew at every call, which shows where there are few rows, as in decoding: packed, the
linear layers of a step take half the time in bfloat16 and a third to a half in float32 (docs/LOG.md). The operators are
those that torch's own compiler uses; where they are missing, or give something else, a layer stays as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_ROWS = 8  # what the packing is tuned for; any number of rows is computed correctly
_SMALLEST = 2**14  # weights under which a call costs more than the arithmetic
_TOLERANCE = {torch.bfloat16: 0.05, torch.float32: 1e-4}


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference on a CPU.

    ``weight`` is empty and tells the type alone: some models (T5) look at it. The packed weight is a copy, also of a
    matrix that is tied to the embedding, and is not part of ``state_dict``: a packed model cannot be saved.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Pack a layer's weight; the layer itself is left alone."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight.detach().new_empty(0)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """X W^T + b."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        return out


Replaced = list[tuple[nn.Module, str, nn.Linear]]
"""Where a layer was, under which name, and the layer itself."""


def pack(model: nn.Module) -> Replaced:
    """Replace the linear layers of a bfloat16 or float32 model on a CPU in place; what was replaced."""
    replaced: Replaced = []
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype in _TOLERANCE and child.weight.device.type == "cpu":
                packed = _packed(child)
                if packed is not None:
                    setattr(module, name, packed)
                    replaced.append((module, name, child))
    return replaced


def unpack(replaced: Replaced) -> None:
    """Put the layers back."""
    for module, name, layer in replaced:
        setattr(module, name, layer)


@torch.inference_mode()
def _packed(linear: nn.Linear) -> Any:
    """The packed layer if it computes the same, else None."""
    if linear.weight.numel() < _SMALLEST:
        return None
    x = torch.linspace(-1, 1, 3 * linear.in_features).view(3, -1).to(linear.weight.dtype)
    try:
        packed = PackedLinear(linear)
        mine, expected = packed(x).float(), linear(x).float()
    except (RuntimeError, AttributeError):  # an operator that this build of torch does not have
        return None
    off, most = float((mine - expected).abs().max()), float(expected.abs().max())
    return packed if off <= _TOLERANCE[linear.weight.dtype] * max(most, 1e-6) else None
