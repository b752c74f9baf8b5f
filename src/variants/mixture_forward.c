/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture family, forward pass: engine parameters, launch, split keys and their combination. */
#include "variants/mixture.h"

#include <inttypes.h>
#include <string.h>

/* ---- parameters --------------------------------------------------------------------------------------------- */

/* A lane work-item's arrays live on a worker's stack. */
#define LANE_PRIVATE_LIMIT (INT64_C(2) << 20)
/* Queries and accumulators of a block should stay in a core's second-level cache, staged keys in its first. */
#define LANE_BLOCK_BYTES       (INT64_C(288) << 10)
#define LANE_STAGED_KEYS_BYTES (INT64_C(96) << 10)

static int64_t lane_private_bytes(const mgk_mixture_traits *t, const mgk_tunables *p)
{
    const int64_t tile = mgk_tunable_get(p, "tile");
    const int64_t panel_rows = (int64_t)mgk_tunable_get(p, "lanes") * mgk_tunable_get(p, "vectors");
    const int64_t rows = panel_rows * mgk_tunable_get(p, "panels");
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
static int lane_panels(const clmgk_attention_desc *d, const mgk_mixture_traits *t, const mgk_device_facts *facts,
                       int panel_rows)
{
    int panels = 8;
    while (panels > 1 && ((int64_t)panels * panel_rows * (t->head_size + t->value_size) * 4 > LANE_BLOCK_BYTES ||
                          d->length <= (int64_t)panels / 2 * panel_rows ||
                          groups_of(d, (int64_t)panels * panel_rows) < 4 * (int64_t)facts->info.compute_units))
        panels /= 2;
    return panels;
}

static clmgk_status lane_parameters(const clmgk_attention_desc *d, const mgk_mixture_traits *t,
                                    const mgk_device_facts *facts, mgk_kernel_plan *plan, clmgk_error *error)
{
    mgk_tunables *const p = &plan->tunables;
    const bool wide = facts->info.native_float_lanes >= 16;
    mgk_tunable_default(p, "lanes", wide ? 16 : 8);
    mgk_tunable_default(p, "vectors", 2);
    mgk_tunable_default(p, "block", wide ? 8 : 4);
    mgk_tunable_default(p, "unroll", 4);
    int tile = 64;
    while (tile > 16 && (int64_t)tile * t->products * t->head_size * 4 > LANE_STAGED_KEYS_BYTES)
        tile /= 2;
    mgk_tunable_default(p, "tile", tile);
    const int panel_rows = mgk_tunable_get(p, "lanes") * mgk_tunable_get(p, "vectors");
    mgk_tunable_default(p, "panels", lane_panels(d, t, facts, panel_rows));

    if (mgk_tunable_get(p, "tile") % mgk_tunable_get(p, "lanes") != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: tile: expected a multiple of lanes");
    const int64_t bytes = lane_private_bytes(t, p);
    if (bytes > LANE_PRIVATE_LIMIT)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine lane: head_size, value_size and components need %" PRId64
                        " bytes of private memory, expected at most %" PRId64,
                        bytes, LANE_PRIVATE_LIMIT);
    plan->private_bytes = (uint64_t)bytes;
    const int64_t rows = (int64_t)panel_rows * mgk_tunable_get(p, "panels");
    plan->launch = (mgk_launch){1, {(size_t)groups_of(d, rows), 1, 1}, {1, 1, 1}};
    /* PoCL's compiler would keep to 256 bits by itself, and takes inline assembly */
    const bool x86_wide =
        mgk_tunable_get(p, "lanes") == 16 && facts->x86_avx512dq && facts->runtime == MGK_RUNTIME_POCL;
    mgk_text_printf(&plan->options, " -DWIDE_VECTORS=%d -DEXP2_SCALEF=%d", x86_wide, x86_wide);
    return CLMGK_OK;
}

static int64_t simt_local_bytes(const mgk_mixture_traits *t, const mgk_tunables *p)
{
    const int64_t rows = (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "rows");
    const int64_t keys = (int64_t)mgk_tunable_get(p, "key-threads") * mgk_tunable_get(p, "keys");
    const int64_t products = mgk_tunable_get(p, "features") * (rows + keys);
    const int64_t values = (int64_t)mgk_tunable_get(p, "values") * t->value_size;
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
static void simt_fit(const mgk_mixture_traits *t, const mgk_device_facts *facts, mgk_tunables *p)
{
    static const char *const order[] = {"keys", "keys", "rows", "rows",
                                        "rows", "values",     "values"};
    for (size_t i = 0; i < MGK_COUNT(order) && (uint64_t)simt_local_bytes(t, p) > facts->info.local_memory_bytes; ++i)
        if (mgk_tunable_get(p, order[i]) > 1)
            mgk_tunable_default(p, order[i], mgk_tunable_get(p, order[i]) / 2);
}

static clmgk_status simt_parameters(const clmgk_attention_desc *d, const mgk_mixture_traits *t,
                                    const mgk_device_facts *facts, mgk_kernel_plan *plan, clmgk_error *error)
{
    mgk_tunables *const p = &plan->tunables;
    mgk_tunable_default(p, "key-threads", 16);
    int row_threads = 8;
    while (row_threads > 1 && (uint64_t)row_threads * 16 > facts->info.max_work_group)
        row_threads /= 2;
    mgk_tunable_default(p, "row-threads", row_threads);
    /* on a CPU this engine is for tests: small blocks compile several times faster there */
    const bool cpu = facts->info.device_class == CLMGK_DEVICE_CPU;
    /* 8 rows would spill: with several components everywhere, with one on Intel GPUs (tests/offline) */
    int rows = cpu ? 2 : 4;
    while (rows > 1 && rows * (t->value_size / mgk_tunable_get(p, "key-threads")) > simt_accumulators(facts))
        rows /= 2;
    mgk_tunable_default(p, "rows", rows);
    mgk_tunable_default(p, "keys", cpu ? 2 : 4);
    mgk_tunable_default(p, "features", 16);
    mgk_tunable_default(p, "values", 16);
    simt_fit(t, facts, p);

    const int threads = mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "key-threads");
    const int tile = mgk_tunable_get(p, "key-threads") * mgk_tunable_get(p, "keys");
    if (tile % mgk_tunable_get(p, "values") != 0)
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
    const int64_t group_rows = (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "rows");
    const int64_t row_terms = t->shifted ? 2 * t->components + 1 : t->components;
    plan->private_bytes =
        (uint64_t)(mgk_tunable_get(p, "rows") * (t->value_size / mgk_tunable_get(p, "key-threads") +
                                                            2 * mgk_tunable_get(p, "keys") + row_terms) +
                   INT64_C(4) * t->components) *
        sizeof(float);
    plan->launch = (mgk_launch){1, {(size_t)groups_of(d, group_rows) * (size_t)threads, 1, 1}, {(size_t)threads, 1, 1}};
    return CLMGK_OK;
}/* ---- plan --------------------------------------------------------------------------------------------------- */

clmgk_status mgk_mixture_plan_forward(const mgk_mixture_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    static const mgk_array buffers[] = {
        MGK_Q,       MGK_K,         MGK_V,       MGK_O,         MGK_LSE,  MGK_PRIOR,  MGK_VARIANCE, MGK_SHIFT,
        MGK_LENGTHS, MGK_LENGTHS_Q, MGK_OFFSETS, MGK_OFFSETS_K, MGK_BIAS, MGK_SLOPES, MGK_SINKS,    MGK_WORKSPACE};
}
