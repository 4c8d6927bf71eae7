"""What is correct and ordinary is proved and checked, each beside a wrong twin that is not: the
items of section E of the issue on wrong proofs, as people write them
(benchmarks/random_programs/written).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import pytest

from benchmarks.random_programs.judge import judge
from benchmarks.random_programs.programs import CLASSES, make
from benchmarks.random_programs.written import CASES, made
from shardproof.checker import check
from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.plan.ir import Plan, Program, Shard
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from tests.checker.forge import forgeries
from tests.faults.plans import attrs, verify

#: Item of the issue, case, number of its mesh.
SAMPLE = [
    ("E1 a normaliser over replicas", "one_normaliser", 1),
    ("E1 contrast over replicas", "contrastive", 0),
    ("E1 divided like the batch", "parameter_divided_like_the_batch", 0),
    ("E2 a negative factor", "cooled_softmax", 1),
    ("E2 a negative factor of a maximum", "strongest_feature", 1),
    ("E3 several terms", "several_terms", 0),
    ("E4 fused projections", "fused_qkv", 1),
    ("E4 gate and up", "gate_up_in_one", 0),
    ("E4 rotated halves", "rotate_half", 1),
    ("E4 flat buckets", "gradients_in_buckets", 1),
    ("E4 a softmax over values side by side", "learned_keys", 0),
    ("E4 a prefix before the tokens", "learned_prefix", 0),
    ("E5 sums in steps", "summed_in_steps", 2),
    ("E5 local means", "local_means_mean", 1),
    ("E6, E7 groups of heads", "grouped_heads", 1),
    ("E9 x / x", "quotient_of_itself", 0),
    ("E9 exp(-x)", "decay", 0),
    ("E9 a count", "divided_by_a_count", 0),
    ("E9 a root and a power", "root_as_power", 1),
    ("E9 one over a root", "layernorm_by_hand", 0),
    ("E9 roots of two", "cosine", 1),
]


@pytest.mark.parametrize(("item", "name", "mesh"), SAMPLE, ids=[f"{i}-{n}" for i, n, _ in SAMPLE])
def test_right_is_proved_and_wrong_is_not(item: str, name: str, mesh: int, tmp_path: Path) -> None:
    right, wrong = made(name, mesh), made(name, mesh, wrong=True)
    assert judge(right, 1, CLASSES) == ""
    assert judge(wrong, 1, CLASSES) != ""
    found = verify(right, out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert [str(p) for p in check(tmp_path).problems] == []
    assert verify(wrong).verdict == "refuted"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_program_written_by_hand(name: str, tmp_path: Path) -> None:
    """Each is proved and checked; its wrong twin, where the judge sees it, is refuted."""
    for mesh in range(len(CASES[name][1])):
        right, wrong = made(name, mesh), made(name, mesh, wrong=True)
        out = tmp_path / str(mesh)
        assert judge(right, 1, CLASSES) == ""
        assert verify(right, out=out).verdict == "proved"
        assert check(out).ok
        if judge(wrong, 1, CLASSES):
            assert verify(wrong).verdict == "refuted"


# -- E9: a law holds where the single-device program is defined ------------------------------------

Formula = Callable[[BodyBuilder, int], int]
#: A random program with a layernorm of values that cancel.
CANCELLED: Final = 1200064


def _plan(single: Formula, parallel: Formula) -> Plan:
    def program(formula: Formula, rows: int, axes: tuple[tuple[str, int, int], ...]) -> Program:
        made = ProgramBuilder("ranks", axes=axes)
        w = made.parameter("w", (4, 4))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (rows, 4), "float32"))
        body.loss(body.sum(formula(body, body.linear(x, body.parameter(w)))))
        made.schedule(body, body.backward(), 1)
        if axes:
            made.reduce([(w, along("dp"))])
        return made.build()

    ranks = program(parallel, 2, (("dp", 2, 1),))
    return Plan("laws", program(single, 4, ()), (ranks,), 1, ("dp",))


def _one(b: BodyBuilder, y: int) -> int:
    return b.op("add", y, other=Fraction(1))


def _quotient(b: BodyBuilder, y: int) -> int:
    return b.add(y, b.op("div", y, y))


def _root(b: BodyBuilder, y: int) -> int:
    return b.op("rsqrt", y)


def _one_over_root(b: BodyBuilder, y: int) -> int:
    return b.op("reciprocal", b.op("sqrt", y), numerator=Fraction(1))


def _square_root(b: BodyBuilder, y: int) -> int:
    return b.op("sqrt", y)


def _root_times(b: BodyBuilder, y: int) -> int:
    return b.mul(y, b.op("rsqrt", y))


def _with_logarithm(b: BodyBuilder, y: int) -> int:
    return b.exp(b.add(b.log(y), y))


def _times_exponential(b: BodyBuilder, y: int) -> int:
    return b.mul(y, b.exp(y))


def _of_square(formula: Formula) -> Formula:
    return lambda b, y: formula(b, b.op("add", b.mul(y, y), other=Fraction(1)))


@pytest.mark.parametrize(
    ("less", "more", "otherwise"),
    [
        (_one, _quotient, "inconclusive"),
        (_root, _one_over_root, "proved"),
        (_square_root, _root_times, "proved"),
        (_times_exponential, _with_logarithm, "refuted"),
    ],
    ids=["x / x", "1 / sqrt(x)", "x rsqrt(x)", "exp(log(x) + x)"],
)
def test_a_law_is_used_where_the_single_device_is_defined(
    less: Formula, more: Formula, otherwise: str, tmp_path: Path
) -> None:
    """The single device divides, so the ranks need not; the other way round only where the single
    device is undefined there too (the derivative of a root is, at zero), or where what is divided
    by is never zero."""
    right = verify(_plan(more, less), out=tmp_path / "right")
    assert right.verdict == "proved", right.reason
    assert check(tmp_path / "right").ok
    found = verify(_plan(less, more), out=tmp_path / "other")
    assert found.verdict == otherwise, found.reason
    guarded = verify(_plan(_of_square(less), _of_square(more)), out=tmp_path / "guarded")
    assert guarded.verdict == "proved", guarded.reason
    assert check(tmp_path / "guarded").ok


def _normed(b: BodyBuilder, y: int) -> int:
    return b.op("norm", y, dim=(1,), keepdim=True)


def test_a_root_is_defined_where_one_over_it_is(tmp_path: Path) -> None:
    """The derivative of a norm takes its root again, and gives one over it: ``check`` said that the
    single device does not take that root."""
    found = verify(_plan(_normed, _normed), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert check(tmp_path).problems == ()


def test_what_is_taken_of_values_that_the_single_device_has_not_is_said() -> None:
    found = verify(_plan(_one, _quotient))
    assert found.verdict == "inconclusive"
    assert "takes inv of values that the single-device program does not take it of" in found.reason


def test_what_nothing_reads_may_be_undefined(tmp_path: Path) -> None:
    """A quotient that no loss and no gradient depends on is undefined at zero, and nobody sees
    it."""

    def unread(b: BodyBuilder, y: int) -> int:
        b.op("div", y, y)
        return _one(b, y)

    found = verify(_plan(_one, unread), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert check(tmp_path).ok


@pytest.mark.parametrize("least", [Fraction(1, 100), Fraction(0), Fraction(-1, 100)])
def test_a_root_of_a_number_is_defined_by_the_number(least: Fraction, tmp_path: Path) -> None:
    """What is left of a normaliser of values that cancel is its epsilon: 1 / sqrt(0 + 1/100)."""
    program = make(CANCELLED)
    assert program is not None
    plan = program.plan

    def within(held: Program) -> Program:
        bodies = tuple(
            replace(
                body,
                ops=tuple(attrs(eps=least)(op) if "eps" in op.attrs else op for op in body.ops),
            )
            for body in held.bodies
        )
        return replace(held, bodies=bodies)

    plan = replace(
        plan,
        single=within(plan.single),
        programs=tuple(within(held) for held in plan.programs),
    )
    found = verify(plan, out=tmp_path)
    if least > 0:
        assert found.verdict == "proved", found.reason
        assert check(tmp_path).ok
    else:
        assert found.verdict == "inconclusive"


# -- E8: how parameters are held, and shapes of losses
# -------------------------------------------------


def _halves(wrong: bool) -> Plan:
    """One rank holds a parameter whole, two others hold its halves; all have the same batch."""

    def program(base: int, axes: tuple[tuple[str, int, int], ...]) -> Program:
        made = ProgramBuilder(f"from {base}", base, axes)
        w = made.parameter("w", (8, 4), {0: "tp"})
        body = made.body("forward")
        (x,) = body.load_batch(("x", (4, 4), "float32"))
        x = body.copy_to(x, along("tp")) if axes else x
        y = body.linear(x, body.parameter(w))
        total = body.sum(body.mul(y, y))
        body.loss(body.reduce_from(total, along("tp")) if axes and not wrong else total)
        made.schedule(body, body.backward(), 1)
        return made.build()

    ranks = (program(0, ()), program(1, (("tp", 2, 1),)))
    return Plan("halves", program(0, ()), ranks, 1)


def _both_in_halves(wrong: bool) -> Plan:
    """The single device holds a parameter as two boxes, and so do two ranks."""

    def program(single: bool) -> Program:
        made = ProgramBuilder("ranks", axes=() if single else (("tp", 2, 1),))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (4, 4), "float32"))
        if single:
            parts = [
                made.shard(Shard("w", (8, 4), (4, 4), (affine(start), ZERO))) for start in (0, 4)
            ]
            y = body.op("concat", *(body.linear(x, body.parameter(p)) for p in parts), dim=1)
            body.loss(body.sum(body.mul(y, y)))
        else:
            w = made.parameter("w", (8, 4), {0: "tp"})
            y = body.linear(body.copy_to(x, along("tp")), body.parameter(w))
            total = body.sum(body.mul(y, y))
            body.loss(total if wrong else body.reduce_from(total, along("tp")))
        made.schedule(body, body.backward(), 1)
        return made.build()

    return Plan("both in halves", program(True), (program(False),), 1)


def _loss_without_dimensions(wrong: bool) -> Plan:
    """A loss of shape [] against one of shape [1]."""

    def scalar(b: BodyBuilder, y: int) -> int:
        total = b.op("sum", b.mul(y, y), dim=(0, 1), keepdim=False)
        return b.mul_constant(total, 2) if wrong else total

    return _plan(lambda b, y: b.mul(y, y), scalar)


@pytest.mark.parametrize("plan", [_halves, _both_in_halves, _loss_without_dimensions])
def test_how_it_is_held_decides_nothing(plan: Callable[[bool], Plan], tmp_path: Path) -> None:
    found = verify(plan(False), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert check(tmp_path).ok
    assert verify(plan(True)).verdict == "refuted"


def test_a_proof_that_divides_where_the_single_device_does_not_is_rejected(tmp_path: Path) -> None:
    right, wrong = _plan(_one, _one), _plan(_one, _quotient)
    for number, (way, parts) in enumerate(forgeries(right, wrong)):
        parts.store(tmp_path / str(number))
        assert not check(tmp_path / str(number)).ok, way
