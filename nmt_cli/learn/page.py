"""Results as one page for the browser. The pictures are SVG and tables, so the page needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from nmt_cli import __version__
from nmt_cli.learn.draw import drawn_curves, figure, verdict
from nmt_cli.learn.results import Bars, Curves, Maps, Picture, Result

_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 630, 10, 230  # the frame of the curves, in a box 640 wide


def html_page(results: Sequence[Result]) -> str:
    held = sum(result.held for result in results)
    seeds = ", ".join(map(str, results[0].measurements))
    parts = [
        "<h1>Claims about attention, measured</h1>",
        f'<p class="quiet">nmt {__version__}, small models on the demo corpus, seeds {seeds}. '
        f"{held} of {len(results)} claims held here.</p>",
        "<nav><ul>",
        *(
            f'<li>{_verdict(each)} <a href="#{each.claim.name}">{escape(each.claim.sentence)}</a></li>'
            for each in results
        ),
        "</ul></nav>",
        *map(_section, results),
    ]
    return (Path(__file__).parent / "page.html").read_text(encoding="utf-8").replace("__CONTENT__", "\n".join(parts))


def _verdict(result: Result) -> str:
    kind, sign = ("held", "✓") if result.held else ("failed", "✗")
    return f'<span class="{kind}" title="{verdict(result)}">{sign}</span>'


def _section(result: Result) -> str:
    claim = result.claim
    seeds = "".join(f"<th>seed {seed}</th>" for seed in result.measurements)
    rows = []
    for name in next(iter(result.measurements.values())).figures:
        cells = "".join(f"<td>{figure(each.figures[name])}</td>" for each in result.measurements.values())
        rows.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return "\n".join([
        f'<section id="{claim.name}">',
        f"<h2>{escape(claim.sentence)}</h2>",
        f'<p class="verdict {"held" if result.held else "failed"}">{verdict(result)}</p>',
        f'<p class="rule">Rule: {escape(claim.rule)}</p>',
        f"<p>{escape(claim.lesson)}</p>",
        f"<figure><figcaption>{escape(result.picture.title)}, seed {next(iter(result.measurements))}</figcaption>",
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(result.picture.title)}">'
        f"{_picture(result.picture)}</div></figure>",
        f'<div class="wide"><table><thead><tr><th></th>{seeds}</tr></thead>',
        f"<tbody>{''.join(rows)}</tbody></table></div>",
        "</section>",
    ])  # fmt: skip


def _picture(picture: Picture) -> str:
    match picture:
        case Curves():
            return _curves(picture)
        case Bars():
            largest = max(value for _, value in picture.bars) or 1.0
            return "".join(
                f'<div class="bar"><span>{escape(name)}</span><b>{figure(value)}</b>'
                f'<i style="width:{100 * value / largest:.1f}%"></i></div>'
                for name, value in picture.bars
            )
        case Maps():
            return "".join(_map(picture, name) for name in picture.maps)


def _map(picture: Maps, name: str) -> str:
    top = max(weight for weights in picture.maps.values() for row in weights for weight in row) or 1.0
    head = "".join(f"<th>{escape(word)}</th>" for word in picture.columns)
    rows = "".join(
        f"<tr><th>{escape(word)}</th>"
        + "".join(f'<td style="--share:{weight / top:.3f}" title="{figure(weight)}"></td>' for weight in row)
        + "</tr>"
        for word, row in zip(picture.rows, picture.maps[name], strict=True)
    )
    caption = f"<caption>{escape(name)}</caption>"
    return f'<table class="map">{caption}<thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _curves(picture: Curves) -> str:
    curves = drawn_curves(picture)
    if not curves:
        return "<p>nothing to draw</p>"
    values = [y for points in curves.values() for _, y in points]
    steps = [x for points in curves.values() for x, _ in points]
    low, high, first, last = min(values), max(values), min(steps), max(steps)

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - first) / ((last - first) or 1) * (_RIGHT - _LEFT)
        return f"{across:.1f},{_BOTTOM - (y - low) / ((high - low) or 1) * (_BOTTOM - _TOP):.1f}"

    parts = [f'<path class="axis" d="M{_LEFT},{_TOP} V{_BOTTOM} H{_RIGHT}"/>']
    for y, at in ((high, _TOP + 10), (low, _BOTTOM)):
        shown = f"10^{y:.1f}" if picture.powers else figure(y)
        parts.append(f'<text x="{_LEFT - 6}" y="{at}" text-anchor="end">{shown}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_BOTTOM + 25}">{first:,}</text>')
    parts.append(f'<text x="{_RIGHT}" y="{_BOTTOM + 25}" text-anchor="end">{last:,} {escape(picture.axis)}</text>')
    legend = []
    for number, (name, points) in enumerate(curves.items()):
        path = " ".join(place(x, y) for x, y in points)
        kind = f'class="curve c{number % 4}"'
        parts.append(f'<polyline {kind} points="{path}"/>')
        sample = f'<svg viewBox="0 0 40 8" aria-hidden="true"><path {kind} d="M0,4 h40"/></svg>'
        legend.append(f"<li>{sample}{escape(name)}</li>")
    drawn = (
        f'<svg viewBox="0 0 640 {_BOTTOM + 35}" role="img" aria-label="{escape(picture.title)}">{"".join(parts)}</svg>'
    )
    return f'{drawn}<ul class="legend">{"".join(legend)}</ul>'
