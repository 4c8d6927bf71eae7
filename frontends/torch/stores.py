"""Key-value stores, in which nobody else puts anything while a step is recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardproof.frontends.torch.places import place
from shardproof.frontends.torch.refusals import refuse
from shardproof.frontends.torch.standins import replace

#: Methods whose answers, or whose return, depend on other ranks.
ASKING = (
    *("add", "append", "barrier", "check", "compare_set", "delete_key", "get", "list_keys"),
    *("multi_get", "num_keys", "queue_len", "queue_pop", "wait"),
)
#: Methods that only write.
WRITING = ("set", "multi_set", "queue_push", "set_timeout")


def install() -> None:
    """Refuse what asks a store, in this process, for good, also where the step would catch an error
    of the network.

    Example: ``store.get("rank0/steps")`` is invalid input, ``store.set("rank0/steps", "1")`` does
    nothing.
    """
    for kind in (TCPStore, FileStore):
        # Also where a module has it by its own name; it connects to nobody.
        replace(kind, "__new__", _unconnected)
    for name in ASKING:
        replace(Store, name, _refused(name))
    for name in WRITING:
        replace(Store, name, _nothing)


def _unconnected(*_: Any, **__: Any) -> FakeStore:
    return FakeStore()


def _refused(name: str) -> Callable[..., Any]:
    def refused(*given: Any, **named: Any) -> Any:
        where, _ = place(sys._getframe(1))
        refuse(
            f"a store is asked what other ranks put there, which nobody knows ({name} at {where})"
        )

    return refused


def _nothing(*_: Any, **__: Any) -> None:
    """Whoever reads what is written is refused."""
