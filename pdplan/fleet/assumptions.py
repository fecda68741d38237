"""What a plan rests on, figure by figure, with basis and source."""

from __future__ import annotations

from pdplan.fleet.plan import Assumption
from pdplan.scenario.resolve import Scenario

__all__ = ["assumptions_of", "sources_of"]


def assumptions_of(scenario: Scenario) -> tuple[Assumption, ...]:
    """Figures of the catalog and choices of the model that this scenario uses."""
    lines: list[Assumption] = []

    def tell(name: str, value: str, basis: str, source: str) -> None:
        lines.append(Assumption(name=name, value=value, basis=basis, source=source))

    model, mix = scenario.model, scenario.mix
    tell(
        "model",
        f"{model.name}: {model.total_parameters / 1e9:.1f} B parameters, {model.active_parameters / 1e9:.1f} B active, "
        f"{model.layers} layers; {scenario.weights} weights, {scenario.attention_weights} attention, {scenario.kv_cache} KV cache",
        "derived",
        ", ".join(sorted({p.source for p in model.provenance.values()})) or "config.json",
    )
    tell(
        "mean request",
        f"{float(mix.mean(mix.input_tokens)):.0f} tokens in, of which {float(mix.mean(mix.cached_tokens)):.0f} "
        f"cached, {float(mix.mean(mix.output_tokens)):.0f} out; longest {float((mix.input_tokens + mix.output_tokens).max()):.0f}",
        "measured" if isinstance(scenario.given["workload"].get("lengths"), str) else "given",
        f"workload {scenario.given['workload'].get('lengths')!s:.80}",
    )
    tell(
        "arrivals",
        f"{scenario.rate_req_per_s:g} req/s, squared coefficient of variation of the gaps {scenario.arrival_cv2:g}",
        "given",
        "scenario",
    )
    engine = scenario.engine
    tell(
        "serving engine",
        f"{engine.name}, constants version {engine.version}, confidence: {engine.confidence}",
        "estimate" if engine.confidence != "fitted" else "measured",
        f"catalogs/engines/{engine.id}.yaml",
    )
    seen: set[str] = set()
    for site in scenario.sites:
        for offer in site.offers:
            if offer.accelerator.id not in seen:
                seen.add(offer.accelerator.id)
                card, family = offer.accelerator, offer.family
                for field, value in (
                    ("hbm", f"{card.hbm_bytes / 1e9:.4g} GB"),
                    ("hbm_bandwidth", f"{card.hbm_bandwidth_bytes_per_s / 1e12:.4g} TB/s"),
                    (f"dense.{scenario.weights}", f"{card.peak_flop_per_s(scenario.weights) / 1e12:.5g} TFLOP/s"),
                ):
                    known = card.provenance.get(field)
                    tell(
                        f"{card.name} {field}",
                        value,
                        known.basis if known else "derived",
                        known.source if known else "next wider format the card has",
                    )
                tell(
                    f"{card.name} efficiency",
                    f"family {family.id}, version {family.version}, confidence: {family.confidence}",
                    "measured" if family.confidence == "fitted" else "estimate",
                    family.fitted_on,
                )
            row = offer.price_row
            tell(
                f"price of {offer.node.id} at {site.name}",
                f"{offer.usd_per_node_hour:.4f} USD per node and hour: {offer.price_basis}",
                row.basis if row else "given",
                f"{row.source} ({row.id})" if row else "scenario",
            )
            power = offer.node.provenance.get("power")
            tell(
                f"power of {offer.node.id}",
                f"{offer.node.power_w / 1e3:.4g} kW per node",
                power.basis if power else "estimate",
                power.source if power else "catalog",
            )
    for link in scenario.links:
        tell(
            f"link {link.site_a}-{link.site_b}",
            f"{link.distance_km:g} km, {link.one_way_s * 1e3:.3g} ms one way at 4.9 us/km, "
            f"{link.usable_frac:.0%} of {link.unit_bandwidth_bytes_per_s * 8 / 1e9:g} Gb/s per unit usable",
            "given",
            "scenario; ITU-T G.652",
        )
    tell(
        "roles",
        "a node serves one role; replicas are filled evenly; prefill is first come, first served",
        "given",
        "docs",
    )
    return tuple(lines)


def sources_of(scenario: Scenario) -> tuple[str, ...]:
    """Ids of every source behind the figures used."""
    found = {p.source for p in scenario.model.provenance.values()}
    for site in scenario.sites:
        for offer in site.offers:
            for record in (offer.accelerator, offer.node, offer.family):
                found |= {p.source for p in record.provenance.values()}
            if offer.price_row:
                found.add(offer.price_row.source)
    found |= {p.source for p in scenario.engine.provenance.values()}
    return tuple(sorted(found))
