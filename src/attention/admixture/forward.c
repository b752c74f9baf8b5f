/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family, forward pass: engine parameters and launch. */
#include "attention/admixture/admixture.h"

/* What the engine's parameters make of a work-group. */
typedef struct forward_group {
    mgk_tunables tunables;
    int64_t rows;
    int64_t head_groups;
    size_t threads;
    uint64_t local_bytes;
    uint64_t private_bytes;
} forward_group;

static int64_t head_groups(const clmgk_attention_desc *d, int64_t heads)
{
    return (d->heads + heads - 1) / heads;
}

/* MiSH where nothing differs by head before the values: one softmax for all. */
static bool shares_softmax(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    return t->shared_mix && (!t->noise || t->shared_noise) && !d->use_alibi && d->dropout == 0.0 &&
           (!d->use_bias || d->bias_heads == 1);
}

/* ---- parameters: lane --------------------------------------------------------------------------------------- */

/* Arrays of a block may be somewhat larger than a core's
 * second-level cache: fewer blocks stream tiles from behind it. */
#define LANE_BLOCK_BYTES (INT64_C(1280) << 10)
/* Scores that are held should stay in the first-level cache, but a tile shorter than 32 keys costs more. */
#define LANE_HELD_BYTES (INT64_C(16) << 10)

/* Floats of the private arrays for so many heads and value heads (cl/engine/lane.clh). */
static int64_t lane_arrays(const mgk_attention_request *request, const mgk_tunables *p, int64_t tile, int64_t panels,
                           int64_t heads, int64_t value_heads)
{
    const mgk_attention_traits *const t = &request->traits;
    const int64_t panel_rows = (int64_t)mgk_tunable_get(p, "lanes") * mgk_tunable_get(p, "vectors");
    const int64_t keys = (int64_t)t->components * t->head_size;
    const int64_t slots = mgk_admixture_held(t) + 1 + (request->desc->use_bias ? 1 : 0);
    return panels * panel_rows * (keys + heads * (t->value_size + 2)) + slots * tile * panel_rows +
           tile * (keys + value_heads * t->value_size) + t->components + 24 * heads;
}

/* Of them, what is gone over for every tile: arrays are made for `heads` heads whether there are so many or not. */
static int64_t lane_floats(const mgk_attention_request *request, const mgk_tunables *p, int64_t tile, int64_t panels,
                           int64_t heads)
{
    const clmgk_attention_desc *const d = request->desc;
    return lane_arrays(request, p, tile, panels, heads < d->heads ? heads : d->heads,
                       heads < d->kv_heads ? heads : d->kv_heads);
}

/* As many heads as fit beside one panel; fewer where blocks of rows alone can't keep the compute units busy. */
static void lane_heads(const mgk_attention_request *request, mgk_tunables *p)
{
    const clmgk_attention_desc *const d = request->desc;
    const int64_t panel_rows = (int64_t)mgk_tunable_get(p, "lanes") * mgk_tunable_get(p, "vectors");
    int heads = mgk_admixture_heads(d->heads);
    while (heads > 1 && (lane_floats(request, p, 16, 1, heads) * 4 > mgk_attention_lane_limit(request) / 2 ||
                         mgk_attention_busy_groups(d, head_groups(d, heads), panel_rows) <
                             (int64_t)request->facts->info.compute_units))
        heads /= 2;
    mgk_tunable_default(p, "heads", heads);
}

/* The most panels that keep the compute units busy and fit into the cache beside a short tile: every tile of keys and
 * values comes from farther away, once for all panels. Then the longest tile. */
static void lane_panels(const mgk_attention_request *request, mgk_tunables *p)
{
    const clmgk_attention_desc *const d = request->desc;
    const int64_t panel_rows = (int64_t)mgk_tunable_get(p, "lanes") * mgk_tunable_get(p, "vectors");
    const int64_t heads = mgk_tunable_get(p, "heads");
    int panels = mgk_attention_base(request, p, "panels"), tile = mgk_attention_base(request, p, "tile");
    while (panels > 1 && (lane_floats(request, p, 16, panels, heads) * 4 > LANE_BLOCK_BYTES ||
                          mgk_attention_rows(d) <= (int64_t)panels / 2 * panel_rows ||
                          mgk_attention_busy_groups(d, head_groups(d, heads), panels * panel_rows) <
                              4 * (int64_t)request->facts->info.compute_units))
        panels /= 2;
    const int64_t held = mgk_admixture_held(&request->traits);
    while (tile > 16 && (lane_floats(request, p, tile, panels, heads) * 4 > LANE_BLOCK_BYTES ||
                         (tile > 32 && held * tile * panel_rows * 4 > LANE_HELD_BYTES)))
        tile /= 2;
    mgk_tunable_default(p, "tile", tile);
    mgk_tunable_default(p, "panels", panels);
    mgk_tunable_at_most(p, "panels", panels);
}

static clmgk_status lane_group(const mgk_attention_request *request, forward_group *group, clmgk_error *error)
{
    mgk_tunables *const p = &group->tunables;
    mgk_attention_lane_defaults(request, p);
    const int lanes = mgk_tunable_get(p, "lanes");
    mgk_tunable_default(p, "vectors",
                        mgk_attention_rows(request->desc) <= lanes ? 1 : mgk_attention_base(request, p, "vectors"));
    lane_heads(request, p);
    lane_panels(request, p);

    MGK_TRY(mgk_tunables_check(p, true, error));
    const int64_t heads = mgk_tunable_get(p, "heads");
    const int64_t bytes =
        lane_arrays(request, p, mgk_tunable_get(p, "tile"), mgk_tunable_get(p, "panels"), heads, heads) *
        (int64_t)sizeof(float);
    MGK_TRY(mgk_attention_lane_fits(request, bytes, error));
    group->private_bytes = (uint64_t)bytes;
    group->rows = (int64_t)lanes * mgk_tunable_get(p, "vectors") * mgk_tunable_get(p, "panels");
    group->threads = 1;
    return CLMGK_OK;
}

/* ---- parameters: SIMT --------------------------------------------------------------------------------------- */

/* Registers that a work-item's accumulators, and its held scores, may take: more spill. */
#define SIMT_ACCUMULATORS 64
#define SIMT_HELD         16

static int64_t simt_local_bytes(const mgk_attention_traits *t, const mgk_tunables *p)
{
    const int64_t rows = (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "rows");
    const int64_t key_threads = mgk_tunable_get(p, "key-threads"), keys = key_threads * mgk_tunable_get(p, "keys");
    const int64_t products = mgk_tunable_get(p, "features") * (rows + keys);
    const int64_t values = (int64_t)mgk_tunable_get(p, "values") * t->value_size;
    const int64_t weights = (keys > key_threads ? keys : key_threads) * rows;
    return ((products > values ? products : values) + weights) * (int64_t)sizeof(float) + 64;
}

static void simt_defaults(const mgk_attention_request *request, mgk_tunables *p)
{
    const mgk_attention_traits *const t = &request->traits;
    const bool cpu = request->facts->info.device_class == CLMGK_DEVICE_CPU;
    const int held = (int)mgk_admixture_held(t);
    mgk_attention_simt_defaults(request, p);
    int rows = mgk_attention_base(request, p, "rows"), keys = mgk_attention_base(request, p, "keys");
    const int values = t->value_size / mgk_tunable_get(p, "key-threads");
    while (rows > 1 && (rows * values > SIMT_ACCUMULATORS || rows * keys * held > 2 * SIMT_HELD))
        rows /= 2;
    /* noise, relu and modifiers take registers of their own (tests/offline) */
    const int own = (t->noise || t->generalised ? 4 : 1) * (t->modified ? 2 : 1);
    while (keys > 1 && rows * keys * held > SIMT_HELD / (t->modified ? 2 : 1))
        keys /= 2;
    mgk_tunable_default(p, "rows", rows);
    mgk_tunable_default(p, "keys", keys);
    /* on a CPU this engine is for tests: few copies of the text compile faster */
    int heads = cpu ? 1 : mgk_admixture_heads(request->desc->heads);
    while (heads > 1 && heads * mgk_tunable_get(p, "rows") * values > SIMT_ACCUMULATORS / own)
        heads /= 2;
    mgk_tunable_default(p, "heads", heads);
}

static clmgk_status simt_group(const mgk_attention_request *request, forward_group *group, clmgk_error *error)
{
    const mgk_attention_traits *const t = &request->traits;
    mgk_tunables *const p = &group->tunables;
    simt_defaults(request, p);
    MGK_TRY(mgk_admixture_simt_fit(request, p, simt_local_bytes, error));
    const int64_t rows = mgk_tunable_get(p, "rows"), heads = mgk_tunable_get(p, "heads");
    const int64_t held = mgk_admixture_held(t) * mgk_tunable_get(p, "keys");
    const int64_t values = heads * (t->value_size / mgk_tunable_get(p, "key-threads") + 2);
    group->local_bytes = (uint64_t)simt_local_bytes(t, p);
    group->private_bytes = (uint64_t)(rows * (values + held) + 24 * heads + t->components) * sizeof(float);
    group->rows = mgk_tunable_get(p, "row-threads") * rows;
    group->threads = (size_t)mgk_tunable_get(p, "row-threads") * (size_t)mgk_tunable_get(p, "key-threads");
    return CLMGK_OK;
}

/* ---- the plan ----------------------------------------------------------------------------------------------- */

static clmgk_status group_of(const mgk_attention_request *request, forward_group *group, clmgk_error *error)
{
    *group = (forward_group){.tunables = mgk_tunables_of(request->engine, true)};
    mgk_tunables *const p = &group->tunables;
    const bool lane = request->engine == CLMGK_ENGINE_LANE;
    MGK_TRY(mgk_tunables_read(p, &request->parameters, error));
    MGK_TRY(lane ? lane_group(request, group, error) : simt_group(request, group, error));
    group->head_groups = head_groups(request->desc, mgk_tunable_get(p, "heads"));
    const int tile = lane ? mgk_tunable_get(p, "tile") : mgk_tunable_get(p, "key-threads") * mgk_tunable_get(p, "keys");
    mgk_tunable_default(p, "splits", mgk_attention_splits(request, group->head_groups, group->rows, tile));
    return CLMGK_OK;
}

static void add_forward(const mgk_attention_request *request, const forward_group *group,
                        const mgk_attention_args *args, mgk_pass_plan *plan)
{
    static const clmgk_array buffers[] = {
        CLMGK_ARRAY_Q,         CLMGK_ARRAY_K,          CLMGK_ARRAY_V,          CLMGK_ARRAY_O,     CLMGK_ARRAY_LSE,
        CLMGK_ARRAY_MIX,       CLMGK_ARRAY_MIX_WEIGHT, CLMGK_ARRAY_MIX_OFFSET, CLMGK_ARRAY_NOISE, CLMGK_ARRAY_LENGTHS,
        CLMGK_ARRAY_LENGTHS_Q, CLMGK_ARRAY_OFFSETS,    CLMGK_ARRAY_OFFSETS_K,  CLMGK_ARRAY_BIAS,  CLMGK_ARRAY_SLOPES,
        CLMGK_ARRAY_SINKS,     CLMGK_ARRAY_WORKSPACE};
    const int64_t groups = mgk_attention_groups(request->desc, group->head_groups, group->rows);
    mgk_flags flags = mgk_attention_flags(request);
    flags.SHARED_SOFTMAX = shares_softmax(request);
    flags.SPLIT_KEYS = args->splits > 1;
    if (request->engine == CLMGK_ENGINE_LANE)
        mgk_attention_lane_flags(request, &group->tunables, &flags);
    const mgk_attention_step step = {.file = "admixture/forward.cl",
                                     .name = "admixture_forward",
                                     .flags = flags,
                                     .tunables = &group->tunables,
                                     .buffers = buffers,
                                     .buffer_count = MGK_COUNT(buffers),
                                     .out = CLMGK_ARRAYS,
                                     .global = (size_t)(groups * args->splits) * group->threads,
                                     .local = group->threads};
    mgk_kernel_plan *const kernel = mgk_attention_add(&step, args, plan);
    kernel->local_bytes = group->local_bytes;
    kernel->private_bytes = group->private_bytes;
}

clmgk_status mgk_admixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    forward_group group;
    MGK_TRY(group_of(request, &group, error));
    plan->tunables = group.tunables;
    plan->main = plan->steps;
    mgk_attention_args args = mgk_admixture_args_of(request);
    MGK_TRY(mgk_attention_forward_splits(request, plan, &args, error));
    add_forward(request, &group, &args, plan);
    if (args.splits > 1)
        mgk_attention_add_combine(request, true, &args, plan);
    return CLMGK_OK;
}
