"""Both sides of a plan: the single-device program, and a program for every pipeline stage."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TypeVar

from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends.builder.builder import ProgramBuilder
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.zoo import interleaved
from shardproof.frontends.zoo.config import ModelConfig, Parallel
from shardproof.frontends.zoo.layout import Layout
from shardproof.frontends.zoo.transformer import Model, Stage

C = TypeVar("C", bound=ModelConfig)


def single_layout(config: ModelConfig, parallel: Parallel) -> Layout:
    """How the single device computes: the whole batch at once.

    Example: with dp 2 and four microbatches, eight sequences at once, in 8 ``blocks``.
    """
    blocks = parallel.dp * parallel.microbatches
    batch = blocks * parallel.microbatch_size
    if parallel.loss == "sum":
        return Layout(batch, config.sequence, Fraction(1), Fraction(1), blocks)
    tokens = batch * config.sequence
    return Layout(batch, config.sequence, Fraction(1, tokens), Fraction(1, blocks), blocks)


def rank_layout(config: ModelConfig, parallel: Parallel) -> Layout:
    """How a rank of the parallel plan computes.

    Example: with dp 2 and four microbatches of one sequence of 8192, ``token_factor`` 1/65536.
    """
    tokens = parallel.microbatch_size * config.sequence
    blocks = parallel.dp * parallel.microbatches
    factors = {
        "token-mean": (Fraction(1, tokens * blocks), Fraction(1, blocks)),
        "mean": (Fraction(1, tokens * parallel.ep), Fraction(1, parallel.ep)),
        "sum": (Fraction(1), Fraction(1)),
    }
    return Layout(
        parallel.microbatch_size,
        config.sequence,
        *factors[parallel.loss],
        blocks=1,
        dp=parallel.dp,
        tp=parallel.tp,
        cp=parallel.cp,
        ep=parallel.ep,
        sequence_parallel=parallel.sequence_parallel,
        zero=parallel.zero,
    )


def loss_note(config: ModelConfig, parallel: Parallel) -> str:
    """What the loss is, and what a microbatch contributes to it.

    Example: "loss: mean over 8 x 8192 tokens; every microbatch of every replica contributes its sum
    times 1/65536".
    """
    batch = parallel.dp * parallel.microbatches * parallel.microbatch_size
    own = parallel.microbatch_size * config.sequence
    if parallel.loss == "sum":
        return (
            f"loss: sum over {batch} x {config.sequence} tokens; every microbatch of every replica "
            "contributes its sum"
        )
    contributes = {
        "token-mean": f"contributes its sum times 1/{batch * config.sequence}",
        "mean": f"has the mean over its {own} tokens, and the mean of those is taken",
    }
    return (
        f"loss: mean over {batch} x {config.sequence} tokens; every microbatch of every replica "
        f"{contributes[parallel.loss]}"
    )


def batch_notes(parallel: Parallel) -> tuple[str, ...]:
    """How expert-parallel replicas share the batch.

    Example: of ep 2, "batch: the 2 replicas of an expert-parallel group read neighbouring
    sequences, as one microbatch of the group"; without ``ep``, none.
    """
    if parallel.ep == 1:
        return ()
    return (
        f"batch: the {parallel.ep} replicas of an expert-parallel group read neighbouring "
        "sequences, as one microbatch of the group",
    )


def single_program(
    model: type[Model[C]], config: C, parallel: Parallel, inference: Inference
) -> Program:
    """The program of the model on one device.

    Example: of a GPT, a body "forward" with all layers, called once, and its backward.
    """
    program = ProgramBuilder("single", inference=inference)
    written = model(config, single_layout(config, parallel), program)
    ((forward, backward),) = written.write([Stage(0, config.layers)])
    program.schedule(forward, backward, 1)
    return program.build()


def stage_layers(layers: int, stages: int) -> list[tuple[int, int]]:
    """[first, last) of every stage: even, the first ones one more where it does not divide.

    Example: 32 layers on three stages are (0, 11), (11, 22), (22, 32).
    """
    each, more = divmod(layers, stages)
    bounds = [each * s + min(s, more) for s in range(stages + 1)]
    return list(itertools.pairwise(bounds))


def stages_of(config: ModelConfig, parallel: Parallel, number: int, size: int) -> list[Stage]:
    """The parts of the model on pipeline rank ``number`` of ``size`` ranks each: with virtual
    stages every ``pp``-th of them.

    Example: of Llama-3 8B on two stages, rank 1 has layers 16 to 31; with two virtual stages each,
    rank 0 has layers 0 to 7 and 16 to 23.
    """
    layers = stage_layers(config.layers, parallel.chunks)
    last = parallel.chunks - 1
    return [
        Stage(
            *layers[chunk],
            None if chunk == 0 else (chunk - 1) % parallel.pp * size,
            None if chunk == last else (chunk + 1) % parallel.pp * size,
            apart=parallel.virtual_stages > 1,
        )
        for chunk in range(number, parallel.chunks, parallel.pp)
    ]


def stage_program(
    model: type[Model[C]], config: C, parallel: Parallel, number: int, inference: Inference
) -> Program:
    """The program of pipeline stage ``number``.

    Example: "stage 1" of two with tp 2 has the base rank 2, and warms up with no microbatch.
    """
    layout = rank_layout(config, parallel)
    size = layout.ranks
    program = ProgramBuilder(f"stage {number}", number * size, layout.axes(), inference)
    written = model(config, layout, program)
    stages = stages_of(config, parallel, number, size)
    bodies = written.write(stages)
    if len(stages) == 1:
        ((forward, backward),) = bodies
        program.schedule(forward, backward, parallel.microbatches, parallel.pp - 1 - number)
    else:
        parts = [
            interleaved.part_of(program, both, v, stage.before, stage.after)
            for v, (both, stage) in enumerate(zip(bodies, stages, strict=True))
        ]
        interleaved.schedule(program, parts, number, parallel.pp, parallel.microbatches)
    written.reduce([0, (parallel.pp - 1) * size] if parallel.pp > 1 else [])
    return program.build()


def build(model: type[Model[C]], config: C, parallel: Parallel) -> Plan:
    """Both sides of the plan of a configuration that `Parallel.check` accepts.

    Example: "llama3-8b dp1 tp2 pp1 mb1", with one program "stage 0" along ``tp`` and the notes of
    its loss and its rotary table.
    """
    inference = Inference()
    programs = tuple(
        stage_program(model, config, parallel, number, inference) for number in range(parallel.pp)
    )
    return Plan(
        f"{config.name} {parallel}",
        single_program(model, config, parallel, inference),
        programs,
        parallel.microbatches,
        rank_layout(config, parallel).replica_axes[:1],
        "mean" if parallel.loss == "mean" else "sum",
        (loss_note(config, parallel), *batch_notes(parallel), *model.notes(config, parallel)),
    )
