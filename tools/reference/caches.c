/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values in pages, and caches of packed sequences, as arrays that the formulas know. */
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

/* ---- where keys are ------------------------------------------------------------------------------------------- */

/* First entry of problem t, a batch or a sequence, in the page table. */
static int64_t first_entry(const clmgk_ref_problem *p, int64_t t)
{
    const clmgk_attention_desc *const d = &p->desc;
    return d->use_page_offsets ? clamp(p->page_offsets[t], d->table_pages) : t * d->table_pages;
}

/* Its keys in use. */
static int64_t keys_of(const clmgk_ref_problem *p, int64_t t)
{
    const clmgk_attention_desc *const d = &p->desc;
    if (!d->use_page_offsets)
        return d->use_lengths ? clamp(p->lengths[t], d->length_k) : d->length_k;
    const int64_t pages = clamp(p->page_offsets[t + 1], d->table_pages) - first_entry(p, t);
    return pages > 0 ? clamp((pages - 1) * d->page_size + clamp(p->last_page[t], d->page_size), d->length_k) : 0;
}

/* The number of row j of a head of problem t, of all rows of an array with `heads` heads. */
static int64_t row_of(const clmgk_ref_problem *p, int64_t t, int64_t heads, int64_t h, int64_t j)
{
    const clmgk_attention_desc *const d = &p->desc;
    if (d->page_size == 0)
        return (t * heads + h) * d->length_k + j;
    const int64_t page = clamp(p->page_table[first_entry(p, t) + j / d->page_size], d->pages - 1);
    return (page * heads + h) * d->page_size + j % d->page_size;
}

/* ---- gathering -------------------------------------------------------------------------------------------------- */

/* The shape of the result: packed, rows offsets[t] .. of [heads,keys]; else rows of [B,heads,S]. */
typedef struct target {
    const clmgk_ref_problem *from;
    int64_t problems;
    const int32_t *offsets; /* NULL: not packed */
} target;

/* The number of row j of head h of problem t in the result. */
static int64_t target_row(const target *x, int64_t t, int64_t heads, int64_t h, int64_t j)
{
    return x->offsets ? h * x->offsets[x->problems] + x->offsets[t] + j : (t * heads + h) * x->from->desc.length_k + j;
}

/* Rows of K or V. */
static void gather(const target *x, int64_t heads, int64_t width, const double *from, double *to)
{
    for (int64_t t = 0; t < x->problems; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t j = 0, end = keys_of(x->from, t); j < end; j++)
                memcpy(to + target_row(x, t, heads, h, j) * width, from + row_of(x->from, t, heads, h, j) * width,
                       (size_t)width * sizeof(double));
}

/* Numbers of keys, [rows,S], of which each packed sequence has the first ones. */
static void repeat(const target *x, int64_t rows, const double *from, double *to)
{
    for (int64_t t = 0; t < x->problems; t++)
        for (int64_t row = 0; row < rows; row++)
            memcpy(to + target_row(x, t, rows, row, 0), from + row * x->from->desc.length_k,
                   (size_t)(x->offsets[t + 1] - x->offsets[t]) * sizeof(double));
}

/* Key heads with their components, which are all heads of Q with mixed heads. */
static int64_t key_heads(const clmgk_attention_desc *d)
{
    const ref_form form = ref_form_of(d);
    return form.mixed ? d->components : d->kv_heads * (form.keys ? d->components : 1);
}

enum { OFFSETS, LENGTHS, KEYS, VALUES, BIAS, PRIOR, SCALED_KEYS, SCALED_VALUES };

/* Bias and prior of packed keys. */
static bool repeat_terms(const target *x, int64_t keys, clmgk_ref_gathered *out)
{
    const clmgk_attention_desc *const d = &x->from->desc;
    const int64_t biases = d->bias_heads * d->bias_length, priors = d->heads * d->components;
    if (d->use_bias && d->bias_length_k == d->length_k) {
        double *const bias = take(out, BIAS, biases * keys, sizeof(double));
        if (!bias)
            return false;
        repeat(x, biases, x->from->bias, bias);
        out->problem.bias = bias;
        out->problem.desc.bias_length_k = keys;
    }
    if (d->prior_shape == CLMGK_PRIOR_HMS) {
        double *const prior = take(out, PRIOR, priors * keys, sizeof(double));
        if (!prior)
            return false;
        repeat(x, priors, x->from->prior, prior);
        out->problem.prior = prior;
    }
    return true;
}

static bool gather_all(const clmgk_ref_problem *given, clmgk_ref_gathered *out)
{
    const clmgk_attention_desc *const d = &given->desc;
    const int64_t problems = d->sequences > 0 ? d->sequences : d->batch;
    int32_t *const offsets = take(out, OFFSETS, problems + 1, sizeof(int32_t));
    int32_t *const lengths = take(out, LENGTHS, problems, sizeof(int32_t));
    if (!offsets || !lengths)
        return false;
    for (int64_t t = 0; t < problems; t++) {
        lengths[t] = (int32_t)keys_of(given, t);
        offsets[t + 1] = offsets[t] + lengths[t];
    }
    const target x = {given, problems, d->sequences > 0 ? offsets : NULL};
    const int64_t keys = d->sequences > 0 ? offsets[problems] : problems * d->length_k;
    double *const k = take(out, KEYS, key_heads(d) * keys * d->head_size, sizeof(double));
    double *const v = take(out, VALUES, d->kv_heads * keys * d->value_size, sizeof(double));
    if (!k || !v)
        return false;
    gather(&x, key_heads(d), d->head_size, given->k, k);
    if (given->v)
        gather(&x, d->kv_heads, d->value_size, given->v, v);
    out->problem.k = k;
    out->problem.v = given->v ? v : NULL;
    out->problem.desc.page_size = out->problem.desc.pages = out->problem.desc.table_pages = 0;
    out->problem.desc.use_page_offsets = 0;
    if (d->use_page_offsets)
        out->problem.lengths = lengths;
    out->problem.desc.use_lengths = d->sequences == 0 && (d->use_lengths || d->use_page_offsets);
    if (d->sequences == 0)
        return true;
    out->problem.offsets_k = offsets;
    out->problem.desc.use_offsets_k = 1;
    out->problem.desc.length_k = keys;
    if (d->alignment == CLMGK_ALIGN_LENGTHS) /* of a sequence's own keys */
        out->problem.desc.alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
    return repeat_terms(&x, keys, out);
}

/* Rows of an array times their scales; without scales the array itself. NULL: out of memory. */
static const double *scaled(clmgk_ref_gathered *out, int part, int64_t rows, int64_t width, const double *from,
                            const double *scales)
{
    if (!from || !scales)
        return from;
    double *const to = take(out, (size_t)part, rows * width, sizeof(double));
    for (int64_t n = 0; to && n < rows * width; n++)
        to[n] = from[n] * scales[n / width];
    return to;
}

static bool scale_all(clmgk_ref_gathered *out)
{
    clmgk_ref_problem *const p = &out->problem;
    const clmgk_attention_desc *const d = &p->desc;
    const int64_t problems = d->sequences > 0 && d->use_lengths ? d->sequences : d->batch;
    const int64_t rows = d->page_size > 0 ? d->pages * d->page_size : problems * d->length_k;
    const double *const k = scaled(out, SCALED_KEYS, rows * key_heads(d), d->head_size, p->k, p->scale_k);
    const double *const v = scaled(out, SCALED_VALUES, rows * d->kv_heads, d->value_size, p->v, p->scale_v);
    const bool done = (k || !p->k) && (v || !p->v);
    p->k = k;
    p->v = v;
    return done;
}

bool clmgk_ref_gather(const clmgk_ref_problem *given, clmgk_ref_gathered *out)
{
    const clmgk_attention_desc *const d = &given->desc;
    *out = (clmgk_ref_gathered){.problem = *given};
    const bool separate = d->page_size > 0 || (d->sequences > 0 && d->use_lengths);
    if (scale_all(out)) {
        const clmgk_ref_problem whole = out->problem;
        if (!separate || gather_all(&whole, out))
            return true;
    }
    clmgk_ref_gathered_free(out);
    return false;
}
