/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The random test's own parts: its configurations hold every pair of options, a draw can be repeated, and a failure (a
 * deliberate one) is made as small as it can be and printed as a command that runs.
 */
#include "random/random.h"

#include "harness/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED UINT64_C(1)

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

TH_TEST(configurations_hold_every_pair)
{
    const rd_configuration *list = NULL;
    const size_t count = rd_listed(&list);
    for (size_t a = 0; a < RD_OPTIONS; a++) {
        for (size_t b = a + 1; b < RD_OPTIONS; b++) {
            bool any = false;
            for (size_t n = 0; n < count; n++)
                any = any || ((rd_options_of(&list[n]) >> a & rd_options_of(&list[n]) >> b & 1U) != 0);
            if (!any)
                fail_msg("no configuration has both %s and %s", rd_option_names[a], rd_option_names[b]);
        }
    }
}

TH_TEST(configurations_hold_every_variant_and_engine)
{
    const rd_configuration *list = NULL;
    const rd_configuration *linears = NULL;
    const size_t listed = rd_listed(&list), count = listed + rd_listed_linear(&linears);
    uint32_t variants = 0, dtypes = 0, mixed_types = 0, features = 0, forms[3] = {0}; /* engines of each family */
    for (size_t n = 0; n < count; n++) {
        const rd_configuration *const c = n < listed ? &list[n] : &linears[n - listed];
        const uint32_t traits = clmgk_variant_traits(c->desc.variant);
        variants |= 1U << c->desc.variant;
        features |= 1U << c->desc.feature;
        dtypes |= 1U << c->desc.dtype;
        if (c->desc.dtype_k != CLMGK_STORAGE_AS_Q)
            mixed_types |= 1U << c->engine;
        forms[traits & CLMGK_TRAIT_LINEAR ? 2 : traits & CLMGK_TRAIT_ADMIXTURE ? 1 : 0] |= 1U << c->engine;
    }
    for (size_t n = 0; n < TH_COUNT(th_variants); n++)
        assert_true(variants >> th_variants[n] & 1U);
    for (size_t n = 0; n < TH_COUNT(th_admixtures); n++)
        assert_true(variants >> th_admixtures[n] & 1U);
    for (size_t n = 0; n < TH_COUNT(th_linears); n++)
        assert_true(variants >> th_linears[n] & 1U);
    assert_int_equal(features, (1U << (CLMGK_FEATURE_FAVOR + 1)) - 1U);
    for (size_t n = 0; n < TH_COUNT(th_dtypes); n++)
        assert_true(dtypes >> th_dtypes[n] & 1U);
    for (size_t n = 0; n < TH_COUNT(forms); n++)
        assert_int_equal(forms[n], 1U << CLMGK_ENGINE_LANE | 1U << CLMGK_ENGINE_SIMT);
    assert_int_equal(mixed_types, 1U << CLMGK_ENGINE_LANE | 1U << CLMGK_ENGINE_SIMT);
}

/* All variants that the matrix engine has, and both of its types. */
TH_TEST(matrix_configurations_hold_every_variant)
{
    const rd_configuration *list = NULL;
    const size_t count = rd_listed_matrix(&list);
    uint32_t variants = 0, dtypes = 0;
    for (size_t n = 0; n < count; n++) {
        assert_int_equal(list[n].engine, CLMGK_ENGINE_MATRIX);
        variants |= 1U << list[n].desc.variant;
        dtypes |= 1U << list[n].desc.dtype;
    }
    for (size_t n = 0; n < TH_COUNT(th_variants); n++)
        assert_true(variants >> th_variants[n] & 1U);
    for (size_t n = 0; n < TH_COUNT(th_admixtures); n++)
        assert_true(variants >> th_admixtures[n] & 1U);
    assert_int_equal(dtypes, 1U << CLMGK_DTYPE_F16 | 1U << CLMGK_DTYPE_BF16);
    for (uint64_t n = 0; n < 100; n++)
        assert_int_equal(rd_configuration_of(SEED, RD_MATRIX_RANDOM + n * RD_SHARED).engine, CLMGK_ENGINE_MATRIX);
}

static void expect_equal(const rd_case *a, const rd_case *b)
{
    assert_int_equal(a->engine, b->engine);
    assert_string_equal(a->parameters, b->parameters);
    assert_string_equal(a->backward_parameters, b->backward_parameters);
    assert_memory_equal(&a->problem.desc, &b->problem.desc, sizeof(a->problem.desc));
    for (size_t name = 0; name < TH_ARRAYS; name++) {
        const th_array *const array = &a->problem.array[name];
        assert_int_equal(array->used, b->problem.array[name].used);
        if (array->used)
            assert_memory_equal(array->values, b->problem.array[name].values, array->count * sizeof(double));
    }
}

/* Numbers of every kind make a problem, and always the same one. */
TH_TEST(draws_are_repeatable)
{
    static const uint64_t first[] = {0, RD_MATRIX, RD_MATRIX_RANDOM, RD_LISTED, RD_OPTIMISED};
    for (size_t kind = 0; kind < TH_COUNT(first); kind++) {
        for (uint64_t n = 0; n < 300; n++) {
            rd_case one = rd_draw(SEED, first[kind] + 7 * n), other = rd_draw(SEED, first[kind] + 7 * n);
            expect_equal(&one, &other);
            rd_case_free(&one);
            rd_case_free(&other);
        }
    }
}

/* ---- making smaller ---------------------------------------------------------------------------------------------- */

static bool has_sinks_and_keys(const clmgk_attention_desc *desc)
{
    return desc->use_sinks && desc->length_k >= 5;
}

static bool always(const clmgk_attention_desc *desc)
{
    (void)desc;
    return true;
}

/* A problem with many options, of which two matter. */
static rd_case busy_case(void)
{
    rd_case c = {.desc = th_sized_desc(CLMGK_VARIANT_MGK, (th_sizes){2, 4, 2, 2, 19, 37, 7, 6}),
                 .engine = CLMGK_ENGINE_LANE,
                 .layout = RD_PERMUTED,
                 .parameters = "panels=1,vectors=1,tile=16,splits=1",
                 .backward_parameters = "panels=1,vectors=1,tile=16,splits=2"};
    clmgk_attention_desc *const d = &c.desc;
    d->dtype = CLMGK_DTYPE_F16;
    d->dtype_k = CLMGK_STORAGE_BF16;
    d->dtype_o = CLMGK_STORAGE_F32;
    d->causal = d->use_window = 1;
    d->window_left = 20;
    d->window_right = -1;
    d->use_lengths = d->use_lengths_q = 1;
    d->use_sinks = d->use_alibi = d->use_bias = 1;
    d->dropout = 0.25;
    d->prior_shape = CLMGK_PRIOR_HMS;
    d->variance_shape = CLMGK_VARIANCE_HM;
    assert_true(rd_make_problem(&c, 5));
    return c;
}

/* Makes `c` smaller, in which the fault's array is wrong. */
static void minimise(th_session *session, rd_case *c, const rd_fault *fault)
{
    const uint64_t wrong = UINT64_C(1) << fault->name;
    assert_true((rd_run(session, c, fault).wrong & wrong) != 0);
    assert_true((rd_run(session, c, NULL).wrong & wrong) == 0);
    const int tries = rd_minimise(session, c, wrong, fault, (rd_budget){.tries = 400, .seconds = 600.0});
    assert_in_range(tries, 1, 399);
    assert_true((rd_run(session, c, fault).wrong & wrong) != 0);
}

/* The printed command runs and finds no error, because the fault is not the library's. */
static void expect_command_runs(const rd_case *c, const char *folder, const char *option)
{
    enum { COMMAND = 8192 };
    char *const text = malloc(COMMAND);
    char *const line = malloc(COMMAND + 512);
    assert_true(text && line);
    rd_write_command(c, folder, text, COMMAND);
    assert_non_null(strstr(text, "clmgk-run --check"));
    assert_true(th_has_word(text, option));
    snprintf(line, COMMAND + 512, "PATH='%s':\"$PATH\"; cd '%s'; %s\nexit $?", RUN_FOLDER, folder, text);
    const int status = system(line); /* NOLINT(cert-env33-c): the user's shell is what the command is for */
    if (status != 0)
        fail_msg("status %d: %s", status, text);
    free(text);
    free(line);
}

TH_TEST(smallest_forward)
{
    const rd_fault fault = {TH_O, 1.5, has_sinks_and_keys};
    char folder[SCRATCH_PATH];
    rd_case c = busy_case();
    minimise(session, &c, &fault);
    const clmgk_attention_desc *const d = &c.problem.desc;
    assert_int_equal(d->length_k, 5);
    assert_true(d->use_sinks);
    assert_int_equal(d->batch * d->heads * d->kv_heads * d->components * d->length * d->head_size * d->value_size, 1);
    assert_false(d->use_bias || d->use_alibi || d->causal || d->use_window || d->use_lengths || d->use_lengths_q);
    assert_true(d->dropout == 0.0 && d->dtype == CLMGK_DTYPE_F32 && c.layout == RD_DENSE);
    assert_true(d->dtype_k == CLMGK_STORAGE_AS_Q && d->dtype_o == CLMGK_STORAGE_AS_Q);
    assert_int_equal(d->prior_shape, CLMGK_PRIOR_UNIFORM);
    assert_int_equal(d->variance_shape, CLMGK_VARIANCE_NUMBER);
    scratch_create(folder);
    expect_command_runs(&c, folder, "--sinks");
    scratch_remove(folder);
    rd_case_free(&c);
}

TH_TEST(smallest_backward)
{
    const rd_fault fault = {TH_GRAD_V, 1.5, always};
    char folder[SCRATCH_PATH];
    rd_case c = busy_case();
    rd_case_free(&c);
    c.desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR;
    c.accumulate = CLMGK_GRADIENT_V;
    c.grad_lse = true;
    assert_true(rd_make_problem(&c, 6));
    minimise(session, &c, &fault);
    const clmgk_attention_desc *const d = &c.problem.desc;
    assert_int_equal(d->gradients, CLMGK_GRADIENT_V);
    assert_int_equal(d->batch * d->heads * d->components * d->length * d->length_k * d->head_size * d->value_size, 1);
    assert_false(d->use_bias || d->use_alibi || d->use_sinks || d->use_lengths || d->use_lengths_q);
    assert_false(c.accumulate != 0 || c.grad_lse);
    scratch_create(folder);
    expect_command_runs(&c, folder, "--dv");
    scratch_remove(folder);
    rd_case_free(&c);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* Of a draw that has every option, shapes of arrays and integers among them: the files are what the program expects. */
TH_TEST(commands_run)
{
    static const uint64_t numbers[] = {
        6,        12,           19,           27 + 17,      RD_PAGES + 2, RD_PAGES + 3, RD_PAGES + 6,
        RD_TYPES, RD_TYPES + 1, RD_TYPES + 3, RD_TYPES + 5, RD_TEXTS + 1, RD_TEXTS + 17};
    for (size_t n = 0; n < (session->full ? TH_COUNT(numbers) : 0); n++) {
        char folder[SCRATCH_PATH];
        rd_case c = rd_draw(SEED, numbers[n]);
        scratch_create(folder);
        expect_command_runs(&c, folder, "--variant");
        scratch_remove(folder);
        rd_case_free(&c);
    }
}
