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


def verified(file: Path, environment: dict[str, str], *more: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "shardproof", "verify", str(file), *map(str, more), "--json",
         "--no-cache", "--out", str(file.with_suffix(".run"))],
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


#: A custom call on the rows of each rank, in StableHLO and in HLO.
CALLED = """module @m attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<4x3xf32>, %arg1: tensor<4x3xf32>) -> tensor<4x3xf32> {
    %0 = stablehlo.custom_call @example_gated(%arg0, %arg1) {api_version = 4 : i32CONFIG} : \
(tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }
}
"""
CALLED_ON_RANKS = """HloModule m, num_partitions=2

ENTRY main {
  x = f32[2,3]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}
  y = f32[2,3]{1,0} parameter(1), sharding={devices=[2,1]<=[2]}
  ROOT r = f32[2,3]{1,0} custom-call(FIRST), custom_call_target="example_gated", \
operand_layout_constraints={f32[2,3]{1,0}, f32[2,3]{1,0}}, api_version=API_VERSION_TYPED_FFI
}
"""


def test_custom_calls_are_what_a_package_declares(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    def found(name: str, config: str, first: str) -> dict[str, Any]:
        one, many = tmp_path / f"{name}.mlir", tmp_path / f"{name}.hlo"
        one.write_text(CALLED.replace("CONFIG", config))
        many.write_text(CALLED_ON_RANKS.replace("FIRST", first))
        return verified(one, environment, many)

    right = found("right", "", "x, y")
    assert right["verdict"] == "proved", right["reason"]
    believed = {a["about"] for a in right["assumption_details"] if a["kind"] == "user's word"}
    assert believed == {"example_gated"}
    assert found("exchanged", "", "y, x")["verdict"] == "refuted"
    configured = found("configured", ", mhlo.backend_config = {eps = 1.0e-5 : f32}", "x, y")
    assert configured["verdict"] == "inconclusive"
    assert "with a configuration (eps = 1.0e-5 : f32)" in configured["reason"]


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
