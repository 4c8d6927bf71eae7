"""A plan as columns: the tables of the plan format, declared once, and the way in and out.

Nested things are consecutive: the bodies, calls and shards of a program, the values and operators
of a body are the next so many rows of their tables.  Attributes and sources are stored once and
referred to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from shardproof.engine import findings
from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan import assumption
from shardproof.engine.plan import constants as rounding
from shardproof.engine.plan.ir import (
    Addend,
    Attr,
    Body,
    Call,
    Expectation,
    Op,
    Plan,
    Program,
    Shard,
    Source,
    Value,
)
from shardproof.engine.plan.recorded import RecordedSlice, read_claim, read_claims
from shardproof.engine.plan_files.attributes import Encoder, decode
from shardproof.engine.plan_files.tables import TABLES, Columns, Table

T = TypeVar("T")


def _unzip(rows: Sequence[tuple[Any, ...]], width: int) -> list[tuple[Any, ...]]:
    return [tuple(row[i] for row in rows) for i in range(width)]


class _Writer:
    def __init__(self) -> None:
        self.tables: dict[str, Table] = {
            name: {column: [] for column in declared} for name, declared in TABLES.items()
        }
        self.encoder = Encoder()
        self.attrs: dict[tuple[tuple[str, int], ...], int] = {}
        self.attrs_by_id: dict[int, int] = {}
        self.sources: dict[Source, int] = {}
        self.claims: dict[RecordedSlice, int] = {}

    def row(self, table: str, *cells: object) -> None:
        for column, cell in zip(self.tables[table].values(), cells, strict=True):
            column.append(cell)

    def rows(self, table: str, *columns: Sequence[Any]) -> None:
        """Many rows, a column at a time: tables of values and operators have a hundred thousand."""
        for column, cells in zip(self.tables[table].values(), columns, strict=True):
            column += cells

    def program(self, program: Program) -> None:
        self.row(
            "programs",
            program.name,
            program.base,
            *_unzip(program.axes, 3),
            *_unzip(program.seeds, 2),
            len(program.bodies),
            len(program.calls),
            len(program.shards),
        )
        for shard in program.shards:
            offset = tuple(self.encoder.encode(x) for x in shard.offset)
            self.row(
                "shards",
                shard.name,
                shard.full_shape,
                shard.shape,
                offset,
                shard.dtype,
                shard.trainable,
                shard.updated_as,
                shard.kind,
                shard.domain or (),
            )
        for body in program.bodies:
            self.body(body)
        calls = program.calls
        self.rows(
            "calls",
            [x.body for x in calls],
            [x.inputs for x in calls],
            [x.outputs for x in calls],
            [x.microbatch for x in calls],
        )

    def body(self, body: Body) -> None:
        self.row(
            "bodies",
            body.name,
            len(body.values),
            len(body.ops),
            body.forward_body,
            body.inputs,
            body.outputs,
            body.losses,
            *_unzip(body.shards, 2),
            *_unzip(body.saved, 2),
            *_unzip(body.gradients, 2),
            *_unzip(body.reduced, 3),
            [-1 if x is None else self.claim(x) for x in body.claims],
            body.results,
        )
        values, ops = body.values, body.ops
        self.rows(
            "values", [x.name for x in values], [x.shape for x in values], [x.dtype for x in values]
        )
        self.rows(
            "ops",
            [x.name for x in ops],
            [x.inputs for x in ops],
            [x.outputs for x in ops],
            [self.attrs_row(x) for x in ops],
            [x.backward for x in ops],
            [self.source(x.source) for x in ops],
        )

    def expectation(self, row: Expectation) -> None:
        offset = tuple(self.encoder.encode(x) for x in row.offset)
        counts = len(row.single), len(row.parallel)
        self.row("expectations", row.kind, row.name, *counts, offset, row.required)
        for x in (*row.single, *row.parallel):
            weight = self.encoder.encode(x.weight)
            self.row("addends", x.program, x.body, x.value, weight, *_unzip(x.over, 2))

    def attrs_row(self, op: Op) -> int:
        number = self.attrs_by_id.get(id(op.attrs))
        if number is None:
            try:
                key = tuple((k, self.encoder.encode(op.attrs[k])) for k in sorted(op.attrs))
            except InvalidInput as error:
                raise error.within(f"operator {op.name}") from error
            number = self.attrs.get(key)
            if number is None:
                number = self.attrs[key] = len(self.attrs)
                self.row("attrs", *_unzip(key, 2))
            self.attrs_by_id[id(op.attrs)] = number
        return number

    def claim(self, claim: RecordedSlice) -> int:
        number = self.claims.get(claim)
        if number is None:
            number = self.claims[claim] = len(self.claims)
            self.row("claims", *claim)
        return number

    def source(self, source: Source) -> int:
        number = self.sources.get(source)
        if number is None:
            number = self.sources[source] = len(self.sources)
            self.row("sources", source.cell, source.module, source.location)
        return number


def to_columns(plan: Plan) -> Columns:
    """The plan as columns: equal plans give equal columns.

    Example: of the table "programs" of a plan for ``tp=2``, the columns ``name``
    (``["one", "ranks"]``) and ``axis_names`` (``[(), ("tp",)]``): the single-device program first.

    Raises `InvalidInput` for attributes that are none.
    """
    writer = _Writer()
    for program in (plan.single, *plan.programs):
        writer.program(program)
    for row in plan.expectations:
        writer.expectation(row)
    for kind, text, items in writer.encoder.rows:
        writer.row("attributes", kind, text, items)
    header = {
        "name": plan.name,
        "microbatches": plan.microbatches,
        "replica_axes": list(plan.replica_axes),
        "loss": plan.loss,
        "notes": list(plan.notes),
        "recorded": [findings.listed(finding) for finding in plan.recorded],
        "rounded": [rounding.listed(place) for place in plan.rounded],
    }
    if plan.assumed:
        header["assumed"] = [assumption.listed(assumed) for assumed in plan.assumed]
    return Columns(header, writer.tables)


class _Reader:
    """Rows of the tables as the objects that they hold."""

    def __init__(self, columns: Columns) -> None:
        self.tables = columns.tables
        self.attributes = decode(list(self.rows("attributes")), "table attributes")
        self.attrs: list[Mapping[str, Attr]] = [
            self.mapping(row, keys, values) for row, (keys, values) in enumerate(self.rows("attrs"))
        ]
        self.sources = [Source(*row) for row in self.rows("sources")]
        self.claims = [read_claim(n, cells) for n, cells in enumerate(self.rows("claims"))]
        self.check("ops", "attrs", len(self.attrs))
        self.check("ops", "source", len(self.sources))

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        return zip(*self.tables[table].values(), strict=True)

    def check(self, table: str, column: str, count: int) -> None:
        """Every cell of a reference column must be in range."""
        cells = self.tables[table][column]
        if cells and not (min(cells) >= 0 and max(cells) < count):
            row = next(i for i, x in enumerate(cells) if not 0 <= x < count)
            raise InvalidInput(
                f"{column} is {cells[row]}, expected less than {count}", f"table {table}, row {row}"
            )

    def mapping(self, row: int, keys: Sequence[str], values: Sequence[int]) -> dict[str, Attr]:
        distinct = len(set(keys)) == len(keys) == len(values)
        if not distinct or any(not 0 <= v < len(self.attributes) for v in values):
            raise InvalidInput(
                f"keys {list(keys)} with attributes {list(values)}", f"table attrs, row {row}"
            )
        return {k: self.attributes[v] for k, v in zip(keys, values, strict=True)}

    def shards(self) -> list[Shard]:
        shards = []
        for row, cells in enumerate(self.rows("shards")):
            name, full, shape, offset, dtype, trainable, updated_as, kind, domain = cells
            where = f"table shards, row {row}"
            if not len(full) == len(shape) == len(offset):
                raise InvalidInput(
                    f"{name}: full shape {list(full)}, shape {list(shape)}, {len(offset)} offsets",
                    where,
                )
            if len(domain) not in (0, 2):
                raise InvalidInput(f"{name}: a domain of {len(domain)} numbers", where)
            exact = self.positions(offset, name, where)
            within = (domain[0], domain[1]) if domain else None
            shards.append(
                Shard(name, full, shape, exact, dtype, trainable, updated_as, kind, within)
            )
        return shards

    def positions(self, rows: Sequence[int], name: str, where: str) -> tuple[Affine, ...]:
        starts = [self.attributes[i] if 0 <= i < len(self.attributes) else None for i in rows]
        exact = tuple(x for x in starts if isinstance(x, Affine))
        if len(exact) < len(starts):
            raise InvalidInput(f"{name}: offsets {starts} are no positions", where)
        return exact

    def expectations(self) -> tuple[Expectation, ...]:
        addends = [self.addend(n, cells) for n, cells in enumerate(self.rows("addends"))]
        table = self.tables["expectations"]
        both = [n for pair in zip(table["single"], table["held"], strict=True) for n in pair]
        own = _divide(addends, both, "addends")
        expectations = []
        for row, cells in enumerate(self.rows("expectations")):
            kind, name, _, _, offset, required = cells
            place = self.positions(offset, name, f"table expectations, row {row}")
            expectations.append(Expectation(kind, name, next(own), next(own), place, required))
        return tuple(expectations)

    def addend(self, row: int, cells: tuple[Any, ...]) -> Addend:
        program, body, value, weight, axes, ways = cells
        where = f"table addends, row {row}"
        known = self.attributes[weight] if 0 <= weight < len(self.attributes) else None
        if not isinstance(known, Fraction):
            raise InvalidInput(f"weight {known} is no number", where)
        return Addend(program, body, value, known, _zip(where, (axes, ways)))

    def bodies(self) -> list[Body]:
        values = [Value(shape, dtype, name) for name, shape, dtype in self.rows("values")]
        ops = [
            Op(name, inputs, outputs, self.attrs[attrs], backward, self.sources[source])
            for name, inputs, outputs, attrs, backward, source in self.rows("ops")
        ]
        table = self.tables["bodies"]
        own_values = _divide(values, table["values"], "values")
        own_ops = _divide(ops, table["ops"], "ops")
        return [
            self.body(row, cells, next(own_values), next(own_ops))
            for row, cells in enumerate(self.rows("bodies"))
        ]

    def body(
        self, row: int, cells: tuple[Any, ...], values: tuple[Value, ...], ops: tuple[Op, ...]
    ) -> Body:
        name, _, _, mirror, inputs, outputs, losses = cells[:7]
        where = f"table bodies, row {row}"
        return Body(
            name,
            values,
            ops,
            inputs,
            outputs,
            _zip(where, cells[7:9]),
            _zip(where, cells[9:11]),
            mirror,
            _zip(where, cells[11:13]),
            _zip(where, cells[13:16]),
            losses,
            read_claims(where, cells[16], len(values), self.claims),
            cells[17],
        )

    def programs(self) -> list[Program]:
        calls = [Call(*cells) for cells in self.rows("calls")]
        table = self.tables["programs"]
        own_bodies = _divide(self.bodies(), table["bodies"], "bodies")
        own_calls = _divide(calls, table["calls"], "calls")
        own_shards = _divide(self.shards(), table["shards"], "shards")
        programs = []
        for row, cells in enumerate(self.rows("programs")):
            where = f"table programs, row {row}"
            programs.append(
                Program(
                    cells[0],
                    next(own_bodies),
                    next(own_calls),
                    next(own_shards),
                    cells[1],
                    _zip(where, cells[2:5]),
                    _zip(where, cells[5:7]),
                )
            )
        return programs


def _zip(where: str, columns: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    if len({len(c) for c in columns}) > 1:
        lengths = [len(c) for c in columns]
        raise InvalidInput(f"lists of {lengths} parts that belong together", where)
    return tuple(zip(*columns, strict=True))


def _divide(rows: Sequence[T], counts: Sequence[int], table: str) -> Iterator[tuple[T, ...]]:
    """Consecutive rows by count; the counts must add up."""
    if any(n < 0 for n in counts) or sum(counts) != len(rows):
        raise InvalidInput(
            f"{len(rows)} rows, expected {sum(counts)} as counted by what they belong to",
            f"table {table}",
        )
    return _slices(rows, counts)


def _slices(rows: Sequence[T], counts: Sequence[int]) -> Iterator[tuple[T, ...]]:
    start = 0
    for count in counts:
        yield tuple(rows[start : start + count])
        start += count


def from_columns(columns: Columns) -> Plan:
    """The plan that columns hold; raises `InvalidInput` naming table and row.

    Example: with -1 microbatches in the header, "header: microbatches is -1".

    References between tables are in range; whether the plan makes sense is `wellformed`'s matter.
    """
    reader = _Reader(columns)
    programs = reader.programs()
    if not programs:
        raise InvalidInput("no rows, expected the single-device program first", "table programs")
    fields: list[tuple[str, Callable[[Any], bool]]] = [
        ("name", lambda x: isinstance(x, str)),
        ("microbatches", lambda x: isinstance(x, int) and not isinstance(x, bool) and x > 0),
        ("replica_axes", _is_texts),
        ("loss", lambda x: x in ("sum", "mean")),
        ("notes", _is_texts),
        ("recorded", findings.are_listed),
        ("rounded", rounding.are_listed),
        ("assumed", assumption.are_listed),
    ]
    header = {"assumed": [], **columns.header}  # where none is, none is listed
    for key, valid in fields:
        if key not in header or not valid(header[key]):
            raise InvalidInput(f"{key} is {header.get(key)!r}", "header")
    return Plan(
        header["name"],
        programs[0],
        tuple(programs[1:]),
        header["microbatches"],
        tuple(header["replica_axes"]),
        header["loss"],
        tuple(header["notes"]),
        tuple(findings.unlisted(cells) for cells in header["recorded"]),
        tuple(rounding.unlisted(cells) for cells in header["rounded"]),
        tuple(assumption.unlisted(cells) for cells in header["assumed"]),
        reader.expectations(),
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(x, str) for x in value)
