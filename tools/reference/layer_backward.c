/* SPDX-License-Identifier: Apache-2.0 */
/* The layer's gradients, step by step backwards. */
#include "reference/families.h"
#include "reference/layer_pass.h"
#include "reference/linear.h"
#include "reference/linear_plain.h"
#include "reference/mixed.h"

#include <stdlib.h>
#include <string.h>

static double *copied(layer_pass *pass, int64_t count, const double *from)
{
    double *const to = ref_layer_room(pass, count);
    if (to && from)
        memcpy(to, from, (size_t)count * sizeof(double));
    return to;
}

/* ---- the attention ----------------------------------------------------------------------------------------------- */

static bool exact_attention(layer_pass *pass)
{
    const clmgk_ref_problem *const p = &pass->attention;
    if (ref_form_of(&p->desc).linear)
        return ref_linear_gradients(p, pass->of_attention, pass->floor);
    const exact_sums sums = {.values = pass->of_attention, .floor = pass->floor};
    const exact_scores *const scores = ref_family_of(p->desc.variant)->exact;
    return p->desc.mix_after_heads > 0 ? ref_mixed_gradients(p, scores, &sums) : exact_gradients(p, scores, &sums);
}

static bool plain_gradients_of(const layer_pass *pass, float *const values[])
{
    const clmgk_ref_problem *const p = &pass->attention;
    const plain_scores *const scores = ref_family_of(p->desc.variant)->plain;
    if (ref_form_of(&p->desc).linear)
        return ref_plain_linear_gradients(p, pass->way.order, values);
    return p->desc.mix_after_heads > 0 ? ref_mixed_plain_gradients(p, scores, pass->way, NULL, values)
                                       : plain_gradients(p, scores, pass->way, NULL, values);
}

static bool plain_attention(layer_pass *pass)
{
    const clmgk_ref_problem *const p = &pass->attention;
    float *values[CLMGK_REF_GRADIENTS] = {0};
    bool ok = true;
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        const int64_t count = clmgk_ref_gradient_count(&p->desc, (clmgk_ref_gradient)which);
        if (count > 0)
            values[which] = calloc((size_t)count, sizeof(float));
        ok = ok && (values[which] || count == 0);
    }
    ok = ok && plain_gradients_of(pass, values);
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        const int64_t count = clmgk_ref_gradient_count(&p->desc, (clmgk_ref_gradient)which);
        for (int64_t n = 0; ok && n < count; n++)
            pass->of_attention[which][n] = ref_layer_stored(pass, values[which][n]);
        free(values[which]);
    }
    return ok;
}

static bool attend_back(layer_pass *pass)
{
    const clmgk_attention_desc *const a = &pass->attention.desc;
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        const int64_t count = clmgk_ref_gradient_count(a, (clmgk_ref_gradient)which);
        pass->of_attention[which] = count > 0 ? ref_layer_room(pass, count) : NULL;
        pass->floor[which] = count > 0 ? ref_layer_room(pass, count) : NULL;
    }
    pass->attention.grad_o = pass->grad_o_heads;
    pass->attention.grad_lse = NULL;
    return !pass->failed && (pass->plain ? plain_attention(pass) : exact_attention(pass));
}

/* ---- after the attention ----------------------------------------------------------------------------------------- */

/* dR, and the gradients of a normalisation behind it. */
static void fill_grad_sum(layer_pass *pass)
{
    const clmgk_ref_layer *const layer = pass->layer;
    const int64_t count = pass->rows * pass->width;
    pass->grad_sum = copied(pass, count, layer->grad_out);
    if (layer->desc.norm != CLMGK_NORM_POST || pass->failed)
        return;
    double *const given = copied(pass, count, pass->grad_sum);
    if (pass->failed)
        return;
    ref_layer_normalise_back(pass, pass->sum, pass->sum_scale, given, pass->grad_sum);
    for (int64_t n = 0; n < count; n++)
        pass->grad_sum[n] = ref_layer_stored(pass, pass->grad_sum[n]);
}

/* Weights and bias of the output projection, dO. */
static void output_back(layer_pass *pass)
{
    const clmgk_ref_layer *const layer = pass->layer;
    const clmgk_attention_desc *const a = &pass->attention.desc;
    const int64_t width = pass->width, columns = pass->o_columns;
    double *const grad = copied(pass, pass->rows * width, pass->grad_sum); /* before dropout */
    double *const grad_o = ref_layer_room(pass, pass->rows * columns);
    pass->grad_o_heads = ref_layer_room(pass, pass->rows * columns);
    if (pass->failed)
        return;
    for (int64_t n = 0; layer->desc.dropout > 0.0 && n < pass->rows * width; n++) {
        const int64_t row = n / width;
        grad[n] = ref_layer_stored(
            pass, grad[n] * clmgk_ref_layer_dropout(layer, row / a->length, row % a->length, n % width));
    }
    if (layer->desc.use_bias_o)
        ref_layer_sum_rows(pass, pass->rows, width, grad, pass->gradient[CLMGK_REF_LAYER_GRAD_BIAS_O]);
    ref_layer_product(pass, width, columns, pass->rows, (layer_matrix){grad, 1, width},
                      (layer_matrix){pass->o, columns, 1}, false, pass->gradient[CLMGK_REF_LAYER_GRAD_WEIGHT_O]);
    ref_layer_product(pass, pass->rows, columns, width, (layer_matrix){grad, width, 1},
                      (layer_matrix){layer->weight_o, columns, 1}, false, grad_o);
    for (int64_t row = 0; row < a->batch * a->heads * a->length; row++) {
        const ref_row at = ref_row_of(a, row);
        for (int64_t e = 0; e < a->value_size; e++)
            pass->grad_o_heads[row * a->value_size + e] =
                grad_o[((at.b * a->length + at.i) * a->heads + at.h) * a->value_size + e];
    }
}

/* ---- before the attention ---------------------------------------------------------------------------------------- */

/* Where the gradients of a stream go. */
static void place(layer_pass *pass)
{
    double *const *const g = pass->gradient;
    double *const weight[] = {g[CLMGK_REF_LAYER_GRAD_WEIGHT_Q], g[CLMGK_REF_LAYER_GRAD_WEIGHT_K],
                              g[CLMGK_REF_LAYER_GRAD_WEIGHT_V]};
    double *const bias[] = {g[CLMGK_REF_LAYER_GRAD_BIAS_Q], g[CLMGK_REF_LAYER_GRAD_BIAS_K],
                            g[CLMGK_REF_LAYER_GRAD_BIAS_V]};
    double *const gain[] = {g[CLMGK_REF_LAYER_GRAD_GAIN_Q], g[CLMGK_REF_LAYER_GRAD_GAIN_K], NULL};
    double *const input[] = {pass->grad_y, g[CLMGK_REF_LAYER_GRAD_X2], g[CLMGK_REF_LAYER_GRAD_X3]};
    const bool packed = pass->layer->desc.packed_weights != 0;
    int64_t first = 0;
    for (int side = 0; side < LAYER_SIDES; side++) {
        layer_stream *const s = &pass->stream[side];
        s->grad_weight = packed ? g[CLMGK_REF_LAYER_GRAD_WEIGHT_QKV] + first * s->inputs : weight[side];
        s->grad_bias = packed ? g[CLMGK_REF_LAYER_GRAD_BIAS_QKV] : bias[side];
        if (packed && s->grad_bias)
            s->grad_bias += first;
        s->grad_gain = gain[side];
        s->grad_input = input[s->source];
        s->grad_heads = pass->of_attention[side];
        first += s->columns;
    }
}

/* The gradients of weights, bias and gain of a stream; its part of the gradient of its input. */
static void project_back(layer_pass *pass, layer_stream *s, bool add)
{
    const int64_t batch = pass->attention.desc.batch, rows = batch * s->tokens, count = s->columns / s->size;
    s->grad = ref_layer_room(pass, rows * s->columns);
    if (pass->failed)
        return;
    for (int64_t n = 0; n < rows * s->columns; n++) {
        const int64_t row = n / s->columns, c = n % s->columns;
        const int64_t head = row / s->tokens * count + c / s->size;
        s->grad[n] = s->grad_heads[(head * s->keys + row % s->tokens) * s->size + c % s->size];
    }
    ref_layer_rotate_back(pass, s);
    if (pass->failed)
        return;
    if (s->bias)
        ref_layer_sum_rows(pass, rows, s->columns, s->grad, s->grad_bias);
    ref_layer_product(pass, s->columns, s->inputs, rows, (layer_matrix){s->grad, 1, s->columns},
                      (layer_matrix){s->input, s->inputs, 1}, false, s->grad_weight);
    ref_layer_product(pass, rows, s->inputs, s->columns, (layer_matrix){s->grad, s->columns, 1},
                      (layer_matrix){s->weight, s->inputs, 1}, add, s->grad_input);
}

/* dx: through the projections and a normalisation before them, and the residual. */
static void fill_grad_x(layer_pass *pass)
{
    const clmgk_ref_layer *const layer = pass->layer;
    double *const to = pass->gradient[CLMGK_REF_LAYER_GRAD_X];
    const int64_t count = pass->rows * pass->width;
    memcpy(to, pass->grad_y, (size_t)count * sizeof(double));
    if (layer->desc.norm == CLMGK_NORM_PRE)
        ref_layer_normalise_back(pass, layer->x, pass->y_scale, pass->grad_y, to);
    for (int64_t n = 0; n < count; n++)
        to[n] = ref_layer_stored(pass, layer->desc.residual ? to[n] + pass->grad_sum[n] : to[n]);
}

bool ref_layer_backward(layer_pass *pass)
{
    for (int which = 0; which < CLMGK_REF_LAYER_GRADIENTS; which++) {
        const int64_t count = ref_layer_gradient_count(pass->layer, (clmgk_ref_layer_gradient)which);
        pass->gradient[which] = count > 0 ? ref_layer_room(pass, count) : NULL;
    }
    pass->grad_y = ref_layer_room(pass, pass->rows * pass->width);
    if (!pass->failed)
        fill_grad_sum(pass);
    if (!pass->failed)
        output_back(pass);
    if (pass->failed || !attend_back(pass))
        return false;
    place(pass);
    for (int side = 0; side < LAYER_SIDES && !pass->failed; side++)
        project_back(pass, &pass->stream[side], pass->stream[side].source != (layer_side)side);
    if (!pass->failed)
        fill_grad_x(pass);
    return !pass->failed;
}
