"""nmt itself, with the settings of the task, and with the settings that it chooses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import nmt_cli
from rivals.task import (
    DIM,
    DROPOUT,
    FF,
    HEADS,
    LAYERS,
    RATE,
    SMOOTHING,
    WARMUP,
    Rival,
    report_every,
    run,
    run_for,
    without_warm_up,
)

SETTINGS = {
    "model.dim": DIM,
    "model.heads": HEADS,
    "model.ff": FF,
    "model.encoder_layers": LAYERS,
    "model.decoder_layers": LAYERS,
    "model.dropout": DROPOUT,
    "model.attention_dropout": 0.0,
    "train.label_smoothing": SMOOTHING,
    "train.lr": RATE,
    "train.warmup": WARMUP,
    "train.schedule": "inverse_sqrt",
    "train.optimizer": "adam",
    "train.precision": "fp32",
    "train.steps": 0,
    "train.patience": 0,
}
NO_VALIDATION = {"train.valid_every": 1000000, "train.valid_lines": 10}


class Nmt(Rival):
    name = "nmt"
    raw = True
    settings = SETTINGS

    def install(self) -> str:
        return nmt_cli.__version__

    def config_lines(self) -> int:
        return len(self.settings) + 2  # source and target

    def train(self, tokens: int, seconds: float, save: bool) -> list[float]:
        shutil.rmtree(self.folder, ignore_errors=True)
        settings = {**self.settings, **NO_VALIDATION}
        if self.settings:
            settings |= {"train.batch_tokens": tokens, "train.auto": "false", "train.log_every": report_every(tokens)}
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "nmt_cli", "train", str(self.task.data), "--out", str(self.folder), *sets]
        if save:
            run([*command, "--minutes", str(seconds / 60)])
        else:
            run_for([*command, "--set", "train.steps=1000000"], seconds)
        entries = [json.loads(line) for line in (self.folder / "log.jsonl").read_text().splitlines()]
        reports = [entry["tokens_per_second"] for entry in entries if entry["kind"] == "train"]
        return without_warm_up(reports, entries[-1]["kind"])

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        words = ["--beam", str(beam), "--out", str(out), "--force"]
        return [sys.executable, "-m", "nmt_cli", "translate", str(self.folder), str(source), *words]

    def help(self) -> list[str]:
        return [sys.executable, "-m", "nmt_cli", "--help"]


class NmtChooses(Nmt):
    """`nmt train DATA --minutes M` without any setting."""

    name = "nmt, chosen settings"
    settings: dict[str, object] = {}  # noqa: RUF012
    has_help = False
