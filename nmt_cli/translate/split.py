"""Split a line into parts: sentence by sentence, and further where a sentence is too long for the model."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from nmt_cli.text.sentences import split_sentences
from nmt_cli.translate.protect import Span

# Places to cut a sentence that is too long, the best kind first: after clauses, between words.
_CUTS = (re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"), re.compile(r"\s+"))

CountPieces = Callable[[str], int]
FindSpans = Callable[[str], Sequence[Span]]  # from left to right


def split_line(
    text: str,
    language: str,
    limit: int,
    count: CountPieces,
    uncut: FindSpans = lambda text: (),
    by_sentence: bool = True,
) -> list[str]:
    """Parts of at most `limit` pieces; joined, they are the text.

    A span of `uncut` stays in one part, even if that part is then longer. With `by_sentence`, each sentence is a part,
    because a model of single sentences may drop the rest of a paragraph. Otherwise the parts are as few as possible.
    """
    if not by_sentence and count(text) <= limit:
        return [text]
    sentences = split_sentences(text, language)
    if len(sentences) > 1:
        sentences = _cut_at(text, list(accumulate(map(len, sentences[:-1]))), uncut(text))
    parts: list[str] = []
    for sentence in sentences:
        parts += [sentence] if count(sentence) <= limit else _cut_long(sentence, limit, count, uncut, _CUTS)
    return parts if by_sentence else _packed(parts, limit, count)


def _cut_at(text: str, places: Sequence[int], spans: Sequence[Span]) -> list[str]:
    """Cut the text at these places, except inside of spans. A part of spaces belongs to the part before it."""
    starts = [span.start for span in spans]
    parts: list[str] = []
    done = 0
    for place in [*places, len(text)]:
        number = bisect_left(starts, place)
        if number and spans[number - 1].stop > place:
            continue
        if text[done:place].strip() or not parts:
            parts.append(text[done:place])
        else:
            parts[-1] += text[done:place]
        done = place
    return parts


def _cut_long(text: str, limit: int, count: CountPieces, uncut: FindSpans, cuts: Sequence[re.Pattern]) -> list[str]:
    """Cut at the first kind of place. Cut pieces that are still too long at the other kinds, and then in the middle."""
    spans = uncut(text)
    places = [match.end() for match in cuts[0].finditer(text)] if cuts else [_middle(text, spans)]
    pieces = _cut_at(text, places, spans)
    if not cuts and len(pieces) == 1:  # one span, or one character
        return [text]
    parts: list[str] = []
    for piece in pieces:
        parts += [piece] if count(piece) <= limit else _cut_long(piece, limit, count, uncut, cuts[1:])
    return _packed(parts, limit, count)


def _packed(parts: list[str], limit: int, count: CountPieces) -> list[str]:
    """Join neighbors while they fit into the limit together. Pieces are counted part by part."""
    packed: list[list[str]] = []
    room = 0  # in the last part
    for part in parts:
        size = count(part)
        if packed and size <= room:
            packed[-1].append(part)
            room -= size
        else:
            packed.append([part])
            room = limit - size
    return ["".join(group) for group in packed]


def _middle(text: str, spans: Sequence[Span]) -> int:
    """Where to cut a word of thousands of letters: in the middle, or at the edge of a span there."""
    middle = len(text) // 2
    for span in spans:
        if span.start < middle < span.stop:
            middle = span.start or span.stop
    return middle
