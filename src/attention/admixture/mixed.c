/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, forward pass, mixing after the softmax: L of the heads before it, in ranges of keys; L of all keys;
 * then exact weights, mixed, times the values, whose ranges of keys add up (formulas: cl/admixture/mixed.cl).
 */
#include "attention/admixture/admixture.h"

MGK_TUNABLE_NAMES(MGK_COMMON_TUNABLES)

mgk_attention_request mgk_admixture_softmax_request(const mgk_attention_request *request, mgk_softmax_descs *descs)
{
    mgk_attention_request own = *request;
    descs->desc = *request->desc;
    descs->limits = *request->limits;
    descs->desc.heads = descs->limits.heads = mgk_softmax_heads(request->desc);
    own.desc = &descs->desc;
    own.limits = &descs->limits;
    return own;
}

MGK_BINDING(bind_forward, MGK_ADMIXTURE_FORWARD_BUFFERS)
MGK_BINDING(bind_logs, MGK_ADMIXTURE_LOGS_BUFFERS)
MGK_BINDING(bind_mixed, MGK_ADMIXTURE_MIXED_BUFFERS)

/* The pass's two kernels over keys, and their arguments; both have A heads. */
typedef struct mixed_pass {
    mgk_forward logs, sums;
    mgk_forward_args of_logs, of_sums;
} mixed_pass;

static mgk_footprint footprint_of_sums(const mgk_attention_request *request)
{
    mgk_footprint f = mgk_admixture_footprint(request);
    f.scores += request->traits.after;
    return f;
}

/* All blocks have the same ranges of keys. */
static int begin_splits(mgk_forward *x)
{
    x->tunables.value[mgk_tunable_index(&x->tunables, MGK_NAMED(split_from))] = 0;
    return mgk_tunable_get(&x->tunables, MGK_NAMED(splits));
}

/* Places L and O of ranges of keys in the workspace: L of the only range, too. */
static clmgk_status place(mixed_pass *x, const clmgk_attention_desc *d, mgk_steps *steps, clmgk_error *error)
{
    const int64_t rows = d->batch * d->heads * d->length, softmax_rows = d->batch * d->mix_after_heads * d->length;
    x->of_logs.splits = begin_splits(&x->logs);
    x->of_sums.splits = begin_splits(&x->sums);
    MGK_TRY(mgk_attention_check_splits(&x->logs.tunables, d, x->of_logs.splits * softmax_rows, softmax_rows, error));
    MGK_TRY(mgk_attention_check_splits(&x->sums.tunables, d, x->of_sums.splits * rows, rows, error));
    x->of_logs.parts_lse = x->of_sums.parts_lse = mgk_steps_region(steps, x->of_logs.splits * softmax_rows);
    x->of_logs.parts_low = x->of_sums.parts_low = mgk_steps_region(steps, x->of_logs.splits * softmax_rows);
    if (x->of_sums.splits > 1)
        x->of_sums.parts_o = mgk_steps_region(steps, x->of_sums.splits * rows * d->value_size);
    return CLMGK_OK;
}

/* Appends a kernel with a work-item for each of `work` elements. */
static void add_rows(const mgk_attention_request *request, const char *name, const mgk_forward_args *args, int64_t work,
                     mgk_pass_plan *plan)
{
    enum { ITEMS = 64 };
    mgk_flags flags = mgk_attention_flags(request);
    flags.HEAD_RATIO = request->traits.head_ratio;
    const mgk_attention_step step = {.file = "admixture/logs.cl",
                                     .name = name,
                                     .flags = flags,
                                     .bind = bind_logs,
                                     .args = args,
                                     .args_bytes = sizeof(*args),
                                     .global = (size_t)((work + ITEMS - 1) / ITEMS * ITEMS),
                                     .local = ITEMS};
    mgk_attention_add(&step, plan);
}

static void add_logs(const mixed_pass *x, const mgk_attention_request *request, mgk_pass_plan *plan)
{
    mgk_attention_step kernel = {
        .file = "admixture/forward.cl", .name = "admixture_forward", .flags = x->logs.flags, .bind = bind_forward};
    kernel.flags.LOGS_ALONE = kernel.flags.SPLIT_KEYS = true;
    kernel.flags.HAS_DROPOUT = false; /* L knows nothing of it */
    kernel.flags.SHARED_SOFTMAX = mgk_admixture_shares_softmax(request);
    mgk_forward_add(&x->logs, kernel, &x->of_logs, plan);
}

static void add_sums(const mixed_pass *x, const mgk_attention_request *request, mgk_pass_plan *plan)
{
    mgk_attention_step kernel = {
        .file = "admixture/mixed.cl", .name = "admixture_mixed", .flags = x->sums.flags, .bind = bind_mixed};
    kernel.flags.HEAD_RATIO = request->traits.head_ratio;
    kernel.flags.MIX_AFTER = request->traits.after;
    kernel.flags.HAS_LSE_LOW = true; /* the workspace has it in any case */
    plan->tunables = x->sums.tunables;
    plan->block = x->sums.block;
    plan->steps.main = plan->steps.count;
    mgk_forward_add(&x->sums, kernel, &x->of_sums, plan);
}

clmgk_status mgk_admixture_plan_mixed(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    const clmgk_attention_desc *const d = request->desc;
    mgk_softmax_descs descs;
    const mgk_attention_request softmax = mgk_admixture_softmax_request(request, &descs);
    const mgk_footprint of_logs = mgk_admixture_footprint(&softmax), of_sums = footprint_of_sums(request);
    mixed_pass x;
    MGK_TRY(mgk_forward_begin(&softmax, &of_logs, &x.logs, error));
    MGK_TRY(mgk_forward_begin(request, &of_sums, &x.sums, error));
    x.of_logs = x.of_sums = mgk_admixture_args_of(&softmax);
    x.of_logs.kv_heads = 1; /* reads none: g of a text is 0 */
    MGK_TRY(place(&x, d, &plan->steps, error));
    add_logs(&x, &softmax, plan);
    add_rows(request, "admixture_logs", &x.of_logs, d->batch * d->mix_after_heads * d->length, plan);
    add_sums(&x, request, plan);
    if (x.of_sums.splits > 1)
        add_rows(request, "admixture_outputs", &x.of_sums, d->batch * d->heads * d->length * d->value_size, plan);
    return CLMGK_OK;
}
