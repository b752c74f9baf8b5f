/* SPDX-License-Identifier: Apache-2.0 */
/* Plans made in the background: ownership, waiting, cancelling, failures. */
#include "device/device.h"
#include "harness/harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the driver and the system, in the tests' hands ------------------------------------------------------------- */

/* Nothing here has a time limit: a test that is held up ends by ctest's. */
static atomic_bool gate_closed;  /* builds wait, but for those of the thread that closed it ... */
static atomic_bool gate_reached; /* ... as one does now */
static pthread_t gate_keeper;
static atomic_bool builds_fail, no_threads;

static void pause_briefly(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): names that the linker's --wrap gives */
cl_int __real_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void(CL_CALLBACK *notify)(cl_program program, void *user), void *user);
cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void(CL_CALLBACK *notify)(cl_program program, void *user), void *user);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);

cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void(CL_CALLBACK *notify)(cl_program program, void *user), void *user)
{
    if (atomic_load(&gate_closed) && !pthread_equal(pthread_self(), gate_keeper)) {
        atomic_store(&gate_reached, true);
        while (atomic_load(&gate_closed))
            pause_briefly();
    }
    if (atomic_load(&builds_fail))
        return CL_BUILD_PROGRAM_FAILURE;
    return __real_clBuildProgram(program, count, devices, options, notify, user);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    return atomic_load(&no_threads) ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static void close_gate(void)
{
    gate_keeper = pthread_self();
    atomic_store(&gate_reached, false);
    atomic_store(&gate_closed, true);
}

static void open_gate(void)
{
    atomic_store(&gate_closed, false);
}

/* ---- jobs ---------------------------------------------------------------------------------------------------------
 */

/* The first plan has its own program, which each test builds again; all others share one. They have the same
 * length, because the lane engine has other programs for a last panel of few rows, which depend on the width of its
 * vectors. */
enum { MOST = 3 };
typedef struct list {
    clmgk_attention_desc desc[MOST];
    const clmgk_attention_desc *pointers[MOST];
} list;

static void make_list(const th_session *session, list *l)
{
    mgk_programs_clear(session->context);
    l->desc[0] = th_small_desc(CLMGK_VARIANT_GAUSSIAN, 9, 9);
    l->desc[1] = th_small_desc(CLMGK_VARIANT_SOFTMAX, 16, 40);
    l->desc[2] = th_small_desc(CLMGK_VARIANT_SOFTMAX, 16, 3);
    for (size_t i = 0; i < MOST; ++i)
        l->pointers[i] = &l->desc[i];
}

/* Keeps the shared program in memory. */
static void make_shared(th_session *session, const list *l)
{
    const clmgk_plan_options options = th_options(session, 0);
    clmgk_plan_release(th_plan_of(session, &l->desc[1], &options));
}

static clmgk_warm_up *start(const th_session *session, const list *l, size_t first, size_t count)
{
    const clmgk_plan_options options = th_options(session, 0);
    clmgk_warm_up *job = NULL;
    th_expect_ok(clmgk_warm_up_start(session->context, l->pointers + first, count, &options, &job, &th_error));
    return job;
}

static void expect_progress(clmgk_warm_up *job, size_t done, size_t count)
{
    size_t found_done = 0, found_count = 0;
    th_expect_ok(clmgk_warm_up_progress(job, &found_done, &found_count, &th_error));
    th_expect_ok(clmgk_warm_up_progress(job, NULL, NULL, &th_error));
    assert_int_equal(found_done, done);
    assert_int_equal(found_count, count);
}

/* Waits until the job builds its first program. */
static void await_build(clmgk_warm_up *job)
{
    while (!atomic_load(&gate_reached)) {
        expect_progress(job, 0, MOST);
        pause_briefly();
    }
}

static void run_plan(const th_session *session, clmgk_plan *plan, const clmgk_attention_desc *desc)
{
    TH_PROBLEM problem = th_problem_make(desc, 1);
    TH_DEVICE device = th_upload(session, &problem, clmgk_plan_workspace_size(plan));
    th_enqueue(plan, session->queue, &device, 0, NULL, NULL);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    th_download(session, &problem, &device);
    TH_REF_ANSWER answer = th_solve(&problem);
    th_message message;
    if (!th_matches(&problem, TH_O, &answer, &message))
        fail_msg("%s", message.text);
}

/* Callers may change descriptors, options and strings after a job has started, and own the plans that they take. */
TH_TEST(plans_are_handed_over)
{
    list l, given;
    clmgk_plan_options options = th_options(session, 0);
    char parameters[64] = "", score[] = "s";
    clmgk_warm_up *job = NULL;
    make_list(session, &l);
    make_list(session, &given);
    given.desc[0].score_mod = score;
    if (options.parameters != NULL)
        snprintf(parameters, sizeof(parameters), "%s", options.parameters);
    options.parameters = parameters;
    close_gate();
    th_expect_ok(clmgk_warm_up_start(session->context, given.pointers, MOST, &options, &job, &th_error));
    memset(&given, 0, sizeof(given));
    memset(parameters, 'x', sizeof(parameters) - 1);
    score[0] = '?';
    open_gate();
    for (size_t i = MOST; i-- > 0;) {
        clmgk_plan *plan = NULL;
        th_expect_ok(clmgk_warm_up_take(job, i, &plan, &th_error));
        run_plan(session, plan, &l.desc[i]);
        clmgk_plan_release(plan);
        if (i == MOST - 1)
            expect_progress(job, MOST, MOST);
    }
    th_expect_ok(clmgk_warm_up_wait(job, &th_error));
    clmgk_warm_up_release(job);
}

/* While a job's program is built, other plans are made and released. */
TH_TEST(others_are_not_held_up)
{
    list l;
    clmgk_plan *plan = NULL;
    const clmgk_plan_options options = th_options(session, 0);
    make_list(session, &l);
    make_shared(session, &l);
    close_gate();
    clmgk_warm_up *const job = start(session, &l, 0, MOST);
    await_build(job);
    expect_progress(job, 0, MOST);
    th_expect_ok(clmgk_plan_create(session->context, &l.desc[2], &options, &plan, &th_error));
    clmgk_plan_release(plan);
    expect_progress(job, 0, MOST);
    open_gate();
    th_expect_ok(clmgk_warm_up_wait(job, &th_error));
    expect_progress(job, MOST, MOST);
    clmgk_warm_up_release(job);
}

/* Cancelling completes the plan that is being made; the others are not begun. */
TH_TEST(cancelling)
{
    list l;
    clmgk_plan *plan = NULL, *none = NULL;
    make_list(session, &l);
    close_gate();
    clmgk_warm_up *const job = start(session, &l, 0, MOST);
    await_build(job);
    clmgk_warm_up_cancel(job);
    open_gate();
    th_expect_error(clmgk_warm_up_wait(job, &th_error), CLMGK_ERROR_CANCELLED, "plan 1");
    th_expect_error(clmgk_warm_up_take(job, 2, &none, &th_error), CLMGK_ERROR_CANCELLED, "plan 2");
    assert_null(none);
    th_expect_ok(clmgk_warm_up_take(job, 0, &plan, &th_error));
    expect_progress(job, MOST, MOST);
    clmgk_warm_up_release(job);
    run_plan(session, plan, &l.desc[0]);
    clmgk_plan_release(plan);
}

/* ---- failures ------------------------------------------------------------------------------------------------------
 */

TH_TEST(failures_are_each_plans_own)
{
    list l;
    clmgk_plan *plan = NULL;
    make_list(session, &l);
    make_shared(session, &l);
    atomic_store(&builds_fail, true);
    clmgk_warm_up *const job = start(session, &l, 0, MOST);
    th_expect_error(clmgk_warm_up_wait(job, &th_error), CLMGK_ERROR_COMPILE, ".cl");
    atomic_store(&builds_fail, false);
    th_expect_error(clmgk_warm_up_take(job, 0, &plan, &th_error), CLMGK_ERROR_COMPILE, ".cl");
    th_expect_ok(clmgk_warm_up_take(job, 1, &plan, &th_error));
    clmgk_plan_release(plan);
    th_expect_error(clmgk_warm_up_take(job, 1, &plan, &th_error), CLMGK_ERROR_INVALID_VALUE, "taken before");
    th_expect_error(clmgk_warm_up_take(job, MOST, &plan, &th_error), CLMGK_ERROR_INVALID_VALUE, "index: 3");
    th_expect_error(clmgk_warm_up_take(job, 0, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "out");
    clmgk_warm_up_release(job);
}

TH_TEST(bad_arguments)
{
    list l;
    clmgk_warm_up *job = NULL;
    clmgk_plan *plan = NULL;
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_context *const context = session->context;
    make_list(session, &l);
    const clmgk_status bad = CLMGK_ERROR_INVALID_VALUE;
    th_expect_error(clmgk_warm_up_start(NULL, l.pointers, 1, NULL, &job, &th_error), bad, "context");
    th_expect_error(clmgk_warm_up_start(context, NULL, 1, NULL, &job, &th_error), bad, "descs");
    th_expect_error(clmgk_warm_up_start(context, l.pointers, 1, NULL, NULL, &th_error), bad, "out");
    l.pointers[1] = NULL;
    th_expect_error(clmgk_warm_up_start(context, l.pointers, 2, NULL, &job, &th_error), bad, "descs[1]: desc: NULL");
    l.desc[0].heads = -1;
    th_expect_error(clmgk_warm_up_start(context, l.pointers, 1, NULL, &job, &th_error), bad, "descs[0]: heads: -1");
    options.engine = (clmgk_engine)99;
    th_expect_error(clmgk_warm_up_start(context, l.pointers + 2, 1, &options, &job, &th_error), bad, "engine");
    th_expect_error(clmgk_warm_up_start(context, l.pointers, SIZE_MAX / 8, NULL, &job, &th_error),
                    CLMGK_ERROR_OUT_OF_HOST_MEMORY, "");
    assert_null(job);
    th_expect_error(clmgk_warm_up_progress(NULL, NULL, NULL, &th_error), bad, "job");
    th_expect_error(clmgk_warm_up_wait(NULL, &th_error), bad, "job");
    th_expect_error(clmgk_warm_up_take(NULL, 0, &plan, &th_error), bad, "job");
    clmgk_warm_up_cancel(NULL);
    clmgk_warm_up_release(NULL);

    th_expect_ok(clmgk_warm_up_start(context, l.pointers, 0, NULL, &job, &th_error));
    th_expect_ok(clmgk_warm_up_wait(job, &th_error));
    expect_progress(job, 0, 0);
    clmgk_warm_up_release(job);
}

/* Memory of the context's allocator: live allocations, and how many more may succeed (negative: any number). */
static atomic_long live, budget;

static void *allocate(size_t bytes, void *user)
{
    (void)user;
    if (atomic_load(&budget) == 0)
        return NULL;
    atomic_fetch_sub(&budget, 1);
    void *const memory = malloc(bytes);
    atomic_fetch_add(&live, memory != NULL);
    return memory;
}

static void release(void *memory, void *user)
{
    (void)user;
    atomic_fetch_sub(&live, memory != NULL);
    free(memory);
}

/* Every allocation fails once, and once no thread can be started. Nothing leaks. */
TH_TEST(without_memory_or_threads)
{
    clmgk_context_options context_options = CLMGK_CONTEXT_OPTIONS_INIT;
    const clmgk_plan_options options = th_options(session, 0);
    clmgk_context *context = NULL;
    clmgk_plan *kept = NULL;
    clmgk_warm_up *job = NULL;
    clmgk_status status = CLMGK_ERROR_OUT_OF_HOST_MEMORY;
    list l;
    make_list(session, &l);
    atomic_store(&budget, -1);
    context_options.allocator = (clmgk_allocator){.allocate = allocate, .release = release};
    th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, &context_options, &context, &th_error));
    th_expect_ok(clmgk_plan_create(context, &l.desc[1], &options, &kept, &th_error));
    const long before = atomic_load(&live);
    for (long n = 0; status != CLMGK_OK; ++n) {
        assert_true(n < 1000);
        job = NULL;
        atomic_store(&budget, n);
        status = clmgk_warm_up_start(context, l.pointers + 1, 2, &options, &job, &th_error);
        if (status == CLMGK_OK)
            status = clmgk_warm_up_wait(job, &th_error);
        clmgk_warm_up_release(job);
        assert_int_equal(atomic_load(&live), before);
        th_expect_error(status, status == CLMGK_OK ? CLMGK_OK : CLMGK_ERROR_OUT_OF_HOST_MEMORY, "");
    }
    atomic_store(&budget, -1);
    atomic_store(&no_threads, true);
    status = clmgk_warm_up_start(context, l.pointers, 1, &options, &job, &th_error);
    atomic_store(&no_threads, false);
    th_expect_error(status, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "thread");
    assert_int_equal(atomic_load(&live), before);
    clmgk_plan_release(kept);
    clmgk_context_release(context);
    assert_int_equal(atomic_load(&live), 0);
}
