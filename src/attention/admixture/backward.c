/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, backward pass: a kernel of keys between kernels of rows and of the mixing (formulas:
 * cl/admixture/backward.cl, cl/admixture/rows.cl).
 */
#include "attention/core/backward.h"
#include "admixture/sums.clh"
#include "attention/admixture/admixture.h"

/* What every kernel of the pass must know. */
static void set_wants(const mgk_backward_wants *w, mgk_flags *flags)
{
    flags->WANT_MIX = w->mix;
    flags->WANT_MIX_WEIGHT = w->mix_weight;
    flags->WANT_MIX_OFFSET = w->mix_offset;
    flags->WANT_NOISE = w->noise;
}

/* MiSH has dp from the products that make dQ. */
static bool needs_query(const mgk_attention_traits *t, const mgk_backward_wants *w)
{
    return w->q || (t->shared_mix && w->mix);
}

static mgk_flags main_flags(const mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    mgk_flags flags = mgk_backward_main_flags(x);
    set_wants(&x->want, &flags);
    flags.WANT_Q = needs_query(&x->request->traits, &x->want);
    flags.HEAD_RATIO = (int)(d->heads / d->kv_heads);
    return flags;
}

/* ---- engine parameters -------------------------------------------------------------------------------------- */

/* Arrays of a block may be larger than a core's second-level cache:
 * fewer blocks stream tiles from behind it. */
#define LANE_BLOCK_BYTES (INT64_C(1664) << 10)
/* Slots should stay in the first-level cache, but a tile shorter than 32 queries costs more. */
#define LANE_SLOT_BYTES (INT64_C(16) << 10)

/* Registers that a work-item's accumulators, and its slots, may take: more spill. */
#define SIMT_ACCUMULATORS 64
#define SIMT_SLOTS        24

static int64_t slots_of(const mgk_attention_traits *t)
{
    return 2 * mgk_admixture_held(t) + (t->shared_noise ? 1 : 0);
}

/* Floats of the private arrays (cl/engine/lane_backward.clh). */
static int64_t lane_floats(const mgk_attention_request *request, const mgk_tunables *p, int64_t tile, int64_t panels,
                           int64_t heads)
{
    const mgk_attention_traits *const t = &request->traits;
    const int64_t panel_rows = (int64_t)mgk_tunable_get(p, "lanes") * mgk_tunable_get(p, "vectors");
    const int64_t keys = (int64_t)t->components * t->head_size;
    const int64_t grad_heads = heads * (request->desc->heads / request->desc->kv_heads);
    return panels * panel_rows * (3 * keys + 2 * heads * t->value_size) + (slots_of(t) + 1) * tile * panel_rows +
           tile * (keys + grad_heads * t->value_size + 2 + mgk_tunable_get(p, "lanes")) + INT64_C(64) * t->components;
}

static void lane_heads(const mgk_attention_request *request, mgk_tunables *p)
{
    int heads = mgk_admixture_heads(request->desc->kv_heads);
    while (heads > 1 && lane_floats(request, p, 16, 1, heads) * 4 > mgk_attention_lane_limit(request))
        heads /= 2;
    mgk_tunable_default(p, "heads", heads);
}

/* The most panels that fit into the cache beside a short tile: every tile of queries and dO comes from farther away,
 * once for all panels. Then the longest tile. */
static void lane_panels(const mgk_attention_request *request, mgk_tunables *p)
{
    const int64_t panel_rows = (int64_t)mgk_tunable_get(p, "lanes") * mgk_tunable_get(p, "vectors");
    const int64_t heads = mgk_tunable_get(p, "heads");
    int panels = mgk_attention_base(request, p, "panels"), tile = mgk_attention_base(request, p, "tile");
    while (panels > 1 && (lane_floats(request, p, 16, panels, heads) * 4 > LANE_BLOCK_BYTES ||
                          request->desc->length_k <= (int64_t)panels / 2 * panel_rows))
        panels /= 2;
    while (tile > 16 && (lane_floats(request, p, tile, panels, heads) * 4 > LANE_BLOCK_BYTES ||
                         (tile > 32 && slots_of(&request->traits) * tile * panel_rows * 4 > LANE_SLOT_BYTES)))
        tile /= 2;
    mgk_tunable_default(p, "tile", tile);
    mgk_tunable_default(p, "panels", panels);
    mgk_tunable_at_most(p, "panels", panels);
}

static clmgk_status lane_parameters(const mgk_backward *x, mgk_tunables *p, int64_t *private_bytes, clmgk_error *error)
{
    const mgk_attention_request *const r = x->request;
    mgk_attention_lane_defaults(r, p);
    mgk_tunable_default(p, "vectors", mgk_attention_base(r, p, "vectors"));
    lane_heads(r, p);
    lane_panels(r, p);
    MGK_TRY(mgk_tunables_check(p, true, error));
    *private_bytes =
        lane_floats(r, p, mgk_tunable_get(p, "tile"), mgk_tunable_get(p, "panels"), mgk_tunable_get(p, "heads")) *
        (int64_t)sizeof(float);
    return mgk_attention_lane_fits(r, *private_bytes, error);
}

/* As cl/engine/simt_backward.clh lays it out. */
static int64_t simt_local_bytes(const mgk_attention_traits *t, const mgk_tunables *p)
{
    (void)t;
    const int64_t keys = (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "rows");
    const int64_t threads = mgk_tunable_get(p, "key-threads"), queries = threads * mgk_tunable_get(p, "keys");
    const int64_t products = mgk_tunable_get(p, "features") * (keys + queries);
    const int64_t weights = (queries > threads ? queries : threads) * keys;
    return (products + weights + 2 * queries) * (int64_t)sizeof(float) + 64;
}

static clmgk_status simt_parameters(const mgk_backward *x, mgk_tunables *p, int64_t *local_bytes, clmgk_error *error)
{
    const mgk_attention_request *const r = x->request;
    const mgk_attention_traits *const t = &r->traits;
    const bool cpu = r->facts->info.device_class == CLMGK_DEVICE_CPU;
    mgk_attention_simt_defaults(r, p);
    const int key_threads = mgk_tunable_get(p, "key-threads"), values = t->value_size / key_threads;
    int rows = mgk_attention_base(r, p, "rows") / 2, keys = mgk_attention_base(r, p, "keys") / 2;
    while (rows > 1 && rows * (values + t->components * t->head_size / key_threads) > 2 * SIMT_ACCUMULATORS)
        rows /= 2;
    while (keys > 1 && (int64_t)rows * keys * (slots_of(t) + 1) > SIMT_SLOTS)
        keys /= 2;
    mgk_tunable_default(p, "rows", rows);
    mgk_tunable_default(p, "keys", keys);
    /* on a CPU this engine is for tests: few copies of the text compile faster */
    int heads = cpu ? 1 : mgk_admixture_heads(r->desc->kv_heads);
    while (heads > 1 && heads * rows * values > SIMT_ACCUMULATORS / 2)
        heads /= 2;
    mgk_tunable_default(p, "heads", heads);
    MGK_TRY(mgk_admixture_simt_fit(r, p, simt_local_bytes, error));
    *local_bytes = simt_local_bytes(t, p);
    return CLMGK_OK;
}

static clmgk_status parameters_of(const mgk_backward *x, int64_t *private_bytes, int64_t *local_bytes,
                                  clmgk_error *error)
{
    mgk_tunables *const p = &x->plan->tunables;
    if (x->request->engine == CLMGK_ENGINE_LANE)
        return lane_parameters(x, p, private_bytes, error);
    return simt_parameters(x, p, local_bytes, error);
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

static void add_rows(mgk_backward *x, const char *name, const clmgk_array *buffers, size_t count, clmgk_array out,
                     int64_t work)
{
    mgk_flags flags = mgk_backward_rows_flags(x);
    set_wants(&x->want, &flags);
    mgk_backward_add_rows(x, "admixture/rows.cl", name, &flags, buffers, count, out, work);
}

static void add_rows_begin(mgk_backward *x)
{
    static const clmgk_array buffers[] = {CLMGK_ARRAY_O,        CLMGK_ARRAY_LSE,   CLMGK_ARRAY_GRAD_O,
                                          CLMGK_ARRAY_GRAD_LSE, CLMGK_ARRAY_SINKS, CLMGK_ARRAY_WORKSPACE};
    const clmgk_attention_desc *const d = x->request->desc;
    add_rows(x, "admixture_rows_begin", buffers, MGK_COUNT(buffers), CLMGK_ARRAYS, d->batch * d->heads * d->length);
}

static int64_t query_rows(const clmgk_attention_desc *d)
{
    return d->batch * d->components * d->length;
}

static void add_rows_finish(mgk_backward *x)
{
    static const clmgk_array buffers[] = {CLMGK_ARRAY_Q, CLMGK_ARRAY_MIX, CLMGK_ARRAY_GRAD_Q, CLMGK_ARRAY_WORKSPACE};
    add_rows(x, "admixture_rows_finish", buffers, MGK_COUNT(buffers), CLMGK_ARRAYS, query_rows(x->request->desc));
}

static clmgk_status add_main(mgk_backward *x, clmgk_error *error)
{
    static const clmgk_array buffers[] = {CLMGK_ARRAY_Q,          CLMGK_ARRAY_K,         CLMGK_ARRAY_V,
                                          CLMGK_ARRAY_GRAD_O,     CLMGK_ARRAY_MIX,       CLMGK_ARRAY_MIX_WEIGHT,
                                          CLMGK_ARRAY_MIX_OFFSET, CLMGK_ARRAY_NOISE,     CLMGK_ARRAY_LENGTHS,
                                          CLMGK_ARRAY_LENGTHS_Q,  CLMGK_ARRAY_OFFSETS,   CLMGK_ARRAY_OFFSETS_K,
                                          CLMGK_ARRAY_BIAS,       CLMGK_ARRAY_SLOPES,    CLMGK_ARRAY_GRAD_K,
                                          CLMGK_ARRAY_GRAD_V,     CLMGK_ARRAY_GRAD_BIAS, CLMGK_ARRAY_WORKSPACE};
    const mgk_attention_request *const r = x->request;
    mgk_tunables *const p = &x->plan->tunables;
    const bool lane = r->engine == CLMGK_ENGINE_LANE;
    int64_t private_bytes = 0, local_bytes = 0;
    MGK_TRY(parameters_of(x, &private_bytes, &local_bytes, error));
    const size_t local =
        lane ? 1 : (size_t)mgk_tunable_get(p, "row-threads") * (size_t)mgk_tunable_get(p, "key-threads");
    const mgk_attention_step step = {.file = "admixture/backward.cl",
                                     .name = "admixture_backward",
                                     .flags = x->flags,
                                     .tunables = p,
                                     .buffers = buffers,
                                     .buffer_count = MGK_COUNT(buffers),
                                     .out = CLMGK_ARRAY_GRAD_BIAS,
                                     .global = (size_t)x->args.chunks * (size_t)x->args.splits * local,
                                     .local = local};
    x->plan->main = x->plan->steps;
    mgk_kernel_plan *const kernel = mgk_attention_add(&step, &x->args, x->plan);
    kernel->private_bytes = (uint64_t)private_bytes;
    kernel->local_bytes = (uint64_t)local_bytes;
    return CLMGK_OK;
}

/* MiSH: q . dQ over rows and batches. */
static void add_mix_totals(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_reduction r = {.out = CLMGK_ARRAY_WORKSPACE,
                             .in = x->args.region[MGK_REGION_MIX_ROWS],
                             .outputs = d->components,
                             .row = d->components,
                             .inner = d->length,
                             .outer = d->batch,
                             .outer_stride = d->components * d->length,
                             .middle = 1,
                             .scale = 1.0,
                             .out_region = x->args.region[MGK_REGION_MIX_TOTALS]};
    mgk_backward_add_reduction(x, &r);
}

static void add_mix_gradients(mgk_backward *x)
{
    const clmgk_array of_mix[] = {CLMGK_ARRAY_MIX, CLMGK_ARRAY_MIX_WEIGHT, CLMGK_ARRAY_NOISE, CLMGK_ARRAY_GRAD_MIX,
                                  CLMGK_ARRAY_WORKSPACE};
    const clmgk_array of_weight[] = {CLMGK_ARRAY_MIX, CLMGK_ARRAY_MIX_WEIGHT, CLMGK_ARRAY_NOISE,
                                     CLMGK_ARRAY_GRAD_MIX_WEIGHT, CLMGK_ARRAY_WORKSPACE};
    const clmgk_array of_noise[] = {CLMGK_ARRAY_MIX, CLMGK_ARRAY_MIX_WEIGHT, CLMGK_ARRAY_NOISE, CLMGK_ARRAY_GRAD_NOISE,
                                    CLMGK_ARRAY_WORKSPACE};
    const clmgk_array of_offset[] = {CLMGK_ARRAY_GRAD_MIX_OFFSET, CLMGK_ARRAY_WORKSPACE};
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_backward_wants *const w = &x->want;
    const int64_t mixing = (x->request->traits.shared_mix ? 1 : d->heads) * d->components;
    if (w->mix)
        add_rows(x, "admixture_mix_gradient", of_mix, MGK_COUNT(of_mix), CLMGK_ARRAY_GRAD_MIX, mixing);
    if (w->mix_weight)
        add_rows(x, "admixture_weight_gradient", of_weight, MGK_COUNT(of_weight), CLMGK_ARRAY_GRAD_MIX_WEIGHT, mixing);
    if (w->mix_offset)
        add_rows(x, "admixture_offset_gradient", of_offset, MGK_COUNT(of_offset), CLMGK_ARRAY_GRAD_MIX_OFFSET,
                 d->heads);
    if (w->noise)
        add_rows(x, "admixture_noise_gradient", of_noise, MGK_COUNT(of_noise), CLMGK_ARRAY_GRAD_NOISE, d->components);
}

/* ---- the plan ----------------------------------------------------------------------------------------------- */

static int64_t sums_count(const mgk_backward *x)
{
    const mgk_flags *const flags = &x->flags;
    return x->tasks * x->args.splits * x->request->desc->heads * SUMS;
}

/* Parameters first (blocks decide how work is shared), then how it is shared, then where everything lies. */
static clmgk_status prepare(mgk_backward *x, clmgk_error *error)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_attention_traits *const t = &x->request->traits;
    int64_t ignored = 0;
    MGK_TRY(mgk_attention_tunables(x->request, x->plan, error));
    MGK_TRY(parameters_of(x, &ignored, &ignored, error));
    x->args = mgk_admixture_args_of(x->request);
    x->flags = main_flags(x);
    x->tasks = mgk_attention_problems(d);
    x->copy_floats = x->flags.WANT_Q ? query_rows(d) * t->head_size : 0;
    x->array_bytes = 8 * d->batch *
                     (d->components * (d->length + d->length_k) * d->head_size +
                      (d->heads * d->length + d->kv_heads * d->length_k) * d->value_size);
    MGK_TRY(mgk_backward_share(x, error));
    mgk_backward_place(x);
    if (sums_count(x) > 0)
        x->args.region[MGK_REGION_MIX_SUMS] = mgk_attention_region(x->plan, sums_count(x));
    if (t->shared_mix && x->want.mix) {
        x->args.region[MGK_REGION_MIX_ROWS] = mgk_attention_region(x->plan, query_rows(d));
        x->args.region[MGK_REGION_MIX_TOTALS] = mgk_attention_region(x->plan, d->components);
    }
    return CLMGK_OK;
}

/* What the kernel of keys adds to begins with 0. */
static void add_begin(mgk_backward *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const mgk_backward_wants *const w = &x->want;
    mgk_i64 *const region = x->args.region;
    mgk_backward_begin_bias(x);
    if (w->bias && !w->bias_full && d->bias_length == 1)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_BIAS], d->batch * d->heads * d->length_k);
    if (x->copy_floats > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_QUERY], x->copy_floats * x->args.splits);
    if (sums_count(x) > 0)
        mgk_backward_add_zeros(x, CLMGK_ARRAY_WORKSPACE, region[MGK_REGION_MIX_SUMS], sums_count(x));
    add_rows_begin(x);
}

clmgk_status mgk_admixture_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    mgk_backward x = {.request = request, .want = mgk_backward_wants_of(request->desc), .plan = plan};
    const mgk_attention_traits *const t = &request->traits;
    MGK_TRY(prepare(&x, error));
    add_begin(&x);
    MGK_TRY(add_main(&x, error));
    if (x.flags.WANT_Q)
        add_rows_finish(&x);
    if (t->shared_mix && x.want.mix)
        add_mix_totals(&x);
    add_mix_gradients(&x);
    mgk_backward_finish(&x);
    return CLMGK_OK;
}
