"""Expected and actual values of a refuted plan, by shard: both programs run again from the plan in
the run directory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from engine.ir import Plan
from engine.simulate import Comparison, Simulation, simulate
from engine.unroll import unroll

#: Tensors that are drawn, shards of each, rows and columns of a shard.
MOST_TENSORS: Final = 3
MOST_SHARDS: Final = 8
WINDOW: Final = 5
#: Inputs that are tried.
SEEDS: Final = 4


def counterexample(plan: Plan) -> dict[str, Any] | None:
    """The losses and gradients that are furthest off, each as the shards that ranks hold of it;
    None where the programs cannot be run, or do not differ."""
    single, parallel = unroll([plan.single], 1), unroll(plan.programs, plan.microbatches)
    found: Simulation | None = None
    for seed in range(SEEDS):
        found = simulate(plan, single, replace(parallel), seed)
        if found.differs or found.failure:
            break
    if found is None or not found.differs:
        return None
    by_name: dict[str, list[Comparison]] = {}
    for one in found.comparisons:
        by_name.setdefault("loss" if one.shard < 0 else f"gradient of {one.name}", []).append(one)
    wrong = [name for name, held in by_name.items() if any(c.differs for c in held)]
    wrong.sort(key=lambda name: -max(_size(c) for c in by_name[name]))
    # The loss first, if it is wrong: it is what a person looks at.
    wrong.sort(key=lambda name: name != "loss")
    return {
        "tensors": [_tensor(plan, name, by_name[name]) for name in wrong[:MOST_TENSORS]],
        "wrong": len(wrong),
        "right": len(by_name) - len(wrong),
        "right_names": [name for name in by_name if name not in wrong][:8],
    }


def _size(found: Comparison) -> float:
    return float("inf") if np.isnan(found.error) else found.error


def _tensor(plan: Plan, name: str, held: list[Comparison]) -> dict[str, Any]:
    ordered = sorted(held, key=lambda c: not c.differs)[:MOST_SHARDS]
    return {
        "name": name,
        "shards": [_shard(plan, c) for c in sorted(ordered, key=lambda c: (c.program, c.at))],
        "more": max(0, len(held) - MOST_SHARDS),
        "differ": sum(c.differs for c in held),
        "all": len(held),
    }


def _shard(plan: Plan, found: Comparison) -> dict[str, Any]:
    program = plan.programs[found.program] if found.program >= 0 else None
    shard = program.shards[found.shard] if program is not None and found.shard >= 0 else None
    at = ", ".join(f"{axis} {p}" for axis, p in found.at)
    box = ""
    if shard is not None:
        spans = zip(shard.offset, shard.shape, shard.full_shape, strict=True)
        box = " × ".join(f"[{o}, +{n}) of {full}" if n != full else f"{n}" for o, n, full in spans)
    where = "no rank" if program is None else f"rank {program.base}" + (f" ({at})" if at else "")
    return {
        "where": where,
        "box": box,
        "differs": found.differs,
        "error": f"{found.error:.2g}" if np.isfinite(found.error) else "∞",
        "cells": _window(found),
        "index": list(found.worst.index),
        "expected": f"{found.worst.expected:.6g}",
        "actual": f"{found.worst.actual:.6g}",
    }


def _window(found: Comparison) -> list[list[dict[str, Any]]]:
    """Some values around the worst one: rows of (expected, actual, whether they differ)."""
    expected, actual = np.atleast_2d(found.expected), np.atleast_2d(found.actual)
    worst = (0,) * (expected.ndim - len(found.worst.index)) + found.worst.index
    expected, actual = expected[worst[:-2]], actual[worst[:-2]]
    starts = [
        max(0, min(i - WINDOW // 2, n - WINDOW))
        for i, n in zip(worst[-2:], expected.shape, strict=True)
    ]
    rows, columns = (slice(s, s + WINDOW) for s in starts)
    scale = float(np.abs(found.expected).max(initial=0.0)) or 1.0
    return [
        [
            {
                "expected": f"{e:.4g}",
                "actual": f"{a:.4g}",
                "off": bool(not abs(a - e) <= 1e-6 * scale),
            }
            for e, a in zip(left, right, strict=True)
        ]
        for left, right in zip(expected[rows, columns], actual[rows, columns], strict=True)
    ]
