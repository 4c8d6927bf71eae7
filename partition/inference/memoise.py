"""Rows that repeat: what was read once of a layer, a rank or a microbatch is read of the others by
putting in their nodes.

What an operator makes of its inputs depends on their forms, on which of their nodes are one node,
on what each node is (`Repeats._fact`; of what that is made of only on logarithms in sums, on
exponentials in products, on operands of sums that are inputs too, and on zeros in sums) and on the
order of the nodes' numbers.  Where all that is as it was before, the definitions that the operator
made are made again over the new nodes, and so are the lineages of its outputs.  What masks is the
exception: a sum looks whether what it is added to has the mask already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardproof.engine.lineage.expressions import (
    AcrossRanks,
    Causal,
    Combine,
    Comparison,
    Constant,
    Einsum,
    Expression,
    Labelled,
    Onehot,
    Opaque,
    Renaming,
    Restrict,
    Unary,
)
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.lineage.nodes import Node, NodeTable, Reduction
from shardproof.engine.plan.collectives import COPIES
from shardproof.engine.schedule.instances import Instance
from shardproof.partition.inference.forms import Forms, View
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.values import in_order

#: Rows that are read by what they are and where, not by their inputs.
GIVEN = COPIES | {"shard", "load", "seed"}
#: Definitions that read nodes.
READING = Labelled | Unary | Onehot | Restrict
#: Definitions that are made again (others are of several local tensors). To rename one raises
#: ValueError or IndexError for a node that was not met.
MADE = READING | Comparison | Constant | Opaque | AcrossRanks


class _Made(NamedTuple):
    """A definition, or a token where there is none, and how many of its kind that were met before
    have a smaller number.  Nodes and tokens that they name, here and below, are places in the order
    in which they were met: those of the inputs first."""

    node: Node | None
    reduction: Reduction | None
    below: int


class _Output(NamedTuple):
    lineage: Lineage
    view: View


class Repeat(NamedTuple):
    """A row as it was read first: its number among repeats, the number of the row, the nodes that
    it was about; what was made of them, what came out, and functions that are undefined
    somewhere.

    Example: in a GPT of two layers row 67, the ``gelu`` of layer 0, which row 99, that of layer 1,
    repeats.
    """

    number: int
    row: int
    nodes: frozenset[int]
    made: tuple[_Made, ...]
    outputs: tuple[_Output, ...]
    partial: tuple[tuple[str, Addend], ...]


class _Same(NamedTuple):
    """What a row repeats and gives; ``inputs``: its own, held since they are known by identity."""

    repeat: Repeat
    outputs: list[Lineage]
    inputs: tuple[Lineage | None, ...]


class Repeats:
    """Reads the rows of one side; ``rows[n]`` is what row n repeats, where it does.

    Example: of the 265 rows of that GPT's ranks 223 are read as repeats; what row 99 gives is what
    row 67 gave, with the nodes of layer 1.
    """

    def __init__(
        self, interpreter: LineageInterpreter, forms: Forms, reference_size: int | None
    ) -> None:
        self.rows: dict[int, Repeat] = {}
        self._interpreter = interpreter
        self._table: NodeTable = interpreter.table
        self._forms = forms
        self._reference_size = reference_size
        self._known: dict[Hashable, Repeat] = {}
        self._count = 0
        self._facts: dict[int, int] = {}
        self._lineages: dict[tuple[int, ...], list[Lineage]] = {}
        self._same: dict[Hashable, _Same] = {}

    def read(
        self,
        number: int,
        instance: Instance,
        inputs: Sequence[Lineage | None],
        operands: Hashable,
        read: Callable[[], list[Lineage]],
    ) -> list[Lineage]:
        """The lineages of a row's outputs, as ``read`` gives them; raises what it raises.

        ``operands``: what else ``read`` looks at, beside the row's attributes and its inputs.
        """
        if instance.kind in GIVEN:
            return read()
        signature = (
            instance.kind,
            instance.name if instance.kind == "op" else "",
            instance.backward,
            instance.over,
            len(instance.programs),
            self._forms.attributes(instance.attrs)[1],
            operands,
        )
        # Of one lineage, as of values that many ranks hold alike, nothing need be looked at again.
        same = (signature, tuple(map(id, inputs)))
        before = self._same.get(same)
        if before is not None:
            self.rows[number] = before.repeat
            return before.outputs
        views = [None if x is None else self._forms.view(x) for x in inputs]
        viewed = [n for v in views if v is not None for n in v.nodes]
        summed = [t for v in views if v is not None for t in v.tokens]
        nodes = _distinct(viewed)
        nodes.setdefault(self._table.one, len(nodes))
        tokens = _distinct(summed)
        if any(isinstance(self._table[n].definition, Causal) for n in nodes):
            return read()
        key = (
            signature,
            tuple([-1 if v is None else v.form for v in views]),
            tuple([nodes[n] for n in viewed]),
            tuple([tokens[t] for t in summed]),
            tuple([self._fact(n) for n in nodes]),
            self._shared(nodes),
            _order(list(nodes)),
            _order(list(tokens)),
        )
        repeat = self._known.get(key)
        if repeat is None:
            return self._record(number, key, list(nodes), list(tokens), read)
        given = (repeat.number, *nodes, *tokens)
        lineages = self._lineages.get(given) or self._again(repeat, list(nodes), list(tokens))
        if lineages is None:
            # What was made anew for the first row may be there by now, and lie otherwise.
            return self._record(number, key, list(nodes), list(tokens), read)
        self.rows[number] = repeat
        self._lineages[given] = lineages
        self._same[same] = _Same(repeat, lineages, tuple(inputs))
        return lineages

    def _fact(self, number: int) -> int:
        known = self._facts.get(number)
        if known is None:
            node = self._table[number]
            known = self._facts[number] = self._forms.number(
                (
                    node.kind,
                    node.definition.rename(lambda _: 0)
                    if isinstance(node.definition, READING)
                    else (),
                    node.extents,
                    node.coordinates,
                    number == self._table.one,
                    self._table.is_masked(number),
                    self._is_reference(number),
                    self._table.domain(number),
                    self._inside(node.definition),
                )
            )
        return known

    def _inside(self, definition: Expression) -> tuple[object, ...]:
        """What laws look at in operands: of a sum, which are logarithms, or sums with one (its
        exponential is a product then); of a product, which are exponentials and reciprocals (its
        logarithm is a sum then)."""
        inner = [self._table[n].definition for n in definition.children()]
        if isinstance(definition, Combine):
            return tuple(
                tuple(map(self._is_logarithm, d.children()))
                if isinstance(d, Combine)
                else isinstance(d, Unary) and d.function == "log"
                for d in inner
            )
        if isinstance(definition, Einsum):
            functions = (d.function if isinstance(d, Unary) else "" for d in inner)
            return tuple(f if f in ("exp", "inv") else "" for f in functions)
        return ()

    def _is_logarithm(self, number: int) -> bool:
        definition = self._table[number].definition
        return isinstance(definition, Unary) and definition.function == "log"

    def _shared(self, nodes: Mapping[int, int]) -> Hashable:
        """Which of some nodes are operands of sums among them: they may cancel."""
        sums = [n for n in nodes if isinstance(self._table[n].definition, Combine)]
        return tuple(
            tuple(nodes.get(o, -1) for o in self._table[n].definition.children()) for n in sums
        )

    def _is_reference(self, number: int) -> bool:
        return self._reference_size is None or number < self._reference_size

    def _has_alias(self, number: int) -> bool:
        """Whether a value goes by another name, which depends on what else both sides compute."""
        matcher = self._interpreter.matcher
        if self._is_reference(number) or matcher is None:
            return False
        return matcher.alias(number) is not None

    def _record(
        self,
        number: int,
        key: Hashable,
        nodes: list[int],
        tokens: list[int],
        read: Callable[[], list[Lineage]],
    ) -> list[Lineage]:
        """Read a row, and remember how it was done; not if it met what it was not given."""
        already, dropped = len(self._interpreter.partial), self._interpreter.dropped
        with self._table.watched() as met:
            result = read()
        if self._interpreter.dropped > dropped:
            return result
        try:
            made = self._made(met, nodes, tokens)
            outputs = tuple(
                _Output(
                    _lineage(x, nodes.index, tokens.index),
                    _view(self._forms.view(x), nodes.index, tokens.index),
                )
                for x in result
            )
            partial = tuple(
                (f, _addend(t, nodes.index, tokens.index))
                for f, t in self._interpreter.partial[already:]
            )
        except ValueError:
            return result
        repeat = Repeat(self._count, number, frozenset(nodes), made, outputs, partial)
        self._count += 1
        self._known[key] = self.rows[number] = repeat
        return result

    def _made(
        self, met: Sequence[tuple[str, int]], nodes: list[int], tokens: list[int]
    ) -> tuple[_Made, ...]:
        """What was met beyond ``nodes`` and ``tokens``, which grow by it; raises ValueError if it
        is not made of those alone."""
        made: list[_Made] = []
        for kind, n in met:
            if kind == "node" and n not in nodes:
                node = self._table[n]
                if self._has_alias(n) or not isinstance(node.definition, MADE):
                    raise ValueError(node.kind)
                definition = _definition(node.definition, nodes.index, tokens.index)
                renamed = node._replace(definition=definition)
                made.append(_Made(renamed, None, _below(n, nodes)))
                nodes.append(n)
            elif kind == "token" and n not in tokens:
                reduction = _reduction(self._table.reductions[n], nodes.index, tokens.index)
                made.append(_Made(None, reduction, _below(n, tokens)))
                tokens.append(n)
        return tuple(made)

    def _again(self, repeat: Repeat, nodes: list[int], tokens: list[int]) -> list[Lineage] | None:
        """The outputs over other nodes; None if these do not lie as the first ones did, or if one
        has zeros in it, which depends on what its operands are made of."""
        node_at, token_at = nodes.__getitem__, tokens.__getitem__
        for node, reduction, below in repeat.made:
            if node is not None:
                renamed = _definition(node.definition, node_at, token_at)
                if isinstance(renamed, Opaque) and in_order(renamed.addends) != renamed.addends:
                    return None
                new, met = self._table.define(renamed, node.extents, node.coordinates), nodes
                if self._has_alias(new) or self._interpreter.has_zeros(new):
                    return None
            elif reduction is not None:
                new, met = self._table.reduction(_reduction(reduction, node_at, token_at)), tokens
            if new in met or _below(new, met) != below:
                return None
            met.append(new)
        result = [_lineage(x.lineage, node_at, token_at) for x in repeat.outputs]
        for lineage, output in zip(result, repeat.outputs, strict=True):
            self._forms.keep(lineage, _view(output.view, node_at, token_at))
        self._interpreter.partial += [(f, _addend(t, node_at, token_at)) for f, t in repeat.partial]
        return result


def _distinct(numbers: Iterable[int]) -> dict[int, int]:
    """Each number with its place in order of first use."""
    places: dict[int, int] = {}
    for number in numbers:
        places.setdefault(number, len(places))
    return places


def _below(number: int, numbers: Sequence[int]) -> int:
    return sum(n < number for n in numbers)


def _order(numbers: Sequence[int]) -> tuple[int, ...]:
    if len(numbers) < 2:
        return (0,) * len(numbers)
    return tuple(sorted(range(len(numbers)), key=numbers.__getitem__))


def _definition(x: Expression, node: Renaming, token: Renaming) -> Expression:
    if isinstance(x, Opaque):
        return Opaque(tuple(_addend(t, node, token) for t in x.addends))
    if isinstance(x, AcrossRanks):
        return replace(x, node=node(x.node))
    return x.rename(node)


def _lineage(x: Lineage, node: Renaming, token: Renaming) -> Lineage:
    return Lineage(x.shape, tuple(_addend(t, node, token) for t in x.addends))


def _addend(x: Addend, node: Renaming, token: Renaming) -> Addend:
    partials = (
        tuple(p._replace(reduction=token(p.reduction)) for p in x.partials) if x.partials else ()
    )
    return Addend(x.factor, node(x.node), x.view, partials, x.places)


def _reduction(x: Reduction, node: Renaming, token: Renaming) -> Reduction:
    return Reduction(x.kind, node(x.node), x.where, token(x.inner) if x.kind == "via" else x.inner)


def _view(x: View, node: Renaming, token: Renaming) -> View:
    return View(x.form, tuple(map(node, x.nodes)), tuple(map(token, x.tokens)))
