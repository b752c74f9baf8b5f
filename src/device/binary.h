/* SPDX-License-Identifier: Apache-2.0 */
/* Binaries of OpenCL programs, for the context's device. */
#ifndef MGK_BINARY_H
#define MGK_BINARY_H

#include "device/device.h"

/* The binary of a built program, in *binary (mgk_free). */
clmgk_status mgk_binary_get(const clmgk_context *context, cl_program program, char **binary, size_t *length,
                            clmgk_error *error);

/* The program of a binary, which is not built yet. */
clmgk_status mgk_binary_load(const clmgk_context *context, const char *binary, size_t length, cl_program *program,
                             clmgk_error *error);

#endif
