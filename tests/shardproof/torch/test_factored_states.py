"""What an optimizer keeps of a parameter in another shape than the parameter's: Adafactor's means
over rows and columns, where it compares numbers that nobody knows, too."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

RANKS = 2


class Factored(torch.optim.Optimizer):
    """The mean square over columns is kept, and divided by; ``kept``: how much of it is."""

    def __init__(self, parameters: object, kept: float) -> None:
        super().__init__(parameters, {"kept": kept})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("rows", torch.zeros(parameter.shape[0]))
                square = parameter.grad.square().mean(1)
                state["rows"].mul_(group["kept"]).add_(square, alpha=1 - group["kept"])
                parameter.sub_(parameter.grad * (state["rows"] + 1e-8).rsqrt()[:, None])


def verified(folder: Path, optimizers: object, sharded: bool = False) -> sp.Result:
    """``optimizers``: what makes that of the single device, and that of a rank by its number."""

    def single(job: sp.Job) -> None:
        step(job, nn.Linear(3, 2, bias=False), 0, job.batch["x"])

    def parallel(job: sp.Job) -> None:
        model = nn.Linear(3, 2, bias=False)
        model = fully_shard(model) if sharded else DistributedDataParallel(model)
        step(job, model, job.rank, job.batch["x"].chunk(RANKS)[job.rank])

    def step(job: sp.Job, model: nn.Module, rank: int, x: torch.Tensor) -> None:
        optimizer = optimizers(model.parameters(), rank)
        job.start(model, optimizer)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return locally(folder, single, parallel, {"x": sp.tensor((4, 3))}, RANKS)


@pytest.mark.parametrize(("wrong", "expected"), [(0.9, "proved"), (0.8, "refuted")])
def test_means_of_rows(wrong: float, expected: str, tmp_path: Path) -> None:
    """``wrong``: how much rank 1 keeps of what it has, which is 0."""
    result = verified(tmp_path, lambda p, rank: Factored(p, wrong if rank else 0.9))
    assert result.verdict == expected, sp.told(result)
    assert expected == "proved" or "rows" in sp.told(result)


def test_a_part_of_the_parameter_does_not_say_which_part_of_the_state(tmp_path: Path) -> None:
    result = verified(tmp_path, lambda p, rank: Unsized(p), sharded=True)
    assert result.verdict == "invalid input", sp.told(result)
    assert "nothing says which part of the whole state" in sp.told(result)


class Unsized(torch.optim.SGD):
    """A state that is no DTensor."""

    def step(self, closure: object = None) -> None:
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["rows"] = torch.zeros(5)


@pytest.mark.parametrize(("wrong", "expected"), [(0.01, "proved"), (0.02, "refuted")])
def test_adafactor(wrong: float, expected: str, tmp_path: Path) -> None:
    """PyTorch's own, whose rate is the larger one of two numbers; ``wrong``: that of rank 1."""
    result = verified(
        tmp_path, lambda p, rank: torch.optim.Adafactor(p, lr=wrong if rank else 0.01)
    )
    assert result.verdict == expected, sp.told(result)
