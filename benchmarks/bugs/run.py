"""Run `shardproof verify` on the fourteen plans with a bug put in, and on the plan without one.

Every run is the command of a user, a process of its own with no cache of verdicts.  What a report
must say of each bug is in `EXPECTED`; the table says what it did say.  `README.md` beside this file
says how to run it and what it gave.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]

_NAME: Final = "llama3_{}_gbs512_ly2_h32_hi4096_sq128.pkl"
SINGLE: Final = _NAME.format("default_dp1_pp1_tp1_nm1")
RIGHT: Final = _NAME.format("default_dp2_pp2_tp2_nm2")


class Bug(NamedTuple):
    """``what``: what was changed; the rest: parts of what a report must say, or all of it."""

    what: str
    operator: str
    layer: str
    ranks: tuple[int, ...]
    cause: str
    repair: str


EXPECTED: Final[dict[str, Bug]] = {
    "br01": Bug(
        "forward all-reduce is an identity (adapter 987)",
        "add", "layers.0", (0, 1), "missing reduction",
        "an all-reduce over ranks [0, 1] in place of identity (adapter 987)",
    ),
    "br02": Bug(
        "the same adapter writes nothing",
        "add", "layers.0", (0, 1), "missing reduction",
        "an all-reduce over ranks [0, 1] inserted after linear",
    ),
    "br03": Bug(
        "the same all-reduce is an all-gather",
        "add", "layers.0", (0, 1), "wrong collective",
        "an all-reduce over ranks [0, 1] in place of all-gather (adapter 987)",
    ),
    "br04": Bug(
        "all-gather is an all-reduce (adapter 502)",
        "all_reduce", "layers.1", (2, 3), "wrong collective",
        "an all-gather of dimension 2 over ranks [2, 3] in place of all-reduce (adapter 502)",
    ),
    "br05": Bug(
        "fused adapter does not reduce backward (1421)",
        "backward of mul", "layers.1.ffn_norm", (2, 3), "missing reduction",
        "an all-reduce over ranks [2, 3] in place of identity (adapter 1421)",
    ),
    "br06": Bug(
        "moves go to the other rank's peer (adapter 502)",
        "all_gather", "between layers.0 and layers.1", (2, 3), "wrong peers",
        "the peers of the moves exchanged in adapter 502",
    ),
    "br07": Bug(
        "epsilon 1e-5 is 2 on rank 0",
        "add", "layers.0.attention_norm", (0,), "wrong constant",
        "other about 1e-05 in place of 2",
    ),
    "br08": Bug(
        "exponent 2 is 1 on rank 0",
        "pow", "layers.0.ffn_norm", (0,), "wrong constant",
        "exponent 2 in place of 1",
    ),
    "br09": Bug(
        "epsilon 1e-5 is 2 on ranks 0 and 1",
        "add", "layers.1.attention_norm", (0, 1), "wrong constant",
        "other about 1e-05 in place of 2",
    ),
    "br10": Bug(
        "one of its gradients twice (cell 1015)",
        "add_n", "layers.1.attention_norm", (2,), "addend taken twice",
        "added once, not twice",
    ),
    "br11": Bug(
        "two gradients in reverse (cell 312)",
        "backward of apply_rotary_emb", "layers.1.attention", (2,), "gradients in the wrong order",
        "gradients 0 and 1 of the backward of apply_rotary_emb in `layers.1.attention` in "
        "the other",
    ),
    "br12": Bug(
        "scores divided by 4 on rank 0",
        "div", "layers.0.attention", (0,), "wrong constant",
        "other about 11.3137 in place of 4",
    ),
    "br13": Bug(
        "scores divided by 4 on ranks 0 and 1",
        "div", "layers.0.attention", (0, 1), "wrong constant",
        "other about 11.3137 in place of 4",
    ),
    "br14": Bug(
        "no backward of the second microbatch on rank 0",
        "segment 269", "layers.1.attention_norm", (0,), "missing call",
        "segment 269 called for microbatch 1 too on ranks [0]",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run said; ``right``: whether operator, layer, ranks, cause and repair are those
    expected; ``seconds``: of the whole command."""

    plan: str
    changed: str
    verdict: str
    operator: str
    layer: str
    ranks: str
    right_ranks: str
    cause: str
    repair: str
    causes: int
    right: bool
    seconds: float


def measure(name: str, plan: Path, single: Path, folder: Path) -> Measured:
    """One run of the command; raises ``SystemExit`` if it gives no result."""
    command = [
        sys.executable, "-m", "shardproof", "verify", str(single), str(plan),
        "--json", "--no-cache", "--out", str(folder / name),
    ]  # fmt: skip
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"{name}: exit code {done.returncode}: {done.stderr[-400:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    findings = result["findings"]
    first = findings[0] if findings else {}
    bug = EXPECTED.get(name)
    return Measured(
        name,
        bug.what if bug else "nothing",
        result["verdict"],
        first.get("operator", ""),
        first.get("layer", ""),
        _spoken(first.get("ranks", ())),
        _spoken(first.get("agreeing_ranks", ())),
        first.get("cause", ""),
        first.get("repair", ""),
        len({f["group"] for f in findings if f["group"]}),
        result["verdict"] == "proved" if bug is None else _is_right(result, bug),
        seconds,
    )


def _is_right(result: dict[str, Any], bug: Bug) -> bool:
    first = result["findings"][0]
    return (
        result["verdict"] == "refuted"
        and first["operator"] == bug.operator
        and bug.layer in first["layer"]
        and tuple(first["ranks"]) == bug.ranks
        and first["cause"] == bug.cause
        and bug.repair in first["repair"]
        and {f["group"] for f in result["findings"] if f["group"]} == {1}
    )


def _spoken(ranks: Sequence[int]) -> str:
    return " ".join(map(str, ranks))


def table(found: Sequence[Measured]) -> str:
    """Rows of a Markdown table."""
    lines = [
        "| plan | changed | verdict | operator | layer | ranks | right | cause | as expected | s |",
        "|---|---|---|---|---|---|---|---|---|--:|",
    ]
    lines += [
        f"| {m.plan} | {m.changed} | {m.verdict} | {m.operator} | {m.layer} | {m.ranks} | "
        f"{m.right_ranks} | {m.cause} | {'yes' if m.right else '**no**'} | {m.seconds:.1f} |"
        for m in found
    ]
    return "\n".join(lines)


def main() -> int:
    """Exit with 0 if every plan was judged as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=Path, default=ROOT.parent / "shared" / "plans")
    parser.add_argument("--csv", type=Path, help="write the table here")
    parser.add_argument("--only", nargs="*", default=[], help="names of plans, as in br07")
    asked = parser.parse_args()
    plans = {"none": asked.plans / RIGHT} | {
        name: asked.plans / "bugs" / _NAME.format(f"{name}_dp2_pp2_tp2_nm2") for name in EXPECTED
    }
    found = []
    with tempfile.TemporaryDirectory(prefix="shardproof-bugs-") as folder:
        for name, plan in plans.items():
            if not asked.only or name in asked.only:
                found.append(measure(name, plan, asked.plans / SINGLE, Path(folder)))
                print(f"{name}: {found[-1].verdict}, {found[-1].seconds:.1f} s", file=sys.stderr)
    print(table(found))
    if asked.csv is not None:
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [f.name for f in fields(Measured)])
            writer.writeheader()
            writer.writerows({**asdict(m), "seconds": f"{m.seconds:.2f}"} for m in found)
    return 0 if all(m.right for m in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
