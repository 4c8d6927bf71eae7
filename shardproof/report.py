"""What a person reads at the end: one screen, colours on a terminal, plain text elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain, repeat
from typing import Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engine.findings import Finding
from shardproof.result import Conclusion, Result, Verdict

#: Where the width of the reader's screen is not known.
WIDTH: Final = 100
#: Lines of a report, the whole of it; what does not fit is counted.
LINES: Final = 40
#: Lines that findings are left with at least, and the one line that counts the rest.
ROOM: Final = 16
MORE: Final = 2
#: So many conclusions that do not hold are shown; characters of a text; the rest is cut.
FEW: Final = 3
LONGEST: Final = 280

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
_FIELDS: Final = (
    "operator",
    "layer",
    "source",
    "ranks",
    "microbatches",
    "expected",
    "actual",
    "repair",
)


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
    texts = [_span(first, last) for first, last in spans[:most]]
    more = f", ... ({len(set(values))} in all)" if len(spans) > most else ""
    return ", ".join(texts) + more


def _span(first: int, last: int) -> str:
    return {0: f"{first}", 1: f"{first}, {last}"}.get(last - first, f"{first}-{last}")


def write(result: Result, to: Console) -> None:
    """The report, on one screen."""
    verdict = result.verdict
    head: list[RenderableType] = [Text(f"{verdict}: {_SAYS[verdict]}", style=_STYLES[verdict])]
    if result.reason:
        head.append(Padding(Text(_short(result.reason)), (0, 0, 0, 2)))
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in result.findings:
        alike.setdefault((finding.kind, finding.message), []).append(finding)
    taken = sum(_lines(part, to) for part in head) + bool(result.run_dir)
    rows = _fitted(result, LINES - taken - (ROOM if alike else 0), to)
    summary = _summary_block(rows)
    shown = _findings(list(alike.values()), LINES - taken - _lines(summary, to), to)
    for part in (*head, *shown, summary):
        to.print(part)
    if result.run_dir:
        # Whatever its length, a path stays in one piece.
        width = max(len(name) for name, _ in rows)
        to.print(Text(f"{'run':<{width}}  {plain(result.run_dir)}"), soft_wrap=True)


def _lines(part: RenderableType, to: Console) -> int:
    """How many lines something takes."""
    return len(to.render_lines(part, pad=False))


def _short(text: str) -> str:
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def _summary_block(rows: Sequence[tuple[str, str]]) -> RenderableType:
    return Padding(_grid(rows), (1, 0, 0, 0))


def _fitted(result: Result, room: int, to: Console) -> list[tuple[str, str]]:
    """The rows of the summary, with as many assumptions as there is room for."""
    room -= _lines(_summary_block(_summary(result, 0)), to)
    kept = 0
    for assumption in result.assumptions:
        room -= _lines(_grid([("concluded", plain(assumption))]), to)
        if room < 0 and kept:
            break
        kept += 1
    return _summary(result, kept)


def _findings(alike: Sequence[list[Finding]], room: int, to: Console) -> list[RenderableType]:
    """The first finding in full, then the others if all fit, else a line for each while there is
    room; the rest is counted."""
    blocks = [_finding(findings[0], len(findings)) for findings in alike[:LINES]]
    lines = [_lines(block, to) for block in blocks]
    if sum(lines) <= room and len(blocks) == len(alike):
        return list(blocks)
    shown: list[RenderableType] = list(blocks[:1])
    left = room - sum(lines[:1]) - MORE
    told = 1
    for findings in alike[1:]:
        line = Text(_heading(findings[0], len(findings)), no_wrap=True, overflow="ellipsis")
        # A text by itself would lose that it is not to be wrapped.
        block = Padding(line, (1 if told == 1 else 0, 0, 0, 0))
        left -= _lines(block, to)
        if left < 0:
            break
        shown.append(block)
        told += 1
    rest = sum(len(findings) for findings in alike[told:])
    if rest:
        how = "all with --json and `shardproof report`"
        shown.append(Text(f"\n... and {_many(rest, 'more finding')}, {how}"))
    return shown


def _heading(finding: Finding, times: int) -> str:
    again = "" if times == 1 else f" ({times} times; this is the first)"
    return f"{plain(finding.kind)}: {_short(finding.message)}{again}"


def _finding(finding: Finding, times: int) -> RenderableType:
    """The first of some findings that say the same."""
    values = {
        **{name: _short(str(getattr(finding, name))) for name in _FIELDS},
        "ranks": numbers(finding.ranks),
        "microbatches": numbers(finding.microbatches),
    }
    rows = [(name, values[name]) for name in _FIELDS if values[name]]
    parts: list[RenderableType] = [Text(f"\n{_heading(finding, times)}", style="bold")]
    if rows:
        parts.append(Padding(_grid(rows), (0, 0, 0, 2)))
    return Group(*parts)


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(name), Text(value))
    return grid


def _summary(result: Result, assumptions: int) -> list[tuple[str, str]]:
    """Rows of (section, line), with the first ``assumptions`` of what was assumed."""
    sections = {
        "assumed": _assumed(result, assumptions),
        "proved" if result.verdict == "proved" else "concluded": _conclusions(result),
        "covered": _covered(result),
        "distinct": _distinct(result),
        "took": _took(result),
    }
    return [
        (name if first else "", line)
        for name, lines in sections.items()
        for first, line in zip(chain([True], repeat(False)), lines, strict=False)
    ]


def _assumed(result: Result, count: int) -> Iterator[str]:
    yield from map(plain, result.assumptions[:count])
    rest = len(result.assumptions) - count
    if rest:
        yield f"{_many(rest, 'more assumption')}, all with --json and `shardproof report`"


def _conclusions(result: Result) -> Iterator[str]:
    held: dict[str, list[str]] = {}
    failed: list[Conclusion] = []
    for conclusion in result.conclusions:
        if conclusion.holds:
            held.setdefault(conclusion.kind, []).append(conclusion.name)
        else:
            failed.append(conclusion)
    for kind, names in held.items():
        distinct = len(set(names))
        of = "" if kind == "loss" else f" of {_many(distinct, 'parameter')}"
        places = f", in {len(names):,} places" if len(names) > (distinct if of else 1) else ""
        yield plain(f"{kind}{of}{places}")
    for conclusion in failed[:FEW]:
        yield f"NOT {_short(_failed(conclusion))}"
    if len(failed) > FEW:
        yield f"NOT {len(failed) - FEW:,} more, all with --json"


def _failed(conclusion: Conclusion) -> str:
    """A conclusion that does not hold: its own words, if it has any."""
    if conclusion.message:
        return conclusion.message
    where = f" on ranks {numbers(conclusion.ranks)}" if conclusion.ranks else ""
    return f"{conclusion.kind} of {conclusion.name}{where}"


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
