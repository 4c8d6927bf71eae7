"""Maxima over windows beside the edges, and gradients of maxima over windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Graph
from shardproof.frontends.hlo import evaluate, inline, text
from shardproof.frontends.hlo.opcodes import Taps
from shardproof.frontends.hlo.pooling import places
from tests.frontends.hlo.test_lower import ADD, MAX, agree
from tests.frontends.hlo.verdicts import verified

GE = (
    "ge {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
    "  ROOT r = pred[] compare(a, b), direction=GE\n}\n"
)
LE, GT = (GE.replace("ge {", f"{n} {{").replace("=GE", f"={n.upper()}") for n in ("le", "gt"))
#: Operand, source, window.
WINDOWS = [
    ("2,6", "2,3", "size=1x2 stride=1x2"),
    ("2,7", "2,3", "size=1x3 stride=1x2"),
    ("2,6", "2,6", "size=1x3 pad=0_0x1_1"),
    ("2,7,5", "2,4,3", "size=1x3x3 stride=1x2x2 pad=0_0x1_1x1_1"),
    ("4,6", "2,3", "size=2x2 stride=2x2"),
]


def gradient(operand: str, source: str, window: str, how: str = "ge", more: str = "") -> str:
    return (
        f"HloModule m{more}\n{ADD}{GE}{LE}{GT}ENTRY e {{\n  x = f32[{operand}] parameter(0)\n"
        f"  d = f32[{source}] parameter(1)\n  c = f32[] constant(0)\n"
        f"  ROOT y = f32[{operand}] select-and-scatter(x, d, c), window={{{window}}}, "
        f"select={how}, scatter=add\n}}\n"
    )


def graph(program: str) -> Graph:
    return inline.graph(text.parse(program))


@pytest.mark.parametrize("how", ["ge", "le"])
@pytest.mark.parametrize("case", WINDOWS)
def test_what_comes_to_a_window_goes_to_one_entry(case: tuple[str, str, str], how: str) -> None:
    agree(graph(gradient(*case, how)))


def test_of_equal_entries_the_first_is_chosen() -> None:
    x, d = np.array([[1.0, 5, 5, 2, 7, 7]]), np.array([[10.0, 20, 30, 40, 50]])
    found = evaluate.run(graph(gradient("1,6", "1,5", "size=1x2")), [[x, d]])
    assert found[0][0].tolist() == [[0, 30, 30, 0, 90, 0]]


def test_padding_with_minus_infinity_is_never_chosen() -> None:
    program = (
        f"HloModule m\n{ADD}{GE}ENTRY e {{\n  x = f32[2,6] parameter(0)\n"
        "  d = f32[2,3] parameter(1)\n  c = f32[] constant(0)\n  i = f32[] constant(-inf)\n"
        "  p = f32[2,7] pad(x, i), padding=0_0x0_1\n"
        "  s = f32[2,7] select-and-scatter(p, d, c), window={size=1x3 stride=1x2}, select=ge, "
        "scatter=add\n  ROOT y = f32[2,6] slice(s), slice={[0:2], [0:6]}\n}\n"
    )
    agree(graph(program))


@pytest.mark.parametrize(("size", "pad"), [("2,7", "0_0x1_1"), ("2,6", "0_0x0_2")])
def test_maxima_beside_the_edge(size: str, pad: str) -> None:
    body = (
        f"ENTRY e {{\n  x = f32[{size}] parameter(0)\n  c = f32[] constant(-inf)\n"
        "  ROOT y = f32[2,SIZE] reduce-window(x, c), window={size=1x3 stride=1x2 pad=PAD}, "
        "to_apply=max\n}\n"
    )
    steps = {"0_0x1_1": "4", "0_0x0_2": "3"}[pad]
    agree(graph(f"HloModule m\n{MAX}{body.replace('SIZE', steps).replace('PAD', pad)}"))


def test_a_window_beside_the_tensor_is_refused() -> None:
    assert places(Taps(3, stride=2, before=1, after=1), 4, 2).tolist() == [[0, 1], [0, 2], [1, 3]]
    with pytest.raises(Unsupported, match="beside the tensor"):
        places(Taps(2, before=2), 4, 3)


def test_the_last_of_equal_entries_is_refused(tmp_path: Path) -> None:
    program = gradient("2,6", "2,3", "size=1x2 stride=1x2", "gt")
    verified(program, program, tmp_path, "inconclusive")


@pytest.mark.parametrize(
    ("window", "how", "expected"),
    [
        ("size=1x2 stride=1x2", "ge", "proved"),
        ("size=1x2 stride=1x2", "le", "refuted"),
        ("size=1x3 stride=1x2 pad=0_0x0_1", "ge", "refuted"),
    ],
)
def test_gradients_of_rows_of_a_rank(window: str, how: str, expected: str, tmp_path: Path) -> None:
    single = gradient("4,6", "4,3", "size=1x2 stride=1x2")
    own = gradient("2,6", "2,3", window, how, ", num_partitions=2")
    at = ", sharding={devices=[2,1]<=[2]}"
    own = own.replace("parameter(0)\n  d", f"parameter(0){at}\n  d")
    own = own.replace("f32[2,3] parameter(1)", f"f32[2,3] parameter(1){at}")
    verified(single, own, tmp_path, expected)
