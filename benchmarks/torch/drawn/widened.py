"""What else is drawn of a step: context parallelism, mixers, experts, stages, shards, other tasks.

``widened(7)`` is the step of seed 7 with one to three of these in place of what `draw` has.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from benchmarks.torch.drawn.draw import Drawn, averages, draw, mistakes


def widened(seed: int, *, wrong: bool = False) -> Drawn:
    """The step of a seed, widened; ``wrong``: with one mistake.

    Example: ``widened(3).pp`` is 1, 2 or 3.
    """
    r = random.Random(seed + 1_000_000)
    drawn = draw(seed)
    for change in r.sample(_CHANGES, r.choice([1, 1, 2, 2, 3])):
        drawn = change(drawn, r)
    drawn = _consistent(drawn)
    return replace(drawn, mistake=r.choice(mistakes(drawn))) if wrong else drawn


def _context(drawn: Drawn, r: random.Random) -> Drawn:
    """Positions over ranks: in rings, or exchanged for heads."""
    cp = r.choice([2, 2, 3])
    groups = drawn.heads // drawn.key_heads
    return replace(
        drawn,
        cp=cp,
        dp=1 if drawn.tp > 1 else drawn.dp,
        context=r.choice(["ring", "ring of logs", "heads", "heads"]),
        key_heads=drawn.tp * cp,
        heads=drawn.tp * cp * groups,
        length=cp * r.choice([1, 2, 3]),
        sequence=False,
    )


def _mixer(drawn: Drawn, r: random.Random) -> Drawn:
    return replace(drawn, mixer=r.choice(["linear", "conv", "recurrence"]), cp=1)


def _experts(drawn: Drawn, r: random.Random) -> Drawn:
    over = "dp" if drawn.dp > 1 and r.random() < 0.5 else "tp"
    each = drawn.dp if over == "dp" else drawn.tp
    return replace(
        drawn,
        experts=each * r.choice([1, 2]) + (2 if each == 1 else 0),
        chosen=r.choice([0, 1, 2]),
        renormed=r.random() < 0.5,
        experts_over=over,
        router_inside=r.random() < 0.5,
    )


def _stages(drawn: Drawn, r: random.Random) -> Drawn:
    pp = r.choice([2, 2, 3])
    micro = r.choice([1, 2, 2, 3])
    each = drawn.rows // (drawn.dp * drawn.microbatches)
    dp, cp = (drawn.dp, drawn.cp) if drawn.tp == 1 else (1, 1)
    return replace(
        drawn,
        pp=pp,
        layers=max(pp, drawn.layers),
        microbatches=micro,
        rows=dp * micro * each,
        dp=dp,
        cp=cp,
        order=r.choice(["all forward", "one by one"]),
    )


def _shards(drawn: Drawn, r: random.Random) -> Drawn:
    dp = max(drawn.dp, 2)
    rows = dp * drawn.microbatches * r.choice([1, 2])
    return replace(drawn, dp=dp, tp=1, rows=rows, shards=True, reduction="each", table="whole")


def _wrapped(drawn: Drawn, r: random.Random) -> Drawn:
    dp = max(drawn.dp, 2)
    rows = dp * drawn.microbatches * r.choice([1, 2])
    return replace(drawn, dp=dp, rows=rows, wrapped=True, reduction="each")


def _recomputed(drawn: Drawn, r: random.Random) -> Drawn:
    return replace(drawn, recomputed=True)


def _task(drawn: Drawn, r: random.Random) -> Drawn:
    objective = r.choice(["mean", "sum", "squares"])
    return replace(
        drawn, task=r.choice(["pooled", "first"]), objective=objective, causal=r.random() < 0.3
    )


_CHANGES: list[Callable[[Drawn, random.Random], Drawn]] = [
    *[_context, _context, _mixer, _mixer, _experts, _experts],
    *[_stages, _stages, _shards, _wrapped, _recomputed, _task],
]


def _consistent(drawn: Drawn) -> Drawn:
    """The step without what cannot be together."""
    drawn = _experts_alone(_mesh(_attention(drawn)))
    length = -(-drawn.length // (drawn.cp * drawn.tp)) * drawn.cp * drawn.tp
    each = drawn.dp * drawn.microbatches
    return replace(drawn, length=length, rows=-(-drawn.rows // each) * each)


def _attention(drawn: Drawn) -> Drawn:
    """Tasks and mixers do without positions over ranks; rings and heads without windows."""
    if drawn.task != "tokens":
        drawn = replace(drawn, cp=1, table="whole", tied=False)
    if drawn.mixer != "attention":
        drawn = replace(drawn, cp=1, window=0, normed=False, single_fused=False)
        positions = "learned" if drawn.positions == "learned" else "none"
        drawn = replace(drawn, parallel_fused=False, positions=positions)
    if drawn.cp == 1:
        return replace(drawn, context="gather")
    if drawn.context != "gather":
        positions = "half" if drawn.positions == "slopes" else drawn.positions
        fused = drawn.single_sdpa and drawn.causal
        drawn = replace(drawn, window=0, positions=positions)
        # The logarithm of a block of which nothing is seen is none.
        logs = drawn.context == "ring of logs" and drawn.causal
        drawn = replace(drawn, context="ring" if logs else drawn.context)
        drawn = replace(drawn, single_sdpa=fused, parallel_sdpa=False)
    return drawn


def _mesh(drawn: Drawn) -> Drawn:
    """Shards, wrappers and stages do without each other."""
    if drawn.shards:
        drawn = replace(drawn, tp=1, wrapped=False, recomputed=False, clip=False)
        drawn = replace(drawn, single_fused=False, parallel_fused=False)
    if drawn.tp == 1:
        drawn = replace(drawn, table="whole", sequence=False)
    if drawn.pp > 1:
        drawn = replace(drawn, shards=False, wrapped=False, clip=False)
    if drawn.cp > 1 or not averages(drawn):
        drawn = replace(drawn, wrapped=False)
    return drawn


def _experts_alone(drawn: Drawn) -> Drawn:
    """Experts do without wrappers and clipping; their number is that of ranks, or twice that."""
    if not drawn.experts:
        return drawn
    drawn = replace(drawn, wrapped=False, shards=False, clip=False, reduction="each")
    over = "dp" if drawn.experts_over == "dp" and drawn.dp > 1 else "tp"
    each = drawn.dp if over == "dp" else drawn.tp
    experts = -(-drawn.experts // each) * each
    return replace(
        drawn,
        experts_over=over,
        experts=experts,
        chosen=min(drawn.chosen, experts),
        router_inside=drawn.router_inside or drawn.sequence,
    )
