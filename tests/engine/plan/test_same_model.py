"""Two sides of one model, or an error that names the tensor and how it differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Body, Plan, Program, Shard, Value
from shardproof.engine.plan.same_model import check
from shardproof.partition.stages.partition import partition
from tests.shardproof.faces import tiny


def refusal(plan: Plan) -> str:
    with pytest.raises(InvalidInput) as caught:
        check(plan)
    return str(caught.value)


def with_shards(program: Program, change: Callable[[Shard], Shard | None]) -> Program:
    """Only names and sizes are looked at: a shard may go without its readers."""
    return replace(program, shards=tuple(s for s in map(change, program.shards) if s is not None))


def with_batch(program: Program, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Program:
    """The program with other shapes of what it loads."""

    def changed(body: Body) -> Body:
        loaded = {v for op in body.ops if op.name == "load_batch" for v in op.outputs}
        values = [
            replace(x, shape=change(x.shape)) if v in loaded else x
            for v, x in enumerate(body.values)
        ]
        return replace(body, values=tuple(values))

    return replace(program, bodies=tuple(map(changed, program.bodies)))


@pytest.mark.parametrize("pp", [1, 2])
def test_a_pair_of_one_model_passes(pp: int) -> None:
    check(tiny(pp=pp, layers=2))


def test_a_side_that_is_its_own_twin_passes() -> None:
    plan = tiny(dp=1, tp=1, microbatches=1)
    check(replace(plan, programs=(replace(plan.single, axes=(("dp", 1, 1),)),)))


def test_a_parameter_of_another_size() -> None:
    plan = replace(tiny(ffn=8), single=tiny().single)
    assert refusal(plan) == (
        "rank 0: parameter layers.0.feed_forward.w1.weight has full shape [8, 8], "
        "expected [6, 8] as in the single-device plan (2 more differ)"
    )


def test_a_buffer_of_another_size() -> None:
    plan = tiny()

    def wider(shard: Shard) -> Shard:
        return shard if shard.trainable else replace(shard, full_shape=(8, 2, 2))

    assert refusal(replace(plan, programs=(with_shards(plan.programs[0], wider),))) == (
        "rank 0: buffer freqs_cis has full shape [8, 2, 2], "
        "expected [4, 2, 2] as in the single-device plan"
    )


def test_a_parallel_plan_with_more_layers() -> None:
    plan = replace(tiny(layers=2), single=tiny().single)
    assert refusal(plan) == (
        "rank 0: parameter layers.1.attention_norm.weight of full shape [8] is not in the "
        "single-device plan (8 more differ)"
    )


def test_a_parallel_plan_with_fewer_layers() -> None:
    plan = replace(tiny(layers=2), programs=tiny().programs)
    assert refusal(plan) == (
        "parameter layers.1.attention_norm.weight of full shape [8] in the single-device plan is "
        "on no rank of the parallel one (8 more differ)"
    )


def test_a_single_parameter_that_no_rank_holds() -> None:
    plan = tiny()

    def without(shard: Shard) -> Shard | None:
        return None if shard.name == "norm.weight" else shard

    assert refusal(replace(plan, programs=(with_shards(plan.programs[0], without),))) == (
        "parameter norm.weight of full shape [8] in the single-device plan is on no rank of the "
        "parallel one"
    )


def test_a_batch_of_another_size() -> None:
    plan = tiny()
    single = with_batch(plan.single, lambda shape: (8, *shape[1:]))
    assert refusal(replace(plan, single=single)) == (
        "rank 0: batch tensor 0 (tokens) has shape [1, 4], expected [2, 4]: 1/4 of [8, 4] in the "
        "single-device plan, for 2 replicas with 2 microbatches each"
    )


def test_a_replica_axis_that_there_is_not() -> None:
    assert refusal(replace(tiny(), replica_axes=("dpp",))).endswith(
        "; the replica axis dpp is no axis of stage 0 (did you mean dp?)"
    )


def test_a_batch_that_does_not_divide() -> None:
    plan = tiny()
    single = with_batch(plan.single, lambda shape: (6, *shape[1:]))
    assert refusal(replace(plan, single=single)) == (
        "rank 0: batch tensor 0 (tokens) has shape [1, 4], expected 1/4 of [6, 4] in the "
        "single-device plan, for 2 replicas with 2 microbatches each"
    )


def test_replicas_that_all_read_the_whole_batch() -> None:
    plan = tiny()
    assert refusal(
        replace(plan, programs=(with_batch(plan.programs[0], lambda shape: (4, 4)),))
    ) == (
        "rank 0: batch tensor 0 (tokens) has shape [4, 4], expected [1, 4]: 1/4 of [4, 4] in the "
        "single-device plan, for 2 replicas with 2 microbatches each"
    )


def test_a_batch_cut_in_two_dimensions() -> None:
    plan = tiny()
    assert refusal(
        replace(plan, programs=(with_batch(plan.programs[0], lambda shape: (1, 1)),))
    ) == (
        "rank 0: batch tensor 0 (tokens) has shape [1, 1], expected [1, 4]: 1/4 of [4, 4] in the "
        "single-device plan, for 2 replicas with 2 microbatches each"
    )


def test_an_undivided_batch_must_be_the_same() -> None:
    plan = tiny(dp=1, microbatches=1)
    single = with_batch(plan.single, lambda shape: (2, *shape[1:]))
    assert refusal(replace(plan, single=single)) == (
        "rank 0: batch tensor 0 (tokens) has shape [1, 4], expected [2, 4] as in the "
        "single-device plan"
    )


def test_a_batch_with_more_tensors() -> None:
    plan = tiny()

    def richer(body: Body) -> Body:
        ops = [
            replace(op, outputs=(*op.outputs, len(body.values))) if op.name == "load_batch" else op
            for op in body.ops
        ]
        return replace(body, ops=tuple(ops), values=(*body.values, Value((1, 4))))

    program = plan.programs[0]
    changed = replace(program, bodies=tuple(map(richer, program.bodies)))
    assert refusal(replace(plan, programs=(changed,))) == (
        "rank 0: a microbatch has 3 tensors, the single-device batch has 2"
    )


# -- a single-device side that computes nothing ----------------------------------------------------


def without_an_operator(plan: Plan) -> Plan:
    """What reads its result finds nothing."""
    (forward, *rest) = plan.single.bodies
    bodies = (replace(forward, ops=(*forward.ops[:3], *forward.ops[4:])), *rest)
    return replace(plan, single=replace(plan.single, bodies=bodies))


def shaped_otherwise(plan: Plan) -> Plan:
    """The single-device side records another shape than its last operator gives."""
    (forward, *rest) = plan.single.bodies
    (loss,) = forward.losses
    values = list(forward.values)
    values[loss] = replace(values[loss], shape=(2,))
    bodies = (replace(forward, values=tuple(values)), *rest)
    return replace(plan, single=replace(plan.single, bodies=bodies))


@pytest.mark.parametrize("change", [without_an_operator, shaped_otherwise])
def test_a_single_device_side_that_contradicts_itself_is_no_reference(
    change: Callable[[Plan], Plan],
) -> None:
    plan = tiny()
    assert not partition(plan).faults
    with pytest.raises(InvalidInput, match=r"^the single-device plan contradicts itself: "):
        partition(change(plan))


def test_a_parallel_side_that_does_is_refuted() -> None:
    plan = tiny()
    changed = shaped_otherwise(replace(plan, single=plan.programs[0]))
    assert partition(replace(plan, programs=(changed.single,))).faults
