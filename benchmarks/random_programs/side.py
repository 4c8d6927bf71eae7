"""One side of a program that is written by hand, and the list of such programs.

`Side` has the operators of a body, collectives that are left out along an axis of one position,
and parameters whose gradients are all-reduced over replicas; `case` lists a function that writes
one.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, NamedTuple

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.plan.ir import Plan, Program, Shard
from shardproof.frontends.builder.builder import ProgramBuilder, along

B, S, H, D = 8, 4, 4, 2
K: Final = H * D


class Mesh(NamedTuple):
    """Extents; ``mb``: microbatches."""

    dp: int = 1
    tp: int = 1
    mb: int = 1


class Side:
    """One side of a program under construction: operators are the body's, ``x.exp(y)`` and so on;
    collectives along an axis of one position are left out."""

    def __init__(self, mesh: Mesh, parallel: bool, wrong: bool) -> None:
        extents = {"dp": mesh.dp, "tp": mesh.tp}
        axes = [(a, n) for a, n in extents.items() if n > 1] if parallel else []
        strides = {"dp": mesh.tp, "tp": 1}
        self.mesh, self.wrong = mesh, wrong and parallel
        self.parallel = parallel
        self.program = ProgramBuilder(
            "ranks" if parallel else "single", axes=tuple((a, n, strides[a]) for a, n in axes)
        )
        self.body = self.program.body("forward")
        self.extents = self.program.extents
        self.batch = B // (mesh.dp * mesh.mb if parallel else 1)
        self.plain: list[int] = []
        self.mb = mesh.mb if parallel else 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.body, name)

    def n(self, axis: str) -> int:
        return self.extents.get(axis, 1)

    def x(self, *shape: int, name: str = "x") -> int:
        (value,) = self.body.load_batch((name, (self.batch, *shape), "float32"))
        return value

    def w(self, name: str, *shape: int, tp: int | None = None, dp: int | None = None) -> int:
        """A parameter divided along dimensions; its gradient is all-reduced over replicas."""
        split = {d: a for a, d in (("tp", tp), ("dp", dp)) if d is not None}
        shard = self.program.parameter(name, shape, split)
        if dp is None:
            self.plain.append(shard)
        return self.body.parameter(shard)

    def boxes(self, name: str, shape: tuple[int, ...], count: int) -> list[int]:
        """A parameter of ``count`` blocks of rows, of each of which a rank holds its part along tp;
        the single device holds it whole."""
        if not self.parallel:
            whole = self.w(name, *shape)
            rows = shape[0] // count
            return [self.cut(whole, 0, i * rows, rows) for i in range(count)]
        rows = shape[0] // count // self.n("tp")
        found = []
        for i in range(count):
            start = affine(i * shape[0] // count, {"tp": rows} if self.n("tp") > 1 else {})
            offset = (start, *(ZERO for _ in shape[1:]))
            shard = self.program.shard(Shard(name, shape, (rows, *shape[1:]), offset))
            self.plain.append(shard)
            found.append(self.body.parameter(shard))
        return found

    def cut(self, x: int, dim: int, start: int, size: int) -> int:
        return self.body.op("slice", x, dim=dim, start=start, size=size)

    def cat(self, *xs: int, dim: int) -> int:
        return self.body.op("concat", *xs, dim=dim)

    def enter(self, x: int) -> int:
        return self.body.copy_to(x, along("tp")) if self.n("tp") > 1 else x

    def leave(self, x: int, axis: str = "tp") -> int:
        return self.body.reduce_from(x, along(axis)) if self.n(axis) > 1 else x

    def everywhere(self, x: int, axis: str) -> int:
        """All-reduced, and used by all ranks for what they add up afterwards."""
        return self.body.all_reduce(x, along(axis)) if self.n(axis) > 1 else x

    def gather(self, x: int, dim: int, axis: str, shared: bool = False) -> int:
        if self.n(axis) == 1:
            return x
        return self.body.all_gather(x, dim, along(axis), shared=shared)

    def const(self, x: int, c: Fraction | int) -> int:
        return self.body.mul_constant(x, Fraction(c))

    def plus(self, x: int, c: Fraction | int) -> int:
        return self.body.op("add", x, other=Fraction(c))

    def loss(self, x: int) -> Program:
        """The sum of ``x`` is the loss; everything that belongs to a step after it."""
        shape = self.body.shape(x)
        self.body.loss(x if shape in ((1,), ()) else self.body.sum(x))
        return self.done()

    def done(self) -> Program:
        self.program.schedule(self.body, self.body.backward(), self.mb)
        if self.n("dp") > 1 and self.plain:
            self.program.reduce([(shard, along("dp")) for shard in self.plain])
        return self.program.build()


Case = Callable[[Side], Program]
DP, TP, BOTH, MB = Mesh(dp=2), Mesh(tp=2), Mesh(dp=2, tp=2), Mesh(dp=2, mb=2)
FOUR: Final = Mesh(tp=4)
ALL = (DP, TP, BOTH, MB)
CASES: dict[str, tuple[Case, tuple[Mesh, ...]]] = {}


def case(*meshes: Mesh) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[function.__name__] = (function, meshes or ALL)
        return function

    return add


def made(name: str, mesh: int, wrong: bool = False) -> Plan:
    """The plan of a case on the mesh of this number."""
    function, meshes = CASES[name]
    held = meshes[mesh]
    single, ranks = (function(Side(held, parallel, wrong)) for parallel in (False, True))
    loss = "mean" if name.endswith("_mean") else "sum"
    return Plan(name, single, (ranks,), held.mb, ("dp",) if held.dp > 1 else (), loss)
