"""Functions that a model registers with an annotation, and of which nothing else is known.

``'b s h^, h^ o -> b s o'`` says how nnScaler may cut a function, and so what is assumed of it:
along an axis without a mark each position of the result is made of the operands at that position;
over one marked ``+`` that the results lack, they are the sums of the results of parts; one marked
``^`` is read as a whole.  Beyond that it is any function, the same wherever it has the same name,
constants and sizes of whole axes.

For the engine it is ``phi(c_1 x_1 + c_2 x_2 + ...)``, a product with numbers ``c`` over all whole
axes, for each position of the whole axes of a result.  These numbers are inputs that both sides
have: for generic ones, operands that differ anywhere differ in the sum, so that ``phi`` and its
derivative, of which nothing is used, may be anything there (docs/soundness.md, section 5.8).  A
difference that shows under particular numbers may be one of them: those are stand-ins, and refute
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardproof.frontends.nnscaler.calls import Composed, Drawn, Refused, SharedInput, shown
from shardproof.frontends.nnscaler.cells import ForwardOp
from shardproof.frontends.nnscaler.chain import Chain
from shardproof.frontends.nnscaler.records import Constant, ObjectRef, Tensor
from shardproof.frontends.untrusted.inert import DType

#: What a function has that may draw random numbers or write into its operands.
_IMPURE: Final = re.compile(
    r"drop|rand|noise|(?<!up)(?<!down)sampl|seed|bernoulli|inplace|_$"
    r"|multinomial|gumbel|poisson|rrelu|exponential|^normal$|^empty|(batch|instance)_norm$",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"([A-Za-z_]\w*|\d+)([+^]?)", re.ASCII)
#: A function of which no law is known, nor of its derivative.
_PHI: Final = "sin"
_LETTERS: Final = "abcdefghijklmnopqrstuv"

#: The names of the numbers that a function's operands are multiplied by.
_NUMBERS: Final = re.compile(r"result \d+ of operand \d+ of (.+)", re.DOTALL)

#: A dimension: the axes that it is made of.
Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Annotation:
    """Axes of operands (None: a constant) and of results, and the mark of each.

    Example: ``b s h^, h^ o -> b s o`` has the inputs (``b``, ``s``, ``h``) and (``h``, ``o``), the
    output (``b``, ``s``, ``o``), and the mark "^" of ``h``.
    """

    inputs: tuple[Dims | None, ...]
    outputs: tuple[Dims, ...]
    marks: Mapping[str, str]


def function_of(name: str) -> str:
    """Of which function a buffer of this name has the numbers ("": of none).

    Example: of "result 0 of operand 1 of mixed()" it is "mixed()", of "layers.0.weight" "".
    """
    match = _NUMBERS.fullmatch(name)
    return match[1] if match else ""


def parsed(text: str, ranks: Sequence[int | None]) -> Annotation:
    """An annotation for operands of these ranks (None: a constant); ``*`` is as many axes as are
    left, ``?`` an operand that is read as a whole.  Raises `Refused`.

    Example: ``* h -> * h`` for an operand of three dimensions has the axes ``*0``, ``*1``, ``h``;
    ``a b`` without an arrow is refused.
    """
    if text.count("->") != 1:
        raise Refused(f"annotation {shown(text)}")
    left, right = (side.strip() for side in text.split("->"))
    words = [x.strip() for x in left.split(",")] if left else []
    if len(words) != len(ranks):
        raise Refused(f"annotation {shown(text)} for {len(ranks)} operands")
    marks: dict[str, str] = {}
    spread: list[int] = []
    inputs: list[Dims | None] = []
    for place, (word, rank) in enumerate(zip(words, ranks, strict=True)):
        if rank is None:
            if word != "?":
                raise Refused(f"a constant as {shown(word)}")
            inputs.append(None)
        elif word == "?":
            names = [f"?{place}.{i}" for i in range(rank)]
            marks.update(dict.fromkeys(names, "^"))
            inputs.append(tuple((name,) for name in names))
        else:
            inputs.append(_dims(word, rank, marks, spread))
    outputs = [_dims(x.strip(), None, marks, spread) for x in right.split(",")]
    return Annotation(tuple(inputs), tuple(outputs), marks)


def _dims(text: str, rank: int | None, marks: dict[str, str], spread: list[int]) -> Dims:
    """The dimensions of one tensor; ``spread``: how many axes ``*`` is, once that is known."""
    dims: list[tuple[str, ...]] = []
    words = re.findall(r"\([^()]*\)|[^\s()]+|[()]", text)
    for word in words:
        if word in ("*", "*^", "*+"):
            if rank is not None and not spread:
                spread.append(rank - (len(words) - 1))
            if not spread or spread[0] < 0:
                raise Refused(f"annotation {shown(text)}")
            for i in range(spread[0]):
                _mark(f"*{i}", word[1:], marks)
                dims.append((f"*{i}",))
            continue
        axes = []
        for one in word.strip("()").split():
            known = _WORD.fullmatch(one)
            if known is None:
                raise Refused(f"annotation {shown(text)}")
            _mark(known[1], "^" if known[1].isdigit() else known[2], marks)
            axes.append(known[1])
        if not axes:
            raise Refused(f"annotation {shown(text)}")
        dims.append(tuple(axes))
    return tuple(dims)


def _mark(name: str, mark: str, marks: dict[str, str]) -> None:
    if marks.setdefault(name, mark) != mark:
        raise Refused(f"axis {name} with two marks")


def lowered(op: ForwardOp) -> Composed:
    """A call of a registered function; raises `Refused` naming what is not understood.

    Example: ``my.kernels.mixed(x, w)`` with ``b s h^, h^ o -> b s o``; with ``dropout_p=0.1`` it is
    refused, since it may draw random numbers.
    """
    name = op.signature.rsplit(".", 1)[-1]
    words = [op.name, name, *(k for k, v in op.kwargs.items() if v not in (0, 0.0, False, None))]
    for word in words:
        if _IMPURE.search(word):
            raise Refused(f"{word}, which may draw random numbers or write into an operand")
    results = [x for x in op.outputs if isinstance(x, Tensor)]
    ranks = [len(x.shape) if isinstance(x, Tensor) else None for x in op.inputs]
    fitting = []
    problem = Refused("no annotation")
    for text in op.annotations:
        try:
            fitting.append(_Function(op, text, parsed(text, ranks), results))
        except Refused as refused:
            problem = refused
    if len(fitting) != 1:
        raise Refused(f"{len(fitting)} annotations") if fitting else problem
    return fitting[0].composed()


class _Function:
    """One function of which an annotation holds."""

    def __init__(
        self, op: ForwardOp, text: str, anno: Annotation, results: Sequence[Tensor]
    ) -> None:
        self.op, self.text, self.anno, self.results = op, text, anno, results
        self.tensors = [x for x in op.inputs if isinstance(x, Tensor)]
        self.dims = [dims for dims in anno.inputs if dims is not None]
        if not self.tensors or len(results) != len(anno.outputs):
            raise Refused(f"{len(self.tensors)} operands and {len(results)} results")
        if any(isinstance(x, Tensor) for x in op.kwargs.values()):
            raise Refused("a tensor by name")
        for x in (*self.tensors, *results):
            if not x.dtype.startswith(("float", "bfloat")):
                raise Refused(f"a tensor of {x.dtype}")
        self.sizes = self._sizes()
        everywhere = set.intersection(*({a for d in dims for a in d} for dims in anno.outputs))
        somewhere = {a for dims in anno.outputs for d in dims for a in d}
        leading = self._leading()
        free = {a for a, mark in anno.marks.items() if mark != "^" and a in leading}
        #: Axes along which it is parallel, and over which it is a sum; all others are whole.
        self.parallel = {a for a in free if a in everywhere}
        self.summed = {a for a in free if anno.marks[a] == "+" and a not in somewhere}
        for dims in (*self.dims, *anno.outputs):
            axes = [a for a in self._axes(dims) if a in self.parallel | self.summed]
            if len(set(axes)) < len(axes):
                raise Refused("an axis twice in one tensor")
        split = {a for a in free if anno.marks[a] == "+"} & somewhere - everywhere
        if split:
            raise Refused(f"axis {min(split)} in some results")
        self.key = self._key()

    def _leading(self) -> set[str]:
        """Axes that lead each dimension that they are in: those that nnScaler cuts along."""
        groups = [d for dims in (*self.dims, *self.anno.outputs) for d in dims]
        inner = {a for d in groups for a in _cut(d)[1:]}
        return {a for a in self.anno.marks if a not in inner}

    def _sizes(self) -> dict[str, int]:
        """How long each axis is here, by shapes and by constants that are named like axes."""
        groups = [
            (d, n)
            for dims, x in zip((*self.dims, *self.anno.outputs), (*self.tensors, *self.results),
                               strict=True)
            for d, n in _paired(dims, x)
        ]  # fmt: skip
        known = {a: int(a) for a in self.anno.marks if a.isdigit()}
        known |= {d[0]: n for d, n in groups if len(d) == 1 and not d[0].isdigit()}
        for name, value in self.op.kwargs.items():
            if name in self.anno.marks and type(value) is int:
                known.setdefault(name, value)
        for _ in groups:
            for dim, size in groups:
                left = [a for a in dim if a not in known]
                rest = 1
                for a in dim:
                    rest *= known.get(a, 1)
                if len(left) == 1 and rest and size % rest == 0:
                    known[left[0]] = size // rest
        for dim, size in groups:
            product = 1
            for a in dim:
                if a not in known:
                    raise Refused(f"axis {a} of no known size")
                product *= known[a]
            if product != size:
                raise Refused(f"a dimension of {size} as ({' '.join(dim)})")
        return known

    def _key(self) -> str:
        """What tells it from other functions: its name, constants, and sizes of whole axes."""
        constants = [_text(x) for x in self.op.inputs if not isinstance(x, Tensor)]
        constants += [
            f"{k}={_text(v)}"
            for k, v in sorted(self.op.kwargs.items())
            if not (type(v) is int and self.sizes.get(k) == v)
        ]
        free = self.parallel | self.summed
        whole = [f"{a}={n}" for a, n in sorted(self.sizes.items()) if a not in free]
        signature = f"{self.op.signature}({', '.join(constants)})"
        return f"{signature}, '{self.text}', {', '.join(whole) or 'no whole axis'}"

    # -- what it is for the engine --

    def composed(self) -> Composed:
        shared: dict[tuple[int, ...], SharedInput] = {}
        for r in range(len(self.results)):
            for i in range(len(self.tensors)):
                shape = (*self._whole(self.dims[i]), *self._whole(self.anno.outputs[r]))
                shared[r, i] = self._shared_input(f"result {r} of operand {i}", shape)
        operands: tuple[Tensor | Drawn | SharedInput, ...] = (*self.tensors, *shared.values())
        places = {key: len(self.tensors) + n for n, key in enumerate(shared)}
        chain = Chain(*operands)
        made = tuple(self._result(chain, r, places) for r in range(len(self.results)))
        return Composed(operands, tuple(chain.steps), self._assumed(), made)

    def _shared_input(self, of: str, shape: tuple[int, ...]) -> SharedInput:
        return SharedInput(f"{of} of {self.key}", shape or (1,))

    def _axes(self, dims: Dims) -> list[str]:
        return [a for d in dims for a in d]

    def _named(self, dims: Dims) -> list[str]:
        """The axes of a tensor that are not whole."""
        return [a for a in self._axes(dims) if a in self.parallel | self.summed]

    def _whole(self, dims: Dims) -> list[int]:
        free = self.parallel | self.summed
        return [self.sizes[a] for a in self._axes(dims) if a not in free]

    def _spread(self, chain: Chain, number: int, dims: Dims) -> int:
        """A tensor with a dimension for each of its axes."""
        sizes = tuple(self.sizes[a] for a in self._axes(dims))
        return number if sizes == chain.shapes[number] else chain("view", number, size=sizes)

    def _common(self) -> list[str]:
        """All axes that are not whole, in one order."""
        free = self.parallel | self.summed
        return [a for a in self.anno.marks if a in free]

    def _mixed(self, chain: Chain, terms: Sequence[tuple[int, int]], behind: Sequence[int]) -> int:
        """``phi`` of the sum of products of operands (by number) with numbers that both sides hold,
        over whole axes; its axes: the common ones, then those ``behind``."""
        letters = iter(_LETTERS)
        names = {a: _next(letters) for a in self._common()}
        rest = "".join(_next(letters) for _ in behind)
        sizes = tuple(self.sizes[a] for a in names)
        parts = []
        for i, numbers in terms:
            own, inner = self._named(self.dims[i]), iter(_LETTERS[len(names) + len(rest) :])
            dims = self._axes(self.dims[i])
            read = "".join(names[a] if a in names else _next(inner) for a in dims)
            over = "".join(c for c, a in zip(read, dims, strict=True) if a not in names)
            given = over + rest or _next(inner)
            kept = "".join(names[a] for a in names if a in own)
            x = self._spread(chain, i, self.dims[i])
            part = chain("einsum", x, numbers, equation=f"{read},{given}->{kept}{rest}")
            shape = (*(n if a in own else 1 for a, n in zip(names, sizes, strict=True)), *behind)
            parts.append(self._shaped(chain, part, shape))
        total = parts[0]
        for part in parts[1:]:
            total = chain("add", total, part)
        wanted = (*sizes, *behind) or (1,)
        if chain.shapes[total] != wanted:
            total = chain("broadcast_to", total, size=wanted)
        return chain(_PHI, total)

    @staticmethod
    def _shaped(chain: Chain, number: int, shape: tuple[int, ...]) -> int:
        shape = shape or (1,)
        return number if chain.shapes[number] == shape else chain("view", number, size=shape)

    def _result(self, chain: Chain, r: int, places: Mapping[tuple[int, ...], int]) -> int:
        """A result: summed over its summed axes, in its own order and shape."""
        dims = self.anno.outputs[r]
        terms = [(i, places[r, i]) for i in range(len(self.tensors))]
        mixed = self._mixed(chain, terms, self._whole(dims))
        letters = iter(_LETTERS)
        common = {a: _next(letters) for a in self._common()}
        axes = self._axes(dims)
        behind = {n: _next(letters) for n, a in enumerate(axes) if a not in common}
        given = "".join((*common.values(), *behind.values())) or _next(letters)
        wanted = "".join(behind[n] if n in behind else common[a] for n, a in enumerate(axes))
        summed = chain("einsum", mixed, equation=f"{given}->{wanted or given}")
        return chain("view", summed, size=self.results[r].shape)

    def _assumed(self) -> tuple[str, ...]:
        """What is assumed, in sentences."""
        name = self.op.signature
        sentences = [
            f"{name} computes one function of its operands wherever it is called with the same "
            f"constants, draws no random numbers and writes into no operand; its annotation "
            f"'{self.text}' holds of it: axes without a mark are parallel"
        ]
        if self.summed:
            axes = " and ".join(sorted(self.summed))
            sentences.append(
                f"the results of {name} over the parts of axis {axes} add up to its result over "
                "the whole of it, as its annotation says"
            )
        return tuple(sentences)


def _cut(dim: tuple[str, ...]) -> tuple[str, ...]:
    """A dimension from its first axis on that is not 1."""
    at = next((i for i, a in enumerate(dim) if a != "1"), len(dim))
    return dim[at:]


def _next(letters: object) -> str:
    letter = next(letters, None)  # type: ignore[call-overload]
    if letter is None:
        raise Refused("more axes than there are letters")
    return str(letter)


def _paired(dims: Dims, x: Tensor) -> list[tuple[tuple[str, ...], int]]:
    if len(dims) != len(x.shape):
        raise Refused(f"{len(dims)} dimensions for a tensor of {len(x.shape)}")
    return list(zip(dims, x.shape, strict=True))


def _text(value: Constant) -> str:
    """A constant as text that is equal for equal ones alone; raises `Refused` for what has none."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (Tensor, ObjectRef)):
        raise Refused(f"a constant {shown(value)}")
    return repr(value)
