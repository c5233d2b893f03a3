"""Before a training: choose the settings that the recipe leaves open, and foresee how far the limits reach.

recipe/automatic.py has the rules. This module gathers the facts for them, and times a few updates on this machine.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt_cli.data.shards import open_shards
from nmt_cli.errors import NmtError
from nmt_cli.model.base import parameters_by_part
from nmt_cli.model.build import build_model
from nmt_cli.model.device import out_of_memory
from nmt_cli.parallel import cores
from nmt_cli.recipe.automatic import (
    ACCELERATOR_BATCH,
    Candidate,
    Facts,
    choose_training,
    sizes_to_try,
    suits,
    updates_per_epoch,
)
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import MOST_POSITIONS, Model, Recipe, Train, Transformer
from nmt_cli.store.checkpoint import State
from nmt_cli.store.folders import RunFolder, find_model
from nmt_cli.store.log import Train as TrainEntry
from nmt_cli.store.log import read_log
from nmt_cli.terminal.plot import counted
from nmt_cli.text.vocab import load_vocab
from nmt_cli.training.budget import Budget
from nmt_cli.training.optimizer import make_optimizers
from nmt_cli.training.precision import allow_tf32, likely_precision
from nmt_cli.training.trial import CELLS, Trial, fastest

_CELLS_PER_UPDATE = 2048  # on a CPU; the optimizer works once per update, however large the batch is
SMALLEST_MINUTES = 1  # shorter trainings take longer than train.minutes
_SHARE_OF_CORES = 0.7  # speed of a core when all cores train, divided by its speed when it trains alone


@dataclass(frozen=True)
class Plan:
    """A recipe with nothing left open, and sentences for the reader: the choice, the forecast, warnings."""

    recipe: Recipe
    lines: list[str]
    updates: int = 0  # the expected length of the training; 0: not foreseen


class _TooLarge(NmtError):
    """The model needs more memory than there is."""


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
        return updates_per_epoch(self.longer_tokens, recipe.train.batch_tokens, recipe.train.accumulate)


def make_plan(recipe: Recipe, device: torch.device, processes: int = 1, start_from: Path | None = None) -> Plan:
    """The plan of a new run. `start_from` is the model of --from; its architecture is kept."""
    corpus = _Corpus.load(recipe)
    allow_tf32(recipe.train)
    if not recipe.train.auto:
        speed = 0.0
        if recipe.train.minutes:
            with suppress(_TooLarge):  # with train.shard, the model may still fit
                speed = processes * _speed(recipe.model, recipe.train, corpus, device)
        updates, lines = _forecast(recipe, corpus, _candidate(recipe.model, recipe.train, corpus, speed))
        return Plan(recipe, lines, updates)
    facts = _facts(recipe, corpus, device, start_from)

    # 1. The model: the largest that suits the data, the time and the memory.
    batch = facts.batch_tokens or ACCELERATOR_BATCH  # _speed does not need it on a CPU
    settings = replace(recipe.train, batch_tokens=batch)
    if "train.optimizer" not in recipe.stated:
        settings = replace(settings, optimizer="muon")
    stated, candidate = _stated(recipe, "model"), None
    model = recipe.model
    if start_from:
        origin = load_recipe(find_model(start_from).recipe, may_extend=False).model
        model = _changed(origin, stated, start_from, "leave them out: a model of --from keeps its architecture")
    sizes = sizes_to_try(stated) if isinstance(model, Transformer) and not start_from else [{}]
    for size in sizes:
        larger = replace(model, **size)
        try:
            speed = processes * _speed(larger, settings, corpus, device)
        except _TooLarge:
            if candidate is None:
                raise
            break
        tried = _candidate(larger, settings, corpus, speed)
        if candidate is not None and not suits(tried, facts):
            break
        model, candidate = larger, tried
    assert candidate is not None

    # 2. Everything else.
    chosen = choose_training(facts, candidate)
    if model.max_positions and not start_from:
        longest = recipe.data.clean.max_tokens + 1  # with the end mark
        chosen["model.max_positions"] = min(MOST_POSITIONS, max(model.max_positions, longest))
    tables: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
    for name, value in chosen.items():
        table, _, key = name.partition(".")
        if name not in recipe.stated:
            tables[table][key] = value
    resolved = replace(
        recipe, model=replace(model, **tables["model"]), train=replace(recipe.train, **tables["train"], auto=False)
    )
    problems = ((f"train.{key}", problem) for key, problem in resolved.train.problems())
    for name, problem in (*problems, *resolved.problems()):
        raise NmtError(f"{name}: {problem}", "state this key as well, or leave out the keys that it must suit")
    updates, lines = _forecast(resolved, corpus, candidate)
    return Plan(resolved, [_choice(resolved, corpus, device), *lines], updates)


def forecast_of_rest(recipe: Recipe) -> list[str]:
    """A sentence about what the limits still allow a run that continues. The limit that is reached first counts."""
    saved = RunFolder(recipe.run_folder).saved_checkpoints()[-1].step  # a killed session has logged further steps
    done = [entry for entry in read_log(recipe.run_folder) if isinstance(entry, TrainEntry) and entry.step <= saved]
    if not done:
        return []
    last, train = done[-1], recipe.train
    limits = {
        "minute": (last.minutes, train.minutes),
        "update": (last.step, train.steps),
        "epoch": (last.epoch, train.epochs),
        "token": (last.tokens, train.tokens),
        "FLOP": (last.flops, train.flops),
    }
    left = {noun: limit / amount - 1 for noun, (amount, limit) in limits.items() if limit}
    noun = min(left, key=lambda name: left[name], default="")
    if not noun or left[noun] <= 0:
        return []
    share = left[noun]  # of what is done
    amounts = {
        "update": counted(round(share * last.step), "update"),
        "epoch": counted(round(share * last.epoch, 1), "epoch"),
        "minute": counted(round(share * last.minutes, 1), "minute"),
    }
    amount = share * limits[noun][0]
    limit = amounts.pop(noun, counted(amount if noun == "FLOP" else round(amount), noun))
    return [f"the limits leave {limit}: about {', '.join(amounts.values())}, at the speed so far"]


def as_begun(recipe: Recipe) -> Recipe:
    """The recipe with the choices that were made when its run began."""
    begun = load_recipe(RunFolder(recipe.run_folder).recipe)
    train = replace(begun.train, **{**_stated(recipe, "train"), "out": recipe.train.out, "auto": False})
    hint = "leave them out to continue the run; --out NEW starts a new run in another folder"
    return replace(recipe, model=_changed(begun.model, _stated(recipe, "model"), recipe.run_folder, hint), train=train)


def _stated(recipe: Recipe, table: str) -> dict[str, Any]:
    """The keys of a table that a file or an override sets. A table inside it, such as train.augment, is one key."""
    names = {name.split(".")[1] for name in recipe.stated if name.startswith(f"{table}.")}
    return {name: getattr(getattr(recipe, table), name) for name in names}


def _changed(model: Model, stated: dict[str, Any], origin: Path, hint: str) -> Model:
    """The model of `origin` with the [model] keys that the user states."""
    family = f'the model of {origin} has model.family = "{model.family}"'
    if stated.get("family", model.family) != model.family:
        raise NmtError(f'{family}, not "{stated["family"]}"', hint)
    if unknown := sorted(stated.keys() - {item.name for item in fields(model)}):
        raise NmtError(f"{family}, which has no key {', '.join(unknown)}", hint)
    changed = replace(model, **stated)
    for key, problem in changed.problems():
        raise NmtError(f"the model of {origin} does not suit the stated keys: model.{key}: {problem}", hint)
    return changed


def _facts(recipe: Recipe, corpus: _Corpus, device: torch.device, start_from: Path | None) -> Facts:
    train, stated = recipe.train, _stated(recipe, "train")
    limits = (stated.get("epochs", 0.0), train.tokens / corpus.target_tokens)
    return Facts(
        target_tokens=corpus.target_tokens,
        longer_tokens=corpus.longer_tokens,
        minutes=train.minutes,
        epochs=min((limit for limit in limits if limit), default=0.0),
        on_cpu=device.type == "cpu",
        is_trained=start_from is not None,
        steps=stated.get("steps", 0),
        flops=train.flops,
        batch_tokens=stated.get("batch_tokens", 0),
        accumulate=train.accumulate,
        optimizer=stated.get("optimizer", "muon"),
    )


def _candidate(model: Model, settings: Train, corpus: _Corpus, speed: float) -> Candidate:
    with torch.device("meta"):  # the meta device allocates no memory
        built = build_model(model, *corpus.vocab_sizes)

    def flops(rewarded_tokens: int) -> float:
        one_pass = State(
            tokens=corpus.target_tokens, source_tokens=corpus.source_tokens, rewarded_tokens=rewarded_tokens
        )
        return Budget(settings, one_pass, built, began=0.0).flops()

    # A share of the operations is spent before the rewards begin.
    before = 1.0 if settings.reward == "none" else settings.reward_after
    passes_per_flop = before / flops(0) + (1 - before) / flops(corpus.target_tokens)
    return Candidate(model.dim, parameters_by_part(built).total(), speed, 1 / passes_per_flop)


def _speed(model: Model, settings: Train, corpus: _Corpus, device: torch.device) -> float:
    """Target tokens per second of training, over pairs of the mean length. The optimizers step once for each batch.

    On a CPU, a batch has 2048 tokens, and the precision is fp32: one thread computes half of a batch, and the others
    are expected to be nearly as fast. On an accelerator, a batch has train.batch_tokens, and the precision is the one
    that training will probably choose. Call allow_tf32 before this.
    """
    source, target = (
        max(1, round(tokens / corpus.pairs) - 1) for tokens in (corpus.source_tokens, corpus.target_tokens)
    )
    on_cpu, threads = device.type == "cpu", torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would show how busy the machine is just now
    try:
        trial = Trial(model, settings, corpus.vocab_sizes, (source, target), device)
        passes = trial.passes(likely_precision(settings.precision, device))
        optimizers = make_optimizers(trial.model, settings)

        def step() -> None:
            for optimizer in optimizers:
                optimizer.step()

        seconds = passes + fastest(step, device) * (CELLS / _CELLS_PER_UPDATE if on_cpu else 1)
        return trial.batch.tokens / seconds * (_SHARE_OF_CORES * threads if on_cpu else 1)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    finally:
        torch.set_num_threads(threads)
    raise _TooLarge(
        f"there is not enough memory to train a model of width {model.dim}",
        "use a smaller model, or a device with more memory",
    )


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
        ("FLOP", train.flops): train.flops / model.flops_per_epoch,
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
    patience = ""
    if noun == "epoch" and model.tokens_per_second:
        minutes = epochs * corpus.target_tokens / model.tokens_per_second / 60
        amounts["time"] = counted(round(minutes), "minute") if minutes < 90 else counted(round(minutes / 60), "hour")
        patience = f"; fewer after {counted(train.patience, 'validation')} without progress" * (train.patience > 0)
    speed = f", at {model.tokens_per_second:,.0f} target tokens/s" if model.tokens_per_second else ""
    lines = [f"{limit}: about {', '.join(amounts.values())}{speed}{patience}"]
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
