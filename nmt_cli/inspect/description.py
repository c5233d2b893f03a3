"""Describe a trained model: its parts, its vocabulary, its training, its scores. `nmt inspect MODEL` leads here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.model.base import parameters_by_part, training_flops
from nmt_cli.search.quality import Quality, from_json, read_quality
from nmt_cli.store.checkpoint import load_model
from nmt_cli.store.folders import find_model, run_of_model
from nmt_cli.store.log import End, Entry, Train, Valid, flops_by_time, from_table, read_log, seconds_of, to_table
from nmt_cli.terminal.console import warn
from nmt_cli.terminal.plot import bar, curves, duration
from nmt_cli.terminal.tables import facts, new_table

_DIAGRAM = 20  # columns of the bars of the reliability diagram


def description(path: Path) -> dict[str, Any]:
    """Everything about the model in `path`, ready for JSON."""
    trained = load_model(path)
    parts = parameters_by_part(trained.model)
    vocab = trained.vocab
    files = find_model(path)
    quality = read_quality(files.quality)
    run = run_of_model(files.path)
    log = read_log(run.path, on_damage=warn) if run else []
    return {
        "model": asdict(trained.recipe.model),
        "parameters": parts.total(),
        "parts": dict(parts),
        # Training takes three times the FLOPs of a forward pass: the backward pass takes twice as many.
        "flops_per_source_piece": training_flops(trained.model, 1, 0) / 3,
        "flops_per_target_piece": training_flops(trained.model, 0, 1) / 3,
        "vocabulary": {
            "type": vocab.type,
            "joint": vocab.joint,
            "source": vocab.sizes[0],
            "target": vocab.sizes[1],
            "source_lang": vocab.source_lang,
            "target_lang": vocab.target_lang,
            "normalization": vocab.normalization,
            "symbols": list(vocab.symbols),
        },
        "trained": trained.about,
        "quality": None if quality is None else asdict(quality),
        "flops_by_time": flops_by_time(entry for entry in log if entry.step <= trained.about.get("step", 0)),
        "history": [to_table(entry) for entry in log],
    }


def show_description(about: dict[str, Any]) -> RenderableType:
    log = [from_table(entry) for entry in about["history"]]
    losses = [(entry.step, entry.loss) for entry in log if isinstance(entry, Train)]
    bleus = [(entry.step, entry.bleu) for entry in log if isinstance(entry, Valid) and entry.bleu is not None]
    training = Group(Text("Training", style="bold"), facts(_training(about, log)), *curves(losses, bleus))
    quality = ["", *_reliability(from_json(about["quality"]))] if about["quality"] else []
    return Group(facts(_figures(about)), "", _parameters(about), "", training, *quality)


def _figures(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    model, vocab = dict(about["model"]), about["vocabulary"]
    languages = " to ".join(filter(None, (vocab["source_lang"], vocab["target_lang"])))
    yield "model", ", ".join(filter(None, (model.pop("family"), languages)))
    yield "", ", ".join(f"{key} {value}" for key, value in model.items())
    sizes = f"{vocab['source']:,} joint" if vocab["joint"] else f"{vocab['source']:,} and {vocab['target']:,}"
    symbols = f", symbols {' '.join(vocab['symbols'])}" if vocab["symbols"] else ""
    yield "vocabulary", f"{sizes} {vocab['type']} pieces, {vocab['normalization']}{symbols}"
    source, target = (f"{about[f'flops_per_{side}_piece'] / 1e6:,.2f}" for side in ("source", "target"))
    yield "translating", f"{source} MFLOPs per source piece, {target} per target piece of each hypothesis"


def _parameters(about: dict[str, Any]) -> Table:
    total = about["parameters"]
    table = new_table("", "", "", "", title="Parameters", left=(0, 3))
    table.show_header = False
    for name, count in about["parts"].items():
        table.add_row(name, f"{count:,}", f"{count / total:.0%}", bar(count, total, 14))
    table.add_row("all", f"{total:,}", "", f"{total * 4 / 1e6:,.1f} MB in fp32", style="bold")
    return table


def _reliability(quality: Quality) -> Iterator[RenderableType]:
    """The reliability diagram: does a confidence of 0.7 mean that 70 % of the translations are good?"""
    table = new_table("confidence", "good", "lines", "good █, confidence │", title="Confidence", left=(3,))
    for one in quality.reliability:
        drawn = bar(one.good, 1, _DIAGRAM).ljust(_DIAGRAM)
        mark = min(_DIAGRAM - 1, int(one.confidence * _DIAGRAM))
        drawn = f"{drawn[:mark]}│{drawn[mark + 1 :]}".rstrip()
        if one.lines:
            table.add_row(f"{one.confidence:.2f}", f"{one.good:.2f}", f"{one.lines:,}", drawn)
    yield table
    yield f"calibration error {quality.calibration_error:.3f} on {quality.lines:,} validation lines"
    yield Text(f"a translation is good if its sentence chrF is above {quality.good:g}", style="dim")


def _training(about: dict[str, Any], log: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """The facts that the model folder holds, then the facts of the whole run if there is a log."""
    trained = about["trained"]
    yield "recipe", str(trained.get("recipe", ""))
    if "step" in trained:
        yield "trained", f"{trained['step']:,} steps, {trained['tokens']:,} target tokens"
        yield "time", duration(60 * trained["minutes"])
        yield "compute", f"{trained['flops']:.2e} FLOPs by weight: 6 for each weight and token"
        if about["flops_by_time"]:
            yield "", f"{about['flops_by_time']:.2e} FLOPs by time: time x matrix rate of the processors"
    valid = trained.get("valid", {})
    if "bleu" in valid:
        yield "scores", f"BLEU {valid['bleu']:.2f}, chrF {valid['chrf']:.2f}, loss {valid['loss']:.3f}"
        yield "", f"{valid['signature']}, {valid['lines']:,} validation lines"
    if updates := [entry for entry in log if isinstance(entry, Train)]:
        last, seconds = updates[-1], seconds_of(log)
        memory = max(entry.memory_mb for entry in updates)  # each session counts its own peak
        speed = f"{last.tokens / seconds:,.0f} tokens/s, {memory:,.0f} MB at most"
        yield "whole run", f"{last.step:,} steps, {last.epoch:.1f} epochs, {duration(seconds)}, {speed}"
    if log:
        ends = [entry.reason for entry in log if isinstance(entry, End)]
        yield "stopped", ends[-1] if ends else "not finished (running or killed)"
