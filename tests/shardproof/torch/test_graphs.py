"""Graph modules of torch.fx from memory: read as files are, proved, and refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import shardproof
import shardproof.torch as sp
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.files import side


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x))) * scale


def verdict_of(folder: Path, single: bytes, parallel: bytes) -> str:
    """The verdict on two graphs, each a file."""
    (folder / "single.json").write_bytes(single)
    (folder / "parallel.json").write_bytes(parallel)
    return shardproof.verify(
        folder / "single.json", folder / "parallel.json", out=folder / "run", cache=False
    ).verdict


def exported(scale: float = 1.0) -> bytes:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x, scale)

    program = torch.export.export(Scaled(), (torch.zeros(2, 4),))
    return sp.graph(program.run_decompositions({}).graph_module)


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "proved"), (0.5, "refuted")])
def test_a_module_is_read_as_a_file_is(tmp_path: Path, scale: float, verdict: str) -> None:
    assert verdict_of(tmp_path, exported(), exported(scale)) == verdict


def test_what_is_no_operator_is_named() -> None:
    module = torch.fx.symbolic_trace(Model())
    with pytest.raises(InvalidInput, match="x"):
        sp.graph(module)


def traced(last: float, low: float = float("-inf")) -> bytes:
    """A module whose weights of columns are in the graph, as are an order of them and a bound."""

    def program(x: torch.Tensor) -> torch.Tensor:
        weights, order = torch.tensor([1.0, 2.0, last]), torch.tensor([2, 0, 1])
        hidden = torch.tensor([False, True, False])
        return ((x * weights)[:, order]).masked_fill(hidden, low).softmax(-1)

    return sp.graph(make_fx(program)(torch.zeros(2, 3)))


@pytest.mark.parametrize(
    ("last", "low", "verdict"),
    [(3.0, float("-inf"), "proved"), (4.0, float("-inf"), "refuted"), (3.0, 0.0, "refuted")],
)
def test_constants_and_infinite_arguments_are_in_the_file(
    tmp_path: Path, last: float, low: float, verdict: str
) -> None:
    assert verdict_of(tmp_path, traced(3.0), traced(last, low)) == verdict


def test_parameters_of_a_module_are_inputs(tmp_path: Path) -> None:
    """As are inputs of the unlifted module, whose checks of inputs are no part of the file."""
    module = torch.export.export(Model(), (torch.zeros(2, 4),)).module()
    assert isinstance(module, torch.fx.GraphModule)
    (tmp_path / "module.json").write_bytes(sp.graph(module))
    (graph,) = side(tmp_path / "module.json")
    assert {n.name for n in graph.inputs} >= {"up_weight", "up_bias", "down_weight", "x"}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("_tensor_constant0", "AAAA", "3 bytes where the node has 12"),
        ("x_1", "AAAA", "is no node of kind get_attr"),
        ("nothing", "AAAA", "is no node of kind get_attr"),
        ("_tensor_constant0", "***", "expected a graph in JSON"),
    ],
)
def test_numbers_that_are_not_those_of_the_node_are_refused(
    tmp_path: Path, name: str, data: str, message: str
) -> None:
    graph = json.loads(traced(3.0))
    graph["tables"][name] = data
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    with pytest.raises(InvalidInput, match=message):
        side(tmp_path / "graph.json")


def with_mesh(factor: float) -> bytes:
    """What AOTAutograd makes of a product whose parameter is a DTensor: an input that is a mesh, and
    is only handed on."""
    graph = torch.fx.Graph()
    values = {"primals_1": torch.zeros(2, 3), "primals_2": None, "primals_3": torch.zeros(3)}
    given = {name: graph.placeholder(name) for name in values}
    for name, value in values.items():
        if value is not None:
            given[name].meta["val"] = value
    product = graph.call_function(
        torch.ops.aten.mul.Tensor, (given["primals_1"], given["primals_3"])
    )
    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (product, factor))
    product.meta["val"] = scaled.meta["val"] = torch.zeros(2, 3)
    graph.output((scaled, given["primals_2"]))
    return sp.graph(torch.fx.GraphModule(nn.Module(), graph))


def without_mesh(factor: float) -> bytes:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight * factor

    traced = make_fx(program)(torch.zeros(2, 3), torch.zeros(3))
    for number, node in enumerate(traced.graph.find_nodes(op="placeholder"), 1):
        node.name = node.target = f"primals_{number}"
    return sp.graph(traced)


@pytest.mark.parametrize(("factor", "verdict"), [(2.0, "proved"), (3.0, "refuted")])
def test_inputs_that_are_no_tensors_are_left_out(
    tmp_path: Path, factor: float, verdict: str
) -> None:
    assert verdict_of(tmp_path, without_mesh(2.0), with_mesh(factor)) == verdict


def test_parameters_have_the_names_that_autograd_describes(tmp_path: Path) -> None:
    """A joint graph of forward and backward, whose inputs are called primals_1 and so on."""
    from contextlib import ExitStack

    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    with ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, Model(), (torch.zeros(2, 4),))
        (tmp_path / "joint.json").write_bytes(sp.graph(joint.graph_module))
    (graph,) = side(tmp_path / "joint.json")
    names = [node.name for node in graph.inputs]
    assert names[:3] == ["p_up_weight", "p_up_bias", "p_down_weight"], names
