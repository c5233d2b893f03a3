"""The work of a regular expression, counted: a small backtracking matcher that tries what `re` tries, step by step.

`re` does not say how often it goes back. Time would, but a test must not depend on the speed of the machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as op
    from re import _parser as parser
else:
    import sre_constants as op
    import sre_parse as parser

ONE_CHARACTER = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}


def _is_in(items: Sequence[Any], character: str) -> bool:
    """Is a character in a set, such as [^a-z]?"""
    negated = items[0][0] is op.NEGATE
    for kind, value in items[negated:]:
        if kind is op.CATEGORY:
            found = bool(re.match(CATEGORIES[value], character))
        else:
            first, last = value if kind is op.RANGE else (value, value)
            found = first <= ord(character) <= last
        if found:
            return not negated
    return negated


Then = Callable[[int], int | None]  # from a position to the end of the match, or None


class Steps:
    """finditer of a pattern. `count` is the number of steps so far, `spans` are the matches."""

    def __init__(self, pattern: re.Pattern, text: str) -> None:
        self.text, self.count, self.groups = text, 0, dict[int, str]()
        self.known: dict[tuple[int, str], bool] = {}  # what is known about a set and a character
        self.spans: list[tuple[int, int]] = []
        tree, at = list(parser.parse(pattern.pattern, pattern.flags)), 0
        while at <= len(text):
            self.groups.clear()
            end = self._match(tree, 0, at, lambda end: end)
            if end is not None:
                self.spans.append((at, end))
            at = end if end is not None and end > at else at + 1

    def _is(self, kind: Any, value: Any, at: int) -> bool:
        if at >= len(self.text):
            return False
        if kind is op.LITERAL or kind is op.NOT_LITERAL:
            return (ord(self.text[at]) == value) == (kind is op.LITERAL)
        key = (id(value), self.text[at])
        if key not in self.known:
            self.known[key] = kind is op.ANY or _is_in(value, self.text[at])
        return self.known[key]

    def _match(self, items: Sequence[Any], index: int, at: int, then: Then) -> int | None:
        if index == len(items):
            return then(at)
        self.count += 1
        kind, value = items[index]

        def rest(at: int) -> int | None:
            return self._match(items, index + 1, at, then)

        if kind in ONE_CHARACTER:
            return rest(at + 1) if self._is(kind, value, at) else None
        if kind is op.AT:
            assert value in (op.AT_BEGINNING, op.AT_END)
            return rest(at) if at == (0 if value is op.AT_BEGINNING else len(self.text)) else None
        if kind is op.BRANCH:
            found = (self._match(branch, 0, at, rest) for branch in value[1])
            return next((end for end in found if end is not None), None)
        if kind is op.SUBPATTERN:
            return self._group(value[0], value[3], at, rest)
        if kind is op.GROUPREF:
            group = self.groups.get(value)
            return rest(at + len(group)) if group is not None and self.text.startswith(group, at) else None
        if kind in (op.ASSERT, op.ASSERT_NOT):
            direction, inner = value
            start = at if direction > 0 else at - inner.getwidth()[0]
            holds = start >= 0 and self._match(inner, 0, start, lambda end: end) is not None
            return rest(at) if holds == (kind is op.ASSERT) else None
        assert kind is op.MAX_REPEAT, kind
        return self._repeat(*value, at, rest)

    def _group(self, group: int | None, inner: Sequence[Any], at: int, rest: Then) -> int | None:
        def close(end: int) -> int | None:
            if group is not None:
                self.groups[group] = self.text[at:end]
            return rest(end)

        return self._match(inner, 0, at, close)

    def _repeat(self, least: int, most: Any, inner: Sequence[Any], at: int, rest: Then) -> int | None:
        if len(inner) == 1 and inner[0][0] in ONE_CHARACTER:  # without recursion
            end = at
            while end - at < int(most) and self._is(*inner[0], end):
                end += 1
            self.count += end - at + 1
            for stop in range(end, at + least - 1, -1):
                self.count += 1
                if (found := rest(stop)) is not None:
                    return found
            return None

        def more(times: int, at: int) -> int | None:
            if times < int(most):
                once = self._match(inner, 0, at, lambda end: more(times + 1, end) if end > at else None)
                if once is not None:
                    return once
            return rest(at) if times >= least else None

        return more(0, at)
