"""All declared operators as plain data: what a call of each gives, and whether it has a derivative.

``listing()[0]`` is ``{"name": "add", "operands": [{"name": "x", ...}, ...], "attributes": [...],
"outputs": 1, "signature": "..., ... -> ...", "derivative": True}``.
"""

from __future__ import annotations

from typing import Any

from shardproof.engine.ops.declare import OPERATORS, Operator, declared_elsewhere, lookup
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan


def listing() -> list[dict[str, Any]]:
    """Every declared operator as plain data, by name.

    Example: the first one is ``abs``; see the module.
    """
    return [_data(OPERATORS[name]) for name in sorted(OPERATORS)]


def described(name: str) -> dict[str, Any]:
    """One declared operator as plain data; raises `engine.errors.Unsupported`, which names what is
    near.

    Example: of ``linaer``, "operator linaer is not declared (near: linear)".
    """
    return _data(lookup(name))


def _data(declared: Operator) -> dict[str, Any]:
    index_data = {place % len(declared.operands) for place in declared.data}
    return {
        "name": declared.name,
        "operands": [
            {
                "name": operand.name,
                "optional": operand.optional,
                "several": operand.several,
                "or_attribute": operand.instead or None,
                "index_data": place in index_data,
            }
            for place, operand in enumerate(declared.operands)
        ],
        "attributes": [
            {
                "name": attribute.name,
                "kind": attribute.kind,
                "optional": attribute.optional,
                "values": list(attribute.values),
            }
            for attribute in declared.attributes
        ],
        "outputs": declared.results,
        "signature": declared.signature,
        "derivative": declared.differentiable,
    }


def foreign(plan: Plan) -> tuple[Assumption, ...]:
    """What is believed of the operators of a plan that installed packages declare.

    Example: "operator my_gelu is what the module my_kernels declares".
    """
    names = {
        op.name
        for program in (plan.single, *plan.programs)
        for body in program.bodies
        for op in body.ops
    }
    return tuple(
        Assumption(
            "user's word", name, module, f"operator {name} is what the module {module} declares"
        )
        for name, module in declared_elsewhere(names)
    )
