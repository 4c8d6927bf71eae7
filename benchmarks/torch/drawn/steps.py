"""Both sides of a drawn step: loss over microbatches, gradients over replicas, the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.drawn.draw import Drawn, averages
from benchmarks.torch.drawn.model import PATCH, Transformer, first_class
from benchmarks.torch.drawn.parts import divided, parts
from benchmarks.torch.drawn.ranks import Axis, Ranks, greatest, ranks, reduce
from benchmarks.torch.drawn.shards import Sharded
from benchmarks.torch.drawn.stages import Stage
from benchmarks.torch.ordinary.parts import Step


def batch(drawn: Drawn) -> dict[str, sp.TensorSpec]:
    """Ids and labels; labels may be the ignored class where the objective counts them."""
    shape = (drawn.rows, drawn.length)
    if drawn.task != "tokens":
        labels = sp.tensor((drawn.rows,), torch.int64, low=0, high=drawn.classes)
        if drawn.objective == "squares":
            labels = sp.tensor((drawn.rows, drawn.classes))
        return {"ids": sp.tensor((*shape, PATCH)), "labels": labels}
    ids = sp.tensor(shape, torch.int64, low=0, high=drawn.classes)
    labels = sp.tensor(shape, torch.int64) if drawn.objective == "counted" else ids
    return {"ids": ids, "labels": labels}


def step(drawn: Drawn, *, one: bool) -> Step:
    """The step as one device has it, or as a rank of the mesh."""

    def run(job: sp.Job) -> None:
        at = Ranks() if one else ranks(drawn)
        fused = drawn.single_fused if one else drawn.parallel_fused
        sdpa = drawn.single_sdpa if one else drawn.parallel_sdpa
        again = drawn.recomputed and not one
        model = Transformer(drawn, at, fused=fused, sdpa=sdpa, again=again)
        run: torch.nn.Module = model
        if drawn.shards and not one:
            run = Sharded(drawn, at.dp, model)
        if drawn.wrapped and not one:
            run = DistributedDataParallel(model, process_group=at.dp.group)
        optimizer = _optimizer(drawn, model)
        stated = {} if one else {"parameters": parts(drawn, at, model)}
        job.start(model, optimizer, **stated)
        losses = _losses(drawn, at, job, run, one)
        if not one:
            _reduced(drawn, at, model)
        if drawn.clip:
            _clipped(drawn, at, model)
        if optimizer is not None:
            optimizer.step()
        if losses:
            job.end(loss=losses)
        else:
            job.end()

    return run


def _optimizer(drawn: Drawn, model: torch.nn.Module) -> torch.optim.Optimizer | None:
    if drawn.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    if drawn.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    return None


def _losses(
    drawn: Drawn, at: Ranks, job: Any, model: torch.nn.Module, one: bool
) -> list[torch.Tensor]:
    ids, labels = (_mine(drawn, at, job.batch[n]) for n in ("ids", "labels"))
    count = (labels != -100).sum()
    if drawn.mistake != "mean of means":
        for axis in (at.dp, at.cp):
            if axis.size > 1:
                dist.all_reduce(count, group=axis.group)
    if one:
        loss = objective(drawn, at, model(ids), labels, count)
        loss.backward()
        return [loss]
    micro = drawn.microbatches
    chosen = list(range(micro))
    if drawn.mistake == "last microbatch left out":
        chosen = chosen[:-1]
    if drawn.mistake == "microbatch twice":
        chosen[-1] = 0
    losses = []

    def scaled(n: int, logits: torch.Tensor) -> torch.Tensor:
        loss = objective(drawn, at, logits, labels.chunk(micro)[n], count)
        losses.append(loss)
        return loss * _scale(drawn, at)

    inputs = [ids.chunk(micro)[n] for n in chosen]
    if isinstance(model, Transformer) and drawn.pp > 1:
        Stage(drawn, at, model).run(inputs, lambda n, logits: scaled(chosen[n], logits))
        return losses
    for n, x in zip(chosen, inputs, strict=True):
        with _unsynchronised(drawn, model, last=n == chosen[-1]):
            scaled(n, model(x)).backward()
    return losses


def _unsynchronised(drawn: Drawn, model: torch.nn.Module, *, last: bool) -> Any:
    """Gradients stay local until the last microbatch, where a wrapper reduces them."""
    if not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return nullcontext() if last and drawn.mistake != "never reduced" else model.no_sync()


def _scale(drawn: Drawn, at: Ranks) -> float:
    """What a microbatch's loss is multiplied by before it is differentiated."""
    if not averages(drawn):
        return 1.0
    scale = 1.0 if drawn.mistake == "microbatches summed" else 1 / drawn.microbatches
    return scale / (at.dp.size * at.cp.size) if drawn.reduction == "loss" else scale


def _mine(drawn: Drawn, at: Ranks, x: torch.Tensor) -> torch.Tensor:
    rank = 0 if drawn.mistake == "rows twice" else at.dp.rank
    x = x[rank :: at.dp.size] if drawn.strided else x.chunk(at.dp.size)[rank]
    return x.chunk(at.cp.size, 1)[at.cp.rank] if at.cp.size > 1 else x


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
    if drawn.objective == "squares":
        return F.mse_loss(logits, labels)
    logits, labels = logits.flatten(0, -2), labels.flatten()
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
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if partial(drawn, name):
            dist.all_reduce(parameter.grad, group=at.tp.group)
    if drawn.tied and drawn.pp > 1 and drawn.mistake != "tables stay apart":
        _of_both_ends(at, model)
    if drawn.mistake == "no reduction":
        return
    grads = {n: p.grad for n, p in parameters.items() if p.grad is not None}
    if drawn.mistake == "one parameter left out":
        grads.popitem()
    if drawn.reduction == "flat":
        flat = torch.cat([g.flatten() for g in grads.values()])
        _message(drawn, at, "", flat)
        new = flat.split([g.numel() for g in grads.values()])
        for grad, part in zip(grads.values(), new, strict=True):
            grad.copy_(part.view_as(grad))
        return
    for name, grad in grads.items():
        _message(drawn, at, name, grad)


def _of_both_ends(at: Ranks, model: torch.nn.Module) -> None:
    """The gradient of a table that the first and the last stage have."""
    table = getattr(model, "table", None)
    if table is not None:
        dist.all_reduce(table.weight.grad, group=at.ends)


def _message(drawn: Drawn, at: Ranks, name: str, message: torch.Tensor) -> None:
    """One gradient, or all of them, reduced in place."""
    for axis in _axes(drawn, at):
        if axis == at.dp and summed_already(drawn, name):
            continue
        dist.all_reduce(message, group=axis.group)
    if averages(drawn) and drawn.reduction != "loss" and drawn.mistake != "summed":
        message.div_(at.cp.size if drawn.wrapped else at.dp.size * at.cp.size)
    if not averages(drawn) and drawn.mistake == "summed":
        message.div_(at.dp.size * at.cp.size)


def summed_already(drawn: Drawn, name: str) -> bool:
    """The backward pass has summed this gradient over replicas."""
    away = drawn.experts > 0 and drawn.experts_over == "dp" and ".experts." in name
    return drawn.shards or drawn.wrapped or away


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
    if name.endswith("router.weight") and drawn.experts_over == "tp" and drawn.router_inside:
        return drawn.mistake != "the router's gradient stays local"
    if not drawn.sequence:
        return False
    if drawn.experts and drawn.experts_over == "dp" and ".inner." in name:
        return drawn.mistake != "the experts' gradients stay local"
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
