"""Where the claims of a plan are stated: in this process, or in slices on a Ray cluster.

Stating a claim takes the claim and the table of nodes, a megabyte or two for the largest plans. The
table goes to each node once, claims go out in slices, and texts come back; which template has which
number, and so the run, is the same wherever it was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from shardproof.cluster.settings import Settings
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim, Obligation
from shardproof.engine.storage.garbage import swept
from shardproof.partition.stages.lowering import lowered, settle
from shardproof.partition.stages.partition import Partition, Template
from shardproof.solvers import Query, outline

Texts = tuple[str, str]
"""The linear and the nonlinear rung."""

Statement = Texts | str
"""The texts of a claim, or why it cannot be stated."""

TRIED_SECONDS = 2.0
"""How long claims are stated here before the time that the others will take is told from it."""

WORTH_SECONDS = 8.0
"""The others go to the cluster if they would take longer than this: its tasks begin in seconds."""

SWEPT, SWEPT_BYTES = 16, 64 << 20
"""After so many claims what they were stated with is freed, if it takes so much memory: terms and
their tables refer to each other."""

SLICES_PER_WORKER = 8
"""More than one, since claims differ in size and the slowest slice is waited for."""

MEMORY_BYTES = 512 << 20
"""What a task reserves: the table of nodes, and the terms of a claim."""


def texts(
    result: Partition,
    settings: Settings,
    tell: Callable[[int, int], None] = lambda done, total: None,
    give: Callable[[Texts], None] = lambda texts: None,
    meanwhile: Callable[[], Iterable[tuple[int, Statement]]] = tuple,
) -> list[Texts]:
    """The texts of all templates, in their order; templates that cannot be stated are dropped from
    the partition.

    Example: a template of additions alone is a pair whose second text is empty; one that multiplies
    values has a nonlinear text too.

    ``tell`` is told how many of how many slices are done, where there are any; ``give`` is given
    texts as they are made here. ``meanwhile``: what somebody else has stated of the same claims
    since it was asked last, as `from_the_end` gives it. Raises `cluster.on_ray.pool.ClusterError`.
    """
    listed: list[Statement] = []
    written: dict[bytes, Texts] = {}
    start = time.perf_counter()
    templates = result.templates
    # Where values were guessed, all templates have their obligations already.
    goes_out = settings.own_cluster and not result.guessed
    others: dict[int, Statement] = {}
    with swept(SWEPT, SWEPT_BYTES) as sweep:
        for template in templates:
            for number, text in meanwhile():
                others[number] = text
                if not isinstance(text, str):
                    give(text)
            if len(listed) in others:
                listed += [others[n] for n in range(len(listed), len(templates))]
                break
            left = len(templates) - len(listed)
            if goes_out and _is_worth(time.perf_counter() - start, len(listed), left):
                listed += _spread(result, templates[len(listed) :], settings, tell)
                break
            text = _statement(result, template, written)
            listed.append(text)
            if not isinstance(text, str):
                give(text)
            sweep()
    settle(result, {n: why for n, why in enumerate(listed) if isinstance(why, str)})
    return [one for one in listed if not isinstance(one, str)]


def from_the_end(result: Partition) -> Iterator[tuple[int, Statement]]:
    """The claims of a partition stated one by one, the last one first, each with its number: for a
    process that states claims while `texts` does, until they meet.

    Example: of 208 claims the first one that is given is number 207.
    """
    written: dict[bytes, Texts] = {}
    with swept(SWEPT, SWEPT_BYTES) as sweep:
        for number in reversed(range(len(result.templates))):
            yield number, _statement(result, result.templates[number], written)
            sweep()


def _statement(result: Partition, template: Template, written: dict[bytes, Texts]) -> Statement:
    """One claim; ``written``: see `_lowered`."""
    one = template.obligation or lowered(result.nodes, template.claim, result.more, result.memo)
    return _lowered(one, written)


def _lowered(one: Obligation | str, written: dict[bytes, Texts]) -> Statement:
    """The texts of an obligation; ``written`` has those of others by their outline, since a third
    of the templates of a large plan have all of the texts."""
    if isinstance(one, str):
        return one
    structure = outline(one.goals)
    if structure not in written:
        query = Query.of("", one.goals)
        written[structure] = query.linear_text, query.nonlinear_text
    return written[structure]


def _is_worth(seconds: float, done: int, left: int) -> bool:
    """Whether to let the cluster state what is left, after so many claims in so many seconds."""
    return seconds >= TRIED_SECONDS and seconds * left >= WORTH_SECONDS * done


def _spread(
    result: Partition,
    templates: Sequence[Template],
    settings: Settings,
    tell: Callable[[int, int], None],
) -> list[Statement]:
    from shardproof.cluster.on_ray.tasks import spread

    claims = [template.claim for template in templates]

    def work(workers: int) -> list[Sequence[Claim]]:
        count = min(len(claims), SLICES_PER_WORKER * workers)
        # Claims that follow each other are alike: every slice gets some of each kind.
        return [claims[number::count] for number in range(count)]

    shared = (result.nodes, result.more)
    slices = spread(lower_slice, shared, work, settings, MEMORY_BYTES, tell)
    return [slices[number % len(slices)][number // len(slices)] for number in range(len(claims))]


def lower_slice(shared: tuple[NodeTable, int], claims: Sequence[Claim]) -> list[Statement]:
    """State some claims over a table of nodes, at so many positions beyond the fewest.

    Example: of 800 claims on 12 workers each of 96 tasks gets 8 or 9, every 96th of them.
    """
    nodes, more = shared
    written: dict[bytes, Texts] = {}
    return [_lowered(lowered(nodes, claim, more), written) for claim in claims]
