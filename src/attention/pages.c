/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of pages: the check of numbers that are in host memory. */
#include "attention/plan.h"

#include <inttypes.h>

/* A table's numbers, of which `offsets` and `last` belong to a compressed one, and `lengths` may to another. */
typedef struct page_numbers {
    const clmgk_attention_desc *desc;
    const int32_t *table, *offsets, *last, *lengths;
    int64_t problems;
} page_numbers;

static clmgk_status fail(const char *array, int64_t place, int32_t value, int64_t least, int64_t most,
                         clmgk_error *error)
{
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[%" PRId64 "]: %" PRId32 ": expected %" PRId64 " to %" PRId64,
                    array, place, value, least, most);
}

static clmgk_status check_offsets(const page_numbers *x, clmgk_error *error)
{
    int64_t least = 0;
    for (int64_t b = 0; b <= x->problems; ++b) {
        if (x->offsets[b] < least || x->offsets[b] > x->desc->table_pages)
            return fail("page_offsets", b, x->offsets[b], least, x->desc->table_pages, error);
        least = x->offsets[b];
    }
    for (int64_t b = 0; b < x->problems; ++b) {
        const int64_t pages = x->offsets[b + 1] - (int64_t)x->offsets[b];
        if (x->last[b] < 0 || x->last[b] > x->desc->page_size)
            return fail("last_page", b, x->last[b], 0, x->desc->page_size, error);
        if (pages > 0 && (pages - 1) * x->desc->page_size + x->last[b] > x->desc->length_k)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "last_page[%" PRId64 "]: %" PRId32 ": its %" PRId64
                            " pages have more than length_k = %" PRId64 " keys",
                            b, x->last[b], pages, x->desc->length_k);
    }
    return CLMGK_OK;
}

/* Entries first .. of the table that problem b's keys use. */
static int64_t entries_of(const page_numbers *x, int64_t b, int64_t *first)
{
    *first = x->offsets != NULL ? x->offsets[b] : b * x->desc->table_pages;
    if (x->offsets != NULL)
        return x->offsets[b + 1] - x->offsets[b];
    const int64_t length = x->lengths == NULL                  ? x->desc->length_k
                           : x->lengths[b] < 0                 ? 0
                           : x->lengths[b] < x->desc->length_k ? x->lengths[b]
                                                               : x->desc->length_k;
    return (length + x->desc->page_size - 1) / x->desc->page_size;
}

static clmgk_status check_table(const page_numbers *x, clmgk_error *error)
{
    for (int64_t b = 0; b < x->problems; ++b) {
        int64_t first = 0;
        const int64_t end = entries_of(x, b, &first) + first;
        for (int64_t i = first; i < end; ++i)
            if (x->table[i] < 0 || x->table[i] >= x->desc->pages)
                return fail("page_table", i, x->table[i], 0, x->desc->pages - 1, error);
    }
    return CLMGK_OK;
}

clmgk_status clmgk_check_pages(const clmgk_attention_desc *resolved, const int32_t *page_table,
                               const int32_t *page_offsets, const int32_t *last_page, const int32_t *lengths,
                               clmgk_error *error)
{
    clmgk_attention_desc d;
    if (!mgk_desc_read(resolved, &d) || d.page_size == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "resolved: expected a resolved descriptor with page_size > 0");
    const page_numbers x = {.desc = &d,
                            .table = page_table,
                            .offsets = d.use_page_offsets ? page_offsets : NULL,
                            .last = last_page,
                            .lengths = d.use_lengths ? lengths : NULL,
                            .problems = d.sequences > 0 ? d.sequences : d.batch};
    if (page_table == NULL || (d.use_page_offsets && (page_offsets == NULL || last_page == NULL)) ||
        (d.use_lengths && lengths == NULL))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected an array",
                        page_table == NULL                           ? "page_table"
                        : d.use_page_offsets && page_offsets == NULL ? "page_offsets"
                        : d.use_page_offsets                         ? "last_page"
                                                                     : "lengths");
    if (x.offsets != NULL)
        MGK_TRY(check_offsets(&x, error));
    return check_table(&x, error);
}
