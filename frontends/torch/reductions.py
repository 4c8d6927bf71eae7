"""How collectives of PyTorch reduce, by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")


def reduction(number: int) -> str:
    """A reduction by the number that c10d gives it; one that multiplies first, with its factor.

    The operator's object does not tell the factor: it is that of the options in the frame that
    issues it.  Example: 0 is ``"sum"``; of FSDP2 with a gradient divide factor of 4, 8 is
    ``"premul_sum 0.25"``.
    """
    name = REDUCTIONS[number]
    if name != "premul_sum":
        return name
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        options: Any = frame.f_locals.get("opts")
        if multiplies_first(options):
            factor: Any = options.reduceOp.__getstate__()[1]
            return f"{name} {factor!r}" if isinstance(factor, float) else name
        frame = frame.f_back
    return name


def multiplies_first(options: Any) -> bool:
    """Whether the options of a collective reduce by what multiplies by a number first.

    Example: those of ``dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))``.
    """
    op: Any = getattr(options, "reduceOp", None)
    state: Any = op.__getstate__() if isinstance(op, dist.ReduceOp) else None
    return state is not None and bool(state[0] == dist.ReduceOp.PREMUL_SUM)


def communicator_of(func: Any, args: Sequence[Any]) -> str:
    """The name of the process group that an operator is issued to ("": none).

    Example: of an all-reduce over all ranks it is "0".
    """
    if func.namespace == "c10d":
        for x in args:
            if isinstance(x, torch.ScriptObject) and "ProcessGroup" in str(x._type()):
                return str(ProcessGroup.unbox(x).group_name)
    if func.namespace == "_c10d_functional":
        for x, argument in zip(args, func._schema.arguments, strict=False):
            if argument.name == "group_name":
                return str(x)
    return ""
