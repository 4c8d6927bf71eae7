"""Where tensors are replicated, sharded or partial, by layer: data of a picture and of a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage
from shardproof.engine.plan.collectives import COMMUNICATION
from shardproof.engine.plan.ir import MICROBATCH, Plan
from shardproof.engine.records.run import PARALLEL, Run, StageRecord
from shardproof.engine.schedule.instances import Instance, Unrolled

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

    Example: ``n40[...] part #0[<256*tp> +256 of 512]`` is "partial", "partial sum, 1/2 of it";
    ``n5[a0[<32*tp> +32 of 64], a1[64]]`` "sharded", "1/2 of dimension 0".

    ``batch``: the coordinates that divide the batch; a slice of the batch is not a shard.
    ``known``: nodes from this number on are values that the single device does not have.
    """
    if lineage is None:
        return "unknown", "unknown"
    if not lineage.addends:
        return "replicated", "zero"
    addend = lineage.addends[0]
    if any(t.node >= known for t in lineage.addends):
        return "other", "no single-device value"
    if any(t.places for t in lineage.addends):
        return "sharded", f"values side by side ({len(lineage.addends)})"
    partial = next(filter(None, (_partial(t, batch) for t in lineage.addends)), "")
    if partial:
        return "partial", partial
    words = _sharded(lineage.shape, addend, batch)
    return ("sharded", ", ".join(words)) if words else ("replicated", "replicated")


def _partial(addend: Addend, batch: frozenset[str]) -> str:
    share, slices = Fraction(1), False
    for partial in addend.partials:
        if partial.start.terms and set(partial.start.axes) <= batch:
            slices = True
        elif partial.size != partial.extent:
            share *= Fraction(partial.size, partial.extent)
    if share != 1:
        return f"partial sum, {share} of it"
    return "partial sum over slices of the batch" if slices else ""


def _sharded(shape: Sequence[int], addend: Addend, batch: frozenset[str]) -> list[str]:
    words = []
    for number, intervals in enumerate(addend.view.dims):
        own = total = 1
        for interval in intervals:
            sliced = interval.start.terms and set(interval.start.axes) <= batch
            if interval.axis != BROADCAST and not interval.full and not sliced and interval.extent:
                own, total = own * interval.size, total * interval.extent
        share = Fraction(own, total)
        if share != 1:
            words.append(f"{share} of dimension {number}")
    return words


# -- layers --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Layer:
    """What a layer's parallel operators are.  ``counts``: results by direction and kind;
    ``operators``: (operator, what its result is, status) with the ranks that run it.

    Example: ``wte``, whose forward ``counts`` are ``{"partial": 1}``: an embedding divided over the
    vocabulary.
    """

    name: str
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    operators: dict[tuple[str, str, str, str], set[int]] = field(default_factory=dict)
    status: Counter[str] = field(default_factory=Counter)
    templates: set[int] = field(default_factory=set)

    @property
    def worst(self) -> str:
        """The worst status of its operators."""
        return next((s for s in STATUS if self.status[s]), "unchecked")


def layer_of(module: str) -> str:
    """The layer of a module path, for example "layers.3" of "layers.3.attention.wq"."""
    parts = module.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0] + 1]) if numbered else parts[0]


def by_layer(run: Run, parallel: Unrolled, proved: set[int], failing: set[int]) -> list[Layer]:
    """Layers in the order of the program.  ``proved``: templates; ``failing``: parallel
    instances.

    Example: ``wte``, ``wpe``, ``h.0``, ``h.1``, ``lm_head``, ``loss`` and "(outside of modules)"
    for a GPT of two layers.
    """
    known, refutes = _known(run), run.certificate.verdict == "refuted"
    plan = run.plan
    batch = frozenset([*plan.replica_axes, MICROBATCH])
    stages = {stage.row: stage for stage in run.stages if stage.side == PARALLEL}
    layers: dict[str, Layer] = {}
    readers = _readers(plan, parallel)
    for number, instance in enumerate(parallel.instances):
        if not instance.outputs or instance.kind in ("load", "seed") or _is_table(instance, plan):
            continue
        module = instance.source.module or _module_of(instance, plan)
        name = layer_of(module) or UNNAMED
        if name in readers:
            # Its number is no place in a layer.
            name, module = readers[name], _NUMBER.sub("#", module)
        layer = layers.setdefault(name, Layer(name))
        kind, words = describe(run.parallel[instance.outputs[0]], batch, known)
        direction = direction_of(instance, parallel)
        layer.counts.setdefault(direction, Counter())[kind] += 1
        given = instance.kind == "shard"
        status = (
            "given" if given else _status(stages.get(number), proved, number in failing, refutes)
        )
        layer.status[status] += 1
        if number in stages and stages[number].template >= 0:
            layer.templates.add(stages[number].template)
        what = f"backward of {instance.name}" if instance.backward else instance.name
        if instance.kind == "shard":
            what = "parameter"
        ranks = {plan.programs[p].base for p in instance.programs}
        place = module.removeprefix(layer.name).lstrip(".")
        layer.operators.setdefault((place, what, words, status), set()).update(ranks)
    # What belongs to no layer has no place in their order.
    return sorted(layers.values(), key=lambda layer: layer.name == UNNAMED)


def _known(run: Run) -> int:
    """Nodes below this number are the single device's.  A right plan may have others on its way
    (a product of parts, say), so that only a refuted one is held to it."""
    if run.certificate.verdict == "proved":
        return len(run.nodes)
    return 1 + max((t.node for x in run.single if x is not None for t in x.addends), default=-1)


def _readers(plan: Plan, parallel: Unrolled) -> dict[str, str]:
    """For names of parameters that no module has (a planner lifted them out of theirs): the layer
    of an operator that reads them."""
    modules = {
        layer_of(instance.source.module) for instance in parallel.instances if instance.kind == "op"
    }
    names = {
        instance.outputs[0]: layer_of(_module_of(instance, plan))
        for instance in parallel.instances
        if instance.kind == "shard"
    }
    lifted = {value: name for value, name in names.items() if name not in modules}
    readers: dict[str, str] = {}
    for instance in parallel.instances if lifted else ():
        if instance.source.module and instance.kind == "op":
            for name in {lifted[v] for v in instance.inputs if v in lifted}:
                readers.setdefault(name, layer_of(instance.source.module))
    return readers


def _is_table(instance: Instance, plan: Plan) -> bool:
    """Whether an instance is a buffer or table: no layer of its own."""
    number = instance.attrs.get("shard")
    shards = plan.programs[instance.programs[0]].shards
    return instance.kind == "shard" and isinstance(number, int) and not shards[number].trainable


def _module_of(instance: Instance, plan: Plan) -> str:
    """Parameters and their gradients belong to the layer that they are named by."""
    if instance.kind == "shard":
        number = instance.attrs["shard"]
        assert isinstance(number, int)
        return plan.programs[instance.programs[0]].shards[number].name
    return ""


def direction_of(instance: Instance, unrolled: Unrolled) -> str:
    """ "parameters", "forward", "backward" or "communication".

    Example: "communication" for an all-reduce, "backward" for the accumulation of a gradient.
    """
    if instance.kind == "shard":
        return "parameters"
    if instance.backward or instance.kind == "accumulate":
        return "backward"
    return (
        "communication" if instance.kind in COMMUNICATION or instance.kind == "chunk" else "forward"
    )


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
    """Layers with the same operators, results and status are one entry: names, counts,
    instances.

    Example: ``h.0`` and ``h.1`` are one entry, "h.0, h.1".
    """
    alike: dict[object, list[Layer]] = {}
    for layer in layers:
        operators = frozenset((*key, len(ranks)) for key, ranks in layer.operators.items())
        alike.setdefault((_NUMBER.sub("#", layer.name), operators), []).append(layer)
    return [_group(members) for members in alike.values()]


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
    """Several layers in a few words.

    Example: "h.0 … h.2 (3 layers)".
    """
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)} layers)"


def shares(counts: Mapping[str, int]) -> list[tuple[str, int, float]]:
    """(kind, how many, percent of all).

    Example: ``{"sharded": 3, "partial": 1}`` is ``[("sharded", 3, 75.0), ("partial", 1, 25.0)]``.
    """
    total = sum(counts.values())
    return [(kind, counts[kind], 100 * counts[kind] / total) for kind in KINDS if counts.get(kind)]


def strip(layers: Sequence[Layer], most: int = 200) -> list[dict[str, Any]]:
    """For each layer in order: its name, status, and its results by kind, forward and backward.

    Example: ``{"name": "wte", "status": "proved", "bars": {"forward": [("partial", 1, 100.0)],
    ...}}``.
    """
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
