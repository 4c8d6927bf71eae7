"""The verdict on a generated plan beside what the runtime's rules make of it on random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.convert import REPLICA, convert
from tests.faults.plans import verify
from tests.frontends import lockstep
from tests.frontends.plan_generator import Plans
from tests.frontends.plan_records import viewed

#: Contradictions of a plan with itself that the runtime does not notice: a recorded shape that the
#: values have not, ranks of one collective with other dimensions.
CONTRADICTED = frozenset({"shape", "collective mismatch"})


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
        return self.verdict == "refuted" and not self.kinds <= CONTRADICTED


def judged(made: Plans, seed: int, folder: Path) -> Judged:
    """Both answers about a pair of plans."""
    torch.set_num_threads(1)
    one, many = viewed(made.single, folder, "single"), viewed(made.parallel, folder, "parallel")
    draw = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    full = {name: numbers(*shape) for name, shape in made.weights.items()}
    batch = [numbers(*made.batch)]
    slices = made.microbatches * made.replicas
    alone = lockstep.run(one, lockstep.Inputs(full, batch))
    try:
        step = lockstep.run(many, lockstep.Inputs(full, batch, made.microbatches, slices))
        different = lockstep.difference(alone, step, made.replicas)
    except lockstep.Stuck as stuck:
        different = f"stuck: {stuck}"
    try:
        single, parallel = convert(one, single=True), convert(many, single=False)
        plan = Plan(
            "generated", single.programs[0], parallel.programs, parallel.microbatches, (REPLICA,),
            single.loss,
        )  # fmt: skip
        found = verify(plan)
    except (InvalidInput, UnreadablePlan) as error:
        return Judged(different, "invalid", str(error), frozenset())
    kinds = frozenset(x.kind for x in found.findings)
    return Judged(different, found.verdict, found.reason, kinds)
