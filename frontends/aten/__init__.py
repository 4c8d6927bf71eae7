"""ATen operators, each written once onto declared operators of the engine; no torch is needed.

`TABLE` maps an overload to its rule; importing this package fills it.  A reader of recorded steps,
or of any other graph of ATen operators, calls `lower`.
"""

from shardproof.frontends.aten import (
    attention,
    choices,
    communication,
    composite,
    convolution,
    criteria,
    functions,
    fused,
    ids,
    losses,
    masks,
    movement,
    optimizers,
    pointwise,
    positions,
    predicates,
    routed,
    rows,
    statistics,
    whole,
)
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, Undefined
from shardproof.frontends.aten.rules import TABLE, rule_of

__all__ = [
    "TABLE",
    "Const",
    "Lowered",
    "Lowering",
    "Real",
    "Undefined",
    "attention",
    "choices",
    "communication",
    "composite",
    "convolution",
    "criteria",
    "functions",
    "fused",
    "ids",
    "losses",
    "masks",
    "movement",
    "optimizers",
    "pointwise",
    "positions",
    "predicates",
    "routed",
    "rows",
    "rule_of",
    "statistics",
    "whole",
]
