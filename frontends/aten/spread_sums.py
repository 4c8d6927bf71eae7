"""Sums of which one term is what an id of each row spreads: gradients of picked entries."""

from __future__ import annotations

from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Operand, Real


def note_sum(lo: Lowering, x: Operand, y: Operand, made: Lowered) -> None:
    """Keeps of a sum, one term of which is what an id of each row spreads, that it is: the gradient
    of picked log-probabilities and of all of them, which reaches the derivative of log-softmax.

    Example: the gradient of ``lp.gather(-1, ids)`` and that of ``lp.mean(-1)``, added up.
    """
    for term, other in ((x, y), (y, x)):
        if not (isinstance(term, Real) and isinstance(made, Real) and term.number in lo.spread):
            continue
        if isinstance(other, (Real, Const)) and other.shape == term.shape:
            ids, each, beside = lo.spread[term.number]
            rest = other if beside is None else lo.add(beside, other)
            lo.spread[made.number] = (ids, each, rest)
            return
