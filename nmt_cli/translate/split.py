"""Split a line that is too long for the model into parts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

from nmt_cli.translate.protect import Span

# Places to cut, the best kind first: after sentences, after clauses, between words.
_CUTS = (
    re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+|(?<=[。！？])"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"),
    re.compile(r"\s+"),
)
# Every sentence becomes a part of its own, because the model was trained on single sentences and may drop the rest of
# a paragraph. A "sentence" with fewer pieces than this is joined with its neighbor: often it is the end of "Mr.".
_SHORT_SENTENCE = 8

CountPieces = Callable[[str], int]
FindSpans = Callable[[str], Sequence[Span]]  # from left to right


def split_long(text: str, limit: int, count: CountPieces, uncut: FindSpans = lambda text: ()) -> list[str]:
    """Parts of at most `limit` pieces. A span of `uncut` stays in one part, even if that part is then longer."""
    return [text] if count(text) <= limit else _split(text, limit, count, uncut, _CUTS)


def _split(text: str, limit: int, count: CountPieces, uncut: FindSpans, cuts: Sequence[re.Pattern]) -> list[str]:
    """Cut at the first kind of place. Cut pieces that are still too long at the other kinds, and then in the middle."""
    spans = uncut(text)
    starts = [span.start for span in spans]
    ends = [match.end() for match in cuts[0].finditer(text)] if cuts else [_middle(text, spans)]
    spans_before = [bisect_left(starts, end) for end in ends]
    ends = [end for end, number in zip(ends, spans_before, strict=True) if not number or spans[number - 1].stop <= end]
    pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True) if text[a:b].strip()]
    if not cuts and ends in ([0], [len(text)]):  # one span, or one character
        return [text]
    parts: list[str] = []
    room = 0  # in the last part
    for piece in pieces:
        size = count(piece)
        if size > limit:
            parts += _split(piece, limit, count, uncut, cuts[1:])
            room = 0
        elif size <= room and cuts and (cuts != _CUTS or limit - room < _SHORT_SENTENCE):
            parts[-1] += piece
            room -= size
        else:
            parts.append(piece)
            room = limit - size
    return [part.strip() for part in parts if part.strip()]


def _middle(text: str, spans: Sequence[Span]) -> int:
    """Where to cut a word of thousands of letters: in the middle, or at the edge of a span there."""
    middle = len(text) // 2
    for span in spans:
        if span.start < middle < span.stop:
            middle = span.start or span.stop
    return middle
