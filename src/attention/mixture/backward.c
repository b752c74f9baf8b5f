/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family, backward pass and statistics of the E-step: both run kernels of rows, the same kernel of keys, and
 * reductions (formulas: cl/mixture/backward.cl, cl/mixture/rows.cl, cl/attention/reduce.cl).
 */
#include "attention/core/backward.h"
#include "attention/mixture/mixture.h"
#include "mixture/rows.clh"

static mgk_backward_wants wants_of(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->limits;
    mgk_backward_wants w = mgk_backward_wants_of(d);
    if (request->traits.hard)
        w.gradients &= ~(uint32_t)CLMGK_GRADIENT_PRIOR;
    /* a task is a head of keys */
    w.bias_shared =
        w.bias_shared || (mgk_wants(&w, CLMGK_GRADIENT_BIAS) && d->bias_heads < d->heads && d->kv_heads > 1);
    return w;
}

/* Parts of dshift: of a batch, or of a slice of its rows and keys. */
static int64_t shift_slices(const mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t longest = d->length > d->length_k ? d->length : d->length_k;
    return x->flags.ROWS_INSIDE ? d->batch : d->batch * MGK_SHIFT_SLICES(longest);
}

/* Sets flags of the kernels with products of scores if components take turns. */
static void set_turns(const mgk_backward *x, mgk_flags *flags)
{
    if (!x->block.turns)
        return;
    flags->TURNS = flags->COMPONENTS;
    flags->COMPONENTS = 1;
}

/* Sets flags that follow from products, for all kernels of the pass. */
static void set_products(const mgk_backward *x, mgk_flags *flags)
{
    flags->FACTORS_ROUNDED = x->request->traits.gaussian && x->block.precision != CLMGK_PRECISION_EXACT;
    flags->PARTIAL_KEYS = x->request->desc->partial_keys != 0;
}

/* True if errors of delta, summed over all rows and keys in dprior's few numbers, are too large: O is rounded. Sums
 * over the keys tell delta better, unless they are not all there. */
static bool rounds_delta(const mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    return mgk_wants(&x->want, CLMGK_GRADIENT_PRIOR) && mgk_dtype_of(d, d->dtype_o) != CLMGK_DTYPE_F32 &&
           !d->partial_keys;
}

/* True if the kernel of queries comes first, with another delta. */
static bool sums_delta(const mgk_backward *x)
{
    return x->queries_apart && rounds_delta(x);
}

/* True if delta is mended afterwards: where one kernel sums over queries and keys, of priors that all keys share. */
static bool mends_delta(const mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    return !x->queries_apart && rounds_delta(x) && d->prior_shape != CLMGK_PRIOR_HMS;
}

/* Sets the gradients' flags of the kernels of rows and of keys. */
static void set_wants(const mgk_backward *x, mgk_flags *flags)
{
    const mgk_backward_wants *const w = &x->want;
    set_products(x, flags);
    flags->WANT_VARIANCE = mgk_wants(w, CLMGK_GRADIENT_VARIANCE);
    flags->WANT_SHIFT = mgk_wants(w, CLMGK_GRADIENT_SHIFT);
    flags->EXPECTATION = w->expectation;
    flags->DELTA_MENDED = mends_delta(x);
    flags->HAS_LSE_LOW = flags->HAS_LSE_LOW && !w->expectation;
}

/* True if there are sums over keys: dQ, sums for dshift, the gradient of a bias without key axis, delta. */
static bool has_queries(const mgk_backward *x)
{
    return mgk_wants(&x->want, CLMGK_GRADIENT_Q) || mgk_wants(&x->want, CLMGK_GRADIENT_SHIFT) ||
           mgk_backward_rows_flags(x).WANT_BIAS_ROWS || sums_delta(x);
}

/* True if there is anything else. */
static bool has_keys(const mgk_backward *x)
{
    const uint32_t of_keys = CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_VARIANCE;
    return !x->queries_apart || (x->want.gradients & of_keys) != 0 ||
           (mgk_wants(&x->want, CLMGK_GRADIENT_SHIFT) && x->request->traits.gaussian) ||
           (mgk_wants(&x->want, CLMGK_GRADIENT_BIAS) && !mgk_backward_rows_flags(x).WANT_BIAS_ROWS) ||
           x->want.numbers > 0 || x->want.table_floats > 0;
}

/* True if the terms of keys are computed once: blocks of the kernel of queries share them. The kernel of keys, which
 * needs each once, reads the same. */
static bool has_key_terms(const mgk_backward *x)
{
    return x->queries_apart && has_queries(x) && mgk_mixture_has_key_terms(x->request, &x->block);
}

static mgk_flags main_flags(const mgk_backward *x)
{
    mgk_flags flags = mgk_backward_main_flags(x);
    set_wants(x, &flags);
    flags.QUERIES_APART = x->queries_apart;
    flags.WANT_Q = flags.WANT_Q && !x->queries_apart;
    flags.WANT_BIAS = flags.WANT_BIAS && !(x->queries_apart && mgk_backward_rows_flags(x).WANT_BIAS_ROWS);
    flags.WANT_PRIOR = mgk_wants(&x->want, CLMGK_GRADIENT_PRIOR);
    flags.WANT_GAMMA = x->want.gamma;
    flags.KEY_TERMS_GIVEN = has_key_terms(x);
    mgk_backward_want_texts(x, &flags);
    set_turns(x, &flags);
    return flags;
}

/*
 * True if the kernel of keys may prepare the rows and finish dQ itself: the engine's work-group sees its writes, one
 * work-group has all keys of a (b, g), and no sums begin in kernels of rows. Packed axes have rows of no sequence.
 */
static bool rows_inside(const mgk_backward *x)
{
    const mgk_flags rows = mgk_backward_rows_flags(x);
    return x->request->engine->private_tiles && x->args.splits == 1 && x->request->desc->sequences == 0 &&
           !rows.WANT_SINKS && !rows.WANT_BIAS_ROWS && !x->want.expectation;
}

/* Rows of the regions. */
static int64_t rows_of(const clmgk_attention_desc *d)
{
    return d->batch * d->heads * d->length;
}

/* ---- blocks ------------------------------------------------------------------------------------------------- */

static int64_t tasks_of(const clmgk_attention_desc *d)
{
    return mgk_attention_problems(d) * d->kv_heads;
}

static mgk_footprint footprint_of(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->limits;
    const mgk_attention_traits *const t = &request->traits;
    const int64_t m = t->components;
    mgk_footprint f = mgk_backward_footprint(request);
    /* then dQ of a tile of queries needs no workspace: rows_private */
    f.one_block = d->sequences == 0 && mgk_backward_keeps_busy(request, tasks_of(d));
    f.short_panels = true;
    f.unit = true;
    f.turns = mgk_mixture_may_take_turns(request);
    f.block = (mgk_side){(int64_t)t->products * t->head_size, 6 * m};
    f.tile = (mgk_side){t->head_size, 2 * m + 4};
    f.apart_terms = 3 * m + 4;
    f.tile_sums = m;
    f.scores = t->products;
    return f;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

MGK_BINDING(bind_rows, MGK_MIXTURE_ROWS_BUFFERS)
MGK_BINDING(bind_main, MGK_MIXTURE_BACKWARD_BUFFERS)
MGK_BINDING(bind_queries, MGK_MIXTURE_QUERIES_BUFFERS)
MGK_BINDING(bind_new_prior, MGK_MIXTURE_NEW_PRIOR_BUFFERS)

static void add_rows(mgk_backward *x, const char *name, int64_t work)
{
    mgk_flags flags = mgk_backward_rows_flags(x);
    set_wants(x, &flags);
    flags.QUERIES_APART = x->queries_apart;
    flags.QUERIES_ROUNDED = x->block.precision == CLMGK_PRECISION_BF16;
    mgk_backward_add_rows(x, "mixture/rows.cl", name, &flags, bind_rows, work);
}

static void add_main(mgk_backward *x)
{
    mgk_backward_add_main(x, "mixture/backward.cl", "mixture_backward", bind_main);
}

static void add_queries(mgk_backward *x)
{
    mgk_flags flags = mgk_backward_main_flags(x);
    set_products(x, &flags);
    flags.QUERIES_APART = true;
    flags.WANT_K = flags.WANT_V = false;
    flags.WANT_SHIFT = mgk_wants(&x->want, CLMGK_GRADIENT_SHIFT);
    flags.WANT_BIAS = mgk_backward_rows_flags(x).WANT_BIAS_ROWS;
    flags.DELTA_SUMMED = sums_delta(x);
    flags.KEY_TERMS_GIVEN = has_key_terms(x);
    set_turns(x, &flags);
    mgk_backward_add_queries(x, "mixture/backward_queries.cl", "mixture_backward_queries", &flags, bind_queries,
                             x->request->desc->heads);
}

static void add_key_terms(mgk_backward *x)
{
    const mgk_forward_args args = mgk_mixture_args_of(x->request);
    x->region[MGK_REGION_KEY_TERMS] =
        mgk_mixture_add_key_terms(x->request, &x->plan->tunables, &x->block, &args, x->plan);
}

static void add_shift_gradient(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t outputs = d->heads * d->components * d->head_size;
    const int64_t slices = shift_slices(x);
    if (!x->flags.ROWS_INSIDE)
        add_rows(x, "mixture_shift_gradient", slices * d->heads * d->components * ((d->head_size + 3) / 4));
    const mgk_reduction_args r = {.in = x->region[MGK_REGION_SLICES],
                                  .outputs = outputs,
                                  .row = outputs,
                                  .inner = 1,
                                  .outer = slices,
                                  .outer_stride = outputs,
                                  .middle = 1,
                                  .scale = 1.0f};
    mgk_backward_add_reduction(x, CLMGK_ARRAY_GRAD_SHIFT, false, &r);
}

/* Sums of [b,h,components,S] into the shape [.] of priors or variances: 0 [1], 1 [M], 2 [H,M], 3 [H,M,S]. */
static mgk_reduction_args reduce_keys(const mgk_backward *x, mgk_i64 in, int rank, int64_t components, int64_t columns)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t h = d->heads, m = components, s = d->length_k + columns;
    mgk_reduction_args r = {.in = in, .scale = 1.0f, .middle = 1, .outer = d->batch, .outer_stride = h * m * s};
    r.inner = rank == 3 ? 1 : s;
    r.outputs = rank == 3 ? h * m * s : rank == 2 ? h * m : rank == 1 ? m : 1;
    if (rank < 2) {
        r.middle = rank == 0 ? h * m : h;
        r.middle_stride = rank == 0 ? s : m * s;
    }
    r.row = r.outputs;
    return r;
}

static int prior_rank(const clmgk_attention_desc *d)
{
    return d->prior_shape == CLMGK_PRIOR_HMS ? 3 : d->prior_shape == CLMGK_PRIOR_HM ? 2 : 1;
}

static int variance_rank(const clmgk_attention_desc *d)
{
    return d->variance_shape == CLMGK_VARIANCE_HM ? 2 : d->variance_shape == CLMGK_VARIANCE_M ? 1 : 0;
}

static void add_prior_gradient(mgk_backward *x)
{
    const mgk_attention_traits *const t = &x->request->traits;
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_flags *const flags = &x->flags;
    mgk_reduction_args r =
        reduce_keys(x, x->region[MGK_REGION_KEY_SUMS], prior_rank(d), t->components, GAP_COLUMNS(d->length));
    if (flags->DELTA_MENDED && !flags->ROWS_INSIDE)
        add_rows(x, "mixture_prior_gap", d->batch * d->heads * t->components * GAP_COLUMNS(d->length));
    /* sums exclude pi if it is an array; the hard E-step has no prior */
    r.scale = t->has_prior ? 1.0f : (float)t->components;
    if (t->hard)
        r.outer = 0;
    mgk_backward_add_reduction(x, CLMGK_ARRAY_GRAD_PRIOR, false, &r);
}

/* ds/dsigma^2 = - s / sigma^2; the sums are over scores in their unit */
static void add_variance_gradient(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const bool array = x->request->traits.has_variance;
    mgk_reduction_args r =
        reduce_keys(x, x->region[MGK_REGION_VARIANCE], variance_rank(d), array ? d->components : 1, 0);
    const double nats = 1.0 / mgk_attention_unit(d);
    r.scale = (float)(array ? -nats : -nats / d->variance);
    mgk_backward_add_reduction(x, CLMGK_ARRAY_GRAD_VARIANCE, array, &r);
}

/* ---- passes ------------------------------------------------------------------------------------------------- */

static void place_regions(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_attention_traits *const t = &x->request->traits;
    const mgk_backward_wants *const w = &x->want;
    const mgk_flags *const flags = &x->flags;
    const int64_t rows = rows_of(d), keys = d->batch * d->heads * d->length_k, m = t->components;
    mgk_i64 *const region = x->region;
    mgk_pass_plan *const plan = x->plan;
    mgk_backward_place(x);
    if (HAS_ROW_TERMS && !x->rows_private)
        region[MGK_REGION_ALPHA] = mgk_steps_region(&plan->steps, rows * ROW_TERMS);
    if (ROW_SUMS > 0 && !x->rows_private)
        region[MGK_REGION_ROW_SUMS] =
            mgk_steps_region(&plan->steps, rows * ROW_SUMS * (x->queries_apart ? 1 : x->args.splits));
    if (mgk_wants(w, CLMGK_GRADIENT_PRIOR) || w->expectation)
        region[MGK_REGION_KEY_SUMS] =
            mgk_steps_region(&plan->steps, d->batch * d->heads * m * (d->length_k + GAP_COLUMNS(d->length)));
    if (mgk_wants(w, CLMGK_GRADIENT_VARIANCE))
        region[MGK_REGION_VARIANCE] = mgk_steps_region(&plan->steps, keys * (t->has_variance ? m : 1));
    if (mgk_wants(w, CLMGK_GRADIENT_SHIFT))
        region[MGK_REGION_SLICES] = mgk_steps_region(&plan->steps, shift_slices(x) * d->heads * m * d->head_size);
    if (mgk_wants(w, CLMGK_GRADIENT_SHIFT) && t->gaussian && !flags->ROWS_INSIDE)
        region[MGK_REGION_SHIFT] = mgk_steps_region(&plan->steps, keys * m);
}

/* Chooses parameters, then distributes the work of the resulting blocks, then places the regions of the workspace. */
static clmgk_status prepare(mgk_backward *x, clmgk_error *error)
{
    const mgk_footprint footprint = footprint_of(x->request);
    MGK_TRY(mgk_attention_fit(x->request, &footprint, &x->plan->tunables, &x->block, error));
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_attention_traits *const t = &x->request->traits;
    const int64_t rows = rows_of(d), keys = d->batch * d->kv_heads * d->length_k;
    const mgk_forward_args args = mgk_mixture_args_of(x->request);
    mgk_backward_args_begin(x, &args);
    x->queries_apart = x->request->engine->queries_apart && !x->want.expectation;
    x->has_keys = has_keys(x);
    x->flags = main_flags(x);
    x->tasks = tasks_of(d);
    x->scores = t->components;
    x->copy_floats = mgk_wants(&x->want, CLMGK_GRADIENT_Q) ? rows * t->head_size : 0;
    x->array_bytes =
        8 * (rows * (d->head_size + d->value_size) + keys * ((int64_t)t->products * d->head_size + d->value_size));
    MGK_TRY(mgk_backward_share(x, error));
    x->flags.ROWS_INSIDE = rows_inside(x);
    x->rows_private = x->flags.ROWS_INSIDE && d->length_k <= x->block.rows;
    place_regions(x);
    return CLMGK_OK;
}

clmgk_status mgk_mixture_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    mgk_backward x = {.request = request, .want = wants_of(request), .plan = plan};
    const clmgk_attention_desc *const d = request->desc;
    const mgk_backward_wants *const w = &x.want;
    MGK_TRY(prepare(&x, error));
    mgk_backward_begin_sums(&x);
    if (!x.flags.ROWS_INSIDE)
        add_rows(&x, "mixture_rows_begin", rows_of(d));
    if (has_key_terms(&x))
        add_key_terms(&x);
    if (sums_delta(&x))
        add_queries(&x);
    if (x.has_keys)
        add_main(&x);
    if (x.queries_apart && has_queries(&x) && !sums_delta(&x))
        add_queries(&x);
    if (mgk_wants(w, CLMGK_GRADIENT_Q) && !x.queries_apart && !x.flags.ROWS_INSIDE)
        add_rows(&x, "mixture_rows_finish", rows_of(d));
    if (mgk_wants(w, CLMGK_GRADIENT_SHIFT))
        add_shift_gradient(&x);
    if ((d->gradients & CLMGK_GRADIENT_PRIOR) != 0)
        add_prior_gradient(&x);
    if (mgk_wants(w, CLMGK_GRADIENT_VARIANCE))
        add_variance_gradient(&x);
    mgk_backward_finish(&x);
    return CLMGK_OK;
}

/* New pi from the counts at offset `counts` of the workspace. */
static void add_new_prior(mgk_backward *x, mgk_i64 counts)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int rank = prior_rank(d);
    const int64_t keys = rank == 3 && d->length_k > 0 ? d->length_k : 1;
    const mgk_reduction_args args = {.in = counts,
                                     .outputs = rank == 3   ? d->heads * d->length_k
                                                : rank == 2 ? d->heads
                                                            : 1,
                                     .row = keys,
                                     .row_stride = d->components * keys,
                                     .outer = d->components,
                                     .outer_stride = keys};
    const mgk_attention_step step = {.file = "mixture/new_prior.cl",
                                     .name = "mixture_new_prior",
                                     .bind = bind_new_prior,
                                     .args = &args,
                                     .args_bytes = sizeof(args),
                                     .global = mgk_backward_items(args.outputs),
                                     .local = MGK_BACKWARD_ITEMS};
    mgk_attention_add(&step, x->plan);
}

static clmgk_status plan_expectation(mgk_backward *x, clmgk_error *error)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_flags *const flags = &x->flags;
    MGK_TRY(prepare(x, error));
    if (x->want.gamma)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_RESPONSIBILITIES, 0, rows_of(d) * d->components * d->length_k);
    if (HAS_ROW_TERMS)
        add_rows(x, "mixture_rows_begin", rows_of(d));
    add_main(x);
    mgk_reduction_args r = reduce_keys(x, x->region[MGK_REGION_KEY_SUMS], prior_rank(d), d->components, 0);
    if ((d->statistics & CLMGK_STATISTIC_COUNTS) != 0)
        mgk_backward_add_reduction(x, CLMGK_ARRAY_COUNTS, false, &r);
    if ((d->statistics & CLMGK_STATISTIC_NEW_PRIOR) != 0) {
        r.out = mgk_steps_region(&x->plan->steps, r.outputs);
        mgk_backward_add_reduction(x, CLMGK_ARRAY_WORKSPACE, false, &r);
        add_new_prior(x, r.out);
    }
    return CLMGK_OK;
}

clmgk_status mgk_mixture_plan_statistics(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    const uint32_t statistics = request->desc->statistics;
    mgk_backward x = {.request = request, .plan = plan};
    x.want.expectation = true;
    x.want.gamma = (statistics & CLMGK_STATISTIC_RESPONSIBILITIES) != 0;
    if ((statistics & ~(uint32_t)CLMGK_STATISTIC_NLL) != 0)
        MGK_TRY(plan_expectation(&x, error));
    if ((statistics & CLMGK_STATISTIC_NLL) != 0)
        MGK_TRY(mgk_mixture_plan_nll(request, plan, error));
    return CLMGK_OK;
}
