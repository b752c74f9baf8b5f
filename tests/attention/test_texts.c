/* SPDX-License-Identifier: Apache-2.0 */
/* Scores and masks as texts on the device: texts that say what built-in modifiers and masks do, against the reference
 * of these. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

/* A problem with texts, and one without that must have the same results. */
typedef struct twins {
    th_problem texts, plain;
} twins;

static void free_twins(twins *both)
{
    th_problem_free(&both->texts);
    th_problem_free(&both->plain);
}
#define TWINS __attribute__((unused, cleanup(free_twins))) twins

static twins make_twins(const clmgk_attention_desc *texts, const clmgk_attention_desc *plain, uint64_t seed)
{
    twins both = {th_problem_make(texts, seed), th_problem_make(plain, seed)};
    th_copy_inputs(&both.texts, &both.plain);
    return both;
}

/* With which one program serves problems of all sizes. */
static clmgk_plan_options options_of(const th_session *session, clmgk_engine engine)
{
    for (size_t n = 0; n < session->engines; n++)
        if (session->engine[n] == engine)
            return th_options(session, n);
    return th_options_of(engine, NULL);
}

/* Runs the texts' problem; compares its outputs with the other problem's reference, and its gradients, of which it may
 * have more, with its own. */
static void expect_on(th_session *session, twins *both, clmgk_engine engine)
{
    const clmgk_plan_options options = options_of(session, engine);
    th_run_pass(session, &both->texts, TH_FORWARD, &options);
    TH_REF_ANSWER answer = th_solve(&both->plain);
    th_check(session, &both->texts, engine, &answer);
    if (both->texts.desc.gradients == 0)
        return;
    th_run_pass(session, &both->texts, TH_BACKWARD, &options);
    TH_REF_ARRAYS exact = th_solve_gradients(&both->texts);
    th_check_gradients(session, &both->texts, engine, &exact);
}

/* On the lane engine, and with `simt`, or in full, on the SIMT engine. */
static void expect_alike(th_session *session, twins *both, bool simt)
{
    expect_on(session, both, CLMGK_ENGINE_LANE);
    if (simt || session->full)
        expect_on(session, both, CLMGK_ENGINE_SIMT);
}

static const uint32_t all = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

static const char score[] = "c * tanh(s / c) - slope[h, (i + j) % 3] * abs(j - i - (S - N))";
static const char mask[] = "let d = j - i - (S - N); d >= -30 && d <= 12 && (i % 3 == 0 || (i + j) % 5 != 0)";

static bool is_seen(int64_t i, int64_t j)
{
    return i % 3 == 0 || (i + j) % 5 != 0;
}

/* Soft-cap, ALiBi, a window, and a bias of -inf; some rows see no key. */
static twins softmax_twins(int64_t length, int64_t length_k, const char *score_text)
{
    clmgk_attention_desc plain = th_small_desc(CLMGK_VARIANT_SOFTMAX, length, length_k);
    plain.gradients = all;
    plain.batch = 2;
    clmgk_attention_desc texts = plain;
    plain.softcap = 2.0;
    plain.use_alibi = plain.use_bias = plain.use_window = 1;
    plain.bias_batch = plain.bias_heads = 1;
    plain.window_left = 30;
    plain.window_right = 12;
    texts.score_mod = score_text;
    texts.mask_mod = mask;
    texts.captures[0] = (clmgk_capture){.name = "slope", .axes = 2, .shape = {plain.heads, 3}};
    texts.numbers[0] = "c";
    texts.gradients |= CLMGK_GRADIENT_NUMBERS | CLMGK_GRADIENT_CAPTURE_0;
    twins both = make_twins(&texts, &plain, (uint64_t)length);
    th_set(&both.texts, TH_NUMBERS, 0, 0, 0, 0, 0, 2.0);
    for (int64_t h = 0; h < plain.heads; h++) {
        const double slope = 0.1 * (double)(h + 1);
        th_set(&both.plain, TH_SLOPES, 0, h, 0, 0, 0, slope);
        for (int64_t n = 0; n < 3; n++)
            th_set(&both.texts, TH_CAPTURE_0, h, n, 0, 0, 0, slope);
    }
    for (int64_t i = 0; i < length; i++)
        for (int64_t j = 0; j < length_k; j++)
            th_set(&both.plain, TH_BIAS, 0, 0, 0, i, j, is_seen(i, j) ? 0.0 : -INFINITY);
    return both;
}

TH_TEST(softmax)
{
    static const int64_t shape[][2] = {{40, 90}, {1, 1}, {113, 47}, {3, 150}};
    for (size_t n = 0; n < TH_COUNT(shape); n++) {
        TWINS both = softmax_twins(shape[n][0], shape[n][1], score);
        expect_alike(session, &both, n < 3);
    }
}

/* Programs depend on a text's formula, not on sizes, values, or how it is written. */
TH_TEST(programs)
{
    TWINS both = softmax_twins(60, 60, "let x = s/c;\n c*tanh( x ) - slope[h,(i+j)%3]*abs( j-i-(S-N) )");
    const size_t built = session->built;
    expect_on(session, &both, CLMGK_ENGINE_LANE);
    both.texts.desc.gradients = 0;
    expect_on(session, &both, CLMGK_ENGINE_LANE);
    assert_int_equal(session->built, built);
}

/* A mask that is a causal mask or a window has that one's program. */
TH_TEST(windows)
{
    static const struct {
        const char *mask;
        clmgk_alignment alignment;
        int64_t left, right;
    } windows[] = {{"j <= i + S - N", CLMGK_ALIGN_BOTTOM_RIGHT, -1, 0},
                   {"abs(i - j) < 6", CLMGK_ALIGN_TOP_LEFT, 5, 5},
                   {"let d = S - N + i - j; d >= -7 && d <= 20 && true", CLMGK_ALIGN_BOTTOM_RIGHT, 20, 7},
                   {"j >= i", CLMGK_ALIGN_TOP_LEFT, 0, -1}};
    const clmgk_plan_options options = options_of(session, CLMGK_ENGINE_LANE);
    for (size_t n = 0; n < TH_COUNT(windows); n++) {
        clmgk_attention_desc plain = th_small_desc(CLMGK_VARIANT_SOFTMAX, 60, 90);
        clmgk_attention_desc texts = plain;
        plain.use_window = 1;
        plain.alignment = windows[n].alignment;
        plain.window_left = windows[n].left;
        plain.window_right = windows[n].right;
        texts.mask_mod = windows[n].mask;
        TWINS both = make_twins(&texts, &plain, n);
        th_run_pass(session, &both.plain, TH_FORWARD, &options);
        const size_t built = session->built;
        expect_on(session, &both, CLMGK_ENGINE_LANE);
        assert_int_equal(session->built, built);
    }
}

/* ---- the mixture family's other scores --------------------------------------------------------------------------- */

/* s / 2 is the score of the doubled variance. */
static void expect_half(th_session *session, clmgk_attention_desc plain, uint64_t seed)
{
    clmgk_attention_desc texts = plain;
    texts.variance = 4.0;
    plain.variance = 8.0;
    texts.score_mod = "0.5 * s";
    TWINS both = make_twins(&texts, &plain, seed);
    expect_alike(session, &both, false);
}

TH_FULL_TEST(gaussian_components)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 33, 70);
    desc.gradients = all | CLMGK_GRADIENT_PRIOR;
    desc.prior_shape = CLMGK_PRIOR_HM;
    expect_half(session, desc, 1);
}

TH_FULL_TEST(uniform_prior)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_GAUSSIAN, 33, 70);
    desc.gradients = all | CLMGK_GRADIENT_PRIOR;
    expect_half(session, desc, 2);
}

TH_FULL_TEST(shifted_keys)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 33, 70);
    desc.gradients = all | CLMGK_GRADIENT_SHIFT;
    expect_half(session, desc, 3);
}

TH_FULL_TEST(hard_estep)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 33, 70);
    desc.gradients = all;
    desc.estep = CLMGK_ESTEP_HARD;
    expect_half(session, desc, 4);
}

/* ---- mixed heads ------------------------------------------------------------------------------------------------- */

TH_TEST(mixed_heads)
{
    clmgk_attention_desc plain = th_small_desc(CLMGK_VARIANT_FISH, 33, 70);
    plain.gradients = all | CLMGK_GRADIENT_MIX | CLMGK_GRADIENT_NOISE;
    clmgk_attention_desc texts = plain;
    plain.softcap = 2.0;
    plain.causal = 1;
    texts.score_mod = "2 * tanh(s / 2)";
    texts.mask_mod = "2 * j <= 2 * (i + S - N)"; /* which is not known to be a causal mask */
    TWINS both = make_twins(&texts, &plain, 5);
    expect_alike(session, &both, false);
}

/* Heads before the mixing have texts: h counts them, and g is 0. */
static void expect_mixed_after(th_session *session, clmgk_engine engine)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_HARD_FISH, 33, 70);
    desc.mix_after_heads = 3;
    desc.score_mod = "c * tanh(s / c) + t[h + g, clamp(i - j, -5, 5) + 5]";
    desc.mask_mod = "(i + j + h) % 4 != 2";
    desc.captures[0] = (clmgk_capture){.name = "t", .axes = 2, .shape = {3, 11}};
    desc.numbers[0] = "c";
    desc.gradients =
        all | CLMGK_GRADIENT_MIX | CLMGK_GRADIENT_MIX_AFTER | CLMGK_GRADIENT_NUMBERS | CLMGK_GRADIENT_CAPTURE_0;
    const clmgk_plan_options options = options_of(session, engine);
    th_expect_shapes(session, desc, &options, 11, 0, 3);
}

TH_TEST(mixed_after)
{
    expect_mixed_after(session, CLMGK_ENGINE_LANE);
}

TH_FULL_TEST(mixed_after_by_groups)
{
    expect_mixed_after(session, CLMGK_ENGINE_SIMT);
}

/* ---- against the reference ----------------------------------------------------------------------------------------
 */

/* Texts as people write them, and every function of the language. */
typedef struct text_case {
    clmgk_variant variant;
    const char *score, *mask;
    clmgk_capture captures[2];
    const char *number;
} text_case;

static const text_case cases[] = {
    /* T5's bias of distances, and documents */
    {CLMGK_VARIANT_SOFTMAX,
     "s + t[h, clamp(i - j, -5, 5) + 5]",
     "doc[b, i] == doc[b, j]",
     {{.name = "t", .axes = 2, .shape = {2, 11}},
      {.name = "doc", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {2, 60}}},
     NULL},
    /* every function */
    {CLMGK_VARIANT_GAUSSIAN,
     "let a = sin(s) * cos(s) + erf(s) * x; let y = exp(-abs(s)) + log1p(s * s) - rsqrt(1 + sqrt(1 + s * s));"
     "a + y + tanh(s) + sigmoid(s) - 0.1 * relu(s) + 0.2 * pow(1 + abs(s), 0.7) + log(gelu(s) + 2) * floor(s) / 9",
     "(i - j) % 3 != 1 || i / 0 == 1",
     {{.name = NULL}},
     "x"},
    /* Graphormer's bias of pairs, in a layout with gaps */
    {CLMGK_VARIANT_SOFTMAX,
     "s + t[h, d[b, i, j]]",
     NULL,
     {{.name = "t", .type = CLMGK_CAPTURE_F16, .axes = 2, .shape = {2, 9}, .strided = 1, .strides = {20, 2}},
      {.name = "d", .type = CLMGK_CAPTURE_I32, .axes = 3, .shape = {2, 40, 40}}},
     NULL},
    /* forgetting attention, and weights of keys */
    {CLMGK_VARIANT_SOFTMAX,
     "w[j] * s * abs(s) + c[b, h, i] - c[b, h, j]",
     "j <= i + S - N",
     {{.name = "w", .type = CLMGK_CAPTURE_BF16, .axes = 1, .shape = {70}},
      {.name = "c", .axes = 3, .shape = {2, 2, 60}}},
     NULL},
    /* scores of -inf; some rows have no others */
    {CLMGK_VARIANT_SOFTMAX, "i % 4 == 0 || (i + j) % 5 == 0 ? -(1 / 0.0) : s", NULL, {{.name = NULL}}, NULL},
    {CLMGK_VARIANT_MGK, "s - x * pow(abs(s), 1.5) + t[r]", NULL, {{.name = "t", .axes = 1, .shape = {2}}}, "x"},
    {CLMGK_VARIANT_SMGK, "log(gelu(s) + 2) * x", "i != j", {{.name = NULL}}, "x"},
    {CLMGK_VARIANT_HARD_FISH,
     "s + t[h, clamp(i - j, -5, 5) + 5]",
     "j % 7 != 3",
     {{.name = "t", .axes = 2, .shape = {2, 11}}},
     NULL},
};

static void expect_case(th_session *session, size_t n, clmgk_engine engine, clmgk_dtype dtype, size_t count)
{
    const text_case *const x = &cases[n];
    clmgk_attention_desc desc = th_small_desc(x->variant, 33, 70);
    desc.dtype = dtype;
    desc.score_mod = x->score;
    desc.mask_mod = x->mask;
    memcpy(desc.captures, x->captures, sizeof(x->captures));
    desc.numbers[0] = x->number;
    desc.gradients = all;
    desc.gradients |= x->variant == CLMGK_VARIANT_MGK ? CLMGK_GRADIENT_VARIANCE | CLMGK_GRADIENT_PRIOR : 0;
    desc.gradients |= x->variant == CLMGK_VARIANT_SMGK ? CLMGK_GRADIENT_SHIFT : 0;
    desc.gradients |= x->number != NULL ? CLMGK_GRADIENT_NUMBERS : 0;
    for (int c = 0; c < 2; c++)
        if (x->captures[c].name != NULL && x->captures[c].type != CLMGK_CAPTURE_I32)
            desc.gradients |= (uint32_t)CLMGK_GRADIENT_CAPTURE_0 << c;
    const clmgk_plan_options options = options_of(session, engine);
    th_expect_shapes(session, desc, &options, 7 * n, 0, count);
}

TH_TEST(texts)
{
    expect_case(session, 0, CLMGK_ENGINE_LANE, CLMGK_DTYPE_F32, 8);
    expect_case(session, 1, CLMGK_ENGINE_LANE, CLMGK_DTYPE_F16, 4);
}

TH_FULL_TEST(all_texts)
{
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        expect_case(session, n, CLMGK_ENGINE_LANE, CLMGK_DTYPE_BF16, 8);
        expect_case(session, n, CLMGK_ENGINE_SIMT, CLMGK_DTYPE_F32, 4);
    }
}

/* ---- trees of drafts --------------------------------------------------------------------------------------------- */

enum { DRAFTS = 31, TREES = 3, PAGE = 16 };

/* Sequences in pages, whose last keys are drafts: each draft sees all keys before them and its own ancestors. */
static clmgk_attention_desc drafts_desc(void)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, DRAFTS, 120);
    desc.dtype = CLMGK_DTYPE_F16;
    desc.batch = TREES;
    desc.page_size = PAGE;
    desc.table_pages = (desc.length_k + PAGE - 1) / PAGE;
    desc.pages = TREES * desc.table_pages + 2;
    desc.use_lengths = 1;
    return desc;
}

/* A tree in bits [b,i], bit m for draft m, and as a bias. */
static void plant(twins *both, int64_t b, int64_t accepted, uint64_t *state)
{
    uint32_t ancestors[DRAFTS];
    th_set(&both->plain, TH_LENGTHS, b, 0, 0, 0, 0, (double)(accepted + DRAFTS));
    th_set(&both->texts, TH_CAPTURE_2, b, 0, 0, 0, 0, (double)accepted);
    for (int64_t i = 0; i < DRAFTS; i++) {
        const int64_t parent = th_pick(state, -1, i - 1);
        ancestors[i] = 1U << i | (parent >= 0 ? ancestors[parent] : 0U);
        th_set(&both->texts, TH_CAPTURE_0, b, i, 0, 0, 0, (double)ancestors[i]);
        th_set(&both->texts, TH_CAPTURE_1, i, 0, 0, 0, 0, (double)(1U << i));
        for (int64_t j = 0; j < both->plain.desc.length_k; j++) {
            const int64_t m = j - accepted;
            const bool seen = m < 0 || (m < DRAFTS && (ancestors[i] >> m & 1U) != 0);
            th_set(&both->plain, TH_BIAS, b, 0, 0, i, j, seen ? 0.0 : -(double)INFINITY);
        }
    }
}

/* As in docs/recipes.md, with lengths that differ. */
static twins draft_twins(void)
{
    static const int64_t accepted[TREES] = {50, 0, 89};
    static const th_name same[] = {TH_Q, TH_K, TH_V, TH_LENGTHS, TH_PAGE_TABLE};
    clmgk_attention_desc plain = drafts_desc(), texts = plain;
    uint64_t state = 5;
    plain.use_bias = 1;
    plain.bias_batch = TREES;
    plain.bias_heads = 1;
    texts.mask_mod = "let m = j - first[b]; m < 0 || ancestors[b, i] / two[m] % 2 == 1";
    texts.captures[0] =
        (clmgk_capture){.name = "ancestors", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {TREES, DRAFTS}};
    texts.captures[1] = (clmgk_capture){.name = "two", .type = CLMGK_CAPTURE_I32, .axes = 1, .shape = {DRAFTS}};
    texts.captures[2] = (clmgk_capture){.name = "first", .type = CLMGK_CAPTURE_I32, .axes = 1, .shape = {TREES}};
    twins both = {th_problem_make(&texts, 1), th_problem_make(&plain, 1)};
    for (int64_t b = 0; b < TREES; b++)
        plant(&both, b, accepted[b], &state);
    th_fit_tables(&both.plain);
    th_poison_pages(&both.plain);
    for (size_t n = 0; n < TH_COUNT(same); n++)
        th_copy_values(&both.texts, &both.plain, same[n]);
    return both;
}

TH_FULL_TEST(trees_of_drafts)
{
    static const clmgk_engine engines[] = {CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT, CLMGK_ENGINE_MATRIX};
    TWINS both = draft_twins();
    for (size_t n = 0; n < TH_COUNT(engines); n++)
        expect_on(session, &both, engines[n]);
}

/* ---- as many arrays as a score can have -------------------------------------------------------------------------- */

static void take_most_arrays(clmgk_attention_desc *desc)
{
    static const char *const captures[CLMGK_MAX_CAPTURES] = {"t", "u", "v", "w", "x", "y", "z", "d"};
    static const char *const numbers[CLMGK_MAX_NUMBERS] = {"n0", "n1", "n2",  "n3",  "n4",  "n5",  "n6",  "n7",
                                                           "n8", "n9", "n10", "n11", "n12", "n13", "n14", "n15"};
    desc->score_mod =
        "s * n0 + t[h] * n1 + u[b, i] * n2 + v[j] * n3 + w[h, i - j + 9] * n4 + x[d[i, j]] * n5 + y[g] * n6 +"
        "z[0, 0, h, j] * (n7 + n8 * n9 + n10 - n11 + n12 * n13) + n14 * tanh(s) * n15";
    desc->mask_mod = "(i + 2 * j) % 5 != 3";
    for (int c = 0; c < CLMGK_MAX_CAPTURES; c++)
        desc->captures[c] = (clmgk_capture){.name = captures[c], .axes = 1, .shape = {5}};
    desc->captures[1] = (clmgk_capture){.name = "u", .axes = 2, .shape = {2, 40}};
    desc->captures[3] = (clmgk_capture){.name = "w", .axes = 2, .shape = {2, 20}, .strided = 1, .strides = {1, 3}};
    desc->captures[6] = (clmgk_capture){.name = "z", .axes = 4, .shape = {1, 1, 2, 60}};
    desc->captures[7] = (clmgk_capture){.name = "d", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {40, 80}};
    for (int n = 0; n < CLMGK_MAX_NUMBERS; n++)
        desc->numbers[n] = numbers[n];
    desc->gradients |= all | CLMGK_GRADIENT_NUMBERS;
}

static void want_arrays(clmgk_attention_desc *desc)
{
    for (int c = 0; c < CLMGK_MAX_CAPTURES - 1; c++)
        desc->gradients |= (uint32_t)CLMGK_GRADIENT_CAPTURE_0 << c;
}

TH_TEST(most_arrays)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 33, 70);
    take_most_arrays(&desc);
    want_arrays(&desc);
    const clmgk_plan_options options = options_of(session, CLMGK_ENGINE_LANE);
    th_expect_shapes(session, desc, &options, 3, 0, 2);
}

/* Together with all other arrays they fit the arguments of every kernel. */
TH_TEST(most_arguments)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_MGK,       CLMGK_VARIANT_SMGK,
                                             CLMGK_VARIANT_FISH,    CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_GFISH};
    static const clmgk_engine engines[] = {CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT};
    for (size_t n = 0; n < TH_COUNT(variants) * TH_COUNT(engines) * 2; n++) {
        const clmgk_engine engine = engines[n / 2 % TH_COUNT(engines)];
        clmgk_attention_desc desc = th_small_desc(variants[n / 2 / TH_COUNT(engines)], 33, 70);
        take_most_arrays(&desc);
        want_arrays(&desc);
        desc.use_bias = desc.use_alibi = desc.use_sinks = desc.use_lse_low = 1;
        desc.gradients |= CLMGK_GRADIENT_BIAS | CLMGK_GRADIENT_SINKS;
        if (n % 2 == 0) {
            desc.batch = 1;
            desc.sequences = 3;
            desc.use_offsets_k = 1;
        } else {
            desc.use_lengths = desc.use_lengths_q = 1;
        }
        if (desc.variant == CLMGK_VARIANT_MGK || desc.variant == CLMGK_VARIANT_SMGK) {
            desc.variance_shape = CLMGK_VARIANCE_HM;
            desc.prior_shape = CLMGK_PRIOR_HM;
            desc.gradients |= CLMGK_GRADIENT_VARIANCE | CLMGK_GRADIENT_PRIOR;
            desc.statistics = CLMGK_STATISTIC_RESPONSIBILITIES;
        }
        desc.use_mix_weight = desc.use_mix_offset = desc.variant == CLMGK_VARIANT_GFISH;
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        options.engine = engine;
        th_expect_ok(clmgk_attention_supported(session->context, &desc, &options, &th_error));
    }
}

/* The matrix engine, whose units a CPU emulates. */
TH_TEST(texts_on_matrix_units)
{
    expect_case(session, 0, CLMGK_ENGINE_MATRIX, CLMGK_DTYPE_BF16, 2);
}

TH_FULL_TEST(all_texts_on_matrix_units)
{
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        const bool singles = n % 2 == 1 && cases[n].variant != CLMGK_VARIANT_HARD_FISH;
        expect_case(session, n, CLMGK_ENGINE_MATRIX, singles ? CLMGK_DTYPE_F32 : CLMGK_DTYPE_BF16, 2);
    }
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

TH_TEST(responsibilities)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 33, 70);
    desc.prior_shape = CLMGK_PRIOR_HM;
    desc.score_mod = "s + 0.1 * abs(s) * r";
    desc.mask_mod = "i % 4 != 1 && (i + j) % 3 != 0";
    desc.statistics = CLMGK_STATISTIC_RESPONSIBILITIES | CLMGK_STATISTIC_COUNTS | CLMGK_STATISTIC_NLL;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_expect_statistics(session, &problem, false);
}
