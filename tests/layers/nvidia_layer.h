/* SPDX-License-Identifier: Apache-2.0 */
/* What a test tells the layer that stands in for NVIDIA's driver, and what it counts. */
#ifndef CLMGK_TESTS_NVIDIA_LAYER_H
#define CLMGK_TESTS_NVIDIA_LAYER_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>

/* Failures of the programs whose text has the words `of`; but for the first, of those that the library edits. */
typedef enum nvidia_fault {
    NVIDIA_NO_FAULT,
    NVIDIA_COMPILE_REFUSED,
    NVIDIA_NO_PTX,        /* the binary is machine code */
    NVIDIA_OTHER_TARGET,  /* PTX for another device */
    NVIDIA_NO_COMMENTS,   /* the compiler drops them */
    NVIDIA_NO_BINARY,     /* it can't be had */
    NVIDIA_LOAD_REFUSED,  /* clCreateProgramWithBinary fails */
    NVIDIA_BUILD_REFUSED, /* clBuildProgram fails */
    NVIDIA_WRONG,         /* the program computes something else */
    NVIDIA_LAUNCH_REFUSED /* of any program: no kernel of it runs */
} nvidia_fault;

typedef struct nvidia_state {
    nvidia_fault fault;
    const char *of;      /* NULL: no program */
    int no_pci;          /* the driver does not state the device's PCI address */
    int no_mma;          /* the older unit's probe gives wrong numbers */
    const char *version; /* of the driver; NULL: the CPU's */
    cl_ulong local;      /* bytes of the device's local memory; 0: the CPU's */
    int local_is_shared; /* what a work-group takes for itself is of those bytes: kernels beyond them do not run */
    int compiled;        /* programs from source, those whose binary is edited included */
    int loaded;          /* programs that were built from a binary */
} nvidia_state;

typedef nvidia_state *nvidia_layer_state_fn(void);

/* The driver adds to a kernel's local memory what each work-group takes for itself. */
#define NVIDIA_LOCAL_OF_GROUP 1024

/* The device's PCI address: domain, bus, device, function. */
#define NVIDIA_PCI                                                                                                     \
    {                                                                                                                  \
        1, 0xb3, 2, 0                                                                                                  \
    }

/* The program that a PTX stands for, and the bytes of the first argument of its kernel `name`. 0: there is none. */
typedef int nvidia_layer_kernel_fn(const char *ptx, const char *name, cl_program *program, size_t *first);

#endif
