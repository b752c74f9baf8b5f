/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sub-group layer, for devices that work in host memory and have no sub-groups: the device says that it has some, and a
 * shuffle is two barriers around memory at an address that host and kernels know. So a shuffle that not all work-items
 * of a work-group call, or that is at the wrong one, is noticed on any CPU.
 */
#include "layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXTENSIONS " cl_khr_subgroup_shuffle cl_intel_required_subgroup_size"

/* 2^24 numbers, one for each work-item; work-groups that share some would have to be 16 million work-items apart. */
#define ADDRESS   0x100000000000
#define ITEMS     16777216
#define TEXT(x)   #x
#define NUMBER(x) TEXT(x)

/* Without a space: drivers split options there. */
static const char shuffle[] =
    " -Dsub_group_shuffle_xor(x,m)=({"
    "__global/**/float*const/**/own_=(__global/**/float*)" NUMBER(ADDRESS) "UL+get_global_id(0)%" NUMBER(
        ITEMS) ";"
               "barrier(CLK_GLOBAL_MEM_FENCE);*own_=(x);barrier(CLK_GLOBAL_MEM_FENCE);"
               "own_[(long)(get_local_id(0)^(m))-(long)get_local_id(0)];})";

const char layer_name[] = "sub-group layer";

static cl_int CL_API_CALL with_extensions(cl_device_id device, cl_device_info name, size_t size, void *value,
                                          size_t *size_out)
{
    size_t own = 0;
    const cl_int code = layer_next.clGetDeviceInfo(device, name, size, value, &own);
    if (code == CL_SUCCESS && size_out != NULL)
        *size_out = own + (name == CL_DEVICE_EXTENSIONS ? sizeof(EXTENSIONS) - 1 : 0);
    if (code == CL_SUCCESS && name == CL_DEVICE_EXTENSIONS && value != NULL && size >= own + sizeof(EXTENSIONS) - 1)
        memcpy((char *)value + own - 1, EXTENSIONS, sizeof(EXTENSIONS));
    return code;
}

static cl_int CL_API_CALL with_shuffle(cl_program program, cl_uint count, const cl_device_id *devices,
                                       const char *options, void(CL_CALLBACK *notify)(cl_program program, void *user),
                                       void *user)
{
    char all[4096];
    (void)snprintf(all, sizeof(all), "%s%s", options != NULL ? options : "", shuffle);
    return layer_next.clBuildProgram(program, count, devices, all, notify, user);
}

void layer_install(cl_icd_dispatch *table)
{
    const size_t size = ITEMS * sizeof(float);
    void *const at = (void *)ADDRESS;
    if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != at)
        abort();
    table->clGetDeviceInfo = with_extensions;
    table->clBuildProgram = with_shuffle;
}
