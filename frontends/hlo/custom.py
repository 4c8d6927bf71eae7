"""Custom calls: what they compute an installed package says, which declares an operator of that
name (docs/own-operators.md)."""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.errors import Unsupported
from shardproof.engine.ops.declare import declared_elsewhere
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo.items import Item, Tensor
from shardproof.frontends.hlo.state import Lowering

#: A configuration that says nothing.
_NOTHING = ("", "{}")


def call(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The declared operator of the call's target, on its operands.  Raises `Unsupported` where no
    package declares one, and for a configuration, which no declaration reads.

    Example: ``custom-call(x, gate), custom_call_target="example_gated"`` is the operator
    ``example_gated`` of the package in ``examples``.
    """
    target, config = (
        node.attrs.get(key, "").strip('"') for key in ("custom_call_target", "backend_config")
    )
    if not declared_elsewhere([target]):
        raise Unsupported(f"custom-call to {target}, which is not declared")
    if node.attrs.get("called_computations"):
        raise Unsupported(f"custom-call to {target} with computations of its own")
    if config.strip() not in _NOTHING:
        raise Unsupported(f"custom-call to {target} with a configuration ({config[:60]})")
    return Tensor(low.recorder.op(target, *(low.tensor(x) for x in xs)))
