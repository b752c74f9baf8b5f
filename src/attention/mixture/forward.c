/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture family, forward pass: engine parameters, launch, split keys and their combination, query log-likelihood. */
#include "attention/mixture/mixture.h"

/* The engine's parameters and block for a pass. */
typedef struct forward_group {
    mgk_tunables tunables;
    mgk_block block;
} forward_group;

/* ---- blocks ------------------------------------------------------------------------------------------------- */

/* Floats of a tile for each key, in addition to its features: mixture_keys in cl/mixture/forward.cl. */
static int64_t key_terms(const mgk_attention_traits *t)
{
    const int64_t m = t->components;
    const bool has_log_prior = t->has_prior || t->has_variance; /* the second: for the density alone */
    return (t->gaussian || t->shifted ? m : 1) + (has_log_prior ? m : 1) + (t->shifted && t->has_factor ? m : 1) + 2;
}

static mgk_footprint footprint_of(const mgk_attention_request *request)
{
    static const char *const shrink[] = {"keys", "keys", "rows", "rows", "rows", "values", "values", NULL};
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    const mgk_device_facts *const facts = request->facts;
    const int64_t keys = (int64_t)t->products * t->head_size, width = t->head_size + t->value_size;
    const int64_t row_terms = t->shifted ? 2 * t->components + 2 : t->components;
    return (mgk_footprint){
        .forward = true,
        /* the backward pass computes its scores by the usual form's operations */
        .few_rows = d->gradients == 0,
        .rows = mgk_attention_rows(d),
        .heads = d->heads,
        .problems = mgk_attention_problems(d),
        .value_size = t->value_size,
        .row_terms = row_terms,
        .key_terms = key_terms(t),
        .arrays = {.row = width + row_terms + 3,
                   .key = keys + t->value_size + key_terms(t),
                   .score = d->use_bias ? 3 : 2,
                   .fixed = 4 * (int64_t)t->components},
        .block = {.row = width},
        .staged = {.key = keys},
        .block_bytes = INT64_C(288) << 10,
        .staged_bytes = INT64_C(96) << 10,
        .least_tile = 16,
        /* more rows would spill: with several components everywhere, with one on Intel GPUs (tests/offline) */
        .row_part = facts->info.device_class != CLMGK_DEVICE_CPU && t->modified ? 2 : 1,
        .key_part = 1,
        .row_sums = t->value_size,
        /* more spill on GPUs; rusticl of Mesa 22 miscompiles private arrays beyond 48 */
        .most_sums = facts->runtime == MGK_RUNTIME_RUSTICL ? 32 : 64,
        .scores = 2,
        .shrink = shrink};
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

static clmgk_status group_of(const mgk_attention_request *request, forward_group *group, clmgk_error *error)
{
    const mgk_footprint footprint = footprint_of(request);
    mgk_block *const block = &group->block;
    MGK_TRY(mgk_attention_fit(request, &footprint, &group->tunables, block, error));
    mgk_tunable_default(&group->tunables, "splits",
                        mgk_attention_splits(request, request->desc->heads, block->rows, block->tile));
    return CLMGK_OK;
}

/* The kernel over keys, for `splits` ranges of keys; `density`: computes the density of the queries. */
static void add_forward(const mgk_attention_request *request, const forward_group *group, int splits, bool density,
                        const mgk_forward_args *args, mgk_pass_plan *plan)
{
    static const clmgk_array buffers[] = {MGK_MIXTURE_FORWARD_BUFFERS(MGK_BUFFER)};
    const size_t global =
        (size_t)(mgk_attention_groups(request->desc, request->desc->heads, group->block.rows) * splits) *
        group->block.threads;
    mgk_flags flags = mgk_attention_block_flags(request, &group->tunables, &group->block);
    flags.SPLIT_KEYS = splits > 1;
    flags.DENSITY = density;
    const mgk_attention_step step = {.file = "mixture/forward.cl",
                                     .name = "mixture_forward",
                                     .flags = flags,
                                     .tunables = &group->tunables,
                                     .buffers = buffers,
                                     .buffer_count = MGK_COUNT(buffers),
                                     .args = args,
                                     .args_bytes = sizeof(*args),
                                     .global = global,
                                     .local = group->block.threads};
    mgk_step *const kernel = mgk_attention_add(&step, plan);
    kernel->local_bytes = group->block.local_bytes;
    kernel->private_bytes = group->block.private_bytes;
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

clmgk_status mgk_mixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    forward_group group;
    MGK_TRY(group_of(request, &group, error));
    plan->tunables = group.tunables;
    plan->steps.main = plan->steps.count;
    mgk_forward_args args = mgk_mixture_args_of(request);
    MGK_TRY(mgk_attention_forward_splits(request, plan, &args, error));
    add_forward(request, &group, args.splits, false, &args, plan);
    if (args.splits > 1)
        mgk_attention_add_combine(request, true, &args, plan);
    return CLMGK_OK;
}

/* The descriptor of the mixture's density: uses the given prior even with the hard E-step, and no modifiers except a
 * bias that hides keys. */
static void make_density(const mgk_attention_request *request, clmgk_attention_desc *d, mgk_attention_request *density)
{
    *d = *request->desc;
    d->estep = CLMGK_ESTEP_SOFT;
    d->use_alibi = d->use_sinks = 0;
    d->softcap = d->dropout = 0.0;
    *density = *request;
    density->desc = d;
    density->traits.hard = false;
    density->traits.has_prior = d->prior_shape != CLMGK_PRIOR_UNIFORM;
    density->traits.has_factor = d->components > 1;
    density->traits.value_size = mgk_size_class(1);
}

/* A work-group for each (b, h) sums up the rows. */
static void add_density_sum(const mgk_attention_request *request, const mgk_forward_args *args, mgk_pass_plan *plan)
{
    static const clmgk_array buffers[] = {MGK_MIXTURE_DENSITY_BUFFERS(MGK_BUFFER)};
    enum { THREADS = 64 };
    const clmgk_attention_desc *const d = request->desc;
    mgk_flags flags = mgk_attention_flags(request);
    flags.GROUP_SIZE = THREADS;
    const mgk_attention_step step = {.file = "mixture/density.cl",
                                     .name = "mixture_density",
                                     .flags = flags,
                                     .buffers = buffers,
                                     .buffer_count = MGK_COUNT(buffers),
                                     .args = args,
                                     .args_bytes = sizeof(*args),
                                     .global = (size_t)(mgk_attention_problems(d) * d->heads) * THREADS,
                                     .local = THREADS};
    mgk_attention_add(&step, plan);
}

clmgk_status mgk_mixture_plan_nll(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    clmgk_attention_desc d;
    mgk_attention_request density;
    forward_group group;
    make_density(request, &d, &density);
    MGK_TRY(group_of(&density, &group, error));
    if (plan->steps.count == 0) { /* else another step is the main one */
        plan->tunables = group.tunables;
        plan->steps.main = 0;
    }
    mgk_forward_args args = mgk_mixture_args_of(&density);
    args.parts_lse = mgk_steps_region(&plan->steps, d.batch * d.heads * d.length);
    add_forward(&density, &group, 1, true, &args, plan);
    add_density_sum(&density, &args, plan);
    return CLMGK_OK;
}
