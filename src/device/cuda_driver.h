/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's driver: the few functions that launches need. They are declared here and loaded at run time, because the
 * library is built and used on machines without CUDA. */
#ifndef MGK_CUDA_DRIVER_H
#define MGK_CUDA_DRIVER_H

#include "base/base.h"
#include "clmgk/cuda.h"

typedef struct CUctx_st *mgk_cuda_context;
typedef struct CUmod_st *mgk_cuda_module;
typedef struct CUfunc_st *mgk_cuda_function;
typedef unsigned long long mgk_cuda_pointer;

enum { MGK_CUDA_SUCCESS = 0 };

/* Attributes and options, with CUDA's values. */
enum {
    MGK_CUDA_PCI_BUS = 33,
    MGK_CUDA_PCI_DEVICE = 34,
    MGK_CUDA_PCI_DOMAIN = 50,
    MGK_CUDA_MOST_LOCAL = 97
};                                                             /* of a device */
enum { MGK_CUDA_MAX_THREADS = 0, MGK_CUDA_DYNAMIC_LOCAL = 8 }; /* of a function */
enum { MGK_CUDA_DEVICE_ORDINAL = 9 };                          /* of a pointer */
enum { MGK_CUDA_MAX_REGISTERS = 0, MGK_CUDA_ERROR_LOG = 5, MGK_CUDA_ERROR_LOG_SIZE = 6 };

/* F(name, symbol, parameters) for each function; all return a code of CUDA. */
#define MGK_CUDA_LIST(F)                                                                                               \
    F(init, "cuInit", (unsigned flags))                                                                                \
    F(device_count, "cuDeviceGetCount", (int *count))                                                                  \
    F(device_get, "cuDeviceGet", (int *device, int number))                                                            \
    F(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                               \
    F(context_retain, "cuDevicePrimaryCtxRetain", (mgk_cuda_context * context, int device))                            \
    F(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                                   \
    F(context_push, "cuCtxPushCurrent_v2", (mgk_cuda_context context))                                                 \
    F(context_pop, "cuCtxPopCurrent_v2", (mgk_cuda_context * context))                                                 \
    F(context_wait, "cuCtxSynchronize", (void))                                                                        \
    F(stream_wait, "cuStreamSynchronize", (clmgk_cuda_stream stream))                                                  \
    F(module_load, "cuModuleLoadDataEx",                                                                               \
      (mgk_cuda_module * module, const void *text, unsigned count, int *options, void **values))                       \
    F(module_unload, "cuModuleUnload", (mgk_cuda_module module))                                                       \
    F(module_function, "cuModuleGetFunction",                                                                          \
      (mgk_cuda_function * function, mgk_cuda_module module, const char *name))                                        \
    F(function_attribute, "cuFuncGetAttribute", (int *value, int attribute, mgk_cuda_function function))               \
    F(function_allow, "cuFuncSetAttribute", (mgk_cuda_function function, int attribute, int value))                    \
    F(memory_allocate, "cuMemAlloc_v2", (mgk_cuda_pointer * memory, size_t bytes))                                     \
    F(memory_free, "cuMemFree_v2", (mgk_cuda_pointer memory))                                                          \
    F(memory_write, "cuMemcpyHtoD_v2", (mgk_cuda_pointer to, const void *from, size_t bytes))                          \
    F(memory_read, "cuMemcpyDtoH_v2", (void *to, mgk_cuda_pointer from, size_t bytes))                                 \
    F(pointer_attribute, "cuPointerGetAttribute", (void *value, int attribute, mgk_cuda_pointer pointer))              \
    F(launch, "cuLaunchKernel",                                                                                        \
      (mgk_cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,                \
       unsigned block_y, unsigned block_z, unsigned local_bytes, clmgk_cuda_stream stream, void **arguments,           \
       void **extra))                                                                                                  \
    F(error_name, "cuGetErrorName", (int code, const char **name))

/* In the list's order, and nothing else: mgk_library_load fills it. */
typedef struct mgk_cuda_driver {
#define MGK_CUDA_FIELD(name, symbol, parameters) int(*name) parameters; /* NOLINT(bugprone-macro-parentheses) */
    MGK_CUDA_LIST(MGK_CUDA_FIELD)
#undef MGK_CUDA_FIELD
} mgk_cuda_driver;

/* Loads CUDA's driver and initialises it. UNSUPPORTED: there is none, or it lacks a function. */
clmgk_status mgk_cuda_driver_load(mgk_cuda_driver *driver, clmgk_error *error);

/* OK for the code MGK_CUDA_SUCCESS, OUT_OF_DEVICE_MEMORY, else ERROR_CUDA with `call` and the code's name. */
clmgk_status mgk_cuda_check(const mgk_cuda_driver *driver, int code, const char *call, clmgk_error *error);

#endif
