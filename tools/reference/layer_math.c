/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of a layer's reference: sums, products, normalisations, rotations. */
#include "reference/layer_pass.h"

double ref_layer_single(const layer_pass *pass, double x)
{
    return pass->plain ? (double)(float)x : x;
}

double ref_layer_stored(const layer_pass *pass, double x)
{
    return pass->plain ? (double)clmgk_ref_rounded(pass->attention.desc.dtype, (float)x) : x;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

enum { LANES = 16 };

/* In f32: in turn, backwards, or in as many partial sums as a wide vector has lanes. */
static double plain_dot(ref_order order, int64_t count, const double *x, int64_t x_step, const double *y,
                        int64_t y_step)
{
    float sums[LANES] = {0};
    for (int64_t term = 0; term < count; term++) {
        const int64_t n = order == REF_ORDER_BACKWARD ? count - 1 - term : term;
        sums[order == REF_ORDER_BLOCKED ? n % LANES : 0] += (float)x[n * x_step] * (y ? (float)y[n * y_step] : 1.0F);
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return sums[0];
}

/* sum_n x[n x_step] y[n y_step], rounded to f32; y NULL: 1 */
static double dot(const layer_pass *pass, int64_t count, const double *x, int64_t x_step, const double *y,
                  int64_t y_step)
{
    if (pass->plain)
        return plain_dot(pass->way.order, count, x, x_step, y, y_step);
    double sum = 0.0;
    for (int64_t n = 0; n < count; n++)
        sum += x[n * x_step] * (y ? y[n * y_step] : 1.0);
    return sum;
}

void ref_layer_product(const layer_pass *pass, int64_t rows, int64_t columns, int64_t inner, layer_matrix a,
                       layer_matrix b, bool add, double *c)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            const double sum = dot(pass, inner, a.values + i * a.row, a.column, b.values + j * b.column, b.row);
            double *const to = &c[i * columns + j];
            *to = ref_layer_stored(pass, add ? *to + sum : sum);
        }
}

void ref_layer_sum_rows(const layer_pass *pass, int64_t rows, int64_t columns, const double *x, double *sums)
{
    for (int64_t n = 0; n < columns; n++)
        sums[n] = dot(pass, rows, x + n, columns, NULL, 0);
}

/* ---- layer normalisation ----------------------------------------------------------------------------------------- */

void ref_layer_normalise(layer_pass *pass, const double *x, double *scale, double *to)
{
    const clmgk_ref_layer *const layer = pass->layer;
    const int64_t width = pass->width;
    double *const rest = ref_layer_room(pass, width);
    for (int64_t row = 0; !pass->failed && row < pass->rows; row++) {
        const double *const from = x + row * width;
        const double mean = ref_layer_single(pass, dot(pass, width, from, 1, NULL, 0) / (double)width);
        for (int64_t w = 0; w < width; w++)
            rest[w] = ref_layer_single(pass, from[w] - mean);
        const double variance = dot(pass, width, rest, 1, rest, 1) / (double)width;
        const double factor = ref_layer_single(pass, 1.0 / sqrt(variance + layer->desc.norm_epsilon));
        scale[2 * row] = mean;
        scale[2 * row + 1] = factor;
        for (int64_t w = 0; w < width; w++)
            to[row * width + w] = ref_layer_stored(pass, rest[w] * factor * layer->norm_gain[w] + layer->norm_bias[w]);
    }
}

void ref_layer_normalise_back(layer_pass *pass, const double *x, const double *scale, const double *grad, double *to)
{
    const int64_t width = pass->width, rows = pass->rows;
    double *const unit = ref_layer_room(pass, rows * width);  /* normalised x, without gain and bias */
    double *const terms = ref_layer_room(pass, rows * width); /* of dgain */
    double *const part = ref_layer_room(pass, width);         /* gradient of unit */
    for (int64_t row = 0; !pass->failed && row < rows; row++) {
        double *const u = unit + row * width;
        const double factor = scale[2 * row + 1];
        for (int64_t w = 0; w < width; w++) {
            const double given = grad[row * width + w];
            u[w] = ref_layer_single(pass, (x[row * width + w] - scale[2 * row]) * factor);
            terms[row * width + w] = ref_layer_single(pass, given * u[w]);
            part[w] = ref_layer_single(pass, given * pass->layer->norm_gain[w]);
        }
        const double mean = dot(pass, width, part, 1, NULL, 0) / (double)width;
        const double along = dot(pass, width, part, 1, u, 1) / (double)width;
        for (int64_t w = 0; w < width; w++)
            to[row * width + w] = ref_layer_single(pass, factor * (part[w] - mean - u[w] * along));
    }
    if (pass->failed)
        return;
    ref_layer_sum_rows(pass, rows, width, terms, pass->gradient[CLMGK_REF_LAYER_GRAD_NORM_GAIN]);
    ref_layer_sum_rows(pass, rows, width, grad, pass->gradient[CLMGK_REF_LAYER_GRAD_NORM_BIAS]);
}

/* ---- heads: RMS normalisation, rotation -------------------------------------------------------------------------- */

/* Rotates a head by its position, or back (direction -1). V is not rotated. */
static void rotate(const layer_pass *pass, const layer_stream *stream, int64_t position, double direction, double *x)
{
    const clmgk_layer_desc *const desc = &pass->layer->desc;
    const int64_t size = desc->rotary_size;
    if (desc->rotary == CLMGK_ROTARY_NONE || stream->side == LAYER_V)
        return;
    for (int64_t c = 0; c < size / 2; c++) {
        const bool halves = desc->rotary == CLMGK_ROTARY_HALVES;
        double *const first = x + (halves ? c : 2 * c), *const second = x + (halves ? c + size / 2 : 2 * c + 1);
        const double angle = (double)position * pow(desc->rotary_base, -2.0 * (double)c / (double)size);
        const double cosine = ref_layer_single(pass, cos(angle));
        const double sine = ref_layer_single(pass, direction * sin(angle));
        const double old = *first;
        *first = ref_layer_single(pass, old * cosine - *second * sine);
        *second = ref_layer_single(pass, old * sine + *second * cosine);
    }
}

/* 1 / sqrt(mean(x^2) + epsilon) */
static double rms_factor(const layer_pass *pass, const layer_stream *stream, const double *x)
{
    const double mean = dot(pass, stream->size, x, 1, x, 1) / (double)stream->size;
    return ref_layer_single(pass, 1.0 / sqrt(mean + pass->layer->desc.norm_epsilon));
}

static int64_t heads_of(const layer_pass *pass, const layer_stream *stream)
{
    return pass->attention.desc.batch * stream->tokens * (stream->columns / stream->size);
}

static int64_t position_of(const layer_pass *pass, const layer_stream *stream, int64_t head)
{
    const int64_t row = head / (stream->columns / stream->size);
    return ref_layer_position(pass, stream, row / stream->tokens, row % stream->tokens);
}

void ref_layer_rotate(layer_pass *pass, const layer_stream *stream)
{
    double *const x = ref_layer_room(pass, stream->size);
    for (int64_t head = 0; !pass->failed && head < heads_of(pass, stream); head++) {
        const double *const from = stream->raw + head * stream->size;
        const double factor = stream->gain ? rms_factor(pass, stream, from) : 1.0;
        for (int64_t d = 0; d < stream->size; d++)
            x[d] = stream->gain ? ref_layer_single(pass, from[d] * factor * stream->gain[d]) : from[d];
        rotate(pass, stream, position_of(pass, stream, head), 1.0, x);
        for (int64_t d = 0; d < stream->size; d++)
            stream->done[head * stream->size + d] = ref_layer_stored(pass, x[d]);
    }
}

/* In place: the gradient of a head before its RMS normalisation; terms[size] of dgain. */
static void rms_back(const layer_pass *pass, const layer_stream *stream, const double *from, double *grad,
                     double *terms, double *unit)
{
    const double factor = rms_factor(pass, stream, from);
    for (int64_t d = 0; d < stream->size; d++) {
        unit[d] = ref_layer_single(pass, from[d] * factor);
        terms[d] = ref_layer_single(pass, grad[d] * unit[d]);
        grad[d] = ref_layer_single(pass, grad[d] * stream->gain[d]);
    }
    const double along = dot(pass, stream->size, grad, 1, unit, 1) / (double)stream->size;
    for (int64_t d = 0; d < stream->size; d++)
        grad[d] = ref_layer_single(pass, factor * (grad[d] - unit[d] * along));
}

void ref_layer_rotate_back(layer_pass *pass, const layer_stream *stream)
{
    const int64_t heads = heads_of(pass, stream), size = stream->size;
    double *const terms = ref_layer_room(pass, heads * size);
    double *const unit = ref_layer_room(pass, size);
    for (int64_t head = 0; !pass->failed && head < heads; head++) {
        double *const grad = stream->grad + head * size;
        rotate(pass, stream, position_of(pass, stream, head), -1.0, grad);
        if (stream->gain)
            rms_back(pass, stream, stream->raw + head * size, grad, terms + head * size, unit);
        for (int64_t d = 0; d < size; d++)
            grad[d] = ref_layer_stored(pass, grad[d]);
    }
    if (stream->gain && !pass->failed)
        ref_layer_sum_rows(pass, heads, size, terms, stream->grad_gain);
}
