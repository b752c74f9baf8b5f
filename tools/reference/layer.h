/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference of the multi-head attention layer (clmgk/layer.h): forward and all gradients in double precision, in
 * plain loops over the reference of attention, and their bounds.
 */
#ifndef CLMGK_REFERENCE_LAYER_H
#define CLMGK_REFERENCE_LAYER_H

#include "clmgk/layer.h"
#include "reference/reference.h"

/*
 * A layer's problem. `desc` is resolved, its field `attention` is ignored: `attention` has the resolved descriptor of
 * the attention inside, the seed, and the parameters, dC and dz of a call (q, k, v and dO are made here). The arrays,
 * a field for each line A of CLMGK_LAYER_ARRAY_LIST, are dense and hold the values of the stored elements. cache_k and
 * cache_v: as they are before the call, or with `cache_is_full` after it: the call's tokens are in them already,
 * rounded to the types of a cache (of attention.scale_k and scale_v the numbers are then the stored ones). Integers,
 * too, are doubles. grad_out NULL: zero. Outputs and bytes are ignored.
 */
typedef struct clmgk_ref_layer {
    clmgk_layer_desc desc;
    clmgk_ref_problem attention;
    bool cache_is_full;
#define CLMGK_REF_LAYER_FIELD(name, field, ...) const double *field;
    CLMGK_LAYER_ARRAY_LIST(CLMGK_REF_LAYER_FIELD, CLMGK_ARRAY_NONE)
#undef CLMGK_REF_LAYER_FIELD
} clmgk_ref_layer;

/* Elements of an array; 0 if the layer lacks it. */
int64_t clmgk_ref_layer_count(const clmgk_ref_layer *layer, clmgk_layer_array array);

typedef enum clmgk_ref_layer_output {
    CLMGK_REF_LAYER_OUT,
    CLMGK_REF_LAYER_CACHE_K,
    CLMGK_REF_LAYER_CACHE_V,
    CLMGK_REF_LAYER_OUTPUTS
} clmgk_ref_layer_output;

/* In the order of the bits of clmgk_layer_gradient. */
typedef enum clmgk_ref_layer_gradient {
#define CLMGK_REF_LAYER_GRADIENT(name, ...) CLMGK_REF_LAYER_GRAD_##name,
    CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_REF_LAYER_GRADIENT)
#undef CLMGK_REF_LAYER_GRADIENT
        CLMGK_REF_LAYER_GRADIENTS
} clmgk_ref_layer_gradient;

_Static_assert((int)CLMGK_REF_LAYER_GRADIENTS <= CLMGK_REF_ARRAYS, "gradients of a layer");

/*
 * Exact values and bounds of all that the layer has, for clmgk_ref_check_array. The plain formula sums in f32, in
 * several orders, and rounds to f32 what is no array, to the storage type what is one, and what may be kept in one: the
 * results of projections before and after bias, normalisation and rotation, O, the output projection's result, and
 * their gradients.
 */
typedef struct clmgk_ref_layer_answer {
    clmgk_ref_arrays outputs;   /* by clmgk_ref_layer_output */
    clmgk_ref_arrays state;     /* by clmgk_ref_state; none without a new state */
    clmgk_ref_arrays gradients; /* by clmgk_ref_layer_gradient: of sum(out dout) + sum(C dC) + sum(z dz) */
    clmgk_ref_arrays attention; /* by clmgk_ref_gradient: of the attention's parameters */
} clmgk_ref_layer_answer;

/* Without `backward` there are no gradients. False: out of memory, nothing to free. */
bool clmgk_ref_layer_solve(const clmgk_ref_layer *layer, bool backward, clmgk_ref_layer_answer *answer);
void clmgk_ref_layer_answer_free(clmgk_ref_layer_answer *answer);

/* The exact values alone: out[B N W]; the new state, unless NULL, by clmgk_ref_state. False: out of memory. */
bool clmgk_ref_layer_forward(const clmgk_ref_layer *layer, double *out, double *const state[CLMGK_REF_STATES]);

/* The factor of element (b,n,w) of the output projection's result: 0 or 1 / (1 - dropout). */
double clmgk_ref_layer_dropout(const clmgk_ref_layer *layer, int64_t b, int64_t n, int64_t w);

#endif
