"""The zoo's plans: true sizes, sound structure, and the same lineages on both sides."""

from __future__ import annotations

import dataclasses
from collections import Counter
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.ir import Body, Group, Op, Plan, Program
from shardproof.engine.plan_files.wellformed import check
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.frontends.zoo import (
    MODELS,
    PARALLELS,
    ProgramBuilder,
    along,
    build,
    parallelization,
)
from shardproof.frontends.zoo.config import Parallel
from shardproof.partition.inference.references import reference
from shardproof.partition.inference.trace import Trace, Tracer

TINY: dict[str, Any] = {
    "layers": 2,
    "hidden": 32,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 64,
    "vocabulary": 96,
    "sequence": 8,
}
LAYOUTS: list[dict[str, Any]] = [
    {"dp": 1, "tp": 1, "pp": 1, "microbatches": 1},
    {"dp": 2, "tp": 1, "pp": 1, "microbatches": 1},
    {"dp": 1, "tp": 2, "pp": 1, "microbatches": 1},
    {"dp": 1, "tp": 1, "pp": 2, "microbatches": 4},
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2},
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2, "sequence_parallel": True},
    {"dp": 1, "tp": 2, "pp": 1, "microbatches": 1, "sequence_parallel": True},
    {"dp": 3, "tp": 2, "pp": 4, "microbatches": 5, "layers": 6, "microbatch_size": 2},
]


def tiny(**changes: Any) -> Plan:
    return build("llama3-8b", **{**TINY, "dp": 1, "tp": 1, "pp": 1, "microbatches": 1, **changes})


def sound(programs: tuple[Program, ...], microbatches: int) -> Unrolled:
    unrolled = unroll(programs, microbatches)
    assert unrolled.faults == []
    assert unrolled.findings == []
    assert unrolled.symbolic
    return unrolled


def lineages(plan: Plan) -> tuple[Unrolled, Trace, Unrolled, Trace]:
    single, parallel = sound((plan.single,), 1), sound(plan.programs, plan.microbatches)
    table, known = NodeTable(), reference(plan.single, single)
    traces = [
        Tracer(plan, programs, table, known).run(unrolled)
        for programs, unrolled in (((plan.single,), single), (plan.programs, parallel))
    ]
    assert [t.findings for t in traces] == [[], []]
    return single, traces[0], parallel, traces[1]


def same_value(parallel: Lineage | None, single: Lineage | None) -> bool:
    """Whether both are views of one node with one factor (whatever part each rank has)."""
    if parallel is None or single is None:
        return False
    if len(parallel.addends) != 1 or len(single.addends) != 1:
        return False
    a, b = parallel.addends[0], single.addends[0]
    return (a.node, a.factor) == (b.node, b.factor)


def unequal_gradients(plan: Plan) -> list[str]:
    """Parameters whose final gradient on some rank is not the single-device one."""
    single, reference_trace, parallel, trace = lineages(plan)
    expected = {
        plan.single.shards[shard].name: reference_trace.lineages[value]
        for _, shard, value in single.gradients
    }
    wrong = []
    for program, shard, value in parallel.gradients:
        name = plan.programs[program].shards[shard].name
        found = trace.lineages[value]
        complete = found is not None and not any(addend.partials for addend in found.addends)
        if not complete or not same_value(found, expected[name]):
            wrong.append(name)
    return wrong


# -- the parallel plans compute what the single-device plan computes -------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_losses_and_gradients_of_both_sides_are_the_same_values(layout: dict[str, Any]) -> None:
    plan = tiny(**layout)
    check(plan)
    single, reference_trace, parallel, trace = lineages(plan)
    ((_, _, expected),) = single.losses
    ((_, _, found),) = parallel.losses
    assert same_value(trace.lineages[found], reference_trace.lineages[expected])
    assert unequal_gradients(plan) == []
    trainable = [s for p in plan.programs for s in p.shards if s.trainable]
    assert len(parallel.gradients) == len(trainable)
    assert len(single.gradients) == len([s for s in plan.single.shards if s.trainable])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_shards_cover_every_parameter(layout: dict[str, Any]) -> None:
    plan = tiny(**layout)
    held: Counter[str] = Counter()
    for program in plan.programs:
        for shard in program.shards:
            copies = program.ranks
            for axis in {axis for start in shard.offset for axis in start.axes}:
                copies //= program.extents[axis]
            held[shard.name] += program.ranks // copies * prod(shard.shape)
    stages = len(plan.programs)
    assert held == {
        s.name: prod(s.full_shape) * (stages if s.name == "freqs_cis" else 1)
        for s in plan.single.shards
    }


def edit(plan: Plan, program: int, body: int, change: Any) -> Plan:
    """The plan with one body of one program changed."""
    programs = list(plan.programs)
    bodies = list(programs[program].bodies)
    bodies[body] = change(bodies[body])
    programs[program] = dataclasses.replace(programs[program], bodies=tuple(bodies))
    return dataclasses.replace(plan, programs=tuple(programs))


def without_all_reduce(axis: str, last: bool = False) -> Any:
    def change(body: Body) -> Body:
        numbers = [
            i
            for i, op in enumerate(body.ops)
            if op.name == "all_reduce" and op.attrs["group"] == Group(axes=(axis,))
        ]
        number = numbers[-1 if last else 0]
        op = body.ops[number]
        ops = list(body.ops)
        ops[number] = Op("identity", op.inputs, op.outputs, {}, source=op.source)
        return dataclasses.replace(body, ops=tuple(ops))

    return change


@pytest.mark.parametrize(
    ("body", "axis", "last"), [(0, "tp", False), (1, "tp", True), (2, "dp", False), (2, "dp", True)]
)
def test_a_missing_all_reduce_changes_gradients(body: int, axis: str, last: bool) -> None:
    plan = tiny(dp=2, tp=2)
    assert unequal_gradients(plan) == []
    assert unequal_gradients(edit(plan, 0, body, without_all_reduce(axis, last))) != []


def test_sequence_parallel_norm_gradients_are_reduced_over_tp() -> None:
    plan = tiny(tp=2, sequence_parallel=True)
    reducer = plan.programs[0].bodies[2]
    names = [plan.programs[0].shards[shard].name for _, _, shard in reducer.reduced]
    assert names == [
        f"layers.{i}.{n}.weight" for i in range(2) for n in ("attention_norm", "ffn_norm")
    ] + ["norm.weight"]
    broken = edit(plan, 0, 2, without_all_reduce("tp", last=True))
    assert unequal_gradients(broken) == ["norm.weight"]


@pytest.mark.parametrize(("body", "backward"), [(0, False), (1, True)])
def test_a_wrong_loss_factor_changes_the_loss_or_every_gradient(body: int, backward: bool) -> None:
    def halve(body: Body) -> Body:
        ops = [
            dataclasses.replace(op, attrs={**op.attrs, "other": op.attrs["other"] / 2})  # type: ignore[operator]
            if op.name == "mul" and "other" in op.attrs
            else op
            for op in body.ops
        ]
        return dataclasses.replace(body, ops=tuple(ops))

    plan = edit(tiny(dp=2), 0, body, halve)
    single, reference_trace, parallel, trace = lineages(plan)
    found = trace.lineages[parallel.losses[0][2]]
    expected = reference_trace.lineages[single.losses[0][2]]
    assert same_value(found, expected) is backward
    trainable = [s.name for s in plan.single.shards if s.trainable]
    assert sorted(unequal_gradients(plan)) == (sorted(trainable) if backward else [])


# -- what is in the plans --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        ("llama3-8b", 32, 8_030_261_248),
        ("llama3-70b", 80, 70_553_706_496),
        ("llama3-405b", 126, 405_853_388_800),
    ],
)
def test_models_have_their_true_number_of_parameters(
    name: str, layers: int, parameters: int
) -> None:
    plan = build(name, dp=1, tp=1, pp=1, microbatches=1)
    assert sum(prod(s.full_shape) for s in plan.single.shards if s.trainable) == parameters
    assert sum(s.name.endswith("wq.weight") for s in plan.single.shards) == layers
    (frequencies,) = [s for s in plan.single.shards if not s.trainable]
    assert (frequencies.name, frequencies.full_shape) == ("freqs_cis", (8192, 64, 2))
    assert all(
        op.attrs["eps"] == Fraction(1, 100000)
        for op in plan.single.bodies[0].ops
        if op.name == "rms_norm"
    )


def test_gpt3_has_its_true_number_of_parameters() -> None:
    plan = build("gpt3-175b")
    held = sum(prod(s.full_shape) for s in plan.single.shards)
    layers, h, vocabulary, sequence = 96, 12288, 51200, 2048
    layer = 4 * (h * h + h) + (4 * h * h + 4 * h) + (4 * h * h + h) + 4 * h
    assert held == layers * layer + (vocabulary + sequence) * h + 2 * h
    assert round(held / 1e9, 1) == 174.6


def test_a_model_and_a_parallelization_may_be_files(tmp_path: Path) -> None:
    text = MODELS["llama3-8b"].read_text().replace("layers = 32", "layers = 3")
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "ways.toml").write_text("dp = 2\nsequence_parallel = true\ntp = 4\n")
    settings = parallelization(str(tmp_path / "ways.toml"))
    plan = build(str(tmp_path / "mine.toml"), **settings)
    assert plan.name == "mine dp2 tp4 pp1 mb1 sp"
    assert len([s for s in plan.single.shards if s.name.endswith("wq.weight")]) == 3
    assert parallelization("l3") == {"dp": 64, "tp": 8, "pp": 16, "microbatches": 16}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("architecture = 'mamba'", "architecture 'mamba' is not known; known are "),
        (
            "architecture = 'llama'\nlayers = 2",
            "hidden: is missing, expected an integer of at least 1",
        ),
        ("layers = [", "is no TOML: "),
    ],
)
def test_a_wrong_model_file_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InvalidInput, match=message) as error:
        build(str(tmp_path / "mine.toml"))
    assert str(tmp_path / "mine.toml") in str(error.value)


def test_every_named_parallelization_is_one() -> None:
    assert {"l1", "l2", "l3", "d1", "d2", "d3"} <= PARALLELS.keys()
    for name in PARALLELS:
        Parallel(**parallelization(name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ranks = 3", "ranks: not a key here; known are dp, tp, pp, microbatches, "),
        ("dp = '3'", "dp: expected an integer of at least 1, found '3'"),
    ],
)
def test_a_wrong_parallelization_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "ways.toml").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        parallelization(str(tmp_path / "ways.toml"))


def test_the_full_405b_plan_is_sound() -> None:
    plan = build("llama3-405b", dp=64, tp=8, pp=16, microbatches=16)
    check(plan)
    assert plan.ranks == 8192
    layers = [sum(s.name.endswith("wq.weight") for s in p.shards) for p in plan.programs]
    assert layers == [8] * 14 + [7] * 2
    assert [p.base for p in plan.programs] == [512 * s for s in range(16)]
    assert {p.axes for p in plan.programs} == {(("dp", 64, 8), ("tp", 8, 1))}
    assert sound(plan.programs, plan.microbatches).total == sum(
        512 * 16 * (len(p.bodies[0].ops) + len(p.bodies[1].ops)) + 512 * len(p.bodies[2].ops)
        for p in plan.programs
    )


def test_stages_run_one_forward_one_backward() -> None:
    plan = tiny(pp=2, microbatches=3)
    orders = [[(c.body, c.microbatch) for c in p.calls] for p in plan.programs]
    assert orders == [
        [(0, 0), (0, 1), (1, -1), (0, 2), (1, -1), (1, -1)],
        [(0, 0), (1, -1), (0, 1), (1, -1), (0, 2), (1, -1)],
    ]


def communication(body: Body) -> list[str]:
    return [
        f"{op.name} {op.attrs.get('op', '')}".strip()
        for op in body.ops
        if op.name in ("all_reduce", "all_gather", "reduce_scatter", "send", "recv")
    ]


def test_communication_is_where_megatron_has_it() -> None:
    first, last = tiny(dp=2, tp=2, pp=2).programs
    layer = ["all_reduce sum"] * 2
    assert communication(first.bodies[0]) == ["all_reduce sum", *layer, "send"]
    assert communication(first.bodies[1]) == ["recv", *layer]
    loss = ["all_reduce max", "all_reduce sum", "all_reduce sum"]
    assert communication(last.bodies[0]) == ["recv", *layer, *loss]
    assert communication(last.bodies[1]) == ["all_reduce sum", *layer, "send"]
    assert communication(first.bodies[2]) == ["all_reduce sum"] * 10


def test_communication_along_the_sequence() -> None:
    first, last = tiny(dp=2, tp=2, pp=2, sequence_parallel=True).programs
    layer, loss = ["all_gather", "reduce_scatter"] * 2, ["all_reduce max"] + ["all_reduce sum"] * 2
    assert communication(first.bodies[0]) == ["reduce_scatter", *layer, "send"]
    assert communication(first.bodies[1]) == ["recv", *layer, "all_gather"]
    assert communication(last.bodies[0]) == ["recv", *layer, "all_gather", *loss]
    assert communication(last.bodies[1]) == ["reduce_scatter", *layer, "send"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3}, "llama3-8b: heads 8 is not divisible by tp 3"),
        ({"tp": 8}, "llama3-8b: kv_heads 4 is not divisible by tp 8"),
        ({"tp": 2, "vocabulary": 97}, "llama3-8b: vocabulary 97 is not divisible by tp 2"),
        (
            {"tp": 2, "sequence": 9, "sequence_parallel": True},
            "llama3-8b: sequence 9 is not divisible by tp 2",
        ),
        ({"pp": 3}, "llama3-8b: 2 layers cannot fill 3 pipeline stages"),
        ({"dp": 0}, "dp: expected an integer of at least 1, found 0"),
        ({"microbatches": -1}, "microbatches: expected an integer of at least 1, found -1"),
        ({"layers": 0}, "llama3-8b, layers: expected an integer of at least 1, found 0"),
        ({"heads": 3}, "llama3-8b: hidden 32 is not divisible into 3 heads of even size"),
        ({"kv_heads": 3}, "llama3-8b: 8 heads are not divisible by 3 kv_heads"),
        (
            {"norm_eps": "tiny"},
            "llama3-8b, norm_eps: expected a positive decimal in quotes, found 'tiny'",
        ),
        (
            {"experts": 8},
            "llama3-8b, experts: not a key here; known are name, layers, hidden, vocabulary, "
            "sequence, norm_eps, heads, kv_heads, ffn, rope_theta",
        ),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        tiny(**changes)
    assert str(error.value) == message


def test_an_unknown_model_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidInput, match=r"no model llama4 \(did you mean .*known are .*llama3-70b"
    ):
        build("llama4", dp=1, tp=1, pp=1, microbatches=1)
    assert {"llama3-8b", "llama3-70b", "llama3-405b"} <= MODELS.keys()


# -- the builder, by hand --------------------------------------------------------------------------


def linear_model(program: ProgramBuilder, batch: int, microbatches: int) -> Program:
    weight = program.parameter("weight", (16, 8))
    body = program.body("forward")
    (x,) = body.load_batch(("x", (batch, 8), "float32"))
    y = body.linear(x, body.parameter(weight))
    body.loss(body.mul_constant(body.sum(y), Fraction(1, 8)))
    program.schedule(body, body.backward(), microbatches)
    if "dp" in program.extents:
        program.reduce([(weight, along("dp"))])
    return program.build()


def test_the_plan_of_the_builders_docstring() -> None:
    single = linear_model(ProgramBuilder("single"), 8, 1)
    parallel = linear_model(ProgramBuilder("ranks", axes=(("dp", 2, 1),)), 2, 2)
    plan = Plan("example", single, (parallel,), microbatches=2, replica_axes=("dp",))
    check(plan)
    assert unequal_gradients(plan) == []


def test_gradients_of_a_value_used_twice_are_added() -> None:
    program = ProgramBuilder("single")
    weight = program.parameter("weight", (4, 4))
    body = program.body("forward")
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    w = body.parameter(weight)
    body.loss(body.sum(body.linear(body.linear(x, w), w)))
    back = body.backward()
    assert [op.name for op in back.ops] == ["sum", "linear", "linear", "add_n"]
    assert back.body().gradients == ((back.ops[-1].outputs[0], weight),)


@pytest.mark.parametrize(
    ("forward", "conjugate"),
    [
        (lambda b, x: b.copy_to(x, along("tp")), ["all_reduce"]),
        (lambda b, x: b.reduce_from(x, along("tp")), []),
        (lambda b, x: b.all_reduce(x, along("tp")), ["all_reduce"]),
        (lambda b, x: b.all_gather(x, 0, along("tp")), ["reduce_scatter"]),
        (lambda b, x: b.all_gather(x, 0, along("tp"), shared=True), ["chunk"]),
        (lambda b, x: b.reduce_scatter(x, 0, along("tp")), ["all_gather"]),
        (lambda b, x: b.chunk(x, 1, along("tp")), ["all_gather"]),
        (lambda b, x: b.all_to_all(x, 0, 1, along("tp")), ["all_to_all"]),
    ],
)
def test_every_communication_has_its_conjugate(forward: Any, conjugate: list[str]) -> None:
    program = ProgramBuilder("ranks", axes=(("tp", 2, 1),))
    weight = program.parameter("weight", (4, 8))
    body = program.body("forward")
    body.load_batch(("x", (1,), "float32"))
    body.loss(body.sum(forward(body, body.parameter(weight))))
    back = body.backward()
    assert [op.name for op in back.ops if op.name != "sum"] == conjugate
    (gradient,) = back.body().gradients
    assert back.shape(gradient[0]) == (4, 8)
    program.schedule(body, back, 1)
    sound((program.build(),), 1)


def test_a_shape_that_does_not_fit_says_where() -> None:
    body = ProgramBuilder("single").body("forward")
    with body.module("layers.0"), pytest.raises(InvalidInput) as error:
        body.matmul(body.input((2, 3), "x"), body.input((4, 5), "y"))
    assert str(error.value) == (
        "forward, layers.0: matmul of shapes [[2, 3], [4, 5]]: matmul of [2, 3] and [4, 5]"
    )


def test_an_unknown_axis_and_an_uneven_split_are_refused() -> None:
    body = ProgramBuilder("ranks", axes=(("tp", 2, 1),)).body("forward")
    x = body.input((3, 4), "x")
    with pytest.raises(InvalidInput, match=r"axis dp is not an axis of this program \['tp'\]"):
        body.all_reduce(x, along("dp"))
    with pytest.raises(InvalidInput, match=r"dimension 0 of \[3, 4\] cannot be divided over 2"):
        body.reduce_scatter(x, 0, along("tp"))
