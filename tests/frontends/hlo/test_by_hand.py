"""Attention with its gradient by hand, heads over two ranks, beside what JAX derives.

By hand a softmax's gradient takes ``sum over d of do[d] o[d]`` off, which is the sum over keys that
JAX takes off, multiplied out: ``o`` is the values weighted by the same softmax.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

SAMPLES = Path(__file__).parent / "samples"
#: Where what the outputs tell is taken off what the values tell.
TAKEN_OFF = "%73 = stablehlo.subtract %68"


@pytest.mark.parametrize(("how", "expected"), [("subtract", "proved"), ("add", "refuted")])
def test_a_gradient_of_attention_by_hand(how: str, expected: str, tmp_path: Path) -> None:
    alone, ranks = (
        (SAMPLES / f"attention.{side}.mlir").read_text() for side in ("single", "parallel")
    )
    assert TAKEN_OFF in ranks
    other = TAKEN_OFF.replace("subtract", how)
    verified(alone, ranks.replace(TAKEN_OFF, other), tmp_path, expected)
