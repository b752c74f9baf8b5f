/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture family: the terms of keys that a pass computes once for all blocks of rows (cl/mixture/keys.cl). */
#include "attention/mixture/mixture.h"

MGK_BINDING(bind_keys, MGK_MIXTURE_KEYS_BUFFERS)

/* Number of heads of keys with their own terms: shifts belong to heads of queries. */
static int64_t heads_of(const mgk_attention_request *request)
{
    return request->traits.shifted ? request->desc->heads : request->desc->kv_heads;
}

/* Dot scores have no such terms, and few rows sum norms where they read the keys. One block alone would wait for
 * another kernel in vain. The workspace stays below the size of the arrays: the terms are not larger than K. Of caches
 * most keys may not be in use. */
bool mgk_mixture_has_key_terms(const mgk_attention_request *request, const mgk_block *block)
{
    const clmgk_attention_desc *const d = request->limits;
    const mgk_attention_traits *const t = &request->traits;
    const int64_t blocks = (mgk_attention_rows(d) + block->rows - 1) / block->rows * (d->heads / heads_of(request));
    const bool fits = !t->shifted || t->components * d->heads <= d->kv_heads * d->head_size;
    return request->engine->key_terms_once && t->gaussian && block->few_rows == 0 && blocks > 1 && fits &&
           !mgk_has_caches(d) && d->page_size == 0 && !d->use_scale_k;
}

/* The flags that the kernel reads: other plans share the program. */
static mgk_flags flags_of(const mgk_attention_request *request, const mgk_block *block)
{
    const mgk_flags all = mgk_attention_block_flags(request, block);
    mgk_flags flags = {.engine = all.engine,
                       .TYPE_Q = all.TYPE_Q,
                       .TYPE_K = all.TYPE_K,
                       .TYPE_V = all.TYPE_V,
                       .TYPE_O = all.TYPE_O,
                       .HEAD_SIZE = all.HEAD_SIZE,
                       .VALUE_SIZE = all.VALUE_SIZE,
                       .COMPONENTS = all.COMPONENTS,
                       .SCORE_GAUSSIAN = all.SCORE_GAUSSIAN,
                       .KEYS_SHIFTED = all.KEYS_SHIFTED,
                       .HAS_VARIANCE = all.HAS_VARIANCE && all.KEYS_SHIFTED};
    flags.SCORES_IN_NATS = flags.HAS_VARIANCE && all.SCORES_IN_NATS; /* the unit in which variances become scales */
    mgk_flags_add(&flags, &block->flags);
    flags.RING_PLACES = flags.DYNAMIC_LOCAL = 0;
    return flags;
}

mgk_i64 mgk_mixture_add_key_terms(const mgk_attention_request *request, const mgk_tunables *tunables,
                                  const mgk_block *block, const mgk_forward_args *args, mgk_pass_plan *plan)
{
    const clmgk_attention_desc *const d = request->desc;
    const int64_t rows = d->batch * heads_of(request) * request->traits.components;
    mgk_forward_args own = *args;
    own.key_terms = mgk_steps_region(&plan->steps, rows * d->length_k);
    const mgk_attention_step step = {.file = "mixture/keys.cl",
                                     .name = "mixture_keys",
                                     .flags = flags_of(request, block),
                                     .tunables = tunables,
                                     .block = block,
                                     .bind = bind_keys,
                                     .args = &own,
                                     .args_bytes = sizeof(own),
                                     .global = (size_t)(rows * ((d->length_k + block->tile - 1) / block->tile))};
    mgk_attention_add(&step, plan);
    return own.key_terms;
}
