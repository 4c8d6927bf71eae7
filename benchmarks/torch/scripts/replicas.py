"""Scripts whose ranks are replicas: nanoGPT's loop with DDP and accumulated gradients, hybrid
shards, ZeroRedundancyOptimizer, a convolutional network with batch norm over ranks."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Case, Step, floats, ids

logger = logging.getLogger(__name__)
HEADS, MICRO = 2, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.0)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """nanoGPT: learned positions, a tied head, blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(CLASSES, WIDTH), nn.Embedding(8, WIDTH)
        self.h = nn.ModuleList([Block()])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2))
        print(f"number of parameters: {sum(p.numel() for p in self.parameters()) / 1e6:.2f}M")

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, Any]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    def configure_optimizers(self, decay: float, device_type: str) -> torch.optim.Optimizer:
        params = {n: p for n, p in self.named_parameters() if p.requires_grad}
        groups = [
            {"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": decay},
            {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=False)


def get_lr(it: int) -> float:
    ratio = (it - 10) / 90
    return 6e-5 + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (6e-4 - 6e-5)


def gpt_one(job: sp.Job) -> None:
    model = GPT()
    optimizer = model.configure_optimizers(0.1, "cpu")
    job.start(model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = get_lr(20)
    _, loss = model(job.batch["x"], job.batch["y"])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    job.end(loss=loss)


def gpt(divided: bool = True, clip: float = 1.0) -> Step:
    """nanoGPT's train.py."""

    def run(job: sp.Job) -> None:
        dist.init_process_group(backend="nccl")
        ddp_rank = int(os.environ["RANK"])
        ddp_local_rank = int(os.environ["LOCAL_RANK"])
        ddp_world_size = int(os.environ["WORLD_SIZE"])
        device = f"cuda:{ddp_local_rank}"
        torch.cuda.set_device(device)
        master_process = ddp_rank == 0
        out_dir = tempfile.mkdtemp()
        if master_process:
            os.makedirs(out_dir, exist_ok=True)
        torch.manual_seed(1337 + ddp_rank)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        device_type = "cuda" if "cuda" in device else "cpu"
        ctx = (
            contextlib.nullcontext()
            if device_type == "cpu"
            else torch.amp.autocast(device_type=device_type, dtype=torch.bfloat16)
        )
        model: Any = GPT()
        model.to(device)
        scaler = torch.cuda.amp.GradScaler(enabled=False)
        optimizer = model.configure_optimizers(0.1, device_type)
        job.start(model, optimizer)
        model = DDP(model, device_ids=[ddp_local_rank])
        raw_model = model.module
        x = job.batch["x"].chunk(ddp_world_size)[ddp_rank]
        y = job.batch["y"].chunk(ddp_world_size)[ddp_rank]
        lr = get_lr(20)
        for param_group in optimizer.param_groups:
            param_group["lr"] = lr
        t0 = time.time()
        losses = []
        for micro_step in range(MICRO):
            model.require_backward_grad_sync = micro_step == MICRO - 1
            X = x.chunk(MICRO)[micro_step].pin_memory().to(device, non_blocking=True)
            Y = y.chunk(MICRO)[micro_step].pin_memory().to(device, non_blocking=True)
            with ctx:
                _logits, loss = model(X, Y)
                losses.append(loss)
                loss = loss / MICRO if divided else loss
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        dt = time.time() - t0
        lossf = loss.item() * MICRO
        if master_process:
            print(f"iter 20: loss {lossf:.4f}, time {dt * 1000:.2f}ms")
            checkpoint = {
                "model": raw_model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "iter_num": 20,
                "best_val_loss": lossf,
            }
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
        job.end(loss=losses)
        optimizer.zero_grad(set_to_none=True)
        dist.destroy_process_group()

    return run


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x)))


def mlp_one(job: sp.Job) -> None:
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.start(model, optimizer)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def hybrid(averaged: bool = True) -> Step:
    """HSDP: shards in a node, replicas over nodes; bfloat16; a meter of the loss."""

    def run(job: sp.Job) -> None:
        torch.manual_seed(0)
        random.seed(0)
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        if not dist.is_initialized():
            dist.init_process_group("nccl")
        rank = dist.get_rank()
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
        if rank == 0:
            name = torch.cuda.get_device_name(local_rank)
            logger.info("training on %s, %d GPUs", name, torch.cuda.device_count())
        with torch.device("meta"):
            MLP()
        model: Any = MLP().to(local_rank)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in (model.up, model.down):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
        job.start(model, optimizer)
        torch.cuda.reset_peak_memory_stats()
        x = job.batch["x"].chunk(4)[rank].to(local_rank)
        y = job.batch["y"].chunk(4)[rank].to(local_rank)
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(x), y)
        (loss if averaged else loss * 4).backward()
        optimizer.step()
        scheduler.step()
        meter = torch.zeros(2, device=local_rank)
        meter[0] += loss.item()
        meter[1] += len(x)
        dist.all_reduce(meter, op=dist.ReduceOp.SUM)
        if rank == 0:
            peak = torch.cuda.max_memory_allocated() / 1024**3
            print(f"loss {float(meter[0] / meter[1]):.4f}, lr {scheduler.get_last_lr()[0]:.6f}")
            print(f"peak memory {peak:.2f} GiB")
        running = 0.9 * 2.0 + 0.1 * float(loss)
        print("running loss", running, round(running, 3))
        torch.cuda.empty_cache()
        job.end(loss=loss)

    return run


def zero_one(wrapped: bool = True) -> Step:
    """ZeRO-1: DDP and torch's ZeroRedundancyOptimizer; a loop with a bar; a curve of losses."""

    def run(job: sp.Job) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
        torch.manual_seed(42)
        model = MLP().to(device)
        ddp_model = DDP(model) if wrapped else model
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        job.start(model, optimizer)
        history, best = [], float("inf")
        batches = [(job.batch["x"].chunk(world_size)[rank], job.batch["y"].chunk(world_size)[rank])]
        for step, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            output = ddp_model(x)
            loss = F.mse_loss(output, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            history.append(loss.detach().cpu().numpy())
            message = {"step": step, "loss": f"{float(loss):.3f}", "lr": scheduler.get_last_lr()}
            print(message)
            norm = sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5
            print("gradient norm", norm, "output", output.detach().abs().max().item())
            best = min(best, 10.0)
        job.end(loss=loss)
        optimizer.consolidate_state_dict(to=0)

    return run


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 2 * 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        return self.fc(torch.flatten(x, 1))


def net_one(job: sp.Job) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.start(model, optimizer)
    loss = F.cross_entropy(model(job.batch["x"]), job.batch["t"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def images(converted: bool = True) -> Step:
    """SyncBatchNorm under DDP; accuracy; a learning rate by StepLR; a checkpoint of rank 0."""

    def run(job: sp.Job) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.backends.cudnn.benchmark = True
        torch.cuda.set_device(rank)
        model: Any = Net()
        if converted:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = model.cuda(rank)
        criterion = nn.CrossEntropyLoss().cuda(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
        job.start(model, optimizer)
        model = DDP(model, device_ids=[rank], output_device=rank)
        model.train()
        dataset = TensorDataset(
            job.batch["x"].chunk(world)[rank], job.batch["t"].chunk(world)[rank]
        )
        loader = DataLoader(dataset, batch_size=len(dataset), num_workers=0)
        total, correct = 0, 0
        end = time.time()
        for i, (data, target) in enumerate(loader):
            data, target = data.cuda(rank, non_blocking=True), target.cuda(rank, non_blocking=True)
            output = model(data)
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
            total += target.size(0)
            if rank == 0 and i % 10 == 0:
                print(f"[{i}/{len(loader)}] loss {loss.item():.6f} time {time.time() - end:.3f}")
        scheduler.step()
        if rank == 0:
            print(f"accuracy {100.0 * correct / total:.1f}%")
            path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
            torch.save({"state_dict": model.module.state_dict(), "epoch": 1}, path)
        job.end(loss=loss)

    return run


CASES: list[Case] = [
    Case(
        "nanoGPT with DDP and accumulated gradients",
        gpt_one,
        gpt(),
        {"microbatches not divided": gpt(divided=False), "another clip": gpt(clip=0.5)},
        {**ids("x", "y")},
    ),
    Case(
        "HSDP in bfloat16",
        mlp_one,
        hybrid(),
        {"loss times ranks": hybrid(averaged=False)},
        floats(x=(8, WIDTH), y=(8, WIDTH)),
        4,
    ),
    Case(
        "ZeroRedundancyOptimizer and DDP",
        mlp_one,
        zero_one(),
        {"not wrapped": zero_one(wrapped=False)},
        floats(x=(4, WIDTH), y=(4, WIDTH)),
    ),
    Case(
        "convolutions with SyncBatchNorm",
        net_one,
        images(),
        {"batch norm of own images": images(converted=False)},
        {**floats(x=(4, 1, 4, 4)), "t": sp.tensor((4,), torch.int64, low=0, high=3)},
    ),
]
