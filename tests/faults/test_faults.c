/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole run (context, plan, enqueue, release; the call on host arrays) with every OpenCL call, every allocation and
 * every file operation made to fail, one after another. Each time: a status with a reason, or the right result where
 * the library could do without; no output written by a failed host call; every object and all memory released; and
 * the next run is as if nothing had been.
 * A first run counts the points, so the number of runs is known beforehand. CLMGK_TEST_FULL=1 also lets all calls
 * from a point on fail.
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

typedef struct result {
    float o[Q_COUNT];
    float lse[HEADS * LENGTH];
} result;

typedef struct scene {
    float q[Q_COUNT], k[K_COUNT], v[V_COUNT], prior[COMPONENTS];
    int32_t lengths[1];
    clmgk_attention_desc desc;
    char cache_dir[PATH_SIZE];
    fault_state *opencl;
    atomic_long live_memory; /* of the context's allocator */

    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_mem memory[7];
    clmgk_attention_args args;
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

static clmgk_buffer upload(scene *s, size_t slot, size_t bytes, const void *data)
{
    cl_int code = CL_SUCCESS;
    const cl_mem_flags flags = data != NULL ? CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR : CL_MEM_READ_WRITE;
    /* OpenCL's parameter is not const, though it only reads. */
    s->memory[slot] = clCreateBuffer(s->context, flags, bytes, (void *)(uintptr_t)data, &code);
    assert_int_equal(code, CL_SUCCESS);
    return (clmgk_buffer){.memory = s->memory[slot]};
}

static void make_problem(scene *s)
{
    fill(s->q, Q_COUNT, 1);
    fill(s->k, K_COUNT, 2);
    fill(s->v, V_COUNT, 3);
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
}

static void make_device_objects(scene *s)
{
    clmgk_device_info info;
    clmgk_error error = {0};
    cl_int code = CL_SUCCESS;
    assert_int_equal(clmgk_select_device(NULL, &info, &error), CLMGK_OK);
    s->device = info.device_id;
    s->context = clCreateContext(NULL, 1, &s->device, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    s->queue = clCreateCommandQueue(s->context, s->device, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    s->args = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    s->args.q = upload(s, 0, sizeof(s->q), s->q);
    s->args.k = upload(s, 1, sizeof(s->k), s->k);
    s->args.v = upload(s, 2, sizeof(s->v), s->v);
    s->args.prior = upload(s, 3, sizeof(s->prior), s->prior);
    s->args.lengths = upload(s, 4, sizeof(s->lengths), s->lengths);
    s->args.o = upload(s, 5, sizeof(((result *)NULL)->o), NULL);
    s->args.lse = upload(s, 6, sizeof(((result *)NULL)->lse), NULL);
}

/* The layer is ignored silently where it cannot be loaded: then this test must fail, not pass. */
static fault_state *layer_state(void)
{
    const char *path = getenv("OPENCL_LAYERS");
    assert_non_null(path);
    void *layer = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(layer);
    void *symbol = dlsym(layer, "fault_layer_state");
    assert_non_null(symbol);
    fault_layer_state_fn *get = NULL;
    memcpy(&get, &symbol, sizeof(get)); /* C has no conversion from object to function pointers */
    return get();
}

static int set_up(void **state)
{
    scene *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    const char *folder = getenv("CLMGK_TEST_DIR");
    assert_non_null(folder);
    assert_true(snprintf(s->cache_dir, sizeof(s->cache_dir), "%s/faults-cache", folder) < (int)sizeof(s->cache_dir));
    assert_int_equal(setenv("CLMGK_CACHE_DIR", s->cache_dir, 1), 0);
    make_problem(s);
    make_device_objects(s);
    s->opencl = layer_state();
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    scene *s = *state;
    for (size_t i = 0; i < sizeof(s->memory) / sizeof(s->memory[0]); i++)
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

static void read_result(scene *s, result *r)
{
    assert_int_equal(clEnqueueReadBuffer(s->queue, s->args.o.memory, CL_TRUE, 0, sizeof(r->o), r->o, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_int_equal(
        clEnqueueReadBuffer(s->queue, s->args.lse.memory, CL_TRUE, 0, sizeof(r->lse), r->lse, 0, NULL, NULL),
        CL_SUCCESS);
}

static clmgk_status run_plan(scene *s, result *r, clmgk_error *error)
{
    clmgk_context *context = NULL;
    clmgk_plan *plan = NULL;
    cl_event event = NULL;
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    options.cache_dir = s->cache_dir;
    options.allocator = (clmgk_allocator){count_allocate, count_release, s};

    clmgk_status status = clmgk_context_create(s->context, s->device, &options, &context, error);
    if (status == CLMGK_OK)
        status = clmgk_plan_create(context, &s->desc, NULL, &plan, error);
    if (status == CLMGK_OK && clmgk_plan_workspace_size(plan) > 0)
        fail_msg("this problem is expected to need no workspace");
    if (status == CLMGK_OK)
        status = clmgk_enqueue_forward(plan, s->queue, &s->args, 0, NULL, &event, error);
    disarm(s);
    assert_int_equal(clFinish(s->queue), CL_SUCCESS);
    if (status == CLMGK_OK) {
        assert_int_equal(clReleaseEvent(event), CL_SUCCESS);
        read_result(s, r);
    } else {
        assert_null(event);
    }
    clmgk_plan_release(plan);
    clmgk_context_release(context);
    assert_int_equal(atomic_load(&s->live_memory), 0);
    return status;
}

static clmgk_status run_host(scene *s, result *r, clmgk_error *error)
{
    result untouched;
    memset(r, 0x5A, sizeof(*r));
    untouched = *r;
    clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
    args.q = s->q;
    args.k = s->k;
    args.v = s->v;
    args.prior = s->prior;
    args.lengths = s->lengths;
    args.o = r->o;
    args.lse = r->lse;
    const clmgk_status status = clmgk_attention_forward_host(NULL, &s->desc, &args, error);
    disarm(s);
    if (status != CLMGK_OK)
        assert_memory_equal(r, &untouched, sizeof(*r));
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

static void clear_cache(scene *s)
{
    clmgk_error error = {0};
    assert_int_equal(clmgk_cache_clear(s->cache_dir, &error), CLMGK_OK);
}

static unsigned temporary_files(const scene *s)
{
    char path[PATH_SIZE + 16];
    (void)snprintf(path, sizeof(path), "%s/programs", s->cache_dir);
    DIR *folder = opendir(path);
    unsigned count = 0;
    if (folder == NULL)
        return 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += strncmp(entry->d_name, "tmp-", 4) == 0;
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
    clear_cache(s);
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
    for (unsigned long point = 1; point <= points; point++) {
        fail_at(s, a, point, false);
        if (full)
            fail_at(s, a, point, true);
    }
}

static const struct {
    const char *name;
    run_fn *run;
    bool warm;
} runs[] = {
    {"plan, empty cache", run_plan, false}, {"plan, from cache", run_plan, true}, {"host call", run_host, false}};

static void fail_kind(scene *s, fault_state *faults, int code, clmgk_status expected)
{
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        attack a = {runs[i].name, runs[i].run, runs[i].warm, faults, code, expected, {{0}, {0}}};
        fail_everywhere(s, &a);
    }
}

static void test_opencl_calls(void **state)
{
    scene *s = *state;
    fail_kind(s, s->opencl, CL_OUT_OF_RESOURCES, CLMGK_OK);
}

/* The code on which the library asks for the compiler's log. */
static void test_failed_builds(void **state)
{
    scene *s = *state;
    fail_kind(s, s->opencl, CL_BUILD_PROGRAM_FAILURE, CLMGK_OK);
}

static void test_allocations(void **state)
{
    fail_kind(*state, &host_memory_faults, ENOMEM, CLMGK_ERROR_OUT_OF_HOST_MEMORY);
}

static void test_file_operations(void **state)
{
    scene *s = *state;
    fail_kind(s, &host_file_faults, EIO, CLMGK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_opencl_calls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failed_builds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_allocations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_operations, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
