"""Events that say what one before them said, but for their text: read without parsing them again. Pure.

Nearly all events of a stream differ only within one JSON string, the generated text. Which string that is,
one event that was parsed tells: if its text stands in it once, as it is, an event with the same bytes before
and behind, and any plain characters between, is read to the same effect. What is not such an event, whole and
in a chunk of its own, is left to the readers that know the rules.
"""

from __future__ import annotations

import re

from loadgen.dialects.dialect import Output

# What JSON does not allow in a string as it is (RFC 8259, 7), or gives a meaning.
_SPECIAL = bytes((*range(0x20), *b'"\\'))
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_CHUNK_END = b"\r\n"


class Alike:
    """What stands before and behind the text, in the chunk of one event."""

    def __init__(self, before: bytes, behind: bytes, example: Output) -> None:
        self._example = example
        self._before = before
        self.end = behind + _CHUNK_END
        self._framed = len(before) + len(behind)

    @classmethod
    def of(cls, chunk: bytes, output: Output) -> Alike | None:
        """From a chunk, with its framing, in which one event was read that generated `output`, and no more.

        None if its text does not stand in it as it is, or not only once.
        """
        plain = output.text.encode("utf-8", "replace")
        head = _CHUNK.match(chunk)
        whole = head and int(head[1], 16) == len(chunk) - head.end() - len(_CHUNK_END)
        if head is None or not whole or not chunk.endswith(_CHUNK_END) or not _is_plain(plain):
            return None
        content = chunk[head.end() : -len(_CHUNK_END)]
        parts = content.split(b'"' + plain + b'"')
        return cls(parts[0] + b'"', b'"' + parts[1], output) if len(parts) == 2 else None

    def texts(self, data: bytes) -> tuple[list[bytes], int]:
        """The texts of the chunks alike with which the data begins, and how many bytes those are."""
        texts: list[bytes] = []
        used = 0
        for part in data.split(self.end)[:-1]:
            start = part.find(b"\r\n") + 2
            text = part[start + len(self._before) :]
            size = b"%x\r\n" % (self._framed + len(text))
            if (
                part[:start].lower() != size
                or not part.startswith(self._before, start)
                or not _is_plain(text)
            ):
                break
            texts.append(text)
            used += len(part) + len(self.end)
        return texts, used

    def output(self, text: bytes) -> Output:
        return self._example._replace(text=text.decode("utf-8", "replace"))


def _is_plain(text: bytes) -> bool:
    return bool(text) and len(text.translate(None, _SPECIAL)) == len(text)
