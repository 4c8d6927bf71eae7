"""Random operators of a recorded step: what each draws, and what a rank reads in its place.

A recorder notes the state of the generator before each draw; draws of one state are one draw, as
where activation checkpointing restores the state before it computes a block again.  What is drawn
is an input that both sides share: a *random input* is what the single device draws, and a rank
reads a part of it (`Part`).  Which part is found elsewhere (`shardproof.drawing`), by the operand
that a draw first meets, its *partner*; for that, constants stand for all that is drawn.

That what is kept is divided by its chance, or that a normal number has a mean, is computed, and no
part of the input: a proof holds for any numbers in place of what is drawn.  What is drawn with a
chance is 0 or 1, as a number too: a mask that is multiplied by itself is that mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import chosen
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    Shape,
    Undefined,
    broadcast,
    fraction,
)
from shardproof.frontends.aten.masks import FLAGS, numbers
from shardproof.frontends.aten.routed import Chosen
from shardproof.frontends.torch.memory import CAST, STILL, Memory, Op
from shardproof.frontends.torch.trace import DRAW, Arg, Event, StridedTensor, Tensor, tensors_of

#: What is drawn: 0 or 1, in [0, 1), of the normal distribution, a whole number.
BERNOULLI, UNIFORM, NORMAL, INTEGER = (
    "random.bernoulli",
    "random.uniform",
    "random.normal",
    "random.integer",
)
KINDS: Final = frozenset({BERNOULLI, UNIFORM, NORMAL, INTEGER})

#: How random inputs are called that one rank alone draws.
ALONE_DRAWN: Final = "random numbers of rank"
#: Partners of a draw that are looked at.
MOST_PARTNERS: Final = 4
#: What a uniform number is that no part of a random input is known to be.
_UNKNOWN: Final = "what is drawn: nothing says which part of what the single device draws it is"

#: Operators that draw, and what; the rest of a name after the first point tells nothing more.
DRAWING: Final = {
    "bernoulli_": BERNOULLI,
    "bernoulli": BERNOULLI,
    "uniform_": UNIFORM,
    "rand": UNIFORM,
    "rand_like": UNIFORM,
    "exponential_": UNIFORM,
    "normal_": NORMAL,
    "randn": NORMAL,
    "randn_like": NORMAL,
    "randint": INTEGER,
    "randint_like": INTEGER,
    "random_": INTEGER,
}

#: Comparisons of a uniform number with a constant, which are draws of 0 or 1: whether the chance is
#: that of being below.
COMPARED: Final = {"lt": True, "le": True, "gt": False, "ge": False}


def kind_of(name: str) -> str:
    """What an operator draws ("": nothing that is understood).

    Example: "aten.bernoulli_.float" draws `BERNOULLI`, "aten.add.Tensor" nothing.
    """
    namespace, _, rest = name.partition(".")
    return DRAWING.get(rest.split(".")[0], "") if namespace == "aten" else ""


# -- without memory ------------------------------------------------------------------------------


class Drawing(NamedTuple):
    """What an event draws: ``kind`` with ``given`` (the chance; low and high), then times ``scale``
    and plus ``shift``; ``logarithm``: of its logarithm.

    Example: ``x.normal_(1.0, 0.5)`` is `NORMAL` times 0.5 plus 1.
    """

    kind: str
    given: tuple[Arg, ...] = ()
    scale: float = 1.0
    shift: float = 0.0
    logarithm: bool = False


def drawing(event: Event) -> Drawing | None:
    """What an operator draws, by its arguments; None if it draws nothing that is understood.

    Example: ``aten.uniform_(x, -1, 1)`` is `UNIFORM` times 2 plus -1.
    """
    kind = kind_of(event.name) if DRAW in event.kwargs else ""
    if not kind:
        return None
    base = event.name.split(".")[1]
    numbers = [float(a) for a in event.args if isinstance(a, (int, float))]
    if kind == BERNOULLI:
        chance = event.args[1] if len(event.args) > 1 else event.kwargs.get("p")
        if chance is None:
            chance = event.args[0] if base == "bernoulli" else 0.5
        return Drawing(kind, (chance,))
    if kind == INTEGER:
        bounds = {1: (0.0, *numbers), 2: tuple(numbers)}.get(len(numbers))
        return None if bounds is None else Drawing(kind, tuple(int(n) for n in bounds))
    if base == "exponential_":
        return Drawing(kind, (), -1.0 / (numbers or [1.0])[0], 0.0, True)
    if base == "uniform_":
        low, high = (*numbers, *(0.0, 1.0)[len(numbers) :])
        return Drawing(kind, (), high - low, low)
    if base == "normal_":
        mean, deviation = (*numbers, *(0.0, 1.0)[len(numbers) :])
        return Drawing(kind, (), deviation, mean)
    return Drawing(kind)


def draw(
    memory: Memory, state: str, drawing: Drawing, target: StridedTensor, given: tuple[Arg, ...]
) -> int:
    """The value that is drawn for a tensor from a state, by number: what is drawn by its name of
    `KINDS`, then ATen's operators for the rest.  ``given``: that of the drawing, as values.

    Example: ``aten.normal_(x, 1.0, 0.5)`` is ``random.normal``, ``aten.mul.Scalar``,
    ``aten.add.Scalar``.
    """
    value = memory.emit(drawing.kind, (state, *given), target.shape, target.dtype)

    def then(name: str, *more: Arg) -> int:
        return memory.emit(name, (Tensor(value), *more), target.shape, target.dtype)

    if drawing.logarithm:
        value = then("aten.log.default")
    if drawing.scale != 1.0:
        value = then("aten.mul.Scalar", drawing.scale)
    if drawing.shift != 0.0:
        value = then("aten.add.Scalar", drawing.shift)
    return value


# -- as inputs -----------------------------------------------------------------------------------


class Part(NamedTuple):
    """What a rank draws: the part of random input ``name`` [``full``] that begins at ``offset``.

    Example: of the mask [8, 16] of a dropout, rank 1 of two replicas draws the part at (4, 0).
    """

    name: str
    full: Shape
    offset: tuple[int, ...]


#: What a draw is, by the state of its generator (and how a uniform number is compared).
Parts = Mapping[str, Part]


class Partner(NamedTuple):
    """A ``value`` that a draw meets, its shape, and which of its dimensions each of the draw's is.

    Example: times [4] that are multiplied with images [4, 3, 8, 8] as [4, 1, 1, 1] have the
    ``dims`` (0,).
    """

    value: int
    shape: Shape
    dims: tuple[int, ...]


@dataclass(slots=True)
class Drawn:
    """A draw of one rank: its ``state``, ``kind`` and what it takes (``given``: chance or bounds);
    ``shape``; ``event``: the first that draws it; ``chosen``: for how many rows, of which data says
    how many there are (``shape`` has all rows then; 0: there are no such rows); ``partners``: the
    values that it meets first, of those that may tell where it lies.

    Example: a dropout of [8, 16] draws `BERNOULLI` with the chance 9/10; its partner is what is
    dropped.
    """

    state: str
    kind: str
    given: tuple[Fraction, ...]
    shape: Shape
    event: int
    chosen: int = 0
    partners: list[Partner] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Uniform:
    """A value that is what draw ``state`` is, plus ``shift``, and nothing else."""

    state: str
    shift: Fraction


@dataclass(slots=True)
class Draws:
    """The draws of one rank while its step is lowered.

    ``parts``: what they are; None: they have none yet, and an operator that needs one is refused.
    ``constants``: in place of all that have none, a constant each (`standing`): nothing is dropped.

    Example: with ``parts`` the value of ``random.bernoulli`` is a named input of the program.
    """

    lo: Lowering
    parts: Parts | None = None
    constants: bool = False
    all: dict[str, Drawn] = field(default_factory=dict)
    #: Values that depend on draws and on nothing else: on which; of these, what is one plus a
    #: number.
    alone: dict[int, frozenset[str]] = field(default_factory=dict)
    #: Values that depend on draws and on others: on which, of those that may meet partners yet.
    mixed: dict[int, frozenset[str]] = field(default_factory=dict)
    uniform: dict[int, _Uniform] = field(default_factory=dict)
    made: dict[str, Lowered] = field(default_factory=dict)

    def drawn(self, op: Op, given: tuple[object, ...], shape: Shape, dtype: str) -> Lowered:
        """What a draw is in the program; raises `Unsupported` where nothing says which part of a
        random input it is."""
        (value,) = op.outputs
        state = str(op.args[0])
        numbers = tuple(_number(x) for x in given)
        if op.name == BERNOULLI and not 0 <= numbers[0] <= 1:
            raise Unsupported(f"a draw with the chance {numbers[0]}")
        whole = chosen.resized(self.lo, shape)
        size = next((n for n in shape if chosen.size_in(self.lo, n)), 0)
        result = self.input(Drawn(state, op.name, numbers, whole, op.event, size), dtype)
        self.alone[value] = frozenset({state})
        if op.name == UNIFORM:
            self.uniform[value] = _Uniform(state, Fraction(0))
        return self.of_rows(result, shape)

    def of_rows(self, x: Lowered, shape: Shape) -> Lowered:
        """What is drawn for all rows, as what is drawn for those that a mask chooses, where the
        shape says that it has such rows: any numbers for these are those of any numbers for all."""
        made: Lowered = chosen.of_rows(self.lo, x, shape)
        return made

    def input(self, drawn: Drawn, dtype: str) -> Lowered:
        """The random input, or the constant that stands for it; one that was drawn before from
        the same state is the same."""
        if drawn.kind == BERNOULLI and drawn.given[0] in (0, 1):
            return Const(drawn.given[0], drawn.shape, dtype)
        known = self.all.setdefault(drawn.state, drawn)
        own = (drawn.kind, drawn.given, drawn.shape, drawn.chosen)
        if (known.kind, known.given, known.shape, known.chosen) != own:
            raise Unsupported("unlike draws from one state of a generator")
        part = None if self.parts is None else self.parts.get(drawn.state)
        if self.constants and part is None:
            return Const(standing(drawn), drawn.shape, dtype)
        if drawn.state not in self.made:
            if part is None and drawn.kind == UNIFORM:
                return Undefined(drawn.shape, dtype, _UNKNOWN)  # it may only be compared
            if part is None:
                raise Unsupported("nothing says which part of what the single device draws it is")
            self.made[drawn.state] = self.placed(drawn, part, dtype)
        return self.made[drawn.state]

    def placed(self, drawn: Drawn, part: Part, dtype: str) -> Lowered:
        """The random input that a draw is a part of; with a chance it is 0 or 1, in numbers too."""
        chance = drawn.kind == BERNOULLI
        real: Real = self.lo.hold(
            Shard(
                part.name,
                part.full,
                drawn.shape,
                tuple(affine(n) for n in part.offset),
                "bool" if chance else dtype,
                trainable=False,
                kind="batch",
                domain=_domain(drawn),
            )
        )
        if chance and dtype != "bool":
            mask: Lowered = numbers(self.lo, real, dtype)
            return mask
        if drawn.kind != UNIFORM:
            return real
        inside: Lowered = self.lo.unary("sigmoid", real)  # any number of the open interval
        return inside

    def compared(self, op: Op, dtype: str) -> Lowered | None:
        """What an operator makes of a uniform number, if that is 0 or 1: a draw with a chance.

        Example: ``rand(8) < 0.9`` and ``floor(rand(8) + 0.9)`` are 1 with a chance of 9/10.
        """
        base = op.name.split(".")[1].rstrip("_") if op.name.startswith("aten.") else ""
        known = [self.uniform[n] for n in tensors_of(*op.args[:1]) if n in self.uniform]
        if not known or len(op.outputs) != 1:
            return None
        number = op.args[1] if len(op.args) > 1 else None
        exact = isinstance(number, (int, float)) and not isinstance(number, bool)
        if base == "add" and exact and not op.kwargs:
            shift = known[0].shift + fraction(number)  # type: ignore[arg-type]
            self.uniform[op.outputs[0]] = _Uniform(known[0].state, shift)
            placed = self.constants or known[0].state in self.made
            first = self.all[known[0].state]
            whole = None if placed else Undefined(first.shape, dtype, _UNKNOWN)
            return whole and self.of_rows(whole, self.lo.expected[0][0])
        if base in COMPARED and exact:
            below = fraction(number) - known[0].shift  # type: ignore[arg-type]
            chance = below if COMPARED[base] else 1 - below
            about = f"{base} {below}"
        elif base == "floor":
            chance, about = known[0].shift, f"floor {known[0].shift}"
        else:
            return None
        if not 0 <= chance <= 1:
            return None
        first = self.all[known[0].state]
        state = f"{first.state} {about}"
        self.alone[op.outputs[0]] = frozenset({state})
        own = Drawn(state, BERNOULLI, (chance,), first.shape, op.event, first.chosen)
        return self.of_rows(self.input(own, dtype), self.lo.expected[0][0])

    def follow(self, op: Op, known: Mapping[int, Lowered]) -> None:
        """Which values depend on draws alone, which on others too, and the partners of draws."""
        numbers = list(tensors_of(*op.args, *op.kwargs.values()))
        drawn = {state for n in numbers for state in self.states(n)}
        if not drawn or op.name in KINDS or op.name.startswith("comm."):
            return  # after communication it may be what others drew
        given = {n: x for n in numbers if isinstance(x := _of_all(known.get(n)), Real)}
        if all(n in self.alone for n in (*given, *(n for n in numbers if self.states(n)))):
            for value in op.outputs:
                self.alone.setdefault(value, frozenset(drawn))
                if op.name in (CAST, STILL) and numbers[0] in self.uniform:
                    self.uniform[value] = self.uniform[numbers[0]]
            return
        for state in drawn:
            own = [n for n in numbers if state in self.alone.get(n, ())]
            own = own or [n for n in numbers if state in self.states(n)]
            shapes = {x.shape for n in own if (x := _of_all(known.get(n))) is not None}
            partner = next((x for n, x in given.items() if n not in own), None)
            if len(shapes) == 1 and partner is not None:
                self.met(self.all[state], shapes.pop(), partner)
        left = frozenset(s for s in drawn if len(self.all[s].partners) < MOST_PARTNERS)
        for value in op.outputs if left else ():
            self.mixed.setdefault(value, left)

    def states(self, value: int) -> frozenset[str]:
        """The draws that a value depends on, of those whose partners are looked for in it."""
        return self.alone.get(value) or self.mixed.get(value, frozenset())

    def met(self, own: Drawn, shape: Shape, partner: Real) -> None:
        """Note the partner of a draw that meets it as a tensor of ``shape``, entry by entry, if it
        is as long in every dimension of the draw."""
        dims = dimensions_in(own.shape, shape)
        if dims is None or len(own.partners) == MOST_PARTNERS or not self.entrywise(shape, partner):
            return
        there = tuple(d + len(partner.shape) - len(shape) for d in dims)
        if all(
            n == 1 or (d >= 0 and partner.shape[d] == n)
            for n, d in zip(own.shape, there, strict=True)
        ):
            own.partners.append(Partner(partner.number, partner.shape, there))

    def entrywise(self, shape: Shape, partner: Real) -> bool:
        """Whether the operator that is lowered may be one of single entries of both operands, by
        the shape of its result."""
        try:
            whole = [chosen.resized(self.lo, s) for s, _ in self.lo.expected]
            return whole == [broadcast(shape, partner.shape)]
        except (ShapeMismatch, Unsupported):
            return False


def _of_all(x: Lowered | None) -> Lowered | None:
    """A tensor; of rows that a mask chooses, all rows."""
    return x.rows if isinstance(x, Chosen) else x


def dimensions_in(own: Shape, shape: Shape) -> tuple[int, ...] | None:
    """Which dimension of a tensor of ``shape`` each one of a draw is: it has those of the draw, and
    others of size 1, or is broadcast from these, or begins with them; None: none of the three.

    Example: times [4] of rows are dimension 0 of [4, 1, 1], and of features [4, 16] that are
    computed of them; scales [4, 1] are the dimensions of [4, 16].
    """
    wide, places = [n for n in own if n != 1], [d for d, n in enumerate(shape) if n != 1]
    if wide == [shape[d] for d in places]:
        after = iter(places)
        return tuple(0 if n == 1 else next(after) for n in own)
    last = range(len(shape) - len(own), len(shape))
    if last.start >= 0 and all(n in (1, shape[d]) for n, d in zip(own, last, strict=True)):
        return tuple(last)
    return tuple(range(len(own))) if own and shape[: len(own)] == own else None


def standing(drawn: Drawn) -> Fraction:
    """The constant in place of all numbers of a draw: one that may be drawn, or is a limit of such,
    so that what differs with it differs.

    Example: of a dropout all are kept: 1.
    """
    if drawn.kind == BERNOULLI:
        return Fraction(1) if drawn.given[0] else Fraction(0)
    return drawn.given[0] if drawn.kind == INTEGER else Fraction(1, 2)


def _domain(drawn: Drawn) -> tuple[int, int] | None:
    if drawn.kind == INTEGER:
        low, high = drawn.given
        return int(low), int(high)
    return FLAGS if drawn.kind == BERNOULLI else None


def _number(x: object) -> Fraction:
    if isinstance(x, Const):
        return x.value
    if isinstance(x, (int, float)):
        return fraction(x)
    raise Unsupported("a draw whose chance the step computes")
