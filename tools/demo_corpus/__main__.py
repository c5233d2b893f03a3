"""Write the demo corpus into the package, as compressed files."""

import lzma
from pathlib import Path

from demo_corpus.corpus import alignment, demo_corpus

FOLDER = Path(__file__).parents[2] / "nmt_cli" / "demo"

files = {f"{split}.tsv": ["\t".join(pair) for pair in pairs] for split, pairs in demo_corpus().items()}
files["test.align"] = alignment()
for name, lines in files.items():
    text = "".join(f"{line}\n" for line in lines)
    (FOLDER / f"{name}.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
