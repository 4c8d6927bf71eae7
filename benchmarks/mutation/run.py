"""Mutate small zoo plans and real nnScaler plans by the hundred; count what is caught.

Every outcome is appended to `outcomes.jsonl` (in the folder that ``--out`` names), one line each,
with the commit that it was made on; a run that is repeated goes on where the last one ended.
``--again`` makes those anew that were inconclusive or disagreed.  ``--table`` only counts what is
there and writes the tables of `README.md` and `results.csv`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
# Small arrays gain nothing from threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from shardproof.engine.plan.ir import Plan  # noqa: E402
from shardproof.engine.plan_files import store  # noqa: E402
from shardproof.frontends.zoo import build  # noqa: E402
from shardproof.inputs.assume import Assumptions, Groups  # noqa: E402
from shardproof.inputs.load import load_plan  # noqa: E402
from shardproof.mutation import campaign  # noqa: E402
from shardproof.mutation.label import LABELS  # noqa: E402
from shardproof.run.mutant import verify  # noqa: E402

PLANS = ROOT.parent / "shared" / "plans"
LLAMA = "llama3_default_{}_gbs512_ly2_h32_hi4096_sq128.pkl"
MOE = "moe_default_{}_gbs1024_ly2_h16_hi512_sq128_a2_r16.pkl"

TINY: dict[str, dict[str, Any]] = {
    "llama3-8b": {"hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 24},
    "gpt3-175b": {"hidden": 16, "heads": 4, "ffn": 24},
    "mixtral-8x7b": {
        "hidden": 16,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 12,
        "experts": 4,
        "chosen": 2,
    },
}


class Case(NamedTuple):
    """``make`` builds or reads the plan; ``real``: it is nnScaler's."""

    name: str
    make: Callable[[], Plan]
    real: bool = False


def zoo(model: str, name: str, **settings: Any) -> Case:
    common = {"layers": 1, "vocabulary": 32, "sequence": 8}
    return Case(name, lambda: build(model, **{**common, **TINY[model], **settings}))


def real(name: str, pattern: str, degrees: str, groups: Groups = "by rank") -> Case:
    single = PLANS / pattern.format("dp1_pp1_tp1_nm1")
    parallel = PLANS / pattern.format(degrees)
    return Case(name, lambda: load_plan(single, parallel, Assumptions(groups)), real=True)


CASES: tuple[Case, ...] = (
    zoo("llama3-8b", "llama tp2 sp", tp=2, sequence_parallel=True),
    zoo("llama3-8b", "llama tp2 mb2", tp=2, microbatches=2),
    zoo("llama3-8b", "llama pp2 mb2", pp=2, microbatches=2, layers=2),
    zoo("llama3-8b", "llama dp2 zero1 mb2", dp=2, zero=1, microbatches=2),
    zoo("llama3-8b", "llama cp2", cp=2),
    zoo("gpt3-175b", "gpt tp2", tp=2),
    zoo("mixtral-8x7b", "mixtral dp2 ep2", dp=2, ep=2),
    zoo(
        "llama3-8b",
        "llama dp2 tp2 pp2 mb2",
        dp=2,
        tp=2,
        pp=2,
        microbatches=2,
        layers=2,
    ),
    real("nnScaler llama dp2 pp2 tp2 nm2", LLAMA, "dp2_pp2_tp2_nm2"),
    real("nnScaler moe dp2 pp2 tp2 nm2", MOE, "dp2_pp2_tp2_nm2"),
    real("nnScaler llama dp16 pp4 tp1 nm8", LLAMA, "dp16_pp4_tp1_nm8"),
    real("nnScaler llama dp2 pp16 tp2 nm2", LLAMA, "dp2_pp16_tp2_nm2", "as recorded"),
)


def main() -> None:
    """Run what is asked for, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=180, help="mutants of each plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of plans")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutation")
    parser.add_argument("--again", action="store_true", help="what was not as it should be")
    parser.add_argument("--table", action="store_true", help="only count, write results.csv")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.table:
        rows = read(chosen.out)
        write_csv(rows)
        print(markdown(rows))
        return
    end = time.monotonic() + chosen.seconds
    cases = [c for c in CASES if not chosen.only or any(part in c.name for part in chosen.only)]
    for case in cases:
        run(case, chosen.seed, range(chosen.count), chosen.out, end, again=chosen.again)


def commit() -> str:
    """The commit of this checkout, marked where files differ from it; "" outside of one."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


def run(
    case: Case, seed: int, numbers: Iterable[int], out: Path, end: float, *, again: bool
) -> None:
    """Mutants of one plan that are not on record yet (``again``: or not well)."""
    made_on = commit()
    done = {
        (row["plan"], row["seed"], row["number"])
        for row in read(out)
        if not again or row["commit"] == made_on or is_as_it_should_be(row)
    }
    todo = [n for n in numbers if (case.name, seed, n) not in done]
    if not todo or time.monotonic() > end:
        return
    plan = case.make()

    def keep(outcome: campaign.Outcome, mutant: Plan) -> None:
        row = {"plan": case.name, "seed": seed, "commit": made_on, **outcome.to_dict()}
        row["reason"] = str(row["reason"])[-2000:]
        with (out / "outcomes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if outcome.disagreement:
            print(f"{case.name}: {outcome.number}: {outcome.disagreement}: {outcome.what}")
            store.save(mutant, out / f"{case.name} {seed} {outcome.number}".replace(" ", "-"))

    for _ in campaign.run(plan, seed, todo, verify, keep, out / "cache"):
        if time.monotonic() > end:
            return


def read(out: Path) -> list[dict[str, Any]]:
    """The last outcome of every mutant."""
    path = out / "outcomes.jsonl"
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({(row["plan"], row["seed"], row["number"]): row for row in rows}.values())


def is_as_it_should_be(row: Mapping[str, Any]) -> bool:
    return row["verdict"] in ("proved", "refuted", "rejected") and not row["disagreement"]


# -- tables --------------------------------------------------------------------------------------


def counted(rows: Sequence[Mapping[str, Any]], key: str) -> dict[tuple[str, str], Counter[str]]:
    """(value of ``key``, label) -> how many of each verdict."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        place = (row[key], row["label"]["label"])
        found.setdefault(place, Counter())[row["verdict"]] += 1
    return found


def write_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Mutants by plan, kind, label and verdict."""
    counts = Counter(
        (row["commit"], row["plan"], row["kind"], row["label"]["label"], row["verdict"])
        for row in rows
    )
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("commit", "plan", "kind", "label", "verdict", "mutants"))
        for key, count in sorted(counts.items()):
            writer.writerow((*key, count))


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables of `README.md`."""
    parts = [f"{len(rows)} mutants of {len({row['plan'] for row in rows})} plans.", ""]
    for key, names in (("kind", None), ("plan", [case.name for case in CASES])):
        found = counted(rows, key)
        order = names or sorted({place for place, _ in found})
        parts += [f"| {key} | label | {' | '.join(campaign.VERDICTS)} |"]
        parts += ["|---|---|" + "--:|" * len(campaign.VERDICTS)]
        for place in order:
            for label in LABELS:
                if (place, label) in found:
                    cells = " | ".join(str(found[place, label][v] or "") for v in campaign.VERDICTS)
                    parts.append(f"| {place} | {label} | {cells} |")
        parts.append("")
    everything = counted([{**row, "all": "all"} for row in rows], "all")
    for label in LABELS:
        held = everything.get(("all", label), Counter())
        parts.append(f"- {label}: " + ", ".join(f"{held[v]} {v}" for v in campaign.VERDICTS))
    made_on = Counter(row["commit"] for row in rows)
    parts += ["", "Commits: " + ", ".join(f"{name} ({n})" for name, n in made_on.items()) + "."]
    parts += ["", "Inconclusive:", ""]
    parts += [
        f"- {row['plan']}, seed {row['seed']}, mutant {row['number']} ({row['label']['label']}): "
        f"{row['what']}: {row['reason']}"
        for row in rows
        if row["verdict"] == "inconclusive"
    ]
    wrong = [row for row in rows if row["disagreement"]]
    parts += ["", f"Disagreements: {len(wrong)}."]
    parts += [
        f"- {row['plan']}, seed {row['seed']}, mutant {row['number']}: {row['disagreement']}: "
        f"{row['what']}"
        for row in wrong
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
