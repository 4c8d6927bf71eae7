"""What the reader takes a plan to mean where its records leave it open; printed with a verdict."""

from __future__ import annotations

from typing import Final

from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.nnscaler.calls import SharedInput

#: The runtime waits for a communication where its result is read.
ASYNCHRONOUS: Final = Assumption(
    "framework",
    "async_op",
    "",
    "what an asynchronous communication gives is complete where it is read, as nnScaler's runtime "
    "waits for it there",
)
#: An adapter's result may have the name of what it read, and be what the segment gives.
BEFORE_ADAPTER: Final = Assumption(
    "user's word",
    "gradients",
    "",
    "a gradient that arrives for a value whose name an adapter gives again is the gradient of the "
    "value that the plan names it for: what the adapter read, where the gradient of its result has "
    "another name. (Code that nnScaler generates starts from the adapter's result.)",
)


def numbers(shared: SharedInput) -> Assumption:
    """What a difference may come from where a function stands for one of which nothing is known.

    Example: "result 0 of operand 1 of mixed(): any numbers, in the place of a function of which
    nothing is known".
    """
    text = f"{shared.name}: any numbers, in the place of a function of which nothing is known"
    return Assumption("stand-in", shared.name, "", text)
