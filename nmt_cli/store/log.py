"""RUN/log.jsonl: one JSON object per line, one dataclass here per kind of line. docs/log.md describes every field."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from nmt_cli.files import check_regular, new_file
from nmt_cli.store.folders import RunFolder


@dataclass(frozen=True)
class Entry:
    """The base of all kinds. The kind is the name of the class in small letters."""

    kind: ClassVar[str]
    step: Annotated[int, "updates made so far"]

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()


@dataclass(frozen=True)
class Start(Entry):
    """A session begins: `nmt train` was started, for the first time or again."""

    step: Annotated[int, "updates made before this session"]
    resumed: Annotated[bool, "true if the session continues from a checkpoint"]
    run: Annotated[str, "folder of the run, as the command named it"]
    family: Annotated[str, "`model.family` of the recipe"]
    parameters: Annotated[int, "number of trained weights"]
    pairs: Annotated[int, "training pairs in use; pairs that are too long are left out"]
    valid_lines: Annotated[int, "validation lines in use; 0 if there are none"]
    device: Annotated[str, "type of the device: `cpu`, `cuda`, `mps`, ..."]
    precision: Annotated[str, "`fp32`, `bf16` or `fp16`"]
    precision_reason: Annotated[str, "why this precision was chosen"]
    processes: Annotated[int, "processes that share each batch"]
    threads: Annotated[int, "threads of each process"]
    seed: Annotated[int, "`train.seed` of the recipe"]
    best_bleu: Annotated[float | None, "best BLEU so far (0 to 100), if the run selects by BLEU"]
    # Older logs lack the fields below.
    steps: Annotated[int, "`train.steps` of the recipe; 0 if there is no such limit"] = 0
    rate: Annotated[
        float, "operations per second in fp32 matrix products (TF32 on CUDA with `train.tf32`), over all processes"
    ] = 0.0


@dataclass(frozen=True)
class Train(Entry):
    """Figures of the updates since the last line of this kind. One line every `train.log_every` updates."""

    epoch: Annotated[float, "passes over the training data so far"]
    loss: Annotated[float, "mean training loss of a target token, in nats, with label smoothing and consistency terms"]
    ppl: Annotated[float, "perplexity of the training tokens, without label smoothing"]
    lr: Annotated[float, "learning rate of the last update"]
    gradient_norm: Annotated[float, "mean norm of the gradient, before clipping"]
    tokens: Annotated[int, "target tokens trained on so far, over all processes"]
    tokens_per_second: Annotated[float, "target tokens per second since the last line, validation excluded"]
    padding: Annotated[float, "share of the cells of the batches that is padding, from 0 to 1"]
    minutes: Annotated[float, "minutes of training so far over all sessions, validation included"]
    budget_used: Annotated[float, "share of the training budget that is used up; 1 ends the training"]
    flops: Annotated[float, "floating-point operations so far: 6 for each weight and token"]
    memory_mb: Annotated[
        float, "peak memory of this session so far, in MiB: of all processes on a CPU, of the first GPU otherwise"
    ]


@dataclass(frozen=True)
class Valid(Entry):
    """A validation. Without validation lines, the five figures of the metrics are null."""

    value: Annotated[float, "value of `train.metric`, higher is better (a loss is negated); the step without lines"]
    loss: Annotated[float | None, "mean negative log-likelihood of a target token, in nats"]
    ppl: Annotated[float | None, "perplexity, exp(loss)"]
    bleu: Annotated[float | None, "BLEU, from 0 to 100"]
    chrf: Annotated[float | None, "chrF, from 0 to 100"]
    signature: Annotated[str | None, "sacrebleu's signature of the BLEU score"]
    lines: Annotated[int, "validation lines that were translated"]
    seconds: Annotated[float, "seconds that the validation took"]
    best: Annotated[bool, "true if these weights are the best so far and were saved as the model"]


@dataclass(frozen=True)
class Average(Valid):
    """A validation of the mean of the last checkpoints, at the end of a run with `train.average`."""

    checkpoints: Annotated[tuple[str, ...], "names of the averaged checkpoints, oldest first"]


@dataclass(frozen=True)
class Note(Entry):
    """A remark for the reader, such as a skipped update or a damaged line of log.jsonl."""

    text: Annotated[str, "the remark, one sentence"]


@dataclass(frozen=True)
class End(Entry):
    """A session ends: the budget is used up, or a signal stopped it. A killed session has no such line."""

    reason: Annotated[str, "the limit that was reached, or the name of the signal"]
    signal: Annotated[int, "number of the signal that stopped the session; 0 if the run is finished"]


KINDS: tuple[type[Entry], ...] = (Start, Train, Valid, Average, Note, End)
_BY_NAME = {kind.kind: kind for kind in KINDS}


def to_table(entry: Entry) -> dict[str, Any]:
    return {"kind": entry.kind, **asdict(entry)}


def from_table(table: dict[str, Any]) -> Entry:
    """The entry of a JSON object. Raises KeyError or TypeError if the object has another kind or other fields."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    entry = _BY_NAME[fields.pop("kind")](**fields)
    check_types(entry)
    return entry


def check_types(table: Any) -> None:
    """Raise TypeError if a field of a dataclass has a value of another type. The values come from JSON."""
    kind: type = type(table)
    for name, types in _field_types(kind).items():
        if not isinstance(getattr(table, name), types):
            raise TypeError(f"{name} has another type")


@cache
def _field_types(kind: type) -> dict[str, tuple[type, ...]]:
    """The types that each field of a dataclass may have. JSON does not tell 1.0 from 1."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name != "kind"}
    types = {
        name: (origin,) if (origin := get_origin(hint)) in (tuple, list, dict) else get_args(hint) or (hint,)
        for name, hint in hints.items()
    }
    return {name: (*allowed, int) if float in allowed else allowed for name, allowed in types.items()}


def read_log(run: Path, on_damage: Callable[[str], None] | None = None) -> list[Entry]:
    """The entries of a run's log. `on_damage` gets a sentence about lines that cannot be read, if there are any."""
    path = RunFolder(run).log
    lines = _read_lines(path)
    damaged = [str(number) for number, (_, entry) in enumerate(lines, 1) if entry is None]
    if damaged and on_damage:
        listed = ", ".join(damaged[:3]) + (f" and {len(damaged) - 3:,} more" if len(damaged) > 3 else "")
        on_damage(f"line{'s' * (len(damaged) > 1)} {listed} of {path} cannot be read")
    return [entry for _, entry in lines if entry is not None]


def _read_lines(path: Path) -> list[tuple[bytes, Entry | None]]:
    """All lines of a log, with their line ends. The entry of a line that cannot be read is None."""
    if not path.exists():
        return []
    check_regular(path)
    with path.open("rb") as stream:
        return [(line, _parse(line)) for line in stream]


def _parse(line: bytes) -> Entry | None:
    try:
        return from_table(json.loads(line.strip(b"\0").decode("utf-8")))  # a power cut can leave zeros
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None


def best_validation(log: Iterable[Entry]) -> Valid | None:
    """The validation of the weights in RUN/model: the last one that was the best of its time.

    It need not have the highest value: the metric may have changed between two sessions.
    """
    return next((entry for entry in reversed(list(log)) if isinstance(entry, Valid) and entry.best), None)


def seconds_of(log: Iterable[Entry]) -> float:
    """The time of a run over all its sessions, up to its last update or validation.

    A Train entry has the time up to itself. The calibration and the export at the end have no entry.
    """
    seconds = 0.0
    for entry in log:
        if isinstance(entry, Train):
            seconds = 60 * entry.minutes
        if isinstance(entry, Valid):
            seconds += entry.seconds
    return seconds


def flops_by_time(log: Iterable[Entry]) -> float:
    """Training time multiplied by the rate of the processors, as in Table 2 of "Attention is all you need".

    0 if the log of an older version does not say the rate.
    """
    flops = minutes = rate = 0.0
    for entry in log:
        if isinstance(entry, Start):
            rate = entry.rate
        if isinstance(entry, Train):
            if not rate:
                return 0.0
            flops, minutes = flops + 60 * (entry.minutes - minutes) * rate, entry.minutes
    return flops


class LogWriter:
    """Appends entries to log.jsonl after this step, and their figures to TensorBoard if `board` is a SummaryWriter."""

    def __init__(self, run: Path, step: int, board: Any = None) -> None:
        path = RunFolder(run).log
        # A killed session wrote the lines after the last checkpoint. Their updates will be made again. A damaged line
        # stays as it is, unless its end is missing: then it was the last line, and a kill or a power cut cut it short.
        lines = [(line, entry) for line, entry in _read_lines(path) if entry or line.endswith(b"\n")]
        with new_file(path) as stream:
            for line, entry in lines:
                if entry is None or entry.step <= step:
                    stream.buffer.write(line.removesuffix(b"\n") + b"\n")
        self._stream, self._board = path.open("a", encoding="utf-8", newline="\n"), board

    @staticmethod
    def _line(entry: Entry) -> str:
        return json.dumps(to_table(entry), ensure_ascii=False) + "\n"

    def write(self, entry: Entry) -> None:
        self._stream.write(self._line(entry))
        self._stream.flush()
        if self._board is not None and entry.kind in ("train", "valid"):
            for name, value in asdict(entry).items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(f"{entry.kind}/{name}", value, entry.step)

    def sync(self) -> None:
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()
        if self._board is not None:
            self._board.close()
