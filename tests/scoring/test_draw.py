"""The tables, JSON and TSV that `nmt score` prints."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console
from support.score_texts import FILES, REFERENCE, tsv_rows

from nmt_cli.scoring.draw import closest, differences, draw_report
from nmt_cli.scoring.metrics import score


def test_table_of_translations_from_standard_input(nmt, files, tmp_path):
    result = nmt("score", "-", "--ref", "ref.de", stdin=(tmp_path / "a.de").read_bytes())
    assert result.code == 0 and result.err == "" and "\x1b" not in result.text
    from sacrebleu.metrics import BLEU

    expected = BLEU().corpus_score(FILES["a.de"], [REFERENCE]).score
    assert f"BLEU    standard input  {expected:.2f}" in result.text
    assert "BLEU   nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in result.text
    assert not [line for line in result.text.splitlines() if line != line.rstrip()]


def test_all_parts_in_one_table(nmt, files):
    result = nmt(
        *("score", "a.de", "b.de", "--ref", "ref.de", "--ref", "ref2.de", "--source", "src.en", "-m", "chrf,bleu"),
        *("--paired", "bs", "--samples", "20", "--sentences", "--by-length", "--worst", "2"),
    )
    assert result.code == 0 and result.err == "", result.err
    for part in ("p: paired bootstrap against a.de", "chrF2 by length of the source", "The worst lines by chrF2", "{+"):
        assert part in result.text
    assert result.text.count("\nline ") == 2 and "  line  system" in result.text


def test_tsv_of_the_worst_lines(nmt, write):
    write("ref.de", "ein Haus am See\nein Hund\tim Haus\n")
    write("a.de", "ein Haus am See\nkeine Katze\n")
    (row,) = tsv_rows(nmt("score", "a.de", "--ref", "ref.de", "-m", "ter", "--worst", "1", "--format", "tsv"))
    assert (row["line"], row["reference ref.de"], row["translation"]) == ("2", "ein Hund im Haus", "keine Katze")


def test_closed_stdout_pipe_ends_the_command_quietly(files, tmp_path):
    script = f"{sys.executable} -m nmt_cli score a.de --ref ref.de --sentences | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr == "" and done.stdout.strip() in ("0", "141")


def test_score_does_not_import_torch(files, tmp_path):
    script = (
        "import sys; from nmt_cli.cli import main\ntry: main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "score", "a.de", "--ref", "ref.de", "--worst", "1", "--by-length"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0 and done.stderr == "False\n"


def drawn(width: int, colored: bool, systems: dict[str, list[str]], *references: list[str]) -> str:
    report = score(
        systems,
        {f"ref{number}": lines for number, lines in enumerate(references)},
        source=["It is quiet there."] * len(references[0]),
        metrics="bleu",
        tokenize="char",
        worst=1,
        by_length=True,
    )
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colored, color_system="standard" if colored else None
    )
    for part in draw_report(report, width, colored):
        console.print(part)
    return console.file.getvalue()


CHINESE = ["我喜欢在周末去公园散步，因为那里很安静。" * 3]
OTHER = ["我爱在周末去公园走路，因为那儿非常安静。" * 3]


@pytest.mark.parametrize("width", [60, 100, 200])
def test_wide_characters_stay_within_the_width(width):
    from rich.cells import cell_len

    plain = drawn(width, False, {"out.zh": OTHER}, CHINESE)
    assert max(cell_len(line) for line in plain.splitlines()) <= width
    for line in CHINESE + OTHER:  # nothing is lost between the brackets and the line ends
        assert set(line) <= set(plain)
    assert "[-喜欢-]" in plain and "{+爱+}" in plain and "\x1b" not in plain


def test_terminal_shows_differences_in_color():
    colored = drawn(100, True, {"out.zh": OTHER}, CHINESE)
    assert "\x1b[1;32m喜欢\x1b[0m" in colored and "\x1b[1;31m爱\x1b[0m" in colored and "{+" not in colored


def test_control_codes_are_removed_and_markup_is_shown_as_text():
    plain = drawn(100, False, {"[red]a": ["\x1b[31mein [bold]Haus[/bold] \t am See"]}, ["ein Haus am See"])
    assert "\x1b" not in plain and "[bold]" in plain and "[red]a" in plain


def test_long_names_are_shortened_unless_they_become_equal():
    name = "runs/multi30k-en-de-warmup-8000/best/test.2016.flickr.de"
    plain = drawn(60, False, {name: ["ein Haus am See"], "b": ["ein See"]}, ["ein Haus am See"])
    assert plain.count("runs/m…ickr.de") == 3 and max(map(len, plain.splitlines()[:-3])) <= 60
    twins = drawn(60, False, {f"runs/long/{name}/{'x' * 30}.de": ["ein See"] for name in "ab"}, ["ein Haus am See"])
    assert "…" not in twins


@pytest.mark.parametrize(
    ("reference", "translation", "missed", "wrong"),
    [
        ("ein Haus am See.", "ein Haus am See.", "", ""),
        ("ein Haus am See.", "ein Boot am See!", "Haus .", "Boot !"),
        ("ein Haus", "", "ein Haus", ""),
        ("我喜欢公园。", "我爱公园", "喜 欢 。", "爱"),
        ("don't go", "do not go", "don ' t", "do not"),
    ],
)
def test_differences_by_word(reference, translation, missed, wrong):
    from nmt_cli.text.languages import words_and_marks

    missed_flags, wrong_flags = differences(reference, translation)
    for text, flags, expected in ((reference, missed_flags, missed), (translation, wrong_flags, wrong)):
        pieces = [word for word, _ in words_and_marks(text)]
        assert " ".join(word for word, flag in zip(pieces, flags, strict=True) if flag) == expected


def test_closest_reference():
    assert closest(["ein Boot", "ein Haus am See"], ["das Haus am See"]) == "ein Haus am See"


def test_very_long_line_is_cut_in_the_list_of_worst_lines(nmt, write):
    write("ref.de", "Haus " * 10_000 + "\nein Hund\n")
    write("a.de", "See " * 10_000 + "\nein Hund\n")
    result = nmt("score", "a.de", "--ref", "ref.de", "-m", "bleu", "--worst", "1", "--by-length")
    assert result.code == 0 and "…" in result.text and "Haus" in result.text
