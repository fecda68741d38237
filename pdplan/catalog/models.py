"""Model files: groups of identical layers with their mixers and feed-forward halves."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pdplan.catalog.parameters import ffn_of, mixer_of
from pdplan.catalog.specs import Block, Ffn, Mixer, ModelSpec, Provenance

if TYPE_CHECKING:
    from pdplan.catalog.reader import Reader

__all__ = ["build_model", "model_of"]


def model_of(r: Reader) -> ModelSpec:
    """A model from its catalog file; faults are collected in the reader."""
    data = r.data
    for key in (
        "mixers",
        "ffns",
        "blocks",
        "published",
        "published_active_fits",
        "source",
        "mtp",
        "native_precision",
        "extra_params",
        "extra_per_layer",
        "norms_per_layer",
        "norm_bias",
        "final_norm",
        "accepted_difference",
    ):
        r.seen.add(key)
    sources = data.get("source") or ["recollection"]
    provenance = {
        "architecture": Provenance(basis="vendor", source=str(sources[0])),
        "parameters": Provenance(basis="derived", source=str(sources[0]), note=_published(data.get("published"))),
    }
    hidden = r.integer("hidden")
    base: dict[str, Any] = {
        "id": r.text("id"),
        "name": r.text("name"),
        "hf_id": r.text("hf_id"),
        "family": r.text("family"),
        "released": r.text("released"),
        "vocab": r.integer("vocab"),
        "tied_embeddings": r.flag("tied_embeddings"),
        "max_context_tokens": r.integer("max_context_tokens"),
    }
    try:
        return build_model(data, hidden=hidden, provenance=provenance, **base)
    except (KeyError, TypeError, AttributeError) as fault:
        r.faults.append(f"{r.path}: blocks, mixers or ffns: {fault!r} is missing or of the wrong kind")
    except ValueError as fault:
        r.faults.append(f"{r.path}: {fault}")
    return build_model({"blocks": [], "mixers": {}, "ffns": {}}, hidden=hidden, provenance=provenance, **base)


def _published(figures: Any) -> str:
    """The publisher's figures, for comparison with our count."""
    if not isinstance(figures, dict) or figures.get("total_params_b") is None:
        return "counted from the architecture; the publisher gives no figure"
    active = figures.get("active_params_b")
    told = f"{figures['total_params_b']:g}" + (f" and {active:g} active" if active is not None else "")
    return f"counted from the architecture; the publisher says {told} billion"


def build_model(data: Any, *, hidden: int, provenance: Any, **base: Any) -> ModelSpec:
    """Assemble a model from blocks and count its parameters.

    `total_parameters` covers the language model with embeddings, without vision towers and without
    multi-token-prediction layers (`mtp_parameters`); `active_parameters` leaves out the routed
    experts a token does not use.

    Raises
    ------
    ValueError, KeyError
        A block that cannot be built.
    """
    mixers: dict[str, Mixer] = {name: mixer_of(spec, hidden) for name, spec in data["mixers"].items()}
    ffns: dict[str, Ffn] = {name: ffn_of(spec, hidden) for name, spec in data["ffns"].items()}
    blocks = tuple(
        Block(count=entry["count"], mixer=mixers[entry["mixer"]], ffn=ffns[entry["ffn"]]) for entry in data["blocks"]
    )
    table = base["vocab"] * hidden
    embedding = table if base["tied_embeddings"] else 2 * table
    norm = hidden * (2 if data.get("norm_bias") else 1)
    total = embedding + data.get("extra_params", 0) + (norm if data.get("final_norm", True) else 0)
    idle = 0.0
    for entry, block in zip(data["blocks"], blocks, strict=True):
        norms = entry.get("norms", data.get("norms_per_layer", 2)) * norm + data.get("extra_per_layer", 0)
        total += block.count * (block.mixer.parameters + block.ffn.parameters + norms)
        if block.ffn.experts:
            idle += block.count * block.ffn.routed_parameters * (1 - block.ffn.top_k / block.ffn.experts)
    mtp_parameters = mtp_layers = 0
    if mtp := data.get("mtp"):
        mtp_layers = mtp["count"]
        layer = mixers[mtp["mixer"]].parameters + ffns[mtp["ffn"]].parameters
        mtp_parameters = mtp_layers * (layer + 2 * hidden * hidden + 5 * hidden)
    notes = data.get("notes") or ()
    return ModelSpec(
        hidden=hidden,
        blocks=blocks,
        total_parameters=int(total),
        active_parameters=int(total - idle),
        embedding_parameters=embedding,
        mtp_parameters=mtp_parameters,
        mtp_layers=mtp_layers,
        native_precision=MappingProxyType(dict(data.get("native_precision") or {"weights": "bf16"})),
        notes=(notes,) if isinstance(notes, str) else tuple(notes),
        provenance=provenance,
        **base,
    )
