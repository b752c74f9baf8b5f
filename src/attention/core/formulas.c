/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/core/formulas.h"

#include "attention/core/arrays.h"

#include <inttypes.h>

/* The largest captured array whose gradient a read of any index may have. */
#define MOST_ENTRIES 65536

_Static_assert(CLMGK_MAX_CAPTURES == MGK_CAPTURES && CLMGK_MAX_CAPTURE_AXES == MGK_READ_AXES &&
                   CLMGK_MAX_NUMBERS == MGK_NUMBERS,
               "the language's limits are the descriptor's");

bool mgk_has_texts(const clmgk_attention_desc *desc)
{
    return desc->score_mod != NULL || desc->mask_mod != NULL;
}

bool mgk_has_mods(const clmgk_attention_desc *desc)
{
    return mgk_has_texts(desc) || desc->use_mask_blocks;
}

int mgk_count_captures(const clmgk_attention_desc *d)
{
    int count = 0;
    while (count < CLMGK_MAX_CAPTURES && d->captures[count].name != NULL)
        ++count;
    return count;
}

clmgk_status mgk_formulas_of(const clmgk_attention_desc *desc, const clmgk_allocator *allocator, mgk_formulas *formulas,
                             clmgk_error *error)
{
    mgk_symbol captures[CLMGK_MAX_CAPTURES];
    const int count = mgk_count_captures(desc);
    for (int c = 0; c < count; ++c)
        captures[c] = (mgk_symbol){.name = desc->captures[c].name,
                                   .type = desc->captures[c].type == CLMGK_CAPTURE_I32 ? MGK_INT : MGK_FLOAT,
                                   .axes = desc->captures[c].axes};
    _Static_assert(CLMGK_GRADIENT_NUMBERS == CLMGK_GRADIENT_CAPTURE_0 << MGK_CAPTURES, "the order of the gradients");
    const mgk_formula_texts texts = {
        .symbols = {captures, (size_t)count, desc->numbers, (size_t)mgk_count_numbers(desc)},
        .score = desc->score_mod,
        .mask = desc->mask_mod,
        .gradients = (desc->gradients & MGK_GRADIENTS_OF_TEXTS) / CLMGK_GRADIENT_CAPTURE_0};
    return mgk_formulas_make(allocator, &texts, formulas, error);
}

/* ---- checks -------------------------------------------------------------------------------------------------------
 */

/* The field that has no meaning without a text; NULL: there is none. */
static const char *idle_field(const clmgk_attention_desc *d)
{
    return d->captures[0].name != NULL ? "captures" : d->numbers[0] != NULL ? "numbers" : NULL;
}

static clmgk_status resolve_capture(clmgk_capture *capture, int number, clmgk_error *error)
{
    if ((int)capture->type < 0 || capture->type > CLMGK_CAPTURE_I32)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "captures[%d].type: %d: expected 0 to %d", number,
                        (int)capture->type, (int)CLMGK_CAPTURE_I32);
    if (capture->axes < 1 || capture->axes > CLMGK_MAX_CAPTURE_AXES)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "captures[%d].axes: %d: expected 1 to %d", number,
                        (int)capture->axes, CLMGK_MAX_CAPTURE_AXES);
    if (capture->strided != 0 && capture->strided != 1)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "captures[%d].strided: %d: expected 0 or 1", number,
                        (int)capture->strided);
    int64_t dense = 1;
    for (int axis = capture->axes - 1; axis >= 0; --axis) {
        if (capture->shape[axis] < 1 || capture->shape[axis] > MGK_MAX_AXIS)
            return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                            "captures[%d].shape[%d]: %" PRId64 ": expected 1 to %" PRId64, number, axis,
                            capture->shape[axis], MGK_MAX_AXIS);
        if (!capture->strided)
            capture->strides[axis] = dense;
        if (capture->strides[axis] < 0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                            "captures[%d].strides[%d]: %" PRId64 ": expected 0 or more", number, axis,
                            capture->strides[axis]);
        if (!mgk_mul_i64(dense, capture->shape[axis], &dense))
            return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "captures[%d]: its size in elements does not fit in 64 bits",
                            number);
    }
    capture->strided = 1;
    return CLMGK_OK;
}

/* Requested gradients have their arrays. */
static clmgk_status check_requests(const clmgk_attention_desc *d, clmgk_error *error)
{
    for (int c = 0; c <= CLMGK_MAX_CAPTURES; ++c) {
        const clmgk_array gradient = (clmgk_array)(CLMGK_ARRAY_GRAD_CAPTURE_0 + c);
        if ((d->gradients & CLMGK_GRADIENT_CAPTURE_0 << c) == 0 || mgk_array_exists(d, gradient))
            continue;
        if (c == CLMGK_MAX_CAPTURES)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: NUMBERS: expected score_mod with numbers");
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "gradients: CAPTURE_%d: expected score_mod, and floats in captures[%d]", c, c);
    }
    return CLMGK_OK;
}

static clmgk_status check_reads(const clmgk_attention_desc *d, const mgk_formulas *formulas, clmgk_error *error)
{
    for (size_t k = 0; k < formulas->read_count; ++k) {
        const mgk_read *const read = &formulas->reads[k];
        const clmgk_capture *const capture = &d->captures[read->capture];
        int64_t entries = 1;
        for (int axis = 0; axis < capture->axes; ++axis)
            entries *= capture->shape[axis]; /* fits: resolve_capture */
        if (read->index == MGK_INDEX_ANY && entries > MOST_ENTRIES)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                            "gradients: CAPTURE_%d: '%s' has %" PRId64
                            " elements, and an index that depends on i and j, "
                            "but not on i - j alone: expected at most %d elements",
                            (int)read->capture, capture->name, entries, MOST_ENTRIES);
    }
    return CLMGK_OK;
}

clmgk_status mgk_resolve_texts(clmgk_attention_desc *desc, clmgk_error *error)
{
    if (mgk_has_texts(desc) && mgk_has_trait(desc, CLMGK_TRAIT_LINEAR))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: expected NULL with variant %s, which has no scores",
                        desc->score_mod != NULL ? "score_mod" : "mask_mod", clmgk_variant_name(desc->variant));
    if (!mgk_has_texts(desc) && idle_field(desc) != NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: expected none, or score_mod or mask_mod with them",
                        idle_field(desc));
    const int count = mgk_count_captures(desc);
    for (int c = 0; c < count; ++c)
        MGK_TRY(resolve_capture(&desc->captures[c], c, error));
    for (int c = count; c < CLMGK_MAX_CAPTURES; ++c)
        desc->captures[c] = (clmgk_capture){.name = NULL};
    MGK_TRY(check_requests(desc, error));
    if (!mgk_has_texts(desc))
        return CLMGK_OK;
    mgk_formulas formulas;
    MGK_TRY(mgk_formulas_of(desc, NULL, &formulas, error));
    const clmgk_status status = check_reads(desc, &formulas, error);
    mgk_formulas_free(&formulas);
    return status;
}

/* ---- masks that are windows ---------------------------------------------------------------------------------------
 */

/* The narrower one of two sides; -1: no limit. */
static int64_t narrower(int64_t a, int64_t b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

static int64_t side_of(int64_t limit)
{
    return limit < MGK_MAX_AXIS ? limit : -1;
}

/* Whether the band is a window around the descriptor's diagonal, which may be chosen where nothing else asks for it. */
static bool fits_diagonal(const clmgk_attention_desc *d, const mgk_band *band)
{
    const bool asked = d->causal || d->use_window || d->use_alibi;
    const bool same = d->alignment == (band->at_end ? CLMGK_ALIGN_BOTTOM_RIGHT : CLMGK_ALIGN_TOP_LEFT);
    return band->low <= 0 && band->high >= 0 && (!asked || same);
}

static void set_window(clmgk_attention_desc *d, const mgk_band *band)
{
    const int64_t left = side_of(band->low == INT64_MIN ? MGK_MAX_AXIS : -band->low), right = side_of(band->high);
    d->window_left = narrower(d->use_window ? d->window_left : -1, left);
    d->window_right = narrower(d->causal ? 0 : d->use_window ? d->window_right : -1, right);
    d->alignment = band->at_end ? CLMGK_ALIGN_BOTTOM_RIGHT : CLMGK_ALIGN_TOP_LEFT;
    d->causal = d->window_right == 0;
    d->use_window = d->window_left >= 0 || d->window_right > 0;
    d->mask_mod = NULL;
    d->mask_block_q = d->mask_block_k = 0;
    if (d->score_mod == NULL)
        d->captures[0].name = d->numbers[0] = NULL;
}

clmgk_status mgk_mask_to_window(const clmgk_allocator *allocator, clmgk_attention_desc *d, clmgk_error *error)
{
    const bool by_pairs = d->use_mask_blocks || d->use_positions || (d->statistics & CLMGK_STATISTIC_NLL) != 0;
    if (d->mask_mod == NULL || by_pairs) /* a likelihood has masks of pairs alone */
        return CLMGK_OK;
    clmgk_attention_desc alone = *d;
    alone.score_mod = NULL;
    alone.gradients = 0;
    mgk_formulas formulas;
    MGK_TRY(mgk_formulas_of(&alone, allocator, &formulas, error));
    mgk_band band;
    if (mgk_find_band(formulas.mask, d->length > d->length_k ? d->length : d->length_k, &band) &&
        fits_diagonal(d, &band))
        set_window(d, &band);
    mgk_formulas_free(&formulas);
    return CLMGK_OK;
}
