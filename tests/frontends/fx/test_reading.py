"""What a file may hold: everything else is refused with one line that names the file and the
node."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.engine.reference_runtime.compare import worst
from shardproof.frontends.frontend import of
from shardproof.frontends.fx import place, records
from shardproof.frontends.fx.files import side
from shardproof.frontends.fx.read import joined
from shardproof.frontends.graphs import relations
from shardproof.frontends.graphs.relations import InputRelation, Relations
from tests.frontends.fx.graphs import Writer, argument, model, named, ref, target, write


def file(tmp_path: Path, data: bytes, name: str = "r0.json") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def changed(**fields: Any) -> bytes:
    graph = model()
    named(graph, "gelu").update(fields)
    return json.dumps(graph).encode()


GOOD = json.dumps(model()).encode()
BAD: dict[str, tuple[bytes, str]] = {
    "truncated": (GOOD[:-20], "expected a graph in JSON"),
    "no JSON": (b"\x00\x01", "expected a graph in JSON"),
    "truncated gzip": (gzip.compress(GOOD)[:-20], "gzip"),
    "another gzip": (b"\x1f\x8b" + b"0" * 50, "gzip"),
    "nested": (b'{"rank": 0, "nodes": ' + b"[" * 200_000, "expected a graph in JSON"),
    "nested arguments": (
        GOOD.replace(b'"args": []', b'"args": ' + b"[" * 5000 + b"]" * 5000, 1),
        "expected a graph in JSON",
    ),
    "no nodes": (b'{"rank": 0, "nodes": []}', "0 nodes"),
    "another field": (changed(code="import os"), "unknown field `code`"),
    "a kind": (changed(op="call_module"), "a node of kind"),
    "a name": (changed(name="add"), "is given twice"),
    "an order": (changed(args=[ref("mm_1")]), "which is not given before"),
    "a negative size": (changed(shape=[-1]), "a shape of"),
    "a great size": (changed(shape=[1 << 40, 1 << 40]), "a shape of"),
    "a size that is none": (changed(shape=["4"]), "expected a graph in JSON"),
    "a rank": (GOOD.replace(b'"rank": 0', b'"rank": -1'), "rank -1"),
    "a great rank": (GOOD.replace(b'"rank": 0', b'"rank": 99999999'), "rank 99999999"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, what: str) -> None:
    data, message = BAD[what]
    with pytest.raises(InvalidInput) as error:
        records.read(file(tmp_path, data))
    assert message in str(error.value)
    assert "r0.json" in str(error.value)


def test_a_good_file_is_read_as_it_is_or_compressed(tmp_path: Path) -> None:
    plain = records.read(file(tmp_path, GOOD))
    assert plain == records.read(file(tmp_path, gzip.compress(GOOD), "r1.json.gz"))
    assert [node.name for node in plain.inputs] == ["ids", "table", "up", "bias", "down"]
    assert of(tmp_path / "r0.json").name == of(tmp_path / "r1.json.gz").name == "FX graphs"


def test_what_unpacks_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_BYTES", 1 << 10)
    for data in (GOOD, gzip.compress(GOOD)):
        with pytest.raises(InvalidInput, match="is larger than"):
            records.read(file(tmp_path, data))


def test_files_of_ranks_are_in_order_and_complete(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", [model(rank, 4) for rank in (2, 0, 3, 1)])
    assert [graph.rank for graph in side(folder)] == [0, 1, 2, 3]
    (folder / "fw.g0.r1.json.gz").rename(folder / "fw.g0.r4.json.gz")
    with pytest.raises(InvalidInput, match=r"found ranks \[0, 2, 3, 4\]"):
        side(folder)


def test_the_graph_of_another_rank_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", [model(rank, 2) for rank in range(2)])
    (folder / "fw.g0.r0.json.gz").write_bytes(gzip.compress(json.dumps(model(1, 2)).encode()))
    with pytest.raises(InvalidInput, match="expected the graph of rank 0, found that of rank 1"):
        side(folder)


# -- relations ---------------------------------------------------------------------------------

REFUSED = {
    "inputs.x = {shard = 0, replicated = true}": "expected one placement",
    "inputs.x = {}": "expected one placement",
    "inputs.x = {shard = 0}\ninputs.x = {shard = 1}": "is no TOML",
    "[inputs.x]\nshard = 0\n[inputs.x]\nreplicated = true": "is no TOML",
    "inputs.x = {shard = -1}": "inputs",
    'inputs.x = {shard = "0"}': "inputs",
    "inputs.x = {shard = 0, axis = 1}": "unknown field `axis`",
    "[unknown]": "unknown field `unknown`",
    '[[outputs]]\nsingle = "a"': "expected names",
    '[[outputs]]\nsingle = "a"\nparallel = "b"\nsum = true\nshard = 0': "at most one placement",
    "domains.x = [4, 4]": "an empty domain",
    "inputs.x = {shard = 0, dim = 1}": "inputs.x: dim is that of pieces, and there are none",
    "constants.x = nan": "constants.x: expected a real number, found nan",
    "constants.x = -inf": "constants.x: expected a real number, found -inf",
    'groups."7" = [[0, 1], []]': "groups.7: a group of no rank",
}


@pytest.mark.parametrize("text", REFUSED)
def test_relations_are_read_strictly(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as error:
        relations.read(path)
    assert REFUSED[text] in str(error.value)
    assert "r.toml" in str(error.value)


def test_what_is_said_with_numbers_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    said = "inputs.x = {pieces = [[0, 4]], dim = 1}", "constants.x = 1e308", "groups.7 = [[0], [1]]"
    path.write_text("\n".join(said))
    read = relations.read(path)
    assert (read.inputs["x"].dim, read.constants["x"]) == (1, 1e308)
    assert read.groups["7"] == [[0], [1]]


def graphs(ranks: int = 2) -> tuple[records.Graph, list[records.Graph]]:
    import msgspec

    convert = msgspec.convert
    return convert(model(), records.Graph), [
        convert(model(rank, ranks), records.Graph) for rank in range(ranks)
    ]


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        (InputRelation(shard=1), "up: a shard of"),
        (InputRelation(replicated=True), "up: is all of"),
        (InputRelation(starts=[[0, 0]]), "on each of 2 ranks"),
        (InputRelation(starts=[[0, 0], [9, 0]]), "on each of 2 ranks"),
        (InputRelation(shard=0, of="nothing"), "no such input"),
        (InputRelation(pieces=[[0, 6]]), "pieces of 6 positions of"),
        (InputRelation(pieces=[[0, 6], [6, 6, 2]]), "pieces of 9 positions in"),
        (InputRelation(pieces=[[0, 5], [5, 7]]), "a piece of 5 from 0"),
        (InputRelation(pieces=[[0, 6], [8, 4]]), "a piece of 4 from 8"),
        (InputRelation(pieces=[[0, 6], [6, 6, 3]]), "of which every 3 ranks"),
    ],
)
def test_a_stated_placement_fits_the_shapes(relation: InputRelation, message: str) -> None:
    single, ranks = graphs()
    with pytest.raises(InvalidInput, match=message):
        joined(single, ranks, Relations(inputs={"up": relation}))


def test_a_stated_placement_is_the_one_in_the_plan() -> None:
    single, ranks = graphs()
    swapped = InputRelation(starts=[[6, 0], [0, 0]])
    plan = joined(single, ranks, Relations(inputs={"up": swapped}))
    (shard,) = (s for s in plan.programs[0].shards if s.name == "up")
    assert [shard.offset[0].at({"axis0": rank}) for rank in range(2)] == [6, 0]
    assert any(a.kind == "stated" and a.about == "up" for a in plan.assumed)


def test_a_group_is_all_ranks_unless_the_file_says_otherwise() -> None:
    single, ranks = graphs(4)
    plan = joined(single, ranks, Relations())
    held = [op.attrs["group"] for op in plan.programs[0].bodies[0].ops if "group" in op.attrs]
    assert held
    assert all(group.axes == ("axis0",) for group in held)  # type: ignore[union-attr]
    pairs = joined(single, ranks, Relations(groups={"7": [[0, 1], [2, 3]]}))
    axes = {
        op.attrs["group"].axes  # type: ignore[union-attr]
        for op in pairs.programs[0].bodies[0].ops
        if "group" in op.attrs
    }
    assert axes == {("axis1",)}
    for wrong in ([[0, 1]], [[0, 1], [1, 2, 3]], [[0, 1, 2, 3, 4]]):
        with pytest.raises(InvalidInput, match=r"groups\.7"):
            joined(single, ranks, Relations(groups={"7": wrong}))


@pytest.mark.parametrize(
    ("full", "part", "ranks", "expected"),
    [
        ((8, 4), (8, 4), 2, ((0, 0), (0, 0))),
        ((8, 4), (4, 4), 2, ((0, 0), (4, 0))),
        ((8, 4), (8, 1), 4, ((0, 0), (0, 1), (0, 2), (0, 3))),
        ((8, 4), (4, 2), 2, None),
        ((8, 4), (4, 4), 4, None),
        ((8, 4), (4, 8), 2, None),
        ((8,), (8, 1), 2, None),
    ],
)
def test_only_equal_and_contiguous_parts_are_inferred(
    full: place.Shape, part: place.Shape, ranks: int, expected: tuple[place.Shape, ...] | None
) -> None:
    if expected is None:
        with pytest.raises(InvalidInput, match="nothing says which part"):
            place.inferred("input", "x", full, part, ranks)
    else:
        assert place.inferred("input", "x", full, part, ranks).box.starts == expected


def test_names_that_are_numbers_are_said_to_be_positions() -> None:
    for name in ("primals_4", "p1.2", "arg3_1", "tangents_21"):
        assert place.NUMBERED.match(name)
    for name in ("weight", "layers.0.weight", "arg", "up_4"):
        assert not place.NUMBERED.match(name)


def test_ranks_that_differ_are_programs_of_their_own() -> None:
    single, _ = graphs()
    import msgspec

    given = [model(rank, 2) for rank in range(2)]
    argument("scaled", 1, 0.25)(given[1])
    target("gelu", "aten.silu.default")(given[1])
    plan = joined(single, [msgspec.convert(g, records.Graph) for g in given], Relations())
    assert [program.base for program in plan.programs] == [0, 1]


def fused(rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Gate and up in one weight, cut apart behind the product."""
    w = Writer(rank)
    wide = 8 // ranks
    x, weight = w.given("x", (3, 4)), w.given("weight", (4, wide))
    y = w.call("mm", "aten.mm.default", [x, weight], (3, wide))
    half = wide // 2
    a = w.call("gate", "aten.slice.Tensor", [y, 1, 0, half], (3, half))
    b = w.call("up", "aten.slice.Tensor", [y, 1, half, wide], (3, half))
    return w.output(w.call("mul", "aten.mul.Tensor", [a, b], (3, half)))


def read(given: dict[str, Any]) -> records.Graph:
    import msgspec

    return msgspec.convert(given, records.Graph)


def test_pieces_of_a_fused_input_are_inputs_of_both_sides() -> None:
    single, ranks = read(fused()), [read(fused(rank, 2)) for rank in range(2)]
    input_relation = InputRelation(pieces=[[0, 4], [4, 4]], dim=1)
    plan = joined(single, ranks, Relations(inputs={"weight": input_relation}))
    names = ["weight[:, 0:4]", "weight[:, 4:8]"]
    assert [s.name for s in plan.single.shards if "weight" in s.name] == names
    for name in names:
        (shard,) = [s for s in plan.programs[0].shards if s.name == name]
        assert (shard.full_shape, shard.shape) == ((4, 4), (4, 2))
        assert [shard.offset[1].at({"axis0": rank}) for rank in range(2)] == [0, 2]
    off, where = worst(plan, 3)
    assert off < 1e-9, where
    wrong = joined(single, ranks, Relations(inputs={"weight": InputRelation(shard=1)}))
    assert worst(wrong, 3)[0] > 1e-3


def test_of_two_placements_that_fit_the_one_is_taken_with_which_numbers_agree() -> None:
    single, ranks = read(fused()), [read(fused(rank, 2)) for rank in range(2)]
    plan = joined(single, ranks, Relations())
    assert len([s for s in plan.programs[0].shards if "weight" in s.name]) == 2
    (assumption,) = [a for a in plan.assumed if a.about == "weight"]
    assert assumption.kind == "inferred"
    assert "pieces = [[0, 4], [4, 4]]; shard = 1 fits, too" in assumption.text


def sliced(rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """A product whose halves are put together again: a rank has its own columns of it."""
    w = Writer(rank)
    wide = 8 // ranks
    x, weight = w.given("x", (3, 4)), w.given("weight", (4, wide))
    y = w.call("mm", "aten.mm.default", [x, weight], (3, wide))
    half = wide // 2
    a = w.call("one", "aten.slice.Tensor", [y, 1, 0, half], (3, half))
    b = w.call("two", "aten.slice.Tensor", [y, 1, half, wide], (3, half))
    return w.output(w.call("cat", "aten.cat.default", [[a, b], 1], (3, wide)))


def test_a_contiguous_shard_is_taken_where_numbers_agree_with_it_alone() -> None:
    plan = joined(read(sliced()), [read(sliced(rank, 2)) for rank in range(2)], Relations())
    assert [s.name for s in plan.programs[0].shards if "weight" in s.name] == ["weight"]
    *_, assumption = [a for a in plan.assumed if a.about == "weight"]
    assert assumption.kind == "inferred"
    assert "is taken as shard = 1" in assumption.text


def test_a_placement_is_no_excuse_where_sides_differ_with_each() -> None:
    given = [fused(rank, 2) for rank in range(2)]
    for graph in given:
        target("mul", "aten.sub.Tensor")(graph)
    plan = joined(read(fused()), [read(graph) for graph in given], Relations())
    (assumption,) = (a for a in plan.assumed if a.about == "weight")
    assert assumption.kind == "inferred"
    assert "the sides differ under it, too" in assumption.text


def test_one_side_alone_is_a_plan_without_results(tmp_path: Path) -> None:
    path = file(tmp_path, GOOD)
    plan = of(path).read_side(path)
    assert [op.name for op in plan.programs[0].bodies[0].ops]
    assert not plan.expectations


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"kwargs": {"float": "Infinity"}}, None),
        ({"target": "<built-in function getitem>", "args": [{"n": "x"}, 1 << 40]}, "a result of"),
    ],
)
def test_arguments_that_no_exporter_writes(
    node: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    """A keyword that is called as special floats are is one; a result is one of some."""
    x = {"name": "x", "op": "placeholder", "target": "x", "args": [], "kwargs": {}}
    y = {"name": "y", "op": "call_function", "target": "aten.exp.default", "args": [{"n": "x"}]}
    end = {"name": "output", "op": "output", "target": "output", "args": [[{"n": "y"}]]}
    kind = {"shape": [2], "dtype": "float32"}
    nodes = [x | kind, {"kwargs": {}} | y | kind | node, end | {"kwargs": {}}]
    (tmp_path / "graph.json").write_text(json.dumps({"rank": 0, "nodes": nodes}))
    if message is None:
        assert records.read(tmp_path / "graph.json").nodes[1].kwargs == {"float": "Infinity"}
        return
    with pytest.raises(InvalidInput, match=message):
        records.read(tmp_path / "graph.json")


def test_an_argument_that_is_nothing_is_not_understood(tmp_path: Path) -> None:
    w = Writer(0)
    x = w.given("x", ())
    y = w.call("y", "aten.detach.default", [{"float": 3}], ())
    path = file(tmp_path, json.dumps(w.output(x, y)).encode())
    (graph,) = side(path)
    notes = " ".join(map(str, joined(graph, [graph], Relations()).notes))
    assert "an argument that is no operand, number or list" in notes


def test_a_collective_of_nothing_is_refused(tmp_path: Path) -> None:
    w = Writer(0)
    x = w.given("x", ())
    y = w.call("y", "_c10d_functional.all_reduce.default", [{"float": 3}, "sum", "0"], ())
    (graph,) = side(file(tmp_path, json.dumps(w.output(x, y)).encode()))
    with pytest.raises(InvalidInput, match="rank 0, y"):
        joined(graph, [graph], Relations())
