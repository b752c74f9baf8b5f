/* SPDX-License-Identifier: Apache-2.0 */
/* The limits layer does what it says: on a device with all its limits (CMakeLists.txt), what they forbid fails, with a
 * small device's error. Without the layer all of it would pass on PoCL. */
#include "harness/harness.h"
#include "harness/scratch.h"

#include <stdlib.h>
#include <string.h>

/* A kernel that needs the double type, one that shares most of 40 KB, and one that makes a denormal number. */
static const char doubles[] = "__kernel void f(__global float *x) { double y = *x; *x = (float)(y + 1); }";
static const char plain[] = "__kernel void f(__global float *x) {\n"
                            "    __local float shared[10240];\n"
                            "    shared[get_local_id(0)] = *x;\n"
                            "    barrier(CLK_LOCAL_MEM_FENCE);\n"
                            "    *x = shared[0];\n"
                            "}\n"
                            "__kernel void g(__global float *x) { x[get_global_id(0)] *= 0.5f; }";

static cl_program build(const th_session *session, const char *text, cl_int *code)
{
    cl_program program = clCreateProgramWithSource(session->cl, 1, &text, NULL, code);
    assert_int_equal(*code, CL_SUCCESS);
    *code = clBuildProgram(program, 1, &session->info.device_id, "-cl-std=CL1.2", NULL, NULL);
    return program;
}

static cl_int launch(const th_session *session, cl_program program, const char *name, cl_mem buffer, size_t items)
{
    cl_int code = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program, name, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(clSetKernelArg(kernel, 0, sizeof(cl_mem), &buffer), CL_SUCCESS);
    code = clEnqueueNDRangeKernel(session->queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    assert_int_equal(clReleaseKernel(kernel), CL_SUCCESS);
    return code;
}

TH_TEST(doubles_do_not_compile)
{
    cl_int code = CL_SUCCESS;
    cl_program program = build(session, doubles, &code);
    assert_int_equal(code, CL_BUILD_PROGRAM_FAILURE);
    assert_int_equal(clReleaseProgram(program), CL_SUCCESS);
}

TH_TEST(launches_are_refused_or_flush)
{
    enum { GROUP = 64 };
    float x[GROUP + 1] = {1.2e-38F, 4.0F};
    cl_int code = CL_SUCCESS;
    cl_program program = build(session, plain, &code);
    assert_int_equal(code, CL_SUCCESS);
    cl_mem buffer = clCreateBuffer(session->cl, CL_MEM_COPY_HOST_PTR, sizeof(x), x, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(launch(session, program, "f", buffer, 1), CL_OUT_OF_RESOURCES);
    assert_int_equal(launch(session, program, "g", buffer, GROUP + 1), CL_INVALID_WORK_GROUP_SIZE);
    assert_int_equal(launch(session, program, "g", buffer, GROUP), CL_SUCCESS);
    assert_int_equal(clEnqueueReadBuffer(session->queue, buffer, CL_TRUE, 0, sizeof(x), x, 0, NULL, NULL), CL_SUCCESS);
    assert_true(x[0] == 0.0F && x[1] == 2.0F);
    assert_int_equal(clReleaseMemObject(buffer), CL_SUCCESS);
    assert_int_equal(clReleaseProgram(program), CL_SUCCESS);
}

TH_TEST(large_buffers_are_refused)
{
    cl_int code = CL_SUCCESS;
    assert_null(clCreateBuffer(session->cl, 0, (128 << 20) + 1, NULL, &code));
    assert_int_equal(code, CL_INVALID_BUFFER_SIZE);
}

/* The library knows the limits, and says which one a request exceeds. */
TH_TEST(requests_are_refused_with_the_reason)
{
    static const struct {
        const char *parameters, *reason;
    } wrong[] = {{"row-threads=8,key-threads=16", "a work-group of 128, the device takes 64"},
                 {"rows=8,keys=8,features=32,direct=0", "bytes of local memory, the device has 32768"}};
    assert_int_equal(session->info.local_memory_bytes, 32 << 10);
    assert_int_equal(session->info.max_work_group, 64);
    assert_int_equal(session->info.max_allocation_bytes, 128 << 20);
    for (size_t n = 0; n < TH_COUNT(wrong); n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 64, 512);
        desc.head_size = desc.value_size = 64;
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        clmgk_error error = {0};
        options.engine = CLMGK_ENGINE_SIMT;
        options.parameters = wrong[n].parameters;
        assert_int_equal(clmgk_attention_supported(session->context, &desc, &options, &error), CLMGK_ERROR_UNSUPPORTED);
        if (strstr(error.message, wrong[n].reason) == NULL)
            fail_msg("%s", error.message);
    }
}

/* Reading tiles where they lie changes no bit of any output. */
TH_TEST(direct_tiles_give_the_same_bits)
{
    static const th_name outputs[] = {TH_O, TH_LSE, TH_GRAD_Q, TH_GRAD_K, TH_GRAD_V};
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_MGK, 37, 45);
    desc.causal = 1;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    TH_PROBLEM copied = th_problem_make(&desc, 1);
    TH_PROBLEM direct = th_problem_make(&desc, 1);
    const struct {
        th_problem *problem;
        const char *parameters;
    } runs[] = {{&copied, "rows=1,keys=2,splits=1,direct=0"}, {&direct, "rows=1,keys=2,splits=1,direct=1"}};
    for (size_t n = 0; n < TH_COUNT(runs); n++) {
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        options.engine = CLMGK_ENGINE_SIMT;
        options.parameters = options.backward_parameters = runs[n].parameters;
        th_expect_training(session, runs[n].problem, &options);
    }
    for (size_t n = 0; n < TH_COUNT(outputs); n++) {
        const th_array *const array = &copied.array[outputs[n]];
        assert_true(array->used && array->count > 0);
        assert_memory_equal(array->values, direct.array[outputs[n]].values, array->count * sizeof(double));
    }
}

static void expect_verdicts(clmgk_context *context, const char *words)
{
    clmgk_first_use_info info = CLMGK_FIRST_USE_INFO_INIT;
    th_expect_ok(clmgk_context_get_first_use(context, &info, &th_error));
    if (strstr(info.verdicts, words) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", info.verdicts, words);
}

static void expect_engine(clmgk_context *context, clmgk_engine asked, clmgk_engine engine, const char *reason)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 4, 20);
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan *plan = NULL;
    desc.head_size = desc.value_size = 8;
    options.engine = asked;
    th_expect_ok(clmgk_plan_create(context, &desc, &options, &plan, &th_error));
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    assert_int_equal(info.engine, engine);
    assert_non_null(strstr(info.engine_reason, reason));
    clmgk_plan_release(plan);
}

/* The first plan on a device that nobody has tried, also with kernels that give wrong numbers. */
TH_TEST(first_use)
{
    const bool wrong = strstr(getenv("CLMGK_TEST_LIMITS"), "wrong") != NULL;
    const char *const verdict = wrong ? "mixture: simt wrong numbers at the first use: " : "mixture: simt right; ";
    char folder[SCRATCH_PATH];
    scratch_create(folder);
    clmgk_context *const first = th_open_context(session->cl, session->info.device_id, folder);
    expect_verdicts(first, "mixture: not used yet; admixture: not used yet; linear: not used yet");
    expect_engine(first, CLMGK_ENGINE_AUTO, wrong ? CLMGK_ENGINE_LANE : CLMGK_ENGINE_SIMT,
                  wrong ? "engine simt: wrong numbers at the first use" : "work-items share tiles");
    expect_verdicts(first, verdict);
    expect_verdicts(first, "admixture: not used yet; linear: not used yet");
    expect_engine(first, CLMGK_ENGINE_SIMT, CLMGK_ENGINE_SIMT, "named by the options");
    clmgk_context_release(first);
    /* the next process knows */
    clmgk_context *const second = th_open_context(session->cl, session->info.device_id, folder);
    expect_verdicts(second, verdict);
    clmgk_context_release(second);
    scratch_remove(folder);
}
