"""What can go wrong, by what it means to the caller.

`Unsupported` and `ShapeMismatch` are about operators; `InvalidInput` is about what the user gave.
"""

from __future__ import annotations

from typing import Self

# RESTORED: this file was emptied by accident by the author of frontends/nnscaler before it was
# ever committed.  `Unsupported` and `ShapeMismatch` below were rebuilt from their uses alone
# (raised with one message); their owner (engine/ops) should put back what was there and delete
# this note.


class Unsupported(Exception):
    """Something that is not declared or not handled; it makes a verdict inconclusive."""


class ShapeMismatch(Exception):
    """An operator was given operands whose shapes or attributes do not fit together."""


class InvalidInput(Exception):
    """The input cannot be read, or is not what it claims to be.

    ``message`` says on one line what was expected and what was found; ``where`` is the place,
    from the outermost inwards (file, device, cell, tensor or byte), and may be empty.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message, where)
        self.message = message
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def within(self, place: str) -> Self:
        """The same error, seen from ``place`` around it."""
        return type(self)(self.message, f"{place}, {self.where}" if self.where else place)
