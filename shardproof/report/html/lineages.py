"""Where tensors are replicated, sharded or partial, by layer: data of a picture and of a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from shardproof.engine.lineage.lineage import BROADCAST, Lineage, Term
from shardproof.engine.plan.collectives import COMMUNICATION
from shardproof.engine.plan.ir import MICROBATCH, Plan
from shardproof.engine.records.run import PARALLEL, Run, StageRecord
from shardproof.engine.schedule.instances import Row, Unrolled

#: In the order of the legend.
KINDS: Final = ("replicated", "sharded", "partial", "other", "unknown")
#: Status of a layer, the worst first.
STATUS: Final = ("failing", "open", "proved", "not stated", "dead", "given", "unchecked")
#: What operators outside of any module are listed under.
UNNAMED: Final = "(outside of modules)"
#: Rows of operators that one group of layers lists.
MOST_ROWS: Final = 120

_NUMBER: Final = re.compile(r"\d+")


def describe(lineage: Lineage | None, batch: frozenset[str], known: int) -> tuple[str, str]:
    """What a local tensor is of its single-device value: a kind, and words.

    ``batch``: the coordinates that divide the batch; a slice of the batch is not a shard.
    ``known``: nodes from this number on are values that the single device does not have.
    """
    if lineage is None:
        return "unknown", "unknown"
    if not lineage.terms:
        return "replicated", "zero"
    term = lineage.terms[0]
    if any(t.node >= known for t in lineage.terms):
        return "other", "no single-device value"
    if any(t.places for t in lineage.terms):
        return "sharded", f"values side by side ({len(lineage.terms)})"
    partial = _partial(term, batch)
    if partial:
        return "partial", partial
    words = _sharded(lineage.shape, term, batch)
    return ("sharded", ", ".join(words)) if words else ("replicated", "replicated")


def _partial(term: Term, batch: frozenset[str]) -> str:
    share, slices = Fraction(1), False
    for part in term.parts:
        if part.start.terms and set(part.start.axes) <= batch:
            slices = True
        elif part.size != part.extent:
            share *= Fraction(part.size, part.extent)
    if share != 1:
        return f"partial sum, {share} of it"
    return "partial sum over slices of the batch" if slices else ""


def _sharded(shape: Sequence[int], term: Term, batch: frozenset[str]) -> list[str]:
    words = []
    for number, atoms in enumerate(term.layout.dims):
        held = total = 1
        for atom in atoms:
            sliced = atom.start.terms and set(atom.start.axes) <= batch
            if atom.axis != BROADCAST and not atom.full and not sliced and atom.extent:
                held, total = held * atom.size, total * atom.extent
        share = Fraction(held, total)
        if share != 1:
            words.append(f"{share} of dimension {number}")
    return words


# -- layers --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Layer:
    """What a layer's parallel operators are.  ``counts``: results by direction and kind;
    ``operators``: (operator, what its result is, status) with the ranks that run it."""

    name: str
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    operators: dict[tuple[str, str, str, str], set[int]] = field(default_factory=dict)
    status: Counter[str] = field(default_factory=Counter)
    templates: set[int] = field(default_factory=set)

    @property
    def worst(self) -> str:
        return next((s for s in STATUS if self.status[s]), "unchecked")


def layer_of(module: str) -> str:
    """The layer that a module path belongs to: "layers.3" of "layers.3.attention.wq"."""
    parts = module.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0] + 1]) if numbered else parts[0]


def by_layer(run: Run, parallel: Unrolled, proved: set[int], failing: set[int]) -> list[Layer]:
    """Layers in the order of the program.  ``proved``: templates; ``failing``: parallel rows."""
    known, refutes = _known(run), run.certificate.verdict == "refuted"
    plan = run.plan
    batch = frozenset([*plan.replica_axes, MICROBATCH])
    stages = {stage.row: stage for stage in run.stages if stage.side == PARALLEL}
    layers: dict[str, Layer] = {}
    readers = _readers(plan, parallel)
    for number, row in enumerate(parallel.rows):
        if not row.outputs or row.kind in ("load", "seed") or _is_table(row, plan):
            continue
        module = row.source.module or _module_of(row, plan)
        name = layer_of(module) or UNNAMED
        if name in readers:
            # Its number is no place in a layer.
            name, module = readers[name], _NUMBER.sub("#", module)
        layer = layers.setdefault(name, Layer(name))
        kind, words = describe(run.parallel[row.outputs[0]], batch, known)
        direction = direction_of(row, parallel)
        layer.counts.setdefault(direction, Counter())[kind] += 1
        given = row.kind == "shard"
        status = (
            "given" if given else _status(stages.get(number), proved, number in failing, refutes)
        )
        layer.status[status] += 1
        if number in stages and stages[number].template >= 0:
            layer.templates.add(stages[number].template)
        what = f"backward of {row.name}" if row.backward else row.name
        if row.kind == "shard":
            what = "parameter"
        ranks = {plan.programs[p].base for p in row.programs}
        place = module.removeprefix(layer.name).lstrip(".")
        layer.operators.setdefault((place, what, words, status), set()).update(ranks)
    # What belongs to no layer has no place in their order.
    return sorted(layers.values(), key=lambda layer: layer.name == UNNAMED)


def _known(run: Run) -> int:
    """Nodes below this number are the single device's.  A right plan may have others on its way
    (a product of parts, say), so that only a refuted one is held to it."""
    if run.certificate.verdict == "proved":
        return len(run.nodes)
    return 1 + max((t.node for x in run.single if x is not None for t in x.terms), default=-1)


def _readers(plan: Plan, parallel: Unrolled) -> dict[str, str]:
    """For names of parameters that no module has (a planner lifted them out of theirs): the layer
    of an operator that reads them."""
    modules = {layer_of(row.source.module) for row in parallel.rows if row.kind == "op"}
    names = {
        row.outputs[0]: layer_of(_module_of(row, plan))
        for row in parallel.rows
        if row.kind == "shard"
    }
    lifted = {value: name for value, name in names.items() if name not in modules}
    found: dict[str, str] = {}
    for row in parallel.rows if lifted else ():
        if row.source.module and row.kind == "op":
            for name in {lifted[v] for v in row.inputs if v in lifted}:
                found.setdefault(name, layer_of(row.source.module))
    return found


def _is_table(row: Row, plan: Plan) -> bool:
    """Whether a row is a buffer or table: no layer of its own."""
    number = row.attrs.get("shard")
    shards = plan.programs[row.programs[0]].shards
    return row.kind == "shard" and isinstance(number, int) and not shards[number].trainable


def _module_of(row: Row, plan: Plan) -> str:
    """Parameters and their gradients belong to the layer that they are named by."""
    if row.kind == "shard":
        number = row.attrs["shard"]
        assert isinstance(number, int)
        return plan.programs[row.programs[0]].shards[number].name
    return ""


def direction_of(row: Row, unrolled: Unrolled) -> str:
    """ "parameters", "forward", "backward" or "communication"."""
    if row.kind == "shard":
        return "parameters"
    if row.backward or row.kind == "accumulate":
        return "backward"
    return "communication" if row.kind in COMMUNICATION or row.kind == "chunk" else "forward"


def _status(stage: StageRecord | None, proved: set[int], failing: bool, refutes: bool) -> str:
    if failing:
        return "failing"
    if stage is None:
        return "unchecked"
    if stage.template >= 0:
        return "proved" if stage.template in proved else "open"
    if stage.live and stage.problem and refutes:
        return "not stated"
    return "open" if stage.problem and stage.live else "unchecked" if stage.live else "dead"


# -- groups of layers that are alike -------------------------------------------------------------


def groups(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Layers with the same operators, results and status are one entry: names, counts, rows."""
    found: dict[object, list[Layer]] = {}
    for layer in layers:
        operators = frozenset((*key, len(ranks)) for key, ranks in layer.operators.items())
        found.setdefault((_NUMBER.sub("#", layer.name), operators), []).append(layer)
    return [_group(members) for members in found.values()]


def _group(members: Sequence[Layer]) -> dict[str, Any]:
    first = members[0]
    rows = [
        {"place": place, "name": name, "is": words, "status": status, "ranks": len(ranks)}
        for (place, name, words, status), ranks in first.operators.items()
    ]
    rows.sort(key=lambda row: STATUS.index(row["status"]) if row["status"] == "failing" else 9)
    return {
        "title": title([layer.name for layer in members]),
        "names": " ".join(layer.name for layer in members),
        "layers": len(members),
        "status": first.worst,
        "operators": sum(sum(layer.status.values()) for layer in members),
        "templates": len(set().union(*(layer.templates for layer in members))),
        "bars": {name: shares(counts) for name, counts in sorted(first.counts.items())},
        "rows": rows[:MOST_ROWS],
        "more": max(0, len(rows) - MOST_ROWS),
    }


def title(names: Sequence[str]) -> str:
    """Several layers in a few words."""
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)} layers)"


def shares(counts: Mapping[str, int]) -> list[tuple[str, int, float]]:
    """(kind, how many, percent of all)."""
    total = sum(counts.values())
    return [(kind, counts[kind], 100 * counts[kind] / total) for kind in KINDS if counts.get(kind)]


def strip(layers: Sequence[Layer], most: int = 200) -> list[dict[str, Any]]:
    """For each layer in order: its name, status, and its results by kind, forward and backward."""
    return [
        {
            "name": layer.name,
            "status": layer.worst,
            "bars": {
                name: shares(layer.counts.get(name, Counter()))
                for name in ("parameters", "forward", "communication", "backward")
            },
        }
        for layer in layers[:most]
    ]
