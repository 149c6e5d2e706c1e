"""What may differ between runs that are compared."""

from __future__ import annotations

from ledgers.rundir import LedgerInfo, RunConfig, RunInfo
from reports.compare_settings import differences


def measured(**prompts: object) -> RunInfo:
    return RunInfo(kind="measured", config=RunConfig(extra={"prompts": prompts}), ledger=LedgerInfo("trace"))


def test_repeats_with_prompts_of_their_own_may_be_compared() -> None:
    """Without --seed every run draws other prompts, so that no cache knows them from the run before."""
    one, other = (measured(seed=seed, counted_by="server", words=860) for seed in (1, 2))
    assert differences(one, other) == {}


def test_prompts_that_were_counted_by_another_may_not() -> None:
    one, other = (measured(seed=1, counted_by=who) for who in ("server", "tokenizer"))
    assert differences(one, other) == {
        "asking": {"prompts": ({"counted_by": "server"}, {"counted_by": "tokenizer"})}
    }
