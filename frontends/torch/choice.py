"""Which ranks are captured: those that stand for all, as far as captured ones tell.

Up to `ALL` ranks all of them.  Beyond that, the process groups of what was captured say along which
axes the world lies, and its comparisons which ranks it treats apart; whoever is missing then is
captured, until nothing new is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.mesh import Mesh, mesh_of, samples
from shardproof.frontends.torch.trace import Items, Ranks, Trace

#: Worlds of which every rank is captured.
ALL = 16
#: Ranks that a program tells from the others, of which every one is captured.
FEW = 4

Chosen = str | Sequence[int]
Capture = Callable[[Sequence[int]], list[Trace]]


def captured(
    chosen: Chosen,
    world: int,
    capture: Capture,
    missing: Callable[[Sequence[Trace]], Sequence[int]],
) -> list[Trace]:
    """The traces of the ranks that are chosen: "auto", "all", or these.

    Example: "auto" captures all of 16 ranks; of 64 the first and the last, then those that stand
    for all, and those that ``missing`` names; [0, 64] of a world of 64 is refused.

    ``missing``: which ranks have to be captured beside some that were, by what their steps are;
    only "auto" asks.  Raises `InvalidInput` for ranks that there are not.
    """
    if chosen == "all" or (chosen == "auto" and world <= ALL):
        return capture(range(world))
    if isinstance(chosen, str):
        if chosen != "auto":
            raise InvalidInput(f"ranks {chosen!r}, expected auto, all or numbers")
        return _growing(world, capture, missing)
    numbers = sorted(set(chosen))
    wrong = [n for n in numbers if isinstance(n, bool) or not 0 <= n < world]
    if wrong or not numbers:
        raise InvalidInput(f"ranks {list(chosen)[:8]} of a world of {world}")
    return capture(numbers)


def _growing(
    world: int, capture: Capture, missing: Callable[[Sequence[Trace]], Sequence[int]]
) -> list[Trace]:
    recorded: dict[int, Trace] = {}
    wanted: Sequence[int] = (0, world - 1)
    while wanted:
        recorded.update({trace.rank: trace for trace in capture(wanted)})
        traces = list(recorded.values())
        wanted = sorted({*standing(traces, world), *compared(traces)}.difference(recorded))
        if not wanted:
            wanted = sorted(set(missing(traces)).difference(recorded))
    return [recorded[rank] for rank in sorted(recorded)]


def standing(traces: Sequence[Trace], world: int) -> Iterator[int]:
    """Ranks that stand for all along the axes of the mesh; all, if there is none.

    Example: of 64 ranks with groups (0, 1) and (0, 8, 16, ..., 56): 0, 8, 32 and 56 along the axis
    of stride 8, corners of the mesh such as 63, and 37 inside of it.
    """
    mesh = mesh_in(traces, world)
    yield from range(world) if mesh is None else samples(mesh)


def mesh_in(traces: Sequence[Trace], world: int) -> Mesh | None:
    """The mesh along whose axes the process groups of collectives lie.

    Example: two ranks whose all-reduces are over (0, 1): the axis ``every1`` of extent 2.
    """
    return mesh_of({group for trace in traces for group in groups(trace)}, world, names(traces))


def names(traces: Sequence[Trace]) -> Mapping[tuple[int, ...], str]:
    """What process groups are called.

    Example: where rank 5 communicates along ``tp`` of ``init_device_mesh("cpu", (2, 4),
    mesh_dim_names=("dp", "tp"))``, (4, 5, 6, 7) is called "tp".
    """
    return {group: name for trace in traces for name, group in trace.groups}


def groups(trace: Trace) -> Iterator[tuple[int, ...]]:
    """The process groups of a trace; a message is between two ranks, not among its group.

    Example: an all-reduce over ``Ranks((0, 1))`` gives (0, 1), a ``c10d.send`` gives none.
    """
    for event in trace.events:
        if event.name.startswith(("c10d.send", "c10d.recv")):
            continue
        for arg in (*event.args, *event.kwargs.values()):
            if isinstance(arg, Ranks):
                yield arg.ranks
            elif isinstance(arg, Items):
                yield from (x.ranks for x in arg.items if isinstance(x, Ranks))


def compared(traces: Sequence[Trace]) -> Iterator[int]:
    """Ranks that programs treat apart: of few all, of many the first and the last.

    Example: ``splits`` ((0,), (4, 5, 6, 7, 8)) give 0, 4, 8.
    """
    for trace in traces:
        for ranks in trace.splits:
            yield from ranks if len(ranks) <= FEW else (ranks[0], ranks[-1])
