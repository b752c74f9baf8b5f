/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits layer: the device pretends to be a small one, and refuses what a small one would refuse. CLMGK_TEST_LIMITS is
 * a list of words:
 *
 *     gpu             the device is a GPU, of a maker that nobody knows
 *     local=BYTES     local memory of a work-group; more is an error at the launch
 *     local-is-global local memory is ordinary memory, as on Mali
 *     group=ITEMS     work-items of a work-group; more is an error at the launch
 *     buffer=BYTES    largest buffer; larger ones cannot be created
 *     no-fp64         no double: kernels that name it do not compile
 *     no-fp16         no half but in memory: kernels that name its extension do not compile
 *     no-sub-groups   none of their extensions, and their functions do not compile
 *     wrong           kernels of the engine SIMT give wrong numbers
 *     flush           denormal numbers are 0, in results (on CPUs where PoCL does that) and by the device's word
 */
#include "layer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char layer_name[] = "limits layer";

static struct {
    cl_ulong local, group, buffer; /* 0: the device's own */
    cl_ulong gpu, local_is_global, no_fp64, no_fp16, no_sub_groups, wrong, flush;
} limits;

static const struct {
    const char *word;
    cl_ulong *value;
} words[] = {{"gpu", &limits.gpu},
             {"local=", &limits.local},
             {"local-is-global", &limits.local_is_global},
             {"group=", &limits.group},
             {"buffer=", &limits.buffer},
             {"no-fp64", &limits.no_fp64},
             {"no-fp16", &limits.no_fp16},
             {"no-sub-groups", &limits.no_sub_groups},
             {"wrong", &limits.wrong},
             {"flush", &limits.flush}};

/* Takes a word, up to a comma. */
static void take(const char *word, size_t length)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const size_t own = strlen(words[i].word);
        const bool number = words[i].word[own - 1] == '=';
        if (length < own || memcmp(word, words[i].word, own) != 0 || (length > own) != number)
            continue;
        *words[i].value = number ? strtoull(word + own, NULL, 10) : 1;
        return;
    }
    (void)fprintf(stderr, "%s: CLMGK_TEST_LIMITS has an unknown word: %s\n", layer_name, word);
    abort();
}

static void read_limits(void)
{
    const char *word = getenv("CLMGK_TEST_LIMITS");
    while (word != NULL && *word != '\0') {
        const size_t length = strcspn(word, ",");
        take(word, length);
        word += length + (word[length] == ',' ? 1 : 0);
    }
}

/* ---- the device's word ----------------------------------------------------------------------------------------- */

static bool is_hidden(const char *extension, size_t length)
{
    static const char sub_group[] = "subgroup";
    const struct {
        const char *name;
        cl_ulong hidden;
    } whole[] = {{"cl_khr_fp64", limits.no_fp64}, {"cl_khr_fp16", limits.no_fp16}};
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++)
        if (whole[i].hidden != 0 && strlen(whole[i].name) == length && memcmp(extension, whole[i].name, length) == 0)
            return true;
    for (size_t i = 0; limits.no_sub_groups != 0 && i + sizeof(sub_group) - 1 <= length; i++)
        if (memcmp(extension + i, sub_group, sizeof(sub_group) - 1) == 0)
            return true;
    return false;
}

/* Removes the hidden extensions from a list. */
static void hide(char *list)
{
    char *to = list;
    for (const char *word = list + strspn(list, " "); *word != '\0';) {
        const size_t length = strcspn(word, " ");
        if (!is_hidden(word, length)) {
            memmove(to, word, length);
            to += length;
            *to++ = ' ';
        }
        word += length;
        word += strspn(word, " ");
    }
    *(to > list ? to - 1 : to) = '\0';
}

static cl_int extensions(cl_device_id device, size_t size, void *value, size_t *size_out)
{
    size_t own = 0;
    cl_int code = layer_next.clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, 0, NULL, &own);
    char *const list = calloc(own + 1, 2); /* a list may lack the space that `hide` puts behind its last word */
    if (list == NULL)
        abort();
    if (code == CL_SUCCESS)
        code = layer_next.clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, own, list, NULL);
    if (code == CL_SUCCESS) {
        hide(list);
        code = layer_give(list, strlen(list) + 1, size, value, size_out);
    }
    free(list);
    return code;
}

static cl_int at_most(cl_device_id device, cl_device_info name, cl_ulong most, size_t size, void *value,
                      size_t *size_out)
{
    cl_ulong number = 0; /* of 64 bits, as size_t is here */
    const cl_int code = layer_next.clGetDeviceInfo(device, name, sizeof(number), &number, NULL);
    if (code != CL_SUCCESS)
        return code;
    if (most != 0 && number > most)
        number = most;
    return layer_give(&number, sizeof(number), size, value, size_out);
}

static cl_int item_sizes(cl_device_id device, size_t size, void *value, size_t *size_out)
{
    size_t sizes[16] = {0}, bytes = 0;
    const cl_int code = layer_next.clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof(sizes), sizes, &bytes);
    if (code != CL_SUCCESS)
        return code;
    for (size_t i = 0; i < bytes / sizeof(sizes[0]); i++)
        if (limits.group != 0 && sizes[i] > limits.group)
            sizes[i] = limits.group;
    return layer_give(sizes, bytes, size, value, size_out);
}

static cl_int CL_API_CALL limited_clGetDeviceInfo(cl_device_id device, cl_device_info name, size_t size, void *value,
                                                  size_t *size_out)
{
    static const char nobody[] = "nobody";
    static const cl_device_type gpu = CL_DEVICE_TYPE_GPU;
    static const cl_device_local_mem_type global = CL_GLOBAL, local = CL_LOCAL;
    static const cl_device_fp_config none = 0, single = CL_FP_ROUND_TO_NEAREST | CL_FP_INF_NAN | CL_FP_FMA;
    switch (name) {
    case CL_DEVICE_TYPE:
        if (limits.gpu != 0)
            return layer_give(&gpu, sizeof(gpu), size, value, size_out);
        break;
    case CL_DEVICE_VENDOR:
        if (limits.gpu != 0)
            return layer_give(nobody, sizeof(nobody), size, value, size_out);
        break;
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return at_most(device, name, limits.local, size, value, size_out);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
        return at_most(device, name, limits.group, size, value, size_out);
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
        return at_most(device, name, limits.buffer, size, value, size_out);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
        return item_sizes(device, size, value, size_out);
    case CL_DEVICE_LOCAL_MEM_TYPE:
        return layer_give(limits.local_is_global != 0 ? &global : &local, sizeof(local), size, value, size_out);
    case CL_DEVICE_EXTENSIONS:
        return extensions(device, size, value, size_out);
    case CL_DEVICE_SINGLE_FP_CONFIG:
        if (limits.flush != 0)
            return layer_give(&single, sizeof(single), size, value, size_out);
        break;
    case CL_DEVICE_DOUBLE_FP_CONFIG:
        if (limits.no_fp64 != 0)
            return layer_give(&none, sizeof(none), size, value, size_out);
        break;
    case CL_DEVICE_HALF_FP_CONFIG:
        if (limits.no_fp16 != 0)
            return layer_give(&none, sizeof(none), size, value, size_out);
        break;
    default:
        break;
    }
    return layer_next.clGetDeviceInfo(device, name, size, value, size_out);
}

/* ---- what it refuses ------------------------------------------------------------------------------------------- */

static cl_mem CL_API_CALL limited_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host,
                                                 cl_int *code_out)
{
    if (limits.buffer == 0 || size <= limits.buffer)
        return layer_next.clCreateBuffer(context, flags, size, host, code_out);
    if (code_out != NULL)
        *code_out = CL_INVALID_BUFFER_SIZE;
    return NULL;
}

/* Names that are errors in a kernel's text. The compiler's own declarations come before it. */
static cl_program CL_API_CALL limited_clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                                                const size_t *lengths, cl_int *code_out)
{
    enum { MOST = 8 };
    static const char no_double[] = "#undef cl_khr_fp64\n#pragma GCC poison double cl_khr_fp64\n";
    static const char no_half[] = "#undef cl_khr_fp16\n#pragma GCC poison cl_khr_fp16\n";
    static const char no_shuffle[] = "#pragma GCC poison sub_group_shuffle_xor intel_sub_group_shuffle_xor\n";
    static const char bad_fma[] = "#define fma(x, y, z) ((x) * (y) * 0.75f + (z))\n";
    const char *all[MOST + 1] = {0};
    size_t sizes[MOST + 1] = {0};
    char before[512];
    if (count > MOST)
        abort();
    if (limits.wrong == 0 && limits.no_fp64 == 0 && limits.no_fp16 == 0 && limits.no_sub_groups == 0)
        return layer_next.clCreateProgramWithSource(context, count, texts, lengths, code_out);
    const bool of_simt = count > 0 && strstr(texts[0], "MGK_SIMT_KERNEL_CLH") != NULL;
    (void)snprintf(before, sizeof(before), "%s%s%s%s#line 1\n", limits.wrong != 0 && of_simt ? bad_fma : "",
                   limits.no_fp64 != 0 ? no_double : "", limits.no_fp16 != 0 ? no_half : "",
                   limits.no_sub_groups != 0 ? no_shuffle : "");
    all[0] = before;
    for (cl_uint i = 0; i < count; i++) {
        all[i + 1] = texts[i];
        sizes[i + 1] = lengths != NULL ? lengths[i] : 0; /* 0: up to its end */
    }
    return layer_next.clCreateProgramWithSource(context, count + 1, all, sizes, code_out);
}

/* With this option PoCL sets the CPU's mode. */
static cl_int CL_API_CALL limited_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices,
                                                 const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                                                 void *user)
{
    char all[8192];
    const char *const given = options != NULL ? options : "";
    if (strlen(given) + 32 > sizeof(all))
        abort();
    (void)snprintf(all, sizeof(all), "%s%s", given, limits.flush != 0 ? " -cl-denorms-are-zero" : "");
    return layer_next.clBuildProgram(program, count, devices, all, notify, user);
}

static cl_int CL_API_CALL limited_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device,
                                                           cl_kernel_work_group_info name, size_t size, void *value,
                                                           size_t *size_out)
{
    size_t items = 0;
    if (name != CL_KERNEL_WORK_GROUP_SIZE || limits.group == 0)
        return layer_next.clGetKernelWorkGroupInfo(kernel, device, name, size, value, size_out);
    const cl_int code = layer_next.clGetKernelWorkGroupInfo(kernel, device, name, sizeof(items), &items, NULL);
    if (code != CL_SUCCESS)
        return code;
    items = items > limits.group ? limits.group : items;
    return layer_give(&items, sizeof(items), size, value, size_out);
}

static cl_int judge_launch(cl_kernel kernel, cl_device_id device, cl_uint dimensions, const size_t *local)
{
    cl_ulong items = 1, bytes = 0;
    for (cl_uint i = 0; local != NULL && i < dimensions; i++)
        items *= local[i];
    if (limits.group != 0 && items > limits.group)
        return CL_INVALID_WORK_GROUP_SIZE;
    const cl_int code =
        layer_next.clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof(bytes), &bytes, NULL);
    return code == CL_SUCCESS && limits.local != 0 && bytes > limits.local ? CL_OUT_OF_RESOURCES : code;
}

static cl_int CL_API_CALL limited_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                                         const size_t *offset, const size_t *global,
                                                         const size_t *local, cl_uint count, const cl_event *wait,
                                                         cl_event *event)
{
    cl_device_id device = NULL;
    cl_int code = layer_next.clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof(cl_device_id), &device, NULL);
    if (code == CL_SUCCESS)
        code = judge_launch(kernel, device, dimensions, local);
    if (code != CL_SUCCESS) {
        (void)fprintf(stderr, "%s: a launch is refused, %d\n", layer_name, code);
        return code;
    }
    return layer_next.clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, count, wait, event);
}

void layer_install(cl_icd_dispatch *table)
{
    read_limits();
    table->clGetDeviceInfo = limited_clGetDeviceInfo;
    table->clCreateBuffer = limited_clCreateBuffer;
    table->clCreateProgramWithSource = limited_clCreateProgramWithSource;
    table->clBuildProgram = limited_clBuildProgram;
    table->clGetKernelWorkGroupInfo = limited_clGetKernelWorkGroupInfo;
    table->clEnqueueNDRangeKernel = limited_clEnqueueNDRangeKernel;
}
