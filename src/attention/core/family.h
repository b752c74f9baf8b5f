/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A family of variants: what the plan asks of it. To add a variant of an existing family, extend the family's file
 * and give CLMGK_VARIANT_LIST a line; to add a family, write its file and give mgk_families a line.
 */
#ifndef MGK_FAMILY_H
#define MGK_FAMILY_H

#include "device/device.h"
#include "tuning/tunables.h"

/* Largest argument structure of a kernel, and buffers beside it at most: OpenCL promises 1024 bytes for all arguments
 * together. */
#define MGK_ARGS_BYTES  880
#define MGK_MAX_BUFFERS 18
/* Kernels of a pass at most. */
#define MGK_MAX_STEPS 16

/* What a plan can be asked to enqueue. */
typedef enum mgk_pass { MGK_FORWARD, MGK_BACKWARD, MGK_STATISTICS, MGK_COMBINE, MGK_PASSES } mgk_pass;

/* The arrays of a call: clmgk_attention_args, clmgk_gradient_args, clmgk_statistic_args, clmgk_combine_args. */
typedef enum mgk_array {
    MGK_Q,
    MGK_K,
    MGK_V,
    MGK_O,
    MGK_LSE,
    MGK_PRIOR,
    MGK_VARIANCE,
    MGK_SHIFT,
    MGK_LENGTHS,
    MGK_LENGTHS_Q,
    MGK_OFFSETS,
    MGK_OFFSETS_K,
    MGK_BIAS,
    MGK_SLOPES,
    MGK_SINKS,
    MGK_MIX,
    MGK_MIX_WEIGHT,
    MGK_MIX_OFFSET,
    MGK_NOISE,
    MGK_GRAD_O,
    MGK_GRAD_LSE,
    MGK_GRAD_Q, /* from here on in the order of clmgk_gradient's bits */
    MGK_GRAD_K,
    MGK_GRAD_V,
    MGK_GRAD_PRIOR,
    MGK_GRAD_VARIANCE,
    MGK_GRAD_SHIFT,
    MGK_GRAD_BIAS,
    MGK_GRAD_SINKS,
    MGK_GRAD_MIX,
    MGK_GRAD_MIX_WEIGHT,
    MGK_GRAD_MIX_OFFSET,
    MGK_GRAD_NOISE,
    MGK_RESPONSIBILITIES,
    MGK_COUNTS,
    MGK_NEW_PRIOR,
    MGK_NLL,
    MGK_PARTS_O,
    MGK_PARTS_LSE,
    MGK_WORKSPACE, /* of any shape: offset in bytes */
    MGK_ARRAYS
} mgk_array;

/* One call: its arrays (never NULL; memory NULL: not given) and numbers. */
typedef struct mgk_call {
    const clmgk_buffer *arrays[MGK_ARRAYS];
    uint64_t seed;
    uint32_t accumulate; /* set of clmgk_gradient */
    int64_t parts;       /* of MGK_COMBINE */
} mgk_call;

/* One kernel of a plan, chosen and ready to be built and bound. */
typedef struct mgk_kernel_plan {
    const char *file;                   /* of cl/ */
    const char *name;                   /* of the kernel */
    mgk_text options;                   /* of the compiler */
    mgk_launch launch;                  /* global[0] = 0: nothing to do */
    uint64_t local_bytes;               /* local memory of a work-group */
    uint64_t private_bytes;             /* private arrays of a work-item */
    unsigned char args[MGK_ARGS_BYTES]; /* the kernel's first argument, offsets still 0 */
    size_t args_bytes;
    size_t buffers;                    /* its other arguments */
    mgk_array buffer[MGK_MAX_BUFFERS]; /* in their order */
    mgk_array out;                     /* the one array that a reduction writes; else MGK_ARRAYS */
} mgk_kernel_plan;

/* The kernels of a pass, to be run one after the other; 0 steps: the plan can't do it. */
typedef struct mgk_pass_plan {
    mgk_tunables tunables; /* in use by the main kernel */
    size_t main;           /* the step that does the work: its options, local and private bytes are shown */
    uint64_t workspace_bytes;
    size_t steps;
    mgk_kernel_plan step[MGK_MAX_STEPS];
} mgk_pass_plan;

typedef struct mgk_family {
    const char *name;

    /* What only this family knows of a descriptor whose axes and strides are already checked; fills in defaults of
     * score and components. */
    clmgk_status (*resolve)(clmgk_attention_desc *desc, clmgk_error *error);

    /* Chooses parameters and fills `plan` (all zero but the texts' allocators) for one pass of a resolved descriptor
     * on `engine`. UNSUPPORTED, with the reason, where the engine can't do it on this device, or where tuned values
     * would break a promise on the workspace. The steps' options are the caller's to free, also after a failure. */
    clmgk_status (*plan)(const clmgk_attention_desc *desc, const mgk_device_facts *facts, clmgk_engine engine,
                         mgk_parameters parameters, mgk_pass pass, mgk_pass_plan *plan, clmgk_error *error);

    /* The parameters (names, ends with NULL) on which the rounding of this problem's scores depends: forward and
     * backward pass must agree on them, and on the engine. NULL: scores are the same whatever engine and parameters. */
    const char *const *(*score_tunables)(const clmgk_attention_desc *desc, clmgk_engine engine);

    /* Copies step->args to `args` with the offsets (elements) and presence of the arrays of one call. */
    void (*bind)(const mgk_kernel_plan *step, const mgk_call *call, void *args);
} mgk_family;

extern const mgk_family mgk_mixture_family;
extern const mgk_family mgk_admixture_family;

/* The family of a variant; NULL for a number that is none. */
const mgk_family *mgk_family_of(clmgk_variant variant);

/* Shape of an array of a resolved descriptor in axis order, with its strides: `rank` axes of `size` and `stride`
 * (elements), and the bytes of an element. Arrays that the descriptor does not use have rank 0. */
typedef struct mgk_shape {
    int rank;
    int64_t size[5];
    int64_t stride[5];
    size_t element;
    const char *name;
} mgk_shape;
mgk_shape mgk_shape_of(const clmgk_attention_desc *desc, mgk_array array);
/* (PARTS_O and PARTS_LSE have the shape of one part.) */

/* Elements from the first to one past the last (0 for an empty array); false on overflow. */
bool mgk_shape_extent(const mgk_shape *shape, int64_t *extent);

/* Whether a call must, may or can't have the array. */
typedef enum mgk_presence { MGK_ABSENT, MGK_OPTIONAL, MGK_REQUIRED } mgk_presence;
mgk_presence mgk_presence_of(const clmgk_attention_desc *desc, mgk_pass pass, mgk_array array);

/* Whether a call of `pass` writes the array. */
bool mgk_is_output(mgk_pass pass, mgk_array array);

#endif
