"""Our parameter counts beside the publishers' figures, for every model of a catalog."""

from __future__ import annotations

from dataclasses import dataclass

from pdplan.catalog.load import Catalog
from pdplan.catalog.specs import ModelSpec

__all__ = ["CONVENTIONS", "Comparison", "active_in", "compare_with_published"]

CONVENTIONS = {
    "active_params": "everything a token uses, embedding and output head included",
    "active_params_no_input_embedding": "without the input embedding (where it is not tied to the head)",
    "active_params_no_embeddings": "without input embedding and output head",
}
"""What publishers mean by active parameters; a model file names the one its publisher follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One model: counted and published, in billions, with the relative difference of the counted one."""

    id: str
    total_b: float
    published_total_b: float | None
    total_error: float | None
    active_b: float | None
    published_active_b: float | None
    active_error: float | None
    convention: str
    accepted: str
    """Why a larger difference is accepted, as the model file says; empty where none is."""


def active_in(model: ModelSpec, convention: str) -> int:
    """Active parameters as one of :data:`CONVENTIONS` counts them."""
    head = model.vocab * model.hidden
    if convention == "active_params_no_input_embedding":
        return model.active_parameters - (0 if model.tied_embeddings else head)
    if convention == "active_params_no_embeddings":
        return model.active_parameters - model.embedding_parameters
    return model.active_parameters


def compare_with_published(catalog: Catalog) -> list[Comparison]:
    """Every model of the catalog against its publisher's figures."""
    rows = []
    for entry in catalog.ids("models"):
        model, data = catalog.model(entry), catalog.raw("models", entry)
        figures = data.get("published") or {}
        total = model.total_parameters + (model.mtp_parameters if figures.get("includes_mtp") else 0)
        told, told_active = figures.get("total_params_b"), figures.get("active_params_b")
        convention = data.get("published_active_fits") or "active_params"
        active = active_in(model, convention) if told_active else None
        rows.append(
            Comparison(
                id=entry,
                total_b=total / 1e9,
                published_total_b=told,
                total_error=total / (told * 1e9) - 1 if told else None,
                active_b=active / 1e9 if active else None,
                published_active_b=told_active,
                active_error=active / (told_active * 1e9) - 1 if active and told_active else None,
                convention=convention if told_active else "",
                accepted=str(data.get("accepted_difference") or ""),
            )
        )
    return rows
