"""The text of a number that nobody knows while a step is recorded.

A program prints it, logs it, writes it to a file.  What depends on which characters it has (whether
it is "3", how long it is, where it stands among others) would be another thing with another number,
so the program's own code, and the libraries of Python's that compute for it, are refused that.
Libraries may measure and cut such a text, as they do to print it.  What is made of it by putting
texts together is such a text again; how that is seen where Python does so by itself, in C:
`shardproof.frontends.torch.rewriting`.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from types import FrameType
from typing import Any

from shardproof.frontends.torch.places import is_own
from shardproof.frontends.torch.refusals import refuse

#: What is printed.
TEXT = "n/a"

#: Modules of libraries that compare or read texts for whoever calls them, and ours, which does what
#: the program's instructions say.
COMPUTING = frozenset(
    {
        *("ast", "bisect", "collections", "decimal", "difflib", "fnmatch", "fractions"),
        *("functools", "heapq", "numpy", "operator", "random", "re", "shardproof"),
        *("statistics", "string"),
    }
)


class Text(str):
    """A text with the number that was read at ``where``.

    Example: ``f"{loss.item():.3f}"`` is one; ``print`` writes "n/a"; ``"loss " + text`` is another
    one; ``text == "3.000"``, ``text[0]``, ``len(text)`` and ``{text: 1}`` are refused.
    """

    where: str

    def __new__(cls, text: str, where: str) -> Text:
        made = super().__new__(cls, text)
        made.where = where
        return made

    def refused(self, *_: object, **__: object) -> Any:
        """Raises `InvalidInput`: what follows would depend on the number."""
        refuse(
            "Python reads the value of a tensor that depends on the inputs of the step (.item() at "
            f"{self.where}) back from a text, or compares the text"
        )

    def like(self, text: str) -> Text:
        """What is made of this text by adding to it."""
        return Text(text, self.where)

    def __bool__(self) -> bool:
        return True  # A number has a digit at least.

    def __str__(self) -> Text:
        return self

    def __format__(self, spec: str) -> Text:
        return self.like(format(plain(self), spec))

    def __radd__(self, other: str) -> Text:
        return self.like(other + plain(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Text, (plain(self), self.where)

    def __copy__(self) -> Text:
        return self

    def __deepcopy__(self, memo: object) -> Text:
        return self


def plain(x: str) -> str:
    """The characters that stand there, as an ordinary text.

    Example: "n/a" of ``str(loss.item())``.
    """
    return str.__str__(x) if not isinstance(x, Text) else str.__getitem__(x, slice(None))


def _cuts(frame: FrameType | None) -> bool:
    """Whether a frame is that of a library, which does so to print."""
    if frame is None:
        return False
    path, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    return not is_own(path) and not path.startswith("<") and name.split(".")[0] not in COMPUTING


def _asking(name: str) -> Callable[..., Any]:
    own = getattr(str, name)

    def method(self: Text, *args: Any, **kwargs: Any) -> Any:
        if not _cuts(_getframe(1)) and not _never(name, args):
            return self.refused()
        return own(self, *args, **kwargs)

    return method


def _never(name: str, args: tuple[Any, ...]) -> bool:
    """Whether it is compared with no text, or with blanks, which no number is.

    Example: a stream that asks ``if message != "\\n"``.
    """
    if name not in ("__eq__", "__ne__") or isinstance(args[0], Text):
        return False
    return not isinstance(args[0], str) or not args[0].strip()


def _giving(name: str) -> Callable[..., Any]:
    own = getattr(str, name)

    def method(self: Text, *args: Any, **kwargs: Any) -> Any:
        result = own(self, *args, **kwargs)
        return self.like(result) if isinstance(result, str) else result

    return method


#: What asks which characters there are, or gives some of them.
ASKING = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__contains__"),
    *("__len__", "__getitem__", "__iter__", "count", "encode", "endswith", "find", "index"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
    *("isnumeric", "isprintable", "isspace", "istitle", "isupper", "partition", "removeprefix"),
    *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "split", "splitlines"),
    *("startswith", "translate", "maketrans"),
)
#: What gives such a text again.
GIVING = (
    *("__add__", "__mul__", "__rmul__", "__mod__", "capitalize", "casefold", "center", "format"),
    *("expandtabs", "format_map", "join", "ljust", "lower", "rjust", "swapcase", "title", "upper"),
    *("zfill", "strip", "lstrip", "rstrip"),
)
#: How Python makes a number of an object.
NUMBERS = ("__float__", "__int__", "__index__", "__complex__")

for _name in ASKING:
    setattr(Text, _name, _asking(_name))
for _name in GIVING:
    setattr(Text, _name, _giving(_name))
for _name in NUMBERS:
    setattr(Text, _name, Text.refused)
