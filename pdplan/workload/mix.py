"""The requests of one traffic class as a weighted joint sample of lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RequestMix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMix:
    """K support points of the joint distribution of (input, cached, output) lengths.

    All arrays have shape (K,), float64. `weight` sums to 1. `cached_tokens` is the part of the input
    found in the prefix cache: it costs attention but no projections, and is not sent to decode when
    `decode_holds_prefix`. A class may serve as the support of percentiles: K of 64 to 512 is usual.
    """

    input_tokens: NDArray[np.float64]
    cached_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    weight: NDArray[np.float64]

    @property
    def new_tokens(self) -> NDArray[np.float64]:
        """Input tokens that must be prefilled."""
        return self.input_tokens - self.cached_tokens

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weighted mean over the support; `values` is (K,) or (K, C)."""
        return np.tensordot(self.weight, values, axes=(0, 0))
