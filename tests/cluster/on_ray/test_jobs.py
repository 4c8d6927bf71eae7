"""What a job takes along, and what is read from its log (the job API itself: test_nodes)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.cluster.on_ray.jobs import Job, arguments_of, document_in, pinned

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements" / "runtime.lock"


def test_nodes_install_everything_but_the_ray_that_they_run() -> None:
    job = Job(("verify", "a plan"), ROOT, LOCK)
    found = job.environment()
    locked = pinned(LOCK.read_text(encoding="utf-8"))
    left_out = set(locked) - set(found["pip"]["packages"])
    assert [line.partition("==")[0].partition("[")[0] for line in left_out] == ["ray"]
    assert any(line.startswith("z3-solver==") for line in found["pip"]["packages"])
    assert found["working_dir"] == str(ROOT)
    assert job.entrypoint == "python -m shardproof verify 'a plan'"


def test_nodes_that_have_it_install_nothing() -> None:
    assert "pip" not in Job(("status",), ROOT).environment()


def test_a_list_that_is_not_pinned_is_refused() -> None:
    assert pinned("--hash=x\n# a word\nclick==8.3.0  # via us\n\n") == ["click==8.3.0"]
    with pytest.raises(ValueError, match=r"'numpy>=2' is not pinned"):
        pinned("click==8.3.0\nnumpy>=2\n")


def test_the_document_is_the_last_one_of_the_log() -> None:
    log = 'began\n{\n "verdict": "refuted"\n}\nsaid {\n{\n "verdict": "proved"\n}\nended\n'
    assert document_in(log) == {"verdict": "proved"}
    assert document_in("began\n{\nno json\n}\n") is None
    assert document_in("") is None


def test_the_name_of_the_program_may_lead_its_arguments() -> None:
    assert arguments_of(("shardproof", "verify", "p")) == arguments_of(("verify", "p"))
