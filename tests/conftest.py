"""What several test files share: corpus, small suite, tokenizer, browser, hypothesis' profile."""

import gc
import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import settings

from agentkit import Suite, nano
from agentkit.tools.corpus import Corpus

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")  # as in .ci/setup.py
CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip

# Deterministic, and without deadlines: the machine may be busy, and a slow example is not a wrong one.
settings.register_profile("agentkit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("agentkit")


SLOWEST = (  # files that take a minute or more, the longest first; of what is not slow, test_notebooks takes the most
    "test_real_recipes", "test_jupyterlab", "test_notebooks", "test_launch", "test_own_work", "test_vllm",
    "test_sweep_runs", "test_kills", "test_half_precision", "test_cards", "test_commands", "test_shard",
    "test_memory", "test_hindsight", "test_autopsies", "test_drawing", "test_unsloth", "test_gpu_script",
    "test_tcr", "test_image",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files first, so that several processes end together."""
    rank = {name: position for position, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded now stays: each training collects the heap."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def thread_time():
    """The seconds of processor time of this thread: a worker's other threads are none of a test's, nor is a
    collection of all that its tests have loaded.
    """
    gc.disable()
    yield time.thread_time
    gc.enable()


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """The shipped corpus, built on first use."""
    return Corpus()


@pytest.fixture(scope="session")
def suite(corpus) -> Suite:
    """A small suite of both families."""
    return Suite.build({"families": ["A", "B"], "n_tasks": 240, "seed": 11}, corpus=corpus)


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of the agent that ships."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(nano.DATA)


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory) -> Path:
    """Qwen2's architecture, small and random, with the small agent's words and Qwen2.5's template."""
    import torch
    import trl
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    own = AutoTokenizer.from_pretrained(nano.DATA)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    own.chat_template = template.read_text(encoding="utf-8")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(own), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True, max_position_embeddings=32_768, eos_token_id=own.eos_token_id,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    own.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _same_umask():
    """The command line tightens the process' umask; no test may depend on another having done so."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium: one on PATH, else playwright's own. A machine without fails these tests, for they
    prove safety.

    For one module at a time, because playwright keeps an event loop running in this thread.
    """
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # 5 s are few on a busy machine
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, CHROMIUMS)), playwright.chromium.executable_path)
        if not Path(path).exists():
            way_out = "`make setup-test` installs one, or put one on PATH."
            pytest.fail(f"no Chromium on this machine: {way_out}", pytrace=False)
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()
