"""What a person reads at the end: one screen, colours on a terminal, plain text elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain, repeat
from typing import Final, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engine.findings import Finding
from shardproof.result import Conclusion, Result, Verdict

#: Where the width of the reader's screen is not known.
WIDTH: Final = 100
#: So many findings, and conclusions that do not hold, are shown; the rest is counted.
MOST: Final = 5

_SAYS: Final[dict[Verdict, str]] = {
    "proved": "the parallel plan computes what the single-device plan computes, for every input",
    "refuted": "the parallel plan does not compute what the single-device plan computes",
    "inconclusive": "neither proved nor refuted",
    "invalid input": "nothing was verified",
}
_STYLES: Final[dict[Verdict, str]] = {
    "proved": "bold green",
    "refuted": "bold red",
    "inconclusive": "bold yellow",
    "invalid input": "bold red",
}
_FIELDS: Final = ("operator", "layer", "source", "ranks", "microbatches", "expected", "actual")


def show(draw: Callable[[Console], None], stream: TextIO) -> None:
    """What ``draw`` prints, to ``stream``: as wide as a terminal, or plain and of one width."""
    if stream.isatty():
        draw(_console(stream, None))
        return
    drawn = StringIO()
    draw(_console(drawn, WIDTH))
    stream.writelines(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())


def _console(stream: TextIO, width: int | None) -> Console:
    """Names and messages are text, not markup."""
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def plain(text: str) -> str:
    """``text`` on one line, without what could steer a terminal."""
    line = " ".join(text.split("\n"))
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def numbers(values: Sequence[int], most: int = 12) -> str:
    """Ranks or microbatches, runs of them as ranges: "0-3, 8"."""
    spans: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if spans and spans[-1][1] == value - 1:
            spans[-1] = (spans[-1][0], value)
        else:
            spans.append((value, value))
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans[:most]]
    more = f", ... ({len(set(values))} in all)" if len(spans) > most else ""
    return ", ".join(texts) + more


def write(result: Result, to: Console) -> None:
    """The report."""
    verdict = result.verdict
    to.print(Text(f"{verdict}: {_SAYS[verdict]}", style=_STYLES[verdict]))
    if result.reason:
        to.print(Padding(Text(plain(result.reason)), (0, 0, 0, 2)))
    for finding in result.findings[:MOST]:
        _finding(finding, to)
    if len(result.findings) > MOST:
        to.print(Text(f"\n... and {len(result.findings) - MOST} more findings, all with --json"))
    to.print(_summary(result))


def _finding(finding: Finding, to: Console) -> None:
    to.print()
    to.print(Text(f"{plain(finding.kind)}: {plain(finding.message)}", style="bold"))
    values = {
        **{name: plain(str(getattr(finding, name))) for name in _FIELDS},
        "ranks": numbers(finding.ranks),
        "microbatches": numbers(finding.microbatches),
    }
    rows = [(name, values[name]) for name in _FIELDS if values[name]]
    if rows:
        to.print(Padding(_grid(rows), (0, 0, 0, 2)))


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(name), Text(value))
    return grid


def _summary(result: Result) -> Padding:
    sections = {
        "assumed": map(plain, result.assumptions),
        "proved" if result.verdict == "proved" else "concluded": _conclusions(result),
        "covered": _covered(result),
        "distinct": _distinct(result),
        "took": _took(result),
        "run": [plain(result.run_dir)] if result.run_dir else [],
    }
    rows = [
        (name if first else "", line)
        for name, lines in sections.items()
        for first, line in zip(chain([True], repeat(False)), lines, strict=False)
    ]
    return Padding(_grid(rows), (1, 0, 0, 0))


def _conclusions(result: Result) -> Iterator[str]:
    held: Counter[str] = Counter()
    names: dict[str, set[str]] = {}
    failed: list[Conclusion] = []
    for conclusion in result.conclusions:
        if conclusion.holds:
            held[conclusion.kind] += 1
            names.setdefault(conclusion.kind, set()).add(conclusion.name)
        else:
            failed.append(conclusion)
    for kind, count in held.items():
        distinct = len(names[kind])
        if kind == next(iter(names[kind])):
            yield plain(kind)
        else:
            places = f", in {_many(count, 'place')}" if count > distinct else ""
            yield plain(f"{kind} of {_many(distinct, 'parameter')}{places}")
    for conclusion in failed[:MOST]:
        where = f" on ranks {numbers(conclusion.ranks)}" if conclusion.ranks else ""
        why = f": {conclusion.message}" if conclusion.message else ""
        yield plain(f"NOT {conclusion.kind} {conclusion.name}{where}{why}")
    if len(failed) > MOST:
        yield f"NOT {len(failed) - MOST} more"


def _covered(result: Result) -> Iterator[str]:
    counts = result.counts
    if counts.ranks:
        yield (
            f"{_many(counts.single_operators, 'single-device operator')}, "
            f"{counts.parallel_operators:,} on {_many(counts.ranks, 'rank')}"
        )


def _distinct(result: Result) -> Iterator[str]:
    counts = result.counts
    if counts.templates:
        cached = f", {counts.cached:,} known from earlier runs" if counts.cached else ""
        yield (
            f"{_many(counts.templates, 'template')} for {_many(counts.obligations, 'obligation')} "
            f"in {_many(counts.stages, 'stage')}{cached}"
        )


def _took(result: Result) -> Iterator[str]:
    seconds = result.seconds
    phases = [("load", seconds.load), ("partition", seconds.partition), ("solve", seconds.solve)]
    phases.append(("compose", seconds.compose))
    each = ", ".join(f"{name} {value:.1f}" for name, value in phases)
    yield f"{seconds.total:.1f} s ({each}), {result.peak_rss_mib:.0f} MiB at most"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
