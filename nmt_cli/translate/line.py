"""Translate one line: split, translate, check, repair.

A line is a program: a generator that yields requests to the engine, is sent their hypotheses, and returns the result.
So the steps of a line read from top to bottom, although thousands of lines are translated at once: `together` runs many
programs in step and yields the requests of all of them (translator.py batches these).
"""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.search.contract import Hypothesis, Request, joined_score
from nmt_cli.search.quality import Features, features
from nmt_cli.text.alignment import SPACE, Word, aligned, over_words, words_of
from nmt_cli.text.languages import puts_spaces_between_sentences
from nmt_cli.text.lines import is_blank, normalize, one_line
from nmt_cli.text.sentences import split_sentences
from nmt_cli.text.vocab import UNK, Vocab, symbol_pattern
from nmt_cli.translate.glossary import Term, capitalized, terms_in
from nmt_cli.translate.options import Settings
from nmt_cli.translate.protect import (
    Span,
    contents,
    lost,
    overlaps,
    protected,
    put_back,
    replaced,
    take_out,
    verbatim,
    without_overlaps,
)
from nmt_cli.translate.recase import Recased, sentence_case
from nmt_cli.translate.respell import respell
from nmt_cli.translate.results import Correction, Output, Part, Translation
from nmt_cli.translate.rows import Row
from nmt_cli.translate.split import split_line

ATTEMPTS = 2  # tries to put lost text back: first only the lost spans are taken out of the source, then all spans
WORD_REPEATS = 4  # a sequence of pieces that contains a letter is a loop from this many times in a row
OTHER_REPEATS = 16  # a sequence without a letter needs more: 10000 and ..... are no loops
LONGEST_PERIOD = 128  # pieces of the longest repeated sequence; the limit keeps the work linear in the line's length
MOST_FORCED = 10  # forced terms of a part; each needs a search of its own. Further terms are put back into the text

Result = TypeVar("Result")
Program = Generator[list[Request], list[list[Hypothesis]], Result]
Segment = tuple[list[Output], frozenset[str]]  # the n best of a part of a line, and the flags of the best


@dataclass(frozen=True)
class _Part:
    """A part of a line, line[start:stop]. Tags and text are normalized."""

    tags: str  # the symbols at the beginning of the line. The model reads them before the text
    text: str  # without the tags
    ids: tuple[int, ...]  # of the tags and the text
    start: int
    stop: int
    words: tuple[int, ...] | None = None  # the number of each word in the line; None: nothing is aligned
    recased: Recased | None = None  # the case to put back
    respelled: tuple[Correction, ...] = ()  # the corrected words of the text


def together(programs: Sequence[Program[Result]]) -> Program[list[Result]]:
    """Run programs in step, and return their results in order."""
    results: dict[int, Result] = {}
    requests: dict[int, list[Request]] = {index: [] for index in range(len(programs))}
    answers: Iterator[list[Hypothesis]] = iter(())
    while requests:
        running, requests = requests, {}
        for index, asked in running.items():
            try:
                program = programs[index]
                requests[index] = program.send([next(answers) for _ in asked]) if asked else next(program)
            except StopIteration as stop:
                results[index] = stop.value
        if requests:
            answers = iter((yield [request for asked in requests.values() for request in asked]))
    return [results[index] for index in range(len(programs))]


class LineTranslator:
    def __init__(self, vocab: Vocab, settings: Settings) -> None:
        self.vocab, self.settings = vocab, settings
        self.spaced = [puts_spaces_between_sentences(side) for side in (vocab.source_lang, vocab.target_lang)]
        symbol = symbol_pattern(vocab.symbols)
        self.symbol = re.compile(symbol)
        # Symbols that the user types at the beginning of a line, such as <2de>.
        self.tags = re.compile(rf"(?:\s*(?:{symbol})\s*)+")

        @cache
        def is_known(character: str) -> bool:
            """A character that the model reads as bytes counts as unknown: the model may fail to write the bytes."""
            if character == SPACE:  # SentencePiece's mark for a space, which would come back as a space
                return False
            ids = vocab.source.encode(character)
            return character == " " or not any(index == UNK or vocab.source.is_byte(index) for index in ids)

        def is_known_word(word: str) -> bool:
            return UNK not in vocab.source.encode(word)

        @cache
        def is_word(index: int) -> bool:
            return not vocab.target.is_byte(index) and any(map(str.isalpha, vocab.target.id_to_piece(index)))

        # An imported vocabulary may have a word and lack one of its letters.
        self.is_word, self.by_words = is_word, vocab.type == "word" or vocab.imported is not None
        self.is_known = is_known_word if self.by_words else is_known

    def line(self, row: Row) -> Program[Translation]:
        """A whole line, sentence by sentence."""
        generate = self.settings.search.generate
        if is_blank(normalize(row.text, self.vocab.normalization)) or not (generate or self.has_text(row.text)):
            return Translation(row.number, row.text)
        if generate:
            return (yield from self._continued(row))
        given = "" if is_blank(row.given) else normalize(row.given, self.vocab.normalization)
        prefix = tuple(self.vocab.target.encode(given))
        if UNK in prefix:
            hint = "remove characters that are not in the model's vocabulary, or leave the line blank"
            raise NmtError(
                f"the prefix of line {row.number} has characters that the model cannot write: {row.given}", hint
            )
        pieces, positions = len(self.vocab.target_prefix) + len(prefix), self.settings.positions
        if positions and pieces >= positions:
            problem = f"the prefix of line {row.number} has {pieces} pieces; the model writes fewer than {positions}"
            raise NmtError(problem, "shorten the prefix")
        parts = self._parts(row)
        too_long = sum(len(part.ids) for part in parts) > self.settings.longest_source
        prefixes = [prefix, *[()] * (len(parts) - 1)]
        parts = [self._readable(part, bool(prefix)) for part, prefix in zip(parts, prefixes, strict=True)]
        segments = yield from together([self._segment(row.number, *each) for each in zip(parts, prefixes, strict=True)])
        flags = frozenset[str]().union(*(flags for _, flags in segments))
        respelled = tuple(correction for part in parts for correction in part.respelled)
        spans: tuple[Part, ...] = ()
        if len(parts) == 1:
            n_best = segments[0][0]
        else:
            flags |= {"split", "long"} if too_long else {"split"}
            n_best, spans = self._joined(row.text, parts, [outputs for outputs, _ in segments])
        return Translation(row.number, row.text, tuple(n_best), tuple(sorted(flags)), spans, respelled)

    def _continued(self, row: Row) -> Program[Translation]:
        """Continue the line: the result is the line itself, and the text that the model writes behind it."""
        ids, limit, decode = self._encode(normalize(row.text, self.vocab.normalization)), 0, self.vocab.source.decode
        if len(ids) >= (limit := self.settings.longest_source):
            problem = f"the prompt in line {row.number} has {len(ids)} pieces; the model continues fewer than {limit}"
            raise NmtError(problem, "shorten the line")
        (hypotheses,) = yield [Request(ids, ids, len(ids), row.number, tokens=self.settings.tokens)]
        outputs, known = [], len(decode(list(ids)))
        for found in hypotheses:
            text = one_line(row.text.rstrip() + decode(list(found.ids))[known:])
            pieces = tuple(self.vocab.source.id_to_piece(list(found.ids)))
            outputs.append(Output(text, found.score, found.logprob, len(pieces) + 1, pieces, found.token_logprobs))
        flags = () if hypotheses[0].finished else ("unfinished",)
        return Translation(row.number, row.text, tuple(outputs), flags)

    def tags_of(self, line: str) -> str:
        """The tags at the beginning of a line, such as <2de>, and the spaces around them."""
        match = self.tags.match(line)
        return match[0] if match else ""

    def has_text(self, line: str) -> bool:
        """Whether a line has more than tags."""
        return not is_blank(normalize(line[len(self.tags_of(line)) :], self.vocab.normalization))

    def _parts(self, row: Row) -> list[_Part]:
        """The parts of a line that are translated one by one. Tags at the beginning of a line go with every part."""
        typed, form = self.tags_of(row.text), self.vocab.normalization
        tags, begin = normalize(typed, form) + " " * typed[-1:].isspace(), len(typed)

        def count(text: str) -> int:
            return self._count(tags + normalize(text, form))

        # A prefix of several sentences belongs to several parts, so such a line is not split by sentence.
        by_sentence = self.settings.split and len(split_sentences(row.given, self.vocab.target_lang)) < 2
        limit, language = self.settings.longest_source, self.vocab.source_lang
        texts = split_line(row.text[begin:], language, limit, count, self._required, by_sentence)
        parts = []
        for text in texts:
            start, begin = begin, begin + len(text)
            if is_blank(text):
                continue
            clean = normalize(text, form)
            ids = self._encode(tags + clean)
            start += len(text) - len(text.lstrip())
            parts.append(_Part(tags, clean, ids, start, start + len(text.strip())))
        if not self.settings.align:
            return parts
        numbers = self.word_numbers(row.text, [part.ids for part in parts])
        return [replace(part, words=words) for part, words in zip(parts, numbers, strict=True)]

    def word_numbers(self, line: str, parts: Sequence[Sequence[int]]) -> Sequence[tuple[int, ...] | None]:
        """For each part of a line, the number in the line of each word of its source. None if a word was cut.

        Every part begins with the tags, but the line has them only once. A word that touches the last tag, as in
        <2de>The, is a word of the part.
        """
        pieces_of_tags = self._count(normalize(self.tags_of(line), self.vocab.normalization))
        numbers: list[tuple[int, ...]] = []
        seen = 0  # words of the line, up to here
        for source in parts:
            words = self._source_words(source)
            tags = sum(word.stop <= pieces_of_tags for word in words) if numbers else 0
            numbers.append((*range(tags), *range(seen, seen + len(words) - tags)))
            seen += len(words) - tags
        in_line = len(self._source_words(self._encode(normalize(line, self.vocab.normalization))))
        return numbers if len(parts) == 1 or seen == in_line else [None] * len(parts)

    def _joined(
        self, line: str, parts: list[_Part], found: list[list[Output]]
    ) -> tuple[list[Output], tuple[Part, ...]]:
        """The outputs of all parts of a line, joined: the best of each part, the second best of each part, ...

        The best of each part come first, whatever their score: only these were checked for lost text. Also returns
        where each part is in the line and in the best output.
        """
        spaces = [self._space(line[a.stop : b.start]) for a, b in pairwise(parts)]
        joined = []
        for rank in range(max(map(len, found))):
            outputs = [n_best[min(rank, len(n_best) - 1)] for n_best in found]
            logprob, length = sum(output.logprob for output in outputs), sum(output.length for output in outputs)
            # Align the whole line or nothing: where text was put back or copied, the pieces do not give the words.
            is_aligned = all(output.alignment or not output.text for output in outputs)
            words_before = accumulate((len(words_of(output.tokens)) for output in outputs), initial=0)
            alignment: list[tuple[int, int]] = []
            for output, shift in zip(outputs, words_before, strict=False):
                alignment += [(source, target + shift) for source, target in output.alignment if is_aligned]
            texts, spans, at = [], [], 0
            for output, part, space in zip(outputs, parts, ["", *spaces], strict=True):
                text = (space if at and output.text else "") + output.text
                at += len(text)
                texts.append(text)
                spans.append(Part((part.start, part.stop), (at - len(output.text), at)))
            figures_of_parts = [(output.score, output.logprob, output.length) for output in outputs]
            score = joined_score(figures_of_parts, self.settings.search)
            tokens = tuple(piece for output in outputs for piece in output.tokens)
            # Every part has an end mark, so the log probabilities would not fit the pieces.
            figures = (score, logprob, length, tokens, (), tuple(alignment), _mean_confidence(outputs))
            joined.append((Output("".join(texts), *figures), tuple(spans)))
        best, *others = [output for output, _ in joined]
        return [best, *sorted(others, key=lambda output: -output.score)], joined[0][1]

    def _space(self, between: str) -> str:
        """The space between two parts of a translation, from the space between the parts of the line."""
        if self.spaced[0] != self.spaced[1]:
            return " " if self.spaced[1] else ""
        return "".join(space if unicodedata.category(space) == "Zs" else " " for space in between)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.vocab.source.encode(text))

    def _count(self, text: str) -> int:
        return len(self.vocab.source.encode(text))

    def _source_words(self, source: Sequence[int]) -> list[Word]:
        return words_of(self.vocab.source.id_to_piece(list(source)))

    def _terms(self, text: str) -> list[Term]:
        """Terms of the glossary, except terms inside a placeholder or an address, because these must not change."""
        terms = self.settings.glossary.find(text) if self.settings.glossary else []
        fixed = self._verbatim(text) if terms and self.settings.protect else []
        return [term for term, spans in overlaps(terms, fixed) if all(map(term.contains, spans))]

    def _verbatim(self, text: str) -> list[Span]:
        """Text that is no word of the language: code, addresses and the like, and symbols of the vocabulary."""
        symbols = [Span(match.start(), match.end(), match[0]) for match in self.symbol.finditer(text)]
        return without_overlaps([*verbatim(text), *symbols])

    def _fixed(self, text: str) -> list[Span]:
        """Text in which no typo is corrected: text that is no word, and terms of the glossary."""
        terms = self.settings.glossary.find(text) if self.settings.glossary else []
        return without_overlaps([*self._verbatim(text), *terms])

    def _required(self, text: str) -> list[Span]:
        """Everything that the translation must contain, from left to right. A term wins over protected text."""
        terms = self._terms(text)
        spans = protected(text, self.is_known, self.by_words) if self.settings.protect else []
        spans = [span for span, others in overlaps(spans, terms) if not others]
        return sorted([*spans, *terms], key=lambda span: span.start)

    def _lost(self, required: list[Span], translation: str) -> list[Span]:
        if not required:
            return []
        terms = [span for span in required if isinstance(span, Term)]
        return lost(required, [*contents(translation, self.is_known, self.by_words), *terms_in(translation, terms)])

    def _readable(self, part: _Part, has_prefix: bool) -> _Part:
        """The part as the model reads it best: in sentence case, and without typos.

        A model that was trained for capitals or title case reads them as they are.
        """
        recased = None if has_prefix else sentence_case(part.text, self._verbatim, self._count, self.vocab.source_lang)
        if recased and recased.case not in self.settings.known_cases:
            part = replace(self._with_text(part, recased.text), recased=recased)
        words = self.settings.words
        changed = respell(part.text, self._fixed, words) if words else None
        if changed and len((new := self._with_text(part, changed.text)).ids) <= self.settings.longest_source:
            part = replace(new, respelled=changed.corrections)
        return part

    def _with_text(self, part: _Part, text: str) -> _Part:
        return replace(part, text=text, ids=self._encode(part.tags + text))

    def _segment(self, line: int, part: _Part, prefix: tuple[int, ...]) -> Program[Segment]:
        """Translate a part, and give the translation the case of the source."""
        outputs, flags = yield from self._repaired(line, part, prefix)
        if part.respelled:
            flags |= {"respelled"}
        if not part.recased:
            return outputs, flags
        put_back = part.recased.put_back
        return [replace(output, text=put_back(output.text)) for output in outputs], flags | {"recased"}

    def _repaired(self, line: int, part: _Part, prefix: tuple[int, ...]) -> Program[Segment]:
        """Translate a part, and repair the translation where something was lost."""
        text = part.text
        # Copy text that is too long for the model and must not be cut. Also copy text without words: from marks alone,
        # a model invents a sentence.
        has_words = any(map(str.isalnum, text)) or not self.settings.protect
        if len(part.ids) > self.settings.longest_source or not has_words:
            return self._copied(text, prefix)
        # 1. Translate the text as it is, with the terms of the glossary.
        hypotheses, flags = yield from self._with_terms(line, part, prefix)
        outputs, found = self._outputs(part.ids, hypotheses, len(prefix), part.words)
        required = self._required(text)
        missing = self._lost(required, outputs[0].text)
        if not missing:
            return outputs, flags | found
        # 2. Translate the text without the lost spans and put them back. If that fails, without all required spans.
        for taken in [missing, required][: ATTEMPTS if len(missing) < len(required) else 1]:
            taken = taken if prefix else [_with_capital(span, text) for span in taken]
            rest, gaps = take_out(text, taken)
            if not any(map(str.isalnum, rest)):
                return self._copied(replaced(text, taken), prefix, flags)
            shorter = self._with_text(part, rest)
            tags, *boundaries = self._pieces_before(shorter, [0, *(gap.at for gap in gaps)])
            boundaries = [boundary - tags for boundary in boundaries]
            hypotheses, forced = yield from self._with_terms(line, shorter, prefix, attention=True)
            outputs, found = self._outputs(shorter.ids, hypotheses, len(prefix), None)
            flags |= forced | {"restored"}
            for n, hypothesis in enumerate(hypotheses):
                pieces = list(outputs[n].tokens)
                kept = self._kept(hypothesis, shorter.ids, len(prefix))
                attention = attention_of(hypothesis, len(shorter.ids))[kept, tags:]
                restored = put_back(pieces, attention, gaps, boundaries, self._decoder(pieces), len(prefix))
                outputs[n] = replace(outputs[n], text=one_line(restored))
            if not self._lost(required, outputs[0].text):
                break
        return outputs, flags | found

    def _copied(self, text: str, prefix: tuple[int, ...], flags: frozenset[str] = frozenset()) -> Segment:
        """Text without anything to translate, behind the forced prefix."""
        begin, space = self.vocab.target.decode(list(prefix)), " " if self.spaced[1] else ""
        return [Output(one_line(space.join(part for part in (begin, text) if part)))], flags | {"copied"}

    def _with_terms(
        self, line: int, part: _Part, prefix: tuple[int, ...], attention: bool = False
    ) -> Program[tuple[list[Hypothesis], frozenset[str]]]:
        """Search, and force every missing term of the glossary at the place where the model translated it otherwise."""
        # A term is not forced if the model cannot write it, or if it would fill the last position of the model. If the
        # model adds an ending to a forced term, the term counts as lost. `_repaired` puts all these terms back.
        terms = [term for term in self._terms(part.text) if UNK not in self.vocab.target.encode(term.wanted)]
        sources = self._source_pieces(part, terms)
        attention = attention or self.settings.align or bool(terms)
        request = Request(part.ids, prefix, len(prefix), line, attention, self.settings.tokens, self.settings.coverage)
        (hypotheses,) = yield [request]
        forced: list[Term] = []  # no term is forced twice
        most = (self.settings.positions or math.inf) - len(self.vocab.target_prefix)  # pieces, with the end mark
        for _ in terms[:MOST_FORCED]:
            best = hypotheses[0]
            written = self.vocab.target.decode(list(best.ids))
            missing = [term for term in lost(terms, terms_in(written, terms)) if term not in forced]
            places = self._places([sources[term] for term in missing], best, len(part.ids), len(request.prefix))
            choices = []
            for term, at in zip(missing, places, strict=True):
                new = self._pieces_at(term, best.ids, at, written)
                # A term that occurs twice may stand at one of its places.
                is_there = best.ids[at : at + len(new)] == new
                if not is_there and at + len(new) < most:
                    choices.append((at, new, term))
            if not choices:
                break
            at, new, term = min(choices, key=lambda choice: choice[:2])
            forced.append(term)
            request = replace(request, prefix=(*best.ids[:at], *new))
            (hypotheses,) = yield [request]
        return hypotheses, frozenset({"glossary"} if forced else ())

    def _pieces_before(self, part: _Part, positions: Sequence[int]) -> list[int]:
        """How many source pieces of the part begin before each position of its text.

        Both are counted in characters that are not spaces, because a piece begins with the space before it.
        """
        source, text = self.vocab.source, part.tags + part.text
        begins, seen = [], 0
        for index, piece in zip(source.encode(text), source.encode(text, out_type=str), strict=True):
            continues = source.is_byte(index) and 0x80 <= int(piece[3:5], 16) < 0xC0  # a further byte of a character
            begins.append(seen - continues)
            seen += not continues if source.is_byte(index) else len(piece) - piece.count(SPACE)
        before = list(accumulate((character not in (" ", SPACE) for character in text), initial=0))
        return [bisect_left(begins, before[len(part.tags) + position]) for position in positions]

    def _source_pieces(self, part: _Part, terms: Sequence[Span]) -> dict[Span, slice]:
        """The source pieces of each term."""
        first, last = (self._pieces_before(part, at) for at in ([t.start for t in terms], [t.stop for t in terms]))
        return {term: slice(a, max(a + 1, b)) for term, a, b in zip(terms, first, last, strict=True)}

    def _places(self, sources: Sequence[slice], best: Hypothesis, length: int, after: int) -> list[int]:
        """For each slice of the source: where the target word that attends most to it begins, from piece `after` on."""
        words = words_of(self.vocab.target.id_to_piece(list(best.ids)), punctuation=True)
        words = [word for word in words if word.start >= after]
        if not words or not sources:
            return [len(best.ids)] * len(sources)
        attention = attention_of(best, length)
        by_word = np.stack([attention[word.start : word.stop].mean(0) for word in words])
        return [words[by_word[:, pieces].sum(1).argmax()].start for pieces in sources]

    def _pieces_at(self, term: Term, ids: tuple[int, ...], at: int, written: str) -> tuple[int, ...]:
        """The pieces of the term's translation at ids[at]: with a capital at the beginning of a sentence."""
        target = self.vocab.target
        plain, capital = map(tuple, target.encode([term.wanted, capitalized(term.wanted)]))
        if not at:
            begins_sentence = written[:1].isupper() and term.wanted.islower() and UNK not in capital
            return capital if begins_sentence else plain
        if at < len(ids) and not target.id_to_piece(ids[at]).startswith(SPACE):  # no space behind an opening bracket
            mark = target.decode(list(ids[max(0, at - 4) : at]))[-1:]  # a character has up to four pieces, its bytes
            touching = target.encode(mark + term.wanted)
            for n in range(1, len(touching)):
                if target.decode(touching[:n]) == mark:
                    return tuple(touching[n:])
        return plain

    def _outputs(
        self, source: tuple[int, ...], hypotheses: Sequence[Hypothesis], given: int, words: tuple[int, ...] | None
    ) -> tuple[list[Output], set[str]]:
        """The n best without loops, and the flags of the best. The `given` pieces of a prefix may repeat themselves.

        `words` are the numbers of the words of the source in the line. None: the output is not aligned.
        """
        outputs, flags, quality = [], set[str](), self.settings.quality
        for rank, hypothesis in enumerate(hypotheses):
            kept = self._kept(hypothesis, source, given)
            ids = [hypothesis.ids[n] for n in kept]
            is_cut = len(kept) < len(hypothesis.ids)
            pieces = self.vocab.target.id_to_piece(ids)
            alignment: tuple[tuple[int, int], ...] = ()
            attention = hypothesis.attention if self.settings.align and not is_cut else None
            if attention is not None and ids and words is not None:
                links = self.alignment([(source, ids, attention)])
                alignment = tuple((words[word], target) for word, target in links)
            text, length = one_line(self.vocab.target.decode(ids)), len(hypothesis.ids) + 1
            logprobs = () if is_cut else hypothesis.token_logprobs
            score, logprob = hypothesis.score, hypothesis.logprob
            figures = features(len(source), len(hypothesis.ids), logprob, hypothesis.coverage, given)
            is_whole = hypothesis.finished and not is_cut
            confidence = self._confidence(figures, is_whole)
            outputs.append(Output(text, score, logprob, length, tuple(pieces), logprobs, alignment, confidence))
            if not rank and not is_whole:
                flags.add("loop" if is_cut else "unfinished")
            elif not rank and (not ids or (quality is not None and quality.is_omission(figures))):
                flags.add("omission")
        return outputs, flags

    def _kept(self, hypothesis: Hypothesis, source: tuple[int, ...], given: int) -> list[int]:
        """The places of the pieces that are no repeats of a loop. The `given` pieces of a prefix stay."""
        kept = cut_loops(hypothesis.ids[given:], source, self.is_word)
        return [*range(given), *(given + place for place in kept)]

    def alignment(self, parts: Sequence[tuple[Sequence[int], Sequence[int], np.ndarray]]) -> list[tuple[int, int]]:
        """(source word, target word) of a line. A part has the ids of both sides and the attention between them."""
        links: list[tuple[int, int]] = []
        sources_before = targets_before = 0
        for source, target, attention in parts:
            sources = self._source_words(source)
            targets = words_of(self.vocab.target.id_to_piece(list(target)))
            if source and target:
                weights = over_words(attention[: len(target), : len(source)], targets, sources)
                links += [(i + sources_before, j + targets_before) for i, j in aligned(weights)]
            sources_before, targets_before = sources_before + len(sources), targets_before + len(targets)
        return links

    def _confidence(self, figures: Features, is_whole: bool) -> float | None:
        """A translation that repeated itself or was cut off has a confidence of 0."""
        quality = self.settings.quality
        if quality is None or not self.settings.confidence:
            return None
        return quality.confidence(figures) if is_whole else 0.0

    def _decoder(self, pieces: list[str]) -> Callable[[Word], str]:
        ids = self.vocab.target.piece_to_id(pieces)
        return lambda word: self.vocab.target.decode(ids[word.start : word.stop])


def _mean_confidence(parts: Sequence[Output]) -> float | None:
    """The mean over all parts that the model wrote. Long parts count more, because they decide the chrF of the line."""
    weights = [(part.confidence, part.length) for part in parts if part.confidence is not None]
    total = sum(length for _, length in weights)
    return sum(confidence * length for confidence, length in weights) / total if total else None


def _with_capital(span: Span, text: str) -> Span:
    """A term that begins the line with a capital keeps the capital."""
    begins_line = isinstance(span, Term) and text[span.start].isupper() and not text[: span.start].strip()
    return replace(span, wanted=capitalized(span.wanted)) if begins_line and span.wanted.islower() else span


def attention_of(hypothesis: Hypothesis, source: int) -> np.ndarray:
    """(T+1,S+1) attention. For a model without attention, assume a translation word by word."""
    if hypothesis.attention is not None:
        return hypothesis.attention[:, : source + 1]  # without the padding of the batch
    positions = np.round(np.linspace(0, source, len(hypothesis.ids) + 1)).astype(int)
    return np.eye(source + 1)[positions]


def cut_loops(ids: Sequence[int], source: Sequence[int], is_word: Callable[[int], bool]) -> list[int]:
    """The places in `ids` without the repeats of loops; all places if there is no loop.

    A repetition is a loop only if it is longer than every repetition in the source.
    """
    places = range(len(ids))
    if len(ids) - len(set(ids)) < WORD_REPEATS - 1:
        return [*places]
    loops = list(_find_loops(ids, WORD_REPEATS))
    if not loops:
        return [*places]
    most_in_source = max(((stop - start) // period for start, stop, period in _find_loops(source, 2)), default=1)
    kept: list[int] = []
    done = 0
    for start, stop, period in loops:
        times, contains_word = (stop - start) // period, any(map(is_word, ids[start : start + period]))
        if times >= max(WORD_REPEATS if contains_word else OTHER_REPEATS, most_in_source + 1):
            kept += places[done : start + most_in_source * period]
            # An incomplete last repeat belongs to the text after the loop, if there is any: n'elle n'elle n'a.
            done = start + times * period if stop < len(ids) else stop
    return [*kept, *places[done:]]


def _find_loops(ids: Sequence[int], least: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, period) where ids[start:stop] repeats its first `period` ids `least` times or more.

    From left to right without overlaps; of two loops that begin together, the one with the shorter period.
    """
    array = np.array(list(ids))
    loops: list[tuple[int, int, int]] = []  # (start, period, stop)
    for period in range(1, min(LONGEST_PERIOD, len(ids) // least) + 1):
        # Between two ids that differ from the id one period later, all ids repeat.
        differ = np.flatnonzero(array[period:] != array[:-period])
        edges = np.concatenate(([-1], differ, [len(ids) - period]))
        for n in np.flatnonzero(np.diff(edges) > (least - 1) * period):
            loops.append((int(edges[n]) + 1, period, int(edges[n + 1]) + period))
    heapq.heapify(loops)
    at = 0
    while loops:
        start, period, stop = heapq.heappop(loops)
        if start < at and stop - at >= least * period:  # the rest of a loop that began inside of another
            heapq.heappush(loops, (at, period, stop))
        elif start >= at:
            yield start, stop, period
            at = stop
