"""JoeyNMT 2.3.0. Pieces are its words. It saves a model only when it validates."""

from __future__ import annotations

import shutil
from pathlib import Path

from rivals.task import LINES_OF_A_BATCH, SAVE_EVERY, Rival, rates, report_every, run_for

CONFIG = """
name: "rival"
joeynmt_version: "2.3.0"
model_dir: "{folder}/model"
use_cuda: False
fp16: False
random_seed: 42
data:
    train: "{train}"
    dev: "{valid}"
    dataset_type: "plain"
    src:
        lang: "en"
        max_length: 100
        lowercase: False
        normalize: False
        level: "word"
        voc_file: "{folder}/vocab.txt"
    trg:
        lang: "de"
        max_length: 100
        lowercase: False
        normalize: False
        level: "word"
        voc_file: "{folder}/vocab.txt"
testing:
    load_model: {model}
    n_best: 1
    beam_size: {beam}
    beam_alpha: 1.0
    batch_size: {lines}
    batch_type: "sentence"
    max_output_length: 100
    eval_metrics: ["bleu"]
training:
    optimizer: "adam"
    adam_betas: [0.9, 0.98]
    learning_rate: 0.001
    learning_rate_min: 1.0e-9
    learning_rate_warmup: 400
    scheduling: "warmupinversesquareroot"
    normalization: "tokens"
    loss: "crossentropy"
    label_smoothing: 0.1
    batch_size: {tokens}
    batch_type: "token"
    early_stopping_metric: "ppl"
    epochs: 1000000
    validation_freq: {save}
    logging_freq: {report}
    print_valid_sents: []
    keep_best_ckpts: 1
    overwrite: True
    shuffle: True
model:
    initializer: "xavier_uniform"
    embed_initializer: "xavier_uniform"
    tied_embeddings: True
    tied_softmax: True
    encoder:
        type: "transformer"
        num_layers: 3
        num_heads: 4
        embeddings: {{embedding_dim: 256, scale: True, dropout: 0.1}}
        hidden_size: 256
        ff_size: 1024
        dropout: 0.1
        layer_norm: "pre"
    decoder:
        type: "transformer"
        num_layers: 3
        num_heads: 4
        embeddings: {{embedding_dim: 256, scale: True, dropout: 0.1}}
        hidden_size: 256
        ff_size: 1024
        dropout: 0.1
        layer_norm: "pre"
"""


class JoeyNmt(Rival):
    name = "JoeyNMT"
    packages = (
        *("joeynmt==2.3.0", "datasets", "sacremoses", "subword-nmt", "matplotlib", "seaborn", "pandas", "pyyaml"),
        *("pyarrow", "dill", "xxhash", "multiprocess", "fsspec", "aiohttp", "pillow", "cycler", "kiwisolver"),
        *("contourpy", "fonttools", "pyparsing", "python-dateutil", "pytz", "tzdata", "six", "joblib", "click"),
        *("requests", "urllib3", "idna", "charset-normalizer", "certifi", "future", "setuptools<80"),
        *("importlib-metadata==8.7.0", "zipp"),
    )

    def configure(self) -> None:
        self.folder.mkdir(exist_ok=True)
        special = ["<unk>", "<pad>", "<s>", "</s>"]
        text = "".join(f"{piece}\n" for piece in [*special, *self.task.pieces])
        (self.folder / "vocab.txt").write_text(text, encoding="utf-8")

    def config_lines(self) -> int:
        return len(CONFIG.strip().split("\n"))

    def _write_config(self, tokens: int, save: int, beam: int, model: str) -> Path:
        path = self.folder / "config.yaml"
        values = {"folder": self.folder, "train": self.task.text("train"), "valid": self.task.text("valid")}
        values |= {"tokens": tokens, "save": save, "report": max(1, report_every(tokens) // 5)}  # a divisor of `save`
        values |= {"beam": beam, "lines": LINES_OF_A_BATCH, "model": model}
        path.write_text(CONFIG.format(**values), encoding="utf-8")
        return path

    def train(self, tokens: int, seconds: float, save: bool) -> list[float]:
        shutil.rmtree(self.folder / "model", ignore_errors=True)
        config = self._write_config(tokens, SAVE_EVERY if save else 1000000, 1, "null")
        command = [str(self.bin / "python"), "-m", "joeynmt", "train", str(config), "--skip-test"]
        return rates(r"Tokens per Sec:\s*([\d.]+)", run_for(command, seconds))

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        config = self._write_config(1024, SAVE_EVERY, beam, f'"{self.folder}/model/best.ckpt"')
        words = [str(self.bin / "python"), str(config), str(source), str(out)]
        return ["sh", "-c", '"$0" -m joeynmt translate "$1" < "$2" > "$3"', *words]  # its --output-path fails

    def help(self) -> list[str]:
        return [str(self.bin / "python"), "-m", "joeynmt", "--help"]
