"""What a generated model is made of: tensors, operations, and how these may be laid out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Value:
    """A tensor of the model.  ``kind``: its type; ``high``: ids of the batch are below it;
    ``batched``: it is cut into microbatches, ``along`` this dimension."""

    name: str
    shape: tuple[int, ...]
    graded: bool = True
    weight: bool = False
    loss: bool = False
    stage: int = 0
    kind: str = "float32"
    high: int = 0
    batched: bool = False
    along: int = 0


@dataclass(eq=False)
class Thing:
    """What an operation gives that is no tensor, such as a size."""

    name: str
    stage: int = 0
    graded: bool = False
    batched: bool = False


@dataclass(eq=False)
class Operation:
    """``more``: results after the first; ``anno``: nnScaler's annotation, where the layouts are
    read from it; ``local``: what of its attributes depends on the part of a device: ``size`` and
    ``shape`` are that of the result, ``rows`` and ``experts`` the range of a table's rows."""

    signature: str
    inputs: list[Any]
    output: Any
    kwargs: dict[str, Any] = field(default_factory=dict)
    more: list[Value] = field(default_factory=list)
    anno: str = ""
    local: str | None = None

    @property
    def name(self) -> str:
        return self.signature.rsplit(".", 1)[-1]

    @property
    def outputs(self) -> list[Value]:
        """The tensors that it gives."""
        return [x for x in (self.output, *self.more) if isinstance(x, Value)]


@dataclass
class Model:
    """Operations in order, each in a stage; ``batches``: what is loaded; ``mean``: the loss is a
    mean over the batch."""

    batches: list[Value]
    operations: list[Operation]
    weights: list[Value]
    stages: int
    mean: bool = False

    def read_later(self, value: Value, stage: int) -> bool:
        """Whether an operation of a later stage reads a value."""
        return any(value in op.inputs and op.output.stage > stage for op in self.operations)


@dataclass
class Choice:
    """The layouts of an operation's inputs (in which each is needed), of its outputs, and of the
    gradients of its inputs; ``along``: the identifier that is cut."""

    inputs: list[str]
    outputs: list[str]
    gradients: list[str]
    along: str = ""
