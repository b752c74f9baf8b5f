/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>

static int64_t problems_of(const clmgk_attention_desc *d)
{
    return d->sequences > 0 ? d->sequences : d->batch;
}

static int64_t number(const th_problem *problem, th_name name, int64_t n)
{
    return (int64_t)problem->array[name].values[n];
}

static int64_t within(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* Keys in use of problem t, and the entry of its table that key j has. */
static int64_t keys_of(const th_problem *p, int64_t t)
{
    const clmgk_attention_desc *const d = &p->desc;
    if (!d->use_page_offsets)
        return d->use_lengths ? within(number(p, TH_LENGTHS, t), 0, d->length_k) : d->length_k;
    const int64_t pages = number(p, TH_PAGE_OFFSETS, t + 1) - number(p, TH_PAGE_OFFSETS, t);
    const int64_t keys = (pages - 1) * d->page_size + number(p, TH_LAST_PAGE, t);
    return pages == 0 ? 0 : keys;
}

static int64_t entry_of(const th_problem *p, int64_t t, int64_t j)
{
    const clmgk_attention_desc *const d = &p->desc;
    return (d->use_page_offsets ? number(p, TH_PAGE_OFFSETS, t) : t * d->table_pages) + j / d->page_size;
}

/* Sets rows of pages that no key of a table is in to NaN. */
static void poison_rows(th_problem *problem, th_name name, const bool *seen)
{
    th_array *const array = &problem->array[name];
    const int64_t row = array->shape[4], rows = problem->desc.page_size;
    const int64_t page = array->shape[1] * array->shape[2] * array->shape[3] * row;
    for (size_t flat = 0; flat < array->count; flat++)
        if (!seen[(int64_t)flat / page * rows + (int64_t)flat / row % rows])
            array->values[flat] = (double)NAN;
}

void th_fit_tables(th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    double *const offsets = problem->array[TH_PAGE_OFFSETS].values, *const last = problem->array[TH_LAST_PAGE].values;
    if (!d->use_page_offsets)
        return;
    for (int64_t t = 0; t < problems_of(d); t++) {
        const int64_t room = d->length_k / d->page_size;
        const double most = offsets[t] + (double)room;
        offsets[t + 1] = offsets[t + 1] < offsets[t] ? offsets[t] : offsets[t + 1] > most ? most : offsets[t + 1];
        last[t] = last[t] == 0.0 ? 1.0 : last[t];
    }
}

bool th_has_pages(const th_problem *problem)
{
    const double *const table = problem->array[TH_PAGE_TABLE].values;
    bool has = true;
    for (int64_t t = 0; t < problems_of(&problem->desc); t++)
        for (int64_t j = 0; j < keys_of(problem, t); j++) {
            const double page = table[entry_of(problem, t, j)];
            has = has && page >= 0.0 && page < (double)problem->desc.pages;
        }
    return has;
}

void th_poison_pages(th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    double *const table = problem->array[TH_PAGE_TABLE].values;
    bool *const seen = calloc((size_t)(d->pages * d->page_size), sizeof(*seen));
    bool *const used = calloc(problem->array[TH_PAGE_TABLE].count, sizeof(*used));
    assert_non_null(seen);
    assert_non_null(used);
    for (int64_t t = 0; t < problems_of(d); t++)
        for (int64_t j = 0; j < keys_of(problem, t); j++) {
            const int64_t entry = entry_of(problem, t, j);
            used[entry] = true;
            seen[within((int64_t)table[entry], 0, d->pages - 1) * d->page_size + j % d->page_size] = true;
        }
    for (size_t n = 0; n < problem->array[TH_PAGE_TABLE].count; n++)
        if (!used[n])
            table[n] = n % 2 == 0 ? -1.0 : 1e9;
    poison_rows(problem, TH_K, seen);
    poison_rows(problem, TH_V, seen);
    free(seen);
    free(used);
}
