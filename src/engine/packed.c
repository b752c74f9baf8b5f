/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of heads that share keys, as the rows of one head (HEADS_PACKED in cl/attention/block.clh). */
#include "engine/engine.h"

/* True if all scores and weights of a row depend only on its query and the keys, not on its head. */
static bool is_alike_in_heads(const clmgk_attention_desc *d)
{
    const bool without_shifts =
        d->variant == CLMGK_VARIANT_SOFTMAX || d->variant == CLMGK_VARIANT_GAUSSIAN || d->variant == CLMGK_VARIANT_MGK;
    const bool shared_prior = d->prior_shape == CLMGK_PRIOR_UNIFORM || d->prior_shape == CLMGK_PRIOR_M;
    const bool modified = d->use_bias || d->use_alibi || d->use_sinks || d->dropout > 0.0 || d->use_positions ||
                          d->score_mod != NULL || d->mask_mod != NULL || d->use_mask_blocks;
    return without_shifts && shared_prior && d->variance_shape != CLMGK_VARIANCE_HM && !modified;
}

/* True if the rows of neighbouring heads, `rows` of each, are at equal distances. */
static bool is_even(const clmgk_layout *layout, int64_t rows)
{
    return rows == 1 || layout->head == rows * layout->token;
}

int64_t mgk_packed_heads(const mgk_engine *engine, const clmgk_attention_desc *d)
{
    const int64_t rows = d->length;
    /* other numbers of rows, with which calls come, need not be even */
    const bool few = rows > 0 && rows < (d->sizes_at_call ? 2 : engine->fewest_rows);
    const bool grouped = d->kv_heads > 0 && d->heads > d->kv_heads;
    const bool plain = d->sequences == 0 && !d->use_lengths_q && is_alike_in_heads(d);
    if (!few || !grouped || !plain || !is_even(&d->q, rows) || !is_even(&d->o, rows) || !is_even(&d->lse, rows))
        return 1;
    const int64_t group = d->heads / d->kv_heads;
    int64_t heads = group;
    while (engine->most_packed > 0 && (rows * heads > engine->most_packed || group % heads != 0))
        heads--;
    return heads;
}

static void pack_rows(clmgk_layout *layout, int64_t heads, int64_t rows)
{
    if (rows == 1)
        layout->token = layout->head;
    layout->head *= heads;
}

void mgk_pack_heads(clmgk_attention_desc *d, int64_t heads)
{
    pack_rows(&d->q, heads, d->length);
    pack_rows(&d->o, heads, d->length);
    pack_rows(&d->lse, heads, d->length);
    d->heads /= heads;
    d->length *= heads;
}
