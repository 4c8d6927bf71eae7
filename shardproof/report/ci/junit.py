"""A result as JUnit XML: a test for the verdict, and one for each thing that had to hold."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree as xml

from shardproof.report.ci.subject import problems
from shardproof.report.words import numbers
from shardproof.run.plain import plain
from shardproof.run.result import Conclusion, Result


def junit(result: Result, subject: str) -> str:
    """The document.  The verdict fails if the plan is refuted, and is an error if there is none
    (inconclusive, invalid input); a conclusion fails where it does not hold.

    Example: a refuted GPT is ``<testsuites name="shardproof" tests="110" failures="38" ...>``: the
    verdict, and 37 of 109 conclusions.
    """
    suite = xml.Element("testsuite", name=plain(subject))
    verdict = _case(suite, subject, "verdict", result.seconds.total)
    text = "\n".join(f"{problem.kind}: {problem.message}" for problem in problems(result))
    if result.verdict == "refuted":
        _outcome(verdict, "failure", "refuted", text)
    elif result.verdict != "proved":
        _outcome(verdict, "error", result.verdict, text or plain(result.reason))
    elif text:
        xml.SubElement(verdict, "system-out").text = text
    for (kind, name), alike in _by_name(result).items():
        case = _case(suite, subject, kind if kind == "loss" else f"{kind} of {name}", 0.0)
        failed = [c for c in alike if not c.holds]
        if failed:
            ranks = numbers([rank for c in failed for rank in c.ranks])
            messages = "\n".join(dict.fromkeys(plain(c.message) for c in failed if c.message))
            _outcome(case, "failure", f"does not hold on ranks {ranks}", messages)
    tags = Counter(child.tag for case in suite for child in case)
    for element in (suite, document := xml.Element("testsuites", name="shardproof")):
        element.set("tests", str(len(suite)))
        element.set("failures", str(tags["failure"]))
        element.set("errors", str(tags["error"]))
        element.set("time", f"{result.seconds.total:.3f}")
    document.append(suite)
    xml.indent(document)
    return xml.tostring(document, encoding="unicode", xml_declaration=True) + "\n"


def _by_name(result: Result) -> dict[tuple[str, str], list[Conclusion]]:
    """Conclusions about the same thing, on whichever ranks; the loss is one thing."""
    by_name: dict[tuple[str, str], list[Conclusion]] = {}
    for conclusion in result.conclusions:
        name = "" if conclusion.kind == "loss" else plain(conclusion.name)
        by_name.setdefault((plain(conclusion.kind), name), []).append(conclusion)
    return by_name


def _case(suite: xml.Element, subject: str, name: str, seconds: float) -> xml.Element:
    time = f"{seconds:.3f}"
    attributes = {"classname": f"shardproof.{plain(subject)}", "name": name, "time": time}
    return xml.SubElement(suite, "testcase", attributes)


def _outcome(case: xml.Element, tag: str, message: str, text: str) -> None:
    xml.SubElement(case, tag, message=message, type="shardproof").text = text
