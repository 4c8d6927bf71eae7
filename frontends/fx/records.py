"""The graphs as the files hold them: nodes in order, strictly typed; nothing is interpreted here.

A file is one rank's graph, JSON or JSON compressed by gzip::

    {"rank": 0, "direction": "fw", "gid": 0, "nodes": [
      {"name": "x", "op": "placeholder", "target": "x", "args": [], "kwargs": {},
       "shape": [2, 4], "dtype": "float32", "src": null},
      {"name": "y", "op": "call_function", "target": "aten.exp.default", "args": [{"n": "x"}], ...},
      {"name": "output", "op": "output", "target": "output", "args": [[{"n": "y"}]], ...}]}

Infinities and "no number" among arguments are ``{"float": "-Infinity"}``. ``tables``, where a file
has them, are the numbers of its ``get_attr`` nodes: the bytes of each in base64, in row-major order
and in the element type of the node, the lowest byte first.

Invariants of what `read` returns: names are given once and before they are read; shapes are
sizes; there is one output node, the last one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.untrusted.inert import printable

#: Files that are larger, unpacked, are refused; as are graphs of more nodes.
MOST_BYTES: Final = 256 << 20
MOST_NODES: Final = 1 << 18
MOST_ELEMENTS: Final = 1 << 50
MOST_RANKS: Final = 1 << 12
#: Floats that are no numbers in JSON, as arguments write them: ``{"float": "-Infinity"}``.
SPECIAL: Final = ("Infinity", "-Infinity", "NaN")
FLOAT: Final = "float"
_GZIP: Final = b"\x1f\x8b"
#: A shape with a size that has a name.
_NAMED_SIZE: Final = re.compile(rb'"shape"\s*:\s*\[[^\]"]*"')
_SPECIAL_FLOAT: Final = re.compile(rb'"float"\s*:\s*"')
#: The number of a rank in a file name: fw.g0.r3.json.gz, rank3.json, r3.json.
RANK: Final = re.compile(r"(?:^|[._-])(?:r|rank)[._-]?(\d+)\.(?:json(?:\.gz)?|pt2)$")

#: What chooses one of several results.
GETITEM: Final = "<built-in function getitem>"
PLACEHOLDER, CALL, CONSTANT, OUTPUT = "placeholder", "call_function", "get_attr", "output"
OPS: Final = frozenset({PLACEHOLDER, CALL, CONSTANT, OUTPUT})


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node; operands are ``{"n": name}`` anywhere in ``args`` and ``kwargs``.

    Example: ``{"name": "y", "op": "call_function", "target": "aten.exp.default", "args": [{"n":
    "x"}], "kwargs": {}, "shape": [2, 4], "dtype": "float32", "src": "y = x.exp()"}``.
    """

    name: str
    op: str
    target: str
    args: list[Any]
    kwargs: dict[str, Any]
    shape: list[int] | None = None
    dtype: str | None = None
    src: str | None = None


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank's graph; ``tables``: the bytes of constants by the names of their nodes (None: the
    file does not have them); ``written``: inputs whose memory it wrote before it was written anew
    (`shardproof.frontends.fx.functional`), which no file says.

    Example: ``{"rank": 0, "nodes": [...]}`` with placeholders ``x`` and ``w`` has the ``inputs``
    ``x``, ``w``.
    """

    rank: int
    nodes: list[Node]
    direction: str | None = None
    gid: int | None = None
    tables: dict[str, bytes] | None = None
    written: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[Node]:
        """The placeholders, in the order of the arguments."""
        return [node for node in self.nodes if node.op == PLACEHOLDER]

    @property
    def outputs(self) -> list[Any]:
        """What the output node names, in order: each an operand, or something that is none."""
        given = self.nodes[-1].args[0] if self.nodes[-1].args else []
        return list(given) if isinstance(given, list) else [given]


def operand(x: object) -> str | None:
    """The node that an argument names.

    Example: of ``{"n": "x"}`` it is "x", of 2 None.
    """
    if isinstance(x, dict) and len(x) == 1 and isinstance(x.get("n"), str):
        return str(x["n"])
    return None


def named(name: str) -> dict[str, str]:
    """An argument that names a node.

    Example: of "x" it is ``{"n": "x"}``.
    """
    return {"n": name}


def operands(x: object) -> Iterator[str]:
    """All nodes that an argument names, in order.

    Example: of ``[{"n": "x"}, [2, {"n": "y"}]]`` they are "x", "y".
    """
    name = operand(x)
    if name is not None:
        yield name
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from operands(item)
    elif isinstance(x, dict):
        for item in x.values():
            yield from operands(item)


class Archived(Graph, frozen=True):
    """A graph of an archive; ``numbers``: those of tensors that the program has of its own (tables
    of positions, masks), by the names of their nodes: these are none of its inputs; ``state``:
    those that its buffers had when it was exported; ``leaves``: inputs of which it says what it
    leaves in them, by its first outputs.

    Example: with a buffer ``inv`` that no checkpoint has, ``numbers["b_inv"]`` is its array, and
    ``b_inv`` is not among ``inputs``; ``state["b_mean"]`` is that of a running mean.
    """

    numbers: dict[str, Any] = {}
    state: dict[str, Any] = {}
    leaves: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[Node]:
        """The placeholders that are inputs, in the order of the arguments."""
        return [n for n in self.nodes if n.op == PLACEHOLDER and n.name not in self.numbers]


# -- files -------------------------------------------------------------------------------------


def ranks(path: Path) -> list[Path]:
    """The files of the ranks in order: a file alone, or those of a folder, numbered from 0.

    Example: of a folder with ``fw.g0.r1.json.gz`` and ``fw.g0.r0.json.gz``, the second and the
    first; one with those of ranks 0 and 2 is refused.
    """
    name = printable(str(path), 400)
    if not path.is_dir():
        return [path]
    files: dict[int, Path] = {}
    for file in sorted(path.iterdir()):
        number = RANK.search(file.name)
        if number is None:
            continue
        rank = int(number[1])
        if rank in files:
            raise InvalidInput(
                f"expected one graph of rank {rank}, found {files[rank].name} and {file.name}", name
            )
        files[rank] = file
    if not files or sorted(files) != list(range(len(files))) or len(files) > MOST_RANKS:
        raise InvalidInput(
            f"expected files of ranks 0 to n (such as r0.json.gz), found ranks {sorted(files)}",
            name,
        )
    return [files[rank] for rank in sorted(files)]


def read(path: Path, other: Callable[[Path], Graph | None] = lambda _: None) -> Graph:
    """The graph in a file; raises `UnreadablePlan` naming the file and the node.  ``other``: reads
    another format (None: the file is JSON).

    Example: ``r0.json.gz`` and what it unpacks to give the same graph; a node of the kind
    ``call_module`` is refused.
    """
    name = printable(str(path), 400)
    try:
        graph = other(path) or _decoded(_unpacked(path))
        _check(graph)
    except OSError as error:
        raise UnreadablePlan(f"expected a readable file, found: {error.strerror}", name) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadablePlan(f"expected a graph in JSON, found: {error}", name) from None
    except InvalidInput as error:
        raise UnreadablePlan(str(error), name) from None
    return graph


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if data[:2] == _GZIP:
        try:
            unpacker = zlib.decompressobj(wbits=31)
            data = unpacker.decompress(data, MOST_BYTES + 1)
        except zlib.error as error:
            raise InvalidInput(f"is no gzip: {error}") from None
        if len(data) <= MOST_BYTES and not unpacker.eof:
            raise InvalidInput("is gzip that ends early")
    if len(data) > MOST_BYTES:
        raise InvalidInput(f"is larger than {MOST_BYTES >> 20} MiB")
    return data


def _decoded(data: bytes) -> Graph:
    """The graph in JSON; sizes that are names (``"u0"``) become negative numbers, each name its
    own."""
    if not _NAMED_SIZE.search(data):
        graph = msgspec.json.decode(data, type=Graph)
        sizes = [n for node in graph.nodes for n in node.shape or ()]
    else:
        raw, names, sizes = msgspec.json.decode(data), dict[str, int](), list[int]()
        nodes = raw.get("nodes") if isinstance(raw, dict) else None
        for node in nodes if isinstance(nodes, list) else ():
            shape = node.get("shape") if isinstance(node, dict) else None
            if isinstance(shape, list):
                sizes += [n for n in shape if isinstance(n, int)]
                node["shape"] = [
                    names.setdefault(n, -1 - len(names))
                    if isinstance(n, str) and n.isidentifier()
                    else n
                    for n in shape
                ]
        graph = msgspec.convert(raw, Graph)
    if any(n < 0 for n in sizes):
        raise InvalidInput("a shape of negative sizes")
    for node in graph.nodes if _SPECIAL_FLOAT.search(data) else ():
        node.args[:] = map(_with_floats, node.args)
        node.kwargs.update({key: _with_floats(arg) for key, arg in node.kwargs.items()})
    return graph


def _with_floats(arg: Any) -> Any:
    """An argument with the floats that JSON has no numbers for."""
    if isinstance(arg, list):
        return [_with_floats(item) for item in arg]
    if isinstance(arg, dict):
        number = arg.get(FLOAT)
        if len(arg) == 1 and number in SPECIAL:
            return float(number)
        return {name: _with_floats(item) for name, item in arg.items()}
    return arg


def _check(graph: Graph) -> None:
    if not 0 <= graph.rank < MOST_RANKS:
        raise InvalidInput(f"rank {graph.rank}")
    if graph.written:
        raise InvalidInput("a field that no file has: written")
    if not graph.nodes or len(graph.nodes) > MOST_NODES:
        raise InvalidInput(f"{len(graph.nodes)} nodes, expected 1 to {MOST_NODES}")
    known: set[str] = set()
    for node in graph.nodes:
        where = f"node {printable(node.name, 80)}"
        if node.op not in OPS:
            raise InvalidInput(
                f"a node of kind {printable(node.op, 80)}, expected {sorted(OPS)}", where
            )
        if node.name in known:
            raise InvalidInput("is given twice", where)
        for name in (*operands(node.args), *operands(node.kwargs)):
            if name not in known:
                raise InvalidInput(f"reads {printable(name, 80)}, which is not given before", where)
        _sizes(node, where)
        if node.target == GETITEM and any(_is_far(index) for index in node.args[1:]):
            raise InvalidInput("a result of a number that no operator has", where)
        known.add(node.name)
    ends = [i for i, node in enumerate(graph.nodes) if node.op == OUTPUT]
    if ends != [len(graph.nodes) - 1]:
        raise InvalidInput("expected one output node, the last one")


def _is_far(index: Any) -> bool:
    return isinstance(index, int) and abs(index) > MOST_NODES


def _sizes(node: Node, where: str) -> None:
    count = 1
    for size in node.shape or ():
        count *= max(size, 1) if node.op == CALL else size
        named = node.op == CALL and -MOST_NODES <= size < 0
        if not (named or 0 <= size <= MOST_ELEMENTS) or count > MOST_ELEMENTS:
            raise InvalidInput(f"a shape of {printable(str(node.shape), 80)}", where)
    if node.op == PLACEHOLDER and (node.shape is None or node.dtype is None):
        raise InvalidInput("an input without shape or element type", where)
