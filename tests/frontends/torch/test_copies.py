"""Complex tensors as pairs, and copies in the place of views: what is recorded is what PyTorch says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.complexes import called, recorded, strided
from shardproof.frontends.torch.copies import Copies, copying
from shardproof.frontends.torch.record import Recorder


def _recorded(step: Callable[[], Any]) -> list[str]:
    fake = FakeTensorMode()
    recorder = Recorder(0, 1, fake)
    with fake, recorder:
        step()
    return [event.name for event in recorder.events]


def test_a_complex_tensor_lies_as_its_pairs() -> None:
    x = torch.zeros(3, 4, dtype=torch.complex64)[1:, ::2]
    pairs = strided(x, 0)
    assert (pairs.shape, pairs.strides) == ((2, 2, 2), (8, 4, 1))
    assert (pairs.offset, pairs.dtype) == (8, "float32")
    with pytest.raises(InvalidInput, match="another one lies"):
        strided(x.conj(), 0)


def test_an_operator_on_pairs_is_that_on_complex_numbers() -> None:
    x = torch.tensor([[0.0, 1.0]])
    assert called("complex.mul.Tensor", (x, x), (True, True, True)).tolist() == [[-1.0, 0.0]]
    z = torch.view_as_complex(x)
    name, pairs = recorded("aten.mul.Tensor", (z, 2.0), z)
    assert (name, pairs["pairs"].items) == ("complex.mul.Tensor", (True, False, True))
    assert recorded("aten.mul.Tensor", (x, 2.0), x) == ("aten.mul.Tensor", {})


def test_conjugates_diagonals_and_windows_are_copies() -> None:
    aten = torch.ops.aten
    x = torch.zeros(4, 4)
    assert copying(aten.unfold.default, (x, 0, 3, 1)) is aten.unfold_copy.default
    assert copying(aten.unfold.default, (x, 0, 2, 2)) is None
    names = _recorded(lambda: torch.randn(4, 4).diagonal() + 1)
    assert "aten.diagonal_copy.default" in names
    names = _recorded(
        lambda: torch.view_as_real(torch.view_as_complex(torch.randn(3, 2)).conj() * 1j)
    )
    assert "complex.conj_physical.default" in names


def test_a_copy_that_would_not_show_what_is_written_is_refused() -> None:
    def later(x: torch.Tensor) -> None:
        view = x.diagonal()
        x.add_(1)
        view + 1

    def through(x: torch.Tensor) -> None:
        x.diagonal().add_(1)

    for step in (later, through):
        with pytest.raises(InvalidInput, match="memory is written that a view shows"):
            _recorded(lambda step=step: step(torch.randn(4, 4)))


def test_what_is_written_after_the_last_look_is_none_of_it() -> None:
    copies = Copies()
    copies.used({0}, (), {1})
    copies.used({1}, (), ())
    copies.used((), {0}, ())
    copies.used({0}, (), ())
    with pytest.raises(InvalidInput):
        copies.used({1}, (), ())
