"""What the names in a plan file stand for: objects that can hold data and do nothing.

Every class and instance here may be called, built or stored by opcodes of an untrusted file.
Each therefore defines ``__setstate__``: without it the unpickler would write into the attributes
of whatever it is given, our own classes included.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from shardproof.frontends.errors import UnreadablePlan

Fields = dict[str, Any]


def printable(text: object, limit: int = 80) -> str:
    """``text`` of the file as it may be shown: quoted, on one line, bounded.

    Example: a name with an end of line in it is shown with a backslash and an n, and what is longer
    than 80 characters ends in ``...``.
    """
    shown = str(text)
    return ascii(shown if len(shown) <= limit else shown[:limit] + "...")


def _parts(state: object, kind: str) -> tuple[Fields, ...]:
    """The dictionaries of a pickled state: ``dict`` or ``(dict or None, dict or None)``.

    Raises `UnreadablePlan` for any other state, and for an empty one: a state is emptied when it
    is taken over, so an empty one is shared by two objects (pickle itself never writes either).
    """
    if type(state) is dict:
        if state:
            return (state,)
        raise UnreadablePlan(f"expected fields for an object of {kind}, found none or shared ones")
    if (
        type(state) is tuple
        and len(state) == 2
        and all(part is None or type(part) is dict for part in state)
        and any(state)
    ):
        return tuple(part for part in state if part)
    raise UnreadablePlan(
        f"expected a dictionary of fields for {kind}, found {type(state).__name__}"
    )


class Record:
    """An object of the plan that we read: the fields named in the allow-list, nothing else.

    Example: ``record_class("IRTensor", ("name", "shape"))`` given the state
    ``{"name": "w", "device": 3}`` has the name "w", and neither a shape nor a device.

    A field is an attribute of the record's own name; one that the file does not give is not set.
    ``view`` is where the frontend keeps what it made of the record: None, or (of a record without
    a state) not set, before it made anything.
    """

    __slots__ = ("view",)
    view: Any
    kind: ClassVar[str]
    _puts: ClassVar[tuple[tuple[str, Callable[[Any, Any], None]], ...]] = ()

    def __setstate__(self, state: object) -> None:
        # To ask for what was never set takes ten times as long as to ask for None.
        self.view = None
        for fields in _parts(state, self.kind):
            for name, put in self._puts:
                if name in fields:
                    put(self, fields[name])
            # The unpickler's memo holds every state until the end of the load: emptied, the
            # states of a large plan take a third of the memory.
            fields.clear()


def record_class(kind: str, fields: tuple[str, ...], base: type[Record] = Record) -> type[Record]:
    """A class of records with exactly ``fields``; ``base``: how it takes a state over.

    Example: ``record_class("IRTensor", ("name", "shape"))`` has two fields, and any other attribute
    that a file gives is dropped.
    """
    made: type[Record] = type(kind, (base,), {"__slots__": fields, "kind": kind})
    made._puts = tuple((name, getattr(made, name).__set__) for name in fields)
    return made


class Opaque:
    """An object of the plan that we do not read: swallows every call, argument and state.

    Example: ``opaque_class("Graph")(1, 2)(3)`` is an opaque object again.
    """

    __slots__ = ()
    kind: ClassVar[str]

    def __new__(cls, *_args: object, **_kwargs: object) -> Opaque:
        return object.__new__(cls)

    def __call__(self, *_args: object, **_kwargs: object) -> Opaque:
        return self

    def __setstate__(self, state: object) -> None:
        for part in state if type(state) is tuple else (state,):
            if type(part) is dict:
                part.clear()


def opaque_class(kind: str) -> type[Opaque]:
    """A class of opaque objects that remembers what the file called it.

    Example: ``opaque_class("Graph").kind`` is "Graph".
    """
    return type(kind, (Opaque,), {"__slots__": (), "kind": kind})


class TypeName:
    """A bare reference to a type, known by its name; it cannot be called or built.

    Example: ``TypeName("my_model", "Block")``; a state for it is refused.
    """

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __setstate__(self, _state: object) -> NoReturn:
        raise UnreadablePlan(f"expected only the name of {printable(self.name)}, found its state")


class DType(TypeName):
    """A torch element type by its name.

    Example: ``DType("torch", "bfloat16")`` prints as ``torch.bfloat16``.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"torch.{self.name}"


# numpy's codes of the scalar types that shapes and attributes may have; struct spells the rest
# of them the same way.
_STRUCT_CODES = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I",
    "u8": "Q", "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip


class NumpyDType:
    """A numpy element type, as far as a scalar needs it: a code and a byte order.

    Example: ``NumpyDType("i8")``, whole numbers of eight bytes; ``NumpyDType("O8")``, of objects,
    is refused.
    """

    __slots__ = ("code", "order")

    def __init__(self, code: object, _align: object = False, _copy: object = False) -> None:
        if type(code) is not str or code.lstrip("<>|=") not in _STRUCT_CODES:
            raise UnreadablePlan(
                f"expected a numpy type of a plain number, found {printable(code)}"
            )
        self.code = code.lstrip("<>|=")
        self.order = ">" if code.startswith(">") else "<"

    def __setstate__(self, state: object) -> None:
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise UnreadablePlan("expected the byte order of a numpy type in its state")
        self.order = ">" if state[1] == ">" else "<"


class NumpyScalar:
    """``numpy.core.multiarray.scalar``, which makes the plain Python number of its bytes.

    Example: of ``NumpyDType("i8")`` and the eight bytes of 7, the number 7; two bytes of ``f4`` are
    refused.
    """

    __slots__ = ()

    # Not an instance of the class on purpose: everything after this sees a Python number.
    def __new__(cls, dtype: object, data: object) -> int | float | bool:  # type: ignore[misc]
        if type(dtype) is not NumpyDType or type(data) is not bytes:
            raise UnreadablePlan("expected the type and the bytes of a numpy number")
        try:
            value: int | float | bool
            (value,) = struct.unpack(dtype.order + _STRUCT_CODES[dtype.code], data)
        except struct.error:
            raise UnreadablePlan(
                f"expected the bytes of one numpy {dtype.code}, found {len(data)} bytes"
            ) from None
        return value

    def __setstate__(self, _state: object) -> NoReturn:
        raise UnreadablePlan("expected a numpy number, found a state for one")
