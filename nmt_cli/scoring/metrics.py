"""Scores of translations by sacrebleu and COMET: nmt_cli.score, `nmt score`, and validation during training.

This module calls sacrebleu as the sacrebleu command does, so that numbers and signatures are the same.
`nmt score --format json` prints the fields of ScoreReport under their names.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from nmt_cli.errors import NmtError
from nmt_cli.scoring.comet import MODEL, comet_scores, load_comet
from nmt_cli.scoring.texts import Lines, Texts, find_warnings, given_texts
from nmt_cli.scoring.tokenizers import check_tokenizer, choose_tokenizer, tokenizer_for
from nmt_cli.terminal.plot import bins
from nmt_cli.text.languages import count_words

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

# The metrics, and the names that sacrebleu and COMET give them.
METRICS = {"bleu": "BLEU", "chrf": "chrF2", "chrf++": "chrF2++", "ter": "TER", "comet": "COMET"}
_MOST_WORDS = 400  # longer lines share the last bin of by_length


@dataclass(frozen=True)
class BleuParts:
    precisions: tuple[float, ...]  # precision of 1-grams to 4-grams, in percent
    brevity_penalty: float
    hypothesis_length: int  # tokens
    reference_length: int  # tokens


@dataclass(frozen=True)
class SystemScore:
    system: str
    metric: str  # sacrebleu's name: BLEU, chrF2, chrF2++, TER; or COMET
    score: float
    signature: str
    mean: float | None = None  # mean of the bootstrap resamples
    interval: float | None = None  # half the width of the 95 % confidence interval
    p: float | None = None  # p-value of the paired test against the first system; 1 if both have the same score
    parts: BleuParts | None = None


@dataclass(frozen=True)
class SentenceScores:
    metric: str
    signature: str
    scores: dict[str, list[float]]  # for each system, the score of every line


@dataclass(frozen=True)
class LengthBin:
    low: int  # the fewest words of a line in this bin
    high: int  # the most words
    lines: int  # the number of lines
    scores: dict[str, float]  # for each system, the score of these lines


@dataclass(frozen=True)
class LengthScores:
    metric: str
    signature: str
    measured: str  # the text whose words are counted: "source", or the name of the first reference
    bins: list[LengthBin]


@dataclass(frozen=True)
class WorstLine:
    """A line with its texts. Systems are the keys of `scores` and `translations`."""

    line: int  # the first line is 1
    scores: dict[str, float]
    source: str | None
    references: list[str]
    translations: dict[str, str]


@dataclass(frozen=True)
class WorstLines:
    metric: str
    signature: str
    lines: list[WorstLine]  # the worst first, by the mean of all systems


@dataclass(frozen=True)
class ScoreReport:
    """All results of one call. A part that was not asked for is None."""

    lines: int
    references: list[str]  # the names of the references
    tokenizer: str | None  # BLEU's tokenizer; None if no number of the report is BLEU
    tokenizer_reason: str | None
    paired: str | None  # the paired test: "bs" or "ar"
    scores: list[SystemScore]
    sentences: list[SentenceScores] | None  # one entry per metric
    by_length: LengthScores | None
    worst: WorstLines | None
    warnings: list[str]


@dataclass(frozen=True)
class Scores:
    """The scores of a validation during training."""

    bleu: float
    chrf: float
    signature: str  # BLEU's signature


def corpus_scores(hypotheses: list[str], references: list[str], language: str) -> Scores:
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(tokenize=tokenizer_for(language))
    score = bleu.corpus_score(hypotheses, [references])
    return Scores(score.score, CHRF().corpus_score(hypotheses, [references]).score, str(bleu.get_signature()))


def sentence_chrf(hypotheses: list[str], references: list[str]) -> list[float]:
    """chrF of each line, from 0 to 100."""
    from sacrebleu.metrics import CHRF

    chrf = CHRF()
    return [chrf.sentence_score(*pair).score for pair in zip(hypotheses, ([one] for one in references), strict=True)]


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
    chosen = tuple(dict.fromkeys(name.strip().lower() for name in names))
    leading = next((name for name in chosen if name != "comet"), "bleu")  # the metric of `worst` and `by_length`
    uses_bleu = "bleu" in chosen or (leading == "bleu" and (by_length or worst > 0))
    tokenizer, reason = choose_tokenizer(tokenize, lang, references if isinstance(references, Mapping) else ())
    texts = given_texts(hypotheses, references, source)
    _check_options(chosen, texts, confidence, paired, samples, worst)
    if tokenize and not uses_bleu:
        raise NmtError("--tokenize has no effect without BLEU", "leave --tokenize out, or add bleu to --metrics")
    if comet_model != MODEL and "comet" not in chosen:
        raise NmtError("--comet-model has no effect without COMET", "add comet to --metrics")
    if uses_bleu:
        check_tokenizer(tokenizer)
    warnings = find_warnings(texts, chosen, tokenizer)
    for warning in warnings:
        if on_warning:
            on_warning(warning)
    comet = load_comet(comet_model) if "comet" in chosen else None
    show = on_progress or (lambda stage, done, total: None)
    with _prepared_sacrebleu(seed):
        sentence_scores: dict[str, SentenceScores] = {}
        scores: list[SystemScore] = []
        for done, name in enumerate(chosen):
            show("scoring", done, len(chosen))
            if name == "comet":
                signature, by_line = comet_scores(comet, comet_model, texts)
                sentence_scores[name] = SentenceScores("COMET", signature, by_line)
                scores += [SystemScore(system, "COMET", fmean(by_line[system]), signature) for system in by_line]
            elif paired:
                scores += _paired_scores(name, texts, tokenizer, paired, samples, confidence)
            else:
                scores += _corpus_scores(name, texts, tokenizer, (samples or 1000) if confidence else 1)
        line_metrics = [*(chosen if sentences else ()), *([leading] if worst else ())]
        for done, name in enumerate(line_metrics):
            show("sentences", done, len(line_metrics))
            if name not in sentence_scores:
                sentence_scores[name] = _sentence_scores(name, texts, tokenizer)
        return ScoreReport(
            lines=texts.lines,
            references=list(texts.references),
            tokenizer=tokenizer if uses_bleu else None,
            tokenizer_reason=reason if uses_bleu else None,
            paired=paired,
            scores=scores,
            sentences=[sentence_scores[name] for name in chosen] if sentences else None,
            by_length=_length_scores(leading, texts, tokenizer, show) if by_length else None,
            worst=_worst_lines(sentence_scores[leading], texts, worst) if worst else None,
            warnings=warnings,
        )


def _check_options(
    metrics: tuple[str, ...], texts: Texts, confidence: bool, paired: str | None, samples: int | None, worst: int
) -> None:
    if unknown := [name for name in metrics if name not in METRICS]:
        raise NmtError(f"there is no metric {unknown[0]!r}", f"--metrics takes some of {','.join(METRICS)}")
    if paired not in (None, "bs", "ar"):
        raise NmtError(f"there is no paired test {paired!r}", "choose bs (bootstrap) or ar (randomization)")
    if paired and len(texts.systems) < 2:
        raise NmtError("--paired compares systems, but only one is given", "nmt score A B --ref REF --paired bs")
    if samples and not (confidence or paired):
        raise NmtError("--samples has no effect without resampling", "add --confidence, or --paired bs")
    if (paired or confidence) and set(metrics) == {"comet"}:
        raise NmtError("COMET is not resampled here", "leave --paired and --confidence out, or add bleu to --metrics")
    if (samples is not None and samples < 2) or worst < 0:
        raise NmtError("--samples must be at least 2, and --worst at least 0", "use a larger number")
    if "comet" in metrics and texts.source is None:
        raise NmtError("COMET needs the source, too", "add --source FILE")


@contextmanager
def _prepared_sacrebleu(seed: int) -> Iterator[None]:
    """Set the seed, which sacrebleu reads only from the environment, and switch off the garbage collector."""
    seed_before, gc_was_enabled = os.environ.get("SACREBLEU_SEED"), gc.isenabled()
    os.environ["SACREBLEU_SEED"] = str(seed)
    gc.disable()  # sacrebleu makes millions of objects without cycles, so the collector would only cost time
    try:
        yield
    finally:
        del os.environ["SACREBLEU_SEED"]
        if seed_before is not None:
            os.environ["SACREBLEU_SEED"] = seed_before
        if gc_was_enabled:
            gc.enable()


def _metric(name: str, tokenizer: str, references: Sequence[list[str]] | None = None) -> Metric:
    """A metric for whole texts, or, without references, for single lines and small groups of lines."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    if name == "bleu":
        # Effective order: a line with fewer than four words does not get BLEU 0.
        # force: sacrebleu must not warn of tokenized text, because texts.py does.
        return BLEU(tokenize=tokenizer, effective_order=references is None, force=True, references=references)
    if name == "ter":
        return TER(references=references)
    return CHRF(word_order=2 if name == "chrf++" else 0, references=references)


def _corpus_scores(name: str, texts: Texts, tokenizer: str, resamples: int) -> list[SystemScore]:
    """One score per system. 1 resample means none: there is no mean and no interval."""
    metric = _metric(name, tokenizer, list(texts.references.values()))
    scores = []
    for system, lines in texts.systems.items():
        result: Any = metric.corpus_score(lines, None, n_bootstrap=resamples)
        mean, interval = (float(result._mean), float(result._ci)) if resamples > 1 else (None, None)
        parts = None
        if name == "bleu":
            parts = BleuParts(tuple(result.precisions), result.bp, result.sys_len, result.ref_len)
        signature = str(metric.get_signature())
        scores.append(SystemScore(system, result.name, result.score, signature, mean, interval, parts=parts))
    return scores


def _paired_scores(
    name: str, texts: Texts, tokenizer: str, paired: str, samples: int | None, confidence: bool
) -> list[SystemScore]:
    from sacrebleu.significance import PairedTest

    test = PairedTest(
        list(texts.systems.items()),
        {name: _metric(name, tokenizer, list(texts.references.values()))},
        references=None,  # the metric has them
        test_type=paired,
        n_samples=samples or 0,  # 0 means sacrebleu's default
        n_ar_confidence=0 if confidence and paired == "ar" else -1,  # -1 means none
    )
    signatures, columns = test()
    ((metric, signature),) = signatures.items()
    results: list[Any] = columns[metric]
    scores: list[SystemScore] = []
    for system, result in zip(texts.systems, results, strict=True):
        # json cannot write numpy's numbers
        mean, interval = (None if number is None else float(number) for number in (result.mean, result.ci))
        # sacrebleu counts the resamples whose difference is larger than the real one. If both systems are the same, no
        # resample counts, and sacrebleu gives the smallest p. Every resample has a difference of 0 or more.
        p = 1.0 if scores and result.score == scores[0].score else result.p_value
        scores.append(SystemScore(system, metric, result.score, str(signature), mean, interval, p))
    return scores


def _sentence_scores(name: str, texts: Texts, tokenizer: str) -> SentenceScores:
    metric = _metric(name, tokenizer)
    references = list(zip(*texts.references.values(), strict=True))
    scores = {
        system: [metric.sentence_score(*pair).score for pair in zip(lines, references, strict=True)]
        for system, lines in texts.systems.items()
    }
    return SentenceScores(METRICS[name], str(metric.get_signature()), scores)


def _worst_lines(sentences: SentenceScores, texts: Texts, count: int) -> WorstLines:
    means = [fmean(scores) for scores in zip(*sentences.scores.values(), strict=True)]
    order = sorted(range(len(means)), key=means.__getitem__, reverse=sentences.metric == "TER")
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


def _length_scores(name: str, texts: Texts, tokenizer: str, show: Callable[[str, int, int], None]) -> LengthScores:
    """A corpus score for the lines of each range of lengths."""
    measured_name, measured = next(iter(texts.references.items()))
    if texts.source is not None:
        measured_name, measured = "source", texts.source
    words = [count_words(line) for line in measured]
    lengths = [min(_MOST_WORDS, count) for count in words]
    counts = Counter(lengths)
    histogram = [counts[length] for length in range(max(lengths) + 1)]
    metric = _metric(name, tokenizer)
    scored = []
    ranges = [(low, high, count) for low, high, count in bins(histogram, 8) if count]
    for done, (low, high, count) in enumerate(ranges):
        show("by length", done, len(ranges))
        rows = [n for n, length in enumerate(lengths) if low <= length <= high]
        references = [[lines[n] for n in rows] for lines in texts.references.values()]
        scores = {
            system: metric.corpus_score([lines[n] for n in rows], references).score
            for system, lines in texts.systems.items()
        }
        scored.append(LengthBin(low, max(high, max(words[n] for n in rows)), count, scores))
    return LengthScores(METRICS[name], str(metric.get_signature()), measured_name, scored)
