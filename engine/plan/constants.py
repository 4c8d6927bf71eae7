"""Constants that differ by rounding alone: which do, and what a plan says where they were replaced.

A plan whose constants were replaced by those of its single-device side keeps what it had before, so
that the plan as it was read can be told from it, and anybody can look at every replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Attr, Op, Plan, Rounded

#: The largest relative difference of two numbers that round to one in single precision (24 bits).
RELATIVE = Fraction(1, 1 << 23)


def is_rounding(a: object, b: object) -> bool:
    """Whether two different constants differ by no more than rounding to single precision does.

    Two whole numbers never do: they are counts and exponents, which nothing rounds.

    Example: 0.1 and 0.10000000149 (0.1 in single precision) differ by rounding, 0.125 and 0.125001
    do not.
    """
    x, y = exact(a), exact(b)
    if x is None or y is None or x == y or x.denominator == y.denominator == 1:
        return False
    return abs(x - y) <= RELATIVE * min(abs(x), abs(y))


def exact(value: object) -> Fraction | None:
    """An attribute's number, exactly; None for an attribute that is none.

    Example: 1/8 of ``Fraction(1, 8)``, None of True and of ``"sum"``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, Fraction)):
        return None
    return Fraction(value)


def with_constant(op: Op, key: str, value: Attr) -> Op:
    """The operator with another attribute (its mapping may be shared: it gets one of its own).

    Example: ``mul(%0) {other=1/10}`` with ``other`` as 1/8 is ``mul(%0) {other=1/8}``.
    """
    return replace(op, attrs={**op.attrs, key: value})


def restored(plan: Plan) -> Plan:
    """The plan as it was read, before constants were replaced.

    Example: where the parallel side was read with 0.10000000149 and now has the 0.1 of the
    single-device side, with 0.10000000149 again.
    """
    programs = list(plan.programs)
    for place in plan.rounded:
        program = programs[place.program]
        body = program.bodies[place.body]
        op = with_constant(body.ops[place.op], place.key, place.value)
        ops = (*body.ops[: place.op], op, *body.ops[place.op + 1 :])
        bodies = list(program.bodies)
        bodies[place.body] = replace(body, ops=ops)
        programs[place.program] = replace(program, bodies=tuple(bodies))
    return replace(plan, programs=tuple(programs), rounded=())


def statement(plan: Plan) -> tuple[Assumption, ...]:
    """The assumptions that a plan's replacements make, one for each pair of constants.

    Example: "constants 0.10000000149011612 and 0.1 are equal: they differ by rounding alone
    (relative difference 1.5e-08; 2 operators of the parallel plan)".
    """
    pairs: dict[tuple[Fraction, Fraction], int] = {}
    for rounded in plan.rounded:
        constant = exact(attribute(plan, rounded))
        if constant is not None:
            pairs[rounded.value, constant] = pairs.get((rounded.value, constant), 0) + 1
    return tuple(
        Assumption(
            "inferred",
            "constants",
            "",
            f"constants {printed(mine)} and {printed(theirs)} are equal: they differ by rounding "
            f"alone (relative difference {float(abs(mine / theirs - 1)):.2g}; "
            f"{count} operator{'s' if count > 1 else ''} of the parallel plan)",
        )
        for (mine, theirs), count in pairs.items()
    )


def attribute(plan: Plan, rounded: Rounded) -> object:
    """The constant that is now where another one was replaced; None where the plan has no such
    place.

    Example: of ``Rounded(0, 0, 5, "other", value)`` the ``other`` of operator 5 of body 0 of
    parallel program 0.
    """
    try:
        program = plan.programs[rounded.program]
        return program.bodies[rounded.body].ops[rounded.op].attrs.get(rounded.key)
    except IndexError:
        return None


def printed(value: Fraction) -> str:
    """A constant as people write it.

    Example: 1/8 is ``0.125``.
    """
    return repr(float(value)) if value.denominator > 1 else str(value.numerator)


# -- as plain data -------------------------------------------------------------------------------


def listed(rounded: Rounded) -> list[Any]:
    """The replacement of a constant as plain data.

    Example: ``Rounded(0, 0, 5, "other", Fraction(1, 10))`` is ``[0, 0, 5, "other", "1/10"]``.
    """
    return [*rounded[:4], str(rounded.value)]


def unlisted(cells: Sequence[Any]) -> Rounded:
    """The replacement that `listed` gave.

    Example: of ``[0, 0, 5, "other", "1/10"]`` the ``value`` is 1/10.
    """
    program, body, op, key, value = cells
    return Rounded(program, body, op, key, Fraction(value))


def are_listed(value: object) -> bool:
    """Whether a value is a list of what `listed` gives.

    Example: ``[[0, 0, 5, "other", "1/10"]]`` is one; with ``"2/20"``, which is not in lowest terms,
    it is none.
    """
    return isinstance(value, list) and all(_is_listed(cells) for cells in value)


def _is_listed(cells: object) -> bool:
    if not isinstance(cells, list) or [type(x) for x in cells] != [int, int, int, str, str]:
        return False
    try:
        return all(x >= 0 for x in cells[:3]) and str(Fraction(cells[4])) == cells[4]
    except (ValueError, ZeroDivisionError):
        return False
