"""log.jsonl: entries are read as they were written, and docs/log.md describes all fields."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from nmt_cli.store.log import (
    KINDS,
    Average,
    End,
    LogWriter,
    Note,
    Start,
    Train,
    Valid,
    best_validation,
    flops_by_time,
    read_log,
    seconds_of,
    to_table,
)

PAGE = Path(__file__).parents[2] / "docs/log.md"
FIGURES = {
    "loss": 1.5,
    "ppl": 4.48,
    "bleu": 30.0,
    "chrf": 50.0,
    "signature": "nrefs:1|tok:13a",
    "lines": 10,
    "seconds": 0.5,
}
ENTRIES = [
    Start(0, False, "runs/é", "rnn", 10, 400, 10, "cpu", "fp32", "as the recipe says", 1, 2, 1, None, 100),
    Train(5, 0.5, 2.0, 7.4, 1e-3, 1.0, 500, 1e3, 0.04, 0.1, 0.5, 1e9, 100.0),
    Valid(5, 30.0, **FIGURES, best=True),
    Note(7, "update 7 skipped"),
    Average(10, 29.0, **FIGURES, best=False, checkpoints=("step-5", "step-10")),
    End(10, "10 steps", 0),
]
JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def json_type(hint: object) -> str:
    if hint == tuple[str, ...]:
        return "array of strings"
    return " or ".join(JSON_TYPES[part] for part in get_args(hint) or (hint,))


def test_the_page_describes_every_field_of_every_kind():
    page = PAGE.read_text()
    assert re.findall(r"^## `(\w+)`", page, re.M) == [kind.kind for kind in KINDS]
    for kind, section in zip(KINDS, page.split("\n## ")[1:], strict=True):
        assert kind.__doc__ in section
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", section, re.M)
        hints = get_type_hints(kind, include_extras=True)
        described = [(field.name, *get_args(hints[field.name])) for field in fields(kind)]
        assert rows == [(name, json_type(hint), meaning) for name, hint, meaning in described]


def test_entries_are_read_as_they_were_written(tmp_path):
    log = LogWriter(tmp_path, 0)
    for entry in ENTRIES:
        log.write(entry)
    log.close()
    assert read_log(tmp_path) == ENTRIES
    assert {type(entry) for entry in ENTRIES} == set(KINDS)
    first = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert list(first)[:2] == ["kind", "step"] and first["run"] == "runs/é" and first["best_bleu"] is None


@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        pytest.param(0, 0, id="nothing"),
        pytest.param(2, 6, id="an update"),
        pytest.param(3, 6.5, id="a validation after it"),
        pytest.param(6, 7, id="the average after it"),
    ],
)
def test_the_time_of_a_run_ends_after_its_last_validation(count, seconds):
    """The minutes of an update include all validations before it."""
    assert seconds_of(ENTRIES[:count]) == pytest.approx(seconds)
    if count:
        later = replace(ENTRIES[1], minutes=3.0)
        assert seconds_of([*ENTRIES[:count], later]) == pytest.approx(180)


def test_a_log_continues_after_the_step_of_the_checkpoint(tmp_path):
    """A killed session wrote the lines of later steps, and cut the last one short."""
    text = "".join(json.dumps(to_table(entry)) + "\n" for entry in ENTRIES)
    (tmp_path / "log.jsonl").write_text(text + '{"kind": "tra')
    assert read_log(tmp_path) == ENTRIES
    log = LogWriter(tmp_path, 5)
    log.write(Note(5, "more"))
    log.close()
    assert read_log(tmp_path) == [*ENTRIES[:3], Note(5, "more")]


def test_flops_by_time_multiply_the_minutes_of_each_session_by_its_rate():
    """The paper's base model: 12 hours on 8 processors with 9.5e12 operations per second make 3.3e18."""
    start, update = ENTRIES[0], next(entry for entry in ENTRIES if type(entry) is Train)
    day = [replace(start, rate=8 * 9.5e12), replace(update, minutes=300.0), replace(update, minutes=720.0)]
    assert flops_by_time(day) == pytest.approx(3.2832e18)
    resumed = [*day, replace(start, rate=1e9), replace(update, minutes=721.0)]
    assert flops_by_time(resumed) == pytest.approx(3.2832e18 + 60e9)
    assert flops_by_time([start, update]) == 0  # an older log has no rate


def test_a_run_without_a_log_has_no_entries(tmp_path):
    assert read_log(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind": "nonsense", "step": 1}',
        b'{"kind": "end", "step": 1}',
        b'{"kind": "note", "step": 1, "x": 2}',
        b'{"kind": "note", "step": "1", "text": ""}',
        b'{"kind": ["note"], "step": 1, "text": ""}',
        b"[1]",
        b"[" * 100_000,
        b'{"kind": "note", "step": 1' + b"0" * 10_000 + b', "text": ""}',
        b'{"kind": "note", "step": 1, "text": "\xff"}',
        b'{"kind": "no\0e", "step": 1, "text": ""}',
        b"",
        b"\0" * 4096,
    ],
)
def test_a_damaged_line_is_named_and_stays_and_takes_no_other_line_with_it(tmp_path, line):
    path = tmp_path / "log.jsonl"
    whole = [json.dumps(to_table(entry)).encode() for entry in ENTRIES]
    damaged = b"\n".join([*whole[:2], line, *whole[2:], b""])
    path.write_bytes(damaged)
    messages: list[str] = []
    assert read_log(tmp_path, on_damage=messages.append) == ENTRIES
    assert messages == [f"line 3 of {path} cannot be read"]
    LogWriter(tmp_path, 10).close()
    assert path.read_bytes() == damaged
    LogWriter(tmp_path, 5).close()
    assert path.read_bytes() == b"\n".join([*whole[:2], line, whole[2], b""])


@pytest.mark.parametrize("tail", [b"\0" * 4096, b'{"kind": "tra', b'{"kind": "tra\0\0\0', b"\xff"])
def test_a_log_whose_end_a_power_cut_has_damaged_is_continued(tmp_path, tail):
    path = tmp_path / "log.jsonl"
    whole = "".join(json.dumps(to_table(entry)) + "\n" for entry in ENTRIES).encode()
    path.write_bytes(whole + tail)
    messages: list[str] = []
    assert read_log(tmp_path, on_damage=messages.append) == ENTRIES
    assert messages == [f"line 7 of {path} cannot be read"]
    log = LogWriter(tmp_path, 10)
    log.write(ENTRIES[3])
    log.close()
    assert path.read_bytes().startswith(whole) and read_log(tmp_path) == [*ENTRIES, ENTRIES[3]]


def test_zeros_before_a_line_do_not_hide_it(tmp_path):
    """A power cut left zeros, and an older version of nmt wrote on behind them."""
    (tmp_path / "log.jsonl").write_bytes(b"\0" * 100 + json.dumps(to_table(ENTRIES[3])).encode() + b"\n")
    assert read_log(tmp_path) == [ENTRIES[3]]


def test_many_damaged_lines_are_counted(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"x\n" * 1003)
    messages: list[str] = []
    read_log(tmp_path, on_damage=messages.append)
    assert messages == [f"lines 1, 2, 3 and 1,000 more of {tmp_path / 'log.jsonl'} cannot be read"]


def test_the_best_validation_is_the_last_that_was_the_best_of_its_time():
    """Values by different metrics cannot be compared."""
    by_bleu, by_loss, worse = (
        Valid(step, value, **FIGURES, best=best)
        for step, value, best in ((5, 30.0, True), (10, -1.5, True), (15, -1.6, False))
    )
    assert best_validation([ENTRIES[0], by_bleu, by_loss, worse]) is by_loss
    assert best_validation([ENTRIES[0]]) is None


def test_reading_a_log_does_not_import_torch():
    code = "import sys, nmt_cli.store.log; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
