/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small problems for verdicts on programs: their plans must have all programs of the plan that needs the verdict, or it
 * loses its matrix unit without need. Random problems on a made-up H200; nothing is compiled.
 */
#include "attention/trial.h"
#include "engine/shuffles.clh"
#include "engine/units.clh"
#include "harness/facts.h"
#include "harness/harness.h"

#include <stdio.h>
#include <string.h>

static mgk_device_facts h200(void)
{
    enum { UNITS = 132, REGISTERS = 65536, WARP = 32 };
    mgk_device_facts facts = th_facts(CLMGK_DEVICE_GPU);
    facts.runtime = MGK_RUNTIME_NVIDIA;
    facts.unit_registers = REGISTERS;
    (void)snprintf(facts.info.vendor, sizeof(facts.info.vendor), "%s", "NVIDIA Corporation");
    (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "sm_90");
    facts.info.compute_units = UNITS;
    facts.info.local_memory_bytes = UINT64_C(48) << 10;
    facts.sub_group = (mgk_sub_group){.size = WARP, .shuffle = SHUFFLE_PTX};
    facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = MATRIX_WGMMA};
    return facts;
}

/* ---- random problems -------------------------------------------------------------------------------------------- */

static const int64_t sizes[] = {16, 20, 32, 48, 64, 80, 96, 128, 192, 256};
static const int64_t lengths[] = {1, 16, 33, 40, 64, 100, 300, 512, 1000, 4096, 16384, 65536};
static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX,   CLMGK_VARIANT_GAUSSIAN,  CLMGK_VARIANT_MGK,
                                         CLMGK_VARIANT_SMGK,      CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_FISH,
                                         CLMGK_VARIANT_HARD_MISH, CLMGK_VARIANT_MISH};

#define ONE_OF(state, list) (list)[th_pick(state, 0, TH_COUNT(list) - 1)]

static void draw_masks(uint64_t *state, clmgk_attention_desc *d)
{
    d->causal = th_chance(state, 3);
    if (th_chance(state, 5)) {
        d->use_window = 1;
        d->window_left = th_pick(state, -1, 200);
        d->window_right = th_pick(state, -1, 100);
    }
    d->use_lengths = th_chance(state, 6);
    if (th_chance(state, 8)) {
        d->batch = 1;
        d->sequences = th_pick(state, 1, 20);
        d->use_offsets_k = d->length != d->length_k;
        d->use_lengths = 0;
    }
}

static void draw_modifiers(uint64_t *state, clmgk_attention_desc *d)
{
    d->use_bias = th_chance(state, 8);
    if (d->use_bias) {
        d->bias_batch = th_chance(state, 2) ? 1 : 0;
        d->bias_heads = th_chance(state, 2) ? 1 : 0;
        d->bias_length = th_chance(state, 3) ? 1 : 0;
        d->bias_length_k = th_chance(state, 3) ? 1 : 0;
    }
    d->use_alibi = th_chance(state, 8);
    d->use_sinks = th_chance(state, 8);
    d->use_lse_low = th_chance(state, 8);
    d->dropout = th_chance(state, 8) ? 0.1 : 0.0;
    if (th_chance(state, 4))
        d->prior_shape = (int32_t)th_pick(state, CLMGK_PRIOR_M, CLMGK_PRIOR_HMS);
    if (th_chance(state, 4))
        d->variance_shape = CLMGK_VARIANCE_HM;
}

/* False: there is no such problem. */
static bool draw(uint64_t *state, clmgk_attention_desc *d)
{
    *d = (clmgk_attention_desc)CLMGK_ATTENTION_DESC_INIT;
    d->variant = ONE_OF(state, variants);
    d->dtype = th_chance(state, 2) ? CLMGK_DTYPE_BF16 : CLMGK_DTYPE_F16;
    d->batch = th_pick(state, 1, 8);
    d->kv_heads = INT64_C(1) << th_pick(state, 0, 3);
    d->heads = d->kv_heads << (th_chance(state, 3) ? th_pick(state, 0, 3) : 0);
    d->components = th_pick(state, 1, 4);
    d->head_size = ONE_OF(state, sizes);
    d->value_size = th_chance(state, 3) ? ONE_OF(state, sizes) : d->head_size;
    d->length = ONE_OF(state, lengths);
    d->length_k = th_chance(state, 2) ? ONE_OF(state, lengths) : d->length;
    draw_masks(state, d);
    draw_modifiers(state, d);
    if (th_chance(state, 2))
        d->gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    if (th_chance(state, 4))
        d->statistics = (uint32_t)th_pick(state, 1, CLMGK_STATISTIC_ALL);
    return clmgk_attention_validate(d, d, NULL) == CLMGK_OK;
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

/* The passes of a problem on the matrix engine; `parameters`: of each, or NULL; `local`: bytes of local memory that a
 * launch may ask for (mgk_device_facts.dynamic_local). False: it can't do one of them. */
typedef struct passes {
    clmgk_plan plan;
    mgk_compiled_pass own[CLMGK_PASSES];
    clmgk_error error;
} passes;

static bool make(passes *x, const clmgk_attention_desc *desc, char *const *parameters, uint64_t local)
{
    mgk_device_facts facts = h200();
    char followed[32] = "";
    facts.dynamic_local = local;
    *x = (passes){.plan = {.desc = *desc, .family = mgk_family_of(desc->variant), .attempt = {.dynamic_local = local}}};
    for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass < CLMGK_PASS_COMBINE; ++pass) {
        if (!mgk_pass_is_wanted(desc, pass))
            continue;
        const mgk_pass_request request = {.desc = desc,
                                          .limits = desc,
                                          .facts = &facts,
                                          .engine = CLMGK_ENGINE_MATRIX,
                                          .parameters = {.text = parameters != NULL ? parameters[pass] : NULL,
                                                         .origin = MGK_ORIGIN_CALLER,
                                                         .followed = pass == CLMGK_PASS_BACKWARD ? followed : NULL},
                                          .pass = pass};
        x->plan.pass[pass] = &x->own[pass];
        x->own[pass].engine = CLMGK_ENGINE_MATRIX;
        if (mgk_family_plan(x->plan.family, &request, &x->own[pass].plan, &x->error) != CLMGK_OK)
            return false;
        if (pass == CLMGK_PASS_FORWARD)
            (void)snprintf(followed, sizeof(followed), "unit=%d", x->own[pass].plan.block.unit);
    }
    return true;
}

static void clear(passes *x)
{
    for (int pass = 0; pass < CLMGK_PASSES; ++pass)
        mgk_steps_clear(&x->own[pass].plan.steps, NULL);
}

static bool has_program(const mgk_steps *steps, const mgk_step *wanted)
{
    for (size_t i = 0; i < steps->count; ++i)
        if (strcmp(steps->step[i].file, wanted->file) == 0 &&
            strcmp(steps->step[i].options.data, wanted->options.data) == 0)
            return true;
    return false;
}

/* Edited programs of the pass that the small problem lacks. */
static int lost(const passes *whole, const passes *small, clmgk_pass pass)
{
    const mgk_steps *const steps = &whole->own[pass].plan.steps;
    int count = 0;
    for (size_t i = 0; i < steps->count; ++i) {
        const mgk_step *const step = &steps->step[i];
        const bool runs = step->launch.global[0] > 0 && strstr(step->options.data, MGK_EDITED_PTX) != NULL;
        if (runs && !has_program(&small->own[pass].plan.steps, step)) {
            print_error("%s\n", step->options.data);
            ++count;
        }
    }
    return count;
}

static void expect_same_programs(const passes *whole)
{
    mgk_text parameters[CLMGK_PASSES] = {{0}};
    char *texts[CLMGK_PASSES] = {NULL};
    clmgk_attention_desc desc;
    passes small;
    th_expect_ok(mgk_trial_shrink(&whole->plan, &desc, &th_error));
    for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass < CLMGK_PASS_COMBINE; ++pass)
        if (whole->plan.pass[pass] != NULL) {
            mgk_trial_parameters(&whole->plan, pass, &parameters[pass]);
            texts[pass] = parameters[pass].data;
        }
    assert_true(make(&small, &desc, texts, whole->plan.attempt.dynamic_local));
    for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass < CLMGK_PASS_COMBINE; ++pass)
        if (whole->plan.pass[pass] != NULL)
            assert_int_equal(lost(whole, &small, pass), 0);
    clear(&small);
    for (int pass = 0; pass < CLMGK_PASSES; ++pass)
        mgk_text_free(&parameters[pass]);
}

TH_HOST_TEST(small_problems_have_the_same_programs)
{
    enum { PROBLEMS = 3000, LEAST = 300 };
    uint64_t state = 1;
    int count = 0, split = 0, packed = 0, statistics = 0;
    for (int i = 0; i < PROBLEMS; ++i) {
        clmgk_attention_desc desc;
        passes whole;
        if (!draw(&state, &desc))
            continue;
        if (make(&whole, &desc, NULL, 0) && whole.own[0].plan.block.unit == MATRIX_WGMMA) {
            expect_same_programs(&whole);
            ++count;
            split +=
                strstr(whole.own[0].plan.steps.step[whole.own[0].plan.steps.main].options.data, "SPLIT_KEYS") != NULL;
            packed += desc.sequences > 0;
            statistics += desc.statistics != 0;
        }
        clear(&whole);
    }
    assert_true(count > LEAST && split > 0 && packed > 0 && statistics > 0);
}

/* Few blocks fill no wave, so a small problem's first block stands for those that are not split. */
TH_HOST_TEST(a_small_problem_has_a_tail)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    passes whole;
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.heads = 16;
    desc.length = desc.length_k = 8192;
    desc.head_size = 128;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    assert_true(make(&whole, &desc, NULL, 0));
    const mgk_steps *const steps = &whole.own[0].plan.steps;
    assert_non_null(strstr(steps->step[steps->main].options.data, "SPLIT_TAIL"));
    expect_same_programs(&whole);
    clear(&whole);
}

/* Two groups of four warps, in CUDA's local memory; in OpenCL's with shorter tiles. */
TH_HOST_TEST(groups_of_warps_take_turns)
{
    static const struct {
        clmgk_variant variant;
        int64_t components, length, size;
        clmgk_dtype dtype;
        clmgk_prior_shape prior;
        const char *flags, *small_flags; /* in CUDA and in OpenCL; NULL: refused */
    } cases[] = {
        {CLMGK_VARIANT_SOFTMAX, 1, 8192, 128, CLMGK_DTYPE_BF16, CLMGK_PRIOR_UNIFORM, " -DKEY_TILES=16",
         " -DKEY_TILES=2"},
        {CLMGK_VARIANT_SOFTMAX, 1, 40, 64, CLMGK_DTYPE_F16, CLMGK_PRIOR_UNIFORM, " -DKEY_TILES=8", " -DKEY_TILES=4"},
        {CLMGK_VARIANT_MGK, 2, 8192, 128, CLMGK_DTYPE_BF16, CLMGK_PRIOR_UNIFORM, " -DRING_PLACES=9", " -DKEY_TILES=2"},
        {CLMGK_VARIANT_MGK, 3, 200, 64, CLMGK_DTYPE_BF16, CLMGK_PRIOR_UNIFORM, " -DRING_PLACES=12", " -DKEY_TILES=2"},
        {CLMGK_VARIANT_SOFTMAX, 1, 8192, 192, CLMGK_DTYPE_BF16, CLMGK_PRIOR_UNIFORM, " -DKEY_TILES=8",
         " -DKEY_TILES=2"},
        {CLMGK_VARIANT_SOFTMAX, 1, 8192, 256, CLMGK_DTYPE_BF16, CLMGK_PRIOR_UNIFORM, NULL, NULL},
        {CLMGK_VARIANT_MGK, 2, 100, 64, CLMGK_DTYPE_BF16, CLMGK_PRIOR_UNIFORM, NULL, NULL},
        {CLMGK_VARIANT_MGK, 2, 8192, 64, CLMGK_DTYPE_BF16, CLMGK_PRIOR_HM, NULL, NULL},
        {CLMGK_VARIANT_SMGK, 2, 8192, 64, CLMGK_DTYPE_BF16, CLMGK_PRIOR_UNIFORM, NULL, NULL},
        {CLMGK_VARIANT_HARD_FISH, 2, 8192, 64, CLMGK_DTYPE_BF16, CLMGK_PRIOR_UNIFORM, NULL, NULL},
        {CLMGK_VARIANT_SOFTMAX, 1, 8192, 64, CLMGK_DTYPE_F32, CLMGK_PRIOR_UNIFORM, NULL, NULL},
    };
    static const uint64_t locals[] = {UINT64_C(227) << 10, 0};
    char parameters[] = "unit=2,warps=8", *texts[CLMGK_PASSES] = {parameters};
    for (size_t i = 0; i < TH_COUNT(cases) * TH_COUNT(locals); ++i) {
        const size_t n = i / TH_COUNT(locals), place = i % TH_COUNT(locals);
        const char *const flags = place == 0 ? cases[n].flags : cases[n].small_flags;
        clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
        passes whole;
        desc.variant = cases[n].variant;
        desc.components = cases[n].components;
        desc.dtype = cases[n].dtype;
        desc.prior_shape = (int32_t)cases[n].prior;
        desc.heads = 4;
        desc.length = desc.length_k = cases[n].length;
        desc.head_size = cases[n].size;
        th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
        const bool made = make(&whole, &desc, texts, locals[place]);
        if (made != (flags != NULL))
            fail_msg("case %zu: made %d, %s", i, made, whole.error.message);
        if (flags == NULL) {
            assert_non_null(strstr(whole.error.message, "warps: expected 4 of wgmma"));
        } else {
            const mgk_steps *const steps = &whole.own[0].plan.steps;
            const char *const options = steps->step[steps->main].options.data;
            if (strstr(options, flags) == NULL || strstr(options, " -DWARPS=8") == NULL)
                fail_msg("case %zu: %s", i, options);
            expect_same_programs(&whole);
        }
        clear(&whole);
    }
}
