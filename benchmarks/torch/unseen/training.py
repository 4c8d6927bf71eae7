"""What stands around a model: adapters, averages of weights, precision, dropout, optimizers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, floats, reduce_from, rows

D, H = 8, 16
VECTORS = floats(x=(4, D), y=(4, D))


class Feed(nn.Module):
    def __init__(self, hidden: int = H) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, hidden), nn.Linear(hidden, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def squares(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), y)


# -- 1. Low-rank adapters in a frozen model, FSDP2 for all of it. ----------------------------------


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + (x @ self.a.T) @ self.b.T * (4 / 2)


def adapted_model() -> nn.Module:
    model = nn.Sequential(Feed(), Feed())
    for layer in model:
        layer.norm.requires_grad_(False)
        layer.up, layer.down = Adapted(layer.up), Adapted(layer.down)
    return model


def adapter(job: sp.Job) -> None:
    model = adapted_model()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    job.start(model, optimizer)
    loss = squares(model, job.batch["x"], job.batch["y"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def adapter_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = adapted_model()
        mesh = init_device_mesh("cpu", (job.world_size,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if mistake == "sums in place of means":
            for layer in (*model, model):
                layer.set_gradient_divide_factor(1.0)
        trained = [p for p in model.parameters() if p.requires_grad]
        if mistake == "only the first matrices trained":
            trained = [p for n, p in model.named_parameters() if n.endswith(".a")]
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        job.start(model, optimizer)
        loss = squares(model, *rows(job, "x", "y"))
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return step


ADAPTER = Case(
    "adapters in a frozen model, FSDP2 and AdamW",
    adapter,
    adapter_parallel(),
    {m: adapter_parallel(m) for m in ("sums in place of means", "only the first matrices trained")},
    VECTORS,
)

# -- 2. An average of weights beside the weights. --------------------------------------------------


def averaged(job: sp.Job) -> None:
    model = nn.Linear(D, D)
    slow = nn.Linear(D, D).requires_grad_(False)
    both = nn.ModuleDict({"model": model, "slow": slow})
    job.start(both)
    loss = squares(model, job.batch["x"], job.batch["y"])
    loss.backward()
    with torch.no_grad():
        for p, average in zip(model.parameters(), slow.parameters(), strict=True):
            p -= 0.1 * p.grad
            average.lerp_(p, 1 - 0.99)
    after = {f"{k}.{n}": p for k, m in both.items() for n, p in m.named_parameters()}
    job.end(loss=loss, outputs=after)


def averaged_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = nn.Linear(D, D)
        slow = nn.Linear(D, D).requires_grad_(False)
        both = nn.ModuleDict({"model": model, "slow": slow})
        job.start(both)
        loss = squares(model, *rows(job, "x", "y"))
        loss.backward()
        with torch.no_grad():
            for p, average in zip(model.parameters(), slow.parameters(), strict=True):
                if mistake == "average before the step":
                    average.mul_(0.99).add_(p, alpha=1 - 0.99)
                if mistake != "weights step by own gradients":
                    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
                p.add_(p.grad, alpha=-0.1)
                if mistake != "average before the step":
                    average.mul_(0.99).add_(p, alpha=1 - 0.99)
        after = {f"{k}.{n}": p for k, m in both.items() for n, p in m.named_parameters()}
        job.end(loss=loss, outputs=after)

    return step


AVERAGED = Case(
    "average of weights, DP by hand",
    averaged,
    averaged_parallel(),
    {m: averaged_parallel(m) for m in ("average before the step", "weights step by own gradients")},
    VECTORS,
)

# -- 3. Clipping, AdamW with decay for matrices only, FSDP2. ---------------------------------------


def groups(model: nn.Module, decayed: Any) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if decayed(n, p)], "weight_decay": 0.1},
        {"params": [p for n, p in named if not decayed(n, p)], "weight_decay": 0.0},
    ]


def matrix(_: str, p: torch.Tensor) -> bool:
    return p.dim() > 1


def clipped(job: sp.Job) -> None:
    model = Feed()
    optimizer = torch.optim.AdamW(groups(model, matrix), lr=1e-2, betas=(0.9, 0.95))
    job.start(model, optimizer)
    loss = squares(model, job.batch["x"], job.batch["y"])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    job.end(loss=loss)


def clipped_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Feed()
        fully_shard(model, mesh=init_device_mesh("cpu", (job.world_size,)))
        decayed = (lambda n, p: True) if mistake == "biases decay too" else matrix
        optimizer = torch.optim.AdamW(groups(model, decayed), lr=1e-2, betas=(0.9, 0.95))
        job.start(model, optimizer)
        loss = squares(model, *rows(job, "x", "y"))
        loss.backward()
        if mistake == "clipped by the norm of own shards":
            local: Any = [p.grad.to_local() for p in model.parameters()]
            norm = torch.stack([g.norm() for g in local]).norm()
            for g in local:
                g.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        job.end(loss=loss)

    return step


CLIPPED = Case(
    "clipping and AdamW with groups of decay, FSDP2",
    clipped,
    clipped_parallel(),
    {m: clipped_parallel(m) for m in ("biases decay too", "clipped by the norm of own shards")},
    VECTORS,
)

# -- 4. bfloat16 autocast, microbatches, gradients synchronised at the last one. -------------------


def mixed(job: sp.Job) -> None:
    model = Feed()
    job.start(model)
    losses = []
    for x, y in zip(job.batch["x"].chunk(2), job.batch["y"].chunk(2), strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        losses.append(F.mse_loss(out.float(), y) / 2)
        losses[-1].backward()
    job.end(loss=losses[0] + losses[1])


def mixed_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Feed()
        wrapped = DistributedDataParallel(model)
        job.start(model)
        total: Any = 0.0
        halves = [t.chunk(2) for t in (job.batch["x"], job.batch["y"])]
        for i, (xs, ys) in enumerate(zip(*halves, strict=True)):
            x, y = (t.chunk(job.world_size)[job.rank] for t in (xs, ys))
            with wrapped.no_sync() if i == 0 else nullcontext():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = wrapped(x)
                loss = F.mse_loss(out.float(), y)
                if mistake != "microbatches not divided":
                    loss = loss / 2
                loss.backward()
            total = total + loss
        if mistake == "gradients divided once more":
            for p in model.parameters():
                p.grad /= job.world_size  # type: ignore[operator]
        job.end(loss=total)

    return step


MIXED = Case(
    "bfloat16 autocast and microbatches, DDP with no_sync",
    mixed,
    mixed_parallel(),
    {m: mixed_parallel(m) for m in ("microbatches not divided", "gradients divided once more")},
    floats(x=(8, D), y=(8, D)),
)

# -- 5. Losses that are summed, divided by what all ranks count; FSDP2 without its division. -------


def counted(job: sp.Job) -> None:
    model = Feed()
    job.start(model)
    x, y, weight = (job.batch[k] for k in ("x", "y", "weight"))
    loss = (weight * (model(x) - y).pow(2).sum(dim=-1)).sum() / weight.sum()
    loss.backward()
    job.end(loss=loss)


def counted_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Feed()
        fully_shard(
            model,
            mesh=init_device_mesh("cpu", (job.world_size,)),
            mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32),
        )
        if mistake != "divided by ranks as well":
            model.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        job.start(model)
        x, y, weight = rows(job, "x", "y", "weight")
        count = weight.sum()
        if mistake != "count of own rows":
            dist.all_reduce(count)
        loss = (weight * (model(x) - y).pow(2).sum(dim=-1)).sum() / count
        loss.backward()
        job.end(loss=loss)

    return step


COUNTED = Case(
    "sums over a count of all ranks, FSDP2 without its division",
    counted,
    counted_parallel(),
    {m: counted_parallel(m) for m in ("divided by ranks as well", "count of own rows")},
    floats(x=(4, D), y=(4, D), weight=(4,)),
)

# -- 6. Dropout behind the sum over ranks. ---------------------------------------------------------


def dropped(job: sp.Job) -> None:
    model = Feed()
    job.start(model)
    x = job.batch["x"]
    h = F.gelu(model.up(model.norm(x)))
    y = x + F.dropout(F.linear(h, model.down.weight) + model.down.bias, 0.1)
    loss = F.mse_loss(y, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def dropped_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Feed(H // n)
        own = {"start": r * (H // n), "size": H // n}
        job.start(
            model,
            parameters={
                "up.weight": sp.piece("up.weight", dim=0, **own),
                "up.bias": sp.piece("up.bias", dim=0, **own),
                "down.weight": sp.piece("down.weight", dim=1, **own),
            },
        )
        torch.manual_seed(1234)
        x = job.batch["x"]
        part = F.linear(F.gelu(model.up(copy_to(model.norm(x)))), model.down.weight)
        if mistake == "another chance":
            y = x + F.dropout(reduce_from(part) + model.down.bias, 0.2)
        elif mistake == "bias is not dropped":
            y = x + F.dropout(reduce_from(part), 0.1) + model.down.bias
        else:
            y = x + F.dropout(reduce_from(part) + model.down.bias, 0.1)
        loss = F.mse_loss(y, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


DROPPED = Case(
    "dropout of what is the same on all ranks, TP",
    dropped,
    dropped_parallel(),
    {m: dropped_parallel(m) for m in ("another chance", "bias is not dropped")},
    VECTORS,
)

# -- 7. Muon: momentum made orthogonal, of a matrix whose columns are divided. ---------------------


def orthogonal(g: torch.Tensor) -> torch.Tensor:
    """Two steps of Newton and Schulz."""
    x = g / (g.norm() + 1e-7)
    for _ in range(2):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def muon(job: sp.Job) -> None:
    model = nn.Linear(D, D, bias=False)
    job.start(model)
    loss = squares(model, job.batch["x"], job.batch["y"])
    loss.backward()
    with torch.no_grad():
        new = model.weight - 0.02 * orthogonal(model.weight.grad)  # type: ignore[arg-type]
    job.end(loss=loss, outputs={"weight": new})


def muon_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = nn.Linear(D, D // n, bias=False)
        job.start(
            model,
            parameters={"weight": sp.piece("weight", dim=0, start=r * D // n, size=D // n)},
        )
        parts = [torch.empty(4, D // n) for _ in range(n)]
        own = model(job.batch["x"])
        dist.all_gather(parts, own.detach())
        parts[r] = own
        loss = F.mse_loss(torch.cat(parts, dim=1), job.batch["y"])
        loss.backward()
        grad: Any = model.weight.grad
        with torch.no_grad():
            if mistake == "each part made orthogonal":
                update = orthogonal(grad)
            else:
                whole = torch.empty(D, D)
                dist.all_gather_into_tensor(whole, grad)
                at = 0 if mistake == "part of the first rank" else r
                update = orthogonal(whole).chunk(n)[at]
            new = model.weight - 0.02 * update
            parts = [torch.empty_like(new) for _ in range(n)]
            dist.all_gather(parts, new)
        job.end(loss=loss, outputs={"weight": torch.cat(parts)})

    return step


MUON = Case(
    "Muon of a matrix whose rows are divided",
    muon,
    muon_parallel(),
    {m: muon_parallel(m) for m in ("each part made orthogonal", "part of the first rank")},
    VECTORS,
)

# -- 8. Adafactor's factors of second moments, rows of the matrix divided. -------------------------


def factored(job: sp.Job) -> None:
    model = nn.Linear(D, D, bias=False)
    job.start(model)
    loss = squares(model, job.batch["x"], job.batch["y"])
    loss.backward()
    with torch.no_grad():
        square = model.weight.grad.square() + 1e-30  # type: ignore[union-attr]
        row, column = square.mean(dim=1), square.mean(dim=0)
        scale = torch.outer(row / row.mean(), column).rsqrt()
        new = model.weight - 0.01 * model.weight.grad * scale
    job.end(loss=loss, outputs={"weight": new})


def factored_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = nn.Linear(D, D, bias=False)
        job.start(model)
        loss = squares(model, *rows(job, "x", "y"))
        loss.backward()
        with torch.no_grad():
            own = torch.empty(D // n, D)
            dist.reduce_scatter_tensor(own, model.weight.grad)
            own /= n
            square = own.square() + 1e-30
            row, column = square.mean(dim=1), square.mean(dim=0)
            if mistake != "columns of own rows":
                dist.all_reduce(column, op=dist.ReduceOp.AVG)
            mean = row.mean()
            if mistake != "mean of own rows":
                dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            scale = torch.outer(row / mean, column).rsqrt()
            part = model.weight.chunk(n)[r] - 0.01 * own * scale
            new = torch.empty(D, D)
            dist.all_gather_into_tensor(new, part)
            dist.all_reduce(model.weight.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss, outputs={"weight": new})

    return step


FACTORED = Case(
    "factors of second moments in shards, DP",
    factored,
    factored_parallel(),
    {m: factored_parallel(m) for m in ("columns of own rows", "mean of own rows")},
    VECTORS,
)

CASES = [ADAPTER, AVERAGED, CLIPPED, MIXED, COUNTED, DROPPED, MUON, FACTORED]
