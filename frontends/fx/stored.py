"""Numbers of buffers and constants in an archive of `torch.export`, and which of them are one.

Read is what is stored as plain bytes; what is pickled is refused.  Nothing is executed.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx import pt2

#: Tensors of more elements are not read.
MOST_ELEMENTS: Final = 1 << 21
#: Bytes of an element, by torch's name of its type.
SIZES: Final = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64", "complex64"), 8),
    "complex128": 16,
}


class Layout(msgspec.Struct, frozen=True):
    """Element type, sizes, strides and offset of a stored tensor.

    Example: sizes [6, 4], strides [4, 1] and offset 0 of a float32 (``dtype`` 7) weight.
    """

    dtype: int
    sizes: list[dict[str, Any]]
    strides: list[dict[str, Any]]
    storage_offset: dict[str, Any]


class Entry(msgspec.Struct, frozen=True):
    """A stored tensor: its file in the archive and its layout.

    Example: ``weight_0`` with the layout of ``up.weight``.
    """

    path_name: str
    use_pickle: bool
    tensor_meta: Layout


class Config(msgspec.Struct, frozen=True):
    """The table of an archive's stored tensors, by their names.

    Example: ``{"config": {"up.weight": {"path_name": "weight_0", ...}}}``.
    """

    config: dict[str, Entry]


#: The folders of an archive that hold numbers, and the file that says what they are.
FOLDERS: Final = ("weights", "constants")


class Stored:
    """What an archive stores, by name: `same_as` tells tensors that are one, `read` gives bytes.

    Example: a buffer ``scale`` of six ones is read as 24 bytes, little-endian float32.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, tuple[str, Entry]] = {}
        for folder in FOLDERS:
            try:
                data = pt2.member(path, _named(f"data/{folder}/model_{folder}_config.json"))
            except InvalidInput:
                continue  # An older archive, or one without such tensors.
            for name, entry in msgspec.json.decode(data, type=Config).config.items():
                self._entries.setdefault(name, (folder, entry))

    def same_as(self, name: str) -> object:
        """What two tensors have alike if they are one and the same: where their numbers lie."""
        if name not in self._entries:
            return name
        folder, entry = self._entries[name]
        meta = entry.tensor_meta
        return folder, entry.path_name, _numbers(meta.sizes), _number(meta.storage_offset)

    def read(self, name: str, shape: tuple[int, ...], dtype: str) -> bytes:
        """The numbers of a tensor, row by row; raises `InvalidInput` where they are not stored as
        such, or are another tensor's."""
        if name not in self._entries:
            raise InvalidInput("its numbers are not in the archive, or pickled", name)
        folder, entry = self._entries[name]
        meta = entry.tensor_meta
        sizes, strides = _numbers(meta.sizes), _numbers(meta.strides)
        offset = _number(meta.storage_offset)
        if entry.use_pickle:
            raise InvalidInput("its numbers are pickled", name)
        if sizes != shape or pt2.TYPES.get(meta.dtype) != dtype or dtype not in SIZES:
            raise InvalidInput(f"is stored as {list(sizes)}, the graph has {list(shape)}", name)
        if prod(shape) > MOST_ELEMENTS or len(strides) != len(shape):
            raise InvalidInput(f"has {prod(shape)} numbers (at most {MOST_ELEMENTS})", name)
        data = pt2.member(self._path, _named(f"data/{folder}/{entry.path_name}"), "tensor")
        size = SIZES[dtype]
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        outside = 0 not in shape and (last + 1) * size > len(data)
        if outside or min((offset, *strides)) < 0:
            raise InvalidInput("its numbers lie outside of what is stored", name)
        kept = np.frombuffer(data[: len(data) // size * size], f"V{size}")[offset:]
        steps = [step * size for step in strides]
        return np.lib.stride_tricks.as_strided(kept, shape, steps).tobytes()


def _named(ending: str) -> Any:
    return lambda name: name.partition("/")[2] == ending


def _number(field: dict[str, Any]) -> int:
    value = field.get("as_int")
    if not isinstance(value, int):
        raise InvalidInput("a size that is no number")
    return value


def _numbers(fields: list[dict[str, Any]]) -> tuple[int, ...]:
    return tuple(map(_number, fields))
