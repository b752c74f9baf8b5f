/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole run (context, plan, enqueue, release, of the forward pass and of all passes; the calls on host arrays) with
 * every OpenCL call, every allocation and every file operation made to fail, one after another. Each time the library
 * returns a status with a reason, or the right result if it can do without the call; a failed host call writes no
 * output; all objects and memory are released, also between the kernels of a pass; and the next run succeeds. A first
 * run counts the points, so the number of runs is known beforehand. CLMGK_TEST_FULL=1 also lets all calls from a point
 * on fail; CLMGK_FAULT_STEP=n takes every n-th point.
 */
#include "host_faults.h"

#include "clmgk/clmgk.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 2, LENGTH = 5, KEYS = 7, SIZE = 8, COMPONENTS = 2, PATH_SIZE = 1024 };
enum { Q_COUNT = HEADS * LENGTH * SIZE, K_COUNT = HEADS * COMPONENTS * KEYS * SIZE, V_COUNT = HEADS * KEYS * SIZE };

enum { PARTS = 2, RESPONSIBILITY_COUNT = HEADS * COMPONENTS * LENGTH * KEYS };

/* What a run computes; 0 where it does not. */
typedef struct result {
    float o[Q_COUNT];
    float lse[HEADS * LENGTH];
    float grad_q[Q_COUNT], grad_k[K_COUNT], grad_v[V_COUNT], grad_prior[COMPONENTS], grad_variance[1];
    float responsibilities[RESPONSIBILITY_COUNT], counts[COMPONENTS], new_prior[COMPONENTS], nll[HEADS];
    float combined[Q_COUNT], combined_lse[HEADS * LENGTH];
    float new_state_c[HEADS * SIZE * SIZE], new_state_z[HEADS * SIZE]; /* of the linear family */
} result;

/* An output on the device, and where it lies in the result. */
typedef struct output {
    size_t offset, size;
    clmgk_buffer *buffer;
} output;
enum { TRAINING_OUTPUTS = 13, OUTPUTS = TRAINING_OUTPUTS + 2 };

typedef struct scene {
    float q[Q_COUNT], k[K_COUNT], v[V_COUNT], prior[COMPONENTS], grad_o[Q_COUNT];
    float parts_o[PARTS * Q_COUNT], parts_lse[PARTS * HEADS * LENGTH];
    int32_t lengths[1];
    clmgk_attention_desc desc;     /* forward */
    clmgk_attention_desc training; /* and everything else */
    clmgk_attention_desc linear;   /* both passes of MLK with a new state */
    char warm_dir[PATH_SIZE];      /* keeps the programs of all tests */
    char cold_dir[PATH_SIZE];      /* empty before each run */
    const char *cache_dir;         /* the one in use */
    char tuned_dir[PATH_SIZE];     /* with an entry */
    char tuning_dir[PATH_SIZE + 16];
    fault_state *opencl;
    atomic_long live_memory; /* of the context's allocator */

    const char *engine; /* the device's own */
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_mem memory[32];
    size_t memory_count;
    clmgk_attention_args args;
    clmgk_attention_args combine; /* O and L of its own */
    clmgk_attention_args of_linear;
    output outputs[OUTPUTS];
    result forward; /* what the backward pass of host arrays begins with */
} scene;

/* One way to use the library: everything in it is subject to faults. */
typedef clmgk_status run_fn(scene *s, result *r, clmgk_error *error);

/* ---- set-up ----------------------------------------------------------------------------------------------- */

static void fill(float *values, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        values[i] = (float)(seed >> 8) / (float)(1U << 23) - 1.0F;
    }
}

static clmgk_buffer upload(scene *s, size_t bytes, const void *data)
{
    cl_int code = CL_SUCCESS;
    const cl_mem_flags flags = data != NULL ? CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR : CL_MEM_READ_WRITE;
    assert_true(s->memory_count < sizeof(s->memory) / sizeof(s->memory[0]));
    /* OpenCL's parameter is not const, though it only reads. */
    const cl_mem memory = clCreateBuffer(s->context, flags, bytes, (void *)(uintptr_t)data, &code);
    assert_int_equal(code, CL_SUCCESS);
    s->memory[s->memory_count++] = memory;
    return (clmgk_buffer){.memory = memory};
}

static void make_problem(scene *s)
{
    fill(s->q, Q_COUNT, 1);
    fill(s->k, K_COUNT, 2);
    fill(s->v, V_COUNT, 3);
    fill(s->grad_o, Q_COUNT, 4);
    fill(s->parts_o, sizeof(s->parts_o) / sizeof(float), 5);
    fill(s->parts_lse, sizeof(s->parts_lse) / sizeof(float), 6);
    s->prior[0] = 0.25F;
    s->prior[1] = 0.75F;
    s->lengths[0] = KEYS - 1;
    s->desc = (clmgk_attention_desc)CLMGK_ATTENTION_DESC_INIT;
    s->desc.variant = CLMGK_VARIANT_MGK;
    s->desc.heads = HEADS;
    s->desc.components = COMPONENTS;
    s->desc.length = LENGTH;
    s->desc.length_k = KEYS;
    s->desc.head_size = SIZE;
    s->desc.prior_shape = CLMGK_PRIOR_M;
    s->desc.use_lengths = 1;
    s->training = s->desc;
    s->training.gradients =
        CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_VARIANCE;
    s->training.statistics = CLMGK_STATISTIC_ALL;
    s->training.combine = 1;
    s->linear = s->desc;
    s->linear.variant = CLMGK_VARIANT_MLK;
    s->linear.causal = 1;
    s->linear.use_new_state = 1;
    s->linear.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR;
}

static void make_device_objects(scene *s)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    clmgk_error error = {0};
    cl_int code = CL_SUCCESS;
    assert_int_equal(clmgk_select_device(NULL, &info, &error), CLMGK_OK);
    s->device = info.device_id;
    s->engine = clmgk_engine_name(info.engine);
    s->context = clCreateContext(NULL, 1, &s->device, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    s->queue = clCreateCommandQueue(s->context, s->device, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    s->args = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    s->args.q = upload(s, sizeof(s->q), s->q);
    s->args.k = upload(s, sizeof(s->k), s->k);
    s->args.v = upload(s, sizeof(s->v), s->v);
    s->args.prior = upload(s, sizeof(s->prior), s->prior);
    s->args.lengths = upload(s, sizeof(s->lengths), s->lengths);
}

/* The other arrays of training: gradients, statistics, partial results. */
static void make_outputs(scene *s)
{
    s->combine = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    s->combine.parts = PARTS;
    s->args.grad_o = upload(s, sizeof(s->grad_o), s->grad_o);
    s->combine.parts_o = upload(s, sizeof(s->parts_o), s->parts_o);
    s->combine.parts_lse = upload(s, sizeof(s->parts_lse), s->parts_lse);
#define OUTPUT(field, buffer)                                                                                          \
    {                                                                                                                  \
        offsetof(result, field), sizeof(((result *)NULL)->field), &(buffer)                                            \
    }
    const output outputs[OUTPUTS] = {
        OUTPUT(o, s->args.o),
        OUTPUT(lse, s->args.lse),
        OUTPUT(grad_q, s->args.grad_q),
        OUTPUT(grad_k, s->args.grad_k),
        OUTPUT(grad_v, s->args.grad_v),
        OUTPUT(grad_prior, s->args.grad_prior),
        OUTPUT(grad_variance, s->args.grad_variance),
        OUTPUT(responsibilities, s->args.responsibilities),
        OUTPUT(counts, s->args.counts),
        OUTPUT(new_prior, s->args.new_prior),
        OUTPUT(nll, s->args.nll),
        OUTPUT(combined, s->combine.o),
        OUTPUT(combined_lse, s->combine.lse),
        OUTPUT(new_state_c, s->of_linear.new_state_c),
        OUTPUT(new_state_z, s->of_linear.new_state_z),
    };
#undef OUTPUT
    memcpy(s->outputs, outputs, sizeof(outputs));
    for (size_t i = 0; i < OUTPUTS; i++)
        *s->outputs[i].buffer = upload(s, s->outputs[i].size, NULL);
}

/* The outputs of training, except those that the linear family lacks. */
static void make_linear(scene *s)
{
    const clmgk_buffer none = {NULL, 0}, c = s->of_linear.new_state_c, z = s->of_linear.new_state_z;
    s->of_linear = s->args;
    s->of_linear.new_state_c = c;
    s->of_linear.new_state_z = z;
    s->of_linear.denominator = upload(s, sizeof(float) * HEADS * LENGTH * 2, NULL);
    s->of_linear.lse = s->of_linear.grad_variance = none;
}

/* A workspace for any pass of a plan, made before anything fails. */
static clmgk_buffer make_workspace(scene *s, const clmgk_attention_desc *desc)
{
    clmgk_context *context = NULL;
    clmgk_plan *plan = NULL;
    clmgk_error error = {0};
    assert_int_equal(clmgk_context_create(s->context, s->device, NULL, &context, &error), CLMGK_OK);
    assert_int_equal(clmgk_plan_create(context, desc, NULL, &plan, &error), CLMGK_OK);
    const clmgk_buffer workspace = upload(s, clmgk_plan_workspace_size(plan) + 1, NULL); /* OpenCL has none of 0 */
    clmgk_plan_release(plan);
    clmgk_context_release(context);
    return workspace;
}

/* O and L of `forward`; all other outputs into `r`. */
static clmgk_host_args host_args(const scene *s, result *forward, result *r)
{
    clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
    args.q = s->q;
    args.k = s->k;
    args.v = s->v;
    args.prior = s->prior;
    args.lengths = s->lengths;
    args.o = forward->o;
    args.lse = forward->lse;
    args.grad_o = s->grad_o;
    args.grad_q = r->grad_q;
    args.grad_k = r->grad_k;
    args.grad_v = r->grad_v;
    args.grad_prior = r->grad_prior;
    args.grad_variance = r->grad_variance;
    args.responsibilities = r->responsibilities;
    args.counts = r->counts;
    args.new_prior = r->new_prior;
    args.nll = r->nll;
    return args;
}

/* What gradients are made from. */
static void make_forward(scene *s)
{
    clmgk_error error = {0};
    const clmgk_host_args args = host_args(s, &s->forward, &s->forward);
    assert_int_equal(clmgk_attention_forward_host(NULL, &s->desc, &args, &error), CLMGK_OK);
}

/* The tuned entry that runs find. It has the default parameters, which change no result. */
static void make_entry(scene *s)
{
    clmgk_context *context = NULL;
    clmgk_error error = {0};
    const clmgk_tuned tuned = {s->engine, "", 1.0, 1.0};
    assert_int_equal(clmgk_context_create(s->context, s->device, NULL, &context, &error), CLMGK_OK);
    assert_int_equal(clmgk_tuning_store(context, s->tuned_dir, &s->desc, CLMGK_TUNED_FORWARD, &tuned, &error),
                     CLMGK_OK);
    clmgk_context_release(context);
}

/* The loader silently ignores a layer that it cannot load. Then this test must fail. */
static fault_state *layer_state(void)
{
    const char *path = getenv("FAULT_LAYER");
    assert_non_null(path);
    void *layer = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(layer);
    void *symbol = dlsym(layer, "fault_layer_state");
    assert_non_null(symbol);
    fault_layer_state_fn *get = NULL;
    memcpy(&get, &symbol, sizeof(get)); /* C has no conversion from object to function pointers */
    return get();
}

static void clear_cache(scene *s)
{
    clmgk_error error = {0};
    assert_int_equal(clmgk_cache_clear(s->cache_dir, &error), CLMGK_OK);
}

static int set_up(void **state)
{
    scene *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    const char *folder = getenv("CLMGK_TEST_DIR");
    assert_non_null(folder);
    assert_true(snprintf(s->warm_dir, sizeof(s->warm_dir), "%s/faults-warm", folder) < (int)sizeof(s->warm_dir));
    assert_true(snprintf(s->cold_dir, sizeof(s->cold_dir), "%s/faults-cold", folder) < (int)sizeof(s->cold_dir));
    s->cache_dir = s->warm_dir;
    clear_cache(s);
    assert_true(snprintf(s->tuned_dir, sizeof(s->tuned_dir), "%s/faults-tuned", folder) < (int)sizeof(s->tuned_dir));
    (void)snprintf(s->tuning_dir, sizeof(s->tuning_dir), "%s/tuning", s->tuned_dir);
    assert_int_equal(setenv("CLMGK_CACHE_DIR", s->cache_dir, 1), 0);
    make_problem(s);
    make_device_objects(s);
    /* The library's own cache in force. PoCL has read this, and keeps programs too: what is built again is built fast.
     */
    assert_int_equal(setenv("POCL_KERNEL_CACHE", "0", 1), 0);
    make_outputs(s);
    make_linear(s);
    s->args.workspace = make_workspace(s, &s->training);
    s->of_linear.workspace = make_workspace(s, &s->linear);
    make_forward(s);
    make_entry(s);
    s->opencl = layer_state();
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    scene *s = *state;
    for (size_t i = 0; i < s->memory_count; i++)
        assert_int_equal(clReleaseMemObject(s->memory[i]), CL_SUCCESS);
    assert_int_equal(clReleaseCommandQueue(s->queue), CL_SUCCESS);
    assert_int_equal(clReleaseContext(s->context), CL_SUCCESS);
    assert_int_equal(atomic_load(&s->opencl->live), 0);
    free(s);
    return 0;
}

static void disarm(scene *s)
{
    fault_disarm(s->opencl);
    fault_disarm(&host_memory_faults);
    fault_disarm(&host_file_faults);
}

/* ---- the runs --------------------------------------------------------------------------------------------- */

static void *count_allocate(size_t bytes, void *user)
{
    scene *s = user;
    void *memory = malloc(bytes);
    if (memory != NULL)
        atomic_fetch_add(&s->live_memory, 1);
    return memory;
}

static void count_release(void *memory, void *user)
{
    scene *s = user;
    if (memory != NULL)
        atomic_fetch_sub(&s->live_memory, 1);
    free(memory);
}

/* Outputs number `first` to `end` - 1. */
static void read_result(scene *s, size_t first, size_t end, result *r)
{
    for (size_t i = first; i < end; i++)
        assert_int_equal(clEnqueueReadBuffer(s->queue, s->outputs[i].buffer->memory, CL_TRUE, 0, s->outputs[i].size,
                                             (unsigned char *)r + s->outputs[i].offset, 0, NULL, NULL),
                         CL_SUCCESS);
}

/* A successful call leaves an event for the caller in `event`, a failed one nothing. */
static clmgk_status keep_event(clmgk_status status, cl_event event, cl_event *last)
{
    assert_true((status == CLMGK_OK) == (event != NULL));
    if (event != NULL) {
        if (*last != NULL)
            assert_int_equal(clReleaseEvent(*last), CL_SUCCESS);
        *last = event;
    }
    return status;
}

static clmgk_status enqueue_forward(scene *s, clmgk_plan *plan, cl_event *last, clmgk_error *error)
{
    cl_event event = NULL;
    const clmgk_status status = clmgk_enqueue_forward(plan, s->queue, &s->args, 0, NULL, &event, error);
    return keep_event(status, event, last);
}

/* All passes, each waiting for the one before. */
static clmgk_status enqueue_all(scene *s, clmgk_plan *plan, cl_event *last, clmgk_error *error)
{
    clmgk_status status = enqueue_forward(s, plan, last, error);
    if (status != CLMGK_OK)
        return status;
    cl_event event = NULL;
    status = clmgk_enqueue_backward(plan, s->queue, &s->args, 1, last, &event, error);
    if (keep_event(status, event, last) != CLMGK_OK)
        return status;
    event = NULL;
    status = clmgk_enqueue_statistics(plan, s->queue, &s->args, 1, last, &event, error);
    if (keep_event(status, event, last) != CLMGK_OK)
        return status;
    event = NULL;
    status = clmgk_enqueue_combine(plan, s->queue, &s->combine, 1, last, &event, error);
    return keep_event(status, event, last);
}

/* Context, plan of `desc`, `enqueue`, release. */
static clmgk_status run_with(scene *s, const clmgk_attention_desc *desc, const char *tuning_dir,
                             clmgk_status (*enqueue)(scene *s, clmgk_plan *plan, cl_event *last, clmgk_error *error),
                             clmgk_error *error)
{
    clmgk_context *context = NULL;
    clmgk_plan *plan = NULL;
    cl_event last = NULL;
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    options.cache_dir = s->cache_dir;
    options.tuning_dir = tuning_dir;
    options.allocator = (clmgk_allocator){count_allocate, count_release, s};

    clmgk_status status = clmgk_context_create(s->context, s->device, &options, &context, error);
    if (status == CLMGK_OK)
        status = clmgk_plan_create(context, desc, NULL, &plan, error);
    if (status == CLMGK_OK)
        status = enqueue(s, plan, &last, error);
    disarm(s);
    assert_int_equal(clFinish(s->queue), CL_SUCCESS);
    if (last != NULL)
        assert_int_equal(clReleaseEvent(last), CL_SUCCESS);
    clmgk_plan_release(plan);
    clmgk_context_release(context);
    assert_int_equal(atomic_load(&s->live_memory), 0);
    return status;
}

/* O and L. */
static clmgk_status run_forward(scene *s, const char *tuning_dir, result *r, clmgk_error *error)
{
    *r = (result){.o = {0}};
    const clmgk_status status = run_with(s, &s->desc, tuning_dir, enqueue_forward, error);
    if (status == CLMGK_OK)
        read_result(s, 0, 2, r);
    return status;
}

static clmgk_status run_plan(scene *s, result *r, clmgk_error *error)
{
    return run_forward(s, NULL, r, error);
}

/* With a correct entry, whose programs may fail: then the plan does without the entry. */
static clmgk_status run_tuned(scene *s, result *r, clmgk_error *error)
{
    return run_forward(s, s->tuning_dir, r, error);
}

/* The layer below has sub-groups. If the probe fails, the plan does without them. */
static clmgk_status run_sub_groups(scene *s, result *r, clmgk_error *error)
{
    clmgk_context *context = NULL;
    clmgk_plan *plan = NULL;
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_plan_options of_plan = CLMGK_PLAN_OPTIONS_INIT;
    of_plan.engine = CLMGK_ENGINE_SIMT;
    options.cache_dir = s->cache_dir;
    options.allocator = (clmgk_allocator){count_allocate, count_release, s};
    *r = (result){.o = {0}};
    clmgk_status status = clmgk_context_create(s->context, s->device, &options, &context, error);
    if (status == CLMGK_OK)
        status = clmgk_plan_create(context, &s->desc, &of_plan, &plan, error);
    disarm(s);
    clmgk_plan_release(plan);
    clmgk_context_release(context);
    assert_int_equal(atomic_load(&s->live_memory), 0);
    return status;
}

static clmgk_status run_training(scene *s, result *r, clmgk_error *error)
{
    *r = (result){.o = {0}};
    const clmgk_status status = run_with(s, &s->training, NULL, enqueue_all, error);
    if (status == CLMGK_OK)
        read_result(s, 0, TRAINING_OUTPUTS, r);
    return status;
}

/* Both passes of the linear family. */
static clmgk_status enqueue_linear(scene *s, clmgk_plan *plan, cl_event *last, clmgk_error *error)
{
    cl_event event = NULL;
    clmgk_status status = clmgk_enqueue_forward(plan, s->queue, &s->of_linear, 0, NULL, &event, error);
    if (keep_event(status, event, last) != CLMGK_OK)
        return status;
    event = NULL;
    status = clmgk_enqueue_backward(plan, s->queue, &s->of_linear, 1, last, &event, error);
    return keep_event(status, event, last);
}

static clmgk_status run_linear(scene *s, result *r, clmgk_error *error)
{
    enum { O = 0, GRAD_Q = 2, GRAD_VARIANCE = 6 };
    *r = (result){.o = {0}};
    const clmgk_status status = run_with(s, &s->linear, NULL, enqueue_linear, error);
    if (status == CLMGK_OK) {
        read_result(s, O, O + 1, r);
        read_result(s, GRAD_Q, GRAD_VARIANCE, r);
        read_result(s, TRAINING_OUTPUTS, OUTPUTS, r);
    }
    return status;
}

/* Makes one of the calls on host arrays. If it fails, the result, which is filled with 0x5A before, must be unchanged.
 */
typedef clmgk_status host_call(const char *device, const clmgk_attention_desc *desc, const clmgk_host_args *args,
                               clmgk_error *error);
static clmgk_status call_host(scene *s, host_call *call, const clmgk_attention_desc *desc, result *forward, result *r,
                              clmgk_error *error)
{
    const clmgk_host_args args = host_args(s, forward, r);
    result untouched;
    memset(&untouched, 0x5A, sizeof(untouched));
    *r = untouched;
    const clmgk_status status = call(NULL, desc, &args, error);
    disarm(s);
    if (status != CLMGK_OK)
        assert_memory_equal(r, &untouched, sizeof(*r));
    return status;
}

static clmgk_status run_host(scene *s, result *r, clmgk_error *error)
{
    return call_host(s, clmgk_attention_forward_host, &s->desc, r, r, error);
}

static clmgk_status run_host_backward(scene *s, result *r, clmgk_error *error)
{
    return call_host(s, clmgk_attention_backward_host, &s->training, &s->forward, r, error);
}

static clmgk_status run_host_statistics(scene *s, result *r, clmgk_error *error)
{
    return call_host(s, clmgk_attention_statistics_host, &s->training, &s->forward, r, error);
}

/* Everything that works on the tuning cache. */
static clmgk_status use_tuning(scene *s, clmgk_context *context, clmgk_error *error)
{
    const clmgk_tuned tuned = {s->engine, "", 1.0, 1.0};
    char text[4096];
    size_t length = 0;
    clmgk_tuning_entry entry = CLMGK_TUNING_ENTRY_INIT;
    size_t count = 0;
    clmgk_tuning_info info = CLMGK_TUNING_INFO_INIT;
    clmgk_status status = clmgk_tuning_store(context, s->tuned_dir, &s->training, CLMGK_TUNED_BACKWARD, &tuned, error);
    if (status == CLMGK_OK)
        status = clmgk_tuning_export(s->tuned_dir, s->device, text, sizeof(text), &length, error);
    if (status == CLMGK_OK)
        status = clmgk_tuning_import(s->tuned_dir, text, length < sizeof(text) ? length : sizeof(text), NULL, error);
    if (status == CLMGK_OK)
        status = clmgk_tuning_list(s->tuned_dir, s->device, &entry, 1, &count, error);
    if (status == CLMGK_OK)
        status = clmgk_tuning_get_info(s->tuned_dir, &info, error);
    return status;
}

static clmgk_status run_tuning(scene *s, result *r, clmgk_error *error)
{
    clmgk_context *context = NULL;
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_tuning_info info = CLMGK_TUNING_INFO_INIT;
    options.cache_dir = s->tuned_dir;
    options.allocator = (clmgk_allocator){count_allocate, count_release, s};
    *r = (result){.o = {0}};
    clmgk_status status = clmgk_context_create(s->context, s->device, &options, &context, error);
    if (status == CLMGK_OK)
        status = use_tuning(s, context, error);
    disarm(s);
    clmgk_context_release(context);
    assert_int_equal(atomic_load(&s->live_memory), 0);
    /* what was stored before is not lost */
    assert_int_equal(clmgk_tuning_get_info(s->tuned_dir, &info, NULL), CLMGK_OK);
    assert_true(info.entries >= 1 && info.damaged == 0);
    return status;
}

/* ---- failing one point after another ---------------------------------------------------------------------- */

typedef struct attack {
    const char *name;
    run_fn *run;
    bool warm; /* the program is in the cache on disk */
    fault_state *faults;
    int code;
    clmgk_status expected; /* the status of a failure; CLMGK_OK: any */
    result right;
} attack;

static unsigned temporary_files(const scene *s)
{
    char path[PATH_SIZE + 16];
    (void)snprintf(path, sizeof(path), "%s/programs", s->cache_dir);
    DIR *folder = opendir(path);
    unsigned count = 0;
    if (folder == NULL)
        return 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += strncmp(entry->d_name, ".clmgk-tmp-", strlen(".clmgk-tmp-")) == 0;
    assert_int_equal(closedir(folder), 0);
    return count;
}

static void run_clean(scene *s, const attack *a, result *r)
{
    clmgk_error error = {0};
    assert_int_equal(a->run(s, r, &error), CLMGK_OK);
}

static void check_failure(const attack *a, clmgk_status status, const clmgk_error *error)
{
    assert_int_equal(error->status, status);
    assert_true(error->message[0] != '\0');
    assert_int_not_equal(status, CLMGK_ERROR_INTERNAL);
    if (a->expected != CLMGK_OK)
        assert_int_equal(status, a->expected);
    if (error->opencl_code != 0)
        assert_int_equal(error->opencl_code, a->code);
}

static void fail_at(scene *s, const attack *a, unsigned long point, bool sticky)
{
    const long live = atomic_load(&s->opencl->live);
    clmgk_error error = {0};
    result r;
    if (!a->warm)
        clear_cache(s);
    const unsigned temporary = temporary_files(s);
    fault_arm(a->faults, point, sticky, a->code);
    const clmgk_status status = a->run(s, &r, &error);
    const char *failed = atomic_load(&a->faults->failed);
    print_message("  %s, %s %lu%s (%s): %s\n", a->name, a->faults->kind, point, sticky ? "+" : "",
                  failed != NULL ? failed : "not reached", status == CLMGK_OK ? "done without" : error.message);
    assert_non_null(failed);
    assert_int_equal(atomic_load(&s->opencl->live), live);
    if (status == CLMGK_OK)
        assert_memory_equal(&r, &a->right, sizeof(r));
    else
        check_failure(a, status, &error);
    if (!sticky && strcmp(failed, "unlinkat") != 0)
        assert_int_equal(temporary_files(s), temporary);
    if (a->faults == &host_file_faults) {
        run_clean(s, a, &r);
        assert_memory_equal(&r, &a->right, sizeof(r));
    }
}

static void fail_everywhere(scene *s, attack *a)
{
    const char *const text = getenv("CLMGK_TEST_FULL");
    const bool full = text != NULL && strcmp(text, "1") == 0;
    s->cache_dir = a->warm ? s->warm_dir : s->cold_dir;
    run_clean(s, a, &a->right);
    if (!a->warm)
        clear_cache(s);
    clmgk_error error = {0};
    result r;
    fault_arm(a->faults, 0, false, 0);
    assert_int_equal(a->run(s, &r, &error), CLMGK_OK);
    const unsigned long points = atomic_load(&a->faults->calls);
    assert_true(points > 0);
    assert_memory_equal(&r, &a->right, sizeof(r));
    print_message("%s: %lu %s\n", a->name, points, a->faults->kind);
    const unsigned long step = fault_step();
    for (unsigned long point = 1 + points % step; point <= points; point += step) {
        fail_at(s, a, point, false);
        if (full)
            fail_at(s, a, point, true);
    }
}

typedef struct run_kind {
    const char *name;
    run_fn *run;
    bool warm;
} run_kind;

static const run_kind runs[] = {
    {"plan, empty cache", run_plan, false},
    {"training, from cache", run_training, true},
    {"linear family, from cache", run_linear, true},
    {"plan, from cache", run_plan, true},
    {"host call", run_host, true},
    {"host call, backward", run_host_backward, true},
    {"host call, statistics", run_host_statistics, true},
    {"plan, tuned", run_tuned, true},
    {"sub-groups", run_sub_groups, true},
    {"tuning", run_tuning, true},
};

enum { RUNS = sizeof(runs) / sizeof(runs[0]) };

/* In the first `count` runs. */
static void fail_kind(scene *s, fault_state *faults, int code, clmgk_status expected, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        attack a = {runs[i].name, runs[i].run, runs[i].warm, faults, code, expected, {.o = {0}}};
        fail_everywhere(s, &a);
    }
}

static void test_opencl_calls(void **state)
{
    scene *s = *state;
    fail_kind(s, s->opencl, CL_OUT_OF_RESOURCES, CLMGK_OK, RUNS);
}

/* The code on which the library asks for the compiler's log: the first two runs build from sources and from binaries.
 */
static void test_failed_builds(void **state)
{
    scene *s = *state;
    fail_kind(s, s->opencl, CL_BUILD_PROGRAM_FAILURE, CLMGK_OK, 2);
}

static void test_allocations(void **state)
{
    fail_kind(*state, &host_memory_faults, ENOMEM, CLMGK_ERROR_OUT_OF_HOST_MEMORY, RUNS);
}

static void test_file_operations(void **state)
{
    scene *s = *state;
    fail_kind(s, &host_file_faults, EIO, CLMGK_OK, RUNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opencl_calls),
        cmocka_unit_test(test_failed_builds),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_file_operations),
    };
    return cmocka_run_group_tests_name("faults", tests, set_up, tear_down);
}
