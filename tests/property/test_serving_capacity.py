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
    ttft_quantile_s as co_ttft,
)
from pdplan.serving.decode import decode_capacity_req_per_s, decode_state, tpot_quantile_s
from pdplan.serving.prefill import prefill_capacity_req_per_s, ttft_quantile_s

BATCH = np.array([0.0, 1, 8, 64, 256, 1024])
COUNTS = np.array([1, 2, 3, 5, 9, 70])


@settings(deadline=None, max_examples=20)
@given(
    services=st.lists(st.floats(0.02, 0.8), min_size=2, max_size=6),
    limit=st.floats(0.3, 3.0),
    q=st.sampled_from([0.5, 0.9, 0.99]),
    slots=st.integers(1, 8),
    fuller=st.floats(1.0, 2.0),
)
def test_prefill_capacity(services, limit, q, slots, fuller):
    service = np.array(services)[:, None]
    weight = np.full(len(services), 1 / len(services))
    kind = {"slots": slots, "service_full_s": service * fuller}
    rate = prefill_capacity_req_per_s(service, weight, COUNTS, [(q, limit)], 0.05, **kind)
    looser = prefill_capacity_req_per_s(service, weight, COUNTS, [(q, limit * 1.2)], 0.05, **kind)
    both = prefill_capacity_req_per_s(service, weight, COUNTS, [(q, limit), (0.95, limit)], 0.05, **kind)
    assert (looser >= rate * (1 - 1e-4)).all()
    assert (both <= rate * (1 + 1e-4)).all()
    assert (np.diff(rate[:, 0] / COUNTS) >= -1e-3 * rate[1:, 0] / COUNTS[1:]).all()  # a larger pool runs hotter
    on = rate[:, 0] > 0
    reached = ttft_quantile_s(q, rate, COUNTS[:, None], service, weight, extra_s=0.05, **kind)[on, 0]
    assert (reached <= limit * (1 + 1e-6)).all()
    # The search resolves 2^-18 of the pool's ceiling, always from below.
    ceiling = 0.95 * COUNTS[:, None] * slots / (weight @ service * (1 + 0.95 * (fuller - 1)))
    beyond = ttft_quantile_s(q, rate * 1.01 + 1e-5 * ceiling, COUNTS[:, None], service, weight, extra_s=0.05, **kind)
    beyond = beyond[on, 0]
    work = weight @ service[:, 0] * (1 + 0.95 * (fuller - 1))
    capped = rate[on, 0] > 0.9499 * COUNTS[on] * slots / work
    assert (capped | (beyond > limit * (1 - 1e-9))).all()


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
    if not state.stable[0] or state.prefill_utilisation[0] > 0.9:
        return
    ttft, tpot = float(co_ttft(q, state, model)[0]), float(co_tpot(q, rate, state, model)[0])
    found = colocated_capacity_req_per_s(model, [(q, ttft)], [(q, tpot)], one * 1e5).rate_req_per_s[0]
    assert abs(found / rate - 1) < 2e-3
