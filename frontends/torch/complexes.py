"""Complex tensors as pairs of real numbers: how they lie in memory, and by which name an operator
on them is recorded.

A complex number is two real ones that follow each other, so a complex tensor is a real one with one
more dimension of size 2, the last; `torch.view_as_complex` and `torch.view_as_real` move nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.shadows import flat
from shardproof.frontends.torch.trace import Arg, Items, StridedTensor

#: The real type of each half.
HALVES = {torch.complex64: "float32", torch.complex128: "float64"}
#: Where an event's arguments say which of its operands are pairs, and whether its result is.
PAIRS = "pairs"
#: Operators that move pairs as they move numbers.
MOVES = ("aten.empty", "aten.new_empty", "aten.clone.", "aten.detach.", "aten.lift_fresh")


def strided(x: torch.Tensor, storage: int) -> StridedTensor:
    """How a tensor lies in its storage; a complex one as its pairs.

    Example: complex64 [3, 4] is float32 [3, 4, 2] with the strides (8, 2, 1).
    """
    shape, strides = (tuple(int(n) for n in ns) for ns in (x.shape, x.stride()))
    offset = int(x.storage_offset())
    if not x.is_complex():
        kind = str(x.dtype).removeprefix("torch.")
        return StridedTensor(storage, offset, shape, strides, kind)
    if x.dtype not in HALVES or x.is_conj() or x.is_neg():
        raise InvalidInput(f"a complex tensor of {x.dtype} that is read as another one lies")
    wide = (*(2 * n for n in strides), 1)
    return StridedTensor(storage, 2 * offset, (*shape, 2), wide, HALVES[x.dtype])


def recorded(name: str, args: Sequence[Any], out: Any) -> tuple[str, dict[str, Arg]]:
    """The name of an event, and which of its operands and results are pairs.

    Example: ``aten.mul.Tensor`` of a complex and a real tensor is ``complex.mul.Tensor`` with the
    pairs (True, False, True): the last one is its result.
    """
    results = [x for x in flat(out) if isinstance(x, torch.Tensor)]
    tensors = [x for x in flat(args) if isinstance(x, torch.Tensor)]
    if not any(x.is_complex() for x in (*tensors, *results)) or name.startswith(MOVES):
        return name, {}
    if name == "aten.copy_.default" and all(x.is_complex() for x in tensors):
        return name, {}
    pairs = [
        isinstance(x, torch.Tensor) and x.is_complex()
        for x in (*args, results[0] if results else None)
    ]
    return name.replace("aten.", "complex.", 1), {PAIRS: Items(tuple(pairs))}


def called(
    name: str, args: Sequence[Any], pairs: Sequence[bool], named: Mapping[str, Any] | None = None
) -> Any:
    """An operator on complex numbers, run by PyTorch on pairs; ``named``: its keyword arguments.

    Example: "mul.Tensor" of [[0, 1]] and [[0, 1]], both pairs, is [[-1, 0]].
    """
    overload: Any = torch.ops.aten
    for part in name.removeprefix("complex.").split("."):
        overload = getattr(overload, part)
    numbers = [
        torch.view_as_complex(x) if pair and isinstance(x, torch.Tensor) else x
        for x, pair in zip(args, pairs, strict=False)
    ]
    result = overload(*numbers, **(named or {}))
    return torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
