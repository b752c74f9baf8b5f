/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that a row sees, and the terms added to their logits. */
#include "reference/problem.h"

static int64_t clamp(int64_t value, int64_t limit)
{
    if (value < 0)
        return 0;
    return value < limit ? value : limit;
}

/* One end of a sequence on an axis of `limit` elements. */
static int64_t offset(const int32_t *offsets, int64_t t, int64_t limit)
{
    return clamp(offsets[t], limit);
}

/* A row's sequence; without packing, the whole axes. */
typedef struct sequence {
    bool found;
    int64_t number;
    int64_t first_row, rows;
    int64_t first_key, keys;
} sequence;

static sequence packed_sequence(const clmgk_ref_problem *p, int64_t i)
{
    const clmgk_attention_desc *const desc = &p->desc;
    const int32_t *const of_keys = desc->use_offsets_k ? p->offsets_k : p->offsets;
    for (int64_t t = 0; t < desc->sequences; t++) {
        const int64_t first_row = offset(p->offsets, t, desc->length);
        const int64_t end_row = offset(p->offsets, t + 1, desc->length);
        const int64_t first_key = offset(of_keys, t, desc->length_k);
        const int64_t keys = offset(of_keys, t + 1, desc->length_k) - first_key;
        if (first_row <= i && i < end_row)
            return (sequence){true, t, first_row, end_row - first_row, first_key, keys > 0 ? keys : 0};
    }
    return (sequence){0};
}

int64_t ref_key_limit(const clmgk_ref_problem *problem, int64_t b)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    return desc->use_lengths ? clamp(problem->lengths[b], desc->length_k) : desc->length_k;
}

/* d(i). Lengths beyond the keys keep their meaning: tokens that had no room have positions, too. */
static int64_t diagonal(const clmgk_ref_problem *p, const sequence *seq, int64_t b, int64_t i)
{
    static const int64_t most = INT64_C(1) << 29;
    switch (p->desc.alignment) {
    case CLMGK_ALIGN_TOP_LEFT:
        return i;
    case CLMGK_ALIGN_LENGTHS:
        return i - seq->rows +
               (p->desc.use_lengths ? clamp(p->lengths[b], p->desc.length_k > most ? p->desc.length_k : most)
                                    : p->desc.length_k);
    case CLMGK_ALIGN_BOTTOM_RIGHT:
        break;
    }
    return i + seq->keys - seq->rows;
}

/* Removes the keys hidden by causality and window from keys first .. end - 1 of the sequence. */
static void narrow(const clmgk_attention_desc *desc, int64_t diagonal_key, int64_t *first, int64_t *end)
{
    static const int64_t far = INT64_C(1) << 32; /* beyond every axis */
    if (desc->causal)
        *end = clamp(diagonal_key + 1, *end);
    if (desc->use_window && desc->window_right >= 0 && desc->window_right < far)
        *end = clamp(diagonal_key + desc->window_right + 1, *end);
    if (desc->use_window && desc->window_left >= 0 && desc->window_left < far)
        *first = clamp(diagonal_key - desc->window_left, *end);
}

ref_span ref_span_of(const clmgk_ref_problem *problem, int64_t b, int64_t i)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const sequence seq =
        desc->sequences > 0 ? packed_sequence(problem, i) : (sequence){true, b, 0, desc->length, 0, desc->length_k};
    if (!seq.found || (desc->use_lengths_q && i >= problem->lengths_q[b]))
        return (ref_span){.absent = true};

    ref_span span = {.batch = b,
                     .sequence = seq.number,
                     .position = i - seq.first_row,
                     .origin = seq.first_key,
                     .queries = seq.rows,
                     .keys = seq.keys};
    span.diagonal = diagonal(problem, &seq, b, span.position);
    span.end = desc->use_lengths ? ref_key_limit(problem, b) : seq.keys;
    span.limit = span.end + seq.first_key;
    if (desc->use_positions)
        span.position = span.diagonal = problem->positions[b * desc->length + i];
    else
        narrow(desc, span.diagonal, &span.first, &span.end);
    span.first += seq.first_key;
    span.end += seq.first_key;
    return span;
}

int64_t ref_key_position(const clmgk_ref_problem *problem, const ref_span *span, int64_t j)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    return desc->use_positions ? problem->positions_k[span->batch * desc->length_k + j] : j - span->origin;
}

/* Whether positions hide key j of the span: where keys are in order, none of the span's are. */
static bool hides(const clmgk_ref_problem *problem, const ref_span *span, int64_t j)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    if (!desc->use_positions)
        return false;
    const int64_t distance = ref_key_position(problem, span, j) - span->position;
    return (desc->causal && distance > 0) ||
           (desc->use_window && desc->window_right >= 0 && distance > desc->window_right) ||
           (desc->use_window && desc->window_left >= 0 && -distance > desc->window_left);
}

int64_t clmgk_ref_visible_keys(const clmgk_ref_problem *problem, int64_t b, int64_t i)
{
    const ref_span span = ref_span_of(problem, b, i);
    int64_t hidden = 0;
    for (int64_t j = span.first; problem->desc.use_positions && j < span.end; j++)
        hidden += hides(problem, &span, j);
    return span.end - span.first - hidden;
}

/* Axes of the bias: 0 in the descriptor means the full axis. */
typedef struct bias_axes {
    int64_t batch, heads, rows, keys;
} bias_axes;

static bias_axes axes_of(const clmgk_attention_desc *desc)
{
    return (bias_axes){desc->bias_batch > 0 ? desc->bias_batch : desc->batch,
                       desc->bias_heads > 0 ? desc->bias_heads : ref_softmax_heads(desc),
                       desc->bias_length > 0 ? desc->bias_length : desc->length,
                       desc->bias_length_k > 0 ? desc->bias_length_k : desc->length_k};
}

int64_t ref_bias_count(const clmgk_attention_desc *desc)
{
    const bias_axes axes = axes_of(desc);
    return axes.batch * axes.heads * axes.rows * axes.keys;
}

int64_t ref_bias_index(const clmgk_attention_desc *desc, ref_row row, int64_t j)
{
    const bias_axes axes = axes_of(desc);
    return ((row.b % axes.batch * axes.heads + row.h % axes.heads) * axes.rows + row.i % axes.rows) * axes.keys +
           j % axes.keys;
}

double ref_bias(const clmgk_ref_problem *problem, ref_row row, int64_t j)
{
    return problem->desc.use_bias ? problem->bias[ref_bias_index(&problem->desc, row, j)] : 0.0;
}

bool ref_hidden(const clmgk_ref_problem *problem, ref_row row, int64_t j)
{
    const ref_span span = problem->desc.use_positions ? ref_span_of(problem, row.b, row.i) : (ref_span){0};
    return hides(problem, &span, j) || ref_bias(problem, row, j) == -(double)INFINITY;
}

double ref_penalty(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j)
{
    if (!problem->desc.use_alibi)
        return 0.0;
    return problem->slopes[h] * fabs((double)(ref_key_position(problem, span, j) - span->diagonal));
}
