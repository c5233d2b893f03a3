"""`nmt inspect`: show a model, its attention, its beam search, its positions or its learning rate."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from nmt_cli.commands.options import Force, Overrides
from nmt_cli.errors import NmtError, quoted

# The views (--show) that an option applies to. The other views refuse the option.
_VIEWS = {
    **dict.fromkeys(("TEXT", "--beam-size"), ("attention", "heads", "beam")),
    **dict.fromkeys(("--target", "--kind", "--layer", "--pieces", "--special"), ("attention", "heads")),
    **dict.fromkeys(("--head", "--format html", "--format align"), ("attention",)),
    "--set": ("positions", "schedule"),
    "--format json": ("model", "attention"),
}
# The formats that an option applies to, if not to all. JSON and HTML contain every kind, layer and head.
_FORMATS = {
    **dict.fromkeys(("--kind", "--ascii"), ("text",)),
    **dict.fromkeys(("--layer", "--head"), ("text", "align")),
    "--special": ("text", "json", "html"),
}


def inspect(
    model: Annotated[
        str, Argument(metavar="MODEL", help="A run or its model/. For positions and schedule also a recipe.")
    ],
    text: Annotated[
        str | None, Argument(metavar="TEXT", help="A sentence. - reads one line from standard input.")
    ] = None,
    show: Annotated[
        Literal["model", "attention", "heads", "beam", "positions", "schedule"] | None,
        Option(
            metavar="VIEW",
            help="model, attention, heads, beam, positions or schedule. Default: attention with TEXT, else model.",
        ),
    ] = None,
    form: Annotated[
        Literal["text", "json", "html", "align"],
        Option("--format", help="A drawing, all figures, a page for the browser, or a Pharaoh word alignment."),
    ] = "text",
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="Write to this file, not to standard output.")
    ] = None,
    force: Force = False,
    target: Annotated[
        str | None, Option(metavar="TEXT", help="Show this translation instead of the model's own.")
    ] = None,
    kind: Annotated[
        Literal["cross", "encoder", "decoder"] | None,
        Option(help="Attention from target to source (cross, the default), within the source, or the target."),
    ] = None,
    layer: Annotated[
        int | None, Option(metavar="N", help="Layer, from 1. Default: the mean of all; the last one for heads.")
    ] = None,
    head: Annotated[int | None, Option(metavar="N", help="Attention head, from 1. Default: the mean of all.")] = None,
    pieces: Annotated[bool, Option("--pieces", help="Show the pieces of the vocabulary, not words.")] = False,
    special: Annotated[bool, Option("--special", help="Show the special tokens <s> and </s> too.")] = False,
    beam_size: Annotated[int | None, Option(min=1, metavar="N", help="Beam size. Default: the recipe's.")] = None,
    ascii_only: Annotated[bool, Option("--ascii", help="Draw with ASCII characters only.")] = False,
    overrides: Overrides = None,
) -> None:
    """Look into a model: its parts, its attention, its beam search.

    --show chooses what to show, --format and --out choose how and where.
    Every other option belongs to some views of --show; the other views refuse it.

    \b
    nmt inspect MODEL                               parts and training
    nmt inspect MODEL "I like cats."                translation and attention
    nmt inspect MODEL "I like cats." --show heads   every head of one layer
    nmt inspect MODEL "I like cats." --show beam    the search as a tree
    nmt inspect MODEL "I like cats." --format html --out page.html
    nmt inspect RECIPE --show schedule              the learning rate
    """
    _refuse_folder(model, text)
    view = show or ("model" if text is None else "attention")
    _check_options(
        view,
        form,
        {
            "TEXT": text is not None, "--target": target is not None, "--kind": kind, "--layer": layer is not None,
            "--head": head is not None, "--pieces": pieces, "--special": special, "--beam-size": beam_size,
            "--set": overrides, "--ascii": ascii_only, f"--format {form}": form != "text",
        },
    )  # fmt: skip
    from nmt_cli.files import check_overwrite, output_file
    from nmt_cli.recipe.load import open_recipe, parse_overrides
    from nmt_cli.terminal.console import output, say
    from nmt_cli.terminal.heatmap import ink_of
    from nmt_cli.terminal.plot import to_ascii
    from nmt_cli.text.lines import STDIN

    out = None if out == STDIN else out
    if out is not None:
        check_overwrite(out, force)
    elif force:
        raise NmtError("--force needs --out", "--out FILE --force replaces the file")
    console = output()
    width = console.width
    ink = ink_of(console, ascii_only, to_file=out is not None)
    result: object
    if view == "schedule":
        from nmt_cli.commands.dry_run import rate_curve

        recipe = open_recipe(model, parse_overrides(overrides or []))
        if recipe.train.auto:
            raise _not_chosen_yet("the learning rate", model, view)
        result = rate_curve(recipe, width=min(72, width))
    elif view == "positions":
        from nmt_cli.inspect.draw import show_positions
        from nmt_cli.store.folders import is_model

        recipe = open_recipe(model, parse_overrides(overrides or []))
        if recipe.train.auto and "model.dim" not in recipe.stated:
            raise _not_chosen_yet("the width", model, view)
        learned = (
            recipe.model.learned_positions and is_model(Path(model)) and open_recipe(model).model.learned_positions
        )
        if overrides and learned:
            raise NmtError("--set has no effect on positions that a run has learned", "leave --set out")
        result = show_positions(recipe, Path(model) if learned else None, width, ink)
    elif text is None:
        from nmt_cli.inspect.description import description, show_description

        about = description(Path(model))
        result = json.dumps(about, ensure_ascii=False) if form == "json" else show_description(about)
    elif view == "beam":
        from nmt_cli.inspect.beam_tree import show_tree
        from nmt_cli.store.checkpoint import load_model

        result = show_tree(load_model(Path(model)), _sentence(text), beam_size, width)
    else:
        from nmt_cli.inspect.attention import attention
        from nmt_cli.inspect.draw import as_json, html_page, show_attention, show_heads
        from nmt_cli.text.alignment import pharaoh

        target = None if target is None else _utf8(target)
        weights = attention(model, _sentence(text), target, beam_size=beam_size, pieces=pieces, special=special)
        if form == "html":
            result = html_page(weights)
        elif form == "json":
            result = json.dumps(as_json(weights), ensure_ascii=False)
        elif form == "align":
            result = pharaoh(weights.alignment(layer, head))
        elif view == "heads":
            result = show_heads(weights, kind or "cross", layer, width, ink)
        else:
            result = show_attention(weights, kind or "cross", layer, head, width, ink)

    if not isinstance(result, str):
        with console.capture() as capture:
            console.print(result, crop=False)
        result = capture.get().removesuffix("\n")
        if out is not None or not sys.stdout.isatty():  # FORCE_COLOR makes rich write colors into a file
            result = re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;]*m", "", result), flags=re.M)
    if form == "text" and ink == "ascii":
        result = to_ascii(result)
    if out is None:
        typer.echo(result)
    else:
        with output_file(out) as stream:
            stream.write(f"{result}\n")
        say(f"wrote {out}")


def _not_chosen_yet(what: str, model: str, view: str) -> NmtError:
    problem = f"nmt train chooses {what} of {model} from the data and the time (docs/automatic.md)"
    return NmtError(problem, f"nmt inspect RUN --show {view} shows what a run has chosen")


def _check_options(view: str, form: str, options: dict[str, object]) -> None:
    """Refuse an option that would change nothing."""
    for name, given in options.items():
        views, formats = _VIEWS.get(name, (view,)), _FORMATS.get(name, (form,))
        if given and view not in views:
            hint = f"{name} applies to --show {' or --show '.join(views)}"
            if not options["TEXT"] and "attention" in views:
                hint += ", with a sentence as TEXT"
            raise NmtError(f"{name} does not apply to --show {view}", hint)
        if given and form not in formats:
            hint = f"{name} applies to --format {' or --format '.join(formats)}"
            raise NmtError(f"{name} does not apply to --format {form}", hint)
    if options["--target"] and options["--beam-size"]:
        raise NmtError("--beam-size has no effect on a given translation", "leave --beam-size or --target out")
    if view in _VIEWS["TEXT"] and not options["TEXT"]:
        raise NmtError(f"--show {view} needs a sentence", f'nmt inspect MODEL "I like the green cat." --show {view}')


def _refuse_folder(model: str, text: str | None) -> None:
    """Refuse a folder in place of TEXT: a user who names a second run wants `nmt compare`."""
    with suppress(OSError):  # a sentence can be too long for a path
        if text and (Path(text) / "recipe.toml").is_file():
            hint = f"nmt compare {quoted(model)} {quoted(text)} compares two runs"
            raise NmtError(f"{text} is a folder of nmt, not a sentence", hint)


def _sentence(text: str) -> str:
    """TEXT, or the only line of standard input."""
    from nmt_cli.text.lines import STDIN, read_lines

    if text != "-":
        return _utf8(text)
    lines = list(read_lines(STDIN))
    if len(lines) > 1:
        raise NmtError(f"standard input has {len(lines):,} lines, not one", "head -1 takes the first line")
    return lines[0] if lines else ""


def _utf8(argument: str) -> str:
    """Refuse an argument that is not UTF-8. Python turns such bytes into lone surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in argument):
        raise NmtError("the sentence is not UTF-8", "set the terminal to UTF-8")
    return argument
