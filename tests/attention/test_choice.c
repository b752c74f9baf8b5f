/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of an engine by rank and by what fits, on made-up devices, so that nothing is compiled.
 */
#include "attention/plan.h"
#include "engine/engine.h"
#include "harness/facts.h"
#include "harness/harness.h"
#include "harness/scratch.h"

#include <stdio.h>
#include <string.h>

/* Chooses a plan's engine for a device, with tuned values of `folder` (NULL: none). `context` becomes the plan's
 * context.
 */
static clmgk_status choose_tuned(const mgk_device_facts *facts, const char *folder, const clmgk_attention_desc *given,
                                 const clmgk_plan_options *options, clmgk_context *context, clmgk_plan *plan,
                                 clmgk_error *error)
{
    clmgk_attention_desc desc = *given;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    memset(context, 0, sizeof(*context));
    memset(plan, 0, sizeof(*plan));
    context->facts = *facts;
    context->facts.matrix_unit = (mgk_matrix_unit){.known = false}; /* the context has it */
    for (int unit = 1; unit < MGK_MATRIX_UNITS; unit++)
        context->matrix_unit[unit] =
            (mgk_matrix_unit){.known = true, .unit = unit <= facts->matrix_unit.unit ? unit : 0};
    if (folder)
        th_expect_ok(mgk_tuning_read(NULL, folder, &context->tuning, &th_error));
    context->sub_group.known = true; /* none */
    th_expect_ok(mgk_monitor_init(&context->monitor, &th_error));
    mgk_plan_begin(plan, context, &desc);
    return mgk_plan_choose(plan, options, error);
}

static clmgk_status choose(const mgk_device_facts *facts, const clmgk_attention_desc *desc,
                           const clmgk_plan_options *options, clmgk_context *context, clmgk_plan *plan,
                           clmgk_error *error)
{
    return choose_tuned(facts, NULL, desc, options, context, plan, error);
}

static void discard(clmgk_context *context, clmgk_plan *plan)
{
    mgk_plan_free_passes(plan);
    mgk_tuning_free(NULL, context->tuning);
    mgk_monitor_destroy(&context->monitor);
}

/* A problem with so many components that kernels which hold all their keys, as the lane engine's backward pass does, do
 * not fit a CPU. */
static clmgk_attention_desc wide_desc(clmgk_variant variant, clmgk_score score)
{
    clmgk_attention_desc desc = th_small_desc(variant, 40, 40);
    desc.heads = 4;
    desc.components = 16;
    desc.head_size = desc.value_size = 512;
    desc.score = score;
    return desc;
}

/* If one pass takes another engine, so does the other. */
TH_HOST_TEST(passes_have_one_engine)
{
    static const struct {
        clmgk_variant variant;
        clmgk_score score;
    } cases[] = {{CLMGK_VARIANT_MGK, CLMGK_SCORE_DOT},
                 {CLMGK_VARIANT_MGK, CLMGK_SCORE_GAUSSIAN},
                 {CLMGK_VARIANT_HARD_FISH, CLMGK_SCORE_DOT}};
    const mgk_device_facts facts = th_facts(CLMGK_DEVICE_CPU);
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_context context;
        clmgk_plan plan;
        clmgk_attention_desc desc = wide_desc(cases[n].variant, cases[n].score);
        th_expect_ok(choose(&facts, &desc, &options, &context, &plan, &th_error));
        assert_int_equal(plan.pass[CLMGK_PASS_FORWARD]->engine, CLMGK_ENGINE_LANE);
        assert_string_equal(plan.engine_reason, "the compiler makes SIMD registers of a work-item's vectors");
        discard(&context, &plan);

        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
        th_expect_ok(choose(&facts, &desc, &options, &context, &plan, &th_error));
        assert_int_equal(plan.pass[CLMGK_PASS_BACKWARD]->engine, CLMGK_ENGINE_SIMT);
        assert_int_equal(plan.pass[CLMGK_PASS_FORWARD]->engine, CLMGK_ENGINE_SIMT);
        assert_non_null(strstr(plan.engine_reason, "; engine lane: head_size, value_size and components need "));
        discard(&context, &plan);

        clmgk_plan_options named = options;
        named.engine = CLMGK_ENGINE_LANE;
        th_expect_error(choose(&facts, &desc, &named, &context, &plan, &th_error), CLMGK_ERROR_UNSUPPORTED,
                        "engine lane: head_size, value_size and components need");
        discard(&context, &plan);
    }
}

/* The tuned entry of the forward pass names the engine of all passes. */
TH_HOST_TEST(passes_follow_a_measured_engine)
{
    const mgk_device_facts facts = th_facts(CLMGK_DEVICE_CPU);
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    const clmgk_tuned tuned[] = {{"simt", "", 1.0, 2.0}, {"lane", "panels=2", 1.0, 2.0}};
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 40, 40);
    clmgk_context context;
    clmgk_plan plan;
    char folder[SCRATCH_PATH];
    desc.gradients = CLMGK_GRADIENT_Q;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    scratch_create(folder);
    for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass <= CLMGK_PASS_BACKWARD; pass++) {
        const mgk_tuning_key key = mgk_attention_key(&desc, pass);
        th_expect_ok(mgk_tuning_write(NULL, folder, &facts, &key, &tuned[pass], &th_error));
    }
    th_expect_ok(choose_tuned(&facts, folder, &desc, &options, &context, &plan, &th_error));
    assert_int_equal(plan.pass[CLMGK_PASS_FORWARD]->engine, CLMGK_ENGINE_SIMT);
    assert_int_equal(plan.pass[CLMGK_PASS_BACKWARD]->engine, CLMGK_ENGINE_SIMT);
    assert_string_equal(plan.engine_reason, "named by measured values");
    discard(&context, &plan);
    scratch_remove(folder);
}

/* Measured values name the engine of matrix units, also with parameters of its own, where there are such units. Where
 * there are none, or the types of a problem have none, the tuner does not try it, and a plan passes its entries over.
 */
TH_HOST_TEST(measured_values_of_matrix_units)
{
    mgk_device_facts facts = th_facts(CLMGK_DEVICE_GPU);
    facts.runtime = MGK_RUNTIME_NVIDIA;
    (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "sm_80");
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    const clmgk_tuned tuned = {"matrix", "key-tiles=4,warps=2", 1.0, 2.0};
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 40, 40);
    clmgk_context context;
    clmgk_plan plan;
    char folder[SCRATCH_PATH];
    desc.dtype = CLMGK_DTYPE_BF16;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    const mgk_tuning_key key = mgk_attention_key(&desc, CLMGK_PASS_FORWARD);
    scratch_create(folder);
    th_expect_ok(mgk_tuning_write(NULL, folder, &facts, &key, &tuned, &th_error));
    for (int unit = 1; unit >= 0; unit--) {
        const clmgk_engine expected = unit ? CLMGK_ENGINE_MATRIX : CLMGK_ENGINE_SIMT;
        facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = unit};
        th_expect_ok(choose_tuned(&facts, folder, &desc, &options, &context, &plan, &th_error));
        const mgk_compiled_pass *const forward = plan.pass[CLMGK_PASS_FORWARD];
        assert_int_equal(forward->engine, expected);
        assert_int_equal(forward->source, unit ? CLMGK_TUNING_BUCKET : CLMGK_TUNING_CLASS);
        assert_true(!unit || mgk_tunable_get(&forward->plan.tunables, (mgk_tunable_name){"warps"}) == 2);
        const clmgk_status status = mgk_plan_try(&context, &plan.desc, CLMGK_PASS_FORWARD, CLMGK_ENGINE_MATRIX,
                                                 "key-tiles=4,warps=2", &th_error);
        assert_int_equal(status, unit ? CLMGK_OK : CLMGK_ERROR_INVALID_VALUE);
        assert_true(unit || strstr(th_error.message, "emulates"));
        plan.desc.dtype_o = CLMGK_STORAGE_F32;
        th_expect_error(mgk_plan_try(&context, &plan.desc, CLMGK_PASS_FORWARD, CLMGK_ENGINE_MATRIX, "", &th_error),
                        CLMGK_ERROR_INVALID_VALUE, "finer weights");
        discard(&context, &plan);
    }
    scratch_remove(folder);
}

/* The units of AMX take arrays that are all of their type; that of bf16 others, too, where the descriptor allows it. */
TH_HOST_TEST(units_of_cpus)
{
    static const struct {
        clmgk_dtype dtype;
        clmgk_storage dtype_k;
        clmgk_precision precision;
        int units[2]; /* of a CPU with AMX, and with AMX-FP16 */
    } cases[] = {
        {CLMGK_DTYPE_BF16, CLMGK_STORAGE_AS_Q, CLMGK_PRECISION_EXACT, {MATRIX_AMX, MATRIX_AMX}},
        {CLMGK_DTYPE_F16, CLMGK_STORAGE_AS_Q, CLMGK_PRECISION_EXACT, {0, MATRIX_AMX_F16}},
        {CLMGK_DTYPE_F16, CLMGK_STORAGE_AS_Q, CLMGK_PRECISION_TF32, {0, MATRIX_AMX_F16}},
        {CLMGK_DTYPE_F16, CLMGK_STORAGE_AS_Q, CLMGK_PRECISION_BF16, {MATRIX_AMX, MATRIX_AMX_F16}},
        {CLMGK_DTYPE_F16, CLMGK_STORAGE_F32, CLMGK_PRECISION_EXACT, {0, 0}},
        {CLMGK_DTYPE_F16, CLMGK_STORAGE_BF16, CLMGK_PRECISION_EXACT, {0, 0}},
        {CLMGK_DTYPE_F16, CLMGK_STORAGE_F32, CLMGK_PRECISION_BF16, {MATRIX_AMX, MATRIX_AMX}},
        {CLMGK_DTYPE_F32, CLMGK_STORAGE_AS_Q, CLMGK_PRECISION_EXACT, {0, 0}},
    };
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    for (size_t n = 0; n < 2 * TH_COUNT(cases); n++) {
        const int expected = cases[n / 2].units[n % 2];
        mgk_device_facts facts = th_facts(CLMGK_DEVICE_CPU);
        facts.runtime = MGK_RUNTIME_POCL;
        facts.simd_vectors = facts.x86_avx512dq = facts.x86_amx = true;
        facts.x86_amx_f16 = n % 2 == 1;
        facts.info.native_float_lanes = 16;
        facts.matrix_unit.unit = MATRIX_AMX_F16; /* the probes find what there is */
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 70, 70);
        desc.dtype = cases[n / 2].dtype;
        desc.dtype_k = cases[n / 2].dtype_k;
        desc.precision = cases[n / 2].precision;
        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
        clmgk_context context;
        clmgk_plan plan;
        th_expect_ok(choose(&facts, &desc, &options, &context, &plan, &th_error));
        for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass <= CLMGK_PASS_BACKWARD; pass++) {
            const mgk_block *const block = &plan.pass[pass]->plan.block;
            const bool rounds = expected == MATRIX_AMX && desc.dtype != CLMGK_DTYPE_BF16;
            assert_int_equal(block->unit, expected);
            assert_int_equal(block->precision, rounds ? CLMGK_PRECISION_BF16 : CLMGK_PRECISION_EXACT);
        }
        discard(&context, &plan);
    }
}

/* The caller's parameters can be too large for one pass, and unknown to all other engines: every reason is told. */
TH_HOST_TEST(no_engine_is_left)
{
    const mgk_device_facts facts = th_facts(CLMGK_DEVICE_CPU);
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_attention_desc desc = wide_desc(CLMGK_VARIANT_MGK, CLMGK_SCORE_DOT);
    clmgk_context context;
    clmgk_plan plan;
    desc.components = 2;
    desc.gradients = CLMGK_GRADIENT_ALL & (CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K);
    options.backward_parameters = "panels=16";
    th_expect_error(choose(&facts, &desc, &options, &context, &plan, &th_error), CLMGK_ERROR_UNSUPPORTED,
                    "of private memory, expected at most 2097152; parameters: \"panels=16\": expected name=value with "
                    "a name of \"simt\"");
    discard(&context, &plan);
}

/* The defaults of a GPU are another engine's. */
TH_HOST_TEST(ranks)
{
    static const clmgk_device_class classes[] = {CLMGK_DEVICE_CPU, CLMGK_DEVICE_GPU, CLMGK_DEVICE_OTHER};
    static const clmgk_engine best[] = {CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT, CLMGK_ENGINE_SIMT};
    const clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_BF16};
    for (size_t n = 0; n < TH_COUNT(classes); n++) {
        const mgk_device_facts facts = th_facts(classes[n]);
        mgk_ranked ranked[MGK_ENGINES];
        mgk_engines_rank(&facts, &desc, ranked);
        assert_int_equal(ranked[0].engine->value, best[n]);
        for (size_t i = 0; i < MGK_ENGINES; i++) {
            assert_true(ranked[i].rank.points > MGK_RANK_NONE && ranked[i].rank.reason[0] != '\0');
            assert_true(i == 0 || ranked[i].rank.points <= ranked[i - 1].rank.points);
        }
    }
    /* matrix units have no f32 of mixed heads, nor types of their own in a backward pass; they need leave to round in
     * the linear family, and rows for a fragment, or four query heads to a head of keys */
    mgk_device_facts facts = th_facts(CLMGK_DEVICE_GPU);
    const clmgk_attention_desc problems[] = {
        {.dtype = CLMGK_DTYPE_BF16, .length = 16},
        {.dtype = CLMGK_DTYPE_F16, .length = 16},
        {.dtype = CLMGK_DTYPE_F16, .length = 1, .heads = 8, .kv_heads = 2},
        {.dtype = CLMGK_DTYPE_F32, .length = 16, .gradients = CLMGK_GRADIENT_Q},
        {.dtype = CLMGK_DTYPE_BF16, .dtype_k = CLMGK_STORAGE_F32, .length = 16},
        {.variant = CLMGK_VARIANT_MLK, .dtype = CLMGK_DTYPE_F16, .length = 16, .precision = CLMGK_PRECISION_TF32},
        {.variant = CLMGK_VARIANT_HARD_FISH, .dtype = CLMGK_DTYPE_F32, .length = 16},
        {.variant = CLMGK_VARIANT_HARD_FISH, .dtype = CLMGK_DTYPE_F32, .length = 16, .precision = CLMGK_PRECISION_TF32},
        {.variant = CLMGK_VARIANT_MLK, .dtype = CLMGK_DTYPE_F16, .length = 16},
        {.variant = CLMGK_VARIANT_LINEAR, .length = 15, .heads = 8, .kv_heads = 2, .precision = CLMGK_PRECISION_TF32},
        {.dtype = CLMGK_DTYPE_BF16, .length = 15},
        {.dtype = CLMGK_DTYPE_F32, .dtype_o = CLMGK_STORAGE_F16, .length = 16, .gradients = CLMGK_GRADIENT_Q},
        {.dtype = CLMGK_DTYPE_BF16, .dtype_k = CLMGK_STORAGE_F32, .length = 16, .gradients = CLMGK_GRADIENT_Q}};
    for (size_t n = 0; n < TH_COUNT(problems); n++) {
        mgk_ranked ranked[MGK_ENGINES];
        facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = 1};
        mgk_engines_rank(&facts, &problems[n], ranked);
        assert_int_equal(ranked[0].engine->value, n < 6 ? CLMGK_ENGINE_MATRIX : CLMGK_ENGINE_SIMT);
        facts.matrix_unit.unit = 0;
        mgk_engines_rank(&facts, &problems[n], ranked);
        assert_int_equal(ranked[0].engine->value, CLMGK_ENGINE_SIMT);
    }
    /* rows that are no whole pieces of 16 bytes are told, where their array's copies are slow for them */
    const struct {
        clmgk_attention_desc desc;
        bool slow;
    } rows[] = {{{.dtype = CLMGK_DTYPE_F16, .length = 16, .head_size = 24, .value_size = 8, .k = {.token = 72}}, false},
                {{.dtype = CLMGK_DTYPE_F16, .length = 16, .head_size = 20, .value_size = 8}, true},
                {{.dtype = CLMGK_DTYPE_F16, .length = 16, .head_size = 24, .value_size = 9}, true},
                {{.dtype = CLMGK_DTYPE_F16, .length = 16, .head_size = 24, .v = {.head = 804}}, true},
                {{.dtype = CLMGK_DTYPE_F16, .length = 16, .head_size = 24, .q = {.token = 25}}, false},
                {{.dtype = CLMGK_DTYPE_F16, .length = 16, .q = {.token = 25}, .gradients = CLMGK_GRADIENT_Q}, true}};
    for (size_t n = 0; n < TH_COUNT(rows); n++) {
        facts.matrix_unit.unit = 1;
        const mgk_rank rank = mgk_engine_rank(&mgk_engine_matrix, &facts, &rows[n].desc);
        assert_true(rank.points > MGK_RANK_MADE_FOR);
        assert_true((strstr(rank.reason, "number by number") != NULL) == rows[n].slow);
    }
    /* an engine of other storage types can't */
    mgk_engine other = mgk_engine_simt;
    other.dtypes = 1U << CLMGK_DTYPE_F16;
    assert_int_equal(mgk_engine_rank(&other, &facts, &desc).points, MGK_RANK_NONE);
    assert_true(mgk_engine_rank(&other, &facts, NULL).points > MGK_RANK_NONE);
}
