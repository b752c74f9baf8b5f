/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's rows of the attention matrix against its outputs and statistics. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>

static void expect_near(const char *name, double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-12 * fmax(1.0, fabs(expected))))
        fail_msg("%s: %.15g, expected %.15g", name, value, expected);
}

/* O = A V. `p` has no incoming state, or one whose C is 0. */
static void expect_outputs(const char *name, const clmgk_ref_problem *p, const double *weights)
{
    const clmgk_attention_desc *const d = &p->desc;
    double *const o = malloc((size_t)d->value_size * sizeof *o);
    assert_non_null(o);
    for (int64_t row = 0; row < d->batch * d->heads * d->length; row++) {
        const int64_t b = row / d->length / d->heads, h = row / d->length % d->heads;
        const double *const v = p->v + (b * d->kv_heads + h * d->kv_heads / d->heads) * d->length_k * d->value_size;
        double lse = 0.0;
        assert_true(clmgk_ref_row(p, row, o, &lse));
        for (int64_t e = 0; e < d->value_size; e++) {
            double sum = 0.0;
            for (int64_t j = 0; j < d->length_k; j++)
                sum += weights[row * d->length_k + j] * v[j * d->value_size + e];
            expect_near(name, sum, o[e]);
        }
    }
    free(o);
}

static void expect_responsibilities(const char *name, const clmgk_ref_problem *p, const double *found)
{
    const clmgk_attention_desc *const d = &p->desc;
    const int64_t rows = d->length, keys = d->length_k, components = d->components;
    TH_REF_ARRAYS statistics = {0};
    assert_true(clmgk_ref_solve_statistics(p, CLMGK_STATISTIC_RESPONSIBILITIES, &statistics));
    for (int64_t n = 0; n < statistics.count[CLMGK_REF_STAT_RESPONSIBILITIES]; n++) {
        const int64_t j = n % keys, i = n / keys % rows, r = n / keys / rows % components,
                      head = n / keys / rows / components;
        expect_near(name, found[((head * rows + i) * components + r) * keys + j],
                    statistics.exact[CLMGK_REF_STAT_RESPONSIBILITIES][n]);
    }
}

/* The mean over the rows of a head that see a key. */
static void expect_likelihoods(const char *name, const clmgk_ref_problem *p, const double *log_likelihood)
{
    const clmgk_attention_desc *const d = &p->desc;
    TH_REF_ARRAYS statistics = {0};
    if (d->score != CLMGK_SCORE_GAUSSIAN || d->sequences > 0)
        return;
    assert_true(clmgk_ref_solve_statistics(p, CLMGK_STATISTIC_NLL, &statistics));
    for (int64_t head = 0; head < d->batch * d->heads; head++) {
        double sum = 0.0, rows = 0.0;
        for (int64_t i = 0; i < d->length; i++) {
            const double log_p = log_likelihood[head * d->length + i];
            sum -= isnan(log_p) ? 0.0 : log_p;
            rows += isnan(log_p) ? 0.0 : 1.0;
        }
        expect_near(name, rows > 0.0 ? sum / rows : 0.0, statistics.exact[CLMGK_REF_STAT_NLL][head]);
    }
}

void th_expect_weights(const char *name, const clmgk_ref_problem *p)
{
    const clmgk_attention_desc *const d = &p->desc;
    const uint32_t traits = clmgk_variant_traits(d->variant);
    const bool mixture = (traits & (CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_LINEAR)) == 0;
    const int64_t rows = d->batch * d->heads * d->length;
    const size_t keys = (size_t)d->length_k, elements = (size_t)rows * keys;
    int64_t *const row = calloc((size_t)rows, sizeof *row);
    double *const room = calloc(elements * (1 + (size_t)d->components) + (size_t)rows, sizeof *room);
    assert_true(row && room);
    const clmgk_ref_weight_rows out = {room, mixture ? room + elements : NULL,
                                       mixture ? room + elements * (1 + (size_t)d->components) : NULL};
    for (int64_t n = 0; n < rows; n++)
        row[n] = n;
    assert_true(clmgk_ref_weights(p, rows, row, &out));
    expect_outputs(name, p, out.weights);
    if (mixture) {
        expect_responsibilities(name, p, out.responsibilities);
        expect_likelihoods(name, p, out.log_likelihood);
    }
    free(row);
    free(room);
}
