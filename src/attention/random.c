/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers on the host: the generator of cl/base/random.clh, and its dropout mask and noise. */
#include "attention/normal.h"
#include "base/base.h"
#include "clmgk/attention.h"

#include <math.h>

void clmgk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4])
{
    uint32_t w[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t low = key[0], high = key[1];
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t)0xD2511F53U * w[0], b = (uint64_t)0xCD9E8D57U * w[2];
        w[0] = (uint32_t)(b >> 32) ^ w[1] ^ low;
        w[1] = (uint32_t)b;
        w[2] = (uint32_t)(a >> 32) ^ w[3] ^ high;
        w[3] = (uint32_t)a;
        low += 0x9E3779B9U;
        high += 0xBB67AE85U;
    }
    for (int i = 0; i < 4; ++i)
        words[i] = w[i];
}

static clmgk_status check_numbers(int64_t heads, int64_t b, int64_t h, int64_t first_row, int64_t rows,
                                  int64_t first_key, int64_t keys, clmgk_error *error)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } numbers[] = {{"heads", heads, 1, MGK_MAX_AXIS},
                   {"b", b, 0, MGK_MAX_AXIS},
                   {"h", h, 0, heads - 1},
                   {"first_row", first_row, 0, MGK_MAX_AXIS},
                   {"rows", rows, 0, MGK_MAX_AXIS},
                   {"first_key", first_key, 0, MGK_MAX_AXIS},
                   {"keys", keys, 0, MGK_MAX_AXIS}};
    for (size_t i = 0; i < MGK_COUNT(numbers); ++i)
        MGK_TRY(mgk_check_range(numbers[i].name, numbers[i].value, numbers[i].least, numbers[i].most, error));
    return CLMGK_OK;
}

/* The streams of cl/base/random.clh. */
enum { STREAM_DROPOUT = 0, STREAM_NOISE = 1, STREAM_PROJECTION = 2 };

/* A head's counter, without row and key. */
typedef struct generator {
    uint32_t counter[4];
    uint32_t key[2];
} generator;

static generator of_head(uint64_t seed, int64_t heads, int64_t b, int64_t h, uint32_t stream)
{
    return (generator){{0, 0, (uint32_t)(b * heads + h), stream}, {(uint32_t)seed, (uint32_t)(seed >> 32)}};
}

/* Draws the four words of row i and the group of four keys that includes j. */
static void draw(generator *from, int64_t i, uint32_t j, uint32_t words[4])
{
    from->counter[0] = j / 4;
    from->counter[1] = (uint32_t)i;
    clmgk_philox(from->counter, from->key, words);
}

static void mask_row(generator *from, int64_t i, uint32_t drop_below, int64_t first_key, int64_t keys, uint8_t *mask)
{
    uint32_t words[4] = {0};
    for (int64_t n = 0; n < keys; ++n) {
        const uint32_t j = (uint32_t)(first_key + n);
        if (n == 0 || j % 4 == 0)
            draw(from, i, j, words);
        mask[n] = words[j % 4] >= drop_below;
    }
}

static void noise_row(generator *from, int64_t i, int64_t first_key, int64_t keys, float *noise)
{
    uint32_t words[4] = {0};
    float normals[4] = {0};
    for (int64_t n = 0; n < keys; ++n) {
        const uint32_t j = (uint32_t)(first_key + n);
        if (n == 0 || j % 4 == 0) {
            draw(from, i, j, words);
            box_muller(words, normals);
        }
        noise[n] = normals[j % 4];
    }
}

/* NOLINTNEXTLINE(readability-function-size): a head's tile takes that many numbers */
clmgk_status clmgk_dropout_mask(double dropout, uint64_t seed, int64_t heads, int64_t b, int64_t h, int64_t first_row,
                                int64_t rows, int64_t first_key, int64_t keys, uint8_t *mask, clmgk_error *error)
{
    if (!(dropout >= 0.0 && dropout < 1.0))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "dropout: %g: expected a probability, 0 or more and less than 1", dropout);
    if (mask == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "mask: NULL: expected room for the mask");
    MGK_TRY(check_numbers(heads, b, h, first_row, rows, first_key, keys, error));
    const uint32_t drop_below = (uint32_t)(dropout * 4294967296.0);
    generator from = of_head(seed, heads, b, h, STREAM_DROPOUT);
    for (int64_t row = 0; row < rows; ++row)
        mask_row(&from, first_row + row, drop_below, first_key, keys, mask + row * keys);
    return CLMGK_OK;
}

clmgk_status clmgk_noise_tile(uint64_t seed, int64_t heads, int64_t b, int64_t h, int64_t first_row, int64_t rows,
                              int64_t first_key, int64_t keys, float *noise, clmgk_error *error)
{
    if (noise == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "noise: NULL: expected room for the noise");
    MGK_TRY(check_numbers(heads, b, h, first_row, rows, first_key, keys, error));
    generator from = of_head(seed, heads, b, h, STREAM_NOISE);
    for (int64_t row = 0; row < rows; ++row)
        noise_row(&from, first_row + row, first_key, keys, noise + row * keys);
    return CLMGK_OK;
}

/* ---- projections ------------------------------------------------------------------------------------------------ */

static double product(const double *a, const double *b, int64_t size)
{
    double sum = 0.0;
    for (int64_t d = 0; d < size; ++d)
        sum += a[d] * b[d];
    return sum;
}

/* Makes `row` orthogonal to `count` orthonormal rows before it, and of length 1. Done twice, because the first time
 * leaves large rounding errors if little of the row remains. */
static void orthogonalise(double *row, int64_t count, int64_t size)
{
    for (int64_t n = 0; n < 2 * count; ++n) {
        const double *const before = row - (n % count + 1) * size;
        const double part = product(before, row, size);
        for (int64_t d = 0; d < size; ++d)
            row[d] -= part * before[d];
    }
    const double length = sqrt(product(row, row, size));
    for (int64_t d = 0; d < size; ++d)
        row[d] = length > 0.0 ? row[d] / length : 0.0;
}

/* Draws rows first .. first + rows - 1, at most head_size. `room` [rows,D]: orthonormal rows. */
static void draw_rows(uint64_t seed, int64_t first, int64_t rows, int64_t size, double *room, float *projection)
{
    enum { DIRECTION, LENGTH, DRAWN };
    generator directions = of_head(seed, DRAWN, 0, DIRECTION, STREAM_PROJECTION);
    generator lengths = of_head(seed, DRAWN, 0, LENGTH, STREAM_PROJECTION);
    for (int64_t n = 0; n < rows; ++n) {
        float *const out = projection + (first + n) * size;
        double *const row = room + n * size;
        double square = 0.0;
        noise_row(&lengths, first + n, 0, size, out);
        for (int64_t d = 0; d < size; ++d)
            square += (double)out[d] * (double)out[d];
        noise_row(&directions, first + n, 0, size, out);
        for (int64_t d = 0; d < size; ++d)
            row[d] = (double)out[d];
        orthogonalise(row, n, size);
        for (int64_t d = 0; d < size; ++d)
            out[d] = (float)(row[d] * sqrt(square));
    }
}

clmgk_status clmgk_draw_projection(uint64_t seed, int64_t features, int64_t head_size, float *projection,
                                   clmgk_error *error)
{
    MGK_TRY(mgk_check_range("features", features, 1, CLMGK_MAX_FEATURES, error));
    MGK_TRY(mgk_check_range("head_size", head_size, 1, CLMGK_MAX_HEAD_SIZE, error));
    if (projection == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "projection: NULL: expected room for the projection");
    double *const room = mgk_alloc(NULL, (size_t)(head_size * head_size), sizeof(double));
    if (room == NULL)
        return mgk_fail_memory(error, "a projection");
    for (int64_t first = 0; first < features; first += head_size) {
        const int64_t left = features - first;
        draw_rows(seed, first, left < head_size ? left : head_size, head_size, room, projection);
    }
    mgk_free(NULL, room);
    return CLMGK_OK;
}
