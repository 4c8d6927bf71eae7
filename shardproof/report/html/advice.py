"""What to do about a finding, in a sentence: a repair that was verified, or where to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: By what a mismatch says: what is likely to be missing.  First match wins.
_LIKELY: Final = (
    (
        "still a partial sum",
        "Add the missing reduction: each rank holds only its addend of this input. "
        "Look at the communication just before this operator.",
    ),
    (
        "times the single-device operator's",
        "A factor is off. Look for a constant, a mean over the wrong count, or a reduction that "
        "runs twice or not at all.",
    ),
    (
        "is no part of any single-device value",
        "Look at what this operator reads: its inputs are right one by one, and do not belong "
        "together, or are put together in another way than on the single device.",
    ),
    (
        "is not the single-device operator's",
        "Compare this operator with the single-device one: its attributes, the order of its "
        "inputs, which tensors they are.",
    ),
)

_BY_KIND: Final[Mapping[str, str]] = {
    "deadlock": "Change the order in which these ranks issue their messages: they wait for each "
    "other.",
    "read before write": "Produce this tensor before it is read, or move the call that reads it.",
    "shape": "Make the tensors fit: what is sent, received or computed here has another shape than "
    "the operator expects.",
    "group": "Correct the group: its members do not agree on who takes part.",
    "unmatched collective": "Let every member of the group issue this collective, in the same "
    "order.",
    "unmatched send": "Add the matching receive, or remove the send.",
    "unmatched receive": "Add the matching send, or remove the receive.",
    "conclusion": "Start at the parameter named here: its gradient or the loss differs, and no "
    "single operator could be named.",
    "definedness": "Look at the divisor or root that the parallel plan has and the single-device "
    "plan has not.",
    "precision": "Decide whether this cast is meant; over the reals it changes nothing.",
}


def advice(finding: Mapping[str, Any], verdict: str) -> dict[str, Any]:
    """``text``, and whether it is a repair that was ``verified``: the plan was seen to hold.

    Example: of the repair "holds with an all-reduce over ranks [0, 1] ...", ``{"text": "An
    all-reduce over ranks [0, 1] ...", "verified": True}``.
    """
    repair = str(finding.get("repair", "")).removeprefix("holds with ")
    if repair:
        return {"text": repair[:1].upper() + repair[1:], "verified": True}
    message = str(finding.get("message", ""))
    for sign, text in _LIKELY:
        if sign in message:
            return {"text": text, "verified": False}
    text = _BY_KIND.get(str(finding.get("kind", "")), "")
    if not text and verdict == "refuted":
        text = "Compare this operator with the single-device program."
    return {"text": text, "verified": False}
