/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix units of AMD's and Intel's GPUs, pretended by a layer (layers/unit_layer.c), which runs the kernels that such
 * a GPU would run: CLMGK_TEST_UNIT says which unit, and what is wrong with it. A wrong unit is never used. */
#include "harness/product.h"
#include "harness/scratch.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a word of CLMGK_TEST_UNIT leads to. */
typedef struct outcome {
    const char *word;             /* empty: nothing is wrong */
    bool found, f16, bf16;        /* the context has the unit; plans use it */
    const char *reason, *by_plan; /* of the context's unit, and of a plan in f16 */
} outcome;

static const outcome outcomes[] = {
    {",no-builtins", false, false, false, "kernel file \"engine/direct_probe.cl\"", "; no matrix units: "},
    {",wrong-kernels", true, false, false, "", "the forward pass gives wrong numbers here: "},
    {",wrong", false, false, false, "it gives wrong numbers here", "it gives wrong numbers here"},
    {",flush", true, false, true, "it gives wrong products of f16 here", "it gives wrong products of f16 here"},
    {"", true, true, true, "", "its products run on matrix units; matrix units: "}};

static const outcome *expected(void)
{
    const outcome *one = outcomes;
    while (strstr(getenv("CLMGK_TEST_UNIT"), one->word) == NULL)
        one++;
    return one;
}

static void name_unit(char *name, size_t size)
{
    (void)snprintf(name, size, "%.*s", (int)strcspn(getenv("CLMGK_TEST_UNIT"), ","), getenv("CLMGK_TEST_UNIT"));
}

static void expect_words(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, words);
}

/* The unit that the device should have, that plans use, and why another is refused. */
static void expect_unit(clmgk_context *context, const char *used, const char *reason)
{
    clmgk_matrix_unit_info info = CLMGK_MATRIX_UNIT_INFO_INIT;
    th_expect_ok(clmgk_context_get_matrix_unit(context, &info, &th_error));
    assert_string_equal(info.name, used);
    expect_words(info.reason, reason);
    assert_true(reason[0] != '\0' || info.reason[0] == '\0');
}

static void expect_plan(clmgk_context *context, clmgk_dtype dtype, bool unit, const char *reason)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 40, 70);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan *plan = NULL;
    desc.dtype = dtype;
    desc.head_size = desc.value_size = 16;
    th_expect_ok(clmgk_plan_create(context, &desc, NULL, &plan, &th_error));
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    if (info.engine != (unit ? CLMGK_ENGINE_MATRIX : CLMGK_ENGINE_SIMT))
        fail_msg("%s: %s", clmgk_engine_name(info.engine), info.engine_reason);
    expect_words(info.engine_reason, reason);
    clmgk_plan_release(plan);
}

/* Calls a function of the layer. */
static int of_layer(const char *name)
{
    void *const layer = dlopen(getenv("OPENCL_LAYERS"), RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(layer);
    int (*function)(void) = NULL;
    void *const symbol = dlsym(layer, name);
    assert_non_null(symbol);
    memcpy(&function, &symbol, sizeof(function));
    const int result = function();
    (void)dlclose(layer);
    return result;
}

/* Probes that the layer has seen. */
static int count_probes(void)
{
    return of_layer("unit_layer_probes");
}

/* A probe decides about the unit, and about each type, then a small problem about the first plan. The next process
 * knows what is wrong, and compiles nothing to find it; one with another version of the driver asks again. */
TH_TEST(units_are_chosen_honestly)
{
    const outcome *const one = expected();
    char folder[SCRATCH_PATH], name[32];
    name_unit(name, sizeof(name));
    assert_true(session->info.matrix_units);
    assert_string_equal(session->info.matrix_unit, name);
    scratch_create(folder);
    for (int process = 0; process < (one->f16 ? 1 : 3); process++) { /* right programs: the layer gives no binaries */
        if (process == 2)
            (void)of_layer("unit_layer_renew");
        clmgk_context *const context = th_open_context(session->cl, session->info.device_id, folder);
        const int before = count_probes();
        expect_unit(context, one->found ? name : "", one->reason);
        expect_plan(context, CLMGK_DTYPE_F16, one->f16, one->by_plan);
        expect_plan(context, CLMGK_DTYPE_F16, one->f16, one->by_plan);
        assert_int_equal(count_probes() - before, process != 1 || one->found ? 1 : 0);
        clmgk_context_release(context);
    }
    scratch_remove(folder);
}

/* A type that the unit multiplies rightly keeps it. */
TH_FULL_TEST(types_have_verdicts_of_their_own)
{
    const outcome *const one = expected();
    clmgk_context *const context = th_open_context(session->cl, session->info.device_id, "");
    expect_plan(context, CLMGK_DTYPE_BF16, one->bf16, one->bf16 ? "; matrix units: " : "; no matrix units: ");
    expect_plan(context, CLMGK_DTYPE_F32, false, "work-items share tiles");
    clmgk_context_release(context);
}

/* The provider of a plan that chooses by itself. */
static void expect_provider(clmgk_context *context, clmgk_dtype dtype, bool unit)
{
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    clmgk_gemm_plan *plan = NULL;
    desc.dtype = dtype;
    desc.m = desc.n = desc.k = 70;
    th_expect_ok(clmgk_gemm_plan_create(context, &desc, NULL, &plan, &th_error));
    th_expect_ok(clmgk_gemm_plan_get_info(plan, &info, &th_error));
    assert_int_equal(strcmp(info.provider, "matrix") == 0, unit);
    if (!unit && dtype == CLMGK_DTYPE_F16)
        expect_words(info.note, expected()->found ? "it gives wrong" : "no matrix units: ");
    clmgk_gemm_plan_release(plan);
}

/* Products of matrices have the same verdicts, and a right unit multiplies blocks, their edges and ranges. */
TH_TEST(products_are_right)
{
    enum { FORMS = 4 };
    const outcome *const one = expected();
    clmgk_context *const context = th_open_context(session->cl, session->info.device_id, "");
    expect_provider(context, CLMGK_DTYPE_F16, one->f16);
    if (session->full) {
        expect_provider(context, CLMGK_DTYPE_BF16, one->bf16);
        expect_provider(context, CLMGK_DTYPE_F32, false);
    }
    clmgk_context_release(context);
    for (int form = 0; one->f16 && form < (session->full ? FORMS : 1); form++) {
        clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
        desc.dtype = form % 2 == 0 ? CLMGK_DTYPE_F16 : CLMGK_DTYPE_BF16;
        desc.m = 70;
        desc.n = 150;
        desc.k = form == 0 ? 100 : 97;
        desc.transpose_a = form / 2;
        desc.transpose_b = form % 2;
        desc.beta = form == 1 ? 0.5 : 0.0;
        tp_expect(session, &desc, "matrix", NULL, (size_t)form, (uint64_t)form);
    }
}

/* CLMGK_UNIT allows one unit, or none, and no plan needs them. */
TH_TEST(units_are_avoided)
{
    static const char *const others[] = {"none", "mma.sync"};
    char name[32];
    if (!expected()->f16)
        skip();
    name_unit(name, sizeof(name));
    for (size_t n = 0; n < TH_COUNT(others); n++) {
        assert_int_equal(setenv("CLMGK_UNIT", others[n], 1), 0);
        clmgk_context *const context = th_open_context(session->cl, session->info.device_id, "");
        expect_unit(context, "", "switched off by CLMGK_UNIT");
        clmgk_context_release(context);
    }
    assert_int_equal(setenv("CLMGK_UNIT", name, 1), 0);
    clmgk_context *const context = th_open_context(session->cl, session->info.device_id, "");
    expect_unit(context, name, "");
    clmgk_context_release(context);
    assert_int_equal(setenv("CLMGK_UNIT", "mma", 1), 0);
    clmgk_context *unknown = NULL;
    th_expect_error(clmgk_context_create(session->cl, session->info.device_id, NULL, &unknown, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "CLMGK_UNIT: \"mma\": expected none or the name of a unit: mma.sync; ");
    assert_int_equal(unsetenv("CLMGK_UNIT"), 0);
}

/* Both passes on the unit's own products, with masks and rows that are not aligned. */
TH_FULL_TEST(kernels_of_the_unit_are_right)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_MGK, CLMGK_VARIANT_SMGK,
                                             CLMGK_VARIANT_HARD_FISH};
    const outcome *const one = expected();
    for (size_t n = 0; one->f16 && n < TH_COUNT(variants); n++) {
        clmgk_attention_desc desc = th_small_desc(variants[n], 70, 90);
        const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
        desc.dtype = n % 2 == 0 ? CLMGK_DTYPE_F16 : CLMGK_DTYPE_BF16;
        desc.components = n == 0 ? 1 : 2;
        desc.head_size = n == 0 ? 24 : 16; /* registers hold the gradients of several components */
        desc.value_size = n == 0 ? 40 : 16;
        desc.causal = 1;
        desc.gradients = th_all_gradients(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect_passes(session, &problem, &options);
    }
}
