"""Capacity functions are the inverse of the quantile functions and move the right way."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplan.serving.colocated import (
    ColocatedModel,
    colocated_capacity_req_per_s,
    colocated_state,
)
from pdplan.serving.colocated import (
    tpot_quantile_s as co_tpot,
)
from pdplan.serving.colocated import (
    tpot_tail as co_slow,
)
from pdplan.serving.colocated import (
    ttft_quantile_s as co_ttft,
)
from pdplan.serving.colocated import (
    ttft_tail as co_late,
)
from pdplan.serving.decode import decode_capacity_req_per_s, decode_state, tpot_quantile_s
from pdplan.serving.prefill import (
    PrefillService,
    prefill_capacity_req_per_s,
    prefill_utilisation,
    ttft_tail,
)

BATCH = np.array([0.0, 1, 8, 64, 256, 1024])
COUNTS = np.array([1, 2, 3, 5, 9, 70])


@settings(deadline=None, max_examples=20)
@given(
    services=st.lists(st.floats(0.02, 0.8), min_size=2, max_size=6),
    limit=st.floats(0.3, 3.0),
    q=st.sampled_from([0.5, 0.9, 0.99]),
    ranks=st.sampled_from([1, 1, 4, 8]),
    hot=st.floats(0.2, 0.95),
)
def test_prefill_capacity(services, limit, q, ranks, hot):
    single = np.array(services)[:, None]
    weight = np.full(len(services), 1 / len(services))
    service = PrefillService(
        service_s=single,
        weight=weight,
        ranks=ranks,
        full_s=0.01 + (single - 0.01) * (hot + (1 - hot) * ranks),
        fixed_s=0.01,
        max_requests=3.0 * ranks,
    )
    rate = prefill_capacity_req_per_s(service, COUNTS, [(q, limit)], 0.05)
    looser = prefill_capacity_req_per_s(service, COUNTS, [(q, limit * 1.2)], 0.05)
    both = prefill_capacity_req_per_s(service, COUNTS, [(q, limit), (0.95, limit)], 0.05)
    assert (looser >= rate * (1 - 1e-4)).all()
    assert (both <= rate * (1 + 1e-4)).all()
    # A larger pool runs hotter.
    assert (np.diff(rate[:, 0] / COUNTS) >= -(1e-3 if ranks == 1 else 0.03) * rate[1:, 0] / COUNTS[1:]).all()
    on = rate[:, 0] > 0
    late = ttft_tail(limit, rate, COUNTS[:, None], service, extra_s=0.05)[on, 0]
    assert (late <= 1 - q + 1e-9).all()
    # The search resolves 2^-15 of the pool's ceiling, always from below.
    ceiling = rate / prefill_utilisation(np.maximum(rate, 1e-9), COUNTS[:, None], service) * 0.95
    beyond = ttft_tail(limit, rate * 1.01 + 5e-5 * ceiling, COUNTS[:, None], service, extra_s=0.05)[on, 0]
    capped = rate[on, 0] > 0.9999 * ceiling[on, 0]
    headroom = 1e-9 if ranks == 1 else 0.01 * (1 - q)
    assert (capped | (beyond > 1 - q - headroom)).all()


@settings(deadline=None, max_examples=20)
@given(
    ranks=st.sampled_from([2, 8, 32]),
    hot=st.floats(0.3, 0.98),
    replicas=st.integers(1, 20),
    scatter=st.floats(0.1, 2.0),
    seed=st.integers(0, 100),
)
def test_passes_of_ranks_get_later_with_the_rate_and_sooner_with_replicas(ranks, hot, replicas, scatter, seed):
    work = 0.1 * np.random.default_rng(seed).gamma(1 / scatter, scatter, 60)[:, None] + 1e-3
    service = PrefillService(
        service_s=0.02 + work, weight=np.ones(60), ranks=ranks, full_s=0.02 + work * (hot + (1 - hot) * ranks),
        fixed_s=0.02, max_requests=4.0 * ranks,
    )  # fmt: skip
    capacity = 1 / float(prefill_utilisation(1.0, replicas, service)[0])
    rates = np.linspace(0.05, 0.95, 19)[:, None] * capacity
    times = np.array([0.1, 0.3, 1.0, 3.0])
    late = np.array([ttft_tail(t, rates, replicas, service)[:, 0] for t in times])
    assert (np.diff(late, axis=0) <= 1e-12).all()  # a tail falls with time
    assert (np.diff(late, axis=1) >= -2e-3).all()
    more = np.array([ttft_tail(t, rates, replicas + 1, service)[:, 0] for t in times])
    assert (more <= late + 0.02).all()


@settings(deadline=None, max_examples=20)
@given(
    base=st.floats(5e-3, 0.03),
    slope=st.floats(1e-5, 5e-4),
    tokens=st.floats(5, 2000),
    limit=st.floats(0.02, 0.1),
    most=st.floats(4, 900),
    q=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_decode_capacity(base, slope, tokens, limit, most, q):
    step = (base + slope * BATCH)[:, None]
    one = decode_capacity_req_per_s(BATCH, step, tokens, [(q, limit)], np.array([most]))
    looser = decode_capacity_req_per_s(BATCH, step, tokens, [(q, limit * 1.3)], np.array([most]))
    roomier = decode_capacity_req_per_s(BATCH, step, tokens, [(q, limit)], np.array([most * 2]))
    staged = decode_capacity_req_per_s(BATCH, step, tokens, [(q, limit)], np.array([most]), staging_s=0.5)
    assert looser.rate_req_per_s >= one.rate_req_per_s * (1 - 1e-6)
    assert roomier.rate_req_per_s >= one.rate_req_per_s * (1 - 1e-6)
    assert staged.rate_req_per_s <= one.rate_req_per_s * (1 + 1e-6)
    if one.rate_req_per_s[0] > 0:
        state = decode_state(one.rate_req_per_s, BATCH, step, tokens)
        assert tpot_quantile_s(q, state) <= limit * (1 + 1e-6)
        assert one.batch <= most


@settings(deadline=None, max_examples=15)
@given(rate=st.floats(0.5, 8.0), chunk=st.sampled_from([512.0, 2048.0, 8192.0]), q=st.sampled_from([0.5, 0.9, 0.99]))
def test_colocated_capacity_inverts_quantiles(rate, chunk, q):
    tokens = np.array([200.0, 1000.0, 4000.0])
    one = np.ones(1)
    model = ColocatedModel(
        base_s=0.02 * one,
        per_sequence_s=2e-4 * one,
        prefill_work_s=4.2e-5 * tokens[:, None],
        new_tokens=tokens,
        decode_steps=np.array([50.0, 200.0, 300.0]),
        weight=np.array([0.5, 0.4, 0.1]),
        chunk_tokens=chunk * one,
    )
    state = colocated_state(rate, model)
    if not state.stable[0] or state.utilisation[0] > 0.9:
        return
    ttft, tpot = float(co_ttft(q, state, model)[0]), float(co_tpot(q, state, model)[0])
    found = colocated_capacity_req_per_s(model, [(q, ttft)], [(q, tpot)], one * 1e5).rate_req_per_s[0]
    # Never above the rate whose percentiles are the targets, and there they hold; the first rate that fails is near.
    assert found <= rate * (1 + 1e-3)
    there = colocated_state(found, model)
    assert co_late(ttft, there, model) <= 1 - q
    assert co_slow(tpot, there, model) <= 1 - q
    beyond = colocated_state(np.linspace(1.001, 1.02, 8)[:, None] * found + 1e-4, model)
    missed = (co_late(ttft, beyond, model) > (1 - q) * 0.995) | (co_slow(tpot, beyond, model) > (1 - q) * 0.995)
    assert missed.any()
