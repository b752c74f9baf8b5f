/* SPDX-License-Identifier: Apache-2.0 */
/* What both theorems' checks are made of. */
#include "theorems.h"

#include <math.h>

double theorem_normal(theorem_random *random)
{
    static const double tau = 6.283185307179586;
    const uint32_t counter[4] = {random->count++, 0, 0, random->stream};
    const uint32_t key[2] = {(uint32_t)random->seed, (uint32_t)(random->seed >> 32)};
    uint32_t words[4];
    clmgk_ref_philox(counter, key, words);
    return sqrt(-2.0 * log(((double)words[0] + 0.5) * 0x1p-32)) * cos(tau * ((double)words[1] + 0.5) * 0x1p-32);
}

void theorem_normals(theorem_random *random, int64_t count, double scale, double *values)
{
    for (int64_t n = 0; n < count; n++)
        values[n] = scale * theorem_normal(random);
}

void theorem_product(int64_t rows, int64_t inner, int64_t columns, const double *a, bool a_transposed, const double *b,
                     bool b_transposed, double *c)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < inner; k++)
                sum +=
                    a[a_transposed ? k * rows + i : i * inner + k] * b[b_transposed ? j * inner + k : k * columns + j];
            c[i * columns + j] = sum;
        }
}

void theorem_softmax(int64_t n, const double *logits, double *p)
{
    for (int64_t i = 0; i < n; i++) {
        double largest = logits[i], sum = 0.0;
        for (int64_t j = 1; j < n; j++)
            largest = fmax(largest, logits[j * n + i]);
        for (int64_t j = 0; j < n; j++)
            sum += p[j * n + i] = exp(logits[j * n + i] - largest);
        for (int64_t j = 0; j < n; j++)
            p[j * n + i] /= sum;
    }
}
