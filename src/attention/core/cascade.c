/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cascades: a prefix of keys that all packed sequences share. One part of the pass takes the rows of all sequences as
 * one problem over the prefix, the other each sequence over its own keys; each writes partial results, of one or
 * several ranges of its keys, and the combination joins them all.
 */
#include "attention/core/attention.h"

/* The descriptor of a part. */
static void make_desc(const clmgk_attention_desc *whole, bool prefix, clmgk_attention_desc *d)
{
    *d = *whole;
    d->prefix_pages = 0;
    if (!prefix)
        return;
    d->sequences = 0;
    d->use_lengths = 1;
    d->use_page_offsets = 0;
    d->table_pages = whole->prefix_pages;
    d->length_k = whole->prefix_pages * whole->page_size;
    d->alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
    d->causal = d->use_sinks = 0;
}

/* The family's kernel for a part. */
static clmgk_status add_part(const mgk_attention_request *request, mgk_cascade_part *part, mgk_pass_plan *plan,
                             clmgk_error *error)
{
    clmgk_attention_desc d;
    mgk_attention_request own = *request;
    make_desc(request->desc, part->prefix, &d);
    own.desc = own.limits = &d;
    own.part = part;
    return request->family->plan[CLMGK_PASS_FORWARD](&own, plan, error);
}

/* The number of a part's partial results: its kernel, in a plan of its own. */
static clmgk_status count_splits(const mgk_attention_request *request, mgk_cascade_part *part, clmgk_error *error)
{
    mgk_pass_plan alone = {.mods = NULL};
    const clmgk_status status = add_part(request, part, &alone, error);
    mgk_steps_clear(&alone.steps, NULL);
    return status;
}

clmgk_status mgk_cascade_plan(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    const clmgk_attention_desc *const d = request->desc;
    const int64_t rows = d->heads * d->length;
    mgk_cascade_part parts[2] = {{.prefix = true}, {.prefix = false}};
    int64_t all = 0;
    for (size_t i = 0; i < MGK_COUNT(parts); ++i) {
        MGK_TRY(count_splits(request, &parts[i], error));
        all += parts[i].splits;
    }
    mgk_forward_args args = mgk_attention_args_of(request);
    args.parts_lse = mgk_steps_region(&plan->steps, all * rows);
    args.parts_low = mgk_steps_region(&plan->steps, all * rows);
    args.parts_o = mgk_steps_region(&plan->steps, all * rows * d->value_size);
    int64_t before = 0;
    for (size_t i = 0; i < MGK_COUNT(parts); ++i) {
        parts[i].parts_lse = args.parts_lse + before * rows;
        parts[i].parts_low = args.parts_low + before * rows;
        parts[i].parts_o = args.parts_o + before * rows * d->value_size;
        MGK_TRY(add_part(request, &parts[i], plan, error));
        before += parts[i].splits;
    }
    args.splits = (mgk_i32)all;
    mgk_attention_add_combine(request, all, &args, plan);
    return CLMGK_OK;
}
