"""Texts that Python puts together by itself, in C: ``f"loss {x}"``, ``"%.3f" % x``, ``.format``.

Of a `Text` and others it makes a plain text there, of which nobody sees any more that it has a
number that nobody knows.  So the program's functions are given other code before the step runs:
where an instruction puts texts together, a function of this module does.  What a call or a loop
gives (``str([loss.item()])``, a line of a stream) is looked at, and functions in C that look for
one text in another (``"123".find(text)``, a compiled pattern, `ord`) are given none.  See
`instructions`.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import logging
import re
import sys
from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import wraps
from types import CodeType
from typing import Any, Final

import torch

from shardproof.frontends.torch.instructions import ASSEMBLER, Instead, everywhere, transformed
from shardproof.frontends.torch.places import is_own
from shardproof.frontends.torch.refusals import refuse
from shardproof.frontends.torch.standins import replace
from shardproof.frontends.torch.texts import ASKING, TEXT, Text, plain
from shardproof.frontends.torch.unread import Unread, follow, written

_LOG: Final = logging.getLogger(__name__)
#: The operator of two numbers by which a program has ``%`` and ``%=``.
_REMAINDER_OF, _IN_PLACE_REMAINDER = 6, 19
#: Methods of texts that put texts together.
_METHODS = ("format", "format_map", "join")
#: Functions of `re`, and methods of its patterns.
_SEARCHES = ("match", "search", "fullmatch", "findall", "finditer", "split", "sub", "subn")
#: Methods of texts that look for another text in theirs.
_LOOKS = (*(name for name in ASKING if name != "__hash__"), "strip", "lstrip", "rstrip")


def joined(*parts: str) -> str:
    """The parts of a text one behind the other, a `Text` if one of them is.

    Example: ``f"loss {loss.item():.3f}"`` has two.
    """
    return _as_text("".join(map(plain, parts)), parts)


def _as_text(text: str, parts: Any) -> str:
    """A text that was put together; of what Python wrote in C (``f"{numbers}"`` of a list) the
    characters say it."""
    for part in (text, *parts):
        if isinstance(part, Text):
            return part.like(plain(text))
    where = written()
    return Text(text, where) if where and TEXT in text else text


def _remainder(a: Any, b: Any) -> Any:
    if not isinstance(a, str):
        return a % b
    return _as_text(_put_in(a, b), (a,))


def _remainder_in_place(a: Any, b: Any) -> Any:
    if isinstance(a, str):
        return _remainder(a, b)
    a %= b
    return a


#: A place in a text that ``%`` fills: its key, what stands before the kind, and the kind.
_PLACE = re.compile(r"%(?:\((.*?)\))?([#0\- +]*)(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.)")


def _put_in(a: str, b: Any) -> str:
    """``a % b``, in which unknown numbers are texts, whatever kind of number is asked for."""
    named = isinstance(b, Mapping)
    values = dict(b) if named else dict(enumerate(b if isinstance(b, tuple) else (b,)))
    values = {key: _number(x) for key, x in values.items()}
    if not any(isinstance(x, (Unread, Text)) for x in values.values()):
        return str(plain(a) % b)
    places = iter(range(len(values)))

    def place(match: re.Match[str]) -> str:
        key, flags, width, precision, kind = match.groups()
        if kind == "%":
            return match.group()
        for _ in range((width == "*") + (precision == "*")):
            next(places, None)
        value = values.get(next(places, None) if key is None else key)
        if kind in "rsa" or not isinstance(value, (Unread, Text)) or precision == "*":
            return match.group()
        left, by_name = "-" if "-" in flags else "", "" if key is None else f"({key})"
        return f"%{by_name}{left}{width}s"

    text = _PLACE.sub(place, plain(a))
    return str(text % (values if named else tuple(values.values())))


def _number(x: Any) -> Any:
    """What is put into a text: the number in a tensor of one element."""
    return x.item() if isinstance(x, torch.Tensor) and not x.dim() else x


def _contains(x: Any, container: Any) -> bool:
    if isinstance(x, Text) and isinstance(container, str):
        x.refused()
    return x in container


class _Putting(str):
    """A text whose methods put others together."""

    def format(self, *args: Any, **kwargs: Any) -> str:
        return _as_text(str.format(self, *args, **kwargs), (*args, *kwargs.values()))

    def format_map(self, mapping: Any) -> str:
        return _as_text(str.format_map(self, mapping), ())

    def join(self, parts: Any) -> str:
        several = list(parts)
        return _as_text(str.join(self, several), several)


class _Looking:
    """A type of texts, or a pattern, whose functions look at no `Text`."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattribute__(self, name: str) -> Any:
        function = getattr(object.__getattribute__(self, "_own"), name)
        return function if name in _METHODS else looking(function)


def looking(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function in C that looks at no `Text` for the program's own code.

    Example: ``str.find`` of "123" and ``str(loss.item())`` is refused.
    """

    @wraps(function)
    def look(*args: Any, **kwargs: Any) -> Any:
        if is_own(sys._getframe(1).f_code.co_filename):
            # What is put in where another text is replaced is not looked at.
            read = args[:2] if function is str.replace else (*args, *kwargs.values())
            for x in read:
                for y in x if type(x) is tuple else (x,):
                    if isinstance(y, Text):
                        y.refused()
        return function(*args, **kwargs)

    return look


for _name in _LOOKS:
    setattr(_Putting, _name, looking(getattr(str, _name)))


def _putting(x: Any) -> Any:
    if type(x) is str:
        return _Putting(x)
    return _Looking(x) if x is str or isinstance(x, re.Pattern) else x


def _made(x: Any) -> Any:
    """What a call or a loop gives, with a `Text` for a text that Python wrote in C; of bytes of one
    nothing is given.

    Example: ``str([loss.item()])``, and each line of a stream into which it was printed.
    """
    if type(x) is list and any(type(y) is str and TEXT in y for y in x):
        x[:] = map(_made, x)
    if type(x) in (bytes, bytearray) and TEXT.encode() in x and written():
        Text(TEXT, written()).refused()  # as the text's own `encode` is
    return _as_text(x, ()) if type(x) is str and TEXT in x else x


def _caught(error: BaseException) -> BaseException:
    """An error that a program catches: not one in which a library tells of such a text.  What the
    program itself says of a number is a `Text`."""
    where, own = written(), any(isinstance(x, Text) for x in error.args)
    if where and not own and isinstance(error, (ValueError, TypeError)) and TEXT in str(error):
        refuse(
            "the step catches an error of a library that reads a number from the text of a tensor "
            f"that depends on the inputs (.item() at {where})"
        )
    return error


_JOINED, _CONTAINS = Instead(joined), Instead(_contains)
_REMAINDER, _IN_PLACE = Instead(_remainder), Instead(_remainder_in_place)
_PUTTING, _CAUGHT, _MADE = Instead(_putting), Instead(_caught), Instead(_made)
_FORMATS = ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC")
_NAMES = frozenset((*_METHODS, *_LOOKS, *_SEARCHES))
_GIVES = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "FOR_ITER")


def rewritten(code: CodeType) -> CodeType:
    """Code that does the same, and keeps a `Text` one where it puts texts together.

    Example: of a function with ``"a" + f"{x} b"``, in which `joined` makes the second one.

    Where the assembler cannot write all of it, what calls and loops give stays as it is (of 230
    files of libraries in a function of one), and else the code stays (in functions of two).
    """
    consts = tuple(rewritten(x) if isinstance(x, CodeType) else x for x in code.co_consts)
    if any(a is not b for a, b in zip(consts, code.co_consts, strict=True)):
        code = code.replace(co_consts=consts)
    assembler = importlib.import_module(ASSEMBLER)
    if not any(map(_puts, dis.get_instructions(code))):
        return code
    try:
        return _assembled(code, assembler, ())
    except (AssertionError, LookupError, TypeError, ValueError):
        pass
    try:
        return _assembled(code, assembler, _GIVES)
    except (AssertionError, LookupError, TypeError, ValueError):
        _LOG.info("texts that %s puts together are not followed", code.co_qualname)
        return code


def _assembled(code: CodeType, assembler: Any, left: Collection[str]) -> CodeType:
    """The code with other instructions, but for those of the names that are ``left``."""

    def changed(instructions: list[Any], _: Any) -> None:
        instructions[:] = [
            new
            for one in instructions
            for new in ([one] if one.opname in left else _with(one, assembler))
        ]

    return transformed(code, changed)


def _puts(one: Any) -> bool:
    """Whether an instruction puts texts together, or what it does cannot be seen otherwise."""
    name = one.opname
    return (
        name in ("BUILD_STRING", "CONTAINS_OP", "PUSH_EXC_INFO", *_FORMATS, *_GIVES)
        or (name == "BINARY_OP" and one.arg in (_REMAINDER_OF, _IN_PLACE_REMAINDER))
        or (name in ("LOAD_ATTR", "LOAD_METHOD") and one.argval in _NAMES)
    )


def _with(one: Any, assembler: Any) -> list[Any]:
    """An instruction, or what stands in its place."""
    create, name = assembler.create_instruction, one.opname

    def instead(function: Instead, operands: int) -> list[Any]:
        return function.instructions(operands, create)

    if not _puts(one):
        return [one]
    if name == "BUILD_STRING":
        new = instead(_JOINED, one.arg)
    elif name == "CONTAINS_OP":
        new = [*instead(_CONTAINS, 2), *([create("UNARY_NOT")] if one.arg else [])]
    elif name == "BINARY_OP":
        new = instead(_IN_PLACE if one.arg == _IN_PLACE_REMAINDER else _REMAINDER, 2)
    elif name in _FORMATS:
        new = [copy(one), *instead(_JOINED, 1)]
    elif name in _GIVES:
        new = [copy(one), *instead(_MADE, 1)]
    elif name == "PUSH_EXC_INFO":
        new = [copy(one), create("COPY", arg=1), *instead(_CAUGHT, 1), create("POP_TOP")]
    else:
        new = [*instead(_PUTTING, 1), copy(one)]
    return list(assembler.overwrite_instruction(one, new))


def install(step: Callable[..., Any]) -> None:
    """Give the functions of the step's modules such code, in this process, for good, and the
    modules and the script that it runs later on; `logging`, which writes its numbers, too.

    Example: after it, ``f"{loss.item():.2f} s" == "1.00 s"`` is refused in train.py.
    """
    follow()
    everywhere(step, rewritten)
    logging.LogRecord.getMessage.__code__ = rewritten(logging.LogRecord.getMessage.__code__)
    for name in _SEARCHES:
        replace(re, name, looking(getattr(re, name)))
    replace(builtins, "ord", looking(ord))
