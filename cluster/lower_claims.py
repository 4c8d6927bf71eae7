"""Where the claims of a plan are stated: in this process, half of them in a fork of it if they are
many, or in slices on a Ray cluster.

Stating a claim takes the claim and the table of nodes, a megabyte or two for the largest plans. The
table goes to each node once, claims go out in slices, and texts come back; which template has which
number, and so the run, is the same wherever it was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import zip_longest

from shardproof.cluster.beside import Beside, can_fork
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

MANY = 128
"""From so many claims on every other one is stated in a fork, on another processor: fewer are
stated in a second."""

MEMORY_BYTES = 512 << 20
"""What a task reserves: the table of nodes, and the terms of a claim."""


def texts(
    result: Partition,
    settings: Settings,
    tell: Callable[[int, int], None] = lambda done, total: None,
    give: Callable[[Texts], None] = lambda texts: None,
) -> list[Texts]:
    """The texts of all templates, in their order; templates that cannot be stated are dropped from
    the partition.

    Example: a template of additions alone is a pair whose second text is empty; one that multiplies
    values has a nonlinear text too.

    ``tell`` is told how many of how many slices are done, where there are any; ``give`` is given
    texts as they are made here. Raises `cluster.on_ray.pool.ClusterError`.
    """
    # Where values were guessed, all templates have their obligations already.
    if settings.own_cluster and not result.guessed:
        listed = _here_then_spread(result, settings, tell, give)
    elif _is_worth_a_fork(result, settings):
        listed = _in_two(result, give)
    else:
        listed = _here(result, result.templates, give)
    settle(result, {n: why for n, why in enumerate(listed) if isinstance(why, str)})
    return [one for one in listed if not isinstance(one, str)]


def _here(
    result: Partition,
    templates: Sequence[Template],
    give: Callable[[Texts], None],
    goes_on: Callable[[int], bool] = lambda done: True,
) -> list[Statement]:
    """State templates in this process, one after the other, as long as it ``goes_on`` after so
    many."""
    listed: list[Statement] = []
    written: dict[bytes, Texts] = {}
    with swept(SWEPT, SWEPT_BYTES) as sweep:
        for template in templates:
            if not goes_on(len(listed)):
                break
            text = _lowered(
                template.obligation
                or lowered(result.nodes, template.claim, result.more, result.memo),
                written,
            )
            listed.append(text)
            if not isinstance(text, str):
                give(text)
            sweep()
    return listed


def _here_then_spread(
    result: Partition,
    settings: Settings,
    tell: Callable[[int, int], None],
    give: Callable[[Texts], None],
) -> list[Statement]:
    """State templates here, and on the cluster those that are left when that takes too long."""
    start = time.perf_counter()
    templates = result.templates

    def goes_on(done: int) -> bool:
        return not _is_worth(time.perf_counter() - start, done, len(templates) - done)

    listed = _here(result, templates, give, goes_on)
    if len(listed) < len(templates):
        listed += _spread(result, templates[len(listed) :], settings, tell)
    return listed


def _is_worth_a_fork(result: Partition, settings: Settings) -> bool:
    """Whether a fork states half of the templates: there are many, memory is not bounded, and no
    other plan is asked about with what is known of these."""
    bounded = settings.memory_budget_bytes is not None
    alone = bounded or result.memo is not None or result.guessed
    return len(result.templates) >= MANY and not alone and can_fork()


def _in_two(result: Partition, give: Callable[[Texts], None]) -> list[Statement]:
    """State every other template in a fork.  It begins before texts are given to anybody, so that
    no solver has been started; its texts are given when all of them are there."""
    ours, theirs = result.templates[::2], result.templates[1::2]
    with Beside(lambda: _here(result, theirs, lambda texts: None)) as fork:
        first = _here(result, ours, give)
        second = fork.outcome()
    for text in second:
        if not isinstance(text, str):
            give(text)
    pairs = zip_longest(first, second)
    return [one for pair in pairs for one in pair if one is not None]


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
