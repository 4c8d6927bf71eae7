"""A graph module of torch.fx from memory, as the JSON that `shardproof verify` reads."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.records import (
    CALL,
    CONSTANT,
    FLOAT,
    OPS,
    PLACEHOLDER,
    SPECIAL,
    Graph,
    Node,
)

#: How torch.fx names the constants of a program that it traces.
TRACED = "_tensor_constant"
#: What checks the inputs of a module of `torch.export`.
GUARDS = "_guards_fn"
_FILE = re.compile(r'File "([^"]*)", line (\d+)')


def graph(module: fx.GraphModule, rank: int = 0) -> bytes:
    """The graph of a module whose operators are those of ATen, as bytes of a file of that rank.

    Shapes and element types are those of the nodes' example values (``meta["val"]``, as
    `torch.export`, AOTAutograd and `make_fx` leave them)::

        Path("single.json").write_bytes(sp.graph(torch.export.export(model, args).graph_module))

    Tensors of the module are inputs where a checkpoint has them (parameters, persistent buffers);
    the numbers of others are written with the graph. Raises `InvalidInput`, naming the node, for
    what such a file cannot hold.
    """
    writer = _Writer(module)
    nodes = [writer.node(node) for node in module.graph.nodes if node not in writer.left_out]
    tables = {
        node.name: _bytes(writer.tensors[node.name])
        for node in nodes
        if node.op == CONSTANT and node.name in writer.tensors
    }
    return msgspec.json.encode(Graph(rank, nodes, tables=tables))


class _Writer:
    """The nodes of a module as the file has them."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.tensors = _tensors(module)
        self.names = _names(module)
        nodes = module.graph.nodes
        self.left_out = {node for node in nodes if _is_guard(node) or _is_no_tensor(node)}

    def node(self, node: fx.Node) -> Node:
        """A node; raises `InvalidInput` for what the file cannot hold."""
        if node.op not in OPS:
            raise InvalidInput(f"is a {node.op}, expected a graph of operators of ATen", node.name)
        target = node.target if isinstance(node.target, str) else str(node.target)
        if node.op == CALL and not isinstance(node.target, torch._ops.OpOverload):
            target = getattr(node.target, "__name__", target)
            target = f"<built-in function {target}>"
        value = node.meta.get("val", self.tensors.get(node.name))
        tensor = value if isinstance(value, torch.Tensor) else None
        shape, dtype = None, None
        if tensor is not None:
            if not all(isinstance(n, int) for n in tensor.shape):
                raise InvalidInput(
                    "a size that is no number: trace without dynamic shapes", node.name
                )
            shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        elif node.op not in (CALL, CONSTANT, "output"):
            raise InvalidInput("an input without an example value (meta['val'])", node.name)
        args = [self._value(arg, node.name) for arg in node.args]
        kwargs = {key: self._value(arg, node.name) for key, arg in node.kwargs.items()}
        op = PLACEHOLDER if _is_given(node) else node.op
        name = self.names[node.name]
        return Node(name, op, target, args, kwargs, shape, dtype, _source(node))

    def _value(self, arg: Any, where: str) -> Any:
        """An argument, without nodes that are left out."""
        if isinstance(arg, fx.Node):
            return {"n": self.names[arg.name]}
        if isinstance(arg, (list, tuple)):
            kept = (x for x in arg if not (isinstance(x, fx.Node) and x in self.left_out))
            return [self._value(item, where) for item in kept]
        if isinstance(arg, float) and not isfinite(arg):
            return {FLOAT: next(name for name in SPECIAL if repr(float(name)) == repr(arg))}
        if arg is None or isinstance(arg, (bool, int, float, str)):
            return arg
        if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format)):
            return str(arg).removeprefix("torch.")
        if isinstance(arg, torch.device):
            return f"device:{arg}"
        raise InvalidInput(f"an argument that is not understood ({type(arg).__name__})", where)


def _names(module: fx.GraphModule) -> dict[str, str]:
    """The names of nodes in the file: of a parameter that AOTAutograd describes that which
    `torch.export` gives it (``primals_3`` is ``p_layers_0_up_weight``), of others their own."""
    names = {node.name: node.name for node in module.graph.nodes}
    for node in module.graph.find_nodes(op=PLACEHOLDER):
        described = node.meta.get("desc")
        while hasattr(described, "base"):
            described = described.base
        target = getattr(described, "target", None)
        if isinstance(target, str):
            name = f"p_{re.sub('[^0-9A-Za-z_]', '_', target)}"
            if name not in names.values():
                names[node.name] = name
    return names


def _is_guard(node: fx.Node) -> bool:
    """Whether a node checks the inputs, as a module of `torch.export` begins by doing."""
    return node.op == "call_module" and node.target == GUARDS and not node.users


def _is_no_tensor(node: fx.Node) -> bool:
    """Whether a node is an input that is no tensor (a mesh of devices, as AOTAutograd has those of
    DTensors), which no operator reads."""
    value = node.meta.get("val")
    if node.op != PLACEHOLDER or isinstance(value, (torch.Tensor, torch.SymInt, int, float)):
        return False
    return all(user.op == "output" for user in node.users)


def _tensors(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """The tensors of a module by the names of the nodes that read them."""
    tensors = {}
    for node in module.graph.nodes:
        if node.op == CONSTANT:
            holder, _, name = str(node.target).rpartition(".")
            value = getattr(module.get_submodule(holder), name, None)
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                tensors[node.name] = value
    return tensors


def _bytes(tensor: torch.Tensor) -> bytes:
    """The numbers of a tensor in row-major order, the lowest byte first."""
    with unset_fake_temporarily():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().tobytes()


def _is_given(node: fx.Node) -> bool:
    """Whether a node reads a tensor of its module that a checkpoint has; constants of the program
    that was traced are buffers of the module, too."""
    module, name = node.graph.owning_module, str(node.target)
    if node.op != CONSTANT or module is None or name.startswith(TRACED):
        return False
    return name in module.state_dict()


def _source(node: fx.Node) -> str | None:
    """Where the last line of the node's stack trace is."""
    frames = _FILE.findall(node.meta.get("stack_trace") or "")
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else None
