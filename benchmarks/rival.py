"""The training speed of `nmt train` compared with OpenNMT-py, on the same machine in the same run.

    python benchmarks/rival.py BIN [FOLDER]     # about twelve minutes

BIN is the bin folder of a virtual environment with OpenNMT-py 3.5.1. FOLDER holds train.en.gz and train.de.gz of
Multi30k. OpenNMT-py 3.5.1 requires older packages; with a current torch it runs when it is installed like this:

    pip install --no-deps OpenNMT-py==3.5.1 configargparse pyyaml pyonmttok rapidfuzz pyahocorasick fasttext-wheel
    pip install torch sacrebleu sentencepiece ctranslate2 waitress flask tensorboard
    sed -i 's/^import spacy/spacy = None/' .../site-packages/onmt/transforms/terminology.py

Both programs train the model of benchmarks/train.py on the same pieces, with the same number of tokens per batch, and
take turns. The figure is the ratio of target tokens/s. Each program reports its own rate: nmt in log.jsonl, onmt_train
on the terminal.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from train import MODEL, MULTI30K, NO_VALIDATION, TRAIN, nmt

from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import load_vocab

ROUNDS, SECONDS = 3, 50
SIZES = (1024, 4096)
CONFIG = """
save_data: {folder}/onmt
src_vocab: {folder}/onmt.vocab
tgt_vocab: {folder}/onmt.vocab
share_vocab: true
overwrite: true
data: {{corpus: {{path_src: {folder}/train.en, path_tgt: {folder}/train.de}}}}
save_model: {folder}/onmt-model
train_steps: 100000
report_every: {every}
valid_steps: 1000000
save_checkpoint_steps: 1000000
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
learning_rate: 1.0
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


def prepare(folder: Path, data: Path, onmt: Path) -> None:
    files = ("--source", data / "train.en.gz", "--target", data / "train.de.gz", "--vocab-size", 8000)
    nmt("prepare", *files, "--out", folder / "data")
    vocab = load_vocab(folder / "data/vocab").source
    for language in ("en", "de"):
        lines = [
            " ".join(vocab.encode(line, out_type=str)) + "\n" for line in read_lines(data / f"train.{language}.gz")
        ]
        (folder / f"train.{language}").write_text("".join(lines), encoding="utf-8")
    (folder / "onmt.yaml").write_text(CONFIG.format(folder=folder, tokens=1024, every=10))
    build = [onmt / "onmt_build_vocab", "-config", folder / "onmt.yaml", "-n_sample", "-1"]
    subprocess.run(build, check=True, capture_output=True)
    kept = [line for line in (folder / "onmt.vocab").read_text(encoding="utf-8").split("\n") if len(line.split()) == 2]
    (folder / "onmt.vocab").write_text(
        "\n".join(kept) + "\n", encoding="utf-8"
    )  # onmt_train cannot read pieces that are a space character


def theirs(folder: Path, onmt: Path, tokens: int) -> list[float]:
    (folder / "onmt.yaml").write_text(CONFIG.format(folder=folder, tokens=tokens, every=10 * 1024 // tokens))
    command = ["timeout", "-s", "INT", str(SECONDS + 10), onmt / "onmt_train", "-config", folder / "onmt.yaml"]
    messages = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    return [float(rate) for rate in re.findall(r"\d+/\s*(\d+) tok/s", messages)][
        2:
    ]  # the second of two rates is that of target tokens


def ours(folder: Path, tokens: int, number: int) -> list[float]:
    run = folder / f"run-{tokens}-{number}"
    sets = [
        part
        for setting in (*MODEL, *TRAIN, *NO_VALIDATION, f"train.batch_tokens={tokens}")
        for part in ("--set", setting)
    ]
    nmt("train", folder / "data", "--out", run, "--minutes", SECONDS / 60, *sets)
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [entry["tokens_per_second"] for entry in entries if entry["kind"] == "train"][2:]


def main() -> None:
    if len(sys.argv) < 2:
        print("skipped: name the bin folder of an environment with OpenNMT-py: python benchmarks/rival.py BIN")
        return
    onmt, data = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else MULTI30K
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, data, onmt)
        print("tokens per batch    nmt tok/s   OpenNMT-py tok/s   ratio of medians, round by round")
        for tokens in SIZES:
            rounds = []
            for number in range(ROUNDS):
                rounds.append(
                    (statistics.median(ours(folder, tokens, number)), statistics.median(theirs(folder, onmt, tokens)))
                )
            ratios = "  ".join(f"{our / their:.2f}" for our, their in rounds)
            our, their = (statistics.median(rates) for rates in zip(*rounds, strict=True))
            print(f"{tokens:>17,} {our:>11,.0f} {their:>18,.0f}   {ratios}", flush=True)


if __name__ == "__main__":
    main()
