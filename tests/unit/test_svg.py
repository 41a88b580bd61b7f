"""Plots are well-formed and show their data."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from semspec.report.svg import Plot, ticks

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 7, [-2, 0, 2, 4, 6]),
        (0, 120, [0, 25, 50, 75, 100]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_everything_drawn_is_in_the_svg() -> None:
    plot = Plot("a < b & c", "x", "y", x=(0, 1), y=(0, 1))
    plot.points([0, 0.5, math.nan], [0, 0.5, 1], label="points")
    plot.line([0, 1], [1, 0], label="line", dashed=True)
    plot.bars([0.25, 0.75], [0.5, 1.0])
    root = ElementTree.fromstring(plot.svg())
    circles = root.findall(f".//{SVG}circle")
    assert len(circles) == 2  # what is no number is left out
    assert (circles[0].get("cx"), circles[0].get("cy")) == ("56.0", "276.0")
    assert len(root.findall(f".//{SVG}polyline")) == 1
    texts = {t.text for t in root.findall(f".//{SVG}text")}
    assert {"a < b & c", "x", "y", "points", "line", "0.4"} <= texts


@pytest.mark.parametrize("value", [0.0, 0.04, 0.5])
def test_a_name_below_its_point_stays_clear_of_the_axis(value: float) -> None:
    plot = Plot("plane", "x", "y", y=(0, 1))
    plot.points([1.0], [value], radius=5, names=["target alone"], below=True)
    root = ElementTree.fromstring(plot.svg())
    name = next(t for t in root.findall(f".//{SVG}text") if t.text == "target alone")
    point = root.find(f".//{SVG}circle")
    assert point is not None
    at, centre = float(str(name.get("y"))), float(str(point.get("cy")))
    assert at <= 276 - 3 and (at > centre) == (value == 0.5)  # the axis is at 276


def test_a_logarithmic_axis_names_its_values() -> None:
    plot = Plot("curve", "rows", "Spearman", log_x=True)
    plot.line([100, 1000, 10000], [0.1, 0.5, 0.7])
    root = ElementTree.fromstring(plot.svg())
    points = str(root.find(f".//{SVG}polyline").get("points")).split()  # type: ignore[union-attr]
    xs = [float(p.split(",")[0]) for p in points]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert {"100", "1000", "10000"} <= {t.text for t in root.findall(f".//{SVG}text")}


def test_a_plot_without_points_is_valid() -> None:
    plot = Plot("nothing", "x", "y")
    plot.line([], [])
    plot.points([1.0], [2.0])
    ElementTree.fromstring(plot.svg())
