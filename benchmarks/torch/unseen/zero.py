"""Optimizers in shards: Lion, LAMB, ZeRO by hand and PyTorch's, scaled losses, hooks, FSDP2."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, floats, ids, rows

D, H = 8, 16
VECTORS = floats(x=(4, D), y=(4, D))
LONG = floats(x=(8, D), y=(8, D))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, H), nn.Linear(H, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x)))  # type: ignore[no-any-return]


def after(model: nn.Module) -> dict[str, torch.Tensor]:
    return {f"new {n}": p.detach() for n, p in model.named_parameters()}


def trained(job: sp.Job, model: Any) -> torch.Tensor:
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    return loss


# -- 1. Lion; ZeRO-2 by hand: momenta are in shards, gradients reduce-scattered. -------------------

MOMENTA = floats(x=(4, D), y=(4, D), up=(H, D), down=(D, H))


def moved(p: torch.Tensor, g: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
    """Lion's step of ``p``, in place; the new momentum."""
    p.mul_(1 - 0.01 * 0.1).add_((0.9 * momentum + 0.1 * g).sign(), alpha=-0.01)
    return 0.99 * momentum + 0.01 * g


def lion(job: sp.Job) -> None:
    model = Net()
    job.start(model)
    loss = trained(job, model)
    outputs = {}
    with torch.no_grad():
        for name, layer in model.named_children():
            p: Any = layer.weight
            outputs[f"momentum {name}"] = moved(p, p.grad, job.batch[name])
            outputs[f"new {name}"] = p.detach()
    job.end(loss=loss, outputs=outputs)


def lion_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Net()
        job.start(model)
        x, y = rows(job, "x", "y")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        outputs = {}
        with torch.no_grad():
            for name, layer in model.named_children():
                p: Any = layer.weight
                own = torch.empty_like(p.chunk(n)[r])
                dist.reduce_scatter_tensor(own, p.grad)
                if mistake != "gradients summed":
                    own /= n
                shard = p.chunk(n)[
                    (r + 1) % n if mistake == "shard of the next rank" else r
                ].clone()
                momentum = moved(shard, own, job.batch[name].chunk(n)[r])
                both = torch.empty(2, *p.shape)
                dist.all_gather_into_tensor(both[0], shard)
                dist.all_gather_into_tensor(both[1], momentum)
                outputs[f"new {name}"], outputs[f"momentum {name}"] = both[0], both[1]
        for q in model.parameters():
            dist.all_reduce(q.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss, outputs=outputs)

    return step


LION = Case(
    "Lion with momenta in shards, ZeRO-2 by hand",
    lion,
    lion_parallel(),
    {m: lion_parallel(m) for m in ("gradients summed", "shard of the next rank")},
    MOMENTA,
)

# -- 2. LAMB: each rank updates the parameters that it owns, and broadcasts them. ------------------


def lamb_step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    first, second = 0.1 * g, 0.001 * g * g
    update = (first / 0.1) / ((second / 0.001).sqrt() + 1e-6) + 0.01 * p
    return p - 0.001 * (p.norm() / update.norm()) * update


def lamb(job: sp.Job) -> None:
    model = Net()
    job.start(model)
    loss = trained(job, model)
    with torch.no_grad():
        outputs = {n: lamb_step(p, p.grad) for n, p in model.named_parameters()}  # type: ignore[arg-type]
    job.end(loss=loss, outputs=outputs)


def lamb_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net()
        job.start(model)
        x, y = rows(job, "x", "y")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        outputs = {}
        with torch.no_grad():
            for i, (name, p) in enumerate(model.named_parameters()):
                g: Any = p.grad
                own = g.clone()
                dist.all_reduce(g, op=dist.ReduceOp.AVG)
                owner = i % job.world_size
                new = p.clone()
                if job.rank == owner:
                    new = lamb_step(p, own if mistake == "step by own gradient" else g)
                if mistake != "not sent to others":
                    dist.broadcast(new, src=owner)
                outputs[name] = new
        job.end(loss=loss, outputs=outputs)

    return step


LAMB = Case(
    "LAMB, parameters owned by ranks and broadcast",
    lamb,
    lamb_parallel(),
    {m: lamb_parallel(m) for m in ("step by own gradient", "not sent to others")},
    VECTORS,
)

# -- 3. ZeRO-3 by hand: flat shards of a layer, gathered in forward. --------------------


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, mean: bool) -> torch.Tensor:
        ctx.mean = mean
        whole = shard.new_empty(shard.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(whole, shard)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        own = grad.new_empty(grad.numel() // dist.get_world_size())
        dist.reduce_scatter_tensor(own, grad.contiguous())
        return own / dist.get_world_size() if ctx.mean else own, None


def zero3_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        shards, shapes = [], []
        for layer in ("up", "down"):
            full = [job.full[f"{layer}.{k}"] for k in ("weight", "bias")]
            shapes.append([f.shape for f in full])
            flat = torch.cat([f.reshape(-1) for f in full])
            shards.append(nn.Parameter(flat.chunk(n)[r].clone()))
        job.start(nn.ParameterList(shards))
        x, y = rows(job, "x", "y")
        for i, (shard, (weight, bias)) in enumerate(zip(shards, shapes, strict=True)):
            flat = Gathered.apply(shard, mistake != "gradients summed")
            if mistake == "bias at the head of the buffer":
                b, w = flat.split([bias.numel(), weight.numel()])
            else:
                w, b = flat.split([weight.numel(), bias.numel()])
            x = F.linear(x, w.view(weight), b.view(bias))
            x = F.silu(x) if i == 0 else x
        loss = F.mse_loss(x, y)
        loss.backward()
        outputs = {}
        with torch.no_grad():
            for layer, shard, (weight, _) in zip(("up", "down"), shards, shapes, strict=True):
                new = shard - 0.1 * shard.grad
                whole = new.new_empty(new.numel() * n)
                dist.all_gather_into_tensor(whole, new)
                outputs[f"{layer}.weight"] = whole[: weight.numel()].view(weight)
                outputs[f"{layer}.bias"] = whole[weight.numel() :]
            for shard in shards:
                shard.grad = None
        job.end(loss=loss, outputs=outputs)

    return step


def zero3_single(job: sp.Job) -> None:
    model = Net()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    grads = torch.autograd.grad(loss, list(model.parameters()))
    new = {n: p - 0.1 * g for (n, p), g in zip(model.named_parameters(), grads, strict=True)}
    job.end(loss=loss, outputs=new)


ZERO3 = Case(
    "ZeRO-3 by hand, flat shards of each layer, SGD",
    zero3_single,
    zero3_parallel(),
    {m: zero3_parallel(m) for m in ("gradients summed", "bias at the head of the buffer")},
    VECTORS,
)

# -- 4. PyTorch's ZeroRedundancyOptimizer around AdamW with groups. --------------------------------


def decayed(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def redundancy(job: sp.Job) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(decayed(model), lr=0.01)
    job.start(model)
    loss = trained(job, model)
    optimizer.step()
    job.end(loss=loss, outputs=after(model))


def redundancy_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net()
        wrapped = model if mistake == "not wrapped" else DistributedDataParallel(model)
        groups: Any = model.parameters() if mistake == "all decay" else decayed(model)
        optimizer = ZeroRedundancyOptimizer(
            groups, optimizer_class=torch.optim.AdamW, lr=0.01, weight_decay=0.1
        )
        job.start(model)
        x, y = rows(job, "x", "y")
        loss = F.mse_loss(wrapped(x), y)
        loss.backward()
        optimizer.step()
        job.end(loss=loss, outputs=after(model))

    return step


REDUNDANCY = Case(
    "ZeroRedundancyOptimizer with groups of decay, DDP",
    redundancy,
    redundancy_parallel(),
    {m: redundancy_parallel(m) for m in ("not wrapped", "all decay")},
    VECTORS,
)

# -- 5. A loss that is scaled, gradients unscaled and clipped, momentum; compressed in DDP's hook. -


def scaled(job: sp.Job) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    job.start(model, optimizer)
    loss = trained(job, model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    job.end(loss=loss)


def scaled_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net()
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        wrapped.register_comm_hook(None, fp16_compress_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        job.start(model, optimizer)
        x, y = rows(job, "x", "y")
        loss = F.mse_loss(wrapped(x), y)
        (loss * 1024.0).backward()
        if mistake == "clipped before unscaling":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            if mistake != "biases stay scaled" or p.dim() > 1:
                p.grad.mul_(1.0 / 1024.0)  # type: ignore[union-attr]
        if mistake != "clipped before unscaling":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        job.end(loss=loss)

    return step


SCALED = Case(
    "scaled loss, clipping, Nesterov, DDP with a hook in float16",
    scaled,
    scaled_parallel(),
    {m: scaled_parallel(m) for m in ("clipped before unscaling", "biases stay scaled")},
    VECTORS,
)

# -- 6. FSDP2: accumulation without synchronising, tied embedding, a frozen layer, AdamW. ----------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, D)
        self.frozen = Net().requires_grad_(False)
        self.block = Net()
        self.norm = nn.RMSNorm(D)
        self.head = nn.Linear(D, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.frozen(x)
        return self.head(self.norm(x + self.block(x)))  # type: ignore[no-any-return]


def language(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def accumulated(job: sp.Job) -> None:
    model = Tied()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=0.01)
    job.start(model, optimizer)
    loss = language(model(job.batch["tokens"]), job.batch["labels"])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    job.end(loss=loss)


def accumulated_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,))
        model: Any = Tied()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(model.frozen, mesh=mesh, mp_policy=policy)
        fully_shard(model.block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=0.01)
        job.start(model, optimizer)
        tokens, labels = rows(job, "tokens", "labels")
        losses = []
        for i, (t, y) in enumerate(zip(tokens.chunk(2), labels.chunk(2), strict=True)):
            model.set_requires_gradient_sync(i == 1)
            loss = language(model(t), y)
            loss = loss if mistake == "microbatches not divided" else loss / 2
            loss.backward()
            losses.append(loss)
        if mistake != "not clipped":
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        job.end(loss=losses)

    return step


ACCUMULATED = Case(
    "tied and frozen parts in FSDP2, accumulated in bfloat16",
    accumulated,
    accumulated_parallel(),
    {m: accumulated_parallel(m) for m in ("microbatches not divided", "not clipped")},
    ids("tokens", "labels"),
)

# -- 7. DDP accumulation over microbatches with weights; scheduler; hook of one's own. -------------


def warmed(job: sp.Job) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: (i + 1) / 10)
    job.start(model, optimizer)
    loss = trained(job, model)
    optimizer.step()
    schedule.step()
    job.end(loss=loss)


def warmed_parallel(mistake: str = "") -> Step:
    def mean(state, bucket):  # type: ignore[no-untyped-def]  # PyTorch reads annotations
        flat = bucket.buffer()
        if mistake != "sum in the hook":
            flat.div_(dist.get_world_size())
        work: Any = dist.all_reduce(flat, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def step(job: sp.Job) -> None:
        model = Net()
        wrapped = DistributedDataParallel(model, bucket_cap_mb=1, find_unused_parameters=True)
        wrapped.register_comm_hook(None, mean)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: (i + 1) / 10)
        job.start(model, optimizer)
        if mistake == "schedule before the step":
            schedule.step()
        x, y = rows(job, "x", "y")
        total = torch.zeros(())
        pieces = list(zip(x.chunk(4), y.chunk(4), strict=True))
        for i, (a, b) in enumerate(pieces):
            with nullcontext() if i == len(pieces) - 1 else wrapped.no_sync():
                loss = F.mse_loss(wrapped(a), b) / len(pieces)
                loss.backward()
            total += loss.detach()
        optimizer.step()
        if mistake != "schedule before the step":
            schedule.step()
        job.end(loss=total)

    return step


WARMED = Case(
    "warm-up, Adam, four microbatches and a hook of its own, DDP",
    warmed,
    warmed_parallel(),
    {m: warmed_parallel(m) for m in ("sum in the hook", "schedule before the step")},
    LONG,
)

CASES = [LION, LAMB, ZERO3, REDUNDANCY, SCALED, ACCUMULATED, WARMED]
