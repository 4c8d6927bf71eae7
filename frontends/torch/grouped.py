"""Products of groups of rows: on fake tensors, whose shapes PyTorch gives for bfloat16 alone, and
of float64, of which it has no kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch

NAME: Final = "aten._grouped_mm.default"
#: What a CPU multiplies in groups beside bfloat16.
_NUMBERS: Final = (torch.float32, torch.float16)


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator on fake tensors; of ``_grouped_mm`` of numbers that are no
    bfloat16, which its kernels multiply and its shapes refuse, one of their type.

    Example: rows [8, 16] of float32 times matrices [4, 16, 32] are [8, 32] of float32.
    """
    if str(func) != NAME or args[0].dtype not in _NUMBERS:
        return func(*args, **kwargs)
    shaped = [
        x.to(torch.bfloat16) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in args
    ]
    return func(*shaped, **kwargs).to(args[0].dtype)


def called(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What PyTorch's operator of a name gives; of groups of rows, of any numbers.

    Example: ``called("aten.add.Tensor", [x, y], {})`` is their sum.
    """
    if name == NAME:
        return multiplied(*args)
    overload: Any = torch.ops
    for part in name.split("."):
        overload = getattr(overload, part)
    return overload(*args, **kwargs)


def multiplied(x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """``_grouped_mm`` of a matrix with matrices, or with another matrix, of any numbers.

    Example: rows [8, 16] times matrices [4, 16, 32] at the ends [2, 4, 6, 8] are two rows times
    each; [16, 8] times rows [8, 32] at these ends are the four products of two rows each.
    """
    stops = [0, *ends.tolist()]
    groups = [slice(*pair) for pair in pairwise(stops)]
    if y.dim() == 2:
        return torch.stack([x[:, rows] @ y[rows] for rows in groups])
    made = [x[rows] @ matrix for rows, matrix in zip(groups, y, strict=True)]
    rest = x.new_full((len(x) - stops[-1], y.shape[-1]), torch.nan)  # which nothing writes
    return torch.cat([*made, rest])
