"""Terms of obligations: sums, products and maxima in the form that nodes' definitions have.

`SmallInterpreter` is the interpreter of an operator's declaration in which entries are terms on
`Representatives`; `engine.obligations.entries` and `engine.obligations.obligation` read definitions
and operators by it.

Example: twice the larger of two entries is the larger one of twice each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.engine.algebra.terms import ONE, ZERO, Term
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters import MASKED, TermInterpreter, Weighted
from shardproof.engine.interpreters.dims import Dim, Extent, firsts, weights
from shardproof.engine.interpreters.symbolic import is_maximum
from shardproof.engine.lineage.sums import largest
from shardproof.engine.ops.laws import (
    applied,
    common_exponentials,
    flat,
    logarithms,
    size_apart,
    without_opposites,
)
from shardproof.engine.ops.primitives import Selection, is_partial
from shardproof.engine.small_model.representatives import Representatives

Entry = Any  # a Term, or MASKED


def choice(selection: Selection, size: int, kept: Sequence[tuple[int, int]], position: int) -> str:
    """The name of a choice from rows of ``size`` entries, of which those at ``kept`` (the first
    position, and how many it stands for) represent the row.

    Example: of 4 entries, of which the third one stands for two, ``select:4 at 0 1 2*2:...``; of
    four that stand for themselves ``select:4:...``.

    Rows that are represented otherwise tell otherwise what they are: the choices from them are
    different functions, even where they have as many arguments.
    """
    places = " ".join(f"{first}" if many == 1 else f"{first}*{many}" for first, many in kept)
    at = "" if len(kept) == size else f" at {places}"
    return f"select:{size}{at}:{selection}:{position}"


@dataclass(frozen=True)
class SmallInterpreter(TermInterpreter):
    """Terms of an obligation: positions follow from multiplicities, and a choice reads the
    represented entries of its row.

    Example: a linear layer of 8 inputs, kept at two of them of which the second one stands for 7,
    has the entry ``7 * (1/7 * v0 * v4 + v1 * v5)``.

    ``masks``: positions are compared by a mask. Then one that stands for others is counted as the
    mask has it: what is summed has to differ from position to position, so that nothing is a count.
    ``laws``: functions are read with the laws of `engine.ops.laws`.
    ``apart``: exponentials of sums are read as products, and what exponentials all addends of a sum
    have is taken out of it.  ``over_positions``: sums over positions, which are no such sums, and
    which no law takes out of an exponent.
    ``applications``: those of functions that are undefined somewhere, before laws of products.
    """

    representatives: Representatives
    masks: bool = False
    laws: bool = False
    apart: bool = False
    over_positions: set[Term] = field(default_factory=set, compare=False)
    applications: set[Term] = field(default_factory=set, compare=False)

    def applied_to(self, function: str, entry: Term) -> Term:
        """A function of an entry as a term; applications that are undefined somewhere are noted.

        What is made of the sign of a number commutes with positive factors.
        """
        size, inner = size_apart(function, _factor(entry))
        if size != 1 or inner != _factor(entry):
            own = self.table.mul(inner, _core(entry))
            return self.table.mul(size, self.applied_to(function, own))
        if self.laws:
            term = applied(self.table, function, entry, self.apart, self.over_positions)
        else:
            term = super().applied_to(function, entry)
        parts = (part for part in flat(term) if part.kind == "app" and is_partial(str(part.name)))
        self.applications.update(parts, logarithms(function, term))
        return term

    def product_of(self, factors: Sequence[Any]) -> Any:
        """The product of entries; with ``laws``, without powers and exponentials that cancel."""
        product = super().product_of(factors)
        return without_opposites(product) if self.laws and isinstance(product, Term) else product

    def dim(self, size: int) -> Dim:
        """How the positions of a dimension of this size are represented."""
        return size.dim if isinstance(size, Extent) else self.representatives.constant_dim(size)

    def absolute(self, start: int, size: int) -> tuple[Dim, tuple[int, ...]]:
        """A dimension of ``size`` positions with the true position of each representative."""
        dim = self.dim(size)
        return dim, tuple(start + first for first in firsts(dim))

    def select(self, scores: Weighted, selection: Selection) -> Weighted:
        """A function of the row's scores, not interpreted, for every choice that represents
        others; raises `Unsupported` where a mask hides scores."""
        if any(entry is MASKED for entry in scores.data.flat):
            raise Unsupported("a choice among masked entries")
        size, dim = int(scores.shape[1]), scores.dims[1]
        kept = [*zip(firsts(dim), weights(dim), strict=True)]
        chosen = self.representatives.positions((-1, 0), 1, selection.topk, selection.topk)
        entries = np.empty((scores.data.shape[0], len(chosen)), dtype=object)
        for i, row in enumerate(scores.data):
            for k, (j, _) in enumerate(chosen):
                entries[i, k] = self.table.app(choice(selection, size, kept, j), *row)
        return Weighted(entries, (scores.dims[0], (tuple(w for _, w in chosen),)))

    def total_of(self, entries: Iterable[Entry]) -> Entry:
        """The sum of entries; raises `Unsupported` where a mask compares positions and two of them
        are alike."""
        parts = list(entries)
        if self.masks:
            terms = [_core(e) for e in parts if isinstance(e, Term) and e is not self.table.zero]
            cores = [self.table.one if e.kind == "const" else e for e in terms]
            if len(set(cores)) < len(cores):
                raise Unsupported("a sum under a mask over positions that are alike")
        total = self.sum_of(parts)
        if self.laws and isinstance(total, Term) and len(parts) > 1:
            self.over_positions.update(f for f in flat(total) if f.kind == "add")
        return total

    def sum_of(self, entries: Iterable[Entry]) -> Entry:
        """A sum with its largest constant factor taken out, as the definitions of nodes have it:
        equal sums are then equal factors of products, which the linear rung does not look into."""
        parts = list(entries)
        if any(e is MASKED for e in parts):
            return MASKED
        if self.apart:
            kept = [e for e in parts if e is not self.table.zero]
            common, rest = common_exponentials(self.table, kept) if len(kept) > 1 else (None, [])
            if common is not None and common is not self.table.one:
                return self.product_of([common, self.sum_of(rest)])
        shares = [(_factor(e), e) for e in parts if e is not self.table.zero]
        if not shares:
            return self.table.zero
        if all(f is ONE for f, _ in shares):
            return self.table.add(*parts)
        lead = largest([f for f, _ in shares])
        if lead == 1:
            return self.table.add(*parts)
        addends = [self.table.mul(f / lead, _core(e)) for f, e in shares]
        return self.table.mul(lead, self.table.add(*addends))

    def maximum_of(self, row: Sequence[Entry]) -> Term:
        """A maximum commutes with a positive factor: one that is an entry, so many times, gives
        each of its own so many times, and the size of the largest factor is taken out, so that a
        scaled maximum is the maximum of scaled entries; their signs stay."""
        entries = [leaf for e in row if isinstance(e, Term) for leaf in self._leaves(e)]
        lead = max((abs(_factor(e)) for e in entries if e.kind != "const"), default=ONE)
        if lead == 1:
            return super().maximum_of(entries)
        inner = [self.table.mul(1 / lead, e) for e in entries]
        return self.table.mul(lead, super().maximum_of(inner))

    def _leaves(self, entry: Term) -> Sequence[Term]:
        """The entries whose maximum an entry of a maximum is."""
        factor, inner = _factor(entry), _core(entry)
        if factor < 0 or not is_maximum(inner):
            return (entry,)
        return [self.table.mul(factor, leaf) for leaf in inner.args]


def _factor(term: Term) -> Fraction:
    """The constant factor of a term ("mul" with a constant is always (constant, term))."""
    if term.kind == "mul" and term.args[0].kind == "const" and len(term.args) == 2:
        return term.args[0].value or ZERO
    return ONE


def _core(term: Term) -> Term:
    """A term without its constant factor."""
    if term.kind == "mul" and term.args[0].kind == "const" and len(term.args) == 2:
        return term.args[1]
    return term
