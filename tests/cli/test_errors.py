"""Mistakes on the command line, and how a command ends: messages, exit codes, pipes, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.checks import assert_user_error

from nmt_cli.errors import quoted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepaer"], "'prepaer'. Did you mean 'prepare'?"),
        (["help", "prepaer"], "'prepaer'. Did you mean 'prepare'?"),
        (["prepare", "--uot", "x"], "--uot"),
        (["train"], "recipe"),
        (["train", "demo", "--minutes", "soon"], "--minutes"),
        (["inspect"], "model"),
        (["inspect", "x", "y", "--kind", "self"], "--kind"),
        (["demo", "a", "b"], "b"),
    ],
)
def test_wrong_command_line_is_a_user_error(nmt, arguments, message):
    result = nmt(*arguments)
    assert_user_error(result, "hint: nmt")
    assert message.lower() in result.err.lower()


def test_unknown_command_leads_to_the_list_of_commands(nmt):
    assert_user_error(nmt("translat"), "hint: nmt --help lists the commands")
    assert_user_error(nmt("translate"), "hint: nmt translate --help shows the options")


def test_unknown_recipe_is_a_user_error(nmt):
    assert_user_error(nmt("recipes", "none-such"), "there is no recipe none-such")


@pytest.mark.parametrize("options", [("translate",), ("inspect",), ("export", "--to", "hf", "--out", "out")])
def test_prepared_data_are_not_a_model(nmt_in, prepared, options):
    result = nmt_in(prepared, *options, "data")
    assert_user_error(result, "data holds prepared data, not a model", "train it first: nmt train data")


def test_the_folder_of_prepared_data_is_quoted(nmt, write):
    for name in ("meta.json", "train.source.ids"):
        write(f"my data/{name}", "")
    assert_user_error(nmt("translate", "my data"), "hint: train it first: nmt train 'my data'\n")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["a.en", "runs/tiny"], "nmt translate runs/tiny a.en"),
        (["b c.en", "a.en", "my runs", "--stats"], "nmt translate 'my runs' 'b c.en' a.en"),
        (["-", "runs/tiny"], "nmt translate runs/tiny -"),
        (["--", "-l.en", "runs/tiny"], "nmt translate runs/tiny ./-l.en"),
    ],
)
def test_a_text_before_the_model_is_a_user_error(nmt, write, arguments, command):
    for name in ("a.en", "b c.en", "-l.en"):
        write(name, "a house\n")
    for run in ("runs/tiny", "my runs"):
        write(f"{run}/model/model.safetensors", "")
        write(f"{run}/model/vocab/meta.json", "")
    result = nmt("translate", *arguments)
    first = next(argument for argument in arguments if argument != "--")
    assert_user_error(result, f"error: {first} is not a model\nhint: the model comes first: {command}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch", "a.en", "data/s"], "cannot read data/s: Is a directory"),
        (["nosuch", "a.en"], "there is no model nosuch"),
        (["a.en", "a.en"], "a.en is not a model"),
        (["data/s", "a.en"], "data/s holds prepared data, not a model"),
    ],
)
def test_a_missing_model_is_not_taken_for_a_text(nmt, write, arguments, message):
    for name in ("a.en", "data/s/meta.json", "data/s/train.source.ids"):
        write(name, "a house\n")
    write("run/model/model.safetensors", "")
    write("run/model/vocab/meta.json", "")
    result = nmt("translate", *arguments)
    assert_user_error(result, f"error: {message}")
    assert "comes first" not in result.err


def test_a_name_in_a_hint_is_not_read_as_an_option():
    names = ("-l.fr", "-l x/-y", "a-b", "./-x", "-", "/-x")
    expected = ["./-l.fr", "'./-l x/-y'", "a-b", "./-x", "-", "/-x"]
    assert [quoted(name) for name in names] == expected


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["prepare", "a.en", "a.de"], "nmt prepare --source FILE --target FILE --out FOLDER; nmt prepare --help"),
        (["train", "a.en", "a.de"], "nmt prepare --source FILE --target FILE --out FOLDER; nmt train --help"),
        (["finetune", "a.en", "a.de", "run"], "nmt finetune MODEL --source FILE --target FILE; nmt finetune --help"),
    ],
)
def test_text_files_without_options_are_a_user_error(nmt, arguments, command):
    assert_user_error(nmt(*arguments), f"hint: text files are named with options: {command}")


# rich would remove [bold], raise an error at [/x], and draw :smile: as an emoji.
MARKUP = ":smile:[bold]a[/x]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["NAME"],
        ["prepare", "NAME"],
        ["prepare", "--source", "NAME", "--target", "b.de", "--out", "out"],
        ["train", "NAME"],
        ["train", "demo", "--set", "NAME=1"],
        ["translate", "NAME"],
        ["score", "NAME", "--ref", "b"],
        ["score", "b.de", "--ref", "b.de", "--metrics", "NAME"],
        ["inspect", "NAME"],
        ["compare", "NAME", "b"],
        ["inspect", "NAME", "a sentence"],
        ["inspect", "NAME", "--show", "schedule"],
        ["export", "NAME", "--to", "hf", "--out", "out"],
        ["recipes", "NAME"],
        ["ladder", "NAME"],
        ["ladder", "--rungs", "NAME"],
    ],
    ids=" ".join,
)
def test_errors_show_brackets_and_colons_as_typed(nmt, write, arguments):
    write("b.de", "ein Haus\n")
    result = nmt(*(argument.replace("NAME", MARKUP) for argument in arguments))
    assert_user_error(result, MARKUP)


def test_messages_and_tables_show_brackets_and_colons_as_typed(nmt, write):
    folder = MARKUP
    write("a.en", "".join(f"a house {number} [/i] :smile:\n" for number in range(30)) + "[/b] x\n")
    write("a.de", "".join(f"ein Haus {number} [bold]\n" for number in range(30)) + "\n")
    files = ("--source", "a.en", "--target", "a.de", "--vocab-size", "60", "--out", folder)
    prepared = nmt("prepare", *files)
    assert prepared.code == 0, prepared.err
    assert f"written to {folder}" in prepared.err.replace("\n", " ")
    assert "[/b] x" in prepared.text  # an example of a dropped line
    again = nmt("prepare", *files)
    assert again.code == 0 and f"{folder} is up to date" in again.err
    demo = nmt("demo", f"{folder}/demo")
    assert demo.code == 0 and f"{folder}/demo/train.en" in demo.text
    scored = nmt("score", f"{folder}/demo/dev.en", "--ref", f"{folder}/demo/dev.fr", "--metrics", "chrf")
    assert scored.code == 0 and f"chrF2   {folder}/demo/dev.en" in scored.text, scored.text


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    script = f"{sys.executable} -m nmt_cli recipes --keys | head -1; echo ${{PIPESTATUS[0]}} >&2"
    done = subprocess.run(["bash", "-c", script], capture_output=True, cwd=tmp_path, check=False)
    assert done.stdout.count(b"\n") == 1
    assert done.stderr.decode().strip() in ("0", "141")


def test_closed_stdout_pipe_ends_the_command_quietly(tmp_path):
    script = f"{sys.executable} -m nmt_cli recipes --keys | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr == "" and done.stdout.strip() in ("0", "141")


def test_ctrl_c_during_imports_ends_the_process_silently():
    """Python's default handler would print a traceback."""
    script = "import nmt_cli.__main__, os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT and done.stderr == ""
