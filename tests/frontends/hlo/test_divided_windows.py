"""Convolutions over positions that ranks divide: with their neighbours' edges, by slices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.graphs.graph import Graph
from shardproof.frontends.hlo import evaluate, inline, text
from shardproof.frontends.hlo.divided import Over, divided, patterns
from shardproof.frontends.hlo.lower import lower
from shardproof.frontends.hlo.opcodes import Taps
from shardproof.frontends.hlo.semantics import labels
from shardproof.frontends.hlo.state import Other
from tests.frontends.hlo.runner import run
from tests.frontends.hlo.verdicts import verified

RANKS, ROWS, LENGTH = 4, 2, 16


def one(x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], attrs: str) -> Graph:
    sizes = [",".join(map(str, shape)) for shape in (x, w, y)]
    return inline.graph(
        text.parse(
            f"HloModule m\nENTRY e {{\n  x = f32[{sizes[0]}] parameter(0)\n"
            f"  w = f32[{sizes[1]}] parameter(1)\n"
            f"  ROOT y = f32[{sizes[2]}] convolution(x, w), {attrs}\n}}\n"
        )
    )


def steps(size: int, taps: Taps) -> int:
    reach = (taps.size - 1) * taps.apart + 1
    return (size + taps.before + taps.after - reach) // taps.stride + 1


@pytest.mark.parametrize("seed", range(40))
def test_slices_are_what_taps_read(seed: int) -> None:
    """Random windows in two dimensions, of which each is read by slices of taps, or of steps, or by
    a table; against the convolution itself, in NumPy."""
    rng = np.random.default_rng(seed)
    windows = []
    while len(windows) < 2:
        taps = Taps(
            int(rng.integers(2, 5)),
            int(rng.integers(1, 4)),
            int(rng.integers(-1, 4)),
            int(rng.integers(-1, 4)),
            1,
            int(rng.integers(1, 3)),
            bool(rng.integers(0, 2)),
        )
        size = int(rng.integers(4, 9))
        if steps(size, taps) > 0 and size + min(taps.before, 0) + min(taps.after, 0) > 0:
            windows.append((size, taps))
    pads = "x".join(f"{t.before}_{t.after}" for _, t in windows)
    of = {
        "size": [t.size for _, t in windows],
        "stride": [t.stride for _, t in windows],
        "rhs_dilate": [t.apart for _, t in windows],
        "rhs_reversal": [int(t.mirrored) for _, t in windows],
    }
    words = [f"{key}={'x'.join(map(str, numbers))}" for key, numbers in of.items()]
    groups = int(rng.integers(1, 3))
    attrs = f"window={{{' '.join(words)} pad={pads}}}, dim_labels=b01f_01io->b01f"
    attrs += f", feature_group_count={groups}" if groups > 1 else ""
    x = (2, *(size for size, _ in windows), 4)
    w = (*(t.size for _, t in windows), 4 // groups, 6)
    y = (2, *(steps(size, t) for size, t in windows), 6)
    graph = one(x, w, y, attrs)
    every = [o for d, (n, t) in enumerate(windows) for o in patterns(t, steps(n, t), d)]
    chosen = frozenset(over for over in every if rng.integers(0, 4))
    lowering, outputs, _ = lower(graph, other=Other(windows=chosen))
    inputs = [[rng.normal(size=shape) for shape in (x, w)]]
    (expected,) = evaluate.run(graph, inputs)
    (found,) = run(lowering.recorder, inputs, outputs)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9, atol=1e-9)


def test_windows_are_divided_where_both_sides_have_other_positions() -> None:
    def of(length: int, rows: int) -> Graph:
        attrs = "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f"
        return one((rows, length, 2), (3, 2, 2), (rows, length, 2), attrs)

    assert labels("b0f_0io->b0f").result[2] == (1,)
    assert divided(of(16, 2), of(16, 1)) == frozenset()
    taps = patterns(Taps(3), 16, 0)[0].pattern
    assert divided(of(16, 2), of(4, 2)) == {Over(taps, 16), Over(taps, 4)}


#: ``y``: a convolution of x = [2, 16, 3] by a kernel [3, 3, 5]; ``g``: the kernel's gradient, of y.
FORWARD = "dim_labels=b0f_0io->b0f"
BACKWARD = "dim_labels=f0b_i0o->0bf"


def single(before: int, after: int) -> str:
    pads = f"{before}_{after}"
    return f"""HloModule one
ENTRY e {{
  x = f32[2,16,3] parameter(0)
  w = f32[3,3,5] parameter(1)
  y = f32[2,16,5] convolution(x, w), window={{size=3 pad={pads}}}, {FORWARD}
  t = f32[2,16,5] tanh(y)
  g = f32[3,3,5] convolution(x, t), window={{size=16 pad={pads}}}, {BACKWARD}
  ROOT r = (f32[2,16,5], f32[3,3,5]) tuple(t, g)
}}
"""


def parallel(before: int, after: int, *, wrong: str = "") -> str:
    """Each of four ranks has four positions, and asks its neighbours for what lies beside them."""
    on = "{" + ",".join(f"{{{n},{n + 1}}}" for n in range(RANKS - 1)) + "}"
    back = "{" + ",".join(f"{{{n + 1},{n}}}" for n in range(RANKS - 1)) + "}"
    if wrong == "other neighbours":
        on, back = back, on
    whole = 4 + before + after
    edges = {"lo": (4 - before, 4, on), "hi": (0, after, back)}
    lines, parts = [], []
    for name, (start, end, pairs) in edges.items():
        if start < end:
            shape = f"f32[2,{end - start},3]"
            lines.append(f"  {name}c = {shape} slice(x), slice={{[0:2], [{start}:{end}], [0:3]}}")
            lines.append(
                f"  {name} = {shape} collective-permute({name}c), channel_id=1, "
                f"source_target_pairs={pairs}"
            )
            parts.append(name)
    parts.insert(1 if before else 0, "x")
    total = "copy" if wrong == "no sum" else "all-reduce"
    joined = "channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add"
    tail = "" if wrong == "no sum" else f", {joined}"
    return f"""HloModule m, num_partitions=4
add {{
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}}
ENTRY e {{
  x = f32[2,4,3] parameter(0), sharding={{devices=[1,4,1]<=[4]}}
  w = f32[3,3,5] parameter(1), sharding={{replicated}}
{chr(10).join(lines)}
  h = f32[2,{whole},3] concatenate({", ".join(parts)}), dimensions={{1}}
  y = f32[2,4,5] convolution(h, w), window={{size=3}}, {FORWARD}
  t = f32[2,4,5] tanh(y)
  k = f32[3,3,5] convolution(h, t), window={{size=4}}, {BACKWARD}
  g = f32[3,3,5] {total}(k){tail}
  ROOT r = (f32[2,4,5], f32[3,3,5]) tuple(t, g)
}}
"""


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 0)])
def test_edges_of_neighbours(before: int, after: int, tmp_path: Path) -> None:
    verified(single(before, after), parallel(before, after), tmp_path, "proved")


@pytest.mark.parametrize("wrong", ["other neighbours", "no sum"])
def test_wrong_edges_are_refuted(wrong: str, tmp_path: Path) -> None:
    verified(single(1, 1), parallel(1, 1, wrong=wrong), tmp_path, "refuted")


def test_edges_that_nobody_sends_are_refuted(tmp_path: Path) -> None:
    """The causal convolution beside neighbours of the other one."""
    verified(single(2, 0), parallel(1, 1), tmp_path, "refuted")
