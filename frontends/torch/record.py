"""Record what a step dispatches: every operator, on fake tensors, with the user's source line.

The recorder is a dispatch mode above `FakeTensorMode` and below tensor subclasses, so that DTensors
and asynchronous results have become plain operators and collectives before it sees them.  Nothing
is computed and nothing communicates.  Small tensors that depend on no input (positions, meshes) are
computed besides, as *shadows*, so that Python may read them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import complexes, copies, counted, grouped, refusals, versions
from shardproof.frontends.torch.devices import on_cpu
from shardproof.frontends.torch.draws import kind_of
from shardproof.frontends.torch.generators import Generators
from shardproof.frontends.torch.places import in_function, is_machinery, place
from shardproof.frontends.torch.reductions import communicator_of, reduction
from shardproof.frontends.torch.samples import SAMPLED, Samples
from shardproof.frontends.torch.shadows import MOST_COMPUTED, MOST_SHADOW, Shadows, flat, written_by
from shardproof.frontends.torch.trace import (
    CONSTANT,
    DRAW,
    END,
    MOST_ELEMENTS,
    START,
    SUMMED,
    WAIT,
    Arg,
    Box,
    Event,
    Items,
    Named,
    Ranks,
    StridedTensor,
    Tensor,
    Trace,
    tensors_of,
)
from shardproof.frontends.torch.viewed import RESHAPED, require_view
from shardproof.frontends.torch.watched import Splits, Watched

#: Elements of a tensor whose values are kept as constants, and their types.
MOST_CONSTANT = MOST_COMPUTED
_KEPT = (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool, *complexes.HALVES)
#: Events of one rank.
MOST_EVENTS = 2_000_000

#: Operators that ask about a tensor, not about its values.
QUESTIONS = frozenset({"prim.device.default", "aten.is_same_size.default", "aten.sym_size.int"})

#: Arguments that change nothing about the values of a result.
IRRELEVANT = frozenset({"device", "layout", "pin_memory", "memory_format", "generator"})


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what is dispatched while it is entered, for one rank.

    Example: ``y.add_(1)`` is an event ``aten.add_.Tensor`` that writes the tensor ``y``, with the
    source "train.py:9 (forward)".

    The tables grow as events arrive; `finish` gives them as a `Trace`.
    """

    def __init__(self, rank: int, world_size: int, fake: FakeTensorMode, series: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rank, self.world_size, self.fake = rank, world_size, fake
        self.tensors: list[StridedTensor] = []
        self.events: list[Event] = []
        self.constants: dict[int, bytes] = {}
        self.notes: dict[str, None] = {}
        self._sources: dict[str, int] = {"": 0}
        self._modules: dict[str, int] = {"": 0}
        self._numbers: dict[StridedTensor, int] = {}
        self._storages: dict[int, tuple[int, Any]] = {}
        self.shadows = Shadows()
        self.samples = Samples(self.shadows)
        self._forward: dict[int, tuple[int, int]] = {}
        self._works: dict[int, tuple[Any, int]] = {}
        self._work = 0
        self._values: dict[int, bytes] = {}
        self._contents: dict[bytes, int] = {}
        self.names: dict[int, str] = {}
        self.stack: list[str] = []
        self.groups: dict[tuple[int, ...], str] = {}
        self.functions: dict[str, None] = {}
        self.copies = copies.Copies()
        self.generators = Generators()
        self.masks = counted.Masks(self, series)
        self.over = False
        self.splits = Splits(lambda path: not is_machinery(path))

    # -- tensors ----------------------------------------------------------------------------

    def tensor(self, x: torch.Tensor) -> Tensor:
        """The number of a plain tensor as it lies in its storage now."""
        storage = x.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = (len(self._storages), storage)
            if not isinstance(x, FakeTensor):
                self._constant(x, key)
        tensor = complexes.strided(x, self._storages[key][0])
        if tensor not in self._numbers:
            if prod(tensor.shape) > MOST_ELEMENTS:
                raise InvalidInput(f"a tensor of shape {list(tensor.shape)}")
            self._numbers[tensor] = len(self.tensors)
            self.tensors.append(tensor)
        return Tensor(self._numbers[tensor])

    def _constant(self, x: torch.Tensor, key: int) -> None:
        """A real tensor appears: its values are constants of the program, if they are few."""
        if x.device.type != "cpu" or x.numel() > MOST_SHADOW:
            return
        with _disable_current_modes(), torch.no_grad():
            storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            self.shadows.storages[key] = storage.untyped_storage()
            values = storage.clone()
            raw = bytes(values.view(torch.uint8).numpy().tobytes()) if values.numel() else b""
            whole = complexes.strided(values, self._storages[key][0])
        number = self._numbers.setdefault(whole, len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(whole)
        self._known_value(Tensor(number), raw, whole=True)

    def _known_value(self, tensor: Tensor, raw: bytes, *, whole: bool) -> None:
        """Append that a tensor (``whole``: all of its memory) has these values now."""
        if self._values.get(tensor.number) == raw:
            return
        self._values[tensor.number] = raw
        number = self._contents.setdefault(raw, len(self._contents))
        self.constants[number] = raw
        self.append(Event(CONSTANT, kwargs={"data": number, "whole": whole}, outputs=(tensor,)))

    def _meet(self, *args: Any) -> None:
        """Tensors that depend on no input meet one that does: their values are constants."""
        for x in _tensors(args):
            if not isinstance(x, FakeTensor) or not self.shadows.known(x):
                continue
            if not 1 < x.numel() <= MOST_CONSTANT or x.dtype not in _KEPT:
                continue
            if self.tensor(x).number in self._values:
                continue  # Nothing has written it since.
            with _disable_current_modes(), torch.no_grad():
                real = self.shadows.real(x).contiguous()
                first = real.flatten()[0]
                few = x.numel() <= MOST_SHADOW and bool(first.isfinite())
                if bool((real == first).all()) and not real.is_complex() and not few:
                    continue  # One number: what made it says so in fewer bytes.
                raw = bytes(real.view(-1).view(torch.uint8).numpy().tobytes())
            self._known_value(self.tensor(x), raw, whole=False)

    def is_known(self, x: torch.Tensor) -> bool:
        """Whether a tensor depends on no input."""
        return not isinstance(x, FakeTensor) or self.shadows.known(x)

    def shown(self, x: torch.Tensor, where: str) -> torch.Tensor | None:
        """The values of a tensor that depends on no input, in their own memory, which somebody else
        reads from here on, as asked at a place; numbers that stand for counts; None of others."""
        if not self.is_known(x):
            numbers = self.masks.numbers_in(x)
            if numbers is not None:
                with _disable_current_modes():
                    self.shadows.give(numbers.numpy(), where)
            return numbers
        self.shadows.show(x, where)
        with _disable_current_modes(), torch.no_grad():
            values: torch.Tensor = self.shadows.real(x)
            return values

    def lend(self, array: Any) -> None:
        """Note that a tensor has the memory of an array."""
        self.shadows.lend(array)

    # -- arguments --------------------------------------------------------------------------

    def arg(self, x: Any) -> Arg:
        """An argument as plain data."""
        if isinstance(x, torch.Tensor):
            return self.tensor(x)
        if isinstance(x, Watched):
            return int(x)
        if x is None or isinstance(x, (bool, int, float, str)):
            return x
        if isinstance(x, (list, tuple)):
            return Items(tuple(self.arg(i) for i in x))
        if isinstance(x, torch.dtype):
            return Named("dtype", str(x).removeprefix("torch."))
        if isinstance(x, torch.ScriptObject):
            return self._object(x)
        if isinstance(x, ProcessGroup):
            return self._group(x)
        return Named(type(x).__name__, str(x)[:200])

    def _object(self, x: Any) -> Arg:
        kind = str(x._type()).rsplit(".", 1)[-1]
        if kind == "ProcessGroup":
            return self._group(ProcessGroup.unbox(x))
        if kind == "ReduceOp":
            return Named("reduce", reduction(int(x.op())))
        return Named(kind, "")

    def _group_names(self, func: Any, args: Sequence[Any]) -> list[Arg]:
        """Arguments of an operator; names of groups as their ranks."""
        arguments = [self.arg(x) for x in args]
        if func.namespace == "_c10d_functional":
            for i, argument in enumerate(func._schema.arguments[: len(args)]):
                if argument.name == "group_name" and isinstance(args[i], str):
                    group = _resolve_process_group(args[i])
                    arguments[i] = self._group(group)
        return arguments

    def _group(self, group: ProcessGroup) -> Ranks:
        """A process group, whose name is kept if a mesh gave it one."""
        ranks = tuple(map(int, dist.get_process_group_ranks(group)))
        if group.group_desc.startswith("mesh_"):
            self.groups.setdefault(ranks, group.group_desc.removeprefix("mesh_"))
        return Ranks(ranks)

    # -- events -----------------------------------------------------------------------------

    def append(self, event: Event) -> int:
        """The number of an event; known values of the memory that it writes are forgotten.  What
        follows the end of the step is no part of it."""
        if self.over:
            return len(self.events) - 1
        written = {self.tensors[n].storage for n in (*event.writes, *tensors_of(*event.outputs))}
        if event.name != CONSTANT and written:
            for number in [n for n in self._values if self.tensors[n].storage in written]:
                del self._values[number]
        if len(self.events) >= MOST_EVENTS:
            raise InvalidInput(f"a step of more than {MOST_EVENTS} operators")
        self.events.append(event)
        return len(self.events) - 1

    def mark(
        self,
        name: str,
        args: Iterable[Arg] = (),
        outputs: Sequence[Arg] = (),
        boxes: Iterable[Box] = (),
        kwargs: Mapping[str, Arg] | None = None,
    ) -> None:
        """Append a mark of the job; what it makes an input has no value that Python may read."""
        if name == START:
            self.generators.start()
            self.samples.end()
        if name == END:
            self.shadows.check_arrays()
            refusals.require_none()
            self.masks.check()
        source, _ = place(sys._getframe(1))
        made = {self.tensors[x.number].storage for x in outputs if isinstance(x, Tensor)}
        for key, (number, _) in self._storages.items():
            if number in made:
                self.shadows.storages.pop(key, None)
        self.append(
            Event(
                name,
                tuple(args),
                dict(kwargs or {}),
                tuple(outputs),
                self._sources.setdefault(source, len(self._sources)),
                boxes=tuple(boxes),
            )
        )
        self.over = self.over or name == END

    def _where(self) -> tuple[int, int, bool, bool]:
        """Source, module, and whether this is backward, and code of the program's in it, of what is
        dispatched now."""
        text, engine = place(sys._getframe(2))
        node = torch._C._current_autograd_node()
        if node is not None and engine:
            known = self._forward.get(node._sequence_nr())
            if known is not None:
                return (*known, True, False)
        source = self._sources.setdefault(text, len(self._sources))
        path = self.stack[-1] if self.stack else ""
        module = self._modules.setdefault(path, len(self._modules))
        if node is None:
            number = torch.autograd._get_sequence_nr() - 1
            self._forward.setdefault(number, (source, module))
            return source, module, False, False
        known = self._forward.get(node._sequence_nr())
        module = known[1] if known is not None and not self.stack else module
        return source, module, True, not engine

    # -- dispatch ---------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = on_cpu(kwargs or {})
        if any(t not in _PLAIN and not issubclass(t, _SUBCLASSED) for t in types):
            return NotImplemented
        if str(func) == "aten._local_scalar_dense.default":
            return self._scalar(args[0])
        if str(func) == "aten.lift_fresh.default" and not isinstance(args[0], FakeTensor):
            self.tensor(args[0])
        copying = copies.copying(func)
        func = copying or func
        name = str(func)
        refusals.by_name(name)
        if any(not isinstance(x, FakeTensor) for x in written_by(func, args, kwargs)):
            where, _ = place(sys._getframe(1))
            refusals.refuse(
                f"a tensor that was there before the step is written ({name} at {where}); other "
                "ranks and the other side would read what is left in it"
            )
        given = None if name in QUESTIONS else self._group_names(func, args)
        require_view(func, args)
        instead = self.masks.instead(func, args)
        if instead is not None:
            return instead
        try:
            out = self.masks.positions(func, args, kwargs)
            out = grouped.run(func, args, kwargs) if out is None else out
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._real(func, args, kwargs)
        versions.count(func, args, kwargs)
        if given is None or func.overloadpacket in RESHAPED:
            return out
        plain = func.namespace not in ("c10d", "_c10d_functional", "prim", "prims")
        followed = plain and self.shadows.follow(func, args, kwargs, out)
        if plain and not (followed and _kept(out)):
            self._meet(args, tuple(kwargs.values()))
        draw = self.generators.drawn(kwargs.get("generator")) if kind_of(name) else ""
        self.samples.go_on(func, args, kwargs, out, known=followed, draw=draw)
        if not followed:
            self.shadows.forget(func, args, kwargs)
        outputs = tuple(self.arg(x) for x in (out if isinstance(out, (list, tuple)) else (out,)))
        source, module, backward, own = self._where()
        named = {key: self.arg(value) for key, value in kwargs.items() if key not in IRRELEVANT}
        if draw:
            named[DRAW] = draw
        name, pairs = complexes.recorded(name, args, out)
        written = tuple(self.tensor(x).number for x in written_by(func, args, kwargs))
        read, into, made = (
            {self.tensors[n].storage for n in numbers}
            for numbers in (tensors_of(*given), written, tensors_of(*outputs))
        )
        self.copies.used(read, into, made if copying else ())
        work = 0
        if func.namespace == "c10d":
            self._work += 1
            work = self._work
        self.append(
            Event(
                name,
                tuple(given),
                named | pairs,
                outputs,
                source,
                module,
                backward,
                work,
                writes=written,
                still=() if backward else self._still(args, kwargs),
                own=own,
                communicator=communicator_of(func, args),
            )
        )
        return out

    def _still(self, args: Any, kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """Operands that autograd sends no gradient to.  Where it is off, nothing is said, nor in a
        custom function that turns it on again: what is computed there gets its gradient from that
        function."""
        if self.world_size > 1 or not torch.is_grad_enabled():
            return ()
        operands = _tensors((*args, *kwargs.values()))
        still = tuple(self.tensor(x).number for x in operands if not x.requires_grad)
        return () if still and in_function(sys._getframe(1)) else still

    def _real(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """What has no shape without values: a constant, if it depends on no input."""
        try:
            with _disable_current_modes(), torch.no_grad():
                real = self.shadows.real
                return func(*real(args), **{k: real(v) for k, v in kwargs.items()})
        except KeyError:
            where, _ = place(sys._getframe(1))
            text = f"the shape of a tensor depends on the inputs of the step ({func} at {where})"
            refusals.refuse(text)

    def _scalar(self, x: torch.Tensor) -> Any:
        """``.item()``: what is known without any input; refused otherwise, by the user's line."""
        try:
            with _disable_current_modes():
                return self.shadows.real(x).item()
        except KeyError:
            if read := self.shadows.sum_read(x):
                self.notes.setdefault(f"{SUMMED}{read[1]}")
                return read[0]
            if (answer := self.masks.answer(x)) is not None:
                return answer
            where, _ = place(sys._getframe(1))
            if (sample := self.sampled(x, where)) is not None:
                with _disable_current_modes():
                    return sample.item()
            text = "Python reads the value of a tensor that depends on the inputs of the step"
            refusals.refuse(f"{text} (.item(), bool() or tolist() at {where})")

    def sampled(self, x: torch.Tensor, where: str) -> torch.Tensor | None:
        """What is drawn before the step, as Python reads it at a place; None: it is not that."""
        sample = self.samples.read(x)
        if sample is not None:
            self.notes.setdefault(SAMPLED.format(where))
        return sample

    # -- waits ------------------------------------------------------------------------------

    def handle(self, work: Any) -> None:
        """Python got the handle of the last collective."""
        self._works[id(work)] = (work, self._work)

    def waited(self, work: Any) -> None:
        """Note that the handle of an asynchronous collective was waited for."""
        known = self._works.get(id(work))
        if known is not None:
            self.mark(WAIT, kwargs={"work": known[1]})

    def differentiated(self, function: type[torch.autograd.Function]) -> None:
        """The backward of a function runs that is written in Python."""
        code = inspect.unwrap(function.backward).__code__
        if not is_machinery(code.co_filename):
            text = f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})"
            self.functions.setdefault(text)

    # -- modules ----------------------------------------------------------------------------

    def name_modules(self, modules: Iterable[torch.nn.Module]) -> None:
        """From here on forward calls are known by the paths of their modules."""
        for model in modules:
            for path, module in model.named_modules():
                self.names.setdefault(id(module), path)

    def entered(self, module: torch.nn.Module, *_: Any) -> None:
        """Hook before a module's forward: operators from here on are that module's."""
        self.stack.append(self.names.get(id(module), self.stack[-1] if self.stack else ""))

    def left(self, *_: Any) -> None:
        """Hook after a module's forward."""
        if self.stack:
            self.stack.pop()

    def finish(self) -> Trace:
        """What was recorded.  A collective whose handle Python never had (DDP's broadcast of
        buffers) was waited for by who issued it."""
        handled = {number for _, number in self._works.values()}
        return Trace(
            self.rank,
            self.world_size,
            tuple(self.tensors),
            tuple(
                structs.replace(e, work=0) if e.work and e.work not in handled else e
                for e in self.events
            ),
            tuple(self._sources),
            tuple(self._modules),
            self.constants,
            tuple(self.notes),
            tuple((name, ranks) for ranks, name in self.groups.items()),
            tuple(self.splits.minorities),
            tuple(self.functions),
            tuple(self.masks.sizes),
        )


def _kept(out: Any) -> bool:
    """Whether values of these results may be constants.  Where numbers are rounded to fewer digits
    (a table of angles cast to bfloat16), those before are: rounding changes nothing."""
    return all(x.dtype in _KEPT or not x.is_floating_point() for x in _tensors(out))


_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor, torch.nn.Buffer)
#: Subclasses that have no dispatch of their own.
_SUBCLASSED = (torch.nn.Parameter,)


def _tensors(x: Any) -> list[torch.Tensor]:
    return [item for item in flat(x) if isinstance(item, torch.Tensor)]
