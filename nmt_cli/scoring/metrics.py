"""Scores of translations, by sacrebleu: `nmt score`, and validation. A number never travels without its signature.

Everything here calls sacrebleu as its own command does, so that the numbers and the signatures are the same.
"""

from __future__ import annotations

import gc
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from nmt_cli.errors import NmtError
from nmt_cli.scoring.comet import MODEL, comet_scores, comet_signature, load_comet
from nmt_cli.scoring.texts import Texts
from nmt_cli.terminal.plot import bins
from nmt_cli.text.languages import language_code, language_of
from nmt_cli.text.words import count_words

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

METRICS = ("bleu", "chrf", "chrf++", "ter", "comet")
TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "flores101", "none")

# Languages that sacrebleu's usual tokeniser, 13a, cannot cut into words; what it has for them without more packages.
_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char", "lo": "char", "km": "char", "my": "char"}
_NEEDS_PACKAGE = {"ja-mecab": "ja", "ko-mecab": "ko"}  # sacrebleu's extras

_LONGEST = 400  # words; longer lines share the last bin
_BINS = 8


def tokenizer_for(language: str) -> str:
    """sacrebleu's tokeniser for text of this language, of those that are always there: for training."""
    return _TOKENIZERS.get(language_code(language), "13a")


def standard_tokenizer(language: str) -> str:
    """The tokeniser that published scores use; the ones for Japanese and Korean must be installed."""
    return {"ja": "ja-mecab", "ko": "ko-mecab"}.get(language_code(language)) or tokenizer_for(language)


def choose_tokenizer(tokenize: str | None, language: str | None, references: list[Path]) -> tuple[str, str]:
    """A tokeniser, and why it is this one: it was named, or the language was, or a reference's ending says it."""
    if tokenize:
        return tokenize, "as asked"
    if language:
        if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", language):  # "chinese" would be scored like English
            raise NmtError(f"{language!r} is not a language code", "codes are like de, zh, ja, pt-BR")
        return standard_tokenizer(language), f"for {language}"
    for path in references:
        found = language_of(path)
        if found:
            return standard_tokenizer(found), f"for {found}, the ending of {path.name}"
    return "13a", "the usual one, for no language is named"


# ---------------------------------------------------------------------------------------------------------------------
# While training


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
# nmt score: what may be asked, and what is answered


@dataclass(frozen=True)
class ScoreOptions:
    metrics: tuple[str, ...] = ("bleu", "chrf")
    tokenizer: str = "13a"
    confidence: bool = False
    paired: Literal["bs", "ar"] | None = None  # paired bootstrap, approximate randomisation
    samples: int | None = None  # resamples or trials; else 1,000 and 10,000
    seed: int = 12345  # sacrebleu's
    sentences: bool = False
    by_length: bool = False
    worst: int = 0
    comet_model: str = MODEL

    @property
    def leading(self) -> str:
        """The metric by which lines are sorted and lengths compared."""
        return next((name for name in self.metrics if name != "comet"), "bleu")

    @property
    def uses_bleu(self) -> bool:
        return "bleu" in self.metrics or (self.leading == "bleu" and bool(self.by_length or self.worst))


@dataclass(frozen=True)
class BleuParts:
    precisions: tuple[float, ...]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int


@dataclass(frozen=True)
class SystemScore:
    """One number. The mean and the interval, half the width of 95 %, are of the resamples; p is against the first."""

    system: str
    metric: str  # as sacrebleu calls it: chrF2++
    score: float
    signature: str
    mean: float | None = None
    interval: float | None = None
    p: float | None = None
    parts: BleuParts | None = None


@dataclass(frozen=True)
class SentenceScores:
    """One number for every line of every system."""

    metric: str
    signature: str
    scores: dict[str, list[float]]


@dataclass(frozen=True)
class LengthBin:
    low: int
    high: int
    lines: int
    scores: dict[str, float]  # by system


@dataclass(frozen=True)
class LengthScores:
    metric: str
    signature: str
    measured: str  # whose words were counted: "source", or the name of the reference
    bins: list[LengthBin]


@dataclass(frozen=True)
class WorstLines:
    indices: list[int]  # the worst first
    sentences: SentenceScores


@dataclass(frozen=True)
class ScoreReport:
    scores: list[SystemScore]
    sentences: list[SentenceScores]
    lengths: LengthScores | None
    worst: WorstLines | None


Show = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


def check_options(options: ScoreOptions, texts: Texts) -> None:
    """What cannot be done is said before anything is done."""
    unknown = [name for name in options.metrics if name not in METRICS]
    if unknown:
        raise NmtError(f"there is no metric {unknown[0]!r}", f"--metrics takes some of {','.join(METRICS)}")
    if options.paired and len(texts.systems) < 2:
        raise NmtError("--paired compares systems, but only one is given", "nmt score A B --ref REF --paired bs")
    if options.samples and not (options.confidence or options.paired):
        raise NmtError("--samples is a number of resamples, but none are asked for", "add --confidence, or --paired bs")
    if "comet" in options.metrics and texts.source is None:
        raise NmtError("COMET compares with the source, too", "add --source FILE")
    if options.uses_bleu:
        check_tokenizer(options.tokenizer)


def check_tokenizer(name: str) -> None:
    if name not in TOKENIZERS:
        raise NmtError(f"there is no tokeniser {name!r}", f"there are {', '.join(TOKENIZERS)}")
    from sacrebleu.metrics import BLEU
    from sacrebleu.utils import SACREBLEU_DIR

    try:
        if name.startswith("flores"):  # may be fetched, and sacrebleu would wait for ever
            socket.setdefaulttimeout(30)
        BLEU(tokenize=name)
    except (Exception, SystemExit) as error:  # no package, or no network: sacrebleu raises many things, and may exit
        if name in _NEEDS_PACKAGE:
            hint = f"pip install 'sacrebleu[{_NEEDS_PACKAGE[name]}]'; or score characters: --tokenize char"
            raise NmtError(f"the tokeniser {name} is not installed", hint) from None
        hint = f"it is fetched once, into {SACREBLEU_DIR}/models, and needs the network; or choose another --tokenize"
        raise NmtError(f"the tokeniser {name} cannot be loaded: {error}", hint) from None


def score(texts: Texts, options: ScoreOptions, show: Show) -> ScoreReport:
    """All that was asked for; check_options comes first."""
    os.environ["SACREBLEU_SEED"] = str(options.seed)  # the only way to tell sacrebleu
    comet = load_comet(options.comet_model) if "comet" in options.metrics else None
    gc.disable()  # millions of n-grams and no cycles among them: looking for some only takes time
    try:
        return _score(comet, texts, options, show)
    finally:
        gc.enable()


def _score(comet: Any, texts: Texts, options: ScoreOptions, show: Show) -> ScoreReport:
    scores: list[SystemScore] = []
    sentences: dict[str, SentenceScores] = {}
    for done, name in enumerate(options.metrics):
        show("scoring", done, len(options.metrics))
        if name == "comet":
            sentences[name] = _comet_sentences(comet, texts, options)
            scores += _means(sentences[name])
        elif options.paired:
            scores += _paired_scores(name, texts, options)
        else:
            scores += _corpus_scores(name, texts, options)
    wanted = [*(options.metrics if options.sentences else ()), *([options.leading] if options.worst else ())]
    for done, name in enumerate(wanted):
        show("sentences", done, len(wanted))
        if name not in sentences:
            sentences[name] = _sentence_scores(name, texts, options)
    return ScoreReport(
        scores=scores,
        sentences=[sentences[name] for name in options.metrics if options.sentences],
        lengths=_length_scores(texts, options, show) if options.by_length else None,
        worst=worst_lines(sentences[options.leading], options.worst) if options.worst else None,
    )


# ---------------------------------------------------------------------------------------------------------------------
# How it is done


def _metric(name: str, options: ScoreOptions, references: Sequence[list[str]] | None, short: bool = False) -> Metric:
    """short: there may be no four words in a row, and BLEU is not to be 0 for that; the signature says eff:yes."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    if name == "bleu":
        # force: sacrebleu does not warn of tokenised text, hypotheses.py does
        return BLEU(tokenize=options.tokenizer, effective_order=short, force=True, references=references)
    if name == "ter":
        return TER(references=references)
    return CHRF(word_order=2 if name == "chrf++" else 0, references=references)


def _corpus_scores(name: str, texts: Texts, options: ScoreOptions) -> list[SystemScore]:
    metric = _metric(name, options, list(texts.references.values()))
    resamples = (options.samples or 1000) if options.confidence else 1
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
                parts=_parts(result) if name == "bleu" else None,
            )
        )
    return scores


def _parts(bleu: Any) -> BleuParts:
    return BleuParts(tuple(bleu.precisions), bleu.bp, bleu.sys_len, bleu.ref_len)


def _paired_scores(name: str, texts: Texts, options: ScoreOptions) -> list[SystemScore]:
    from sacrebleu.significance import PairedTest

    test = PairedTest(
        list(texts.systems.items()),
        {name: _metric(name, options, list(texts.references.values()))},
        references=None,  # the metric has them
        test_type=options.paired or "bs",
        n_samples=options.samples or 0,
        n_ar_confidence=0 if options.confidence and options.paired == "ar" else -1,  # 0 is sacrebleu's default, 1,000
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
    return None if number is None else float(number)  # numpy's numbers are not JSON's


def _sentence_scores(name: str, texts: Texts, options: ScoreOptions) -> SentenceScores:
    metric = _metric(name, options, None, short=True)
    references = list(zip(*texts.references.values(), strict=True))
    scores = {}
    label = ""
    for system, lines in texts.systems.items():
        results = [metric.sentence_score(line, wanted) for line, wanted in zip(lines, references, strict=True)]
        scores[system] = [result.score for result in results]
        label = results[0].name
    return SentenceScores(label, str(metric.get_signature()), scores)


def _comet_sentences(model: Any, texts: Texts, options: ScoreOptions) -> SentenceScores:
    return SentenceScores("COMET", comet_signature(options.comet_model), comet_scores(model, texts))


def _means(sentences: SentenceScores) -> list[SystemScore]:
    return [
        SystemScore(system, sentences.metric, fmean(scores), sentences.signature)
        for system, scores in sentences.scores.items()
    ]


def worst_lines(sentences: SentenceScores, count: int) -> WorstLines:
    """Lines with the worst scores, on average over the systems."""
    means = [fmean(scores) for scores in zip(*sentences.scores.values(), strict=True)]
    order = sorted(range(len(means)), key=means.__getitem__, reverse=lower_is_better(sentences.metric))
    return WorstLines(order[:count], sentences)


def lower_is_better(metric: str) -> bool:
    return metric == "TER"


def _length_scores(texts: Texts, options: ScoreOptions, show: Show) -> LengthScores:
    """A corpus score for the lines of each range of lengths."""
    reference_name, reference = next(iter(texts.references.items()))
    lengths = [min(_LONGEST, count_words(line)) for line in (reference if texts.source is None else texts.source)]
    histogram = [0] * (max(lengths) + 1)
    for length in lengths:
        histogram[length] += 1
    found = []
    metric = _metric(options.leading, options, None, short=True)
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
        found.append(LengthBin(low, high, count, {system: result.score for system, result in results.items()}))
    return LengthScores(label, str(metric.get_signature()), reference_name if texts.source is None else "source", found)
