"""Packages that one can do without: whether they are here, and the line that installs them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from shardproof.engine.errors import InvalidInput


def has(package: str) -> bool:
    """Whether a package can be imported; it is not imported for it.

    Example: ``has("jax")`` is False where the extra is not installed.
    """
    return package in sys.modules or find_spec(package) is not None


def install_line(extra: str) -> str:
    """The command that installs an extra of ours.

    Example: ``pip install 'shardproof[jax]'``.
    """
    return f"pip install 'shardproof[{extra}]'"


def require(package: str, extra: str, what: str) -> None:
    """Raise `InvalidInput` with the line to type unless a package is here; ``what`` needs it.

    Example: "a Ray cluster needs ray, which is not installed: pip install 'shardproof[ray]'".
    """
    if not has(package):
        raise InvalidInput(f"{what} needs {package}, which is not installed: {install_line(extra)}")
