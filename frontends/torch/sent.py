"""Tensors that depend on no input and were sent to ranks that have the same already, by what the
recorder noted of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.trace import Trace

SENT = "stand-in: DTensor's broadcast of a tensor that depends on no input changes nothing: ranks "
_NOTE = re.compile(re.escape(SENT) + r"\[([\d, ]+)\] have the same")


def check(traces: Sequence[Trace]) -> None:
    """Raise `InvalidInput` where ranks that a tensor was sent to have another one.

    Example: ranks 0 and 1 distribute tables that differ by an offset of the rank.
    """
    notes = {trace.rank: {n for n in trace.notes if n.startswith(SENT)} for trace in traces}
    for rank, own in notes.items():
        for note in own:
            match = _NOTE.match(note)
            members = () if match is None else tuple(int(n) for n in match[1].split(","))
            for member in members:
                if note not in notes.get(member, {note}):
                    raise InvalidInput(
                        f"rank {rank} and rank {member} distribute tensors that depend on no input "
                        "(distribute_tensor) and are not alike: only the first rank's counts"
                    )
