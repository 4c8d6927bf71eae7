"""What Python reads of a tensor whose value nobody knows while a step is recorded.

A loss is read to be printed, kept, averaged or divided by.  No value of it is there, so Python gets
an object that stands for the number: its text is "n/a", with which nothing but printing is done
(`shardproof.frontends.torch.texts`), what is calculated of it is calculated of the tensor that was
read, and where it meets a tensor it is that tensor.  Who compares it or
counts by it is refused, since the step would go another way with another value.  Whether one number
is finite has an answer: numbers are real.  How it is read: `shardproof.frontends.torch.reading`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dis import opmap
from numbers import Number
from sys import _getframe
from types import FrameType
from typing import Any, NoReturn

import torch

from shardproof.frontends.torch.checks import PASSES, passing
from shardproof.frontends.torch.places import is_own
from shardproof.frontends.torch.refusals import refuse
from shardproof.frontends.torch.texts import TEXT, Text

#: Where numbers that were put into texts were read, or that another rank gave such a text.
_WRITTEN: list[str] = []
#: The same of those that became "nan" by ``%`` in a library.
_AS_FLOATS: list[str] = []
#: Who is told what a program checks of such numbers.
_LISTENERS: list[Callable[[str], None]] = []
#: Whether texts are followed.  Where they are not, and a number was put into one, the step is
#: recorded once more, so that what is there does not matter.
_FOLLOWED: list[bool] = []

#: Why a step is refused that uses a number of an array behind what writes the array's memory.
WRITTEN_SINCE = (
    "a number of the array that .numpy() gives at {} is used after the tensor's memory was "
    "written: the array has what was written, a copy of it what was there before (copy the tensor: "
    ".clone())"
)


class Unread:
    """The number that Python read at ``where`` of a tensor of one element; ``tensor``: that element
    (None: nobody can say); ``unchanged``: whether its memory is as it was when it was read.

    Example: of ``loss.item() / 2`` the text is "n/a"; ``x / count.item()`` divides by the count;
    ``loss.item() < 2`` is refused.
    """

    def __init__(
        self,
        where: str,
        tensor: torch.Tensor | None,
        unchanged: Callable[[], bool] = lambda: True,
    ) -> None:
        self.where = where
        #: The element as it is now, which is what an array has that is the tensor's memory.
        self.element = tensor
        self._unchanged = unchanged

    @property
    def tensor(self) -> torch.Tensor | None:
        """The element that was read; raises `InvalidInput` where its memory was written since."""
        if not self._unchanged():
            refuse(WRITTEN_SINCE.format(self.where))
        return self.element

    @property
    def kind(self) -> type:
        """The type that the number has on the cluster: ``float``, or ``int`` of an integer."""
        return int if self.element is not None and _is_whole(self.element) else float

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What it is to the program's own code, also where that asks by a class of `numbers`; code
        of libraries, which would compare it, is told the truth."""
        frame: FrameType | None = _getframe(1)
        while frame is not None and frame.f_globals.get("__name__") == "abc":
            frame = frame.f_back
        return self.kind if frame is not None and is_own(frame.f_code.co_filename) else Unread

    def __repr__(self) -> str:
        return in_text(TEXT, self.where)

    def __format__(self, spec: str) -> str:
        padding = _PADDING.match(spec)
        assert padding is not None
        fill, align, width = padding.groups(default="")
        align = align if align in ("<", "^") else ">"
        return format(Text(repr(self), self.where), f"{fill}{align}{width}")

    def __hash__(self) -> int:
        # A look-up in a set or by a key compares it with what is there.
        self.refused()

    def __reduce__(self) -> tuple[Any, ...]:
        return Unread, (self.where, None)  # Another rank has the number, and no tensor of it.

    def __copy__(self) -> Unread:
        return self

    def __deepcopy__(self, memo: object) -> Unread:
        return self

    def __float__(self) -> float:
        if _formats(_getframe(1)):
            _WRITTEN.append(self.where)
            _AS_FLOATS.append(self.where)
            return math.nan
        self.refused()

    def __int__(self) -> int:
        if _formats(_getframe(1)):
            _WRITTEN.append(self.where)
            if not _FOLLOWED:
                return 0
        self.refused()

    def __round__(self, *_: object) -> Unread:
        return Unread(self.where, None)

    def refused(self, *_: object) -> NoReturn:
        """Raises `InvalidInput`: what follows would depend on the value."""
        refuse(
            "Python reads the value of a tensor that depends on the inputs of the step (.item() at "
            f"{self.where}), and does what depends on it"
        )

    def computed(self, kind: str, *others: object) -> Any:
        """What an operator of tensors gives; a tensor where one takes part in it."""
        if self.tensor is None:
            return Unread(self.where, None)
        numbers = [_operand(x) for x in others]
        if not all(isinstance(x, (float, int, torch.Tensor)) for x in numbers):
            return NotImplemented
        result = getattr(torch.Tensor, kind)(self.tensor, *numbers)
        met = any(isinstance(x, torch.Tensor) for x in others)
        return result if met else Unread(self.where, result)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """A function of torch is called with such a number: with the tensor that was read.

        Example: ``torch.mul(x, loss.item())`` and ``x *= norm.item()``.
        """
        numbers = [_as_tensor(x) for x in args]
        named = {k: _as_tensor(x) for k, x in (kwargs or {}).items()}
        factor = FACTORS.get(function.__name__.removesuffix("_"), "")
        if isinstance((kwargs or {}).get(factor), Unread) and len(numbers) > 1:
            numbers[1] = numbers[1] * named.pop(factor)  # PyTorch would ask for its value.
        return function(*numbers, **named)


def _is_whole(x: torch.Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def _as_tensor(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(map(_as_tensor, x))
    if isinstance(x, Unread):
        return x.refused() if x.tensor is None else x.tensor
    return x


def _operand(x: object) -> object:
    """Another operand: a tensor, or a number of Python's for one of numpy's."""
    if isinstance(x, Unread):
        return x.tensor
    return x.item() if isinstance(x, Number) and hasattr(x, "item") else x


#: Functions, in place or not, with the name of a factor of the operand behind the first one.
FACTORS = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}

#: What a format says of where a number stands: how it is filled and aligned, and its width.
_PADDING = re.compile(r"(?:(.?)([<>^=]))?[+\- ]?z?#?0?(\d*)")


def arrived(given: bytes) -> None:
    """Note that another rank gave objects, as bytes, of which a text may be that of such a number.

    Example: what rank 0 broadcasts as ``"%.3f" % loss.item()`` is no number on rank 1 either.
    """
    for text, known in ((b"nan", _AS_FLOATS), (TEXT.encode(), _WRITTEN)):
        if text in given.lower():
            known.append("another rank")


def in_text(text: str, where: str) -> Text:
    """The text of what was read there, or of a tensor, which is noted.

    Example: ``str(loss.item())``, which is printed as "n/a".
    """
    _WRITTEN.append(where)
    return Text(text, where)


def tell(note: Callable[[str], None]) -> None:
    """From here on ``note`` is told what a program checks of such numbers, in this process.

    Example: of ``assert loss.item() < 1e6`` that what is checked there holds.
    """
    _LISTENERS.append(note)


def follow() -> None:
    """From here on texts that have such a number are followed, in this process, for good.

    Example: after it, ``"%d" % count.item()`` in a library, of which a plain text is made, is
    refused.
    """
    _FOLLOWED.append(True)


def begin() -> None:
    """Forget what was put into texts in this process before a step begins.

    Example: in a notebook that printed such a number the next step is not recorded once more.
    """
    _WRITTEN.clear()
    _AS_FLOATS.clear()


def written() -> str:
    """Where a number that was put into a text was read; "" where none was.

    Example: after ``print(loss.item())`` it is "train.py:9".
    """
    return _WRITTEN[-1] if _WRITTEN else ""


def read_back(text: str, frame: FrameType) -> None:
    """Raises `InvalidInput` where a text is that of such a number, and no literal of the code that
    reads it.

    Example: ``float("%.3f" % loss.item())``; ``float("nan")`` is what it is.
    """
    if isinstance(text, Text):
        text.refused()
    number = text.strip().lower().lstrip("+-")
    wrote = (number == TEXT and _WRITTEN) or (number == "nan" and _AS_FLOATS)
    if wrote and not any(text is literal for literal in frame.f_code.co_consts):
        refuse(
            "Python reads the value of a tensor that depends on the inputs of the step "
            f"back from a text (in {frame.f_code.co_name})"
        )


#: How a program writes ``"%.3f" % number``: an operator with this number, or in place.
_BINARY, _REMAINDERS = opmap["BINARY_OP"], (6, 19)


def _formats(frame: FrameType) -> bool:
    """Whether the frame asks for a float to put it in a text.  Where a number is an operand of
    ``%`` itself, Python asks it for a remainder.

    Example: ``"loss %.3f" % loss.item()``, or `logging` that does so.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    return code[at] == _BINARY and code[at + 1] in _REMAINDERS


#: What asks for the value.
ASKING = ("eq", "ne", "lt", "le", "gt", "ge", "bool", "index", "trunc", "complex")
#: What gives another number, of tensors alike.
COMPUTING = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"),
    *("pow", "rpow", "neg", "abs", "floordiv", "rfloordiv", "mod", "rmod"),
)
#: Functions of one number that torch has, too: of `math`, and as numpy calls them of an object.
FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tanh")


def _computing(kind: str) -> Callable[..., Any]:
    def method(self: Unread, *others: object) -> Any:
        return self.computed(kind, *others)

    return method


def _asking(self: Unread, *others: object) -> bool:
    check = passing(_getframe(1))
    if check is None or not _LISTENERS:
        self.refused(*others)
    _LISTENERS[-1](PASSES.format(check[1]))
    return check[0]


for _name in ASKING:
    setattr(Unread, f"__{_name}__", _asking)
for _name in COMPUTING:
    setattr(Unread, f"__{_name}__", _computing(f"__{_name}__"))
for _name in FUNCTIONS:
    setattr(Unread, _name, _computing(_name))
for _name in ("floor", "ceil"):
    setattr(Unread, f"__{_name}__", Unread.__round__)
