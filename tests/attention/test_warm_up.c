/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels get memory for every array, also when a plan first runs them and when a call lacks some arrays. Intel's CPU
 * runtime reads the arrays that a group shares even after all work-items have returned, and a NULL ends the process.
 */
#include "harness/harness.h"

static bool looking;
static size_t arrays; /* kernel arguments so far that were arrays ... */
static size_t absent; /* ... and those of them that were NULL */

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): names that the linker's --wrap gives */
cl_int __real_clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size, const void *value);
cl_int __wrap_clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size, const void *value);

/* Arguments 0 and 1 are structures of numbers. */
cl_int __wrap_clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size, const void *value)
{
    if (looking && index > 1) {
        assert_int_equal(size, sizeof(cl_mem));
        arrays++;
        absent += *(const cl_mem *)value == NULL;
    }
    return __real_clSetKernelArg(kernel, index, size, value);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static void expect_arrays(size_t least)
{
    assert_true(arrays > least);
    assert_int_equal(absent, 0);
    arrays = 0;
}

/* The plan, then all passes that it has. */
static void expect_all_arrays(th_session *session, const clmgk_attention_desc *desc)
{
    const clmgk_plan_options options = th_options(session, 0);
    TH_PROBLEM problem = th_problem_make(desc, 1);
    th_add_parts(&problem, 2);
    looking = true;
    clmgk_plan_release(th_plan_of(session, desc, &options));
    expect_arrays(20);
    th_run_training(session, &problem, &options);
    expect_arrays(20);
    if (desc->statistics)
        th_run_pass(session, &problem, TH_STATISTICS, &options);
    th_run_pass(session, &problem, TH_COMBINE, &options);
    looking = false;
    expect_arrays(4);
}

TH_TEST(mixture)
{
    clmgk_attention_desc desc = th_full_desc();
    desc.combine = 1;
    desc.statistics = CLMGK_STATISTIC_ALL;
    desc.gradients = th_all_gradients(&desc);
    expect_all_arrays(session, &desc);
}

TH_TEST(mixed_heads)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_FISH, 5, 6);
    desc.combine = 1;
    desc.gradients = th_all_gradients(&desc);
    expect_all_arrays(session, &desc);
}
