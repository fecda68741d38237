"""Write the catalog pages of the reference: ``python docs/generate_catalog.py [--check]``.

With ``--check`` nothing is written; exit code 1 if a page is not what the catalog says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pdplan.catalog.load import Catalog, load_catalog
from pdplan.catalog.published import CONVENTIONS, compare_with_published
from pdplan.catalog.view import listing

FOLDER = Path(__file__).resolve().parent / "reference"
WRITTEN = "<!-- written by docs/generate_catalog.py; edit the catalog, then run it -->\n"

PAGES = {
    "accelerators": (
        "Accelerators",
        "Dense peaks, without sparsity; memory as the driver reports it where that is known; scale-up bandwidth in one "
        "direction, summed over the links of a card. `pdplan catalog show ID` prints basis, source and date of every "
        "number.",
    ),
    "nodes": (
        "Nodes",
        "The smallest machine that can be bought or rented. `domain` is how many cards reach each other at scale-up "
        "speed; it exceeds `cards` where a rack is sold by the tray.",
    ),
    "links": (
        "Links",
        "Nominal bandwidth in one direction, the fraction of it that large KV blocks achieve, the fixed one-way "
        "latency, and for links between sites the latency per km of fibre.",
    ),
    "models": (
        "Models",
        "Parameters are counted from the architecture, without vision towers and multi-token-prediction layers. Any "
        "other model is given as the path of its Hugging Face `config.json`.",
    ),
    "families": ("Efficiency families", "Fitted constants of each kind of accelerator."),
    "engines": ("Serving engines", "Fitted constants and layout rules of each engine."),
    "sources": (
        "Sources",
        "`checked`: *read*, *listing* (seen through a third party) or *recollection* (to be checked before it is "
        "relied on).",
    ),
}


def pages(catalog: Catalog) -> dict[str, str]:
    """File name -> content of every generated page."""
    result = {}
    for kind, (title, text) in PAGES.items():
        table = listing(catalog, kind)
        body = markdown(table.headers, table.rows)
        result[f"catalog-{kind}.md"] = f"# {title}\n\n{WRITTEN}\n{text}\n\n{body}"
    result["catalog-prices.md"] = prices(catalog)
    result["catalog-parameters.md"] = parameters(catalog)
    return result


def prices(catalog: Catalog) -> str:
    """Price rows by provider: how many, of which kind, how old."""
    groups: dict[str, list[object]] = {}
    for row in catalog.all_price_rows():
        groups.setdefault(row.provider, []).append(row)
    lines = []
    for provider, rows in sorted(groups.items()):
        seen = sorted(row.date_observed.isoformat() for row in rows)  # type: ignore[attr-defined]
        kinds = ", ".join(sorted({row.pricing_model for row in rows}))  # type: ignore[attr-defined]
        nodes = len({row.node for row in rows})  # type: ignore[attr-defined]
        money = ", ".join(sorted({row.currency for row in rows}))  # type: ignore[attr-defined]
        lines.append((provider, len(rows), nodes, kinds, money, seen[0], seen[-1]))
    headers = ("provider", "rows", "nodes", "pricing models", "currency", "oldest", "newest")
    text = (
        "One CSV file per provider under `catalogs/prices/`. A price is for a whole node; none includes tax unless its "
        "row says so; a row in another currency than US dollars is never converted silently. Commitment prices of AWS, "
        "Azure, GCP and OCI are on-demand prices times a typical ratio, marked as estimates. `pdplan catalog show "
        "NODE` prints the rows of a node."
    )
    return f"# Prices\n\n{WRITTEN}\n{text}\n\n{markdown(headers, lines)}"


def parameters(catalog: Catalog) -> str:
    """Counted against published parameters."""
    rows: list[tuple[object, ...]] = [
        (
            row.id, f"{row.total_b:.3f}", number(row.published_total_b), percent(row.total_error),
            "" if row.active_b is None else f"{row.active_b:.3f}", number(row.published_active_b),
            percent(row.active_error), row.convention.removeprefix("active_params").strip("_").replace("_", " "),
            row.accepted,
        )
        for row in compare_with_published(catalog)
    ]  # fmt: skip
    headers = ("model", "total B", "published", "difference", "active B", "published", "difference", "active counts",
               "why a larger difference is accepted")  # fmt: skip
    text = (
        "Total parameters are within 1 % of the publisher's figure and active parameters within 2 %, or the last "
        "column says why not. Publishers mean different things by active parameters; a model file names what its "
        "publisher means:\n\n" + "\n".join(f"- `{name}`: {meaning}" for name, meaning in CONVENTIONS.items())
    )
    return f"# Parameter counts\n\n{WRITTEN}\n{text}\n\n{markdown(headers, rows)}"


def number(value: float | None) -> str:
    """A figure as its publisher prints it."""
    return "" if value is None else f"{value:g}"


def percent(value: float | None) -> str:
    """A relative difference."""
    return "" if value is None else f"{value:+.2%}"


def markdown(headers: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A pipe table."""
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    for row in rows:
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check the pages."""
    stale = []
    for name, text in pages(load_catalog()).items():
        path = FOLDER / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.stderr.write(f"{'stale' if '--check' in sys.argv else 'written'}: {', '.join(stale)}\n")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
