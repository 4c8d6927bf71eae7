"""Which backend a process group has, where the program asks: the one that it named.

Nothing communicates while a step is recorded, and torch knows the groups as "fake"; the program
would go a way that it goes nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist

from shardproof.frontends.torch import refusals
from shardproof.frontends.torch.places import is_own, place
from shardproof.frontends.torch.standins import replace

#: What is printed where the program asks for what it has not named.
UNNAMED: Final = (
    "stand-in: the step asks for the backend of a process group, of which it named none: gloo"
)
#: What is printed of a reduction that multiplies first where the program has named no backend.
MULTIPLIES_FIRST: Final = (
    "stand-in: a reduction multiplies by a number first (PREMUL_SUM), which NCCL alone can do; the "
    "step names no backend: NCCL"
)
#: Which backend the program named for groups, by their names.
_NAMED: Final[dict[str, str]] = {}


def is_gloo(group_name: str) -> bool:
    """Whether a group communicates by gloo: the program named that, or nothing.

    Example: not of the world after ``dist.init_process_group("nccl")``.
    """
    world: Any = dist.group.WORLD
    return _NAMED.get(group_name, _NAMED.get(world.group_name, "gloo")) == "gloo"


def multiplies_first(group_name: str, note: Callable[[str], None]) -> None:
    """A group reduces by what multiplies first: refused where the program named gloo, which raises
    an error; ``note`` is told where it named none.

    Example: FSDP2 with ``set_gradient_divide_factor`` after ``dist.init_process_group("gloo")``.
    """
    world: Any = dist.group.WORLD
    own = _NAMED.get(group_name, _NAMED.get(world.group_name))
    if own == "gloo":
        where, _ = place(sys._getframe(2))
        refusals.refuse(
            "gloo has no reduction that multiplies by a number first (PREMUL_SUM; of FSDP2: "
            f"set_force_sum_reduction_for_comms), at {where}"
        )
    if own is None:
        note(MULTIPLIES_FIRST)


def install(note: Callable[[str], None]) -> None:
    """Let the step's own call initialise nothing, its groups be those of nobody, and its own code
    be told which backend it named; ``note`` is told where it named none.

    Example: after ``dist.init_process_group("nccl")``, ``dist.get_backend()`` is "nccl".
    """
    made, recorded = dist.new_group, dist.get_backend
    world: Any = dist.group.WORLD
    named = _NAMED
    named.clear()

    def initialised(backend: str | None = None, *_: Any, **__: Any) -> None:
        named[world.group_name] = backend or "undefined"  # as torch calls it then

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: str | None = None, *_: Any, **kwargs: Any
    ) -> Any:
        group = made(ranks, timeout, backend="fake", **kwargs)
        if backend is not None and isinstance(group, dist.ProcessGroup):
            named[group.group_name] = backend
        return group

    def get_backend(group: Any = None) -> str:
        if not is_own(sys._getframe(1).f_code.co_filename):
            return recorded(group)
        recorded(group)  # It raises an error of who is not in the group.
        own = named.get((group or world).group_name, named.get(world.group_name))
        if own is None:
            note(UNNAMED)
        return dist.Backend(own or "gloo")

    def monitored_barrier(group: Any = None, *_: Any, **__: Any) -> None:
        """A barrier that names who does not come: gloo's alone."""
        if not is_gloo((group or world).group_name):
            raise ValueError("monitored_barrier is only implemented for GLOO backend.")
        dist.barrier(group)

    replace(dist, "init_process_group", initialised)
    replace(dist, "monitored_barrier", monitored_barrier)
    replace(dist, "new_group", new_group)
    replace(dist, "get_backend", get_backend)
