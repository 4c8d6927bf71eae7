"""What is drawn of a step: the model, how it is made parallel, and at most one mistake in it.

Everything follows from a seed: ``draw(7)`` is the right program of seed 7, ``draw(7, wrong=True)``
the same program with one mistake that applies to it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

#: Ranks along tp, dp and cp; tensor parallelism is drawn most.
MESHES = [
    *[(2, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 1), (1, 1, 2)],
    *[(2, 1, 2), (1, 2, 2), (1, 4, 1), (3, 1, 1), (1, 3, 1), (1, 1, 1)],
]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step. Sizes are counts of entries; ``mistake`` is empty where the program is right."""

    seed: int
    # the mesh: replicas, ranks along positions, ranks of one tensor-parallel group
    dp: int
    cp: int
    tp: int
    # the model
    layers: int
    heads: int
    key_heads: int
    head: int
    inner: int
    classes: int
    length: int
    rows: int
    norm: str  # layer, rms
    place: str  # before, after, both
    bias: bool
    causal: bool
    window: int  # 0: none
    positions: str  # none, learned, half, pairs, slopes
    scale: str  # root, head, one
    normed: bool  # queries and keys have a norm of their own
    inside: str  # gelu, relu, silu, squared
    gated: bool
    beside: bool  # attention and MLP read the same norm
    tied: bool
    objective: str  # mean, sum, counted, smoothed, penalised, squares
    optimizer: str  # none, sgd, adamw
    clip: bool
    # how each side writes it
    single_fused: bool
    parallel_fused: bool
    single_sdpa: bool
    parallel_sdpa: bool
    sequence: bool  # Megatron's sequence parallelism
    table: str  # whole, classes: how the vocabulary lies over tp
    microbatches: int
    strided: bool  # a replica has every dp-th row
    reduction: str  # each, flat, loss
    # what `widened` draws
    pp: int = 1  # stages of a pipeline
    order: str = "all forward"  # or one by one: a backward pass after each forward pass
    context: str = "gather"  # ring, ring of logs, heads: how positions over ranks attend
    mixer: str = "attention"  # linear, conv, recurrence
    experts: int = 0  # in place of the MLP; of which every position has `chosen`, or all (0)
    chosen: int = 0
    renormed: bool = False  # weights of the chosen ones sum to 1
    experts_over: str = "tp"  # tp, dp
    router_inside: bool = False  # the router reads what the experts read
    shards: bool = False  # parameters are divided over dp and gathered where they are used
    wrapped: bool = False  # DistributedDataParallel reduces
    recomputed: bool = False  # blocks are computed again in the backward pass
    task: str = "tokens"  # pooled, first: one class for a row
    mistake: str = ""


def draw(seed: int, *, wrong: bool = False) -> Drawn:
    """The step of a seed; ``wrong``: with one mistake.

    Example: ``draw(3).tp`` is 1, 2 or 4.
    """
    r = random.Random(seed)
    tp, dp, cp = r.choice(MESHES)
    key_heads = tp * r.choice([1, 1, 2])
    heads = key_heads * r.choice([1, 1, 2])
    head = r.choice([2, 4, 4, 6])
    micro = r.choice([1, 1, 2]) if (tp, dp, cp) != (1, 1, 1) else 2
    positions = r.choice(["none", "learned", "half", "half", "pairs", "slopes"])
    objective = r.choice(["mean", "mean", "sum", "counted", "smoothed", "penalised"])
    drawn = Drawn(
        seed,
        dp=dp,
        cp=cp,
        tp=tp,
        layers=r.choice([1, 1, 2]),
        heads=heads,
        key_heads=key_heads,
        head=head,
        inner=tp * r.choice([2, 3, 5]),
        classes=tp * r.choice([3, 5, 7]),
        length=cp * tp * r.choice([1, 2, 3]) + (0 if cp * tp > 1 else 2),
        rows=dp * micro * r.choice([1, 2]),
        norm=r.choice(["layer", "rms"]),
        place=r.choice(["before", "before", "before", "after", "both"]),
        bias=r.random() < 0.4,
        causal=r.random() < 0.8,
        window=r.choice([0, 0, 0, 2]),
        positions=positions,
        scale=r.choice(["root", "root", "root", "head", "one"]),
        normed=r.random() < 0.2,
        inside=r.choice(["gelu", "silu", "relu", "squared"]),
        gated=r.random() < 0.5,
        beside=r.random() < 0.2,
        tied=r.random() < 0.25,
        objective=objective,
        optimizer=r.choice(["none", "none", "sgd", "adamw"]),
        clip=r.random() < 0.15,
        single_fused=r.random() < 0.3,
        parallel_fused=r.random() < 0.3,
        single_sdpa=r.random() < 0.5,
        parallel_sdpa=r.random() < 0.5,
        sequence=tp > 1 and cp == 1 and r.random() < 0.35,
        table=r.choice(["whole", "classes"]) if tp > 1 else "whole",
        microbatches=micro,
        strided=r.random() < 0.25,
        reduction=r.choice(["each", "each", "flat", "loss"]),
    )
    if drawn.window or drawn.positions == "slopes" or not drawn.causal:
        drawn = replace(drawn, single_sdpa=False, parallel_sdpa=False)
    if cp > 1:
        drawn = replace(drawn, parallel_sdpa=False)
    if drawn.table == "classes" and drawn.objective == "smoothed":
        drawn = replace(drawn, table="whole")
    return replace(drawn, mistake=r.choice(mistakes(drawn))) if wrong else drawn


def mistakes(drawn: Drawn) -> list[str]:
    """The mistakes that can be made in this step; some of them change nothing in some of them.

    Example: a step without tensor parallelism has no "copy" to leave out.
    """
    found = ["residual scale", "epsilon", "order of norms"] if drawn.layers else []
    found += _of_shards(drawn) if drawn.shards else _of_replicas(drawn)
    found += _of_groups(drawn) if drawn.tp > 1 else []
    found += _of_positions(drawn) if drawn.cp > 1 else []
    if drawn.dp * drawn.cp > 1 and drawn.objective == "counted":
        found += ["mean of means"]
    if drawn.microbatches > 1:
        found += ["last microbatch left out", "microbatches summed", "microbatch twice"]
    if drawn.window:
        found += ["window by one"]
    if drawn.positions in ("half", "pairs") and drawn.mixer == "attention":
        found += ["angles by one", "keys not turned"]
    if drawn.pp > 1:
        found += ["a block left out"]
        found += ["gradients of other microbatches"] if drawn.microbatches > 1 else []
        found += ["tables stay apart"] if drawn.tied else []
    if drawn.experts:
        found += ["weights of the first experts"]
        found += ["weights of one's own rows"] if drawn.experts_over == "dp" else []
        if drawn.experts_over == "dp" and drawn.sequence:
            found += ["the experts' gradients stay local"]
        if drawn.experts_over == "tp" and drawn.tp > 1:
            inside = drawn.router_inside
            found += ["the router's gradient stays local" if inside else "weights are not copied"]
    return found


def _of_groups(drawn: Drawn) -> list[str]:
    """Mistakes of tensor parallelism."""
    found = ["no copy", "no all-reduce", "copy twice"]
    attention = drawn.mixer == "attention"
    found += ["swapped shards"] if attention else []
    found += ["shared gate"] if drawn.gated and not drawn.experts else []
    found += ["bias before the sum"] if drawn.bias else []
    found += ["a norm's gradient stays local"] if drawn.sequence else []
    found += ["a bias's gradient stays local"] if drawn.sequence and drawn.bias else []
    if drawn.table == "classes":
        found += ["offset of classes", "maximum over the wrong ranks", "unmasked classes"]
    found += ["slopes of the first ranks"] if drawn.positions == "slopes" else []
    if attention and drawn.heads > drawn.key_heads:
        found += ["key heads of another rank"]
    found += ["gradients of norms of heads stay local"] if drawn.normed else []
    found += ["local norm"] if drawn.clip else []
    return found


def _of_replicas(drawn: Drawn) -> list[str]:
    """Mistakes of data parallelism."""
    if drawn.dp == 1:
        return []
    if drawn.wrapped:
        return ["never reduced", "rows twice"]
    found = ["no reduction", "summed", "reduced twice", "rows twice", "over the wrong ranks"]
    return [*found, "one parameter left out"]


def _of_shards(drawn: Drawn) -> list[str]:
    """Mistakes where parameters are divided over replicas."""
    return ["summed", "rows twice", "shards put together in another order"]


def _of_positions(drawn: Drawn) -> list[str]:
    """Mistakes of context parallelism."""
    if drawn.context == "heads":
        return ["positions from 0", "heads come back in another order"]
    if drawn.context != "gather":
        found = ["positions from 0", "ring one short", "not rescaled"]
        return [*found, "blocks masked by another rank"] if drawn.causal else found
    return ["positions from 0", "mask from 0", "keys in another order", "own keys alone"]


def averages(drawn: Drawn) -> bool:
    """The objective is a mean, so that parts of the batch are averaged."""
    return drawn.objective in ("mean", "smoothed", "penalised", "squares")
