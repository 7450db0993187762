"""The results as one picture: throughput, latency, where the CPU goes. Plain SVG, no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 860
BAR = 20
LEFT = 250
ROOM = WIDTH - LEFT - 110
INK, PALE, ACCENT = "#1f2933", "#7b8794", "#2b6cb0"
COLOURS = (
    "#2b6cb0",
    "#dd6b20",
    "#38a169",
    "#805ad5",
    "#d53f8c",
    "#319795",
    "#b7791f",
    "#718096",
    "#e53e3e",
    "#4a5568",
)
RATES = {
    "throughput_batch_jobs_per_s": "batches of 500",
    "throughput_stream_jobs_per_s": "one stream",
    "throughput_watched_jobs_per_s": "batches, 1,000 watchers",
    "drain_jobs_per_s": "drain only",
    "throughput_unary_jobs_per_s": "single calls, 64 callers",
    "throughput_client_jobs_per_s": "the same by the Python client",
    "throughput_many_jobs_per_s": "enqueue_stream of the Python client",
    "throughput_plain_jobs_per_s": "plain functions, two at once",
    "large_jobs_per_s": "1 MB in and out (S3)",
}
TIMES = {
    "latency_start": "submit → start at 50/s",
    "latency_start_singles": "submit → start, 400 single calls a second",
    "latency_start_half_peak": "submit → start at half of peak",
    "lateness": "run-at → start",
}
CPU = {
    "cpu_us_per_job": "batch",
    "cpu_us_per_job_stream": "stream",
    "cpu_us_per_job_drain": "drain",
    "cpu_us_per_job_unary": "single calls",
    "cpu_us_per_job_client": "the same by the Python client",
    "cpu_us_per_job_many": "enqueue_stream of the Python client",
    "cpu_us_per_job_plain": "plain functions, two at once",
}


class Sheet:
    """Lines of SVG, from top to bottom."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._y = 16

    def title(self, text: str) -> None:
        self._y += 26
        self._text(16, text, weight=600, size=15)
        self._y += 10

    def note(self, text: str) -> None:
        self._y += 16
        self._text(16, text, colour=PALE, size=11)

    def bar(self, name: str, parts: Sequence[tuple[float, str]], scale: float, text: str) -> None:
        """One bar of coloured parts, as long as their sum."""
        self._y += BAR + 6
        self._text(LEFT - 10, name, anchor="end")
        x = float(LEFT)
        for value, colour in parts:
            width = ROOM * value / scale if scale else 0
            self._lines.append(
                f'<rect x="{x:.1f}" y="{self._y - 14}" width="{width:.1f}" height="{BAR - 2}" '
                f'fill="{colour}"/>'
            )
            x += width
        self._text(x + 6, text, colour=PALE)

    def legend(self, names: Sequence[str]) -> None:
        self._y += 24
        x = 16.0
        for number, name in enumerate(names):
            colour = COLOURS[number % len(COLOURS)]
            self._lines.append(
                f'<rect x="{x:.0f}" y="{self._y - 9}" width="10" height="10" fill="{colour}"/>'
            )
            self._text(x + 14, name, size=11)
            x += 24 + 6.6 * len(name)

    def _text(
        self,
        x: float,
        text: str,
        *,
        colour: str = INK,
        size: int = 12,
        weight: int = 400,
        anchor: str = "start",
    ) -> None:
        self._lines.append(
            f'<text x="{x:.1f}" y="{self._y}" fill="{colour}" font-size="{size}" '
            f'font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def svg(self) -> str:
        height = self._y + 20
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif">'
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
        )
        return "\n".join([head, *self._lines, "</svg>"]) + "\n"


def drawn(results: Mapping[str, Any]) -> str:
    sheet = Sheet()
    machine = results.get("machine", {})
    sheet.title("jobmesh: throughput, latency, CPU by stage")
    sheet.note(
        f"{results.get('time', '')} · {machine.get('cores')} cores, {machine.get('cpu', '')} · "
        f"load before: {results.get('load_average_before')}"
    )
    _rates(sheet, results)
    _times(sheet, results)
    _cpu(sheet, results)
    _peers(sheet, results)
    return sheet.svg()


def _rates(sheet: Sheet, results: Mapping[str, Any]) -> None:
    found = {text: results[name] for name, text in RATES.items() if name in results}
    sheet.title("Jobs per second, first submit to last completion committed")
    for text, rate in found.items():
        sheet.bar(text, [(rate, ACCENT)], max(found.values()), f"{rate:,.0f}/s")


def _times(sheet: Sheet, results: Mapping[str, Any]) -> None:
    found = {
        text: (results[f"{name}_p50_ms"], results[f"{name}_p99_ms"])
        for name, text in TIMES.items()
        if f"{name}_p50_ms" in results
    }
    sheet.title("Milliseconds: p50 (dark) and p99")
    scale = max((p99 for _, p99 in found.values()), default=1.0)
    for text, (p50, p99) in found.items():
        low = max(0.0, p50)
        parts = [(low, ACCENT), (max(0.0, p99 - low), "#bee3f8")]
        sheet.bar(text, parts, scale, f"{p50:.1f} / {p99:.1f} ms")


def _cpu(sheet: Sheet, results: Mapping[str, Any]) -> None:
    found = {text: results[name] for name, text in CPU.items() if name in results}
    if not found:
        return
    stages = sorted({stage for costs in found.values() for stage in costs})
    sheet.title("CPU microseconds per job, by process")
    scale = max(sum(costs.values()) for costs in found.values())
    for text, costs in found.items():
        parts = [
            (costs.get(stage, 0.0), COLOURS[number % len(COLOURS)])
            for number, stage in enumerate(stages)
        ]
        sheet.bar(text, parts, scale, f"{sum(costs.values()):.0f} µs")
    sheet.legend(stages)


def _peers(sheet: Sheet, results: Mapping[str, Any]) -> None:
    name = "throughput_batch_jobs_per_s"
    found = {peer: got[name] for peer, got in results.get("peers", {}).items() if got.get(name)}
    if not found:
        return
    sheet.title("Beside peers in one run: jobs per second, bulk")
    scale = max(found.values())
    for peer, rate in sorted(found.items(), key=lambda item: -item[1]):
        colour = ACCENT if peer == "jobmesh" else "#a0aec0"
        sheet.bar(peer, [(rate, colour)], scale, f"{rate:,.0f}/s")
