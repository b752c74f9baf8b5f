/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on host arrays beyond the forward pass: gradients and statistics of a problem that has every array, held
 * against the reference; what they add to; and the values that only these calls check. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 3, SEQUENCES = 3 };

/* All that the linear family can have at once. */
static clmgk_attention_desc every_linear_array(void)
{
    clmgk_attention_desc d = th_small_desc(CLMGK_VARIANT_SMLK, 9, 13);
    d.batch = 2;
    d.prior_shape = CLMGK_PRIOR_HM;
    d.feature = CLMGK_FEATURE_FAVOR;
    d.features = 11;
    d.causal = d.use_lengths = d.use_lengths_q = d.use_state = d.use_new_state = 1;
    d.gradients = th_all_gradients(&d);
    return d;
}

/* All that a family can have at once, smgk (0, 1) or gfish; odd numbers: sequences instead of lengths; 4: smlk. */
static clmgk_attention_desc every_array(int kind)
{
    if (kind == 4)
        return every_linear_array();
    const bool mixed = kind >= 2, packed = kind % 2 != 0;
    clmgk_attention_desc d = mixed ? th_small_desc(CLMGK_VARIANT_GFISH, 9, 13) : th_full_desc();
    d.length = 9;
    d.length_k = 13;
    d.use_mix_weight = d.use_mix_offset = mixed;
    d.use_window = 1;
    d.window_left = 4;
    d.window_right = 5;
    d.use_bias = d.use_alibi = d.use_sinks = 1;
    d.bias_batch = 1;
    d.dropout = 0.2;
    d.batch = packed ? 1 : 2;
    d.use_lengths = d.use_lengths_q = !packed;
    d.sequences = packed ? SEQUENCES : 0;
    d.use_offsets_k = packed;
    d.gradients = th_all_gradients(&d);
    d.statistics = mixed ? 0 : CLMGK_STATISTIC_ALL;
    return d;
}

static void set_values(th_problem *problem, th_name name, size_t count, const double *values)
{
    if (!problem->array[name].used)
        return;
    assert_int_equal(problem->array[name].count, count);
    memcpy(problem->array[name].values, values, count * sizeof(*values));
}

/* Random values, none of the bias hides a key; the second sequence has no queries. */
static th_problem make_problem(const clmgk_attention_desc *desc, uint64_t seed)
{
    th_problem problem = th_problem_make(desc, seed);
    set_values(&problem, TH_LENGTHS, 2, (const double[]){11, 13});
    set_values(&problem, TH_LENGTHS_Q, 2, (const double[]){9, 6});
    set_values(&problem, TH_OFFSETS, SEQUENCES + 1, (const double[]){0, 4, 4, 9});
    set_values(&problem, TH_OFFSETS_K, SEQUENCES + 1, (const double[]){0, 6, 8, 13});
    for (size_t n = 0; n < problem.array[TH_BIAS].count; n++)
        problem.array[TH_BIAS].values[n] = fmax(problem.array[TH_BIAS].values[n], -1.5);
    return problem;
}

static void run_forward(th_session *session, th_problem *problem, const th_host *host)
{
    th_expect_ok(clmgk_attention_forward_host(NULL, &problem->desc, &host->args, &th_error));
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (th_is_output(name) && problem->array[name].used)
            th_host_take(host, problem, name);
    TH_REF_ANSWER answer = th_solve(problem);
    th_check(session, problem, CLMGK_ENGINE_AUTO, &answer);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void run_backward(th_problem *problem, th_host *host, uint32_t accumulate)
{
    host->args.accumulate = accumulate;
    th_expect_ok(clmgk_attention_backward_host(NULL, &problem->desc, &host->args, &th_error));
    for (th_name name = TH_GRAD_Q; th_is_gradient(name); name++)
        if (problem->array[name].used)
            th_host_take(host, problem, name);
}

static void expect_gradients(th_session *session, th_problem *problem, th_host *host)
{
    run_forward(session, problem, host);
    run_backward(problem, host, 0);
    TH_REF_ARRAYS exact = th_solve_gradients(problem);
    assert_int_equal(exact.set, problem->desc.gradients);
    th_check_gradients(session, problem, CLMGK_ENGINE_AUTO, &exact);
}

/* Once more: twice the gradient where it is added to itself, once where it is overwritten. */
static void expect_accumulated(th_problem *problem, th_host *host, uint32_t accumulate)
{
    double *once[TH_ARRAYS] = {NULL};
    run_backward(problem, host, 0);
    for (th_name name = TH_GRAD_Q; th_is_gradient(name); name++) {
        const th_array *const array = &problem->array[name];
        once[name] = calloc(array->count + 1, sizeof(double));
        assert_non_null(once[name]);
        if (array->used)
            memcpy(once[name], array->values, array->count * sizeof(double));
    }
    run_backward(problem, host, accumulate);
    for (th_name name = TH_GRAD_Q; th_is_gradient(name); name++) {
        const th_array *const array = &problem->array[name];
        const double factor = (accumulate >> (name - TH_GRAD_Q) & 1U) != 0 ? 2.0 : 1.0;
        double largest = 0.0;
        for (size_t i = 0; array->used && i < array->count; i++)
            largest = fmax(largest, fabs(once[name][i]));
        assert_true(!array->used || largest > 0.0);
        for (size_t i = 0; array->used && i < array->count; i++)
            assert_true(fabs(array->values[i] - factor * once[name][i]) <= 1e-6 * largest);
        free(once[name]);
    }
}

TH_TEST(every_gradient)
{
    for (int n = 0; n < 5; n++) {
        const clmgk_attention_desc desc = every_array(n);
        const uint32_t some = CLMGK_GRADIENT_STATE_Z | CLMGK_GRADIENT_Q | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_BIAS |
                              CLMGK_GRADIENT_MIX | CLMGK_GRADIENT_NOISE;
        TH_PROBLEM problem = make_problem(&desc, 11 + (uint64_t)n);
        TH_HOST host = th_host_make(&problem);
        expect_gradients(session, &problem, &host);
        expect_accumulated(&problem, &host, CLMGK_GRADIENT_ALL & ~some);
        expect_accumulated(&problem, &host, some);
    }
}

/* What lies between the rows of a gradient keeps its value. */
TH_TEST(gaps_are_kept)
{
    clmgk_attention_desc desc = every_array(0);
    const int64_t row = desc.head_size + GAP;
    desc.grad_q =
        (clmgk_layout){.strided = 1, .batch = row * desc.heads * desc.length, .head = row, .token = row * desc.heads};
    TH_PROBLEM problem = make_problem(&desc, 5);
    TH_HOST host = th_host_make(&problem);
    expect_gradients(session, &problem, &host);
}

/* dQ, dK and dV in one array [N, 3, D]: each lies in the gaps of the others. */
TH_TEST(gradients_in_one_array)
{
    enum { N = 9, D = 8, ROW = 3 * D };
    clmgk_attention_desc desc = {.length = N, .length_k = N, .head_size = D};
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    TH_PROBLEM problem = th_problem_make(&desc, 3);
    TH_HOST host = th_host_make(&problem);
    clmgk_host_args args = host.args;
    th_expect_ok(clmgk_attention_forward_host(NULL, &problem.desc, &args, &th_error));
    th_expect_ok(clmgk_attention_backward_host(NULL, &problem.desc, &args, &th_error));
    float packed[N * ROW];
    problem.desc.grad_q = problem.desc.grad_k = problem.desc.grad_v =
        (clmgk_layout){.strided = 1, .batch = (int64_t)N * ROW, .head = D, .token = ROW};
    args.grad_q = packed;
    args.grad_k = packed + D;
    args.grad_v = packed + (ptrdiff_t)2 * D;
    th_expect_ok(clmgk_attention_backward_host(NULL, &problem.desc, &args, &th_error));
    const void *const apart[] = {host.args.grad_q, host.args.grad_k, host.args.grad_v};
    for (size_t n = 0; n < TH_COUNT(apart); n++)
        for (ptrdiff_t row = 0; row < N; row++)
            assert_memory_equal(packed + row * ROW + (ptrdiff_t)n * D, (const float *)apart[n] + row * D,
                                D * sizeof(float));
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

TH_TEST(every_statistic)
{
    for (int packed = 0; packed < 2; packed++) {
        const clmgk_attention_desc desc = every_array(packed);
        TH_PROBLEM problem = make_problem(&desc, 21 + (uint64_t)packed);
        TH_HOST host = th_host_make(&problem);
        host.args.v = NULL; /* ignored: not there, or nowhere near */
        host.args.o = host.args.lse = (float *)(uintptr_t)16;
        th_expect_ok(clmgk_attention_statistics_host(NULL, &problem.desc, &host.args, &th_error));
        for (th_name name = TH_RESPONSIBILITIES; name <= TH_NLL; name++)
            th_host_take(&host, &problem, name);
        TH_REF_ARRAYS exact = th_solve_statistics(&problem);
        assert_int_equal(exact.set, CLMGK_STATISTIC_ALL);
        th_check_statistics(session, &problem, CLMGK_ENGINE_AUTO, &exact);
    }
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* A whole row of -inf is legal and gives 0. */
TH_TEST(hidden_rows)
{
    clmgk_attention_desc desc = every_array(0);
    desc.use_sinks = desc.use_lengths_q = 0;
    desc.gradients = 0;
    TH_PROBLEM problem = make_problem(&desc, 3);
    for (int64_t j = 0; j < desc.length_k; j++)
        th_set(&problem, TH_BIAS, 0, 0, 0, 2, j, -(double)INFINITY);
    TH_HOST host = th_host_make(&problem);
    run_forward(session, &problem, &host);
    for (int64_t e = 0; e < desc.value_size; e++)
        assert_true(problem.array[TH_O].values[2 * desc.value_size + e] == 0.0);
    assert_true(problem.array[TH_LSE].values[2] == -(double)INFINITY);
}

/* The three calls with one and the same problem: all refuse it, and write nothing. */
static void expect_refused(th_problem *problem, const char *field, const char *value)
{
    TH_HOST host = th_host_make(problem);
    const clmgk_status bad = CLMGK_ERROR_INVALID_VALUE;
    th_expect_refusal(clmgk_attention_forward_host(NULL, &problem->desc, &host.args, &th_error), bad, field, value);
    th_expect_refusal(clmgk_attention_backward_host(NULL, &problem->desc, &host.args, &th_error), bad, field, value);
    if (problem->desc.statistics != 0)
        th_expect_refusal(clmgk_attention_statistics_host(NULL, &problem->desc, &host.args, &th_error), bad, field,
                          value);
    th_host_expect_unwritten(&host);
}

/* One array of a problem of every_array's kind has `values`, its last ones. */
static const struct {
    int kind;
    th_name name;
    size_t count;
    double values[SEQUENCES + 1];
    const char *text;
} bad_values[] = {
    {1, TH_OFFSETS, 4, {1, 4, 4, 9}, "[0]: 1"},
    {1, TH_OFFSETS, 4, {0, 5, 4, 9}, "[2]: 4"},
    {1, TH_OFFSETS, 4, {0, 4, 4, 8}, "[3]: 8"},
    {1, TH_OFFSETS, 4, {0, 4, 4, 10}, "[3]: 10"},
    {1, TH_OFFSETS, 4, {-1, 4, 4, 9}, "[0]: -1"},
    {1, TH_OFFSETS, 4, {0, -4, 4, 9}, "[1]: -4"},
    {1, TH_OFFSETS_K, 1, {12}, "[3]: 12"},
    {0, TH_BIAS, 1, {(double)INFINITY}, "inf"},
    {0, TH_BIAS, 1, {(double)NAN}, "nan"},
    {0, TH_PRIOR, 1, {-1.0}, "-1"},
    {0, TH_PRIOR, 1, {(double)INFINITY}, "inf"},
    {0, TH_VARIANCE, 1, {0.0}, "0"},
    {0, TH_LENGTHS, 1, {14}, "14"},
    {2, TH_MIX, 1, {(double)NAN}, "nan"},
    {2, TH_MIX_WEIGHT, 1, {(double)INFINITY}, "inf"},
    {2, TH_MIX_OFFSET, 1, {-(double)INFINITY}, "-inf"},
    {2, TH_NOISE, 1, {-0.25}, "-0.25"},
    {2, TH_NOISE, 1, {(double)NAN}, "nan"},
    {2, TH_NOISE, 1, {(double)INFINITY}, "inf"},
};

TH_TEST(values_are_checked)
{
    for (size_t n = 0; n < TH_COUNT(bad_values); n++) {
        const clmgk_attention_desc desc = every_array(bad_values[n].kind);
        TH_PROBLEM problem = make_problem(&desc, 1);
        const th_array *const array = &problem.array[bad_values[n].name];
        memcpy(array->values + array->count - bad_values[n].count, bad_values[n].values,
               bad_values[n].count * sizeof(double));
        expect_refused(&problem, clmgk_array_get_info((clmgk_array)bad_values[n].name)->name, bad_values[n].text);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

TH_TEST(bad_arguments)
{
    const clmgk_status value = CLMGK_ERROR_INVALID_VALUE;
    clmgk_attention_desc desc = every_array(0);
    TH_PROBLEM problem = make_problem(&desc, 1);
    TH_HOST host = th_host_make(&problem);
    clmgk_host_args args = host.args;
#define BACKWARD(d, a)   clmgk_attention_backward_host(NULL, d, a, &th_error)
#define STATISTICS(d, a) clmgk_attention_statistics_host(NULL, d, a, &th_error)
    th_expect_refusal(BACKWARD(NULL, &args), value, "desc", "NULL");
    th_expect_refusal(BACKWARD(&problem.desc, NULL), value, "args", "NULL");
    th_expect_refusal(STATISTICS(NULL, &args), value, "desc", "NULL");
    th_expect_refusal(STATISTICS(&problem.desc, NULL), value, "args", "NULL");
    args.responsibilities = NULL;
    th_expect_refusal(STATISTICS(&problem.desc, &args), CLMGK_ERROR_INVALID_BUFFER, "responsibilities", "NULL");
    args = host.args;
    args.struct_size = sizeof(args) - 1;
    th_expect_refusal(BACKWARD(&problem.desc, &args), value, "args.struct_size", "");
    args = host.args;
    args.accumulate = CLMGK_GRADIENT_ALL + 1;
    th_expect_refusal(BACKWARD(&problem.desc, &args), value, "accumulate", "33554432");
    desc = problem.desc;
    desc.gradients = 0;
    th_expect_refusal(BACKWARD(&desc, &host.args), value, "gradients", "0");
    desc.statistics = 0;
    th_expect_refusal(STATISTICS(&desc, &host.args), value, "statistics", "0");
#undef BACKWARD
#undef STATISTICS
    th_host_expect_unwritten(&host);
}

/* Calls that lack an array, or have one that nothing uses: the array's name and a word of the message. */
static void expect_bad_array(const th_host *host, const clmgk_host_args *args, const clmgk_attention_desc *desc,
                             th_name name, const char *text)
{
    th_expect_refusal(clmgk_attention_backward_host(NULL, desc, args, &th_error), CLMGK_ERROR_INVALID_BUFFER,
                      clmgk_array_get_info((clmgk_array)name)->name, text);
    th_host_expect_unwritten(host);
}

TH_TEST(missing_arrays)
{
    static const struct {
        int kind;
        th_name name;
        const char *text;
    } missing[] = {
        {0, TH_GRAD_O, "NULL"}, {0, TH_GRAD_SINKS, "NULL"}, {0, TH_LSE, "L of the forward pass"},
        {0, TH_O, "NULL"},      {0, TH_BIAS, "NULL"},       {2, TH_MIX, "gfish"},
        {2, TH_NOISE, "gfish"}, {2, TH_GRAD_MIX, "NULL"},   {2, TH_GRAD_NOISE, "NULL"},
    };
    for (size_t n = 0; n < TH_COUNT(missing); n++) {
        const clmgk_attention_desc desc = every_array(missing[n].kind);
        TH_PROBLEM problem = make_problem(&desc, 1);
        TH_HOST host = th_host_make(&problem);
        clmgk_host_args args = host.args;
        th_set_host_array(&args, missing[n].name, NULL);
        expect_bad_array(&host, &args, &problem.desc, missing[n].name, missing[n].text);
    }
}

TH_TEST(arrays_that_nothing_uses)
{
    const clmgk_attention_desc desc = every_array(0), mixed = every_array(2);
    int32_t offsets[SEQUENCES + 1] = {0, 4, 4, 9};
    TH_PROBLEM problem = make_problem(&desc, 1);
    TH_HOST host = th_host_make(&problem);
    clmgk_host_args args = host.args;
    args.offsets = offsets;
    expect_bad_array(&host, &args, &problem.desc, TH_OFFSETS, "does not use");
    clmgk_attention_desc fewer = problem.desc;
    fewer.gradients = CLMGK_GRADIENT_Q;
    expect_bad_array(&host, &host.args, &fewer, TH_GRAD_K, "does not use");

    TH_PROBLEM mixing = make_problem(&mixed, 1);
    TH_HOST mixing_host = th_host_make(&mixing);
    fewer = mixing.desc;
    fewer.variant = CLMGK_VARIANT_HARD_GFISH;
    fewer.gradients &= ~(uint32_t)CLMGK_GRADIENT_NOISE;
    expect_bad_array(&mixing_host, &mixing_host.args, &fewer, TH_NOISE, "hard-gfish");
    args = mixing_host.args;
    args.noise = NULL;
    expect_bad_array(&mixing_host, &args, &fewer, TH_GRAD_NOISE, "hard-gfish");
    fewer = mixing.desc;
    fewer.use_mix_weight = 0;
    expect_bad_array(&mixing_host, &mixing_host.args, &fewer, TH_MIX_WEIGHT, "does not use");
    fewer = mixing.desc;
    fewer.gradients &= ~(uint32_t)CLMGK_GRADIENT_MIX_OFFSET;
    expect_bad_array(&mixing_host, &mixing_host.args, &fewer, TH_GRAD_MIX_OFFSET, "does not use");
}
