"""What others build on: the action, the pre-commit hook, the image."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PLANS = ROOT / "examples" / "plans"


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


@pytest.mark.parametrize(
    ("plan", "code", "verdict"),
    [(PLANS / "gpt-no-all-reduce", 1, "refuted"), (PLANS / "none", 3, "invalid input")],
)
def test_the_action_ends_with_the_verdict_and_leaves_its_files(
    plan: Path, code: int, verdict: str, tmp_path: Path
) -> None:
    (step,) = (s for s in action()["runs"]["steps"] if s.get("id") == "verify")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    output = tmp_path / "output"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT) + os.pathsep + os.pathsep.join(sys.path),
            "SINGLE": str(plan), "PARALLEL": "", "OPTIONS": "--no-cache --seed 2", "OUT": "run dir",
            "GITHUB_OUTPUT": str(output), "GITHUB_ACTIONS": "true",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert output.read_text() == f"verdict={verdict}\n"
    assert "::error title=" in done.stderr
    there = {path.name for path in (tmp_path / "run dir").iterdir()}
    assert {"junit.xml", "shardproof.sarif"} <= there
    assert ("report.html" in there) == (code < 3)


def test_the_actions_inputs_are_what_its_steps_use() -> None:
    found = action()
    steps = json.dumps(found["runs"]["steps"]) + json.dumps(found["outputs"])
    assert set(re.findall(r"inputs\.([a-z-]+)", steps)) == set(found["inputs"])
    # A value of somebody else's never becomes part of a script.
    assert all("${{" not in step.get("run", "") for step in found["runs"]["steps"])


def test_the_hook_runs_a_command_that_there_is() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    program, command = hook["entry"].split()
    assert program in scripts
    from shardproof.cli import main

    assert command in main.commands
    assert re.search(hook["files"], "plans/gpt/ops.arrow")
    assert not hook["pass_filenames"]


# -- the image ------------------------------------------------------------------------------------

INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "CMD"}


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: there is no engine here that could build it."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


def test_the_image_is_made_of_files_that_are_there() -> None:
    found = dockerfile()
    assert {name for name, _ in found} <= INSTRUCTIONS
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    copied = set()
    for name, rest in found:
        if name == "COPY":
            *sources, _ = shlex.split(rest)
            for source in sources:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in kept, f"{source} is not sent to the builder"
                copied.add(source)
    floors = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-dir"
    ]
    assert set(floors.values()) <= copied
    for name, rest in found:
        if name == "RUN":
            assert subprocess.run(["bash", "-n", "-c", rest], check=False).returncode == 0


def test_the_image_is_pinned_and_does_not_run_as_root() -> None:
    found = dockerfile()
    assert found[0][0] == "FROM"
    assert re.fullmatch(r"python:3\.11-slim-[a-z]+", found[0][1])
    assert [rest for name, rest in found if name == "USER"] == ["shardproof"]


def test_the_cluster_runs_the_image() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools_scm"][
        "fallback_version"
    ]
    lock = (ROOT / "requirements" / "runtime.lock").read_text()
    for path in sorted((ROOT / "configs" / "cluster").glob("*.yaml")):
        text = path.read_text()
        for image in re.findall(r"image: *(\S*shardproof:\S+)", text):
            assert image == f"registry.example/shardproof:{version}", path
        for ray in re.findall(r'rayVersion: "([^"]+)"', text):
            assert f"\nray=={ray} " in lock, path
