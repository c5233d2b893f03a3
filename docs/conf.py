"""Settings of Sphinx, which builds these pages into a site: `make docs`.

The pages stay plain Markdown that a code host shows as well. So the order of the site is not written a second time: the
links of index.md are its table of contents.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from sphinx.application import Sphinx

project = "nmt"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md"]
exclude_patterns = ["build", ".*"]
html_theme = "furo"  # readable on a phone, light and dark
html_title = "nmt"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_extra_path = ["site"]  # index.html at the root of the site leads to docs/index.html
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]  # classes of pictures
highlight_language = "text"  # commands are not Python


def show_light_or_dark_pictures(app: Sphinx, name: str, source: list[str]) -> None:
    """A code host chooses between a light and a dark picture by <picture>, the theme of this site by classes."""
    picture = r'<picture>\s*<source .*?srcset="(.*?)">\s*<img alt="(.*?)" src="(.*?)">\s*</picture>'
    source[0] = re.sub(picture, r"![\2](\3){.only-light} ![\2](\1){.only-dark}", source[0])


def add_table_of_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Give index.md a hidden table of contents for each of its sections."""
    if name != root_doc:
        return
    for section in re.findall(r"^## .*?(?=^## |\Z)", source[0], flags=re.M | re.S):
        title = section.splitlines()[0].removeprefix("## ")
        links = re.findall(r"^- \[(.*?)\]\((.*?)\.md\)", section, flags=re.M)
        pages = [f"{text} </{path_in_site(link)}>" for text, link in links]
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""])


def path_in_site(link: str) -> PurePosixPath:
    """A link of docs/index.md as a path from the root of the repository."""
    return PurePosixPath(link.removeprefix("../")) if link.startswith("../") else PurePosixPath("docs") / link


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_table_of_contents)
    app.connect("source-read", show_light_or_dark_pictures)
