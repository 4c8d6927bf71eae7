"""Reports as golden text; names of a plan are text, never markup or escapes."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from shardproof.engine.findings import UNDECIDED, Finding
from shardproof.report import terminal as report
from shardproof.report import words
from shardproof.run.result import Conclusion, Counts, Result, Seconds, Verdict
from tests.shardproof.faces import assert_golden, proved, refuted


def text(result: Result) -> str:
    stream = StringIO()
    report.show(lambda to: report.write(result, to), stream)
    return stream.getvalue()


INCONCLUSIVE = Result(
    "inconclusive",
    counts=Counts(4, 16, 2, 3, 4, 1, 0),
    seconds=Seconds(0.1, 0.0, 30.0, 0.0, 30.1),
    assumptions=("numbers are real: rounding and casts change nothing",),
    reason="operator gate_fw of layers.1.feed_forward: no declaration",
)


@pytest.mark.parametrize(
    ("name", "result"),
    [("proved.txt", proved()), ("refuted.txt", refuted()), ("inconclusive.txt", INCONCLUSIVE)],
)
def test_reports(name: str, result: Result) -> None:
    assert_golden(name, text(result))


def test_the_axes_of_the_mesh_are_named_where_they_are_known() -> None:
    assert ", 1,188 on 8 ranks\n" in text(proved())
    shown = text(replace(proved(), mesh="2 programs x dp 2 x tp 2"))
    assert ", 1,188 on 8 ranks (2 programs x dp 2 x tp 2)\n" in shown


def test_a_proof_shows_what_was_found_beside_it() -> None:
    finding = Finding("precision", "a sum runs in float16", ranks=(3,))
    shown = text(replace(proved(), findings=(finding,)))
    assert shown.startswith("proved: ")
    assert "\nprecision: a sum runs in float16\n  ranks  3\n" in shown


def test_names_are_neither_markup_nor_escapes() -> None:
    name = "[bold]w[/bold] \x1b[31m :smile:\r\u202e"
    shown = text(Result("refuted", findings=(Finding(name, "a\nb", layer=name),)))
    assert "\n[bold]w[/bold] \\x1b[31m :smile:\\r\\u202e: a b\n" in shown
    assert "  layer  [bold]w[/bold] \\x1b[31m :smile:\\r\\u202e\n" in shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((), ""),
        ((3,), "3"),
        ((3, 4), "3, 4"),
        ((8, 0, 1, 2, 3, 3), "0-3, 8"),
        (tuple(range(512)), "0-511"),
        (tuple(range(0, 8, 4)), "0, 4"),
        (tuple(range(0, 64, 4)), "0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, ... (16 in all)"),
    ],
)
def test_ranks_are_shown_as_ranges(values: tuple[int, ...], shown: str) -> None:
    assert words.numbers(values) == shown


def findings(count: int, length: int) -> tuple[Finding, ...]:
    words = "a gradient that is not what it should be "
    return tuple(
        Finding(
            "mismatch",
            f"{n}: {words * length}",
            operator="linear",
            layer="layers.0.feed_forward",
            source="model.py:214",
            ranks=tuple(range(0, 4 * n, 2)),
            expected="y = 1",
            actual="y = 2",
        )
        for n in range(count)
    )


@pytest.mark.parametrize("verdict", ["refuted", "inconclusive"])
@pytest.mark.parametrize("count", [0, 1, 3, 200])
@pytest.mark.parametrize(("length", "assumed"), [(1, 1), (1, 40), (30, 2), (30, 40)])
def test_a_report_fits_on_one_screen(
    verdict: Verdict, count: int, length: int, assumed: int
) -> None:
    result = replace(
        refuted(),
        verdict=verdict,
        reason="a solver's limit " * length if verdict == "inconclusive" else "",
        findings=findings(count, length),
        assumptions=tuple(f"{n} is assumed, and {'so on ' * 20}" for n in range(assumed)),
    )
    lines = text(result).splitlines()
    assert len(lines) <= report.LINES == 40
    assert max(map(len, lines)) <= report.WIDTH == 100
    told = sum(line.startswith("mismatch: ") for line in lines)
    assert told >= min(count, 1)
    more = [line for line in lines if "more finding" in line]
    assert more == ([] if told == count else [_more(count - told)])
    assert sum("is assumed" in line for line in lines) >= 1


def _more(count: int) -> str:
    noun = "finding" if count == 1 else "findings"
    return f"... and {count:,} more {noun}, all with --json and `shardproof report`"


def test_what_agrees_where_it_was_run_is_not_said_to_fail() -> None:
    rows = [("loss", "loss", ""), ("gradient", "w", UNDECIDED), ("gradient", "b", UNDECIDED)]
    rows.append(("output", "y", ""))
    conclusions = tuple(
        Conclusion(kind, name, (0,), False, f"rank 0: {name} is another{more}")
        for kind, name, more in rows
    )
    told = text(Result("refuted", conclusions=conclusions))
    assert "NOT rank 0: loss is another" in told
    assert "NOT rank 0: y is another" in told
    assert "not decided: gradient of 2 parameters, which agree where they were run" in told
    assert told.count("NOT") == 2
