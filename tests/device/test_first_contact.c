/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first run on a new device: a compiler that fails without a message or with an unusual code, a compiler that fuses
 * products and sums, kernels that need more than was planned, and the lane engine as the last resort on a GPU.
 */
#include "attention/plan.h"
#include "device/device.h"
#include "engine/shuffles.clh"
#include "harness/facts.h"
#include "harness/harness.h"
#include "harness/scratch.h"

#include <CL/cl_ext.h>

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

static bool is_full;      /* the file system */
static cl_int build_code; /* what clBuildProgram answers, if not success */
static const char *build_log = "";
static bool knows_registers = true;  /* the compiler takes MGK_MOST_REGISTERS and MGK_REGISTERS_LIMIT */
static const char *build_fails_with; /* an option; NULL: none */
static const char *build_without;    /* an option that the compiler takes, but PoCL does not know; NULL: none */
static size_t group_limit;           /* of every kernel; 0: what the driver says */
static cl_ulong local_memory[2];     /* of the next two kernels, likewise */
static const char *extensions;       /* of the device; NULL: what the driver says */
static const char *shuffle;          /* what its compiler takes for an extension's shuffle; NULL: what it has */
static cl_uint dimensions;           /* of its work-items; 0: what the driver says */
static size_t probes;                /* programs that shuffle and were given to the compiler */

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): names that the linker's --wrap gives */
int __real_statvfs(const char *path, struct statvfs *facts);
int __wrap_statvfs(const char *path, struct statvfs *facts);
cl_int __real_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void(CL_CALLBACK *notify)(cl_program, void *), void *user);
cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void(CL_CALLBACK *notify)(cl_program, void *), void *user);
cl_int __wrap_clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info name, size_t size,
                                    void *value, size_t *size_out);

cl_int __real_clGetDeviceInfo(cl_device_id device, cl_device_info name, size_t size, void *value, size_t *size_out);
cl_int __wrap_clGetDeviceInfo(cl_device_id device, cl_device_info name, size_t size, void *value, size_t *size_out);
cl_int __real_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info name,
                                       size_t size, void *value, size_t *size_out);
cl_int __wrap_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info name,
                                       size_t size, void *value, size_t *size_out);

int __wrap_statvfs(const char *path, struct statvfs *facts)
{
    const int result = __real_statvfs(path, facts);
    if (is_full)
        facts->f_bfree = facts->f_bavail = 1;
    return result;
}

cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void(CL_CALLBACK *notify)(cl_program, void *), void *user)
{
    assert_false(is_full);
    char all[2048], known[1024];
    (void)snprintf(known, sizeof(known), "%s", options);
    char *const place = build_without ? strstr(known, build_without) : NULL;
    if (place) {
        memset(place, ' ', strlen(build_without));
        options = known;
    }
    if (build_code != CL_SUCCESS)
        return build_code;
    if (build_fails_with && strstr(options, build_fails_with))
        return CL_BUILD_PROGRAM_FAILURE;
    if (!knows_registers && (strstr(options, MGK_MOST_REGISTERS) || strstr(options, MGK_REGISTERS_LIMIT)))
        return CL_INVALID_BUILD_OPTIONS;
    const bool stands_in = shuffle && (strstr(options, "-DSHUFFLE=1 ") || strstr(options, "-DSHUFFLE=2 "));
    probes += strstr(options, "-DSHUFFLE") && !strstr(options, "-DSUB_GROUP_SIZE");
    (void)snprintf(all, sizeof(all), "%s%s%s", options, stands_in ? " -Dsub_group_shuffle_xor(x,m)=" : "",
                   stands_in ? shuffle : "");
    return __real_clBuildProgram(program, count, devices, all, notify, user);
}

cl_int __wrap_clGetDeviceInfo(cl_device_id device, cl_device_info name, size_t size, void *value, size_t *size_out)
{
    if (name == CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS && dimensions != 0) {
        *(cl_uint *)value = dimensions;
        return CL_SUCCESS;
    }
    if (name != CL_DEVICE_EXTENSIONS || !extensions)
        return __real_clGetDeviceInfo(device, name, size, value, size_out);
    if (size_out)
        *size_out = strlen(extensions) + 1;
    if (value)
        memcpy(value, extensions, strlen(extensions) + 1);
    return CL_SUCCESS;
}

cl_int __wrap_clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info name, size_t size,
                                    void *value, size_t *size_out)
{
    (void)program, (void)device;
    assert_int_equal(name, CL_PROGRAM_BUILD_LOG);
    if (size_out)
        *size_out = strlen(build_log) + 1;
    if (value)
        memcpy(value, build_log, size < strlen(build_log) + 1 ? size : strlen(build_log) + 1);
    return CL_SUCCESS;
}

cl_int __wrap_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info name,
                                       size_t size, void *value, size_t *size_out)
{
    const cl_int code = __real_clGetKernelWorkGroupInfo(kernel, device, name, size, value, size_out);
    if (name == CL_KERNEL_WORK_GROUP_SIZE && group_limit != 0)
        *(size_t *)value = group_limit;
    if (name == CL_KERNEL_LOCAL_MEM_SIZE && local_memory[0] != 0) {
        *(cl_ulong *)value = local_memory[0];
        local_memory[0] = local_memory[1];
        local_memory[1] = 0;
    }
    return code;
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

TH_TEST(failed_builds)
{
    static const struct {
        cl_int code;
        const char *log, *expected;
        clmgk_status status;
    } builds[] = {
        {CL_BUILD_PROGRAM_FAILURE, "ptxas fatal: unresolved\n", "ptxas fatal: unresolved", CLMGK_ERROR_COMPILE},
        {CL_INVALID_BINARY, "ptxas error: too much shared data\n", "too much shared data", CLMGK_ERROR_COMPILE},
        {CL_BUILD_PROGRAM_FAILURE, "", "no build log", CLMGK_ERROR_COMPILE},
        {CL_INVALID_BINARY, " \n", "no build log", CLMGK_ERROR_COMPILE},
        {CL_OUT_OF_RESOURCES, "", "clBuildProgram: CL_OUT_OF_RESOURCES", CLMGK_ERROR_OUT_OF_DEVICE_MEMORY},
    };
    const clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 6);
    for (size_t n = 0; n < TH_COUNT(builds); n++) {
        clmgk_plan *plan = NULL;
        clmgk_error error = {0};
        build_code = builds[n].code;
        build_log = builds[n].log;
        const clmgk_plan_options options = th_options(session, 0);
        assert_int_equal(clmgk_plan_create(session->context, &desc, &options, &plan, &error), builds[n].status);
        build_code = CL_SUCCESS;
        assert_null(plan);
        assert_int_equal(error.opencl_code, builds[n].code);
        if (!strstr(error.message, builds[n].expected))
            fail_msg("%s", error.message);
    }
}

/* Nothing is given to PoCL's compiler, which could end the process. */
TH_TEST(full_folders)
{
    const clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 6);
    const clmgk_plan_options options = th_options(session, 0);
    clmgk_gemm_desc product = CLMGK_GEMM_DESC_INIT;
    clmgk_gemm_options of_clblast = CLMGK_GEMM_OPTIONS_INIT;
    clmgk_plan *plan = NULL;
    clmgk_gemm_plan *gemm = NULL;
    product.m = product.n = product.k = 16;
    of_clblast.provider = "clblast";
    is_full = true;
    th_expect_error(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error), CLMGK_ERROR_IO,
                    "PoCL has no space");
    th_expect_error(clmgk_gemm_plan_create(session->context, &product, &of_clblast, &gemm, &th_error), CLMGK_ERROR_IO,
                    "POCL_CACHE_DIR or HOME names another");
    is_full = false;
}

TH_TEST(compilers_without_the_options_for_registers)
{
    static const char *const given[] = {MGK_MOST_REGISTERS, MGK_REGISTERS_LIMIT "128"};
    for (size_t n = 0; n < TH_COUNT(given); n++) {
        char options[128];
        mgk_program *program = NULL;
        clmgk_program_origin origin;
        double compile_ms;
        (void)snprintf(options, sizeof(options), "-cl-std=CL1.2 %s -DENGINE=lane -DGROUPED=1", given[n]);
        knows_registers = false;
        th_expect_ok(mgk_program_get(session->context, "attention/reduce.cl", options, NULL, &program, &origin,
                                     &compile_ms, &th_error));
        knows_registers = true;
        assert_string_equal(program->options, options);
        assert_string_equal(program->refused, given[n]);
        mgk_program_release(program);
    }
}

/* If the compiler refuses an option, the plan tells so, and how its kernel fits the device. */
TH_TEST(plans_tell_a_refused_option)
{
    const clmgk_context_options no_files = {.struct_size = sizeof(no_files), .cache_dir = ""};
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 6);
    clmgk_context *context = NULL;
    desc.head_size = desc.value_size = 16;
    th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, &no_files, &context, &th_error));
    context->facts.info.device_class = CLMGK_DEVICE_GPU;
    context->facts.simd_vectors = false;
    context->sub_group.known = true; /* none */
    (void)snprintf(context->facts.info.vendor, sizeof(context->facts.info.vendor), "Intel");
    for (int refuses = 0; refuses < 2; refuses++) {
        clmgk_plan *plan = NULL;
        clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
        knows_registers = refuses == 0;
        build_without = refuses == 0 ? MGK_MOST_REGISTERS : NULL;
        th_expect_ok(clmgk_plan_create(context, &desc, NULL, &plan, &th_error));
        knows_registers = true;
        build_without = NULL;
        th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
        assert_non_null(strstr(info.engine_reason, " work-groups of 128 in 1 waves, 1 on a compute unit"));
        const char *const told = strstr(info.engine_reason, "; the compiler refused " MGK_MOST_REGISTERS ": built");
        assert_true((told != NULL) == (refuses == 1));
        clmgk_plan_release(plan);
        mgk_programs_clear(context);
    }
    clmgk_context_release(context);
}

/* A context for an NVIDIA device that should have matrix units; its only kernel is a probe of them with this body. */
static clmgk_context *nvidia_context(const th_session *session, const char *folder, const char *body)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    char path[SCRATCH_PATH], text[1024];
    const int length =
        snprintf(text, sizeof(text), "__kernel void unit_probe(__global float *products)\n{\n%s\n}\n", body);
    scratch_join(path, folder, "engine/unit_probe.cl");
    scratch_write(path, text, (size_t)length);
    options.cache_dir = "";
    options.kernel_dir = folder;
    th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, &options, &context, &th_error));
    context->facts.runtime = MGK_RUNTIME_NVIDIA;
    context->facts.info.device_class = CLMGK_DEVICE_GPU;
    context->facts.simd_vectors = false;
    (void)snprintf(context->facts.info.architecture, sizeof(context->facts.info.architecture), "sm_80");
    return context;
}

/* A unit that multiplies rightly is used; of another one the plan tells. */
TH_TEST(matrix_units)
{
#define SUMS                                                                                                           \
    "int i = get_local_id(0); for (int n = i; n < 1536; n += 32) { int row = n / 16 % 16, column = n % 16, sum = 0;"   \
    "for (int d = 0; d < 16; d++) { int r = n / 256 % 2 ? d : column, c = n / 256 % 2 ? column : d;"                   \
    "sum += ((7 * row + 3 * d) % 13 - 6) * ((5 * r + 11 * c) % 17 - 8); } products[n] = sum; }"
    static const struct {
        const char *body;
        clmgk_engine engine;
        const char *reason;
    } cases[] = {
        {SUMS, CLMGK_ENGINE_MATRIX, "; matrix units: mma.sync"},
        {SUMS "if (i == 0) products[768] += 1;", CLMGK_ENGINE_SIMT,
         "; no matrix units: mma.sync: it gives wrong numbers here"},
        {"unknown(products);", CLMGK_ENGINE_SIMT, "; no matrix units: mma.sync: kernel file"},
    };
#undef SUMS
    static const struct {
        clmgk_dtype q;
        clmgk_storage k;
        const char *reason;
    } types[] = {
        {CLMGK_DTYPE_F32, CLMGK_STORAGE_BF16, "; no matrix units: its backward pass needs one type for Q and K"},
        {CLMGK_DTYPE_F32, CLMGK_STORAGE_AS_Q, NULL},
        {CLMGK_DTYPE_BF16, CLMGK_STORAGE_AS_Q, NULL}};
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 16, 6);
    char folder[SCRATCH_PATH];
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    scratch_create(folder);
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        clmgk_context *const context = nvidia_context(session, folder, cases[n].body);
        clmgk_plan plan = {0};
        for (size_t i = 0; i < TH_COUNT(types); i++) {
            const bool served = types[i].reason == NULL;
            desc.dtype = types[i].q;
            desc.dtype_k = types[i].k;
            mgk_plan_begin(&plan, context, &desc);
            th_expect_ok(mgk_plan_choose(&plan, &options, &th_error));
            assert_true(context->matrix_unit[MATRIX_MMA].known == served); /* no kernels, no probe */
            const clmgk_engine engine = served ? cases[n].engine : CLMGK_ENGINE_SIMT;
            assert_int_equal(plan.pass[CLMGK_PASS_FORWARD]->engine, engine);
            assert_int_equal(plan.pass[CLMGK_PASS_BACKWARD]->engine, engine);
            assert_non_null(strstr(plan.engine_reason, served ? cases[n].reason : types[i].reason));
            mgk_plan_free_passes(&plan);
        }
        clmgk_context_release(context);
    }
    scratch_remove(folder);
}

/* The probe is right, but a kernel does not compile: both passes take another engine, unless the caller names this one.
 */
TH_TEST(kernels_for_matrix_units_that_do_not_compile)
{
    const clmgk_context_options no_files = {.struct_size = sizeof(no_files), .cache_dir = ""};
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 16, 6);
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_context *context = NULL;
    clmgk_plan *plan = NULL;
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.gradients = CLMGK_GRADIENT_V;
    th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, &no_files, &context, &th_error));
    context->facts.info.device_class = CLMGK_DEVICE_GPU;
    context->facts.simd_vectors = false;
    context->sub_group.known = true; /* none */
    context->facts.runtime = MGK_RUNTIME_NVIDIA;
    (void)snprintf(context->facts.info.architecture, sizeof(context->facts.info.architecture), "sm_80");
    context->matrix_unit[MATRIX_MMA] = (mgk_matrix_unit){.known = true, .unit = MATRIX_MMA};
    build_fails_with = "-DMATRIX_UNIT=1";
    build_log = "ptxas fatal: unknown instruction\n";
    th_expect_ok(clmgk_plan_create(context, &desc, NULL, &plan, &th_error));
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    assert_int_equal(info.engine, CLMGK_ENGINE_SIMT);
    assert_int_equal(info.backward_engine, CLMGK_ENGINE_SIMT);
    assert_non_null(strstr(info.engine_reason, "; no matrix units: "));
    assert_non_null(strstr(info.engine_reason, "ptxas fatal: unknown instruction"));
    clmgk_plan_release(plan);
    options.engine = CLMGK_ENGINE_MATRIX;
    th_expect_error(clmgk_plan_create(context, &desc, &options, &plan, &th_error), CLMGK_ERROR_COMPILE,
                    "unknown instruction");
    build_fails_with = NULL;
    clmgk_context_release(context);
}

/* Whether the options leave all operations as the text has them. */
static void expect_exact(const char *options)
{
    static const char *const forbidden[] = {"-cl-mad-enable", "-cl-fast-relaxed-math", "-cl-unsafe-math-optimizations",
                                            "-cl-finite-math-only"};
    for (size_t n = 0; n < TH_COUNT(forbidden); n++)
        if (strstr(options, forbidden[n]))
            fail_msg("%s", options);
}

/* Makes a plan. Its parameters, or the error, must contain a text, and the reason for its engine must end with another
 * (NULL: any). */
static clmgk_status plan_with(th_session *session, clmgk_engine engine, const char *parameters, const char *expected,
                              const char *reason)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 6);
    desc.head_size = desc.value_size = 16; /* work-groups of narrow heads are small */
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan *plan = NULL;
    clmgk_error error = {0};
    options.engine = engine;
    options.parameters = parameters;
    const clmgk_status status = clmgk_plan_create(session->context, &desc, &options, &plan, &error);
    if (status == CLMGK_OK)
        assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
    const char *const text = status == CLMGK_OK ? info.parameters : error.message;
    if (!strstr(text, expected))
        fail_msg("\"%s\", expected \"%s\"", text, expected);
    if (reason && !strstr(info.engine_reason, reason))
        fail_msg("\"%s\", expected \"%s\"", info.engine_reason, reason);
    clmgk_plan_release(plan);
    return status;
}

/* Plans take smaller work-groups, until none fits. */
TH_TEST(kernels_that_do_not_fit)
{
    const cl_ulong beyond = session->info.local_memory_bytes + 1;

    group_limit = 64;
    assert_int_equal(plan_with(session, CLMGK_ENGINE_SIMT, "", "row-threads=4,",
                               "; smaller work-groups: kernel mixture_forward: a work-group of 128 work-items: the "
                               "device takes 64 for this kernel"),
                     CLMGK_OK);
    assert_int_equal(
        plan_with(session, CLMGK_ENGINE_SIMT, "row-threads=8", "a work-group of 128, the device takes 64", NULL),
        CLMGK_ERROR_UNSUPPORTED);
    group_limit = 0;

    local_memory[0] = local_memory[1] = beyond;
    assert_int_equal(
        plan_with(session, CLMGK_ENGINE_SIMT, "row-threads=4", "keys=1,", " bytes of local memory, the device has "),
        CLMGK_OK);
    local_memory[0] = beyond;
    assert_int_equal(plan_with(session, CLMGK_ENGINE_LANE, "", "bytes of local memory, the device has", NULL),
                     CLMGK_ERROR_UNSUPPORTED);
}

static clmgk_status plan_pass(clmgk_device_class device_class, clmgk_engine engine, clmgk_variant variant,
                              clmgk_pass pass, clmgk_error *error)
{
    mgk_device_facts facts = th_facts(device_class);
    facts.runtime = MGK_RUNTIME_OTHER;
    facts.info.compute_units = 64;
    facts.info.local_memory_bytes = UINT64_C(48) << 10;
    clmgk_attention_desc desc = th_small_desc(variant, 70, 130);
    desc.head_size = desc.value_size = 64;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    desc.combine = 1;
    assert_int_equal(clmgk_attention_validate(&desc, &desc, error), CLMGK_OK);
    mgk_pass_plan plan = {0};
    const mgk_pass_request request = {.desc = &desc, .limits = &desc, .facts = &facts, .engine = engine, .pass = pass};
    const clmgk_status status = mgk_family_plan(mgk_family_of(variant), &request, &plan, error);
    for (size_t n = 0; n < plan.steps.count; n++) {
        expect_exact(plan.steps.step[n].options.data);
        mgk_text_free(&plan.steps.step[n].options);
    }
    return status;
}

/* The text of a kernel's file, which may need files that only some engines have. */
static mgk_text text_of(const char *file)
{
    static const char *const engines[] = {"-DENGINE=lane", "-DENGINE=matrix"};
    clmgk_error error = {0};
    for (size_t n = 0; n < TH_COUNT(engines); n++) {
        mgk_text text = {0};
        if (mgk_source_expand(NULL, file, engines[n], NULL, &text, &error) == CLMGK_OK)
            return text;
        mgk_text_free(&text);
    }
    fail_msg("%s: %s", file, error.message);
    return (mgk_text){0};
}

/* If one pass fused products and sums and the other did not, their scores would differ. */
TH_TEST(nothing_is_fused)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_HARD_FISH};
    for (size_t n = 0; n < TH_COUNT(variants); n++)
        for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass < CLMGK_PASSES; pass++)
            if (pass != CLMGK_PASS_STATISTICS && pass != CLMGK_PASS_MASK)
                assert_int_equal(plan_pass(CLMGK_DEVICE_GPU, CLMGK_ENGINE_SIMT, variants[n], pass, NULL), CLMGK_OK);

    size_t kernels = 0;
    for (const mgk_embedded_file *file = mgk_embedded_files; file->name; file++) {
        const char *const end = strrchr(file->name, '.');
        if (!end || strcmp(end, ".cl") != 0)
            continue;
        mgk_text source = text_of(file->name);
        if (!strstr(source.data, "\n#pragma OPENCL FP_CONTRACT OFF\n"))
            fail_msg("%s lets a compiler fuse", file->name);
        mgk_text_free(&source);
        kernels++;
    }
    assert_true(kernels > 10);
}

/* On a CPU hundreds of kilobytes of private memory for each work-item are a stack; on a GPU the kernel would hang. */
TH_TEST(lane_engine_on_a_gpu)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_HARD_FISH};
    for (size_t n = 0; n < TH_COUNT(variants); n++) {
        for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass <= CLMGK_PASS_BACKWARD; pass++) {
            clmgk_error error = {0};
            th_expect_ok(plan_pass(CLMGK_DEVICE_CPU, CLMGK_ENGINE_LANE, variants[n], pass, &th_error));
            assert_int_equal(plan_pass(CLMGK_DEVICE_GPU, CLMGK_ENGINE_LANE, variants[n], pass, &error),
                             CLMGK_ERROR_UNSUPPORTED);
            assert_non_null(strstr(error.message, "private memory, expected at most 16384"));
        }
    }
}

/* Options of kernels on a GPU whose maker has instructions that need no extension; the driver says how many work-items
 * can exchange numbers. Empty: no such GPU. */
static void find_own_shuffle(const th_session *session, char *options, size_t size)
{
    enum { MOST_NEIGHBOURS = 32 }; /* no more are used */
    static const struct {
        mgk_gpu gpu;
        int shuffle;
        cl_device_info width;
    } makers[] = {{MGK_GPU_NVIDIA, SHUFFLE_PTX, CL_DEVICE_WARP_SIZE_NV},
                  {MGK_GPU_AMD, SHUFFLE_AMD, CL_DEVICE_WAVEFRONT_WIDTH_AMD}};
    options[0] = '\0';
    for (size_t n = 0; n < TH_COUNT(makers); n++) {
        cl_uint width = 0;
        if (mgk_gpu_of(&session->context->facts) != makers[n].gpu)
            continue;
        assert_int_equal(clGetDeviceInfo(session->info.device_id, makers[n].width, sizeof(width), &width, NULL),
                         CL_SUCCESS);
        (void)snprintf(options, size, "-DSHUFFLE=%d -DSUB_GROUP_SIZE=%d ", makers[n].shuffle,
                       width < MOST_NEIGHBOURS ? (int)width : MOST_NEIGHBOURS);
    }
}

/* A device that has sub-groups, or claims to: the plan's options tell what its kernels use. Skipped on devices with
 * sub-groups, whose compiler has declarations that clash with the stand-in's. */
TH_TEST(sub_groups)
{
    char maker[64];
    char own[16384] = "";
    (void)clGetDeviceInfo(session->info.device_id, CL_DEVICE_EXTENSIONS, sizeof(own) - 1, own, NULL);
    if (strstr(own, "subgroup"))
        skip();
#define REQUIRED "cl_intel_required_subgroup_size"
#define KHR      "cl_khr_subgroup_shuffle"
#define OWN      "(get_local_id(0)^(m))"
    static const struct {
        const char *extensions, *shuffle, *expected; /* NULL: the maker's instructions, else local memory */
        size_t probes;                               /* of extensions */
    } devices[] = {
        {"", NULL, NULL, 0},
        {"cl_khr_fp64 " KHR "_relative " REQUIRED, OWN, NULL, 0},
        {KHR, OWN, NULL, 0},                       /* a sub-group of any size */
        {KHR " " REQUIRED, "unknown(x)", NULL, 1}, /* the compiler does not know it */
        {"cl_khr_fp64 " REQUIRED " cl_intel_subgroups " KHR, "(x)", NULL, 2},
        {REQUIRED " " KHR " ", "((m)<16?(float)" OWN ":-1.0f)", "-DSHUFFLE=1 -DSUB_GROUP_SIZE=16 ", 1},
        {REQUIRED " " KHR, "(float)" OWN, "-DSHUFFLE=1 -DSUB_GROUP_SIZE=32 ", 1}, /* no more are used */
        {REQUIRED " " KHR, "(get_local_id(0)<5?-1.0f:(float)" OWN ")", NULL, 1},  /* some do not get their numbers */
    };
    const clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 6);
    const clmgk_context_options no_files = {.struct_size = sizeof(no_files), .cache_dir = ""};
    find_own_shuffle(session, maker, sizeof(maker));
    for (size_t n = 0; n < TH_COUNT(devices); n++) {
        if (devices[n].expected && maker[0])
            continue; /* whether a GPU's compiler takes the stand-in for a shuffle says nothing about the library */
        const char *const expected = devices[n].expected ? devices[n].expected : maker[0] ? maker : NULL;
        clmgk_context *context = NULL;
        clmgk_plan *plan = NULL;
        clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        options.engine = CLMGK_ENGINE_SIMT;
        extensions = devices[n].extensions;
        shuffle = devices[n].shuffle;
        probes = 0;
        th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, &no_files, &context, &th_error));
        for (int again = 0; again < 2; again++) {
            th_expect_ok(clmgk_plan_create(context, &desc, &options, &plan, &th_error));
            th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
            if ((strstr(info.options, expected ? expected : "-DSHUFFLE") != NULL) != (expected != NULL))
                fail_msg("device %zu: %s", n, info.options);
            clmgk_plan_release(plan);
            assert_int_equal(probes, devices[n].probes + (maker[0] != '\0')); /* once for a context */
        }
        clmgk_context_release(context);
    }
    extensions = shuffle = NULL;
}

TH_TEST(a_device_of_many_dimensions)
{
    clmgk_context *context = NULL;
    dimensions = 17;
    const clmgk_status status = clmgk_context_create(session->cl, session->info.device_id, NULL, &context, &th_error);
    dimensions = 0;
    th_expect_error(status, CLMGK_ERROR_UNSUPPORTED, "CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS is 17, expected 3");
    assert_null(context);
}
