/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of barriers.cl, optimised: with KEEP_APART results must be right; the test prints whether PoCL still
 * needs it. POCL_WORK_GROUP_METHOD chooses how PoCL makes a work-group's code.
 */
#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>

enum { ITEMS = 32, USED = 16, INPUTS = 128, ROUNDS = 3, SKIPPED = 0, LIMIT = 5 };

#define UNTOUCHED (-77.0F)

typedef struct arguments {
    const char *kernel;
    cl_int number[3];
    cl_uint numbers;
} arguments;

/* Small multiples of 1/8: all sums are exact. */
static float input(int i)
{
    return (float)(i * 7 % 17 - 8) / 8.0F;
}

static cl_program build(const th_session *session, bool apart)
{
    char path[] = BARRIERS_KERNEL, text[8192];
    FILE *const file = fopen(path, "r");
    assert_non_null(file);
    const size_t length = fread(text, 1, sizeof(text), file);
    assert_in_range(length, 1, sizeof(text) - 1);
    (void)fclose(file);
    text[length] = '\0';
    const char *source = text;
    cl_int code = CL_SUCCESS;
    cl_program program = clCreateProgramWithSource(session->cl, 1, &source, &length, &code);
    assert_int_equal(code, CL_SUCCESS);
    const char *const options = apart ? BARRIERS_OPTIONS : BARRIERS_OPTIONS " -DKEEP_APART=";
    assert_int_equal(clBuildProgram(program, 1, &session->info.device_id, options, NULL, NULL), CL_SUCCESS);
    return program;
}

static void run(const th_session *session, const arguments *with, bool apart, float *out)
{
    float in[INPUTS];
    for (int i = 0; i < INPUTS; i++)
        in[i] = input(i);
    for (int i = 0; i < ITEMS; i++)
        out[i] = UNTOUCHED;
    cl_int code[3] = {0};
    cl_program program = build(session, apart);
    cl_kernel kernel = clCreateKernel(program, with->kernel, &code[0]);
    cl_mem from = clCreateBuffer(session->cl, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, sizeof(in), in, &code[1]);
    cl_mem to =
        clCreateBuffer(session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, ITEMS * sizeof(*out), out, &code[2]);
    for (size_t n = 0; n < TH_COUNT(code); n++)
        assert_int_equal(code[n], CL_SUCCESS);
    assert_int_equal(clSetKernelArg(kernel, 0, sizeof(cl_mem), (const void *)&from), CL_SUCCESS);
    assert_int_equal(clSetKernelArg(kernel, 1, sizeof(cl_mem), (const void *)&to), CL_SUCCESS);
    for (cl_uint n = 0; n < with->numbers; n++)
        assert_int_equal(clSetKernelArg(kernel, 2 + n, sizeof(cl_int), &with->number[n]), CL_SUCCESS);
    const size_t size = ITEMS;
    assert_int_equal(clEnqueueNDRangeKernel(session->queue, kernel, 1, NULL, &size, &size, 0, NULL, NULL), CL_SUCCESS);
    assert_int_equal(clEnqueueReadBuffer(session->queue, to, CL_TRUE, 0, ITEMS * sizeof(*out), out, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_int_equal(clReleaseMemObject(to), CL_SUCCESS);
    assert_int_equal(clReleaseMemObject(from), CL_SUCCESS);
    assert_int_equal(clReleaseKernel(kernel), CL_SUCCESS);
    assert_int_equal(clReleaseProgram(program), CL_SUCCESS);
}

/* Without KEEP_APART a wrong answer is no failure. */
static void expect(const th_session *session, const arguments *with, const float *expected)
{
    for (int apart = 0; apart < 2; apart++) {
        float out[ITEMS];
        int wrong = 0;
        run(session, with, apart != 0, out);
        for (int i = 0; i < ITEMS; i++)
            wrong += out[i] != expected[i];
        const char *const method = getenv("POCL_WORK_GROUP_METHOD");
        print_message("%s, work-group method %s, %s: %d of %d elements wrong\n", with->kernel,
                      method ? method : "default", apart ? "kept apart" : "as it was", wrong, ITEMS);
        if (apart)
            assert_int_equal(wrong, 0);
    }
}

TH_TEST(behind_barrier)
{
    const arguments with = {"behind_barrier", {ROUNDS}, 1};
    float expected[ITEMS], sum = 0.0F;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < USED; i++)
            sum += input(round + i) + input(100 + round + i);
    for (int i = 0; i < ITEMS; i++)
        expected[i] = sum * (float)(i + 1);
    expect(session, &with, expected);
}

TH_TEST(before_join)
{
    const arguments with = {"before_join", {ROUNDS, SKIPPED, LIMIT}, 3};
    float expected[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        expected[i] = i < LIMIT ? input(i + 1) + (float)(ROUNDS - 1) : UNTOUCHED;
    expect(session, &with, expected);
}
