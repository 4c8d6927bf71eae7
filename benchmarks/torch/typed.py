"""Shardproof beside ``spmd_types`` 0.3.1: ``python benchmarks/torch/typed.py``.

The same programs, written with the collectives of ``spmd_types`` (``pip install --no-deps
spmd_types==0.3.1`` first; nothing else here needs it): a layer under tensor parallelism on two
ranks, and the same with one mistake.  Each is type-checked on one rank, forward, with types stated
for inputs and loss, and verified, forward and backward, against a single device.  A row says what
each of the two says, and in how many seconds, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import spmd_types as spmd
import spmd_types.checker
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH, HIDDEN, ROWS, TP = 4, 8, 3, 2

#: What is wrong, and "right".
PROGRAMS = {
    "right": "nothing",
    "reduce": "no all-reduce behind the second product",
    "copy": "no copy-to before the first product: its gradient is not added up",
    "bias": "the bias is added before the all-reduce",
    "scale": "the output is doubled",
    "shard": "each rank's second weight is the other rank's",
    "twice": "the all-reduce is done twice",
    "leave": "the all-reduce's backward adds up again (from partial to replicated)",
}


class Layer(nn.Module):
    """A table, and two products of which each rank has a part."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.up = nn.Parameter(torch.randn(WIDTH, HIDDEN // ranks))
        self.down = nn.Parameter(torch.randn(HIDDEN // ranks, WIDTH))
        self.bias = nn.Parameter(torch.randn(WIDTH))


def loss_of(model: Layer, x: torch.Tensor, tp: Any, kind: str) -> torch.Tensor:
    """The program under test."""
    x = x @ model.table
    if kind != "copy":
        x = spmd.convert(x, tp, src=spmd.I, dst=spmd.R)
    y = torch.relu(x @ model.up) @ model.down
    if kind == "bias":
        y = y + model.bias
    target = spmd.R if kind == "leave" else spmd.I
    if kind != "reduce":
        y = spmd.all_reduce(y, tp, src=spmd.P, dst=target)
    if kind == "twice":
        y = spmd.all_reduce(y, tp, src=spmd.P, dst=target)
    if kind == "scale":
        y = y * 2
    if kind != "bias":
        y = y + model.bias
    return y.pow(2).mean()


def typed(kind: str) -> str:
    """What the type checker says of one rank's forward."""
    dist.init_process_group(backend="fake", rank=0, world_size=TP)
    mesh = init_device_mesh("cpu", (TP,), mesh_dim_names=("tp",))
    tp = mesh.get_group("tp")
    try:
        with spmd.set_current_mesh(mesh), spmd.checker.typecheck():
            model, x = Layer(TP), torch.randn(ROWS, WIDTH)
            for tensor in (model.up, model.down):
                spmd.assert_type(tensor, {tp: spmd.V})
            for tensor in (x, model.table, model.bias):
                spmd.assert_type(tensor, {tp: spmd.I})
            spmd.assert_type(loss_of(model, x, tp, kind), {tp: spmd.I})
    except spmd.SpmdTypeError as error:
        return f"refused ({str(error).splitlines()[0][:90]})"
    return "accepted"


def verified(kind: str) -> str:
    """What Shardproof says of both ranks' forward and backward."""
    import shardproof.torch as sp

    def single(job: Any) -> None:
        model = Layer()
        job.start(model)
        y = torch.relu(job.batch["x"] @ model.table @ model.up) @ model.down + model.bias
        loss = y.pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    def parallel(job: Any) -> None:
        mesh = init_device_mesh("cpu", (TP,), mesh_dim_names=("tp",))
        size = HIDDEN // TP
        at = mesh.get_local_rank("tp") * size
        other = HIDDEN - size - at if kind == "shard" else at
        model = Layer(TP)
        pieces = {
            "up": sp.piece("up", dim=1, start=at, size=size),
            "down": sp.piece("down", dim=0, start=other, size=size),
            "table": sp.same("table"),
            "bias": sp.same("bias"),
        }
        job.start(model, parameters=pieces)
        with spmd.set_current_mesh(mesh):
            loss = loss_of(model, job.batch["x"], mesh.get_group("tp"), kind)
            loss.backward()
        job.end(loss=loss)

    batch = {"x": sp.tensor((ROWS, WIDTH))}
    result = sp.verify(single, parallel, world_size=TP, batch=batch, executor="local", cache=False)
    first = result.findings[0].message if result.findings else result.reason
    return f"{result.verdict} ({first[:90]})" if first else result.verdict


def main() -> None:
    """One program by one of both, or all as a table."""
    if len(sys.argv) == 3:
        start = time.perf_counter()
        words = (typed if sys.argv[2] == "types" else verified)(sys.argv[1])
        print(f"{words} | {time.perf_counter() - start:.2f}")
        return
    print("| what is wrong | spmd_types | s | Shardproof | s |\n|---|---|--:|---|--:|")
    for kind, wrong in PROGRAMS.items():
        cells = []
        for how in ("types", "proof"):
            command = [sys.executable, "-W", "ignore", __file__, kind, how]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            cells.append(done.stdout.strip().splitlines()[-1])
        print(f"| {wrong} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
