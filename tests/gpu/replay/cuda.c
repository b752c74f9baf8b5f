/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of CUDA's driver that a launch needs. It is declared here and loaded at run time, because the machine that
 * builds the program has neither headers nor library.
 */
#include "recording.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>

#define DRIVER "libcuda.so.1"

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUevent_st *CUevent;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
enum { CU_MULTIPROCESSOR_COUNT = 16 };                                   /* of a device */
enum { CU_SHARED_SIZE_BYTES = 1, CU_LOCAL_SIZE_BYTES = 3, CU_NUM_REGS }; /* of a function */
enum {
    CU_JIT_MAX_REGISTERS = 0,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
}; /* options of a module */

/* Functions of the driver: f(name in the structure, symbol, parameters). */
#define CUDA_FUNCTIONS(f)                                                                                              \
    f(init, cuInit, (unsigned flags)) f(device_get, cuDeviceGet, (int *device, int number))                            \
        f(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device)) f(                          \
            context_retain, cuDevicePrimaryCtxRetain,                                                                  \
            (CUcontext * context, int device)) f(context_release, cuDevicePrimaryCtxRelease, (int device))             \
            f(context_set, cuCtxSetCurrent, (CUcontext context)) f(synchronize, cuCtxSynchronize, (void)) f(           \
                module_load, cuModuleLoadDataEx,                                                                       \
                (CUmodule * module, const void *image, unsigned count, int *options, void **values))                   \
                f(module_unload, cuModuleUnload, (CUmodule module)) f(                                                 \
                    module_function, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))  \
                    f(function_attribute, cuFuncGetAttribute, (int *value, int attribute, CUfunction function)) f(     \
                        residents, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                        \
                        (int *groups, CUfunction function, int items, size_t local_bytes))                             \
                        f(allocate, cuMemAlloc_v2, (CUdeviceptr * memory, size_t size)) f(release, cuMemFree_v2,       \
                                                                                          (CUdeviceptr memory))        \
                            f(write, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size))                 \
                                f(event_create, cuEventCreate, (CUevent * event, unsigned flags)) f(                   \
                                    event_destroy, cuEventDestroy_v2, (CUevent event))                                 \
                                    f(event_record, cuEventRecord, (CUevent event, CUstream stream))                   \
                                        f(event_elapsed, cuEventElapsedTime, (float *ms, CUevent start, CUevent end))  \
                                            f(launch, cuLaunchKernel,                                                  \
                                              (CUfunction function, unsigned x, unsigned y, unsigned z,                \
                                               unsigned items_x, unsigned items_y, unsigned items_z,                   \
                                               unsigned local_bytes, CUstream stream, void **arguments, void **extra)) \
                                                f(error_text, cuGetErrorString, (int code, const char **text))

#define FIELD(name, symbol, parameters) int(*name) parameters; /* NOLINT(bugprone-macro-parentheses) */
typedef struct cuda {
    void *library;
    int device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUdeviceptr buffers[REPLAY_ARGUMENTS];
    CUevent start, end;
    CUDA_FUNCTIONS(FIELD)
} cuda;

static tool_exit check(const cuda *driver, int code, const char *call, tool_error *error)
{
    const char *text = NULL;
    if (code == 0)
        return TOOL_DONE;
    (void)driver->error_text(code, &text);
    return tool_fail(error, TOOL_NO_DEVICE, "%s: %s (%d)", call, text ? text : "unknown", code);
}

#define CUDA_TRY(driver, function, ...)                                                                                \
    TOOL_TRY(check(driver, (driver)->function(__VA_ARGS__), "CUDA's " #function, error))

static tool_exit load(cuda *driver, tool_error *error)
{
    driver->library = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (!driver->library)
        return tool_fail(error, TOOL_NO_DEVICE, "there is no CUDA driver: %s", dlerror());
    void *symbol = NULL;
    /* C has no conversion from object to function pointers. */
#define FIND(name, function, parameters)                                                                               \
    symbol = dlsym(driver->library, #function);                                                                        \
    if (!symbol)                                                                                                       \
        return tool_fail(error, TOOL_NO_DEVICE, DRIVER " lacks " #function);                                           \
    memcpy(&driver->name, &symbol, sizeof(symbol));
    CUDA_FUNCTIONS(FIND)
#undef FIND
    return TOOL_DONE;
}

static tool_exit open_device(cuda *driver, tool_error *error)
{
    CUDA_TRY(driver, init, 0);
    CUDA_TRY(driver, device_get, &driver->device, 0);
    CUDA_TRY(driver, context_retain, &driver->context, driver->device);
    CUDA_TRY(driver, context_set, driver->context);
    CUDA_TRY(driver, event_create, &driver->start, 0);
    CUDA_TRY(driver, event_create, &driver->end, 0);
    return TOOL_DONE;
}

static tool_exit open_module(cuda *driver, const replay_recording *recording, int64_t registers, tool_error *error)
{
    char log[1024] = "";
    int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_MAX_REGISTERS};
    const size_t size = sizeof(log), most = (size_t)registers;
    void *values[] = {log, NULL, NULL};
    memcpy(&values[1], &size, sizeof(size)); /* the numbers themselves, in the place of pointers */
    memcpy(&values[2], &most, sizeof(most));
    const int code = driver->module_load(&driver->module, recording->program, registers > 0 ? 3 : 2, options, values);
    if (code != 0 && log[0] != '\0')
        return tool_fail(error, TOOL_NO_DEVICE, "CUDA does not take the program of %s: %s", recording->kernel, log);
    TOOL_TRY(check(driver, code, "CUDA's module_load", error));
    CUDA_TRY(driver, module_function, &driver->function, driver->module, recording->kernel);
    return TOOL_DONE;
}

static tool_exit ask(const cuda *driver, const replay_recording *recording, replay_result *result, tool_error *error)
{
    const int items = (int)(recording->items[0] * recording->items[1] * recording->items[2]);
    CUDA_TRY(driver, device_attribute, &result->multiprocessors, CU_MULTIPROCESSOR_COUNT, driver->device);
    CUDA_TRY(driver, function_attribute, &result->registers, CU_NUM_REGS, driver->function);
    CUDA_TRY(driver, function_attribute, &result->stack_bytes, CU_LOCAL_SIZE_BYTES, driver->function);
    CUDA_TRY(driver, function_attribute, &result->local_bytes, CU_SHARED_SIZE_BYTES, driver->function);
    CUDA_TRY(driver, residents, &result->resident, driver->function, items, 0);
    return TOOL_DONE;
}

static tool_exit fill(cuda *driver, const replay_recording *recording, void **arguments, tool_error *error)
{
    for (size_t i = 0; i < recording->count; i++) {
        const replay_argument *const one = &recording->arguments[i];
        arguments[i] = one->is_buffer ? (void *)&driver->buffers[i] : (void *)one->bytes;
        if (!one->is_buffer || one->size == 0)
            continue; /* a buffer of no bytes is a null pointer */
        CUDA_TRY(driver, allocate, &driver->buffers[i], one->size);
        CUDA_TRY(driver, write, driver->buffers[i], one->bytes, one->size);
    }
    return TOOL_DONE;
}

static tool_exit time_launch(const cuda *driver, const replay_recording *recording, void **arguments, double *ms,
                             tool_error *error)
{
    float time = 0;
    const unsigned *const groups = recording->groups, *const items = recording->items;
    CUDA_TRY(driver, event_record, driver->start, NULL);
    CUDA_TRY(driver, launch, driver->function, groups[0], groups[1], groups[2], items[0], items[1], items[2], 0, NULL,
             arguments, NULL);
    CUDA_TRY(driver, event_record, driver->end, NULL);
    TOOL_TRY(check(driver, driver->synchronize(), "CUDA's synchronize", error));
    CUDA_TRY(driver, event_elapsed, &time, driver->start, driver->end);
    *ms = fmin(*ms, (double)time);
    return TOOL_DONE;
}

static tool_exit run(cuda *driver, const replay_recording *recording, int64_t repeats, int64_t registers,
                     replay_result *result, tool_error *error)
{
    void *arguments[REPLAY_ARGUMENTS] = {NULL};
    TOOL_TRY(load(driver, error));
    TOOL_TRY(open_device(driver, error));
    TOOL_TRY(open_module(driver, recording, registers, error));
    TOOL_TRY(ask(driver, recording, result, error));
    TOOL_TRY(fill(driver, recording, arguments, error));
    result->ms = INFINITY;
    for (int64_t i = 0; i < repeats; i++)
        TOOL_TRY(time_launch(driver, recording, arguments, &result->ms, error));
    return TOOL_DONE;
}

static void close_device(cuda *driver)
{
    for (size_t i = 0; i < REPLAY_ARGUMENTS; i++)
        if (driver->buffers[i] != 0)
            (void)driver->release(driver->buffers[i]);
    if (driver->module)
        (void)driver->module_unload(driver->module);
    if (driver->start)
        (void)driver->event_destroy(driver->start);
    if (driver->end)
        (void)driver->event_destroy(driver->end);
    if (driver->context)
        (void)driver->context_release(driver->device);
    if (driver->library)
        (void)dlclose(driver->library);
}

tool_exit replay_launch(const replay_recording *recording, int64_t repeats, int64_t registers, replay_result *result,
                        tool_error *error)
{
    cuda driver = {.library = NULL};
    const tool_exit status = run(&driver, recording, repeats, registers, result, error);
    close_device(&driver);
    return status;
}
