"""The event loop of the simulator, written once: plain Python runs it as it is, numba compiles the same functions.

All state lies in records (:mod:`pdplan.simulate.records`) and a few arrays of numbers; requests, servers (replicas) and
pools refer to one another by index, -1 meaning none. Only arithmetic, `sqrt`, `ceil` and `floor` are used, so that both
ways give the same floating-point results.

Events come from a tournament tree over the servers, the arrivals, the transfers under way and the failures. Decode
iterations are not visited one by one: between two changes of its batch a server's step time grows along a straight
line with the context, so that any number of steps has a closed-form duration (a *run*). A request that arrives during
a run cuts it at the next iteration boundary. This is exact, not an approximation.

All functions are in this one file because numba looks only at the file of the function it keeps on disk to see whether
it must compile again.
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Any

INF = float("inf")
# Gaps are counted in bins: bin k holds those from (k / GAP_SCALE)^2 s on; 1 % wide at 10 ms, up to 4 s.
GAP_BINS = 4096
GAP_SCALE = 2000.0

# Status of a request
OUTSIDE, INSIDE, FINISHED, NO_SERVER, QUEUE_FULL, TOO_LARGE, LOST = range(7)
# Routers
CENTRAL, ROUND_ROBIN, LEAST_LOADED, PREFIX_AWARE, RANDOM = range(5)


# --- tournament tree: tree[1] is the slot with the earliest time; ties go to the higher slot ------------------------


def reschedule(times: Any, tree: Any, size: int, slot: int, time: float) -> None:
    """Give `slot` a new time and repair its path to the root."""
    times[slot] = time
    at = (size + slot) >> 1
    while at >= 1:
        best, other = tree[2 * at], tree[2 * at + 1]
        if times[other] <= times[best]:
            best = other
        if tree[at] != best:
            tree[at] = best
        elif best != slot:
            return
        at >>= 1


# --- transfers under way: binary heap by (time, load) --------------------------------------------------------------


def later(pending: Any, times: Any, tree: Any, g: Any, time: float, load: int) -> None:
    """Schedule a landing (even load) or a new start (odd load) of request load // 2."""
    i = g.pending
    while i > 0:
        up = pending[(i - 1) >> 1]
        if up.time < time or (up.time == time and up.load < load):
            break
        here = pending[i]
        here.time, here.load = up.time, up.load
        i = (i - 1) >> 1
    here = pending[i]
    here.time, here.load = time, load
    g.pending += 1
    reschedule(times, tree, g.tree, g.servers + 1, pending[0].time)


def take_pending(pending: Any, times: Any, tree: Any, g: Any) -> int:
    """Remove the earliest entry and return its load."""
    load = pending[0].load
    last = g.pending - 1
    g.pending = last
    moved = pending[last]
    i = 0
    while 2 * i + 1 < last:
        child = 2 * i + 1
        if child + 1 < last:
            a, b = pending[child], pending[child + 1]
            if b.time < a.time or (b.time == a.time and b.load < a.load):
                child += 1
        low = pending[child]
        if moved.time < low.time or (moved.time == low.time and moved.load < low.load):
            break
        here = pending[i]
        here.time, here.load = low.time, low.load
        i = child
    here = pending[i]
    here.time, here.load = moved.time, moved.load
    reschedule(times, tree, g.tree, g.servers + 1, pending[0].time if last > 0 else INF)
    return int(load)


# --- sequences of a batch by their last step: skew heap inside the requests -----------------------------------------


def meld(reqs: Any, a: int, b: int) -> int:
    """Merge two heaps given by their roots."""
    if a < 0:
        return b
    if b < 0:
        return a
    if reqs[b].finish < reqs[a].finish:
        a, b = b, a
    root = a
    while True:
        top = reqs[a]
        right = top.right
        top.right = top.left
        if right < 0:
            top.left = b
            return root
        if reqs[b].finish < reqs[right].finish:
            right, b = b, right
        top.left = right
        a = right


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


def line(tab: Any, pool: Any, x: float, y: float) -> tuple[float, float, float]:
    """Bilinear value of the pool's table at (x, y), its slope in y, and the y where that slope changes."""
    base, rows, cols = pool.table, pool.rows, pool.cols
    row, share, down = 0, 0.0, 0
    if rows > 1:
        row = cell(tab, base, rows, x)
        share = (x - tab[base + row]) / (tab[base + row + 1] - tab[base + row])
        down = cols
    at = base + rows + cols + row * cols
    if cols == 1:
        return tab[at] + share * (tab[at + down] - tab[at]), 0.0, INF
    col = cell(tab, base + rows, cols, y)
    left, right = tab[base + rows + col], tab[base + rows + col + 1]
    at += col
    value = tab[at] + share * (tab[at + down] - tab[at])
    slope = (tab[at + 1] + share * (tab[at + 1 + down] - tab[at + 1]) - value) / (right - left)
    return value + slope * (y - left), slope, right if col < cols - 2 else INF


def elapsed(c0: float, c1: float, steps: int) -> float:
    """Duration of a number of steps of which the first takes c0 and each next one c1 more."""
    return steps * c0 + c1 * (0.5 * steps * (steps - 1))


def steps_to(c0: float, c1: float, time: float, most: int) -> int:
    """Fewest steps, at least one and at most `most`, that last until `time` after the start of the run."""
    half = c0 - 0.5 * c1
    root = half * half + 2.0 * c1 * time
    guess = 2.0 * time / (half + sqrt(root if root > 0.0 else 0.0))
    n = most
    if guess < most:
        n = ceil(guess)
    if n < 1:
        n = 1
    while n > 1 and elapsed(c0, c1, n - 1) >= time:
        n -= 1
    while n < most and elapsed(c0, c1, n) < time:
        n += 1
    return n


def ahead_s(pool: Any, work: float) -> float:
    """What a waiting prompt adds to the wait of the next: ranks share its work, all passes their fixed cost."""
    return float(work * (pool.hot / pool.ranks + (1.0 - pool.hot)) + pool.pass_a / pool.pass_limit)


def work_s(tab: Any, pool: Any, new: int, past: int) -> float:
    """Time that prompt tokens add to a pass or iteration, without its fixed cost."""
    if pool.engine == 0 and pool.rows > 0:
        value = line(tab, pool, float(new), float(past))[0]
        return value if value > 0.0 else 0.0
    return float(pool.pass_b * new + pool.pass_c * (new * (past + 0.5 * new)))


def prompt_s(tab: Any, pool: Any, tokens: int) -> float:
    """Time that all prompt tokens of an iteration add together, from the pool's line of (tokens, seconds)."""
    at = pool.work + cell(tab, pool.work, pool.work_rows, float(tokens))
    left, low = tab[at], tab[at + pool.work_rows]
    value = low + (tab[at + pool.work_rows + 1] - low) * (float(tokens) - left) / (tab[at + 1] - left)
    return float(value) if value > 0.0 else 0.0


# --- gaps between tokens by size -----------------------------------------------------------------------------------


def note_gaps(hist: Any, g: Any, s: Any, gap: float, tokens: float) -> None:
    """Count gaps of one size at a server's pool, in bins of equal width in the square root, inside the window."""
    if s.start >= g.window_from and s.start < g.window_to:
        spot = int(sqrt(gap) * GAP_SCALE)
        if spot > GAP_BINS - 1:
            spot = GAP_BINS - 1
        hist[s.pool * GAP_BINS + spot] += tokens


# --- largest gap between tokens: runs whose longest step exceeds that of all later runs -----------------------------


def note_gap(gaps: Any, reqs: Any, s: Any, size: int, value: float) -> None:
    """Remember the longest step of the run that ends; a server's stack falls in value and rises in run."""
    base, count = s.gap_base, s.gaps
    while count > 0 and gaps[base + count - 1].value <= value:
        count -= 1
    if count == size:
        # Runs before the oldest sequence came are of no interest any more.
        oldest = reqs[s.active_head].run if s.active_head >= 0 else s.run_no
        kept = 0
        for j in range(count):
            old = gaps[base + j]
            if old.run >= oldest:
                new = gaps[base + kept]
                new.value, new.run = old.value, old.run
                kept += 1
        count = kept
        if count == size:
            # Neighbours hardly differ: join them in pairs, the larger value up to the later run.
            count = size // 2
            for j in range(count):
                new = gaps[base + j]
                new.value, new.run = gaps[base + 2 * j].value, gaps[base + 2 * j + 1].run
    top = gaps[base + count]
    top.value, top.run = value, s.run_no
    s.gaps = count + 1


def note_longest(gaps: Any, s: Any, r: Any) -> None:
    """Take the longest step since the request joined the batch into account."""
    base, low, high = s.gap_base, 0, s.gaps
    end = high
    while low < high:
        middle = (low + high) >> 1
        if gaps[base + middle].run < r.run:
            low = middle + 1
        else:
            high = middle
    if low < end and gaps[base + low].value > r.gap:
        r.gap = gaps[base + low].value


def account(g: Any, s: Any, end: float, batch: float, kv: float) -> None:
    """Add a busy interval to the server's time integrals, as far as it lies in the window measured."""
    low, high = s.start, end
    if low < g.window_from:
        low = g.window_from
    if high > g.window_to:
        high = g.window_to
    if high > low:
        s.busy_s += high - low
        s.batch_s += (high - low) * batch
        s.kv_s += (high - low) * kv


# --- routing -------------------------------------------------------------------------------------------------------


def alive(servers: Any, pool: Any) -> bool:
    """Whether any server of the pool works."""
    for j in range(pool.first, pool.first + pool.count):  # noqa: SIM110 - numba compiles no generator here
        if servers[j].alive == 1:
            return True
    return False


def choose_pool(servers: Any, pools: Any, flows: Any, g: Any, row: int, r: Any) -> int:
    """Pool of the request's next stage by a row of flow shares, among pools with a server alive; -1 if none."""
    total, best, chosen = 0.0, -INF, -1
    for p in range(g.pools):
        share = flows[row + p].share
        if share > 0.0 and (g.failures == 0 or alive(servers, pools[p])):
            total += share
            chosen = p
    if chosen < 0 or flows[row + chosen].share == total:
        return chosen
    mark, below, share = r.draw * total, 0.0, total
    for p in range(g.pools):
        flow = flows[row + p]
        if flow.share > 0.0 and (g.failures == 0 or alive(servers, pools[p])):
            if g.even_split == 1:
                flow.credit += flow.share / total
                if flow.credit > best:
                    best, chosen = flow.credit, p
            else:
                chosen, share = p, flow.share
                if mark < below + share:
                    break
                below += share
    if g.even_split == 1:
        flows[row + chosen].credit -= 1.0
    else:
        # What is left of the random number after choosing is uniform again.
        rest = (mark - below) / share
        r.draw = rest if 0.0 <= rest < 1.0 else 0.5
    return chosen


def choose_server(servers: Any, pool: Any, times: Any, tree: Any, home: Any, g: Any, r: Any, now: float) -> int:
    """Server of a pool (which has one alive) for a request."""
    first, count, router = pool.first, pool.count, pool.router
    if count == 1:
        return int(first)
    if router == ROUND_ROBIN:
        turn = pool.turn
        while servers[first + turn].alive == 0:
            turn = (turn + 1) % count
        pool.turn = (turn + 1) % count
        return int(first + turn)
    best = -1
    if router == RANDOM:
        living = 0
        for j in range(first, first + count):
            living += servers[j].alive
        skip = floor(r.draw * living)
        r.draw = r.draw * living - skip
        for j in range(first, first + count):
            if servers[j].alive == 1:
                if skip == 0:
                    return int(j)
                skip -= 1
    known = -1
    if router == PREFIX_AWARE and r.group >= 0:
        known = home[r.group]
    least, load, load_known, engine = INF, 0.0, INF, pool.engine
    for j in range(first, first + count):
        s = servers[j]
        if s.alive == 1:
            if engine == 1:
                load = float(s.assigned)
            else:
                # Seconds of prompts ahead: those that wait and what is left of the pass under way.
                load = s.queued_work
                if times[j] < INF:
                    load += times[j] - now
                # A replica whose caches wait for its NIC is no less busy.
                if s.nic_free - now > load:
                    load = s.nic_free - now
            if load < least:
                best, least = j, load
            if j == known:
                load_known = load
    slack = g.floor_n if engine == 1 else g.floor_s
    if load_known < INF and load_known <= g.balance * least + slack:
        best = known
    return best


def enter(
    reqs: Any, servers: Any, pools: Any, flows: Any, times: Any, tree: Any, ranks: Any, home: Any, tab: Any, g: Any, i: int,
    now: float,
) -> None:  # fmt: skip
    """Route a request that needs its prompt computed, for the first time or again after a failure."""
    r = reqs[i]
    r.status = INSIDE
    p = choose_pool(servers, pools, flows, g, g.pools * g.pools, r)
    if p < 0:
        r.status = NO_SERVER
        return
    pool = pools[p]
    central = pool.engine == 0 and pool.router == CENTRAL
    j = pool.first
    if not central:
        j = choose_server(servers, pool, times, tree, home, g, r, now)
    r.cached_now = r.cached
    if r.group >= 0:
        # The shared prefix is cached where its group was last served, and nowhere else.
        if home[r.group] != j:
            r.cached_now = 0
        home[r.group] = j
    s = servers[j]
    if pool.max_queue > 0 and s.queued >= pool.max_queue:
        r.status = QUEUE_FULL
        return
    final = r.output if pool.engine == 1 else r.done
    if r.input + final > pool.kv_cap:
        r.status = TOO_LARGE
        return
    r.next = -1
    if s.queue_tail < 0:
        s.queue_head = i
    else:
        reqs[s.queue_tail].next = i
    s.queue_tail = i
    s.queued += 1
    if pool.engine == 1:
        r.server, r.epoch = j, s.age
        r.prefilled, r.taken, r.reserved = 0, 0, 0
        s.assigned += 1
        poke(s, pool, times, tree, g, j, now)
        return
    r.work = work_s(tab, pool, r.input + r.done - r.cached_now, r.cached_now)
    s.queued_work += ahead_s(pool, r.work)
    if not central:
        if times[j] == INF:
            start_pass(reqs, servers, pool, times, tree, ranks, tab, g, j, now)
        return
    for other in range(j, j + pool.count):
        if servers[other].alive == 1 and times[other] == INF:
            start_pass(reqs, servers, pool, times, tree, ranks, tab, g, other, now)
            return


# --- prefill servers -----------------------------------------------------------------------------------------------


def start_pass(
    reqs: Any, servers: Any, pool: Any, times: Any, tree: Any, ranks: Any, tab: Any, g: Any, j: int, now: float
) -> bool:
    """Begin a pass with as many of the first waiting requests as request limit, token budget and memory allow."""
    s = servers[j]
    queue = servers[pool.first] if pool.router == CENTRAL else s
    if queue.queue_head < 0:
        return False
    for n in range(pool.ranks):
        ranks[n].tokens, ranks[n].work = 0.0, 0.0
    taken, passes, total, hottest, last = 0, 1, 0.0, 0.0, -1
    while taken < pool.pass_limit and queue.queue_head >= 0:
        i = queue.queue_head
        r = reqs[i]
        held = r.input + r.done
        if s.held + held > pool.kv_cap:
            break
        fresh = held - r.cached_now
        rank = ranks[0]
        for n in range(1, pool.ranks):
            if ranks[n].tokens < rank.tokens:
                rank = ranks[n]
        if rank.tokens > 0.0 and rank.tokens + fresh > pool.budget:
            break
        if fresh > pool.budget:
            # A prompt above the budget takes several passes in a row, each with the fixed cost.
            need = ceil(fresh / pool.budget)
            passes = need if need > passes else passes
        work = r.work
        rank.tokens += fresh if fresh > 0 else 1
        rank.work += work
        total += work
        hottest = rank.work if rank.work > hottest else hottest
        queue.queue_head = r.next
        queue.queued -= 1
        queue.queued_work -= ahead_s(pool, work)
        s.held += held
        s.tokens += fresh
        r.next = -1
        if last < 0:
            s.pass_head = i
        else:
            reqs[last].next = i
        last = i
        taken += 1
        r.pass_start = now
    if queue.queue_head < 0:
        queue.queue_tail, queue.queued_work = -1, 0.0
    if taken > 0:
        s.start, s.active = now, taken
        time = pool.pass_a * passes + pool.hot * hottest + (1.0 - pool.hot) * total
        reschedule(times, tree, g.tree, j, now + time)
    return taken > 0


def end_pass(
    reqs: Any, servers: Any, pools: Any, links: Any, flows: Any, times: Any, tree: Any, pending: Any, ranks: Any, home: Any,
    tab: Any, g: Any, j: int, now: float,
) -> None:  # fmt: skip
    """Send the pass's requests on to decode and begin the next pass."""
    s = servers[j]
    pool = pools[s.pool]
    ready = now + (pool.stages - 1) * (now - s.start)
    account(g, s, now, float(s.active), s.held)
    i = s.pass_head
    s.pass_head, s.active = -1, 0
    while i >= 0:
        r = reqs[i]
        after = r.next
        r.pass_end = ready
        r.source, r.source_epoch = j, s.age
        r.done += 1
        if r.first < 0.0:
            r.delay = pool.extra
        if r.done >= r.output:
            emit(r, ready)
            r.status = FINISHED
            s.held -= r.input + r.done - 1
        else:
            send(reqs, servers, pools, links, flows, times, tree, pending, home, g, i, ready, now)
        i = after
    if not start_pass(reqs, servers, pool, times, tree, ranks, tab, g, j, now):
        reschedule(times, tree, g.tree, j, INF)


def emit(r: Any, time: float) -> None:
    """A token leaves: the first, or one more after a gap."""
    if r.first < 0.0:
        r.first = time
    elif time - r.last > r.gap:
        r.gap = time - r.last
    r.last = time


# --- from prefill to decode ----------------------------------------------------------------------------------------


def send(
    reqs: Any, servers: Any, pools: Any, links: Any, flows: Any, times: Any, tree: Any, pending: Any, home: Any, g: Any, i: int,
    ready: float, now: float,
) -> None:  # fmt: skip
    """Choose where request i decodes and start its transfer, or let it wait for room there."""
    r = reqs[i]
    source = servers[r.source]
    p = choose_pool(servers, pools, flows, g, source.pool * g.pools, r)
    if p >= 0 and r.input + r.output <= pools[p].kv_cap:
        pool = pools[p]
        e = choose_server(servers, pool, times, tree, home, g, r, now)
        s = servers[e]
        r.server, r.epoch = e, s.age
        s.assigned += 1
        if pool.first_at == 1:
            emit(r, ready)
        if s.hold_head < 0 and find_room(s, pool, r):
            transfer(servers, pools, links, flows, times, tree, pending, g, r, i, ready)
        else:
            r.next = -1
            if s.hold_head < 0:
                s.hold_head = i
            else:
                reqs[s.hold_tail].next = i
            s.hold_tail = i
    else:
        r.status = NO_SERVER if p < 0 else TOO_LARGE
        source.held -= r.input + r.done - 1


def find_room(s: Any, pool: Any, r: Any) -> bool:
    """Reserve memory for a cache about to be sent: in the staging buffer, or in the KV cache itself."""
    need = r.input + r.done
    if pool.staging >= 0.0:
        # An empty buffer takes any request, or one larger than it would wait for ever.
        if s.staged > 0.0 and s.staged + need > pool.staging:
            return False
        s.staged += need
        r.reserved = 0
        return True
    if s.kv_used > 0.0 and s.kv_used + need + (s.active + 1) * pool.headroom > pool.kv_cap:
        return False
    s.kv_used += need
    r.reserved = 1
    return True


def transfer(
    servers: Any,
    pools: Any,
    links: Any,
    flows: Any,
    times: Any,
    tree: Any,
    pending: Any,
    g: Any,
    r: Any,
    i: int,
    ready: float,
) -> None:
    """Occupy NIC and link for the request's cache and schedule its landing."""
    s = servers[r.source]
    if s.age != r.source_epoch:
        # The sender is gone and the cache with it.
        later(pending, times, tree, g, ready, 2 * i)
        return
    pool, target = pools[s.pool], servers[r.server].pool
    tokens = r.input + r.done - 1
    if pools[target].holds_prefix == 1:
        tokens -= r.cached_now
    size = pool.bytes_per_token * tokens + pool.fixed_bytes
    stream = size / pool.nic
    # Layer by layer NIC and link are taken from the start of the pass on, unless the cache was held back after it.
    layered = pool.layers > 0.0 and ready <= r.pass_end
    begin = r.pass_start if layered else ready
    begin = begin if begin > s.nic_free else s.nic_free
    done = begin + stream
    s.nic_free = done
    # At least the last layer is left when the pass ends.
    if layered and done < ready + stream / pool.layers:
        done = ready + stream / pool.layers
    path = flows[s.pool * g.pools + target].link
    if path >= 0:
        link = links[path]
        span = size / link.rate
        sent = (begin if begin > link.free else link.free) + span
        link.free = sent
        if layered and sent < ready + span / pool.layers:
            sent = ready + span / pool.layers
        done = (sent if sent > done else done) + link.delay
    later(pending, times, tree, g, done + pool.handshake, 2 * i)


def land(
    reqs: Any,
    servers: Any,
    pools: Any,
    times: Any,
    tree: Any,
    pending: Any,
    ranks: Any,
    tab: Any,
    g: Any,
    i: int,
    now: float,
) -> None:
    """The cache has arrived: free the sender's memory, wait for a place in the batch."""
    r = reqs[i]
    sender, s = servers[r.source], servers[r.server]
    pool = pools[s.pool]
    lost = s.age != r.epoch
    if sender.age == r.source_epoch:
        sender.held -= r.input + r.done - 1
        if sender.alive == 1 and times[r.source] == INF:
            start_pass(reqs, servers, pools[sender.pool], times, tree, ranks, tab, g, r.source, now)
    elif not lost:
        # The receiver gives back what it had kept for it.
        lost = True
        if r.reserved == 1:
            s.kv_used -= r.input + r.done
        else:
            s.staged -= r.input + r.done
        s.assigned -= 1
        poke(s, pool, times, tree, g, r.server, now)
    if lost:
        give_up(pending, times, tree, g, r, i, now)
        return
    r.landed = now
    r.next = -1
    if s.wait_tail < 0:
        s.wait_head = i
    else:
        reqs[s.wait_tail].next = i
    s.wait_tail = i
    poke(s, pool, times, tree, g, r.server, now)


def give_up(pending: Any, times: Any, tree: Any, g: Any, r: Any, i: int, now: float) -> None:
    """A failure took this request's work: start again, or count it as lost."""
    r.retries += 1
    if g.drop == 1:
        r.status = LOST
    else:
        if r.first < 0.0:
            r.done = 0
        later(pending, times, tree, g, now, 2 * i + 1)


# --- decoding servers ----------------------------------------------------------------------------------------------


def poke(s: Any, pool: Any, times: Any, tree: Any, g: Any, e: int, now: float) -> None:
    """Something waits for the next iteration boundary: wake an idle server, cut a long run."""
    if s.steps == 0:
        if times[e] == INF:
            s.start = now
            reschedule(times, tree, g.tree, e, now)
    elif s.steps > 1 and s.active < pool.max_active:
        n = steps_to(s.c0, s.c1, now - s.start, s.steps)
        if n < s.steps:
            s.steps = n
            reschedule(times, tree, g.tree, e, s.start + elapsed(s.c0, s.c1, n))


def activate(reqs: Any, s: Any, pool: Any, i: int, now: float) -> None:
    """Put a sequence, whose KV memory is already counted, into the batch."""
    r = reqs[i]
    r.context, r.started, r.run = r.input + r.done, s.step, s.run_no
    r.finish = s.step + ceil((r.output - r.done) / pool.per_step)
    r.left, r.right = -1, -1
    s.root = meld(reqs, s.root, i)
    r.prev, r.next = s.active_tail, -1
    if s.active_tail < 0:
        s.active_head = i
    else:
        reqs[s.active_tail].next = i
    s.active_tail = i
    s.active += 1
    s.context_sum += r.context
    if r.admitted < 0.0:
        r.admitted = now


def deactivate(reqs: Any, s: Any, pool: Any, r: Any) -> None:
    """Take a sequence out of the batch (not out of the heap) and free its memory."""
    if r.prev < 0:
        s.active_head = r.next
    else:
        reqs[r.prev].next = r.next
    if r.next < 0:
        s.active_tail = r.prev
    else:
        reqs[r.next].prev = r.prev
    context = r.context + (s.step - r.started) * pool.per_step
    s.context_sum -= context
    s.kv_used -= context
    s.active -= 1
    if s.active == 0:
        s.context_sum = 0.0


def stop_early(s: Any, pool: Any, gaps: Any, r: Any, now: float) -> None:
    """Book the tokens a sequence has made when it leaves the batch before its end."""
    made = s.step - r.started
    if made > 0:
        total = r.done + floor(made * pool.per_step)
        r.done = total if total < r.output else r.output - 1
        note_longest(gaps, s, r)
        r.last = now


def finish_run(reqs: Any, s: Any, pool: Any, gaps: Any, hist: Any, g: Any, steps: int, now: float) -> None:
    """Book `steps` iterations that end now."""
    batch = s.active
    grown = steps * batch * pool.per_step
    account(g, s, now, float(batch), s.kv_used + 0.5 * grown)
    s.step += steps
    s.context_sum += grown
    s.kv_used += grown
    if batch > 0:
        last = s.c0 + (steps - 1) * s.c1
        note_gap(gaps, reqs, s, g.gap_size, last if last > s.c0 else s.c0)
        note_gaps(hist, g, s, s.c0 + 0.5 * (steps - 1) * s.c1, float(steps * batch))
    s.run_no += 1
    s.steps = 0


def end_chunks(reqs: Any, s: Any, pool: Any, now: float) -> None:
    """Advance the prompts that had tokens in the iteration that ends now; whole ones give a token and go decoding."""
    i, before = s.queue_head, -1
    while s.chunked > 0:
        r = reqs[i]
        after = r.next
        whole = False
        if r.taken > 0:
            s.chunked -= 1
            r.prefilled += r.taken
            s.tokens += r.taken
            r.taken = 0
            whole = r.prefilled >= r.input + r.done - r.cached_now
        if whole:
            if before < 0:
                s.queue_head = after
            else:
                reqs[before].next = after
            if after < 0:
                s.queue_tail = before
            s.queued -= 1
            s.half_done -= 1
            if r.first < 0.0:
                r.delay = pool.extra + pool.first_steps * s.plain
                r.pass_end = now
            emit(r, now)
            r.done += 1
            # The token just made takes a place in the cache too.
            s.kv_used += 1.0
            if r.done >= r.output:
                r.status = FINISHED
                s.kv_used -= r.input + r.done
                s.assigned -= 1
            else:
                activate(reqs, s, pool, i, now)
        else:
            before = i
        i = after


def preempt(reqs: Any, s: Any, pool: Any, gaps: Any, now: float) -> None:
    """Drop the cache of the youngest sequence; its prompt and tokens are computed again when there is room."""
    i = s.active_tail
    r = reqs[i]
    deactivate(reqs, s, pool, r)
    stop_early(s, pool, gaps, r, now)
    r.preempted += 1
    r.prefilled, r.taken, r.cached_now, r.reserved = 0, 0, 0, 0
    r.next = s.queue_head
    s.queue_head = i
    if s.queue_tail < 0:
        s.queue_tail = i
    s.queued += 1
    # Rare enough to rebuild the heap of what is left.
    s.root = -1
    i = s.active_head
    while i >= 0:
        r = reqs[i]
        r.left, r.right = -1, -1
        s.root = meld(reqs, s.root, i)
        i = r.next


def plan_chunks(reqs: Any, s: Any, pool: Any, tab: Any, now: float) -> float:
    """Fill the iteration with prompt tokens, first come first served; returns the time they add."""
    room = int(pool.budget) - s.active
    extra, blocked, seen, known, total = 0.0, False, 0, s.half_done, 0
    i = s.queue_head
    while i >= 0 and room > 0 and not (blocked and seen >= known):
        r = reqs[i]
        whole = r.input + r.done
        if r.reserved == 1:
            seen += 1
        elif not blocked:
            places = s.active + s.half_done + 1
            crowded = s.kv_used + whole + places * pool.headroom > pool.kv_cap
            if places > pool.max_active or (crowded and s.kv_used > 0.0):
                # Nobody overtakes, but prompts begun before go on.
                blocked = True
            else:
                r.reserved = 1
                if r.done == 0:
                    r.pass_start = now
                s.kv_used += whole
                s.half_done += 1
                seen += 1
                known += 1
        if r.reserved == 1:
            past = r.cached_now + r.prefilled
            use = whole - past
            # A prompt that is cached whole still needs its last token.
            use = 1 if use < 1 else use
            use = room if use > room else use
            r.taken = use
            extra += work_s(tab, pool, use, past)
            total += use
            room -= use
            s.chunked += 1
        i = r.next
    if total > 0 and pool.work_rows > 0:
        extra += prompt_s(tab, pool, total)
    return extra


def boundary(
    reqs: Any, servers: Any, pools: Any, links: Any, flows: Any, times: Any, tree: Any, pending: Any, gaps: Any, hist: Any,
    tab: Any, g: Any, e: int, now: float,
) -> None:  # fmt: skip
    """End of a run: sequences leave, others join, and the next run is laid out."""
    s = servers[e]
    pool = pools[s.pool]
    if s.steps > 0:
        finish_run(reqs, s, pool, gaps, hist, g, s.steps, now)
    while s.root >= 0 and reqs[s.root].finish <= s.step:
        r = reqs[s.root]
        s.root = meld(reqs, r.left, r.right)
        deactivate(reqs, s, pool, r)
        note_longest(gaps, s, r)
        r.last = now
        r.status, r.done = FINISHED, r.output
        s.assigned -= 1
    if s.chunked > 0:
        end_chunks(reqs, s, pool, now)
    # Sequences whose cache has landed join while there are places and memory.
    while s.wait_head >= 0 and s.active + s.half_done < pool.max_active:
        i = s.wait_head
        r = reqs[i]
        if r.reserved == 0:
            need = r.input + r.done
            if s.kv_used > 0.0 and s.kv_used + need + (s.active + 1) * pool.headroom > pool.kv_cap:
                break
            s.kv_used += need
            s.staged -= need
        r.reserved = 0
        s.wait_head = r.next
        if r.next < 0:
            s.wait_tail = -1
        if pool.first_at == 0:
            emit(r, now)
        activate(reqs, s, pool, i, now)
    while s.active > 0 and s.kv_used + s.active * pool.per_step > pool.kv_cap + 1e-6:
        preempt(reqs, s, pool, gaps, now)
    c0, c1, steps, extra = 0.0, 0.0, 1, 0.0
    if s.queue_head >= 0:
        extra = plan_chunks(reqs, s, pool, tab, now)
    # Caches kept back at their senders follow as memory frees up.
    while s.hold_head >= 0 and find_room(s, pool, reqs[s.hold_head]):
        i = s.hold_head
        r = reqs[i]
        s.hold_head = r.next
        transfer(servers, pools, links, flows, times, tree, pending, g, r, i, now)
    s.start = now
    if s.active == 0 and s.chunked == 0:
        reschedule(times, tree, g.tree, e, INF)
        return
    context = s.context_sum / s.active if s.active > 0 else 0.0
    c0, slope, edge = line(tab, pool, float(s.active), context)
    s.plain = c0
    if s.chunked > 0:
        c0 += extra
    else:
        c1 = slope * pool.per_step
        # As far as nothing changes: until the first sequence ends, memory is full, or the table bends.
        steps = reqs[s.root].finish - s.step
        most = (pool.kv_cap + 1e-6 - s.kv_used) / (s.active * pool.per_step)
        inside = (edge - context) / pool.per_step + 1.0
        most = inside if inside < most else most
        if most < steps:
            steps = floor(most)
        if steps < 1:
            steps = 1
    s.c0, s.c1, s.steps = c0, c1, steps
    # The newcomers' first step: its wait counts as a gap, and the first token's way out is measured in steps.
    i = s.active_tail
    while i >= 0 and reqs[i].run == s.run_no:
        r = reqs[i]
        if now + c0 - r.last > r.gap:
            r.gap = now + c0 - r.last
        if r.landed >= 0.0 and r.done == 1:
            r.delay += pool.extra
            if pool.first_at == 0:
                r.delay += pool.first_steps * c0
        i = r.prev
    reschedule(times, tree, g.tree, e, now + elapsed(c0, c1, steps))


# --- failures ------------------------------------------------------------------------------------------------------


def fail(
    reqs: Any,
    servers: Any,
    pools: Any,
    times: Any,
    tree: Any,
    pending: Any,
    gaps: Any,
    hist: Any,
    g: Any,
    j: int,
    now: float,
) -> None:
    """A server is lost with everything on it; requests in transfer to or from it notice when they land."""
    s = servers[j]
    pool = pools[s.pool]
    shared = pool.engine == 0 and pool.router == CENTRAL
    if s.alive == 0:
        return
    s.alive = 0
    if pool.engine == 0 and s.active > 0:
        account(g, s, now, float(s.active), s.held)
    if s.steps > 0:
        n = steps_to(s.c0, s.c1, now - s.start, s.steps)
        if elapsed(s.c0, s.c1, n) > now - s.start:
            n -= 1
        end = s.start + elapsed(s.c0, s.c1, n)
        if n > 0:
            finish_run(reqs, s, pool, gaps, hist, g, n, end)
        i = s.active_head
        while i >= 0:
            stop_early(s, pool, gaps, reqs[i], end)
            i = reqs[i].next
    for kind in range(5):
        i = -1
        if kind == 0:
            # Caches still at their senders: landing nowhere makes the sender let go of them.
            i = s.hold_head
        elif kind == 1:
            i = s.active_head if pool.engine == 1 else s.pass_head
        elif kind == 2:
            i = s.wait_head
        elif kind == 3 and not shared:
            i = s.queue_head
        while i >= 0:
            r = reqs[i]
            after = r.next
            if kind == 0:
                later(pending, times, tree, g, now, 2 * i)
            else:
                give_up(pending, times, tree, g, r, i, now)
            i = after
    s.age += 1
    if not shared:
        s.queue_head, s.queue_tail, s.queued, s.queued_work = -1, -1, 0, 0.0
    s.pass_head, s.wait_head, s.wait_tail, s.hold_head, s.active_head, s.active_tail = -1, -1, -1, -1, -1, -1
    s.root, s.active, s.steps, s.chunked, s.half_done, s.assigned, s.gaps = -1, 0, 0, 0, 0, 0, 0
    s.context_sum, s.kv_used, s.staged, s.held, s.nic_free = 0.0, 0.0, 0.0, 0.0, 0.0
    reschedule(times, tree, g.tree, j, INF)


# --- the loop ------------------------------------------------------------------------------------------------------


def run_events(
    reqs: Any, servers: Any, pools: Any, links: Any, flows: Any, times: Any, tree: Any, pending: Any, gaps: Any, failures: Any,
    ranks: Any, home: Any, tab: Any, hist: Any, settings: Any, until: int,
) -> None:  # fmt: skip
    """Work through events until `until` requests have arrived, or all is done, or the horizon is reached."""
    g = settings[0]
    arrivals, horizon = g.servers, g.horizon
    while True:
        slot = tree[1]
        now = times[slot]
        if now > horizon or now == INF:
            return
        g.events += 1
        if slot < arrivals:
            if pools[servers[slot].pool].engine == 1:
                boundary(reqs, servers, pools, links, flows, times, tree, pending, gaps, hist, tab, g, slot, now)
            else:
                end_pass(
                    reqs, servers, pools, links, flows, times, tree, pending, ranks, home, tab, g, slot, now
                )  # fmt: skip
        elif slot == arrivals:
            i = g.next_arrival
            if i >= until:
                return
            g.next_arrival = i + 1
            reschedule(times, tree, g.tree, slot, reqs[i + 1].arrival if i + 1 < g.requests else INF)
            enter(reqs, servers, pools, flows, times, tree, ranks, home, tab, g, i, now)
        elif slot == arrivals + 1:
            load = take_pending(pending, times, tree, g)
            i = load // 2
            if load % 2 == 0:
                land(reqs, servers, pools, times, tree, pending, ranks, tab, g, i, now)
            else:
                # A fresh random number, or the retries of one request would all take the same way.
                mixed = reqs[i].draw * 7919.0 + 0.6180339887498949
                reqs[i].draw = mixed - floor(mixed)
                enter(reqs, servers, pools, flows, times, tree, ranks, home, tab, g, i, now)
        else:
            event = failures[g.next_failure]
            g.next_failure += 1
            reschedule(times, tree, g.tree, slot, failures[g.next_failure].time if g.next_failure < g.failures else INF)
            s = servers[event.server]
            if event.back == 0:
                fail(reqs, servers, pools, times, tree, pending, gaps, hist, g, event.server, now)
            elif s.alive == 0:
                s.alive = 1
                if pools[s.pool].engine == 0:
                    start_pass(reqs, servers, pools[s.pool], times, tree, ranks, tab, g, event.server, now)


ORDER = (
    reschedule, later, take_pending, meld, cell, line, elapsed, steps_to, ahead_s, work_s, prompt_s, note_gap, note_gaps, note_longest, account,
    alive, choose_pool, choose_server, poke, start_pass, enter, emit, find_room, transfer, send, end_pass, give_up, land,
    activate, deactivate, stop_early, finish_run, end_chunks, preempt, plan_chunks, boundary, fail, run_events,
)  # fmt: skip
"""Every function, each after those it calls: the order in which they are compiled."""
