"""ShareGPT's conversations: a JSON array, or JSONL, of `conversations` with `from` and `value`.

Each human's message with the answer right behind it is a turn: its prompt is the whole conversation so far,
its output as long as the recorded answer. Lengths are the mock's count of the texts. There are no times.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Any

import msgspec

from ledgers.formats import fields
from ledgers.formats.documents import json_documents
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.formats.head import Head
from ledgers.formats.texts import dialogue
from ledgers.vocabulary import count_tokens

name = "sharegpt"
ASKING = frozenset({"human", "user"})
ANSWERING = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})


class Message(msgspec.Struct, rename={"speaker": "from", "text": "value"}):
    speaker: str | None = None
    text: str | None = None


class Record(msgspec.Struct):
    id: Any = None
    conversations: list[Message] | None = None


def detects(head: Head) -> bool:
    return "conversations" in head.keys


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    records = json_documents(file, source, Record)
    for number, (line, record) in enumerate(records, 1):
        try:
            session = fields.optional_label(record.id, "id") or f"conversation {number}"
        except ValueError as error:
            raise fields.located(source, line, error) from None
        yield from _turns(line, session, record.conversations or [])


def _turns(line: int, session: str, messages: list[Message]) -> Iterator[TraceRow | Skipped]:
    said: list[str] = []
    tokens = turn = 0
    asked = False
    for message in messages:
        text, speaker = message.text or "", (message.speaker or "").lower()
        count = count_tokens(text)
        if asked and speaker in ANSWERING:
            yield TraceRow(
                line=line,
                prompt=dialogue(said),
                prompt_tokens=tokens,
                output_tokens=count,
                session=session,
                turn=turn,
                think_ns=0 if turn else None,  # no pause is recorded, but a turn needs the answer before
            )
            turn += 1
        asked = speaker in ASKING
        said.append(text)
        tokens += count
    if not turn:
        yield Skipped(line, "no human message with an answer")
