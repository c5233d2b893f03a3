"""The ladder: several recipes, one corpus, one budget, one table that compares them (docs/ladder.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from nmt_cli.data.prepare import prepare
from nmt_cli.errors import NmtError
from nmt_cli.inspect.attention import attention
from nmt_cli.model.base import parameters_by_part
from nmt_cli.model.device import Compute
from nmt_cli.recipe.help import comments
from nmt_cli.recipe.load import find_recipe, load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.scoring.draw import draw_lengths
from nmt_cli.scoring.metrics import ScoreReport, score
from nmt_cli.scoring.tokenizers import tokenizer_for
from nmt_cli.store.checkpoint import Trained, load_model
from nmt_cli.store.log import Train, Valid, flops_by_time, read_log
from nmt_cli.terminal.console import messages, say, stages
from nmt_cli.terminal.heatmap import Ink, heatmap
from nmt_cli.terminal.plot import duration
from nmt_cli.terminal.tables import new_table
from nmt_cli.training.resume import read_meta
from nmt_cli.training.screen import TrainingScreen
from nmt_cli.training.session import Interrupted, train
from nmt_cli.training.trainer import Diverged
from nmt_cli.training.validation import Validation

# The shipped rungs, lowest first. The first line of each recipe says what the rung adds to the one below.
SHIPPED = ("demo-rnn", "demo-rnn-attention", "demo-rnn-multi-head", "demo-conv", "demo-decoder", "demo")

# --choose-rates trains each rung for a part of the budget with these rates first.
FIRST_RATES = (2e-3, 4e-3, 8e-3)
LEAST_RATE, MOST_RATE = 1e-4, 0.1
TRIAL = 0.5  # the part of the budget; a shorter trial would end in the warm-up


@dataclass(frozen=True)
class PaperRow:
    """A row of Table 2 of "Attention is all you need": BLEU on newstest2014 and training FLOPs, by language pair."""

    model: str
    en_de: str
    en_fr: str
    flops_en_de: str
    flops_en_fr: str
    recipe: str  # the recipe of this row
    ensemble: bool = False  # of runs with several seeds


TABLE2 = (
    PaperRow("ByteNet", "23.75", "", "", "", "demo-bytenet"),
    PaperRow("Deep-Att + PosUnk", "", "39.2", "", "1.0e20", "demo-deep-att"),
    PaperRow("GNMT + RL", "24.6", "39.92", "2.3e19", "1.4e20", "demo-gnmt-rl"),
    PaperRow("ConvS2S", "25.16", "40.46", "9.6e18", "1.5e20", "demo-conv"),
    PaperRow("MoE", "26.03", "40.56", "2.0e19", "1.2e20", "demo-moe"),
    PaperRow("Deep-Att + PosUnk, ensemble", "", "40.4", "", "8.0e20", "demo-deep-att", ensemble=True),
    PaperRow("GNMT + RL, ensemble", "26.30", "41.16", "1.8e20", "1.1e21", "demo-gnmt-rl", ensemble=True),
    PaperRow("ConvS2S, ensemble", "26.36", "41.29", "7.7e19", "1.2e21", "demo-conv", ensemble=True),
    PaperRow("Transformer, base", "27.3", "38.1", "3.3e18", "3.3e18", "demo"),
    PaperRow("Transformer, big", "28.4", "41.8", "2.3e19", "2.3e19", "demo-big"),
)


@dataclass(frozen=True)
class Run:
    """A trained rung with one seed, its last log entry, and its FLOPs by time."""

    trained: Trained
    last: Train
    flops_by_time: float


@dataclass(frozen=True)
class Rung:
    """The runs of a recipe, one for each seed, and the translations of the test lines by each run.

    Without a test set, the validation lines take the place of the test lines.
    """

    name: str
    runs: list[Run]
    split: str  # "test" or "valid"
    test: dict[int, tuple[str, str]]  # the source and the reference of each test line, by the number of the line
    translations: list[dict[int, str]]
    ensemble: dict[int, str]  # translations by all runs together; empty if the table has no row for them

    @property
    def parameters(self) -> int:
        return parameters_by_part(self.runs[0].trained.model).total()


@dataclass(frozen=True)
class Ladder:
    """What all rungs have in common: the corpus, the changed keys, the folder of the runs, the budget of a run."""

    corpus: Recipe
    changes: Mapping[str, Any]
    out: Path
    minutes: float  # 0 if the budget is in FLOPs
    flops: float  # 0 if the budget is in minutes

    def recipe(self, rung: str, seed: int) -> Recipe:
        """The run of a rung: OUT/NAME for seed 1, OUT/NAME-seed2 for seed 2."""
        folder = self.out / (Path(rung).stem + (f"-seed{seed}" if seed > 1 else ""))
        return self.placed(rung, {"train.seed": seed} if seed > 1 else {}, folder, 1.0)

    def trial(self, rung: str, rate: float) -> Recipe:
        """The run of a rung that tries a learning rate."""
        return self.placed(rung, {"train.lr": rate}, self.out / "rates" / f"{Path(rung).stem}-{rate:g}", TRIAL)

    def placed(self, rung: str, changes: Mapping[str, Any], folder: Path, share: float) -> Recipe:
        """The recipe `rung` on the prepared data, with a share of the budget. Its run is `folder`."""
        corpus = self.data_of(rung)
        limits = {f"train.{limit}": 0.0 for limit in ("steps", "epochs", "tokens", "patience")}
        limits |= {"train.minutes": share * self.minutes, "train.flops": share * self.flops}
        folders = {"data.prepared": str(corpus.prepared_folder), "train.out": str(folder)}
        recipe = load_recipe(find_recipe(rung), {**limits, **self.changes, **changes, **folders})
        stated = frozenset(key for key in recipe.stated if not key.startswith("vocab."))  # other data have them
        recipe = replace(recipe, data=corpus.data, vocab=corpus.vocab, stated=stated)
        for key, problem in recipe.problems():  # load_recipe has checked the rung with its own data only
            text = f"the rung {rung} does not fit the data {corpus.prepared_folder}: {key} {problem}"
            raise NmtError(text, "use --set")
        return recipe

    def data_of(self, rung: str) -> Recipe:
        """The corpus; in OUT/data-KIND if the rung states pieces of another kind: ByteNet reads characters."""
        recipe = load_recipe(find_recipe(rung))
        kind = recipe.vocab.type if "vocab.type" in recipe.stated else self.corpus.vocab.type
        if kind == self.corpus.vocab.type:
            return self.corpus
        data = replace(self.corpus.data, prepared=self.out / f"data-{kind}")
        return replace(self.corpus, data=data, vocab=replace(self.corpus.vocab, type=kind, reuse=None))


def next_rate(losses: Mapping[float, float]) -> float:
    """The next learning rate to try, after those with known validation losses; 0 if the lowest loss is not at an end.

    The first rates are FIRST_RATES. Then twice or half the best rate, as long as the best rate is the largest or the
    smallest that was tried.
    """
    for rate in FIRST_RATES:
        if rate not in losses:
            return rate
    best = min(losses, key=losses.__getitem__)
    beyond = 2 * best if best == max(losses) else best / 2 if best == min(losses) else 0.0
    return beyond if LEAST_RATE <= beyond <= MOST_RATE else 0.0


def train_rungs(
    ladder: Ladder, names: Sequence[str], recipes: Sequence[list[Recipe]], choose_rates: bool, force: bool
) -> None:
    """Train the recipes of each rung, one for each seed. A signal raises Interrupted.

    With `choose_rates`, the recipes get the learning rate that the trials of their rung chose.
    """
    others = {data.prepared_folder: data for name in names if (data := ladder.data_of(name)) is not ladder.corpus}
    for data in others.values():
        with stages() as progress:
            prepare(data, force=force, show=progress)  # writes nothing if these data are there already
    for number, (name, seeded) in enumerate(zip(names, recipes, strict=True), 1):
        heading = f"\nrung {number} of {len(names)}, {seeded[0].name}: {comments(find_recipe(name))[0]}"
        if choose_rates:
            rate = best_rate(ladder, name, heading, force)
            seeded[:] = [
                replace(recipe, train=replace(recipe.train, lr=rate), stated=recipe.stated | {"train.lr"})
                for recipe in seeded
            ]
        for seed, recipe in enumerate(seeded, 1):
            train_run(recipe, heading + f" Seed {seed} of {len(seeded)}." * (len(seeded) > 1), force)


def train_run(recipe: Recipe, heading: str, force: bool) -> None:
    messages().print(heading, soft_wrap=not messages().is_terminal)  # a terminal itself would wrap inside words
    with TrainingScreen(recipe, summarize=False) as screen:
        result = train(recipe, force=force, watch=screen.watch)
    if result.signal:
        raise Interrupted(result)


def best_rate(ladder: Ladder, rung: str, heading: str, force: bool) -> float:
    """The learning rate whose trial had the lowest validation loss."""
    losses: dict[float, float] = {}
    while rate := next_rate(losses):
        trial = ladder.trial(rung, rate)
        losses[rate] = trial_loss(trial, f"{heading}\ntrial of train.lr = {rate:g}", force)
    if min(losses.values()) == float("inf"):
        problem = f"no trial of {Path(rung).stem} has a finite validation loss"
        raise NmtError(problem, "leave --choose-rates out, and state a rate with --set train.lr")
    best = min(losses, key=losses.__getitem__)
    tried = ", ".join(f"{loss:.3f} with {rate:g}" for rate, loss in sorted(losses.items()))
    say(f"\n{Path(rung).stem}: train.lr = {best:g} has the lowest validation loss: {tried}")
    return best


def trial_loss(trial: Recipe, heading: str, force: bool) -> float:
    """The lowest validation loss of a trial; infinite if the training diverges."""
    try:
        train_run(trial, heading, force)
    except Diverged as error:
        say(error.message)
        return float("inf")
    return validation_loss(trial.run_folder)


def validation_loss(run: Path) -> float:
    """The lowest validation loss of a run; infinite if the run has none."""
    losses = [entry.loss for entry in read_log(run) if isinstance(entry, Valid) and entry.loss is not None]
    return min((loss for loss in losses if loss == loss), default=float("inf"))


def evaluation_splits(corpus: Recipe) -> list[str]:
    """The splits of prepared data that can be translated: "test" and "valid", or one of them."""
    read_meta(corpus)  # report missing data
    folder = corpus.prepared_folder
    splits = [split for split in ("test", "valid") if (folder / f"{split}.source.ids").is_file()]
    if not splits:
        raise NmtError(f"{folder} has neither test nor validation lines", "prepare the data with test files")
    return splits


def measure(recipes: Sequence[Recipe], lines: int, ensemble: bool = False) -> Rung:
    """Translate the test set with the runs of a rung, or the validation set if there is no test set."""
    runs = []
    for recipe in recipes:
        log = read_log(recipe.run_folder)
        last = next((entry for entry in reversed(log) if isinstance(entry, Train)), None)
        if last is None:
            problem = f"{recipe.run_folder} has no figures of its training: log.jsonl is missing or damaged"
            raise NmtError(problem, "rename the folder: the same command then trains this rung again")
        runs.append(Run(load_model(recipe.run_folder), last, flops_by_time(log)))
    recipe, vocab = recipes[0], runs[0].trained.vocab
    searching = replace(recipe, train=replace(recipe.train, valid_beam=recipe.translate.beam, valid_lines=lines))
    split = evaluation_splits(recipe)[0]
    test = Validation.load(searching, vocab, split)
    if test is None:
        problem = f"{recipe.run_folder} can translate none of the {split} lines of {recipe.prepared_folder}"
        raise NmtError(problem, "check that these lines are not blank, and not too long for the model")
    models, cpu = [run.trained.model for run in runs], Compute(torch.device("cpu"), "fp32", "")
    groups = [[model] for model in models] + ([models] if ensemble else [])
    translations = [dict(zip(test.numbers, test.translations(group, searching, cpu), strict=True)) for group in groups]
    sources = [vocab.source.decode(ids) for ids in test.sources]
    texts = dict(zip(test.numbers, zip(sources, test.references, strict=True), strict=True))
    name = recipe.run_folder.name
    return Rung(name, runs, split, texts, translations[: len(runs)], translations[-1] if ensemble else {})


def score_rungs(
    rungs: Sequence[Rung], systems: Mapping[str, Mapping[int, str]], by_length: bool = False
) -> ScoreReport:
    """BLEU of the translations `systems`, with intervals or by length, on the lines that all rungs can read."""
    test = {number: texts for number, texts in rungs[0].test.items() if all(number in rung.test for rung in rungs)}
    return score(
        {name: [translations[number] for number in test] for name, translations in systems.items()},
        {"reference": [reference for _, reference in test.values()]},
        source=[source for source, _ in test.values()],
        metrics="bleu",
        tokenize=tokenizer_for(rungs[0].runs[0].trained.vocab.target_lang),
        by_length=by_length,
        confidence=not by_length,
    )


def scores_of(rungs: Sequence[Rung]) -> ScoreReport:
    """BLEU of every run and of every ensemble."""
    systems = {
        _system(rung, seed): translations
        for rung in rungs
        for seed, translations in enumerate([*rung.translations, *([rung.ensemble] if rung.ensemble else [])])
    }
    return score_rungs(rungs, systems)


def _system(rung: Rung, seed: int) -> str:
    """The name of a run in a report of scores. Seeds count from 0; the number after the last seed is the ensemble."""
    return f"{rung.name} {seed}"


@dataclass(frozen=True)
class Figures:
    """What the tables say about a rung or an ensemble. FLOPs and minutes are the mean of the seeds, or their sum."""

    bleu: float
    interval: str
    parameters: int
    flops: float
    flops_by_time: float
    minutes: float
    tokens: float

    def cells(self) -> list[str]:
        return [
            f"{self.parameters:,}",
            f"{self.bleu:.2f}",
            self.interval,
            f"{self.flops:.1e}",
            f"{self.flops_by_time:.1e}" if self.flops_by_time else "",
            duration(60 * self.minutes),
        ]


OURS = ("parameters", "BLEU", "", "FLOPs\nby weight", "FLOPs\nby time", "time")  # the columns of Figures.cells


def figures(rung: Rung, report: ScoreReport, ensemble: bool = False) -> Figures:
    by_system = {result.system: result for result in report.scores}
    seeds = [by_system[_system(rung, seed)] for seed in range(len(rung.runs))]
    shown = [by_system[_system(rung, len(seeds))]] if ensemble else seeds
    bleus = [result.score for result in shown]
    mean = fmean(bleus)
    interval = max(abs(bleu - mean) for bleu in bleus) if len(shown) > 1 else shown[0].interval or 0.0
    together: Callable[[Iterable[float]], float] = sum if ensemble else fmean
    return Figures(
        mean,
        f"± {interval:.1f}",
        rung.parameters * (len(seeds) if ensemble else 1),
        together(run.last.flops for run in rung.runs),
        together(run.flops_by_time for run in rung.runs),
        together(run.last.minutes for run in rung.runs),
        together(float(run.last.tokens) for run in rung.runs),
    )


def notes(rungs: Sequence[Rung], report: ScoreReport) -> list[RenderableType]:
    """What the columns mean."""
    seeds = len(rungs[0].runs)
    measured = "validation" if rungs[0].split == "valid" else "test"
    interval = f"±: 95 % interval, by bootstrap of the {measured} lines"
    spread = f"BLEU, time and FLOPs: mean of {seeds} seeds; ±: largest distance of a seed from the mean"
    lines = [
        "by weight: 6 for each weight and token; by time: time x matrix rate of the processors",
        spread if seeds > 1 else interval,
        report.scores[0].signature,
    ]
    if any(rung.ensemble for rung in rungs):
        lines.append(f"an ensemble of {seeds} seeds: parameters, time and FLOPs are sums; {interval}")
    if rungs[0].split == "valid":
        lines.append("BLEU of the validation lines, which also chose the weights: there is no test set")
    return [Text(line, style="dim") for line in lines]


def show(rungs: Sequence[Rung], sentence: str, width: int, ink: Ink) -> RenderableType:
    """The table of all rungs, their parameters by part, BLEU by sentence length, and the attention of one sentence."""
    report = scores_of(rungs)
    table = new_table("rung", *OURS, "tokens/s")
    if width < 90:  # columns of the terminal
        table.padding = (0, 1, 0, 0)
    for rung in rungs:
        ours = figures(rung, report)
        table.add_row(Text(rung.name), *ours.cells(), f"{ours.tokens / (60 * ours.minutes):,.0f}")
    if width < 80:
        table.columns.pop()
    if width < 70:
        table.columns.pop(5)
    parts: list[RenderableType] = [table, *notes(rungs, report), "", "Parameters by part"]
    for rung in rungs:
        counts = parameters_by_part(rung.runs[0].trained.model).items()
        parts.append(Text(f"{rung.name}: " + ", ".join(f"{name} {count:,}" for name, count in counts)))
    by_length = score_rungs(rungs, {rung.name: rung.translations[0] for rung in rungs}, by_length=True).by_length
    assert by_length is not None
    parts += ["", draw_lengths(by_length), ""]
    for rung in rungs:
        try:
            weights = attention(rung.runs[0].trained, sentence)
        except NmtError as error:  # such as a sentence that is too long for this model
            parts += [Text.assemble((f"{rung.name}: ", "bold"), error.message), ""]
            continue
        parts.append(Text.assemble((f"{rung.name}: ", "bold"), weights.target or "(empty)"))
        if "cross" not in weights.weights:
            parts.append(Text("no attention over the source to draw", style="dim"))
        elif weights.rows["cross"]:
            parts.append(heatmap(weights.mean("cross"), weights.rows["cross"], weights.columns["cross"], width, ink))
        parts.append("")
    return Group(*parts)


def show_table2(rungs: Sequence[Rung], width: int) -> RenderableType:
    """The rows of the paper, and beside them our own; below them if the terminal is narrow."""
    report = scores_of(rungs)
    by_name = {rung.name: rung for rung in rungs}
    paper = ("en-de\nBLEU", "en-fr\nBLEU", "en-de\nFLOPs", "en-fr\nFLOPs")
    beside = width >= 100  # columns of the terminal
    tables = (
        [new_table("the paper", *paper, *OURS)]
        if beside
        else [new_table("the paper", *paper), new_table("here", *OURS)]
    )
    for row in TABLE2:
        rung = by_name.get(row.recipe)
        trained = rung is not None and (bool(rung.ensemble) or not row.ensemble)
        ours = figures(rung, report, row.ensemble).cells() if rung is not None and trained else [""] * len(OURS)
        theirs = (row.model, row.en_de, row.en_fr, row.flops_en_de, row.flops_en_fr)
        if beside:
            tables[0].add_row(*theirs, *ours)
        else:
            tables[0].add_row(*theirs)
            tables[1].add_row(row.model, *ours)
    for table in tables:
        table.padding = (0, 1, 0, 0)
    recipes = ", ".join(f"{row.model} = {row.recipe}" for row in TABLE2 if not row.ensemble)
    return Group(*tables, Text(f"here: {recipes}", style="dim"), *notes(rungs, report))
