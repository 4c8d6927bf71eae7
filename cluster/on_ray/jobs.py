"""A command of ours as a job of a Ray cluster: submitted, its log followed, its exit code returned.

The working directory travels with the job, and so does the list of pinned packages unless the nodes
have them. Authentication is Ray's own (RAY_AUTH_MODE=token and its token, in this environment).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from shardproof.cluster.on_ray.pool import ClusterError

LEFT_OUT = [".git", ".venv", "**/__pycache__", "shardproof-runs", "shardproof-sweeps",
            "shardproof-nightly"]  # fmt: skip
"""What of the working directory is not sent, besides what .gitignore names."""

NO_CODE = 4
"""The exit code of a job that ended without one: it was stopped, or its node died."""

RAY = re.compile(r"ray(\[.*\])?\s*==")
"""What is not installed: nodes have the Ray that runs them."""

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """What is submitted. ``requirements``: a pinned list that nodes install first, or None.

    Example: ``Job(("check", "a run"), Path("."))`` runs ``python -m shardproof check 'a run'``.
    """

    arguments: tuple[str, ...]
    working_dir: Path
    requirements: Path | None = None
    name: str | None = None

    @property
    def entrypoint(self) -> str:
        """The command line on the cluster."""
        return shlex.join(["python", "-m", "shardproof", *self.arguments])

    def environment(self) -> dict[str, Any]:
        """Ray's runtime environment of the job and of its workers."""
        environment: dict[str, Any] = {"working_dir": str(self.working_dir), "excludes": LEFT_OUT}
        if self.requirements is not None:
            packages = [
                line
                for line in pinned(self.requirements.read_text(encoding="utf-8"))
                if not RAY.match(line)
            ]
            environment["pip"] = {"packages": packages, "pip_check": False}
        return environment


def pinned(text: str) -> list[str]:
    """The requirements in a lock file. Raises ValueError for one that is not pinned.

    Example: ``z3-solver==4.13`` and a line ``--hash=...`` are one requirement; ``torch>=2`` "is not
    pinned (name==version)".
    """
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    packages = [line for line in lines if line and not line.startswith("--")]
    loose = [line for line in packages if "==" not in line]
    if loose:
        raise ValueError(f"{loose[0]!r} is not pinned (name==version)")
    return packages


def submit(address: str, job: Job) -> Running:
    """Submit a job. Raises ClusterError if the cluster cannot be reached or does not take it.

    Example: ``submit("http://127.0.0.1:8265", Job(("verify", "plan"), Path(".")))``.
    """
    # What Ray says about every file it packs is not about the verdict.
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        client = JobSubmissionClient(address)
        number = client.submit_job(
            entrypoint=job.entrypoint, runtime_env=job.environment(), submission_id=job.name
        )
    except (RuntimeError, ValueError, OSError, RayError) as error:
        raise ClusterError(f"the job API at {address} does not take the job: {error}") from error
    return Running(client, number)


@dataclass(frozen=True)
class Running:
    """A job that was submitted.

    Example: ``Running(client, "raysubmit_x")``; ``follow(print)`` is 1 where the plan was refuted.
    """

    client: JobSubmissionClient
    number: str

    def follow(self, tell: Callable[[str], None]) -> int:
        """Hand on its log as it grows, and wait for its end; its exit code."""
        asyncio.run(self._tail(tell))
        while not (status := self.client.get_job_status(self.number)).is_terminal():
            time.sleep(POLL_SECONDS)
        if status == JobStatus.SUCCEEDED:
            return 0
        details = self.client.get_job_info(self.number)
        if details.driver_exit_code is None or details.driver_exit_code < 0:
            tell(f"the job {self.number} ended as {status}: {details.message}\n")
            return NO_CODE
        return int(details.driver_exit_code)

    async def _tail(self, tell: Callable[[str], None]) -> None:
        async for text in self.client.tail_job_logs(self.number):
            tell(text)


def document_in(log: str) -> dict[str, Any] | None:
    """The last JSON document that a log holds: from a line that is "{" to one that is "}".

    Example: of a log with a warning, then ``{``, ``"verdict": "proved"``, ``}`` in lines of their
    own, ``{"verdict": "proved"}``.
    """
    lines = log.splitlines()
    ends = [n for n, line in enumerate(lines) if line == "}"]
    for end in reversed(ends):
        begins = [n for n, line in enumerate(lines[:end]) if line == "{"]
        for begin in reversed(begins):
            try:
                document = json.loads("\n".join(lines[begin : end + 1]))
            except ValueError:
                continue
            if isinstance(document, dict):
                return document
    return None


def arguments_of(command: Sequence[str]) -> tuple[str, ...]:
    """The arguments of ours in what follows ``--``; the program's own name may lead it.

    Example: ``shardproof check run`` and ``check run`` are both ``("check", "run")``.
    """
    return tuple(command[1:] if list(command[:1]) == ["shardproof"] else command)
