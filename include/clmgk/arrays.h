/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of attention's arrays. Argument structures, enumerations, names in messages and the programs' options derive
 * from it.
 *
 * CLMGK_ARRAY_LIST(A, G, S) has a line for each array:
 *
 *     A(NAME, field, ELEMENT, ACCESS, VALUES, passes, axes, has)   an array: CLMGK_ARRAY_NAME
 *     G(NAME, field, ELEMENT, bit, axes, has)              the gradient of the array NAME: CLMGK_ARRAY_GRAD_NAME, in
 *                                                          the field grad_field; CLMGK_GRADIENT_NAME = bit
 *     S(NAME, field, bit, axes)                            a statistic, f32: CLMGK_ARRAY_NAME; CLMGK_STATISTIC_NAME
 *
 *     ELEMENT   element type: STORAGE (the descriptor's type for the array: clmgk_array_dtype), CAPTURE (the
 *               captured array's type: clmgk_capture), F32, I32 or BYTE
 *     ACCESS    IN, or OUT if some pass writes the array; the pass append writes K and V, inputs of all others
 *     VALUES    legal values of an input, which the calls on host arrays check: ANY, FINITE, NOT_NEGATIVE (and
 *               finite), POSITIVE (and finite), NOT_RAISED (no +inf, no NaN), LENGTHS (0 .. size of the axis),
 *               OFFSETS (ascending from 0 to the size of the axis), POSITIONS (0 .. 2^30 - 1)
 *     passes    a letter for each clmgk_pass: r required, o optional, - absent, also after the
 *               last letter
 *     axes      the array's axes, in the letters of clmgk_shape
 *     has       whether descriptor d uses the array
 *
 * axes and has are expressions that only the library evaluates.
 *
 * A new array is a new line in this list, and a line in CLMGK_SWITCH_LIST if a field of the descriptor switches it on.
 * clmgk_attention_args describes each array; variants.h and attention.h give the formulas.
 */
#ifndef CLMGK_ARRAYS_H
#define CLMGK_ARRAYS_H

#include "status.h"
#include "variants.h"

#include <stddef.h>

#define CLMGK_ARRAY_LIST(A, G, S)                                                                                      \
    A(Q, q, STORAGE, IN, ANY, "rrr-", query_axes(d), true)                                                             \
    A(K, k, STORAGE, IN, ANY, "rrr--r", key_axes(d), true)                                                             \
    A(V, v, STORAGE, IN, ANY, "rr---o", value_axes(d), true)                                                           \
    A(O, o, STORAGE, OUT, ANY, "rr-r", "BHNE", true)                                                                   \
    A(LSE, lse, F32, OUT, ANY, "or-o", row_axes(d), !linear(d))                                                        \
    A(PRIOR, prior, F32, IN, NOT_NEGATIVE, "rrr-", prior_axes(d), d->prior_shape != CLMGK_PRIOR_UNIFORM)               \
    A(VARIANCE, variance, F32, IN, POSITIVE, "rrr-", variance_axes(d), d->variance_shape != CLMGK_VARIANCE_NUMBER)     \
    A(SHIFT, shift, F32, IN, ANY, "rrr-", "HMD", has_trait(d, CLMGK_TRAIT_SHIFT))                                      \
    A(LENGTHS, lengths, I32, IN, LENGTHS, "rrr-", cache_axis(d), d->use_lengths)                                       \
    A(LENGTHS_Q, lengths_q, I32, IN, LENGTHS, "rrr-", "B", d->use_lengths_q)                                           \
    A(OFFSETS, offsets, I32, IN, OFFSETS, "rrr-", "t", d->sequences > 0)                                               \
    A(OFFSETS_K, offsets_k, I32, IN, OFFSETS, "rrr-", "t", d->use_offsets_k)                                           \
    A(BIAS, bias, F32, IN, NOT_RAISED, "rrr-", "bhns", !linear(d) && d->use_bias)                                      \
    A(SLOPES, slopes, F32, IN, ANY, "rrr-", head_axis(d), !linear(d) && d->use_alibi)                                  \
    A(SINKS, sinks, F32, IN, ANY, "rrr-", head_axis(d), !linear(d) && d->use_sinks)                                    \
    A(MIX, mix, F32, IN, FINITE, "rrr-", mix_axes(d), has_trait(d, CLMGK_TRAIT_ADMIXTURE))                             \
    A(MIX_WEIGHT, mix_weight, F32, IN, FINITE, "rrr-", weight_axes(d), generalised(d) && d->use_mix_weight)            \
    A(MIX_OFFSET, mix_offset, F32, IN, FINITE, "rrr-", head_axis(d), has_offset(d) && d->use_mix_offset)               \
    A(MIX_HIDDEN_OFFSET, mix_hidden_offset, F32, IN, FINITE, "rrr-", "U", has_offset(d) && d->use_mix_hidden_offset)   \
    A(MIX_AFTER, mix_after, F32, IN, FINITE, "rrr-", "HA", d->mix_after_heads > 0)                                     \
    A(NOISE, noise, F32, IN, NOT_NEGATIVE, "rrr-", "M", has_trait(d, CLMGK_TRAIT_NOISE))                               \
    A(PROJECTION, projection, F32, IN, FINITE, "rr--", "FD", linear(d) && d->feature == CLMGK_FEATURE_FAVOR)           \
    A(STATE_C, state_c, F32, IN, ANY, "rr--", state_axes(d), linear(d) && d->use_state)                                \
    A(STATE_Z, state_z, F32, IN, ANY, "rr--", total_axes(d), linear(d) && d->use_state)                                \
    A(STATE_M, state_m, F32, IN, ANY, "rr--", scale_axes(d), has_scale(d) && d->use_state)                             \
    A(NEW_STATE_C, new_state_c, F32, OUT, ANY, "r---", state_axes(d), linear(d) && d->use_new_state)                   \
    A(NEW_STATE_Z, new_state_z, F32, OUT, ANY, "r---", total_axes(d), linear(d) && d->use_new_state)                   \
    A(NEW_STATE_M, new_state_m, F32, OUT, ANY, "r---", scale_axes(d), has_scale(d) && d->use_new_state)                \
    A(DENOMINATOR, denominator, F32, OUT, ANY, "or--", "BHN2", linear(d))                                              \
    A(GRAD_O, grad_o, STORAGE, IN, ANY, "-r--", "BHNE", true)                                                          \
    A(GRAD_LSE, grad_lse, F32, IN, ANY, "-o--", row_axes(d), !linear(d))                                               \
    A(GRAD_NEW_STATE_C, grad_new_state_c, F32, IN, ANY, "-o--", state_axes(d), linear(d) && d->use_new_state)          \
    A(GRAD_NEW_STATE_Z, grad_new_state_z, F32, IN, ANY, "-o--", total_axes(d), linear(d) && d->use_new_state)          \
    G(Q, q, STORAGE, 1, query_axes(d), true)                                                                           \
    G(K, k, STORAGE, 2, key_axes(d), true)                                                                             \
    G(V, v, STORAGE, 4, value_axes(d), true)                                                                           \
    G(PRIOR, prior, F32, 8, prior_axes(d), has_trait(d, CLMGK_TRAIT_PRIOR))                                            \
    G(VARIANCE, variance, F32, 16, variance_axes(d), !has_trait(d, CLMGK_TRAIT_ADMIXTURE) && !linear(d))               \
    G(SHIFT, shift, F32, 32, "HMD", has_trait(d, CLMGK_TRAIT_SHIFT))                                                   \
    G(BIAS, bias, F32, 64, "bhns", !linear(d) && d->use_bias)                                                          \
    G(SINKS, sinks, F32, 128, head_axis(d), !linear(d) && d->use_sinks)                                                \
    G(MIX, mix, F32, 256, mix_axes(d), has_trait(d, CLMGK_TRAIT_ADMIXTURE))                                            \
    G(MIX_WEIGHT, mix_weight, F32, 512, weight_axes(d), generalised(d))                                                \
    G(MIX_OFFSET, mix_offset, F32, 1024, head_axis(d), has_offset(d))                                                  \
    G(NOISE, noise, F32, 2048, "M", has_trait(d, CLMGK_TRAIT_NOISE))                                                   \
    G(STATE_C, state_c, F32, 4096, state_axes(d), linear(d) && d->use_state)                                           \
    G(STATE_Z, state_z, F32, 8192, total_axes(d), linear(d) && d->use_state)                                           \
    G(MIX_HIDDEN_OFFSET, mix_hidden_offset, F32, 16384, "U", has_offset(d) && d->mix_hidden > 0)                       \
    G(CAPTURE_0, capture_0, F32, 32768, capture_axes(d, 0), has_capture_gradient(d, 0))                                \
    G(CAPTURE_1, capture_1, F32, 65536, capture_axes(d, 1), has_capture_gradient(d, 1))                                \
    G(CAPTURE_2, capture_2, F32, 131072, capture_axes(d, 2), has_capture_gradient(d, 2))                               \
    G(CAPTURE_3, capture_3, F32, 262144, capture_axes(d, 3), has_capture_gradient(d, 3))                               \
    G(CAPTURE_4, capture_4, F32, 524288, capture_axes(d, 4), has_capture_gradient(d, 4))                               \
    G(CAPTURE_5, capture_5, F32, 1048576, capture_axes(d, 5), has_capture_gradient(d, 5))                              \
    G(CAPTURE_6, capture_6, F32, 2097152, capture_axes(d, 6), has_capture_gradient(d, 6))                              \
    G(CAPTURE_7, capture_7, F32, 4194304, capture_axes(d, 7), has_capture_gradient(d, 7))                              \
    G(NUMBERS, numbers, F32, 8388608, "#", d->score_mod != NULL && d->numbers[0] != NULL)                              \
    G(MIX_AFTER, mix_after, F32, 16777216, "HA", d->mix_after_heads > 0)                                               \
    S(RESPONSIBILITIES, responsibilities, 1, "BHMNS")                                                                  \
    S(COUNTS, counts, 2, prior_axes(d))                                                                                \
    S(NEW_PRIOR, new_prior, 4, prior_axes(d))                                                                          \
    S(NLL, nll, 8, d->sequences > 0 ? "TH" : "BH")                                                                     \
    A(LSE_LOW, lse_low, F32, OUT, ANY, "or-o", row_axes(d), !linear(d) && d->use_lse_low)                              \
    A(CAPTURE_0, capture_0, CAPTURE, IN, ANY, "rrr-r", capture_axes(d, 0), d->captures[0].name != NULL)                \
    A(CAPTURE_1, capture_1, CAPTURE, IN, ANY, "rrr-r", capture_axes(d, 1), d->captures[1].name != NULL)                \
    A(CAPTURE_2, capture_2, CAPTURE, IN, ANY, "rrr-r", capture_axes(d, 2), d->captures[2].name != NULL)                \
    A(CAPTURE_3, capture_3, CAPTURE, IN, ANY, "rrr-r", capture_axes(d, 3), d->captures[3].name != NULL)                \
    A(CAPTURE_4, capture_4, CAPTURE, IN, ANY, "rrr-r", capture_axes(d, 4), d->captures[4].name != NULL)                \
    A(CAPTURE_5, capture_5, CAPTURE, IN, ANY, "rrr-r", capture_axes(d, 5), d->captures[5].name != NULL)                \
    A(CAPTURE_6, capture_6, CAPTURE, IN, ANY, "rrr-r", capture_axes(d, 6), d->captures[6].name != NULL)                \
    A(CAPTURE_7, capture_7, CAPTURE, IN, ANY, "rrr-r", capture_axes(d, 7), d->captures[7].name != NULL)                \
    A(NUMBERS, numbers, F32, IN, ANY, "rrr-r", "#", d->numbers[0] != NULL)                                             \
    A(POSITIONS, positions, I32, IN, POSITIONS, "rrr-", "BN", !linear(d) && d->use_positions)                          \
    A(POSITIONS_K, positions_k, I32, IN, POSITIONS, "rrr-", "BS", !linear(d) && d->use_positions)                      \
    A(PAGE_TABLE, page_table, I32, IN, PAGES, "rrr-", table_axes(d), d->page_size > 0)                                 \
    A(PAGE_OFFSETS, page_offsets, I32, IN, PAGES, "rrr-", d->sequences > 0 ? "t" : "o", d->use_page_offsets)           \
    A(LAST_PAGE, last_page, I32, IN, PAGES, "rrr-", d->sequences > 0 ? "T" : "B", d->use_page_offsets)                 \
    A(MASK_BLOCKS, mask_blocks, I32, OUT, ANY, "rrr-r", "cdqk", !linear(d) && d->use_mask_blocks)                      \
    A(SCALE_K, scale_k, F32, IN, ANY, "r----r", key_scale_axes(d), !linear(d) && d->use_scale_k)                       \
    A(SCALE_V, scale_v, F32, IN, ANY, "r----o", value_scale_axes(d), !linear(d) && d->use_scale_v)                     \
    A(PARTS_O, parts_o, STORAGE, IN, ANY, "---r", "BHNE", d->combine)                                                  \
    A(PARTS_LSE, parts_lse, F32, IN, ANY, "---r", "BHN", d->combine)                                                   \
    A(PARTS_LSE_LOW, parts_lse_low, F32, IN, ANY, "---o", "BHN", d->combine && d->use_lse_low)                         \
    A(APPEND_K, append_k, STORAGE, IN, ANY, "-----r", append_axes(d), d->append > 0)                                   \
    A(APPEND_V, append_v, STORAGE, IN, ANY, "-----o", "RGE", d->append > 0)                                            \
    A(APPEND_SLOTS, append_slots, I32, IN, ANY, "-----r", "R", d->append > 0)                                          \
    A(APPEND_POSITIONS, append_positions, I32, IN, ANY, "-----r", "R", d->append_rotary != 0)                          \
    A(PREFIX_TABLE, prefix_table, I32, IN, ANY, "r", "Y", d->prefix_pages > 0)                                         \
    A(PREFIX_LENGTH, prefix_length, I32, IN, ANY, "r", "1", d->prefix_pages > 0)                                       \
    A(STATE_SLOTS, state_slots, I32, IN, SLOTS, "r", problem_axis(d), linear(d) && d->use_state && d->state_pool > 0)  \
    A(NEW_STATE_SLOTS, new_state_slots, I32, IN, SLOTS, "r", problem_axis(d),                                          \
      linear(d) && d->use_new_state && d->state_pool > 0)                                                              \
    A(WORKSPACE, workspace, BYTE, OUT, ANY, "oooo", "", true)

/* X(NAME, field): the value 1 in the descriptor's field switches the array NAME on. */
#define CLMGK_SWITCH_LIST(X)                                                                                           \
    X(LENGTHS, use_lengths)                                                                                            \
    X(LENGTHS_Q, use_lengths_q)                                                                                        \
    X(OFFSETS_K, use_offsets_k)                                                                                        \
    X(BIAS, use_bias)                                                                                                  \
    X(SLOPES, use_alibi)                                                                                               \
    X(SINKS, use_sinks)                                                                                                \
    X(MIX_WEIGHT, use_mix_weight)                                                                                      \
    X(MIX_OFFSET, use_mix_offset)                                                                                      \
    X(MIX_HIDDEN_OFFSET, use_mix_hidden_offset)                                                                        \
    X(PAGE_OFFSETS, use_page_offsets)                                                                                  \
    X(LSE_LOW, use_lse_low)                                                                                            \
    X(POSITIONS, use_positions)                                                                                        \
    X(MASK_BLOCKS, use_mask_blocks)                                                                                    \
    X(SCALE_K, use_scale_k)                                                                                            \
    X(SCALE_V, use_scale_v)                                                                                            \
    X(STATE_C, use_state)                                                                                              \
    X(NEW_STATE_C, use_new_state)

/* Omits one kind of line when the list is expanded. */
#define CLMGK_ARRAY_NONE(...)

typedef enum clmgk_array {
#define CLMGK_ARRAY_ENUM(name, ...)      CLMGK_ARRAY_##name,
#define CLMGK_ARRAY_GRAD_ENUM(name, ...) CLMGK_ARRAY_GRAD_##name,
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_ENUM, CLMGK_ARRAY_GRAD_ENUM, CLMGK_ARRAY_ENUM)
#undef CLMGK_ARRAY_ENUM
#undef CLMGK_ARRAY_GRAD_ENUM
        CLMGK_ARRAYS
} clmgk_array;

/* Sets of gradients and of statistics: a descriptor's `gradients` and `statistics`. */
typedef enum clmgk_gradient {
#define CLMGK_GRADIENT_ENUM(name, field, element, bit, ...) CLMGK_GRADIENT_##name = (bit),
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_GRADIENT_ENUM, CLMGK_ARRAY_NONE)
#undef CLMGK_GRADIENT_ENUM
#define CLMGK_GRADIENT_BIT(name, field, element, bit, ...) | (bit)
        CLMGK_GRADIENT_ALL = 0 CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_GRADIENT_BIT, CLMGK_ARRAY_NONE)
#undef CLMGK_GRADIENT_BIT
} clmgk_gradient;
typedef enum clmgk_statistic {
#define CLMGK_STATISTIC_ENUM(name, field, bit, ...) CLMGK_STATISTIC_##name = (bit),
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_ARRAY_NONE, CLMGK_STATISTIC_ENUM)
#undef CLMGK_STATISTIC_ENUM
} clmgk_statistic;
#define CLMGK_STATISTIC_ALL 15

/* Type of an array's elements. */
typedef enum clmgk_element {
    CLMGK_ELEMENT_STORAGE, /* the descriptor's type for the array: clmgk_array_dtype */
    CLMGK_ELEMENT_F32,
    CLMGK_ELEMENT_I32,
    CLMGK_ELEMENT_BYTE,
    CLMGK_ELEMENT_CAPTURE /* clmgk_capture.type */
} clmgk_element;

/* Legal values of an input: CLMGK_ARRAY_LIST. */
typedef enum clmgk_values {
    CLMGK_VALUES_ANY,
    CLMGK_VALUES_FINITE,
    CLMGK_VALUES_NOT_NEGATIVE,
    CLMGK_VALUES_POSITIVE,
    CLMGK_VALUES_NOT_RAISED,
    CLMGK_VALUES_LENGTHS,
    CLMGK_VALUES_OFFSETS,
    CLMGK_VALUES_POSITIONS,
    CLMGK_VALUES_PAGES, /* of page tables: clmgk_check_pages */
    CLMGK_VALUES_SLOTS  /* of states in a pool: clmgk_check_state_slots */
} clmgk_values;

/* A line of CLMGK_ARRAY_LIST. */
typedef struct clmgk_array_info {
    const char *name; /* of the field */
    clmgk_element element;
    clmgk_values values;
    uint32_t gradient;  /* clmgk_gradient bit of a gradient, else 0 */
    uint32_t statistic; /* clmgk_statistic bit of a statistic, else 0 */
} clmgk_array_info;

/* The array's line; NULL for a value outside the enumeration. */
CLMGK_API const clmgk_array_info *clmgk_array_get_info(clmgk_array array);

/* Passes of a plan. */
#define CLMGK_PASS_LIST(X)                                                                                             \
    X(FORWARD, 0, "forward")                                                                                           \
    X(BACKWARD, 1, "backward")                                                                                         \
    X(STATISTICS, 2, "statistics")                                                                                     \
    X(COMBINE, 3, "combine")                                                                                           \
    X(MASK, 4, "mask")                                                                                                 \
    X(APPEND, 5, "append")

typedef enum clmgk_pass {
#define CLMGK_PASS_ENUM(name, value, ...) CLMGK_PASS_##name = (value),
    CLMGK_PASS_LIST(CLMGK_PASS_ENUM)
#undef CLMGK_PASS_ENUM
        CLMGK_PASSES
} clmgk_pass;

/* Names, as in variants.h. The name of an array is that of its field ("grad_q"); passes are "forward", ... */
CLMGK_API const char *clmgk_array_name(clmgk_array array);
CLMGK_API clmgk_status clmgk_array_from_name(const char *name, clmgk_array *array, clmgk_error *error);
CLMGK_API const char *clmgk_pass_name(clmgk_pass pass);
CLMGK_API clmgk_status clmgk_pass_from_name(const char *name, clmgk_pass *pass, clmgk_error *error);

/* Whether a call rejects, accepts or requires an array. */
typedef enum clmgk_presence { CLMGK_ABSENT, CLMGK_OPTIONAL, CLMGK_REQUIRED } clmgk_presence;

#define CLMGK_MAX_RANK 5

/*
 * Shape of an array in axis order. Letters: B batch, H query heads, A heads that are mixed after their softmax, G
 * key/value heads, N queries, S keys, D and E head sizes, M components or global heads, U hidden units, F features, T
 * packed sequences, t for T + 1, o for B + 1, P pages of a pool, K keys of a page, C entries of a page table, R tokens
 * to append, Y pages of a prefix, p places of a pool of states; b, h, n
 * and s are the axes of the bias; c, d, q and k those of mask_blocks; w, x, y and z those of a captured array; # is the
 * number of a score's or mask's numbers; 1 and 2 are axes of that size.
 */
typedef struct clmgk_shape {
    int32_t rank; /* 0: the descriptor does not use the array */
    char axes[CLMGK_MAX_RANK + 1];
    int64_t size[CLMGK_MAX_RANK];
    int64_t stride[CLMGK_MAX_RANK]; /* in elements */
} clmgk_shape;

#endif
