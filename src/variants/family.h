/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A family of variants: what the plan asks of it. To add a variant of an existing family, extend the family's file
 * and give CLMGK_VARIANT_LIST a line; to add a family, write its file and give mgk_families a line.
 */
#ifndef MGK_FAMILY_H
#define MGK_FAMILY_H

#include "device/device.h"
#include "tuning/tunables.h"

/* Largest argument structure of a kernel. */
#define MGK_ARGS_BYTES 512
/* Kernel arguments at most: the structure and the buffers. */
#define MGK_MAX_BUFFERS 16

/* The arrays of a call, by their place in clmgk_attention_args. */
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
    MGK_ARRAYS
} mgk_array;

/* One kernel of a plan, chosen and ready to be built and bound. */
typedef struct mgk_kernel_plan {
    const char *file;       /* of cl/ */
    const char *name;       /* of the kernel */
    mgk_text options;       /* of the compiler */
    mgk_tunables tunables;  /* in use */
    mgk_launch launch;      /* global[0] = 0: nothing to do */
    uint64_t local_bytes;   /* local memory of a work-group */
    uint64_t private_bytes; /* private arrays of a work-item */
    uint64_t workspace_bytes;
    unsigned char args[MGK_ARGS_BYTES]; /* the kernel's first argument, offsets still 0 */
    size_t args_bytes;
    size_t buffers;                    /* its other arguments */
    mgk_array buffer[MGK_MAX_BUFFERS]; /* in their order */
} mgk_kernel_plan;

typedef struct mgk_family {
    const char *name;

    /* What only this family knows of a descriptor whose axes and strides are already checked; fills in defaults of
     * score and components. */
    clmgk_status (*resolve)(clmgk_attention_desc *desc, clmgk_error *error);

    /* Chooses parameters and fills `plan` for a resolved descriptor on `engine`. UNSUPPORTED, with the reason, where
     * the engine can't do it on this device. plan->options is the caller's to free, also after a failure. */
    clmgk_status (*plan)(const clmgk_attention_desc *desc, const mgk_device_facts *facts, clmgk_engine engine,
                         const char *parameters, mgk_kernel_plan *plan, clmgk_error *error);

    /* Copies plan->args to `args` with the offsets (elements) and presence of the arrays of one call. */
    void (*bind)(const mgk_kernel_plan *plan, const clmgk_buffer *const arrays[MGK_ARRAYS], void *args);
} mgk_family;

extern const mgk_family mgk_mixture_family;

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

/* Elements from the first to one past the last (0 for an empty array); false on overflow. */
bool mgk_shape_extent(const mgk_shape *shape, int64_t *extent);

/* Whether a call must, may or can't have the array. */
typedef enum mgk_presence { MGK_ABSENT, MGK_OPTIONAL, MGK_REQUIRED } mgk_presence;
mgk_presence mgk_presence_of(const clmgk_attention_desc *desc, mgk_array array);

#endif
