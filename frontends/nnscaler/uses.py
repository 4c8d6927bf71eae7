"""Uses of segments: that a backward one names the gradients of its forward one's tensors.

The generated code starts autograd at those tensors of the forward use whose gradients the backward
use is given, and binds what has accumulated at those whose gradients it gives
(``codegen/emit.py``, ``get_backward_callsite_io_tensors``; a name that is no tensor's is left out).
A use that names another microbatch's gradient starts nowhere, even if the numbers are the same.

A segment's inputs are detached (``runtime/executor.py``, ``fexecute``).  So where one returns its
own input, the variable is a tensor of which nothing was made before, and what made it in an earlier
segment of the device gets no gradient.  nnScaler's ``graph.staging`` writes an identity there, with
a result of its own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardproof.engine.plan.ir import Call
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.forward import Forward, tensors_of
from shardproof.frontends.nnscaler.records import Tensor

#: A slot that nothing writes, and one that nothing reads.
NOWHERE, UNREAD = -1, -2
#: The gradients of the tensors of a use or a segment, inputs first (-1: none).
_Gradients = list[int]


class Uses:
    """The uses of segments on a device, forward ones before their backward ones.

    Example: after use 184 of a forward segment, whose output has the gradient 123, its backward
    use may be given 123; given 210 it reads `NOWHERE`.
    """

    def __init__(self) -> None:
        self._forward: dict[int, tuple[list[int], _Gradients]] = {}
        #: Variables that a use has returned as it was given them, by that use.
        self._returned: dict[int, int] = {}
        self._bodies: dict[int, tuple[list[int], dict[int, int]]] = {}
        #: Gradients of the inputs of forward uses, and of those that several uses of one read.
        self._once: set[tuple[int, int]] = set()
        self._again: set[int] = set()

    def slots(
        self,
        use: cells.Use,
        cell: cells.Segment,
        tensors: Sequence[Tensor],
        forwards: Mapping[int, Forward],
    ) -> list[int]:
        """The slots of a use's inputs and outputs; for gradients that are not those of the tensors
        that the segment has in their places `NOWHERE` and `UNREAD`."""
        slots = [x.id for x in tensors]
        of = forwards.get(cell.mirror_id) if cell.mirror_id is not None else None
        count = len(tensors_of(cell.inputs))
        if of is None:
            self._forward[use.id] = slots, _gradients(tensors)
            for gradient in self._forward[use.id][1][:count]:
                key = cell.id, gradient
                (self._again.add(gradient) if key in self._once else self._once.add(key))
            for slot in slots[count:]:
                self._returned.pop(slot, None)
                if slot in slots[:count]:
                    self._returned[slot] = use.id
            return slots
        if use.mirror_id not in self._forward:
            # The code names tensors of a use that there is not, or that has not been run here.
            return [NOWHERE] * count + slots[count:]
        names, mirrored = self._forward[use.mirror_id]
        if id(cell) not in self._bodies:
            own = [x.id for x in (*tensors_of(cell.inputs), *tensors_of(cell.outputs))]
            both = (*tensors_of(of.segment.inputs), *tensors_of(of.segment.outputs))
            self._bodies[id(cell)] = own, _places(_gradients(both))
        own, there = self._bodies[id(cell)]
        here = _places(mirrored)
        for number, (slot, recorded) in enumerate(zip(slots, own, strict=True)):
            place = there.get(recorded, -1)
            detached = number < count and place >= 0 and names[place] in self._returned
            if detached and self._returned[names[place]] != use.mirror_id:
                slots[number] = NOWHERE
            elif here.get(slot, -1) == place:
                continue
            elif number < count:
                slots[number] = NOWHERE
            elif place < 0 or mirrored[place] not in self._again:
                # (A forward use that reads what another one has read is itself what is wrong.)
                slots[number] = UNREAD
        return slots


def _gradients(tensors: Sequence[Tensor]) -> _Gradients:
    gradients = (x.grad() for x in tensors)
    return [-1 if g is None else g.id for g in gradients]


def _places(gradients: _Gradients) -> dict[int, int]:
    """gradient -> where the tensor stands whose gradient it is.  (Where several name one gradient,
    the runtime starts from the last.)"""
    return {g: place for place, g in enumerate(gradients) if g >= 0}


def rebound(calls: Sequence[Call], seeds: set[int]) -> tuple[Call, ...]:
    """The calls, with a slot of its own for what is written under the name of a loss's incoming
    gradient: a backward segment may give again what it was given, and an adapter's backward half
    gives the gradient of a partial loss.  Who reads the name after that reads the last of it.

    Example: with the seed 7, a call that writes slot 7 writes a new slot, which a later call reads
    in its place.
    """
    if seeds.isdisjoint(slot for call in calls for slot in call.outputs):
        return tuple(calls)
    free = 1 + max(*seeds, *(slot for call in calls for slot in (*call.inputs, *call.outputs)))
    own: dict[int, int] = {}
    calls_: list[Call] = []
    for call in calls:
        inputs = tuple(own.get(slot, slot) for slot in call.inputs)
        for slot in call.outputs:
            if slot in seeds:
                own.setdefault(slot, free + len(own))
        outputs = tuple(own.get(slot, slot) for slot in call.outputs)
        calls_.append(replace(call, inputs=inputs, outputs=outputs))
    return tuple(calls_)
