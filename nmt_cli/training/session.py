"""`nmt train` calls `train`, which starts the processes. `_session` is the work of each process.

A session checks and reads everything, then it writes. An error therefore leaves an existing run as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from nmt_cli.errors import NmtError
from nmt_cli.files import exclusive, new_folder, replace_file
from nmt_cli.model.device import choose_device, keep_freed_memory
from nmt_cli.recipe.load import open_recipe, recipe_tables, tables_toml
from nmt_cli.recipe.options import with_options
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store import checkpoint
from nmt_cli.store.folders import CheckpointFolder, RunFolder
from nmt_cli.store.log import LogWriter, Valid, best_validation, read_log
from nmt_cli.text.vocab import copy_vocab_files
from nmt_cli.training import distributed
from nmt_cli.training.plan import Plan, as_begun, forecast_of_rest, make_plan
from nmt_cli.training.resume import (
    as_prepared,
    check_origin,
    check_prepared,
    data_fingerprint,
    last_good_checkpoint,
)
from nmt_cli.training.trainer import Status, Trainer, Watch

_OTHER = "another nmt train"


@dataclass(frozen=True)
class Result:
    """How a session ended."""

    run: Path
    reason: str  # the limit that was reached, or the name of the signal
    signal: int  # number of the signal that stopped the session; 0 if the run is finished
    best: Valid | None  # the validation of the weights in RUN/model


class Interrupted(Exception):
    """A signal has stopped one of several trainings. The same command continues it."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.reason)
        self.signal = result.signal


def train(
    recipe: Recipe | str | Path,
    *,
    out: str | Path | None = None,
    minutes: float | None = None,
    set: Mapping[str, Any] | None = None,
    start_from: str | Path | None = None,
    force: bool = False,
    watch: Watch | None = None,
    began: float | None = None,
) -> Result:
    """Train the model of a recipe (its name, its file, a folder that holds one, or a Recipe), or resume its run.

    `set` changes keys of the recipe: {"train.warmup": 500}. `start_from` names a run or model whose weights training
    starts from. `force` renames an existing run and starts again. `watch` is called with every event; None is silent.
    `began` is the value of perf_counter() at which the minutes begin; None: now.
    """
    began = perf_counter() if began is None else began
    options = {"train.out": ("--out", str(out) if out else None), "train.minutes": ("--minutes", minutes)}
    recipe = open_recipe(recipe, with_options(options, set))
    start_from = Path(start_from) if start_from is not None else None
    device, threads = choose_device(recipe.train.device), torch.get_num_threads()
    world = distributed.join(device)
    alone = world.size == 1 and device.type == "cpu" and distributed.is_available()
    try:
        if world.leader:
            check_run_folder(RunFolder(recipe.run_folder))
            resumes = bool(RunFolder(recipe.run_folder).saved_checkpoints()) and not force
            check_prepared(recipe, resumes, lambda text: watch(Status(text)) if watch else None)
        plan = plan_session(recipe, device, start_from, force, world) if world.leader else Plan(recipe, [])
        plan = distributed.from_leader(plan, world)
        size = local_processes(plan.recipe, threads) if alone else 1
        job = partial(_session, plan, device, start_from, force, max(1, threads // size), began)
        if size > 1:
            return distributed.with_workers(size, partial(job, watch), partial(job, None))
        return job(watch, world)
    except RuntimeError as error:
        distributed.raise_if_peer_is_gone(error)
        raise
    finally:
        distributed.leave(world)
        torch.set_num_threads(threads)


def check_run_folder(run: RunFolder) -> None:
    """Refuse a folder that is no run but has files of the same names, such as a recipe or an imported model.

    They would be replaced. --force renames a run only.
    """
    if run.log.exists() or run.saved_checkpoints():
        return
    names = [path.name for path in (run.recipe, run.vocab, run.model) if path.exists()]
    if names:
        raise NmtError(
            f"{run.path} holds {' and '.join(names)} but no log.jsonl, so it is not a run of nmt train",
            "choose another folder with --out; --force starts only runs again",
        )


def plan_session(
    recipe: Recipe, device: torch.device, start_from: Path | None, force: bool, world: distributed.World
) -> Plan:
    """The plan of a new run. A run that is continued keeps the settings that it began with.

    A run that is continued needs no model of --from: its checkpoints have all weights.
    """
    data_fingerprint(recipe)  # report missing data before anything else
    recipe = as_prepared(recipe)
    is_forced = force and not _was_forced(world)
    if RunFolder(recipe.run_folder).saved_checkpoints() and not is_forced:
        recipe = as_begun(recipe) if recipe.train.auto else recipe
        return Plan(recipe, forecast_of_rest(recipe))
    keep_freed_memory()
    plan = make_plan(recipe, device, world.size, start_from)
    if start_from is not None:
        check_origin(plan.recipe, start_from, is_forced)
    return plan


def _was_forced(world: distributed.World) -> bool:
    """torchrun may restart this process: --force counts only once."""
    return world.store is not None and world.store.check(["forced"])


def local_processes(recipe: Recipe, threads: int) -> int:
    """The number of processes that share the work of this many threads of a CPU."""
    wanted = recipe.train.processes
    # The operations of a narrow model are too short for threads: processes train it faster (docs/performance.md). Each
    # process needs at least 512 tokens of a batch.
    if not wanted and recipe.model.dim < 512:
        most = recipe.train.batch_tokens * recipe.train.accumulate // 512
        wanted = max((size for size in range(1, threads + 1) if threads % size == 0 and size <= most), default=1)
    return max(1, wanted)


def _session(
    plan: Plan,
    device: torch.device,
    start_from: Path | None,
    force: bool,
    threads: int,
    began: float,
    watch: Watch | None,
    world: distributed.World,
) -> Result:
    recipe = plan.recipe
    torch.set_num_threads(threads)
    keep_freed_memory()
    run = RunFolder(recipe.run_folder)
    log: LogWriter | None = None
    resume_step: int | None = None
    damaged: dict[CheckpointFolder, str] = {}
    with ExitStack() as stack:
        # 1. Checks, before anything is written.
        if world.leader:
            data_fingerprint(recipe)
            force = force and not _was_forced(world)
            stack.enter_context(exclusive(run.lock, _OTHER))
            good, damaged = last_good_checkpoint(run) if not force else (None, {})
            resume_step = good.step if good else None
        notes = list(plan.lines)
        resume_step = distributed.from_leader(resume_step, world)
        resume_from = None if resume_step is None else run.checkpoint(resume_step)
        trainer = Trainer(recipe, world, device, resume_from, start_from, watch, began)

        # 2. The folder of the run.
        if world.leader:
            make_board = _summary_writer() if recipe.train.tensorboard else None
            if force and run.is_begun():
                run.remove_leftovers()
                folder, old = run.path.resolve(), run.old_name()
                folder.rename(old)
                folder.mkdir()
                notes.append(f"the old run was renamed to {old}")
                stack.enter_context(exclusive(run.lock, _OTHER))  # the first lock file moved with the old run
            if world.store:
                world.store.set("forced", "1")
            for bad, reason in damaged.items():
                aside = bad.path.rename(bad.damaged_name())
                goes_on = f"training continues from step {resume_step}"
                notes.append(f"a checkpoint is damaged: {reason}; it was renamed to {aside.name}, and {goes_on}")
            _write_run_files(run, trainer)
            step = trainer.state.step
            # purge_step hides the figures that a killed session wrote after the last checkpoint.
            board = make_board(str(run.tensorboard), purge_step=step + 1) if make_board else None
            read_log(run.path, on_damage=notes.append)
            log = LogWriter(run.path, step, board)
            stack.callback(log.close)

        # 3. The training.
        reason, stopped_by = trainer.fit(log, notes)
        return Result(run.path, reason, stopped_by, best_validation(read_log(run.path)))


def _write_run_files(run: RunFolder, trainer: Trainer) -> None:
    run.log.touch()  # first, because a folder without a log is no run (check_run_folder)
    run.remove_leftovers()
    checkpoint.set_links(run, trainer.state)  # a killed session may have left them as they were
    replace_file(run.recipe, tables_toml(recipe_tables(trainer.recipe, absolute=True)))
    if not trainer.resumed or not run.vocab.exists():
        with new_folder(run.vocab) as temporary:
            copy_vocab_files(trainer.recipe.prepared_folder / "vocab", temporary)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        problem = "train.tensorboard = true needs TensorBoard, which is not installed"
        raise NmtError(problem, "pip install 'nmt-cli[tensorboard]'") from None
    return SummaryWriter
