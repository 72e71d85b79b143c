"""A key-value cache of many trajectories, each in a slot of one preallocated tensor a layer.

Earlier turns stay where they are: a forward pass is given only each row's new tokens, with the slot and the position they
belong to. Slots 0 to B - 1 are read as views, without a copy, which is why rows that decode are kept at the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer


class SlotCache(Cache):
    """What a model of transformers sees as its cache.

    Args:
        model: a causal language model whose layers all attend to every earlier token.

    Raises:
        ValueError: the model has layers of another kind (sliding windows, recurrent states).
    """

    def __init__(self, model: Any):
        config = model.config.get_text_config()
        if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=config).layers):
            raise ValueError(
                f"the transformers policy cannot keep the cache of a {config.model_type} model, whose layers do not all attend"
                " to every earlier token; serve it with vLLM instead"
            )
        super().__init__(layers=[_SlotLayer() for _ in range(config.num_hidden_layers)])

    @torch.inference_mode()
    def forward(self, model: Any, rows: Sequence[Sequence[int]], slots: Sequence[int], held: Sequence[int]) -> torch.Tensor:
        """Append each row's tokens to its slot.

        Args:
            model: the model this cache was made for.
            rows: B rows of new token ids, at least one each.
            slots: the B slots they belong to.
            held: how many tokens each slot holds already.

        Returns:
            (B, V) float32 logits after each row's last token.
        """
        width = max(len(row) for row in rows)
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])  # padded on the left
        lead = torch.tensor([n - (width - len(row)) for n, row in zip(held, rows, strict=True)])
        positions = lead[:, None] + torch.arange(width)  # (B, W), below held on padding
        target = _Target(torch.tensor(slots), positions, torch.tensor(held), model.device)
        for layer in self.layers:
            layer.target = target
        seen = torch.arange(target.width) <= positions[:, :, None].clamp(min=0)  # (B, W, K)
        out = model(
            ids.to(model.device),
            attention_mask=seen[:, None].to(model.device),
            position_ids=positions.clamp(min=0).to(model.device),
            past_key_values=self,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].float()

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of slots to other slots, all at once, so that slots may trade places."""
        count = max(targets, default=-1) + 1
        for layer in self.layers:
            for name in ("keys", "values"):
                store = _grown(getattr(layer, name), count, 0)
                store[list(targets), :, :length] = store[list(sources), :, :length]
                setattr(layer, name, store)


class _Target:
    """Where one forward pass writes, shared by all layers."""

    def __init__(self, slots: torch.Tensor, positions: torch.Tensor, held: torch.Tensor, device: Any):
        self.rows, self.columns = (positions >= held[:, None]).nonzero(as_tuple=True)  # real tokens, not padding
        self.width = int(positions.max()) + 1  # keys to read
        self.count = int(slots.max()) + 1
        self.places = (slots[self.rows].to(device), positions[self.rows, self.columns].to(device))
        self.slots = None if slots.tolist() == list(range(len(slots))) else slots.to(device)  # None: the first slots, in order
        self.batch = len(slots)


class _SlotLayer(CacheLayerMixin):
    """One layer's keys and values, (S, H, L, D) each; grows when a slot or a position lies outside."""

    target: _Target

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """An empty store; ``update`` makes the room."""
        self.keys, self.values = (x.new_zeros(0, x.shape[1], 0, x.shape[3]) for x in (key_states, value_states))
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *unused: Any, **also_unused: Any) -> tuple:
        """Store the new keys and values (B, H, W, D); return those to attend to, (B, H, K, D)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        to = self.target
        self.keys = _grown(self.keys, to.count, to.width)
        self.values = _grown(self.values, to.count, to.width)
        slots, positions = to.places
        self.keys[slots, :, positions] = key_states[to.rows, :, to.columns]
        self.values[slots, :, positions] = value_states[to.rows, :, to.columns]
        if to.slots is None:
            return self.keys[: to.batch, :, : to.width], self.values[: to.batch, :, : to.width]
        return tuple(store[:, :, : to.width].index_select(0, to.slots) for store in (self.keys, self.values))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys to attend to and their offset."""
        return self.target.width, 0

    def get_seq_length(self) -> int:
        """Unused: every row has a length of its own."""
        return 0

    def get_max_length(self) -> int:
        """No bound."""
        return -1


def _grown(store: torch.Tensor, slots: int, length: int) -> torch.Tensor:
    """The store with room for so many slots and positions; a quarter more than asked for, so that it seldom grows."""
    have_slots, heads, have_length, size = store.shape
    if slots <= have_slots and length <= have_length:
        return store
    shape = [have_slots if slots <= have_slots else slots + slots // 4, heads]
    shape += [have_length if length <= have_length else length + length // 4, size]
    found = store.new_zeros(shape)
    found[:have_slots, :, :have_length] = store
    return found
