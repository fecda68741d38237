"""The scenario in words. Reads the scenario as the user wrote it, and leaves out what it does not find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdplan.report.blocks import Block, Heading, Items, Paragraph, Span, Strong
from pdplan.report.view import metric_name, number, percent, seconds

__all__ = ["question"]

_OBJECTIVE = {"cost": "the lowest cost", "cards": "the fewest cards", "power": "the lowest power"}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _lengths(value: object) -> str:
    if isinstance(value, str):
        return f"lengths of the shipped shape {value}"
    given = _mapping(value)
    if "fixed" in given:
        fixed = _mapping(given["fixed"])
        return f"{fixed.get('input_tokens')} tokens in and {fixed.get('output_tokens')} out, always"
    if "trace" in given:
        return f"lengths of the trace {given['trace']}"
    parts = [
        f"{name} " + ", ".join(f"{key} {tokens}" for key, tokens in _mapping(given[key_name]).items())
        for key_name, name in (("input_tokens", "input"), ("output_tokens", "output"))
        if key_name in given
    ]
    return "token counts " + "; ".join(parts) if parts else "lengths as given"


def _workload(load: Mapping[str, Any]) -> str:
    words = f"{load.get('rate_req_per_s')} requests per second"
    peak = load.get("peak_multiplier", 1)
    if peak != 1:
        words += f", sized for {peak} times that"
    curve = load.get("day_curve")
    if isinstance(curve, list | tuple) and curve:
        words += f", over the day {min(curve):g} to {max(curve):g} times that"
    words += f"; {_lengths(load.get('lengths'))}"
    arrivals = load.get("arrivals", "poisson")
    if isinstance(arrivals, Mapping):
        words += f"; gaps between arrivals with a coefficient of variation of {arrivals.get('cv', 1)}"
    else:
        words += f"; {'Poisson' if arrivals == 'poisson' else arrivals} arrivals"
    hit = load.get("prefix_hit_frac", 0)
    if isinstance(hit, int | float) and hit:
        words += f"; {percent(float(hit))} of the input found in the prefix cache"
    return words + "."


def _targets(slo: Mapping[str, Any]) -> str:
    found = [
        f"{metric_name(metric)} {key} at most {seconds(float(limit))}"
        for metric in ("ttft_s", "tpot_s")
        for key, limit in _mapping(slo.get(metric)).items()
    ]
    return ", ".join(found) or "none"


def _node(node: object) -> str:
    if isinstance(node, str):
        return node
    given = _mapping(node)
    words = str(given.get("type"))
    limits = []
    if given.get("max_nodes") is not None:
        limits.append(f"at most {given['max_nodes']}")
    if given.get("owned_nodes"):
        limits.append(f"{given['owned_nodes']} owned")
    if given.get("rent_usd_per_node_hour"):
        most = f", at most {given['max_rented_nodes']}" if given.get("max_rented_nodes") is not None else ""
        limits.append(f"more for rent at {given['rent_usd_per_node_hour']} USD per hour{most}")
    if (given.get("lot_nodes") or 1) != 1:
        limits.append(f"in lots of {given['lot_nodes']}")
    return words + (f" ({', '.join(limits)})" if limits else "")


def _site(site: Mapping[str, Any]) -> tuple[Span, ...]:
    nodes = site.get("nodes")
    words = ", ".join(_node(node) for node in nodes) if isinstance(nodes, list | tuple) else ""
    limits = "".join(
        f"; {text} {site[key]}"
        for key, text in (("max_power", "power up to"), ("max_cards", "cards up to"))
        if site.get(key)
    )
    return (Strong(str(site.get("name"))), f": {words}{limits}")


def _link(link: Mapping[str, Any]) -> tuple[Span, ...]:
    between = link.get("between") or ("?", "?")
    words = f": {link.get('distance_km')} km of fibre in units of {link.get('unit_bandwidth')}"
    if link.get("max_units") is not None:
        words += f", at most {link['max_units']}"
    if link.get("usd_per_unit_month"):
        words += f", {number(float(link['usd_per_unit_month']), 6)} USD per unit and month"
    return (Strong(f"{between[0]} to {between[1]}"), words)


def _rules(fleet: Mapping[str, Any]) -> list[tuple[Span, ...]]:
    rules: list[tuple[Span, ...]] = []
    for role in ("prefill", "decode", "colocated"):
        given = _mapping(fleet.get(role))
        words = []
        if given.get("min_cards"):
            words.append(f"at least {given['min_cards']} cards where it is opened")
        if given.get("sites"):
            words.append(f"only at {', '.join(map(str, given['sites']))}")
        if given.get("node_types"):
            words.append(f"only on {', '.join(map(str, given['node_types']))}")
        if given.get("spare_nodes"):
            words.append(f"{given['spare_nodes']} spare nodes of every type it uses")
        if given.get("forbidden_node_types"):
            words.append(f"not on {', '.join(map(str, given['forbidden_node_types']))}")
        if words:
            rules.append((Strong(role), ": " + ", ".join(words)))
    for loss in map(_mapping, fleet.get("survive") or ()):
        nodes = _mapping(loss.get("lose_nodes"))
        what = (
            f"{nodes.get('nodes')} x {nodes.get('type')} at {nodes.get('site')}"
            if nodes
            else str(loss.get("lose_site"))
        )
        share = float(loss.get("rate_frac") or 1.0)
        rules.append((Strong(f"without {what}"), f": {share:.0%} of the peak rate is still served within the targets"))
    if fleet.get("same_vendor"):
        rules.append((Strong("one vendor"), ": for prefill and decode"))
    for pin in map(_mapping, fleet.get("pinned") or ()):
        exact = f": exactly {pin.get('nodes')} x {pin.get('type')} at {pin.get('site')}"
        rules.append((Strong(str(pin.get("role"))), exact))
    for key, text in (
        ("max_carbon_kg_per_hour", "CO2, kg per hour"),
        ("max_changed_nodes", "nodes that come or go against today"),
        ("budget_usd_per_hour", "budget, USD per hour"),
        ("max_power", "power of the fleet"),
        ("max_cards", "cards of the fleet"),
        ("max_sites", "sites in use"),
    ):
        if fleet.get(key) is not None:
            rules.append((Strong(text), f": at most {fleet[key]}"))
    return rules


def question(scenario: Mapping[str, Any], objective: str) -> list[Block]:
    """The section that says what was asked."""
    precision = _mapping(scenario.get("precision"))
    formats = ", ".join(
        f"{str(value).upper()} {str(key).replace('kv_', 'KV ').replace('_', ' ')}"
        for key, value in precision.items()
        if value
    )
    engine = scenario.get("engine", "generic")
    items: list[tuple[Span, ...]] = [
        (Strong("Model"), f": {scenario.get('model')}" + (f", {formats}" if formats else "") + f", engine {engine}."),
        (Strong("Workload"), f": {_workload(_mapping(scenario.get('workload')))}"),
        (Strong("Targets"), f": {_targets(_mapping(scenario.get('slo')))}."),
    ]
    sites = [_site(_mapping(site)) for site in scenario.get("sites") or ()]
    links = [_link(_mapping(link)) for link in scenario.get("links") or ()]
    blocks: list[Block] = [
        Heading(level=2, text="The question"),
        Paragraph(
            spans=(f"Which machines, where, serve this with {_OBJECTIVE.get(objective, f'the least {objective}')}?",)
        ),
        Items(items=tuple(items)),
    ]
    choices = [*sites, *links, *_rules(_mapping(scenario.get("fleet")))]
    if choices:
        blocks += [Paragraph(spans=("What can be had, and the rules:",)), Items(items=tuple(choices))]
    return blocks
