"""What a plan records about its values, held against what they are: findings beside the verdict.

A claim (`engine.plan.recorded`) says that a value is a box of some full tensor.  What the full
tensor is, nobody says; but all values that claim parts of one must be parts of one.  So the claims
of a full tensor are compared among each other: two values in the same box are the same view of the
same reference node, and in different boxes views that lie as far apart as the boxes do.  A value
claimed to be complete is no partial sum (but for the slice of the batch that its microbatch is),
and one claimed to be an addend is not the whole.

Which of two values that contradict each other has the wrong record is not known: the one whose
company is smaller is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.findings import Finding
from shardproof.engine.lineage.lineage import Lineage, PartialRange
from shardproof.engine.lineage.places import has_places
from shardproof.engine.plan.collectives import COPIES
from shardproof.engine.plan.ir import MICROBATCH
from shardproof.engine.plan.recorded import RecordedSlice
from shardproof.engine.schedule.instances import Instance
from shardproof.partition.evidence.agreement import agree, difference, lie_apart, overlap
from shardproof.partition.evidence.order import order
from shardproof.partition.stages.partition import Partition

#: The kind of these findings.
KIND: Final = "metadata"
#: Findings that are listed; the rest are counted.
MOST: Final = 20


class Contradiction(NamedTuple):
    """A record that does not fit the others. ``value``: whose record it is; ``what``: the kind of
    contradiction, of which there is one finding for each full tensor.

    Example: ``Contradiction(57, "value map", "is recorded as all of [0:4, 0:64] of full tensor 12;
    it is a partial sum", ...)``.
    """

    value: int
    what: str
    message: str
    expected: str
    actual: str


def metadata(result: Partition) -> list[Finding]:
    """Contradictions of what the parallel plan records with what it computes, and of its records
    among each other; nothing for plans without such records.

    Example: a feed-forward block whose result every rank records as complete while it is a partial
    sum is one finding, "value map", for the ranks that do.
    """
    contradictions = [*_claims(result), *order(result, KIND)]
    recorded = list(result.plan.recorded)
    every = [*recorded, *contradictions]
    if len(every) <= MOST:
        return every
    rest = len(every) - MOST + 1
    return [
        *every[: MOST - 1],
        Finding(KIND, f"and {rest} more contradictions of what is recorded"),
    ]


# -- the claims of all values --------------------------------------------------------------------


def _claims(result: Partition) -> list[Finding]:
    side = result.parallel
    tensors, lineages = side.unrolled.tensors, side.lineages
    groups: dict[tuple[int, int], list[int]] = {}
    made: dict[int, Instance] = {}
    for instance in side.unrolled.instances:
        for v in instance.outputs:
            claim = tensors[v].claim
            if claim is None or lineages[v] is None:
                continue
            made[v] = instance
            key = (claim.full, instance.microbatch if tensors[v].batched else -1)
            groups.setdefault(key, []).append(v)
    slices, beside = _Slices(result), _Beside(result)
    wrong: dict[int, Contradiction] = {}
    for values in groups.values():
        for contradiction in _Group(result, slices, beside, values, made).contradictions():
            wrong.setdefault(contradiction.value, contradiction)
    if not wrong:
        return []
    findings: dict[tuple[int, str], Finding] = {}
    for value in _first(result, wrong):
        claim, contradiction = tensors[value].claim, wrong[value]
        assert claim is not None
        finding = _finding(result, made[value], contradiction)
        known = findings.setdefault((claim.full, contradiction.what), finding)
        if known is not finding:
            findings[claim.full, contradiction.what] = known._replace(
                ranks=tuple(sorted({*known.ranks, *finding.ranks})),
                microbatches=tuple(sorted({*known.microbatches, *finding.microbatches})),
            )
    return list(findings.values())


def _finding(result: Partition, instance: Instance, contradiction: Contradiction) -> Finding:
    tensor = result.parallel.unrolled.tensors[contradiction.value]
    rank = result.parallel.programs[tensor.program].base
    name = f"backward of {instance.name}" if instance.backward else instance.name
    layer = f" in {instance.source.module}" if instance.source.module else ""
    return Finding(
        KIND,
        f"{name}{layer} on rank {rank}: {tensor.name} {contradiction.message}",
        name,
        instance.source.module,
        instance.source.location or instance.source.cell,
        (rank,),
        (instance.microbatch,) if instance.microbatch >= 0 else (),
        contradiction.expected,
        contradiction.actual,
    )


def _first(result: Partition, wrong: dict[int, Contradiction]) -> Iterator[int]:
    """The values where contradictions begin: not those that are handed on with their record, and
    not what is computed of a value that is no part of the single-device program any more."""
    side = result.parallel
    lost: set[int] = set()
    positions = {
        (f.source, rank)
        for f in side.unrolled.findings
        if f.kind == "chunk position"
        for rank in f.ranks
    }
    for instance in side.unrolled.instances:
        from_wrong = any(v in wrong for v in instance.inputs)
        from_lost = any(v in lost for v in instance.inputs)
        for v in instance.outputs:
            unknown = _is_unknown(result, side.lineages[v])
            if unknown and (v in wrong or from_lost or from_wrong):
                lost.add(v)
            if v not in wrong or (unknown and (from_lost or from_wrong)):
                continue
            claim = side.unrolled.tensors[v].claim
            handed = instance.kind in COPIES or instance.name == "identity"
            if handed and any(
                u in wrong and side.unrolled.tensors[u].claim == claim for u in instance.inputs
            ):
                continue
            place = instance.source.location or instance.source.cell
            rank = side.programs[side.unrolled.tensors[v].program].base
            if instance.kind == "slice" and (place, rank) in positions:
                continue  # reported already, by its position in its group
            yield v


def _is_unknown(result: Partition, lineage: Lineage | None) -> bool:
    """Whether a value is no part of anything that the single-device program computes."""
    return lineage is None or any(t.node >= result.reference_size for t in lineage.addends)


class _Slices:
    """Which parts of sums are a microbatch's own: its slice of the batch."""

    def __init__(self, result: Partition) -> None:
        self.result = result
        self.known: dict[tuple[int, int], tuple[Affine, int]] = {}

    def of(self, program: int, microbatch: int) -> tuple[Affine, int]:
        """The number of the slice, and of how many it is one."""
        key = (program, microbatch)
        if key not in self.known:
            plan = self.result.plan
            extents = self.result.parallel.programs[program].extents
            replica, count = ZERO, 1
            for axis in plan.replica_axes:
                extent = extents.get(axis, 1)
                replica = replica * extent
                if axis in extents:
                    replica = replica + affine(0, {axis: 1})
                count *= extent
            flowing = microbatch < 0 and plan.microbatches > 1
            mb = affine(0, {MICROBATCH: 1}) if flowing else affine(max(microbatch, 0))
            number = replica * plan.microbatches + mb
            self.known[key] = (number, count * plan.microbatches)
        return self.known[key]

    def has(self, program: int, microbatch: int, partial: PartialRange) -> bool:
        """Whether a part is what the slice of a microbatch contributes to a sum over the batch."""
        number, count = self.of(program, microbatch)
        return partial.size * count == partial.extent and partial.start == number * partial.size


class _Beside:
    """Which nodes lie side by side in a tensor of either side, as halves that are exchanged do."""

    def __init__(self, result: Partition) -> None:
        self.with_it: dict[int, set[int]] = {}
        for lineage in (*result.single.lineages, *result.parallel.lineages):
            if lineage is not None and has_places(lineage):
                nodes = {t.node for t in lineage.addends}
                for node in nodes:
                    self.with_it.setdefault(node, set()).update(nodes)

    def are(self, x: Lineage, y: Lineage) -> bool:
        """Whether what two values consist of lies side by side somewhere."""
        return any(
            other.node in self.with_it.get(one.node, ()) for one in x.addends for other in y.addends
        )


# -- the claims of one full tensor ---------------------------------------------------------------


class _Group:
    """The values that claim to be parts of one full tensor (of one microbatch)."""

    def __init__(
        self,
        result: Partition,
        slices: _Slices,
        beside: _Beside,
        values: Sequence[int],
        made: dict[int, Instance],
    ) -> None:
        self.result = result
        self.slices = slices
        self.beside = beside
        self.values = values
        self.made = made

    def claim(self, value: int) -> RecordedSlice:
        claim = self.result.parallel.unrolled.tensors[value].claim
        assert claim is not None
        return claim

    def lineage(self, value: int) -> Lineage:
        lineage = self.result.parallel.lineages[value]
        assert lineage is not None
        return lineage

    def contradictions(self) -> Iterator[Contradiction]:
        """What contradicts what; a full tensor of one program alone is what that program has, of
        which a partial sum may be all (the gradient of its own copy of a tensor)."""
        whole: list[int] = []
        local = len({self.result.parallel.unrolled.tensors[v].program for v in self.values}) == 1
        addends: dict[tuple[int, int], list[int]] = {}
        for value in self.values:
            claim, lineage = self.claim(value), self.lineage(value)
            if claim.shape != lineage.shape:
                yield Contradiction(
                    value,
                    "shape",
                    f"is recorded as {claim}, of shape {list(claim.shape)}; its shape is "
                    f"{list(lineage.shape)}",
                    str(list(claim.shape)),
                    str(list(lineage.shape)),
                )
            elif claim.addends > 1:
                addends.setdefault((claim.addend, claim.addends), []).append(value)
            elif not local and self.is_partial(value):
                yield Contradiction(
                    value,
                    "value map",
                    f"is recorded as all of {claim}; it is a partial sum",
                    "a complete value",
                    "a partial sum",
                )
            else:
                whole.append(value)
        expected = None
        if whole:
            expected, wrong = self.divide(whole)
            yield from (self.misplaced(v, expected) for v in wrong)
        for values in addends.values():
            first, wrong = self.divide(values)
            yield from (self.misplaced(v, first) for v in wrong)
        yield from self.addends(addends, expected)

    def is_partial(self, value: int) -> bool:
        """Whether a value is a partial sum, apart from its slice of the batch."""
        lineage, instance = self.lineage(value), self.made[value]
        if not lie_apart(lineage) and not all(t.partials for t in lineage.addends):
            return True
        program = self.result.parallel.unrolled.tensors[value].program
        return any(
            not self.slices.has(program, instance.microbatch, partial)
            for addend in lineage.addends
            for partial in addend.partials
        )

    def addends(
        self, addends: dict[tuple[int, int], list[int]], expected: int | None
    ) -> Iterator[Contradiction]:
        """Every addend of a sum is somewhere, and none of them is the whole."""
        copies = expected is None and self.are_copies(addends)
        for (number, count), values in addends.items():
            present = {i for i, n in addends if n == count}
            if len(present) < count:
                for value in values:
                    yield Contradiction(
                        value,
                        "value map",
                        f"is recorded as {self.claim(value)}; of these {count} addends the plan "
                        f"has {sorted(present)}",
                        f"{count} addends",
                        str(sorted(present)),
                    )
                continue
            for value in values:
                if copies or (
                    expected is not None
                    and agree(
                        self.claim(expected),
                        self.lineage(expected),
                        self.claim(value),
                        self.lineage(value),
                    )
                ):
                    yield Contradiction(
                        value,
                        "value map",
                        f"is recorded as {self.claim(value)}; it is the complete value",
                        f"addend {number} of {count}",
                        "the complete value",
                    )

    def are_copies(self, addends: dict[tuple[int, int], list[int]]) -> bool:
        """Whether what is recorded as addends is one complete value on several ranks."""
        every = [v for values in addends.values() for v in values]
        tensors = self.result.parallel.unrolled.tensors
        holders = [{tensors[v].program for v in values} for values in addends.values()]
        return (
            len(addends) > 1
            and sum(map(len, holders)) == len(set().union(*holders))
            and all(self.lineage(v) == self.lineage(every[0]) for v in every)
            and not any(self.is_partial(v) for v in every)
        )

    def divide(self, values: Sequence[int]) -> tuple[int, list[int]]:
        """The value that most agree with (of what the single-device program computes, if any is),
        and those that do not."""
        first = self.lineage(values[0]), self.claim(values[0])
        if all(self.lineage(v) == first[0] and self.claim(v) == first[1] for v in values):
            return values[0], []
        alike: dict[tuple[RecordedSlice, Lineage], list[int]] = {}
        for value in values:
            alike.setdefault((self.claim(value), self.lineage(value)), []).append(value)
        companies: list[list[int]] = []
        alone: list[int] = []
        # The largest boxes first: what lies within them is compared without guessing.
        for same in sorted(alike.values(), key=lambda same: -_size(self.claim(same[0]))):
            company = next((c for c in companies if self.agree(c[0], same[0])), None)
            if company is not None:
                company += same
            elif len(companies) < MOST:
                companies.append(same)
            else:
                alone += same
        best = max(
            companies,
            key=lambda c: (not _is_unknown(self.result, self.lineage(c[0])), len(c)),
        )
        return best[0], [*(v for c in companies if c is not best for v in c), *alone]

    def agree(self, one: int, other: int) -> bool:
        a, b = self.lineage(one), self.lineage(other)
        if _is_unknown(self.result, a) and _is_unknown(self.result, b):
            # What only the parallel program computes has no canonical form: nothing is known.
            return True
        if self.beside.are(a, b) and not overlap(self.claim(one), self.claim(other)):
            # Halves that are values of their own: either is what it is.
            return True
        return agree(self.claim(one), a, self.claim(other), b)

    def misplaced(self, value: int, expected: int) -> Contradiction:
        """A value that is not what its box is of the full tensor that ``expected`` is part of."""
        claim, lineage = self.claim(value), self.lineage(value)
        tensor = self.result.parallel.unrolled.tensors[expected]
        rank = self.result.parallel.programs[tensor.program].base
        instance = self.made[expected]
        recorded = self.matching_record(value, expected)
        other = f"{tensor.name} on rank {rank} ({instance.source.cell or instance.name})"
        if recorded is not None:
            return Contradiction(
                value,
                "index map",
                f"is recorded as {claim}; by {other}, which is recorded as "
                f"{self.claim(expected)}, it is {recorded}",
                str(claim),
                str(recorded),
            )
        what = difference(lineage, self.lineage(expected))
        return Contradiction(
            value,
            "index map",
            f"is recorded as {claim}; {other} is recorded as {self.claim(expected)}, of which it "
            f"is {what}",
            str(claim),
            what,
        )

    def matching_record(self, value: int, expected: int) -> RecordedSlice | None:
        """The box that a value would be recorded as by another one's record, if it is one of the
        boxes that are recorded."""
        claim = self.claim(value)
        for box in list(dict.fromkeys(self.claim(v) for v in self.values[: 4 * MOST])):
            candidate = claim._replace(low=box.low, high=box.high)
            if box != claim and candidate.shape == claim.shape and agree(
                self.claim(expected), self.lineage(expected), candidate, self.lineage(value)
            ):  # fmt: skip
                return candidate
        return None


def _size(claim: RecordedSlice) -> int:
    size = 1
    for n in claim.shape:
        size *= n
    return size
