"""A fleet written down by its owner: counts and layouts, to be scored against a scenario like any plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pdplan.catalog.load import load_catalog
from pdplan.errors import InputError
from pdplan.files import read_yaml
from pdplan.fleet.plan import LinkLoad, MemoryBudget, Plan, Pool, PoolLayout
from pdplan.scenario.load import load_scenario
from pdplan.scenario.resolve import Scenario, resolve

__all__ = ["SCHEMA", "own_fleet"]

SCHEMA = "pdplan.fleet/1"
_Count = Annotated[int, Field(ge=1, strict=True)]
_ANY_BATCH = 1 << 30


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _PoolFile(_Strict):
    role: Literal["prefill", "decode", "colocated"]
    site: str
    type: str
    nodes: _Count
    replicas: _Count
    tp: _Count = 1
    pp: _Count = 1
    ep: _Count = 1
    attention_dp: _Count = 1
    max_batch: _Count | None = None
    token_budget: _Count | None = None
    to_site: str | None = None
    rate_req_per_s: Annotated[float, Field(gt=0)] | None = None


class _LinkFile(_Strict):
    from_site: str
    to_site: str
    units: _Count


class _FleetFile(_Strict):
    schema_id: Literal["pdplan.fleet/1"] = Field(alias="schema")
    scenario: str
    pools: Annotated[list[_PoolFile], Field(min_length=1)]
    links: list[_LinkFile] = Field(default_factory=list)


def _pool(entry: _PoolFile, rate: float, scenario: Scenario) -> Pool:
    cards = {(o.site, o.node.id): o.node.cards_per_node for site in scenario.sites for o in site.offers}
    layout = PoolLayout(
        tp=entry.tp,
        pp=entry.pp,
        ep=entry.ep,
        attention_dp=entry.attention_dp,
        cards_per_replica=entry.tp * entry.pp * entry.attention_dp,
        max_batch=entry.max_batch or _ANY_BATCH,
        token_budget=entry.token_budget or (0 if entry.role == "decode" else scenario.engine.prefill_token_budget),
    )
    return Pool(
        role=entry.role,
        site=entry.site,
        node_type=entry.type,
        accelerator="",
        destination_site=entry.to_site or entry.site,
        nodes=entry.nodes,
        cards=entry.nodes * cards.get((entry.site, entry.type), 0),
        replicas=entry.replicas,
        layout=layout,
        rate_req_per_s=rate,
        capacity_req_per_s=0.0,
        utilization_frac=0.0,
        batch_mean=0.0,
        service_mean_s=0.0,
        flop_frac=0.0,
        hbm_frac=0.0,
        memory_bytes_per_card=MemoryBudget(hbm=0.0, weights=0.0, kv_cache=0.0, staging=0.0, reserve=0.0, free=0.0),
        usd_per_hour=0.0,
        power_w=0.0,
    )


def own_fleet(path: str | Path, *, catalog_folder: Path | None = None) -> tuple[Plan, Scenario]:
    """A fleet file and the scenario it names, as a plan whose derived figures are left for the certificate.

    A pool without `rate_req_per_s` takes its share of the design rate by replicas among the pools of its role that give none.

    Raises
    ------
    InputError
        Not such a file, or a field is wrong; every fault at once.
    """
    path, name = Path(path), str(path)
    data = read_yaml(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(f"{name}: schema is not {SCHEMA!r}; see the how-to page on scoring your own fleet")
    try:
        file = TypeAdapter(_FleetFile).validate_python(data)
    except ValidationError as fault:
        lines = [f"{name}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in fault.errors()[:10]]
        raise InputError(*lines) from None
    loaded = load_scenario(path.parent / file.scenario)
    scenario = resolve(loaded, load_catalog(catalog_folder))
    pools = []
    for entry in file.pools:
        given = [p for p in file.pools if p.role == entry.role and p.rate_req_per_s is not None]
        open_ = [p for p in file.pools if p.role == entry.role and p.rate_req_per_s is None]
        rest = max(scenario.rate_req_per_s - sum(p.rate_req_per_s or 0.0 for p in given), 0.0)
        share = rest * entry.replicas / sum(p.replicas for p in open_) if open_ else 0.0
        pools.append(_pool(entry, entry.rate_req_per_s or share, scenario))
    colocated = all(pool.role == "colocated" for pool in pools)
    plan = Plan(
        scenario=scenario.given,
        inputs=scenario.inputs,
        catalog_digest=scenario.catalog_digest,
        status="feasible",
        mode="colocated" if colocated else "disaggregated",
        objective=scenario.objective,
        pools=tuple(pools),
        links=tuple(
            LinkLoad(
                from_site=link.from_site,
                to_site=link.to_site,
                units=link.units,
                load_gbit_per_s=0.0,
                capacity_gbit_per_s=0.0,
                utilization_frac=0.0,
                one_way_s=0.0,
                transfer_mean_s=0.0,
                usd_per_hour=0.0,
            )
            for link in file.links
        ),
    )
    return plan, scenario
