/* SPDX-License-Identifier: Apache-2.0 */
/* Common to families with a softmax over keys: their kernels' arguments, options, parameters and workspace. */
#ifndef MGK_ATTENTION_H
#define MGK_ATTENTION_H

#include "attention/buffers.clh"
#include "attention/core/family.h"
#include "engine/engine.h"
#include "operation/place.h"

/* Compile-time properties of a problem. */
typedef struct mgk_attention_traits {
    int head_size;  /* class of D */
    int value_size; /* class of E */
    int components;
    int products;                                      /* score products per key */
    int hidden;                                        /* hidden units of mixed heads; 0: no hidden layer */
    int after;                                         /* heads that are mixed after the softmax; 0: none */
    int head_ratio;                                    /* H / G */
    bool noise, shared_noise, shared_mix, generalised; /* of it */
    bool gaussian;                                     /* the rest is the mixture family's, but for `modified` */
    bool shifted;
    bool hard;
    bool has_prior; /* the prior is an array that the scores use */
    bool has_variance;
    bool has_factor; /* scores carry a factor beside the exponent */
    bool modified;   /* bias, ALiBi, soft-cap or dropout */
} mgk_attention_traits;

/* A part of a cascade (core/cascade.c): where its partial results begin, in the workspace. */
typedef struct mgk_cascade_part {
    bool prefix; /* its keys are those of the prefix */
    int64_t splits;
    mgk_i64 parts_lse, parts_low, parts_o;
} mgk_cascade_part;

/* A pass to be planned. */
typedef struct mgk_attention_request {
    const clmgk_attention_desc *desc;   /* resolved: the plan's, or a call's, whose sizes differ */
    const clmgk_attention_desc *limits; /* the plan's: programs, parameters and blocks are chosen by its sizes, numbers
                                         * of work-groups, arguments and workspace by those of `desc` */
    int64_t most_splits;                /* 0: any, as far as programs allow */
    const mgk_device_facts *facts;
    const mgk_engine *engine;
    mgk_parameters parameters;
    const mgk_family *family;
    mgk_attention_traits traits;
    mgk_cascade_part *part; /* NULL: the whole pass. Else mgk_forward_plan adds the part's kernel alone, and sets
                             * `splits`, the number of its partial results */
} mgk_attention_request;

/* Whether scores or weights have a bias, ALiBi, a soft-cap, dropout, or a text. */
bool mgk_is_modified(const clmgk_attention_desc *desc);

/* The unit of the kernels' scores (cl/attention/units.clh): so many in a nat. */
double mgk_attention_unit(const clmgk_attention_desc *desc);

/* D, E rounded up, so that programs are few: a multiple of 16, or 8 in families with narrow heads. */
int mgk_size_class(const mgk_family *family, int64_t size);

/* For tuning keys: rounds counts of components or heads beyond 8 up to powers of two. */
int mgk_count_class(int64_t count);

/* A kernel to append to a pass. */
typedef struct mgk_attention_step {
    const char *file;
    const char *name;
    mgk_flags flags;
    const mgk_tunables *tunables; /* NULL: the kernel has none */
    const mgk_block *block;       /* an engine's; NULL: none */
    mgk_binding *bind;            /* of the kernel's list of buffers; NULL: the caller binds the step */
    const void *args;             /* begins with mgk_bound */
    size_t args_bytes;
    size_t global;        /* work-items, with a block work-groups; 0: none to run */
    size_t local;         /* without a block */
    const char *compiler; /* without a block, options of the device's compiler; NULL: none */
} mgk_attention_step;

/* The flags of a problem: those of its arrays, the other common ones, then the family's set_flags; a step adds its own.
 */
mgk_flags mgk_attention_flags(const mgk_attention_request *request);

/* Appends a step. */
mgk_step *mgk_attention_add(const mgk_attention_step *step, mgk_pass_plan *plan);

/* Has a kernel that takes array `from` take `to` in its place. */
void mgk_replace_buffer(mgk_step *step, clmgk_array from, clmgk_array to);

/* The run-time arguments of a problem, without offsets in the workspace and the call's part. */
mgk_forward_args mgk_attention_args_of(const mgk_attention_request *request);

/* The part of a footprint that is the same for all passes of all families with a softmax over keys: the problem's
 * sizes, and the text of a pair's score. */
mgk_footprint mgk_attention_footprint(const mgk_attention_request *request);

/* Reads the request's parameters, sets defaults of the others, and computes the block. */
clmgk_status mgk_attention_fit(const mgk_attention_request *request, const mgk_footprint *footprint,
                               mgk_tunables *tunables, mgk_block *block, clmgk_error *error);

/* The flags of a kernel with this block: the problem's and the engine's. */
mgk_flags mgk_attention_block_flags(const mgk_attention_request *request, const mgk_block *block);

/* The flags of a kernel that evaluates the texts of score and mask, and has no block. */
mgk_flags mgk_attention_text_flags(const clmgk_attention_desc *desc);

/* Limits `splits` that nobody has given to those of the request. */
void mgk_attention_limit_splits(const mgk_attention_request *request, mgk_tunables *tunables);

/* Whether `splits` was tuned, perhaps for another shape, to more than 1. */
bool mgk_attention_splits_tuned(const mgk_tunables *tunables);

/* B; packed: T. */
int64_t mgk_attention_problems(const clmgk_attention_desc *desc);

/* Rows of a problem; packed: of a sequence on average. */
int64_t mgk_attention_rows(const clmgk_attention_desc *desc);

/* Keys of a problem; packed: of a sequence on average. */
int64_t mgk_attention_keys(const clmgk_attention_desc *desc);

/* Number of work-groups, each with `rows` rows of one of `heads` heads or groups of heads. */
int64_t mgk_attention_groups(const clmgk_attention_desc *desc, int64_t heads, int64_t rows);

/* The engine's parameters and block for a forward pass. */
typedef struct mgk_forward {
    const mgk_attention_request *request;
    mgk_tunables tunables;
    mgk_block block;
    int64_t head_groups; /* number of heads, or of groups of heads that share a block */
    mgk_flags flags;
} mgk_forward;

clmgk_status mgk_forward_begin(const mgk_attention_request *request, const mgk_footprint *footprint, mgk_forward *pass,
                               clmgk_error *error);

/* Appends `step`, the kernel over keys, with the pass's parameters, block and arguments, for args->splits ranges of
 * keys. */
void mgk_forward_add(const mgk_forward *pass, mgk_attention_step step, const mgk_forward_args *args,
                     mgk_pass_plan *plan);

/* Plans the pass: that kernel, with splits from the parameters, and the combination of partial results. UNSUPPORTED:
 * with splits tuned for another shape, these would be larger than the arrays. */
clmgk_status mgk_forward_plan(const mgk_forward *pass, const mgk_attention_step *step, mgk_forward_args *args,
                              mgk_pass_plan *plan, clmgk_error *error);

/* Plans the forward pass of a descriptor with a prefix: the family's kernel for each part, and their combination. */
clmgk_status mgk_cascade_plan(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

/* Appends the combination of `parts` partial results in the workspace, of `args`; 0: of the caller's. */
void mgk_attention_add_combine(const mgk_attention_request *request, int64_t parts, const mgk_forward_args *args,
                               mgk_pass_plan *plan);

/* UNSUPPORTED: `splits` was tuned for another shape, and partial results of the heads' rows would be larger than the
 * arrays. `parts`: rows of partial results; `rows`: all rows of these heads. */
clmgk_status mgk_attention_check_splits(const mgk_tunables *tunables, const clmgk_attention_desc *desc, int64_t parts,
                                        int64_t rows, clmgk_error *error);

/* Plans the pass that writes new keys and values into their slots. */
clmgk_status mgk_attention_plan_append(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

/* Plans the combination of the caller's partial results. */
clmgk_status mgk_attention_plan_combine(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

#endif
