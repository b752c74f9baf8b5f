/* SPDX-License-Identifier: Apache-2.0 */
/* The formulas in double precision, row by row. */
#include "reference/exact.h"

#include <stdlib.h>

static double capped(const clmgk_ref_problem *p, double s)
{
    const double cap = p->desc.softcap;
    return cap > 0.0 ? cap * tanh(s / cap) : s;
}

double exact_weight(const clmgk_ref_problem *p, ref_row at, const ref_span *span, int64_t j, double x)
{
    return capped(p, x) + (ref_bias(p, at, j) - ref_penalty(p, at.h, span, j));
}

double exact_log_sum_exp(const double *x, int64_t count)
{
    double largest = -(double)INFINITY;
    for (int64_t n = 0; n < count; n++)
        largest = x[n] > largest ? x[n] : largest;
    const double base = isfinite(largest) ? largest : 0.0;
    double sum = 0.0;
    for (int64_t n = 0; n < count; n++)
        sum += exp(x[n] - base);
    return base + log(sum);
}

bool exact_row_create(const clmgk_ref_problem *problem, const exact_scores *scores, exact_row *row)
{
    const size_t keys = (size_t)problem->desc.length_k;
    const size_t components = (size_t)ref_components(&problem->desc);
    const size_t doubles = 3 * components * keys + (keys + 1) + components;
    *row = (exact_row){.problem = problem, .scores = scores};
    row->visible = malloc((keys + 1) * sizeof(bool));
    row->score = malloc(doubles * sizeof(double));
    if (!row->visible || !row->score) {
        exact_row_free(row);
        return false;
    }
    row->weight = row->score + components * keys;
    row->log_w = row->weight + components * keys;
    row->room = row->log_w + keys + 1; /* + 1: the sink's logit */
    row->terms = row->room + components;
    return true;
}

void exact_row_free(exact_row *row)
{
    free(row->visible);
    free(row->score);
    *row = (exact_row){0};
}

double exact_log_weight(const exact_row *row, int64_t j, int64_t r)
{
    const clmgk_ref_problem *const p = row->problem;
    const double weight = row->weight[r * p->desc.length_k + j];
    return p->desc.estep == CLMGK_ESTEP_HARD ? weight : log(ref_prior(p, row->at.h, j, r)) + weight;
}

int64_t exact_arg_max(const exact_row *row, int64_t j)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    int64_t best = 0;
    for (int64_t r = 1; r < ref_components(desc); r++)
        if (isnan(row->weight[r * desc->length_k + j]) ||
            row->weight[r * desc->length_k + j] > row->weight[best * desc->length_k + j])
            best = r;
    return best;
}

/* w_ij = logsumexp_r s_ijr (soft) or max_r (s_ijr - log pi_r(j)) (hard); NaN if a component is NaN. */
static double key_weight(const exact_row *row, int64_t j)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    if (desc->estep == CLMGK_ESTEP_HARD)
        return exact_log_weight(row, j, exact_arg_max(row, j));
    for (int64_t r = 0; r < ref_components(desc); r++)
        row->room[r] = exact_log_weight(row, j, r);
    return exact_log_sum_exp(row->room, ref_components(desc));
}

/* Fills in key j of the row. */
static void solve_key(exact_row *row, int64_t j)
{
    const clmgk_ref_problem *const p = row->problem;
    row->visible[j] = !ref_hidden(p, row->at, j);
    row->log_w[j] = -(double)INFINITY;
    if (!row->visible[j])
        return;
    for (int64_t r = 0; r < ref_components(&p->desc); r++) {
        const int64_t n = r * p->desc.length_k + j;
        row->score[n] = row->scores->score(p, row->at, &row->span, j, r);
        row->weight[n] = exact_weight(p, row->at, &row->span, j, row->score[n]);
    }
    row->log_w[j] = key_weight(row, j);
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
    double *const w = row->log_w + row->span.first;
    if (p->desc.use_sinks && !row->span.absent) {
        row->log_w[row->span.end] = p->sinks[at.h];
        logits++;
    }
    row->lse = exact_log_sum_exp(w, logits);
}

double exact_responsibility(const exact_row *row, int64_t j, int64_t r)
{
    if (!row->visible[j] || row->log_w[j] == -(double)INFINITY)
        return 0.0;
    if (row->problem->desc.estep == CLMGK_ESTEP_HARD)
        return r == exact_arg_max(row, j) ? 1.0 : 0.0;
    return exp(exact_log_weight(row, j, r) - row->log_w[j]);
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
        const double a_ij = exp(row->log_w[j] - row->lse) * ref_kept(p, row->at.h, &row->span, j);
        for (int64_t e = 0; e < p->desc.value_size; e++)
            o[e] += a_ij * value[e];
    }
}
