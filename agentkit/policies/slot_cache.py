"""A key-value cache of many trajectories, each in a slot of one preallocated tensor a layer.

Earlier turns stay where they are: a forward pass is given only each row's new tokens, with the slot and the
position they belong to. Rows that decode attend to their slots where these lie, one call for each run of
neighbouring slots. All slots are as long as the longest, and there is a bound on their product: long
trajectories leave fewer slots. Leaves out layers that do not attend to every earlier token, and choosing whom
to evict.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentkit.machine import machine_memory
from agentkit.policies.attention import allow_other_attention

GROWTH = 2.0  # of the length that is asked for: a store that grows is copied whole


def memory_of(device: torch.device) -> int:
    """Bytes of a GPU's memory, or of this machine's as far as the process may have them."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return machine_memory()


def token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes that the keys and values of one token take in the layers that keep them for all tokens."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    layers = sum("linear" not in kind for kind in kinds)
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return 2 * layers * heads * size * dtype.itemsize


def unkept(config: Any) -> str | None:
    """Why a model's keys and values cannot be kept in slots; None where they can."""
    text = config.get_text_config()
    if all(type(layer) is DynamicLayer for layer in DynamicCache(config=text).layers):
        return None
    return (
        f"the transformers policy cannot keep the cache of a {text.model_type} model, whose layers do not "
        "all attend to every earlier token; serve it with vLLM instead (engine: vllm, or server)"
    )


class SlotCache(Cache):
    """What a model of transformers sees as its cache: at most ``most`` slots and ``room`` tokens.

    Raises:
        ValueError: the model has layers of another kind (sliding windows, recurrent states), or an attention
            without masks.
    """

    def __init__(self, model: Any, most: int = 2**31, room: int = 2**62):
        config = model.config.get_text_config()
        if why := unkept(config):
            raise ValueError(why)
        super().__init__(layers=[_SlotLayer() for _ in range(config.num_hidden_layers)])
        self.most, self.room = most, room
        self.shape = 0, 0  # slots, and tokens in each
        if why := allow_other_attention(model):
            raise ValueError(
                f"the transformers policy cannot mask this model: {why}; "
                "load it with attn_implementation='sdpa'"
            )
        self._in_place = True  # until a model turns out not to hand on what it is called with

    @torch.inference_mode()
    def forward(
        self, model: Any, rows: Sequence[Sequence[int]], slots: Sequence[int], held: Sequence[int]
    ) -> torch.Tensor:
        """Append B rows of token ids to slots that hold so many; (B, V) float32 logits after each row."""
        width = max(len(row) for row in rows)
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])  # padded on the left
        lead = torch.tensor([n - (width - len(row)) for n, row in zip(held, rows, strict=True)])
        positions = lead[:, None] + torch.arange(width)  # (B, W), below held on padding
        in_place = width == 1 and self._in_place
        target = (_InPlace if in_place else _Target)(slots, positions, held, model.device)
        keys = torch.arange(1 if in_place else target.width)  # attention in place has masks of its own
        seen = keys <= positions[:, None, :, None].clamp(min=0)  # (B, 1, W, K): what each of the tokens sees
        self.reserve(max(target.count, self.shape[0]), max(target.width, self.shape[1]))
        for layer in self.layers:
            layer.target = target
        out = model(
            ids.to(model.device),
            attention_mask=seen.to(model.device),
            position_ids=positions.clamp(min=0).to(model.device),
            past_key_values=self,
            use_cache=True,
            logits_to_keep=1,
            **({"attend": target.attend} if in_place else {}),
        )
        if in_place and target.attended < len(self.layers):
            # this model does not hand on what it is called with, or not the cache's keys and values
            self._in_place = False
            return self.forward(model, rows, slots, held)
        return out.logits[:, -1].float()

    def slots_for(self, length: int) -> int:
        """How many slots of so many tokens there may be."""
        return min(self.most, self.room // length)

    @torch.inference_mode()
    def reserve(self, slots: int, length: int) -> None:
        """Make room for so many slots of so many tokens; where the bound asks for it, drop what is beyond."""
        assert slots * length <= self.room, "ask slots_for first"
        if slots <= self.shape[0] and length <= self.shape[1]:
            return
        wide = max(slots, self.shape[0])
        long = self.shape[1] if length <= self.shape[1] else int(length * GROWTH)
        self.shape = (wide, long) if wide * long <= self.room else (slots, min(long, self.room // slots))
        for layer in self.layers:
            layer.resize(*self.shape)

    @torch.inference_mode()
    def copy(self, sources: Sequence[int], targets: Sequence[int], start: int, stop: int) -> None:
        self.reserve(max(max(targets) + 1, self.shape[0]), max(stop, self.shape[1]))
        for layer in self.layers:
            for store in (layer.keys, layer.values):
                store[list(targets), :, start:stop] = store[list(sources), :, start:stop]

    def clear(self) -> None:
        self.shape = 0, 0
        for layer in self.layers:
            layer.is_initialized = False
            layer.keys = layer.values = None


class _Target:
    """What one forward pass writes where, and what its rows attend to: the same in all layers."""

    def __init__(self, slots: Sequence[int], positions: torch.Tensor, held: Sequence[int], device: Any):
        real = positions >= torch.tensor(held)[:, None]  # tokens, not padding
        rows, columns = real.nonzero(as_tuple=True)
        self.new = rows.to(device), columns.to(device)
        self.slots = torch.tensor(slots, device=device)
        self.places = self.slots[self.new[0]], positions[rows, columns].to(device)
        self.count, self.width = max(slots) + 1, int(positions.max()) + 1

    def attended_to(self, layer: _SlotLayer, *new: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Copies of the rows' keys and values, (B, H, K, D)."""
        stores = (layer.keys, layer.values)
        return tuple(store[:, :, : self.width].index_select(0, self.slots) for store in stores)


class _InPlace(_Target):
    """One token a row: rows in neighbouring slots attend to these as a view, run by run."""

    def __init__(self, slots: Sequence[int], positions: torch.Tensor, held: Sequence[int], device: Any):
        super().__init__(slots, positions, held, device)
        self.attended = 0  # layers
        self.runs = []  # rows, slots, width, and which keys are seen (n, 1, 1, width)
        for _, run in groupby(enumerate(slots), key=lambda row: row[1] - row[0]):
            rows, places = zip(*run, strict=True)
            last = positions[rows[0] : rows[-1] + 1]
            width = int(last.max()) + 1
            seen = (torch.arange(width) <= last)[:, None, None].to(device)
            self.runs.append((slice(rows[0], rows[-1] + 1), slice(places[0], places[-1] + 1), width, seen))

    def attended_to(self, layer: _SlotLayer, *new: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The new keys and values, (B, H, 1, D): ``attend`` reads the others where they are."""
        self.layer, self.given = layer, new
        return new

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        mask: torch.Tensor | None = None, scaling: float | None = None, **unused: Any,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        if (
            key is not self.given[0] or value is not self.given[1]
        ):  # made from these by the model: not counted
            return sdpa_attention_forward(module, query, key, value, None, scaling=scaling)
        self.attended += 1
        keys, values = self.layer.keys, self.layer.values
        # heads that share keys, as so many queries
        folded = query.reshape(len(query), keys.shape[1], -1, query.shape[-1])
        attended = [
            scaled_dot_product_attention(
                folded[rows], keys[slots, :, :width], values[slots, :, :width], seen, scale=scaling
            )
            for rows, slots, width, seen in self.runs
        ]
        return torch.cat(attended).reshape(len(query), 1, -1, values.shape[-1]), None


class _SlotLayer(CacheLayerMixin):
    target: _Target
    shape = 0, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (_resized(x[:0], *self.shape) for x in (key_states, value_states))
        self.is_initialized = True

    def resize(self, slots: int, length: int) -> None:
        self.shape = slots, length
        if self.is_initialized:
            self.keys = _resized(self.keys, slots, length)
            self.values = _resized(self.values, slots, length)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *unused: Any, **also_unused: Any
    ) -> tuple:
        """Store the new keys and values (B, H, W, D); return those to attend to, (B, H, K, D)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        to = self.target
        slots, positions = to.places
        rows, columns = to.new
        self.keys[slots, :, positions] = key_states[rows, :, columns]
        self.values[slots, :, positions] = value_states[rows, :, columns]
        return to.attended_to(self, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.target.width, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def _resized(store: torch.Tensor, slots: int, length: int) -> torch.Tensor:
    new = store.new_zeros(slots, store.shape[1], length, store.shape[3])
    kept = store[:slots, :, :length]
    new[: kept.shape[0], :, : kept.shape[2]] = kept
    return new
