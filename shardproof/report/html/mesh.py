"""The ranks of a plan as a picture: a row for each pipeline stage, a box for each rank of one
replica."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any, Final

from shardproof.engine.plan.ir import Plan, Program
from shardproof.report.html.lineages import layer_of

#: Boxes of failing ranks in one row; more are counted.  More than a few other ranks are one box.
MOST_BOXES: Final = 16
FEW_BOXES: Final = 4
#: Rows; more stages are counted.
MOST_STAGES: Final = 40

_LAYER: Final = re.compile(r"^(.*?)\.?(\d+)$")


def mesh(plan: Plan, failing: Collection[int]) -> dict[str, Any]:
    """The ranks of a plan by pipeline stage; ``failing``: ranks that a finding names.

    Example: of dp 2, tp 2, one stage with the boxes of ranks 0 and 1, and ``"replicas": 2``.
    """
    stages: dict[tuple[str, ...], list[Program]] = {}
    for program in plan.programs:
        stages.setdefault(_layers_of(program), []).append(program)
    extents = {axis: n for program in plan.programs for axis, n, _ in program.axes}
    rows = [_stage(plan, programs, failing, layers) for layers, programs in stages.items()]
    return {
        "stages": rows[:MOST_STAGES],
        "more": max(0, len(rows) - MOST_STAGES),
        "count": len(rows),
        "ranks": plan.ranks,
        "axes": [
            {"name": axis, "extent": n, "replica": axis in plan.replica_axes}
            for axis, n in extents.items()
        ],
        "microbatches": plan.microbatches,
        "replicas": _replicas(plan, extents),
    }


def _replicas(plan: Plan, extents: dict[str, int]) -> int:
    count = 1
    for axis in plan.replica_axes:
        count *= extents.get(axis, 1)
    return count


def _layers_of(program: Program) -> tuple[str, ...]:
    """The layers that a program has operators of, in its order; without any, of parameters."""
    layers: dict[str, None] = {}
    for body in program.bodies:
        for op in body.ops:
            if op.source.module and not op.backward and body.forward_body < 0 and not body.reduced:
                layers[layer_of(op.source.module)] = None
    for shard in program.shards if not layers else ():
        if shard.trainable:
            layers[layer_of(shard.name)] = None
    return tuple(layers) or (program.name,)


def _stage(
    plan: Plan, programs: Sequence[Program], failing: Collection[int], layers: Sequence[str]
) -> dict[str, Any]:
    boxes = [box for program in programs for box in _boxes(plan, program, failing)]
    bad = [box for box in boxes if box["failing"]]
    rest = [box for box in boxes if not box["failing"]]
    others = rest if len(rest) <= FEW_BOXES else [_together(rest)]
    return {
        "holds": spans(layers),
        "boxes": sorted([*bad[:MOST_BOXES], *others], key=lambda box: int(box["first"])),
        "more": max(0, len(bad) - MOST_BOXES),
        "failing": bool(bad),
    }


def _together(boxes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several ranks as one box."""
    ranks = sorted(box["rank"] for box in boxes)
    step = ranks[1] - ranks[0]
    even = ranks == list(range(ranks[0], ranks[-1] + 1, step))
    by = f" by {step}" if step > 1 else ""
    shown = f"{ranks[0]}–{ranks[-1]}{by}" if even else f"{ranks[0]} … {ranks[-1]}"
    return {"rank": f"{shown} ({len(ranks)} ranks)", "first": ranks[0], "at": "", "failing": False}


def _boxes(plan: Plan, program: Program, failing: Collection[int]) -> Iterator[dict[str, Any]]:
    """The ranks of a program in the first replica; a finding names the first rank of a program."""
    own = [axis for axis in program.axes if axis[0] not in plan.replica_axes]
    for place in product(*(range(extent) for _, extent, _ in own)):
        rank = program.base + sum(stride * p for (_, _, stride), p in zip(own, place, strict=True))
        at = ", ".join(f"{name} {p}" for (name, _, _), p in zip(own, place, strict=True))
        bad = rank in failing or program.base in failing
        yield {"rank": rank, "first": rank, "at": at or program.name, "failing": bad}


def spans(names: Sequence[str]) -> str:
    """Names of layers, consecutive numbers as ranges.

    Example: ``layers.0``, ``layers.1``, ``norm`` is "layers.0–1, norm".
    """
    parts: list[str] = []
    last: tuple[str, int, int] | None = None
    for name in [*names, ""]:
        match = _LAYER.match(name)
        if last and match and match[1] == last[0] and int(match[2]) == last[2] + 1:
            last = (last[0], last[1], last[2] + 1)
            continue
        if last:
            stem, low, high = last
            parts.append(f"{stem}.{low}" if low == high else f"{stem}.{low}–{high}")
        last = (match[1], int(match[2]), int(match[2])) if match else None
        if not match and name:
            parts.append(name)
    return ", ".join(parts)
