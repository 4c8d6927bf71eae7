"""What tests of drawn steps share: a right step and its wrong twin, each judged before its verdict."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.run import judged, verdict


def twins(right: Drawn, mistake: str) -> tuple[Drawn, Drawn]:
    """A right step, and the same with a mistake."""
    return right, replace(right, mistake=mistake)


def assert_proved(right: Drawn) -> None:
    """Both sides are equal when they are run, and that is proved."""
    assert not judged(right)
    assert verdict(right)[0] == "proved"


def assert_refuted(wrong: Drawn) -> None:
    """Both sides differ when they are run, and are refuted."""
    assert judged(wrong)
    assert verdict(wrong)[0] == "refuted"
