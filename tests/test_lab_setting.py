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
    ("query", "field", "code"),
    [
        ("rate=0", "rate", "out_of_range"),
        ("rate=100.1", "rate", "out_of_range"),
        ("rate=1e3", "rate", "out_of_range"),
        ("rate=1e999", "rate", "out_of_range"),
        ("rate=-1", "rate", "out_of_range"),
        ("rate=5.1234", "rate", "too_many_decimals"),
        ("rate=12345e-4", "rate", "too_many_decimals"),
        ("rate=1e999999999", "rate", "not_a_number"),
        ("rate=nan", "rate", "not_a_number"),
        ("rate=inf", "rate", "not_a_number"),
        ("rate=1/2", "rate", "not_a_number"),
        ("rate=1_0", "rate", "not_a_number"),
        ("rate=1.2.3", "rate", "not_a_number"),
        ("rate=%D9%A3", "rate", "not_a_number"),  # an Arabic digit three
        ("rate=1&rate=2", "rate", "given_twice"),
        ("batch=65", "batch", "out_of_range"),
        ("batch=2.5", "batch", "too_many_decimals"),
        ("wait=10.001", "wait", "out_of_range"),
        ("wait=0.0005", "wait", "too_many_decimals"),
        ("chunk=513", "chunk", "out_of_range"),
        ("slo=0", "slo", "out_of_range"),
        ("tick=0.001", "tick", "out_of_range"),
        ("policy=classes", "policy", "not_a_choice"),
        ("preset=none", "preset", "not_a_choice"),
        ("hardware=/etc/passwd", "hardware", "not_a_choice"),
        ("lang=de", "lang", "not_a_choice"),
        ("colour=red", None, "unknown_field"),
        ("rate=" + "1" * 600, None, "query_too_long"),
        ("&".join(f"x{n}=1" for n in range(40)), None, "too_many_fields"),
    ],
)
def test_what_cannot_be_used_is_named(query: str, field: str | None, code: str) -> None:
    """The message begins with the field, and is one short line; the default stands in its place."""
    with pytest.raises(SettingError) as caught:
        parse_strictly(query)
    problem = caught.value.problem
    assert (problem.field, problem.code) == (field, code)
    assert field is None or problem.message.startswith(f"{field}: ")
    assert len(problem.message) < 200
    assert "\n" not in problem.message
    setting, problems = parse(query)
    assert problems[0] == problem
    assert field in (None, "rate") or setting == DEFAULT


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("rate=5.1234", "rate: 5.1234 has more than 3 decimals; expected a number from 0.1 to 100 (req/s)"),
        ("batch=2.5", "batch: 2.5 is not a whole number; expected a whole number from 1 to 64 (requests)"),
        ("wait=11", "wait: 11 is out of range; expected a number from 0 to 10 (s)"),
        ("wait=x", "wait: x is not a number; expected a number from 0 to 10 (s)"),
    ],
)
def test_a_bad_number_is_told_its_true_reason(query: str, why: str) -> None:
    _, (problem,) = parse(query)
    assert problem.message == why


def test_a_problem_has_the_figures_of_its_message() -> None:
    """So that it can be said in other words."""
    _, (problem,) = parse("rate=5.1234")
    expected = {"value": "5.1234", "min": 0.1, "max": 100, "unit": "req/s", "decimals": 3}
    assert problem.values == expected


@pytest.mark.parametrize(
    ("text", "rate"), [("1e1", 10), ("25E-1", 2.5), (".5", 0.5), ("0008.2500", 8.25), ("1e2", 100)]
)
def test_what_a_number_field_takes_is_taken(text: str, rate: float) -> None:
    assert parse_strictly(f"rate={text}").rate == rate


def test_no_wait_has_one_form() -> None:
    assert parse_strictly("wait=-0").query() == parse_strictly("wait=0").query() == "wait=0"


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
