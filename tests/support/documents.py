"""The commands in code blocks of README.md and docs/, and in comments of the recipes.

A command is run by tests/cli/test_documents.py, or the comment `<!-- not run: REASON -->` stands before its block.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("nmt", "cp", "make", "torchrun", "python", "pytest", "parallel", "sbatch", "sacrebleu", "pip")
_BEFORE = r"(?:[A-Z_]+=\S+ |taskset -c \S+ )*"  # variables and taskset, which change nothing that a test checks
_COMMAND = re.compile(rf"{_BEFORE}(?:{'|'.join(PROGRAMS)})(?: |$)|.*\| nmt ")
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+) -->\n\n?)?"
    r"(?:^```(?:sh|bash)?\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?:^ {4}\S[^\n]*\n)+))|^```\w+\n.*?^```$",
    flags=re.M | re.S,
)


@dataclass(frozen=True)
class Command:
    document: Path
    text: str
    not_run: str  # the reason, or an empty string

    def stages(self) -> list[list[str]]:
        """The words of every program of the command."""
        text = re.sub(r"\s*>\s*\S+|\s*<\s*\S+", "", self.text)
        return [shlex.split(re.sub(f"^{_BEFORE}", "", stage)) for stage in re.split(r" \| | && ", text)]

    def words_of_nmt(self) -> Iterator[list[str]]:
        """The words behind each nmt, also behind torchrun, and in quotation marks (GNU parallel, sbatch)."""
        for words in self.stages():
            if words[0] == "nmt":
                yield words[1:]
            elif "nmt_cli" in words:
                yield words[words.index("nmt_cli") + 1 :]
            else:
                yield from (shlex.split(word)[1:] for word in words if word.startswith("nmt "))


def commands_of_document(document: Path) -> list[Command]:
    found = []
    for block in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        for text in _commands(block["fenced"] or block["indented"] or ""):
            found.append(Command(document, text, block["reason"] or ""))
    return found


def commands_of_recipe(recipe: Path) -> list[Command]:
    """The commands in the comments of a recipe. They need real corpora."""
    block = "\n".join(re.findall(r"^#   (.*)", recipe.read_text(encoding="utf-8"), flags=re.M))
    return [Command(recipe, text, "in a recipe") for text in _commands(block)]


def commands_of_make_demo() -> list[Command]:
    makefile = ROOT / "Makefile"
    lines = re.findall(r"^\t(\$\(BIN\)/nmt .*)", makefile.read_text(encoding="utf-8").partition("\ntest:")[0], re.M)
    return [Command(makefile, line.replace("$(BIN)/", ""), "") for line in lines]


def _commands(block: str) -> Iterator[str]:
    block = re.sub(r"\s*\\\n\s*|(?<=\|)\n\s*", " ", block)
    with_prompts = re.findall(r"^\$ (.*)", block, flags=re.M)
    for line in with_prompts or block.splitlines():
        command, *explanation = re.split(r"\s{2,}", re.sub(r"\s+# .*", "", line.strip()))
        if command.endswith(":") and explanation:  # "From a pipe:   nmt score - --ref ref.de"
            command, *explanation = explanation
        is_entry_of_a_list = explanation and len(command.split()) < 3  # "nmt train   what it does"
        if with_prompts or (_COMMAND.match(command) and not is_entry_of_a_list):
            yield command


def inline_commands(document: Path) -> list[str]:
    """Commands of nmt within sentences: `nmt train RECIPE --dry-run`."""
    found = re.findall(r"(?<!`)`(nmt [a-z]+ [^`]+)`(?!`)", document.read_text(encoding="utf-8"))
    return [command for command in found if not command.startswith("nmt help")]
