"""Faults in real nnScaler plans, put in by editing their inert records in memory.

A plan is read anew for every fault: records keep the views that were made of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardproof.engine.plan.ir import Plan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.convert import REPLICA, Side, convert
from shardproof.frontends.nnscaler.read import read_records

LLAMA = "llama3_default_dp1_pp1_tp1_nm1_gbs512_ly2_h32_hi4096_sq128"
LLAMA_3 = "llama3_default_dp1_pp1_tp1_nm1_gbs512_ly3_h32_hi4096_sq128"
LLAMA_222 = "llama3_default_dp2_pp2_tp2_nm2_gbs512_ly2_h32_hi4096_sq128"
MOE = "moe_default_dp1_pp1_tp1_nm1_gbs1024_ly2_h16_hi512_sq128_a2_r16"
MOE_222 = "moe_default_dp2_pp2_tp2_nm2_gbs1024_ly2_h16_hi512_sq128_a2_r16"


class Records:
    """The records of one plan file, by device and cell number.

    Typed Any: a record has the fields that nnScaler gives it.
    """

    def __init__(self, path: Path) -> None:
        self.root: Any = read_records(str(path))

    def sequence(self, device: int) -> list[Any]:
        """What a device runs, in order; editing the list edits the plan."""
        return self.root.execplan._seq[device]  # type: ignore[no-any-return]

    def cell(self, device: int, number: int) -> Any:
        """A cell that a device runs, by itself or inside a segment."""
        for item in self.sequence(device):
            cell = getattr(item, "_cell", item)
            for found in (cell, *getattr(cell, "_nodes", ())):
                if found._id == number:
                    return found
        raise KeyError((device, number))

    def uses(self, device: int, number: int) -> list[Any]:
        """The uses of one cell on a device, in order."""
        return [
            item for item in self.sequence(device) if getattr(item, "_cell", item)._id == number
        ]

    def prim(self, device: int, adapter: int, kind: str) -> Any:
        """The first primitive of a kind in an adapter."""
        return next(p for p in self.cell(device, adapter)._prims if p.kind == kind)

    def reducers(self, device: int) -> list[Any]:
        return [
            item for item in self.sequence(device) if getattr(item, "kind", "") == "IRWeightReducer"
        ]

    def plan(self, single: Path) -> Plan:
        """The pair with a single-device plan, as the command line makes it."""
        one, many = _single(single), convert(cells.plan(self.root), single=False)
        return Plan(
            "edited",
            one.programs[0],
            many.programs,
            many.microbatches,
            (REPLICA,),
            one.loss,
            recorded=many.recorded,
        )


@functools.cache
def _single(path: Path) -> Side:
    return convert(cells.plan(read_records(str(path))), single=True)


Edit = Callable[[Records], None]


def edited(folder: Path, single: str, parallel: str, edit: Edit | None = None) -> Plan:
    """A pair of plans of a folder, with one fault in the parallel one."""
    records = Records(folder / f"{parallel}.pkl")
    if edit is not None:
        edit(records)
    return records.plan(folder / f"{single}.pkl")


# -- edits -----------------------------------------------------------------------------------------


def kwargs(device: int, number: int, **changed: object) -> Edit:
    """Other attributes of an operator (its dictionary may be shared: it gets one of its own)."""

    def edit(records: Records) -> None:
        cell = records.cell(device, number)
        cell._kwargs = {**cell._kwargs, **changed}

    return edit


def operand(device: int, number: int, position: int, value: object) -> Edit:
    """Another operand of an operator."""

    def edit(records: Records) -> None:
        cell = records.cell(device, number)
        cell._inputs = (*cell._inputs[:position], value, *cell._inputs[position + 1 :])

    return edit


def without_kwargs(device: int, number: int) -> Edit:
    """No keyword arguments of an operator."""

    def edit(records: Records) -> None:
        records.cell(device, number)._kwargs = {}

    return edit


def first_operand(device: int, number: int) -> Edit:
    """No operand of an operator but the first."""

    def edit(records: Records) -> None:
        cell = records.cell(device, number)
        cell._inputs = tuple(cell._inputs[:1])

    return edit


def signature(device: int, number: int, name: str) -> Edit:
    """Another operator."""

    def edit(records: Records) -> None:
        records.cell(device, number).signature = name

    return edit


def prim_kwargs(device: int, adapter: int, kind: str, **changed: object) -> Edit:
    """Other attributes of a primitive."""

    def edit(records: Records) -> None:
        prim = records.prim(device, adapter, kind)
        prim.kwargs = {**prim.kwargs, **changed}

    return edit


def records_of(records: Records, device: int, number: int, position: int = 0) -> list[Any]:
    """All records of the tensor that is output ``position`` of a cell: the cell's, then those of
    whatever else reads or writes it on the device."""
    made = records.cell(device, number)._outputs[position]
    found = {id(made): made}
    for item in records.sequence(device):
        for cell in (item, getattr(item, "_cell", item)):
            nodes = [cell, *getattr(cell, "_nodes", ())]
            nodes += [prim for node in nodes for prim in getattr(node, "_prims", ())]
            for node in nodes:
                for tensor in (*node._inputs, *getattr(node, "_outputs", ())):
                    if getattr(tensor, "_id", None) == made._id and hasattr(tensor, "_indmap"):
                        found.setdefault(id(tensor), tensor)
    return list(found.values())


def index_map(tensor: Any, *box: tuple[int, int]) -> None:
    """A tensor gets an index map of its own (records may share one)."""
    made = type(tensor._indmap)()
    made._indices = box
    tensor._indmap = made


def value_map(tensor: Any, addend: int, addends: int) -> None:
    """A tensor gets a value map of its own."""
    made = type(tensor._valmap)()
    made._weight = (addend, addends)
    tensor._valmap = made


def outputs_exchanged(device: int, number: int) -> Edit:
    """The outputs of a (backward) operator the other way round."""

    def edit(records: Records) -> None:
        cell = records.cell(device, number)
        cell._outputs = tuple(reversed(cell._outputs))

    return edit


def all_of(*edits: Edit) -> Edit:
    def edit(records: Records) -> None:
        for one in edits:
            one(records)

    return edit


def use_inputs_exchanged(device: int, number: int) -> Edit:
    """The first two uses of a cell are given each other's inputs."""

    def edit(records: Records) -> None:
        first, second = records.uses(device, number)[:2]
        first._inputs, second._inputs = second._inputs, first._inputs

    return edit


def weight(records: Records, device: int, name: str) -> list[Any]:
    """The tensors of a parameter, wherever a device's operators read it."""
    found = []
    for item in records.sequence(device):
        for node in getattr(getattr(item, "_cell", item), "_nodes", ()):
            for tensor in node._inputs:
                if getattr(tensor, "_is_attr", False) and tensor._full_tensor.name == name:
                    found.append(tensor)
    return found
