"""Ranks that meet in a collective mean the same group, root, reduction and tag: each mistake beside
its right twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import shardproof.torch as sp

Reduce = Callable[[sp.Job, Sequence[torch.Tensor]], None]
AVG, SUM = dist.ReduceOp.AVG, dist.ReduceOp.SUM


def model(job: sp.Job) -> torch.nn.Linear:
    model = torch.nn.Linear(6, 4)
    job.start(model)
    return model


def single(job: sp.Job) -> None:
    loss = model(job)(job.batch["x"]).pow(2).sum()
    loss.backward()
    job.end(loss=loss)


def verify(folder: Path, reduce: Reduce, world_size: int) -> sp.Result:
    """Every rank has its rows; ``reduce`` adds up the loss and gradients, in place."""

    def parallel(job: sp.Job) -> None:
        own = model(job)
        loss = own(job.batch["x"].chunk(world_size)[job.rank]).pow(2).sum()
        loss.backward()
        total = loss.detach().clone()
        reduce(job, [total, *(p.grad for p in own.parameters() if p.grad is not None)])
        job.end(loss=total)

    return sp.verify(
        single,
        parallel,
        world_size=world_size,
        batch={"x": sp.tensor((8, 6))},
        executor="local",
        cache=False,
        validate=True,
        out=folder / "run",
    )


def in_two_levels(order: Callable[[int], Sequence[list[int]]]) -> Reduce:
    """Sums of neighbours, then across; ``order`` in which a rank makes the groups of neighbours."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        made = [(ranks, dist.new_group(ranks)) for ranks in (*order(job.rank), [0, 2], [1, 3])]
        for tensor in tensors:
            for ranks, group in made:
                if job.rank in ranks:
                    dist.all_reduce(tensor, group=group)

    return reduce


def of_members(*, local: bool) -> Reduce:
    """A sum over each pair of ranks, whose group its members alone make, and one over all;
    ``local``: the group is named by its members, not by how many were made before."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        first = job.rank // 2 * 2
        pair = dist.new_group([first, first + 1], use_local_synchronization=local)
        dist.all_reduce(torch.zeros(1), group=pair)
        for tensor in tensors:
            dist.all_reduce(tensor)

    return reduce


def of_two_groups(order: Callable[[int], Sequence[int]]) -> Reduce:
    """A sum over one group of both ranks, and a mean of it over another; ``order``: that of use."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        for tensor in tensors:
            for use in order(job.rank):
                dist.all_reduce(tensor, op=AVG if use else SUM, group=groups[use])

    return reduce


def by_root(root: Callable[[int], int]) -> Reduce:
    """Sums at a root, which gives them to all."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            dist.reduce(tensor, root(job.rank))
            dist.broadcast(tensor, 0)

    return reduce


def gathered(root: Callable[[int], int]) -> Reduce:
    """What ranks have, in a list of the root, which adds it up and gives the sum to all."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            own = root(job.rank)
            parts = [torch.empty_like(tensor) for _ in range(2)] if job.rank == own else None
            dist.gather(tensor.clone(), parts, own)
            if parts is not None:
                tensor.copy_(parts[0] + parts[1])
            dist.broadcast(tensor, 1)

    return reduce


def averaged(op: Callable[[int], dist.ReduceOp.RedOpType], form: int = -1) -> Reduce:
    """A mean times the number of ranks; rank ``form`` issues it in its functional form."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            if job.rank == form:
                name = "avg" if op(job.rank) == AVG else "sum"
                tensor.copy_(functional.all_reduce(tensor, name, dist.group.WORLD))  # type: ignore[arg-type]
            else:
                dist.all_reduce(tensor, op=op(job.rank))
            if op(job.rank) == AVG:
                tensor.mul_(2)

    return reduce


def by_member(member: int) -> Reduce:
    """Sums, which rank 3 loses and is given again by a member of ranks 2 and 3."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        pair = dist.new_group([2, 3])
        for tensor in tensors:
            dist.all_reduce(tensor)
            if job.rank == 3:
                tensor.zero_()
            if job.rank in (2, 3):
                tensor.copy_(functional.broadcast(tensor, member, pair))  # type: ignore[arg-type]

    return reduce


def sent(tags: Callable[[int], Sequence[int]]) -> Reduce:
    """Every rank sends what it has to the other one, twice, and adds the mean of what comes."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            parts = [torch.empty_like(tensor) for _ in range(2)]
            other = 1 - job.rank
            messages = [dist.P2POp(dist.isend, tensor, other, tag=tag) for tag in (1, 2)]
            for part, tag in zip(parts, tags(job.rank), strict=True):
                messages.append(dist.P2POp(dist.irecv, part, other, tag=tag))
            for work in dist.batch_isend_irecv(messages):
                work.wait()
            tensor.add_(parts[0] + parts[1], alpha=0.5)

    return reduce


def at_barriers(before: Callable[[int], int], after: Callable[[int], int]) -> Reduce:
    """Sums, with so many barriers before and after them."""

    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        for _ in range(before(job.rank)):
            dist.barrier()
        for tensor in tensors:
            dist.all_reduce(tensor)
        for _ in range(after(job.rank)):
            dist.barrier()

    return reduce


PAIRS = [0, 1], [2, 3]
#: A name, the number of ranks, the right program, the wrong one, and what is said of that.
CASES = [
    (
        "groups made in another order by one rank",
        4,
        in_two_levels(lambda rank: PAIRS),
        in_two_levels(lambda rank: PAIRS if rank != 1 else PAIRS[::-1]),
        "these groups have the same ranks and do not know each other",
    ),
    (
        "two groups in another order on one rank",
        2,
        of_two_groups(lambda rank: (0, 1)),
        of_two_groups(lambda rank: (0, 1) if rank else (1, 0)),
        "these groups have the same ranks and do not know each other",
    ),
    (
        "groups that each rank makes for itself",
        4,
        of_members(local=True),
        of_members(local=False),
        "is of ranks [2, 3] for one and of ranks [0, 1] for the other",
    ),
    (
        "another root on one rank",
        2,
        by_root(lambda rank: 0),
        by_root(lambda rank: rank),
        "root [1] for one and [0] for the other",
    ),
    (
        "gathered at another root",
        2,
        gathered(lambda rank: 1),
        gathered(lambda rank: rank),
        "root [1] for one and [0] for the other",
    ),
    (
        "another reduction on one rank",
        2,
        averaged(lambda rank: AVG),
        averaged(lambda rank: SUM if rank else AVG),
        "reduction 'sum' for one and 'avg' for the other",
    ),
    (
        "another reduction on one rank, of the functional form",
        2,
        averaged(lambda rank: AVG, 1),
        averaged(lambda rank: SUM if rank else AVG, 1),
        "reduction 'sum' for one and 'avg' for the other",
    ),
]

#: Programs whose ranks wait for each other for ever, and what is said of them.
WAITING = (
    (
        at_barriers(lambda rank: 1, lambda rank: 1 - rank),
        "is met by nobody: rank 1 comes to 1 barriers of this group, and rank 0 to 2",
    ),
    (
        at_barriers(lambda rank: rank, lambda rank: 1 - rank),
        "barrier for one and allreduce for the other",
    ),
)


@pytest.mark.parametrize(
    ("world_size", "right", "wrong", "message"),
    [pytest.param(*case[1:], id=case[0]) for case in CASES],
)
def test_what_ranks_meet_in_is_the_same(
    tmp_path: Path, world_size: int, right: Reduce, wrong: Reduce, message: str
) -> None:
    result = verify(tmp_path / "right", right, world_size)
    assert result.verdict == "proved", sp.told(result)
    assert any("replayed" in note for note in result.assumptions), result.assumptions
    result = verify(tmp_path / "wrong", wrong, world_size)
    assert result.verdict == "refuted", sp.told(result)
    assert message in result.findings[0].message
    assert result.findings[0].source.startswith(__file__)


def test_the_root_of_the_functional_form_is_a_member_of_the_group(tmp_path: Path) -> None:
    result = verify(tmp_path / "right", by_member(0), 4)
    assert result.verdict == "proved", sp.told(result)
    assert any("replayed" in note for note in result.assumptions), result.assumptions
    result = verify(tmp_path / "wrong", by_member(1), 4)
    assert result.verdict == "refuted", sp.told(result)


def test_messages_under_other_tags_are_refused(tmp_path: Path) -> None:
    result = verify(tmp_path / "right", sent(lambda rank: (1, 2)), 2)
    assert result.verdict == "proved", sp.told(result)
    result = verify(tmp_path / "wrong", sent(lambda rank: (2, 1) if rank else (1, 2)), 2)
    assert result.verdict == "invalid input", sp.told(result)
    assert "messages from rank 0 to rank 1: tag" in result.reason


def test_what_is_left_beside_the_root_is_not_read(tmp_path: Path) -> None:
    def reduce(job: sp.Job, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            dist.reduce(tensor, 0)

    result = verify(tmp_path, reduce, 2)
    assert result.verdict == "inconclusive", sp.told(result)
    assert "reads memory that nothing has written" in result.reason


def test_all_members_come_to_every_barrier(tmp_path: Path) -> None:
    result = verify(tmp_path / "right", at_barriers(lambda rank: 1, lambda rank: 1), 2)
    assert result.verdict == "proved", sp.told(result)
    for number, (wrong, message) in enumerate(WAITING):
        result = verify(tmp_path / str(number), wrong, 2)
        assert result.verdict == "refuted", sp.told(result)
        assert message in result.findings[0].message
