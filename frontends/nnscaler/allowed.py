"""The allow-list: which names a plan file may mention, and what each stands for here.

The first matching row decides; a name that no row allows is refused.  Nothing in the values is
the thing that the file names: see `frontends.untrusted.inert`.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from operator import itemgetter
from typing import Any

from shardproof.frontends.untrusted.inert import (
    DType,
    NumpyDType,
    NumpyScalar,
    Record,
    TypeName,
    opaque_class,
    record_class,
)

_CELL = (
    "_id", "name", "signature", "_device", "_inputs", "_outputs", "_kwargs", "_mirror",
    "_comment", "_module_stack",
)  # fmt: skip
_OBJECT = ("_id", "name", "_shape", "_dtype", "_is_attr", "_is_grad", "_grad")
_PRIM = ("_inputs", "_outputs", "_device", "kwargs", "signature")
_SUB_TENSOR = (*_OBJECT, "_full_tensor", "_indmap", "_valmap")
_of_sub_tensor = itemgetter(*_SUB_TENSOR)


class SubTensor(Record):
    """The record of an IRSubTensor, which takes all fields over at once: half of all records of a
    plan are tensors, and field by field in a loop takes five times as long.

    Example: of the state {"_id": 42, "name": "data", ...} ten fields are taken over, and it is
    emptied.
    """

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        this: Any = self
        try:
            (
                this._id, this.name, this._shape, this._dtype, this._is_attr, this._is_grad,
                this._grad, this._full_tensor, this._indmap, this._valmap,
            ) = _of_sub_tensor(state if type(state) is dict else {})  # fmt: skip
        except KeyError:  # a version without one of the fields, or no dictionary
            super().__setstate__(state)
        else:
            this.view = None
            state.clear()  # type: ignore[attr-defined] # as `Record` does


#: Records that have a way of their own.
_BASES: dict[str, type[Record]] = {"IRSubTensor": SubTensor}

# (module, name) -> the fields that we keep.  A name of "*Prim" stands for every primitive.
RECORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("nnscaler.codegen.module.module", "ModuleCodeGen"): (
        "execplan", "devices", "runtime_ndevs", "enable_dp", "comm_groups",
    ),
    ("nnscaler.execplan.execplan", "ExecutionPlan"): ("_graph", "_seq", "_outputs"),
    ("nnscaler.execplan.execplan", "ExeReuseCell"): (
        "_id", "name", "_inputs", "_outputs", "_mirror", "_cell",
    ),
    ("nnscaler.graph.graph", "IRGraph"): ("_id", "name", "_inputs", "_outputs", "_sched"),
    ("nnscaler.graph.schedule.schedplan", "SchedulePlan"): ("_num_microbatches",),
    ("nnscaler.graph.segment", "IRSegment"): (
        "_id", "name", "_inputs", "_outputs", "_mirror", "_nodes",
    ),
    ("nnscaler.graph.function.dimops", "IRDimops"): (*_CELL, "_annos_candidates"),
    ("nnscaler.graph.function.pyfunc", "IRPyFunc"): _CELL,
    # A mark in the graph: it reads and makes nothing.
    ("nnscaler.graph.function.anchor", "IRGraphAnchor"): _CELL,
    ("nnscaler.ir.operator", "IRFwOperation"): _CELL,
    ("nnscaler.ir.operator", "IRBpOperation"): _CELL,
    ("nnscaler.ir.operator", "IRDataOperation"): _CELL,
    ("nnscaler.ir.adapter.adapter", "IRAdapter"): (
        "_id", "name", "_device", "_inputs", "_outputs", "_mirror", "_prims", "_forward",
    ),
    ("nnscaler.ir.adapter.adapter", "IRWeightReducer"): ("_id", "name", "_device", "_inputs"),
    ("nnscaler.ir.adapter.prim", "*Prim"): _PRIM,
    ("nnscaler.ir.cten", "IRObject"): ("_id", "name"),
    ("nnscaler.ir.tensor", "IRFullTensor"): (*_OBJECT, "_is_loss", "_requires_grad"),
    ("nnscaler.ir.tensor", "IRSubTensor"): _SUB_TENSOR,
    ("nnscaler.ir.tensor", "IndexMap"): ("_indices",),
    ("nnscaler.ir.tensor", "ValueMap"): ("_weight",),
}  # fmt: skip

# Python's own containers and numbers, which hold what they are given and call nothing of it.
VALUES: dict[tuple[str, str], type] = {
    # Insertion-ordered like the class it stands for, and half its size.
    ("collections", "OrderedDict"): dict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "slice"): slice,
    ("builtins", "complex"): complex,
    ("numpy", "dtype"): NumpyDType,
    ("numpy._core.multiarray", "scalar"): NumpyScalar,
    ("numpy.core.multiarray", "scalar"): NumpyScalar,
}

DTYPES = frozenset({
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
})  # fmt: skip

# Rows of (module, name), both regular expressions, of what is carried but never read.
OPAQUE = tuple(
    (re.compile(module), re.compile(name))
    for module, name in (
        (r"nnscaler\.graph\.function\.dimops",
         r"DimAnno|DimAnno\.ReduceType|DimopSplit|OpAnno|ShapeAnno|TransformRule"),
        (r"nnscaler\.graph\.function\.function", r"\w+"),
        (r"nnscaler\.graph\.parser\.register", r"__dict__|\w+"),
        (r"nnscaler\.graph\.gener\.utils", r"DummyInputOuput"),
        (r"nnscaler\.graph\.schedule\.schedplan", r"Block|ScheduleDependency"),
        (r"nnscaler\.codegen\.\w+(\.\w+)*", r"Sign2EmitRule(\.\w+)?|SymbolTable"),
        (r"nnscaler\.ir\.cten", r"IRCell|IRTensor"),
        (r"dill", r"_dill"),
        (r"dill\._dill", r"_create_(cell|code|function)|_load_type"),
        (r"torch\._utils", r"_rebuild_(tensor|tensor_v2|parameter)"),
        (r"torch\.storage", r"_load_from_bytes|\w+Storage"),
        (r"torch\.nn\.(modules|parameter)(\.\w+)*", r"[A-Z]\w*"),
        (r"torch", r"device|Size|\w+Storage"),
        (r"builtins|__builtin__", r"getattr|setattr"),
        (r"typing", r"[A-Z]\w*"),
    )
)  # fmt: skip

# Types that may be mentioned (in an annotation, as a default) but not made.
_PLAIN_TYPES = frozenset({"bool", "bytes", "dict", "float", "int", "list", "str", "tuple"})

# No class of a user's model lives under these, and much that is dangerous does.
_NOT_USER_CODE = sys.stdlib_module_names | frozenset({
    "__builtin__", "__main__", "cPickle", "cloudpickle", "commands", "copy_reg", "cube", "dill",
    "distutils", "joblib", "nnscaler", "nt", "numpy", "pandas", "pip", "pkg_resources",
    "setuptools", "torch",
    # ours
    "checker", "cluster", "engine", "frontends", "partition", "shardproof", "solvers",
})  # fmt: skip
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_CLASS = re.compile(r"[A-Za-z]\w*|__dict__", re.ASCII)
_PRIMITIVE = re.compile(r"[A-Z]\w*Prim", re.ASCII)


@cache
def _record(module: str, name: str) -> object | None:
    pattern = "*Prim" if _PRIMITIVE.fullmatch(name) else name
    fields = RECORDS.get((module, pattern))
    return None if fields is None else record_class(name, fields, _BASES.get(name, Record))


def stand_in(module: str, name: str) -> object | None:
    """The inert object for a name of the file; None where the name is not allowed.

    Example: ("torch", "bfloat16") is the `DType` of that name, ("collections", "OrderedDict") is
    ``dict``, ("my.model", "Net") a `TypeName`, ("os", "system") None.
    """
    known = _record(module, name) or VALUES.get((module, name))
    if known is not None:
        return known
    if module == "torch" and name in DTYPES:
        return DType(module, name)
    for modules, names in OPAQUE:
        if modules.fullmatch(module) and names.fullmatch(name):
            return opaque_class(name)
    if module == "builtins" and name in _PLAIN_TYPES:
        return TypeName(module, name)
    root = module.partition(".")[0]
    if root not in _NOT_USER_CODE and _MODULE.fullmatch(module) and _CLASS.fullmatch(name):
        return TypeName(module, name)
    return None
