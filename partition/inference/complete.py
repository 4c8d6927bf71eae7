"""Parts of sums and of maxima over constant blocks, taken as the complete values that they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from shardproof.engine.lineage.expressions import Unary
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import has_places
from shardproof.engine.lineage.sums import root_kinds
from shardproof.engine.lineage.views import Misaligned
from shardproof.partition.inference.closing import closed
from shardproof.partition.inference.exponentials import closed_maximum
from shardproof.partition.inference.laws import factor_views, is_exponential
from shardproof.partition.inference.sums import Sums
from shardproof.partition.inference.values import tried


class Complete(Sums):
    """Sums over lineages, parts of which are values of their own.

    Example: ``n4[...] part #1[0 +4 of 8]`` alone is the sum of the same products over four
    positions, where the single-device program has that.
    """

    def __init__(
        self,
        table: NodeTable,
        reference_size: int | None = None,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(table, reference_size, mesh)
        self._singles: dict[Lineage, Addend] = {}
        #: Parts of sums that are no complete values, which many readings ask again.
        self._incomplete: set[Addend] = set()

    def _closed_product(self, spec: str, addends: Sequence[Addend], over: frozenset[str]) -> Addend:
        """A product whose labels ``over`` run along what its operands have of them (products
        know)."""
        raise Misaligned

    def _single(self, x: Lineage) -> Addend:
        """The one complete addend of ``x``; taken as it is if there is no such addend."""
        if len(x.addends) == 1 and not x.addends[0].partials and not x.addends[0].places:
            return x.addends[0]
        made = self._singles.get(x)
        if made is None:
            whole = self.closed(x) or self._closed_maxima(x)
            made = self._singles[x] = (self.piece(x) if whole is None else whole).addends[0]
        return made

    def closed(self, x: Lineage) -> Lineage | None:
        """Partial sums over constant blocks as one complete addend over these blocks (None: it is
        none, or none that the single-device program has)."""
        if has_places(x) or not any(t.partials for t in x.addends):
            return None
        size = self.reference_size
        own = [t for t in x.addends if size is not None and not t.partials and t.node >= size]
        if not all(self._is_common(t.node, size or 0) for t in own):
            return None
        addends: list[Addend] = []
        for t in x.addends:
            try:
                addends.append(closed(self.table, t, self._closed_product))
            except Misaligned:
                return None
            if size is not None and addends[-1].node >= size and t not in own:
                if not self._are_of_powers([addends[-1]]):
                    return None
                own.append(t)
        result = self.fold(Lineage(x.shape, tuple(addends)))
        if len(result.addends) != 1 or result.addends[0].partials:
            return None
        if own and not (self._are_known(result.addends) or self._are_of_powers(result.addends)):
            return None
        self.rewrote = True
        return result

    def _are_of_powers(self, addends: Sequence[Addend]) -> bool:
        """Whether all of these are products of the single-device program's values with exponentials
        of the ranks' own.

        Example: the sum of a softmax over keys that ranks have, times ``exp(M)`` and ``exp(-m)`` of
        their maxima ``m``.
        """
        size = self.reference_size or 0
        for addend in addends:
            factors = factor_views(self.table, addend)
            strange = [f.node for f in factors if f.node >= size]
            if len(strange) == len(factors) or not strange:
                return False
            if not all(is_exponential(self.table, node, size) for node in strange):
                return False
        return True

    def in_region(self, x: Lineage) -> Lineage:
        """Parts of sums beside complete values as what these add up to: nothing completes them.

        Example: attention over keys of two tensors side by side, to which the residual is added.
        """
        parts = sum(bool(t.partials) for t in x.addends)
        mixed = 0 < parts < len(x.addends)
        return (self.closed(x) if mixed else None) or x

    def ended(self, x: Lineage) -> Lineage:
        """Parts of sums beside complete values, once ranks have added up what they have, as the
        value that the single device has of these; as they are where it has none.

        Example: the gradient of half of a weight's rows, for which the single device adds up what
        comes from a first position and from the others: ``n279[...] + n281[...] part #10[0 +3 of
        4]`` is its ``n288[...]``.
        """
        if self.reference_size is None:
            return x
        before = self.rewrote
        made = self.in_region(x)
        if self._are_known(made.addends):
            return made
        self.rewrote = before
        return x

    def of_ended(self, xs: Sequence[Lineage], make: Callable[..., Lineage]) -> Lineage | None:
        """What ``make`` gives of operands with parts of sums beside complete values, these taken as
        the values of the single device that they add up to; None where it has none, or not what is
        made of them.

        Example: the gradient of a weight of keys, where what comes back to these is made of a first
        position and of the others.
        """
        whole = [self.ended(x) for x in xs]
        made = None if whole == list(xs) else make(*whole)
        return made if made is not None and self._are_known(made.addends) else None

    def _complete(self, addend: Addend) -> Addend:
        """Part of a sum over a constant block as the sum over that block alone, which may be cut
        like any other value; as it is where it is none, or none that the single device has."""
        if not addend.partials or addend.places or addend in self._incomplete:
            return addend
        made = tried(lambda t: closed(self.table, t, self._closed_product), addend)
        size = self.reference_size
        if made is None or (size is not None and made.node >= size):
            self._incomplete.add(addend)
            return addend
        self.rewrote = True
        return made

    def _beside_reciprocals(self, addends: tuple[Addend, ...]) -> tuple[Addend, ...]:
        """Operands of a product; parts of sums beside reciprocals of the sums over these blocks as
        such sums, with which the reciprocals cancel.

        Example: a rank's attention over its own keys, which it has divided by their sum, times what
        its keys add to the sum over all keys (flash decoding).
        """
        if self.reference_size is None or not any(t.partials for t in addends):
            return addends
        definitions = (
            self.table[f.node].definition for t in addends for f in factor_views(self.table, t)
        )
        divisors = {d.node for d in definitions if isinstance(d, Unary) and d.function == "inv"}
        return tuple(self._over_block(t, divisors) for t in addends) if divisors else addends

    def _over_block(self, addend: Addend, divisors: Collection[int]) -> Addend:
        """Part of a sum as the sum over its block, where that is among divisors."""
        if not addend.partials or addend.places:
            return addend
        made = tried(lambda t: closed(self.table, t, self._closed_product), addend)
        if made is None or not any(f.node in divisors for f in factor_views(self.table, made)):
            return addend
        self.rewrote = True
        return made

    def whole(self, addend: Addend) -> Addend:
        """As in `Sums`; a part of a sum that the single-device program takes by itself stays one.

        Example: of scores over four positions it has a softmax over the first two as well.
        """
        made = super().whole(addend)
        if self.reference_size is None:
            return made
        return made if made is addend or self._complete(addend) is addend else addend

    def _with_complete_maxima(self, xs: tuple[Lineage, ...]) -> tuple[Lineage, ...]:
        """The operands of a product, parts of maxima as maxima of blocks: what is multiplied with
        others is no part that others complete."""
        if len(xs) == 1:
            return xs
        parts = [
            any("max" in root_kinds(self.table, t.partials) for t in x.addends if t.partials)
            for x in xs
        ]
        if not any(parts):
            return xs
        return tuple(
            self._closed_maxima(x) or x if part else x for x, part in zip(xs, parts, strict=True)
        )

    def _closed_maxima(self, x: Lineage) -> Lineage | None:
        """Partial maxima over constant blocks as one complete addend: sums of maxima over these
        blocks (None: it is none)."""
        if has_places(x) or not any(t.partials for t in x.addends):
            return None
        try:
            whole = [closed_maximum(self.windows, t) if t.partials else t for t in x.addends]
        except Misaligned:
            return None
        result = self.fold(Lineage(x.shape, tuple(whole)))
        return result if len(result.addends) == 1 and not result.addends[0].partials else None
