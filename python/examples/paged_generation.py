# SPDX-License-Identifier: Apache-2.0
"""A model of the package transformers, with random weights, generates with keys and values in pages.

Each layer's cache is a pool of pages, of which sequences take one when their last page is full. New keys and values go to
their slots by `clmgk.Plan.append`, and attention reads them by page tables. The program compares the tokens with those of
the model's own cache.
"""
import argparse

import numpy as np
import torch
import transformers
from transformers.cache_utils import Cache, CacheLayerMixin

import clmgk


class PagedLayer(CacheLayerMixin):
    """The keys and values of a layer: pools [pages,G,page,D], and for each sequence a list of pages."""

    def __init__(self, pages: int, page_size: int) -> None:
        super().__init__()
        self.page_size, self.free, self.length = page_size, list(range(pages))[::-1], 0
        self.plans: dict[int, clmgk.Plan] = {}

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads, _, size = key_states.shape
        shape = (len(self.free), heads, self.page_size, size)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        self.tables: list[list[int]] = [[] for _ in range(batch)]
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object,
               **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[2]
        slots = []
        for table in self.tables:
            for token in range(self.length, self.length + count):
                if token % self.page_size == 0:
                    table.append(self.free.pop())
                slots.append(table[-1] * self.page_size + token % self.page_size)
        self.length += count
        rows = [x.transpose(1, 2).flatten(0, 1).contiguous().numpy() for x in (key_states, value_states)]  # [tokens,G,D]
        self.plan(len(slots)).append(k=self.keys.numpy(), v=self.values.numpy(), append_k=rows[0], append_v=rows[1],
                                     append_slots=np.array(slots, np.int32))
        key_states.layer = self  # for the attention, which gets the tensors that are returned
        return key_states, value_states

    def plan(self, tokens: int) -> clmgk.Plan:
        """Of calls with that many new tokens."""
        if tokens not in self.plans:
            pages, heads, page_size, size = self.keys.shape
            self.plans[tokens] = clmgk.Plan(heads=heads, head_size=size, pages=pages, page_size=page_size, table_pages=1,
                                            append=tokens)
        return self.plans[tokens]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: None, **kwargs: object) -> tuple[torch.Tensor, None]:
    """Causal, over the pages of the key's layer."""
    layer = key.layer
    o = clmgk.attention(query.numpy(), layer.keys.numpy(), layer.values.numpy(), page_table=np.array(layer.tables),
                        lengths=[layer.length] * query.shape[0], causal=True, alignment="lengths")
    return torch.from_numpy(o).transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("pages", attention)
transformers.AttentionMaskInterface.register("pages", lambda *args, **kwargs: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=40, help="new tokens of each sequence (default 40)")
    parser.add_argument("--page-size", type=int, default=8, help="tokens of a page (default 8)")
    options = parser.parse_args()
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, intermediate_size=96, eos_token_id=None, pad_token_id=0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)  # attention far from uniform
    prompts = torch.randint(1, 200, (3, 11))
    choice = {"max_new_tokens": options.tokens, "do_sample": False}
    expected = model.generate(prompts, **choice)
    pages = 3 * -(-(11 + options.tokens) // options.page_size)
    cache = Cache(layers=[PagedLayer(pages, options.page_size) for _ in range(config.num_hidden_layers)])
    model.set_attn_implementation("pages")
    found = model.generate(prompts, cache=cache, **choice)
    used = sum(len(table) for table in cache.layers[0].tables)
    print(f"{options.tokens} tokens of {len(prompts)} sequences, {used} pages of {options.page_size}: "
          f"{'the same tokens as' if torch.equal(found, expected) else 'OTHER TOKENS than'} with the model's own cache")
    raise SystemExit(0 if torch.equal(found, expected) else 1)


if __name__ == "__main__":
    main()
