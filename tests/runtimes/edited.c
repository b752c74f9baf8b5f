/* SPDX-License-Identifier: Apache-2.0 */
/* Edited programs, from the driver's binary to a plan's results, with a layer that stands in for NVIDIA's driver: the
 * whole way, a failure of each step, and what the next process does. */
#include "harness/harness.h"
#include "harness/scratch.h"
#include "nvidia_layer.h"

#include "device/probe.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct scene {
    char folder[SCRATCH_PATH]; /* of the cache */
    nvidia_state *driver;
    cl_context cl;
    cl_device_id device;
} scene;

static int set_up(void **state)
{
    scene *const self = calloc(1, sizeof(*self));
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    const char *const path = getenv("OPENCL_LAYERS");
    nvidia_layer_state_fn *get = NULL;
    cl_int code = CL_SUCCESS;
    assert_non_null(self);
    assert_non_null(path);
    th_expect_ok(clmgk_select_device(NULL, &info, &th_error));
    void *const layer = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(layer);
    void *const symbol = dlsym(layer, "nvidia_layer_state");
    assert_non_null(symbol);
    memcpy(&get, &symbol, sizeof(get)); /* C has no conversion from object to function pointers */
    self->driver = get();
    *self->driver = (nvidia_state){.fault = NVIDIA_NO_FAULT};
    self->device = info.device_id;
    self->cl = clCreateContext(NULL, 1, &self->device, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    scratch_create(self->folder);
    *state = self;
    return 0;
}

static int tear_down(void **state)
{
    const scene *const self = *state;
    assert_int_equal(clReleaseContext(self->cl), CL_SUCCESS);
    return scratch_tear_down(state);
}

#define EDITED_TEST(name) TH_TEST_OF(name, scene *self, .set_up = set_up, .tear_down = tear_down)

/* A context, as a new process would have it. Counts begin anew. */
static clmgk_context *open_context(const scene *self, const char *folder)
{
    clmgk_context *const context = th_open_context(self->cl, self->device, folder);
    self->driver->compiled = self->driver->loaded = 0;
    return context;
}

static clmgk_attention_desc desc_of(uint32_t gradients)
{
    return (clmgk_attention_desc){.struct_size = sizeof(clmgk_attention_desc),
                                  .dtype = CLMGK_DTYPE_BF16,
                                  .batch = 2,
                                  .heads = 4,
                                  .length = 300,
                                  .length_k = 400,
                                  .head_size = 16,
                                  .use_lengths = 1,
                                  .gradients = gradients};
}

enum { TRAINING = CLMGK_GRADIENT_V }; /* fewer kernels */

/* What a plan has to be. */
typedef struct outcome {
    uint32_t gradients;
    int unit;          /* of all passes; 0: the engine is another one */
    const char *words; /* of its reason */
} outcome;

static void expect_plan_of(clmgk_context *context, const clmgk_attention_desc *desc, const outcome *expected)
{
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan *plan = NULL;
    char option[32];
    (void)snprintf(option, sizeof(option), "MATRIX_UNIT=%d", expected->unit);
    th_expect_ok(clmgk_plan_create(context, desc, NULL, &plan, &th_error));
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    if (strstr(info.engine_reason, expected->words) == NULL)
        fail_msg("\"%s\", expected \"%s\"", info.engine_reason, expected->words);
    assert_true((info.engine == CLMGK_ENGINE_MATRIX) == (expected->unit > 0));
    assert_true((strstr(info.options, option) != NULL) == (expected->unit > 0));
    if (expected->gradients != 0)
        assert_true((strstr(info.backward_options, option) != NULL) == (expected->unit > 0));
    clmgk_plan_release(plan);
}

static void expect_plan(clmgk_context *context, const outcome *expected)
{
    const clmgk_attention_desc desc = desc_of(expected->gradients);
    expect_plan_of(context, &desc, expected);
}

static void expect_in_new_context(const scene *self, const char *folder, const outcome *expected)
{
    clmgk_context *const context = open_context(self, folder);
    expect_plan(context, expected);
    clmgk_context_release(context);
}

static size_t entries(const scene *self)
{
    char programs[SCRATCH_PATH];
    scratch_join(programs, self->folder, "programs");
    return scratch_count(programs, ".bin", NULL);
}

static const outcome forward_right = {0, 2, "its products run on matrix units; matrix units: wgmma"};
static const outcome training = {TRAINING, 2, "its products run on matrix units; matrix units: wgmma"};

/* The first process compiles a program and compares it with the other engine's; the second loads the former alone. */
EDITED_TEST(verified_programs_are_kept)
{
    enum { OTHERS = 1 };
    expect_in_new_context(self, self->folder, &forward_right);
    assert_true(self->driver->compiled > OTHERS && self->driver->loaded > 0);
    expect_in_new_context(self, self->folder, &forward_right);
    assert_int_equal(self->driver->compiled, 0);
    assert_int_equal(self->driver->loaded, entries(self) - OTHERS);
}

/* The programs of both passes are compared. */
EDITED_TEST(backward_passes_have_the_same_unit)
{
    expect_in_new_context(self, self->folder, &training);
}

EDITED_TEST(another_driver)
{
    expect_in_new_context(self, self->folder, &forward_right);
    const int compiled = self->driver->compiled;
    self->driver->version = "another";
    expect_in_new_context(self, self->folder, &forward_right);
    assert_int_equal(self->driver->compiled, compiled);
}

/* Changes a byte of an entry. */
static void damage(const char *path)
{
    size_t length;
    char *const bytes = scratch_read(path, &length);
    bytes[length / 2] ^= 1;
    scratch_write(path, bytes, length);
    free(bytes);
}

EDITED_TEST(damaged_entries_are_built_again)
{
    char programs[SCRATCH_PATH];
    DIR *folder;
    expect_in_new_context(self, self->folder, &forward_right);
    const int compiled = self->driver->compiled;
    scratch_join(programs, self->folder, "programs");
    folder = opendir(programs);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[2 * SCRATCH_PATH];
        (void)snprintf(path, sizeof(path), "%s/%s", programs, entry->d_name);
        if (strstr(entry->d_name, ".bin") != NULL)
            damage(path);
    }
    closedir(folder);
    expect_in_new_context(self, self->folder, &forward_right);
    assert_int_equal(self->driver->compiled, compiled);
}

/* A folder of programs made ahead has verified programs: of the plan's one program and the two probes, the probes alone
 * are compiled. */
EDITED_TEST(shipped_programs)
{
    const clmgk_attention_desc desc = desc_of(0);
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = open_context(self, "");
    clmgk_plan *plan = NULL;
    size_t count = 0;
    th_expect_ok(clmgk_plan_create(context, &desc, NULL, &plan, &th_error));
    th_expect_ok(clmgk_context_save_programs(context, self->folder, &count, &th_error));
    assert_int_equal(count, 1);
    clmgk_plan_release(plan);
    clmgk_context_release(context);
    options.program_dir = self->folder;
    options.cache_dir = "";
    th_expect_ok(clmgk_context_create(self->cl, self->device, &options, &context, &th_error));
    self->driver->compiled = self->driver->loaded = 0;
    expect_plan(context, &forward_right);
    assert_int_equal(self->driver->compiled, 2);
    assert_int_equal(self->driver->loaded, 2);
    clmgk_context_release(context);
}

EDITED_TEST(a_cache_that_cannot_be_written)
{
    const clmgk_attention_desc desc = desc_of(0);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan *plan = NULL;
    char file[SCRATCH_PATH];
    scratch_join(file, self->folder, "file");
    scratch_write(file, "", 0);
    clmgk_context *const context = open_context(self, file);
    th_expect_ok(clmgk_plan_create(context, &desc, NULL, &plan, &th_error));
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    assert_non_null(strstr(info.options, "MATRIX_UNIT=2"));
    assert_non_null(strstr(info.cache_note, "/file"));
    clmgk_plan_release(plan);
    clmgk_context_release(context);
}

/* ---- failures ------------------------------------------------------------------------------------------------- */

typedef struct failure {
    nvidia_fault fault;
    const char *of;
    outcome expected;
} failure;

#define REFUSED "; matrix units: mma.sync: wgmma: "
#define PROBE   "void group_probe("

/* Where the unit's probe fails at any step, plans have the older unit. */
EDITED_TEST(probes_that_fail)
{
    static const failure failures[] = {
        {NVIDIA_COMPILE_REFUSED, PROBE, {0, 1, REFUSED "kernel file \"engine/group_probe.cl\": "}},
        {NVIDIA_NO_PTX, PROBE, {0, 1, REFUSED "the driver's binary is not PTX: "}},
        {NVIDIA_OTHER_TARGET, PROBE, {0, 1, REFUSED "the driver's PTX is for sm_100"}},
        {NVIDIA_NO_COMMENTS, PROBE, {0, 1, REFUSED "the compiler drops comments"}},
        {NVIDIA_NO_BINARY, PROBE, {0, 1, REFUSED "clGetProgramInfo: "}},
        {NVIDIA_LOAD_REFUSED,
         PROBE,
         {0, 1, REFUSED "the driver refuses the edited program: clCreateProgramWithBinary"}},
        {NVIDIA_BUILD_REFUSED, PROBE, {0, 1, REFUSED "the driver refuses the edited program: kernel file"}},
        {NVIDIA_WRONG, PROBE, {0, 1, REFUSED "it gives wrong numbers here"}},
        {NVIDIA_COMPILE_REFUSED, "void unit_probe(", {0, 0, "; no matrix units: mma.sync: kernel file"}},
    };
    for (size_t n = 0; n < TH_COUNT(failures); n++) {
        self->driver->fault = failures[n].fault;
        self->driver->of = failures[n].of;
        expect_in_new_context(self, "", &failures[n].expected);
    }
    self->driver->fault = NVIDIA_NO_FAULT;
    self->driver->no_mma = 1;
    expect_in_new_context(self, "", &(outcome){0, 0, "; no matrix units: mma.sync: it gives wrong numbers here"});
}

static clmgk_status get_probe(clmgk_context *context, mgk_program **program)
{
    enum { WGMMA = 2 };
    char options[MGK_UNIT_OPTIONS];
    clmgk_program_origin origin;
    double ms;
    const char *const file = mgk_matrix_unit_probe(&context->facts, WGMMA, options, sizeof(options));
    return mgk_program_get(context, file, options, NULL, program, &origin, &ms, &th_error);
}

/* Two threads hold a program, and the first finds out that it is wrong: the second neither uses nor saves it. */
EDITED_TEST(verdict_of_another_thread)
{
    clmgk_context *context = open_context(self, self->folder);
    mgk_program *programs[2] = {NULL};
    for (size_t n = 0; n < TH_COUNT(programs); n++)
        th_expect_ok(get_probe(context, &programs[n]));
    assert_ptr_equal(programs[0], programs[1]);
    mgk_program_judge(programs[0], "one is two");
    mgk_program_save(programs[1]);
    th_expect_error(mgk_program_check(programs[1], &th_error), CLMGK_ERROR_UNSUPPORTED, "one is two");
    for (size_t n = 0; n < TH_COUNT(programs); n++)
        mgk_program_release(programs[n]);
    clmgk_context_release(context);
    context = open_context(self, self->folder);
    th_expect_error(get_probe(context, &programs[0]), CLMGK_ERROR_UNSUPPORTED, "one is two");
    clmgk_context_release(context);
}

/* A plan's program fails after the probes did not. `folder`: of the cache, for verdicts. */
static void expect_failure(const scene *self, const failure *one, const char *folder)
{
    const bool judged = one->fault == NVIDIA_WRONG;
    clmgk_context *const context = open_context(self, judged ? folder : "");
    self->driver->fault = one->fault;
    self->driver->of = one->of;
    expect_plan(context, &one->expected);
    self->driver->compiled = self->driver->loaded = 0;
    expect_plan(context, &one->expected);
    assert_true(!judged || self->driver->compiled == 0);
    clmgk_context_release(context);
    if (!judged)
        return;
    expect_in_new_context(self, folder, &one->expected);
    assert_int_equal(self->driver->compiled, 0);
}

static bool is_full(void)
{
    const char *const full = getenv("CLMGK_TEST_FULL");
    return full != NULL && strcmp(full, "1") == 0;
}

/* A trial of texts has captured arrays of its own; texts that give no number leave a program unverified. In the quick
 * tier test_cuda's texts alone. */
EDITED_TEST(texts)
{
    if (!is_full())
        skip();
    static const struct {
        const char *score;
        outcome expected;
    } cases[] = {
        {"x * s + t[h, j]", {0, 2, "matrix units: wgmma"}},
        {"log(s - 1e30)", {0, 1, REFUSED "its programs could not be verified: the texts give only NaN in o"}},
    };
    clmgk_context *const context = open_context(self, self->folder);
    clmgk_attention_desc desc = desc_of(0);
    desc.mask_mod = "doc[b, i] == doc[b, j] || j == 0";
    desc.captures[0] = (clmgk_capture){.name = "t", .axes = 2, .shape = {4, 400}, .strided = 1, .strides = {3, 12}};
    desc.captures[1] = (clmgk_capture){.name = "doc", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {2, 400}};
    desc.numbers[0] = "x";
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        desc.score_mod = cases[n].score;
        expect_plan_of(context, &desc, &cases[n].expected);
    }
    clmgk_context_release(context);
}

/* Where a plan's program fails at any step, all passes have the older unit, or another engine. What is wrong is found
 * out once: then neither this process nor the next builds it again. The quick tier has three of the failures. */
EDITED_TEST(programs_that_fail)
{
    static const char forward[] = "KERNEL(mixture_forward)", backward[] = "KERNEL(mixture_backward)";
    const failure failures[] = {
        {NVIDIA_NO_PTX, forward, {0, 1, REFUSED "the driver's binary is not PTX: "}},
        {NVIDIA_NO_COMMENTS, forward, {0, 2, "; matrix units: wgmma"}}, /* it has none, and is right */
        {NVIDIA_LOAD_REFUSED, forward, {0, 1, REFUSED "the driver refuses the edited program: "}},
        {NVIDIA_BUILD_REFUSED, backward, {TRAINING, 1, REFUSED "the driver refuses the edited program: "}},
        {NVIDIA_WRONG, forward, {0, 1, REFUSED "the forward pass gives wrong numbers here: "}},
        {NVIDIA_WRONG, backward, {TRAINING, 1, REFUSED "the backward pass gives wrong numbers here: grad_"}},
        {NVIDIA_COMPILE_REFUSED, "MGK_MATRIX_PRODUCTS_CLH", {0, 0, "; no matrix units: wgmma: kernel file"}},
    };
    for (size_t n = 0; n < TH_COUNT(failures); n++) {
        char folder[SCRATCH_PATH];
        scratch_join(folder, self->folder, failures[n].of == backward ? "backward" : "forward");
        if (is_full() || failures[n].fault == NVIDIA_LOAD_REFUSED || failures[n].of == backward)
            expect_failure(self, &failures[n], folder);
    }
}

/* A product's program fails: the plan has the older unit, and its note says why. */
static void expect_products_that_fail(const scene *self, clmgk_dtype dtype)
{
    static const char program[] = "KERNEL_ATTRIBUTES void gemm_fragments";
    static const struct {
        nvidia_fault fault;
        const char *words; /* of the note; NULL: it has the newer unit */
    } cases[] = {{NVIDIA_NO_FAULT, NULL},
                 {NVIDIA_LOAD_REFUSED, "no wgmma: the driver refuses the edited program"},
                 {NVIDIA_WRONG, "no wgmma: it gives wrong numbers here"}};
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    desc.dtype = dtype;
    desc.m = desc.n = 64;
    desc.k = 80; /* enough for slices of f32 */
    options.provider = "matrix";
    options.parameters = "warps=4,row-tiles=1,column-tiles=8,splits=1";
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_context *const context = open_context(self, "");
        clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
        clmgk_gemm_plan *plan = NULL;
        self->driver->fault = cases[n].fault;
        self->driver->of = program;
        th_expect_ok(clmgk_gemm_plan_create(context, &desc, &options, &plan, &th_error));
        th_expect_ok(clmgk_gemm_plan_get_info(plan, &info, &th_error));
        if (cases[n].words != NULL && strstr(info.note, cases[n].words) == NULL)
            fail_msg("\"%s\", expected \"%s\"", info.note, cases[n].words);
        assert_true(cases[n].words != NULL || strstr(info.note, "no wgmma") == NULL);
        assert_true((strstr(info.parameters, "unit=2") != NULL) == (cases[n].words == NULL));
        clmgk_gemm_plan_release(plan);
        clmgk_context_release(context);
    }
}

/* In the quick tier bf16 alone: the emulation of slices takes seconds. */
EDITED_TEST(products_that_fail)
{
    expect_products_that_fail(self, CLMGK_DTYPE_BF16);
    if (is_full())
        expect_products_that_fail(self, CLMGK_DTYPE_F32);
}

/* ---- products that do not run ------------------------------------------------------------------------------------ */

/* A plan for a product, as a caller without wishes makes it, and the words that its note must have (NULL: none). */
static void expect_product(const scene *self, const char *provider, const char *parameters, const char *expected,
                           const char *words)
{
    clmgk_context *const context = open_context(self, "");
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    clmgk_gemm_options options = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_gemm_info info = CLMGK_GEMM_INFO_INIT;
    clmgk_gemm_plan *plan = NULL;
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.m = desc.n = 64;
    desc.k = 80;
    options.provider = provider;
    options.parameters = parameters;
    th_expect_ok(clmgk_gemm_plan_create(context, &desc, &options, &plan, &th_error));
    th_expect_ok(clmgk_gemm_plan_get_info(plan, &info, &th_error));
    if (strstr(info.parameters, expected) == NULL || (words != NULL && strstr(info.note, words) == NULL))
        fail_msg("%s: \"%s\", \"%s\"", info.provider, info.parameters, info.note);
    assert_true(words != NULL || strstr(info.note, "no larger block") == NULL);
    assert_true(provider == NULL || strcmp(info.provider, provider) == 0);
    assert_true(provider != NULL || strcmp(info.provider, "matrix") != 0);
    clmgk_gemm_plan_release(plan);
    clmgk_context_release(context);
}

/* Local memory has just room for three stages of a block. The driver states that the kernel needs more, and runs it or
 * not: then the plan has two stages. */
EDITED_TEST(products_that_need_all_local_memory)
{
    enum { ROWS_AND_COLUMNS = 64 + 64, DEPTH = 32, STAGES = 3, BYTES = 2 };
    static const char parameters[] = "warps=4,row-tiles=1,column-tiles=8,depth=32,splits=1";
    self->driver->local = (cl_ulong)ROWS_AND_COLUMNS * DEPTH * STAGES * BYTES;
    expect_product(self, "matrix", parameters, "stages=3,unit=2", NULL);
    self->driver->local_is_shared = 1;
    expect_product(self, "matrix", parameters, "stages=2,unit=2", "no larger block: kernel gemm_fragments: ");
}

/* No kernel of the provider runs: a plan takes another one. */
EDITED_TEST(products_that_do_not_run)
{
    self->driver->fault = NVIDIA_LAUNCH_REFUSED;
    self->driver->of = "KERNEL_ATTRIBUTES void gemm_fragments";
    expect_product(self, NULL, NULL, "", "no matrix units: clEnqueueNDRangeKernel: CL_OUT_OF_RESOURCES");
}

/* ---- verdicts on right programs --------------------------------------------------------------------------------- */

#define OF_ALL (CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V)

/* Right programs of all families pass: a plan that is refused here would lose speed without need. In the quick tier
 * softmax alone, above. One batch and few heads, because the emulation of a trial's products takes most of the time. */
EDITED_TEST(right_programs_pass)
{
    static const clmgk_attention_desc descs[] = {
        {.variant = CLMGK_VARIANT_SOFTMAX, .dtype = CLMGK_DTYPE_F16, .head_size = 64, .causal = 1},
        {.variant = CLMGK_VARIANT_SOFTMAX, .dtype = CLMGK_DTYPE_F16, .head_size = 32, .gradients = OF_ALL},
        {.variant = CLMGK_VARIANT_GAUSSIAN, .dtype = CLMGK_DTYPE_F16, .head_size = 16, .use_sinks = 1},
        {.variant = CLMGK_VARIANT_MGK, .dtype = CLMGK_DTYPE_BF16, .head_size = 48, .components = 3},
        {.variant = CLMGK_VARIANT_MGK,
         .dtype = CLMGK_DTYPE_F16,
         .head_size = 16,
         .components = 2,
         .gradients = OF_ALL | CLMGK_GRADIENT_PRIOR | CLMGK_GRADIENT_VARIANCE,
         .statistics = CLMGK_STATISTIC_ALL},
        {.variant = CLMGK_VARIANT_SMGK, .dtype = CLMGK_DTYPE_F16, .head_size = 16, .components = 2},
        {.variant = CLMGK_VARIANT_SMGK,
         .dtype = CLMGK_DTYPE_BF16,
         .head_size = 16,
         .components = 2,
         .gradients = OF_ALL | CLMGK_GRADIENT_SHIFT},
        {.variant = CLMGK_VARIANT_HARD_FISH, .dtype = CLMGK_DTYPE_BF16, .head_size = 32, .components = 2},
        {.variant = CLMGK_VARIANT_FISH, .dtype = CLMGK_DTYPE_BF16, .head_size = 16, .components = 2},
        {.variant = CLMGK_VARIANT_HARD_MISH, .dtype = CLMGK_DTYPE_F16, .head_size = 16, .components = 2},
    };
    if (!is_full())
        skip();
    clmgk_context *const context = open_context(self, "");
    for (size_t n = 0; n < TH_COUNT(descs); n++) {
        clmgk_attention_desc desc = descs[n];
        clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
        clmgk_plan *plan = NULL;
        desc.struct_size = sizeof(desc);
        desc.batch = 1;
        desc.heads = 2;
        desc.length = 150;
        desc.length_k = 200;
        th_expect_ok(clmgk_plan_create(context, &desc, NULL, &plan, &th_error));
        th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
        if (strstr(info.engine_reason, "; matrix units: wgmma") == NULL)
            print_error("plan %zu: \"%s\"\n", n, info.engine_reason);
        assert_non_null(strstr(info.engine_reason, "; matrix units: wgmma"));
        clmgk_plan_release(plan);
    }
    clmgk_context_release(context);
}
