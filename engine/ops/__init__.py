"""Operator declarations: one place per operator, read over terms, numbers and reference values.

Importing this package fills `OPERATORS`.  To add an operator, declare it in the module of its kind
(`basic`, `shape`, `model`, ...); the generic tests then cover it.  Communication operators
are declared in `engine.plan.collectives`: they are defined over a group, not over one rank's
tensors.
"""

from shardproof.engine.ops import basic, experts, library, model, random, shape
from shardproof.engine.ops.declare import (
    OPERATORS,
    Operator,
    apply_backward,
    apply_forward,
    backward_misfit,
    lookup,
    misfit,
)
from shardproof.engine.ops.listing import described, listing

__all__ = [
    "OPERATORS",
    "Operator",
    "apply_backward",
    "apply_forward",
    "backward_misfit",
    "basic",
    "described",
    "experts",
    "library",
    "listing",
    "lookup",
    "misfit",
    "model",
    "random",
    "shape",
]
