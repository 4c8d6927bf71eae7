"""The files under configs/cluster are what Ray and KubeRay read, and use what we have.

The launcher file is held against the schema that Ray ships and against Ray's own checks; the
KubeRay files against the subset of the CRDs that is written down in kuberay.json, with its source.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from shardproof.cli import main
from shardproof.cluster.settings import installed_version

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs" / "cluster"
KUBERAY = json.loads(Path(__file__).with_name("kuberay.json").read_text())
MANIFESTS = ("rayjob.yaml", "nightly.yaml")


def loaded(name: str) -> dict[str, Any]:
    found = yaml.safe_load((CONFIGS / name).read_text())
    assert isinstance(found, dict)
    return found


def job_of(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = loaded(name)["spec"]
    return spec.get("jobTemplate", spec)


def containers(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cluster = job["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield from group["template"]["spec"]["containers"]


@pytest.mark.ray
def test_the_launcher_file_passes_rays_own_checks() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = loaded("launcher.yaml")
    validate_config(prepare_config(copy.deepcopy(config)))
    with pytest.raises(Exception, match="worker_nodess"):
        validate_config(config | {"worker_nodess": {}})


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_of_the_schema(name: str) -> None:
    jsonschema.Draft7Validator.check_schema(KUBERAY)
    jsonschema.validate(loaded(name), KUBERAY)


def changed(name: str, path: str, value: Any) -> dict[str, Any]:
    config = loaded(name)
    *way, last = path.split(".")
    place: Any = config
    for key in way:
        place = place[int(key) if isinstance(place, list) else key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return config


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("rayjob.yaml", "spec.entrypoint", ["python"]),
        ("rayjob.yaml", "spec.rayClusterSpec.headGroupSpec.rayStartParams", None),
        ("rayjob.yaml", "spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("rayjob.yaml", "spec.rayClusterSpec.workerGroupSpecs.0.minReplicas", -1),
        ("rayjob.yaml", "spec.submissionMode", "Mail"),
        ("rayjob.yaml", "spec.schedule", "17 2 * * *"),
        ("nightly.yaml", "spec.schedule", "daily"),
        ("nightly.yaml", "spec.jobTemplate", None),
        ("nightly.yaml", "kind", "CronJob"),
    ],
)
def test_a_wrong_manifest_is_not(name: str, path: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(name, path, value), KUBERAY)


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_container_has_the_token_and_what_it_asks_for(name: str) -> None:
    found = list(containers(job_of(name)))
    assert len(found) == 2
    for container in found:
        env = {entry["name"]: entry for entry in container["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["key"] == "auth_token"
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_launcher_starts_ray_with_the_token() -> None:
    config = loaded("launcher.yaml")
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        assert sum("RAY_AUTH_MODE=token ray start" in command for command in commands) == 1


@pytest.mark.parametrize("name", MANIFESTS)
def test_entry_points_are_commands_of_ours(name: str) -> None:
    words = shlex.split(job_of(name)["entrypoint"])
    assert words[:3] == ["python", "-m", "shardproof"]
    command = main.commands[words[3]]
    command.make_context(words[3], words[4:], parent=click.Context(main, **main.context_settings))


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_version_of_ray_is_the_pinned_one(name: str) -> None:
    lock = (ROOT / "requirements" / "runtime.lock").read_text()
    assert f"ray=={job_of(name)['rayClusterSpec']['rayVersion']}" in lock
    assert installed_version("z3") in lock
