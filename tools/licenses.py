"""Write the table of the licenses of all packages that nmt needs at run time into docs/licenses.md.

    python tools/licenses.py docs/licenses.md        (or: make docs)

The licenses are those that the installed packages state. tests/tools/test_licenses.py fails while a dependency of
pyproject.toml is missing from the page.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from nmt_cli.recipe.load import tomllib
from nmt_cli.text.lines import write_text

_START, _END = "<!-- licenses -->\n", "<!-- end of licenses -->\n"
_ROOT = Path(__file__).parents[1]
_OF_OTHER_PYTHONS = {"tomli": "MIT"}  # installed for Python 3.10 only


def name_of(requirement: str) -> str:
    """The name of a package, as PyPI writes it: `tomli` for "tomli>=2.0; python_version < '3.11'"."""
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def direct_dependencies() -> list[str]:
    """The names in pyproject.toml, with those of optional features. Tools of developers are not among them."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = [each for group, named in project["optional-dependencies"].items() if group != "dev" for each in named]
    return [name_of(requirement) for requirement in (*project["dependencies"], *optional)]


def license_of(package: Distribution) -> str:
    metadata = package.metadata
    stated = metadata["License-Expression"] or metadata["License"] or ""
    classes = [
        each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or () if each.startswith("License")
    ]
    return stated if stated and "\n" not in stated else ", ".join(classes) or "see the package"


def licenses_markdown() -> str:
    direct = direct_dependencies()
    needed_by: dict[str, set[str]] = {name: {"nmt-cli"} for name in direct}
    licenses: dict[str, str] = {}
    waiting = list(direct)
    while waiting:
        name = waiting.pop()
        if name in licenses:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another operating system, or another version of Python
            if name in _OF_OTHER_PYTHONS:
                licenses[name] = _OF_OTHER_PYTHONS[name]
            continue
        licenses[name] = license_of(package)
        for requirement in package.requires or ():
            if "extra ==" not in requirement:
                needed_by.setdefault(name_of(requirement), set()).add(name)
                waiting.append(name_of(requirement))
    rows = [f"| {name} | {licenses[name]} | {', '.join(sorted(needed_by[name]))} |" for name in sorted(licenses)]
    return "\n".join(["| package | license | needed by |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    page = Path(sys.argv[1])
    before, _, rest = page.read_text(encoding="utf-8").partition(_START)
    write_text(page, before + _START + licenses_markdown() + _END + rest.partition(_END)[2])
