"""Which operators of HLO there are for us, and which attributes each may have.

An operator or an attribute that is not in these tables is refused by its name; attributes that mean
nothing for values are listed as such.  `typed` turns an instruction's text into numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.hlo.groups import integers
from shardproof.frontends.hlo.layouts import FROM, TO
from shardproof.frontends.hlo.module import Instruction

#: Why an operator is refused that is in no table.
NO_RULE = "no rule says what it is"
#: Attributes without a meaning for values: where it comes from, how it is laid out and scheduled,
#: how exactly a machine computes it, and shardings, which are read where they state a placement.
MEANINGLESS = frozenset(
    [
        "metadata",
        "sharding",
        "frontend_attributes",
        "channel_id",
        "operand_precision",
        "precision_config",
        "indices_are_sorted",
        "unique_indices",
        "backend_config",
        "custom_call_has_side_effect",
        "control-predecessors",
        "origin",
        "result_accuracy",
        "original_value",
        "algorithm",
        "api_version",
        "custom_call_schedule",
        "operand_layout_constraints",
        "output_to_operand_aliasing",
        "kind",
        "inlineable",
        "statistics",
    ]
)

_DIMS = "dims"
_TEXT = "text"
_NUMBER = "number"

ELEMENTWISE = frozenset(
    [
        "abs",
        "negate",
        "exponential",
        "log",
        "logistic",
        "tanh",
        "rsqrt",
        "sqrt",
        "cbrt",
        "sine",
        "cosine",
        "sign",
        "floor",
        "ceil",
        "not",
        "exponential-minus-one",
        "log-plus-one",
        "is-finite",
        "erf",
        "tan",
        "sinh",
        "cosh",
        "asin",
        "atan",
        "asinh",
        "acosh",
        "atanh",
        "erfc",
        "lgamma",
        "digamma",
        "erf-inv",
        "round-nearest-even",
        "round-nearest-afz",
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "power",
        "remainder",
        "atan2",
        "and",
        "or",
        "xor",
        "select",
        "clamp",
        "convert",
        "shift-left",
        "shift-right-logical",
        "shift-right-arithmetic",
        "bitcast-convert",
    ]
)
#: The same numbers, somewhere else: exact for every element type.
MOVEMENT: Mapping[str, Mapping[str, str]] = {
    "copy": {},
    "opt-barrier": {},
    "broadcast": {"dimensions": _DIMS},
    "reshape": {},
    "transpose": {"dimensions": _DIMS},
    "slice": {"slice": "slice"},
    "concatenate": {"dimensions": _DIMS},
    "reverse": {"dimensions": _DIMS},
    "pad": {"padding": "padding"},
    "dynamic-slice": {"dynamic_slice_sizes": _DIMS},
    "dynamic-update-slice": {},
    "iota": {"iota_dimension": _NUMBER},
}
_DOT = dict.fromkeys(
    ("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims"), _DIMS
)
_GATHER = {
    **dict.fromkeys(
        [
            "offset_dims",
            "collapsed_slice_dims",
            "start_index_map",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "slice_sizes",
        ],
        _DIMS,
    ),
    "index_vector_dim": _NUMBER,
}
_SCATTER = {
    **dict.fromkeys(
        [
            "update_window_dims",
            "inserted_window_dims",
            "scatter_dims_to_operand_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
        ],
        _DIMS,
    ),
    "index_vector_dim": _NUMBER,
    "to_apply": "reduction",
}
_GROUP = {"replica_groups": _TEXT, "use_global_device_ids": _TEXT}
COLLECTIVES: Mapping[str, Mapping[str, str]] = {
    "all-reduce": {**_GROUP, "to_apply": "reduction"},
    "all-gather": {**_GROUP, "dimensions": _DIMS},
    "reduce-scatter": {**_GROUP, "dimensions": _DIMS, "to_apply": "reduction"},
    "all-to-all": {"replica_groups": _TEXT, "dimensions": _DIMS},
    "collective-permute": {"source_target_pairs": _TEXT},
}
OTHERS: Mapping[str, Mapping[str, str]] = {
    "compare": {"direction": _TEXT, "type": _TEXT},
    "reduce-precision": {"exponent_bits": _NUMBER, "mantissa_bits": _NUMBER},
    "dot": _DOT,
    "fft": {"fft_type": _TEXT, "fft_length": _DIMS},
    "reduce": {"dimensions": _DIMS, "to_apply": "reduction"},
    "reduce-window": {"window": "window", "to_apply": "reduction"},
    "select-and-scatter": {"window": "window", "select": _TEXT, "scatter": _TEXT},
    "convolution": {
        "window": "window",
        "dim_labels": _TEXT,
        "feature_group_count": _NUMBER,
        "batch_group_count": _NUMBER,
    },
    "topk": {"k": _NUMBER, "largest": _TEXT},
    "sort": {"dimensions": _DIMS, "is_stable": _TEXT, "to_apply": "comparison"},
    "gather": _GATHER,
    "scatter": _SCATTER,
}
#: Read while calls are inlined: they are no nodes of a graph.
STRUCTURE: Mapping[str, Mapping[str, str]] = {
    "parameter": {"parameter_replication": _TEXT},
    "constant": {},
    "tuple": {},
    "get-tuple-element": {"index": _TEXT},
    "call": {"to_apply": _TEXT},
    "fusion": {"calls": _TEXT},
    "while": {"condition": _TEXT, "body": _TEXT},
    "conditional": dict.fromkeys(
        ("branch_computations", "true_computation", "false_computation"), _TEXT
    ),
    "bitcast": {FROM: _TEXT, TO: _TEXT},
    "partition-id": {},
    "replica-id": {},
    "complex": {},
    "real": {},
    "imag": {},
    "custom-call": dict.fromkeys(
        ("custom_call_target", "backend_config", "called_computations"), _TEXT
    ),
}
KNOWN: Mapping[str, Mapping[str, str]] = {
    **{key: {} for key in ELEMENTWISE},
    **MOVEMENT,
    **COLLECTIVES,
    **OTHERS,
    **STRUCTURE,
}


_BINARY = frozenset(
    [
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder"),
        *("atan2", "and", "or", "xor", "shift-left", "shift-right-logical"),
        *("shift-right-arithmetic", "compare", "complex", "dot", "convolution", "pad", "gather"),
    ]
)
_TERNARY = frozenset({"select", "clamp", "select-and-scatter"})
#: Of how many operands for each result an operator is, and of how many more.
_BY_RESULTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("reduce", "reduce-window"), (2, 0)),
    **dict.fromkeys(("sort", *COLLECTIVES), (1, 0)),
    "scatter": (2, 1),
}
#: Operators of several operands, and of how many at least.
_SEVERAL: Mapping[str, int] = {
    **dict.fromkeys(("tuple", "call", "fusion", "custom-call"), 0),
    "concatenate": 1,
    "dynamic-slice": 2,
    "dynamic-update-slice": 3,
    "conditional": 2,
}
_NONE = frozenset({"iota", "partition-id", "replica-id", "constant", "parameter"})


def _counted(i: Instruction) -> None:
    """Raise `InvalidInput` for an operator of other operands than it has: none is left out."""
    count, results = len(i.operands), 1 if i.type.parts is None else len(i.type.parts)
    if i.opcode == "collective-permute" and count == 4:
        raise Unsupported("a collective-permute that writes into an operand")
    if i.opcode in _SEVERAL:
        holds, expected = count >= _SEVERAL[i.opcode], f"{_SEVERAL[i.opcode]} at least"
    else:
        each, more = _BY_RESULTS.get(i.opcode, (0, _own(i.opcode)))
        holds, expected = count == each * results + more, str(each * results + more)
    if not holds:
        raise InvalidInput(f"{i.opcode} {i.name} of {count} operands, expected {expected}")


def _own(opcode: str) -> int:
    if opcode in _NONE:
        return 0
    return 2 if opcode in _BINARY else 3 if opcode in _TERNARY else 1


def called(opcode: str, attributes: Mapping[str, Any]) -> str:
    """What an operator is called where it is refused: a custom call is known by its target.

    Example: ``operator while``, ``custom-call to lapack_spotrf_ffi``.
    """
    target = attributes.get("custom_call_target")
    if target is None:
        return f"operator {opcode}"
    return "custom-call to " + str(target).strip('"')


def typed(instruction: Instruction) -> dict[str, Any]:
    """The attributes of an instruction that mean something for values; raises `Unsupported`,
    `InvalidInput` by name.

    Example: ``dimensions={1,0}`` of a transpose is ``{"dimensions": (1, 0)}``, its ``metadata`` is
    dropped; ``strange=1`` is refused.
    """
    kinds = KNOWN.get(instruction.opcode)
    if kinds is None:
        raise Unsupported(NO_RULE)
    _counted(instruction)
    values: dict[str, Any] = {}
    for key, text in instruction.attrs.items():
        if key in kinds:
            values[key] = _value(kinds[key], key, text)
        elif key not in MEANINGLESS:
            raise Unsupported(f"attribute {key} of operator {instruction.opcode} of HLO")
    return values


def _value(kind: str, key: str, text: str) -> Any:
    if kind == _DIMS:
        if not re.fullmatch(r"\{(?:\d{1,15}(?:, ?\d{1,15})*)?\}", text):
            raise InvalidInput(f"{key}={text[:60]}, expected numbers in braces")
        return integers(text.replace(" ", ""))
    if kind == _NUMBER:
        if not re.fullmatch(r"\d{1,9}", text):
            raise InvalidInput(f"{key}={text[:60]}, expected a number")
        return int(text)
    if kind == "slice":
        return _slice(text)
    if kind == "padding":
        return _padding(text)
    if kind == "window":
        return _window(text)
    return text.removeprefix("%")


def _slice(text: str) -> tuple[tuple[int, int, int], ...]:
    """``{[0:4], [2:8:2]}``: (start, limit, step) of every dimension."""
    if not re.fullmatch(r"\{(?:\[\d+:\d+(?::\d+)?\](?:, ?\[\d+:\d+(?::\d+)?\])*)?\}", text):
        raise InvalidInput(f"slice={text[:60]}, expected [start:limit:step] of every dimension")
    parts = [p.split(":") for p in re.findall(r"\[([\d:]+)\]", text)]
    return tuple((int(p[0]), int(p[1]), int(p[2]) if len(p) > 2 else 1) for p in parts)


def _padding(text: str) -> tuple[tuple[int, int, int], ...]:
    """``0_0x1_2_3``: (low, high, interior) of every dimension."""
    if not re.fullmatch(r"(?:-?\d+_-?\d+(?:_\d+)?(?:x-?\d+_-?\d+(?:_\d+)?)*)?", text):
        raise InvalidInput(f"padding={text[:60]}, expected low_high_interior of every dimension")
    parts = [[int(n) for n in p.split("_")] for p in text.split("x")] if text else []
    return tuple((p[0], p[1], p[2] if len(p) > 2 else 0) for p in parts)


class Taps(NamedTuple):
    """A window along one dimension: ``size`` taps, ``apart`` from each other, every ``stride``
    positions, of positions that are ``spread`` from each other, with ``before`` and ``after`` at
    the ends; ``mirrored``: the last tap comes first.

    Example: ``window={size=3x3 stride=2x2 pad=0_1x0_1}`` is ``Taps(3, stride=2, after=1)`` twice.
    """

    size: int
    stride: int = 1
    before: int = 0
    after: int = 0
    spread: int = 1
    apart: int = 1
    mirrored: bool = False


def _window(text: str) -> tuple[Taps, ...]:
    """``{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=1x2 rhs_dilate=1x1 rhs_reversal=1x0}``."""
    inner = re.fullmatch(r"\{(.*)\}", text)
    parts = [p.partition("=") for p in inner.group(1).split()] if inner else []
    given = {key: value.split("x") for key, _, value in parts}
    keys = {"size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal"}
    count = len(given.get("size", ()))
    if (
        set(given) - keys
        or len(given) != len(parts)
        or any(len(v) != count for v in given.values())
    ):
        raise InvalidInput(f"window={text[:80]}, expected sizes, strides and paddings")
    taps = []
    for d in range(count):
        low, _, high = given["pad"][d].partition("_") if "pad" in given else ("0", "_", "0")
        numbers = [
            *(given[k][d] if k in given else "1" for k in ("size", "stride")),
            low,
            high,
            *(given[k][d] if k in given else "1" for k in ("lhs_dilate", "rhs_dilate")),
            given["rhs_reversal"][d] if "rhs_reversal" in given else "0",
        ]
        if not all(re.fullmatch(r"-?\d{1,9}", n) for n in numbers):
            raise InvalidInput(f"window={text[:80]}, expected numbers")
        size, stride, before, after, spread, apart, mirrored = map(int, numbers)
        if min(size, stride, spread, apart) < 1 or mirrored not in (0, 1):
            raise InvalidInput(f"window={text[:80]}, expected positive numbers")
        taps.append(Taps(size, stride, before, after, spread, apart, bool(mirrored)))
    return tuple(taps)
