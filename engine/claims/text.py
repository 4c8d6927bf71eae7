"""Claims as text that a person can read and a test can compare.

Example (a linear operator whose inner dimension two ranks divide)::

    op linear over () of 1 with tp=2
      in  [4, 2] = n1[a0[4], a1[<2*tp> +2 of 4]]
      in  [3, 2] = n2[a0[3], a1[<2*tp> +2 of 4]]
      out [4, 3] = n3[a0[4], a1[3]] part #0[<2*tp> +2 of 4]
      #0: sum over a in n3
      n1: [4, 4] = input "x"
      n2: [3, 4] = input "w"
      n3: [4, 3] = einsum(n1[b:4, a:4], n2[c:3, a:4] -> b c)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan_files.text import attribute_text


def claim_text(nodes: NodeTable, claim: Claim) -> str:
    """A claim with the partial sums and the definitions that its lineages name, one in a line.

    Example: an all-reduce is ``all_reduce over (tp=2) of 1 with tp=2 {op="sum"}``, then a line for
    each input (``in  [4, 8] = n3[a0[4], a1[8]] part #0[<8*tp> +8 of 16]``), output, sum and
    definition.
    """
    return "\n".join((*_lines(claim), *_definitions(nodes, claim))) + "\n"


def _lines(claim: Claim) -> Iterator[str]:
    name = claim.kind if claim.kind == claim.name else f"{claim.kind} {claim.name}"
    over = " ".join(f"{axis}={extent}" for axis, extent in claim.over)
    known = " ".join(f"{axis}={extent}" for axis, extent in sorted(claim.extents.items()))
    attrs = ", ".join(f"{k}={attribute_text(v)}" for k, v in sorted(claim.attrs.items()))
    yield (
        f"{'backward of ' * claim.backward}{name.rstrip()} over ({over}) of {claim.members}"
        f"{f' with {known}' if known else ''}{f' {{{attrs}}}' if attrs else ''}"
    )
    yield from (f"  in  {x if x is not None else 'nothing'}" for x in claim.inputs)
    yield from (f"  out {x}" for x in claim.outputs)


def _definitions(nodes: NodeTable, claim: Claim) -> Iterator[str]:
    lineages = [x for x in (*claim.inputs, *claim.outputs) if x is not None]
    tokens = _reductions(nodes, lineages)
    yield from (f"  #{number}: {nodes.reductions[number]}" for number in sorted(tokens))
    todo = [t.node for x in lineages for t in x.addends] + [
        nodes.reductions[n].node for n in tokens
    ]
    named = set(todo)
    # One definition under what the claim names: what lies below is another claim's.
    named |= {child for number in todo for child in nodes[number].definition.children()}
    yield from (f"  n{number}: {nodes[number]}" for number in sorted(named))


def _reductions(nodes: NodeTable, lineages: Iterable[Lineage]) -> set[int]:
    numbers: set[int] = set()
    todo = [partial.reduction for x in lineages for t in x.addends for partial in t.partials]
    while todo:
        number = todo.pop()
        numbers.add(number)
        reduction = nodes.reductions[number]
        if reduction.kind == "via" and reduction.inner not in numbers:
            todo.append(reduction.inner)
    return numbers
