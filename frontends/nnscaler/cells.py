"""Typed, validated views of a plan and its cells: devices, uses, segments, operators, adapters.

`plan` is the way in.  Cells are viewed when a device's sequence is asked for and kept on their
records, so that a body shared by all microbatches is looked at once.  A view refers to others
only downwards (a use to its body, a body to its operators, a backward operator to its forward
one), so a file cannot make viewing run in circles.

Views are never changed; those of which a plan has thousands are not frozen, since to make a frozen
one takes five times as long.

Errors are `UnreadablePlan`; ``where`` reads like ``device 3, use 1513, segment 217, cell 12,
tensor 9``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.records import (
    MAX_EXTENT,
    Constant,
    Tensor,
    constant,
    expect,
    flag,
    kind_of,
    listed,
    missing,
    seen,
    tensor,
    tensors,
    text,
    whole,
    wholes,
)
from shardproof.frontends.untrusted.inert import Record, printable

MAX_RANKS = 1 << 24
#: Functions of these are known by their signature, or not at all.
LIBRARIES = ("torch.", "nnscaler.", "einops.", "builtins.", "_operator.", "math.")
#: PyTorch's functions of tensors, among which a model may register more than a plan knows.
_OF_TENSORS = re.compile(
    r"torch\.(Tensor\.|nn\.functional\.|_C\._nn\.|special\.|linalg\.|fft\.)?\w+", re.ASCII
)


@dataclass(slots=True, unsafe_hash=True)
class ForwardOp:
    """A forward operator.  ``inputs``: tensors and constants by position.

    Example: cell 19 of signature ``torch.nn.functional.linear``, with ``kwargs`` {"bias": None},
    ``module`` ("layers.0",) and ``backward_id`` 22.

    ``module``: the path of the module it was traced in, innermost last; ``comment``: its source
    position.  ``backward_id``: the cell that differentiates it, if any does.
    ``annotations``: how it may be cut, of what a model may register.
    """

    id: int
    name: str
    signature: str
    inputs: tuple[Constant, ...]
    outputs: tuple[Constant, ...]
    kwargs: dict[str, Constant]
    module: tuple[str, ...]
    comment: str
    backward_id: int | None
    annotations: tuple[str, ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class BackwardOp:
    """A backward operator: output gradients to the gradients of ``forward``'s inputs.

    Example: of ``linear``: from the gradient ``glinear`` of its result those of its operand and of
    ``layers.0.weight``.
    """

    id: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    forward: ForwardOp


@dataclass(frozen=True, slots=True)
class DataOp:
    """The data loader; its outputs are the batch.

    Example: cell 5, of the object ``dataloader``, gives ``data`` [4, 1024].
    """

    id: int
    inputs: tuple[Constant, ...]
    outputs: tuple[Constant, ...]


@dataclass(slots=True, unsafe_hash=True)
class Prim:
    """One communication or local primitive of an adapter; ``kwargs``: dim, ranks, src, dst, ...

    Example: ``AllGatherPrim`` of [4, 8] with ``kwargs`` {"dim": 0, "ranks": (0, 1)}.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    device: tuple[int, ...]
    kwargs: dict[str, Constant]

    def number(self, key: str) -> int:
        """The integer attribute ``key``; raises `UnreadablePlan` without one."""
        return whole(self.kwargs.get(key), f"{key} of {self.kind}", -MAX_RANKS, MAX_RANKS)

    def several(self, key: str) -> tuple[int, ...]:
        """The ranks that the attribute ``key`` lists; raises `UnreadablePlan` if it lists none, or
        one twice."""
        ranks = wholes(self.kwargs.get(key), f"{key} of {self.kind}", MAX_RANKS)
        if not ranks or len(set(ranks)) != len(ranks):
            raise UnreadablePlan(
                f"expected different ranks as {key} of {self.kind}, found {list(ranks)}"
            )
        return ranks

    def shape(self) -> tuple[int, ...] | None:
        """What a receiver allocates, if the primitive says so; raises `UnreadablePlan` if that is
        no shape."""
        given = self.kwargs.get("shape")
        return None if given is None else wholes(given, f"sizes of {self.kind}", MAX_EXTENT)

    def ranks(self) -> tuple[int, ...]:
        """The group; raises `UnreadablePlan` if it is not a list of different ranks, at least one:
        nobody is in a group of none, while a `Group` without ranks is its program's own."""
        return _group(self.kwargs.get("ranks"), f"ranks of {self.kind}", self.kind)


@dataclass(slots=True, unsafe_hash=True)
class Adapter:
    """Communication between operators.  ``mirror_id``: the adapter of the other direction.

    Example: adapter 70 with ``ChunkPrim`` and ``MovePrim`` on device 0; adapter 81, its mirror, has
    ``MovePrim`` and ``AllGatherPrim``.
    """

    id: int
    forward: bool
    device: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    prims: tuple[Prim, ...]
    mirror_id: int | None


@dataclass(frozen=True, slots=True)
class Reducer:
    """Reduces the gradients of ``weights`` over data-parallel replicas and ``device``.

    Example: reducer 164 sums the gradients of ``layers.0.weight`` and ``layers.1.weight`` over the
    devices 0 and 1.
    """

    id: int
    device: tuple[int, ...]
    weights: tuple[Tensor, ...]


Node = ForwardOp | BackwardOp | DataOp | Adapter


@dataclass(slots=True, unsafe_hash=True)
class Segment:
    """A straight-line body, shared by its uses.

    Example: segment 11 of a pipeline stage: ``SplitAllGatherPrim``, two ``linear``,
    ``AllGatherSplitPrim``.
    """

    id: int
    inputs: tuple[Constant, ...]
    outputs: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    mirror_id: int | None


Cell = Segment | Node | Reducer


@dataclass(slots=True, unsafe_hash=True)
class Use:
    """One run of a shared body, on this use's own tensors.

    Example: the second microbatch of a stage is another use of the same segment.
    """

    id: int
    cell: Cell
    inputs: tuple[Constant, ...]
    outputs: tuple[Constant, ...]
    mirror_id: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan.  ``devices``: of one replica; ``ranks``: of all replicas together.

    Example: an MLP of dp 2, pp 2, tp 2 has ``devices`` (0, 1, 2, 3), 8 ``ranks`` and 2
    ``microbatches``.

    ``microbatches``: what the planner's schedule says, where the plan has one; a cross-check,
    since the uses decide.
    """

    devices: tuple[int, ...]
    ranks: int
    data_parallel: bool
    groups: tuple[tuple[int, ...], ...]
    microbatches: int | None
    outputs: tuple[Constant, ...]
    _sequences: dict[int, list[Any]]

    def sequence(self, device: int) -> Iterator[Use | Cell]:
        """What ``device`` runs, in order; raises `UnreadablePlan` naming the place."""
        for record in self._sequences[device]:
            try:
                yield _use(record) if kind_of(record) == "ExeReuseCell" else _cell(record)
            except UnreadablePlan as error:
                raise error.within(f"device {device}") from None

    def drop(self, device: int) -> None:
        """Let go of what ``device`` runs."""
        self._sequences[device].clear()


def plan(root: Record) -> Plan:
    """The view of what `frontends.nnscaler.read.read_records` gives.

    Example: of a plan whose code is for 4 devices and 6 ranks it is refused: ranks are whole
    replicas.
    """
    code: Any = expect(root, "ModuleCodeGen")
    try:
        execution = expect(code.execplan, "ExecutionPlan")
        devices = wholes(code.devices, "a device", MAX_RANKS)
        ranks = whole(code.runtime_ndevs, "the number of ranks", 1, MAX_RANKS)
        if not devices or len(set(devices)) != len(devices) or ranks % len(devices):
            raise UnreadablePlan(
                f"expected {ranks} ranks to be whole replicas of different devices, found "
                f"{len(devices)} devices ({len(set(devices))} different)"
            )
        return Plan(
            devices=devices,
            ranks=ranks,
            data_parallel=flag(code.enable_dp, "enable_dp"),
            groups=tuple(
                wholes(group, "a rank", ranks - 1) for group in listed(code.comm_groups, "groups")
            ),
            microbatches=_scheduled(execution._graph),
            outputs=_constants(execution._outputs),
            _sequences=_sequences(execution._seq, devices),
        )
    except AttributeError as error:
        field = error.name or error.args[0]
        raise UnreadablePlan(f"expected a field {field} of the plan") from None


def _sequences(value: object, devices: tuple[int, ...]) -> dict[int, list[Any]]:
    if type(value) is not dict or set(value) != set(devices):
        raise UnreadablePlan(f"expected a sequence of cells for each of {len(devices)} devices")
    for device, cells in value.items():
        if type(cells) is not list:
            raise UnreadablePlan("expected a list of cells", f"device {device}")
    return value


def _scheduled(graph: object) -> int | None:
    schedule = getattr(expect(graph, "IRGraph"), "_sched", None)
    if schedule is None:
        return None
    count = expect(schedule, "SchedulePlan")._num_microbatches
    return whole(count, "the number of microbatches", 1, MAX_RANKS)


def _constants(value: object) -> tuple[Constant, ...]:
    return tuple([_operand(x) for x in listed(value, "operands")])


def _operand(value: object) -> Constant:
    known = getattr(value, "view", None)
    if type(known) is Tensor:
        return known
    return tensor(value) if kind_of(value) == "IRSubTensor" else constant(value)


def _mirror_id(record: Any) -> int | None:
    """The id of a cell's mirror; it is not viewed, since mirrors refer to each other.  One that has
    another mirror itself, or is a cell of another kind, says of neither what it is the other
    direction of."""
    mirror = record._mirror
    if mirror is None:
        return None
    if not isinstance(mirror, Record):
        raise UnreadablePlan(f"expected a mirror cell, found {printable(kind_of(mirror))}")
    number = whole(getattr(mirror, "_id", None), "a mirror cell's id")
    if getattr(mirror, "_mirror", None) is not record:
        raise UnreadablePlan(f"expected its mirror, cell {number}, to have this cell for its own")
    return number


def _kwargs(value: object) -> dict[str, Constant]:
    kwargs = constant(value)
    if isinstance(kwargs, dict):
        return kwargs
    raise UnreadablePlan(f"expected a dictionary of attributes, found {printable(kind_of(value))}")


def _module(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if type(value) is not dict:
        raise UnreadablePlan(f"expected a module stack, found {printable(kind_of(value))}")
    return tuple([text(key, "a module's path") for key in value])


def _forward(record: Any) -> ForwardOp:
    comment = record._comment
    signature = text(record.signature, "an operator's signature")
    return ForwardOp(
        id=record._id,
        name=text(record.name, "an operator's name"),
        signature=signature,
        inputs=_constants(record._inputs),
        outputs=_constants(record._outputs),
        kwargs=_kwargs(record._kwargs),
        module=_module(record._module_stack),
        comment="" if comment is None else text(comment, "a comment"),
        backward_id=_mirror_id(record),
        annotations=_annotations(record) if _may_be_registered(signature) else (),
    )


def _may_be_registered(signature: str) -> bool:
    return not signature.startswith(LIBRARIES) or bool(_OF_TENSORS.fullmatch(signature))


def _annotations(record: Any) -> tuple[str, ...]:
    """How a registered function may be cut; versions that do not say it are older."""
    given = getattr(record, "_annos_candidates", ())
    return tuple(text(x, "an annotation") for x in listed(given, "annotations"))


def _backward(record: Any) -> BackwardOp:
    mirror = expect(record._mirror, *_FORWARD)
    _mirror_id(record)
    return BackwardOp(
        record._id, tensors(record._inputs), tensors(record._outputs), _viewed(mirror, _forward)
    )


def _data(record: Any) -> DataOp:
    return DataOp(record._id, _constants(record._inputs), _constants(record._outputs))


def _prim(value: object) -> Prim:
    if not (isinstance(value, Record) and value.kind.endswith("Prim")):
        raise UnreadablePlan(f"expected a primitive, found {printable(kind_of(value))}")
    record: Any = value
    try:
        return Prim(
            kind=record.kind,
            inputs=tensors(record._inputs),
            outputs=tensors(record._outputs),
            device=wholes(record._device, "a device", MAX_RANKS),
            kwargs=_kwargs(record.kwargs),
        )
    except AttributeError as error:
        raise missing(record, error) from None
    except UnreadablePlan as error:
        raise error.within(record.kind) from None


def _adapter(record: Any) -> Adapter:
    return Adapter(
        id=record._id,
        forward=flag(record._forward, "_forward"),
        device=wholes(record._device, "a device", MAX_RANKS),
        inputs=tensors(record._inputs),
        outputs=tensors(record._outputs),
        prims=tuple([_prim(item) for item in listed(record._prims, "primitives")]),
        mirror_id=_mirror_id(record),
    )


def _group(value: object, what: str, who: str) -> tuple[int, ...]:
    """The ranks that communicate: different ones, and some."""
    ranks = wholes(value, what, MAX_RANKS)
    if not ranks or len(set(ranks)) != len(ranks):
        raise UnreadablePlan(f"expected different ranks for {who}, found {list(ranks)}")
    return ranks


def _reducer(record: Any) -> Reducer:
    device = _group(record._device, "a device", "a weight reducer")
    return Reducer(record._id, device, tensors(record._inputs))


def _segment(record: Any) -> Segment:
    nodes = []
    for item in listed(record._nodes, "operators"):
        if kind_of(item) == "IRGraphAnchor":
            continue
        view = _NODES.get(kind_of(item))
        if view is None:
            raise UnreadablePlan(f"expected an operator, found {printable(kind_of(item))}")
        nodes.append(_viewed(item, view))
    return Segment(
        id=record._id,
        inputs=_constants(record._inputs),
        outputs=_constants(record._outputs),
        nodes=tuple(nodes),
        mirror_id=_mirror_id(record),
    )


def _use_of(record: Any) -> Use:
    return Use(
        id=record._id,
        cell=_cell(record._cell),
        inputs=_constants(record._inputs),
        outputs=_constants(record._outputs),
        mirror_id=_mirror_id(record),
    )


_FORWARD = ("IRDimops", "IRPyFunc", "IRFwOperation")
_NODES: dict[str, Callable[[Any], Node]] = {
    **dict.fromkeys(_FORWARD, _forward),
    "IRBpOperation": _backward,
    "IRDataOperation": _data,
    "IRAdapter": _adapter,
}
_CELLS: dict[str, Callable[[Any], Cell]] = {
    **_NODES,
    "IRSegment": _segment,
    "IRWeightReducer": _reducer,
}

# What messages call them.
_PLACES = {"ExeReuseCell": "use", "IRSegment": "segment", "IRAdapter": "adapter"}


def _viewed(record: Any, view: Callable[[Any], Any]) -> Any:
    """The view of a cell: what was made of it before, or ``view`` of it now."""
    known = seen(record)
    if known is not None:
        return known
    place = _PLACES.get(record.kind, "cell")
    try:
        ident = whole(record._id, "a cell's id")
        place = f"{place} {ident}"
        record.view = view(record)
    except AttributeError as error:
        raise missing(record, error).within(place) from None
    except UnreadablePlan as error:
        raise error.within(place) from None
    return record.view


def _cell(value: object) -> Cell:
    view = _CELLS.get(kind_of(value))
    if view is None:
        raise UnreadablePlan(f"expected a cell, found {printable(kind_of(value))}")
    return _viewed(value, view)  # type: ignore[no-any-return]


def _use(value: object) -> Use:
    return _viewed(value, _use_of)  # type: ignore[no-any-return]
