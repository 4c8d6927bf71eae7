"""Layouts of HLO, which XLA assigns late: what a ``bitcast`` does to a tensor's elements.

A layout lists dimensions from the one whose neighbours lie next to each other to the slowest:
``f32[2,3]{1,0}`` lies row by row, ``f32[2,3]{0,1}`` column by column.  A bitcast reads the same
bytes as another shape in another layout: it takes the elements in the order in which they lie, and
gives them places in the order of its own layout.  Source: XLA's documentation, "Shapes and layout".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from shardproof.engine.errors import Unsupported
from shardproof.frontends.hlo.module import Instruction, Type

#: Attributes that a bitcast has here: the layouts of its operand and of its result, as written.
FROM, TO = "from_layout", "to_layout"


def with_layouts(i: Instruction, types: Mapping[str, Type]) -> Instruction:
    """A bitcast with the layouts of its operand and its result; others as they are.

    Example: ``f32[3,2]{0,1} bitcast(x)`` of ``x = f32[2,3]{1,0} ...`` has ``{1,0}`` and ``{0,1}``.
    """
    if i.opcode != "bitcast" or len(i.operands) != 1 or i.operands[0] not in types:
        return i
    attrs = {**i.attrs, FROM: types[i.operands[0]].layout, TO: i.type.layout}
    return Instruction(i.name, i.opcode, i.type, i.operands, attrs, i.literal, i.number, i.line)


def moves(
    shape: tuple[int, ...], dtype: str, result: Type, attrs: Mapping[str, str]
) -> list[tuple[str, Type, dict[str, tuple[int, ...]]]]:
    """The operators, with their types and attributes, that a bitcast is: of its operand to the
    order in which elements lie, to the result's sizes in that order, and to the result.

    Raises `Unsupported` for tiles, other element types and layouts of other dimensions.

    Example: of ``f32[2,3]{1,0}`` to ``f32[3,2]{0,1}``, a reshape to ``[2, 3]``, which changes
    nothing, and a transpose.
    """
    if dtype != result.dtype or prod(shape) != prod(result.shape):
        raise Unsupported(f"a bitcast of {dtype}{list(shape)} to {result}")
    given = _slowest_first(attrs.get(FROM, ""), len(shape))
    own = _slowest_first(attrs.get(TO, ""), len(result.shape))
    lying = tuple(shape[d] for d in given)
    wanted = tuple(result.shape[d] for d in own)
    back = tuple(own.index(d) for d in range(len(own)))
    steps: list[tuple[str, Type, dict[str, tuple[int, ...]]]] = []
    if given != tuple(range(len(given))):
        steps.append(("transpose", Type(lying, dtype), {"dimensions": given}))
    if lying != wanted:
        steps.append(("reshape", Type(wanted, dtype), {}))
    if back != tuple(range(len(back))):
        steps.append(("transpose", Type(result.shape, dtype), {"dimensions": back}))
    return steps


def _slowest_first(layout: str, rank: int) -> tuple[int, ...]:
    """The dimensions in a layout, the slowest first; what is not written lies row by row."""
    if not layout:
        return tuple(range(rank))
    if not re.fullmatch(r"\{(?:\d{1,2}(?:,\d{1,2})*)?\}", layout):
        raise Unsupported(f"a bitcast in the layout {layout}")
    order = tuple(int(n) for n in layout[1:-1].split(",") if n)[::-1]
    if sorted(order) != list(range(rank)):
        raise Unsupported(f"a bitcast in the layout {layout} of {rank} dimensions")
    return order
