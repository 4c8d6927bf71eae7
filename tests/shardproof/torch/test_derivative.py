"""Whether the recorded backward of the single side is the derivative of its forward."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from shardproof import derivative
from shardproof.checker import check

EPSILON = 1e-5
BATCH = {"x": sp.tensor((4, 3)), "y": sp.tensor((4, 2))}
Step = Callable[[sp.Job], None]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Halved(Square):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return x * gradient  # wrong


class Floor(torch.autograd.Function):
    """A straight-through estimator, whose backward dispatches nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.floor(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Again(torch.autograd.Function):
    """A checkpointed square, part of which is computed with gradients although none is kept, as
    Megatron's layers add their biases."""

    scale = 1.0

    @classmethod
    def body(cls, x: torch.Tensor, scale: float) -> torch.Tensor:
        square = x * x
        with torch.enable_grad():
            return square * scale + x

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        with torch.no_grad():
            return cls.body(x, 1.0)

    @classmethod
    def backward(cls, ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            y = cls.body(x, cls.scale)
        torch.autograd.backward(y, gradient)
        assert x.grad is not None
        return x.grad


class AgainOther(Again):
    scale = 2.0  # wrong: another function is computed again


def step(function: Callable[[torch.Tensor], torch.Tensor], scale: float = 1.0) -> Step:
    """The mean square of ``function`` of a product; backward of the loss times ``scale``."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        loss = (function(model(job.batch["x"])) - job.batch["y"]).pow(2).mean()
        (loss if scale == 1 else loss * scale).backward()
        for parameter in model.parameters() if scale != 1 else ():
            assert parameter.grad is not None
            parameter.grad.div_(scale)
        job.end(loss=loss)

    return run


def microbatches(job: sp.Job) -> None:
    model = nn.Linear(3, 2)
    job.start(model)
    losses = []
    for x, y in zip(job.batch["x"].chunk(2), job.batch["y"].chunk(2), strict=True):
        losses.append((model(x) - y).pow(2).mean())
        (losses[-1] / 2).backward()
    job.end(loss=losses)


def verify(
    folder: Path, one: Step, strict: bool = False, batch: dict[str, Any] = BATCH
) -> sp.Result:
    """One side against itself."""
    options: dict[str, Any] = {"executor": "local", "cache": False, "strict": strict}
    return sp.verify(one, one, world_size=1, batch=batch, out=folder / "run", **options)


def gated(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(x)
    return Square.apply(x) * gate + x * torch.exp(x).detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "one",
    [
        step(Square.apply),
        step(Again.apply),
        step(gated),
        step(torch.relu, scale=1024),
        microbatches,
    ],
    ids=["a custom function", "again", "where no gradient goes", "a scaled loss", "microbatches"],
)
def test_right_ones_are_proved(tmp_path: Path, one: Step) -> None:
    """Also by the second eye, and strictly."""
    result = verify(tmp_path, one, strict=True)
    assert result.verdict == "proved", sp.told(result)
    assert any("is the derivative of its forward: proved for 2" in a for a in result.assumptions)
    assert check(tmp_path / "run" / "derivative").ok


def test_a_part_of_a_flat_tensor_that_no_gradient_goes_to(tmp_path: Path) -> None:
    def joined(x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten()
        both = torch.cat([flat.detach(), Square.apply(flat)])
        return (both[: flat.numel()] * both[flat.numel() :]).view(x.shape)

    result = verify(tmp_path, step(joined), strict=True)
    assert result.verdict == "proved", sp.told(result)


@pytest.mark.parametrize("function", [Halved, Floor, AgainOther])
def test_what_differs_is_said_and_needed_by_strict_alone(tmp_path: Path, function: Any) -> None:
    result = verify(tmp_path, step(function.apply))
    assert result.verdict == "proved", sp.told(result)
    assert check(tmp_path / "run").ok, "what no verdict rests on is no part of a certificate"
    (found,) = [f for f in result.findings if f.kind == "not required"]
    assert "the gradient of bias and 1 more differs" in found.message
    assert f"{Path(__file__).name}:" in found.source
    assert found.source.endswith("(backward)")
    assert [a.kind for a in result.assumption_details if a.about == "backward"] == ["user's word"]
    strict = verify(tmp_path / "strict", step(function.apply), strict=True)
    assert strict.verdict == "inconclusive"
    assert "is not the derivative of its forward" in strict.reason


def clipped(function: Any, scale: float = 1.0) -> Step:
    """A step that clips its gradients, behind a scale of the loss that it takes away again."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        loss = (function(model(job.batch["x"])) - job.batch["y"]).pow(2).mean()
        (loss if scale == 1 else loss * scale).backward()
        for parameter in model.parameters() if scale != 1 else ():
            assert parameter.grad is not None
            parameter.grad.div_(scale)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_clipping_is_no_part_of_backward(tmp_path: Path, scale: float) -> None:
    result = verify(tmp_path, clipped(Square.apply, scale), strict=True)
    assert result.verdict == "proved", sp.told(result)
    wrong = verify(tmp_path / "wrong", clipped(Halved.apply, scale))
    (found,) = [f for f in wrong.findings if f.kind == "not required"]
    assert "the gradient of bias and 1 more differs" in found.message


def test_clipping_alone_asks_nothing(tmp_path: Path) -> None:
    result = verify(tmp_path, clipped(torch.tanh))
    assert result.verdict == "proved", sp.told(result)
    assert derivative.OWN in result.assumptions


@pytest.mark.parametrize(("function", "differs"), [(Square.apply, 0), (Halved.apply, 1)])
def test_a_loss_that_is_detached_to_be_told(tmp_path: Path, function: Any, differs: int) -> None:
    """As `losses.append(loss.detach())` over microbatches: backward was from what it is of."""

    def step(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        loss = (function(model(job.batch["x"])) - job.batch["y"]).pow(2).mean()
        loss.backward()
        job.end(loss=loss.detach())

    result = verify(tmp_path, step)
    assert result.verdict == "proved", sp.told(result)
    assert len([f for f in result.findings if f.kind == "not required"]) == differs


class Norm(torch.autograd.Function):
    """A layer norm as kernels have it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        scale = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + EPSILON)
        y = (x - mean) * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        y, scale = ctx.saved_tensors
        inner = gradient - y * (gradient * y).mean(-1, keepdim=True)
        return scale * (inner - gradient.mean(-1, keepdim=True))  # type: ignore[no-any-return]


class Uncentred(Norm):
    """The gradient that goes through the mean is forgotten."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        y, scale = ctx.saved_tensors
        return scale * (gradient - y * (gradient * y).mean(-1, keepdim=True))  # type: ignore[no-any-return]


def lm(model: Callable[[], nn.Module], wrap: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """Cross entropy of a language model over 7 words, through a function that changes nothing."""

    def run(job: sp.Job) -> None:
        own = model()
        job.start(own)
        logits = wrap(own(job.batch["ids"]))
        loss = F.cross_entropy(logits.flatten(0, 1), job.batch["labels"].flatten())
        loss.backward()
        job.end(loss=loss)

    return run


class Root(nn.Module):
    """An RMS norm as Llama has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON))


class Attention(nn.Module):
    """Causal attention of two heads: with a mask of minus infinity, or rotated and by an operator
    of PyTorch's."""

    def __init__(self, width: int, llama: bool) -> None:
        super().__init__()
        self.llama = llama
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=not llama) for _ in "qkvo")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, 2, d // 2).transpose(1, 2) for w in (self.q, self.k, self.v))
        if self.llama:
            angle = torch.outer(torch.arange(t).float(), torch.ones(d // 2))
            q, k = (
                h * angle.cos() + torch.cat((-h[..., d // 4 :], h[..., : d // 4]), -1) * angle.sin()
                for h in (q, k)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(d // 2)
            later = torch.ones(t, t, dtype=torch.bool).triu(1)
            y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, d))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, llama: bool) -> None:
        super().__init__()
        norm = Root if llama else nn.LayerNorm
        self.before, self.after = norm(width), norm(width)
        self.attention = Attention(width, llama)
        self.up = nn.Linear(width, 2 * width, bias=not llama)
        self.gate = nn.Linear(width, 2 * width, bias=False) if llama else None
        self.down = nn.Linear(2 * width, width, bias=not llama)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        y = self.after(x)
        inner = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        return x + self.down(inner)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self, llama: bool, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.block = Block(width, llama)
        self.norm = Root(width) if llama else nn.LayerNorm(width)
        self.head = nn.Linear(width, 7, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.block(self.embed(ids))))  # type: ignore[no-any-return]


class Same(torch.autograd.Function):
    """What it is given; a kernel of the user's own is recorded like any other operator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1


class Twice(Same):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


WORDS = {
    "ids": sp.tensor((2, 4), torch.long, low=0, high=7),
    "labels": sp.tensor((2, 4), torch.long, low=0, high=7),
}


@pytest.mark.parametrize("norm", [Norm.apply, nn.LayerNorm(2, elementwise_affine=False)])
def test_layer_norms_are_proved(tmp_path: Path, norm: Any) -> None:
    result = verify(tmp_path, step(lambda x: torch.sigmoid(norm(x))), strict=True)
    assert result.verdict == "proved", sp.told(result)
    assert any("is the derivative of its forward: proved for 2" in a for a in result.assumptions)
    assert check(tmp_path / "run" / "derivative").ok


def test_a_layer_norm_without_the_gradient_of_its_mean_differs(tmp_path: Path) -> None:
    result = verify(tmp_path, step(lambda x: torch.sigmoid(Uncentred.apply(x))))
    (finding,) = [f for f in result.findings if f.kind == "not required"]
    assert "differs" in finding.message
    assert finding.source.endswith("(backward)")


@pytest.mark.slow
@pytest.mark.parametrize("llama", [False, True], ids=["GPT", "Llama"])
def test_language_models_are_proved(tmp_path: Path, llama: bool) -> None:
    """Also by the second eye; one whose last gradient is doubled differs."""
    right = lm(lambda: Transformer(llama), Same.apply)
    result = verify(tmp_path, right, batch=WORDS)
    assert any("is the derivative of its forward: proved" in a for a in result.assumptions)
    assert check(tmp_path / "run" / "derivative").ok
    wrong = verify(tmp_path / "wrong", lm(lambda: Transformer(llama), Twice.apply), batch=WORDS)
    assert any("is not the derivative of its forward" in a for a in wrong.assumptions)


def test_what_has_no_rule_is_not_decided(tmp_path: Path) -> None:
    """A scatter is the derivative of a gather already."""

    def largest(x: torch.Tensor) -> torch.Tensor:
        values, index = x.topk(1, dim=1)
        return Square.apply(torch.zeros_like(x).scatter(1, index, values))  # type: ignore[no-any-return]

    result = verify(tmp_path, step(largest))
    assert result.verdict == "proved", sp.told(result)
    assert any("backward is not decided" in a for a in result.assumptions)


def test_a_large_step_is_not_asked_but_by_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derivative, "MOST_OPERATORS", 3)
    result = verify(tmp_path, step(Square.apply))
    assert any("backward is not asked" in a for a in result.assumptions)
    assert not (tmp_path / "run" / "derivative").exists()


def trained(job: sp.Job) -> None:
    """AdamW reads flat gradients of vectors."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    job.start(model, optimizer)
    loss = (model(job.batch["x"]) - job.batch["y"]).pow(2).mean()
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def test_an_optimizer_takes_no_part_in_backward(tmp_path: Path) -> None:
    result = verify(tmp_path, trained)
    assert any("backward is autograd's own" in a for a in result.assumptions)


def test_autograd_alone_is_not_asked_but_by_strict(tmp_path: Path) -> None:
    result = verify(tmp_path, step(torch.tanh))
    assert any("backward is autograd's own" in a for a in result.assumptions)
    assert not (tmp_path / "run" / "derivative").exists()
    strict = verify(tmp_path / "strict", step(torch.tanh), strict=True)
    assert strict.verdict == "proved", sp.told(strict)
    assert any("derivative of its forward: proved" in a for a in strict.assumptions)
