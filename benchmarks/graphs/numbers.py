"""Whether a change of a graph changes numbers: `HARMLESS` of `run.py`, held against PyTorch.

    .venv/bin/python -m benchmarks.graphs.numbers [--only "wrong qwen2"] [--all]

Both graphs are run on the same inputs, from the changed operators on, as far as values differ.
What they read besides is computed, if it is whole numbers, and otherwise any numbers: a change that
is harmless for these is so for the graph's own.  An operator that PyTorch does not have is some
function of its operands; memory that nobody wrote holds the same numbers on both sides.  ``--all``
runs the other mutants too, which is slow.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.graphs.run import DATA, HARMLESS, Case, Graph, cases, sources

#: How many ids there are, and positions that ids of a cache count.
DOMAINS = {"qwen2": 151_936, "bug9": 98_304, "llama": 32_768, "gpt": 50_304}
#: Relative differences up to this one are rounding of 64 bits.
TOLERANCE = 1e-9
DRAWS = 3
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


class World:
    """All ranks of a graph and of a changed one, on one draw of inputs."""

    def __init__(
        self, before: Sequence[Graph], after: Sequence[Graph], seed: int, ids: int
    ) -> None:
        self.sides = [
            [{n["name"]: n for n in graph["nodes"]} for graph in side] for side in (before, after)
        ]
        self.order = [n["name"] for n in before[0]["nodes"]]
        self.seed, self.ids = seed, ids
        self.common: list[dict[str, Any]] = [{} for _ in before]
        #: Values that differ, of both sides, by rank.
        self.changed: list[list[dict[str, Any]]] = [[{} for _ in before] for _ in self.sides]

    def difference(self) -> float:
        """The largest relative difference of an output; infinite behind an unknown operator."""
        largest = 0.0
        for name in self.order:
            before, after = ([ranks[name] for ranks in side] for side in self.sides)
            reads = {r for node in (*before, *after) for r in reads_of(node)}
            if before == after and not any(r in c for c in self.changed[0] for r in reads):
                continue
            if before[0]["op"] == "output":
                for b, a in zip(*self.changed, strict=True):
                    largest = max([largest, *(apart(b[r], a[r]) for r in reads if r in b)])
                continue
            found = [self.run(nodes, side) for side, nodes in enumerate((before, after))]
            for rank, (b, a) in enumerate(zip(*found, strict=True)):
                if apart(b, a) > TOLERANCE:
                    self.changed[0][rank][name], self.changed[1][rank][name] = b, a
                else:
                    self.common[rank][name] = b
        return largest

    def value(self, rank: int, side: int, name: str) -> Any:
        if name in self.changed[side][rank]:
            return self.changed[side][rank][name]
        if name not in self.common[rank]:
            self.common[rank][name] = self.drawn(rank, side, self.sides[0][rank][name])
        return self.common[rank][name]

    def drawn(self, rank: int, side: int, node: Graph) -> Any:
        """A value that both sides have."""
        kind = str(node["dtype"])
        joining = any(c in node["target"] for c in COLLECTIVES)
        called = node["op"] == "call_function" and not joining
        if called and (node["shape"] is None or "int" in kind or kind == "bool"):
            return self.call(node, rank, side)
        ranks = "" if node["op"] == "placeholder" and "int" in kind else rank
        generator = torch.Generator().manual_seed(
            zlib.crc32(f"{node['name']} {ranks} {self.seed}".encode())
        )
        shape = tuple(node["shape"])
        if "int" in kind:
            return torch.randint(0, self.ids, shape, generator=generator)
        if kind == "bool":
            return torch.rand(shape, generator=generator) < 0.5
        return torch.randn(shape, generator=generator)

    def run(self, nodes: Sequence[Graph], side: int) -> list[Any]:
        """A node of all ranks."""
        if any(c in nodes[0]["target"] for c in COLLECTIVES):
            given = [self.argument(n["args"][0], r, side) for r, n in enumerate(nodes)]
            rest = [str(n["args"][1:]) for n in nodes]
            return [some_function([*given, rest, r], n) for r, n in enumerate(nodes)]
        return [self.call(node, rank, side) for rank, node in enumerate(nodes)]

    def call(self, node: Graph, rank: int, side: int) -> Any:
        target = node["target"]
        args = self.argument(node["args"], rank, side)
        kwargs = {k: self.argument(v, rank, side) for k, v in node["kwargs"].items()}
        if target == "<built-in function getitem>":
            if isinstance(args[0], (list, tuple)):
                return args[0][args[1]]
            return some_function([target, *args], node)
        if "wait_tensor" in target:
            return args[0]
        if node["op"] != "call_function" or "empty" in target or not target.startswith("aten."):
            named = [] if "empty" in target else [target, args, kwargs]
            return some_function(named, node)
        overload: Any = torch.ops
        for part in target.split("."):
            overload = getattr(overload, part)
        given = {k: v for k, v in kwargs.items() if k not in ("pin_memory", "device")}
        return overload(*args, **given)

    def argument(self, x: Any, rank: int, side: int) -> Any:
        if isinstance(x, dict) and set(x) == {"n"}:
            return self.value(rank, side, x["n"])
        if isinstance(x, list):
            return [self.argument(i, rank, side) for i in x]
        return x


def some_function(operands: Any, node: Graph) -> Any:
    """Numbers of a node's shape that depend on nothing but its operands."""
    code = zlib.crc32(node["target"].encode())
    for x in leaves(operands):
        held = x.detach().numpy().tobytes() if tensor(x) else str(x).encode()
        code = zlib.crc32(held, code)
    generator = torch.Generator().manual_seed(code)
    return torch.randn(tuple(node["shape"] or (4,)), generator=generator)


def leaves(x: Any) -> list[Any]:
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        return [leaf for item in x for leaf in leaves(item)]
    return [x]


def reads_of(node: Graph) -> set[str]:
    def found(x: Any) -> set[str]:
        if isinstance(x, dict):
            return {x["n"]} if set(x) == {"n"} else set().union(*map(found, x.values()))
        return set().union(*map(found, x)) if isinstance(x, list) else set()

    return found(node["args"]) | found(node["kwargs"])


def apart(b: Any, a: Any) -> float:
    if isinstance(b, (list, tuple)):
        return max((apart(x, y) for x, y in zip(b, a, strict=True)), default=0.0)
    if not tensor(b) or not tensor(a):
        return 0.0 if b is a or b == a else float("inf")
    if b.shape != a.shape:
        return float("inf")
    if b.equal(a):
        return 0.0
    b, a = b.double(), a.double()
    return float((b - a).abs().max() / b.abs().max().clamp(min=1e-30))


def largest(case: Case) -> float:
    """The largest difference that a mutant makes, over several draws."""
    before, after = [], []
    files = sources(DATA / case.parallel)
    for number, file in enumerate(files):
        graph, other = (json.loads(gzip.decompress(file.read_bytes())) for _ in range(2))
        for made in (graph, other):
            if case.change is not None:
                case.change(made)
        if case.mutant is not None and (not case.alone or number == len(files) - 1):
            case.mutant(other)
        before.append(graph)
        after.append(other)
    kind = case.name.removeprefix("wrong ").partition(":")[0]
    return max(World(before, after, s, DOMAINS.get(kind, 8)).difference() for s in range(DRAWS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="wrong")
    parser.add_argument("--all", action="store_true", help="mutants that are not harmless too")
    given = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    bad = 0
    for case in cases():
        if case.mutant is None or not case.name.startswith(given.only):
            continue
        if not (given.all or case.name in HARMLESS):
            continue
        try:
            found = largest(case)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            print(f"{case.name} | not run: {str(error).splitlines()[0]}", flush=True)
            bad += case.name in HARMLESS
            continue
        print(f"{case.name} | {found:.1e}", flush=True)
        bad += (found > TOLERANCE) == (case.name in HARMLESS)
    print(f"{bad} are not what run.py says")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
