"""What a planner makes of a model before it places it: copies for several readers, parameters that
several operators read, stages that share their devices."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.frontends.plan_values import Model, Operation, Value

_LETTERS = "abcdefgh"


def copied(draw: random.Random, made: Model) -> None:
    """Give each reader of some values a copy of its own, by ``multiref`` where they are made."""
    for op in list(made.operations):
        for value in op.outputs:
            readers = [
                (other, i)
                for other in made.operations
                for i, x in enumerate(other.inputs)
                if x is value
            ]
            if len(readers) < 2 or not value.graded or value.loss or draw.random() < 0.4:
                continue
            copies = [
                Value(f"{value.name}_{i}", value.shape, stage=value.stage, batched=value.batched,
                      along=value.along)
                for i in range(len(readers))
            ]  # fmt: skip
            for (reader, i), own in zip(readers, copies, strict=True):
                reader.inputs[i] = own
            letters = " ".join(_LETTERS[: len(value.shape)])
            anno = f"{letters} -> {', '.join([letters] * len(copies))}"
            node = Operation(
                "nnscaler.runtime.function.multiref", [value], copies[0], {"times": len(copies)},
                copies[1:], anno,
            )  # fmt: skip
            made.operations.insert(made.operations.index(op) + 1, node)


def staged(made: Model) -> None:
    """Each stage reads what another one made through an identity of its own, as ``graph.staging``
    has it."""
    for op in list(made.operations):
        for value in op.outputs:
            current = value
            last = max((x.output.stage for x in made.operations if value in x.inputs), default=0)
            for stage in range(value.stage + 1, last + 1):
                own = Value(f"{value.name}_at{stage}", value.shape, value.graded, stage=stage,
                            kind=value.kind, batched=value.batched, along=value.along)  # fmt: skip
                letters = " ".join(_LETTERS[: len(value.shape)])
                anno = f"{letters} -> {letters}"
                node = Operation("nnscaler.runtime.function.identity", [current], own, anno=anno)
                for other in made.operations:
                    if other.output.stage == stage:
                        other.inputs = [own if x is value else x for x in other.inputs]
                at = next(i for i, x in enumerate(made.operations) if x.output.stage == stage)
                made.operations.insert(at, node)
                current = own


def tied(draw: random.Random, made: Model, homes: Sequence[tuple[int, ...]]) -> None:
    """Two operators read one parameter, if they are on the same devices or on one each."""
    readers = [
        (op, i)
        for op in made.operations
        for i, x in enumerate(op.inputs)
        if isinstance(x, Value) and x.weight
    ]
    pairs = [
        ((one, i), (two, j))
        for n, (one, i) in enumerate(readers)
        for two, j in readers[n + 1 :]
        if one.inputs[i].shape == two.inputs[j].shape
        and one.inputs[i] is not two.inputs[j]
        and (
            homes[one.output.stage] == homes[two.output.stage]
            or len(homes[one.output.stage]) == len(homes[two.output.stage]) == 1
        )
    ]
    if pairs:
        (one, i), (two, j) = draw.choice(pairs)
        gone = two.inputs[j]
        for op in made.operations:
            op.inputs = [one.inputs[i] if x is gone else x for x in op.inputs]
        made.weights.remove(gone)


def homes_of(draw: random.Random, stages: int) -> tuple[list[tuple[int, ...]], int]:
    """The devices of each stage, some of them those of a stage before, and how many there are."""
    teams = draw.choice([n for n in (1, 2, 2, 3) if n <= stages])
    size = draw.choice((1, 2)) if teams < 3 else 1
    own = [tuple(range(n * size, n * size + size)) for n in range(teams)]
    order = list(range(teams)) + [draw.randrange(teams) for _ in range(stages - teams)]
    if draw.random() < 0.5:
        order = [n % teams for n in range(stages)]
    return [own[n] for n in order], teams * size
