"""Training steps of `make_fx` that pick log-probabilities, over a vocabulary that ranks divide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shardproof

torch = pytest.importorskip("torch")
functional = torch.nn.functional
CLASSES, WIDTH, RANKS = 24, 6, 2


@contextmanager
def process(rank: int, ranks: int) -> Iterator[Any]:
    """One of several processes that do not run; None where there is one alone."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if ranks == 1:
        yield None
        return
    distributed.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield distributed.group.WORLD
    finally:
        distributed.destroy_process_group()


def crossings(group: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Megatron's f and g: a copy whose gradient is summed over ranks, and a sum over ranks."""
    from torch.distributed import _functional_collectives as collectives

    if group is None:
        return (lambda x: x), (lambda x: x)

    class Copy(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return collectives.all_reduce(gradient.contiguous(), "sum", group)

    class Sum(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return collectives.all_reduce(x.contiguous(), "sum", group)

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient

    return Copy.apply, Sum.apply


class Step:
    """A loss over log-probabilities of what ``head`` gives, and its gradients."""

    def __init__(self, rank: int, group: Any, wrong: str) -> None:
        self.rank, self.group, self.wrong = rank, group, wrong
        self.copied, self.summed = crossings(group)

    def log_probabilities(self, head: Any, x: Any, labels: Any) -> Any:
        from torch.distributed import _functional_collectives as collectives

        if self.group is None:
            logits = functional.linear(x, head)
            return logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
        logits = functional.linear(x if self.wrong == "copy" else self.copied(x), head)
        most = collectives.all_reduce(logits.amax(-1).detach(), "max", self.group)
        logits = logits - most[..., None]
        first = self.rank * head.shape[0]
        others = (labels < first) | (labels >= first + head.shape[0])
        own = (labels - first).masked_fill(others, 0)
        picked = logits.gather(-1, own[..., None]).squeeze(-1).masked_fill(others, 0.0)
        total = logits.exp().sum(-1)
        return self.summed(picked) - (total if self.wrong == "sum" else self.summed(total)).log()

    def preferences(self, body: Any, head: Any, x: Any, y: Any, a: Any, b: Any) -> Any:
        """Chosen labels ``a`` of x against ``b`` of y."""
        gap = self.log_probabilities(head, torch.tanh(x @ body), a).sum(-1)
        gap = gap - self.log_probabilities(head, torch.tanh(y @ body), b).sum(-1)
        return -functional.logsigmoid(0.1 * gap).mean()

    def clipped(self, body: Any, head: Any, x: Any, y: Any, a: Any, b: Any) -> Any:
        """A clipped ratio to the policy that sampled, whose log-probabilities are in y."""
        now = self.log_probabilities(head, torch.tanh(x @ body), a)
        ratio, worth = (now - y[..., 0]).exp(), y[..., 1]
        kept = ratio.clamp(0.8, 1.3 if self.wrong == "clip" else 1.2)
        return -torch.minimum(ratio * worth, kept * worth).mean()


def write(path: Path, name: str, rank: int, ranks: int, wrong: str = "") -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    import shardproof.torch as sp

    with process(rank, ranks) as group:
        loss = getattr(Step(rank, group, wrong), name)

        def gradients(body: Any, head: Any, *batch: Any) -> Any:
            with torch.enable_grad():
                given = [x.detach().requires_grad_() for x in (body, head)]
                value = loss(*given, *batch)
                return value.detach(), *torch.autograd.grad(value, given)

        body, head = torch.zeros(WIDTH, WIDTH), torch.zeros(CLASSES // ranks, WIDTH)
        rows = [torch.zeros(2, 5, WIDTH) for _ in range(2)]
        labels = [torch.zeros(2, 5, dtype=torch.int64) for _ in range(2)]
        traced = make_fx(gradients, tracing_mode="fake")(body, head, *rows, *labels)
        path.write_bytes(sp.graph(traced, rank))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("preferences", ""),
        ("preferences", "copy"),
        ("preferences", "sum"),
        ("clipped", ""),
        ("clipped", "clip"),
    ],
)
def test_log_probabilities_of_divided_classes(name: str, wrong: str, tmp_path: Path) -> None:
    single, ranks = tmp_path / "single.json", tmp_path / "ranks"
    ranks.mkdir()
    write(single, name, 0, 1)
    for rank in range(RANKS):
        write(ranks / f"r{rank}.json", name, rank, RANKS, wrong)
    result = shardproof.verify(single, ranks, out=tmp_path / "run", cache=False)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    if not wrong:
        assert shardproof.check(tmp_path / "run").ok
