/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values in pages. Whatever no table points to is NaN, and entries that no key needs are no pages. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- problems --------------------------------------------------------------------------------------------------- */

static th_problem paged_problem(const clmgk_attention_desc *desc, uint64_t seed)
{
    th_problem problem = th_problem_make(desc, seed);
    th_fit_tables(&problem);
    th_poison_pages(&problem);
    return problem;
}

static void set_pages(clmgk_attention_desc *desc, int64_t page_size, int64_t keys)
{
    desc->page_size = page_size;
    desc->table_pages = (keys + page_size - 1) / page_size + 1;
    desc->pages = desc->table_pages + 3;
    desc->length_k = th_keys(keys);
}

/* Two batches with lengths; number n of a sweep over masks. */
static clmgk_attention_desc desc_of(clmgk_variant variant, int64_t queries, int64_t page_size, int64_t keys, size_t n)
{
    clmgk_attention_desc desc = th_small_desc(variant, queries, 1);
    set_pages(&desc, page_size, keys);
    desc.batch = 2;
    desc.use_lengths = 1;
    desc.causal = n % 2 == 0;
    desc.alignment = (clmgk_alignment)(n % 3);
    desc.use_window = n % 5 == 4;
    desc.window_left = desc.use_window ? 40 : 0;
    return desc;
}

static void compress(clmgk_attention_desc *desc)
{
    desc->use_lengths = 0;
    desc->use_page_offsets = 1;
    desc->table_pages *= desc->sequences > 0 ? desc->sequences : desc->batch;
}

/* ---- the formula ------------------------------------------------------------------------------------------------ */

static const int64_t page_sizes[] = {1, 16, 3, 64, 8, 100};

static void expect_pages(th_session *session, int64_t length, bool compressed)
{
    for (size_t n = 0; n < TH_COUNT(page_sizes); n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, length, page_sizes[n], 150, n);
        if (compressed)
            compress(&desc);
        TH_PROBLEM problem = paged_problem(&desc, n);
        th_expect(session, &problem);
    }
}

TH_TEST(pages_of_batches)
{
    expect_pages(session, 40, false);
}

TH_TEST(compressed_tables)
{
    expect_pages(session, 40, true);
}

/* Forms for few rows; keys that follow each other in a page are read in place, and the others one by one. */
TH_TEST(pages_for_few_queries)
{
    expect_pages(session, 1, false);
}

/* Several components, global heads, and heads of one vector and less, whose tiles are copied. */
TH_TEST(pages_of_components_and_mixed_heads)
{
    for (size_t n = 0; n < 4; n++) {
        clmgk_attention_desc desc =
            desc_of(n < 2 ? CLMGK_VARIANT_MGK : CLMGK_VARIANT_HARD_FISH, 40, page_sizes[n], 100, n);
        desc.dtype = n < 2 ? CLMGK_DTYPE_F32 : CLMGK_DTYPE_BF16; /* the matrix engine mixes heads of 16 bits alone */
        TH_PROBLEM problem = paged_problem(&desc, n);
        th_expect(session, &problem);
    }
}

/* Packed queries, prefill and decoding mixed; with tables of both forms. */
TH_TEST(pages_of_packed_sequences)
{
    for (size_t n = 0; n < TH_COUNT(page_sizes); n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 70, page_sizes[n], 100, n);
        desc.batch = 1;
        desc.sequences = 5;
        if (n % 2 == 1)
            compress(&desc);
        TH_PROBLEM problem = paged_problem(&desc, n);
        th_expect(session, &problem);
    }
}

/* One buffer [pages,2,page,G,D] of keys and values, tokens first. */
TH_TEST(keys_and_values_in_one_buffer)
{
    enum { PAGE = 16, HEADS = 2, SIZE = 24 };
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 40, PAGE, 90, 0);
    desc.heads = desc.kv_heads = HEADS;
    desc.head_size = desc.value_size = SIZE;
    const int64_t token = (int64_t)HEADS * SIZE, half = PAGE * token;
    desc.k = desc.v = (clmgk_layout){.strided = 1, .batch = 2 * half, .head = SIZE, .token = token};
    TH_PROBLEM problem = paged_problem(&desc, 3);
    problem.array[TH_V].home = TH_K;
    problem.array[TH_V].offset = problem.array[TH_K].offset + (uint64_t)half;
    th_expect(session, &problem);
}

/* Latent attention: one head of keys, of which values are the first elements. */
static void expect_latent(th_session *session, int64_t queries, int64_t head_size, int64_t value_size,
                          clmgk_dtype dtype)
{
    enum { PAGE = 16 };
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, queries, PAGE, 90, 0);
    desc.heads = 4;
    desc.kv_heads = 1;
    desc.dtype = dtype;
    desc.head_size = head_size;
    desc.value_size = value_size;
    desc.v = (clmgk_layout){.strided = 1, .batch = PAGE * head_size, .head = PAGE * head_size, .token = head_size};
    TH_PROBLEM problem = paged_problem(&desc, 5);
    th_array *const v = &problem.array[TH_V];
    v->home = TH_K;
    v->offset = problem.array[TH_K].offset;
    for (size_t n = 0; n < v->count; n++)
        v->values[n] = problem.array[TH_K].values[n / (size_t)value_size * (size_t)head_size + n % (size_t)value_size];
    th_expect(session, &problem);
}

TH_TEST(values_within_keys)
{
    expect_latent(session, 1, 576, 512, CLMGK_DTYPE_F32);
    if (!session->full)
        return;
    expect_latent(session, 40, 576, 512, CLMGK_DTYPE_F32);
    expect_latent(session, 40, 576, 512, CLMGK_DTYPE_F16);
    expect_latent(session, 3, 576, 512, CLMGK_DTYPE_BF16);
    expect_latent(session, 40, 530, 513, CLMGK_DTYPE_F32);
}

/* Numbers that are no pages count as the nearest page: nothing outside of the pool is read, which the guard layer
 * watches. */
TH_TEST(numbers_outside_of_the_pool)
{
    for (size_t n = 0; n < 2; n++) {
        const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, n == 0 ? 40 : 1, 8, 64, 0);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t i = 0; i < problem.array[TH_PAGE_TABLE].count; i += 3)
            problem.array[TH_PAGE_TABLE].values[i] = i % 2 == 0 ? -2147483648.0 : 2147483647.0;
        th_expect(session, &problem);
    }
}

/* ---- pools of several buffers ---------------------------------------------------------------------------------- */

/* Each of three batches has four pages in each of two pools. */
enum {
    POOLS = 2,
    POOL_BATCH = 3,
    POOL_PAGE = 16,
    POOL_ROOM = 4,
    POOL_PAGES = 12,
    POOL_KEYS = 64,
    ALL_ROOM = 8,
    ALL_PAGES = 24
};

static clmgk_buffer pool_buffer(th_session *session, size_t bytes, const void *values)
{
    cl_int code = CL_SUCCESS;
    const cl_mem_flags flags = CL_MEM_READ_WRITE | (values ? CL_MEM_COPY_HOST_PTR : 0);
    const clmgk_buffer buffer = {clCreateBuffer(session->cl, flags, bytes, (void *)(uintptr_t)values, &code), 0};
    assert_int_equal(code, CL_SUCCESS);
    return buffer;
}

/* A dense array in f32, if the problem has it. */
static clmgk_buffer input_of(th_session *session, const th_problem *problem, th_name name)
{
    const th_array *const array = &problem->array[name];
    float numbers[4096];
    if (!array->used)
        return (clmgk_buffer){NULL, 0};
    assert_true(array->count <= TH_COUNT(numbers));
    for (size_t n = 0; n < array->count; n++)
        numbers[n] = (float)array->values[n];
    return pool_buffer(session, array->count * sizeof(*numbers), numbers);
}

/* The n-th pool of K or V: page table[p] is that of entry p of the n-th part of the whole's tables. */
static clmgk_buffer pool_of(th_session *session, const th_problem *whole, th_name name, int64_t n, const cl_int *table)
{
    const th_array *const all = &whole->array[name];
    const size_t page = all->count / (size_t)whole->desc.pages; /* numbers */
    float *const numbers = malloc(POOL_PAGES * page * sizeof(*numbers));
    assert_non_null(numbers);
    for (int64_t p = 0; p < POOL_PAGES; p++) {
        const int64_t b = p / POOL_ROOM, column = n * POOL_ROOM + p % POOL_ROOM;
        const size_t from = (size_t)whole->array[TH_PAGE_TABLE].values[b * ALL_ROOM + column] * page;
        for (size_t i = 0; i < page; i++)
            numbers[(size_t)table[p] * page + i] = (float)all->values[from + i];
    }
    const clmgk_buffer buffer = pool_buffer(session, POOL_PAGES * page * sizeof(*numbers), numbers);
    free(numbers);
    return buffer;
}

/* K, V and the table of a pool, whose pages are the n-th of each batch's, in reverse order, and the keys in them. */
static void bind_pool(th_session *session, const th_problem *whole, int64_t n, clmgk_attention_args *args)
{
    cl_int table[POOL_PAGES], lengths[POOL_BATCH];
    for (cl_int p = 0; p < POOL_PAGES; p++)
        table[p] = POOL_PAGES - 1 - p;
    for (int64_t b = 0; b < POOL_BATCH; b++)
        lengths[b] = (cl_int)fmax(0.0, fmin(whole->array[TH_LENGTHS].values[b] - (double)(n * POOL_KEYS), POOL_KEYS));
    args->k = pool_of(session, whole, TH_K, n, table);
    args->v = pool_of(session, whole, TH_V, n, table);
    args->page_table = pool_buffer(session, sizeof(table), table);
    args->lengths = pool_buffer(session, sizeof(lengths), lengths);
}

/* A call for each pool with its range of the keys, of which the last pool's are causal, and the parts combined. */
static void expect_pools(th_session *session, clmgk_variant variant)
{
    clmgk_attention_desc desc = desc_of(variant, 3, POOL_PAGE, POOLS * (int64_t)POOL_KEYS, 0);
    desc.batch = POOL_BATCH;
    desc.table_pages = ALL_ROOM;
    desc.pages = ALL_PAGES;
    desc.causal = 1;
    desc.alignment = CLMGK_ALIGN_LENGTHS;
    desc.value_size = desc.head_size;
    const clmgk_plan_options options = th_options(session, 0);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    static const double lengths[POOL_BATCH] = {128.0, 70.0, 101.0}; /* the queries' keys are in the last pool */
    memcpy(problem.array[TH_LENGTHS].values, lengths, sizeof(lengths));
    th_expect_forward(session, &problem, &options);
    const th_array *const o = &problem.array[TH_O], *const lse = &problem.array[TH_LSE];
    clmgk_attention_args all = {
        .struct_size = sizeof(all), .q = input_of(session, &problem, TH_Q), .mix = input_of(session, &problem, TH_MIX)};
    clmgk_plan *plan[POOLS];
    float found[4096];
    assert_true(o->count <= TH_COUNT(found));
    all.parts = POOLS;
    all.parts_o = pool_buffer(session, POOLS * o->count * sizeof(float), NULL);
    all.parts_lse = pool_buffer(session, POOLS * lse->count * sizeof(float), NULL);
    all.o = pool_buffer(session, o->count * sizeof(float), NULL);
    desc.table_pages = POOL_ROOM;
    desc.pages = POOL_PAGES;
    desc.length_k = POOL_KEYS;
    desc.combine = 1;
    for (int n = 0; n < POOLS; n++) {
        clmgk_attention_args part = {.struct_size = sizeof(part), .q = all.q, .mix = all.mix};
        desc.causal = n + 1 == POOLS;
        plan[n] = th_plan_of(session, &desc, &options);
        bind_pool(session, &problem, n, &part);
        part.o = (clmgk_buffer){all.parts_o.memory, (size_t)n * o->count};
        part.lse = (clmgk_buffer){all.parts_lse.memory, (size_t)n * lse->count};
        part.workspace = pool_buffer(session, clmgk_plan_workspace_size(plan[n]) + 4, NULL);
        th_expect_ok(clmgk_enqueue_forward(plan[n], session->queue, &part, 0, NULL, NULL, &th_error));
        const cl_mem own[] = {part.k.memory, part.v.memory, part.page_table.memory, part.lengths.memory,
                              part.workspace.memory};
        for (size_t i = 0; i < TH_COUNT(own); i++)
            clReleaseMemObject(own[i]);
    }
    th_expect_ok(clmgk_enqueue_combine(plan[0], session->queue, &all, 0, NULL, NULL, &th_error));
    assert_int_equal(
        clEnqueueReadBuffer(session->queue, all.o.memory, CL_TRUE, 0, o->count * sizeof(float), found, 0, NULL, NULL),
        CL_SUCCESS);
    for (size_t i = 0; i < o->count; i++)
        if (!(fabs(found[i] - o->values[i]) < 1e-5))
            fail_msg("element %zu: %g, expected %g", i, (double)found[i], o->values[i]);
    const cl_mem own[] = {all.q.memory, all.mix.memory, all.parts_o.memory, all.parts_lse.memory, all.o.memory};
    for (size_t i = 0; i < TH_COUNT(own); i++)
        if (own[i])
            clReleaseMemObject(own[i]);
    for (int n = 0; n < POOLS; n++)
        clmgk_plan_release(plan[n]);
}

/* Also of several keys for each position, and of heads with scores of their own. */
TH_TEST(pools_of_several_buffers)
{
    expect_pools(session, CLMGK_VARIANT_SOFTMAX);
    if (!session->full)
        return;
    expect_pools(session, CLMGK_VARIANT_MGK);
    if (session->engine[0] != CLMGK_ENGINE_MATRIX) /* it has no mixed heads in f32 */
        expect_pools(session, CLMGK_VARIANT_HARD_FISH);
}

/* ---- grids of other libraries ----------------------------------------------------------------------------------- */

/* FlashInfer's pages and keys, with queries of prefill and decoding. Emulated units get small heads with many keys. */
TH_FULL_TEST(flashinfer_grid)
{
    static const int64_t pages[] = {1, 8, 16}, keys[] = {54, 97, 512, 2048, 16384}, queries[] = {1, 37, 17};
    for (size_t n = 0; n < TH_COUNT(pages) * TH_COUNT(keys) * TH_COUNT(queries); n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, queries[n / 15], 1);
        if (keys[n / 3 % 5] == 16384 && desc.length > 1)
            continue;
        set_pages(&desc, pages[n % 3], keys[n / 3 % 5]);
        const bool small = th_is_emulated(session) && desc.length_k > 54;
        desc.batch = small ? 2 : 3;
        desc.heads = small ? 2 : 4;
        desc.kv_heads = small ? 1 : 2;
        desc.head_size = desc.value_size = small ? 32 : 128;
        desc.dtype = n % 2 == 0 ? CLMGK_DTYPE_F16 : CLMGK_DTYPE_F32;
        desc.causal = n % 3 != 0;
        desc.alignment = CLMGK_ALIGN_LENGTHS;
        desc.use_lengths = 1;
        if (n % 4 == 3)
            compress(&desc);
        TH_PROBLEM problem = paged_problem(&desc, n);
        th_expect(session, &problem);
    }
}

/* vLLM's sequences in one call, with its heads, windows and soft-cap. Emulated units get small heads. */
TH_FULL_TEST(vllm_grid)
{
    static const int64_t queries[] = {1, 5, 129}, keys[] = {1328, 18, 463}, heads[][2] = {{4, 4}, {8, 2}, {5, 1}};
    static const int64_t windows[] = {-1, 64, 128, 256}, page[] = {16, 32};
    for (size_t n = 0; n < TH_COUNT(heads) * TH_COUNT(windows) * 2 * 2; n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 135, 1);
        set_pages(&desc, page[n % 2], 1328);
        desc.sequences = 3;
        desc.heads = heads[n / 4 % 3][0];
        desc.kv_heads = heads[n / 4 % 3][1];
        desc.head_size = desc.value_size = th_is_emulated(session) ? 32 : 128;
        desc.dtype = n % 3 == 0 ? CLMGK_DTYPE_BF16 : CLMGK_DTYPE_F16;
        desc.causal = 1;
        desc.use_window = windows[n / 12] >= 0;
        desc.window_left = desc.use_window ? windows[n / 12] - 1 : 0;
        desc.softcap = n / 2 % 2 == 0 ? 0.0 : 50.0;
        desc.use_lengths = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t t = 0, end = 0; t < 3; t++) {
            end += (size_t)queries[t];
            problem.array[TH_OFFSETS].values[t + 1] = (double)end;
            problem.array[TH_LENGTHS].values[t] = (double)keys[t];
        }
        th_poison_pages(&problem);
        th_expect(session, &problem);
    }
}

/* vLLM's pool of 32,768 pages. */
TH_FULL_TEST(many_pages)
{
    for (size_t n = 0; n < 2; n++) {
        clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, n == 0 ? 1 : 20, 1);
        set_pages(&desc, 16, 463);
        desc.pages = 32768;
        desc.kv_heads = desc.heads = 1;
        desc.use_lengths = 1;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_array *const table = &problem.array[TH_PAGE_TABLE];
        for (size_t i = 0; i < table->count; i++)
            table->values[i] = (double)(i % 2 == 0 ? desc.pages - 1 - (int64_t)i : (int64_t)i * 999);
        th_poison_pages(&problem);
        th_expect(session, &problem);
    }
}

/* All variants, random shapes, types and modifiers. */
TH_FULL_TEST(random_pages)
{
    for (size_t n = 0; n < 30; n++) {
        uint64_t state = n;
        const bool mixed = n % 2 == 1;
        const clmgk_variant variant =
            mixed ? th_admixtures[n / 2 % TH_COUNT(th_admixtures)] : th_variants[n / 2 % TH_COUNT(th_variants)];
        clmgk_attention_desc desc =
            desc_of(variant, th_pick(&state, 0, 90), th_pick(&state, 1, 70), th_pick(&state, 1, 260), n);
        desc.dtype = th_dtypes[n / 3 % TH_COUNT(th_dtypes)];
        th_fit_type(session, &desc);
        desc.head_size = n % 8 < 4 ? desc.head_size : th_pick(&state, 1, 40);
        desc.use_bias = th_chance(&state, 4);
        desc.use_sinks = th_chance(&state, 4);
        desc.use_alibi = th_chance(&state, 4);
        if (th_chance(&state, 3)) {
            desc.batch = 1;
            desc.sequences = th_pick(&state, 1, 7);
        }
        if (th_chance(&state, 2))
            compress(&desc);
        if (desc.alignment == CLMGK_ALIGN_LENGTHS && !desc.use_lengths && !desc.use_page_offsets)
            desc.alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
        TH_PROBLEM problem = paged_problem(&desc, n);
        th_expect(session, &problem);
    }
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(refused_pages)
{
    const clmgk_attention_desc good = desc_of(CLMGK_VARIANT_SOFTMAX, 5, 16, 40, 1);
    clmgk_attention_desc d = good;
    th_expect_ok(clmgk_attention_validate(&d, NULL, &th_error));
    d.length_k = 0;
    th_expect_ok(clmgk_attention_validate(&d, &d, &th_error));
    assert_int_equal(d.length_k, 64);
    d = good, d.page_size = -1, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "page_size", "-1");
    d = good, d.pages = 0, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "pages", "0");
    d = good, d.table_pages = 0, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "table_pages", "0");
    d = good, d.length_k = 65, th_expect_refused(&d, CLMGK_ERROR_INVALID_SHAPE, "length_k", "65");
    d = good, d.page_size = 0, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "pages", "7");
    d = good, d.use_page_offsets = 1, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "use_lengths", "1");
    d = good, d.gradients = CLMGK_GRADIENT_Q;
    th_expect_error(clmgk_attention_validate(&d, NULL, &th_error), CLMGK_ERROR_UNSUPPORTED, "gradients");
    d = good, d.variant = CLMGK_VARIANT_GAUSSIAN, d.statistics = CLMGK_STATISTIC_NLL;
    th_expect_error(clmgk_attention_validate(&d, NULL, &th_error), CLMGK_ERROR_UNSUPPORTED, "statistics");
    d = th_small_desc(CLMGK_VARIANT_LINEAR, 5, 5), d.page_size = 16, d.pages = d.table_pages = 4;
    th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "page_size", "16");
    d = th_small_desc(CLMGK_VARIANT_SOFTMAX, 5, 5), d.use_page_offsets = 1;
    th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "use_page_offsets", "1");
}

/* The check of a table on the host, element by element. */
TH_HOST_TEST(checked_tables)
{
    clmgk_attention_desc d = desc_of(CLMGK_VARIANT_SOFTMAX, 5, 16, 40, 1); /* 7 pages, tables of 4 */
    int32_t table[8] = {0, 6, 1, -1, 99, 99, 99, 99}, lengths[2] = {33, 0};
    th_expect_ok(clmgk_attention_validate(&d, &d, &th_error));
    th_expect_ok(clmgk_check_pages(&d, table, NULL, NULL, lengths, &th_error));
    lengths[1] = 1;
    th_expect_refusal(clmgk_check_pages(&d, table, NULL, NULL, lengths, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "page_table[4]", "99");
    table[2] = 7, lengths[1] = 0;
    th_expect_refusal(clmgk_check_pages(&d, table, NULL, NULL, lengths, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "page_table[2]", "7");
    th_expect_error(clmgk_check_pages(&d, table, NULL, NULL, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "lengths");
    d = desc_of(CLMGK_VARIANT_SOFTMAX, 5, 16, 48, 1);
    compress(&d);
    th_expect_ok(clmgk_attention_validate(&d, &d, &th_error));
    int32_t all[10] = {1, 2, 3, 4, -1, -1, -1, -1, -1, -1}, offsets[3] = {0, 3, 4}, last[2] = {16, 1};
    th_expect_ok(clmgk_check_pages(&d, all, offsets, last, NULL, &th_error));
    offsets[2] = 2;
    th_expect_refusal(clmgk_check_pages(&d, all, offsets, last, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "page_offsets[2]", "2");
    offsets[2] = 5;
    th_expect_refusal(clmgk_check_pages(&d, all, offsets, last, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "page_table[4]", "-1");
    offsets[2] = 4, last[1] = 17;
    th_expect_refusal(clmgk_check_pages(&d, all, offsets, last, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "last_page[1]", "17");
    last[1] = 1, offsets[1] = 4;
    th_expect_refusal(clmgk_check_pages(&d, all, offsets, last, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "last_page[0]", "16");
}

/* Calls on host arrays check the table first. */
TH_TEST(host_calls_check_tables)
{
    const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 40, 16, 40, 1);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_fill(&problem, TH_LENGTHS, 40.0);
    problem.array[TH_PAGE_TABLE].values[1] = 7.0;
    TH_HOST host = th_host_make(&problem);
    th_expect_refusal(clmgk_attention_forward_host(NULL, &problem.desc, &host.args, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "page_table[1]", "7");
    th_host_expect_unwritten(&host);
}
