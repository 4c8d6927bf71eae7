"""Divided gradients, positions, experts and layers: each in the wrong piece, beside the right one.

Sizes of different axes coincide wherever they can, so that nothing is told apart by its size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import Body, Plan, Program
from shardproof.engine.reference_runtime import compare as runtime
from shardproof.frontends.zoo import build
from shardproof.mutation.edit import Draft
from tests.faults.plans import assert_proved, edit_body, edit_program, edit_shard, verify

SIZES = {"hidden": 8, "heads": 4, "kv_heads": 4, "ffn": 8, "vocabulary": 8}
SCATTERS = {1: "reducer", 2: "backward", 3: "backward"}


@functools.cache
def zero(stage: int) -> Plan:
    return build("llama3-8b", layers=1, sequence=8, dp=2, zero=stage, microbatches=2, **SIZES)


@functools.cache
def context() -> Plan:
    return build("llama3-8b", layers=1, sequence=8, tp=2, cp=2, sequence_parallel=True, **SIZES)


@functools.cache
def experts() -> Plan:
    settings = {"experts": 4, "chosen": 2, "dp": 4, "ep": 2, "microbatches": 2}
    return build("mixtral-8x7b", layers=1, sequence=4, **settings, **SIZES)


@functools.cache
def virtual() -> Plan:
    settings = {"pp": 2, "virtual_stages": 2, "microbatches": 2}
    return build("llama3-8b", layers=4, sequence=8, **settings, **SIZES)


def assert_wrong(plan: Plan) -> None:
    """Assert that a plan is refuted, and that running its ranks one by one shows why."""
    assert runtime.worst(plan, 0)[0] > 1e-3
    assert verify(plan).verdict == "refuted"


def assert_right(plan: Plan) -> None:
    assert runtime.worst(plan, 0)[0] < 1e-9
    assert_proved(plan)


# -- edits -----------------------------------------------------------------------------------------


def numbers(body: Body, name: str, layer: str = "") -> list[int]:
    return [i for i, op in enumerate(body.ops) if op.name == name and layer in op.source.module]


def halves_exchanged(body: Body, value: int, reader: int, dim: int) -> Body:
    """Operator ``reader`` gets a value with the halves of a dimension exchanged."""
    draft = Draft(body)
    shape = draft.shape(value)
    half = shape[dim] // 2
    parts = [draft.value(value, (*shape[:dim], half, *shape[dim + 1 :])) for _ in range(2)]
    joined = draft.value(value)
    inputs = tuple(joined if v == value else v for v in body.ops[reader].inputs)
    draft.change(reader, inputs=inputs)
    for i, part in enumerate(parts):
        draft.add(reader + i, "slice", [value], part, {"dim": dim, "start": i * half, "size": half})
    draft.add(reader + 2, "concat", parts[::-1], joined, {"dim": dim})
    return draft.built()


def rolled(body: Body, number: int, dim: int) -> Body:
    """All readers of an operator's result get it with the halves of a dimension exchanged."""
    (value,) = body.ops[number].outputs
    for reader in reversed([i for i, op in enumerate(body.ops) if value in op.inputs]):
        body = halves_exchanged(body, value, reader, dim)
    return body


def scatter_as(body: Body, number: int, start: Affine, reduction: str = "all_reduce") -> Body:
    """A reduce-scatter as an all-reduce (or twice the rank's own), and the slice from ``start``."""
    op = body.ops[number]
    draft = Draft(body)
    whole = draft.value(op.inputs[0])
    dim = op.attrs["dim"]
    assert isinstance(dim, int)
    attrs = {"group": op.attrs["group"], "op": "sum"}
    if reduction == "mul":
        attrs = {"other": Fraction(2)}
    draft.change(number, name=reduction, outputs=(whole,), attrs=attrs)
    size = draft.shape(op.outputs[0])[dim]
    cut = {"dim": dim, "start": start * size, "size": size}
    draft.add(number + 1, "slice", [whole], op.outputs[0], cut)
    return draft.built()


OWN, OTHER, FIRST = affine(0, {"dp": 1}), affine(1, {"dp": -1}), affine(0)


# -- ZeRO ------------------------------------------------------------------------------------------


def scattered(stage: int, start: Affine, reduction: str = "all_reduce") -> Plan:
    def change(body: Body) -> Body:
        return scatter_as(body, numbers(body, "reduce_scatter")[1], start, reduction)

    return edit_body(zero(stage), 0, SCATTERS[stage], change)


@pytest.mark.parametrize(
    "stage", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_a_rank_keeps_its_own_part_of_a_gradient(stage: int) -> None:
    assert_right(scattered(stage, OWN))
    assert_wrong(scattered(stage, OTHER))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_rank_keeps_no_part_that_is_not_reduced_or_not_its_own(stage: int) -> None:
    assert_right(zero(stage))
    assert_wrong(scattered(stage, FIRST))
    assert_wrong(scattered(stage, OWN, "mul"))


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_part_that_is_updated_is_the_one_whose_gradient_is_kept(stage: int) -> None:
    name = "layers.0.attention.wq.weight"

    def change(program: Program) -> Program:
        shards = list(program.shards)
        for n, shard in enumerate(shards):
            if shard.name == name and shard.updated_as < 0:
                offset = tuple(
                    affine(o.const + sum(c for _, c in o.terms), {a: -c for a, c in o.terms})
                    for o in shard.offset
                )
                shards[n] = replace(shard, offset=offset)
        return replace(program, shards=tuple(shards))

    assert_wrong(edit_program(zero(stage), 0, change))


@pytest.mark.parametrize("name", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
def test_parts_of_a_parameter_are_gathered_in_order(name: str) -> None:
    def change(body: Body) -> Body:
        number = numbers(body, "all_gather", "attention")[0]
        dim = body.ops[number].attrs["dim"]
        assert isinstance(dim, int)
        return rolled(body, number, dim)

    assert_wrong(edit_body(zero(3), 0, name, change))


# -- context ---------------------------------------------------------------------------------------


def test_keys_and_values_in_another_order_are_behind_the_wrong_mask() -> None:
    """Both are exchanged alike: without a mask that would make no difference."""

    def change(body: Body) -> Body:
        for number in reversed(numbers(body, "all_gather", "attention")):
            if getattr(body.ops[number].attrs["group"], "axes", ()) == ("cp",):
                body = rolled(body, number, 1)
        return body

    assert_wrong(edit_body(context(), 0, "forward", change))


def masked(start: Affine) -> Plan:
    """The rows of the mask from ``start`` blocks on."""

    def change(body: Body) -> Body:
        (number,) = numbers(body, "chunk", "attention")
        draft = Draft(body)
        size = draft.shape(body.ops[number].outputs[0])[2]
        draft.change(number, name="slice", attrs={"dim": 2, "start": start * size, "size": size})
        return draft.built()

    return edit_body(context(), 0, "forward", change)


def test_rows_of_the_mask_are_those_of_the_ranks_positions() -> None:
    assert_right(masked(affine(0, {"cp": 1})))
    assert_wrong(masked(affine(1, {"cp": -1})))


@pytest.mark.slow
@pytest.mark.parametrize("start", [affine(0), affine(4, {"cp": -4})])
def test_rotary_frequencies_are_those_of_the_ranks_positions(start: Affine) -> None:
    assert_wrong(
        edit_shard(context(), 0, "freqs_cis", lambda s: replace(s, offset=(start, *s.offset[1:])))
    )


# -- experts ---------------------------------------------------------------------------------------


def test_tokens_weigh_experts_by_their_own_weights() -> None:
    def change(body: Body) -> Body:
        (number,) = numbers(body, "combine_experts")
        return halves_exchanged(body, body.ops[number].inputs[1], number, 1)

    assert_wrong(edit_body(experts(), 0, "forward", change))


@pytest.mark.parametrize(
    "names", [("w1", "w2", "w3"), pytest.param(("w2",), marks=pytest.mark.slow)]
)
def test_tokens_go_to_the_rank_that_has_their_experts(names: tuple[str, ...]) -> None:
    plan = experts()
    for name in names:
        plan = edit_shard(
            plan,
            0,
            f"layers.0.feed_forward.experts.{name}",
            lambda s: replace(s, offset=(affine(2, {"ep": -2}), *s.offset[1:])),
        )
    assert_wrong(plan)


@pytest.mark.slow
@pytest.mark.parametrize(("which", "dim"), [(0, 0), (0, 1), (1, 0)])
def test_what_is_exchanged_between_experts_is_in_order(which: int, dim: int) -> None:
    assert_right(experts())

    def change(body: Body) -> Body:
        return rolled(body, numbers(body, "all_to_all")[which], dim)

    assert_wrong(edit_body(experts(), 0, "forward", change))


# -- virtual stages --------------------------------------------------------------------------------

Exchange = tuple[int, str, str]


@pytest.mark.parametrize(
    "exchanges",
    [
        ((0, "layers.0", "layers.2"), (1, "layers.1", "layers.3")),
        pytest.param(((0, "layers.0", "layers.2"),), marks=pytest.mark.slow),
        pytest.param(
            ((0, "layers.0", "layers.1"), (1, "layers.1", "layers.0")), marks=pytest.mark.slow
        ),
    ],
)
def test_layers_are_in_their_virtual_stage(exchanges: tuple[Exchange, ...]) -> None:
    plan = virtual()
    for number, one, other in exchanges:
        plan = edit_program(plan, number, _exchanged(one, other))
    assert_wrong(plan)


def _exchanged(one: str, other: str) -> Callable[[Program], Program]:
    def renamed(name: str) -> str:
        for old, new in ((one, other), (other, one)):
            if name.startswith(old + "."):
                return new + name[len(old) :]
        return name

    def change(program: Program) -> Program:
        shards = tuple(replace(s, name=renamed(s.name)) for s in program.shards)
        return replace(program, shards=shards)

    return change


@pytest.mark.slow
def test_virtual_stages_in_order_are_proved() -> None:
    assert_right(virtual())
