"""Programs of torch.export: read without torch and without executing anything, proved, refuted."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx import archived, pt2, records
from shardproof.frontends.fx.files import side
from shardproof.frontends.fx.frontend import FRONTEND

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("more", "expected"), [((), "proved"), (("wrong",), "refuted")])
def test_a_rank_for_a_file_against_one_device(
    tmp_path: Path, more: tuple[str, ...], expected: str
) -> None:
    command = [sys.executable, "-m", "tests.frontends.fx.exported", str(tmp_path), "2", *more]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    paths = tmp_path / "single.pt2", tmp_path / "ranks"
    result = shardproof.verify(*paths, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason
    assert shardproof.check(tmp_path / "run").ok
    assert not any("adds it up" in text for text in result.assumptions)


MODEL: dict[str, Any] = {
    "graph_module": {
        "graph": {
            "inputs": [{"as_tensor": {"name": "x"}}],
            "outputs": [{"as_tensor": {"name": "a"}}, {"as_tensor": {"name": "b"}}],
            "nodes": [
                {
                    "target": "torch.ops.aten.split.Tensor",
                    "inputs": [
                        {"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1},
                        {"name": "split_size", "arg": {"as_int": 2}, "kind": 1},
                        {"name": "dim", "arg": {"as_int": 0}, "kind": 2},
                        {"name": "device", "arg": {"as_device": {"type": "cpu"}}, "kind": 2},
                    ],
                    "outputs": [{"as_tensors": [{"name": "a"}, {"name": "b"}]}],
                    "metadata": {"stack_trace": 'File "model.py", line 7, in forward\n  split'},
                    "name": "split",
                }
            ],
            "tensor_values": {
                "x": {"dtype": 7, "sizes": [{"as_int": 4}, {"as_int": 3}]},
                "a": {"dtype": 7, "sizes": [{"as_int": 2}, {"as_int": 3}]},
                "b": {"dtype": 7, "sizes": [{"as_int": 2}, {"as_int": 3}]},
            },
        }
    }
}


def archive(path: Path, model: Any, name: str = "m/models/model.json") -> Path:
    data = model if isinstance(model, (str, bytes)) else json.dumps(model)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("m/archive_format", "pt2")
        file.writestr(name, data)
        file.writestr("m/data/sample_inputs/model.pt", b"\x80\x02cos\nsystem\n(S'false'\ntR.")
    return path


def test_results_of_several_tensors_have_names_of_their_own(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.pt2", MODEL)
    assert FRONTEND.accepts(path, path.read_bytes()[:4096])
    (graph,) = side(path)
    assert [(n.name, n.target, n.shape) for n in graph.nodes] == [
        ("x", "x", [4, 3]),
        ("split of 0", "aten.split.Tensor", None),
        ("a", "<built-in function getitem>", [2, 3]),
        ("b", "<built-in function getitem>", [2, 3]),
        ("output", "output", None),
    ]
    assert graph.nodes[1].args == [{"n": "x"}, 2]
    assert graph.nodes[1].kwargs == {"dim": 0}
    assert graph.nodes[1].src == "model.py:7"
    assert shardproof.verify(path, path, out=tmp_path / "run").verdict == "proved"


def changed(*keys: Any, to: Any) -> dict[str, Any]:
    model = json.loads(json.dumps(MODEL))
    held = model["graph_module"]["graph"]
    for key in keys[:-1]:
        held = held[key]
    held[keys[-1]] = to
    return model  # type: ignore[no-any-return]


HOSTILE: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "JSON"),
    "nested": ('{"a":' * 100_000, "JSON"),
    "cycle": (changed("nodes", 0, "inputs", 0, "arg", "as_tensor", "name", to="a"), "not given"),
    "large": (changed("tensor_values", "x", "sizes", 0, to={"as_int": 1 << 60}), "shape"),
    "dynamic": (changed("tensor_values", "x", "sizes", 0, to={"as_expr": {}}), "no number"),
    "no shape": (changed("tensor_values", to={}), "without a shape"),
    "token": (changed("inputs", 0, to={"as_token": {"name": "x"}}), "is no tensor"),
    "unknown": (changed("nodes", 0, "inputs", 1, "arg", to={"as_graph": {}}), "not understood"),
    "operand": (changed("nodes", 0, "inputs", 0, "arg", to={"as_tensor": 3}), "without a name"),
    "types": (changed("nodes", 0, "target", to=7), "JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    model, message = HOSTILE[name]
    path = archive(tmp_path / "model.pt2", model)
    result = shardproof.verify(path, path, out=tmp_path / "run")
    assert result.verdict == "invalid input"
    assert message in result.reason
    assert "\n" not in result.reason


def test_archives_that_are_cut_or_hold_no_model_are_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.pt2", MODEL).read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 12)):
        path = tmp_path / "cut.pt2"
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidInput):
            side(path)
    with pytest.raises(InvalidInput, match="found 0"):
        side(archive(tmp_path / "other.pt2", MODEL, "m/other.json"))


def test_archives_with_a_damaged_byte_are_read_or_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.pt2", MODEL).read_bytes()
    path, refused = tmp_path / "damaged.pt2", set()
    for place in range(4, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            archived.read(path)
        except InvalidInput as error:
            refused.add(error.message.partition(":")[0])
    assert "is no archive" in refused


def test_an_archive_of_more_than_may_be_unpacked_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.pt2", b" " * (records.MOST_BYTES + 1))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InvalidInput, match="larger than"):
        side(path)


#: Where the local header and the one of the directory have a field, and what is written there.
PACKINGS = {
    "another compression": ((8, 10), 99),
    "patched data": ((6, 8), 0x20),
    "strong encryption": ((6, 8), 0x40),
    "a password": ((6, 8), 0x01),
    "a later version": ((None, 6), 99),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_archives_packed_otherwise_are_bad_input(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "single.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("single/models/model.json", json.dumps(MODEL))
    (local, central), number = PACKINGS[packing]
    raw = bytearray(path.read_bytes())
    directory = raw.index(b"PK\x01\x02")
    for place in (local, None if central is None else directory + central):
        if place is not None:
            raw[place : place + 2] = struct.pack("<H", number)
    path.write_bytes(raw)
    with pytest.raises(InvalidInput) as error:
        pt2.module(path)
    assert "\n" not in str(error.value)
