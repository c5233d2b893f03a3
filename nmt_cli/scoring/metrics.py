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
from nmt_cli.scoring.comet import MODEL, comet_scores, load_comet
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

# The metrics, and the names that sacrebleu and COMET give them.
METRICS = {"bleu": "BLEU", "chrf": "chrF2", "chrf++": "chrF2++", "ter": "TER", "comet": "COMET"}
_MOST_WORDS = 400  # longer lines share the last bin of by_length
_BINS = 8
_RESAMPLES = 1000  # sacrebleu's default


# ---------------------------------------------------------------------------------------------------------------------
# Validation during training


@dataclass(frozen=True)
class Scores:
    bleu: float
    chrf: float
    signature: str  # BLEU's signature


def corpus_scores(hypotheses: list[str], references: list[str], language: str) -> Scores:
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(tokenize=tokenizer_for(language))
    score = bleu.corpus_score(hypotheses, [references])
    return Scores(score.score, CHRF().corpus_score(hypotheses, [references]).score, str(bleu.get_signature()))


# ---------------------------------------------------------------------------------------------------------------------
# nmt_cli.score and `nmt score`


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
                sentence_scores[name] = by_line = comet_scores(comet, comet_model, texts)
                for system, numbers in by_line.scores.items():
                    scores.append(SystemScore(system, by_line.metric, fmean(numbers), by_line.signature))
            elif paired:
                scores += _paired_scores(name, texts, tokenizer, paired, samples, confidence)
            else:
                scores += _corpus_scores(name, texts, tokenizer, (samples or _RESAMPLES) if confidence else 1)
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
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise NmtError(f"there is no metric {unknown[0]!r}", f"--metrics takes some of {','.join(METRICS)}")
    if paired not in (None, "bs", "ar"):
        raise NmtError(f"there is no paired test {paired!r}", "choose bs (bootstrap) or ar (randomization)")
    if paired and len(texts.systems) < 2:
        raise NmtError("--paired compares systems, but only one is given", "nmt score A B --ref REF --paired bs")
    if samples and not (confidence or paired):
        raise NmtError("--samples has no effect without resampling", "add --confidence, or --paired bs")
    if (samples is not None and samples < 2) or worst < 0:
        raise NmtError("--samples must be at least 2, and --worst at least 0", "use a larger number")
    if "comet" in metrics and texts.source is None:
        raise NmtError("COMET needs the source, too", "add --source FILE")


@contextmanager
def _prepared_sacrebleu(seed: int) -> Iterator[None]:
    """Set the seed, which sacrebleu reads only from the environment, and switch off the garbage collector.

    sacrebleu makes millions of objects without cycles, so the collector would only cost time.
    """
    seed_before, gc_was_enabled = os.environ.get("SACREBLEU_SEED"), gc.isenabled()
    os.environ["SACREBLEU_SEED"] = str(seed)
    gc.disable()
    try:
        yield
    finally:
        del os.environ["SACREBLEU_SEED"]
        if seed_before is not None:
            os.environ["SACREBLEU_SEED"] = seed_before
        if gc_was_enabled:
            gc.enable()


# ---------------------------------------------------------------------------------------------------------------------
# Scores of whole systems


def _metric(name: str, tokenizer: str, references: Sequence[list[str]] | None = None) -> Metric:
    """A metric for whole texts, or, without references, for single lines and small groups of lines.

    For the latter, BLEU uses effective order (eff:yes): a line with fewer than four words does not get BLEU 0.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    if name == "bleu":
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
        scores.append(
            SystemScore(
                system=system,
                metric=result.name,
                score=result.score,
                signature=str(metric.get_signature()),
                mean=_float(result._mean) if resamples > 1 else None,
                interval=_float(result._ci) if resamples > 1 else None,
                parts=BleuParts(tuple(result.precisions), result.bp, result.sys_len, result.ref_len)
                if name == "bleu"
                else None,
            )
        )
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


def _length_scores(name: str, texts: Texts, tokenizer: str, show: Callable[[str, int, int], None]) -> LengthScores:
    """A corpus score for the lines of each range of lengths."""
    reference_name, reference = next(iter(texts.references.items()))
    measured, measured_name = (reference, reference_name) if texts.source is None else (texts.source, "source")
    lengths = [min(_MOST_WORDS, count_words(line)) for line in measured]
    histogram = [0] * (max(lengths) + 1)
    for length in lengths:
        histogram[length] += 1
    metric = _metric(name, tokenizer)
    scored = []
    ranges = [(low, high, count) for low, high, count in bins(histogram, _BINS) if count]
    for done, (low, high, count) in enumerate(ranges):
        show("by length", done, len(ranges))
        rows = [n for n, length in enumerate(lengths) if low <= length <= high]
        references = [[lines[n] for n in rows] for lines in texts.references.values()]
        scores = {
            system: metric.corpus_score([lines[n] for n in rows], references).score
            for system, lines in texts.systems.items()
        }
        scored.append(LengthBin(low, high, count, scores))
    return LengthScores(METRICS[name], str(metric.get_signature()), measured_name, scored)
