"""What was there before the step: numbers that are drawn for parameters, and copies of them.

What weights begin with is nobody's business: from `job.start` on they are inputs. So is what was
copied of them before and not written since (a teacher, an average of weights): it is the same
input. And a state of an optimizer that begins with what is drawn, or with a copy of the weights, is
no number: the other side's is not the same input if it begins with zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardproof.frontends.torch import geometry, trace
from shardproof.frontends.torch.memory import (
    CAST,
    EXPAND,
    INPUT,
    PERMUTE,
    RESHAPE,
    SLICE,
    Functional,
    Memory,
)
from shardproof.frontends.torch.pieces import Copied, Piece
from shardproof.frontends.torch.trace import StridedTensor, Tensor

#: What the names of values begin with that are drawn.
_DRAWN = "random."
#: Operators that move the entries of one value.
MOVED = frozenset({RESHAPE, SLICE, PERMUTE, EXPAND, CAST})


class Earlier:
    """Values of a program under construction that depend on what is drawn, and the parameters that
    began with them.

    Example: of ``weight.uniform_(); copy = weight.clone()`` the value that both hold is drawn.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._read = 0
        #: Values that depend on what is drawn, and which operators draw it.
        self._drawn: dict[int, frozenset[int]] = {}
        #: What parameters began with, and the piece that is their input since.
        self._began: list[tuple[int, int, Piece]] = []

    def is_drawn(self, value: int) -> bool:
        """Whether a value depends on what is drawn, or is the input of a parameter.

        Example: a weight after ``uniform_`` is; zeros are not.
        """
        ops = self.memory.out.ops
        for op in ops[self._read :]:
            given = trace.tensors_of(*op.args, *op.kwargs.values())
            draws = frozenset(op.outputs if op.name.startswith(_DRAWN) else ())
            draws = draws.union(*(self._drawn[n] for n in given if n in self._drawn))
            if draws:
                self._drawn.update(dict.fromkeys(op.outputs, draws))
        self._read = len(ops)
        made = self.memory.made.get(value)
        return value in self._drawn or (made is not None and made.name == INPUT)

    def is_alone(self, value: int) -> bool:
        """Whether a value depends on what is drawn, of which no parameter began with anything.

        Example: random features in a buffer; half of a weight as it began is the weight's affair.
        """
        self.is_drawn(value)
        others = (self._drawn[v] for v, _, _ in self._began)
        return value in self._drawn and self._drawn[value].isdisjoint(frozenset().union(*others))

    def piece(self, tensor: StridedTensor) -> Piece | None:
        """The piece of memory that a tensor is, all of it; None: it is another part of memory.

        Example: of two weights in one buffer of 8 and 4 elements the second is (8, 12).
        """
        storage = self.memory.storages.get(tensor.storage)
        ends = tensor.offset, tensor.offset + geometry.extent(tensor.shape, tensor.strides)
        pieces = () if storage is None else storage.pieces
        return next((p for p in pieces if (p.start, p.stop) == ends), None)

    def begins(self, tensor: StridedTensor, before: Piece) -> None:
        """A parameter, whose memory had a value that was drawn or received, is an input now."""
        now = self.piece(tensor)
        if now is not None and (before.value in self._drawn or self._is_received(before.value)):
            self._began.append((before.value, tensor.storage, now))

    def copies(self) -> Iterator[Copied]:
        """Make what still has the numbers with which one parameter began that parameter's input.

        Example: the weights of a teacher are those of the student of which they were copied, and
        so are a rank's rows of both; what two parameters began with is neither's.
        """
        counts = Counter(self._line(value) for value, _, _ in self._began)
        began = ((self._line(v), number, p) for v, number, p in self._began)
        now = {moved: (number, p) for moved, number, p in began if counts[moved] == 1}
        for number, storage in self.memory.storages.items():
            moved = [self._line(p.value) for p in storage.pieces]
            if now.keys().isdisjoint(moved):
                continue
            for place, piece in enumerate(storage.pieces):
                if moved[place] in now:
                    of, parameter = now[moved[place]]
                    storage.pieces[place] = piece._replace(value=parameter.value)
                    yield Copied(self._flat(of, parameter), self._flat(number, piece))
            storage.views.clear()

    def _is_received(self, value: int) -> bool:
        """Whether a value is part of what another rank sent: of what was drawn there."""
        op = self.memory.made.get(value)
        while op is not None and op.name in MOVED:
            op = self.memory.made.get(next(iter(trace.tensors_of(*op.args))))
        return op is not None and op.name.startswith("comm.")

    def _line(self, value: int) -> tuple[object, ...]:
        """As `_way`, of the entries in their order, as memory has them, in whatever shape.

        Example: a weight [4, 8], and the same 32 numbers in one dimension.
        """
        op = self.memory.made.get(value)
        while op is not None and op.name == RESHAPE:
            (value,) = trace.tensors_of(*op.args)
            op = self.memory.made.get(value)
        return self._way(value)

    def _way(self, value: int) -> tuple[object, ...]:
        """How a value is moved from where it was made: equal for values that are moved alike.

        Example: rows 4 to 7 of one drawn weight, cut once for a model and once for its copy.
        """
        op = self.memory.made.get(value)
        if op is None or op.name not in MOVED:
            return (value,)
        given = tuple(self._way(a.number) if isinstance(a, Tensor) else a for a in op.args)
        return (op.name, given, self.memory.out.values[value])

    def _flat(self, storage: int, piece: Piece) -> StridedTensor:
        dtype = self.memory.out.values[piece.value].dtype
        return StridedTensor(storage, piece.start, (piece.stop - piece.start,), (1,), dtype)


def draws_before(step: Functional) -> bool:
    """Whether a step needs what was drawn before its start, and is no parameter's input.

    Example: a teacher that is copied from a model whose weights are put into a flat buffer later.
    """
    events = step.trace.events
    start = next((n for n, e in enumerate(events) if e.name == trace.START), len(events))
    return any(op.name.startswith(_DRAWN) and op.event < start for op in step.ops)
