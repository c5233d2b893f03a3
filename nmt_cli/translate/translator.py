"""The way in from Python: load a model, translate lines, score translations.

    translator = nmt_cli.load("runs/demo")
    for translation in translator.translate(["The cat sleeps.", "I am tired."]):
        print(translation.text, translation.score, translation.flags)

`nmt translate` uses the same class. torch is imported only when the torch engine starts.
"""

# A str and a list are also an Iterable[str], so the overloads overlap.
# mypy: disable-error-code=overload-overlap

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, repeat, zip_longest
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, overload

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.search.choose import EngineOptions, start_workers, uses_ctranslate2
from nmt_cli.search.contract import Hypothesis, joined_score, with_prefixes, without_given, without_prefixes
from nmt_cli.search.quality import features
from nmt_cli.search.workers import Workers
from nmt_cli.store.folders import CTRANSLATE2_TYPES, ModelFiles, ModelFolder, open_model
from nmt_cli.text.lines import check_text, one_line
from nmt_cli.text.sentences import split_sentences
from nmt_cli.text.spelling import Words, read_words
from nmt_cli.text.vocab import Vocab
from nmt_cli.translate.glossary import make_glossary
from nmt_cli.translate.line import LineTranslator, together
from nmt_cli.translate.options import (
    ScoreOptions,
    Settings,
    TranslateOptions,
    check_options,
    check_quality,
    check_types,
    quality_of,
    search_options,
)
from nmt_cli.translate.results import Output, Translation, withheld
from nmt_cli.translate.rows import Row
from nmt_cli.translate.stream import overlapped, windows

if TYPE_CHECKING:
    from typing_extensions import Unpack

EngineName = Literal["auto", "torch", "ctranslate2"]
DeviceName = Literal["auto", "cpu", "cuda", "mps", "xpu"]
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def load(
    model: str | Path,
    *,
    engine: EngineName = "auto",
    device: DeviceName = "auto",
    type: str = "auto",
    workers: int = 0,
    ensemble: str | Path | Iterable[str | Path] = (),
    verify: bool = True,
) -> Translator:
    """Open the model of a run, or a model folder.

    engine: "auto" takes CTranslate2 where it can do what is asked, else torch.
    type: the number type of CTranslate2, such as "int8". workers: processes or replicas; 0 means one for each core.
    ensemble: more models, whose probabilities are averaged with those of the first.
    verify: compare the checksums of all files before they are used (docs/reliability.md).
    The engine starts with the first call, because some options of a call need the torch engine.
    """
    check_types({"type": type, "workers": workers, "ensemble": ensemble, "verify": verify}, load)
    for option, value, choices in (
        ("--engine", engine, get_args(EngineName)),
        ("--device", device, get_args(DeviceName)),
        ("--type", type, ("auto", *CTRANSLATE2_TYPES)),
    ):
        if value not in choices:
            raise NmtError(f"{option} {value} is not one of {', '.join(choices)}", f"leave {option} out: auto chooses")
    if workers < 0:
        raise NmtError(f"--workers must be 0 or more, not {workers}", "0 means one for each core")
    paths = [model, *([ensemble] if isinstance(ensemble, str | os.PathLike) else ensemble)]
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise NmtError(f"{path!r:.80} is not the path of a model", "name the folder of a run or of a model")
    folders = [open_model(Path(path), verify) for path in paths]
    return Translator(folders, EngineOptions(engine, type, device, workers, verify))


class Translator:
    """Translates lines with one model or an ensemble. Close it, or use it in a `with` block, to end its workers.

    Several threads may call it at the same time.
    """

    def __init__(self, models: list[ModelFolder], engine: EngineOptions) -> None:
        self.models, self.engine_options = models, engine
        self.quality = quality_of(models)  # read once: nmt train may write another model into the folder meanwhile
        self.engine = ""  # the engine of the last call and its number of workers
        self._workers: dict[bool, Workers] = {}
        self._lock = Lock()  # of _workers

    @cached_property
    def _words(self) -> Words | None:
        """The words that the first model knows. The other models of an ensemble have the same vocabulary."""
        return read_words(ModelFiles(self.models[0].path).vocab)

    @overload
    def translate(self, lines: str, prefix: str | None = "", **options: Unpack[TranslateOptions]) -> Translation: ...
    @overload
    def translate(
        self, lines: list[str], prefix: Iterable[str] | None = "", **options: Unpack[TranslateOptions]
    ) -> list[Translation]: ...
    @overload
    def translate(
        self, lines: Iterable[str], prefix: Iterable[str] | None = "", **options: Unpack[TranslateOptions]
    ) -> Iterator[Translation]: ...
    def translate(self, lines: Any, prefix: Any = "", **options: Unpack[TranslateOptions]) -> Any:
        """Translate one line, a list of lines, or any other iterable of lines.

        One line gives one Translation, a list gives a list, another iterable gives an iterator: lazily and in order. A
        thread reads the iterable ahead. Python cannot exit while this thread waits for a line.
        `prefix` has for each line the text that its translation must begin with.
        """
        _check_names("translate", options, TranslateOptions.__annotations__)
        has_prefix = prefix is not None and not (isinstance(prefix, str) and not prefix)
        check_options(options, has_prefix)
        return _like(lines, self.run(_rows(lines, prefix if has_prefix else _NO_PREFIXES, "prefix"), options))

    @overload
    def score(self, sources: str, targets: str, **options: Unpack[ScoreOptions]) -> Translation: ...
    @overload
    def score(
        self, sources: list[str], targets: Iterable[str], **options: Unpack[ScoreOptions]
    ) -> list[Translation]: ...
    @overload
    def score(
        self, sources: Iterable[str], targets: Iterable[str], **options: Unpack[ScoreOptions]
    ) -> Iterator[Translation]: ...
    def score(self, sources: Any, targets: Any, **options: Unpack[ScoreOptions]) -> Any:
        """Score given translations. The result has the same form as that of `translate`."""
        _check_names("score", options, ScoreOptions.__annotations__)
        known = cast(TranslateOptions, options)
        check_options(known, has_prefix=False)
        return _like(sources, self.run(_rows(sources, targets, "translation"), known, score_only=True))

    def run(
        self, blocks: Iterable[list[Row]], options: TranslateOptions, score_only: bool = False
    ) -> Iterator[Translation]:
        """Translate or score blocks of numbered rows, lazily and in order. The engine starts before this returns."""
        search, vocab = search_options(self.models, options), self.models[0].vocab
        check_quality(self.models, self.quality, options)
        terms = options.get("glossary")
        glossary = make_glossary(terms, vocab.normalization) if terms else None
        fast = uses_ctranslate2(self.models, search, self.engine_options)
        with self._lock:
            if fast not in self._workers:
                self._workers[fast] = start_workers(self.models, self.engine_options, fast)
            workers = self._workers[fast]
        self.engine = workers.name
        # The torch engine computes as many positions as a pair needs, unless the positions were learned.
        limited = fast or any(model.recipe.model.learned_positions for model in self.models)
        settings = Settings(
            search,
            options.get("batch_tokens") or workers.engine.batch_tokens,
            min(model.longest_source for model in self.models),
            search.max_length if limited else 0,
            options.get("protect", True),
            options.get("align", False),
            options.get("tokens", False),
            glossary,
            not self.models[0].reads_paragraphs if options.get("split") is None else bool(options["split"]),
            self._words if options.get("respell", True) else None,
            frozenset.intersection(*(model.known_cases for model in self.models)),
            quality=self.quality,
            confidence=options.get("confidence", True) or options.get("at_least") is not None,
            at_least=options.get("at_least") or 0.0,
            copy_below=options.get("below") == "copy",
        )
        window = WindowTranslator(workers, vocab, settings)
        job = window.score if score_only else window.translate
        return chain.from_iterable(overlapped(job, windows(blocks, lambda row: len(row.text) + len(row.given))))

    def close(self) -> None:
        """End the workers. A later call starts them again."""
        with self._lock:
            for workers in self._workers.values():
                workers.close()
            self._workers.clear()

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_names(function: str, options: Mapping[str, object], known: Iterable[str]) -> None:
    if unknown := options.keys() - set(known):
        raise TypeError(f"{function}() has no option {', '.join(sorted(unknown))}")


_END = object()  # of the shorter of two texts
_NO_PREFIXES = repeat("")


def _rows(lines: str | Iterable[str], given: str | Iterable[str], kind: str) -> Iterable[list[Row]]:
    """Blocks of rows. A list is one block. Each line of an iterator is a block, because the next line may come late.

    `given` has the prefixes or the translations, as `kind` says.
    """
    texts, others = _texts(lines, "line"), _texts(given, kind)
    pairs: Iterable[tuple[object, object]]
    if given is _NO_PREFIXES:
        pairs = zip(texts, others, strict=False)
    else:
        pairs = zip_longest(texts, others, fillvalue=_END)

    def rows() -> Iterator[Row]:
        for number, (text, other) in enumerate(pairs, 1):
            if text is _END or other is _END:
                raise NmtError(f"the two texts have different lengths: one ends after line {number - 1}", "check both")
            yield Row(number, check_text(text, f"line {number}"), check_text(other, f"the {kind} of line {number}"))

    return [list(rows())] if isinstance(lines, str | list) else ([row] for row in rows())


def _texts(value: str | Iterable[str], name: str) -> Iterator[str]:
    try:
        return iter([value] if isinstance(value, str) else value)
    except TypeError:
        raise NmtError(f"the {name} must be a text or a list, not {value!r:.80}", "texts are Python strings") from None


def _like(lines: str | Iterable[str], translations: Iterator[Translation]) -> Any:
    """One translation for one line, a list for a list, an iterator for any other iterable."""
    if isinstance(lines, str):
        return next(translations)
    return list(translations) if isinstance(lines, list) else translations


class WindowTranslator:
    """Translates or scores a window of lines: all lines in step, in batches of like length."""

    def __init__(self, workers: Workers, vocab: Vocab, settings: Settings) -> None:
        self.workers, self.vocab, self.settings = workers, vocab, settings
        self.lines = LineTranslator(vocab, settings)

    def translate(self, rows: Sequence[Row]) -> list[Translation]:
        program, search = together([self.lines.line(row) for row in rows]), self.settings.search
        try:
            requests = next(program)
            while True:
                # Engines compute attention for a whole batch or not at all.
                keys = [(request.attention, len(request.source) + 1) for request in requests]
                asked = [with_prefixes(request, self.vocab) for request in requests]
                answers = self._run(asked, keys, lambda batches: self.workers.translate(batches, search))
                requests = program.send([[without_prefixes(each, self.vocab) for each in found] for found in answers])
        except StopIteration as stop:
            at_least, copy = self.settings.at_least, self.settings.copy_below
            return [withheld(translation, at_least, copy) for translation in stop.value]

    def score(self, rows: Sequence[Row]) -> list[Translation]:
        """The log probability of each given translation. A pair that is too long for the engine has the score nan."""
        pairs = [self._sentence_pairs(row) for row in rows]
        sources = self.vocab.encode_source([source for parts in pairs for source, _ in parts])
        targets = self.vocab.encode_target([target for parts in pairs for _, target in parts])
        limit = self.settings.positions or math.inf
        scorable = [n for n in range(len(sources)) if max(len(sources[n]), len(targets[n])) < limit]
        search = replace(self.settings.search, attention=self.settings.align)
        results = self._run(
            [(sources[n], targets[n]) for n in scorable],
            [(False, len(sources[n]) + len(targets[n]) + 2) for n in scorable],
            lambda batches: self.workers.score(batches, search),
        )
        # The codes of languages that the vocabulary puts before every text are no part of the translation.
        codes = len(self.vocab.source_prefix), len(self.vocab.target_prefix)
        counted = (without_prefixes(without_given(each, codes[1], search), self.vocab) for each in results)
        scored = dict(zip(scorable, counted, strict=True))
        sources, targets = ([ids[code:] for ids in side] for side, code in zip((sources, targets), codes, strict=True))
        translations, first = [], 0
        for row, parts in zip(rows, pairs, strict=True):
            numbers = range(first, first := first + len(parts))
            found = [scored[n] for n in numbers if n in scored]
            length = sum(len(targets[n]) + 1 for n in numbers)
            flags = ["split"] if len(parts) > 1 else []
            figures: tuple[Any, ...] = (math.nan, math.nan, length)
            if len(found) == len(parts):
                logprob = sum(hypothesis.logprob for hypothesis in found)
                ids = [index for hypothesis in found for index in hypothesis.ids]
                logprobs = found[0].token_logprobs if len(parts) == 1 else ()  # every part has an end mark
                score = joined_score([(h.score, h.logprob, len(h.ids) + 1) for h in found], search)
                figures = (score, logprob, length, tuple(self.vocab.target.id_to_piece(ids)), logprobs)
                lacks_text = any(self._is_omission(len(sources[n]), scored[n]) for n in numbers)
                if lacks_text and self.lines.has_text(row.text):
                    flags.append("omission")
            else:
                flags.append("unscored")
            output = Output(one_line(row.given), *figures)
            if self.settings.align and len(found) == len(parts):
                given = [(sources[n], targets[n], cast(np.ndarray, scored[n].attention)) for n in numbers]
                output = replace(output, alignment=tuple(self._alignment(row, given)))
            translations.append(Translation(row.number, row.text, (output,), tuple(sorted(flags))))
        return translations

    def _sentence_pairs(self, row: Row) -> list[tuple[str, str]]:
        """Source and target, sentence by sentence if both have as many sentences. Tags go with every source."""
        if self.settings.split:
            tags = self.lines.tags_of(row.text)
            sources = split_sentences(row.text[len(tags) :], self.vocab.source_lang)
            targets = split_sentences(row.given, self.vocab.target_lang)
            if len(sources) == len(targets) > 1:
                return [(tags + source, target) for source, target in zip(sources, targets, strict=True)]
        return [(row.text, row.given)]

    def _alignment(
        self, row: Row, parts: Sequence[tuple[Sequence[int], Sequence[int], np.ndarray]]
    ) -> list[tuple[int, int]]:
        """The alignment of a scored line. It is empty if a sentence begins inside of a word."""
        words: list[int] = []  # the number in the line of each source word
        for numbers in self.lines.word_numbers(row.text, [source for source, _, _ in parts]):
            if numbers is None:
                return []
            words += numbers
        return [(words[source], target) for source, target in self.lines.alignment(parts)]

    def _is_omission(self, source: int, given: Hypothesis) -> bool:
        quality = self.settings.quality
        figures = features(source, len(given.ids), given.logprob)
        is_omission = not given.ids or (quality is not None and quality.is_omission(figures, given=True))
        return source > 0 and is_omission

    def _run(
        self,
        items: Sequence[Item],
        keys: Sequence[tuple[bool, int]],  # the kind and the length of each item
        run: Callable[[list[list[Item]]], Iterable[Sequence[Answer]]],
    ) -> list[Answer]:
        """Run all items in batches of one kind and like lengths, with rows x longest within the budget."""
        # The longest items come first, so that no worker ends with a long batch alone.
        batches: list[list[int]] = []
        for n in sorted(range(len(keys)), key=lambda n: (keys[n][0], -keys[n][1])):
            kind, longest = keys[batches[-1][0]] if batches else (None, 0)
            if kind != keys[n][0] or (len(batches[-1]) + 1) * longest > self.settings.batch_tokens:
                batches.append([])
            batches[-1].append(n)
        answers: dict[int, Answer] = {}
        for batch, found in zip(batches, run([[items[n] for n in batch] for batch in batches]), strict=True):
            answers.update(zip(batch, found, strict=True))
        return [answers[n] for n in range(len(items))]
