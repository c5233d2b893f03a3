"""Eole 0.6.4, the successor of OpenNMT-py."""

from __future__ import annotations

import shutil
from pathlib import Path

from rivals.task import LINES_OF_A_BATCH, SAVE_EVERY, Rival, rates, report_every, run, run_for

CONFIG = """
save_data: {folder}/data
src_vocab: {folder}/vocab
tgt_vocab: {folder}/vocab
share_vocab: true
overwrite: true
report_every: {report}
data:
  corpus:
    path_src: {train}.en
    path_tgt: {train}.de
training:
  model_path: {folder}/model
  compute_dtype: fp32
  train_steps: 1000000
  valid_steps: 1000000
  save_checkpoint_steps: {save}
  keep_checkpoint: 1
  batch_type: tokens
  batch_size: {tokens}
  batch_size_multiple: 1
  normalization: tokens
  bucket_size: 29000
  num_workers: 0
  prefetch_factor: 4
  accum_count: [1]
  dropout: [0.1]
  attention_dropout: [0.0]
  label_smoothing: 0.1
  optim: adam
  adam_beta2: 0.98
  learning_rate: 0.32   # times (256 x 400)^-0.5 = 1e-3 at its peak
  decay_method: noam
  warmup_steps: 400
  max_grad_norm: 0
  param_init_method: xavier_uniform
model:
  architecture: transformer
  layers: 3
  heads: 4
  hidden_size: 256
  transformer_ff: 1024
  share_embeddings: true
  share_decoder_embeddings: true
  embeddings:
    word_vec_size: 256
    position_encoding_type: SinusoidalInterleaved
"""


class Eole(Rival):
    name = "Eole"
    packages = (
        *("eole==0.6.4", "configargparse", "pyyaml", "pyonmttok", "rapidfuzz", "pyahocorasick", "fasttext-wheel"),
        *("waitress", "torch-optimi", "subword-nmt", "pydantic", "pydantic-core", "annotated-types"),
        *("typing-inspection", "datasets", "pandas", "pyarrow", "dill", "xxhash", "multiprocess", "fsspec"),
        *("python-dateutil", "pytz", "tzdata", "six", "uvicorn", "torchcodec", "aiohttp", "multidict", "yarl"),
        *("frozenlist", "aiosignal", "attrs", "propcache", "aiohappyeyeballs"),
        *("fastapi==0.115.12", "starlette==0.46.2"),  # newer ones need packages that Eole does not name
    )

    def configure(self) -> None:
        self.folder.mkdir(exist_ok=True)
        config = self._write_config(1024, save=False)
        run([str(self.bin / "eole"), "build_vocab", "-config", str(config), "-n_sample", "-1"])
        vocab = self.folder / "vocab"  # a piece that is a space character cannot be read
        kept = [line for line in vocab.read_text(encoding="utf-8").split("\n") if len(line.split()) == 2]
        vocab.write_text("\n".join(kept) + "\n", encoding="utf-8")

    def _write_config(self, tokens: int, save: bool) -> Path:
        path = self.folder / "config.yaml"
        values = {"folder": self.folder, "train": self.task.text("train"), "tokens": tokens}
        values |= {"report": report_every(tokens), "save": SAVE_EVERY if save else 1000000}
        path.write_text(CONFIG.format(**values), encoding="utf-8")
        return path

    def config_lines(self) -> int:
        return len(CONFIG.strip().split("\n"))

    def train(self, tokens: int, seconds: float, save: bool) -> list[float]:
        shutil.rmtree(self.folder / "model", ignore_errors=True)
        config = self._write_config(tokens, save)
        printed = run_for([str(self.bin / "eole"), "train", "-config", str(config)], seconds)
        return rates(r"\d+/\s*(\d+) tok/s", printed)  # the second of two rates is that of target tokens

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        steps = [path for path in (self.folder / "model").glob("step_*") if path.is_dir()]
        model = max(steps, key=lambda path: path.stat().st_mtime)
        words = ["-model_path", str(model), "-src", str(source), "-output", str(out), "-beam_size", str(beam)]
        batches = ["-batch_type", "sents", "-batch_size", str(LINES_OF_A_BATCH), "-max_length", "100"]
        return [str(self.bin / "eole"), "predict", *words, *batches]

    def help(self) -> list[str]:
        return [str(self.bin / "eole"), "--help"]
