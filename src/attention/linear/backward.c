/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear family, backward pass: states of keys as in the forward pass, rows, sums of their states, keys, and remaining
 * sums (formulas: cl/linear/backward_rows.cl, backward_keys.cl).
 */
#include "attention/core/backward.h"
#include "attention/linear/linear.h"

typedef struct linear_backward {
    mgk_linear_pass pass;
    mgk_backward_wants want;
    bool rows;  /* gradients that need the states of rows */
    bool state; /* the gradient of the incoming state */
} linear_backward;

/* Tiles of the larger kernel, the kernel of keys. */
static int64_t tiles_of(const mgk_linear_pass *x)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const bool private_tiles = x->request->engine->private_tiles;
    const int64_t chunk = x->chunk, components = d->components, pad = private_tiles ? 0 : MGK_LINEAR_PAD;
    const int64_t features = x->feature_block + pad, head = x->request->traits.head_size + pad;
    const int64_t values = x->request->traits.value_size + (private_tiles ? 16 : 12);
    const int64_t of_pairs = mgk_linear_by_steps(x) ? 0 : 2 * (chunk + pad);
    const int64_t of_causal = d->causal ? chunk * (values + features + of_pairs) : 0;
    const int64_t of_map = d->feature == CLMGK_FEATURE_FAVOR ? chunk * (features + 1) : 16;
    const int64_t kept = private_tiles && components <= MGK_LINEAR_KEPT ? components : 1;
    return chunk * (2 * head + 2 * values + (3 + kept) * features + 16) + of_causal + of_map;
}

static bool wants(const linear_backward *x, clmgk_gradient gradient)
{
    return mgk_wants(&x->want, gradient);
}

static void set_wants(linear_backward *x)
{
    const clmgk_attention_desc *const d = x->pass.request->desc;
    mgk_flags *const flags = &x->pass.flags;
    x->want = mgk_backward_wants_of(d);
    mgk_backward_set_types(d, flags);
    flags->WANT_Q = wants(x, CLMGK_GRADIENT_Q);
    flags->WANT_K = wants(x, CLMGK_GRADIENT_K);
    flags->WANT_V = wants(x, CLMGK_GRADIENT_V);
    flags->WANT_PRIOR = wants(x, CLMGK_GRADIENT_PRIOR);
    flags->WANT_SHIFT = wants(x, CLMGK_GRADIENT_SHIFT);
    flags->WANT_MIX = wants(x, CLMGK_GRADIENT_MIX);
    flags->WANT_MIX_WEIGHT = wants(x, CLMGK_GRADIENT_MIX_WEIGHT);
    flags->WANT_NOISE = wants(x, CLMGK_GRADIENT_NOISE);
    x->state = wants(x, CLMGK_GRADIENT_STATE_C) || wants(x, CLMGK_GRADIENT_STATE_Z);
    x->rows = flags->WANT_K || flags->WANT_V || flags->WANT_PRIOR || flags->WANT_SHIFT || x->state;
    flags->ROW_STATES = x->rows && (!d->causal || x->pass.args.splits > 1);
}

/* ---- the workspace ------------------------------------------------------------------------------------------- */

static mgk_i64 region(linear_backward *x, int64_t floats)
{
    return mgk_steps_region(&x->pass.plan->steps, floats);
}

/* Work-groups of a kernel that takes `heads` heads together. */
static int64_t groups_of(const linear_backward *x, int64_t heads)
{
    return x->pass.problems / heads * x->pass.args.splits;
}

/* Number of heads of a work-group of rows, and of keys. */
static int64_t row_heads(const linear_backward *x)
{
    return x->pass.flags.MIXED_HEADS ? x->pass.request->desc->heads : 1;
}

static int64_t key_heads(const linear_backward *x)
{
    const clmgk_attention_desc *const d = x->pass.request->desc;
    return x->pass.flags.MIXED_HEADS ? d->heads : d->heads / d->kv_heads;
}

static void place(linear_backward *x)
{
    const clmgk_attention_desc *const d = x->pass.request->desc;
    const mgk_attention_traits *const t = &x->pass.request->traits;
    const mgk_flags *const flags = &x->pass.flags;
    mgk_i64 *const at = x->pass.args.region;
    const int64_t slots = x->pass.problems * x->pass.args.splits, state = mgk_linear_slot_floats(&x->pass);
    const int64_t tile = (int64_t)x->pass.chunk * t->head_size, sums = slots * d->components;
    const bool by_key = d->prior_shape == CLMGK_PRIOR_HMS;
    at[MGK_LINEAR_STATES] = region(x, slots * state);
    at[MGK_LINEAR_TRANSPOSED] = region(x, slots * state);
    at[MGK_LINEAR_ROWS] = region(x, slots * state);
    at[MGK_LINEAR_PART_Q] = region(x, groups_of(x, row_heads(x)) * (flags->MIXED_HEADS ? d->components : 1) * tile);
    at[MGK_LINEAR_PART_K] = region(x, groups_of(x, key_heads(x)) * d->components * tile);
    at[MGK_LINEAR_PART_V] = region(x, groups_of(x, key_heads(x)) * x->pass.chunk * t->value_size);
    if (flags->WANT_PRIOR || flags->WANT_MIX)
        at[MGK_LINEAR_SUMS] =
            region(x, flags->WANT_PRIOR && by_key ? d->batch * d->heads * d->components * d->length_k : sums);
    if (flags->WANT_SHIFT || flags->WANT_MIX_WEIGHT)
        at[MGK_LINEAR_SUMS + 1] = region(x, flags->WANT_SHIFT ? sums * d->head_size : sums);
    if (flags->WANT_NOISE)
        at[MGK_LINEAR_SUMS + 2] = region(x, sums);
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

MGK_BINDING(bind_forward, MGK_LINEAR_FORWARD_BUFFERS)
MGK_BINDING(bind_rows, MGK_LINEAR_ROWS_BUFFERS)
MGK_BINDING(bind_keys, MGK_LINEAR_KEYS_BUFFERS)
MGK_BINDING(bind_states, MGK_LINEAR_GRADIENTS_BUFFERS)

static void add_states(linear_backward *x)
{
    static const char file[] = "linear/forward.cl";
    const int64_t groups = groups_of(x, 1);
    mgk_linear_add_projection(&x->pass);
    if (groups > 0 && (!x->pass.request->desc->causal || x->pass.args.splits > 1))
        mgk_linear_add(&x->pass, file, "linear_states", bind_forward, groups, 0);
    if (x->pass.args.splits > 1)
        mgk_linear_add(&x->pass, file, "linear_prefix", bind_forward, 0,
                       x->pass.problems * mgk_linear_state_floats(&x->pass));
}

static void add_gradients(linear_backward *x)
{
    static const char file[] = "linear/backward_states.cl";
    const int64_t numbers = x->pass.problems * mgk_linear_state_floats(&x->pass);
    x->pass.plan->steps.main = x->pass.plan->steps.count;
    mgk_linear_add(&x->pass, "linear/backward_rows.cl", "linear_backward_rows", bind_rows, groups_of(x, row_heads(x)),
                   0);
    if (!x->rows)
        return;
    /* a single causal range starts from nothing */
    if (!x->pass.request->desc->causal || x->pass.args.splits > 1 || x->pass.request->desc->use_new_state)
        mgk_linear_add(&x->pass, file, "linear_backward_prefix", bind_states, 0, numbers);
    mgk_linear_add(&x->pass, "linear/backward_keys.cl", "linear_backward_keys", bind_keys, groups_of(x, key_heads(x)),
                   0);
    if (x->state)
        mgk_linear_add(&x->pass, file, "linear_backward_state", bind_states, 0, numbers);
}

/* Sums of a region [problems,H,own,inner], own = outputs of a head, over problems and `inner`, for [M] and [M,D] over
 * heads, too. */
static void add_sum(linear_backward *x, clmgk_array out, int number, int64_t own, int64_t inner, bool by_head)
{
    const clmgk_attention_desc *const d = x->pass.request->desc;
    const bool by_key = own > d->components && out == CLMGK_ARRAY_GRAD_PRIOR; /* for all of a packed axis */
    mgk_backward b = {.request = x->pass.request, .plan = x->pass.plan};
    const int64_t head = own * inner, problems = by_key ? d->batch : x->pass.problems / d->heads;
    const mgk_reduction_args r = {.in = x->pass.args.region[MGK_LINEAR_SUMS + number],
                                  .outputs = by_head ? d->heads * own : own,
                                  .row = by_head ? d->heads * own : own,
                                  .inner = inner,
                                  .outer = problems,
                                  .outer_stride = d->heads * head,
                                  .middle = by_head ? 1 : d->heads,
                                  .middle_stride = head,
                                  .scale = 1.0F};
    mgk_backward_add_reduction(&b, out, false, &r);
}

static void add_sums(linear_backward *x)
{
    const clmgk_attention_desc *const d = x->pass.request->desc;
    const int64_t ranges = x->pass.args.splits, components = d->components;
    const bool shared_mix = x->pass.request->traits.shared_mix, by_key = d->prior_shape == CLMGK_PRIOR_HMS;
    const bool shared_prior = d->prior_shape == CLMGK_PRIOR_UNIFORM || d->prior_shape == CLMGK_PRIOR_M;
    if (wants(x, CLMGK_GRADIENT_PRIOR) && by_key)
        add_sum(x, CLMGK_ARRAY_GRAD_PRIOR, 0, components * d->length_k, 1, true);
    else if (wants(x, CLMGK_GRADIENT_PRIOR))
        add_sum(x, CLMGK_ARRAY_GRAD_PRIOR, 0, components, ranges, !shared_prior);
    if (wants(x, CLMGK_GRADIENT_SHIFT))
        add_sum(x, CLMGK_ARRAY_GRAD_SHIFT, 1, components * d->head_size, ranges, true);
    if (wants(x, CLMGK_GRADIENT_MIX))
        add_sum(x, CLMGK_ARRAY_GRAD_MIX, 0, components, ranges, !shared_mix);
    if (wants(x, CLMGK_GRADIENT_MIX_WEIGHT))
        add_sum(x, CLMGK_ARRAY_GRAD_MIX_WEIGHT, 1, components, ranges, true);
    if (wants(x, CLMGK_GRADIENT_NOISE))
        add_sum(x, CLMGK_ARRAY_GRAD_NOISE, 2, components, ranges, false);
}

/* ---- the plan ----------------------------------------------------------------------------------------------- */

clmgk_status mgk_linear_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    /* dPhi and R of the rows, dv and dpsi of the keys; causal: the states of keys and, twice, of rows go on */
    static const mgk_linear_costs costs = {.tiles = tiles_of, .whole_values = true};
    linear_backward x = {.rows = false};
    MGK_TRY(mgk_linear_begin(request, &costs, plan, &x.pass, error));
    const clmgk_attention_desc *const d = request->desc;
    x.pass.args.grad_o = mgk_place_of(&d->grad_o);
    x.pass.args.grad_q = mgk_place_of(&d->grad_q);
    x.pass.args.grad_k = mgk_component_place_of(&d->grad_k);
    x.pass.args.grad_v = mgk_place_of(&d->grad_v);
    set_wants(&x);
    place(&x);
    add_states(&x);
    add_gradients(&x);
    add_sums(&x);
    return CLMGK_OK;
}
