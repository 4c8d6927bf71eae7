"""Programs of `torch.export` (.pt2): the graph in the archive's JSON, as the records of this room.

An archive is a zip file; read is its model in JSON (``models/model.json``, before format 1
``serialized_exported_program.json``); what else it holds are pickles, and bytes of numbers, of
which `stored` reads the second.  Nothing is executed, torch is not needed.

A model's inputs are named as in the archive: parameters ``p_...``, buffers ``b_...``, constants
``c_...``, and what the user gives.
"""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.records import (
    CALL,
    GETITEM,
    MOST_BYTES,
    OUTPUT,
    PLACEHOLDER,
    SPECIAL,
    Archived,
    Node,
)

#: How much of a file tells whether it is an archive.
HEAD_BYTES: Final = 1 << 12
ZIP: Final = b"PK\x03\x04"
#: Names of members that an archive of a program has near its beginning.
MARKS: Final = (
    b"archive_format",
    b"/data/weights/",
    b"/models/",
    b"serialized_exported_program.json",
)
#: torch's numbers of element types.
TYPES: Final[Mapping[int, str]] = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
}
#: Arguments that are what they say.
_PLAIN: Final = frozenset(
    {
        *("as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools"),
        *("as_string", "as_strings", "as_int_lists", "as_float_lists"),
    }
)
#: Inputs that are no tensors: the program was exported for this one value.
_FIXED: Final = frozenset({"as_none", "as_int", "as_float", "as_bool", "as_string"})
#: Operators that run a graph under another mode, which changes no number: its calls are as if they
#: stood in their place. The operands are those that come last, one for each of its inputs.
_WRAPPERS: Final = frozenset(
    f"torch.ops.higher_order.{name}"
    for name in (
        *("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap"),
        *("tag_activation_checkpoint", "invoke_subgraph"),
    )
)
#: How many graphs may be one inside the other.
_DEEPEST: Final = 16
#: Arguments that say nothing about values.
_IGNORED: Final = frozenset({"as_device", "as_layout", "as_memory_format"})


class Meta(msgspec.Struct, frozen=True):
    """Element type and sizes of a tensor, as `torch.export` serialises them.

    Example: ``{"dtype": 7, "sizes": [{"as_int": 6}, {"as_int": 4}]}`` is a float32 tensor [6, 4].
    """

    dtype: int
    sizes: list[dict[str, Any]]


class Argument(msgspec.Struct, frozen=True):
    """An argument of a call, with its name in the schema.

    Example: ``{"name": "weight", "arg": {"as_tensor": {"name": "p_up_weight"}}, "kind": 1}`` of a
    call of ``aten.linear``.
    """

    name: str
    arg: dict[str, Any]
    kind: int | None = None


class Call(msgspec.Struct, frozen=True):
    """A call of an operator: ``target`` such as "torch.ops.aten.add.Tensor"."""

    target: str
    inputs: list[Argument]
    outputs: list[dict[str, Any]]
    metadata: dict[str, str] = {}
    name: str | None = None


class Body(msgspec.Struct, frozen=True):
    """The serialised graph: its inputs, outputs, calls, and what its tensors are like.

    Example: of ``relu(linear(x))``: ``inputs`` with ``p_weight``, ``p_bias`` and ``x``, two
    ``nodes``.
    """

    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    nodes: list[Call]
    tensor_values: dict[str, Meta]


class Wrapped(msgspec.Struct, frozen=True):
    """A graph that a call runs.

    Example: that of ``with torch.no_grad():`` in a model, ``{"name": "submod_1", "graph": ...}``.
    """

    graph: Body


class Module(msgspec.Struct, frozen=True):
    """The serialised module: ``signature``, ``module_call_graph`` say what inputs and outputs
    are in the user's words (`shardproof.frontends.fx.signature`).

    Example: ``signature`` says that ``p_up_weight`` is the parameter ``up.weight``.
    """

    graph: Body
    signature: dict[str, Any] = {}
    module_call_graph: list[dict[str, Any]] = []


class Exported(msgspec.Struct, frozen=True):
    """The document of an archive, as far as it is read.

    Example: what ``torch.export.save`` writes as ``single/models/model.json`` of ``single.pt2``.
    """

    graph_module: Module


#: What zipfile raises of an archive that is cut, damaged, encrypted or packed in another way.
DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
)


def is_archive(head: bytes) -> bool:
    """Whether a file begins as an archive of a program.

    Example: a ``.pt2`` file is; a zip file without ``/models/`` or another of `MARKS` is not.
    """
    return head[:4] == ZIP and any(mark in head for mark in MARKS)


def module(path: Path) -> Module:
    """The model of an archive; raises `InvalidInput` and msgspec's errors.

    Example: of ``single.pt2``, its ``single/models/model.json``.
    """
    return msgspec.json.decode(member(path, is_model), type=Exported).graph_module


def graph(model: Module, rank: int = 0) -> Archived:
    """The graph of a model, as the records of this room.

    Example: the call "torch.ops.aten.linear.default" is a node of "aten.linear.default"; one whose
    result is a list of tensors ``a``, ``b`` is a node "split of 0" and two of ``getitem``.
    """
    return Archived(rank, list(_nodes(model.graph)), "fw", 0)


def member(path: Path, wanted: Callable[[str], bool], what: str = "model") -> bytes:
    """The bytes of the one member of an archive whose name is wanted; raises `InvalidInput`.

    Example: with ``is_model`` the bytes of ``single/models/model.json``; two such members are
    refused.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [i for i in archive.infolist() if wanted(i.filename)]
            if len(members) != 1:
                raise InvalidInput(f"expected one {what} in the archive, found {len(members)}")
            if members[0].file_size > MOST_BYTES:
                raise InvalidInput(f"a {what} larger than {MOST_BYTES >> 20} MiB")
            with archive.open(members[0]) as file:
                data = file.read(MOST_BYTES + 1)
    except DAMAGED as error:
        raise InvalidInput(f"is no archive: {error}") from None
    except OSError as error:
        # A damaged offset lies before the beginning; any other error is a fault of the machine.
        if error.errno != errno.EINVAL:
            raise
        raise InvalidInput("is no archive: an offset that is not in it") from None
    if len(data) > MOST_BYTES:
        raise InvalidInput(f"a {what} larger than {MOST_BYTES >> 20} MiB")
    return data


def is_model(name: str) -> bool:
    """Whether a member of an archive is the exported program, by the names that PyTorch's versions
    give it.

    Example: ``m/models/model.json`` is, ``m/data/weights/model.json`` is not.
    """
    parts = name.split("/")
    return parts[-1] == "serialized_exported_program.json" or (
        len(parts) >= 2 and parts[-2] == "models" and parts[-1].endswith(".json")
    )


# -- nodes -------------------------------------------------------------------------------------


def _nodes(graph: Body) -> Iterator[Node]:
    for number, item in enumerate(graph.inputs):
        name = _tensor(item)
        if name is None:
            kinds = list(item)
            if len(kinds) == 1 and kinds[0] in _FIXED:
                continue
            raise InvalidInput(f"input {number} is no tensor ({', '.join(kinds)})")
        yield Node(name, PLACEHOLDER, name, [], {}, *_type(graph, name))
    yield from _calls(graph, 0)
    outputs = [_operand(name) for name in map(_tensor, graph.outputs)]
    yield Node("output", OUTPUT, "output", [outputs], {})


def _calls(graph: Body, depth: int) -> Iterator[Node]:
    for number, call in enumerate(graph.nodes):
        if call.target in _WRAPPERS:
            yield from _wrapped(graph, call, number, depth + 1)
        else:
            yield from _call(graph, call, number)


def _wrapped(graph: Body, call: Call, number: int, depth: int) -> Iterator[Node]:
    """The calls of the graph that a call runs, under names of their own; its results are those of
    the call."""
    where = call.name or f"node {number}"
    graphs = [a.arg["as_graph"] for a in call.inputs if "as_graph" in a.arg]
    if len(graphs) != 1 or depth > _DEEPEST:
        raise InvalidInput(f"{len(graphs)} graphs, {depth} deep", where)
    inner = msgspec.convert(graphs[0], Wrapped).graph
    given = [a.arg for a in call.inputs if "as_graph" not in a.arg]
    if len(given) < len(inner.inputs):
        raise InvalidInput(f"{len(given)} operands of a graph of {len(inner.inputs)}", where)
    names: dict[str, str] = {}
    for own, outside in zip(inner.inputs, given[len(given) - len(inner.inputs) :], strict=True):
        name, operand = _tensor(own), _tensor(outside)
        if name is None or operand is None:
            raise InvalidInput("an operand of a graph that is no tensor", where)
        names[name] = operand
    made = [name for item in call.outputs for name in _results(item, where)]
    results = list(map(_tensor, inner.outputs))
    if len(made) != len(results):
        raise InvalidInput(f"{len(made)} results of a graph that has {len(results)}", where)
    for node in _calls(inner, depth):
        args, keywords = _renamed(node.args, names), _renamed(node.kwargs, names)
        names[node.name] = f"{where}/{node.name}"
        yield replace(node, name=names[node.name], args=args, kwargs=keywords)
    for name, result in zip(made, results, strict=True):
        if name is not None and result is not None:
            same = [_renamed(_operand(result), names)]
            yield Node(name, CALL, "aten.alias.default", same, {}, *_type(graph, name))


def _renamed(x: Any, names: Mapping[str, str]) -> Any:
    """Arguments with other names of nodes; raises `InvalidInput` for a node that is not there."""
    if isinstance(x, dict) and set(x) == {"n"}:
        if x["n"] not in names:
            raise InvalidInput("an operand that its graph has not", str(x["n"]))
        return {"n": names[x["n"]]}
    if isinstance(x, dict):
        return {key: _renamed(value, names) for key, value in x.items()}
    return [_renamed(one, names) for one in x] if isinstance(x, list) else x


def _call(graph: Body, call: Call, number: int) -> Iterator[Node]:
    where = call.name or f"node {number}"
    args: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in call.inputs:
        value = _value(argument.arg, f"{where}, {argument.name}")
        if value is _NOTHING:
            continue
        if argument.kind == 2:
            keywords[argument.name] = value
        else:
            args.append(value)
    target = call.target.removeprefix("torch.ops.")
    source = _source(call.metadata.get("stack_trace", ""))
    results = [name for item in call.outputs for name in _results(item, where)]
    single = len(call.outputs) == 1 and "as_tensor" in call.outputs[0]
    if single and results[0] is not None:
        shape = _type(graph, results[0])
        yield Node(results[0], CALL, target, args, keywords, *shape, source)
        return
    whole = f"{where} of {number}"
    yield Node(whole, CALL, target, args, keywords, None, None, source)
    for index, name in enumerate(results):
        if name is not None:
            part: list[Any] = [_operand(whole), index]
            yield Node(name, CALL, GETITEM, part, {}, *_type(graph, name), source)


def _type(graph: Body, name: str) -> tuple[list[int], str]:
    meta = graph.tensor_values.get(name)
    if meta is None:
        raise InvalidInput("a tensor without a shape", name)
    sizes = []
    for size in meta.sizes:
        value = size.get("as_int")
        if not isinstance(value, int):
            raise InvalidInput("a size that is no number: export without dynamic shapes", name)
        sizes.append(value)
    return sizes, TYPES.get(meta.dtype, f"type {meta.dtype}")


def _operand(name: str | None) -> Any:
    return None if name is None else {"n": name}


def _tensor(item: Mapping[str, Any]) -> str | None:
    tensor = item.get("as_tensor")
    name = tensor.get("name") if isinstance(tensor, dict) else None
    return name if isinstance(name, str) else None


def _results(item: Mapping[str, Any], where: str) -> list[str | None]:
    if "as_tensor" in item:
        return [_tensor(item)]
    if "as_tensors" in item and isinstance(item["as_tensors"], list):
        return [_tensor({"as_tensor": x}) for x in item["as_tensors"]]
    if "as_none" in item:
        return [None]
    raise InvalidInput(f"a result that is no tensor ({', '.join(item)})", where)


_NOTHING: Final = object()


def _value(arg: Mapping[str, Any], where: str) -> Any:
    if len(arg) != 1:
        raise InvalidInput("an argument of several kinds", where)
    ((kind, value),) = arg.items()
    if kind == "as_float" and value in SPECIAL:
        return float(value)
    if kind in _PLAIN:
        return value
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return _operand(_named(value, where))
    if kind == "as_tensors":
        return [_operand(_named(x, where)) for x in value]
    if kind == "as_optional_tensor":
        return _operand(_tensor(value))
    if kind == "as_optional_tensors":
        return [_operand(_tensor(x)) for x in value]
    if kind == "as_scalar_type":
        return TYPES.get(value, f"type {value}")
    if kind in _IGNORED:
        return _NOTHING
    raise InvalidInput(f"an argument that is not understood ({kind})", where)


def _named(tensor: Any, where: str) -> str:
    name = tensor.get("name") if isinstance(tensor, dict) else None
    if not isinstance(name, str):
        raise InvalidInput("an operand without a name", where)
    return name


def _source(trace: str) -> str | None:
    """The last line of a stack trace that names a file, as file:line."""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not lines:
        return None
    parts = lines[-1].split('"')
    number = lines[-1].partition(", line ")[2].split(",")[0]
    return f"{parts[1]}:{number}" if len(parts) > 1 else lines[-1]
