"""Models that CTranslate2 and Hugging Face cannot run are refused."""

import re

import pytest
from support.models import MIXTURES, OTHER_FAMILIES, parametrized, randomized

from nmt_cli.errors import NmtError
from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.export.hf import to_hf
from nmt_cli.recipe import schema as recipe
from nmt_cli.store.checkpoint import Trained


@parametrized(OTHER_FAMILIES | MIXTURES)
def test_export_of_an_unsupported_family_is_an_error_and_writes_nothing(config, tmp_path):
    trained = Trained(randomized(config), None, recipe.Recipe(model=config), {})
    for export in (to_ctranslate2, to_hf):
        with pytest.raises(NmtError, match=re.escape(recipe.not_exportable(config))) as error:
            export(trained, tmp_path / "out")
        assert error.value.hint
    assert not (tmp_path / "out").exists()
