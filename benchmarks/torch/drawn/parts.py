"""Which part of which full parameter a rank has, as `job.start` is told."""

from __future__ import annotations

from typing import Any

import torch

import shardproof.torch as sp
from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.model import Transformer
from benchmarks.torch.drawn.ranks import Ranks
from benchmarks.torch.drawn.shards import shard

#: Cut along the rows of their weight (and with them the bias), and along its columns.
_ROWS, _COLUMNS = ("q", "k", "v", "qkv", "up", "gate", "gate_up", "g", "conv"), ("o", "down")


def divided(drawn: Drawn, name: str) -> bool:
    """The parameter is cut over tp."""
    owner, leaf = name.split(".")[-2:]
    if leaf == "decay":
        return True
    if owner in ("table", "head"):
        return drawn.table == "classes"
    return owner in _ROWS or (owner in _COLUMNS and leaf == "weight")


def parts(drawn: Drawn, at: Ranks, model: torch.nn.Module) -> dict[str, Any]:
    """What is stated of every parameter of a rank."""
    if drawn.shards:
        full = dict(
            Transformer(drawn, Ranks(), fused=False, sdpa=False, again=False).named_parameters()
        )
        found = {}
        for name in full:
            start, size = shard(at.dp, full[name].shape[0])
            found[name] = sp.piece(name, dim=0, start=start, size=size)
        return found
    return {name: _part(drawn, at, name) for name, _ in model.named_parameters()}


def _part(drawn: Drawn, at: Ranks, name: str) -> Any:
    before, owner, leaf = ("." + name).rsplit(".", 2)
    before = before.lstrip(".")
    rank, tp = at.tp.rank, at.tp.size
    if ".experts." in name:
        return sp.same(name)
    if owner in ("table", "head") and drawn.table == "classes":
        size = drawn.classes // tp
        return sp.piece(name, dim=0, start=rank * size, size=size)
    sizes = {
        "q": drawn.heads * drawn.head,
        "k": drawn.key_heads * drawn.head,
        "v": drawn.key_heads * drawn.head,
        "g": drawn.heads * drawn.head,
        "conv": drawn.heads * drawn.head,
        "attention": drawn.heads * drawn.head,  # The decay of a recurrence.
        "up": drawn.inner,
        "gate": drawn.inner,
    }
    groups = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
    if owner in sizes or owner in groups:
        pieces = []
        for one in groups.get(owner, (owner,)):
            size, start, full = sizes[one] // tp, 0, one
            shard = rank ^ 1 if drawn.mistake == "swapped shards" and one in "qv" else rank
            if drawn.mistake == "shared gate" and one == "gate":
                shard = 0
            shard = min(shard, tp - 1)
            for fused, members in groups.items():
                if one in members and drawn.single_fused and (fused == "qkv" or drawn.gated):
                    full, start = fused, sum(sizes[m] for m in members[: members.index(one)])
            pieces.append(
                sp.piece(f"{before}.{full}.{leaf}", dim=0, start=start + shard * size, size=size)
            )
        return pieces if len(pieces) > 1 else pieces[0]
    if owner in _COLUMNS and leaf == "weight":
        size = (drawn.inner if owner == "down" else drawn.heads * drawn.head) // tp
        return sp.piece(name, dim=1, start=rank * size, size=size)
    return sp.same(name)
