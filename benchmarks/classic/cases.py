"""What a classic mistake is: a function that writes both sides of a plan, with the mistake or not.

One function writes the single-device side, the right parallel side and the wrong one.  It is given
a `Side`, whose communication does nothing where an axis has one rank, and asks ``side.wrong`` at
the one place where the mistake is made.  The expectations (operator, module, cause) are what an
engineer would say of the mistake; they were written down beside it, and are not what a run gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.plan.ir import Group, Plan, Program
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along

#: Tokens and widths of all plans: (batch, sequence, hidden), heads, feed-forward, vocabulary.
BATCH, SEQUENCE, HIDDEN, HEADS, FFN, VOCABULARY = 8, 4, 8, 4, 16, 16
EPS = Fraction(1, 100_000)


@dataclass
class Side:
    """One side while it is written: its program and forward body, the ranks along each axis, and
    whether the mistake is made here.

    ``rows``: sequences that one call reads; ``reduced``: over which axes the gradient of a
    parameter is added up in the end, where that is not the replicas'.
    """

    made: ProgramBuilder
    body: BodyBuilder
    rows: int
    wrong: bool
    calls: int
    reduced: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def ranks(self, axis: str) -> int:
        return self.made.extents.get(axis, 1)

    @property
    def parallel(self) -> bool:
        return bool(self.made.extents)

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        with self.body.module(name):
            yield

    # -- parameters and positions ---------------------------------------------------------------

    def parameter(
        self,
        name: str,
        *shape: int,
        split: Mapping[int, str] | None = None,
        offset: Affine | None = None,
        trainable: bool = True,
    ) -> int:
        """A parameter of full ``shape``; ``split``: dimensions divided over axes; ``offset``: where
        the part of the one divided dimension begins, if not where it should."""
        if name not in self.numbers:
            number = self.made.parameter(name, shape, split or {}, trainable=trainable)
            if offset is not None and split:
                shard = self.made.shards[number]
                (dim,) = split
                offsets = tuple(offset if d == dim else o for d, o in enumerate(shard.offset))
                self.made.shards[number] = replace(shard, offset=offsets)
            self.numbers[name] = number
        return self.body.parameter(self.numbers[name])

    def start(self, axis: str, whole: int) -> Affine:
        """Where this rank's part of ``whole`` positions begins."""
        ranks = self.ranks(axis)
        return affine(0, {axis: whole // ranks}) if ranks > 1 else ZERO

    # -- communication that is none on a single device ------------------------------------------

    def copy_to(self, x: int, axis: str) -> int:
        return self.body.copy_to(x, along(axis)) if self.ranks(axis) > 1 else x

    def reduce_from(self, x: int, axis: str) -> int:
        return self.body.reduce_from(x, along(axis)) if self.ranks(axis) > 1 else x

    def gather(self, x: int, dim: int, axis: str, *, shared: bool = False) -> int:
        if self.ranks(axis) == 1:
            return x
        return self.body.all_gather(x, dim, along(axis), shared=shared)

    def scatter(self, x: int, dim: int, axis: str) -> int:
        return self.body.reduce_scatter(x, dim, along(axis)) if self.ranks(axis) > 1 else x

    def exchange(self, x: int, split: int, concat: int, axis: str) -> int:
        if self.ranks(axis) == 1:
            return x
        return self.body.all_to_all(x, split, concat, along(axis))

    # -- what most plans have -------------------------------------------------------------------

    def load(self, *shape: int) -> int:
        """Hidden states [rows, ...] of this call, and no targets."""
        (x,) = self.body.load_batch(("x", (self.rows, *(shape or (SEQUENCE, HIDDEN))), "float32"))
        return x

    def tokens(self) -> tuple[int, int]:
        """Token ids and targets [rows, SEQUENCE] of this call."""
        tokens, targets = self.body.load_batch(
            ("tokens", (self.rows, SEQUENCE), "int64"), ("targets", (self.rows, SEQUENCE), "int64")
        )
        return tokens, targets

    def squared(self, y: int, factor: Fraction | None = None) -> None:
        """The loss: the mean of squares over the whole batch, of which this call adds its part."""
        with self.module("loss"):
            total = self.body.sum(self.body.mul(y, y))
            count = self.body.shape(y)[1] * self.body.shape(y)[2] * BATCH
            if factor is None:
                factor = Fraction(1, count)
            self.body.loss(self.body.mul_constant(total, factor))


Write = Callable[[Side], None]


@dataclass(frozen=True)
class Case:
    """``what``: the mistake, in words; ``operators``, ``layer``, ``cause``: what a diagnosis should
    say of it (any of the operators; a part of the module's name); ``plan``: with it, or without."""

    name: str
    what: str
    operators: tuple[str, ...]
    layer: str
    causes: tuple[str, ...]
    plan: Callable[[bool], Plan]


CASES: dict[str, Case] = {}


def case(
    what: str,
    *,
    mesh: Mapping[str, int],
    operator: str,
    layer: str,
    cause: str,
    microbatches: int = 1,
    finish: Callable[[Side], None] | None = None,
) -> Callable[[Write], Write]:
    """Register a plan whose ranks all run one program: ``mesh`` gives the ranks along each axis,
    outermost first; ``dp`` are replicas.  ``operator``, ``cause``: alternatives apart by "|"."""

    def register(write: Write) -> Write:
        def plan(wrong: bool) -> Plan:
            single = _program("single", {}, 1, False, write, finish)
            parallel = _program("ranks", mesh, microbatches, wrong, write, finish)
            replicas = ("dp",) if "dp" in mesh else ()
            return Plan(name, single, (parallel,), microbatches, replicas)

        name = write.__name__.replace("_", "-")
        add(Case(name, what, tuple(operator.split("|")), layer, tuple(cause.split("|")), plan))
        return write

    return register


def add(case: Case) -> None:
    """Register a case; names are given once."""
    if case.name in CASES:
        raise ValueError(f"{case.name} is there twice")
    CASES[case.name] = case


def _program(
    name: str,
    mesh: Mapping[str, int],
    calls: int,
    wrong: bool,
    write: Write,
    finish: Callable[[Side], None] | None,
) -> Program:
    stride, axes = 1, []
    for axis, extent in reversed(mesh.items()):
        axes.append((axis, extent, stride))
        stride *= extent
    made = ProgramBuilder(name, axes=tuple(reversed(axes)))
    body = made.body("forward")
    side = Side(made, body, BATCH // calls // mesh.get("dp", 1), wrong, calls)
    write(side)
    backward = body.backward()
    if finish is not None:
        finish(side)
    made.schedule(body, backward, calls)
    reduce(side)
    return made.build()


def reduce(side: Side) -> None:
    """Add the gradients up: over replicas, or over the axes that ``side.reduced`` says."""
    wanted: list[tuple[int, Group]] = []
    for name, number in side.numbers.items():
        if not side.made.shards[number].trainable:
            continue
        axes = side.reduced.get(name, ("dp",))
        wanted += [(number, along(axis)) for axis in axes if side.ranks(axis) > 1]
    if wanted:
        side.made.reduce(wanted)
