"""How a rank's collectives over flat buffers are read."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

#: The ranks of a process group, in its order.
Group: TypeAlias = tuple[int, ...]


class Messages(Enum):
    """What a collective over a flat buffer of several tensors, such as DDP's buckets, is read as:
    one for each tensor, with its dimensions; the same, and what is gathered in place as what each
    owner sends of it; one for each tensor, flat; or one of all, as it was issued.

    A rank is read by itself, so all but the last are guesses: what other ranks put into their
    buffers at these places may be divided otherwise (`shardproof.frontends.torch.messages`).

    Example: an all-gather of a buffer of which rank 0 has ``w`` and a part of ``b``, and rank 1 the
    rest, is three broadcasts in the way ``OWNERS``.
    """

    TENSORS = 0
    OWNERS = 1
    FLAT = 2
    WHOLE = 3

    @property
    def shaped(self) -> bool:
        """Whether tensors of a buffer keep their dimensions."""
        return self in (Messages.TENSORS, Messages.OWNERS)
