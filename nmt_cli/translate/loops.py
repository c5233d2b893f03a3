"""Find and cut the repeats of a translation that got stuck in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

WORD_REPEATS = 4  # a sequence of pieces that contains a letter is a loop from this many times in a row
OTHER_REPEATS = 16  # a sequence without a letter needs more: 10000 and ..... are no loops


def cut_loops(ids: Sequence[int], source: Sequence[int], is_word: Callable[[int], bool]) -> tuple[int, ...] | None:
    """The ids without the repeats of loops; None if there is no loop.

    A repetition is a loop only if it is longer than every repetition in the source.
    """
    if len(ids) - len(set(ids)) < WORD_REPEATS - 1:
        return None
    most_in_source = max(((stop - start) // period for start, stop, period in _find_loops(source, 2)), default=1)
    kept: list[int] = []
    done = 0
    for start, stop, period in _find_loops(ids, WORD_REPEATS):
        times, contains_word = (stop - start) // period, any(map(is_word, ids[start : start + period]))
        if times >= max(WORD_REPEATS if contains_word else OTHER_REPEATS, most_in_source + 1):
            kept += ids[done : start + most_in_source * period]
            # An incomplete last repeat belongs to the text after the loop, if there is any: n'elle n'elle n'a.
            done = start + times * period if stop < len(ids) else stop
    return (*kept, *ids[done:]) if done else None


def _find_loops(ids: Sequence[int], least: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, period) where ids[start:stop] repeats its first `period` ids `least` times or more."""
    start = 0
    while start < len(ids):
        for period in range(1, (len(ids) - start) // least + 1):
            stop = start + period
            while stop < len(ids) and ids[stop] == ids[stop - period]:
                stop += 1
            if stop - start >= least * period:
                yield start, stop, period
                start = stop - 1
                break
        start += 1
