"""Results of collectives are read once a graph has waited for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.files import side
from tests.frontends.fx.graphs import Writer

REDUCE = "_c10d_functional.all_reduce"
SEVERAL = "_c10d_functional.all_reduce_coalesced.default"


def written(folder: Path, kind: str) -> Path:
    """A graph with two sums, of which the second one is read before its wait, if anything is."""
    w, shape = Writer(0), (2, 4)
    x = w.given("x", shape)
    if kind == "several":
        sums = w.call("sums", SEVERAL, [[x, x], "sum", "0"], shape)
        first, last = (
            w.call(f"s{n}", "<built-in function getitem>", [sums, n], shape) for n in "01"
        )
    else:
        first = w.call("s0", f"{REDUCE}.default", [x, "sum", "0"], shape)
        form = "_.default" if kind == "operand" else ".default"
        last = w.call("s1", f"{REDUCE}{form}", [x, "sum", "0"], shape)
    first = w.call("w0", "_c10d_functional.wait_tensor.default", [first], shape)
    seen = w.call("v", "aten.view.default", [last, [8]], (8,))
    if kind in ("early", "several"):
        first = w.call("y", "aten.add.Tensor", [first, last], shape)
    if kind == "operand":
        first = w.call("y", "aten.add.Tensor", [first, x], shape)
    w.call("w1", "_c10d_functional.wait_tensor.default", [seen], (8,))
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(w.output(w.call("z", "aten.add.Tensor", [first, last], shape))))
    return path


def test_what_is_waited_for_is_read(tmp_path: Path) -> None:
    (graph,) = side(written(tmp_path, "right"))
    assert graph.nodes[-1].op == "output"


@pytest.mark.parametrize(("kind", "read"), [("early", "s1"), ("several", "s1"), ("operand", "x")])
def test_what_is_read_before_the_wait_is_refused(kind: str, read: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=rf"y \(aten.add.Tensor\) reads {read} before the wait"):
        side(written(tmp_path, kind))
