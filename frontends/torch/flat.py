"""Flat parameters of FSDP1 (`FullyShardedDataParallel`): which boxes a rank's flat shard holds.

FSDP1 puts the parameters of a module one after the other into one flat tensor and cuts it into
equal shards, wherever that is.  So a shard holds an interval of the entries of a parameter, in
their order: the end of a row, whole rows, the beginning of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from shardproof.frontends.torch.geometry import boxes
from shardproof.frontends.torch.trace import Box

#: Who says which parts of parameters a rank has.
SOURCE = "FSDP1"


class Flat(NamedTuple):
    """A box of a parameter, and where its entries lie in a flat tensor (dimension 0, start, size);
    without ``cut`` the tensor is all of the parameter, in its shape (nothing is sharded).

    Example: of ``up.weight`` [5, 3] the entries 4 to 8 are the boxes [1, 2] at (1, 1) and [1, 3] at
    (2, 0), from 0 and from 2 on.
    """

    box: Box
    cut: tuple[int, int, int] | None


def flat_parts(models: Sequence[torch.nn.Module], clean: Any) -> Mapping[int, Sequence[Flat]]:
    """What the parameters of FSDP1 hold on this rank, by their identity; ``clean``: a name without
    those of wrappers.

    Example: of ``up.weight`` [5, 3] and ``up.bias`` [5] rank 1 of two has, in a shard of 10
    entries, the boxes [1, 2] at (3, 1), [1, 3] at (4, 0) and all of ``up.bias``.
    """
    known: dict[int, list[Flat]] = {}
    for model in models:
        for path, module in model.named_modules():
            handle = module._handle if isinstance(module, FullyShardedDataParallel) else None
            if handle is not None:
                prefix = clean(f"{path}.") if path else ""
                for parameter, flat in _of_handle(handle, prefix):
                    known.setdefault(id(parameter), []).extend(flat)
    return known


def _of_handle(handle: Any, prefix: str) -> Iterator[tuple[torch.Tensor, list[Flat]]]:
    """The parameters of one flat tensor: it itself, or the original ones that are views of it."""
    whole = handle.flat_param
    rows = zip(whole._fqns, whole._shapes, whole._shard_param_infos, strict=True)
    for number, (name, shape, info) in enumerate(rows):
        flat: list[Flat] = []
        original = whole._params[number] if whole._params is not None else None
        if info.in_shard:
            at = 0 if original is not None else info.offset_in_shard
            first, last = info.intra_param_start_idx, info.intra_param_end_idx + 1
            for offset, own in boxes(tuple(shape), first, last):
                box = Box(f"{prefix}{name}", tuple(shape), offset, own, SOURCE)
                sharded = original is None or tuple(original.shape) != tuple(shape)
                flat.append(Flat(box, (0, at, prod(own)) if sharded or len(shape) == 1 else None))
                at += prod(own)
        yield (whole if original is None else original), flat
