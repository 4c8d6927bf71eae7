"""Rows of a table by ids, where a row may have no gradient (``padding_idx``)."""

from __future__ import annotations

from shardproof.frontends.nnscaler.calls import Arguments, Composed, Refused, operand, unless
from shardproof.frontends.nnscaler.chain import Chain
from shardproof.frontends.nnscaler.lowerings import Lowered, whole


def embedding(arguments: Arguments) -> Composed | Lowered:
    """``torch.nn.functional.embedding``; options that change rows are refused.

    Example: ids [2] in a table [8, 3] give [2, 3]; ``max_norm=1.0`` is refused.
    """
    unless(arguments, "max_norm", None)
    unless(arguments, "norm_type", 2, 2.0)
    unless(arguments, "scale_grad_by_freq", False)
    return _rows(arguments)


def part(arguments: Arguments) -> Composed | Lowered:
    """nnScaler's ``embedding``, of a table whose row 0 is id ``start``: ids from there to ``stop``
    (4 to 8, for example), zeros for others.  Its ``padding_idx`` is a row of *this* part of the
    table, since that is what it hands to PyTorch (``runtime/function/function.py``): with the
    padding row 0, each part of a table has a row that is not trained."""
    return _rows(arguments)


def _rows(arguments: Arguments) -> Composed | Lowered:
    ids, table = operand(arguments, "input"), operand(arguments, "weight")
    places = {k: whole(arguments, k) for k in ("start", "stop") if arguments.get(k) is not None}
    if arguments.get("padding_idx") is None:
        return "embedding", {"input": ids, "weight": table, **places}
    rows, padding = table.shape[0], whole(arguments, "padding_idx")
    padding = padding + rows if padding < 0 else padding
    if rows < 2 or not 0 <= padding < rows:
        raise Refused(f"padding_idx {padding} of {rows} rows")
    chain = Chain(ids, table)
    parts = [
        chain("slice", 1, dim=0, start=start, size=size)
        for start, size in ((0, padding), (padding, 1), (padding + 1, rows - padding - 1))
        if size
    ]
    still = 1 if padding else 0
    parts[still] = chain("detach", parts[still])
    trained = chain("concat", *parts, dim=0) if len(parts) > 1 else parts[0]
    chain("embedding", 0, trained, **places)
    return chain.done()
