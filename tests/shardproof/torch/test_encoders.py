"""PyTorch's encoder layers where nothing is differentiated: one kernel, recorded as operators."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp
from shardproof.frontends.torch import encoders

ROWS, LENGTH, WIDTH = 4, 4, 8
BATCH = {
    "x": sp.tensor((ROWS, LENGTH, WIDTH)),
    "words": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=5),
}


def taught(kind: str, ranks: int, mistake: str = "") -> Callable[[sp.Job], None]:
    """A layer beside its teacher, a copy in evaluation; ``kind``: what the teacher's mask hides;
    ``mistake``: it hides nothing on ranks."""

    def step(job: sp.Job) -> None:
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 12, dropout=0.0, batch_first=True, norm_first=kind == "padding"
        )
        teacher = copy.deepcopy(layer).eval().requires_grad_(requires_grad=False)
        job.start(layer)
        x, words = (job.batch[name].chunk(ranks)[job.rank] for name in BATCH)
        masks: dict[str, torch.Tensor] = {}
        if kind == "padding":
            masks["src_key_padding_mask"] = (words == 0) & (torch.arange(LENGTH) > 0)
        if kind == "later positions":
            masks["src_mask"] = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        aim = teacher(x, **({} if mistake else masks))
        loss = (layer(x, **masks) - aim.tanh()).square().mean()
        loss.backward()
        for parameter in layer.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [
        *(("nothing", ""), ("padding", ""), ("later positions", "")),
        *(("padding", "no mask"), ("later positions", "no mask")),
    ],
)
def test_a_teacher_in_evaluation_is_read_as_what_it_computes(kind: str, mistake: str) -> None:
    result = sp.verify(taught(kind, 1), taught(kind, 2, mistake), world_size=2, batch=BATCH)
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
    assert any(encoders.PLAIN in text for text in result.assumptions)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", ["", "positions", "rows", "numbers"])
def test_plain_operators_are_the_kernel(norm_first: bool, activation: str, mask: str) -> None:
    """What a mask has but 0 is hidden, also where it is another number."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, 2, 12, 0.0, activation, batch_first=True, norm_first=norm_first
    ).double()
    x = torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64)
    masks = {
        "": (None, None),
        "positions": (torch.ones(LENGTH, LENGTH).triu(1).bool(), 0),
        "rows": (torch.randn(ROWS, LENGTH) > 0.5, 1),
        "numbers": (torch.randn(ROWS, 2, LENGTH, LENGTH).round(), 2),
    }
    hidden, kind = masks[mask]
    attention, first, second = layer.self_attn, layer.norm1, layer.norm2
    projections = (
        *(attention.in_proj_weight, attention.in_proj_bias),
        *(attention.out_proj.weight, attention.out_proj.bias),
    )
    rest = (
        *(first.weight, first.bias, second.weight, second.bias),
        *(layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias),
    )
    args = (x, WIDTH, 2, *projections, activation == "gelu", norm_first, first.eps, *rest)
    with torch.no_grad():
        expected = torch._transformer_encoder_layer_fwd(*args, hidden, kind)
        torch.testing.assert_close(encoders._encoded(*args, hidden, kind), expected, equal_nan=True)
        for average in (False, True):
            own = (WIDTH, 2, *projections, hidden, True, average, kind)
            both = torch._native_multi_head_attention(x, x, x, *own)
            torch.testing.assert_close(encoders._attended(x, *own), both, equal_nan=True)
