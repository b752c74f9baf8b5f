/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of a device: its properties, texts that its compiler accepts, and what these compute. */
#include "probe.h"

#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 64, ROOM = 65536 };

/* ---- what the device states --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    cl_device_info parameter;
    enum { TEXT, UINT, ULONG, SIZE, SIZES } type;
} statements[] = {
    {"name", CL_DEVICE_NAME, TEXT},
    {"vendor", CL_DEVICE_VENDOR, TEXT},
    {"driver", CL_DRIVER_VERSION, TEXT},
    {"version", CL_DEVICE_VERSION, TEXT},
    {"c_version", CL_DEVICE_OPENCL_C_VERSION, TEXT},
    {"extensions", CL_DEVICE_EXTENSIONS, TEXT},
    {"built_in_kernels", CL_DEVICE_BUILT_IN_KERNELS, TEXT},
    {"compute_units", CL_DEVICE_MAX_COMPUTE_UNITS, UINT},
    {"clock_mhz", CL_DEVICE_MAX_CLOCK_FREQUENCY, UINT},
    {"address_bits", CL_DEVICE_ADDRESS_BITS, UINT},
    {"base_alignment_bits", CL_DEVICE_MEM_BASE_ADDR_ALIGN, UINT},
    {"cache_line_bytes", CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE, UINT},
    {"preferred_floats", CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, UINT},
    {"native_floats", CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, UINT},
    {"native_halves", CL_DEVICE_NATIVE_VECTOR_WIDTH_HALF, UINT},
    {"unified_memory", CL_DEVICE_HOST_UNIFIED_MEMORY, UINT},
    {"cache_bytes", CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, ULONG},
    {"global_memory_bytes", CL_DEVICE_GLOBAL_MEM_SIZE, ULONG},
    {"max_allocation_bytes", CL_DEVICE_MAX_MEM_ALLOC_SIZE, ULONG},
    {"local_memory_bytes", CL_DEVICE_LOCAL_MEM_SIZE, ULONG},
    {"constant_bytes", CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, ULONG},
    {"single_fp_config", CL_DEVICE_SINGLE_FP_CONFIG, ULONG},
    {"double_fp_config", CL_DEVICE_DOUBLE_FP_CONFIG, ULONG},
    {"queue_properties", CL_DEVICE_QUEUE_PROPERTIES, ULONG},
    {"max_work_group", CL_DEVICE_MAX_WORK_GROUP_SIZE, SIZE},
    {"max_argument_bytes", CL_DEVICE_MAX_PARAMETER_SIZE, SIZE},
    {"printf_bytes", CL_DEVICE_PRINTF_BUFFER_SIZE, SIZE},
    {"timer_ns", CL_DEVICE_PROFILING_TIMER_RESOLUTION, SIZE},
    {"max_work_items", CL_DEVICE_MAX_WORK_ITEM_SIZES, SIZES},
    {"nv_capability_major", 0x4000, UINT},
    {"nv_capability_minor", 0x4001, UINT},
    {"nv_registers_per_block", 0x4002, UINT},
    {"nv_warp_size", 0x4003, UINT},
    {"amd_wavefront", 0x4043, UINT},
};

/* null: the device knows no such value. */
static json_t *ask(cl_device_id device, size_t n)
{
    union {
        char text[16384];
        cl_uint one;
        cl_ulong large;
        size_t sizes[16];
    } value = {.text = ""};
    size_t size = 0;
    if (clGetDeviceInfo(device, statements[n].parameter, sizeof(value), &value, &size) != CL_SUCCESS)
        return json_null();
    json_t *list;
    switch (statements[n].type) {
    case TEXT:
        return tool_json_text(value.text);
    case UINT:
        return json_integer((json_int_t)value.one);
    case ULONG:
        return json_integer((json_int_t)value.large);
    case SIZE:
        return json_integer((json_int_t)value.sizes[0]);
    default:
        list = json_array();
        for (size_t i = 0; i < size / sizeof(value.sizes[0]); i++)
            tool_json_append(&list, json_integer((json_int_t)value.sizes[i]));
        return list;
    }
}

static json_t *platform_text(cl_platform_id platform, cl_platform_info parameter)
{
    char text[16384] = "";
    const cl_int code = clGetPlatformInfo(platform, parameter, sizeof(text), text, NULL);
    return code == CL_SUCCESS ? tool_json_text(text) : json_null();
}

static json_t *describe_device(const clmgk_device_info *info)
{
    static const char *const classes[] = {
        [CLMGK_DEVICE_CPU] = "cpu", [CLMGK_DEVICE_GPU] = "gpu", [CLMGK_DEVICE_OTHER] = "other"};
    json_t *answer =
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:o}", "case", "device", "class", classes[info->device_class],
                  "architecture", info->architecture, "platform", platform_text(info->platform_id, CL_PLATFORM_NAME),
                  "platform_version", platform_text(info->platform_id, CL_PLATFORM_VERSION), "platform_extensions",
                  platform_text(info->platform_id, CL_PLATFORM_EXTENSIONS));
    for (size_t n = 0; answer && n < TOOL_COUNT(statements); n++)
        json_object_set_new(answer, statements[n].name, ask(info->device_id, n));
    return answer;
}

/* ---- what its compiler takes -------------------------------------------------------------------------------- */

/* A kernel in which each work-item writes its `x`, which begins as its number, to an element of the output. */
typedef struct probe_trial {
    const char *name;
    const char *before, *body; /* the kernel's text */
    cl_uint (*expected)(cl_uint item);
    size_t room; /* bytes of the argument in local memory */
    bool nvidia; /* text for NVIDIA's compiler only; other compilers may end the process */
} probe_trial;

static cl_uint same(cl_uint item)
{
    return item;
}

static cl_uint lane(cl_uint item)
{
    return item % 32;
}

static cl_uint neighbour(cl_uint item)
{
    return item ^ 1;
}

static cl_uint one(cl_uint item)
{
    (void)item;
    return 1;
}

static cl_uint square(cl_uint item)
{
    return (item % 32) * (item % 32);
}

static cl_uint power(cl_uint item)
{
    return 1U << item % 8;
}

#define HALF          "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
#define DOUBLE        "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
#define SUBGROUPS     "#pragma OPENCL EXTENSION cl_khr_subgroups : enable\n"
#define SQUARE        "half h = (half)(x % 32); h = h * h; x = (uint)h;"
#define THROUGH_ARRAY "__local uint own[12288]; own[12287 - x] = x; barrier(CLK_LOCAL_MEM_FENCE); x = own[12287 - x];"
#define THROUGH_ROOM  "room[last - x] = x; barrier(CLK_LOCAL_MEM_FENCE); x = room[last - x];"
/* a * a needs one bit more than a float has, so the difference is 0 if the product is rounded first. */
#define ROUNDED "float a = 1.0f + ldexp(1.0f, -12 - (int)(last == 0)), c = -1.0f - ldexp(1.0f, -11);"

static const probe_trial trials[] = {
    {"plain", "", "", same, 64, false},
    {"asm", "", "asm volatile(\"\" : \"+r\"(x));", same, 64, false},
    {"__asm__", "", "__asm__ volatile(\"\" : \"+r\"(x));", same, 64, false},
    {"ptx lane", "", "__asm__ volatile(\"mov.u32 %0, %%laneid;\" : \"=r\"(x));", lane, 64, true},
    {"ptx shuffle", "", "__asm__ volatile(\"shfl.sync.bfly.b32 %0, %1, 1, 31, -1;\" : \"=r\"(x) : \"r\"(x));",
     neighbour, 64, true},
    /* The address of local memory that PTX takes, as a pointer's own bits. */
    {"ptx local address", "",
     "ulong shared; __asm__ volatile(\"cvta.to.shared.u64 %0, %1;\" : \"=l\"(shared) : \"l\"(room));"
     " x = (uint)shared == (uint)(size_t)room;",
     one, 64, true},
    {"null buffer", "", "x += nothing == 0 ? 0 : nothing[x];", same, 64, false},
    {"local 64 KiB", "", THROUGH_ROOM, same, ROOM, false},
    {"local as stated", "", THROUGH_ROOM, same, 0, false},
    {"local array of 48 KiB", "", THROUGH_ARRAY, same, 64, false},
    {"half", HALF, SQUARE, square, 64, false},
    {"half without extension", "", SQUARE, square, 64, false},
    {"half maths", HALF, "x = (uint)exp2((half)(x % 8));", power, 64, false},
    {"double", DOUBLE, "double d = x; x = (uint)(d * 0.5 + d * 0.5);", same, 64, false},
    {"sub-group size", SUBGROUPS, "x = get_sub_group_size() > 1;", one, 64, false},
    {"sub-group shuffle", SUBGROUPS, "x = sub_group_shuffle_xor(x, 1);", neighbour, 64, false},
    {"intel sub-group shuffle", "", "x = intel_sub_group_shuffle_xor(x, 1);", neighbour, 64, false},
    {"no contraction", "#pragma OPENCL FP_CONTRACT OFF\n", ROUNDED " x = a * a + c == 0.0f;", one, 64, false},
    {"fma", "", ROUNDED " x = fma(a, a, c) > 0.0f;", one, 64, false},
};

static tool_exit run_kernel(const probe_context *probe, cl_kernel kernel, size_t room, cl_uint *values, cl_int *code,
                            tool_error *error)
{
    const size_t items = ITEMS;
    const cl_mem nothing = NULL;
    const cl_uint last = (cl_uint)(room / sizeof(cl_uint)) - 1;
    cl_mem out = NULL;
    TOOL_TRY(tool_make_buffer(&probe->device, ITEMS * sizeof(*values), NULL, &out, error));
    *code = clSetKernelArg(kernel, 0, sizeof(out), &out);
    if (*code == CL_SUCCESS)
        *code = clSetKernelArg(kernel, 1, sizeof(cl_mem), &nothing);
    if (*code == CL_SUCCESS)
        *code = clSetKernelArg(kernel, 2, room, NULL);
    if (*code == CL_SUCCESS)
        *code = clSetKernelArg(kernel, 3, sizeof(last), &last);
    if (*code == CL_SUCCESS)
        *code = clEnqueueNDRangeKernel(probe->device.queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL);
    if (*code == CL_SUCCESS)
        *code =
            clEnqueueReadBuffer(probe->device.queue, out, CL_TRUE, 0, ITEMS * sizeof(*values), values, 0, NULL, NULL);
    tool_release_buffer(out);
    return TOOL_DONE;
}

/* Runs a built trial: the answer gets what came of it. */
static tool_exit run_trial(const probe_context *probe, const probe_trial *trial, cl_program program, json_t *answer,
                           tool_error *error)
{
    cl_uint values[ITEMS] = {0};
    cl_int code = CL_SUCCESS;
    bool right = true;
    const size_t room = trial->room ? trial->room : probe->device.info.local_memory_bytes;
    cl_kernel kernel = clCreateKernel(program, "trial", &code);
    if (code == CL_SUCCESS) {
        const tool_exit status = run_kernel(probe, kernel, room, values, &code, error);
        clReleaseKernel(kernel);
        TOOL_TRY(status);
    }
    for (cl_uint i = 0; i < ITEMS; i++)
        right = right && values[i] == trial->expected(i);
    json_object_set_new(answer, "run", probe_code(code));
    json_object_set_new(answer, "right", json_boolean(code == CL_SUCCESS && right));
    return TOOL_DONE;
}

static tool_exit attempt(const probe_context *probe, const probe_trial *trial, tool_error *error)
{
    char text[2048];
    snprintf(text, sizeof(text),
             "%s__kernel void trial(__global uint *out, __global const uint *nothing, __local uint *room,"
             " const uint last)\n{\n    uint x = (uint)get_local_id(0);\n    %s\n    out[get_local_id(0)] = x;\n}\n",
             trial->before, trial->body);
    probe_program made = probe_build(probe, text, "-cl-std=CL1.2");
    json_t *answer = json_pack("{s:s, s:o, s:o, s:f, s:n, s:b}", "case", trial->name, "build", probe_code(made.code),
                               "log", tool_json_text(made.log), "seconds", made.seconds, "run", "right", 0);
    tool_exit status = TOOL_DONE;
    if (answer && made.code == CL_SUCCESS)
        status = run_trial(probe, trial, made.program, answer, error);
    probe_release(&made);
    if (status == TOOL_DONE)
        return probe_append(probe, answer, error);
    json_decref(answer);
    return status;
}

/* ---- its exponential --------------------------------------------------------------------------------------- */

enum { POINTS = 1 << 20 };

static const char exponential_text[] = "__kernel void trial(__global float *x)\n"
                                       "{\n"
                                       "    const size_t i = get_global_id(0);\n"
                                       "    x[i] = EXPONENTIAL(x[i]);\n"
                                       "}\n";
/* Behind the points of the sweep. */
static const float special[] = {0.0F, -1.0F, 1.0F, -149.0F, -1000.0F, -INFINITY, NAN};

/* Numbers from -126 on, below 0. */
static float point(size_t i)
{
    return i < POINTS ? -126.0F * ((float)i + 0.5F) / POINTS : special[i - POINTS];
}

/* Largest error, relative, in units of 2^-24; and the special values. */
static json_t *judge(const char *name, const float *y)
{
    double worst = 0, at = 0;
    json_t *list = json_array();
    for (size_t i = 0; i < POINTS; i++) {
        const double exact = exp2((double)point(i)), error = ldexp(fabs(y[i] - exact) / exact, 24);
        if (!(error <= worst)) {
            worst = error;
            at = point(i);
        }
    }
    for (size_t i = POINTS; i < POINTS + TOOL_COUNT(special); i++)
        tool_json_append(&list, json_sprintf("%g: %g", (double)point(i), (double)y[i]));
    return json_pack("{s:s, s:o, s:f, s:o}", "case", name, "worst_error_24_bits", tool_json_number(worst), "at", at,
                     "special", list);
}

static tool_exit run_exponential(const probe_context *probe, cl_program program, float *x, tool_error *error)
{
    const size_t count = POINTS + TOOL_COUNT(special), bytes = count * sizeof(*x);
    cl_mem buffer = NULL;
    cl_int code = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program, "trial", &code);
    TOOL_TRY(tool_check_cl(code, "clCreateKernel", error));
    for (size_t i = 0; i < count; i++)
        x[i] = point(i);
    tool_exit status = tool_make_buffer(&probe->device, bytes, x, &buffer, error);
    if (status == TOOL_DONE) {
        code = clSetKernelArg(kernel, 0, sizeof(cl_mem), &buffer);
        if (code == CL_SUCCESS)
            code = clEnqueueNDRangeKernel(probe->device.queue, kernel, 1, NULL, &count, NULL, 0, NULL, NULL);
        if (code == CL_SUCCESS)
            code = clEnqueueReadBuffer(probe->device.queue, buffer, CL_TRUE, 0, bytes, x, 0, NULL, NULL);
        status = tool_check_cl(code, "a kernel of exponentials", error);
    }
    tool_release_buffer(buffer);
    clReleaseKernel(kernel);
    return status;
}

static tool_exit sweep_exponential(const probe_context *probe, const char *name, tool_error *error)
{
    char options[64];
    tool_exit status = TOOL_DONE;
    float *const x = calloc(POINTS + TOOL_COUNT(special), sizeof(*x));
    if (!x)
        return tool_fail_memory(error, "a sweep");
    snprintf(options, sizeof(options), "-cl-std=CL1.2 -DEXPONENTIAL=%s", name);
    probe_program made = probe_build(probe, exponential_text, options);
    TOOL_TRY_GOTO(status, tool_check_cl(made.code, "clBuildProgram", error), done);
    TOOL_TRY_GOTO(status, run_exponential(probe, made.program, x, error), done);
    status = probe_append(probe, judge(name, x), error);
done:
    probe_release(&made);
    free(x);
    return status;
}

/* ---- its binaries ------------------------------------------------------------------------------------------- */

/* From `word` to the end of its line; "" where there is no such word. */
static json_t *line_with(const char *text, const char *word)
{
    const char *const found = text ? strstr(text, word) : NULL;
    return found ? json_stringn(found, strcspn(found, "\n\r")) : json_string("");
}

static tool_exit describe_binary(const probe_context *probe, tool_error *error)
{
    size_t size = 0;
    probe_program made = probe_build(probe, exponential_text, "-cl-std=CL1.2 -DEXPONENTIAL=exp2");
    char *const binary = made.code == CL_SUCCESS ? probe_binary(made.program, &size) : NULL;
    probe_release(&made);
    json_t *const answer = json_pack("{s:s, s:I, s:o, s:o}", "case", "binary", "bytes", (json_int_t)size, "version",
                                     line_with(binary, ".version "), "target", line_with(binary, ".target "));
    free(binary);
    return probe_append(probe, answer, error);
}

/* ---- what the library makes of it --------------------------------------------------------------------------- */

/* The number of work-items that exchange registers, and the method (cl/engine/shuffles.clh). */
static tool_exit describe_sub_groups(const probe_context *probe, tool_error *error)
{
    const mgk_sub_group found = mgk_context_sub_group(probe->device.library);
    return probe_append(probe,
                        json_pack("{s:s, s:i, s:i}", "case", "sub-groups", "shuffle", found.shuffle, "size",
                                  found.size > 1 ? found.size : 1),
                        error);
}

/* ---- by name ----------------------------------------------------------------------------------------------- */

static const char *const exponentials[] = {"exp2", "native_exp2"};

void probe_list_facts(void)
{
    puts("device");
    for (size_t i = 0; i < TOOL_COUNT(trials); i++)
        puts(trials[i].name);
    for (size_t i = 0; i < TOOL_COUNT(exponentials); i++)
        puts(exponentials[i]);
    puts("binary");
    puts("sub-groups");
}

static tool_exit attempt_here(const probe_context *probe, const probe_trial *trial, tool_error *error)
{
    if (!trial->nvidia || strncmp(probe->device.info.architecture, "sm_", 3) == 0)
        return attempt(probe, trial, error);
    return probe_append(probe, json_pack("{s:s, s:s}", "case", trial->name, "left_out", "not an NVIDIA device"), error);
}

tool_exit probe_fact(const probe_context *probe, const char *name, tool_error *error)
{
    if (strcmp(name, "device") == 0)
        return probe_append(probe, describe_device(&probe->device.info), error);
    if (strcmp(name, "binary") == 0)
        return describe_binary(probe, error);
    if (strcmp(name, "sub-groups") == 0)
        return describe_sub_groups(probe, error);
    for (size_t i = 0; i < TOOL_COUNT(exponentials); i++) {
        if (strcmp(name, exponentials[i]) == 0)
            return sweep_exponential(probe, exponentials[i], error);
    }
    for (size_t i = 0; i < TOOL_COUNT(trials); i++) {
        if (strcmp(name, trials[i].name) == 0)
            return attempt_here(probe, &trials[i], error);
    }
    return tool_fail(error, TOOL_BAD_INPUT, "--fact '%s': expected a name that --list prints", name);
}
