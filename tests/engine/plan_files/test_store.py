"""Plans through Arrow: what comes back is what went in, and nothing else comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.findings import Finding
from shardproof.engine.plan.ir import (
    Body,
    Call,
    Group,
    Op,
    Plan,
    Program,
    Rounded,
    Shard,
    Source,
    Value,
    whole,
)
from shardproof.engine.plan.recorded import RecordedSlice
from shardproof.engine.plan_files import store
from shardproof.engine.plan_files.attributes import Encoder, decode
from shardproof.engine.plan_files.columns import to_columns
from shardproof.engine.plan_files.tables import declared_in

FILES = [f"{name}.arrow" for name in declared_in(2)]


def example(attrs: dict[str, Any] | None = None) -> Plan:
    """A plan that uses every field of the format."""
    forward = Body(
        "forward",
        (Value((4, 8), "float32", "x"), Value((8, 8), "float32", "w"), Value((1,), "float32", "y")),
        (
            Op("load_batch", (), (0,)),
            Op("made_up", (0, 1), (2,), attrs or {}, source=Source("cell 7", "layers.0", "m.py:3")),
        ),
        outputs=(2,),
        shards=((1, 0),),
        losses=(2,),
        claims=(RecordedSlice(5, (0, 4), (4, 12)), None, RecordedSlice(6, (0,), (1,), 1, 2)),
    )
    backward = Body(
        "backward",
        (Value((1,)), Value((4, 8), "float32", "x"), Value((8, 8)), Value((8, 8))),
        (Op("made_up", (1, 2, 0), (3,), {"wrt": (1,), "arity": 2}, True),),
        inputs=(0,),
        shards=((2, 0),),
        saved=((1, 0),),
        forward_body=0,
        gradients=((3, 0),),
    )
    reducer = Body(
        "reducer",
        (Value((8, 8)), Value((8, 8))),
        (Op("all_reduce", (0,), (1,), {"group": Group(axes=("dp",)), "op": "sum"}),),
        reduced=((0, 1, 0),),
    )
    calls = (Call(0, (), (0,), 0), Call(1, (1,), ()))
    single = Program("single", (forward, backward), calls, (whole("w", (8, 8)),), seeds=((1, 0),))
    shard = Shard("w", (16, 8), (8, 8), (affine(0, {"tp": 8}), Affine()), "bfloat16", False)
    ranks = Program(
        "ranks",
        (forward, backward, reducer),
        (*calls, Call(2)),
        (shard,),
        0,
        (("dp", 3, 2), ("tp", 2, 1)),
        ((1, 0),),
    )
    recorded = (Finding("metadata", "differs", "add", ranks=(0, 1), actual="2"),)
    rounded = (Rounded(0, 0, 1, "scale", Fraction(1, 3)),)
    return Plan(
        "example", single, (ranks,), 1, ("dp",), "mean", ("a note", "another"), recorded, rounded
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store.save(example(), tmp_path / "plan")
    return tmp_path / "plan"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
integers = st.integers() | st.integers(-(10**40), 10**40)
axes = st.sampled_from(["dp", "tp"])
affines = st.builds(affine, integers, st.dictionaries(axes, integers, max_size=2))
groups = st.builds(
    Group,
    st.lists(st.integers(0, 99), max_size=3).map(tuple),
    st.lists(axes, max_size=2).map(tuple),
)
scalars = st.none() | st.booleans() | texts | integers | st.fractions()
placeless = st.recursive(scalars, lambda x: st.lists(x, max_size=3).map(tuple), max_leaves=8)
attributes = placeless | affines | groups | st.tuples(affines, placeless, groups)


def kinds(value: Any) -> Any:
    """The value with its types, which `==` does not tell apart (True == 1)."""
    return [kinds(x) for x in value] if isinstance(value, tuple) else (type(value), value)


# -- round trips -----------------------------------------------------------------------------------


def test_a_plan_comes_back_from_a_folder(folder: Path) -> None:
    assert store.load(folder) == example()
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)


def test_a_plan_comes_back_from_bytes() -> None:
    assert store.from_bytes(store.to_bytes(example())) == example()


@given(st.lists(attributes, max_size=5))
def test_attributes_come_back_with_their_kinds(values: list[Any]) -> None:
    encoder = Encoder()
    numbers = [encoder.encode(value) for value in values]
    found = decode(encoder.rows, "here")
    assert [kinds(found[n]) for n in numbers] == [kinds(v) for v in values]
    assert len(set(encoder.rows)) == len(encoder.rows)


@given(st.dictionaries(texts, placeless, max_size=4))
def test_any_attributes_survive_a_plan(attrs: dict[str, Any]) -> None:
    plan = example(attrs)
    found = store.from_bytes(store.to_bytes(plan))
    assert found == plan
    assert store.digest(found) == store.digest(plan)


def test_equal_attributes_are_one_object() -> None:
    plan = example()
    found = store.from_bytes(store.to_bytes(plan))
    loads = [p.bodies[1].ops[0].attrs for p in (found.single, *found.programs)]
    assert loads[0] is loads[1]


def test_saving_replaces_a_plan_and_nothing_else(folder: Path) -> None:
    other = dataclasses.replace(example(), name="other")
    store.save(other, folder)
    assert store.load(folder) == other
    assert [p.name for p in folder.parent.iterdir()] == ["plan"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"plan: exists and holds more than a plan: notes\.txt"):
        store.save(example(), folder)
    assert store.from_bytes(store.to_bytes(other)) == other


def test_a_plan_that_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"made_up: an attribute of kind float: 0\.5"):
        store.save(example({"p": 0.5}), tmp_path / "plan")
    ranks = dataclasses.replace(example().programs[0], base=1 << 70)
    plan = dataclasses.replace(example(), programs=(ranks,))
    with pytest.raises(InvalidInput, match="table programs: cannot be stored"):
        store.save(plan, tmp_path / "plan")
    with pytest.raises(InvalidInput, match="cannot be stored: 'utf-8' codec can't encode"):
        store.save(example({"name": "\ud800"}), tmp_path / "plan")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="file: exists and is no folder"):
        store.save(example(), tmp_path / "file")


# -- the digest ------------------------------------------------------------------------------------


def test_the_digest_is_a_function_of_the_contents() -> None:
    assert store.digest(example()) == store.digest(example())
    assert store.digest(example({"a": 1, "b": 2})) == store.digest(example({"b": 2, "a": 1}))
    assert store.digest(example()) == (
        "36ba22a1be249ddc141f55d1b2b373010144af25f3438eaa39c4795f54ae9834"
    )


@pytest.mark.parametrize(
    "other",
    [
        example({"a": 1}),
        dataclasses.replace(example(), notes=("a note",)),
        dataclasses.replace(example(), loss="sum"),
        dataclasses.replace(example(), single=dataclasses.replace(example().single, name="s")),
    ],
)
def test_other_plans_have_other_digests(other: Plan) -> None:
    assert store.digest(other) != store.digest(example())


def test_kinds_of_numbers_are_told_apart() -> None:
    values = [1, True, Fraction(1), "1", (1,), affine(1)]
    assert len({store.digest(example({"a": value})) for value in values}) == len(values)


# -- what is wrong with a file ---------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_empty_or_cut_file_is_named(folder: Path, name: str) -> None:
    path = folder / name
    data = path.read_bytes()
    for size in {0, 1, 8, len(data) // 2, len(data) - 1}:
        path.write_bytes(data[:size])
        with pytest.raises(InvalidInput, match=f"{name}: is no Arrow file"):
            store.load(folder)
    path.unlink()
    with pytest.raises(InvalidInput, match=f"{name}: cannot be read: No such file"):
        store.load(folder)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere: is no plan folder"):
        store.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_never_another_plan(folder: Path, name: str) -> None:
    path, random_bytes = folder / name, random.Random(name)
    data = path.read_bytes()
    for _ in range(60):
        changed = bytearray(data)
        changed[random_bytes.randrange(len(data))] ^= 1 << random_bytes.randrange(8)
        path.write_bytes(changed)
        with contextlib.suppress(InvalidInput):
            assert store.load(folder) == example()


@pytest.mark.parametrize("cut", [0, 1, 100, 1000, -1])
def test_cut_bytes_are_refused(cut: int) -> None:
    with pytest.raises(InvalidInput, match="plan stream"):
        store.from_bytes(store.to_bytes(example())[:cut])


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="plan stream"):
        store.from_bytes(data)


def test_a_file_of_another_plan_is_noticed(folder: Path, tmp_path: Path) -> None:
    store.save(example({"a": 1}), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "attributes.arrow", folder)
    with pytest.raises(InvalidInput, match="the tables are of different plans"):
        store.load(folder)


def test_a_file_under_another_name_is_noticed(folder: Path) -> None:
    shutil.copy(folder / "calls.arrow", folder / "ops.arrow")
    with pytest.raises(
        InvalidInput, match="table ops: its metadata do not say 'shardproof plan 2'"
    ):
        store.load(folder)


def rewrite(folder: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    path = folder / f"{table}.arrow"
    changed = change(pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all())
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, changed.schema) as writer:
        writer.write_table(changed)


def test_other_columns_and_lost_rows_are_noticed(folder: Path) -> None:
    rewrite(folder, "calls", lambda t: t.slice(0, len(t) - 1))
    with pytest.raises(InvalidInput, match="the contents do not have the stored digest"):
        store.load(folder)
    rewrite(folder, "calls", lambda t: t.drop_columns(["body"]))
    with pytest.raises(InvalidInput, match="table calls: has other columns than declared: inputs"):
        store.load(folder)


def forged(table: str, column: str, row: int, value: object) -> bytes:
    """The example with one cell changed and the digest made to fit."""
    columns = to_columns(example({"k": (1, "x")}))
    columns.tables[table][column][row] = value
    return _pack(columns)


def _pack(columns: Any) -> bytes:
    original = store.to_columns
    try:
        store.to_columns = lambda _: columns  # type: ignore[assignment]
        return store.to_bytes(example())
    finally:
        store.to_columns = original


@pytest.mark.parametrize(
    ("table", "column", "row", "value", "message"),
    [
        ("programs", "bodies", 0, 9, "table bodies: 5 rows, expected 12"),
        ("programs", "axis_names", 1, ("dp",), r"table programs, row 1: lists of \[1, 2, 2\]"),
        ("programs", "axis_names", 1, ("dp", "dp"), r"parallel program ranks: axes \['dp', 'dp'\]"),
        ("programs", "axis_strides", 1, (1, 1), "example: rank 1 runs more than one program"),
        ("programs", "axis_extents", 1, (1 << 40, 2), r"example: \d+ ranks \(at most"),
        ("shards", "offset", 1, (99, 99), "table shards, row 1: w: offsets"),
        (
            "shards",
            "shape",
            1,
            (9, 8),
            r"shard w: \[8\*tp, \+9\) does not lie in a dimension of 16",
        ),
        ("shards", "full_shape", 0, (8,), "table shards, row 0"),
        ("bodies", "inputs", 1, (9,), "body 1 .backward.: an input is value 9, expected one of 4"),
        ("bodies", "outputs", 0, (-1,), "body 0 .forward.: gives out value -1"),
        ("bodies", "mirror", 1, 7, "mirror 7 of 2 bodies"),
        ("bodies", "saved_sources", 1, (5,), "reads context 5, its mirror has 3 values"),
        ("bodies", "saved_sources", 1, (1,), r"x has shape \[4, 8\], in its mirror \[8, 8\]"),
        ("bodies", "shard_numbers", 0, (1,), "shard 1, expected one of 1"),
        ("calls", "body", 0, 2, "call 0: body 2, expected one of 2"),
        (
            "calls",
            "inputs",
            0,
            (3,),
            "call 0: 1 inputs and 1 outputs for forward, expected 0 and 1",
        ),
        ("calls", "microbatch", 0, -2, "call 0: microbatch -2"),
        ("values", "shape", 0, (-4, 8), r"value 0 .x.: shape \[-4, 8\]"),
        ("ops", "inputs", 1, (0, 3), r"operator 1 .made_up.: reads value 3"),
        ("ops", "inputs", 1, (-1, 0), r"operator 1 .made_up.: reads value -1"),
        ("ops", "outputs", 1, (0,), "an output of operator 1 .made_up. is value 0"),
        ("ops", "attrs", 1, 99, "table ops, row 1: attrs is 99"),
        ("ops", "source", 0, -1, "table ops, row 0: source is -1"),
        ("attrs", "keys", 1, ("k", "k"), r"table attrs, row 1: keys \['k', 'k'\]"),
        ("attrs", "values", 1, (-1,), "table attrs, row 1"),
        ("attributes", "kind", 0, "float", "table attributes, row 0: not an attribute: float"),
        ("attributes", "text", 1, "01", "table attributes, row 1: not an attribute: integer '01'"),
        ("attributes", "items", 1, (1,), r"table attributes, row 1: refers to rows \[1\]"),
    ],
)
def test_wrong_contents_are_refused_with_their_place(
    table: str, column: str, row: int, value: object, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        store.from_bytes(forged(table, column, row, value))


def test_nested_attributes_have_a_limit() -> None:
    rows = [("none", "", ()), *(("tuple", "", (i, i)) for i in range(100))]
    with pytest.raises(InvalidInput, match="row 18: an attribute too large for a plan"):
        decode(rows, "here")
    wide = [("none", "", ()), *(("tuple", "", (i,) * 100) for i in range(10))]
    with pytest.raises(InvalidInput, match="an attribute too large for a plan"):
        decode(wide, "here")
    deep: Any = ()
    for _ in range(20):
        deep = (deep,)
    with pytest.raises(InvalidInput, match="more than 16 tuples in tuples"):
        Encoder().encode(deep)


def test_attributes_speak_of_axes_that_exist() -> None:
    with pytest.raises(InvalidInput, match=r"operator 1 .made_up.: start is over axes \['tp'\]"):
        store.from_bytes(store.to_bytes(example({"start": affine(0, {"tp": 4})})))


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        (RecordedSlice(1, (0, 4), (4,)), "is no part of a tensor"),
        (RecordedSlice(1, (4,), (0,)), "is no part of a tensor"),
        (RecordedSlice(1, (0,), (4,), 2, 2), "is no part of a tensor"),
    ],
)
def test_a_claim_that_is_none_is_named(claim: RecordedSlice, says: str) -> None:
    body = dataclasses.replace(example().single.bodies[0], claims=(claim, None, None))
    single = dataclasses.replace(example().single, bodies=(body, *example().single.bodies[1:]))
    with pytest.raises(InvalidInput, match=says) as error:
        store.from_bytes(store.to_bytes(dataclasses.replace(example(), single=single)))
    assert "table claims, row 0" in str(error.value)


def test_claims_about_other_values_are_noticed() -> None:
    body = dataclasses.replace(example().single.bodies[0], claims=(None,))
    single = dataclasses.replace(example().single, bodies=(body, *example().single.bodies[1:]))
    with pytest.raises(InvalidInput, match="1 claims about 3 values"):
        store.from_bytes(store.to_bytes(dataclasses.replace(example(), single=single)))
