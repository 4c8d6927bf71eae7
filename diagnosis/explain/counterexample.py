"""A counterexample by shard: what ranks have of a tensor, and what they should have.

All values are of the simulation at small size (`engine.simulation.simulate`).  What a tensor inside
the plan should be is what it is in the plan with its repair, run on the same inputs; without a
repair, what the single device has, where the rank has all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardproof.diagnosis.locate.divergences import Divergence
from shardproof.diagnosis.locate.sentences import alike
from shardproof.diagnosis.repair.trial import Called, called
from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.findings import Difference
from shardproof.engine.lineage.lineage import BROADCAST, Lineage, StridedInterval
from shardproof.engine.plan.expectations import LOSS
from shardproof.engine.plan.ir import MICROBATCH
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.simulation.comparisons import TOLERANCE, Comparison
from shardproof.engine.simulation.replay import Coordinates
from shardproof.engine.simulation.simulate import (
    SHARP,
    SLIGHT,
    STEEP,
    VARIOUS,
    WIDE,
    Simulation,
    simulate,
    simulate_again,
    with_longer_numbers,
)
from shardproof.engine.simulation.true_size import (
    LATER,
    TURNS,
    confirmed,
    every_id,
    with_numbers,
)
from shardproof.engine.specification.conclusions import row_name
from shardproof.engine.specification.demands import Demand
from shardproof.partition.stages.partition import Partition

#: Ranks of one tensor that are shown; rows and columns of values around the worst one.
MOST_ELEMENTS: Final = 8
#: Gradients whose largest element is this much smaller than the largest of all are passed over.
SMALL: Final = 1e-4
#: Seeds of slight and steep inputs, and of those of various sizes, which are tried last.
LAST_SEEDS: Final = (SLIGHT, SLIGHT + 1, STEEP, STEEP + 1, *(VARIOUS + n * WIDE for n in range(8)))
ROWS: Final = 3
COLUMNS: Final = 4

Floats = NDArray[np.float64]


class _Slot(NamedTuple):
    """The same input or result of some instances: what it is called, and its tensors."""

    words: str
    tensors: tuple[int, ...]


class _Compared(NamedTuple):
    """A tensor of the plan at some coordinates, and what it should be; ``right``: the tensor of the
    repaired plan that says so (-1: none)."""

    tensor: int
    at: Coordinates
    expected: Floats
    actual: Floats
    right: int

    @property
    def differences(self) -> Floats:
        with np.errstate(invalid="ignore"):
            off = np.abs(self.actual - self.expected)
        same = (self.actual == self.expected) | (np.isnan(self.actual) & np.isnan(self.expected))
        off = np.where(same, 0.0, off)
        return np.where(np.isnan(off), np.inf, off)

    @property
    def off(self) -> float:
        return float(self.differences.max(initial=0.0))

    @property
    def worst(self) -> tuple[int, ...]:
        off = self.differences
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))


class Examples:
    """The values that a refutation shows. ``simulation``: of the plan as it is, if it could be run;
    ``repaired``: the plan with all repairs, if it holds.

    Example: without an all-reduce, element [1, 1, 1] of ``h.1.mlp.linear`` is 0.948 on rank 0 and
    0.016 on rank 1, where 0.964 is expected.
    """

    def __init__(
        self, result: Partition, simulation: Simulation | None, repaired: Partition | None
    ) -> None:
        self.result = result
        self.simulation = simulation
        self.repaired = repaired
        self._after: Simulation | None = None

    def _worst(self) -> Comparison | None:
        """The conclusion that is furthest off, of those that are no small numbers throughout."""
        if self.simulation is None:
            return None
        off = [c for c in self.simulation.comparisons if c.differs]
        comparisons = [c for c in off if c.demand.kind != LOSS]
        scales = {id(c): float(np.abs(c.expected).max(initial=0.0)) for c in comparisons}
        least = SMALL * max(scales.values(), default=0.0)
        noticed = [c for c in off if scales.get(id(c), least) >= least]
        return max(noticed or off, default=None, key=lambda c: c.error)

    def extremes(self) -> tuple[str, str]:
        """The values of the conclusion that shows the difference most, in words."""
        worst = self._worst()
        if worst is None:
            return "", ""
        what = f"{_named(worst)}{list(worst.worst.index) or ''}"
        return f"{what} = {worst.worst.expected:.9g}", f"{what} = {worst.worst.actual:.9g}"

    def of_conclusion(self) -> tuple[Difference, ...]:
        """Of the conclusion that is furthest off, an element of every rank's shard: where it is
        furthest off there, or where it agrees."""
        worst = self._worst()
        if self.simulation is None or worst is None:
            return ()
        same = [c for c in self.simulation.comparisons if _named(c) == _named(worst)]
        shown = sorted(same, key=lambda c: not c.differs)[:MOST_ELEMENTS]
        differences = [self._of_comparison(c) for c in shown]
        return tuple(sorted(differences, key=lambda d: d.ranks))

    def _of_comparison(self, comparison: Comparison) -> Difference:
        ranks: tuple[int, ...] = ()
        shard = ""
        if comparison.program >= 0:
            ranks = (self._rank(self.result, comparison.program, comparison.at),)
            if comparison.demand.kind != LOSS:
                shard = _box(comparison.demand, dict(comparison.at))
        worst = comparison.worst
        near = _near(comparison.expected, comparison.actual, worst.index)
        return Difference(
            ranks, worst.index, worst.expected, worst.actual, _named(comparison), shard, -1, near
        )

    @staticmethod
    def _rank(result: Partition, program: int, at: Coordinates) -> int:
        own, place = result.plan.programs[program], dict(at)
        return own.base + sum(stride * place.get(axis, 0) for axis, _, stride in own.axes)

    # -- inside the plan --------------------------------------------------------------------------

    def at(self, state: Partition, divergence: Divergence) -> tuple[Difference, ...]:
        """What ranks have of the first input or result of a divergence that is not what it should
        be;
        ``state``: the plan in which it was seen."""
        if self.simulation is None or self.simulation.failure or not self.simulation.sides:
            # A difference that was confirmed at true size has kept no other values.
            return ()
        before = self.simulation if state is self.result else self._run(state)
        if before is None or before.failure:
            return ()
        instances = [state.parallel.unrolled.instances[n] for n in divergence.instances]
        instances += alike(state, divergence)
        if self.repaired is None:
            return self._against_single(state, divergence, instances, before)
        if self._after is None:
            self._after = self._run(self.repaired)
        after = self._after
        if after is None or after.failure or not _same_inputs(before, after):
            return ()
        tensors = _by_name(self.repaired.parallel.unrolled)
        names = called(state.parallel.unrolled)
        for slot in _slots(state, instances):
            pairs = [(v, tensors[names[v]]) for v in slot.tensors if names[v] in tensors]
            values = [
                _Compared(v, at, expected, actual, w)
                for v, w in pairs
                for at, actual in before.value("parallel", v).items()
                if (expected := after.value("parallel", w).get(at)) is not None
                and expected.shape == actual.shape
            ]
            elements = self._elements(state, values, slot.words)
            if elements:
                return elements
        return ()

    def _against_single(
        self,
        state: Partition,
        divergence: Divergence,
        instances: Sequence[Instance],
        before: Simulation,
    ) -> tuple[Difference, ...]:
        """Results against those of the single-device operator, where ranks have all of them."""
        if divergence.counterpart < 0:
            return ()
        theirs = self.result.single.unrolled.instances[divergence.counterpart]
        values, words = [], ""
        for instance in instances:
            for mine, other in zip(instance.outputs[:1], theirs.outputs, strict=False):
                words = words or f"{_tensor(state, mine)} (the result of {_operator(instance)})"
                expected = before.value("single", other).get(())
                if expected is None:
                    continue
                values += [
                    _Compared(mine, at, expected, actual, -1)
                    for at, actual in before.value("parallel", mine).items()
                    if actual.shape == expected.shape
                ]
        return self._elements(state, values, words)

    def _elements(
        self, state: Partition, values: Sequence[_Compared], words: str
    ) -> tuple[Difference, ...]:
        """For each rank an element of what it holds, the same on all if it can be: the worst one;
        nothing if none differs."""
        worst: dict[int, tuple[float, _Compared]] = {}
        for compared in values:
            program = state.parallel.unrolled.tensors[compared.tensor].program
            rank = self._rank(state, program, compared.at)
            if rank not in worst or compared.off > worst[rank][0]:
                worst[rank] = (compared.off, compared)
        if not worst:
            return ()
        most, first = max(worst.values(), key=lambda one: one[0])
        scale = max(float(np.abs(compared.expected).max(initial=0.0)) for compared in values)
        if most <= TOLERANCE * scale:
            return ()
        # Ranks that differ come first if there are too many.
        shown = sorted(worst, key=lambda rank: (worst[rank][0] <= TOLERANCE * scale, rank))
        return tuple(
            self._element(state, rank, worst[rank][1], first, TOLERANCE * scale, words)
            for rank in sorted(shown[:MOST_ELEMENTS])
        )

    def _element(
        self,
        state: Partition,
        rank: int,
        compared: _Compared,
        first: _Compared,
        least: float,
        words: str,
    ) -> Difference:
        """One rank's values of a tensor, at the worst place of ``first`` unless there is nothing
        to see there."""
        index = compared.worst
        if compared.actual.shape == first.actual.shape:
            here = abs(compared.actual[first.worst] - compared.expected[first.worst])
            if not here <= least or compared.off <= least:
                index = first.worst
        shard = ""
        if compared.right >= 0 and self.repaired is not None:
            shard = _view(self.repaired.parallel.lineages[compared.right], dict(compared.at))
        return Difference(
            (rank,),
            index,
            float(compared.expected[index]),
            float(compared.actual[index]),
            words,
            shard,
            dict(compared.at).get(MICROBATCH, -1),
            _near(compared.expected, compared.actual, index),
        )

    def _run(self, state: Partition) -> Simulation | None:
        """The values of another plan on the same inputs as those of the one that is diagnosed."""
        simulation = self.simulation
        if simulation is None:
            return None
        single, parallel = self.result.derived, state.parallel.unrolled
        return simulate_again(simulation, state.plan, single, parallel, plain=True)


def simulated(
    result: Partition,
    seeds: int,
    *,
    until_defined: bool = False,
    most: int | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Simulation:
    """Both programs run with the true functions, on as many inputs as it takes to see them differ
    (``until_defined``: or to see the single-device program defined), ``seeds`` at most, and as
    many wide ones, and last on slight ones; ``most``: on the first so many of these, and no more.

    Example: the GPT of examples/gpt.py without its last all-reduce differs on the first inputs,
    those of seed 0.

    A difference between plans of a smaller vocabulary is one of this plan if this plan differs,
    too.  Where this plan is too large to be run, it is one unless the plan counts positions (a sum
    of ones over the vocabulary).  Where no input shows a difference, and both sides were seen to
    differ with the numbers that constants have, they are run with these; and last, at true sizes,
    with ids that go through all of their domain.
    """
    single, parallel = result.derived, result.parallel.unrolled
    first: Simulation | None = None
    every = [*range(seeds), *range(WIDE, WIDE + seeds), *LAST_SEEDS][:most]
    for number, seed in enumerate(every):
        tell(number, len(every))
        more = result.more + max(0, seed % WIDE - SHARP + 1)
        simulation = simulate(result.plan, single, parallel, seed, more=more)
        simulation = with_longer_numbers(simulation, result.plan, single, parallel)
        if simulation.differs and simulation.fewer:
            itself = confirmed(simulation, result.plan, single, parallel)
            simulation = _of_itself(result, simulation, itself)
        if simulation.differs or (until_defined and not simulation.undefined):
            return simulation
        if first is None or first.undefined:
            first = simulation
        if simulation.failure:
            first = simulation
            break
    assert first is not None
    if most is not None:
        return first
    # Where no smaller sizes fit each other, the true ones do.
    unfit = bool(first.failure) and not first.impossible
    numbered = (result.plan.numbers or unfit) and not until_defined
    for seed in range(WIDE, WIDE + SHARP) if numbered else ():
        itself = with_numbers(result.plan, single, parallel, seed)
        if itself.differs:
            return itself
    for turn in () if until_defined or first.failure else range(TURNS):
        ids = every_id(result.plan.single, turn)
        if not ids:
            break
        whole = replace(result.plan, numbers={**result.plan.numbers, **ids})
        itself = with_numbers(whole, single, parallel, WIDE + turn)
        if itself.differs:
            return itself
    return first


def _of_itself(result: Partition, fewer: Simulation, itself: Simulation) -> Simulation:
    """What a difference of a plan with ``fewer`` positions says of the plan, of which ``itself`` is
    what was run: nothing where it counts them, but for whoever looks at what differs there.

    That a plan counts positions inference sees where it sums what does not vary along them, and
    numbers show where it sums what is 1 by a law of functions (a softmax, ``x / x``): there both
    sides agree once each position counts as often as it stands for others.
    """
    if itself.differs:
        return fewer
    if not itself.failure:
        return itself
    believed = not fewer.counts(result.counted) and _differs_standing(result, fewer)
    return fewer if believed else replace(itself, smaller=fewer)


def _differs_standing(result: Partition, fewer: Simulation) -> bool:
    """Whether both sides differ where each position that is left stands for as many true ones, on
    one of a few inputs: labels that come in the order of the ids hide what reads the wrong ones."""
    single, parallel = result.derived, result.parallel.unrolled
    inputs = (replace(fewer, seed=fewer.seed + later) for later in LATER)
    return any(
        simulate_again(one, result.plan, single, parallel, standing=True).differs for one in inputs
    )


def _slots(state: Partition, instances: Sequence[Instance]) -> Iterator[_Slot]:
    """The inputs, then the results of instances that are the same operator."""
    first = instances[0]
    for words, of in (("an input", "inputs"), ("the result", "outputs")):
        lists: list[tuple[int, ...]] = [getattr(instance, of) for instance in instances]
        apart = first.kind in ("op", "slice")
        for place in range(len(lists[0]) if apart else 1):
            tensors = [x[place] for x in lists if len(x) > place] if apart else sum(lists, ())
            known = tuple(v for v in tensors if v >= 0)
            if known:
                name = f"{words} of {_operator(first)}"
                yield _Slot(f"{_tensor(state, known[0])} ({name})", known)


def _operator(instance: Instance) -> str:
    return f"the backward of {instance.name}" if instance.backward else instance.name


def _tensor(state: Partition, value: int) -> str:
    return state.parallel.unrolled.tensors[value].name or "a tensor"


def _by_name(unrolled: Unrolled) -> dict[Called, int]:
    return {name: number for number, name in enumerate(called(unrolled))}


def _same_inputs(one: Simulation, other: Simulation) -> bool:
    """Whether the single device computes the same in both."""
    return all(
        np.array_equal(mine.expected, theirs.expected)
        for mine, theirs in zip(one.comparisons[:1], other.comparisons[:1], strict=False)
    )


def _near(
    expected: Floats, actual: Floats, index: tuple[int, ...]
) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Values around an element, of its last two dimensions: rows of (expected, actual)."""
    left, right = np.atleast_2d(expected), np.atleast_2d(actual)
    place = (0,) * (left.ndim - len(index)) + index
    left, right = left[place[:-2]], right[place[:-2]]
    rows, columns = (
        slice(start := max(0, min(i - size // 2, n - size)), start + size)
        for i, n, size in zip(place[-2:], left.shape, (ROWS, COLUMNS), strict=True)
    )
    return tuple(
        tuple((float(e), float(a)) for e, a in zip(x, y, strict=True))
        for x, y in zip(left[rows, columns], right[rows, columns], strict=True)
    )


def _named(comparison: Comparison) -> str:
    return (
        "loss"
        if comparison.demand.kind == LOSS
        else row_name(comparison.demand.kind, comparison.name)
    )


def _box(demand: Demand, at: Mapping[str, int]) -> str:
    """The part of a single-device value that a rank holds."""
    offset = demand.offset or (ZERO,) * len(demand.full)
    shape = demand.shape if demand.offset else demand.full
    return _spans(
        (_position(o, at), n, full) for o, n, full in zip(offset, shape, demand.full, strict=True)
    )


def _view(lineage: Lineage | None, at: Mapping[str, int]) -> str:
    """The part of a single-device value that a tensor is; empty if it is no box of one."""
    if lineage is None or len(lineage.addends) != 1:
        return ""
    spans = []
    for size, dim in zip(lineage.shape, lineage.addends[0].view.dims, strict=True):
        cut = [interval for interval in dim if interval.axis != BROADCAST and not interval.full]
        if len(cut) > 1 or any(interval.stride != 1 for interval in cut):
            return ""
        spans.append(_span(dim, cut, size, at))
    return _spans(iter(spans))


def _span(
    dim: Sequence[StridedInterval], cut: Sequence[StridedInterval], size: int, at: Mapping[str, int]
) -> tuple[int, int, int]:
    if not cut:
        return 0, size, size
    interval = cut[0]
    # Whatever else is in this dimension is whole: it is counted in steps of it.
    step = size // interval.size
    return _position(interval.start, at) * step, size, interval.extent * step


def _position(value: Affine, at: Mapping[str, int]) -> int:
    for axis in value.axes:
        value = value.fix(axis, at.get(axis, 0))
    return value.const


def _spans(spans: Iterator[tuple[int, int, int]]) -> str:
    """A box: which positions of each dimension, of how many."""
    box = list(spans)
    if all(n == full for _, n, full in box):
        return "all of it"
    parts = [f"{o}:{o + n}" if n != full else ":" for o, n, full in box]
    return f"[{', '.join(parts)}] of [{', '.join(str(full) for _, _, full in box)}]"
