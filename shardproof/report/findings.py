"""Findings on a terminal: a block for each cause, and a line for what follows from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardproof.engine.findings import Difference, Finding
from shardproof.report.words import many, numbers
from shardproof.run.plain import plain
from shardproof.run.result import Result

#: Blocks that are made at most; lines that count the rest.
MOST: Final = 40
MORE: Final = 2
#: Characters of a text; the rest is cut.
LONGEST: Final = 280
#: Rows of a finding for which there is little room.
BRIEF: Final = ("source", "ranks", "cause", "repair")
#: Ranks of a counterexample that are shown.
RANKS: Final = 4


class Summary(NamedTuple):
    """Findings as a terminal shows them. ``blocks``: findings in full, the first first; ``briefs``:
    the same, what to do only; ``headings``: the same, one line each; ``counts``: how many findings
    each stands for; ``beside``: lines that are always there.

    Example: a missing all-reduce with three findings that follow from it is one block, ``counts``
    is ``[4]``.
    """

    blocks: list[RenderableType]
    briefs: list[RenderableType]
    headings: list[str]
    counts: list[int]
    beside: list[str]


def summary_of(result: Result) -> Summary:
    """What there is to tell of findings: each cause with what follows from it; without causes,
    findings that say the same once.

    Example: 40 findings "shape" that say the same are one heading, "... (40 times; this is the
    first)".
    """
    causes: dict[object, list[Finding]] = {}
    beside: dict[str, list[Finding]] = {}
    grouped = any(finding.group for finding in result.findings)
    for finding in result.findings:
        if finding.group:
            causes.setdefault(finding.group, []).append(finding)
        elif grouped:
            beside.setdefault(finding.kind, []).append(finding)
        else:
            causes.setdefault((finding.kind, finding.message), []).append(finding)
    groups = list(causes.values())
    return Summary(
        [_block(findings) for findings in groups[:MOST]],
        [_block(findings, BRIEF) for findings in groups[:MOST]],
        [heading(findings) for findings in groups],
        [len(findings) for findings in groups],
        [_counted(kind, findings) for kind, findings in beside.items()],
    )


def fitted(summary: Summary, room: int, to: Console) -> list[RenderableType]:
    """The first finding in full, then the others if all fit, else what to do about each, else a
    line for each while there is room; the rest is counted.

    Example: of three causes for which there are 20 lines, the first in full and the cause and
    repair of the others; for 8 lines, the first and "... and 2 more findings, all with --json and
    ...".
    """
    beside: list[RenderableType] = []
    if summary.beside:
        beside = [_line(text, not number) for number, text in enumerate(summary.beside)]
    room -= sum(lines(part, to) for part in beside)
    whole = len(summary.blocks) == len(summary.headings)
    for shown in (summary.blocks, [*summary.blocks[:1], *summary.briefs[1:]]):
        if whole and sum(lines(block, to) for block in shown) <= room:
            return [*shown, *beside]
    shown = list(summary.blocks[:1])
    left = room - sum(lines(block, to) for block in shown) - MORE
    here = 1
    for text in summary.headings[1:]:
        block = _line(text, here == 1)
        left -= lines(block, to)
        if left < 0:
            break
        shown.append(block)
        here += 1
    rest = sum(summary.counts[here:])
    if rest:
        how = "all with --json and `shardproof report`"
        shown.append(Text(f"\n... and {many(rest, 'more finding')}, {how}"))
    return [*shown, *beside]


def _line(text: str, apart: bool) -> RenderableType:
    """A text on one line, with an empty one before it if it is to stand apart."""
    line = Text(text, no_wrap=True, overflow="ellipsis")
    # A text by itself would lose that it is not to be wrapped.
    return Padding(line, (1 if apart else 0, 0, 0, 0))


def lines(part: RenderableType, to: Console) -> int:
    """How many lines something takes.

    Example: 2 for a message of 150 characters on a terminal of 100 columns.
    """
    return len(to.render_lines(part, pad=False))


def short(text: str) -> str:
    """A text on one line, cut where it is too long.

    Example: a text of 300 characters is its first 276 and " ...".
    """
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def grid(rows: Iterable[tuple[str, str]]) -> Table:
    """Rows of a name and a text.

    Example: ``[("ranks", "0-3"), ("repair", "holds with ...")]``, the names in a column of their
    own.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def heading(findings: Sequence[Finding]) -> str:
    """What is wrong, of some findings of one cause or that say the same.

    Example: "mismatch: add in h.1.mlp on ranks [0, 1] of the first replica: its input
    h.1.mlp.linear is still ...".
    """
    first = findings[0]
    times = sum((f.kind, f.message) == (first.kind, first.message) for f in findings)
    again = "" if times == 1 else f" ({times} times; this is the first)"
    return f"{plain(first.kind)}: {short(first.message)}{again}"


def _counted(kind: str, findings: Sequence[Finding]) -> str:
    times = f" ({len(findings)} times; this is the first)" if len(findings) > 1 else ""
    return f"beside it, {plain(kind)}{times}: {short(findings[0].message)}"


def _block(findings: Sequence[Finding], only: Collection[str] = ()) -> RenderableType:
    """The first of some findings in full (or some rows only), with what follows from the same
    cause."""
    rows = [(n, text) for n, text in _rows(findings) if text and (not only or n in only)]
    parts: list[RenderableType] = [Text(f"\n{heading(findings)}", style="bold")]
    if rows:
        parts.append(Padding(grid(rows), (0, 0, 0, 2)))
    return Group(*parts)


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    first = findings[0]
    inside = [d for d in first.counterexample if not is_conclusion(d.tensor)]
    ends = [d for d in first.counterexample if is_conclusion(d.tensor)]
    yield "operator", short(first.operator)
    yield "single device", short(first.reference)
    yield "layer", short(first.layer)
    yield "source", short(first.source)
    yield "ranks", _ranks(first)
    yield "microbatches", _microbatches(first)
    if inside:
        yield "values", "\n".join(_values(inside))
    if ends:
        yield "seen in", _seen(ends)
    else:
        yield "expected", short(first.expected)
        yield "actual", short(first.actual)
    if first.cause:
        yield "cause", f"{plain(first.cause)}{'' if first.repair else ', likely'}"
    yield "repair", short(first.repair)
    yield "with it", "\n".join(_followers(findings))


def is_conclusion(tensor: str) -> bool:
    """Whether a tensor of a counterexample is what a run ends with.

    Example: ``gradient of wte.weight`` is, ``h.1.mlp.linear (an input of add)`` is not.
    """
    return tensor == "loss" or tensor.startswith("gradient of ")


def _ranks(finding: Finding) -> str:
    agree = numbers(finding.agreeing_ranks)
    all_that = finding.reference and not agree and finding.ranks
    right = f"; {agree} right" if agree else ", all that run it" if all_that else ""
    return f"{numbers(finding.ranks)}{right}"


def _microbatches(finding: Finding) -> str:
    if not finding.microbatches:
        return "all" if finding.reference else ""
    agree = numbers(finding.agreeing_microbatches)
    return f"{numbers(finding.microbatches)}{f'; {agree} right' if agree else ''}"


def _values(differences: Sequence[Difference]) -> Iterator[str]:
    yield f"{short(differences[0].tensor)}:"
    shown = sorted(differences, key=lambda d: (d.expected == d.actual, d.ranks))
    for one in sorted(shown[:RANKS], key=lambda d: d.ranks):
        yield f"rank {numbers(one.ranks)} has {_value(one)}"
    if len(differences) > RANKS:
        yield f"and {len(differences) - RANKS} more ranks"


def _value(difference: Difference) -> str:
    where = (
        f"{difference.actual:.6g} at {list(difference.index)}"
        if difference.index
        else f"{difference.actual:.6g}"
    )
    right = differs(difference.expected, difference.actual)
    return f"{where}, expected {difference.expected:.6g}" if right else f"{where}, as expected"


def differs(expected: float, actual: float) -> bool:
    """Whether two values are to be told apart (as numbers of a report).

    Example: 0.1 and 0.1000000001 are not: both are shown as 0.1.
    """
    return f"{expected:.6g}" != f"{actual:.6g}"


def _seen(differences: Sequence[Difference]) -> str:
    """The conclusion that shows it most."""
    worst = max(differences, key=lambda d: abs(d.actual - d.expected))
    where = f" on rank {numbers(worst.ranks)}" if worst.ranks else ""
    return f"{short(worst.tensor)}{where}: {_value(worst)}"


def _followers(findings: Sequence[Finding]) -> Iterator[str]:
    """What follows from the same cause, by kind."""
    first = findings[0]
    if not first.group:
        return
    kinds: dict[str, list[Finding]] = {}
    for finding in findings[1:]:
        kinds.setdefault(finding.kind, []).append(finding)
    for kind, alike in kinds.items():
        count = f"{len(alike)} times, first: " if len(alike) > 1 else ""
        text = f"{plain(kind)}: {count}{plain(alike[0].message)}"
        yield text if len(text) <= WIDEST else f"{text[: WIDEST - 4]} ..."


#: Characters of a line about what follows from a cause.
WIDEST: Final = 80
