/* SPDX-License-Identifier: Apache-2.0 */
/* What a test tells the layer that stands in for NVIDIA's driver, and what it counts. */
#ifndef CLMGK_TESTS_NVIDIA_LAYER_H
#define CLMGK_TESTS_NVIDIA_LAYER_H

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
    NVIDIA_WRONG          /* the program computes something else */
} nvidia_fault;

typedef struct nvidia_state {
    nvidia_fault fault;
    const char *of;      /* NULL: no program */
    int no_mma;          /* the older unit's probe gives wrong numbers */
    const char *version; /* of the driver; NULL: the CPU's */
    int compiled;        /* programs from source, those whose binary is edited included */
    int loaded;          /* programs that were built from a binary */
} nvidia_state;

typedef nvidia_state *nvidia_layer_state_fn(void);

#endif
