"""The table of functions that a plan may hold, with their parameters, as nnScaler registers them.

A row is the declared operator and the function's parameters in their order, by spaces:

    name          an operand, or (given as a constant) the attribute of that name
    name:attr     an operand, or the attribute ``attr``
    name:         an operand, never a constant
    name?         as above, and None says nothing
    name=a|b      only these values (None, True, False, numbers) are understood; they say nothing
    name~         whatever its value, it changes nothing over the reals
    *name         all that follows by position, as one tuple

Signatures and parameters are those of nnScaler's function registry (``graph/function/function.py``
and ``runtime/function/function.py``) and of PyTorch 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from frontends.nnscaler.inert import DType
from frontends.nnscaler.records import Constant, Tensor

Arguments = Mapping[str, Constant]
Rewrite = Callable[[Arguments], tuple[str, dict[str, Constant]]]


class Refused(Exception):
    """What of a call is not understood: a parameter, and its value."""


def shown(value: Constant) -> str:
    """A value of the file for a message."""
    if value is None or isinstance(value, (bool, int, float, DType)):
        return str(value)
    if isinstance(value, str):
        return ascii(value[:40])
    return f"of type {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: what its value says; see the module."""

    name: str
    attribute: str
    optional: bool = False
    ignored: bool = False
    only: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A declared operator and the parameters of the function that it is.  ``commutes``: the first
    two operands may be exchanged, so that the constant is the second.  ``rewrite``: makes operator,
    operands and attributes (by name, in order) of the arguments, where a row cannot say it."""

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
    return Parameter(name, attribute if colon else name.lstrip("*"), optional=text.endswith("?"))


def function(operator: str, parameters: str, *, commutes: bool = False) -> Function:
    return Function(operator, tuple(map(_parameter, parameters.split())), commutes)


def rewritten(rewrite: Rewrite, parameters: str) -> Function:
    return Function("", tuple(Parameter(name, name) for name in parameters.split()), False, rewrite)


def operand(arguments: Arguments, name: str) -> Tensor:
    """The tensor that is given for a parameter; raises `Refused` if there is none."""
    value = arguments.get(name)
    if not isinstance(value, Tensor):
        raise Refused(f"{name} {shown(value)}")
    return value


def unless(arguments: Arguments, name: str, *allowed: object) -> None:
    """Raise `Refused` unless a parameter is absent or has one of these values."""
    if name in arguments and not any(
        arguments[name] is x or (arguments[name] == x and type(arguments[name]) is type(x))
        for x in allowed
    ):
        raise Refused(f"{name} {shown(arguments[name])}")


# -- functions that a row cannot say ---------------------------------------------------------------

_INTEGERS: Final = ("bool", "uint8", "int8", "int16", "int32", "int64")


def _cast(arguments: Arguments) -> tuple[str, dict[str, Constant]]:
    """A cast, by whatever parameter its type is given; a device changes nothing."""
    x = operand(arguments, "tensor")
    kinds: list[Constant] = []
    for name, value in arguments.items():
        if isinstance(value, DType):
            kinds.append(value)
        elif isinstance(value, Tensor) and name != "tensor":
            kinds.append(value.dtype)
        elif not isinstance(value, (bool, str, type(None), Tensor)):
            raise Refused(f"{name} {shown(value)}")
    if len(kinds) > 1:
        raise Refused("two types")
    if not kinds:
        return "identity", {"tensor": x}
    wanted = kinds[0].name if isinstance(kinds[0], DType) else str(kinds[0])
    if _holds(wanted, x.dtype):
        return "identity", {"tensor": x}
    return "to", {"tensor": x, "dtype": wanted}


def _holds(wanted: str, given: str) -> bool:
    """Whether an integer type holds all numbers of another."""
    known = wanted in _INTEGERS and given in _INTEGERS and "uint8" not in (wanted, given)
    return known and _INTEGERS.index(wanted) >= _INTEGERS.index(given)


def _cast_to(kind: str) -> Function:
    """``tensor.float()`` and the like."""

    def rewrite(arguments: Arguments) -> tuple[str, dict[str, Constant]]:
        name, found = _cast({"tensor": operand(arguments, "tensor"), "dtype": DType("torch", kind)})
        return ("float" if (name, kind) == ("to", "float32") else name), found

    return rewritten(rewrite, "tensor memory_format")


def _dropout(arguments: Arguments) -> tuple[str, dict[str, Constant]]:
    """Nothing where p is 0, or where the plan says that it does not train."""
    x, p = operand(arguments, "input"), arguments.get("p", 0.5)
    unless(arguments, "inplace", False)
    if arguments.get("training") is False or (isinstance(p, (int, float)) and p == 0):
        return "identity", {"input": x}
    raise Refused(f"p {shown(p)}")


def _layer_norm(arguments: Arguments) -> tuple[str, dict[str, Constant]]:
    x = operand(arguments, "input")
    unless(arguments, "normalized_shape", x.shape[-1:], x.shape[-1])
    found: dict[str, Constant] = {"input": x, "weight": operand(arguments, "weight")}
    if arguments.get("bias") is not None:
        found["bias"] = operand(arguments, "bias")
    return "layernorm", {**found, "eps": arguments.get("eps", 1e-5)}


# -- the table -------------------------------------------------------------------------------------

def _elementwise(*names: str) -> dict[str, Function]:
    """Functions of one operand, in the three places where PyTorch has them."""
    places = {
        "torch": "input: out=None",
        "torch.Tensor": "input:",
        "torch.nn.functional": "input: inplace=False",
    }
    return {
        f"{place}.{name}": function(name, parameters)
        for name in names
        for place, parameters in places.items()
    }


def _twice(*rows: tuple[str, Function]) -> dict[str, Function]:
    """Functions that are methods of a tensor too."""
    return {f"{place}.{name}": row for name, row in rows for place in ("torch", "torch.Tensor")}


FUNCTIONS: Final[Mapping[str, Function]] = {
    **_elementwise("exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "silu"),
    "torch.nn.functional.gelu": function("gelu", "input: approximate=none"),
    **_twice(
        ("add", function("add", "input: other alpha out=None", commutes=True)),
        ("sub", function("sub", "input: other alpha=1 out=None")),
        ("mul", function("mul", "input: other out=None", commutes=True)),
        ("div", function("div", "input: other rounding_mode? out=None")),
        ("pow", function("pow", "input: exponent out=None")),
        ("sum", function("sum", "input: dim? keepdim dtype=None")),
        ("mean", function("mean", "input: dim? keepdim dtype=None")),
        ("transpose", function("transpose", "input: dim0 dim1")),
        ("permute", function("permute", "input: *dims")),
        ("matmul", function("matmul", "input: other: out=None")),
    ),
    "torch.Tensor.view": function("view", "input: *size"),
    "torch.Tensor.contiguous": function("contiguous", "input: memory_format~"),
    "torch.Tensor.float": _cast_to("float32"),
    "torch.Tensor.half": _cast_to("float16"),
    "torch.Tensor.bfloat16": _cast_to("bfloat16"),
    "torch.Tensor.double": _cast_to("float64"),
    "torch.Tensor.int": _cast_to("int32"),
    "torch.Tensor.long": _cast_to("int64"),
    "torch.Tensor.bool": _cast_to("bool"),
    "torch.Tensor.type_as": rewritten(_cast, "tensor other"),
    "torch.Tensor.to": rewritten(
        _cast, "tensor dtype device non_blocking copy memory_format other dtype_or_device"
    ),
    "nnscaler.runtime.function.to": rewritten(_cast, "tensor dtype_or_device dtype"),
    "torch.nn.functional.dropout": rewritten(_dropout, "input p training inplace"),
    "nnscaler.runtime.function.nndropout": rewritten(_dropout, "input p inplace"),
    "nnscaler.runtime.function.identity": function("identity", "tensor:"),
    "nnscaler.runtime.function.multiref": function("multiref", "tensor: times"),
    "nnscaler.runtime.function.embedding": function(
        "embedding", "input: weight: padding_idx start stop"
    ),
    "nnscaler.runtime.function.layer_norm": rewritten(
        _layer_norm, "input weight bias normalized_shape eps"
    ),
    "torch.nn.functional.layer_norm": rewritten(
        _layer_norm, "input normalized_shape weight bias eps"
    ),
    "torch.nn.functional.linear": function("linear", "input: weight: bias:?"),
    "torch.nn.functional.softmax": function("softmax", "input: dim _stacklevel~ dtype?"),
}

#: Functions of the model's own code, by the last part of their signature.
BY_NAME: Final[Mapping[str, Function]] = {
    "create_mask": function("create_mask", "tokens: h:"),
    "apply_mask": function("apply_mask", "x: mask:"),
    "apply_rotary_emb": function("apply_rotary_emb", "xq: xk: freqs_cis:"),
    "gate_fw": function(
        "gate_fw",
        "x: weight: bias:? n_groups topk_groups topk route_scale score_func",
    ),
    "nnscaler_moe_gmm": function(
        "nnscaler_moe_gmm",
        "x: indices: weights: gate_projs: up_projs: down_projs: n_routed_experts~ "
        "local_expert_start local_expert_end",
    ),
}
