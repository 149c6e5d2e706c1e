"""What `--require` says, and when it is met."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgers.errors import InputError
from ledgers.metrics import Observations
from ledgers.requirements import judge, parse_requirement
from ledgers.rows import Outcome, RequestRow
from ledgers.settings import Slo

MS = 1_000_000


def observed(
    e2e_ms: Sequence[int], outcomes: dict[int, Outcome] | None = None, slo: Slo | None = None
) -> Observations:
    """One request per second; each has its first token after 10 ms and ends after `e2e_ms` of 5 tokens."""
    seen = Observations(slo or Slo())
    for i, ms in enumerate(e2e_ms):
        start = i * 1_000 * MS
        seen.add(
            RequestRow(
                id=f"R{i}",
                class_="short" if i % 2 == 0 else "long",
                prompt_tokens=1,
                output_tokens=5,
                arrival_ns=start,
                first_token_ns=start + 10 * MS,
                last_token_ns=start + ms * MS,
                end_ns=start + ms * MS,
                tokens=5,
                outcome=(outcomes or {}).get(i, "completed"),
            )
        )
    return seen


def met(text: str, seen: Observations, t_obs_ms: int = 10**6) -> tuple[bool | None, float | None]:
    (judged,) = judge([parse_requirement(text)], seen, t_obs_ms * MS)
    return judged.met, judged.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e2e.p90<=90", (True, 90)),
        ("e2e.p91<=90", (False, 100)),
        ("e2e.p90<90", (False, 90)),
        ("e2el.p50 <= 50", (True, 50)),
        ("e2e.max<=100", (True, 100)),
        ("e2e.mean<=55", (True, 55)),
        ("e2e.mean<55", (False, 55)),
        ("class=short e2e.max<=90", (True, 90)),
        ("class=long e2e.max<=90", (False, 100)),
        ("tpot.p10<=0", (True, 0)),
        ("ttft.p99.9<=10", (True, 10)),
        ("error_rate<=0", (True, 0)),
    ],
)
def test_requirements_of_ten_requests(text: str, expected: tuple[bool, float]) -> None:
    """E2E of 10, 20, ... 100 ms; the percentile is the nearest rank, the short ones are 10, 30, ... 90."""
    assert met(text, observed(range(10, 101, 10))) == expected


def test_what_has_not_ended_is_a_miss() -> None:
    """The tenth of ten requests ends after the window, so p90 is known and p91 is beyond all bounds."""
    seen = observed([10] * 9 + [5_000])
    assert met("e2e.p90<=10", seen, 9_500) == (True, 10)
    assert met("e2e.p91<=60000", seen, 9_500) == (False, None)
    assert met("e2e.mean<=60000", seen, 9_500) == (False, None)
    assert met("throughput>=0.94", seen, 9_500) == (True, 9 / 9.5)


def test_failures_are_errors_and_misses() -> None:
    """Two of ten failed or were rejected, within any limit by their times."""
    seen = observed([10] * 10, {3: "http_error", 4: "rejected"})
    assert met("error_rate<=0.2", seen) == (True, pytest.approx(0.2))
    assert met("error_rate<0.2", seen) == (False, pytest.approx(0.2))
    assert met("e2e.p80<=10", seen)[0]
    assert not met("e2e.p81<=10", seen)[0]


def test_attainment_and_goodput_are_of_the_slo() -> None:
    seen = observed(range(10, 101, 10), slo=Slo(e2e_ms=70))
    assert met("attainment>=0.7", seen, 20_000) == (True, 0.7)
    assert met("attainment>0.7", seen, 20_000) == (False, 0.7)
    assert met("goodput>=0.35", seen, 20_000) == (True, 0.35)
    with pytest.raises(InputError, match="--goodput"):
        met("attainment>=0.7", observed([10]))


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("e2e.p50<=10", None),  # 5 of 11, or 11 of 11
        ("e2e.p50<=9", None),
        ("e2e.p45<=10", True),  # 5 of 11 are enough
        ("e2e.p60<=9", False),  # 6 of 11 are not
        ("e2e.mean<=10", None),
        ("e2e.mean<=4.5", False),  # 50 ms over 11 requests, if the others took no time
        ("throughput>=0.6", None),  # 5 or 11 in 10 s
        ("throughput>=0.5", True),
        ("throughput>=1.2", False),
        ("error_rate<=0.5", None),
        ("error_rate<=0.6", True),
    ],
)
def test_of_requests_without_a_row_nobody_can_tell(text: str, verdict: bool | None) -> None:
    """Six of eleven are lost: met or missed is only what is so whatever became of them."""
    (judged,) = judge([parse_requirement(text)], observed([10] * 5), 10**10, lost=6)
    assert (judged.met, judged.n, judged.lost) == (verdict, 11, 6)


def test_where_no_row_is_left_nobody_can_tell() -> None:
    for text in ("e2e.mean<=10", "e2e.p99<=10", "throughput>=1"):
        (judged,) = judge([parse_requirement(text)], observed([]), 0, lost=3)
        assert judged.met is None, text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected"),
        ("fast", "expected"),
        ("e2e.p95=<3", "expected"),
        ("e2e.p95<=", "expected"),
        ("e2e.p95<=1.2.3", "expected"),
        ("speed.p95<=3", "no metric 'speed'"),
        ("e2e<=3", "of which requests"),
        ("e2e.p95>=3", "better below"),
        ("goodput<=3", "better above"),
        ("goodput.p95>=3", "one figure"),
        ("attainment>=99", "a share from 0 to 1"),
        ("e2e.p100<=3", "max"),
        ("e2e.p0<=3", "max"),
    ],
)
def test_what_is_no_requirement_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        parse_requirement(text)
    assert str(refused.value).startswith(f"--require {text!r}: ")


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(InputError, match="there are: long, short"):
        met("class=medium e2e.p95<=3", observed([1, 2]))


def test_a_client_cannot_be_judged_by_the_queue_delay() -> None:
    with pytest.raises(InputError, match="queue delay"):
        met("queue_delay.p95<=3", observed([1, 2]))
