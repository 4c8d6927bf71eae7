"""How a rank's collectives over flat buffers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

#: The ranks of a process group, in its order.
Group: TypeAlias = tuple[int, ...]
#: The pieces of a flat message in their order, by shape.
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
#: How messages to groups are divided, those of each group in the order in which they are sent.
Divided: TypeAlias = Mapping[Group, Sequence[Shapes]]


class Messages(Enum):
    """What a collective over a flat buffer of several tensors, such as DDP's buckets, is read as:
    one for each tensor, with its dimensions; the same, divided as all ranks can divide it; the
    first, and what is gathered in place as what each owner sends of it; one for each tensor, flat;
    or one of all, as it was issued.

    A rank is read by itself, so all but the last are guesses: what other ranks put into their
    buffers at these places may be divided otherwise (`shardproof.frontends.torch.messages`).

    Example: an all-gather of a buffer of which rank 0 has ``w`` and a part of ``b``, and rank 1 the
    rest, is three broadcasts in the way ``OWNERS``.
    """

    TENSORS = 0
    ALIKE = 1
    OWNERS = 2
    FLAT = 3
    WHOLE = 4

    @property
    def shaped(self) -> bool:
        """Whether tensors of a buffer keep their dimensions."""
        return self in (Messages.TENSORS, Messages.ALIKE, Messages.OWNERS)


class Reading(NamedTuple):
    """How a rank's step is read; ``parted``: groups whose all-to-alls are read as messages;
    ``agreed``: how ranks divide what they gather, where `Messages.ALIKE` says so.

    Example: ``Reading(Messages.FLAT)`` reads a bucket of three gradients as three flat messages.
    """

    messages: Messages = Messages.TENSORS
    parted: frozenset[Group] = frozenset()
    agreed: Divided = MappingProxyType({})


#: How a step is read that has no others beside it.
READING = Reading()
