"""A Ray cluster of several nodes on this machine, each of them processes of its own (`ray start`).

Every node is a process group, so that a node can be killed as a whole, as a machine that goes dark.
Token authentication is on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from engine.closing import Closing

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 400.0
OBJECT_STORE_BYTES = 100 << 20
AGENT_PORTS = (
    "dashboard_agent_listen_port",
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster(Closing):
    """A head without CPUs and ``workers`` nodes of ``cpus`` CPUs and ``memory_mib`` each."""

    def __init__(
        self, workers: int = 2, cpus: int = 1, memory_mib: int = 2048, dashboard: bool = True
    ) -> None:
        # Ray's sockets lie in here, and their paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="sp"))
        self.port, self.dashboard = free_port(), free_port()
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._workers, self._cpus, self._memory_mib = workers, cpus, memory_mib
        self._has_dashboard = dashboard
        self._count = itertools.count()
        self._has_dashboard = dashboard
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        here = str(Path(sys.executable).parent)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Nodes that are killed are noticed soon, and the machine is shared.
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_timeout_ms": "2000",
            "RAY_health_check_failure_threshold": "6",
            "RAY_raylet_start_wait_time_s": "60",
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"

    def open(self) -> None:
        self._start("--head", f"--port={self.port}", f"--include-dashboard={str(self._has_dashboard).lower()}",
                    f"--dashboard-port={self.dashboard}", "--num-cpus=0",
                    f"--temp-dir={self.folder}/ray")  # fmt: skip
        self._until(self._started, "the head")
        for _ in range(self._workers):
            self.add()

    def add(self) -> None:
        """One more worker node; two that start at once would take each other's sockets."""
        self._start(
            f"--address={self.address}", f"--num-cpus={self._cpus}",
            f"--memory={self._memory_mib << 20}",
        )  # fmt: skip
        self._until(self._started, "a worker node")

    def _started(self) -> bool:
        """Whether the node that was begun last is there, and where it serves jobs, that."""
        told = "Ray runtime started." in self._log.read_text(errors="replace")
        head = len(self.nodes) == 1 and self._has_dashboard
        return told and (not head or _listens(self.dashboard))

    def kill(self, node: subprocess.Popen[bytes]) -> int:
        """End a node and everything on it at once; the number of processes."""
        victims = family(node.pid)
        for process in victims:
            with contextlib.suppress(psutil.Error):
                process.kill()
        node.wait()
        self.nodes.remove(node)
        return len(victims)

    def close(self) -> None:
        for node in reversed(list(self.nodes)):
            self.kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command with the cluster's environment."""
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False,
            timeout=300,
        )  # fmt: skip

    def _start(self, *options: str) -> None:
        ray = str(Path(sys.executable).parent / "ray")
        self._log = self.folder / f"node-{next(self._count)}.log"
        log = self._log.open("wb")
        node = secrets.token_hex(28)
        ports = {name: free_port() for name in AGENT_PORTS}
        self._told = {f"{name}_{node}": str(port) for name, port in ports.items()}
        self.nodes.append(
            subprocess.Popen(
                [
                    ray,
                    "start",
                    "--block",
                    "--disable-usage-stats",
                    "--node-ip-address=127.0.0.1",
                    f"--dashboard-agent-listen-port={ports['dashboard_agent_listen_port']}",
                    f"--dashboard-agent-grpc-port={ports['metrics_agent_port']}",
                    f"--metrics-export-port={ports['metrics_export_port']}",
                    f"--runtime-env-agent-port={ports['runtime_env_agent_port']}",
                    f"--object-store-memory={OBJECT_STORE_BYTES}",
                    *options,
                ],
                cwd=self.folder,
                env=self.environment | {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": node},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )

    def _tell_ports(self) -> None:
        """Write the files in which a node's agents say their ports: Ray ends a node whose agents
        take longer than 15 s, and on a busy machine they do."""
        for session in (self.folder / "ray").glob("session_2*"):
            for name, port in self._told.items():
                if not (session / name).exists():
                    (session / name).write_text(port)

    def _until(self, there: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + START_SECONDS
        while not there():
            self._tell_ports()
            if time.monotonic() > until or self.nodes[-1].poll() is not None:
                logs = "".join(p.read_text() for p in self.folder.glob("node-*.log"))
                raise RuntimeError(f"{what} did not start: {logs[-2000:]}")
            time.sleep(0.1)


def family(root: int) -> list[psutil.Process]:
    """A process and everything below it; parents first."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
