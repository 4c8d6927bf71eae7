"""Writes operators on both sides of a random program at the same time.

The single-device side gets an operator as it is, the parallel side the operator on what a rank
holds, with the collectives that another placement needs (`benchmarks.random_programs.tape`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from benchmarks.random_programs.tape import PARTIAL, WHOLE, Mistakes, Place, Shape, Tape
from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.plan.ir import Shard


@dataclass(frozen=True, slots=True)
class Both:
    """A value on both sides."""

    single: int
    parallel: int


class Writer:
    """Writes operators on both sides."""

    def __init__(self, random: Random, axes: dict[str, int], mistakes: Mistakes) -> None:
        self.random, self.axes, self.mistakes = random, axes, mistakes
        self.mesh = [axis for axis in axes if axis != "mb"]
        self.one = Tape({}, random, Mistakes())
        self.many = Tape(axes, random, mistakes)
        self.shards: tuple[list[Shard], list[Shard]] = ([], [])
        self.kinds: set[str] = set()

    # -- what is there ---------------------------------------------------------------------------

    def shape(self, x: Both) -> Shape:
        return self.one.values[x.single].shape

    def place(self, x: Both) -> Place:
        return self.many.places[x.parallel]

    def local(self, shape: Shape, place: Place) -> Shape:
        """The shape of a rank's part of a tensor."""
        found = list(shape)
        for axis, how in place.items():
            if isinstance(how, int):
                found[how] //= self.axes[axis]
        return tuple(found)

    def fits(self, shape: Shape, place: Place) -> bool:
        found = list(shape)
        for axis, how in place.items():
            if isinstance(how, int):
                if how >= len(shape) or found[how] % self.axes[axis]:
                    return False
                found[how] //= self.axes[axis]
        return True

    # -- inputs ----------------------------------------------------------------------------------

    def batch(self, tensors: list[tuple[str, Shape, str]]) -> list[Both]:
        """Tensors of the batch, divided along dimension 0 over replicas and microbatches."""
        place = {axis: 0 for axis in ("dp", "mb") if axis in self.axes}
        found = [
            Both(
                self.one.value(shape, {}, name, dtype),
                self.many.value(self.local(shape, place), place, name, dtype),
            )
            for name, shape, dtype in tensors
        ]
        return found

    def parameter(self, shape: Shape, place: Place) -> Both:
        """A parameter, divided over the mesh as ``place`` says."""
        name = f"w{len(self.shards[0])}"
        local = self.local(shape, place)
        offset = [ZERO] * len(shape)
        for axis, dim in place.items():
            if isinstance(dim, int):
                count, size = self.axes[axis], local[dim]
                if self.mistakes.now(f"{name} is divided over {axis} in reverse"):
                    offset[dim] = affine((count - 1) * size, {axis: -size})
                else:
                    offset[dim] = affine(0, {axis: size})
        self.shards[0].append(Shard(name, shape, shape, (ZERO,) * len(shape)))
        self.shards[1].append(Shard(name, shape, local, tuple(offset)))
        both = Both(self.one.value(shape, {}, name), self.many.value(local, place, name))
        for tape, value in ((self.one, both.single), (self.many, both.parallel)):
            tape.shards[value] = len(self.shards[0]) - 1
            tape.needs.add(value)
        return both

    # -- operators -------------------------------------------------------------------------------

    def op(
        self, name: str, inputs: list[Both], shape: Shape, place: Place,
        attrs: dict[str, Any] | None = None, local: dict[str, Any] | None = None,
    ) -> Both:  # fmt: skip
        """An operator on both sides; ``local``: what its attributes are on the parallel side."""
        self.kinds.add(name)
        given = attrs or {}
        mine = {**given, **(local or {})}
        ranked = [x.parallel for x in inputs]
        if name in ("mul", "add") and "other" in mine and self.mistakes.now("another constant"):
            mine["other"] = mine["other"] * 2
        if (
            (name in ("sub", "div") and len(inputs) == 2)
            and self.many.values[ranked[0]].shape == self.many.values[ranked[1]].shape
            and self.mistakes.now("operands exchanged")
        ):
            ranked.reverse()
        return Both(
            self.one.apply(name, [x.single for x in inputs], shape, {}, **given),
            self.many.apply(name, ranked, self.local(shape, place), place, **mine),
        )

    def to(self, x: Both, axis: str, target: Any) -> Both:
        """The value with another placement along a mesh axis; the single device has it as it is."""
        place, shape = self.place(x), self.shape(x)
        now = place[axis]
        if now == target:
            return x
        if now == WHOLE and target == PARTIAL:
            return self._divided(x, axis)
        wanted = {**place, axis: target}
        if not self.fits(shape, wanted) or target == PARTIAL:
            return self.to(self.to(x, axis, WHOLE), axis, target)
        local = self.local(shape, wanted)
        move = self.many.move
        if now == PARTIAL and target == WHOLE:
            out = move("all_reduce", x.parallel, axis, local, {axis: WHOLE}, op="sum")
        elif now == PARTIAL:
            out = move("reduce_scatter", x.parallel, axis, local, {axis: target}, dim=target)
        elif target == WHOLE:
            out = move("all_gather", x.parallel, axis, local, {axis: WHOLE}, dim=now)
        elif now == WHOLE:
            out = move("chunk", x.parallel, axis, local, {axis: target}, dim=target)
        else:
            out = move(
                "all_to_all", x.parallel, axis, local, {axis: target},
                split_dim=target, concat_dim=now,
            )  # fmt: skip
        return Both(x.single, out)

    def _divided(self, x: Both, axis: str) -> Both:
        """Whole to addends: every rank takes its share."""
        place = {**self.place(x), axis: PARTIAL}
        share = Fraction(1, self.axes[axis])
        if self.mistakes.now(f"no share along {axis}"):
            share = Fraction(1)
        shape = self.many.values[x.parallel].shape
        return Both(x.single, self.many.apply("mul", [x.parallel], shape, place, other=share))

    def settled(self, x: Both) -> Both:
        """Without addends, but for those over microbatches, along the mesh axes."""
        for axis in self.mesh:
            if self.place(x)[axis] == PARTIAL:
                choices: list[Any] = [WHOLE]
                choices += [
                    d for d in range(len(self.shape(x)))
                    if self.fits(self.shape(x), {**self.place(x), axis: d})
                    and not self.crossed(x, axis, d)
                ]  # fmt: skip
                x = self.to(x, axis, self.random.choice(choices))
        return x

    def crossed(self, x: Both, axis: str, dim: int) -> bool:
        """Whether a dimension is divided along another axis already: kept simple."""
        return any(how == dim for other, how in self.place(x).items() if other != axis)

    def undivided(self, x: Both, dim: int) -> Both | None:
        """With dimension ``dim`` whole on every rank; None if microbatches divide it."""
        for axis, how in self.place(x).items():
            if how == dim:
                if axis == "mb":
                    return None
                x = self.to(x, axis, WHOLE)
        return x

    def alike(self, x: Both, y: Both) -> Both | None:
        """``x`` placed as ``y``, as far as collectives can."""
        for axis in self.axes:
            if self.place(x)[axis] != self.place(y)[axis]:
                if axis == "mb":
                    return None
                target = self.place(y)[axis]
                if isinstance(target, int) and self.crossed(x, axis, target):
                    return None
                x = self.to(x, axis, target)
        return x if self.place(x) == self.place(y) else None


#: Takes one or two values of the pool, and gives a new one, or none.
Maker = Callable[[Writer, Both, Both], "Both | None"]


def addend_free(place: Place) -> bool:
    return PARTIAL not in place.values()
