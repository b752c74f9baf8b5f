/* SPDX-License-Identifier: Apache-2.0 */
/* Steps whose kernels declare many optional arrays. The arrays that the flags need are bound; their number is limited.
 */
#include "operation/step.h"

#include "device/flags.h"
#include "harness/harness.h"
#include "many.clh"

#include <string.h>

enum { COUNT = 5 };

#define NUMBER(NAME, name, type, needed) NUMBER_##NAME,
enum { MANY_BUFFERS(NUMBER) NUMBERS };

#define LINE(NAME, name, type, needed) {NUMBER_##NAME, needed},

/* A list of one step, bound for the flags. */
static void make_step(const mgk_flags *flags, mgk_steps *steps)
{
    const mgk_step_buffer list[] = {MANY_BUFFERS(LINE)};
    const many_args args = {.count = COUNT};
    mgk_steps_clear(steps, NULL);
    mgk_step *const step = &steps->step[steps->count++];
    step->file = "many.cl";
    step->name = "many";
    step->launch = (mgk_launch){1, {8}, {8}};
    mgk_text_printf(&step->options, "-cl-std=CL1.2");
    mgk_flags_options(flags, &step->options);
    mgk_step_bind(step, &args, sizeof(args), list, MGK_COUNT(list));
}

/* The kernel lies beside links to what it includes. */
static clmgk_context *open_context(const th_session *session)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    options.kernel_dir = KERNELS_FOLDER;
    th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, &options, &context, &th_error));
    return context;
}

/* Array n holds n + 0, 1/4, 2/4, ...: sums are exact. */
static float element(size_t array, size_t i)
{
    return (float)array + 0.25f * (float)i;
}

/* Runs the kernel with all arrays in one buffer, from different elements on; the last that it takes is not given. */
static void expect_sums(th_session *session, const mgk_flags *flags, size_t arrays)
{
    enum { APART = 2 * COUNT };
    float numbers[NUMBERS * APART], right[COUNT] = {0};
    clmgk_context *const context = open_context(session);
    mgk_steps steps;
    mgk_steps *const list = &steps;
    mgk_limits limits = {.group = 1024, .local = 1 << 15};
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    const mgk_queue_place at = {.queue = session->queue};
    mgk_call call = mgk_empty_call();
    clmgk_buffer buffers[NUMBERS];
    cl_int code = CL_SUCCESS;
    memset(&steps, 0, sizeof(steps));
    make_step(flags, &steps);
    const mgk_step *const step = &steps.step[0];
    assert_int_equal(step->buffers, 1 + arrays);
    for (size_t n = 0; n < NUMBERS; n++)
        for (size_t i = 0; i < COUNT; i++)
            numbers[n * APART + n % COUNT + i] = element(n, i);
    const cl_mem memory =
        clCreateBuffer(session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof(numbers), numbers, &code);
    assert_int_equal(code, CL_SUCCESS);
    const size_t absent = step->buffer[arrays];
    for (size_t n = 0; n < NUMBERS; n++) {
        buffers[n] = (clmgk_buffer){memory, n * APART + n % COUNT};
        if (n != absent)
            call.buffers[n] = &buffers[n];
    }
    for (size_t k = 1; k < arrays; k++)
        for (size_t i = 0; i < COUNT; i++)
            right[i] += (float)step->buffer[k] * element(step->buffer[k], i);
    th_expect_ok(mgk_steps_make(context, &list, 1, &limits, &origin, &th_error));
    th_expect_ok(mgk_steps_enqueue(list, &call, &at, &th_error));
    float out[COUNT];
    assert_int_equal(clEnqueueReadBuffer(session->queue, memory, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_memory_equal(out, right, sizeof(out));
    mgk_steps_clear(&steps, NULL);
    clReleaseMemObject(memory);
    clmgk_context_release(context);
}

TH_TEST(a_kernel_takes_the_arrays_that_its_flags_need)
{
    /* every case of BOTH and EITHER */
    static const mgk_flags some = {.HAS_SINKS = 1, .HAS_SOFTCAP = 1, .HAS_SEQUENCES = 1};
    static const mgk_flags most = {.HAS_BIAS = 1, .HAS_ALIBI = 1, .HAS_DROPOUT = 1};
    expect_sums(session, &some, 10);
    expect_sums(session, &most, 29);
}

/* Lists whose programs are built by several threads: two programs, one of them twice; then one that fails. */
TH_TEST(programs_are_built_at_the_same_time)
{
    static const mgk_flags some = {.HAS_SINKS = 1, .HAS_SOFTCAP = 1, .HAS_SEQUENCES = 1};
    static const mgk_flags most = {.HAS_BIAS = 1, .HAS_ALIBI = 1, .HAS_DROPOUT = 1};
    const mgk_flags *const flags[] = {&some, &most, &some};
    mgk_steps steps[TH_COUNT(flags)];
    mgk_steps *lists[TH_COUNT(flags)];
    memset(steps, 0, sizeof(steps));
    for (int fails = 0; fails < 2; fails++) {
        clmgk_context *const context = open_context(session);
        mgk_limits limits = {.group = 1024, .local = 1 << 15};
        clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
        context->facts.parallel_builds = true;
        for (size_t n = 0; n < TH_COUNT(flags); n++) {
            make_step(flags[n], &steps[n]);
            lists[n] = &steps[n];
        }
        if (fails)
            steps[1].step[0].file = "no such file";
        const clmgk_status status = mgk_steps_make(context, lists, TH_COUNT(flags), &limits, &origin, &th_error);
        if (fails) {
            assert_int_equal(status, CLMGK_ERROR_IO);
        } else {
            th_expect_ok(status);
            assert_int_not_equal(origin, CLMGK_PROGRAM_MEMORY);
            assert_ptr_equal(steps[0].step[0].program, steps[2].step[0].program);
            assert_ptr_not_equal(steps[0].step[0].program, steps[1].step[0].program);
        }
        for (size_t n = 0; n < TH_COUNT(flags); n++)
            mgk_steps_clear(&steps[n], NULL);
        mgk_programs_clear(context);
        assert_null(context->programs); /* the threads' references are gone */
        clmgk_context_release(context);
    }
}

/* Before anything is compiled: no such file is there. */
TH_TEST(more_arrays_than_arguments_are_refused)
{
    static const mgk_flags all = {.HAS_BIAS = 1, .HAS_ALIBI = 1, .HAS_SOFTCAP = 1, .HAS_SEQUENCES = 1};
    mgk_steps steps;
    mgk_steps *const list = &steps;
    mgk_limits limits = {.group = 1024, .local = 1 << 15};
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    memset(&steps, 0, sizeof(steps));
    make_step(&all, &steps);
    steps.step[0].file = "no such file";
    th_expect_error(mgk_steps_make(session->context, &list, 1, &limits, &origin, &th_error), CLMGK_ERROR_UNSUPPORTED,
                    "kernel many: 31 buffers, with them 1032 bytes of arguments: expected at most 32 buffers and the "
                    "1024 bytes that OpenCL guarantees");
    mgk_steps_clear(&steps, NULL);
}

TH_HOST_TEST(more_buffers_than_slots_are_refused)
{
    mgk_step_buffer list[MGK_BUFFERS + 2];
    mgk_step step = {.name = "long"};
    const mgk_bound args = {0};
    for (size_t i = 0; i < MGK_COUNT(list); i++)
        list[i] = (mgk_step_buffer){(unsigned char)i, i != 1};
    mgk_step_bind(&step, &args, sizeof(args), list, MGK_COUNT(list) - 1);
    th_expect_ok(mgk_step_check(&step, &th_error));
    assert_int_equal(step.buffers, MGK_BUFFERS);
    assert_int_equal(step.buffer[0], 0);
    assert_int_equal(step.buffer[MGK_BUFFERS - 1], MGK_BUFFERS);
    step.buffers = 0;
    mgk_step_bind(&step, &args, sizeof(args), list, MGK_COUNT(list));
    th_expect_error(mgk_step_check(&step, &th_error), CLMGK_ERROR_UNSUPPORTED, "kernel long: 33 buffers");
}

TH_HOST_TEST(a_plan_lends_the_kernels_that_it_has)
{
    mgk_steps steps, owner;
    memset(&steps, 0, sizeof(steps));
    memset(&owner, 0, sizeof(owner));
    steps.count = owner.count = 1;
    steps.step[0].name = owner.step[0].name = "many";
    owner.step[0].key.high = 1;
    th_expect_error(mgk_steps_borrow(&steps, &owner, &th_error), CLMGK_ERROR_UNSUPPORTED,
                    "kernel many: the plan has none for these sizes");
    steps.step[0].key.high = 1;
    th_expect_ok(mgk_steps_borrow(&steps, &owner, &th_error));
    assert_ptr_equal(steps.step[0].made, &owner.step[0]);
}
