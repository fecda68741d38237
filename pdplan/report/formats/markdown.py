"""The decision paper in markdown (GitHub's dialect)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pdplan.fleet.plan import Plan
from pdplan.report.blocks import Bars, Block, Heading, Items, Paragraph, Span, Strong, Table
from pdplan.report.format import Format
from pdplan.report.paper import paper

__all__ = ["FORMAT", "markdown"]

_SPECIAL = re.compile(r"([\\`*<]|\](?=[(\[]))")


def _escape(text: str) -> str:
    """Names come from users: what would be markup is shown as written, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())) if text.strip() else text


def _spans(spans: Iterable[Span]) -> str:
    parts = []
    for span in spans:
        text = span.text if isinstance(span, Strong) else span
        head, tail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        inner = _escape(text.strip())
        if isinstance(span, Strong) and inner:
            inner = f"**{inner}**"
        parts.append((" " if head else "") + inner + (" " if tail and inner else ""))
    return "".join(parts).strip()


def _table(block: Table) -> str:
    from tabulate import tabulate

    def cell(text: str) -> str:
        return _escape(text).replace("|", "\\|")

    return str(
        tabulate(
            [[cell(text) for text in row] for row in block.rows],
            headers=[cell(text) for text in block.headers],
            tablefmt="pipe",
            disable_numparse=True,
            colalign=["left" if i in block.left else "right" for i in range(len(block.headers))]
            if block.rows
            else None,
        )
    )


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {_escape(block.text)}"
        case Paragraph():
            text = _spans(block.spans)
            return f"> {text}" if block.tone else text
        case Items():
            return "\n".join(
                f"{f'{i}.' if block.numbered else '-'} {_spans(item)}" for i, item in enumerate(block.items, 1)
            )
        case Table():
            return _table(block)
        case Bars():
            return ""


def markdown(blocks: Iterable[Block]) -> str:
    """Blocks as one text."""
    return "\n\n".join(text for block in blocks if (text := _block(block))) + "\n"


def _render(plan: Plan) -> dict[str, str]:
    return {"plan.md": markdown(paper(plan))}


FORMAT = Format(suffix="md", render=_render)
