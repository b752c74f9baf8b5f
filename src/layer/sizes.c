/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of a layer with sizes of their own (attention->sizes_at_call). A pass is made for them as for any layer, in
 * room that the layer has kept since it was made; but its steps run the layer's kernels and products, and its workspace
 * is laid out as the limits' is.
 */
#include "layer/layer.h"

/* ---- room for calls --------------------------------------------------------------------------------------------- */

void mgk_layer_calls_free(clmgk_layer *layer)
{
    const clmgk_allocator *const allocator = &layer->context->allocator;
    mgk_layer_calls *const calls = layer->calls;
    if (calls == NULL)
        return;
    for (int i = 0; i < 2; ++i) {
        mgk_free(allocator, calls->layer[i]);
        mgk_free(allocator, calls->operation[i]);
        mgk_free(allocator, calls->attention[i]);
    }
    pthread_mutex_destroy(&calls->mutex);
    mgk_free(allocator, calls);
    layer->calls = NULL;
}

/* Makes room for a pass, and plans it for the limits. */
static clmgk_status begin_pass(clmgk_layer *layer, clmgk_pass which, clmgk_error *error)
{
    const clmgk_allocator *const allocator = &layer->context->allocator;
    mgk_layer_calls *const calls = layer->calls;
    calls->layer[which] = mgk_alloc(allocator, 1, sizeof(*layer));
    calls->operation[which] = mgk_alloc(allocator, layer->pass[which].count, sizeof(*calls->operation[which]));
    calls->attention[which] = mgk_alloc(allocator, 1, sizeof(*calls->attention[which]));
    if (calls->layer[which] == NULL || calls->operation[which] == NULL || calls->attention[which] == NULL)
        return mgk_fail_memory(error, "a layer");
    *calls->layer[which] = *layer;
    calls->layer[which]->limits = layer;
    calls->layer[which]->desc.attention = &calls->layer[which]->attention;
    return mgk_layer_calls_plan(layer, which, NULL, error);
}

clmgk_status mgk_layer_calls_begin(clmgk_layer *layer, clmgk_error *error)
{
    const clmgk_allocator *const allocator = &layer->context->allocator;
    mgk_layer_calls *const calls = mgk_alloc(allocator, 1, sizeof(*calls));
    if (calls == NULL || pthread_mutex_init(&calls->mutex, NULL) != 0) {
        mgk_free(allocator, calls);
        return mgk_fail_memory(error, "a layer");
    }
    layer->calls = calls;
    MGK_TRY(begin_pass(layer, CLMGK_PASS_FORWARD, error));
    return mgk_layer_has_backward(&layer->desc) ? begin_pass(layer, CLMGK_PASS_BACKWARD, error) : CLMGK_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* The sizes of a descriptor; 0 keys are as many as suit the others. */
static clmgk_call_sizes sizes_of(const clmgk_attention_desc *limits)
{
    clmgk_call_sizes sizes = CLMGK_CALL_SIZES_INIT;
    sizes.batch = limits->batch;
    sizes.length = limits->length;
    sizes.length_k = limits->length_k;
    sizes.sequences = limits->sequences;
    sizes.table_pages = limits->table_pages;
    return sizes;
}

/* Plans the attention of a call. A pass without it still has its arrays. */
static clmgk_status plan_attention(const clmgk_layer *layer, clmgk_pass which, const clmgk_call_sizes *sizes,
                                   const clmgk_attention_desc *resolved, clmgk_error *error)
{
    mgk_sized_call *const call = layer->calls->attention[which];
    if (layer->plan->pass[which] != NULL)
        return mgk_sized_plan(layer->plan, which, sizes, call, error);
    mgk_plan_list_arrays(resolved, call->array);
    return CLMGK_OK;
}

clmgk_status mgk_layer_calls_plan(clmgk_layer *layer, clmgk_pass which, const clmgk_call_sizes *sizes,
                                  clmgk_error *error)
{
    mgk_layer_calls *const calls = layer->calls;
    clmgk_layer *const call = calls->layer[which];
    clmgk_call_sizes own = sizes_of(&layer->attention);
    if (sizes != NULL)
        MGK_TRY(mgk_call_sizes_read(sizes, "attention.sizes", &own, error));
    if (mgk_same_sizes(&calls->sizes[which], &own))
        return CLMGK_OK;
    calls->sizes[which].struct_size = 0; /* none, should this fail */
    clmgk_call_sizes inner = own;
    MGK_TRY(mgk_layer_resize(&layer->desc, &inner, &call->desc, &call->attention, error));
    MGK_TRY(plan_attention(layer, which, &inner, &call->attention, error));
    mgk_layer_set_sizes(call);
    MGK_TRY(mgk_layer_make_pass(call, which, error));
    calls->sizes[which] = own;
    return CLMGK_OK;
}

const mgk_plan_array *mgk_layer_attention_arrays(const clmgk_layer *layer, clmgk_pass which)
{
    return layer->limits != NULL ? layer->limits->calls->attention[which]->array : layer->plan->array;
}
