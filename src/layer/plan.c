/* SPDX-License-Identifier: Apache-2.0 */
/* Layers: made, described, released. */
#include "layer/layer.h"

static clmgk_status compile_rows(clmgk_layer *layer, clmgk_error *error)
{
    mgk_limits limits = {layer->context->facts.info.max_work_group, layer->context->facts.info.local_memory_bytes,
                         false};
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    size_t count = 0;
    while (layer->rows[count] != NULL)
        ++count;
    return count > 0 ? mgk_steps_make(layer->context, layer->rows, count, &limits, &origin, error) : CLMGK_OK;
}

static void describe(clmgk_layer *layer)
{
    clmgk_layer_info *const info = &layer->info;
    info->workspace_bytes = layer->pass[CLMGK_PASS_FORWARD].workspace_bytes;
    info->backward_workspace_bytes = layer->pass[CLMGK_PASS_BACKWARD].workspace_bytes;
    info->attention = layer->plan;
    info->provider = layer->product[0]->info.provider;
    info->note = "";
    for (size_t i = 0; layer->product[i] != NULL && info->note[0] == '\0'; ++i)
        info->note = layer->product[i]->info.note;
}

static clmgk_status make(clmgk_layer *layer, const clmgk_plan_options *options, clmgk_error *error)
{
    const double start = mgk_now_ms();
    MGK_TRY(clmgk_plan_create(layer->context, &layer->attention, options, &layer->plan, error));
    MGK_TRY(mgk_layer_make_pass(layer, CLMGK_PASS_FORWARD, error));
    if (mgk_layer_has_backward(&layer->desc))
        MGK_TRY(mgk_layer_make_pass(layer, CLMGK_PASS_BACKWARD, error));
    MGK_TRY(compile_rows(layer, error));
    if (layer->attention.sizes_at_call)
        MGK_TRY(mgk_layer_calls_begin(layer, error));
    describe(layer);
    layer->info.compile_ms = mgk_now_ms() - start;
    return CLMGK_OK;
}

clmgk_status clmgk_layer_create(clmgk_context *context, const clmgk_layer_desc *desc, const clmgk_plan_options *options,
                                clmgk_layer **out, clmgk_error *error)
{
    if (context == NULL || out == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", context == NULL ? "context" : "out",
                        context == NULL ? "a context" : "room for the layer");
    clmgk_layer_desc resolved;
    clmgk_attention_desc attention;
    MGK_TRY(mgk_layer_resolve(desc, &resolved, &attention, error));
    clmgk_layer *const layer = mgk_alloc(&context->allocator, 1, sizeof(*layer));
    if (layer == NULL)
        return mgk_fail_memory(error, "a layer");
    mgk_context_retain(context);
    layer->context = context;
    layer->attention = attention;
    layer->desc = resolved;
    layer->desc.attention = &layer->attention;
    mgk_layer_set_sizes(layer);
    const clmgk_status status = make(layer, options, error);
    if (status == CLMGK_OK)
        *out = layer;
    else
        clmgk_layer_release(layer);
    return status;
}

void clmgk_layer_release(clmgk_layer *layer)
{
    if (layer == NULL)
        return;
    clmgk_context *const context = layer->context;
    mgk_layer_calls_free(layer);
    clmgk_plan_release(layer->plan);
    for (size_t i = 0; i < MGK_LAYER_LISTS; ++i) {
        clmgk_gemm_plan_release(layer->product[i]);
        if (layer->rows[i] != NULL)
            mgk_steps_clear(layer->rows[i], NULL);
        mgk_free(&context->allocator, layer->rows[i]);
    }
    mgk_free(&context->allocator, layer);
    clmgk_context_release(context);
}

clmgk_status clmgk_layer_get_info(const clmgk_layer *layer, clmgk_layer_info *info, clmgk_error *error)
{
    if (layer == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "layer: NULL: expected a layer");
    MGK_TRY(mgk_struct_room(info, "info", MGK_SIZE_WITH(clmgk_layer_info, attention), error));
    mgk_struct_write(info, 0, &layer->info, sizeof(layer->info));
    return CLMGK_OK;
}
