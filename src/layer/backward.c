/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass's operations, from the output to the inputs. Only operations that the requested gradients need are
 * made. */
#include "layer/forward.h"

static const mgk_layer_place nowhere = {.base = MGK_LAYER_NOWHERE};

/* If the gradient is requested, binds its array, to which results may be added. */
static void bind_gradient(mgk_layer_builder *b, mgk_layer_operation *operation, int buffer, clmgk_layer_array array,
                          int64_t first)
{
    const clmgk_layer *const layer = b->layer;
    const uint32_t gradient = mgk_layer_array_get_info(array)->gradient;
    if (!mgk_layer_wants(layer, gradient))
        return;
    mgk_layer_bind(b, operation, buffer, mgk_layer_behind(mgk_layer_at(layer, array), first));
    if (mgk_layer_adds(layer, gradient) != 0.0)
        operation->added |= UINT64_C(1) << buffer;
}

/* Appends kernels over rows of the model's width; `normalises`: with sums of a normalisation's gradients; `last`: with
 * sums of b_O's. */
static mgk_layer_operation *append_norm(mgk_layer_builder *b, bool normalises, bool last)
{
    const clmgk_layer *const layer = b->layer;
    mgk_norm_rows rows = mgk_layer_width_rows(layer);
    const mgk_norm_wants want = {.gain = normalises && mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_NORM_GAIN),
                                 .offset = normalises && mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_NORM_BIAS),
                                 .bias = last && mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_BIAS_O)};
    rows.dropout = last ? layer->desc.dropout : 0.0;
    const mgk_rows_list list = mgk_layer_rows(b);
    mgk_rows_norm_backward(&list, &rows, &want);
    mgk_layer_operation *const operation = mgk_layer_append_rows(b, &list, MGK_NORM_WORKSPACE);
    if (want.gain)
        bind_gradient(b, operation, MGK_NORM_GRAD_GAIN, CLMGK_LAYER_ARRAY_GRAD_NORM_GAIN, 0);
    if (want.offset)
        bind_gradient(b, operation, MGK_NORM_GRAD_OFFSET, CLMGK_LAYER_ARRAY_GRAD_NORM_BIAS, 0);
    if (want.bias)
        bind_gradient(b, operation, MGK_NORM_GRAD_BIAS, CLMGK_LAYER_ARRAY_GRAD_BIAS_O, 0);
    if (normalises) {
        mgk_layer_bind(b, operation, MGK_NORM_GAIN, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_NORM_GAIN));
        mgk_layer_bind(b, operation, MGK_NORM_STATISTICS, layer->kept.norm);
    }
    return operation;
}

/* ---- output ---------------------------------------------------------------------------------------------------- */

/* True if dz is computed in dX's array, to which the projections' part is then added. */
static bool begins_in_place(const clmgk_layer *layer)
{
    return layer->desc.norm == CLMGK_NORM_POST && layer->desc.residual &&
           mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_X) && mgk_layer_adds(layer, CLMGK_LAYER_GRADIENT_X) == 0.0;
}

/* Makes dz, the gradient of R. Returns dy, the gradient of the output projection's result. */
static mgk_layer_place begin(mgk_layer_builder *b, mgk_layer_place *dz)
{
    const clmgk_layer *const layer = b->layer;
    const clmgk_layer_desc *const d = &layer->desc;
    const int64_t count = layer->sizes.rows * d->width;
    const mgk_layer_place grad_out = mgk_layer_at(layer, CLMGK_LAYER_ARRAY_GRAD_OUT);
    const bool post = d->norm == CLMGK_NORM_POST, drops = d->dropout > 0.0;
    const bool uses_dy = mgk_layer_differentiates(d) || mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_WEIGHT_O);
    const bool uses_dz = (uses_dy && !drops) || (d->residual && mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_X));
    *dz = grad_out;
    if (!post && !(drops && uses_dy) && !mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_BIAS_O))
        return grad_out;
    mgk_layer_operation *const operation = append_norm(b, post, true);
    mgk_layer_bind(b, operation, MGK_NORM_GRADIENT, grad_out);
    if (post)
        mgk_layer_bind(b, operation, MGK_NORM_IN, layer->kept.sum);
    if (post && uses_dz) {
        *dz = begins_in_place(layer) ? mgk_layer_at(layer, CLMGK_LAYER_ARRAY_GRAD_X)
                                     : mgk_layer_room(b, count, grad_out.element);
        mgk_layer_bind(b, operation, MGK_NORM_OUT, *dz);
    }
    if (!drops)
        return *dz;
    const mgk_layer_place dy = uses_dy ? mgk_layer_room(b, count, grad_out.element) : nowhere;
    mgk_layer_bind(b, operation, MGK_NORM_DROPPED, dy);
    return dy;
}

/* dW_O = dy^T O; returns dO = dy W_O. */
static mgk_layer_place project_output(mgk_layer_builder *b, mgk_layer_place dy)
{
    const clmgk_layer *const layer = b->layer;
    const mgk_layer_sizes *const s = &layer->sizes;
    const int64_t width = layer->desc.width;
    if (mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_WEIGHT_O)) {
        const clmgk_gemm_desc product = {.m = width,
                                         .n = s->o,
                                         .k = s->rows,
                                         .transpose_a = 1,
                                         .beta = mgk_layer_adds(layer, CLMGK_LAYER_GRADIENT_WEIGHT_O)};
        mgk_layer_multiply(b, product, dy, layer->kept.o, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_GRAD_WEIGHT_O));
    }
    if (!mgk_layer_differentiates(&layer->desc))
        return nowhere;
    const mgk_layer_place grad_o = mgk_layer_room(b, s->rows * s->o, dy.element);
    const clmgk_gemm_desc product = {.m = s->rows, .n = s->o, .k = width};
    mgk_layer_multiply(b, product, dy, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_WEIGHT_O), grad_o);
    return grad_o;
}

/* ---- heads ----------------------------------------------------------------------------------------------------- */

/* dQ, dK and dV, laid out as Q, K and V after the projections. */
static void attend(mgk_layer_builder *b, mgk_layer_place grad_o, const mgk_layer_heads *gradients)
{
    const clmgk_layer *const layer = b->layer;
    const mgk_layer_kept *const kept = &layer->kept;
    const mgk_layer_heads projected = mgk_layer_projected(layer, kept->p_q, kept->p_k);
    const mgk_layer_heads heads = mgk_layer_finished(b, &projected, true);
    const bool linear = mgk_has_trait(&layer->attention, CLMGK_TRAIT_LINEAR);
    mgk_layer_operation *const operation = mgk_layer_attend(b, CLMGK_PASS_BACKWARD);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_Q, heads.place[0]);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_K, heads.place[1]);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_V, heads.place[2]);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_O, kept->o);
    mgk_layer_bind(b, operation, linear ? CLMGK_ARRAY_DENOMINATOR : CLMGK_ARRAY_LSE, kept->lse);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_LSE_LOW, kept->lse_low);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_GRAD_O, grad_o);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_GRAD_Q, gradients->place[0]);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_GRAD_K, gradients->place[1]);
    mgk_layer_bind(b, operation, CLMGK_ARRAY_GRAD_V, gradients->place[2]);
}

/* Turns some of dQ, dK and dV, in place, into the gradients of the projections; computes the sums of biases and
 * gains. */
static void undo_heads(mgk_layer_builder *b, const bool with[3], const mgk_heads_wants *want,
                       const mgk_layer_heads *projected, const mgk_layer_heads *gradients)
{
    static const int values[] = {MGK_HEADS_Q, MGK_HEADS_K, MGK_HEADS_V};
    static const int results[] = {MGK_HEADS_OUT_Q, MGK_HEADS_OUT_K, MGK_HEADS_OUT_V};
    static const int sums[] = {MGK_HEADS_GRAD_BIAS_Q, MGK_HEADS_GRAD_BIAS_K, MGK_HEADS_GRAD_BIAS_V};
    static const clmgk_layer_array biases[] = {CLMGK_LAYER_ARRAY_GRAD_BIAS_Q, CLMGK_LAYER_ARRAY_GRAD_BIAS_K,
                                               CLMGK_LAYER_ARRAY_GRAD_BIAS_V};
    const clmgk_layer *const layer = b->layer;
    const int64_t first[] = {0, layer->sizes.q, layer->sizes.q + layer->sizes.k};
    const bool packed = layer->desc.packed_weights != 0;
    if (!with[0] && !with[1] && !with[2])
        return;
    const mgk_heads_rows rows = mgk_layer_head_rows(layer, with);
    const mgk_rows_list list = mgk_layer_rows(b);
    mgk_rows_heads_backward(&list, &rows, want);
    mgk_layer_operation *const operation = mgk_layer_append_rows(b, &list, MGK_HEADS_WORKSPACE);
    mgk_layer_bind_heads(b, operation, with);
    for (int i = 0; i < 3; ++i) {
        if (with[i])
            mgk_layer_bind(b, operation, results[i], gradients->place[i]);
        if (with[i] && layer->desc.qk_norm && i < 2)
            mgk_layer_bind(b, operation, values[i], projected->place[i]);
        if (want->bias[i])
            bind_gradient(b, operation, sums[i], packed ? CLMGK_LAYER_ARRAY_GRAD_BIAS_QKV : biases[i],
                          packed ? first[i] : 0);
    }
    if (want->gain[0])
        bind_gradient(b, operation, MGK_HEADS_GRAD_GAIN_Q, CLMGK_LAYER_ARRAY_GRAD_GAIN_Q, 0);
    if (want->gain[1])
        bind_gradient(b, operation, MGK_HEADS_GRAD_GAIN_K, CLMGK_LAYER_ARRAY_GRAD_GAIN_K, 0);
}

static void undo_all_heads(mgk_layer_builder *b, const mgk_layer_heads *gradients)
{
    static const uint32_t biases[] = {CLMGK_LAYER_GRADIENT_BIAS_Q, CLMGK_LAYER_GRADIENT_BIAS_K,
                                      CLMGK_LAYER_GRADIENT_BIAS_V};
    const clmgk_layer *const layer = b->layer;
    const clmgk_layer_desc *const d = &layer->desc;
    const mgk_layer_heads projected = mgk_layer_projected(layer, layer->kept.p_q, layer->kept.p_k);
    const bool transformed = d->qk_norm || d->rotary != CLMGK_ROTARY_NONE;
    mgk_heads_wants want = {.gain = {mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_GAIN_Q),
                                     mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_GAIN_K)}};
    for (int i = 0; i < 3; ++i)
        want.bias[i] = mgk_layer_wants(layer, d->packed_weights ? CLMGK_LAYER_GRADIENT_BIAS_QKV : biases[i]);
    const bool with[3] = {transformed || want.bias[0], transformed || want.bias[1], want.bias[2]};
    if (!d->cross) {
        undo_heads(b, with, &want, &projected, gradients);
        return;
    }
    const mgk_heads_wants of_q = {{want.bias[0], false, false}, {want.gain[0], false}};
    const mgk_heads_wants of_k = {{false, want.bias[1], want.bias[2]}, {false, want.gain[1]}};
    undo_heads(b, (const bool[3]){with[0], false, false}, &of_q, &projected, gradients);
    undo_heads(b, (const bool[3]){false, with[1], with[2]}, &of_k, &projected, gradients);
}

/* ---- inputs ---------------------------------------------------------------------------------------------------- */

/* dW = dP^T Y, for each matrix of weights. */
static void differentiate_weights(mgk_layer_builder *b, mgk_layer_place p_q, mgk_layer_place p_k)
{
    const clmgk_layer *const layer = b->layer;
    mgk_layer_projection list[3];
    mgk_layer_place y = nowhere;
    const size_t count = mgk_layer_projections(layer, list);
    for (size_t i = 0; i < count; ++i) {
        const mgk_layer_projection *const part = &list[i];
        const bool first = part->input == MGK_LAYER_FIRST;
        if (!mgk_layer_wants(layer, part->gradient))
            continue;
        if (first && y.base == MGK_LAYER_NOWHERE)
            y = mgk_layer_normalised(b, nowhere);
        const clmgk_gemm_desc product = {.m = part->columns,
                                         .n = part->width,
                                         .k = part->rows,
                                         .transpose_a = 1,
                                         .lda = part->ld,
                                         .beta = mgk_layer_adds(layer, part->gradient)};
        mgk_layer_multiply(b, product, mgk_layer_behind(first ? p_q : p_k, part->first),
                           mgk_layer_input_at(layer, part->input, y), part->grad);
    }
}

/* out = beta out + dP W, over the projections of an input. */
static void differentiate_input(mgk_layer_builder *b, mgk_layer_input input, mgk_layer_place p, mgk_layer_place out,
                                double beta)
{
    mgk_layer_projection list[3];
    const size_t count = mgk_layer_projections(b->layer, list);
    for (size_t i = 0; i < count; ++i) {
        const mgk_layer_projection *const part = &list[i];
        if (part->input != input)
            continue;
        const clmgk_gemm_desc product = {
            .m = part->rows, .n = part->width, .k = part->columns, .lda = part->ld, .beta = beta};
        mgk_layer_multiply(b, product, mgk_layer_behind(p, part->first), part->weight, out);
        beta = 1.0;
    }
}

/* dX: through the projections, the normalisation before them, and the residual. */
static void differentiate_x(mgk_layer_builder *b, mgk_layer_place p_q, mgk_layer_place dz)
{
    const clmgk_layer *const layer = b->layer;
    const clmgk_layer_desc *const d = &layer->desc;
    const bool pre = d->norm == CLMGK_NORM_PRE, wants = mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_X);
    const mgk_layer_place x = mgk_layer_at(layer, CLMGK_LAYER_ARRAY_X);
    const mgk_layer_place grad_x = mgk_layer_at(layer, CLMGK_LAYER_ARRAY_GRAD_X);
    if (!wants && !(pre && mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_NORM_GAIN | CLMGK_LAYER_GRADIENT_NORM_BIAS)))
        return;
    if ((!pre && !d->residual) || begins_in_place(layer)) {
        const bool adds = begins_in_place(layer) || mgk_layer_adds(layer, CLMGK_LAYER_GRADIENT_X) != 0.0;
        differentiate_input(b, MGK_LAYER_FIRST, p_q, grad_x, adds ? 1.0 : 0.0);
        return;
    }
    const mgk_layer_place dy = mgk_layer_room(b, layer->sizes.rows * d->width, x.element);
    differentiate_input(b, MGK_LAYER_FIRST, p_q, dy, 0.0);
    mgk_layer_operation *const operation = append_norm(b, pre, false);
    mgk_layer_bind(b, operation, MGK_NORM_GRADIENT, dy);
    if (pre)
        mgk_layer_bind(b, operation, MGK_NORM_IN, x);
    if (d->residual && wants)
        mgk_layer_bind(b, operation, MGK_NORM_RESIDUAL, dz);
    bind_gradient(b, operation, MGK_NORM_OUT, CLMGK_LAYER_ARRAY_GRAD_X, 0);
}

/* ---- the pass -------------------------------------------------------------------------------------------------- */

void mgk_layer_make_backward(mgk_layer_builder *b)
{
    const clmgk_layer *const layer = b->layer;
    const clmgk_layer_desc *const d = &layer->desc;
    const mgk_layer_sizes *const s = &layer->sizes;
    mgk_layer_place dz;
    const mgk_layer_place dy = begin(b, &dz);
    const mgk_layer_place grad_o = project_output(b, dy);
    if (!mgk_layer_differentiates(d))
        return;
    const mgk_layer_place p_q = mgk_layer_room(b, s->rows * s->ld_q, dy.element);
    const mgk_layer_place p_k = d->cross ? mgk_layer_room(b, s->rows_k * s->ld_k, dy.element) : p_q;
    const mgk_layer_heads gradients = mgk_layer_projected(layer, p_q, p_k);
    attend(b, grad_o, &gradients);
    if (d->gradients == 0) /* only gradients of the attention's parameters */
        return;
    undo_all_heads(b, &gradients);
    differentiate_weights(b, p_q, p_k);
    differentiate_x(b, p_q, dz);
    if (mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_X2))
        differentiate_input(b, MGK_LAYER_SECOND, p_k, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_GRAD_X2),
                            mgk_layer_adds(layer, CLMGK_LAYER_GRADIENT_X2));
    if (mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_X3))
        differentiate_input(b, MGK_LAYER_THIRD, p_k, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_GRAD_X3),
                            mgk_layer_adds(layer, CLMGK_LAYER_GRADIENT_X3));
}
