"""Scores of translations by sacrebleu and COMET: nmt_cli.score, `nmt score`, and validation during training.

This module calls sacrebleu as the sacrebleu command does, so that numbers and signatures are the same.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from nmt_cli.errors import NmtError
from nmt_cli.scoring.comet import MODEL, comet_scores, comet_signature, load_comet
from nmt_cli.scoring.report import (
    BleuParts,
    LengthBin,
    LengthScores,
    ScoreReport,
    SentenceScores,
    SystemScore,
    WorstLine,
    WorstLines,
    lower_is_better,
)
from nmt_cli.scoring.texts import Lines, Texts, find_warnings, given_texts
from nmt_cli.scoring.tokenizers import check_tokenizer, choose_tokenizer, tokenizer_for
from nmt_cli.terminal.plot import bins
from nmt_cli.text.words import count_words

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

METRICS = ("bleu", "chrf", "chrf++", "ter", "comet")
_MOST_WORDS = 400  # longer lines share the last bin of by_length
_BINS = 8
_RESAMPLES = 1000  # sacrebleu's default


# ---------------------------------------------------------------------------------------------------------------------
# Validation during training


@dataclass(frozen=True)
class Scores:
    bleu: float
    chrf: float
    signature: str  # of BLEU


def corpus_scores(hypotheses: list[str], references: list[str], language: str) -> Scores:
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(tokenize=tokenizer_for(language))
    score = bleu.corpus_score(hypotheses, [references])
    return Scores(score.score, CHRF().corpus_score(hypotheses, [references]).score, str(bleu.get_signature()))


# ---------------------------------------------------------------------------------------------------------------------
# nmt_cli.score and `nmt score`


@dataclass(frozen=True)
class _Options:
    metrics: tuple[str, ...]
    tokenizer: str
    confidence: bool
    paired: Literal["bs", "ar"] | None
    samples: int | None
    sentences: bool
    by_length: bool
    worst: int
    comet_model: str

    @property
    def leading(self) -> str:
        """The metric of --worst and --by-length: the first one that is sacrebleu's."""
        return next((name for name in self.metrics if name != "comet"), "bleu")

    @property
    def uses_bleu(self) -> bool:
        return "bleu" in self.metrics or (self.leading == "bleu" and bool(self.by_length or self.worst))


def score(
    hypotheses: Lines | Mapping[str, Lines],
    references: Lines | Sequence[Lines] | Mapping[str, Lines],
    *,
    source: Lines | None = None,
    metrics: str | Sequence[str] = ("bleu", "chrf"),
    lang: str | None = None,
    tokenize: str | None = None,
    confidence: bool = False,
    paired: Literal["bs", "ar"] | None = None,
    samples: int | None = None,
    seed: int = 12345,
    sentences: bool = False,
    by_length: bool = False,
    worst: int = 0,
    comet_model: str = MODEL,
    on_warning: Callable[[str], None] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> ScoreReport:
    """Compare translations with references, line by line. The options are those of `nmt score`.

    hypotheses: a list of lines; or several systems, {name: lines}.
    references: a list of lines; or several references, as a list of lists or as {name: lines}. If neither `lang` nor
        `tokenize` is given, the ending of a name chooses BLEU's tokenizer: {"ref.zh": lines}.
    metrics: "bleu,chrf" or ["bleu", "chrf"].
    on_warning: is called with each warning before the scores are computed. report.warnings holds them too.
    on_progress: is called with the name of the stage, the steps done, and the number of steps.
    """
    names = metrics.split(",") if isinstance(metrics, str) else metrics
    tokenizer, reason = choose_tokenizer(tokenize, lang, references if isinstance(references, Mapping) else ())
    options = _Options(
        metrics=tuple(dict.fromkeys(name.strip().lower() for name in names)),
        tokenizer=tokenizer,
        confidence=confidence,
        paired=paired,
        samples=samples,
        sentences=sentences,
        by_length=by_length,
        worst=worst,
        comet_model=comet_model,
    )
    texts = given_texts(hypotheses, references, source)
    _check_options(options, texts)
    warnings = find_warnings(texts, options.metrics, tokenizer)
    for warning in warnings:
        if on_warning:
            on_warning(warning)
    comet = load_comet(options.comet_model) if "comet" in options.metrics else None
    show = on_progress or (lambda stage, done, total: None)
    with _sacrebleu_seed(seed), _no_garbage_collection():
        sentence_scores: dict[str, SentenceScores] = {}
        scores: list[SystemScore] = []
        for done, name in enumerate(options.metrics):
            show("scoring", done, len(options.metrics))
            if name == "comet":
                sentence_scores[name] = _comet_sentences(comet, texts, options)
                scores += _means(sentence_scores[name])
            elif options.paired:
                scores += _paired_scores(name, texts, options)
            else:
                scores += _corpus_scores(name, texts, options)
        by_line = [*(options.metrics if sentences else ()), *([options.leading] if worst else ())]
        for done, name in enumerate(by_line):
            show("sentences", done, len(by_line))
            if name not in sentence_scores:
                sentence_scores[name] = _sentence_scores(name, texts, options)
        return ScoreReport(
            lines=texts.lines,
            references=list(texts.references),
            tokenizer=tokenizer if options.uses_bleu else None,
            tokenizer_reason=reason if options.uses_bleu else None,
            paired=paired,
            scores=scores,
            sentences=[sentence_scores[name] for name in options.metrics] if sentences else None,
            by_length=_length_scores(texts, options, show) if by_length else None,
            worst=_worst_lines(sentence_scores[options.leading], texts, worst) if worst else None,
            warnings=warnings,
        )


def _check_options(options: _Options, texts: Texts) -> None:
    unknown = [name for name in options.metrics if name not in METRICS]
    if unknown:
        raise NmtError(f"there is no metric {unknown[0]!r}", f"--metrics takes some of {','.join(METRICS)}")
    if options.paired not in (None, "bs", "ar"):
        raise NmtError(f"there is no paired test {options.paired!r}", "choose bs (bootstrap) or ar (randomization)")
    if options.paired and len(texts.systems) < 2:
        raise NmtError("--paired compares systems, but only one is given", "nmt score A B --ref REF --paired bs")
    if options.samples and not (options.confidence or options.paired):
        raise NmtError("--samples has no effect without resampling", "add --confidence, or --paired bs")
    if (options.samples is not None and options.samples < 2) or options.worst < 0:
        raise NmtError("--samples must be at least 2, and --worst at least 0", "use a larger number")
    if "comet" in options.metrics and texts.source is None:
        raise NmtError("COMET needs the source, too", "add --source FILE")
    if options.uses_bleu:
        check_tokenizer(options.tokenizer)


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacrebleu reads its seed from the environment and from nowhere else."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        del os.environ["SACREBLEU_SEED"]
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """sacrebleu makes millions of objects without cycles: the collector would only cost time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# ---------------------------------------------------------------------------------------------------------------------
# Scores of whole systems


def _metric(
    name: str, options: _Options, references: Sequence[list[str]] | None, effective_order: bool = False
) -> Metric:
    """effective_order: a line with fewer than four words does not get BLEU 0; the signature says eff:yes."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    if name == "bleu":
        # force: sacrebleu must not warn of tokenized text, because texts.py does.
        return BLEU(tokenize=options.tokenizer, effective_order=effective_order, force=True, references=references)
    if name == "ter":
        return TER(references=references)
    return CHRF(word_order=2 if name == "chrf++" else 0, references=references)


def _corpus_scores(name: str, texts: Texts, options: _Options) -> list[SystemScore]:
    metric = _metric(name, options, list(texts.references.values()))
    resamples = (options.samples or _RESAMPLES) if options.confidence else 1
    scores = []
    for system, lines in texts.systems.items():
        result = metric.corpus_score(lines, None, n_bootstrap=resamples)
        scores.append(
            SystemScore(
                system=system,
                metric=result.name,
                score=result.score,
                signature=str(metric.get_signature()),
                mean=_float(result._mean) if options.confidence else None,
                interval=_float(result._ci) if options.confidence else None,
                parts=_bleu_parts(result) if name == "bleu" else None,
            )
        )
    return scores


def _bleu_parts(bleu: Any) -> BleuParts:
    return BleuParts(tuple(bleu.precisions), bleu.bp, bleu.sys_len, bleu.ref_len)


def _paired_scores(name: str, texts: Texts, options: _Options) -> list[SystemScore]:
    from sacrebleu.significance import PairedTest

    test = PairedTest(
        list(texts.systems.items()),
        {name: _metric(name, options, list(texts.references.values()))},
        references=None,  # the metric has them
        test_type=options.paired or "bs",
        n_samples=options.samples or 0,  # 0 means sacrebleu's default
        n_ar_confidence=0 if options.confidence and options.paired == "ar" else -1,  # -1 means none
    )
    signatures, columns = test()
    ((metric, signature),) = signatures.items()
    results: list[Any] = columns[metric]
    return [
        SystemScore(
            system=system,
            metric=metric,
            score=result.score,
            signature=str(signature),
            mean=_float(result.mean),
            interval=_float(result.ci),
            p=result.p_value,
        )
        for system, result in zip(texts.systems, results, strict=True)
    ]


def _float(number: Any) -> float | None:
    return None if number is None else float(number)  # json cannot write numpy's numbers


# ---------------------------------------------------------------------------------------------------------------------
# Scores of single lines and of lines by length


def _sentence_scores(name: str, texts: Texts, options: _Options) -> SentenceScores:
    metric = _metric(name, options, None, effective_order=True)
    references = list(zip(*texts.references.values(), strict=True))
    scores = {}
    label = ""
    for system, lines in texts.systems.items():
        results = [metric.sentence_score(line, expected) for line, expected in zip(lines, references, strict=True)]
        scores[system] = [result.score for result in results]
        label = results[0].name
    return SentenceScores(label, str(metric.get_signature()), scores)


def _comet_sentences(model: Any, texts: Texts, options: _Options) -> SentenceScores:
    return SentenceScores("COMET", comet_signature(options.comet_model), comet_scores(model, texts))


def _means(sentences: SentenceScores) -> list[SystemScore]:
    return [
        SystemScore(system, sentences.metric, fmean(scores), sentences.signature)
        for system, scores in sentences.scores.items()
    ]


def _worst_lines(sentences: SentenceScores, texts: Texts, count: int) -> WorstLines:
    means = [fmean(scores) for scores in zip(*sentences.scores.values(), strict=True)]
    order = sorted(range(len(means)), key=means.__getitem__, reverse=lower_is_better(sentences.metric))
    lines = [
        WorstLine(
            line=index + 1,
            scores={system: scores[index] for system, scores in sentences.scores.items()},
            source=None if texts.source is None else texts.source[index],
            references=[reference[index] for reference in texts.references.values()],
            translations={system: translations[index] for system, translations in texts.systems.items()},
        )
        for index in order[:count]
    ]
    return WorstLines(sentences.metric, sentences.signature, lines)


def _length_scores(texts: Texts, options: _Options, show: Callable[[str, int, int], None]) -> LengthScores:
    """A corpus score for the lines of each range of lengths."""
    reference_name, reference = next(iter(texts.references.items()))
    measured = reference if texts.source is None else texts.source
    lengths = [min(_MOST_WORDS, count_words(line)) for line in measured]
    histogram = [0] * (max(lengths) + 1)
    for length in lengths:
        histogram[length] += 1
    scored = []
    metric = _metric(options.leading, options, None, effective_order=True)
    label = ""
    ranges = [(low, high, count) for low, high, count in bins(histogram, _BINS) if count]
    for done, (low, high, count) in enumerate(ranges):
        show("by length", done, len(ranges))
        rows = [n for n, length in enumerate(lengths) if low <= length <= high]
        references = [[lines[n] for n in rows] for lines in texts.references.values()]
        results = {
            system: metric.corpus_score([lines[n] for n in rows], references) for system, lines in texts.systems.items()
        }
        label = next(iter(results.values())).name
        scored.append(LengthBin(low, high, count, {system: result.score for system, result in results.items()}))
    return LengthScores(
        label, str(metric.get_signature()), reference_name if texts.source is None else "source", scored
    )
