"""Sets of the program's own code, whose order is another one in each process.

Python orders a set by the hashes of what is in it: those of texts begin with a number that each
process draws, those of objects are where they lie.  Ranks are recorded in forks of one process, in
which all of them are the same.  So a set that the program makes gives what is in it in the order
that it has, or in the reverse one: ranks whose numbers differ in one bit, as neighbours along an
axis do, have one of each.  A step to which the order is nothing is the same with both; one that
communicates along such a set meets other tensors on other ranks, as on the cluster.

Sets that are there before the step is recorded, and those of libraries, are what they are.
"""

from __future__ import annotations

import dis
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from types import CodeType
from typing import Any, Final

from shardproof.frontends.torch.instructions import (
    ASSEMBLER,
    Instead,
    everywhere,
    reached,
    transformed,
)
from shardproof.frontends.torch.kinds import NAMED
from shardproof.frontends.torch.places import place

_LOG: Final = logging.getLogger(__name__)
#: Types whose hashes are the same in every process.
_NUMBERS = (bool, int, float, complex)
#: What is printed where ranks have another order.
ORDERS: Final = (
    "stand-in: the order of sets of texts or objects, which each process has of its own: ranks are "
    "recorded with one of two, at {}"
)
#: What is told of it on a rank whose sets have the reverse order.
_REVERSED: list[Callable[[str], None]] = []
#: Operators that make a set of two.
_MAKING: Final = (
    *(f"__{name}__" for name in ("and", "or", "sub", "xor", "rand", "ror", "rsub", "rxor")),
    *("copy", "difference", "intersection", "symmetric_difference", "union"),
)
#: Methods of dictionaries whose results are joined to sets; operators that do so (``&``, ``|``,
#: ``-``, ``^``), and what is between one and that in place.
_KEYS: Final = frozenset({"keys", "items"})
_JOINING, _IN_PLACE = (1, 7, 10, 12), 13


def _numbered(x: object) -> bool:
    return all(map(_numbered, x)) if type(x) is tuple else isinstance(x, _NUMBERS)


def ordered(items: Iterator[Any]) -> Iterator[Any]:
    """What a set gives on this rank, of the order that it has.

    Example: of {"key", "query"} the order of rank 1 is that of rank 0 backwards; of {3, 5} it is
    that of rank 0.
    """
    every = list(items)
    if len(every) < 2 or all(map(_numbered, every)):
        return iter(every)
    for note in _REVERSED:
        note(ORDERS.format(place(sys._getframe(2))[0]))
    return reversed(every) if _REVERSED else iter(every)


class _Own(type):
    """What is a set is one of the class that stands for all of them."""

    def _stands_for(cls) -> type | None:
        return vars(cls).get("of")

    def __instancecheck__(cls, x: object) -> bool:
        of = cls._stands_for()
        return isinstance(x, of) if of else super().__instancecheck__(x)

    def __subclasscheck__(cls, other: type) -> bool:
        of = cls._stands_for()
        return issubclass(other, of) if of else super().__subclasscheck__(other)

    def __eq__(cls, other: object) -> bool:
        return other is cls or (other is not None and other is cls._stands_for())

    def __hash__(cls) -> int:
        return hash(cls._stands_for()) if cls._stands_for() else super().__hash__()


class Set(set[Any], metaclass=_Own):
    """What ``set`` is in the modules of a program that is recorded.

    Example: ``for name in set(gradients): dist.all_reduce(gradients[name])`` is refuted.
    """

    of = set

    def __iter__(self) -> Iterator[Any]:
        return ordered(super().__iter__())

    def pop(self) -> Any:
        """The first of its order, which leaves it.

        Example: of {"key", "query"} another one on rank 1 than on rank 0.
        """
        last = next(iter(self), None)
        if last is None:
            return super().pop()
        self.remove(last)
        return last

    def __repr__(self) -> str:
        return repr(set(self))


class Frozen(frozenset[Any], metaclass=_Own):
    """What ``frozenset`` is there.

    Example: ``for name in {"key", "query"}``, whose set Python keeps as one.
    """

    of = frozenset

    def __iter__(self) -> Iterator[Any]:
        return ordered(super().__iter__())

    def __repr__(self) -> str:
        return repr(frozenset(self))


def _making(own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def make(self: Any, *args: Any) -> Any:
        return _given(own(self, *args))

    return make


def _given(x: Any) -> Any:
    """What was made, as the program's own set where it is one of Python."""
    return Set(x) if type(x) is set else Frozen(x) if type(x) is frozenset else x


for _class in (Set, Frozen):
    for _name in _MAKING:
        setattr(_class, _name, _making(getattr(_class.of, _name)))
    NAMED[_class.of] = _class
    _class.__name__ = _class.of.__name__


def _sorted(items: Any, /, **kwargs: Any) -> list[Any]:
    """``sorted`` of texts, or of numbers, which is one list whatever order they come in."""
    own = (type(items) is Set or type(items) is Frozen) and kwargs.get("key") is None
    plain = list(items.of.__iter__(items)) if own else []
    one = plain and (all(map(_numbered, plain)) or all(isinstance(x, str) for x in plain))
    return sorted(plain if one else items, **kwargs)


_sorted.__name__ = "sorted"
#: What these names are in the program's modules.
NAMES: Final = {"set": Set, "frozenset": Frozen, "sorted": _sorted}
_GIVEN: Final = Instead(_given)


def with_sets(code: CodeType) -> CodeType:
    """Code that does the same, with such sets where it makes one without naming the type.

    Example: of a function with ``{name for name in names}``.
    """
    consts = tuple(with_sets(x) if isinstance(x, CodeType) else _given(x) for x in code.co_consts)
    if any(a is not b for a, b in zip(consts, code.co_consts, strict=True)):
        code = code.replace(co_consts=consts)
    if not _makes(code):
        return code

    of_keys = not _KEYS.isdisjoint(code.co_names)

    def changed(instructions: list[Any], _: Any) -> None:
        instructions[:] = [new for one in instructions for new in _with(one, of_keys)]

    try:
        return transformed(code, changed)
    except (AssertionError, LookupError, TypeError, ValueError):
        _LOG.info("sets that %s makes have the order of one process", code.co_qualname)
        return code


def _makes(code: CodeType) -> bool:
    # Every other byte is an instruction, or nothing of which one is made in code that is written.
    of_keys = not _KEYS.isdisjoint(code.co_names)
    return dis.opmap["BUILD_SET"] in code.co_code[::2] or (
        of_keys and any(map(_joins, dis.get_instructions(code)))
    )


def _joins(one: Any) -> bool:
    """Whether an instruction may make a set of the keys of dictionaries (``a.keys() - b.keys()``),
    in place or not."""
    return one.opname == "BINARY_OP" and one.arg % _IN_PLACE in _JOINING


def prepare(step: Callable[..., Any]) -> None:
    """Import what writes such code, if the step makes such sets: before ranks are forked.

    Example: of a step with ``{name for name in names}`` in its module torch's compiler.
    """
    codes = [x.__code__ for x in reached(step)[1]]
    while codes:
        code = codes.pop()
        codes += [x for x in code.co_consts if isinstance(x, CodeType)]
        if _makes(code):
            importlib.import_module(ASSEMBLER)
            return


def _with(one: Any, of_keys: bool) -> list[Any]:
    assembler = importlib.import_module(ASSEMBLER)
    if one.opname != "BUILD_SET" and not (of_keys and _joins(one)):
        return [one]
    new = [copy(one), *_GIVEN.instructions(1, assembler.create_instruction)]
    return list(assembler.overwrite_instruction(one, new))


def install(step: Callable[..., Any], rank: int, note: Callable[[str], None]) -> None:
    """Give the functions of the step's modules such sets, in this process, for good; ``note`` is
    told where their order is another one on other ranks.

    Example: after it, ``list({"key", "query"})`` is one list on rank 0, and another one on rank 1.
    """
    _REVERSED[:] = [note] * (rank.bit_count() % 2)
    everywhere(step, with_sets, kept=False)
