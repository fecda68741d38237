"""Scenario plus catalog -> :class:`Scenario`: every name looked up, every price chosen, nothing optional left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdplan.catalog.load import Catalog
from pdplan.catalog.models import model_of
from pdplan.catalog.reader import Reader
from pdplan.catalog.specs import AcceleratorSpec, EngineSpec, FamilySpec, ModelSpec, NodeSpec, PriceRow
from pdplan.errors import InputError, unknown_name
from pdplan.scenario.load import LoadedScenario
from pdplan.scenario.schema import (
    CurrentFile,
    FleetFile,
    NodeFile,
    PinnedFile,
    PriceChoice,
    ScenarioFile,
    SiteFile,
    percentile_of,
)
from pdplan.units import HOURS_PER_MONTH, HOURS_PER_YEAR
from pdplan.workload.lengths import mix_from_spec
from pdplan.workload.mix import RequestMix

if TYPE_CHECKING:
    from pdplan.catalog.profile import Profile

__all__ = ["Offer", "Scenario", "Site", "SiteLink", "Target", "annuity_usd_per_hour", "resolve"]

FIBRE_S_PER_KM = 4.9e-6
"""One-way propagation in single-mode fibre: group index 1.468 over the speed of light (ITU-T G.652)."""

ROLES = ("prefill", "decode", "colocated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One latency target."""

    metric: str
    """ttft_s or tpot_s."""
    percentile: float
    limit_s: float

    @property
    def label(self) -> str:
        """For messages, e.g. ``p90``."""
        return f"p{self.percentile:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Nodes of one type at one site with the price that was chosen for them."""

    site: str
    node: NodeSpec
    accelerator: AcceleratorSpec
    family: FamilySpec
    roles: tuple[str, ...]
    max_nodes: int | None
    min_nodes: int
    lot_nodes: int
    owned_nodes: int
    owned_usd_per_node_hour: float
    usd_per_node_hour: float
    """Everything included."""
    price_basis: str
    """In words: which row or which figure of the user, and how it became an hourly cost."""
    price_row: PriceRow | None
    """The catalog row behind it, if one was used."""
    rent_usd_per_node_hour: float | None = None
    """Price of further nodes by the hour; None where none can be rented."""
    max_rented_nodes: int | None = None
    carbon_kg_per_node_hour: float = 0.0
    """At full load, PUE included; 0 where the site gives no figure for its grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A data centre."""

    name: str
    offers: tuple[Offer, ...]
    max_power_w: float | None
    max_cards: int | None
    rack_power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """An operating state: a level of the day's curve, or a loss at the peak."""

    id: str
    rate_req_per_s: float
    hours_per_year: float
    """0 must only be survived."""
    lost_site: str = ""
    lost_nodes: tuple[str, str, int] | None = None
    """Site, node type, count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """Fibre between two sites."""

    site_a: str
    site_b: str
    distance_km: float
    one_way_s: float
    unit_bandwidth_bytes_per_s: float
    min_units: int
    max_units: int
    usd_per_unit_hour: float
    usable_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A planning question with every name resolved."""

    name: str
    given: Mapping[str, Any]
    model: ModelSpec
    engine: EngineSpec
    weights: str
    attention_weights: str
    kv_cache: str
    draft_tokens: int
    acceptance_frac: float | None
    mix: RequestMix
    rate_req_per_s: float
    """Design rate: the mean rate times the peak multiplier and the largest value of the day's curve."""
    mean_rate_req_per_s: float
    """Over the day; what is billed per token."""
    periods: tuple[Period, ...]
    """The design rate first, then lower levels of the day, then losses."""
    arrival_cv2: float
    targets: tuple[Target, ...]
    confidence: float | None
    """Chance with which the targets shall hold; None holds the predictions themselves against them."""
    sites: tuple[Site, ...]
    links: tuple[SiteLink, ...]
    fleet: FleetFile
    objective: str
    solver_name: str
    time_limit_s: float
    gap: float
    latency_overrides: Mapping[str, float]
    warnings: tuple[str, ...]
    catalog_digest: str
    max_price_age_days: int = 365
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """What the scenario's own files said (model architecture, lengths of a trace), so that a plan file stands alone."""

    def ttft_targets(self) -> tuple[Target, ...]:
        """Targets on time to first token."""
        return tuple(target for target in self.targets if target.metric == "ttft_s")

    def tpot_targets(self) -> tuple[Target, ...]:
        """Targets on time per output token."""
        return tuple(target for target in self.targets if target.metric == "tpot_s")


def annuity_usd_per_hour(purchase_usd: float, *, years: float, interest_per_year_frac: float) -> float:
    r"""Hourly cost of a purchase paid off in equal instalments.

    .. math:: a = P \, r / (1 - (1 + r)^{-n}) / 8760

    Parameters
    ----------
    purchase_usd : float
        :math:`P`. [USD]
    years : float
        :math:`n`. [year]
    interest_per_year_frac : float
        :math:`r`; 0 is straight-line.

    Examples
    --------
    >>> round(annuity_usd_per_hour(8760 * 5, years=5, interest_per_year_frac=0.0), 6)
    1.0
    """
    if interest_per_year_frac == 0.0:
        return purchase_usd / years / HOURS_PER_YEAR
    r = interest_per_year_frac
    return purchase_usd * r / (1.0 - float((1.0 + r) ** -years)) / HOURS_PER_YEAR


def resolve(loaded: LoadedScenario, catalog: Catalog, *, inputs: Mapping[str, Any] | None = None) -> Scenario:
    """Look up every name of a scenario and check what only the catalog can tell.

    `inputs` stands for the scenario's own files where they are not at hand (a plan read back elsewhere).

    Raises
    ------
    InputError
        All faults at once, one sentence each.
    """
    file, name = loaded.file, loaded.name
    faults: list[str] = []

    def attempt(field: str, get: Callable[[], Any]) -> Any:
        try:
            return get()
        except InputError as fault:
            faults.extend(f"{name}: {field}: {sentence}" for sentence in fault.faults)
        except ValueError as fault:
            faults.append(f"{name}: {field}: {fault}")
        return None

    kept = dict(inputs or {})
    profile = attempt("profile", lambda: _profile(file.profile, loaded.folder, kept))
    if profile is not None:
        catalog = attempt("profile", lambda: profile.over(catalog)) or catalog
    model = attempt("model", lambda: _model(file.model, loaded.folder, catalog, kept))
    engine = attempt("engine", lambda: catalog.engine(file.engine))
    lengths = kept.get("lengths", file.workload.lengths)
    remarks: list[str] = []
    mix = attempt(
        "workload.lengths",
        lambda: mix_from_spec(
            lengths,
            catalog=catalog,
            folder=loaded.folder,
            prefix_hit_frac=file.workload.prefix_hit_frac,
            remarks=remarks,
        ),
    )
    if mix is not None and isinstance(lengths, dict) and "trace" in lengths:
        rows = zip(mix.input_tokens.tolist(), mix.output_tokens.tolist(), mix.weight.tolist(), strict=True)
        kept["lengths"] = {"joint": [list(row) for row in rows]}
    if model is not None and mix is not None:
        longest = float((mix.input_tokens + mix.output_tokens).max())
        if longest > model.max_context_tokens:
            faults.append(
                f"{name}: workload.lengths: the longest request has {longest:.0f} tokens (input + output); "
                f"{model.id} accepts at most {model.max_context_tokens}"
            )
    sites, warnings = _sites(file, name, catalog, faults)
    links = _links(file, name, faults)
    _check_roles(file, name, faults)
    if faults:
        raise InputError(*dict.fromkeys(faults))
    arrivals, periods = file.workload.arrivals, _periods(file)
    weights = file.precision.weights or model.native_precision.get("weights", "bf16")
    attention = file.precision.attention or (
        model.native_precision.get("attention", weights)
        if file.precision.weights is None or file.precision.weights == model.native_precision.get("weights")
        else weights
    )
    return Scenario(
        name=file.name,
        given=loaded.given,
        model=model,
        engine=engine,
        weights=weights,
        attention_weights=attention,
        kv_cache=file.precision.kv_cache or ("fp8" if weights in ("fp8", "fp4") else "bf16"),
        draft_tokens=file.speculation.draft_tokens if file.speculation else 0,
        acceptance_frac=file.speculation.acceptance_frac if file.speculation else None,
        mix=mix,
        rate_req_per_s=periods[0].rate_req_per_s,
        mean_rate_req_per_s=sum(p.rate_req_per_s * p.hours_per_year for p in periods) / HOURS_PER_YEAR,
        periods=periods,
        arrival_cv2=1.0 if arrivals == "poisson" else arrivals.cv**2,
        targets=tuple(
            Target(metric=metric, percentile=percentile_of(key), limit_s=limit)
            for metric, table in (("ttft_s", file.slo.ttft_s), ("tpot_s", file.slo.tpot_s))
            for key, limit in sorted(table.items(), key=lambda item: percentile_of(item[0]))
        ),
        confidence=file.confidence,
        sites=sites,
        links=links,
        fleet=file.fleet,
        objective=file.objective,
        solver_name=file.solver.name,
        time_limit_s=file.solver.time_limit_s,
        gap=file.solver.gap,
        latency_overrides={**(profile.overrides() if profile else {}), **file.latency_overrides},
        warnings=(*remarks, *warnings),
        catalog_digest=catalog.digest(),
        max_price_age_days=file.finance.max_price_age_days,
        inputs=kept,
    )


def _periods(file: ScenarioFile) -> tuple[Period, ...]:
    """Levels of the day's curve, equal ones together, highest first, then what must be survived at the highest."""
    workload = file.workload
    rate, curve = workload.rate_req_per_s * workload.peak_multiplier, workload.day_curve or [1.0]
    share = HOURS_PER_YEAR / len(curve)
    levels = sorted(set(curve), reverse=True)
    periods = [
        Period(
            id="design" if len(levels) == 1 else f"{level:g} x rate",
            rate_req_per_s=rate * level,
            hours_per_year=share * curve.count(level),
        )
        for level in levels
    ]
    for loss in file.fleet.survive:
        nodes = loss.lose_nodes
        what = f"site {loss.lose_site}" if nodes is None else f"{nodes.nodes} x {nodes.type} at {nodes.site}"
        periods.append(
            Period(
                id=f"without {what}",
                rate_req_per_s=rate * levels[0] * loss.rate_frac,
                hours_per_year=0.0,
                lost_site=loss.lose_site or "",
                lost_nodes=(nodes.site, nodes.type, nodes.nodes) if nodes else None,
            )
        )
    return tuple(periods)


def _profile(name: str | None, folder: Path, kept: dict[str, Any]) -> Profile | None:
    """The profile of the scenario, if any; what its file said goes into `kept`."""
    from pdplan.catalog.profile import profile_from_data, read_profile

    if "profile" in kept:
        return profile_from_data(kept["profile"], name="plan.json: inputs.profile")
    if name is None:
        return None
    profile = read_profile(Path(name) if Path(name).is_absolute() else folder / name)
    kept["profile"] = profile.data()
    return profile


def _model(name: str, folder: Path, catalog: Catalog, kept: dict[str, Any]) -> ModelSpec:
    """A model by id or from a config.json beside the scenario; what a config said goes into `kept`."""
    if "model" in kept:
        reader = Reader(Path("plan.json: inputs.model"), kept["model"])
        model = model_of(reader)
        reader.done()
        return model
    if not (name.endswith(".json") or "/" in name or name.startswith(".")):
        return catalog.model(name)
    path = Path(name) if Path(name).is_absolute() else folder / name
    model = catalog.model(str(path))
    from pdplan.catalog.hf_config import description_of

    kept["model"] = description_of(path)
    return model


def _sites(file: ScenarioFile, name: str, catalog: Catalog, faults: list[str]) -> tuple[tuple[Site, ...], list[str]]:
    sites: list[Site] = []
    warnings: list[str] = []
    names = [site.name for site in file.sites]
    for repeated in sorted({n for n in names if names.count(n) > 1}):
        faults.append(f"{name}: sites: {repeated!r} is given twice; site names must differ")
    for i, site in enumerate(file.sites):
        offers: list[Offer] = []
        seen: set[str] = set()
        for j, entry in enumerate(site.nodes):
            node_file = NodeFile(type=entry) if isinstance(entry, str) else entry
            where = f"{name}: sites.{i}.nodes.{j}"
            if node_file.type in seen:
                faults.append(f"{where}: {node_file.type!r} is listed twice at {site.name}; merge the two entries")
                continue
            seen.add(node_file.type)
            try:
                offers.append(_offer(file, site, node_file, catalog, where, warnings))
            except InputError as fault:
                faults.extend(s if s.startswith(name) else f"{where}: {s}" for s in fault.faults)
        if offers and all(offer.max_nodes == 0 for offer in offers):
            faults.append(
                f"{name}: sites.{i}: the inventory of {site.name} is empty (max_nodes is 0 for every type); "
                f"raise one or leave the site out"
            )
        sites.append(
            Site(
                name=site.name,
                offers=tuple(offers),
                max_power_w=site.max_power,
                max_cards=site.max_cards,
                rack_power_w=site.rack_power,
            )
        )
    return tuple(sites), warnings


def _offer(
    file: ScenarioFile, site: SiteFile, entry: NodeFile, catalog: Catalog, where: str, warnings: list[str]
) -> Offer:
    node = catalog.node(entry.type)
    accelerator = catalog.accelerator(node.accelerator)
    if entry.max_nodes is not None and entry.owned_nodes > entry.max_nodes:
        raise InputError(f"{where}: owned_nodes {entry.owned_nodes} is more than max_nodes {entry.max_nodes}")
    row: PriceRow | None = None
    finance = file.finance
    if entry.usd_per_node_hour is not None:
        price, basis = entry.usd_per_node_hour, "given in the scenario"
    elif entry.purchase_usd_per_node is not None:
        price, basis = _owned_cost(entry.purchase_usd_per_node, node, site, file)
        basis = f"purchase at {entry.purchase_usd_per_node:,.0f} USD given in the scenario; {basis}"
    else:
        row = _choose_price(catalog, node.id, entry.price or file.pricing, where)
        if row.currency != "USD":
            raise InputError(
                f"{where}: the price row {row.id} is in {row.currency}; give usd_per_node_hour, converted at your rate"
            )
        if row.tax_included:
            warnings.append(f"price {row.id} includes tax, others do not")
        if row.price_per_node_hour is not None:
            price = row.price_per_node_hour
            basis = (
                f"{row.pricing_model} price of {row.provider}, {row.region or 'any region'}, seen {row.date_observed}"
            )
        else:
            assert row.purchase_price is not None
            price, basis = _owned_cost(row.purchase_price, node, site, file)
            basis = f"purchase at {row.purchase_price:,.0f} USD, seen {row.date_observed}; {basis}"
        as_of = date.fromisoformat(finance.as_of) if finance.as_of else catalog.newest_price_date()
        age = (as_of - row.date_observed).days
        basis += f" ({age} days before {as_of})"
        if age > finance.max_price_age_days:
            warnings.append(f"price {row.id} is {age} days old on {as_of} (more than {finance.max_price_age_days})")
    return Offer(
        site=site.name,
        node=node,
        accelerator=accelerator,
        family=catalog.family(accelerator.family),
        roles=tuple(entry.roles or ROLES),
        max_nodes=entry.max_nodes,
        min_nodes=entry.min_nodes,
        lot_nodes=entry.lot_nodes,
        owned_nodes=entry.owned_nodes,
        owned_usd_per_node_hour=entry.owned_usd_per_node_hour,
        usd_per_node_hour=price,
        price_basis=basis,
        price_row=row,
        rent_usd_per_node_hour=entry.rent_usd_per_node_hour,
        max_rented_nodes=entry.max_rented_nodes,
        carbon_kg_per_node_hour=node.power_w / 1e3 * (site.pue or 1.0) * (site.grid_co2_kg_per_kwh or 0.0),
    )


def _owned_cost(purchase_usd: float, node: NodeSpec, site: SiteFile, file: ScenarioFile) -> tuple[float, str]:
    """Annuity plus metered energy at full load."""
    finance = file.finance
    capital = annuity_usd_per_hour(
        purchase_usd, years=finance.amortisation_years, interest_per_year_frac=finance.capital_cost_per_year_frac
    )
    tariff, pue = site.electricity_usd_per_kwh or 0.0, site.pue or 1.0
    energy = node.power_w / 1000.0 * pue * tariff
    words = f"annuity over {finance.amortisation_years:g} years at {finance.capital_cost_per_year_frac:.0%}"
    words += f", energy at {tariff:g} USD/kWh and PUE {pue:g}" if tariff else ", energy not counted (no tariff given)"
    return capital + energy, words


def _choose_price(catalog: Catalog, node_id: str, choice: PriceChoice, where: str) -> PriceRow:
    """Newest row per provider and region among those that match (the user's own first); of these the cheapest."""
    rows = catalog.price_rows(node_id)
    matching = [
        row
        for row in rows
        if (choice.pricing_model == "any" or row.pricing_model == choice.pricing_model)
        and (choice.provider is None or row.provider == choice.provider)
        and (choice.region is None or row.region == choice.region)
        and (row.price_per_node_hour is not None or row.purchase_price is not None)
    ]
    if not matching:
        kinds = sorted({row.pricing_model for row in rows})
        have = f"the catalog has {', '.join(kinds)} rows for it" if kinds else "the catalog has no price row for it"
        asked = (
            choice.pricing_model
            + (f" of {choice.provider}" if choice.provider else "")
            + (f" in {choice.region}" if choice.region else "")
        )
        raise InputError(
            f"{where}: node {node_id!r} has no {asked} price ({have}); give usd_per_node_hour, or choose a price "
            f"with price: {{pricing_model: ...}}"
        )
    if any(row.own for row in matching):
        # The user's own rows win over list prices, also where they are dearer: they are what will be paid.
        matching = [row for row in matching if row.own]
    newest: dict[tuple[str, str, str], PriceRow] = {}
    for row in matching:
        key = (row.provider, row.region, row.pricing_model)
        if key not in newest or (row.date_observed, row.id) > (newest[key].date_observed, newest[key].id):
            newest[key] = row

    def hourly(row: PriceRow) -> tuple[bool, float, str]:
        value = row.price_per_node_hour if row.price_per_node_hour is not None else row.purchase_price
        return (row.price_per_node_hour is None, float(value or 0.0), row.id)

    return min(newest.values(), key=hourly)


def _links(file: ScenarioFile, name: str, faults: list[str]) -> tuple[SiteLink, ...]:
    known = {site.name for site in file.sites}
    links: list[SiteLink] = []
    seen: set[frozenset[str]] = set()
    for i, link in enumerate(file.links):
        a, b = link.between
        for end in (a, b):
            if end not in known:
                faults.append(f"{name}: links.{i}.between: {unknown_name('site', end, known)}")
        if a == b:
            faults.append(f"{name}: links.{i}.between: {a!r} is linked to itself; name two sites")
        if frozenset((a, b)) in seen:
            faults.append(f"{name}: links.{i}.between: {a} and {b} are linked twice; merge the two entries")
        seen.add(frozenset((a, b)))
        if link.min_units > link.max_units:
            faults.append(f"{name}: links.{i}: min_units {link.min_units} is more than max_units {link.max_units}")
        links.append(
            SiteLink(
                site_a=a,
                site_b=b,
                distance_km=link.distance_km,
                one_way_s=link.distance_km * FIBRE_S_PER_KM,
                unit_bandwidth_bytes_per_s=link.unit_bandwidth,
                min_units=link.min_units,
                max_units=link.max_units,
                usd_per_unit_hour=link.usd_per_unit_month / HOURS_PER_MONTH,
                usable_frac=link.usable_frac,
            )
        )
    return tuple(links)


def _check_roles(file: ScenarioFile, name: str, faults: list[str]) -> None:
    known_sites = {site.name for site in file.sites}
    known_types = {entry if isinstance(entry, str) else entry.type for site in file.sites for entry in site.nodes}
    fleet = file.fleet
    lists: dict[str, Sequence[PinnedFile | CurrentFile]] = {"pinned": fleet.pinned, "current": fleet.current}
    for i, loss in enumerate(fleet.survive):
        site = loss.lose_site or (loss.lose_nodes.site if loss.lose_nodes else "")
        if site not in known_sites:
            faults.append(f"{name}: fleet.survive.{i}: {unknown_name('site', site, known_sites)}")
        elif loss.lose_nodes and loss.lose_nodes.type not in known_types:
            faults.append(f"{name}: fleet.survive.{i}: {unknown_name('node type', loss.lose_nodes.type, known_types)}")
    for list_name, entries in lists.items():
        for i, given in enumerate(entries):
            where = f"{name}: fleet.{list_name}.{i}"
            if given.site not in known_sites:
                faults.append(f"{where}.site: {unknown_name('site', given.site, known_sites)}")
            if given.type not in known_types and list_name == "pinned":
                faults.append(f"{where}.type: {unknown_name('node type', given.type, known_types)}")
    if fleet.max_changed_nodes is not None and not fleet.current:
        faults.append(f"{name}: fleet.max_changed_nodes: needs fleet.current, the nodes that run today")
    wants_carbon = fleet.max_carbon_kg_per_hour is not None or file.objective == "carbon"
    silent = [site.name for site in file.sites if site.grid_co2_kg_per_kwh is None]
    if wants_carbon and silent:
        faults.append(
            f"{name}: sites: {', '.join(silent)} lacks grid_co2_kg_per_kwh, which a carbon limit or objective needs"
        )
    for role in ROLES:
        rules = getattr(file.fleet, role)
        for site in rules.sites or ():
            if site not in known_sites:
                faults.append(f"{name}: fleet.{role}.sites: {unknown_name('site', site, known_sites)}")
        for node_type in (*(rules.node_types or ()), *rules.forbidden_node_types):
            if node_type not in known_types:
                faults.append(f"{name}: fleet.{role}.node_types: {unknown_name('node type', node_type, known_types)}")
        if rules.sites == [] or rules.node_types == []:
            faults.append(
                f"{name}: fleet.{role}: an empty list allows nothing; leave the key out or list what is allowed"
            )
