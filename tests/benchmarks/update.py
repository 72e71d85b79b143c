"""The update: forward and backward pass of one group's optimiser step, ours and stock TRL's, on one batch.

The batch is one group of eight on the small agent: a prompt of corpus text and eight completions of 256
tokens with nothing in common, so that nothing but the prompt can be shared. Each is four turns of 32 sampled
tokens and four tool replies of 32, which the loss leaves out: about the proportion in the small agent's own
trajectories. None is padded, which favours the peer (peer.py). They take turns.
Leaves out memory, and the optimiser's own arithmetic, which is the same for both.
"""

from itertools import cycle, islice
from typing import Any

from agentkit.policies.loading import load_agent
from agentkit.recipe import Recipe
from agentkit.tools.corpus import Corpus

from .common import case, main, report
from .peer import as_batch, logprobs, our_trainer, stock_trainer, update

GROUP, COMPLETION, TURN = 8, 256, 32
FULL, QUICK = {256: 7, 1024: 5, 4096: 3}, {256: 3, 1024: 2, 4096: 1}  # prompt tokens -> repeats


def bench_update(quick: bool = False) -> dict[str, Any]:
    """Seconds of one update, largest differences in log-probabilities and gradients.

    ``ratio`` is peer / ours: above 1 is faster. ``logp_diff`` is in nats, ``grad_diff`` relative to the norm
    of the peer's gradient.
    """
    pair = _pair()
    made_on = pair[0].tokenizer, pair[0].model.device
    _compare(pair, _batch(*made_on, 64), 1)  # warm-up, not counted
    cases = []
    for prompt, count in (QUICK if quick else FULL).items():
        figures = _compare(pair, _batch(*made_on, prompt), count)
        cases.append(case(f"p{prompt}", "s/step", *figures.pop("seconds"), inverse=True, **figures))
    return report("update", cases)


def _pair() -> tuple[Any, Any]:
    sizes = {"group_size": GROUP, "prompts_per_step": 1, "micro_batch": GROUP}
    recipe = Recipe(beta=0.0, temperature=0.7, **sizes)
    return tuple(
        kind(*load_agent("nano", precision="float32"), recipe) for kind in (our_trainer, stock_trainer)
    )


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
    """Seconds, gradients and log-probabilities of both, one update after the other."""
    seconds, gradients = ([], []), [None, None]
    for _ in range(repeats):
        for side, trainer in enumerate(pair):
            took, _, gradients[side] = update(trainer, batch)
            seconds[side].append(took)
    ours, peer = (logprobs(trainer, batch) for trainer in pair)
    differ = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    return {"logp_diff": float((ours - peer).abs().max()), "grad_diff": differ, "seconds": seconds}


if __name__ == "__main__":
    main(bench_update)
