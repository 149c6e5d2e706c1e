"""When generated output came: a time for each event that carries some, of each choice that is in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.dialects.dialect import Output


class ReadCounts:
    """How many reads carried generated output, and how many of them more than one event of it.

    A read dates only its last event: those before it came earlier by an unknown time.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.with_several_events = 0


class TokenTimes:
    """Of one request.

    `ns` has the times, `choices` to which choice each belongs: None while all are of the first choice.
    `shared_reads` counts the events that came in the read of the one before them.
    """

    def __init__(self, counts: ReadCounts) -> None:
        """`counts` adds up the reads of all requests."""
        self.ns: list[int] = []
        self.choices: list[int] | None = None
        self.events = 0
        self.shared_reads = 0
        self.first_content_ns: int | None = None
        self.last_ns: int | None = None
        self._counts = counts

    def add(self, output: Sequence[Output], ns: int) -> None:
        """An event with generated output: a token of each choice that is in it."""
        self.events += 1
        self.last_ns = ns
        if self.first_content_ns is None and any(piece.kind != "reasoning" for piece in output):
            self.first_content_ns = ns
        choices = {0} if len(output) == 1 and not output[0].choice else {piece.choice for piece in output}
        if self.choices is None:
            if choices == {0}:
                self.ns.append(ns)
                return
            self.choices = [0] * len(self.ns)
        self.ns += [ns] * len(choices)
        self.choices += sorted(choices)

    def add_usual(self, stamps: Sequence[int]) -> None:
        """Tokens of the first choice, of the kind of one before."""
        self.events += len(stamps)
        self.last_ns = stamps[-1]
        self.ns += stamps
        if self.choices is not None:
            self.choices += [0] * len(stamps)

    def add_whole(self, ns: int) -> None:
        """The answer came in one piece, where a stream was asked for: it has an end, but no first token."""
        self.events, self.last_ns = 1, ns

    def count_read(self, events: int) -> None:
        """So many events were in one read."""
        self._counts.reads += 1
        self._counts.with_several_events += events > 1
        self.shared_reads += events - 1

    def count_single_reads(self, reads: int) -> None:
        """So many reads had one event each."""
        self._counts.reads += reads

    def decode_ns(self) -> int | None:
        """First to last token of each choice, summed; None where there was one choice."""
        if self.choices is None:
            return None
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for choice, ns in zip(self.choices, self.ns, strict=True):
            first.setdefault(choice, ns)
            last[choice] = ns
        return sum(last[choice] - ns for choice, ns in first.items())
