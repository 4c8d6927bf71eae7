"""Which calls that write into their operand are seen by the readers of their result alone.

What such a call gives is a value like any other (`frontends.nnscaler.inplace`), as long as nobody
reads the memory that it wrote under another name.  `unsafe` names the calls of a segment of which
the plan does not show that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.operators import Declared
from shardproof.frontends.nnscaler.records import Constant, Tensor

_RUNTIME: Final = "nnscaler.runtime.function"
_SETTING: Final = (f"{_RUNTIME}.setitem", "_operator.setitem")
_FILLING: Final = tuple(
    f"{place}.{name}" for place in ("torch", "torch.Tensor") for name in ("fill_", "masked_fill_")
)
#: The functions that write into their first operand and give it.
WRITING: Final = frozenset({*_SETTING, *_FILLING})
#: Functions of PyTorch, nnScaler and Python whose result is always memory of its own.
_FRESH: Final = frozenset((
    "abs", "add", "addmm", "amax", "any", "arange", "baddbmm", "bitwise_and", "bitwise_not",
    "bitwise_or", "bmm", "cat", "ceil", "clamp", "clone", "cos", "cumsum", "div", "embedding",
    "empty", "eq", "erf", "exp", "floor", "floor_divide", "full", "full_like", "ge", "gelu", "gt",
    "invert", "layer_norm", "le", "linear", "linspace", "log", "log_softmax", "logical_not", "lt",
    "masked_fill", "matmul", "maximum", "mean", "minimum", "mm", "mul", "multiply", "ne", "neg",
    "ones", "ones_like", "outer", "pow", "reciprocal", "relu", "rsqrt", "sigmoid", "sign", "silu",
    "sin", "softmax", "sqrt", "square", "stack", "sub", "tanh", "tensor", "tril", "triu",
    "true_divide", "truediv", "where", "zeros", "zeros_like",
))  # fmt: skip
#: Functions whose result may be their operand itself, all of it.
_SAME: Final = frozenset({"identity", "multiref", "contiguous"})


def named(operator: Declared, op: cells.ForwardOp, reasons: Mapping[int, str] | None) -> Declared:
    """The operator, or one that is not understood by the reason in ``reasons``: without these, as
    outside of a segment, whatever writes into its operand is that.

    Example: with {7: "an operand that is read after it"}, cell 7 is called "setitem with an operand
    that is read after it".
    """
    if op.signature not in WRITING:
        return operator
    reason = "an operand of another segment" if reasons is None else reasons.get(op.id)
    if reason is None:
        return operator
    return Declared(f"{op.signature.rsplit('.', 1)[-1]} with {reason}", operator.tensors, {})


def unsafe(segment: cells.Segment) -> dict[int, str]:
    """By call that writes into its operand, why it is not known to be seen by its readers alone.

    The operand has to be all of what an operator of the segment made anew, which no communication
    has read, and nothing that may share its memory is read after the call, or given by the
    segment, but through the call's result.

    Example: of ``y = full(...)``, ``z = setitem(y, ...)``, ``add(y, z)`` it is {9: "an operand that
    is read after it"}, where the second is cell 9.
    """
    if not any(_writes(node) for node in segment.nodes):
        return {}
    memory = _Memory()
    for node in segment.nodes:
        memory.run(node)
    memory.read(_tensors(segment.outputs))
    return memory.reasons


class _Memory:
    """What tensors of a segment may share, while its nodes run.

    ``roots``: by tensor the memory that it may be in, which is numbered: that of the segment's
    operands by their own names, that of the ``made`` ones below zero; ``whole``: tensors that are
    all of one; ``sent``: memory that communication has read; ``written``: by call that has
    written, the memory and the tensors that know of it.
    """

    def __init__(self) -> None:
        self.roots: dict[int, frozenset[int]] = {}
        self.made = 0
        self.whole: set[int] = set()
        self.sent: set[int] = set()
        self.written: dict[int, tuple[frozenset[int], set[int]]] = {}
        self.reasons: dict[int, str] = {}

    def of(self, tensors: Sequence[Tensor]) -> frozenset[int]:
        """The memory that tensors may be in."""
        return frozenset().union(*(self.roots.get(x.id, {x.id}) for x in tensors))

    def read(self, tensors: Sequence[Tensor]) -> set[int]:
        """The writing calls whose memory is read through their results; others are `unsafe`."""
        through: set[int] = set()
        for call, (memory, known) in self.written.items():
            ids = {x.id for x in tensors if not memory.isdisjoint(self.of([x]))}
            if not ids <= known:
                self.reasons.setdefault(call, "an operand that is read after it")
            elif ids:
                through.add(call)
        return through

    def run(self, node: cells.Node) -> None:
        operands, results = _tensors(_operands(node)), {x.id for x in _tensors(node.outputs)}
        writes = _writes(node)
        if writes:
            self.write(node)
        through = self.read(operands)
        for call, (_, known) in self.written.items():
            known.difference_update(results)
            if call == node.id:
                known.clear()
            known.update(results if call in through or call == node.id else ())
        fresh = not writes and _is_fresh(node)
        # Of what is written into an operand there is a copy.
        shared = operands[:1] if writes else operands
        same = writes or (isinstance(node, cells.ForwardOp) and _last(node) in _SAME)
        whole = fresh or (same and bool(shared) and shared[0].id in self.whole)
        memory: frozenset[int] = frozenset() if fresh else self.of(shared)
        self.whole = self.whole | results if whole else self.whole - results
        for result in results:
            self.made -= 1
            self.roots[result] = memory or frozenset({self.made})
        if isinstance(node, cells.Adapter):
            self.sent |= self.of(node.inputs)

    def write(self, node: cells.Node) -> None:
        """A call that writes into its first operand."""
        x = next(iter(_tensors(node.inputs)), None)
        if x is None or x.is_attr or x.id not in self.whole:
            self.reasons[node.id] = "an operand that may be a part of another tensor"
        elif not self.sent.isdisjoint(self.of([x])):
            self.reasons[node.id] = "an operand that is communicated before it"
        if x is not None:
            self.written[node.id] = (self.of([x]), {x.id})


def _writes(node: cells.Node) -> bool:
    return isinstance(node, cells.ForwardOp) and node.signature in WRITING


def _tensors(operands: Sequence[Constant]) -> list[Tensor]:
    return [x for x in operands if isinstance(x, Tensor)]


def _last(node: cells.ForwardOp) -> str:
    return node.signature.rsplit(".", 1)[-1]


def _is_fresh(node: cells.Node) -> bool:
    """Whether a node's results are memory of their own."""
    if not isinstance(node, cells.ForwardOp) or not node.signature.startswith(cells.LIBRARIES):
        return False
    quiet = not any(node.kwargs.get(name) for name in ("inplace", "out"))
    # A flag by position may say that it writes too.
    quiet = quiet and not any(value is True for value in node.inputs)
    return quiet and _last(node) in _FRESH


def _operands(node: cells.Node) -> tuple[Constant, ...]:
    """What a node reads, tensors in lists among them."""
    given = (*node.inputs, *(node.kwargs.values() if isinstance(node, cells.ForwardOp) else ()))
    flat: list[Constant] = []
    for value in given:
        flat += value if isinstance(value, tuple) else (value,)
    return tuple(flat)
