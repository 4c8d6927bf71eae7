"""A verdict on a PyTorch training step: is the parallel one the single-device one?

::

    import torch, shardproof.torch as sp

    def single(job):
        model = MLP()
        job.start(model)
        loss = model(job.batch["x"]).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    def parallel(job):                       # the code of the cluster; runs once per rank
        model = parallelize(MLP())
        job.start(model)
        ...
        job.end(loss=loss)

    result = sp.verify(single, parallel, world_size=2, batch={"x": sp.tensor((8, 16))})
    assert result.verdict == "proved", result

Both steps are run once per rank on fake tensors, with the rights of whoever calls: nothing is
computed, nothing communicates.  See docs/pytorch.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.capture import Limits
from shardproof.frontends.torch.job import Job
from shardproof.frontends.torch.stated import Piece, Same, TensorSpec, piece, same
from shardproof.report.tries import about_steps
from shardproof.run.options import Options
from shardproof.run.plain import plain
from shardproof.run.progress import Progress
from shardproof.run.result import Result
from shardproof.torch import run
from shardproof.torch.graphs import graph
from shardproof.torch.script import recording

if TYPE_CHECKING:
    from typing import TypeAlias

    Step: TypeAlias = Callable[[Job], Any]

__all__ = [
    "Job",
    "NotEquivalent",
    "Piece",
    "Result",
    "Same",
    "TensorSpec",
    "assert_equivalent",
    "graph",
    "piece",
    "recording",
    "same",
    "tensor",
    "verify",
]


class NotEquivalent(AssertionError):
    """The verdict is not `proved`; ``result`` has it whole."""

    def __init__(self, result: Result) -> None:
        super().__init__(told(result))
        self.result = result


def tensor(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    low: int | None = None,
    high: int | None = None,
) -> TensorSpec:
    """A batch tensor; ids lie in [low, high), or are any that the type holds.

    Example: ``tensor((8, 16), torch.int64, low=0, high=512)``, ids of a vocabulary of 512.
    """
    return TensorSpec(tuple(shape), str(dtype).removeprefix("torch."), low, high)


def verify(
    single: Step,
    parallel: Step,
    *,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    ranks: Literal["auto", "all"] | Sequence[int] = "auto",
    combine: Literal["mean", "sum"] | None = None,
    validate: bool = False,
    capture_timeout: float = 600.0,
    capture_memory: int = 8 << 30,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Whether ``parallel``, run by ``world_size`` ranks, computes what ``single`` computes.

    Example: ``verify(single, parallel, world_size=2, batch={"x": tensor((8, 16))}).verdict`` is
    "proved".

    ``batch``: the full batch, by name.  ``ranks``: which are captured: all, these, or as many as it
    takes ("auto": all up to 16); what the others do is an assumption then.  ``combine``: how the
    losses of ranks have to combine (None: which way holds is found, and printed with the verdict).
    ``validate``: replay what was recorded in PyTorch, on random values, and compare.
    ``capture_timeout`` in seconds and ``capture_memory`` in bytes bound the capture of one rank.
    The other options are those of `shardproof.verify`.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"a world of {world_size} ranks")
    if combine not in (None, "mean", "sum"):
        raise ValueError(f"combine is {combine!r}, expected 'mean', 'sum' or None")
    limits = Limits(capture_timeout, capture_memory)
    return run.verify(
        single,
        parallel,
        world_size,
        batch,
        ranks,
        combine,
        validate,
        limits,
        Options(**options),
        progress or Progress(),
    )


def assert_equivalent(
    single: Step,
    parallel: Step,
    *,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    **options: Any,
) -> Result:
    """As `verify`; raises `NotEquivalent`, with the findings as text, unless the verdict is
    `proved`, and `InvalidInput` if a step cannot be captured.

    Example: ``assert_equivalent(single, parallel, world_size=2, batch=batch)`` in a test.
    """
    result = verify(single, parallel, world_size=world_size, batch=batch, **options)
    if result.verdict == "invalid input":
        raise InvalidInput(plain(result.reason))
    if result.verdict != "proved":
        raise NotEquivalent(result)
    return result


def told(result: Result) -> str:
    """A result in a few lines: the verdict, its findings, and what to know of the step; names that
    hold line ends or what steers a terminal are shown as `shardproof.run.plain.plain` has them.

    Example: "refuted", "  add in mlp on ranks [0, 1]: ... [train.py:12]", "    repair: holds with
    an all-reduce ...".
    """
    lines = [f"{result.verdict}: {result.reason}" if result.reason else result.verdict]
    for finding in result.findings[:10]:
        lines.append(f"  {finding.message}" + (f" [{finding.source}]" if finding.source else ""))
        if finding.repair:
            lines.append(f"    repair: {finding.repair}")
    lines += [f"  {c.message}" for c in result.conclusions if not c.holds][:10]
    lines += [f"  {text}" for text in about_steps(result.verdict, result.assumptions)]
    return "\n".join(map(plain, lines))
