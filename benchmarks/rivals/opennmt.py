"""OpenNMT-py 3.5.1."""

from __future__ import annotations

from pathlib import Path

from rivals.task import LINES_OF_A_BATCH, SAVE_EVERY, Rival, rates, report_every, run, run_for

CONFIG = """
save_data: {folder}/onmt
src_vocab: {folder}/vocab
tgt_vocab: {folder}/vocab
share_vocab: true
overwrite: true
data: {{corpus: {{path_src: {train}.en, path_tgt: {train}.de}}}}
save_model: {folder}/model
train_steps: 1000000
report_every: {report}
valid_steps: 1000000
save_checkpoint_steps: {save}
keep_checkpoint: 1
model_dtype: fp32
encoder_type: transformer
decoder_type: transformer
position_encoding: true
enc_layers: 3
dec_layers: 3
heads: 4
hidden_size: 256
word_vec_size: 256
transformer_ff: 1024
dropout: [0.1]
attention_dropout: [0.0]
label_smoothing: 0.1
share_embeddings: true
share_decoder_embeddings: true
optim: adam
adam_beta2: 0.98
learning_rate: 0.32   # times (256 x 400)^-0.5 = 1e-3 at its peak
decay_method: noam
warmup_steps: 400
batch_type: tokens
batch_size: {tokens}
batch_size_multiple: 1
normalization: tokens
bucket_size: 29000
num_workers: 0
max_grad_norm: 0
param_init: 0
param_init_glorot: true
"""


class OpenNmt(Rival):
    name = "OpenNMT-py"
    packages = (
        *("OpenNMT-py==3.5.1", "configargparse", "pyyaml", "pyonmttok", "rapidfuzz", "pyahocorasick"),
        *("fasttext-wheel", "waitress", "flask", "werkzeug", "itsdangerous", "blinker"),
    )

    def mend(self, packages: Path) -> None:
        path = packages / "onmt/transforms/terminology.py"
        path.write_text(path.read_text().replace("\nimport spacy", "\nspacy = None"))

    def configure(self) -> None:
        self.folder.mkdir(exist_ok=True)
        config = self._write_config(1024, save=False)
        run([str(self.bin / "onmt_build_vocab"), "-config", str(config), "-n_sample", "-1"])
        vocab = self.folder / "vocab"  # onmt_train cannot read pieces that are a space character
        kept = [line for line in vocab.read_text(encoding="utf-8").split("\n") if len(line.split()) == 2]
        vocab.write_text("\n".join(kept) + "\n", encoding="utf-8")

    def _write_config(self, tokens: int, save: bool) -> Path:
        path = self.folder / "config.yaml"
        values = {"folder": self.folder, "train": self.task.text("train"), "tokens": tokens}
        values |= {"report": report_every(tokens), "save": SAVE_EVERY if save else 1000000}
        path.write_text(CONFIG.format(**values))
        return path

    def config_lines(self) -> int:
        return len(CONFIG.strip().split("\n"))

    def train(self, tokens: int, seconds: float, save: bool) -> list[float]:
        for path in self.folder.glob("model_step_*.pt"):
            path.unlink()
        config = self._write_config(tokens, save)
        printed = run_for([str(self.bin / "onmt_train"), "-config", str(config)], seconds)
        return rates(r"\d+/\s*(\d+) tok/s", printed)  # the second of two rates is that of target tokens

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        model = max(self.folder.glob("model_step_*.pt"), key=lambda path: path.stat().st_mtime)
        words = ["-model", str(model), "-src", str(source), "-output", str(out), "-beam_size", str(beam)]
        batches = ["-batch_type", "sents", "-batch_size", str(LINES_OF_A_BATCH), "-gpu", "-1", "-max_length", "100"]
        return [str(self.bin / "onmt_translate"), *words, *batches]

    def help(self) -> list[str]:
        return [str(self.bin / "onmt_train"), "--help"]
