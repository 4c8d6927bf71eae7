"""State by hand what must hold of a plan: outputs, gradients that are written out, losses by term.

A linear layer whose weight is divided over ``tp``, forward only, without a batch to load.  Its
output is held in parts, ``norm`` by every rank, and ``share`` is partial by design::

    def forward(program: ProgramBuilder) -> tuple[BodyBuilder, int, int, int]:
        x = program.named("x", (4, 8))
        weight = program.parameter("weight", (16, 8), {0: "tp"})
        body = program.body("forward")
        y = body.linear(body.parameter(x), body.parameter(weight))
        norm = share = body.sum(body.mul(y, y))
        if "tp" in program.extents:
            norm = body.reduce_from(share, along("tp"))
        program.call(body)
        return body, y, share, norm

    single, ranks = ProgramBuilder("single"), ProgramBuilder("ranks", axes=(("tp", 2, 1),))
    one, y1, s1, n1 = forward(single)
    many, y2, s2, n2 = forward(ranks)
    expected = Table(single, ranks)
    expected.row("output", "y", term(one, y1), term(many, y2), split={1: "tp"})
    expected.row("output", "norm", term(one, n1), term(many, n2))
    expected.row("output", "share", term(one, s1), term(many, s2, tp="partial"))
    plan = expected.plan("layer")

What a row says is in `engine.plan.ir.Expectation`.  A plan with a table needs no loss and no
derivative: the single-device side's own gradients, as it computes them in its body, are values like
others (``kind`` "gradient", the parameter's name; the seed is then a constant 1).  A row that is
given no single-device value is about the derivative of the row of kind "loss".
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import ACCUMULATED, Addend, Expectation, Plan
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, Split

__all__ = ["Table", "Term", "accumulated", "term"]


class Term(NamedTuple):
    """An addend of a program that is being built; see `engine.plan.ir.Addend`.

    Example: ``term(many, share, tp="partial")``: what ``many`` has for ``share`` on a rank is a
    part of the sum over ``tp``.
    """

    program: ProgramBuilder
    body: int
    value: int
    weight: Fraction
    over: tuple[tuple[str, str], ...]


def term(body: BodyBuilder, value: int, weight: Fraction = Fraction(1), **over: str) -> Term:
    """Value ``value`` of ``body``, ``weight`` times, combined along axes (``tp="sum"``; ``mb`` is
    the microbatches).

    Example: ``term(many, y)`` is that value on every rank; ``term(many, loss, mb="sum")`` the sum
    of it over the microbatches.
    """
    return Term(
        body.program, body.number, int(body.result(value)), weight, tuple(sorted(over.items()))
    )


def accumulated(
    program: ProgramBuilder, shard: int, weight: Fraction = Fraction(1), **over: str
) -> Term:
    """The gradient that has accumulated for a shard after everything ran.

    Example: ``accumulated(ranks, weight)``, the gradient of ``weight`` on a rank after its reducer.
    """
    return Term(program, ACCUMULATED, int(shard), weight, tuple(sorted(over.items())))


class Table:
    """The expectations of a plan under construction, and the plan once its programs are built.

    Example: ``table.row("output", "y", term(one, y1), term(many, y2), split={1:
    "tp"})`` says that each rank has its columns of ``y``.
    """

    def __init__(self, single: ProgramBuilder, *programs: ProgramBuilder) -> None:
        self.single = single
        self.programs = programs
        self.rows: list[Expectation] = []

    def row(
        self,
        kind: str,
        name: str,
        single: Term | Sequence[Term],
        *terms: Term,
        split: Split | None = None,
        offset: Sequence[Affine] = (),
        required: bool = True,
    ) -> None:
        """One row: ``terms`` is ``single``, or its box at ``offset``; or the box that a tensor
        divided by ``split`` (as parameters are) has on a rank; an accumulated gradient's is that of
        its shard."""
        alone = (single,) if isinstance(single, Term) else tuple(single)
        if split:
            if offset or not terms or not alone:
                raise InvalidInput("a box of what has no counterpart, or two boxes", name)
            full = self._shape(alone[0])
            _, offset = terms[0].program.cut(name, full, split)
        elif terms and terms[0].body == ACCUMULATED and not offset:
            offset = terms[0].program.shards[terms[0].value].offset
        self.rows.append(
            Expectation(
                kind,
                name,
                tuple(self._addend(x, (self.single,)) for x in alone),
                tuple(self._addend(x, self.programs) for x in terms),
                tuple(offset),
                required,
            )
        )

    @staticmethod
    def _shape(x: Term) -> tuple[int, ...]:
        if x.body == ACCUMULATED:
            return x.program.shards[x.value].shape
        return x.program.bodies[x.body].shape(x.value)

    @staticmethod
    def _addend(x: Term, programs: Sequence[ProgramBuilder]) -> Addend:
        numbers = [n for n, program in enumerate(programs) if program is x.program]
        if not numbers:
            raise InvalidInput("a value of a program of the other side", x.program.name)
        return Addend(numbers[0], x.body, x.value, x.weight, x.over)

    def plan(
        self,
        name: str,
        microbatches: int = 1,
        replica_axes: tuple[str, ...] = (),
        loss: str = "sum",
    ) -> Plan:
        """The plan, with this table."""
        return Plan(
            name,
            self.single.build(),
            tuple(program.build() for program in self.programs),
            microbatches,
            replica_axes,
            loss,
            expectations=tuple(self.rows),
        )
