"""The samples of a soak as one picture: lines over time, the held transaction shaded. Plain SVG."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape

from tests.bench.picture import COLOURS, INK, PALE
from tests.soak.judge import OURS, Sample, Soaked, Window

WIDTH, HEIGHT = 960, 150
LEFT, RIGHT = 60, 220
ROOM = WIDTH - LEFT - RIGHT
Lines = Mapping[str, Sequence[tuple[float, float]]]


def drawn(soaked: Soaked, heading: str) -> str:
    every = soaked.part(0, 1)
    ours = [name for name in soaked.samples[-1]["processes"] if name.startswith(OURS)]
    panels: list[tuple[str, Lines]] = [
        ("Memory of the services, MB", {name: _process(every, name) for name in ours}),
        ("Tables and indexes, MB", {n: _tables(every, n) for n in soaked.samples[-1]["shards"]}),
        ("Dead rows of all shards, thousands", {"dead": every.series(_dead)}),
        ("Mean time of a claim, ms", {"claim": _claims(soaked.samples, "ms")}),
        ("Blocks that a claim touches", {"blocks": _claims(soaked.samples, "blocks")}),
        ("etcd, MB in use", {"etcd": every.series(lambda sample: sample["etcd_mb"])}),
    ]
    height = 60 + len(panels) * (HEIGHT + 60)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="15" font-weight="600" fill="{INK}">',
        f"{escape(heading)}</text>",
    ]
    for number, (title, series) in enumerate(panels):
        lines += _panel(title, series, soaked, 80 + number * (HEIGHT + 60))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(title: str, series: Lines, soaked: Soaked, top: int) -> list[str]:
    end = soaked.samples[-1]["t"] or 1.0
    highest = max((v for line in series.values() for _, v in line), default=0.0) or 1.0

    def x(t: float) -> float:
        return LEFT + ROOM * t / end

    def y(value: float) -> float:
        return top + HEIGHT * (1 - value / highest)

    held = [x(moment) for moment in soaked.held]
    lines = [
        f'<text x="16" y="{top - 12}" font-weight="600" fill="{INK}">{escape(title)}</text>',
        f'<rect x="{held[0]:.1f}" y="{top}" width="{held[1] - held[0]:.1f}" height="{HEIGHT}" '
        f'fill="#fefcbf"/>',
        *(_rule(y(part * highest), f"{part * highest:.3g}") for part in (0, 0.5, 1)),
        f'<text x="{LEFT + ROOM}" y="{top + HEIGHT + 16}" text-anchor="end" fill="{PALE}">'
        f"{end / 60:.0f} min</text>",
    ]
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(t):.1f},{y(value):.1f}" for t, value in points)
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        lines.append(
            f'<text x="{LEFT + ROOM + 12}" y="{top + 12 + 15 * number}" fill="{colour}">'
            f"{escape(name)}</text>"
        )
    return lines


def _rule(y: float, text: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{LEFT + ROOM}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{PALE}">{text}</text>'
    )


def _process(every: Window, name: str) -> list[tuple[float, float]]:
    return every.series(lambda sample: sample["processes"].get(name, {}).get("mb"))


def _tables(every: Window, shard: str) -> list[tuple[float, float]]:
    def size(sample: Sample) -> float:
        tables = sample["shards"][shard]["tables"].values()
        return sum(one["table"] + one["indexes"] for one in tables) / 1e6

    return every.series(size)


def _dead(sample: Sample) -> float:
    tables = (one for shard in sample["shards"].values() for one in shard["tables"].values())
    return sum(one["dead"] for one in tables) / 1e3


def _claims(samples: Sequence[Sample], what: str) -> list[tuple[float, float]]:
    """Per claim, between each two samples."""
    found = []
    for before, after in itertools.pairwise(samples):
        spent = Window([before, after]).claims()
        if spent["calls"]:
            found.append((after["t"], spent["mean_ms" if what == "ms" else what]))
    return found
