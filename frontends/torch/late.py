"""A mean that is divided in its loss, beside ranks that divide gradients once these are added up.

The gradients of ``loss.sum() / count`` have the factor ``1 / count`` from the loss on; ranks that
go backward from ``loss.sum()``, add up gradients and divide them by the count have it at their end.
Gradients are linear in it: here those of the single device are made without it, and divided where
something else reads them.  Over the reals that is the same program, whatever the count is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from shardproof.engine.plan.ir import Body, Op, Plan

#: The rows of a plan that are gradients.
GRADIENT: Final = "gradient"
#: What moves entries of its one operand, adds them up, or multiplies them by a number.
_MOVES: Final = frozenset({"view", "expand", "permute", "slice", "sum", "mul"})
#: What is linear in either of two operands, and not in both.
_PRODUCTS: Final = frozenset({"mul", "matmul"})
#: What is linear in all operands together.
_SUMS: Final = frozenset({"add", "sub", "concat"})
#: Gradients that are operators of their own, linear in their last operand.
_GRADIENTS: Final = frozenset({"cross_entropy_grad"})
#: Sums over ranks, and what gathers these.
_JOINS: Final = frozenset({"all_reduce", "reduce_scatter", "all_gather"})


def divided_late(plan: Plan) -> Plan:
    """The plan whose single device divides gradients at their end, where ranks do; as it is where
    they do not.

    Example: the gradient ``x.T @ (d / count)`` is ``(x.T @ d) / count`` where ranks divide the sum
    of theirs.
    """
    body, *more = plan.single.bodies
    made = next(Reading(body).divided(), None)
    if more or body.claims or made is None:
        return plan
    ranks = [[Reading(body) for body in program.bodies] for program in plan.programs]
    gradients = [a for row in plan.expectations if row.kind == GRADIENT for a in row.parallel]
    ends = [(ranks[a.program][a.body], a.value) for a in gradients if a.body >= 0]
    early = any(True for bodies in ranks for one in bodies for _ in one.divided())
    if early or not any(reading.is_divided(value) for reading, value in ends):
        return plan
    return replace(plan, single=replace(plan.single, bodies=(_rewritten(body, *made),)))


class Reading:
    """The operators of a body by what they make.

    Example: of ``%3 = div(%1, %2)`` the maker of 3 is that operator.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._makers = {value: op for op in body.ops for value in op.outputs}

    def divided(self) -> Iterator[tuple[Op, frozenset[int]]]:
        """Known numbers that are divided by one that is computed, and the values that are linear in
        such a quotient, gradients among them.

        Example: ``1 / count``, with the gradients of a mean over what counts.
        """
        for op in self._body.ops:
            if self._is_quotient(op):
                linear = self._linear_in(op.outputs[0])
                if any(_is_gradient(o) for o in self._body.ops if not linear.isdisjoint(o.outputs)):
                    yield op, linear

    def is_divided(self, value: int) -> bool:
        """Whether a value was divided by one number that is computed, whatever it is multiplied by
        (to clip it) and where it is moved then.

        Example: ``all_reduce(gradient) / all_reduce(count)``.
        """
        while (op := self._scaled(value)) is not None:
            value, number = op.inputs
            if op.name == "div" or self._is_inverse(number):
                return True
        return False

    def _is_inverse(self, value: int) -> bool:
        op = self._origin(value, _MOVES)
        return op is not None and self._is_quotient(op)

    def _scaled(self, value: int) -> Op | None:
        """The operator that multiplied a value by one number that is computed, or divided it,
        before it was moved and added up over ranks; None: there is none."""
        op = self._origin(value, _MOVES | _JOINS)
        if op is None or op.backward or op.name not in ("mul", "div") or len(op.inputs) != 2:
            return None
        first, number = op.inputs
        return op if self._is_computed(number) and not self._is_one(first) else None

    def _origin(self, value: int, through: frozenset[str]) -> Op | None:
        op = self._makers.get(value)
        while op is not None and op.name in through and not op.backward and len(op.inputs) == 1:
            op = self._makers.get(op.inputs[0])
        return op

    def _is_one(self, value: int) -> bool:
        return prod(self._body.values[value].shape) == 1

    def _is_computed(self, value: int) -> bool:
        """Whether a value is one number that is not known."""
        source = value
        while (op := self._makers.get(source)) is not None and op.name in ("view", "expand"):
            source = op.inputs[0]
        return self._is_one(source) and self._number(value) is None

    def _number(self, value: int) -> object:
        """The number that a value is at all places, as `Lowering.real` writes constants: a value
        times 0, plus the number; None: it is not known."""
        op = self._origin(value, frozenset({"view", "expand"}))
        if op is None or op.backward or len(op.inputs) != 1 or "alpha" in op.attrs:
            return None
        other = op.attrs.get("other")
        if op.name == "mul" and other == 0:
            return 0
        return other if op.name == "add" and self._number(op.inputs[0]) == 0 else None

    def _is_quotient(self, op: Op) -> bool:
        if op.name != "div" or op.backward or len(op.inputs) != 2:
            return False
        over, under = op.inputs
        return self._is_one(op.outputs[0]) and bool(self._number(over)) and self._is_computed(under)

    def _linear_in(self, value: int) -> frozenset[int]:
        """What is a value times something that is made without it."""
        linear = {value}
        for op in self._body.ops:
            if not linear.isdisjoint(op.inputs) and self._is_linear(op, linear):
                linear.update(op.outputs)
        return frozenset(linear)

    def _is_linear(self, op: Op, linear: set[int]) -> bool:
        if _is_gradient(op):
            arity = op.attrs.get("arity")
            given = arity if isinstance(arity, int) else len(op.inputs) - 1
            behind = op.inputs[given:]
            return linear.isdisjoint(op.inputs[:given]) and self._are_linear(behind, linear)
        if op.name in _PRODUCTS and len(op.inputs) == 2:
            return sum(value in linear for value in op.inputs) == 1
        if op.name in _SUMS and len(op.inputs) > 1:
            return self._are_linear(op.inputs, linear)
        return len(op.inputs) == 1 and op.name in _MOVES

    def _are_linear(self, values: Sequence[int], linear: set[int]) -> bool:
        return all(v in linear or v < 0 or self._number(v) == 0 for v in values)


def _is_gradient(op: Op) -> bool:
    return op.backward or op.name in _GRADIENTS


def _rewritten(body: Body, quotient: Op, linear: frozenset[int]) -> Body:
    """The body with what is linear in a quotient made of its dividend, and divided where it is read
    by what is not, or where the body gives it."""
    (whole,), (over, under) = quotient.outputs, quotient.inputs
    bound = {*body.outputs, *body.results, *body.losses, *(value for value, _ in body.gradients)}
    read = {v for op in body.ops if linear.isdisjoint(op.outputs) for v in op.inputs} | bound
    values, ops = list(body.values), list[Op]()
    raw = {value: value for value in linear} | {whole: over}
    for value in sorted(linear & read - {whole}):
        raw[value] = len(values)
        values.append(values[value])
    for op in body.ops:
        if op is quotient or linear.isdisjoint(op.outputs):
            ops += [op] if op is not quotient or whole in read else []
            continue
        inputs, outputs = (tuple(raw.get(v, v) for v in own) for own in (op.inputs, op.outputs))
        ops.append(replace(op, inputs=inputs, outputs=outputs))
        ops += [
            Op("div", (raw[value], under), (value,), {}, source=op.source)
            for value in op.outputs
            if raw[value] != value
        ]
    return replace(body, values=tuple(values), ops=tuple(ops))
