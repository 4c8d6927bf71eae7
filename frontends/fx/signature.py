"""What inputs and outputs of a program of `torch.export` are, in the words of whoever wrote it.

A model ``Net`` with a parameter ``up.weight``, a buffer ``scale`` and ``forward(self, x)`` that
returns ``{"logits": y}`` has the inputs ``p_up_weight`` (parameter ``up.weight``), ``b_scale``
(buffer ``scale``) and ``x`` (given by the user), and the output ``logits``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.pt2 import Module

PARAMETER, BUFFER, CONSTANT, USER = "parameter", "buffer", "tensor_constant", "user_input"
#: Outputs that the program returns; others are what it writes into buffers.
RETURNED = ("user_output", "loss_output")
#: Trees of outputs are not deeper.
MOST_DEPTH = 64


class Tensor(msgspec.Struct, frozen=True):
    """A tensor argument of the signature, by its name in the graph.

    Example: ``{"name": "p_up_weight"}``.
    """

    name: str


class Given(NamedTuple):
    """An input: the ``value`` of the graph, its ``kind`` and ``name`` in the user's words.

    Example: ``Given("p_up_weight", "parameter", "up.weight")``.
    """

    value: str
    kind: str
    name: str


class Returned(NamedTuple):
    """An output: the ``value`` of the graph, and its name: the path in what ``forward`` returns
    (``logits``, ``hidden.0``), or the value's own.

    Example: ``Returned("relu_", "logits")`` where ``forward`` returns ``{"logits":
    torch.relu_(y)}``.
    """

    value: str
    name: str


def inputs(model: Module) -> dict[str, Given]:
    """What every input of the graph is, by its value; raises `InvalidInput` for a kind that is not
    known.

    Example: ``b_scale`` is ``Given("b_scale", "buffer", "scale")``, ``x`` is ``Given("x",
    "user_input", "x")``; a number that the user gives is none of them.
    """
    inputs = {}
    for number, spec in enumerate(_specs(model, "input_specs")):
        ((kind, fields),) = spec.items()
        if kind in ("constant_input", "token"):
            continue
        where = f"input {number}"
        if kind not in (PARAMETER, BUFFER, CONSTANT, USER):
            raise InvalidInput(f"an input of a kind that is not read ({kind[:40]})", where)
        arg = _field(fields, "arg", where)
        if kind == USER and set(arg) <= {"as_none", "as_int", "as_float", "as_bool", "as_string"}:
            continue
        tensor = _tensor(_field(arg, "as_tensor", where) if kind == USER else arg, where)
        name = tensor if kind == USER else fields.get(f"{kind}_name")
        if not isinstance(name, str):
            raise InvalidInput(f"a {kind} without a name", where)
        inputs[tensor] = Given(tensor, kind, name)
    return inputs


class Stored(NamedTuple):
    """A constant or a buffer: the ``name`` under which an archive stores it, and whether it is the
    program's ``own``: a constant, or a buffer that is not persistent and that nothing writes.

    Example: of ``register_buffer("inv", inv, persistent=False)``, ``Stored("inv", True)``.
    """

    name: str
    own: bool


#: Outputs that are what a program leaves in a buffer, or an input, and where they name it.
_LEFT: Final = {"buffer_mutation": "buffer_name", "user_input_mutation": "user_input_name"}


def left_names(model: Module) -> list[str]:
    """The buffers and inputs that a program says it leaves something else in, by their names in it,
    in the order of its outputs, of which they are the first.

    Example: of a running mean ``norm.mean``, that.
    """
    specs = _plain(model.signature.get("output_specs"))
    return [str(fields.get(_LEFT[kind])) for kind, fields in specs if kind in _LEFT]


def stored_tensors(model: Module) -> dict[str, Stored]:
    """The constants and buffers of a program, by their values in the graph.

    Example: of a running mean ``norm.mean``, ``{"b_norm_mean": Stored("norm.mean", False)}``.
    """
    written = left_names(model)
    tensors = {}
    for kind, fields in _plain(model.signature.get("input_specs")):
        name, arg = fields.get(f"{kind}_name"), fields.get("arg")
        if kind in (CONSTANT, BUFFER) and isinstance(name, str) and isinstance(arg, dict):
            own = kind == CONSTANT or (fields.get("persistent") is False and name not in written)
            tensors[str(arg.get("name"))] = Stored(name, own)
    return tensors


def _plain(specs: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Kind and fields of the entries that have both; what an entry of another form says is not
    asked here."""
    for spec in specs if isinstance(specs, list) else ():
        for kind, fields in spec.items() if isinstance(spec, dict) else ():
            if isinstance(fields, dict):
                yield kind, fields


def outputs(model: Module) -> list[Returned]:
    """What the program returns, in order; raises `InvalidInput`.

    Example: of ``return {"logits": y, "hidden": [z]}`` the names ``logits`` and ``hidden.0``.
    """
    returned = []
    for number, spec in enumerate(_specs(model, "output_specs")):
        ((kind, fields),) = spec.items()
        if kind not in RETURNED:
            continue
        where = f"output {number}"
        arg = _field(fields, "arg", where)
        inner = arg.get("as_tensor") if kind == "user_output" else arg
        returned.append(None if inner is None else _tensor(inner, where))
    names = _names(model)
    if len(names) != len(returned):
        names = [""] * len(returned)
    return [
        Returned(value, name or value)
        for value, name in zip(returned, names, strict=True)
        if value is not None
    ]


def _specs(model: Module, key: str) -> list[dict[str, Any]]:
    specs = model.signature.get(key)
    if not isinstance(specs, list) or any(not isinstance(s, dict) or len(s) != 1 for s in specs):
        raise InvalidInput(f"expected a signature with {key}")
    return specs


def _field(fields: Any, key: str, where: str) -> Mapping[str, Any]:
    inner = fields.get(key) if isinstance(fields, dict) else None
    if not isinstance(inner, dict):
        raise InvalidInput(f"expected {key}", where)
    return inner


def _tensor(fields: Any, where: str) -> str:
    try:
        return msgspec.convert(fields, Tensor).name
    except msgspec.ValidationError:
        raise InvalidInput("expected a tensor with a name", where) from None


# -- names of outputs ------------------------------------------------------------------------------


def _names(model: Module) -> list[str]:
    """The path of every leaf in what ``forward`` returns; positions of a tuple alone are no names
    ("")."""
    for call in model.module_call_graph:
        if call.get("fqn") != "" or not isinstance(call.get("signature"), dict):
            continue
        try:
            _, tree = json.loads(str(call["signature"].get("out_spec")))
            paths = list(_leaves(tree, (), 0))
        except (ValueError, TypeError, KeyError, RecursionError):
            return []
        plain = all(part.isdecimal() for path in paths for part in path)
        return ["" if plain else ".".join(path) for path in paths]
    return []


def _leaves(tree: Any, path: tuple[str, ...], depth: int) -> Iterator[tuple[str, ...]]:
    children = tree["children_spec"]
    if tree["type"] is None or depth > MOST_DEPTH:
        yield path
        return
    context = json.loads(tree["context"]) if tree["context"] else None
    keys = list(map(str, range(len(children))))
    if isinstance(context, list) and len(context) == len(children):
        keys = list(map(str, context))
    for key, child in zip(keys, children, strict=True):
        yield from _leaves(child, (*path, key), depth + 1)
