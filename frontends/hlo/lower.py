"""HLO onto declared operators: one rule for every operator of `opcodes`, in one table.

What a rule cannot say is `Unsupported`, by the operator's name and line; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import inf
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.graphs.graph import Graph, Node, PerRank, Shape
from shardproof.frontends.graphs.recorder import GROUP, PAIRS, Held, everywhere
from shardproof.frontends.builder import piecewise
from shardproof.frontends.hlo import indices, known
from shardproof.frontends.hlo.items import Ids, Item, Lookup, Narrow, Tensor, exact
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.semantics import dot_equation
from shardproof.frontends.hlo.state import Lowering, integral

Rule = Callable[[Lowering, Node, Sequence[Item]], Item]
#: Integers that nothing else is known of lie in this range.
DOMAIN = (0, 1 << 30)


def lower(
    graph: Graph, domains: Mapping[int, tuple[int, int]] | None = None
) -> tuple[Lowering, list[int], dict[int, tuple[int, int]]]:
    """The graph's operators, the values of its outputs, and the domains of its integer inputs: as
    given, or narrowed to the rows that lookups have."""
    found = dict(domains or {})
    for _ in range(len(graph.inputs) + 1):
        lowering = Lowering(graph, found)
        try:
            _run(lowering)
            return lowering, _outputs(lowering), found
        except Narrow as error:
            position = lowering.origins.get(error.origin)
            if position is None or domains is not None:
                raise Unsupported(
                    f"a gather whose ids may choose other rows than the {error.rows} that there are"
                ) from None
            low, high = found.get(position, DOMAIN)
            if error.rows >= high:
                raise Unsupported("a gather whose ids choose rows by several rules") from None
            found[position] = (low, min(high, error.rows))
    raise Unsupported("domains of ids that do not settle")


def _run(low: Lowering) -> None:
    """Emit everything; raises `Unsupported`, and `Narrow` where a domain is too wide."""
    for position, given in enumerate(low.graph.inputs):
        value = low.graph.values[given.value]
        number = low.recorder.value(value.shape, value.dtype, given.name)
        placed = given.placement or everywhere(value.shape, low.graph.ranks)
        domain = None
        if integral(value.dtype):
            domain = low.domains.get(position, DOMAIN)
            low.origins[number] = position
            low.items[given.value] = Ids(
                number,
                indices.own_axes(value.shape),
                value.shape,
                (piecewise.identity(*domain),),
            )
        elif value.dtype == "bool":
            raise Unsupported(f"input {given.name} of predicates")
        else:
            low.items[given.value] = Tensor(number)
        low.recorder.held.append(Held(number, given.name, value.dtype, placed, "batch", domain))
    for node in low.graph.nodes:
        low.recorder.source = node.source
        try:
            _node(low, node)
        except Unsupported as error:
            low.refuse(node, error)


def _node(low: Lowering, node: Node) -> None:
    if "refused" in node.attrs:
        raise Unsupported(node.attrs["refused"])
    (result,) = node.results
    if node.target == "constant":
        low.items[result] = node.attrs["value"]
        return
    rule = RULES.get(node.target)
    if rule is None:
        raise Unsupported("has no rule")
    operands = [low.items[v] for v in node.operands]
    folded = _folded(low, node, operands)
    found = rule(low, node, operands) if folded is None else folded
    low.items[result] = found
    value = low.graph.values[result]
    shape = low.recorder.shape(found.value) if isinstance(found, Tensor) else found.shape
    if shape != value.shape:
        raise Unsupported(f"gives {list(shape)}, the file says {list(value.shape)}")


def _folded(low: Lowering, node: Node, operands: Sequence[Item]) -> Item | None:
    if node.groups or node.pairs:
        return None
    constants = [x for x in operands if isinstance(x, Known)]
    if not constants or len(constants) != len(operands):
        return None
    return known.fold(node.target, node.attrs, constants, low.type(node))


def _outputs(low: Lowering) -> list[int]:
    """Values of the outputs."""
    low.recorder.source = type(low.recorder.source)()
    found = []
    for output in low.graph.outputs:
        try:
            found.append(low.tensor(low.items[output.value]))
        except Unsupported as error:
            low.refuse(Node("", f"output {output.name}", (), (output.value,)), error)
            found.append(low.tensor(low.items[output.value]))
    return found


# -- elementwise -----------------------------------------------------------------------------------


def _number(item: Item) -> Any:
    """The one number of a constant; None for anything else."""
    return item.number() if isinstance(item, Known) else None


def _finite(item: Item) -> Fraction | None:
    number = _number(item)
    if number is None or number in (inf, -inf) or number != number:
        return None
    return exact(number)


def _constant(low: Lowering, node: Node, number: Fraction) -> Item:
    return Tensor(low.values.full(low.shape(node), number))


def _add(low: Lowering, node: Node, xs: Sequence[Item], sign: int = 1) -> Item:
    if any(isinstance(x, Ids) for x in xs) and integral(low.dtype(node)):
        return indices.combine(low, node, xs)
    a, b = (_finite(x) for x in xs)
    if a is not None and b is not None:
        return _constant(low, node, a + sign * b)
    if b is not None:
        return xs[0] if b == 0 else low.op("add", low.tensor(xs[0]), other=sign * b)
    if a is not None:
        other = low.tensor(xs[1])
        moved = other if sign > 0 else low.tensor(low.op("mul", other, other=Fraction(-1)))
        return Tensor(moved) if a == 0 else low.op("add", moved, other=a)
    return low.op("add" if sign > 0 else "sub", *(low.tensor(x) for x in xs))


def _subtract(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    return _add(low, node, xs, -1)


def _multiply(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if any(isinstance(x, Ids) for x in xs) and integral(low.dtype(node)):
        return indices.combine(low, node, xs)
    a, b = (_finite(x) for x in xs)
    if a is not None and b is not None:
        return _constant(low, node, a * b)
    for factor, other in ((a, xs[1]), (b, xs[0])):
        if factor is not None:
            return other if factor == 1 else low.op("mul", low.tensor(other), other=factor)
    return low.op("mul", *(low.tensor(x) for x in xs))


def _divide(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if integral(low.dtype(node)):
        raise Unsupported("a quotient of integers")
    a, b = (_finite(x) for x in xs)
    if b == 0:
        raise Unsupported("a division by the constant zero")
    if a is not None and b is not None:
        return _constant(low, node, a / b)
    if b is not None:
        return low.op("div", low.tensor(xs[0]), other=b)
    return low.op("div", *(low.tensor(x) for x in xs))


def _negate(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if isinstance(xs[0], Ids):
        raise Unsupported("a negated index")
    number = _finite(xs[0])
    if number is not None:
        return _constant(low, node, -number)
    return low.op("mul", low.tensor(xs[0]), other=Fraction(-1))


def _function(operator: str) -> Rule:
    return lambda low, node, xs: low.op(operator, low.tensor(xs[0]))


def _power(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    base, exponent = (_finite(x) for x in xs)
    if exponent is not None:
        return low.op("pow", low.tensor(xs[0]), exponent=exponent)
    if base is not None and base > 0:
        # c ** x is exp(x log c)
        logarithm = low.op("log", low.values.full(low.shape(node), base))
        product = low.op("mul", low.tensor(xs[1]), logarithm.value)
        return low.op("exp", product.value)
    raise Unsupported("a power of two tensors")


def _step(low: Lowering, x: int) -> int:
    """1 where x > 0, else 0."""
    return low.op("step", x).value


def _maximum(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """y + (x - y) step(x - y), which is x or y; of minus infinity, the other one."""
    if any(isinstance(x, Ids) for x in xs):
        return indices.combine(low, node, xs)
    ignored = -inf if node.target == "maximum" else inf
    for x, other in (xs, xs[::-1]):
        if _number(x) == ignored:
            return other
    x, y = (low.tensor(i) for i in (xs if node.target == "maximum" else xs[::-1]))
    if _finite(xs[1]) == 0 and node.target == "maximum":
        return low.op("mul", x, _step(low, x))
    difference = low.op("sub", x, y).value
    over = low.op("mul", difference, _step(low, difference)).value
    return low.op("add", y, over) if node.target == "maximum" else low.op("sub", x, over)


def _clamp(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if isinstance(xs[1], Ids):
        return indices.clamp(low, node, xs)
    lower = Node(node.name, "maximum", node.operands, node.results)
    upper = Node(node.name, "minimum", node.operands, node.results)
    return _maximum(low, upper, [_maximum(low, lower, [xs[1], xs[0]]), xs[2]])


def _abs(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if isinstance(xs[0], Ids):
        raise Unsupported("the magnitude of an index")
    x = low.tensor(xs[0])
    double = low.op("mul", _step(low, x), other=Fraction(2)).value
    return low.op("mul", x, low.op("add", double, other=Fraction(-1)).value)


def _sign(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if isinstance(xs[0], Ids):
        raise Unsupported("the sign of an index")
    x = low.tensor(xs[0])
    negative = low.op("mul", x, other=Fraction(-1)).value
    return low.op("sub", _step(low, x), _step(low, negative))


def _compare(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Predicates of tensors are numbers, 0 or 1."""
    if any(isinstance(x, Ids) for x in xs):
        return indices.combine(low, node, xs)
    if node.attrs.get("type") == "TOTALORDER":
        raise Unsupported("comparison in total order")
    x, y = (low.tensor(i) for i in xs)
    over = _step(low, low.op("sub", x, y).value)
    under = _step(low, low.op("sub", y, x).value)
    match node.attrs.get("direction"):
        case "GT":
            return Tensor(over)
        case "LT":
            return Tensor(under)
        case "GE":
            return _not(low, under)
        case "LE":
            return _not(low, over)
        case "NE":
            return low.op("add", over, under)
        case "EQ":
            return _not(low, low.op("add", over, under).value)
    raise Unsupported(f"comparison {node.attrs.get('direction')}")


def _not(low: Lowering, x: int) -> Tensor:
    return low.op("add", low.op("mul", x, other=Fraction(-1)).value, other=Fraction(1))


def _invert(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if low.dtype(node) != "bool":
        raise Unsupported("bits of integers")
    if isinstance(xs[0], Ids):
        negated = tuple(piecewise.negated(f) for f in xs[0].functions)
        return Ids(xs[0].origin, xs[0].axes, xs[0].shape, negated)
    return _not(low, low.tensor(xs[0]))


def _logical(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if low.dtype(node) != "bool":
        raise Unsupported("bits of integers")
    for x, other in (xs, xs[::-1]):
        number = x.number() if isinstance(x, Known | Ids) else None
        if number is not None:
            keeps = bool(number) == (node.target == "and")
            return other if keeps else x
    if all(isinstance(x, Ids) for x in xs):
        return indices.combine(low, node, xs)
    x, y = (low.tensor(i) for i in xs)
    both = low.op("mul", x, y).value
    if node.target == "and":
        return Tensor(both)
    return low.op("sub", low.op("add", x, y).value, both)


def _select(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """p x + (1 - p) y."""
    p, x, y = xs
    number = p.number() if isinstance(p, Known | Ids) else None
    if number is not None:
        return x if number else y
    if isinstance(p, Ids):
        return indices.select(low, node, p, x, y)
    if isinstance(x, Ids) and isinstance(y, Ids | Known) and integral(low.dtype(node)):
        raise Unsupported("ids that are chosen by other numbers")
    for other in (x, y):
        if isinstance(other, Known) and other.number() is not None and _finite(other) is None:
            raise Unsupported(f"a choice of {other.number()}")
    chosen = low.tensor(p)
    parts = []
    for mask, item in ((chosen, x), (None, y)):
        number = _finite(item)
        if number == 0:
            continue
        if mask is None:
            mask = _not(low, chosen).value
        if number is not None:
            parts.append(low.op("mul", mask, other=number).value if number != 1 else mask)
        else:
            parts.append(low.op("mul", mask, low.tensor(item)).value)
    if not parts:
        return _constant(low, node, Fraction(0))
    return Tensor(parts[0]) if len(parts) == 1 else low.op("add", *parts)


def _convert(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A cast between floats is the identity over the reals; others by name."""
    source = low.graph.values[node.operands[0]].dtype
    target = low.dtype(node)
    if isinstance(xs[0], Ids):
        if integral(target) or target == "bool":
            return indices.cast(xs[0], source, target)
        return Tensor(low.tensor(xs[0]))
    if target == "bool" or integral(target):
        raise Unsupported(f"a conversion from {source} to {target}")
    return xs[0]


def _is_finite(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    text = "numbers are finite wherever a program asks (is-finite)"
    low.recorder.notes.append(Assumption("inferred", "is-finite", node.source.location, text))
    return _constant(low, node, Fraction(1))


def _shifted(operator: str, before: int, after: int) -> Rule:
    """operator(x + before) + after."""

    def rule(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
        x = low.tensor(xs[0])
        if before:
            x = low.op("add", x, other=Fraction(before)).value
        found = low.op(operator, x)
        return low.op("add", found.value, other=Fraction(after)) if after else found

    return rule


# -- shapes ----------------------------------------------------------------------------------------


def _broadcast(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    dims = node.attrs.get("dimensions", ())
    if isinstance(xs[0], Ids):
        return indices.broadcast(xs[0], dims, low.shape(node))
    return Tensor(low.values.broadcast(low.tensor(xs[0]), dims, low.shape(node)))


def _reshape(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if isinstance(xs[0], Ids):
        return indices.reshape(low, xs[0], low.shape(node))
    if isinstance(xs[0], Lookup) and xs[0].shape == low.shape(node):
        return xs[0]
    return Tensor(low.values.view(low.tensor(xs[0]), low.shape(node)))


def _bitcast(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if low.graph.values[node.operands[0]].shape != low.shape(node):
        raise Unsupported("a bitcast after layout assignment, which may be a transpose")
    return xs[0]


def _transpose(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    dims = node.attrs["dimensions"]
    if isinstance(xs[0], Ids):
        return indices.transpose(xs[0], dims)
    return low.op("permute", low.tensor(xs[0]), dims=tuple(dims))


def _cut(low: Lowering, item: Item, starts: Sequence[int | PerRank], sizes: Shape) -> Item:
    """A box of a tensor."""

    def cut(value: int) -> int:
        dtype = low.recorder.values[value].dtype
        for d, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            if size != low.recorder.shape(value)[d]:
                value = low.recorder.op("slice", value, dim=d, start=start, size=size, dtype=dtype)
        return value

    if not isinstance(item, Ids):
        return Tensor(cut(low.tensor(item)))
    if any(len(f) > 1 or f[0][2:] != (1, 0) for f in item.functions):
        raise Unsupported("a slice of computed ids")
    return indices.moved(low, item, ("slice", tuple(starts), sizes), cut)


def _slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if any(step != 1 for _, _, step in node.attrs["slice"]):
        raise Unsupported("a slice with steps")
    return _cut(low, xs[0], [start for start, _, _ in node.attrs["slice"]], low.shape(node))


def _dynamic_slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if "starts" not in node.attrs:
        raise Unsupported("starts that depend on data")
    return _cut(low, xs[0], node.attrs["starts"], low.shape(node))


def _dynamic_update(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """What is before the part, the part, what is after it, along one dimension."""
    if "starts" not in node.attrs:
        raise Unsupported("starts that depend on data")
    starts, part, shape = node.attrs["starts"], low.tensor(xs[1]), low.shape(node)
    sizes = low.recorder.shape(part)
    cut = [d for d, n in enumerate(shape) if sizes[d] != n]
    if not cut:
        return Tensor(part)
    if len(cut) > 1 or isinstance(starts[cut[0]], PerRank):
        raise Unsupported("an update of a box along several dimensions, or elsewhere on each rank")
    return _framed(low, xs[0], part, cut[0], starts[cut[0]], shape)


def _framed(low: Lowering, around: Item, part: int, dim: int, start: int, shape: Shape) -> Tensor:
    """``around`` with ``part`` instead of its positions from ``start`` on."""
    size = low.recorder.shape(part)[dim]
    pieces = [part]
    for begin, end, first in ((0, start, True), (start + size, shape[dim], False)):
        if end > begin:
            box = (*shape[:dim], end - begin, *shape[dim + 1 :])
            number = _finite(around)
            if number is not None:
                piece = low.values.full(box, number)
            else:
                at = [begin if d == dim else 0 for d in range(len(shape))]
                piece = low.tensor(_cut(low, around, at, box))
            pieces.insert(0 if first else len(pieces), piece)
    return low.op("concat", *pieces, dim=dim) if len(pieces) > 1 else Tensor(part)


def _concatenate(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if len(xs) == 1:
        return xs[0]
    return low.op("concat", *(low.tensor(x) for x in xs), dim=node.attrs["dimensions"][0])


def _pad(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if any(interior for _, _, interior in node.attrs["padding"]):
        raise Unsupported("padding between elements")
    if _finite(xs[1]) is None:
        raise Unsupported("padding with what is no finite constant")
    value = low.tensor(xs[0])
    for d, (before, after, _) in enumerate(node.attrs["padding"]):
        size = low.recorder.shape(value)[d] + min(before, 0) + min(after, 0)
        if size <= 0:
            raise Unsupported("padding that leaves nothing")
        if size != low.recorder.shape(value)[d]:
            value = low.recorder.op("slice", value, dim=d, start=-min(before, 0), size=size)
        shape = low.recorder.shape(value)
        wide = (*shape[:d], size + max(before, 0) + max(after, 0), *shape[d + 1 :])
        value = _framed(low, xs[1], value, d, max(before, 0), wide).value
    return Tensor(value)


# -- contractions, reductions ----------------------------------------------------------------------


def _dot(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if not low.dtype(node).startswith(("float", "bfloat")):
        raise Unsupported("a product of integers")
    left, right = (len(low.graph.values[v].shape) for v in node.operands)
    equation = dot_equation(node.attrs, left, right)
    return low.op("einsum", *(low.tensor(x) for x in xs), equation=equation)


def _reduce(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    dims = tuple(node.attrs.get("dimensions", ()))
    how = node.attrs["to_apply"]
    if isinstance(xs[0], Ids):
        return indices.reduce(low, xs[0], dims, low.shape(node), how, xs[1])
    if low.dtype(node) == "bool":
        raise Unsupported(f"a reduction of predicates by {how}")
    neutral = {"add": 0, "maximum": -inf, "minimum": inf}.get(how)
    if neutral is None:
        raise Unsupported(f"a reduction by {how}")
    value = low.tensor(xs[0])
    sign = Fraction(-1)
    if how == "minimum":
        value = low.op("mul", value, other=sign).value
    if dims:
        value = low.op("sum" if how == "add" else "amax", value, dim=dims).value
    if how == "minimum":
        value = low.op("mul", value, other=sign).value
    if _number(xs[1]) == neutral:
        return Tensor(value)
    first = Tensor(low.values.broadcast(low.tensor(xs[1]), (), low.shape(node)))
    start: Item = first if not isinstance(xs[1], Known) else first
    joined = Node(node.name, how, node.operands, node.results)
    return RULES[how](low, joined, [Tensor(value), start])


# -- ranks -----------------------------------------------------------------------------------------


def _alone(node: Node) -> bool:
    return all(len(g) == 1 for g in node.groups)


def _ordered(node: Node) -> None:
    if any(list(g) != sorted(g) for g in node.groups):
        raise Unsupported("a group whose members are not in the order of their ranks")


def _collective(
    low: Lowering, node: Node, item: Item, operator: str, shape: Shape, **attrs: Any
) -> Tensor:
    x = low.tensor(item)
    dtype = low.recorder.values[x].dtype
    attrs[GROUP] = node.groups
    return Tensor(low.recorder.append(operator, [x], shape, dtype, attrs))


def _all_reduce(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    how = node.attrs["to_apply"]
    if low.dtype(node) == "bool" or how not in ("add", "maximum", "minimum"):
        raise Unsupported(f"an all-reduce by {how}")
    if _alone(node):
        return xs[0]
    x: Item = Tensor(low.tensor(xs[0]))
    if how == "minimum":
        x = low.op("mul", low.tensor(x), other=Fraction(-1))
    found = _collective(
        low, node, x, "all_reduce", low.shape(node), op="sum" if how == "add" else "max"
    )
    return low.op("mul", found.value, other=Fraction(-1)) if how == "minimum" else found


def _all_gather(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if _alone(node):
        return xs[0]
    _ordered(node)
    return _collective(
        low, node, xs[0], "all_gather", low.shape(node), dim=node.attrs["dimensions"][0]
    )


def _reduce_scatter(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    if node.attrs["to_apply"] != "add" or low.dtype(node) == "bool":
        raise Unsupported(f"a reduce-scatter by {node.attrs['to_apply']}")
    if _alone(node):
        return xs[0]
    _ordered(node)
    return _collective(
        low, node, xs[0], "reduce_scatter", low.shape(node), dim=node.attrs["dimensions"][0]
    )


def _all_to_all(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A part of one dimension to every member, what arrives joined along the same one: of N
    positions as 1 x members x rest, the members are exchanged for the 1."""
    if _alone(node):
        return xs[0]
    _ordered(node)
    dims = node.attrs.get("dimensions", ())
    if len(dims) != 1:
        raise Unsupported("an all-to-all of several operands")
    d, shape, members = dims[0], low.shape(node), len(node.groups[0])
    if shape[d] % members:
        raise Unsupported(f"an all-to-all of {shape[d]} positions among {members}")
    rest = shape[d] // members
    split = low.values.view(low.tensor(xs[0]), (*shape[:d], 1, members, rest, *shape[d + 1 :]))
    joined = (*shape[:d], members, 1, rest, *shape[d + 1 :])
    found = _collective(
        low, node, Tensor(split), "all_to_all", joined, split_dim=d + 1, concat_dim=d
    )
    return Tensor(low.values.view(found.value, shape))


def _permute(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    x = low.tensor(xs[0])
    dtype = low.recorder.values[x].dtype
    attrs = {PAIRS: node.pairs}
    return Tensor(low.recorder.append("permute_ranks", [x], low.shape(node), dtype, attrs))


RULES: Mapping[str, Rule] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "negate": _negate,
    "exponential": _function("exp"),
    "log": _function("log"),
    "logistic": _function("sigmoid"),
    "tanh": _function("tanh"),
    "rsqrt": _function("rsqrt"),
    "sqrt": _function("sqrt"),
    "sine": _function("sin"),
    "cosine": _function("cos"),
    "erf": _function("erf"),
    "exponential-minus-one": _shifted("exp", 0, -1),
    "log-plus-one": _shifted("log", 1, 0),
    "power": _power,
    "maximum": _maximum,
    "minimum": _maximum,
    "clamp": _clamp,
    "abs": _abs,
    "sign": _sign,
    "compare": _compare,
    "not": _invert,
    "and": _logical,
    "or": _logical,
    "select": _select,
    "convert": _convert,
    "is-finite": _is_finite,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "bitcast": _bitcast,
    "transpose": _transpose,
    "slice": _slice,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update,
    "concatenate": _concatenate,
    "pad": _pad,
    "dot": _dot,
    "reduce": _reduce,
    "gather": indices.gather,
    "scatter": indices.scatter,
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _permute,
}
