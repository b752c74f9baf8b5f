/* SPDX-License-Identifier: Apache-2.0 */
/* Linear family: parameters, flags and arguments of a pass. */
#include "attention/linear/linear.h"
#include "linear/projection_args.clh"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Work-items of a work-group of a kernel without an engine. */
#define ITEMS 64

static int64_t rounded(int64_t count, int64_t to)
{
    return (count + to - 1) / to * to;
}

/* ---- parameters --------------------------------------------------------------------------------------------- */

/* True for maps that are not of one number to one feature. */
static bool has_inputs(clmgk_feature feature)
{
    return feature == CLMGK_FEATURE_DPFP || feature == CLMGK_FEATURE_FAVOR;
}

/* F; maps of one number to one feature have one for each number of D's class. */
static int64_t features_of(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    return has_inputs(d->feature) ? d->features : request->traits.head_size;
}

bool mgk_linear_has_inputs(const mgk_linear_pass *x)
{
    return has_inputs(x->request->desc->feature);
}

/* The largest that pads features by a third at most. */
static int choose_feature_block(int64_t features, int most)
{
    int block = most;
    while (block > 16 && 3 * rounded(features, block) > 4 * rounded(features, 16))
        block /= 2;
    return block;
}

static int64_t local_bytes(mgk_linear_pass *x, const mgk_linear_costs *costs)
{
    x->chunk = mgk_tunable_get(&x->tunables, MGK_NAMED(chunk));
    x->feature_block = mgk_tunable_get(&x->tunables, MGK_NAMED(feature_block));
    return costs->tiles(x) * (int64_t)sizeof(float) + 256;
}

static bool halve(mgk_tunables *p, mgk_tunable_name name)
{
    const int value = mgk_tunable_get(p, name);
    if (value <= 16 || !mgk_tunable_is_default(p, name))
        return false;
    mgk_tunable_default(p, name, value / 2);
    return true;
}

static bool halve_values(mgk_linear_pass *x, const mgk_linear_costs *costs)
{
    if (costs->whole_values || x->value_block % 32 != 0)
        return false;
    x->value_block /= 2;
    return true;
}

static clmgk_status choose_tiles(mgk_linear_pass *x, const mgk_linear_costs *costs, clmgk_error *error)
{
    const clmgk_attention_desc *const d = x->request->limits;
    mgk_tunables *const p = &x->tunables;
    const mgk_engine *const engine = x->request->engine;
    const bool few = d->length <= 16 && d->length_k <= 16;
    const int usual = mgk_tunable_base(p, MGK_NAMED(chunk), x->request->facts->info.device_class);
    mgk_tunable_default(p, MGK_NAMED(chunk), few ? 16 : usual);
    mgk_tunable_default(p, MGK_NAMED(feature_block),
                        choose_feature_block(features_of(x->request), engine->feature_block(x->request->facts)));
    x->value_block = x->request->traits.value_size;
    const int64_t limit = engine->tile_limit(x->request->facts);
    while (local_bytes(x, costs) > limit &&
           (halve_values(x, costs) || halve(p, MGK_NAMED(chunk)) || halve(p, MGK_NAMED(feature_block))))
        continue;
    const int64_t bytes = local_bytes(x, costs);
    if (bytes > limit)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine %s: head_size needs %" PRId64 " bytes of %s memory, expected at most %" PRId64,
                        clmgk_engine_name(engine->value), bytes, engine->private_tiles ? "private" : "local", limit);
    x->block.local_bytes = engine->private_tiles ? 0 : (uint64_t)bytes;
    x->block.private_bytes = engine->private_tiles ? (uint64_t)bytes : 0;
    return CLMGK_OK;
}

/* Number of work-items with a block of 4 x 4 numbers of a chunk's products; at least two warps. */
static int64_t work_items_of(const mgk_linear_pass *x)
{
    enum { LEAST = 64, BLOCK = 16 };
    const int64_t blocks = (int64_t)x->chunk * x->value_block / BLOCK;
    return blocks > LEAST ? blocks : LEAST;
}

/* Tokens of a sequence, on average. */
static int64_t longest_of(const clmgk_attention_desc *d)
{
    return (d->length > d->length_k ? d->length : d->length_k) / (d->sequences > 0 ? d->sequences : 1);
}

/* Fits the engine's work-group to the chunk, whose size is chosen first. */
static clmgk_status fit(mgk_linear_pass *x, const mgk_linear_costs *costs, clmgk_error *error)
{
    const clmgk_attention_desc *const d = x->request->limits;
    /* no block of rows that a larger work-group could share; features are f32, whatever the arrays are */
    mgk_footprint footprint = {.forward = true,
                               .causal = d->causal,
                               .rows = 1,
                               .streamed = longest_of(d),
                               .unit = d->precision >= CLMGK_PRECISION_BF16,
                               .singles = mgk_attention_footprint(x->request).singles,
                               .dtypes = 1U << CLMGK_DTYPE_F32,
                               .precision = d->precision};
    MGK_TRY(mgk_attention_fit(x->request, &footprint, &x->tunables, &x->block, error));
    MGK_TRY(choose_tiles(x, costs, error));
    footprint.work_items = work_items_of(x);
    MGK_TRY(mgk_attention_fit(x->request, &footprint, &x->tunables, &x->block, error));
    return choose_tiles(x, costs, error);
}

/* Ranges where work-groups run one after another: as many as keep all compute units busy. */
static int usual_splits(const mgk_linear_pass *x, int64_t groups, int64_t longest)
{
    const int64_t units = x->request->facts->info.compute_units;
    if (groups % units == 0 && groups >= 2 * units)
        return 1;
    int splits = 1;
    while (splits < longest && groups * splits < 4 * units)
        splits *= 2;
    return splits;
}

/* Work-groups that a compute unit holds; 0: it runs them one after another. Most kernels take no more registers for a
 * work-item (tests/offline, for sm_90). */
static int64_t resident_of(const mgk_linear_pass *x)
{
    enum { REGISTERS = 168 };
    const mgk_unit unit = mgk_unit_of(x->request->facts);
    return unit.registers == 0 ? 0
                               : mgk_resident_groups(&unit, (int64_t)x->block.threads, REGISTERS, x->block.local_bytes);
}

/* Ranges of chunks: as many as fit one wave. Their number depends on the device, so the workspace does not grow with
 * N. */
static int choose_splits(const mgk_linear_pass *x)
{
    enum { CHUNKS_EACH = 4, MOST_SPLITS = 128 };
    const int64_t groups = x->problems * (x->request->traits.value_size / x->value_block);
    const int64_t wave = x->block.resident * x->request->facts->info.compute_units;
    int longest = 1;
    while (longest < MOST_SPLITS && longest_of(x->request->desc) >= INT64_C(2) * longest * CHUNKS_EACH * x->chunk)
        longest *= 2;
    if (groups == 0 || wave == 0)
        return usual_splits(x, groups, longest);
    int splits = 1;
    while (splits < longest && INT64_C(2) * splits * groups <= wave)
        splits *= 2;
    return splits;
}

/* ---- arguments ---------------------------------------------------------------------------------------------- */

static void set_args(mgk_linear_pass *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    enum { COMMON = offsetof(mgk_linear_args, grad_o) };
    _Static_assert(offsetof(mgk_forward_args, parts_lse) == COMMON, "both begin alike");
    const mgk_forward_args common = mgk_attention_args_of(x->request);
    mgk_linear_args *const args = &x->args;
    memcpy(args, &common, COMMON);
    args->mix_head = x->request->traits.shared_mix ? 0 : d->components;
    args->splits = mgk_tunable_get(&x->tunables, MGK_NAMED(splits));
    args->features = (mgk_i32)d->features;
    args->guard = (float)d->guard;
    args->unnormalised = d->unnormalised;
    args->epsilon = (float)d->feature_epsilon;
    args->above = args->epsilon > 0.0F ? nextafterf(args->epsilon, INFINITY) : 0.0F;
    args->uniform_prior = 1.0F / (float)d->components;
    args->pool = (mgk_i32)d->state_pool;
    const bool shared = args->splits > 1 || x->value_block < x->request->traits.value_size || x->flags.MIXED_HEADS;
    args->stores_apart = d->state_pool > 0 && d->use_new_state && d->causal && shared;
}

clmgk_status mgk_linear_begin(const mgk_attention_request *request, const mgk_linear_costs *costs, mgk_pass_plan *plan,
                              mgk_linear_pass *x, clmgk_error *error)
{
    *x = (mgk_linear_pass){.request = request, .plan = plan};
    x->problems = mgk_attention_problems(request->desc) * request->desc->heads;
    MGK_TRY(fit(x, costs, error));
    x->flags = mgk_attention_block_flags(request, &x->block);
    x->flags.FEATURES = (int)rounded(features_of(request), x->feature_block);
    x->flags.VALUE_BLOCK = x->value_block == request->traits.value_size ? 0 : x->value_block;
    x->block.resident = resident_of(x);
    const int splits = choose_splits(x);
    mgk_tunable_default(&x->tunables, MGK_NAMED(splits), splits);
    mgk_tunable_at_most(&x->tunables, MGK_NAMED(splits), splits);
    mgk_attention_limit_splits(request, &x->tunables);
    set_args(x);
    plan->tunables = x->tunables;
    plan->block = x->block;
    return CLMGK_OK;
}

static int64_t state_width(const mgk_linear_pass *x)
{
    return (int64_t)x->flags.FEATURES * (x->flags.MIXED_HEADS ? x->request->traits.components : 1);
}

int64_t mgk_linear_state_floats(const mgk_linear_pass *x)
{
    return state_width(x) * (x->value_block + 1);
}

int64_t mgk_linear_slot_floats(const mgk_linear_pass *x)
{
    const clmgk_feature feature = x->request->desc->feature;
    const bool shifted = feature == CLMGK_FEATURE_EXP || feature == CLMGK_FEATURE_FAVOR;
    return mgk_linear_state_floats(x) + (shifted ? 3 * state_width(x) : 0) + 16;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

void mgk_linear_add(mgk_linear_pass *x, const char *file, const char *name, mgk_binding *bind, int64_t groups,
                    int64_t items)
{
    const mgk_attention_step step = {.file = file,
                                     .name = name,
                                     .flags = x->flags,
                                     .tunables = &x->tunables,
                                     .block = groups > 0 ? &x->block : NULL,
                                     .bind = bind,
                                     .args = &x->args,
                                     .args_bytes = sizeof(x->args),
                                     .global = (size_t)(groups > 0 ? groups : rounded(items, ITEMS)),
                                     .local = ITEMS,
                                     .compiler = x->block.compiler}; /* one program for all kernels of a file */
    mgk_attention_add(&step, x->plan);
}

MGK_BINDING(bind_projection, MGK_LINEAR_PROJECTION_BUFFERS)

void mgk_linear_add_projection(mgk_linear_pass *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    if (d->feature != CLMGK_FEATURE_FAVOR)
        return;
    const int64_t floats = (int64_t)x->flags.FEATURES * x->request->traits.head_size;
    x->args.region[MGK_LINEAR_PROJECTION] = mgk_steps_region(&x->plan->steps, 2 * floats);
    const mgk_linear_projection_args args = {.work = x->args.region[MGK_LINEAR_PROJECTION],
                                             .features = (mgk_i32)d->features,
                                             .head_size = (mgk_i32)d->head_size,
                                             .row = x->flags.FEATURES,
                                             .scale = (float)pow((double)d->head_size, -0.25)};
    const mgk_attention_step step = {.file = "linear/projection.cl",
                                     .name = "linear_projection",
                                     .flags = mgk_attention_flags(x->request),
                                     .bind = bind_projection,
                                     .args = &args,
                                     .args_bytes = sizeof(args),
                                     .global = (size_t)rounded(floats, ITEMS),
                                     .local = ITEMS};
    mgk_attention_add(&step, x->plan);
}
