"""Generated nnScaler plans, each verdict beside the runtime's rules:

    python -m benchmarks.nnscaler.generated 0 1000            # small operators at random
    python -m benchmarks.nnscaler.generated 0 1000 families   # models that people train
    python -m benchmarks.nnscaler.generated 0 1000 blocks     # convolutions, positions, sizes, ...
    python -m benchmarks.nnscaler.generated 0 1000 pipelines  # stages that share devices, ...
    python -m benchmarks.nnscaler.generated 0 1000 wider      # such, of the rest of the registry
    python -m benchmarks.nnscaler.generated 0 1000 seldom     # such, of calls seldom written
    python -m benchmarks.nnscaler.generated 0 1000 grids      # cut in two ways at once
    python -m benchmarks.nnscaler.generated 0 1000 chunks     # part by part on one device

Every other plan is changed in one place.  Each is judged in a process of its own, which may use so
many CPU seconds (the environment variable SECONDS, 60 by default).  Prints what disagrees and what
is not decided, and at the end how many there were of each kind.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.frontends.plan_changes import changed
from tests.frontends.plan_generator import plans
from tests.frontends.plan_judge import judged

SECONDS = int(os.environ.get("SECONDS", "60"))


def one(seed: int, kind: str) -> dict[str, str]:
    """The judgement of one seed.

    Example: ``{"how": "another number", "truth": "different", "verdict": "refuted", ...}``.
    """
    made = plans(seed, kind)
    how = changed(made, random.Random(seed)) if seed % 2 else "as it was made"
    with tempfile.TemporaryDirectory() as folder:
        judgement = judged(made, seed, Path(folder))
    return {
        "how": how,
        "truth": "different" if judgement.different else "equal",
        "difference": judgement.different,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "wrong": "WRONG" if judgement.wrong else "",
    }


def apart(seed: int, kind: str) -> dict[str, str]:
    """`one` in a process of its own; what takes too long, or fails, is undecided by that name.

    Example: a plan that is not decided in time has the verdict "time".
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            found = one(seed, kind)
        except BaseException as error:  # noqa: BLE001 - told to the parent
            found = {"verdict": "error", "reason": f"{type(error).__name__}: {error}"}
        with os.fdopen(writer, "w") as file:
            json.dump(found, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    unknown = {"how": "", "truth": "unknown", "difference": "", "wrong": ""}
    return unknown | (json.loads(text) if text else {"verdict": "time", "reason": ""})


def main(first: int, last: int, kind: str = "small") -> int:
    """Judge the plans of these seeds; how many verdicts are wrong."""
    found: Counter[tuple[str, str]] = Counter()
    wrong = 0
    for seed in range(first, last):
        row = apart(seed, kind)
        found[row["truth"], row["verdict"]] += 1
        wrong += bool(row["wrong"])
        if row["wrong"] or row["verdict"] not in ("proved", "refuted"):
            shown = f"{row['truth']} {row['difference']}; {row['verdict']} {row['reason'][:200]}"
            print(f"{row['wrong'] or 'open'} {seed}, {row['how']}: {shown}", flush=True)
    for (truth, verdict), count in sorted(found.items()):
        print(f"{truth:10} {verdict:13} {count}")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]) else 0)
