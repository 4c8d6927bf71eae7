"""The job that a user's step is given: its rank, its batch, and where the step starts and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec import structs
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.begun import BEGINS, COPIES
from shardproof.frontends.torch.boxes import described, local, whole
from shardproof.frontends.torch.flat import Flat, flat_parts
from shardproof.frontends.torch.overwritten import untold
from shardproof.frontends.torch.part import Part, divided, local_box, owns, state_box, unknown
from shardproof.frontends.torch.record import Recorder
from shardproof.frontends.torch.stated import Piece, Same, Statement, TensorSpec
from shardproof.frontends.torch.trace import (
    BATCH,
    BUFFER,
    END,
    FULL,
    PARAMETER,
    START,
    Arg,
    Box,
)
from shardproof.frontends.torch.unfinished import unfinished
from shardproof.frontends.torch.watched import Watched

#: Marks of what is compared.
LOSS, GRADIENT, OUTPUT = "job.loss", "job.gradient", "job.output"
UPDATED, STATE = "job.updated", "job.state"

#: What is printed of an update that counts.
COUNTED = (
    "counts of optimizers, such as AdamW's step, are those of the recorded step: an update that "
    "depends on one is compared for this count"
)
#: What is printed of states that were not there before.
FRESH = (
    "states that optimizers make in the recorded step, such as SGD's momentum_buffer, are not "
    "there before it: what an update makes of those of earlier steps is not compared"
)

#: What is printed where ranks own a part of a gradient.
DIVIDED = (
    "gradients and states of optimizers are compared in the entries that job.start says each rank "
    "owns, and together the ranks own all"
)

#: What is printed of gradients, losses, states and outputs that stay parts of sums.
PARTIAL = (
    "DTensors that are partial at job.end are added up there: who reads their local tensors has to "
    "do the same"
)

#: What wrappers put before a parameter's name.
_WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


class Inputs(Mapping[str, torch.Tensor]):
    """Full tensors by name, each made when it is first asked for.

    Example: ``job.batch["x"]`` of the batch {"x": ``sp.tensor((4, 8))``} is a fake tensor [4, 8],
    and a mark ``job.batch`` at the first call.
    """

    def __init__(self, recorder: Recorder, mark: str, specs: Mapping[str, TensorSpec]) -> None:
        self._recorder, self._mark, self._specs = recorder, mark, specs
        self._made: dict[str, torch.Tensor] = {}

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Shape, element type and domain of every tensor that may be asked for, by name."""
        return self._specs

    def extended(self, specs: Mapping[str, TensorSpec]) -> Inputs:
        """The same tensors, and more."""
        inputs = Inputs(self._recorder, self._mark, {**self._specs, **specs})
        inputs._made = self._made
        return inputs

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._specs:
            known = ", ".join(sorted(self._specs)) or "none"
            raise InvalidInput(f"there is no {name!r} (there are: {known})")
        if name not in self._made:
            spec = self._specs[name]
            if "complex" in spec.dtype:
                raise InvalidInput(f"{name!r} has complex numbers: give real pairs, and view them")
            # Where a function that `torch.func` transforms asks for it, it is no number of its own.
            with torch._C._DisableFuncTorch():
                made = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
            self._made[name] = made
            self._recorder.mark(
                self._mark,
                outputs=(self._recorder.tensor(made),),
                kwargs={"name": name, "low": spec.low, "high": spec.high},
            )
        return self._made[name]

    def holds(self, x: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of one that was asked for, as its rows do."""
        own = (made.untyped_storage()._cdata for made in self._made.values())
        return x.untyped_storage()._cdata in own

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


class Job:
    """What a step sees of where it runs.

    Example: ``def step(job)`` begins with ``job.start(model)``, reads ``job.batch["x"]`` and ends
    with ``job.end(loss=loss)``.

    ``rank``, ``world_size``; ``batch[name]``: the full batch, on every rank; ``full[name]``: full
    parameters of the single-device program, to be cut by the program itself.
    """

    def __init__(
        self,
        recorder: Recorder,
        batch: Mapping[str, TensorSpec],
        full: Mapping[str, TensorSpec],
    ) -> None:
        self.world_size = recorder.world_size
        everybody = {rank: rank for rank in range(self.world_size)}
        self.rank: int = Watched.of(recorder.rank, everybody, recorder.splits)
        self.batch = Inputs(recorder, BATCH, batch)
        self.full = Inputs(recorder, FULL, full)
        self._recorder = recorder
        self._known = full
        self._kept: set[tuple[int, str]] = set()
        self._parameters: list[Part] = []
        self._models: Sequence[torch.nn.Module] = ()
        self._started = self._ended = False
        self.ended_twice = False
        self._optimizer: Any = None
        self._begun: Mapping[str, int] = {}
        self._replicated: frozenset[int] = frozenset()
        self._flat: Mapping[int, Sequence[Flat]] = {}

    # -- start ----------------------------------------------------------------------------

    def start(
        self,
        model: torch.nn.Module | Sequence[torch.nn.Module],
        optimizer: Any = None,
        parameters: Mapping[str, Statement] | None = None,
        owned: Mapping[str, range] | None = None,
    ) -> None:
        """From here on the parameters are inputs, by name.

        ``optimizer``: its new parameters and states are compared too; earlier states are inputs.
        ``parameters`` states of local ones which part of which full parameter they are, where no
        metadata says it.  ``owned``: of the entries of local ones, in a row, those whose gradient
        this rank has and whose states it keeps, where replicas divide them (ZeRO-1 and -2); other
        ranks have to have the others.
        """
        if self._started:
            raise InvalidInput("job.start is called twice in one step")
        self._started = True
        self._optimizer = optimizer
        models = [model] if isinstance(model, torch.nn.Module) else list(model)
        self._models = models
        self._recorder.name_modules(models)
        statements, shares = dict(parameters or {}), dict(owned or {})
        self._replicated = replicated(models)
        self._flat = flat_parts(models, clean)
        for name, parameter in named(models):
            if parameter.is_complex():
                raise InvalidInput(f"{name!r} has complex numbers: keep real pairs, and view them")
            share = owns(parameter, name, shares.pop(name, None), id(parameter) in self._flat)
            for whole_part in self._parts(name, parameter, statements.pop(name, None)):
                self._parameters += [whole_part] if share is None else divided(whole_part, share)
        number = self._recorder.shadows.one_number
        first = {id(p.parameter): number(local(p.parameter.detach())) for p in self._parameters}
        for part in self._parameters:
            self._recorder.mark(
                PARAMETER,
                outputs=(self._recorder.tensor(part.of(part.parameter)),),
                boxes=(part.box,),
                kwargs={
                    "name": part.name,
                    "trainable": part.parameter.requires_grad and part.owned,
                },
            )
            self._earlier(part, first[id(part.parameter)])
        unknown({**statements, **shares})
        if owned:
            self.note(DIVIDED)
        self._recorder.mark(START)
        self._begun = self._memories()
        self._buffers(models)

    def _buffers(self, models: Sequence[torch.nn.Module]) -> None:
        """Buffers of numbers that are not known, which are inputs too if they were drawn; on ranks
        those that have the name and shape of one of the single device."""
        parameters = {part.name for part in self._parameters}
        for name, buffer in named(models, torch.nn.Module.named_buffers):
            full = self._known.get(name)
            alike = self.world_size == 1 if full is None else full.shape == tuple(buffer.shape)
            known = name in parameters or self._recorder.is_known(buffer)
            if alike and not known and buffer.is_floating_point():
                box = whole(name, tuple(buffer.shape), "same name")
                self._recorder.mark(
                    BUFFER,
                    outputs=(self._recorder.tensor(buffer),),
                    boxes=(box,),
                    kwargs={"name": name},
                )

    def note(self, text: str) -> None:
        """Print this with the verdict: what stands in for something else while it is recorded."""
        self._recorder.notes.setdefault(text)

    def _earlier(self, part: Part, first: float | None) -> None:
        """States that the optimizer has already are inputs too.  What they begin with counts where
        it is one number; where that is the parameter's (``first``), too, they may be a copy."""
        for key, state in self._states(part.parameter) if part.owned else ():
            if not state.dim():
                continue  # a count, such as ``step``, is what it is in the step
            self._kept.add((id(part.parameter), key))
            own, piece = state_box(part, key, state)
            number = self._recorder.shadows.one_number(piece)
            begins = {} if number is None else {BEGINS: number, COPIES: number == first}
            self._recorder.mark(
                PARAMETER,
                outputs=(self._recorder.tensor(piece),),
                boxes=(structs.replace(own, name=f"{own.name}: {key}"),),
                kwargs={"name": f"{part.name}: {key}", "trainable": False, **begins},
            )

    def _states(self, parameter: torch.nn.Parameter) -> list[tuple[str, torch.Tensor]]:
        """Tensors that the optimizer keeps of a parameter; ZeroRedundancyOptimizer keeps those of
        its own in another one."""
        optimizer = getattr(self._optimizer, "optim", self._optimizer)
        if optimizer is None:
            return []
        state = sorted(optimizer.state.get(parameter, {}).items())
        return [(str(k), v) for k, v in state if isinstance(v, torch.Tensor)]

    def _parts(
        self, name: str, parameter: torch.nn.Parameter, statement: Statement | None
    ) -> Iterator[Part]:
        """A parameter as boxes of full ones, which are one after the other along a dimension."""
        shape = tuple(local(parameter.detach()).shape)
        if statement is None and id(parameter) in self._flat:
            flat = self._flat[id(parameter)]
            counts = Counter(part.box.name for part in flat)
            for number, (box, cut) in enumerate(flat):
                own = box.name if counts[box.name] == 1 else f"{box.name}[{number}]"
                yield Part(own, parameter, box, cut)
        elif statement is None:
            tensor: Any = parameter
            if isinstance(tensor, DTensor):
                for number, (box, cut) in enumerate(described(name, tensor)):
                    own = name if cut is None else f"{name}[{number}]"
                    yield Part(own, parameter, box, cut)
            else:
                source = "DDP" if id(parameter) in self._replicated else "same name"
                yield Part(name, parameter, whole(name, shape, source))
        elif isinstance(statement, Same):
            yield Part(name, parameter, whole(statement.name, shape, statement.said))
        elif isinstance(statement, Piece):
            yield Part(name, parameter, self._piece_box(name, shape, statement))
        else:
            yield from self._several(name, parameter, statement)

    def _several(
        self, name: str, parameter: torch.nn.Parameter, pieces: Sequence[Piece]
    ) -> Iterator[Part]:
        shape = tuple(local(parameter.detach()).shape)
        dims = {piece.dim % max(1, len(shape)) for piece in pieces}
        if len(dims) != 1:
            raise InvalidInput(f"{name} is stated as pieces along dimensions {sorted(dims)}")
        (dim,) = dims
        if not shape or sum(piece.size for piece in pieces) != shape[dim]:
            raise InvalidInput(f"{name} has shape {list(shape)}, stated as {list(pieces)}"[:400])
        at = 0
        for number, piece in enumerate(pieces):
            own = (*shape[:dim], piece.size, *shape[dim + 1 :])
            box = self._piece_box(name, own, piece)
            yield Part(f"{name}[{number}]", parameter, box, (dim, at, piece.size))
            at += piece.size

    def _piece_box(self, name: str, shape: tuple[int, ...], piece: Piece) -> Box:
        full = self._known.get(piece.name)
        if full is None:
            raise InvalidInput(f"{name} is stated as a piece of {piece.name!r}, which there is not")
        dim = piece.dim % max(1, len(full.shape))
        expected = (*full.shape[:dim], piece.size, *full.shape[dim + 1 :])
        if not -len(full.shape) <= piece.dim < len(full.shape) or expected != shape:
            raise InvalidInput(
                f"{name} has shape {list(shape)}, stated as [{piece.start}, +{piece.size}) of "
                f"dimension {piece.dim} of {piece.name} {list(full.shape)}"
            )
        offset = tuple(piece.start if i == dim else 0 for i in range(len(shape)))
        return Box(piece.name, full.shape, offset, shape, piece.said)

    # -- end ------------------------------------------------------------------------------

    def end(
        self,
        loss: torch.Tensor | Sequence[torch.Tensor] | None = None,
        outputs: Mapping[str, torch.Tensor] | None = None,
        pieces: Mapping[str, Statement] | None = None,
    ) -> None:
        """The step is over: what is compared are its losses, all gradients and ``outputs``.
        ``pieces``: which part of the single device's output an output is, if not all of it.

        Example: ``pieces={"y": sp.piece("y", dim=0, start=2 * job.rank, size=2)}`` of two rows.
        """
        if not self._started:
            raise InvalidInput("job.end is called without job.start")
        if self._ended:
            self.ended_twice = True
            raise InvalidInput("job.end is called twice in one step")
        losses = [] if loss is None else [loss] if isinstance(loss, torch.Tensor) else list(loss)
        with torch.no_grad():
            for value in losses:
                self._compared(LOSS, "loss", value)
            for part in self._parameters:
                if part.owned:
                    self._gradient(part)
                if self._optimizer is not None:
                    self._updated(part)
            if self._optimizer is None and (sentence := self._untold()):
                self.note(sentence)
            for sentence in unfinished(self._models):
                self.note(sentence)
            statements = dict(pieces or {})
            for name, value in (outputs or {}).items():
                self._output(name, value, statements.pop(name, None))
        if statements:
            raise InvalidInput(f"job.end: pieces of {sorted(statements)}, which are no outputs")
        self._recorder.mark(END)
        self._ended = True  # An error that comes after is not looked at.

    def _output(self, name: str, value: torch.Tensor, statement: Statement | None) -> None:
        """An output, or its pieces, which are one after the other along a dimension."""
        if statement is None or isinstance(statement, Same) or not isinstance(value, torch.Tensor):
            self._compared(OUTPUT, name, value)
            return
        listed = [statement] if isinstance(statement, Piece) else list(statement)
        places = range(-value.dim(), value.dim())
        dims = {p.dim % value.dim() for p in listed if p.dim in places}
        size = sum(piece.size for piece in listed)
        outside = any(piece.dim not in places for piece in listed)
        if isinstance(value, DTensor) or outside or len(dims) != 1:
            raise InvalidInput(f"job.end: {name} {list(value.shape)} as pieces {listed}"[:400])
        (dim,) = dims
        if {p.name for p in listed} != {name} or size != value.shape[dim]:
            raise InvalidInput(f"job.end: {name} {list(value.shape)} as pieces {listed}"[:400])
        at = 0
        for piece in listed:
            part = value.narrow(dim, at, piece.size)
            offset = tuple(piece.start if d == dim else 0 for d in range(value.dim()))
            unsaid = tuple(0 if d == dim else n for d, n in enumerate(value.shape))
            box = Box(name, unsaid, offset, tuple(part.shape), piece.said)
            number = self._recorder.tensor(part)
            self._recorder.mark(OUTPUT, (number,), boxes=(box,), kwargs={"name": name})
            at += piece.size

    def _gradient(self, part: Part) -> None:
        gradient = part.parameter.grad
        kwargs: dict[str, Arg] = {"name": part.name}
        if gradient is None:
            self._recorder.mark(GRADIENT, boxes=(part.box,), kwargs=kwargs)
            return
        own, piece = local_box(part, self._added_up(gradient))
        value = self._recorder.tensor(piece)
        self._recorder.mark(GRADIENT, (value,), boxes=(own,), kwargs=kwargs)

    def _untold(self) -> str:
        """What is said of parameters that the step writes by hand."""
        return untold(self._recorder.events, self._recorder.tensors, self._begun, self._memories())

    def _memories(self) -> dict[str, int]:
        """The numbers of parameters as they lie now; where FSDP1 has them it lays them anew."""
        parts = [p for p in self._parameters if id(p.parameter) not in self._flat]
        return {p.name: self._recorder.tensor(local(p.parameter.detach())).number for p in parts}

    def _updated(self, part: Part) -> None:
        """The new value of a parameter, and the states that the optimizer keeps of it."""
        value = self._recorder.tensor(part.of(part.parameter))
        self._recorder.mark(UPDATED, (value,), boxes=(part.box,), kwargs={"name": part.name})
        for key, state in self._states(part.parameter) if part.owned else ():
            if state.dim() and (id(part.parameter), key) not in self._kept:
                self.note(FRESH)
            if state.dim():
                own, piece = state_box(part, key, self._added_up(state))
            else:
                self.note(COUNTED)
                own, piece = Box(part.box.name, (), (), (), part.box.said), local(state.detach())
            tensor = self._recorder.tensor(piece)
            full: dict[str, Arg] = {"name": part.name, "state": key}
            self._recorder.mark(STATE, (tensor,), boxes=(own,), kwargs=full)

    def _compared(self, kind: str, name: str, value: torch.Tensor) -> None:
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(f"job.end: {name} is {type(value).__name__}, expected a tensor")
        value = self._added_up(value)
        pieces = described(name, value) if isinstance(value, DTensor) else [None]
        for piece in pieces:
            plain = local(value)
            if piece is not None and piece.cut is not None:
                plain = plain.narrow(*piece.cut)
            self._recorder.mark(
                kind,
                (self._recorder.tensor(plain),),
                boxes=() if piece is None else (piece.box,),
                kwargs={"name": name},
            )

    def _added_up(self, x: torch.Tensor) -> torch.Tensor:
        """A DTensor of which ranks have parts of a sum (Partial), as that sum on each of them; any
        other tensor as it is.  The step communicates for it, as whoever reads the DTensor does."""
        if not isinstance(x, DTensor) or not any(isinstance(p, Partial) for p in x.placements):
            return x
        self.note(PARTIAL)
        whole = [Replicate() if isinstance(p, Partial) else p for p in x.placements]
        return x.redistribute(placements=whole)

    @property
    def ended(self) -> bool:
        """Whether the step is over."""
        return self._ended


def named(
    models: Sequence[torch.nn.Module],
    own: Callable[[torch.nn.Module], Iterator[tuple[str, Any]]] = (
        torch.nn.Module.named_parameters
    ),
) -> Iterator[tuple[str, Any]]:
    """Parameters (or what else ``own`` gives), each once; a name that an earlier model has too
    begins with the model's number (stages of a pipeline that count their layers from 0).

    Example: two stages with a layer "0" each: ``0.weight``, and ``1.0.weight`` of the second.
    """
    names: set[str] = set()
    marked: set[int] = set()
    for number, model in enumerate(models):
        for path, parameter in own(model):
            if id(parameter) in marked:
                continue
            marked.add(id(parameter))
            name = clean(path)
            name = f"{number}.{name}" if name in names else name
            names.add(name)
            yield name, parameter


def replicated(models: Sequence[torch.nn.Module]) -> frozenset[int]:
    """Parameters, by identity, that DistributedDataParallel keeps equal on all ranks of the world
    (of a part of them it says nothing: that part may have its own).

    Example: all parameters of ``DistributedDataParallel(model)`` on the world's group, none of one
    on a group of half the ranks.
    """
    world = torch.distributed.get_world_size()
    owners = [m for model in models for m in model.modules()]
    return frozenset(
        id(parameter)
        for owner in owners
        if isinstance(owner, DistributedDataParallel) and owner.process_group.size() == world
        for parameter in owner.module.parameters()
    )


def clean(name: str) -> str:
    """A parameter's name without what wrappers put before it.

    Example: "module._orig_mod.up.weight" is "up.weight".
    """
    for wrapper in _WRAPPERS:
        while name.startswith(wrapper) or f".{wrapper}" in name:
            name = (
                name[len(wrapper) :]
                if name.startswith(wrapper)
                else name.replace(f".{wrapper}", ".")
            )
    return name
