"""Every way of changing a proved run that we could think of is rejected, by name.

The changes are made to what is stored, and everything is stored again with fresh digests: what
rejects them is the argument, not a checksum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from checker import check
from engine.affine import affine
from engine.conclusions import Conclusion
from engine.ir import Op, Plan
from engine.lineage import Atom, Lineage, Part, Token
from engine.unroll import Row

Change = Callable[[Any], Any]

# -- finding things in a run ------------------------------------------------------------------------


def rows(parts: Any, side: str = "parallel") -> Iterator[tuple[int, Row]]:
    return enumerate(parts.sides[side].rows)


def is_live(parts: Any, number: int, side: str = "parallel") -> bool:
    return any(s.live for s in parts.stages if s.side == side and s.row == number)


def output(parts: Any, wanted: Callable[[Row, Lineage], bool]) -> int:
    """The first output of a live row of the parallel side whose row and lineage are wanted."""
    for number, row in rows(parts):
        for value in row.outputs:
            lineage = parts.parallel[value]
            if lineage is not None and is_live(parts, number) and wanted(row, lineage):
                return value
    raise AssertionError("there is no such row")


def operator(name: str) -> Callable[[Row, Lineage], bool]:
    return lambda row, lineage: row.kind == "op" and row.name == name and not row.backward


def atom_of(lineage: Lineage, wanted: Callable[[Atom], bool]) -> Atom | None:
    atoms = [a for t in lineage.terms for d in t.layout.dims for a in d]
    return next((a for a in atoms if a.axis >= 0 and wanted(a)), None)


def with_term(lineage: Lineage, **changes: Any) -> Lineage:
    return lineage._replace(terms=(lineage.terms[0]._replace(**changes), *lineage.terms[1:]))


def with_atom(lineage: Lineage, old: Atom, **changes: Any) -> Lineage:
    term = lineage.terms[0]
    dims = tuple(
        tuple(a._replace(**changes) if a == old else a for a in dim) for dim in term.layout.dims
    )
    return with_term(lineage, layout=term.layout._replace(dims=dims))


def change_output(
    wanted: Callable[[Row, Lineage], bool], change: Callable[[Any, Lineage], Lineage | None]
) -> Change:
    def apply(parts: Any) -> None:
        value = output(parts, wanted)
        changed = change(parts, parts.parallel[value])
        assert changed != parts.parallel[value]
        parts.parallel[value] = changed

    return apply


def change_atom(
    wanted: Callable[[Row, Lineage], bool],
    which: Callable[[Atom], bool],
    change: Callable[[Atom], dict[str, Any]],
) -> Change:
    def apply(_: Any, lineage: Lineage) -> Lineage:
        atom = atom_of(lineage, which)
        assert atom is not None
        return with_atom(lineage, atom, **change(atom))

    return change_output(
        lambda row, x: wanted(row, x) and atom_of(x, which) is not None, apply
    )


def change_part(change: Callable[[Part], dict[str, Any]]) -> Change:
    def apply(_: Any, lineage: Lineage) -> Lineage:
        part = lineage.terms[0].parts[0]
        return with_term(
            lineage, parts=(part._replace(**change(part)), *lineage.terms[0].parts[1:])
        )

    return change_output(is_partial, apply)


def is_partial(row: Row, lineage: Lineage) -> bool:
    return row.kind == "op" and len(lineage.terms) == 1 and bool(lineage.terms[0].parts)


def change_node(kind: str, change: Callable[[int, Any], Any], which: int = 0) -> Change:
    def apply(parts: Any) -> None:
        numbers = [i for i, n in enumerate(parts.nodes.nodes) if n.kind == kind]
        number = numbers[which]
        parts.nodes.nodes[number] = change(number, parts.nodes.nodes[number])

    return apply


def change_stage(wanted: Callable[[Any, Any], bool], **changes: Any) -> Change:
    def apply(parts: Any) -> None:
        index = next(i for i, s in enumerate(parts.stages) if wanted(parts, s))
        parts.stages[index] = parts.stages[index]._replace(**changes)

    return apply


def claimed(parts: Any, stage: Any) -> bool:
    return stage.side == "parallel" and stage.template >= 0 and stage.live


def change_template(number: int, **changes: Any) -> Change:
    def apply(parts: Any) -> None:
        old = parts.templates[number]
        parts.templates[number] = old._replace(
            **{k: v(old) if callable(v) else v for k, v in changes.items()}
        )

    return apply


def swap_texts(parts: Any) -> None:
    a, b = parts.templates[3], parts.templates[4]
    assert a.linear != b.linear
    parts.templates[3] = a._replace(linear=b.linear, nonlinear=b.nonlinear)
    parts.templates[4] = b._replace(linear=a.linear, nonlinear=a.nonlinear)


def nonlinear(parts: Any) -> None:
    number = next(i for i, t in enumerate(parts.templates) if t.nonlinear)
    change_template(number, nonlinear=lambda t: t.nonlinear.replace(
        "(assert (not", "(assert false)\n(assert (not"
    ))(parts)


def drop_stage(parts: Any) -> None:
    parts.stages.remove(next(s for s in parts.stages if claimed(parts, s)))


def drop_all_reduce_stage(parts: Any) -> None:
    number = next(n for n, row in rows(parts) if row.kind == "all_reduce")
    parts.stages.remove(
        next(s for s in parts.stages if s.side == "parallel" and s.row == number)
    )


def repeat_stage(parts: Any) -> None:
    parts.stages.append(next(s for s in parts.stages if claimed(parts, s)))


def other_template(parts: Any) -> None:
    """A stage whose template has another example is given another template."""
    index = next(
        i for i, s in enumerate(parts.stages)
        if claimed(parts, s) and parts.templates[s.template].row != s.row
    )
    stage = parts.stages[index]
    other = next(
        i for i, t in enumerate(parts.templates)
        if t.linear != parts.templates[stage.template].linear
    )
    parts.stages[index] = stage._replace(template=other)


def extra_template(parts: Any) -> None:
    parts.templates.append(parts.templates[0])


def claim_on_shard(parts: Any) -> None:
    numbers = {n for n, row in rows(parts) if row.kind == "shard"}
    change_stage(lambda _, s: s.side == "parallel" and s.row in numbers, template=0)(parts)


def drop_conclusion(parts: Any) -> None:
    parts.conclusions.pop(3)


def repeat_conclusion(parts: Any) -> None:
    parts.conclusions.append(parts.conclusions[3])


def another_conclusion(parts: Any) -> None:
    parts.conclusions.append(Conclusion("gradient", "nothing", (0,), True, ""))


def rename_conclusion(parts: Any) -> None:
    parts.conclusions[-1] = parts.conclusions[-1]._replace(name="something")


def swap_inputs(parts: Any) -> None:
    """Two parameters of one shape change places."""
    seen: dict[tuple[int, ...], int] = {}
    nodes = parts.nodes.nodes
    for number, node in enumerate(nodes):
        if node.kind == "input" and "norm" in node.payload[0]:
            if node.extents in seen:
                other = seen[node.extents]
                nodes[number], nodes[other] = nodes[other], nodes[number]
                return
            seen[node.extents] = number
    raise AssertionError("no two parameters of one shape")


def swap_shards(atom: Atom) -> dict[str, Any]:
    """The tensor-parallel ranks change places."""
    (axis, step), = atom.start.terms
    assert axis == "tp"
    return {"start": affine(step, {"tp": -step})}


def is_shard(row: Row, lineage: Lineage) -> bool:
    return row.kind == "shard"


def self_reference(number: int, node: Any) -> Any:
    operands, outputs = node.payload
    return node._replace(payload=((operands[0]._replace(node=number), *operands[1:]), outputs))


def scale_addend(_: int, node: Any) -> Any:
    factors, operands, outputs = node.payload
    return node._replace(payload=((factors[0] * 3, *factors[1:]), operands, outputs))


def token(**changes: Any) -> Change:
    def apply(parts: Any) -> None:
        used = parts.parallel[output(parts, is_partial)].terms[0].parts[0].token
        parts.nodes.tokens[used] = parts.nodes.tokens[used]._replace(**changes)

    return apply


def part_of_a_sum(parts: Any) -> None:
    """A complete value called a part, so that its parts would add up to one of it."""
    value = output(parts, operator("add"))
    lineage = parts.parallel[value]
    node = lineage.terms[0].node
    assert parts.nodes.nodes[node].kind == "combine"
    parts.nodes.tokens.append(Token("sum", node, 0))
    part = Part(len(parts.nodes.tokens) - 1, affine(0), 1, 2)
    parts.parallel[value] = with_term(lineage, parts=(part,))


def other_node(parts: Any, lineage: Lineage) -> Lineage:
    """The lineage of another parameter's view of the same extents."""
    node = lineage.terms[0].node
    extents = parts.nodes.nodes[node].extents
    other = next(
        i for i, n in enumerate(parts.nodes.nodes)
        if i != node and n.extents == extents and n.kind == parts.nodes.nodes[node].kind
    )
    return with_term(lineage, node=other)


def frozen(axis: str) -> Change:
    """What every replica (microbatch) has of its own is called the second one's of all."""
    return change_atom(
        operator("add"),
        lambda a: a.start.coefficient(axis) != 0,
        lambda a: {"start": a.start.fix(axis, 1)},
    )


# -- changing the plan ------------------------------------------------------------------------------


def change_plan(change: Callable[[Plan], Plan]) -> Change:
    def apply(parts: Any) -> Any:
        return parts.copy(plan=change(parts.plan))

    return apply


def edit_op(plan: Plan, name: str, change: Callable[[Op], Op], *, last: bool = False) -> Plan:
    """The plan with the first (last) operator of a name changed on its first ranks."""
    program = plan.programs[0]
    places = [
        (b, i) for b, body in enumerate(program.bodies) for i, op in enumerate(body.ops)
        if op.name == name
    ]
    b, i = places[-1 if last else 0]
    body = program.bodies[b]
    ops = (*body.ops[:i], change(body.ops[i]), *body.ops[i + 1 :])
    bodies = (*program.bodies[:b], replace(body, ops=ops), *program.bodies[b + 1 :])
    return replace(plan, programs=(replace(program, bodies=bodies), *plan.programs[1:]))


def without_reduction(plan: Plan, *, last: bool = False) -> Plan:
    return edit_op(
        plan, "all_reduce", lambda op: Op("identity", op.inputs, op.outputs, {}), last=last
    )


def without_last_reduction(plan: Plan) -> Plan:
    return without_reduction(plan, last=True)


def shift_shard(plan: Plan) -> Plan:
    """A rank holds another slice of a parameter."""
    program = plan.programs[0]
    shards = list(program.shards)
    number = next(i for i, s in enumerate(shards) if any(o.terms for o in s.offset))
    shard = shards[number]
    offset = tuple(
        affine(step, {"tp": -step}) if (step := o.coefficient("tp")) else o for o in shard.offset
    )
    shards[number] = replace(shard, offset=offset)
    return replace(plan, programs=(replace(program, shards=tuple(shards)), *plan.programs[1:]))


TAMPERINGS: dict[str, tuple[Change, str]] = {
    # texts
    "a text that is false by itself": (
        change_template(5, linear=lambda t: t.linear.replace(
            "(assert (not", "(assert false)\n(assert (not")),
        r"its obligation, stated again, is not the text of template 5"),
    "a text with another goal": (
        change_template(7, linear="(set-logic QF_UFLRA)\n(assert false)\n(check-sat)\n"),
        r"its obligation, stated again, is not the text of template 7"),
    "the text of the second rung": (nonlinear, r"is not the text of template \d+"),
    "two texts swapped": (swap_texts, r"is not the text of template 3"),
    # stages
    "a stage dropped": (drop_stage, r"rank 0: .* is in no stage"),
    "a reduction dropped": (drop_all_reduce_stage, r"rank 0: all_reduce .*is in no stage"),
    "a stage twice": (repeat_stage, r"rank 0: .* is in two stages"),
    "a stage with another template": (other_template, r"rank \d: .* is not the text of template"),
    "a stage of another row": (
        change_stage(claimed, row=10**6), r"a stage for row 1000000 of the parallel side"),
    "a live stage called dead": (
        change_stage(claimed, live=False), r"is called dead, but a conclusion depends on it"),
    "a stage without a template": (
        change_stage(claimed, template=-1), r"has no obligation, but a conclusion depends on it"),
    "a stage with a problem": (
        change_stage(claimed, template=-1, problem="too large"), r"has no obligation: too large"),
    "an assumption with a template": (claim_on_shard, r"has a template, but it claims nothing"),
    "an extra template": (extra_template, r"template \d+ is not the claim of row"),
    "a template of another row": (
        change_template(5, row=0), r"template 5 is not the claim of row 0"),
    "a template of another side": (
        change_template(5, side="parallel"), r"template 5 is not the claim of row"),
    # boxes
    "a widened box": (
        change_atom(operator("linear"), lambda a: a.size > 2, lambda a: {"size": a.size + 1}),
        r"rank 0: .*: atoms of sizes \[\d+\] for a dimension of \d+"),
    "a shifted box": (
        change_atom(operator("linear"), lambda a: a.start.coefficient("tp") != 0,
                    lambda a: {"start": affine(a.size, {"tp": -a.size})}),
        r"rank 0: .*(is not the text of template|cannot be stated)"),
    "a box that leaves its axis": (
        change_atom(operator("linear"), lambda a: not a.full,
                    lambda a: {"start": a.start + a.extent}),
        r"rank 0: .* is not inside \[0, \d+\)"),
    "a box at another stride": (
        change_atom(operator("linear"), lambda a: a.full, lambda a: {"stride": 2}),
        r"rank 0: .*stride 2 over \d+ positions of an axis of \d+"),
    "a box of another axis": (
        change_atom(operator("linear"), lambda a: True, lambda a: {"axis": 9}),
        r"rank 0: .*axis 9 of a node with \d+"),
    "a box over an axis of the mesh that is not there": (
        change_atom(operator("linear"), lambda a: a.full and a.size > 1,
                    lambda a: {"start": affine(0, {"ep": 1})}),
        r"rank 0: .*is over the axis ep, which does not exist here"),
    "a replica's box for all replicas": (frozen("dp"), r"rank 0: .*(template|is sat|stated)"),
    "a microbatch's box for all": (frozen("mb"), r"rank 0: .*(template|is sat|stated)"),
    # terms
    "a term left out": (
        change_output(operator("linear"), lambda _, x: x._replace(terms=())),
        r"rank 0: linear .*(is not the text of template|cannot be stated)"),
    "a term twice": (
        change_output(operator("linear"), lambda _, x: x._replace(terms=x.terms * 2)),
        r"rank 0: linear .*(is not the text of template|cannot be stated)"),
    "another factor": (
        change_output(operator("linear"), lambda _, x: with_term(x, factor=Fraction(2))),
        r"rank 0: linear .* is not the text of template"),
    "another node": (
        change_output(operator("linear"), other_node),
        r"rank 0: linear .*(is not the text of template|cannot be stated)"),
    "a lineage left out": (
        change_output(operator("linear"), lambda _, x: None),
        r"has a template, but a tensor of it has no lineage"),
    "a lineage of another shape": (
        change_output(operator("linear"), lambda _, x: x._replace(shape=(*x.shape, 1))),
        r"has shape \[.*\], its lineage \[.*\]"),
    # partial sums
    "a part of another interval": (
        change_part(lambda p: {"start": affine(0)}), r"rank 0: .*(template|is sat|stated)"),
    "a part that leaves its range": (
        change_part(lambda p: {"size": p.extent + 1}), r"is not inside \[0, \d+\)"),
    "a part of another range": (
        change_part(lambda p: {"extent": p.extent * 2}), r"a part of \d+ positions, \d+ are"),
    "a partial sum called complete": (
        change_output(is_partial, lambda _, x: with_term(x, parts=())),
        r"rank 0: .*(template|stated)"),
    "a part of another sum": (
        token(where=77), r"label 77 is not reduced"),
    "a part of another node": (token(node=0), r"a part of node 0"),
    "a part of what is not summed": (part_of_a_sum, r"a partial sum of a node of kind combine"),
    "a partial sum called a maximum": (token(kind="max"), r"a partial max of a node of kind"),
    # nodes
    "a node of itself": (
        change_node("einsum", self_reference), r"is defined by node \d+, which is not before it"),
    "another number in a definition": (
        change_node("combine", scale_addend), r"is not the text of template"),
    "another function": (
        change_node("unary", lambda _, n: n._replace(payload=("tanh", *n.payload[1:]))),
        r"is not the text of template"),
    "an unknown function": (
        change_node("unary", lambda _, n: n._replace(payload=("magic", *n.payload[1:]))),
        r"there is no function magic"),
    "other extents": (
        change_node("einsum", lambda _, n: n._replace(
            extents=(n.extents[0] + 1, *n.extents[1:]))),
        r"has extents \[.*\], its definition \[.*\]"),
    "other coordinates": (
        change_node("einsum", lambda _, n: n._replace(coordinates=frozenset({"tp"}))),
        r"depends on \[\], stored are \['tp'\]"),
    "an input that does not exist": (
        change_node("input", lambda _, n: n._replace(payload=("nothing",))),
        r"the plan has no input nothing"),
    "two inputs swapped": (swap_inputs, r"is not what the plan says"),
    # assumptions
    "tensor-parallel shards swapped": (
        change_atom(is_shard, lambda a: a.start.coefficient("tp") != 0, swap_shards),
        r"rank 0: shard .*: the lineage of .* is not what the plan says"),
    "a scaled parameter": (
        change_output(is_shard, lambda _, x: with_term(x, factor=Fraction(1, 2))),
        r"rank 0: shard .*: the lineage of .* is not what the plan says"),
    "another parameter": (
        change_output(is_shard, other_node),
        r"rank 0: shard .*: the lineage of .* is not what the plan says"),
    "another slice of the batch": (
        change_atom(lambda row, _: row.kind == "load", lambda a: bool(a.start.terms),
                    lambda a: {"start": affine(0, {"dp": a.size, "mb": 2 * a.size})}),
        r"rank 0: load .*: the lineage of .* is not what the plan says"),
    "another share of the loss": (
        change_output(lambda row, _: row.kind == "seed",
                      lambda _, x: with_term(x, factor=Fraction(1, 3))),
        r"rank 0: seed .*: the lineage of loss gradient is not what the plan says"),
    # conclusions
    "a conclusion dropped": (drop_conclusion, r"is missing from the run, or another"),
    "a conclusion twice": (repeat_conclusion, r"a conclusion is listed twice"),
    "a conclusion of nothing": (another_conclusion, r"gradient nothing .* is not a conclusion of"),
    "a conclusion of another name": (rename_conclusion, r"something .*is not a conclusion of"),
    # the plan
    "a reduction that is none": (
        change_plan(without_reduction),
        r"(is not the text of template|cannot be stated|is not the claim|in no stage)"),
    "a last reduction that is none": (
        change_plan(without_last_reduction),
        r"(is not the text of template|cannot be stated|is not the claim|in no stage)"),
    "another mean": (
        change_plan(lambda plan: replace(plan, loss="mean" if plan.loss == "sum" else "sum")),
        r"is not what the plan says"),
    "more microbatches": (
        change_plan(lambda plan: replace(plan, microbatches=4)), r"."),
    "other replicas": (
        change_plan(lambda plan: replace(plan, replica_axes=())), r"is not what the plan says"),
    "another shard": (change_plan(shift_shard), r"is not what the plan says"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_changed_run_is_rejected_by_name(name: str, proved: Any, tmp_path: Path) -> None:
    change, message = TAMPERINGS[name]
    parts = proved.copy()
    parts = change(parts) or parts
    parts.store(tmp_path)
    found = check(tmp_path)
    assert not found.ok
    messages = [str(problem) for problem in found.problems]
    assert any(re.search(message, line) for line in messages), messages


def test_the_run_as_it_was_is_accepted(proved: Any, tmp_path: Path) -> None:
    proved.copy().store(tmp_path)
    found = check(tmp_path)
    assert found.problems == ()
    assert found.ok
    assert found.verdict == "proved"


def test_a_thorough_check_says_the_same(proved: Any, tmp_path: Path) -> None:
    proved.copy().store(tmp_path)
    found = check(tmp_path, thorough=True)
    assert found.problems == ()
    assert found.counts["rebuilt"] > check(tmp_path).counts["rebuilt"]


def test_a_proved_run_is_not_refuted(proved: Any, tmp_path: Path) -> None:
    proved.copy(verdict="refuted").store(tmp_path)
    found = check(tmp_path)
    assert [p.message for p in found.problems] == [
        "the certificate says refuted, but everything is proved"
    ]


def test_a_weaker_verdict_stands(proved: Any, tmp_path: Path) -> None:
    proved.copy(verdict="inconclusive").store(tmp_path)
    assert check(tmp_path).ok


# -- pipelines --------------------------------------------------------------------------------------


def test_a_pipelined_run_is_accepted(pipelined: Any, tmp_path: Path) -> None:
    pipelined.copy().store(tmp_path)
    assert check(tmp_path).problems == ()


def test_a_received_value_is_its_source(pipelined: Any, tmp_path: Path) -> None:
    parts = pipelined.copy()
    change_output(
        lambda row, _: row.kind == "recv", lambda _, x: with_term(x, factor=Fraction(2))
    )(parts)
    parts.store(tmp_path)
    messages = [p.message for p in check(tmp_path).problems]
    assert any("recv" in m and "is not its source's" in m for m in messages), messages


# -- refuted runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refuted(proved: Any, make_parts: Callable[..., Any]) -> Any:
    return make_parts(without_last_reduction(proved.plan), "refuted")


def test_a_refuted_run_is_accepted(refuted: Any, tmp_path: Path) -> None:
    refuted.copy().store(tmp_path)
    found = check(tmp_path)
    assert found.ok
    assert {p.kind for p in found.problems} == {"unproved"}


def test_a_refuted_run_is_not_proved(refuted: Any, tmp_path: Path) -> None:
    refuted.copy(verdict="proved").store(tmp_path)
    found = check(tmp_path)
    assert not found.ok
    assert any("a reduction is missing" in p.message for p in found.problems), found.problems


def test_a_failed_conclusion_cannot_be_called_held(refuted: Any, tmp_path: Path) -> None:
    parts = refuted.copy(verdict="proved")
    parts.conclusions[:] = [c._replace(holds=True, message="") for c in parts.conclusions]
    parts.store(tmp_path)
    kinds = {p.kind for p in check(tmp_path).problems}
    assert {"unproved", "conclusion"} <= kinds


def test_a_failed_gradient_cannot_be_given_the_right_lineage(refuted: Any, tmp_path: Path) -> None:
    """Whoever writes the expected lineages over the wrong gradients makes the last step false."""
    parts = refuted.copy(verdict="proved")
    unrolled = parts.sides["parallel"]
    for conclusion in parts.conclusions:
        if not conclusion.holds and conclusion.value >= 0:
            lineage = parts.parallel[conclusion.value]
            parts.parallel[conclusion.value] = with_term(lineage, parts=())
    assert len(unrolled.tensors) == len(parts.parallel)
    parts.conclusions[:] = [c._replace(holds=True, message="") for c in parts.conclusions]
    parts.store(tmp_path)
    found = check(tmp_path)
    assert not found.ok
    assert any(p.kind in ("obligation", "unproved", "solver") for p in found.problems)
