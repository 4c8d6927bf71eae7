"""PyTorch's own database of operators (`OpInfo`), each as a step: which of them are understood.

    PYTHONPATH=. python -m benchmarks.torch.operators.run results.csv [NAMES]

Every operator with a gradient in float32 has one or two of its samples as a step, whose parameters
are the sample's tensors; two ranks run the same step, and then one that weighs the result
otherwise.
`torch.testing._internal` needs the package ``expecttest``, which the project does not install.
"""

from __future__ import annotations

import csv
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

import shardproof.torch as sp

SECONDS = 60
FIELDS = ("operator", "sample", "right", "wrong", "reason")


class Leaf(NamedTuple):
    """Where a parameter stands in a sample's arguments, such as parameter 0."""

    number: int


class Sample(NamedTuple):
    """An operator with one call of it, such as ``add`` of two tensors of shape [5, 5].

    ``arguments``, ``keywords``: with a `Leaf` for each tensor; ``leaves``: these tensors.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    leaves: list[torch.Tensor]


def sampled(function: Callable[..., Any], given: Any) -> Sample:
    """A sample of the database as a call.

    Example: ``add`` with the input [5, 5] and the argument [5, 5] has two leaves.
    """
    leaves: list[torch.Tensor] = []

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype == torch.float32:
            leaves.append(x.detach().clone())
            return Leaf(len(leaves) - 1)
        return type(x)(leaf(y) for y in x) if type(x) in (tuple, list) else x

    arguments = tuple(leaf(x) for x in (given.input, *given.args))
    keywords = {name: leaf(x) for name, x in given.kwargs.items()}
    return Sample(function, arguments, keywords, leaves)


def tensors(x: Any) -> Iterator[torch.Tensor]:
    """The floating-point results of a call that have a gradient.

    Example: of ``topk``, the values and not their places.
    """
    if isinstance(x, torch.Tensor):
        if x.dtype == torch.float32 and x.requires_grad:
            yield x
    elif isinstance(x, (tuple, list)):
        for y in x:
            yield from tensors(y)


def step(sample: Sample, weight: int) -> Callable[[sp.Job], None]:
    """The call as a step, whose loss is the sum of cosines of what it gives, times a weight."""

    def run(job: sp.Job) -> None:
        model = nn.Module()
        model.own = nn.ParameterList([nn.Parameter(torch.empty_like(x)) for x in sample.leaves])
        job.start(model)
        parameters = list(model.own)

        def put(x: Any) -> Any:
            if isinstance(x, Leaf):
                return parameters[x.number] * 1.0
            return type(x)(put(y) for y in x) if type(x) in (tuple, list) else x

        keywords = {name: put(x) for name, x in sample.keywords.items()}
        result = sample.function(*(put(x) for x in sample.arguments), **keywords)
        weights = job.batch["weights"]
        loss = torch.stack([(x * weights[weight]).cos().sum() for x in tensors(result)]).sum()
        loss.backward()
        job.end(loss=loss)

    return run


def verdict(sample: Sample, weight: int) -> tuple[str, str]:
    """The verdict of two ranks that run the step with a weight, and its reason."""
    batch = {"weights": sp.tensor((2,))}
    signal.alarm(SECONDS)
    try:
        result = sp.verify(step(sample, 0), step(sample, weight), world_size=2, batch=batch)
    except TimeoutError:
        return "late", f"{SECONDS} s"
    finally:
        signal.alarm(0)
    return result.verdict, " ".join(result.reason.split())[:200]


def rows(names: frozenset[str]) -> Iterator[tuple[str, int, str, str, str]]:
    """A row of `FIELDS` for each sample; the wrong step is run where the right one is proved."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        name = ".".join(filter(None, (info.name, info.variant_test_name)))
        usable = info.supports_autograd and torch.float32 in info.supported_dtypes("cpu")
        if not usable or (names and name not in names):
            continue
        every = list(info.sample_inputs("cpu", torch.float32, requires_grad=False))
        large = [x for x in every if isinstance(x.input, torch.Tensor) and x.input.numel() > 1]
        chosen = [large[0], large[len(large) // 2]] if len(large) > 1 else every[:1]
        for number, given in enumerate(chosen):
            sample = sampled(info.op, given)
            if sample.leaves:
                right, reason = verdict(sample, 0)
                wrong = ""
                if right == "proved":
                    wrong, reason = verdict(sample, 1)
                yield name, number, right, wrong, reason


def late(*_: object) -> None:
    """The alarm's signal."""
    raise TimeoutError


def main() -> None:
    """Write the rows, one by one."""
    signal.signal(signal.SIGALRM, late)
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(FIELDS)
        for row in rows(frozenset(sys.argv[2:])):
            table.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
