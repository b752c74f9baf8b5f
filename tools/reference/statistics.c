/* SPDX-License-Identifier: Apache-2.0 */
/* Responsibilities, the M-step, and the query negative log-likelihood (MGK paper, Eq. 8 and section 3.4). */
#include "reference/arrays.h"

#include <stdlib.h>

/* Number of sequences, each with a mean likelihood of its rows: batches, or packed sequences. */
static int64_t sequences(const clmgk_attention_desc *d)
{
    return d->sequences > 0 ? d->sequences : d->batch;
}

int64_t clmgk_ref_statistic_count(const clmgk_attention_desc *desc, clmgk_ref_statistic which)
{
    const clmgk_attention_desc *const d = desc;
    switch (which) {
    case CLMGK_REF_STAT_RESPONSIBILITIES:
        return d->batch * d->heads * d->components * d->length * d->length_k;
    case CLMGK_REF_STAT_COUNTS:
    case CLMGK_REF_STAT_NEW_PRIOR:
        return ref_prior_count(d);
    case CLMGK_REF_STAT_NLL:
        return sequences(d) * d->heads;
    case CLMGK_REF_STATISTICS:
        break;
    }
    return 0;
}

/* Index of gamma_ijr. */
static int64_t responsibility_index(const clmgk_attention_desc *d, ref_row at, int64_t j, int64_t r)
{
    return (((at.b * d->heads + at.h) * d->components + r) * d->length + at.i) * d->length_k + j;
}

/* log N(q; k, sigma_r^2 I) = log_normal - |q - k|^2 / (2 sigma_r^2) */
static double log_normal(const clmgk_ref_problem *p, int64_t h, int64_t r)
{
    static const double tau = 6.283185307179586;
    return -0.5 * (double)p->desc.head_size * log(tau * ref_variance(p, h, r));
}

/* The components of one prior in an array of the prior's shape: element n is among first, first + step, ... */
typedef struct component_axis {
    int64_t first, step;
} component_axis;

static component_axis components_of(const clmgk_attention_desc *d, int64_t n)
{
    const int64_t step = d->prior_shape == CLMGK_PRIOR_HMS ? d->length_k : 1;
    return (component_axis){n / (d->components * step) * d->components * step + n % step, step};
}

/* The given prior, kept for keys that no query sees. */
static double given_prior(const clmgk_ref_problem *p, int64_t n)
{
    return p->desc.prior_shape == CLMGK_PRIOR_UNIFORM ? 1.0 / (double)p->desc.components : p->prior[n];
}

/* ---- exact ---------------------------------------------------------------------------------------------------- */

/* The floor of a gamma that f32 loses, in units of floors. */
#define LOST_GAMMA 0x1p22

bool exact_log_likelihood(exact_row *row, double *result)
{
    const clmgk_ref_problem *const p = row->problem;
    int64_t keys = 0, count = 0;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        keys += row->visible[j];
        for (int64_t r = 0; row->visible[j] && r < p->desc.components; r++)
            row->terms[count++] = (exact_logit){log(ref_prior(p, row->at.h, j, r)) + log_normal(p, row->at.h, r) +
                                                    row->score[r * p->desc.length_k + j],
                                                0.0};
    }
    const exact_log_sum sum = exact_log_sum_exp(row->terms, count);
    *result = sum.largest.high + (sum.log - log((double)keys));
    return keys > 0;
}

/* Sums over rows. */
typedef struct exact_counts {
    double *of;   /* N_r, in the prior's shape */
    double *lost; /* the number of gammas in it that f32 loses: each may be anything from 0 to 1 */
} exact_counts;

static void add_responsibility(const exact_row *row, int64_t j, int64_t r, bool lost, const exact_sums *sums,
                               const exact_counts *counts)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    const int64_t to = ref_prior_index(desc, row->at.h, j, r), at = responsibility_index(desc, row->at, j, r);
    const double gamma = exact_responsibility(row, j, r);
    counts->of[to] += gamma;
    counts->lost[to] += lost ? 1.0 : 0.0;
    if (sums->values[CLMGK_REF_STAT_RESPONSIBILITIES]) {
        sums->values[CLMGK_REF_STAT_RESPONSIBILITIES][at] = gamma;
        sums->floor[CLMGK_REF_STAT_RESPONSIBILITIES][at] = lost ? LOST_GAMMA : 0.0;
    }
}

/* Adds a row to gamma and N_r. */
static void add_responsibilities(const exact_row *row, const exact_sums *sums, const exact_counts *counts)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    bool *const lost = sums->lost + ref_row_number(desc, row->at) * desc->length_k;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        lost[j] = row->visible[j] && exact_loses_key(row, j);
        for (int64_t r = 0; r < desc->components && (!lost[j] || sums->with_lost); r++)
            add_responsibility(row, j, r, lost[j], sums, counts);
    }
}

/* sum_r' N_r' of the prior of element n */
static double total_of(const clmgk_attention_desc *desc, const double *counts, int64_t n)
{
    const component_axis axis = components_of(desc, n);
    double total = 0.0;
    for (int64_t r = 0; r < desc->components; r++)
        total += counts[axis.first + r * axis.step];
    return total;
}

/* N_r, and new pi_r = N_r / sum_r' N_r'. */
static void give_counts(const clmgk_ref_problem *p, const exact_counts *counts, const exact_sums *sums)
{
    for (int64_t n = 0; n < ref_prior_count(&p->desc); n++) {
        const double total = total_of(&p->desc, counts->of, n);
        if (sums->values[CLMGK_REF_STAT_COUNTS]) {
            sums->values[CLMGK_REF_STAT_COUNTS][n] = counts->of[n];
            sums->floor[CLMGK_REF_STAT_COUNTS][n] = LOST_GAMMA * counts->lost[n];
        }
        if (sums->values[CLMGK_REF_STAT_NEW_PRIOR]) {
            sums->values[CLMGK_REF_STAT_NEW_PRIOR][n] = total == 0.0 ? given_prior(p, n) : counts->of[n] / total;
            sums->floor[CLMGK_REF_STAT_NEW_PRIOR][n] = total == 0.0 ? 0.0 : LOST_GAMMA * counts->lost[n] / total;
        }
    }
}

static void solve_rows(exact_row *row, const exact_counts *counts, double *cell_sums, const exact_sums *sums)
{
    const clmgk_ref_problem *const p = row->problem;
    const clmgk_attention_desc *const desc = &p->desc;
    const int64_t cells = sequences(desc) * desc->heads;
    double *const seen = cell_sums + cells;
    double *const nll = sums->values[CLMGK_REF_STAT_NLL];
    for (int64_t n = 0; n < desc->batch * desc->heads * desc->length; n++) {
        double log_p = 0.0;
        exact_row_solve(row, ref_row_of(desc, n));
        add_responsibilities(row, sums, counts);
        if (nll && exact_log_likelihood(row, &log_p)) {
            const int64_t cell = row->span.sequence * desc->heads + row->at.h;
            cell_sums[cell] -= log_p;
            seen[cell] += 1.0;
        }
    }
    for (int64_t cell = 0; nll && cell < cells; cell++)
        nll[cell] = seen[cell] > 0.0 ? cell_sums[cell] / seen[cell] : 0.0;
}

static bool exact_statistics(const clmgk_ref_problem *problem, const exact_scores *scores, const exact_sums *sums)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t count = ref_prior_count(desc);
    const size_t cells = (size_t)(sequences(desc) * desc->heads);
    double *const room = calloc(2 * ((size_t)count + cells), sizeof(double));
    const exact_counts counts = {room, room + count};
    exact_row row;
    if (!room || !exact_row_create(problem, scores, &row)) {
        free(room);
        return false;
    }
    solve_rows(&row, &counts, room + 2 * count, sums);
    give_counts(problem, &counts, sums);
    exact_row_free(&row);
    free(room);
    return true;
}

/* ---- the plain formula ----------------------------------------------------------------------------------------- */

/* Matrices of head (b,h), and sums over all heads. */
typedef struct plain_head {
    ref_plain row;
    float *memory;
    float *gamma;      /* [M,N,S] */
    float *likelihood; /* [N]: log p(q_i) */
    int64_t *cell;     /* [N]: sequence of row i; -1: none */
    float *counts;     /* the prior's shape */
    float *room;       /* [M S + N] */
} plain_head;

static bool plain_head_create(const clmgk_ref_problem *problem, const plain_scores *scores, plain_head *head)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const size_t rows = (size_t)desc->length;
    const size_t terms = (size_t)(desc->components * desc->length_k);
    const ref_part parts[] = {{&head->gamma, terms * rows},
                              {&head->likelihood, rows},
                              {&head->counts, (size_t)ref_prior_count(desc)},
                              {&head->room, terms + rows}};
    head->memory = ref_room(parts, sizeof(parts) / sizeof(parts[0]));
    head->cell = malloc((rows + 1) * sizeof(int64_t));
    if (head->memory && head->cell && ref_plain_create(problem, scores, &head->row))
        return true;
    free(head->memory);
    free(head->cell);
    return false;
}

static void plain_head_free(plain_head *head)
{
    ref_plain_free(&head->row);
    free(head->memory);
    free(head->cell);
}

/* gamma of key j: gamma[r*step] is component r's. */
static void fill_gamma(const ref_plain *row, int64_t j, int64_t step, float *gamma)
{
    const clmgk_attention_desc *const desc = &row->problem->desc;
    int64_t best = 0;
    for (int64_t r = 1; r < desc->components; r++)
        if (row->log_term[r * desc->length_k + j] > row->log_term[best * desc->length_k + j])
            best = r;
    const float largest = row->log_term[best * desc->length_k + j];
    if (largest == -INFINITY)
        return;
    float total = 0.0F;
    for (int64_t r = 0; r < desc->components; r++) {
        const bool chosen = desc->estep == CLMGK_ESTEP_SOFT || r == best;
        gamma[r * step] = chosen ? expf(row->log_term[r * desc->length_k + j] - largest) : 0.0F;
        total += gamma[r * step];
    }
    for (int64_t r = 0; r < desc->components; r++)
        gamma[r * step] /= total;
}

/* log p(q_i) */
static void fill_likelihood(plain_head *head, int64_t i)
{
    ref_plain *const row = &head->row;
    const clmgk_ref_problem *const p = row->problem;
    int64_t keys = 0, count = 0;
    float largest = -INFINITY;
    for (int64_t j = row->span.first; j < row->span.end; j++) {
        const ref_pair pair = {row->at, &row->span, j, 0, 0.0};
        const bool visible = !ref_hidden(p, row->at, j) && !ref_text_hides(&row->texts, &pair);
        keys += visible;
        for (int64_t r = 0; visible && r < p->desc.components; r++) {
            const float term = logf((float)ref_prior(p, row->at.h, j, r)) + (float)log_normal(p, row->at.h, r) +
                               row->score[r * p->desc.length_k + j];
            head->room[count++] = term;
            largest = term > largest ? term : largest;
        }
    }
    const float base = isfinite(largest) ? largest : 0.0F;
    for (int64_t n = 0; n < count; n++)
        head->room[n] = expf(head->room[n] - base);
    head->cell[i] = keys > 0 ? row->span.sequence : -1;
    head->likelihood[i] = base + logf(ref_sum_of(count, head->room, row->way.order)) - logf((float)keys);
}

static void fill_head(plain_head *head, int64_t b, int64_t h, ref_way way, const bool *lost)
{
    const clmgk_attention_desc *const desc = &head->row.problem->desc;
    const int64_t step = desc->length * desc->length_k;
    for (int64_t n = 0; n < desc->components * step; n++)
        head->gamma[n] = 0.0F;
    for (int64_t i = 0; i < desc->length; i++) {
        ref_plain_solve(&head->row, (ref_row){b, h, i}, way);
        const bool *const of_row = lost + ref_row_number(desc, (ref_row){b, h, i}) * desc->length_k;
        for (int64_t j = head->row.span.first; j < head->row.span.end; j++)
            if (!of_row[j])
                fill_gamma(&head->row, j, step, head->gamma + i * desc->length_k + j);
        fill_likelihood(head, i);
    }
}

/* The mean of -log p(q_i) over the rows of a sequence that see a key. */
static float mean(plain_head *head, int64_t sequence, ref_order order)
{
    int64_t count = 0;
    for (int64_t i = 0; i < head->row.problem->desc.length; i++)
        if (head->cell[i] == sequence)
            head->room[count++] = -head->likelihood[i];
    return count > 0 ? ref_sum_of(count, head->room, order) / (float)count : 0.0F;
}

static void sum_head(plain_head *head, int64_t b, int64_t h, ref_order order, float *const values[])
{
    const clmgk_attention_desc *const desc = &head->row.problem->desc;
    float *const responsibilities = values[CLMGK_REF_STAT_RESPONSIBILITIES];
    const int64_t matrix = desc->components * desc->length * desc->length_k;
    for (int64_t n = 0; responsibilities && n < matrix; n++)
        responsibilities[(b * desc->heads + h) * matrix + n] = head->gamma[n];
    ref_plain_sum_prior(desc, h, head->gamma, order, head->room, head->counts);
    const int64_t first = desc->sequences > 0 ? 0 : b;
    const int64_t end = desc->sequences > 0 ? desc->sequences : b + 1;
    for (int64_t t = first; values[CLMGK_REF_STAT_NLL] && t < end; t++)
        values[CLMGK_REF_STAT_NLL][t * desc->heads + h] = mean(head, t, order);
}

static float plain_maximised(const clmgk_ref_problem *p, const float *counts, int64_t n)
{
    const component_axis axis = components_of(&p->desc, n);
    float total = 0.0F;
    for (int64_t r = 0; r < p->desc.components; r++)
        total += counts[axis.first + r * axis.step];
    return total == 0.0F ? (float)given_prior(p, n) : counts[n] / total;
}

static bool plain_statistics(const clmgk_ref_problem *problem, const plain_scores *scores, ref_way way,
                             const bool *lost, float *const values[])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t heads = desc->batch * desc->heads;
    plain_head head;
    if (!plain_head_create(problem, scores, &head))
        return false;
    for (int64_t n = 0; n < heads; n++) {
        const int64_t number = way.order == REF_ORDER_BACKWARD ? heads - 1 - n : n;
        fill_head(&head, number / desc->heads, number % desc->heads, way, lost);
        sum_head(&head, number / desc->heads, number % desc->heads, way.order, values);
    }
    for (int64_t n = 0; n < ref_prior_count(desc); n++) {
        if (values[CLMGK_REF_STAT_COUNTS])
            values[CLMGK_REF_STAT_COUNTS][n] = head.counts[n];
        if (values[CLMGK_REF_STAT_NEW_PRIOR])
            values[CLMGK_REF_STAT_NEW_PRIOR][n] = plain_maximised(problem, head.counts, n);
    }
    plain_head_free(&head);
    return true;
}

/* ---- with their bounds ----------------------------------------------------------------------------------------- */

static int64_t count_of(const clmgk_attention_desc *desc, int which)
{
    return clmgk_ref_statistic_count(desc, (clmgk_ref_statistic)which);
}

static ref_tolerance tolerance_of(const clmgk_attention_desc *desc, int which)
{
    (void)which;
    return ref_tolerance_of_outputs(ref_weight_type(desc));
}

bool clmgk_ref_solve_statistics(const clmgk_ref_problem *problem, uint32_t set, clmgk_ref_arrays *out)
{
    static const char *const names[CLMGK_REF_STATISTICS] = {"responsibilities", "counts", "new prior", "nll"};
    static const ref_solver solver = {names, false, true, count_of, tolerance_of, exact_statistics, plain_statistics};
    if (!ref_solve_arrays(problem, set, &solver, out))
        return false;
    out->bound[CLMGK_REF_STAT_NLL].scale = fmax(out->bound[CLMGK_REF_STAT_NLL].scale, 1.0); /* a logarithm */
    return true;
}
