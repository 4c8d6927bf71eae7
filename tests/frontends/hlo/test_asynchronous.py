"""Operators in two halves: for values they are one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.hlo import evaluate, read
from tests.frontends.hlo.verdicts import verified

X, WIDE, NARROW = "f32[2,4]{1,0}", "f32[4,4]{1,0}", "f32[1,4]{1,0}"
GROUP = "channel_id=1, replica_groups={{0,1}}"
WORLD = f"{GROUP}, use_global_device_ids=true"
PAIRS = "channel_id=1, source_target_pairs={{0,1},{1,0}}"
ROWS = "dimensions={0}"
#: An operator, its two halves, and its type.
HALVES = {
    "all-reduce": (
        f"{X} all-reduce(x), {WORLD}, to_apply=add",
        f"a = {X} all-reduce-start(x), {WORLD}, to_apply=add\n  r = {X} all-reduce-done(a)",
        X,
    ),
    "all-gather": (
        f"{WIDE} all-gather(x), {WORLD}, {ROWS}",
        f"a = ({X}, {WIDE}) all-gather-start(x), {WORLD}, {ROWS}\n  r = {WIDE} all-gather-done(a)",
        WIDE,
    ),
    "reduce-scatter": (
        f"{NARROW} reduce-scatter(x), {WORLD}, {ROWS}, to_apply=add",
        f"a = (({X}), {NARROW}, u32[]) reduce-scatter-start(x), {WORLD}, {ROWS}, to_apply=add, "
        f'async_execution_thread="main"\n  r = {NARROW} reduce-scatter-done(a)',
        NARROW,
    ),
    "collective-permute": (
        f"{X} collective-permute(x), {PAIRS}",
        f"a = ({X}, {X}, u32[], u32[]) collective-permute-start(x), {PAIRS}\n"
        f"  r = {X} collective-permute-done(a)",
        X,
    ),
    "all-to-all": (
        f"{X} all-to-all(x), {GROUP}, {ROWS}",
        f"a = (({X}), {X}, u32[]) async-start(x), calls=exchange\n"
        f"  b = (({X}), {X}, u32[]) async-update(a)\n  r = {X} async-done(b)",
        X,
    ),
    "copy": (
        f"{X} copy(x)",
        f"a = ({X}, {X}, u32[]) copy-start(x)\n  r = {X} copy-done(a)",
        X,
    ),
}


def module(body: str, type: str) -> str:
    return f"""HloModule m, num_partitions=2
add {{
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}}
exchange {{
  y = {X} parameter(0)
  ROOT z = {X} all-to-all(y), {GROUP}, {ROWS}
}}
ENTRY e {{
  x = {X} parameter(0), sharding={{devices=[2,1]<=[2]}}
  {body}
  ROOT t = {type} tanh(r)
}}
"""


@pytest.mark.parametrize("name", HALVES)
def test_two_halves_are_one_operator(name: str) -> None:
    once, halves, type = HALVES[name]
    rng = np.random.default_rng(0)
    inputs = [[rng.normal(size=(2, 4))] for _ in range(2)]
    results = [
        evaluate.run(read.parsed(module(body, type), partitioned=True), inputs)
        for body in (f"r = {once}", halves)
    ]
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found[0], expected[0])


def test_several_tensors_in_one_collective() -> None:
    """Source: XLA's operation semantics: each is joined by itself."""
    pair = f"({WIDE}, {WIDE})"
    body = (
        f"y = {X} negate(x)\n  a = (({X}, {X}), {pair}) all-gather-start(x, y), {WORLD}, {ROWS}\n"
        f"  d = {pair} all-gather-done(a)\n  p = {WIDE} get-tuple-element(d), index=0\n"
        f"  q = {WIDE} get-tuple-element(d), index=1\n  r = {WIDE} subtract(p, q)"
    )
    x, y = np.random.default_rng(0).normal(size=(2, 2, 4))
    for (found,) in evaluate.run(read.parsed(module(body, WIDE), partitioned=True), [[x], [y]]):
        np.testing.assert_allclose(found, np.tanh(2 * np.concatenate([x, y])))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"a = ({X}, {X}) copy-start(x)\n  r = {X} get-tuple-element(a), index=0", "not done"),
        (
            f"a = ({X}, {WIDE}) all-gather-start(x), {WORLD}, {ROWS}\n  r = {X} negate(a)",
            "not done",
        ),
        (f"a = ({X}, {WIDE}) all-gather-start(x), {WORLD}\n  r = {X} all-gather-done(a)", "gives"),
        (f"a = {X} all-gather-start(x), {WORLD}, {ROWS}\n  r = {X} all-gather-done(a)", "expected"),
    ],
)
def test_halves_that_do_not_fit_are_refused(body: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read.parsed(module(body, X), partitioned=True)


def test_a_second_half_alone_is_refused_by_name() -> None:
    graph = read.parsed(module(f"r = {X} recv-done(x)", X), partitioned=True)
    assert [n.target for n in graph.nodes if "refused" in n.attrs] == ["recv-done"]


SINGLE = """HloModule one
ENTRY e {
  x = f32[4,4]{1,0} parameter(0)
  c = f32[] constant(0)
  s = f32[4]{0} reduce(x, c), dimensions={0}, to_apply=add
  ROOT t = f32[4]{0} tanh(s)
}
add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}
"""


@pytest.mark.parametrize(("groups", "verdict"), [("{{0,1}}", "proved"), ("{{0},{1}}", "refuted")])
def test_sums_that_begin_early(groups: str, verdict: str, tmp_path: Path) -> None:
    body = (
        "c = f32[] constant(0)\n  s = f32[4]{0} reduce(x, c), dimensions={0}, to_apply=add\n"
        f"  a = f32[4]{{0}} all-reduce-start(s), {WORLD}, to_apply=add\n"
        "  r = f32[4]{0} all-reduce-done(a)"
    ).replace("{{0,1}}", groups)
    verified(SINGLE, module(body, "f32[4]{0}"), tmp_path, verdict)
