"""Errors of stamps are what the client says minus what the server did, over every request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledgers.rows import RequestRow
from reports.stamp_errors import StampErrors, Truth, pooled, stamp_errors

ROW = RequestRow(
    id="R1", request_id="x-R1", prompt_tokens=1, output_tokens=3, outcome="completed",
    sent_ns=100, first_token_ns=1_100, last_token_ns=2_100, tokens=3,
)  # fmt: skip
TRUTH = Truth(received_ns=5_000, first_token_ns=5_900, last_token_ns=6_950, tokens=3)


def changed(**fields: Any) -> RequestRow:
    return msgspec.structs.replace(ROW, **fields)


def test_an_error_is_what_the_client_says_minus_what_the_server_did() -> None:
    """First token 1,000 ns after the send against 900 after the receipt; last 2,000 against 1,950."""
    assert stamp_errors([ROW], {"x-R1": TRUTH}, 1) == StampErrors([100], [50], [], [], [], 3)


def test_each_token_and_each_gap_is_held_against_the_servers() -> None:
    """1,000, 1,400 and 2,000 ns after the send against 900, 1,450 and 1,950 after the receipt.

    So they are off by 100, -50 and 50, and the gaps of 400 and 600 ns by -150 and 100: they were 550 and 500.
    """
    row = changed(token_ns=[1_100, 1_500, 2_100])
    truth = Truth(5_000, 5_900, 6_950, 3, token_ns=[5_900, 6_450, 6_950])
    errors = stamp_errors([row], {"x-R1": truth}, 1)
    assert (errors.each, errors.gap, errors.gaps) == ([-50, 50, 100], [-150, 100], [400, 600])


def test_gaps_are_known_without_the_servers_but_not_how_far_they_are_off() -> None:
    errors = stamp_errors([changed(token_ns=[1_100, 1_500, 2_100])], {"x-R1": TRUTH}, 1)
    assert (errors.each, errors.gap, errors.gaps) == ([], [], [400, 600])


def test_errors_are_in_order_and_those_of_two_runs_are_as_of_one() -> None:
    """A client can also be early: 900 after the send against 1,000 after the receipt is -100."""
    early = changed(id="R2", request_id="x-R2", first_token_ns=1_000, last_token_ns=2_000)
    truths = {"x-R1": TRUTH, "x-R2": Truth(0, 1_000, 2_000, 3), "probe": TRUTH}
    one = stamp_errors([ROW, early], truths, 2)
    assert (one.first, one.last, one.tokens) == ([-100, 100], [-100, 50], 6)
    assert pooled([stamp_errors([row], truths, 1) for row in (ROW, early)]) == one


def test_a_row_that_does_not_count_its_tokens_is_taken_at_its_word() -> None:
    """Null is not known: a client may date the first and the last event, and no other."""
    assert stamp_errors([changed(tokens=None)], {"x-R1": TRUTH}, 1).tokens == 3


@pytest.mark.parametrize(
    ("rows", "requests", "truths", "said"),
    [
        ([], 1, {"x-R1": TRUTH}, "0 rows for 1 requests"),
        ([ROW], 2, {"x-R1": TRUTH}, "1 rows for 2 requests"),
        ([ROW], 1, {}, "request R1: the server does not know it"),
        ([changed(request_id=None)], 1, {"x-R1": TRUTH}, "request R1: the server does not know it"),
        ([changed(outcome="timeout", error="late")], 1, {"x-R1": TRUTH}, "request R1: timeout, late"),
        ([changed(first_token_ns=None)], 1, {"x-R1": TRUTH}, "request R1: completed, without a token"),
        ([changed(tokens=2)], 1, {"x-R1": TRUTH}, "request R1: not the 3 tokens"),
        ([changed(token_ns=[1_100, 2_100])], 1, {"x-R1": TRUTH}, "request R1: not the 3 tokens"),
    ],
)
def test_no_request_is_passed_over(
    rows: list[RequestRow], requests: int, truths: dict[str, Truth], said: str
) -> None:
    """A failed, missing, unknown or half-read request would leave a figure that looks better than it is."""
    with pytest.raises(ValueError, match=said):
        stamp_errors(rows, truths, requests)
