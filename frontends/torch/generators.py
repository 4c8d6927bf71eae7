"""States of random number generators while a step is recorded, in which nothing is drawn; and those
of Python and NumPy, which a step may draw from by itself."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from itertools import count
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from shardproof.frontends.torch.places import is_machinery

#: What PyTorch's generators begin with.
BEGINNING = 67280421310721


class Generators:
    """The states from which random operators draw, in a few digits.

    Every draw moves its generator on, to a state that depends on the one before; so a program that
    keeps a state and restores it later, as activation checkpointing does, draws the same again.

    Example: two ranks that call ``torch.manual_seed(0)`` draw from equal states; one that calls
    ``torch.manual_seed(rank)`` does not.
    """

    def __init__(self) -> None:
        self.default = torch.default_generator
        self.default.manual_seed(BEGINNING)
        self.seed = self.own = BEGINNING

    def drawn(self, generator: torch.Generator | None) -> str:
        """The state that a random operator draws from; the generator moves on.

        Example: of ``F.dropout(x)`` after ``torch.manual_seed(0)`` it is the same on every rank.
        """
        chosen = self.default if generator is None else generator
        self._seeded()
        with _disable_current_modes():
            state: Any = chosen.get_state()
            digest = sha256(state.numpy().tobytes()).hexdigest()[:15]
        chosen.manual_seed(int(digest, 16))
        if chosen is self.default:
            self.own = int(digest, 16)
        return digest

    def start(self) -> None:
        """The step starts: what was drawn for weights before, which ranks draw for their own parts,
        tells nothing about it; the seed that the program gave does."""
        self._seeded()
        self.own = int(sha256(f"step {self.seed}".encode()).hexdigest()[:15], 16)
        self.default.manual_seed(self.own)

    def _seeded(self) -> None:
        """Whether the program seeded the default generator since it moved on last."""
        if self.default.initial_seed() != self.own:
            self.seed = self.default.initial_seed()


#: Generators that Python code draws from by itself: where, what seeds one, and its state as text.
_OF_PYTHON: tuple[tuple[str, Any, Callable[[], str]], ...] = (
    ("Python's", random, lambda: repr(random.getstate())),
    ("NumPy's", np.random, lambda: repr(np.random.get_state())),
)


class PythonDraws:
    """Whether a step draws from generators of Python and NumPy, which it does not seed: each
    process has its own, and ranks that are recorded in turn begin with the same.

    Example: a step that leaves out a layer where ``random.random() < 0.1``.
    """

    def __init__(self) -> None:
        self._before = [state() for _, _, state in _OF_PYTHON]
        self._seeded: set[str] = set()
        for owner, module, _ in _OF_PYTHON:
            self._watch(owner, module)

    def _watch(self, owner: str, module: Any) -> None:
        seed = module.seed

        @wraps(seed)
        def seeding(*args: Any, **kwargs: Any) -> Any:
            given = (*args[:1], kwargs.get("a"), kwargs.get("seed"))
            if all(x is None for x in given):
                return seed(BEGINNING % 2**32)  # A seed of the system's would be each rank's own.
            self._seeded.add(owner)
            return seed(*args, **kwargs)

        module.seed = seeding

    def notes(self) -> list[str]:
        """What is assumed of those that were drawn from.

        Example: "the step draws Python's random numbers without a seed: they are taken to be the
        same on every rank and on the single side".
        """
        drawn = [
            owner
            for (owner, _, state), before in zip(_OF_PYTHON, self._before, strict=True)
            if owner not in self._seeded and state() != before
        ]
        return [
            f"the step draws {owner} random numbers without a seed: they are taken to be the same "
            "on every rank and on the single side"
            for owner in drawn
        ]


#: What is printed where a step draws from the operating system.
SYSTEM: Final = (
    "the step draws random numbers of the operating system (os.urandom, uuid4, secrets), or makes "
    "a generator without a seed: they are taken to be the same on every rank and on the single side"
)
#: Where the standard library draws them for names of files.
_OF_FILES: Final = "/tempfile.py"
_PYTORCH: Final = torch.__file__.rsplit("/", 1)[0] + "/"


def install(note: Callable[[str], None]) -> None:
    """Give the step the same numbers on every rank where it asks the operating system for some, in
    this process, for good; ``note`` is told so.

    Example: ``np.random.default_rng().random() < 0.1``, ``random.Random().random()``.
    """
    system, seed, times = os.urandom, random.Random.seed, count()

    def urandom(size: int) -> bytes:
        if not _is_of_program(sys._getframe(1)):
            return system(size)
        note(SYSTEM)
        return random.Random(next(times)).randbytes(size)

    @wraps(seed)
    def seeding(self: random.Random, a: Any = None, *args: Any, **kwargs: Any) -> None:
        if a is None and _is_of_program(sys._getframe(1)):
            note(SYSTEM)
            a = next(times)
        seed(self, a, *args, **kwargs)

    os.urandom = urandom
    random._urandom = urandom  # type: ignore[attr-defined]  # what SystemRandom draws from
    random.Random.seed = seeding  # type: ignore[method-assign]


def _is_of_program(frame: FrameType | None) -> bool:
    """Whether the program, or a library other than PyTorch, asks by way of Python's own modules."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_machinery(path):
            return True
        if path.startswith(_PYTORCH) or path.endswith(_OF_FILES):
            return False
        frame = frame.f_back
    return False
