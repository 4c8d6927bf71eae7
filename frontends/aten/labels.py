"""What a program tells of integers whose domain nobody states: a number that is no row and counts
for nothing, and how many rows there are."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Labels:
    """By the name of an input: ``marks``, the number that it is compared with or that a loss leaves
    out, such as -100; ``rows``, how many it chooses among.

    Example: labels of a cross-entropy over 12 classes have the mark -100 and 12 rows.
    """

    marks: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def marked(self, name: str, mark: int) -> None:
        """Note that an input is told from a number; the first such number stays.

        Example: ``labels != -100``.
        """
        self.marks.setdefault(name, mark)

    def choosing(self, name: str, rows: int) -> None:
        """Note that an input chooses among so many rows, or classes; the fewest count.

        Example: ``logits.gather(-1, labels)`` of 12 classes.
        """
        self.rows[name] = min(rows, self.rows.get(name, rows))
