"""Two refinements of the TPOT formulas, found by comparing them with the simulator (docs/explanation/queueing-accuracy.md).

Both only narrow a spread; means are untouched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving.colocated import ColocatedModel, ColocatedState
from pdplan.serving.colocated import tpot_quantile_s as colocated_tpot_quantile_s
from pdplan.serving.decode import DecodeState, negbin_quantile, tpot_at_batch_s

__all__ = ["bounded_tpot_quantile_s", "pooled_tpot_quantile_s"]

Floats = NDArray[np.float64]


def pooled_tpot_quantile_s(
    q: float, state: DecodeState, replicas: ArrayLike, tokens_per_step: ArrayLike = 1.0
) -> Floats:
    r"""q-quantile of TPOT where each request joins the replica with the fewest.

    Such a router keeps n replicas equally full, so that they fluctuate together: the pool is one processor-sharing
    system of n times the rate with step time al + be N/n. Its count is negative binomial with the same p and
    :math:`n\,al/be + 1`, and a replica holds one n-th of it, with one n-th of the variance of a replica taken alone.

    Parameters
    ----------
    q : float
        Between 0 and 1.
    state : DecodeState
        Of one replica at its share of the rate, arrays (..., C).
    replicas : array_like
        n, broadcast to (..., C). One replica gives :func:`pdplan.serving.decode.tpot_quantile_s`.
    tokens_per_step : array_like
        As there.
    """
    n = np.asarray(replicas, dtype=np.float64)
    level = negbin_quantile(q, n * state.mean_batch, n * state.batch_variance) / n
    return tpot_at_batch_s(level, state, tokens_per_step)


def bounded_tpot_quantile_s(
    q: float, rate_req_per_s: ArrayLike, state: ColocatedState, model: ColocatedModel
) -> Floats:
    """q-quantile of TPOT of a colocated replica, at most an iteration whose chunk is full beside the q-quantile batch.

    The gamma distribution of :func:`pdplan.serving.colocated.tpot_quantile_s` has no upper end; with small chunks near
    saturation nearly every iteration is full, and no average of iterations is longer than that.
    """
    unbounded = colocated_tpot_quantile_s(q, rate_req_per_s, state, model)
    batch = np.where(state.stable, state.mean_batch, 0.0)
    more = negbin_quantile(q, batch, np.where(state.stable, state.batch_variance, 0.0)) - batch
    per_token = (model.weight @ model.prefill_work_s) / (model.weight @ model.new_tokens)
    # One more sequence takes the place of one prompt token.
    full = state.full_iteration_s + (model.per_sequence_s - per_token) * np.maximum(more, 0.0)
    return np.where(state.stable, np.minimum(unbounded, full / model.tokens_per_step), np.inf)
