"""Sums of many addends: blocks of sums are sums of blocks, each of the node that has it."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import Combine, Input, Operand, Restrict
from shardproof.engine.lineage.lineage import ABSOLUTE
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.chains import in_blocks

WHOLE = ((0, 1, 32, 0),)


def sum_of_blocks(nodes: NodeTable) -> tuple[int, int]:
    """Positions [0, 32) and [32, 64) of an axis without an end, added up; and that axis."""
    endless = nodes.define(Input("counts"), (ABSOLUTE,))
    blocks = [
        nodes.define(Restrict(endless, (Block(0, start, 32, ABSOLUTE),)), (32,))
        for start in (0, 32)
    ]
    operands = tuple(Operand(block, WHOLE, ()) for block in blocks)
    return nodes.define(Combine((Fraction(1),) * 2, operands, (0,)), (32,)), endless


def test_a_block_of_a_block_is_one_of_what_that_is_a_block_of() -> None:
    nodes = NodeTable()
    total, endless = sum_of_blocks(nodes)
    apart = in_blocks(nodes, Restrict(total, (Block(0, 2, 3, 32),)))
    assert isinstance(apart, Combine)
    assert [nodes[o.node].definition for o in apart.operands] == [
        Restrict(endless, (Block(0, 2, 3, ABSOLUTE),)),
        Restrict(endless, (Block(0, 34, 3, ABSOLUTE),)),
    ]


def test_every_so_many_positions_are_no_block_of_it() -> None:
    nodes = NodeTable()
    total, _ = sum_of_blocks(nodes)
    apart = in_blocks(nodes, Restrict(total, (Block(0, 1, 2, 4),)))
    assert isinstance(apart, Combine)
    own = [nodes[o.node].definition for o in apart.operands]
    halves = [o.node for o in nodes[total].definition.reads()]
    assert own == [Restrict(half, (Block(0, 1, 2, 4),)) for half in halves]
