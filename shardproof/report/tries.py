"""What one can do about a run that came to no verdict, by its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_OWN: Final = (
    "write it by operators that are declared (`shardproof operators`), or declare your own "
    "(docs/own-operators.md)"
)
_KNOWN: Final = (
    "write the step or graph without that operator, by ones that are known (docs/pytorch.md)"
)
_SMALLER: Final = (
    "the same code at a small size (a short sequence, a small vocabulary): both sides can be run "
    "there, and what is wrong is refuted with values"
)
#: By what a reason says, in any case; the first that is in it counts.
_TRIES: Final = (
    ("not among the conclusions", "the single-device plan does not train that parameter, or the "
     "plan does not reach it: correct --assume, or the plan"),
    ("--strict", "state the assumption (--assume), or leave --strict out"),
    ("memory", "a larger --memory-limit or --memory-budget, a machine with more, or a cluster"),
    ("timeout", "a larger --timeout{now}, then --solver both"),
    ("resource limit", "a larger --timeout{now}, then --solver both"),
    ("crashed", "again; the texts that solvers died of are in RUN_DIR/poisoned"),
    ("not declared", _OWN),
    ("declaration", _OWN),
    ("lowering", _KNOWN),
    ("has no rule", _KNOWN),
    ("too large to be run", _SMALLER),
    ("numbers after shrinking", _SMALLER),
    ("local mismatch", "--shapes +1; if it stays, the two sides differ on the way and not in what "
     "was concluded"),
)  # fmt: skip


def to_try(reason: str, timeout: float | None = None) -> str:
    """What to try, in a line; ``timeout``: of the run, in seconds, where it is known.

    Example: of "timeout: 30 s", "a larger --timeout (now 30 s), then --solver both".
    """
    text = reason.lower()
    now = "" if timeout is None else f" (now {timeout:g} s)"
    return next((what.replace("{now}", now) for sign, what in _TRIES if sign in text), "")


#: The kind of finding that tells that a plan records another order of groups than ranks have.
CHUNK_POSITION: Final = "chunk position"
#: And that tells that a gradient arrives for another value than the plan records it for.
GRADIENT_NAME: Final = "gradient name"

#: What such findings mean, and how to go on.
ORDER: Final = (
    "the runtime orders the members of a process group by rank; this plan's index maps record "
    "another order. If it runs as it is, ranks work on other chunks than were planned, and nothing "
    "crashes: a real hazard. If your runtime does keep the recorded order, say so: "
    "`--nnscaler-groups as-recorded` (or, in the file of --assume, `[nnscaler]` with "
    '`groups = "as recorded"`)'
)
#: What findings about gradients mean, and how to go on.
NAMES: Final = (
    "an adapter gives its result the name of what it read, and the segment gives it on. In "
    "generated code the name stands for the adapter's result from then on, so that the "
    "gradient that arrives passes through the adapter's backward half (an all-reduce counts a "
    "complete gradient once for each rank); this plan's records have it arrive before the adapter. "
    "Nothing crashes: a real hazard, which a multiref of the value avoids. If your runtime does "
    "what the records say: `--nnscaler-groups as-recorded` (or, in the file of --assume, "
    '`[nnscaler]` with `groups = "as recorded"`)'
)


def about_order(verdict: str, kinds: Iterable[str]) -> str:
    """What to know of the order of groups and of the names of gradients, where findings of a plan
    that is not proved are about them; ``kinds``: of the findings.

    Example: a refuted plan with a finding "chunk position" gets "the runtime orders the members of
    a process group by rank; ...".
    """
    known = set(kinds) if verdict != "proved" else set()
    if CHUNK_POSITION in known:
        return ORDER
    return NAMES if GRADIENT_NAME in known else ""


#: How an assumption tells that a label may be one that does not count.
_LABELS: Final = re.compile(
    r"labels (?P<name>.+?) are classes from 0 to (?P<last>\d+), or (?P<mark>-?\d+), which does not"
)


#: How an assumption tells of parameters whose gradients DDP waits for.
_WAITS: Final = re.compile(r"DistributedDataParallel waits for gradients of (?P<names>.+?): ")


def about_steps(verdict: str, assumptions: Sequence[str]) -> list[str]:
    """What to know of a step that is refuted, by what is printed of it: labels that a loss may
    leave out, and parameters that DDP waits for.

    Example: of "labels batch y are classes from 0 to 9, or -100, which does not count: ..." that
    ``sp.tensor(..., low=0, high=10)`` says that none is -100.
    """
    if verdict != "refuted":
        return []
    return [text for text in (_about_labels(assumptions), _about_waits(assumptions)) if text]


def _about_waits(assumptions: Iterable[str]) -> str:
    """Why gradients are those of a rank alone, where DDP is not done."""
    for waits in filter(None, map(_WAITS.match, assumptions)):
        return (
            f"DistributedDataParallel has not reduced all buckets, for {waits['names']} got no "
            "gradient: PyTorch raises an error at the next forward call. Give it "
            "`find_unused_parameters=True`, or leave such parameters out (`requires_grad_(False)`)"
        )
    return ""


def _about_labels(assumptions: Iterable[str]) -> str:
    """What to state of labels that a loss may leave out: a mean of ranks' means is no mean then."""
    for label in filter(None, map(_LABELS.match, assumptions)):
        name, last, mark = label.group("name", "last", "mark")
        classes = f"[0,{int(last) + 1})"
        return (
            f"labels {name} may be {mark} here, which the loss leaves out: ranks whose labels "
            "count in other numbers have other means. If all of them are classes, say so: "
            f"`sp.tensor(..., low=0, high={int(last) + 1})`, or `{classes}` behind its type in "
            "`--batch`"
        )
    return ""
