"""What is left of numbers that cancel is rounding, and tells nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof

ADD = "add {\n  u = f32[] parameter(0)\n  v = f32[] parameter(1)\n  ROOT w = f32[] add(u, v)\n}\n\n"
SINGLE = """HloModule m

ENTRY main {
  g = f32[4,3] parameter(0)
  h = f32[] constant(1e-4)
  k = f32[4,3] broadcast(h), dimensions={}
  x = f32[4,3] multiply(g, k)
  a = f32[4,3] multiply(x, x)
  b = f32[4,3] multiply(a, a)
  c = f32[4,3] multiply(b, b)
  ROOT y = f32[4,3] multiply(c, x)
}
"""
#: The same, and x times 1/s - sum(p exp(-2 log s)), which is zero; s is the sum of p.
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}ENTRY main {{
  g = f32[2,3] parameter(0), sharding={{devices=[2,1]<=[2]}}
  h = f32[] constant(1e-4)
  k = f32[2,3] broadcast(h), dimensions={{}}
  x = f32[2,3] multiply(g, k)
  a = f32[2,3] multiply(x, x)
  b = f32[2,3] multiply(a, a)
  c = f32[2,3] multiply(b, b)
  y = f32[2,3] multiply(c, x)
  p = f32[2,3] logistic(x)
  z = f32[] constant(0)
  s = f32[2] reduce(p, z), dimensions={{1}}, to_apply=add
  one = f32[] constant(TIMES)
  o = f32[2] broadcast(one), dimensions={{}}
  r = f32[2] divide(o, s)
  j = f32[2] log(s)
  m = f32[2] add(j, j)
  n = f32[2] negate(m)
  i = f32[2] exponential(n)
  w = f32[2,3] broadcast(i), dimensions={{0}}
  q = f32[2,3] multiply(p, w)
  t = f32[2] reduce(q, z), dimensions={{1}}, to_apply=add
  d = f32[2] subtract(r, t)
  e = f32[2,3] broadcast(d), dimensions={{0}}
  f = f32[2,3] multiply(e, x)
  ROOT l = f32[2,3] add(y, f)
}}
"""


@pytest.mark.parametrize(("times", "refuted"), [("1", False), ("1.5", True)])
def test_nothing_is_refuted_by_rounding(times: str, refuted: bool, tmp_path: Path) -> None:
    one, many = tmp_path / "one.hlo", tmp_path / "many.hlo"
    one.write_text(SINGLE)
    many.write_text(PARALLEL.replace("TIMES", times))
    result = shardproof.verify(one, many, out=tmp_path / "run", cache=False)
    assert (result.verdict == "refuted") is refuted, result.reason


VARIANCE = f"""HloModule m

{ADD}ENTRY main {{
  x = f32[4,3] parameter(0)
  z = f32[] constant(0)
  s = f32[4] reduce(x, z), dimensions={{1}}, to_apply=add
  h = f32[] constant(0.3333333433)
  k = f32[4] broadcast(h), dimensions={{}}
  m = f32[4] multiply(s, k)
  w = f32[4,3] broadcast(m), dimensions={{0}}
  c = f32[4,3] subtract(x, w)
  q = f32[4,3] multiply(c, c)
  t = f32[4] reduce(q, z), dimensions={{1}}, to_apply=add
  ROOT v = f32[4] multiply(t, k)
}}
"""
#: Functions of x that lose all digits, and other forms of them; ``TIMES``: what the ranks multiply.
FORMS = {
    "a root beside its own square": (
        """  q = T multiply(x, x)
  cs = f32[] constant(18014398509481984)
  c = T broadcast(cs), dimensions={}
  ds = f32[] constant(134217728)
  d = T broadcast(ds), dimensions={}
  s = T add(q, c)
  r = T sqrt(s)
""",
        "  y = T subtract(r, d)\n",
        "  t = T add(r, d)\n  y = T divide(q, t)\n",
    ),
    "what is left of a probability": (
        """  cs = f32[] constant(16)
  c = T broadcast(cs), dimensions={}
  os = f32[] constant(1)
  o = T broadcast(os), dimensions={}
  u = T multiply(x, c)
""",
        "  p = T logistic(u)\n  k = T subtract(o, p)\n  y = T log(k)\n",
        "  v = T negate(u)\n  p = T logistic(v)\n  y = T log(p)\n",
    ),
}


@pytest.mark.parametrize(("times", "refuted"), [("1", False), ("1.5", True)])
@pytest.mark.parametrize("form", FORMS)
def test_more_digits_tell_rounding(form: str, times: str, refuted: bool, tmp_path: Path) -> None:
    same, of_one, of_ranks = FORMS[form]
    last = "  ws = f32[] constant({})\n  w = T broadcast(ws), dimensions={{}}\n  ROOT z = T multiply(y, w)\n}}\n"
    one = f"HloModule m\n\nENTRY main {{\n  x = T parameter(0)\n{same}{of_one}{last.format(1)}"
    many = (
        "HloModule m, num_partitions=2\n\nENTRY main {\n"
        f"  x = T parameter(0), sharding={{devices=[2,1]<=[2]}}\n{same}{of_ranks}{last.format(times)}"
    )
    files = tmp_path / "one.hlo", tmp_path / "many.hlo"
    files[0].write_text(one.replace("T ", "f32[4,3] ").replace("ROO" + "f32[4,3] ", "ROOT "))
    files[1].write_text(many.replace("T ", "f32[2,3] ").replace("ROO" + "f32[2,3] ", "ROOT "))
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False)
    assert (result.verdict == "refuted") is refuted, result.reason


#: The mean of squares less the square of the mean, of numbers that are 100,000 more.
OF_SQUARES = f"""HloModule m, num_partitions=2

{ADD}ENTRY main {{
  x = f32[2,3] parameter(0), sharding={{devices=[2,1]<=[2]}}
  b = f32[] constant(100000)
  o = f32[2,3] broadcast(b), dimensions={{}}
  y = f32[2,3] add(x, o)
  z = f32[] constant(0)
  s = f32[2] reduce(y, z), dimensions={{1}}, to_apply=add
  h = f32[] constant(0.3333333433)
  k = f32[2] broadcast(h), dimensions={{}}
  m = f32[2] multiply(s, k)
  q = f32[2,3] multiply(y, y)
  t = f32[2] reduce(q, z), dimensions={{1}}, to_apply=add
  e = f32[2] multiply(t, k)
  n = f32[2] multiply(m, m)
  d = f32[2] subtract(e, n)
  f = f32[] constant(TIMES)
  g = f32[2] broadcast(f), dimensions={{}}
  ROOT v = f32[2] multiply(d, g)
}}
"""


COPIED = """HloModule m

ENTRY main {
  x = f32[4,3] parameter(0)
  ROOT y = f32[4,3] copy(x)
}
"""
#: What is added to a number beside which it is rounded away is there over the reals.
BESIDE_LARGE = """HloModule m, num_partitions=2

ENTRY main {
  x = f32[2,3] parameter(0), sharding={devices=[2,1]<=[2]}
  l = f32[] constant(1e30)
  k = f32[2,3] broadcast(l), dimensions={}
  t = f32[2,3] maximum(x, k)
  a = f32[2,3] add(x, t)
  q = f32[2,3] multiply(t, t)
  r = f32[2,3] sqrt(q)
  d = f32[2,3] subtract(a, r)
  f = f32[] constant(TIMES)
  g = f32[2,3] broadcast(f), dimensions={}
  ROOT v = f32[2,3] multiply(d, g)
}
"""


@pytest.mark.parametrize(("times", "refuted"), [("1", False), ("1.5", True)])
@pytest.mark.parametrize(
    ("single", "parallel"),
    [(VARIANCE, OF_SQUARES), (COPIED, BESIDE_LARGE)],
    ids=["squares", "beside a large number"],
)
def test_what_large_numbers_round_away_refutes_nothing(
    single: str, parallel: str, times: str, refuted: bool, tmp_path: Path
) -> None:
    one, many = tmp_path / "one.hlo", tmp_path / "many.hlo"
    one.write_text(single)
    many.write_text(parallel.replace("TIMES", times))
    result = shardproof.verify(one, many, out=tmp_path / "run", cache=False)
    assert (result.verdict == "refuted") is refuted, result.reason


@pytest.mark.parametrize(("number", "verdict"), [("1e9", "proved"), ("300", "refuted")])
def test_a_large_number_is_no_smaller_one(number: str, verdict: str, tmp_path: Path) -> None:
    """Both sides are run with a smaller number for the large one, which is none that a side has."""
    body = (
        "ENTRY main {{\n  x = f32[{0},3] parameter(0){1}\n  l = f32[] constant({2})\n"
        "  k = f32[{0},3] broadcast(l), dimensions={{}}\n  ROOT y = f32[{0},3] multiply(x, k)\n}}\n"
    )
    one, many = tmp_path / "one.hlo", tmp_path / "many.hlo"
    one.write_text("HloModule m\n\n" + body.format(4, "", "1e9"))
    divided = ", sharding={devices=[2,1]<=[2]}"
    many.write_text("HloModule m, num_partitions=2\n\n" + body.format(2, divided, number))
    result = shardproof.verify(one, many, out=tmp_path / "run", cache=False)
    assert result.verdict == verdict, result.reason


#: x, and x times what rounding leaves of ``6 exp(t - (t + log 6)) - 1`` beside a large t, where 6 is
#: that times the squares of a sine and a cosine.
SCALED = """HloModule m

ENTRY main {
  x = f32[4,3] parameter(0)
  z = f32[] constant(1000)
  k = f32[4,3] broadcast(z), dimensions={}
  ROOT y = f32[4,3] multiply(x, k)
}
"""
NORMED = """HloModule m, num_partitions=2

ENTRY main {
  x = f32[2,3] parameter(0), sharding={devices=[2,1]<=[2]}
  z = f32[] constant(1000)
  k = f32[2,3] broadcast(z), dimensions={}
  y = f32[2,3] multiply(x, k)
  g = f32[] constant(160000)
  h = f32[2,3] broadcast(g), dimensions={}
  s = f32[2,3] multiply(x, x)
  r = f32[2,3] add(s, h)
  t = f32[2,3] multiply(r, r)
  one = f32[2,3] sine(x)
  two = f32[2,3] cosine(x)
  ones = f32[2,3] multiply(one, one)
  twos = f32[2,3] multiply(two, two)
  both = f32[2,3] add(ones, twos)
  a = f32[] constant(SIX)
  l = f32[2,3] broadcast(a), dimensions={}
  six = f32[2,3] multiply(both, l)
  b = f32[2,3] log(six)
  c = f32[2,3] add(t, b)
  d = f32[2,3] subtract(t, c)
  e = f32[2,3] exponential(d)
  o = f32[] constant(6)
  i = f32[2,3] broadcast(o), dimensions={}
  m = f32[2,3] multiply(e, i)
  n = f32[] constant(1)
  p = f32[2,3] broadcast(n), dimensions={}
  j = f32[2,3] subtract(m, p)
  u = f32[2,3] multiply(j, k)
  q = f32[2,3] multiply(u, y)
  ROOT w = f32[2,3] add(q, y)
}
"""


@pytest.mark.parametrize(("six", "refuted"), [("6", False), ("6.01", True)])
def test_longer_numbers_may_be_near_to_the_shorter_ones(
    six: str, refuted: bool, tmp_path: Path
) -> None:
    """Of what rounding leaves in double precision, a 35th is left with eleven bits more, since the
    shorter numbers have one near log 6."""
    one, many = tmp_path / "one.hlo", tmp_path / "many.hlo"
    one.write_text(SCALED)
    many.write_text(NORMED.replace("SIX", six))
    result = shardproof.verify(one, many, cache=False)
    assert (result.verdict == "refuted") is refuted, result.verdict
