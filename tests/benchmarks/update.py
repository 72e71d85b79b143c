"""The update: forward and backward pass of one group's optimiser step, ours and stock TRL's, on one batch.

The batch is one group of eight on the small agent: a prompt of corpus text and eight completions of 256
tokens with nothing in common, so that nothing but the prompt can be shared. Each is four turns of 32 sampled
tokens and four tool replies of 32, which the loss leaves out: about the proportion in the small agent's own
trajectories. None is padded, which favours the peer. The peer is stock TRL 1.15 with the log-probabilities of
TRL 1.14.2, because 1.15's own need a GPU kernel (peer.py says what that is). They take turns.
Memory is what the process grows by at its peak, as the system sees it. Leaves out the optimiser's own
arithmetic, which is the same for both.
"""

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from typing import Any

import psutil

from agentkit.policies.loading import load_agent
from agentkit.recipe import Recipe
from agentkit.tools.corpus import Corpus

from .common import case, main, report
from .peer import as_batch, logprobs, our_trainer, stock_trainer, update

GROUP, COMPLETION, TURN = 8, 256, 32
FULL, QUICK = {256: 7, 1024: 5, 4096: 3}, {256: 3, 1024: 2, 4096: 1}  # prompt tokens -> repeats


@contextlib.contextmanager
def repeated(act: Callable[[], Any], every_s: float) -> Iterator[None]:
    """Do something again and again, in a thread, while the body runs."""
    ended = threading.Event()

    def turns() -> None:
        while not ended.wait(every_s):
            act()

    thread = threading.Thread(target=turns, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def bench_update(quick: bool = False) -> dict[str, Any]:
    """Seconds of one update, largest differences in log-probabilities and gradients, peak memory.

    ``ratio`` is peer / ours: above 1 is faster. ``logp_diff`` is in nats, ``grad_diff`` relative to the norm
    of the peer's gradient; ``..._full`` are those of training all weights instead of LoRA adapters.
    """
    repeats = QUICK if quick else FULL
    lora, full = _pair(True), _pair(False)
    lora_on = lora[0].tokenizer, lora[0].model.device
    _compare(lora, _batch(*lora_on, 64), 1)  # warm-up, not counted
    cases = []
    for prompt, count in repeats.items():
        figures = _compare(lora, _batch(*lora_on, prompt), count)
        if prompt == 256 or not quick:
            other = _compare(full, _batch(*lora_on, prompt), 1)
            figures |= {f"{name}_full": other[name] for name in ("logp_diff", "grad_diff")}
        cases.append(case(f"p{prompt}", "s/step", *figures.pop("seconds"), inverse=True, **figures))
    return report("update", cases)


def _pair(adapters: bool) -> tuple[Any, Any]:
    sizes = {"group_size": GROUP, "prompts_per_step": 1, "micro_batch": GROUP}
    recipe = Recipe(beta=0.0, temperature=0.7, **sizes)
    kinds = our_trainer, stock_trainer
    return tuple(kind(*load_agent("nano", precision="float32"), recipe, adapters) for kind in kinds)


def _batch(tokenizer: Any, device: Any, prompt: int) -> dict[str, Any]:
    text = " ".join(passage for (passage,) in Corpus().rows("SELECT text FROM passage LIMIT 400"))
    tokens = cycle(tokenizer(text)["input_ids"])
    shared = list(islice(tokens, prompt))
    completions = [[5 + i, *islice(tokens, COMPLETION - 1)] for i in range(GROUP)]  # no two begin alike
    sampled = [int(t // TURN % 2 == 0) for t in range(COMPLETION)]
    advantages = [1.0 - 2 * i / (GROUP - 1) for i in range(GROUP)]
    made = as_batch([shared] * GROUP, completions, [sampled] * GROUP, advantages)
    return {name: x.to(device) for name, x in made.items()}


def _compare(pair: tuple[Any, Any], batch: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Seconds, gradients, log-probabilities and peak memory of both, one update after the other."""
    seconds, peaks, gradients = ([], []), ([], []), [None, None]
    for _ in range(repeats):
        for side, trainer in enumerate(pair):
            gradients[side] = None  # else it would hide growth
            peak, (took, _, gradients[side]) = _peak_mb(partial(update, trainer, batch))
            seconds[side].append(took)
            peaks[side].append(peak)
    ours, peer = (logprobs(trainer, batch) for trainer in pair)
    differ = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    memory = {"ours": round(max(peaks[0]), 1), "peer": round(max(peaks[1]), 1)}
    found = {"logp_diff": float((ours - peer).abs().max()), "grad_diff": differ, "peak_mb": memory}
    return found | {"seconds": seconds}


def _peak_mb(work: Callable[[], Any]) -> tuple[float, Any]:
    """How many MB this process grew by at most while something ran, and what that returned."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # memory that was freed and kept would hide growth
    process = psutil.Process()
    grown = [before := process.memory_info().rss]
    with repeated(lambda: grown.append(process.memory_info().rss), 0.002):
        result = work()
    return (max(grown) - before) / 1e6, result


if __name__ == "__main__":
    main(bench_update)
