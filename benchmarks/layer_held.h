/* SPDX-License-Identifier: Apache-2.0 */
/* A multi-head layer that the bench measures: its descriptor, and arrays of its own. */
#ifndef BENCH_LAYER_HELD_H
#define BENCH_LAYER_HELD_H

#include "bench.h"

#define LAYER_CACHES 4 /* capacity of the cache, which is full, in sequences */

typedef enum layer_step { FORWARD, TRAINING, DECODING, KINDS } layer_step;

/* A compiled layer with arrays of its own. */
typedef struct held_layer {
    clmgk_layer_desc desc;
    clmgk_attention_desc attention;
    clmgk_layer *layer;
    clmgk_layer_info info;
    cl_mem memory[CLMGK_LAYER_ARRAYS], own[CLMGK_ARRAYS]; /* own: the attention's */
    double *values[CLMGK_LAYER_ARRAYS], *own_values[CLMGK_ARRAYS];
    clmgk_layer_args args;
    clmgk_attention_args attention_args;
} held_layer;

/* What a layer is made for. */
typedef struct layer_wish {
    bench_device *device;
    const bench_shape *shape; /* its heads are those of the width */
    clmgk_context *library;
    clmgk_dtype dtype; /* of X, weights, Y and caches */
} layer_wish;

int64_t bench_layer_width(const bench_shape *shape);

/* `small`: to be checked. On failure `held` holds what bench_close_layer takes. */
tool_exit bench_open_layer(const layer_wish *wish, const bench_variant *variant, layer_step kind, bool small,
                           held_layer *held, tool_error *error);
void bench_close_layer(held_layer *held);

/* Storage type of an array's elements. */
clmgk_dtype bench_layer_dtype(const held_layer *held, clmgk_layer_array array);

/* Bit of the gradient that the array is; 0: another array. */
uint32_t bench_layer_gradient(clmgk_layer_array array);

#endif
