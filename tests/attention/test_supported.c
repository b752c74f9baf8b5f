/* SPDX-License-Identifier: Apache-2.0 */
/* clmgk_attention_supported compiles nothing and allocates no device memory. That plans agree with it the harness
 * checks for each plan of all tests. */
#include "harness/harness.h"

static size_t made; /* programs, kernels and buffers */

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): names that the linker's --wrap gives */
cl_program __real_clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                            const size_t *lengths, cl_int *code);
cl_program __wrap_clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                            const size_t *lengths, cl_int *code);
cl_program __real_clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                            const size_t *sizes, const unsigned char **binaries, cl_int *states,
                                            cl_int *code);
cl_program __wrap_clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                            const size_t *sizes, const unsigned char **binaries, cl_int *states,
                                            cl_int *code);
cl_mem __real_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code);
cl_mem __wrap_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code);

cl_program __wrap_clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                            const size_t *lengths, cl_int *code)
{
    made++;
    return __real_clCreateProgramWithSource(context, count, texts, lengths, code);
}

cl_program __wrap_clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                            const size_t *sizes, const unsigned char **binaries, cl_int *states,
                                            cl_int *code)
{
    made++;
    return __real_clCreateProgramWithBinary(context, count, devices, sizes, binaries, states, code);
}

cl_mem __wrap_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code)
{
    made++;
    return __real_clCreateBuffer(context, flags, size, host, code);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static void set_pages(clmgk_attention_desc *desc)
{
    desc->page_size = 16;
    desc->table_pages = 8;
    desc->pages = 20;
    desc->use_lengths = 1;
}

/* The number of these problems that an engine takes; of the others the message says why. */
static size_t count_taken(const clmgk_attention_desc *problems, size_t count, clmgk_context *context,
                          clmgk_engine engine)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    size_t taken = 0;
    options.engine = engine;
    for (size_t n = 0; n < count; n++) {
        const clmgk_status status = clmgk_attention_supported(context, &problems[n], &options, &th_error);
        taken += status == CLMGK_OK;
        if (status != CLMGK_OK)
            assert_true(status == CLMGK_ERROR_UNSUPPORTED && th_error.message[0] != '\0');
        th_error = (clmgk_error){0};
    }
    return taken;
}

/* Forward passes and training of all variants in all types, caches of all kinds, and heads that some engines lack,
 * asked of a new context. */
TH_TEST(nothing_is_compiled)
{
    enum { MIXTURES = TH_COUNT(th_variants), ADMIXTURES = TH_COUNT(th_admixtures), LINEARS = TH_COUNT(th_linears) };
    enum { VARIANTS = MIXTURES + ADMIXTURES + LINEARS, TYPES = CLMGK_DTYPES, CACHES = 3, WIDE = 576 };
    static const clmgk_engine engines[] = {CLMGK_ENGINE_AUTO, CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT,
                                           CLMGK_ENGINE_MATRIX};
    clmgk_attention_desc problems[VARIANTS * TYPES * 2 + CACHES];
    size_t count = 0;
    for (size_t n = 0; n < (size_t)VARIANTS * TYPES * 2; n++) {
        const size_t v = n / 2 % VARIANTS;
        const clmgk_variant variant = v < MIXTURES                ? th_variants[v]
                                      : v < MIXTURES + ADMIXTURES ? th_admixtures[v - MIXTURES]
                                                                  : th_linears[v - MIXTURES - ADMIXTURES];
        problems[count] = th_small_desc(variant, 33, 33);
        problems[count].dtype = th_dtypes[n / 2 / VARIANTS];
        problems[count++].gradients = n % 2 == 0 ? 0 : CLMGK_GRADIENT_Q | CLMGK_GRADIENT_V;
    }
    for (size_t n = 0; n < CACHES; n++) {
        problems[count] = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 128);
        set_pages(&problems[count]);
        problems[count].dtype_k = problems[count].dtype_v = n == 0 ? CLMGK_STORAGE_INT8 : CLMGK_STORAGE_AS_Q;
        problems[count].head_size = n == 1 ? WIDE : problems[count].head_size;
        problems[count++].append = n == 2 ? 7 : 0;
    }
    clmgk_context *const context = th_open_context(session->cl, session->info.device_id, "");
    for (size_t n = 0; n < TH_COUNT(engines) * TYPES; n++) /* the first call tests the device's units */
        (void)count_taken(&problems[n / TH_COUNT(engines) * 2 * VARIANTS], 1, context, engines[n % TH_COUNT(engines)]);
    const size_t before = made;
    for (size_t n = 0; n < TH_COUNT(engines); n++) {
        const size_t taken = count_taken(problems, count, context, engines[n]);
        print_message("engine %s: %zu of %zu\n", clmgk_engine_name(engines[n]), taken, count);
        assert_true(taken > VARIANTS && (engines[n] == CLMGK_ENGINE_MATRIX) == (taken < count));
    }
    assert_int_equal(made, before);
    clmgk_context_release(context);
}
