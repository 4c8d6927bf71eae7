"""Steps of ranks that are one but for names: such a step is lowered once.

Ranks of one program issue the same operators.  What differs is how values are numbered, who is in
a group, and where their parts of parameters, and slices of floats, begin; lowering reads none of
these (of groups and of slices, also those that rules make, it may read which are equal), so the
program of the one is that of the other, renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from shardproof.engine.plan.ir import Attr, Group, Op, Shard
from shardproof.frontends.torch.draws import KINDS
from shardproof.frontends.torch.lower import Result, Side, shard_of
from shardproof.frontends.torch.memory import CONSTANT, INPUT, SLICE, Functional, number
from shardproof.frontends.torch.memory import Op as Step
from shardproof.frontends.torch.trace import Arg, Items, Ranks, Tensor, tensors_of

Members: TypeAlias = tuple[int, ...]
Shape: TypeAlias = tuple[int, ...]
#: Out of which shape, along which dimension, of which size and from where on.
_Slice: TypeAlias = tuple[Shape, int, int, int]


@dataclass(slots=True)
class Once:
    """Lowers steps by ``lower``; of those that are one but for names, the first alone.

    Example: of eight ranks of tensor parallelism one is lowered, and seven are renamed.
    """

    lower: Callable[[Functional], Side]
    done: list[tuple[Functional, Side]] = field(default_factory=list)

    def __call__(self, step: Functional) -> Side:
        for first, side in self.done:
            names = _names(first, side, step)
            if names is not None:
                return _renamed(side, step, names)
        side = self.lower(step)
        self.done.append((step, side))
        return side


@dataclass(slots=True)
class _Names:
    """How a step is another one: ``values``, from its numbers to those of the other one; from what
    the other one has to its own: ``groups``, ``shards`` (boxes of inputs), ``starts`` (of slices of
    one shape out of another) and ``moved``, starts by the operator (``slices``) that it is there.
    ``back``: from own groups and starts to the other one's."""

    slices: Mapping[int, int]
    values: dict[int, int] = field(default_factory=dict)
    groups: dict[Members, Members] = field(default_factory=dict)
    shards: dict[Shard, Shard] = field(default_factory=dict)
    starts: dict[_Slice, _Slice] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    back: dict[Members | _Slice, Members | _Slice] = field(default_factory=dict)

    def alike(self, first: Arg, own: Arg) -> bool:
        """Whether an argument is the other one's, renamed."""
        if type(first) is not type(own):
            return False
        if isinstance(first, Tensor) and isinstance(own, Tensor):
            return self.values.get(own.number) == first.number
        if isinstance(first, Items) and isinstance(own, Items):
            return self.all_alike(first.items, own.items)
        if isinstance(first, Ranks) and isinstance(own, Ranks):
            return self.group(first.ranks, own.ranks)
        return first == own

    def all_alike(self, first: tuple[Arg, ...], own: tuple[Arg, ...]) -> bool:
        """Whether all arguments are."""
        return len(first) == len(own) and all(map(self.alike, first, own))

    def group(self, first: Members, own: Members) -> bool:
        """Whether a group stands where the other one has one, always the same, in order."""
        if len(first) != len(own) or (first != own and not _ordered(first, own)):
            return False
        return self.groups.setdefault(first, own) == own and self.back.setdefault(own, first) == (
            first
        )

    def arguments(self, first: Step, own: Step) -> bool:
        """Whether all arguments of an operator are those of the other one's, renamed."""
        if not self.all_alike(first.args, own.args) or first.kwargs.keys() != own.kwargs.keys():
            return False
        return all(self.alike(value, own.kwargs[key]) for key, value in first.kwargs.items())

    def slice(self, shape: Shape, first: Step, own: Step) -> bool:
        """Whether a slice out of ``shape`` is the other one's, from another start on; equal starts
        stand where the other one has equal ones."""
        (dim, start, size), (own_dim, own_start, own_size) = (
            map(number, step.args[1:]) for step in (first, own)
        )
        if (dim, size) != (own_dim, own_size) or not self.alike(first.args[0], own.args[0]):
            return False
        here, there = (shape, dim, size, start), (shape, dim, size, own_start)
        if self.starts.setdefault(here, there) != there:
            return False
        if self.back.setdefault(there, here) != here:
            return False
        if start != own_start:
            inside = 0 <= own_start <= shape[dim] - size
            if first.outputs[0] not in self.slices or not inside:
                return False
            self.moved[self.slices[first.outputs[0]]] = own_start
        return True

    def made(self, first: Step, own: Step) -> None:
        """Results of an operator stand for those of the other one."""
        self.values.update(zip(own.outputs, first.outputs, strict=True))

    def shard(self, first: Shard, own: Shard) -> bool:
        """Whether an input is the other one's, or another part of the same parameter.  Of integers
        and of batches lowering reads where they begin."""
        if first != own:
            if first.kind == "batch" or "float" not in first.dtype:
                return False
            if replace(first, offset=own.offset) != own:
                return False
        return self.shards.setdefault(first, own) == own


def _ordered(*groups: Members) -> bool:
    return all(list(group) == sorted(group) for group in groups)


def _names(first: Functional, side: Side, own: Functional) -> _Names | None:
    """How ``own`` is ``first``, of which ``side`` was made, renamed; None: it is not."""
    if len(first.ops) != len(own.ops) or len(first.compared) != len(own.compared):
        return None
    written = first.trace, own.trace
    if len({t.sources for t in written}) > 1 or len({t.modules for t in written}) > 1:
        return None
    names = _Names(side.slices)
    for place in _of_rules(side):
        names.starts[place] = names.back[place] = place
    inputs = [{i.value: i for i in step.inputs} for step in (first, own)]
    for a, b in zip(first.ops, own.ops, strict=True):
        if not _same(first, a, own, b) or not _alike(names, first, a, b):
            return None
        names.made(a, b)
        if a.name == INPUT:
            (x, y) = (i[op.outputs[0]] for i, op in zip(inputs, (a, b), strict=True))
            if x.mark != y.mark or not names.shard(shard_of(first, x), shard_of(own, y)):
                return None
    compared = ((c.value, d.value) for c, d in zip(first.compared, own.compared, strict=True))
    return names if all(names.values.get(d, d) == c for c, d in compared) else None


def _of_rules(side: Side) -> Iterator[_Slice]:
    """Slices that rules of operators make, which begin at the same place on every rank: lowering
    may read whether a slice of the step is the same as one of these."""
    (body,) = side.program.bodies
    of_step = set(side.slices.values())
    for place, op in enumerate(body.ops):
        if op.name == "slice" and not op.backward and place not in of_step:
            dim, size, start = (op.attrs[key] for key in ("dim", "size", "start"))
            if isinstance(dim, int) and isinstance(size, int) and isinstance(start, int):
                yield body.values[op.inputs[0]].shape, dim, size, start


def _alike(names: _Names, first: Functional, a: Step, b: Step) -> bool:
    """Whether the operands of ``b`` are those of ``a``, renamed."""
    if a.name != SLICE:
        return names.arguments(a, b)
    (source,) = tensors_of(a.args[0])
    return names.slice(first.values[source].shape, a, b)


def _same(first: Functional, a: Step, own: Functional, b: Step) -> bool:
    """Whether two operators of two steps are the same but for their operands: what they make, what
    they draw from (nothing), the numbers of a constant, and the line that they are of."""
    if a.name != b.name or a.name in KINDS or len(a.outputs) != len(b.outputs):
        return False
    for v, w in zip(a.outputs, b.outputs, strict=True):
        if min(v, w) < 0 and v != w:
            return False
        if v >= 0 and first.values[v] != own.values[w]:
            return False
    if a.name == CONSTANT and first.constants[a.outputs[0]] != own.constants[b.outputs[0]]:
        return False
    x, y = first.trace.events[a.event], own.trace.events[b.event]
    return (x.name, x.module, x.source) == (y.name, y.module, y.source)


def _renamed(side: Side, own: Functional, names: _Names) -> Side:
    """What ``own`` is lowered to, of which ``names`` say how it is the step of ``side``."""
    (body,) = side.program.bodies
    ops = body.ops
    if names.moved or any(group != other for group, other in names.groups.items()):
        ops = tuple(_op(op, names, names.moved.get(number)) for number, op in enumerate(ops))
    program = replace(
        side.program,
        name=f"rank {own.trace.rank}",
        base=own.trace.rank,
        bodies=(replace(body, ops=ops),),
        shards=tuple(names.shards.get(shard, shard) for shard in side.program.shards),
    )
    results = [
        Result(c, result.value) for c, result in zip(own.compared, side.results, strict=True)
    ]
    slices = {v: side.slices[w] for v, w in names.values.items() if w in side.slices}
    return replace(side, program=program, results=results, slices=slices)


def _op(op: Op, names: _Names, start: int | None) -> Op:
    attrs: dict[str, Attr] = {
        key: Group(names.groups[value.ranks]) if isinstance(value, Group) else value
        for key, value in op.attrs.items()
    }
    if start is not None:
        attrs["start"] = start
    return op if attrs == op.attrs else replace(op, attrs=attrs)
