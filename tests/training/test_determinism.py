"""The same recipe and seed on the same machine give the same files, in every family, in another process too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nmt_cli.files import sha256_of
from nmt_cli.recipe.load import parse_overrides
from nmt_cli.training.session import train

SMALL = ("model.dim=32", "model.dropout=0.2", "train.steps=2", "train.valid_lines=2", "train.log_every=100")
LAYERS = ("model.encoder_layers=2", "model.decoder_layers=2")
AUGMENTED = (
    *("train.augment.typos=0.5", "train.augment.capitals=0.2", "train.augment.title_case=0.2"),
    *("train.augment.lower_case=0.2", "train.augment.no_final_mark=0.5", "train.subword_sampling=0.1"),
)
RUNS = {  # the family, and settings
    "transformer": (
        *("transformer", "model.experts=3", "model.attention_dropout=0.1", "train.consistency=rdrop", "train.ema=0.9"),
    ),
    "rnn": ("rnn", *LAYERS, "model.input_feeding=true", "train.consistency=simcut"),
    "conv": ("conv", *LAYERS, "train.optimizer=muon"),
    "bytenet": ("bytenet", *LAYERS),
    "decoder": ("decoder", "model.ff=64", "model.layers=2", "train.accumulate=2", *AUGMENTED),
}


def hashes(recipe: Path, folder: Path) -> dict[str, str]:
    """Train all families, and hash the weights, moments and exported models."""
    for name, (family, *settings) in RUNS.items():
        train(recipe, out=folder / name, set=parse_overrides((f"model.family={family}", *SMALL, *settings)))
    files = [*folder.rglob("*.safetensors"), *folder.rglob("model.bin")]
    return {str(path.relative_to(folder)): sha256_of(path) for path in sorted(files)}


def test_training_twice_gives_the_same_files(toy, tmp_path):
    """The other process has another hash seed: sets have another order there."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(toy), str(tmp_path / "there")]
    there = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    here = hashes(toy, tmp_path / "here")
    assert json.loads(there) == here
    # No two of these trainings are the same.
    weights = [digest for name, digest in here.items() if name.endswith("step-2/model.safetensors")]
    assert len(weights) == len(set(weights)) == len(RUNS)


if __name__ == "__main__":
    print(json.dumps(hashes(Path(sys.argv[1]), Path(sys.argv[2]))))
