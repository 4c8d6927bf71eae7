"""Plans on disk and between processes: Arrow IPC.

A plan's folder holds one Arrow file per table of `engine.plan_files.tables`; the schema metadata of
each says which table of which plan it is, that of ``programs.arrow`` also what is said once about
the plan.  Arrow has no checksums: the digest of the contents is stored with them, so that a changed
byte, or a file of another plan, is noticed.  `to_bytes` packs the same tables into one stream.

Whatever is wrong with what is read is an `InvalidInput` with the file and the place in it.  Memory
is bounded by the caller: an untrusted plan is read in a child.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files.columns import from_columns, to_columns
from shardproof.engine.plan_files.tables import (
    ADDED_COLUMNS,
    ADDED_TABLES,
    TABLES,
    Columns,
    Table,
    declared_in,
)
from shardproof.engine.plan_files.wellformed import check
from shardproof.engine.storage import files
from shardproof.engine.storage.tables import TYPES, array_of, cells_of

#: By version; a plan is stored in the first one that can hold it, and all of them are read.
FORMATS = {2: "shardproof plan 2", 3: "shardproof plan 3"}
SUFFIX = ".arrow"

_TYPES: Mapping[str, pa.DataType] = {**TYPES, "text": pa.string()}

#: The schema of every table, by version of the format.
SCHEMAS: Mapping[int, Mapping[str, pa.Schema]] = {
    version: {
        table: pa.schema([pa.field(c, _TYPES[k], nullable=False) for c, k in declared.items()])
        for table, declared in declared_in(version).items()
    }
    for version in FORMATS
}

#: All tables in one stream: a table's name and its own stream.
_ARCHIVE = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("stream", pa.large_binary(), nullable=False),
    ]
)

_READ_ERRORS = (pa.ArrowException, OSError, MemoryError, ValueError)


def save(plan: Plan, folder: str | Path) -> str:
    """Write ``plan`` to ``folder``, which is replaced if it holds a plan; all or nothing.  What is
    returned is its `digest`.

    Example: ``save(plan, "plan")`` writes ``plan/programs.arrow``, ``plan/ops.arrow`` and so on,
    and gives ``"bf52cea3..."``, 64 digits; in ``/etc``, "exists and holds more than a plan".

    Raises `InvalidInput` if the plan cannot be stored, or the folder holds something else.
    """
    target = Path(folder).resolve()
    columns = to_columns(plan)
    version, digest_of = columns.version, columns.digest()
    _refuse_other_contents(target)
    scratch: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        scratch.chmod(0o755)
        for name in SCHEMAS[version]:
            with pa.OSFile(str(scratch / f"{name}{SUFFIX}"), "wb") as sink:
                table = _table(name, columns, digest_of, version)
                with pa.ipc.new_file(sink, table.schema) as writer:
                    writer.write_table(table)
        _put_in_place(scratch, target)
    except OSError as error:
        raise files.unwritable(error, target) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return digest_of


def _refuse_other_contents(target: Path) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InvalidInput("exists and is no folder", str(target))
    own = {f"{name}{SUFFIX}" for name in TABLES}
    others = sorted({entry.name for entry in target.iterdir()} - own)
    if others:
        raise InvalidInput(f"exists and holds more than a plan: {others[0]}", str(target))


def _put_in_place(scratch: Path, target: Path) -> None:
    if not target.exists():
        scratch.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    target.rename(aside)
    try:
        scratch.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside)


def load(folder: str | Path) -> Plan:
    """The plan in ``folder``; raises `InvalidInput`.

    Example: of what ``save(plan, "plan")`` wrote, ``load("plan") == plan``.
    """
    where = Path(folder)
    if not where.is_dir():
        raise InvalidInput("is no plan folder", str(where))
    with files.bounded(where):
        return _plan(_tables(where), str(where))


def _tables(where: Path) -> dict[str, pa.Table]:
    buffers = {}
    for name in TABLES:
        path = where / f"{name}{SUFFIX}"
        if name in ADDED_TABLES and not os.path.lexists(path):
            continue
        try:
            buffers[name] = pa.py_buffer(files.contents(path))
        except OSError as error:
            raise InvalidInput(f"cannot be read: {error.strerror}", str(path)) from error
    tables = {}
    for name, buffer in buffers.items():
        try:
            tables[name] = pa.ipc.open_file(buffer).read_all()
        except _READ_ERRORS as error:
            message = f"is no Arrow file: {error}"
            raise InvalidInput(message, str(where / f"{name}{SUFFIX}")) from error
    return tables


def to_bytes(plan: Plan) -> bytes:
    """``plan`` as one Arrow IPC stream; raises `InvalidInput` if it cannot be stored.

    Example: a plan of one linear layer is 17 KB, which `from_bytes` reads in another process.
    """
    columns = to_columns(plan)
    # A large plan that nobody else holds is let go of here, and each table where it is written.
    del plan
    version, digest_of = columns.version, columns.digest()
    names = list(SCHEMAS[version])
    streams, ends = pa.BufferOutputStream(), [0]
    for name in names:
        table = _table(name, columns, digest_of, version)
        del columns.tables[name]
        with pa.ipc.new_stream(streams, table.schema) as writer:
            writer.write_table(table)
        del table
        ends.append(streams.tell())
    # One after the other they are the cells of a column already.
    buffers = [None, pa.array(ends, pa.int64()).buffers()[1], streams.getvalue()]
    cells = pa.Array.from_buffers(pa.large_binary(), len(names), buffers)
    archive = pa.table([names, cells], schema=_ARCHIVE)
    del buffers, cells, streams
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _ARCHIVE) as writer:
        writer.write_table(archive)
    del archive
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(data: bytes) -> Plan:
    """The plan that `to_bytes` packed; raises `InvalidInput`.

    Example: ``from_bytes(to_bytes(plan)) == plan``; of half of the bytes, "is no Arrow stream".
    """
    tables = {}
    try:
        archive = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        archive.validate(full=True)
        names = archive["table"].to_pylist() if archive.schema == _ARCHIVE else []
        if names not in [list(tables) for tables in SCHEMAS.values()]:
            raise InvalidInput("is no archive of a plan", "plan stream")
        for name, stream in zip(names, archive["stream"], strict=True):
            tables[name] = pa.ipc.open_stream(stream.as_buffer()).read_all()
    except _READ_ERRORS as error:
        raise InvalidInput(f"is no Arrow stream: {error}", "plan stream") from error
    return _plan(tables, "plan stream")


def copied(plan: Plan) -> Plan:
    """``plan`` as it would be read again: a plan that somebody has made is held to what a stored
    one is.  Raises `InvalidInput`.

    Example: a plan that a Python function has built, whose linear layer reads a value that there is
    not, is refused as its file would be: "reads value 7, expected one of 4".
    """
    data = to_bytes(plan)
    check(plan)
    return from_bytes(data)


def digest(plan: Plan) -> str:
    """SHA-256 of the plan's contents: equal plans have equal digests.

    Example: ``"bf52cea3..."``, which the certificate of a run on this plan names.
    """
    return to_columns(plan).digest()


# -- tables and columns --------------------------------------------------------------------------


def _table(name: str, columns: Columns, digest_of: str, version: int) -> pa.Table:
    metadata = {"format": FORMATS[version], "table": name, "digest": digest_of}
    if name == "programs":
        metadata["plan"] = json.dumps(columns.header, sort_keys=True)
    schema = SCHEMAS[version][name].with_metadata(metadata)
    try:
        arrays = [
            array_of(TABLES[name][column], columns.tables[name][column], _TYPES)
            for column in schema.names
        ]
        return pa.Table.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise InvalidInput(f"cannot be stored: {error}", f"table {name}") from error


def _plan(tables: Mapping[str, pa.Table], where: str) -> Plan:
    """The validated plan of Arrow tables."""
    try:
        header, digest_of, version = _header(tables)
        read = {name: _columns(name, table, version) for name, table in tables.items()}
        columns = Columns(header, _completed(read))
        if columns.digest() != digest_of:
            raise InvalidInput("the contents do not have the stored digest: they were changed")
        plan = from_columns(columns)
        check(plan)
    except InvalidInput as error:
        raise error.within(where) from error
    return plan


def _completed(tables: dict[str, Table]) -> dict[str, Table]:
    """The tables of an earlier version, with nothing in what it does not have."""
    for name in ADDED_TABLES:
        tables.setdefault(name, {column: [] for column in TABLES[name]})
    for name, columns in ADDED_COLUMNS.items():
        rows = len(tables[name]["name"])
        for column in columns:
            nothing: Any = "" if TABLES[name][column] == "word" else ()
            tables[name].setdefault(column, [nothing] * rows)
    return {
        name: {column: tables[name][column] for column in declared}
        for name, declared in TABLES.items()
    }


def _header(tables: Mapping[str, pa.Table]) -> tuple[dict[str, Any], str, int]:
    """What is said once about the plan, its digest, and the version of the format, on which all
    tables must agree."""
    digests = set()
    version = 3 if any(name in tables for name in ADDED_TABLES) else 2
    if list(tables) != list(SCHEMAS[version]):
        missing = sorted(set(SCHEMAS[version]) - set(tables))
        raise InvalidInput(f"lacks a table of {FORMATS[version]!r}", f"table {missing[0]}")
    form = FORMATS[version]
    for name, table in tables.items():
        metadata = table.schema.metadata or {}
        if metadata.get(b"format") != form.encode() or metadata.get(b"table") != name.encode():
            raise InvalidInput(f"its metadata do not say {form!r}", f"table {name}")
        digests.add(metadata.get(b"digest", b""))
    if len(digests) > 1:
        raise InvalidInput("the tables are of different plans: their digests differ")
    try:
        header = json.loads((tables["programs"].schema.metadata or {}).get(b"plan", b""))
    except (ValueError, RecursionError) as error:
        raise InvalidInput("the metadata do not describe a plan", "table programs") from error
    if not isinstance(header, dict):
        raise InvalidInput("the metadata do not describe a plan", "table programs")
    return header, digests.pop().decode("ascii", "replace"), version


def _columns(name: str, table: pa.Table, version: int) -> Table:
    schema = SCHEMAS[version][name]
    try:
        if table.schema.remove_metadata() != schema:
            names = ", ".join(f"{field.name}: {field.type}" for field in table.schema)
            raise InvalidInput(f"has other columns than declared: {names[:300]}", f"table {name}")
        table.validate(full=True)
        whole = table.combine_chunks()
        return {
            column: cells_of(TABLES[name][column], whole[column].chunk(0)) if len(whole) else []
            for column in schema.names
        }
    except _READ_ERRORS as error:
        raise InvalidInput(f"is damaged: {error}", f"table {name}") from error
