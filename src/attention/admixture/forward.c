/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family, forward pass: engine parameters and launch. */
#include "attention/admixture/admixture.h"

/* The engine's parameters and block for a pass. */
typedef struct forward_group {
    mgk_tunables tunables;
    mgk_block block;
    int64_t head_groups;
} forward_group;

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
    const mgk_floats arrays = {.row = keys,
                               .key = keys,
                               .score = held + 1 + (d->use_bias ? 1 : 0),
                               .fixed = t->components,
                               .head_row = t->value_size + 2,
                               .head_key = t->value_size,
                               .head_fixed = 24};
    mgk_footprint f = {.forward = true,
                       .rows = mgk_attention_rows(d),
                       .heads = d->heads,
                       .problems = mgk_attention_problems(d),
                       .held_heads = d->heads,
                       .value_size = t->value_size,
                       .head_terms = 2,
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
                       .most_scores = t->modified ? 8 : 16,
                       .most_scores_of_rows = 32,
                       /* noise, relu and modifiers take additional registers (tests/offline) */
                       .most_head_sums = 64 / ((t->noise || t->generalised ? 4 : 1) * (t->modified ? 2 : 1)),
                       .shrink = mgk_admixture_shrink};
    /* arrays have room for all heads of a block, even if there are fewer heads */
    f.block.most_heads = d->heads;
    f.block.most_key_heads = d->kv_heads;
    return f;
}

/* ---- the plan ----------------------------------------------------------------------------------------------- */

static clmgk_status group_of(const mgk_attention_request *request, forward_group *group, clmgk_error *error)
{
    const mgk_footprint footprint = footprint_of(request);
    mgk_block *const block = &group->block;
    MGK_TRY(mgk_attention_fit(request, &footprint, &group->tunables, block, error));
    const int64_t heads = mgk_tunable_get(&group->tunables, "heads");
    group->head_groups = (request->desc->heads + heads - 1) / heads;
    mgk_tunable_default(&group->tunables, "splits",
                        mgk_attention_splits(request, group->head_groups, block->rows, block->tile));
    return CLMGK_OK;
}

static void add_forward(const mgk_attention_request *request, const forward_group *group, const mgk_forward_args *args,
                        mgk_pass_plan *plan)
{
    static const clmgk_array buffers[] = {MGK_ADMIXTURE_FORWARD_BUFFERS(MGK_BUFFER)};
    const int64_t groups = mgk_attention_groups(request->desc, group->head_groups, group->block.rows);
    mgk_flags flags = mgk_attention_block_flags(request, &group->tunables, &group->block);
    flags.SHARED_SOFTMAX = shares_softmax(request);
    flags.SPLIT_KEYS = args->splits > 1;
    const mgk_attention_step step = {.file = "admixture/forward.cl",
                                     .name = "admixture_forward",
                                     .flags = flags,
                                     .tunables = &group->tunables,
                                     .buffers = buffers,
                                     .buffer_count = MGK_COUNT(buffers),
                                     .args = args,
                                     .args_bytes = sizeof(*args),
                                     .global = (size_t)(groups * args->splits) * group->block.threads,
                                     .local = group->block.threads};
    mgk_step *const kernel = mgk_attention_add(&step, plan);
    kernel->local_bytes = group->block.local_bytes;
    kernel->private_bytes = group->block.private_bytes;
}

clmgk_status mgk_admixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    forward_group group;
    MGK_TRY(group_of(request, &group, error));
    plan->tunables = group.tunables;
    plan->steps.main = plan->steps.count;
    mgk_forward_args args = mgk_admixture_args_of(request);
    MGK_TRY(mgk_attention_forward_splits(request, plan, &args, error));
    add_forward(request, &group, &args, plan);
    if (args.splits > 1)
        mgk_attention_add_combine(request, true, &args, plan);
    return CLMGK_OK;
}
