"""The steps that `sizes.py` captures: ``SIZED="NAME LAYERS"`` in the environment says which."""

from __future__ import annotations

import os

import torch
from torch.distributed.device_mesh import init_device_mesh

import shardproof.torch as sp
from benchmarks.torch.llama import Config, Llama, fully_sharded, loss_of, tensor_parallel
from benchmarks.torch.shapes import of

SHAPE = of(os.environ["SIZED"])
CONFIG = Config(
    SHAPE.width, SHAPE.inner, SHAPE.layers, SHAPE.heads, SHAPE.kv_heads, SHAPE.vocabulary
)


def _trained(job: sp.Job, model: Llama, tokens: torch.Tensor, labels: torch.Tensor) -> None:
    """One step: forward, backward, and the optimizer's where there is one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3) if SHAPE.adamw else None
    job.start(model, optimizer)
    loss = loss_of(model, tokens, labels)
    if os.environ.get("SIZED_CHANGED"):
        loss = loss * 1.0
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    job.end(loss=loss)


def single(job: sp.Job) -> None:
    _trained(job, Llama(CONFIG), job.batch["tokens"], job.batch["labels"])


def parallel(job: sp.Job) -> None:
    mesh = init_device_mesh("cpu", (SHAPE.dp, SHAPE.tp), mesh_dim_names=("dp", "tp"))
    model = tensor_parallel(Llama(CONFIG), mesh["tp"])
    if SHAPE.dp > 1:
        fully_sharded(model, mesh["dp"])
    row = mesh.get_local_rank("dp")
    if job.rank == int(os.environ.get("SIZED_WRONG", "-1")):
        row = (row + 1) % SHAPE.dp
    _trained(job, model, *(job.batch[x].chunk(SHAPE.dp)[row] for x in ("tokens", "labels")))
