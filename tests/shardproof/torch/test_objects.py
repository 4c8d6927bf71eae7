"""Python objects that ranks exchange: sizes of what they have, settings that one rank reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402

ROWS, WIDTH = 6, 4


def summed(gradient: Any, count: int) -> Any:
    dist.all_reduce(gradient)
    return gradient / count


def counted_by_all(gradient: Any, rank: int, rows: int) -> Any:
    counts = [None, None]
    dist.all_gather_object(counts, {"rank": dist.get_rank(), "rows": rows})
    assert [c["rank"] for c in counts] == [0, 1]  # type: ignore[index]
    return summed(gradient, sum(c["rows"] for c in counts))  # type: ignore[index]


def own_count(gradient: Any, rank: int, rows: int) -> Any:
    """The mistake: what another rank has is not asked for."""
    return summed(gradient, 2 * rows)


def counted_by_one(gradient: Any, rank: int, rows: int) -> Any:
    counts: list[int | None] | None = [None, None] if rank == 0 else None
    dist.gather_object(rows, counts, dst=0)
    total = [sum(n for n in counts if n) if counts else None]
    dist.broadcast_object_list(total, src=0)
    return summed(gradient, int(total[0] or 0))


def settings_of_the_last(gradient: Any, rank: int, rows: int) -> Any:
    settings: list[Any] = [{"rows": ROWS}] if rank == 1 else [None]
    dist.broadcast_object_list(settings, group_src=1)
    return summed(gradient, settings[0]["rows"])


def shares(gradient: Any, rank: int, rows: int) -> Any:
    share: list[Any] = [None]
    dist.scatter_object_list(share, [{"rows": 6}, {"rows": 6}] if rank == 0 else None, src=0)
    return summed(gradient, share[0]["rows"])


def other_shares(gradient: Any, rank: int, rows: int) -> Any:
    share: list[Any] = [None]
    dist.scatter_object_list(share, [{"rows": 6}, {"rows": 3}] if rank == 0 else None, src=0)
    return summed(gradient, share[0]["rows"])


def drawn_anew(gradient: Any, rank: int, rows: int) -> Any:
    """Rank 0 draws before it waits for others, so it draws once more when it is captured again."""
    scale = [random.random() + 1 if rank == 0 else None]
    dist.broadcast_object_list(scale, src=0)
    counts = [None, None]
    dist.all_gather_object(counts, (scale[0], rows))
    return summed(gradient * scale[0], sum(c[1] for c in counts)) / counts[1][0]  # type: ignore[index]


def into_a_longer_list(gradient: Any, rank: int, rows: int) -> Any:
    """Other places of a list stay as they are."""
    counts: list[Any] = [None, None, 1]
    dist.all_gather_object(counts, rows)
    return summed(gradient, sum(counts) - 1)


def written_by_the_root(gradient: Any, rank: int, rows: int) -> Any:
    """The mistake: the root has its own object still, and writes into it."""
    settings = {"rows": ROWS}
    shared: list[Any] = [settings if rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    settings["rows"] = 3
    return summed(gradient, shared[0]["rows"])


def written_after_gathering(gradient: Any, rank: int, rows: int) -> Any:
    """What is gathered are copies, of a rank's own object too."""
    own, both = {"rows": rows}, [None, None]
    dist.all_gather_object(both, own)
    own["rows"] = 99
    return summed(gradient, sum(each["rows"] for each in both))  # type: ignore[index]


def around(gradient: Any, rank: int, rows: int) -> Any:
    """What one rank has travels to the other, which sends the sum back."""
    if rank == 0:
        dist.send_object_list([rows, "rows"], dst=1)
        total: list[Any] = [None]
        assert dist.recv_object_list(total, src=1) == 1
    else:
        both: list[Any] = [None, None]
        assert dist.recv_object_list(both, group_src=0, use_batch=True) == 0
        total = [both[0] + rows]
        dist.send_object_list(total, group_dst=0, use_batch=True)
    return summed(gradient, total[0])


def around_unchanged(gradient: Any, rank: int, rows: int) -> Any:
    """The mistake: what is sent back is what the other rank had."""
    other: list[Any] = [None]
    if rank == 0:
        dist.send_object_list([rows], dst=1)
        dist.recv_object_list(other, src=1)
    else:
        dist.recv_object_list(other, src=0)
        dist.send_object_list([rows], dst=0)
    return summed(gradient, other[0])


def received_before_and_sent_behind(gradient: Any, rank: int, rows: int) -> Any:
    """The mistake: one rank receives before gradients are added up, the other sends after that."""
    other: list[Any] = [rows]
    if rank == 0:
        dist.recv_object_list(other, src=1)
        return summed(gradient, other[0])
    total = summed(gradient, rows)
    dist.send_object_list(other, dst=0)
    return total


def to_nobody(gradient: Any, rank: int, rows: int) -> Any:
    dist.send_object_list([rows])
    return summed(gradient, rows)


def to_itself(gradient: Any, rank: int, rows: int) -> Any:
    dist.send_object_list([rows], dst=rank)
    return summed(gradient, rows)


def verified(mean: Callable[[Any, int, int], Any], **options: Any) -> sp.Result:
    def single(job: sp.Job) -> None:
        model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        job.start(model)
        (model(job.batch["x"]).tanh().pow(2).sum() / WIDTH / ROWS).backward()
        job.end()

    def parallel(job: sp.Job) -> None:
        model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        job.start(model)
        own = job.batch["x"].split([4, 2])[job.rank]
        (model(own).tanh().pow(2).sum() / WIDTH).backward()
        model.weight.grad = mean(model.weight.grad, job.rank, len(own))
        job.end()

    batch = {"x": sp.tensor((ROWS, WIDTH))}
    return sp.verify(single, parallel, world_size=2, batch=batch, **options)


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (counted_by_all, "proved"),
        (own_count, "refuted"),
        (counted_by_one, "proved"),
        (around, "proved"),
        (around_unchanged, "refuted"),
        (settings_of_the_last, "proved"),
        (shares, "proved"),
        (other_shares, "refuted"),
        (drawn_anew, "proved"),
        (into_a_longer_list, "proved"),
        (written_by_the_root, "refuted"),
        (written_after_gathering, "proved"),
    ],
)
def test_ranks_get_what_others_gave(mean: Callable[[Any, int, int], Any], verdict: str) -> None:
    result = verified(mean)
    assert result.verdict == verdict, result.reason
    stand_in = any("Python objects that ranks exchange" in text for text in result.assumptions)
    assert stand_in == (mean is not own_count)


def of_tensors(gradient: Any, rank: int, rows: int) -> Any:
    both = [None, None]
    dist.all_gather_object(both, gradient)
    return gradient


def never_given(gradient: Any, rank: int, rows: int) -> Any:
    settings: list[Any] = [None]
    if rank == 1:
        dist.broadcast_object_list(settings, src=0)
    return gradient


def crossed(gradient: Any, rank: int, rows: int) -> Any:
    """One rank gathers before it reduces, the other one after it."""
    counts: list[Any] = [None, None]
    for turn in range(2):
        if turn == rank:
            dist.all_gather_object(counts, rows)
        else:
            dist.all_reduce(gradient)
    return gradient / sum(counts)


def into_another_length(gradient: Any, rank: int, rows: int) -> Any:
    settings: list[Any] = [ROWS] if rank == 0 else [None, 0]
    dist.broadcast_object_list(settings, src=0)
    return summed(gradient, sum(settings))


def in_groups(crossed: bool) -> Callable[[Any, int, int], Any]:
    """Two groups of the same ranks, which one of them uses in another order."""

    def mean(gradient: Any, rank: int, rows: int) -> Any:
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        for group in groups[::-1] if crossed and rank else groups:
            counts: list[Any] = [None, None]
            dist.all_gather_object(counts, rows, group=group)
        return summed(gradient, sum(counts))

    return mean


def test_groups_of_the_same_ranks_are_used_in_one_order() -> None:
    assert verified(in_groups(crossed=False)).verdict == "proved"
    crossed = verified(in_groups(crossed=True))
    assert crossed.verdict == "invalid input"
    assert "exchange Python objects, and have unlike groups" in crossed.reason


def each_its_own_root(gradient: Any, rank: int, rows: int) -> Any:
    settings: list[Any] = [ROWS]
    dist.broadcast_object_list(settings, src=rank)
    return summed(gradient, settings[0])


@pytest.mark.parametrize(
    ("mean", "options", "reason"),
    [
        (of_tensors, {}, "a tensor in a Python object that ranks exchange"),
        (never_given, {}, "Python objects that others never give"),
        (crossed, {}, "Python objects that others never give"),
        (received_before_and_sent_behind, {}, "Python objects that others never give"),
        (to_nobody, {}, "Must specify global_rank or group_rank"),
        (to_itself, {}, "Invalid destination rank"),
        (each_its_own_root, {}, "have unlike ranks that give them: {0: (0,), 1: (1,)}"),
        (into_another_length, {}, "1 objects of another rank into a list of 2"),
        (counted_by_all, {"ranks": [0]}, "Python objects of ranks [1], which are not captured"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(
    mean: Callable[[Any, int, int], Any], options: dict[str, Any], reason: str
) -> None:
    result = verified(mean, **options)
    assert result.verdict == "invalid input"
    assert reason in result.reason
