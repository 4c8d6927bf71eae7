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
