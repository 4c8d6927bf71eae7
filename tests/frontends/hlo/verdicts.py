"""Two modules as files, verified as a user would; what is proved has to pass `check`."""

from __future__ import annotations

from pathlib import Path

import shardproof


def verified(single: str, parallel: str, folder: Path, expected: str) -> None:
    """Assert the verdict over two texts of HLO."""
    files = folder / "single.hlo", folder / "parallel.hlo"
    for file, text in zip(files, (single, parallel), strict=True):
        file.write_text(text)
    result = shardproof.verify(*files, out=folder / "run", cache_dir=folder / "cache")
    assert result.verdict == expected, result.reason
    if expected == "proved":
        assert shardproof.check(folder / "run").ok
