"""nmt and other programs on one machine in one run, in turns: `make bench-rivals`, or

    PYTHONPATH=benchmarks python -m rivals                                         # about three hours
    PYTHONPATH=benchmarks python -m rivals --minutes 0                             # training speed only: 40 minutes
    PYTHONPATH=benchmarks python -m rivals --only nmt Marian --seconds 10 --rounds 1 --minutes 0.5

1. Each program is installed into an environment of its own, under --folder. A program that cannot be installed is
   reported with the reason, and the others go on.
2. Training: target tokens/s at 1024 and 4096 tokens per batch, in turns of --seconds, --rounds times, in reverse order
   in every second round. Each program reports its own rate; a figure is the median of a turn without the first reports.
3. Quality: each program trains for --minutes with 1024 tokens per batch; BLEU on test_2016_flickr, beam 5.
4. Translation with these models: test_2016_flickr and its first line, beam 1 and 5. The first line alone is "one
   sentence, cold". "Without start-up" is the rest of the lines in the difference of the two times. nmt gets plain text
   and does more than search; the others get pieces.
5. `--help`, and the lines of configuration of this task.

A ratio is nmt's figure to the other's, above 1 if nmt is faster: the median of the rounds, the lowest and the highest.
Results of 2 and 5 go to benchmarks/results/rivals-training.PROCESSOR.json, those of 3 and 4 to rivals-translation.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sacrebleu

sys.path.insert(0, str(Path(__file__).parents[1]))  # for record.py

from record import DATA, ROOT, Record, spread

from nmt_cli.text.lines import read_lines
from rivals.ctranslate2 import CTranslate2
from rivals.eole import Eole
from rivals.fairseq import Fairseq
from rivals.huggingface import HuggingFace
from rivals.joeynmt import JoeyNmt
from rivals.marian import Marian
from rivals.nmt import Nmt, NmtChooses
from rivals.opennmt import OpenNmt
from rivals.task import Rival, Task, Unavailable, plain, seconds_of

ALL: tuple[type[Rival], ...] = (Nmt, NmtChooses, Fairseq, OpenNmt, Eole, JoeyNmt, HuggingFace, Marian, CTranslate2)
SIZES = (1024, 4096)
LINES = 1000  # of test_2016_flickr


class Comparison:
    def __init__(self, rivals: list[Rival], options: argparse.Namespace, record: Record) -> None:
        self.rivals, self.options, self.record = rivals, options, record

    def in_turns(self, measure: Callable[[Rival], dict[str, float]], rivals: list[Rival]) -> None:
        """Measure each program once in every round, then print and save the figures, with their ratios to nmt's.

        `measure` returns figures by what they are: times, or rates if their name ends with "/s".
        """
        rounds: dict[str, list[dict[str, float]]] = {rival.name: [] for rival in rivals}
        reasons: dict[str, str] = {}
        for turn in range(self.options.rounds):
            for rival in rivals[:: -1 if turn % 2 else 1]:
                if rival.name not in reasons:
                    try:
                        rounds[rival.name].append(measure(rival))
                    except Exception as error:  # whatever another program does, the others are measured
                        reasons[rival.name] = reason_of(error)
        measured = {name: found for name, found in rounds.items() if name not in reasons}
        for what in next(iter(measured.values()), [{}])[0]:
            print(f"\n{what}")
            for name, found in measured.items():
                figures = [figure[what] for figure in found]
                ratios = self._ratios(figures, [figure[what] for figure in measured.get(Nmt.name, [])], what)
                shown = "   ratio {ratio:.2f}, {lowest:.2f} to {highest:.2f}".format(**ratios) if ratios else ""
                print(f"  {name:<22} {statistics.median(figures):>10,.2f}{shown}")
                self.record.add(f"{what}: {name}", median=statistics.median(figures), figures=figures, **ratios)
        for name, reason in reasons.items():
            self.not_measured(name, reason)
        self.record.save()

    def _ratios(self, theirs: list[float], ours: list[float], what: str) -> dict[str, Any]:
        if not ours:
            return {}
        return spread(ours, theirs) if what.endswith("/s") else spread(theirs, ours)

    def not_measured(self, name: str, reason: str) -> None:
        print(f"  {name:<22} not measured: {reason}", flush=True)
        self.record.add(f"not measured: {name}", reason=reason)

    def training(self, tokens: int) -> None:
        def measure(rival: Rival) -> dict[str, float]:
            rate = statistics.median(rival.train(tokens, self.options.seconds, save=False))
            return {f"training, {tokens} tokens per batch, target tokens/s": rate}

        self.in_turns(measure, [rival for rival in self.rivals if rival.trains and rival.name != NmtChooses.name])

    def quality(self) -> list[Rival]:
        """Train each program for the same minutes. Return those that have a model."""
        trained = []
        for rival in self.rivals:
            try:
                if rival.trains:
                    rival.train(1024, 60 * self.options.minutes, save=True)
                trained.append(rival)
            except Exception as error:
                self.not_measured(rival.name, f"{self.options.minutes:g} minutes of training: {reason_of(error)}")
        return trained

    def translation(self, rivals: list[Rival], beam: int) -> None:
        outputs: dict[str, list[str]] = {}

        def measure(rival: Rival) -> dict[str, float]:
            out, seconds = rival.task.folder / "out", {}
            for name in ("one.en", "test.en"):
                seconds[name] = seconds_of(rival.translate(rival.task.text(name, rival.raw), out, beam))
            outputs[rival.name] = out.read_text(encoding="utf-8").split("\n")[:-1] if rival.raw else plain(out)
            return {
                f"beam {beam}, {LINES} lines, seconds": seconds["test.en"],
                f"beam {beam}, {LINES} lines, seconds without start-up": seconds["test.en"] - seconds["one.en"],
                f"beam {beam}, one sentence, cold, seconds": seconds["one.en"],
            }

        self.in_turns(measure, rivals)
        what = f"BLEU after {self.options.minutes:g} minutes, beam {beam}"
        print(f"\n{what}")
        references = list(read_lines(rivals[0].task.text("test.de", raw=True)))
        for name, found in outputs.items():
            bleu = sacrebleu.BLEU()
            score = bleu.corpus_score(found, [references]).score
            print(f"  {name:<22} {score:>10.1f}", flush=True)
            self.record.add(f"{what}: {name}", bleu=score, signature=str(bleu.get_signature()))
        self.record.save()

    def help(self) -> None:
        rivals = [rival for rival in self.rivals if rival.has_help]
        self.in_turns(lambda rival: {"--help, seconds": seconds_of(rival.help())}, rivals)


def reason_of(error: Exception) -> str:
    return str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"


def installed(names: list[str], task: Task, folder: Path) -> tuple[list[Rival], dict[str, str]]:
    """The programs that were installed, and the reason for each that was not."""
    found, reasons = [], {}
    for kind in ALL:
        if kind.name in names:
            rival = kind(task, folder)
            try:
                rival.installed_version = rival.install()
                rival.configure()
            except Exception as error:
                reasons[rival.name] = reason_of(error)
                print(f"{rival.name}: not installed: {reasons[rival.name]}", flush=True)
                continue
            print(f"{rival.name} {rival.installed_version}", flush=True)
            found.append(rival)
    return found, reasons


def new_record(name: str, rivals: list[Rival], reasons: dict[str, str]) -> Record:
    record = Record(name, versions={rival.name: rival.installed_version for rival in rivals})
    for missing, reason in reasons.items():
        record.add(f"not installed: {missing}", reason=reason)
    return record


def main() -> None:
    names = [kind.name for kind in ALL]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--folder", type=Path, default=ROOT / "build/rivals", help="environments of the programs")
    parser.add_argument("--corpus", type=Path, default=DATA / "multi30k", help="train.en.gz and so on of Multi30k")
    parser.add_argument("--seconds", type=float, default=50, help="of a turn of training; 0: leave parts 2 and 5 out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10, help="of training for quality; 0: leave 3 and 4 out")
    options = parser.parse_args()
    if not options.corpus.is_dir():
        print(f"skipped: there is no folder {options.corpus}; name a folder of Multi30k with --corpus")
        return
    with tempfile.TemporaryDirectory() as name:
        task = Task(Path(name))
        task.make(options.corpus)
        rivals, reasons = installed(options.only, task, options.folder.absolute())
        if options.seconds:
            with new_record("rivals-training", rivals, reasons) as record:
                comparison = Comparison(rivals, options, record)
                for rival in rivals:
                    record.add(f"lines of configuration: {rival.name}", lines=rival.config_lines())
                for tokens in SIZES:
                    comparison.training(tokens)
                comparison.help()
        if options.minutes:
            with new_record("rivals-translation", rivals, reasons) as record:
                comparison = Comparison(rivals, options, record)
                trained = comparison.quality()
                for beam in (1, 5) if trained else ():
                    comparison.translation(trained, beam)


if __name__ == "__main__":
    main()
