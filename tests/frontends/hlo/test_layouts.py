"""Bitcasts behind layout assignment, against NumPy's own strides: the same bytes, read as another
shape in another layout."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from shardproof.frontends.hlo import evaluate, read
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.verdicts import verified

Array = np.ndarray


def program(given: str, result: str, cast: str = "bitcast") -> str:
    return f"HloModule m\nENTRY main {{\n  x = {given} parameter(0)\n  ROOT r = {result} {cast}(x)\n}}\n"


def strides(shape: tuple[int, ...], layout: list[int]) -> list[int]:
    """In bytes; the first dimension of the layout lies densest."""
    found, step = [0] * len(shape), 4
    for d in layout:
        found[d] = step
        step *= shape[d]
    return found


def written(shape: tuple[int, ...], layout: list[int]) -> str:
    dims, order = ",".join(map(str, shape)), ",".join(map(str, layout))
    return f"f32[{dims}]{{{order}}}"


@pytest.mark.parametrize("seed", range(40))
def test_the_same_bytes_in_another_layout(seed: int) -> None:
    random = Random(seed)
    factors = [random.choice([1, 2, 2, 3]) for _ in range(random.randrange(1, 5))]

    def split() -> tuple[int, ...]:
        dims = [1] * random.randrange(1, 5)
        for factor in factors:
            dims[random.randrange(len(dims))] *= factor
        return tuple(dims)

    shapes = split(), split()
    layouts = [random.sample(range(len(s)), len(s)) for s in shapes]
    given, result = (written(s, o) for s, o in zip(shapes, layouts, strict=True))
    # The bytes 0, 1, 2 ... as each layout reads them.
    bytes_ = np.arange(int(np.prod(factors)), dtype=np.float32)
    x, expected = (
        np.lib.stride_tricks.as_strided(bytes_, s, strides(s, o))
        for s, o in zip(shapes, layouts, strict=True)
    )
    graph = read.parsed(program(given, result))
    assert not [n for n in graph.nodes if n.target == "bitcast"]
    np.testing.assert_array_equal(evaluate.run(graph, [[x]])[0][0], expected)


@pytest.mark.parametrize(
    ("given", "result"),
    [
        ("f32[2,3]{1,0:T(8,128)}", "f32[3,2]{1,0}"),
        ("f32[2,3]{1,0}", "s32[2,3]{1,0}"),
        ("f32[2,3]{1,0}", "f32[3,3]{1,0}"),
        ("f32[2,3]{1,2}", "f32[3,2]{1,0}"),
        ("f32[2,3]{1}", "f32[3,2]{1,0}"),
    ],
    ids=["tiles", "another type", "another size", "no such dimension", "too few dimensions"],
)
def test_other_bitcasts_are_refused_by_name(given: str, result: str) -> None:
    lowering, _, _ = lower(read.parsed(program(given, result)))
    (own,) = [op.name for op in lowering.recorder.ops if " of HLO (" in op.name]
    assert own.startswith("bitcast of HLO (a bitcast ")


@pytest.mark.parametrize(("layout", "expected"), [("{0,1}", "proved"), ("{1,0}", "refuted")])
def test_a_transpose_that_is_a_bitcast(layout: str, expected: str, tmp_path: Path) -> None:
    alone = program("f32[2,3]{1,0}", "f32[3,2]{1,0}", "transpose").replace(
        "transpose(x)", "transpose(x), dimensions={1,0}"
    )
    verified(alone, program("f32[2,3]{1,0}", f"f32[3,2]{layout}"), tmp_path, expected)
