"""The event loop against slow simulators that visit every iteration, request by request."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from pdplan.simulate import ColocatedPool, DecodePool, PrefillPool, SimFleet, SimOptions, SimRequests, simulate

PYTHON = SimOptions(engine="python")


def poisson(rate: float, n: int, seed: int) -> tuple[np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng, np.cumsum(rng.exponential(1 / rate, n))


def lindley(arrival: np.ndarray, service: np.ndarray, servers: int) -> np.ndarray:
    """Waiting times of a first-come queue (Kiefer and Wolfowitz): the next request takes the server free first."""
    free = np.zeros(servers)
    wait = np.zeros(len(arrival))
    for i, (t, s) in enumerate(zip(arrival, service, strict=True)):
        j = int(np.argmin(free))
        start = max(t, free[j])
        wait[i] = start - t
        free[j] = start + s
    return wait


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("router", ["central", "least_loaded"])
def test_unbatched_prefill_is_a_first_come_queue(servers: int, router: str) -> None:
    """Each wait equals the recursion's; the router that looks at work left does what one common queue does."""
    rng, arrival = poisson(0.8 * servers, 3000, 1)
    tokens = np.rint(rng.gamma(0.7, 1000 / 0.7, 3000)).astype(int) + 1
    pool = PrefillPool(
        name="p", replicas=servers, fixed_s=0.1, per_token_s=8e-4, per_token2_s=1e-8, router=router  # type: ignore[arg-type]
    )  # fmt: skip
    decode = DecodePool(name="d", replicas=1, batch=[1], context=[0], step_s=[[1e-3]])

    result = simulate(
        SimFleet(prefill=[pool], decode=[decode]),
        SimRequests(arrival_s=arrival, input_tokens=tokens, output_tokens=1),
        PYTHON,
    )

    service = 0.1 + 8e-4 * tokens + 1e-8 * tokens * tokens / 2
    np.testing.assert_allclose(result.prefill_start_s - arrival, lindley(arrival, service, servers), atol=1e-9)
    np.testing.assert_allclose(result.ttft_s, result.prefill_start_s - arrival + service, atol=1e-9)


def decode_step_by_step(
    join: np.ndarray, prompt: np.ndarray, answer: np.ndarray, most: int, step: object
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First token, last token and largest gap of one decode replica that takes new sequences at every boundary."""
    n, now, i = len(join), 0.0, 0
    waiting: deque[int] = deque()
    active: dict[int, int] = {}
    first, last, gap = np.zeros(n), np.zeros(n), np.zeros(n)
    while i < n or waiting or active:
        if not active and not waiting:
            now = max(now, join[i])
        while i < n and join[i] <= now:
            waiting.append(i)
            i += 1
        while waiting and len(active) < most:
            r = waiting.popleft()
            active[r] = 1
            first[r] = last[r] = now
        context = sum(prompt[r] + made for r, made in active.items()) / len(active)
        now += step(len(active), context)  # type: ignore[operator]
        for r in list(active):
            active[r] += 1
            gap[r] = max(gap[r], now - last[r])
            last[r] = now
            if active[r] == answer[r]:
                del active[r]
    return first, last, gap


@pytest.mark.parametrize("most", [500, 12])
def test_decode_with_runs_equals_decode_step_by_step(most: int) -> None:
    """Steps depend on batch and mean context through a table with bends; admission is limited in one case."""
    rng, arrival = poisson(20.0, 1500, 2)
    prompt = rng.integers(1, 900, 1500)
    answer = rng.integers(2, 60, 1500)
    batch, context = np.array([1.0, 4.0, 16.0, 64.0]), np.array([0.0, 200.0, 500.0, 600.0])
    table = 0.01 + 4e-4 * batch[:, None] ** 1.1 + 1e-8 * batch[:, None] * context**1.2
    fleet = SimFleet(
        prefill=[PrefillPool(name="p", replicas=1)],
        decode=[DecodePool(name="d", replicas=1, batch=batch, context=context, step_s=table, max_sequences=most)],
    )

    def step(b: float, c: float) -> float:
        i = int(np.clip(np.searchsorted(batch, b, side="right") - 1, 0, 2))
        j = int(np.clip(np.searchsorted(context, c, side="right") - 1, 0, 2))
        u, v = (b - batch[i]) / (batch[i + 1] - batch[i]), (c - context[j]) / (context[j + 1] - context[j])
        low, high = (1 - u) * table[i] + u * table[i + 1], None
        del high
        return float((1 - v) * low[j] + v * low[j + 1])

    result = simulate(fleet, SimRequests(arrival_s=arrival, input_tokens=prompt, output_tokens=answer), PYTHON)
    first, last, gap = decode_step_by_step(arrival, prompt, answer, most, step)

    np.testing.assert_allclose(result.ttft_s + arrival, first, atol=1e-8)
    np.testing.assert_allclose(result.end_s, last, atol=1e-8)
    np.testing.assert_allclose(result.tpot_s, (last - first) / (answer - 1), atol=1e-8)
    np.testing.assert_allclose(result.itl_max_s, gap, atol=1e-8)
    assert result.events < 0.5 * (answer - 1).sum()  # far fewer events than the steps of all sequences


def chunked_step_by_step(
    arrival: np.ndarray, prompt: np.ndarray, answer: np.ndarray, chunk: int, a0: float, be: float, bm: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and last token and largest gap of one colocated replica, visiting every iteration."""
    n, now, i = len(arrival), 0.0, 0
    queue: deque[int] = deque()
    left, active = prompt.astype(float), {}
    first, last, gap = np.zeros(n), np.zeros(n), np.zeros(n)
    while i < n or queue or active:
        if not queue and not active:
            now = max(now, arrival[i])
        while i < n and arrival[i] <= now:
            queue.append(i)
            i += 1
        room, used, whole = chunk - len(active), 0.0, []
        for r in queue:
            take = min(room, left[r])
            if take <= 0:
                break
            left[r] -= take
            room -= take
            used += take
            if left[r] == 0:
                whole.append(r)
        now += a0 + be * len(active) + bm * used
        for r in list(active):
            gap[r], last[r] = max(gap[r], now - last[r]), now
            active[r] -= 1
            if active[r] == 0:
                del active[r]
        for r in whole:
            queue.popleft()
            first[r] = last[r] = now
            if answer[r] > 1:
                active[r] = answer[r] - 1
    return first, last, gap


@pytest.mark.parametrize("chunk", [256, 2048])
def test_colocated_with_runs_equals_every_iteration(chunk: int) -> None:
    """Chunked prefill beside decoding, at a load that queues."""
    rng, arrival = poisson(5.0, 800, 3)
    prompt, answer = rng.integers(1, 1500, 800), rng.integers(1, 120, 800)
    a0, be, bm = 0.02, 2e-4, 4.2e-5
    pool = ColocatedPool(
        name="c", replicas=1, batch=[1, 2], context=[0], step_s=[[a0 + be], [a0 + 2 * be]], prefill_per_token_s=bm,
        chunk_tokens=chunk,
    )  # fmt: skip

    result = simulate(
        SimFleet(colocated=[pool]), SimRequests(arrival_s=arrival, input_tokens=prompt, output_tokens=answer), PYTHON
    )
    first, last, gap = chunked_step_by_step(arrival, prompt, answer, chunk, a0, be, bm)

    np.testing.assert_allclose(result.ttft_s + arrival, first, atol=1e-8)
    np.testing.assert_allclose(result.end_s, last, atol=1e-8)
    many = answer > 1
    np.testing.assert_allclose(result.itl_max_s[many], gap[many], atol=1e-8)
