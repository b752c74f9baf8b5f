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
#include "layer/rows.h"

/* ---- shapes --------------------------------------------------------------------------------------------------- */

/* Rows and columns of a resolved layer. The projections Q, K and V lie in one array, or in two: Q, and K beside V. */
typedef struct mgk_layer_sizes {
    int64_t rows, rows_k;              /* B N, B S (with a cache: B N, the new tokens) */
    int64_t q, k, v, o;                /* columns of all heads of Q, K, V, O */
    int64_t heads_q, heads_k, heads_v; /* heads of D, D and E columns each */
    int64_t ld_q, ld_k;                /* columns of the array of Q; of the array of K and V */
    int64_t at_k, at_v;                /* first column of K and V in their array; Q's is 0 */
} mgk_layer_sizes;

mgk_layer_sizes mgk_layer_measure(const clmgk_layer_desc *resolved);

/* clmgk_layer_validate for descriptors of this version, whatever the size of `desc`; resolved->attention is
 * `attention`. */
clmgk_status mgk_layer_resolve(const clmgk_layer_desc *desc, clmgk_layer_desc *resolved,
                               clmgk_attention_desc *attention, clmgk_error *error);

/* True if a backward pass exists; true if it goes through the attention. */
bool mgk_layer_has_backward(const clmgk_layer_desc *resolved);
bool mgk_layer_differentiates(const clmgk_layer_desc *resolved);

/* True if normalised Q and K get their own dense arrays, because the backward pass needs the values from before the
 * normalisation. */
bool mgk_layer_separates(const clmgk_layer_desc *resolved);

/* The arrays of a resolved descriptor. For a gradient, `exists` says whether it may be requested. */
typedef struct mgk_layer_array_info {
    const char *name; /* of the field */
    clmgk_element element;
    uint32_t gradient; /* bit of a gradient, else 0 */
    bool is_output;    /* some pass writes it */
} mgk_layer_array_info;

const mgk_layer_array_info *mgk_layer_array_get_info(clmgk_layer_array array);
bool mgk_layer_array_exists(const clmgk_layer_desc *resolved, clmgk_layer_array array);
clmgk_presence mgk_layer_array_presence(const clmgk_layer_desc *resolved, clmgk_pass pass, clmgk_layer_array array);
bool mgk_layer_array_is_of_pass(clmgk_pass pass, clmgk_layer_array array);
size_t mgk_layer_element_size(const clmgk_layer_desc *resolved, clmgk_layer_array array);
bool mgk_layer_array_bytes(const clmgk_layer_desc *resolved, clmgk_layer_array array,
                           int64_t *bytes); /* false: overflow */

/* ---- operations ------------------------------------------------------------------------------------------------ */

/* Place of an operand: an array of the call (the layer's, or the inner attention's), or a region of the activations or
 * of the workspace. */
typedef enum mgk_layer_base {
    MGK_LAYER_NOWHERE,
    MGK_LAYER_ARRAY,
    MGK_LAYER_ATTENTION,
    MGK_LAYER_ACTIVATIONS,
    MGK_LAYER_WORKSPACE
} mgk_layer_base;

typedef struct mgk_layer_place {
    mgk_layer_base base;
    int index;      /* the number of the array, or of the workspace's region */
    int64_t offset; /* in elements from the array's start; for the activations, and for the workspace once the pass is
                       made, from their start */
    size_t element; /* bytes; the workspace of steps counts as in mgk_call */
} mgk_layer_place;

/* An operand of an operation: a buffer of its steps' calls. */
typedef struct mgk_layer_operand {
    int buffer;
    mgk_layer_place place;
} mgk_layer_operand;

#define MGK_LAYER_OPERANDS 20 /* most operands of an operation */

typedef struct mgk_layer_operation {
    mgk_steps *steps;
    mgk_layer_operand operand[MGK_LAYER_OPERANDS];
    size_t count;
    uint64_t added;                 /* set of buffers: results are added */
    const clmgk_gemm_plan *product; /* NULL: no product */
    const clmgk_gemm_plan *few;     /* the product of few tokens, for calls with sizes of their own; NULL: the same */
    bool is_attention; /* its other buffers are the call's attention arrays; `accumulate` of the call applies to them */
} mgk_layer_operation;

#define MGK_LAYER_ALIGNMENT 64 /* bytes; of regions, and of a call's activations and workspace */

/* A region of the workspace, from its first operation to its last. */
typedef struct mgk_layer_region {
    uint64_t bytes, begin;
    size_t first, last;
    bool placed;
} mgk_layer_region;

#define MGK_LAYER_OPERATIONS 32
#define MGK_LAYER_REGIONS    48

typedef struct mgk_layer_pass {
    mgk_layer_operation operation[MGK_LAYER_OPERATIONS];
    size_t count;
    mgk_layer_region region[MGK_LAYER_REGIONS];
    size_t regions;
    uint64_t workspace_bytes;
    unsigned char access[CLMGK_LAYER_ARRAYS]; /* MGK_READ, ...: accesses of operations beyond reading inputs and writing
                                                 outputs */
} mgk_layer_pass;

/* Arrays that the forward pass keeps for the backward pass; NOWHERE: not kept. */
typedef struct mgk_layer_kept {
    mgk_layer_place norm;     /* statistics of the layer normalisation, f32 [rows,2] */
    mgk_layer_place p_q, p_k; /* the arrays of Q, and of K and V (without a second input the same) */
    mgk_layer_place o;        /* the heads' results, [B,N,o] */
    mgk_layer_place lse;      /* L, or the denominators */
    mgk_layer_place lse_low;  /* the part of L beyond its float: with attention.use_lse_low */
    mgk_layer_place sum;      /* R, norm POST */
} mgk_layer_kept;

/* An array of the layer, and when calls need it. */
typedef struct mgk_layer_line {
    mgk_extent extent;
    size_t element;
    clmgk_presence presence[2]; /* forward, backward */
} mgk_layer_line;

#define MGK_LAYER_LISTS 32

/* Operations of a call with sizes of its own own these: their steps, and the product. */
typedef struct mgk_layer_call_operation {
    mgk_steps steps;
    clmgk_gemm_plan product;
} mgk_layer_call_operation;

/* The last call with sizes of its own, guarded by the mutex. */
typedef struct mgk_layer_calls {
    pthread_mutex_t mutex;
    clmgk_layer *layer[2]; /* forward, backward: of the call's sizes; its pass runs the kernels of the limits' layer */
    mgk_layer_call_operation *operation[2];
    mgk_sized_call *attention[2];
    clmgk_call_sizes sizes[2]; /* struct_size 0: no call yet */
} mgk_layer_calls;

struct clmgk_layer {
    clmgk_context *context;
    clmgk_layer_desc desc; /* resolved; its attention is the next field */
    clmgk_attention_desc attention;
    mgk_layer_sizes sizes;
    mgk_layer_line line[CLMGK_LAYER_ARRAYS];
    clmgk_plan *plan;                          /* of the attention */
    clmgk_gemm_plan *product[MGK_LAYER_LISTS]; /* NULL after the last */
    mgk_steps *rows[MGK_LAYER_LISTS];          /* lists of row kernels; NULL after the last */
    mgk_layer_calls *calls;                    /* NULL: calls have no sizes of their own */
    const clmgk_layer *limits;                 /* of the layer of a call: the layer itself; NULL: it is no call's */
    mgk_layer_kept kept;
    mgk_layer_pass pass[2]; /* forward, backward */
    clmgk_layer_info info;
};

/* ---- making a pass --------------------------------------------------------------------------------------------- */

/* A pass that is being made. After a failure, which `status` keeps, nothing more is planned, and the pass is never
 * enqueued. */
typedef struct mgk_layer_builder {
    clmgk_layer *layer;
    mgk_layer_pass *pass;
    clmgk_pass which;
    clmgk_error *error;
    clmgk_status status;
    mgk_steps spare; /* stands in for lists after a failure */
} mgk_layer_builder;

/* Places: an array of the call; an array of the inner attention; `count` elements of the activations; of the workspace;
 * the place `elements` behind another. */
mgk_layer_place mgk_layer_at(const clmgk_layer *layer, clmgk_layer_array array);
mgk_layer_place mgk_layer_attention_at(clmgk_array array);
mgk_layer_place mgk_layer_keep(clmgk_layer *layer, int64_t count, size_t element);
mgk_layer_place mgk_layer_room(mgk_layer_builder *builder, int64_t count, size_t element);
mgk_layer_place mgk_layer_behind(mgk_layer_place place, int64_t elements);

/* Binds one of an operation's buffers. A place NOWHERE is not bound. */
void mgk_layer_bind(mgk_layer_builder *builder, mgk_layer_operation *operation, int buffer, mgk_layer_place place);

/* Notes an access of the pass's operation to a place of an array, of the activations or of the workspace. */
void mgk_layer_note_access(mgk_layer_builder *builder, mgk_layer_place place, int access);

/* An empty list for row kernels. */
mgk_rows_list mgk_layer_rows(mgk_layer_builder *builder);

/* Appends an operation of row kernels, whose workspace is `buffer`. */
mgk_layer_operation *mgk_layer_append_rows(mgk_layer_builder *builder, const mgk_rows_list *list, int buffer);

/* Appends C = op(A) op(B) + beta C, in the layer's dtype. */
void mgk_layer_multiply(mgk_layer_builder *builder, clmgk_gemm_desc product, mgk_layer_place a, mgk_layer_place b,
                        mgk_layer_place c);

/* Appends a pass of the attention. */
mgk_layer_operation *mgk_layer_attend(mgk_layer_builder *builder, clmgk_pass pass);

/* True if the descriptor asks for the gradient. */
bool mgk_layer_wants(const clmgk_layer *layer, uint32_t gradient);

/* 1 if the call adds the gradient to its array, else 0. */
double mgk_layer_adds(const clmgk_layer *layer, uint32_t gradient);

/* Lays out a pass's workspace: regions that are not in use at the same time share memory. `limits`: the pass whose
 * layout it takes; NULL: a layout of its own. False: that layout has no room for a region. */
bool mgk_layer_lay_out(mgk_layer_pass *pass, const mgk_layer_pass *limits);

/* Fill the builder's pass. */
void mgk_layer_make_forward(mgk_layer_builder *builder);
void mgk_layer_make_backward(mgk_layer_builder *builder);

/* Takes the sizes of the layer's descriptor; makes a pass of these sizes. */
void mgk_layer_set_sizes(clmgk_layer *layer);
clmgk_status mgk_layer_make_pass(clmgk_layer *layer, clmgk_pass which, clmgk_error *error);

/* ---- calls with sizes of their own ------------------------------------------------------------------------------ */

/* The descriptor of a call within a layer's limits; completes the sizes by keys and layouts. */
clmgk_status mgk_layer_resize(const clmgk_layer_desc *limits, clmgk_call_sizes *sizes, clmgk_layer_desc *desc,
                              clmgk_attention_desc *attention, clmgk_error *error);

/* Makes room for calls of a layer with sizes_at_call, all of whose steps are made. */
clmgk_status mgk_layer_calls_begin(clmgk_layer *layer, clmgk_error *error);
void mgk_layer_calls_free(clmgk_layer *layer);

/* Plans the pass of layer->calls->layer[which] for a call; NULL: the descriptor's sizes. The caller has locked the
 * mutex. */
clmgk_status mgk_layer_calls_plan(clmgk_layer *layer, clmgk_pass which, const clmgk_call_sizes *sizes,
                                  clmgk_error *error);

/* The arrays of the attention in a pass. */
const mgk_plan_array *mgk_layer_attention_arrays(const clmgk_layer *layer, clmgk_pass which);

#endif
