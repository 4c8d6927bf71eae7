"""What HLO text and StableHLO text say, parsed: computations of instructions, nothing interpreted.

Both dialects come here in HLO's words: StableHLO's reader translates names and attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.generic]
#: NumPy names of HLO's element types; a type that is neither here nor in `UNREAD` is none.
DTYPES: Mapping[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "s64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "pred": "bool",
    "c64": "complex64",
    "c128": "complex128",
}
#: Element types whose numbers are not read: whatever computes with them is refused by name.
UNREAD = frozenset(
    [
        *("s1", "s2", "s4", "u1", "u2", "u4"),
        *("f8e3m4", "f8e4m3", "f8e4m3b11fnuz", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"),
        *("f8e8m0fnu", "f4e2m1fn", "f6e2m3fn", "f6e3m2fn", "tf32"),
    ]
)


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a tensor, or of a tuple: ``parts`` is None, or the types of its parts (a
    ``token`` has none); ``layout``: as it is written behind the shape, which says nothing of
    values.

    Example: ``Type((2, 4), "float32")`` prints as ``float32[2, 4]``.
    """

    shape: tuple[int, ...] = ()
    dtype: str = ""
    parts: tuple[Type, ...] | None = None
    layout: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.parts is not None:
            return "(" + ", ".join(map(str, self.parts)) + ")"
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, ``name = type opcode(operands), attrs``; ``attrs`` as written, but without
    quotes.

    Example: of ``ROOT r = f32[4] reduce(p, zero), dimensions={1}, to_apply=%add``, the operands are
    ``("p", "zero")`` and ``attrs["dimensions"]`` is ``{1}``.

    ``literal``: of a constant; ``number``: of a parameter, and of a get-tuple-element.
    """

    name: str
    opcode: str
    type: Type
    operands: tuple[str, ...]
    attrs: Mapping[str, str] = field(default_factory=dict)
    literal: Array | None = None
    number: int = -1
    line: int = 0


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions in an order in which each is given before it is read.

    Example: the computation ``add`` of an all-reduce: two parameters and their ``add``, which is
    the root.
    """

    name: str
    instructions: tuple[Instruction, ...]
    root: str


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module: ``partitions`` and ``replicas`` devices run ``entry``; ``header``:
    attributes of the module; ``frames``: stack frame numbers -> the user's line; ``results``:
    the shardings of those that ranks give parts of, by number, where the text says them.

    Example: of ``HloModule m, num_partitions=8``, eight partitions and one replica.
    """

    name: str
    dialect: str
    computations: Mapping[str, Computation]
    entry: str
    partitions: int = 1
    replicas: int = 1
    header: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[int, str] = field(default_factory=dict)
    results: Mapping[int, str] = field(default_factory=dict)
