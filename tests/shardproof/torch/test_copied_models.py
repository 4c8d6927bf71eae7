"""Models that a step copies (`copy.deepcopy`), or that PyTorch copies: a teacher, an average."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from shardproof import torch as sp
from shardproof.frontends.torch import cloned

BATCH = {"x": sp.tensor((4, 6))}

Step = Callable[[sp.Job], None]


def verified(single: Step, ranks: Step, *, validate: bool = False) -> sp.Result:
    """What one device against two ranks gives."""
    return sp.verify(single, ranks, world_size=2, batch=BATCH, validate=validate)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))


def meet(model: nn.Module, divided: bool) -> None:
    """Gradients become their means over ranks, where there are any."""
    for p in model.parameters() if divided else ():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


def distilled(job: sp.Job, ranks: int, mistake: str = "") -> None:
    """A student against a copy of itself, which follows it by a moving average."""
    student = network()
    job.start(student)
    teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)
    x = job.batch["x"].chunk(ranks)[job.rank]
    aim = F.softmax((student if mistake == "teacher trains" else teacher)(x) / 2, -1)
    loss = -(aim * F.log_softmax(student(x), -1)).sum(-1).mean()
    loss.backward()
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
            assert new.grad is not None
            if ranks > 1 and mistake != "not reduced":
                dist.all_reduce(new.grad, op=dist.ReduceOp.AVG)
            old.mul_(0.9).add_(new - new.grad, alpha=0.1)
    job.end(loss=loss, outputs=dict(teacher.named_parameters()))


def averaged(job: sp.Job, ranks: int, mistake: str = "") -> None:
    """PyTorch's own average of weights, which copies the model."""
    model = nn.Linear(6, 4)
    decay = 0.99 if mistake == "another decay" else 0.9
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    job.start(model)
    average.update_parameters(model)
    loss = model(job.batch["x"].chunk(ranks)[job.rank]).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            if ranks > 1 and mistake != "not reduced":
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            p -= p.grad
    average.update_parameters(model)
    job.end(loss=loss, outputs=dict(average.module.named_parameters()))


Steps = Callable[[sp.Job, int, str], None]


@pytest.mark.parametrize(
    ("step", "mistake"),
    [
        (distilled, ""),
        (distilled, "teacher trains"),
        (averaged, ""),
        (averaged, "another decay"),
        (averaged, "not reduced"),
    ],
)
def test_a_copied_model_is_read_as_what_it_copies(step: Steps, mistake: str) -> None:
    result = verified(lambda job: step(job, 1, ""), lambda job: step(job, 2, mistake))
    assert result.verdict == ("refuted" if mistake else "proved"), result


def followed(when: str, divided: bool, mistake: str = "") -> Callable[[sp.Job], None]:
    """An average of weights that is copied before or after the start; ``mistake``: "zeros" are what
    it begins with."""

    def run(job: sp.Job) -> None:
        model = nn.ModuleList([nn.Linear(6, 6), nn.LayerNorm(6)])
        average = copy.deepcopy(model) if when == "before" else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if average is not None and mistake == "zeros":
            average[0].weight.data.zero_()
        job.start(model, optimizer)
        average = copy.deepcopy(model) if average is None else average
        x = job.batch["x"].chunk(2)[job.rank] if divided else job.batch["x"]
        loss = model[1](model[0](x)).sub(average[0](x).detach()).square().mean()
        loss.backward()
        meet(model, divided)
        optimizer.step()
        with torch.no_grad():
            average[0].weight.lerp_(model[0].weight, 0.1)
        job.end(loss=loss, outputs={"average": average[0].weight})

    return run


@pytest.mark.parametrize(
    ("single", "ranks", "mistake"),
    [
        *(("before", "before", ""), ("before", "after", ""), ("after", "before", "")),
        ("before", "before", "zeros"),
    ],
)
def test_what_is_copied_before_the_start_is_the_parameter_it_is_copied_of(
    single: str, ranks: str, mistake: str
) -> None:
    result = verified(
        followed(single, divided=False),
        followed(ranks, divided=True, mistake=mistake),
        validate=not mistake,
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)


def divided_beside(made: str, divided: bool, mistake: str = "") -> Callable[[sp.Job], None]:
    """A reference model that is copied or loaded before both are divided by FSDP2; ``mistake``:
    "zeros" are the biases of its last layer, "other" has numbers of its own."""

    def run(job: sp.Job) -> None:
        model = network()
        reference = network() if made == "loaded" else copy.deepcopy(model)
        if mistake != "other":
            reference.load_state_dict(model.state_dict())
        if mistake == "zeros":
            reference[2].bias.data.zero_()
        reference.requires_grad_(requires_grad=False)
        for one in (model, reference) if divided else ():
            fully_shard(one)
        job.start(model)
        x = job.batch["x"].chunk(2)[job.rank] if divided else job.batch["x"]
        aim = F.log_softmax(reference(x), -1)
        loss = F.kl_div(F.log_softmax(model(x), -1), aim, reduction="batchmean", log_target=True)
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(
    ("made", "mistake", "verdict"),
    [
        ("copied", "", "proved"),
        ("copied", "zeros", "refuted"),
        ("loaded", "", "proved"),
        ("loaded", "other", "inconclusive"),
    ],
)
def test_a_reference_that_is_divided_as_its_model_is_has_its_parts(
    made: str, mistake: str, verdict: str
) -> None:
    """A rank cuts its rows of the model's weights and of the reference's, each by itself."""
    result = verified(
        divided_beside(made, divided=False), divided_beside(made, divided=True, mistake=mistake)
    )
    assert result.verdict == verdict, sp.told(result)


def distributed(divided: bool, mistake: str = "") -> Callable[[sp.Job], None]:
    """A reference that is copied of a model once its weights are sent to ranks; ``mistake``: "zeros"
    are the biases of its last layer."""

    def run(job: sp.Job) -> None:
        model = network()
        if divided:
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
        reference = copy.deepcopy(model).requires_grad_(requires_grad=False)
        if mistake == "zeros":
            reference[2].bias.data.zero_()
        job.start(model)
        x = job.batch["x"]
        aim = F.log_softmax(reference(x), -1)
        loss = F.kl_div(F.log_softmax(model(x), -1), aim, reduction="batchmean", log_target=True)
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("mistake", ["", "zeros"])
def test_a_reference_that_is_copied_of_sent_weights_has_these(mistake: str) -> None:
    """DTensor's broadcasts are before the start: no rank keeps one that another one leaves out."""
    result = verified(distributed(divided=False), distributed(divided=True, mistake=mistake))
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
    assert "different collectives" not in sp.told(result)


def wrapped(when: str, divided: bool) -> Callable[[sp.Job], None]:
    """A teacher that is copied before or after DDP gives rank 0's weights to all ranks."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(6, 4)
        teacher = copy.deepcopy(model)
        own = nn.parallel.DistributedDataParallel(model) if divided else model
        if when == "after":
            teacher = copy.deepcopy(model)
        job.start(own)
        x = job.batch["x"].chunk(2)[job.rank] if divided else job.batch["x"]
        loss = (own(x) - teacher(x).tanh().detach()).square().mean()
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_rank_copies_before_it_gets_the_weights_of_rank_0_is_no_copy_of_these(
    when: str,
) -> None:
    """Each rank draws weights of its own."""
    result = verified(wrapped(when, divided=False), wrapped(when, divided=True))
    assert (result.verdict == "proved") == (when == "after"), sp.told(result)


def flattened(divided: bool, when: str = "") -> Callable[[sp.Job], None]:
    """A teacher that is copied ``when`` ("before" or "after") weights are put into a flat buffer."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(6, 4)
        teacher = copy.deepcopy(model)
        if divided:
            buffer = torch.cat([p.detach().flatten() for p in model.parameters()])
            model.weight.data, model.bias.data = buffer[:24].view(4, 6), buffer[24:]
            teacher = copy.deepcopy(model) if when == "after" else teacher
        job.start(model)
        x = job.batch["x"].chunk(2)[job.rank] if divided else job.batch["x"]
        loss = (model(x) - teacher(x).tanh().detach()).square().mean()
        loss.backward()
        meet(model, divided)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_copied_of_weights_that_move_later_is_never_refuted(when: str) -> None:
    """Whose copy it is cannot be told: what was drawn for it is no constant."""
    result = verified(flattened(divided=False), flattened(True, when))
    assert result.verdict in ("proved", "inconclusive"), sp.told(result)


def cloned_layers(divided: bool, mistake: str = "") -> Callable[[sp.Job], None]:
    """Two layers, one of them a copy of the other, and a copy of both: which one it is of cannot be
    told by what they began with."""

    def run(job: sp.Job) -> None:
        first = nn.Linear(6, 6)
        model = nn.ModuleList([first, copy.deepcopy(first)])
        teacher = copy.deepcopy(model)
        job.start(model)
        x = job.batch["x"].chunk(2)[job.rank] if divided else job.batch["x"]
        aim = teacher[0 if mistake else 1](x).detach()
        loss = (model[1](model[0](x).tanh()) - aim).square().mean()
        loss.backward()
        meet(model, divided)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("mistake", ["", "the other layer"])
def test_what_two_parameters_began_with_is_the_input_of_neither(mistake: str) -> None:
    result = verified(cloned_layers(divided=False), cloned_layers(True, mistake))
    assert result.verdict == "inconclusive", sp.told(result)


def gathered_in(mistake: bool, divided: bool) -> Callable[[sp.Job], None]:
    """Gradients that are there before the start on ranks: zeros like the parameters."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(6, 4)
        for p in model.parameters():
            nn.init.normal_(p)
            if divided:
                p.grad = torch.full_like(p, 1.0) if mistake else torch.zeros_like(p)
        job.start(model)
        x = job.batch["x"].chunk(2)[job.rank] if divided else job.batch["x"]
        loss = model(x).square().mean()
        loss.backward()
        meet(model, divided)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("mistake", [False, True])
def test_zeros_like_a_parameter_depend_on_nothing_that_is_drawn(mistake: bool) -> None:
    result = verified(gathered_in(mistake=False, divided=False), gathered_in(mistake, divided=True))
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)


def test_deep_copies_are_those_of_tensors_with_memory() -> None:
    """A parameter is copied without its gradient and attributes, a tensor with them; what shares
    memory shares it afterwards; what was computed is no leaf."""

    def copied(rows: torch.Tensor) -> tuple[object, ...]:
        weight = nn.Parameter(rows + 0)
        weight.grad, weight.own = torch.zeros_like(weight), "w"  # type: ignore[attr-defined]
        buffer = rows * 2
        buffer.own = "b"  # type: ignore[attr-defined]
        column = buffer[:, 1]
        w, b, c, again = copy.deepcopy([weight, buffer, column, weight])
        with pytest.raises(RuntimeError, match="leaves"):
            copy.deepcopy(weight * 2)
        memory = {t.untyped_storage()._cdata for t in (weight, buffer, w, b)}
        shared = b.untyped_storage()._cdata == c.untyped_storage()._cdata
        return (
            *(isinstance(t, nn.Parameter) for t in (w, b, c)),
            *(t.requires_grad for t in (w, b, c)),
            *(getattr(t, "own", "") for t in (w, b, c)),
            (w.grad is None, w is again, len(memory), shared),
            (c.stride(), c.storage_offset(), b.shape),
        )

    real = copied(torch.ones(3, 4))
    cloned.install()
    with FakeTensorMode():
        assert copied(torch.ones(3, 4)) == real
