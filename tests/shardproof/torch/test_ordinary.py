"""Ordinary programs (`benchmarks.torch.ordinary`): right ones proved, each beside a wrong twin.

A few of them; `python -m benchmarks.torch.ordinary.run` has all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import shardproof.torch as sp
from benchmarks.torch.ordinary import byhand, data, experts, sequence, sharded, stacks, tensor
from benchmarks.torch.ordinary.cases import CASES
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, reduce_from


def verify(folder: Path, case: Case, step: Step, **options: Any) -> sp.Result:
    return sp.verify(
        case.single,
        step,
        world_size=case.world_size,
        batch=case.batch,
        executor="local",
        cache=False,
        out=folder / "run",
        **options,
    )


#: Those that CI runs, and the mistake that stands beside each ("": none is understood).
SAMPLE = {
    # Clipping by an exact norm of shards and replicas.
    tensor.CLIPPED.name: (tensor.CLIPPED, "replicated gradient counted twice"),
    # Standard deviations, exponentials, clamps.
    sharded.ADVANTAGE.name: (sharded.ADVANTAGE, "variance by n"),
    # The sum of exponentials under a logarithm, einsum, a loss beside the loss.
    experts.BALANCED.name: (experts.BALANCED, "auxiliary gradient summed over ranks"),
    # Entries by ids.
    sharded.PREFERENCES.name: (sharded.PREFERENCES, "loss times ranks"),
    sequence.SEQUENCE.name: (sequence.SEQUENCE, "norm's gradient of own positions"),
    # Ids that other ranks have, written entries, a maximum and a sum over ranks.
    tensor.VOCABULARY.name: (tensor.VOCABULARY, "offset of the next rank"),
    # Positions against heads; all-to-all of lists.
    sequence.ULYSSES.name: (sequence.ULYSSES, "gradients not averaged"),
    # Labels that do not count, a row that gets no gradient.
    data.TAGGED.name: (data.TAGGED, "positions instead of labels"),
    # One row beside several: a part of the sum over all of them.
    data.UNEVEN.name: (data.UNEVEN, "mean of means"),
    # A claim whose result is made of a sum that it completes.
    sharded.TIED.name: (sharded.TIED, "tied gradients not summed"),
    # A parameter that is computed of two pieces of a full one.
    tensor.SWIGLU.name: (tensor.SWIGLU, "fused weight cut as one run"),
    # Convolutions and norms over groups.
    data.IMAGES.name: (data.IMAGES, "no DDP"),
    data.BUCKETS.name: (data.BUCKETS, "copied before the wait"),
    # Shards that a rank pads, so that ranks divide flat messages in unlike ways.
    stacks.ODD.name: (stacks.ODD, "sum in place of mean"),
    # Shards that begin inside a parameter.
    data.ZERO1.name: (data.ZERO1, "shard of another rank"),
    byhand.FLAT.name: (byhand.FLAT, "gradient of the next shard"),
    # Entries of log-probabilities, their exponentials.
    sharded.LOSS_PARALLEL.name: (sharded.LOSS_PARALLEL, ""),
    # One less one less a mask.
    sequence.CONTEXT.name: (sequence.CONTEXT, "gradients not divided"),
    # Norms that are squared, added up and rooted again.
    stacks.CLIPPED.name: (stacks.CLIPPED, "norm of a rank's shards"),
    # A softmax of numbers that are all the same.
    data.DISTILLED.name: (data.DISTILLED, "sum over the batch"),
    # Places inside places.
    experts.RECOMMENDER.name: (experts.RECOMMENDER, "tables not divided"),
}


#: Those of them that are left to the slow tests.
SLOW = {
    c.name
    for c in (
        data.DISTILLED,
        sharded.ADVANTAGE,
        experts.BALANCED,
        sharded.PREFERENCES,
        data.BUCKETS,
        byhand.FLAT,
        sharded.LOSS_PARALLEL,
        sequence.CONTEXT,
        experts.RECOMMENDER,
        stacks.CLIPPED,
    )
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SAMPLE]
)
def test_right_ones_are_proved_and_wrong_ones_refuted(tmp_path: Path, name: str) -> None:
    case, mistake = SAMPLE[name]
    result = verify(tmp_path / "right", case, case.right, validate=True)
    assert result.verdict == "proved", sp.told(result)
    assert any("tensors agree with PyTorch" in a for a in result.assumptions)
    if not mistake:
        return
    wrong = verify(tmp_path / "wrong", case, case.wrong[mistake])
    assert wrong.verdict == "refuted", sp.told(wrong)
    assert "ordinary" in wrong.findings[0].source


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_right_one_is_refuted_and_no_wrong_one_proved(tmp_path: Path, case: Case) -> None:
    result = verify(tmp_path / "right", case, case.right, validate=True)
    assert result.verdict in ("proved", "inconclusive"), sp.told(result)
    assert "not what PyTorch computes" not in result.reason
    for number, step in enumerate(case.wrong.values()):
        assert verify(tmp_path / str(number), case, step).verdict != "proved"


def test_a_gradient_that_is_zero_but_for_rounding_refutes_nothing(tmp_path: Path) -> None:
    """What a batch norm centres has no gradient of its bias: one side has 1e-13 where the other has
    1e-15, which looks large beside the gradients of a small model."""
    result = verify(tmp_path / "right", data.NORMED, data.NORMED.right, validate=True)
    assert result.verdict in ("proved", "inconclusive"), sp.told(result)
    assert "not what PyTorch computes" not in result.reason
    wrong = data.NORMED.wrong["statistics without gradient"]
    assert verify(tmp_path / "wrong", data.NORMED, wrong).verdict == "refuted"


def _stated(shift: int) -> Step:
    """Fused gate and up, stated as two pieces of one parameter; the second ``shift`` rows off."""

    def step(job: sp.Job) -> None:
        size = 16 // job.world_size
        model = tensor.SwiGLU(size)
        first = job.rank * size
        job.start(
            model,
            parameters={
                "gate_up": [
                    sp.piece("gate_up", dim=0, start=first, size=size),
                    sp.piece("gate_up", dim=0, start=(16 + first + shift) % 32, size=size),
                ],
                "down": sp.piece("down", dim=1, start=first, size=size),
            },
        )
        x = job.batch["x"]
        part = F.linear(model.hidden(copy_to(model.norm(x))), model.down)
        loss = (x + reduce_from(part) - job.batch["y"]).square().mean()
        loss.backward()
        job.end(loss=loss)

    return step


@pytest.mark.slow  # a program like it is in `SAMPLE`
def test_pieces_of_one_parameter_are_held_apart(tmp_path: Path) -> None:
    result = verify(tmp_path / "right", tensor.SWIGLU, _stated(0), validate=True)
    assert result.verdict == "proved", sp.told(result)
    wrong = verify(tmp_path / "wrong", tensor.SWIGLU, _stated(4))
    assert wrong.verdict == "refuted", sp.told(wrong)


def _masked(entries: list[float]) -> Step:
    """Two of four columns, each times a constant of the program."""

    def step(job: sp.Job) -> None:
        model = torch.nn.Linear(8, 2, bias=False)
        own = sp.piece("weight", dim=0, start=2 * job.rank, size=2)
        job.start(model, parameters={"weight": own})
        loss = (model(job.batch["x"]) * torch.tensor(entries)).pow(2).sum() / 16
        loss.backward()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        job.end(loss=total)

    return step


def _masked_single(job: sp.Job) -> None:
    model = torch.nn.Linear(8, 4, bias=False)
    job.start(model)
    loss = (model(job.batch["x"]) * torch.tensor([1.0, 0.0, 1.0, 0.0])).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def test_a_table_that_repeats_itself_refutes_nothing_that_is_right(tmp_path: Path) -> None:
    """Both ranks read what stands at two places of the table: the first is taken for both."""
    batch = {"x": sp.tensor((4, 8))}
    right = Case("masked", _masked_single, _masked([1.0, 0.0]), {}, batch)
    result = verify(tmp_path / "right", right, right.right, validate=True)
    assert result.verdict in ("proved", "inconclusive"), sp.told(result)
    wrong = verify(tmp_path / "wrong", right, _masked([0.0, 1.0]))
    assert wrong.verdict == "refuted", sp.told(wrong)
