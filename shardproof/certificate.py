"""stub"""
from pathlib import Path
from typing import Any
def write(*a: Any) -> None: ...
