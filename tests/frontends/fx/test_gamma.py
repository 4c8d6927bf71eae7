"""Densities of gamma and beta distributions, whose normalisation is a function of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.fx.test_own_numbers import Model, verified  # noqa: E402


class Likelihood(Model):
    """The logarithm of a gamma density at 2, by shape and rate, and a derivative by the shape."""

    def forward(self, x: Any) -> Any:
        shape, rate = torch.nn.functional.softplus(x[..., 0]), x[..., 1].exp()
        other = shape + 1 if self.wrong == "shape" else shape
        density = shape * rate.log() - torch.lgamma(other) - 2 * rate
        slope = torch.lgamma(shape) if self.wrong == "slope" else torch.digamma(shape)
        return density + rate.log() - slope + torch.erfinv(torch.tanh(x[..., 1]))


@pytest.mark.parametrize("wrong", ["", "shape", "slope"])
def test_logarithms_of_the_gamma_function(wrong: str, tmp_path: Path) -> None:
    result = verified(tmp_path, Likelihood(), Likelihood(wrong), (4, 2))
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
