"""Rows of figures, added to what earlier runs wrote."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def add(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows, which have the columns that the file has, and print them."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row)
