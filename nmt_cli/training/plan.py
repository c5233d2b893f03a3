"""Before a training: choose the settings that the recipe leaves open, and foresee how far the limits reach.

recipe/automatic.py has the rules. This module gathers the facts for them, and times a few updates on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from nmt_cli.data.batches import make_batch
from nmt_cli.data.shards import open_shards
from nmt_cli.errors import NmtError
from nmt_cli.model.base import parameters_by_part
from nmt_cli.model.build import build_model
from nmt_cli.parallel import cores
from nmt_cli.recipe.automatic import Candidate, Facts, choose_training, sizes_to_try, suits
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import Model, Recipe, Train, Transformer
from nmt_cli.store.folders import RunFolder, find_model
from nmt_cli.terminal.plot import counted
from nmt_cli.text.vocab import load_vocab
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.optimizer import make_optimizers

_TRIAL_CELLS = 1024  # size of the batch that is timed
_CELLS_PER_UPDATE = 2048  # the optimizer works once per update, however large the batch is
SMALLEST_MINUTES = 1  # shorter trainings take longer than train.minutes
_SHARE_OF_CORES = 0.7  # speed of a core when all cores train, divided by its speed when it trains alone


@dataclass(frozen=True)
class Plan:
    """A recipe with nothing left open, and sentences for the reader: the choice, the forecast, warnings."""

    recipe: Recipe
    lines: list[str]
    updates: int = 0  # the expected length of the training; 0: not foreseen


@dataclass(frozen=True)
class _Corpus:
    """Sizes of the training data. Tokens include end marks."""

    pairs: int
    source_tokens: int
    target_tokens: int
    longer_tokens: int  # of the longer side of each pair
    vocab_sizes: tuple[int, int]

    @staticmethod
    def load(recipe: Recipe) -> _Corpus:
        folder = recipe.prepared_folder
        sizes = load_vocab(folder / "vocab").sizes
        source, target = (shard.lengths + 1 for shard in open_shards(folder, "train", sizes))
        longer = np.maximum(source, target)
        return _Corpus(len(source), int(source.sum()), int(target.sum()), int(longer.sum()), sizes)

    def updates_per_epoch(self, recipe: Recipe) -> float:
        return max(1.0, self.longer_tokens / (recipe.train.batch_tokens * recipe.train.accumulate))


def make_plan(recipe: Recipe, device: torch.device, processes: int = 1, start_from: Path | None = None) -> Plan:
    """The plan of a new run. `start_from` is the model of --from; its architecture is kept."""
    corpus = _Corpus.load(recipe)
    if not recipe.train.auto:
        speed = processes * _speed(recipe.model, recipe.train, corpus, device) if recipe.train.minutes else 0.0
        updates, lines = _forecast(recipe, corpus, _candidate(recipe.model, corpus, speed))
        return Plan(recipe, lines, updates)
    facts = Facts(
        target_tokens=corpus.target_tokens,
        minutes=recipe.train.minutes,
        epochs=_stated_epochs(recipe, corpus),
        on_cpu=device.type == "cpu",
        is_trained=start_from is not None,
    )

    # 1. The model: the largest that suits the data and the time.
    settings = recipe.train if "train.optimizer" in recipe.stated else replace(recipe.train, optimizer="muon")
    stated, candidate = _stated(recipe, "model"), None
    model = recipe.model
    if start_from:
        model = replace(load_recipe(find_model(start_from).recipe, may_extend=False).model, **stated)
    sizes = sizes_to_try(stated) if isinstance(model, Transformer) and not start_from else [{}]
    for size in sizes:
        larger = replace(model, **size)
        speed = processes * _speed(larger, settings, corpus, device)
        tried = _candidate(larger, corpus, speed)
        if candidate is not None and not suits(tried, facts):
            break
        model, candidate = larger, tried
    assert candidate is not None

    # 2. Everything else.
    chosen = choose_training(facts, candidate)
    tables: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
    for name, value in chosen.items():
        table, _, key = name.partition(".")
        if name not in recipe.stated:
            tables[table][key] = value
    resolved = replace(
        recipe, model=replace(model, **tables["model"]), train=replace(recipe.train, **tables["train"], auto=False)
    )
    for key, problem in resolved.train.problems():
        raise NmtError(f"train.{key}: {problem}", "state this key as well, or leave out the others of [train]")
    updates, lines = _forecast(resolved, corpus, candidate)
    return Plan(resolved, [_choice(resolved, corpus, device), *lines], updates)


def as_begun(recipe: Recipe) -> Recipe:
    """The recipe with the choices that were made when its run began."""
    begun = load_recipe(RunFolder(recipe.run_folder).recipe)
    train = replace(begun.train, **{**_stated(recipe, "train"), "out": recipe.train.out, "auto": False})
    return replace(recipe, model=replace(begun.model, **_stated(recipe, "model")), train=train)


def _stated(recipe: Recipe, table: str) -> dict[str, Any]:
    """The keys of a table that a file or an override sets. A table inside it, such as train.augment, is one key."""
    names = {name.split(".")[1] for name in recipe.stated if name.startswith(f"{table}.")}
    return {name: getattr(getattr(recipe, table), name) for name in names}


def _stated_epochs(recipe: Recipe, corpus: _Corpus) -> float:
    """The passes over the data that the limits of the recipe allow, apart from minutes. 0: no limit."""
    train, stated = recipe.train, recipe.stated
    limits = [
        train.epochs if "train.epochs" in stated else 0.0,
        train.tokens / corpus.target_tokens if "train.tokens" in stated else 0.0,
        train.steps / corpus.updates_per_epoch(recipe) if "train.steps" in stated else 0.0,
    ]
    return min((limit for limit in limits if limit), default=0.0)


def _candidate(model: Model, corpus: _Corpus, speed: float) -> Candidate:
    with torch.device("meta"):  # the meta device allocates no memory
        parameters = parameters_by_part(build_model(model, *corpus.vocab_sizes)).total()
    return Candidate(model.dim, parameters, speed)


def _speed(model: Model, settings: Train, corpus: _Corpus, device: torch.device) -> float:
    """Target tokens per second of training, over pairs of the mean length, in batches of 2048 tokens."""
    source, target = (
        max(1, round(tokens / corpus.pairs) - 1) for tokens in (corpus.source_tokens, corpus.target_tokens)
    )
    rows = max(1, _TRIAL_CELLS // (1 + max(source, target)))
    ids = np.random.default_rng(0)
    batch = make_batch(
        list(ids.integers(4, corpus.vocab_sizes[0], (rows, source))),
        list(ids.integers(4, corpus.vocab_sizes[1], (rows, target))),
    )
    tensors = [torch.from_numpy(array).to(device) for array in (batch.src, batch.tgt_in, batch.tgt_out)]
    built = build_model(model, *corpus.vocab_sizes).to(device)
    loss, optimizers = TrainingLoss(built, settings).train(), make_optimizers(built, settings)

    def passes() -> None:
        loss(*tensors)[0].backward()

    def step() -> None:
        for optimizer in optimizers:
            optimizer.step()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would show how busy the machine is just now
    seconds = _fastest(passes, device) + _fastest(step, device) * _TRIAL_CELLS / _CELLS_PER_UPDATE
    torch.set_num_threads(threads)
    return batch.tokens / seconds * (_SHARE_OF_CORES * threads if device.type == "cpu" else 1)


def _fastest(work: Callable[[], None], device: torch.device) -> float:
    """The fewest seconds of three rounds. The first round is slow."""
    times = []
    for _ in range(3):
        began = perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(perf_counter() - began)
    return min(times)


def _choice(recipe: Recipe, corpus: _Corpus, device: torch.device) -> str:
    """The choice in one sentence."""
    model, train = recipe.model, recipe.train
    time = counted(train.minutes, "minute") if train.minutes else "no time limit"
    machine = counted(cores(), "core") if device.type == "cpu" else device.type
    layers = ""
    if isinstance(model, Transformer):
        layers = f" of width {model.dim}, {model.encoder_layers}+{model.decoder_layers} layers"
    return (
        f"{corpus.pairs:,} pairs, {time}, {machine}: {model.family}{layers}, dropout {model.dropout:g}, "
        f"{train.optimizer} at {train.lr:g}, {train.batch_tokens:,} tokens a batch (train.auto; --set changes a value)"
    )


def _forecast(recipe: Recipe, corpus: _Corpus, model: Candidate) -> tuple[int, list[str]]:
    """The number of updates that the limits allow (0: unknown), and sentences about it, with warnings."""
    train = recipe.train
    per_epoch = corpus.updates_per_epoch(recipe)
    limits: dict[tuple[str, float], float] = {
        ("minute", train.minutes): 60 * train.minutes * model.tokens_per_second / corpus.target_tokens,
        ("update", train.steps): train.steps / per_epoch,
        ("token", train.tokens): train.tokens / corpus.target_tokens,
        ("epoch", train.epochs): train.epochs,
    }
    reached = {limit: epochs for limit, epochs in limits.items() if epochs}
    if not reached:
        return 0, []
    (noun, number), epochs = min(reached.items(), key=lambda item: item[1])
    updates = epochs * per_epoch
    amounts = {
        "update": counted(round(updates), "update"),
        "epoch": counted(round(epochs, 1 if epochs >= 1 else 2), "epoch") + f" of {corpus.pairs:,} pairs",
    }
    limit = amounts.pop(noun, counted(number, noun))
    speed = f", at {model.tokens_per_second:,.0f} target tokens/s" if model.tokens_per_second else ""
    lines = [f"{limit}: about {', '.join(amounts.values())}{speed}"]
    if noun == "minute" and number < SMALLEST_MINUTES:
        lines.append(
            f"warning: the start, one validation and the export may take longer than {limit}; give at least "
            f"{counted(SMALLEST_MINUTES, 'minute')}"
        )
    if epochs < 0.9:
        lines.append(
            "warning: training ends before it has read all data once; expect a weak model, or allow "
            f"{1 / epochs:.1f} times as much"
        )
    if updates < 2 * train.warmup:
        lines.append(
            f"warning: the warm-up of {counted(train.warmup, 'update')} is longer than half of the training, about "
            f"{counted(round(updates), 'update')}; lower train.warmup, or train longer"
        )
    if model.parameters > 100 * corpus.target_tokens:
        lines.append(
            f"warning: the model has {model.parameters:,} parameters for {corpus.target_tokens:,} target tokens of "
            "data; a smaller model would learn more"
        )
    return round(updates), lines
