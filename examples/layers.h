/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the examples of whole layers: the weights of a layer, one array after the other in one buffer, so that all
 * are one read, one write and one step of training. */
#ifndef LAYERS_H
#define LAYERS_H

#include "example.h"

/* Layers of these examples are alike: pre-norm, residual, packed weights, all biases, rotary positions. */
static inline clmgk_layer_desc describe_layer(const clmgk_attention_desc *attention, int64_t width)
{
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT;
    desc.attention = attention;
    desc.width = width;
    desc.packed_weights = 1;
    desc.use_bias = desc.use_bias_o = 1;
    desc.residual = 1;
    desc.norm = CLMGK_NORM_PRE;
    desc.rotary = CLMGK_ROTARY_HALVES;
    return desc;
}

#define WEIGHT_GRADIENTS                                                                                               \
    (CLMGK_LAYER_GRADIENT_WEIGHT_QKV | CLMGK_LAYER_GRADIENT_WEIGHT_O | CLMGK_LAYER_GRADIENT_BIAS_QKV |                 \
     CLMGK_LAYER_GRADIENT_BIAS_O | CLMGK_LAYER_GRADIENT_NORM_BIAS | CLMGK_LAYER_GRADIENT_NORM_GAIN)

/* Floats of all weights; if `args` is not NULL, they are put to `values`, and their gradients to `gradients`. */
static inline size_t place_weights(const clmgk_layer_desc *desc, clmgk_layer_args *args, cl_mem values,
                                   cl_mem gradients)
{
    static const clmgk_layer_array arrays[][2] = {{CLMGK_LAYER_ARRAY_WEIGHT_QKV, CLMGK_LAYER_ARRAY_GRAD_WEIGHT_QKV},
                                                  {CLMGK_LAYER_ARRAY_WEIGHT_O, CLMGK_LAYER_ARRAY_GRAD_WEIGHT_O},
                                                  {CLMGK_LAYER_ARRAY_BIAS_QKV, CLMGK_LAYER_ARRAY_GRAD_BIAS_QKV},
                                                  {CLMGK_LAYER_ARRAY_BIAS_O, CLMGK_LAYER_ARRAY_GRAD_BIAS_O},
                                                  {CLMGK_LAYER_ARRAY_NORM_BIAS, CLMGK_LAYER_ARRAY_GRAD_NORM_BIAS},
                                                  {CLMGK_LAYER_ARRAY_NORM_GAIN, CLMGK_LAYER_ARRAY_GRAD_NORM_GAIN}};
    clmgk_error error = {0};
    clmgk_layer_desc resolved = CLMGK_LAYER_DESC_INIT;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    uint64_t at = 0;
    TRY(clmgk_layer_validate(desc, &resolved, &attention, &error));
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); ++i) {
        if (args) {
            *clmgk_layer_array_buffer(args, arrays[i][0]) = (clmgk_buffer){values, at};
        }
        if (args && gradients) {
            *clmgk_layer_array_buffer(args, arrays[i][1]) = (clmgk_buffer){gradients, at};
        }
        at += (uint64_t)clmgk_layer_array_count(&resolved, arrays[i][0]);
    }
    return at;
}

/* Small random numbers; gains of 1. */
static inline void fill_weights(float *values, size_t count, size_t width, uint32_t seed)
{
    const size_t gains = count - width;
    fill(values, count, seed);
    for (size_t i = 0; i < count; ++i) {
        values[i] = i >= gains ? 1.0F : values[i] / sqrtf((float)width);
    }
}

/* Working memory of one call at a time, forward or backward. */
static inline clmgk_buffer new_layer_workspace(device d, const clmgk_layer *layer)
{
    clmgk_error error = {0};
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    TRY(clmgk_layer_get_info(layer, &info, &error));
    const uint64_t forward = info.workspace_bytes, backward = info.backward_workspace_bytes;
    const size_t bytes = forward > backward ? forward : backward;
    return bytes > 0 ? new_buffer(d, bytes, NULL) : (clmgk_buffer){NULL, 0};
}

static inline void release_each(const clmgk_buffer *buffers, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        if (buffers[i].memory) {
            CL(clReleaseMemObject(buffers[i].memory));
        }
    }
}

#endif
