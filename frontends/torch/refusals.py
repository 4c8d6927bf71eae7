"""Why a step cannot be recorded, also where the step itself catches the error.

A step that reads a value which nobody knows in a ``try`` goes on without it, while the cluster goes
on with it.  So what is refused is kept, and refused once more at the end of the step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NoReturn

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.places import place

#: Operators that no step has, and why.
_NAMED: Final = {
    "c10d.recv_any_source_.default": "a message is received from whichever rank sends first, which "
    "is a matter of time: name the rank, dist.recv(tensor, src=...)",
    "aten._sparse_coo_tensor_with_dims_and_tensors.default": "a sparse tensor is made, of which "
    "nothing is understood: use the dense one, nn.Embedding(..., sparse=False)",
}
#: What was refused in this process, which records one step of one rank.
_KEPT: list[InvalidInput] = []
#: What is looked at when the step ends: why it is refused then, or "".
_AT_THE_END: list[Callable[[], str]] = []


def begin() -> None:
    """A step begins, of which nothing is refused yet.

    Example: a second step that is recorded in one process, as tests do.
    """
    _KEPT.clear()
    _AT_THE_END.clear()


def at_the_end(reason: Callable[[], str]) -> None:
    """Look at the end of the step whether there is a reason to refuse it.

    Example: messages of whose handles none is left then.
    """
    _AT_THE_END.append(reason)


def refuse(message: str) -> NoReturn:
    """Raises `InvalidInput`, which is kept.

    Example: ``refuse("Python reads the value of a tensor ...")`` for ``bool(x > 0)``.
    """
    error = InvalidInput(message)
    _KEPT.append(error)
    raise error


def by_name(name: str) -> None:
    """Refuses an operator that no step may have, by the line that called it.

    Example: "c10d.recv_any_source_.default", what ``dist.recv(x)`` without its source is.
    """
    if (why := _NAMED.get(name)) is not None:
        where, _ = place(sys._getframe(2))
        refuse(f"{why} (at {where})")


def answered(error: InvalidInput) -> None:
    """There is an answer where an error was raised: it is no refusal.

    Example: ``loss.item()``, which is a number that stands for the tensor.
    """
    _KEPT[:] = [kept for kept in _KEPT if kept is not error]


def kept() -> bool:
    """Whether something was refused in this process.

    Example: after ``if loss.item() > 1: y = -y``.
    """
    return bool(_KEPT)


def require_none() -> None:
    """Raises `InvalidInput` where something was refused, though the step goes on, or is at its end.

    Example: ``try: big = loss.item() > 1`` and ``except Exception: big = False``.
    """
    if _KEPT:
        raise InvalidInput(f"{_KEPT[0].message}; the step goes on all the same")
    for reason in filter(None, [own() for own in _AT_THE_END]):
        refuse(reason)
