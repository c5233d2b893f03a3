"""Text that must survive a translation: placeholders, tags, URLs, emoji, numbers, words with unknown characters.

The model first translates the line as it is. If something is missing in the translation, the line is translated again
without it, and it is put back where attention says that it belongs. For unknown words this is PosUnk (Luong et al.
2015, "Addressing the rare word problem in neural machine translation"), with attention instead of position classes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

import numpy as np

from nmt_cli.text.alignment import SPACE, Word, is_punctuation, words_of
from nmt_cli.text.languages import UNSPACED

_EMOJI = "\U0001f000-\U0001faff☀-➿⬀-⯿⌀-⏿"
_W = rf"[^\W{UNSPACED}]"  # a letter or digit of a script that puts spaces between words
_URL = rf"[^\s<>\"'{{}}()“”„‟«»‹›‘’…{UNSPACED}\u3000-\u303f\uff00-\uffef]"
# Text of these kinds is copied letter by letter. benchmarks/protect.py measures how much each rule saves.
RULES = {
    "address": rf"""(?: (?<![A-Za-z0-9+-]) [A-Za-z][A-Za-z0-9+-]*:// | www\. | mailto: )
        (?: {_URL} | \( {_URL}* \) )* (?: (?![.,;:!?\]]) {_URL} | \( {_URL}* \) )""",
    "e-mail": rf"(?<!{_W}) (?<![.+-]) (?: {_W} | [.+-] )+ @ (?: {_W} | - )+ (?: \. (?: {_W} | - )+ )+",
    "tag": r"</? [A-Za-z!] [^<>]{0,200} > | <0x[0-9A-F]{2}>",
    "entity": r"& (?: \#\d+ | \w{2,8} ) ;",
    "braces": r"[$%]? \{ [^{}]{0,60} \} | \{\{ [^{}]{0,60} \}\}",
    "percent": r"""(?<![\d%]) % (?: \(\w+\) | \d+\$ )? [-+\#0]* (?: [1-9]\d* )? (?: \.\d+ )?
        (?: hh? | ll? | [zjtL] )? [a-zA-Z@] (?![a-zA-Z])""",  # %s, %1$s, %(x)d, %lu
    "mention": r"(?<!\w) [@\#] \w+",
    "version": rf"(?<!{_W}) (?<!\.) v? \d+ (?: \.\d+ ){{2,}} (?!{_W})",
    "size": rf"(?<!{_W}) \d+ (?: [x×] \d+ )+ (?!{_W})",  # 1920x1080
    "emoji": rf"[0-9\#*] \ufe0f? \u20e3 | [{_EMOJI}] [{_EMOJI}\ufe0f\u200d\u20e3]*",  # keycaps are emoji, too
}
_PATTERN = re.compile("|".join(RULES.values()), re.VERBOSE)
_SIGN = r"[ \u00a0\u202f]? (?: ° [CF]? | [%‰] )"
# A number of two digits or more, or with a sign. A single digit may become a word. Letters and signs that belong to the
# number are put back with it: 1990s, 12th, 10km, 5 %, 20 °C.
_NUMBER = re.compile(
    rf"""
    (?: (?<! [\w)\].,:/-] ) [-\u2212] )? (?<!{_W}) \d
    (?: (?: [.,:/\u00a0\u202f]? \d )+ (?: [^\W\d_{UNSPACED}]{{1,3}} (?!{_W}) | (?!{_W}) (?: {_SIGN} )? )
      | {_SIGN} )
    """,
    re.VERBOSE,
)
_DIGITS = re.compile(r"\d(?:[.,:/\u00a0\u202f]?\d)*")
_CANDIDATE = re.compile(r"[^\s\w.,;!?'\"()-]|\d|www\.")  # a fast test: most lines have none of these
# Languages write numbers differently: 1,234.5 is 1.234,5 and 1 234,5. Three digits may be thousands.
_THOUSANDS = re.compile(r"(?<=\d)[.,\u00a0\u202f](?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(r"(?<=\d)[.,\u00a0\u202f ](?=\d{3}(?!\d))")
_DECIMAL_MARK = re.compile(r"(?<=\d)[.,:/\u00a0\u202f](?=\d)")
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

    def count_in(self, text: str) -> int:
        """How often a translation contains the wanted text."""
        if not self.number:
            return text.count(self.wanted)
        digits = next(_DIGITS.finditer(self.wanted))
        minus = r"[-\u2212\u2013][ \u00a0\u202f]?" if digits.start() else ""
        number = re.compile(rf"{minus}(?<![\d·]){_canonical(digits[0], _THOUSANDS)}(?![\d·])")
        # A space between digits may be part of one number, as in 10 000, or stand between two numbers.
        return max(len(number.findall(_canonical(text, marks))) for marks in (_SPACED_THOUSANDS, _THOUSANDS))

    def without(self, text: str, count: int) -> str:
        """The text without the first `count` occurrences, so that they are not counted as part of another span."""
        return text if self.number else text.replace(self.wanted, "\0", count)

    @property
    def is_tag(self) -> bool:
        return self.wanted.startswith("<")

    def contains(self, other: Span) -> bool:
        return self.start <= other.start and other.stop <= self.stop

    def overlaps(self, other: Span) -> bool:
        return self.start < other.stop and other.start < self.stop


AnySpan = TypeVar("AnySpan", bound=Span)


def _canonical(text: str, thousands: re.Pattern) -> str:
    """Numbers without thousands separators, and with one kind of decimal mark."""
    return _DECIMAL_MARK.sub("·", thousands.sub("", text))


def verbatim(text: str) -> list[Span]:
    """Placeholders, tags, addresses and the like."""
    return [Span(match.start(), match.end(), match[0]) for match in _PATTERN.finditer(text)]


def protected(text: str, is_known: Callable[[str], bool]) -> list[Span]:
    """The spans of a line, from left to right. `is_known` says whether the vocabulary has a character."""
    spans = _unknown_words(text, is_known)
    if _CANDIDATE.search(text):
        spans += verbatim(text)
        spans += [_number(match, spans) for match in _NUMBER.finditer(text)]
    return without_overlaps(spans)


def _number(match: re.Match, others: Sequence[Span]) -> Span:
    """The span of a number, without a sign that is a span of its own."""
    digits = next(_DIGITS.finditer(match.string, match.start()))
    stop = min((span.start for span in others if digits.end() <= span.start < match.end()), default=match.end())
    wanted = match.string[match.start() : stop].rstrip()
    return Span(match.start(), match.start() + len(wanted), wanted, number=True)


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


def lost(spans: Sequence[AnySpan], translation: str) -> list[AnySpan]:
    """The spans that a translation contains less often than it should. If one tag is lost, all tags, to keep order."""
    contents = [replace(span, start=0, stop=0) for span in spans]  # equal contents at different places are equal
    missing = set()
    # The longest content first, because a short address may be the beginning of a long one.
    for content, count in sorted(Counter(contents).items(), key=lambda item: -len(item[0].wanted)):
        if content.count_in(translation) < count:
            missing.add(content)
        translation = content.without(translation, count)
    if any(content.is_tag for content in missing):
        missing.update(content for content in contents if content.is_tag)
    return [span for span, content in zip(spans, contents, strict=True) if content in missing]


@dataclass(frozen=True)
class Gap:
    """A place where a span was taken out of a text: at character `at` of the remaining text."""

    at: int
    wanted: str
    before: str  # the characters before and after the span; a space at the ends of the text
    after: str


def replaced(text: str, spans: Sequence[Span]) -> str:
    """The text with the wanted text of each span in its place."""
    for span in reversed(_merged(text, spans)):
        text = text[: span.start] + span.wanted + text[span.stop :]
    return text


def _merged(text: str, spans: Sequence[Span]) -> list[Span]:
    """Spans with nothing but space between them become one span."""
    merged: list[Span] = []
    for span in spans:
        between = text[merged[-1].stop : span.start] if merged else "-"
        if between.strip():
            merged.append(span)
            continue
        last = merged.pop()
        edges = last.wanted[-1] + span.wanted[0]
        if not between and edges.isalnum() and not _UNSPACED.search(edges) and _UNSPACED.match(text[span.start]):
            between = " "  # Chinese terms have no space between them, but their English translations need one
        merged.append(Span(last.start, span.stop, last.wanted + between + span.wanted))
    return merged


def take_out(text: str, spans: Sequence[Span]) -> tuple[str, list[Gap]]:
    """The text without the spans, and the gaps. Spans with nothing but space between them leave one gap."""
    rest, gaps, done = "", [], 0
    for span in _merged(text, spans):
        rest += text[done : span.start]
        before, after = rest[-1:] or " ", text[span.stop : span.stop + 1] or " "
        rest = rest.rstrip(" ")
        gaps.append(Gap(len(rest), span.wanted, before, after))
        following = text[span.stop :].lstrip(" ")
        if rest and (following[:1].isalnum() or before == after == " "):
            rest += " " * (" " in (before, after))
        done = len(text) - len(following)
    return rest + text[done:], gaps


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
    for gap, boundary in zip(gaps, boundaries, strict=True):
        agreement = [2 * mass[t, boundary] - mass[t, -1] - mass[-1, boundary] for t in places]
        if boundary < attention.shape[1] - 1 and words and is_punctuation(words[-1].text) and first < len(words):
            agreement.pop()  # a gap before the end of the source stays before the last mark of the translation
        best = first + int(np.argmax(agreement[first:])) if boundary else first
        if gap.wanted.startswith("<"):  # a tag closes after it has opened
            best = latest_tag = max(latest_tag, best)
        inserted.setdefault(best, []).append(gap)
    text = ""
    for index in range(len(words) + 1):
        word = words[index] if index < len(words) else None
        spaced = word is None or pieces[word.start].startswith(SPACE)
        following = decode(word) if word is not None else ""
        after_mark = bool(text) and not spaced and not text[-1].isalnum()  # behind an opening mark comes no space
        for gap in inserted.get(index, []):
            text += ("" if not text or after_mark or _touches(gap.before, text[-1]) else " ") + gap.wanted
            after_mark = False
            # A closing mark that touched the word before it now touches the inserted text.
            spaced = not _touches(gap.after, following[:1]) and (spaced or following[:1].isalnum())
        text += (" " if spaced and text and following else "") + following
    return text


def _touches(in_source: str, in_target: str) -> bool:
    """Does inserted text touch this character of the translation? `in_source`: its neighbor in the source.

    Text that touched a letter was part of a word, and touches again. Text that touched a mark, or a character of a
    script without spaces, touches unless the translation has a letter of a script with spaces there.
    """
    if in_source == " " or (in_source.isalnum() and not _UNSPACED.match(in_source)):
        return in_source != " "
    return not in_target.isalnum() or bool(_UNSPACED.match(in_target))
