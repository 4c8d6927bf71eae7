"""Programs with functions that are made of others, by their operators."""

from __future__ import annotations

#: An operator of one number, and a program with it.
_OF_ONE = {
    name: f"  x = f32[3,4] parameter(0)\n  ROOT y = f32[3,4] {name}(x)"
    for name in (
        *("tan", "sinh", "cosh", "atan", "asinh", "erfc", "cbrt", "lgamma", "digamma"),
        *("round-nearest-even", "round-nearest-afz"),
    )
}
#: Of numbers between -1 and 1.
_INSIDE = {
    name: "  x = f32[3,4] parameter(0)\n  c = f32[] constant(1.25)\n"
    "  b = f32[3,4] broadcast(c), dimensions={}\n  t = f32[3,4] subtract(x, b)\n"
    f"  u = f32[3,4] tanh(t)\n  ROOT y = f32[3,4] {name}(u)"
    for name in ("asin", "atanh", "erf-inv")
}
_TWO = "  x = f32[3,4] parameter(0)\n  z = f32[3,4] parameter(1)\n"
FUNCTIONS = {
    "quotients of integers": """  i = s32[3] parameter(0)
  x = f32[50,2] parameter(1)
  n = s32[] constant(3)
  c = s32[3] broadcast(n), dimensions={}
  q = s32[3] divide(i, c)
  r = s32[3] shift-right-logical(i, c)
  a = s32[3] shift-right-arithmetic(i, c)
  h = s32[3] shift-left(i, c)
  l = s32[3] not(h)
  s = s32[3] sign(i)
  m = s32[3] negate(s)
  b = s32[3] abs(m)
  t = s32[3] add(q, m)
  u = s32[3] add(t, b)
  v = s32[3] add(u, r)
  f = s32[3] subtract(v, l)
  w = s32[3] add(f, a)
  d = f32[3] convert(w)
  k = s32[3,1] reshape(i)
  g = f32[3,2] gather(x, k), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
index_vector_dim=1, slice_sizes={1,2}
  e = f32[3,2] broadcast(d), dimensions={0}
  ROOT y = f32[3,2] add(g, e)""",
    **_OF_ONE,
    **_INSIDE,
    "acosh": "  x = f32[3,4] parameter(0)\n  e = f32[3,4] exponential(x)\n"
    "  ROOT y = f32[3,4] acosh(e)",
    "atan2": "  x = f32[3,4] parameter(0)\n  e = f32[3,4] exponential(x)\n"
    "  n = f32[3,4] negate(x)\n  ROOT y = f32[3,4] atan2(n, e)",
    "atan2 of any point": f"{_TWO}  ROOT y = f32[3,4] atan2(x, z)",
    "power of two tensors": f"{_TWO}  e = f32[3,4] exponential(x)\n  ROOT y = f32[3,4] power(e, z)",
    "remainder": f"{_TWO}  n = f32[3,4] negate(x)\n  a = f32[3,4] remainder(n, z)\n"
    "  ROOT y = f32[3,4] add(a, x)",
}
