"""Events that say what one before them said, but for their text: read without parsing them again. Pure.

Nearly all events of a stream differ only within one JSON string, the generated text. Which string that is,
one event that was parsed tells: if its text stands in it once, as it is, an event with the same bytes before
and behind, and any plain characters between, is read to the same effect. What is not such an event, whole and
in a chunk of its own, is left to the readers that know the rules.
"""

from __future__ import annotations

import re

from loadgen.dialects.dialect import Output

# All but what JSON does not allow in a string as it is (RFC 8259, 7), or gives a meaning.
_PLAIN = re.compile(rb'[^\x00-\x1f"\\]+')
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_CRLF = b"\r\n"


class Alike:
    """What stands before and behind the text, in the chunk of one event."""

    def __init__(self, size: bytes, before: bytes, behind: bytes, example: Output) -> None:
        """`size` is how the example's chunk says its size: servers differ in the case of its digits."""
        self._size = b"%x\r\n" if size == size.lower() else b"%X\r\n"
        self._before = before
        self._framed = len(before) + len(behind)
        self.end = behind + _CRLF
        self._example = example
        self._begins: dict[int, bytes | None] = {}

    @classmethod
    def of(cls, chunk: bytes, output: Output) -> Alike | None:
        """From a chunk, with its framing, in which one event was read that generated `output`, and no more.

        None if its text does not stand in it as it is, or not only once.
        """
        plain = output.text.encode("utf-8", "replace")
        head = _CHUNK.match(chunk)
        whole = head and int(head[1], 16) == len(chunk) - head.end() - len(_CRLF)
        if head is None or not whole or not chunk.endswith(_CRLF) or not _PLAIN.fullmatch(plain):
            return None
        content = chunk[head.end() : -len(_CRLF)]
        parts = content.split(b'"' + plain + b'"')
        return cls(head[1], parts[0] + b'"', b'"' + parts[1], output) if len(parts) == 2 else None

    def matches(self, data: bytes) -> bool:
        """Whether the data are one chunk that is alike, and nothing else."""
        length = len(data)
        begin = self._begins[length] if length in self._begins else self._begin(length)
        return (
            begin is not None
            and data.startswith(begin)
            and data.endswith(self.end)
            and _PLAIN.fullmatch(data, len(begin), length - len(self.end)) is not None
        )

    def texts(self, data: bytes) -> tuple[list[bytes], int]:
        """The texts of the chunks alike with which the data begins, and how many bytes those are."""
        texts: list[bytes] = []
        used = 0
        for part in data.split(self.end)[:-1]:
            start = part.find(_CRLF) + len(_CRLF)
            text = part[start + len(self._before) :]
            if (
                part[:start] != self._size % (self._framed + len(text))
                or not part.startswith(self._before, start)
                or not _PLAIN.fullmatch(text)
            ):
                break
            texts.append(text)
            used += len(part) + len(self.end)
        return texts, used

    def _begin(self, length: int) -> bytes | None:
        """How a chunk of so many bytes begins if it is alike; None if there is none of that length."""
        begin = None
        for digits in range(1, 9):
            size = self._size % max(0, length - digits - 2 * len(_CRLF))
            if len(size) == digits + len(_CRLF):
                begin = size + self._before
        self._begins[length] = begin
        return begin

    def output(self, text: bytes) -> Output:
        return self._example._replace(text=text.decode("utf-8", "replace"))
