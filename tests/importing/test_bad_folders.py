"""`nmt import` refuses what it cannot import in one sentence, and writes nothing."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checks import assert_user_error
from support.hf_folders import marian_folder

from nmt_cli.errors import NmtError
from nmt_cli.importing.read import import_model
from nmt_cli.store.checkpoint import load_model

pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "hf"
    marian_folder(folder, steps=0)
    return folder


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy of the folder that a test may damage."""
    shutil.copytree(original, tmp_path / "hf")
    return tmp_path / "hf"


def configure(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


def rename(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: (folder / old).rename(folder / new) and None


def write(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def shard(*names: str) -> Callable[[Path], None]:
    """Replace the weights by an index that names these files. The first file has all tensors."""

    def split(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / "part-1.safetensors")
        table = {name: names[number % len(names)] for number, name in enumerate(tensors)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))

    return split


def link_out(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "elsewhere")
    (folder / "model.safetensors").symlink_to("../elsewhere")


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/nmt-import-ran-code"),))


def pickled(value: object) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(value, folder / "pytorch_model.bin")

    return replace


def raw_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))


QUERY = "model.encoder.layers.0.self_attn.q_proj.weight"
BAD = {
    "another model": (configure(model_type="t5"), 'model_type = "t5" is not supported'),
    "activation": (configure(activation_function="gelu_new"), 'activation_function = "gelu_new" is not supported'),
    "norm": (configure(normalize_before=True), "normalize_before = true is not supported"),
    "heads": (configure(decoder_attention_heads=2), "decoder_attention_heads = 2 is not supported"),
    "quantized": (configure(quantization_config={"bits": 4}), "quantization_config = "),
    "heads that do not divide": (configure(encoder_attention_heads=5, decoder_attention_heads=5), "must divide dim"),
    "no number": (configure(d_model="32"), "config.json has no whole number d_model"),
    "pad id": (configure(pad_token_id=9999), "pad_token_id = 9999 is not supported"),
    "vocabulary size": (configure(vocab_size=200, decoder_vocab_size=200), "is (145, 32), not (200, 32)"),
    "deeper": (configure(encoder_layers=3), "have no tensor model.encoder.layers.2"),
    "no config": (rename("config.json", "x"), "is not a model that can be imported"),
    "no JSON": (write("config.json", "{"), "config.json is not JSON"),
    "no table": (write("config.json", "[]"), "config.json is not a table"),
    "no vocabulary": (rename("vocab.json", "x"), "has no file vocab.json"),
    "wrong ids": (write("vocab.json", '{"<unk>": 0, "a": 0}'), "gives 'a' the id 0"),
    "no unk": (write("vocab.json", '{"a": 0}'), "has no piece <unk>"),
    "no SentencePiece": (rename("source.spm", "tokenizer.json"), "has no SentencePiece model source.spm"),
    "damaged SentencePiece": (write("source.spm", "x"), "source.spm is not a SentencePiece model"),
    "empty SentencePiece": (write("target.spm", ""), "target.spm is not a SentencePiece model"),
    "no weights": (rename("model.safetensors", "tf_model.h5"), "has neither model.safetensors nor pytorch_model.bin"),
    "damaged weights": (write("model.safetensors", "x"), "model.safetensors cannot be read"),
    "shape": (change_weights(lambda t: t.update({QUERY: torch.zeros(3, 3)})), f"{QUERY} in hf is (3, 3), not (32, 32)"),
    "missing tensor": (change_weights(lambda t: t.pop(QUERY)), f"have no tensor {QUERY}"),
    "extra tensor": (change_weights(lambda t: t.update(extra=torch.zeros(1))), "have a tensor extra"),
    "not finite": (change_weights(lambda t: t[QUERY].fill_(torch.nan)), "has NaN or infinity"),
    "untied": (
        change_weights(lambda t: t.update({"lm_head.weight": torch.zeros(145, 32)})),
        "model.shared.weight and lm_head.weight in hf differ",
    ),
    "missing shard": (shard("part-1.safetensors", "part-2.safetensors"), "has no file part-2.safetensors"),
    "shard outside": (shard("../part-1.safetensors"), "leads out of the folder"),
    "absolute shard": (shard("/etc/passwd"), "leads out of the folder"),
    "no weight_map": (
        lambda folder: (rename("model.safetensors", "x")(folder), write("model.safetensors.index.json", "{}")(folder)),
        "has no weight_map",
    ),
    "link": (link_out, "leads out of the folder"),
    "code in a pickle": (pickled({"a": Evil()}), "pytorch_model.bin is not a file of plain weights"),
    "a pickle alone": (raw_pickle, "pytorch_model.bin is not a file of plain weights"),
    "no tensors": (pickled({"a": 1}), "not a table of tensors"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folder_is_refused_and_nothing_is_written(folder, tmp_path, monkeypatch, name):
    damage, problem = BAD[name]
    damage(folder)
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(NmtError) as error:
        import_model(Path("hf"), tmp_path / "nmt")
    assert problem in error.value.message and "\n" not in error.value.message and error.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert not Path("/tmp/nmt-import-ran-code").exists()


def test_the_command_of_the_hint_quotes_the_folder(folder, tmp_path):
    link_out(folder)
    spaced = folder.rename(tmp_path / "my hf")
    with pytest.raises(NmtError) as error:
        import_model(spaced, tmp_path / "nmt")
    assert error.value.hint == f"if you trust the link: cp -rL '{spaced}' COPY, then import COPY"


def test_shards_and_plain_pickles_are_read(original, folder, tmp_path):
    import_model(original, tmp_path / "whole")
    shard("part-1.safetensors")(folder)
    import_model(folder, tmp_path / "shards")
    (folder / "model.safetensors.index.json").unlink()
    tensors = load_file(folder / "part-1.safetensors")
    tensors["lm_head.weight"] = tensors["model.shared.weight"]  # old versions of transformers saved copies
    torch.save(tensors, folder / "pytorch_model.bin")
    import_model(folder, tmp_path / "pickle")
    expected, *others = [load_model(tmp_path / name).model.state_dict() for name in ("whole", "shards", "pickle")]
    for state in others:
        assert all(torch.equal(expected[name], state[name]) for name in expected)


def test_an_export_of_a_pre_norm_model_is_refused_with_advice(nmt, folder):
    """nmt export --to hf writes Blenderbot, which nmt cannot import."""
    configure(model_type="blenderbot")(folder)
    advice = "if nmt export --to hf wrote this folder, use the run that it was exported from; docs/import.md lists"
    assert_user_error(nmt("import", "hf", "--out", "nmt"), 'model_type = "blenderbot" is not supported', advice)


def test_command_replaces_only_models(nmt, folder, tmp_path):
    assert_user_error(nmt("import", "nowhere", "--out", "nmt"), "nowhere does not exist")
    assert_user_error(nmt("import", "hf/config.json", "--out", "nmt"), "is a file, not a folder")
    assert nmt("import", "hf", "--out", "nmt").code == 0
    assert_user_error(nmt("import", "hf", "--out", "nmt"), "nmt exists", "--force")
    assert nmt("import", "hf", "--out", "nmt", "--force").code == 0
    assert_user_error(nmt("import", "hf", "--out", "hf", "--force"), "contains files that nmt did not write")
    (tmp_path / "nmt/README.md").write_text("mine")
    assert_user_error(nmt("import", "hf", "--out", "nmt", "--force"), "files that nmt did not write: README.md")
    assert load_model(tmp_path / "nmt").about["imported"] == "Hugging Face marian"
