"""Other threads that a step starts: they may do anything but compute with its tensors.

What is dispatched is recorded in the thread that runs the step.  Another thread's operators would
be seen by nobody, and in which order they come nothing says.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardproof.frontends.torch.places import place
from shardproof.frontends.torch.refusals import refuse
from shardproof.frontends.torch.shadows import flat
from shardproof.frontends.torch.standins import replace


class Beside(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators on tensors of the step while it is entered.

    Example: ``pool.submit(gradient.mul_, 2)``, of which the gradients would not be seen to change.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in flat((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        if any(isinstance(x, FakeTensor) for x in given):
            where, _ = place(sys._getframe(1))
            refuse(
                f"a thread that the step starts computes with its tensors ({func} at {where}): "
                "only the thread that runs the step is recorded"
            )
        return func(*args, **(kwargs or {}))


def install() -> None:
    """Let threads that are started from here on compute with no tensor of the step, in this
    process, for good.

    Example: a thread that writes a log runs as it is.
    """
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        run = thread.run

        def beside() -> None:
            with Beside():  # type: ignore[no-untyped-call]
                run()

        thread.run = beside  # type: ignore[method-assign]
        start(thread)

    replace(threading.Thread, "start", started)
