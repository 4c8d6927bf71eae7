"""What is put in place of a framework's own functions while a step is recorded, and why.

Made for torch 2.13.  `install` gives what has to be printed; a newer version that lacks a function
named here is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as ddp

from engine.errors import InvalidInput


def install(note: Callable[[str], None]) -> None:
    """Replace, in this process, for good; ``note`` is told of what stands for communication."""
    _replace(ddp, "_verify_param_shape_across_processes", _nothing)
    _replace(ddp, "_sync_module_states", _nothing)
    _data_parallel(note)


def _replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
    if not hasattr(owner, name):
        raise InvalidInput(
            f"torch {torch.__version__} has no {owner.__name__}.{name}, which capture replaces"
        )
    setattr(owner, name, by)


def _nothing(*_: Any, **__: Any) -> None:
    """Compares or copies values between ranks before the step: parameters are inputs."""


def _data_parallel(note: Callable[[str], None]) -> None:
    """DDP's reduction in C++ reads memory that fake tensors do not have.  What it does by default
    is done by a hook in Python instead; a hook of the user's is left alone."""
    own: set[int] = set()
    register = DistributedDataParallel.register_comm_hook
    before = DistributedDataParallel._pre_forward

    def register_comm_hook(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        own.add(id(self))
        register(self, *args, **kwargs)

    def _pre_forward(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in own:
            own.add(id(self))
            register(self, self.process_group, average)
            note(
                "stand-in: DistributedDataParallel's reduction is a division by the number of "
                "ranks and an all-reduce of every bucket"
            )
        return before(self, *args, **kwargs)

    # DDP compares the annotations themselves, which are text in this file: there are none.
    def average(group, bucket):  # type: ignore[no-untyped-def]
        buffer = bucket.buffer().div_(group.size())
        dist.all_reduce(buffer, group=group)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]
    DistributedDataParallel._pre_forward = _pre_forward  # type: ignore[method-assign]
