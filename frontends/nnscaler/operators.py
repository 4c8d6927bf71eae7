"""nnScaler's operators in our words: which declared operator a function is, of which operands.

A function is known by its whole signature (``torch.nn.functional.silu``), with the parameters that
it has there, so that it does not matter whether a plan gives them by position or by name.  A
function of the model's own code is known by its name alone, if it is one of `BY_NAME`: that it does
what we take it for is the user's word, and an assumption of the verdict.  What is in no table keeps
its signature as its name, and what a row does not understand is named with it: the verdict is
inconclusive then and says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Attr
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import annotated, complexes, einops, refusals
from shardproof.frontends.nnscaler.calls import (
    Composed,
    Drawn,
    Function,
    Parameter,
    Refused,
    SharedInput,
    Step,
    shown,
)
from shardproof.frontends.nnscaler.cells import LIBRARIES, ForwardOp
from shardproof.frontends.nnscaler.functions import BY_NAME, FUNCTIONS, OF_COMPLEX
from shardproof.frontends.nnscaler.records import Constant, Tensor
from shardproof.frontends.untrusted.inert import DType


class Declared(NamedTuple):
    """An operator as we declare it: its tensors in order, its attributes.  ``word``: the signature
    that was taken for it by its name alone ("" if none was); ``drawn``: what it draws, its last
    operands; ``steps``: the operators that it is, where it is several and ``name`` the function's;
    ``assumed``: sentences about it; ``shared``, ``results``: see `calls.Composed`.

    Example: ``torch.sub(x, y, alpha=2)`` is ``Declared("add", [x, y], {"alpha": -2})``.
    """

    name: str
    tensors: list[Tensor]
    attrs: dict[str, Attr]
    word: str = ""
    drawn: tuple[Drawn, ...] = ()
    steps: tuple[Step, ...] = ()
    assumed: tuple[str, ...] = ()
    shared: tuple[SharedInput, ...] = ()
    results: tuple[int, ...] = ()


def exact(value: Constant) -> Attr:
    """A constant as an exact attribute: 1e-05 is 1/100000.

    Example: infinity is refused.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise UnreadablePlan(f"expected a finite constant, found {value}")
        return Fraction(repr(value))
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        return tuple(exact(item) for item in value)
    raise UnreadablePlan(f"expected a constant attribute, found {type(value).__name__}")


def declared(op: ForwardOp) -> Declared:
    """The operator as we declare it; one that is not understood is called so by its name.

    Example: ``silu(x, True)``, which writes its operand, is called "silu with inplace True".
    """
    signature = op.signature or op.name
    last = signature.rsplit(".", 1)[-1]
    function, word = FUNCTIONS.get(signature), ""
    if function is None and last in BY_NAME and not _is_library(signature):
        function, word = BY_NAME[last], signature
    tensors = [x for x in (*op.inputs, *op.kwargs.values()) if isinstance(x, Tensor)]
    numbers = any(map(complexes.is_complex, (*tensors, *op.outputs)))
    views = last in ("view_as_complex", "view_as_real")
    if numbers and function is not None and not word:
        function = OF_COMPLEX.get(last, function)
    patterned = signature.startswith("einops.") and last in einops.PATTERNED
    registered = bool(op.annotations)
    if function is None and (why := refusals.reason(signature)):
        return Declared(f"{last} with {why}", tensors, {})
    if function is None and not (patterned or registered):
        return Declared(signature, tensors, {})
    try:
        if function is None and not patterned:
            return _composed(annotated.lowered(op), last)
        if function is not None:
            made = _bound(function, op)
        else:
            lowered, values = einops.lower(last, op.inputs, op.kwargs)
            made = _written(lowered, list(values.items()), [])
        if numbers and not views and last not in OF_COMPLEX:
            if made.steps:
                raise Refused("complex operands")
            attrs = complexes.read_alike(made.name, made.attrs, tensors)
            made = made._replace(attrs=attrs)
    except Refused as refused:
        return Declared(f"{last} with {refused}", tensors, {})
    return made._replace(word=word)


def _is_library(signature: str) -> bool:
    return signature.startswith(LIBRARIES)


def _bound(function: Function, op: ForwardOp) -> Declared:
    """The operands and attributes of a call, by the parameters of the function."""
    if op.signature.endswith(".detach") and op.backward_id is not None:
        raise Refused("a gradient")
    values, extra = _arguments(function, op)
    for parameter in function.parameters:
        if parameter.needed and values.get(parameter.name) is None:
            raise Refused(f"{parameter.name} None")
    name = function.operator
    if function.rewrite is not None:
        made = function.rewrite(values)
        if isinstance(made, Composed):
            if extra:
                raise Refused(f"{len(extra)} operands more")
            return _composed(made, op.signature.rsplit(".", 1)[-1])
        name, rewritten = made
        bound = list(rewritten.items())
    else:
        known = [(p, values[p.name]) for p in function.parameters if p.name in values]
        bound = [(p.attribute, v) for p, v in known if not _says_nothing(p, v)]
    return _written(name, bound, extra)


def _composed(made: Composed, name: str) -> Declared:
    tensors = [x for x in made.operands if isinstance(x, Tensor)]
    drawn = tuple(x for x in made.operands if isinstance(x, Drawn))
    shared = tuple(x for x in made.operands if isinstance(x, SharedInput))
    return Declared(name, tensors, {}, "", drawn, made.steps, made.assumed, shared, made.results)


def _written(
    name: str, bound: Sequence[tuple[str, Constant | Drawn]], extra: list[Tensor]
) -> Declared:
    tensors = [v for _, v in bound if isinstance(v, Tensor)] + extra
    drawn = tuple(v for _, v in bound if isinstance(v, Drawn))
    attrs = {key: _attribute(key, v) for key, v in bound if not isinstance(v, (Tensor, Drawn))}
    return Declared(name, tensors, attrs, "", drawn)


def _arguments(function: Function, op: ForwardOp) -> tuple[dict[str, Constant], list[Tensor]]:
    """The values of a call by parameter, and tensors beyond all parameters."""
    names = [parameter.name for parameter in function.parameters]
    rest = next((i for i, name in enumerate(names) if name.startswith("*")), len(names))
    values: dict[str, Constant] = dict(zip(names[:rest], op.inputs, strict=False))
    beyond = op.inputs[rest:]
    extra: list[Tensor] = []
    if beyond and rest < len(names):
        values[names[rest]] = beyond[0] if _is_one_list(beyond) else beyond
    else:
        extra = [x for x in beyond if isinstance(x, Tensor)]
        if len(extra) < len(beyond):
            constant = next(x for x in beyond if not isinstance(x, Tensor))
            raise Refused(f"a constant operand {shown(constant)}")
    for key, value in op.kwargs.items():
        name = f"*{key}" if f"*{key}" in names else key
        if name not in names:
            raise Refused(key)
        if name in values:
            raise Refused(f"{key} twice")
        values[name] = value
    if function.commutes:
        _exchange(values, names[0], names[1])
    return values, extra


def _is_one_list(values: tuple[Constant, ...]) -> bool:
    """Whether what may be given one by one is given as one list."""
    return len(values) == 1 and isinstance(values[0], tuple)


def _exchange(values: dict[str, Constant], first: str, second: str) -> None:
    """A constant first operand becomes the second one."""
    leads = not isinstance(values.get(first), Tensor) and isinstance(values.get(second), Tensor)
    if leads and values.get("alpha", 1) == 1:
        values[first], values[second] = values[second], values.get(first)


def _says_nothing(parameter: Parameter, value: Constant) -> bool:
    """Whether a value leaves the operator as it is declared; raises `Refused` for one that would
    make it another."""
    if parameter.ignored:
        if isinstance(value, Tensor):
            # No memory format or count: the call fails where it is run.
            raise Refused(f"{parameter.name} {shown(value)}")
        return True
    if parameter.only is not None:
        # True is 1 in Python, and in no function's parameters.
        if any(value is x or (value == x and type(value) is type(x)) for x in parameter.only):
            return True
        raise Refused(f"{parameter.name} {shown(value)}")
    if isinstance(value, Tensor):
        return False
    if not parameter.attribute and not (value is None and parameter.optional):
        raise Refused(f"{parameter.name} {shown(value)}")
    return value is None and parameter.optional


def _attribute(key: str, value: Constant) -> Attr:
    if not _plain(value):
        raise Refused(f"{key} {shown(value)}")
    return exact(value)


def _plain(value: Constant) -> bool:
    """Whether a constant is one that an attribute can be."""
    if isinstance(value, tuple):
        return all(_plain(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (bool, int, str, DType))


def differentiable(operands: Sequence[Constant]) -> list[int]:
    """Positions, among the tensors, of those that have a gradient.

    Example: of ``linear(x, w)`` where ``x`` is the batch, [1].
    """
    tensors = [x for x in operands if isinstance(x, Tensor)]
    return [i for i, x in enumerate(tensors) if x.grad() is not None]


def known_by_name(signature: str, operator: Declared) -> Assumption:
    """What a verdict assumes of a function that is known by its name.

    Example: "my.model.create_mask computes the declared operator create_mask: it is known by its
    name alone".
    """
    name, kind = operator.name, "declared operator"
    if operator.steps:
        kind = "function of nnScaler's examples"
    text = f"{signature} computes the {kind} {name}: it is known by its name alone"
    return Assumption("user's word", signature, "", text)
