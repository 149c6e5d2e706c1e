"""Charts: where values are drawn, what is left out, and that each can be read without eyes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from reports.charts import (
    Axis,
    Band,
    Bar,
    Bound,
    Chart,
    Effect,
    Series,
    Table,
    effects,
    lines,
    percentile_points,
    scatter,
    timeline,
)
from reports.charts.effects import VERDICTS
from reports.charts.scales import Scale, scale, ticks
from reports.charts.thinning import outline, thinned

HOSTILE = '</svg><script>alert("1")</script>\x00\u202e\ud800 & more'
Y = Axis("TTFT", "ms")
LONG = "request-of-one-long-session-0042"


def every_kind(name: str = "name") -> list[Chart]:
    """One chart of each kind, with this text wherever a text can be."""
    points = [(0.0, 1.0), (1.0, 3.0), (2.0, float("nan")), (3.0, 2.0)]
    spans = [("queue", 0.0, 1.0), ("prefill", 1.0, 1.5), (name, 1.5, 2.0)]
    axis = Axis(name, name)
    return [
        lines(
            name,
            name,
            [Series(name, points, spread=[(0.5, 2.0), None, None, (1.0, 3.0)]), Series(name, points, "area")],
            y=axis,
            bounds=[Bound(name, 4), Bound(name, 1, "x")],
            bands=[Band(name, 0, 1)],
            note=name,
        ),
        scatter(name, name, [Series(name, points[:2])], x=axis, y=axis, identity=True),
        effects(name, name, [Effect(name, 40, None, 50, 5, verdict, name) for verdict in VERDICTS]),
        timeline(name, name, [Bar(name, spans, name), Bar("R02", [])], bounds=[(name, 1.0)]),
        timeline(name, name, [Bar(name, spans, name)] * 100),
        lines(name, name, [], y=axis),
    ]


def parsed(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{chart.svg}</div>")


def test_a_percentile_axis_gives_each_nine_as_much_room() -> None:
    """log10(1/(1 - q)): from 0 to 99.99 %, 90 % is at a quarter, 99 % at half, 50 % at 0.301/4."""
    of = Scale("percentile", 0.0, 0.9999, 0.0, 400.0)
    assert [round(of.at(q), 1) for q in (0, 0.5, 0.9, 0.99, 0.999, 0.9999)] == [0, 30.1, 100, 200, 300, 400]
    assert [tick.label for tick in ticks(of)] == ["0", "50%", "90%", "99%", "99.9%", "99.99%"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 4.2], ["0", "1", "2", "3", "4", "5"]),
        ([0, 0.42], ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        ([0, 11.5], ["0.0", "2.5", "5.0", "7.5", "10.0", "12.5"]),
        ([0, 48_000], ["0", "10k", "20k", "30k", "40k", "50k"]),
        ([-3, 3], ["-4", "-2", "0", "2", "4"]),
        ([100.2, 100.4], ["100.20", "100.25", "100.30", "100.35", "100.40"]),
        ([7], ["0", "2", "4", "6", "8"]),
        ([], ["0", "2", "4", "6", "8", "10"]),
    ],
)
def test_ticks_are_round_and_around_the_values(values: list[float], expected: list[str]) -> None:
    """From zero where that is near."""
    assert [tick.label for tick in ticks(scale(Axis("x"), values, 0, 100))] == expected


def test_a_log_axis_gives_each_decade_as_much_room() -> None:
    """Values of 0 and less have no place on it, and do not break it."""
    of = scale(Axis("x", scale="log"), [0, -1, 1, 1000], 0, 300)
    assert [round(of.at(value)) for value in (1, 10, 100, 1000)] == [0, 100, 200, 300]
    assert [tick.label for tick in ticks(of)] == ["1", "10", "100", "1000"]
    assert [tick.label for tick in ticks(scale(Axis("x", scale="log"), [0], 0, 300))] == ["1", "2", "5", "10"]


def test_a_percentile_curve_is_that_of_the_ranks() -> None:
    """A share i/n of n values is lower than the one at place i; the largest goes on to the end."""
    assert percentile_points([1, 2, 3, 10]) == [(0.0, 1), (0.25, 2), (0.5, 3), (0.75, 10), (1.0, 10)]
    many = percentile_points(range(1_000_000))
    assert len(many) < 3_000
    assert many[-2] == (0.999999, 999_999)
    assert all(round(q * 1_000_000) == value for q, value in many[:-1])
    assert percentile_points([]) == []


def test_thinning_keeps_the_extremes() -> None:
    """A single peak and a single dip among 100,000 points; few points stay as they are."""
    points = [(float(i), 5.0) for i in range(100_000)]
    points[63_211], points[70_000] = (63_211.0, 1_000.0), (70_000.0, -50.0)
    for kept in (thinned(points, 800), outline(iter(points), 0, 99_999, 800)):
        assert len(kept) <= 800
        assert {points[0], points[63_211], points[70_000], points[-1]} <= set(kept)
        assert kept == sorted(kept)
    assert thinned(points[:50], 800) == points[:50]


def test_a_chart_of_many_points_is_small_and_says_that_it_is_thinned() -> None:
    """The peak is at the height of its value."""
    points = [(float(i), 5.0) for i in range(100_000)]
    points[63_211] = (63_211.0, 1_000.0)
    chart = lines("t", "d", [Series("TTFT", points)], y=Axis("TTFT", "ms", low=0, high=1000))
    assert len(chart.svg) < 30_000
    assert "TTFT: of 100,000 points the extremes" in chart.note
    drawn = next(path for path in parsed(chart).iter("path") if "line" in path.get("class", ""))
    highest = min(float(place.split()[1]) for place in drawn.get("d", "")[1:].split("L"))
    top = min(
        float(path.get("d", "").split()[1].split("H")[0])
        for path in parsed(chart).iter("path")
        if path.get("class") == "grid"
    )
    assert highest == top


def test_every_chart_has_a_name_a_description_and_a_table() -> None:
    """As markup that can be parsed, without ids that could clash, and without style or script of its own."""
    for chart in every_kind():
        root = parsed(chart)
        image = next(each for each in root.iter("svg") if each.get("role") == "img")
        assert (image[0].tag, image[0].text) == ("title", "name")
        assert (image[1].tag, image[1].text) == ("desc", "name")
        assert isinstance(chart.table, Table)
        assert all(len(row) == len(chart.table.head) for row in chart.table.rows)
        for each in root.iter():
            assert not {"id", "style", "href"} & set(each.keys())
            assert each.tag != "script"


def test_text_stays_text() -> None:
    """Tags, controls, marks that turn a line round, half characters."""
    for chart in every_kind(HOSTILE):
        assert "<script" not in chart.svg
        assert not {"\x00", "\u202e", "\ud800"} & set(chart.svg)
        assert 'alert("1")' in "".join(parsed(chart).itertext())


def test_equal_input_gives_equal_bytes() -> None:
    assert every_kind() == every_kind()


def test_a_gap_is_not_bridged() -> None:
    """A value that is not a number ends a curve, and another begins."""
    chart = lines("t", "d", [Series("a", [(0, 1), (1, 1), (2, float("nan")), (3, 1), (4, 1)])], y=Y)
    drawn = next(path for path in parsed(chart).iter("path") if path.get("class") == "line s1")
    assert drawn.get("d", "").count("M") == 2


def test_a_timeline_of_thousands_is_a_sample_in_a_box_that_scrolls() -> None:
    """One path for each phase; the box takes the keyboard; the note says what is drawn."""
    rows = [Bar(f"R{i}", [("queue", i, i + 1), ("decode", i + 1, i + 2)]) for i in range(10_000)]
    chart = timeline("t", "d", rows)
    box = next(each for each in parsed(chart).iter("div") if each.get("class") == "timeline")
    assert (box.get("tabindex"), box.get("role"), box.get("aria-label")) == ("0", "region", "t")
    paths = [path for path in box.iter("path") if "thin" in path.get("class", "")]
    assert [path.get("class") for path in paths] == ["thin queue", "thin decode"]
    assert paths[0].get("d", "").count("M") == 3_000
    assert "3,000 of 10,000" in chart.note


def test_a_timeline_of_a_few_names_each_request() -> None:
    """Its label, a box for each phase, its mark, and what happened when, to be read by hovering."""
    spans = [("queue", 0.5, 1), ("prefill", 1, 1.5), ("decode", 1.5, 3)]
    chart = timeline("t", "d", [Bar("R01", spans, "†")], words_for={"queue": "wait"})
    group = next(parsed(chart).iter("g"))
    assert [each.text for each in group.iter("text")] == ["R01", "†"]
    assert [each.get("class") for each in group.iter("rect")] == [
        "phase queue",
        "phase prefill",
        "phase decode",
    ]
    assert group[0].text == "R01: wait 0.5-1 s, prefill 1-1.5 s, decode 1.5-3 s †"
    assert chart.table == Table(
        ["request", "from, s", "wait, s", "prefill, s", "decode, s"], [["R01 †", "0.5", "0.5", "0.5", "1.5"]]
    )


@pytest.mark.parametrize(
    "chart",
    [timeline("t", "d", [Bar(LONG, [])]), effects("t", "d", [Effect(LONG, 1, 0, 2, 5, "worse", "")])],
    ids=["timeline", "effects"],
)
def test_a_long_name_keeps_its_beginning_and_its_end(chart: Chart) -> None:
    """With the mark for a cut that the tables of a terminal have too."""
    texts = [each.text or "" for each in parsed(chart).iter("text")]
    (name,) = [text for text in texts if text.startswith("req")]
    assert re.fullmatch(r"req[^~]*~[^~]*-0042", name)


def test_colours_come_from_classes() -> None:
    """So that a page in the dark and one on paper can have others."""
    for chart in every_kind():
        assert not {"fill", "stroke"} & {name for each in parsed(chart).iter() for name in each.attrib}
