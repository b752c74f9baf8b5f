/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches by CUDA's driver, on memory and streams of CUDA. On NVIDIA's OpenCL driver a program's binary is PTX, which
 * CUDA's driver takes (edited.h). Kernels get the arguments that OpenCL would give them.
 *
 * The alternative is to import CUDA's memory into OpenCL (cl_khr_external_memory). It serves only memory that was
 * allocated to be exported, which PyTorch's is not, and events of both drivers would have to wait for each other.
 */
#ifndef MGK_CUDA_H
#define MGK_CUDA_H

#include "clmgk/cuda.h"
#include "device/device.h"

typedef struct CUfunc_st *mgk_cuda_function;

/* A context's device in CUDA: the driver, and the device's primary context. */
typedef struct mgk_cuda mgk_cuda;

/* A stream, as a call's queue. */
typedef struct mgk_cuda_place {
    const mgk_cuda *cuda;
    clmgk_cuda_stream stream;
} mgk_cuda_place;

/* A stream of each thread's own. */
clmgk_cuda_stream mgk_cuda_own_stream(void);

/* Device addresses stand in the place of memory objects. A memory object begins at a multiple of MGK_CUDA_BASE bytes,
 * as OpenCL's do; an address is such an object and an offset. */
#define MGK_CUDA_BASE 256
cl_mem mgk_cuda_memory_at(uint64_t address);
uint64_t mgk_cuda_address_of(cl_mem memory);

/* The OpenCL device that is CUDA's device `number`. */
clmgk_status mgk_cuda_find_device(int32_t number, cl_device_id *found, clmgk_error *error);

/* Opens the context's device; a later call gives the same. UNSUPPORTED, with the reason, if CUDA lacks the device. */
clmgk_status mgk_cuda_open(clmgk_context *context, mgk_cuda **out, clmgk_error *error);

/* The context's opened device; NULL: none. */
mgk_cuda *mgk_cuda_of(clmgk_context *context);

/* Call at the context's end. */
void mgk_cuda_close(clmgk_context *context);

/* Bytes of local memory that a launch may ask for at most. */
clmgk_status mgk_cuda_most_local(const mgk_cuda *cuda, uint64_t *bytes, clmgk_error *error);

/* mgk_cuda_enter makes the device's context the thread's current one, for all functions below; mgk_cuda_leave restores
 * the one before. */
clmgk_status mgk_cuda_enter(const mgk_cuda *cuda, clmgk_error *error);
void mgk_cuda_leave(const mgk_cuda *cuda);

/* A program's kernel, for launches of this form; the first call loads the program. It lives as long as the program.
 * `dynamic_local`: bytes of local memory that a launch gives, beside the kernel's own.
 * UNSUPPORTED: CUDA can't launch it; COMPILE: the assembler refuses the program. */
clmgk_status mgk_cuda_get_function(mgk_cuda *cuda, mgk_program *program, const char *name, const mgk_launch *launch,
                                   unsigned dynamic_local, mgk_cuda_function *function, clmgk_error *error);

/* Unloads a program, if it was loaded, after all work of the device. Needs no current context. */
void mgk_cuda_unload(mgk_program *program);

/* Memory of the library's own, with a copy of `data`; NULL: with any values. */
clmgk_status mgk_cuda_make_memory(const mgk_cuda *cuda, const void *data, size_t bytes, cl_mem *memory,
                                  clmgk_error *error);
void mgk_cuda_free_memory(const mgk_cuda *cuda, cl_mem memory);

/* Copies from and to the host; they wait. */
clmgk_status mgk_cuda_write(const mgk_cuda *cuda, cl_mem memory, const void *data, size_t bytes, clmgk_error *error);
clmgk_status mgk_cuda_read(const mgk_cuda *cuda, cl_mem memory, void *data, size_t bytes, clmgk_error *error);

/* Memory that is bound in place of a launch's missing arrays. */
const cl_mem *mgk_cuda_stand_in(const mgk_cuda *cuda);

/* INVALID_BUFFER, if `address` is not memory that the device can use. */
clmgk_status mgk_cuda_check_memory(const mgk_cuda *cuda, const char *name, uint64_t address, clmgk_error *error);

/* Launches a kernel; if global[0] is 0, nothing. Arguments as for mgk_launch_kernel. */
clmgk_status mgk_cuda_launch(const mgk_cuda_place *place, mgk_cuda_function function, const mgk_launch *launch,
                             unsigned dynamic_local, size_t count, const mgk_kernel_arg *args, clmgk_error *error);

/* Waits for the stream's work. */
clmgk_status mgk_cuda_wait(const mgk_cuda_place *place, clmgk_error *error);

#endif
