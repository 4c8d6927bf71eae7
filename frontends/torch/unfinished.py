"""What DistributedDataParallel still waits for when a step is over.

DDP reduces a bucket once each of its parameters has a gradient.  Of parameters that take no part in
the loss none comes, so that their buckets stay what the rank itself computed; PyTorch raises an
error at the next forward call alone.  Its reducer is asked, as that call would.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch.nn.parallel import DistributedDataParallel

#: How a reducer that is not done lists parameters, by their numbers.
_MISSING: Final = re.compile(r"did not receive grad for rank \d+: (?P<numbers>[\d ]+)")
#: Parameters that are named; the others are counted.
_MOST_NAMES: Final = 3


def unfinished(models: Sequence[torch.nn.Module]) -> Iterator[str]:
    """A sentence about each DDP module of models that has not reduced all buckets.

    Example: of a model whose ``pooler`` is used by no loss, "DistributedDataParallel waits for
    gradients of pooler.weight, pooler.bias: ...".
    """
    modules = dict.fromkeys(m for model in models for m in model.modules())
    for module in modules:
        if isinstance(module, DistributedDataParallel) and (missing := _missing(module)):
            names = ", ".join(missing[:_MOST_NAMES])
            more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
            yield (
                f"DistributedDataParallel waits for gradients of {names}{more}: these take no "
                "part in the loss, and it reduces no bucket that they are in"
            )


def _missing(module: DistributedDataParallel) -> list[str]:
    """Names of parameters whose gradients a module waits for."""
    try:
        module._check_reducer_finalized()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        listed = _MISSING.search(str(error))
        parameters, _ = module._build_params_for_reducer()  # type: ignore[no-untyped-call]
        names = module._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
        numbers = map(int, listed["numbers"].split()) if listed else ()
        return [names.get(number, f"parameter {number}") for number in numbers]
    return []
