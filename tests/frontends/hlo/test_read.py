"""HLO text: what is read, and what is refused, with its line."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.frontend import of
from shardproof.frontends.graphs.graph import PerRank
from shardproof.frontends.hlo import evaluate, groups, inline, literals, text
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.module import Type
from tests.frontends.hlo.verdicts import verified

SAMPLES = Path(__file__).parent / "samples"
NAMES = ("mlp", "fsdp", "block", "language", "scanned", "ring", "experts")


def sample(name: str, side: str) -> str:
    return (SAMPLES / f"{name}.{side}.hlo").read_text()


def module(body: str, head: str = "HloModule m") -> str:
    return f"{head}\n\nENTRY e {{\n{body}\n}}\n"


# -- groups and shardings --------------------------------------------------------------------------

TP = ((0, 1, 2, 3), (4, 5, 6, 7))
DP = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", TP),
        ("{{0, 1, 2, 3}, {4, 5, 6, 7}}", TP),
        ("{}", (tuple(range(8)),)),
        ("{{}}", (tuple(range(8)),)),
        ("[2,4]<=[8]", TP),
        ("[4,2]<=[2,4]T(1,0)", DP),
        ("mesh['a'=2,'b'=4] {'b'}", TP),
        ("mesh['a'=2,'b'=4] {'a'}", DP),
        ("mesh[a=2,b=4] {a,b}", (tuple(range(8)),)),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", TP),
        ("mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", DP),
        ("mesh['a'=8] {'a':(2)4}", TP),
        ("mesh['a'=8] {'a':(1)2}", DP),
    ],
)
def test_groups_in_every_spelling(spelling: str, expected: groups.Groups) -> None:
    assert groups.replica_groups(spelling, 8) == expected


@pytest.mark.parametrize(
    "spelling",
    [
        "{{0,1},{2,3}}",
        "{{0,1,2},{3,4,5,6,7}}",
        "{{0,1,2,3},{4,5,6,6}}",
        "{{0,1,2,3},{4,5,6,7}",
        "[2,4]<=[8]x",
        "[2,4]<=[4]",
        "[2,4]<=[2,4]T(0,0)",
        "mesh['a'=2,'b'=4] {'c'}",
        "mesh['a'=2,'b'=4]",
        "mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)",
        "mesh['a'=8] {'a':(3)2}",
        "mesh['a'=8] {'a','a'}",
        "some",
    ],
)
def test_groups_are_read_wholly_or_refused(spelling: str) -> None:
    with pytest.raises(InvalidInput):
        groups.replica_groups(spelling, 8)


def test_a_mesh_spelling_in_a_line_is_one_attribute() -> None:
    line = (
        "%r = f32[4]{0} all-reduce(%x), channel_id=1, "
        "replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}, "
        "use_global_device_ids=true, to_apply=%add"
    )
    _, instruction = text.parse_instruction(line, 1)
    assert groups.replica_groups(instruction.attrs["replica_groups"], 8) == TP
    assert instruction.attrs["use_global_device_ids"] == "true"


def test_shardings() -> None:
    found = groups.sharding("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", (2, 6), 8, local=True)
    assert found is not None
    assert found.full == (4, 6)
    assert found.starts == ((0, 0),) * 4 + ((2, 0),) * 4
    found = groups.sharding("{devices=[1,8]<=[2,4]T(1,0)}", (2, 16), 8, local=False)
    assert found is not None
    assert [s[1] for s in found.starts] == [0, 4, 8, 12, 2, 6, 10, 14]
    assert groups.sharding("{manual}", (2,), 8, local=True) is None
    with pytest.raises(InvalidInput):
        groups.sharding("{devices=[2,1]<=[8]}", (2, 6), 8, local=True)


# -- constants -------------------------------------------------------------------------------------


def test_constants_are_the_float32_that_they_name() -> None:
    found = literals.parse_literal("6.10351562e-05", Type((), "float32"))
    assert Fraction(found.item()) == Fraction(1, 16384)
    third = literals.parse_literal("{0.333333343}", Type((1,), "float32"))
    assert third[0] == np.float32(1) / np.float32(3)
    half = literals.parse_literal("0.1001", Type((), "bfloat16"))
    assert Fraction(half.item()) == Fraction(205, 2048)
    table = literals.parse_literal("{ { 1, -inf }, { nan, 2.5 } }", Type((2, 2), "float32"))
    assert table[0, 1] == -np.inf
    assert np.isnan(table[1, 0])


@pytest.mark.parametrize(
    ("written", "type"),
    [
        ("{1, 2}", Type((3,), "int32")),
        ("{...}", Type((3,), "int32")),
        ("1e3", Type((), "int32")),
        ("300", Type((), "int8")),
        ("maybe", Type((), "bool")),
        ("0x10", Type((), "float32")),
    ],
)
def test_constants_that_are_none(written: str, type: Type) -> None:
    with pytest.raises(InvalidInput):
        literals.parse_literal(written, type)


# -- modules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_both_sides_of_a_sample_compute_the_same(name: str) -> None:
    """The graph as read, run in lock-step on all ranks, against the single side's."""
    single, parallel = (inline.graph(text.parse(sample(name, s))) for s in ("single", "parallel"))
    rng = np.random.default_rng(0)
    inputs = []
    for given in single.inputs:
        value = single.values[given.value]
        whole = value.dtype.startswith("int")
        inputs.append(rng.integers(0, 32, value.shape) if whole else rng.normal(size=value.shape))
    expected = evaluate.run(single, [inputs])[0]
    parts = []
    for rank in range(parallel.ranks):
        own = []
        for given, x in zip(parallel.inputs, inputs, strict=True):
            assert given.placement is not None
            shape = parallel.values[given.value].shape
            at = given.placement.starts[rank]
            own.append(x[tuple(slice(s, s + n) for s, n in zip(at, shape, strict=True))])
        parts.append(own)
    found = evaluate.run(parallel, parts)
    for number, full in enumerate(expected):
        for own in found:
            part = own[number]
            places = np.ndindex(*(n // m for n, m in zip(full.shape, part.shape, strict=True)))
            differences = []
            for index in places:
                box = full[
                    tuple(slice(i * m, i * m + m) for i, m in zip(index, part.shape, strict=True))
                ]
                differences.append(float(np.max(np.abs(box - part))))
            assert min(differences) < 1e-5 * max(1.0, float(np.max(np.abs(full))))


def test_ranks_are_numbers_that_differ() -> None:
    graph = inline.graph(
        text.parse(
            module(
                "  x = f32[8] parameter(0), sharding={replicated}\n"
                "  p = u32[] partition-id()\n"
                "  two = u32[] constant(2)\n"
                "  at = u32[] multiply(p, two)\n"
                "  ROOT y = f32[2] dynamic-slice(x, at), dynamic_slice_sizes={2}",
                "HloModule m, num_partitions=4",
            )
        )
    )
    (node,) = graph.nodes
    assert node.attrs["starts"] == (PerRank((0, 2, 4, 6)),)


def test_a_loop_is_unrolled_while_its_condition_is_known() -> None:
    body = """
b {
  t = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[] get-tuple-element(t), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[] multiply(x, x)
  ROOT r = (s32[], f32[]) tuple(next, y)
}
c {
  t = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[]) tuple(z, x)
  w = (s32[], f32[]) while(t), condition=c, body=b
  ROOT r = f32[] get-tuple-element(w), index=1
}
"""
    graph = inline.graph(text.parse("HloModule m\n" + body))
    assert [n.target for n in graph.nodes] == ["multiply"] * 3
    assert evaluate.run(graph, [[np.array(2.0)]])[0][0] == 256
    # A trip count that depends on data is refused by name, and nothing else is.
    open_ = body.replace("  z = s32[] constant(0)\n", "  z = s32[] convert(x)\n")
    graph = inline.graph(text.parse("HloModule m\n" + open_))
    (refused,) = [n for n in graph.nodes if "refused" in n.attrs]
    assert refused.target == "while"


def test_groups_by_channel_and_device_ids() -> None:
    """``use_global_device_ids`` makes numbers those of devices; without it they are replicas'."""

    def found(attrs: str) -> groups.Groups:
        body = (
            "  x = f32[4] parameter(0), sharding={replicated}\n"
            f"  ROOT y = f32[4] all-reduce(x), {attrs}, to_apply=add"
        )
        add = (
            "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
            "  ROOT r = f32[] add(a, b)\n}\n"
        )
        head = "HloModule m, num_partitions=4\n" + add
        graph = inline.graph(text.parse(module(body, head)))
        return graph.nodes[-1].groups

    both = "channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true"
    assert found(both) == ((0, 1), (2, 3))
    assert found("channel_id=1, replica_groups={{0}}") == ((0, 1, 2, 3),)
    assert found("replica_groups={{0}}") == ((0,), (1,), (2,), (3,))
    with pytest.raises(InvalidInput):
        found("channel_id=1, replica_groups={{0,1},{2,3}}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("  ROOT x = f32[2] parameter(0) junk", "expected KEY=VALUE"),
        ("  ROOT x = f32[2 parameter(0)", "expected"),
        ("  ROOT x = q4[2] parameter(0)", "element type q4"),
        ("  ROOT x = f32[<=8] parameter(0)", "dimensions"),
        ("  ROOT x = f32[9999999999999,9999999999999] parameter(0)", "too large"),
        ("  ROOT x = f32[2] add(y, y)", "before it is given"),
        ("  x = f32[2] parameter(0)\n  x = f32[2] parameter(1)", "given twice"),
        ('  ROOT x = f32[2] parameter(0), metadata={op_name="a', "does not close"),
        ("  ROOT x = f32[2] parameter(0), a=" + "{" * 100, "deeper"),
    ],
)
def test_text_that_is_no_hlo_is_refused_with_its_line(line: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        text.parse(module(line))
    assert "line" in str(caught.value)


def test_calls_in_a_circle() -> None:
    circle = (
        "HloModule m\na {\n  x = f32[] parameter(0)\n  ROOT y = f32[] call(x), to_apply=a\n}\n"
        "ENTRY e {\n  x = f32[] parameter(0)\n  ROOT y = f32[] call(x), to_apply=a\n}\n"
    )
    with pytest.raises(InvalidInput, match="calls itself"):
        inline.graph(text.parse(circle))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_text_is_a_module_or_one_line(seed: int) -> None:
    random_ = random.Random(seed)
    data = sample(NAMES[seed % len(NAMES)], "parallel")
    letters = list(data)
    for _ in range(4):
        letters[random_.randrange(len(letters))] = random_.choice('(){}[],=% x0\n"')
    if seed % 3 == 0:
        del letters[random_.randrange(len(letters)) :]
    said = ""
    try:
        inline.graph(text.parse("".join(letters)))
    except InvalidInput as error:
        said = str(error)
    assert "\n" not in said


def test_one_file_alone_is_a_plan_without_results() -> None:
    plan = of(SAMPLES / "mlp.parallel.hlo").read_side(SAMPLES / "mlp.parallel.hlo")
    (program,) = plan.programs
    assert [extent for _, extent, _ in program.axes] == [2, 4]
    assert sum(op.name == "all_reduce" for op in program.bodies[0].ops) == 4
    assert not plan.expectations


def test_known_numbers_that_repeat_are_held_once() -> None:
    type = Type((1 << 20, 1 << 10), "int32")
    found = inline.known.iota(type, 1)
    assert isinstance(found, Known)
    assert found.arrays[0].strides[0] == 0


@pytest.mark.parametrize(("read", "expected"), [("x", "invalid input"), ("w", "proved")])
def test_a_side_that_has_fewer_inputs(read: str, expected: str, tmp_path: Path) -> None:
    """JAX leaves out what a program does not read, and what is left would be paired by number."""
    single = """HloModule m

ENTRY main {
  w = f32[4] parameter(0)
  x = f32[4] parameter(1)
  ROOT y = f32[4] subtract(w, x)
}
"""
    ranks = single.replace("m\n", "m, num_partitions=2\n", 1)
    if read == "x":
        ranks = ranks.replace("  x = f32[4] parameter(1)\n", "").replace("(w, x)", "(w, w)")
    verified(single, ranks, tmp_path, expected)
