/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans on memory and streams of CUDA. On an NVIDIA GPU, and with stand-ins for both of NVIDIA's drivers (OPENCL_LAYERS
 * and LD_LIBRARY_PATH name them): results are OpenCL's to the bit. With the stand-ins alone: each call that can fail
 * gives a status and a reason, and leaves nothing behind. On other devices: refusals.
 */
#include "cuda_stand_in.h"
#include "device/cuda.h"
#include "harness/harness.h"
#include "nvidia_layer.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 2 };

/* Functions of CUDA's driver that the tests need themselves. */
typedef struct cuda_calls {
    int (*device_get)(int *device, int number);
    int (*retain)(void **context, int device);
    int (*release_context)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*wait)(void);
    int (*allocate)(unsigned long long *memory, size_t bytes);
    int (*release)(unsigned long long memory);
    int (*write)(unsigned long long to, const void *from, size_t bytes);
    int (*read)(void *to, unsigned long long from, size_t bytes);
} cuda_calls;

typedef struct scene {
    nvidia_state *driver; /* NULL: no stand-ins */
    cuda_state *cuda;
    cuda_calls call;
    int number; /* of the device in CUDA */
    void *primary;
    cl_context cl;
    cl_device_id device;
    cl_command_queue queue;
    clmgk_context *context;        /* NULL: there is no NVIDIA GPU, or no CUDA */
    int allocations_left;          /* of the host's memory; negative: any number */
    const clmgk_call_sizes *sizes; /* of calls; NULL: none */
} scene;

/* C has no conversion from object to function pointers. */
static bool look_up(void *library, const char *name, void *function)
{
    void *const symbol = library != NULL ? dlsym(library, name) : NULL;
    memcpy(function, (const void *)&symbol, sizeof(symbol));
    return symbol != NULL;
}

static bool find_calls(cuda_calls *call)
{
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    return look_up(library, "cuDeviceGet", (void *)&call->device_get) &&
           look_up(library, "cuDevicePrimaryCtxRetain", (void *)&call->retain) &&
           look_up(library, "cuDevicePrimaryCtxRelease_v2", (void *)&call->release_context) &&
           look_up(library, "cuCtxPushCurrent_v2", (void *)&call->push) &&
           look_up(library, "cuCtxPopCurrent_v2", (void *)&call->pop) &&
           look_up(library, "cuCtxSynchronize", (void *)&call->wait) &&
           look_up(library, "cuMemAlloc_v2", (void *)&call->allocate) &&
           look_up(library, "cuMemFree_v2", (void *)&call->release) &&
           look_up(library, "cuMemcpyHtoD_v2", (void *)&call->write) &&
           look_up(library, "cuMemcpyDtoH_v2", (void *)&call->read);
}

static void find_stand_ins(scene *self)
{
    const char *const path = getenv("OPENCL_LAYERS");
    void *const layer = path != NULL ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    nvidia_layer_state_fn *driver = NULL;
    cuda_stand_in_state_fn *cuda = NULL;
    if (!look_up(layer, "nvidia_layer_state", (void *)&driver))
        return;
    assert_true(look_up(dlopen("libcuda.so.1", RTLD_NOW), "cuda_stand_in_state", (void *)&cuda));
    self->driver = driver();
    self->cuda = cuda();
    *self->driver = (nvidia_state){.fault = NVIDIA_NO_FAULT};
    *self->cuda = (cuda_state){.fails = NULL};
}

/* The number of the OpenCL device in CUDA; -1: it has none. */
static int number_of(cl_device_id device)
{
    enum { MOST_DEVICES = 64 };
    for (int i = 0; i < MOST_DEVICES; i++) {
        clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
        if (clmgk_get_cuda_device_info(i, &info, NULL) == CLMGK_OK && info.device_id == device)
            return i;
    }
    return -1;
}

static void *allocate_on_host(size_t bytes, void *user)
{
    scene *const self = user;
    if (self->allocations_left == 0)
        return NULL;
    self->allocations_left -= self->allocations_left > 0;
    return malloc(bytes);
}

static void release_on_host(void *memory, void *user)
{
    (void)user;
    free(memory);
}

static void make_context(scene *self)
{
    const clmgk_context_options options = {.struct_size = sizeof(options),
                                           .allocator = {allocate_on_host, release_on_host, self},
                                           .untuned = 1,
                                           .cache_dir = ""};
    th_expect_ok(clmgk_context_create(self->cl, self->device, &options, &self->context, &th_error));
}

static void open_context(scene *self)
{
    cl_int code = CL_SUCCESS;
    int device = 0;
    assert_int_equal(self->call.device_get(&device, self->number), 0);
    assert_int_equal(self->call.retain(&self->primary, device), 0);
    self->cl = clCreateContext(NULL, 1, &self->device, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    self->queue = clCreateCommandQueue(self->cl, self->device, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    make_context(self);
}

static int set_up(void **state)
{
    scene *const self = calloc(1, sizeof(*self));
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    assert_non_null(self);
    th_expect_ok(clmgk_select_device(NULL, &info, &th_error));
    self->device = info.device_id;
    self->allocations_left = -1;
    find_stand_ins(self);
    self->number = number_of(self->device);
    if (self->number >= 0 && find_calls(&self->call))
        open_context(self);
    *state = self;
    return 0;
}

/* With the context, everything of the library in CUDA is gone. */
static int tear_down(void **state)
{
    scene *const self = *state;
    int device = 0;
    if (self->context != NULL) {
        clmgk_context_release(self->context);
        assert_int_equal(clReleaseCommandQueue(self->queue), CL_SUCCESS);
        assert_int_equal(clReleaseContext(self->cl), CL_SUCCESS);
        assert_int_equal(self->call.device_get(&device, self->number), 0);
        assert_int_equal(self->call.release_context(device), 0);
    }
    if (self->cuda != NULL)
        assert_int_equal(self->cuda->retained + self->cuda->modules + self->cuda->allocations + self->cuda->current, 0);
    free(self);
    return 0;
}

/* A test of the stand-ins and of a GPU, and one of the stand-ins alone. */
#define CUDA_TEST(name) TH_TEST_OF(name, scene *self, .set_up = set_up, .tear_down = tear_down)
#define NEEDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            skip();                                                                                                    \
    } while (0)

/* ---- problems ------------------------------------------------------------------------------------------------- */

/* All passes or the forward pass, with arrays of every kind, by few programs. */
static clmgk_attention_desc problem(bool all)
{
    clmgk_attention_desc desc = {.struct_size = sizeof(desc),
                                 .dtype = all ? CLMGK_DTYPE_F32 : CLMGK_DTYPE_BF16,
                                 .variant = CLMGK_VARIANT_MGK,
                                 .batch = 2,
                                 .heads = 2,
                                 .length = 37,
                                 .length_k = 50,
                                 .head_size = 16,
                                 .prior_shape = CLMGK_PRIOR_HM,
                                 .score_mod = "s + 0.1 * t[h, j]",
                                 .mask_mod = "j <= i + 30 || (i + j) % 3 == 0",
                                 .use_mask_blocks = 1,
                                 .mask_block_q = 16,
                                 .mask_block_k = 16,
                                 .captures = {{.name = "t", .axes = 2, .shape = {2, 50}}},
                                 .use_lengths = 1,
                                 .gradients = all ? CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR : 0,
                                 .statistics = all ? CLMGK_STATISTIC_COUNTS : 0,
                                 .combine = all};
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    return desc;
}

static clmgk_attention_desc mixture(void)
{
    return problem(true);
}

/* The forward pass alone, in half the bits: the stand-in is slow. */
static clmgk_attention_desc forward(void)
{
    return problem(false);
}

static clmgk_plan *plan_of(const scene *self, const clmgk_attention_desc *desc)
{
    clmgk_plan *plan = NULL;
    th_expect_ok(clmgk_plan_create(self->context, desc, NULL, &plan, &th_error));
    return plan;
}

/* Of each array its bytes on the host; 0: the plan has it not. */
typedef struct arrays {
    size_t bytes[CLMGK_ARRAYS];
    unsigned char *values[CLMGK_ARRAYS];
} arrays;

static void fill(const clmgk_attention_desc *desc, clmgk_array array, unsigned char *values, size_t bytes)
{
    static double state = 0;
    const size_t element = clmgk_array_element_size(desc, array);
    for (size_t at = 0; at < bytes; at += element) {
        double number = 0;
        th_fill_irregularly(&number, 1, &state);
        const float real = (float)(array == CLMGK_ARRAY_PRIOR ? 0.1 + fabs(number) : number);
        const int32_t whole = (int32_t)(desc->length_k / 2 + (int64_t)(at / element));
        unsigned char word[4];
        memcpy(word, array == CLMGK_ARRAY_LENGTHS ? (const void *)&whole : (const void *)&real, sizeof(word));
        memcpy(values + at, word + sizeof(word) - element, element); /* bf16: the upper half */
    }
}

static void make(const clmgk_attention_desc *desc, size_t workspace, arrays *made)
{
    *made = (arrays){.bytes = {0}};
    for (int i = 0; i < CLMGK_ARRAYS; i++) {
        const clmgk_array array = (clmgk_array)i;
        const bool is_part = array == CLMGK_ARRAY_PARTS_O || array == CLMGK_ARRAY_PARTS_LSE;
        made->bytes[i] = (size_t)clmgk_array_bytes(desc, array) * (is_part ? PARTS : 1);
        if (array == CLMGK_ARRAY_WORKSPACE)
            made->bytes[i] = workspace;
        made->values[i] = calloc(made->bytes[i] + 1, 1);
        assert_non_null(made->values[i]);
        if (array != CLMGK_ARRAY_WORKSPACE)
            fill(desc, array, made->values[i], made->bytes[i]);
    }
}

static void free_arrays(const arrays *made)
{
    for (int i = 0; i < CLMGK_ARRAYS; i++)
        free(made->values[i]);
}

/* Whether a call of the pass gets the array. L is optional in the forward pass. */
static bool takes(const clmgk_attention_desc *desc, clmgk_pass pass, clmgk_array array)
{
    return array == CLMGK_ARRAY_WORKSPACE || clmgk_array_presence(desc, pass, array) == CLMGK_REQUIRED ||
           (array == CLMGK_ARRAY_LSE && clmgk_array_presence(desc, pass, array) != CLMGK_ABSENT);
}

/* ---- calls in OpenCL ------------------------------------------------------------------------------------------- */

typedef clmgk_status opencl_call(clmgk_plan *, cl_command_queue, const clmgk_attention_args *, cl_uint,
                                 const cl_event *, cl_event *, clmgk_error *);
typedef clmgk_status cuda_call(clmgk_plan *, clmgk_cuda_stream, const clmgk_cuda_args *, clmgk_error *);

static const struct {
    opencl_call *opencl;
    cuda_call *cuda;
} calls[CLMGK_PASSES] = {
    [CLMGK_PASS_FORWARD] = {clmgk_enqueue_forward, clmgk_enqueue_forward_cuda},
    [CLMGK_PASS_BACKWARD] = {clmgk_enqueue_backward, clmgk_enqueue_backward_cuda},
    [CLMGK_PASS_STATISTICS] = {clmgk_enqueue_statistics, clmgk_enqueue_statistics_cuda},
    [CLMGK_PASS_COMBINE] = {clmgk_enqueue_combine, clmgk_enqueue_combine_cuda},
    [CLMGK_PASS_MASK] = {clmgk_enqueue_mask, clmgk_enqueue_mask_cuda},
    [CLMGK_PASS_APPEND] = {clmgk_enqueue_append, clmgk_enqueue_append_cuda},
};

/* Writes the results to the arrays. */
static void run_in_opencl(const scene *self, clmgk_plan *plan, const clmgk_attention_desc *desc, clmgk_pass pass,
                          const arrays *host)
{
    clmgk_attention_args args = {.struct_size = sizeof(args), .parts = PARTS, .sizes = self->sizes};
    cl_int code = CL_SUCCESS;
    for (int i = 0; i < CLMGK_ARRAYS; i++)
        if (takes(desc, pass, (clmgk_array)i) && host->bytes[i] > 0) {
            clmgk_array_buffer(&args, (clmgk_array)i)->memory = clCreateBuffer(
                self->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, host->bytes[i], host->values[i], &code);
            assert_int_equal(code, CL_SUCCESS);
        }
    th_expect_ok(calls[pass].opencl(plan, self->queue, &args, 0, NULL, NULL, &th_error));
    for (int i = 0; i < CLMGK_ARRAYS; i++) {
        const cl_mem memory = clmgk_array_buffer(&args, (clmgk_array)i)->memory;
        if (memory == NULL)
            continue;
        assert_int_equal(
            clEnqueueReadBuffer(self->queue, memory, CL_TRUE, 0, host->bytes[i], host->values[i], 0, NULL, NULL),
            CL_SUCCESS);
        assert_int_equal(clReleaseMemObject(memory), CL_SUCCESS);
    }
}

/* ---- calls in CUDA --------------------------------------------------------------------------------------------- */

static void enter(const scene *self)
{
    assert_int_equal(self->call.push(self->primary), 0);
}

static void leave(const scene *self)
{
    void *ignored = NULL;
    assert_int_equal(self->call.pop(&ignored), 0);
}

/* The arrays of a call, one after the other in one allocation, each at another distance from 256 bytes. */
typedef struct device_arrays {
    unsigned long long memory;
    clmgk_cuda_args args;
} device_arrays;

static uint64_t *field_of(clmgk_cuda_args *args, clmgk_array array)
{
    switch (array) {
#define FIELD(name, field, ...)                                                                                        \
    case CLMGK_ARRAY_##name:                                                                                           \
        return &args->field;
#define GRADIENT(name, field, ...)                                                                                     \
    case CLMGK_ARRAY_GRAD_##name:                                                                                      \
        return &args->grad_##field;
        CLMGK_ARRAY_LIST(FIELD, GRADIENT, FIELD)
    default:
        return NULL;
    }
}

static device_arrays upload(const scene *self, const clmgk_attention_desc *desc, clmgk_pass pass, const arrays *host)
{
    enum { APART = 1 << 10 };
    device_arrays on = {.args = {.struct_size = sizeof(clmgk_cuda_args), .parts = PARTS, .sizes = self->sizes}};
    size_t total = 0;
    for (int i = 0; i < CLMGK_ARRAYS; i++)
        total += host->bytes[i] + APART;
    enter(self);
    assert_int_equal(self->call.allocate(&on.memory, total), 0);
    unsigned long long next = on.memory;
    for (int i = 0; i < CLMGK_ARRAYS; i++) {
        if (!takes(desc, pass, (clmgk_array)i) || host->bytes[i] == 0)
            continue;
        uint64_t *const address = field_of(&on.args, (clmgk_array)i);
        *address = next + (uint64_t)(4 * (i % 7));
        assert_int_equal(self->call.write(*address, host->values[i], host->bytes[i]), 0);
        next += host->bytes[i] / 256 * 256 + APART;
    }
    leave(self);
    return on;
}

static void free_device(const scene *self, const device_arrays *on)
{
    enter(self);
    assert_int_equal(self->call.release(on->memory), 0);
    leave(self);
}

/* Waits for the device, and compares its arrays with the host's. */
static void expect_equal(const scene *self, device_arrays *on, const arrays *host)
{
    enter(self);
    assert_int_equal(self->call.wait(), 0);
    for (int i = 0; i < CLMGK_ARRAY_WORKSPACE; i++) {
        const uint64_t address = *field_of(&on->args, (clmgk_array)i);
        if (address == 0)
            continue;
        unsigned char *const found = malloc(host->bytes[i]);
        assert_non_null(found);
        assert_int_equal(self->call.read(found, address, host->bytes[i]), 0);
        if (memcmp(found, host->values[i], host->bytes[i]) != 0)
            fail_msg("%s differs from OpenCL's", clmgk_array_name((clmgk_array)i));
        free(found);
    }
    leave(self);
}

/* Runs the pass in OpenCL and in CUDA. */
static void expect_same_bits(const scene *self, clmgk_plan *plan, const clmgk_attention_desc *desc, clmgk_pass pass,
                             const arrays *host)
{
    const clmgk_cuda_stream stream = self->cuda != NULL ? mgk_cuda_own_stream() : NULL;
    device_arrays on = upload(self, desc, pass, host);
    run_in_opencl(self, plan, desc, pass, host);
    if (self->cuda != NULL)
        self->cuda->launches = 0;
    th_expect_ok(calls[pass].cuda(plan, stream, &on.args, &th_error));
    if (self->cuda != NULL)
        assert_true(self->cuda->launches > 0 && self->cuda->stream == (const void *)stream);
    expect_equal(self, &on, host);
    free_device(self, &on);
}

CUDA_TEST(all_passes_give_the_bits_of_opencl)
{
    NEEDS(self->context != NULL);
    clmgk_attention_desc desc = mixture();
    desc.append = 3;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    clmgk_plan *const plan = plan_of(self, &desc);
    arrays host;
    make(&desc, clmgk_plan_workspace_size(plan), &host);
    th_expect_ok(clmgk_plan_prepare_cuda(plan, &th_error));
    for (int pass = 0; pass < CLMGK_PASSES; pass++)
        expect_same_bits(self, plan, &desc, (clmgk_pass)pass, &host);
    free_arrays(&host);
    clmgk_plan_release(plan);
}

/* The text that was verified is loaded: the driver's own lacks the instructions. The stand-in is slow. */
CUDA_TEST(edited_programs)
{
    NEEDS(self->context != NULL);
    clmgk_attention_desc desc = {.struct_size = sizeof(desc),
                                 .dtype = CLMGK_DTYPE_BF16,
                                 .heads = self->cuda != NULL ? 1 : 4,
                                 .length = self->cuda != NULL ? 40 : 300,
                                 .length_k = self->cuda != NULL ? 50 : 400,
                                 .head_size = 16,
                                 .use_lengths = 1};
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    arrays host;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    clmgk_plan *const plan = plan_of(self, &desc);
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    if (self->cuda != NULL)
        assert_non_null(strstr(info.options, "MATRIX_UNIT=2"));
    make(&desc, clmgk_plan_workspace_size(plan), &host);
    th_expect_ok(clmgk_plan_prepare_cuda(plan, &th_error));
    expect_same_bits(self, plan, &desc, CLMGK_PASS_FORWARD, &host);
    free_arrays(&host);
    clmgk_plan_release(plan);
}

/* ---- more local memory than OpenCL has -------------------------------------------------------------------------- */

/* A CPU's emulation takes 64 KiB beside the tiles, which are then more than the device has. So is the context's. */
static clmgk_attention_desc three_components(scene *self)
{
    enum { LOCAL = 80000, MOST_LOCAL = 227 << 10 };
    clmgk_attention_desc desc = {.struct_size = sizeof(desc),
                                 .variant = CLMGK_VARIANT_MGK,
                                 .components = 3,
                                 .dtype = CLMGK_DTYPE_BF16,
                                 .length = 40,
                                 .length_k = 150,
                                 .head_size = 16};
    self->driver->local = LOCAL;
    self->cuda->most_local = MOST_LOCAL;
    clmgk_context_release(self->context);
    make_context(self);
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    return desc;
}

static void expect_form(const clmgk_plan *plan, bool larger, const char *reason)
{
    clmgk_plan_info own = CLMGK_PLAN_INFO_INIT, info = CLMGK_PLAN_INFO_INIT;
    th_expect_ok(clmgk_plan_get_info(plan, &own, &th_error));
    th_expect_ok(clmgk_plan_get_cuda_info(plan, &info, &th_error));
    assert_true((info.local_bytes > own.local_bytes) == larger);
    assert_true((strstr(info.options, "-DDYNAMIC_LOCAL=") != NULL) == larger);
    assert_int_equal(info.workspace_bytes, own.workspace_bytes);
    if (strstr(info.engine_reason, reason) == NULL)
        fail_msg("reason: %s\nexpected: %s", info.engine_reason, reason);
}

/* A new plan, prepared while something fails. */
static void expect_own_kernels(const scene *self, const clmgk_attention_desc *desc, const char *reason)
{
    clmgk_plan *const plan = plan_of(self, desc);
    self->driver->fault = NVIDIA_WRONG;
    th_expect_ok(clmgk_plan_prepare_cuda(plan, &th_error));
    expect_form(plan, false, reason);
    self->driver->fault = NVIDIA_NO_FAULT;
    clmgk_plan_release(plan);
}

CUDA_TEST(launches_have_more_local_memory)
{
    NEEDS(self->cuda != NULL);
    const clmgk_attention_desc desc = three_components(self);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    arrays host;
    self->cuda->fails = "cuFuncSetAttribute";
    self->cuda->code = 1;
    expect_own_kernels(self, &desc,
                       "; no more local memory than in OpenCL: its programs could not be verified: CUDA's "
                       "function_allow: ");
    self->cuda->fails = NULL;
    assert_int_equal(setenv("CLMGK_CUDA_PARAMETERS", "unit=2,warps=8", 1), 0);
    expect_own_kernels(self, &desc, "; no more local memory than in OpenCL: engine matrix: warps: expected 4");
    assert_int_equal(unsetenv("CLMGK_CUDA_PARAMETERS"), 0);
    clmgk_plan *const plan = plan_of(self, &desc);
    th_expect_error(clmgk_plan_get_cuda_info(plan, &info, &th_error), CLMGK_ERROR_INVALID_VALUE, "has prepared");
    th_expect_ok(clmgk_plan_prepare_cuda(plan, &th_error));
    expect_form(plan, true, "matrix units: wgmma");
    make(&desc, clmgk_plan_workspace_size(plan), &host);
    expect_same_bits(self, plan, &desc, CLMGK_PASS_FORWARD, &host);
    assert_true(self->cuda->local > 0);
    free_arrays(&host);
    clmgk_plan_release(plan);
}

CUDA_TEST(calls_of_any_sizes_have_more_local_memory)
{
    NEEDS(self->cuda != NULL);
    static const int64_t lengths[][2] = {{9, 70}, {40, 150}};
    const clmgk_attention_desc fixed = three_components(self);
    clmgk_attention_desc limits = fixed;
    limits.sizes_at_call = 1;
    clmgk_plan *const plan = plan_of(self, &limits);
    th_expect_ok(clmgk_plan_prepare_cuda(plan, &th_error));
    expect_form(plan, true, "matrix units: wgmma");
    for (size_t n = 0; n < TH_COUNT(lengths); n++) {
        clmgk_attention_desc desc = fixed;
        clmgk_call_sizes sizes = CLMGK_CALL_SIZES_INIT;
        size_t bytes = 0;
        arrays host;
        desc.resolved = 0;
        desc.q.strided = desc.k.strided = desc.v.strided = desc.o.strided = desc.lse.strided = 0;
        desc.length = sizes.length = lengths[n][0];
        desc.length_k = sizes.length_k = lengths[n][1];
        th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
        th_expect_ok(clmgk_plan_call_workspace_size(plan, &sizes, &bytes, &th_error));
        make(&desc, bytes, &host);
        self->sizes = &sizes;
        expect_same_bits(self, plan, &desc, CLMGK_PASS_FORWARD, &host);
        self->sizes = NULL;
        free_arrays(&host);
    }
    assert_true(self->cuda->local > 0);
    clmgk_plan_release(plan);
}

/* The device may have no more memory, or give wrong results with it. */
CUDA_TEST(own_kernels_where_more_local_memory_fails)
{
    NEEDS(self->cuda != NULL);
    const clmgk_attention_desc desc = three_components(self);
    self->driver->of = "KERNEL(mixture_forward)";
    expect_own_kernels(self, &desc,
                       "; no more local memory than in OpenCL: the forward pass gives wrong numbers here: ");
    self->cuda->most_local = 0;
    expect_own_kernels(self, &desc, "matrix units: wgmma");
}

/* ---- preparation ------------------------------------------------------------------------------------------------ */

/* Plans share programs, which are unloaded with the last of them, after the device's work. */
CUDA_TEST(programs_are_loaded_once)
{
    NEEDS(self->cuda != NULL);
    const clmgk_attention_desc desc = forward();
    clmgk_attention_desc other = desc;
    other.length = 36;
    other.q.strided = other.o.strided = other.lse.strided = 0;
    other.resolved = 0;
    clmgk_plan *const first = plan_of(self, &desc), *const second = plan_of(self, &other);
    th_expect_ok(clmgk_plan_prepare_cuda(first, &th_error));
    assert_true(self->cuda->loads > 0 && self->cuda->modules == self->cuda->loads);
    self->cuda->loads = self->cuda->launches = 0;
    th_expect_ok(clmgk_plan_prepare_cuda(first, &th_error));
    assert_int_equal(self->cuda->launches, 0);
    th_expect_ok(clmgk_plan_prepare_cuda(second, &th_error));
    assert_int_equal(self->cuda->loads, 0);
    assert_true(self->cuda->launches > 0);
    clmgk_plan_release(first);
    assert_true(self->cuda->modules > 0);
    assert_int_equal(self->cuda->waits, 0);
    clmgk_plan_release(second);
    assert_true(self->cuda->modules > 0); /* the context keeps them */
    mgk_programs_clear(self->context);
    assert_int_equal(self->cuda->modules, 0);
    assert_true(self->cuda->waits > 0);
}

/* A program that the compiler gave a limit of registers has the same in CUDA. */
CUDA_TEST(limits_of_registers)
{
    NEEDS(self->cuda != NULL);
    static const mgk_launch grid = {.dimensions = 1, .global = {1}, .local = {1}};
    mgk_cuda *cuda = NULL;
    mgk_program *program = NULL;
    mgk_cuda_function function = NULL;
    clmgk_program_origin origin;
    double ms = 0;
    th_expect_ok(mgk_cuda_open(self->context, &cuda, &th_error));
    th_expect_ok(mgk_program_get(self->context, "engine/unit_probe.cl",
                                 "-cl-std=CL1.2 -DENGINE=matrix -cl-nv-maxrregcount=64", NULL, &program, &origin, &ms,
                                 &th_error));
    th_expect_ok(mgk_cuda_enter(cuda, &th_error));
    th_expect_error(mgk_cuda_get_function(cuda, program, "no_kernel", &grid, 0, &function, &th_error), CLMGK_ERROR_CUDA,
                    "CUDA's module_function: CUDA_ERROR_OF_THE_STAND_IN (500)");
    mgk_cuda_leave(cuda);
    assert_int_equal(self->cuda->registers, 64);
    mgk_program_release(program);
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

CUDA_TEST(devices)
{
    NEEDS(self->cuda != NULL);
    const clmgk_attention_desc desc = forward();
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    clmgk_plan *const plan = plan_of(self, &desc);
    th_expect_ok(clmgk_get_cuda_device_info(1, &info, &th_error));
    assert_ptr_equal(info.device_id, self->device);
    th_expect_error(clmgk_get_cuda_device_info(0, &info, &th_error), CLMGK_ERROR_NO_DEVICE, "(PCI 0001:b4:02)");
    th_expect_error(clmgk_get_cuda_device_info(2, &info, &th_error), CLMGK_ERROR_INVALID_VALUE, "number: 2");
    th_expect_error(clmgk_get_cuda_device_info(-1, &info, &th_error), CLMGK_ERROR_INVALID_VALUE, "number: -1");
    th_expect_error(clmgk_get_cuda_device_info(1, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "info: NULL");
    th_expect_error(clmgk_plan_prepare_cuda(NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "plan: NULL");
    self->cuda->hidden = 1;
    th_expect_error(clmgk_plan_prepare_cuda(plan, &th_error), CLMGK_ERROR_UNSUPPORTED, "none of CUDA's 1 devices");
    self->driver->no_pci = 1;
    th_expect_error(clmgk_plan_prepare_cuda(plan, &th_error), CLMGK_ERROR_UNSUPPORTED,
                    "does not state its PCI address");
    th_expect_error(clmgk_get_cuda_device_info(0, &info, &th_error), CLMGK_ERROR_NO_DEVICE, "libnvidia-opencl.so.1");
    clmgk_plan_release(plan);
}

static void expect_refused(clmgk_plan *plan, const clmgk_cuda_args *args, clmgk_status status, const char *words)
{
    th_expect_error(clmgk_enqueue_forward_cuda(plan, NULL, args, &th_error), status, words);
}

CUDA_TEST(arguments)
{
    NEEDS(self->cuda != NULL);
    const clmgk_attention_desc desc = forward();
    clmgk_plan *const plan = plan_of(self, &desc);
    arrays host;
    make(&desc, clmgk_plan_workspace_size(plan), &host);
    device_arrays on = upload(self, &desc, CLMGK_PASS_FORWARD, &host);
    const clmgk_cuda_args good = on.args;
    clmgk_cuda_args *const args = &on.args;
    static const char unprepared[] = "plan: expected one that clmgk_plan_prepare_cuda has prepared";
    expect_refused(plan, args, CLMGK_ERROR_INVALID_VALUE, unprepared);
    clmgk_plan *const other = plan_of(self, &desc);
    th_expect_ok(clmgk_plan_prepare_cuda(other, &th_error));
    expect_refused(plan, args, CLMGK_ERROR_INVALID_VALUE, unprepared);
    clmgk_plan_release(other);
    th_expect_ok(clmgk_plan_prepare_cuda(plan, &th_error));
    self->cuda->launches = 0;
    expect_refused(NULL, args, CLMGK_ERROR_INVALID_VALUE, "plan: NULL");
    expect_refused(plan, NULL, CLMGK_ERROR_INVALID_VALUE, "args: NULL");
    th_expect_error(clmgk_enqueue_backward_cuda(plan, NULL, args, &th_error), CLMGK_ERROR_INVALID_VALUE, "gradients");
    args->struct_size = 8;
    expect_refused(plan, args, CLMGK_ERROR_INVALID_VALUE, "struct_size");
    *args = good;
    args->q = 0;
    expect_refused(plan, args, CLMGK_ERROR_INVALID_BUFFER, "q: ");
    args->q = good.q + 1;
    expect_refused(plan, args, CLMGK_ERROR_INVALID_BUFFER, "expected a multiple of 2 bytes");
    args->q = good.q + (1 << 30);
    expect_refused(plan, args, CLMGK_ERROR_INVALID_BUFFER, "expected memory of CUDA");
    *args = good;
    args->o = good.q + 16;
    expect_refused(plan, args, CLMGK_ERROR_INVALID_BUFFER, "o: shares memory with q");
    *args = good;
    args->bias = good.q;
    expect_refused(plan, args, CLMGK_ERROR_INVALID_BUFFER, "bias: given");
    *args = good;
    assert_int_equal(self->cuda->launches, 0);
    th_expect_ok(clmgk_enqueue_forward_cuda(plan, NULL, args, &th_error));
    free_device(self, &on);
    free_arrays(&host);
    clmgk_plan_release(plan);
}

/* As if no plan had been prepared. */
static void close_cuda(const scene *self)
{
    for (mgk_program *program = self->context->programs; program != NULL; program = program->next)
        mgk_cuda_unload(program);
    mgk_cuda_close(self->context);
    assert_int_equal(self->cuda->retained, 1); /* the test's */
    assert_int_equal(self->cuda->modules + self->cuda->allocations + self->cuda->current, 0);
}

typedef struct failure {
    const char *function, *words;
    int code;
    clmgk_status status;
} failure;

/* A function fails at its first call, then at its second, if there is one. */
static void expect_failure(const scene *self, const clmgk_attention_desc *desc, const failure *one, int after)
{
    clmgk_plan *const plan = plan_of(self, desc);
    self->cuda->fails = one->function;
    self->cuda->after = after;
    self->cuda->code = one->code;
    const clmgk_status status = clmgk_plan_prepare_cuda(plan, &th_error);
    self->cuda->fails = NULL;
    if (after == 0 || status != CLMGK_OK) {
        th_expect_error(status, one->status, one->words);
        th_expect_ok(clmgk_plan_prepare_cuda(plan, &th_error));
    }
    clmgk_plan_release(plan);
    close_cuda(self);
}

CUDA_TEST(failing_calls)
{
    NEEDS(self->cuda != NULL);
    enum { FAILURE = 999, TIMES = 2 };
    static const failure failures[] = {
        {"cuInit", "cuInit: CUDA_ERROR_OF_THE_STAND_IN (999)", FAILURE, CLMGK_ERROR_CUDA},
        {"cuDeviceGetCount", "CUDA's device_count: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuDeviceGet", "CUDA's device_get: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuDeviceGetAttribute", "CUDA's device_attribute: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuDevicePrimaryCtxRetain", "CUDA's context_retain: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuCtxPushCurrent_v2", "CUDA's context_push: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuMemAlloc_v2", "CUDA's memory_allocate: ", 2, CLMGK_ERROR_OUT_OF_DEVICE_MEMORY},
        {"cuMemcpyHtoD_v2", "CUDA's memory_write: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuModuleLoadDataEx", "CUDA's driver does not take the program: ", FAILURE, CLMGK_ERROR_COMPILE},
        {"cuModuleLoadDataEx", "CUDA's driver does not take the program: ", 2, CLMGK_ERROR_OUT_OF_DEVICE_MEMORY},
        {"cuModuleGetFunction", "CUDA's module_function: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuFuncGetAttribute", "CUDA's function_attribute: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuLaunchKernel", "CUDA's launch: ", FAILURE, CLMGK_ERROR_CUDA},
        {"cuStreamSynchronize", "CUDA's stream_wait: an unknown error (1234)", 1234, CLMGK_ERROR_CUDA},
    };
    const clmgk_attention_desc desc = forward();
    clmgk_plan *const keeper = plan_of(self, &desc); /* of the compiled programs */
    for (size_t n = 0; n < TIMES * TH_COUNT(failures); n++)
        expect_failure(self, &desc, &failures[n / TIMES], (int)(n % TIMES));
    clmgk_plan_release(keeper);
}

/* Each allocation of a preparation fails. */
CUDA_TEST(no_memory_on_the_host)
{
    NEEDS(self->cuda != NULL);
    enum { LEAST = 10, MOST = 1000 };
    const clmgk_attention_desc desc = forward();
    clmgk_plan *const keeper = plan_of(self, &desc); /* of the compiled programs */
    clmgk_status status = CLMGK_ERROR_OUT_OF_HOST_MEMORY;
    int count = 0;
    for (; status != CLMGK_OK && count < MOST; count++) {
        clmgk_plan *const plan = plan_of(self, &desc);
        self->allocations_left = count;
        status = clmgk_plan_prepare_cuda(plan, &th_error);
        self->allocations_left = -1;
        clmgk_plan_release(plan);
        if (status != CLMGK_OK) {
            th_expect_error(status, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "");
            close_cuda(self);
        }
    }
    th_expect_ok(status);
    assert_true(count > LEAST);
    clmgk_plan_release(keeper);
}

/* What CUDA's assembler says is a part of the reason, and so are kernels that it can't launch. */
CUDA_TEST(programs_that_cuda_does_not_take)
{
    NEEDS(self->cuda != NULL);
    clmgk_attention_desc desc = mixture();
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan *plan = NULL;
    desc.gradients = desc.statistics = desc.combine = 0;
    desc.score_mod = desc.mask_mod = desc.captures[0].name = NULL;
    desc.use_mask_blocks = 0;
    desc.mask_block_q = desc.mask_block_k = desc.mask_blocks_batch = desc.mask_blocks_heads = 0;
    options.engine = CLMGK_ENGINE_MATRIX;
    options.parameters = "unit=1"; /* wgmma's programs are edited from a copy */
    th_expect_ok(clmgk_plan_create(self->context, &desc, &options, &plan, &th_error));
    self->driver->fault = NVIDIA_OTHER_TARGET;
    self->driver->of = "KERNEL(mixture_forward)";
    th_expect_error(clmgk_plan_prepare_cuda(plan, &th_error), CLMGK_ERROR_COMPILE,
                    "does not take the program: CUDA_ERROR_OF_THE_STAND_IN (218): ptxas fatal: Unresolved extern");
    self->driver->fault = NVIDIA_NO_PTX;
    th_expect_error(clmgk_plan_prepare_cuda(plan, &th_error), CLMGK_ERROR_UNSUPPORTED, "is not PTX");
    self->driver->fault = NVIDIA_NO_BINARY;
    th_expect_error(clmgk_plan_prepare_cuda(plan, &th_error), CLMGK_ERROR_OUT_OF_DEVICE_MEMORY, "clGetProgramInfo");
    self->driver->fault = NVIDIA_NO_FAULT;
    th_expect_ok(clmgk_plan_prepare_cuda(plan, &th_error));
    clmgk_plan_release(plan);
}

/* ---- elsewhere --------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(a_driver_without_a_function)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    NEEDS(library == NULL || dlsym(library, "cuDeviceGetCount") == NULL);
    th_expect_error(clmgk_get_cuda_device_info(0, &info, &th_error), CLMGK_ERROR_UNSUPPORTED,
                    library == NULL ? "CUDA's driver: libcuda.so.1 could not be loaded"
                                    : "CUDA's driver: libcuda.so.1 is another version: it has no cuDeviceGetCount");
}

TH_TEST(a_device_of_another_maker)
{
    const clmgk_attention_desc desc = {.struct_size = sizeof(desc), .length = 5, .head_size = 8};
    const clmgk_cuda_args args = CLMGK_CUDA_ARGS_INIT;
    NEEDS(strstr(session->info.platform, "NVIDIA") == NULL);
    clmgk_plan *const plan = th_plan(session, &desc, CLMGK_ENGINE_AUTO, NULL);
    th_expect_error(clmgk_plan_prepare_cuda(plan, &th_error), CLMGK_ERROR_UNSUPPORTED,
                    "programs of NVIDIA's OpenCL driver alone");
    th_expect_error(clmgk_enqueue_forward_cuda(plan, NULL, &args, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "clmgk_plan_prepare_cuda");
    clmgk_plan_release(plan);
}
