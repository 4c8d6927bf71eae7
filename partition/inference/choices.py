"""Which entries of a row are chosen: the experts of a token."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from string import ascii_letters

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import Select
from shardproof.engine.lineage.floating import sunk
from shardproof.engine.lineage.lineage import (
    BROADCAST,
    Addend,
    Dim,
    Lineage,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.ops.primitives import Selection
from shardproof.partition.inference.canonical import canonical
from shardproof.partition.inference.floats import Way, dropped, ways
from shardproof.partition.inference.functions import Functions
from shardproof.partition.inference.values import tried
from shardproof.partition.inference.views import result_view


class Choices(Functions):
    """Choices among the entries of the last dimension.

    Example: the two largest of 8 scores of each of 4 tokens, of which a microbatch has one: that
    token's part of the choice for all of them.
    """

    def select(self, scores: Lineage, selection: Selection) -> Lineage:
        """Which entries of the last dimension are chosen."""
        several = self._each(scores, lambda lineage: self.select(lineage, selection), 1)
        if several is not None:
            return several
        addend = self._single(scores)
        if not _is_row(addend.view.dims[-1]):
            shared = self.shared(scores.shape, [addend])
            addend = shared[0] if shared else self.piece(scores).addends[0]
        row = addend.view.dims[-1]
        if not row or row[0].axis == BROADCAST:
            raise Unsupported("a choice from a row of one entry, or of zeros")
        inside = sunk(addend.view)
        if inside.dims[-1] == (row[0],):
            addend = addend._replace(view=inside)
        rank = len(scores.shape)

        def another(way: Way) -> Addend:
            dims = way.addends[0].view.dims
            last = (*dims[: rank - 1], *dims[rank:], dims[rank - 1])
            view = way.addends[0].view._replace(dims=last)
            made = self._chosen(way.addends[0]._replace(view=view), selection)
            own = made.view.dims
            behind = (*own[: rank - 1], own[-1], *own[rank - 1 : -1])
            return dropped(made._replace(view=made.view._replace(dims=behind)), rank)

        def others() -> Iterator[Addend | None]:
            readings = ways([addend], self.mesh, ascii_letters, sums=False, reads=self.reads)
            yield from (tried(another, way) for way in readings)

        first = tried(lambda t: self._chosen(t, selection), addend)
        chosen = self._first_reading([addend], first, others)
        return Lineage((*scores.shape[:-1], selection.topk), (chosen,))

    def _chosen(self, addend: Addend, selection: Selection) -> Addend:
        """The choice along the last dimension of a view; raises `Misaligned` where that is not all
        of one axis."""
        row = addend.view.dims[-1]
        if not _is_row(row):
            raise Misaligned
        tokens = [a for dim in addend.view.dims[:-1] for a in dim if a.axis != BROADCAST]
        atoms = [(a, i) for i, a in enumerate([row[0], *tokens])]
        outputs = frozenset(range(1, len(atoms)))
        extents = {i: a.extent for a, i in atoms}
        intervals = {i: a for a, i in atoms}
        form = canonical([(addend.node, tuple(atoms), addend.view.fixed, ())], outputs, extents)
        choice = Select(addend.factor, form.operands[0], form.labels[0][0], selection, form.outputs)
        axes = tuple(form.extents[x] for x in form.outputs)
        moving = {axis for interval in addend.view.fixed for axis in interval.start.axes}
        coordinates = self.table[addend.node].coordinates | moving
        node = self.table.define(choice, (*axes, selection.topk), coordinates)
        label = iter(range(1, len(atoms)))
        dims = [
            [a if a.axis == BROADCAST else next(label) for a in dim]
            for dim in addend.view.dims[:-1]
        ]
        view = result_view(dims, form.labels, form.outputs, intervals)
        chosen: Dim = (StridedInterval(len(axes), 1, selection.topk, ZERO, selection.topk),)
        return Addend(Fraction(1), node, View((*view.dims, chosen), view.fixed))


def _is_row(dim: Dim) -> bool:
    """Whether a dimension is all of one axis."""
    return len(dim) == 1 and dim[0].full and dim[0].axis != BROADCAST
