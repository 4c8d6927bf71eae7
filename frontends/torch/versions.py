"""How often tensors were written, as autograd counts it, where a list of them is written in place.

PyTorch counts that in the kernels of ``torch._foreach_mul_`` and of copies into a list, which no
fake tensor reaches.  By the count autograd sees that a view that was made before has to get a
gradient anew, and that what it keeps for a backward is no longer there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.autograd.graph import increment_version


def count(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Count that an operator wrote the tensors of a list; fused steps of optimizers are not
    counted, as in PyTorch.

    Example: after ``torch._foreach_mul_([x], 2)`` the gradient of an earlier ``x.view(-1)`` is
    that of ``2 * x``, as on tensors with memory.
    """
    if func.namespace != "aten" or func.__name__.startswith("_fused_"):
        return
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            if isinstance(value, (list, tuple)):
                increment_version([x for x in value if not x.is_inference()])
