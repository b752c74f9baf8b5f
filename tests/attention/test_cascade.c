/* SPDX-License-Identifier: Apache-2.0 */
/* A prefix that packed sequences share, against sequences whose keys begin with it. */
#include "harness/harness.h"

#include <string.h>

/* ---- the same without a prefix ---------------------------------------------------------------------------------- */

static int64_t number(const th_problem *problem, th_name name, int64_t n)
{
    return (int64_t)problem->array[name].values[n];
}

/* Copies the row of key `from` of a table in a pool to key `to` of cache t. */
static void copy_key(const th_problem *paged, th_problem *whole, th_name name, int64_t page, int64_t row, int64_t t,
                     int64_t to)
{
    const th_array *const pool = &paged->array[name], *const cache = &whole->array[name];
    const int64_t heads = pool->shape[1] * pool->shape[2], size = pool->shape[4];
    for (int64_t h = 0; h < heads; h++)
        memcpy(cache->values + ((t * heads + h) * cache->shape[3] + to) * size,
               pool->values + ((page * heads + h) * pool->shape[3] + row) * size, (size_t)size * sizeof(double));
}

/* Caches with the keys of the prefix, then each sequence's own. */
static th_problem whole_of(const th_problem *paged)
{
    clmgk_attention_desc desc = paged->desc;
    const int64_t size = desc.page_size, shared = number(paged, TH_PREFIX_LENGTH, 0);
    desc.resolved = 0;
    desc.k = desc.v = (clmgk_layout){.strided = 0};
    desc.page_size = desc.pages = desc.table_pages = desc.prefix_pages = 0;
    desc.use_lengths = 1;
    desc.length_k = shared + paged->desc.length_k;
    th_problem whole = th_problem_make(&desc, 1);
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (th_is_input(name) && name != TH_K && name != TH_V)
            th_copy_values(&whole, paged, name);
    for (int64_t t = 0; t < desc.sequences; t++) {
        const int64_t own = number(paged, TH_LENGTHS, t);
        whole.array[TH_LENGTHS].values[t] = (double)(shared + own);
        for (int64_t j = 0; j < shared + own; j++) {
            const int64_t key = j < shared ? j : j - shared;
            const int64_t page = j < shared ? number(paged, TH_PREFIX_TABLE, key / size)
                                            : number(paged, TH_PAGE_TABLE, t * paged->desc.table_pages + key / size);
            copy_key(paged, &whole, TH_K, page, key % size, t, j);
            copy_key(paged, &whole, TH_V, page, key % size, t, j);
        }
    }
    return whole;
}

/* As in serving, each sequence's own keys are at least as many as its queries. */
static void hold_queries(th_problem *paged)
{
    for (int64_t t = 0; t < paged->desc.sequences; t++) {
        const double rows = paged->array[TH_OFFSETS].values[t + 1] - paged->array[TH_OFFSETS].values[t];
        double *const own = &paged->array[TH_LENGTHS].values[t];
        *own = *own < rows ? rows : *own;
    }
}

static void expect_cascade(th_session *session, const clmgk_attention_desc *desc, uint64_t seed, int64_t shared)
{
    TH_PROBLEM paged = th_problem_make(desc, seed);
    paged.array[TH_PREFIX_LENGTH].values[0] = (double)shared;
    if (desc->causal)
        hold_queries(&paged);
    th_round_values(session, &paged, TH_FORWARD);
    TH_PROBLEM whole = whole_of(&paged);
    TH_REF_ANSWER answer = th_solve(&whole);
    for (size_t n = 0; n < session->engines; n++) {
        th_run(session, &paged, n);
        th_copy_values(&whole, &paged, TH_O);
        th_copy_values(&whole, &paged, TH_LSE);
        th_check(session, &whole, session->engine[n], &answer);
    }
}

/* ---- problems --------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc desc_of(clmgk_variant variant, int64_t rows, int64_t page_size, int64_t shared, int64_t own)
{
    clmgk_attention_desc desc = th_small_desc(variant, rows, 1);
    desc.sequences = 5;
    desc.page_size = page_size;
    desc.prefix_pages = (shared + page_size - 1) / page_size + 1;
    desc.table_pages = (own + page_size - 1) / page_size;
    desc.length_k = th_keys(own);
    desc.pages = 2 * desc.prefix_pages + 5 * desc.table_pages;
    desc.use_lengths = 1;
    desc.causal = 1;
    return desc;
}

/* Prefill and decoding mixed; no prefix, too. In full also sequences without own keys, sinks, and forms for few rows.
 */
TH_TEST(shared_prefixes)
{
    static const int64_t shared[] = {100, 0, 33}, pages[] = {16, 1, 5};
    for (size_t n = 0; n < (session->full ? TH_COUNT(shared) : 2); n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 70, pages[n], 100, 80);
        desc.causal = n < 2;
        desc.use_sinks = n == 2;
        expect_cascade(session, &desc, n, shared[n]);
        desc.length = 9;
        if (session->full)
            expect_cascade(session, &desc, n + 5, shared[n]);
    }
}

TH_FULL_TEST(components_and_mixed_heads)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_MGK, 40, 16, 100, 40);
    expect_cascade(session, &desc, 1, 77);
    desc = desc_of(CLMGK_VARIANT_HARD_FISH, 40, 16, 100, 40);
    th_fit_type(session, &desc);
    expect_cascade(session, &desc, 2, 77);
}

/* FlashInfer's cascades: shared and own keys, with one query of each sequence or with all of its own. Emulated units
 * get small heads with long prefixes. */
TH_FULL_TEST(flashinfer_cascades)
{
    static const int64_t shared[] = {128, 512, 2048}, own[] = {17, 37}, pages[] = {1, 16};
    for (size_t n = 0; n < TH_COUNT(shared) * TH_COUNT(own) * TH_COUNT(pages) * 2; n++) {
        const int64_t keys = own[n / 3 % 2];
        clmgk_attention_desc desc =
            desc_of(CLMGK_VARIANT_SOFTMAX, n < 12 ? 5 : keys, pages[n / 6 % 2], shared[n % 3], keys);
        const bool small = th_is_emulated(session) && shared[n % 3] > 128;
        desc.heads = small ? 4 : 8;
        desc.kv_heads = n % 4 == 3 ? desc.heads : 2;
        desc.head_size = desc.value_size = small ? 32 : 128;
        desc.dtype = n % 2 == 0 ? CLMGK_DTYPE_F16 : CLMGK_DTYPE_F32;
        desc.use_lse_low = n % 5 == 4;
        expect_cascade(session, &desc, n, shared[n % 3]);
    }
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(refused_prefixes)
{
    const clmgk_attention_desc good = desc_of(CLMGK_VARIANT_SOFTMAX, 5, 16, 100, 40);
    clmgk_attention_desc d = good;
    th_expect_ok(clmgk_attention_validate(&d, NULL, &th_error));
    d = good, d.prefix_pages = -1, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "prefix_pages", "-1");
    d = good, d.sequences = 0, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "prefix_pages", "8");
    d = good, d.page_size = d.pages = d.table_pages = 0;
    th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "prefix_pages", "8");
    d = good, d.prefix_pages = INT64_C(1) << 28,
    th_expect_refused(&d, CLMGK_ERROR_OVERFLOW, "prefix_pages", "268435456");
    d = good, d.use_window = 1, th_expect_refused(&d, CLMGK_ERROR_UNSUPPORTED, "prefix_pages", "use_window");
    d = good, d.use_alibi = 1, th_expect_refused(&d, CLMGK_ERROR_UNSUPPORTED, "prefix_pages", "use_alibi");
    d = good, d.use_bias = 1, th_expect_refused(&d, CLMGK_ERROR_UNSUPPORTED, "prefix_pages", "use_bias");
    d = good, d.dropout = 0.1, th_expect_refused(&d, CLMGK_ERROR_UNSUPPORTED, "prefix_pages", "dropout");
    d = good, d.mask_mod = "j > 3", th_expect_refused(&d, CLMGK_ERROR_UNSUPPORTED, "prefix_pages", "mask_mod");
    d = good, d.alignment = CLMGK_ALIGN_TOP_LEFT;
    th_expect_refused(&d, CLMGK_ERROR_UNSUPPORTED, "prefix_pages", "TOP_LEFT");
    d = good, d.variant = CLMGK_VARIANT_FISH, d.components = 2;
    th_expect_refused(&d, CLMGK_ERROR_UNSUPPORTED, "prefix_pages", "noise");
}
