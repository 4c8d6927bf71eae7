"""The interleaved pipeline: every stage holds several parts of the model (virtual stages).

Part ``v`` of stage ``p`` of ``pp`` is part ``v * pp + p`` of the model; what it computes goes to
the next stage, from the last stage on to the first one's next part.  The order is Megatron's:
microbatches go through in rounds of ``pp``, a stage warms up with as many forward passes as others
have to follow, then runs one forward and one backward in turn.

Messages between two ranks meet in the order in which both issue them.  With two stages, activations
and gradients of different parts share a channel, so a stage receives by calls of their own, in the
order in which its neighbour sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder


class Work(NamedTuple):
    """One pass of one part of the model (counted over the whole model) over one microbatch.

    Example: ``Work(True, 2, 0)``, forward through part 2 of the first microbatch.
    """

    forward: bool
    part: int
    microbatch: int


class Message(NamedTuple):
    """What one pass sends: to which stage, and which pass there reads it.

    Example: ``Message(0, Work(True, 2, 0))``: stage 0 gets what its second part reads.
    """

    to: int
    reader: Work


def order(stage: int, stages: int, parts: int, microbatches: int) -> list[Work]:
    """What a stage of ``stages`` with ``parts`` each does, in order; ``stages`` divides
    ``microbatches``.

    Example: the first of two stages with two parts each and two microbatches runs forward through
    part 0 of both, through part 2 of both, and backward in the order of 2, 2, 0, 0.
    """
    total = microbatches * parts

    def work(forward: bool, number: int) -> Work:
        rounds, place = divmod(number, stages * parts)
        v, within = divmod(place, stages)
        own = v if forward else parts - 1 - v
        return Work(forward, own * stages + stage, rounds * stages + within)

    warmup = min(total, (stages - stage - 1) * 2 + (parts - 1) * stages)
    done = [work(True, number) for number in range(warmup)]
    for number in range(total):
        if number + warmup < total:
            done.append(work(True, number + warmup))
        done.append(work(False, number))
    return done


def message(work: Work, stages: int, parts: int) -> Message | None:
    """What a pass sends on, if anything.

    Example: of two stages with two parts each, forward through part 1 is sent to stage 0, whose
    part 2 reads it; part 3 sends nothing.
    """
    there = work.part + (1 if work.forward else -1)
    if not 0 <= there < stages * parts:
        return None
    return Message(there % stages, work._replace(part=there))


@dataclass(slots=True)
class Part:
    """The bodies of one part of the model, and what fills the inputs of each: calls of a body that
    receives, or (None) nothing, or the gradient of the loss.

    Example: part 0 receives no activations, and part 3 of four gets the gradient of the loss.
    """

    forward: BodyBuilder
    backward: BodyBuilder
    receive: BodyBuilder | None
    receive_gradient: BodyBuilder | None
    losses: dict[int, int] = field(default_factory=dict)


def part_of(
    program: ProgramBuilder,
    bodies: tuple[BodyBuilder, BodyBuilder],
    number: int,
    before: int | None,
    after: int | None,
) -> Part:
    """A part whose neighbours are the ranks ``before`` and ``after`` (None: there is none).

    Example: the second part on the first of two stages, number 1, comes after the other stage and
    before it: ``before`` and ``after`` are that one's rank.
    """
    forward, backward = bodies
    receive = receive_gradient = None
    if before is not None:
        receive = receiver(program, forward, before, f"receive {number}")
        for value in backward.outputs:
            backward.append("send", [value], [], {"peer": before})
    if after is not None:
        receive_gradient = receiver(program, backward, after, f"receive gradient {number}")
    return Part(forward, backward, receive, receive_gradient)


def receiver(program: ProgramBuilder, into: BodyBuilder, peer: int, name: str) -> BodyBuilder:
    """A body that receives the inputs of another from a rank.

    Example: "receive 1" on the first of two stages, whose one result is what the other one computed
    in part 1 of the model.
    """
    body = program.body(name)
    for value in into.inputs:
        sent = into.values[value]
        body.output(body.recv(sent.shape, peer, name=sent.name, gradient=False))
    return body


def schedule(
    program: ProgramBuilder, parts: Sequence[Part], stage: int, stages: int, microbatches: int
) -> None:
    """Issue all calls of a stage in the order of the interleaved pipeline.

    Example: two stages with two parts each: a stage receives by calls of their own, in the order in
    which its neighbour sends, just before it needs the first of them.
    """
    waiting = {
        other: [
            sent.reader
            for work in order(other, stages, len(parts), microbatches)
            if (sent := message(work, stages, len(parts))) is not None and sent.to == stage
        ][::-1]
        for other in {(stage - 1) % stages, (stage + 1) % stages}
    }
    arrived: dict[Work, tuple[int, ...]] = {}
    for work in order(stage, stages, len(parts), microbatches):
        part = parts[work.part // stages]
        body = part.forward if work.forward else part.backward
        receive = part.receive if work.forward else part.receive_gradient
        inputs: tuple[int, ...] = ()
        if receive is not None:
            source = (stage - 1 if work.forward else stage + 1) % stages
            while work not in arrived:
                issue_receive(program, parts, waiting[source].pop(), stages, arrived)
            inputs = arrived.pop(work)
        elif not work.forward:
            inputs = (program.seed(part.losses[work.microbatch]),)
        outputs = tuple(program.slot() for _ in body.outputs)
        if work.forward and body.losses:
            (part.losses[work.microbatch],) = outputs
        loads = any(op.name == "load_batch" for op in body.ops)
        program.call(body, inputs, outputs, work.microbatch if loads else -1)


def issue_receive(
    program: ProgramBuilder,
    parts: Sequence[Part],
    work: Work,
    stages: int,
    arrived: dict[Work, tuple[int, ...]],
) -> None:
    """Issue the call that receives what ``work`` will read.

    Example: for backward through part 2, a call of that part's ``receive_gradient``, whose slot
    ``arrived`` keeps until the pass runs.
    """
    part = parts[work.part // stages]
    body = part.receive if work.forward else part.receive_gradient
    assert body is not None
    arrived[work] = tuple(program.slot() for _ in body.outputs)
    program.call(body, (), arrived[work])
