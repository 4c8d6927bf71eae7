"""Blocks of StableHLO: statements, and what they may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardproof.frontends.hlo import manual
from shardproof.frontends.hlo.module import Computation, Instruction, Type


@dataclass(slots=True)
class Scope:
    """What a block gives: ``types`` of its values; ``captured``: of those that it reads from
    ``outer`` ones; ``waiting``: how results of manual computations are gathered that nobody reads
    as a whole yet; ``parts``: what ranks have of these, and how they divide them.

    Example: in a branch that reads ``%x`` of the function around it, ``captured`` has ``x``.
    """

    types: dict[str, Type]
    outer: Scope | None
    captured: dict[str, Type] = field(default_factory=dict)
    waiting: dict[str, list[Instruction]] = field(default_factory=dict)
    parts: dict[str, tuple[str, manual.Mesh, manual.Division]] = field(default_factory=dict)

    def type(self, name: str) -> Type | None:
        """The type of a value that may be read here; None: there is no such value.

        Example: of ``x`` in a branch that reads it from the function around it, the type there.
        """
        if name in self.types:
            return self.types[name]
        return self.outer.type(name) if self.outer is not None else None


@dataclass(frozen=True, slots=True)
class Block:
    """Statements up to a return of ``values``.

    Example: of ``%1 = ...`` and ``return %1, %x``, one instruction and the values ``1`` and ``x``.
    """

    instructions: tuple[Instruction, ...]
    values: tuple[str, ...]
    scope: Scope

    def computation(self, name: str, line: int, before: Sequence[Instruction] = ()) -> Computation:
        """As a computation that gives its value, or a tuple of several; ``before``: its parameters,
        if they are no instructions of the block.

        Example: of one value ``1``, a computation whose root is ``1``.
        """
        made = (*before, *self.instructions)
        if len(self.values) == 1:
            return Computation(name, made, self.values[0])
        return self.tuple(name, line, before)

    def tuple(
        self,
        name: str,
        line: int,
        before: Sequence[Instruction] = (),
        more: Mapping[str, Type] | None = None,
    ) -> Computation:
        """As a computation that gives a tuple of its values, of one too, and of ``more``.

        Example: of a loop's body that returns ``1`` and reads ``c`` from around it, ``(1, c)``.
        """
        known = {i.name: i.type for i in (*before, *self.instructions)} | dict(more or {})
        names = (*self.values, *(more or {}))
        whole = Type(parts=tuple(known[n] for n in names))
        last = Instruction("all returned", "tuple", whole, names, line=line)
        return Computation(name, (*before, *self.instructions, last), last.name)
