"""The rooms of nmt_cli: which room may import which room, and which modules may import torch.

The imports are read with `ast`. Imports inside functions and under TYPE_CHECKING count like all others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The table of rooms, from the bottom up. A folder of nmt_cli/ is a room, and so is each file beside the folders.
# Every room may import itself, nmt_cli.errors, and names such as __version__ from nmt_cli itself.
# An entry is a whole room ("text") or one module of a room ("text.vocab").
# The rooms above `store` list the small rooms that they use (recipe, text, files, parallel, terminal) in full: they
# read recipe classes, token ids and lines themselves, and nmt translate shows its progress on the terminal.
BELOW_LADDER = (
    *("files", "parallel", "recipe", "terminal", "demo", "text", "data", "scoring", "model", "store"),
    *("search", "translate", "export", "importing", "training", "inspect"),
)
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "files": (),
    "parallel": (),
    "recipe": ("files",),
    "terminal": (),
    "text": ("recipe", "files"),
    "demo": ("text",),
    "data": ("text", "recipe", "terminal", "files", "parallel"),
    "scoring": ("text", "terminal"),
    "model": ("recipe", "text.vocab"),
    "store": ("model", "data.batches", "recipe", "text", "files"),
    "search": ("model", "store", "data.batches", "text", "recipe", "parallel", "files"),
    "translate": ("search", "store", "text", "recipe", "files", "parallel", "terminal"),
    "export": ("store", "model", "text", "recipe", "files"),
    "importing": ("store", "export", "model", "text", "recipe", "files"),
    "training": (
        *("data", "model", "search", "store", "scoring", "export", "terminal"),
        *("text", "recipe", "files", "parallel"),
    ),
    "inspect": ("model", "search", "store", "text", "terminal", "recipe"),
    "__init__": BELOW_LADDER,  # the Python API
    "ladder": (*BELOW_LADDER, "__init__"),
    "learn": (*BELOW_LADDER, "__init__"),
    "commands": (*BELOW_LADDER, "__init__", "ladder", "learn"),
    "cli": ("commands", "terminal", "__init__"),
    "__main__": ("cli",),
}

# Rooms and modules that may import torch anywhere. `ladder` and `learn` are among them, because only functions of
# commands/ladder.py and commands/learn.py import them. Rooms that may import torch inside functions only come second.
TORCH = (
    *("model", "export", "importing", "training", "inspect", "ladder", "learn"),
    *("store.checkpoint", "search.beam", "search.torch_engine"),
)
TORCH_INSIDE_FUNCTIONS = ("commands",)
TORCH_PACKAGES = ("torch", "safetensors.torch")

# Violations that are still to be removed, as (file, imported module). The test fails when a violation is missing from
# this list, and also when a violation of this list is gone.
KNOWN_VIOLATIONS: set[tuple[str, str]] = set()
# Modules that may not import torch, but load it through another module. The same rule holds for this list.
KNOWN_TORCH_LOADERS: set[str] = set()


@dataclass(frozen=True)
class Import:
    """`module`, such as "text.vocab" or "__init__", imports `imported`, another module of nmt_cli or a package."""

    module: str
    imported: str
    path: Path
    line: int
    inside_function: bool  # or under TYPE_CHECKING: the import does not happen when the module is loaded

    @property
    def internal(self) -> bool:
        return self.imported in MODULES

    @property
    def is_torch(self) -> bool:
        return any(self.imported == package or self.imported.startswith(f"{package}.") for package in TORCH_PACKAGES)

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: module {self.module} may not import {self.imported}"


def module_name(path: Path) -> str:
    """nmt_cli/text/vocab.py is "text.vocab", nmt_cli/text/__init__.py is "text", nmt_cli/__init__.py "__init__"."""
    parts = path.relative_to(ROOT / "nmt_cli").with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "nmt_cli").rglob("*.py"))}


def imports_of(module: str, path: Path, source: str) -> Iterator[Import]:
    deferred: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        is_deferred = (
            node in deferred
            or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        )
        if is_deferred:
            deferred.update(ast.iter_child_nodes(node))  # ast.walk visits a parent before its children
        for name in imported_names(node):
            if name != module:
                yield Import(module, name, path, getattr(node, "lineno", 0), is_deferred)


def imported_names(node: ast.AST) -> set[str]:
    """Modules of nmt_cli by the names in MODULES, everything else by its full name. Constants of nmt_cli itself, such
    as __version__, are left out."""
    match node:
        case ast.Import(names=names):
            full_names = {alias.name for alias in names}
        case ast.ImportFrom(module=None) | ast.ImportFrom(level=1 | 2 | 3):
            raise AssertionError(f"line {node.lineno}: write the full name of the module instead of a relative import")
        case ast.ImportFrom(module="nmt_cli", names=names):
            full_names = {f"nmt_cli.{alias.name}" for alias in names if not alias.name.startswith("__")}
        case ast.ImportFrom(module=str(parent), names=names):
            children = {f"{parent}.{alias.name}" for alias in names}
            submodules = {child for child in children if child.removeprefix("nmt_cli.") in MODULES}
            full_names = submodules if submodules == children else {parent, *submodules}
        case _:
            return set()
    return {internal_name(name) for name in full_names}


def internal_name(full_name: str) -> str:
    if full_name.split(".")[0] != "nmt_cli":
        return full_name
    name = full_name.removeprefix("nmt_cli").removeprefix(".")
    return name if name in MODULES else "__init__"  # a name of the Python API: nmt_cli.load


@cache
def all_imports() -> list[Import]:
    return [
        statement
        for module, path in MODULES.items()
        for statement in imports_of(module, path, path.read_text(encoding="utf-8"))
    ]


def allows(entries: tuple[str, ...], module: str) -> bool:
    return module in entries or module.split(".")[0] in entries


def is_violation(statement: Import) -> bool:
    room = statement.module.split(".")[0]
    if statement.is_torch:
        lazily = statement.inside_function and allows(TORCH_INSIDE_FUNCTIONS, statement.module)
        return not allows(TORCH, statement.module) and not lazily
    return statement.internal and not allows((room, "errors", *MAY_IMPORT.get(room, ())), statement.imported)


def loads_torch(module: str, visited: set[str]) -> list[Import]:
    """The chain of imports by which loading the module loads torch; empty where loading it does not."""
    visited.add(module)
    for statement in all_imports():
        if statement.module != module or statement.inside_function:
            continue
        if statement.is_torch:
            return [statement]
        if (
            statement.internal
            and statement.imported not in visited
            and (rest := loads_torch(statement.imported, visited))
        ):
            return [statement, *rest]
    return []


def test_every_module_is_in_a_room_of_the_table():
    assert {module.split(".")[0] for module in MODULES} <= set(MAY_IMPORT)


def test_rooms_import_only_what_the_table_allows():
    violations = [statement for statement in all_imports() if is_violation(statement)]
    known = {
        (statement.path.relative_to(ROOT / "nmt_cli").as_posix(), statement.imported): statement
        for statement in violations
    }
    new = [str(statement) for key, statement in known.items() if key not in KNOWN_VIOLATIONS]
    assert not new, "\n" + "\n".join(new)
    gone = KNOWN_VIOLATIONS - known.keys()
    assert not gone, f"remove these from KNOWN_VIOLATIONS, they are gone: {gone}"


def test_no_module_imports_the_commands_or_the_rooms_beside_them():
    """The exceptions: cli.py imports the commands, and the commands import `ladder` and `learn`."""
    for statement in all_imports():
        room, imported = statement.module.split(".")[0], statement.imported.split(".")[0]
        if statement.internal:
            assert imported != "commands" or room in ("commands", "cli"), str(statement)
            for above in ("ladder", "learn"):
                assert imported != above or room in (above, "commands"), str(statement)


def test_modules_without_torch_do_not_load_it_through_others():
    """`nmt --help`, prepare and score start at once, because loading their modules never loads torch."""
    chains = {module: loads_torch(module, set()) for module in MODULES if not allows(TORCH, module)}
    loaders = {module for module, chain in chains.items() if chain}
    new = [
        " -> ".join(
            [*(f"{statement.path.relative_to(ROOT)}:{statement.line}" for statement in chains[module]), "torch"]
        )
        for module in sorted(loaders - KNOWN_TORCH_LOADERS)
    ]
    assert not new, "\n" + "\n".join(new)
    gone = KNOWN_TORCH_LOADERS - loaders
    assert not gone, f"remove these from KNOWN_TORCH_LOADERS, they no longer load torch: {gone}"


def test_no_cycles_between_modules():
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for statement in all_imports():
        if statement.internal:
            graph[statement.module].add(statement.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError("imports go in a circle: " + " <- ".join(error.args[1])) from None


def test_violation_is_reported_with_its_line():
    """Without this test, the checks above would also pass if they read no imports at all."""
    source = '"""A module of text/."""\n\nfrom nmt_cli.text import lines\n\n\ndef f():\n    import torch.nn as nn\n'
    source += "    from nmt_cli.model.base import Seq2Seq\n    from nmt_cli import __version__\n"
    path = ROOT / "nmt_cli/text/alignment.py"
    assert [str(statement) for statement in imports_of("text.alignment", path, source) if is_violation(statement)] == [
        "nmt_cli/text/alignment.py:7: module text.alignment may not import torch.nn",
        "nmt_cli/text/alignment.py:8: module text.alignment may not import model.base",
    ]
