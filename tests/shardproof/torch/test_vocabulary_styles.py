"""A vocabulary that is divided over ranks, in the ways in which programs write it: which ids are
this rank's, which rows and entries they choose, what is added where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import copy_to, reduce_from  # noqa: E402
from tests.shardproof.torch.locally import Step, locally  # noqa: E402
from tests.shardproof.torch.test_vocabulary import CLASSES, OWN, RANKS, Model  # noqa: E402

ROWS = 3
IDS = {name: sp.tensor((ROWS,), torch.int64, low=0, high=CLASSES) for name in ("x", "y")}


def single(job: sp.Job) -> None:
    net = Model(CLASSES)
    job.start(net)
    logits = net.head(torch.tanh(net.table(job.batch["x"])))
    loss = F.cross_entropy(logits, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


# -- rows of a table ------------------------------------------------------------------------------


def _remainder(table: nn.Embedding, x: Tensor, low: int) -> Tensor:
    return table(x % OWN) * (x // OWN == low // OWN).unsqueeze(-1)


def _clamped(table: nn.Embedding, x: Tensor, low: int) -> Tensor:
    own = (x >= low) & (x < low + OWN)
    return table((x - low).clamp(0, OWN - 1)) * own[:, None].to(torch.float32)


def _chosen(table: nn.Embedding, x: Tensor, low: int) -> Tensor:
    own = (x >= low) & (x < low + OWN)
    return torch.where(own[:, None], table(torch.where(own, x - low, 0)), 0)


def _unmasked(table: nn.Embedding, x: Tensor, low: int) -> Tensor:
    return table(x % OWN)


# -- cross entropy --------------------------------------------------------------------------------


def _removed(p: Tensor, at: Tensor, own: Tensor) -> Tensor:
    """1 subtracted by ``scatter_add``."""
    return p.clone().scatter_add_(-1, at[:, None], -own.to(p.dtype)[:, None])


def _one_hot(p: Tensor, at: Tensor, own: Tensor) -> Tensor:
    return p - F.one_hot(at, OWN).to(p.dtype) * own[:, None]


def _into_zeros(p: Tensor, at: Tensor, own: Tensor) -> Tensor:
    return p - torch.zeros_like(p).scatter_(-1, at[:, None], own.to(p.dtype)[:, None])


def _written(p: Tensor, at: Tensor, own: Tensor) -> Tensor:
    less = p.gather(-1, at[:, None]) - own.to(p.dtype)[:, None]
    return p.scatter(-1, at[:, None], less)


def _by_index(p: Tensor, at: Tensor, own: Tensor) -> Tensor:
    """As `_written`, by an index."""
    less, rows = p.clone(), torch.arange(len(p))
    less[rows, at] = less[rows, at] - own.to(p.dtype)
    return less


def _zeroed(p: Tensor, at: Tensor, own: Tensor) -> Tensor:
    """Wrong: what is written over is zero, and not the entry, for labels of other ranks."""
    kept = torch.where(own[:, None], p.gather(-1, at[:, None]), 0.0)
    return p.scatter(-1, at[:, None], kept - own.to(p.dtype)[:, None])


def _zeroed_by_index(p: Tensor, at: Tensor, own: Tensor) -> Tensor:
    """Wrong as `_zeroed` is."""
    less, rows = p.clone(), torch.arange(len(p))
    less[rows, at] = less[rows, at].masked_fill(~own, 0.0) - own.to(p.dtype)
    return less


def _everywhere(p: Tensor, at: Tensor, own: Tensor) -> Tensor:
    """Wrong: 1 subtracted for labels of other ranks too."""
    return p - F.one_hot(at, OWN).to(p.dtype)


Less = Callable[[Tensor, Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, y: Tensor, low: int, less: Less, after: str = "") -> Tensor:
    """``after``: the label's score is picked as it is, and the maximum is added to the logarithm
    ("added"), or not at all ("forgotten")."""

    class Divided(torch.autograd.Function):
        @staticmethod
        def forward(ctx: sp.Job, z: Tensor) -> Tensor:
            most = z.amax(-1)
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
            given, z = z, z - most[:, None]
            own = (y >= low) & (y < low + OWN)
            at = torch.where(own, y - low, 0)
            scores = given if after else z
            label = torch.where(own, scores.gather(-1, at[:, None]).squeeze(-1), 0.0)
            total = z.exp().sum(-1)
            dist.all_reduce(label)
            dist.all_reduce(total)
            ctx.save_for_backward(z.exp() / total[:, None], at, own)  # type: ignore[attr-defined]
            log = total.log() + most if after == "added" else total.log()
            return (log - label).mean()

        @staticmethod
        def backward(ctx: sp.Job, grad: Tensor) -> Tensor:
            p, at, own = ctx.saved_tensors  # type: ignore[attr-defined]
            return less(p, at, own) * grad / len(p)

    return Divided.apply(logits)  # type: ignore[no-any-return]


Rows = Callable[[nn.Embedding, Tensor, int], Tensor]
#: Rows, what is subtracted, and what is to be decided.
STYLES: Mapping[str, tuple[Rows, Less, str]] = {
    "remainders": (_remainder, _removed, "proved"),
    "clamped ids": (_clamped, _one_hot, "proved"),
    "chosen rows": (_chosen, _into_zeros, "proved"),
    "written entries": (_chosen, _written, "proved"),
    "entries by an index": (_chosen, _by_index, "proved"),
    "zeros written over": (_chosen, _zeroed, "refuted"),
    "zeros by an index": (_chosen, _zeroed_by_index, "refuted"),
    "rows of other ranks": (_unmasked, _into_zeros, "refuted"),
    "labels of other ranks": (_chosen, _everywhere, "refuted"),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_divided_vocabulary(tmp_path: Path, style: str) -> None:
    rows, less, verdict = STYLES[style]
    result = locally(tmp_path, single, divided(rows, less), IDS, RANKS)
    assert result.verdict == verdict, sp.told(result)


@pytest.mark.parametrize(("after", "verdict"), [("added", "proved"), ("forgotten", "refuted")])
def test_a_maximum_that_is_added_after_picking(tmp_path: Path, after: str, verdict: str) -> None:
    result = locally(tmp_path, single, divided(_chosen, _into_zeros, after), IDS, RANKS)
    assert result.verdict == verdict, sp.told(result)


def divided(rows: Rows, less: Less, after: str = "") -> Step:
    def parallel(job: sp.Job) -> None:
        net, low = Model(OWN), job.rank * OWN
        pieces = {
            name: sp.piece(name, dim=0, start=low, size=OWN)
            for name in ("table.weight", "head.weight")
        }
        job.start(net, parameters=pieces)
        hidden = torch.tanh(reduce_from(rows(net.table, job.batch["x"], low)))
        logits = net.head(copy_to(hidden))
        loss = cross_entropy(logits, job.batch["y"], low, less, after)
        loss.backward()
        job.end(loss=loss)

    return parallel
