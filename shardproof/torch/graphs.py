"""A graph module of torch.fx from memory, as the JSON that `shardproof verify` reads."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import torch
from torch import fx

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.records import CALL, CONSTANT, OPS, Graph, Node

_FILE = re.compile(r'File "([^"]*)", line (\d+)')


def graph(module: fx.GraphModule, rank: int = 0) -> bytes:
    """The graph of a module whose operators are those of ATen, as bytes of a file of that rank.

    Shapes and element types are those of the nodes' example values (``meta["val"]``, as
    `torch.export`, AOTAutograd and `make_fx` leave them)::

        Path("single.json").write_bytes(sp.graph(torch.export.export(model, args).graph_module))

    Raises `InvalidInput`, naming the node, for what such a file cannot hold.
    """
    nodes = [_node(node) for node in module.graph.nodes]
    return msgspec.json.encode(Graph(rank, nodes))


def _node(node: fx.Node) -> Node:
    if node.op not in OPS:
        raise InvalidInput(f"is a {node.op}, expected a graph of operators of ATen", node.name)
    target = node.target if isinstance(node.target, str) else str(node.target)
    if node.op == CALL and not isinstance(node.target, torch._ops.OpOverload):
        target = getattr(node.target, "__name__", target)
        target = f"<built-in function {target}>"
    value = node.meta.get("val")
    tensor = value if isinstance(value, torch.Tensor) else None
    shape, dtype = None, None
    if tensor is not None:
        if not all(isinstance(n, int) for n in tensor.shape):
            raise InvalidInput("a size that is no number: trace without dynamic shapes", node.name)
        shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    elif node.op not in (CALL, CONSTANT, "output"):
        raise InvalidInput("an input without an example value (meta['val'])", node.name)
    args = [_value(arg, node.name) for arg in node.args]
    kwargs = {key: _value(arg, node.name) for key, arg in node.kwargs.items()}
    return Node(node.name, node.op, target, args, kwargs, shape, dtype, _source(node))


def _value(arg: Any, where: str) -> Any:
    """An argument as the file has it."""
    if isinstance(arg, fx.Node):
        return {"n": arg.name}
    if isinstance(arg, (list, tuple)):
        return [_value(item, where) for item in arg]
    if arg is None or isinstance(arg, (bool, int, float, str)):
        return arg
    if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format)):
        return str(arg).removeprefix("torch.")
    if isinstance(arg, torch.device):
        return f"device:{arg}"
    raise InvalidInput(f"an argument that is not understood ({type(arg).__name__})", where)


def _source(node: fx.Node) -> str | None:
    """Where the last line of the node's stack trace is."""
    frames = _FILE.findall(node.meta.get("stack_trace") or "")
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else None
