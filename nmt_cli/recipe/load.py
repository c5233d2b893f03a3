"""Load a recipe: read the TOML file and the files it extends, apply overrides, check everything, report all problems.

recipe/schema.py declares the keys. docs/architecture.md says why no library builds the dataclasses.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from nmt_cli.errors import NmtError, quoted, raise_if_denied
from nmt_cli.files import read_small
from nmt_cli.recipe.schema import (
    FAMILIES,
    Corpus,
    Data,
    Key,
    Range,
    Recipe,
    Train,
    Transformer,
    Translate,
    Vocab,
    keys_of,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SET = Path("--set")
_OPTIONS = {"train.minutes": "--minutes", "vocab.size": "--vocab-size"}  # keys that have an option of their own
_MOST_BYTES = 1 << 20  # of a recipe file
_TSV_NAMES = (".tsv", ".tsv.gz", ".tsv.xz", ".tsv.zst")  # two strings with other names are one corpus of two files
_MOST_DOTS = 10_000  # in a line; the time that tomllib needs for a dotted key grows with the square of its length
_DEEPEST = 3  # tables inside tables; no key is deeper
_CORPORA = ("data.train", "data.valid", "data.test")
# A recipe or a command line that names its own training files takes none of these keys from another recipe.
_BELONG_TO_TRAINING_FILES = {*_CORPORA, "data.folder", "data.prepared", "train.out"}


def shipped_folder() -> Path:
    """The folder recipes/: inside the installed package, or beside the package in a checkout."""
    installed = Path(__file__).parent.parent / "recipes"
    return installed if installed.is_dir() else Path(__file__).parent.parent.parent / "recipes"


def shipped_recipes() -> dict[str, Path]:
    return {path.stem: path for path in sorted(shipped_folder().glob("*.toml"))}


def find_recipe(name: str) -> Path:
    """Find a recipe: a file, a folder with a recipe.toml (prepared data or a run), or the name of a shipped recipe."""
    path = Path(name)
    raise_if_denied(path / "recipe.toml")
    if (path / "recipe.toml").is_file():
        return path / "recipe.toml"
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(path.stem, shipped, n=1, cutoff=0.6)
    hint = f"did you mean the shipped recipe {near[0]}?" if near else "nmt recipes lists the shipped recipes"
    if path.is_dir():
        raise NmtError(f"{name} is a folder without a recipe.toml", hint)
    if "/" not in name or path.suffix == ".toml":
        raise NmtError(f"there is no recipe {name}", hint)
    if path.parent.name == "data" and not path.suffix:  # such as data/NAME, which nmt prepare has not written yet
        hint = f"nmt prepare --source FILE --target FILE --out {quoted(name)} makes such a folder; {hint}"
    raise NmtError(f"there is no recipe {name}, and no folder of this name", hint)


def open_recipe(recipe: Recipe | str | Path | None, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a name, a file or a folder (None: the defaults), with the overrides. A Recipe stays as it is."""
    if isinstance(recipe, Recipe):
        if overrides:
            raise NmtError("a loaded recipe takes no overrides", "name the recipe, or change the Recipe itself")
        return recipe
    return load_recipe(find_recipe(str(recipe)) if recipe is not None else None, overrides)


def load_recipe(path: Path | None, overrides: Mapping[str, Any] | None = None, may_extend: bool = True) -> Recipe:
    """Read `path` (None: defaults only) and the files it extends. Overrides map dotted keys: {"train.warmup": 500}.

    A model may be the work of a stranger, so its recipe must not name other files: may_extend=False.
    """
    problems: list[tuple[str, str]] = []
    values: dict[str, Any] = {}
    origins: dict[str, Path] = {}  # the file that set each key
    folders: dict[str, Path] = {}  # where relative paths start; for an override, the current folder
    for origin, table in [*(_chain(path, (), may_extend) if path is not None else ()), (_SET, dict(overrides or {}))]:
        layer = dict(_flat(table, ""))
        # The run of another recipe file is never used: a second experiment would be written into it.
        dropped = {"train.out"} if origin != _SET else set()
        # A layer with another family replaces all of [model]: the new family does not have most of the old keys.
        if _family({**values, **layer}) != _family(values):
            dropped |= {name for name in values if name.startswith("model.")}
        if "data.train" in layer:
            dropped |= _BELONG_TO_TRAINING_FILES
        for name in dropped & values.keys():
            del values[name], origins[name]
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
        folders.update(dict.fromkeys(layer, _folder_of(origin)))
        if isinstance(layer.get("data.folder"), str):  # moves the corpora of this layer and of all layers before it
            folders.update(dict.fromkeys(_CORPORA, _path_from(_folder_of(origin), layer["data.folder"])))

    in_files = [name for name, origin in origins.items() if origin != _SET]
    if not any(name.startswith(("model.", "train.")) and name != "train.out" for name in in_files):
        values.setdefault("train.auto", True)
        folders.setdefault("train.auto", Path())

    family = _family(values)
    if family not in FAMILIES:
        near = _did_you_mean(family, list(FAMILIES))
        problems.append(("model.family", f'must be one of {", ".join(FAMILIES)}, not "{family}"{near}'))
        family = "transformer"
        del values["model.family"]
    sections = {"data": Data, "vocab": Vocab, "model": FAMILIES[family], "train": Train, "translate": Translate}
    keys = {name: list(keys_of(kind, name + ".")) for name, kind in sections.items()}
    valid = [key.name for listed in keys.values() for key in listed]
    problems += [(name, "unknown key" + _did_you_mean(name, valid)) for name in values if name not in valid]
    built = {}
    for name, kind in sections.items():
        converted = {}
        for key in keys[name]:
            if key.name not in values:
                continue
            try:
                converted[key.name] = _convert(values[key.name], key, folders[key.name])
            except ValueError as error:
                problems.append((key.name, str(error)))
        built[name] = _build(kind, name, converted)
        problems += [(f"{name}.{short}", text) for short, text in getattr(built[name], "problems", tuple)()]
    name = "recipe" if path is None else path.resolve().parent.name if path.name == "recipe.toml" else path.stem
    recipe = Recipe(**built, name=name or "recipe", stated=frozenset(values))
    if isinstance(recipe.model, Transformer) and recipe.leaves_open("model.heads"):
        problems = [(dotted, text) for dotted, text in problems if dotted != "model.heads"]
    for dotted, text in recipe.problems():
        origins.setdefault(dotted, path or Path("defaults"))
        problems.append((dotted, text))
    if problems:
        lines = [f"{_named(dotted, origins.get(dotted))}: {text}" for dotted, text in problems]
        listed = "".join(f"\n  {line}" for line in lines)
        several = f"{f'recipe {path}' if path else 'the settings'}: {len(lines)} problems{listed}"
        hint = "nmt recipes --keys lists every key with its range and default"
        raise NmtError(several if len(lines) > 1 else lines[0], hint)
    return _place(recipe, path, may_be_run=not {"train.out", "data.train"} & layer.keys())


def _named(dotted: str, origin: Path | None) -> str:
    """A key, and the file or the option that sets it."""
    option = _OPTIONS.get(dotted) if origin == _SET else None
    return f"{dotted} ({option})" if option else f"{origin or 'defaults'}: {dotted}"


def _family(values: dict[str, Any]) -> str:
    return str(values.get("model.family", "transformer"))


def parse_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """The KEY=VALUE texts of `--set` as a dict from dotted keys to values."""
    overrides: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = map(str.strip, setting.partition("="))
        if not equals or not key:
            raise NmtError(f"--set {setting} does not have the form key=value", "for example --set train.warmup=500")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text  # in --set model.norm=pre, the string has no quotes
        except (ValueError, RecursionError):  # a number of thousands of digits, or a thousand brackets
            raise NmtError(f"the value of --set {key} is too long or nested too deeply", "check the value") from None
        overrides.update(_flat({key: value}, ""))
    return overrides


def _folder_of(path: Path) -> Path:
    """The folder of a recipe. A shipped recipe is in no folder of the user: the current folder takes its place."""
    return Path() if path.resolve().parent == shipped_folder().resolve() else path.parent


def _place(recipe: Recipe, path: Path | None, may_be_run: bool) -> Recipe:
    """Give the two folders of an experiment their defaults: data/NAME and runs/NAME, beside the recipe file.

    For a shipped recipe, and for a recipe.toml that nmt wrote, both are in the current folder.
    """
    data, train = recipe.data, recipe.train
    here = Path()
    if path is not None and path.name != "recipe.toml":
        here = _folder_of(path)
    elif path is not None and may_be_run and (path.parent / "checkpoints").is_dir():
        # The recipe of a run: the run is where its recipe is, even if the user has moved or renamed its folder.
        return replace(recipe, train=replace(train, out=path.parent))
    prepared, run = data.prepared or here / "data" / recipe.name, train.out or here / "runs" / recipe.name
    # Replacing the data must not touch the run, and the other way around.
    inner, outer = prepared.resolve(), run.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        folders = f"the prepared data ({prepared}) and the run ({run})"
        hint = "choose another folder with --out"
        raise NmtError(f"{folders} must be separate folders, neither inside the other", hint)
    return replace(recipe, data=replace(data, prepared=prepared), train=replace(train, out=run))


def _not_a_recipe(path: Path) -> NmtError:
    name = quoted(path)
    text = f"--tsv {name}" if ".tsv" in path.suffixes else f"--source {name} --target TRANSLATIONS"
    hint = f"if it is training text, prepare it first: nmt prepare {text} --out FOLDER"
    return NmtError(f"{path} is not a recipe", hint)


def _chain(path: Path, seen: tuple[Path, ...], may_extend: bool) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the tables of all recipes that `path` extends, the base first, then the table of `path`."""
    if path.resolve() in seen:
        raise NmtError(f"{path} extends itself", "remove one extends line of: " + ", ".join(p.name for p in seen))
    if path.suffix != ".toml" and path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise _not_a_recipe(path)
    try:
        text = read_small(path, most_megabytes=_MOST_BYTES >> 20).decode("utf-8-sig")
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise RecursionError
        table = tomllib.loads(text)
    except RecursionError:
        raise NmtError(f"{path} is nested too deeply", "a recipe has tables in tables, no deeper") from None
    except ValueError as error:
        if path.suffix != ".toml":
            raise _not_a_recipe(path) from None
        if isinstance(error, UnicodeDecodeError):
            raise NmtError(f"{path} is not UTF-8 at byte {error.start}", "save it as UTF-8") from None
        raise NmtError(f"{path} is not valid TOML: {error}", "write strings in quotes, and tables as [train]") from None
    except OSError as error:
        raise NmtError(f"cannot read {path}: {error.strerror}", "check the permissions of the file") from None
    if path.suffix != ".toml" and not table:  # an empty file, or lines that begin with #
        raise _not_a_recipe(path)
    base = table.pop("extends", None)
    if base is not None:
        if not may_extend:
            raise NmtError(f"{path} extends another recipe, which the recipe of a model must not", "remove that line")
        if not isinstance(base, str):
            raise NmtError(f"{path}: extends: must be a file name in quotes", 'for example extends = "base.toml"')
        beside = path.parent / base
        yield from _chain(beside if beside.is_file() else find_recipe(base), (*seen, path.resolve()), may_extend)
    yield path, table


def _flat(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of nested tables, and their values. A table that is nested too deeply is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and prefix.count(".") < _DEEPEST:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _did_you_mean(wrong: str, valid: list[str]) -> str:
    # First look for the right key in the wrong table: train.beam instead of translate.beam.
    near = [key for key in valid if key.rsplit(".", 1)[-1] == wrong.rsplit(".", 1)[-1]]
    near = near or difflib.get_close_matches(wrong, valid, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _build(kind: type, prefix: str, converted: dict[str, Any]) -> Any:
    given: dict[str, Any] = {}
    for item in fields(kind):
        name = f"{prefix}.{item.name}"
        if isinstance(item.default_factory, type):  # a table inside the table, such as data.clean
            given[item.name] = _build(item.default_factory, name, converted)
        elif name in converted:
            given[item.name] = converted[name]
    return kind(**given)


def _convert(value: Any, key: Key, folder: Path) -> Any:
    kind = key.type
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            listed = ", ".join(f'"{choice}"' for choice in choices)
            raise ValueError(f"must be one of {listed}, not {value!r}{_did_you_mean(str(value), list(choices))}")
        return value
    if kind is Path:
        return _path_from(folder, _typed(value, str, "a path in quotes"))
    if kind is bool:
        return _typed(value, bool, "true or false")
    if kind is str:
        return _typed(value, str, "a string in quotes")
    if kind in (int, float):
        return _number(value, kind, key.range)
    item = get_args(kind)[0]  # tuple[X, ...]
    if not isinstance(value, list):
        value = [value]  # one corpus or one symbol needs no brackets
    if item is Corpus:
        if len(value) == 2 and all(isinstance(part, str) and not part.endswith(_TSV_NAMES) for part in value):
            value = [value]  # train = ["a.en", "a.de"] is one corpus
        return tuple(_corpus(part, folder) for part in value)
    return tuple(_typed(part, item, "a list of strings in quotes") for part in value)


def _corpus(value: Any, folder: Path) -> Corpus:
    match value:
        case (str() as tsv) | [str() as tsv]:
            return Corpus(_path_from(folder, tsv))
        case [str() as source, str() as target]:
            return Corpus(_path_from(folder, source), _path_from(folder, target))
    raise ValueError(f'a corpus is ["a.en", "a.de"] or "both.tsv", not {value!r}')


def _path_from(folder: Path, name: str) -> Path:
    """The path `name`. A relative path starts from `folder`. "-" stays as it is: standard input."""
    return Path(name) if name == "-" else Path(os.path.normpath(folder / Path(name).expanduser()))


def _typed(value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"must be {expected}, not {value!r}")
    return value


def _number(value: Any, kind: type, limits: Range | None) -> Any:
    is_number = not isinstance(value, bool) and isinstance(value, (int, float))
    if is_number and not abs(value) <= sys.float_info.max:  # NaN is not; an int may be larger than every float
        raise ValueError("must be a finite number" + f", not {value!r}" * isinstance(value, float))
    if not is_number or (kind is int and value != int(value)):
        raise ValueError(f"must be {'a whole number' if kind is int else 'a number'}, not {value!r}")
    if limits and (problem := limits.problem(value)):
        raise ValueError(problem)
    return kind(value)


def recipe_tables(recipe: Recipe, absolute: bool = False) -> dict[str, Any]:
    """The recipe as plain tables for TOML: every key that has a value, including defaults."""
    tables = {part.name: _tables(getattr(recipe, part.name), absolute) for part in fields(recipe)}
    del tables["name"], tables["stated"]
    if recipe.train.auto:  # nmt train chooses the keys that are not stated
        # A key of train.augment counts as train.augment.
        stated = {tuple(name.split(".")[:2]) for name in recipe.stated}
        for table in ("model", "train"):
            tables[table] = {key: value for key, value in tables[table].items() if (table, key) in stated}
        tables["train"]["auto"] = True
    tables["data"].pop("folder", None)  # the paths of the corpora include this folder
    return tables


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The values of all keys of a recipe, by dotted key: {"train.warmup": 500}."""
    return dict(_flat(recipe_tables(recipe), ""))


def _tables(value: Any, absolute: bool) -> Any:
    match value:
        case Corpus(source, None):
            name = _tables(source, absolute)
            return name if name.endswith(_TSV_NAMES) else [name]
        case Corpus(source, target):
            return [_tables(source, absolute), _tables(target, absolute)]
        case Path():
            return str(value.absolute() if absolute and str(value) != "-" else value)
        case tuple():
            return [_tables(part, absolute) for part in value]
    if is_dataclass(value):
        named = ((part.name, getattr(value, part.name)) for part in fields(value))
        return {name: _tables(part, absolute) for name, part in named if part is not None and part != ()}
    return value


def tables_toml(tables: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(tables)
