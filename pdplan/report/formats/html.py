"""The decision paper as one HTML file: nothing is loaded from elsewhere, it prints, and it follows the reader's theme."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from pdplan.fleet.plan import Plan
from pdplan.report.blocks import Bar, Bars, Block, Heading, Items, Paragraph, Span, Strong, Table
from pdplan.report.format import Format
from pdplan.report.paper import paper

__all__ = ["FORMAT"]

# Colours of the segments are told apart by lightness as well as by hue, in both themes.
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--page:#fff;--line:#d0d7de;--band:#f6f8fa;
--good:#1a7f37;--bad:#b42318;--warn:#8a5a00;--a:#1f5fa8;--b:#d9822b;--c:#8f5bb5;--d:#7d8590;--e:#e3e8ee;--f:#2f8f6b}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b1;--page:#0f141a;--line:#30363d;--band:#171d25;
--good:#57c474;--bad:#ff8a80;--warn:#e5b454;--a:#6aa9f0;--b:#f0a95c;--c:#bf94e0;--d:#8b949e;--e:#2a323c;--f:#5cc49b}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,"Segoe UI",Helvetica,Arial,sans-serif}
main{max-width:66rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 1.25rem}
h2{font-size:1.3rem;margin:2.5rem 0 .6rem;padding-top:.8rem;border-top:1px solid var(--line)}
h3{font-size:1.05rem;margin:1.6rem 0 .5rem}
p,ul,ol{max-width:48rem;margin:.5rem 0;overflow-wrap:anywhere}
.bar>*{min-width:0}
li{margin:.25rem 0}
.wide{overflow-x:auto;margin:.9rem 0 1.3rem}
table{border-collapse:collapse;font-size:.875rem;min-width:24rem}
caption{text-align:left;color:var(--soft);padding:0 0 .35rem}
th,td{padding:.32rem .7rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap;
font-variant-numeric:tabular-nums}
thead th{background:var(--band);font-weight:600;white-space:normal;vertical-align:bottom}
.l{text-align:left;white-space:normal}
tbody th{font-weight:400}
.long{min-width:9rem;overflow-wrap:anywhere}
.note{border-left:4px solid var(--line);background:var(--band);padding:.6rem .9rem;border-radius:0 4px 4px 0}
.good{border-color:var(--good)}.bad{border-color:var(--bad)}.warning{border-color:var(--warn)}
figure{margin:1rem 0;padding:0}
figcaption{color:var(--soft);font-size:.875rem;margin-bottom:.4rem}
.bar{display:grid;grid-template-columns:minmax(9rem,19rem) minmax(8rem,1fr) 13rem;gap:.2rem .9rem;align-items:center;
font-size:.875rem;margin:.3rem 0}
.bar svg{width:100%;height:1.15rem;display:block;border-radius:2px}
.value{font-variant-numeric:tabular-nums}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;padding:0;margin:.5rem 0;font-size:.8125rem;color:var(--soft)}
.legend svg{width:.9rem;height:.75rem;margin-right:.35rem;vertical-align:-.05rem}
.axis{fill:var(--band)}
.weights,.prefill,.met{fill:var(--a)}.kv_cache,.decode{fill:var(--b)}.staging,.colocated{fill:var(--c)}
.reserve,.idle{fill:var(--d)}.free{fill:var(--e)}.network{fill:var(--f)}.missed{fill:var(--bad)}
.mark,.range{fill:var(--ink);stroke:var(--page);stroke-width:1.5px;paint-order:stroke;vector-effect:non-scaling-stroke}
@media (max-width:40rem){.bar{grid-template-columns:1fr}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--page:#fff;--line:#bbb;--band:#f3f3f3;--good:#1a7f37;--bad:#b42318;
--warn:#8a5a00;--a:#1f5fa8;--b:#d9822b;--c:#8f5bb5;--d:#7d8590;--e:#e3e8ee;--f:#2f8f6b}body{font-size:10pt}
main{max-width:none;padding:0}.wide{overflow:visible}table{font-size:8pt;min-width:0;width:100%}
th,td{padding:.15rem .3rem;white-space:normal}h2,h3{break-after:avoid}tr,figure,.note{break-inside:avoid}
.bar svg,.legend svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
""".strip()

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LONG_TEXT = 28
"""Characters from which a text column may wrap."""


def _spans(spans: Iterable[Span]) -> str:
    return "".join(f"<strong>{escape(s.text)}</strong>" if isinstance(s, Strong) else escape(s) for s in spans)


def _table(block: Table) -> str:
    def cell(tag: str, i: int, text: str, scope: str = "") -> str:
        names = ["l"] if i in block.left else []
        if i in block.left and len(text) > _LONG_TEXT:
            names.append("long")
        style = f' class="{" ".join(names)}"' if names else ""
        return f"<{tag}{scope}{style}>{escape(text)}</{tag}>"

    head = "".join(cell("th", i, text, ' scope="col"') for i, text in enumerate(block.headers))
    body = "\n".join(
        "<tr>"
        + "".join(cell("td", i, text) if i else cell("th", i, text, ' scope="row"') for i, text in enumerate(row))
        + "</tr>"
        for row in block.rows
    )
    # The box scrolls sideways on small screens, so the keyboard has to reach it.
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(block.caption)}"><table>\n'
        f"<caption>{escape(block.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _bar(bar: Bar) -> str:
    shapes = ['<rect class="axis" width="1000" height="20"/>']
    at = 0.0
    for segment in bar.segments:
        width = max(min(segment.frac, 1.0 - at), 0.0)
        if width > 0:
            shapes.append(
                f'<rect class="{escape(segment.kind)}" x="{at * 1000:.1f}" width="{width * 1000:.1f}" height="20"/>'
            )
        at += width
    if bar.range_frac is not None:
        low, high = bar.range_frac
        shapes.append(
            f'<rect class="range" x="{low * 1000:.1f}" y="9" width="{max(high - low, 0.0) * 1000:.1f}" height="2"/>'
        )
    if bar.mark_frac is not None:
        shapes.append(f'<rect class="mark" x="{bar.mark_frac * 1000 - 2:.1f}" width="4" height="20"/>')
    return (
        f'<div class="bar"><span>{escape(bar.label)}</span>'
        f'<svg viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true" focusable="false">{"".join(shapes)}</svg>'
        f'<span class="value">{escape(bar.value)}</span></div>'
    )


def _bars(block: Bars) -> str:
    legend = "".join(
        f'<li><svg viewBox="0 0 12 10" aria-hidden="true" focusable="false">{_swatch(kind)}</svg>{escape(words)}</li>'
        for kind, words in block.legend
    )
    return (
        f"<figure><figcaption>{escape(block.caption)}</figcaption>\n"
        + "\n".join(map(_bar, block.bars))
        + (f'\n<ul class="legend">{legend}</ul>' if legend else "")
        + "</figure>"
    )


def _swatch(kind: str) -> str:
    boxes = {"mark": 'x="5" width="2" height="10"', "range": 'y="4" width="12" height="2"'}
    box = boxes.get(kind, 'width="12" height="10"')
    return f'<rect class="{escape(kind)}" {box}/>'


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{escape(block.text)}</h{block.level}>"
        case Paragraph():
            style = f' class="note {escape(block.tone)}"' if block.tone else ""
            return f"<p{style}>{_spans(block.spans)}</p>"
        case Items():
            tag = "ol" if block.numbered else "ul"
            return f"<{tag}>" + "".join(f"<li>{_spans(item)}</li>" for item in block.items) + f"</{tag}>"
        case Table():
            return _table(block)
        case Bars():
            return _bars(block)


def _render(plan: Plan) -> dict[str, str]:
    blocks = paper(plan)
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Plan")
    body = "\n".join(map(_block, blocks))
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
    return {"plan.html": text}


FORMAT = Format(suffix="html", render=_render)
