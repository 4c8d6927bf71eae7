"""Small graphs of ranks, written as an exporter does: a transformer's embedding, MLP and loss under
tensor parallelism, and a running mean over two steps."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import shardproof

Nodes = list[dict[str, Any]]
TOKENS, VOCABULARY, WIDTH, INNER = 6, 8, 4, 12


def ref(name: str) -> dict[str, str]:
    return {"n": name}


def written(folder: Path, single: Any, ranks: Sequence[Any]) -> tuple[Path, Path]:
    """The file of a graph of one device, and the folder with those of ranks, written into a folder
    of a test."""
    files = folder / "single.json", folder / "ranks"
    files[1].mkdir()
    files[0].write_text(json.dumps(single))
    for rank, graph in enumerate(ranks):
        (files[1] / f"r{rank}.json").write_text(json.dumps(graph))
    return files


def verified(folder: Path, single: Any, ranks: Sequence[Any], relations: str = "") -> Any:
    """The result of a graph of one device and those of ranks, and what is stated of them, if
    anything is; all are written into a folder of a test, as is the run."""
    said = folder / "relations.toml"
    if relations:
        said.write_text(relations)
    return shardproof.verify(
        *written(folder, single, ranks),
        relations=said if relations else None,
        out=folder / "run",
        cache=False,
    )


class Writer:
    """Nodes in order, named as they come."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.nodes: Nodes = []

    def node(
        self, name: str, op: str, target: str, args: list[Any], shape: Any, dtype: str = "float32",
        **kwargs: Any,
    ) -> dict[str, str]:  # fmt: skip
        given = list(shape) if shape is not None else None
        self.nodes.append(
            {
                "name": name,
                "op": op,
                "target": target,
                "args": args,
                "kwargs": kwargs,
                "shape": given,
                "dtype": dtype if given is not None else None,
                "src": f"line of {name}",
            }
        )
        return ref(name)

    def given(self, name: str, shape: Any, dtype: str = "float32") -> dict[str, str]:
        return self.node(name, "placeholder", name, [], shape, dtype)

    def call(
        self, name: str, target: str, args: list[Any], shape: Any, *more: str, **kw: Any
    ) -> Any:
        return self.node(name, "call_function", target, args, shape, *more, **kw)

    def output(self, *values: dict[str, str]) -> dict[str, Any]:
        self.node("output", "output", "output", [list(values)], None)
        return {"rank": self.rank, "direction": "fw", "gid": 0, "nodes": self.nodes}


def model(rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Embedding, MLP with a bias and dropout, and the logits' sum of squares, on one of
    ``ranks``."""
    w = Writer(rank)
    rows, inner = VOCABULARY // ranks, INNER // ranks
    ids = w.given("ids", (TOKENS,), "int64")
    table = w.given("table", (rows, WIDTH))
    up, bias = w.given("up", (inner, WIDTH)), w.given("bias", (inner,))
    down = w.given("down", (WIDTH, inner))
    x = _embedded(w, ids, table, rank, ranks)
    x = w.call("scaled", "aten.mul.Scalar", [x, 0.5], (TOKENS, WIDTH))
    turned = w.call("t", "aten.t.default", [up], (WIDTH, inner))
    h = w.call("mm", "aten.mm.default", [x, turned], (TOKENS, inner))
    h = w.call("add", "aten.add.Tensor", [h, bias], (TOKENS, inner))
    h = w.call("gelu", "aten.gelu.default", [h], (TOKENS, inner))
    w.call("dropout", "aten.native_dropout.default", [h, 0.25, True], None)
    h = w.call("kept", "<built-in function getitem>", [ref("dropout"), 0], (TOKENS, inner))
    turned = w.call("t_1", "aten.t.default", [down], (inner, WIDTH))
    y = w.call("mm_1", "aten.mm.default", [h, turned], (TOKENS, WIDTH))
    if ranks > 1:
        y = reduced(w, "y", y, (TOKENS, WIDTH))
    square = w.call("square", "aten.mul.Tensor", [y, y], (TOKENS, WIDTH))
    loss = w.call("loss", "aten.sum.default", [square], ())
    return w.output(loss, h)


def _embedded(w: Writer, ids: Any, table: Any, rank: int, ranks: int) -> Any:
    if ranks == 1:
        return w.call("rows", "aten.embedding.default", [table, ids], (TOKENS, WIDTH))
    low = rank * VOCABULARY // ranks
    high = low + VOCABULARY // ranks
    below = w.call("lt", "aten.lt.Scalar", [ids, low], (TOKENS,), "bool")
    above = w.call("ge", "aten.ge.Scalar", [ids, high], (TOKENS,), "bool")
    mask = w.call("or", "aten.bitwise_or.Tensor", [below, above], (TOKENS,), "bool")
    own = w.call("sub", "aten.sub.Tensor", [ids, low], (TOKENS,), "int64")
    w.node("_tensor_constant0", "get_attr", "_tensor_constant0", [], None)
    zero = w.call("zero", "aten.lift_fresh_copy.default", [ref("_tensor_constant0")], (), "int64")
    own = w.call("own", "aten.index_put.default", [own, [mask], zero], (TOKENS,), "int64")
    rows = w.call("rows", "aten.embedding.default", [table, own], (TOKENS, WIDTH))
    w.node("_tensor_constant1", "get_attr", "_tensor_constant1", [], None)
    none = w.call("none", "aten.lift_fresh_copy.default", [ref("_tensor_constant1")], ())
    rows = w.call("masked", "aten.index_put.default", [rows, [mask], none], (TOKENS, WIDTH))
    return reduced(w, "x", rows, (TOKENS, WIDTH))


def reduced(w: Writer, name: str, x: Any, shape: Any) -> Any:
    y = w.call(f"{name}_sum", "_c10d_functional.all_reduce.default", [x, "sum", "7"], shape)
    return w.call(f"{name}_wait", "_c10d_functional.wait_tensor.default", [y], shape)


def steps(parts: int, mean: float = 1.0) -> dict[str, Any]:
    """A running mean of a square error over 8 numbers, in one or two steps, after earlier ones."""
    w = Writer(0)
    size = 8 // parts
    inputs = [w.given(f"arg{i}_1", (size,)) for i in range(parts)]
    total = w.given("before", ())
    for i, x in enumerate(inputs):
        square = w.call(f"pow_{i}", "aten.pow.Tensor_Scalar", [x, 2], (size,))
        part = w.call(f"mean_{i}", "aten.mean.default", [square], ())
        part = w.call(f"part_{i}", "aten.mul.Scalar", [part, mean], ())
        total = w.call(f"add_{i}", "aten.add.Tensor", [total, part], ())
    return w.output(total)


#: The second step's input is the other half of the single one's.
HALVES = """
[inputs.arg0_1]
starts = [[0]]
[inputs.arg1_1]
of = "arg0_1"
starts = [[4]]
"""


def write(folder: Path, graphs: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for graph in graphs:
        data = json.dumps(graph).encode()
        (folder / f"fw.g0.r{graph['rank']}.json.gz").write_bytes(gzip.compress(data))
    return folder


Graph = dict[str, Any]
Change = Callable[[Graph], None]


def named(graph: dict[str, Any], name: str) -> dict[str, Any]:
    (node,) = (n for n in graph["nodes"] if n["name"] == name)
    return node  # type: ignore[no-any-return]


def argument(name: str, place: int, value: Any) -> Change:
    """Another argument of a node."""

    def change(graph: dict[str, Any]) -> None:
        named(graph, name)["args"][place] = value

    return change


def target(name: str, value: str) -> Change:
    """Another operator at a node."""

    def change(graph: dict[str, Any]) -> None:
        named(graph, name)["target"] = value

    return change


def labelled(rank: int, ranks: int, own_mean: bool = False) -> dict[str, Any]:
    """The mean of the entries that labels pick where they are not -100; ``own_mean``: the mean of
    the ranks' own means."""
    w = Writer(rank)
    n = 8 // ranks
    x, y = w.given("x", (n, 6)), w.given("y", (n,), "int64")
    on = w.call("on", "aten.ne.Scalar", [y, -100], (n,), "bool")
    safe = w.call("safe", "aten.where.ScalarOther", [on, y, 0], (n,), "int64")
    column = w.call("column", "aten.unsqueeze.default", [safe, 1], (n, 1), "int64")
    entries = w.call("entries", "aten.gather.default", [x, 1, column], (n, 1))
    entries = w.call("row", "aten.squeeze.dim", [entries, 1], (n,))
    entries = w.call("counted", "aten.where.ScalarOther", [on, entries, 0], (n,))
    total = w.call("total", "aten.sum.default", [entries], ())
    count = w.call("count", "aten.sum.default", [on], (), "int64")
    if ranks > 1 and not own_mean:
        total, count = reduced(w, "totals", total, ()), reduced(w, "counts", count, ())
    mean = w.call("mean", "aten.div.Tensor", [total, count], ())
    if own_mean:
        mean = w.call("part", "aten.div.Scalar", [reduced(w, "means", mean, ()), ranks], ())
    return w.output(mean)
