/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of a layer's arrays, positions, dropout; room for a pass. */
#include "reference/layer_pass.h"

#include <stdlib.h>
#include <string.h>

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Columns of Q, K, V, O: q, k, v, o. */
static int64_t columns_of(const clmgk_attention_desc *desc, char side)
{
    const ref_form form = ref_form_of(desc);
    const int64_t global = desc->components; /* heads of Q and K, mixed */
    switch (side) {
    case 'q':
        return (form.mixed ? global : desc->heads) * desc->head_size;
    case 'k':
        return (form.mixed ? global : desc->kv_heads * (form.keys ? desc->components : 1)) * desc->head_size;
    case 'v':
        return desc->kv_heads * desc->value_size;
    case 'o':
        return desc->heads * desc->value_size;
    default: /* p */
        return columns_of(desc, 'q') + columns_of(desc, 'k') + columns_of(desc, 'v');
    }
}

static int64_t axis(const clmgk_ref_layer *layer, char letter)
{
    const clmgk_attention_desc *const a = &layer->attention.desc;
    switch (letter) {
    case 'B':
        return a->batch;
    case 'N':
        return a->length;
    case 'S':
        return a->length_k;
    case 'P': /* caches, or their pages */
        return a->page_size > 0 ? a->pages : a->batch;
    case 'C':
        return a->page_size > 0 ? a->page_size : layer->desc.cache_capacity;
    case 'W':
        return layer->desc.width;
    case 'U':
        return layer->desc.width_k;
    case 'T':
        return layer->desc.width_v;
    case 'D':
        return a->head_size;
    default:
        return columns_of(a, letter);
    }
}

int64_t clmgk_ref_layer_count(const clmgk_ref_layer *layer, clmgk_layer_array array)
{
    const clmgk_layer_desc *const d = &layer->desc;
    const char *axes = "";
    bool has = false;
#define SHAPE(name, its_axes, its_has)                                                                                 \
    case CLMGK_LAYER_ARRAY_##name:                                                                                     \
        axes = (its_axes);                                                                                             \
        has = (its_has);                                                                                               \
        break;
#define ARRAY(name, field, element, access, passes, its_axes, its_has) SHAPE(name, its_axes, its_has)
#define GRADIENT(name, field, element, bit, its_axes, its_has)         SHAPE(GRAD_##name, its_axes, its_has)
    switch (array) {
        CLMGK_LAYER_ARRAY_LIST(ARRAY, GRADIENT)
    case CLMGK_LAYER_ARRAYS:
        break;
    }
#undef GRADIENT
#undef ARRAY
#undef SHAPE
    int64_t count = has && axes[0] != '\0';
    for (; *axes != '\0'; axes++)
        count *= axis(layer, *axes);
    return count;
}

int64_t ref_layer_gradient_count(const clmgk_ref_layer *layer, clmgk_ref_layer_gradient which)
{
    static const clmgk_layer_array arrays[] = {
#define GRADIENT(name, ...) CLMGK_LAYER_ARRAY_GRAD_##name,
        CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, GRADIENT)
#undef GRADIENT
    };
    return clmgk_ref_layer_count(layer, arrays[which]);
}

/* ---- passes
 * ---------------------------------------------------------------------------------------------------------- */

double *ref_layer_room(layer_pass *pass, int64_t count)
{
    double *const room = pass->arrays < LAYER_MOST_ARRAYS ? calloc((size_t)count + 1, sizeof(double)) : NULL;
    if (room)
        pass->array[pass->arrays++] = room;
    pass->failed = pass->failed || !room;
    return room;
}

void ref_layer_close(layer_pass *pass)
{
    for (size_t n = 0; n < pass->arrays; n++)
        free(pass->array[n]);
}

/* Q, K and V apart, weights and biases one after the other or not. */
static void open_streams(const clmgk_ref_layer *layer, layer_pass *pass)
{
    const clmgk_layer_desc *const d = &layer->desc;
    const clmgk_attention_desc *const a = &layer->attention.desc;
    const double *const weight[] = {layer->weight_q, layer->weight_k, layer->weight_v};
    const double *const bias[] = {layer->bias_q, layer->bias_k, layer->bias_v};
    const double *const gain[] = {layer->gain_q, layer->gain_k, NULL};
    const double *const cache[] = {NULL, layer->cache_k, layer->cache_v};
    const layer_side of_keys = d->cross ? LAYER_K : LAYER_Q;
    const layer_side source[] = {LAYER_Q, of_keys, d->cross_v ? LAYER_V : of_keys};
    const int64_t inputs[] = {d->width, d->width_k, d->width_v};
    int64_t first = 0;
    for (int side = 0; side < LAYER_SIDES; side++) {
        layer_stream *const s = &pass->stream[side];
        s->side = (layer_side)side;
        s->source = source[side];
        s->tokens = s->source == LAYER_Q ? a->length : a->length_k;
        s->keys = side == LAYER_Q ? a->length : a->length_k;
        s->columns = columns_of(a, "qkv"[side]);
        s->size = side == LAYER_V ? a->value_size : a->head_size;
        s->inputs = inputs[side];
        s->weight = d->packed_weights ? layer->weight_qkv + first * d->width : weight[side];
        s->bias = d->packed_weights && d->use_bias ? layer->bias_qkv + first : NULL;
        if (d->use_bias && !d->packed_weights)
            s->bias = bias[side];
        s->gain = d->qk_norm ? gain[side] : NULL;
        s->cache = d->cache_capacity > 0 ? cache[side] : NULL;
        first += s->columns;
    }
}

void ref_layer_open(const clmgk_ref_layer *layer, const ref_way *way, layer_pass *pass)
{
    const clmgk_attention_desc *const a = &layer->attention.desc;
    memset(pass, 0, sizeof(*pass));
    pass->layer = layer;
    pass->plain = way != NULL;
    pass->way = way ? *way : (ref_way){0};
    pass->attention = layer->attention;
    pass->rows = a->batch * a->length;
    pass->width = layer->desc.width;
    pass->o_columns = columns_of(a, 'o');
    open_streams(layer, pass);
}

/* Index within the sequence that has element i of a packed axis; 0 for one in no sequence. */
static int64_t packed_position(const int32_t *offsets, int64_t sequences, int64_t i)
{
    for (int64_t t = 0; t < sequences; t++)
        if (offsets[t] <= i && i < offsets[t + 1])
            return i - (offsets[t] > 0 ? offsets[t] : 0);
    return 0;
}

int64_t ref_layer_position(const layer_pass *pass, const layer_stream *stream, int64_t b, int64_t n)
{
    const clmgk_ref_problem *const p = &pass->attention;
    if (pass->layer->desc.cache_capacity > 0)
        return p->lengths[b] - p->desc.length + n;
    if (pass->layer->desc.use_positions)
        return (int64_t)pass->layer->positions[b] - p->desc.length + n;
    if (p->desc.sequences == 0)
        return n;
    const bool own = stream->side != LAYER_Q && p->desc.use_offsets_k;
    return packed_position(own ? p->offsets_k : p->offsets, p->desc.sequences, n);
}

double clmgk_ref_layer_dropout(const clmgk_ref_layer *layer, int64_t b, int64_t n, int64_t w)
{
    enum { STREAM = 3 };
    const double p = layer->desc.dropout;
    const uint64_t seed = layer->attention.seed;
    const uint32_t counter[4] = {(uint32_t)(w / 4), (uint32_t)n, (uint32_t)b, STREAM};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32U)};
    uint32_t words[4];
    clmgk_ref_philox(counter, key, words);
    return (double)words[w % 4] < floor(ldexp(p, 32)) ? 0.0 : 1.0 / (1.0 - p);
}
