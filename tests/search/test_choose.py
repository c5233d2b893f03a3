"""The choice of the engine. CTranslate2 translates where it supports the model and the options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nmt_cli.errors import NmtError
from nmt_cli.recipe.schema import ByteNet, Conv, DecoderOnly, Model, Recipe, Rnn, Transformer
from nmt_cli.search import choose
from nmt_cli.search.choose import EngineOptions, uses_ctranslate2
from nmt_cli.search.contract import SearchOptions, options_of
from nmt_cli.store.folders import ModelFolder

AUTO, FORCED = EngineOptions(), EngineOptions("ctranslate2")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> ModelFolder:
    """An exported Transformer, as far as the choice of the engine can see."""
    monkeypatch.setattr(choose, "find_spec", lambda name: True)
    (tmp_path / "ctranslate2").mkdir()
    return folder_of(tmp_path, Transformer())


def folder_of(path: Path, model: Model) -> ModelFolder:
    return ModelFolder(path, Recipe(model=model), None, {})


def refusal(folder: ModelFolder, search: SearchOptions, models: int = 1, wanted: EngineOptions = FORCED) -> str:
    with pytest.raises(NmtError) as error:
        uses_ctranslate2([folder] * models, search, wanted)
    return f"{error.value}\n{error.value.hint}"


def test_exported_transformer_uses_ctranslate2(folder):
    assert uses_ctranslate2([folder], options_of(folder.recipe), AUTO)
    assert not uses_ctranslate2([folder], options_of(folder.recipe), EngineOptions("torch"))


@pytest.mark.parametrize("model", [Rnn(), Conv(), ByteNet(), DecoderOnly()], ids=lambda model: model.family)
def test_other_families_use_torch(folder, model):
    other = folder_of(folder.path, model)
    options = options_of(other.recipe)
    assert not uses_ctranslate2([other], options, AUTO)
    expected = f'CTranslate2 does not support model.family = "{model.family}"\nuse --engine torch'
    assert refusal(other, options) == expected


def test_a_mixture_of_experts_uses_torch(folder):
    other = folder_of(folder.path, Transformer(experts=4))
    assert not uses_ctranslate2([other], options_of(other.recipe), AUTO)
    assert "CTranslate2 does not support model.experts = 4" in refusal(other, options_of(other.recipe))


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"sample": True}, "--sample"),
        ({"repetition_penalty": 1.2}, "--repetition-penalty"),
        ({"no_repeat_ngram": 3}, "--no-repeat-ngram"),
        ({"min_length": 2}, "--min-length"),
        ({"forbidden": (1, 7)}, "--forbid"),
        ({"sample": True, "min_length": 2}, "--sample, --min-length"),
    ],
)
def test_unsupported_options_use_torch(folder, changes, option):
    options = replace(options_of(folder.recipe), **changes)
    assert not uses_ctranslate2([folder], options, AUTO)
    expected = f"the ctranslate2 engine does not support {option}"
    assert refusal(folder, options) == f"{expected}\nuse --engine torch"
    hint = "omit --type int8: only the ctranslate2 engine supports it"
    assert refusal(folder, options, wanted=EngineOptions(type="int8")) == f"{expected}\n{hint}"


def test_ensemble_device_mps_missing_export_and_missing_package_use_torch(folder, tmp_path, monkeypatch):
    options = options_of(folder.recipe)
    assert not uses_ctranslate2([folder, folder], options, AUTO)
    assert "does not support --ensemble" in refusal(folder, options, models=2)
    assert not uses_ctranslate2([folder], options, EngineOptions(device="mps"))
    for device in ("mps", "xpu"):
        assert f"does not support --device {device}" in refusal(folder, options, wanted=replace(FORCED, device=device))
    elsewhere = folder_of(tmp_path / "else where", Transformer())
    assert not uses_ctranslate2([elsewhere], options, AUTO)
    expected = f"the model is not exported to CTranslate2\nnmt export '{elsewhere.path}' --to ctranslate2"
    assert refusal(elsewhere, options) == expected
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    assert not uses_ctranslate2([folder], options, AUTO)
    assert refusal(folder, options) == "CTranslate2 is not installed\npip install ctranslate2"


def test_cuda_device_that_only_torch_has_uses_torch(folder, monkeypatch):
    """An AMD GPU is the device "cuda" of torch, and CTranslate2 does not see it."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    options, cuda = options_of(folder.recipe), EngineOptions(device="cuda")
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)
    assert uses_ctranslate2([folder], options, cuda)
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 0)
    assert not uses_ctranslate2([folder], options, cuda)
    expected = "CTranslate2 finds no CUDA device on this machine\nuse --device cpu, or "
    assert refusal(folder, options, wanted=replace(cuda, name="ctranslate2")) == f"{expected}use --engine torch"
    hint = "omit --type int8: only the ctranslate2 engine supports it"
    assert refusal(folder, options, wanted=replace(cuda, type="int8")) == expected + hint


def test_wrong_types_of_weights_are_refused(folder):
    options = options_of(folder.recipe)
    expected = "the torch engine does not support --type int8\nuse --engine ctranslate2, or omit --type"
    assert refusal(folder, options, wanted=EngineOptions("torch", "int8")) == expected
    assert "--type int9 is not one of auto, float32, int8" in refusal(
        folder, options, wanted=EngineOptions(type="int9")
    )
