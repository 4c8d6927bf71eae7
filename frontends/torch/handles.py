"""Handles of asynchronous operations: when the step waits for one, and whether it is over.

Nothing communicates while a step is recorded, so whether an operation is over has no answer before
it is waited for; on the cluster it is a matter of time there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import torch
from torch._C._distributed_c10d import FakeWork, ProcessGroup, Work

from shardproof.frontends.torch import backends, refusals
from shardproof.frontends.torch.futures import Awaited
from shardproof.frontends.torch.places import place
from shardproof.frontends.torch.record import Recorder
from shardproof.frontends.torch.reductions import multiplies_first
from shardproof.frontends.torch.shadows import flat

#: Who refers to the handle of a message that the program does not keep: the list of them, what
#: asks (twice), and the recorder.
_OURS: Final = 4
_LOST: Final = (
    "the message at {} may never arrive by gloo: nobody keeps its handle, and nobody waited for it "
    "(keep it and wait for it, or name another backend in init_process_group)"
)

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
    sent: list[tuple[Any, str, str]] = []

    def issued(name: str, work: Any, args: tuple[Any, ...]) -> None:
        recorder.handle(work)
        if any(map(multiplies_first, args)):
            backends.multiplies_first(args[0].group_name, recorder.notes.setdefault)
        if name == "send":
            sent.append((work, args[0].group_name, place(sys._getframe(2))[0]))
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

    refusals.at_the_end(lambda: _lost(sent, over))
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


def _lost(sent: Sequence[tuple[Any, str, str]], over: Collection[int]) -> str:
    """Why a message never arrives that gloo sends no more once its handle is gone; "": all do.

    ``sent``: handles of messages, groups and lines; ``over``: what was waited for.
    """
    for work, group, where in sent:
        gone = id(work) not in over and sys.getrefcount(work) <= _OURS
        if gone and backends.is_gloo(group):
            return _LOST.format(where)
    return ""


def _issue(issued: Callable[[str, Any, tuple[Any, ...]], None]) -> None:
    """Let methods of process groups tell ``issued`` of each handle that they give, with their names
    and what they were given."""

    def issuing(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if isinstance(result, Work):
                issued(name, result, args)
            return result

        return call

    for name, method in list(vars(ProcessGroup).items()):
        if not name.startswith("__") and callable(method) and "Work" in (method.__doc__ or ""):
            setattr(ProcessGroup, name, issuing(name, method))
