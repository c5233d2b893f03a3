"""Sphinx reads README.md and docs/ as a site without a warning. Dead links and pages outside the index are warnings."""

from __future__ import annotations

import warnings
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).parents[2]


def test_site_has_no_warning_and_no_dead_link(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # myst-parser calls a part of Sphinx that a later Sphinx removes
        status = build_main(["-q", "-W", "-b", "dummy", "-c", str(ROOT / "docs"), str(ROOT), str(tmp_path)])
    assert status == 0, capsys.readouterr().err
