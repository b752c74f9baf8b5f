/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of an enqueue function's arguments: queues, events and buffers must belong to the context. */
#ifndef MGK_CHECKS_H
#define MGK_CHECKS_H

#include "device/cuda.h"
#include "device/extents.h"

/* A queue of the context and its device. */
clmgk_status mgk_check_queue(const clmgk_context *context, cl_command_queue queue, clmgk_error *error);

/* Events of the context, and their number. */
clmgk_status mgk_check_wait_list(const clmgk_context *context, cl_uint num_wait, const cl_event *wait_list,
                                 clmgk_error *error);

/* Accesses of kernels to an array, and of a library on the host, which maps its buffer. */
enum { MGK_READ = 1, MGK_WRITE = 2, MGK_HOST_READ = 4, MGK_HOST_WRITE = 8 };

enum { MGK_OPERANDS = 160 }; /* most arrays of a call */

/* An array of a call. */
typedef struct mgk_operand {
    const char *name;
    const clmgk_buffer *buffer; /* its offset is in elements of `element` bytes */
    const mgk_extent *extent;
    uint64_t element;
    int access;
    /* Set by the array's check: the buffer of which this one may be a part, and the byte of the first element in it. */
    cl_mem whole;
    int64_t begin;
} mgk_operand;

/* The arrays of a call. */
typedef struct mgk_operands {
    mgk_operand item[MGK_OPERANDS];
    size_t count;
    mgk_extent workspace;
} mgk_operands;

/* Adds a workspace of `bytes` bytes (0: none) to the operands, which must not move until they are checked. */
clmgk_status mgk_operands_add_workspace(mgk_operands *operands, const clmgk_buffer *workspace, uint64_t bytes,
                                        clmgk_error *error);

/* Checks that each array is a buffer of the context, with room for its extent, that kernels may access, and that no
 * output shares a byte with another array. */
clmgk_status mgk_check_operands(const clmgk_context *context, mgk_operands *operands, clmgk_error *error);

/* The same for addresses in the place of buffers: they are the device's memory, and no output shares a byte with
 * another array. */
clmgk_status mgk_check_addresses(const mgk_cuda *cuda, mgk_operands *operands, clmgk_error *error);

#endif
