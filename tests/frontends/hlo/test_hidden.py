"""Scores that a mask hides are minus infinity: who asks whether they are finite is not told so."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower

BODY = """least {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] minimum(a, b)
}

most {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}

total {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[4,4] parameter(0)
  k = s32[4,4] iota(), iota_dimension=1
  q = s32[4,4] iota(), iota_dimension=0
  p = pred[4,4] compare(q, k), direction=HOW
  i = f32[] constant(-inf)
  j = f32[4,4] broadcast(i), dimensions={}
  s = f32[4,4] select(p, x, j)
  e = f32[4,4] exponential(s)
  o = f32[] constant(1)
  w = f32[4,4] broadcast(o), dimensions={}
  z = f32[] constant(0)
  n = f32[4,4] broadcast(z), dimensions={}
  y = f32[] constant(inf)
  h = f32[4,4] broadcast(y), dimensions={}
REST}
"""
ALONE = "  ROOT r = f32[4,4] multiply(e, w)\n"
ASKED = {
    "is-finite": "  f = pred[4,4] is-finite(s)\n  ROOT r = f32[4,4] select(f, e, w)\n",
    "is-finite of twice": "  t = f32[4,4] add(s, s)\n  f = pred[4,4] is-finite(t)\n"
    "  ROOT r = f32[4,4] select(f, e, w)\n",
    "equal": "  f = pred[4,4] compare(s, j), direction=EQ\n  ROOT r = f32[4,4] select(f, w, e)\n",
    "greater": "  f = pred[4,4] compare(s, j), direction=GT\n  ROOT r = f32[4,4] select(f, e, w)\n",
    "less, the other way": "  f = pred[4,4] compare(j, s), direction=LT\n"
    "  ROOT r = f32[4,4] select(f, e, w)\n",
}


def asked(lines: str, of: str = "t", question: str = "is-finite(t)") -> str:
    """1 where the answer is no."""
    text = "".join(f"  {line}\n" for line in lines.splitlines())
    if of == "row":
        text += f"  g = pred[4] {question}\n  f = pred[4,4] broadcast(g), dimensions={{0}}\n"
    else:
        text += f"  f = pred[4,4] {question}\n"
    return text + "  ROOT r = f32[4,4] select(f, e, w)\n"


SELF = "compare(t, t), direction=EQ"
MADE = {
    "exponential of the negative": asked("m = f32[4,4] negate(s)\nt = f32[4,4] exponential(m)"),
    "least": asked("t = f32[4] reduce(s, y), dimensions={1}, to_apply=least", "row"),
    "logarithm of an exponential": asked("t = f32[4,4] log(e)"),
    "quotient by an exponential": asked("t = f32[4,4] divide(w, e)"),
    "root": asked("t = f32[4,4] rsqrt(e)"),
    "difference": asked("t = f32[4,4] subtract(s, s)", question=SELF),
    "times zero": asked("t = f32[4,4] multiply(s, n)", question=SELF),
    "share times score": asked("t = f32[4,4] multiply(e, s)", question=SELF),
    "logarithm of zero": asked("t = f32[4,4] log(n)"),
    "logarithm of a mask": asked("m = f32[4,4] convert(p)\nt = f32[4,4] log(m)"),
    "sum with infinity": "  t = f32[4,4] add(s, h)\n  f = f32[4,4] tanh(t)\n"
    "  ROOT r = f32[4,4] multiply(e, f)\n",
    "a part of the rows": asked(
        "c = f32[4,2] slice(s), slice={[0:4], [2:4]}\n"
        "t = f32[4] reduce(c, i), dimensions={1}, to_apply=most",
        "row",
    ),
}
FINITE = {
    "of an exponential": asked("t = f32[4,4] add(e, n)"),
    "of an input": "  f = pred[4,4] compare(x, j), direction=GT\n"
    "  ROOT r = f32[4,4] select(f, e, w)\n",
}
SHOWN = {
    "of the largest": asked("t = f32[4] reduce(s, i), dimensions={1}, to_apply=most", "row"),
    "of a logarithm of sums": asked(
        "m = f32[4] reduce(e, z), dimensions={1}, to_apply=total\nt = f32[4] log(m)", "row"
    ),
    "of scores, by themselves": asked("t = f32[4,4] multiply(s, w)", question=SELF),
    "of a logarithm behind an epsilon": asked("m = f32[4,4] add(e, w)\nt = f32[4,4] log(m)"),
}


def verdict(how: str, rest: str, folder: Path) -> shardproof.Result:
    files = folder / "single.hlo", folder / "parallel.hlo"
    for file, own, ranks in zip(files, (ALONE, rest), (1, 2), strict=True):
        head = f"HloModule m, replica_count={ranks}, num_partitions=1\n\n"
        file.write_text(head + BODY.replace("HOW", how).replace("REST", own))
    return shardproof.verify(*files, out=folder / "run", cache_dir=folder / "cache")


@pytest.mark.parametrize("how", ["GE", "NE"], ids=["causal", "another mask"])
@pytest.mark.parametrize("rest", ASKED)
def test_hidden_scores_are_infinite(how: str, rest: str, tmp_path: Path) -> None:
    """The program gives 1 where a score is hidden, and not 0."""
    result = verdict(how, ASKED[rest], tmp_path)
    assert result.verdict == "inconclusive", result.reason
    assert "may be minus infinity" in result.reason


def refusals(how: str, rest: str) -> list[str]:
    """Operators of the program that are not understood, as its operators are lowered."""
    head = "HloModule m, replica_count=1, num_partitions=1\n\n"
    program = head + BODY.replace("HOW", how).replace("REST", rest)
    low, _, _ = lower(inline.graph(text.parse(program)))
    return [op.name for op in low.recorder.ops if "of HLO" in op.name]


@pytest.mark.parametrize("rest", MADE)
def test_what_is_made_of_them_may_be_infinite(rest: str) -> None:
    """The program gives 1 where it is, or no number."""
    (reason,) = refusals("GE", MADE[rest])
    assert "may be minus infinity" in reason


@pytest.mark.parametrize("how", ["GE", "NE"], ids=["causal", "another mask"])
@pytest.mark.parametrize("rest", SHOWN)
def test_what_reads_a_score_that_is_shown_is_finite(how: str, rest: str) -> None:
    assert not refusals(how, SHOWN[rest])


def test_an_infinite_constant_is_not_finite(tmp_path: Path) -> None:
    assert verdict("GE", asked("t = f32[4,4] copy(j)"), tmp_path).verdict == "refuted"


@pytest.mark.parametrize("how", ["GE", "NE"], ids=["causal", "another mask"])
@pytest.mark.parametrize("rest", FINITE)
def test_what_is_made_of_them_is_finite(how: str, rest: str, tmp_path: Path) -> None:
    result = verdict(how, FINITE[rest], tmp_path)
    assert result.verdict == "proved", result.reason


ADDED = (
    "  g = pred[4,4] compare(q, k), direction=MASK\n"
    "  m = f32[4,4] select(g, n, j)\n"
    "  t = f32[4,4] SUM\n"
    "  f = f32[4,4] exponential(t)\n"
    "  ROOT r = f32[4,4] multiply(f, w)\n"
)


@pytest.mark.parametrize("how", ["GE", "NE"], ids=["causal", "another mask"])
@pytest.mark.parametrize("total", ["add(x, m)", "add(m, x)"])
def test_adding_minus_infinity_hides(how: str, total: str, tmp_path: Path) -> None:
    """As Llama adds ``triu(full(-inf), 1)`` to its scores."""
    right = ADDED.replace("MASK", how).replace("SUM", total)
    result = verdict(how, right, tmp_path)
    assert result.verdict == "proved", result.reason
    assert shardproof.check(tmp_path / "run").ok
    wrong = ADDED.replace("MASK", "GT").replace("SUM", total)
    (tmp_path / "wrong").mkdir()
    assert verdict(how, wrong, tmp_path / "wrong").verdict != "proved"


def test_plus_infinity_at_some_entries_is_not_understood() -> None:
    (reason,) = refusals("GE", ADDED.replace("MASK", "GE").replace("SUM", "subtract(x, m)"))
    assert "not finite" in reason
