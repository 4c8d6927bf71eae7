"""Verify the pairs of graphs of ../shared/entangle, and wrong mutants of one of them.

.venv/bin/python -m benchmarks.graphs.run --csv benchmarks/graphs/results.csv [--only gpt_tp2]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.graphs.mutants import mutants

DATA = Path(__file__).resolve().parents[3] / "shared" / "entangle" / "graphs"
COLUMNS = ("case", "expected", "verdict", "as_expected", "operator", "layer", "s", "check")
#: Seconds that the peer takes, as its authors give them, on 16 cores.
PEER = {"gpt_tp8_layer8": 175, "aws_llama_tp8_layer8": 237}
#: Changes by rule that change nothing: ids beyond the vocabulary, of which there are none; ids of a
#: rank that rank 0 sends it.
HARMLESS = frozenset(
    {"wrong qwen2: number, ge_1", "wrong qwen2: operator, add"}
    | {"wrong qwen2: left out, add of the last rank", "wrong qwen2: operator, lt_1"}
    # A number that is 0 for all ids; the shape of unwritten memory; columns that were just written.
    | {"wrong qwen2: factor of a sum, add of the last rank"}
    | {f"wrong qwen2: another first operand, {name}" for name in ("empty_like_1", "view_5")}
    # A difference that is squared.
    | {"wrong bug6: operands swapped, sub", "wrong bug6: operands swapped, sub_1"}
    | {"wrong bug9: another input, primals_1 of the last rank"}
)
Graph = dict[str, Any]


class Case(NamedTuple):
    """Both sides (files or folders of `DATA`), the relations (empty: none), what is true; what is
    changed on all ranks of the parallel side, and then made wrong."""

    name: str
    single: str
    parallel: str
    expected: str
    relations: str = ""
    change: Callable[[Graph], None] | None = None
    mutant: Callable[[Graph], None] | None = None
    #: Whether the mutant is the last rank's alone.
    alone: bool = False


#: The second step's inputs are the other halves.
STEPS = """
inputs.arg2_1 = {starts = [[0]]}
inputs.arg3_1 = {starts = [[0]]}
inputs.arg5_1 = {of = "arg2_1", starts = [[4]]}
inputs.arg6_1 = {of = "arg3_1", starts = [[4]]}
"""


#: What AOTAutograd keeps for the derivative is no output that is compared.
LOSSES = "".join(
    f'[[outputs]]\nsingle = "{name}"\nparallel = "{name}"\n' for name in ("div_2", "zeros")
)
#: Its constants, which the export lost, are not said to be 0 where a fault is to be refuted.
BROKEN = """
accepted = ["positions 0 to 63"]
inputs."p9.10" = {dim = 1, pieces = [[0, 2048], [2048, 512], [2560, 512]]}
constants."constant.22" = "any"
"""
#: Qwen2's fused weights, and that the engine's attention is a softmax over all tokens.
FUSED = """
accepted = ["vllm.unified_attention_with_output"]
inputs.arg3_1 = {pieces = [[0, 1536], [1536, 256], [1792, 256]]}
inputs.arg4_1 = {pieces = [[0, 1536], [1536, 256], [1792, 256]]}
inputs.arg9_1 = {pieces = [[0, 8960], [8960, 8960]]}
"""
#: Nothing arrives for the parameters, which these graphs hand out as outputs.
ARRIVING = f"zeros = {json.dumps([f'tangents_{i}' for i in range(1, 21)])}\n"
#: Nothing arrives for the parameters of the graph with experts.
UNTIED = f"zeros = {json.dumps([f'tangents_{i}' for i in range(1, 18)])}\n"
#: Gradients of all norms of that graph, which Megatron sums over the ranks behind it.
NORMS = f"partial = {json.dumps([f'add_{i}' for i in (47, 48, 50, 51, 52, 53, 56, 57)])}\n"
#: Gradients of norms of heads, which Megatron sums over the ranks behind the graph.
HEADS = 'partial = ["add_17", "add_18", "add_19", "add_20"]\n'
#: The nine gradients that Megatron sums over the ranks behind the graph.
NINE = (
    'partial = ["add_24", "add_25", "add_15", "add_19", "add_20", "add_17", "add_18", "add_14", '
    '"add_8"]\n'
)
#: The tenth, summed as well.
TEN = NINE.replace('"add_8"]', '"add_8", "add_13"]')


def argument(name: str, place: int, value: Any) -> Callable[[Graph], None]:
    def change(graph: Graph) -> None:
        _named(graph, name)["args"][place] = value

    return change


def keyword(name: str, key: str, value: Any) -> Callable[[Graph], None]:
    def change(graph: Graph) -> None:
        _named(graph, name)["kwargs"][key] = value

    return change


def _named(graph: Graph, name: str) -> Graph:
    (node,) = (n for n in graph["nodes"] if n["name"] == name)
    return node  # type: ignore[no-any-return]


def _halved(graph: Graph) -> None:
    """The fixed twin of the accumulated gradients: each step counts by half."""
    for source, reader, place in (("mean", "add_1", 1), ("mean_1", "add_3", 1)):
        at = next(i for i, n in enumerate(graph["nodes"]) if n["name"] == source)
        half = {**graph["nodes"][at], "name": f"{source}_half", "target": "aten.mul.Scalar"}
        graph["nodes"].insert(at + 1, {**half, "args": [{"n": source}, 0.5], "kwargs": {}})
        _named(graph, reader)["args"][place] = {"n": f"{source}_half"}


def _reduced(source: str, group: str) -> Callable[[Graph], None]:
    """A value summed over a group, for all that read it behind."""

    def change(graph: Graph) -> None:
        at = next(i for i, n in enumerate(graph["nodes"]) if n["name"] == source)
        own = graph["nodes"][at]
        found = {"op": "call_function", "kwargs": {}, "src": "put right"}
        found |= {"shape": own["shape"], "dtype": own["dtype"]}
        total = {**found, "name": f"{source}_sum", "target": "_c10d_functional.all_reduce.default"}
        waited = {**found, "name": f"{source}_all"}
        waited["target"] = "_c10d_functional.wait_tensor.default"
        for node in graph["nodes"][at + 1 :]:
            node["args"] = _renamed(node["args"], source, waited["name"])
        total["args"] = [{"n": source}, "sum", group]
        waited["args"] = [{"n": total["name"]}]
        graph["nodes"][at + 1 : at + 1] = [total, waited]

    return change


def _routed(graph: Graph) -> None:
    """The fixed twin of the experts: the router's gradient is summed over the ranks, and what
    arrives for the rows of an expert is gathered from the ranks that the rows were sent to (the
    graph has zeros there: a collective that autograd does not see)."""
    at = next(i for i, n in enumerate(graph["nodes"]) if n["name"] == "zeros_1")
    like = {"op": "call_function", "kwargs": {}, "src": "put right", "dtype": "float16"}
    gather = "_c10d_functional.all_gather_into_tensor.default"
    rows = graph["nodes"][at]["shape"]
    graph["nodes"][at : at + 1] = [
        {**like, "name": name, "target": target, "args": args, "shape": shape}
        for name, target, args, shape in (
            ("sent", "aten.mul.Tensor", [{"n": "view_46"}, {"n": "unsqueeze"}], [16384, 1536]),
            ("gathered", gather, [{"n": "sent"}, 2, "25"], [32768, 1536]),
            ("back", "_c10d_functional.wait_tensor.default", [{"n": "gathered"}], [32768, 1536]),
            (
                "zeros_1",
                "aten.index.Tensor",
                [{"n": "back"}, [{"n": "nonzero"}]],
                rows,
            ),
        )
    ]
    _reduced("mm_12", "12")(graph)


def _renamed(x: Any, old: str, new: str) -> Any:
    if x == {"n": old}:
        return {"n": new}
    return [_renamed(item, old, new) for item in x] if isinstance(x, list) else x


#: Wrong changes of both ranks of gpt, TP 2, one layer.
MUTANTS: dict[str, Callable[[Graph], None]] = {
    "lower bound of the labels' mask": argument("lt_1", 1, 7),
    "upper bound of the labels' mask": argument("ge_1", 1, 49000),
    "lower bound of the ids' mask": argument("lt", 1, 7),
    "attention scale": keyword("baddbmm", "alpha", 0.25),
    "baddbmm reads unwritten memory": keyword("baddbmm", "beta", 1.0),
    "mask value": argument("masked_fill", 2, 0.0),
    "attention mask removed": argument("view_9", 0, {"n": "view_8"}),
    "dropout": argument("native_dropout", 1, 0.2),
    "attention dropout": argument("native_dropout_1", 1, 0.2),
    "bias of q, k, v dropped": argument("view_4", 0, {"n": "view_3"}),
    "bias of the projection dropped": argument("native_dropout_2", 0, {"n": "copy_1"}),
    "bias of the MLP dropped": argument("gelu", 0, {"n": "view_19"}),
    "residual dropped": argument("fused_layer_norm_affine_fwd_1", 0, {"n": "getitem_10"}),
    "epsilon": argument("fused_layer_norm_affine_fwd", 4, 0.001),
    "weight of another norm": argument("fused_layer_norm_affine_fwd", 1, {"n": "primals_8"}),
    "k read for q": argument("view_5", 0, {"n": "getitem_6"}),
    "v read for k": argument("view_7", 0, {"n": "getitem_7"}),
    "softmax over queries": argument("_softmax", 1, -2),
    "no gather before q, k, v": argument("copy_1", 1, {"n": "empty_1"}),
    "loss not masked": argument("sum_2", 0, {"n": "view_34"}),
    "maximum not reduced": argument("unsqueeze_1", 0, {"n": "getitem_20"}),
    "sum of exponentials not reduced": argument("log", 0, {"n": "sum_1"}),
    "logit of the label not reduced": argument("view_31", 0, {"n": "view_30"}),
}


def cases() -> Iterator[Case]:
    for layers in (1, 2, 4, 8):
        for ranks in (2, 4, 6, 8):
            yield Case(
                f"gpt_tp{ranks}_layer{layers}",
                f"gpt/paral1_layer{layers}",
                f"gpt/paral{ranks}_layer{layers}",
                "proved",
                LOSSES,
            )
    for layers in (1, 2, 4, 8):
        for ranks in (2, 4, 8):
            pair = f"aws_llama/tp1_layer{layers}", f"aws_llama/tp{ranks}_layer{layers}"
            yield Case(f"aws_llama_tp{ranks}_layer{layers}", *pair, "proved")
    broken = "aws_llama/tp1_layer1", "aws_llama/tp2_layer1.broken"
    yield Case("aws_llama_tp2_broken", *broken, "refuted", BROKEN)
    for ranks in (2, 4):
        pair = "qwen2/paral1_layer1", f"qwen2/paral{ranks}_layer1"
        yield Case(f"qwen2_tp{ranks}", *pair, "proved")
    steps = "bug_grad_accumulation/1step", "bug_grad_accumulation/2step.bug"
    yield Case("bug6", *steps, "refuted", STEPS)
    yield Case("bug6_fixed", *steps, "proved", STEPS, _halved)
    config = "bug_missing_allreduce_under_wrong_config"
    seven = f"{config}/tp1", f"{config}/tp2.bug"
    yield Case("bug7", *seven, "refuted", ARRIVING)
    fixed = _reduced("_unsafe_view_11", "12")
    yield Case("bug7_fixed", *seven, "proved", ARRIVING + HEADS, fixed)
    switch = "bug_missing_switchmlp_allreduce"
    yield Case("bug8", f"{switch}/tp1", f"{switch}/tp2.bug", "refuted", UNTIED + NORMS)
    routed = f"{switch}/tp1", f"{switch}/tp2.bug"
    yield Case("bug8_fixed", *routed, "proved", UNTIED + NORMS, _routed)
    norm = "bug_missing_layernorm_allreduce"
    nine = f"{norm}/tp1", f"{norm}/tp2.bug"
    yield Case("bug9", *nine, "refuted", ARRIVING)
    yield Case("bug9_nine_stated", *nine, "refuted", ARRIVING + NINE)
    yield Case("bug9_fixed", *nine, "proved", ARRIVING + TEN)
    pair = "gpt/paral1_layer1", "gpt/paral2_layer1"
    for what, change in MUTANTS.items():
        yield Case(f"wrong gpt: {what}", *pair, "refuted", LOSSES, change)
    yield from wrong("llama", "aws_llama/tp1_layer1", "aws_llama/tp2_layer1", BROKEN, None, 36)
    yield from wrong("qwen2", "qwen2/paral1_layer1", "qwen2/paral2_layer1", FUSED, None, 40)
    yield from wrong("bug6", *steps, STEPS, _halved, 40)
    yield from wrong("bug9", *nine, ARRIVING + TEN, None, 36)


def wrong(
    name: str,
    single: str,
    parallel: str,
    relations: str,
    change: Callable[[Graph], None] | None,
    count: int,
) -> Iterator[Case]:
    """Mutants by rule of a right pair."""
    graph = json.loads(gzip.decompress(sources(DATA / parallel)[0].read_bytes()))
    if change is not None:
        change(graph)
    for what, mutant, alone in mutants(graph, [], count):
        called = f"wrong {name}: {what}"
        expected = "proved" if called in HARMLESS else "refuted"
        yield Case(called, single, parallel, expected, relations, change, mutant, alone)


def sources(folder: Path) -> list[Path]:
    """A file per rank: of a case that has several graphs, those of both passes."""
    both = any(folder.glob("both.*"))
    found = sorted(folder.glob("*.g0.r*.json.gz"))
    return [f for f in found if not (both and f.name.startswith("bw."))]


def files(folder: Path, target: Path, case: Case | None) -> Path:
    """A folder with one file per rank, changed as the case says (None: not at all)."""
    target.mkdir()
    found = sources(folder)
    for number, file in enumerate(found):
        graph = json.loads(gzip.decompress(file.read_bytes()))
        if case is not None and case.change is not None:
            case.change(graph)
        here = case is not None and (not case.alone or number == len(found) - 1)
        if case is not None and case.mutant is not None and here:
            case.mutant(graph)
        (target / file.name).write_bytes(gzip.compress(json.dumps(graph).encode()))
    return target


def verify(case: Case, scratch: Path) -> dict[str, Any]:
    single = files(DATA / case.single, scratch / "single", None)
    parallel = files(DATA / case.parallel, scratch / "parallel", case)
    command = [sys.executable, "-m", "shardproof", "verify", str(single), str(parallel)]
    command += ["--json", "--no-cache", "--out", str(scratch / "run")]
    if case.relations:
        (scratch / "relations.toml").write_text(case.relations)
        command += ["--relations", str(scratch / "relations.toml")]
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return _row(case, "none in 300 s", {}, 300.0, "")
    seconds = time.perf_counter() - start
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return _row(case, f"exit {done.returncode}", {}, seconds, "")
    checked = ""
    if found["verdict"] == "proved":
        second = [sys.executable, "-m", "shardproof", "check", str(scratch / "run")]
        good = subprocess.run(second, capture_output=True, check=False).returncode == 0
        checked = "holds" if good else "does not hold"
    first = (found.get("findings") or [{}])[0]
    return _row(case, found["verdict"], first, seconds, checked)


def _row(
    case: Case, verdict: str, first: dict[str, Any], seconds: float, checked: str
) -> dict[str, Any]:
    return {
        "case": case.name,
        "expected": case.expected,
        "verdict": verdict,
        "as_expected": "yes" if verdict == case.expected else "no",
        "operator": first.get("operator", ""),
        "layer": first.get("layer", ""),
        "s": f"{seconds:.1f}",
        "check": checked,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """What a reader wants to see of the rows, beside the peer's seconds; mutants by set."""
    lines = ["| case | verdict | `check` | s | peer s |", "|---|---|---|--:|--:|"]
    sets: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        first, _, what = row["case"].partition(": ")
        if what:
            sets.setdefault(first, []).append(row)
            continue
        peer = PEER.get(row["case"], "")
        lines.append(f"| {row['case']} | {row['verdict']} | {row['check']} | {row['s']} | {peer} |")
    if sets:
        lines += ["", "| mutants | made | refuted | inconclusive | proved | of these harmless |"]
        lines.append("|---|--:|--:|--:|--:|--:|")
    for name, held in sets.items():
        count = [sum(r["verdict"] == v for r in held) for v in ("refuted", "proved")]
        good = sum(r["verdict"] == r["expected"] == "proved" for r in held)
        open_ones = len(held) - sum(count)
        lines.append(f"| {name} | {len(held)} | {count[0]} | {open_ones} | {count[1]} | {good} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--only", default="", help="cases whose name begins with this")
    given = parser.parse_args()
    if not DATA.is_dir():
        print(f"no graphs at {DATA}", file=sys.stderr)
        return 3
    rows = []
    for case in cases():
        if not case.name.startswith(given.only):
            continue
        scratch = Path(tempfile.mkdtemp())
        try:
            rows.append(verify(case, scratch))
        finally:
            shutil.rmtree(scratch)
        print(rows[-1], flush=True)
    if given.csv is not None and rows:
        with given.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    print(table(rows))
    wrong = [row for row in rows if {row["verdict"], row["expected"]} == {"proved", "refuted"}]
    print(f"{sum(row['as_expected'] == 'yes' for row in rows)} of {len(rows)} as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
