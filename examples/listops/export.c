/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of a trained network as .npy files: a padded batch with lengths, so that every program can read them. */
#include "training.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { EXPORTED = 8, MAX_PATH = 4096 };

/* NumPy's format, version 1: a header padded to a multiple of 64 bytes, then the elements. */
static void write_npy(const char *folder, int32_t layer, const char *name, const char *type, int axes,
                      const int64_t *shape, const void *data)
{
    char path[MAX_PATH], text[192], sizes[100] = "";
    size_t count = 1;
    for (int i = 0; i < axes; ++i) {
        const size_t used = strlen(sizes);
        (void)snprintf(sizes + used, sizeof(sizes) - used, "%" PRId64 ",", shape[i]);
        count *= (size_t)shape[i];
    }
    const int length =
        snprintf(text, sizeof(text), "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, sizes);
    const unsigned padded = ((unsigned)length + 1 + 10 + 63) / 64 * 64 - 10;
    const unsigned char magic[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, padded & 255U, padded >> 8U};
    if (snprintf(path, sizeof(path), layer < 0 ? "%s/%s.npy" : "%s/%s.%d.npy", folder, name, layer + 1) >= MAX_PATH) {
        fail(EXIT_USAGE, "--export: the path is too long");
    }
    output o = output_open(path);
    output_write(&o, magic, sizeof(magic));
    output_write(&o, text, (size_t)length);
    for (unsigned i = (unsigned)length; i + 1 < padded; ++i) {
        output_write(&o, " ", 1);
    }
    output_write(&o, "\n", 1);
    output_write(&o, data, count * 4);
    output_commit(&o);
}

/* Of columns [rows, heads, size], those of the batch's first sequences: [sequences, heads, length, size], padded by 0.
 */
static void write_heads(const char *folder, int32_t layer, const char *name, const batch *b, const float *qkv,
                        int64_t ld, const int64_t *shape, int axes)
{
    const int32_t *const offsets = b->offsets + b->first;
    const int64_t sequences = shape[0], length = shape[axes - 2], size = shape[axes - 1];
    int64_t heads = 1;
    for (int i = 1; i < axes - 2; ++i) {
        heads *= shape[i];
    }
    float *const out = allocate((size_t)(sequences * heads * length * size), sizeof(float));
    for (int64_t t = 0; t < sequences; ++t) {
        for (int64_t i = offsets[t]; i < offsets[t + 1]; ++i) {
            for (int64_t h = 0; h < heads; ++h) {
                (void)memcpy(out + ((t * heads + h) * length + i - offsets[t]) * size, qkv + i * ld + h * size,
                             (size_t)size * sizeof(float));
            }
        }
    }
    write_npy(folder, layer, name, "<f4", axes, shape, out);
    free(out);
}

/* The attention's parameters, with the names of clmgk-run's options. */
static void write_parameters(const run *r, const char *folder, int32_t layer)
{
    static const struct {
        clmgk_array array;
        const char *name;
    } list[] = {{CLMGK_ARRAY_PRIOR, "prior"},
                {CLMGK_ARRAY_SHIFT, "shift"},
                {CLMGK_ARRAY_MIX, "mix"},
                {CLMGK_ARRAY_MIX_WEIGHT, "mix-weight"},
                {CLMGK_ARRAY_NOISE, "noise"}};
    const network *const n = &r->network;
    clmgk_attention_args args = n->layer[layer].attention;
    for (size_t i = 0; i < sizeof(list) / sizeof(*list); ++i) {
        const clmgk_shape shape = clmgk_array_shape(&n->attention, list[i].array);
        const size_t count = (size_t)clmgk_array_count(&n->attention, list[i].array);
        if (count == 0) {
            continue;
        }
        float *const values = allocate(count, sizeof(float));
        device_read(n->device, *clmgk_array_buffer(&args, list[i].array), count * sizeof(float), values);
        write_npy(folder, layer, list[i].name, "<f4", shape.rank, shape.size, values);
        free(values);
    }
    if (!(clmgk_variant_traits(n->attention.variant) & (CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_ADMIXTURE))) {
        const int64_t components = n->attention.components;
        float *const variance = allocate((size_t)components, sizeof(float));
        for (int64_t i = 0; i < components; ++i) {
            variance[i] = (float)n->attention.variance;
        }
        write_npy(folder, layer, "variance", "<f4", 1, &components, variance);
        free(variance);
    }
}

static void write_batch(const char *folder, const batch *b, int64_t sequences, int64_t length)
{
    const int32_t *const offsets = b->offsets + b->first;
    int32_t *const tokens = allocate((size_t)(sequences * length), sizeof(int32_t));
    int32_t *const lengths = allocate((size_t)sequences, sizeof(int32_t));
    for (int64_t t = 0; t < sequences; ++t) {
        lengths[t] = offsets[t + 1] - offsets[t];
        for (int64_t i = 0; i < length; ++i) {
            tokens[t * length + i] = i < lengths[t] ? b->tokens[offsets[t] + i] : TOKEN_PADDING;
        }
    }
    write_npy(folder, -1, "tokens", "<i4", 2, (const int64_t[]){sequences, length}, tokens);
    write_npy(folder, -1, "lengths", "<i4", 1, &sequences, lengths);
    write_npy(folder, -1, "answers", "<i4", 1, &sequences, b->answers + b->first);
    free(tokens);
    free(lengths);
}

void export_arrays(run *r, const char *folder)
{
    network *const n = &r->network;
    const clmgk_attention_desc *const a = &n->attention;
    const uint32_t traits = clmgk_variant_traits(a->variant);
    const int64_t mixed = traits & CLMGK_TRAIT_ADMIXTURE ? a->components : a->heads, ld = n->qkv_columns;
    int64_t length = 0;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        fail(EXIT_SYSTEM, "%s: cannot make it: %s", folder, strerror(errno));
    }
    (void)batch_fill(&r->batch, &r->plan.task, STREAM_TEST, 0, EXPORTED);
    const int64_t sequences = r->batch.count;
    for (int64_t t = 0; t < sequences; ++t) {
        const int32_t *const its = r->batch.offsets + r->batch.first + t;
        length = its[1] - its[0] > length ? its[1] - its[0] : length;
    }
    write_batch(folder, &r->batch, sequences, length);
    float *const qkv = allocate((size_t)(r->batch.rows * ld), sizeof(float));
    network_load(n, &r->batch);
    network_forward(n, 0);
    for (int32_t i = 0; i < r->plan.settings.layers; ++i) {
        const int64_t q[] = {sequences, mixed, length, a->head_size};
        const int64_t keys[] = {sequences, a->kv_heads, a->components, length, a->head_size};
        const int64_t v[] = {sequences, a->kv_heads, length, a->value_size};
        network_project(n, i);
        device_read(n->device, n->qkv, (size_t)(r->batch.rows * ld) * sizeof(float), qkv);
        write_heads(folder, i, "q", &r->batch, qkv, ld, q, 4);
        if (traits & CLMGK_TRAIT_KEYS) {
            write_heads(folder, i, "k", &r->batch, qkv + n->q_columns, ld, keys, 5);
        } else {
            write_heads(folder, i, "k", &r->batch, qkv + n->q_columns, ld, q, 4);
        }
        write_heads(folder, i, "v", &r->batch, qkv + n->q_columns + n->k_columns, ld, v, 4);
        write_parameters(r, folder, i);
    }
    free(qkv);
}
