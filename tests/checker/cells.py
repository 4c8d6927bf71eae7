"""Single cells of a stored run, changed to another value of their type and stored again with every
digest that follows from them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shardproof.engine.plan_files import store
from shardproof.engine.plan_files.columns import from_columns, to_columns
from shardproof.engine.plan_files.tables import TABLES as PLAN_TABLES
from shardproof.engine.plan_files.tables import Columns
from shardproof.engine.records.certificate import FORMAT
from shardproof.engine.records.run import SUFFIX, TABLES, text_digest
from shardproof.engine.storage.tables import decode, encode, write_file

Table = dict[str, list[Any]]


class Cell(NamedTuple):
    """Another value in a row and column of a table."""

    table: str
    column: str
    row: int
    value: Any


def others(kind: str, cells: list[Any], row: int, rng: random.Random) -> list[Any]:
    """Other values that a cell of the kind may have: one of another row, and one beside it."""
    old = cells[row]
    pool = sorted({cell for cell in cells if cell != old}, key=repr)
    found = [rng.choice(pool)] if pool else []
    match kind:
        case "number" | "ref" | "count":
            found.append(old + 1)
        case "flag":
            found.append(not old)
        case "numbers" | "refs" if old:
            found += [(*old[:-1], old[-1] + 1), old[:-1]]
        case "words":
            found.append(() if "tp" in old else (*old, "tp"))
        case "word" | "text":
            found.append(f"{old}x")
    return [value for value in dict.fromkeys(found) if value != old]


def read_tables(run: Path) -> dict[str, Table]:
    return {
        name: decode(name, declared, (run / (name + SUFFIX)).read_bytes(), FORMAT)
        for name, declared in TABLES.items()
    }


def sampled(
    tables: Mapping[str, Table],
    declared: Mapping[str, Mapping[str, str]],
    count: int,
    rng: random.Random,
) -> Iterator[Cell]:
    """Changes of so many rows of every column."""
    for table, columns in declared.items():
        for column, kind in columns.items():
            cells = tables[table][column]
            for row in rng.sample(range(len(cells)), min(count, len(cells))):
                for value in others(kind, list(map(_hashable, cells)), row, rng):
                    yield Cell(table, column, row, value)


def _hashable(cell: Any) -> Any:
    return tuple(cell) if isinstance(cell, list) else cell


def _with(columns: Table, cell: Cell) -> Table:
    changed = {name: list(cells) for name, cells in columns.items()}
    changed[cell.column][cell.row] = cell.value
    return changed


def store_changed(run: Path, tables: Mapping[str, Table], cell: Cell) -> None:
    """Change a cell of a run; the certificate names the file as it is then, and a template has the
    digest of its texts."""
    changed = _with(tables[cell.table], cell)
    if cell.table == "templates" and cell.column in ("linear", "nonlinear"):
        texts = changed["linear"][cell.row], changed["nonlinear"][cell.row]
        changed["sha256"][cell.row] = text_digest(*texts)
    data = encode(cell.table, TABLES[cell.table], changed, FORMAT)
    digest = write_file(run / (cell.table + SUFFIX), data)
    certificate = _certificate(run)
    certificate["files"][cell.table + SUFFIX] = digest
    if cell.table == "conclusions":
        found: dict[str, list[int]] = {}
        for kind, holds in zip(changed["kind"], changed["holds"], strict=True):
            held = found.setdefault(kind, [0, 0])
            held[0] += holds
            held[1] += 1
        certificate["conclusions"] = dict(sorted(found.items()))
    _write(run, certificate)


def store_plan(run: Path, columns: Columns, cell: Cell) -> Any:
    """Change a cell of the plan of a run, digest and all; the plan that it is then.  Raises
    `engine.errors.InvalidInput` for what is no plan."""
    tables = {**columns.tables, cell.table: _with(columns.tables[cell.table], cell)}
    plan = from_columns(Columns(columns.header, tables))
    store.save(plan, run / "plan")
    certificate = _certificate(run)
    certificate["plan"] = store.digest(plan)
    _write(run, certificate)
    return plan


def plan_cells(run: Path, count: int, rng: random.Random) -> tuple[Columns, list[Cell]]:
    columns = to_columns(store.load(run / "plan"))
    return columns, list(sampled(columns.tables, PLAN_TABLES, count, rng))


def fresh(run: Path, folder: Path) -> Path:
    """A copy of a run, in place of the last one."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(run, folder)
    return folder


def _certificate(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "certificate.json").read_bytes()))


def _write(run: Path, certificate: Mapping[str, Any]) -> None:
    (run / "certificate.json").write_bytes(msgspec.json.encode(certificate))
