"""Both sides of a drawn step: loss over microbatches, gradients over replicas, the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import shardproof.torch as sp
from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.model import Transformer, first_class
from benchmarks.torch.drawn.parts import divided, parts
from benchmarks.torch.drawn.ranks import Axis, Ranks, greatest, ranks, reduce
from benchmarks.torch.ordinary.parts import Step


def batch(drawn: Drawn) -> dict[str, sp.TensorSpec]:
    """Ids and labels; labels may be the ignored class where the objective counts them."""
    shape = (drawn.rows, drawn.length)
    ids = sp.tensor(shape, torch.int64, low=0, high=drawn.classes)
    labels = sp.tensor(shape, torch.int64) if drawn.objective == "counted" else ids
    return {"ids": ids, "labels": labels}


def step(drawn: Drawn, *, one: bool) -> Step:
    """The step as one device has it, or as a rank of the mesh."""

    def run(job: sp.Job) -> None:
        at = Ranks() if one else ranks(drawn)
        fused = drawn.single_fused if one else drawn.parallel_fused
        sdpa = drawn.single_sdpa if one else drawn.parallel_sdpa
        model = Transformer(drawn, at, fused=fused, sdpa=sdpa)
        optimizer = _optimizer(drawn, model)
        stated = {} if one else {"parameters": parts(drawn, at, model)}
        job.start(model, optimizer, **stated)
        losses = _losses(drawn, at, job, model, one)
        if not one:
            _reduced(drawn, at, model)
        if drawn.clip:
            _clipped(drawn, at, model)
        if optimizer is not None:
            optimizer.step()
        job.end(loss=losses)

    return run


def _optimizer(drawn: Drawn, model: torch.nn.Module) -> torch.optim.Optimizer | None:
    if drawn.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    if drawn.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    return None


def _losses(
    drawn: Drawn, at: Ranks, job: Any, model: Transformer, one: bool
) -> list[torch.Tensor] | torch.Tensor:
    ids, labels = (_mine(drawn, at, job.batch[n]) for n in ("ids", "labels"))
    count = (labels != -100).sum()
    if drawn.mistake != "mean of means":
        for axis in (at.dp, at.cp):
            if axis.size > 1:
                dist.all_reduce(count, group=axis.group)
    if one:
        loss = objective(drawn, at, model(ids), labels, count)
        loss.backward()
        return loss
    micro = drawn.microbatches
    chosen = list(range(micro))
    if drawn.mistake == "last microbatch left out":
        chosen = chosen[:-1]
    if drawn.mistake == "microbatch twice":
        chosen[-1] = 0
    losses = []
    for n in chosen:
        loss = objective(drawn, at, model(ids.chunk(micro)[n]), labels.chunk(micro)[n], count)
        scale = 1.0
        if averages(drawn):
            scale /= 1 if drawn.mistake == "microbatches summed" else micro
            scale /= at.dp.size * at.cp.size if drawn.reduction == "loss" else 1
        (loss * scale).backward()
        losses.append(loss)
    return losses


def averages(drawn: Drawn) -> bool:
    """The objective is a mean over positions, so that parts of the batch are averaged."""
    return drawn.objective in ("mean", "smoothed", "penalised")


def _mine(drawn: Drawn, at: Ranks, x: torch.Tensor) -> torch.Tensor:
    rank = 0 if drawn.mistake == "rows twice" else at.dp.rank
    x = x[rank :: at.dp.size] if drawn.strided else x.chunk(at.dp.size)[rank]
    return x.chunk(at.cp.size, 1)[at.cp.rank]


def objective(
    drawn: Drawn, at: Ranks, logits: torch.Tensor, labels: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    """The loss of some rows; `count` is the number of labels that count, of the whole batch."""
    if logits.shape[-1] != drawn.classes:
        each = _over_ranks(drawn, at.tp, logits, labels)
        kept = (labels != -100).flatten()
        if drawn.objective == "counted":
            return (each * kept).sum() / count
        return each.sum() if drawn.objective == "sum" else each.mean()
    logits, labels = logits.flatten(0, 1), labels.flatten()
    if drawn.objective == "counted":
        return F.cross_entropy(logits, labels, reduction="sum") / count
    if drawn.objective == "smoothed":
        return F.cross_entropy(logits, labels, label_smoothing=0.1)
    if drawn.objective == "penalised":
        return F.cross_entropy(logits, labels) + 0.01 * logits.logsumexp(-1).pow(2).mean()
    return F.cross_entropy(logits, labels, reduction=drawn.objective)


def _over_ranks(drawn: Drawn, tp: Axis, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of classes in parts, for each position (and its penalty)."""
    logits, labels = logits.flatten(0, 1), labels.flatten()
    alone = drawn.mistake == "maximum over the wrong ranks"
    most = greatest(logits.amax(-1), Axis() if alone else tp)
    logits = logits - most.unsqueeze(-1)
    total = reduce(logits.exp().sum(-1), tp)
    first, size = first_class(drawn, tp), logits.shape[-1]
    mine = (labels >= first) & (labels < first + size)
    picked = logits.gather(-1, (labels - first).clamp(0, size - 1).unsqueeze(-1)).squeeze(-1)
    each = total.log() - reduce(picked * mine, tp)
    if drawn.objective == "penalised":
        each = each + 0.01 * (total.log() + most).pow(2)
    return each


def _reduced(drawn: Drawn, at: Ranks, model: torch.nn.Module) -> None:
    """Gradients over ranks: partial ones over tp, all of them over dp and cp."""
    for name, parameter in model.named_parameters():
        if partial(drawn, name):
            dist.all_reduce(parameter.grad, group=at.tp.group)
    if drawn.mistake == "no reduction":
        return
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    if drawn.mistake == "one parameter left out":
        grads = grads[:-1]
    flat = drawn.reduction == "flat"
    messages = [torch.cat([g.flatten() for g in grads])] if flat else grads
    averaged = averages(drawn) and drawn.reduction != "loss"
    for message in messages:
        for axis in _axes(drawn, at):
            dist.all_reduce(message, group=axis.group)
        if averaged != (drawn.mistake == "summed"):
            message.div_(at.dp.size * at.cp.size)
    if flat:
        sizes = [g.numel() for g in grads]
        for grad, new in zip(grads, messages[0].split(sizes), strict=True):
            grad.copy_(new.view_as(grad))


def _axes(drawn: Drawn, at: Ranks) -> list[Axis]:
    """The axes over which gradients are reduced."""
    wrong = {"over the wrong ranks": [at.tp, at.cp], "reduced twice": [at.dp, at.dp, at.cp]}
    return [axis for axis in wrong.get(drawn.mistake, [at.dp, at.cp]) if axis.size > 1]


def partial(drawn: Drawn, name: str) -> bool:
    """The gradient of a replicated parameter is a part of it on each rank of tp."""
    if drawn.tp == 1:
        return False
    if "q_norm" in name or "k_norm" in name:
        return drawn.mistake != "gradients of norms of heads stay local"
    if not drawn.sequence:
        return False
    if name.endswith(("o.bias", "down.bias")):
        return drawn.mistake != "a bias's gradient stays local"
    norm = any(n in name for n in ("before_", "after_", "last."))
    return norm and drawn.mistake != "a norm's gradient stays local"


def _clipped(drawn: Drawn, at: Ranks, model: torch.nn.Module) -> None:
    """Gradients divided by their norm over all parameters, where that is above 1."""
    parameters: Mapping[str, Any] = dict(model.named_parameters())
    whole, pieces = torch.zeros(()), torch.zeros(())
    for name, parameter in parameters.items():
        square = parameter.grad.pow(2).sum()
        if at.tp.size > 1 and divided(drawn, name):
            pieces = pieces + square
        else:
            whole = whole + square
    if at.tp.size > 1 and drawn.mistake != "local norm":
        pieces = pieces.clone()
        dist.all_reduce(pieces, group=at.tp.group)
    scale = (1.0 / ((whole + pieces).sqrt() + 1e-6)).clamp(max=1.0)
    for parameter in parameters.values():
        parameter.grad.mul_(scale)
