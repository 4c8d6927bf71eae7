"""Records of plans as nnScaler would write them, made piece by piece.

Facts of the format are those of nnScaler's sources (``ir/tensor.py``, ``ir/adapter/prim.py``,
``execplan/execplan.py``): a part of a full tensor is named by its index map and value map, its
gradient is a part of the full tensor's gradient, a backward operator mirrors a forward one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.read import read_records
from tests.frontends.pickles import TENSOR, Name, Obj, cell, full, pickled, sub

Box = tuple[tuple[int, int], ...]
INT64 = Name("torch", "int64")
PRIMS = "nnscaler.ir.adapter.prim"


class Builder:
    """Writes records; everything gets a number of its own."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.parts: dict[tuple[int, Box, tuple[int, int]], int] = {}

    def full(
        self,
        name: str,
        *shape: int,
        attr: bool = False,
        loss: bool = False,
        ids: bool = False,
        kind: str = "float32",
    ) -> Obj:
        """A full tensor with its gradient (none for ``ids`` and what is no float)."""
        ids = ids or kind not in ("float32", "complex64")
        dtype = INT64 if ids and kind == "float32" else Name("torch", kind)
        made = full(
            next(self.numbers), shape, name=name, _dtype=dtype, _is_attr=attr, _is_loss=loss,
            _requires_grad=not ids,
        )  # fmt: skip
        if not ids:
            made.state["_grad"] = full(
                next(self.numbers), shape, name=f"g{name}", _is_attr=attr, _is_grad=True,
                _is_loss=loss, _dtype=dtype,
            )  # fmt: skip
        return made

    def part(
        self,
        of: Obj,
        box: Box | None = None,
        addend: tuple[int, int] = (0, 1),
        *,
        graded: tuple[int, int] = (0, 1),
    ) -> Obj:
        """A part of a full tensor; ``graded``: which addend of the gradient is this one's."""
        box = tuple((0, n) for n in of.state["_shape"]) if box is None else box
        made = self._sub(of, box, addend)
        gradient = of.state["_grad"]
        if gradient is not None:
            made.state["_grad"] = self._sub(gradient, box, graded)
        return made

    def _sub(self, of: Obj, box: Box, addend: tuple[int, int]) -> Obj:
        key = (of.state["_id"], box, addend)
        ident = self.parts.setdefault(key, next(self.numbers))
        return sub(
            ident,
            of,
            _shape=tuple(high - low for low, high in box),
            _dtype=of.state["_dtype"],
            _is_attr=of.state["_is_attr"],
            _is_grad=of.state["_is_grad"],
            _requires_grad=of.state["_requires_grad"],
            _indmap=Obj(TENSOR, "IndexMap", {"_indices": box}),
            _valmap=Obj(TENSOR, "ValueMap", {"_weight": addend}),
        )

    # -- cells ------------------------------------------------------------------------------------

    def _cell(self, module: str, kind: str, **state: Any) -> Obj:
        return Obj(module, kind, cell(next(self.numbers), **state))

    def op(
        self,
        signature: str,
        inputs: Sequence[Any],
        outputs: Sequence[Obj],
        module: str = "",
        **kwargs: Any,
    ) -> Obj:
        stack = {module: Name("my.models.own", "Layer")} if module else None
        return self._cell(
            "nnscaler.graph.function.dimops", "IRDimops", name=signature.rsplit(".", 1)[-1],
            signature=signature, _inputs=list(inputs), _outputs=list(outputs), _kwargs=kwargs,
            _module_stack=stack,
        )  # fmt: skip

    def thing(self, name: str) -> Obj:
        """What is no tensor, such as a size."""
        return Obj("nnscaler.ir.cten", "IRObject", {"_id": next(self.numbers), "name": name})

    def backward(self, op: Obj) -> Obj:
        """The backward operator of ``op``, from and to the gradients that its tensors name."""
        graded = [
            [x.state["_grad"] for x in op.state[key] if isinstance(x, Obj) and x.state.get("_grad")]
            for key in ("_outputs", "_inputs")
        ]
        made = self._cell(
            "nnscaler.ir.operator", "IRBpOperation", _inputs=graded[0], _outputs=graded[1],
            _mirror=op,
        )  # fmt: skip
        op.state["_mirror"] = made
        return made

    def prim(
        self, kind: str, inputs: Sequence[Obj], outputs: Sequence[Obj], device: int, **kwargs: Any
    ) -> Obj:
        return Obj(PRIMS, kind, {
            "_inputs": list(inputs), "_outputs": list(outputs), "_device": [device],
            "kwargs": kwargs, "signature": "", "local": False,
        })  # fmt: skip

    def adapter(
        self,
        forward: bool,
        prims: Sequence[Obj],
        inputs: Sequence[Obj],
        outputs: Sequence[Obj],
        device: int,
        number: int | None = None,
    ) -> Obj:
        """An adapter as one device has it; those of one communication share a ``number``."""
        made = self._cell(
            "nnscaler.ir.adapter.adapter", "IRAdapter", _inputs=list(inputs),
            _outputs=list(outputs), _prims=list(prims), _forward=forward, _device=(device,),
        )  # fmt: skip
        if number is not None:
            made.state["_id"] = number
        return made

    def segment(self, nodes: Sequence[Obj], inputs: Sequence[Obj], outputs: Sequence[Obj]) -> Obj:
        return self._cell(
            "nnscaler.graph.segment", "IRSegment", _inputs=list(inputs), _outputs=list(outputs),
            _nodes=list(nodes),
        )  # fmt: skip

    def data(self, outputs: Sequence[Obj]) -> Obj:
        loader = Obj("nnscaler.ir.cten", "IRObject", {"_id": next(self.numbers), "name": "loader"})
        return self._cell(
            "nnscaler.ir.operator", "IRDataOperation", _inputs=[loader], _outputs=list(outputs)
        )

    def reducer(self, weights: Sequence[Obj], devices: Sequence[int]) -> Obj:
        return self._cell(
            "nnscaler.ir.adapter.adapter", "IRWeightReducer", _inputs=list(weights),
            _device=tuple(devices),
        )  # fmt: skip

    def use(self, cell_: Obj, inputs: Sequence[Obj], outputs: Sequence[Obj]) -> Obj:
        return self._cell(
            "nnscaler.execplan.execplan", "ExeReuseCell", _inputs=list(inputs),
            _outputs=list(outputs), _cell=cell_,
        )  # fmt: skip

    def root(
        self,
        sequences: Mapping[int, Sequence[Obj]],
        outputs: Sequence[Obj],
        ranks: int | None = None,
        groups: Sequence[Sequence[int]] = (),
    ) -> Obj:
        devices = tuple(sorted(sequences))
        ranks = len(devices) if ranks is None else ranks
        graph = self._cell("nnscaler.graph.graph", "IRGraph", _sched=None)
        execution = Obj("nnscaler.execplan.execplan", "ExecutionPlan", {
            "_graph": graph, "_seq": {d: list(x) for d, x in sequences.items()},
            "_outputs": list(outputs),
        })  # fmt: skip
        return Obj("nnscaler.codegen.module.module", "ModuleCodeGen", {
            "execplan": execution, "devices": devices, "runtime_ndevs": ranks,
            "enable_dp": ranks > len(devices), "comm_groups": [list(x) for x in groups],
        })  # fmt: skip


def paired(forward: Obj, backward: Obj) -> None:
    """Two cells are each other's mirror."""
    forward.state["_mirror"], backward.state["_mirror"] = backward, forward


def viewed(root: Obj, folder: Path, name: str = "plan") -> cells.Plan:
    """What the reader sees of the records, through a file."""
    path = folder / f"{name}.pkl"
    path.write_bytes(pickled(root))
    return cells.plan(read_records(str(path)))
