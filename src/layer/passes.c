/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's sizes determine its arrays, the numbers that the forward pass keeps, and the passes. */
#include "layer/layer.h"

#include <string.h>

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

void mgk_layer_set_sizes(clmgk_layer *layer)
{
    layer->sizes = mgk_layer_measure(&layer->desc);
    layer->info.activation_bytes = 0;
    memset(&layer->kept, 0, sizeof(layer->kept));
    list_arrays(layer);
    choose_kept(layer);
}

clmgk_status mgk_layer_make_pass(clmgk_layer *layer, clmgk_pass which, clmgk_error *error)
{
    memset(&layer->pass[which], 0, sizeof(layer->pass[which]));
    mgk_layer_builder builder = {.layer = layer, .pass = &layer->pass[which], .which = which, .error = error};
    (which == CLMGK_PASS_FORWARD ? mgk_layer_make_forward : mgk_layer_make_backward)(&builder);
    const bool fits = mgk_layer_lay_out(builder.pass, layer->limits != NULL ? &layer->limits->pass[which] : NULL);
    mgk_steps_clear(&builder.spare, NULL);
    return builder.status != CLMGK_OK || fits
               ? builder.status
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                          "attention.sizes: a part of the workspace is larger than with the limits");
}
