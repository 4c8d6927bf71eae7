"""Which inputs of a segment are one tensor on their device, as copies by ``multiref`` are.

A forward segment detaches inputs that are one tensor once (``runtime/executor.py``, ``fexecute``),
so what arrives at one of them is the gradient of each; a leaf at which nothing arrives stops the
step ("got gradient None").  ``identity`` and ``multiref`` give the tensor that they are given
(``runtime/function``); what a device only receives is a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.forward import NOTHING_KNOWN, Forward, Leaves

_SAME: Final = frozenset({
    "nnscaler.runtime.function.identity", "nnscaler.runtime.function.multiref",
})  # fmt: skip


class Variables:
    """What the variables of a device are, as far as it matters: which are one tensor.

    Example: after a segment that returns three copies of a value they are one; after a move of one
    of them over its own name that is another tensor.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[int, int]] = {}
        self._fresh: set[int] = set()

    def given(self, of: Forward, slots: Sequence[int]) -> None:
        """A use of a forward segment; what its uses do not have in common is not known.

        Raises `UnreadablePlan` where the backward segment relies on it.
        """
        kinds = [self._tensors.get(slot, slot) for slot in slots]
        alike = tuple(map(kinds.index, kinds))
        fresh = frozenset(i for i, slot in enumerate(slots) if slot in self._fresh)
        known = Leaves(alike, fresh)
        if not of.used:
            of.leaves, of.used = known, True
        elif known != of.leaves:
            if of.relied:
                raise UnreadablePlan(
                    f"expected inputs of segment {of.segment.id} to be one tensor in each use"
                )
            of.leaves = NOTHING_KNOWN

    def returned(self, of: Forward, use: int, slots: Sequence[int]) -> None:
        """What a use of a forward segment gives."""
        roots = {value: of.inputs[i] for value, i in zip(of.inputs, of.leaves.alike, strict=False)}
        for node in of.segment.nodes:
            if isinstance(node, cells.ForwardOp) and node.signature in _SAME:
                for read in of.reads[node.id][:1]:
                    roots.update(dict.fromkeys(of.makes[node.id], roots.get(read, read)))
        for slot, value in zip(slots, of.outputs, strict=True):
            self._fresh.discard(slot)
            self._tensors[slot] = use, roots.get(value, value)

    def written(self, cell: cells.Cell, slots: Sequence[int]) -> None:
        """What any other entry of the sequence gives."""
        received = isinstance(cell, cells.Adapter) and not cell.inputs and len(slots) == 1
        for slot in slots:
            self._tensors.pop(slot, None)
            self._fresh.discard(slot)
            if received:
                self._fresh.add(slot)
