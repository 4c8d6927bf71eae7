"""The verdict on a generated plan beside what the runtime's rules make of it on random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.convert import REPLICA, convert
from shardproof.frontends.nnscaler.masks import aligned
from shardproof.frontends.nnscaler.records import Tensor as Part
from tests.faults.plans import verify
from tests.frontends import lockstep, lockstep_runtime
from tests.frontends.plan_generator import Plans
from tests.frontends.plan_records import viewed

#: Contradictions of a plan with itself that the runtime does not notice: a recorded shape that the
#: values have not, ranks of one collective with other dimensions.
CONTRADICTED = frozenset({"shape", "collective mismatch"})
#: Findings that refute nothing.
NOTED = frozenset({"chunk position", "metadata"})


#: How often inputs are drawn until the single device has a number for its loss, and until a plan
#: that is refuted shows a difference.
MOST_DRAWS = 20
#: The size of weights for which scores of attention are not large.
SMALL = 0.3


class Judged(NamedTuple):
    """``different``: how the parallel step differs, on numbers ("" if it does not)."""

    different: str
    verdict: str
    reason: str
    kinds: frozenset[str]

    @property
    def wrong(self) -> bool:
        """Whether the verdict is: a difference is proved, or what is equal is refuted."""
        if self.different:
            return self.verdict == "proved"
        return self.verdict == "refuted" and not self.kinds - NOTED <= CONTRADICTED


def paired(one: cells.Plan, many: cells.Plan, *, as_recorded: bool = False) -> Plan:
    """Both sides of a plan, as the frontend joins them."""
    single, parallel = (
        convert(one, single=True),
        convert(many, single=False, as_recorded=as_recorded),
    )
    alone, programs = aligned(single.programs[0], parallel.programs)
    return Plan(
        "generated", alone, programs, parallel.microbatches, (REPLICA,), single.loss,
        recorded=parallel.recorded, assumed=parallel.assumed,
    )  # fmt: skip


def dropped(plan: cells.Plan) -> Iterator[Part]:
    """The results of the dropouts of a single-device plan."""
    for item in plan.sequence(0):
        for node in item.nodes if isinstance(item, cells.Segment) else ():
            if isinstance(node, cells.ForwardOp) and node.signature.endswith("dropout"):
                yield from (x for x in node.outputs if isinstance(x, Part))


def judged(made: Plans, seed: int, folder: Path) -> Judged:
    """Both answers about a pair of plans."""
    torch.set_num_threads(1)
    one, many = viewed(made.single, folder, "single"), viewed(made.parallel, folder, "parallel")
    draw = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    def drawn(size: float) -> tuple[lockstep.Inputs, lockstep.Outcome]:
        """Random inputs, with weights of some size, and what the single device makes of them."""
        full = {name: size * numbers(*shape) for name, shape in made.weights.items()}
        batch = [
            torch.randint(0, x.high, x.shape, generator=draw) if x.high else numbers(*x.shape)
            for x in made.batches
        ]
        # Any numbers: a mask of zeros would hide what it drops.
        masks = {
            x.full.name: torch.rand(x.shape, generator=draw, dtype=torch.float64) + 0.25
            for x in dropped(one)
        }
        own = lockstep.Inputs(full, batch, masks=masks)
        return own, lockstep.run(one, own)

    def compared(size: float = 1.0) -> str:
        """How the parallel step differs from the single one on inputs drawn anew."""
        own, alone = drawn(size)
        for _ in range(MOST_DRAWS):
            if all(bool(x.isfinite().all()) for x in alone.losses[0]):
                break
            # Where the single device has no number nothing is compared: a row that is masked whole.
            own, alone = drawn(size)
        try:
            inputs = replace(own, microbatches=made.microbatches, slices=slices, seed=share)
            step = lockstep.run(many, inputs)
        except lockstep_runtime.Stuck as stuck:
            return f"stuck: {stuck}"
        full = {k: x + 1e-14 * x * numbers(*x.shape) for k, x in own.full.items()}
        near = lockstep.run(one, replace(own, full=full))
        return lockstep.difference(alone, step, made.replicas, share=share, near=near)

    slices = made.microbatches * made.replicas
    share = 1 / slices if made.mean else 1.0
    different = compared()
    try:
        found = verify(paired(one, many))
    except (InvalidInput, UnreadablePlan) as error:
        return Judged(different, "invalid", str(error), frozenset())
    if found.verdict == "refuted":
        # Some inputs hide a difference: attention over tokens that are all alike, for example, or
        # to one of them alone, where scores are large.
        again = (compared(SMALL if n % 2 else 1.0) for n in range(MOST_DRAWS))
        different = different or next(filter(None, again), "")
    kinds = frozenset(x.kind for x in found.findings)
    return Judged(different, found.verdict, found.reason, kinds)
