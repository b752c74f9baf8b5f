/* SPDX-License-Identifier: Apache-2.0 */
/* The formulas in double precision, row by row. */
#include "reference/exact.h"

#include <stdlib.h>

double exact_capped(const clmgk_ref_problem *p, double s)
{
    const double cap = p->desc.softcap;
    return cap > 0.0 ? cap * tanh(s / cap) : s;
}

/* The largest |score| + |bias| + |ALiBi| that f32 resolves well enough, to 2^-6, and the largest sum of the absolute
 * values of all terms, with those of the score. */
#define LARGEST_LOGIT 0x1p18
#define LARGEST_SUM   0x1p22

/* Keys have no weight if rounding cannot bring their logits nearer than this to the largest one. */
#define NO_WEIGHT 64.0

/* Knuth's sum: the error of a + x in double is a double. */
static exact_logit plus(exact_logit a, double x)
{
    const double high = a.high + x;
    if (!isfinite(high))
        return (exact_logit){high, 0.0};
    const double part = high - a.high;
    const double low = a.low + ((a.high - (high - part)) + (x - part));
    return (exact_logit){high + low, low - ((high + low) - high)};
}

exact_logit exact_weight(const clmgk_ref_problem *p, ref_row at, const ref_span *span, int64_t j, double shaped)
{
    const exact_logit bias = {ref_bias(p, at, j), 0.0};
    return plus(plus(bias, -ref_penalty(p, at.h, span, j)), shaped);
}

exact_log_sum exact_log_sum_exp(const exact_logit *x, int64_t count)
{
    exact_logit largest = {-(double)INFINITY, 0.0};
    for (int64_t n = 0; n < count; n++)
        largest = exact_minus(x[n], largest) > 0.0 ? x[n] : largest;
    const exact_logit base = isfinite(largest.high) ? largest : (exact_logit){0.0, 0.0};
    double sum = 0.0;
    for (int64_t n = 0; n < count; n++)
        sum += exp(exact_minus(x[n], base));
    return (exact_log_sum){base, log(sum)};
}

bool exact_row_create(const clmgk_ref_problem *problem, const exact_scores *scores, exact_row *row)
{
    const size_t keys = (size_t)problem->desc.length_k;
    const size_t logits = (size_t)ref_components(&problem->desc) * keys;
    *row = (exact_row){.problem = problem, .scores = scores};
    row->visible = malloc((keys + logits + 1) * sizeof(bool));
    row->score = malloc((3 * logits + 1) * sizeof(double)); /* + 1: NULL means failure only */
    row->weight = malloc((2 * logits + (size_t)ref_components(&problem->desc) + keys + 1) * sizeof(exact_logit));
    if (!row->visible || !row->score || !row->weight || !ref_texts_create(problem, false, &row->texts)) {
        exact_row_free(row);
        return false;
    }
    row->huge = row->visible + keys;
    row->size = row->score + logits;
    row->slope = row->size + logits;
    row->terms = row->weight + logits;
    row->log_w = row->terms + logits + ref_components(&problem->desc);
    return true;
}

void exact_row_free(exact_row *row)
{
    free(row->visible);
    free(row->score);
    free(row->weight);
    ref_texts_free(&row->texts);
    *row = (exact_row){0};
}

exact_logit exact_log_weight(const exact_row *row, int64_t j, int64_t r)
{
    const clmgk_ref_problem *const p = row->problem;
    const exact_logit weight = row->weight[r * p->desc.length_k + j];
    return p->desc.estep == CLMGK_ESTEP_HARD ? weight : plus(weight, log(ref_prior(p, row->at.h, j, r)));
}

double exact_share(const exact_row *row, exact_logit x)
{
    return exp(exact_minus(x, row->sum.largest) - row->sum.log);
}

int64_t exact_arg_max(const exact_row *row, int64_t j)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    int64_t best = 0;
    for (int64_t r = 1; r < ref_components(desc); r++) {
        const exact_logit weight = row->weight[r * desc->length_k + j];
        if (isnan(weight.high) || exact_minus(weight, row->weight[best * desc->length_k + j]) > 0.0)
            best = r;
    }
    return best;
}

/* w_ij = logsumexp_r s_ijr (soft) or max_r (s_ijr - log pi_r(j)) (hard); NaN if a component is NaN. */
static exact_logit key_weight(const exact_row *row, int64_t j)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    if (desc->estep == CLMGK_ESTEP_HARD)
        return exact_log_weight(row, j, exact_arg_max(row, j));
    for (int64_t r = 0; r < ref_components(desc); r++)
        row->terms[r] = exact_log_weight(row, j, r);
    const exact_log_sum sum = exact_log_sum_exp(row->terms, ref_components(desc));
    return plus(sum.largest, sum.log);
}

/* The size of logit n, of key j, whose score was shaped. */
static void measure(exact_row *row, int64_t j, int64_t n, double shaped)
{
    const clmgk_ref_problem *const p = row->problem;
    const double others = fabs(ref_bias(p, row->at, j)) + fabs(ref_penalty(p, row->at.h, &row->span, j));
    if (p->desc.softcap > 0.0)
        row->size[n] = fmin(row->size[n], p->desc.softcap);
    if (row->texts.formulas.score)
        row->size[n] = fabs(row->slope[n]) * row->size[n] + fabs(shaped);
    row->huge[n] = fabs(shaped) + others > LARGEST_LOGIT || row->size[n] + others > LARGEST_SUM;
    row->size[n] += others;
}

/* Fills in key j of the row. */
static void solve_key(exact_row *row, int64_t j)
{
    const clmgk_ref_problem *const p = row->problem;
    ref_pair pair = {row->at, &row->span, j, 0, 0.0};
    row->visible[j] = !ref_hidden(p, row->at, j) && !ref_text_hides(&row->texts, &pair);
    row->log_w[j] = (exact_logit){-(double)INFINITY, 0.0};
    if (!row->visible[j])
        return;
    for (int64_t r = 0; r < ref_components(&p->desc); r++) {
        const int64_t n = r * p->desc.length_k + j;
        row->score[n] = row->scores->score(p, row->at, &row->span, j, r, &row->size[n]);
        pair.r = r;
        pair.s = exact_capped(p, row->score[n]);
        const double shaped = ref_text_score(&row->texts, &pair);
        row->slope[n] = ref_text_slope(&row->texts, &pair);
        measure(row, j, n, shaped);
        row->weight[n] = exact_weight(p, row->at, &row->span, j, shaped);
    }
    row->log_w[j] = key_weight(row, j);
}

/* The rounding error in f32 of a logit whose terms add up to `size`, whatever the order of their sum. */
static double rounding_of(const exact_row *row, double size)
{
    /* of a product whose two factors are rounded to the descriptor's precision */
    static const double of_product[] = {
        [CLMGK_PRECISION_EXACT] = 0.0, [CLMGK_PRECISION_TF32] = 0x1p-10, [CLMGK_PRECISION_BF16] = 0x1p-7};
    const clmgk_attention_desc *const desc = &row->problem->desc;
    return (ldexp((double)(desc->head_size + desc->components + desc->mix_hidden + 8), -24) +
            of_product[desc->precision]) *
           size;
}

/* A survey of the terms exp(x) of a row's sum. */
typedef struct survey {
    double least;    /* of what rounding may make of the largest logit */
    double rounding; /* the largest of logits that reach it */
    bool huge;       /* one of them is */
} survey;

/* A logit. */
typedef struct term {
    double x, rounding;
    bool huge;
} term;

static void find_least(survey *of, term t)
{
    of->least = fmax(of->least, t.x - t.rounding);
}

static void find_largest(survey *of, term t)
{
    if (t.x + t.rounding < of->least - NO_WEIGHT)
        return;
    of->rounding = fmax(of->rounding, t.rounding);
    of->huge = of->huge || t.huge;
}

static term term_of_key(const exact_row *row, int64_t j, int64_t r)
{
    const int64_t n = r * row->problem->desc.length_k + j;
    return (term){exact_log_weight(row, j, r).high, rounding_of(row, row->size[n]), row->huge[n]};
}

static term term_of_sink(const exact_row *row)
{
    const double sink = row->problem->sinks[row->at.h];
    return (term){sink, rounding_of(row, fabs(sink)), fabs(sink) > LARGEST_LOGIT};
}

static void add_terms(survey *of, const exact_row *row, void (*add)(survey *, term))
{
    const clmgk_ref_problem *const p = row->problem;
    for (int64_t j = row->span.first; j < row->span.end; j++)
        for (int64_t r = 0; row->visible[j] && r < ref_components(&p->desc); r++)
            add(of, term_of_key(row, j, r));
    if (p->desc.use_sinks && !row->span.absent)
        add(of, term_of_sink(row));
}

/* Whether the row is lost. Keys without weight, such as those that a bias masks, have no say. */
static void judge(exact_row *row)
{
    survey of = {-(double)INFINITY, 0.0, false};
    if (!isfinite(row->lse))
        return;
    add_terms(&of, row, find_least);
    add_terms(&of, row, find_largest);
    row->lost = of.huge;
    row->rounding = of.rounding;
}

double exact_reach(const exact_row *row, exact_logit x, double size, double limit)
{
    const double exponent = exact_minus(x, row->sum.largest) + rounding_of(row, size) + row->rounding;
    return exp(fmin(exponent, log(limit)));
}

double exact_key_reach(const exact_row *row, int64_t j)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    double largest = 0.0;
    for (int64_t r = 0; r < ref_components(desc); r++)
        largest = fmax(largest, exact_reach(row, exact_log_weight(row, j, r), row->size[r * desc->length_k + j], 1.0));
    return largest > exp(-NO_WEIGHT) ? fmin((double)ref_components(desc) * largest, 1.0) : 0.0;
}

double exact_sink_reach(const exact_row *row)
{
    const double sink = row->problem->sinks[row->at.h];
    const double reach = exact_reach(row, (exact_logit){sink, 0.0}, fabs(sink), 1.0);
    return reach > exp(-NO_WEIGHT) ? reach : 0.0;
}

bool exact_loses_key(const exact_row *row, int64_t j)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    bool lost = false;
    for (int64_t r = 0; r < ref_components(desc); r++)
        lost = lost || row->huge[r * desc->length_k + j];
    return lost;
}

void exact_row_solve(exact_row *row, ref_row at)
{
    const clmgk_ref_problem *const p = row->problem;
    row->at = at;
    row->span = ref_span_of(p, at.b, at.i);
    for (int64_t j = row->span.first; j < row->span.end; j++)
        solve_key(row, j);

    /* L_i = logsumexp_j w_ij, including the sink */
    int64_t logits = row->span.end - row->span.first;
    if (p->desc.use_sinks && !row->span.absent) {
        row->log_w[row->span.end] = (exact_logit){p->sinks[at.h], 0.0};
        logits++;
    }
    row->sum = exact_log_sum_exp(row->log_w + row->span.first, logits);
    row->lse = row->sum.largest.high + (row->sum.largest.low + row->sum.log);

    row->lost = false;
    bool any = p->desc.use_sinks && term_of_sink(row).huge;
    for (int64_t j = row->span.first; j < row->span.end; j++)
        any = any || (row->visible[j] && exact_loses_key(row, j));
    if (any)
        judge(row);
}

double exact_responsibility(const exact_row *row, int64_t j, int64_t r)
{
    if (!row->visible[j] || row->log_w[j].high == -(double)INFINITY)
        return 0.0;
    if (row->problem->desc.estep == CLMGK_ESTEP_HARD)
        return r == exact_arg_max(row, j) ? 1.0 : 0.0;
    return exp(exact_minus(exact_log_weight(row, j, r), row->log_w[j]));
}

double exact_value_weight(const exact_row *row, int64_t j)
{
    return exact_share(row, row->log_w[j]) * ref_kept(row->problem, row->at.h, &row->span, j);
}

void exact_row_output(const exact_row *row, double *o)
{
    const clmgk_ref_problem *const p = row->problem;
    for (int64_t e = 0; e < p->desc.value_size; e++)
        o[e] = 0.0;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        if (!row->visible[j] || row->lse == -(double)INFINITY)
            continue;
        const double *const value = p->v + ref_value_index(&p->desc, row->at.b, row->at.h, j);
        const double a_ij = exact_value_weight(row, j);
        for (int64_t e = 0; e < p->desc.value_size; e++)
            o[e] += a_ij * value[e];
    }
}
