"""Options are declared once: whatever is one is on the command line, in Python and on record."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import shardproof
from shardproof import cli
from shardproof.cluster.machine import most_workers
from shardproof.cluster.settings import Settings
from shardproof.commands import capture, ci
from shardproof.commands.options import jobs_here
from shardproof.inputs.assume import Assumptions
from shardproof.run import options, request
from shardproof.run.options import Options

#: Of each option another value than its default, as the command line has it and as Python has it.
CHOSEN: dict[str, tuple[list[str], Any]] = {
    "out": (["--out", "/runs/here"], "/runs/here"),
    "executor": (["--executor", "ray"], "ray"),
    "address": (["--address", "10.0.0.1:6379"], "10.0.0.1:6379"),
    "workers": (["--workers", "3"], 3),
    "solver": (["--solver", "both"], "both"),
    "timeout": (["--timeout", "2.5"], 2.5),
    "memory_limit": (["--memory-limit", "512MiB"], "512MiB"),
    "memory_budget": (["--memory-budget", "8GiB"], "8GiB"),
    "exhaustive": (["--exhaustive"], True),
    "cache_dir": (["--cache", "/proofs"], "/proofs"),
    "cache": (["--no-cache"], False),
    "seed": (["--seed", "7"], 7),
    "assume": (["--assume", "/a.toml"], "/a.toml"),
    "relations": (["--relations", "/r.toml"], "/r.toml"),
    "nnscaler_groups": (["--nnscaler-groups", "as-recorded"], "as-recorded"),
    "shapes": (["--shapes", "+2"], 2),
    "proofs": (["--proofs"], True),
    "strict": (["--strict"], True),
}


def from_command_line(*args: str) -> Options:
    command = cli.main.commands["verify"]
    # A command keeps the help option that its first context gives it.
    parent = click.Context(cli.main, **cli.main.context_settings)
    given = dict(command.make_context("verify", ["plan", *args], parent=parent).params)
    for name in ("single", "parallel", "as_json", *ci.NAMES, *capture.NAMES):
        del given[name]
    return Options(**given)


def on_record(chosen: Options) -> request.Request:
    return request.Request("0" * 64, Settings(), Assumptions(), {}, chosen.given())


def test_every_option_has_another_value_here() -> None:
    assert tuple(CHOSEN) == options.names()


@pytest.mark.parametrize("name", CHOSEN)
def test_an_option_is_the_same_everywhere(name: str) -> None:
    args, value = CHOSEN[name]
    here = from_command_line(*args)
    default = options.defaults()[name]
    assert value != default
    found = getattr(here, name)
    assert (str(found) if isinstance(found, Path) else found) == value
    assert {n for n in options.names() if getattr(here, n) != options.defaults()[n]} == {name}
    assert inspect.signature(shardproof.verify).parameters[name].default == default
    record = on_record(here)
    again = request.decode(msgspec.json.encode(record))
    assert again == record
    assert again.chosen == Options(**{name: value})


def test_without_options_all_are_their_defaults() -> None:
    assert from_command_line() == Options() == on_record(Options()).chosen
    assert Options().given() == {}


def test_paths_are_on_record_from_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Options(cache_dir="proofs").given() == {"cache_dir": str(tmp_path / "proofs")}
    assert Options(cache_dir=Path("proofs")).given() == {"cache_dir": str(tmp_path / "proofs")}


def test_what_python_cannot_be_given() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'bogus'"):
        shardproof.verify("plan", bogus=1)  # type: ignore[call-arg]
    assert list(inspect.signature(shardproof.verify).parameters)[:2] == ["single", "parallel"]


def test_a_record_of_the_format_before_is_read() -> None:
    now = on_record(Options(exhaustive=True, cache=False, shapes=2))
    before: dict[str, Any] = json.loads(msgspec.json.encode(now))
    del before["options"]
    before |= {"format": 1, "exhaustive": True, "use_cache": False, "cache_dir": None, "more": 2,
               "proofs": False}  # fmt: skip
    found = request.decode(json.dumps(before).encode())
    assert found.chosen == now.chosen
    assert (found.settings, found.assumptions) == (now.settings, now.assumptions)


def test_one_more_option_is_one_more_field() -> None:
    """What `commands.options` makes of a field, and of nothing else."""
    command = cli.main.commands["verify"]
    made = [p.name for p in command.params if isinstance(p, click.Option)]
    assert [n for n in made if n not in ("as_json", *ci.NAMES, *capture.NAMES)] == list(
        options.names()
    )


def test_runs_at_once_are_bounded_by_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs_here(1) == 1
    assert capsys.readouterr().err == ""
    assert jobs_here(1000) == most_workers() < 1000
    assert capsys.readouterr().err == (
        "shardproof: 1000 runs at once are more than this machine has use for: "
        f"{most_workers()} go on at once\n"
    )
