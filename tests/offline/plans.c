/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the kernel configurations that plans make for the problems below, on a GPU and a CPU that need not be here:
 * the text of configurations.txt, which the test compares and compile.py compiles.
 */
#include "variants/family.h"

#include <stdio.h>
#include <string.h>

typedef struct problem {
    const char *name;
    clmgk_variant variant;
    clmgk_dtype dtype;
    int64_t components, head_size, value_size;
    bool dot, hard, arrays; /* dot score in place of the variant's own; hard E-step; prior and variance as arrays */
} problem;

static const problem problems[] = {
    {"softmax-32", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 32, 32, false, false, false},
    {"softmax-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false},
    {"softmax-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 128, 128, false, false, false},
    {"softmax-256", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 256, 256, false, false, false},
    {"softmax-512", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 512, 512, false, false, false},
    {"softmax-192-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 192, 128, false, false, false},
    {"softmax-f16-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false},
    {"softmax-bf16-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 64, 64, false, false, false},
    {"gaussian-64", CLMGK_VARIANT_GAUSSIAN, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false},
    {"mgk2-32", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 32, 32, false, false, false},
    {"mgk2-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false},
    {"mgk2-128", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 128, 128, false, false, false},
    {"mgk2-f16-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false},
    {"mgk2-dot-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, true, false, false},
    {"mgk2-hard-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, true, false},
    {"mgk2-arrays-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true},
    {"mgk4-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 4, 64, 64, false, false, false},
    {"smgk2-32", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 32, 32, false, false, false},
    {"smgk2-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false},
    {"smgk2-128", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 128, 128, false, false, false},
    {"smgk2-bf16-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false},
    {"smgk2-arrays-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true},
    {"smgk4-hard-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 4, 64, 64, false, true, false},
};

static mgk_device_facts facts_of(clmgk_device_class device_class)
{
    mgk_device_facts facts = {.runtime = MGK_RUNTIME_OTHER, .usable = true};
    facts.info.device_class = device_class;
    facts.info.compute_units = 64;
    facts.info.native_float_lanes = device_class == CLMGK_DEVICE_CPU ? 16 : 1;
    facts.info.global_memory_bytes = UINT64_C(16) << 30;
    facts.info.max_allocation_bytes = UINT64_C(4) << 30;
    facts.info.local_memory_bytes = UINT64_C(48) << 10;
    facts.info.max_work_group = 1024;
    facts.work_item_limit = 1024;
    return facts;
}

static int print(const problem *p, clmgk_engine engine, const mgk_device_facts *facts)
{
    clmgk_error error = {0};
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = p->variant;
    desc.dtype = p->dtype;
    desc.components = p->components;
    desc.head_size = p->head_size;
    desc.value_size = p->value_size;
    desc.heads = 8;
    desc.length = 4096;
    desc.length_k = 4096;
    desc.score = p->dot ? CLMGK_SCORE_DOT : CLMGK_SCORE_DEFAULT;
    desc.estep = p->hard ? CLMGK_ESTEP_HARD : CLMGK_ESTEP_SOFT;
    desc.prior_shape = p->arrays ? CLMGK_PRIOR_HMS : CLMGK_PRIOR_UNIFORM;
    desc.variance_shape = p->arrays ? CLMGK_VARIANCE_HM : CLMGK_VARIANCE_NUMBER;

    mgk_kernel_plan plan = {0};
    clmgk_status status = clmgk_attention_validate(&desc, &desc, &error);
    if (status == CLMGK_OK)
        status = mgk_family_of(desc.variant)->plan(&desc, facts, engine, NULL, &plan, &error);
    if (status == CLMGK_OK)
        (void)printf("%s %s %s %s\n", clmgk_engine_name(engine), p->name, plan.file, plan.options.data);
    else
        (void)fprintf(stderr, "%s: %s\n", p->name, error.message);
    mgk_text_free(&plan.options);
    return status == CLMGK_OK ? 0 : 1;
}

int main(void)
{
    const mgk_device_facts gpu = facts_of(CLMGK_DEVICE_GPU);
    const mgk_device_facts cpu = facts_of(CLMGK_DEVICE_CPU);
    int failed = 0;
    (void)puts("# Made by tests/offline/plans.c: kernel configurations that plans make.");
    for (size_t i = 0; i < MGK_COUNT(problems); ++i) {
        failed |= print(&problems[i], CLMGK_ENGINE_SIMT, &gpu);
        failed |= print(&problems[i], CLMGK_ENGINE_LANE, &cpu);
    }
    return failed;
}
