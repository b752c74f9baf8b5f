/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix engine, whose fragments are emulated where there are no matrix units: the mixture family, both passes.
 * Each case is a program for each pass. */
#include "harness/harness.h"

static clmgk_plan_options options_of(const char *parameters)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = CLMGK_ENGINE_MATRIX;
    options.parameters = options.backward_parameters = parameters;
    return options;
}

static void expect(th_session *session, th_problem *problem, const char *parameters)
{
    const clmgk_plan_options options = options_of(parameters);
    th_run_pass(session, problem, TH_FORWARD, &options);
    TH_REF_ANSWER answer = th_solve(problem);
    th_check(session, problem, CLMGK_ENGINE_MATRIX, &answer);
    if (problem->desc.gradients == 0)
        return;
    th_round_values(session, problem, TH_BACKWARD);
    TH_REF_ARRAYS exact = th_solve_gradients(problem);
    th_run_pass(session, problem, TH_BACKWARD, &options);
    th_check_gradients(session, problem, CLMGK_ENGINE_MATRIX, &exact);
}

/* Lengths around those of blocks (16 rows) and tiles (16 keys), masks, gaps between rows and odd offsets: run-time
 * properties of one program. */
static void expect_shapes(th_session *session, clmgk_attention_desc desc, size_t first, size_t count)
{
    uint64_t random = 7 * (uint64_t)desc.variant + first;
    for (size_t n = first; n < first + (session->full ? 4 * count : count); n++) {
        th_set_shape(&desc, n, &random);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (th_name name = TH_Q; n % 2 == 1 && name <= TH_O; name++)
            problem.array[name].offset = 2 * (uint64_t)name + 1; /* no piece of a row is aligned */
        expect(session, &problem, NULL);
    }
}

TH_TEST(softmax_in_both_passes)
{
    const clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_F16,
                                       .head_size = 24,
                                       .value_size = 40,
                                       .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V};
    expect_shapes(session, desc, 0, 12);
}

TH_TEST(components_in_both_passes)
{
    const clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_MGK,
                                       .dtype = CLMGK_DTYPE_BF16,
                                       .components = 3,
                                       .prior_shape = CLMGK_PRIOR_HMS,
                                       .head_size = 5,
                                       .value_size = 7,
                                       .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V |
                                                    CLMGK_GRADIENT_PRIOR};
    expect_shapes(session, desc, 3, 6);
}

TH_TEST(shifted_keys_forward)
{
    const clmgk_attention_desc desc = {
        .variant = CLMGK_VARIANT_SMGK, .dtype = CLMGK_DTYPE_BF16, .head_size = 32, .value_size = 16};
    expect_shapes(session, desc, 5, 5);
}

/* Ranges of keys side by side, a row for each fragment's place, and two fragments of rows to a warp. */
TH_TEST(ranges_of_keys)
{
    clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_BF16, .head_size = 16, .value_size = 16, .causal = 1};
    desc.length = 37;
    desc.length_k = 101;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    expect(session, &problem, "splits=4,row-tiles=2,warps=2,key-tiles=4");
}

/* Arrays that its products do not take, and families that it lacks. */
TH_TEST(other_problems_are_refused)
{
    static const struct {
        clmgk_attention_desc desc;
        const char *words;
    } cases[] = {{{.dtype = CLMGK_DTYPE_F32}, "storage type"},
                 {{.dtype = CLMGK_DTYPE_F16, .dtype_k = CLMGK_STORAGE_BF16}, "one type"},
                 {{.dtype = CLMGK_DTYPE_F16, .variant = CLMGK_VARIANT_HARD_FISH, .components = 2}, "mixed heads"},
                 {{.dtype = CLMGK_DTYPE_F16, .variant = CLMGK_VARIANT_LINEAR}, "softmax"}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_attention_desc desc = cases[n].desc;
        const clmgk_plan_options options = options_of(NULL);
        clmgk_plan *plan = NULL;
        desc.struct_size = sizeof(desc);
        desc.heads = 2;
        desc.length = 8;
        desc.head_size = 16;
        th_expect_error(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error), CLMGK_ERROR_UNSUPPORTED,
                        cases[n].words);
    }
}
