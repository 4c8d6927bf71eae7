"""The pipeline schedule as a picture: what each stage runs, in time steps.

A forward call counts as one step, a backward call as two, communication as none; a call begins when
the one before it on its rank has ended and what it receives was sent.  The steps show order and
waiting, not seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.collectives import TABLE
from shardproof.engine.plan.ir import Body, Plan
from shardproof.engine.schedule.dataflow import Structure, flow, label
from shardproof.engine.schedule.messages import match

#: Rows (stages that differ) and steps of one that are drawn.
MOST_STAGES: Final = 32
MOST_STEPS: Final = 160
#: Steps that fit beside another picture; pixels that a wide one may take.
NARROW: Final = 20
WIDTH: Final = 1120
#: Calls of a plan above which it is not replayed.
MOST_CALLS: Final = 200_000

DURATION: Final = {"F": 1, "B": 2, "R": 1, "": 0}


def kind_of(body: Body) -> str:
    """F: computes forward, B: backward, R: reduces gradients, "": only communicates or loads.

    Example: F, B and R for the bodies "forward", "backward" and "reducer" of a plan.
    """
    if body.reduced:
        return "R"
    if any(op.backward for op in body.ops) or body.forward_body >= 0:
        return "B"
    # A chunk in the order that a plan records is a slice.
    moves = TABLE.keys() | {"identity", "slice"}
    return "F" if any(op.name not in moves for op in body.ops) else ""


def schedule(plan: Plan, failing: Collection[tuple[int, int]]) -> dict[str, Any] | None:
    """Rows of cells (kind, microbatch, first step, steps); ``failing``: (program, body) pairs.

    Example: two microbatches on one stage are the cells F0 at step 0, B0 at 1, F1 at 3 and B1 at 4.

    None where nothing can be drawn: the order contradicts itself, or the plan is too long.
    """
    if sum(len(program.calls) for program in plan.programs) > MOST_CALLS:
        return None
    matching = match(plan.programs)
    try:
        flows = [flow(program) for program in plan.programs]
    except (Structure, InvalidInput):
        return None
    if matching.findings:
        return None
    labels = label(plan.programs, flows, matching)
    times = _times(plan, dict(matching.partner))
    if times is None:
        return None
    rows = []
    for p in range(len(plan.programs)):
        cells = []
        for c, call in enumerate(plan.programs[p].calls):
            kind = kind_of(plan.programs[p].bodies[call.body])
            microbatch = labels[p][c] if labels is not None else -1
            start = times[p][c]
            if kind and start < MOST_STEPS:
                bad = (p, call.body) in failing
                cells.append(_cell(kind, microbatch, start, bad))
        rows.append({"name": f"rank {plan.programs[p].base}", "cells": cells})
    rows = _distinct(rows)
    more = max(0, len(rows) - MOST_STAGES)
    last = max((start + 2 for row in times for start in row), default=0)
    steps = min(last, MOST_STEPS)
    return {
        "rows": rows[:MOST_STAGES],
        "steps": steps,
        "step": max(6, min(22, WIDTH // max(steps, 1))),
        "wide": steps > NARROW,
        "cut": last > MOST_STEPS,
        "more": more,
    }


def _cell(kind: str, microbatch: int, start: int, failing: bool) -> dict[str, Any]:
    return {
        "kind": kind,
        "microbatch": microbatch,
        "start": start,
        "steps": DURATION[kind],
        "failing": failing,
    }


def _distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that run the same at the same time are drawn once."""
    distinct: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = repr([(c["kind"], c["microbatch"], c["start"], c["failing"]) for c in row["cells"]])
        if key in distinct:
            distinct[key]["name"] += f", {row['name'].removeprefix('rank ')}"
        else:
            distinct[key] = dict(row)
    return list(distinct.values())


def _times(
    plan: Plan, partner: dict[tuple[int, int, int], tuple[int, int, int]]
) -> list[list[int]] | None:
    """When each call begins; None if calls wait for each other."""
    sources: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (p, c, o), (q, d, _) in partner.items():
        body = plan.programs[p].bodies[plan.programs[p].calls[c].body]
        if body.ops[o].name == "recv":
            sources.setdefault((p, c), []).append((q, d))
    starts: list[list[int]] = [[] for _ in plan.programs]
    ends: dict[tuple[int, int], int] = {}
    progress = True
    while progress:
        progress = False
        for p, program in enumerate(plan.programs):
            while len(starts[p]) < len(program.calls):
                c = len(starts[p])
                waits = sources.get((p, c), [])
                # What is sent and received inside one call cannot be waited for.
                if any(s not in ends for s in waits if s[0] != p):
                    break
                before = [ends[p, c - 1]] if c else [0]
                start = max([*before, *(ends[s] for s in waits if s in ends)])
                starts[p].append(start)
                ends[p, c] = start + DURATION[kind_of(program.bodies[program.calls[c].body])]
                progress = True
    done = all(len(s) == len(pr.calls) for s, pr in zip(starts, plan.programs, strict=True))
    return starts if done else None
