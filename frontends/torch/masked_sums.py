"""Sums over ranks that are read through a mask of labels: the mask stands before the sum, too.

``loss_parallel`` of DTensors looks up the log-probability of class 0 for a label that is ignored,
adds up what ranks have, and takes 0 in the place of such an entry.  Where every rank of the group
reads the sum through one mask, ``labels != ignored``, that is computed alike on all of them, such
an entry reaches nothing; so each rank may take 0 there before it adds up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from shardproof.frontends.torch.alike_rows import computed
from shardproof.frontends.torch.memory import Functional, Op, Value
from shardproof.frontends.torch.trace import Items, Ranks, Tensor, tensors_of

#: A mask of labels, and a choice by it of entries or 0.
_MASK: Final = "aten.ne.Scalar"
_CHOICE: Final = "aten.where.ScalarOther"
_SUM: Final = "comm.all_reduce"
_PRODUCT: Final = "aten.mul.Tensor"
_CASTS: Final = frozenset({"aten.to.dtype", "aten._to_copy.default"})
_PUT: Final = "aten.index_put_.default"
#: Operators whose result has the entries of their operand, in their order, but for the sign.
_SAME_ENTRIES: Final = frozenset({"aten.neg.default", "move.reshape"})
#: A collective of a group, by its number among all of them.
_Issued = tuple[tuple[int, ...], int]


class Masked(NamedTuple):
    """An operator, at a place of a step, of whose operand ``value`` only those entries are read at
    which ``mask`` is true; ``form`` is the mask's hash.

    Example: the sum of the log-probabilities of labels, read by ``torch.where(labels != -100,
    ...)``.
    """

    place: int
    value: int
    mask: Op
    form: bytes = b""


def read(steps: Mapping[int, Functional]) -> dict[int, Functional]:
    """The steps of ranks, with masks before such sums; a step without any is itself.

    Example: of a step with `loss_parallel` and labels that may be ignored, the entries of labels
    are 0 where ``labels != -100`` is false, on each rank before they are added up.
    """
    every = {rank: _masked(rank, step) for rank, step in steps.items()}
    made = dict(steps)
    for rank, own in every.items():
        alike = [m for issued, m in own.items() if _by_all(issued, m, every)]
        if alike:
            made[rank] = _before(steps[rank], [*alike, *_gradients(steps[rank])])
    return made


def _by_all(issued: _Issued, own: Masked, every: Mapping[int, Mapping[_Issued, Masked]]) -> bool:
    """Whether all ranks of the group read the sum through the same mask."""
    others = [every[rank].get(issued) if rank in every else None for rank in issued[0]]
    return all(other is not None and other.form == own.form for other in others)


def _masked(rank: int, step: Functional) -> dict[_Issued, Masked]:
    """The sums over ranks that are read through a mask, by the group and the collective."""
    issued: dict[tuple[int, ...], int] = {}
    sums: dict[_Issued, Masked] = {}
    readers, forms = _readers(step), dict[int, bytes]()
    makers = {value: op for op in step.ops for value in op.outputs}
    for place, op in enumerate(step.ops):
        group = next((a.ranks for a in op.args if isinstance(a, Ranks)), ())
        number = issued[group] = issued.get(group, -1) + bool(op.name.startswith("comm."))
        if op.name != _SUM or "sum" not in op.args or len(op.outputs) != 1:
            continue
        if _is_masked(op, makers):
            continue
        masks = {m.outputs[0]: m for m in _masks_of(op.outputs[0], readers, makers, step)}
        if not masks:
            continue
        forms = forms or computed(rank, step)
        if len({forms[value] for value in masks}) == 1:
            value, mask = next(iter(masks.items()))
            (summand,) = tensors_of(*op.args)
            sums[group, number] = Masked(place, summand, mask, forms[value])
    return sums


def _readers(step: Functional) -> dict[int, list[Op]]:
    readers: dict[int, list[Op]] = {}
    for op in step.ops:
        for value in tensors_of(*op.args, *op.kwargs.values()):
            readers.setdefault(value, []).append(op)
    return readers


def _masks_of(
    value: int, readers: Mapping[int, Sequence[Op]], makers: Mapping[int, Op], step: Functional
) -> Iterator[Op]:
    """The masks through which a value is read; nothing where it is read otherwise, too."""
    left, masks = [value], list[Op]()
    compared = {c.value for c in step.compared}
    while left:
        number = left.pop()
        own = readers.get(number, [])
        if number in compared or not own:
            return
        for op in own:
            if op.name in _SAME_ENTRIES:
                left += op.outputs
                continue
            mask = _choice(op, number, makers, step)
            if mask is None:
                return
            masks.append(mask)
    yield from masks


def _choice(op: Op, number: int, makers: Mapping[int, Op], step: Functional) -> Op | None:
    """The mask by which an operator takes 0 in the place of entries of a value; None: it is another
    operator."""
    given = op.args[:2] if op.name == _PRODUCT else op.args[:1]
    if op.name == _PRODUCT and len(op.args) != 2:
        return None
    if op.name != _PRODUCT and not (op.args[1:2] == (Tensor(number),) and _else_zero(op, makers)):
        return None
    for flags in given:
        mask = _mask_of(flags, makers) if flags != Tensor(number) else None
        if mask is not None and _shape(mask, step) == step.values[number].shape:
            return mask
    return None


def _else_zero(op: Op, makers: Mapping[int, Op]) -> bool:
    """Whether an operator is a choice between entries and 0."""
    if op.name == _CHOICE:
        return op.args[2] == 0
    other = op.args[2] if op.name == "aten.where.self" else None
    made = makers.get(other.number) if isinstance(other, Tensor) else None
    return made is not None and made.name == "aten.scalar_tensor.default" and made.args[0] == 0


def _mask_of(x: object, makers: Mapping[int, Op]) -> Op | None:
    """The comparison that a tensor is, as truth values or as numbers; None: another tensor."""
    op = makers.get(x.number) if isinstance(x, Tensor) else None
    if op is not None and op.name in _CASTS:
        (source, *_) = op.args
        op = makers.get(source.number) if isinstance(source, Tensor) else None
    return op if op is not None and op.name == _MASK else None


def _shape(op: Op, step: Functional) -> tuple[int, ...]:
    return step.values[op.outputs[0]].shape


def _is_masked(op: Op, makers: Mapping[int, Op]) -> bool:
    return any(makers[n].name == _CHOICE for n in tensors_of(*op.args) if n in makers)


def _gradients(step: Functional) -> Iterator[Masked]:
    """What is written at the labels of rows, in zeros of which nothing is read but their product
    with a factor of each row which is 0 where a mask is false: the gradient that goes with such a
    sum."""
    readers, compared = _readers(step), {c.value for c in step.compared}
    makers = {value: op for op in step.ops for value in op.outputs}
    for place, op in enumerate(step.ops):
        put = op.name == _PUT and len(op.args) == 3 and not _is_masked(op, makers)
        if not put or op.outputs[0] in compared or not _by_rows(op, makers, step):
            continue
        (values,) = (a for a in op.args[2:] if isinstance(a, Tensor))
        own = readers.get(op.outputs[0], [])
        added = [x.outputs[0] for x in own]
        masks = [mask for x in own if (mask := _factor(x, readers, makers)) is not None]
        alike = len(masks) == len(own) > 0 and len({m.args for m in masks}) == 1
        rows = step.values[op.outputs[0]].shape[0]
        of_rows = {_shape(mask, step) for mask in masks} == {(rows, 1)}
        if alike and of_rows and compared.isdisjoint(added):
            yield Masked(place, values.number, masks[0])


def _by_rows(op: Op, makers: Mapping[int, Op], step: Functional) -> bool:
    """Whether an operator writes one number in each row of zeros."""
    base, indices, values = op.args[:3]
    if not isinstance(base, Tensor) or not isinstance(indices, Items) or len(indices.items) != 2:
        return False
    one_each = {step.values[n].shape for n in tensors_of(indices, values)}
    zeros = makers.get(base.number)
    rows, shape = indices.items[0], step.values[base.number].shape
    data = step.constants.get(rows.number) if isinstance(rows, Tensor) else None
    if zeros is None or zeros.name != "aten.zeros_like.default" or data is None or len(shape) != 2:
        return False
    return one_each == {shape[:1]} and data == np.arange(shape[0]).tobytes()


def _factor(op: Op, readers: Mapping[int, Sequence[Op]], makers: Mapping[int, Op]) -> Op | None:
    """The mask of the factor by which what is added to a value is multiplied, in its only reader;
    None: it is read otherwise."""
    plain = op.name == "aten.add.Tensor" and len(op.args) == 2 and not op.kwargs
    after = readers.get(op.outputs[0], []) if plain else []
    if len(after) != 1 or after[0].name != "aten.mul.Tensor":
        return None
    factors = [n for n in tensors_of(*after[0].args) if n != op.outputs[0]]
    choice = makers.get(factors[0]) if len(factors) == 1 else None
    return _mask_of(choice.args[0], makers) if choice and _else_zero(choice, makers) else None


def _before(step: Functional, sums: Sequence[Masked]) -> Functional:
    """The step with the masks before the sums, where the labels are there already."""
    at = {masked.place: masked for masked in sums}
    values, ops, there = list(step.values), list[Op](), set[int]()

    def value(like: Value) -> int:
        values.append(like)
        return len(values) - 1

    for place, op in enumerate(step.ops):
        masked = at.get(place)
        if masked is not None and there.issuperset(tensors_of(*masked.mask.args)):
            summand, mask = masked.value, masked.mask
            shape = step.values[summand].shape
            flags = value(step.values[mask.outputs[0]])
            turned, kept = value(Value(shape, "bool")), value(step.values[summand])
            given = (Tensor(flags), Items(shape))
            ops += [
                mask._replace(outputs=(flags,), event=op.event),
                Op("move.reshape", given, {}, (turned,), op.event),
                Op(_CHOICE, (Tensor(turned), Tensor(summand), 0), {}, (kept,), op.event),
            ]
            args = tuple(Tensor(kept) if a == Tensor(summand) else a for a in op.args)
            op = op._replace(args=args)
        ops.append(op)
        there.update(op.outputs)
    return replace(step, values=values, ops=ops)
