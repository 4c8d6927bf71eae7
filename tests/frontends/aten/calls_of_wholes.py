"""Random calls of operators that torch.export leaves whole: stacks, parts, losses, products."""

from __future__ import annotations

from tests.frontends.aten.calls import Call, Draw, call


@call("aten.broadcast_to.default")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (y, list(x.shape)), {}


@call("aten.broadcast_tensors.default")
def _(d: Draw) -> Call:
    return (list(d.pair()),), {}


@call(
    *("aten.ravel.default", "aten.positive.default", "aten.resolve_conj.default"),
    *("aten.resolve_neg.default", "aten.atleast_1d.default", "aten.atleast_2d.default"),
    *("aten.atleast_3d.default", "aten.squeeze.default", "aten.log_sigmoid.default"),
    *("aten.selu.default", "aten.relu6.default"),
)
def _(d: Draw) -> Call:
    return (4 * d.real(*d.any_shape()),), {}


@call("aten.movedim.intlist", "aten.moveaxis.intlist")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(4)), [0, -1], [2, d.below(2)]), {}


@call("aten.tile.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)), list(d.sizes(1 + d.below(3)))), {}


@call("aten.repeat_interleave.self_int")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), *d.sizes(1)), {"dim": d.below(len(shape))} if d.below(3) else {}


@call("aten.hstack.default", "aten.vstack.default", "aten.row_stack.default", "aten.dstack.default")
@call("aten.column_stack.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return ([d.real(*shape), d.real(*shape), d.real(*shape)],), {}


@call("aten.meshgrid.default")
def _(d: Draw) -> Call:
    return ([d.real(n) for n in d.sizes(1 + d.below(3))],), {}


@call("aten.meshgrid.indexing")
def _(d: Draw) -> Call:
    return ([d.real(n) for n in d.sizes(2 + d.below(2))],), {"indexing": ["ij", "xy"][d.below(2)]}


@call("aten.tensor_split.sections")
def _(d: Draw) -> Call:
    return (d.real(5, 7), 1 + d.below(5), d.below(2)), {}


@call("aten.tensor_split.indices")
def _(d: Draw) -> Call:
    return (d.real(5, 7), [1 + d.below(2), -1 - d.below(2)], d.below(2)), {}


@call("aten.hsplit.int", "aten.vsplit.int", "aten.dsplit.int")
def _(d: Draw) -> Call:
    return (d.real(4, 4, 4), 2), {}


@call("aten.hsplit.array", "aten.vsplit.array", "aten.dsplit.array")
def _(d: Draw) -> Call:
    return (d.real(4, 5, 6), [1, 1 + d.below(2)]), {}


@call("aten.fliplr.default", "aten.flipud.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(3)),), {}


@call("aten.diff.default")
def _(d: Draw) -> Call:
    return (d.real(4, 5), 1 + d.below(2), d.below(2)), {}


@call("aten.pad.default")
def _(d: Draw) -> Call:
    mode = ["constant", "reflect", "replicate"][d.below(3)]
    around = [d.below(3) for _ in range(4)]
    value = {"value": d.number()} if mode == "constant" and d.below(2) else {}
    return (d.real(2, 3, 4, 5), around), {"mode": mode, **value}


@call("aten.sum_to_size.default")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (x, list(y.shape)), {}


@call("aten.trapezoid.dx", "aten.trapz.dx")
def _(d: Draw) -> Call:
    return (d.real(3, 4),), {"dx": 0.5, "dim": d.below(2)}


@call("aten.l1_loss.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.real(*shape), d.below(3)), {}


@call("aten.kl_div.default")
def _(d: Draw) -> Call:
    shape, logs = d.any_shape(1), bool(d.below(2))
    target = d.real(*shape) if logs else d.positive(*shape)
    return (d.real(*shape), target, d.below(3)), {"log_target": logs}


@call("aten.poisson_nll_loss.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.positive(*shape), d.positive(*shape), bool(d.below(2)), False, 1e-8, d.below(3)), {}


@call("aten.margin_ranking_loss.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.real(*shape), d.real(*shape).sign(), d.number(), d.below(3)), {}


@call("aten.pairwise_distance.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.real(*shape), 1 + d.below(2), 1e-3, bool(d.below(2))), {}


@call("aten.triplet_margin_loss.default")
def _(d: Draw) -> Call:
    shape = d.sizes(2)
    each = [d.real(*shape) for _ in range(3)]
    return (*each, 0.5, 2.0, 1e-3, bool(d.below(2)), d.below(3)), {}


@call("aten.cosine_similarity.default")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (x, y, d.below(x.dim()), [1e-8, 0.9][d.below(2)]), {}


@call("aten.linalg_norm.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), *([1 + d.below(2), [d.below(len(shape))]] if d.below(2) else [])), {}


@call("aten.linalg_matrix_norm.str_ord")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(3)),), {"keepdim": bool(d.below(2))}


@call("aten.frobenius_norm.dim")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(3)), [1, 2], bool(d.below(2))), {}


@call("aten.linalg_vecdot.default")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (x, y), {"dim": -1}


@call("aten.tensordot.default")
def _(d: Draw) -> Call:
    a, b, c, e = d.sizes(4)
    return (d.real(a, b, c), d.real(c, e, b), [1, 2], [2, 0]), {}


@call("aten.inner.default")
def _(d: Draw) -> Call:
    (n,) = d.sizes(1)
    return (d.real(*d.sizes(d.below(3)), n), d.real(*d.sizes(d.below(3)), n)), {}


@call("aten.bilinear.default")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    lead = d.sizes(1 + d.below(2))
    bias = [d.real(c)] if d.below(2) else []
    return (d.real(*lead, a), d.real(*lead, b), d.real(c, a, b), *bias), {}


@call("aten.kron.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.real(*d.any_shape())), {}


@call("aten.chain_matmul.default", "aten.linalg_multi_dot.default")
def _(d: Draw) -> Call:
    a, b, c, e = d.sizes(4)
    return ([d.real(a, b), d.real(b, c), d.real(c, e)],), {}


@call("aten.block_diag.default")
def _(d: Draw) -> Call:
    return ([d.real(*d.sizes(2)), d.real(*d.sizes(1)), d.real(*d.sizes(2))],), {}


@call("aten.matmul.default")
def _(d: Draw) -> Call:
    """Vectors, and stacks of which one is every one's."""
    a, b, c, n = d.sizes(4)
    left = [(b,), (a, b), (n, a, b), (1, n, a, b)][d.below(4)]
    right = [(b,), (b, c), (n, b, c), (2, 1, b, c)][d.below(4)]
    return (d.real(*left), d.real(*right)), {}


@call("aten.var.dim", "aten.std.dim", "aten.var_mean.dim", "aten.std_mean.dim")
def _(d: Draw) -> Call:
    return (d.real(3, 4, 2), [[0], [1, -1]][d.below(2)], bool(d.below(2)), bool(d.below(2))), {}


@call("aten.var.default", "aten.std.default", "aten.var_mean.default", "aten.std_mean.default")
def _(d: Draw) -> Call:
    return (d.real(3, 4), bool(d.below(2))), {}


@call("aten.prelu.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(2)
    return (d.real(*shape), d.real([1, shape[1]][d.below(2)])), {}


@call("aten.diag.default")
def _(d: Draw) -> Call:
    return (d.real(*([4], [3, 4])[d.below(2)]), d.below(4) - 2), {}


@call("aten.trace.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)),), {}


def _padded(rank: int) -> None:
    @call(f"aten.conv{rank}d.padding")
    def _(d: Draw) -> Call:
        taps = [1 + d.below(3) for _ in range(rank)]
        x, weight = d.real(2, 2, *([5] * rank)), d.real(4, 2, *taps)
        how = ["same", "valid"][d.below(2)]
        return (x, weight, d.real(4), [1], how, [1 + d.below(2)]), {}

    @call(f"aten.conv_transpose{rank}d.{'default' if rank == 1 else 'input'}")
    def _(d: Draw) -> Call:
        x, weight = d.real(2, 2, *([3] * rank)), d.real(2, 3, *([2] * rank))
        return (x, weight, d.real(3), [2], [d.below(2)], [d.below(2)], 1, [1]), {}


for _rank in (1, 2, 3):
    _padded(_rank)


@call("aten.conv3d.default")
def _(d: Draw) -> Call:
    return (d.real(2, 2, 3, 4, 3), d.real(4, 1, 2, 2, 1), d.real(4), [1, 2, 1], [1], [1], 2), {}


#: Ways to resample by the number of dimensions, and whether corners may be aligned.
WAYS = {
    **{f"upsample_nearest{rank}d": (rank, False) for rank in (1, 2, 3)},
    **{f"_upsample_nearest_exact{rank}d": (rank, False) for rank in (1, 2, 3)},
    "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True),
    "upsample_trilinear3d": (3, True),
    "upsample_bicubic2d": (2, True),
    "_upsample_bilinear2d_aa": (2, True),
    "_upsample_bicubic2d_aa": (2, True),
}


def _resampled(name: str, rank: int, corners: bool) -> None:
    @call(f"aten.{name}.vec")
    def _(d: Draw) -> Call:
        x, sizes = d.real(1, 2, *([3] * rank)), [2 + d.below(4) for _ in range(rank)]
        aligned = [bool(d.below(2))] if corners else []
        if d.below(2):
            return (x, sizes, *aligned, None), {}
        return (x, None, *aligned, [[2.0, 1.5][d.below(2)]] * rank), {}


for _name, (_dims, _corners) in WAYS.items():
    _resampled(_name, _dims, _corners)


@call("aten.instance_norm.default")
def _(d: Draw) -> Call:
    own = bool(d.below(2))
    running = (None, None) if own else (d.real(3), d.positive(3))
    return (d.real(2, 3, 4), d.real(3), d.real(3), *running, own, 0.1, 1e-3, False), {}


@call("aten.argsort.default")
def _(d: Draw) -> Call:
    return (d.real(3, 4), d.below(2), bool(d.below(2))), {}


@call("aten.take_along_dim.default")
def _(d: Draw) -> Call:
    return (d.real(3, 4), d.ids(4, *[(3, 2), (1, 2)][d.below(2)]), 1), {}


@call("aten.one_hot.default")
def _(d: Draw) -> Call:
    return (d.ids(5, *d.sizes(2)), 5 + d.below(2)), {}


def _recurrent(name: str, gates: int, states: int) -> None:
    @call(f"aten.{name}.input")
    def _(d: Draw) -> Call:
        layers, both, biases, first = 1 + d.below(2), bool(d.below(2)), bool(d.below(2)), d.below(2)
        inner, count = 3, 2 if both else 1
        params = []
        for layer in range(layers):
            for _ in range(count):
                width = inner * count if layer else 2
                params += [d.real(gates * inner, width), d.real(gates * inner, inner)]
                params += [d.real(gates * inner), d.real(gates * inner)] if biases else []
        given = [d.real(layers * count, 4, inner) for _ in range(states)]
        hidden = given if states > 1 else given[0]
        x = d.real(4, 3, 2) if first else d.real(3, 4, 2)
        return (x, hidden, params, biases, layers, 0.0, False, both, bool(first)), {}

    @call(f"aten.{name}_cell.default")
    def _(d: Draw) -> Call:
        given = [d.real(4, 3) for _ in range(states)]
        weights = [d.real(gates * 3, 2), d.real(gates * 3, 3)]
        biases = [d.real(gates * 3), d.real(gates * 3)] if d.below(2) else []
        return (d.real(4, 2), given if states > 1 else given[0], *weights, *biases), {}


_recurrent("rnn_tanh", 1, 1)
_recurrent("rnn_relu", 1, 1)
_recurrent("gru", 3, 1)
_recurrent("lstm", 4, 2)


@call("aten.cross_entropy_loss.default")
def _(d: Draw) -> Call:
    """Smoothed labels, of one row, of rows, of rows of positions."""
    n, c, t = d.sizes(3)
    shape, labels = [((c,), ()), ((n, c), (n,)), ((n, c, t), (n, t))][d.below(3)]
    return (d.real(*shape), d.ids(c, *labels), None, d.below(3), -100, 0.2), {}


@call("aten.cross_entropy_loss.default")
def _(d: Draw) -> Call:
    """Probabilities of classes."""
    n, c, t = d.sizes(3)
    shape = [(c,), (n, c), (n, c, t)][d.below(3)]
    return (d.real(*shape), d.positive(*shape), None, d.below(3), -100, [0.0, 0.3][d.below(2)]), {}
