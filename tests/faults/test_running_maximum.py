"""Softmax in blocks with a running maximum, as in ring and flash attention: whatever is subtracted
cancels, and what is summed in blocks is the sum over the whole axis.

Each program is proved and checked beside twins with the mistakes that people make there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardproof.checker import check
from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder
from tests.faults.plans import verify
from tests.partition.truth import truth

ROWS, KEYS, SIZE = 4, 8, 6
#: A formula of queries, keys and values.
Formula = Callable[[BodyBuilder, int, int, int], int]
MISTAKES = ("output not rescaled", "sum not rescaled", "another maximum", "a block left out")


def scores(b: BodyBuilder, q: int, k: int) -> int:
    return b.op("matmul", q, b.op("transpose", k, dim0=0, dim1=1))


def whole(b: BodyBuilder, q: int, k: int, v: int) -> int:
    return b.op("matmul", b.softmax(scores(b, q, k)), v)


def largest(b: BodyBuilder, x: int) -> int:
    return b.op("amax", x, dim=(1,), keepdim=True)


def larger(b: BodyBuilder, x: int, y: int, kink: str) -> int:
    """The larger of two, as frontends write it: y + relu(x - y), y + (x - y) step(x - y)."""
    if not kink:
        return largest(b, b.op("concat", x, y, dim=1))
    apart = b.op("sub", x, y)
    above = b.op(kink, apart)
    return b.add(y, b.mul(apart, above) if kink == "step" else above)


def in_blocks(count: int, mistake: str = "", kink: str = "") -> Formula:
    """Blocks of keys from the second one on, the first one last."""
    size = KEYS // count

    def formula(b: BodyBuilder, q: int, k: int, v: int) -> int:
        def block(x: int, i: int) -> int:
            return b.op("slice", x, dim=0, start=i * size, size=size)

        order = [*range(1, count), 0]
        first = scores(b, q, block(k, order[0]))
        top = largest(b, first)
        weights = b.exp(b.op("sub", first, top))
        total = b.op("sum", weights, dim=(1,), keepdim=True)
        out = b.op("matmul", weights, block(v, order[0]))
        for i in order[1:-1] if mistake == "a block left out" else order[1:]:
            own = scores(b, q, block(k, i))
            new = larger(b, top, largest(b, own), kink)
            weights = b.exp(b.op("sub", own, top if mistake == "another maximum" else new))
            fade = b.exp(b.op("sub", top, new))
            total = total if mistake == "sum not rescaled" else b.mul(total, fade)
            total = b.add(total, b.op("sum", weights, dim=(1,), keepdim=True))
            out = out if mistake == "output not rescaled" else b.mul(out, fade)
            out = b.add(out, b.op("matmul", weights, block(v, i)))
            top = new
        return b.op("div", out, total)

    return formula


def without_maximum(b: BodyBuilder, q: int, k: int, v: int) -> int:
    weights = b.exp(scores(b, q, k))
    total = b.op("sum", weights, dim=(1,), keepdim=True)
    return b.op("div", b.op("matmul", weights, v), total)


def plan(parallel: Formula) -> Plan:
    def program(formula: Formula) -> Program:
        made = ProgramBuilder("rank")
        w = made.parameter("w", (SIZE, SIZE))
        body = made.body("forward")
        shapes = {"q": ROWS, "k": KEYS, "v": KEYS, "t": ROWS}
        q, k, v, t = body.load_batch(*((n, (rows, SIZE), "float32") for n, rows in shapes.items()))
        y = body.linear(formula(body, q, k, v), body.parameter(w))
        body.loss(body.sum(body.mul(t, y)))
        made.schedule(body, body.backward(), 1)
        return made.build()

    return Plan("blocks", program(whole), (program(parallel),), 1, ())


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_in_blocks_is_proved(count: int, tmp_path: Path) -> None:
    found = verify(plan(in_blocks(count)), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert [str(p) for p in check(tmp_path).problems] == []


@pytest.mark.parametrize("kink", [pytest.param("relu", marks=pytest.mark.slow), "step"])
def test_maxima_by_kinks_are_proved(kink: str, tmp_path: Path) -> None:
    found = verify(plan(in_blocks(2, kink=kink)), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert [str(p) for p in check(tmp_path).problems] == []


def test_no_maximum_is_proved_beside_one(tmp_path: Path) -> None:
    found = verify(plan(without_maximum), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert [str(p) for p in check(tmp_path).problems] == []


def test_the_exponential_of_nothing_is_one(tmp_path: Path) -> None:
    """exp(s - s) on one side only; with blocks of one key there are such, too."""

    def formula(b: BodyBuilder, q: int, k: int, v: int) -> int:
        s = scores(b, q, k)
        return b.op("matmul", b.mul(b.softmax(s), b.exp(b.op("sub", s, s))), v)

    assert verify(plan(formula), out=tmp_path).verdict == "proved"
    assert check(tmp_path).ok
    assert verify(plan(in_blocks(KEYS))).verdict == "inconclusive"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refuted(mistake: str) -> None:
    assert verify(plan(in_blocks(2, mistake))).verdict == "refuted"


def test_what_lineages_say_is_so_entry_by_entry() -> None:
    """In float64, with every rank's tensors beside what their lineages say."""
    found = truth(plan(in_blocks(2)))
    assert found.wrong == ()
    assert found.compared > 30
    assert found.unknown == 0
