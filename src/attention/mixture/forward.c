/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture family, forward pass: engine parameters, launch, split keys and their combination, query log-likelihood. */
#include "attention/mixture/mixture.h"

#include <inttypes.h>

/* What the engine's parameters make of a work-group. */
typedef struct forward_group {
    mgk_tunables tunables;
    int few_rows; /* lane engine: its form for so many rows; 0: the usual one */
    int64_t rows;
    size_t threads;
    uint64_t local_bytes;
    uint64_t private_bytes;
} forward_group;

/* ---- parameters: lane --------------------------------------------------------------------------------------- */

/* Queries and accumulators of a block should stay in a core's second-level cache, staged keys in its first. */
#define LANE_BLOCK_BYTES       (INT64_C(288) << 10)
#define LANE_STAGED_KEYS_BYTES (INT64_C(96) << 10)

/* Floats that a tile holds of each key beside its features: mixture_keys in cl/mixture/forward.cl. */
static int64_t key_terms(const mgk_attention_traits *t)
{
    const int64_t m = t->components;
    const bool has_log_prior = t->has_prior || t->has_variance; /* the second: for the density alone */
    return (t->gaussian || t->shifted ? m : 1) + (has_log_prior ? m : 1) + (t->shifted && t->has_factor ? m : 1) + 2;
}

static int64_t lane_private_bytes(const mgk_attention_request *request, const mgk_tunables *p)
{
    const mgk_attention_traits *const t = &request->traits;
    const int64_t tile = mgk_tunable_get(p, "tile");
    const int64_t panel_rows = (int64_t)mgk_tunable_get(p, "lanes") * mgk_tunable_get(p, "vectors");
    const int64_t rows = panel_rows * mgk_tunable_get(p, "panels");
    const int64_t row_terms = t->shifted ? 2 * t->components + 2 : t->components;
    const int64_t slots = request->desc->use_bias ? 3 : 2;
    const int64_t floats = rows * (t->head_size + t->value_size + row_terms + 3) + slots * tile * panel_rows +
                           tile * ((int64_t)t->products * t->head_size + t->value_size + key_terms(t)) +
                           4 * (int64_t)t->components;
    return floats * (int64_t)sizeof(float);
}

/* As many panels as keep all compute units busy and the block in cache. */
static int lane_panels(const mgk_attention_request *request, const mgk_tunables *p, int panel_rows)
{
    const clmgk_attention_desc *const d = request->desc;
    const int64_t width = request->traits.head_size + request->traits.value_size;
    int panels = mgk_attention_base(request, p, "panels");
    while (panels > 1 && ((int64_t)panels * panel_rows * width * 4 > LANE_BLOCK_BYTES ||
                          mgk_attention_rows(d) <= (int64_t)panels / 2 * panel_rows ||
                          mgk_attention_busy_groups(d, d->heads, (int64_t)panels * panel_rows) <
                              4 * (int64_t)request->facts->info.compute_units))
        panels /= 2;
    return panels;
}

/* Rows of a block whose lanes are keys: for decoding, where lanes of rows would be empty. Not where a backward pass
 * follows, which makes its scores by the usual form's operations. */
static int lane_few_rows(const mgk_attention_request *request, const mgk_tunables *p)
{
    const int64_t rows = mgk_attention_rows(request->desc);
    if (rows > MGK_FEW_ROWS || request->desc->gradients != 0 || !mgk_tunable_is_default(p, "vectors") ||
        !mgk_tunable_is_default(p, "panels"))
        return 0;
    return rows <= 1 ? 1 : rows == 2 ? 2 : 4;
}

static clmgk_status lane_group(const mgk_attention_request *request, forward_group *group, clmgk_error *error)
{
    const mgk_attention_traits *const t = &request->traits;
    mgk_tunables *const p = &group->tunables;
    mgk_attention_lane_defaults(request, p);
    const int lanes = mgk_tunable_get(p, "lanes");
    mgk_tunable_default(p, "vectors",
                        mgk_attention_rows(request->desc) <= lanes ? 1 : mgk_attention_base(request, p, "vectors"));
    int tile = mgk_attention_base(request, p, "tile");
    while (tile > 16 && (int64_t)tile * t->products * t->head_size * 4 > LANE_STAGED_KEYS_BYTES)
        tile /= 2;
    mgk_tunable_default(p, "tile", tile);
    const int panel_rows = lanes * mgk_tunable_get(p, "vectors");
    const int panels = lane_panels(request, p, panel_rows);
    mgk_tunable_default(p, "panels", panels);
    mgk_tunable_at_most(p, "panels", panels);

    MGK_TRY(mgk_tunables_check(p, true, error));
    const int64_t bytes = lane_private_bytes(request, p);
    MGK_TRY(mgk_attention_lane_fits(request, bytes, error));
    group->private_bytes = (uint64_t)bytes;
    group->few_rows = lane_few_rows(request, p);
    group->rows = group->few_rows > 0 ? group->few_rows : (int64_t)panel_rows * mgk_tunable_get(p, "panels");
    group->threads = 1;
    return CLMGK_OK;
}

/* ---- parameters: SIMT --------------------------------------------------------------------------------------- */

static int64_t simt_local_bytes(const mgk_attention_traits *t, const mgk_tunables *p)
{
    const int64_t rows = (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "rows");
    const int64_t keys = (int64_t)mgk_tunable_get(p, "key-threads") * mgk_tunable_get(p, "keys");
    const int64_t products = mgk_tunable_get(p, "features") * (rows + keys);
    const int64_t values = (int64_t)mgk_tunable_get(p, "values") * t->value_size;
    const int64_t floats = (products > values ? products : values) + keys * rows + keys * key_terms(t);
    return floats * (int64_t)sizeof(float) + 64;
}

/* Accumulators of a work-item: more spill on GPUs; rusticl of Mesa 22 miscompiles private arrays beyond 48. */
static int simt_accumulators(const mgk_device_facts *facts)
{
    return facts->runtime == MGK_RUNTIME_RUSTICL ? 32 : 64;
}

/* Halves keys, then rows, until a work-group's local memory fits. */
static void simt_fit(const mgk_attention_request *request, mgk_tunables *p)
{
    static const char *const order[] = {"keys", "keys", "rows", "rows", "rows", "values", "values"};
    const uint64_t room = request->facts->info.local_memory_bytes;
    for (size_t i = 0; i < MGK_COUNT(order) && (uint64_t)simt_local_bytes(&request->traits, p) > room; ++i)
        if (mgk_tunable_get(p, order[i]) > 1)
            mgk_tunable_default(p, order[i], mgk_tunable_get(p, order[i]) / 2);
}

static void simt_defaults(const mgk_attention_request *request, mgk_tunables *p)
{
    const mgk_device_facts *const facts = request->facts;
    mgk_attention_simt_defaults(request, p);
    /* more rows would spill: with several components everywhere, with one on Intel GPUs (tests/offline) */
    int rows = mgk_attention_base(request, p, "rows");
    if (facts->info.device_class != CLMGK_DEVICE_CPU && request->traits.modified)
        rows /= 2;
    while (rows > 1 &&
           rows * (request->traits.value_size / mgk_tunable_get(p, "key-threads")) > simt_accumulators(facts))
        rows /= 2;
    mgk_tunable_default(p, "rows", rows);
    mgk_tunable_default(p, "keys", mgk_attention_base(request, p, "keys"));
    simt_fit(request, p);
    mgk_attention_simt_values(p);
}

static clmgk_status simt_group(const mgk_attention_request *request, forward_group *group, clmgk_error *error)
{
    const mgk_attention_traits *const t = &request->traits;
    const mgk_device_facts *const facts = request->facts;
    mgk_tunables *const p = &group->tunables;
    simt_defaults(request, p);

    const int threads = mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "key-threads");
    MGK_TRY(mgk_tunables_check(p, true, error));
    if ((uint64_t)threads > facts->info.max_work_group || (uint64_t)threads > facts->work_item_limit)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine simt: a work-group of %d, the device takes %" PRIu64,
                        threads, facts->info.max_work_group);
    group->local_bytes = (uint64_t)simt_local_bytes(t, p);
    if (group->local_bytes > facts->info.local_memory_bytes)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine simt: value_size and components need %" PRIu64
                        " bytes of local memory, the device has %" PRIu64,
                        group->local_bytes, facts->info.local_memory_bytes);
    const int64_t row_terms = t->shifted ? 2 * t->components + 2 : t->components;
    const int64_t row_floats =
        t->value_size / mgk_tunable_get(p, "key-threads") + INT64_C(2) * mgk_tunable_get(p, "keys") + row_terms;
    group->private_bytes =
        (uint64_t)(mgk_tunable_get(p, "rows") * row_floats + INT64_C(4) * t->components) * sizeof(float);
    group->rows = (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "rows");
    group->threads = (size_t)threads;
    return CLMGK_OK;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

static clmgk_status group_of(const mgk_attention_request *request, forward_group *group, clmgk_error *error)
{
    *group = (forward_group){.tunables = mgk_tunables_of(request->engine, false)};
    mgk_tunables *const p = &group->tunables;
    const bool lane = request->engine == CLMGK_ENGINE_LANE;
    MGK_TRY(mgk_tunables_read(p, &request->parameters, error));
    MGK_TRY(lane ? lane_group(request, group, error) : simt_group(request, group, error));
    const int tile = lane ? mgk_tunable_get(p, "tile") : mgk_tunable_get(p, "key-threads") * mgk_tunable_get(p, "keys");
    mgk_tunable_default(p, "splits", mgk_attention_splits(request, request->desc->heads, group->rows, tile));
    return CLMGK_OK;
}

/* The kernel over keys, for `splits` ranges of them; `density`: that of the queries. */
static void add_forward(const mgk_attention_request *request, const forward_group *group, int splits, bool density,
                        const mgk_attention_args *args, mgk_pass_plan *plan)
{
    static const clmgk_array buffers[] = {
        CLMGK_ARRAY_Q,       CLMGK_ARRAY_K,         CLMGK_ARRAY_V,        CLMGK_ARRAY_O,
        CLMGK_ARRAY_LSE,     CLMGK_ARRAY_PRIOR,     CLMGK_ARRAY_VARIANCE, CLMGK_ARRAY_SHIFT,
        CLMGK_ARRAY_LENGTHS, CLMGK_ARRAY_LENGTHS_Q, CLMGK_ARRAY_OFFSETS,  CLMGK_ARRAY_OFFSETS_K,
        CLMGK_ARRAY_BIAS,    CLMGK_ARRAY_SLOPES,    CLMGK_ARRAY_SINKS,    CLMGK_ARRAY_WORKSPACE};
    const size_t global =
        (size_t)(mgk_attention_groups(request->desc, request->desc->heads, group->rows) * splits) * group->threads;
    mgk_flags flags = mgk_attention_flags(request);
    flags.SPLIT_KEYS = splits > 1;
    flags.DENSITY = density;
    flags.FEW_ROWS = group->few_rows;
    if (request->engine == CLMGK_ENGINE_LANE)
        mgk_attention_lane_flags(request, &group->tunables, &flags);
    const mgk_attention_step step = {.file = "mixture/forward.cl",
                                     .name = "mixture_forward",
                                     .flags = flags,
                                     .tunables = &group->tunables,
                                     .buffers = buffers,
                                     .buffer_count = MGK_COUNT(buffers),
                                     .out = CLMGK_ARRAYS,
                                     .global = global,
                                     .local = group->threads};
    mgk_kernel_plan *const kernel = mgk_attention_add(&step, args, plan);
    kernel->local_bytes = group->local_bytes;
    kernel->private_bytes = group->private_bytes;
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

clmgk_status mgk_mixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    forward_group group;
    MGK_TRY(group_of(request, &group, error));
    plan->tunables = group.tunables;
    plan->main = plan->steps;
    mgk_attention_args args = mgk_mixture_args_of(request);
    MGK_TRY(mgk_attention_forward_splits(request, plan, &args, error));
    add_forward(request, &group, args.splits, false, &args, plan);
    if (args.splits > 1)
        mgk_attention_add_combine(request, true, &args, plan);
    return CLMGK_OK;
}

/* The descriptor of the mixture's density: the given prior even with the hard E-step, no modifier but a bias that
 * hides. */
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
static void add_density_sum(const mgk_attention_request *request, const mgk_attention_args *args, mgk_pass_plan *plan)
{
    static const clmgk_array buffers[] = {CLMGK_ARRAY_NLL,     CLMGK_ARRAY_LENGTHS,   CLMGK_ARRAY_LENGTHS_Q,
                                          CLMGK_ARRAY_OFFSETS, CLMGK_ARRAY_OFFSETS_K, CLMGK_ARRAY_WORKSPACE};
    enum { THREADS = 64 };
    const clmgk_attention_desc *const d = request->desc;
    mgk_flags flags = mgk_attention_flags(request);
    flags.GROUP_SIZE = THREADS;
    const mgk_attention_step step = {.file = "mixture/density.cl",
                                     .name = "mixture_density",
                                     .flags = flags,
                                     .buffers = buffers,
                                     .buffer_count = MGK_COUNT(buffers),
                                     .out = CLMGK_ARRAY_NLL,
                                     .global = (size_t)(mgk_attention_problems(d) * d->heads) * THREADS,
                                     .local = THREADS};
    mgk_attention_add(&step, args, plan);
}

clmgk_status mgk_mixture_plan_nll(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    clmgk_attention_desc d;
    mgk_attention_request density;
    forward_group group;
    make_density(request, &d, &density);
    MGK_TRY(group_of(&density, &group, error));
    if (plan->steps == 0) { /* else another step is the main one */
        plan->tunables = group.tunables;
        plan->main = 0;
    }
    mgk_attention_args args = mgk_mixture_args_of(&density);
    args.region[0] = mgk_attention_region(plan, d.batch * d.heads * d.length);
    add_forward(&density, &group, 1, true, &args, plan);
    add_density_sum(&density, &args, plan);
    return CLMGK_OK;
}
