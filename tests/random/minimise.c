/* SPDX-License-Identifier: Apache-2.0 */
#include "random/random.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- a smaller problem with the values of a larger one ----------------------------------------------------------- */

/* Where a problem's axes begin in those of the problem that it was cut from, by their symbols. */
typedef struct origin {
    int64_t b, h, g, m, n, s, d, e, t;
} origin;

static int64_t first_of(const origin *from, char symbol)
{
    const int64_t first[] = {from->b, from->h, from->g, from->m, from->n, from->s, from->d, from->e, from->t};
    const char *const at = strchr("bhgmnsdet", symbol);
    return at ? first[at - "bhgmnsdet"] : 0;
}

static size_t source_of(const th_array *to, const th_array *from, const char *axes, const origin *begin, size_t flat)
{
    int64_t rest = (int64_t)flat, stride = 1, place = 0;
    for (int axis = TH_RANK - 1; axis >= 0; axis--) {
        int64_t index = rest % to->shape[axis] + first_of(begin, axes[axis]);
        rest /= to->shape[axis];
        if (index >= from->shape[axis])
            index = from->shape[axis] - 1;
        place += index * stride;
        stride *= from->shape[axis];
    }
    return (size_t)place;
}

/* At most `most`; offsets end there. */
static void clamp(th_problem *problem, th_name name, int64_t most, bool ends)
{
    const th_array *const array = &problem->array[name];
    for (size_t n = 0; array->used && n < array->count; n++)
        if (array->values[n] > (double)most || (ends && n + 1 == array->count))
            array->values[n] = (double)most;
}

static void copy_values(th_problem *to, const th_problem *from, const origin *begin)
{
    for (th_name name = 0; name <= TH_GRAD_NEW_STATE_Z; name++) {
        const th_array *const source = &from->array[name];
        th_array *const array = &to->array[name];
        const char *const axes = rd_axes_of(&to->desc, name);
        array->offset = source->offset;
        if (!axes || !array->used || !source->used || source->count == 0)
            continue;
        for (size_t n = 0; n < array->count; n++)
            array->values[n] = source->values[source_of(array, source, axes, begin, n)];
    }
    const bool beyond = to->desc.alignment == CLMGK_ALIGN_LENGTHS;
    clamp(to, TH_LENGTHS, to->desc.length_k + (beyond ? to->desc.length : 0), false);
    clamp(to, TH_LENGTHS_Q, to->desc.length, false);
    clamp(to, TH_OFFSETS, to->desc.length, true);
    clamp(to, TH_OFFSETS_K, to->desc.length_k, true);
}

/* ---- the search -------------------------------------------------------------------------------------------------- */

typedef struct search {
    th_session *session;
    rd_case *best;
    uint64_t wrong;
    const rd_fault *fault;
    rd_budget budget;
    int tries;
    struct timespec start;
} search;

static bool is_over(const search *x)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    const double seconds = (double)(now.tv_sec - x->start.tv_sec) + 1e-9 * (double)(now.tv_nsec - x->start.tv_nsec);
    return x->tries >= x->budget.tries || seconds > x->budget.seconds;
}

/* Takes `smaller`, whose arrays are those of the best one from `begin` on, if it is wrong too. */
static bool try_case(search *x, rd_case smaller, const origin *begin)
{
    smaller.problem = (th_problem){0};
    if (is_over(x) || !rd_make_problem(&smaller, 1))
        return false;
    smaller.problem.seed = x->best->problem.seed;
    copy_values(&smaller.problem, &x->best->problem, begin);
    x->tries++;
    const bool wrong = (rd_run(x->session, &smaller, x->fault).wrong & x->wrong) != 0;
    rd_case_free(wrong ? x->best : &smaller);
    if (wrong)
        *x->best = smaller;
    return wrong;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

typedef int64_t *(*axis_of)(clmgk_attention_desc *desc, origin *from, int64_t **first);

static int64_t *axis_n(clmgk_attention_desc *desc, origin *from, int64_t **first)
{
    *first = &from->n;
    return &desc->length;
}

static int64_t *axis_s(clmgk_attention_desc *desc, origin *from, int64_t **first)
{
    *first = &from->s;
    return &desc->length_k;
}

static int64_t *axis_b(clmgk_attention_desc *desc, origin *from, int64_t **first)
{
    *first = &from->b;
    return &desc->batch;
}

static int64_t *axis_d(clmgk_attention_desc *desc, origin *from, int64_t **first)
{
    *first = &from->d;
    return &desc->head_size;
}

static int64_t *axis_e(clmgk_attention_desc *desc, origin *from, int64_t **first)
{
    *first = &from->e;
    return &desc->value_size;
}

static int64_t *axis_m(clmgk_attention_desc *desc, origin *from, int64_t **first)
{
    *first = &from->m;
    return &desc->components;
}

static int64_t *axis_t(clmgk_attention_desc *desc, origin *from, int64_t **first)
{
    *first = &from->t;
    return &desc->sequences;
}

/* What follows from the sizes. */
static void fit(clmgk_attention_desc *desc)
{
    if ((clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_SQUARE) != 0)
        desc->heads = desc->kv_heads = desc->components;
    if (desc->use_bias && desc->bias_batch != 1)
        desc->bias_batch = desc->batch;
    if (desc->use_bias && desc->bias_heads != 1)
        desc->bias_heads = desc->heads;
    if (desc->sequences > 0 && !desc->use_offsets_k)
        desc->length_k = desc->length;
}

/* Makes an axis `size` long: its first elements, or its last ones. */
static bool try_size(search *x, axis_of axis, int64_t size, bool last)
{
    rd_case smaller = *x->best;
    origin from = {0};
    int64_t *first = NULL, *const place = axis(&smaller.desc, &from, &first);
    if (size < 1 || size >= *place)
        return false;
    if (last)
        *first = *place - size;
    *place = size;
    fit(&smaller.desc);
    return try_case(x, smaller, &from);
}

/* One, halves, then one less at a time. */
static bool shrink_axis(search *x, axis_of axis)
{
    origin from = {0};
    int64_t *first = NULL;
    bool any = try_size(x, axis, 1, false) || try_size(x, axis, 1, true);
    for (bool more = true; more && !is_over(x);) {
        const int64_t size = *axis(&x->best->desc, &from, &first);
        more = try_size(x, axis, size / 2, false) || try_size(x, axis, size / 2, true) ||
               try_size(x, axis, size - 1, false) || try_size(x, axis, size - 1, true);
        any = any || more;
    }
    return any;
}

static bool try_heads(search *x, int64_t heads, int64_t kv_heads, bool last)
{
    rd_case smaller = *x->best;
    clmgk_attention_desc *const d = &smaller.desc;
    if (heads >= d->heads)
        return false;
    const origin from = {.h = last ? d->heads - heads : 0, .g = last ? d->kv_heads - kv_heads : 0};
    d->heads = heads;
    d->kv_heads = kv_heads;
    fit(d);
    return try_case(x, smaller, &from);
}

static bool shrink_heads(search *x)
{
    const int64_t ratio = x->best->desc.heads / x->best->desc.kv_heads;
    return try_heads(x, 1, 1, false) || try_heads(x, 1, 1, true) || try_heads(x, ratio, 1, false) ||
           try_heads(x, ratio, 1, true) || try_heads(x, 2, 1, false) || try_heads(x, 2, 2, false);
}

static bool shrink_sizes(search *x)
{
    static const axis_of axes[] = {axis_n, axis_s, axis_b, axis_t, axis_e, axis_d};
    bool any = false;
    for (size_t n = 0; n < TH_COUNT(axes); n++)
        any = shrink_axis(x, axes[n]) || any;
    return shrink_heads(x) || any;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* Drops an option; false if there is none. */
typedef bool (*drop)(rd_case *c);

static bool clear(int32_t *flag)
{
    const bool set = *flag != 0;
    *flag = 0;
    return set;
}

static bool drop_layout(rd_case *c)
{
    const bool any = c->layout != RD_DENSE || c->repeated != 0;
    c->layout = RD_DENSE;
    c->repeated = 0;
    return any;
}

static bool drop_accumulation(rd_case *c)
{
    const bool any = (c->accumulate & c->desc.gradients) != 0;
    c->accumulate = 0;
    return any;
}

static bool drop_grad_lse(rd_case *c)
{
    const bool any = c->grad_lse;
    c->grad_lse = false;
    return any;
}

static bool drop_window(rd_case *c)
{
    return clear(&c->desc.use_window);
}

static bool drop_causal(rd_case *c)
{
    return clear(&c->desc.causal);
}

static bool drop_alignment(rd_case *c)
{
    const bool any = c->desc.alignment != CLMGK_ALIGN_BOTTOM_RIGHT;
    c->desc.alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
    return any;
}

static bool drop_lengths(rd_case *c)
{
    if (c->desc.alignment == CLMGK_ALIGN_LENGTHS)
        c->desc.alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
    return clear(&c->desc.use_lengths);
}

static bool drop_lengths_q(rd_case *c)
{
    return clear(&c->desc.use_lengths_q);
}

static bool drop_bias(rd_case *c)
{
    c->desc.gradients &= ~(uint32_t)CLMGK_GRADIENT_BIAS;
    c->desc.bias_batch = c->desc.bias_heads = c->desc.bias_length = c->desc.bias_length_k = 0;
    return clear(&c->desc.use_bias);
}

static bool drop_alibi(rd_case *c)
{
    return clear(&c->desc.use_alibi);
}

static bool drop_sinks(rd_case *c)
{
    c->desc.gradients &= ~(uint32_t)CLMGK_GRADIENT_SINKS;
    return clear(&c->desc.use_sinks);
}

static bool drop_softcap(rd_case *c)
{
    const bool any = c->desc.softcap > 0.0;
    c->desc.softcap = 0.0;
    return any;
}

static bool drop_dropout(rd_case *c)
{
    const bool any = c->desc.dropout > 0.0;
    c->desc.dropout = 0.0;
    return any;
}

static bool drop_packing(rd_case *c)
{
    const bool any = c->desc.sequences > 0;
    c->desc.sequences = 0;
    c->desc.use_offsets_k = 0;
    return any;
}

static bool drop_prior(rd_case *c)
{
    const bool any = c->desc.prior_shape != CLMGK_PRIOR_UNIFORM;
    c->desc.prior_shape = CLMGK_PRIOR_UNIFORM;
    return any;
}

static bool simplify_prior(rd_case *c)
{
    if (c->desc.prior_shape <= CLMGK_PRIOR_M)
        return false;
    c->desc.prior_shape--;
    return true;
}

static bool drop_variance(rd_case *c)
{
    const bool any = c->desc.variance_shape != CLMGK_VARIANCE_NUMBER || c->desc.variance != 0.0;
    c->desc.variance_shape = CLMGK_VARIANCE_NUMBER;
    c->desc.variance = 0.0;
    return any;
}

static bool drop_weight(rd_case *c)
{
    return clear(&c->desc.use_mix_weight);
}

static bool drop_offset(rd_case *c)
{
    return clear(&c->desc.use_mix_offset);
}

static bool drop_state(rd_case *c)
{
    const uint32_t gradients = CLMGK_GRADIENT_STATE_C | CLMGK_GRADIENT_STATE_Z;
    c->desc.gradients &= ~gradients;
    return clear(&c->desc.use_state);
}

static bool drop_new_state(rd_case *c)
{
    return clear(&c->desc.use_new_state);
}

static bool drop_guard(rd_case *c)
{
    const bool any = c->desc.guard != 0.0;
    c->desc.guard = 0.0;
    return any;
}

static bool drop_map(rd_case *c)
{
    const bool any = c->desc.feature != CLMGK_FEATURE_ELU1;
    c->desc.feature = CLMGK_FEATURE_ELU1;
    c->desc.feature_order = 0;
    c->desc.features = 0;
    return any;
}

/* All arrays have Q's type. */
static bool drop_types(rd_case *c)
{
    clmgk_attention_desc *const d = &c->desc;
    const bool any =
        d->dtype_k != CLMGK_STORAGE_AS_Q || d->dtype_v != CLMGK_STORAGE_AS_Q || d->dtype_o != CLMGK_STORAGE_AS_Q;
    d->dtype_k = d->dtype_v = d->dtype_o = CLMGK_STORAGE_AS_Q;
    return any;
}

static bool drop_half(rd_case *c)
{
    const bool any = c->desc.dtype != CLMGK_DTYPE_F32;
    c->desc.dtype = CLMGK_DTYPE_F32;
    return any;
}

static bool drop_hard(rd_case *c)
{
    const bool any = c->desc.estep == CLMGK_ESTEP_HARD;
    c->desc.estep = CLMGK_ESTEP_SOFT;
    return any;
}

static bool drop_splits(rd_case *c)
{
    bool any = false;
    char *const parameters[] = {c->parameters, c->backward_parameters};
    for (size_t n = 0; n < TH_COUNT(parameters); n++) {
        char *const splits = strstr(parameters[n], "splits=");
        any = any || (splits && splits[strlen("splits=")] != '1');
        if (splits)
            splits[strlen("splits=")] = '1';
    }
    return any;
}

static bool try_drop(search *x, drop option)
{
    rd_case smaller = *x->best;
    const origin from = {0};
    return option(&smaller) && try_case(x, smaller, &from);
}

/* Options of a call, which cost no program. */
static bool drop_masks(search *x)
{
    static const drop options[] = {drop_layout,   drop_window,    drop_causal,    drop_alignment,
                                   drop_lengths,  drop_lengths_q, drop_splits,    drop_accumulation,
                                   drop_grad_lse, drop_state,     drop_new_state, drop_guard};
    bool any = false;
    for (size_t n = 0; n < TH_COUNT(options); n++)
        any = try_drop(x, options[n]) || any;
    return any;
}

/* Options that make another program: all of them at once, else one by one. */
static bool drop_options(search *x)
{
    static const drop options[] = {drop_packing, drop_bias,   drop_alibi, drop_sinks,     drop_softcap,
                                   drop_dropout, drop_prior,  drop_types, drop_half,      drop_variance,
                                   drop_weight,  drop_offset, drop_hard,  simplify_prior, drop_map};
    rd_case smaller = *x->best;
    const origin from = {0};
    bool any = false;
    for (size_t n = 0; n < TH_COUNT(options); n++)
        any = options[n](&smaller) || any;
    if (!any || try_case(x, smaller, &from))
        return any;
    any = false;
    for (size_t n = 0; n < TH_COUNT(options); n++)
        any = try_drop(x, options[n]) || any;
    return any;
}

/* Only the outputs that are wrong, as far as what they come from is still there. */
static void drop_outputs(search *x)
{
    rd_case smaller = *x->best;
    const origin from = {0};
    smaller.desc.gradients &= (uint32_t)(x->wrong >> TH_GRAD_Q);
    smaller.desc.statistics &= (uint32_t)(x->wrong >> TH_RESPONSIBILITIES);
    if (smaller.desc.gradients != x->best->desc.gradients || smaller.desc.statistics != x->best->desc.statistics)
        try_case(x, smaller, &from);
}

int rd_minimise(th_session *session, rd_case *c, uint64_t wrong, const rd_fault *fault, rd_budget budget)
{
    search x = {.session = session, .best = c, .wrong = wrong, .fault = fault, .budget = budget};
    timespec_get(&x.start, TIME_UTC);
    drop_masks(&x);
    shrink_sizes(&x);
    drop_outputs(&x);
    drop_options(&x);
    for (bool more = true; more && !is_over(&x);) {
        more = shrink_axis(&x, axis_m);
        more = drop_masks(&x) || more;
        more = shrink_sizes(&x) || more;
        more = drop_options(&x) || more;
    }
    return x.tries;
}
