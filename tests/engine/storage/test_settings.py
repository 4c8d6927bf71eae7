"""Settings decoded strictly: the first place that does not fit is named, with what was expected."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct

from shardproof.campaigns.nightly import suite
from shardproof.campaigns.sweep import spec
from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.settings import Count, Text, decoded
from shardproof.frontends import zoo
from shardproof.inputs import assume


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["a", "b"]
    exact: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if self.kind == "b" and self.exact == 2:
            raise ValueError("expected another one")


class Outer(Struct, frozen=True, forbid_unknown_fields=True):
    name: Text
    many: dict[str, list[Inner | Count]] = {}
    factor: int | float | None = None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "f, name: is missing, expected a text that is not empty"),
        ({"nam": "x"}, "f, nam: not a key here, near is name; known are name, many, factor"),
        ({"name": "x", 3: 1}, "f, 3: not a key here; known are name, many, factor"),
        ({"name": ""}, "f, name: expected a text that is not empty, found ''"),
        ({"name": "x", "factor": True}, "f, factor: expected a number, found True"),
        ({"name": "x", "many": {"u": [1], "v": [1, 0]}},
         "f, many.v[1]: expected keys and values or an integer of at least 1, found 0"),
        ({"name": "x", "many": {"u": [{"kind": "c"}]}},
         "f, many.u[0].kind: expected one of a, b, found 'c'"),
        ({"name": "x", "many": {"u": [{"exact": 1}]}},
         "f, many.u[0].kind: is missing, expected one of a, b"),
        ({"name": "x", "many": {"u": [{"kind": "b", "exact": 2}]}},
         "f, many.u[0]: expected another one"),
        ({"name": "x", "many": {3: []}}, "f, many.3: expected a text, found 3"),
        ({"name": "x", "many": 7}, "f, many: expected keys and values, found 7"),
        ([1], "f: expected keys and values, found [1]"),
    ]
    + [
        ({"name": "x", "many": {"u": [{"kind": "a", "exact": bad}]}},
         f"f, many.u[0].exact: expected a positive decimal in quotes, found {bad!r}")
        for bad in ("x", "1/0", "-1", 0.5, True, "0")
    ],
    ids=str,
)  # fmt: skip
def test_the_first_misfit_is_named(data: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        decoded(data, Outer, "f")
    assert str(error.value) == message


def test_what_fits_is_decoded_exactly() -> None:
    data = {"name": "x", "many": {"u": [2, {"kind": "a", "exact": "0.1"}]}, "factor": 2}
    assert decoded(data, Outer) == Outer("x", {"u": [2, Inner("a", Fraction(1, 10))]}, 2)


READERS = {
    "sweep": (spec.read, "plans: [{single: .}]\n", "repeat: 1.5", "plans: [{}]"),
    "suite": (suite.read, "plans: [{model: m}]\n", "seeds: [x]", "name: x"),
    "assume": (assume.read, "", "[expect]\nparameters = 3", ""),
    "parallel": (lambda p: zoo.parallelization(str(p)), "", "dp = '3'", ""),
    "model": (
        lambda p: zoo.build(str(p), dp=1),
        zoo.MODELS["llama3-8b"].read_text(),
        "",
        "architecture = 'llama'\n",
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_unknown_wrong_and_missing_keys(tmp_path: Path, name: str) -> None:
    """Only what has required keys can miss one; the sound file beside them is read."""
    read, sound, wrong, missing = READERS[name]
    path = tmp_path / "file.toml"
    path.write_text(sound)
    read(path)
    unknown = "\nwrng: 1" if name in ("sweep", "suite") else "\nwrng = 1"
    broken = [(sound + unknown, "wrng: not a key here")]
    if name == "model":
        broken.append(
            (sound.replace("layers = 32", "layers = true"), "layers: expected an integer")
        )
    else:
        broken.append((sound + wrong, "expected a"))
    if missing:
        broken.append((missing, "is missing, expected "))
    for text, message in broken:
        path.write_text(text)
        with pytest.raises(InvalidInput) as error:
            read(path)
        assert str(error.value).startswith(f"{path}, ")
        assert message in str(error.value)
