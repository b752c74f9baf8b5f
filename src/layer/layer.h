/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The multi-head attention layer: a list of operations (products, attention, row kernels), each a list of steps over
 * places: arrays of the call, and regions of the activations and of the workspace.
 */
#ifndef MGK_LAYER_H
#define MGK_LAYER_H

#include "attention/plan.h"
#include "clmgk/layer.h"
#include "gemm/gemm.h"

/* Columns and rows of a resolved layer. */
typedef struct mgk_layer_sizes {
    int64_t rows, rows_k;              /* B N, B S (with a cache: B N, the new tokens) */
    int64_t q, k, v, o;                /* columns of all heads of Q, K, V, O */
    int64_t heads_q, heads_k, heads_v; /* heads of D, D and E columns each */
    int64_t ld_q, ld_k;                /* columns of the array that Q lies in, that K and V lie in */
} mgk_layer_sizes;

mgk_layer_sizes mgk_layer_measure(const clmgk_layer_desc *resolved);

/* Where an operand lies: an array of the call (an array of the layer; or of the attention inside), or a region of the
 * activations or of the workspace. */
typedef enum mgk_base {
    MGK_BASE_NONE,
    MGK_BASE_LAYER,
    MGK_BASE_ATTENTION,
    MGK_BASE_ACTIVATIONS,
    MGK_BASE_WORKSPACE
} mgk_base;

typedef struct mgk_place {
    mgk_base base;
    int array;      /* of LAYER and ATTENTION */
    int64_t offset; /* LAYER, ATTENTION: in elements; else in bytes */
    size_t element; /* bytes: the unit of the call's offset */
} mgk_place;

/* An operation: the steps of a plan, and the place of each of their buffers. */
typedef struct mgk_layer_operation {
    mgk_steps *steps;
    mgk_place place[MGK_CALL_BUFFERS];
    uint64_t added;    /* set of buffers: results are added */
    bool is_attention; /* buffers without a place come from the call's attention arrays; so do seed and `added` */
} mgk_layer_operation;

#define MGK_LAYER_OPERATIONS 24

typedef struct mgk_layer_pass {
    mgk_layer_operation operation[MGK_LAYER_OPERATIONS];
    size_t count;
    uint64_t workspace_bytes;
} mgk_layer_pass;

#endif
