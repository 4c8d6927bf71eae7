"""Whether PyTorch gives a tensor another shape in the memory that it has.

Fake tensors allow a `view` that tensors with memory refuse: of [1, 3, 1, 3], whose last three
dimensions lie in another order than their strides, as nine numbers.  A step with one stops on the
cluster, so it must stop here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: Operators that fail where strides do not allow a shape.
VIEWS: Final = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})

#: Operators that change how a tensor lies in its memory, or in which, and nothing in that.
RESHAPED = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        *("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "set_"),
        "as_strided_",
    )
)


def require_view(func: Any, args: Sequence[Any]) -> None:
    """Raise what PyTorch raises of tensors with memory where a ``view`` is none.

    Example: ``x.unsqueeze(1).transpose(0, 2).view(-1)`` of x [4, 4] is refused, "view size is not
    compatible with input tensor's size and stride ...".
    """
    if func not in VIEWS or args[0].is_contiguous():
        return
    x, shape = args[:2]
    with _disable_current_modes():
        torch.empty_strided(x.shape, x.stride(), device="meta").view(shape)
