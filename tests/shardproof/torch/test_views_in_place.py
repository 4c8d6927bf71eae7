"""A view that tensors with memory refuse is refused while a step is recorded, too."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import shardproof.torch as sp
from shardproof.frontends.torch.viewed import require_view

Shape = tuple[int, ...]
BATCH = {"x": sp.tensor((4, 4))}


def _step(flat: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = torch.nn.Linear(4, 4)
        job.start(model)
        loss = flat(model(job.batch["x"])).pow(2).sum()
        loss.backward()
        job.end(loss=loss)

    return step


def _turned(x: torch.Tensor) -> torch.Tensor:
    """[4, 1, 4], whose last dimension lies before its first one."""
    return x.unsqueeze(1).transpose(0, 2)


def test_a_view_that_pytorch_refuses_is_refused_and_its_reshape_is_proved() -> None:
    single = _step(lambda x: x.t().reshape(-1))
    wrong = sp.verify(single, _step(lambda x: _turned(x).view(-1)), world_size=1, batch=BATCH)
    assert wrong.verdict == "invalid input"
    assert "view size is not compatible" in wrong.reason
    assert "test_views_in_place.py" in wrong.reason
    right = sp.verify(single, _step(lambda x: _turned(x).reshape(-1)), world_size=1, batch=BATCH)
    assert right.verdict == "proved", right.reason


def _detached(x: torch.Tensor) -> torch.Tensor:
    """As what PyTorch dispatches below autograd has it (DTensor's ``local_map``)."""
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():  # type: ignore[no-untyped-call]
        return x * torch.ops.aten.detach_.default(x[:2]).sum()


@pytest.mark.parametrize(("twice", "verdict"), [(1.0, "proved"), (2.0, "refuted")])
def test_a_view_that_is_detached_in_place_is_replayed(twice: float, verdict: str) -> None:
    one = _step(lambda x: x * _detached(x.detach()))
    other = _step(lambda x: x * _detached(x.detach()) * twice)
    given = {"batch": BATCH, "executor": "local", "cache": False}
    result = sp.verify(one, other, world_size=1, validate=True, **given)
    assert result.verdict == verdict, result.reason
    assert any("the translation was replayed" in text for text in result.assumptions)


def _drawn(draw: random.Random) -> tuple[Shape, Shape, Shape]:
    """Shape and strides of a tensor that was permuted, repeated or cut, and another shape."""
    x = torch.empty([draw.choice((1, 1, 2, 3)) for _ in range(draw.randint(1, 4))], device="meta")
    for _ in range(draw.randint(0, 3)):
        dim, other = (draw.randrange(x.dim()) for _ in range(2))
        x = x.transpose(dim, other)
        if x.shape[dim] == 1:
            x = x.expand([2 if d == dim else n for d, n in enumerate(x.shape)])
        elif draw.random() < 0.3:
            x = x.narrow(dim, 0, x.shape[dim] - 1)
        x = x.unsqueeze(dim) if x.dim() < 5 and draw.random() < 0.3 else x
    shape = draw.choice(((x.numel(),), (1, x.numel(), 1), (*x.shape, 1), (x.numel() // 2, 2)))
    return tuple(x.shape), x.stride(), shape


def _refused(make: Callable[[], object]) -> bool:
    try:
        make()
    except RuntimeError:
        return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_fake_tensors_are_refused_what_tensors_with_memory_are(seed: int) -> None:
    draw, refused = random.Random(seed), 0
    for _ in range(200):
        size, strides, shape = _drawn(draw)
        real = _refused(lambda: torch.empty_strided(size, strides).view(shape))  # noqa: B023
        with FakeTensorMode():
            fake = torch.empty_strided(size, strides)
            if fake.numel() != torch.Size(shape).numel():
                continue
            view = torch.ops.aten.view.default
            assert _refused(lambda: require_view(view, (fake, shape))) is real  # noqa: B023
        refused += real
    assert refused
