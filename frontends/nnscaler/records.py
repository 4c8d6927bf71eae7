"""Typed, validated views of a plan's records.

A view is made once per record and kept on it, so that looking again costs nothing.  What a view
says about shapes, index maps and value maps is what the file claims: fields are checked to be
there, of their type and within bounds, not to agree with each other (a disagreement is a finding
about the plan, not about the file).  `frontends.nnscaler.cells` views what tensors flow through.

All functions here raise `UnreadablePlan`; ``where`` names the tensor, and callers add the cell
and the device around it.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter, is_
from typing import Any, Final, NamedTuple, TypeVar

from shardproof.engine.plan.recorded import RecordedSlice
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.untrusted.inert import DType, Record, TypeName, printable

MAX_RANK: Final = 16
MAX_EXTENT: Final = 1 << 48
MAX_ID: Final = 1 << 62
MAX_TEXT: Final = 1 << 16
_MAX_DEPTH: Final = 8
_MAX_ITEMS: Final = 1 << 14

T = TypeVar("T")
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FullTensor:
    """The single-device tensor that a sub-tensor is a part of, such as ``layers.0.weight`` [1024,
    1024]."""

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    is_attr: bool
    is_grad: bool
    is_loss: bool
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Part:
    """What a record says of a tensor but for its id and its gradient, such as rows 0 and 1 of
    ``data`` [4, 1024]: one object for all tensors of a plan of which the same is said.

    ``box``: per dimension of ``full`` the (start, end) it covers; ``addend``: (i, n) for the i-th
    of n addends of a partial sum, (0, 1) for a full value.  ``is_attr``: a parameter, a buffer or
    (with ``is_grad``) a parameter's gradient.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_attr: bool
    is_grad: bool
    box: Box
    addend: tuple[int, int]
    full: FullTensor
    #: What a body keeps of it, and the shape of its values there: complex numbers are stored as
    #: pairs (real, imaginary), one more dimension of 2.
    recorded: RecordedSlice = field(init=False, repr=False, compare=False)
    stored: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """What follows from the fields, made once for all tensors that are this part."""
        low = tuple([start for start, _ in self.box])
        high = tuple([end for _, end in self.box])
        stored = self.shape
        if self.dtype.startswith("complex"):
            low, high, stored = (*low, 0), (*high, 2), (*stored, 2)
        object.__setattr__(self, "recorded", RecordedSlice(self.full.id, low, high, *self.addend))
        object.__setattr__(self, "stored", stored)


@dataclass(slots=True, unsafe_hash=True)
class Tensor:
    """One tensor of one device, as its record claims it to be: a `Part` under an id, such as 42.

    Never changed; not frozen, which would take three times as long to make: plans have half a
    million.
    """

    id: int
    part: Part
    #: The record, or what was made of it.
    _grad: Record | Tensor | None = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that the plan gives the tensor."""
        return self.part.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this part of the tensor."""
        return self.part.shape

    @property
    def dtype(self) -> str:
        """The element type, as PyTorch names it."""
        return self.part.dtype

    @property
    def is_attr(self) -> bool:
        """Whether it is a parameter or buffer of the model."""
        return self.part.is_attr

    @property
    def is_grad(self) -> bool:
        """Whether it is a gradient."""
        return self.part.is_grad

    @property
    def box(self) -> Box:
        """Which part of the full tensor it is, [start, stop) along every dimension."""
        return self.part.box

    @property
    def addend(self) -> tuple[int, int]:
        """(number, count): which addend of a sum over ranks it is, of how many."""
        return self.part.addend

    @property
    def full(self) -> FullTensor:
        """The full tensor of which this is a part."""
        return self.part.full

    def grad(self) -> Tensor | None:
        """The gradient tensor that belongs to this one, if it has one."""
        known = self._grad
        if known is None or type(known) is Tensor:
            return known
        try:
            self._grad = tensor(known)
        except UnreadablePlan as error:
            raise error.within(f"gradient of tensor {self.id}") from None
        return self._grad


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A value that is no tensor and known only at run time, such as the data loader."""

    id: int
    name: str


Constant = (
    None | bool | int | float | complex | str | DType | slice
    | tuple["Constant", ...] | dict[str, "Constant"] | Tensor | ObjectRef
)  # fmt: skip


def kind_of(value: object) -> str:
    """What nnScaler calls a value's class, such as "IRSegment"."""
    kind = getattr(type(value), "kind", None)
    return kind if type(kind) is str else type(value).__name__


def expect(value: object, *kinds: str) -> Any:
    """``value``, a record of one of ``kinds``, such as "IRSubTensor".

    Typed Any: a record's fields are those of the allow-list, and reading one that the file did
    not give is an AttributeError that `missing` explains.
    """
    if isinstance(value, Record) and value.kind in kinds:
        return value
    raise UnreadablePlan(f"expected {' or '.join(kinds)}, found {printable(kind_of(value))}")


def missing(record: Record, error: AttributeError) -> UnreadablePlan:
    """The error for a field that the file does not give, such as "expected a field _id of
    IRObject"."""
    return UnreadablePlan(f"expected a field {error.name or error.args[0]} of {record.kind}")


def seen(record: Record) -> Any:
    """The view made of a record before, such as the `Tensor` of an IRSubTensor, or None."""
    try:
        return record.view
    except AttributeError:
        return None


def whole(value: object, what: str, least: int = 0, most: int = MAX_ID) -> int:
    """The value, which has to be an integer (never a bool) within bounds; True as a rank, for
    example, is refused."""
    if type(value) is int and least <= value <= most:
        return value
    # Not printed as it is: an integer of the file may have a million digits.
    actual = f"{value:#x}"[:40] if type(value) is int else printable(kind_of(value))
    raise UnreadablePlan(f"expected {what} from {least} to {most}, found {actual}")


def flag(value: object, what: str) -> bool:
    """The value, which has to be a bool; 1 as ``enable_dp``, for example, is refused."""
    if type(value) is bool:
        return value
    raise UnreadablePlan(f"expected {what} to be true or false, found {printable(kind_of(value))}")


def text(value: object, what: str) -> str:
    """The value, which has to be a string of bounded length; 5 as a tensor's name, for example, is
    refused."""
    if type(value) is str and len(value) <= MAX_TEXT:
        return value
    actual = "a longer one" if type(value) is str else printable(kind_of(value))
    raise UnreadablePlan(
        f"expected {what}, a text of at most {MAX_TEXT} characters, found {actual}"
    )


def listed(value: object, what: str) -> Sequence[Any]:
    """The value, which has to be a list or a tuple; 5, for example, is refused."""
    if type(value) is list or type(value) is tuple:
        return value
    raise UnreadablePlan(f"expected a list of {what}, found {printable(kind_of(value))}")


def wholes(value: object, what: str, most: int = MAX_ID) -> tuple[int, ...]:
    """A list of integers as a tuple, for example (0, 4) for the ranks [0, 4]."""
    return tuple(whole(item, what, 0, most) for item in listed(value, what))


def _shape(value: object) -> tuple[int, ...]:
    sizes = wholes(value, "sizes", MAX_EXTENT)
    if len(sizes) > MAX_RANK:
        raise UnreadablePlan(f"expected at most {MAX_RANK} dimensions, found {len(sizes)}")
    elements = 1
    for size in sizes:
        elements *= size
    if elements > MAX_ID:
        raise UnreadablePlan(f"expected at most {MAX_ID} elements, found shape {list(sizes)}")
    return sizes


def _dtype(value: object) -> str:
    if type(value) is DType:
        return value.name
    raise UnreadablePlan(f"expected a torch dtype, found {printable(kind_of(value))}")


def _named(record: Any, kind: str) -> str:
    """``tensor 12`` for messages, whatever the record's id is."""
    ident = getattr(record, "_id", None)
    return f"{kind} {ident}" if type(ident) is int and 0 <= ident <= MAX_ID else kind


#: The parts of one full tensor, by what their records say.
Parts = dict[tuple[object, ...], Part]


def full_tensor(value: object) -> FullTensor:
    """The view of an IRFullTensor, such as ``layers.0.weight``."""
    return _with_parts(value)[0]


def _with_parts(value: object) -> tuple[FullTensor, Parts]:
    """The view of an IRFullTensor, with the parts of it that were met."""
    record = expect(value, "IRFullTensor")
    known = seen(record)
    if known is not None:
        return known  # type: ignore[no-any-return]
    try:
        full = FullTensor(
            id=whole(record._id, "a tensor id"),
            name=text(record.name, "a tensor's name"),
            shape=_shape(record._shape),
            dtype=_dtype(record._dtype),
            is_attr=flag(record._is_attr, "_is_attr"),
            is_grad=flag(record._is_grad, "_is_grad"),
            is_loss=flag(record._is_loss, "_is_loss"),
            requires_grad=flag(record._requires_grad, "_requires_grad"),
        )
    except AttributeError as error:
        raise missing(record, error).within(_named(record, "full tensor")) from None
    except UnreadablePlan as error:
        raise error.within(_named(record, "full tensor")) from None
    record.view = (full, {})
    return record.view  # type: ignore[no-any-return]


def content(value: object) -> bytes | None:
    """Plain data, such as (True, 2), as bytes that are equal for equal data of equal types (True is
    not 1); None for what is no plain data."""
    try:
        return marshal.dumps(value, 2)  # type: ignore[arg-type]
    except ValueError:
        return None


def _field(value: object, kind: str, name: str) -> object:
    """A field of a record of one kind."""
    record = expect(value, kind)
    try:
        return getattr(record, name)
    except AttributeError as error:
        raise missing(record, error) from None


def _indices(indices: object) -> Box:
    """The ranges of an IndexMap, not yet compared with a shape."""
    known = content(indices)
    return _ranges(indices) if known is None else _known_ranges(known)


def _ranges(indices: object) -> Box:
    ranges = []
    for item in listed(indices, "index ranges"):
        start, end = pair(item, "an index range")
        if start > end:
            raise UnreadablePlan(f"expected an index range, found {start} to {end}")
        ranges.append((start, end))
    return tuple(ranges)


@lru_cache(maxsize=1 << 14)
def _known_ranges(data: bytes) -> Box:
    """Index ranges by their `content`: few of a plan's are different."""
    return _ranges(marshal.loads(data))


def pair(value: object, what: str) -> tuple[int, int]:
    """Two integers as a tuple, such as the (start, end) of an index map; three are refused."""
    numbers = wholes(value, what, MAX_EXTENT)
    if len(numbers) != 2:
        raise UnreadablePlan(f"expected two numbers for {what}, found {len(numbers)}")
    return numbers[0], numbers[1]


def _within(box: Box, full: FullTensor) -> Box:
    """Index ranges that lie within their full tensor."""
    if len(box) != len(full.shape):
        raise UnreadablePlan(
            f"expected index ranges for {len(full.shape)} dimensions of full tensor {full.id}, "
            f"found {len(box)}"
        )
    for dimension, ((start, end), size) in enumerate(zip(box, full.shape, strict=True)):
        if end > size:
            raise UnreadablePlan(
                f"expected indices within dimension {dimension} of size {size} of full tensor "
                f"{full.id}, found {start} to {end}"
            )
    return box


def _addend(weight: object) -> tuple[int, int]:
    """The addend of a ValueMap."""
    known = content(weight)
    return _weight(weight) if known is None else _known_weight(known)


def _weight(weight: object) -> tuple[int, int]:
    position, count = pair(weight, "a value map")
    if position >= count:
        raise UnreadablePlan(f"expected addend i of n with i < n, found {position} of {count}")
    return position, count


@lru_cache(maxsize=1 << 12)
def _known_weight(data: bytes) -> tuple[int, int]:
    """Addends by their `content`."""
    return _weight(marshal.loads(data))


class _Last(NamedTuple):
    """The part that a value map was last met in, and all that its record says."""

    fields: tuple[Any, ...]
    part: Part


_fields = attrgetter(
    "_full_tensor", "_indmap", "_valmap", "name", "_shape", "_dtype", "_is_attr", "_is_grad"
)


def tensor(value: object) -> Tensor:
    """The view of an IRSubTensor, such as rows 0 and 1 of ``data``."""
    known = getattr(value, "view", None)
    if type(known) is Tensor:
        return known
    record = expect(value, "IRSubTensor")
    try:
        ident, grad = record._id, record._grad
        if type(ident) is not int or not 0 <= ident <= MAX_ID:
            whole(ident, "a tensor id")
        part = _part(_fields(record))
        made = Tensor(ident, part, None if grad is None else expect(grad, "IRSubTensor"))
    except AttributeError as error:
        raise missing(record, error).within(_named(record, "tensor")) from None
    except UnreadablePlan as error:
        raise error.within(_named(record, "tensor")) from None
    record.view = made
    return made


def _part(fields: tuple[Any, ...]) -> Part:
    """What the record of a tensor says; looked at once for all records that say the same.

    Copies of a tensor share what they say, object by object, so the value map remembers of which
    fields it was last a part, and what came of them.
    """
    addends = fields[2]
    last = getattr(addends, "view", None)
    if type(last) is _Last and all(map(is_, last.fields, fields)):
        return last.part
    full_record, ranges, _, name, shape, dtype, is_attr, is_grad = fields
    full, parts = _with_parts(full_record)
    indices, weight = _field(ranges, "IndexMap", "_indices"), _field(addends, "ValueMap", "_weight")
    data = content((name, shape, is_attr, is_grad, indices, weight))
    key = (data, dtype)
    part = parts.get(key) if data is not None else None
    if part is None:
        part = Part(
            name=text(name, "a tensor's name"),
            shape=_shape(shape),
            dtype=_dtype(dtype),
            is_attr=flag(is_attr, "_is_attr"),
            is_grad=flag(is_grad, "_is_grad"),
            box=_within(_indices(indices), full),
            addend=_addend(weight),
            full=full,
        )
        parts[key] = part
    addends.view = _Last(fields, part)
    return part


def tensors(value: object) -> tuple[Tensor, ...]:
    """A list of IRSubTensors, such as an adapter's inputs."""
    return tuple([tensor(item) for item in listed(value, "tensors")])


def object_ref(value: object) -> ObjectRef:
    """The view of an IRObject, such as the data loader."""
    record = expect(value, "IRObject")
    try:
        return ObjectRef(whole(record._id, "an object's id"), text(record.name, "a name"))
    except AttributeError as error:
        raise missing(record, error) from None


def constant(value: object) -> Constant:
    """An operand or attribute: a tensor, a run-time object or immutable data of bounded size, for
    example (1, (2, "a")).

    Lists become tuples; the numbers, texts and containers are those of `Constant`.
    """
    return _constant(value, [_MAX_ITEMS], 0)


def _constant(value: object, left: list[int], depth: int) -> Constant:
    # Lists may share their items, so that a small file can spell a tree of any size: the items
    # are counted as they are met.
    left[0] -= 1
    if left[0] < 0 or depth > _MAX_DEPTH:
        raise UnreadablePlan(
            f"expected an attribute of at most {_MAX_ITEMS} items nested {_MAX_DEPTH} deep"
        )
    kind = type(value)
    if isinstance(value, Record):
        return object_ref(value) if value.kind == "IRObject" else tensor(value)
    if kind is int:
        return whole(value, "a constant", -MAX_ID)
    if kind is str:
        return text(value, "a constant")
    if value is None or kind in (bool, float, complex, DType):
        return value  # type: ignore[return-value]
    if isinstance(value, (list, tuple)):
        return tuple([_constant(item, left, depth + 1) for item in value])
    if isinstance(value, dict):
        return {
            text(key, "an attribute's name"): _constant(item, left, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        start, stop, step = (_constant(part, left, depth + 1) for part in parts)
        return slice(start, stop, step)
    actual = value.name if isinstance(value, TypeName) else kind_of(value)
    raise UnreadablePlan(f"expected a constant or a tensor, found {printable(actual)}")
