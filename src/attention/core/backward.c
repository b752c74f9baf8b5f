/* SPDX-License-Identifier: Apache-2.0 */
/* Common to the backward passes on the host: distribution of work, common regions, sums of partial results. */
#include "attention/core/backward.h"

#include <inttypes.h>
#include <string.h>

mgk_backward_wants mgk_backward_wants_of(const clmgk_attention_desc *d)
{
    mgk_backward_wants w = {.gradients = d->gradients};
    const bool bias = mgk_wants(&w, CLMGK_GRADIENT_BIAS);
    /* a full axis of size 1 counts as full: no reduction */
    w.bias_full = bias && d->bias_length == d->length && d->bias_length_k == d->length_k;
    w.bias_rows = d->bias_length > 1;
    w.bias_keys = d->bias_length_k > 1;
    w.bias_shared = bias && d->bias_batch < d->batch;
    if (mgk_wants(&w, CLMGK_GRADIENT_NUMBERS))
        w.numbers = mgk_array_count(d, CLMGK_ARRAY_GRAD_NUMBERS);
    for (int c = 0; c < CLMGK_MAX_CAPTURES; ++c)
        w.table_floats += mgk_array_count(d, (clmgk_array)(CLMGK_ARRAY_GRAD_CAPTURE_0 + c));
    return w;
}

mgk_footprint mgk_backward_footprint(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->limits;
    mgk_footprint f = mgk_attention_footprint(request);
    f.rows = d->length_k;
    f.streamed = mgk_attention_rows(d);
    f.shared_heads = d->heads / d->kv_heads;
    return f;
}

size_t mgk_backward_items(int64_t count)
{
    return (size_t)((count + MGK_BACKWARD_ITEMS - 1) / MGK_BACKWARD_ITEMS * MGK_BACKWARD_ITEMS);
}

/* The flag of a gradient's type. */
static int gradient_type(const clmgk_attention_desc *d, clmgk_array gradient, clmgk_array array)
{
    const clmgk_dtype type = mgk_array_dtype(d, gradient);
    return type == mgk_array_dtype(d, array) ? 0 : 1 + (int)type;
}

void mgk_backward_set_types(const clmgk_attention_desc *desc, mgk_flags *flags)
{
    flags->GRAD_TYPE_Q = gradient_type(desc, CLMGK_ARRAY_GRAD_Q, CLMGK_ARRAY_Q);
    flags->GRAD_TYPE_K = gradient_type(desc, CLMGK_ARRAY_GRAD_K, CLMGK_ARRAY_K);
    flags->GRAD_TYPE_V = gradient_type(desc, CLMGK_ARRAY_GRAD_V, CLMGK_ARRAY_V);
}

mgk_flags mgk_backward_rows_flags(const mgk_backward *x)
{
    const mgk_backward_wants *const w = &x->want;
    mgk_flags flags = mgk_attention_flags(x->request);
    mgk_backward_set_types(x->request->desc, &flags);
    flags.WANT_Q = mgk_wants(w, CLMGK_GRADIENT_Q);
    flags.WANT_SINKS = mgk_wants(w, CLMGK_GRADIENT_SINKS);
    flags.WANT_BIAS_ROWS = mgk_wants(w, CLMGK_GRADIENT_BIAS) && !w->bias_full && w->bias_rows;
    return flags;
}

/* The arguments of a step of those regions that are placed. */
static const mgk_backward_args *args_of(mgk_backward *x)
{
    _Static_assert(MGK_REGION_UNIT * sizeof(float) == MGK_WORKSPACE_ALIGNMENT, "the alignment of a region");
    for (int i = 0; i < MGK_REGIONS; ++i)
        x->args.region[i] = (mgk_u32)(x->region[i] / MGK_REGION_UNIT);
    return &x->args;
}

void mgk_backward_add_rows(mgk_backward *x, const char *file, const char *name, const mgk_flags *flags,
                           mgk_binding *bind, int64_t work)
{
    const mgk_attention_step step = {.file = file,
                                     .name = name,
                                     .flags = *flags,
                                     .bind = bind,
                                     .args = args_of(x),
                                     .args_bytes = sizeof(x->args),
                                     .global = mgk_backward_items(work),
                                     .local = MGK_BACKWARD_ITEMS};
    mgk_attention_add(&step, x->plan);
}

/* Appends a kernel in `groups` work-groups. */
static void add_block(mgk_backward *x, const mgk_block *block, const char *file, const char *name,
                      const mgk_flags *flags, mgk_binding *bind, int64_t groups)
{
    const mgk_attention_step step = {.file = file,
                                     .name = name,
                                     .flags = *flags,
                                     .tunables = &x->plan->tunables,
                                     .block = block,
                                     .bind = bind,
                                     .args = args_of(x),
                                     .args_bytes = sizeof(x->args),
                                     .global = (size_t)groups};
    mgk_attention_add(&step, x->plan);
}

void mgk_backward_add_main(mgk_backward *x, const char *file, const char *name, mgk_binding *bind)
{
    x->plan->steps.main = x->plan->steps.count;
    x->plan->block = x->block;
    add_block(x, &x->block, file, name, &x->flags, bind, (int64_t)x->args.chunks * x->args.splits);
}

void mgk_backward_add_queries(mgk_backward *x, const char *file, const char *name, const mgk_flags *flags,
                              mgk_binding *bind, int64_t heads)
{
    if (!x->has_keys) {
        x->plan->steps.main = x->plan->steps.count;
        x->plan->block = x->block;
    }
    mgk_flags own = *flags;
    mgk_block block = x->block;
    if (block.of_queries != NULL) {
        own.ANY_GROUP_SIZE = true;
        block.compiler = block.of_queries;
    }
    add_block(x, &block, file, name, &own, bind, mgk_attention_groups(x->request->desc, heads, block.rows));
}

mgk_flags mgk_backward_main_flags(const mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_backward_wants *const w = &x->want;
    mgk_flags flags = mgk_attention_block_flags(x->request, &x->block);
    mgk_backward_set_types(d, &flags);
    flags.WANT_Q = mgk_wants(w, CLMGK_GRADIENT_Q);
    flags.WANT_K = mgk_wants(w, CLMGK_GRADIENT_K);
    flags.WANT_V = mgk_wants(w, CLMGK_GRADIENT_V);
    flags.WANT_BIAS = mgk_wants(w, CLMGK_GRADIENT_BIAS);
    flags.BIAS_ROW_AXIS = w->bias_full || w->bias_rows;
    flags.BIAS_KEY_AXIS = w->bias_full || w->bias_keys;
    return flags;
}

void mgk_backward_want_texts(const mgk_backward *x, mgk_flags *flags)
{
    flags->WANT_NUMBERS = (int)x->want.numbers;
    flags->WANT_READS = x->want.table_floats > 0 ? x->plan->mods->reads : 0;
}

void mgk_backward_args_begin(mgk_backward *x, const mgk_forward_args *args)
{
    const clmgk_attention_desc *const d = x->request->desc;
    enum { COMMON = offsetof(mgk_backward_args, grad_o) };
    _Static_assert(offsetof(mgk_forward_args, parts_lse) == COMMON, "both begin alike");
    memcpy(&x->args, args, COMMON);
    x->args.grad_o = mgk_place_of(&d->grad_o);
    x->args.grad_q = mgk_place_of(&d->grad_q);
    x->args.grad_k = mgk_component_place_of(&d->grad_k);
    x->args.grad_v = mgk_place_of(&d->grad_v);
}

/* ---- distribution of work ------------------------------------------------------------------------------------ */

bool mgk_backward_keeps_busy(const mgk_attention_request *request, int64_t tasks)
{
    const int64_t units = request->facts->info.compute_units;
    return tasks >= 4 * units || (tasks >= 2 * units && tasks % units == 0);
}

/* Ranges of keys at most: no more than blocks, with limited copies of dQ. */
static int64_t most_splits(const mgk_backward *x, int64_t blocks)
{
    int64_t splits = 1;
    while (splits < MGK_WAVES_MOST && 2 * splits <= blocks && 2 * splits * 4 * x->copy_floats <= x->array_bytes)
        splits *= 2;
    return splits;
}

/* Whether all keys of a list are one work-group's: sums over rows and keys have no copy per split. */
static bool keeps_keys_together(const mgk_backward *x)
{
    const bool bias = mgk_wants(&x->want, CLMGK_GRADIENT_BIAS) && !x->want.bias_full;
    return bias || x->want.table_floats > 0;
}

/* Ranges of keys: enough work-groups for all compute units. */
static int64_t choose_splits(const mgk_backward *x, int64_t block_keys)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t units = x->request->facts->info.compute_units;
    const int64_t blocks = (d->length_k + block_keys - 1) / block_keys, most = most_splits(x, blocks);
    if (keeps_keys_together(x))
        return 1;
    if (mgk_backward_keeps_busy(x->request, x->tasks))
        return 1;
    int64_t splits = 1;
    while (splits < most && x->tasks * splits < 4 * units)
        splits *= 2;
    return splits;
}

/* Blocks of a problem's keys; packed: of a sequence's on average. */
static int64_t key_blocks(const mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t blocks = (mgk_attention_keys(d) + x->block.rows - 1) / x->block.rows;
    return blocks > 1 ? blocks : 1;
}

static int64_t bias_count(const clmgk_attention_desc *d)
{
    return d->bias_batch * d->bias_heads * d->bias_length * d->bias_length_k;
}

/* Floats of a work-group's sums of the gradients of captured arrays. Where its work-items compute a tile together, the
 * parts of a sub-tile's pairs follow, two numbers each: no more than a tile's. */
static int64_t reads_floats(const mgk_backward *x)
{
    const int64_t tables = x->want.table_floats;
    if (tables == 0 || x->request->engine->private_tiles)
        return tables;
    return (tables + 1) / 2 * 2 + INT64_C(2) * x->plan->mods->reads * x->scores * x->block.rows * x->block.tile;
}

/* A part has the number of its element. */
static clmgk_status check_reads(const mgk_backward *x, clmgk_error *error)
{
    return x->want.table_floats <= INT32_MAX || x->request->engine->private_tiles
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                          "captures: gradients of %" PRId64 " elements: expected at most %" PRId32 " on engine %s",
                          x->want.table_floats, INT32_MAX, clmgk_engine_name(x->request->engine->value));
}

/* Work-groups at most that have their own sums: a constant, because sums must not depend on the number of compute
 * units. */
#define MOST_COPIES 512

/* Whether so many copies are small beside the call's arrays. */
static bool may_copy(const mgk_backward *x, int64_t copies, int64_t floats)
{
    return copies == 1 || (copies <= MOST_COPIES && copies * floats * 4 <= x->array_bytes / 2);
}

/* Lists of tasks: one per task, unless tasks add to the same gradients, of a bias or of captured arrays: then limited
 * by the copies of them. */
static int64_t choose_chunks(const mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t biases = x->want.bias_full && x->want.bias_shared ? bias_count(d) : 0;
    const int64_t copy = biases + x->args.reads_floats;
    if (copy == 0)
        return x->tasks;
    int64_t chunks = MOST_COPIES;
    while (!may_copy(x, chunks, copy))
        chunks /= 2;
    return chunks < x->tasks ? chunks : x->tasks;
}

/* Work-groups for a list's keys where another kernel makes the sums over keys: one for each block, unless they have
 * sums of their own. */
static int64_t splits_apart(const mgk_backward *x)
{
    int64_t splits = key_blocks(x);
    while (x->want.table_floats > 0 && !may_copy(x, x->args.chunks * splits, x->args.reads_floats) && splits > 1)
        splits = (splits + 1) / 2;
    return splits;
}

/* Values tuned for another shape may exceed the limit of the workspace. */
static clmgk_status check_splits(const mgk_backward *x, clmgk_error *error)
{
    const int64_t splits = x->args.splits;
    if (mgk_attention_splits_tuned(&x->plan->tunables) && splits * 4 * x->copy_floats > x->array_bytes)
        return mgk_fail(
            error, CLMGK_ERROR_UNSUPPORTED,
            "parameters: splits=%" PRId64 ": expected fewer: their workspace would be larger than the arrays", splits);
    return CLMGK_OK;
}

clmgk_status mgk_backward_share(mgk_backward *x, clmgk_error *error)
{
    const clmgk_attention_desc *const d = x->request->desc;
    mgk_tunables *const p = &x->plan->tunables;
    if (d->batch * d->kv_heads > INT32_MAX)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "batch %" PRId64 " with kv_heads %" PRId64 ": expected at most %" PRId32 " heads of keys",
                        d->batch, d->kv_heads, INT32_MAX);
    mgk_tunable_default(p, MGK_NAMED(splits), (int)choose_splits(x, x->block.rows));
    mgk_attention_limit_splits(x->request, p);
    /* without sums over keys the parameter has no effect; others have no copy per split, whatever its source */
    if (x->queries_apart || x->want.table_floats > 0 ||
        (mgk_wants(&x->want, CLMGK_GRADIENT_BIAS) && !x->want.bias_full && x->want.bias_rows))
        p->value[mgk_tunable_index(p, MGK_NAMED(splits))] = 1;
    x->args.reads_floats = reads_floats(x);
    x->args.chunks = (mgk_i32)choose_chunks(x);
    x->args.splits = x->queries_apart ? (mgk_i32)splits_apart(x) : mgk_tunable_get(p, MGK_NAMED(splits));
    /* splits of a list own different keys */
    const bool copies = x->want.bias_full && x->want.bias_shared && x->args.chunks > 1;
    x->args.bias_copies = copies ? x->args.chunks : 0;
    return x->queries_apart ? check_reads(x, error) : check_splits(x, error);
}

/* Work-groups of the kernel of keys. */
static int64_t groups_of(const mgk_backward *x)
{
    return (int64_t)x->args.chunks * x->args.splits;
}

void mgk_backward_place(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_backward_wants *const w = &x->want;
    const int64_t rows = d->batch * d->heads * d->length, keys = d->batch * d->heads * d->length_k;
    mgk_i64 *const region = x->region;
    if (!w->expectation && !x->rows_private) {
        region[MGK_REGION_LOG] = mgk_steps_region(&x->plan->steps, rows);
        region[MGK_REGION_DELTA] = mgk_steps_region(&x->plan->steps, rows);
        if (d->use_lse_low)
            region[MGK_REGION_LOG_LOW] = mgk_steps_region(&x->plan->steps, rows);
    }
    if (x->copy_floats > 0 && !x->rows_private && !x->queries_apart)
        region[MGK_REGION_QUERY] = mgk_steps_region(&x->plan->steps, x->copy_floats * x->args.splits);
    if (mgk_wants(w, CLMGK_GRADIENT_BIAS) && !w->bias_full)
        region[MGK_REGION_BIAS] = mgk_steps_region(&x->plan->steps, w->bias_rows ? rows : keys);
    if (x->args.bias_copies > 0)
        region[MGK_REGION_BIAS] = mgk_steps_region(&x->plan->steps, bias_count(d) * x->args.bias_copies);
    if (w->numbers > 0)
        region[MGK_REGION_NUMBERS] = mgk_steps_region(&x->plan->steps, groups_of(x) * w->numbers);
    if (w->table_floats > 0)
        region[MGK_REGION_READS] = mgk_steps_region(&x->plan->steps, groups_of(x) * x->args.reads_floats);
    if (mgk_wants(w, CLMGK_GRADIENT_SINKS))
        region[MGK_REGION_SINKS] = mgk_steps_region(&x->plan->steps, rows);
}

/* ---- sums ------------------------------------------------------------------------------------------------------ */

mgk_reduction_args mgk_sum_rows(const clmgk_attention_desc *d, mgk_i64 in, int64_t count)
{
    return (mgk_reduction_args){.in = in,
                                .outputs = count,
                                .row = count,
                                .inner = d->length,
                                .outer = d->batch,
                                .outer_stride = count * d->length,
                                .middle = 1,
                                .scale = 1.0f};
}

/* Lines of lists whose buffer OUT is the array `out` in scope. */
#define NUMBER_OF_VARIANCE                      CLMGK_ARRAY_VARIANCE
#define NUMBER_OF_WORKSPACE                     CLMGK_ARRAY_WORKSPACE
#define NUMBER_OF_OUT                           (unsigned char)out
#define OUTPUT_BUFFER(NAME, name, type, needed) {NUMBER_OF_##NAME, needed},

/* Work-items of a kernel that write elements of an array: one each, or four (cl/base/fours.clh). */
static size_t items_of_outputs(const mgk_backward *x, int64_t count)
{
    return mgk_backward_items(x->request->engine->private_tiles ? count : (count + 3) / 4);
}

/* Whether the steps are the kernels of calls, which choose among them. */
static bool is_for_any_size(const mgk_backward *x)
{
    return x->request->desc->sizes_at_call && !x->plan->of_call;
}

static void add_reduction(mgk_backward *x, clmgk_array out, bool by_variance, bool grouped,
                          const mgk_reduction_args *args)
{
    const mgk_attention_step step = {.file = "attention/reduce.cl",
                                     .name = "attention_reduce",
                                     .flags = {.engine = x->request->engine->value,
                                               .BY_VARIANCE = by_variance,
                                               .GROUPED = grouped,
                                               .GROUP_SIZE = MGK_BACKWARD_ITEMS},
                                     .global = grouped ? (size_t)args->outputs * MGK_BACKWARD_ITEMS
                                                       : items_of_outputs(x, args->outputs),
                                     .local = MGK_BACKWARD_ITEMS};
    const mgk_flags *const flags = &step.flags;
    const mgk_step_buffer list[] = {MGK_REDUCE_BUFFERS(OUTPUT_BUFFER)};
    mgk_step_bind(mgk_attention_add(&step, x->plan), args, sizeof(*args), list, MGK_COUNT(list));
}

void mgk_backward_add_reduction(mgk_backward *x, clmgk_array out, bool by_variance, const mgk_reduction_args *args)
{
    /* shorter sums take a single work-item; calls of any size need both forms */
    const bool grouped = args->inner * args->outer * args->middle > 4096;
    const unsigned form = 1u << (2 * by_variance + grouped), other = 1u << (2 * by_variance + !grouped);
    add_reduction(x, out, by_variance, grouped, args);
    x->reductions |= form;
    if (is_for_any_size(x) && (x->reductions & other) == 0) {
        add_reduction(x, out, by_variance, !grouped, args);
        x->reductions |= other;
    }
}

void mgk_backward_add_zeros(mgk_backward *x, clmgk_array out, mgk_i64 first, int64_t count)
{
    const mgk_reduction_args args = {.out = first, .outputs = count};
    const mgk_attention_step step = {.file = "attention/fill.cl",
                                     .name = "attention_fill",
                                     .flags = {.engine = x->request->engine->value},
                                     .global = items_of_outputs(x, count),
                                     .local = MGK_BACKWARD_ITEMS};
    const mgk_step_buffer list[] = {MGK_FILL_BUFFERS(OUTPUT_BUFFER)};
    mgk_step_bind(mgk_attention_add(&step, x->plan), &args, sizeof(args), list, MGK_COUNT(list));
}

/* The sum of the copies, or the sums per row or key over batches and heads that share a bias. */
static void add_bias_gradient(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    mgk_reduction_args r = {.in = x->region[MGK_REGION_BIAS], .outputs = bias_count(d), .scale = 1.0f};
    if (x->want.bias_full) {
        r.row = r.outputs;
        r.inner = r.middle = 1;
        r.outer = x->args.bias_copies;
        r.outer_stride = r.outputs;
    } else {
        /* regions [b,h,S], or [b,h,N]; both bias axes 1: all of S */
        const int64_t axis = x->want.bias_rows ? d->length : d->length_k;
        const int64_t count = d->bias_length * d->bias_length_k; /* elements of a bias (b, h) */
        const int64_t own = count > 0 ? count : 1;
        const bool one_head = d->bias_heads == 1;
        r.inner = axis / own;
        r.row = (one_head ? 1 : d->heads) * own;
        r.row_stride = d->heads * axis;
        r.outer = d->batch / d->bias_batch;
        r.outer_stride = d->bias_batch * d->heads * axis;
        r.middle = one_head ? d->heads : 1;
        r.middle_stride = axis;
    }
    mgk_backward_add_reduction(x, CLMGK_ARRAY_GRAD_BIAS, false, &r);
}

static void add_sink_gradient(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_reduction_args r = mgk_sum_rows(d, x->region[MGK_REGION_SINKS], d->heads);
    mgk_backward_add_reduction(x, CLMGK_ARRAY_GRAD_SINKS, false, &r);
}

void mgk_backward_begin_sums(mgk_backward *x)
{
    const mgk_backward_wants *const w = &x->want;
    if (w->numbers > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, x->region[MGK_REGION_NUMBERS], groups_of(x) * w->numbers);
    if (w->table_floats > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, x->region[MGK_REGION_READS],
                               groups_of(x) * x->args.reads_floats);
    if (x->want.bias_full && x->args.bias_copies == 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_GRAD_BIAS, 0, bias_count(x->request->desc));
    else if (x->want.bias_full)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, x->region[MGK_REGION_BIAS],
                               bias_count(x->request->desc) * x->args.bias_copies);
}

/* The sum over the work-groups' copies of a gradient, from `in` on, each `floats` after the one before. */
static void add_copies(mgk_backward *x, clmgk_array out, mgk_i64 in, int64_t floats)
{
    const int64_t count = mgk_array_count(x->request->desc, out);
    const mgk_reduction_args r = {.in = in,
                                  .outputs = count,
                                  .row = count,
                                  .inner = 1,
                                  .outer = groups_of(x),
                                  .outer_stride = floats,
                                  .middle = 1,
                                  .scale = 1.0f};
    mgk_backward_add_reduction(x, out, false, &r);
}

static void add_text_gradients(mgk_backward *x)
{
    const mgk_backward_wants *const w = &x->want;
    const mgk_i64 *const region = x->region;
    if (w->numbers > 0)
        add_copies(x, CLMGK_ARRAY_GRAD_NUMBERS, region[MGK_REGION_NUMBERS], w->numbers);
    for (int c = 0; c < CLMGK_MAX_CAPTURES; ++c)
        if ((w->gradients & (uint32_t)CLMGK_GRADIENT_CAPTURE_0 << c) != 0)
            add_copies(x, (clmgk_array)(CLMGK_ARRAY_GRAD_CAPTURE_0 + c),
                       region[MGK_REGION_READS] + x->plan->mods->capture[c].gradient, x->args.reads_floats);
}

void mgk_backward_finish(mgk_backward *x)
{
    add_text_gradients(x);
    /* there may be copies with some sizes only */
    if (mgk_wants(&x->want, CLMGK_GRADIENT_BIAS) &&
        (!x->want.bias_full || x->args.bias_copies > 0 || is_for_any_size(x)))
        add_bias_gradient(x);
    if (mgk_wants(&x->want, CLMGK_GRADIENT_SINKS))
        add_sink_gradient(x);
}
