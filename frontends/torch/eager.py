"""One operator of ATen by its name, run by PyTorch: what a graph's replay is judged by.

Floating types are float64.  Only operators whose rule the table has are run: names in a file are
not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import rule_of
from shardproof.frontends.aten.complexes import has_meaning

ATEN = "aten."
#: Element types by name, which operators may have among their arguments (`aten.to.dtype`).
TYPES = frozenset(
    {
        *("float16", "bfloat16", "float32", "float64", "bool"),
        *("uint8", "int8", "int16", "int32", "int64"),
        *("complex64", "complex128"),
    }
)
#: Views of a tensor that lies in memory as it was recorded, and the operator that copies elsewhere.
IN_ORDER = dict.fromkeys(("aten.view.default", "aten._unsafe_view.default"), "aten.reshape.default")
#: Keywords about where a tensor lies in memory.
PLACES = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})


def tensor(array: NDArray[Any]) -> Any:
    """An array of NumPy, as a tensor: numbers are float64.

    Example: float32 [1, 2] is a float64 tensor, int64 [1, 2] stays int64.
    """
    result = torch.tensor(np.asarray(array))
    return _wide(result)


def of_type(array: NDArray[Any], dtype: str) -> Any:
    """An array as a tensor of an element type, by its name; floating ones are float64.

    Example: [0, 1] of "bool" is [False, True], of "bfloat16" a float64 tensor.
    """
    return tensor(array).to(_typed("dtype", dtype))


def array(x: Any) -> NDArray[Any]:
    """A tensor as an array of NumPy.

    Example: ``torch.ones(2)`` is [1.0, 1.0].
    """
    return np.asarray(x.numpy())


def call(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What PyTorch's operator gives; raises `Unsupported` for what is none, or fails.

    Example: "aten.relu.default" of [-1, 2] is [0, 2]; "aten.save.default" is refused.
    """
    known = rule_of(target) is not None or has_meaning(target)
    if not target.startswith(ATEN) or not known:
        raise Unsupported(f"{target} is no operator that is run by its name")
    overload: Any = torch.ops
    try:
        for part in IN_ORDER.get(target, target).split("."):
            overload = getattr(overload, part)
        named = {k: _typed(k, v) for k, v in kwargs.items() if k not in PLACES}
        return _wide(overload(*map(_named_type, args), **named))
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError) as error:
        raise Unsupported(f"{target} cannot be run: {str(error).splitlines()[0][:200]}") from error


def _wide(x: Any) -> Any:
    """Tensors, alone or several, with all digits."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(_wide, x))
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def _named_type(x: Any) -> Any:
    """An element type that is given by its name, as PyTorch has it; anything else is as it is."""
    return _typed("dtype", x) if isinstance(x, str) and x in TYPES else x


def _typed(key: str, value: Any) -> Any:
    """Element types by name; floating and complex ones have all digits."""
    if key != "dtype" or not isinstance(value, str):
        return value
    name = value.removeprefix("torch.")
    if "complex" in name:
        return torch.complex128
    return torch.float64 if "float" in name else getattr(torch, name, None)
