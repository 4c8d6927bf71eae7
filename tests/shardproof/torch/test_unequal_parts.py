"""All-to-alls whose parts have different sizes: rows that ranks send to the experts of others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as fc  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import Step, locally  # noqa: E402

WIDTH = 3


def exchange(
    x: torch.Tensor, received: Sequence[int], sent: Sequence[int], form: str
) -> torch.Tensor:
    """An all-to-all of rows: into one tensor, into a list, early, or as a functional collective."""
    received, sent = list(received), list(sent)
    if form == "functional":
        return fc.all_to_all_single(x, received, sent, dist.group.WORLD) + 0
    if form == "lists":
        parts = [x.new_empty(n, WIDTH) for n in received]
        dist.all_to_all(parts, list(x.split(sent)))
        return torch.cat(parts)
    out = x.new_empty(sum(received), WIDTH)
    work = dist.all_to_all_single(out, x.contiguous(), received, sent, async_op=True)
    if form == "early":
        out = out + 0
    work.wait()
    return out


class Exchange(torch.autograd.Function):
    """Backward, rows go where they came from."""

    @staticmethod
    def forward(ctx, x, received, sent, form):
        ctx.given = received, sent, form
        return exchange(x, received, sent, form)

    @staticmethod
    def backward(ctx, gradient):
        received, sent, form = ctx.given
        return exchange(gradient, sent, received, form), None, None, None


def experts(sizes: Sequence[Sequence[int]]) -> Step:
    """Rank ``i`` has as many rows in a row as ``sizes[i]`` adds up to, of which it sends
    ``sizes[i][j]`` to expert ``j``; one device has all experts."""

    def single(job: sp.Job) -> None:
        before = nn.Linear(WIDTH, WIDTH)
        model = nn.ModuleDict({"before": before})
        model.update({str(i): nn.Linear(WIDTH, WIDTH) for i in range(len(sizes))})
        job.start(model)
        parts = before(job.batch["x"]).split([n for own in sizes for n in own])
        count = len(sizes)
        done = list(parts)
        for i in range(count):
            mine = range(i, count * count, count)
            rows = model[str(i)](torch.cat([parts[j] for j in mine])).relu()
            for j, part in zip(mine, rows.split([len(parts[j]) for j in mine]), strict=True):
                done[j] = part
        loss = (torch.cat(done) * job.batch["y"]).sum()
        loss.backward()
        job.end(loss=loss)

    return single


def divided(sizes: Sequence[Sequence[int]], form: str = "into", wrong: str = "") -> Step:
    def parallel(job: sp.Job) -> None:
        before, own = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        job.start(nn.ModuleDict({"before": before, str(job.rank): own}))
        totals = [sum(s) for s in sizes]
        x, y = (job.batch[n].split(totals)[job.rank] for n in ("x", "y"))
        sent, received = list(sizes[job.rank]), [s[job.rank] for s in sizes]
        if wrong == "one row less" and job.rank == 0:
            x, sent = x[: sent[0] + sent[1] - 1], [sent[0], sent[1] - 1]
            y = y[: len(x)]
        came = Exchange.apply(before(x), received, sent, form)
        done = Exchange.apply(own(came).relu(), sent, received, form)
        if wrong == "rows turned":
            done = done.roll(1, 0)
        loss = (done * y).sum()
        loss.backward()
        for p in before.parameters():
            dist.all_reduce(p.grad)
        job.end(loss=loss)

    return parallel


def verdict(
    folder: Path, sizes: Sequence[Sequence[int]], form: str = "into", wrong: str = ""
) -> sp.Result:
    rows = sum(map(sum, sizes))
    batch = {name: sp.tensor((rows, WIDTH)) for name in ("x", "y")}
    return locally(folder, experts(sizes), divided(sizes, form, wrong), batch, len(sizes))


@pytest.mark.parametrize("form", ["into", "lists", "functional"])
def test_rows_go_to_experts_and_back(form: str, tmp_path: Path) -> None:
    right = verdict(tmp_path / "right", [[1, 3], [2, 2]], form)
    assert right.verdict == "proved", sp.told(right)
    wrong = verdict(tmp_path / "wrong", [[1, 3], [2, 2]], form, "rows turned")
    assert wrong.verdict == "refuted", sp.told(wrong)


def test_a_rank_whose_own_parts_are_equal(tmp_path: Path) -> None:
    """What the others exchange it cannot know; and no row is no message."""
    result = verdict(tmp_path, [[2, 2, 2], [2, 0, 3], [2, 3, 4]])
    assert result.verdict == "proved", sp.told(result)


def test_what_is_read_before_its_wait(tmp_path: Path) -> None:
    result = verdict(tmp_path, [[1, 3], [2, 2]], "early")
    assert result.verdict == "refuted", sp.told(result)
    assert result.findings[0].kind == "read before wait"


def test_parts_that_are_not_those_of_the_receiver(tmp_path: Path) -> None:
    result = verdict(tmp_path, [[1, 3], [2, 2]], wrong="one row less")
    assert result.verdict == "refuted", sp.told(result)


def mixed(job: sp.Job, order: tuple[str, str], early: bool = False) -> None:
    """An all-to-all and an all-reduce; or an all-to-all between a receive and its wait."""
    own = nn.Linear(WIDTH, WIDTH)
    job.start(own)
    rows = job.batch["x"].chunk(2)[job.rank]
    h = own(rows).detach()
    total, came = h.sum(), None
    for step in order:
        if step == "reduce":
            dist.all_reduce(total)
        else:
            came = exchange(h, [[1, 2], [3, 2]][job.rank], [[1, 3], [2, 2]][job.rank], "into")
    job.end(outputs={"total": total, "came": came.sum() * 0 + total})


def whole(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    job.start(model)
    total = model(job.batch["x"]).detach().sum()
    job.end(outputs={"total": total, "came": total})


def test_collectives_in_another_order(tmp_path: Path) -> None:
    batch = {"x": sp.tensor((8, WIDTH)), "y": sp.tensor((8, WIDTH))}
    same = ("exchange", "reduce")
    right = locally(tmp_path / "a", whole, lambda job: mixed(job, same), batch)
    assert right.verdict == "proved", sp.told(right)
    orders = (same, same[::-1])
    wrong = locally(tmp_path / "b", whole, lambda job: mixed(job, orders[job.rank]), batch)
    assert wrong.verdict == "refuted", sp.told(wrong)
    assert wrong.findings[0].kind == "unlike collectives"


def between(job: sp.Job, late: bool) -> None:
    """Rank 0 sends a row, and exchanges rows then; ``late``: the receiver exchanges first."""
    own = nn.Linear(WIDTH, WIDTH)
    job.start(own)
    h = own(job.batch["x"].chunk(2)[job.rank]).detach()
    row = h[0].clone()
    work = None
    if job.rank == 0:
        dist.isend(row, 1).wait()
    elif not late:
        work = dist.irecv(row, 0)
    came = exchange(h, [[1, 2], [3, 2]][job.rank], [[1, 3], [2, 2]][job.rank], "into")
    if job.rank == 1:
        work = dist.irecv(row, 0) if work is None else work
        work.wait()
    job.end(outputs={"sums": came.sum() * 0 + row})


def first_row(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    job.start(model)
    job.end(outputs={"sums": model(job.batch["x"]).detach()[0]})


def test_messages_beside_an_exchange(tmp_path: Path) -> None:
    """Those that were posted before it arrive before it; in another order they are not followed."""
    batch = {"x": sp.tensor((8, WIDTH))}
    right = locally(tmp_path / "a", first_row, lambda job: between(job, False), batch)
    assert right.verdict == "proved", sp.told(right)
    other = locally(tmp_path / "b", first_row, lambda job: between(job, True), batch)
    assert other.verdict == "invalid input", sp.told(other)


def posted(job: sp.Job, turned: bool) -> None:
    """A receive that is waited for after a later one; ``turned``: their rows change places."""
    own = nn.Linear(WIDTH, WIDTH)
    job.start(own)
    h = own(job.batch["x"]).detach()
    a, b = h[0].clone(), h[1].clone()
    if job.rank == 0:
        dist.send(a, 1)
        dist.send(b, 1)
    else:
        work = dist.irecv(a, 0)
        dist.recv(b, 0)
        work.wait()
    job.end(outputs={"sums": b if turned else a})


def test_a_receive_that_waits_for_nothing_takes_no_earlier_message(tmp_path: Path) -> None:
    batch = {"x": sp.tensor((8, WIDTH))}
    right = locally(tmp_path / "a", first_row, lambda job: posted(job, False), batch)
    assert right.verdict == "proved", sp.told(right)
    wrong = locally(tmp_path / "b", first_row, lambda job: posted(job, True), batch)
    assert wrong.verdict == "refuted", sp.told(wrong)
