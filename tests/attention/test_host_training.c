/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on host arrays beyond the forward pass: gradients and statistics of a problem that has every array, held
 * against the reference; what they add to; and the values that only these calls check. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 4096, GAP = 3, SEQUENCES = 3 };

typedef enum input {
    Q,
    K,
    V,
    PRIOR,
    VARIANCE,
    SHIFT,
    BIAS,
    SLOPES,
    SINKS,
    MIX,
    MIX_WEIGHT,
    MIX_OFFSET,
    NOISE,
    GRAD_O,
    GRAD_LSE,
    INPUTS
} input;

/* A problem in dense f32 arrays, and the same numbers for the reference. */
typedef struct scene {
    clmgk_attention_desc desc; /* resolved */
    size_t count[INPUTS];
    float *input[INPUTS];
    double *value[INPUTS];
    int32_t lengths[2], lengths_q[2], offsets[SEQUENCES + 1], offsets_k[SEQUENCES + 1];
    float *o, *lse;
    clmgk_host_args args;
    clmgk_ref_problem problem;
} scene;

static size_t product(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (size_t)(a * b * c * d);
}

static bool is_mixed(const clmgk_attention_desc *desc)
{
    return (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
}

static void count_elements(scene *s)
{
    const clmgk_attention_desc *const d = &s->desc;
    s->count[Q] = product(d->batch, is_mixed(d) ? d->components : d->heads, d->length, d->head_size);
    s->count[K] = product(d->batch, is_mixed(d) ? d->components : d->kv_heads, d->length_k, d->head_size);
    s->count[V] = product(d->batch, d->kv_heads, d->length_k, d->value_size);
    s->count[PRIOR] = product(d->heads, d->components, d->length_k, 1);
    s->count[VARIANCE] = product(d->heads, d->components, 1, 1);
    s->count[SHIFT] = product(d->heads, d->components, d->head_size, 1);
    s->count[BIAS] = product(d->bias_batch, d->bias_heads, d->bias_length, d->bias_length_k);
    s->count[SLOPES] = s->count[SINKS] = s->count[MIX_OFFSET] = (size_t)d->heads;
    s->count[MIX] = s->count[MIX_WEIGHT] = product(d->heads, d->components, 1, 1);
    s->count[NOISE] = (size_t)d->components;
    s->count[GRAD_O] = product(d->batch, d->heads, d->length, d->value_size);
    s->count[GRAD_LSE] = product(d->batch, d->heads, d->length, 1);
}

static double random_input(input which, double size, uint64_t *state)
{
    const double uniform = th_uniform(state);
    switch (which) {
    case PRIOR:
        return 0.05 + 0.95 * uniform;
    case VARIANCE:
        return size * (0.5 + uniform);
    case SLOPES:
        return 0.3 * uniform;
    case NOISE:
        return uniform;
    default:
        return 3.0 * uniform - 1.5;
    }
}

static void fill_inputs(scene *s, uint64_t seed)
{
    for (input n = 0; n < INPUTS; n++) {
        s->input[n] = calloc(s->count[n] + 1, sizeof(float)); /* + 1: no elements is no failure */
        s->value[n] = calloc(s->count[n] + 1, sizeof(double));
        assert_true(s->input[n] && s->value[n]);
        for (size_t i = 0; i < s->count[n]; i++) {
            s->input[n][i] = (float)random_input(n, sqrt((double)s->desc.head_size), &seed);
            s->value[n][i] = (double)s->input[n][i];
        }
    }
}

/* What any family can have at once; `packed`: sequences instead of lengths. */
static void add_everything(clmgk_attention_desc *d, bool packed)
{
    d->length = 9;
    d->length_k = 13;
    d->use_window = 1;
    d->window_left = 4;
    d->window_right = 5;
    d->use_bias = d->use_alibi = d->use_sinks = 1;
    d->bias_batch = 1;
    d->dropout = 0.2;
    d->batch = packed ? 1 : 2;
    d->use_lengths = d->use_lengths_q = !packed;
    d->sequences = packed ? SEQUENCES : 0;
    d->use_offsets_k = packed;
    d->gradients = th_all_gradients(d);
}

/* SMGK with all that can be had. */
static clmgk_attention_desc every_array(bool packed)
{
    clmgk_attention_desc desc = th_full_desc();
    desc.statistics = CLMGK_STATISTIC_ALL;
    add_everything(&desc, packed);
    return desc;
}

/* GFISH with all that can be had. */
static clmgk_attention_desc every_mixed_array(bool packed)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_GFISH, 9, 13);
    desc.use_mix_weight = desc.use_mix_offset = 1;
    add_everything(&desc, packed);
    return desc;
}

static scene open_scene(const clmgk_attention_desc *desc, uint64_t seed)
{
    scene s = {.lengths = {11, 13}, .lengths_q = {9, 6}, .offsets = {0, 4, 4, 9}, .offsets_k = {0, 6, 8, 13}};
    clmgk_error error = {0};
    if (clmgk_attention_validate(desc, &s.desc, &error) != CLMGK_OK)
        fail_msg("%s", error.message);
    count_elements(&s);
    fill_inputs(&s, seed);
    s.o = calloc(s.count[GRAD_O], sizeof(float));
    s.lse = calloc(s.count[GRAD_LSE], sizeof(float));
    assert_true(s.o && s.lse);
    return s;
}

/* Pointers into the scene, which may not move from here on. */
static void point(scene *s)
{
    const bool packed = s->desc.sequences > 0;
    const bool mixed = is_mixed(&s->desc);
    s->args = (clmgk_host_args)CLMGK_HOST_ARGS_INIT;
    s->args.q = s->input[Q];
    s->args.k = s->input[K];
    s->args.v = s->input[V];
    s->args.o = s->o;
    s->args.lse = s->lse;
    s->args.prior = mixed ? NULL : s->input[PRIOR];
    s->args.variance = mixed ? NULL : s->input[VARIANCE];
    s->args.shift = mixed ? NULL : s->input[SHIFT];
    s->args.mix = mixed ? s->input[MIX] : NULL;
    s->args.mix_weight = mixed ? s->input[MIX_WEIGHT] : NULL;
    s->args.mix_offset = mixed ? s->input[MIX_OFFSET] : NULL;
    s->args.noise = mixed ? s->input[NOISE] : NULL;
    s->args.lengths = packed ? NULL : s->lengths;
    s->args.lengths_q = packed ? NULL : s->lengths_q;
    s->args.offsets = packed ? s->offsets : NULL;
    s->args.offsets_k = packed ? s->offsets_k : NULL;
    s->args.bias = s->input[BIAS];
    s->args.slopes = s->input[SLOPES];
    s->args.sinks = s->input[SINKS];
    s->args.seed = 0x123456789abcdef0;
    s->problem = (clmgk_ref_problem){.desc = s->desc,
                                     .q = s->value[Q],
                                     .k = s->value[K],
                                     .v = s->value[V],
                                     .prior = s->value[PRIOR],
                                     .variance = s->value[VARIANCE],
                                     .shift = s->value[SHIFT],
                                     .lengths = s->args.lengths,
                                     .lengths_q = s->args.lengths_q,
                                     .offsets = s->args.offsets,
                                     .offsets_k = s->args.offsets_k,
                                     .bias = s->value[BIAS],
                                     .slopes = s->value[SLOPES],
                                     .sinks = s->value[SINKS],
                                     .mix = s->value[MIX],
                                     .mix_weight = s->value[MIX_WEIGHT],
                                     .mix_offset = s->value[MIX_OFFSET],
                                     .noise = s->value[NOISE],
                                     .seed = s->args.seed,
                                     .grad_o = s->value[GRAD_O],
                                     .grad_lse = s->value[GRAD_LSE]};
}

static void close_scene(scene *s)
{
    for (size_t n = 0; n < INPUTS; n++) {
        free(s->input[n]);
        free(s->value[n]);
    }
    free(s->o);
    free(s->lse);
}

static void run_forward(scene *s)
{
    clmgk_error error = {0};
    clmgk_ref_answer answer;
    double o[ROOM];
    double lse[ROOM];
    if (clmgk_attention_forward_host(NULL, &s->desc, &s->args, &error) != CLMGK_OK)
        fail_msg("%s", error.message);
    for (size_t n = 0; n < s->count[GRAD_O]; n++)
        o[n] = (double)s->o[n];
    for (size_t n = 0; n < s->count[GRAD_LSE]; n++)
        lse[n] = (double)s->lse[n];
    assert_true(clmgk_ref_solve(&s->problem, (int64_t)s->count[GRAD_LSE], NULL, &answer));
    const clmgk_ref_verdict verdict = clmgk_ref_check(&answer, o, lse);
    if (!verdict.ok)
        fail_msg("forward: %s", verdict.message);
    clmgk_ref_answer_free(&answer);
}

/* ---- gradients ----------------------------------------------------------------------------------------------------
 */

/* The outputs of a backward call, by number of the reference; all with room for gaps. */
typedef struct outputs {
    float array[CLMGK_REF_GRADIENTS][ROOM];
} outputs;

static float *wanted(const scene *s, outputs *out, clmgk_ref_gradient which)
{
    return (s->desc.gradients >> (unsigned)which & 1U) != 0 ? out->array[which] : NULL;
}

/* The call's arguments with its gradients. */
static clmgk_host_args backward_args(const scene *s, outputs *out)
{
    clmgk_host_args args = s->args;
    args.grad_o = s->input[GRAD_O];
    args.grad_lse = s->input[GRAD_LSE];
#define GRADIENT(name, field, ...) args.grad_##field = wanted(s, out, CLMGK_REF_GRAD_##name);
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, GRADIENT, CLMGK_ARRAY_NONE)
#undef GRADIENT
    return args;
}

static void run_backward(const scene *s, outputs *out, uint32_t accumulate)
{
    clmgk_error error = {0};
    clmgk_host_args args = backward_args(s, out);
    args.accumulate = accumulate;
    if (clmgk_attention_backward_host(NULL, &s->desc, &args, &error) != CLMGK_OK)
        fail_msg("%s", error.message);
}

static void fill_outputs(outputs *out, float value)
{
    for (size_t n = 0; n < CLMGK_REF_GRADIENTS; n++)
        for (size_t i = 0; i < ROOM; i++)
            out->array[n][i] = value;
}

static void check_gradients(const scene *s, const outputs *out)
{
    clmgk_ref_gradients exact;
    double given[ROOM];
    char message[256];
    assert_true(clmgk_ref_solve_gradients(&s->problem, s->desc.gradients, &exact));
    assert_int_equal(exact.set, s->desc.gradients);
    for (clmgk_ref_gradient n = 0; n < CLMGK_REF_GRADIENTS; n++) {
        if ((exact.set >> (unsigned)n & 1U) == 0)
            continue;
        assert_in_range(exact.count[n], 1, ROOM);
        for (int64_t i = 0; i < exact.count[n]; i++)
            given[i] = (double)out->array[n][i];
        (void)clmgk_ref_check_gradient(&exact, n, given, message, sizeof(message));
        if (message[0] != '\0')
            fail_msg("%s", message);
        for (int64_t i = exact.count[n]; i < ROOM; i++)
            assert_true(out->array[n][i] == 7.0F);
    }
    clmgk_ref_gradients_free(&exact);
}

/* Twice the gradient where it was added to itself, once where it was overwritten. */
static void check_accumulated(const scene *s, const outputs *once, const outputs *twice, uint32_t accumulate)
{
    for (clmgk_ref_gradient n = 0; n < CLMGK_REF_GRADIENTS; n++) {
        if ((s->desc.gradients >> (unsigned)n & 1U) == 0)
            continue;
        const float factor = (accumulate >> (unsigned)n & 1U) != 0 ? 2.0F : 1.0F;
        const int64_t count = clmgk_ref_gradient_count(&s->desc, n);
        float largest = 0.0F;
        for (int64_t i = 0; i < count; i++)
            largest = fmaxf(largest, fabsf(once->array[n][i]));
        assert_true(largest > 0.0F);
        for (int64_t i = 0; i < count; i++)
            assert_true(fabsf(twice->array[n][i] - factor * once->array[n][i]) <= 1e-6F * largest);
    }
}

TH_HOST_TEST(every_gradient)
{
    static outputs once;
    static outputs twice;
    for (int n = 0; n < 4; n++) {
        const clmgk_attention_desc desc = n < 2 ? every_array(n % 2) : every_mixed_array(n % 2);
        const uint32_t some =
            CLMGK_GRADIENT_Q | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_BIAS | CLMGK_GRADIENT_MIX | CLMGK_GRADIENT_NOISE;
        scene s = open_scene(&desc, 11 + (uint64_t)n);
        point(&s);
        run_forward(&s);
        fill_outputs(&once, 7.0F);
        run_backward(&s, &once, 0);
        check_gradients(&s, &once);
        twice = once;
        run_backward(&s, &twice, CLMGK_GRADIENT_ALL & ~some);
        check_accumulated(&s, &once, &twice, CLMGK_GRADIENT_ALL & ~some);
        twice = once;
        run_backward(&s, &twice, some);
        check_accumulated(&s, &once, &twice, some);
        close_scene(&s);
    }
}

/* What lies between the rows of a gradient keeps its value. */
TH_HOST_TEST(gaps_are_kept)
{
    static outputs dense;
    static outputs wide;
    clmgk_attention_desc desc = every_array(false);
    scene s = open_scene(&desc, 5);
    point(&s);
    run_forward(&s);
    fill_outputs(&dense, 7.0F);
    run_backward(&s, &dense, 0);
    const int64_t row = s.desc.head_size + GAP;
    s.desc.grad_q = (clmgk_layout){
        .strided = 1, .batch = row * s.desc.heads * s.desc.length, .head = row, .token = row * s.desc.heads};
    fill_outputs(&wide, 7.0F);
    run_backward(&s, &wide, 0);
    const float *const narrow = dense.array[CLMGK_REF_GRAD_Q];
    const float *const given = wide.array[CLMGK_REF_GRAD_Q];
    size_t flat = 0;
    for (int64_t b = 0; b < s.desc.batch; b++)
        for (int64_t h = 0; h < s.desc.heads; h++)
            for (int64_t i = 0; i < s.desc.length; i++) {
                const float *const at =
                    given + b * s.desc.grad_q.batch + h * s.desc.grad_q.head + i * s.desc.grad_q.token;
                for (int64_t d = 0; d < s.desc.head_size; d++, flat++)
                    assert_true(at[d] == narrow[flat]);
                for (int64_t d = s.desc.head_size; d < row; d++)
                    assert_true(at[d] == 7.0F);
            }
    close_scene(&s);
}

/* ---- statistics ---------------------------------------------------------------------------------------------------
 */

TH_HOST_TEST(every_statistic)
{
    for (int packed = 0; packed < 2; packed++) {
        const clmgk_attention_desc desc = every_array(packed);
        scene s = open_scene(&desc, 21 + (uint64_t)packed);
        float array[CLMGK_REF_STATISTICS][ROOM] = {{0}};
        double given[ROOM];
        clmgk_ref_statistics exact;
        clmgk_error error = {0};
        char message[256];
        point(&s);
        s.args.v = NULL; /* ignored: not there, or nowhere near */
        s.args.o = s.args.lse = (float *)(uintptr_t)16;
        s.args.responsibilities = array[CLMGK_REF_STAT_RESPONSIBILITIES];
        s.args.counts = array[CLMGK_REF_STAT_COUNTS];
        s.args.new_prior = array[CLMGK_REF_STAT_NEW_PRIOR];
        s.args.nll = array[CLMGK_REF_STAT_NLL];
        if (clmgk_attention_statistics_host(NULL, &s.desc, &s.args, &error) != CLMGK_OK)
            fail_msg("%s", error.message);
        assert_true(clmgk_ref_solve_statistics(&s.problem, CLMGK_STATISTIC_ALL, &exact));
        for (clmgk_ref_statistic n = 0; n < CLMGK_REF_STATISTICS; n++) {
            assert_in_range(exact.count[n], 1, ROOM);
            for (int64_t i = 0; i < exact.count[n]; i++)
                given[i] = (double)array[n][i];
            (void)clmgk_ref_check_statistic(&exact, n, given, message, sizeof(message));
            if (message[0] != '\0')
                fail_msg("%s", message);
        }
        clmgk_ref_statistics_free(&exact);
        close_scene(&s);
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------
 */

/* A whole row of -inf is legal and gives 0. */
TH_HOST_TEST(hidden_rows)
{
    clmgk_attention_desc desc = every_array(false);
    desc.use_sinks = 0;
    desc.use_lengths_q = 0;
    desc.gradients = 0;
    scene s = open_scene(&desc, 3);
    point(&s);
    s.args.sinks = NULL;
    s.args.lengths_q = NULL;
    for (int64_t j = 0; j < s.desc.length_k; j++) {
        s.input[BIAS][2 * s.desc.length_k + j] = -INFINITY; /* h = 0, i = 2 */
        s.value[BIAS][2 * s.desc.length_k + j] = -INFINITY;
    }
    s.problem.lengths_q = NULL;
    run_forward(&s);
    for (int64_t e = 0; e < s.desc.value_size; e++)
        assert_true(s.o[2 * s.desc.value_size + e] == 0.0F);
    assert_true(s.lse[2] == -INFINITY);
    close_scene(&s);
}

static void expect_error(clmgk_status status, const clmgk_error *error, clmgk_status expected, const char *field,
                         const char *value)
{
    if (status != expected || error->status != expected || !th_has_word(error->message, field) ||
        !strstr(error->message, value))
        fail_msg("%s \"%s\": expected %s with \"%s\" and \"%s\"", clmgk_status_name(status), error->message,
                 clmgk_status_name(expected), field, value);
}

static void expect_unwritten(const outputs *out)
{
    for (size_t n = 0; n < CLMGK_REF_GRADIENTS; n++)
        for (size_t i = 0; i < ROOM; i++)
            assert_true(out->array[n][i] == 7.0F);
}

/* The three calls with one and the same problem: all refuse it, and write nothing. */
static void expect_refused(const scene *s, const char *field, const char *value)
{
    static outputs out;
    clmgk_error error = {0};
    fill_outputs(&out, 7.0F);
    clmgk_host_args args = backward_args(s, &out);
    args.o = out.array[CLMGK_REF_GRAD_Q];
    args.lse = out.array[CLMGK_REF_GRAD_K];
    if (s->desc.statistics != 0)
        args.responsibilities = args.counts = args.new_prior = args.nll = out.array[0];
    expect_error(clmgk_attention_forward_host(NULL, &s->desc, &args, &error), &error, CLMGK_ERROR_INVALID_VALUE, field,
                 value);
    expect_error(clmgk_attention_backward_host(NULL, &s->desc, &args, &error), &error, CLMGK_ERROR_INVALID_VALUE, field,
                 value);
    if (s->desc.statistics != 0)
        expect_error(clmgk_attention_statistics_host(NULL, &s->desc, &args, &error), &error, CLMGK_ERROR_INVALID_VALUE,
                     field, value);
    expect_unwritten(&out);
}

TH_HOST_TEST(bad_offsets)
{
    static const struct {
        int32_t offsets[SEQUENCES + 1];
        const char *field, *value;
    } bad[] = {{{1, 4, 4, 9}, "offsets", "[0]: 1"},   {{0, 5, 4, 9}, "offsets", "[2]: 4"},
               {{0, 4, 4, 8}, "offsets", "[3]: 8"},   {{0, 4, 4, 10}, "offsets", "[3]: 10"},
               {{-1, 4, 4, 9}, "offsets", "[0]: -1"}, {{0, -4, 4, 9}, "offsets", "[1]: -4"}};
    const clmgk_attention_desc desc = every_array(true);
    scene s = open_scene(&desc, 1);
    point(&s);
    for (size_t n = 0; n < TH_COUNT(bad); n++) {
        memcpy(s.offsets, bad[n].offsets, sizeof(s.offsets));
        expect_refused(&s, bad[n].field, bad[n].value);
    }
    memcpy(s.offsets, (int32_t[]){0, 0, 9, 9}, sizeof(s.offsets));
    s.offsets_k[SEQUENCES] = 12;
    expect_refused(&s, "offsets_k", "[3]: 12");
    close_scene(&s);
}

typedef struct bad_value {
    input which;
    float value;
    const char *field, *text;
} bad_value;

static void expect_bad_value(scene *s, const bad_value *bad)
{
    float *const last = &s->input[bad->which][s->count[bad->which] - 1];
    const float good = *last;
    *last = bad->value;
    expect_refused(s, bad->field, bad->text);
    *last = good;
}

TH_HOST_TEST(bad_mixing)
{
    static const bad_value bad[] = {{MIX, NAN, "mix", "nan"},
                                    {MIX_WEIGHT, INFINITY, "mix_weight", "inf"},
                                    {MIX_OFFSET, -INFINITY, "mix_offset", "-inf"},
                                    {NOISE, -0.25F, "noise", "-0.25"},
                                    {NOISE, NAN, "noise", "nan"},
                                    {NOISE, INFINITY, "noise", "inf"}};
    const clmgk_attention_desc desc = every_mixed_array(false);
    scene s = open_scene(&desc, 1);
    point(&s);
    for (size_t n = 0; n < TH_COUNT(bad); n++)
        expect_bad_value(&s, &bad[n]);
    close_scene(&s);
}

TH_HOST_TEST(bad_values)
{
    static const bad_value bad[] = {{BIAS, INFINITY, "bias", "inf"},
                                    {BIAS, NAN, "bias", "nan"},
                                    {PRIOR, -1.0F, "prior", "-1"},
                                    {PRIOR, INFINITY, "prior", "inf"},
                                    {VARIANCE, 0.0F, "variance", "0"}};
    const clmgk_attention_desc desc = every_array(false);
    scene s = open_scene(&desc, 1);
    point(&s);
    for (size_t n = 0; n < TH_COUNT(bad); n++)
        expect_bad_value(&s, &bad[n]);
    s.lengths[1] = 14;
    expect_refused(&s, "lengths", "14");
    close_scene(&s);
}

/* Calls that lack an array, or have one that nothing uses: `field` and a word of the message. */
static void expect_bad_array(const clmgk_host_args *args, const clmgk_attention_desc *desc, const char *field,
                             const char *text)
{
    clmgk_error error = {0};
    expect_error(clmgk_attention_backward_host(NULL, desc, args, &error), &error, CLMGK_ERROR_INVALID_BUFFER, field,
                 text);
}

TH_HOST_TEST(bad_arguments)
{
    static outputs out;
    clmgk_attention_desc desc = every_array(false);
    scene s = open_scene(&desc, 1);
    clmgk_error error = {0};
    point(&s);
    fill_outputs(&out, 7.0F);
    const clmgk_host_args good = backward_args(&s, &out);
    const clmgk_status value = CLMGK_ERROR_INVALID_VALUE;
#define BACKWARD(d, a)   clmgk_attention_backward_host(NULL, d, a, &error), &error
#define STATISTICS(d, a) clmgk_attention_statistics_host(NULL, d, a, &error), &error
    expect_error(BACKWARD(NULL, &good), value, "desc", "NULL");
    expect_error(BACKWARD(&s.desc, NULL), value, "args", "NULL");
    expect_error(STATISTICS(NULL, &good), value, "desc", "NULL");
    expect_error(STATISTICS(&s.desc, NULL), value, "args", "NULL");
    expect_error(STATISTICS(&s.desc, &good), CLMGK_ERROR_INVALID_BUFFER, "responsibilities", "NULL");
    clmgk_host_args args = good;
    args.struct_size = sizeof(args) - 1;
    expect_error(BACKWARD(&s.desc, &args), value, "args.struct_size", "");
    args = good;
    args.accumulate = CLMGK_GRADIENT_ALL + 1;
    expect_error(BACKWARD(&s.desc, &args), value, "accumulate", "4096");
    desc = s.desc;
    desc.gradients = 0;
    expect_error(BACKWARD(&desc, &good), value, "gradients", "0");
    desc.statistics = 0;
    expect_error(STATISTICS(&desc, &good), value, "statistics", "0");
#undef BACKWARD
#undef STATISTICS
    expect_unwritten(&out);
    close_scene(&s);
}

/* Arrays that are missing, or given where nothing uses them. */
TH_HOST_TEST(bad_arrays)
{
    static outputs out;
    clmgk_attention_desc desc = every_array(false);
    scene s = open_scene(&desc, 1);
    point(&s);
    fill_outputs(&out, 7.0F);
    const clmgk_host_args good = backward_args(&s, &out);
    clmgk_host_args args = good;
#define WITHOUT(field, text) (args = good, args.field = NULL, expect_bad_array(&args, &s.desc, #field, text))
    WITHOUT(grad_o, "NULL");
    WITHOUT(grad_sinks, "NULL");
    WITHOUT(lse, "L of the forward pass");
    WITHOUT(o, "NULL");
    WITHOUT(bias, "NULL");
#undef WITHOUT
    args = good;
    args.offsets = s.offsets;
    expect_bad_array(&args, &s.desc, "offsets", "does not use");
    desc = s.desc;
    desc.gradients = CLMGK_GRADIENT_Q;
    expect_bad_array(&good, &desc, "grad_k", "does not use");
    expect_unwritten(&out);
    close_scene(&s);
}

TH_HOST_TEST(bad_mixing_arrays)
{
    static outputs out;
    const clmgk_attention_desc desc = every_mixed_array(false);
    scene s = open_scene(&desc, 1);
    point(&s);
    fill_outputs(&out, 7.0F);
    const clmgk_host_args good = backward_args(&s, &out);
    clmgk_host_args args = good;
#define WITHOUT(field, text) (args = good, args.field = NULL, expect_bad_array(&args, &s.desc, #field, text))
    WITHOUT(mix, "gfish");
    WITHOUT(noise, "gfish");
    WITHOUT(grad_mix, "NULL");
    WITHOUT(grad_noise, "NULL");
#undef WITHOUT
    clmgk_attention_desc hard = s.desc;
    hard.variant = CLMGK_VARIANT_HARD_GFISH;
    hard.gradients &= ~(uint32_t)CLMGK_GRADIENT_NOISE;
    expect_bad_array(&good, &hard, "noise", "hard-gfish");
    args = good;
    args.noise = NULL;
    expect_bad_array(&args, &hard, "grad_noise", "hard-gfish");
    hard = s.desc;
    hard.use_mix_weight = 0;
    expect_bad_array(&good, &hard, "mix_weight", "does not use");
    hard = s.desc;
    hard.gradients = CLMGK_GRADIENT_ALL & ~(uint32_t)CLMGK_GRADIENT_MIX_OFFSET & s.desc.gradients;
    expect_bad_array(&good, &hard, "grad_mix_offset", "does not use");
    expect_unwritten(&out);
    close_scene(&s);
}
