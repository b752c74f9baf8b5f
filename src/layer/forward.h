/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of both passes. */
#ifndef MGK_LAYER_FORWARD_H
#define MGK_LAYER_FORWARD_H

#include "layer/layer.h"

/* Places of Q, K and V, and the columns of their arrays. */
typedef struct mgk_layer_heads {
    mgk_layer_place place[3];
    int64_t ld[3];
} mgk_layer_heads;

/* A projection's input: Y, X2 or X3. */
typedef enum mgk_layer_input { MGK_LAYER_FIRST, MGK_LAYER_SECOND, MGK_LAYER_THIRD } mgk_layer_input;

/* A matrix of weights, or some rows of one, and the columns of the projection that it makes. */
typedef struct mgk_layer_projection {
    mgk_layer_input input;
    int64_t width;          /* of its input */
    int64_t rows, ld;       /* of the array of the projections of Y, or of X2 and X3 */
    int64_t columns, first; /* its own columns there */
    mgk_layer_place weight, grad;
    uint32_t gradient;
} mgk_layer_projection;

/* Rows of the model's width, without dropout. */
mgk_norm_rows mgk_layer_width_rows(const clmgk_layer *layer);

/* Lists the layer's projections, Q's first; returns their number. */
size_t mgk_layer_projections(const clmgk_layer *layer, mgk_layer_projection list[3]);

/* An input's array; `y` is the place of Y. */
mgk_layer_place mgk_layer_input_at(const clmgk_layer *layer, mgk_layer_input input, mgk_layer_place y);

/* Y: X or, with norm PRE, the normalised X in the workspace; its statistics go to `statistics`, if that is a place. */
mgk_layer_place mgk_layer_normalised(mgk_layer_builder *builder, mgk_layer_place statistics);

/* Places of Q, K and V after the projections; and for the attention, after row kernels if any work is left for them.
 * `again`: in the backward pass, from the arrays that the forward pass kept. */
mgk_layer_heads mgk_layer_projected(const clmgk_layer *layer, mgk_layer_place p_q, mgk_layer_place p_k);
mgk_layer_heads mgk_layer_finished(mgk_layer_builder *builder, const mgk_layer_heads *in, bool again);

/* Rows for some of Q, K and V, in place; and the parameters of their operation except the biases. With a second input Q
 * is processed alone. */
mgk_heads_rows mgk_layer_head_rows(const clmgk_layer *layer, const bool with[3]);
void mgk_layer_bind_heads(mgk_layer_builder *builder, mgk_layer_operation *operation, const bool with[3]);

#endif
