"""How a function's parameters are written, and what a call of it gives for them.

A row of `frontends.nnscaler.functions` is a declared operator and the function's parameters in
their order, by spaces:

    name          an operand, or (given as a constant) the attribute of that name
    name:attr     an operand, or the attribute ``attr``
    name:         an operand, never a constant
    name?         as above, and None says nothing
    name=a|b      only these values (None, True, False, numbers) are understood; they say nothing
    name~         whatever its value, it changes nothing over the reals
    *name         all that follows by position, as one tuple
    name!         of a function that is rewritten: it has to be given, and not None

What is not marked by ``?``, ``=`` or ``~`` has to be given in a row of one declared operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from shardproof.engine.plan.ir import Attr
from shardproof.frontends.nnscaler.records import Box, Constant, Tensor
from shardproof.frontends.untrusted.inert import DType


@dataclass(frozen=True, slots=True)
class Drawn:
    """An operand that an operator draws: the ``box`` of a mask of this ``shape``.

    Example: a dropout of [2, 1024] whose operand is rows 0 and 1 of four has the ``shape`` (4,
    1024) and the ``box`` ((0, 2), (0, 1024)).
    """

    shape: tuple[int, ...]
    box: Box


@dataclass(frozen=True, slots=True)
class SharedInput:
    """An operand that both sides hold alike, whatever it is: numbers of a function of which nothing
    is known.

    Example: ``SharedInput("result 0 of operand 1 of mixed()", (3,))``.
    """

    name: str
    shape: tuple[int, ...]


class Step(NamedTuple):
    """One declared operator of several that a function is: ``operands`` are numbers of the
    function's own operands, then of the results of the steps before.

    Example: ``Step("mul", (0, 0), {}, (2, 4))`` squares operand 0.
    """

    name: str
    operands: tuple[int, ...]
    attrs: dict[str, Attr]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Composed:
    """A function that is several declared operators, of which the last one gives its result.

    Example: ``torch.gt(x, y)`` is ``sub`` of its two operands, then ``step``.

    ``assumed``: sentences about it and what it is given; ``results``: which steps give its results,
    where there are several.
    """

    operands: tuple[Tensor | Drawn | SharedInput, ...]
    steps: tuple[Step, ...]
    assumed: tuple[str, ...] = ()
    results: tuple[int, ...] = ()


Arguments = Mapping[str, Constant]
#: Operands and attributes of a declared operator, in order.
Operands = dict[str, Constant | Drawn]
Rewrite = Callable[[Arguments], tuple[str, Operands] | Composed]


class Refused(Exception):
    """What of a call is not understood: a parameter, and its value."""


def shown(value: Constant) -> str:
    """A value of the file for a message.

    Example: "'gelu'" for a text, of which 40 characters are shown, "torch.bfloat16" for a type, "of
    type Tensor".
    """
    if value is None or isinstance(value, (bool, int, float, DType)):
        return str(value)
    if isinstance(value, str):
        return ascii(value[:40])
    return f"of type {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: what its value says; see the module.

    Example: ``inplace=False`` is understood where it is false, and says nothing then.  One that is
    ``needed`` has to be given: ``torch.sub(x)`` is no call.
    """

    name: str
    attribute: str
    optional: bool = False
    ignored: bool = False
    only: tuple[object, ...] | None = None
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A declared operator and the parameters of the function that it is.  ``commutes``: the first
    two operands may be exchanged, so that the constant is the second.  ``rewrite``: makes operator,
    operands and attributes (by name, in order) of the arguments, where a row cannot say it.

    Example: ``function("mul", "input: other out=None", commutes=True)`` is ``torch.mul``, also
    where its first argument is a number.
    """

    operator: str
    parameters: tuple[Parameter, ...]
    commutes: bool = False
    rewrite: Rewrite | None = None


_VALUES: Final[Mapping[str, object]] = {"None": None, "True": True, "False": False}


def _value(text: str) -> object:
    if text in _VALUES:
        return _VALUES[text]
    try:
        return int(text)
    except ValueError:
        return float(text) if text.replace(".", "").isdigit() else text


def _parameter(text: str) -> Parameter:
    if text.endswith("~"):
        return Parameter(text[:-1], "", ignored=True)
    if "=" in text:
        name, values = text.split("=")
        return Parameter(name, "", only=tuple(_value(x) for x in values.split("|")))
    name, colon, attribute = text.rstrip("?").partition(":")
    optional = text.endswith("?")
    needed = not optional and not name.startswith("*")
    own = attribute if colon else name.lstrip("*")
    return Parameter(name, own, optional=optional, needed=needed)


def function(operator: str, parameters: str, *, commutes: bool = False) -> Function:
    """A function that is one declared operator; ``parameters``: its signature in the words of
    `Parameter`.

    Example: ``function("linear", "input: weight: bias:?")`` is ``torch.nn.functional.linear``.
    """
    return Function(operator, tuple(map(_parameter, parameters.split())), commutes)


def rewritten(rewrite: Rewrite, parameters: str) -> Function:
    """A function whose operands and attributes ``rewrite`` computes from the arguments.

    Example: ``rewritten(add, "input! other! alpha out")`` is ``torch.add``: ``add(2, x, alpha=3)``
    is ``affine`` of x with factor 3 and shift 2, which no row of `function` says.
    """
    names = [(text.rstrip("!"), text.endswith("!")) for text in parameters.split()]
    given = tuple(Parameter(name, name, needed=needed) for name, needed in names)
    return Function("", given, False, rewrite)


def operand(arguments: Arguments, name: str) -> Tensor:
    """The tensor that is given for a parameter; raises `Refused` if there is none.

    Example: ``softmax(None)`` is refused: "input None".
    """
    value = arguments.get(name)
    if not isinstance(value, Tensor):
        raise Refused(f"{name} {shown(value)}")
    return value


def unless(arguments: Arguments, name: str, *allowed: object) -> None:
    """Raise `Refused` unless a parameter is absent or has one of these values.

    Example: ``unless(arguments, "out", None)`` refuses ``out=y``; ``unless(arguments, "p", 2)``
    refuses 2.0.
    """
    if name in arguments and not any(
        arguments[name] is x or (arguments[name] == x and type(arguments[name]) is type(x))
        for x in allowed
    ):
        raise Refused(f"{name} {shown(arguments[name])}")
