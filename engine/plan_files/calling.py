"""Calls of operators that fit their declarations, in all bodies of a plan, called or not.

What is read of a call afterwards (by the prover, the checker, the simulation) is what its
declaration names, so nothing that a plan says is ignored.  An operator without a declaration is no
fault of the plan: its verdict is inconclusive, by name, where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.errors import InvalidInput
from shardproof.engine.ops import OPERATORS, backward_misfit, misfit
from shardproof.engine.plan.ir import Attr, Op


def wrong_call(
    name: str,
    inputs: Sequence[int],
    outputs: int,
    attrs: Mapping[str, Attr],
    *,
    backward: bool = False,
) -> str:
    """What is wrong with the operands, attributes or number of outputs of a call, in words that
    follow the operator's name; empty if nothing is, or if the operator is not declared.

    Example: of ``linear`` with one operand, ``takes 2 to 3 operands (x, weight, [bias]), found 1``.
    """
    declared = OPERATORS.get(name)
    if declared is None:
        return ""
    if backward:
        return backward_misfit(name, inputs, outputs, attrs)
    wrong = misfit(name, len(inputs), attrs)
    expected = outputs if wrong else declared.outputs(len(inputs), attrs)
    return f"gives {expected} outputs, found {outputs}" if expected != outputs else wrong


def check_call(index: int, op: Op) -> None:
    """Raise `InvalidInput` unless operator number ``index`` of a body, if it is declared, is called
    as its declaration says.

    Example: "operator 3 (linear): linear takes 2 to 3 operands (x, weight, [bias]), found 1".
    """
    wrong = wrong_call(op.name, op.inputs, len(op.outputs), op.attrs, backward=op.backward)
    if wrong:
        name = f"backward of {op.name}" if op.backward else op.name
        raise InvalidInput(f"{op.name} {wrong}", f"operator {index} ({name})")


class Calls:
    """Calls by what decides whether they fit: each kind is looked at once, and attributes that are
    the same are one object, as they are in a stored plan.

    Example: of two calls of ``silu`` with equal attributes the second one gets those of the first.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[Mapping[str, Attr], str]] = {}

    def of(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: int,
        attrs: Mapping[str, Attr],
        *,
        backward: bool = False,
    ) -> tuple[Mapping[str, Attr], str]:
        """The attributes of a call, and what is wrong with it, as `wrong_call` says it."""
        # True is 1, and 1 a fraction: what is equal may be something else.
        content = [(k, type(v), repr(v) if type(v) is tuple else v) for k, v in attrs.items()]
        missing = [n for n, v in enumerate(inputs) if v < 0] if -1 in inputs else ()
        key = (name, backward, len(inputs), *missing, -1, outputs, *content)
        known = self._known.get(key)
        if known is None:
            wrong = wrong_call(name, inputs, outputs, attrs, backward=backward)
            known = self._known[key] = attrs, wrong
        return known
