"""What a person sees of `nmt train`: a living line on a terminal, plain lines elsewhere, a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.run_folder import Entry, read_log
from nmt_cli.terminal.console import messages, output
from nmt_cli.terminal.plot import framed

_PLAIN_EVERY = 10.0  # seconds between lines where there is no terminal


class TrainingScreen:
    """Takes the trainer's entries and shows them. The living line goes to stderr, the summary to stdout."""

    def __init__(self, recipe: Recipe, summarise: bool = True) -> None:
        self.recipe, self.summarise = recipe, summarise
        self.console = messages()
        self.signal = 0
        self.latest: Entry = {}
        self.best = ""
        self.began = time.monotonic()
        self.printed = 0.0
        self.live = Live(Text(""), console=self.console, transient=True, refresh_per_second=8)

    def __enter__(self) -> TrainingScreen:
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def watch(self, entry: Entry) -> None:
        show: Callable[[Entry], None] = getattr(self, f"on_{entry['kind']}")
        show(entry)

    def on_start(self, entry: Entry) -> None:
        if self.console.is_terminal:  # not sooner: of several processes only the leader has anything to show
            self.live.start()
        if entry["best_bleu"] is not None:
            self.best = f"  best {entry['best_bleu']:.2f}"
        verb = f"going on from step {entry['step']:,}" if entry["resumed"] else "training"
        threads = f"{entry['threads']} thread" + "s" * (entry["threads"] > 1)
        if entry["processes"] > 1:
            threads = f"{entry['processes']} processes of {threads}"
        self.say(
            f"{verb} in {entry['run']}: {entry['family']}, {entry['parameters']:,} parameters, "
            f"{entry['pairs']:,} pairs, {entry['valid']:,} validation lines"
        )
        self.say(f"{entry['device']}, {threads}, {entry['precision']}: {entry['reason']}")

    def on_step(self, entry: Entry) -> None:
        self.latest = {**self.latest, **entry}
        if self.console.is_terminal:
            self.live.update(self.line())

    def on_train(self, entry: Entry) -> None:
        self.latest = {**self.latest, **entry}
        now = time.monotonic()
        if not self.console.is_terminal and now - self.printed >= _PLAIN_EVERY:
            self.printed = now
            self.console.print(self.line(), soft_wrap=True)

    def on_validating(self, entry: Entry) -> None:
        self.update(f"step {entry['step']:,}  validating ...")

    def on_stopping(self, entry: Entry) -> None:
        self.update("stopping after this update; Ctrl-C again quits at once")

    def on_valid(self, entry: Entry, name: str = "valid") -> None:
        figures = f"step {entry['step']:,}  {name}"
        if "loss" in entry:
            figures += f"  loss {entry['loss']:.3f}  ppl {entry['ppl']:.2f}"
            figures += f"  BLEU {entry['bleu']:.2f}  chrF {entry['chrf']:.2f}"
        figures += f"  ({entry['lines']:,} lines, {entry['seconds']:.1f} s)"
        if entry["best"]:
            self.best = f"  best {entry['bleu']:.2f}" if "bleu" in entry else ""
            figures += "  best so far"
        self.say(figures)

    def on_average(self, entry: Entry) -> None:
        self.on_valid(entry, f"average of {len(entry['of'])} checkpoints")

    def on_note(self, entry: Entry) -> None:
        self.say(entry["text"])

    def on_end(self, entry: Entry) -> None:
        self.signal = entry.get("signal", 0)
        run = self.recipe.run_folder
        self.live.stop()
        if not self.summarise and not self.signal:
            self.say(f"finished: {entry['reason']}")
            return
        if entry.get("already"):
            self.say(
                f"finished before: {entry['reason']}. --force starts again; a schedule that knows no end "
                "(inverse_sqrt, constant), or one in minutes, goes on if its limit is raised"
            )
        elif self.signal:
            self.say(f"stopped at step {entry['step']:,} and saved; the same command goes on")
            return
        output().print(summary(read_log(run), entry["reason"]))
        self.say(f"\nmodel in {run / 'model'}, every figure in {run / 'log.jsonl'}")
        self.say(f"next: echo 'Some text.' | nmt translate {run}")
        self.say(f"      nmt translate {run} TEST | nmt score - --ref REFERENCE")
        self.say(f"      nmt inspect {run} 'Some text.'")

    def say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=not self.console.is_terminal)  # a terminal's own wrapping cuts words

    def update(self, text: str) -> None:
        if self.console.is_terminal:
            self.live.update(Text(text, style="dim"))

    def line(self) -> Text:
        latest, settings = self.latest, self.recipe.train
        total = f"/{settings.steps:,}" if settings.steps else ""
        parts = {"step": f"step {latest['step']:,}{total}", "epoch": f"epoch {latest['epoch']:.2f}"}
        parts["loss"] = f"loss {latest['loss']:.3f}"
        if "lr" in latest:
            parts["lr"] = f"lr {latest['lr']:.1e}"
            parts["speed"] = f"{latest['tokens_per_second']:,.0f} tok/s"
            parts["padding"] = f"pad {latest['padding']:.1%}"
        if eta := self.remaining():
            parts["eta"] = f"ETA {eta}"
        for name in ("padding", "lr", "epoch"):  # what a narrow terminal can do without
            if self.console.is_terminal and len("  ".join(parts.values()) + self.best) > self.console.width:
                parts.pop(name, None)
        return Text("  ".join(parts.values()) + self.best, no_wrap=True, overflow="ellipsis")

    def remaining(self) -> str:
        """By the budget that is used up first; early stopping cannot be foreseen."""
        spent = self.latest.get("spent", 0.0)
        return duration(60 * self.latest["minutes"] * (1 - min(1.0, spent)) / spent) if spent else ""


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def summary(log: list[Entry], reason: str) -> RenderableType:
    """The whole run, over all its sessions."""
    trained = [entry for entry in log if entry["kind"] == "train"]
    validated = [entry for entry in log if entry["kind"] in ("valid", "average") and "bleu" in entry]
    parts: list[RenderableType] = []
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("stopped", reason)
    if trained:
        last = trained[-1]
        table.add_row(
            "trained", f"{last['step']:,} steps, {last['epoch']:.1f} epochs, {last['tokens']:,} target tokens"
        )
        table.add_row(
            "time", f"{duration(60 * last['minutes'])}, {last['tokens'] / 60 / last['minutes']:,.0f} tokens/s overall"
        )
        table.add_row("compute", f"{last['flops']:.2e} FLOPs, {last['memory_mb']:,.0f} MB at most")
    if validated:
        # The last of the best ones: values by different metrics cannot be compared.
        best = next((entry for entry in reversed(validated) if entry.get("best")), validated[-1])
        table.add_row(
            "best",
            f"BLEU {best['bleu']:.2f}, chrF {best['chrf']:.2f}, loss {best['loss']:.3f} at step {best['step']:,}",
        )
        table.add_row("", Text(f"{best['signature']}, {best['lines']:,} validation lines", style="dim"))
    parts.append(table)
    if len(trained) > 3:
        losses = [entry["loss"] for entry in trained]
        end = f"step {trained[-1]['step']:,}"
        parts += ["", Text("training loss"), Text(framed(losses, 60, 5, "", end, "{:.2f}", low=0.9 * min(losses)))]
    if len(validated) > 1:
        bleus = [entry["bleu"] for entry in validated]
        end = f"step {validated[-1]['step']:,}"
        parts += ["", Text("validation BLEU"), Text(framed(bleus, 60, 5, "", end, "{:.1f}"))]
    return Group(*parts)
