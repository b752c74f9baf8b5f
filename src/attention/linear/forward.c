/* SPDX-License-Identifier: Apache-2.0 */
/* Linear family, forward pass: states of ranges of chunks, their sums, and the outputs. */
#include "attention/linear/linear.h"

/* True if keys join the state one by one; also for few tokens, where products share nothing. */
static bool by_steps(const mgk_linear_pass *x)
{
    enum { FEW = 4 };
    const clmgk_attention_desc *const d = x->request->limits;
    return mgk_linear_by_steps(x) || (d->causal && d->length <= FEW && d->length_k <= FEW);
}

/* Tiles of linear_apply or linear_steps, and of the features (cl/linear/forward.cl, steps.cl, block.clh). */
static int64_t tiles_of(const mgk_linear_pass *x)
{
    const bool private_tiles = x->request->engine->private_tiles;
    const int64_t chunk = x->chunk, values = x->value_block, pad = private_tiles ? 0 : MGK_LINEAR_PAD;
    const int64_t features = x->feature_block + pad, copied = values + (x->block.flags.TF32_PRODUCTS > 0 ? pad : 0);
    const int64_t totals = by_steps(x) ? features : 0, pairs = by_steps(x) ? 0 : chunk + pad;
    const int64_t of_causal = x->request->desc->causal ? chunk * (features + copied + totals + pairs) : 0;
    const int64_t of_map = x->request->desc->feature == CLMGK_FEATURE_FAVOR ? chunk * (features + 1) : 16;
    const int64_t inputs = mgk_linear_has_inputs(x) ? x->request->traits.head_size + pad : 0;
    const int64_t of_scales = (by_steps(x) ? 2 : 1) * x->feature_block + 16;
    return chunk * (inputs + features + values + 8) + of_causal + of_map + of_scales;
}

MGK_BINDING(bind_forward, MGK_LINEAR_FORWARD_BUFFERS)

clmgk_status mgk_linear_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    static const char file[] = "linear/forward.cl";
    static const mgk_linear_costs costs = {.tiles = tiles_of};
    mgk_linear_pass x;
    MGK_TRY(mgk_linear_begin(request, &costs, plan, &x, error));
    const int64_t slots = x.problems * (request->traits.value_size / x.value_block);
    const int64_t groups = slots * x.args.splits;
    x.args.region[MGK_LINEAR_STATES] = mgk_steps_region(&plan->steps, groups * mgk_linear_slot_floats(&x));
    mgk_linear_add_projection(&x);
    if (groups > 0 && (!request->desc->causal || x.args.splits > 1))
        mgk_linear_add(&x, file, "linear_states", bind_forward, groups, 0);
    if (x.args.splits > 1)
        mgk_linear_add(&x, file, "linear_prefix", bind_forward, 0, slots * mgk_linear_state_floats(&x));
    plan->steps.main = plan->steps.count;
    if (by_steps(&x))
        mgk_linear_add(&x, "linear/steps.cl", "linear_steps", bind_forward, groups, 0);
    else
        mgk_linear_add(&x, file, "linear_apply", bind_forward, groups, 0);
    if (x.args.stores_apart)
        mgk_linear_add(&x, "linear/keep.cl", "linear_keep", bind_forward, slots, 0);
    return CLMGK_OK;
}
