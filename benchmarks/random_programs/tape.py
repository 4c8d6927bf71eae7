"""Bodies of one side under construction: forward operators with placements, and their backward.

A value's *placement* says for every mesh axis what its ranks hold: all of it (`WHOLE`), a part
along a dimension (its number), or an addend of it (`PARTIAL`).  Gradients have placements too: the
gradient of a whole value may arrive as addends and is then all-reduced, that of an addend is whole.
The axis ``mb`` stands for microbatches: nothing communicates along it, and what is partial over it
is added up where gradients accumulate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from shardproof.engine.plan.ir import Body, Group, Op, Value

WHOLE: Final = "whole"
PARTIAL: Final = "partial"
Place = dict[str, Any]
Shape = tuple[int, ...]


@dataclass(slots=True)
class Mistakes:
    """One chosen opportunity is taken to do something wrong; ``made`` says what."""

    target: int = -1
    seen: int = 0
    made: str = ""

    def now(self, what: str) -> bool:
        hit = self.seen == self.target
        self.seen += 1
        if hit:
            self.made = what
        return hit


@dataclass(frozen=True, slots=True)
class Step:
    """A forward operator as the backward pass sees it; ``moved``: the mesh axis of a collective."""

    op: Op
    moved: str = ""


@dataclass(slots=True)
class Tape:
    """The forward body of one side, and what its backward needs to know."""

    axes: Mapping[str, int]
    random: Random
    mistakes: Mistakes
    values: list[Value] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    shards: dict[int, int] = field(default_factory=dict)
    needs: set[int] = field(default_factory=set)

    def value(self, shape: Shape, place: Place, name: str, dtype: str = "float32") -> int:
        """A new value of this local shape."""
        self.values.append(Value(shape, dtype, name))
        self.places.append({axis: place.get(axis, WHOLE) for axis in self.axes})
        return len(self.values) - 1

    def apply(
        self, name: str, inputs: Sequence[int], shape: Shape, place: Place, **attrs: Any
    ) -> int:
        """Append an operator with one output."""
        out = self.value(shape, place, name)
        self.steps.append(Step(Op(name, tuple(inputs), (out,), attrs)))
        if any(v in self.needs for v in inputs):
            self.needs.add(out)
        return out

    def move(self, name: str, x: int, axis: str, shape: Shape, place: Place, **attrs: Any) -> int:
        """Append a collective along ``axis``."""
        out = self.value(shape, {**self.places[x], **place}, name)
        fits = shape == self.values[x].shape
        if fits and self.mistakes.now(f"{name} along {axis} left out"):
            self.steps.append(Step(Op("identity", (x,), (out,)), axis))
        else:
            self.steps.append(
                Step(Op(name, (x,), (out,), {"group": Group(axes=(axis,)), **attrs}), axis)
            )
        if x in self.needs:
            self.needs.add(out)
        return out


class Backward:
    """The backward body of a tape, derived step by step."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.saved: dict[int, int] = {}
        self.arriving: dict[int, list[tuple[int, Place]]] = {}
        #: Shards whose accumulated gradients are addends along the replica axis.
        self.unreduced: list[int] = []

    def _value(self, shape: Shape, name: str) -> int:
        self.values.append(Value(shape, "float32", name))
        return len(self.values) - 1

    def _saved(self, value: int) -> int:
        if value not in self.saved:
            held = self.tape.values[value]
            self.values.append(held)
            self.saved[value] = len(self.values) - 1
        return self.saved[value]

    def _collective(self, name: str, x: int, axis: str, shape: Shape, **attrs: Any) -> int:
        out = self._value(shape, name)
        fits = shape == self.values[x].shape
        if fits and self.tape.mistakes.now(f"backward {name} along {axis} left out"):
            self.ops.append(Op("identity", (x,), (out,)))
        else:
            self.ops.append(Op(name, (x,), (out,), {"group": Group(axes=(axis,)), **attrs}))
        return out

    def _add(self, parts: Sequence[int]) -> int:
        if len(parts) == 1:
            return parts[0]
        out = self._value(self.values[parts[0]].shape, "gradient")
        self.ops.append(Op("add_n", tuple(parts), (out,)))
        return out

    def _whole(self, x: int, place: Place, wanted: Place) -> int:
        """All-reduce what arrived as addends of something that is whole."""
        for axis in self.tape.axes:
            if axis != "mb" and place[axis] == PARTIAL and wanted[axis] == WHOLE:
                x = self._collective("all_reduce", x, axis, self.values[x].shape, op="sum")
        return x

    def settle(self, value: int, *, late: bool = False) -> tuple[int, Place] | None:
        """The whole gradient of a forward value and its placement; ``late``: addends stay addends
        (a reducer, or a reduce-scatter, comes after)."""
        parts = self.arriving.pop(value, [])
        if not parts:
            return None
        forward = self.tape.places[value]
        alike = all(place == parts[0][1] for _, place in parts)
        if alike and (late or self.tape.random.random() < 0.6):
            total, place = self._add([x for x, _ in parts]), parts[0][1]
            if late:
                return total, place
            return self._whole(total, place, forward), self._settled(place, forward)
        whole = [self._whole(x, place, forward) for x, place in parts]
        return self._add(whole), self._settled(parts[0][1], forward)

    @staticmethod
    def _settled(place: Place, forward: Place) -> Place:
        return {
            axis: place[axis]
            if axis == "mb"
            else (WHOLE if forward[axis] == PARTIAL else forward[axis])
            for axis in place
        }

    def arrive(self, value: int, gradient: int, place: Place) -> None:
        if value in self.tape.needs:
            self.arriving.setdefault(value, []).append((gradient, place))

    def run(self, loss: int) -> Body:
        """The body: it takes the gradient of the loss and accumulates those of parameters."""
        seed = self._value(self.tape.values[loss].shape, "gradient of the loss")
        self.arrive(loss, seed, dict.fromkeys(self.tape.axes, WHOLE))
        for step in reversed(self.tape.steps):
            (out,) = step.op.outputs
            if out not in self.tape.needs:
                continue
            # A gathered parameter's gradient goes back as addends, by reduce-scatter.
            late = step.op.name == "all_gather" and self.tape.random.random() < 0.7
            arrived = self.settle(out, late=late)
            if arrived is not None:
                (self._moved if step.moved else self._operator)(step, *arrived)
        gradients = []
        for value, shard in self.tape.shards.items():
            if value in self.tape.needs and (arrived := self.settle(value, late=True)):
                gradients.append((self._parameter(value, *arrived), shard))
                if arrived[1].get("dp") == PARTIAL and self.tape.places[value]["dp"] == WHOLE:
                    self.unreduced.append(shard)
        return Body(
            "backward", tuple(self.values), tuple(self.ops), inputs=(seed,), forward_body=0,
            saved=tuple((mine, theirs) for theirs, mine in self.saved.items()),
            gradients=tuple(gradients),
        )  # fmt: skip

    def _parameter(self, value: int, gradient: int, place: Place) -> int:
        """What is accumulated: addends along the replica axis stay so for the reducer."""
        forward = self.tape.places[value]
        for axis in self.tape.axes:
            if axis not in ("mb", "dp") and place[axis] == PARTIAL and forward[axis] == WHOLE:
                gradient = self._collective(
                    "all_reduce", gradient, axis, self.values[gradient].shape, op="sum"
                )
        return gradient

    def _operator(self, step: Step, gradient: int, place: Place) -> None:
        op, tape = step.op, self.tape
        wrt = tuple(i for i, v in enumerate(op.inputs) if v in tape.needs)
        outs = tuple(self._value(tape.values[op.inputs[i]].shape, "gradient") for i in wrt)
        read = tuple(self._saved(v) for v in op.inputs)
        attrs = {**op.attrs, "wrt": wrt, "arity": len(op.inputs)}
        self.ops.append(Op(op.name, (*read, gradient), outs, attrs, backward=True))
        for i, out in zip(wrt, outs, strict=True):
            self.arrive(op.inputs[i], out, self._share(op, op.inputs[i]))

    def _share(self, op: Op, value: int) -> Place:
        """How the gradient of an input arrives: whole inputs of divided work get addends."""
        places = self.tape.places
        found = {}
        for axis in self.tape.axes:
            mine = places[value][axis]
            divided = any(places[v][axis] != WHOLE for v in (*op.inputs, *op.outputs))
            found[axis] = (
                PARTIAL if mine == WHOLE and divided else (WHOLE if mine == PARTIAL else mine)
            )
        return found

    def _moved(self, step: Step, gradient: int, place: Place) -> None:
        op, axis, tape = step.op, step.moved, self.tape
        (x,), (out,) = op.inputs, op.outputs
        before, after = tape.places[x], tape.places[out]
        shape = tape.values[x].shape

        if before[axis] == PARTIAL and after[axis] == WHOLE:  # all-reduce
            result = gradient
        elif before[axis] == PARTIAL or before[axis] == WHOLE:  # reduce-scatter
            result = self._collective("all_gather", gradient, axis, shape, dim=after[axis])
        elif after[axis] == WHOLE:  # all-gather
            name = "reduce_scatter" if place[axis] == PARTIAL else "chunk"
            result = self._collective(name, gradient, axis, shape, dim=before[axis])
        else:  # all-to-all
            result = self._collective(
                "all_to_all", gradient, axis, shape, split_dim=before[axis], concat_dim=after[axis]
            )
        found = {**place, axis: WHOLE if before[axis] == PARTIAL else before[axis]}
        for other in tape.axes:
            if other not in (axis, "mb") and found[other] == PARTIAL:
                result = self._collective("all_reduce", result, other, shape, op="sum")
                found[other] = WHOLE
        self.arrive(x, result, found)
