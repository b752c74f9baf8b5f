/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer's reference: gradients of every family and option against central differences of the loss
 * sum(out dout) + sum(C dC) + sum(z dz), and what the forward formula must satisfy.
 */
#include "harness/layer.h"
#include "reference/layer_pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 2, N = 3, S = 4, M = 3, D = 4, E = 3, W = 5, W2 = 6, W3 = 2 };

/* Of every variant. */
static const tl_case sets[] = {
    {.name = "bare"},
    {.name = "all weights packed, biases, normalised after",
     .layer = {.packed_weights = 1, .use_bias = 1, .use_bias_o = 1, .residual = 1, .norm = CLMGK_NORM_POST}},
    {.name = "cross, biases, normalised before",
     .layer = {.cross = 1, .width_k = W2, .use_bias = 1, .residual = 1, .norm = CLMGK_NORM_PRE},
     .attention = {.length_k = S}},
    {.name = "keys and values of inputs of their own, biases",
     .layer = {.cross = 1, .cross_v = 1, .width_k = W2, .width_v = W3, .use_bias = 1},
     .attention = {.length_k = S}},
    {.name = "keys and values of inputs of their own, all weights packed",
     .layer = {.cross = 1, .cross_v = 1, .packed_weights = 1, .use_bias = 1, .rotary = CLMGK_ROTARY_PAIRS},
     .attention = {.length_k = S}},
    {.name = "query and key normalisation, rotation of halves",
     .layer = {.qk_norm = 1, .rotary = CLMGK_ROTARY_HALVES, .norm_epsilon = 0.1, .use_bias = 1}},
    {.name = "packed weights, rotation of a part, in pairs",
     .layer = {.packed_weights = 1, .rotary = CLMGK_ROTARY_PAIRS, .rotary_size = 2, .rotary_base = 3.0, .residual = 1}},
    {.name = "dropout, normalised before, causal",
     .layer = {.dropout = 0.4, .residual = 1, .norm = CLMGK_NORM_PRE, .use_bias_o = 1},
     .attention = {.causal = 1}},
    {.name = "dropout, normalised after, lengths",
     .layer = {.dropout = 0.3, .norm = CLMGK_NORM_POST, .qk_norm = 1, .packed_weights = 1},
     .attention = {.use_lengths = 1, .use_lengths_q = 1}},
    {.name = "packed sequences, rotation, cross",
     .layer = {.cross = 1, .rotary = CLMGK_ROTARY_HALVES, .rotary_base = 2.0, .use_bias = 1},
     .attention = {.batch = 1, .length_k = S, .sequences = 2, .use_offsets_k = 1}},
    {.name = "packed sequences, rotation in pairs",
     .layer = {.rotary = CLMGK_ROTARY_PAIRS, .packed_weights = 1, .use_bias = 1},
     .attention = {.batch = 1, .sequences = 2, .causal = 1}},
    {.name = "grouped heads", .layer = {.use_bias = 1, .packed_weights = 1}, .attention = {.kv_heads = 1}},
    {.name = "weights dropped, sinks, bias",
     .layer = {.norm = CLMGK_NORM_PRE},
     .attention = {.dropout = 0.3, .use_sinks = 1, .use_bias = 1},
     .no_linear = true},
    {.name = "states",
     .layer = {.rotary = CLMGK_ROTARY_HALVES, .use_positions = 1, .residual = 1},
     .attention = {.use_state = 1, .use_new_state = 1, .causal = 1},
     .linear = true},
};

static uint32_t traits_of(clmgk_variant variant)
{
    return clmgk_variant_traits(variant);
}

/* Whether the variant has the set's options. */
static bool fits(clmgk_variant variant, const tl_case *set)
{
    const bool linear = (traits_of(variant) & CLMGK_TRAIT_LINEAR) != 0;
    return !(linear ? set->no_linear : set->linear);
}

/* Away from 0: mixing of one sign, small noise. */
static void keep_denominators(th_problem *problem)
{
    static const th_name mixing[] = {TH_MIX, TH_MIX_WEIGHT};
    for (size_t name = 0; name < TH_COUNT(mixing); name++)
        for (size_t n = 0; problem->array[mixing[name]].used && n < problem->array[mixing[name]].count; n++)
            problem->array[mixing[name]].values[n] = 0.5 + fabs(problem->array[mixing[name]].values[n]);
    th_scale(problem, TH_NOISE, 0.1);
}

static tl_problem make(clmgk_variant variant, const tl_case *set, uint64_t seed)
{
    const uint32_t traits = traits_of(variant);
    clmgk_attention_desc a = set->attention;
    clmgk_layer_desc d = set->layer;
    const bool many = (traits & (CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT | CLMGK_TRAIT_ADMIXTURE)) != 0;
    a.variant = variant;
    a.batch = a.batch > 0 ? a.batch : B;
    a.heads = H;
    a.components = many && (traits & CLMGK_TRAIT_SQUARE) == 0 ? M : 0;
    a.length = N;
    a.head_size = D;
    a.value_size = E;
    a.prior_shape = (traits & CLMGK_TRAIT_PRIOR) != 0 ? CLMGK_PRIOR_HM : CLMGK_PRIOR_UNIFORM;
    a.use_mix_weight = (traits & CLMGK_TRAIT_GENERALISED) != 0;
    if ((traits & CLMGK_TRAIT_LINEAR) != 0 && !a.use_new_state) /* smooth; a state of it has a scale of its own */
        a.feature = CLMGK_FEATURE_EXP;
    a.gradients = th_all_gradients(&a) & ~(uint32_t)(CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V);
    d.attention = &a;
    d.width = W;
    tl_problem problem = tl_make(&d, seed);
    if ((traits & CLMGK_TRAIT_LINEAR) != 0)
        keep_denominators(&problem.attention);
    return problem;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Room for the outputs of a problem here. */
typedef struct outputs {
    double out[B * N * W];
    double state[CLMGK_REF_STATES][256];
} outputs;

static double loss(const clmgk_ref_layer *layer)
{
    static outputs o;
    const clmgk_ref_problem *const p = &layer->attention;
    const bool has_state = p->desc.use_new_state != 0;
    double *const state[] = {o.state[0], o.state[1], o.state[2]};
    double sum = 0.0;
    assert_true(clmgk_ref_layer_forward(layer, o.out, has_state ? state : NULL));
    for (int64_t n = 0; n < p->desc.batch * N * W; n++)
        sum += o.out[n] * layer->grad_out[n];
    if (has_state) {
        const int64_t features = p->desc.batch * p->desc.heads * p->desc.features;
        const bool mixed = (traits_of(p->desc.variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
        const int64_t c = features * E * (mixed ? p->desc.components : 1);
        const int64_t z = mixed ? p->desc.batch * p->desc.components * p->desc.features : features;
        assert_true(c <= (int64_t)TH_COUNT(o.state[0]));
        for (int64_t n = 0; n < c; n++)
            sum += o.state[0][n] * p->grad_new_state_c[n];
        for (int64_t n = 0; n < z; n++)
            sum += o.state[1][n] * p->grad_new_state_z[n];
    }
    return sum;
}

static double difference(const clmgk_ref_layer *layer, double *x, double h)
{
    const double x0 = *x;
    *x = x0 + h;
    const double above = loss(layer);
    *x = x0 - h;
    const double below = loss(layer);
    *x = x0;
    return (above - below) / (2.0 * h);
}

/* By Richardson's rule: without the term h^2. */
static double derivative(const clmgk_ref_layer *layer, double *x)
{
    static const double h = 4e-4;
    return (4.0 * difference(layer, x, h / 2.0) - difference(layer, x, h)) / 3.0;
}

/* Compares a few elements of x with their gradients, other elements every time. */
static void check(const char *name, const clmgk_ref_layer *layer, const clmgk_ref_arrays *gradients, int which,
                  double *x, uint64_t *state)
{
    enum { FEW = 10 };
    const int64_t count = gradients->count[which];
    const double scale = fmax(1.0, gradients->bound[which].max_abs);
    for (int64_t n = 0; n < count && n < FEW; n++) {
        const int64_t at = count <= FEW ? n : th_pick(state, 0, count - 1);
        const double exact = gradients->exact[which][at];
        const double expected = derivative(layer, &x[at]);
        if (!isinf(x[at]) && fabs(exact - expected) > 1e-7 * scale)
            fail_msg("%s, %s, element %lld: %.12g, differences give %.12g", name, gradients->names[which],
                     (long long)at, exact, expected);
    }
    if (gradients->bound[which].plain_error > 2e-5 * scale)
        fail_msg("%s, %s: the plain formula errs by %g", name, gradients->names[which],
                 gradients->bound[which].plain_error);
}

/* The array of a gradient, by the bits' order. */
static const clmgk_layer_array layer_arrays[] = {
#define ARRAY(name, ...) CLMGK_LAYER_ARRAY_##name,
    CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, ARRAY)
#undef ARRAY
};
static const th_name attention_arrays[] = {
#define ARRAY(name, ...) TH_##name,
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, ARRAY, CLMGK_ARRAY_NONE)
#undef ARRAY
};

static void check_all(const char *name, tl_problem *problem, uint64_t *state)
{
    clmgk_ref_layer layer = tl_reference(problem);
    TL_ANSWER answer;
    assert_true(clmgk_ref_layer_solve(&layer, true, &answer));
    for (int which = 0; which < CLMGK_REF_LAYER_GRADIENTS; which++)
        check(name, &layer, &answer.gradients, which, problem->array[layer_arrays[which]].values, state);
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        double *const x = problem->attention.array[attention_arrays[which]].values;
        const bool number = which == CLMGK_REF_GRAD_VARIANCE;
        if (x || number)
            check(name, &layer, &answer.attention, which, number ? &layer.attention.desc.variance : x, state);
    }
    if (answer.outputs.bound[CLMGK_REF_LAYER_OUT].plain_error > 2e-5)
        print_message("%s: the plain formula errs by %g", name, answer.outputs.bound[CLMGK_REF_LAYER_OUT].plain_error);
}

TH_HOST_TEST(gradients_are_those_of_the_loss)
{
    uint64_t state = 1;
    for (clmgk_variant variant = 0; clmgk_variant_name(variant); variant++)
        for (size_t n = 0; n < TH_COUNT(sets); n++) {
            if (!fits(variant, &sets[n]))
                continue;
            char name[128];
            snprintf(name, sizeof(name), "%s, %s", clmgk_variant_name(variant), sets[n].name);
            TL_PROBLEM problem = make(variant, &sets[n], 7 * n + variant + 2);
            check_all(name, &problem, &state);
        }
}

/* ---- the formula ------------------------------------------------------------------------------------------------- */

static void expect_near(size_t count, const double *given, const double *expected, const char *what)
{
    for (size_t n = 0; n < count; n++)
        if (fabs(given[n] - expected[n]) > 1e-12)
            fail_msg("%s, element %zu: %.12g, not %.12g", what, n, given[n], expected[n]);
}

/* Packed weights, one below the other, are equivalent to three separate weights. */
TH_HOST_TEST(packed_weights_are_three)
{
    static const clmgk_layer_array parts[] = {CLMGK_LAYER_ARRAY_WEIGHT_Q, CLMGK_LAYER_ARRAY_WEIGHT_K,
                                              CLMGK_LAYER_ARRAY_WEIGHT_V, CLMGK_LAYER_ARRAY_BIAS_Q,
                                              CLMGK_LAYER_ARRAY_BIAS_K,   CLMGK_LAYER_ARRAY_BIAS_V};
    static const tl_case packed = {.layer = {.packed_weights = 1, .use_bias = 1, .rotary = CLMGK_ROTARY_PAIRS}};
    static const tl_case apart = {.layer = {.use_bias = 1, .rotary = CLMGK_ROTARY_PAIRS}};
    TL_PROBLEM one = make(CLMGK_VARIANT_MGK, &packed, 1);
    TL_PROBLEM three = make(CLMGK_VARIANT_MGK, &apart, 1);
    const double *from = one.array[CLMGK_LAYER_ARRAY_WEIGHT_QKV].values;
    for (size_t n = 0; n < TH_COUNT(parts); n++) {
        if (n == 3)
            from = one.array[CLMGK_LAYER_ARRAY_BIAS_QKV].values;
        memcpy(three.array[parts[n]].values, from, three.array[parts[n]].count * sizeof(double));
        from += three.array[parts[n]].count;
    }
    const clmgk_layer_array same[] = {CLMGK_LAYER_ARRAY_X, CLMGK_LAYER_ARRAY_WEIGHT_O};
    for (size_t n = 0; n < TH_COUNT(same); n++)
        memcpy(three.array[same[n]].values, one.array[same[n]].values, one.array[same[n]].count * sizeof(double));
    double out[2][B * N * W];
    const clmgk_ref_layer first = tl_reference(&one), second = tl_reference(&three);
    assert_true(clmgk_ref_layer_forward(&first, out[0], NULL));
    assert_true(clmgk_ref_layer_forward(&second, out[1], NULL));
    expect_near(TH_COUNT(out[0]), out[0], out[1], "out");
}

/* Tokens one by one through a cache give the rows of the causal layer over all tokens. */
TH_HOST_TEST(a_cache_holds_what_was)
{
    enum { CAPACITY = N + 2 };
    static const tl_case causal = {.layer = {.rotary = CLMGK_ROTARY_HALVES, .qk_norm = 1, .use_bias = 1},
                                   .attention = {.causal = 1}};
    TL_PROBLEM whole = make(CLMGK_VARIANT_SMGK, &causal, 3);
    clmgk_ref_layer layer = tl_reference(&whole);
    double expected[B * N * W];
    assert_true(clmgk_ref_layer_forward(&layer, expected, NULL));

    double x[B * W], cache_k[B * H * CAPACITY * D] = {0}, cache_v[B * H * CAPACITY * E] = {0};
    const double *const all = layer.x;
    layer.x = x;
    layer.cache_k = cache_k;
    layer.cache_v = cache_v;
    layer.desc.cache_capacity = CAPACITY;
    layer.attention.desc.length = 1;
    layer.attention.desc.length_k = CAPACITY;
    layer.attention.desc.use_lengths = 1;
    layer.attention.desc.alignment = CLMGK_ALIGN_LENGTHS;
    for (int32_t n = 0; n < N; n++) {
        const int32_t lengths[B] = {n + 1, n + 1};
        TL_ANSWER answer;
        layer.attention.lengths = lengths;
        for (int64_t b = 0; b < B; b++)
            memcpy(x + b * W, all + (b * N + n) * W, W * sizeof(double));
        assert_true(clmgk_ref_layer_solve(&layer, false, &answer));
        for (int64_t b = 0; b < B; b++)
            expect_near(W, answer.outputs.exact[CLMGK_REF_LAYER_OUT] + b * W, expected + (b * N + n) * W, "out");
        memcpy(cache_k, answer.outputs.exact[CLMGK_REF_LAYER_CACHE_K], sizeof(cache_k));
        memcpy(cache_v, answer.outputs.exact[CLMGK_REF_LAYER_CACHE_V], sizeof(cache_v));
    }
    for (size_t n = 0; n < TH_COUNT(cache_k); n++) /* tokens beyond the lengths are as they were */
        assert_true((cache_k[n] == 0.0) == (n / D % CAPACITY >= N));
}

/* Two tokens, one head, all weights 1 on the diagonal: O and LN by hand. */
TH_HOST_TEST(rotation_normalisation_and_residual)
{
    static const double unit[4] = {1.0, 0.0, 0.0, 1.0}, x[4] = {0.3, -1.1, 0.7, 0.4}, gain[2] = {2.0, 0.5};
    static const double bias[2] = {0.1, -0.2};
    const clmgk_attention_desc desc = {
        .struct_size = sizeof(desc), .batch = 1, .heads = 1, .length = 2, .head_size = 2};
    clmgk_ref_layer layer = {.desc = {.width = 2, .residual = 1, .norm = CLMGK_NORM_POST, .norm_epsilon = 0.25},
                             .x = x,
                             .norm_gain = gain,
                             .norm_bias = bias};
    layer.weight_q = layer.weight_k = layer.weight_v = layer.weight_o = unit;
    layer.desc.width_k = layer.desc.width_v = layer.desc.rotary_size = 2;
    layer.desc.rotary = CLMGK_ROTARY_PAIRS;
    layer.desc.rotary_base = 10.0;
    th_expect_ok(clmgk_attention_validate(&desc, &layer.attention.desc, &th_error));
    double out[4], expected[4];
    assert_true(clmgk_ref_layer_forward(&layer, out, NULL));
    for (size_t i = 0; i < 2; i++) {
        double weight[2], h[2];
        for (size_t j = 0; j < 2; j++) { /* q_i and k_j are rotated by i and j radians: their angles add up to j - i */
            const double *const q = x + 2 * i, *const k = x + 2 * j;
            const double angle = (double)j - (double)i;
            const double rotated[2] = {k[0] * cos(angle) - k[1] * sin(angle), k[0] * sin(angle) + k[1] * cos(angle)};
            weight[j] = exp((q[0] * rotated[0] + q[1] * rotated[1]) / sqrt(2.0));
        }
        for (size_t e = 0; e < 2; e++)
            h[e] = (weight[0] * x[e] + weight[1] * x[2 + e]) / (weight[0] + weight[1]) + x[2 * i + e];
        const double half = (h[0] - h[1]) / 2.0, factor = 1.0 / sqrt(half * half + 0.25);
        expected[2 * i] = half * factor * gain[0] + bias[0];
        expected[2 * i + 1] = -half * factor * gain[1] + bias[1];
    }
    expect_near(4, out, expected, "out");
}

/* The expected number of elements is dropped, others are scaled; all elements of a layer are independent draws. */
TH_HOST_TEST(dropout_is_of_the_output)
{
    enum { TOKENS = 20, WIDTH = 50, ALL = 3 * TOKENS * WIDTH };
    const clmgk_ref_layer layer = {.desc = {.dropout = 0.25}, .attention = {.seed = 5}};
    int dropped = 0, equal = 0;
    for (int64_t b = 0; b < 3; b++)
        for (int64_t n = 0; n < TOKENS; n++)
            for (int64_t w = 0; w < WIDTH; w++) {
                const double factor = clmgk_ref_layer_dropout(&layer, b, n, w);
                assert_true(factor == 0.0 || factor == 1.0 / 0.75);
                dropped += factor == 0.0;
                equal += factor == clmgk_ref_layer_dropout(&layer, (b + 1) % 3, n, w);
            }
    assert_in_range(dropped, ALL * 0.22, ALL * 0.28);
    assert_in_range(equal, ALL * 0.58, ALL * 0.67); /* 0.75^2 + 0.25^2 */
}

/* Gradients hold for any positions. A packed token's count from the first token of its sequence: one that begins before
 * the axis, one without tokens, and the tokens before and behind all of them. */
TH_HOST_TEST(positions_of_packed_tokens)
{
    static const int32_t offsets[] = {-2, 3, 3, 7}, offsets_k[] = {1, 2, 6, 8};
    static const int64_t expected[] = {0, 1, 2, 0, 1, 2, 3, 0}, expected_k[] = {0, 0, 0, 1, 2, 3, 0, 1, 0};
    const clmgk_ref_layer layer = {0};
    const layer_stream q = {.side = LAYER_Q}, k = {.side = LAYER_K};
    layer_pass pass = {.layer = &layer};
    pass.attention.desc.sequences = 3;
    pass.attention.offsets = offsets;
    pass.attention.offsets_k = offsets_k;
    for (int64_t i = 0; i < (int64_t)TH_COUNT(expected); i++)
        assert_int_equal(ref_layer_position(&pass, &q, 0, i), expected[i]);
    pass.attention.desc.use_offsets_k = 1;
    for (int64_t j = 0; j < (int64_t)TH_COUNT(expected_k); j++)
        assert_int_equal(ref_layer_position(&pass, &k, 0, j), expected_k[j]);
}
