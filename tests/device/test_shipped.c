/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs made ahead, as an application ships them: a process that has them, and in which nothing can compile, makes
 * and runs a plan; without them it fails.
 *
 * With the argument "use" this program is that process: PoCL would serve what the same process compiled.
 */
#include "device/device.h"
#include "harness/harness.h"
#include "harness/scratch.h"

#include <ftw.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

static const char *self_path; /* both set once, before any test runs */
static bool forbidden;

/* ---- the driver ---------------------------------------------------------------------------------------------------
 */

static size_t compiled = SIZE_MAX; /* files in PoCL's cache before the first launch */
static size_t counted;

static int count_code(const char *path, const struct stat *facts, int kind)
{
    (void)facts, (void)kind;
    counted += strlen(path) > 3 && strcmp(path + strlen(path) - 3, ".so") == 0;
    return 0;
}

/* Kernels that PoCL has compiled to this process's own cache, or unpacked there. 0 with other drivers. */
static size_t count_compiled(void)
{
    const char *const folder = getenv("POCL_CACHE_DIR");
    counted = 0;
    if (folder != NULL)
        (void)ftw(folder, count_code, 16);
    return counted;
}

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): names that the linker's --wrap gives */
cl_program __real_clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                            const size_t *lengths, cl_int *code);
cl_program __wrap_clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                            const size_t *lengths, cl_int *code);
cl_int __real_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                                     const size_t *global, const size_t *local, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event);
cl_int __wrap_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                                     const size_t *global, const size_t *local, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event);

cl_program __wrap_clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                            const size_t *lengths, cl_int *code)
{
    if (!forbidden)
        return __real_clCreateProgramWithSource(context, count, texts, lengths, code);
    *code = CL_COMPILER_NOT_AVAILABLE;
    return NULL;
}

/* PoCL compiles at the first launch, too. */
cl_int __wrap_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                                     const size_t *global, const size_t *local, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event)
{
    if (forbidden && compiled == SIZE_MAX)
        compiled = count_compiled();
    return __real_clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, num_wait, wait, event);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

/* ---- both processes -----------------------------------------------------------------------------------------------
 */

/* The plan that a session makes first. */
static clmgk_attention_desc shipped_desc(void)
{
    return th_small_desc(CLMGK_VARIANT_SOFTMAX, 16, 16);
}

static clmgk_plan_options own_engine(const th_session *session)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = session->engine[0];
    return options;
}

static void use(th_session *session)
{
    const clmgk_attention_desc desc = shipped_desc();
    const clmgk_attention_desc other = th_small_desc(CLMGK_VARIANT_MGK, 16, 16);
    const clmgk_plan_options options = own_engine(session);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan *plan = NULL;
    mgk_programs_clear(session->context); /* the session's first plan had it */
    th_expect_ok(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error));
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    assert_int_equal(info.origin, CLMGK_PROGRAM_SHIPPED);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_expect_with(session, &problem, options.engine, NULL);
    clmgk_plan_release(plan);
    assert_int_equal(count_compiled(), compiled);
    th_expect_error(clmgk_plan_create(session->context, &other, &options, &plan, &th_error), CLMGK_ERROR_OPENCL,
                    "clCreateProgramWithSource");
}

/* A process of its own with an empty cache, in which `programs` are shipped; its exit status. */
static int run_process(const char *root, const char *programs)
{
    char cache[SCRATCH_PATH], file[SCRATCH_PATH];
    pid_t process = -1;
    int status = -1;
    scratch_join(cache, root, "pocl");
    scratch_join(file, cache, "made");
    scratch_remove(cache);
    scratch_write(file, "", 0);
    assert_int_equal(setenv("POCL_CACHE_DIR", cache, 1), 0);
    assert_int_equal(setenv("CLMGK_CACHE_DIR", "", 1), 0);
    assert_int_equal(setenv("CLMGK_PROGRAM_DIR", programs, 1), 0);
    char *const arguments[] = {(char *)(uintptr_t)self_path, (char *)(uintptr_t) "use", NULL};
    assert_int_equal(posix_spawn(&process, self_path, NULL, NULL, arguments, environ), 0);
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void make(th_session *session)
{
    char root[SCRATCH_PATH], programs[SCRATCH_PATH];
    const clmgk_attention_desc desc = shipped_desc();
    const clmgk_plan_options options = own_engine(session);
    size_t count = 0;
    scratch_create(root);
    scratch_join(programs, root, "programs");
    clmgk_plan *const plan = th_plan_of(session, &desc, &options);
    th_expect_ok(clmgk_context_save_programs(session->context, programs, &count, &th_error));
    clmgk_plan_release(plan);
    assert_int_equal(count, 1);
    assert_int_equal(run_process(root, programs), 0);
    assert_int_not_equal(run_process(root, ""), 0);
    scratch_remove(root);
}

TH_TEST(nothing_compiles)
{
    if (forbidden)
        use(session);
    else
        make(session);
}

int main(int count, char **arguments)
{
    self_path = arguments[0];
    forbidden = count == 2 && strcmp(arguments[1], "use") == 0;
    if (!forbidden) /* the device's own: each engine is a program */
        (void)setenv("CLMGK_TEST_ENGINE", "own", 1);
    return th_run_tests();
}
