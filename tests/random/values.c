/* SPDX-License-Identifier: Apache-2.0 */
#include "random/random.h"

#include <float.h>
#include <math.h>

/* ---- magnitudes -------------------------------------------------------------------------------------------------- */

/* Log-uniform, and often 1. */
static double draw_scale(double low, double high, uint64_t *state)
{
    if (th_chance(state, 3))
        return 1.0;
    return low * pow(high / low, th_uniform(state));
}

/* Whether an array has a type of less than f32's range. */
static bool is_narrow(const clmgk_attention_desc *desc)
{
    static const clmgk_array arrays[] = {CLMGK_ARRAY_Q, CLMGK_ARRAY_K, CLMGK_ARRAY_V, CLMGK_ARRAY_O};
    bool narrow = false;
    for (size_t n = 0; n < TH_COUNT(arrays); n++)
        narrow = narrow || clmgk_ref_limits_of(clmgk_array_dtype(desc, arrays[n])).largest < 0x1p127;
    return narrow;
}

/* Scaled values must stay within the range of the storage types. */
static double largest(const clmgk_attention_desc *desc, th_name name)
{
    const uint32_t traits = clmgk_variant_traits(desc->variant);
    /* the gradient of a weight of 0 grows with the exponents that it leaves out, and must fit f32 */
    const bool weighs = (traits & (CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_PRIOR)) != 0;
    const bool exponents = desc->feature == CLMGK_FEATURE_EXP || desc->feature == CLMGK_FEATURE_FAVOR;
    if (exponents && weighs && (name == TH_Q || name == TH_K))
        return 4.0;
    if (!is_narrow(desc))
        return 30.0;
    return name == TH_Q || name == TH_K ? 8.0 : 2.0;
}

static void scale_arrays(th_problem *problem, uint64_t *state)
{
    static const th_name names[] = {TH_Q, TH_K, TH_V, TH_SHIFT, TH_GRAD_O, TH_GRAD_LSE, TH_PRIOR, TH_BIAS, TH_MIX};
    for (size_t n = 0; n < TH_COUNT(names); n++)
        th_scale(problem, names[n], draw_scale(1e-3, largest(&problem->desc, names[n]), state));
    static const th_name states[] = {TH_STATE_C, TH_STATE_Z, TH_STATE_M, TH_GRAD_NEW_STATE_C, TH_GRAD_NEW_STATE_Z};
    for (size_t n = 0; n < TH_COUNT(states); n++)
        if (problem->array[states[n]].used) /* numbers are drawn for the linear family alone */
            th_scale(problem, states[n], draw_scale(1e-3, 30.0, state));
    th_scale(problem, TH_VARIANCE, draw_scale(0.1, 10.0, state));
    th_scale(problem, TH_NOISE, draw_scale(0.1, 10.0, state));
    th_scale(problem, TH_MIX_WEIGHT, draw_scale(0.1, 10.0, state));
    th_scale(problem, TH_MIX_OFFSET, draw_scale(0.1, 10.0, state));
    if (problem->array[TH_MIX_HIDDEN_OFFSET].used) /* a number is drawn for it alone */
        th_scale(problem, TH_MIX_HIDDEN_OFFSET, draw_scale(0.1, 10.0, state));
    th_scale(problem, TH_SLOPES, draw_scale(0.01, 10.0, state));
    static const double sinks[] = {1.0, 1.0, 10.0, 20.0};
    th_scale(problem, TH_SINKS, sinks[th_pick(state, 0, 3)]);
}

/* ---- zeros and ties ---------------------------------------------------------------------------------------------- */

/* All rows of an array become one, or some become 0. */
static void spoil_rows(th_problem *problem, th_name name, uint64_t *state)
{
    const th_array *const array = &problem->array[name];
    const size_t width = (size_t)array->shape[TH_RANK - 1];
    const bool tie = th_chance(state, 12), zero = th_chance(state, 6);
    bool is_zero = false;
    for (size_t n = 0; array->used && n < array->count; n++) {
        if (n % width == 0)
            is_zero = zero && th_chance(state, 4);
        if (tie)
            array->values[n] = array->values[n % width];
        if (is_zero)
            array->values[n] = 0.0;
    }
}

static void zero_some(th_problem *problem, th_name name, int64_t one_in, uint64_t *state)
{
    const th_array *const array = &problem->array[name];
    for (size_t n = 0; array->used && n < array->count; n++)
        if (th_chance(state, one_in))
            array->values[n] = 0.0;
}

/* The bias hides whole keys, or whole rows. */
static void hide(th_problem *problem, uint64_t *state)
{
    const th_array *const bias = &problem->array[TH_BIAS];
    const int64_t keys = bias->shape[4];
    const bool columns = th_chance(state, 2);
    const int64_t every = th_pick(state, 2, 5);
    for (size_t n = 0; bias->used && n < bias->count; n++) {
        const int64_t place = columns ? (int64_t)n % keys : (int64_t)n / keys;
        if (place % every == 1)
            bias->values[n] = -(double)INFINITY;
    }
}

/* Denominators that are differences have few digits, and none where factors are rounded: there noise would be one, too,
 * beside features that may be small. */
static void mix_without_signs(th_problem *problem)
{
    static const th_name names[] = {TH_MIX, TH_MIX_WEIGHT, TH_STATE_Z};
    const bool rounded = problem->desc.precision != CLMGK_PRECISION_EXACT;
    for (size_t i = 0; i < (rounded ? TH_COUNT(names) : 1); i++) {
        const th_array *const array = &problem->array[names[i]];
        for (size_t n = 0; array->used && n < array->count; n++)
            array->values[n] = fabs(array->values[n]);
    }
    if (rounded)
        th_scale(problem, TH_NOISE, 0.0);
}

/* With an alignment by lengths, lengths may lie beyond the keys. */
static void overfill(th_problem *problem, uint64_t *state)
{
    const th_array *const lengths = &problem->array[TH_LENGTHS];
    for (size_t n = 0; lengths->used && n < lengths->count; n++)
        lengths->values[n] += (double)th_pick(state, 0, problem->desc.length);
}

/* Some entries of page tables are no pages. */
static void leave_pool(th_problem *problem, uint64_t *state)
{
    const double others[] = {-1.0, (double)problem->desc.pages, 2147483647.0, -2147483648.0};
    const th_array *const table = &problem->array[TH_PAGE_TABLE];
    for (size_t n = 0; n < table->count; n++)
        if (th_chance(state, 4))
            table->values[n] = others[th_pick(state, 0, TH_COUNT(others) - 1)];
}

/* ---- logits beyond what f32 resolves ----------------------------------------------------------------------------- */

/* Large finite biases as masks of whole keys, of whole rows, or of single pairs. Hidden keys stay hidden. */
static void mask(th_problem *problem, uint64_t *state)
{
    static const double masks[] = {-1e4, -1e9, -1e30, -(double)FLT_MAX, 3e38};
    const th_array *const bias = &problem->array[TH_BIAS];
    const int64_t keys = bias->shape[4], way = th_pick(state, 0, 2), every = th_pick(state, 2, 5);
    const double first = masks[th_pick(state, 0, TH_COUNT(masks) - 1)];
    const double second = th_chance(state, 2) ? first : masks[th_pick(state, 0, TH_COUNT(masks) - 1)];
    for (size_t n = 0; n < bias->count; n++) {
        const int64_t place = way == 0 ? (int64_t)n % keys : (int64_t)n / keys;
        const bool masked = way == 2 ? th_chance(state, every) : place % every == 1;
        if (masked && isfinite(bias->values[n]))
            bias->values[n] = th_chance(state, 2) ? first : second;
    }
}

static double largest_value(const th_array *array)
{
    double largest = 0.0;
    for (size_t n = 0; n < array->count; n++)
        largest = fmax(largest, fabs(array->values[n]));
    return largest;
}

/* Queries and keys so large that products of their largest values reach `size`. */
static void raise_scores(th_problem *problem, double size)
{
    for (th_name name = TH_Q; name <= TH_K; name++) {
        const double limit = 0.5 * clmgk_ref_limits_of(problem->array[name].dtype).largest;
        const double most = largest_value(&problem->array[name]);
        if (most > 0.0)
            th_scale(problem, name, fmin(sqrt(size), limit) / most);
    }
}

/* Queries and keys of 16 bits often agree in an element. With gaussian scores the gradient there is exactly 0, of which
 * a lost row's floor allows no part, though it is the difference of two sums. */
static bool has_ties(const clmgk_attention_desc *d)
{
    const bool gaussian = d->score == CLMGK_SCORE_GAUSSIAN || d->variant == CLMGK_VARIANT_GAUSSIAN;
    return gaussian && clmgk_array_dtype(d, CLMGK_ARRAY_Q) != CLMGK_DTYPE_F32 &&
           clmgk_array_dtype(d, CLMGK_ARRAY_K) != CLMGK_DTYPE_F32;
}

static void make_huge(th_problem *problem, uint64_t *state)
{
    static const double sizes[] = {1e4, 1e6, 1e9};
    if ((clmgk_variant_traits(problem->desc.variant) & CLMGK_TRAIT_LINEAR) != 0)
        return;
    if (problem->array[TH_BIAS].used && th_chance(state, 3))
        mask(problem, state);
    if (th_chance(state, 8) && !has_ties(&problem->desc))
        raise_scores(problem, sizes[th_pick(state, 0, TH_COUNT(sizes) - 1)]);
}

/* Whether token n of an axis belongs to a sequence of `offsets`. */
static bool in_sequence(const th_array *offsets, int64_t n)
{
    bool found = false;
    for (size_t t = 0; t + 1 < offsets->count; t++)
        found = found || (offsets->values[t] <= (double)n && (double)n < offsets->values[t + 1]);
    return found;
}

static void poison_gaps(th_problem *problem, const th_name *names, size_t count, const th_array *offsets)
{
    for (size_t a = 0; a < count; a++) {
        const th_array *const array = &problem->array[names[a]];
        for (size_t n = 0; array->used && n < array->count; n++)
            if (!in_sequence(offsets, (int64_t)n / array->shape[4] % array->shape[3]))
                array->values[n] = (double)NAN;
    }
}

/* NaN wherever lengths and packing hide it. */
static void poison(th_problem *problem)
{
    static const th_name of_keys[] = {TH_K, TH_V}, of_rows[] = {TH_Q, TH_GRAD_O, TH_GRAD_LSE};
    const th_array *const a = problem->array;
    const bool paged = a[TH_PAGE_TABLE].used;
    for (size_t n = 0; n < TH_COUNT(of_keys); n++)
        for (int64_t b = 0; a[TH_LENGTHS].used && !paged && b < problem->desc.batch; b++)
            th_poison(problem, of_keys[n], b, (int64_t)fmax(a[TH_LENGTHS].values[b], 0.0));
    for (size_t n = 0; n < TH_COUNT(of_rows); n++)
        for (int64_t b = 0; a[TH_LENGTHS_Q].used && b < problem->desc.batch; b++)
            th_poison(problem, of_rows[n], b, (int64_t)fmax(a[TH_LENGTHS_Q].values[b], 0.0));
    if (paged)
        th_poison_pages(problem);
    else if (a[TH_OFFSETS].used)
        poison_gaps(problem, of_keys, TH_COUNT(of_keys), a[TH_OFFSETS_K].used ? &a[TH_OFFSETS_K] : &a[TH_OFFSETS]);
    if (a[TH_OFFSETS].used)
        poison_gaps(problem, of_rows, TH_COUNT(of_rows), &a[TH_OFFSETS]);
}

void rd_spoil_values(th_problem *problem, bool apart, uint64_t *state)
{
    static const th_name rows[] = {TH_Q, TH_K, TH_V, TH_GRAD_O};
    scale_arrays(problem, state);
    if ((clmgk_variant_traits(problem->desc.variant) & CLMGK_TRAIT_LINEAR) != 0)
        mix_without_signs(problem);
    for (size_t n = 0; n < TH_COUNT(rows); n++)
        spoil_rows(problem, rows[n], state);
    if (th_chance(state, 4))
        zero_some(problem, TH_PRIOR, 4, state);
    if (th_chance(state, 4))
        zero_some(problem, TH_NOISE, 2, state);
    if (th_chance(state, 6))
        zero_some(problem, TH_MIX, 3, state);
    if (th_chance(state, 3))
        hide(problem, state);
    if (th_chance(state, 8)) {
        const double distance = draw_scale(0.1, largest(&problem->desc, TH_Q), state);
        const uint64_t seed = th_random(state);
        const bool shifted = problem->array[TH_SHIFT].used && th_chance(state, 2);
        th_move(problem, TH_Q, distance, seed);
        th_move(problem, shifted ? TH_SHIFT : TH_K, distance, seed);
    }
    if (problem->desc.alignment == CLMGK_ALIGN_LENGTHS && th_chance(state, 3))
        overfill(problem, state);
    if (problem->array[TH_PAGE_TABLE].used && th_chance(state, 4))
        leave_pool(problem, state);
    make_huge(problem, state); /* late, so that the other draws stay as they are */
    if (th_chance(state, 2) && apart)
        poison(problem);
}
