"""One pair of implementations for the tests of the reference's faults."""

import pytest

from parity.reference import pair


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    made = pair(tmp_path_factory.mktemp("bart"), "bart")
    made.sequence.config.n_docs = made.token.config.n_docs = 2
    return made


@pytest.fixture
def bart(made_once):
    """A BART of two passages, with the same weights in every test."""
    made_once.redraw(3)
    return made_once
