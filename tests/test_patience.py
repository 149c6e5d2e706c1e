"""When clients give up and when they try again."""

from __future__ import annotations

import pytest

from ledgers.rows import Outcome
from ledgers.units import NS_PER_S
from loadgen.patience import Patience, Retries

SENT = 5 * NS_PER_S


def at(seconds: float) -> int:
    return SENT + round(seconds * NS_PER_S)


def test_without_limits_a_client_waits_for_ever() -> None:
    """Streams of hours are nobody's fault."""
    assert Patience().limit(SENT, None, cancels=False) is None
    assert Patience(stall_s=1).limit(SENT, None, cancels=False) is None


@pytest.mark.parametrize(
    ("last_token_s", "expected_s", "word"),
    [
        (None, 2, "--first-token-timeout 2 s"),
        (1, 4, "--stall-timeout 3 s"),
        (8, 10, "--request-timeout 10 s"),
    ],
)
def test_the_first_limit_counts(last_token_s: float | None, expected_s: float, word: str) -> None:
    """The first token ends its own limit; from then on gaps count; the request has a limit throughout."""
    patience = Patience(first_token_s=2, stall_s=3, request_s=10)
    last_token = None if last_token_s is None else at(last_token_s)
    limit = patience.limit(SENT, last_token, cancels=False)
    assert limit is not None
    assert (limit.at_ns, limit.outcome) == (at(expected_s), "timeout")
    assert word in limit.why


def test_a_client_that_gives_up_is_no_timeout() -> None:
    """It does so at its time, token or not."""
    patience = Patience(stall_s=1, cancel_rate=1, cancel_after_s=2)
    for last_token in (None, at(1.5)):
        limit = patience.limit(SENT, last_token, cancels=True)
        assert limit is not None
        assert (limit.at_ns, limit.outcome) == (at(2), "cancelled")


def test_who_gives_up_depends_on_seed_and_request_alone() -> None:
    """About the share asked for, the same ones each time, others with another seed."""
    drawn = [Patience(cancel_rate=0.3, cancel_after_s=1, seed=1).cancels(i) for i in range(2000)]
    assert 0.26 < sum(drawn) / 2000 < 0.34
    assert drawn == [Patience(cancel_rate=0.3, cancel_after_s=9, seed=1).cancels(i) for i in range(2000)]
    assert drawn != [Patience(cancel_rate=0.3, cancel_after_s=1, seed=2).cancels(i) for i in range(2000)]
    assert all(Patience(cancel_rate=1, cancel_after_s=1).cancels(i) for i in range(100))


@pytest.mark.parametrize(
    ("outcome", "status", "began", "wanted"),
    [
        ("connect_error", None, False, True),
        ("timeout", None, False, True),
        ("timeout", 200, True, False),
        ("http_error", 429, False, True),
        ("http_error", 503, False, True),
        ("http_error", 400, False, False),
        ("truncated", 200, True, False),
        ("completed", 200, True, False),
        ("cancelled", 200, False, False),
    ],
)
def test_what_is_tried_again(outcome: Outcome, status: int | None, began: bool, wanted: bool) -> None:
    """What SDKs try again: no answer, too many requests, a server's fault; never an answer that had begun."""
    assert Retries(most=2).wanted(0, outcome, status, began) is wanted
    assert not Retries(most=2).wanted(2, outcome, status, began)
    assert not Retries().wanted(0, outcome, status, began)


def test_the_wait_before_the_next_attempt() -> None:
    """What the server says, within reason; else half a second, doubled up to eight, less a quarter."""
    retries = Retries(most=9)
    assert retries.wait_s(0, 0, 2.5) == 2.5
    assert retries.wait_s(0, 0, 0.0) == 0
    assert retries.wait_s(0, 0, 86_400.0) == retries.wait_s(0, 0, None)
    for attempt, longest in enumerate([0.5, 1, 2, 4, 8, 8]):
        waits = [retries.wait_s(index, attempt, None) for index in range(50)]
        assert 0.75 * longest <= min(waits) < max(waits) <= longest
