"""Arrow tables with a declared schema: columns of plain Python values to a file, and back.

A table's file is one Arrow IPC file whose schema metadata say which format and which table it is.
Reading accepts exactly the declared columns without nulls; what is wrong is an `InvalidInput` with
the file.  Writing is atomic: a file is there as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage import files

#: What a column holds: "number" (64 bits), "ref" and "count" (32 bits), "flag", "text", "word"
#: (text that repeats), or several: "numbers", "refs", "words".
TYPES: Mapping[str, pa.DataType] = {
    "number": pa.int64(),
    "ref": pa.int32(),
    "count": pa.int32(),
    "flag": pa.bool_(),
    "text": pa.large_string(),
    "word": pa.dictionary(pa.int32(), pa.string()),
    "numbers": pa.list_(pa.int64()),
    "refs": pa.list_(pa.int32()),
    "words": pa.list_(pa.string()),
}

Columns = Mapping[str, Sequence[Any]]
Declared = Mapping[str, str]

_READ_ERRORS = (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError)


def schema(declared: Declared) -> pa.Schema:
    """The Arrow schema of declared columns.

    Example: of ``{"name": "text", "shape": "numbers"}`` a ``large_string`` and a list of ``int64``,
    none of them null.
    """
    return pa.schema([pa.field(c, TYPES[kind], nullable=False) for c, kind in declared.items()])


def encode(name: str, declared: Declared, columns: Columns, form: str) -> bytes:
    """The file of a table; raises `InvalidInput` for values that the columns do not hold.

    Example: ``encode("values", {"name": "text"}, {"name": ["x"]}, "plan 2")``, a file of one row.
    """
    metadata = {"format": form, "table": name}
    try:
        arrays = [array_of(kind, columns[column]) for column, kind in declared.items()]
        table = pa.Table.from_arrays(arrays, schema=schema(declared).with_metadata(metadata))
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise InvalidInput(f"cannot be stored: {error}", f"table {name}") from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def decode(name: str, declared: Declared, data: bytes, form: str) -> dict[str, list[Any]]:
    """The columns of a table's file; raises `InvalidInput`.

    Example: of the file of table "values" as that of "ops", "its metadata do not say 'plan 2',
    table 'ops'".
    """
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        metadata = table.schema.metadata or {}
        if metadata != {b"format": form.encode(), b"table": name.encode()}:
            raise InvalidInput(f"its metadata do not say {form!r}, table {name!r}")
        if table.schema.remove_metadata() != schema(declared):
            names = ", ".join(f"{field.name}: {field.type}" for field in table.schema)
            raise InvalidInput(f"has other columns than declared: {names[:300]}")
        table.validate(full=True)
        whole = table.combine_chunks()
        return {
            column: cells_of(kind, whole[column].chunk(0)) if len(whole) else []
            for column, kind in declared.items()
        }
    except _READ_ERRORS as error:
        raise InvalidInput(f"is no Arrow table: {error}") from error


def array_of(kind: str, cells: Sequence[Any], types: Mapping[str, pa.DataType] = TYPES) -> pa.Array:
    """The given cells as an Arrow column of a declared kind.

    Example: ``[(2, 8), ()]`` of the kind "numbers" is a list array, ``["x", "y", "x"]`` of the kind
    "word" a dictionary of two.
    """
    if kind == "word":
        # As `dictionary_encode` does it, which takes a module of ten MiB.
        numbers: dict[str, int] = {}
        indices = [numbers.setdefault(cell, len(numbers)) for cell in cells]
        words = pa.array(list(numbers), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), words)
    if kind not in ("numbers", "refs", "words"):
        return pa.array(cells, types[kind])
    lengths = np.fromiter((len(cell) for cell in cells), np.int64, len(cells))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = list(chain.from_iterable(cells))
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(flat, types[kind].value_type)
    )


def cells_of(kind: str, array: pa.Array) -> list[Any]:
    """The cells of a column as Python values; raises ``ValueError`` for a null.

    Example: of that dictionary ``["x", "y", "x"]`` again, of the list array ``[(2, 8), ()]``.
    """
    if array.null_count:
        raise ValueError("a cell is null")
    if kind == "word":
        words = cells_of("text", array.dictionary)
        return [words[i] for i in array.indices.to_numpy().tolist()]
    if kind in ("number", "count", "ref"):
        return list(array.to_numpy().tolist())
    if kind in ("flag", "text"):
        return list(array.to_pylist())
    flat = cells_of({"numbers": "number", "refs": "ref", "words": "text"}[kind], array.values)
    # Most are there many times: equal ones are one object, a fifth of a large plan's memory.
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    lists = (tuple(flat[a:b]) for a, b in pairwise(array.offsets.to_numpy().tolist()))
    return [known.setdefault(cell, cell) for cell in lists]


def write_file(path: Path, data: bytes) -> str:
    """Write a file as a whole or not at all; the result is its SHA-256.  Raises `InvalidInput`.

    Example: of ``b"abc"`` it is ``ba7816bf...``.
    """
    scratch = ""
    try:
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as sink:
            sink.write(data)
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except OSError as error:
        if scratch and os.path.exists(scratch):
            os.unlink(scratch)
        raise files.unwritable(error, path) from error
    return hashlib.sha256(data).hexdigest()


def read_file(path: Path, expected: str | None = None) -> bytes:
    """The bytes of a file; raises `InvalidInput` if it cannot be read, or has another SHA-256 than
    ``expected``.

    Example: of an edited table "was changed: it has another SHA-256 than in the certificate".
    """
    try:
        data = files.contents(path)
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", path.name) from error
    if expected is not None and hashlib.sha256(data).hexdigest() != expected:
        raise InvalidInput("was changed: it has another SHA-256 than in the certificate", path.name)
    return data
