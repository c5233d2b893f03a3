from __future__ import annotations

import pytest

from nmt_cli.translate.translator import load


@pytest.fixture(scope="session")
def translators(model):
    """A translator for each engine, without worker processes. In-process calls are faster than the command."""
    with load(model, engine="ctranslate2", workers=1) as fast, load(model, engine="torch", workers=1) as reference:
        yield {"ctranslate2": fast, "torch": reference}
