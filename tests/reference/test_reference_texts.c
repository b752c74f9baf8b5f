/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's scores and masks of the caller's own. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

/* A problem of each variant, with a table t [H,7], documents doc [B,max(N,S)] and numbers c and a. */
static clmgk_attention_desc desc_of(clmgk_variant variant, const char *score, const char *mask)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = variant;
    desc.batch = 2;
    desc.heads = 2;
    desc.kv_heads = 1;
    desc.components = variant == CLMGK_VARIANT_MGK || variant == CLMGK_VARIANT_HARD_FISH ? 2 : 0;
    desc.length = 3;
    desc.length_k = 4;
    desc.head_size = 2;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    desc.score_mod = score;
    desc.mask_mod = mask;
    if (!score && !mask)
        return desc;
    desc.captures[0] = (clmgk_capture){.name = "t", .type = CLMGK_CAPTURE_F32, .axes = 2, .shape = {2, 7}};
    desc.captures[1] = (clmgk_capture){.name = "doc", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {2, 4}};
    desc.numbers[0] = "c";
    desc.numbers[1] = "a";
    if (score)
        desc.gradients |= CLMGK_GRADIENT_CAPTURE_0 | CLMGK_GRADIENT_NUMBERS;
    return desc;
}

static const struct {
    clmgk_variant variant;
    const char *score, *mask;
} forms[] = {
    {CLMGK_VARIANT_SOFTMAX, "s + t[h, clamp(i - j, -3, 3) + 3]", NULL},
    {CLMGK_VARIANT_SOFTMAX, "c * tanh(s * a) + t[h, b] * s", "doc[b, i] == doc[b, j] || j == 0"},
    {CLMGK_VARIANT_SOFTMAX, NULL, "j <= i + 1"},
    {CLMGK_VARIANT_GAUSSIAN, "s * a + t[h, i] - t[h, j]", "(i + j) % 3 != 1"},
    {CLMGK_VARIANT_MGK, "s + c * t[g, r] + t[h, doc[b, j]] * a", NULL},
    {CLMGK_VARIANT_SMGK, "log(gelu(s) + 2) + t[0, N - i] * t[1, S - j] * a", "i >= j || i < 2"},
    {CLMGK_VARIANT_HARD_FISH, "c * tanh(s) + t[h, clamp(i - j, -3, 3) + 3]", "j < 3"},
};

/* The numbers are positive, and the documents whole. */
static th_problem problem_of(const clmgk_attention_desc *desc)
{
    th_problem problem = th_problem_make(desc, 7);
    th_array *const numbers = &problem.array[TH_NUMBERS];
    for (size_t n = 0; numbers->used && n < numbers->count; n++)
        numbers->values[n] = 0.5 + fabs(numbers->values[n]);
    return problem;
}

TH_HOST_TEST(gradients_are_those_of_the_loss)
{
    for (size_t n = 0; n < TH_COUNT(forms); n++) {
        const clmgk_attention_desc desc = desc_of(forms[n].variant, forms[n].score, forms[n].mask);
        TH_PROBLEM problem = problem_of(&desc);
        th_reference reference = th_reference_of(&problem);
        TH_REF_ARRAYS gradients = {0};
        const char *const name = forms[n].score ? forms[n].score : forms[n].mask;
        assert_true(clmgk_ref_solve_gradients(&reference.problem, problem.desc.gradients, &gradients));
        static const th_name names[] = {TH_Q, TH_K, TH_V, TH_CAPTURE_0, TH_NUMBERS};
        static const int which[] = {CLMGK_REF_GRAD_Q, CLMGK_REF_GRAD_K, CLMGK_REF_GRAD_V, CLMGK_REF_GRAD_CAPTURE_0,
                                    CLMGK_REF_GRAD_NUMBERS};
        for (size_t k = 0; k < TH_COUNT(names); k++) {
            th_array *const array = &problem.array[names[k]];
            if (gradients.exact[which[k]])
                th_expect_derivatives(name, &reference.problem, &gradients, which[k], array->values, array->count,
                                      false);
        }
        th_reference_free(&reference);
    }
}

/* What a text says, and the same built in. */
static void build_softcap(clmgk_attention_desc *desc)
{
    desc->softcap = 2.5;
}

static void build_causal(clmgk_attention_desc *desc)
{
    desc->causal = 1;
    desc->alignment = CLMGK_ALIGN_TOP_LEFT;
}

static void build_window(clmgk_attention_desc *desc)
{
    desc->use_window = 1;
    desc->window_left = 2;
    desc->window_right = 1;
    desc->alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
}

static void build_temperature(clmgk_attention_desc *desc)
{
    desc->variance = 4;
}

static const struct {
    const char *score, *mask;
    void (*build)(clmgk_attention_desc *desc);
} twins[] = {
    {"2.5 * tanh(s / 2.5)", NULL, build_softcap},
    {NULL, "j <= i", build_causal},
    {NULL, "let d = i + S - N; d - 2 <= j && j <= d + 1", build_window},
    {"s * sqrt(2.0) / 4", NULL, build_temperature},
};

TH_HOST_TEST(texts_are_what_they_say)
{
    for (size_t n = 0; n < TH_COUNT(twins); n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, NULL, NULL), built = desc;
        desc.score_mod = twins[n].score;
        desc.mask_mod = twins[n].mask;
        twins[n].build(&built);
        TH_PROBLEM problem = problem_of(&desc);
        TH_PROBLEM other = problem_of(&built);
        th_reference reference = th_reference_of(&problem), other_reference = th_reference_of(&other);
        TH_REF_ANSWER answer = {0};
        TH_REF_ANSWER expected = {0};
        TH_REF_ARRAYS gradients = {0};
        TH_REF_ARRAYS expected_gradients = {0};
        const int64_t rows = desc.batch * desc.heads * desc.length;
        assert_true(clmgk_ref_solve(&reference.problem, rows, NULL, &answer));
        assert_true(clmgk_ref_solve(&other_reference.problem, rows, NULL, &expected));
        assert_true(clmgk_ref_solve_gradients(&reference.problem, desc.gradients, &gradients));
        assert_true(clmgk_ref_solve_gradients(&other_reference.problem, desc.gradients, &expected_gradients));
        for (int64_t k = 0; k < rows * answer.value_size; k++)
            assert_true(fabs(answer.o[k] - expected.o[k]) <= 1e-6);
        for (int64_t k = 0; k < gradients.count[CLMGK_REF_GRAD_Q]; k++)
            assert_true(fabs(gradients.exact[CLMGK_REF_GRAD_Q][k] - expected_gradients.exact[CLMGK_REF_GRAD_Q][k]) <=
                        1e-6);
        for (int64_t k = 0; k < desc.length * desc.length_k; k++) {
            const int64_t i = k / desc.length_k, j = k % desc.length_k;
            assert_int_equal(clmgk_ref_visible(&reference.problem, 1, 1, i, j),
                             clmgk_ref_visible(&other_reference.problem, 1, 1, i, j));
            if (clmgk_ref_visible(&reference.problem, 1, 1, i, j))
                assert_true(fabs(clmgk_ref_log_weight(&reference.problem, 1, 1, i, j, 0) -
                                 clmgk_ref_log_weight(&other_reference.problem, 1, 1, i, j, 0)) <= 1e-6);
        }
        th_reference_free(&reference);
        th_reference_free(&other_reference);
    }
}

/* Positions, N, S and b are those of a sequence. */
TH_HOST_TEST(packed_sequences_have_their_own_positions)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, "s + i + 10 * b + 100 * N + 1000 * S", "j <= i");
    desc.batch = 1;
    desc.sequences = 2;
    desc.length_k = desc.length = 6;
    TH_PROBLEM problem = problem_of(&desc);
    static const double offsets[] = {0, 2, 6};
    memcpy(problem.array[TH_OFFSETS].values, offsets, sizeof(offsets));
    th_reference reference = th_reference_of(&problem);
    const double s = clmgk_ref_log_weight(&reference.problem, 0, 0, 3, 2, 0);
    clmgk_attention_desc plain = problem.desc;
    plain.score_mod = NULL;
    reference.problem.desc = plain;
    const double without = clmgk_ref_log_weight(&reference.problem, 0, 0, 3, 2, 0);
    assert_true(fabs(s - without - (1 + 10 + 400 + 4000)) < 1e-6);
    assert_true(clmgk_ref_visible(&reference.problem, 0, 0, 3, 3));
    assert_false(clmgk_ref_visible(&reference.problem, 0, 0, 3, 4));
    th_reference_free(&reference);
}

/* Masks, lengths and sequences of a problem of two batches, and texts whose reads are outside for some of its pairs. */
static void pad(clmgk_attention_desc *desc)
{
    desc->use_lengths = desc->use_lengths_q = 1;
    desc->causal = 1;
    desc->alignment = CLMGK_ALIGN_LENGTHS;
}

static void pack(clmgk_attention_desc *desc)
{
    desc->batch = 1;
    desc->sequences = 3;
    desc->length_k = 6;
    desc->use_offsets_k = 1;
    build_window(desc);
}

static void cache(clmgk_attention_desc *desc)
{
    desc->batch = 1;
    desc->sequences = 2;
    desc->use_lengths = 1;
    desc->causal = 1;
    desc->gradients = 0;
}

static void cut_into_pages(clmgk_attention_desc *desc)
{
    desc->page_size = 2;
    desc->pages = 5;
    desc->table_pages = 5;
    desc->use_page_offsets = 1;
    desc->gradients = 0;
}

static void permute(clmgk_attention_desc *desc)
{
    desc->use_positions = 1;
    desc->causal = 1;
}

/* Other heads before the mixing than behind it. */
static void mix_after(clmgk_attention_desc *desc)
{
    desc->heads = 3;
    desc->mix_after_heads = 2;
}

TH_HOST_TEST(library_counts_the_same_reads_outside)
{
    static const struct {
        clmgk_variant variant;
        const char *score, *mask;
        void (*build)(clmgk_attention_desc *desc);
        bool none;
    } cases[] = {
        {CLMGK_VARIANT_SOFTMAX, "s + t[h, i - j]", NULL, build_causal, true},
        {CLMGK_VARIANT_SOFTMAX, "s + t[h, i - j]", "j <= i", NULL, true},
        {CLMGK_VARIANT_SOFTMAX, "s + t[h, i - j] + t[h + 1, i]", NULL, build_causal, false},
        {CLMGK_VARIANT_SOFTMAX, "i >= j ? s + t[h, i - j] : s", "doc[b + 1, j] >= 0 || j < 9", NULL, false},
        {CLMGK_VARIANT_SOFTMAX, NULL, "doc[b, j - 1] == doc[b, i + 1]", build_window, false},
        {CLMGK_VARIANT_MGK, "s + t[r, int(c) + i - j - 1]", "t[g, j + 7] > 0 || doc[0, i] < 9", pad, false},
        {CLMGK_VARIANT_SOFTMAX, "s + t[b, S - N + j + i] + t[h, j - i]", "doc[0, N + j - 1] >= 0", pack, false},
        {CLMGK_VARIANT_SOFTMAX, "s + t[b, S + j] + t[h, j - i]", NULL, cache, false},
        {CLMGK_VARIANT_SOFTMAX, "s + t[h, i + j + 3]", NULL, cut_into_pages, false},
        {CLMGK_VARIANT_SOFTMAX, "s + t[h, i - j - 1]", "t[h, j] > 0", permute, false},
        {CLMGK_VARIANT_HARD_FISH, "s + t[h, j + 4] + t[g, 7]", NULL, build_window, false},
        {CLMGK_VARIANT_HARD_FISH, "s + t[h, j + 4]", "t[h + 1, i] > 0 || j < 2", mix_after, false},
    };
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_attention_desc desc = desc_of(cases[n].variant, cases[n].score, cases[n].mask);
        if (cases[n].build)
            cases[n].build(&desc);
        TH_PROBLEM problem = problem_of(&desc);
        static const double lengths[] = {4, 2};
        for (size_t k = 0; k < problem.array[TH_LENGTHS].count && problem.array[TH_LENGTHS].used; k++)
            problem.array[TH_LENGTHS].values[k] = lengths[k];
        for (size_t k = 0; k < problem.array[TH_LENGTHS_Q].count && problem.array[TH_LENGTHS_Q].used; k++)
            problem.array[TH_LENGTHS_Q].values[k] = lengths[k] - 1;
        th_reference reference = th_reference_of(&problem);
        TH_HOST host = th_host_make(&problem);
        int64_t count = -1;
        const int64_t expected = clmgk_ref_reads_outside(&reference.problem);
        th_expect_ok(clmgk_count_reads_outside(&problem.desc, &host.args, &count, &th_error));
        if (count != expected || (expected == 0) != cases[n].none)
            fail_msg("problem %zu: %lld reads outside: the reference has %lld", n, (long long)count,
                     (long long)expected);
        th_reference_free(&reference);
    }
}

TH_HOST_TEST(counting_checks_its_arguments)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, "s + t[h, i] + c + a", NULL);
    int64_t count = -1;
    TH_PROBLEM problem = problem_of(&desc);
    TH_HOST host = th_host_make(&problem);
    th_expect_error(clmgk_count_reads_outside(&desc, NULL, &count, &th_error), CLMGK_ERROR_INVALID_VALUE, "args: NULL");
    th_expect_error(clmgk_count_reads_outside(&desc, &host.args, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "count: NULL");
    host.args.capture_0 = NULL;
    th_expect_error(clmgk_count_reads_outside(&desc, &host.args, &count, &th_error), CLMGK_ERROR_INVALID_BUFFER,
                    "capture_0");
    desc.score_mod = "s + u";
    th_expect_error(clmgk_count_reads_outside(&desc, &host.args, &count, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "unknown name 'u'");
    const clmgk_attention_desc plain = desc_of(CLMGK_VARIANT_SOFTMAX, NULL, NULL);
    th_expect_ok(clmgk_count_reads_outside(&plain, &host.args, &count, &th_error));
    assert_int_equal(count, 0);
}
