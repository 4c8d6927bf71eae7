"""Lineages, claims and obligations as text, held to a golden file."""

from __future__ import annotations

from pathlib import Path

from shardproof.engine.claims.text import claim_text
from shardproof.engine.obligations.obligation import build
from shardproof.engine.obligations.text import obligation_text
from shardproof.engine.plan_files.text_parser import parse_plan
from shardproof.partition.stages.partition import Partition, partition

GOLDEN = Path(__file__).parent / "golden"
PLAN = (GOLDEN / "row_parallel.plan.txt").read_text(encoding="utf-8")


def text(result: Partition) -> str:
    """The lineages of the parallel side, then what its operators claim."""
    side = result.parallel
    found = [f"tensor {n}: {x}\n" for n, x in enumerate(side.lineages)]
    for number, instance in enumerate(side.unrolled.instances):
        claim = side.claim(instance)
        if instance.kind in ("shard", "load") or claim is None:
            continue
        obligation = obligation_text(build(result.nodes, claim))
        found.append(f"\nrow {number}: {claim_text(result.nodes, claim)}{obligation}")
    return "".join(found)


def test_a_row_parallel_layer_reads_as_it_should() -> None:
    expected = (GOLDEN / "row_parallel.txt").read_text(encoding="utf-8")
    assert text(partition(parse_plan(PLAN))) == expected


def test_a_maximum_in_place_of_the_sum_reads_otherwise() -> None:
    wrong = text(partition(parse_plan(PLAN.replace('op="sum"', 'op="max"'))))
    assert "  n8: [2, 3] = max of n7 over tp=2\n" in wrong
    assert "tensor 4: [2, 3] = n8[a0[2], a1[3]]\n" in wrong
