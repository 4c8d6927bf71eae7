"""What a person reads at the end: one screen, colours on a terminal, plain text elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from itertools import chain, repeat
from typing import Final, TextIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from shardproof.engine.findings import UNDECIDED
from shardproof.engine.plan.assumption import unstated
from shardproof.report.findings import fitted, grid, lines, short, summary_of
from shardproof.report.tries import about_order, about_steps, to_try
from shardproof.report.words import many, numbers
from shardproof.run.plain import plain
from shardproof.run.result import SAYS, Conclusion, Result, Verdict

#: Where the width of the reader's screen is not known.
WIDTH: Final = 100
#: Lines of a report, the whole of it; what does not fit is counted.
LINES: Final = 40
#: Lines that findings are left with at least, if they need them.
ROOM: Final = 27
#: Seconds outside of all phases that are shown.
LEAST_REST: Final = 0.05
#: So many conclusions that do not hold are shown one by one.
FEW: Final = 3
#: Conclusions that are about parameters, by kind; those of another kind are about what it says.
COVERAGE: Final = "coverage"
OF_PARAMETERS: Final = (COVERAGE, "gradient", "single-device gradient")

_STYLES: Final[dict[Verdict, str]] = {
    "proved": "bold green",
    "refuted": "bold red",
    "inconclusive": "bold yellow",
    "invalid input": "bold red",
}


def show(draw: Callable[[Console], None], stream: TextIO) -> None:
    """What ``draw`` prints, to ``stream``: as wide as a terminal, or plain and of one width.

    Example: ``show(lambda to: write(result, to), sys.stdout)``, in a file without colours and 100
    columns wide.
    """
    if stream.isatty():
        draw(_console(stream, None))
        return
    drawn = StringIO()
    draw(_console(drawn, WIDTH))
    stream.writelines(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())


def _console(stream: TextIO, width: int | None) -> Console:
    """Names and messages are text, not markup."""
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def write(result: Result, to: Console) -> None:
    """The report, on one screen.

    Example: "refuted: the parallel plan does not compute what the single-device plan computes",
    then the cause, and a row "took  3.6 s (load 1.2, partition 0.6, ...".
    """
    verdict = result.verdict
    head: list[RenderableType] = [Text(f"{verdict}: {SAYS[verdict]}", style=_STYLES[verdict])]
    if verdict == "proved" and result.assumption_details:
        count = many(len(unstated(result.assumption_details)), "assumption")
        head.append(Text(f"  proved, under {count} that you did not state"))
    if result.reason:
        head.append(Padding(Text(short(result.reason)), (0, 0, 0, 2)))
    findings = summary_of(result)
    used = sum(lines(part, to) for part in head) + bool(result.run_dir)
    wanted = sum(lines(block, to) for block in findings.blocks)
    rows = _fitted(result, LINES - used - min(ROOM, wanted), to)
    summary = _summary_block(rows)
    shown = fitted(findings, LINES - used - lines(summary, to), to)
    for part in (*head, *shown, summary):
        to.print(part)
    if result.run_dir:
        # Whatever its length, a path stays in one piece.
        width = max(len(name) for name, _ in rows)
        to.print(Text(f"{'run':<{width}}  {plain(result.run_dir)}"), soft_wrap=True)


def _summary_block(rows: Sequence[tuple[str, str]]) -> RenderableType:
    return Padding(grid(rows), (1, 0, 0, 0))


def _fitted(result: Result, room: int, to: Console) -> list[tuple[str, str]]:
    """The rows of the summary, with as many assumptions as there is room for."""
    room -= lines(_summary_block(_summary(result, 0)), to)
    kept = 0
    for assumption in result.assumptions:
        room -= lines(grid([("concluded", plain(assumption))]), to)
        if room < 0 and kept:
            break
        kept += 1
    return _summary(result, kept)


def _summary(result: Result, assumptions: int) -> list[tuple[str, str]]:
    """Rows of (section, line), with the first ``assumptions`` of what was assumed."""
    sections = {
        "assumed": _assumed(result, assumptions),
        "proved" if result.verdict == "proved" else "concluded": _conclusions(result),
        "covered": _covered(result),
        "whole": _kept_whole(result),
        "distinct": _distinct(result),
        "took": _took(result),
        "try": _try(result),
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
        yield f"{many(rest, 'more assumption')}, all with --json and `shardproof report`"


def _conclusions(result: Result) -> Iterator[str]:
    holding: dict[str, list[str]] = {}
    failed: dict[str, list[Conclusion]] = {}
    undecided: dict[str, list[str]] = {}
    for conclusion in result.conclusions:
        if conclusion.holds:
            holding.setdefault(conclusion.kind, []).append(conclusion.name)
        elif conclusion.message.endswith(UNDECIDED):
            undecided.setdefault(conclusion.kind, []).append(conclusion.name)
        else:
            failed.setdefault(conclusion.kind, []).append(conclusion)
    for kind, names in holding.items():
        yield plain(_counted(kind, names))
    each = sum(map(len, failed.values())) <= FEW
    for kind, alike in failed.items():
        if each or len(alike) == 1:
            yield from (f"NOT {short(_failed(conclusion))}" for conclusion in alike)
        else:
            ranks = numbers([rank for c in alike for rank in c.ranks])
            where = f", on rank{'s' * (not ranks.isdigit())} {ranks}" if ranks else ""
            yield plain(f"NOT {_counted(kind, [c.name for c in alike])}{where}")
    for kind, names in undecided.items():
        yield plain(f"not decided: {_counted(kind, names)}, which agree where they were run")


def _counted(kind: str, names: Sequence[str]) -> str:
    """Conclusions of one kind: of how many parameters or outputs, in how many places."""
    distinct = len(set(names))
    if kind == "loss":
        return kind + (f", in {len(names):,} places" if len(names) > 1 else "")
    about, _, covered = kind.rpartition(" ")
    if kind in OF_PARAMETERS:
        what = f"{kind} of {many(distinct, 'parameter')}"
    elif covered == COVERAGE:
        what = f"{COVERAGE} of {many(distinct, about)}"
    else:
        what = many(distinct, kind)
    return what + (f", in {len(names):,} places" if len(names) > distinct else "")


def _failed(conclusion: Conclusion) -> str:
    """A conclusion that does not hold: its own words, which name the first rank, if it has any."""
    if conclusion.message:
        others = numbers(conclusion.ranks[1:])
        return f"{conclusion.message}; also on ranks {others}" if others else conclusion.message
    where = f" on ranks {numbers(conclusion.ranks)}" if conclusion.ranks else ""
    return f"{conclusion.kind} of {conclusion.name}{where}"


def _covered(result: Result) -> Iterator[str]:
    counts = result.counts
    if counts.ranks:
        axes = f" ({plain(result.mesh)})" if result.mesh else ""
        yield (
            f"{many(counts.single_operators, 'single-device operator')}, "
            f"{counts.parallel_operators:,} on {many(counts.ranks, 'rank')}{axes}"
        )


def _kept_whole(result: Result) -> Iterator[str]:
    """Axes that are not reduced; why, each line says after its colon."""
    what = [plain(line.partition(":")[0]) for line in result.kept_whole]
    if what:
        more = "" if len(what) <= FEW else f"; {len(what) - FEW} more"
        yield f"{'; '.join(what[:FEW])}{more} (why: --json)"


def _distinct(result: Result) -> Iterator[str]:
    counts = result.counts
    if counts.templates:
        cached = f", {counts.cached:,} known from earlier runs" if counts.cached else ""
        yield (
            f"{many(counts.templates, 'template')} for {many(counts.obligations, 'obligation')} "
            f"in {many(counts.stages, 'stage')}{cached}"
        )


def _took(result: Result) -> Iterator[str]:
    seconds = result.seconds
    phases = [("load", seconds.load), ("partition", seconds.partition), ("solve", seconds.solve)]
    phases.append(("compose", seconds.compose))
    rest = seconds.total - sum(value for _, value in phases)
    if rest >= LEAST_REST:
        phases.append(("other", rest))
    each = ", ".join(f"{name} {value:.1f}" for name, value in phases)
    yield f"{seconds.total:.1f} s ({each}), {result.peak_rss_mib:.0f} MiB at most"


def _try(result: Result) -> Iterator[str]:
    """What to do next: about no verdict, or to see more of a refutation."""
    order = about_order(result.verdict, (finding.kind for finding in result.findings))
    if order:
        yield order
    elif result.verdict == "inconclusive" and (what := to_try(result.reason)):
        yield what
    yield from about_steps(result.verdict, result.assumptions)
    if result.verdict in ("refuted", "inconclusive") and result.run_dir:
        yield "shardproof report RUN_DIR: all of it as a page"
