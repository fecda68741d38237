"""Candidate layouts: enumerate everything at once, keep what is valid, fits in memory and can meet the targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.model import LatencyModel, Speculation
from pdplan.scenario.resolve import Offer, Scenario

__all__ = ["Candidates", "Fleet", "enumerate_candidates", "fleet_of", "offers_for", "precision_of"]

ROLES = ("prefill", "decode", "colocated")
MAX_REPLICA_CARDS = 64
"""Replicas larger than this are enumerated only where the scenario allows them or one scale-up domain holds them."""
EXPERT_SPLIT = 16
"""Most ranks that one expert is split over: beyond it, slices of a usual expert (1,536 to 3,072 wide) are narrower than a
GEMM tile of 128, which no engine runs. With attention-DP, where splitting also gathers every token, half of that."""
DECODE_BATCH_CAPS = (16, 64, 256, 1 << 30)
"""Admission limits tried for decode: a small cap bounds TPOT at the price of waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A scenario's machines and the latency model over them; machines are unique node types."""

    machines: tuple[Machine, ...]
    index: dict[str, int]
    latency: LatencyModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """C candidate configurations; every array has shape (C,)."""

    role: NDArray[np.str_]
    layouts: Layouts
    token_budget: NDArray[np.int64]
    """Colocated: tokens per iteration. Otherwise 0: the engine's own budget."""
    batch_cap: NDArray[np.int64]
    """Decode and colocated: admission limit of a replica, sequences."""

    def __len__(self) -> int:
        return len(self.layouts)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Candidates:
        """The candidates at `index`."""
        return Candidates(
            role=self.role[index],
            layouts=self.layouts.take(index),
            token_budget=self.token_budget[index],
            batch_cap=self.batch_cap[index],
        )


def precision_of(scenario: Scenario) -> Precision:
    """Number formats of the deployment.

    Attention weights of fp4 checkpoints of the DeepSeek type stay bf16 except the output projection
    (pdplan latency model, section 1.3); other checkpoints are uniform.
    """
    return Precision(
        weights=scenario.weights,
        attention_weights=scenario.attention_weights,
        output_projection=scenario.weights,
        kv_cache=scenario.kv_cache,
    )


def fleet_of(scenario: Scenario) -> Fleet:
    """The unique node types of a scenario and the latency model over them."""
    machines: dict[str, Machine] = {}
    for site in scenario.sites:
        for offer in site.offers:
            machines.setdefault(
                offer.node.id, Machine(node=offer.node, accelerator=offer.accelerator, family=offer.family)
            )
    speculation = None
    if scenario.draft_tokens:
        speculation = Speculation(draft_tokens=scenario.draft_tokens, acceptance_frac=scenario.acceptance_frac)
    latency = LatencyModel(
        scenario.model,
        tuple(machines.values()),
        scenario.engine,
        precision_of(scenario),
        speculation=speculation,
        overrides=scenario.latency_overrides,
    )
    return Fleet(machines=tuple(machines.values()), index={name: i for i, name in enumerate(machines)}, latency=latency)


def _powers_of_two(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]


def _layout_rows(scenario: Scenario, machines: tuple[Machine, ...]) -> Layouts:
    """Every (tp, pp, ep, attention-DP) worth a look on every machine."""
    moe = any(block.ffn.experts for block in scenario.model.blocks)
    rows: list[tuple[int, int, int, int, int]] = []
    for m, machine in enumerate(machines):
        node, domain = machine.node, machine.node.scale_up_domain_cards
        largest = scenario.fleet.max_cards_per_replica or max(MAX_REPLICA_CARDS if moe else 16, min(domain, 128))
        max_tp = min(scenario.fleet.max_tp or domain, max(domain, node.cards_per_node))
        for tp in _powers_of_two(max_tp):
            for pp in _powers_of_two(min(8, scenario.model.layers)):
                for adp in _powers_of_two(largest):
                    cards = tp * pp * adp
                    if cards > largest or (adp > 1 and tp > 1):
                        continue
                    if cards > node.cards_per_node and cards % node.cards_per_node:
                        continue
                    if cards < node.cards_per_node and node.cards_per_node % cards and node.kind != "supernode":
                        continue
                    group = tp * adp
                    most = EXPERT_SPLIT if adp == 1 else EXPERT_SPLIT // 2
                    for ep in [e for e in sorted({1, group}) if group // e <= most] if moe else (1,):
                        rows.append((m, tp, pp, ep, adp))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return Layouts(machine=table[:, 0], tp=table[:, 1], pp=table[:, 2], ep=table[:, 3], attention_dp=table[:, 4])


def enumerate_candidates(scenario: Scenario, fleet: Fleet) -> tuple[Candidates, int]:
    """All candidates that are valid and hold the longest request, and how many were looked at.

    Returns
    -------
    Candidates
        Those left.
    int
        How many were enumerated, before validity and memory.
    """
    layouts = _layout_rows(scenario, fleet.machines)
    valid, _ = fleet.latency.valid(layouts)
    longest = float((scenario.mix.input_tokens + scenario.mix.output_tokens).max())
    longest_prompt = float(scenario.mix.input_tokens.max())
    holds = np.asarray(fleet.latency.max_batch(layouts, longest)) >= 1.0
    holds_prompt = np.asarray(fleet.latency.max_batch(layouts, longest_prompt)) >= 1.0
    parts: list[Candidates] = []
    enumerated = 0
    modes = scenario.fleet.modes
    roles = (("prefill", "decode") if "disaggregated" in modes else ()) + (
        ("colocated",) if "colocated" in modes else ()
    )
    for role in roles:
        budgets = tuple(scenario.fleet.chunk_tokens) if role == "colocated" else (0,)
        caps = DECODE_BATCH_CAPS if role == "decode" else (1 << 30,)
        allowed = _types_for(scenario, role, fleet)
        keep = np.flatnonzero(valid & (holds_prompt if role == "prefill" else holds) & allowed[layouts.machine])
        enumerated += int(allowed[layouts.machine].sum()) * len(budgets) * len(caps)
        for budget in budgets:
            for cap in caps:
                parts.append(
                    Candidates(
                        role=np.full(len(keep), role),
                        layouts=layouts.take(keep),
                        token_budget=np.full(len(keep), budget, dtype=np.int64),
                        batch_cap=np.full(len(keep), cap, dtype=np.int64),
                    )
                )
    return _concatenate(parts), enumerated


def offers_for(scenario: Scenario, role: str) -> list[Offer]:
    """Offers a role may use, by the rules of the scenario."""
    rules = getattr(scenario.fleet, role)
    return [
        offer
        for site in scenario.sites
        if rules.sites is None or site.name in rules.sites
        for offer in site.offers
        if (rules.node_types is None or offer.node.id in rules.node_types)
        and offer.node.id not in rules.forbidden_node_types
        and role in offer.roles
        and (site.rack_power_w is None or offer.node.kind == "supernode" or offer.node.power_w <= site.rack_power_w)
        and (offer.max_nodes is None or offer.max_nodes > 0)
    ]


def _types_for(scenario: Scenario, role: str, fleet: Fleet) -> NDArray[np.bool_]:
    allowed = np.zeros(len(fleet.machines), dtype=bool)
    for offer in offers_for(scenario, role):
        allowed[fleet.index[offer.node.id]] = True
    return allowed


def _concatenate(parts: list[Candidates]) -> Candidates:
    def join(name: str) -> NDArray[np.int64]:
        return np.concatenate([getattr(part.layouts, name) for part in parts])

    return Candidates(
        role=np.concatenate([part.role for part in parts]),
        layouts=Layouts(
            machine=join("machine"), tp=join("tp"), pp=join("pp"), ep=join("ep"), attention_dp=join("attention_dp")
        ),
        token_budget=np.concatenate([part.token_budget for part in parts]),
        batch_cap=np.concatenate([part.batch_cap for part in parts]),
    )
