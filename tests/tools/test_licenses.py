"""docs/licenses.md lists the license of every package that nmt needs."""

from __future__ import annotations

import re
from pathlib import Path

from licenses import direct_dependencies, licenses_markdown

PAGE = Path(__file__).parents[2] / "docs/licenses.md"


def listed(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| ([\w-]+) \| ([^|]+) \| [^|]+ \|$", text, flags=re.M))


def test_every_dependency_of_pyproject_is_listed_with_its_license():
    page = listed(PAGE.read_text(encoding="utf-8"))
    assert len(direct_dependencies()) > 10
    for name in direct_dependencies():
        assert page.get(name), f"{name} is missing: make docs"
    assert "see the package" not in page.values()


def test_packages_that_dependencies_need_are_found():
    assert listed(licenses_markdown()).keys() >= {"numpy", "regex", "portalocker", "markdown-it-py"}
