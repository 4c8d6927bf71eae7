"""Several tensors that ranks gather in one flat message, as FSDP does."""

from __future__ import annotations

from shardproof.frontends.torch.collectives import _gather_into
from shardproof.frontends.torch.functional import Replay
from shardproof.frontends.torch.memory import RESHAPE
from shardproof.frontends.torch.trace import Ranks, StridedTensor, Tensor, Trace, tensors_of

RANKS, WEIGHT, BIAS = 2, (2, 3), (4,)
MESSAGE = 10


def replay() -> Replay:
    """A weight and a bias in one message, gathered from two ranks into storage 1."""
    own = StridedTensor(0, 0, (MESSAGE,), (1,), "float32")
    whole = StridedTensor(1, 0, (RANKS * MESSAGE,), (1,), "float32")
    made = Replay(Trace(0, RANKS, (own, whole), (), ("",), ("",)))
    for shape, start, strides in ((WEIGHT, 0, (3, 1)), (BIAS, 6, (1,))):
        at = StridedTensor(0, start, shape, strides, "float32")
        made.memory.write(at, made.memory.value(shape, "float32"))
    _gather_into(made, Tensor(1), Tensor(0), Ranks((0, 1)))
    return made


def column(start: int, size: int) -> StridedTensor:
    """What all ranks have at some places of the message."""
    return StridedTensor(1, start, (RANKS, size), (MESSAGE, 1), "float32")


def sources(made: Replay, value: int) -> set[int]:
    """A value and all that it is made of."""
    op = made.memory.made.get(value)
    inner = [] if op is None else list(tensors_of(*op.args))
    return {value}.union(*(sources(made, n) for n in inner))


def test_a_piece_of_all_ranks_is_what_was_gathered() -> None:
    """It is not put together again of what each of them has."""
    made = replay()
    before = len(made.out.ops)
    for start, size, shape in ((0, 6, (RANKS * 2, 3)), (6, 4, (RANKS * 4,))):
        op = made.memory.made[made.memory.read(column(start, size))]
        (gathered,) = tensors_of(*op.args[:1])
        assert op.name == RESHAPE
        assert made.memory.made[gathered].name == "comm.all_gather"
        assert made.memory.shape_of(gathered) == shape
    assert len(made.out.ops) == before


def test_it_is_read_anew_once_a_rank_s_part_is_written() -> None:
    made = replay()
    part = StridedTensor(1, MESSAGE, WEIGHT, (3, 1), "float32")
    written = made.memory.value(WEIGHT, "float32")
    made.memory.write(part, written)
    assert written in sources(made, made.memory.read(column(0, 6)))
    assert written not in sources(made, made.memory.read(column(6, 4)))
