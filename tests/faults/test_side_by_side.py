"""Right plans whose values lie side by side, or repeat: proved, checked, and refuted with a
mistake.

Each function writes one of two sides with the operators of the body; with ``wrong`` the parallel
side has the mistake that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.checker import check
from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from tests.faults.plans import verify

ROWS = 4
WIDTH = 8
#: (body, x, y = x w, whether it is the parallel side with its mistake) -> a value of any shape.
Formula = Callable[[BodyBuilder, int, int, bool], int]


def twice(b: BodyBuilder, x: int, y: int, wrong: bool) -> int:
    """A value beside itself is that value, repeated; of a batch of as many rows as there are
    replicas. The mistake: beside it lies the input."""
    both = b.op("stack", y, x if wrong else y, dim=0)
    total = b.sum(b.op("tanh", both), dim=0)
    other = b.mul(total, total)
    root = b.op("rsqrt", b.op("add", other, other=Fraction(1)))
    return b.op("div", total, root)


def own_square(b: BodyBuilder, x: int, y: int, wrong: bool) -> int:
    """Of y y and y side by side, squared, the second is y y, which is there too. The mistake: it is
    squared once more."""
    square = b.mul(y, y)
    both = b.op("concat", square, square if wrong else y, dim=1)
    return b.mul(both, both)


def turned_softmax(b: BodyBuilder, x: int, y: int, wrong: bool) -> int:
    """The gradient of a softmax whose halves have weights of their own is a sum in parts. The
    mistake: one of them has another weight."""
    p = b.softmax(y)
    half = WIDTH // 2
    parts = [b.op("slice", p, dim=1, start=start, size=half) for start in (0, half)]
    turned = b.mul_constant(parts[1], -2 if wrong else -1)
    return b.add(p, b.op("concat", turned, parts[0], dim=1))


def shifted(b: BodyBuilder, x: int, y: int, wrong: bool) -> int:
    """Positions of a sequence with what stands before them, all sequences laid flat: the first
    position has nothing before it, and is a row of the batch like others. The mistake: with what
    stands behind them."""
    rows, length = b.shape(y)[0], 4
    z = b.view(y, rows, length, WIDTH // length)
    nothing = b.mul_constant(b.op("slice", z, dim=1, start=0, size=1), 0)
    rest = b.op("slice", z, dim=1, start=int(wrong), size=length - 1)
    both = b.add(z, b.op("concat", nothing, rest, dim=1))
    return b.op("log_softmax", b.view(both, rows * length, WIDTH // length), dim=-1)


def hidden(b: BodyBuilder, x: int, y: int, wrong: bool) -> int:
    """Two rows of two scores, of which the last has another one beside it, under a mask of numbers:
    the largest of a row is that of two values, each at one position. No gradient goes that way. The
    mistake: the mask hides the other half."""
    z = b.view(y, b.shape(y)[0] * 2, 2, 2)
    first = b.op("slice", z, dim=2, start=0, size=1)
    scores = b.add(z, b.op("concat", b.mul_constant(first, 0), b.op("tanh", first), dim=2))
    low = b.op("tril", b.op("full", size=(2, 2), value=Fraction(1)))
    mask = low if wrong else b.op("affine", low, factor=Fraction(-1), shift=Fraction(1))
    hidden = b.op("masked_fill", scores, mask, value=Fraction(-10000))
    return b.mul(z, b.op("detach", b.softmax(hidden)))


def turned(b: BodyBuilder, x: int, y: int, wrong: bool) -> int:
    """Rotary positions over rows that are two axes of what is turned: all columns are multiplied by
    one table, and the halves, exchanged, by another one. A rank has a part of the rows of both. The
    mistake: the half that is exchanged keeps its sign."""
    rows, length, width = b.shape(y)[0], 4, WIDTH // 2
    z = b.view(b.softmax(b.view(y, rows, 2, WIDTH)), rows, length, width)
    ones = b.op("full", size=(length, length), value=Fraction(1))
    steps = b.op("sum", b.op("tril", ones), dim=(1,))
    rates = b.op("slice", steps, dim=0, start=0, size=width)
    angles = b.op("einsum", steps, rates, equation="a,b->ab")
    half = [b.op("slice", z, dim=2, start=at, size=width // 2) for at in (0, width // 2)]
    other = b.op("concat", half[1] if wrong else b.mul_constant(half[1], -1), half[0], dim=2)
    return b.add(b.mul(z, b.op("cos", angles)), b.mul(other, b.op("sin", angles)))


FORMULAS = (twice, own_square, turned_softmax, shifted, hidden, turned)


def plan(formula: Formula, wrong: bool = False, split: bool = False) -> Plan:
    """On two replicas (``split``: on two ranks that divide the columns of w)."""

    def program(parallel: bool) -> Program:
        axis = "tp" if split else "dp"
        made = ProgramBuilder("ranks", axes=((axis, 2, 1),) if parallel else ())
        columns = 2 * WIDTH if formula is turned else WIDTH
        w = made.parameter("w", (columns, WIDTH), {0: "tp"} if split else {})
        rows = ROWS // 2 if parallel and not split else ROWS
        body = made.body("forward")
        (x,) = body.load_batch(("x", (rows, WIDTH), "float32"))
        y = body.linear(x, body.parameter(w))
        if parallel and split:
            y = body.all_gather(y, 1, along("tp"), shared=True)
        z = formula(body, x, y, wrong and parallel)
        body.loss(body.sum(body.mul(z, z) if formula in (twice, turned) else z))
        made.schedule(body, body.backward(), 1)
        if parallel and not split:
            made.reduce([(w, along("dp"))])
        return made.build()

    replicas = () if split else ("dp",)
    return Plan(formula.__name__, program(False), (program(True),), 1, replicas)


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("split", [False, True], ids=["replicas", "columns"])
def test_a_right_plan_is_proved_and_its_mistake_refuted(
    formula: Formula, split: bool, tmp_path: Path
) -> None:
    found = verify(plan(formula, split=split), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert [str(p) for p in check(tmp_path).problems] == []
    assert verify(plan(formula, wrong=True, split=split)).verdict == "refuted"
