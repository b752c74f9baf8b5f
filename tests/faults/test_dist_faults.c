/* SPDX-License-Identifier: Apache-2.0 */
/* Every OpenCL call and allocation of two ranks made to fail, one after another, by every schedule: no rank waits for
 * ever, a failure has a status and a reason, nothing is left over, and no result is wrong. Contexts and their programs
 * live on: plans have sweeps of their own. */
#include "host_faults.h"

#include "clmgk/dist.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, TOKENS = 6, HEADS = 2, SIZE = 8, SEQUENCES = 2, COUNT = TOKENS * HEADS * SIZE, BUFFERS = 11 };

typedef struct place {
    cl_context cl;
    cl_command_queue queue;
    clmgk_context *context;
    cl_mem memory[BUFFERS], offsets;
} place;

typedef struct scene {
    fault_state *opencl;
    place places[RANKS];
} scene;

typedef struct rank {
    const place *place;
    clmgk_dist_transport transport;
    clmgk_dist_schedule schedule;
    clmgk_status status;
    clmgk_error error;
    float results[4][COUNT]; /* O, dQ, dK, dV */
} rank;

static fault_state *layer_state(void)
{
    const char *const path = getenv("FAULT_LAYER");
    fault_layer_state_fn *get = NULL;
    assert_non_null(path);
    void *const layer = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(layer);
    void *const symbol = dlsym(layer, "fault_layer_state");
    assert_non_null(symbol);
    memcpy(&get, &symbol, sizeof(get)); /* C has no conversion from object to function pointers */
    return get();
}

static void open_place(place *p, int number)
{
    int32_t offsets[SEQUENCES + 1] = {0, 1 + number, TOKENS};
    float values[COUNT];
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    cl_int code = CL_SUCCESS;
    options.untuned = 1;
    assert_int_equal(clmgk_select_device(NULL, &info, NULL), CLMGK_OK);
    p->cl = clCreateContext(NULL, 1, &info.device_id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    p->queue = clCreateCommandQueue(p->cl, info.device_id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(clmgk_context_create(p->cl, info.device_id, &options, &p->context, NULL), CLMGK_OK);
    for (int i = 0; i < BUFFERS; i++) {
        for (int n = 0; n < COUNT; n++)
            values[n] = (float)((n * 7 + i * 5 + number * 3) % 17 - 8) / 8;
        p->memory[i] = clCreateBuffer(p->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof(values), values, &code);
        assert_int_equal(code, CL_SUCCESS);
    }
    p->offsets = clCreateBuffer(p->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof(offsets), offsets, &code);
    assert_int_equal(code, CL_SUCCESS);
}

static int set_up(void **state)
{
    static scene s;
    for (int r = 0; r < RANKS; r++)
        open_place(&s.places[r], r);
    s.opencl = layer_state(); /* which the first call of OpenCL loaded */
    *state = &s;
    return 0;
}

static int tear_down(void **state)
{
    scene *const s = *state;
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < BUFFERS; i++)
            clReleaseMemObject(s->places[r].memory[i]);
        clReleaseMemObject(s->places[r].offsets);
        clmgk_context_release(s->places[r].context);
        clReleaseCommandQueue(s->places[r].queue);
        clReleaseContext(s->places[r].cl);
    }
    return 0;
}

/* ---- a rank -------------------------------------------------------------------------------------------------------
 */

static clmgk_status make_plan(rank *r, clmgk_dist_plan **plan)
{
    static const int64_t lengths[RANKS] = {TOKENS, TOKENS};
    const bool linear = r->schedule == CLMGK_DIST_SCAN;
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = linear ? CLMGK_VARIANT_LINEAR : CLMGK_VARIANT_SOFTMAX;
    desc.feature = linear ? CLMGK_FEATURE_EXP : desc.feature;
    desc.heads = HEADS;
    desc.length = TOKENS;
    desc.head_size = SIZE;
    desc.use_sinks = !linear;
    desc.sequences = r->schedule == CLMGK_DIST_ALL_TO_ALL ? SEQUENCES : 0;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | (linear ? 0 : CLMGK_GRADIENT_SINKS);
    const clmgk_dist_desc d = {
        .struct_size = sizeof(d), .attention = &desc, .lengths_k = lengths, .schedule = r->schedule, .timeout = 120};
    return clmgk_dist_plan_create(r->place->context, r->place->queue, &d, &r->transport, NULL, plan, &r->error);
}

static clmgk_attention_args make_args(const rank *r)
{
    const cl_mem *const memory = r->place->memory;
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.q.memory = memory[0];
    args.k.memory = memory[1];
    args.v.memory = memory[2];
    args.grad_o.memory = memory[3];
    args.o.memory = memory[4];
    args.grad_q.memory = memory[5];
    args.grad_k.memory = memory[6];
    args.grad_v.memory = memory[7];
    if (r->schedule == CLMGK_DIST_SCAN) {
        args.denominator.memory = memory[8];
    } else {
        args.lse.memory = memory[8];
        args.sinks.memory = memory[9];
        args.grad_sinks.memory = memory[10];
    }
    if (r->schedule == CLMGK_DIST_ALL_TO_ALL)
        args.offsets.memory = r->place->offsets;
    return args;
}

static void *run_rank(void *argument)
{
    rank *const r = argument;
    const clmgk_attention_args args = make_args(r);
    clmgk_dist_plan *plan = NULL;
    r->error = (clmgk_error){.status = CLMGK_OK};
    r->status = make_plan(r, &plan);
    if (r->status == CLMGK_OK)
        r->status = clmgk_dist_forward(plan, &args, &r->error);
    if (r->status == CLMGK_OK)
        r->status = clmgk_dist_backward(plan, &args, &r->error);
    clmgk_dist_plan_release(plan);
    return NULL;
}

/* Runs both ranks; if neither fails, their results are read. */
static bool run(const scene *s, clmgk_dist_schedule schedule, rank *ranks, fault_state *faults)
{
    clmgk_dist_local *local = NULL;
    pthread_t threads[RANKS];
    assert_int_equal(clmgk_dist_local_create(RANKS, &local, NULL), CLMGK_OK);
    atomic_store(&faults->armed, true);
    for (int r = 0; r < RANKS; r++) {
        ranks[r].place = &s->places[r];
        ranks[r].schedule = schedule;
        (void)clmgk_dist_local_transport(local, r, &ranks[r].transport, NULL);
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    fault_disarm(faults);
    clmgk_dist_local_release(local);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(clFinish(s->places[r].queue), CL_SUCCESS);
    if (ranks[0].status != CLMGK_OK || ranks[1].status != CLMGK_OK)
        return false;
    for (int r = 0; r < RANKS; r++)
        for (int n = 0; n < 4; n++)
            assert_int_equal(clEnqueueReadBuffer(s->places[r].queue, s->places[r].memory[4 + n], CL_TRUE, 0,
                                                 sizeof(ranks[r].results[n]), ranks[r].results[n], 0, NULL, NULL),
                             CL_SUCCESS);
    return true;
}

static void expect_reasons(const rank *ranks, const char *failed)
{
    for (int r = 0; r < RANKS; r++) {
        const clmgk_error *const error = &ranks[r].error;
        if (ranks[r].status != CLMGK_OK &&
            (error->status != ranks[r].status || error->message[0] == '\0' || error->status == CLMGK_ERROR_INTERNAL))
            fail_msg("%s fails: rank %d: %s \"%s\"", failed, r, clmgk_status_name(ranks[r].status), error->message);
    }
}

static void fail_everywhere(scene *s, clmgk_dist_schedule schedule, fault_state *faults, int code)
{
    static rank right[RANKS], ranks[RANKS];
    fault_arm(faults, 0, false, 0);
    if (!run(s, schedule, right, faults)) /* compiles */
        fail_msg("%s %s", right[0].error.message, right[1].error.message);
    fault_arm(faults, 0, false, 0);
    assert_true(run(s, schedule, right, faults));
    const unsigned long points = atomic_load(&faults->calls), step = 3 * fault_step();
    print_message("schedule %d: %lu %s\n", (int)schedule, points, faults->kind);
    for (unsigned long point = 1 + points % step; point <= points; point += step) {
        const long live = atomic_load(&s->opencl->live);
        fault_arm(faults, point, false, code);
        const bool both = run(s, schedule, ranks, faults);
        const char *const failed = atomic_load(&faults->failed);
        if (atomic_load(&s->opencl->live) != live)
            fail_msg("%s fails: objects are left", failed);
        for (int r = 0; r < RANKS && both; r++)
            assert_memory_equal(ranks[r].results, right[r].results, sizeof(right[r].results));
        expect_reasons(ranks, failed);
    }
}

static void fail_kind(scene *s, fault_state *faults, int code)
{
    static const clmgk_dist_schedule schedules[] = {CLMGK_DIST_RING, CLMGK_DIST_ALL_GATHER, CLMGK_DIST_ALL_TO_ALL,
                                                    CLMGK_DIST_SCAN};
    for (size_t n = 0; n < sizeof(schedules) / sizeof(schedules[0]); n++)
        fail_everywhere(s, schedules[n], faults, code);
}

static void test_opencl_calls(void **state)
{
    scene *const s = *state;
    fail_kind(s, s->opencl, CL_OUT_OF_RESOURCES);
}

static void test_allocations(void **state)
{
    fail_kind(*state, &host_memory_faults, ENOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_opencl_calls), cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
