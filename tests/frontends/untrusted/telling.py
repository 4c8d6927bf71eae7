"""Waiting for a process that writes its number to a file."""

from __future__ import annotations

import time
from pathlib import Path

import psutil


def told(path: Path) -> psutil.Process:
    """The process whose number appears in a file."""
    until = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return psutil.Process(int(path.read_text()))
