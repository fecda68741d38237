"""Frozen records of everything a plan takes as given: SI units, no optional guesses left.

Files become these records in :mod:`pdplan.catalog.load`; nothing else in pdplan sees YAML.
Each record keeps, per field, where its number comes from (`provenance`), so that reports can trace it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Literal

__all__ = [
    "AcceleratorSpec",
    "Basis",
    "Block",
    "EngineSpec",
    "FamilySpec",
    "Ffn",
    "LinkSpec",
    "Mixer",
    "ModelSpec",
    "NodeSpec",
    "PriceRow",
    "Provenance",
    "Source",
]

Basis = Literal["vendor", "derived", "measured", "estimate"]
"""vendor: maker, provider or its machine-readable list states it; derived: arithmetic on such figures;
measured: somebody's published measurement; estimate: analyst, press, forum or our own judgement."""

_EMPTY: Mapping[str, Provenance] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a figure was read; `checked` is read, listing (third-party copy) or recollection."""

    id: str
    title: str
    publisher: str
    date: str
    checked: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Basis and source id of one field; `note` where the figure needs a word."""

    basis: Basis
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSpec:
    """One accelerator (card), datasheet numbers only: peaks, never efficiencies."""

    id: str
    name: str
    vendor: str
    family: str
    """Key of the efficiency family (catalogs/families)."""
    released: str
    status: str
    hbm_bytes: float
    """Memory as the driver reports it, bytes."""
    hbm_bandwidth_bytes_per_s: float
    dense_flop_per_s: Mapping[str, float]
    """Dense peak by precision: bf16, fp8, int8, fp4. A missing precision is not native."""
    power_w: float
    """Thermal design power of one card."""
    scale_up_bandwidth_bytes_per_s: float
    """One direction, sum over the card's scale-up links."""
    scale_up_domain_cards: int
    architecture: str = ""
    notes: str = ""
    provenance: Mapping[str, Provenance] = field(default_factory=lambda: _EMPTY)

    def peak_flop_per_s(self, precision: str) -> float:
        """Dense peak for `precision`; a format the card lacks runs at the next wider one it has."""
        order = {"fp4": ("fp4", "fp8", "bf16"), "fp8": ("fp8", "bf16"), "int8": ("int8", "bf16"), "int4": ("bf16",)}
        for name in order.get(precision, ("bf16",)):
            if name in self.dense_flop_per_s:
                return self.dense_flop_per_s[name]
        raise KeyError(f"{self.id} has no dense peak for {precision}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """The smallest machine that can be bought or rented: a server, cloud instance or supernode."""

    id: str
    name: str
    provider: str
    kind: str
    """server, instance or supernode."""
    accelerator: str
    cards_per_node: int
    scale_up_domain_cards: int
    """Cards that reach each other at scale-up speed; may exceed cards_per_node (an NVL72 tray)."""
    nic_bandwidth_bytes_per_s_per_card: float
    """Scale-out fabric per card, one direction."""
    power_w: float
    """Whole node under load, everything included."""
    scale_out_link: str = ""
    notes: str = ""
    provenance: Mapping[str, Provenance] = field(default_factory=lambda: _EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """One observed price of one node."""

    id: str
    """Stable: provider/region/node/pricing-model/date."""
    node: str
    provider: str
    region: str
    pricing_model: str
    """on-demand, spot, reserved-1y, reserved-3y, capacity-block, rental-market, ownership, purchase."""
    currency: str
    price_per_node_hour: float | None
    purchase_price: float | None
    date_observed: date
    basis: Basis
    source: str
    tax_included: bool = False
    note: str = ""
    own: bool = False
    """From the user's folder, not the shipped catalog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A kind of link: scale-up, scale-out, front-end or wide-area."""

    id: str
    kind: Literal["scale_up", "scale_out", "front_end", "wide_area"]
    bandwidth_bytes_per_s: float
    """Nominal, one direction, per port / card / wave as `per` says."""
    per: str
    efficiency_frac: float
    """Achieved over nominal for large KV blocks."""
    latency_s: float
    """Fixed one-way latency."""
    latency_s_per_km: float = 0.0
    usd_per_month: float | None = None
    reach_km: float | None = None
    notes: str = ""
    provenance: Mapping[str, Provenance] = field(default_factory=lambda: _EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """The token-mixing half of a layer. Only the fields of its `type` are non-zero.

    gqa covers MHA, MQA and GQA, with `window_tokens` > 0 for sliding or chunked attention;
    mla is DeepSeek's latent attention; the rest keep a fixed state per sequence
    (gated_deltanet, kda, lightning, mamba2); none has no mixer.
    """

    type: Literal["gqa", "mla", "dsv4", "gated_deltanet", "kda", "lightning", "mamba2", "none"]
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    """Value head width where it differs from head_dim; equal otherwise."""
    window_tokens: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    key_heads: int = 0
    key_dim: int = 0
    value_heads: int = 0
    value_dim: int = 0
    state_elements: int = 0
    """Recurrent state per sequence and layer, elements (0 for attention)."""
    kv_elements_per_token: float = 0.0
    """Cache per token and layer, elements (capped at window_tokens tokens where that is set)."""
    parameters: int = 0
    """Weights of one such mixer, norms excluded."""
    extra: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Further architecture numbers (sparse indexer top-k, compression ratio ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ffn:
    """The feed-forward half of a layer. A dense layer has `experts` 0 and `dense_size` > 0."""

    type: Literal["gated", "plain", "moe", "none"]
    dense_size: int = 0
    """Width of a dense FFN, or of a dense branch beside the experts."""
    experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    shared_size: int = 0
    """Total width of the shared experts."""
    gated: bool = True
    latent_size: int = 0
    parameters: int = 0
    """All weights of one such FFN."""
    routed_parameters: int = 0
    """Of which routed experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`count` identical layers."""

    count: int
    mixer: Mixer
    ffn: Ffn


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Architecture of one language model (vision towers left out)."""

    id: str
    name: str
    hf_id: str
    family: str
    released: str
    hidden: int
    vocab: int
    tied_embeddings: bool
    max_context_tokens: int
    blocks: tuple[Block, ...]
    total_parameters: int
    active_parameters: int
    """Used per token, embedding and output head included."""
    embedding_parameters: int
    """Input embedding plus output head (once where tied)."""
    mtp_parameters: int = 0
    mtp_layers: int = 0
    native_precision: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"weights": "bf16"}))
    """As released: weights, attention, experts -> bf16, fp8, fp4, int4 ..."""
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Provenance] = field(default_factory=lambda: _EMPTY)

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return sum(block.count for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """Efficiency constants of an accelerator family; names and meaning in docs/explanation/latency-model.md.

    `constants` holds the keys of section 6.1 of the latency note under their spelled-out names.
    """

    id: str
    version: str
    fitted_on: str
    confidence: Literal["fitted", "transferred", "op-tables", "guess"]
    constants: Mapping[str, float]
    provenance: Mapping[str, Provenance] = field(default_factory=lambda: _EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """A serving engine: fitted constants plus the rules its layouts obey."""

    id: str
    name: str
    version: str
    confidence: Literal["fitted", "transferred", "op-tables", "guess"]
    constants: Mapping[str, float]
    equal_tp: bool = False
    """Prefill and decode replicas must have the same tensor-parallel width."""
    prefill_tp_at_most_decode_tp: bool = False
    allowed_tp: tuple[int, ...] = ()
    allowed_ep: tuple[int, ...] = ()
    expert_parallel_across_domain: bool = True
    """Whether an expert-parallel group may span scale-up domains."""
    max_batch_per_rank: int = 0
    """Largest admitted sequences per attention rank; 0 is no limit of the engine."""
    prefill_token_budget: int = 8192
    vendors: tuple[str, ...] = ()
    """Accelerator vendors it runs on; empty is all."""
    provenance: Mapping[str, Provenance] = field(default_factory=lambda: _EMPTY)
