"""What the benchmarks share: the folder of the corpora, and results/NAME.PROCESSOR.json.

    with Record("score") as record:
        record.add("BLEU", seconds=2.2, ratio=0.97)

The file has the figures, and the machine, the versions, the commit, the recipe and the date that belong to them. A
benchmark that fails or adds nothing writes no file. The next run on the same processor replaces the file.

    python benchmarks/record.py                 # all results, one line for each figure

The environment may name other folders: NMT_DATA for the corpora, NMT_RESULTS for the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(os.environ.get("NMT_RESULTS", ROOT / "benchmarks/results"))
DATA = Path(os.environ.get("NMT_DATA", ROOT.parent / "shared/data"))  # multi30k/train.en.gz and so on
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "sha_ni")
PACKAGES = ("nmt-cli", "torch", "numpy", "ctranslate2", "sentencepiece", "sacrebleu")
QUIET = 0.1  # other programs used more than this share of the processor before the start: the machine was busy


class Record:
    def __init__(self, name: str, recipe: Any = None, versions: dict[str, str] | None = None) -> None:
        self.name, self.recipe, self.versions = name, recipe, versions or {}
        self.rows: list[dict[str, Any]] = []
        self.load, self.was_busy = os.getloadavg()[0], busy_share() > QUIET
        self.began = time.time()

    @property
    def path(self) -> Path:
        machine = describe_machine()
        words = re.sub(r"\(.*?\)|processor|cpu|@.*", " ", machine["processor"].lower())
        if "amd" in words and "avx512f" in machine["flags"]:  # AMD EPYC is the name of processors with and without it
            words += " avx512"
        return RESULTS / f"{self.name}.{'-'.join(re.findall(r'[a-z0-9_]+', words))}.json"

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.rows:
            path = self.save()
            print(f"written to {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}", flush=True)

    def add(self, what: str, **figures: Any) -> None:
        """Figures of one thing that was measured. Numbers keep five digits: no clock here has more."""
        self.rows.append({"what": what, **{name: rounded(figure) for name, figure in figures.items()}})

    def save(self) -> Path:
        content = {
            "benchmark": self.name,
            "command": shlex.join(["python", *sys.orig_argv[1:]]).replace(f"{ROOT}/", "").replace(str(DATA), "DATA"),
            "date": datetime.fromtimestamp(self.began, timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self.began),
            "commit": commit(),
            "machine": describe_machine(),
            "machine_was_busy": self.was_busy,
            "load_before": round(self.load, 2),
            "versions": versions() | self.versions,
            "recipe": recipe_hash(self.recipe) if self.recipe is not None else None,
            "figures": self.rows,
        }
        RESULTS.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return self.path


def rounded(figure: Any) -> Any:
    if isinstance(figure, float):
        return float(f"{figure:.5g}")
    return [rounded(part) for part in figure] if isinstance(figure, list | tuple) else figure


def spread(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """The ratio of figures that were measured in turns: by round, the median, the lowest and the highest."""
    rounds = [our / their for our, their in zip(ours, theirs, strict=True)]
    return {"ratio": statistics.median(rounds), "lowest": min(rounds), "highest": max(rounds), "rounds": rounds}


def busy_share(seconds: float = 1.0) -> float:
    """The share of the processor time of the next second that is used. A load average also counts the minute before."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return os.getloadavg()[0] / (os.cpu_count() or 1)

    def ticks() -> tuple[int, int]:
        user, nice, system, idle, waiting, *rest = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
        return idle + waiting, user + nice + system + idle + waiting + sum(rest)

    idle, total = ticks()
    time.sleep(seconds)
    idle_after, total_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def describe_machine() -> dict[str, Any]:
    facts = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"^model name\s*: (.*)", facts, flags=re.M)
    flags = re.search(r"^flags\s*: (.*)", facts, flags=re.M)
    has = set(flags[1].split()) if flags else set()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": name[1].strip() if name else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in has],
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit, with + if files of the package or of the benchmarks differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "nmt_cli", "recipes", "benchmarks/*.py")
    return git("rev-parse", "--short=12", "HEAD") + "+" * bool(changed)


def recipe_hash(recipe: Any) -> str:
    """The beginning of the sha256 of all settings but the places of files."""
    from nmt_cli.recipe.load import settings_of

    settings = {key: value for key, value in settings_of(recipe).items() if not key.startswith(("data.", "train.out"))}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def main() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        busy = ", busy" if result["machine_was_busy"] else ""
        machine = f"{result['machine']['processor']}, {result['machine']['cores']} cores{busy}"
        print(f"\n{result['command']}\n{result['date'][:10]}, {result['commit']}, {machine}")
        for row in result["figures"]:
            figures = (f"{name} {figure}" for name, figure in row.items() if name != "what" and figure is not None)
            print(f"  {row['what']:<34} {', '.join(figures)}")


if __name__ == "__main__":
    main()
