"""Which PyTorch records steps: capture replaces functions of one version of torch."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from shardproof.engine.errors import InvalidInput

#: The version that stand-ins and lowerings were made for; ``pyproject.toml`` asks for it, too.
MADE_FOR: Final = "2.13"
WANTED: Final = "torch>=2.13,<2.14"


def require() -> None:
    """Raise `InvalidInput` unless the PyTorch is installed that records steps.

    Example: "steps are recorded with PyTorch 2.13, 2.15.0 is installed: pip install
    'torch>=2.13,<2.14'".
    """
    try:
        there = f"{version('torch')} is installed"
    except PackageNotFoundError:
        there = "which is not installed"
    if not there.startswith(f"{MADE_FOR}."):
        raise InvalidInput(
            f"steps are recorded with PyTorch {MADE_FOR}, {there}: pip install '{WANTED}'"
        )
