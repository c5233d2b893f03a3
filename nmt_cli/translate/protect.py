"""Text that must survive a translation: code, tags, addresses, emoji, numbers, unknown words.

The model first translates the line as it is. If something is missing in the translation, the line is translated again
without it, and it is put back where attention says that it belongs. For unknown words this is PosUnk (Luong et al.
2015, "Addressing the rare word problem in neural machine translation"), with attention instead of position classes.

The same rules find such text in the line and in its translation. All work on text is linear in its length (a test
counts it).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np

from nmt_cli.text.alignment import SPACE, Word, is_punctuation, words_of
from nmt_cli.text.languages import UNSPACED

_EMOJI = "\U0001f000-\U0001faff☀-➿⬀-⯿⌀-⏿"
_ENTITY = r"& (?: \#\d{1,7} | \w{2,8} ) ;"
_W = rf"[^\W{UNSPACED}]"  # a letter or digit of a script that puts spaces between words
# A character inside a word. Brackets, quotation marks and dashes end a word, and so do entities and ${.
_CHARACTER = rf"""(?: [^\s<>\"'`{{}}()\[\]“”„‟«»‹›‘’…–—&$%{_EMOJI}{UNSPACED}\u3000-\u303f\uff00-\uffef]
    | [$%] (?!\{{) | (?!{_ENTITY}) & )"""
# Text of these kinds is copied letter by letter. benchmarks/survival.py measures how much each rule saves.
RULES = {
    "tag": r"</? [A-Za-z!] [^<>]{0,200} > | <0x[0-9A-F]{2}>",
    "entity": _ENTITY,
    "braces": r"[$%]? \{ (?: [^{}] | \{ [^{}]{0,60} \} ){0,60} \}",
    # `code` and :role:`code`, but not `text <address>`, because the text of a link is translated
    "backticks": r"(?<![\w`>]) (?: :[\w:+-]{1,30}: )? (`{1,2}) (?=[^\s`]) (?! [^`<]{0,200} \s < [^`<>]{0,200} > ` ) "
    r"[^`]{1,200} (?<!\s) \1 (?!`)",
    "emoji": rf"[0-9\#*] \ufe0f? \u20e3 | [{_EMOJI}] [{_EMOJI}\ufe0f\u200d\u20e3]*",  # keycaps are emoji, too
    "word": rf"(?P<word> {_CHARACTER} (?: {_CHARACTER} | \( {_CHARACTER}* \) )* )",  # if it looks like CODE
}
# Signs that a word belongs to no language: an address, a placeholder, a name in code, ...
CODE = {
    "address": r":// | [@\#] \w",  # and @mention, #tag
    "placeholder": r"\$ [^\W\d] | (?<!\d) % [-+.\#]? [\w(]",  # $NAME, %s, %1$s, %(x)d, %L1
    "name": r"[^\W_] _+ [^\W_] | (?<!\w) __\w | \w \(\) | \w = \w",
    "option": r"^ -- [^\W\d] | ^ -[a-z] $",
    "path": r"^ (?: ~ | \.{1,2} )? / \w | \w\w / $ | \\ \w",
    "file": r"(?: ^ | [\w/] ) \. [a-z]\w",
    "digits": r"\d ([-./:]) \d{1,2} \1 \d | \d [x×] \d | ^ [^\W\d_]+ \d",  # 1.2.3, 2024-05-31, 1920x1080, utf8
}
_PATTERN = re.compile("|".join(RULES.values()), re.VERBOSE)
_CODE = re.compile("|".join(CODE.values()), re.VERBOSE)
_MARK = r"[.,:/\u00a0\u202f]"  # between digits
_SIGN = r"[ \u00a0\u202f]? (?: ° [CF]? | [%‰] ) (?![\w(])"
_DAY = r"(?= , [ ] \d{4} (?!\d) | \.? [ ] [^\W\d_]{3,10} ,? [ ] \d{4} (?!\d) )"  # June 1, 2006 and 1. Juni 2006
# A number of two digits or more, or with a sign. A single digit may become a word, except in a date. Letters and signs
# that belong to the number are put back with it: 1990s, 12th, 10km, 5 %, 20 °C.
_NUMBER = re.compile(
    rf"""
    (?: (?<! [\w)\].,:/-] ) [-\u2212] )? (?<!{_W}) (?<! \d{_MARK} ) \d
    (?: (?: {_MARK}? \d )+ (?! {_MARK}? \d ) (?: [^\W\d_{UNSPACED}]{{1,3}} (?!{_W}) | (?!{_W}) (?: {_SIGN} )? )
      | {_SIGN} | {_DAY} )
    """,
    re.VERBOSE,
)
_DIGITS = re.compile(r"([-\u2212\u2013][ \u00a0\u202f]?)?(?<![\d·])(\d[\d·]*)")
# Languages write numbers differently: 1,234.5 is 1.234,5 and 1 234,5. Three digits may be thousands.
_THOUSANDS = re.compile(r"(?<=\d)[.,\u00a0\u202f](?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(r"(?<=\d)[.,\u00a0\u202f ](?=\d{3}(?!\d))")
_DECIMAL_MARK = re.compile(rf"(?<=\d){_MARK}(?=\d)")
_UNSPACED = re.compile(f"[{UNSPACED}]")
# Letters with their accents, and symbols that are part of a word, as in C# and °C.
_LETTER = rf"(?:[^\W{UNSPACED}]|[\u0300-\u036f\u1dc0-\u1dff\u20d0-\u20ff]|[#&@°+$€£¥©®™\u2100-\u214f])"
_WORD = re.compile(rf"{_LETTER}+(?:[-'’]{_LETTER}+)*")


@dataclass(frozen=True)
class Span:
    """text[start:stop], which the translation must contain as `wanted`."""

    start: int
    stop: int
    wanted: str
    number: bool = False  # only the digits, the minus and the decimal mark count

    @property
    def content(self) -> Span:
        """What the translation must contain, at any place. Equal contents are equal spans."""
        return _numbers(self.wanted, _THOUSANDS)[0] if self.number else replace(self, start=0, stop=0)

    @property
    def is_tag(self) -> bool:
        return self.wanted.startswith("<")

    def contains(self, other: Span) -> bool:
        return self.start <= other.start and other.stop <= self.stop


AnySpan = TypeVar("AnySpan", bound=Span)


def _numbers(text: str, thousands: re.Pattern) -> list[Span]:
    """Every number, without thousands separators and with one kind of decimal mark. -12 is also 12."""
    text = _DECIMAL_MARK.sub("·", thousands.sub("", text))
    numbers = []
    for minus, digits in _DIGITS.findall(text):
        numbers += [Span(0, 0, f"-{digits}", number=True)] if minus else []
        numbers.append(Span(0, 0, digits, number=True))
    return numbers


def verbatim(text: str) -> list[Span]:
    """Code, tags, addresses and the like."""
    spans = []
    for match in _PATTERN.finditer(text):
        found = match[0]
        if match.lastgroup == "word":
            found = found.rstrip(".,;:!?")
            if not _CODE.search(found):
                continue
        spans.append(Span(match.start(), match.start() + len(found), found))
    return spans


def protected(text: str, is_known: Callable[[str], bool], by_words: bool = False) -> list[Span]:
    """The spans of a line, from left to right. `is_known` says whether the vocabulary has a character, or, with
    `by_words` (vocab.type = "word"), a word."""
    if by_words:
        unknown = [match for match in re.finditer(r"\S+", text) if not is_known(match[0])]
        spans = [Span(match.start(), match.end(), match[0]) for match in unknown] + verbatim(text)
    else:
        spans = _unknown_words(text, is_known) + verbatim(text)
    for match in _NUMBER.finditer(text):
        # If a unit has an unknown character, the translation must have number and unit letter by letter, because the
        # unknown character has no span of its own.
        number = by_words or all(map(is_known, match[0]))
        spans.append(Span(match.start(), match.end(), match[0], number))
    return without_overlaps(spans)


def _unknown_words(text: str, is_known: Callable[[str], bool]) -> list[Span]:
    """Words with a character that the vocabulary does not have, and runs of other unknown characters."""
    if all(map(is_known, set(text))):
        return []
    unknown = [not is_known(character) for character in text]
    spans = [Span(word.start(), word.end(), word[0]) for word in _WORD.finditer(text)]
    # A word is protected as a whole, because the rest of a name is useless without the unknown letter.
    spans = [span for span in spans if any(unknown[span.start : span.stop])]
    for span in spans:
        unknown[span.start : span.stop] = [False] * (span.stop - span.start)
    start = 0
    for is_unknown, run in groupby(unknown):
        stop = start + len(list(run))
        spans += [Span(start, stop, text[start:stop])] if is_unknown else []
        start = stop
    return spans


def without_overlaps(spans: Sequence[AnySpan]) -> list[AnySpan]:
    """Of two spans that overlap, keep the one that begins first; if both begin together, the longer one."""
    kept: list[AnySpan] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        if not kept or span.start >= kept[-1].stop:
            kept.append(span)
    return kept


def overlaps(spans: Sequence[AnySpan], others: Sequence[Span]) -> Iterator[tuple[AnySpan, Sequence[Span]]]:
    """Each span, with the others that it overlaps. Both go from left to right and have no overlaps of their own."""
    starts, stops = [other.start for other in others], [other.stop for other in others]
    for span in spans:
        yield span, others[bisect_right(stops, span.start) : bisect_left(starts, span.stop)]


def contents(translation: str, is_known: Callable[[str], bool], by_words: bool = False) -> list[Span]:
    """The contents of everything protected in a translation, from left to right, and of its numbers."""
    found: list[Span] = []
    for span in protected(translation, is_known, by_words):
        if not span.number:
            name, hyphen, _ = span.wanted.partition("-")
            found += [span.content, Span(0, 0, name)] if hyphen else [span.content]  # %s-Datei contains %s
    # A space between digits may be part of one number, as in 10 000, or stand between two numbers.
    one, two = (Counter(_numbers(translation, marks)) for marks in (_SPACED_THOUSANDS, _THOUSANDS))
    return [*found, *(one | two).elements()]


def lost(spans: Sequence[AnySpan], found: Sequence[Span]) -> list[AnySpan]:
    """The spans that a translation with the contents `found` has less often than it should.

    If one tag is lost, or if tags changed places, all tags count as lost, so that they come back in their order.
    """
    wanted = [span.content for span in spans]
    missing = Counter(wanted) - Counter(found)
    tags = [content for content in wanted if content.is_tag]
    known_tags = set(tags)
    if tags != [content for content in found if content in known_tags]:
        missing.update(tags)
    return [span for span, content in zip(spans, wanted, strict=True) if content in missing]


@dataclass(frozen=True)
class Gap:
    """A place where a span was taken out of a text: at character `at` of the remaining text."""

    at: int
    wanted: str
    before: str  # the characters before and after the span; a space at the ends of the text
    after: str


def replaced(text: str, spans: Sequence[Span]) -> str:
    """The text with the wanted text of each span in its place."""
    parts, done = [], 0
    for span in _merged(text, spans):
        parts += [text[done : span.start], span.wanted]
        done = span.stop
    return "".join([*parts, text[done:]])


def _merged(text: str, spans: Sequence[Span]) -> list[Span]:
    """Spans with nothing but space between them become one span."""
    groups: list[list[Span]] = []
    for span in spans:
        if groups and not text[groups[-1][-1].stop : span.start].strip():
            groups[-1].append(span)
        else:
            groups.append([span])
    merged = []
    for group in groups:
        parts = [group[0].wanted]
        for last, span in pairwise(group):
            between, edges = text[last.stop : span.start], last.wanted[-1] + span.wanted[0]
            if not between and edges.isalnum() and not _UNSPACED.search(edges) and _UNSPACED.match(text[span.start]):
                between = " "  # Chinese terms have no space between them, but their English translations need one
            parts += [between, span.wanted]
        merged.append(Span(group[0].start, group[-1].stop, "".join(parts)))
    return merged


def take_out(text: str, spans: Sequence[Span]) -> tuple[str, list[Gap]]:
    """The text without the spans, and the gaps. Spans with nothing but space between them leave one gap."""
    rest, gaps, at, done = [], [], 0, 0
    for span in _merged(text, spans):
        kept = text[done : span.start]
        before, after = kept[-1:] or " ", text[span.stop : span.stop + 1] or " "
        rest.append(kept.rstrip(" "))
        at += len(rest[-1])
        gaps.append(Gap(at, span.wanted, before, after))
        done = span.stop
        while text.startswith(" ", done):
            done += 1
        if at and (text[done : done + 1].isalnum() or before == after == " ") and " " in (before, after):
            rest.append(" ")
            at += 1
    return "".join([*rest, text[done:]]), gaps


def put_back(
    pieces: Sequence[str],
    attention: np.ndarray,
    gaps: Sequence[Gap],
    boundaries: Sequence[int],
    decode: Callable[[Word], str],
    prefix: int = 0,
) -> str:
    """The translation with the wanted text of every gap, behind the pieces of a forced prefix.

    boundaries[i] is the number of source pieces before gap i. The gap goes to the word boundary that best separates
    the words that attend to the source before the gap from the words that attend to the source behind it.
    """
    words = words_of(pieces, punctuation=True)
    # mass[t, s]: attention of the first t target pieces to the first s source pieces
    mass = np.zeros((len(pieces) + 1, attention.shape[1] + 1))
    mass[1:, 1:] = attention[: len(pieces)].cumsum(0).cumsum(1)
    places = [word.start for word in words] + [len(pieces)]
    inserted: dict[int, list[Gap]] = {}
    first = latest_tag = sum(place < prefix for place in places[:-1])
    ends = [n for n, word in enumerate(words, 1) if not is_punctuation(word.text)]  # places behind words
    closing = sum("</" in gap.wanted for gap in gaps)  # closing tags that are still to be put back
    for gap, boundary in zip(gaps, boundaries, strict=True):
        agreement = 2 * mass[places, boundary] - mass[places, -1]
        if boundary < attention.shape[1] - 1 and words and is_punctuation(words[-1].text) and first < len(words):
            agreement = agreement[:-1]  # a gap before the end of the source stays before the last mark
        best = first + int(np.argmax(agreement[first:])) if boundary else first
        if "<" in gap.wanted:  # a tag closes behind a word or more
            closes = "</" in gap.wanted
            last = ends[-closing] - (not closes) if 0 < closing <= len(ends) else len(words)
            behind = ends[(n := bisect_right(ends, latest_tag)) : n + 1] if closes else []
            best = latest_tag = max(latest_tag, min(best, last), *behind)
            closing -= closes
        inserted.setdefault(best, []).append(gap)
    parts: list[str] = []
    for index in range(len(words) + 1):
        word = words[index] if index < len(words) else None
        spaced = word is None or pieces[word.start].startswith(SPACE)
        following = decode(word) if word is not None else ""
        # Behind an opening mark comes no space.
        after_mark = bool(parts) and not spaced and not parts[-1][-1].isalnum()
        for gap in inserted.get(index, []):
            space = bool(parts) and not after_mark and not _touches(gap.before, parts[-1][-1])
            parts.append(" " * space + gap.wanted)
            after_mark = False
            # A closing mark that touched the word before it now touches the inserted text.
            spaced = not _touches(gap.after, following[:1]) and (spaced or following[:1].isalnum())
        if following:
            parts.append(" " * (spaced and bool(parts)) + following)
    return "".join(parts)


def _touches(in_source: str, in_target: str) -> bool:
    """Does inserted text touch this character of the translation? `in_source`: its neighbor in the source.

    Text that touched a letter was part of a word, and touches again. Text that touched a mark, or a character of a
    script without spaces, touches unless the translation has a letter of a script with spaces there.
    """
    if in_source == " " or (in_source.isalnum() and not _UNSPACED.match(in_source)):
        return in_source != " "
    return not in_target.isalnum() or bool(_UNSPACED.match(in_target))
