"""Whether ranks, each read by itself, issue the same collectives.

A flat buffer of several tensors is reduced or gathered tensor by tensor
(`shardproof.frontends.torch.ways.Messages`).  That says more of each tensor than one collective
of the whole buffer would, and is the same as long as all ranks of the group divide their buffers
alike.  Where they do not (the last rank pads), all ranks are read another way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.divisions import agreed
from shardproof.frontends.torch.exchanges import parted
from shardproof.frontends.torch.functional import functional
from shardproof.frontends.torch.memory import Functional
from shardproof.frontends.torch.one_view import viewed_alike
from shardproof.frontends.torch.sent import check
from shardproof.frontends.torch.trace import Ranks, Trace
from shardproof.frontends.torch.ways import Messages, Reading

#: What a rank issues to a group: names and shapes of results, in order.
Issued = list[tuple[str, tuple[int, ...]]]


def read(traces: Sequence[Trace], known: Mapping[int, Functional]) -> dict[int, Functional]:
    """The steps of ranks, by rank, all read in the first way in which they issue the same; in the
    first one there is, where none is such.  ``known``: steps that were read before.

    Example: where rank 0 gathers a buffer of pieces of 6 and 2 numbers and rank 1 one of 2 and 6,
    both are read with one all-gather of 8.
    """
    check(traces)
    traces = viewed_alike(traces)
    groups = parted(traces)
    first: dict[int, Functional] = {}
    for messages in Messages:
        reading = Reading(messages, groups)
        if messages is Messages.ALIKE:
            divided = agreed({rank: step.divided for rank, step in first.items()})
            if not divided:
                continue
            reading = reading._replace(agreed=divided)
        steps: dict[int, Functional] = {}
        for trace in traces:
            step = known.get(trace.rank)
            if step is None or step.reading != reading or not _is(step.trace, trace):
                step = _step(trace, reading)
            steps[trace.rank] = step
        if alike(steps):
            return steps
        first = first or steps
    return first


def _is(trace: Trace, other: Trace) -> bool:
    return trace is other or trace == other


def _step(trace: Trace, reading: Reading) -> Functional:
    try:
        return functional(trace, reading)
    except InvalidInput as error:
        raise error.within(f"rank {trace.rank}") from error


def alike(steps: Mapping[int, Functional]) -> bool:
    """Whether all ranks of every group issue the same collectives to it, in the same order.

    Example: ranks 0 and 1 that both issue an all-reduce [4, 8] to (0, 1) are; if one issues [32],
    they are not.
    """
    first: dict[tuple[int, ...], Issued] = {}
    for rank, step in steps.items():
        own: dict[tuple[int, ...], Issued] = {}
        for group, issued in _collectives(step):
            if rank in group:
                own.setdefault(group, []).append(issued)
        for group in own.keys() | {g for g in first if rank in g}:
            if first.setdefault(group, own.get(group, [])) != own.get(group, []):
                return False
    return True


def _collectives(step: Functional) -> Iterator[tuple[tuple[int, ...], tuple[str, tuple[int, ...]]]]:
    for op in step.ops:
        groups = [a.ranks for a in op.args if isinstance(a, Ranks)]
        if groups and op.name.startswith("comm.") and op.outputs:
            yield groups[0], (op.name, step.values[op.outputs[0]].shape)
