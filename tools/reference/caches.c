/* SPDX-License-Identifier: Apache-2.0 */
/* Caches of keys and values as packed sequences, which the formulas know. */
#include "reference/problem.h"

#include <stdlib.h>
#include <string.h>

static int64_t clamp(int64_t value, int64_t limit)
{
    if (value < 0)
        return 0;
    return value < limit ? value : limit;
}

void clmgk_ref_gathered_free(clmgk_ref_gathered *gathered)
{
    for (size_t i = 0; i < sizeof(gathered->memory) / sizeof(gathered->memory[0]); i++)
        free(gathered->memory[i]);
    *gathered = (clmgk_ref_gathered){.problem = {.seed = 0}};
}

/* Memory of `count` elements, the number `part` of the result; NULL: there is none. */
static void *take(clmgk_ref_gathered *gathered, size_t part, int64_t count, size_t size)
{
    gathered->memory[part] = calloc((size_t)count + 1, size);
    return gathered->memory[part];
}

/* Rows of `width` elements of an array [T,heads,S,width], or with no axis T [heads,S,width]: those in use, one sequence
 * after the other, [heads,keys,width]. */
static void pack(const clmgk_attention_desc *d, const int32_t *offsets, bool has_caches, int64_t heads, int64_t width,
                 const double *from, double *to)
{
    const int64_t keys = offsets[d->sequences];
    for (int64_t t = 0; t < d->sequences; t++)
        for (int64_t h = 0; h < heads; h++)
            memcpy(to + (h * keys + offsets[t]) * width,
                   from + ((has_caches ? t : 0) * heads + h) * d->length_k * width,
                   (size_t)((offsets[t + 1] - offsets[t]) * width) * sizeof(double));
}

/* Key heads with their components, which are all heads of Q with mixed heads. */
static int64_t key_heads(const clmgk_attention_desc *d)
{
    const ref_form form = ref_form_of(d);
    return form.mixed ? d->components : d->kv_heads * (form.keys ? d->components : 1);
}

/* The arrays with an axis of keys, and their offsets. */
static bool pack_all(const clmgk_ref_problem *given, clmgk_ref_gathered *out)
{
    enum { OFFSETS, KEYS, VALUES, BIAS, PRIOR };
    const clmgk_attention_desc *const d = &given->desc;
    const bool bias = d->use_bias && d->bias_length_k == d->length_k, prior = d->prior_shape == CLMGK_PRIOR_HMS;
    int32_t *const offsets = take(out, OFFSETS, d->sequences + 1, sizeof(int32_t));
    if (!offsets)
        return false;
    for (int64_t t = 0; t < d->sequences; t++)
        offsets[t + 1] = offsets[t] + (int32_t)clamp(given->lengths[t], d->length_k);
    const int64_t keys = offsets[d->sequences], priors = d->heads * d->components;
    const int64_t biases = d->bias_heads * d->bias_length;
    double *const k = take(out, KEYS, key_heads(d) * keys * d->head_size, sizeof(double));
    double *const v = take(out, VALUES, d->kv_heads * keys * d->value_size, sizeof(double));
    double *const b = take(out, BIAS, bias ? biases * keys : 0, sizeof(double));
    double *const p = take(out, PRIOR, prior ? priors * keys : 0, sizeof(double));
    if (!k || !v || !b || !p)
        return false;
    pack(d, offsets, true, key_heads(d), d->head_size, given->k, k);
    if (given->v)
        pack(d, offsets, true, d->kv_heads, d->value_size, given->v, v);
    out->problem.offsets_k = offsets;
    out->problem.k = k;
    out->problem.v = given->v ? v : NULL;
    out->problem.desc.length_k = keys;
    if (bias) {
        pack(d, offsets, false, biases, 1, given->bias, b);
        out->problem.bias = b;
        out->problem.desc.bias_length_k = keys;
    }
    if (prior) {
        pack(d, offsets, false, priors, 1, given->prior, p);
        out->problem.prior = p;
    }
    return true;
}

bool clmgk_ref_gather(const clmgk_ref_problem *given, clmgk_ref_gathered *out)
{
    *out = (clmgk_ref_gathered){.problem = *given};
    clmgk_attention_desc *const d = &out->problem.desc;
    if (d->sequences == 0 || !d->use_lengths)
        return true;
    if (!pack_all(given, out)) {
        clmgk_ref_gathered_free(out);
        return false;
    }
    d->use_lengths = 0;
    d->use_offsets_k = 1;
    if (d->alignment == CLMGK_ALIGN_LENGTHS) /* of a sequence's own keys */
        d->alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
    return true;
}
