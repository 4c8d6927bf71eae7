"""What is put in place of a framework's own functions while a step is recorded, and why.

Made for torch 2.13.  `install` gives what has to be printed; a newer version that lacks a function
named here is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import _flat_param
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as ddp

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import cloned
from shardproof.frontends.torch.futures import Awaited, all_of


def install(
    note: Callable[[str], None],
    known: Callable[[torch.Tensor], bool],
    started: Callable[[], bool],
) -> None:
    """Put functions in the place of a framework's own that cannot be recorded, in this process, for
    good; ``note`` is told of what stands for communication, ``known`` says whether a tensor depends
    on no input, ``started`` whether parameters are inputs already.

    Example: ``note`` gets "stand-in: DistributedDataParallel's reduction is a division by the
    number of ranks and an all-reduce of every bucket".
    """
    replace(ddp, "_verify_param_shape_across_processes", _nothing)
    _synchronised(started)
    _data_parallel(note)
    _buffers(note, known)
    _pipelining(note)
    _coalesced()
    _flat_parameters()
    _converted()
    cloned.install()
    replace(torch.futures, "collect_all", all_of)
    replace(torch.futures, "wait_all", lambda futures: [future.wait() for future in futures])
    _truncated(note)


def _synchronised(started: Callable[[], bool]) -> None:
    """DDP copies rank 0's weights to all ranks. Parameters are inputs; but what a rank copied of
    its own before that is no copy of them any more, so they are written (with what they have)."""

    def synchronised(module: torch.nn.Module, *_: Any, **__: Any) -> None:
        if not started():
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1)

    replace(ddp, "_sync_module_states", synchronised)


def _flat_parameters() -> None:
    """FSDP asks for addresses in memory, which fake tensors do not have: whether memory is there,
    and whether two tensors lie in the same."""
    replace(_flat_param, "_data_ptr_allocated", lambda x: x.untyped_storage().size() > 0)
    replace(_flat_param, "_same_storage", _same_storage)


def _same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _converted() -> None:
    """``model.to(torch.bfloat16)`` gives a fake parameter its new tensor by exchanging the two,
    which PyTorch refuses where something refers to one (fake mode does): it gets the other's
    memory, as parameters that are not fake do."""
    exchange: Callable[[torch.Tensor, torch.Tensor], None] = torch.utils.swap_tensors

    def exchanged(own: torch.Tensor, other: torch.Tensor) -> None:
        if not (isinstance(own, FakeTensor) and isinstance(other, FakeTensor)):
            return exchange(own, other)
        with torch.no_grad():
            own.data = other.data

    replace(torch.utils, "swap_tensors", exchanged)


#: Collectives of several tensors at once, of which torch has no kernel for fake ones.
COALESCED = (
    "allreduce_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)


def _coalesced() -> None:
    """They write tensors that are there, so that nothing but a handle has to be made."""
    for name in COALESCED:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "Meta"):
            _LIBRARY.impl(name, _handle, "Meta")


def _handle(*_: Any, **__: Any) -> Any:
    return FakeWork().boxed()


_LIBRARY: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]


def _truncated(note: Callable[[str], None]) -> None:
    """Weights are drawn again while one is out of bounds, which asks for values; they are inputs
    from the start of the step on.  Bounds and parameters of the draw stay in what is recorded."""

    def bounded(
        tensor: torch.Tensor,
        mean: float,
        std: float,
        a: float,
        b: float,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        note("stand-in: torch.nn.init.trunc_normal_ bounds what it draws, instead of drawing again")
        with torch.no_grad():
            return tensor.normal_(mean, std, generator=generator).clamp_(a, b)

    replace(torch.nn.init, "_no_grad_trunc_normal_", bounded)


def _buffers(note: Callable[[str], None], known: Callable[[torch.Tensor], bool]) -> None:
    """DDP broadcasts rank 0's buffers before a forward call: those that depend on no input (masks,
    rotary tables) are made by the same code on every rank, and stay what they are."""
    broadcast = DistributedDataParallel._sync_buffers

    def _sync_buffers(self: DistributedDataParallel) -> None:
        if all(known(buffer) for buffer in self.modules_buffers):
            note(
                "stand-in: DistributedDataParallel's broadcast of buffers that depend on no input "
                "changes nothing"
            )
            return
        broadcast(self)  # type: ignore[no-untyped-call]

    replace(DistributedDataParallel, "_sync_buffers", _sync_buffers)


def _pipelining(note: Callable[[str], None]) -> None:
    """Stages of a pipeline vote on whether shapes are sent ahead of values: if one of them was made
    without, all do. Ranks that are captured one by one take each its own vote for that of all; if
    they are not of one mind, one waits for shapes that others never send."""
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining._utils import InferenceMode

    def agreed(self: Any, stages: Any, has_backward: bool, p2p_done: bool) -> None:
        asks = any(InferenceMode.needs_dynamic(s._user_meta, has_backward) for s in stages)
        for stage in stages:
            stage._inference_mode = InferenceMode.DYNAMIC if asks else InferenceMode.STATIC
        how = "are sent ahead of values" if asks else "are given when they are made"
        note(f"stand-in: stages of the pipeline agree that shapes {how}")

    replace(schedules._PipelineSchedule, "_warmup_p2p", agreed)


def replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
    """Put a function in the place of another one, in this process, for good; raises `InvalidInput`
    where there is none of this name.

    Example: ``replace(torch.cuda, "set_device", lambda *_: None)``.
    """
    if not hasattr(owner, name):
        raise InvalidInput(
            f"torch {torch.__version__} has no {owner.__name__}.{name}, which capture replaces"
        )
    setattr(owner, name, by)


def _nothing(*_: Any, **__: Any) -> None:
    """Compares values of ranks before the step: parameters are inputs."""


def _first(future: torch.futures.Future[Any]) -> torch.futures.Future[Any]:
    value = future.value()
    first: torch.futures.Future[Any] = torch.futures.Future()
    first.set_result(value[0] if isinstance(value, (list, tuple)) else value)
    return first


class _FixedBuckets(dist.Reducer):  # type: ignore[misc, name-defined]  # C++
    """DDP's buckets as they are made first.  Before its second forward call DDP puts parameters in
    other buckets, in the order in which their gradients came, which ranks tell each other in memory
    that fake tensors do not have; which parameters share a bucket changes no gradient."""

    def _rebuild_buckets(self) -> bool:
        return False


def _data_parallel(note: Callable[[str], None]) -> None:
    """DDP's reduction in C++ reads memory that fake tensors do not have.  What it does by default
    is done by a hook in Python instead; a hook of the user's is left alone."""
    own: set[int] = set()
    register = DistributedDataParallel.register_comm_hook
    before = DistributedDataParallel._pre_forward

    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> None:
        own.add(id(self))

        @wraps(hook)
        def awaited(state: Any, bucket: Any) -> Any:
            """DDP waits for what a hook gives, and takes the first of several tensors."""
            result = hook(state, bucket)
            return _first(result) if isinstance(result, Awaited) else result

        # By its name DDP asks for a GPU where a hook compresses to bfloat16.
        awaited.__name__ = "awaited"
        register(self, state, awaited)

    def _pre_forward(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in own:
            own.add(id(self))
            register(self, self.process_group, average)
            note(
                "stand-in: DistributedDataParallel's reduction is a division by the number of "
                "ranks and an all-reduce of every bucket"
            )
        return before(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    # DDP compares the annotations themselves, which are text in this file: there are none.
    def average(group, bucket):  # type: ignore[no-untyped-def]
        buffer = bucket.buffer().div_(group.size())
        dist.all_reduce(buffer, group=group)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    replace(dist, "Reducer", _FixedBuckets)
    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]
    DistributedDataParallel._pre_forward = _pre_forward  # type: ignore[method-assign]
