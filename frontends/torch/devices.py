"""GPUs in a step that is recorded on a CPU: where a tensor lies changes none of its values.

Each name is replaced in the recording process, for good.  Tensors that a step makes on a GPU are
made on the CPU by the recorder (`shardproof.frontends.torch.record`).  Made for torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from shardproof.frontends.torch.conversions import Float
from shardproof.frontends.torch.standins import replace

#: What is printed where a step has streams of its own.
STREAMS = (
    "stand-in: streams of GPUs: what they run is run in the program's order, and whether one waits "
    "for another is not checked"
)


def on_cpu(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tensors of the step are made on the CPU: a build of torch without GPUs has no others, and
    where a value is changes nothing about it.

    Example: of ``torch.zeros(4, device="cuda:1")`` the device is ``cpu``.
    """
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "cuda":
        return kwargs
    return {**kwargs, "device": torch.device("cpu")}


def install(
    note: Callable[[str], None], world_size: int, from_host: Callable[[torch.Tensor], bool]
) -> None:
    """Let a step choose, ask for and wait for GPUs; ``note`` is told of streams, ``from_host`` says
    whether a tensor lies in memory that a GPU gets a copy of.

    Example: ``torch.cuda.set_device(rank)``, ``model.to(f"cuda:{rank}")`` and
    ``DistributedDataParallel(model, device_ids=[rank])`` do nothing about devices.
    """
    # A GPU is chosen by its number; there is one for each rank.
    replace(torch.cuda, "set_device", _doing_nothing())
    replace(torch.cuda, "current_device", lambda: 0)
    replace(torch.cuda, "device_count", lambda: world_size)
    # Nothing runs beside Python, and no memory is counted.
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "ipc_collect"):
        replace(torch.cuda, name, _doing_nothing())
    for name in ("range_push", "range_pop", "mark"):
        replace(torch.cuda.nvtx, name, _doing_nothing())
    # GPUs draw from the generator that the CPU draws from; who seeds one seeds it.
    for name in ("manual_seed", "manual_seed_all"):
        replace(torch.cuda, name, _seeding())
    replace(torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state())
    replace(torch.cuda, "set_rng_state", lambda state, *_: torch.set_rng_state(state))
    _answers(note)
    # A GPU by its number, where a tensor is made; by its name, the recorder makes it on the CPU.
    _meshes()
    constructors = cast("set[Callable[..., Any]]", torch.utils._device._device_constructors())
    for function in constructors:
        if getattr(torch, function.__name__, None) is function:
            replace(torch, function.__name__, _making(function))
    # The batch is copied to a GPU; what a step makes is there already, and stays where it is.
    replace(torch.Tensor, "cuda", lambda x, *_, **__: x.clone() if from_host(x) else x)
    replace(torch.Tensor, "pin_memory", _same)
    replace(torch.Tensor, "to", _moving(torch.Tensor.to, from_host))
    replace(torch.nn.Module, "cuda", _same)
    replace(torch.nn.Module, "to", _module_moving(torch.nn.Module.to))
    _streams(note)
    _data_parallel()


#: What is printed where a step asks about its GPUs.
IDLE = "stand-in: what the step asks about its GPUs (name, memory, capability): an H100 without use"
_MEMORY = 80 << 30


def _answers(note: Callable[[str], None]) -> None:
    """Questions about GPUs have the answers of one that is idle."""
    idle: dict[str, Any] = dict.fromkeys(
        (
            *("memory_allocated", "max_memory_allocated", "memory_reserved"),
            *("max_memory_reserved", "utilization"),
        ),
        0,
    )
    properties = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, total_memory=_MEMORY, multi_processor_count=132
    )
    answers: dict[str, Any] = {
        **idle,
        "get_device_name": properties.name,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_properties": properties,
        "mem_get_info": (_MEMORY, _MEMORY),
        "memory_stats": {},
        "memory_summary": "",
        "is_bf16_supported": True,
    }

    def answering(value: Any) -> Callable[..., Any]:
        def answer(*_: Any, **__: Any) -> Any:
            note(IDLE)
            return value

        return answer

    for name, value in answers.items():
        replace(torch.cuda, name, answering(value))


def _meshes() -> None:
    """A mesh of GPUs is one of CPUs: FSDP2 asks where its parameters lie."""
    made = DeviceMesh.__init__

    @wraps(made)
    def on_cpu(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        made(self, "cpu" if is_gpu(device_type) else device_type, *args, **kwargs)

    replace(DeviceMesh, "__init__", on_cpu)


def _making(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors, for which a GPU by its number is the CPU.

    Example: ``torch.zeros(1, device=torch.cuda.current_device())``.
    """

    @wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        return function(*args, **_typed(kwargs))

    return made


def _typed(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """PyTorch takes ``float`` for float64, and no other class that the program calls so."""
    return {key: float if value is Float else value for key, value in kwargs.items()}


def is_gpu(x: object) -> bool:
    """Whether an argument names a GPU.

    Example: "cuda:1" and ``torch.device("cuda")`` do, "cpu" and ``torch.float32`` do not.
    """
    if isinstance(x, torch.device):
        return x.type == "cuda"
    return isinstance(x, str) and x.split(":")[0] == "cuda"


def _moving(
    to: Callable[..., Any], from_host: Callable[[torch.Tensor], bool]
) -> Callable[..., Any]:
    """``Tensor.to``, for which a GPU, by name or number, is the CPU."""

    @wraps(to)
    def on_cpu(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tuple(float if y is Float else y for y in args), _typed(kwargs)
        if args and (is_gpu(args[0]) or type(args[0]) is int):
            args = ("cpu", *args[1:])
        elif is_gpu(kwargs.get("device")) or type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": "cpu"}
        else:
            return to(x, *args, **kwargs)
        result = to(x, *args, **kwargs)
        return result.clone() if result is x and from_host(x) else result

    return on_cpu


def _module_moving(to: Callable[..., Any]) -> Callable[..., Any]:
    """``Module.to``, which leaves parameters alone where it names a device and nothing else."""

    @wraps(to)
    def on_cpu(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        left = [a for a in args if not _is_device(a)]
        others = {k: v for k, v in kwargs.items() if k != "device"}
        if any(isinstance(a, (torch.dtype, torch.Tensor)) for a in left) or (
            {"dtype", "tensor", "memory_format"} & others.keys()
        ):
            return to(module, *left, **others)
        return module

    return on_cpu


def _is_device(x: object) -> bool:
    return isinstance(x, torch.device) or type(x) is int or isinstance(x, str)


class Stream:
    """A stream or an event of a GPU: all of its methods do nothing, and take no time.

    Example: ``torch.cuda.Stream().wait_stream(other)``.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def elapsed_time(self, *_: Any) -> float:
        """Milliseconds."""
        return 0.0

    def query(self) -> bool:
        """Whether all of it is done."""
        return True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing


def _streams(note: Callable[[str], None]) -> None:
    """Streams and events are handles; a block on a stream is a block."""

    def noted(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*_: Any, **__: Any) -> Any:
            note(STREAMS)
            return make()

        return made

    # Classes, as in torch: annotations (`torch.cuda.Stream | None`) and `isinstance` read them.
    class Noted(Stream):
        def __init__(self, *_: Any, **__: Any) -> None:
            note(STREAMS)

    class NotedEvent(Noted):
        pass

    replace(torch.cuda, "Stream", Noted)
    replace(torch.cuda, "Event", NotedEvent)
    for name in ("current_stream", "default_stream"):
        replace(torch.cuda, name, noted(Noted))
    replace(torch.cuda, "stream", noted(nullcontext))
    # Memory is kept as long as another stream reads it: it is kept in any case.
    replace(torch.Tensor, "record_stream", _nothing)


def _data_parallel() -> None:
    """DDP takes numbers of GPUs for modules on GPUs alone."""
    made = DistributedDataParallel.__init__

    @wraps(made)
    def on_no_device(
        self: DistributedDataParallel,
        module: torch.nn.Module,
        device_ids: object = None,
        output_device: object = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        made(self, module, None, None, *args, **kwargs)

    replace(DistributedDataParallel, "__init__", on_no_device)


def _doing_nothing() -> Callable[..., None]:
    """A function of its own for every name: torch's compiler has one rule for each function."""
    return lambda *_, **__: None


def _seeding() -> Callable[[int], object]:
    return lambda seed: torch.default_generator.manual_seed(seed)


def _nothing(*_: Any, **__: Any) -> None:
    """There is no device."""


def _same(x: Any, *_: Any, **__: Any) -> Any:
    return x
