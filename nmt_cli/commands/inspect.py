"""`nmt inspect`: what a model is, where it looks, and how it searches."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmt_cli.commands.options import Force, Overrides

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# What can be asked for, and the options that are heeded then. Of several, the first counts.
_SENTENCE = {"TEXT", "--target", "--beam-size", "--pieces"}
_VIEWS = {
    "--schedule": {"--ascii", "--set"},
    "--positions": {"--ascii", "--set"},
    "--beam": {"TEXT", "--beam-size", "--ascii"},
    "--html": _SENTENCE | {"--special", "--force"},
    "--format align": _SENTENCE | {"--layer", "--head"},
    "--format json": _SENTENCE | {"--special"},
    "--heads": _SENTENCE | {"--special", "--kind", "--layer", "--ascii"},
    "TEXT": _SENTENCE | {"--special", "--kind", "--layer", "--head", "--ascii"},
}
_MODEL_ALONE = {"--ascii", "--format json"}
_POSITIONS = 40  # as many as one sees at a glance


def inspect(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A run or its model/; for --schedule and --positions also a recipe.")
    ],
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="A sentence; - reads it from standard input.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Look at this translation instead of the model's own.")] = None,
    kind: Annotated[
        Literal["cross", "encoder", "decoder"] | None,
        typer.Option(help="From target to source (cross, the default), or within one of them."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="From 1; else the mean of all, or the last with --heads.")] = None,
    head: Annotated[int | None, typer.Option(help="From 1; else the mean of all.")] = None,
    heads: Annotated[bool, typer.Option("--heads", help="All heads of a layer, with their entropy.")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="Pieces as the model sees them, not words.")] = False,
    special: Annotated[bool, typer.Option("--special", help="Show <s> and </s> too.")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters only.")] = False,
    form: Annotated[
        Literal["text", "align", "json"],
        typer.Option("--format", help="A drawing, a Pharaoh alignment (source-target), or all figures."),
    ] = "text",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page to look at in a browser.")] = None,
    force: Force = False,
    beam: Annotated[bool, typer.Option("--beam", help="Draw the beam search as a tree.")] = False,
    beam_size: Annotated[int | None, typer.Option(min=1, help="Hypotheses kept; else the recipe's.")] = None,
    schedule: Annotated[bool, typer.Option("--schedule", help="Plot the learning rate of a recipe.")] = False,
    positions: Annotated[bool, typer.Option("--positions", help="Draw the position encoding.")] = False,
    overrides: Overrides = None,
) -> None:
    """Look into a model: what it is, what it attends to, how it searches.

    \b
    nmt inspect MODEL                            its parts and its training
    nmt inspect MODEL "I like the green cat."    translation and attention
    nmt inspect MODEL "I like the green cat." --html page.html
    nmt inspect MODEL "I like the green cat." --beam
    nmt inspect RECIPE --schedule
    """
    _refuse_strays(
        {
            "TEXT": text is not None, "--target": target is not None, "--kind": kind, "--layer": layer is not None,
            "--head": head is not None, "--heads": heads, "--pieces": pieces, "--special": special,
            "--ascii": ascii_only, f"--format {form}": form != "text", "--html": html, "--force": force,
            "--beam": beam, "--beam-size": beam_size, "--schedule": schedule, "--positions": positions,
            "--set": overrides,
        }
    )  # fmt: skip
    from nmt_cli.terminal.console import messages, output
    from nmt_cli.terminal.heatmap import ink_of

    console = output()
    ink = ink_of(console, ascii_only)
    if schedule:
        from nmt_cli.commands.dry_run import rate_curve
        from nmt_cli.commands.options import open_recipe

        _print(console, rate_curve(open_recipe(model, overrides), min(72, console.width)), ink == "ascii")
        return
    if positions:
        from nmt_cli.commands.options import open_recipe
        from nmt_cli.inspect.attention import position_table, show_positions

        table = position_table(open_recipe(model, overrides), Path(model), _POSITIONS)
        _print(console, show_positions(table, console.width, ink), ink == "ascii")
        return
    if text is None:
        from nmt_cli.inspect.description import description, show_description

        about = description(Path(model))
        if form == "json":
            typer.echo(json.dumps(about, ensure_ascii=False))
        else:
            _print(console, show_description(about), ink == "ascii")
        return

    from nmt_cli.inspect import attention as inspection
    from nmt_cli.store.checkpoint import load_model

    trained, sentence = load_model(Path(model)), _sentence(text)
    if beam:
        from nmt_cli.inspect.beam_tree import show_tree

        steps, options = inspection.beam_steps(trained, sentence, beam_size)
        tree = show_tree(steps, trained.vocab.target.id_to_piece, options, console.width)
        _print(console, tree, ink == "ascii")
        return
    given = None if target is None else _utf8(target)
    found = inspection.inspect(trained, sentence, given, beam_size, pieces, special)
    if html is not None:
        from nmt_cli.files import check_overwrite, replace_file

        check_overwrite(html, force, option="--html")
        replace_file(html, inspection.html_page(found))
        messages().print(f"{html} is written: open it in a browser", soft_wrap=True)
    elif form == "align":
        typer.echo(inspection.alignment(found, layer, head))
    elif form == "json":
        typer.echo(json.dumps(inspection.as_table(found), ensure_ascii=False))
    else:
        _print(console, inspection.show(found, kind or "cross", layer, head, heads, console.width, ink), ink == "ascii")


def _refuse_strays(options: dict[str, object]) -> None:
    """An option that would change nothing is a misunderstanding."""
    from nmt_cli.errors import NmtError

    given = [name for name, value in options.items() if value]
    view = next((view for view in _VIEWS if view in given), "")
    heeded = _VIEWS.get(view, _MODEL_ALONE)
    if "TEXT" in heeded and "TEXT" not in given:
        view, heeded = "", _MODEL_ALONE
    strays = [name for name in given if name != view and name not in heeded]
    if strays and "TEXT" not in given and view == "":
        raise NmtError(f"{strays[0]} needs a sentence", 'for example: nmt inspect MODEL "I like the green cat."')
    if strays:
        raise NmtError(f"{strays[0]} has no meaning with {view}", "leave one of them out")


def _sentence(text: str) -> str:
    """TEXT, or the only line of standard input."""
    from nmt_cli.errors import NmtError
    from nmt_cli.text.lines import STDIN, read_lines

    if text != "-":
        return _utf8(text)
    lines = list(read_lines(STDIN))
    if len(lines) > 1:
        raise NmtError(f"standard input has {len(lines):,} lines, not one", "head -1 takes the first")
    return lines[0] if lines else ""


def _utf8(argument: str) -> str:
    """Bytes that are not UTF-8 reach Python's arguments as lone surrogates."""
    from nmt_cli.errors import NmtError

    if any("\ud800" <= character <= "\udfff" for character in argument):
        raise NmtError("the sentence is not UTF-8", "is the terminal set to another encoding?")
    return argument


def _print(console: Console, drawing: RenderableType, ascii_only: bool) -> None:
    from nmt_cli.terminal.plot import to_ascii

    with console.capture() as capture:
        console.print(drawing, crop=False)
    shown = capture.get()
    if not sys.stdout.isatty():  # no colours, whatever FORCE_COLOR says, and no spaces at the ends of lines
        shown = re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;]*m", "", shown), flags=re.M)
    typer.echo(to_ascii(shown) if ascii_only else shown, nl=False)
