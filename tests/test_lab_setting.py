"""The setting of the lab in a URL: one canonical form, bounds on every value, what is said of bad ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.lab.setting import DEFAULT, KNOBS, POLICIES, Setting, SettingError, parse, parse_strictly


def test_a_preset_is_its_settings() -> None:
    """The numbers are those that the documentation of the presets gives."""
    setting = parse_strictly("preset=overload")
    assert (setting.rate, setting.batch, setting.wait, setting.slo) == (16.9, 4, 0.2, 1550)
    assert parse_strictly("") == parse_strictly("preset=head-of-line") == DEFAULT


@pytest.mark.parametrize(
    ("query", "canonical"),
    [
        ("rate=2.2", "preset=steady"),
        ("preset=steady&policy=chunked", "preset=steady&policy=chunked"),
        ("policy=chunked&rate=2.20", "preset=steady&policy=chunked"),
        ("preset=steady&rate=8", "preset=busy"),
        ("batch=8&rate=2.2", "rate=2.2&batch=8"),
        ("slo=900&lang=zh", "slo=900&lang=zh"),
        ("hardware=medium&tick=0.02", "preset=head-of-line&hardware=medium"),
        ("hardware=medium&tick=0.1", "preset=head-of-line&hardware=medium&tick=0.1"),
        ("ttft=&tpot=+&rate=3", "rate=3"),
    ],
)
def test_equal_settings_have_one_query(query: str, canonical: str) -> None:
    """A preset is named if it is one; then come what differs from the default, whatever was said before."""
    assert parse_strictly(query).query() == canonical


SETTINGS = st.builds(
    Setting,
    rate=st.integers(100, 100_000).map(lambda n: n / 1000),
    batch=st.integers(1, 64),
    wait=st.integers(0, 10_000).map(lambda n: n / 1000),
    slo=st.integers(1, 600_000).map(float),
    policy=st.sampled_from(POLICIES),
    chunk=st.integers(1, 512),
    hardware=st.sampled_from(["toy", "medium", "large"]),
    tick=st.none() | st.integers(20, 1000).map(lambda n: n / 1000).filter(lambda s: s not in (0.1, 0.02)),
    ttft=st.none() | st.integers(1, 600_000).map(float),
    tpot=st.none() | st.integers(1, 600_000).map(float),
    lang=st.sampled_from([None, "en", "zh"]),
)


@given(SETTINGS)
def test_a_query_carries_the_whole_setting(setting: Setting) -> None:
    """Written and read again it is the same, and so is its query."""
    again = parse_strictly(setting.query())
    assert again == setting
    assert again.query() == setting.query()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("rate=0", "rate"),
        ("rate=100.1", "rate"),
        ("rate=1e2", "rate"),
        ("rate=nan", "rate"),
        ("rate=-1", "rate"),
        ("rate=%D9%A3", "rate"),  # an Arabic digit three
        ("rate=1&rate=2", "rate"),
        ("batch=65", "batch"),
        ("batch=2.5", "batch"),
        ("wait=10.001", "wait"),
        ("wait=0.0001", "wait"),
        ("chunk=513", "chunk"),
        ("slo=0", "slo"),
        ("tick=0.001", "tick"),
        ("policy=classes", "policy"),
        ("preset=none", "preset"),
        ("hardware=/etc/passwd", "hardware"),
        ("lang=de", "lang"),
        ("colour=red", None),
        ("rate=" + "1" * 600, None),
        ("&".join(f"x{n}=1" for n in range(40)), None),
    ],
)
def test_what_cannot_be_used_is_named(query: str, field: str | None) -> None:
    """The message begins with the field, and is one short line; the default stands in its place."""
    with pytest.raises(SettingError) as caught:
        parse_strictly(query)
    problem = caught.value.problem
    assert problem.field == field
    assert field is None or problem.message.startswith(f"{field}: ")
    assert len(problem.message) < 200
    assert "\n" not in problem.message
    setting, problems = parse(query)
    assert problems[0] == problem
    assert field in (None, "rate") or setting == DEFAULT


def test_one_bad_value_leaves_the_others() -> None:
    setting, problems = parse("rate=8&batch=0&policy=static&chunk=x")
    assert (setting.rate, setting.policy, setting.batch, setting.chunk) == (8, "static", 4, 8)
    assert [problem.field for problem in problems] == ["batch", "chunk"]


def test_every_bound_itself_can_be_used() -> None:
    for knob in KNOBS:
        for value in (knob.min, knob.max):
            assert getattr(parse_strictly(f"{knob.name}={value:g}"), knob.name) in (value, None)


@given(st.text(max_size=600))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Whatever stands in a URL, there is a setting that can be used."""
    setting, _ = parse(text)
    assert parse_strictly(setting.query()) == setting
