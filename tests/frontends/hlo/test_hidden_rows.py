"""Rows of scores that a mask hides altogether: assumed not to be there, so they refute nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

SUMMED = """total {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

largest {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}

ENTRY main {
"""
LINES = """  x = f32[ROWS,6] parameter(0)PLACED
  k = f32[ROWS,6] parameter(1)PLACED
  z = f32[] constant(0)
  n = f32[ROWS,6] broadcast(z), dimensions={}
  p = pred[ROWS,6] compare(k, n), direction=GT
  i = f32[] constant(-inf)
"""
SOFTMAX = """  h = f32[ROWS,6] broadcast(i), dimensions={}
  s = f32[ROWS,6] select(p, x, h)
  m = f32[ROWS] reduce(s, i), dimensions={1}, to_apply=largest
  c = f32[ROWS,6] broadcast(m), dimensions={0}
  d = f32[ROWS,6] subtract(s, c)
  e = f32[ROWS,6] exponential(d)
"""
BY_HAND = """  y = f32[ROWS,6] exponential(x)
  o = f32[] constant(NUMBER)
  w = f32[ROWS,6] broadcast(o), dimensions={}
  e = f32[ROWS,6] select(p, y, w)
"""
SHARES = """  t = f32[ROWS] reduce(e, z), dimensions={1}, to_apply=total
  u = f32[ROWS,6] broadcast(t), dimensions={0}
  ROOT r = f32[ROWS,6] divide(e, u)
}
"""
BOUNDED = """  t = f32[ROWS] reduce(e, z), dimensions={1}, to_apply=total
  q = f32[] constant(1e-30)
  j = f32[ROWS] broadcast(q), dimensions={}
  g = f32[ROWS] maximum(t, j)
  u = f32[ROWS,6] broadcast(g), dimensions={0}
  ROOT r = f32[ROWS,6] divide(e, u)
}
"""
LARGEST = """  h = f32[ROWS,6] broadcast(i), dimensions={}
  s = f32[ROWS,6] select(p, x, h)
  ROOT m = f32[ROWS] reduce(s, i), dimensions={1}, to_apply=largest
}
"""
BOUNDED_LARGEST = LARGEST.replace("ROOT m", "m").replace(
    "\n}\n",
    """
  q = f32[] constant(BOUND)
  j = f32[ROWS] broadcast(q), dimensions={}
  ROOT g = f32[ROWS] maximum(m, j)
}
""",
)
LOGARITHM = {
    "softmax": """  t = f32[ROWS] reduce(e, z), dimensions={1}, to_apply=total
  l = f32[ROWS] log(t)
  v = f32[ROWS] add(l, m)
  ROOT r = f32[ROWS,6] broadcast(v), dimensions={0}
}
""",
    "by hand": """  t = f32[ROWS] reduce(e, z), dimensions={1}, to_apply=total
  l = f32[ROWS] log(t)
  ROOT r = f32[ROWS,6] broadcast(l), dimensions={0}
}
""",
}


def module(lines: str, ranks: int) -> str:
    placed = f", sharding={{devices=[{ranks},1]<=[{ranks}]}}" if ranks > 1 else ""
    lines = (SUMMED + LINES + lines).replace("ROWS", str(4 // ranks)).replace("PLACED", placed)
    return f"HloModule m, num_partitions={ranks}\n\n{lines}"


@pytest.mark.parametrize(("number", "expected"), [("0", "inconclusive"), ("1", "refuted")])
def test_a_softmax_by_hand_of_hidden_scores(number: str, expected: str, tmp_path: Path) -> None:
    """Of a row that is hidden altogether both are no number; what is hidden counts as 0, not 1.
    (That the two forms are one is not seen.)"""
    hand = BY_HAND.replace("NUMBER", number) + SHARES
    verified(module(SOFTMAX + SHARES, 1), module(hand, 2), tmp_path, expected)


@pytest.mark.parametrize(("number", "expected"), [("0", "inconclusive"), ("1", "refuted")])
def test_a_logarithm_by_hand_of_hidden_scores(number: str, expected: str, tmp_path: Path) -> None:
    """Of a row that is hidden altogether it is the logarithm of 0."""
    hand = BY_HAND.replace("NUMBER", number) + LOGARITHM["by hand"]
    verified(module(SOFTMAX + LOGARITHM["softmax"], 1), module(hand, 2), tmp_path, expected)


@pytest.mark.parametrize(("number", "expected"), [("0", "inconclusive"), ("1", "refuted")])
def test_a_softmax_by_hand_that_is_0_where_all_is_hidden(
    number: str, expected: str, tmp_path: Path
) -> None:
    hand = BY_HAND.replace("NUMBER", number) + BOUNDED
    verified(module(SOFTMAX + SHARES, 1), module(hand, 2), tmp_path, expected)


@pytest.mark.parametrize(("bound", "expected"), [("-1e20", "inconclusive"), ("0.1", "refuted")])
def test_a_largest_score_that_is_bounded_where_all_is_hidden(
    bound: str, expected: str, tmp_path: Path
) -> None:
    ranks = BOUNDED_LARGEST.replace("BOUND", bound)
    verified(module(LARGEST, 1), module(ranks, 2), tmp_path, expected)


def test_the_same_softmax_is_proved(tmp_path: Path) -> None:
    verified(module(SOFTMAX + SHARES, 1), module(SOFTMAX + SHARES, 2), tmp_path, "proved")
