/* SPDX-License-Identifier: Apache-2.0 */
/* Every OpenCL call and allocation of a product made to fail, one after another, by every provider, and some of those
 * of a multi-head layer: a status and a reason, no leak, no wrong result. CLBlast keeps its programs, so faults begin
 * after a first run. */
#include "host_faults.h"

#include "clmgk/clmgk.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { M = 9, N = 11, K = 7, BATCH = 2, COUNT = M * N * BATCH };

/* Of the layer; ROOM: bytes of its activations, and of any workspace. */
enum {
    TOKENS = 5,
    WIDTH = 6,
    HEADS = 2,
    SIZE = 4,
    WEIGHT = WIDTH * HEADS * SIZE,
    ROWS = TOKENS * WIDTH,
    BOTH = 2 * ROWS,
    ROOM = 1 << 20
};

typedef struct scene {
    fault_state *opencl;
    atomic_long live_memory; /* of the context's allocator */
    cl_context context;
    cl_device_id device;
    cl_command_queue queue;
    cl_mem matrix[3];
    cl_mem workspace;
    cl_mem activations;
} scene;

/* The object of a run: a product with the size k, by one provider or by any; or a layer. */
typedef struct subject {
    const char *name;
    const char *provider;
    int64_t k;
    bool layer;
    bool any_sizes; /* the layer's calls have sizes of their own */
} subject;

static void *count_allocate(size_t bytes, void *user)
{
    scene *const s = user;
    void *const memory = malloc(bytes);
    if (memory != NULL)
        atomic_fetch_add(&s->live_memory, 1);
    return memory;
}

static void count_release(void *memory, void *user)
{
    scene *const s = user;
    if (memory != NULL)
        atomic_fetch_sub(&s->live_memory, 1);
    free(memory);
}

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

static int set_up(void **state)
{
    static scene s;
    float values[3 * COUNT];
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    cl_int code = CL_SUCCESS;
    for (int i = 0; i < 3 * COUNT; i++)
        values[i] = (float)(i % 17 - 8);
    assert_int_equal(clmgk_select_device(NULL, &info, NULL), CLMGK_OK);
    s.opencl = layer_state();
    s.device = info.device_id;
    s.context = clCreateContext(NULL, 1, &s.device, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    s.queue = clCreateCommandQueue(s.context, s.device, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    for (int i = 0; i < 3; i++)
        s.matrix[i] =
            clCreateBuffer(s.context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof(values), values, &code);
    s.workspace = clCreateBuffer(s.context, CL_MEM_READ_WRITE, ROOM, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    s.activations = clCreateBuffer(s.context, CL_MEM_READ_WRITE, ROOM, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    *state = &s;
    return 0;
}

static int tear_down(void **state)
{
    scene *const s = *state;
    for (int i = 0; i < 3; i++)
        clReleaseMemObject(s->matrix[i]);
    clReleaseMemObject(s->workspace);
    clReleaseMemObject(s->activations);
    clReleaseCommandQueue(s->queue);
    clReleaseContext(s->context);
    return 0;
}

/* A runtime's threads let go of a command a little after its end. */
static void expect_no_memory(scene *s)
{
    const struct timespec pause = {0, 1000000};
    for (int i = 0; i < 60000 && atomic_load(&s->live_memory) != 0; i++)
        (void)nanosleep(&pause, NULL);
    assert_int_equal(atomic_load(&s->live_memory), 0);
}

static void disarm(scene *s)
{
    fault_disarm(s->opencl);
    fault_disarm(&host_memory_faults);
}

static clmgk_status run_product(scene *s, clmgk_context *context, const subject *what, cl_event *event,
                                clmgk_error *error)
{
    clmgk_gemm_plan *plan = NULL;
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    clmgk_gemm_args args = CLMGK_GEMM_ARGS_INIT;
    options.provider = what->provider;
    desc.m = M;
    desc.n = N;
    desc.k = what->k;
    desc.batch = BATCH;
    args.a.memory = s->matrix[0];
    args.b.memory = s->matrix[1];
    args.c.memory = s->matrix[2];
    args.workspace = (clmgk_buffer){s->workspace, 4};
    clmgk_status status = clmgk_gemm_plan_create(context, &desc, &options, &plan, error);
    if (status == CLMGK_OK)
        status = clmgk_enqueue_gemm(plan, s->queue, &args, 0, NULL, event, error);
    disarm(s);
    clmgk_gemm_plan_release(plan);
    return status;
}

/* Inputs from the first matrix, outputs into the last. */
static clmgk_layer_args layer_args(const scene *s)
{
    clmgk_layer_args args = CLMGK_LAYER_ARGS_INIT;
    const clmgk_buffer weight = {s->matrix[0], 0};
    args.x = (clmgk_buffer){s->matrix[0], WEIGHT};
    args.weight_q = args.weight_k = args.weight_v = args.weight_o = weight;
    args.norm_gain = args.norm_bias = weight;
    args.grad_out = (clmgk_buffer){s->matrix[1], 0};
    args.out = (clmgk_buffer){s->matrix[2], 0};
    args.grad_x = (clmgk_buffer){s->matrix[2], ROWS};
    args.grad_weight_q = (clmgk_buffer){s->matrix[2], BOTH};
    args.grad_norm_gain = (clmgk_buffer){s->matrix[2], BOTH + WEIGHT};
    args.activations = (clmgk_buffer){s->activations, 0};
    args.workspace = (clmgk_buffer){s->workspace, 0};
    return args;
}

/* Both passes. */
static clmgk_status enqueue_layer(scene *s, clmgk_layer *layer, cl_event *event, clmgk_error *error)
{
    const clmgk_layer_args args = layer_args(s);
    cl_event forward = NULL;
    clmgk_status status = clmgk_enqueue_layer_forward(layer, s->queue, &args, 0, NULL, &forward, error);
    if (status != CLMGK_OK)
        return status;
    status = clmgk_enqueue_layer_backward(layer, s->queue, &args, 1, &forward, event, error);
    disarm(s);
    assert_int_equal(clReleaseEvent(forward), CL_SUCCESS);
    return status;
}

static clmgk_status run_layer(scene *s, clmgk_context *context, const subject *what, cl_event *event,
                              clmgk_error *error)
{
    clmgk_layer *layer = NULL;
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    attention.heads = HEADS;
    attention.length = TOKENS;
    attention.head_size = SIZE;
    attention.sizes_at_call = what->any_sizes;
    desc.attention = &attention;
    desc.width = WIDTH;
    desc.norm = CLMGK_NORM_PRE;
    desc.rotary = CLMGK_ROTARY_HALVES;
    desc.residual = 1;
    desc.gradients = CLMGK_LAYER_GRADIENT_X | CLMGK_LAYER_GRADIENT_WEIGHT_Q | CLMGK_LAYER_GRADIENT_NORM_GAIN;
    clmgk_status status = clmgk_layer_create(context, &desc, NULL, &layer, error);
    if (status == CLMGK_OK)
        status = enqueue_layer(s, layer, event, error);
    disarm(s);
    clmgk_layer_release(layer);
    return status;
}

/* Context, plan, product or layer, release; C or the layer's outputs into `c`. */
static clmgk_status run(scene *s, const subject *what, float c[COUNT], clmgk_error *error)
{
    clmgk_context *context = NULL;
    cl_event event = NULL;
    clmgk_context_options context_options = CLMGK_CONTEXT_OPTIONS_INIT;
    context_options.allocator = (clmgk_allocator){count_allocate, count_release, s};
    context_options.untuned = 1;
    clmgk_status status = clmgk_context_create(s->context, s->device, &context_options, &context, error);
    if (status == CLMGK_OK)
        status =
            what->layer ? run_layer(s, context, what, &event, error) : run_product(s, context, what, &event, error);
    disarm(s);
    assert_int_equal(clFinish(s->queue), CL_SUCCESS);
    if (event != NULL)
        assert_int_equal(clReleaseEvent(event), CL_SUCCESS);
    clmgk_context_release(context);
    expect_no_memory(s);
    if (status == CLMGK_OK)
        assert_int_equal(
            clEnqueueReadBuffer(s->queue, s->matrix[2], CL_TRUE, 0, COUNT * sizeof(float), c, 0, NULL, NULL),
            CL_SUCCESS);
    return status;
}

/* A layer whose provider of a product failed its first use takes another one, which may add up in another order. */
static void expect_near(const float c[COUNT], const float right[COUNT])
{
    float most = 0.0F;
    for (int i = 0; i < COUNT; i++)
        most = fmaxf(most, fabsf(right[i]));
    for (int i = 0; i < COUNT; i++)
        assert_float_equal(c[i], right[i], 3e-6F * most);
}

static void fail_everywhere(scene *s, const subject *what, fault_state *faults, int code)
{
    float right[COUNT], c[COUNT];
    clmgk_error error = {CLMGK_OK, 0, ""};
    if (run(s, what, right, &error) != CLMGK_OK) /* also leaves what CLBlast keeps */
        fail_msg("%s", error.message);
    fault_arm(faults, 0, false, 0);
    assert_int_equal(run(s, what, c, &error), CLMGK_OK);
    const unsigned long points = atomic_load(&faults->calls);
    print_message("%s, k %d: %lu %s\n", what->name, (int)what->k, points, faults->kind);
    const unsigned long step = fault_step() * (what->layer ? 20 : 1); /* its plans have sweeps of their own */
    for (unsigned long point = 1 + points % step; point <= points; point += step) {
        const long live = atomic_load(&s->opencl->live);
        fault_arm(faults, point, false, code);
        const clmgk_status status = run(s, what, c, &error);
        const char *const failed = atomic_load(&faults->failed);
        assert_non_null(failed);
        if (atomic_load(&s->opencl->live) != live)
            fail_msg("%s fails: objects are left", failed);
        if (status == CLMGK_OK && what->layer)
            expect_near(c, right);
        else if (status == CLMGK_OK)
            assert_memory_equal(c, right, sizeof(right));
        else if (error.status != status || error.message[0] == '\0' || status == CLMGK_ERROR_INTERNAL)
            fail_msg("%s fails: %s \"%s\"", failed, clmgk_status_name(status), error.message);
    }
}

static bool offers_f32(const scene *s, size_t index)
{
    clmgk_gemm_provider_info info = CLMGK_GEMM_PROVIDER_INFO_INIT;
    assert_int_equal(clmgk_gemm_provider_state(s->device, index, &info, NULL), CLMGK_OK);
    return (info.dtypes & 1U << CLMGK_DTYPE_F32) != 0;
}

static void fail_kind(scene *s, fault_state *faults, int code)
{
    fail_everywhere(s, &(subject){.name = "none"}, faults, code);
    for (size_t i = 0; clmgk_gemm_provider(i) != NULL; i++) {
        const char *const name = clmgk_gemm_provider(i);
        if (offers_f32(s, i))
            fail_everywhere(s, &(subject){.name = name, .provider = name, .k = K}, faults, code);
    }
    fail_everywhere(s, &(subject){.name = "layer", .layer = true}, faults, code);
    fail_everywhere(s, &(subject){.name = "layer of any sizes", .layer = true, .any_sizes = true}, faults, code);
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
