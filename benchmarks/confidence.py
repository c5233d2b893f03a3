"""Is the confidence right, and are omissions found? python benchmarks/confidence.py RUN

    python benchmarks/confidence.py runs/multi30k-en-de

RUN translates from English to German and was trained on Multi30k. Prints, for test_2016_flickr and for 1,000 lines of
Tatoeba (another domain): the expected calibration error in ten bins, and Spearman's rank correlation with sentence
chrF, of the confidence and of log p per piece alone.

Then omissions are planted: a clause is cut out of the model's own translations and out of the references, and 2 to 4
lines are joined and translated without splitting. Prints the area under the ROC curve against the whole translations
(or the whole references), and the share that is flagged. All joined lines count as omissions, although some are whole.

At the end, the processor time with and without the estimates, in turns.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from record import DATA, Record

from nmt_cli.scoring.metrics import sentence_chrf
from nmt_cli.search.quality import Quality, features, read_quality, reliability
from nmt_cli.store.folders import find_model
from nmt_cli.text.lines import read_lines
from nmt_cli.translate.results import Translation
from nmt_cli.translate.translator import Translator, load

CLAUSES = re.compile(r"(?<=,) | (?=(?:und|während|mit|auf|in|im|an|am|vor|neben|über|durch|bei)\b)")
LINES, ROUNDS = 1000, 9


def text(name: str) -> list[str]:
    return list(read_lines(DATA / name))


def ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 0; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[places]


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def area_under_roc(clean: Sequence[float], planted: Sequence[float]) -> float:
    """The probability that a planted omission has a higher estimate than a clean line."""
    above = ranks([*clean, *planted])[len(clean) :].sum() - len(planted) * (len(planted) - 1) / 2
    return float(above / (len(clean) * len(planted)))


def without_a_clause(line: str, rng: random.Random) -> str | None:
    """The line without one clause of three words or more. None if the line has no such clause."""
    clauses = CLAUSES.split(line)
    choices = [n for n, clause in enumerate(clauses) if clause.count(" ") > 1]
    if len(clauses) < 2 or not choices:
        return None
    del clauses[rng.choice(choices)]
    return " ".join(clauses)


def joined(lines: list[str]) -> list[str]:
    rng, paragraphs = random.Random(1), []
    while lines:
        count = rng.randint(2, 4)
        paragraphs.append(" ".join(lines[:count]))
        lines = lines[count:]
    return paragraphs


class Omissions:
    def __init__(self, translator: Translator, quality: Quality, record: Record) -> None:
        self.record = record
        self.translator, self.quality, self.vocab = translator, quality, translator.models[0].vocab

    def estimates(self, translations: list[Translation]) -> list[float]:
        figures = []
        for one in translations:
            source = len(self.vocab.encode_source([one.source])[0])
            figures.append(features(source, one.best.length - 1, one.best.logprob))
        return [self.quality.omission(one) for one in figures]

    def show(self, name: str, clean: list[Translation], planted: list[Translation]) -> None:
        area = area_under_roc(self.estimates(clean), self.estimates(planted))
        alarms, found = (np.mean(["omission" in one.flags for one in kind]) for kind in (clean, planted))
        print(f"{name:<34}{len(planted):>7}{area:>8.3f}{found:>9.1%}{len(clean):>8}{alarms:>14.1%}", flush=True)
        self.record.add(name, planted=len(planted), auroc=area, flagged=float(found), false_alarms=float(alarms))

    def given(self, sources: list[str], targets: list[str]) -> list[Translation]:
        """The scores of whole translations, and of translations that lack a clause."""
        return self.translator.score(sources, targets)

    def shortened(self, sources: list[str], targets: list[str]) -> list[Translation]:
        rng = random.Random(1)
        pairs = [(source, without_a_clause(target, rng)) for source, target in zip(sources, targets, strict=True)]
        kept = [(source, target) for source, target in pairs if target is not None]
        return self.given([source for source, _ in kept], [target for _, target in kept])


def show_confidence(
    name: str, translations: list[Translation], references: list[str], good: float, record: Record
) -> None:
    chrf = sentence_chrf([one.text for one in translations], references)
    confidence = np.array([one.confidence for one in translations])
    logp = [one.best.logprob / one.best.length for one in translations]
    error, _ = reliability(confidence, np.array(chrf) > good)
    share = np.mean(np.array(chrf) > good)
    correlations = rank_correlation(confidence.tolist(), chrf), rank_correlation(logp, chrf)
    print(f"{name:<18}{len(chrf):>7}{confidence.mean():>12.3f}{share:>7.3f}{error:>8.3f}", end="")
    print(f"{correlations[0]:>12.3f}{correlations[1]:>8.3f}", flush=True)
    figures = {"mean_confidence": float(confidence.mean()), "good": float(share), "ece": float(error)}
    record.add(f"confidence, {name}", **figures, correlation=correlations[0], correlation_of_logp=correlations[1])


def show_cost(run: str, lines: list[str], record: Record) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "model"
        shutil.copytree(find_model(Path(run)).path, bare)
        (bare / "quality.json").unlink()
        with load(run, workers=1) as with_file, load(bare, workers=1, verify=False) as without:
            jobs = {
                "no estimates": lambda: without.translate(lines, confidence=False),
                "omissions": lambda: with_file.translate(lines, confidence=False),
                "omissions and confidence": lambda: with_file.translate(lines),
            }
            seconds: dict[str, list[float]] = {name: [] for name in jobs}
            for number in range(ROUNDS + 1):
                for name in sorted(jobs, reverse=number % 2 == 1):
                    began = time.process_time()
                    jobs[name]()
                    seconds[name].append(time.process_time() - began)
    heading = f"{'processor time':<26}{'seconds':>8}{'ratio':>8}"
    print(f"\n{heading}   medians of {ROUNDS} rounds, and the range of the ratios")
    for name, times in seconds.items():  # the first round warms up
        ratios = [time / base for time, base in zip(times[1:], seconds["no estimates"][1:], strict=True)]
        print(f"{name:<26}{median(times[1:]):>8.2f}{median(ratios):>8.3f}   {min(ratios):.2f} to {max(ratios):.2f}")
        record.add(f"processor time, {name}", seconds=median(times[1:]), ratio=median(ratios), rounds=ratios)


def main() -> None:
    if len(sys.argv) != 2:
        print("name a run: python benchmarks/confidence.py RUN")
        return
    if not (DATA / "multi30k").is_dir():
        print(f"skipped: the texts are not in {DATA}")
        return
    run = sys.argv[1]
    quality = read_quality(find_model(Path(run)).quality)
    if quality is None:
        print(f"{run} has no quality.json: train it again")
        return
    names = ("test_2016_flickr", "val")
    test, valid = ([text(f"multi30k/{name}.{side}.gz") for side in ("en", "de")] for name in names)
    tatoeba = [text(f"tatoeba-en-de/test.{side}.gz")[:LINES] for side in ("en", "de")]
    with Record(f"confidence-{Path(run).name}") as record:
        measure(run, quality, test, valid, tatoeba, record)


def measure(
    run: str, quality: Quality, test: list[list[str]], valid: list[list[str]], tatoeba: list[list[str]], record: Record
) -> None:
    with load(run) as translator:
        print(f"fitted on {quality.lines} lines; good: sentence chrF above {quality.good:g}")
        print(f"{'rank correlation with chrF':>72}")
        print(f"{'text':<18}{'lines':>7}{'confidence':>12}{'good':>7}{'ECE':>8}{'confidence':>12}{'log p':>8}")
        found = {}
        for name, (sources, references) in (("test_2016_flickr", test), ("Tatoeba", tatoeba)):
            found[name] = translator.translate(sources)
            show_confidence(name, found[name], references, quality.good, record)
        omissions, (sources, references) = Omissions(translator, quality, record), test
        whole = found["test_2016_flickr"]
        own = [one.text for one in whole]
        print(f"\n{'omissions':<34}{'planted':>7}{'AUROC':>8}{'flagged':>9}{'clean':>8}{'false alarms':>14}")
        omissions.show("a clause of the translation", omissions.given(sources, own), omissions.shortened(sources, own))
        clean, shorter = omissions.given(sources, references), omissions.shortened(sources, references)
        omissions.show("a clause of the reference", clean, shorter)
        paragraphs = translator.translate(joined(valid[0]), split=False)
        omissions.show("joined lines, --no-split", whole, paragraphs)
        omissions.show("... against validation lines", translator.translate(valid[0]), paragraphs)
    show_cost(run, test[0][: LINES // 2], record)


if __name__ == "__main__":
    main()
