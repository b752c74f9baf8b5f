/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, backward pass: a kernel of keys between kernels of rows and of the mixing (formulas:
 * cl/admixture/backward.cl, cl/admixture/rows.cl).
 */
#include "attention/core/backward.h"
#include "admixture/sums.clh"
#include "attention/admixture/admixture.h"

/* Sets the gradients' flags of every kernel of the pass. */
static void set_wants(const mgk_backward_wants *w, mgk_flags *flags)
{
    flags->WANT_MIX = mgk_wants(w, CLMGK_GRADIENT_MIX);
    flags->WANT_MIX_WEIGHT = mgk_wants(w, CLMGK_GRADIENT_MIX_WEIGHT);
    flags->WANT_MIX_OFFSET = mgk_wants(w, CLMGK_GRADIENT_MIX_OFFSET);
    flags->WANT_MIX_HIDDEN_OFFSET = mgk_wants(w, CLMGK_GRADIENT_MIX_HIDDEN_OFFSET);
    flags->WANT_NOISE = mgk_wants(w, CLMGK_GRADIENT_NOISE);
    flags->WANT_MIX_AFTER = mgk_wants(w, CLMGK_GRADIENT_MIX_AFTER);
}

/* MiSH: one softmax for all heads. Sinks belong to heads, and so does the gradient of a bias. */
static bool shares_softmax(const mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    return mgk_admixture_shares_softmax(x->request) && d->heads > 1 && !d->use_sinks &&
           !mgk_wants(&x->want, CLMGK_GRADIENT_BIAS);
}

static void set_mixing(const mgk_backward *x, mgk_flags *flags)
{
    const mgk_attention_traits *const t = &x->request->traits;
    flags->SHARED_SOFTMAX = shares_softmax(x);
    flags->HEAD_RATIO = t->head_ratio;
    flags->MIX_AFTER = t->after;
    flags->MIXES_WEIGHTS = t->after > 0;
}

/* MiSH derives dp from the products of dQ. */
static bool needs_query(const mgk_attention_traits *t, const mgk_backward_wants *w)
{
    return mgk_wants(w, CLMGK_GRADIENT_Q) || (t->shared_mix && mgk_wants(w, CLMGK_GRADIENT_MIX));
}

/* Whether there is a kernel of queries, and it has something to do: dQ, or the gradient of a bias without key axis. */
static bool has_queries(const mgk_backward *x)
{
    return x->queries_apart &&
           (needs_query(&x->request->traits, &x->want) || mgk_backward_rows_flags(x).WANT_BIAS_ROWS);
}

static mgk_flags main_flags(const mgk_backward *x)
{
    mgk_flags flags = mgk_backward_main_flags(x);
    set_wants(&x->want, &flags);
    flags.WANT_Q = needs_query(&x->request->traits, &x->want) && !x->queries_apart;
    flags.WANT_BIAS = flags.WANT_BIAS && !(x->queries_apart && mgk_backward_rows_flags(x).WANT_BIAS_ROWS);
    set_mixing(x, &flags);
    mgk_backward_want_texts(x, &flags);
    return flags;
}

/* ---- blocks ------------------------------------------------------------------------------------------------- */

static mgk_footprint footprint_of(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    const int64_t keys = (int64_t)t->components * t->head_size;
    mgk_footprint f = mgk_backward_footprint(request);
    f.unit = t->after == 0;
    f.shared_heads = f.tile_heads = t->head_ratio;
    f.block.features = keys;
    f.tile = (mgk_side){keys, 2};
    f.tile_sums = 1;
    f.held_heads = f.value_heads = d->kv_heads;
    /* and their gradients, and weights and theirs; of hidden units also the products */
    f.scores = 2 * (mgk_admixture_held(t) + t->after) + (t->hidden > 0 ? t->components : t->shared_noise ? 1 : 0);
    f.fixed = INT64_C(64) * (t->components + t->hidden);
    return f;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

MGK_BINDING(bind_rows, MGK_ADMIXTURE_ROWS_BUFFERS)
MGK_BINDING(bind_mixed_rows, MGK_ADMIXTURE_MIXED_ROWS_BUFFERS)
MGK_BINDING(bind_main, MGK_ADMIXTURE_BACKWARD_BUFFERS)
MGK_BINDING(bind_queries, MGK_ADMIXTURE_QUERIES_BUFFERS)

static void add_rows(mgk_backward *x, const char *name, int64_t work)
{
    mgk_flags flags = mgk_backward_rows_flags(x);
    set_wants(&x->want, &flags);
    flags.SHARED_SOFTMAX = shares_softmax(x);
    mgk_backward_add_rows(x, "admixture/rows.cl", name, &flags, bind_rows, work);
}

/* Whether a gradient depends on sum_j P dP, which dO . O does not give where heads are mixed after the softmax. */
static bool needs_deltas(const mgk_backward *x)
{
    return x->request->traits.after > 0 &&
           (x->want.gradients & ~(uint32_t)(CLMGK_GRADIENT_V | CLMGK_GRADIENT_MIX_AFTER)) != 0;
}

/* The same of heads that are mixed after the softmax. */
static void add_mixed_rows(mgk_backward *x, const char *name, int64_t work)
{
    mgk_flags flags = mgk_backward_rows_flags(x);
    set_wants(&x->want, &flags);
    set_mixing(x, &flags);
    flags.DELTAS = needs_deltas(x);
    mgk_backward_add_rows(x, "admixture/mixed_rows.cl", name, &flags, bind_mixed_rows, work);
}

/* Rows of the heads with a softmax. */
static int64_t softmax_rows(const clmgk_attention_desc *d)
{
    return d->batch * d->heads * d->length;
}

static int64_t query_rows(const clmgk_attention_desc *d)
{
    return d->batch * d->components * d->length;
}

static void add_keys(mgk_backward *x)
{
    mgk_backward_add_main(x, "admixture/backward.cl", "admixture_backward", bind_main);
}

/* The gradients that the kernel of keys computes. */
static bool has_keys(const mgk_backward *x)
{
    const mgk_flags *const flags = &x->flags;
    return flags->WANT_Q || flags->WANT_K || flags->WANT_V || flags->WANT_BIAS || SUMS > 0 || UNIT_SUMS > 0 ||
           flags->WANT_NUMBERS > 0 || flags->WANT_READS > 0 || flags->WANT_MIX_AFTER;
}

static void clear_wants(mgk_flags *flags)
{
    flags->WANT_Q = flags->WANT_K = flags->WANT_BIAS = false;
    flags->WANT_MIX = flags->WANT_MIX_WEIGHT = flags->WANT_MIX_OFFSET = flags->WANT_NOISE = false;
    flags->WANT_MIX_HIDDEN_OFFSET = flags->WANT_MIX_AFTER = false;
    flags->WANT_NUMBERS = flags->WANT_READS = 0;
}

/* The kernel of keys; on a GPU once for dV and once for all else, which is no more work: without the accumulators of dV
 * all heads share a tile's scores, and blocks may be larger. On a CPU this engine is for tests, and compiles it once.
 */
static void add_main(mgk_backward *x)
{
    const mgk_flags all = x->flags;
    if (all.WANT_V && x->queries_apart && x->request->facts->info.device_class != CLMGK_DEVICE_CPU) {
        clear_wants(&x->flags);
        add_keys(x);
        x->flags = all;
        x->flags.WANT_V = false;
    }
    if (has_keys(x))
        add_keys(x);
    x->flags = all;
}

static mgk_flags queries_flags(const mgk_backward *x)
{
    mgk_flags flags = mgk_backward_main_flags(x);
    set_mixing(x, &flags);
    flags.WANT_K = flags.WANT_V = false;
    return flags;
}

static void add_queries_with(mgk_backward *x, const mgk_flags *flags)
{
    mgk_backward_add_queries(x, "admixture/backward_queries.cl", "admixture_backward_queries", flags, bind_queries, 1);
}

/* sum_j P dP, by the kernel that sums over keys. */
static void add_deltas(mgk_backward *x)
{
    const mgk_flags all = x->flags;
    mgk_flags queries = queries_flags(x);
    clear_wants(&queries);
    clear_wants(&x->flags);
    x->flags.WANT_V = false;
    x->flags.DELTAS = queries.DELTAS = true;
    if (x->queries_apart)
        add_queries_with(x, &queries);
    else
        add_keys(x);
    x->flags = all;
    add_mixed_rows(x, "admixture_mixed_deltas", softmax_rows(x->request->desc));
}

static void add_queries(mgk_backward *x)
{
    mgk_flags flags = queries_flags(x);
    flags.WANT_MIX = x->request->traits.shared_mix && mgk_wants(&x->want, CLMGK_GRADIENT_MIX);
    flags.WANT_BIAS = mgk_backward_rows_flags(x).WANT_BIAS_ROWS;
    add_queries_with(x, &flags);
}

/* MiSH: q . dQ over rows and batches. */
static void add_mix_totals(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    mgk_reduction_args r = mgk_sum_rows(d, x->region[MGK_REGION_MIX_ROWS], d->components);
    r.out = x->region[MGK_REGION_MIX_TOTALS];
    mgk_backward_add_reduction(x, CLMGK_ARRAY_WORKSPACE, false, &r);
}

/* Elements of the mixing after the softmax. */
static int64_t mixing_after(const mgk_attention_request *request)
{
    return request->desc->kv_heads * request->traits.head_ratio * request->traits.after;
}

static void add_mix_gradients(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_backward_wants *const w = &x->want;
    if (mgk_wants(w, CLMGK_GRADIENT_MIX))
        add_rows(x, "admixture_mix_gradient", clmgk_array_count(d, CLMGK_ARRAY_MIX));
    if (mgk_wants(w, CLMGK_GRADIENT_MIX_WEIGHT))
        add_rows(x, "admixture_weight_gradient", clmgk_array_count(d, CLMGK_ARRAY_GRAD_MIX_WEIGHT));
    if (mgk_wants(w, CLMGK_GRADIENT_MIX_OFFSET))
        add_rows(x, "admixture_offset_gradient", d->heads);
    if (mgk_wants(w, CLMGK_GRADIENT_MIX_HIDDEN_OFFSET))
        add_rows(x, "admixture_hidden_offset_gradient", d->mix_hidden);
    if (mgk_wants(w, CLMGK_GRADIENT_NOISE))
        add_rows(x, "admixture_noise_gradient", d->components);
    if (mgk_wants(w, CLMGK_GRADIENT_MIX_AFTER))
        add_mixed_rows(x, "admixture_after_gradient", mixing_after(x->request));
}

/* ---- the plan ----------------------------------------------------------------------------------------------- */

static int64_t sums_count(const mgk_backward *x)
{
    const mgk_flags *const flags = &x->flags;
    return x->tasks * x->args.splits * x->request->desc->heads * SUMS;
}

static int64_t after_sums_count(const mgk_backward *x)
{
    return x->flags.WANT_MIX_AFTER ? x->tasks * x->args.splits * mixing_after(x->request) : 0;
}

/* Copies of sum_j P dP: the splits of the kernel of keys each have their own. */
static int64_t deltas_count(const mgk_backward *x)
{
    return needs_deltas(x) ? (x->queries_apart ? 1 : x->args.splits) * softmax_rows(x->request->desc) : 0;
}

static int64_t unit_sums_count(const mgk_backward *x)
{
    const mgk_flags *const flags = &x->flags;
    return x->tasks * x->args.splits * flags->HIDDEN * UNIT_SUMS;
}

/* Chooses parameters, then distributes the work of the resulting blocks, then places the regions of the workspace. */
static clmgk_status prepare(mgk_backward *x, clmgk_error *error)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_attention_traits *const t = &x->request->traits;
    const mgk_footprint footprint = footprint_of(x->request);
    MGK_TRY(mgk_attention_fit(x->request, &footprint, &x->plan->tunables, &x->block, error));
    const mgk_forward_args args = mgk_admixture_args_of(x->request);
    mgk_backward_args_begin(x, &args);
    x->queries_apart = x->request->engine->queries_apart;
    x->flags = main_flags(x);
    x->has_keys = has_keys(x);
    x->tasks = mgk_attention_problems(d);
    x->scores = 1;
    x->copy_floats = x->flags.WANT_Q ? query_rows(d) * t->head_size : 0;
    x->array_bytes = 8 * d->batch *
                     (d->components * (d->length + d->length_k) * d->head_size +
                      (d->heads * d->length + d->kv_heads * d->length_k) * d->value_size);
    MGK_TRY(mgk_backward_share(x, error));
    mgk_backward_place(x);
    if (sums_count(x) > 0)
        x->region[MGK_REGION_MIX_SUMS] = mgk_steps_region(&x->plan->steps, sums_count(x));
    if (unit_sums_count(x) > 0)
        x->region[MGK_REGION_UNIT_SUMS] = mgk_steps_region(&x->plan->steps, unit_sums_count(x));
    if (after_sums_count(x) > 0)
        x->region[MGK_REGION_AFTER_SUMS] = mgk_steps_region(&x->plan->steps, after_sums_count(x));
    if (deltas_count(x) > 0)
        x->region[MGK_REGION_DELTAS] = mgk_steps_region(&x->plan->steps, deltas_count(x));
    if (t->shared_mix && mgk_wants(&x->want, CLMGK_GRADIENT_MIX)) {
        x->region[MGK_REGION_MIX_ROWS] = mgk_steps_region(&x->plan->steps, query_rows(d));
        x->region[MGK_REGION_MIX_TOTALS] = mgk_steps_region(&x->plan->steps, d->components);
    }
    return CLMGK_OK;
}

/* Clears the sums that the kernel of keys adds to. */
static void add_begin(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_backward_wants *const w = &x->want;
    mgk_i64 *const region = x->region;
    mgk_backward_begin_sums(x);
    if (mgk_wants(w, CLMGK_GRADIENT_BIAS) && !w->bias_full && !w->bias_rows)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_BIAS], d->batch * d->heads * d->length_k);
    if (x->copy_floats > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_QUERY], x->copy_floats * x->args.splits);
    /* rows of no sequence */
    if (has_queries(x) && d->sequences > 0 && x->request->traits.shared_mix && mgk_wants(w, CLMGK_GRADIENT_MIX))
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_MIX_ROWS], query_rows(d));
    if (sums_count(x) > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_MIX_SUMS], sums_count(x));
    if (unit_sums_count(x) > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_UNIT_SUMS], unit_sums_count(x));
    if (after_sums_count(x) > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_AFTER_SUMS], after_sums_count(x));
    if (deltas_count(x) > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_DELTAS], deltas_count(x));
    if (x->request->traits.after > 0)
        add_mixed_rows(x, "admixture_mixed_begin", softmax_rows(d));
    else
        add_rows(x, "admixture_rows_begin", softmax_rows(d));
}

clmgk_status mgk_admixture_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    mgk_softmax_descs descs;
    const mgk_attention_request softmax = mgk_admixture_softmax_request(request, &descs);
    mgk_backward x = {.request = &softmax, .want = mgk_backward_wants_of(softmax.limits), .plan = plan};
    const mgk_attention_traits *const t = &request->traits;
    MGK_TRY(prepare(&x, error));
    add_begin(&x);
    if (needs_deltas(&x))
        add_deltas(&x);
    if (x.has_keys)
        add_main(&x);
    if (has_queries(&x))
        add_queries(&x);
    if (x.flags.WANT_Q)
        add_rows(&x, "admixture_rows_finish", query_rows(request->desc));
    if (t->shared_mix && mgk_wants(&x.want, CLMGK_GRADIENT_MIX))
        add_mix_totals(&x);
    add_mix_gradients(&x);
    mgk_backward_finish(&x);
    return CLMGK_OK;
}
