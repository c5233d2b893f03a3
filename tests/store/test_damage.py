"""Damaged and hostile files: each is an error of one sentence that names the file, and never a wrong result."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checks import assert_user_error
from support.tiny_run import TEXT, write_run
from support.toy_runs import RECIPE, notes

import nmt_cli
from nmt_cli.errors import NmtError
from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.export.hf import to_hf
from nmt_cli.files import add_to_record, checksums, find_damage, read_record, write_record
from nmt_cli.recipe.load import load_recipe, parse_overrides
from nmt_cli.search.contract import Request, SearchOptions
from nmt_cli.search.ct2_engine import CTranslate2Engine
from nmt_cli.store.checkpoint import check_checkpoint, load_model, load_state, save_model, save_state
from nmt_cli.store.folders import CheckpointFolder, ModelFiles, RunFolder, open_model
from nmt_cli.text.vocab import learn, write_vocab
from nmt_cli.training.resume import check_prepared

pytest.importorskip("ctranslate2")
ENGINES = ("torch", "ctranslate2")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder with run/model, exported for CTranslate2, and with another vocabulary of the same size."""
    folder = tmp_path_factory.mktemp("damage")
    write_run(folder)
    to_ctranslate2(load_model(folder / "run"), ModelFiles(folder / "run/model").ctranslate2)
    recipe = load_recipe(folder / "toy.toml")
    backwards = (line[::-1] for line in TEXT)
    write_vocab(folder / "other", {"joint": learn(backwards, recipe.vocab, "toy")}, recipe.data, recipe.vocab)
    return folder


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """A copy of the model folder, for a test to damage."""
    return Path(shutil.copytree(written / "run/model", tmp_path / "model"))


@pytest.fixture
def old(folder) -> Path:
    """The same folder as an older version of nmt would have written it: without checksums."""
    about = read_record(folder / "about.json", "the model's")
    del about["files"]
    (folder / "about.json").write_text(json.dumps(about))
    (folder / "ctranslate2/about.json").unlink()
    return folder


@contextmanager
def flipped(path: Path, place: float) -> Iterator[None]:
    """Flip one bit of a file for a while. `place` goes from 0, the first byte, to 1, the last."""
    content = bytearray(path.read_bytes())
    content[round(place * (len(content) - 1))] ^= 1 << round(place * 10) % 8
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(original)


def translate(folder: Path, engine: str, verify: bool = True) -> str:
    with nmt_cli.load(folder, engine=engine, workers=1, verify=verify) as translator:
        return translator.translate("I like the cat.").text


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(NmtError) as caught:
        action()
    assert caught.value.hint and "\n" not in caught.value.message
    return caught.value.message


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_both_engines_refuse_a_flipped_bit_in_every_file_that_they_read(folder):
    for path in files_of(folder):
        exported = path.is_relative_to(folder / "ctranslate2")
        engines = ["ctranslate2"] if exported else ["torch"] if path.name == "model.safetensors" else ENGINES
        for place in (0, 0.1, 0.37, 0.5, 0.93, 1):
            for engine in engines:
                with flipped(path, place):
                    assert str(path) in refusal(lambda: translate(folder, engine)), (path, place)  # noqa: B023
    assert translate(folder, "torch") and translate(folder, "ctranslate2")


COMMANDS = {
    "about.json": "nmt verify '{}'",
    "vocab/joint.model": "nmt verify '{}'",
    "model.safetensors": "nmt verify '{}'",
    "ctranslate2/model.bin": "nmt export '{}' --to ctranslate2 --force",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_of_hints_quote_the_folder_of_a_model(folder, tmp_path, name):
    spaced = folder.rename(tmp_path / "my model")
    with (spaced / name).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(NmtError) as caught:
        translate(spaced, "torch" if name == "model.safetensors" else "ctranslate2")
    assert caught.value.hint.startswith(COMMANDS[name].format(spaced))


def test_both_engines_refuse_a_missing_file(folder):
    for path in files_of(folder):
        if path.name == "model.safetensors":
            continue  # the folder is then not a model
        content = path.read_bytes()
        path.unlink()
        engine = "ctranslate2" if path.is_relative_to(folder / "ctranslate2") else "torch"
        assert path.name in refusal(lambda: translate(folder, engine))  # noqa: B023
        path.write_bytes(content)


def test_without_verification_a_damaged_model_is_used(folder):
    about = folder / "about.json"
    about.write_text(about.read_text().replace('"step": 1200', '"step": 1201'))
    assert str(about) in refusal(lambda: translate(folder, "torch"))
    assert translate(folder, "torch", verify=False)


def test_another_vocabulary_of_the_same_size_is_refused(written, folder):
    shutil.copy(written / "other/joint.model", folder / "vocab/joint.model")
    for engine in ENGINES:
        assert "vocab/joint.model is damaged" in refusal(lambda: translate(folder, engine))  # noqa: B023
    # CTranslate2 has its own list of pieces, so the engine refuses the vocabulary without checksums, too.
    assert "other pieces" in refusal(lambda: translate(folder, "ctranslate2", verify=False))


def test_an_export_of_another_model_is_refused(written, folder, tmp_path):
    trained = load_model(folder)
    weights = {name: tensor * 1.01 for name, tensor in trained.model.state_dict().items()}
    save_model(tmp_path / "second", weights, trained.recipe, folder / "vocab", {})
    shutil.rmtree(folder / "ctranslate2")
    to_ctranslate2(load_model(tmp_path / "second"), folder / "ctranslate2")
    assert "exported from another model or vocabulary" in refusal(lambda: translate(folder, "ctranslate2"))


def test_models_of_older_versions_are_used_without_checksums(old):
    assert translate(old, "torch") and translate(old, "ctranslate2")


def damaged_weights(kind: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    name = sorted(weights)[-1]
    match kind:
        case "nan" | "inf" | "-inf":
            weights[name] = weights[name].clone()
            weights[name].view(-1)[-1] = float(kind)
        case _:
            weights = {name: tensor.to(getattr(torch, kind)) for name, tensor in weights.items()}
    return weights


@pytest.mark.parametrize("kind", ["nan", "inf", "-inf", "int8", "int64", "bool"])
def test_weights_that_are_not_finite_numbers_are_refused(nmt, folder, tmp_path, kind):
    """The checksums are right: nmt itself could have written the weights."""
    trained = load_model(folder)
    weights = damaged_weights(kind, trained.model.state_dict())
    save_model(tmp_path / "run", weights, trained.recipe, folder / "vocab", {})
    word = {"nan": "NaN", "inf": "NaN", "-inf": "NaN"}.get(kind, kind)
    result = refusal(lambda: translate(tmp_path / "run", "torch"))
    assert str(tmp_path / "run/model") in result and word in result
    if kind in ("nan", "bool"):
        for form in ("ctranslate2", "hf"):
            assert_user_error(nmt("export", "run", "--to", form, "--out", form), "run/model", word)
            assert not (tmp_path / form).exists()


def test_the_ctranslate2_engine_refuses_weights_with_nan(folder, tmp_path):
    trained = load_model(folder)
    with torch.no_grad():
        next(trained.model.parameters())[5:] = torch.nan
    to_ctranslate2(trained, tmp_path / "nan")
    engine = CTranslate2Engine(tmp_path / "nan", trained.vocab, "auto", "cpu", 1)
    requests = [Request(tuple(trained.vocab.encode_source([line])[0])) for line in TEXT[:3]]
    assert str(tmp_path / "nan") in refusal(lambda: engine.translate(requests, SearchOptions()))


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_toml(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


DEEP = 100_000
HOSTILE: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "null languages": ("vocab/vocab.json", "torch", lambda p: change_json(p, source_lang=None)),
    "symbols of numbers": ("vocab/vocab.json", "torch", lambda p: change_json(p, symbols=[1])),
    "deep vocab.json": ("vocab/vocab.json", "torch", lambda p: p.write_text("[" * DEEP)),
    "deep about.json": ("about.json", "torch", lambda p: p.write_text('{"a":' * DEEP)),
    "deep arrays": ("recipe.toml", "torch", lambda p: p.write_text("a = " + "[" * DEEP)),
    "deep tables": ("recipe.toml", "torch", lambda p: p.write_text("[" + ".".join("a" * DEEP) + "]\nx = 1\n")),
    "digits": ("recipe.toml", "torch", lambda p: change_toml(p, "dim = 16", "dim = " + "9" * 10_000)),
    "digits below python's limit": ("recipe.toml", "torch", lambda p: change_toml(p, "dim = 16", "dim = " + "9" * 400)),
    "digits in json": ("about.json", "torch", lambda p: p.write_text('{"step": ' + "9" * 10_000 + "}")),
    "positions": ("recipe.toml", "torch", lambda p: change_toml(p, "max_positions = 100", f"max_positions = {10**12}")),
    "beam": ("recipe.toml", "torch", lambda p: change_toml(p, "\nbeam = 3", f"\nbeam = {10**9}")),
    "dim": ("recipe.toml", "torch", lambda p: change_toml(p, "dim = 16", f"dim = {10**9}")),
    "largest dim": ("model: ", "torch", lambda p: change_toml(p.parent / "recipe.toml", "dim = 16", "dim = 65536")),
    "layers": ("recipe.toml", "torch", lambda p: change_toml(p, "encoder_layers = 3", f"encoder_layers = {10**7}")),
    "pieces of ctranslate2": (
        "ctranslate2/shared_vocabulary.json", "ctranslate2", lambda p: p.write_text(json.dumps(["a"])),
    ),
    "deep pieces of ctranslate2": (
        "ctranslate2/shared_vocabulary.json", "ctranslate2", lambda p: p.write_text("[" * DEEP),
    ),
    "model of ctranslate2": ("ctranslate2", "ctranslate2", lambda p: (p / "model.bin").write_bytes(b"\0" * 1000)),
    "half a model of ctranslate2": (
        "ctranslate2", "ctranslate2", lambda p: os.truncate(p / "model.bin", (p / "model.bin").stat().st_size // 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_without_checksums_are_refused(old, case):
    name, engine, damage = HOSTILE[case]
    damage(old / name)
    message = refusal(lambda: translate(old, engine))
    assert all(part in message for part in name.split("/")) and len(message) < 1000, message


SPECIAL = ("about.json", "recipe.toml", "model.safetensors", "vocab/vocab.json", "vocab/joint.model")


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder"])
@pytest.mark.parametrize("name", [*SPECIAL, "ctranslate2/model.bin", "ctranslate2/config.json"])
@pytest.mark.parametrize("state", ["folder", "old"])
def test_a_device_a_pipe_or_a_folder_in_place_of_a_file_is_refused(request, state, name, kind):
    folder = request.getfixturevalue(state)
    path = folder / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    engine = "ctranslate2" if "ctranslate2" in name else "torch"
    assert f"{name} is not a regular file" in refusal(lambda: translate(folder, engine))


@pytest.mark.parametrize(("name", "command"), [("log.jsonl", "inspect"), ("log.jsonl", "train"), (".lock", "train")])
def test_a_pipe_in_a_run_is_refused(nmt, run, name, command):
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    assert_user_error(nmt(command, run.path), f"{name} is not a regular file")


def test_a_config_whose_value_ctranslate2_refuses_while_it_translates(old):
    change_json(old / "ctranslate2/config.json", add_source_bos=1)
    assert "refuses config.json" in refusal(lambda: translate(old, "ctranslate2"))


def test_links_to_files_are_followed(folder, tmp_path):
    for path in files_of(folder):
        real = tmp_path / f"real-{path.parent.name}-{path.name}"
        path.rename(real)
        path.symlink_to(real)
    assert translate(folder, "torch") and translate(folder, "ctranslate2")


def test_a_model_reads_no_file_outside_of_its_folder(old, folder, tmp_path):
    (tmp_path / "secret.toml").write_text("password = 1\n")
    recipe = (old / "recipe.toml").read_text()
    for name in ("../secret.toml", str(tmp_path / "secret.toml"), "demo"):  # demo: a shipped recipe
        (old / "recipe.toml").write_text(f'extends = "{name}"\n{recipe}')
        assert "extends another recipe" in refusal(lambda: translate(old, "torch"))
    (old / "recipe.toml").write_text(recipe)
    for name in ("../secret.toml", str(tmp_path / "secret.toml")):
        write_record(old / "about.json", {}, {name: ""})
        assert "about.json names a file outside of its folder" in refusal(lambda: translate(old, "torch"))


def test_a_huge_small_file_is_refused(old):
    with (old / "about.json").open("ab") as stream:
        stream.truncate(1 << 40)  # a sparse file
    assert "about.json has more than" in refusal(lambda: translate(old, "torch"))


@pytest.mark.parametrize(
    "setting",
    [f"model.dim={'9' * 10_000}", f"model.dim={'[' * 100_000}", f"model.dim={'9' * 400}", f"translate.beam={10**9}"],
    ids=["digits", "brackets", "large", "beam"],
)
def test_hostile_overrides_are_refused(setting):
    message = refusal(lambda: load_recipe(None, parse_overrides([setting])))
    assert setting.partition("=")[0] in message and len(message) < 1000


def test_a_beam_that_needs_too_much_memory_is_refused(folder):
    with nmt_cli.load(folder, workers=1) as translator:
        assert "beam must be from 1 to" in refusal(lambda: translator.translate("A cat.", beam=10**9))
        assert "n_best must be from 1 to" in refusal(lambda: translator.translate("A cat.", n_best=10**9, sample=True))


def test_a_disk_that_cannot_read_a_file_is_named_as_damage(folder, monkeypatch):
    monkeypatch.setattr("nmt_cli.files.hashlib.sha256", lambda: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    assert dict(find_damage(folder, {"recipe.toml": ""})) == {"recipe.toml": "cannot be read: Input/output error"}


# Checkpoints.


@pytest.fixture(scope="module")
def trained_run(prepared, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "toy.toml").write_text(RECIPE.replace("../", f"{prepared}/"))
    settings = {"train.steps": 4, "train.valid_every": 2, "train.ema": 0.9, "train.out": str(folder / "run")}
    nmt_cli.train(folder / "toy.toml", set=settings)
    return folder


@pytest.fixture
def run(trained_run, tmp_path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(trained_run / "run", tmp_path / "run", symlinks=True)))


def go_on(trained_run: Path, run: RunFolder) -> list[str]:
    """Continue a run to step 6, and return the notes of the session."""
    events: list[object] = []
    settings = {"train.steps": 6, "train.valid_every": 2, "train.ema": 0.9, "train.out": str(run.path)}
    nmt_cli.train(trained_run / "toy.toml", set=settings, watch=events.append)
    return notes(events)


def test_a_flipped_bit_in_every_file_of_a_checkpoint_is_found(run):
    last = run.saved_checkpoints()[-1]
    assert {path.name for path in files_of(last.path)} >= {"averaged.safetensors", "optimizer.safetensors"}
    for path in files_of(last.path):
        for place in (0, 0.2, 0.37, 0.5, 0.93, 1):
            with flipped(path, place):
                assert str(path) in refusal(lambda: check_checkpoint(last))
    check_checkpoint(last)


def test_training_continues_from_the_last_intact_checkpoint(trained_run, run):
    last = run.saved_checkpoints()[-1]
    last.optimizer.write_bytes(bytes(last.optimizer.stat().st_size))
    told = " ".join(go_on(trained_run, run))
    assert "optimizer.safetensors is damaged" in told and "step 2" in told


def test_a_state_that_is_written_again_keeps_the_checksums_of_the_tensors(run):
    last = run.saved_checkpoints()[-1]
    with flipped(last.weights, 0.5):
        save_state(last, replace(load_state(last), finished=False))
        assert "model.safetensors is damaged" in refusal(lambda: check_checkpoint(last))
    check_checkpoint(last)


def without_checksums(folder: CheckpointFolder, **values: object) -> None:
    """Write the state as an older version of nmt would have, with other values."""
    table = read_record(folder.state, "the checkpoint's")
    del table["files"]
    folder.state.write_text(json.dumps({**table, **values}))


def test_checkpoints_of_older_versions_are_resumed(trained_run, run):
    without_checksums(run.saved_checkpoints()[-1])
    go_on(trained_run, run)


@pytest.mark.parametrize(
    "values",
    [
        {"position": {"epoch": 0, "pool": [], "index": 0}},
        {"position": {"epoch": -1, "pool": 0, "index": 0}},
        {"tokens": "1"},
        {"validated_steps": [[2]]},
    ],
)
def test_a_state_with_values_of_another_type_is_refused(run, values):
    last = run.saved_checkpoints()[-1]
    without_checksums(last, **values)
    assert "was written by another version of nmt" in refusal(lambda: load_state(last))


def rename(path: Path, change: Callable[[dict[str, torch.Tensor], str], dict[str, torch.Tensor]]) -> None:
    tensors = load_file(path)
    save_file(change(tensors, sorted(tensors)[0]), path)


OLD_CHECKPOINTS = {
    "renamed tensor": ("averaged.safetensors", lambda t, n: {**{k: v for k, v in t.items() if k != n}, "x": t[n]}),
    "missing tensor": ("averaged.safetensors", lambda t, n: {k: v for k, v in t.items() if k != n}),
    "renamed moment": ("optimizer.safetensors", lambda t, n: {**t, "exp_avg/x": t[n].clone()}),
    "short moment": ("optimizer.safetensors", lambda t, n: {**t, n: torch.zeros(3)}),
}


@pytest.mark.parametrize("case", OLD_CHECKPOINTS)
def test_checkpoints_without_checksums_that_do_not_fit_are_refused(trained_run, run, case):
    last = run.saved_checkpoints()[-1]
    without_checksums(last)
    name, change = OLD_CHECKPOINTS[case]
    rename(last.path / name, change)
    assert name in refusal(lambda: go_on(trained_run, run))


def test_the_commands_of_hints_quote_the_folder_of_a_checkpoint(run, tmp_path):
    spaced = RunFolder(run.path.rename(tmp_path / "my run"))
    last = spaced.saved_checkpoints()[-1]
    with flipped(last.weights, 0.5), pytest.raises(NmtError) as damaged:
        check_checkpoint(last)
    without_checksums(last, step=3)
    with pytest.raises(NmtError) as misplaced:
        load_state(last)
    hint = f"nmt verify '{spaced.path}' lists the intact checkpoints"
    assert damaged.value.hint == misplaced.value.hint == hint


def test_a_state_of_another_step_is_damage(trained_run, run):
    without_checksums(run.saved_checkpoints()[-1], step=3)
    assert "step-4/state.json is damaged: it has step 3" in " ".join(go_on(trained_run, run))


# Prepared data.


@pytest.fixture
def data(prepared, tmp_path) -> Path:
    return Path(shutil.copytree(prepared / "data", tmp_path / "data"))


def test_a_flipped_bit_in_every_file_of_prepared_data_is_found(data):
    recipe = load_recipe(None, {"data.prepared": str(data)})
    for path in files_of(data):
        for place in (0, 0.2, 0.37, 0.5, 0.93, 1):
            for resumes in (False, True):
                with flipped(path, place):
                    assert str(path) in refusal(lambda: check_prepared(recipe, resumes, print))  # noqa: B023
    check_prepared(recipe, False, print)


def test_the_command_of_the_hint_quotes_the_folder_of_prepared_data(data, tmp_path):
    spaced = data.rename(tmp_path / "my data")
    with flipped(spaced / "train.source.ids", 0.5), pytest.raises(NmtError) as caught:
        check_prepared(load_recipe(None, {"data.prepared": str(spaced)}), False, print)
    assert caught.value.hint.startswith(f"nmt verify '{spaced}' lists what is damaged")


def test_training_refuses_damaged_data_and_prepare_writes_them_again(nmt, toy, data, tmp_path):
    setting = ("--set", f"data.prepared={data}")
    before = checksums(data)
    (data / "train.source.ids").write_bytes(bytes((data / "train.source.ids").stat().st_size))
    assert_user_error(nmt("train", toy, *setting), "train.source.ids is damaged", "--force")
    assert not (tmp_path / "runs/toy/checkpoints").exists()
    assert_user_error(nmt("prepare", toy, *setting), "exists, but train.source.ids is damaged", "--force")
    assert nmt("prepare", toy, *setting, "--force").code == 0
    after = checksums(data)
    assert before.keys() == after.keys() and before["train.source.ids"] == after["train.source.ids"]


def test_large_files_are_not_read_again(data, monkeypatch):
    recipe = load_recipe(None, {"data.prepared": str(data)})
    monkeypatch.setattr("nmt_cli.training.resume._LARGEST_CHECKED_AGAIN", 1000)
    with flipped(data / "train.source.ids", 0.5):
        check_prepared(recipe, True, print)
        refusal(lambda: check_prepared(recipe, False, print))


def swap_offsets(path: Path) -> None:
    offsets = np.fromfile(path, "<u8")
    offsets[[3, 4]] = offsets[[4, 3]]
    offsets.tofile(path)


def cut(path: Path, count: int) -> None:
    """Remove the last bytes of a file."""
    path.write_bytes(path.read_bytes()[:-count])


DAMAGED_SHARDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "odd ids": ("train.source.ids", lambda p: p.write_bytes(p.read_bytes() + b"\1")),
    "odd offsets": ("train.target.offsets", lambda p: p.write_bytes(p.read_bytes()[:-3])),
    "ids without a piece": ("train.source.ids", lambda p: p.write_bytes(b"\xff" * p.stat().st_size)),
    "validation ids without a piece": ("valid.target.ids", lambda p: p.write_bytes(b"\xff" * p.stat().st_size)),
    "missing ids": ("train.target.ids", lambda p: p.unlink()),
    "offsets that fall": ("train.source.offsets", swap_offsets),
    "offsets that begin late": ("train.source", lambda p: (p.parent / "train.source.offsets").write_bytes(
        b"\1" + (p.parent / "train.source.offsets").read_bytes()[1:])),
    "fewer targets": ("train", lambda p: cut(p.parent / "train.target.offsets", 16)),
    "fewer references": ("valid.target", lambda p: cut(p.parent / "valid.target.txt", 20)),
    "pipe": ("train.source.ids", lambda p: (p.unlink(), os.mkfifo(p))),
    "device": ("train.source.offsets", lambda p: (p.unlink(), p.symlink_to("/dev/zero"))),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED_SHARDS)
def test_shards_without_checksums_are_checked_for_sense(toy, data, case):
    meta = read_record(data / "meta.json", "the data's")
    del meta["files"]
    (data / "meta.json").write_text(json.dumps(meta))
    name, damage = DAMAGED_SHARDS[case]
    damage(data / name)
    assert name in refusal(lambda: nmt_cli.train(toy, set={"data.prepared": str(data), "train.steps": 1}))


# nmt verify.


def test_verify_says_that_a_run_is_intact(nmt, run):
    result = nmt("verify", run.path)
    assert result.code == 0 and result.err == ""
    assert "step-4: 3 files intact" in result.text and "run/model: 4 files intact" in result.text
    assert "run/vocab: 2 files intact" in result.text and "ctranslate2: 3 files intact" in result.text


DAMAGED_RUN = {
    "checkpoints/step-4/optimizer.safetensors": "nmt train renames run/checkpoints/step-4 and continues from step 2",
    "checkpoints/step-4/state.json": "nmt train renames run/checkpoints/step-4 and continues from step 2",
    "model/recipe.toml": "replace",
    "model/about.json": "replace",
    "model/vocab/joint.model": "cp run/vocab/joint.model run/model/vocab/joint.model",
    "vocab/joint.model": "cp run/model/vocab/joint.model run/vocab/joint.model",
    "model/ctranslate2/model.bin": "nmt export run/model --to ctranslate2 --force",
    "model/ctranslate2/about.json": "nmt export run/model --to ctranslate2 --force",
}


@pytest.mark.parametrize("name", DAMAGED_RUN)
def test_verify_names_the_damaged_file_and_what_can_be_done(nmt, run, name):
    assert (run.path / name).is_file()
    with flipped(run.path / name, 0.5):
        result = nmt("verify", "run")
    assert result.code == 1 and f"  {Path(name).name} is damaged" in result.text.replace("vocab/", "")
    assert (
        result.err.startswith("error: 1 file of run is damaged or missing\nhint: ") and DAMAGED_RUN[name] in result.err
    )


def test_the_advice_of_verify_repairs_a_model_from_a_checkpoint(nmt, run, tmp_path):
    path = run.model / "model.safetensors"
    content = path.read_bytes()
    path.unlink()
    result = nmt("verify", "run")
    assert result.code == 1 and "model.safetensors is missing" in result.text
    copied = re.search(r"hint: cp (run/checkpoints/.*/averaged.safetensors) run/model/model.safetensors\n", result.err)
    assert copied
    shutil.copy(tmp_path / copied[1], path)
    assert nmt("verify", "run").code == 0 and path.read_bytes() == content


def test_verify_checks_models_exports_checkpoints_and_data_by_themselves(nmt, folder, run, data, tmp_path):
    to_hf(load_model(run.path), tmp_path / "hf")
    cases = {"model": "recipe.toml", "hf": "source.spm", "model/ctranslate2": "config.json"}
    cases |= {"run/checkpoints/step-2": "model.safetensors", "data": "train.source.ids"}
    for name, file in cases.items():
        assert nmt("verify", name).code == 0, name
        (tmp_path / name / file).unlink()
        result = nmt("verify", name)
        assert result.code == 1 and f"  {file} is missing" in result.text, name
    with_type = " (and --type, if the export had one)\n"
    shutil.copytree(tmp_path / "model/ctranslate2", tmp_path / "copy")
    assert f"hint: nmt export MODEL --to ctranslate2 --out copy --force{with_type}" in nmt("verify", "copy").err
    (tmp_path / "hf/model.safetensors").unlink()  # unlike source.spm, no other file of the export has its bytes
    advised = re.search(r"hint: nmt (export MODEL --to hf --out hf --force)\n", nmt("verify", "hf").err)
    assert nmt(*advised[1].replace("MODEL", "run").split()).code == nmt("verify", "hf").code == 0
    advice = {"hf": "--to hf --out NEW_FOLDER\n", "copy": f"--to ctranslate2 --out NEW_FOLDER{with_type}"}
    for name, end in {**advice, "model/ctranslate2": f"model --to ctranslate2 --force{with_type}"}.items():
        (tmp_path / name / "about.json").unlink()
        result = nmt("verify", name)
        assert result.code == 1 and "  about.json is missing" in result.text, name
        assert result.err.endswith(end), name


def test_verify_says_that_older_folders_have_no_checksums(nmt, old):
    result = nmt("verify", old)
    assert result.code == 0 and result.text.count("no checksums: an older version of nmt wrote it") == 2


def test_verify_refuses_other_folders(nmt, tmp_path):
    assert_user_error(nmt("verify", "nothing"), "there is no folder nothing")
    assert_user_error(nmt("verify", tmp_path), "no folder that nmt wrote")


def test_a_file_that_is_added_later_has_a_checksum(folder):
    (folder / "quality.json").write_text("{}")
    add_to_record(folder / "about.json", "quality.json")
    assert open_model(folder).about["step"] == 1200
    (folder / "quality.json").write_text("{ }")
    assert "quality.json is damaged" in refusal(lambda: open_model(folder))


def test_a_record_is_read_as_it_was_written(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_bytes(b"x")
    table = {"text": 'ü "checksum": "', "number": 0.1}
    write_record(tmp_path / "about.json", table)
    write_record(tmp_path / "about.json", table)  # its old version is not one of the files
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # printf x | sha256sum
    assert read_record(tmp_path / "about.json", "the") == {**table, "files": {"a/x": digest}}
