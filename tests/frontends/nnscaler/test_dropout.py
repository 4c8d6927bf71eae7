"""Dropout: masks that both sides share, beside PyTorch and the runtime's rules; wrong twins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from shardproof.engine.errors import InvalidInput
from shardproof.engine.interpreters import FloatInterpreter, exact
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.plan.ir import Op
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.convert import convert
from shardproof.frontends.nnscaler.operators import Declared, declared
from shardproof.frontends.nnscaler.records import FullTensor, Part, Tensor
from tests.frontends.pickles import Obj
from tests.frontends.plan_generator import Plans, plans
from tests.frontends.plan_judge import judged, paired
from tests.frontends.plan_models import DROPOUT
from tests.frontends.plan_records import viewed

REAL = torch.float64
#: Generated plans: what drops is cut over two ranks; over microbatches too; and over replicas.
SEEDS = (29, 40, 49)


# -- functions that drop, beside PyTorch
# -------------------------------------------------------------


def part(number: int, *shape: int) -> Tensor:
    full = FullTensor(number, f"x{number}", shape, "float32", False, False, False, True)
    box = tuple((0, n) for n in shape)
    held = Part(full.name, shape, "float32", False, False, box, (0, 1), full)
    return Tensor(number, held, None)


def called(signature: str, shapes: list[tuple[int, ...]], **kwargs: object) -> Declared:
    inputs = tuple(part(i, *shape) for i, shape in enumerate(shapes))
    op = cells.ForwardOp(1, "", signature, inputs, (), kwargs, (), "", None)  # type: ignore[arg-type]
    return declared(op)


def run(found: Declared, values: list[torch.Tensor]) -> torch.Tensor:
    """What the declared operators make of operands and masks."""
    r = FloatInterpreter()
    numbered = [exact(x.numpy()) for x in values]
    for step in found.steps:
        operands = [numbered[i] for i in step.operands]
        (result,) = apply_forward(r, step.name, operands, step.attrs)
        assert result.data.shape[-len(step.shape) :] == step.shape
        numbered.append(result)
    if not found.steps:
        (result,) = apply_forward(r, found.name, numbered, found.attrs)
        numbered.append(result)
    return torch.from_numpy(np.asarray(numbered[-1].data, dtype=np.float64))


def kept(x: torch.Tensor, masks: list[torch.Tensor], p: float) -> torch.Tensor:
    return x * masks[0].reshape(x.shape) / (1 - p) if masks else x


def attention(
    x: torch.Tensor,
    qkv: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor,
    masks: list[torch.Tensor],
    p: float,
    causal: bool,
) -> torch.Tensor:
    """Line by line as nnScaler's example has it, with four heads."""
    length, n, _ = x.shape
    heads = 4
    size = qkv.shape[0] // heads // 3
    parts = functional.linear(x, qkv, bias).view(length, n, heads * size, 3).chunk(3, dim=-1)
    q, k, v = (y.contiguous().view(length, n * heads, size).transpose(0, 1) for y in parts)
    scores = 0.5 * torch.bmm(q, k.transpose(1, 2))
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).tril() < 0.5, -10000.0)
    found = torch.bmm(kept(torch.softmax(scores, -1), masks, p), v).transpose(0, 1).contiguous()
    return functional.linear(found.view(length, n, heads * size), out)


@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_the_examples(p: float, causal: bool) -> None:
    shapes = [(3, 2, 5), (24, 5), (24,), (6, 8)]
    found = called(
        "examples.nlp.blocks.attention.self_attention", shapes, h=4, scale=0.5, dropout_p=p,
        mask=causal,
    )  # fmt: skip
    assert found.word
    assert [x.shape for x in found.drawn] == [(2, 4, 3, 3)] * bool(p)
    draw = torch.Generator().manual_seed(1)
    values = [torch.randn(s, generator=draw, dtype=REAL) for s in shapes]
    masks = [torch.randint(0, 2, x.shape, generator=draw).double() for x in found.drawn]
    expected = attention(*values, masks, p, causal)
    torch.testing.assert_close(run(found, [*values, *masks]).reshape(expected.shape), expected)


@pytest.mark.parametrize("p", [0.0, 0.25])
def test_the_mlp_of_the_examples(p: float) -> None:
    shapes = [(3, 2, 5), (7, 5), (7,), (4, 7)]
    found = called("examples.nlp.blocks.mlp.feedforward", shapes, dropout=p, is_training=True)
    draw = torch.Generator().manual_seed(2)
    x, first, bias, second = (torch.randn(s, generator=draw, dtype=REAL) for s in shapes)
    masks = [torch.randint(0, 2, d.shape, generator=draw).double() for d in found.drawn]
    h = kept(functional.gelu(functional.linear(x, first, bias)), masks, p)
    expected = functional.linear(h, second)
    got = run(found, [x, first, bias, second, *masks])
    torch.testing.assert_close(got.reshape(expected.shape), expected)


def test_the_scale_is_computed() -> None:
    found = called(DROPOUT, [(4, 3)], p=0.2, training="self.training")
    x, mask = torch.randn(4, 3, dtype=REAL), torch.ones(4, 3, dtype=REAL)
    torch.testing.assert_close(run(found, [x, mask]).reshape(4, 3), x / 0.8)
    operands = [exact(y.numpy()) for y in (x, mask, x)]
    attrs = {**found.attrs, "wrt": (0,), "arity": 2}
    (gradient,) = apply_backward(
        FloatInterpreter(), "dropout", operands[:2], operands[2:], attrs, (0,)
    )
    np.testing.assert_allclose(gradient.data.reshape(4, 3), x.numpy() / 0.8)


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"p": 1.0, "training": True}, "dropout with p 1.0"),
        ({"p": 0.5, "training": 7}, "dropout with training 7"),
    ],
)
def test_what_is_not_understood_is_named(kwargs: dict[str, object], named: str) -> None:
    assert called(DROPOUT, [(4, 3)], **kwargs).name == named


# -- plans -----------------------------------------------------------------------------------------


def dropouts(made: Plans) -> list[list[Obj]]:
    """The dropouts that drop, each with its records on the devices."""
    found = [x for x in made.operators if x[0].state["signature"] == DROPOUT]
    return [x for x in found if x[0].state["_kwargs"]["p"]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_that_drops_is_proved(seed: int, tmp_path: Path) -> None:
    made = plans(seed)
    assert dropouts(made)
    judgement = judged(made, seed, tmp_path)
    assert (judgement.different, judgement.verdict) == ("", "proved"), judgement
    one, many = viewed(made.single, tmp_path, "single"), viewed(made.parallel, tmp_path, "parallel")
    plan = paired(one, many)
    assert any(x.about == "random operators" for x in plan.assumed)


def _other_rate(op: Obj) -> None:
    op.state["_kwargs"] = {**op.state["_kwargs"], "p": 0.75}


def _left_out(op: Obj) -> None:
    op.state["signature"], op.state["_kwargs"] = "nnscaler.runtime.function.identity", {}


def _another(op: Obj) -> None:
    op.state["signature"], op.state["_kwargs"] = "torch.sigmoid", {}


@pytest.mark.parametrize("wrong", [_other_rate, _left_out, _another])
@pytest.mark.parametrize("everywhere", [False, True])
def test_its_wrong_twins_are_refuted(
    wrong: Callable[[Obj], None], everywhere: bool, tmp_path: Path
) -> None:
    made = plans(29)
    for op in dropouts(made)[0] if everywhere else dropouts(made)[0][:1]:
        wrong(op)
    judgement = judged(made, 29, tmp_path)
    assert judgement.different
    assert judgement.verdict == "refuted", judgement


def test_masks_exchanged_between_operators_are_refuted(tmp_path: Path) -> None:
    made = plans(29)
    one, two = (x[0].state["_outputs"][0].state["_full_tensor"] for x in dropouts(made))
    assert one is not two
    one.state["name"], two.state["name"] = two.state["name"], one.state["name"]
    judgement = judged(made, 29, tmp_path)
    assert judgement.different
    assert judgement.verdict == "refuted", judgement


def test_a_mask_that_only_the_plan_draws_is_another_model(tmp_path: Path) -> None:
    made = plans(29)
    name = dropouts(made)[0][0].state["_outputs"][0].state["_full_tensor"]
    name.state["name"] = "elsewhere"
    with pytest.raises(InvalidInput, match="mask of elsewhere is drawn by no operator"):
        paired(viewed(made.single, tmp_path, "single"), viewed(made.parallel, tmp_path, "parallel"))


def test_two_results_of_one_name_are_told_apart(tmp_path: Path) -> None:
    made = plans(29)
    one, two = (x[0].state["_outputs"][0].state["_full_tensor"] for x in dropouts(made))
    two.state["name"] = one.state["name"]
    with pytest.raises(UnreadablePlan, match="with names of their own, found two called"):
        convert(viewed(made.parallel, tmp_path), single=False)


def test_each_microbatch_loads_its_own_mask(tmp_path: Path) -> None:
    made = plans(40)
    (program, *_) = convert(viewed(made.parallel, tmp_path), single=False).programs
    loads = [n for n, body in enumerate(program.bodies) if body.name == "masks"]
    assert [call.microbatch for call in program.calls if call.body in loads] == [0, 1]
    ops: list[Op] = [op for body in program.bodies for op in body.ops if op.name == "dropout"]
    assert ops
