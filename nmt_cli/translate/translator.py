"""Lines to translations, for `nmt translate`: any number of lines, in order, by any engine.

What happens to one line is written as a generator that yields requests and is sent their hypotheses (`_segment`), so
that it reads from top to bottom although thousands of lines are on their way at once. `Translator.translate` runs a
window of them in step and batches whatever they ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.search.contract import Hypothesis, Request, SearchOptions, length_normalized
from nmt_cli.search.workers import Workers
from nmt_cli.text.alignment import SPACE, Word, aligned, over_words, words_of
from nmt_cli.text.languages import puts_spaces_between_sentences
from nmt_cli.text.lines import is_blank, normalize, one_line
from nmt_cli.text.vocab import UNK, Vocab
from nmt_cli.translate.glossary import Glossary, Term, capitalized
from nmt_cli.translate.protect import Span, lost, protected, put_back, replaced, take_out, verbatim
from nmt_cli.translate.split import cut_loop, split_long

Program = Generator[list[Request], list[list[Hypothesis]], list["Output"]]


@dataclass(frozen=True)
class Row:
    """A line of input; `other` is a forced prefix, or with --score-only the translation to score."""

    number: int  # in the whole input, from 1
    text: str
    other: str = ""


@dataclass(frozen=True)
class Output:
    """One of the n best translations of a line."""

    text: str
    logprob: float = 0.0
    length: int = 0  # pieces, with EOS
    pieces: tuple[str, ...] = ()
    token_logprobs: tuple[float, ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()  # words of source and target

    def score(self, alpha: float) -> float:
        return length_normalized(self.logprob, self.length, alpha) if self.length else 0.0


@dataclass
class Translation:
    """A line and what became of it. Flags: split, loop, unfinished, restored, glossary, copied, unscored."""

    row: Row
    outputs: list[Output] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    parts: int = 1
    source_pieces: int = 0

    @property
    def text(self) -> str:
        return self.outputs[0].text if self.outputs else ""


@dataclass(frozen=True)
class Settings:
    search: SearchOptions
    batch_tokens: int  # rows x longest source of a batch
    longest_source: int  # pieces
    protect: bool = True
    align: bool = False
    tokens: bool = False  # log p of every piece, which the fast engine has to ask for
    longest_given: int = 0  # pieces of a given translation and its source that can be scored, ends included; 0: any


class Translator:
    def __init__(self, workers: Workers, vocab: Vocab, settings: Settings, glossary: Glossary | None = None) -> None:
        self.workers, self.vocab, self.settings, self.glossary = workers, vocab, settings, glossary
        self.join = " " if puts_spaces_between_sentences(vocab.target_lang) else ""

        @cache
        def known(character: str) -> bool:
            """What is spelt in bytes may be written in bytes, and may not."""
            ids = vocab.source.encode(character)
            if character == SPACE:  # SentencePiece's own mark, which would come back as a space
                return False
            return character == " " or not any(index == UNK or vocab.source.is_byte(index) for index in ids)

        @cache
        def is_word(index: int) -> bool:
            return any(map(str.isalpha, vocab.target.id_to_piece(index)))

        self.known, self.is_word = known, is_word

    # -- a window of lines -------------------------------------------------------------------------------------------

    def translate(self, rows: Sequence[Row]) -> list[Translation]:
        """All of them, in order."""
        translations = [Translation(row) for row in rows]
        programs: list[tuple[Translation, Program]] = []
        for translation in translations:
            programs += [(translation, program) for program in self._programs(translation)]
        finished: list[list[Output]] = [[] for _ in programs]
        asked: dict[int, list[Request]] = {index: [] for index in range(len(programs))}
        answers: Iterator[list[Hypothesis]] = iter(())
        while asked:
            still: dict[int, list[Request]] = {}
            for index, requests in asked.items():
                program = programs[index][1]
                try:
                    still[index] = program.send([next(answers) for _ in requests]) if requests else next(program)
                except StopIteration as stop:
                    finished[index] = stop.value
            asked = still
            answers = iter(self._search([request for requests in asked.values() for request in requests]))
        parts: dict[int, list[list[Output]]] = {}
        for (translation, _), outputs in zip(programs, finished, strict=True):
            parts.setdefault(id(translation), []).append(outputs)
        for translation in translations:
            translation.outputs = self._joined(parts.get(id(translation), []))
        return translations

    def _search(self, requests: list[Request]) -> list[list[Hypothesis]]:
        """In batches of like length, the longest first, so that no worker is left with one at the end."""
        kinds = [request.attention for request in requests]
        batches = batched([len(request.source) + 1 for request in requests], kinds, self.settings.batch_tokens)
        found: list[list[Hypothesis]] = [[] for _ in requests]
        answers = self.workers.translate([[requests[n] for n in batch] for batch in batches], self.settings.search)
        for batch, results in zip(batches, answers, strict=True):
            for n, result in zip(batch, results, strict=True):
                found[n] = result
        return found

    def _joined(self, parts: list[list[Output]]) -> list[Output]:
        """The outputs of the parts of a line, one behind the other: the best of each, then the second best ..."""
        if len(parts) < 2:
            return parts[0] if parts else []
        joined = []
        for rank in range(max(map(len, parts))):
            outputs = [part[min(rank, len(part) - 1)] for part in parts]
            shifts = accumulate((len(words_of(output.pieces)) for output in outputs), initial=0)
            # All of it or none: where something was put back or copied, pieces do not tell the words.
            aligned = all(output.alignment or not output.text for output in outputs)
            joined.append(
                Output(
                    self.join.join(output.text for output in outputs if output.text),
                    sum(output.logprob for output in outputs),
                    sum(output.length for output in outputs),
                    tuple(piece for output in outputs for piece in output.pieces),
                    (),  # each part has an end mark of its own
                    tuple(
                        (s, t + shift)
                        for output, shift in zip(outputs, shifts, strict=False)
                        for s, t in output.alignment
                        if aligned
                    ),
                )
            )
        return sorted(joined, key=lambda output: -output.score(self.settings.search.alpha))

    # -- one line ----------------------------------------------------------------------------------------------------

    def _programs(self, translation: Translation) -> list[Program]:
        row = translation.row
        text = normalize(row.text, self.vocab.normalization)
        if is_blank(text):
            return []
        ids, limit = tuple(self.vocab.source.encode(text)), self.settings.longest_source
        if len(ids) <= limit:
            return [self._segment(text, ids, self._prefix(row), translation, 0)]
        parts = split_long(text, limit, lambda part: len(self.vocab.source.encode(part)), self._whole)
        translation.parts = len(parts)
        translation.flags.add("split")
        encoded = [tuple(self.vocab.source.encode(part)) for part in parts]
        *shifts, words = accumulate(map(self._words, encoded), initial=0)
        countable = words == self._words(ids)  # no word was cut
        return [
            self._segment(
                part, ids, () if index else self._prefix(row), translation, shifts[index] if countable else None
            )
            for index, (part, ids) in enumerate(zip(parts, encoded, strict=True))
        ]

    def _words(self, source: tuple[int, ...]) -> int:
        return len(words_of(self.vocab.source.id_to_piece(list(source))))

    def _whole(self, text: str) -> list[tuple[int, int]]:
        """What a long line is not to be cut in."""
        return [(span.start, span.stop) for span in self._protected(text)]

    def _prefix(self, row: Row) -> tuple[int, ...]:
        ids = () if is_blank(row.other) else tuple(self.vocab.encode_target([row.other])[0])
        if UNK in ids:
            raise NmtError(
                f"the prefix of line {row.number} has characters that the model cannot write: {row.other}",
                "its vocabulary does not have them: leave them out, or leave the line blank",
            )
        return ids

    def _terms(self, text: str) -> list[Term]:
        """Not those inside of a placeholder or an address, which they would destroy."""
        terms = self.glossary.find(text) if self.glossary else []
        fixed = verbatim(text) if terms and self.settings.protect else []
        return [term for term in terms if all(term.contains(span) or not term.overlaps(span) for span in fixed)]

    def _protected(self, text: str) -> list[Span]:
        """What the translation must have, terms of the glossary first, from left to right."""
        terms = self._terms(text)
        spans = protected(text, self.known) if self.settings.protect else []
        spans = [span for span in spans if not any(span.overlaps(term) for term in terms)]
        return sorted([*spans, *terms], key=lambda span: span.start)

    def _segment(
        self, text: str, ids: tuple[int, ...], prefix: tuple[int, ...], translation: Translation, shift: int | None
    ) -> Program:
        """One sentence, or a part of a line: the model's translation, repaired where it lost something.

        `shift`: the words of the line before it; None, if they cannot be counted, and nothing be aligned.
        """
        spans = self._protected(text)
        translation.source_pieces += len(ids)
        if len(ids) > self.settings.longest_source:  # only what must not be cut can be so long
            return self._copied(text, prefix, translation)
        if self.settings.protect and not any(map(str.isalnum, text)):  # of marks the model would make up a sentence
            return self._copied(text, prefix, translation)
        # 1. As it stands, with the terms of the glossary.
        found = yield from self._with_terms(text, ids, prefix, translation)
        outputs, flags = self._outputs(ids, found, len(prefix), shift)
        missing = lost(spans, outputs[0].text)
        if not missing:
            translation.flags |= flags
            return outputs
        # 2. Without what was lost, and if that is not enough, without anything that could be.
        for taken in (missing, spans) if len(missing) < len(spans) else (spans,):
            taken = taken if prefix else [_begun(span, text) for span in taken]
            rest, gaps = take_out(text, taken)
            if not any(map(str.isalnum, rest)):
                return self._copied(replaced(text, taken), prefix, translation)
            translation.flags.add("restored")
            ids = tuple(self.vocab.source.encode(rest))
            # Half a word may have more pieces than the whole.
            boundaries = [min(len(self.vocab.source.encode(rest[: gap.at])), len(ids)) for gap in gaps]
            found = yield from self._with_terms(rest, ids, prefix, translation, attention=True)
            outputs, flags = self._outputs(ids, found, len(prefix), shift)
            for n, best in enumerate(found):
                pieces = list(outputs[n].pieces)
                looks = attention_of(best, len(ids))[: len(pieces)]
                back = put_back(pieces, looks, gaps, boundaries, self._spell(pieces), len(prefix))
                outputs[n] = replace(outputs[n], text=one_line(back), alignment=())
            if not lost(spans, outputs[0].text):
                break
        translation.flags |= flags
        return outputs

    def _copied(self, text: str, prefix: tuple[int, ...], translation: Translation) -> list[Output]:
        """What there is nothing to translate in, behind a forced prefix if there is one."""
        translation.flags.add("copied")
        begun = self.vocab.target.decode(list(prefix))
        return [Output(one_line(self.join.join(part for part in (begun, text) if part)))]

    def _with_terms(
        self,
        text: str,
        ids: tuple[int, ...],
        prefix: tuple[int, ...],
        translation: Translation,
        attention: bool = False,
    ) -> Generator[list[Request], list[list[Hypothesis]], list[Hypothesis]]:
        """Search; a term of the glossary that did not come is forced to, where the model translated it otherwise. That
        does not help if the model cannot write it, or writes on where its last word ought to end."""
        terms = [term for term in self._terms(text) if UNK not in self.vocab.target.encode(term.wanted)]
        attention = attention or self.settings.align or bool(terms)
        request = Request(ids, prefix, len(prefix), translation.row.number, attention, self.settings.tokens)
        (found,) = yield [request]
        done: list[Term] = []
        for _ in terms:
            best = found[0]
            written = self.vocab.target.decode(list(best.ids))
            missing = [term for term in lost(terms, written) if term not in done]  # none is forced twice
            places = [self._place(text, term, best, len(request.prefix)) for term in missing]
            wanted = [self._spelt(term, best.ids, at) for term, at in zip(missing, places, strict=True)]
            # One that occurs twice may already stand at one of its places.
            left = [
                (at, new, term)
                for at, new, term in zip(places, wanted, missing, strict=True)
                if best.ids[at : at + len(new)] != new
            ]
            if not left:
                break
            at, forced, term = min(left, key=lambda one: one[:2])
            done.append(term)
            request = replace(request, prefix=(*best.ids[:at], *forced))
            translation.flags.add("glossary")
            (found,) = yield [request]
        return found

    def _spelt(self, term: Term, ids: tuple[int, ...], at: int) -> tuple[int, ...]:
        """The pieces of a translated term, to stand at this place. Where it begins a sentence, a small letter becomes a
        capital one, if the term has none inside and the model has that one; what touches a mark goes on touching it."""
        target = self.vocab.target
        plain, capital = map(tuple, target.encode([term.wanted, capitalized(term.wanted)]))
        if not at:
            begins = target.decode(list(ids))[:1].isupper() and term.wanted.islower() and UNK not in capital
            return capital if begins else plain
        if at < len(ids) and not target.id_to_piece(ids[at]).startswith(SPACE):
            mark = target.decode(list(ids[:at]))[-1:]
            touching = target.encode(mark + term.wanted)
            for n in range(1, len(touching)):
                if target.decode(touching[:n]) == mark:
                    return tuple(touching[n:])
        return plain

    def _place(self, text: str, term: Span, best: Hypothesis, after: int) -> int:
        """The piece where the translation's word for this term begins, behind what is already forced."""
        first = len(self.vocab.source.encode(text[: term.start].rstrip()))
        last = max(first + 1, len(self.vocab.source.encode(text[: term.stop])))
        words = words_of(self.vocab.target.id_to_piece(list(best.ids)), punctuation=True)
        starts = [word for word in words if word.start >= after]
        attention = attention_of(best, len(self.vocab.source.encode(text)))
        looks = [attention[word.start : word.stop, first:last].sum(1).mean() for word in starts]
        return starts[int(np.argmax(looks))].start if starts else len(best.ids)

    def _outputs(
        self, source: tuple[int, ...], found: Sequence[Hypothesis], given: int, shift: int | None
    ) -> tuple[list[Output], set[str]]:
        """The n best, and what is to be said of the first. What was given may repeat itself."""
        cuts = [cut_loop(best.ids[given:], source, self.is_word) for best in found]
        cuts = [cut and (*best.ids[:given], *cut) for best, cut in zip(found, cuts, strict=True)]
        flag = "loop" if cuts[0] is not None else "" if found[0].finished else "unfinished"
        outputs = [self._output(source, best, cut, shift) for best, cut in zip(found, cuts, strict=True)]
        return outputs, {flag} - {""}

    def _output(
        self, source: tuple[int, ...], best: Hypothesis, cut: Sequence[int] | None, shift: int | None
    ) -> Output:
        ids, alignment = list(best.ids if cut is None else cut), tuple[tuple[int, int], ...]()
        pieces = self.vocab.target.id_to_piece(ids)
        if self.settings.align and best.attention is not None and cut is None and ids and shift is not None:
            alignment = self._alignment(source, pieces, best.attention, shift)
        return Output(
            one_line(self.vocab.target.decode(ids)),
            best.logprob,
            len(best.ids) + 1,
            tuple(pieces),
            best.token_logprobs if cut is None else (),
            alignment,
        )

    def _alignment(
        self, source: tuple[int, ...], pieces: list[str], attention: np.ndarray, shift: int
    ) -> tuple[tuple[int, int], ...]:
        """For each target word the source word it attends to most; ends are no words."""
        sources, targets = words_of(self.vocab.source.id_to_piece(list(source))), words_of(pieces)
        weights = over_words(attention[: len(pieces), : len(source)], targets, sources)
        return tuple((source + shift, target) for source, target in aligned(weights))

    def _spell(self, pieces: list[str]) -> Callable[[Word], str]:
        ids = self.vocab.target.piece_to_id(pieces)

        def spell(word: Word) -> str:
            return self.vocab.target.decode(ids[word.start : word.stop])

        return spell

    # -- given translations ------------------------------------------------------------------------------------------

    def score(self, rows: Sequence[Row]) -> list[Translation]:
        """The log p of each line's given translation, as one piece; nan, if the engine has no room for it."""
        sources = self.vocab.encode_source([row.text for row in rows])
        targets = self.vocab.encode_target([row.other for row in rows])
        translations = [Translation(row, source_pieces=len(ids)) for row, ids in zip(rows, sources, strict=True)]
        limit, scored_rows = self.settings.longest_given, []
        for n, translation in enumerate(translations):
            if 0 < limit <= max(len(sources[n]), len(targets[n])):
                translation.flags.add("unscored")
                translation.outputs = [Output(one_line(rows[n].other), math.nan, len(targets[n]) + 1)]
            else:
                scored_rows.append(n)
        lengths = [len(sources[n]) + len(targets[n]) + 2 for n in scored_rows]
        found = batched(lengths, [False] * len(lengths), self.settings.batch_tokens)
        batches = [[scored_rows[n] for n in batch] for batch in found]
        pairs = [[(sources[n], targets[n]) for n in batch] for batch in batches]
        for batch, results in zip(batches, self.workers.score(pairs, self.settings.search.alpha), strict=True):
            for n, scored in zip(batch, results, strict=True):
                pieces = tuple(self.vocab.target.id_to_piece(list(scored.ids)))
                text = one_line(rows[n].other)
                translations[n].outputs = [
                    Output(text, scored.logprob, len(scored.ids) + 1, pieces, scored.token_logprobs)
                ]
        return translations


def _begun(span: Span, text: str) -> Span:
    """A term that begins the line with a capital keeps it."""
    begins = isinstance(span, Term) and text[span.start].isupper() and not text[: span.start].strip()
    return replace(span, wanted=capitalized(span.wanted)) if begins and span.wanted.islower() else span


def attention_of(best: Hypothesis, source: int) -> np.ndarray:
    """(T+1,S+1). Of a model without attention, as if it translated word by word: better than nothing."""
    if best.attention is not None:
        return best.attention[:, : source + 1]  # without the padding of its batch
    target = len(best.ids)
    at = np.round(np.linspace(0, source, target + 1)).astype(int)
    return np.eye(source + 1)[at]


def batched(lengths: Sequence[int], kinds: Sequence[bool], budget: int) -> list[list[int]]:
    """Numbers of items of like length and one kind together, rows x longest within the budget, the longest first."""
    batches: list[list[int]] = []
    for n in sorted(range(len(lengths)), key=lambda n: (kinds[n], -lengths[n])):
        first = batches[-1][0] if batches else None
        if first is None or kinds[first] != kinds[n] or (len(batches[-1]) + 1) * lengths[first] > budget:
            batches.append([])
        batches[-1].append(n)
    return batches
