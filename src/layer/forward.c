/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass's operations: normalisation, projections, heads, attention, output projection, residual. */
#include "layer/forward.h"

#include "device/checks.h"

mgk_norm_rows mgk_layer_width_rows(const clmgk_layer *layer)
{
    return (mgk_norm_rows){.rows = layer->sizes.rows,
                           .length = layer->attention.length,
                           .width = layer->desc.width,
                           .epsilon = layer->desc.norm_epsilon};
}

mgk_layer_place mgk_layer_normalised(mgk_layer_builder *b, mgk_layer_place statistics)
{
    const clmgk_layer *const layer = b->layer;
    const mgk_layer_place x = mgk_layer_at(layer, CLMGK_LAYER_ARRAY_X);
    if (layer->desc.norm != CLMGK_NORM_PRE)
        return x;
    const mgk_norm_rows rows = mgk_layer_width_rows(layer);
    const mgk_rows_list list = mgk_layer_rows(b);
    mgk_rows_norm(&list, &rows);
    mgk_layer_operation *const operation = mgk_layer_append_rows(b, &list, MGK_NORM_WORKSPACE);
    const mgk_layer_place out = mgk_layer_room(b, layer->sizes.rows * layer->desc.width, x.element);
    mgk_layer_bind(b, operation, MGK_NORM_IN, x);
    mgk_layer_bind(b, operation, MGK_NORM_OUT, out);
    mgk_layer_bind(b, operation, MGK_NORM_GAIN, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_NORM_GAIN));
    mgk_layer_bind(b, operation, MGK_NORM_OFFSET, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_NORM_BIAS));
    mgk_layer_bind(b, operation, MGK_NORM_STATISTICS, statistics);
    return out;
}

/* ---- projections ----------------------------------------------------------------------------------------------- */

/* With packed weights, adjacent projections of one input are one product. */
size_t mgk_layer_projections(const clmgk_layer *layer, mgk_layer_projection list[3])
{
    const clmgk_layer_desc *const d = &layer->desc;
    const mgk_layer_sizes *const s = &layer->sizes;
    const mgk_layer_input of_keys = d->cross ? MGK_LAYER_SECOND : MGK_LAYER_FIRST;
    const bool packed = d->packed_weights != 0;
    const struct {
        mgk_layer_input input;
        int64_t width, columns, first;
        clmgk_layer_array weight, grad;
    } parts[] = {{MGK_LAYER_FIRST, d->width, s->q, 0, CLMGK_LAYER_ARRAY_WEIGHT_Q, CLMGK_LAYER_ARRAY_GRAD_WEIGHT_Q},
                 {of_keys, d->width_k, s->k, s->at_k, CLMGK_LAYER_ARRAY_WEIGHT_K, CLMGK_LAYER_ARRAY_GRAD_WEIGHT_K},
                 {d->cross_v ? MGK_LAYER_THIRD : of_keys, d->width_v, s->v, s->at_v, CLMGK_LAYER_ARRAY_WEIGHT_V,
                  CLMGK_LAYER_ARRAY_GRAD_WEIGHT_V}};
    int64_t above = 0; /* elements of the packed weights before this part's */
    size_t count = 0;
    for (size_t i = 0; i < MGK_COUNT(parts); ++i) {
        const bool first = parts[i].input == MGK_LAYER_FIRST;
        const clmgk_layer_array grad = packed ? CLMGK_LAYER_ARRAY_GRAD_WEIGHT_QKV : parts[i].grad;
        const clmgk_layer_array weight = packed ? CLMGK_LAYER_ARRAY_WEIGHT_QKV : parts[i].weight;
        if (packed && i > 0 && parts[i].input == parts[i - 1].input)
            list[count - 1].columns += parts[i].columns;
        else
            list[count++] = (mgk_layer_projection){parts[i].input,
                                                   parts[i].width,
                                                   first ? s->rows : s->rows_k,
                                                   first ? s->ld_q : s->ld_k,
                                                   parts[i].columns,
                                                   parts[i].first,
                                                   mgk_layer_behind(mgk_layer_at(layer, weight), above),
                                                   mgk_layer_behind(mgk_layer_at(layer, grad), above),
                                                   mgk_layer_array_get_info(grad)->gradient};
        above += packed ? parts[i].columns * parts[i].width : 0;
    }
    return count;
}

mgk_layer_place mgk_layer_input_at(const clmgk_layer *layer, mgk_layer_input input, mgk_layer_place y)
{
    return input == MGK_LAYER_FIRST
               ? y
               : mgk_layer_at(layer, input == MGK_LAYER_SECOND ? CLMGK_LAYER_ARRAY_X2 : CLMGK_LAYER_ARRAY_X3);
}

/* P = Y W^T: each matrix of weights makes its own columns. */
static void project(mgk_layer_builder *b, mgk_layer_place y, mgk_layer_place p_q, mgk_layer_place p_k)
{
    mgk_layer_projection list[3];
    const size_t count = mgk_layer_projections(b->layer, list);
    for (size_t i = 0; i < count; ++i) {
        const mgk_layer_projection *const part = &list[i];
        const clmgk_gemm_desc product = {
            .m = part->rows, .n = part->columns, .k = part->width, .transpose_b = 1, .ldc = part->ld};
        const mgk_layer_place to = part->input == MGK_LAYER_FIRST ? p_q : p_k;
        mgk_layer_multiply(b, product, mgk_layer_input_at(b->layer, part->input, y), part->weight,
                           mgk_layer_behind(to, part->first));
    }
}

/* ---- heads ----------------------------------------------------------------------------------------------------- */

mgk_heads_rows mgk_layer_head_rows(const clmgk_layer *layer, const bool with[3])
{
    const clmgk_layer_desc *const d = &layer->desc;
    const clmgk_attention_desc *const a = &layer->attention;
    const mgk_layer_sizes *const s = &layer->sizes;
    const bool second = d->cross && !with[0];
    return (mgk_heads_rows){.rows = second ? s->rows_k : s->rows,
                            .length = second ? a->length_k : a->length,
                            .part = {{with[0] ? s->heads_q : 0, a->head_size, s->ld_q, s->ld_q},
                                     {with[1] ? s->heads_k : 0, a->head_size, s->ld_k, s->ld_k},
                                     {with[2] ? s->heads_v : 0, a->value_size, s->ld_k, s->ld_k}},
                            .rotary = d->rotary,
                            .rotary_size = d->rotary_size,
                            .rotary_base = d->rotary_base,
                            .epsilon = d->norm_epsilon,
                            .sequences = d->rotary != CLMGK_ROTARY_NONE ? a->sequences : 0};
}

void mgk_layer_bind_heads(mgk_layer_builder *b, mgk_layer_operation *operation, const bool with[3])
{
    const clmgk_layer *const layer = b->layer;
    const clmgk_layer_desc *const d = &layer->desc;
    if (d->qk_norm && with[0])
        mgk_layer_bind(b, operation, MGK_HEADS_GAIN_Q, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_GAIN_Q));
    if (d->qk_norm && with[1])
        mgk_layer_bind(b, operation, MGK_HEADS_GAIN_K, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_GAIN_K));
    if (d->cache_capacity > 0)
        mgk_layer_bind(b, operation, MGK_HEADS_LENGTHS, mgk_layer_attention_at(CLMGK_ARRAY_LENGTHS));
    if (layer->attention.use_scale_k)
        mgk_layer_bind(b, operation, MGK_HEADS_SCALE_K, mgk_layer_attention_at(CLMGK_ARRAY_SCALE_K));
    if (layer->attention.use_scale_v)
        mgk_layer_bind(b, operation, MGK_HEADS_SCALE_V, mgk_layer_attention_at(CLMGK_ARRAY_SCALE_V));
    if (layer->attention.page_size > 0)
        mgk_layer_bind(b, operation, MGK_HEADS_PAGE_TABLE, mgk_layer_attention_at(CLMGK_ARRAY_PAGE_TABLE));
    if (d->use_positions)
        mgk_layer_bind(b, operation, MGK_HEADS_LENGTHS, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_POSITIONS));
    if (d->rotary != CLMGK_ROTARY_NONE && layer->attention.sequences > 0)
        mgk_layer_bind(b, operation, MGK_HEADS_OFFSETS,
                       mgk_layer_attention_at(layer->attention.use_offsets_k && !with[0] ? CLMGK_ARRAY_OFFSETS_K
                                                                                         : CLMGK_ARRAY_OFFSETS));
}

static void bind_biases(mgk_layer_builder *b, mgk_layer_operation *operation, const bool with[3])
{
    static const int buffers[] = {MGK_HEADS_BIAS_Q, MGK_HEADS_BIAS_K, MGK_HEADS_BIAS_V};
    static const clmgk_layer_array arrays[] = {CLMGK_LAYER_ARRAY_BIAS_Q, CLMGK_LAYER_ARRAY_BIAS_K,
                                               CLMGK_LAYER_ARRAY_BIAS_V};
    const clmgk_layer *const layer = b->layer;
    const int64_t first[] = {0, layer->sizes.q, layer->sizes.q + layer->sizes.k};
    for (int i = 0; i < 3; ++i)
        if (with[i])
            mgk_layer_bind(b, operation, buffers[i],
                           layer->desc.packed_weights
                               ? mgk_layer_behind(mgk_layer_at(layer, CLMGK_LAYER_ARRAY_BIAS_QKV), first[i])
                               : mgk_layer_at(layer, arrays[i]));
}

/* Finishes some of Q, K and V, from `in` to `out`. */
static void finish_heads(mgk_layer_builder *b, const bool with[3], const mgk_layer_heads *in,
                         const mgk_layer_heads *out, bool biased)
{
    static const int from[] = {MGK_HEADS_Q, MGK_HEADS_K, MGK_HEADS_V};
    static const int to[] = {MGK_HEADS_OUT_Q, MGK_HEADS_OUT_K, MGK_HEADS_OUT_V};
    const clmgk_layer *const layer = b->layer;
    mgk_heads_rows rows = mgk_layer_head_rows(layer, with);
    rows.capacity = layer->desc.cache_capacity;
    rows.cache_k = layer->attention.dtype_k;
    rows.cache_v = layer->attention.dtype_v;
    rows.scale_k = layer->attention.scale_k;
    rows.scale_v = layer->attention.scale_v;
    rows.components = mgk_has_trait(&layer->attention, CLMGK_TRAIT_KEYS) ? layer->attention.components : 1;
    rows.page_size = layer->attention.page_size;
    rows.pages = layer->attention.pages;
    rows.table_pages = layer->attention.table_pages;
    rows.keep_biased = biased && mgk_layer_separates(&layer->desc);
    for (int i = 0; i < 3; ++i)
        rows.part[i].ld_out = out->ld[i];
    const mgk_rows_list list = mgk_layer_rows(b);
    mgk_rows_heads_forward(&list, &rows);
    mgk_layer_operation *const operation = mgk_layer_append_rows(b, &list, MGK_HEADS_WORKSPACE);
    for (int i = 0; i < 3; ++i)
        if (with[i]) {
            mgk_layer_bind(b, operation, from[i], in->place[i]);
            mgk_layer_bind(b, operation, to[i], out->place[i]);
        }
    mgk_layer_bind_heads(b, operation, with);
    if (biased)
        bind_biases(b, operation, with);
}

/* Q, K and V within the projections. */
mgk_layer_heads mgk_layer_projected(const clmgk_layer *layer, mgk_layer_place p_q, mgk_layer_place p_k)
{
    const mgk_layer_sizes *const s = &layer->sizes;
    return (mgk_layer_heads){{p_q, mgk_layer_behind(p_k, s->at_k), mgk_layer_behind(p_k, s->at_v)},
                             {s->ld_q, s->ld_k, s->ld_k}};
}

mgk_layer_heads mgk_layer_finished(mgk_layer_builder *b, const mgk_layer_heads *in, bool again)
{
    const clmgk_layer *const layer = b->layer;
    const clmgk_layer_desc *const d = &layer->desc;
    const mgk_layer_sizes *const s = &layer->sizes;
    const bool bias = d->use_bias && !again, transformed = d->qk_norm || d->rotary != CLMGK_ROTARY_NONE;
    const bool cached = d->cache_capacity > 0;
    mgk_layer_heads out = *in;
    if (mgk_layer_separates(d)) {
        out.place[0] = mgk_layer_room(b, s->rows * s->q, in->place[0].element);
        out.place[1] = mgk_layer_room(b, s->rows_k * s->k, in->place[0].element);
        out.ld[0] = s->q;
        out.ld[1] = s->k;
    } else if (again) {
        return out;
    }
    if (cached) {
        out.place[1] = mgk_layer_at(layer, CLMGK_LAYER_ARRAY_CACHE_K);
        out.place[2] = mgk_layer_at(layer, CLMGK_LAYER_ARRAY_CACHE_V);
    }
    const bool with[3] = {bias || transformed, bias || transformed || cached, bias || cached};
    if (!with[1])
        return out;
    if (d->cross) {
        finish_heads(b, (const bool[3]){with[0], false, false}, in, &out, bias);
        finish_heads(b, (const bool[3]){false, with[1], with[2]}, in, &out, bias);
    } else {
        finish_heads(b, with, in, &out, bias);
    }
    return out;
}

/* ---- output ---------------------------------------------------------------------------------------------------- */

/* out = LN(dropout(O W_O^T + b_O) + X), without the parts that the descriptor omits. */
static void finish(mgk_layer_builder *b, mgk_layer_place o)
{
    const clmgk_layer *const layer = b->layer;
    const clmgk_layer_desc *const d = &layer->desc;
    const mgk_layer_place out = mgk_layer_at(layer, CLMGK_LAYER_ARRAY_OUT);
    const mgk_layer_place sum = layer->kept.sum.base != MGK_LAYER_NOWHERE ? layer->kept.sum : out;
    const bool post = d->norm == CLMGK_NORM_POST, adds = d->use_bias_o || d->residual || d->dropout > 0.0;
    const clmgk_gemm_desc product = {.m = layer->sizes.rows, .n = d->width, .k = layer->sizes.o, .transpose_b = 1};
    mgk_layer_multiply(b, product, o, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_WEIGHT_O), sum);
    if (!post && !adds)
        return;
    mgk_norm_rows rows = mgk_layer_width_rows(layer);
    rows.dropout = d->dropout;
    const mgk_rows_list list = mgk_layer_rows(b);
    mgk_rows_norm(&list, &rows);
    mgk_layer_operation *const operation = mgk_layer_append_rows(b, &list, MGK_NORM_WORKSPACE);
    mgk_layer_bind(b, operation, MGK_NORM_IN, sum);
    mgk_layer_bind(b, operation, MGK_NORM_OUT, out);
    mgk_layer_note_access(b, sum, MGK_READ);
    if (d->use_bias_o)
        mgk_layer_bind(b, operation, MGK_NORM_BIAS, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_BIAS_O));
    if (d->residual)
        mgk_layer_bind(b, operation, MGK_NORM_RESIDUAL, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_X));
    if (!post)
        return;
    mgk_layer_bind(b, operation, MGK_NORM_GAIN, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_NORM_GAIN));
    mgk_layer_bind(b, operation, MGK_NORM_OFFSET, mgk_layer_at(layer, CLMGK_LAYER_ARRAY_NORM_BIAS));
    mgk_layer_bind(b, operation, MGK_NORM_STATISTICS, layer->kept.norm);
    if (adds)
        mgk_layer_bind(b, operation, MGK_NORM_SUM, layer->kept.sum);
}

/* ---- the pass -------------------------------------------------------------------------------------------------- */

static mgk_layer_place kept_or_room(mgk_layer_builder *b, mgk_layer_place kept, int64_t count, size_t element)
{
    return kept.base != MGK_LAYER_NOWHERE ? kept : mgk_layer_room(b, count, element);
}

void mgk_layer_make_forward(mgk_layer_builder *b)
{
    const clmgk_layer *const layer = b->layer;
    const mgk_layer_sizes *const s = &layer->sizes;
    const mgk_layer_kept *const kept = &layer->kept;
    const size_t element = mgk_gemm_element(layer->attention.dtype);
    const bool pre = layer->desc.norm == CLMGK_NORM_PRE;
    const mgk_layer_place y = mgk_layer_normalised(b, pre ? kept->norm : (mgk_layer_place){.base = MGK_LAYER_NOWHERE});
    const mgk_layer_place p_q = kept_or_room(b, kept->p_q, s->rows * s->ld_q, element);
    const mgk_layer_place p_k = layer->desc.cross ? kept_or_room(b, kept->p_k, s->rows_k * s->ld_k, element) : p_q;
    project(b, y, p_q, p_k);
    const mgk_layer_heads projected = mgk_layer_projected(layer, p_q, p_k);
    const mgk_layer_heads heads = mgk_layer_finished(b, &projected, false);

    const mgk_layer_place o = kept_or_room(b, kept->o, s->rows * s->o, element);
    const bool linear = mgk_has_trait(&layer->attention, CLMGK_TRAIT_LINEAR);
    mgk_layer_operation *const attention = mgk_layer_attend(b, CLMGK_PASS_FORWARD);
    mgk_layer_bind(b, attention, CLMGK_ARRAY_Q, heads.place[0]);
    mgk_layer_bind(b, attention, CLMGK_ARRAY_K, heads.place[1]);
    mgk_layer_bind(b, attention, CLMGK_ARRAY_V, heads.place[2]);
    mgk_layer_bind(b, attention, CLMGK_ARRAY_O, o);
    mgk_layer_bind(b, attention, linear ? CLMGK_ARRAY_DENOMINATOR : CLMGK_ARRAY_LSE, kept->lse);
    mgk_layer_bind(b, attention, CLMGK_ARRAY_LSE_LOW, kept->lse_low);
    finish(b, o);
}
