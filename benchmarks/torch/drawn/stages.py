"""A pipeline: every stage hands on what it computes, and gets the gradient of it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.model import Transformer
from benchmarks.torch.drawn.ranks import Ranks
from benchmarks.torch.drawn.sides import width


class Stage:
    """One rank's part of the pipeline."""

    def __init__(self, drawn: Drawn, at: Ranks, model: Transformer) -> None:
        self.drawn, self.at, self.model = drawn, at, model
        self.entered: list[torch.Tensor] = []
        self.left: list[torch.Tensor] = []
        self.sent: list[tuple[Any, torch.Tensor]] = []

    def run(
        self, inputs: list[torch.Tensor], loss: Callable[[int, torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor]:
        """All microbatches; ``loss(n, logits)`` is called by the last stage, its scaled results
        are differentiated. Returns the logits of the last stage, or nothing."""
        count = len(inputs)
        if self.drawn.order == "all forward":
            ahead = count
        else:
            ahead = min(self.at.pp.size - 1 - self.at.pp.rank, count)
        for n in range(ahead):
            self.forward(inputs[n], n, loss)
        for n in range(ahead, count):
            self.forward(inputs[n], n, loss)
            self.backward(n - ahead)
        for n in range(count - ahead, count):
            self.backward(n)
        for work, _ in self.sent:
            work.wait()
        return self.left if self.model.final else []

    def forward(
        self, x: torch.Tensor, n: int, loss: Callable[[int, torch.Tensor], torch.Tensor]
    ) -> None:
        if not self.model.first:
            x = self.receive(self.hidden(x), -1).requires_grad_()
        self.entered.append(x)
        y = self.model(x)
        if self.model.final:
            y = loss(n, y)
        else:
            self.send(y.detach(), 1)
        self.left.append(y)

    def backward(self, n: int) -> None:
        y = self.left[n]
        if self.model.final:
            y.backward()
        else:
            if self.drawn.mistake == "gradients of other microbatches":
                y = self.left[-1 - n]
            y.backward(self.receive(torch.empty_like(y), 1))
        if not self.model.first:
            grad = self.entered[n].grad
            assert grad is not None
            self.send(grad, -1)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        positions = ids.shape[1] // (self.at.tp.size if self.drawn.sequence else 1)
        return torch.empty(ids.shape[0], positions, width(self.drawn))

    def send(self, x: torch.Tensor, by: int) -> None:
        x = x.contiguous()
        self.sent.append((dist.isend(x, self._stage(by), group=self.at.pp.group), x))

    def receive(self, x: torch.Tensor, by: int) -> torch.Tensor:
        dist.recv(x, self._stage(by), group=self.at.pp.group)
        return x

    def _stage(self, by: int) -> int:
        return dist.get_global_rank(self.at.pp.group, self.at.pp.rank + by)
