"""PyTorch's own layers and their copies under data parallelism by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, averaged, floats, rows

WIDTH, HEADS, INNER = 8, 2, 16


def case(
    name: str,
    model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, list[torch.Tensor]], torch.Tensor],
    batch: dict[str, sp.TensorSpec],
) -> Case:
    """The gradients as their mean over two ranks; wrong: the loss of the first rank's rows on both,
    and gradients of its own rows on each."""

    def single(job: sp.Job) -> None:
        own = model()
        job.start(own)
        value = loss(own, [job.batch[name] for name in batch])
        value.backward()
        job.end(loss=value)

    def parallel(mistake: str = "") -> Step:
        def step(job: sp.Job) -> None:
            own = model()
            job.start(own)
            at = 0 if mistake == "rows of the first rank" else job.rank
            value = loss(own, rows(job, *batch, at=at))
            value.backward()
            if mistake != "not reduced":
                averaged(own)
            job.end(loss=value)

        return step

    wrong = {m: parallel(m) for m in ("rows of the first rank", "not reduced")}
    return Case(name, single, parallel(), wrong, batch)


def squares(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    *inputs, target = batch
    return F.mse_loss(model(*inputs), target)


class Decoded(nn.Module):
    """The first positions of one tensor, causally, with keys of its last ones beside them."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.layer = nn.TransformerDecoderLayer(
            WIDTH, HEADS, INNER, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(self.length)
        own, memory = x[:, : self.length], x[:, self.length :]
        return self.layer(own, memory, tgt_mask=mask, tgt_is_causal=True)  # type: ignore[no-any-return]


class Translated(nn.Module):
    """`nn.Transformer`, which copies its layers from one each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Transformer(WIDTH, HEADS, 1, 1, INNER, dropout=0.0, batch_first=True)

    def forward(self, source: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layers(source, x, tgt_mask=mask)  # type: ignore[no-any-return]


TRANSLATED = case(
    "nn.Transformer with a causal mask",
    Translated,
    squares,
    floats(source=(4, 2, WIDTH), x=(4, 3, WIDTH), y=(4, 3, WIDTH)),
)
HALVES = case(
    "a decoder layer of two parts of one tensor",
    lambda: Decoded(2),
    squares,
    floats(x=(4, 4, WIDTH), y=(4, 2, WIDTH)),
)

CASES = [TRANSLATED, HALVES]
