"""Generated nnScaler plans, each verdict beside the runtime's rules:

    python -m benchmarks.nnscaler.generated 0 1000            # small operators at random
    python -m benchmarks.nnscaler.generated 0 1000 families   # models that people train

Every other plan is changed in one place.  Prints what disagrees and what is not decided, and at the
end how many there were of each kind.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.frontends.plan_changes import changed
from tests.frontends.plan_generator import plans
from tests.frontends.plan_judge import judged


def main(first: int, last: int, families: bool = False) -> int:
    """Judge the plans of these seeds; how many verdicts are wrong."""
    found: Counter[tuple[str, str]] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            made = plans(seed, families)
            how = changed(made, random.Random(seed)) if seed % 2 else "as it was made"
            judgement = judged(made, seed, Path(folder))
            truth = "different" if judgement.different else "equal"
            found[truth, judgement.verdict] += 1
            wrong += judgement.wrong
            if judgement.wrong or judgement.verdict not in ("proved", "refuted"):
                mark = "WRONG" if judgement.wrong else "open"
                print(f"{mark} {seed}, {how}: {truth} {judgement.different}; "
                      f"{judgement.verdict} {judgement.reason[:200]}", flush=True)  # fmt: skip
    for (truth, verdict), count in sorted(found.items()):
        print(f"{truth:10} {verdict:13} {count}")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2]), "families" in sys.argv[3:]) else 0)
