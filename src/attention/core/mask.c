/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/core/mask.h"

#include "attention/core/formulas.h"

#include <inttypes.h>

enum { USUAL_BLOCK = 64, LEAST_BLOCK = 16, MOST_BLOCK = 1 << 20 };

/* ---- descriptor -------------------------------------------------------------------------------------------------- */

static clmgk_status resolve_size(const char *field, int64_t *size, clmgk_error *error)
{
    if (*size == 0)
        *size = USUAL_BLOCK;
    if (*size < LEAST_BLOCK || *size > MOST_BLOCK || (*size & (*size - 1)) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected a power of two, %d to %d", field,
                        *size, LEAST_BLOCK, MOST_BLOCK);
    return CLMGK_OK;
}

static int64_t blocks_of(int64_t length, int64_t size)
{
    return (length + size - 1) / size;
}

/* Whether 32 bits count so many classes. */
static bool is_small(int64_t batch, int64_t heads, int64_t rows, int64_t keys)
{
    return (double)batch * (double)heads * (double)rows * (double)keys < INT32_MAX;
}

static clmgk_status resolve_axis(const char *field, int64_t *axis, int64_t full, clmgk_error *error)
{
    if (*axis == 0)
        *axis = full;
    if (*axis != 1 && *axis != full)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE, "%s: %" PRId64 ": expected 1 or %" PRId64, field, *axis,
                        full);
    return CLMGK_OK;
}

/* Fields that mean nothing. */
static clmgk_status check_idle(const clmgk_attention_desc *d, clmgk_error *error)
{
    const struct {
        const char *field;
        int64_t value;
        bool idle;
    } fields[] = {{"mask_block_q", d->mask_block_q, d->mask_mod == NULL},
                  {"mask_block_k", d->mask_block_k, d->mask_mod == NULL},
                  {"mask_blocks_batch", d->mask_blocks_batch, true},
                  {"mask_blocks_heads", d->mask_blocks_heads, true}};
    for (size_t i = 0; i < MGK_COUNT(fields); ++i)
        if (fields[i].idle && fields[i].value != 0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected 0, or use_mask_blocks = 1",
                            fields[i].field, fields[i].value);
    return CLMGK_OK;
}

clmgk_status mgk_resolve_mask_blocks(clmgk_attention_desc *d, clmgk_error *error)
{
    if (!d->use_mask_blocks)
        MGK_TRY(check_idle(d, error));
    if (!d->use_mask_blocks && d->mask_mod == NULL)
        return CLMGK_OK;
    MGK_TRY(resolve_size("mask_block_q", &d->mask_block_q, error));
    MGK_TRY(resolve_size("mask_block_k", &d->mask_block_k, error));
    if (!d->use_mask_blocks)
        return CLMGK_OK;
    if (d->sequences > 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "use_mask_blocks: 1: expected 0 with packed sequences");
    if (d->use_positions)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "use_mask_blocks: 1: expected 0 with use_positions = 1");
    MGK_TRY(resolve_axis("mask_blocks_batch", &d->mask_blocks_batch, d->batch, error));
    MGK_TRY(resolve_axis("mask_blocks_heads", &d->mask_blocks_heads, mgk_softmax_heads(d), error));
    if (!is_small(d->mask_blocks_batch, d->mask_blocks_heads, blocks_of(d->length, d->mask_block_q),
                  blocks_of(d->length_k, d->mask_block_k)))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "mask_blocks: expected less than 2^31 classes: larger blocks");
    return CLMGK_OK;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static char shift_of(int64_t size)
{
    char shift = 0;
    while ((INT64_C(1) << shift) < size)
        ++shift;
    return shift;
}

/* Packed sequences have blocks of their own, at most one more each than their queries need. */
static int64_t rows_of_blocks(const clmgk_attention_desc *d)
{
    return d->sequences > 0 ? d->length / d->mask_block_q + d->sequences : blocks_of(d->length, d->mask_block_q);
}

/* Classes of so many batches and heads, which may be 1 for all. */
static mgk_mask_place place_of(const clmgk_attention_desc *d, int64_t batch, int64_t heads)
{
    const int64_t row = blocks_of(d->length_k, d->mask_block_k), head = rows_of_blocks(d) * row;
    return (mgk_mask_place){.batch = batch > 1 ? (mgk_i32)(heads * head) : 0,
                            .head = heads > 1 ? (mgk_i32)head : 0,
                            .row = (mgk_i32)row,
                            .query_shift = shift_of(d->mask_block_q),
                            .key_shift = shift_of(d->mask_block_k)};
}

MGK_BINDING(bind_mask, MGK_MASK_BUFFERS)

/* Classifies in the workspace: only so many blocks that it pays, and from few elements (cl/attention/classify.clh). */
static void classify(const mgk_attention_request *request, mgk_pass_plan *plan)
{
    enum { LEAST = 4 };
    const clmgk_attention_desc *const d = request->desc;
    const int64_t rows = rows_of_blocks(d), keys = blocks_of(d->length_k, d->mask_block_k);
    const int64_t batch = d->sequences == 0 && (plan->mods->mask_of_batch || d->use_positions) ? d->batch : 1,
                  heads = plan->mods->mask_of_head ? mgk_softmax_heads(d) : 1;
    mgk_mask_classes *const classes = &plan->classes;
    *classes = (mgk_mask_classes){.array = CLMGK_ARRAY_WORKSPACE, .used = true, .own = true};
    if (rows < LEAST || keys < LEAST || !is_small(batch, heads, rows, keys))
        return;
    classes->place = place_of(d, batch, heads);
    classes->place.first = mgk_steps_region(&plan->steps, batch * heads * rows * keys);
    classes->groups = batch * heads * rows;
}

void mgk_mask_begin(const mgk_attention_request *request, mgk_pass_plan *plan)
{
    const clmgk_attention_desc *const d = request->desc;
    plan->classes = (mgk_mask_classes){.used = false};
    if (d->use_mask_blocks)
        plan->classes = (mgk_mask_classes){.array = CLMGK_ARRAY_MASK_BLOCKS,
                                           .used = true,
                                           .place = place_of(d, d->mask_blocks_batch, d->mask_blocks_heads)};
    else if (d->mask_mod != NULL && plan->mods->mask_reads && !(d->sequences > 0 && d->page_size > 0))
        classify(request, plan); /* how many keys pages have, kernels alone know */
}

clmgk_status mgk_attention_plan_mask(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    enum { ITEMS = 64 };
    const clmgk_attention_desc *const d = request->desc;
    const mgk_mask_place *const place = &plan->classes.place;
    const int64_t count = d->mask_blocks_batch * d->mask_blocks_heads * rows_of_blocks(d) * place->row;
    plan->tunables = mgk_engine_tunables(request->engine, request->family->added);
    MGK_TRY(mgk_tunables_read(&plan->tunables, &request->parameters, error));
    const mgk_mask_args args = {.classes = *place,
                                .most = d->mask_block_q * d->mask_block_k,
                                .batch = (mgk_i32)d->mask_blocks_batch,
                                .heads = (mgk_i32)d->mask_blocks_heads,
                                .batches = (mgk_i32)d->batch,
                                .query_heads = (mgk_i32)mgk_softmax_heads(d),
                                .kv_heads = (mgk_i32)(d->mix_after_heads > 0 ? 1 : d->kv_heads), /* then g is 0 */
                                .length = (mgk_i32)d->length,
                                .length_k = (mgk_i32)d->length_k};
    const mgk_attention_step step = {.file = "attention/mask.cl",
                                     .name = "attention_mask",
                                     .flags = mgk_attention_text_flags(d),
                                     .bind = bind_mask,
                                     .args = &args,
                                     .args_bytes = sizeof(args),
                                     .global = (size_t)((count + ITEMS - 1) / ITEMS * ITEMS),
                                     .local = ITEMS};
    mgk_step *const kernel = mgk_attention_add(&step, plan);
    mgk_replace_buffer(kernel, CLMGK_ARRAY_WORKSPACE, CLMGK_ARRAY_MASK_BLOCKS);
    kernel->mods = plan->mods->mask_code;
    kernel->constants = &plan->mods->captures;
    return CLMGK_OK;
}
