"""Names and numbers as a person reads them, in every report."""

from __future__ import annotations

from collections.abc import Sequence


def numbers(values: Sequence[int], most: int = 12) -> str:
    """Ranks or microbatches, runs of them as ranges, for example "0-3, 8"."""
    spans: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if spans and spans[-1][1] == value - 1:
            spans[-1] = (spans[-1][0], value)
        else:
            spans.append((value, value))
    texts = [_span(first, last) for first, last in spans[:most]]
    more = f", ... ({len(set(values))} in all)" if len(spans) > most else ""
    return ", ".join(texts) + more


def _span(first: int, last: int) -> str:
    return {0: f"{first}", 1: f"{first}, {last}"}.get(last - first, f"{first}-{last}")


def many(count: int, what: str) -> str:
    """A count with its noun.

    Example: "1 rank", "1,200 ranks".
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
