"""Runs that are consistent, of plans that are wrong: what the checker sees of structure itself.

Each forged run has its twin: the right plan, stored the same way, is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from shardproof.checker import CheckResult, check
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Attr, Op, Plan, Program
from shardproof.engine.plan_files import wellformed
from shardproof.engine.reference_runtime.compare import Undefined, worst
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.frontends.builder.builder import ProgramBuilder, along
from shardproof.mutation.campaign import MUTATORS
from tests.checker.conftest import parts_of
from tests.checker.forge import called_proved, concluded, forged, forgeries
from tests.faults.plans import edit_body
from tests.faults.small import PASS, mesh, parts, replicas, segments


def rejected(plan: Plan, folder: Path) -> list[str]:
    """What is said of a run of ``plan`` that says it is proved."""
    called_proved(forged(concluded(parts_of(plan)))).store(folder)
    found = check(folder)
    assert found.verdict == "proved"
    assert not found.ok
    return [str(problem) for problem in found.problems]


def accepted(plan: Plan, folder: Path) -> CheckResult:
    forged(concluded(parts_of(plan))).store(folder)
    found = check(folder)
    assert found.problems == ()
    assert found.ok
    return found


# -- what follows is one defect each
# ----------------------------------------------------------------


def gives_along(name: str) -> Plan:
    """Two ranks along dp; what one of them would give to the other is what both have."""

    def program(single: bool) -> Program:
        axes = () if single else (("dp", 2, 1),)
        made = ProgramBuilder("single" if single else "ranks", axes=axes)
        weight = made.parameter("w", (4, 8), trainable=False)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (4 if single else 2, 8), "float32"))
        y = body.linear(x, body.parameter(weight))
        if not single:
            out = body.value(body.shape(y), "given")
            attrs: dict[str, Attr] = {"group": along("dp"), "root": 0}
            body.append(name, [y], [out], attrs if name == "broadcast" else {})
            y = out
        body.loss(body.sum(body.mul(y, y)))
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("given", program(True), (program(False),), 1, ("dp",))


def test_broadcast_along_a_mesh_axis(tmp_path: Path) -> None:
    said = rejected(gives_along("broadcast"), tmp_path / "wrong")
    assert any("only one of these ranks is the root" in line for line in said), said
    accepted(gives_along("identity"), tmp_path / "right")


def takes_logarithms(of: str) -> Plan:
    """Both sides take a logarithm of ``a``; the parallel one takes it and leaves it again, of
    ``of``."""

    def program(single: bool) -> Program:
        made = ProgramBuilder("single" if single else "rank 0")
        a = made.parameter("a", (4, 8), trainable=False)
        b = made.parameter("b", (4, 8), trainable=False)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (4, 8), "float32"))
        values = {"a": body.parameter(a), "b": body.parameter(b)}
        y = body.add(body.log(values["a"]), body.mul(x, values["b"]))
        if not single:
            taken = body.log(values[of])
            y = body.add(y, body.sub(taken, taken))
        body.loss(body.sum(y))
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("logarithms", program(True), (program(False),), 1)


def test_definedness_is_about_nodes(tmp_path: Path) -> None:
    """The two claims are one claim up to names; what they are defined by is not."""
    said = rejected(takes_logarithms("b"), tmp_path / "wrong")
    assert any(line.startswith("definedness: ") and "takes log" in line for line in said), said
    accepted(takes_logarithms("a"), tmp_path / "right")


def with_dead(change: Callable[[Op], Op]) -> Plan:
    """Replicas that also compute something that nothing depends on."""

    def program(single: bool) -> Program:
        axes = () if single else (("dp", 2, 1),)
        made = ProgramBuilder("single" if single else "ranks", axes=axes)
        weight = made.parameter("w", (4, 8), trainable=False)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (4 if single else 2, 8), "float32"))
        y = body.linear(x, body.parameter(weight))
        if not single:
            body.transpose(y, 0, 1, name="unused")
        body.loss(body.sum(body.mul(y, y)))
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    plan = Plan("dead", program(True), (program(False),), 1, ("dp",))
    return edit_body(
        plan,
        0,
        "forward",
        lambda body: replace(
            body, ops=tuple(change(op) if op.name == "transpose" else op for op in body.ops)
        ),
    )


DEAD: dict[str, tuple[Callable[[Op], Op], str]] = {
    "an attribute that is none": (
        lambda op: replace(op, attrs={**op.attrs, "scale": Fraction(1, 2)}),
        "attribute scale of operator transpose is not declared",
    ),
    "another shape": (
        lambda op: replace(op, attrs={"dim0": 0, "dim1": 0}),
        r"gives shapes \[\[2, 4\]\], the plan has \[\[4, 2\]\]",
    ),
    "a dimension that is not there": (
        lambda op: replace(op, attrs={"dim0": 0, "dim1": 5}),
        "dimension 5",
    ),
}


@pytest.mark.parametrize("name", DEAD)
def test_dead_operators_are_looked_at(name: str, tmp_path: Path) -> None:
    change, message = DEAD[name]
    said = rejected(with_dead(change), tmp_path / "wrong")
    assert any(re.search(message, line) for line in said), said
    refuted = replace(forged(concluded(parts_of(with_dead(change)))), verdict="refuted")
    refuted.store(tmp_path / "refuted")
    found = check(tmp_path / "refuted")
    assert found.ok, found.problems


def test_the_twin_of_a_dead_operator(tmp_path: Path) -> None:
    accepted(with_dead(lambda op: op), tmp_path / "right")


def reads_all() -> Plan:
    """Two replicas, of which each reads the whole batch; their losses are averaged."""

    def program(single: bool, rows: int) -> Program:
        axes = () if single else (("dp", 2, 1),)
        made = ProgramBuilder("single" if single else "ranks", axes=axes)
        weight = made.parameter("w", (4, 8), trainable=False)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (rows, 8), "float32"))
        body.loss(body.sum(body.linear(x, body.parameter(weight))))
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("all", program(True, 4), (program(False, 4),), 1, ("dp",), "mean")


def test_every_replica_reads_a_slice_of_its_own(tmp_path: Path) -> None:
    said = rejected(reads_all(), tmp_path / "wrong")
    assert any("reads a slice of its own" in line for line in said), said
    accepted(replicas(), tmp_path / "right")


# -- the runtime beside the argument
# ----------------------------------------------------------------


def test_what_the_argument_does_not_see_the_runtime_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With everything blinded that prover and checker share, the plan is still another one."""
    plan = reads_all()
    called_proved(forged(concluded(parts_of(plan)))).store(tmp_path / "run")
    monkeypatch.setattr("shardproof.checker.verify._check_argument", lambda work: None)
    monkeypatch.setattr("shardproof.checker.verify.check_assumptions", lambda run, problems: None)
    assert check(tmp_path / "run").ok  # each replica's mean is the mean: equal, and not its own
    wrong = parts(starts=(4, 0))
    called_proved(forged(concluded(parts_of(wrong)))).store(tmp_path / "wrong")
    found = check(tmp_path / "wrong")
    assert [p.kind for p in found.problems] == ["runtime"]
    assert "run rank by rank: loss" in found.problems[0].message


# -- random edits of structure
# ----------------------------------------------------------------------

PLANS: dict[str, Callable[[], Plan]] = {
    "replicas": replicas,
    "parts": parts,
    "segments": lambda: segments([(name, m) for name in PASS for m in (0, 1)]),
    "mesh": lambda: mesh(("a", "b"), {"a": 8, "b": 4}),
}
EDITS = 8


def differs(plan: Plan) -> bool:
    """Whether a plan is another one, or none, by running every rank of it."""
    try:
        return worst(plan, 0)[0] > 1e-6
    except (Stuck, ShapeMismatch):
        return True
    except (Unsupported, Undefined):
        return False


def edited(name: str) -> list[tuple[str, Plan]]:
    """Plans that are a random edit away, well-formed and different."""
    random = Random(f"edits of {name}")
    right = PLANS[name]()
    found: list[tuple[str, Plan]] = []
    mutators = [m for m in MUTATORS if not m.keeps]
    for mutator in random.sample(mutators, len(mutators)):
        mutation = mutator.apply(right, random)
        if mutation is None or len(found) == EDITS:
            continue
        try:
            wellformed.check(mutation.plan)
        except InvalidInput:
            continue
        if differs(mutation.plan):
            found.append((mutator.name, mutation.plan))
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "parts" else pytest.mark.slow) for n in PLANS]
)
def test_no_forged_run_of_an_edited_plan_holds(name: str, tmp_path: Path) -> None:
    right = PLANS[name]()
    accepted(right, tmp_path / "right")
    wrong = edited(name)
    assert len(wrong) == EDITS
    for number, (mutator, plan) in enumerate(wrong):
        for way, forgery in forgeries(right, plan):
            folder = tmp_path / f"{number} {way}"
            try:
                forgery.store(folder)
            except InvalidInput:
                continue  # what cannot be stored, nobody is shown
            found = check(folder)
            assert found.verdict in ("proved", "")
            assert not found.ok, (mutator, way)
