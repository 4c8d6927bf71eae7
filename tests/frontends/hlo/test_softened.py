"""``jax.nn.softplus`` as JAX writes it, beside the logarithm of 1 and an exponential."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import ADD, agree
from tests.frontends.hlo.verdicts import verified

#: The larger one of ``x`` and 0 and what is added to it; ``LESS`` is ``x`` itself, or less 0.
BY_CASES = """  none = f32[ROWS,6] broadcast(zero), dimensions={}
  t = f32[ROWS,6] maximum(x, none)
  c = f32[ROWS,6] subtract(x, none)
  k = f32[ROWS,6] abs(LESS)
  n = f32[ROWS,6] negate(k)
  w = f32[ROWS,6] exponential(n)
  q = f32[ROWS,6] log-plus-one(w)
  y = f32[ROWS,6] add(t, q)
"""
#: ``log(1 + exp(x))`` of ``OF``.
AT_ONCE = """  ones = f32[ROWS,6] broadcast(one), dimensions={}
  m = f32[ROWS,6] negate(x)
  e = f32[ROWS,6] exponential(OF)
  d = f32[ROWS,6] add(e, ones)
  y = f32[ROWS,6] log(d)
"""


def module(way: str, ranks: int = 1) -> str:
    """The sum over rows of one of the two; ranks have some of eight rows each."""
    head = "" if ranks == 1 else f", num_partitions={ranks}"
    sharding = "" if ranks == 1 else f", sharding={{devices=[{ranks},1]<=[{ranks}]}}"
    group = ",".join(map(str, range(ranks)))
    joined = (
        "  ROOT r = f32[6] all-reduce(s), channel_id=1, "
        f"replica_groups={{{{{group}}}}}, use_global_device_ids=true, to_apply=add\n"
    )
    body = way.replace("ROWS", str(8 // ranks))
    total = "s = f32[6] reduce(y, zero), dimensions={0}, to_apply=add\n"
    return (
        f"HloModule m{head}\n{ADD}ENTRY main {{\n"
        f"  x = f32[{8 // ranks},6] parameter(0){sharding}\n"
        "  zero = f32[] constant(0)\n  one = f32[] constant(1)\n"
        + body
        + (f"  ROOT {total}" if ranks == 1 else f"  {total}{joined}")
        + "}\n"
    )


@pytest.mark.parametrize("less", ["x", "c"])
@pytest.mark.parametrize(("of", "expected"), [("x", "proved"), ("m", "refuted")])
def test_by_cases_is_at_once(less: str, of: str, expected: str, tmp_path: Path) -> None:
    cases, once = BY_CASES.replace("LESS", less), AT_ONCE.replace("OF", of)
    verified(module(cases), module(once, 2), tmp_path, expected)


@pytest.mark.parametrize("less", ["x", "c"])
def test_it_is_what_it_computes(less: str) -> None:
    agree(inline.graph(text.parse(module(BY_CASES.replace("LESS", less), 2))))


def test_the_ranks_reciprocal_is_the_logistic_function(tmp_path: Path) -> None:
    logistic = "  y = f32[ROWS,6] logistic(x)\n"
    parts = AT_ONCE.replace("log(d)", "divide(ones, d)")
    verified(module(logistic), module(parts.replace("OF", "m"), 2), tmp_path, "proved")


def test_the_reciprocal_of_the_other_sign_is_not(tmp_path: Path) -> None:
    logistic = "  y = f32[ROWS,6] logistic(x)\n"
    parts = AT_ONCE.replace("log(d)", "divide(ones, d)")
    verified(module(logistic), module(parts.replace("OF", "x"), 2), tmp_path, "refuted")
