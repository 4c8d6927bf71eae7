"""Scripts that divide the model: Llama with Megatron's layers by hand, FSDP2 with mixed precision,
parallelize_module with sequence parallelism, stages of torch.distributed.pipelining."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    CLASSES,
    LENGTH,
    ROWS,
    WIDTH,
    Case,
    Step,
    copy_to,
    ids,
    reduce_from,
)

HEADS, HIDDEN, MICRO = 4, 16, 2


def precompute_freqs_cis(dim: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    freqs = 1.0 / (10000.0 ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    angles = torch.outer(torch.arange(end).float(), freqs)
    emb = torch.cat((angles, angles), dim=-1)
    return emb.cos(), emb.sin()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-x2, x1), dim=-1) * sin).type_as(x)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(x) * self.weight


class Attention(nn.Module):
    """``ranks``: among how many the heads are divided by hand."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        own = WIDTH // ranks
        self.wq, self.wk, self.wv = (nn.Linear(WIDTH, own, bias=False) for _ in range(3))
        self.wo = nn.Linear(own, WIDTH, bias=False)
        cos, sin = precompute_freqs_cis(WIDTH // HEADS, LENGTH)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (
            f(x).view(b, t, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.wq, self.wk, self.wv)
        )
        q, k = rotated(q, self.cos[:t], self.sin[:t]), rotated(k, self.cos[:t], self.sin[:t])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, HIDDEN // ranks, bias=False)
        self.w2 = nn.Linear(HIDDEN // ranks, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, HIDDEN // ranks, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, ranks: int = 1, copied: bool = True) -> None:
        super().__init__()
        self.ranks, self.copied = ranks, copied
        self.attention_norm, self.ffn_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(ranks), FeedForward(ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ranks == 1:
            x = x + self.attention(self.attention_norm(x))
            return x + self.feed_forward(self.ffn_norm(x))
        x = x + reduce_from(self.attention(copy_to(self.attention_norm(x))))
        y = self.ffn_norm(x)
        return x + reduce_from(self.feed_forward(copy_to(y) if self.copied else y))


class Llama(nn.Module):
    def __init__(self, ranks: int = 1, copied: bool = True) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleDict({"0": Layer(ranks, copied)})
        self.norm = RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h)
        return self.output(self.norm(h))


def entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def one() -> Step:
    def run(job: sp.Job) -> None:
        model = Llama()
        job.start(model)
        loss = entropy(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return run


def by_hand(copied: bool = True) -> Step:
    """Megatron's layers by hand; a norm of gradients for the log; the loss of all ranks."""

    def run(job: sp.Job) -> None:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.manual_seed(1234 + rank)
        np.random.seed(1234 + rank)
        device = torch.cuda.current_device()
        model = Llama(world, copied).to(device)
        parts: dict[str, Any] = {}
        for name, parameter in model.named_parameters():
            column = name.split(".")[-2] in ("wq", "wk", "wv", "w1", "w3")
            row = name.split(".")[-2] in ("wo", "w2")
            if column or row:
                dim = 0 if column else 1
                size = parameter.shape[dim]
                parts[name] = sp.piece(name, dim=dim, start=rank * size, size=size)
            else:
                parts[name] = sp.same(name)
        job.start(model, parameters=parts)
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        logits = model(job.batch["x"].to(device))
        loss = entropy(logits, job.batch["y"].to(device))
        loss.backward()
        end.record()
        torch.cuda.synchronize()
        total = torch.zeros(1, device=device)
        for p in model.parameters():
            if p.grad is not None:
                total += p.grad.detach().float().norm() ** 2
        dist.all_reduce(total)
        if rank == 0:
            tokens = job.batch["x"].numel()
            print(f"step time {start.elapsed_time(end)} ms, {tokens} tokens")
            print(
                f"grad norm {total.sqrt().item():.3f}", f"perplexity {torch.exp(loss).item():.2f}"
            )
            sys.stdout.flush()
        job.end(loss=loss)

    return run


def sharded(everybody: bool = True) -> Step:
    """FSDP2 with mixed precision; the learning rate warms up; a checkpoint of full parameters."""

    def run(job: sp.Job) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        model: Any = Llama()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.layers.values():
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        assert isinstance(model, FSDPModule)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
        job.start(model)
        began = time.perf_counter()
        x = job.batch["x"].chunk(world)[rank if everybody else 0]
        y = job.batch["y"].chunk(world)[rank if everybody else 0]
        loss = entropy(model(x), y)
        loss.backward()
        average = loss.detach().clone()
        dist.all_reduce(average, op=dist.ReduceOp.AVG)
        seconds = time.perf_counter() - began
        if rank == 0:
            print(f"loss {average.item():.4f}; {x.numel() / seconds:.0f} tokens a second")
        job.end(loss=loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        full = {k: v.full_tensor().cpu() for k, v in model.state_dict().items()}
        if rank == 0:
            torch.save(full, tempfile.mktemp())
            print(norm.full_tensor().item())

    return run


def planned(norms: bool = True) -> Step:
    """torchtitan's and the tutorial's plan with sequence parallelism."""

    def run(job: sp.Job) -> None:
        mesh = init_device_mesh("cuda", (job.world_size,), mesh_dim_names=("tp",))
        device_type = torch.accelerator.current_accelerator()
        print("starting", device_type, "rank", dist.get_rank())
        torch.manual_seed(0)
        model: Any = Llama().to("cuda")
        parallelize_module(
            model,
            mesh["tp"],
            {
                "tok_embeddings": RowwiseParallel(
                    input_layouts=Replicate(), output_layouts=Shard(1)
                ),
                "norm": SequenceParallel(),
                "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            },
        )
        for layer in model.layers.values():
            plan = {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward.w3": ColwiseParallel(),
            }
            parallelize_module(layer, mesh["tp"], plan)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
        job.start(model)
        logits = model(job.batch["x"])
        loss = entropy(logits, job.batch["y"])
        (loss if norms else 2 * loss).backward()
        if dist.get_rank() == 0:
            print("loss", loss.item(), "logits", tuple(logits.shape))
        job.end(loss=loss)
        optimizer.step()

    return run


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def whole(job: sp.Job) -> None:
    model = Whole()
    job.start(model)
    loss = entropy(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def stages(scaled: bool = True) -> Step:
    """Two stages of torch.distributed.pipelining; losses are averaged and printed by the last."""

    def run(job: sp.Job) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        device = torch.device(f"cuda:{rank % torch.cuda.device_count()}")
        torch.manual_seed(0)
        model = Whole()
        if rank == 0:
            model.second = None
        else:
            model.first = None
        part = model.first if rank == 0 else model.second
        rows = ROWS // MICRO
        hidden = torch.zeros(rows, LENGTH, WIDTH, device=device, requires_grad=True)
        if rank == 0:
            example, output = torch.zeros(rows, LENGTH, dtype=torch.int64, device=device), hidden
        else:
            example, output = hidden, torch.zeros(rows, LENGTH, CLASSES, requires_grad=True)
        stage = PipelineStage(
            part, rank, world, device, input_args=(example,), output_args=(output,)
        )
        schedule = ScheduleGPipe(stage, MICRO, loss_fn=entropy, scale_grads=scaled)
        job.start(model)
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(job.batch["x"].to(device))
        else:
            schedule.step(target=job.batch["y"].to(device), losses=losses)
            print(f"loss {torch.mean(torch.stack(losses)).item():.3f}")
            print("losses", [round(float(v), 3) for v in losses])
        job.end(loss=losses or None)

    return run


CASES: list[Case] = [
    Case(
        "Llama with Megatron's layers by hand",
        one(),
        by_hand(),
        {"input of the feed-forward not copied": by_hand(copied=False)},
        ids("x", "y"),
    ),
    Case(
        "FSDP2 with mixed precision",
        one(),
        sharded(),
        {"rows of the first rank": sharded(everybody=False)},
        ids("x", "y"),
    ),
    Case(
        "parallelize_module with sequence parallelism",
        one(),
        planned(),
        {"loss twice": planned(norms=False)},
        ids("x", "y"),
    ),
    Case(
        "two stages of torch.distributed.pipelining",
        whole,
        stages(),
        {"microbatches not divided": stages(scaled=False)},
        ids("x", "y"),
    ),
]
