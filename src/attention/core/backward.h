/* SPDX-License-Identifier: Apache-2.0 */
/* Host code common to the families' backward passes. */
#ifndef MGK_ATTENTION_BACKWARD_H
#define MGK_ATTENTION_BACKWARD_H

#include "attention/core/attention.h"

/* Results of a pass. */
typedef struct mgk_backward_wants {
    uint32_t gradients;        /* set of clmgk_gradient */
    bool bias_full;            /* a bias gradient with a row and a key axis */
    bool bias_rows, bias_keys; /* the bias has an axis of more than one */
    bool bias_shared;          /* several tasks would add to the same element of it */
    bool expectation, gamma;
    int64_t numbers;      /* whose gradients a user's score has; 0: none */
    int64_t table_floats; /* elements of all gradients of captured arrays; 0: none */
} mgk_backward_wants;

static inline bool mgk_wants(const mgk_backward_wants *want, clmgk_gradient gradient)
{
    return (want->gradients & (uint32_t)gradient) != 0;
}

/* The gradients that a descriptor requests, the plan's, whose calls may have axes of 1. Assumes that a task is a batch
 * with all its heads: a family with smaller tasks corrects bias_shared. */
mgk_backward_wants mgk_backward_wants_of(const clmgk_attention_desc *desc);

/* The part of a footprint that is the same for all backward passes: blocks hold keys, tiles bring queries. */
mgk_footprint mgk_backward_footprint(const mgk_attention_request *request);

/* A pass under construction. */
typedef struct mgk_backward {
    const mgk_attention_request *request;
    mgk_backward_wants want;
    mgk_pass_plan *plan;
    mgk_flags flags; /* of the kernel of keys */
    mgk_block block; /* of the kernel of keys */
    mgk_backward_args args;
    mgk_i64 region[MGK_REGIONS]; /* offsets in floats, which steps get as the arguments have them */
    int64_t tasks;               /* number of tasks: a work-group processes a list of tasks for its keys */
    int64_t copy_floats;         /* of a copy of dQ; 0: not requested */
    int64_t array_bytes;         /* f32 bytes of a call's larger inputs and outputs */
    int64_t scores;              /* of a pair: each reads captured arrays */
    bool queries_apart;  /* another kernel makes all sums over keys: each block of keys has a work-group of its own */
    bool has_keys;       /* the pass needs the kernel of keys */
    unsigned reductions; /* forms of the kernel of sums that the pass has, 1 << (2 by_variance + grouped) */
    bool rows_private;   /* no other kernel or block of keys needs what the kernel of keys knows of a row */
} mgk_backward;

/* Work-group size of kernels with a work-item per element; number of work-items for `count` elements. */
#define MGK_BACKWARD_ITEMS 64
size_t mgk_backward_items(int64_t count);

/* The flags of the kernels of rows (dQ, dsinks, the rows of a bias gradient) and of the kernel of keys, but for the
 * family's own WANT_. */
mgk_flags mgk_backward_rows_flags(const mgk_backward *pass);

/* Sets the flags of the gradients' storage types. */
void mgk_backward_set_types(const clmgk_attention_desc *desc, mgk_flags *flags);
mgk_flags mgk_backward_main_flags(const mgk_backward *pass);

/* Sets the flags of the gradients of a user's score, in the kernel of keys. */
void mgk_backward_want_texts(const mgk_backward *pass, mgk_flags *flags);

/* Appends a kernel with a work-item for each of `work` elements. */
void mgk_backward_add_rows(mgk_backward *pass, const char *file, const char *name, const mgk_flags *flags,
                           mgk_binding *bind, int64_t work);

/* Appends the kernel of keys, the main step. */
void mgk_backward_add_main(mgk_backward *pass, const char *file, const char *name, mgk_binding *bind);

/* Appends the kernel of queries, with the parameters and the block of the kernel of keys, for `heads` heads of a
 * problem; the main step if there is no kernel of keys. */
void mgk_backward_add_queries(mgk_backward *pass, const char *file, const char *name, const mgk_flags *flags,
                              mgk_binding *bind, int64_t heads);

/* Begins the pass's arguments with the members of all passes. */
void mgk_backward_args_begin(mgk_backward *pass, const mgk_forward_args *args);

/* Whether so many tasks occupy all compute units without a split of their keys. */
bool mgk_backward_keeps_busy(const mgk_attention_request *request, int64_t tasks);

/* Sets splits, chunks and copies of the bias gradient in args, for the parameters in plan->tunables. UNSUPPORTED:
 * values tuned for another shape would make the workspace larger than the arrays, or captured arrays are too large. */
clmgk_status mgk_backward_share(mgk_backward *pass, clmgk_error *error);

/* Places the regions of every family: rows, copies of dQ, bias, sinks. */
void mgk_backward_place(mgk_backward *pass);

/* The sum over batches and rows of the region `in`, [B,count,N]. */
mgk_reduction_args mgk_sum_rows(const clmgk_attention_desc *desc, mgk_i64 in, int64_t count);

/* Adds a step that sums parts of the workspace into `out` (attention/args.clh). `by_variance`: times -ln 2 /
 * sigma_x^2. */
void mgk_backward_add_reduction(mgk_backward *pass, clmgk_array out, bool by_variance, const mgk_reduction_args *args);

/* Adds a step that clears `count` elements from number `first` on, unless results are added to the array's values. */
void mgk_backward_add_zeros(mgk_backward *pass, clmgk_array out, mgk_i64 first, int64_t count);

/* Steps before the main kernel, which clear sums of the gradients of the bias and of a user's score, and after it, for
 * these gradients and the sinks'. */
void mgk_backward_begin_sums(mgk_backward *pass);
void mgk_backward_finish(mgk_backward *pass);

#endif
