"""The messages of `nmt train`: a line that changes on a terminal, plain lines elsewhere, a summary at the end."""

from __future__ import annotations

import shlex
import threading
import time

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import Average, End, Entry, Note, Start, Train, Valid, best_validation, read_log, seconds_of
from nmt_cli.terminal.console import messages, output
from nmt_cli.terminal.plot import counted, curves, duration
from nmt_cli.terminal.tables import facts
from nmt_cli.training.trainer import STOPPING, AlreadyFinished, Event, Status, Step

_SILENCE = 30.0  # a file gets a line after this many seconds at most


class TrainingScreen:
    """Shows the events of a session. The changing line goes to stderr, the summary to stdout."""

    def __init__(self, recipe: Recipe, summarize: bool = True) -> None:
        self.recipe, self.summarize = recipe, summarize
        self.console = messages()
        self.train: Train | None = None
        self.best, self.steps = "", 0
        self.last_plain_line, self.last_sign_of_life = 0.0, time.monotonic()
        self.now = Text("")  # what the session does now
        self.ended = threading.Event()
        self.live = Live(Text(""), console=self.console, transient=True, refresh_per_second=8)

    def __enter__(self) -> TrainingScreen:
        if not self.console.is_terminal:
            threading.Thread(target=self.show_signs_of_life, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.live.stop()

    def show_signs_of_life(self) -> None:
        """In a thread: a line after every 30 seconds of silence, also during one long update or validation."""
        while not self.ended.wait(_SILENCE / 30):
            if self.now and time.monotonic() - self.last_sign_of_life >= _SILENCE:
                self.show_plain(self.now)

    def watch(self, event: Event) -> None:
        match event:
            case Start():
                self.show_start(event)
            case Step():
                self.show_now(self.line(event))
            case Train():
                self.train, now = event, time.monotonic()
                if not self.console.is_terminal and now - self.last_plain_line >= 10:
                    self.last_plain_line = now
                    self.show_plain(self.line(Step(event.step, event.epoch, event.loss)))
            case Status():
                if self.console.is_terminal:
                    self.live.start()
                elif event is STOPPING:
                    self.say(event.text)
                self.show_now(Text(event.text, style="dim"))
            case Valid():  # an Average is a Valid too
                self.show_validation(event)
            case Note():
                self.say(event.text)
            case End() | AlreadyFinished():
                self.show_end(event)

    def show_start(self, start: Start) -> None:
        self.steps = start.steps
        if self.console.is_terminal:
            self.live.start()
        if start.best_bleu is not None:
            self.best = f"  best {start.best_bleu:.2f}"
        verb = f"continuing from step {start.step:,}" if start.resumed else "training"
        threads = f"{start.threads} thread" + "s" * (start.threads > 1)
        if start.processes > 1:
            threads = f"{start.processes} processes of {threads}"
        self.say(
            f"{verb} in {start.run}: {start.family}, {start.parameters:,} parameters, "
            f"{start.pairs:,} pairs, {start.valid_lines:,} validation lines"
        )
        self.say(f"{start.device}, {threads}, {start.precision}: {start.precision_reason}")

    def show_now(self, line: Text) -> None:
        self.now = line
        if self.console.is_terminal:
            self.live.update(line)

    def show_plain(self, line: Text) -> None:
        self.last_sign_of_life = time.monotonic()
        self.console.print(line, soft_wrap=True)

    def show_validation(self, valid: Valid) -> None:
        name = f"average of {len(valid.checkpoints)} checkpoints" if isinstance(valid, Average) else "valid"
        figures = f"step {valid.step:,}  {name}"
        if valid.loss is not None:
            figures += f"  loss {valid.loss:.3f}  ppl {valid.ppl:.2f}  BLEU {valid.bleu:.2f}  chrF {valid.chrf:.2f}"
        figures += f"  ({valid.lines:,} lines, {valid.seconds:.1f} s)"
        if valid.best:
            self.best = "" if valid.bleu is None else f"  best {valid.bleu:.2f}"
            figures += "  best so far"
        self.say(figures)

    def show_end(self, end: End | AlreadyFinished) -> None:
        run = self.recipe.run_folder
        self.live.stop()
        if isinstance(end, End) and end.signal:
            self.say(f"stopped at step {end.step:,} and saved; the same command continues")
            return
        if not self.summarize:
            self.say(f"finished: {end.reason}")
            return
        if isinstance(end, AlreadyFinished):
            self.say(
                f"already finished: {end.reason}. To train longer, raise the limit; that works with train.minutes and "
                "with train.schedule = inverse_sqrt or constant. --force starts again."
            )
        output().print(summary(read_log(run), end.reason))
        self.say(f"\nmodel in {RunFolder(run).model}, all figures in {RunFolder(run).log}")
        quoted = shlex.quote(str(run))
        self.say(f"next: echo 'Some text.' | nmt translate {quoted}")
        self.say(f"      nmt translate {quoted} TEST | nmt score - --ref REFERENCE")
        self.say(f"      nmt inspect {quoted} 'Some text.'")

    def say(self, text: str) -> None:
        self.last_sign_of_life = time.monotonic()
        # Rich wraps at words on a terminal; elsewhere a message stays on one line.
        self.console.print(Text(text), soft_wrap=not self.console.is_terminal)

    def line(self, step: Step) -> Text:
        """The line that changes: `step 40/300  epoch 1.50  loss 2.345  lr 1.0e-03  ...  best 12.34`."""
        total = f"/{self.steps:,}" if self.steps else ""
        parts = {"step": f"step {step.step:,}{total}", "epoch": f"epoch {step.epoch:.2f}"}
        parts["loss"] = f"loss {step.loss:.3f}"
        if self.train is not None:
            parts["lr"] = f"lr {self.train.lr:.1e}"
            parts["speed"] = f"{self.train.tokens_per_second:,.0f} tok/s"
            parts["padding"] = f"pad {self.train.padding:.1%}"
            if self.train.budget_used:
                used = min(1.0, self.train.budget_used)  # early stopping cannot be foreseen
                parts["eta"] = f"ETA {duration(60 * self.train.minutes * (1 - used) / used)}"
        for least_needed in ("padding", "lr", "epoch"):
            if self.console.is_terminal and len("  ".join(parts.values()) + self.best) > self.console.width:
                parts.pop(least_needed, None)
        return Text("  ".join(parts.values()) + self.best, no_wrap=True, overflow="ellipsis")


def summary(log: list[Entry], reason: str) -> RenderableType:
    """The whole run, over all its sessions."""
    trained = [entry for entry in log if isinstance(entry, Train)]
    validated = [entry for entry in log if isinstance(entry, Valid) and entry.bleu is not None]
    rows = [("stopped", reason)]
    if trained:
        last, seconds = trained[-1], seconds_of(log)
        memory = max(entry.memory_mb for entry in trained)  # each session counts its own peak
        rows += [
            ("trained", f"{counted(last.step, 'step')}, {last.epoch:.1f} epochs, {last.tokens:,} target tokens"),
            ("time", f"{duration(seconds)}, {last.tokens / seconds:,.0f} tokens/s overall"),
            ("compute", f"{last.flops:.2e} FLOPs, {memory:,.0f} MB at most"),
        ]
    if validated:
        first, best = validated[0], best_validation(validated) or validated[-1]
        if first.step == 0:  # the model of --from
            rows.append(("before", f"BLEU {first.bleu:.2f}, chrF {first.chrf:.2f}, loss {first.loss:.3f}"))
        rows += [
            ("best", f"BLEU {best.bleu:.2f}, chrF {best.chrf:.2f}, loss {best.loss:.3f} at step {best.step:,}"),
            ("", f"{best.signature}, {best.lines:,} validation lines"),
        ]
    losses = [(entry.step, entry.loss) for entry in trained]
    bleus = [(entry.step, entry.bleu) for entry in validated if entry.bleu is not None]
    return Group(facts(rows), *curves(losses, bleus))
