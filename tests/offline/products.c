/* SPDX-License-Identifier: Apache-2.0 */
#include "offline/products.h"

#include "gemm/gemm.h"
#include "offline/steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW_NUMBERS = 64 }; /* of K, for which exact products are four of tf32 */

/* Makes the plan's step, which the caller clears. */
static clmgk_status make_step(const clmgk_gemm_desc *desc, const mgk_device_facts *facts, const char *parameters,
                              mgk_steps *steps, clmgk_gemm_desc *resolved, clmgk_error *error)
{
    clmgk_context context = {.facts = *facts};
    clmgk_gemm_plan plan = {.context = &context, .steps = steps};
    MGK_TRY(mgk_gemm_resolve(desc, &plan.desc, error));
    *resolved = plan.desc;
    const clmgk_status status = mgk_gemm_fragments_step(&plan, facts, parameters, error);
    mgk_text_free(&plan.note);
    return status;
}

/* The name of a product's factors. */
static const char *factors_of(const clmgk_gemm_desc *desc)
{
    if (desc->precision != CLMGK_PRECISION_EXACT)
        return clmgk_precision_name(desc->precision);
    return desc->dtype == CLMGK_DTYPE_F32 && desc->k == FEW_NUMBERS ? "f32x4" : clmgk_dtype_name(desc->dtype);
}

static int print_long(const char *engine, clmgk_dtype dtype, clmgk_precision precision, int form, int64_t k,
                      const mgk_device_facts *facts)
{
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT, resolved;
    mgk_steps steps = {.count = 0};
    clmgk_error error = {0};
    desc.dtype = dtype;
    desc.precision = precision;
    desc.m = desc.n = 4096;
    desc.k = k;
    desc.transpose_a = form / 2;
    desc.transpose_b = form % 2;
    const clmgk_status status = make_step(&desc, facts, "", &steps, &resolved, &error);
    if (status == CLMGK_OK)
        (void)printf("%s product-%s-%s%s%s %s %s\n", engine, factors_of(&desc), form / 2 ? "t" : "n",
                     form % 2 ? "t" : "n", facts->matrix_unit.unit == MATRIX_WGMMA ? "-wgmma" : "", steps.step[0].file,
                     steps.step[0].options.data);
    else
        (void)fprintf(stderr, "product: %s\n", error.message);
    mgk_steps_clear(&steps, NULL);
    return status == CLMGK_OK ? 0 : 1;
}

static int print_configuration(const char *engine, clmgk_dtype dtype, clmgk_precision precision, int form,
                               const mgk_device_facts *facts)
{
    return print_long(engine, dtype, precision, form, 4096, facts);
}

int offline_print_fragments(const mgk_device_facts *gpu, const mgk_device_facts *nvidia, const mgk_device_facts *hopper)
{
    enum { FORMS = 4 };
    static const clmgk_precision exact = CLMGK_PRECISION_EXACT, tf32 = CLMGK_PRECISION_TF32;
    int failed = print_configuration("matrix", CLMGK_DTYPE_F16, exact, 0, gpu);
    failed |= print_configuration("matrix", CLMGK_DTYPE_BF16, exact, FORMS - 1, gpu);
    failed |= print_configuration("matrix", CLMGK_DTYPE_F32, exact, 0, gpu);
    failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_F16, exact, 0, nvidia);
    for (int form = 0; form < FORMS; ++form) {
        failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_BF16, exact, form, nvidia);
        failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_BF16, exact, form, hopper);
        failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_F32, exact, form, nvidia);
        failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_F32, exact, form, hopper);
    }
    for (int form = 0; form < FORMS; form += FORMS - 1)
        failed |= print_long("matrix-nvidia", CLMGK_DTYPE_F32, exact, form, FEW_NUMBERS, nvidia);
    failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_F32, tf32, 0, nvidia);
    failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_F32, tf32, FORMS - 1, nvidia);
    failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_F32, tf32, 0, hopper);
    failed |= print_configuration("matrix-nvidia", CLMGK_DTYPE_F32, tf32, FORMS - 1, hopper);
    return failed;
}

int offline_print_direct(const char *engine, const mgk_device_facts *facts)
{
    enum { FORMS = 4 };
    int failed = print_configuration(engine, CLMGK_DTYPE_F16, CLMGK_PRECISION_EXACT, 0, facts);
    for (int form = 0; form < FORMS; ++form)
        failed |= print_configuration(engine, CLMGK_DTYPE_BF16, CLMGK_PRECISION_EXACT, form, facts);
    return failed;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static const char *matrix_name(int buffer)
{
    static const char *const names[] = {"a", "b", "c", "workspace"};
    return names[buffer];
}

/* Sets the field, or `parameters`, that the text names; false: there is none. */
static bool apply(const char *text, clmgk_gemm_desc *desc, const char **parameters)
{
    const struct {
        const char *name;
        int64_t *wide;
        int32_t *narrow;
    } fields[] = {{"m", &desc->m, NULL},
                  {"n", &desc->n, NULL},
                  {"k", &desc->k, NULL},
                  {"batch", &desc->batch, NULL},
                  {"lda", &desc->lda, NULL},
                  {"ldb", &desc->ldb, NULL},
                  {"ldc", &desc->ldc, NULL},
                  {"stride_a", &desc->stride_a, NULL},
                  {"stride_b", &desc->stride_b, NULL},
                  {"stride_c", &desc->stride_c, NULL},
                  {"transpose_a", NULL, &desc->transpose_a},
                  {"transpose_b", NULL, &desc->transpose_b}};
    const char *const value = strchr(text, '=');
    if (value == NULL)
        return false;
    const size_t length = (size_t)(value - text);
    for (size_t i = 0; i < MGK_COUNT(fields); ++i)
        if (length == strlen(fields[i].name) && strncmp(text, fields[i].name, length) == 0) {
            if (fields[i].wide != NULL)
                *fields[i].wide = strtoll(value + 1, NULL, 10);
            else
                *fields[i].narrow = (int32_t)strtol(value + 1, NULL, 10);
            return true;
        }
    if (strncmp(text, "dtype=", length + 1) == 0)
        desc->dtype = (clmgk_dtype)strtol(value + 1, NULL, 10);
    else if (strncmp(text, "precision=", length + 1) == 0)
        desc->precision = (clmgk_precision)strtol(value + 1, NULL, 10);
    else if (strncmp(text, "alpha=", length + 1) == 0)
        desc->alpha = strtod(value + 1, NULL);
    else if (strncmp(text, "beta=", length + 1) == 0)
        desc->beta = strtod(value + 1, NULL);
    else if (strncmp(text, "parameters=", length + 1) == 0)
        *parameters = value + 1;
    else
        return false;
    return true;
}

static void print_desc(const clmgk_gemm_desc *desc)
{
    (void)printf("problem m=%" PRId64 " n=%" PRId64 " k=%" PRId64 " batch=%" PRId64 " lda=%" PRId64 " ldb=%" PRId64
                 " ldc=%" PRId64 " stride_a=%" PRId64 " stride_b=%" PRId64 " stride_c=%" PRId64 " transpose_a=%" PRId32
                 " transpose_b=%" PRId32 " dtype=%d precision=%d\n",
                 desc->m, desc->n, desc->k, desc->batch, desc->lda, desc->ldb, desc->ldc, desc->stride_a,
                 desc->stride_b, desc->stride_c, desc->transpose_a, desc->transpose_b, (int)desc->dtype,
                 (int)desc->precision);
}

int offline_print_product(const mgk_device_facts *facts, int count, char **texts)
{
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT, resolved;
    mgk_steps steps = {.count = 0};
    const char *parameters = "";
    clmgk_error error = {0};
    for (int i = 0; i < count; ++i)
        if (!apply(texts[i], &desc, &parameters)) {
            (void)fprintf(stderr, "%s: no field of a product\n", texts[i]);
            return 1;
        }
    const clmgk_status status = make_step(&desc, facts, parameters, &steps, &resolved, &error);
    if (status == CLMGK_OK) {
        print_desc(&resolved);
        for (size_t i = 0; i < steps.count; ++i)
            offline_print_step(&steps.step[i], matrix_name);
        (void)printf("workspace %" PRIu64 "\n", steps.workspace_bytes);
    } else {
        (void)fprintf(stderr, "product: %s\n", error.message);
    }
    mgk_steps_clear(&steps, NULL);
    return status == CLMGK_OK ? 0 : 1;
}
