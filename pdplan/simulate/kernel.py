"""The event loop of the simulator, written once: plain Python runs it as it is, numba compiles the same functions.

All state lies in a few flat arrays of numbers. A record of one request, server (replica) or pool starts at
index x its length; the names below are the offsets of its fields. Only indexing, arithmetic, `sqrt` and `floor` are
used, so that lists, `array.array` and NumPy arrays all do and both ways give the same floating-point results.

Events come from a tournament tree over the servers, the arrivals, the transfers under way and the failures. Decode
iterations are not visited one by one: between two changes of its batch a server's step time grows along a straight
line with the context, so that any number of steps has a closed-form duration (a *run*). A request that arrives during
a run cuts it at the next iteration boundary. This is exact, not an approximation.
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Any

INF = float("inf")

# A request: floats ...
ARRIVAL, PASS_START, PASS_END, JOINED, ADMITTED, FIRST, LAST, DELAY, GAP, DRAW = range(10)
QF = 10
# ... and integers. CONTEXT/STARTED/RUN describe its latest activation in a batch; DONE counts tokens made before it.
(INPUT, CACHED, OUTPUT, GROUP, STATUS, NEXT, PREV, LEFT, RIGHT, FINISH, STARTED, RUN, CONTEXT, DONE, SERVER, EPOCH) = (
    range(16)
)
SOURCE, SOURCE_EPOCH, PREEMPTED, RETRIES, PREFILLED, TAKEN, CACHED_NOW, RESERVED = range(16, 24)
QI = 24
# STATUS
OUTSIDE, INSIDE, FINISHED, NO_SERVER, QUEUE_FULL, TOO_LARGE, LOST = range(7)

# A server: floats ...
START, C0, C1, CONTEXT_SUM, KV_USED, STAGED, QUEUED_WORK, HELD, NIC_FREE, BUSY_S, BATCH_S, KV_S, TOKENS = range(13)
SF = 13
# ... and integers. STEPS is the length of the run under way, ROOT the heap of sequences by their last step.
(POOL, ALIVE, AGE, STEPS, STEP, RUN_NO, ACTIVE, ROOT, ACTIVE_HEAD, ACTIVE_TAIL, WAIT_HEAD, WAIT_TAIL) = range(12)
(QUEUE_HEAD, QUEUE_TAIL, QUEUED, HOLD_HEAD, HOLD_TAIL, PASS_HEAD, ASSIGNED, CHUNKED, HALF_DONE, GAPS) = range(12, 22)
SI = 22

# A pool: floats ...
(PASS_A, PASS_B, PASS_C, BUDGET, KV_CAP, MAX_ACTIVE, PER_STEP, EXTRA, FIRST_STEPS, STAGING, NIC, BYTES_PER_TOKEN) = (
    range(12)
)
FIXED_BYTES, HANDSHAKE, LAYERS, HOT, HEADROOM = range(12, 17)
PF = 17
# ... and integers
(ENGINE, FROM, COUNT, ROUTER, TURN, PASS_LIMIT, RANKS, STAGES, TABLE, ROWS, COLS, MAX_QUEUE, HOLDS_PREFIX, FIRST_AT) = (
    range(14)
)
PI = 14
# ROUTER
CENTRAL, ROUND_ROBIN, LEAST_LOADED, PREFIX_AWARE, RANDOM = range(5)

# Link: floats
LINK_FREE, LINK_RATE, LINK_DELAY = range(3)
LF = 3

# Whole-run settings: floats and integers
WINDOW_FROM, WINDOW_TO, HORIZON, BALANCE, FLOOR_S, FLOOR_N, NOW = range(7)
(N_REQ, N_SERVERS, N_POOLS, TREE, NEXT_ARRIVAL, PENDING, N_FAIL, NEXT_FAIL, DROP, EVEN_SPLIT, GAP_SIZE, EVENTS) = (
    range(12)
)


# --- tournament tree: tree[1] is the slot with the earliest time; ties go to the lower slot -------------------------


def reschedule(tree: Any, when: Any, size: int, slot: int, time: float) -> None:
    """Give `slot` a new time and repair its path to the root."""
    when[slot] = time
    node = (size + slot) >> 1
    while node >= 1:
        a, b = tree[2 * node], tree[2 * node + 1]
        winner = a if when[a] <= when[b] else b
        if tree[node] == winner and winner != slot:
            return
        tree[node] = winner
        node >>= 1


# --- transfers under way: binary heap by (time, payload) -----------------------------------------------------------


def push(times: Any, loads: Any, count: int, time: float, load: int) -> None:
    """Add to a heap of `count` entries."""
    i = count
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < time or (times[up] == time and loads[up] < load):
            break
        times[i], loads[i] = times[up], loads[up]
        i = up
    times[i], loads[i] = time, load


def pop(times: Any, loads: Any, count: int) -> None:
    """Remove the root of a heap of `count` entries."""
    last = count - 1
    time, load = times[last], loads[last]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        other = child + 1
        if other < last and (
            times[other] < times[child] or (times[other] == times[child] and loads[other] < loads[child])
        ):
            child = other
        if time < times[child] or (time == times[child] and load < loads[child]):
            break
        times[i], loads[i] = times[child], loads[child]
        i = child
    times[i], loads[i] = time, load


# --- sequences of a batch by their last step: skew heap inside the request records ---------------------------------


def meld(k: Any, a: int, b: int) -> int:
    """Merge two heaps given by their roots (-1 is empty)."""
    if a < 0:
        return b
    if b < 0:
        return a
    if k[b * QI + FINISH] < k[a * QI + FINISH]:
        a, b = b, a
    root = a
    while True:
        at = a * QI
        right = k[at + RIGHT]
        k[at + RIGHT] = k[at + LEFT]
        if right < 0:
            k[at + LEFT] = b
            return root
        if k[b * QI + FINISH] < k[right * QI + FINISH]:
            right, b = b, right
        k[at + LEFT] = right
        a = right


# --- queues: singly linked through NEXT ----------------------------------------------------------------------------


def append(k: Any, si: Any, at: int, head: int, tail: int, i: int) -> None:
    """Put request i at the end of the server's queue whose head and tail fields are given."""
    k[i * QI + NEXT] = -1
    last = si[at + tail]
    if last < 0:
        si[at + head] = i
    else:
        k[last * QI + NEXT] = i
    si[at + tail] = i


def take_first(k: Any, si: Any, at: int, head: int, tail: int) -> int:
    """Remove and return the first request."""
    i: int = si[at + head]
    after = k[i * QI + NEXT]
    si[at + head] = after
    if after < 0:
        si[at + tail] = -1
    return i


# --- tables and runs -----------------------------------------------------------------------------------------------


def cell(tab: Any, start: int, count: int, x: float) -> int:
    """Index of the grid piece that holds x; the outer pieces go on for ever."""
    low, high = 0, count - 2
    while low < high:
        middle = (low + high + 1) >> 1
        if tab[start + middle] <= x:
            low = middle
        else:
            high = middle - 1
    return low


def blend(tab: Any, base: int, rows: int, cols: int, row: int, share: float, col: int) -> float:
    """Value at a column of the table, between two rows."""
    at = base + rows + cols + row * cols + col
    if rows == 1:
        return float(tab[at])
    low = tab[at]
    return float(low + share * (tab[at + cols] - low))


def line(tab: Any, base: int, rows: int, cols: int, x: float, y: float) -> tuple[float, float, float]:
    """Bilinear value at (x, y), its slope in y, and the y where that slope changes."""
    row, share = 0, 0.0
    if rows > 1:
        row = cell(tab, base, rows, x)
        low = tab[base + row]
        share = (x - low) / (tab[base + row + 1] - low)
    if cols == 1:
        return blend(tab, base, rows, cols, row, share, 0), 0.0, INF
    col = cell(tab, base + rows, cols, y)
    left, right = tab[base + rows + col], tab[base + rows + col + 1]
    value = blend(tab, base, rows, cols, row, share, col)
    slope = (blend(tab, base, rows, cols, row, share, col + 1) - value) / (right - left)
    return value + slope * (y - left), slope, right if col < cols - 2 else INF


def elapsed(c0: float, c1: float, steps: int) -> float:
    """Duration of a number of steps of which the first takes c0 and each next one c1 more."""
    return steps * c0 + c1 * (0.5 * steps * (steps - 1))


def steps_to(c0: float, c1: float, time: float, most: int) -> int:
    """Fewest steps, at least one and at most `most`, that last until `time` after the start of the run."""
    half = c0 - 0.5 * c1
    root = half * half + 2.0 * c1 * time
    guess = 2.0 * time / (half + sqrt(root if root > 0.0 else 0.0))
    n = most if not guess < most else int(ceil(guess))
    if n < 1:
        n = 1
    while n > 1 and elapsed(c0, c1, n - 1) >= time:
        n -= 1
    while n < most and elapsed(c0, c1, n) < time:
        n += 1
    return n


def work_s(tab: Any, pf: Any, pi: Any, pool: int, new: float, past: float) -> float:
    """Time that one prompt adds to a pass of this pool, without the pass's fixed cost."""
    at, ia = pool * PF, pool * PI
    if pi[ia + ENGINE] == 0 and pi[ia + ROWS] > 0:
        value, _, _ = line(tab, pi[ia + TABLE], pi[ia + ROWS], pi[ia + COLS], new, past)
        return value if value > 0.0 else 0.0
    return float(pf[at + PASS_B] * new + pf[at + PASS_C] * (new * (past + 0.5 * new)))


# --- largest gap between tokens: runs whose longest step exceeds that of all later runs -----------------------------


def note_gap(gap_value: Any, gap_run: Any, k: Any, si: Any, gi: Any, s: int, run: int, value: float) -> None:
    """Remember the longest step of a run; the stack of one server is decreasing in value, increasing in run."""
    size, at = gi[GAP_SIZE], s * SI
    base, count = s * size, si[at + GAPS]
    while count > 0 and gap_value[base + count - 1] <= value:
        count -= 1
    if count == size:
        # Runs before the oldest sequence came are of no interest any more.
        head = si[at + ACTIVE_HEAD]
        oldest = k[head * QI + RUN] if head >= 0 else run
        kept = 0
        for j in range(count):
            if gap_run[base + j] >= oldest:
                gap_value[base + kept], gap_run[base + kept] = gap_value[base + j], gap_run[base + j]
                kept += 1
        count = kept
        if count == size:
            # Neighbours hardly differ: join them in pairs, the larger value up to the later run.
            for j in range(size // 2):
                gap_value[base + j], gap_run[base + j] = gap_value[base + 2 * j], gap_run[base + 2 * j + 1]
            count = size // 2
    gap_value[base + count], gap_run[base + count] = value, run
    si[at + GAPS] = count + 1


def gap_since(gap_value: Any, gap_run: Any, si: Any, gi: Any, s: int, run: int) -> float:
    """Longest step since a run (0 if there was none)."""
    base, low, high = s * gi[GAP_SIZE], 0, si[s * SI + GAPS]
    end = high
    while low < high:
        middle = (low + high) >> 1
        if gap_run[base + middle] < run:
            low = middle + 1
        else:
            high = middle
    return float(gap_value[base + low]) if low < end else 0.0


def account(sf: Any, gf: Any, s: int, begin: float, end: float, batch: float, kv: float) -> None:
    """Add a busy interval to the server's time integrals, as far as it lies in the window measured."""
    low = begin if begin > gf[WINDOW_FROM] else gf[WINDOW_FROM]
    high = end if end < gf[WINDOW_TO] else gf[WINDOW_TO]
    if high > low:
        at, span = s * SF, high - low
        sf[at + BUSY_S] += span
        sf[at + BATCH_S] += span * batch
        sf[at + KV_S] += span * kv


# --- routing -------------------------------------------------------------------------------------------------------


def load_of(sf: Any, si: Any, pi: Any, when: Any, s: int, now: float) -> float:
    """What the least-loaded router compares: seconds of prefill work ahead, or requests of a decoding server."""
    if pi[si[s * SI + POOL] * PI + ENGINE] == 1:
        return float(si[s * SI + ASSIGNED])
    left = when[s] - now
    ahead = sf[s * SF + QUEUED_WORK]
    return float(ahead + left) if 0.0 < left < INF else float(ahead)


def choose_pool(q: Any, pi: Any, si: Any, gi: Any, share: Any, row: int, i: int) -> int:
    """Pool of the request's next stage by the row of flow shares, among pools with a server alive; -1 if none."""
    pools, total = gi[N_POOLS], 0.0
    credit = row + pools * (pools + 1)
    for p in range(pools):
        if share[row + p] > 0.0 and alive(pi, si, p):
            total += share[row + p]
    if total <= 0.0:
        return -1
    chosen = -1
    if gi[EVEN_SPLIT] == 1:
        best = -INF
        for p in range(pools):
            if share[row + p] > 0.0 and alive(pi, si, p):
                share[credit + p] += share[row + p] / total
                if share[credit + p] > best:
                    best, chosen = share[credit + p], p
        share[credit + chosen] -= 1.0
        return chosen
    mark, below = q[i * QF + DRAW] * total, 0.0
    for p in range(pools):
        if share[row + p] > 0.0 and alive(pi, si, p):
            chosen = p
            if mark < below + share[row + p]:
                break
            below += share[row + p]
    rest = (mark - below) / share[row + chosen]
    # What is left of the random number after choosing is uniform again.
    q[i * QF + DRAW] = rest if 0.0 <= rest < 1.0 else 0.5
    return chosen


def alive(pi: Any, si: Any, pool: int) -> bool:
    """Whether any server of the pool works."""
    first = pi[pool * PI + FROM]
    for s in range(first, first + pi[pool * PI + COUNT]):
        if si[s * SI + ALIVE] == 1:
            return True
    return False


def choose_server(
    q: Any, k: Any, sf: Any, si: Any, pi: Any, gf: Any, when: Any, home: Any, pool: int, i: int, now: float
) -> int:
    """Server of a pool (which has one alive) for request i."""
    ia = pool * PI
    first, count, router = pi[ia + FROM], pi[ia + COUNT], pi[ia + ROUTER]
    if count == 1:
        return int(first)
    if router == ROUND_ROBIN:
        turn = pi[ia + TURN]
        while si[(first + turn) * SI + ALIVE] == 0:
            turn = (turn + 1) % count
        pi[ia + TURN] = (turn + 1) % count
        return int(first + turn)
    if router == RANDOM:
        living = 0
        for s in range(first, first + count):
            living += si[s * SI + ALIVE]
        mark = q[i * QF + DRAW] * living
        skip = int(floor(mark))
        q[i * QF + DRAW] = mark - skip
        for s in range(first, first + count):
            if si[s * SI + ALIVE] == 1:
                if skip == 0:
                    return int(s)
                skip -= 1
    best, least = -1, INF
    for s in range(first, first + count):
        if si[s * SI + ALIVE] == 1:
            load = load_of(sf, si, pi, when, s, now)
            if load < least:
                best, least = s, load
    if router == PREFIX_AWARE and k[i * QI + GROUP] >= 0:
        known = home[k[i * QI + GROUP]]
        if first <= known < first + count and si[known * SI + ALIVE] == 1:
            slack = gf[FLOOR_N] if pi[ia + ENGINE] == 1 else gf[FLOOR_S]
            if load_of(sf, si, pi, when, known, now) <= gf[BALANCE] * least + slack:
                return int(known)
    return int(best)


def enter(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gf: Any, gi: Any, tab: Any, share: Any, home: Any,
    tree: Any, when: Any, scratch: Any, i: int, now: float,
) -> None:  # fmt: skip
    """Route a request that needs its prompt computed, for the first time or again after a failure."""
    ki = i * QI
    k[ki + STATUS] = INSIDE
    pool = choose_pool(q, pi, si, gi, share, gi[N_POOLS] * gi[N_POOLS], i)
    if pool < 0:
        k[ki + STATUS] = NO_SERVER
        return
    ia = pool * PI
    central = pi[ia + ENGINE] == 0 and pi[ia + ROUTER] == CENTRAL
    s = pi[ia + FROM] if central else choose_server(q, k, sf, si, pi, gf, when, home, pool, i, now)
    k[ki + CACHED_NOW] = k[ki + CACHED]
    group = k[ki + GROUP]
    if group >= 0:
        # The shared prefix is cached where its group was last served, and nowhere else.
        if home[group] != s:
            k[ki + CACHED_NOW] = 0
        home[group] = s
    at = s * SI
    if pi[ia + MAX_QUEUE] > 0 and si[at + QUEUED] >= pi[ia + MAX_QUEUE]:
        k[ki + STATUS] = QUEUE_FULL
        return
    if k[ki + INPUT] + (k[ki + OUTPUT] if pi[ia + ENGINE] == 1 else k[ki + DONE]) > pf[pool * PF + KV_CAP]:
        k[ki + STATUS] = TOO_LARGE
        return
    append(k, si, at, QUEUE_HEAD, QUEUE_TAIL, i)
    si[at + QUEUED] += 1
    if pi[ia + ENGINE] == 1:
        k[ki + SERVER], k[ki + EPOCH] = s, si[at + AGE]
        k[ki + PREFILLED], k[ki + TAKEN], k[ki + RESERVED] = 0, 0, 0
        si[at + ASSIGNED] += 1
        poke(si, sf, pf, gi, tree, when, s, now)
        return
    fresh = k[ki + INPUT] + k[ki + DONE] - k[ki + CACHED_NOW]
    sf[s * SF + QUEUED_WORK] += work_s(tab, pf, pi, pool, float(fresh), float(k[ki + CACHED_NOW]))
    if not central:
        if when[s] == INF:
            start_pass(q, k, sf, si, pf, pi, gi, tab, tree, when, scratch, s, now)
        return
    for other in range(s, s + pi[ia + COUNT]):
        if si[other * SI + ALIVE] == 1 and when[other] == INF:
            start_pass(q, k, sf, si, pf, pi, gi, tab, tree, when, scratch, other, now)
            return


# --- prefill servers -----------------------------------------------------------------------------------------------


def start_pass(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gi: Any, tab: Any, tree: Any, when: Any, scratch: Any,
    s: int, now: float,
) -> None:  # fmt: skip
    """Begin a pass with the longest queued prefix (first come, first served) that fits limit, budget and memory."""
    at, pool = s * SI, si[s * SI + POOL]
    ia, fa = pool * PI, pool * PF
    owner = pi[ia + FROM] if pi[ia + ROUTER] == CENTRAL else s
    oa = owner * SI
    ranks, limit, budget = pi[ia + RANKS], pi[ia + PASS_LIMIT], pf[fa + BUDGET]
    for r in range(2 * ranks):
        scratch[r] = 0.0
    taken, passes, total, hottest, last = 0, 1, 0.0, 0.0, -1
    while taken < limit:
        i = si[oa + QUEUE_HEAD]
        if i < 0:
            break
        ki = i * QI
        held = k[ki + INPUT] + k[ki + DONE]
        if sf[s * SF + HELD] + held > pf[fa + KV_CAP]:
            break
        fresh = held - k[ki + CACHED_NOW]
        rank = 0
        for r in range(1, ranks):
            if scratch[r] < scratch[rank]:
                rank = r
        if scratch[rank] > 0.0 and scratch[rank] + fresh > budget:
            break
        if fresh > budget:
            # A prompt above the budget takes several passes in a row, each with the fixed cost.
            need = int(ceil(fresh / budget))
            passes = need if need > passes else passes
        work = work_s(tab, pf, pi, pool, float(fresh), float(k[ki + CACHED_NOW]))
        scratch[rank] += fresh if fresh > 0 else 1.0
        scratch[ranks + rank] += work
        total += work
        hottest = scratch[ranks + rank] if scratch[ranks + rank] > hottest else hottest
        take_first(k, si, oa, QUEUE_HEAD, QUEUE_TAIL)
        si[oa + QUEUED] -= 1
        sf[owner * SF + QUEUED_WORK] -= work
        sf[s * SF + HELD] += held
        sf[s * SF + TOKENS] += fresh
        k[ki + NEXT] = -1
        if last < 0:
            si[at + PASS_HEAD] = i
        else:
            k[last * QI + NEXT] = i
        last = i
        taken += 1
        q[i * QF + PASS_START] = now
    if si[oa + QUEUED] == 0:
        sf[owner * SF + QUEUED_WORK] = 0.0
    if taken > 0:
        hot = pf[fa + HOT]
        duration = pf[fa + PASS_A] * passes + hot * hottest + (1.0 - hot) * total
        sf[s * SF + START] = now
        si[at + ACTIVE] = taken
        reschedule(tree, when, gi[TREE], s, now + duration)


def end_pass(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gf: Any, gi: Any, tab: Any, share: Any, route: Any, links: Any,
    home: Any, tree: Any, when: Any, times: Any, loads: Any, scratch: Any, s: int, now: float,
) -> None:  # fmt: skip
    """Send the pass's requests on to decode and begin the next pass."""
    at, pool = s * SI, si[s * SI + POOL]
    ia, fa = pool * PI, pool * PF
    duration = now - sf[s * SF + START]
    ready = now + (pi[ia + STAGES] - 1) * duration
    account(sf, gf, s, sf[s * SF + START], now, float(si[at + ACTIVE]), sf[s * SF + HELD])
    i = si[at + PASS_HEAD]
    si[at + PASS_HEAD], si[at + ACTIVE] = -1, 0
    reschedule(tree, when, gi[TREE], s, INF)
    while i >= 0:
        ki, qi = i * QI, i * QF
        after = k[ki + NEXT]
        q[qi + PASS_END] = ready
        k[ki + SOURCE], k[ki + SOURCE_EPOCH] = s, si[at + AGE]
        k[ki + DONE] += 1
        if q[qi + FIRST] < 0.0:
            q[qi + DELAY] = pf[fa + EXTRA]
        if k[ki + DONE] >= k[ki + OUTPUT]:
            emit(q, i, ready)
            k[ki + STATUS] = FINISHED
            sf[s * SF + HELD] -= k[ki + INPUT] + k[ki + DONE] - 1
        else:
            send(q, k, sf, si, pf, pi, gf, gi, share, route, links, home, tree, when, times, loads, i, ready, now)
        i = after
    start_pass(q, k, sf, si, pf, pi, gi, tab, tree, when, scratch, s, now)


def emit(q: Any, i: int, time: float) -> None:
    """A token leaves: the first, or one more after a gap."""
    qi = i * QF
    if q[qi + FIRST] < 0.0:
        q[qi + FIRST] = time
    elif time - q[qi + LAST] > q[qi + GAP]:
        q[qi + GAP] = time - q[qi + LAST]
    q[qi + LAST] = time


# --- from prefill to decode ----------------------------------------------------------------------------------------


def send(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gf: Any, gi: Any, share: Any, route: Any, links: Any, home: Any,
    tree: Any, when: Any, times: Any, loads: Any, i: int, ready: float, now: float,
) -> None:  # fmt: skip
    """Choose where request i decodes and start its transfer, or let it wait for room there."""
    ki, source = i * QI, k[i * QI + SOURCE]
    pool = choose_pool(q, pi, si, gi, share, si[source * SI + POOL] * gi[N_POOLS], i)
    gone = NO_SERVER
    if pool >= 0 and k[ki + INPUT] + k[ki + OUTPUT] > pf[pool * PF + KV_CAP]:
        pool, gone = -1, TOO_LARGE
    if pool < 0:
        k[ki + STATUS] = gone
        sf[source * SF + HELD] -= k[ki + INPUT] + k[ki + DONE] - 1
        return
    e = choose_server(q, k, sf, si, pi, gf, when, home, pool, i, now)
    k[ki + SERVER], k[ki + EPOCH] = e, si[e * SI + AGE]
    si[e * SI + ASSIGNED] += 1
    if pi[pool * PI + FIRST_AT] == 1:
        emit(q, i, ready)
    if si[e * SI + HOLD_HEAD] < 0 and find_room(k, sf, si, pf, e, pool, i):
        transfer(q, k, sf, si, pf, pi, gi, route, links, tree, when, times, loads, i, ready)
    else:
        append(k, si, e * SI, HOLD_HEAD, HOLD_TAIL, i)


def find_room(k: Any, sf: Any, si: Any, pf: Any, e: int, pool: int, i: int) -> bool:
    """Reserve memory for a cache about to be sent: in the staging buffer, or in the KV cache itself."""
    need = k[i * QI + INPUT] + k[i * QI + DONE]
    staging = pf[pool * PF + STAGING]
    if staging >= 0.0:
        # An empty buffer takes any request, or one larger than it would wait for ever.
        if sf[e * SF + STAGED] > 0.0 and sf[e * SF + STAGED] + need > staging:
            return False
        sf[e * SF + STAGED] += need
        k[i * QI + RESERVED] = 0
        return True
    if sf[e * SF + KV_USED] > 0.0:
        keep_free = (si[e * SI + ACTIVE] + 1) * pf[pool * PF + HEADROOM]
        if sf[e * SF + KV_USED] + need + keep_free > pf[pool * PF + KV_CAP]:
            return False
    sf[e * SF + KV_USED] += need
    k[i * QI + RESERVED] = 1
    return True


def transfer(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gi: Any, route: Any, links: Any, tree: Any, when: Any,
    times: Any, loads: Any, i: int, ready: float,
) -> None:  # fmt: skip
    """Reserve NIC and link for the request's cache and schedule its landing."""
    ki, qi = i * QI, i * QF
    s = k[ki + SOURCE]
    e = k[ki + SERVER]
    source, target = si[s * SI + POOL], si[e * SI + POOL]
    fa = source * PF
    if si[s * SI + AGE] != k[ki + SOURCE_EPOCH]:
        # The sender is gone and the cache with it.
        later(gi, tree, when, times, loads, ready, 2 * i)
        return
    tokens = k[ki + INPUT] + k[ki + DONE] - 1
    if pi[target * PI + HOLDS_PREFIX] == 1:
        tokens -= k[ki + CACHED_NOW]
    size = pf[fa + BYTES_PER_TOKEN] * tokens + pf[fa + FIXED_BYTES]
    layers = pf[fa + LAYERS]
    begin = ready if ready > sf[s * SF + NIC_FREE] else sf[s * SF + NIC_FREE]
    stream = size / pf[fa + NIC]
    done = begin + stream
    if layers > 0.0:
        # Sent layer by layer while the pass runs: what remains after it, but at least the last layer.
        early = stream - (q[qi + PASS_END] - q[qi + PASS_START])
        done = begin + (early if early > stream / layers else stream / layers)
    sf[s * SF + NIC_FREE] = done
    link = route[source * gi[N_POOLS] + target]
    if link >= 0:
        la = link * LF
        span = size / links[la + LINK_RATE]
        open_s = q[qi + PASS_START] if layers > 0.0 else begin
        free = links[la + LINK_FREE]
        sent = (open_s if open_s > free else free) + span
        links[la + LINK_FREE] = sent
        if layers > 0.0 and sent < begin + span / layers:
            sent = begin + span / layers
        done = (sent if sent > done else done) + links[la + LINK_DELAY]
    later(gi, tree, when, times, loads, done + pf[fa + HANDSHAKE], 2 * i)


def later(gi: Any, tree: Any, when: Any, times: Any, loads: Any, time: float, load: int) -> None:
    """Schedule a landing (even load) or a new start (odd load) of request load // 2."""
    push(times, loads, gi[PENDING], time, load)
    gi[PENDING] += 1
    reschedule(tree, when, gi[TREE], gi[N_SERVERS] + 1, times[0])


def land(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gi: Any, tab: Any, tree: Any, when: Any, times: Any, loads: Any,
    scratch: Any, i: int, now: float,
) -> None:  # fmt: skip
    """The cache has arrived: free the sender's memory, wait for a place in the batch."""
    ki = i * QI
    s, e = k[ki + SOURCE], k[ki + SERVER]
    lost = si[e * SI + AGE] != k[ki + EPOCH]
    if si[s * SI + AGE] == k[ki + SOURCE_EPOCH]:
        sf[s * SF + HELD] -= k[ki + INPUT] + k[ki + DONE] - 1
        if when[s] == INF and si[s * SI + ALIVE] == 1:
            start_pass(q, k, sf, si, pf, pi, gi, tab, tree, when, scratch, s, now)
    else:
        if not lost:
            # The receiver gives back what it had reserved.
            need = k[ki + INPUT] + k[ki + DONE]
            if k[ki + RESERVED] == 1:
                sf[e * SF + KV_USED] -= need
            else:
                sf[e * SF + STAGED] -= need
            si[e * SI + ASSIGNED] -= 1
            poke(si, sf, pf, gi, tree, when, e, now)
        lost = True
    if lost:
        give_up(q, k, gi, tree, when, times, loads, i, now)
        return
    q[i * QF + JOINED] = now
    append(k, si, e * SI, WAIT_HEAD, WAIT_TAIL, i)
    poke(si, sf, pf, gi, tree, when, e, now)


def give_up(q: Any, k: Any, gi: Any, tree: Any, when: Any, times: Any, loads: Any, i: int, now: float) -> None:
    """A failure took this request's work: start again, or count it as lost."""
    k[i * QI + RETRIES] += 1
    if gi[DROP] == 1:
        k[i * QI + STATUS] = LOST
    else:
        if q[i * QF + FIRST] < 0.0:
            k[i * QI + DONE] = 0
        later(gi, tree, when, times, loads, now, 2 * i + 1)


# --- decoding servers ----------------------------------------------------------------------------------------------


def poke(si: Any, sf: Any, pf: Any, gi: Any, tree: Any, when: Any, e: int, now: float) -> None:
    """Something waits for the next iteration boundary: wake an idle server, cut a long run."""
    at, fa = e * SI, e * SF
    steps = si[at + STEPS]
    if steps == 0:
        if when[e] == INF:
            sf[fa + START] = now
            reschedule(tree, when, gi[TREE], e, now)
    elif steps > 1 and si[at + ACTIVE] < pf[si[at + POOL] * PF + MAX_ACTIVE]:
        n = steps_to(sf[fa + C0], sf[fa + C1], now - sf[fa + START], steps)
        if n < steps:
            si[at + STEPS] = n
            reschedule(tree, when, gi[TREE], e, sf[fa + START] + elapsed(sf[fa + C0], sf[fa + C1], n))


def activate(q: Any, k: Any, sf: Any, si: Any, pf: Any, e: int, i: int, now: float) -> None:
    """Put a sequence, whose KV memory is already counted, into the batch."""
    ki, at = i * QI, e * SI
    context = k[ki + INPUT] + k[ki + DONE]
    k[ki + CONTEXT], k[ki + STARTED], k[ki + RUN] = context, si[at + STEP], si[at + RUN_NO]
    left = (k[ki + OUTPUT] - k[ki + DONE]) / pf[si[at + POOL] * PF + PER_STEP]
    k[ki + FINISH] = si[at + STEP] + int(ceil(left))
    k[ki + LEFT], k[ki + RIGHT] = -1, -1
    si[at + ROOT] = meld(k, si[at + ROOT], i)
    last = si[at + ACTIVE_TAIL]
    k[ki + PREV], k[ki + NEXT] = last, -1
    if last < 0:
        si[at + ACTIVE_HEAD] = i
    else:
        k[last * QI + NEXT] = i
    si[at + ACTIVE_TAIL] = i
    si[at + ACTIVE] += 1
    sf[e * SF + CONTEXT_SUM] += context
    if q[i * QF + ADMITTED] < 0.0:
        q[i * QF + ADMITTED] = now


def deactivate(k: Any, sf: Any, si: Any, pf: Any, e: int, i: int) -> None:
    """Take a sequence out of the batch (not out of the heap) and free its memory."""
    ki, at = i * QI, e * SI
    before, after = k[ki + PREV], k[ki + NEXT]
    if before < 0:
        si[at + ACTIVE_HEAD] = after
    else:
        k[before * QI + NEXT] = after
    if after < 0:
        si[at + ACTIVE_TAIL] = before
    else:
        k[after * QI + PREV] = before
    context = k[ki + CONTEXT] + (si[at + STEP] - k[ki + STARTED]) * pf[si[at + POOL] * PF + PER_STEP]
    sf[e * SF + CONTEXT_SUM] -= context
    sf[e * SF + KV_USED] -= context
    si[at + ACTIVE] -= 1
    if si[at + ACTIVE] == 0:
        sf[e * SF + CONTEXT_SUM] = 0.0


def stop_early(
    q: Any, k: Any, si: Any, pf: Any, gi: Any, gap_value: Any, gap_run: Any, e: int, i: int, now: float
) -> None:
    """Book the tokens a sequence has made when it leaves the batch before its end."""
    ki, at = i * QI, e * SI
    made = si[at + STEP] - k[ki + STARTED]
    if made > 0:
        total = k[ki + DONE] + int(floor(made * pf[si[at + POOL] * PF + PER_STEP]))
        k[ki + DONE] = total if total < k[ki + OUTPUT] else k[ki + OUTPUT] - 1
        gap = gap_since(gap_value, gap_run, si, gi, e, k[ki + RUN])
        if gap > q[i * QF + GAP]:
            q[i * QF + GAP] = gap
        q[i * QF + LAST] = now


def finish_run(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, gf: Any, gi: Any, gap_value: Any, gap_run: Any, e: int, steps: int,
    now: float,
) -> None:  # fmt: skip
    """Book `steps` iterations that end now."""
    at, fa = e * SI, e * SF
    batch = si[at + ACTIVE]
    grown = steps * batch * pf[si[at + POOL] * PF + PER_STEP]
    account(sf, gf, e, sf[fa + START], now, float(batch), sf[fa + KV_USED] + 0.5 * grown)
    si[at + STEP] += steps
    sf[fa + CONTEXT_SUM] += grown
    sf[fa + KV_USED] += grown
    if batch > 0:
        first, last = sf[fa + C0], sf[fa + C0] + (steps - 1) * sf[fa + C1]
        note_gap(gap_value, gap_run, k, si, gi, e, si[at + RUN_NO], last if last > first else first)
    si[at + RUN_NO] += 1
    si[at + STEPS] = 0


def end_chunks(q: Any, k: Any, sf: Any, si: Any, pf: Any, e: int, now: float) -> None:
    """Advance the prompts that had tokens in the iteration that ends now; whole ones give a token and go decoding."""
    at, fa = e * SI, e * SF
    i, before, left = si[at + QUEUE_HEAD], -1, si[at + CHUNKED]
    while left > 0:
        ki = i * QI
        after = k[ki + NEXT]
        if k[ki + TAKEN] > 0:
            left -= 1
            k[ki + PREFILLED] += k[ki + TAKEN]
            sf[fa + TOKENS] += k[ki + TAKEN]
            k[ki + TAKEN] = 0
            if k[ki + PREFILLED] >= k[ki + INPUT] + k[ki + DONE] - k[ki + CACHED_NOW]:
                if before < 0:
                    si[at + QUEUE_HEAD] = after
                else:
                    k[before * QI + NEXT] = after
                if after < 0:
                    si[at + QUEUE_TAIL] = before
                si[at + QUEUED] -= 1
                si[at + HALF_DONE] -= 1
                if q[i * QF + FIRST] < 0.0:
                    pool = si[at + POOL]
                    span = now - sf[fa + START]
                    q[i * QF + DELAY] = pf[pool * PF + EXTRA] + pf[pool * PF + FIRST_STEPS] * span
                q[i * QF + PASS_END] = now
                emit(q, i, now)
                k[ki + DONE] += 1
                # The token just made takes a place in the cache too.
                sf[fa + KV_USED] += 1.0
                if k[ki + DONE] >= k[ki + OUTPUT]:
                    k[ki + STATUS] = FINISHED
                    sf[fa + KV_USED] -= k[ki + INPUT] + k[ki + DONE]
                    si[at + ASSIGNED] -= 1
                else:
                    activate(q, k, sf, si, pf, e, i, now)
            else:
                before = i
        else:
            before = i
        i = after
    si[at + CHUNKED] = 0


def preempt(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, gi: Any, gap_value: Any, gap_run: Any, e: int, now: float
) -> None:
    """Drop the cache of the youngest sequence; its prompt and tokens are computed again when there is room."""
    at = e * SI
    i = si[at + ACTIVE_TAIL]
    ki = i * QI
    deactivate(k, sf, si, pf, e, i)
    stop_early(q, k, si, pf, gi, gap_value, gap_run, e, i, now)
    k[ki + PREEMPTED] += 1
    k[ki + PREFILLED], k[ki + TAKEN], k[ki + CACHED_NOW], k[ki + RESERVED] = 0, 0, 0, 0
    k[ki + NEXT] = si[at + QUEUE_HEAD]
    si[at + QUEUE_HEAD] = i
    if si[at + QUEUE_TAIL] < 0:
        si[at + QUEUE_TAIL] = i
    si[at + QUEUED] += 1
    # Rare enough to rebuild the heap of what is left.
    root, j = -1, si[at + ACTIVE_HEAD]
    while j >= 0:
        k[j * QI + LEFT], k[j * QI + RIGHT] = -1, -1
        root = meld(k, root, j)
        j = k[j * QI + NEXT]
    si[at + ROOT] = root


def plan_chunks(q: Any, k: Any, sf: Any, si: Any, pf: Any, e: int, now: float) -> float:
    """Fill the iteration with prompt tokens, first come first served; returns the time they add."""
    at, fa, pa = e * SI, e * SF, si[e * SI + POOL] * PF
    room = int(pf[pa + BUDGET]) - si[at + ACTIVE]
    growth = pf[pa + HEADROOM]
    extra, blocked, seen = 0.0, False, 0
    known = si[at + HALF_DONE]
    i = si[at + QUEUE_HEAD]
    while i >= 0 and room > 0 and not (blocked and seen >= known):
        ki = i * QI
        whole = k[ki + INPUT] + k[ki + DONE]
        if k[ki + RESERVED] == 1:
            seen += 1
        elif not blocked:
            places = si[at + ACTIVE] + si[at + HALF_DONE] + 1
            if places > pf[pa + MAX_ACTIVE] or sf[fa + KV_USED] + whole + places * growth > pf[pa + KV_CAP]:
                # Alone, a request that fits at all must be let in, whatever growth was to be kept free.
                if places > 1 or sf[fa + KV_USED] > 0.0:
                    blocked = True
            if not blocked:
                k[ki + RESERVED] = 1
                q[i * QF + PASS_START] = now
                sf[fa + KV_USED] += whole
                si[at + HALF_DONE] += 1
                seen += 1
                known += 1
        if k[ki + RESERVED] == 1:
            past = k[ki + CACHED_NOW] + k[ki + PREFILLED]
            use = whole - past
            if use > room:
                use = room
            # A prompt that is cached whole still needs its last token.
            k[ki + TAKEN] = use if use > 0 else 1
            extra += pf[pa + PASS_B] * use + pf[pa + PASS_C] * (use * (past + 0.5 * use))
            room -= k[ki + TAKEN]
            si[at + CHUNKED] += 1
        i = k[ki + NEXT]
    return float(extra)


def boundary(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gf: Any, gi: Any, tab: Any, route: Any, links: Any,
    tree: Any, when: Any, times: Any, loads: Any, gap_value: Any, gap_run: Any, e: int, now: float,
) -> None:  # fmt: skip
    """End of a run: sequences leave, others join, and the next run is laid out."""
    at, fa, pool = e * SI, e * SF, si[e * SI + POOL]
    pa, ia = pool * PF, pool * PI
    if si[at + STEPS] > 0:
        finish_run(q, k, sf, si, pf, gf, gi, gap_value, gap_run, e, si[at + STEPS], now)
    i = si[at + ROOT]
    while i >= 0 and k[i * QI + FINISH] <= si[at + STEP]:
        ki = i * QI
        si[at + ROOT] = meld(k, k[ki + LEFT], k[ki + RIGHT])
        deactivate(k, sf, si, pf, e, i)
        gap = gap_since(gap_value, gap_run, si, gi, e, k[ki + RUN])
        if gap > q[i * QF + GAP]:
            q[i * QF + GAP] = gap
        q[i * QF + LAST] = now
        k[ki + STATUS], k[ki + DONE] = FINISHED, k[ki + OUTPUT]
        si[at + ASSIGNED] -= 1
        i = si[at + ROOT]
    if si[at + CHUNKED] > 0:
        end_chunks(q, k, sf, si, pf, e, now)
    # Sequences whose cache has landed join while there are places and memory. Preempted ones wait for room longer.
    i = si[at + WAIT_HEAD]
    while i >= 0 and si[at + ACTIVE] + si[at + HALF_DONE] < pf[pa + MAX_ACTIVE]:
        ki = i * QI
        need = k[ki + INPUT] + k[ki + DONE]
        if k[ki + RESERVED] == 0:
            crowded = sf[fa + KV_USED] + need + (si[at + ACTIVE] + 1) * pf[pa + HEADROOM] > pf[pa + KV_CAP]
            if crowded and sf[fa + KV_USED] > 0.0:
                break
            sf[fa + KV_USED] += need
            sf[fa + STAGED] -= need
        take_first(k, si, at, WAIT_HEAD, WAIT_TAIL)
        k[ki + RESERVED] = 0
        if pi[ia + FIRST_AT] == 0:
            emit(q, i, now)
        activate(q, k, sf, si, pf, e, i, now)
        i = si[at + WAIT_HEAD]
    while si[at + ACTIVE] > 0 and sf[fa + KV_USED] + si[at + ACTIVE] * pf[pa + PER_STEP] > pf[pa + KV_CAP] + 1e-6:
        preempt(q, k, sf, si, pf, gi, gap_value, gap_run, e, now)
    extra = 0.0
    if si[at + QUEUE_HEAD] >= 0:
        extra = plan_chunks(q, k, sf, si, pf, e, now)
    # Caches kept back at their senders follow as memory frees up.
    i = si[at + HOLD_HEAD]
    while i >= 0 and find_room(k, sf, si, pf, e, pool, i):
        take_first(k, si, at, HOLD_HEAD, HOLD_TAIL)
        transfer(q, k, sf, si, pf, pi, gi, route, links, tree, when, times, loads, i, now)
        i = si[at + HOLD_HEAD]
    batch = si[at + ACTIVE]
    sf[fa + START] = now
    if batch == 0 and si[at + CHUNKED] == 0:
        reschedule(tree, when, gi[TREE], e, INF)
        return
    growth = pf[pa + PER_STEP]
    context = sf[fa + CONTEXT_SUM] / batch if batch > 0 else 0.0
    c0, slope, edge = line(tab, pi[ia + TABLE], pi[ia + ROWS], pi[ia + COLS], float(batch), context)
    steps = 1
    c1 = 0.0
    if si[at + CHUNKED] > 0:
        c0 += extra
    else:
        c1 = slope * growth
        steps = k[si[at + ROOT] * QI + FINISH] - si[at + STEP]
        most = (pf[pa + KV_CAP] + 1e-6 - sf[fa + KV_USED]) / (batch * growth)
        if most < steps:
            steps = int(floor(most))
        inside = (edge - context) / growth + 1.0
        if inside < steps:
            steps = int(floor(inside))
        if steps < 1:
            steps = 1
    sf[fa + C0], sf[fa + C1], si[at + STEPS] = c0, c1, steps
    # The newcomers' first step: its wait counts as a gap, and the first token's way out is measured in steps.
    i = si[at + ACTIVE_TAIL]
    while i >= 0 and k[i * QI + RUN] == si[at + RUN_NO]:
        qi = i * QF
        gap = now + c0 - q[qi + LAST]
        if gap > q[qi + GAP]:
            q[qi + GAP] = gap
        if q[qi + JOINED] >= 0.0 and k[i * QI + DONE] == 1:
            q[qi + DELAY] += pf[pa + EXTRA] + (pf[pa + FIRST_STEPS] * c0 if pi[ia + FIRST_AT] == 0 else 0.0)
        i = k[i * QI + PREV]
    reschedule(tree, when, gi[TREE], e, now + elapsed(c0, c1, steps))


# --- failures ------------------------------------------------------------------------------------------------------


def fail(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gf: Any, gi: Any, tree: Any, when: Any, times: Any, loads: Any,
    gap_value: Any, gap_run: Any, s: int, now: float,
) -> None:  # fmt: skip
    """A server is lost with everything on it; requests in transfer to or from it notice when they land."""
    at, fa, pool = s * SI, s * SF, si[s * SI + POOL]
    if si[at + ALIVE] == 0:
        return
    si[at + ALIVE] = 0
    if pi[pool * PI + ENGINE] == 0:
        if si[at + ACTIVE] > 0:
            account(sf, gf, s, sf[fa + START], now, float(si[at + ACTIVE]), sf[fa + HELD])
        shared = pi[pool * PI + ROUTER] == CENTRAL
    else:
        shared = False
        if si[at + STEPS] > 0:
            past = now - sf[fa + START]
            n = steps_to(sf[fa + C0], sf[fa + C1], past, si[at + STEPS])
            if elapsed(sf[fa + C0], sf[fa + C1], n) > past:
                n -= 1
            end = sf[fa + START] + elapsed(sf[fa + C0], sf[fa + C1], n)
            if n > 0:
                finish_run(q, k, sf, si, pf, gf, gi, gap_value, gap_run, s, n, end)
            i = si[at + ACTIVE_HEAD]
            while i >= 0:
                stop_early(q, k, si, pf, gi, gap_value, gap_run, s, i, end)
                i = k[i * QI + NEXT]
    for kind in range(5):
        head = PASS_HEAD
        if kind == 1:
            head = QUEUE_HEAD
        elif kind == 2:
            head = WAIT_HEAD
        elif kind == 3:
            head = HOLD_HEAD
        elif kind == 4:
            head = ACTIVE_HEAD
        if kind == 1 and shared:
            continue
        i = si[at + head]
        si[at + head] = -1
        while i >= 0:
            after = k[i * QI + NEXT]
            if kind == 3:
                # Its cache is still at the sender: landing nowhere makes the sender let go of it.
                later(gi, tree, when, times, loads, now, 2 * i)
            else:
                give_up(q, k, gi, tree, when, times, loads, i, now)
            i = after
    si[at + AGE] += 1
    if not shared:
        si[at + QUEUE_TAIL], si[at + QUEUED], sf[fa + QUEUED_WORK] = -1, 0, 0.0
    si[at + WAIT_TAIL], si[at + HOLD_TAIL], si[at + ACTIVE_TAIL], si[at + ROOT] = -1, -1, -1, -1
    si[at + ACTIVE], si[at + STEPS], si[at + CHUNKED], si[at + HALF_DONE] = 0, 0, 0, 0
    si[at + ASSIGNED], si[at + GAPS] = 0, 0
    sf[fa + CONTEXT_SUM], sf[fa + KV_USED], sf[fa + STAGED], sf[fa + HELD] = 0.0, 0.0, 0.0, 0.0
    sf[fa + NIC_FREE] = 0.0
    reschedule(tree, when, gi[TREE], s, INF)


# --- the loop ------------------------------------------------------------------------------------------------------


def run_events(
    q: Any, k: Any, sf: Any, si: Any, pf: Any, pi: Any, gf: Any, gi: Any, tab: Any, share: Any, route: Any, links: Any,
    home: Any, tree: Any, when: Any, times: Any, loads: Any, gap_value: Any, gap_run: Any, fail_time: Any,
    fail_server: Any, fail_back: Any, scratch: Any, until: int,
) -> bool:  # fmt: skip
    """Work through events until `until` requests have arrived or all is done; True if there is more to do."""
    servers, size, events = gi[N_SERVERS], gi[TREE], 0
    while True:
        slot = tree[1]
        now = when[slot]
        if not now <= gf[HORIZON] or now == INF:
            gi[EVENTS] += events
            return False
        events += 1
        gf[NOW] = now
        if slot < servers:
            if pi[si[slot * SI + POOL] * PI + ENGINE] == 1:
                boundary(
                    q, k, sf, si, pf, pi, gf, gi, tab, route, links, tree, when, times, loads, gap_value, gap_run,
                    slot, now,
                )  # fmt: skip
            else:
                end_pass(
                    q, k, sf, si, pf, pi, gf, gi, tab, share, route, links, home, tree, when, times, loads, scratch,
                    slot, now,
                )  # fmt: skip
        elif slot == servers:
            i = gi[NEXT_ARRIVAL]
            gi[NEXT_ARRIVAL] = i + 1
            reschedule(tree, when, size, slot, q[(i + 1) * QF + ARRIVAL] if i + 1 < gi[N_REQ] else INF)
            enter(q, k, sf, si, pf, pi, gf, gi, tab, share, home, tree, when, scratch, i, now)
            if i + 1 >= until:
                gi[EVENTS] += events
                return True
        elif slot == servers + 1:
            load = loads[0]
            pop(times, loads, gi[PENDING])
            gi[PENDING] -= 1
            reschedule(tree, when, size, slot, times[0] if gi[PENDING] > 0 else INF)
            if load % 2 == 0:
                land(q, k, sf, si, pf, pi, gi, tab, tree, when, times, loads, scratch, load // 2, now)
            else:
                i = load // 2
                # A fresh random number, or the retries of one request would all take the same way.
                mixed = q[i * QF + DRAW] * 7919.0 + 0.6180339887498949
                q[i * QF + DRAW] = mixed - floor(mixed)
                enter(q, k, sf, si, pf, pi, gf, gi, tab, share, home, tree, when, scratch, i, now)
        else:
            j = gi[NEXT_FAIL]
            gi[NEXT_FAIL] = j + 1
            reschedule(tree, when, size, slot, fail_time[j + 1] if j + 1 < gi[N_FAIL] else INF)
            s = fail_server[j]
            if fail_back[j] == 0:
                fail(q, k, sf, si, pf, pi, gf, gi, tree, when, times, loads, gap_value, gap_run, s, now)
            elif si[s * SI + ALIVE] == 0:
                si[s * SI + ALIVE] = 1
                if pi[si[s * SI + POOL] * PI + ENGINE] == 0:
                    start_pass(q, k, sf, si, pf, pi, gi, tab, tree, when, scratch, s, now)


ORDER = (
    reschedule, push, pop, meld, append, take_first, cell, blend, line, elapsed, steps_to, work_s, note_gap, gap_since,
    account, load_of, alive, choose_pool, choose_server, poke, start_pass, enter, emit, later, find_room, transfer,
    send, end_pass, give_up, land, activate, deactivate, stop_early, finish_run, end_chunks, preempt, plan_chunks,
    boundary, fail, run_events,
)  # fmt: skip
"""Every function, each after those it calls: the order in which they are compiled."""
