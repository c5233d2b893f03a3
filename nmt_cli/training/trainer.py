"""The training loop, for `nmt train`. Read `train` first, then `Trainer.fit` and `Trainer.update`.

Everything random in update n is a function of the seed, n and the process, so a run that was killed goes on exactly as
if it had not been: what has to be saved is weights, moments, and the few numbers of checkpoint.State.
"""

from __future__ import annotations

import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt_cli.data.batches import Batch, BatchStream, ParallelData, share
from nmt_cli.errors import NmtError
from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.files import exclusive, new_folder, replace_file
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute, choose_device, choose_precision, out_of_memory
from nmt_cli.model.flops import training_flops
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.load import load_recipe, recipe_tables, tables_toml
from nmt_cli.recipe.schema import Recipe, Train
from nmt_cli.store import checkpoint
from nmt_cli.store.checkpoint import State
from nmt_cli.store.log import Average, End, Entry, LogWriter, Note, Start, Valid, best_validation, open_log, read_log
from nmt_cli.store.log import Train as TrainEntry
from nmt_cli.store.model_folder import CTRANSLATE2, find_model
from nmt_cli.store.run_folder import (
    as_prepared,
    check_same,
    data_fingerprint,
    put_back,
    replaced_run,
)
from nmt_cli.text.vocab import load_vocab
from nmt_cli.training import distributed
from nmt_cli.training.distributed import World
from nmt_cli.training.events import AlreadyFinished, Event, Step, Stopping, Validating, Watch
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.malloc import keep_freed_memory
from nmt_cli.training.optimizer import make_optimizers
from nmt_cli.training.schedule import learning_rate
from nmt_cli.training.validation import Validation

NON_FINITE_IN_A_ROW = 10
SCALE_UP_AFTER = 2000  # good updates in fp16
_WIDE = 512
_SHARE = 2048  # tokens of a batch that are worth a process of their own (docs/performance.md)


@dataclass(frozen=True)
class Result:
    """How a session ended."""

    run: Path
    reason: str  # the limit that was reached, or the name of the signal
    signal: int  # number of the signal that stopped the session; 0 if the run is finished
    best: Valid | None  # the validation of the weights in RUN/model


def train(recipe: Recipe, start_from: Path | None, force: bool, watch: Watch) -> Result:
    """Train in recipe.run_folder, or go on there; everything worth telling goes to `watch` as it happens."""
    device, threads = choose_device(recipe.train.device), torch.get_num_threads()
    world = distributed.join(device.type == "cuda")
    alone = world.size == 1 and device.type == "cpu" and distributed.can_help()
    size = local_processes(recipe, threads) if alone else 1
    job = partial(session, recipe, device, start_from, force, max(1, threads // size))
    try:
        if size > 1:
            data_fingerprint(recipe)  # complain before processes are started
            return distributed.with_helpers(size, partial(job, watch), partial(job, _nobody))
        return job(watch, world)
    finally:
        distributed.leave(world)
        torch.set_num_threads(threads)


def session(
    recipe: Recipe,
    device: torch.device,
    start_from: Path | None,
    force: bool,
    threads: int,
    watch: Watch,
    world: World,
) -> Result:
    """What each process does."""
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        if world.leader:
            data_fingerprint(recipe)  # complain before anything is made or removed
            force = force and not distributed.is_marked("forced", world)  # only once, however often torchrun restarts
            if start_from is not None and (force or not checkpoint.checkpoints(recipe.run_folder)):
                check_origin(recipe, start_from, force)
            stack.enter_context(exclusive(recipe.run_folder / ".lock", "another nmt train"))
            put_back(recipe.run_folder)
            checkpoint.remove_half_written(recipe.run_folder)
        with replaced_run(recipe.run_folder) if world.leader and force else nullcontext():
            distributed.from_leader(None, world)  # nobody looks before the leader is done
            keep_freed_memory()
            trainer = Trainer(recipe, world, device, start_from, watch)
        if world.leader and force:
            distributed.mark("forced", world)
        if trainer.log is not None:
            stack.callback(trainer.log.close)
        reason, stopped_by = trainer.fit()
        return Result(recipe.run_folder, reason, stopped_by, best_validation(read_log(recipe.run_folder)))


def check_origin(recipe: Recipe, origin: Path, force: bool) -> None:
    """Can training start from the weights of this run? Asked before another run is removed for it."""
    folder = find_model(origin)
    if force and folder.resolve().is_relative_to(recipe.run_folder.resolve()):
        raise NmtError(
            f"--force would remove {origin}, from which training is to start", "name another folder with --out"
        )
    if not load_vocab(folder / "vocab").same_pieces(load_vocab(recipe.prepared_folder / "vocab")):
        raise NmtError(
            f"the data were prepared with another vocabulary than that of {origin}",
            f"prepare them with --set vocab.reuse={origin}",
        )
    # Weights of one shape may still mean something else: other heads, another activation.
    theirs, ours = (vars(one.model) for one in (load_recipe(folder / "recipe.toml"), recipe))
    differing = [key for key in ours if key not in theirs or theirs[key] != ours[key]]
    differing = [f"model.{key}" for key in differing if not key.endswith("dropout")]
    if differing:
        raise NmtError(
            f"{origin} is another model: {', '.join(differing)} differ",
            f"set them as in {folder / 'recipe.toml'}, or prepare the data with that recipe",
        )


def _nobody(event: Event) -> None:
    """Who watches a helping process."""


@dataclass
class Window:
    """Sums over the updates since the last line of the log."""

    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0  # of the target, over all processes
    cells: int = 0  # of both sides, padding included
    filled: int = 0  # ... padding not
    norm: float = 0.0
    updates: int = 0


class Trainer:
    """One session of a run."""

    def __init__(
        self, recipe: Recipe, world: World, device: torch.device, start_from: Path | None, watch: Watch
    ) -> None:
        self.recipe, self.overruled = as_prepared(recipe)
        self.settings, self.world, self.run = recipe.train, world, recipe.run_folder
        self.watch: Watch = watch if world.leader else lambda entry: None
        saved = checkpoint.checkpoints(self.run)[-1:]
        self.resumed = bool(saved)
        self.state = checkpoint.load_state(saved[0]) if saved else State(data=data_fingerprint(recipe))
        if saved:
            check_same(recipe, self.state, start_from)
            if not self.state.yardstick:  # a run of an older version
                self.state.yardstick = yardstick(load_recipe(self.run / "recipe.toml").train)
        elif start_from is not None:
            self.state.origin = str(start_from.resolve())
        self.vocab = load_vocab(recipe.prepared_folder / "vocab")
        limits = (self.settings.max_length, recipe.model.learned_positions - 1)
        longest = min((limit for limit in limits if limit > 0), default=0)
        self.data = ParallelData(recipe.prepared_folder, "train", self.vocab, longest, self.settings.subword_sampling)
        if recipe.model.tie == "all" and not self.vocab.joint:
            raise NmtError(
                f'model.tie = "all" needs one vocabulary, but the data in {recipe.prepared_folder} have two',
                'set model.tie = "target"',
            )
        self.valid = Validation.load(recipe, self.vocab)
        self.check_end()

        # 1. The device; a run keeps the precision it began with.
        wanted = self.state.precision or self.settings.precision
        choice = choose_precision(wanted, device) if world.leader else ("fp32", "")
        if self.state.precision:
            choice = (choice[0], "as the run began")
        self.compute = Compute(device, *distributed.from_leader(choice, world))
        self.state.precision = self.compute.precision
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.settings.tf32

        # 2. The model, and what changes it.
        torch.manual_seed(self.settings.seed)
        self.model = build_model(recipe.model, *self.vocab.sizes).to(device)
        self.parameters = list(self.model.parameters())
        self.optimizers = make_optimizers(self.model, self.settings, world)
        if saved:
            checkpoint.fill(self.model, checkpoint.load_tensors(saved[0] / "model.safetensors"), saved[0])
            checkpoint.fill_optimizers(self.model, self.optimizers, saved[0])
        elif start_from is not None:
            self.adopt(start_from)
        self.averaged: dict[str, Tensor] | None = None
        if self.settings.ema:
            moving = checkpoint.load_tensors(saved[0] / "averaged.safetensors") if saved else self.model.state_dict()
            self.averaged = {name: tensor.detach().clone().to(device) for name, tensor in moving.items()}
        loss = TrainingLoss(self.model, self.settings).train()
        self.loss: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.compile(loss) if self.settings.compile else loss
        self.stream = BatchStream(self.data, self.settings.batch_tokens, self.settings.seed, self.state.position)

        # 3. The folder and the log.
        self.log: LogWriter | None = None
        self.ended = False  # a run that has spent its budget may still have been killed before its last words
        if world.leader:
            self.ended = any(isinstance(entry, End) and not entry.signal for entry in read_log(self.run)[-2:])
            best = self.run / "checkpoints" / f"step-{self.state.best_step}"
            if best.exists():
                checkpoint.point(self.run, "best", best)  # ... or between a checkpoint and its name
            replace_file(self.run / "recipe.toml", tables_toml(recipe_tables(self.recipe, absolute=True)))
            if not saved or not (self.run / "vocab").exists():
                with new_folder(self.run / "vocab") as aside:
                    shutil.copytree(recipe.prepared_folder / "vocab", aside, dirs_exist_ok=True)
            board = tensorboard(self.run, self.state.step) if self.settings.tensorboard else None
            self.log = open_log(self.run, self.state.step, board)
        self.session_began = time.perf_counter()
        self.seconds_before = self.state.seconds
        self.window_began = self.now()
        self.window = Window()
        self.bad_in_a_row = 0
        self.spent = 0.0  # share of the budget, before the last update
        self.wish = 0  # a signal that this process has had
        self.signal = 0  # ... or one of the others: what all stop for, after the same update
        # Share of the minutes that are over, by the leader's watch.
        self.clock = self.state.seconds / (60 * self.settings.minutes) if self.settings.minutes else 0.0

    def check_end(self) -> None:
        """Patience alone ends nothing where there is nothing to validate on."""
        settings = self.settings
        limits = (settings.steps, settings.epochs, settings.tokens, settings.flops, settings.minutes)
        if self.valid is None and not any(limits):
            raise NmtError(
                "nothing would ever stop the training: train.patience needs validation lines, and there are none",
                "set train.minutes, train.steps or the like, or name data.valid",
            )

    def adopt(self, origin: Path) -> None:
        """Fine-tuning: another run's weights."""
        folder = find_model(origin)
        checkpoint.fill(self.model, checkpoint.load_tensors(folder / "model.safetensors"), folder)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def fit(self) -> tuple[str, int]:
        self.emit(self.introduction())
        for text in self.overruled:
            self.note(text)
        if self.valid is not None and self.valid.left_out:
            self.note(
                f"{self.valid.left_out:,} validation lines have more pieces than the model has positions: left out"
            )
        if self.state.processes not in (0, self.world.size):
            self.note(f"{self.world.size} processes instead of {self.state.processes}: dropout is another from here on")
        self.state.processes = self.world.size
        reason, ended = self.reason_to_stop(), distributed.from_leader(self.ended, self.world)
        if reason and ended:
            self.watch(AlreadyFinished(reason))
            self.emit(End(self.state.step, reason, 0), shown=False)
            return reason, 0
        self.check_yardstick()
        with self.interruptions():
            while not (reason or self.signal):
                validation_due = self.update()
                if self.state.step % self.settings.log_every == 0:
                    self.log_window()
                if validation_due and not self.bad_in_a_row:  # nothing is kept of weights that may have diverged
                    self.validate()
                reason = self.reason_to_stop()
                if self.world.size == 1:
                    self.signal = self.wish
            self.log_window()
            if reason:
                self.finish()
            self.save()
            if reason and self.bad_in_a_row:
                raise self.diverged()
            if reason and self.world.leader and (self.run / "model").exists():
                self.export()
        stopped_by = self.signal or self.wish  # a wish may come while the last weights are measured and saved
        reason = reason or signal.Signals(stopped_by).name
        self.emit(End(self.state.step, reason, stopped_by))
        distributed.from_leader(None, self.world)  # nobody leaves while the leader writes
        return reason, stopped_by

    def check_yardstick(self) -> None:
        """A best by another metric, or on other lines, cannot be compared with: the best model is measured anew."""
        state, now, model = self.state, yardstick(self.settings), self.run / "model/model.safetensors"
        if state.yardstick and state.yardstick != now:
            self.note(f"best is now by {now}, no longer by {state.yardstick}")
            known = self.valid is not None and distributed.from_leader(model.exists(), self.world)
            weights = checkpoint.load_tensors(model) if known else {}
            weights = {name: tensor.to(self.compute.device) for name, tensor in weights.items()}
            state.best, state.stale = self.measure(weights).value if known else None, 0
        state.yardstick = now

    def reason_to_stop(self) -> str:
        if 0 < self.settings.patience <= self.state.stale:
            return f"no better in {self.settings.patience} validations"
        return next((limit for limit, spent in self.budget().items() if spent >= 1), "")

    def budget(self) -> dict[str, float]:
        """How much of each limit is used up."""
        settings, state = self.settings, self.state
        limits = {
            f"{settings.steps:,} steps": (state.step, settings.steps),
            f"{settings.epochs:g} epochs": (self.stream.epochs, settings.epochs),
            f"{settings.tokens:,} tokens": (state.tokens, settings.tokens),
            f"{settings.flops:.3g} FLOPs": (self.flops(), settings.flops),
        }
        spent = {name: used / limit for name, (used, limit) in limits.items() if limit}
        return {**spent, f"{settings.minutes:g} minutes": self.clock}

    def update(self) -> bool:
        """One step of the optimiser; returns whether it is time to validate."""
        settings, state, window = self.settings, self.state, self.window
        step = state.step + 1
        self.spent = max(self.budget().values())

        # 1. The next micro-batches, and this process's share of them.
        parts = share(self.stream.take(settings.accumulate), self.world.rank, self.world.size)
        seeds = [mix(settings.seed, step, self.world.rank, n) for n in range(len(parts))]  # of dropout
        batches = [(part.read(), seed) for part, seed in zip(parts, seeds, strict=True) if len(part.numbers)]

        # 2. What must be known of all processes before anyone begins: the tokens to divide by, and whether to stop.
        tokens, source_tokens, cells, late, self.clock, stop = self.facts([batch for batch, _ in batches])
        self.signal = (self.wish or signal.SIGTERM) if stop else 0

        # 3. Gradients of the mean loss, added up over micro-batches and processes.
        sums = self.gradients(batches, tokens)
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        distributed.add_up([sums, *gradients], self.world)
        loss, nll, norm = torch.stack([*sums, torch.nn.utils.get_total_norm(gradients)]).tolist()
        scale = self.loss_scale()
        norm /= scale

        # 4. The step itself, unless something overflowed.
        state.step, state.position = step, self.stream.position
        state.tokens, state.source_tokens = state.tokens + tokens, state.source_tokens + source_tokens
        if self.sound(loss, norm):
            self.descend(gradients, norm, scale)
            window.loss, window.nll, window.norm = window.loss + loss, window.nll + nll, window.norm + norm
            window.tokens, window.filled = window.tokens + tokens, window.filled + tokens + source_tokens
            window.cells, window.updates = window.cells + cells, window.updates + 1
        state.seconds = self.now()
        self.watch(Step(step, self.stream.epochs, loss / tokens))
        return late or step % settings.valid_every == 0

    def facts(self, batches: list[Batch]) -> tuple[int, int, int, bool, float, bool]:
        """Target and source tokens and cells of all processes; is validation due, how late is it, a signal there?"""
        settings, now = self.settings, self.now()
        own = [
            sum(batch.tokens for batch in batches),
            sum(batch.source_tokens for batch in batches),
            sum(batch.cells for batch in batches),
            # one clock decides for all
            self.world.leader and 0 < 60 * settings.valid_minutes <= now - self.state.validated_at,
            now / (60 * settings.minutes) if self.world.leader and settings.minutes else 0.0,
            self.wish > 0,
        ]
        if self.world.size > 1:
            tensor = torch.tensor(own, dtype=torch.float64, device=self.compute.device)
            distributed.add_up([tensor], self.world)
            own = tensor.tolist()
        return int(own[0]), int(own[1]), int(own[2]), bool(own[3]), float(own[4]), bool(own[5])

    def gradients(self, batches: list[tuple[Batch, int]], tokens: int) -> Tensor:
        """Leave the gradient in each parameter; returns sums of loss and nll. If memory runs out, in smaller parts."""
        scale = self.loss_scale() / tokens
        while True:
            self.model.zero_grad()
            sums = torch.zeros(2, device=self.compute.device)
            try:
                for batch, seed in batches:
                    torch.manual_seed(seed)  # dropout depends on the step alone
                    for part in batch.parts(self.state.splits):
                        sums += self.backward(part, scale)
                return sums
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                if not out_of_memory(error):
                    raise
            self.split_more(max(len(batch.src) for batch, _ in batches))

    def backward(self, part: Batch, scale: float) -> Tensor:
        """Add to the gradients; a function of its own, so that after a failure nothing holds on to its graph."""
        with self.compute.autocast():
            loss, nll, _ = self.loss(*self.tensors(part))
        (loss * scale).backward()
        return torch.stack([loss.detach(), nll])

    def tensors(self, batch: Batch) -> tuple[Tensor, ...]:
        arrays = (torch.from_numpy(array) for array in (batch.src, batch.tgt_in, batch.tgt_out))
        if self.compute.device.type == "cuda" and self.settings.pin_memory:  # copied while the last kernels still run
            return tuple(array.pin_memory().to(self.compute.device, non_blocking=True) for array in arrays)
        return tuple(array.to(self.compute.device) for array in arrays)

    def split_more(self, rows: int) -> None:
        self.model.zero_grad()
        if self.state.splits >= rows:
            raise NmtError(
                "out of memory even with one sentence at a time",
                "make the model smaller, or leave out long sentences with train.max_length",
            )
        self.state.splits *= 2
        if self.compute.device.type == "cuda":
            torch.cuda.empty_cache()
        self.note(f"out of memory: micro-batches are computed in {self.state.splits} parts from now on, same result")

    def sound(self, loss: float, norm: float) -> bool:
        """Is everything finite? If not, the update is skipped, and too many of those end the training."""
        state, fp16 = self.state, self.compute.precision == "fp16"
        if math.isfinite(loss) and math.isfinite(norm):
            self.bad_in_a_row = 0
            state.good_steps += 1
            if fp16 and state.good_steps % SCALE_UP_AFTER == 0:
                state.loss_scale *= 2
            return True
        if fp16 and math.isfinite(loss) and state.loss_scale > 1:  # the scaled gradient overflowed: find the limit
            state.loss_scale, state.good_steps = state.loss_scale / 2, 0
            return False
        state.skipped += 1
        self.bad_in_a_row += 1
        self.note(f"update {state.step} skipped: its loss or gradient is not finite ({state.skipped} so far)")
        if self.bad_in_a_row >= NON_FINITE_IN_A_ROW:
            raise self.diverged()
        return False

    def diverged(self) -> NmtError:
        hint = "lower train.lr or train.scale, or set train.clip = 1"
        if (self.run / "model").exists():
            hint = f"the last checkpoint in {self.run} stands; --from {self.run} --out NEW begins with its best: {hint}"
        times = f"{self.bad_in_a_row} time" + "s in a row" * (self.bad_in_a_row > 1)
        return NmtError(f"the loss was not finite {times}, up to step {self.state.step}: it diverged", hint)

    def loss_scale(self) -> float:
        """What the loss is multiplied by, so that small gradients do not vanish in fp16."""
        return self.state.loss_scale if self.compute.precision == "fp16" else 1.0

    def descend(self, gradients: list[Tensor], norm: float, scale: float) -> None:
        if scale != 1:
            torch._foreach_div_(gradients, scale)
        if 0 < self.settings.clip < norm:
            torch._foreach_mul_(gradients, self.settings.clip / norm)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        rate = self.rate()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        if self.averaged is not None:
            # A young average follows faster, or it would remember the initialisation.
            decay = min(self.settings.ema, (1 + self.state.step) / (10 + self.state.step))
            own = self.model.state_dict()
            torch._foreach_lerp_(list(self.averaged.values()), [own[name] for name in self.averaged], 1 - decay)

    def rate(self) -> float:
        """Of the last update: by what was spent before it, so that none is made at a rate of 0."""
        return learning_rate(self.state.step, self.spent, self.settings, self.recipe.model.dim)

    # -- validation and saving ---------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Measure the weights that would be kept, keep them if they are the best so far, and save."""
        self.log_window()
        entry, state = self.measure(self.averaged), self.state
        better = self.is_better(entry)
        if better:
            state.best, state.best_step, state.stale = entry.value, state.step, 0
        else:
            state.stale += 1
        state.validated, state.validated_at = state.step, self.now()
        self.emit(replace(entry, best=better))
        if better:
            self.save_model(self.averaged, entry)
        self.save(better)
        state.validated_at = self.window_began = self.now()

    def is_better(self, entry: Valid) -> bool:
        """Than the best so far; a model that has diverged never is."""
        finite = math.isfinite(entry.value) and math.isfinite(entry.loss or 0.0)
        return finite and (self.state.best is None or entry.value > self.state.best)

    def measure(self, weights: dict[str, Tensor] | None) -> Valid:
        """Figures on the validation lines, by all processes."""
        step, began = self.state.step, time.perf_counter()
        self.watch(Validating(step))
        loss = scores = None
        value = float(step)  # with no lines to measure on, the latest is best
        if self.valid is not None:
            with self.in_place(weights):
                measured = self.valid.measure(self.model, self.recipe, self.compute, self.world)
            if measured is not None:
                loss, scores = measured
                value = {"bleu": scores.bleu, "chrf": scores.chrf, "loss": -loss}[self.settings.metric]
        entry = Valid(
            step=step,
            value=value,
            loss=loss,
            ppl=None if loss is None else math.exp(min(loss, 100)),
            bleu=scores.bleu if scores else None,
            chrf=scores.chrf if scores else None,
            signature=scores.signature if scores else None,
            lines=self.valid_lines,
            seconds=time.perf_counter() - began,
            best=False,
        )
        return distributed.from_leader(entry, self.world)

    def finish(self) -> None:
        """The last validation, and the average of the last checkpoints if that is better."""
        if self.state.validated != self.state.step and not self.bad_in_a_row:
            self.validate()
        names = [folder.name for folder in self.validated()[-self.settings.average :]]
        folders = [self.run / "checkpoints" / name for name in distributed.from_leader(names, self.world)]
        if self.settings.average < 2 or not folders:
            return
        mean = {name: tensor.to(self.compute.device) for name, tensor in checkpoint.average(folders).items()}
        entry = self.measure(mean)
        better = self.valid is None or self.is_better(entry)
        self.emit(Average(**{**vars(entry), "best": better}, checkpoints=tuple(names)))
        if better:
            self.save_model(mean, entry)
            self.state.best = entry.value  # to be beaten, if the run is continued

    def export(self) -> None:
        """The model for the fast engine too, where it can express it."""
        if not isinstance(self.model, Transformer):
            return
        if not find_spec("ctranslate2"):
            self.note("ctranslate2 is not installed, so nmt translate will be slower: pip install 'nmt-cli[fast]'")
            return
        folder = self.run / "model" / CTRANSLATE2
        if not folder.exists():
            to_ctranslate2(checkpoint.load_model(self.run), folder)

    @contextmanager
    def in_place(self, weights: dict[str, Tensor] | None) -> Iterator[None]:
        """The model with these weights, ready to translate; without, with its own."""
        own = self.model.state_dict()
        self.model.eval()
        if weights is not None:
            _exchange(own, weights)
        try:
            yield
        finally:
            if weights is not None:
                _exchange(own, weights)
            self.model.train()

    def save_model(self, weights: dict[str, Tensor] | None, entry: Valid) -> None:
        if not self.world.leader:
            return
        scores = ("loss", "ppl", "bleu", "chrf", "signature", "lines")
        about = {
            "recipe": self.recipe.name,
            "step": self.state.step,
            "tokens": self.state.tokens,
            "minutes": round(self.now() / 60, 2),
            "flops": self.flops(),
            "seed": self.settings.seed,
            "from": self.state.origin,
            "data": self.state.data,
            "valid": {key: value for key, value in vars(entry).items() if key in scores and value is not None},
        }
        vocab = self.recipe.prepared_folder / "vocab"
        checkpoint.save_model(self.run, weights or self.model.state_dict(), self.recipe, vocab, about)

    def save(self, best: bool = False) -> None:
        """A checkpoint of this step; if there is one, what has been found out about it since."""
        if self.log is None or self.bad_in_a_row:
            return
        self.log.sync()
        self.state.seconds = self.now()
        folder = self.run / "checkpoints" / f"step-{self.state.step}"
        if folder.exists():
            checkpoint.save_state(self.run, self.state)
        else:
            checkpoint.save_checkpoint(self.run, self.model, self.optimizers, self.averaged, self.state)
        if best:
            checkpoint.point(self.run, "best", folder)
        keep = max(self.settings.keep, self.settings.average)
        checkpoint.remove_old(self.run, self.validated(), keep, self.state.best_step)

    def validated(self) -> list[Path]:
        """Checkpoints, oldest first; not those that a signal left between two validations."""
        steps = {entry.step for entry in read_log(self.run) if type(entry) is Valid}
        return [folder for folder in checkpoint.checkpoints(self.run) if checkpoint.step_of(folder) in steps]

    # -- words and figures -------------------------------------------------------------------------------------------

    def emit(self, entry: Entry, shown: bool = True) -> None:
        """To the log and to whoever watches."""
        if self.log is not None:
            self.log.write(entry)
        if shown:
            self.watch(entry)

    def note(self, text: str) -> None:
        self.emit(Note(self.state.step, text))

    def introduction(self) -> Start:
        return Start(
            step=self.state.step,
            resumed=self.resumed,
            run=str(self.run),
            family=self.recipe.model.family,
            parameters=sum(p.numel() for p in self.parameters),
            pairs=len(self.data.used),
            valid_lines=self.valid_lines,
            device=self.compute.device.type,
            precision=self.compute.precision,
            precision_reason=self.compute.reason,
            processes=self.world.size,
            threads=torch.get_num_threads(),
            seed=self.settings.seed,
            best_bleu=self.state.best
            if self.valid and self.settings.metric == "bleu" and self.state.yardstick == yardstick(self.settings)
            else None,
        )

    @property
    def valid_lines(self) -> int:
        return len(self.valid.sources) if self.valid else 0

    def log_window(self) -> None:
        window, began = self.window, self.window_began
        self.window, self.window_began = Window(), self.now()
        if not window.updates:
            return
        memory = torch.tensor(peak_memory_mb(self.compute.device))
        if self.compute.device.type == "cpu":  # each GPU has its own; the processes on a CPU share one
            distributed.add_up([memory], self.world)
        self.emit(
            TrainEntry(
                step=self.state.step,
                epoch=self.stream.epochs,
                loss=window.loss / window.tokens,
                ppl=math.exp(min(100, window.nll / window.tokens)),
                lr=self.rate(),
                gradient_norm=window.norm / window.updates,
                tokens=self.state.tokens,
                tokens_per_second=window.tokens / max(1e-9, self.window_began - began),
                padding=1 - window.filled / window.cells,
                minutes=self.now() / 60,
                budget_used=max(self.budget().values()),
                flops=self.flops(),
                memory_mb=float(memory),
            )
        )

    def flops(self) -> float:
        passes = 1 if self.settings.consistency == "none" else 2
        return passes * training_flops(self.model, self.state.source_tokens, self.state.tokens)

    def now(self) -> float:
        """Seconds on the run's clock, over all sessions."""
        return self.seconds_before + time.perf_counter() - self.session_began

    @contextmanager
    def interruptions(self) -> Iterator[None]:
        """A first Ctrl-C or SIGTERM is a wish, granted after the update; a second Ctrl-C is an order."""

        def wish(number: int, frame: object) -> None:
            if self.wish and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.wish = number
            self.watch(Stopping())

        before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------------------------------
# Pure functions


def local_processes(recipe: Recipe, threads: int) -> int:
    """How many processes share the work of so many threads of a CPU.

    The operations of a narrow model are too short to be shared among threads: these wait for each other at the end of
    each, hundreds of times in an update, where processes wait a few times. A wide model fills threads, and its weights
    had better be in memory once.
    """
    wanted = recipe.train.processes
    if not wanted and recipe.model.dim < _WIDE:
        most = recipe.train.batch_tokens * recipe.train.accumulate // _SHARE
        wanted = max((size for size in range(1, threads + 1) if threads % size == 0 and size <= most), default=1)
    return max(1, wanted)


def yardstick(settings: Train) -> str:
    """What makes two values of the metric comparable; the search plays no part in the loss."""
    searched = f", beam {settings.valid_beam}" if settings.metric != "loss" else ""
    return f"{settings.metric} of {f'{settings.valid_lines:,}' if settings.valid_lines else 'all'} lines{searched}"


def mix(*numbers: int) -> int:
    """A seed from several numbers, each of which changes it beyond recognition."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def tensorboard(run: Path, step: int) -> Any:
    """A writer of figures for TensorBoard. Figures of later steps, by a killed session, are no longer shown."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise NmtError(
            "train.tensorboard = true needs TensorBoard, which is not installed", "pip install 'nmt-cli[tensorboard]'"
        ) from None
    return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)


def peak_memory_mb(device: torch.device) -> float:
    import resource  # which Windows lacks

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _exchange(own: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Swap the content of two sets of weights."""
    for name, tensor in own.items():
        kept = tensor.clone()
        tensor.copy_(other[name])
        other[name].copy_(kept)
