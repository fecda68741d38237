r"""Prefill with attention data parallelism: requests share passes that last as long as their fullest rank.

A pass of n requests takes ``fixed + max over ranks (sum a) + sum b``: a is the part of a request's work that its own rank
does, b what all ranks share. A replica that is free starts at once; whoever comes during a pass waits for its end and
joins the next pass, with up to `max_requests` others. The page "Where waiting comes from" derives the formulas; in short:

* a request joins the rank with the fewest tokens, so up to one request per rank the longest is the maximum of n draws,
  and each request beyond adds its g-th part;
* with x arrivals per pass the pass duration D(x) has a mean and a variance, and the arrival rate is x / D(x);
* a request finds all c replicas in a pass with probability P (a birth-death chain whose last state lasts as long as passes
  follow one another); it then waits for a uniform part of a length-biased pass, and its own pass holds those who came
  meanwhile. A router that sends to the least work spreads waiting over the last part z of a pass only, and evens out the
  numbers of requests by the c z replicas that compete;
* near the token budget some passes leave requests behind, an exponential wait with probability rho^(c n_max).

Valid for stationary traffic; compared with simulation in "Queueing formulas against the simulator".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving.normal import normal_tail

__all__ = [
    "EXPONENTIAL_NODES",
    "RankPasses",
    "erlang_b",
    "mean_pass_at",
    "rank_passes",
    "rank_ttft_tail",
    "requests_of_full_pass",
    "take_columns",
]

Floats = NDArray[np.float64]
_LOADS = 48
_LEAST_LOAD = 1e-3
"""Arrivals per pass at which tables start, relative to a full pass."""
_CELLS = 512
"""Cells of the tabulated distribution of a request's own work."""
_RECURSION_LIMIT = 64
"""Above this many servers the closed form with the incomplete gamma function is cheaper than the recursion."""
_EDGES = np.array([0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.995])
"""Cumulative shares at which support points are grouped, finer where percentiles are asked."""
_POSITIONS = (0.5 - 0.5 / math.sqrt(3), 0.5 + 0.5 / math.sqrt(3))
"""Gauss-Legendre levels of equal weight on (0, 1)."""
_LENGTHS = ((-1.2116, 5 / 18), (0.0, 8 / 18), (1.2116, 5 / 18))
"""Gauss-Legendre rule on (0, 1) with its levels as standard normal quantiles."""
_NOISE = (-1.0, 1.0)
"""Gauss-Hermite points of equal weight for a standard normal."""
EXPONENTIAL_NODES = ((0.4157745568, 0.7110930099), (2.2942803603, 0.2785177336), (6.2899450829, 0.0103892565))
"""Gauss-Laguerre rule for an exponential of mean one."""
_NEGLIGIBLE = 1e-4


def erlang_b(servers: ArrayLike, load: ArrayLike) -> Floats:
    """Probability that all servers of an M/M/c/c system are taken.

    Parameters
    ----------
    servers : array_like of int
        Number of servers c, broadcast against `load`.
    load : array_like
        Offered load a = rate x mean service, Erlang; any positive number.
    """
    c, a = np.broadcast_arrays(np.asarray(servers, dtype=np.float64), np.asarray(load, dtype=np.float64))
    safe = np.clip(a, 1e-12, None)
    top = int(c.max(initial=1.0))
    if top <= _RECURSION_LIMIT:
        inverse = np.ones(c.shape)  # 1/B(j, a) = 1 + j/a 1/B(j-1, a): grows, never cancels
        for j in range(1, top + 1):
            inverse = np.where(j <= c, 1.0 + j / safe * inverse, inverse)
        return np.asarray(1.0 / inverse, dtype=np.float64)
    from scipy.special import gammaincc, gammaln

    out = np.exp(c * np.log(safe) - safe - gammaln(c + 1)) / np.maximum(gammaincc(c + 1, safe), 1e-300)
    return np.asarray(np.minimum(out, 1.0), dtype=np.float64)


def requests_of_full_pass(
    ranks: ArrayLike, token_budget: ArrayLike, new_tokens: ArrayLike, weight: ArrayLike
) -> Floats:
    """Mean requests of a pass that is cut off by the token budget of its ranks, (C,).

    A pass ends at the first request that no longer fits on the emptiest rank. That request is longer than the mean,
    and what it leaves free is half of it on average, so that a rank holds budget / mean - (1 + cv^2)/2, and at least one.
    """
    tokens, w = np.asarray(new_tokens, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    mean = w @ tokens / w.sum()
    scatter = (w @ tokens**2) / w.sum() / mean**2
    out: Floats = np.asarray(ranks, dtype=np.float64) * np.maximum(
        1.0, np.asarray(token_budget, dtype=np.float64) / mean - scatter / 2
    )
    return out


class RankPasses(NamedTuple):
    """C layouts; arrays (C,), (K, C), (G, C) over groups of support points, (L, C) over loads or (cells, C)."""

    ranks: Floats
    fixed_s: Floats
    most: Floats
    """Requests of a full pass."""
    own_mean_s: Floats
    shared_mean_s: Floats
    squares: tuple[Floats, Floats, Floats]
    """E[a^2], E[a b], E[b^2]."""
    hot: Floats
    """E[a] / E[a + b]."""
    cells: Floats
    """Distribution of a at equal steps up to the largest, (cells + 1, C)."""
    cell_s: Floats
    pass_mean_s: Floats
    """By arrivals per pass, (L, C)."""
    pass_variance_s2: Floats
    longest_s: Floats
    """Mean of the longest request on a rank of its own, (L, C)."""
    rate: Floats
    """Arrivals per second that make a load, (L, C), increasing."""
    order: NDArray[np.int64]
    """Support points by work, (K,)."""
    group: NDArray[np.int64]
    """Group of each point in that order."""
    weight: Floats
    """(K,) in that order."""
    own_s: Floats
    """a in that order, (K, C)."""
    shared_s: Floats

    @property
    def capacity_req_per_s(self) -> Floats:
        """Of one replica whose passes are all full, (C,)."""
        last: Floats = self.rate[-1]
        return last


def _beyond_ranks(requests: Floats, ranks: Floats) -> Floats:
    """E max(N - g, 0) of a Poisson number of requests, as of a normal variable."""
    spread = np.sqrt(requests)
    z = (requests - ranks) / spread
    out: Floats = spread * (np.exp(-z * z / 2) / math.sqrt(2 * math.pi) + z * normal_tail(-z))
    return np.maximum(out, 0.0)


def _filled(requests: Floats, ranks: Floats) -> Floats:
    """Probability that a Poisson number of requests exceeds the ranks, so that one more adds to a rank's work."""
    return normal_tail((ranks - requests) / np.sqrt(requests))


def rank_passes(
    service_s: Floats,
    full_s: Floats,
    fixed_s: ArrayLike,
    weight: Floats,
    ranks: ArrayLike,
    max_requests: ArrayLike,
) -> RankPasses:
    """Everything about C layouts that does not depend on the rate.

    Parameters
    ----------
    service_s, full_s : (K, C)
        Pass of support point k alone, and of one such request on every rank.
    fixed_s : (C,)
        Pass without requests.
    weight : (K,)
        Sums to 1.
    ranks : (C,)
        At least 2.
    max_requests : (C,)
        Requests of a full pass (:func:`requests_of_full_pass`).
    """
    g = np.asarray(ranks, dtype=np.float64)
    fixed = np.minimum(np.asarray(fixed_s, dtype=np.float64), service_s.min(axis=0) * (1 - 1e-9))
    shared = np.clip((full_s - service_s) / (g - 1), 0.0, service_s - fixed)
    own = service_s - fixed - shared
    order = np.argsort(own.sum(axis=1), kind="stable")
    own, shared, share = own[order], shared[order], weight[order]
    group = np.searchsorted(_EDGES, np.cumsum(share) - share / 2)
    group = np.unique(group, return_inverse=True)[1]
    most = np.maximum(np.asarray(max_requests, dtype=np.float64), g)

    # Distribution of own work at equal steps; the last cell holds the largest.
    cell = np.maximum(own.max(axis=0), 1e-9) / _CELLS
    at = np.minimum(np.ceil(own / cell - 1e-9).astype(np.int64), _CELLS)
    cells = np.zeros((_CELLS + 1, own.shape[1]))
    for column in range(own.shape[1]):
        cells[:, column] = np.bincount(at[:, column], weights=share, minlength=_CELLS + 1)
    cells = np.minimum(np.cumsum(cells, axis=0), 1.0)

    mean_a, mean_b = share @ own, share @ shared
    aa, ab, bb = share @ own**2, share @ (own * shared), share @ shared**2
    loads = np.geomspace(_LEAST_LOAD, 1.0, _LOADS)[:, None] * most
    beyond = _beyond_ranks(loads, g)
    taken = np.clip((loads - beyond) / g, 0.0, 1.0)
    idle = np.exp(-loads)  # nobody came: the next pass has the one request that comes first
    # Longest of one draw on each taken rank: P(all <= y) = (1 - taken (1 - F(y)))^g, integrated over y.
    late = 1 - (1 - taken * (1 - cells[:, None])) ** g
    first = late.sum(axis=0) * cell
    second = 2 * np.einsum("n,nlc->lc", np.arange(_CELLS + 1) + 0.5, late) * cell**2
    mean = fixed + loads * mean_b + first + beyond / g * mean_a + idle * (mean_a + mean_b)
    longest_variance = np.maximum(second + idle * aa - (first + idle * mean_a) ** 2, 0.0)
    per_request = bb + _filled(loads, g) * (aa / g**2 + 2 * ab / g)
    # The longest request is long in both of its parts.
    inner = longest_variance * (1 + 2 * mean_b / np.maximum(mean_a, 1e-12)) + loads * per_request
    rate = np.maximum.accumulate(loads / mean, axis=0)
    slope = rate * np.gradient(mean, np.log(loads[:, 0]), axis=0) / loads
    variance = inner / np.maximum(1 - np.minimum(slope, 0.98) ** 2, 0.05)
    return RankPasses(
        ranks=g,
        fixed_s=fixed,
        most=most,
        own_mean_s=mean_a,
        shared_mean_s=mean_b,
        squares=(aa, ab, bb),
        hot=mean_a / (mean_a + mean_b),
        cells=cells,
        cell_s=cell,
        pass_mean_s=mean,
        pass_variance_s2=variance,
        longest_s=first,
        rate=rate,
        order=order,
        group=group,
        weight=share,
        own_s=own,
        shared_s=shared,
    )


def take_columns(passes: RankPasses, columns: NDArray[np.int64]) -> RankPasses:
    """Some of the layouts."""
    kept = {
        name: getattr(passes, name)[..., columns]
        for name in RankPasses._fields
        if name not in ("squares", "order", "group", "weight")
    }
    aa, ab, bb = passes.squares
    return passes._replace(squares=(aa[columns], ab[columns], bb[columns]), **kept)


def _read(table: Floats, position: Floats) -> Floats:
    """Linear interpolation of an (L, C) table at fractional rows (..., C)."""
    row = np.clip(position.astype(np.int64), 0, len(table) - 2)
    part = position - row
    columns = np.arange(table.shape[1])
    out: Floats = table[row, columns] * (1 - part) + table[row + 1, columns] * part
    return out


def _row(loads: Floats, most: Floats) -> Floats:
    """Row of the load tables for a number of arrivals per pass."""
    step = -math.log(_LEAST_LOAD) / (_LOADS - 1)
    out: Floats = np.clip(np.log(np.maximum(loads / most, _LEAST_LOAD) / _LEAST_LOAD) / step, 0.0, _LOADS - 1.0)
    return out


def _row_of_rate(table: Floats, rate: Floats) -> Floats:
    """The same for an arrival rate of one replica, (..., C), from the rates (L, C) of the loads."""
    below = (table.reshape(_LOADS, *([1] * (rate.ndim - 1)), -1) <= rate).sum(axis=0)
    row = np.clip(below - 1, 0, _LOADS - 2)
    columns = np.arange(table.shape[1])
    low, high = table[row, columns], table[row + 1, columns]
    part = np.clip((rate - low) / np.maximum(high - low, 1e-300), 0.0, 1.0)
    return np.asarray(row + part, dtype=np.float64)


def mean_pass_at(passes: RankPasses, rate_req_per_s: Floats) -> Floats:
    """Mean duration of a pass at an arrival rate of one replica, (..., C)."""
    return _read(passes.pass_mean_s, _row_of_rate(passes.rate, rate_req_per_s))


def _groups(passes: RankPasses, t_s: Floats, grouped: bool) -> tuple[Floats, Floats, Floats, Floats]:
    """Time, own and shared work (G, ..., C), and weight (G,)."""
    t: Floats = t_s[passes.order] if t_s.shape[0] > 1 else np.broadcast_to(t_s, (len(passes.order), *t_s.shape[1:]))
    weight, own, shared = passes.weight, passes.own_s, passes.shared_s
    if grouped:
        total = np.asarray(np.bincount(passes.group, weights=weight), dtype=np.float64)
        sums = np.zeros((len(total), len(weight)))
        sums[passes.group, np.arange(len(weight))] = weight / total[passes.group]
        own, shared = sums @ own, sums @ shared
        t = np.tensordot(sums, t, axes=(1, 0))
        weight = total
    middle = [1] * (t.ndim - 2)
    return t, own.reshape(len(weight), *middle, -1), shared.reshape(len(weight), *middle, -1), weight


class _Waiting(NamedTuple):
    """What a request meets at a rate; arrays (..., C)."""

    all_busy: Floats
    pass_mean_s: Floats
    """Length-biased."""
    pass_shape: Floats
    """Of the gamma distribution of the length-biased pass."""
    spread: Floats
    """Variance of the number of requests over their mean."""
    part: Floats
    """z: waiting is spread over this last part of a pass."""
    left_probability: Floats
    left_s: Floats


def _waiting(passes: RankPasses, rate: Floats, replicas: Floats, arrival_cv2: float) -> _Waiting:
    each = rate / replicas
    ahead = passes.own_mean_s / passes.ranks + passes.shared_mean_s
    row = _row_of_rate(passes.rate, each)
    mean, variance = _read(passes.pass_mean_s, row), _read(passes.pass_variance_s2, row)
    arrivals = np.minimum(each * mean, passes.most)
    part = np.minimum(1.0, 1 / replicas + (1 - 1 / replicas) * arrivals * ahead / mean)
    alone = passes.fixed_s + passes.own_mean_s + passes.shared_mean_s
    blocked = erlang_b(replicas, rate * alone)
    # The state with all replicas busy lasts e^x passes instead of one.
    more = mean / alone * np.exp(np.minimum(arrivals, 50.0))
    all_busy = blocked * more / (1 - blocked + blocked * more)
    spread = arrival_cv2 / (replicas * part)
    shape = mean**2 / np.maximum(variance * np.minimum(spread, 1.0), 1e-9 * mean**2) + 1
    rho = np.minimum(each / passes.capacity_req_per_s, 0.999)
    aa, ab, bb = passes.squares
    scatter = (aa + 2 * ab + bb) / (passes.own_mean_s + passes.shared_mean_s) ** 2
    left = (arrival_cv2 - 1 + scatter) / 2 * rho / (1 - rho) / (passes.capacity_req_per_s * replicas)
    return _Waiting(
        all_busy,
        mean * shape / (shape - 1),
        shape,
        spread,
        part,
        rho ** (passes.most * replicas),
        np.maximum(left, 0.0),
    )


def rank_ttft_tail(
    t_s: Floats,
    rate_req_per_s: Floats,
    replicas: Floats,
    passes: RankPasses,
    *,
    arrival_cv2: float = 1.0,
    grouped: bool = True,
) -> Floats:
    """P(wait + pass > t), (..., C).

    Parameters
    ----------
    t_s : (1 or K, ..., C)
        Time left for each support point.
    rate_req_per_s, replicas : (..., C)
        Of the pool.
    passes : RankPasses
        Of the C layouts.
    arrival_cv2 : float
        Squared coefficient of variation of the gaps between arrivals.
    grouped : bool
        Whether support points of similar work are taken together (fine unless `t_s` differs among them).
    """
    now = _waiting(passes, rate_req_per_s, replicas, arrival_cv2)
    t, own, shared, weight = _groups(passes, t_s, grouped=False)
    free = passes.fixed_s + own + shared > t
    tail = (1 - now.all_busy) * np.tensordot(weight, free.astype(np.float64), axes=(0, 0))
    if grouped:
        t, own, shared, weight = _groups(passes, t_s, grouped=True)
    busy = _joined(passes, now, rate_req_per_s / replicas, t, own, shared, weight)
    left = now.left_probability
    columns = np.flatnonzero((left > _NEGLIGIBLE).reshape(-1, left.shape[-1]).any(axis=0))
    if len(columns):
        part = take_columns(passes, columns)
        some = _Waiting(*(values[..., columns] for values in now))
        each = (rate_req_per_s / replicas)[..., columns]
        later = np.zeros(each.shape)
        for x, share in EXPONENTIAL_NODES:
            less = t[..., columns] - x * some.left_s
            later += share * _joined(part, some, each, less, own[..., columns], shared[..., columns], weight)
        gone = some.left_probability
        busy[..., columns] = (1 - gone) * busy[..., columns] + gone * later
    tail = tail + now.all_busy * busy
    return np.where(rate_req_per_s / replicas < passes.capacity_req_per_s, tail, 1.0)


def _joined(
    passes: RankPasses, now: _Waiting, each: Floats, t: Floats, own: Floats, shared: Floats, weight: Floats
) -> Floats:
    """P(rest of a pass + the next one > t) for requests that arrive during a pass, (..., C)."""
    aa, ab, bb = passes.squares
    columns = np.arange(passes.cells.shape[1])
    ninth = 1 / (9 * now.pass_shape)
    tail = np.zeros(each.shape)
    for z, share in _LENGTHS:
        length = now.pass_mean_s * np.maximum(1 - ninth + z * np.sqrt(ninth), 0.0) ** 3
        others = np.clip(each * length - 1 + now.spread, 1e-9, passes.most)
        filled = _filled(others, passes.ranks)
        per = passes.shared_mean_s + filled * passes.own_mean_s / passes.ranks
        square = bb + filled * (aa / passes.ranks**2 + 2 * ab / passes.ranks)
        noise = np.sqrt(others * np.maximum(square - per**2 * (1 - now.spread), 0.0))
        stacked = _beyond_ranks(others + 1, passes.ranks) / passes.ranks * passes.own_mean_s
        taken = np.clip((others - _beyond_ranks(others, passes.ranks)) / passes.ranks, 0.0, 1.0)
        # The longest of the others brings its shared work along; what the rest share is the remainder.
        longest = _read(passes.longest_s, _row(others, passes.most))
        together = others * passes.shared_mean_s
        rest = np.maximum(together - longest * (1 / passes.hot - 1), 0.0)
        for level in _POSITIONS:
            for n in _NOISE:
                room = t - passes.fixed_s - shared - now.part * level * length - n * noise
                cell = passes.hot * (room - rest - stacked) / passes.cell_s
                index = np.clip(cell, 0.0, float(_CELLS)).astype(np.int64)
                within = np.where(cell >= 0, passes.cells[index, columns], 0.0)
                in_time = np.exp(passes.ranks * np.log1p(-np.minimum(taken * (1 - within), 1 - 1e-15)))
                late = np.where(room - together >= own, 1 - in_time, 1.0)
                tail += share / 4 * np.tensordot(weight, late, axes=(0, 0))
    return tail
