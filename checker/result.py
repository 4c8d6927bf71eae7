"""What a check says."""

from __future__ import annotations

from typing import NamedTuple

#: What can be wrong.  The first ones make the run itself doubtful, whatever its verdict; those of
#: `UNPROVED` only keep it from being a proof.
KINDS = {
    "file": "missing, damaged or changed",
    "input": "not what the run was made from",
    "assumption": "an input is not what the plan says it is",
    "stage": "an operator is left out, or listed wrongly",
    "node": "a reference value has no meaning",
    "lineage": "a tensor's lineage has no meaning",
    "obligation": "what was solved is not what has to be solved",
    "conclusion": "the stored conclusions are not those that follow",
    "verdict": "the certificate says something else than was found",
    "plan": "the plan contradicts itself",
    "runtime": "its ranks, run one by one, do not compute what the single device does",
    "unproved": "something has no proof",
    "definedness": "the parallel program may be undefined where the other one is not",
    "solver": "a template is not unsat",
    "proof": "a stored proof does not show what it should",
}
UNPROVED = frozenset({"plan", "runtime", "unproved", "definedness", "solver"})

#: Problems of one kind that are told apart; more are only counted.
MOST_OF_A_KIND = 10


class Problem(NamedTuple):
    """Why a run does not show what its certificate says.  ``kind`` is one of `KINDS`.

    Example: ``Problem("solver", "template 3 is timeout")`` prints as "solver: template 3 is
    timeout".
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class CheckResult(NamedTuple):
    """What a check says. ``ok``: the certificate's verdict stands; ``seconds``: of each part of the
    check; ``counts``: what was looked at; ``verdict``: the certificate's ("" if there is none);
    ``notes``: what was not looked at, and why; ``compared``: the input files that the plan of the
    run was compared with (none: it was not).

    Example: of a Llama with one layer on four ranks, ``ok``, with ``counts["templates"]`` 152 and
    ``counts["conclusions"]`` 37.
    """

    ok: bool
    verdict: str
    problems: tuple[Problem, ...]
    seconds: dict[str, float]
    counts: dict[str, int]
    notes: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()


class Problems:
    """Collects problems; of each kind the first few, and how many more there are.

    Example: of twelve problems of the kind "stage", the first ten and "stage: and 2 more".
    """

    def __init__(self) -> None:
        self._messages: dict[str, list[str]] = {}
        self._more: dict[str, int] = {}

    def add(self, kind: str, message: str) -> None:
        """One more problem, of those that are listed or counted."""
        messages = self._messages.setdefault(kind, [])
        if len(messages) < MOST_OF_A_KIND:
            messages.append(message)
        else:
            self._more[kind] = self._more.get(kind, 0) + 1

    def __bool__(self) -> bool:
        return bool(self._messages)

    def doubtful(self) -> bool:
        """Whether there is more than a proof that is missing."""
        return any(kind not in UNPROVED for kind in self._messages)

    def all(self) -> tuple[Problem, ...]:
        """All problems by kind, with how many more there are of each."""
        result = []
        for kind, messages in self._messages.items():
            result += [Problem(kind, message) for message in messages]
            if kind in self._more:
                result.append(Problem(kind, f"and {self._more[kind]} more"))
        return tuple(result)
