"""Efficiency constants as arrays per candidate layout, and the constants that no family or engine owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdplan.catalog.specs import EngineSpec
from pdplan.errors import InputError, unknown_name
from pdplan.perf.layout import Machine

__all__ = [
    "ENGINE_DEFAULTS",
    "GENERAL",
    "WEIGHT_BYTES",
    "Hardware",
    "domain_cards",
    "engine_constants",
    "hardware_of",
    "native_precision",
    "split_overrides",
]

Floats = NDArray[np.float64]

GENERAL: Mapping[str, float] = {
    # Fitted with the family constants on the same rows (pdplan latency model, section 6).
    "expert_imbalance": 1.2817,
    "expert_correlation": 0.92203,
    "elementwise_passes": 11.044,
    "prefill_factor": 1.0932,
    "hot_rank_factor": 0.95886,
    "draft_layer_cost": 1.6236,
    "transfer_latency_s": 0.025992,
    "transfer_efficiency": 0.5,
    "poll_weight": 1.1148,
    "queue_weight": 0.80018,
    "prefill_interleave": 0.8438,
    "a2a_latency_floor_us": 30.0,
    "dense_latency_factor": 0.64055,
    "gqa_latency_factor": 0.78131,
    "indexer_latency_factor": 6.5669,
    "dense_collective_factor": 0.68213,
    "memory_usable_frac": 0.94,
    "memory_reserve_bytes": 3.0e9,
}
"""Constants shared by all families and engines; any can be overridden as ``general.<name>``."""

ENGINE_DEFAULTS: Mapping[str, float] = {
    "host_latency_us": 400.0,
    "per_sequence_latency_us": 15.0,
    "all_to_all_latency_us": 35.0,
    "request_overhead_ms": 60.0,
    "prefill_time_factor": 1.0,
    "first_token_steps": 1.5,
    "poll_interval_steps": 0.0,
    "draft_acceptance_frac": 0.7,
    "eager_layer_latency_us": 0.0,
    "exchange_overlap_frac": 0.0,
    "expert_imbalance_factor": 1.0,
    "launch_factor": 1.0,
    "collective_latency_factor": 1.0,
}
"""What an engine file may leave out: nominal values, and 0 for behaviour most engines lack."""

WEIGHT_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.5625}
"""Bytes per weight, block scales included: 4-bit formats carry one 8-bit scale per 16 weights."""

_WIDER = {"fp4": ("fp4", "fp8", "bf16"), "fp8": ("fp8", "bf16"), "int8": ("int8", "bf16"), "int4": ("bf16",)}
_SCALE = {"_us": 1e-6, "_ns": 1e-9, "_ms": 1e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Datasheet numbers and family constants gathered per candidate; every array is (C,)."""

    peak_flop_per_s: Mapping[str, Floats]
    """By precision; a format the card lacks runs at the next wider one."""
    efficiency: Mapping[str, Floats]
    """Compute efficiency of large GEMMs by precision (of the format it really runs at)."""
    moe_efficiency: Mapping[str, Floats]
    moe_latency_s: Mapping[str, Floats]
    hbm_bytes: Floats
    hbm_bandwidth: Floats
    link_bandwidth: Floats
    nic_bandwidth: Floats
    domain: Floats
    constant: Mapping[str, Floats]
    """Family constants by catalog name, times converted to seconds."""


def in_si(name: str, value: float) -> float:
    """A constant in SI units, by the unit its name ends in."""
    return value * _SCALE.get(name[-3:], 1.0)


def native_precision(machine: Machine, precision: str) -> str:
    """Format a card really computes in: the next wider one where it lacks `precision`."""
    for name in _WIDER.get(precision, ("bf16",)):
        if name in machine.accelerator.dense_flop_per_s:
            return name
    return "bf16"


def hardware_of(
    machines: Sequence[Machine],
    index: NDArray[np.int64],
    overrides: Mapping[str, float],
    *,
    launch_factor: float = 1.0,
    collective_latency_factor: float = 1.0,
) -> Hardware:
    """Gather the numbers of each candidate's machine.

    Parameters
    ----------
    machines : sequence of Machine
        Node types with their accelerators and families.
    index : ndarray of int, shape (C,)
        Machine of each candidate.
    overrides : mapping
        Family constants by name that replace the catalog's.
    launch_factor, collective_latency_factor : float
        The engine's fixed latencies of kernels and of all-reduces over the family's.
    """

    def gather(values: list[float]) -> Floats:
        return np.asarray(values, dtype=np.float64)[index]

    def constant(machine: Machine, name: str) -> float:
        value = in_si(name, overrides.get(name, machine.family.constants[name]))
        if name == "all_reduce_latency_us":
            return value * collective_latency_factor
        return value * launch_factor if "latency" in name else value

    names = [name for machine in machines[:1] for name in machine.family.constants]
    peaks, eff, moe, moe_latency = {}, {}, {}, {}
    for precision in WEIGHT_BYTES:
        native = [native_precision(machine, precision) for machine in machines]
        peaks[precision] = gather([m.accelerator.dense_flop_per_s[n] for m, n in zip(machines, native, strict=True)])
        key = {"bf16": "bf16", "fp8": "fp8", "int8": "fp8", "fp4": "fp4"}
        eff[precision] = gather(
            [constant(m, f"compute_efficiency_{key[n]}") for m, n in zip(machines, native, strict=True)]
        )
        # 4-bit expert kernels are their own kernels, also where the card computes in a wider format
        fp4 = precision == "fp4"
        moe[precision] = gather(
            [constant(m, "moe_compute_efficiency_fp4" if fp4 else "moe_compute_efficiency") for m in machines]
        )
        moe_latency[precision] = gather(
            [constant(m, "moe_latency_fp4_us" if fp4 else "moe_latency_us") for m in machines]
        )
    return Hardware(
        peak_flop_per_s=peaks,
        efficiency=eff,
        moe_efficiency=moe,
        moe_latency_s=moe_latency,
        hbm_bytes=gather([m.accelerator.hbm_bytes for m in machines]),
        hbm_bandwidth=gather([m.accelerator.hbm_bandwidth_bytes_per_s for m in machines]),
        link_bandwidth=gather([m.accelerator.scale_up_bandwidth_bytes_per_s for m in machines]),
        nic_bandwidth=gather([m.node.nic_bandwidth_bytes_per_s_per_card for m in machines]),
        domain=gather([float(domain_cards(m)) for m in machines]),
        constant={name: gather([constant(m, name) for m in machines]) for name in names},
    )


def domain_cards(machine: Machine) -> int:
    """Cards that exchange data at `scale_up_bandwidth`; without a scale-up fabric, the cards on one host's PCIe."""
    cards = machine.node.scale_up_domain_cards
    return cards if cards > 1 else max(machine.node.cards_per_node, 1)


def engine_constants(engine: EngineSpec, overrides: Mapping[str, float]) -> dict[str, float]:
    """Engine constants in SI units under their catalog names, overrides applied."""
    names = {**ENGINE_DEFAULTS, **engine.constants}
    return {name: in_si(name, overrides.get(name, value)) for name, value in names.items()}


def split_overrides(
    overrides: Mapping[str, float], machines: Sequence[Machine], engine: EngineSpec
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Overrides by owner: family, engine, general.

    Raises
    ------
    InputError
        A name that no catalog knows, or a value that is not a positive number (an efficiency: at most 1).
    """
    known = {
        "family": set(machines[0].family.constants) if machines else set(),
        "engine": {*ENGINE_DEFAULTS, *engine.constants},
        "general": set(GENERAL),
    }
    parts: dict[str, dict[str, float]] = {"family": {}, "engine": {}, "general": {}}
    faults: list[str] = []
    for key, value in overrides.items():
        owner, _, name = key.partition(".")
        if owner not in parts or name not in known[owner]:
            every = [f"{o}.{n}" for o, names in known.items() for n in names]
            faults.append(f"latency_overrides: {unknown_name('constant', key, every)}")
        elif not (0 <= value < float("inf")) or (owner == "family" and "efficiency" in name and not 0 < value <= 1):
            accepted = "above 0 and at most 1" if "efficiency" in name else "a finite number of at least 0"
            faults.append(f"latency_overrides: {key}: {value!r} is not accepted; {accepted} is expected")
        else:
            parts[owner][name] = value
    if faults:
        raise InputError(*faults)
    return parts["family"], parts["engine"], parts["general"]
