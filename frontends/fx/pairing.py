"""An exported program and the recorded ranks of a step: which inputs and outputs belong together.

Parameters and inputs are paired by name; an input whose name the step does not have by its shape,
where only one on each side has it.  Outputs are paired by name (``loss`` is the step's loss), then
by position where both sides have as many.  A relations file says what names do not: ``of`` for an
input, ``[[outputs]]``.  What a rank holds of a parameter or an output its trace says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Final, NamedTuple

from msgspec import structs

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.fx import place
from shardproof.frontends.graphs.relations import OutputRelation, Relations
from shardproof.frontends.torch.functional import GRADIENT, LOSS, OUTPUT, STATE, UPDATED
from shardproof.frontends.torch.trace import (
    BATCH,
    FULL,
    PARAMETER,
    Box,
    Event,
    StridedTensor,
    Trace,
    tensors_of,
)
from shardproof.frontends.untrusted.inert import printable

#: What a step may compare; an exported program has no gradients and no optimizer.
RESULTS: Final = frozenset({LOSS, OUTPUT, GRADIENT, UPDATED, STATE})
#: Names that a message lists.
MOST_TOLD: Final = 12


class Paired(NamedTuple):
    """The single side with the step's names; the ranks with what is compared, and stated boxes of
    outputs; what was inferred.

    Example: a single side with ``job.batch x`` and ``job.output loss``, for ``x`` and ``loss`` of
    the step.
    """

    single: Trace
    ranks: list[Trace]
    assumed: tuple[Assumption, ...]


def paired(single: Trace, ranks: Sequence[Trace], relations: Relations) -> Paired:
    """Both sides under the names of the step; raises `InvalidInput` where something has no
    counterpart.

    Example: a program with an input ``x`` and a step whose batch is called ``images``: if no other
    input has its shape, they are one, and an assumption says so.
    """
    for key in ("groups", "constants", "partial", "zeros", "accepted"):
        if getattr(relations, key):
            raise InvalidInput("is about graphs; what ranks do, their traces say", key)
    work = _Pairing(single, ranks, relations)
    work.check_domains()
    inputs = work.inputs()
    outputs = work.outputs()
    events = [*work.named(inputs), *outputs, single.events[-1]]
    compared = {_Result(e.name, str(e.kwargs["name"])) for e in outputs}
    placed = [work.placed(rank, compared) for rank in ranks]
    return Paired(structs.replace(single, events=tuple(events)), placed, tuple(work.assumed))


class _Result(NamedTuple):
    """An output: its mark (loss or output) and name."""

    mark: str
    name: str


class _Pairing:
    def __init__(self, single: Trace, ranks: Sequence[Trace], relations: Relations) -> None:
        self.single, self.ranks, self.relations = single, ranks, relations
        self.assumed: list[Assumption] = []
        #: Of the step: full shapes of parameters, marks of batch tensors, what it compares.
        self.parameters: dict[str, tuple[int, ...]] = {}
        self.batch: dict[str, tuple[StridedTensor, Event]] = {}
        self.results: dict[_Result, StridedTensor] = {}
        for rank in ranks:
            for event in rank.events:
                self._see(rank, event)

    def _see(self, rank: Trace, event: Event) -> None:
        name = str(event.kwargs.get("name", ""))
        if event.name == PARAMETER:
            for box in event.boxes:
                self.parameters.setdefault(box.name, box.full_shape)
        elif event.name == FULL:
            self.parameters.setdefault(name, _given(rank, event).shape)
        elif event.name == BATCH:
            self.batch.setdefault(name, (_given(rank, event), event))
        elif event.name in (LOSS, OUTPUT) and event.args:
            self.results.setdefault(_Result(event.name, name), _tensor_of(rank, event))

    def assume(self, about: str, text: str) -> None:
        self.assumed.append(Assumption("inferred", about, "", text))

    # -- inputs -----------------------------------------------------------------------------------

    def check_domains(self) -> None:
        """Raise `InvalidInput` for the domain of what is no input of the step."""
        for name in self.relations.domains:
            if name not in self.batch:
                raise InvalidInput(
                    f"the step has no such input ({_listed(self.batch)})", f"domains.{name}"
                )

    def inputs(self) -> dict[str, str]:
        """The step's name of each input of the program."""
        by_relation = {}
        for name, relation in self.relations.inputs.items():
            if not relation.replicated:
                raise InvalidInput(
                    "which part a rank holds its trace says: only of, with replicated = true",
                    f"inputs.{name}",
                )
            if name not in self.batch and name not in self.parameters:
                raise InvalidInput("the step has no such input", f"inputs.{name}")
            by_relation[relation.of or name] = name
        own = [e for e in self.single.events if e.name in (PARAMETER, BATCH)]
        names = {str(e.kwargs["name"]) for e in own}
        for name in sorted(by_relation.keys() - names):
            raise InvalidInput(f"the program has no such input ({_listed(names)})", f"of = {name}")
        named = set(by_relation.values())
        pairs: dict[str, str] = dict(by_relation)
        for event in own:
            name = str(event.kwargs["name"])
            theirs = self.parameters if event.name == PARAMETER else self.batch
            if name not in pairs and name in theirs and name not in named:
                pairs[name] = name
        self._by_shape(own, pairs)
        for event in own:
            self._fits(event, pairs)
        return pairs

    def _by_shape(self, own: Sequence[Event], pairs: dict[str, str]) -> None:
        """Pair batch tensors whose names differ where the shape leaves no choice."""
        left = {
            str(e.kwargs["name"]): _kind(_given(self.single, e))
            for e in own
            if e.name == BATCH and e.kwargs["name"] not in pairs
        }
        open_names = {
            name: _kind(tensor)
            for name, (tensor, _) in self.batch.items()
            if name not in pairs.values()
        }
        for name, kind in left.items():
            matching = [other for other, theirs in open_names.items() if theirs == kind]
            if len(matching) == 1 and list(left.values()).count(kind) == 1:
                pairs[name] = matching[0]
                self.assume(
                    name,
                    f"input {name} of the exported program is the step's {matching[0]} (inferred: "
                    f"no other is {kind[0]} of shape {list(kind[1])})",
                )

    def _fits(self, event: Event, pairs: dict[str, str]) -> None:
        name = str(event.kwargs["name"])
        shape = _given(self.single, event).shape
        what = "parameter" if event.name == PARAMETER else "input"
        if name not in pairs:
            if self._reads(event) and len(self.ranks) == self.ranks[0].world_size:
                known = self.parameters if event.name == PARAMETER else self.batch
                raise InvalidInput(
                    f"the step has no such {what} ({_listed(known)}): say which one it is in a "
                    "relations file ([inputs.NAME] of = ..., replicated = true)",
                    f"{what} {name}",
                )
            return
        other = pairs[name]
        theirs = self.parameters.get(other)
        if event.name == BATCH and other in self.batch:
            theirs = self.batch[other][0].shape
        if theirs is not None and theirs != shape:
            raise InvalidInput(
                f"has shape {list(shape)} in the exported program, {list(theirs)} in the step: "
                "export it with the shapes of the step's full batch",
                f"{what} {name}",
            )

    def _reads(self, mark: Event) -> bool:
        given = set(tensors_of(*mark.outputs))
        return any(
            not given.isdisjoint(tensors_of(*e.args, *e.kwargs.values()))
            for e in self.single.events
        )

    def named(self, inputs: dict[str, str]) -> Iterator[Event]:
        """The events of the program but its outputs and its end, inputs with the step's names."""
        for event in self.single.events[:-1]:
            if event.name == PARAMETER:
                name = str(event.kwargs["name"])
                name = inputs.get(name, name)
                box = structs.replace(event.boxes[0], name=name)
                yield structs.replace(event, boxes=(box,), kwargs={**event.kwargs, "name": name})
            elif event.name == BATCH:
                name = str(event.kwargs["name"])
                name = inputs.get(name, name)
                kwargs = {**event.kwargs, "name": name}
                if name in self.relations.domains:
                    kwargs["low"], kwargs["high"] = self.relations.domains[name]
                elif name in self.batch:
                    own = self.batch[name][1].kwargs
                    kwargs |= {key: own.get(key) for key in ("low", "high")}
                yield structs.replace(event, kwargs=kwargs)
            elif event.name != OUTPUT:
                yield event

    # -- outputs ----------------------------------------------------------------------------------

    def outputs(self) -> list[Event]:
        """The program's outputs as the results of the step that they are."""
        own = {str(e.kwargs["name"]): e for e in self.single.events if e.name == OUTPUT}
        by_relation = self._by_relation(own)
        pairs = by_relation or self._by_name(own) or self._by_position(own)
        if not pairs:
            raise InvalidInput(
                f"nothing says which output is which: the exported program returns {_listed(own)}, "
                f"the step compares {_listed([r.name for r in self.results])}: say it in a "
                "relations file ([[outputs]] single = ..., parallel = ...)"
            )
        left = [name for name in own if name not in pairs]
        if left and not by_relation:
            self.assumed.append(
                Assumption(
                    "not compared",
                    "outputs",
                    "",
                    f"outputs of the exported program that the step does not compare: "
                    f"{_listed(left)} (job.end(outputs=...) compares them)",
                )
            )
        skipped = [result.name for result in self.results if result not in pairs.values()]
        if skipped:
            self.assume(
                "outputs",
                f"of the step {_listed(skipped)} is not compared: the exported program does not "
                "return it",
            )
        return [
            structs.replace(own[name], name=mark, kwargs={"name": theirs})
            for name, (mark, theirs) in pairs.items()
        ]

    def _result(self, name: str) -> _Result | None:
        return next((r for r in self.results if r.name == name), None)

    def _by_relation(self, own: dict[str, Event]) -> dict[str, _Result]:
        results = {}
        for number, relation in enumerate(self.relations.outputs):
            result = self._result(relation.parallel)
            if relation.single not in own or result is None:
                raise InvalidInput(
                    f"expected an output of the exported program ({_listed(own)}) and one of the "
                    f"step ({_listed([r.name for r in self.results])})",
                    f"outputs {number}",
                )
            results[relation.single] = result
        return results

    def _by_name(self, own: dict[str, Event]) -> dict[str, _Result]:
        results = {name: self._result(name) for name in own}
        return {name: result for name, result in results.items() if result is not None}

    def _by_position(self, own: dict[str, Event]) -> dict[str, _Result]:
        """As many outputs as the step has, or as it has beside its loss; one number is its loss."""
        losses = [r for r in self.results if r.mark == LOSS]
        others = [r for r in self.results if r.mark == OUTPUT]
        numbers = [n for n, event in own.items() if not _tensor_of(self.single, event).shape]
        if len(own) == len(others):
            results = dict(zip(own, others, strict=True))
        elif len(own) == len(self.results):
            results = dict(zip(own, [*losses, *others], strict=True))
        elif len(numbers) == len(losses) == 1 and not others:
            results = {numbers[0]: losses[0]}
        else:
            return {}
        for name, result in results.items():
            self.assume(
                name,
                f"output {name} of the exported program is the step's {result.name} (inferred by "
                "position)",
            )
        return results

    def placed(self, rank: Trace, compared: Set[_Result]) -> Trace:
        """A rank's trace without the results that are not compared, and with the boxes of outputs
        that a relations file states."""
        relations = {r.parallel: r for r in self.relations.outputs if r.count_ways() or r.sum}
        full = {r.parallel: self._full(r) for r in relations.values()}
        events = []
        for event in rank.events:
            name = str(event.kwargs.get("name", ""))
            if event.name in RESULTS and _Result(event.name, name) not in compared:
                continue
            if event.name == OUTPUT and name in relations:
                box = _box(relations[name], full[name], rank, event)
                events.append(structs.replace(event, boxes=(box,)))
            else:
                events.append(event)
        return structs.replace(rank, events=tuple(events))

    def _full(self, relation: OutputRelation) -> tuple[int, ...]:
        return next(
            _tensor_of(self.single, e).shape
            for e in self.single.events
            if e.name == OUTPUT and e.kwargs["name"] == relation.single
        )


def _box(relation: OutputRelation, full: tuple[int, ...], rank: Trace, event: Event) -> Box:
    """What a rank's output is of the program's, as the relations file says."""
    name, part = relation.parallel, _tensor_of(rank, event).shape
    if relation.sum:
        if part != full:
            raise InvalidInput(f"is a sum of {list(full)}, found {list(part)}", name)
        everyone = tuple(range(rank.world_size))
        return Box(name, full, (0,) * len(full), full, "stated", (("sum", everyone),))
    boxes = place.stated_box(relation, name, full, part, rank.world_size)
    return Box(name, full, boxes.starts[rank.rank], part, "stated")


def _given(trace: Trace, event: Event) -> StridedTensor:
    (number,) = tensors_of(*event.outputs)
    return trace.tensors[number]


def _tensor_of(trace: Trace, event: Event) -> StridedTensor:
    (number,) = tensors_of(*event.args)
    return trace.tensors[number]


def _kind(tensor: StridedTensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tensor.shape


def _listed(names: Iterable[str]) -> str:
    shown = [printable(name, 80) for name in names]
    more = f" and {len(shown) - MOST_TOLD} more" if len(shown) > MOST_TOLD else ""
    return (", ".join(shown[:MOST_TOLD]) or "none") + more
