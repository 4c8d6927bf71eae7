"""Python objects that ranks exchange (`all_gather_object`, `send_object_list`, ...) while each is
captured alone.

A rank that comes to an exchange before it is known what the others give leaves its own object and
ends; it is captured anew when theirs are there.  So a step runs once more for every exchange in it.
Objects go from one child that runs the user's code to another, as bytes that nobody else reads.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.refusals import refuse
from shardproof.frontends.torch.standins import replace
from shardproof.frontends.torch.unread import arrived
from shardproof.frontends.torch.watched import Watched

#: An exchange: the ranks of its group, and how many exchanges and collectives it had before; of a
#: message the ranks are who sends, who receives, and who sends.
Exchange: TypeAlias = tuple[tuple[int, ...], int]
#: What ranks gave to exchanges, by rank.
Given: TypeAlias = dict[Exchange, dict[int, bytes]]
#: The objects of one rank are at most so large.
MOST_BYTES = 64 << 20
#: What is printed where a step exchanges objects.
EXCHANGED = (
    "stand-in: Python objects that ranks exchange (all_gather_object, broadcast_object_list, ...) "
    "are what these ranks gave when they were captured"
)


class Waits(BaseException):
    """A rank has come to an exchange, and what others give is not known yet: its capture ends.

    Example: rank 1 in ``broadcast_object_list`` from rank 0, whose capture is not done.
    """


class Exchanges:
    """The exchanges of one rank's step; ``given``: what is known of all ranks, and gets what this
    one gives; ``captured``: ranks that give something at all.

    Example: where rank 1 gave 8 to the first exchange of ranks 0 and 1, rank 0 gathers its own
    object and 8.
    """

    def __init__(self, rank: int, captured: Collection[int], given: Given) -> None:
        self.rank = rank
        self.captured = captured
        self.given = given
        self.own: Given = {}
        #: Whether an exchange has ended the capture.
        self.waits = False
        #: How many collectives some ranks had together so far, and how many of these and of
        #: messages there were from one rank to another.
        self.collectives: Callable[[tuple[int, ...]], int] = lambda ranks: 0
        self.messages: Callable[[int, int], int] = lambda source, target: 0
        self._count: Counter[tuple[int, ...]] = Counter()

    def exchanged(
        self, group: Any, givers: Sequence[int] | None, x: Any, takes: bool
    ) -> list[bytes]:
        """What the ``givers`` (None: all members) give, in order, as bytes; nothing where this rank
        takes nothing.  What a rank gave when it was captured first it gives again, whatever it has
        now: a time, or a random number, is the same for all ranks.  Raises `Waits`, and
        `InvalidInput` for ranks that nobody captures."""
        within: Any = group or dist.group.WORLD
        ranks = tuple(dist.get_process_group_ranks(within))
        exchange = ranks, self._count[ranks] + self.collectives(ranks)
        return self._given(exchange, within, ranks if givers is None else tuple(givers), x, takes)

    def message(self, group: Any, source: int, target: int, x: Any) -> bytes | None:
        """What one rank sends to another, as bytes; None on the one that sends. Raises as
        `exchanged`. It stands among the messages between them, and the collectives and exchanges
        that both take part in."""
        ends, ranks = {source, target}, (source, target, source)
        earlier = sum(n for of, n in self._count.items() if of == ranks or _has(of, ends))
        exchange = ranks, earlier + self.messages(source, target)
        takes = self.rank == target
        given = self._given(exchange, group or dist.group.WORLD, (source,), x, takes)
        return given[0] if takes else None

    def _given(
        self, exchange: Exchange, group: Any, givers: tuple[int, ...], x: Any, takes: bool
    ) -> list[bytes]:
        ranks, number = exchange
        self._count[ranks] += 1
        known = self.given.setdefault(exchange, {})
        own = msgspec.msgpack.encode((str(group.group_name), givers))
        self.own[ranks, _who(number)] = {self.rank: own}
        if self.rank in givers:
            self.own[exchange] = {self.rank: known.setdefault(self.rank, packed(x))}
        if not takes:
            return []
        if outside := sorted(set(givers).difference(self.captured)):
            refuse(
                f"Python objects of ranks {outside[:8]}, which are not captured together with this "
                "one: capture all ranks in one process (ranks='all')"
            )
        if any(giver not in known for giver in givers):
            self.waits = True
            raise Waits
        for giver in givers:
            arrived(known[giver])
        return [known[giver] for giver in givers]


def _has(ranks: tuple[int, ...], ends: set[int]) -> bool:
    """Whether ranks are those of a group that has both ends of a message."""
    return len(set(ranks)) == len(ranks) and ends.issubset(ranks)


class _Pickler(pickle.Pickler):
    def reducer_override(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            refuse("a tensor in a Python object that ranks exchange: communicate it as a tensor")
        return (int, (int(x),)) if isinstance(x, Watched) else NotImplemented


def packed(x: Any) -> bytes:
    """A Python object as bytes; raises `InvalidInput` for tensors in it.

    Example: of ``{"rank": 1}``, with the number of the rank, what ``pickle.loads`` makes that of.
    """
    buffer = io.BytesIO()
    _Pickler(buffer).dump(x)
    return buffer.getvalue()


def write(given: Given, path: Path) -> None:
    """Leave what a rank gave for the process that captures all.

    Example: ``write(exchanges.own, folder / "0.objects")``.
    """
    rows = [(*exchange, rank, x) for exchange, of in given.items() for rank, x in of.items()]
    path.write_bytes(msgspec.msgpack.encode(rows))


def read(path: Path, given: Given) -> None:
    """Add what a rank left; raises `InvalidInput` for more than `MOST_BYTES`.

    Example: after ``read(folder / "0.objects", given)`` rank 1 finds there what rank 0 gave.
    """
    if path.stat().st_size > MOST_BYTES:
        raise InvalidInput(f"Python objects of more than {MOST_BYTES} bytes that ranks exchange")
    rows = msgspec.msgpack.decode(
        path.read_bytes(), type=list[tuple[tuple[int, ...], int, int, bytes]]
    )
    for ranks, number, rank, x in rows:
        given.setdefault((ranks, number), {})[rank] = x


def _who(number: int) -> int:
    """Under which number it stands what an exchange's group is called, and who gives something, as
    each rank has it."""
    return -1 - number


def agreed(given: Given) -> None:
    """Raise `InvalidInput` where ranks do not agree about an exchange's group, or who gives
    something to it.

    Example: two ranks that are the root of one broadcast, each for itself, wait for each other.
    """
    decode = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...]]).decode
    for (ranks, number), of in given.items():
        if number < 0 and len(set(of.values())) > 1:
            known = {rank: decode(x) for rank, x in sorted(of.items())}
            groups = {rank: called for rank, (called, _) in known.items()}
            roots = {rank: givers for rank, (_, givers) in known.items()}
            unlike = len(set(groups.values())) > 1
            raise InvalidInput(
                f"ranks {list(ranks)} exchange Python objects, and have unlike "
                + (f"groups: {groups}" if unlike else f"ranks that give them: {roots}")
            )


def install(
    note: Callable[[str], None],
    exchanges: Exchanges,
    collectives: Callable[[tuple[int, ...]], int],
    messages: Callable[[int, int], int],
) -> None:
    """Put exchanges of objects in the place of torch's, in this process, for good; ``note`` is told
    of what stands for them.  ``collectives``, ``messages``: how many some ranks had together so
    far, and one sent to another; ranks whose exchanges do not stand at one place among these wait
    for each other for ever.

    Example: ``dist.all_gather_object(objects, rank)`` on two ranks puts 0 and 1 into ``objects``.
    """
    exchanges.collectives, exchanges.messages = collectives, messages

    def gathered(objects: list[Any], own: Any, group: Any = None) -> None:
        if _member(note, group):
            _put(exchanges.exchanged(group, None, own, True), objects)

    def gathered_on_one(
        own: Any,
        objects: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        if _member(note, group):
            takes = _rank_of(group, dst, group_dst) == exchanges.rank
            every = exchanges.exchanged(group, None, own, takes)
            if objects is not None:
                _put(every, objects)

    def broadcast(
        objects: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        if _member(note, group):
            root = _rank_of(group, src, group_src)
            (given,) = exchanges.exchanged(group, [root], list(objects), True)
            _receive(given, objects, root == exchanges.rank)

    def scattered(
        into: list[Any],
        objects: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        if _member(note, group):
            root = _rank_of(group, src, group_src)
            (every,) = exchanges.exchanged(group, [root], objects, True)
            place = dist.get_process_group_ranks(group or dist.group.WORLD).index(exchanges.rank)
            into[0] = pickle.loads(every)[place]

    made: Mapping[str, Callable[..., Any]] = {
        "all_gather_object": gathered,
        "gather_object": gathered_on_one,
        "broadcast_object_list": broadcast,
        "scatter_object_list": scattered,
        **_sending(note, exchanges),
    }
    for name, by in made.items():
        replace(dist, name, by)
        replace(distributed_c10d, name, by)


def _sending(note: Callable[[str], None], exchanges: Exchanges) -> Mapping[str, Callable[..., Any]]:
    """What sends objects from one rank to another, and receives them."""

    def sent(
        objects: list[Any],
        dst: int | None = None,
        group: Any = None,
        device: Any = None,
        group_dst: int | None = None,
        use_batch: bool = False,
    ) -> None:
        if _member(note, group):
            target = _other(group, dst, group_dst, "destination")
            exchanges.message(group, exchanges.rank, target, list(objects))

    def received(
        objects: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        use_batch: bool = False,
    ) -> int:
        if not _member(note, group):
            return -1
        source = _other(group, src, group_src, "source")
        given = exchanges.message(group, source, exchanges.rank, None)
        if given is not None:
            _receive(given, objects, is_root=False)
        return source

    return {"send_object_list": sent, "recv_object_list": received}


def _other(group: Any, rank: int | None, place: int | None, what: str) -> int:
    """The other end of a message as a rank of the world; torch's own errors for none, or both."""
    within: Any = group or dist.group.WORLD
    own: int = distributed_c10d._canonicalize_group_rank(within, rank, place)
    distributed_c10d._check_not_self_rank(within, own, what)
    return int(dist.get_process_group_ranks(within)[own])


def _member(note: Callable[[str], None], group: Any) -> bool:
    note(EXCHANGED)
    return group is not dist.GroupMember.NON_GROUP_MEMBER


def _put(given: Sequence[bytes], objects: list[Any]) -> None:
    """Copies of what ranks gave in the first places of a list, as torch puts them there."""
    for place, x in enumerate(given):
        objects[place] = pickle.loads(x)


def _receive(given: bytes, objects: list[Any], is_root: bool) -> None:
    """Put copies of what the root gave into a list; the root keeps its own objects, if these are
    what it gave: what it writes into them later others do not see."""
    every = pickle.loads(given)
    if len(every) != len(objects):
        refuse(f"{len(every)} objects of another rank into a list of {len(objects)}")
    if not is_root or packed(list(objects)) != given:
        objects[:] = every


def _rank_of(group: Any, rank: int | None, place: int | None) -> int:
    """A root as a rank of the world: named so, or by its place in the group (rank 0 by default)."""
    if place is None:
        return 0 if rank is None else int(rank)
    return int(dist.get_process_group_ranks(group or dist.group.WORLD)[place])
