"""Fixtures of the tests of the search."""

from __future__ import annotations

import pytest
from support.search_oracle import make

from nmt_cli.model.base import Seq2Seq


@pytest.fixture(params=("pre", "post", "recurrent"))
def network(request) -> Seq2Seq:
    """A small model with random weights."""
    return make(request.param)
