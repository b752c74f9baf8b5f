/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the programs and kernels of a test that is linked with WRAP clBuildProgram clCreateKernel. */
#ifndef TESTS_MADE_H
#define TESTS_MADE_H

#include "harness/harness.h"

static size_t made; /* programs and kernels */

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): names that the linker's --wrap gives */
cl_int __real_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data);
cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data);
cl_kernel __real_clCreateKernel(cl_program program, const char *name, cl_int *code);
cl_kernel __wrap_clCreateKernel(cl_program program, const char *name, cl_int *code);

cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data)
{
    made++;
    return __real_clBuildProgram(program, count, devices, options, notify, data);
}

cl_kernel __wrap_clCreateKernel(cl_program program, const char *name, cl_int *code)
{
    made++;
    return __real_clCreateKernel(program, name, code);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

#endif
