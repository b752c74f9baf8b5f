/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of blocks of pairs: found from a mask, compared with all of its pairs; taken from the caller; and blocks that
 * are hidden are not read. */
#include "harness/harness.h"
#include "reference/texts.h"

#include <math.h>
#include <string.h>

enum { BATCH = 2, HEADS = 2, LENGTH = 100, KEYS = 150, BLOCK_Q = 16, BLOCK_K = 32 };

/* Masks that one program has: number c says which. */
static const char text[] =
    "let m = int(c);"
    "m == 0 ? doc[b, i] == doc[b, j] && j <= i + S - N :"
    "m == 1 ? 2 * w[h, i] - 1 < abs(w[h, j]) :"
    "m == 2 ? tree[i, j] != 0 || j < 40 :"
    "m == 3 ? abs(i - j) < c * 10 :"
    "m == 4 ? doc[b, j * 2 - 60] > 1 && floor(w[g, i]) == max(-1, min(w[0, 0] - 9, 0)) :"
    "m == 5 ? exp(w[h, j]) > 1 || tree[i * 7 % 90, j % 40] == 1 : w[i, j] > w[j, i] == (j > 170)";
enum { MASKS = 7 };

static clmgk_attention_desc describe(clmgk_variant variant)
{
    clmgk_attention_desc desc = th_small_desc(variant, LENGTH, KEYS);
    desc.batch = BATCH;
    desc.mask_mod = text;
    desc.captures[0] = (clmgk_capture){.name = "doc", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {BATCH, KEYS}};
    desc.captures[1] = (clmgk_capture){
        .name = "w", .type = CLMGK_CAPTURE_BF16, .axes = 2, .shape = {HEADS, KEYS}, .strided = 1, .strides = {400, 2}};
    desc.captures[2] = (clmgk_capture){.name = "tree", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {LENGTH, KEYS}};
    desc.numbers[0] = "c";
    desc.mask_block_q = BLOCK_Q;
    desc.mask_block_k = BLOCK_K;
    return desc;
}

/* Arrays that leave and hide whole blocks, and others in part. */
static void fill(th_problem *problem, int64_t mask, uint64_t seed)
{
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t j = 0; j < KEYS; j++) {
            const int64_t document = j / (b == 0 ? 48 : 23);
            th_set(problem, TH_CAPTURE_0, b, j, 0, 0, 0, (double)document);
        }
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t j = 0; j < KEYS; j++)
            th_set(problem, TH_CAPTURE_1, h, j, 0, 0, 0, 3 * sin(0.05 * (double)(j + 30 * h) + (double)seed));
    for (int64_t i = 0; i < LENGTH; i++)
        for (int64_t j = 0; j < KEYS; j++)
            th_set(problem, TH_CAPTURE_2, i, j, 0, 0, 0, i / 20 == j / 40 || (i + j) % 97 == 0);
    th_set(problem, TH_NUMBERS, 0, 0, 0, 0, 0, (double)mask + 0.25);
}

/* Whose scores are masked: with heads mixed after the softmax those before it. */
static int64_t masked_heads(const clmgk_attention_desc *desc)
{
    return desc->mix_after_heads > 0 ? desc->mix_after_heads : desc->heads;
}

/* How many of the pairs of a block are visible. */
static int64_t count_visible(ref_texts *texts, int64_t b, int64_t h, int64_t m, int64_t n, int64_t *pairs)
{
    int64_t visible = 0;
    *pairs = 0;
    for (int64_t i = m * BLOCK_Q; i < (m + 1) * BLOCK_Q && i < LENGTH; i++) {
        const ref_span span = ref_span_of(texts->problem, b, i);
        for (int64_t j = n * BLOCK_K; j < (n + 1) * BLOCK_K && j < KEYS; j++, (*pairs)++)
            visible += !ref_text_hides(texts, &(ref_pair){{b, h, i}, &span, j, 0, 0.0});
    }
    return visible;
}

typedef struct tally {
    int64_t hidden, whole, missed; /* blocks of these classes; of class 1 whose pairs are alike */
} tally;

/* Compares classes with their pairs. Classes of one batch or head serve all. */
static tally expect_right(const th_problem *problem, int64_t mask)
{
    const th_array *const classes = &problem->array[TH_MASK_BLOCKS];
    th_reference reference = th_reference_of(problem);
    ref_texts texts;
    tally found = {0};
    assert_true(ref_texts_create(&reference.problem, true, &texts));
    for (size_t flat = 0; flat < classes->count; flat++) {
        const int64_t n = (int64_t)flat % classes->shape[4], m = (int64_t)flat / classes->shape[4] % classes->shape[3];
        const int64_t bh = (int64_t)flat / classes->shape[4] / classes->shape[3], h = bh % classes->shape[1];
        int64_t visible = 0, all = 0, pairs = 0;
        for (int64_t b = 0; b < BATCH; b++)
            for (int64_t head = 0; head < masked_heads(&problem->desc); head++)
                if ((classes->shape[0] == 1 || b == bh / classes->shape[1]) && (classes->shape[1] == 1 || head == h)) {
                    visible += count_visible(&texts, b, head, m, n, &pairs);
                    all += pairs;
                }
        const int class = (int)classes->values[flat];
        if ((class == 0 && visible > 0) || (class == 2 && visible < all) || class < 0 || class > 2)
            fail_msg("mask %d, block %zu: class %d, %d of %d pairs are visible", (int)mask, flat, class, (int)visible,
                     (int)all);
        found.hidden += class == 0;
        found.whole += class == 2;
        found.missed += class == 1 && (visible == 0 || visible == all);
    }
    ref_texts_free(&texts);
    th_reference_free(&reference);
    return found;
}

/* Values with these classes, or those that the plan finds itself, against the reference. */
static void expect_values(th_session *session, th_problem *problem, const clmgk_plan_options *options)
{
    th_run_pass(session, problem, TH_FORWARD, options);
    TH_REF_ANSWER answer = th_solve(problem);
    th_check(session, problem, options->engine, &answer);
    if (problem->desc.gradients == 0)
        return;
    th_run_pass(session, problem, TH_BACKWARD, options);
    TH_REF_ARRAYS exact = th_solve_gradients(problem);
    th_check_gradients(session, problem, options->engine, &exact);
}

static void expect_mask(th_session *session, clmgk_attention_desc desc, int64_t mask, const clmgk_plan_options *options,
                        const tally *expected)
{
    TH_PROBLEM own = th_problem_make(&desc, (uint64_t)mask);
    fill(&own, mask, (uint64_t)mask);
    expect_values(session, &own, options);
    desc.use_mask_blocks = 1;
    desc.mask_blocks_batch = mask % 2 == 0 ? BATCH : 1;
    desc.mask_blocks_heads = mask % 3 == 0 ? 1 : masked_heads(&desc);
    TH_PROBLEM given = th_problem_make(&desc, (uint64_t)mask);
    fill(&given, mask, (uint64_t)mask);
    th_run_pass(session, &given, TH_MASK, options);
    const tally found = expect_right(&given, mask);
    if (expected && memcmp(&found, expected, sizeof(found)) != 0)
        fail_msg("mask %d: %d blocks hidden, %d whole, %d not decided", (int)mask, (int)found.hidden, (int)found.whole,
                 (int)found.missed);
    expect_values(session, &given, options);
}

static clmgk_plan_options options_of(const th_session *session, clmgk_engine engine)
{
    for (size_t n = 0; n < session->engines; n++)
        if (session->engine[n] == engine)
            return th_options(session, n);
    return th_options_of(engine, NULL);
}

static const uint32_t gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;

TH_TEST(classes_of_masks)
{
    static const tally expected[MASKS] = {{42, 7, 0},  {10, 41, 0}, {28, 32, 0}, {16, 7, 0},
                                          {112, 0, 0}, {0, 0, 22},  {22, 8, 2}};
    const clmgk_plan_options options = options_of(session, CLMGK_ENGINE_LANE);
    clmgk_attention_desc desc = describe(CLMGK_VARIANT_SOFTMAX);
    desc.gradients = gradients;
    for (int64_t mask = 0; mask < MASKS; mask++)
        expect_mask(session, desc, mask, &options, &expected[mask]);
}

/* The masks of one program, of which number 1 differs by heads. */
static void expect_kernels(th_session *session, clmgk_variant variant, int64_t after, clmgk_engine engine,
                           clmgk_dtype dtype)
{
    const clmgk_plan_options options = options_of(session, engine);
    clmgk_attention_desc desc = describe(variant);
    desc.dtype = dtype;
    desc.mix_after_heads = after;
    desc.gradients = gradients | (after > 0 ? CLMGK_GRADIENT_MIX_AFTER : 0);
    for (int64_t mask = 0; mask < 3; mask++)
        expect_mask(session, desc, mask, &options, NULL);
}

static const struct {
    clmgk_variant variant;
    int64_t after; /* heads mixed after the softmax */
} kernels[] = {{CLMGK_VARIANT_SOFTMAX, 0},      {CLMGK_VARIANT_SMGK, 0},  {CLMGK_VARIANT_FISH, 0},
               {CLMGK_VARIANT_HARD_FISH, 0},    {CLMGK_VARIANT_GFISH, 0}, {CLMGK_VARIANT_HARD_FISH, 3},
               {CLMGK_VARIANT_TALKING_HEADS, 2}};

TH_FULL_TEST(all_kernels)
{
    for (size_t n = 0; n < TH_COUNT(kernels); n++) {
        expect_kernels(session, kernels[n].variant, kernels[n].after, CLMGK_ENGINE_LANE, CLMGK_DTYPE_F32);
        expect_kernels(session, kernels[n].variant, kernels[n].after, CLMGK_ENGINE_SIMT, CLMGK_DTYPE_F32);
    }
}

/* The matrix engine, whose units a CPU emulates. It mixes no heads after the softmax. */
TH_FULL_TEST(all_kernels_on_matrix_units)
{
    for (size_t n = 0; n < TH_COUNT(kernels); n++)
        if (kernels[n].after == 0)
            expect_kernels(session, kernels[n].variant, 0, CLMGK_ENGINE_MATRIX, CLMGK_DTYPE_BF16);
}

/* ---- lists of the caller's ----------------------------------------------------------------------------------------
 */

static clmgk_attention_desc listed(int64_t size_q, int64_t size_k)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, LENGTH, KEYS);
    desc.gradients = gradients;
    desc.use_mask_blocks = 1;
    desc.mask_block_q = size_q;
    desc.mask_block_k = size_k;
    return desc;
}

/* Blocks of any size, smaller than tiles and larger: a pair counts by its block. Some rows see nothing. */
TH_TEST(lists)
{
    static const int64_t sizes[][2] = {{16, 16}, {64, 32}, {16, 128}, {1024, 64}};
    for (size_t n = 0; n < TH_COUNT(sizes); n++) {
        clmgk_attention_desc desc = listed(sizes[n][0], sizes[n][1]);
        desc.mask_blocks_heads = n == 1 ? 1 : 0;
        desc.causal = n == 2;
        for (int e = 0; e < (session->full ? 2 : 1); e++) {
            const clmgk_plan_options options = options_of(session, e == 0 ? CLMGK_ENGINE_LANE : CLMGK_ENGINE_SIMT);
            TH_PROBLEM problem = th_problem_make(&desc, n);
            expect_values(session, &problem, &options);
        }
    }
}

static bool is_finite(const th_problem *problem, th_name name)
{
    const th_array *const array = &problem->array[name];
    bool finite = true;
    for (size_t n = 0; n < array->count; n++)
        finite = finite && (isfinite(array->values[n]) || (name == TH_LSE && array->values[n] < 0));
    return finite;
}

/* Keys and queries of hidden blocks may be anything, if blocks are as large as tiles. Masks of pairs would multiply
 * such values by 0. */
TH_TEST(hidden_blocks_are_not_read)
{
    enum { SIZE = 64, FIRST = 64, NEXT = 128 };
    const clmgk_plan_options options = options_of(session, CLMGK_ENGINE_LANE);
    clmgk_attention_desc desc = listed(SIZE, SIZE);
    desc.length = 200;
    desc.length_k = 300;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_array *const classes = &problem.array[TH_MASK_BLOCKS];
    for (size_t n = 0; n < classes->count; n++) {
        const int64_t column = (int64_t)n % classes->shape[4], row = (int64_t)n / classes->shape[4] % classes->shape[3];
        classes->values[n] = column == 1 || row == 2 ? 0.0 : 1.0 + (double)(n % 2);
    }
    for (int64_t h = 0; h < desc.kv_heads; h++)
        for (int64_t j = FIRST; j < NEXT; j++) {
            th_set(&problem, TH_K, 0, h, 0, j, 0, NAN);
            th_set(&problem, TH_V, 0, h, 0, j, 1, INFINITY);
        }
    th_run_pass(session, &problem, TH_FORWARD, &options);
    th_run_pass(session, &problem, TH_BACKWARD, &options);
    static const th_name outputs[] = {TH_O, TH_LSE, TH_GRAD_Q, TH_GRAD_K, TH_GRAD_V};
    for (size_t n = 0; n < TH_COUNT(outputs); n++)
        if (!is_finite(&problem, outputs[n]))
            fail_msg("%s is not finite", clmgk_array_name((clmgk_array)outputs[n]));
    for (int64_t i = FIRST + SIZE; i < NEXT + SIZE; i++)
        assert_true(problem.array[TH_O].values[i * desc.value_size] == 0.0);
}

/* The first capture hides keys, whose places in it are so much further; their values must not be read. */
static void hide_keys(th_problem *problem, int64_t first, int64_t next, int64_t shift)
{
    for (int64_t n = first; n < next; n++) {
        th_set(problem, TH_CAPTURE_0, n + shift, 0, 0, 0, 0, 0.0);
        for (int64_t h = 0; h < problem->desc.kv_heads; h++)
            th_set(problem, TH_V, 0, h, 0, n, 1, NAN);
    }
}

/* The same of a mask that reads an array, in packed sequences, whose blocks are their own, and of tokens at positions.
 */
TH_TEST(packed_sequences_and_positions_are_judged)
{
    enum { FIRST = 64, NEXT = 128, LENGTH_0 = 250, TOTAL = 550, SHIFT = 5 };
    const clmgk_plan_options options = options_of(session, CLMGK_ENGINE_LANE);
    for (int placed = 0; placed < 2; placed++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, TOTAL, TOTAL);
        desc.mask_mod = "keep[j] != 0 && j <= i + 9";
        desc.captures[0] =
            (clmgk_capture){.name = "keep", .type = CLMGK_CAPTURE_I32, .axes = 1, .shape = {TOTAL + SHIFT}};
        desc.use_positions = placed;
        desc.sequences = placed ? 0 : 2;
        TH_PROBLEM problem = th_problem_make(&desc, 1);
        const int64_t shift = placed ? SHIFT : 0;
        for (int n = 0; n < TOTAL; n++) {
            th_set(&problem, TH_CAPTURE_0, n + shift, 0, 0, 0, 0, 1.0);
            if (placed)
                problem.array[TH_POSITIONS].values[n] = problem.array[TH_POSITIONS_K].values[n] = n + SHIFT;
        }
        if (!placed)
            problem.array[TH_OFFSETS].values[1] = LENGTH_0;
        hide_keys(&problem, FIRST, NEXT, shift);
        if (!placed)
            hide_keys(&problem, FIRST + LENGTH_0, NEXT + LENGTH_0, -LENGTH_0);
        th_run_pass(session, &problem, TH_FORWARD, &options);
        assert_true(is_finite(&problem, TH_O) && is_finite(&problem, TH_LSE));
        th_set(&problem, TH_CAPTURE_0, FIRST + shift, 0, 0, 0, 0, 1.0);
        th_run_pass(session, &problem, TH_FORWARD, &options);
        assert_false(is_finite(&problem, TH_O)); /* the block is not hidden any more */
    }
}

/* ---- refusals -----------------------------------------------------------------------------------------------------
 */

TH_HOST_TEST(refusals)
{
    clmgk_attention_desc desc = listed(48, 16), resolved;
    th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), CLMGK_ERROR_INVALID_VALUE, "mask_block_q",
                      "48");
    desc.mask_block_q = 0;
    desc.mask_blocks_heads = 7;
    th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), CLMGK_ERROR_INVALID_SHAPE,
                      "mask_blocks_heads", "7");
    desc.mask_blocks_heads = 0;
    th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
    th_expect_ok(clmgk_attention_validate(&resolved, &resolved, &th_error));
    assert_int_equal(resolved.mask_block_q, 64);
    assert_int_equal(resolved.mask_blocks_heads, desc.heads);
    assert_int_equal(clmgk_array_presence(&resolved, CLMGK_PASS_MASK, CLMGK_ARRAY_MASK_BLOCKS), CLMGK_ABSENT);
    desc.mask_mod = "j <= i";
    th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
    assert_int_equal(clmgk_array_presence(&resolved, CLMGK_PASS_MASK, CLMGK_ARRAY_MASK_BLOCKS), CLMGK_REQUIRED);
    desc.use_mask_blocks = 0;
    desc.mask_blocks_batch = 1;
    th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "mask_blocks_batch", "1");
    desc.mask_blocks_batch = 0;
    desc.mask_mod = NULL;
    th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), CLMGK_ERROR_INVALID_VALUE, "mask_block_k",
                      "16");
    desc = listed(0, 0);
    desc.batch = desc.sequences = 1;
    desc.length_k = desc.length;
    th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "use_mask_blocks", "1");
    desc = listed(0, 0);
    desc.use_positions = 1;
    th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "use_mask_blocks", "use_positions");
    desc = listed(16, 16);
    desc.length = desc.length_k = 1 << 28;
    th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), CLMGK_ERROR_OVERFLOW, "mask_blocks",
                      "2^31");
    desc = listed(0, 0);
    desc.variant = CLMGK_VARIANT_LINEAR;
    th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "use_mask_blocks", "1");
}
