"""Operators in two halves, as XLA schedules them: what begins at ``-start`` is read at ``-done``.

The first half gives its operands, its results and what it works with as a tuple; the second one
gives the results.  For values it is one operator.  For example, ``all-gather-start(x)`` of
``(f32[2], f32[4])`` and ``all-gather-done`` of it are an all-gather of ``f32[4]``.  Source: XLA's
operation semantics, and its HLO text of asynchronous operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.hlo.module import Instruction, Type

_START, _DONE, _UPDATE = "-start", "-done", "-update"
#: Attributes of the halves that say nothing of values.
_SCHEDULED = frozenset(
    ("async_execution_thread", "cross_program_prefetch_index", "is_host_transfer", "async_group_id")
)


def open_(i: Instruction) -> bool:
    """Whether what is given is not done yet.  Example: by ``all-reduce-start`` it is not."""
    return i.opcode.endswith((_START, _UPDATE))


def whole(i: Instruction, begun: Mapping[str, Type]) -> Instruction:
    """A first half as the operator, with its results alone; a second one as a copy of these;
    others as they are.  ``begun``: results of the first halves before it, by name.

    Example: ``(f32[2], f32[4]) all-gather-start(x)`` is ``f32[4] all-gather(x)``.

    Raises `InvalidInput` for halves of other types, and for what reads a first half but the second
    one.
    """
    halves = [name for name in i.operands if name in begun]
    if halves == list(i.operands[:1]) and len(halves) == 1 and i.opcode.endswith((_DONE, _UPDATE)):
        result = begun[halves[0]]
        if i.opcode.endswith(_DONE) and i.type != result:
            raise InvalidInput(f"{i.opcode} gives {i.type}, expected {result}")
        return replace(i, opcode="copy", type=result, attrs={})
    if halves:
        raise InvalidInput(f"{i.opcode} reads {halves[0]}, which is not done")
    if not i.opcode.endswith(_START):
        return i
    attrs = {key: text for key, text in i.attrs.items() if key not in _SCHEDULED}
    opcode = i.opcode.removesuffix(_START)
    if opcode == "async":
        opcode, attrs = "call", {"to_apply": attrs.get("calls", "")}
    return replace(i, opcode=opcode, type=_results(i), attrs=attrs)


def _results(i: Instruction) -> Type:
    """The results in what a first half gives: all of an all-reduce, the first of a copy, the second
    of others, behind their operands."""
    if i.opcode == "all-reduce-start":
        return i.type
    at = 0 if i.opcode == "copy-start" else 1
    if i.type.parts is None or len(i.type.parts) <= at:
        raise InvalidInput(f"{i.opcode} gives {i.type}, expected its operands and its results")
    return i.type.parts[at]
