/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family, forward pass: engine parameters and launch. */
#include "attention/admixture/admixture.h"

/* MiSH, if heads differ only in their values: one softmax for all. */
static bool shares_softmax(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    return t->shared_mix && (!t->noise || t->shared_noise) && !d->use_alibi && d->dropout == 0.0 &&
           (!d->use_bias || d->bias_heads == 1);
}

/* ---- blocks ------------------------------------------------------------------------------------------------- */

static mgk_footprint footprint_of(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    const int64_t keys = (int64_t)t->components * t->head_size, held = mgk_admixture_held(t);
    /* NVIDIA's compiler gives a work-item more registers: a larger block of scores, with fewer loads for each. What is
     * kept of each head then limits the number of heads with small values; and many held scores have two rows, for
     * fewer heads: other work-groups compute the products again, but a single row has three loads for each
     * multiply-add. */
    const bool large = mgk_gpu_of(request->facts) == MGK_GPU_NVIDIA, many = large && held >= 8;
    const int64_t scores = many ? 64 : large ? 32 : 16, head_sums = large && t->value_size < 64 ? 32 : 64;
    /* noise, relu and modifiers take additional registers (tests/offline) */
    const int more = (t->noise || t->generalised ? 4 : 1) * (t->modified ? 2 : 1);
    const mgk_floats arrays = {.row = keys,
                               .key = keys,
                               .score = held + 1 + (d->use_bias ? 1 : 0),
                               .fixed = t->components,
                               .head_row = t->value_size + 2,
                               .head_key = t->value_size,
                               .head_fixed = 24};
    mgk_footprint f = {.forward = true,
                       .few_rows = d->gradients == 0 && request->engine->few_rows_of_heads,
                       .rows = mgk_attention_rows(d),
                       .heads = d->heads,
                       .problems = mgk_attention_problems(d),
                       .held_heads = d->heads,
                       .value_size = t->value_size,
                       .head_terms = 2,
                       .products = t->components,
                       .query_size = keys,
                       .arrays = arrays,
                       .block = arrays,
                       .staged = {.score = held},
                       .block_bytes = INT64_C(1280) << 10, /* more than the cache: fewer blocks stream tiles */
                       .staged_bytes = INT64_C(16) << 10,
                       .least_tile = 32,
                       .row_part = 1,
                       .key_part = 1,
                       .row_sums = t->value_size,
                       .most_sums = 64,
                       .scores = held,
                       .most_scores = t->modified ? 8 : scores,
                       .most_scores_of_rows = many ? 64 : 32,
                       .most_head_sums = (many ? 32 : head_sums) / more,
                       .most_few_head_sums = head_sums / more,
                       .shrink = mgk_admixture_shrink};
    /* arrays have room for all heads of a block, even if there are fewer heads */
    f.block.most_heads = d->heads;
    f.block.most_key_heads = d->kv_heads;
    return f;
}

/* ---- the plan ----------------------------------------------------------------------------------------------- */

MGK_BINDING(bind_forward, MGK_ADMIXTURE_FORWARD_BUFFERS)

clmgk_status mgk_admixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    const mgk_footprint footprint = footprint_of(request);
    mgk_forward_args args = mgk_admixture_args_of(request);
    mgk_forward x;
    MGK_TRY(mgk_forward_begin(request, &footprint, &x, error));
    mgk_attention_step kernel = {
        .file = "admixture/forward.cl", .name = "admixture_forward", .flags = x.flags, .bind = bind_forward};
    kernel.flags.SHARED_SOFTMAX = shares_softmax(request);
    return mgk_forward_plan(&x, &kernel, &args, plan, error);
}
