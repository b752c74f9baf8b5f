/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for CUDA's driver, libcuda.so.1, beside the layer that stands in for NVIDIA's OpenCL driver. It has two
 * devices. Memory is the host's, and a launch runs the OpenCL kernel that the program stands for, with the launch's
 * arguments, on the layer's device. It finds wrong uses: texts that CUDA does not take, calls without a current
 * context, arguments that are no memory or less aligned than OpenCL's buffers. A test makes it fail through
 * cuda_stand_in_state.
 */
#include "cuda_stand_in.h"
#include "nvidia_layer.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef CL_TARGET_OPENCL_VERSION
cl_int clSetKernelArgSVMPointer(cl_kernel kernel, cl_uint index, const void *value);

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    NOT_FOUND = 500
};
enum { LAUNCH_FAILED = 719 };
enum { DEVICE = 1, DEVICES = 2 }; /* the layer's device has this number */
enum { MOST_ALLOCATIONS = 64, MOST_BUFFERS = 32, ALIGNMENT = 256 };

static cuda_state state;

EXPORT cuda_state *cuda_stand_in_state(void);
cuda_state *cuda_stand_in_state(void)
{
    return &state;
}

/* The code of a call; `current`: whether it needs a current context. */
static int begin(const char *name, int current)
{
    if (state.fails != NULL && strcmp(state.fails, name) == 0 && state.after-- <= 0)
        return state.code;
    return current && state.current == 0 ? INVALID_CONTEXT : SUCCESS;
}

#define BEGIN(current)                                                                                                 \
    do {                                                                                                               \
        const int code_ = begin(__func__, current);                                                                    \
        if (code_ != SUCCESS)                                                                                          \
            return code_;                                                                                              \
    } while (0)

/* ---- devices ------------------------------------------------------------------------------------------------- */

EXPORT int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    BEGIN(0);
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuGetErrorName(int code, const char **name);
int cuGetErrorName(int code, const char **name)
{
    *name = code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_OF_THE_STAND_IN";
    return code < 1000 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count)
{
    BEGIN(0);
    *count = state.hidden ? 1 : DEVICES;
    return SUCCESS;
}

/* A device's handle is not its number. */
EXPORT int cuDeviceGet(int *device, int number);
int cuDeviceGet(int *device, int number)
{
    BEGIN(0);
    *device = 10 + number;
    return number >= 0 && number < DEVICES ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    static const int pci[] = NVIDIA_PCI;
    BEGIN(0);
    *value = attribute == 50   ? pci[0]
             : attribute == 33 ? pci[1]
             : attribute == 34 ? pci[2]
             : attribute == 97 ? state.most_local
                               : -1;
    *value += attribute == 33 && device != 10 + DEVICE; /* another bus */
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static int object;
    BEGIN(0);
    *context = &object;
    state.retained++;
    return device == 10 + DEVICE ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxRelease_v2(int device)
{
    BEGIN(0);
    state.retained--;
    return device == 10 + DEVICE ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context)
{
    BEGIN(0);
    state.current++;
    return context != NULL ? SUCCESS : INVALID_CONTEXT;
}

EXPORT int cuCtxPopCurrent_v2(void **context);
int cuCtxPopCurrent_v2(void **context)
{
    BEGIN(1);
    state.current--;
    *context = NULL;
    return SUCCESS;
}

EXPORT int cuCtxSynchronize(void);
int cuCtxSynchronize(void)
{
    BEGIN(1);
    state.waits++;
    return SUCCESS;
}

EXPORT int cuStreamSynchronize(const void *stream);
int cuStreamSynchronize(const void *stream)
{
    BEGIN(1);
    (void)stream;
    return SUCCESS;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static struct {
    unsigned char *begin;
    size_t bytes;
} allocations[MOST_ALLOCATIONS];

/* The allocation that has this address, or begins there; -1: none. */
static int find(uintptr_t address)
{
    for (int i = 0; i < MOST_ALLOCATIONS; i++) {
        const uintptr_t first = (uintptr_t)allocations[i].begin;
        if (first != 0 && address >= first && address < first + allocations[i].bytes)
            return i;
    }
    return -1;
}

EXPORT int cuMemAlloc_v2(unsigned long long *memory, size_t bytes);
int cuMemAlloc_v2(unsigned long long *memory, size_t bytes)
{
    int free_place = 0;
    BEGIN(1);
    while (allocations[free_place].begin != NULL)
        if (++free_place == MOST_ALLOCATIONS)
            abort();
    const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    allocations[free_place].begin = aligned_alloc(ALIGNMENT, rounded);
    allocations[free_place].bytes = bytes;
    if (allocations[free_place].begin == NULL)
        abort();
    memset(allocations[free_place].begin, 0xff, rounded);
    *memory = (uintptr_t)allocations[free_place].begin;
    state.allocations++;
    return SUCCESS;
}

EXPORT int cuMemFree_v2(unsigned long long memory);
int cuMemFree_v2(unsigned long long memory)
{
    BEGIN(1);
    const int place = find((uintptr_t)memory);
    if (place < 0 || (uintptr_t)allocations[place].begin != memory)
        return INVALID_VALUE;
    free(allocations[place].begin);
    allocations[place].begin = NULL;
    state.allocations--;
    return SUCCESS;
}

EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes);
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes)
{
    void *memory = NULL;
    BEGIN(1);
    memcpy((void *)&memory, &to, sizeof(memory));
    memcpy(memory, from, bytes);
    return SUCCESS;
}

EXPORT int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes)
{
    const void *memory = NULL;
    BEGIN(1);
    memcpy((void *)&memory, &from, sizeof(memory));
    memcpy(to, memory, bytes);
    return SUCCESS;
}

EXPORT int cuPointerGetAttribute(void *value, int attribute, unsigned long long pointer);
int cuPointerGetAttribute(void *value, int attribute, unsigned long long pointer)
{
    static const int ordinal = DEVICE;
    BEGIN(1);
    if (attribute != 9 || (find((uintptr_t)pointer) < 0 && !state.any_memory))
        return INVALID_VALUE;
    memcpy(value, &ordinal, sizeof(ordinal));
    return SUCCESS;
}

/* ---- programs ------------------------------------------------------------------------------------------------ */

typedef struct module {
    struct function *functions;
    char text[];
} module;

/* Of a module, which it is released with. */
typedef struct function {
    struct function *next;
    cl_program program;
    size_t first; /* bytes of the first argument */
    int local;    /* bytes of local memory that a launch may give */
    char name[64];
} function;

/* Loads a text that CUDA takes. */
EXPORT int cuModuleLoadDataEx(void **out, const char *text, unsigned count, const int *options, void **values);
int cuModuleLoadDataEx(void **out, const char *text, unsigned count, const int *options, void **values)
{
    size_t size = 0;
    BEGIN(1);
    state.loads++;
    state.registers = 0;
    if (count < 2 || options[0] != 5 || options[1] != 6 || (count == 3 && options[2] != 0) || count > 3)
        return INVALID_VALUE;
    if (count == 3)
        memcpy(&state.registers, (void *)&values[2], sizeof(state.registers));
    memcpy(&size, (void *)&values[1], sizeof(size));
    const int has_array = strstr(text, "\t.shared") != NULL ||
                          (strstr(text, "_tiles[") != NULL) !=
                              (strstr(text, ".extern .shared .align 1024 .b8 k_$_matrix_tiles[];\n") != NULL);
    if (has_array || strstr(text, "texmode") != NULL || strstr(text, "envreg") != NULL ||
        strstr(text, ".target sm_90") == NULL) {
        (void)snprintf(values[0], size, "ptxas fatal: Unresolved extern");
        return INVALID_PTX;
    }
    module *const made = malloc(sizeof(*made) + strlen(text) + 1);
    if (made == NULL)
        abort();
    made->functions = NULL;
    strcpy(made->text, text);
    *out = made;
    state.modules++;
    return SUCCESS;
}

EXPORT int cuModuleUnload(module *of);
int cuModuleUnload(module *of)
{
    BEGIN(1);
    while (of->functions != NULL) {
        function *const next = of->functions->next;
        free(of->functions);
        of->functions = next;
    }
    free(of);
    state.modules--;
    return SUCCESS;
}

/* Of the layer, which OPENCL_LAYERS names. */
static nvidia_layer_kernel_fn *layer_kernel(void)
{
    nvidia_layer_kernel_fn *found = NULL;
    void *const layer = dlopen(getenv("OPENCL_LAYERS"), RTLD_NOW | RTLD_NOLOAD);
    void *const symbol = layer != NULL ? dlsym(layer, "nvidia_layer_kernel") : NULL;
    memcpy((void *)&found, (const void *)&symbol, sizeof(symbol));
    if (found == NULL)
        abort();
    return found;
}

EXPORT int cuModuleGetFunction(function **out, module *of, const char *name);
int cuModuleGetFunction(function **out, module *of, const char *name)
{
    BEGIN(1);
    function *const made = calloc(1, sizeof(*made));
    if (made == NULL)
        abort();
    made->next = of->functions;
    of->functions = made;
    (void)snprintf(made->name, sizeof(made->name), "%s", name);
    *out = made;
    return layer_kernel()(of->text, name, &made->program, &made->first) ? SUCCESS : NOT_FOUND;
}

EXPORT int cuFuncGetAttribute(int *value, int attribute, const function *of);
int cuFuncGetAttribute(int *value, int attribute, const function *of)
{
    BEGIN(1);
    (void)of;
    *value = state.most_items > 0 ? state.most_items : 1024;
    return attribute == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuFuncSetAttribute(function *of, int attribute, int value);
int cuFuncSetAttribute(function *of, int attribute, int value)
{
    BEGIN(1);
    of->local = value;
    return attribute == 8 && value <= state.most_local ? SUCCESS : INVALID_VALUE;
}

/* ---- launches ------------------------------------------------------------------------------------------------ */

/* A structure, the number of each buffer's first element, and the buffers (cl/base/bound.clh). */
static int set_arguments(const function *of, cl_kernel kernel, void **values)
{
    cl_uint count = 0;
    int code = clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof(count), &count, NULL);
    if (code != CL_SUCCESS || count < 2 || count > 2 + MOST_BUFFERS)
        return LAUNCH_FAILED;
    code = clSetKernelArg(kernel, 0, of->first, values[0]);
    if (code == CL_SUCCESS)
        code = clSetKernelArg(kernel, 1, (count - 2) * sizeof(int64_t), values[1]);
    for (cl_uint i = 2; i < count && code == CL_SUCCESS; i++) {
        void *memory = NULL;
        memcpy((void *)&memory, values[i], sizeof(memory));
        if ((find((uintptr_t)memory) < 0 && !state.any_memory) || (uintptr_t)memory % ALIGNMENT != 0)
            return LAUNCH_FAILED;
        code = clSetKernelArgSVMPointer(kernel, i, memory);
    }
    return code == CL_SUCCESS ? SUCCESS : LAUNCH_FAILED;
}

static int run(const function *of, void **values, const size_t groups[3], const size_t items[3])
{
    cl_context context = NULL;
    cl_device_id device = NULL;
    cl_int code = CL_SUCCESS;
    size_t global[3];
    for (int i = 0; i < 3; i++)
        global[i] = groups[i] * items[i];
    (void)clGetProgramInfo(of->program, CL_PROGRAM_CONTEXT, sizeof(context), &context, NULL);
    (void)clGetProgramInfo(of->program, CL_PROGRAM_DEVICES, sizeof(device), &device, NULL);
    const cl_kernel kernel = clCreateKernel(of->program, of->name, &code);
    const cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
    if (kernel == NULL || queue == NULL)
        abort();
    int result = set_arguments(of, kernel, values);
    if (result == SUCCESS && clEnqueueNDRangeKernel(queue, kernel, 3, NULL, global, items, 0, NULL, NULL) != CL_SUCCESS)
        result = LAUNCH_FAILED;
    (void)clFinish(queue);
    (void)clReleaseCommandQueue(queue);
    (void)clReleaseKernel(kernel);
    return result;
}

/* NOLINTBEGIN(readability-function-size): CUDA's parameters */
EXPORT int cuLaunchKernel(const function *of, unsigned x, unsigned y, unsigned z, unsigned items_x, unsigned items_y,
                          unsigned items_z, unsigned bytes, const void *stream, void **values, void **extra);
int cuLaunchKernel(const function *of, unsigned x, unsigned y, unsigned z, unsigned items_x, unsigned items_y,
                   unsigned items_z, unsigned bytes, const void *stream, void **values, void **extra)
{
    BEGIN(1);
    state.launches++;
    state.stream = stream;
    state.local = (int)bytes;
    if ((int)bytes != of->local || extra != NULL)
        return INVALID_VALUE;
    return run(of, values, (const size_t[3]){x, y, z}, (const size_t[3]){items_x, items_y, items_z});
}
/* NOLINTEND(readability-function-size) */
