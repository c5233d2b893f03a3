"""The training loop of `nmt train`. Read `Trainer.fit`, then `Trainer.update`; session.py creates the Trainer.

Everything random in update n depends on the seed, n, the process and the micro-batch alone, so a killed run continues
exactly: a checkpoint holds weights, the optimizers' moments, and the numbers of State.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt_cli.data.augment import Augmenter
from nmt_cli.data.batches import BatchStream, ParallelData
from nmt_cli.errors import NmtError, quoted
from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.files import add_to_record
from nmt_cli.model.base import Seq2Seq, parameters_by_part
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute
from nmt_cli.model.linear import matrix_rate
from nmt_cli.recipe.schema import Augment, Recipe, not_exportable
from nmt_cli.search.quality import NEEDED, write_quality
from nmt_cli.store import checkpoint
from nmt_cli.store.checkpoint import State
from nmt_cli.store.folders import CheckpointFolder, ModelFiles, RunFolder, find_model
from nmt_cli.store.log import Average, End, Entry, LogWriter, Note, Start, Train, Valid
from nmt_cli.text.vocab import load_vocab
from nmt_cli.training import distributed
from nmt_cli.training.ahead import WorkAhead
from nmt_cli.training.budget import Budget, peak_memory_mb
from nmt_cli.training.calibration import calibrate
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.precision import allow_tf32, choose_precision
from nmt_cli.training.resume import check_same_run, data_fingerprint, share_of_paragraphs
from nmt_cli.training.schedule import learning_rate
from nmt_cli.training.shard import on_leader, shard, whole_model
from nmt_cli.training.step import Figures, Updater, mix_seeds
from nmt_cli.training.validation import Validation, evaluating, is_better, measure_name

SKIPPED_IN_A_ROW = 10  # this many skipped updates in a row end the training


@dataclass(frozen=True)
class Step:
    """An update was made."""

    step: int
    epoch: float
    loss: float  # mean loss of a target token, in nats


@dataclass(frozen=True)
class Status:
    """What the session does now: it validates, or it stops after the current update because a signal came."""

    text: str


STOPPING = Status("stopping after this update; Ctrl-C again quits at once")


@dataclass(frozen=True)
class AlreadyFinished:
    """An earlier session used up the budget; this session changes nothing."""

    reason: str


Event = Entry | Step | Status | AlreadyFinished
Watch = Callable[[Event], None]


class Diverged(NmtError):
    """The loss or the gradient was not finite too many times in a row."""


class StopRequest:
    """Remembers a signal, so that training can stop after the current update. A second Ctrl-C stops at once."""

    def __init__(self, on_request: Callable[[], None]) -> None:
        self.signal, self._on_request = 0, on_request
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python handles signals in no other thread
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        self._on_request()


class _Unread(NamedTuple):
    """An update whose figures the host has not read yet."""

    figures: Figures
    step: Step  # its loss is not known yet
    tokens: int
    filled_cells: int
    cells: int


class Trainer:
    """One session of a run, in one of its processes. The constructor reads files and writes none."""

    def __init__(
        self,
        recipe: Recipe,
        world: distributed.World,
        device: torch.device,
        resume_from: CheckpointFolder | None,
        start_from: Path | None,
        watch: Watch | None,
        began: float,
    ) -> None:
        """`recipe` has the [vocab] table of the prepared data (as_prepared). `start_from` is the model of --from.

        `began` is the value of perf_counter() when the session began.
        """
        self.recipe, self.settings, self.world = recipe, recipe.train, world
        self.run = RunFolder(recipe.run_folder)
        self.keep = max(self.settings.keep, self.settings.average)  # number of validated checkpoints to keep
        self.watch: Watch = watch if watch and world.leader else lambda event: None
        self.log: LogWriter | None = None  # only the leader gets a log
        self.resumed = resume_from is not None
        self.state = checkpoint.load_state(resume_from) if resume_from else State(data=data_fingerprint(recipe))
        if resume_from:
            check_same_run(recipe, self.state, start_from)
        elif start_from is not None:
            self.state.origin = str(start_from.resolve())

        # 1. The data.
        self.vocab = load_vocab(recipe.prepared_folder / "vocab")
        limits = (self.settings.max_length, recipe.model.learned_positions - 1)
        longest = min((limit for limit in limits if limit > 0), default=0)
        augmenter = None
        if self.settings.augment != Augment():
            # Capitals have many more pieces, and may need more positions than the model is made for.
            augmenter = Augmenter(self.settings.augment, self.vocab, longest or max(0, recipe.model.max_positions - 1))
        sampling = self.settings.subword_sampling
        pad_to = self.settings.pad_to or (1 if device.type == "cpu" else 8)
        self.data = ParallelData(recipe.prepared_folder, "train", self.vocab, longest, sampling, augmenter, pad_to)
        self.valid = Validation.load(recipe, self.vocab)
        self.valid_lines = len(self.valid.sources) if self.valid else 0
        self.check_data()
        stream = BatchStream(self.data, self.settings.batch_tokens, self.settings.seed, self.state.position)
        pins = device.type != "cpu" and self.settings.pin_memory
        self.ahead = WorkAhead(stream, self.settings.accumulate, world.rank, world.size, pins)
        self.epochs = stream.epochs  # number of passes over the data so far

        # 2. The device. A run keeps the precision that it began with.
        allow_tf32(self.settings)
        choice = ("fp32", "")
        if world.leader:
            wanted = self.state.precision or self.settings.precision
            choice = choose_precision(recipe, wanted, self.vocab.sizes, device)
        if self.state.precision:
            choice = (choice[0], "as the run began")
        self.compute = Compute(device, *distributed.from_leader(choice, world))
        self.state.precision = self.compute.precision

        # 3. The model and its weights.
        torch.manual_seed(self.settings.seed)
        self.model = build_model(recipe.model, *self.vocab.sizes)
        if resume_from:
            checkpoint.fill(self.model, checkpoint.load_tensors(resume_from.weights), resume_from.path)
        elif start_from is not None:
            files = find_model(start_from)
            checkpoint.fill(self.model, checkpoint.load_weights(files), files.path)
        self.objective = TrainingLoss(self.model, self.settings).train()
        self.sharded = self.settings.shard and world.size > 1
        if self.sharded:
            shard(self.objective, device, world)
        else:
            self.model.to(device)
        loss: Any = torch.compile(self.objective) if self.settings.compile else self.objective
        if not self.sharded:
            loss = distributed.share_gradients(loss, world)
        self.updater = Updater(self.model, loss, self.settings, self.compute, self.state, self.note, world)
        if resume_from:
            checkpoint.fill_optimizers(self.model, self.updater.optimizers, resume_from.optimizer)
        if resume_from and self.updater.moving_average is not None:
            averaged = checkpoint.load_tensors(resume_from.moving_average)
            checkpoint.check_weights(self.updater.moving_average, averaged, resume_from.moving_average)
            for name, tensor in averaged.items():
                average = self.updater.moving_average[name]
                average.copy_(checkpoint.placed(tensor, average))
        self.budget = Budget(self.settings, self.state, self.model, began, calibrates=self.valid is not None)
        # All processes must stop after the same update, and use the same learning rate: the leader's clock decides.
        self.budget.share_of_minutes = distributed.from_leader(self.budget.share_of_minutes, world)
        self.unread: deque[_Unread] = deque()  # updates whose figures the host has not read yet
        self.budget_used = 0.0  # share of the budget before the last update
        self.stop_request = StopRequest(lambda: self.watch(STOPPING))
        self.stop_signal = 0  # the signal that all processes stop for after the same update
        self.window: list[float] = [0.0] * 7  # sums over the updates since the last `train` line of the log
        self.window_began = self.budget.seconds()

    def check_data(self) -> None:
        if self.recipe.model.tie == "all" and not self.vocab.joint:
            raise NmtError(
                f'model.tie = "all" needs one vocabulary, but the data in {self.recipe.prepared_folder} have two',
                'set model.tie = "target"',
            )
        settings = self.settings
        limits = (settings.steps, settings.epochs, settings.tokens, settings.flops, settings.minutes)
        if self.valid is None and not any(limits):
            raise NmtError(
                "nothing would ever stop the training: train.patience needs validation lines, and there are none",
                "set a limit such as train.minutes or train.steps, or name validation files with data.valid",
            )

    def fit(self, log: LogWriter | None, notes: Iterable[str] = ()) -> tuple[str, int]:
        """Train until a limit is reached or a signal comes. Returns the reason and the number of the signal, or 0."""
        # A new run makes at least one update, even if its minutes are over already.
        validation_due, reason = False, self.budget.reason_to_stop(self.epochs) if self.resumed else ""
        if reason and self.state.finished:
            self.watch(self.start_entry())
            for text in notes:
                self.watch(Note(self.state.step, text))
            self.watch(AlreadyFinished(reason))
            return reason, 0
        self.log, self.state.finished = log, False
        self.emit(self.start_entry())
        self.tell(notes)
        self.check_measure()
        with self.stop_request, self.ahead:
            if self.state.origin and not self.resumed:
                self.validate()  # the scores before fine-tuning; a worse model is never kept
            self.window_began = self.budget.seconds()
            # After a skipped update, the weights may have diverged. So training does not validate or stop until another
            # update is not skipped: its finite loss shows that they have not.
            while not (reason or self.stop_signal) or self.last_was_skipped():
                validation_due |= self.update()
                if self.state.step % self.settings.log_every == 0:
                    self.log_window()
                if validation_due and not self.last_was_skipped():
                    self.validate()
                    validation_due = False
                reason = self.budget.reason_to_stop(self.epochs)
                if self.world.size == 1:
                    self.stop_signal = self.stop_request.signal
            self.log_window()
            if reason:
                self.finish()
            self.save()
        # A signal can also come while the last weights are validated and saved.
        stopped_by = self.stop_signal or self.stop_request.signal
        reason = reason or signal.Signals(stopped_by).name
        self.emit(End(self.state.step, reason, stopped_by))
        distributed.from_leader(None, self.world)  # the other processes wait until the leader has written
        return reason, stopped_by

    def update(self) -> bool:
        """Make one update. Returns whether a validation is due."""
        settings, state, rank = self.settings, self.state, self.world.rank
        step = state.step + 1
        self.budget_used = self.budget.used(self.epochs)

        # 1. This process's share of the next micro-batches, and a seed of dropout for each.
        work = self.ahead.take()
        batches = [(batch, mix_seeds(settings.seed, step, rank, number)) for number, batch in work.batches]

        # 2. The facts that all processes must agree on, as sums. Only the leader's clock counts, so the others add 0.
        leader = self.world.leader
        facts = self.over_all_processes(
            [
                sum(batch.tokens for batch, _ in batches),
                sum(batch.source_tokens for batch, _ in batches),
                sum(batch.cells for batch, _ in batches),
                leader and self.budget.validation_is_due(),
                self.budget.share_of_minutes_now() if leader else 0.0,
                self.stop_request.signal > 0,
                *self.own_splits(),
            ]
        )
        tokens, source_tokens, cells = (int(fact) for fact in facts[:3])
        validation_due, self.budget.share_of_minutes, stop = facts[3:6]
        self.stop_signal = (self.stop_request.signal or signal.SIGTERM) if stop else 0
        self.agree_on_splits(facts[6:])

        # 3. The update itself.
        self.objective.rewards = settings.reward != "none" and self.budget_used >= settings.reward_after
        state.rewarded_tokens += tokens * self.objective.rewards
        state.step, state.position, self.epochs = step, work.position, work.epochs
        state.tokens, state.source_tokens = state.tokens + tokens, state.source_tokens + source_tokens
        figures = self.updater.update(batches, tokens, self.rate())
        filled_cells = tokens + source_tokens
        self.unread.append(_Unread(figures, Step(step, self.epochs, math.nan), tokens, filled_cells, cells))
        self.read_figures(leave=int(self.updater.late))
        state.seconds = self.budget.seconds()
        return bool(validation_due) or step % settings.valid_every == 0

    def read_figures(self, leave: int = 0) -> None:
        """Read the figures of all updates but the last `leave`. Reading waits for an accelerator."""
        while len(self.unread) > leave:
            unread = self.unread.popleft()
            update = self.updater.read(unread.figures)
            if update.applied:
                figures = (1, update.loss, update.nll, update.gradient_norm, *unread[2:])
                self.window = [total + figure for total, figure in zip(self.window, figures, strict=True)]
            elif self.updater.skipped_in_a_row >= SKIPPED_IN_A_ROW:
                raise self.diverged()
            self.watch(replace(unread.step, loss=update.loss / unread.tokens))

    def last_was_skipped(self) -> bool:
        """Whether the last update was skipped because its loss or gradient was not finite. This reads all figures."""
        self.read_figures()
        return self.updater.skipped_in_a_row > 0

    def over_all_processes(self, numbers: list[float]) -> list[float]:
        """The sum of each number over all processes. Numbers on the CPU wait for no accelerator."""
        if self.world.size == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64)
        distributed.add_up([tensor], self.world)
        return tensor.tolist()

    def own_splits(self) -> list[float]:
        """Zeros, and this process's number of parts at its rank. The sum over all processes has all numbers."""
        return [float(self.state.splits * (rank == self.world.rank)) for rank in range(self.world.size)]

    def agree_on_splits(self, splits: list[float]) -> None:
        """Compute micro-batches in as many parts as the process that needs the most.

        Each part draws its own dropout. So a resumed run is exact only if the numbers of all processes are saved, and
        a checkpoint has one number.
        """
        if max(splits) > self.state.splits:
            self.updater.split(int(max(splits)))

    def rate(self) -> float:
        """The learning rate of the last update, by the budget used before it: no update has a rate of 0."""
        return learning_rate(self.state.step, self.budget_used, self.settings, self.recipe.model.dim)

    def diverged(self) -> Diverged:
        hint = "lower train.lr or train.scale, or set train.clip = 1"
        if self.run.model.exists():
            best = f"--from {quoted(self.run.path)} --out NEW starts with the best weights"
            hint += f"; the last checkpoint is intact, and {best}"
        times = f"{self.updater.skipped_in_a_row} times in a row"
        return Diverged(f"training diverged: the loss was not finite {times}, up to step {self.state.step}", hint)

    @contextmanager
    def evaluated(self, weights: dict[str, Tensor] | None) -> Iterator[Seq2Seq]:
        """The model in evaluation mode, with other weights in place of its own if any are given."""
        if self.sharded:
            weights = weights or self.model.state_dict()
            yield whole_model(self.recipe.model, self.vocab.sizes, weights, self.compute.device)
        else:
            with evaluating(self.model, weights):
                yield self.model

    def measure(self, weights: dict[str, Tensor] | None) -> Valid:
        """Validate the model, with these weights in place of its own if any are given."""
        self.watch(Status(f"step {self.state.step:,}  validating ..."))
        began = time.perf_counter()
        loss = ppl = bleu = chrf = signature = measured = None
        value = float(self.state.step)  # without validation lines, later weights count as better
        if self.valid is not None:
            with self.evaluated(weights) as model:
                measured = self.valid.measure(model, self.recipe, self.compute, self.world)
        if measured is not None:
            loss, scores = measured
            bleu, chrf, signature, ppl = scores.bleu, scores.chrf, scores.signature, math.exp(min(loss, 100))
            value = {"bleu": bleu, "chrf": chrf, "loss": -loss}[self.settings.metric]
        seconds = time.perf_counter() - began
        entry = Valid(self.state.step, value, loss, ppl, bleu, chrf, signature, self.valid_lines, seconds, best=False)
        return distributed.from_leader(entry, self.world)

    def validate(self) -> None:
        """Validate the weights that would be kept, keep them if they are the best so far, and save a checkpoint."""
        self.log_window()
        began = self.budget.seconds()
        state, weights = self.state, self.updater.moving_average
        entry = self.measure(weights)
        entry = replace(entry, best=is_better(entry, state.best_value))
        if entry.best:
            state.best_value, state.best_step, state.validations_since_best = entry.value, state.step, 0
        else:
            state.validations_since_best += 1
        state.validated_steps = [*state.validated_steps, state.step][-self.keep :]
        state.last_validation_seconds = self.budget.seconds()
        self.emit(entry)
        if entry.best:
            self.save_model(weights, entry)
        self.save()
        state.last_validation_seconds = self.window_began = self.budget.seconds()
        state.validation_duration = state.last_validation_seconds - began

    def check_measure(self) -> None:
        """If the metric, the lines or the beam have changed since the last session, measure the best model again."""
        state, measure, files = self.state, measure_name(self.settings), ModelFiles(self.run.model)
        if state.best_measure and state.best_measure != measure:
            self.note(f"the best model is now selected by {measure}, no longer by {state.best_measure}")
            state.best_value, state.validations_since_best = None, 0
            if self.valid is not None and distributed.from_leader(files.weights.exists(), self.world):
                state.best_value = self.measure(checkpoint.load_weights(files)).value
        state.best_measure = measure

    def finish(self) -> None:
        """Validate the last weights and the average of the last checkpoints, calibrate and export the best."""
        if self.state.step not in self.state.validated_steps:
            expected = self.state.validation_duration
            self.validate()
            # A shorter duration than expected would leave some seconds of train.minutes, and the same command would
            # train on. Keep the expected duration, so that the run stays finished.
            self.state.validation_duration = max(expected, self.state.validation_duration)
        if self.settings.average > 1:
            self.average()
        if distributed.from_leader(self.run.model.exists(), self.world):
            self.calibrate()
            if self.world.leader:
                self.export()
        self.state.finished = True

    def average(self) -> None:
        """Keep the mean of the last validated checkpoints if it is better than the best checkpoint."""
        folders = [folder for folder in self.run.saved_checkpoints() if folder.step in self.state.validated_steps]
        steps = [folder.step for folder in folders[-self.settings.average :]]
        folders = [self.run.checkpoint(step) for step in distributed.from_leader(steps, self.world)]
        if not folders:
            return
        mean = checkpoint.average(folders)
        entry = self.measure(mean)
        best = self.valid is None or is_better(entry, self.state.best_value)
        names = tuple(folder.path.name for folder in folders)
        self.emit(Average(**{**vars(entry), "best": best}, checkpoints=names))
        if best:
            self.save_model(mean, entry)
            self.state.best_value = entry.value  # a continued run must beat this value

    def calibrate(self) -> None:
        """Write quality.json into the model folder, unless the model is one of an earlier session that has it."""
        files = ModelFiles(self.run.model)
        if self.valid is None:
            return
        if not distributed.from_leader(files.quality.exists(), self.world):
            self.write_quality(files)
        if self.world.leader and files.quality.exists():
            add_to_record(files.about, files.quality.name)

    def write_quality(self, files: ModelFiles) -> None:
        self.watch(Status(f"step {self.state.step:,}  calibrating ..."))
        with self.evaluated(checkpoint.load_weights(files)) as model:
            seconds = self.budget.seconds_for_calibration()
            quality = calibrate(model, self.recipe, self.vocab, self.compute, self.world, seconds)
        if quality is not None:
            write_quality(files.quality, quality)
        elif self.world.leader:
            self.note(f"the model gives no confidence, because it takes {NEEDED} to learn one")

    def export(self) -> None:
        """Write the model for CTranslate2 too, if CTranslate2 knows its architecture."""
        if not_exportable(self.recipe.model):
            return
        if not find_spec("ctranslate2"):
            self.note("ctranslate2 is not installed, so nmt translate will be slower: pip install ctranslate2")
            return
        folder = ModelFiles(self.run.model).ctranslate2
        if not folder.exists():
            to_ctranslate2(checkpoint.load_model(self.run.path), folder)

    def save_model(self, weights: dict[str, Tensor] | None, entry: Valid) -> None:
        weights = on_leader(weights or self.model.state_dict(), self.world)
        if not self.world.leader:
            return
        scores = ("loss", "ppl", "bleu", "chrf", "signature", "lines")
        about = {
            "recipe": self.recipe.name,
            "step": self.state.step,
            "tokens": self.state.tokens,
            "minutes": round(self.budget.seconds() / 60, 2),
            "flops": self.budget.flops(),
            "seed": self.settings.seed,
            "from": self.state.origin,
            "data": self.state.data,
            "several_sentences": share_of_paragraphs(self.recipe),
            "valid": {name: value for name in scores if (value := getattr(entry, name)) is not None},
        }
        vocab = self.recipe.prepared_folder / "vocab"
        checkpoint.save_model(self.run.path, weights, self.recipe, vocab, about)

    def save(self) -> None:
        """Write a checkpoint of this step. If there is one already, only its state has changed since."""
        self.agree_on_splits(self.over_all_processes(self.own_splits()))
        folder = self.run.checkpoint(self.state.step)
        is_new, updater = distributed.from_leader(not folder.path.exists(), self.world), self.updater
        if is_new:  # all processes have a part of each tensor if the model is sharded
            weights = on_leader(self.model.state_dict(), self.world)
            moments = on_leader(checkpoint.optimizer_tensors(self.model, updater.optimizers), self.world)
            average = on_leader(updater.moving_average, self.world) if updater.moving_average else None
        if self.log is None:
            return
        self.log.sync()
        self.state.seconds, self.state.scaler = self.budget.seconds(), updater.scaler.state_dict()
        if is_new:
            checkpoint.save_checkpoint(self.run, weights, moments, average, self.state)
        else:
            checkpoint.save_state(folder, self.state)
        checkpoint.set_links(self.run, self.state)
        checkpoint.remove_old_checkpoints(self.run, self.state, self.keep)

    def emit(self, entry: Entry) -> None:
        if self.log is not None:
            self.log.write(entry)
        self.watch(entry)

    def note(self, text: str) -> None:
        self.emit(Note(self.state.step, text))

    def tell(self, notes: Iterable[str]) -> None:
        """Note everything that the reader should know before the first update."""
        for text in notes:
            self.note(text)
        if self.valid is not None and self.valid.left_out:
            count = f"{self.valid.left_out:,} validation lines"
            self.note(f"{count} are left out: they have more pieces than the model has positions")
        before, now = self.state.processes, self.world.size
        if before not in (0, now):
            change = f"resumed with {now} processes instead of {before}"
            self.note(f"{change}: results are no longer bit-for-bit the same as with {before}")
        self.state.processes = now

    def start_entry(self) -> Start:
        settings, state = self.settings, self.state
        by_bleu = self.valid is not None and settings.metric == "bleu" and state.best_measure == measure_name(settings)
        return Start(
            step=state.step,
            resumed=self.resumed,
            run=str(self.run.path),
            family=self.recipe.model.family,
            parameters=parameters_by_part(self.model).total(),
            pairs=len(self.data.used),
            valid_lines=self.valid_lines,
            device=self.compute.device.type,
            precision=self.compute.precision,
            precision_reason=self.compute.reason,
            processes=self.world.size,
            threads=torch.get_num_threads(),
            seed=settings.seed,
            steps=settings.steps,
            rate=matrix_rate(self.compute.device, torch.get_num_threads(), self.settings.tf32) * self.world.size,
            best_bleu=state.best_value if by_bleu else None,
        )

    def log_window(self) -> None:
        self.read_figures()
        updates, loss, nll, gradient_norm, tokens, filled_cells, cells = self.window
        began, self.window, self.window_began = self.window_began, [0.0] * 7, self.budget.seconds()
        if not updates:
            return
        memory = [peak_memory_mb(self.compute.device)]
        if self.compute.device.type == "cpu":  # the processes on a CPU share its memory; each GPU has its own
            memory = self.over_all_processes(memory)
        self.emit(
            Train(
                step=self.state.step,
                epoch=self.epochs,
                loss=loss / tokens,
                ppl=math.exp(min(100, nll / tokens)),
                lr=self.rate(),
                gradient_norm=gradient_norm / updates,
                tokens=self.state.tokens,
                tokens_per_second=tokens / max(1e-9, self.window_began - began),
                padding=1 - filled_cells / cells,
                minutes=self.budget.seconds() / 60,
                budget_used=self.budget.used(self.epochs),
                flops=self.budget.flops(),
                memory_mb=memory[0],
            )
        )
