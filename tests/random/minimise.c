/* SPDX-License-Identifier: Apache-2.0 */
#include "random/random.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- a smaller problem with the values of a larger one ----------------------------------------------------------- */

/* The axes of arrays, by their symbols. */
static const char axes_of_arrays[] = "bhgmuansdet";
enum { AXES = sizeof(axes_of_arrays) - 1 };

/* Where a problem's axes begin in those of the problem that it was cut from. */
typedef struct origin {
    int64_t first[AXES];
} origin;

static int64_t *first_of(origin *from, char axis)
{
    const char *const at = strchr(axes_of_arrays, axis);
    return at ? &from->first[at - axes_of_arrays] : NULL;
}

static size_t source_of(const th_array *to, const th_array *from, const char *axes, origin *begin, size_t flat)
{
    int64_t rest = (int64_t)flat, stride = 1, place = 0;
    for (int axis = TH_RANK - 1; axis >= 0; axis--) {
        const int64_t *const first = first_of(begin, axes[axis]);
        int64_t index = rest % to->shape[axis] + (first ? *first : 0);
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

static void copy_values(th_problem *to, const th_problem *from, origin *begin)
{
    for (th_name name = 0; name < TH_ARRAYS; name++) {
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

/* Tries `smaller`, whose arrays are parts of the best case's, from `begin` on. It becomes the best case if it is wrong
 * too. */
static bool try_case(search *x, rd_case smaller, origin *begin)
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

/* The size of an axis that is no head's. */
static int64_t *size_of(clmgk_attention_desc *desc, char axis)
{
    static const char axes[] = "bmuansdet";
    int64_t *const sizes[] = {&desc->batch,           &desc->components, &desc->mix_hidden,
                              &desc->mix_after_heads, &desc->length,     &desc->length_k,
                              &desc->head_size,       &desc->value_size, &desc->sequences};
    return sizes[strchr(axes, axis) - axes];
}

/* What follows from the sizes. */
static void fit(clmgk_attention_desc *desc)
{
    if ((clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_SQUARE) != 0)
        desc->heads = desc->kv_heads = desc->components;
    if (desc->use_bias && desc->bias_batch != 1)
        desc->bias_batch = desc->batch;
    if (desc->use_bias && desc->bias_heads != 1)
        desc->bias_heads = th_softmax_heads(desc);
    if (desc->sequences > 0 && !desc->use_offsets_k)
        desc->length_k = desc->length;
}

/* Tries a problem with only the first `size` elements of an axis, or the last ones. */
static bool try_size(search *x, char axis, int64_t size, bool last)
{
    rd_case smaller = *x->best;
    origin from = {0};
    int64_t *const place = size_of(&smaller.desc, axis);
    if (size < 1 || size >= *place)
        return false;
    if (last)
        *first_of(&from, axis) = *place - size;
    *place = size;
    fit(&smaller.desc);
    return try_case(x, smaller, &from);
}

/* One, halves, then one less at a time. */
static bool shrink_axis(search *x, char axis)
{
    bool any = try_size(x, axis, 1, false) || try_size(x, axis, 1, true);
    for (bool more = true; more && !is_over(x);) {
        const int64_t size = *size_of(&x->best->desc, axis);
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
    origin from = {0};
    *first_of(&from, 'h') = last ? d->heads - heads : 0;
    *first_of(&from, 'g') = last ? d->kv_heads - kv_heads : 0;
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
    bool any = false;
    for (const char *axis = "nsbted"; *axis != '\0'; axis++)
        any = shrink_axis(x, *axis) || any;
    return shrink_heads(x) || any;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* An option that a smaller case drops: a flag or an enumeration of the descriptor, which becomes 0, or a function,
 * which returns false if there is nothing to drop. */
typedef struct option {
    size_t field; /* its place in a case */
    bool (*drop)(rd_case *c);
} option;
#define FIELD(name)                                                                                                    \
    {                                                                                                                  \
        offsetof(rd_case, desc.name), NULL                                                                             \
    }
#define DROP(name)                                                                                                     \
    {                                                                                                                  \
        0, drop_##name                                                                                                 \
    }

static bool clear(int32_t *field)
{
    const bool set = *field != 0;
    *field = 0;
    return set;
}
_Static_assert(sizeof(clmgk_dtype) == sizeof(int32_t), "clear() takes enumerations, too");

static bool clear_number(double *number)
{
    const bool set = *number != 0.0;
    *number = 0.0;
    return set;
}

static bool drop(rd_case *c, const option *o)
{
    return o->drop ? o->drop(c) : clear((int32_t *)(void *)((unsigned char *)c + o->field));
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

static bool drop_lengths(rd_case *c)
{
    if (c->desc.alignment == CLMGK_ALIGN_LENGTHS)
        c->desc.alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
    return clear(&c->desc.use_lengths);
}

static bool drop_window(rd_case *c)
{
    c->desc.window_left = c->desc.window_right = 0;
    return clear(&c->desc.use_window);
}

static bool drop_bias(rd_case *c)
{
    c->desc.gradients &= ~(uint32_t)CLMGK_GRADIENT_BIAS;
    c->desc.bias_batch = c->desc.bias_heads = c->desc.bias_length = c->desc.bias_length_k = 0;
    return clear(&c->desc.use_bias);
}

static bool drop_sinks(rd_case *c)
{
    c->desc.gradients &= ~(uint32_t)CLMGK_GRADIENT_SINKS;
    return clear(&c->desc.use_sinks);
}

static bool drop_softcap(rd_case *c)
{
    return clear_number(&c->desc.softcap);
}

static bool drop_dropout(rd_case *c)
{
    return clear_number(&c->desc.dropout);
}

static bool drop_packing(rd_case *c)
{
    const bool any = c->desc.sequences > 0;
    c->desc.sequences = 0;
    c->desc.use_offsets_k = 0;
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

static bool drop_state(rd_case *c)
{
    const uint32_t gradients = CLMGK_GRADIENT_STATE_C | CLMGK_GRADIENT_STATE_Z;
    c->desc.gradients &= ~gradients;
    return clear(&c->desc.use_state);
}

static bool drop_guard(rd_case *c)
{
    return clear_number(&c->desc.guard);
}

static bool drop_epsilon(rd_case *c)
{
    return clear_number(&c->desc.feature_epsilon);
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

static bool try_drop(search *x, const option *o)
{
    rd_case smaller = *x->best;
    origin from = {0};
    return drop(&smaller, o) && try_case(x, smaller, &from);
}

/* Options of a call, which cost no program. */
static bool drop_masks(search *x)
{
    static const option options[] = {DROP(layout),   DROP(window),         FIELD(causal),        FIELD(alignment),
                                     DROP(lengths),  FIELD(use_lengths_q), DROP(splits),         DROP(accumulation),
                                     DROP(grad_lse), DROP(state),          FIELD(use_new_state), DROP(guard),
                                     DROP(epsilon),  FIELD(unnormalised)};
    bool any = false;
    for (size_t n = 0; n < TH_COUNT(options); n++)
        any = try_drop(x, &options[n]) || any;
    return any;
}

/* Options that make another program: all of them at once, else one by one. */
static bool drop_options(search *x)
{
    static const option options[] = {DROP(packing),
                                     DROP(bias),
                                     FIELD(use_alibi),
                                     DROP(sinks),
                                     DROP(softcap),
                                     DROP(dropout),
                                     FIELD(prior_shape),
                                     DROP(types),
                                     FIELD(dtype),
                                     DROP(variance),
                                     FIELD(use_mix_weight),
                                     FIELD(use_mix_offset),
                                     FIELD(use_mix_hidden_offset),
                                     FIELD(estep),
                                     {0, simplify_prior},
                                     DROP(map)};
    rd_case smaller = *x->best;
    origin from = {0};
    bool any = false;
    for (size_t n = 0; n < TH_COUNT(options); n++)
        any = drop(&smaller, &options[n]) || any;
    if (!any || try_case(x, smaller, &from))
        return any;
    any = false;
    for (size_t n = 0; n < TH_COUNT(options); n++)
        any = try_drop(x, &options[n]) || any;
    return any;
}

/* Requests only the wrong outputs. */
static void drop_outputs(search *x)
{
    rd_case smaller = *x->best;
    origin from = {0};
    smaller.desc.gradients &= (uint32_t)(x->wrong >> TH_GRAD_Q);
    smaller.desc.statistics &= (uint32_t)(x->wrong >> TH_RESPONSIBILITIES);
    if (smaller.desc.gradients != x->best->desc.gradients || smaller.desc.statistics != x->best->desc.statistics)
        try_case(x, smaller, &from);
}

int rd_minimise(th_session *session, rd_case *c, uint64_t wrong, const rd_fault *fault, rd_budget budget)
{
    search x = {.session = session, .best = c, .wrong = wrong, .fault = fault, .budget = budget};
    if (c->desc.page_size > 0)
        return 0;
    timespec_get(&x.start, TIME_UTC);
    drop_masks(&x);
    shrink_sizes(&x);
    drop_outputs(&x);
    drop_options(&x);
    for (bool more = true; more && !is_over(&x);) {
        more = shrink_axis(&x, 'm');
        more = shrink_axis(&x, 'u') || more;
        more = shrink_axis(&x, 'a') || more;
        more = drop_masks(&x) || more;
        more = shrink_sizes(&x) || more;
        more = drop_options(&x) || more;
    }
    return x.tries;
}
