/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on memory and streams of CUDA, on NVIDIA GPUs: for programs whose arrays belong to CUDA, PyTorch's for
 * example. Nothing is copied. On these GPUs OpenCL compiles a plan's programs to PTX; the CUDA driver loads that PTX
 * and launches it with the same arguments as the OpenCL driver would.
 *
 *     clmgk_get_cuda_device_info(0, &info, &error);                 the OpenCL device that is CUDA's device 0
 *     clmgk_plan_create(context, &desc, NULL, &plan, &error);       a context of that device, as for OpenCL
 *     clmgk_plan_prepare_cuda(plan, &error);                        loads the programs; no later call does
 *     clmgk_enqueue_forward_cuda(plan, stream, &args, &error);
 *
 * CUDA's driver, libcuda.so.1, is loaded by the first of these calls; the library does not need it otherwise. All calls
 * use the device's primary context (the one that the CUDA runtime and PyTorch use) and restore the thread's current
 * context before they return.
 *
 * Plans, contexts, arrays' shapes and layouts, values, results and thread safety are those of attention.h: a plan
 * serves OpenCL and CUDA at the same time.
 */
#ifndef CLMGK_CUDA_H
#define CLMGK_CUDA_H

#include "attention.h"

/* CUstream of CUDA's driver, cudaStream_t of its runtime. NULL: the default stream. */
typedef struct CUstream_st *clmgk_cuda_stream;

/* The OpenCL device that is CUDA's device `number`, compared by their PCI addresses. Numbers are those of CUDA in this
 * process. Errors: INVALID_VALUE (NULL, struct_size, a number that CUDA has not), UNSUPPORTED (no CUDA driver, or one
 * that lacks a function), NO_DEVICE (no OpenCL platform of NVIDIA's has it; the message gives its address), CUDA. */
CLMGK_API clmgk_status clmgk_get_cuda_device_info(int32_t number, clmgk_device_info *info, clmgk_error *error);

/*
 * Prepares a plan for the calls below: loads its programs through CUDA's driver, which assembles them (up to seconds;
 * CUDA keeps the results on disk), and runs each kernel once on an empty problem. Blocks, but waits only for its own
 * kernels. Again for the same plan: does nothing. Not during the capture of a CUDA graph. Thread-safe.
 *
 * From the first preparation on, the plan's context holds the device's primary context and 64 KiB of its memory. When a
 * program that was loaded is released, with its last plan, the call waits for the device. A CUDA graph that captured
 * launches of a plan must not be launched after the plan is released.
 *
 * Errors: INVALID_VALUE (NULL), UNSUPPORTED (the plan's device is not of NVIDIA's OpenCL driver, is none of CUDA's
 * devices, or there is no CUDA driver; the programs are not PTX that CUDA takes), COMPILE (CUDA's assembler refuses
 * one), CUDA, OUT_OF_*. A later call may try again.
 */
CLMGK_API clmgk_status clmgk_plan_prepare_cuda(clmgk_plan *plan, clmgk_error *error);

/*
 * Like clmgk_plan_get_info, of the kernels that the calls below launch. On compute capability 9.0 a launch may have
 * more local memory than OpenCL has, up to 227 KiB. So plans on the matrix unit wgmma, without parameters of the caller
 * and measured ones, get larger blocks there, if their results in a small problem are those of the plan's own kernels.
 * `engine_reason` ends with the reason where this failed. Workspaces are the plan's. Errors: INVALID_VALUE (NULL,
 * struct_size, a plan that is not prepared).
 */
CLMGK_API clmgk_status clmgk_plan_get_cuda_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error);

/*
 * The arrays of clmgk_attention_args, as addresses of their first elements (CUdeviceptr) in memory that CUDA allocated
 * for the plan's device. 0: no array. An address is a multiple of the element's size; that of the workspace, of
 * clmgk_plan_workspace_size bytes, is a multiple of 4. Arrays whose addresses are multiples of 16 bytes, as all
 * allocations are, are read fastest.
 *
 * Calls check that an address is CUDA's memory of the device, and that no output shares a byte with another array. They
 * cannot check sizes.
 */
typedef struct clmgk_cuda_args {
    size_t struct_size; /* sizeof(clmgk_cuda_args) */
    uint64_t seed;      /* these four as in clmgk_attention_args */
    uint32_t accumulate;
    int64_t parts;
    const clmgk_call_sizes *sizes;
#define CLMGK_CUDA_FIELD(name, field, ...)      uint64_t field;
#define CLMGK_CUDA_GRAD_FIELD(name, field, ...) uint64_t grad_##field;
    CLMGK_ARRAY_LIST(CLMGK_CUDA_FIELD, CLMGK_CUDA_GRAD_FIELD, CLMGK_CUDA_FIELD)
#undef CLMGK_CUDA_FIELD
#undef CLMGK_CUDA_GRAD_FIELD
} clmgk_cuda_args;

#define CLMGK_CUDA_ARGS_INIT CLMGK_INIT(clmgk_cuda_args)

/*
 * Enqueue a pass of a prepared plan on `stream`, a stream of the device's primary context: like clmgk_enqueue_forward,
 * _backward, _statistics, _combine, _mask and _append (attention.h), with the stream's order in place of events. They
 * never compile, allocate, or wait for the device, and may be captured into a CUDA graph.
 * Errors: INVALID_VALUE (NULL, a plan that is not prepared or lacks the pass, a number), INVALID_BUFFER (missing, not
 * CUDA's memory of the device, not aligned, or an output that shares elements), CUDA, for example for a stream of
 * another device. After INVALID_* nothing was enqueued. CUDA reports failures of earlier work at later calls, these
 * included.
 */
CLMGK_API clmgk_status clmgk_enqueue_forward_cuda(clmgk_plan *plan, clmgk_cuda_stream stream,
                                                  const clmgk_cuda_args *args, clmgk_error *error);
CLMGK_API clmgk_status clmgk_enqueue_backward_cuda(clmgk_plan *plan, clmgk_cuda_stream stream,
                                                   const clmgk_cuda_args *args, clmgk_error *error);
CLMGK_API clmgk_status clmgk_enqueue_statistics_cuda(clmgk_plan *plan, clmgk_cuda_stream stream,
                                                     const clmgk_cuda_args *args, clmgk_error *error);
CLMGK_API clmgk_status clmgk_enqueue_combine_cuda(clmgk_plan *plan, clmgk_cuda_stream stream,
                                                  const clmgk_cuda_args *args, clmgk_error *error);
CLMGK_API clmgk_status clmgk_enqueue_mask_cuda(clmgk_plan *plan, clmgk_cuda_stream stream, const clmgk_cuda_args *args,
                                               clmgk_error *error);
CLMGK_API clmgk_status clmgk_enqueue_append_cuda(clmgk_plan *plan, clmgk_cuda_stream stream,
                                                 const clmgk_cuda_args *args, clmgk_error *error);

#endif
