/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family, forward passes: what a block needs. */
#include "attention/admixture/admixture.h"

/* MiSH, if heads differ only in their values: one softmax for all. */
bool mgk_admixture_shares_softmax(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    return t->shared_mix && (!t->noise || t->shared_noise) && !d->use_alibi && d->dropout == 0.0 &&
           (!d->use_bias || d->bias_heads == 1) && d->score_mod == NULL && d->mask_mod == NULL && !d->use_scale_v;
}

mgk_footprint mgk_admixture_footprint(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    const int64_t keys = (int64_t)t->components * t->head_size;
    mgk_footprint f = mgk_attention_footprint(request);
    f.forward = true;
    f.unit = t->after == 0;
    f.only_pass = d->gradients == 0 && d->statistics == 0;
    f.few_rows = d->gradients == 0 && t->after == 0 && request->engine->few_rows_of_heads;
    f.block.features = f.tile.features = keys;
    f.held_heads = d->heads;
    f.value_heads = d->kv_heads;
    f.head_terms = 2;
    f.scores = mgk_admixture_held(t);
    f.one_softmax = mgk_admixture_shares_softmax(request);
    f.pair_terms = (d->use_bias ? 1 : 0) + (t->hidden > 0 ? t->components : 0); /* products that make hidden units */
    f.fixed = t->components;
    f.head_fixed = 24;
    return f;
}
