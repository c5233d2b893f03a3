"""A line that is too long for a model, in parts; and translations that got stuck."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

# Where to cut, best first: after sentences, after clauses, between words.
_CUTS = (
    re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+|(?<=[。！？])"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"),
    re.compile(r"\s+"),
)


def split_long(text: str, limit: int, count: Callable[[str], int]) -> list[str]:
    """Parts of at most `limit` pieces each, as `count` counts them; one part, if the text has no more."""
    return [text] if count(text) <= limit else _split(text, limit, count, _CUTS)


def _split(text: str, limit: int, count: Callable[[str], int], cuts: Sequence[re.Pattern]) -> list[str]:
    if not cuts:  # one word of thousands of letters
        middle = len(text) // 2
        halves = (text[:middle], text[middle:])
        return [text] if len(text) < 2 else [part for half in halves for part in _halve(half, limit, count)]
    ends = [match.end() for match in cuts[0].finditer(text)]
    atoms = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True) if text[a:b].strip()]
    sizes = [count(atom) for atom in atoms]
    parts: list[str] = []
    room = 0
    for atom, size in zip(atoms, sizes, strict=True):
        if size > limit:
            parts += _split(atom, limit, count, cuts[1:])
            room = 0
        elif size <= room:
            parts[-1] += atom
            room -= size
        else:
            parts.append(atom)
            room = limit - size
    return [part.strip() for part in parts]


def _halve(text: str, limit: int, count: Callable[[str], int]) -> list[str]:
    return [text] if count(text) <= limit else _split(text, limit, count, ())


def cut_loop(ids: Sequence[int], source: Sequence[int], times: int = 4) -> tuple[int, ...] | None:
    """The same without the repeats, if up to 8 pieces come `times` times in a row or more, and nothing like that is in
    the source; None, if all is well."""
    loop = _loop(ids, times)
    if loop is None or _loop(source, times) is not None:
        return None
    start, period, stop = loop
    rest = cut_loop(ids[stop:], source, times)
    return (*ids[: start + period], *(ids[stop:] if rest is None else rest))


def _loop(ids: Sequence[int], times: int) -> tuple[int, int, int] | None:
    """Where the first loop starts, its period, and where it stops."""
    for start in range(len(ids)):
        for period in range(1, 9):
            stop = start + period
            while stop < len(ids) and ids[stop] == ids[stop - period]:
                stop += 1
            if stop - start >= times * period:
                return start, period, stop
    return None
