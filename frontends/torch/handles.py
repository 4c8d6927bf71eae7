"""Handles of asynchronous operations: when the step waits for one, and whether it is over.

Nothing communicates while a step is recorded, so whether an operation is over has no answer before
it is waited for; on the cluster it is a matter of time there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._C._distributed_c10d import FakeWork, ProcessGroup, Work

from shardproof.frontends.torch import refusals
from shardproof.frontends.torch.futures import Awaited
from shardproof.frontends.torch.places import place
from shardproof.frontends.torch.record import Recorder
from shardproof.frontends.torch.shadows import flat

#: Methods of a handle that say whether it is over.
_QUESTIONS: Final = ("is_completed", "is_success")


def watch(recorder: Recorder) -> None:
    """Make waits for asynchronous operations visible, in this process, for good.

    Example: ``work = dist.all_reduce(x, async_op=True); work.wait()`` is recorded as
    ``c10d.allreduce_.default`` and ``job.wait``; ``work.is_completed()`` is true then, and refused
    before.
    """
    written: dict[int, list[torch.Tensor]] = {}
    over: set[int] = set()

    def issued(work: Any, args: tuple[Any, ...]) -> None:
        recorder.handle(work)
        written[id(work)] = [x for x in flat(args[1:2]) if isinstance(x, torch.Tensor)]

    def waited(work: Any) -> None:
        over.add(id(work))
        recorder.waited(work)

    def get_future(work: Any) -> Awaited:
        return Awaited(lambda: waited(work), written.get(id(work), []))

    def is_over(work: Any) -> bool:
        if id(work) not in over:
            where, _ = place(sys._getframe(1))
            refusals.refuse(
                "Python asks whether an operation is over that nothing has waited for, which is a "
                f"matter of time (at {where})"
            )
        return True

    _issue(issued)
    for owner in (Work, FakeWork):
        if "wait" in owner.__dict__:
            original = owner.__dict__["wait"]

            def wait(work: Any, *args: Any, _wait: Any = original, **kwargs: Any) -> Any:
                waited(work)
                return _wait(work, *args, **kwargs)

            owner.wait = wait  # type: ignore[method-assign,assignment]
        owner.get_future = get_future  # type: ignore[method-assign,assignment]
        for name in _QUESTIONS:
            setattr(owner, name, is_over)


def _issue(issued: Callable[[Any, tuple[Any, ...]], None]) -> None:
    """Let methods of process groups tell ``issued`` of each handle that they give, and of what they
    were given."""

    def issuing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if isinstance(result, Work):
                issued(result, args)
            return result

        return call

    for name, method in list(vars(ProcessGroup).items()):
        if not name.startswith("__") and callable(method) and "Work" in (method.__doc__ or ""):
            setattr(ProcessGroup, name, issuing(method))
