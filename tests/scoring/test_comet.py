"""COMET: an error without the package, and scores of a stand-in model."""

from __future__ import annotations

import importlib.util
import json
import os
import sys

import pytest
from support.checks import assert_user_error
from support.score_texts import FILES, REFERENCE


def test_comet_without_the_package_is_a_user_error(nmt, files):
    if importlib.util.find_spec("comet"):
        pytest.skip("COMET is installed")
    result = nmt("score", "a.de", "--ref", "ref.de", "-m", "bleu,comet", "--source", "src.en")
    assert_user_error(result, "COMET is not installed", "pip install unbabel-comet")


FAKE_COMET = """
from types import SimpleNamespace

def download_model(model, saving_directory=None, local_files_only=False):
    assert local_files_only
    if model != "Unbabel/wmt22-comet-da":
        raise KeyError(f"Model '{model}' not supported by COMET.")
    return "model.ckpt"

def load_from_checkpoint(path, local_files_only=False):
    print("noise on stdout")
    return SimpleNamespace(predict=predict)

def predict(samples, batch_size, gpus, accelerator, progress_bar):
    assert set(samples[0]) == {"src", "mt", "ref"}
    return SimpleNamespace(scores=[float(sample["mt"] == sample["ref"]) for sample in samples])
"""


def test_comet_scores_of_a_stand_in_model(nmt, files, write, tmp_path):
    """Against a stand-in with COMET's interface: real weights are gigabytes."""
    write("fake/comet/__init__.py", FAKE_COMET)
    write("fake/unbabel_comet-2.2.6.dist-info/METADATA", "Metadata-Version: 2.1\nName: unbabel-comet\nVersion: 2.2.6\n")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "fake"), *sys.path])}
    command = ("score", "a.de", "--ref", "ref.de", "-m", "comet", "--source", "src.en")
    result = nmt(*command, "--sentences", "--worst", "1", "--format", "json", env=env)
    report = json.loads(result.text)
    equal = [float(ours == theirs) for ours, theirs in zip(FILES["a.de"], REFERENCE, strict=True)]
    assert report["scores"][0]["score"] == pytest.approx(sum(equal) / 60)
    assert report["scores"][0]["signature"] == "nrefs:1|model:Unbabel/wmt22-comet-da|version:2.2.6"
    assert report["sentences"][0]["scores"]["a.de"] == equal and report["worst"]["metric"] == "BLEU"
    wrong = nmt(*command, "--comet-model", "none/such", env=env)
    assert_user_error(wrong, "the COMET weights none/such cannot be loaded", "comet-score")
