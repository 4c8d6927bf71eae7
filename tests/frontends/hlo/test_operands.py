"""Every operator has the operands that it has: none more is left out, none fewer made up."""

from __future__ import annotations

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.module import Instruction, Type
from shardproof.frontends.hlo.opcodes import COLLECTIVES, ELEMENTWISE, KNOWN, typed

X = Type((4, 3), "float32")
#: Operators of any number of operands.
ANY = {"tuple", "call", "fusion", "custom-call", "concatenate", "conditional"}
#: Those whose starts are counted where their dimensions are known.
STARTS = {"dynamic-slice", "dynamic-update-slice"}
COUNTS = {
    **dict.fromkeys(KNOWN, 1),
    **dict.fromkeys(("iota", "partition-id", "replica-id", "constant", "parameter"), 0),
    **dict.fromkeys(("select", "clamp", "scatter", "select-and-scatter"), 3),
    **dict.fromkeys(("reduce", "reduce-window", "pad", "compare", "dot", "gather"), 2),
    **dict.fromkeys(("convolution", "complex", "add", "subtract", "multiply", "divide"), 2),
    **dict.fromkeys(("maximum", "minimum", "power", "remainder", "atan2", "and", "or", "xor"), 2),
    **dict.fromkeys(("shift-left", "shift-right-logical", "shift-right-arithmetic"), 2),
}


@pytest.mark.parametrize("opcode", sorted(set(KNOWN) - ANY - STARTS))
def test_other_numbers_of_operands_are_refused(opcode: str) -> None:
    """Source: XLA's operation semantics, and StableHLO's specification."""
    count = COUNTS[opcode]
    typed(Instruction("y", opcode, X, ("x",) * count))
    for other in {count - 1, count + 1} - {-1}:
        with pytest.raises(InvalidInput, match=f"of {other} operands, expected {count}"):
            typed(Instruction("y", opcode, X, ("x",) * other))


@pytest.mark.parametrize("opcode", ["reduce", "sort", "scatter", *sorted(COLLECTIVES)])
def test_several_results_take_operands_for_each(opcode: str) -> None:
    each, more = {"reduce": (2, 0), "scatter": (2, 1)}.get(opcode, (1, 0))
    pair = Type(parts=(X, X))
    typed(Instruction("y", opcode, pair, ("x",) * (2 * each + more)))
    with pytest.raises(InvalidInput, match="operands, expected"):
        typed(Instruction("y", opcode, pair, ("x",) * (each + more)))


def test_every_operator_of_one_operand_is_one_of_its_kind() -> None:
    """Elementwise operators that are not named above are functions of one number."""
    assert {o for o in ELEMENTWISE if COUNTS[o] == 1} >= {"negate", "exponential", "convert", "erf"}


def test_a_permutation_into_an_operand_is_refused_by_name() -> None:
    body = (
        "  x = f32[2,4] parameter(0)\n  z = s32[] constant(0)\n  y = f32[2,4] negate(x)\n"
        "  ROOT r = f32[2,4] collective-permute(x, y, z, z), channel_id=1, "
        "source_target_pairs={{0,1},{1,0}}"
    )
    graph = inline.graph(text.parse(f"HloModule m, num_partitions=2\nENTRY e {{\n{body}\n}}\n"))
    (refused,) = [n.attrs["refused"] for n in graph.nodes if "refused" in n.attrs]
    assert "writes into an operand" in refused
