"""Both sides of a recorded job, lowered: the single device's step, and the families of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.aten.patterns import divided
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.torch import labels, masked_sums, messages
from shardproof.frontends.torch.alike_rows import rows_alike
from shardproof.frontends.torch.cut import Cuts, cuts
from shardproof.frontends.torch.families import Families, families
from shardproof.frontends.torch.functional import functional
from shardproof.frontends.torch.lower import Side, lower
from shardproof.frontends.torch.memory import Functional
from shardproof.frontends.torch.trace import Trace
from shardproof.frontends.torch.twins import Once
from shardproof.frontends.torch.unwritten import reaches


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides, lowered: what `plan` makes a plan of; for example one device, and two ranks of
    one family.

    ``ranks``, ``steps``: of the ranks that were captured, in order; ``families``: of all ranks of
    the world.
    """

    single: Side
    single_step: Functional
    ranks: tuple[Side, ...]
    steps: tuple[Functional, ...]
    families: Families


#: Steps that were lowered already, by rank; the single side's is `ALONE`.
Known = dict[int, tuple[Functional, Side]]
ALONE = -1


def sides(
    single: Trace,
    parallel: Sequence[Trace],
    known: Known | None = None,
    *,
    together: bool = True,
) -> Sides:
    """Lower the traces of both sides, every rank in isolation, and find the families of ranks that
    run one program (without ``together``, every rank is one by itself); raises `InvalidInput`.

    Example: a single side with a world size of 2 is refused.

    ``known`` has what was lowered before of the same traces, and gets what is lowered now.
    """
    if single.world_size != 1:
        raise InvalidInput(f"the single side has a world size of {single.world_size}, expected 1")
    known = {} if known is None else known
    made = _sides(single, parallel, known, together, reads_memory=True)
    if not _reads_memory(made.families):
        return made
    known.clear()
    return _sides(single, parallel, known, together, reads_memory=False)


def _reads_memory(families: Families) -> bool:
    """Whether a compared value depends on memory that nothing has written."""
    compared = [{c.result.value for c in family.results} for family in families.families]
    return reaches([family.program for family in families.families], compared)


def _sides(
    single: Trace, parallel: Sequence[Trace], known: Known, together: bool, *, reads_memory: bool
) -> Sides:
    """See `sides`; ``reads_memory``: as in `lower`, of ranks."""
    inference, cut = Inference(), cuts(parallel)
    if ALONE not in known:
        known[ALONE] = _alone(single, inference, cut)
    step, alone = known[ALONE]
    moved = frozenset(alone.derived)
    own = _ranks(parallel, known, inference, alone.contents, reads_memory, moved)
    tables, numbers = alone.contents, (ALONE, *own)
    # Where a side picks entries itself, losses of both are read in that way.
    reading = max(side.picks for _, side in known.values())
    sliced = divided(alone.windows.seen, (o for n in own for o in known[n][1].windows.seen))
    alike = rows_alike({rank: known[rank][0] for rank in own})
    once = Once(
        lambda step: lower(
            step,
            inference,
            tables,
            reading,
            cuts=cut,
            reads_memory=reads_memory,
            alike=alike,
            moved=moved,
            sliced=sliced,
        )
    )

    def again(number: int, other: Functional, _: Side) -> Side:
        if number == ALONE:
            return lower(other, inference, None, reading, cuts=cut, sliced=sliced)
        return once(other)

    for number in numbers:
        other, side = known[number]
        if side.reading is not reading or side.windows.sliced != sliced:
            known[number] = other, again(number, other, side)
    known |= labels.marked({number: known[number] for number in numbers}, ALONE, again) or {}
    step, alone = known[ALONE]
    own = {rank: known[rank] for rank in own}
    families = _families(parallel, own, together)
    ranks = tuple(side for _, side in own.values())
    return Sides(alone, step, ranks, tuple(s for s, _ in own.values()), families)


def uncaptured(single: Trace | None, parallel: Sequence[Trace], known: Known) -> Sequence[int]:
    """Ranks that have to be captured beside ``parallel``; none, where that cannot be told.  Without
    the single side, every table of constants is taken for one that it has too.

    Example: with rank 0 of two as ``parallel`` it is (1,).
    """
    try:
        if single is not None:
            return sides(single, parallel, known).families.missing
        own = _ranks(parallel, known, Inference(), None, reads_memory=True)
        return _families(parallel, own, together=True).missing
    except InvalidInput:
        return ()


def _ranks(
    parallel: Sequence[Trace],
    known: Known,
    inference: Inference,
    tables: Mapping[str, Any] | None,
    reads_memory: bool,
    moved: frozenset[str] = frozenset(),
) -> Known:
    """The lowered steps of ranks, in order."""
    numbers = [t.rank for t in parallel]
    worlds = {t.world_size for t in parallel}
    if len(worlds) != 1 or len(set(numbers)) < len(numbers):
        raise InvalidInput(f"traces of ranks {numbers} of worlds of {sorted(worlds)} ranks")
    cut = cuts(parallel)
    steps = messages.read(parallel, {rank: step for rank, (step, _) in known.items()})
    steps = masked_sums.read(steps)
    alike = rows_alike(steps)
    once = Once(
        lambda step: lower(
            step,
            inference,
            tables,
            cuts=cut,
            reads_memory=reads_memory,
            alike=alike,
            moved=moved,
        )
    )
    for rank, step in steps.items():
        if rank not in known or known[rank][0] is not step:
            known[rank] = step, once(step)
    return {rank: known[rank] for rank in sorted(numbers)}


def _families(parallel: Sequence[Trace], own: Known, together: bool) -> Families:
    names = {group: name for trace in parallel for name, group in trace.groups}
    steps = {rank: side for rank, (_, side) in own.items()}
    return families(steps, parallel[0].world_size, names, together=together)


def _alone(trace: Trace, inference: Inference, cut: Cuts) -> tuple[Functional, Side]:
    try:
        step = functional(trace)
    except InvalidInput as error:
        raise error.within("single side") from error
    return step, lower(step, inference, cuts=cut)
