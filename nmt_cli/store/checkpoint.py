"""What a run leaves on disk, all of it safetensors, JSON and TOML, and each folder there whole or not at all.

RUN/recipe.toml                  the resolved recipe
RUN/vocab/                       the pieces
RUN/log.jsonl                    every figure
RUN/checkpoints/step-N/          model.safetensors, optimizer.safetensors, state.json; averaged.safetensors with EMA
RUN/checkpoints/best, last       links to two of them
RUN/model/                       all that translation needs (model_folder.py)
"""

from __future__ import annotations

import json
import shutil
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
from nmt_cli.errors import NmtError
from nmt_cli.files import new_folder, read_json, replace_file, sync
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.build import build_model
from nmt_cli.recipe.load import recipe_tables, tables_toml
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.model_folder import open_model
from nmt_cli.text.lines import write_text
from nmt_cli.text.vocab import Vocab


@dataclass
class State:
    """Where training stands, apart from tensors."""

    step: int = 0
    position: Position = field(default_factory=Position)
    tokens: int = 0
    source_tokens: int = 0
    seconds: float = 0.0
    best: float | None = None  # value of the metric
    yardstick: str = ""  # what it was measured by
    best_step: int = 0
    stale: int = 0  # validations since
    skipped: int = 0  # updates with a non-finite loss
    splits: int = 1  # micro-batches are cut into so many parts, since memory ran out
    loss_scale: float = 2.0**16  # of fp16
    good_steps: int = 0  # since the scale changed
    validated: int = 0  # the last step that was
    validated_at: float = 0.0  # ... when, in seconds
    processes: int = 0  # that shared the work last
    precision: str = ""
    data: str = ""  # fingerprint of the prepared data
    origin: str = ""  # the model that it was started from, with --from


def checkpoints(run: Path) -> list[Path]:
    """step-N folders, oldest first."""
    return sorted((path for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdigit()), key=step_of)


def step_of(folder: Path) -> int:
    return int(folder.name[5:])


def save_checkpoint(
    run: Path,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    averaged: dict[str, Tensor] | None,
    state: State,
) -> Path:
    folder = run / "checkpoints" / f"step-{state.step}"
    with new_folder(folder) as aside:
        save_tensors(_on_cpu(model.state_dict()), aside / "model.safetensors")
        save_tensors(_optimizer_tensors(model, optimizers), aside / "optimizer.safetensors")
        if averaged is not None:
            save_tensors(_on_cpu(averaged), aside / "averaged.safetensors")
        write_text(aside / "state.json", _json(state))
    point(run, "last", folder)
    return folder


def save_state(run: Path, state: State) -> None:
    """In the checkpoint of its step, which is there."""
    replace_file(run / "checkpoints" / f"step-{state.step}" / "state.json", _json(state))


def _json(state: State) -> str:
    return json.dumps(asdict(state), indent=1) + "\n"


def point(run: Path, name: str, folder: Path) -> None:
    """checkpoints/best or last -> step-N, in one step. For people alone: some file systems know no links."""
    link = run / "checkpoints" / name
    aside = link.with_name(f".{name}.tmp")
    with suppress(OSError):
        aside.unlink(missing_ok=True)
        aside.symlink_to(folder.name)
        aside.replace(link)
        sync(link.parent)


def remove_old(run: Path, validated: list[Path], keep: int, best_step: int) -> None:
    """All but the last few that were validated, the best and the last."""
    saved = checkpoints(run)
    kept = {run / "checkpoints" / f"step-{best_step}", *saved[-1:], *validated[-keep:]}
    for path in saved:
        if path not in kept:
            shutil.rmtree(path)


def remove_half_written(run: Path) -> None:
    """What killed sessions left; the caller holds the run's lock."""
    for path in (run / "checkpoints").glob(".step-*.tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def load_state(folder: Path) -> State:
    table = read_json(folder / "state.json", "the checkpoint's")
    try:
        place = table["position"]
        position = Position(place["epoch"], place["pool"], place["index"])  # an older version knew no pools
        return State(**{**table, "position": position})
    except (TypeError, KeyError) as error:
        raise NmtError(f"{folder / 'state.json'} is of another version of nmt: {error}", "start a new run") from None


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # how it passes on what the system says
        raise NmtError(f"{path} cannot be written: {error}", "is the disk full? what was there before stands") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise NmtError(f"{path} is missing", "the folder is not whole; name another checkpoint or run") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise NmtError(f"{path} cannot be read: {error}", "it is damaged, or not of safetensors") from None


def fill(model: nn.Module, tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Put weights into a model, or say what does not fit."""
    own = model.state_dict()
    wrong = sorted(set(own) ^ set(tensors)) + [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(own[name].shape)}"
        for name in own
        if name in tensors and own[name].shape != tensors[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise NmtError(
            f"the weights in {origin} are of another model: {', '.join(wrong[:3])}{more}",
            "the [model] and [vocab] of the recipe must be those it was trained with",
        )
    model.load_state_dict(tensors)


def average(folders: list[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights: of the moving averages, where there are."""
    mean: dict[str, Tensor] = {}
    for folder in folders:
        moving = folder / "averaged.safetensors"
        for name, tensor in load_tensors(moving if moving.exists() else folder / "model.safetensors").items():
            mean[name] = mean.get(name, 0) + tensor / len(folders)
    return mean


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _optimizer_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Moments and steps, by the names of their parameters: `exp_avg/encoder.0...`."""
    return {
        f"{kind}/{name}": tensor.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for optimizer in optimizers
        for kind, tensor in optimizer.state.get(parameter, {}).items()
    }


def fill_optimizers(model: nn.Module, optimizers: list[torch.optim.Optimizer], folder: Path) -> None:
    owners = {id(p): optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    tensors = load_tensors(folder / "optimizer.safetensors")
    parameters = dict(model.named_parameters())
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        if name not in parameters:
            raise NmtError(f"{folder / 'optimizer.safetensors'} is of another model: {name}", "start a new run")
        # Adam's step counts stay on the CPU unless the kernel is fused, which wants them beside the weights.
        parameter = parameters[name]
        owners[id(parameter)].state[parameter][kind] = tensor.to(parameter.device)


# ---------------------------------------------------------------------------------------------------------------------
# The model that comes out


def save_model(
    run: Path, weights: Mapping[str, Tensor], recipe: Recipe, vocab_folder: Path, about: dict[str, Any]
) -> None:
    """RUN/model: a folder that can be moved anywhere and translates."""
    with new_folder(run / "model") as aside:
        save_tensors(_on_cpu(weights), aside / "model.safetensors")
        shutil.copytree(vocab_folder, aside / "vocab")
        write_text(aside / "recipe.toml", tables_toml(recipe_tables(without_paths(recipe))))
        write_text(aside / "about.json", json.dumps({"nmt": __version__, **about}, indent=1, ensure_ascii=False) + "\n")


def without_paths(recipe: Recipe) -> Recipe:
    """The same experiment, wherever its files are."""
    return replace(
        recipe,
        data=replace(recipe.data, train=(), valid=(), test=(), folder=None, prepared=None),
        train=replace(recipe.train, out=None),
    )


@dataclass(frozen=True)
class Trained:
    """A model that can translate, as it was loaded from disk."""

    model: Seq2Seq
    vocab: Vocab
    recipe: Recipe
    about: dict[str, Any]


def load_model(path: Path, device: torch.device | str = "cpu") -> Trained:
    found = open_model(path)
    with torch.device("meta"):
        model = build_model(found.recipe.model, *found.vocab.sizes)
    model.to_empty(device=device)
    fill(model, load_tensors(found.path / "model.safetensors"), found.path)
    return Trained(model.eval(), found.vocab, found.recipe, found.about)
