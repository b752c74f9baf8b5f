/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the OpenCL layers of the tests share. A layer is loaded by the ICD loader (OPENCL_LAYERS=path) and
 * sits between a program and the driver. The loader ignores a layer it cannot load: users require the layer's banner.
 */
#ifndef CLMGK_TESTS_LAYER_H
#define CLMGK_TESTS_LAYER_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>
#include <CL/cl_layer.h>

/* Each layer defines its name and installs the entries that it replaces. */
extern const char layer_name[];
void layer_install(cl_icd_dispatch *table);

/* The answer to a query of information. */
cl_int layer_give(const void *value, size_t size, size_t room, void *out, size_t *size_out);

/* The functions below the layer. */
extern cl_icd_dispatch layer_next;

#endif
