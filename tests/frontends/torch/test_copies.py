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


def _complex() -> torch.Tensor:
    return torch.view_as_complex(torch.randn(3, 2))


def test_conjugates_are_copies() -> None:
    aten = torch.ops.aten
    assert copying(aten._conj.default) is aten.conj_physical.default
    assert copying(aten.diagonal.default) is None
    assert copying(aten._efficientzerotensor.default) is aten.zeros.default
    names = _recorded(lambda: torch.view_as_real(_complex().conj() * 1j))
    assert "complex.conj_physical.default" in names


def test_a_copy_that_would_not_show_what_is_written_is_refused() -> None:
    def later(z: torch.Tensor) -> None:
        view = z.conj()
        z.add_(1)
        view + 1

    def through(z: torch.Tensor) -> None:
        z.conj().add_(1)

    for step in (later, through):
        with pytest.raises(InvalidInput, match="memory is written that a conjugate shows"):
            _recorded(lambda step=step: step(_complex()))


def test_what_is_written_after_the_last_look_is_none_of_it() -> None:
    copies = Copies()
    copies.used({0}, (), {1})
    copies.used({1}, (), ())
    copies.used((), {0}, ())
    copies.used({0}, (), ())
    with pytest.raises(InvalidInput):
        copies.used({1}, (), ())
