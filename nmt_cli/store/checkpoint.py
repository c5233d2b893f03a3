"""Checkpoints and models on disk: safetensors, JSON and TOML, never pickle.

Each folder appears whole or not at all, whenever the process is killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nmt_cli import __version__
from nmt_cli.data.batches import Position
from nmt_cli.errors import NmtError, quoted
from nmt_cli.files import (
    check_files,
    check_regular,
    new_folder,
    read_json,
    read_record,
    remove_folder,
    sync,
    write_record,
)
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.build import build_model
from nmt_cli.recipe.load import recipe_tables, tables_toml
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.folders import CheckpointFolder, ModelFiles, RunFolder, open_model
from nmt_cli.store.log import check_types
from nmt_cli.text.lines import write_text
from nmt_cli.text.vocab import Vocab, copy_vocab_files


@dataclass
class State:
    """How far a training has come, apart from tensors: state.json of a checkpoint, which also has checksums."""

    step: int = 0
    position: Position = field(default_factory=Position)  # place in the training data
    tokens: int = 0
    source_tokens: int = 0
    rewarded_tokens: int = 0  # target tokens of updates with train.reward
    seconds: float = 0.0  # duration of all sessions together
    best_value: float | None = None  # best value of the metric so far
    best_measure: str = ""  # metric, lines and beam of best_value (validation.measure_name)
    best_step: int = 0
    validations_since_best: int = 0
    validated_steps: list[int] = field(default_factory=list)  # steps of validated checkpoints, oldest first
    last_validation_seconds: float = 0.0  # value of `seconds` at the last validation
    validation_duration: float = 0.0  # seconds of the last validation, with saving
    skipped: int = 0  # updates with a non-finite loss or gradient
    splits: int = 1  # parts that a micro-batch is computed in, after memory ran out
    scaler: dict[str, float] = field(default_factory=dict)  # state of torch.amp.GradScaler, with fp16
    processes: int = 0  # number of processes in the last session
    precision: str = ""
    data: str = ""  # fingerprint of the prepared data
    origin: str = ""  # the model that --from named
    finished: bool = False  # the budget is used up, and the last weights are validated, averaged and exported


_OTHER_WEIGHTS = "use an intact copy of the model, or train it again"


def save_checkpoint(
    run: RunFolder,
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    moving_average: Mapping[str, Tensor] | None,
    state: State,
) -> None:
    """`moments` are those of optimizer_tensors."""
    with new_folder(run.checkpoint(state.step).path) as temporary:
        files = CheckpointFolder(temporary)
        save_tensors(weights, files.weights)
        save_tensors(moments, files.optimizer)
        if moving_average is not None:
            save_tensors(moving_average, files.moving_average)
        write_record(files.state, asdict(state))


def save_state(folder: CheckpointFolder, state: State) -> None:
    """Write the state of a checkpoint again. The checksums of its other files stay as they were."""
    files = read_json(folder.state, "the checkpoint's").get("files", {}) if folder.state.exists() else {}
    write_record(folder.state, asdict(state), files)


def set_links(run: RunFolder, state: State) -> None:
    """Point checkpoints/best and checkpoints/last at their checkpoints, each in one step. No link points nowhere."""
    for name, step in ((run.best, state.best_step), (run.last, state.step)):
        temporary, folder = name.with_name(f".{name.name}.tmp"), run.checkpoint(step)
        with suppress(OSError):  # nmt itself never reads the links, so a file system without links is not an error
            temporary.unlink(missing_ok=True)
            if name.is_dir() and not name.is_symlink():  # a program that follows links has copied the run
                if not _has_twin(run, CheckpointFolder(name)):
                    continue
                remove_folder(name)
            if folder.path.exists():
                temporary.symlink_to(folder.path.name)
                temporary.replace(name)
            elif not name.exists():
                name.unlink()
            sync(name.parent)


def _has_twin(run: RunFolder, copy: CheckpointFolder) -> bool:
    """Whether a folder in the place of a link is a copy of a checkpoint that is still there."""
    states = [folder.state for folder in run.saved_checkpoints() if folder.state.is_file()]
    return copy.state.is_file() and copy.state.read_bytes() in [state.read_bytes() for state in states]


def remove_old_checkpoints(run: RunFolder, state: State, keep: int) -> None:
    """Keep the last `keep` validated checkpoints, the best one and the last one."""
    saved = run.saved_checkpoints()
    kept = {state.best_step, *(folder.step for folder in saved[-1:]), *state.validated_steps[-keep:]}
    for folder in saved:
        if folder.step not in kept:
            remove_folder(folder.path)


def load_state(folder: CheckpointFolder) -> State:
    table = read_record(folder.state, "the checkpoint's")
    table.pop("files", None)
    try:
        state = State(**{**table, "position": Position(**table["position"])})
        check_types(state)
        check_types(state.position)
        if not all(isinstance(step, int) for step in state.validated_steps):
            raise TypeError("validated_steps has another type")
        if min(asdict(state.position).values()) < 0:
            raise TypeError("position has a negative number")
    except (TypeError, KeyError) as error:
        hint = "start a new run with --out or --force"
        raise NmtError(f"{folder.state} was written by another version of nmt: {error}", hint) from None
    if folder.is_numbered and state.step != folder.step:
        hint = f"nmt verify {quoted(folder.path.parent.parent)} lists the intact checkpoints"
        raise NmtError(f"{folder.state} is damaged: it has step {state.step}", hint)
    return state


def check_checkpoint(folder: CheckpointFolder) -> None:
    """Compare the checksums of all files of a checkpoint. Checkpoints of older versions have none."""
    files = read_record(folder.state, "the checkpoint's").get("files", {})
    check_files(folder.path, files, f"nmt verify {quoted(folder.path.parent.parent)} lists the intact checkpoints")


def damage_of(folder: CheckpointFolder) -> str:
    """The reason why training cannot continue from a checkpoint; empty if it can."""
    try:
        check_checkpoint(folder)
        load_state(folder)
        for path in (folder.weights, folder.optimizer, folder.moving_average):
            if path.exists() or path != folder.moving_average:
                load_tensors(path)
    except NmtError as error:
        return error.message
    return ""


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as error:  # safetensors wraps the errors of the operating system
        hint = "make room on the disk; the files of earlier saves are intact"
        raise NmtError(f"{path} cannot be written: {error}", hint) from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        check_regular(path)
        path.open("rb").close()  # safetensors would report a file that must not be read as missing
        return load_file(path)
    except PermissionError:
        raise
    except FileNotFoundError:
        raise NmtError(f"{path} is missing", "the folder is incomplete; name another checkpoint or run") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise NmtError(f"{path} cannot be read: {error}", "it is damaged, or not a safetensors file") from None


def load_weights(files: ModelFiles) -> dict[str, Tensor]:
    """The weights of a model folder, after their checksum was compared."""
    open_model(files.path).check_weights()
    return load_tensors(files.weights)


def fill(model: nn.Module, tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Put weights into a model. An error lists the tensors that do not fit."""
    check_weights(model.state_dict(), tensors, origin)
    model.load_state_dict(tensors)


def check_weights(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Refuse weights with other names or shapes, and weights that are not finite floating-point numbers."""
    wrong = sorted(set(expected) ^ set(tensors)) + [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(expected[name].shape)}"
        for name in expected
        if name in tensors and expected[name].shape != tensors[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        hint = "use the [model] and [vocab] settings that the weights were trained with"
        raise NmtError(f"the weights in {origin} belong to another model: {', '.join(wrong[:3])}{more}", hint)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise NmtError(f"the weights in {origin} are damaged: {name} has the type {kind}", _OTHER_WEIGHTS)
        # A NaN is the minimum and the maximum of its tensor. isfinite() of the whole tensor would take more memory.
        if tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise NmtError(f"the weights in {origin} are damaged: {name} has NaN or infinity", _OTHER_WEIGHTS)


def average(folders: list[CheckpointFolder]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights, or of their moving averages if they have them."""
    mean: dict[str, Tensor] = {}
    for folder in folders:
        check_checkpoint(folder)
        path = folder.moving_average if folder.moving_average.exists() else folder.weights
        for name, tensor in load_tensors(path).items():
            mean[name] = mean.get(name, 0) + tensor / len(folders)
    return mean


def optimizer_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Moments and step counts, named after their parameters: `exp_avg/encoder.0...`."""
    return {
        f"{kind}/{name}": tensor
        for name, parameter in model.named_parameters()
        for optimizer in optimizers
        for kind, tensor in optimizer.state.get(parameter, {}).items()
    }


def fill_optimizers(model: nn.Module, optimizers: list[torch.optim.Optimizer], path: Path) -> None:
    owners = {id(p): optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    parameters = dict(model.named_parameters())
    for key, tensor in load_tensors(path).items():
        kind, _, name = key.partition("/")
        if name not in parameters:
            raise NmtError(f"{path} belongs to another model: {name}", "start a new run with --out or --force")
        # The fused kernel of Adam needs its step counts on the device of the weights, like the moments.
        parameter = parameters[name]
        if tensor.shape not in (parameter.shape, ()):
            hint = "start a new run with --out or --force"
            raise NmtError(f"{path} belongs to another model: {key} is {tuple(tensor.shape)}", hint)
        owners[id(parameter)].state[parameter][kind] = placed(tensor, parameter)


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor on the device of `like`; only the part of this process if `like` is sharded (training/shard.py)."""
    tensor = tensor.to(like.device)
    if not tensor.dim() or not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements)  # type: ignore[attr-defined]


def save_model(
    run: Path, weights: Mapping[str, Tensor], recipe: Recipe, vocab_folder: Path, about: dict[str, Any]
) -> None:
    """Write RUN/model: a folder that translates wherever it is moved."""
    with new_folder(RunFolder(run).model) as temporary:
        copy_vocab_files(vocab_folder, ModelFiles(temporary).vocab)
        save_model_files(temporary, weights, recipe, about)


def save_model_files(folder: Path, weights: Mapping[str, Tensor], recipe: Recipe, about: dict[str, Any]) -> None:
    """Write the files of a model into a folder that has a vocabulary already."""
    files = ModelFiles(folder)
    save_tensors(weights, files.weights)
    write_text(files.recipe, tables_toml(recipe_tables(without_paths(recipe))))
    write_record(files.about, {"nmt": __version__, **about})


def without_paths(recipe: Recipe) -> Recipe:
    """The same experiment without the places of its files."""
    return replace(
        recipe,
        data=replace(recipe.data, train=(), valid=(), test=(), folder=None, prepared=None),
        vocab=replace(recipe.vocab, reuse=None),
        train=replace(recipe.train, out=None),
    )


@dataclass(frozen=True)
class Trained:
    """A model that can translate, as it was loaded from disk."""

    model: Seq2Seq
    vocab: Vocab
    recipe: Recipe
    about: dict[str, Any]


def load_model(path: Path, device: torch.device | str = "cpu", verify: bool = True) -> Trained:
    """Load a model for translation. `verify` compares the checksums of its files first."""
    folder = open_model(path, verify)
    if not ModelFiles(folder.path).weights.exists():
        problem = f"{path} is an imported CTranslate2 model, which can only translate"
        raise NmtError(
            problem, "use nmt translate with --engine ctranslate2, without options that need the torch engine"
        )
    if verify:
        folder.check_weights()
    tensors = load_tensors(ModelFiles(folder.path).weights)
    with torch.device("meta"):  # takes no memory, however large the recipe says that the model is
        model = build_model(folder.recipe.model, *folder.vocab.sizes)
    check_weights(model.state_dict(), tensors, folder.path)
    model.to_empty(device=device).load_state_dict(tensors)
    return Trained(model.eval(), folder.vocab, folder.recipe, folder.about)
