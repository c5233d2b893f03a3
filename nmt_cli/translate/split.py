"""A line that is too long for a model, in parts; and translations that got stuck."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

# Where to cut, best first: after sentences, after clauses, between words.
_CUTS = (
    re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+|(?<=[。！？])"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"),
    re.compile(r"\s+"),
)


# Sentences are translated one by one, as the model has learnt it: of a whole paragraph it may drop the rest. What has
# fewer pieces is hardly one, rather the end of "Mr.".
_SENTENCE = 8

Spans = Callable[[str], Sequence[tuple[int, int]]]  # what must not be cut of a text, from left to right


def split_long(text: str, limit: int, count: Callable[[str], int], whole: Spans = lambda text: ()) -> list[str]:
    """Parts of at most `limit` pieces each, as `count` counts them; one part, if the text has no more.

    What `whole` names stays in one part, even if that part is then too long.
    """
    return [text] if count(text) <= limit else _split(text, limit, count, whole, _CUTS)


def _split(text: str, limit: int, count: Callable[[str], int], whole: Spans, cuts: Sequence[re.Pattern]) -> list[str]:
    spans = whole(text)
    if not cuts:  # one word of thousands of letters
        middle = len(text) // 2
        for start, stop in spans:
            if start < middle < stop:
                middle = start or stop
        halves = [half for half in (text[:middle], text[middle:]) if half]
        return halves if len(halves) < 2 else [part for half in halves for part in _halve(half, limit, count, whole)]
    starts, stops = [start for start, _ in spans], [stop for _, stop in spans]
    ends = [match.end() for match in cuts[0].finditer(text)]
    before = [bisect_left(starts, end) for end in ends]  # how many spans begin before it
    ends = [end for end, number in zip(ends, before, strict=True) if not number or stops[number - 1] <= end]
    atoms = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True) if text[a:b].strip()]
    sizes = [count(atom) for atom in atoms]
    parts: list[str] = []
    room = 0
    for atom, size in zip(atoms, sizes, strict=True):
        if size > limit:
            parts += _split(atom, limit, count, whole, cuts[1:])
            room = 0
        elif size <= room and (cuts != _CUTS or limit - room < _SENTENCE):
            parts[-1] += atom
            room -= size
        else:
            parts.append(atom)
            room = limit - size
    return [part.strip() for part in parts if part.strip()]


def _halve(text: str, limit: int, count: Callable[[str], int], whole: Spans) -> list[str]:
    return [text] if count(text) <= limit else _split(text, limit, count, whole, ())


TIMES = 4  # that something is written in a row, to be a loop
NOT_WORDS = 16  # ... that has no letter: 10000 and ..... are none


def cut_loop(ids: Sequence[int], source: Sequence[int], is_word: Callable[[int], bool]) -> tuple[int, ...] | None:
    """The same without the repeats, if something comes TIMES times in a row or more, and more often than anything in
    the source does; None, if all is well."""
    if len(ids) - len(set(ids)) < TIMES - 1:
        return None
    kept: list[int] = []
    done, most = 0, max((_times(loop) for loop in _loops(source, 2)), default=1)
    for start, period, stop in _loops(ids, TIMES):
        enough = TIMES if any(is_word(index) for index in ids[start : start + period]) else NOT_WORDS
        times = _times((start, period, stop))
        if times >= max(enough, most + 1):
            kept += ids[done : start + most * period]
            # What has begun once more belongs to what follows, if anything does: n'elle n'elle n'a.
            done = start + times * period if stop < len(ids) else stop
    return (*kept, *ids[done:]) if done else None


def _times(loop: tuple[int, int, int]) -> int:
    start, period, stop = loop
    return (stop - start) // period


def _loops(ids: Sequence[int], least: int) -> Iterator[tuple[int, int, int]]:
    """Where each loop of so many times starts, its period, and where it stops, from left to right."""
    start = 0
    while start < len(ids):
        for period in range(1, (len(ids) - start) // least + 1):
            stop = start + period
            while stop < len(ids) and ids[stop] == ids[stop - period]:
                stop += 1
            if stop - start >= least * period:
                yield start, period, stop
                start = stop - 1
                break
        start += 1
