"""Texts of numbers that nobody knows: they are printed, and compared with nothing."""

from __future__ import annotations

import io
import json
import logging
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.engine.errors import InvalidInput  # noqa: E402
from shardproof.frontends.torch import refusals  # noqa: E402
from shardproof.frontends.torch.rewriting import rewritten  # noqa: E402
from shardproof.frontends.torch.texts import Text, plain  # noqa: E402
from shardproof.frontends.torch.unread import Unread, written  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

NAMES = {"3", "4"}


def single(job: sp.Job) -> None:
    model = nn.Linear(3, 2)
    job.start(model)
    loss = model(job.batch["x"]).square().sum()
    loss.backward()
    job.end(loss=loss)


def parallel(factor: Callable[[Any], float]) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        loss = model(job.batch["x"].chunk(job.world_size)[job.rank]).square().sum()
        (factor(loss) * loss).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    return step


def verified(folder: Path, factor: Callable[[Any], float]) -> sp.Result:
    return locally(folder, single, parallel(factor), {"x": sp.tensor((4, 3))})


def guarded(loss: Any) -> float:
    """An error of another library, which would not be raised on the cluster."""
    try:
        return 2.0 if json.loads(json.dumps(loss.item())) > 1 else 1.0
    except TypeError:
        return 1.0


def told(loss: Any) -> str:
    return f"rank {dist.get_rank()}: " + message("%.3f" % loss.item())  # noqa: UP031


def message(number: str) -> str:
    return f"[{number}]"


DECIDING: dict[str, Callable[[Any], float]] = {
    "an f-string": lambda loss: 2.0 if f"{loss.item():.0f} s" == "3 s" else 1.0,
    "a format of C": lambda loss: 2.0 if "%d" % loss.item() in NAMES else 1.0,  # noqa: UP031
    "a length, far away": lambda loss: 2.0 if len(told(loss)) == 15 else 1.0,
    "a tensor's text": lambda loss: 2.0 if str(loss) == "tensor(3.)" else 1.0,
    "a caught error": guarded,
}


@pytest.mark.parametrize("name", DECIDING)
def test_what_a_text_decides_is_refused(name: str, tmp_path: Path) -> None:
    result = verified(tmp_path, DECIDING[name])
    assert result.verdict == "invalid input", sp.told(result)
    assert "reads the value of a tensor" in result.reason


class Lines:
    """A stream that leaves out empty lines."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        if text and text != "\n":
            self.texts.append(text)


def logged(loss: Any) -> float:
    lines = Lines()
    print(told(loss), "%d of %5.2f" % (loss.item(), loss), file=lines, sep="; ")  # noqa: UP031
    print(", ".join(f"{k}={v:>5.1f}" for k, v in {"loss": loss.item()}.items()), file=lines)
    logging.getLogger("none").error("%s %.3f %d", "loss", loss.item(), loss.item())
    json.dumps({"loss": loss.item(), "all": [loss.item()]})
    textwrap.fill(f"{loss.item():.3f} in all".strip().upper())
    assert len(lines.texts) == 4
    return float("".join(["1", ".", "0"])) if float("na" + "n") != 1 else 2.0


def test_what_is_only_logged_is_proved(tmp_path: Path) -> None:
    assert verified(tmp_path, logged).verdict == "proved"
    assert verified(tmp_path / "wrong", lambda x: 2 * logged(x)).verdict == "refuted"


ASKING: dict[str, Callable[[Any], object]] = {
    "equal": lambda x: x == "3",
    "the other way": lambda x: "3" == x,  # noqa: SIM300
    "in a list": lambda x: x in ["3"],
    "in a text": lambda x: x in "123",
    "in it": lambda x: "3" in x,
    "a key": lambda x: {"3": 1}.get(x),
    "in a set": lambda x: x not in NAMES,
    "order": lambda x: sorted(["3", x]),
    "length": len,
    "entry": lambda x: x[0],
    "entries": list,
    "beginning": lambda x: x.startswith("3"),
    "parts": lambda x: x.split(".")[0],
    "int": int,
    "float": float,
    "sum": lambda x: ("a" + x + "b")[0],
    "f-string": lambda x: f"<{x}>{x!r:>9}" == "<3>",
    "format": lambda x: "{} {}".format(1, x) < "2",  # noqa: UP032
    "join": lambda x: " ".join(["a", x]) < "2",
    "remainder": lambda x: "%s" % x < "2",  # noqa: UP031
    "a list": lambda x: str([x]) == "[3]",
    "bytes": lambda x: bytes(x, "utf-8") == b"3",
    "bytes of what has it": lambda x: bytearray(f"[{x}]", "ascii") == b"[3]",
    "a list by the type": lambda x: str.join(" ", [repr([x]), "a"])[1] == "3",
    "a line of a stream": lambda x: [y for y in streamed(x) if y == "3"],
    "lines of a stream": lambda x: streamed(x).readlines()[0] == "3",
    "a stream": lambda x: streamed(x).getvalue() == "3",
    "in another text": lambda x: "123".find(x),
    "by the type": lambda x: str.__eq__(x, "3"),
    "in it by the type": lambda x: str.find("3", x),
    "one of several beginnings": lambda x: "3".startswith(("1", x)),
    "what is replaced": lambda x: "345".replace(x, ""),
    "what it is replaced by": lambda x: "a4".replace("a", x) < "3",
    "a pattern": lambda x: PATTERN.match(x),
    "a pattern's function": lambda x: (PATTERN.match)(x),
    "a remainder by name": lambda x: "%(x)s" % {"x": x} < "2",  # noqa: UP031
}


PATTERN = re.compile("3")


def streamed(x: str) -> io.StringIO:
    """What was printed into it, from its beginning."""
    stream = io.StringIO()
    print(x, file=stream)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_for_characters(name: str) -> None:
    own = ASKING[name]
    ask = FunctionType(rewritten(own.__code__), globals()) if hasattr(own, "__code__") else own
    ask("3.5" if name != "int" else "3")
    refusals.begin()
    with pytest.raises(InvalidInput, match="back from a text"):
        ask(str(Unread("train.py:9", None)))
    refusals.begin()


def code(a: Any) -> list[object]:
    """What has jumps, handlers, cells and loops about texts that are put together."""
    made: list[object] = []
    for i in range(3):
        try:
            if i in (1, 2):
                made.append(f"x{a}y{i:>4}z" if i not in (2,) else "%s-%-4d|%5.1f%%" % (a, i, 2))  # noqa: UP031
            rest = 10
            rest %= 3
            text = "%d"
            text %= i
            made += [rest % 2, text, "{} {k}".format(a, k=i), "|".join(["b", a])]  # noqa: UP032
            if i == 1:
                raise ValueError(f"{a}")

            def inner(k: int = i) -> str:
                return f"<{a}!{k}>"

            made += [inner(), *[f"{a}{k}" for k in "ab" if k in "bc"], *given(a)]
        except (ValueError, KeyError) as error:
            made.append(str(error))
            continue
        finally:
            made.append("end")
    return made


def given(a: Any) -> Any:
    for i in range(2):
        yield f"{a} {i}"


def first(numbers: list[int]) -> int:
    return numbers[0] + 1


def test_code_that_puts_texts_together_does_what_it_did() -> None:
    own = FunctionType(rewritten(given.__code__), globals())
    new = FunctionType(rewritten(code.__code__), {**globals(), "given": own})
    assert new("3") == code("3")
    assert [plain(repr(x)) for x in new(Text("3", ""))] == [repr(x) for x in code("3")]
    assert rewritten(first.__code__) is first.__code__
    lines = [{line for *_, line in x.__code__.co_lines() if line} for x in (new, code)]
    assert lines[0] == lines[1]


def test_code_that_cannot_be_written_anew_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise AssertionError("exception table entry start instruction has no offset")

    monkeypatch.setattr("torch._dynamo.bytecode_transformation.transform_code_object", fails)
    code = compile("text = f'{1} of {2}'", "step.py", "exec")
    assert rewritten(code) is code


def test_texts_before_a_step_are_none_of_it(tmp_path: Path) -> None:
    """Were they, every step of a process would be recorded twice from then on."""
    assert str(Unread("notebook.py:9", None))
    assert written() == "notebook.py:9"

    def once(job: sp.Job) -> None:
        assert not written()
        single(job)

    result = locally(tmp_path, once, parallel(lambda _: 1), {"x": sp.tensor((4, 3))})
    assert result.verdict == "proved", sp.told(result)


def test_texts_of_a_step_are_followed(tmp_path: Path) -> None:
    """Its twin: a text is still known when the step ends."""

    def once(job: sp.Job) -> None:
        single(job)
        assert str(Unread("train.py:9", None))
        assert written() == "train.py:9"

    result = locally(tmp_path, once, parallel(lambda _: 1), {"x": sp.tensor((4, 3))})
    assert result.verdict == "proved", sp.told(result)
