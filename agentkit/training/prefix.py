"""Log-probabilities of trajectories that begin alike, each distinct token computed once.

The trajectories of a group share their prompt, often their first turns, and groups share the system prompt.
Here they form a prefix tree. All its tokens lie in one packed row, without padding; every layer's attention
lets a token see its own path through the tree and nothing else, so the keys and values of a shared prefix are
computed once, with gradient, and read by all. The output layer is applied in chunks, and only where a token
is scored. The result is that of ``plain_logprobs`` up to the order of floating-point sums. As no cache is
involved, it works under gradient checkpointing, and as the model's own forward is called, with LoRA and with
wrapped models.

Leaves out layers that are not full causal attention (sliding windows, recurrent or linear attention).
``prepare`` says why a model cannot share, and the caller then computes plainly. Dropout would be drawn once
for a shared token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentkit.policies.attention import allow_other_attention, evaluating
from agentkit.rollouts.tokens import token_logprobs

CHUNK_ELEMENTS = {"cpu": 2**24, "cuda": 2**28}  # logits that exist at a time: 64 MiB and 1 GiB in float32
# nats, by the precision of the weights
PROBE_ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}


@dataclass(frozen=True, slots=True)
class Tree:
    """A prefix tree of B sequences, packed into one row of N tokens, each distinct prefix once."""

    ids: np.ndarray  # (N,) int64
    positions: np.ndarray  # (N,) int64, of each token in its sequences
    nodes: tuple[np.ndarray, ...]  # for each sequence, where its tokens lie in the packed row
    runs: tuple[int, ...]  # tokens that each sequence adds, where it adds any, in packed order; they sum to N
    pieces: tuple[int, ...]  # the packed row cut wherever sequences part; they sum to N
    paths: tuple[tuple[int, ...], ...]  # for each run, the pieces of its sequence up to the run's end


def build_tree(rows: Sequence[Sequence[int]]) -> Tree:
    """The prefix tree of B sequences of token ids, none of them empty.

    In lexicographic order the longest prefix that a sequence shares with any before it is the one it shares
    with the last. Four rows, in that order, with what each adds:

        row 2: 5 2          5 2    a run of 2, at 0 1 of the packed row
        row 0: 5 6 7 8      6 7 8  a run of 3, at 2 3 4; leaves row 2's path after the 5
        row 3: 5 6 7 8      nothing: its nodes are row 0's, 0 2 3 4
        row 1: 5 6 7 9 9    9 9    a run of 2, at 5 6; leaves row 0's path after the 7

    The packed row is 5 | 2 | 6 7 | 8 | 9 9, cut where runs begin and where paths part. Its pieces have 1, 1,
    2, 1 and 2 tokens, and the paths of the three runs are the pieces 0 1, 0 2 3 and 0 2 4.
    """
    assert rows and all(len(row) for row in rows)
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    nodes: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
    last, last_nodes = np.empty(0, np.int64), np.empty(0, np.int64)
    ids, positions, run_nodes, cuts, total = [], [], [], {0}, 0
    for i in sorted(range(len(rows)), key=lambda i: list(rows[i])):
        shared = _common(last, arrays[i])
        run = np.arange(total, total + len(arrays[i]) - shared)  # where its own tokens go
        nodes[i] = np.concatenate([last_nodes[:shared], run])
        last, last_nodes = arrays[i], nodes[i]
        if not len(run):  # a sequence that was there before
            continue
        if shared:
            cuts.add(int(nodes[i][shared - 1]) + 1)  # behind the last token it shares
        total += len(run)
        cuts.add(total)  # behind its run
        ids.append(arrays[i][shared:])
        positions.append(np.arange(shared, len(arrays[i])))
        run_nodes.append(nodes[i].tolist())
    bounds = sorted(cuts)
    piece_at = {start: number for number, start in enumerate(bounds)}
    return Tree(
        ids=np.concatenate(ids),
        positions=np.concatenate(positions),
        nodes=tuple(nodes),
        runs=tuple(map(len, ids)),
        pieces=tuple(end - start for start, end in pairwise(bounds)),
        paths=tuple(tuple(piece_at[n] for n in path if n in piece_at) for path in run_nodes),
    )


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix."""
    same = a[: len(b)] == b[: len(a)]
    return len(same) if same.all() else int(same.argmin())


def tree_attention(
    tree: Tree, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    *unused: Any, **options: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attention along the paths of a tree; arguments as agentkit.policies.attention's."""
    keys, values = key.split(tree.pieces, dim=2), value.split(tree.pieces, dim=2)
    outputs = []
    for q, path in zip(query.split(tree.runs, dim=2), tree.paths, strict=True):
        k = torch.cat([keys[piece] for piece in path], dim=2)
        v = torch.cat([values[piece] for piece in path], dim=2)
        # a run's tokens are the last of its path, so each sees a lower right triangle of it, a pattern with a
        # name, which fast kernels know, and no mask in memory; None is plainly causal
        own, seen = q.shape[2], k.shape[2]
        mask = None if own == seen else causal_lower_right(own, seen)
        outputs.append(sdpa_attention_forward(module, q, k, v, mask, **options)[0])
    return torch.cat(outputs, dim=1), None


def prepare(model: Any) -> str | None:
    """Give a causal language model the attention that can share prefixes; other calls are SDPA as before.

    It stays, because gradient checkpointing runs layers again during the backward pass. The model is then
    asked for log-probabilities of three short sequences both ways. Returns None, or why this model cannot
    share prefixes; it is then as it was.
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
    try:
        with evaluating(model):
            why = _probe(model)
        if not why and not splits(model):  # in half precision much may be rounding
            why = "its logits are not what its output layer makes of its states"
    except Exception as error:  # whatever an unknown architecture raises, the plain way remains
        why = f"its forward pass failed: {type(error).__name__}: {str(error)[:160]}"
    if why:
        model.set_attn_implementation(before)
    return why


@torch.no_grad()
def _probe(model: Any) -> str | None:
    """Why log-probabilities of three short sequences differ from the plain ones; None where they agree."""
    words = torch.arange(1, 25) * 37 % model.config.get_text_config().vocab_size
    rows = [words[:20], torch.cat([words[:12], words[3:14]]), torch.cat([words[:12], words[3:8], words[20:]])]
    device = model.get_input_embeddings().weight.device
    ids = pad_sequence(rows, batch_first=True).to(device)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(device)
    scored = mask[:, 8:].bool()
    shared, _ = shared_logprobs(model, ids, mask, scored, 1.0)
    plain, _ = plain_logprobs(model, ids, mask, scored, 1.0)
    error, allowed = float((shared - plain).abs().max()), PROBE_ERROR.get(model.dtype, 1e-4)
    return None if error <= allowed else f"its shared log-probabilities are off by {error:.2g} nats"


# ---- log-probabilities
def scorer(model: Any, share: bool) -> tuple[Callable[..., Any], str | None]:
    """How a model's log-probabilities are computed from now on, and why its prefixes are not shared."""
    unshared = prepare(model) if share else "it was not asked for"
    return (partial(plain_logprobs, split=splits(model)) if unshared else shared_logprobs), unshared


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
        scored: (B, K) bool over the last K columns, somewhere true; each scored token needs one before it.
            Rows without any cost nothing.
        temperature: divides the logits.
        entropy: also return the entropy of each next-token distribution, in nats, without gradient.

    Returns:
        (B, K) log-probabilities with zeros where nothing is scored, and (B, K) entropies likewise or None.
    """
    rows, targets = _used(ids, mask, scored)
    tree = build_tree(rows)
    # a node stands for its token and all before it: each distinct one is scored once, from the node before
    nodes = np.concatenate([path[at] for path, at in zip(tree.nodes, targets, strict=True)])
    parents = np.concatenate([path[at - 1] for path, at in zip(tree.nodes, targets, strict=True)])
    distinct, first, back = np.unique(nodes, return_index=True, return_inverse=True)
    arrays = tree.ids, tree.positions, parents[first], tree.ids[distinct], back
    packed, positions, predict, token, back = (torch.from_numpy(array).to(ids.device) for array in arrays)
    no_mask = torch.empty((1, 1, 0, 0), device=ids.device)  # of four dimensions: passed on, so none is built
    attend = partial(tree_attention, tree)
    options = {"attention_mask": no_mask, "position_ids": positions[None], "attend": attend}
    hidden = _hidden_states(model, packed[None], **options)[0]
    scored_states = hidden.index_select(0, predict)
    logprobs, entropies = chunked_logprobs(model, scored_states, token, temperature, entropy)
    logprobs = _scatter(logprobs.index_select(0, back), scored)
    return logprobs, _scatter(entropies.index_select(0, back), scored) if entropy else None


def _used(
    ids: torch.Tensor, mask: torch.Tensor, scored: torch.Tensor
) -> tuple[list[list[int]], list[np.ndarray]]:
    """For each row with scored tokens: its real tokens up to the last scored one, and where those are."""
    assert ids.ndim == mask.ndim == scored.ndim == 2, "ids, mask and scored: one row a sequence"
    assert ids.dtype == torch.int64 and scored.dtype == torch.bool, "ids: int64; scored: bool"
    context = ids.shape[1] - scored.shape[1]
    ids, mask, scored = (x.cpu().numpy() for x in (ids, mask.bool(), scored))
    wanted = np.pad(scored, ((0, 0), (context, 0)))
    rows, targets = [], []
    for row, real, want in zip(ids, mask, wanted, strict=True):
        if want.any():
            at = np.flatnonzero(want[real])
            assert not want[~real].any() and at[0] > 0, "a scored token must be real and have one before it"
            rows.append(row[real][: at[-1] + 1].tolist())
            targets.append(at)
    return rows, targets


def _hidden_states(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """(B, T, hidden size): what the output layer reads, by the model's own forward, which wrappers see."""
    outputs: list[torch.Tensor] = []
    decoder = _unwrapped(model).get_decoder()
    hook = decoder.register_forward_hook(lambda module, inputs, output: outputs.append(output[0]))
    try:
        model(input_ids=ids, use_cache=False, logits_to_keep=1, **options)
    finally:
        hook.remove()
    return outputs[0]


def _unwrapped(model: Any) -> Any:
    """The transformers or PEFT model inside a wrapper for several processes."""
    return model.module if hasattr(model, "module") and not hasattr(model, "get_output_embeddings") else model


def chunked_logprobs(
    model: Any,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    temperature: float,
    entropy: bool,
    device: str = "",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``_score`` in chunks of so many logits (CHUNK_ELEMENTS); several are computed again going backward.

    ``device`` is the kind to compute as on, by default the model's.
    """
    device = device or hidden.device.type
    score = partial(_score, _projection(model, device=device))
    size = max(1, CHUNK_ELEMENTS[device] // _unwrapped(model).get_output_embeddings().weight.shape[0])
    if len(hidden) > size and torch.is_grad_enabled():
        score = partial(checkpoint, score, use_reentrant=False)
    chunks = zip(hidden.split(size), tokens.split(size), strict=True)
    logprobs, entropies = zip(*(score(h, t, temperature, entropy) for h, t in chunks), strict=True)
    return torch.cat(logprobs), torch.cat(entropies) if entropy else None


def _projection(model: Any, exact: bool = True, device: str = "") -> Callable[[torch.Tensor], torch.Tensor]:
    """From hidden states to logits: the output layer, and how Cohere and Granite scale its logits, or Gemma
    caps them.

    Unless told otherwise the product is as exact as the hidden states: in half precision an adapter moves
    logits by less than rounding.
    """
    model = _unwrapped(model)
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    scale = (getattr(config, "logit_scale", None) or 1.0) / getattr(config, "logits_scaling", 1.0)
    on_gpu = (device or head.weight.device.type) == "cuda" and not head.weight.requires_grad
    if exact and type(head) is torch.nn.Linear and head.weight.dtype != torch.float32:
        as_it_is = on_gpu and head.weight.dtype == torch.bfloat16
        weight, bias = head.weight if as_it_is else head.weight.float(), head.bias
        head = partial(_exactly, weight, None if bias is None else bias.float())
    if cap:
        return lambda hidden: torch.tanh(head(hidden).float() / cap) * cap
    return head if scale == 1 else lambda hidden: head(hidden).float() * scale


class _Product(torch.autograd.Function):
    """States times frozen weights, both in bfloat16, with sums and result in float32.

    Products of bfloat16 are exact there, so nothing is lost against a copy of the weights in float32, which
    takes twice their memory and, without TF32, some ten times as long on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.dtype = states.dtype
        return _in_two_parts(states, weight.t())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        return _in_two_parts(gradient, weight).to(ctx.dtype), None


def _in_two_parts(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``left @ right`` in float32; a left in float32 is the sum of two in bfloat16, up to 2^-17 of it."""
    high = left.to(right.dtype)
    product = torch.mm(high, right, out_dtype=torch.float32)
    if left.dtype == right.dtype:
        return product
    return product.add_(torch.mm((left - high).to(right.dtype), right, out_dtype=torch.float32))


def _exactly(weight: torch.Tensor, bias: torch.Tensor | None, hidden: torch.Tensor) -> torch.Tensor:
    """The output layer with its sums in float32, on tensor cores or by a copy of the weights in float32."""
    # without TF32: it is switched on for all float32 products, and RoPE's would round positions beyond 2,048
    with torch.autocast(hidden.device.type, enabled=False):
        if weight.dtype == torch.float32:
            return torch.nn.functional.linear(hidden.float(), weight, bias)
        product = _Product.apply(hidden, weight)  # no view: the logits are divided in place
        return product if bias is None else product + bias


def _score(
    project: Callable, hidden: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(N,) log-probabilities of tokens after hidden states (N, hidden size), and (N,) entropies or None."""
    logits = project(hidden).float().div_(temperature)  # (N, V); in place, for the memory
    return token_logprobs(logits, tokens, entropy=entropy)


def _scatter(values: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    return torch.zeros(scored.shape, dtype=values.dtype, device=values.device).masked_scatter(scored, values)


def plain_logprobs(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    scored: torch.Tensor,
    temperature: float,
    entropy: bool = False,
    split: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As ``shared_logprobs``, on any causal language model, in one forward pass.

    Rows are padded on the right, which no earlier token sees, so that no attention needs a mask. With
    ``split``, for models that ``splits`` accepts, the output layer is applied only where a token is scored;
    of others all logits are computed.
    """
    rows, targets = _used(ids, mask, scored)
    batch = pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(ids.device)
    row, at = np.repeat(np.arange(len(rows)), [*map(len, targets)]), np.concatenate(targets)
    if split:
        states = _hidden_states(model, batch)[row, at - 1]
        logprobs, entropies = chunked_logprobs(model, states, batch[row, at], temperature, entropy)
    else:
        logits = model(input_ids=batch, use_cache=False).logits[row, at - 1]
        logprobs, entropies = token_logprobs(logits, batch[row, at], temperature, entropy)
    return _scatter(logprobs, scored), _scatter(entropies, scored) if entropy else None


@torch.no_grad()
def splits(model: Any) -> bool:
    """Whether a model's logits are ``_projection`` of its decoder's last hidden states, and nothing more."""
    ids = torch.arange(1, 9, device=model.get_input_embeddings().weight.device)[None]
    ids = ids * 37 % model.config.get_text_config().vocab_size
    try:
        with evaluating(model):
            logits = model(ids, use_cache=False).logits[0].float()
            ours = _projection(model, exact=False)(_hidden_states(model, ids)[0]).float()
    except Exception:  # whatever an unknown architecture raises, its own logits remain
        return False
    return ours.shape == logits.shape and bool(((ours - logits).abs() < 1e-2 * logits.std()).all())
