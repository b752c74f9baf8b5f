/* SPDX-License-Identifier: Apache-2.0 */
/* Common to families with a softmax over keys: their kernels' arguments, options, parameters and workspace. */
#ifndef MGK_ATTENTION_H
#define MGK_ATTENTION_H

#include "attention/buffers.clh"
#include "attention/core/family.h"
#include "engine/engine.h"

/* Compile-time properties of a problem. */
typedef struct mgk_attention_traits {
    int head_size;  /* class of D */
    int value_size; /* class of E */
    int components;
    int products;                                      /* score products per key */
    bool noise, shared_noise, shared_mix, generalised; /* of it */
    bool gaussian;                                     /* the rest is the mixture family's, but for `modified` */
    bool shifted;
    bool hard;
    bool has_prior; /* the prior is an array that the scores use */
    bool has_variance;
    bool has_factor; /* scores carry a factor beside the exponent */
    bool modified;   /* bias, ALiBi, soft-cap or dropout */
} mgk_attention_traits;

/* A pass to be planned. */
typedef struct mgk_attention_request {
    const clmgk_attention_desc *desc; /* resolved */
    const mgk_device_facts *facts;
    const mgk_engine *engine;
    mgk_parameters parameters;
    const mgk_family *family;
    mgk_attention_traits traits;
} mgk_attention_request;

/* D, E rounded up, so that programs are few: a multiple of 16. */
int mgk_size_class(int64_t size);

/* For tuning keys: rounds counts of components or heads beyond 8 up to powers of two. */
int mgk_count_class(int64_t count);

/* A kernel to append to a pass. */
typedef struct mgk_attention_step {
    const char *file;
    const char *name;
    mgk_flags flags;
    const mgk_tunables *tunables; /* NULL: the kernel has none */
    const clmgk_array *buffers;
    size_t buffer_count;
    const void *args; /* begins with mgk_bound */
    size_t args_bytes;
    size_t global; /* work-items; 0: none to run */
    size_t local;
} mgk_attention_step;

/* The flags of a problem, common and of the family; a step adds its own. */
mgk_flags mgk_attention_flags(const mgk_attention_request *request);

/* Appends a step. */
mgk_step *mgk_attention_add(const mgk_attention_step *step, mgk_pass_plan *plan);

/* The run-time arguments of a problem, without offsets in the workspace and the call's part. */
mgk_forward_args mgk_attention_args_of(const mgk_attention_request *request);
mgk_place mgk_place_of(const clmgk_layout *layout);
mgk_component_place mgk_component_place_of(const clmgk_layout *layout);

/* Reads the request's parameters, sets defaults of the others, and computes the block. */
clmgk_status mgk_attention_fit(const mgk_attention_request *request, const mgk_footprint *footprint,
                               mgk_tunables *tunables, mgk_block *block, clmgk_error *error);

/* The flags of a kernel with this block: the problem's and the engine's. */
mgk_flags mgk_attention_block_flags(const mgk_attention_request *request, const mgk_tunables *tunables,
                                    const mgk_block *block);

/* Whether `splits` was tuned, perhaps for another shape, to more than 1. */
bool mgk_attention_splits_tuned(const mgk_tunables *tunables);

/* B; packed: T. */
int64_t mgk_attention_problems(const clmgk_attention_desc *desc);

/* Rows of a problem; packed: of a sequence on average. */
int64_t mgk_attention_rows(const clmgk_attention_desc *desc);

/* Number of work-groups of the forward pass, each with `rows` rows of one of `heads` heads or groups of heads; number
 * of work-groups with work. */
int64_t mgk_attention_groups(const clmgk_attention_desc *desc, int64_t heads, int64_t rows);
int64_t mgk_attention_busy_groups(const clmgk_attention_desc *desc, int64_t heads, int64_t rows);

/* Default number of ranges of keys, one for each work-group of a block of rows. */
int mgk_attention_splits(const mgk_attention_request *request, int64_t heads, int64_t rows, int64_t tile);

/* Sets args->splits to the plan's, and places the partial results in the workspace. UNSUPPORTED: with splits tuned for
 * another shape, these would be larger than the arrays. */
clmgk_status mgk_attention_forward_splits(const mgk_attention_request *request, mgk_pass_plan *plan,
                                          mgk_forward_args *args, clmgk_error *error);

/* Appends the combination of partial results: the caller's, or (`internal`) the workspace's. */
mgk_step *mgk_attention_add_combine(const mgk_attention_request *request, bool internal, const mgk_forward_args *args,
                                    mgk_pass_plan *plan);
clmgk_status mgk_attention_plan_combine(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

#endif
