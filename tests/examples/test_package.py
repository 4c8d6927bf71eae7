"""The example package, found by its entry points: its format is read, its operator known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends import packages
from shardproof.frontends.frontend import FRONTENDS, of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "package"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which the package is installed, as far as Python can tell."""
    points = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]
    told = tmp_path / "site" / "shardproof_example-0.1.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: shardproof-example\nVersion: 0.1\n"
    )
    lines = [
        line
        for group, named in points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in named.items()))
    ]
    (told / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join(
        [str(told.parent), str(PACKAGE), os.environ.get("PYTHONPATH", str(ROOT))]
    )
    return {**os.environ, "PYTHONPATH": path}


def verified(file: Path, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "shardproof", "verify", str(file), "--json", "--no-cache",
         "--out", str(file.with_suffix(".run"))],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_the_format_is_read_and_a_mistake_in_it_is_found(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    text = (PACKAGE / "gated.tiny.json").read_text()
    good = tmp_path / "good.tiny.json"
    good.write_text(text)
    found = verified(good, environment)
    assert found["verdict"] == "proved", found["reason"]
    assert found["mesh"] == "dp 2"
    believed = {a["about"] for a in found["assumption_details"] if a["kind"] == "user's word"}
    assert believed == {"tiny-graph", "example_gated"}
    # The twin: nobody sums the gradient.
    bad = tmp_path / "bad.tiny.json"
    bad.write_text(text.replace('"reduce": ["w"]', '"reduce": []'))
    assert verified(bad, environment)["verdict"] == "refuted"
    wrong = tmp_path / "wrong.tiny.json"
    wrong.write_text(text.replace('"x", "w"]', '"x", "v"]'))
    refused = verified(wrong, environment)
    assert refused["verdict"] == "invalid input"
    assert "expected the name of a value, found 'v'" in refused["reason"]


def test_packages_are_asked_only_about_what_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "no_such_module_anywhere:F", packages.GROUP)
    asked: list[str] = []
    monkeypatch.setattr(packages, "entry_points", lambda group: asked.append(group) or [broken])
    packages.load.cache_clear()
    try:
        ours, other = tmp_path / "a.plan.txt", tmp_path / "other"
        ours.write_text('plan "a"')
        other.write_text("who knows")
        assert of(ours).name == "text"
        assert of(tmp_path / "not there").name
        assert asked == []
        with pytest.raises(InvalidInput, match=r"not loaded: broken .no_such_module_anywhere"):
            of(other)
        assert asked == [packages.GROUP]
    finally:
        packages.load.cache_clear()
    assert len(FRONTENDS) >= 5
