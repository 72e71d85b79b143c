"""Log-probabilities of trajectories that begin alike, each distinct token computed once.

The trajectories of a group share their prompt, often their first turns, and groups share the system prompt.
Here they form a prefix tree. All its tokens lie in one packed row, without padding; every layer's attention
lets a token see its own path through the tree and nothing else, so the keys and values of a shared prefix are
computed once, with gradient, and read by all. The output layer is applied in chunks, and only where a token
is scored. The result is that of ``plain_logprobs`` up to the order of floating-point sums. As no cache is
involved, it works under gradient checkpointing, and as the model's own forward is called, with LoRA and with
wrapped models.

Left out: layers that are not full causal attention (sliding windows, recurrent or linear attention).
``prepare`` says why a model cannot share, and the caller then computes plainly. Dropout would be drawn once
for a shared token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentkit.policies.attention import allow_other_attention
from agentkit.rollouts.tokens import completion_logprobs, token_logprobs

PLAIN_ROWS = 4  # scored together
CHUNK_ELEMENTS = 2**24  # logits that exist at a time: 64 MiB in float32
PROBE_ERROR = {
    torch.float32: 1e-4,
    torch.bfloat16: 0.2,
    torch.float16: 0.05,
}  # nats, by the precision of the weights


@dataclass(frozen=True, slots=True)
class Tree:
    """A prefix tree of B sequences, packed into one row of N tokens: each sequence adds the tokens no earlier
    one has.
    """

    ids: np.ndarray  # (N,) int64
    positions: np.ndarray  # (N,) int64, of each token in its sequences
    nodes: tuple[np.ndarray, ...]  # for each sequence, where its tokens lie in the packed row
    runs: tuple[
        int, ...
    ]  # tokens that each sequence with tokens of its own added, in packed order; they sum to N
    pieces: tuple[int, ...]  # the packed row cut wherever sequences part; they sum to N
    paths: tuple[
        tuple[int, ...], ...
    ]  # for each run, the pieces that make up its sequence up to the run's end


def build_tree(rows: Sequence[Sequence[int]]) -> Tree:
    """The prefix tree of B sequences of token ids, none of them empty.

    In lexicographic order the longest prefix that a sequence shares with any before it is the one it shares
    with the last.
    """
    assert rows and all(len(row) for row in rows)
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    nodes: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
    last, last_nodes = np.empty(0, np.int64), np.empty(0, np.int64)
    ids, positions, added, total, cuts = [], [], [], 0, {0}
    for i in sorted(range(len(rows)), key=lambda i: list(rows[i])):
        shared = _common(last, arrays[i])
        own = np.arange(total, total + len(arrays[i]) - shared)
        nodes[i] = np.concatenate([last_nodes[:shared], own])
        if len(own):
            added.append(nodes[i])
            cuts |= {total, total + len(own)} | ({int(last_nodes[shared - 1]) + 1} if shared else set())
            ids.append(arrays[i][shared:])
            positions.append(np.arange(shared, len(arrays[i])))
            total += len(own)
        last, last_nodes = arrays[i], nodes[i]
    starts = sorted(cuts)
    index = {start: n for n, start in enumerate(starts)}
    return Tree(
        ids=np.concatenate(ids),
        positions=np.concatenate(positions),
        nodes=tuple(nodes),
        runs=tuple(len(own) for own in ids),
        pieces=tuple(b - a for a, b in pairwise(starts)),
        paths=tuple(tuple(index[int(n)] for n in path if int(n) in index) for path in added),
    )


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix."""
    short = min(len(a), len(b))
    differ = np.flatnonzero(a[:short] != b[:short])
    return int(differ[0]) if len(differ) else short


class _Layout:
    """What attention needs of a tree, on the model's device: sizes, paths, and a causal mask for each run
    after the first.
    """

    def __init__(self, tree: Tree, device: torch.device):
        self.runs, self.pieces, self.paths = list(tree.runs), list(tree.pieces), tree.paths
        self.masks = []
        made: dict[
            tuple[int, int], torch.Tensor | None
        ] = {}  # completions of one length after one prompt have the same
        for run, path in zip(tree.runs, tree.paths, strict=True):
            shape = run, sum(tree.pieces[piece] for piece in path)
            if shape not in made:
                whole = torch.ones(shape, dtype=torch.bool, device=device)
                made[shape] = None if run == shape[1] else whole.tril(shape[1] - run)[None, None]
            self.masks.append(made[shape])


def tree_attention(
    tree: _Layout, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *unused: Any,
    **options: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attention along the paths of a tree, whose tokens lie in one packed row of N; arguments as
    agentkit.policies.attention's.
    """
    keys, values = key.split(tree.pieces, dim=2), value.split(tree.pieces, dim=2)
    parts = []
    for q, path, mask in zip(query.split(tree.runs, dim=2), tree.paths, tree.masks, strict=True):
        k, v = (torch.cat([of[piece] for piece in path], dim=2) for of in (keys, values))
        parts.append(sdpa_attention_forward(module, q, k, v, mask, **options)[0])
    return torch.cat(parts, dim=1), None


def prepare(model: Any) -> str | None:
    """Give a causal language model the attention that can share prefixes; it stays, and other calls are SDPA
    as before.

    It must stay because gradient checkpointing runs layers again during the backward pass. The model is then
    asked for log-probabilities of three short sequences both ways.

    Args:
        model: a transformers model, with or without PEFT adapters.

    Returns:
        None, or why this model cannot share prefixes; it is then as it was.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or [])
    if not kinds and getattr(config, "sliding_window", None):
        kinds = {"sliding_attention"}
    if kinds - {"full_attention"}:
        return f"it has layers of kind {', '.join(sorted(kinds - {'full_attention'}))}"
    before = config._attn_implementation
    if why := allow_other_attention(model):
        return why
    training = model.training
    model.eval()
    try:
        why = _probe(model)
    except Exception as error:  # whatever an unknown architecture raises, the plain way remains
        why = f"its forward pass failed: {type(error).__name__}: {str(error)[:160]}"
    finally:
        model.train(training)
    if why:
        model.set_attn_implementation(before)
    return why


@torch.no_grad()
def _probe(model: Any) -> str | None:
    """Why log-probabilities of three short sequences differ from the plain ones; None where they agree."""
    words = np.arange(1, 25) * 37 % model.config.get_text_config().vocab_size
    rows = [
        words[:20],
        np.concatenate([words[:12], words[3:14]]),
        np.concatenate([words[:12], words[3:8], words[20:]]),
    ]
    width = max(map(len, rows))
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor(np.stack([np.pad(row, (0, width - len(row))) for row in rows]), device=device)
    mask = torch.tensor([[int(t < len(row)) for t in range(width)] for row in rows], device=device)
    scored = mask[:, 8:].bool()
    shared, _ = shared_logprobs(model, ids, mask, scored, 1.0)
    plain, _ = plain_logprobs(model, ids, mask, scored, 1.0)
    error, allowed = float((shared - plain).abs().max()), PROBE_ERROR.get(model.dtype, 1e-4)
    return None if error <= allowed else f"its shared log-probabilities are off by {error:.2g} nats"


def shared_logprobs(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    scored: torch.Tensor,
    temperature: float,
    entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities of scored tokens at a temperature, every distinct prefix computed once.

    Args:
        model: a causal language model that ``prepare`` accepted, possibly wrapped for several processes.
        ids: (B, T) int64, padded on either side.
        mask: (B, T), 1 on real tokens.
        scored: (B, K) bool over the last K columns; each scored token needs one before it. Rows without any
            cost nothing.
        temperature: divides the logits.
        entropy: also return the entropy of each next-token distribution, in nats, without gradient.

    Returns:
        (B, K) log-probabilities with zeros where nothing is scored, and (B, K) entropies likewise or None.
    """
    assert (
        ids.ndim == mask.ndim == scored.ndim == 2 and ids.dtype == torch.int64 and scored.dtype == torch.bool
    )
    if not scored.any():  # every trajectory here is left out of the loss
        return tuple(
            torch.zeros(scored.shape, device=ids.device) if wanted else None for wanted in (True, entropy)
        )
    rows, targets = _used(ids, mask, scored)
    tree = build_tree(rows)
    own = np.concatenate(
        [path[at] for path, at in zip(tree.nodes, targets, strict=True)]
    )  # a node is its parent and token
    before = np.concatenate([path[at - 1] for path, at in zip(tree.nodes, targets, strict=True)])
    distinct, first, back = np.unique(own, return_index=True, return_inverse=True)
    packed, positions, predict, token, back = (
        torch.from_numpy(array).to(ids.device)
        for array in (tree.ids, tree.positions, before[first], tree.ids[distinct], back)
    )
    hidden = _hidden_states(model, packed[None], positions[None], _Layout(tree, ids.device))
    head = _unwrapped(model).get_output_embeddings()
    found = _chunked(head, hidden.index_select(0, predict), token, temperature, entropy)
    return tuple(x if x is None else _scatter(x.index_select(0, back), scored) for x in found)


def _used(
    ids: torch.Tensor, mask: torch.Tensor, scored: torch.Tensor
) -> tuple[list[list[int]], list[np.ndarray]]:
    """For each row with scored tokens: its real tokens up to the last scored one, and the places of the
    scored ones.
    """
    keep = scored.shape[1]
    ids, mask, scored = (x.cpu().numpy() for x in (ids, mask.bool(), scored))
    wanted = np.concatenate([np.zeros((len(ids), ids.shape[1] - keep), bool), scored], axis=1)
    rows, targets = [], []
    for row, real, want in zip(ids, mask, wanted, strict=True):
        if want.any():
            at = np.flatnonzero(want[real])
            assert want[~real].sum() == 0 and at[0] > 0, (
                "a scored token must be real and have a token before it"
            )
            rows.append(row[real][: at[-1] + 1].tolist())
            targets.append(at)
    return rows, targets


def _hidden_states(model: Any, ids: torch.Tensor, positions: torch.Tensor, tree: _Layout) -> torch.Tensor:
    """(N, hidden size): what the output layer reads. The model's own forward runs, so that wrappers around it
    see the call.
    """
    kept: list[torch.Tensor] = []
    hook = (
        _unwrapped(model)
        .get_decoder()
        .register_forward_hook(lambda module, inputs, output: kept.append(output[0]))
    )
    attend = partial(tree_attention, tree)
    try:  # a mask of four dimensions is passed on as it is, so none is built
        mask = torch.empty((1, 1, 0, 0), device=ids.device)
        model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=1,
            attend=attend,
        )
    finally:
        hook.remove()
    return kept[0][0]


def _unwrapped(model: Any) -> Any:
    """The transformers or PEFT model inside a wrapper for several processes."""
    return model.module if hasattr(model, "module") and not hasattr(model, "get_output_embeddings") else model


def _chunked(
    head: Any, hidden: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``_score`` in chunks of about ``CHUNK_ELEMENTS`` logits; several chunks are computed again in the
    backward pass.
    """
    size = max(1, CHUNK_ELEMENTS // head.weight.shape[0])
    chunks = list(zip(hidden.split(size), tokens.split(size), strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        found = [_score(head, h, t, temperature, entropy) for h, t in chunks]
    else:
        found = [checkpoint(_score, head, h, t, temperature, entropy, use_reentrant=False) for h, t in chunks]
    return torch.cat([logprobs for logprobs, _ in found]), torch.cat(
        [e for _, e in found]
    ) if entropy else None


def _score(
    head: Any, hidden: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(N,) log-probabilities of tokens after hidden states (N, hidden size), and (N,) entropies or None."""
    logits = head(hidden).float().div_(temperature)  # (N, V), in place: several hundred MB else
    return token_logprobs(logits, tokens, entropy=entropy)


def _scatter(values: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    """Values of the scored places, row by row, in a tensor of zeros."""
    return torch.zeros(scored.shape, dtype=values.dtype, device=values.device).masked_scatter(scored, values)


def plain_logprobs(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    scored: torch.Tensor,
    temperature: float,
    entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same as ``shared_logprobs``, row by row on any causal language model: rows of like length go
    together, unpadded.
    """
    assert (
        ids.ndim == mask.ndim == scored.ndim == 2 and ids.dtype == torch.int64 and scored.dtype == torch.bool
    )
    keep = scored.shape[1]
    rows = scored.any(1).nonzero().flatten()
    rows = rows[mask[rows].sum(1).argsort(stable=True)]
    logprobs, entropies = (
        torch.zeros(scored.shape, dtype=torch.float32, device=ids.device) for _ in range(2)
    )
    for part in rows.split(PLAIN_ROWS):
        used = mask[part].any(0).nonzero().flatten()
        first, last = int(used[0]), int(used[-1]) + 1
        width = last - (ids.shape[1] - keep)  # completion columns that hold a token
        found, surprise = completion_logprobs(
            model, ids[part, first:last], mask[part, first:last], width, temperature, entropy
        )
        logprobs = logprobs.index_add(
            0, part, torch.nn.functional.pad(found * scored[part, :width], (0, keep - width))
        )
        if entropy:
            entropies[part, :width] = surprise * scored[part, :width]
    return logprobs, entropies if entropy else None
