"""Parameters that are divided over replicas along their first dimension, and gathered for use."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.ranks import Axis, gather


class Sharded(nn.Module):
    """Runs a model with the parameters that its shards are put together to."""

    def __init__(self, drawn: Drawn, axis: Axis, model: nn.Module) -> None:
        super().__init__()
        self.model, self.axis = model, axis
        self.turned = drawn.mistake == "shards put together in another order"
        self.sizes = {name: p.shape[0] for name, p in model.named_parameters()}
        for name, parameter in list(model.named_parameters()):
            owner, leaf = name.rsplit(".", 1)
            start, size = shard(axis, parameter.shape[0])
            mine = parameter.detach().narrow(0, start, size).clone()
            setattr(model.get_submodule(owner), leaf, nn.Parameter(mine))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = {name: self.whole(name, p) for name, p in self.model.named_parameters()}
        return functional_call(self.model, whole, (x,))  # type: ignore[no-any-return]

    def whole(self, name: str, mine: torch.Tensor) -> torch.Tensor:
        """A parameter of all shards; the last ones are shorter, and are filled to be sent."""
        size = self.sizes[name]
        fill = -(-size // self.axis.size) - mine.shape[0]
        mine = F.pad(mine, [0, 0] * (mine.dim() - 1) + [0, fill])
        return gather(mine, self.axis, 0, turned=self.turned)[:size]


def shard(axis: Axis, size: int) -> tuple[int, int]:
    """Start and size of this rank's part of a dimension; a last rank may have less, or nothing.

    Example: 5 entries over 4 ranks are parts of 2, 2, 1 and 0.
    """
    each = -(-size // axis.size)
    start = min(axis.rank * each, size)
    return start, min(each, size - start)
