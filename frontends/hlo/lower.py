"""HLO onto declared operators: one rule for every operator of `opcodes`, in one table.

What a rule cannot say is `Unsupported`, by the operator's name and line; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Source
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Piece
from shardproof.frontends.graphs.graph import Graph, Input, Node, PerRank
from shardproof.frontends.graphs.recorder import PlacedInput, everywhere
from shardproof.frontends.hlo import (
    bits,
    choices,
    collectives,
    conversions,
    custom,
    doubles,
    either,
    elementwise,
    functions,
    index_vectors,
    indices,
    known,
    logarithms,
    lowest,
    movement,
    overflow,
    pooling,
    remainders,
    rows,
    stacks,
    turned,
    windows,
    writes,
)
from shardproof.frontends.hlo.endless import Lowest
from shardproof.frontends.hlo.expressions import Expressions, interval_of
from shardproof.frontends.hlo.items import Bits, Either, Ids, Item, Narrow, Tensor, Vectors
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.module import Type
from shardproof.frontends.hlo.named import named
from shardproof.frontends.hlo.opcodes import NO_RULE
from shardproof.frontends.hlo.state import Lowering, Other, Rule, Several, integral
from shardproof.frontends.hlo.written import Written

#: Integers that nothing else is known of lie below this one.
MOST = 1 << 30

#: What a rule raises for operands or attributes that are not those of its operator.
_MALFORMED = (
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    KeyError,
    ArithmeticError,
    StopIteration,
)


def lower(
    graph: Graph,
    domains: Mapping[int, tuple[int, int]] | None = None,
    stacked: frozenset[int] = frozenset(),
    expressions: Expressions | None = None,
    other: Other | None = None,
) -> tuple[Lowering, list[int], dict[int, tuple[int, int]]]:
    """The graph's operators, the values of its outputs, and the domains of its integer inputs: as
    given or stated, or narrowed to the rows that lookups, and the classes that one-hots have;
    ``stacked``: inputs that are held row by row; ``expressions``: of bits, those of both sides;
    ``other``: what is known of the other side.

    Example: ``gather`` of ``f32[32,8]`` by an input of ids makes ``onehot`` and ``einsum``, and the
    domain of that input is (0, 32).
    """
    user_domains = {
        n: item.domain for n, item in enumerate(graph.inputs) if item.domain is not None
    }
    domains_of = user_domains | dict(domains or {})
    settled, divided = domains is not None, set[int]()
    while True:
        lowering = Lowering(graph, domains_of, settled, expressions, other)
        notes = (Assumption("framework", graph.dialect, "", text) for text in graph.notes)
        lowering.recorder.notes.extend(notes)
        try:
            _run(lowering, stacked)
            classes = {} if domains is not None else named(lowering)
            if classes.keys() <= domains_of.keys():
                return lowering, _outputs(lowering), domains_of
            domains_of = {p: (0, n) for p, n in classes.items()} | domains_of
        except Narrow as error:
            position, rows = lowering.narrowed(error)
            whole = (0, MOST)
            if position >= 0:
                given = graph.inputs[position]
                whole = _whole(given, graph.values[given.value].dtype)
            low, high = domains_of.get(position, whole)
            known = position in user_domains or position in divided
            settled = position < 0 or known or rows >= high
            if error.origin in lowering.quotients:
                divided.add(position)
            if not settled:
                domains_of[position] = (low, rows)


def _run(low: Lowering, stacked: frozenset[int]) -> None:
    """Emit everything; raises `Unsupported`, and `Narrow` where a domain is too wide."""
    for position, given in enumerate(low.graph.inputs):
        value = low.graph.values[given.value]
        placed = given.placement or everywhere(value.shape, low.graph.ranks)
        if value.dtype in bits.UNSIGNED:
            low.items[given.value] = bits.given(low, position, value.shape, value.dtype, placed)
            continue
        number = low.recorder.value(value.shape, value.dtype, given.name)
        domain = None
        if integral(value.dtype) or value.dtype == "bool":
            domain = low.domains.get(position, _whole(given, value.dtype))
            low.origins[number] = position
            low.items[given.value] = Ids(
                number, indices.own_axes(value.shape), value.shape, (_own(given, domain),)
            )
            if given.mark not in (None, -1):
                text = f"-1 of {given.name} stands for {given.mark}, as the program asks for it"
                low.recorder.notes.append(Assumption("inferred", given.name, "", text))
        else:
            low.items[given.value] = Tensor(number)
        placed_input = PlacedInput(number, given.name, value.dtype, placed, "batch", domain)
        if position in stacked:
            low.items[given.value] = stacks.hold(low, placed_input)
        else:
            low.recorder.placed.append(placed_input)
    for node in low.graph.nodes:
        low.recorder.source = node.source
        try:
            _node(low, node)
        except Narrow as error:
            low.narrow(node, error)
        except Unsupported as error:
            if not doubles.table(low, node) and not bits.mixed(low, node):
                low.refuse(node, error)
        except _MALFORMED as error:
            low.refuse(node, Unsupported(f"has not the operands of such an operator ({error})"))


def _whole(given: Input, dtype: str) -> tuple[int, int]:
    """Between which numbers integers of an input lie of which nothing else is known."""
    of_type = interval_of(dtype)
    high = MOST if of_type is None else min(MOST, of_type[1])
    return 0 if given.mark is None else -1, high


def _own(given: Input, domain: tuple[int, int]) -> piecewise.Function:
    """Integers of an input as a function of those in its domain: -1 there is the mark."""
    if given.mark in (None, -1) or domain[0] != -1:
        return piecewise.identity(*domain)
    return (Piece(-1, 0, 0, given.mark), Piece(0, domain[1], 1, 0))


def _node(low: Lowering, node: Node) -> None:
    if "refused" in node.attrs:
        raise Unsupported(node.attrs["refused"])
    if node.target == "constant":
        low.items[node.results[0]] = node.attrs["value"]
        return
    operands = [low.items[v] for v in node.operands]
    if node.target in SEVERAL and (node.target != "reduce" or len(node.results) > 1):
        results = SEVERAL[node.target](
            low, node, [either.number(low, writes.plain(low, x)) for x in operands]
        )
    else:
        results = (_single(low, node, operands),)
    for result, item in zip(node.results, results, strict=True):
        value = low.graph.values[result]
        shape = low.recorder.shape(item.value) if isinstance(item, Tensor) else item.shape
        if shape != value.shape:
            raise Unsupported(f"gives {list(shape)}, the file says {list(value.shape)}")
        low.items[result] = item
    if isinstance(low.items[node.results[0]], Tensor):
        doubles.keep(low, node)


def _single(low: Lowering, node: Node, operands: Sequence[Item]) -> Item:
    """The result of an operator with one: of what is known, of bits, or by its rule."""
    if len(node.results) != 1:
        raise Unsupported(NO_RULE)
    stored = writes.update(low, node, operands)
    if stored is None and any(isinstance(x, Written) for x in operands):
        operands = [writes.last(low, node, x) for x in operands]
        stored = writes.read(low, node, operands[0])
        if stored is None:
            operands = [writes.plain(low, x) for x in operands]
    if stored is not None:
        return stored
    if not (prod(low.shape(node)) or node.groups or node.pairs):
        return known.constant(np.zeros(low.shape(node), low.dtype(node)), low.type(node))
    folded = _folded(low, node, operands) or doubles.whole(low, node) or turned.whole(low, node)
    if folded is None and any(isinstance(x, Bits) for x in operands):
        folded = bits.apply(low, node, [bits.beside(low, v) for v in node.operands])
    if folded is not None:
        return folded
    rule = RULES.get(node.target)
    if rule is None:
        raise Unsupported(NO_RULE)
    if any(isinstance(x, Lowest) for x in operands) and node.target != "select":
        return lowest.apply(low, node, operands, _fitting(rule))
    if any(isinstance(x, Vectors) for x in operands) and node.target not in ("gather", "scatter"):
        return index_vectors.apply(low, node, operands, _fitting(rule))
    if any(isinstance(x, Either) for x in operands):
        return either.apply(low, node, operands, _single)
    chosen = either.chosen(low, node, operands) if node.target == "select" else None
    return _fitting(rule)(low, node, operands) if chosen is None else chosen


def _fitting(rule: Rule) -> Rule:
    """A rule whose results fit their type, or are assumed to."""
    return lambda low, node, operands: overflow.checked(low, node, rule(low, node, operands))


def _folded(low: Lowering, node: Node, operands: Sequence[Item]) -> Item | None:
    if node.groups or node.pairs:
        return None
    constants = [x for x in operands if isinstance(x, Known)]
    if not constants or len(constants) != len(operands):
        return None
    starts = [
        known.ranks(s.values if isinstance(s, PerRank) else [s], Type((), "int64"))
        for s in node.attrs.get("starts", ())
    ]
    return known.fold(node.target, node.attrs, [*constants, *starts], low.type(node))


def _outputs(low: Lowering) -> list[int]:
    """Values of the outputs."""
    low.recorder.source = Source()
    values = []
    for output in low.graph.outputs:
        node = Node("", f"output {output.name}", (), (output.value,))
        try:
            item = writes.plain(low, low.items[output.value])
            low.items[output.value] = either.number(low, item)
            low.tensor(low.items[output.value])
        except Unsupported as error:
            low.refuse(node, error)
        except Narrow as error:
            low.narrow(node, error)
        values.append(low.tensor(low.items[output.value]))
    return values


#: Operators with several results, or with one of several.
SEVERAL: Mapping[str, Several] = {
    "topk": choices.topk,
    "sort": choices.sort,
    "reduce": choices.extreme,
}
RULES: Mapping[str, Rule] = {
    "add": logarithms.add,
    "subtract": elementwise.subtract,
    "multiply": elementwise.multiply,
    "divide": remainders.quotient,
    "shift-left": remainders.raised,
    "shift-right-logical": remainders.shifted,
    "shift-right-arithmetic": remainders.shifted,
    "negate": elementwise.negate,
    "exponential": elementwise.function("exp"),
    "log": elementwise.function("log"),
    "logistic": elementwise.function("sigmoid"),
    "tanh": elementwise.function("tanh"),
    "rsqrt": elementwise.function("rsqrt"),
    "sqrt": elementwise.function("sqrt"),
    "sine": elementwise.function("sin"),
    "cosine": elementwise.function("cos"),
    "erf": elementwise.function("erf"),
    "exponential-minus-one": elementwise.shifted("exp", 0, -1),
    "log-plus-one": elementwise.shifted("log", 1, 0),
    "power": functions.power,
    "remainder": remainders.remainder,
    "atan2": functions.atan2,
    "erf-inv": functions.inverse_of_erf,
    **{word: functions.of_one(form) for word, form in functions.FORMS.items()},
    "maximum": elementwise.maximum,
    "minimum": elementwise.maximum,
    "clamp": elementwise.clamp,
    "abs": elementwise.abs,
    "sign": elementwise.sign,
    "compare": elementwise.compare,
    "not": elementwise.invert,
    "and": remainders.conjunction,
    "or": elementwise.logical,
    "select": lowest.select,
    "convert": conversions.convert,
    "floor": elementwise.function("floor"),
    "ceil": elementwise.function("ceil"),
    "round-nearest-even": elementwise.function("round"),
    "xor": elementwise.logical,
    "is-finite": elementwise.is_finite,
    "reduce-precision": movement.rounded,
    "broadcast": movement.broadcast,
    "reshape": movement.reshape,
    "transpose": movement.transpose,
    "slice": movement.slice,
    "reverse": movement.reverse,
    "dynamic-slice": movement.dynamic_slice,
    "dynamic-update-slice": movement.dynamic_update,
    "concatenate": movement.concatenate,
    "pad": movement.pad,
    "dot": movement.dot,
    "reduce": movement.reduce,
    "reduce-window": windows.reduce_window,
    "select-and-scatter": pooling.select_and_scatter,
    "convolution": windows.convolution,
    "gather": rows.gather,
    "scatter": rows.scatter,
    "all-reduce": collectives.all_reduce,
    "all-gather": collectives.all_gather,
    "reduce-scatter": collectives.reduce_scatter,
    "all-to-all": collectives.all_to_all,
    "collective-permute": collectives.permute,
    "custom-call": custom.call,
}
