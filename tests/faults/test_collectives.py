"""What a plan says of communication is understood to the letter, or refused by name.

Each plan that is not proved has its right twin, proved by the same path; proved runs are given to
the checker, and so is the proved run with the wrong plan in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.engine.plan.collectives import TABLE
from shardproof.engine.plan.ir import Attr, Group, Op, Plan, Program, Shard, Value
from shardproof.engine.reference_runtime import compare as runtime
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.engine.schedule.unroll import unroll
from shardproof.frontends.builder.builder import ProgramBuilder
from tests.faults.communication import (
    assert_checked,
    assert_forged,
    assert_inconclusive,
    copied,
    exchange,
    rooted,
    scattered,
)
from tests.faults.plans import assert_proved, assert_refuted, attrs, edit_body, edit_op, verify
from tests.faults.small import parts, replicas

# -- rooted collectives
# -----------------------------------------------------------------------------


def test_a_reduce_along_an_axis_is_no_all_reduce(tmp_path: Path) -> None:
    assert_checked(rooted("all_reduce", axes=True), tmp_path / "twin")
    assert_inconclusive(rooted("reduce", axes=True), "a reduce along mesh axes ['tp']", "reduce")
    assert_forged(rooted("all_reduce", axes=True), rooted("reduce", axes=True), tmp_path / "forged")


def test_a_root_that_is_another_coordinate_is_no_contradiction() -> None:
    assert_inconclusive(rooted("reduce", axes=True, root=1), "only one of these ranks is the root")


@pytest.mark.parametrize("root", [0, 1])
def test_a_reduce_over_explicit_ranks_is_proved_on_its_root(root: int, tmp_path: Path) -> None:
    plan = rooted("reduce", axes=False, root=root)
    assert_checked(plan, tmp_path)
    assert runtime.worst(plan, 0)[0] < 1e-12


def test_a_reduce_whose_result_is_elsewhere_is_refuted() -> None:
    plan = rooted("reduce", axes=False, root=0)
    for root in (1, 7):
        moved = edit_op(
            edit_op(plan, "reduce", attrs(root=root)), "reduce", attrs(root=root), program=1
        )
        assert_refuted(moved, kind="root", operator="reduce", says=f"what goes to rank {root}")


def test_a_reduce_is_simulated() -> None:
    """A fault beside it is confirmed by evaluation."""
    plan = rooted("reduce", axes=False)
    assert_refuted(edit_op(plan, "reduce", attrs(op="max")), kind="collective mismatch")
    both = edit_op(edit_op(plan, "reduce", attrs(op="max")), "reduce", attrs(op="max"), program=1)
    assert verify(both).verdict == "refuted"


def test_a_broadcast_is_of_explicit_ranks(tmp_path: Path) -> None:
    for number, buffers in enumerate((False, True)):
        assert_checked(copied(axes=False, buffers=buffers), tmp_path / str(number))
    assert_inconclusive(copied(axes=True), "a broadcast along mesh axes ['tp']", "broadcast")
    local = edit_op(
        copied(axes=True), "broadcast", lambda op: replace(op, name="identity", attrs={})
    )
    assert_checked(local, tmp_path / "twin")
    assert_forged(local, copied(axes=True), tmp_path / "forged")


# -- attributes and operands
# ------------------------------------------------------------------------


def with_attr(plan: Plan, name: str, body: str | None = None, **extra: Attr) -> Plan:
    """The first operator of a name, of every program that has one, with more attributes."""
    for number, program in enumerate(plan.programs):
        for held in program.bodies:
            if body in (None, held.name) and any(op.name == name for op in held.ops):
                plan = edit_op(plan, name, attrs(**extra), body=held.name, program=number)
                break
    return plan


PLANS: dict[str, Callable[[], Plan]] = {
    "all_reduce": replicas,
    "all_gather": parts,
    "chunk": parts,
    "reduce_scatter": scattered,
    "send": lambda: exchange("psr"),
    "recv": lambda: exchange("sr"),
    "load_batch": replicas,
    "reduce": lambda: rooted("reduce", axes=False),
    "broadcast": lambda: copied(axes=False),
}


@pytest.mark.parametrize("name", PLANS)
def test_an_attribute_that_is_not_declared_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """`scale`, `shuffle` and `tag` may change everything, and nothing here reads them."""
    plan = PLANS[name]()
    key = {"load_batch": "shuffle", "send": "tag", "recv": "tag"}.get(name, "scale")
    wrong = with_attr(plan, name, **{key: 1})
    assert wrong != plan
    assert_inconclusive(wrong, f"attribute {key} of operator {name} is not declared", name)
    assert_forged(plan, wrong, tmp_path)
    with pytest.raises(Unsupported):
        runtime.worst(with_attr(replicas(), "load_batch", shuffle=True), 0)


@pytest.mark.parametrize("name", PLANS)
def test_its_twin_is_proved(name: str, tmp_path: Path) -> None:
    assert_checked(PLANS[name](), tmp_path)


def test_an_attribute_of_the_single_device_program_is_refused_too() -> None:
    plan = replicas()
    body = plan.single.bodies[0]
    ops = tuple(
        replace(op, attrs={"shuffle": True}) if op.name == "load_batch" else op for op in body.ops
    )
    single = replace(plan.single, bodies=(replace(body, ops=ops), *plan.single.bodies[1:]))
    found = verify(replace(plan, single=single))
    assert found.verdict == "inconclusive"
    assert "single-device plan: " in found.reason
    assert "attribute shuffle of operator load_batch is not declared" in found.reason


def test_what_a_reduction_is_by_default_may_be_said(tmp_path: Path) -> None:
    """On one rank and not on the other."""
    plan = rooted("reduce", axes=False)
    assert_checked(edit_op(plan, "reduce", attrs(op="sum")), tmp_path)


def test_dimensions_may_be_counted_from_either_end(tmp_path: Path) -> None:
    plan = parts()
    assert_checked(edit_op(plan, "all_gather", attrs(dim=-1)), tmp_path / "one")
    assert_checked(
        with_attr(with_attr(plan, "all_gather", dim=-1), "chunk", dim=-1), tmp_path / "both"
    )
    assert_refuted(edit_op(plan, "all_gather", attrs(dim=-2)), kind="collective mismatch")
    assert runtime.worst(edit_op(plan, "all_gather", attrs(dim=-1)), 0)[0] < 1e-12


MALFORMED: dict[str, tuple[Callable[[Op], Op], str]] = {
    "too few operands": (lambda op: replace(op, inputs=()), "has 0 operands, expected"),
    "too many operands": (lambda op: replace(op, inputs=op.inputs * 2), "has 2 operands, expected"),
    "a derivative": (lambda op: replace(op, backward=True), "has no derivative"),
}


@pytest.mark.parametrize("what", MALFORMED)
@pytest.mark.parametrize("name", ["send", "chunk", "all_gather", "reduce_scatter", "all_reduce"])
def test_what_has_other_operands_is_no_plan(name: str, what: str) -> None:
    change, says = MALFORMED[what]
    with pytest.raises(InvalidInput, match=f"operator [0-9]+: {name} .*{says}|{name} has") as error:
        verify(edit_op(PLANS[name](), name, change, body=_body_of(PLANS[name](), name)))
    assert says in str(error.value)


def _body_of(plan: Plan, name: str) -> str:
    bodies = plan.programs[0].bodies
    return next(body.name for body in bodies if any(op.name == name for op in body.ops))


@pytest.mark.parametrize(
    ("name", "outputs", "says"),
    [
        ("all_gather", (), "has 0 results, expected 1"),
        ("recv", (), "has 0 results, expected 1"),
        ("send", (0,), "has 1 results, expected 0"),
    ],
)
def test_what_has_other_results_is_no_plan(name: str, outputs: tuple[int, ...], says: str) -> None:
    plan = PLANS[name]()
    program = next(
        n
        for n, p in enumerate(plan.programs)
        if any(op.name == name for body in p.bodies for op in body.ops)
    )
    body = next(b for b in plan.programs[program].bodies if any(op.name == name for op in b.ops))
    spare = len(body.values)
    plan = edit_body(
        plan, program, body.name, lambda b: replace(b, values=(*b.values, Value((1,))))
    )
    changed = edit_op(
        plan,
        name,
        lambda op: replace(op, outputs=(spare,) if outputs else ()),
        body=body.name,
        program=program,
    )
    with pytest.raises(InvalidInput, match=says):
        verify(changed)


@pytest.mark.parametrize(
    ("name", "key", "value", "says"),
    [
        ("all_gather", "dim", True, "dim of all_gather should be a dimension, found True"),
        ("all_gather", "dim", "1", "should be a dimension, found '1'"),
        ("all_gather", "group", 3, "should be a group, found 3"),
        ("all_gather", "position", "first", "should be a position"),
        ("send", "peer", -1, "should be a rank, found -1"),
        ("all_reduce", "op", 1, "should be a reduction, found 1"),
        ("broadcast", "root", None, "should be a rank, found None"),
    ],
)
def test_an_attribute_of_another_kind_is_no_plan(
    name: str, key: str, value: Attr, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        verify(with_attr(PLANS[name](), name, **{key: value}))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("all_gather", "group"),
        ("all_gather", "dim"),
        ("chunk", "dim"),
        ("recv", "peer"),
        ("reduce", "root"),
    ],
)
def test_an_attribute_that_is_needed_is_missed(name: str, key: str) -> None:
    def without(op: Op) -> Op:
        return replace(op, attrs={k: v for k, v in op.attrs.items() if k != key})

    plan = PLANS[name]()
    program = 1 if name == "recv" else 0
    bodies = plan.programs[program].bodies
    body = next(b.name for b in bodies if any(op.name == name for op in b.ops))
    with pytest.raises(InvalidInput, match=f"{name} does not say its {key}"):
        verify(edit_op(plan, name, without, body=body, program=program))


def test_only_what_joins_in_order_has_positions() -> None:
    assert_inconclusive(
        with_attr(scattered(), "reduce_scatter", position=0),
        "attribute position of operator reduce_scatter is not declared",
    )
    plan = parts()
    for rank in (0, 1):
        plan = edit_op(plan, "all_gather", attrs(position=7 * rank), program=rank)
    assert_proved(plan)
    for rank in (0, 1):
        plan = edit_op(plan, "all_gather", attrs(position=-rank), program=rank)
    assert_refuted(plan, kind="mismatch", operator="all_gather")


def test_every_reduction_that_has_no_rule_is_named() -> None:
    sequence = PLANS["reduce_scatter"]()
    assert_inconclusive(with_attr(sequence, "reduce_scatter", op="max"), "reduce_scatter with max")
    assert_proved(with_attr(sequence, "reduce_scatter", op="sum"))


# -- groups
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all_gather", "chunk"])
@pytest.mark.parametrize("ranks", [(0, 0, 1), (0, 9), (1,)])
def test_a_group_that_is_none_is_refuted(name: str, ranks: tuple[int, ...]) -> None:
    plan = edit_op(parts(), name, attrs(group=Group(ranks=ranks)))
    assert_refuted(plan, kind="group", operator=name, ranks=(0,))


def test_ranks_are_in_order_however_they_are_listed(tmp_path: Path) -> None:
    assert_checked(parts(ranks=((1, 0), (0, 1))), tmp_path)


def mixed(name: str = "") -> Plan:
    """Two programs of two ranks each, with a quarter of the weights each, and the sum of all;
    ``name``: another collective over all four beside it, of what nobody reads."""

    def program(rank: int | None) -> Program:
        axes = () if rank is None else (("dp", 2, 2),)
        made = ProgramBuilder("single" if rank is None else f"rank {rank}", rank or 0, axes)
        width = 8 if rank is None else 2
        start = affine(4 * (rank or 0), {"dp": 2} if axes else {})
        shard = made.shard(Shard("w", (8,), (width,), (start,), trainable=False))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (1,), "float32"))
        y = body.sum(body.mul(body.parameter(shard), x))
        if rank is not None:
            group = Group(ranks=(0, 1), axes=("dp",))
            if name:
                spare = body.value((4,) if name == "all_gather" else (1,), "spare")
                body.append(name, [y], [spare], {"group": group, "dim": 0})
            y = body.all_reduce(y, group)
        body.loss(y)
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("mixed", program(None), (program(0), program(1)), 1)


def test_a_group_of_ranks_and_axes_is_refused_where_it_has_no_rule(tmp_path: Path) -> None:
    assert_inconclusive(
        mixed("all_gather"),
        "all_gather over explicit ranks and mesh axes together",
        "all_gather",
    )
    assert_inconclusive(mixed("chunk"), "chunk over explicit ranks and mesh axes together", "chunk")
    assert_checked(mixed(), tmp_path)


# -- chunks
# -----------------------------------------------------------------------------------------


def chunked(size: int, ranks: int) -> Plan:
    """Ranks take their chunk of a row and gather it again."""
    step = -(-size // ranks)

    def program(rank: int | None) -> Program:
        made = ProgramBuilder("single" if rank is None else f"rank {rank}", rank or 0)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (size,), "float32"))
        if rank is not None:
            group: dict[str, Attr] = {"group": Group(ranks=tuple(range(ranks))), "dim": 0}
            part = body.value((max(0, min(step, size - rank * step)),), "part")
            body.append("chunk", [x], [part], group)
            x = body.value((size,), "joined")
            body.append("all_gather", [part], [x], group)
        body.loss(body.sum(body.mul(x, x)))
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("chunked", program(None), tuple(program(r) for r in range(ranks)), 1)


def test_a_chunk_that_is_not_there_is_a_contradiction(tmp_path: Path) -> None:
    """torch.chunk makes three parts of five positions for four ranks."""
    assert_checked(chunked(7, 4), tmp_path)
    plan = chunked(5, 4)
    assert_refuted(
        plan, kind="chunk", operator="chunk", ranks=(3,), says="which are 3 chunks of at most 2"
    )
    with pytest.raises(Stuck):
        runtime.worst(plan, 0)


def test_of_nothing_everybody_has_an_empty_chunk() -> None:
    assert not unroll(chunked(0, 2).programs, 1).faults
    assert unroll(chunked(1, 2).programs, 1).faults


def test_what_is_changed_here_is_all_of_the_table() -> None:
    assert set(PLANS) | {"all_to_all", "post_recv"} == set(TABLE)
