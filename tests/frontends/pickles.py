"""Pickles written opcode by opcode: plans as nnScaler would write them, and hostile ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Obj:
    """An object of a class that does not exist here, with its state (None: never given one)."""

    module: str
    name: str
    state: Any = field(default_factory=dict)


@dataclass(frozen=True)
class Name:
    """A bare reference to ``module.name``."""

    module: str
    name: str


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def frame(body: bytes) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", len(body)) + body


class Writer:
    """Writes values, sharing objects by identity as pickle does."""

    def __init__(self) -> None:
        self._memo: dict[int, int] = {}
        self._kept: list[Any] = []

    def write(self, value: Any) -> bytes:
        """The opcodes that leave ``value`` on the stack."""
        if isinstance(value, Obj):
            if id(value) in self._memo:
                return b"j" + struct.pack("<I", self._memo[id(value)])
            self._memo[id(value)] = len(self._memo)
            self._kept.append(value)
            made = named(value.module, value.name) + b")\x81\x94"
            return made if value.state is None else made + self.write(value.state) + b"b"
        if isinstance(value, Name):
            return named(value.module, value.name)
        if isinstance(value, dict):
            items = b"".join(self.write(k) + self.write(v) for k, v in value.items())
            return b"}(" + items + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(self.write, value)) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(map(self.write, value)) + b"t"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return named("builtins", "slice") + self.write(parts) + b"R"
        if isinstance(value, str):
            return text(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        data = int(value).to_bytes(16, "little", signed=True)
        return b"\x8a\x10" + data


def pickled(value: Any) -> bytes:
    """``value`` as a framed pickle of protocol 4."""
    return frame(Writer().write(value) + b".")


TENSOR = "nnscaler.ir.tensor"
FLOAT32 = Name("torch", "float32")


def full(ident: int, shape: tuple[Any, ...], **state: Any) -> Obj:
    return Obj(TENSOR, "IRFullTensor", {
        "_id": ident, "name": f"t{ident}", "_shape": shape, "_dtype": FLOAT32, "_is_attr": False,
        "_is_grad": False, "_requires_grad": True, "_grad": None, "_is_loss": False, **state,
    })  # fmt: skip


def sub(ident: int, of: Obj, **state: Any) -> Obj:
    shape = of.state["_shape"]
    return Obj(TENSOR, "IRSubTensor", {
        "_id": ident, "name": of.state["name"], "_shape": shape, "_dtype": FLOAT32,
        "_is_attr": False, "_is_grad": False, "_requires_grad": True, "_grad": None,
        "_full_tensor": of,
        "_indmap": Obj(TENSOR, "IndexMap", {"_indices": tuple((0, size) for size in shape)}),
        "_valmap": Obj(TENSOR, "ValueMap", {"_weight": (0, 1)}),
        **state,
    })  # fmt: skip


def cell(ident: int, **state: Any) -> dict[str, Any]:
    return {
        "_id": ident, "name": "cell", "signature": "torch.add", "_device": (0,), "_inputs": [],
        "_outputs": [], "_kwargs": {}, "_mirror": None, "_comment": None, "_module_stack": None,
        **state,
    }  # fmt: skip


def small_plan() -> dict[str, Obj]:
    """A plan of one device, one segment and one of each cell; its parts by name."""
    x = sub(10, full(1, (2, 4)))
    grad = sub(11, full(2, (2, 4), _is_grad=True), _is_grad=True)
    x.state["_grad"] = grad
    y = sub(12, full(3, (2, 4), _is_loss=True))
    modules = {"layers.0": Name("my.models.llama", "TransformerBlock")}
    op = Obj("nnscaler.graph.function.dimops", "IRDimops", cell(
        20, name="add", _inputs=[x, 1e-5, 2], _outputs=[y], _kwargs={"alpha": 1, "size": [2, -1]},
        _module_stack=modules, _comment='File "model.py", line 3',
        _anno=Obj("nnscaler.graph.function.dimops", "OpAnno", {"_inputs": ()}),
    ))  # fmt: skip
    back = Obj("nnscaler.ir.operator", "IRBpOperation", cell(
        21, _inputs=[grad], _outputs=[grad], _mirror=op))  # fmt: skip
    op.state["_mirror"] = back
    prim = Obj("nnscaler.ir.adapter.prim", "AllReducePrim", {
        "_inputs": [y], "_outputs": [y], "_device": [0], "kwargs": {"ranks": [0, 1]},
        "signature": "all_reduce", "local": False,
    })  # fmt: skip
    adapter = Obj("nnscaler.ir.adapter.adapter", "IRAdapter", cell(
        22, _inputs=[y], _outputs=[y], _prims=[prim], _forward=True))  # fmt: skip
    reducer = Obj("nnscaler.ir.adapter.adapter", "IRWeightReducer", cell(23, _inputs=[x]))
    segment = Obj("nnscaler.graph.segment", "IRSegment", cell(
        24, _inputs=[x], _outputs=[y], _nodes=[op, adapter, back]))  # fmt: skip
    use = Obj("nnscaler.execplan.execplan", "ExeReuseCell", cell(
        25, _inputs=[x], _outputs=[y], _cell=segment))  # fmt: skip
    data = Obj("nnscaler.ir.operator", "IRDataOperation", cell(
        26, _inputs=[Obj("nnscaler.ir.cten", "IRObject", {"_id": 5, "name": "dataloader"})],
        _outputs=[x]))  # fmt: skip
    graph = Obj("nnscaler.graph.graph", "IRGraph", cell(30, _sched=None))
    execution = Obj("nnscaler.execplan.execplan", "ExecutionPlan", {
        "_graph": graph, "_seq": {0: [data, use, reducer]}, "_outputs": [y],
    })  # fmt: skip
    root = Obj("nnscaler.codegen.module.module", "ModuleCodeGen", {
        "execplan": execution, "devices": (0,), "runtime_ndevs": 2, "enable_dp": True,
        "comm_groups": [[0, 1]],
    })  # fmt: skip
    return {
        "x": x, "grad": grad, "y": y, "op": op, "back": back, "prim": prim, "adapter": adapter,
        "reducer": reducer, "segment": segment, "use": use, "data": data, "graph": graph,
        "execution": execution, "root": root,
    }  # fmt: skip
