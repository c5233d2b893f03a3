"""Write the tables of all recipe keys into docs/recipe.md.

    python tools/recipe_keys.py docs/recipe.md        (or: make docs)

tests/recipe/test_recipe.py fails while the page is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nmt_cli.recipe.help import default_text, sections, type_name
from nmt_cli.text.lines import write_text

_START, _END = "<!-- keys -->\n", "<!-- end of keys -->\n"


def keys_markdown() -> str:
    lines = []
    for about, keys in sections():
        lines += [f"### {about}", "", "| key | default | type | meaning |", "|---|---|---|---|"]
        for key in keys:
            cells = (f"`{key.name}`", default_text(key), type_name(key).replace("|", "\\|"), key.doc)
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    before, _, rest = page.read_text(encoding="utf-8").partition(_START)
    write_text(page, before + _START + keys_markdown() + _END + rest.partition(_END)[2])
