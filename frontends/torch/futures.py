"""Futures of collectives: whoever reads what one will give has waited for it.

A process group that communicates nothing gives futures of nothing.  Here they hold the tensors that
the collective writes, as those of NCCL and Gloo do, and reading them is recorded as a wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Awaited(torch.futures.Future[Any]):
    """The future of a collective that writes ``tensors``; ``waited`` is called before they are
    read.

    Example: ``dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0])`` waits
    for the all-reduce, and gives ``x``.
    """

    def __init__(self, waited: Callable[[], None], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._waited = waited
        self.set_result(tensors)

    def wait(self) -> Any:
        """The tensors, after a wait."""
        self._waited()
        return super().wait()

    def value(self) -> Any:
        """The tensors, after a wait."""
        self._waited()
        return super().value()

    def then(self, callback: Callable[[torch.futures.Future[Any]], Any]) -> Any:
        """The future of what the callback gives."""
        return Later(self, callback)

    def add_done_callback(self, callback: Callable[[torch.futures.Future[Any]], None]) -> None:
        """The callback runs after a wait."""
        self._waited()
        super().add_done_callback(callback)


class Later(Awaited):
    """What a callback makes of futures.  It runs when that is waited for: until then nobody may
    count on it.

    Example: of ``future.then(lambda f: f.value()[0].div_(2))`` that nobody waits for, nothing is
    divided, and what the collective writes stays unread.
    """

    def __init__(self, before: Any, callback: Callable[[Any], Any]) -> None:
        torch.futures.Future.__init__(self)
        self._before, self._callback = before, callback
        self._waited = self._run

    def _run(self) -> None:
        if not self.done():
            self.set_result(self._callback(self._before))


def all_of(futures: list[Any]) -> Later:
    """The future of several, as `torch.futures.collect_all` gives it.

    Example: ``collect_all([a.get_future(), b.get_future()]).wait()`` waits for both.
    """

    def waited(several: list[Any]) -> list[Any]:
        for future in several:
            future.wait()
        return several

    return Later(futures, waited)
