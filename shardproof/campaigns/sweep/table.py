"""The tables of a sweep: every run, from which it resumes, and every point, for people.

``runs.arrow`` is replaced as a whole after each run, by a rename, so that a sweep killed anywhere
leaves the runs before it.  ``points.arrow`` and ``points.csv`` have one row per point: its
parameters, and the medians of its runs.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from shardproof.campaigns.sweep.measure import INTERNAL, VERDICTS, Run
from shardproof.campaigns.sweep.spec import Scalar, Sweep
from shardproof.engine.errors import InvalidInput

RUNS: Final = "runs.arrow"
POINTS: Final = "points"

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
}
_MEASURED: Final = tuple((f.name, _TYPES[str(f.type)]) for f in fields(Run))
SCHEMA: Final = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _MEASURED])

Row = dict[str, Any]


def read_runs(folder: Path) -> list[Run]:
    """The runs that a folder holds; raises `InvalidInput` for another file under that name.

    Example: of a sweep that was killed in its fourth run, three.
    """
    path = folder / RUNS
    if not path.exists():
        return []
    try:
        with pa.OSFile(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(f"expected the runs of a sweep: {error}", str(path)) from error
    if table.schema != SCHEMA:
        raise InvalidInput("expected the runs of a sweep of this version", str(path))
    return [Run(**row) for row in table.to_pylist()]


def write_runs(folder: Path, runs: Iterable[Run]) -> None:
    """Write the table of runs, from which a sweep resumes.

    Example: one row per run: ``key``, ``verdict``, ``reason``, ``ranks``, ... ``peak_mib``.
    """
    _write(folder / RUNS, pa.Table.from_pylist([run.row() for run in runs], schema=SCHEMA))


def point_rows(sweep: Sweep, keys: Sequence[str], runs: Iterable[Run]) -> list[Row]:
    """One row per point of a sweep that has runs; ``keys``: of its points, in their order.

    Example: ``{"sweep": "growth", "model": "llama", "tp": 2, "key": ..., "verdict": "proved",
    ...}``.
    """
    runs_of: dict[str, list[Run]] = {}
    for run in runs:
        runs_of.setdefault(run.key, []).append(run)
    names = list(dict.fromkeys(name for point in sweep.points for name in point.parameters))
    rows = []
    for point, key in zip(sweep.points, keys, strict=True):
        mine = runs_of.get(key, [])[: sweep.repeat]
        if mine:
            parameters = {name: point.parameters.get(name) for name in names}
            rows.append({"sweep": sweep.name, **parameters, **medians(mine)})
    return rows


def medians(runs: Sequence[Run]) -> Row:
    """The runs of one point as one row: the worst verdict with its reason, medians of the rest.

    Example: runs of 3.8, 3.9 and 5.0 s, one of them refuted, are "refuted" with 3.9 s.
    """
    worst = min(runs, key=lambda run: list(VERDICTS).index(run.verdict))
    row: Row = {"key": worst.key, "verdict": worst.verdict, "reason": worst.reason}
    row["runs"] = len(runs)
    for name, kind in _MEASURED[3:]:
        middle = statistics.median(getattr(run, name) for run in runs)
        row[name] = int(middle) if pa.types.is_integer(kind) else middle
    templates = row["templates"]
    row["obligations_per_template"] = row["obligations"] / templates if templates else None
    row["operators_per_template"] = row["parallel_operators"] / templates if templates else None
    return row


def write_points(folder: Path, rows: Sequence[Row]) -> None:
    """The table of points, as Arrow and as CSV; columns of all sweeps together.

    Example: a point without ``pp`` has an empty cell in the column that others have.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    # Parameters of later sweeps belong beside those of the first one.
    columns = sorted(names, key=lambda name: _order(name, names))
    data = {name: _column([row.get(name) for row in rows]) for name in columns}
    _write(folder / f"{POINTS}.arrow", pa.table(data))
    text = io.StringIO(newline="")
    out = csv.writer(text, lineterminator="\n")
    out.writerow(columns)
    for row in rows:
        out.writerow([_cell(row.get(name)) for name in columns])
    _replace(folder / f"{POINTS}.csv", text.getvalue().encode())


def worst(rows: Iterable[Row]) -> str:
    """The worst verdict of some rows; of none: nothing was shown.

    Example: "refuted" of "proved" and "refuted"; "internal error" of no rows.
    """
    verdicts = {row["verdict"] for row in rows}
    return next((verdict for verdict in VERDICTS if verdict in verdicts), INTERNAL)


def _order(name: str, columns: Sequence[str]) -> tuple[int, int]:
    measured = ("key", "verdict", "reason", "runs", *(n for n, _ in _MEASURED[3:]))
    measured += ("obligations_per_template", "operators_per_template", "compared")
    if name == "sweep":
        return 0, 0
    if name in measured:
        return 2, measured.index(name)
    return 1, columns.index(name)


def _column(values: list[Scalar | None]) -> pa.Array:
    """Of one type: text where values are of several."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 and kinds != {int, float}:
        values = [None if value is None else str(value) for value in values]
    if kinds == {int, float}:
        values = [None if value is None else float(value) for value in values]
    return pa.array(values)


def _cell(value: Scalar | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write(path: Path, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    _replace(path, sink.getvalue())


def _replace(path: Path, data: bytes | pa.Buffer) -> None:
    """Write a file, whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    draft.rename(path)
