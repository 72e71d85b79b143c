"""What several test files share: the corpus, a small suite, the small agent's tokenizer, and hypothesis' profile."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from agentkit import Suite, nano
from agentkit.knowledge import Corpus

# Deterministic, and without deadlines: the machine may be busy, and a slow example is not a wrong one.
settings.register_profile("agentkit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("agentkit")


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """The shipped corpus, built on first use."""
    return Corpus.open()


@pytest.fixture(scope="session")
def suite(corpus) -> Suite:
    """A small suite of both families."""
    return Suite.build({"families": ["A", "B"], "n_tasks": 240, "seed": 11}, corpus=corpus)


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of the agent that ships."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(nano.DATA)


@pytest.fixture(autouse=True)
def _same_umask():
    """The command line tightens the process' umask; no test may depend on another having done so."""
    before = os.umask(0o022)
    yield
    os.umask(before)
