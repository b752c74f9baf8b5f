/* SPDX-License-Identifier: Apache-2.0 */
/* Layers: made, described, released. */
#include "layer/layer.h"

/* Their bytes do not overflow: the descriptor is checked. */
static void list_arrays(clmgk_layer *layer)
{
    for (int i = 0; i < CLMGK_LAYER_ARRAYS; ++i) {
        const clmgk_layer_array array = (clmgk_layer_array)i;
        mgk_layer_line *const line = &layer->line[i];
        int64_t bytes = 0;
        (void)mgk_layer_array_bytes(&layer->desc, array, &bytes);
        line->extent = mgk_extent_dense(bytes);
        line->element = mgk_layer_element_size(&layer->desc, array);
        line->presence[CLMGK_PASS_FORWARD] = mgk_layer_array_presence(&layer->desc, CLMGK_PASS_FORWARD, array);
        line->presence[CLMGK_PASS_BACKWARD] = mgk_layer_array_presence(&layer->desc, CLMGK_PASS_BACKWARD, array);
    }
}

/* Keeps only the arrays that the requested gradients need. */
static void choose_kept(clmgk_layer *layer)
{
    const clmgk_layer_desc *const d = &layer->desc;
    const clmgk_attention_desc *const a = &layer->attention;
    const mgk_layer_sizes *const s = &layer->sizes;
    mgk_layer_kept *const kept = &layer->kept;
    const size_t element = mgk_gemm_element(a->dtype);
    const bool through = mgk_layer_differentiates(d);
    const bool post = d->norm == CLMGK_NORM_POST && mgk_layer_has_backward(d);
    if (post)
        kept->sum = mgk_layer_keep(layer, s->rows * d->width, element);
    if (post || (through && d->norm == CLMGK_NORM_PRE))
        kept->norm = mgk_layer_keep(layer, s->rows * 2, sizeof(float));
    if (through || mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_WEIGHT_O))
        kept->o = mgk_layer_keep(layer, s->rows * s->o, element);
    if (!through)
        return;
    const clmgk_array lse = mgk_has_trait(a, CLMGK_TRAIT_LINEAR) ? CLMGK_ARRAY_DENOMINATOR : CLMGK_ARRAY_LSE;
    kept->p_q = mgk_layer_keep(layer, s->rows * s->ld_q, element);
    kept->p_k = d->cross ? mgk_layer_keep(layer, s->rows_k * s->ld_k, element) : kept->p_q;
    kept->lse = mgk_layer_keep(layer, mgk_array_count(a, lse), sizeof(float));
    if (a->use_lse_low)
        kept->lse_low = mgk_layer_keep(layer, mgk_array_count(a, CLMGK_ARRAY_LSE_LOW), sizeof(float));
}

static clmgk_status make_pass(clmgk_layer *layer, clmgk_pass which, void (*make)(mgk_layer_builder *),
                              clmgk_error *error)
{
    mgk_layer_builder builder = {.layer = layer, .pass = &layer->pass[which], .error = error};
    make(&builder);
    mgk_layer_lay_out(builder.pass);
    mgk_steps_clear(&builder.spare, NULL);
    return builder.status;
}

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
    choose_kept(layer);
    MGK_TRY(make_pass(layer, CLMGK_PASS_FORWARD, mgk_layer_make_forward, error));
    if (mgk_layer_has_backward(&layer->desc))
        MGK_TRY(make_pass(layer, CLMGK_PASS_BACKWARD, mgk_layer_make_backward, error));
    MGK_TRY(compile_rows(layer, error));
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
    layer->sizes = mgk_layer_measure(&layer->desc);
    list_arrays(layer);
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
