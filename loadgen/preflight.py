"""What happens before the clock starts: who is there, what it takes, and how it counts.

The preflight ends a run only for what would make every request fail and the user can mend: all else is the
run's to measure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from ledgers.errors import TargetError
from ledgers.rows import RequestRow
from ledgers.vocabulary import COMMON_WORDS, count_tokens
from loadgen.negotiation import Agreement, Asked, Refusal, advice, negotiate
from loadgen.probe import Probed, Prober
from loadgen.prompts import RequestEncoder
from loadgen.recorder import NO_API
from loadgen.server_facts import Models, Preflight, Questions, questions, server_name
from loadgen.target import Target
from loadgen.tokenizer import TokenCounter
from loadgen.transport import Transport
from loadgen.wording import FEWEST_WORDS, UNCHECKED, Calibration, Wording, calibrate, sentence

FALLBACK_MODEL = "default"
_PROBE_TOKENS = 16  # some servers take no fewer
_CALLS_BY_USAGE = 6  # each is a request with a prefill
_CALLS_BY_TOKENIZER = 40
_MOCK = "tokentick"
_UNANSWERED = Refusal(0, "a probe with it had no answer")
_LOOPBACK = ("localhost", "127.", "::1")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """How the run has to ask, and what it should say about the server.

    `model` is what requests name, not scrubbed; all other texts are. `switched_off` are fields that were
    wanted and are not sent, with the reason. `wording_from` says who counted for the wording. `streams` and
    `counts_tokens` (in a usage) are None where no probe was answered.
    """

    model: str
    fields: frozenset[str]
    wording: Wording
    wording_from: str
    switched_off: dict[str, str] = {}
    facts: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    streams: bool | None = None
    counts_tokens: bool | None = None

    def applied_to(self, encoder: RequestEncoder) -> RequestEncoder:
        return msgspec.structs.replace(encoder, model=self.model, fields=self.fields, wording=self.wording)


def unasked(encoder: RequestEncoder, url: str, tokenizer: TokenCounter | None = None) -> Found:
    """What a run without a preflight goes by: everything is sent that was wanted."""
    wording, source = encoder.wording, "nobody"
    if tokenizer is not None and not wording.is_ids:
        found = _by_file(tokenizer)
        wording, source = (wording, source) if found is None else (found, "--tokenizer")
    return Found(
        model=encoder.model or FALLBACK_MODEL,
        fields=encoder.fields,
        wording=wording,
        wording_from=source,
        facts={"url": url},
    )


async def preflight(
    asking: Preflight,
    transport: Transport,
    encoder: RequestEncoder,
    rows: Sequence[RequestRow],
    *,
    id_prefix: str,
    timeout_s: float = 30.0,
    tokenizer: TokenCounter | None = None,
) -> Found:
    """Look at the server, and find out by probes which fields it takes and how it counts prompts.

    `encoder` has what the options ask for, and the model "" where it has to be found. TargetError if the run
    would be in vain.
    """
    async with questions(asking, transport.address, transport.tls) as server:
        models = await server.models()
        given = bool(encoder.model)
        model = encoder.model or next(iter(models.ids), FALLBACK_MODEL)
        encoder = msgspec.structs.replace(encoder, model=model)
        prober = Prober(asking, transport, encoder, id_prefix, timeout_s)
        sizes = _Sizes(rows, models.facts(model).get("max_model_len"))
        return await _Look(asking, server, models, prober, sizes, tokenizer, given).found()


class _Sizes:
    """How large probes may be: no larger than the largest request of the ledger, for a server may be small.

    Nor than the server's context, where it is known. A calibration needs a few words nevertheless.
    """

    def __init__(self, rows: Sequence[RequestRow], context: int | None) -> None:
        largest = max(rows, key=lambda row: row.prompt_tokens + row.output_tokens)
        room = largest.prompt_tokens + largest.output_tokens if context is None else context
        self.fit = room > 1  # a word and a token at least
        self.output_tokens = max(1, min(_PROBE_TOKENS, largest.output_tokens, room // 2))
        prompt_tokens = min(largest.prompt_tokens, room - self.output_tokens)
        words = max(FEWEST_WORDS, (prompt_tokens - 1) // 2)  # they are sent twice over
        self.words = COMMON_WORDS[:words]
        self.text = sentence(self.words[: max(0, prompt_tokens - 1)])
        self.totals = [row.prompt_tokens + row.output_tokens for row in rows]
        self.lengths = [row.prompt_tokens for row in rows if row.prompt is None]  # of prompts to be made


class _Look:
    """One look at one server."""

    def __init__(
        self,
        asking: Preflight,
        server: Questions,
        models: Models,
        prober: Prober,
        sizes: _Sizes,
        tokenizer: TokenCounter | None,
        model_given: bool,
    ) -> None:
        self._asking = asking
        self._server = server
        self._models = models
        self._prober = prober
        self._sizes = sizes
        self._tokenizer = tokenizer
        self._model_given = model_given
        self._wanted = prober.encoder.fields
        self._notes: list[str] = []

    async def found(self) -> Found:
        self._note_model()
        agreement, probed = await self._agree()
        self._stop_if_hopeless(probed)
        if agreement.refusal is not None:  # a failure that may pass, and had nothing to do with the fields
            agreement = Agreement(self._wanted, {})
        elif probed.ran_on:
            agreement, probed = await self._bound(agreement, probed)
        self._take(agreement.fields)
        self._note_fields(agreement.switched_off)
        self._note_answer(probed)
        wording, source = await self._wording(probed)
        self._note_wording(wording, source)
        self._note_context()
        self._notes += proxy_notes(self._asking.target)
        return Found(
            model=self._model,
            fields=agreement.fields,
            wording=wording,
            wording_from=source,
            switched_off=agreement.switched_off,
            facts=await self._facts(probed),
            notes=tuple(self._notes),
            streams=probed.row.streamed if probed.completed else None,
            counts_tokens=probed.row.token_source == "usage" if probed.completed else None,
        )

    @property
    def _model(self) -> str:
        return self._prober.encoder.model

    def _take(self, fields: frozenset[str]) -> None:
        self._prober.encoder = msgspec.structs.replace(self._prober.encoder, fields=fields)

    async def _probe(self, fields: frozenset[str]) -> Probed:
        self._take(fields)
        return await self._prober.send(self._sizes.text, self._sizes.output_tokens)

    async def _agree(self) -> tuple[Agreement, Probed]:
        """What the negotiation comes to, and the last probe that was not refused for its fields."""
        negotiation = negotiate(self._wanted)
        fields = next(negotiation)
        taken: Probed | None = None
        while True:
            probed = await self._probe(fields)
            refusal = probed.refusal
            if refusal is None or not refusal.minds_fields:
                if taken is None or probed.completed:
                    refusal, taken = None, probed
                else:  # nothing was learnt: what was left out stays so
                    refusal = _UNANSWERED
            try:
                fields = negotiation.send(refusal)
            except StopIteration as done:
                return done.value, taken or probed

    async def _bound(self, agreement: Agreement, probed: Probed) -> tuple[Agreement, Probed]:
        """The output ran on: the older name of its limit may be the one that the server knows."""
        newer = "max_completion_tokens"
        if newer in agreement.fields:
            again = await self._probe(agreement.fields - {newer})
            if again.completed and not again.ran_on:
                off = {**agreement.switched_off, newer: "not heeded: max_tokens is"}
                return Agreement(agreement.fields - {newer}, off), again
        self._notes.append("the server does not keep to the output length that is asked for")
        return agreement, probed

    def _stop_if_hopeless(self, probed: Probed) -> None:
        url, path = self._asking.target.url, self._asking.scrub(self._prober.encoder.path)
        row = probed.row
        if row.http_status is None and row.outcome != "timeout" and not self._models.answered:
            raise TargetError(f"{url}: cannot be used: {row.error}")
        if row.error is not None and row.error.startswith(NO_API):
            raise TargetError(f"{url}: POST {path} answers {row.error} (see --base-url, --endpoint)")
        if probed.refusal is not None and self._sizes.fit:
            advised = advice(probed.refusal, self._asked(probed))
            if advised is not None:
                why = f"{probed.refusal.why} ({self._asking.scrub(advised)})"
                raise TargetError(f"{url}: POST {path} answers {why}")

    def _asked(self, probed: Probed) -> Asked:
        return Asked(
            model=self._model,
            model_given=self._model_given,
            listed=self._models.ids,
            key_source=self._asking.key_source,
            extra_body=bool(self._prober.encoder.extra_body),
            location=probed.headers.get("location"),
        )

    # How it counts

    async def _wording(self, probed: Probed) -> tuple[Wording, str]:
        """The wording, and who counted for it."""
        wording, text = self._prober.encoder.wording, self._sizes.text
        counted = probed.row.usage_prompt_tokens if probed.completed else None
        if not self._sizes.lengths:
            return wording, "prompts of the ledger"
        if wording.is_ids:
            if counted is None:
                return wording, "nobody"
            return wording.with_overhead(max(0, counted - count_tokens(text))), "usage"
        if self._is_mock(probed) and counted in (None, count_tokens(text)):
            return wording, "vocabulary"
        for source, count in (("--tokenizer", self._by_tokenizer), ("/tokenize", self._by_server)):
            found = await _drive(calibrate(self._sizes.words, _CALLS_BY_TOKENIZER), count)
            if found is not None:
                return await self._with_template(found, count, counted), source
        if counted is not None:
            by_usage = _ByUsage(self._prober, {text: counted}, self._sizes.output_tokens)
            found = await _drive(calibrate(self._sizes.words, _CALLS_BY_USAGE), by_usage.count)
            if found is not None:
                return found, "usage"
        return UNCHECKED, "nobody"

    def _is_mock(self, probed: Probed) -> bool:
        """Whether it is a server of ours, which counts as the vocabulary does."""
        names = (server_name(probed.headers), self._models.server, self._models.owner(self._model))
        return any(name is not None and name.partition("/")[0] == _MOCK for name in names)

    async def _by_tokenizer(self, text: str) -> int | None:
        return None if self._tokenizer is None else self._tokenizer.count(text)

    async def _by_server(self, text: str) -> int | None:
        if not self._models.answered:
            return None
        return await self._server.count_tokens(text, self._model, self._prober.next_id())

    async def _with_template(self, wording: Wording, count: _Count, counted: int | None) -> Wording:
        """A tokenizer knows the text alone; what the server says of the same text tells the rest."""
        in_text = await count(self._sizes.text)
        if counted is None or in_text is None:
            self._notes.append("what the server puts around prompts is not counted: it says no usage")
            return wording
        around = counted - in_text
        if around < 0:
            self._notes.append(
                f"the server counts {counted} tokens and the tokenizer {in_text}: is it this model's?"
            )
        return wording.with_overhead(max(0, wording.overhead + around))

    # What to say

    def _note_model(self) -> None:
        if self._models.fault is not None:
            self._notes.append(self._models.fault)
        model, listed = self._asking.scrub(self._model), len(self._models.ids)
        if self._model_given:
            if listed and self._model not in self._models.ids:
                some = ", ".join(map(self._asking.scrub, self._models.ids[:5]))
                self._notes.append(f"{model} is not among the {listed} models listed: {some}")
        elif listed > 1:
            self._notes.append(f"asked for {model}, the first of {listed} models: --model takes another")
        elif not listed:
            self._notes.append(f"no --model given and none listed: asked for {model!r}")

    def _note_fields(self, switched_off: Mapping[str, str]) -> None:
        reasons: dict[str, list[str]] = {}
        for name, why in switched_off.items():
            reasons.setdefault(why, []).append(name)
        self._notes += [f"not sent: {', '.join(names)} ({why})" for why, names in reasons.items()]
        if "ignore_eos" in switched_off:
            self._notes.append("without ignore_eos an output can end before the ledger's length")

    def _note_answer(self, probed: Probed) -> None:
        row = probed.row
        if not probed.completed:
            if not probed.ran_on:
                self._notes.append(f"a probe ended as {row.outcome}: {self._asking.short(row.error or '')}")
            return
        if not row.streamed:
            self._notes.append(
                "the server does not stream: E2E only, TTFT, TPOT and ITL cannot be known "
                "(see --endpoint, or a gateway that buffers)"
            )
        if row.token_source != "usage":
            by = "--tokenizer" if self._tokenizer else f"{row.token_source or 'nobody'}; see --tokenizer"
            self._notes.append(f"the server says no usage: output tokens are counted by {by}")

    def _note_wording(self, wording: Wording, source: str) -> None:
        if source == "nobody":
            self._notes.append("prompt lengths are not checked by any count of the server's: see --tokenizer")
        if not wording.is_exact:
            self._notes.append(
                f"prompt lengths are approximate: a word is {wording.tokens_per_word:.2f} tokens on average"
            )
        short = sum(length < wording.shortest for length in self._sizes.lengths)
        if short:
            self._notes.append(
                f"{short} prompts are longer than the ledger says: the shortest has {wording.shortest} tokens"
            )

    def _note_context(self) -> None:
        context = self._models.facts(self._model).get("max_model_len")
        longer = 0 if context is None else sum(length > context for length in self._sizes.totals)
        if longer:
            self._notes.append(f"{longer} requests are longer than the model's context of {context} tokens")

    async def _facts(self, probed: Probed) -> dict[str, Any]:
        server = self._models.server or server_name(probed.headers)
        facts = {
            "url": self._asking.target.url,
            **({} if server is None else {"server": server}),
            **(await self._server.version() if self._models.answered else {}),
            "model": self._model,
            **self._models.facts(self._model),
        }
        scrub = self._asking.scrub
        return {name: scrub(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}


class _ByUsage:
    """Counts a text by having it answered, as shortly as the server lets us."""

    def __init__(self, prober: Prober, known: dict[str, int], probe_tokens: int) -> None:
        self._prober = prober
        self._known = known
        self._most: tuple[int, ...] = (1, probe_tokens)  # some servers take no limit as small as 1

    async def count(self, text: str) -> int | None:
        if text in self._known:
            return self._known[text]
        probed = await self._prober.send(text, self._most[0])
        if probed.refusal is not None and len(self._most) > 1:
            self._most = self._most[1:]
            return await self.count(text)
        return probed.row.usage_prompt_tokens


_Count = Callable[[str], Awaitable[int | None]]


async def _drive(calibration: Calibration, count: _Count) -> Wording | None:
    """Let it ask; None as soon as nobody can count."""
    text = next(calibration)
    while (tokens := await count(text)) is not None:
        try:
            text = calibration.send(tokens)
        except StopIteration as done:
            wording: Wording | None = done.value
            return wording
    return None


def _by_file(tokenizer: TokenCounter) -> Wording | None:
    calibration = calibrate(COMMON_WORDS, _CALLS_BY_TOKENIZER)
    text = next(calibration)
    while True:
        try:
            text = calibration.send(tokenizer.count(text))
        except StopIteration as done:
            wording: Wording | None = done.value
            return wording


def proxy_notes(target: Target) -> list[str]:
    """Proxies that the environment names for this target: a measurement goes to the server itself."""
    if target.host.startswith(_LOOPBACK):
        return []
    from urllib.request import getproxies_environment, proxy_bypass  # loads an HTTP client: 10 ms

    if proxy_bypass(target.host):
        return []
    proxies = getproxies_environment()
    kinds = [kind for kind in (target.scheme, "all") if kind in proxies]
    return [f"{kind.upper()}_PROXY is set and not used" for kind in kinds]
