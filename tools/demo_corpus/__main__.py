"""Write the demo corpus into the package, as compressed TSV files."""

import lzma
from pathlib import Path

from demo_corpus.corpus import demo_corpus

FOLDER = Path(__file__).parents[2] / "nmt_cli" / "demo"

for split, pairs in demo_corpus().items():
    text = "".join(f"{english}\t{french}\n" for english, french in pairs)
    (FOLDER / f"{split}.tsv.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
