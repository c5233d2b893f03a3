"""What must come through a translation unharmed: placeholders, tags, URLs, e-mails, emoji, numbers, characters that the
vocabulary does not know. `nmt translate` first lets the model try; only if something is lost is the text translated
without it, and it is put back where attention says it belongs.
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
from nmt_cli.text.words import UNSPACED

_EMOJI = "\U0001f000-\U0001faff☀-➿⬀-⯿⌀-⏿"
_W = rf"[^\W{UNSPACED}]"  # part of a word, where words are apart
_URL = rf"[^\s<>\"'{{}}()“”„‟«»‹›‘’…{UNSPACED}\u3000-\u303f\uff00-\uffef]"
_PATTERN = re.compile(
    rf"""
    (?: (?<![A-Za-z0-9+-]) [A-Za-z][A-Za-z0-9+-]*:// | www\. | mailto: )    # addresses
        (?: {_URL} | \( {_URL}* \) )* (?: (?![.,;:!?\]]) {_URL} | \( {_URL}* \) )
  | (?<!{_W}) (?<![.+-]) (?: {_W} | [.+-] )+ @ (?: {_W} | - )+ (?: \. (?: {_W} | - )+ )+    # e-mail
  | </? [A-Za-z!] [^<>]{{0,200}} > | <0x[0-9A-F]{{2}}> | & (?: \#\d+ | \w{{2,8}} ) ;           # tags, entities
  | [$%]? \{{ [^{{}}]{{0,60}} \}} | \{{\{{ [^{{}}]{{0,60}} \}}\}}            # {{x}}, {{{{x}}}}, ${{x}}
  | (?<![\d%]) % (?: \(\w+\) | \d+\$ )? [-+\#0]* (?: [1-9]\d* )? (?: \.\d+ )?      # %s, %1$s, %(x)d
        (?: hh? | ll? | [zjtL] )? [a-zA-Z@] (?![a-zA-Z])                   # ... %lu
  | (?<!\w) [@\#] \w+                                                      # mentions
  | (?<!{_W}) (?<!\.) v? \d+ (?: \.\d+ ){{2,}} (?!{_W})                       # versions
  | (?<!{_W}) \d+ (?: [x×] \d+ )+ (?!{_W})                                   # 1920x1080
  | [0-9\#*] \ufe0f? \u20e3                                                 # keycaps
  | [{_EMOJI}] [{_EMOJI}\ufe0f\u200d\u20e3]*                               # emoji
    """,
    re.VERBOSE,
)
_SIGN = r"[ \u00a0\u202f]? (?: ° [CF]? | [%‰] )"
# A number may be written in another way: what counts is its digits, its minus, and where its decimal mark is. One
# digit alone may become a word. What belongs to it comes along when it is put back: the 1990s, 12th, 10km, 5 %, 20 °C.
_NUMBER = re.compile(
    rf"""
    (?: (?<! [\w)\].,:/-] ) [-\u2212] )? (?<!{_W}) \d
    (?: (?: [.,:/\u00a0\u202f]? \d )+ (?: [^\W\d_{UNSPACED}]{{1,3}} (?!{_W}) | (?!{_W}) (?: {_SIGN} )? )
      | {_SIGN} )
    """,
    re.VERBOSE,
)
_DIGITS = re.compile(r"\d(?:[.,:/\u00a0\u202f]?\d)*")
_CANDIDATE = re.compile(r"[^\s\w.,;!?'\"()-]|\d|www\.")  # most lines have none of these, which is soon seen
# 1,234.5 is 1.234,5 and 1 234,5; three digits may be thousands, or not.
_THOUSANDS = re.compile(r"(?<=\d)[.,\u00a0\u202f](?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(r"(?<=\d)[.,\u00a0\u202f ](?=\d{3}(?!\d))")
_MARK = re.compile(r"(?<=\d)[.,:/\u00a0\u202f](?=\d)")
_UNSPACED = re.compile(f"[{UNSPACED}]")
# Where words are apart: with accents of their own, and with symbols that are part of them, as in C# and °C.
_LETTER = rf"(?:[^\W{UNSPACED}]|[\u0300-\u036f\u1dc0-\u1dff\u20d0-\u20ff]|[#&@°+$€£¥©®™\u2100-\u214f])"
_WORD = re.compile(rf"{_LETTER}+(?:[-'’]{_LETTER}+)*")


@dataclass(frozen=True)
class Span:
    """text[start:stop], which the translation must have as `wanted`."""

    start: int
    stop: int
    wanted: str
    number: bool = False

    def count_in(self, text: str) -> int:
        if self.number:
            found = _DIGITS.search(self.wanted)
            assert found is not None
            minus = r"[-\u2212\u2013][ \u00a0\u202f]?" if found.start() else ""
            number = re.compile(rf"{minus}(?<![\d·]){_canonical(found[0], _THOUSANDS)}(?![\d·])")
            # A space between two numbers may be inside of one, as in 10 000, or not.
            return max(len(number.findall(_canonical(text, marks))) for marks in (_SPACED_THOUSANDS, _THOUSANDS))
        return text.count(self.wanted)

    def without(self, text: str, count: int) -> str:
        """So many of them are counted, and are no part of anything else."""
        return text if self.number else text.replace(self.wanted, "\0", count)

    @property
    def tag(self) -> bool:
        return self.wanted.startswith("<")

    def contains(self, other: Span) -> bool:
        return self.start <= other.start and other.stop <= self.stop

    def overlaps(self, other: Span) -> bool:
        return self.start < other.stop and other.start < self.stop


AnySpan = TypeVar("AnySpan", bound=Span)


def _canonical(text: str, thousands: re.Pattern) -> str:
    """Numbers without marks of thousands, and one decimal mark for all."""
    return _MARK.sub("·", thousands.sub("", text))


def verbatim(text: str) -> list[Span]:
    """Placeholders, tags, addresses and the like, which no word of them may leave."""
    return [Span(match.start(), match.end(), match[0]) for match in _PATTERN.finditer(text)]


def protected(text: str, known: Callable[[str], bool]) -> list[Span]:
    """The spans of a line, from left to right; `known` says whether the vocabulary has a character."""
    spans = _unknown(text, known)
    if _CANDIDATE.search(text):
        spans += verbatim(text)
        spans += [_number(match, spans) for match in _NUMBER.finditer(text)]
    return without_overlaps(spans)


def _number(match: re.Match, others: Sequence[Span]) -> Span:
    """Without a sign that is a span by itself, since what counts of a number is its digits."""
    digits = _DIGITS.search(match.string, match.start())
    assert digits is not None
    stop = min((span.start for span in others if digits.end() <= span.start < match.end()), default=match.end())
    wanted = match.string[match.start() : stop].rstrip()
    return Span(match.start(), match.start() + len(wanted), wanted, number=True)


def _unknown(text: str, known: Callable[[str], bool]) -> list[Span]:
    """Runs of unknown characters. An unknown letter is known by the word that it stands in: the rest of a name is no
    use without it."""
    if all(map(known, set(text))):
        return []
    unknown = [not known(character) for character in text]
    spans = [Span(word.start(), word.end(), word[0]) for word in _WORD.finditer(text)]
    spans = [span for span in spans if any(unknown[span.start : span.stop])]
    for span in spans:
        unknown[span.start : span.stop] = [False] * (span.stop - span.start)
    start = 0
    for strange, run in groupby(unknown):
        stop = start + len(list(run))
        spans += [Span(start, stop, text[start:stop])] if strange else []
        start = stop
    return spans


def without_overlaps(spans: Sequence[AnySpan]) -> list[AnySpan]:
    """Where two overlap, the one that begins first, or else the longer."""
    kept: list[AnySpan] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        if not kept or span.start >= kept[-1].stop:
            kept.append(span)
    return kept


def lost(spans: Sequence[AnySpan], translation: str) -> list[AnySpan]:
    """Those whose content a translation has less often than it should; with one tag all tags, to keep their order."""
    contents = [replace(span, start=0, stop=0) for span in spans]  # without their places, equal ones are equal
    missing = set()
    # The longest first: an address may be the beginning of another.
    for content, count in sorted(Counter(contents).items(), key=lambda item: -len(item[0].wanted)):
        if content.count_in(translation) < count:
            missing.add(content)
        translation = content.without(translation, count)
    tags = any(content.tag for content in missing)
    return [span for span, content in zip(spans, contents, strict=True) if content in missing or (tags and content.tag)]


@dataclass(frozen=True)
class Gap:
    """Where something was taken out of a text: at character `at` of what remains."""

    at: int
    wanted: str
    before: str  # the characters that it stood between; a space at the ends
    after: str


def replaced(text: str, spans: Sequence[Span]) -> str:
    """The text with what is wanted of the spans in their places."""
    for span in reversed(_joined(text, spans)):
        text = text[: span.start] + span.wanted + text[span.stop :]
    return text


def _joined(text: str, spans: Sequence[Span]) -> list[Span]:
    """Spans that are apart by nothing but space are one."""
    joined: list[Span] = []
    for span in spans:
        between = text[joined[-1].stop : span.start] if joined else "-"
        if between.strip():
            joined.append(span)
            continue
        last = joined.pop()
        words = (last.wanted[-1] + span.wanted[0]).isalnum() and not _UNSPACED.search(last.wanted[-1] + span.wanted[0])
        if not between and words and _UNSPACED.match(text[span.start]):
            between = " "  # the source needs none, but their translations do
        joined.append(Span(last.start, span.stop, last.wanted + between + span.wanted))
    return joined


def take_out(text: str, spans: Sequence[Span]) -> tuple[str, list[Gap]]:
    """The text without the spans, and the gaps. What is apart by nothing but space is one gap, kept as it is."""
    rest, gaps, done = "", [], 0
    for span in _joined(text, spans):
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
    """The translation, with everything back in its gap, and behind the pieces of a forced prefix.

    boundaries[i] is the number of source pieces before gap i. It goes to the word boundary of the translation that
    best separates what attends to the source before the gap from what attends to the source behind it.
    """
    words = words_of(pieces, punctuation=True)
    # mass[t, s]: attention of the first t target pieces to the first s source pieces
    mass = np.zeros((len(pieces) + 1, attention.shape[1] + 1))
    mass[1:, 1:] = attention[: len(pieces)].cumsum(0).cumsum(1)
    places = [word.start for word in words] + [len(pieces)]
    inserted: dict[int, list[Gap]] = {}
    first = latest = sum(place < prefix for place in places[:-1])
    for gap, boundary in zip(gaps, boundaries, strict=True):
        concord = [2 * mass[t, boundary] - mass[t, -1] - mass[-1, boundary] for t in places]
        if boundary < attention.shape[1] - 1 and words and is_punctuation(words[-1].text) and first < len(words):
            concord.pop()  # what stood before the end of the source stands before the last mark of the translation
        best = first + int(np.argmax(concord[first:])) if boundary else first
        if gap.wanted.startswith("<"):  # tags close after they have opened
            best = latest = max(latest, best)
        inserted.setdefault(best, []).append(gap)
    text = ""
    for index in range(len(words) + 1):
        word = words[index] if index < len(words) else None
        spaced = word is None or pieces[word.start].startswith(SPACE)
        following = decode(word) if word is not None else ""
        after_mark = bool(text) and not spaced and not text[-1].isalnum()  # an opening one: the word touches it
        for gap in inserted.get(index, []):
            text += ("" if not text or after_mark or _touches(gap.before, text[-1]) else " ") + gap.wanted
            after_mark = False
            # A closing mark that touched the word before it touches what is now there.
            spaced = not _touches(gap.after, following[:1]) and (spaced or following[:1].isalnum())
        text += (" " if spaced and text and following else "") + following
    return text


def _touches(in_source: str, in_target: str) -> bool:
    """May something stand by this character of the translation without a space, as it stood by that of the source?

    By a letter it does if it did: part of a word. By a quotation mark it does if here, too, is a mark, and so where the
    source's script has no spaces, unless the translation's has.
    """
    if in_source == " " or (in_source.isalnum() and not _UNSPACED.match(in_source)):
        return in_source != " "
    return not in_target.isalnum() or bool(_UNSPACED.match(in_target))
