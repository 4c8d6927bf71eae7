"""Fuzzing that looks for new paths through the code, with atheris:
``PYTHONPATH=. python benchmarks/fuzz/guided.py TARGET [--minutes 10] [--out FOLDER]``.

Needs ``pip install atheris`` in an environment of its own; the product does not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["checker", "engine", "frontends", "shardproof"]):
    from benchmarks.fuzz.targets import TARGETS

from benchmarks.fuzz.run import Campaign


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    chosen = parser.parse_args()
    seeds = chosen.out / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(TARGETS[chosen.target], chosen.minutes, chosen.out)
    for data in campaign.target.seeds():
        (seeds / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    campaign.end = time.monotonic() + campaign.seconds

    def one(data: bytes) -> None:
        if campaign.over:  # libFuzzer ends the process, and nothing after it runs
            campaign.finish("guided")
            os._exit(0)
        campaign.one(data)

    atheris.Setup([sys.argv[0], str(seeds), "-rss_limit_mb=8192"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
