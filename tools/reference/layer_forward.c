/* SPDX-License-Identifier: Apache-2.0 */
/* The layer's formula, step by step. */
#include "reference/families.h"
#include "reference/layer_pass.h"
#include "reference/linear.h"
#include "reference/linear_plain.h"
#include "reference/mixed.h"

#include <stdlib.h>
#include <string.h>

/* ---- to the attention -------------------------------------------------------------------------------------------- */

/* [B,tokens,columns] to rows `first` on of [B,heads,keys,size]; those beyond the axis are left out. */
static void spread(const layer_stream *s, int64_t b, int64_t first, int64_t tokens, const double *from, double *heads)
{
    const int64_t count = s->columns / s->size;
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t c = 0; c < s->columns; c++) {
            const int64_t row = first + n;
            if (row >= 0 && row < s->keys)
                heads[((b * count + c / s->size) * s->keys + row) * s->size + c % s->size] = from[n * s->columns + c];
        }
}

/* The heads of all batches; with a cache those in it, and the new ones. */
static void fill_heads(const layer_pass *pass, const layer_stream *s)
{
    const clmgk_ref_problem *const p = &pass->attention;
    for (int64_t b = 0; b < p->desc.batch; b++) {
        if (s->cache)
            memcpy(s->heads + b * s->keys * s->columns, s->cache + b * s->keys * s->columns,
                   (size_t)(s->keys * s->columns) * sizeof(double));
        if (s->cache && pass->layer->cache_is_full)
            continue;
        spread(s, b, s->cache ? p->lengths[b] - s->tokens : 0, s->tokens, s->done + b * s->tokens * s->columns,
               s->heads);
    }
}

static void project(layer_pass *pass, layer_stream *s)
{
    const int64_t batch = pass->attention.desc.batch, rows = batch * s->tokens;
    s->raw = ref_layer_room(pass, rows * s->columns);
    s->done = ref_layer_room(pass, rows * s->columns);
    s->heads = ref_layer_room(pass, batch * s->keys * s->columns);
    if (pass->failed)
        return;
    const double *const inputs[] = {pass->y, pass->layer->x2, pass->layer->x3};
    s->input = inputs[s->source];
    ref_layer_product(pass, rows, s->columns, s->inputs, (layer_matrix){s->input, s->inputs, 1},
                      (layer_matrix){s->weight, 1, s->inputs}, false, s->raw);
    for (int64_t n = 0; s->bias && n < rows * s->columns; n++)
        s->raw[n] = ref_layer_stored(pass, s->raw[n] + s->bias[n % s->columns]);
    ref_layer_rotate(pass, s);
    if (!pass->failed)
        fill_heads(pass, s);
}

static void fill_y(layer_pass *pass)
{
    const clmgk_ref_layer *const layer = pass->layer;
    pass->y = ref_layer_room(pass, pass->rows * pass->width);
    pass->y_scale = ref_layer_room(pass, 2 * pass->rows);
    if (pass->failed)
        return;
    if (layer->desc.norm == CLMGK_NORM_PRE)
        ref_layer_normalise(pass, layer->x, pass->y_scale, pass->y);
    else
        memcpy(pass->y, layer->x, (size_t)(pass->rows * pass->width) * sizeof(double));
}

/* ---- the attention ----------------------------------------------------------------------------------------------- */

static bool exact_attention(layer_pass *pass, int64_t rows)
{
    const int64_t size = pass->attention.desc.value_size;
    bool ok = true;
    for (int64_t row = 0; ok && row < rows; row++) {
        double lse = 0.0;
        ok = clmgk_ref_row(&pass->attention, row, pass->o_heads + row * size, &lse);
    }
    return ok;
}

static bool plain_mixture(layer_pass *pass, int64_t rows)
{
    const clmgk_ref_problem *const p = &pass->attention;
    const int64_t size = p->desc.value_size;
    ref_plain plain;
    if (!ref_plain_create(p, ref_family_of(p->desc.variant)->plain, &plain))
        return false;
    for (int64_t row = 0; row < rows; row++) {
        ref_plain_solve(&plain, ref_row_of(&p->desc, row), pass->way);
        for (int64_t e = 0; e < size; e++)
            pass->o_heads[row * size + e] = plain.o[e];
    }
    ref_plain_free(&plain);
    return true;
}

static bool plain_mixed(layer_pass *pass, int64_t rows)
{
    const clmgk_ref_problem *const p = &pass->attention;
    const int64_t size = p->desc.value_size;
    float *const o = malloc(((size_t)size + 1) * sizeof *o);
    ref_mixed mixed;
    if (!o || !ref_mixed_create(p, &mixed)) {
        free(o);
        return false;
    }
    for (int64_t row = 0; row < rows; row++) {
        ref_mixed_plain(&mixed, ref_row_of(&p->desc, row), pass->way, o);
        for (int64_t e = 0; e < size; e++)
            pass->o_heads[row * size + e] = o[e];
    }
    ref_mixed_free(&mixed);
    free(o);
    return true;
}

static bool plain_linear(layer_pass *pass, int64_t rows)
{
    const int64_t size = pass->attention.desc.value_size;
    clmgk_ref_answer answer = {.rows = rows, .value_size = size};
    answer.row = calloc((size_t)rows + 1, sizeof(int64_t)); /* + 1: NULL means failure only */
    answer.scale = calloc((size_t)rows + 1, sizeof(double));
    float *const o = calloc((size_t)(rows * (size + 1)) + 1, sizeof(float));
    for (int64_t row = 0; answer.row && row < rows; row++)
        answer.row[row] = row;
    const bool ok = answer.row && answer.scale && o &&
                    ref_plain_linear_rows(&pass->attention, pass->way.order, &answer, o, o + rows * size);
    for (int64_t n = 0; ok && n < rows * size; n++)
        pass->o_heads[n] = o[n];
    free(o);
    clmgk_ref_answer_free(&answer);
    return ok;
}

static bool plain_state(layer_pass *pass, const int64_t count[], const double *m_exact)
{
    float *values[CLMGK_REF_STATES] = {0};
    bool ok = true;
    for (int which = 0; which < CLMGK_REF_STATES; which++) {
        values[which] = calloc((size_t)count[which] + 1, sizeof(float)); /* + 1: NULL means failure only */
        ok = ok && values[which];
    }
    double *const only[CLMGK_REF_STATES] = {[CLMGK_REF_STATE_M] = pass->state[CLMGK_REF_STATE_M]};
    ok = ok && ref_plain_linear_state(&pass->attention, pass->way.order, m_exact, values) &&
         ref_linear_state(&pass->attention, only);
    for (int which = CLMGK_REF_STATE_C; which <= CLMGK_REF_STATE_Z; which++)
        for (int64_t n = 0; ok && n < count[which]; n++)
            pass->state[which][n] = values[which][n];
    for (int which = 0; which < CLMGK_REF_STATES; which++)
        free(values[which]);
    return ok;
}

static bool solve_state(layer_pass *pass, const double *m_exact)
{
    int64_t count[CLMGK_REF_STATES];
    for (int which = 0; which < CLMGK_REF_STATES; which++) {
        count[which] = ref_state_count(&pass->attention.desc, (clmgk_ref_state)which);
        pass->state[which] = ref_layer_room(pass, count[which]);
    }
    if (pass->failed)
        return false;
    return pass->plain ? plain_state(pass, count, m_exact) : ref_linear_state(&pass->attention, pass->state);
}

static bool attend(layer_pass *pass, const double *m_exact)
{
    const clmgk_attention_desc *const a = &pass->attention.desc;
    const int64_t rows = a->batch * a->heads * a->length;
    pass->o_heads = ref_layer_room(pass, rows * a->value_size);
    if (pass->failed)
        return false;
    pass->attention.q = pass->stream[LAYER_Q].heads;
    pass->attention.k = pass->stream[LAYER_K].heads;
    pass->attention.v = pass->stream[LAYER_V].heads;
    if (a->use_new_state && !solve_state(pass, m_exact))
        return false;
    if (!pass->plain)
        return exact_attention(pass, rows);
    if (a->mix_after_heads > 0)
        return plain_mixed(pass, rows);
    return ref_form_of(a).linear ? plain_linear(pass, rows) : plain_mixture(pass, rows);
}

/* ---- from the attention ------------------------------------------------------------------------------------------ */

static void gather_o(layer_pass *pass)
{
    const clmgk_attention_desc *const a = &pass->attention.desc;
    for (int64_t row = 0; row < a->batch * a->heads * a->length; row++) {
        const ref_row at = ref_row_of(a, row);
        for (int64_t e = 0; e < a->value_size; e++)
            pass->o[((at.b * a->length + at.i) * a->heads + at.h) * a->value_size + e] =
                pass->o_heads[row * a->value_size + e];
    }
}

/* R */
static void fill_sum(layer_pass *pass)
{
    const clmgk_ref_layer *const layer = pass->layer;
    const int64_t width = pass->width, length = pass->attention.desc.length;
    ref_layer_product(pass, pass->rows, width, pass->o_columns, (layer_matrix){pass->o, pass->o_columns, 1},
                      (layer_matrix){layer->weight_o, 1, pass->o_columns}, false, pass->sum);
    for (int64_t n = 0; n < pass->rows * width; n++) {
        const int64_t row = n / width, w = n % width;
        double x = pass->sum[n];
        if (layer->desc.use_bias_o)
            x = ref_layer_single(pass, x + layer->bias_o[w]);
        if (layer->desc.dropout > 0.0)
            x = ref_layer_single(pass, x * clmgk_ref_layer_dropout(layer, row / length, row % length, w));
        pass->sum[n] = ref_layer_stored(pass, layer->desc.residual ? x + layer->x[n] : x);
    }
}

bool ref_layer_forward(layer_pass *pass, const double *m_exact)
{
    fill_y(pass);
    for (int side = 0; side < LAYER_SIDES && !pass->failed; side++)
        project(pass, &pass->stream[side]);
    if (pass->failed || !attend(pass, m_exact))
        return false;
    pass->o = ref_layer_room(pass, pass->rows * pass->o_columns);
    pass->sum = ref_layer_room(pass, pass->rows * pass->width);
    pass->sum_scale = ref_layer_room(pass, 2 * pass->rows);
    pass->out = pass->sum;
    if (pass->layer->desc.norm == CLMGK_NORM_POST)
        pass->out = ref_layer_room(pass, pass->rows * pass->width);
    if (pass->failed)
        return false;
    gather_o(pass);
    fill_sum(pass);
    if (pass->out != pass->sum)
        ref_layer_normalise(pass, pass->sum, pass->sum_scale, pass->out);
    return !pass->failed;
}
