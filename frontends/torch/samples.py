"""Numbers that are drawn before a step, drawn once, so that a script may read its data by them.

A loader shuffles its rows, and a script picks its batch by numbers that it draws: Python reads
these to go on.  Nothing that is compared depends on which they are, since parameters and the batch
are inputs from the start of the step on.  Whole numbers and truths that are made of what is drawn
are therefore computed where they are small, by a generator of the same state on both sides; that
the step is recorded with one draw is printed.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from shardproof.frontends.torch.shadows import MOST_SHADOW, Shadows, flat, written_by

#: Whole numbers that are drawn together, such as the order of a data set's rows.
MOST_DRAWN: Final = 1 << 24
#: What is printed where Python reads such numbers.
SAMPLED = (
    "stand-in: numbers that are drawn at random before the step, which Python reads there, are "
    "drawn once: the step is recorded with these ({})"
)


class Samples(Shadows):
    """Shadows of what depends on nothing but numbers that are drawn before the step.

    Example: ``torch.randperm(64).tolist()`` is an order of 64 rows, until the step begins.
    """

    def __init__(self, shadows: Shadows) -> None:
        super().__init__()
        self._own: dict[int, Any] = {}
        # What depends on nothing at all is there already; what is written here is its own.
        self.storages = ChainMap(self._own, shadows.storages)
        self._over = False

    def end(self) -> None:
        """The step begins: nothing is drawn for Python any more.

        Example: ``torch.randint(4, ()).item()`` behind `job.start` is refused.
        """
        self._over = True
        self._own.clear()

    def go_on(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any, *, known: bool, draw: str
    ) -> None:
        """Follow an operator whose results are ``known`` without any draw, or not; ``draw``: the
        state that it draws from.

        Example: what ``random_`` writes is a sample, and what ``fill_`` writes is none any more.
        """
        if self._over:
            return
        if known:
            for x in (*flat(out), *written_by(func, args, kwargs)):
                if isinstance(x, torch.Tensor):
                    self._own.pop(x.untyped_storage()._cdata, None)
            return
        given = {key: None if key == "generator" else x for key, x in kwargs.items()}
        with _drawing(draw):
            if not self.follow(func, args, given, out):
                self.forget(func, args, kwargs)

    def read(self, x: torch.Tensor) -> torch.Tensor | None:
        """The sample of whole numbers or truths; None: there is none.

        Example: of ``torch.rand(4) < 0.5`` four truths; of ``torch.rand(4)`` None, for what is
        calculated of these stays calculated.
        """
        if self._over or x.is_floating_point() or x.is_complex():
            return None
        try:
            with _disable_current_modes():
                sample: torch.Tensor = self.real(x).clone()
        except KeyError:
            return None
        return sample

    def _most(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
        whole = not any(x.is_floating_point() for x in flat(out) if isinstance(x, torch.Tensor))
        return MOST_DRAWN if whole else MOST_SHADOW

    def _is_fixed(self, func: Any) -> bool:
        return True


@contextmanager
def _drawing(state: str) -> Iterator[None]:
    """Let operators draw from this state of the default generator, which has its own again then."""
    if not state:
        yield
        return
    with _disable_current_modes():
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(int(state, 16))
    try:
        yield
    finally:
        with _disable_current_modes():
            torch.default_generator.set_state(before)
