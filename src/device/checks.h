/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of an enqueue function's arguments: queues, events and buffers must belong to the context. */
#ifndef MGK_CHECKS_H
#define MGK_CHECKS_H

#include "device/device.h"

/* A queue of the context and its device. */
clmgk_status mgk_check_queue(const clmgk_context *context, cl_command_queue queue, clmgk_error *error);

/* Events of the context, and their number. */
clmgk_status mgk_check_wait_list(const clmgk_context *context, cl_uint num_wait, const cl_event *wait_list,
                                 clmgk_error *error);

/* A buffer of the context, with room for `bytes` bytes after its offset in elements of `element` bytes. */
clmgk_status mgk_check_memory(const clmgk_context *context, const clmgk_buffer *buffer, const char *name,
                              uint64_t element, uint64_t bytes, clmgk_error *error);

/* A workspace of `bytes` bytes, which may be 0. */
clmgk_status mgk_check_workspace(const clmgk_context *context, const clmgk_buffer *workspace, uint64_t bytes,
                                 clmgk_error *error);

#endif
