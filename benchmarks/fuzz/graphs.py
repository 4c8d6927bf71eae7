"""Readers of graphs as targets: HLO and StableHLO text, programs of torch.export, JSON, relations.

Bytes are read as the bounded child reads them, up to the plan.  Archives and JSON are changed
inside, where a checksum would refuse them before anything is read.
"""

from __future__ import annotations

import json
import random
import re
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from shardproof.frontends.fx import read as fx
from shardproof.frontends.fx import single_step
from shardproof.frontends.graphs import relations
from shardproof.frontends.hlo import read as hlo
from shardproof.frontends.hlo.lower import lower

SAMPLES = Path(__file__).resolve().parents[2] / "tests" / "frontends" / "hlo" / "samples"
#: Samples that take some milliseconds.
SMALL = ("mlp", "ring", "experts")

STABLE = b"""module @jit_step attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8x8xf32>) -> (tensor<4x8xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : \
(tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %1 = call @relu(%0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [1] : \
(tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %4 = stablehlo.multiply %1, %3 : tensor<4x8xf32>
    return %4 : tensor<4x8xf32>
  }
  func.func private @relu(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }
}
"""


def _tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def _typed(*sizes: int) -> dict[str, Any]:
    return {"dtype": 7, "sizes": [{"as_int": n} for n in sizes]}


def _call(target: str, name: str, *args: dict[str, Any]) -> dict[str, Any]:
    return {
        "target": f"torch.ops.aten.{target}",
        "inputs": [{"name": f"a{n}", "arg": arg, "kind": 1} for n, arg in enumerate(args)],
        "outputs": [_tensor(name)],
        "metadata": {"stack_trace": 'File "model.py", line 7, in forward\n  y'},
    }


#: ``relu(linear(x, w)) * scale + outer(arange(2), inv).cos()``, as torch.export writes it; no
#: checkpoint has ``inv``.
EXPORTED: dict[str, Any] = {
    "graph_module": {
        "graph": {
            "inputs": [_tensor("p_w"), _tensor("b_scale"), _tensor("b_inv"), _tensor("x")],
            "outputs": [_tensor("add")],
            "nodes": [
                _call("linear.default", "linear", _tensor("x"), _tensor("p_w")),
                _call("relu_.default", "relu_", _tensor("linear")),
                _call("mul.Tensor", "mul", _tensor("relu_"), _tensor("b_scale")),
                _call("arange.start_step", "places", *({"as_int": n} for n in (0, 2, 1))),
                _call("outer.default", "angles", _tensor("places"), _tensor("b_inv")),
                _call("cos.default", "cos", _tensor("angles")),
                _call("add.Tensor", "add", _tensor("mul"), _tensor("cos")),
            ],
            "tensor_values": {
                "p_w": _typed(4, 4),
                **{name: _typed(4) for name in ("b_scale", "b_inv")},
                "places": _typed(2),
                **{name: _typed(2, 4) for name in ("x", "linear", "relu_", "mul", "add")},
                **{name: _typed(2, 4) for name in ("angles", "cos")},
            },
        },
        "signature": {
            "input_specs": [
                {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
                {"buffer": {"arg": {"name": "b_scale"}, "buffer_name": "scale"}},
                {"buffer": {"arg": {"name": "b_inv"}, "buffer_name": "inv", "persistent": False}},
                {"user_input": {"arg": _tensor("x")}},
            ],
            "output_specs": [{"user_output": {"arg": _tensor("add")}}],
        },
        "module_call_graph": [],
    }
}
WEIGHTS: dict[str, Any] = {
    "config": {
        name: {
            "path_name": "weight_0",
            "use_pickle": False,
            "tensor_meta": {
                "dtype": 7,
                "sizes": [{"as_int": 4}],
                "strides": [{"as_int": 1}],
                "storage_offset": {"as_int": 0},
            },
        }
        for name in ("scale", "inv")
    }
}
RELATIONS = b"""partial = ["a"]
[inputs."p1.2"]
of = "x"
dim = 1
pieces = [[0, 4], [4, 4, 2]]
[inputs.b]
starts = [[0, 0], [0, 4]]
[[outputs]]
single = "a"
parallel = "b"
shard = 0
[groups]
"12" = [[0, 1]]
[domains]
ids = [0, 12]
[constants]
c = 0.5
"""
NUMBERS = (b"0", b"-1", b"1", b"2147483648", b"4611686018427387904", b"99999999999999999999", b"7")


def changed(data: bytes, rng: random.Random) -> bytes:
    """Text with a few numbers, words or lines that are others': what is still parsed."""
    for _ in range(rng.randint(1, 4)):
        spots = list(re.finditer(rb"-?\d+" if rng.random() < 0.5 else rb"[%\w.\-]+", data))
        if not spots:
            return data
        spot = rng.choice(spots)
        other = rng.choice(spots).group() if rng.random() < 0.6 else rng.choice(NUMBERS)
        data = data[: spot.start()] + other + data[spot.end() :]
        if rng.random() < 0.2:
            lines = data.split(b"\n")
            at = rng.randrange(len(lines))
            lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, [rng.choice(lines)]))
            data = b"\n".join(lines)
    return data


def _hlo_text(folder: Path, data: bytes) -> None:
    path = folder / "ranks.hlo"
    path.write_bytes(data)
    hlo.side(str(path))


def _stable_text(folder: Path, data: bytes) -> None:
    path = folder / "single.mlir"
    path.write_bytes(data)
    lower(hlo.read(str(path)))


def archive(folder: Path, data: bytes) -> Path:
    """The two documents of an archive, one after the other, and the numbers of its buffer."""
    model, _, weights = data.partition(b"\n")
    path = folder / "m.pt2"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("m/archive_format", "pt2")
        file.writestr("m/models/model.json", model)
        file.writestr("m/data/weights/model_weights_config.json", weights)
        file.writestr("m/data/weights/weight_0", bytes(16))
    return path


def _exported(folder: Path, data: bytes) -> None:
    fx.pair(*[str(archive(folder, data))] * 2, "")


def _step(folder: Path, data: bytes) -> None:
    single_step.recorded(str(archive(folder, data)))


def document() -> bytes:
    return json.dumps(EXPORTED).encode() + b"\n" + json.dumps(WEIGHTS).encode()


@cache
def _graph() -> bytes:
    """The same program as JSON of FX graphs, with a collective."""

    def node(name: str, op: str, target: str, args: list[Any], *shape: int) -> dict[str, Any]:
        typed = {"shape": list(shape), "dtype": "float32"} if shape else {}
        return {"name": name, "op": op, "target": target, "args": args, "kwargs": {}, **typed}

    reduced = "_c10d_functional.all_reduce.default"
    nodes = [
        node("x", "placeholder", "x", [], 2, 4),
        node("w", "placeholder", "w", [], 4, 4),
        node("y", "call_function", "aten.mm.default", [{"n": "x"}, {"n": "w"}], 2, 4),
        node("z", "call_function", reduced, [{"n": "y"}, "sum", "0"], 2, 4),
        node("v", "call_function", "aten.view.default", [{"n": "z"}, [8]], 8),
        node("output", "output", "output", [[{"n": "v"}]]),
    ]
    return json.dumps({"rank": 0, "direction": "fw", "gid": 0, "nodes": nodes}).encode()


def _json(folder: Path, data: bytes) -> None:
    path = folder / "r0.json"
    path.write_bytes(data)
    fx.pair(str(path), str(path), "")


def _relations(folder: Path, data: bytes) -> None:
    path = folder / "relations.toml"
    path.write_bytes(data)
    relations.read(path)


def _samples() -> list[bytes]:
    return [(SAMPLES / f"{name}.parallel.hlo").read_bytes() for name in SMALL]


#: Name, valid inputs, and what is done with bytes.
GRAPHS: tuple[tuple[str, Callable[[], list[bytes]], Callable[[Path, bytes], None]], ...] = (
    ("HLO text", _samples, _hlo_text),
    ("StableHLO text", lambda: [STABLE], _stable_text),
    ("program of torch.export", lambda: [document()], _exported),
    ("program of torch.export as a step", lambda: [document()], _step),
    ("graph (JSON)", lambda: [_graph()], _json),
    ("relations (TOML)", lambda: [RELATIONS], _relations),
)
