/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stored numbers of the first use (src/attention/first_use.c) are the reference's.
 *
 *     test_first_use --print | clang-format > src/attention/first_use_values.h
 */
#include "harness/harness.h"

#include "attention/first_use.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FAMILY(name) #name,
static const char *const families[] = {CLMGK_FAMILY_LIST(FAMILY)};

typedef struct solution {
    double samples[MGK_FIRST_USE_COUNT][MGK_FIRST_USE_SAMPLES];
} solution;

static void fill(th_problem *problem, th_name name, clmgk_array array)
{
    th_array *const to = &problem->array[name];
    float *const x = calloc(to->count + 1, sizeof(*x));
    assert_non_null(x);
    mgk_first_use_fill(array, x, (int64_t)to->count);
    for (size_t i = 0; to->used && i < to->count; i++)
        to->values[i] = (double)x[i];
    free(x);
}

static void sample(const double *values, int64_t count, double *out)
{
    for (int i = 0; values && i < MGK_FIRST_USE_SAMPLES; i++)
        out[i] = values[mgk_first_use_index(count, i)];
}

static solution solve(int family)
{
    solution out = {0};
    const clmgk_attention_desc desc = mgk_first_use_problem(family);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    const clmgk_attention_desc *const d = &problem.desc;
    fill(&problem, TH_Q, CLMGK_ARRAY_Q);
    fill(&problem, TH_K, CLMGK_ARRAY_K);
    fill(&problem, TH_V, CLMGK_ARRAY_V);
    fill(&problem, TH_MIX, CLMGK_ARRAY_MIX);
    fill(&problem, TH_GRAD_O, CLMGK_ARRAY_GRAD_O);
    if (problem.array[TH_GRAD_LSE].used)
        th_fill(&problem, TH_GRAD_LSE, 0.0);
    const int64_t rows = d->batch * d->heads * d->length;
    TH_REF_ANSWER answer = th_solve(&problem);
    TH_REF_ARRAYS gradients = th_solve_gradients(&problem);
    sample(answer.o, rows * d->value_size, out.samples[MGK_FIRST_USE_O]);
    if ((clmgk_variant_traits(d->variant) & CLMGK_TRAIT_LINEAR) == 0)
        sample(answer.lse, rows, out.samples[MGK_FIRST_USE_LSE]);
    static const struct {
        int output, which;
    } of[] = {{MGK_FIRST_USE_GRAD_Q, CLMGK_REF_GRAD_Q},
              {MGK_FIRST_USE_GRAD_K, CLMGK_REF_GRAD_K},
              {MGK_FIRST_USE_GRAD_V, CLMGK_REF_GRAD_V}};
    for (size_t n = 0; n < TH_COUNT(of); n++)
        sample(gradients.exact[of[n].which], gradients.count[of[n].which], out.samples[of[n].output]);
    return out;
}

TH_HOST_TEST(stored_numbers_are_the_references)
{
    for (int family = 0; family < (int)TH_COUNT(families); family++) {
        const solution exact = solve(family);
        for (int output = 0; output < MGK_FIRST_USE_COUNT; output++)
            for (int i = 0; i < MGK_FIRST_USE_SAMPLES; i++) {
                const double x = exact.samples[output][i], stored = (double)mgk_first_use_expected(family, output)[i];
                if (!(fabs(x - stored) <= 1e-6 * (fabs(x) + 1.0)))
                    fail_msg("%s, output %d, sample %d: %.9g, stored %.9g", families[family], output, i, x, stored);
            }
    }
}

static void print(void)
{
    printf("/* SPDX-License-Identifier: Apache-2.0 */\n"
           "/* Made by test_first_use --print, from the reference in double precision. */\n"
           "static const float expected[][MGK_FIRST_USE_COUNT][MGK_FIRST_USE_SAMPLES] = {\n");
    for (int family = 0; family < (int)TH_COUNT(families); family++) {
        const solution exact = solve(family);
        printf("/* %s */\n{", families[family]);
        for (int output = 0; output < MGK_FIRST_USE_COUNT; output++) {
            printf("{");
            for (int i = 0; i < MGK_FIRST_USE_SAMPLES; i++)
                printf("%.8eF,%c", exact.samples[output][i], i % 8 == 7 ? '\n' : ' ');
            printf("},\n");
        }
        printf("},\n");
    }
    printf("};\n");
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        print();
        return 0;
    }
    return th_run_tests();
}
