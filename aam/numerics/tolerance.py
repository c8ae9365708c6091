"""Tolerance of rounding between two correct computations of the same result.

A product of inner size K in a precision of unit roundoff u is off by about sqrt(K) u, relative to
its largest value (Higham and Mary, SIAM J. Sci. Comput. 2019: rounding errors are independent, so
they grow with the root of their number). Products in a row add up likewise: after P of them the
error is about sqrt(P) times as large. Under mixed precision sums are kept in fp32 and what goes in
and comes out is rounded, so the narrow type's u counts without the root of K.
"""

from __future__ import annotations

import math

from aam.contract.options.device import MixedPrecision

UNIT = {"none": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff of each precision; none is fp32 (IEEE 754, and bf16's 8 significant bits)."""

SAFETY = 8.0
"""Factor from the expected rounding error to the tolerance.

The largest of thousands of errors lies four or five standard deviations out, and two computations
are compared that are both off."""


def product_tolerance(precision: MixedPrecision, products: int, inner: int) -> float:
    """Return the largest difference of two correct results, relative to their largest value.

    Args:
        precision: precision of the matrix products, never "auto".
        products: matrix products in a row that lead to the result, at least 1.
        inner: inner dimension of the largest of them, at least 1.

    >>> fp32, bf16 = (product_tolerance(one, products=1, inner=64) for one in ("none", "bf16"))
    >>> bf16 > 1000 * fp32
    True
    """
    wide = math.sqrt(inner) * UNIT["none"]
    each = wide if precision == "none" else wide + UNIT[precision]
    return SAFETY * math.sqrt(products) * each
