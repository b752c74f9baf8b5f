/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family: softmax, Gaussian, MGK and sMGK attention (formulas: clmgk/variants.h, cl/mixture_forward.cl).
 *
 *     s_ijr = log pi_r(j) + score(q_i, k_jr) / sigma_r^2     h_i = sum_j softmax_j(combine_r s_ijr) v_j
 *
 * One kernel for all of them. Compile-time: engine, storage type, classes of D and E, M, score, E-step, whether keys
 * are shifted, whether prior and variance are arrays. Run-time: everything else.
 */
#include "mixture_args.clh"
#include "variants/family.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- what is fixed at compile time -------------------------------------------------------------------------- */

/* D and E are rounded up to a class, so that programs are few. All are multiples of 16. */
static const int size_classes[] = {16, 32, 64, 96, 128, 192, 256, 384, 512};

static int size_class(int64_t size)
{
    size_t i = 0;
    while (size_classes[i] < size)
        ++i;
    return size_classes[i];
}

typedef struct mixture_traits {
    int head_size;  /* class of D */
    int value_size; /* class of E */
    int components;
    int products; /* score products per key */
    bool gaussian;
    bool shifted;
    bool hard;
    bool has_prior; /* the prior is an array that the scores use */
    bool has_variance;
    bool has_factor; /* scores carry a factor beside the exponent */
} mixture_traits;

static mixture_traits traits_of(const clmgk_attention_desc *d)
{
    mixture_traits t = {0};
    t.head_size = size_class(d->head_size);
    t.value_size = size_class(d->value_size);
    t.components = (int)d->components;
    t.shifted = d->variant == CLMGK_VARIANT_SMGK;
    t.products = t.shifted ? 1 : t.components;
    t.gaussian = d->score == CLMGK_SCORE_GAUSSIAN;
    t.hard = d->estep == CLMGK_ESTEP_HARD;
    t.has_prior = !t.hard && d->prior_shape != CLMGK_PRIOR_UNIFORM;
    t.has_variance = d->variance_shape != CLMGK_VARIANCE_NUMBER;
    t.has_factor = !t.hard && t.components > 1;
    return t;
}

/* ---- descriptor --------------------------------------------------------------------------------------------- */

static clmgk_status resolve_single(clmgk_attention_desc *d, clmgk_score own, clmgk_error *error)
{
    const char *const name = clmgk_variant_name(d->variant);
    if (d->components > 1 || d->components < 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "components: %" PRId64 ": expected 1 with variant %s",
                        d->components, name);
    if (d->score != CLMGK_SCORE_DEFAULT && d->score != own)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "score: %d: expected the own score of variant %s",
                        (int)d->score, name);
    if (d->variant == CLMGK_VARIANT_SOFTMAX && d->prior_shape != CLMGK_PRIOR_UNIFORM)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "prior_shape: %d: variant %s takes no prior",
                        (int)d->prior_shape, name);
    d->components = 1;
    d->score = own;
    return CLMGK_OK;
}

static clmgk_status mixture_resolve(clmgk_attention_desc *d, clmgk_error *error)
{
    if (d->variant == CLMGK_VARIANT_SOFTMAX)
        return resolve_single(d, CLMGK_SCORE_DOT, error);
    if (d->variant == CLMGK_VARIANT_GAUSSIAN)
        return resolve_single(d, CLMGK_SCORE_GAUSSIAN, error);
    if (d->components == 0)
        d->components = 2;
    if (d->score == CLMGK_SCORE_DEFAULT)
        d->score = CLMGK_SCORE_GAUSSIAN;
    return CLMGK_OK;
}

/* ---- parameters --------------------------------------------------------------------------------------------- */

/* A lane work-item's arrays live on a worker's stack. */
#define LANE_PRIVATE_LIMIT (INT64_C(2) << 20)
/* Queries and accumulators of a block should stay in a core's second-level cache, staged keys in its first. */
#define LANE_BLOCK_BYTES       (INT64_C(288) << 10)
#define LANE_STAGED_KEYS_BYTES (INT64_C(96) << 10)

static int64_t lane_private_bytes(const mixture_traits *t, const mgk_tunables *p)
{
    const int64_t tile = mgk_tunable_get(p, "TILE_KEYS");
    const int64_t panel_rows = (int64_t)mgk_tunable_get(p, "LANES") * mgk_tunable_get(p, "ROW_VECTORS");
    const int64_t rows = panel_rows * mgk_tunable_get(p, "PANELS");
    const int64_t row_terms = t->shifted ? 2 * t->components + 1 : t->components;
    const int64_t floats =
        rows * (t->head_size + t->value_size + row_terms + 2) + 2 * tile * panel_rows +
        tile * ((int64_t)t->products * t->head_size + t->value_size + INT64_C(2) * t->components + 1) +
        4 * (int64_t)t->components;
    return floats * (int64_t)sizeof(float);
}

static int64_t groups_of(const clmgk_attention_desc *d, int64_t rows)
{
    return (d->length + rows - 1) / rows * d->heads * d->batch;
}

/* As many panels as keep all compute units busy and the block in cache. */
static int lane_panels(const clmgk_attention_desc *d, const mixture_traits *t, const mgk_device_facts *facts,
                       int panel_rows)
{
    int panels = 8;
    while (panels > 1 && ((int64_t)panels * panel_rows * (t->head_size + t->value_size) * 4 > LANE_BLOCK_BYTES ||
                          d->length <= (int64_t)panels / 2 * panel_rows ||
                          groups_of(d, (int64_t)panels * panel_rows) < 4 * (int64_t)facts->info.compute_units))
        panels /= 2;
    return panels;
}

static clmgk_status lane_parameters(const clmgk_attention_desc *d, const mixture_traits *t,
                                    const mgk_device_facts *facts, mgk_kernel_plan *plan, clmgk_error *error)
{
    mgk_tunables *const p = &plan->tunables;
    const bool wide = facts->info.native_float_lanes >= 16;
    mgk_tunable_default(p, "LANES", wide ? 16 : 8);
    mgk_tunable_default(p, "ROW_VECTORS", 2);
    mgk_tunable_default(p, "BLOCK_KEYS", wide ? 8 : 4);
    mgk_tunable_default(p, "UNROLL_PRODUCT", 4);
    int tile = 64;
    while (tile > 16 && (int64_t)tile * t->products * t->head_size * 4 > LANE_STAGED_KEYS_BYTES)
        tile /= 2;
    mgk_tunable_default(p, "TILE_KEYS", tile);
    const int panel_rows = mgk_tunable_get(p, "LANES") * mgk_tunable_get(p, "ROW_VECTORS");
    mgk_tunable_default(p, "PANELS", lane_panels(d, t, facts, panel_rows));

    if (mgk_tunable_get(p, "TILE_KEYS") % mgk_tunable_get(p, "LANES") != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: tile: expected a multiple of lanes");
    const int64_t bytes = lane_private_bytes(t, p);
    if (bytes > LANE_PRIVATE_LIMIT)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine lane: head_size, value_size and components need %" PRId64
                        " bytes of private memory, expected at most %" PRId64,
                        bytes, LANE_PRIVATE_LIMIT);
    plan->private_bytes = (uint64_t)bytes;
    const int64_t rows = (int64_t)panel_rows * mgk_tunable_get(p, "PANELS");
    plan->launch = (mgk_launch){1, {(size_t)groups_of(d, rows), 1, 1}, {1, 1, 1}};
    /* PoCL's compiler would keep to 256 bits by itself, and takes inline assembly */
    const bool x86_wide =
        mgk_tunable_get(p, "LANES") == 16 && facts->x86_avx512dq && facts->runtime == MGK_RUNTIME_POCL;
    mgk_text_printf(&plan->options, " -DWIDE_VECTORS=%d -DEXP2_SCALEF=%d", x86_wide, x86_wide);
    return CLMGK_OK;
}

static int64_t simt_local_bytes(const mixture_traits *t, const mgk_tunables *p)
{
    const int64_t rows = (int64_t)mgk_tunable_get(p, "THREADS_ROW") * mgk_tunable_get(p, "ROWS_PER_THREAD");
    const int64_t keys = (int64_t)mgk_tunable_get(p, "THREADS_KEY") * mgk_tunable_get(p, "KEYS_PER_THREAD");
    const int64_t products = mgk_tunable_get(p, "FEATURE_CHUNK") * (rows + keys);
    const int64_t values = (int64_t)mgk_tunable_get(p, "VALUE_CHUNK") * t->value_size;
    const int64_t key_terms = t->components + (t->shifted ? t->components : 1) + 1;
    const int64_t floats = (products > values ? products : values) + keys * rows + keys * key_terms;
    return floats * (int64_t)sizeof(float) + 64;
}

/* Accumulators of a work-item: more spill on GPUs; rusticl of Mesa 22 miscompiles private arrays beyond 48. */
static int simt_accumulators(const mgk_device_facts *facts)
{
    return facts->runtime == MGK_RUNTIME_RUSTICL ? 32 : 64;
}

/* Halves keys, then rows, until a work-group's local memory fits. */
static void simt_fit(const mixture_traits *t, const mgk_device_facts *facts, mgk_tunables *p)
{
    static const char *const order[] = {"KEYS_PER_THREAD", "KEYS_PER_THREAD", "ROWS_PER_THREAD", "ROWS_PER_THREAD",
                                        "ROWS_PER_THREAD", "VALUE_CHUNK",     "VALUE_CHUNK"};
    for (size_t i = 0; i < MGK_COUNT(order) && (uint64_t)simt_local_bytes(t, p) > facts->info.local_memory_bytes; ++i)
        if (mgk_tunable_get(p, order[i]) > 1)
            mgk_tunable_default(p, order[i], mgk_tunable_get(p, order[i]) / 2);
}

static clmgk_status simt_parameters(const clmgk_attention_desc *d, const mixture_traits *t,
                                    const mgk_device_facts *facts, mgk_kernel_plan *plan, clmgk_error *error)
{
    mgk_tunables *const p = &plan->tunables;
    mgk_tunable_default(p, "THREADS_KEY", 16);
    int row_threads = 8;
    while (row_threads > 1 && (uint64_t)row_threads * 16 > facts->info.max_work_group)
        row_threads /= 2;
    mgk_tunable_default(p, "THREADS_ROW", row_threads);
    /* on a CPU this engine is for tests: small blocks compile several times faster there */
    const bool cpu = facts->info.device_class == CLMGK_DEVICE_CPU;
    /* 8 rows would spill: with several components everywhere, with one on Intel GPUs (tests/offline) */
    int rows = cpu ? 2 : 4;
    while (rows > 1 && rows * (t->value_size / mgk_tunable_get(p, "THREADS_KEY")) > simt_accumulators(facts))
        rows /= 2;
    mgk_tunable_default(p, "ROWS_PER_THREAD", rows);
    mgk_tunable_default(p, "KEYS_PER_THREAD", cpu ? 2 : 4);
    mgk_tunable_default(p, "FEATURE_CHUNK", 16);
    mgk_tunable_default(p, "VALUE_CHUNK", 16);
    simt_fit(t, facts, p);

    const int threads = mgk_tunable_get(p, "THREADS_ROW") * mgk_tunable_get(p, "THREADS_KEY");
    const int tile = mgk_tunable_get(p, "THREADS_KEY") * mgk_tunable_get(p, "KEYS_PER_THREAD");
    if (tile % mgk_tunable_get(p, "VALUE_CHUNK") != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "parameters: values: expected a divisor of key-threads * keys = %d", tile);
    if ((uint64_t)threads > facts->info.max_work_group || (uint64_t)threads > facts->work_item_limit)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine simt: a work-group of %d, the device takes %" PRIu64,
                        threads, facts->info.max_work_group);
    plan->local_bytes = (uint64_t)simt_local_bytes(t, p);
    if (plan->local_bytes > facts->info.local_memory_bytes)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine simt: value_size and components need %" PRIu64
                        " bytes of local memory, the device has %" PRIu64,
                        plan->local_bytes, facts->info.local_memory_bytes);
    const int64_t group_rows = (int64_t)mgk_tunable_get(p, "THREADS_ROW") * mgk_tunable_get(p, "ROWS_PER_THREAD");
    const int64_t row_terms = t->shifted ? 2 * t->components + 1 : t->components;
    plan->private_bytes =
        (uint64_t)(mgk_tunable_get(p, "ROWS_PER_THREAD") * (t->value_size / mgk_tunable_get(p, "THREADS_KEY") +
                                                            2 * mgk_tunable_get(p, "KEYS_PER_THREAD") + row_terms) +
                   INT64_C(4) * t->components) *
        sizeof(float);
    plan->launch = (mgk_launch){1, {(size_t)groups_of(d, group_rows) * (size_t)threads, 1, 1}, {(size_t)threads, 1, 1}};
    return CLMGK_OK;
}

/* ---- plan --------------------------------------------------------------------------------------------------- */

static mgk_place place_of(const clmgk_layout *layout)
{
    return (mgk_place){0, layout->batch, layout->head, layout->component, layout->token};
}

static mgk_mixture_args args_of(const clmgk_attention_desc *d, const mixture_traits *t)
{
    mgk_mixture_args args = {0};
    args.q = place_of(&d->q);
    args.k = place_of(&d->k);
    args.v = place_of(&d->v);
    args.o = place_of(&d->o);
    args.lse = place_of(&d->lse);
    const int64_t keys = d->prior_shape == CLMGK_PRIOR_HMS ? d->length_k : 1;
    args.prior.token = d->prior_shape == CLMGK_PRIOR_HMS ? 1 : 0;
    args.prior.component = keys;
    args.prior.head = d->prior_shape == CLMGK_PRIOR_M ? 0 : d->components * keys;
    args.variance_head = d->variance_shape == CLMGK_VARIANCE_HM ? d->components : 0;
    args.heads = (mgk_i32)d->heads;
    args.kv_heads = (mgk_i32)d->kv_heads;
    args.length = (mgk_i32)d->length;
    args.length_k = (mgk_i32)d->length_k;
    args.head_size = (mgk_i32)d->head_size;
    args.value_size = (mgk_i32)d->value_size;
    args.causal = d->causal;
    args.alignment = (mgk_i32)d->alignment;
    args.has_lengths = d->use_lengths;
    args.has_lengths_q = d->use_lengths_q;
    args.scale = (float)(1.4426950408889634 / d->variance);
    /* a uniform prior is the same for all keys: it only enters L */
    args.lse_offset = t->hard || t->has_prior ? 0.0f : (float)-log2((double)d->components);
    return args;
}

static void write_options(const mixture_traits *t, const clmgk_attention_desc *d, clmgk_engine engine, bool gpu,
                          mgk_kernel_plan *plan)
{
    mgk_text_printf(&plan->options,
                    " -DENGINE_SIMT=%d -DSTORAGE_F16=%d -DSTORAGE_BF16=%d -DHEAD_SIZE=%d -DVALUE_SIZE=%d"
                    " -DCOMPONENTS=%d -DSCORE_GAUSSIAN=%d -DKEYS_SHIFTED=%d -DESTEP_HARD=%d -DHAS_PRIOR=%d"
                    " -DHAS_VARIANCE=%d -DEXP2_BUILTIN=%d",
                    engine == CLMGK_ENGINE_SIMT, d->dtype == CLMGK_DTYPE_F16, d->dtype == CLMGK_DTYPE_BF16,
                    t->head_size, t->value_size, t->components, t->gaussian, t->shifted, t->hard, t->has_prior,
                    t->has_variance, gpu);
    mgk_tunables_options(&plan->tunables, &plan->options);
}

static clmgk_status mixture_plan(const clmgk_attention_desc *desc, const mgk_device_facts *facts, clmgk_engine engine,
                                 const char *parameters, mgk_kernel_plan *plan, clmgk_error *error)
{
    static const mgk_array buffers[] = {MGK_Q,     MGK_K,        MGK_V,     MGK_O,       MGK_LSE,
                                        MGK_PRIOR, MGK_VARIANCE, MGK_SHIFT, MGK_LENGTHS, MGK_LENGTHS_Q};
    const mixture_traits traits = traits_of(desc);
    plan->file = "mixture_forward.cl";
    plan->name = "mixture_forward";
    plan->tunables = mgk_tunables_of(engine);
    MGK_TRY(mgk_tunables_read(&plan->tunables, parameters, error));
    /* fma is written out where it matters; nothing may assume finite numbers */
    mgk_text_printf(&plan->options, "-cl-std=CL1.2 -cl-mad-enable");
    if (engine == CLMGK_ENGINE_LANE)
        MGK_TRY(lane_parameters(desc, &traits, facts, plan, error));
    else
        MGK_TRY(simt_parameters(desc, &traits, facts, plan, error));
    const bool gpu = facts->info.device_class != CLMGK_DEVICE_CPU;
    write_options(&traits, desc, engine, gpu, plan);
    if (plan->options.failed)
        return mgk_fail_memory(error, "compiler options");

    const mgk_mixture_args args = args_of(desc, &traits);
    _Static_assert(sizeof(args) <= MGK_ARGS_BYTES && sizeof(args) % 8 == 0, "the arguments' structure");
    memcpy(plan->args, &args, sizeof(args));
    plan->args_bytes = sizeof(args);
    memcpy(plan->buffer, buffers, sizeof(buffers));
    plan->buffers = MGK_COUNT(buffers);
    return CLMGK_OK;
}

static void mixture_bind(const mgk_kernel_plan *plan, const clmgk_buffer *const arrays[MGK_ARRAYS], void *out)
{
    mgk_mixture_args args;
    memcpy(&args, plan->args, sizeof(args));
    args.q.offset = (mgk_i64)arrays[MGK_Q]->offset;
    args.k.offset = (mgk_i64)arrays[MGK_K]->offset;
    args.v.offset = (mgk_i64)arrays[MGK_V]->offset;
    args.o.offset = (mgk_i64)arrays[MGK_O]->offset;
    args.lse.offset = (mgk_i64)arrays[MGK_LSE]->offset;
    args.prior.offset = (mgk_i64)arrays[MGK_PRIOR]->offset;
    args.variance_offset = (mgk_i64)arrays[MGK_VARIANCE]->offset;
    args.shift_offset = (mgk_i64)arrays[MGK_SHIFT]->offset;
    args.lengths_offset = (mgk_i64)arrays[MGK_LENGTHS]->offset;
    args.lengths_q_offset = (mgk_i64)arrays[MGK_LENGTHS_Q]->offset;
    args.has_lse = arrays[MGK_LSE]->memory != NULL;
    memcpy(out, &args, sizeof(args));
}

const mgk_family mgk_mixture_family = {"mixture", mixture_resolve, mixture_plan, mixture_bind};
