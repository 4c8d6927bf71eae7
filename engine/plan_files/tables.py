"""The tables of a stored plan: their columns, by version of the format, and their contents.

A plan that has nothing in the tables and columns of a later version is stored in the earlier one,
and has the digest that it had there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from shardproof.engine.errors import InvalidInput

#: What a column holds: "number" (64 bits), "count" or "ref" (32 bits), "flag", "text", "word"
#: (text that repeats), or several: "numbers", "refs", "words".
TABLES: Mapping[str, Mapping[str, str]] = {
    "programs": {
        "name": "text",
        "base": "number",
        "axis_names": "words",
        "axis_extents": "numbers",
        "axis_strides": "numbers",
        "seed_slots": "refs",
        "seed_losses": "refs",
        "bodies": "count",
        "calls": "count",
        "shards": "count",
    },
    "shards": {
        "name": "text",
        "full_shape": "numbers",
        "shape": "numbers",
        "offset": "refs",
        "dtype": "word",
        "trainable": "flag",
        "updated_as": "ref",
        "kind": "word",
        "domain": "numbers",
    },
    "bodies": {
        "name": "text",
        "values": "count",
        "ops": "count",
        "mirror": "ref",
        "inputs": "refs",
        "outputs": "refs",
        "losses": "refs",
        "shard_values": "refs",
        "shard_numbers": "refs",
        "saved_values": "refs",
        "saved_sources": "refs",
        "gradient_values": "refs",
        "gradient_shards": "refs",
        "reduced_reads": "refs",
        "reduced_writes": "refs",
        "reduced_shards": "refs",
        "claims": "refs",
        "results": "refs",
    },
    "claims": {
        "full": "number",
        "low": "numbers",
        "high": "numbers",
        "addend": "number",
        "addends": "number",
    },
    "calls": {"body": "ref", "inputs": "refs", "outputs": "refs", "microbatch": "ref"},
    "values": {"name": "word", "shape": "numbers", "dtype": "word"},
    "ops": {
        "name": "word",
        "inputs": "refs",
        "outputs": "refs",
        "attrs": "ref",
        "backward": "flag",
        "source": "ref",
    },
    "attrs": {"keys": "words", "values": "refs"},
    "attributes": {"kind": "word", "text": "text", "items": "refs"},
    "sources": {"cell": "word", "module": "word", "location": "word"},
    "expectations": {
        "kind": "word",
        "name": "text",
        "single": "count",
        "held": "count",
        "offset": "refs",
        "required": "flag",
    },
    "addends": {
        "program": "ref",
        "body": "ref",
        "value": "ref",
        "weight": "ref",
        "axes": "words",
        "ways": "words",
    },
}

#: Tables and columns that version 2 of the format does not have.  A plan that has nothing in them
#: is stored in that version, and has the digest that it had there.
ADDED_TABLES = ("expectations", "addends")
ADDED_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "shards": ("kind", "domain"),
    "bodies": ("results",),
}

Table = dict[str, list[Any]]


def declared_in(version: int) -> dict[str, dict[str, str]]:
    """The tables of a version of the format (2 or 3), with their columns.

    Example: version 2 has no table "expectations", and ``kind`` is no column of its table "shards".
    """
    if version > 2:
        return {name: dict(columns) for name, columns in TABLES.items()}
    return {
        name: {c: kind for c, kind in columns.items() if c not in ADDED_COLUMNS.get(name, ())}
        for name, columns in TABLES.items()
        if name not in ADDED_TABLES
    }


class Columns:
    """All tables as Python lists, and the header: what is said once about the plan.

    Example: ``columns.tables["calls"]["body"]`` is ``[0, 0]``, and ``columns.header["loss"]``
    "sum".
    """

    def __init__(self, header: dict[str, Any], tables: dict[str, Table]) -> None:
        self.header = header
        self.tables = tables

    @property
    def version(self) -> int:
        """The first version of the format that can hold these contents."""
        added = [c for name in ADDED_TABLES for c in self.tables[name].values()]
        new = [self.tables[name][c] for name, names in ADDED_COLUMNS.items() for c in names]
        return 3 if any(added) or any(any(cells) for cells in new) else 2

    def digest(self) -> str:
        """SHA-256 of the contents, whatever they are stored in.

        Raises `InvalidInput` for text that is no Unicode.
        """
        encode = msgspec.json.Encoder(order="sorted").encode
        sha = hashlib.sha256()
        try:
            sha.update(encode(self.header))
            for name, declared in declared_in(self.version).items():
                # What the list of the name and all columns is encoded as, a column at a time.
                sha.update(b"[" + encode(name))
                for column in declared:
                    sha.update(b",")
                    sha.update(encode(self.tables[name][column]))
                sha.update(b"]")
        except UnicodeEncodeError as error:
            raise InvalidInput(f"cannot be stored: {error}") from error
        return sha.hexdigest()
