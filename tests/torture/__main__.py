"""Break nmt on purpose and count what it survives.

    make torture                                   everything: hours
    make torture OPTIONS="--share 0.01"            a sample: minutes
    make torture OPTIONS="--only mutants --only streams"
    make torture OPTIONS=--table                   the table of what was run so far

A case is survived if nmt gives the right result, or refuses in one sentence. It fails if nmt gives a wrong result with
exit code 0, leaves something half-written, shows a traceback, crashes or hangs. The cases run in a random order that
depends only on the seed, so a run that was stopped is a sample. The same command continues it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from torture import folders, load, mutants, streams, texts, writers
from torture.bench import SURVIVED, Bench, Case

CLASSES: dict[str, Callable[[Bench], Iterator[Case]]] = {
    "faults": writers.faults,
    "kills": writers.kills,
    "mutants": mutants.cases,
    "folders": folders.cases,
    "texts": texts.cases,
    "streams": streams.cases,
    "torchrun": streams.torchrun_cases,
    "load": load.cases,
}
MEANINGS = {
    "faults": "the n-th operation on files fails, or the process is killed there",
    "kills": "kill -9 at a random moment",
    "mutants": "a damaged, exchanged or missing file",
    "folders": "hostile folders, with right checksums",
    "texts": "hostile text",
    "streams": "slow, closed and full streams, limits of memory and files, dead workers",
    "torchrun": "torchrun, with a killed worker",
    "load": "long inputs in constant memory",
}


def position(seed: int, case: Case) -> float:
    """Where a case stands in the order of all cases, from 0 to 1."""
    digest = hashlib.sha256(f"{seed} {case.group} {case.name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def read_results(path: Path) -> dict[tuple[str, str], dict]:
    """The results so far. A line that was cut off by a kill is left out, and its case runs again."""
    results = {}
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        results[entry["class"], entry["case"]] = entry
    return results


def table(results: dict[tuple[str, str], dict], totals: dict[str, int]) -> str:
    counts: dict[str, Counter] = {group: Counter() for group in totals}
    for (group, _), entry in results.items():
        if group in counts:
            counts[group][entry["verdict"]] += 1
    rows = [
        "| class | cases | tried | right result | refused in one sentence | failed |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    counts["all"] = sum(counts.values(), Counter())
    for group, count in counts.items():
        cases = sum(totals.values()) if group == "all" else totals[group]
        name = f"`{group}`: {MEANINGS[group]}" if group in MEANINGS else group
        figures = (cases, count.total(), count["right"], count["refused"], count["failed"])
        rows.append(f"| {name} | " + " | ".join(f"{figure:,}" for figure in figures) + " |")
    return "\n".join(rows)


def try_case(bench: Bench, case: Case, seed: int) -> tuple[str, str]:
    """The verdict on a case, and what went wrong."""
    try:
        verdict = case.run(random.Random(f"{seed} {case.group} {case.name}"))
        assert verdict in SURVIVED
        return verdict, ""
    except TimeoutError:
        bench.restart()
        return "failed", "hung"
    except AssertionError as failure:
        return "failed", str(failure)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "nmt-torture", help="results and work"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the cases, and of the lines of the load")
    parser.add_argument("--only", action="append", choices=CLASSES, help="a class; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the table of the results so far, and end")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept, counted = options.out / f"results-{options.seed}.jsonl", options.out / "totals.json"
    results = read_results(kept)
    totals: dict[str, int] = json.loads(counted.read_text()) if counted.exists() else {}
    if options.table:
        print(table(results, totals))
        return 0
    bench, cases = Bench(options.out.resolve(), options.share), []
    for group in options.only or CLASSES:
        found = list(CLASSES[group](bench))
        totals[group] = len(found)
        cases += [(position(options.seed, case), case) for case in found]
    counted.write_text(json.dumps(totals))
    # Load is a small number of cases. Its length is the share.
    chosen = [
        case for at, case in sorted(cases, key=lambda pair: pair[0]) if at < options.share or case.group == "load"
    ]
    failed = 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with closing(bench), kept.open("a") as stream:
        for number, case in enumerate(chosen, 1):
            if results.get((case.group, case.name), {}).get("verdict") not in SURVIVED:  # a failed case is tried again
                began = time.monotonic()
                verdict, detail = try_case(bench, case, options.seed)
                entry = {"class": case.group, "case": case.name, "verdict": verdict, "detail": detail[-2000:]}
                results[case.group, case.name] = entry
                stream.write(json.dumps({**entry, "seconds": round(time.monotonic() - began, 2)}) + "\n")
                stream.flush()
                if verdict == "failed":
                    print(f"FAILED {case.group}: {case.name}: {detail[-600:]}", flush=True)
            failed += results[case.group, case.name]["verdict"] == "failed"
            if number % 100 == 0:
                print(f"{number:,} of {len(chosen):,} cases, {failed} failed", file=sys.stderr, flush=True)
    print(table(results, totals))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
