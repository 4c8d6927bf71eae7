"""One rank's graph onto declared operators; what has no rule stands under its own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Op, Shard, Source
from shardproof.engine.plan.ir import Value as BodyValue
from shardproof.frontends.aten import Const, Lowered, Lowering, Real, Undefined, routed, rule_of
from shardproof.frontends.aten.complexes import has_meaning
from shardproof.frontends.aten.ids import Ids, Marked, Narrow, marked, number_of
from shardproof.frontends.aten.log_probabilities import picks
from shardproof.frontends.aten.lowering import Shape
from shardproof.frontends.aten.readings import Reading
from shardproof.frontends.aten.rules import typed
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.fx import complexes
from shardproof.frontends.fx.computed import Computed, known_numbers
from shardproof.frontends.fx.place import Slice
from shardproof.frontends.fx.records import (
    CONSTANT,
    GETITEM,
    OUTPUT,
    PLACEHOLDER,
    Archived,
    Graph,
    Node,
    operand,
    operands,
)

EMPTY: Final = "aten.empty.memory_format"
#: Operators that write their operands, made functional: what they give is None, or the operator's
#: own result, and then what was written.
FUNCTIONAL: Final = frozenset({"auto_functionalized", "auto_functionalized_v2"})
#: How memory is named that nothing has written.
MEMORY: Final = "unwritten memory "
#: Operators in which ranks meet, by how their names begin.
MEETING: Final = ("_c10d_functional.", "_c10d_functional_autograd.", "vllm.all_reduce")
#: What a rule raises for arguments that are not those of its operator.
_MALFORMED = (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError)


class Wide(Exception):
    """Ids of a named input must lie in [0, rows) for a lookup to read rows that exist; ``mark``:
    or be this number, which the program asks for (`Marked`; ``rows`` None: any rows)."""

    def __init__(self, name: str, rows: int | None, mark: int | None = None) -> None:
        super().__init__(f"ids {name} choose among {rows} rows")
        self.name = name
        self.rows = rows
        self.mark = mark


@dataclass(frozen=True, slots=True)
class RankBody:
    """A rank's graph as a body: ``outputs``: the value of each output that was asked for (-1: it is
    no tensor); ``masks``: shapes of the masks of random operators, in order; ``gaps``: operators
    without a rule, by name, with why; ``constants``: names of constants without a value that were
    taken for 0; ``standins``: what is taken for something else, and how; ``unwritten``: memory that
    is read before anything is written there, by name, and which operator reads it; ``agreed``:
    constants that are gathered, each with the group and how many of its collectives are before;
    ``tables``: the numbers of inputs that are constants; ``notes``: printed with the verdict;
    ``picks``: how its losses are read.

    Example: for an embedding, an MLP with dropout and a loss, whose outputs are the loss and the
    activations: two values in ``outputs``, the shape of the activations in ``masks``, no ``gaps``.
    """

    values: tuple[BodyValue, ...]
    ops: tuple[Op, ...]
    shards: tuple[Shard, ...]
    bound: tuple[tuple[int, int], ...]
    outputs: tuple[int, ...]
    masks: tuple[Shape, ...]
    gaps: Mapping[str, str]
    constants: tuple[str, ...]
    standins: Mapping[str, str]
    unwritten: Mapping[str, str] = field(default_factory=dict)
    agreed: tuple[tuple[tuple[int, ...], int, Const], ...] = ()
    tables: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    picks: Reading = Reading.SHIFTED


@dataclass(slots=True)
class Setting:
    """What a rank's graph is lowered with.

    Example: rank 1 of two with ``groups`` {"7": (0, 1)} and ``constants`` {"_tensor_constant0": 0}.

    ``shards_of``: the named inputs that an input node is, side by side; ``mask``: that of random
    operator number k, of a shape; ``groups``: ranks by name of group;
    ``constants``: stated values of constants that the file names without one ("any": any numbers,
    the same on both sides); ``zeros``: inputs that are zero; ``rank``: of the parallel side, which
    may read memory that nothing has written: there are no such numbers on the single side;
    ``modules``: names of nodes in findings, where they are others; ``inferred``: inputs whose
    domain is that of the rows which they choose, since nobody states one; ``narrows``: whether
    `Wide` is raised for ids that are not known to choose rows that exist, or the operator is not
    understood; ``marks``: the number that -1 of an input stands for; ``unmarked``: inputs that may
    have no mark, since rows are read by them; ``folds``: whether a constant that a rank gathers is
    taken for that of the others (`RankBody.agreed`); ``shared``: constants of the single side
    (None: this is it); ``reading``: how losses are read.
    """

    shards_of: Callable[[Node], Sequence[Shard]]
    mask: Callable[[int, Shape], Shard]
    groups: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, int | float | str]
    zeros: frozenset[str] = frozenset()
    rank: int = -1
    modules: Mapping[str, str] = field(default_factory=dict)
    inferred: frozenset[str] = frozenset()
    narrows: bool = False
    marks: Mapping[str, int] = field(default_factory=dict)
    unmarked: frozenset[str] = frozenset()
    folds: bool = True
    shared: Mapping[str, Any] | None = None
    reading: Reading = Reading.SHIFTED
    inference: Inference = field(default_factory=Inference)


#: Comparisons that tell a number from all others.
_TELLS = frozenset({"aten.eq.Scalar", "aten.ne.Scalar"})


class _Rank:
    """Lowers the nodes of one graph, in order."""

    def __init__(self, graph: Graph, setting: Setting) -> None:
        self.graph = graph
        self.setting = setting
        self.lo = Lowering(setting.inference)
        self.lo.narrows = True
        self.lo.asks = setting.narrows
        self.lo.groups = setting.groups
        self.lo.mask = self.mask
        self.lo.standins = {}
        self.lo.agreed = [] if setting.folds else None
        self.lo.shared = setting.shared
        self.lo.reading = setting.reading
        #: A graph of an archive: what it computes of no input is known numbers from the start.
        self.archived = isinstance(graph, Archived)
        self.numbers = Computed(graph, graph.numbers if isinstance(graph, Archived) else {})
        if setting.rank >= 0:
            self.lo.unwritten = self.unwritten
        self.known: dict[str, Any] = {}
        self.nodes = {node.name: node for node in graph.nodes}
        self.parts: dict[str, dict[int, Node]] = {}
        self.readers: dict[str, list[Node]] = {}
        self.masks: list[Shape] = []
        self.gaps: dict[str, str] = {}
        self.tensors = 0
        #: What is taken for something else, or for 0, by the nodes that do: what, and how.
        self.standins: dict[str, dict[str, str]] = {}
        self.constants: dict[str, str] = {}
        #: Memory that is read before it is written: the node that reads it, by name.
        self.memory: dict[str, str] = {}
        self.node = graph.nodes[0] if graph.nodes else None
        for node in graph.nodes:
            for name in (*operands(node.args), *operands(node.kwargs)):
                self.readers.setdefault(name, []).append(node)
            if node.target == GETITEM and len(node.args) == 2 and isinstance(node.args[1], int):
                whole = operand(node.args[0])
                if whole is not None:
                    self.parts.setdefault(whole, {}).setdefault(node.args[1], node)

    def mask(self, shape: Shape) -> Shard:
        shard = self.setting.mask(len(self.masks), shape)
        self.masks.append(shape)
        return shard

    def unwritten(self, x: Undefined) -> Real:
        """Memory that a node reads before it is written: numbers that the other side has not."""
        name = f"{MEMORY}{len(self.memory)} of rank {self.setting.rank}"
        self.memory[name] = self.node.name if self.node else ""
        zero = tuple(affine(0) for _ in x.shape)
        return self.lo.hold(
            Shard(name, x.shape, x.shape, zero, x.dtype, trainable=False, kind="constant")
        )

    def run(self) -> None:
        for node in self.graph.nodes:
            self.node = node
            module = self.setting.modules.get(node.name, node.name)
            cell = f"{node.target}, {node.name}"
            self.lo.source = Source(cell=cell, module=module, location=node.src or "")
            stands = self.standins.setdefault(node.name, {})
            self.lo.standins, self.lo.functions = None if self.archived else stands, stands
            if self.archived and node.op != OUTPUT and self.numbers.is_known(node.name):
                continue
            if node.op == PLACEHOLDER:
                self.known[node.name] = self.input_value(node)
            elif node.op == CONSTANT:
                self.known[node.name] = self.constant(node)
            elif node.op != OUTPUT:
                try:
                    self.known[node.name] = self.lowered(node)
                except (Narrow, Marked) as error:
                    if self.setting.narrows and error.origin in self.lo.origins:
                        raise
                    self.known[node.name] = self.gap(node, str(error))
                except (Unsupported, ShapeMismatch, *_MALFORMED) as error:
                    if not self.numbers.is_known(node.name):
                        self.known[node.name] = self.gap(node, str(error) or type(error).__name__)

    def input_value(self, node: Node) -> Lowered:
        shape, dtype = _as_lowered(node)
        if node.name in self.setting.zeros or 0 in shape:
            return Const(Fraction(0), shape, dtype or "float32")
        shards = self.setting.shards_of(node)
        parts = [self.lo.hold(shard) for shard in shards]
        if len(parts) == 1:
            mark = self.setting.marks.get(shards[0].name)
            return parts[0] if mark is None else marked(parts[0], mark)
        (dim,) = (d for d, n in enumerate(shape) if parts[0].shape[d] != n)
        return self.lo.concat(parts, dim)  # type: ignore[no-any-return]

    def constant(self, node: Node) -> Lowered:
        """A scalar whose value the export lost: as stated, or 0, which is said."""
        like = next((n for n in self.readers.get(node.name, ()) if n.shape is not None), None)
        shape = tuple(like.shape or ()) if like is not None else ()
        dtype = (like.dtype if like is not None else None) or "float32"
        if node.target not in self.setting.constants:
            if shape:
                return Undefined(shape, dtype, f"{node.target}, whose value the file does not have")
            self.constants[node.name] = node.target
        number = self.setting.constants.get(node.target, 0)
        if isinstance(number, str):
            raise InvalidInput("a scalar is stated as a number", f"constants.{node.target}")
        return Const(Fraction(repr(number)), shape, dtype)

    # -- operators ------------------------------------------------------------------------------

    def lowered(self, node: Node) -> Any:
        if node.target == GETITEM:
            whole, index = node.args
            return self.part(self.argument(whole), index)
        if node.target == EMPTY and node.name.startswith("constant"):
            return self.lost(node)
        name, args = node.target, node.args
        functional = name in FUNCTIONAL
        if functional:
            name, args = str(args[0]), args[1:]
        rule = rule_of(name)
        if rule is None and name not in routed.ROUTED and not has_meaning(name):
            raise Unsupported("has no rule")
        self.lo.expected = self.expected(node)
        given = [self.argument(a) for a in args]
        if name in _TELLS:
            self.ask(given)
        named = {k: self.argument(v) for k, v in node.kwargs.items()}
        flags = [*(self.is_complex(a) for a in args), node.dtype in complexes.HALVES]
        if any(flags):
            return self.fitting(node, complexes.lowered(self.lo, name, given, named, flags))
        rule = routed.ROUTED.get(name) if routed.is_routed(given) else rule
        if rule is None:
            raise Unsupported("rows of which data says how many there are")
        result = rule(self.lo, *given, **named)
        if functional:
            result = (None, *(result if isinstance(result, tuple) else (result,)))
        return self.fitting(node, result)

    def is_complex(self, arg: Any) -> bool:
        """Whether an argument is a complex tensor, or several of which one is."""
        nodes = (self.nodes[name] for name in operands(arg))
        return any(node.dtype in complexes.HALVES for node in nodes)

    def ask(self, compared: Sequence[Any]) -> None:
        """Raise `Marked` where integers of the single side of which no domain is stated are
        compared with a number that is no row, such as -100, which labels that do not count may be;
        `Unsupported` where such a number would be no row that is read."""
        x, number = compared[0], number_of(compared[1]) if len(compared) > 1 else None
        origin = x.origin if isinstance(x, Ids) else x
        known = self.lo.origins.get(origin.number) if isinstance(origin, Real) else None
        name = "" if known is None else self.lo.shards[known].name
        if name not in self.setting.inferred or number is None or number >= 0:
            return
        mark = self.setting.marks.get(name)
        if mark == number:
            return
        if isinstance(x, Real) and mark is None and name not in self.setting.unmarked:
            raise Marked(x.number, number)
        raise Unsupported(
            f"whether {name} may be {number}, which is no row, is not known: "
            f"[domains] of the relations says which numbers {name} has"
        )

    def lost(self, node: Node) -> Lowered:
        """A constant tensor that the exporter wrote as memory: an input that both sides share."""
        name = f"constant tensor {self.tensors}"
        self.tensors += 1
        shape = tuple(node.shape or ())
        number = self.setting.constants.get(node.name)
        if isinstance(number, (int, float)):
            return Const(Fraction(repr(number)), shape, node.dtype or "float32")
        if number is None and self.lo.standins is not None:
            self.lo.standins[name] = f"of shape {list(shape)} is the same on both sides"
        zero = tuple(affine(0) for _ in shape)
        return self.lo.hold(
            Shard(
                name, shape, shape, zero, node.dtype or "float32", trainable=False, kind="constant"
            )
        )

    def part(self, whole: Any, index: object) -> Any:
        if not isinstance(whole, tuple) or not isinstance(index, int):
            raise Unsupported("a part of what has none")
        return whole[index]

    def expected(self, node: Node) -> list[tuple[Shape, str]]:
        """Shape and element type of each result: of an operator with several, as its parts say."""
        if node.shape is not None:
            return [_as_lowered(node)]
        parts = self.parts.get(node.name, {})
        results: list[tuple[Shape, str]] = [((), "")] * (max(parts, default=-1) + 1)
        for index, part in parts.items():
            if index >= 0:
                results[index] = _as_lowered(part)
        return results

    def fitting(self, node: Node, result: Any) -> Any:
        """A rule's result, which has the shapes that the file says, with its element types."""
        several = isinstance(result, tuple)
        parts = self.parts.get(node.name, {}) if several else {0: node}
        results = list(result) if several else [result]
        for index, x in enumerate(results):
            part = parts.get(index)
            if x is None or part is None or part.shape is None:
                continue
            shape, dtype = _as_lowered(part)
            if shape != getattr(x, "shape", ()):
                raise Unsupported(f"is lowered to {list(x.shape)}, the file says {part.shape}")
            results[index] = typed(self.lo, x, dtype)
        return tuple(results) if several else results[0]

    def argument(self, arg: Any) -> Any:
        if (name := operand(arg)) is not None:
            value = self.value(name)
            if value is None:
                raise Unsupported("an operand without a value")
            return value
        if isinstance(arg, dict):
            raise Unsupported("an argument that is no operand, number or list")
        return [self.argument(a) for a in arg] if isinstance(arg, (list, tuple)) else arg

    def value(self, name: str) -> Any:
        """What a node gives; None: it is no tensor."""
        if name not in self.known and self.numbers.is_known(name):
            array = self.numbers.array(name)
            if array is not None:
                dtype = complexes.real_type(self.nodes[name].dtype)
                self.known[name] = known_numbers(self.lo, complexes.pairs(array), dtype)
        return self.known.get(name)

    def gap(self, node: Node, reason: str) -> Any:
        """An operator that is not understood stands in the body under its own name."""
        if any(size < 0 for shape, _ in self.expected(node) for size in shape):
            where = f"rank {self.graph.rank}, {node.name}"
            raise InvalidInput(f"not supported: {node.target}: {reason}", where)
        self.gaps.setdefault(node.target, f"{node.name}: {reason}")
        inputs = []
        for name in (*operands(node.args), *operands(node.kwargs)):
            x = self.known.get(name)
            inputs += [
                y.number for y in (x if isinstance(x, tuple) else (x,)) if isinstance(y, Real)
            ]
        if is_collective(node.target):
            return self.met(node, inputs)
        made = [self.lo.value(shape, dtype, node.target) for shape, dtype in self.expected(node)]
        self.lo.append(node.target, inputs, [m.number for m in made], {})
        return made[0] if node.shape is not None else tuple(made)

    def met(self, node: Node, inputs: Sequence[int]) -> Any:
        """A collective of what is not understood: ranks meet in it all the same, with an operand
        that is given under the collective's own name."""
        where = f"rank {self.graph.rank}, {node.name}"
        name = operand(node.args[0]) if node.args else None
        x = None if name is None else self.value(name)
        if x is None or not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise InvalidInput(f"not supported: {node.target} of what is no tensor", where)
        given = self.lo.value(tuple(x.shape), x.dtype, node.target)
        self.lo.append(node.target, inputs, [given.number], {})
        rule = rule_of(node.target)
        self.lo.expected = self.expected(node)
        try:
            if rule is None:
                raise Unsupported("has no rule")
            others = [self.argument(a) for a in node.args[1:]]
            named = {k: self.argument(v) for k, v in node.kwargs.items()}
            return rule(self.lo, given, *others, **named)
        except (Unsupported, ShapeMismatch, *_MALFORMED) as error:
            raise InvalidInput(f"not supported: {node.target}: {error}", where) from None

    def live(self, outputs: Sequence[object]) -> set[str]:
        """The nodes that outputs depend on."""
        names = set(operands(list(outputs)))
        for node in reversed(self.graph.nodes):
            if node.name in names:
                names.update((*operands(node.args), *operands(node.kwargs)))
        return names

    def wide(self, error: Narrow | Marked) -> Wide:
        mark = error.mark if isinstance(error, Marked) else None
        return Wide(self.lo.shards[self.lo.origins[error.origin]].name, error.rows, mark)

    def result(self, x: object, part: Slice | None) -> int:
        """The number of the value of an output, or of a part of it (-1: it is none)."""
        name = operand(x)
        node = self.nodes.get(name or "")
        if name is None or node is None or node.shape is None:
            return -1
        self.lo.source = Source(cell=f"output {name}")
        try:
            known = self.value(name)
            if known is not None and part is not None:
                known = self.lo.slice(known, *part)
            return -1 if known is None else self.lo.real(known).number
        except (Unsupported, ShapeMismatch) as error:
            ids = isinstance(error, (Narrow, Marked)) and error.origin in self.lo.origins
            if ids and self.setting.narrows:
                raise
            self.gaps.setdefault("an output", f"{name}: {error}")
            whole, dtype = _as_lowered(node)
            shape = list(whole)
            if part is not None:
                shape[part.dim] = part.size
            made = self.lo.value(tuple(shape), dtype, name)
            self.lo.append("output without a meaning", [], [made.number], {})
            return made.number


def _as_lowered(node: Node) -> tuple[Shape, str]:
    """Shape and element type of a node's tensor as it is lowered."""
    return complexes.shape_of(node.shape, node.dtype), complexes.real_type(node.dtype)


def is_collective(target: str) -> bool:
    """Whether ranks meet in an operator.

    Example: "_c10d_functional.all_reduce.default" is, "_c10d_functional.wait_tensor.default" and
    "aten.add.Tensor" are not.
    """
    return target.startswith(MEETING) and not target.startswith("_c10d_functional.wait_tensor")


def lower(
    graph: Graph,
    setting: Setting,
    outputs: Sequence[object],
    slices: Sequence[Slice | None] | None = None,
) -> RankBody:
    """The graph as a body; raises `Wide` where the domain of an input is too wide; ``slices``: the
    parts of outputs that are asked for (None: all of it).

    Example: ``aten.mm(x, aten.t(w))`` is a ``permute`` and a ``matmul`` on the inputs ``x`` and
    ``w``; ``custom.gelu`` stands in the body under its own name and among its ``gaps``.
    """
    rank = _Rank(graph, setting)
    try:
        rank.run()
        results = [
            rank.result(x, part)
            for x, part in zip(outputs, slices or [None] * len(outputs), strict=True)
        ]
    except (Narrow, Marked) as error:
        raise rank.wide(error) from None
    lo, live = rank.lo, rank.live(outputs)
    standins = [standin for name, standin in rank.standins.items() if name in live]
    return RankBody(
        tuple(lo.values),
        tuple(lo.ops),
        tuple(lo.shards),
        tuple(lo.bound),
        tuple(results),
        tuple(rank.masks),
        dict(rank.gaps),
        tuple(dict.fromkeys(target for name, target in rank.constants.items() if name in live)),
        {what: how for standin in standins for what, how in standin.items()},
        {what: name for what, name in rank.memory.items() if name in live},
        tuple(lo.agreed or ()),
        dict(lo.contents),
        tuple(lo.notes),
        picks(lo),
    )
