/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The multi-head layer against the reference: every variant, every option, awkward shapes, storage types, caches,
 * single gradients, gradients in place and added up. Heads have the sizes of th_small_desc, so that other tests share
 * their programs.
 */
#include "harness/layer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Widths, lengths and sizes that are 0 get awkward ones. */
static const tl_case sets[] = {
    {.name = "bare"},
    {.name = "all weights packed, biases, normalised after",
     .layer = {.packed_weights = 1, .use_bias = 1, .use_bias_o = 1, .residual = 1, .norm = CLMGK_NORM_POST}},
    {.name = "cross, biases, normalised before",
     .layer = {.cross = 1, .width_k = 23, .use_bias = 1, .residual = 1, .norm = CLMGK_NORM_PRE},
     .attention = {.length_k = 41}},
    {.name = "cross, packed weights, dropout",
     .layer = {.cross = 1, .packed_weights = 1, .use_bias_o = 1, .dropout = 0.25, .norm = CLMGK_NORM_POST},
     .attention = {.length_k = 3, .causal = 1}},
    {.name = "query and key normalisation, rotation of halves, normalised before",
     .layer = {.qk_norm = 1, .rotary = CLMGK_ROTARY_HALVES, .use_bias = 1, .norm = CLMGK_NORM_PRE, .residual = 1},
     .attention = {.head_size = 18, .causal = 1}},
    {.name = "packed weights, rotation of a part, in pairs",
     .layer = {.packed_weights = 1, .rotary = CLMGK_ROTARY_PAIRS, .rotary_size = 6, .rotary_base = 30.0}},
    {.name = "query and key normalisation, packed weights, dropout before normalisation",
     .layer = {.qk_norm = 1, .packed_weights = 1, .use_bias = 1, .dropout = 0.5, .norm = CLMGK_NORM_POST},
     .attention = {.use_lengths = 1, .use_lengths_q = 1}},
    {.name = "packed sequences, rotation, cross, query and key normalisation",
     .layer = {.cross = 1, .width_k = 50, .rotary = CLMGK_ROTARY_HALVES, .rotary_size = 16, .qk_norm = 1},
     .attention = {.batch = 1, .length = 70, .length_k = 45, .sequences = 3, .use_offsets_k = 1}},
    {.name = "packed sequences, rotation in pairs, biases",
     .layer = {.packed_weights = 1, .rotary = CLMGK_ROTARY_PAIRS, .rotary_size = 16, .use_bias = 1, .residual = 1},
     .attention = {.batch = 1, .length = 50, .sequences = 4, .causal = 1}},
    {.name = "grouped heads, wide",
     .layer = {.width = 130, .qk_norm = 1, .use_bias = 1, .use_bias_o = 1},
     .attention = {.heads = 4, .kv_heads = 2}},
    {.name = "weights dropped, bias, window, score and mask as text",
     .layer = {.norm = CLMGK_NORM_PRE, .dropout = 0.125},
     .attention = {.use_bias = 1,
                   .use_alibi = 1,
                   .use_window = 1,
                   .window_left = 9,
                   .window_right = 4,
                   .score_mod = "x * s + t[h, clamp(i - j, -3, 3) + 3]",
                   .mask_mod = "(i + 2 * j) % 4 != 3",
                   .captures = {{.name = "t", .axes = 2, .shape = {2, 7}}},
                   .numbers = {"x"}},
     .no_linear = true},
    {.name = "one token",
     .layer = {.residual = 1, .use_bias = 1, .use_bias_o = 1, .width = 1},
     .attention = {.length = 1}},
    {.name = "width 1, normalised after",
     .layer = {.width = 1, .residual = 1, .use_bias = 1, .use_bias_o = 1, .norm = CLMGK_NORM_POST}},
    {.name = "width 1, normalised before, cross",
     .layer = {.width = 1, .cross = 1, .width_k = 23, .residual = 1, .use_bias = 1, .norm = CLMGK_NORM_PRE},
     .attention = {.length_k = 41}},
    {.name = "keys and values of inputs of their own",
     .layer = {.cross = 1, .cross_v = 1, .width_k = 23, .width_v = 31, .use_bias = 1, .residual = 1},
     .attention = {.length_k = 41}},
    {.name = "keys and values of inputs of their own, packed weights, query and key normalisation",
     .layer = {.cross = 1, .cross_v = 1, .packed_weights = 1, .use_bias = 1, .qk_norm = 1, .norm = CLMGK_NORM_PRE},
     .attention = {.length_k = 3}},
};

static bool is_linear(clmgk_variant variant)
{
    return (clmgk_variant_traits(variant) & CLMGK_TRAIT_LINEAR) != 0;
}

static tl_problem make(clmgk_variant variant, clmgk_dtype dtype, const tl_case *set, uint64_t seed)
{
    const uint32_t traits = clmgk_variant_traits(variant);
    const clmgk_attention_desc small = th_small_desc(variant, 19, 19);
    clmgk_attention_desc a = set->attention;
    clmgk_layer_desc d = set->layer;
    a.variant = variant;
    a.dtype = dtype;
    a.batch = a.batch > 0 ? a.batch : 3;
    a.heads = a.heads > 0 ? a.heads : small.heads;
    a.components = small.components;
    a.length = a.length > 0 ? a.length : small.length;
    a.head_size = a.head_size > 0 ? a.head_size : small.head_size;
    a.value_size = small.value_size;
    a.prior_shape = (traits & CLMGK_TRAIT_PRIOR) != 0 ? CLMGK_PRIOR_HM : CLMGK_PRIOR_UNIFORM;
    d.attention = &a;
    d.width = d.width > 0 ? d.width : 37;
    if (d.cache_capacity == 0) {
        a.gradients = th_all_gradients(&a) & ~(uint32_t)(CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V);
        d.gradients = tl_all_gradients(&d);
    }
    return tl_make(&d, seed);
}

static void expect(th_session *session, clmgk_variant variant, clmgk_dtype dtype, size_t set)
{
    char name[160];
    snprintf(name, sizeof(name), "%s %s, %s", clmgk_variant_name(variant), clmgk_dtype_name(dtype), sets[set].name);
    TL_PROBLEM problem = make(variant, dtype, &sets[set], 100 * (uint64_t)variant + set);
    if (is_linear(variant)) /* denominators away from 0 */
        for (size_t n = 0; problem.attention.array[TH_MIX].used && n < problem.attention.array[TH_MIX].count; n++)
            problem.attention.array[TH_MIX].values[n] = 0.5 + fabs(problem.attention.array[TH_MIX].values[n]);
    tl_expect(session, &problem, name);
}

/* ---- variants, options, types ------------------------------------------------------------------------------------ */

/* In full all variants, else one of each kind: the layer hardly distinguishes them, and each needs programs. */
TH_TEST(every_variant)
{
    for (clmgk_variant variant = 0; clmgk_variant_name(variant); variant++)
        if (th_takes(session, variant, 8))
            expect(session, variant, CLMGK_DTYPE_F32, 1 + variant % 4);
}

TH_TEST(every_option)
{
    enum { OF_MGK = 2, OF_LINEAR = 4 }; /* sets that take no further programs of theirs */
    for (size_t set = 0; set < TH_COUNT(sets); set++) {
        expect(session, CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, set);
        if (set == OF_MGK || session->full)
            expect(session, CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, set);
        if (set == OF_LINEAR || (session->full && !sets[set].no_linear))
            expect(session, CLMGK_VARIANT_LINEAR, CLMGK_DTYPE_F32, set);
    }
}

TH_TEST(storage_types)
{
    for (size_t dtype = 1; dtype < TH_COUNT(th_dtypes); dtype++)
        for (size_t set = 3; set <= 6; set++)
            expect(session, CLMGK_VARIANT_SOFTMAX, th_dtypes[dtype], set);
}

TH_TEST(states)
{
    static const tl_case set = {.layer = {.residual = 1,
                                          .norm = CLMGK_NORM_PRE,
                                          .rotary = CLMGK_ROTARY_HALVES,
                                          .rotary_size = 16,
                                          .use_positions = 1},
                                .attention = {.use_state = 1, .use_new_state = 1, .causal = 1}};
    for (int32_t unnormalised = 0; unnormalised < 2; unnormalised++) { /* one program */
        tl_case own = set;
        own.attention.unnormalised = unnormalised;
        TL_PROBLEM problem = make(CLMGK_VARIANT_LINEAR, CLMGK_DTYPE_F32, &own, 11);
        tl_expect(session, &problem, unnormalised ? "states, unnormalised" : "states");
    }
}

/* With the programs of test_admixture_backward. */
TH_TEST(hidden_layer_of_mixed_heads)
{
    static const tl_case set = {.layer = {.use_bias = 1, .residual = 1, .norm = CLMGK_NORM_PRE},
                                .attention = {.mix_hidden = 5, .use_mix_hidden_offset = 1}};
    TL_PROBLEM problem = make(CLMGK_VARIANT_GFISH, CLMGK_DTYPE_F32, &set, 16);
    assert_true((problem.attention.desc.gradients & CLMGK_GRADIENT_MIX_HIDDEN_OFFSET) != 0);
    tl_expect(session, &problem, "hidden layer of mixed heads");
}

TH_TEST(heads_mixed_after_the_softmax)
{
    static const tl_case set = {.layer = {.use_bias = 1, .residual = 1, .norm = CLMGK_NORM_PRE},
                                .attention = {.mix_after_heads = 3, .dropout = 0.3}};
    TL_PROBLEM problem = make(CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, &set, 17);
    assert_true((problem.attention.desc.gradients & CLMGK_GRADIENT_MIX_AFTER) != 0);
    tl_expect(session, &problem, "heads mixed after the softmax");
}

/* Nothing to see: O is 0, its biases are not. */
TH_TEST(no_keys)
{
    static const tl_case set = {
        .layer = {.cross = 1, .use_bias = 1, .use_bias_o = 1, .residual = 1, .norm = CLMGK_NORM_POST},
        .attention = {.length_k = CLMGK_NO_KEYS}};
    TL_PROBLEM problem = make(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, &set, 12);
    tl_expect(session, &problem, "no keys");
}

/* Nothing to do: gradients of weights are 0. */
TH_TEST(no_queries)
{
    clmgk_attention_desc a = th_small_desc(CLMGK_VARIANT_SOFTMAX, 0, 5);
    clmgk_layer_desc d = {.width = 37, .cross = 1, .use_bias = 1, .norm = CLMGK_NORM_PRE, .attention = &a};
    d.gradients = tl_all_gradients(&d);
    TL_PROBLEM problem = tl_make(&d, 13);
    tl_expect(session, &problem, "no queries");
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

enum { MASKED = 12 }; /* the first rows of every sequence: one large negative bias masks all of a row's keys */

static void set_masks_of_rows(tl_problem *problem, const double values[4])
{
    const clmgk_attention_desc *const a = &problem->attention.desc;
    for (int64_t i = 0; i < MASKED; i++)
        for (int64_t j = 0; j < a->length_k; j++)
            th_set(&problem->attention, TH_BIAS, 0, 0, 0, i, j, values[i % 4]);
}

/* Gives the masked rows no gradient, as does a loss that skips padding. */
static void ignore_masked_rows(tl_problem *problem)
{
    const int64_t sequence = problem->attention.desc.length * problem->desc.width;
    double *const gradient = problem->array[CLMGK_LAYER_ARRAY_GRAD_OUT].values;
    for (int64_t b = 0; b < problem->attention.desc.batch; b++)
        memset(gradient + b * sequence, 0, (size_t)(MASKED * problem->desc.width) * sizeof(double));
}

/* The masks that most code uses. The float sum of a score and such a mask holds nothing of the score. */
static const double masks[4] = {-1e9, -1e10, -1e30, -(double)FLT_MAX};
/* Smaller masks cancel: outputs and gradients are those of a layer without them, within that layer's bound. */
static const double small_masks[4] = {-1e4, -1e6, -1e7, -6e7};
static const double no_masks[4] = {0};

/* The gradients of masked rows need L in two parts. The descriptor does not ask for them, so the layer must do so
 * itself; the reference's bound takes it for granted. */
static void expect_masked(th_session *session, tl_problem *problem, bool small, const char *name)
{
    TL_ANSWER answer;
    clmgk_layer *const layer = tl_layer(session, problem);
    set_masks_of_rows(problem, small ? no_masks : masks);
    TL_DEVICE rounded = tl_upload(session, problem, layer); /* the values become what the device holds */
    clmgk_ref_layer reference = tl_reference(problem);
    reference.attention.desc.use_lse_low = 1;
    assert_true(clmgk_ref_layer_solve(&reference, true, &answer));
    set_masks_of_rows(problem, small ? small_masks : masks);
    tl_run_with(session, problem, layer);
    tl_check(session, problem, &answer, name);
}

TH_TEST(rows_masked_by_a_finite_bias)
{
    static const tl_case set = {.layer = {.use_bias = 1},
                                .attention = {.use_bias = 1, .bias_heads = 1, .bias_batch = 1}};
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_GAUSSIAN, CLMGK_VARIANT_HARD_FISH};
    for (size_t n = 0; n < 4 * TH_COUNT(variants); n++)
        for (size_t engine = 0; engine < (n < 4 ? session->engines : 1); engine++) {
            const bool ignored = n % 2 == 0, small = n / 2 % 2 == 1;
            if (!session->full && n >= 4 && ignored == small)
                continue;
            char name[120];
            snprintf(name, sizeof(name), "%s, engine %zu, %s masks, masked rows %s a gradient",
                     clmgk_variant_name(variants[n / 4]), engine, small ? "small" : "large",
                     ignored ? "without" : "with");
            TL_PROBLEM problem = make(variants[n / 4], CLMGK_DTYPE_F32, &set, 21 + n);
            problem.engine = engine;
            if (ignored)
                ignore_masked_rows(&problem);
            expect_masked(session, &problem, small, name);
        }
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Each alone is what it is among all. */
TH_TEST(single_gradients)
{
    static const size_t some[] = {2, 4, 6, 14};
    for (size_t n = 0; n < TH_COUNT(some); n++) {
        TL_PROBLEM all = make(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, &sets[some[n]], 14);
        const uint32_t set = all.desc.gradients;
        for (uint32_t bit = 1; bit != 0 && bit <= set; bit <<= 1U) {
            if ((set & bit) == 0)
                continue;
            clmgk_layer_desc desc = tl_desc(&all);
            clmgk_attention_desc attention = all.attention.desc;
            attention.gradients = 0;
            desc.attention = &attention;
            desc.gradients = bit;
            char name[160];
            snprintf(name, sizeof(name), "%s, gradient %u alone", sets[some[n]].name, (unsigned)bit);
            TL_PROBLEM one = tl_make(&desc, 14);
            tl_expect(session, &one, name);
        }
    }
}

/* Gradients are added to what is there. */
TH_TEST(accumulated_gradients)
{
    static const size_t some[] = {2, 5, 6, 14, 15};
    for (size_t n = 0; n < TH_COUNT(some); n++) {
        TL_PROBLEM problem = make(CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, &sets[some[n]], 15);
        problem.desc.accumulate = problem.desc.gradients;
        problem.attention.accumulate = problem.attention.desc.gradients;
        tl_expect(session, &problem, "accumulated");
    }
}

/* dx where dout was; two runs give the same bits. */
TH_TEST(gradient_in_place)
{
    TL_PROBLEM problem = make(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, &sets[1], 16);
    clmgk_layer *const layer = tl_layer(session, &problem);
    const size_t count = problem.array[CLMGK_LAYER_ARRAY_X].count;
    double *const expected = malloc(count * sizeof(double));
    assert_non_null(expected);
    tl_run(session, &problem);
    memcpy(expected, problem.array[CLMGK_LAYER_ARRAY_GRAD_X].values, count * sizeof(double));

    TL_DEVICE device = tl_upload(session, &problem, layer);
    device.args[TH_BACKWARD].grad_x = device.args[TH_BACKWARD].grad_out;
    tl_enqueue(layer, session->queue, &device, TH_FORWARD);
    tl_enqueue(layer, session->queue, &device, TH_BACKWARD);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    th_array *const given = &problem.array[CLMGK_LAYER_ARRAY_GRAD_OUT];
    unsigned char *const bytes = th_read_back(session, &device.buffer[CLMGK_LAYER_ARRAY_GRAD_OUT]);
    for (size_t n = 0; n < count; n++) {
        th_get(given, bytes, n);
        assert_true(given->values[n] == expected[n]);
    }
    free(bytes);
    free(expected);
}

/* ---- caches ------------------------------------------------------------------------------------------------------ */

enum { CAPACITY = 21 };

/* In pages of that size, if it is not 0. */
static tl_problem make_paged(clmgk_variant variant, clmgk_dtype dtype, int64_t length, int64_t page_size)
{
    const int64_t table_pages = page_size > 0 ? (CAPACITY + page_size - 1) / page_size : 0;
    const tl_case set = {.layer = {.rotary = CLMGK_ROTARY_HALVES,
                                   .rotary_size = 16,
                                   .qk_norm = 1,
                                   .use_bias = 1,
                                   .residual = 1,
                                   .norm = CLMGK_NORM_PRE,
                                   .cache_capacity = CAPACITY},
                         .attention = {.batch = 4,
                                       .length = length,
                                       .use_lengths = 1,
                                       .causal = 1,
                                       .alignment = CLMGK_ALIGN_LENGTHS,
                                       .page_size = page_size,
                                       .pages = 7 * table_pages,
                                       .table_pages = table_pages}};
    return make(variant, dtype, &set, 17);
}

static tl_problem make_cached(clmgk_variant variant, clmgk_dtype dtype, int64_t length)
{
    return make_paged(variant, dtype, length, 0);
}

/* New tokens at the beginning of the cache, in the middle, at the end, and beyond the end, where they are not stored.
 */
TH_TEST(caches)
{
    static const struct {
        clmgk_variant variant;
        clmgk_dtype dtype;
    } kinds[] = {{CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32},
                 {CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32},
                 {CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16}};
    for (size_t n = 0; n < TH_COUNT(kinds); n++)
        for (int64_t length = 1; length <= 6; length += 5) {
            const double lengths[] = {(double)length, 13.0, CAPACITY, CAPACITY + 2.0};
            TL_PROBLEM problem = make_cached(kinds[n].variant, kinds[n].dtype, length);
            memcpy(problem.attention.array[TH_LENGTHS].values, lengths, sizeof(lengths));
            char name[80];
            snprintf(name, sizeof(name), "cache, %s, %d tokens", clmgk_variant_name(kinds[n].variant), (int)length);
            tl_expect(session, &problem, name);
        }
}

/* Row n of a sequence's cache in a pool of pages: its elements for (head, component) number `head` of `heads`. */
static double *row_in_pages(const tl_problem *paged, clmgk_layer_array array, int64_t b, int64_t n, int64_t head,
                            int64_t heads, int64_t size)
{
    const clmgk_attention_desc *const a = &paged->attention.desc;
    const double page = paged->attention.array[TH_PAGE_TABLE].values[b * a->table_pages + n / a->page_size];
    return paged->array[array].values + (((int64_t)page * heads + head) * a->page_size + n % a->page_size) * size;
}

/* Copies the caches into the pages, or compares them. */
static void visit_caches(const tl_problem *plain, tl_problem *paged, bool compare)
{
    for (int which = 0; which < 2; which++) {
        const clmgk_layer_array array = which == 0 ? CLMGK_LAYER_ARRAY_CACHE_K : CLMGK_LAYER_ARRAY_CACHE_V;
        const clmgk_attention_desc *const a = &plain->attention.desc;
        const int64_t size = which == 0 ? a->head_size : a->value_size;
        const int64_t heads = (int64_t)plain->array[array].count / (a->batch * CAPACITY * size);
        const double *row = plain->array[array].values;
        for (int64_t b = 0; b < a->batch; b++)
            for (int64_t head = 0; head < heads; head++)
                for (int64_t n = 0; n < CAPACITY; n++, row += size) {
                    double *const place = row_in_pages(paged, array, b, n, head, heads, size);
                    if (compare)
                        assert_memory_equal(place, row, (size_t)size * sizeof(double));
                    else
                        memcpy(place, row, (size_t)size * sizeof(double));
                }
    }
}

/* A cache in pages holds the numbers of one without, and gives its outputs; pages of no sequence stay as they are. */
TH_TEST(pages_of_caches)
{
    for (size_t n = 0; n < 4; n++) {
        const clmgk_variant variant = n < 2 ? CLMGK_VARIANT_SOFTMAX : CLMGK_VARIANT_MGK;
        const int64_t length = n % 2 == 0 ? 1 : 6;
        const double lengths[] = {(double)length, 13.0, CAPACITY, CAPACITY + 2.0};
        TL_PROBLEM plain = make_cached(variant, CLMGK_DTYPE_F32, length);
        TL_PROBLEM paged = make_paged(variant, CLMGK_DTYPE_F32, length, 4);
        for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++)
            if (plain.array[array].count == paged.array[array].count)
                memcpy(paged.array[array].values, plain.array[array].values, plain.array[array].count * sizeof(double));
        th_copy_inputs(&paged.attention, &plain.attention);
        memcpy(plain.attention.array[TH_LENGTHS].values, lengths, sizeof(lengths));
        memcpy(paged.attention.array[TH_LENGTHS].values, lengths, sizeof(lengths));
        const th_array *const table = &paged.attention.array[TH_PAGE_TABLE];
        for (size_t i = 0; i < table->count; i++) /* each entry a page of its own */
            table->values[i] = (double)((5 * i + 3) % (size_t)paged.attention.desc.pages);
        visit_caches(&plain, &paged, false);
        const th_array *const pool = &paged.array[CLMGK_LAYER_ARRAY_CACHE_K];
        const size_t used = plain.array[CLMGK_LAYER_ARRAY_CACHE_K].count;
        tl_run(session, &plain);
        tl_run(session, &paged);
        visit_caches(&plain, &paged, true);
        assert_true(pool->count > used);
        const th_array *const out = &plain.array[CLMGK_LAYER_ARRAY_OUT];
        for (size_t i = 0; i < out->count; i++) {
            const double given = paged.array[CLMGK_LAYER_ARRAY_OUT].values[i];
            if (!(fabs(given - out->values[i]) <= 1e-5 * (1.0 + fabs(out->values[i]))))
                fail_msg("problem %zu, element %zu: %g, without pages %g", n, i, given, out->values[i]);
        }
    }
}

/* ---- types of caches --------------------------------------------------------------------------------------------- */

/* In one page for each sequence, or without pages. */
static tl_problem make_typed(clmgk_variant variant, int64_t length, clmgk_storage k, clmgk_storage v, bool paged)
{
    const bool scales[] = {k >= CLMGK_STORAGE_E4M3 && k <= CLMGK_STORAGE_INT8,
                           v >= CLMGK_STORAGE_E4M3 && v <= CLMGK_STORAGE_INT8};
    const clmgk_attention_desc a = {.variant = variant,
                                    .batch = 4,
                                    .heads = 2,
                                    .kv_heads = 2,
                                    .components = variant == CLMGK_VARIANT_MGK ? 2 : 0,
                                    .length = length,
                                    .head_size = 32,
                                    .value_size = 32,
                                    .dtype_k = k,
                                    .dtype_v = v,
                                    .use_scale_k = scales[0],
                                    .use_scale_v = scales[1],
                                    .use_lengths = 1,
                                    .causal = 1,
                                    .alignment = CLMGK_ALIGN_LENGTHS,
                                    .scale_v = {.strided = v != CLMGK_STORAGE_INT8, .head = 1},
                                    .page_size = paged ? CAPACITY : 0,
                                    .pages = paged ? 4 : 0,
                                    .table_pages = paged ? 1 : 0};
    const clmgk_layer_desc d = {.attention = &a,
                                .width = 37,
                                .rotary = CLMGK_ROTARY_HALVES,
                                .rotary_size = 16,
                                .use_bias = 1,
                                .residual = 1,
                                .cache_capacity = CAPACITY};
    return tl_make(&d, 23);
}

/* Largest error of a number of a row whose largest is `most`, near x. */
static double rounding_of(clmgk_dtype dtype, double x, double most, double scale)
{
    const clmgk_dtype_info info = clmgk_dtype_get_info(dtype);
    const double normal = info.least_normal * scale, least = fabs(x) > normal ? fabs(x) : normal;
    return dtype == CLMGK_DTYPE_Q4_0                                ? most / 7.9
           : dtype == CLMGK_DTYPE_INT8 || dtype >= CLMGK_DTYPE_Q8_0 ? most / 220.0
                                                                    : ldexp(least, -1 - info.significand_bits);
}

/* The cache holds the numbers of a cache in f32, rounded; each scale is of one row, or of all rows of a head. */
static void expect_cache(const tl_problem *problem, clmgk_layer_array array, const double *exact)
{
    const th_array *const cache = &problem->array[array];
    const bool keys = array == CLMGK_LAYER_ARRAY_CACHE_K;
    const th_array *const scales = &problem->attention.array[keys ? TH_SCALE_K : TH_SCALE_V];
    const size_t size = (size_t)(keys ? problem->attention.desc.head_size : problem->attention.desc.value_size);
    for (size_t n = 0; n < cache->count; n++) {
        const double *const row = exact + n / size * size;
        const double scale = scales->used ? scales->values[n / size] : 1.0, given = cache->values[n] * scale;
        double most = 0.0;
        for (size_t e = 0; e < size; e++)
            most = fabs(row[e]) > most ? fabs(row[e]) : most;
        if (!(fabs(given - exact[n]) <= 1.01 * rounding_of(cache->dtype, exact[n], most, scale) + 1e-5))
            fail_msg("%s, element %zu: %g, expected %g", clmgk_layer_array_name(array), n, given, exact[n]);
    }
}

/* The reference's problem, over the numbers that the caches stand for, `dense`, without pages and scales. */
static clmgk_ref_layer reference_of(tl_problem *problem, double *dense[2])
{
    const clmgk_attention_desc desc = problem->attention.desc;
    clmgk_attention_desc *const plain = &problem->attention.desc;
    plain->page_size = plain->pages = plain->table_pages = 0;
    plain->use_scale_k = plain->use_scale_v = 0;
    clmgk_ref_layer reference = tl_reference(problem);
    problem->attention.desc = desc;
    for (size_t which = 0; which < 2; which++) {
        const th_array *const cache = &problem->array[CLMGK_LAYER_ARRAY_CACHE_K + which];
        const th_array *const scales = &problem->attention.array[TH_SCALE_K + which];
        const size_t size = (size_t)(which == 0 ? desc.head_size : desc.value_size);
        for (size_t n = 0; n < cache->count; n++)
            dense[which][n] = cache->values[n] * (scales->used ? scales->values[n / size] : 1.0);
    }
    reference.cache_k = dense[0];
    reference.cache_v = dense[1];
    return reference;
}

/* The cache's numbers against those of a layer whose cache is in f32, and the output against the reference's with the
 * numbers that are stored. */
static void expect_typed(th_session *session, tl_problem *problem, const char *name)
{
    static const double lengths[] = {6.0, 13.0, CAPACITY, CAPACITY + 2.0};
    th_array *const inner = problem->attention.array;
    double *dense[2];
    TL_ANSWER unrounded, answer;
    memcpy(inner[TH_LENGTHS].values, lengths, sizeof(lengths));
    for (size_t n = 0; n < 4 && inner[TH_PAGE_TABLE].used; n++)
        inner[TH_PAGE_TABLE].values[n] = (double)n;
    clmgk_layer *const layer = tl_layer(session, problem);
    for (size_t which = 0; which < 2; which++) {
        if (inner[TH_SCALE_K + which].used)
            th_fill(&problem->attention, TH_SCALE_K + which, 0.0625);
        dense[which] = malloc(problem->array[CLMGK_LAYER_ARRAY_CACHE_K + which].count * sizeof(double));
        assert_non_null(dense[which]);
    }
    TL_DEVICE device = tl_upload(session, problem, layer);
    clmgk_ref_layer reference = reference_of(problem, dense);
    assert_true(clmgk_ref_layer_solve(&reference, false, &unrounded));
    for (size_t which = 0; which < 2; which++) /* some are written */
        if (inner[TH_SCALE_K + which].used)
            th_mark_output(&inner[TH_SCALE_K + which], &device.attention[TH_FORWARD].buffer[TH_SCALE_K + which]);
    tl_enqueue(layer, session->queue, &device, TH_FORWARD);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    tl_download(session, problem, &device, false);
    for (size_t which = 0; which < 2; which++) {
        th_array *const scales = &inner[TH_SCALE_K + which];
        unsigned char *const bytes =
            scales->used ? th_read_back(session, &device.attention[TH_FORWARD].buffer[TH_SCALE_K + which]) : NULL;
        for (size_t n = 0; scales->used && n < scales->count; n++)
            th_get(scales, bytes, n);
        free(bytes);
        expect_cache(problem, CLMGK_LAYER_ARRAY_CACHE_K + which, unrounded.outputs.exact[1 + which]);
    }
    reference = reference_of(problem, dense);
    reference.cache_is_full = true;
    assert_true(clmgk_ref_layer_solve(&reference, false, &answer));
    for (size_t which = 1; which < CLMGK_REF_LAYER_OUTPUTS; which++) /* checked above */
        memcpy(answer.outputs.exact[which], problem->array[CLMGK_LAYER_ARRAY_CACHE_K + which - 1].values,
               (size_t)answer.outputs.count[which] * sizeof(double));
    tl_check(session, problem, &answer, name);
    free(dense[0]);
    free(dense[1]);
}

/* Integers with scales that the layer computes, floats with given ones, in pages. */
TH_TEST(types_of_caches)
{
    TL_PROBLEM problem = make_typed(CLMGK_VARIANT_SOFTMAX, 1, CLMGK_STORAGE_INT8, CLMGK_STORAGE_E5M2, true);
    expect_typed(session, &problem, "int8, e5m2");
}

TH_FULL_TEST(all_types_of_caches)
{
    for (size_t n = 0; n < 16; n++) {
        const clmgk_variant variant = n % 4 == 3 ? CLMGK_VARIANT_MGK : CLMGK_VARIANT_SOFTMAX;
        const clmgk_storage k = (clmgk_storage)(CLMGK_STORAGE_F32 + n % 8);
        const clmgk_storage v = (clmgk_storage)(CLMGK_STORAGE_F32 + (n * 3 + 5) % 8);
        TL_PROBLEM problem = make_typed(variant, n % 2 == 0 ? 6 : 1, k, v, n / 8 == 1);
        char name[40];
        snprintf(name, sizeof(name), "types %d and %d", (int)k, (int)v);
        expect_typed(session, &problem, name);
    }
}

/* Masks, and lengths of four sequences whose chunks overflow their caches. */
typedef struct overflow {
    bool causal;
    int64_t window; /* its left side; 0: none */
    double lengths[4];
} overflow;

static const overflow overflows[] = {
    {true, 0, {CAPACITY - 1, CAPACITY + 1, CAPACITY + 3, CAPACITY + 5}},
    {true, 0, {CAPACITY + 6, CAPACITY + 7, INT32_MAX, INT32_MIN}},
    {true, 4, {CAPACITY + 2, CAPACITY + 5, CAPACITY + 9, 1e9}},
    {false, 0, {CAPACITY, CAPACITY + 1, CAPACITY + 4, CAPACITY + 100}},
    {false, 7, {CAPACITY + 1, CAPACITY + 4, CAPACITY + 6, -1}},
};

static void set_masks(th_problem *attention, const overflow *o)
{
    attention->desc.causal = o->causal;
    attention->desc.use_window = o->window > 0;
    attention->desc.window_left = o->window;
    attention->desc.window_right = o->window > 0 ? 2 : 0;
    memcpy(attention->array[TH_LENGTHS].values, o->lengths, sizeof(o->lengths));
}

/* If a chunk's last tokens do not fit the cache, the others are stored, and every token has its own position. Few rows
 * have kernels of their own. */
TH_TEST(chunks_overflow_caches)
{
    static const int64_t tokens[] = {6, 3};
    for (size_t n = 0; n < session->engines * TH_COUNT(tokens) * TH_COUNT(overflows); n++) {
        const size_t which = n % TH_COUNT(overflows);
        const int64_t length = tokens[n / TH_COUNT(overflows) % TH_COUNT(tokens)];
        TL_PROBLEM problem = make_cached(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, length);
        char name[80];
        problem.engine = n / TH_COUNT(overflows) / TH_COUNT(tokens);
        set_masks(&problem.attention, &overflows[which]);
        snprintf(name, sizeof(name), "engine %zu, %d tokens, overflow %zu", problem.engine, (int)length, which);
        tl_expect(session, &problem, name);
    }
}

/* Copies the rows of a smaller cache to a larger one, for all heads of size `size`. */
static void copy_rows(const th_array *from, int64_t rows, const th_array *to, int64_t more, int64_t size)
{
    for (size_t n = 0; n < from->count; n++) {
        const size_t head = n / (size_t)(rows * size), rest = n % (size_t)(rows * size);
        to->values[head * (size_t)(more * size) + rest] = from->values[n];
    }
}

/* The stored tokens of a chunk equal those in a larger cache. */
TH_TEST(stored_tokens_do_not_see_the_overflow)
{
    enum { LENGTH = 6, LARGER = CAPACITY + LENGTH };
    const overflow *const o = &overflows[0];
    TL_PROBLEM small = make_cached(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, LENGTH);
    clmgk_layer_desc desc = tl_desc(&small);
    clmgk_attention_desc attention = small.attention.desc;
    attention.length_k = LARGER;
    desc.cache_capacity = LARGER;
    desc.attention = &attention;
    TL_PROBLEM large = tl_make(&desc, 17);
    set_masks(&small.attention, o);
    set_masks(&large.attention, o);
    const int64_t size = attention.head_size, value_size = attention.value_size;
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++)
        if (small.array[array].count == large.array[array].count)
            memcpy(large.array[array].values, small.array[array].values, small.array[array].count * sizeof(double));
    copy_rows(&small.array[CLMGK_LAYER_ARRAY_CACHE_K], CAPACITY, &large.array[CLMGK_LAYER_ARRAY_CACHE_K], LARGER, size);
    copy_rows(&small.array[CLMGK_LAYER_ARRAY_CACHE_V], CAPACITY, &large.array[CLMGK_LAYER_ARRAY_CACHE_V], LARGER,
              value_size);
    TL_ANSWER answer;
    const clmgk_ref_layer reference = tl_reference(&large);
    assert_true(clmgk_ref_layer_solve(&reference, false, &answer));
    tl_run(session, &small);

    const double *const exact = answer.outputs.exact[CLMGK_REF_LAYER_OUT];
    double *const out = small.array[CLMGK_LAYER_ARRAY_OUT].values;
    size_t stored = 0;
    for (size_t n = 0; n < small.array[CLMGK_LAYER_ARRAY_OUT].count; n++) {
        const int64_t row = (int64_t)n / small.desc.width;
        if (o->lengths[row / LENGTH] - LENGTH + (double)(row % LENGTH) < CAPACITY)
            stored++;
        else
            out[n] = exact[n];
    }
    assert_int_equal(stored, (6 + 5 + 3 + 1) * small.desc.width);
    th_message message;
    clmgk_ref_check_array(&answer.outputs, CLMGK_REF_LAYER_OUT, out, message.text, sizeof(message.text));
    assert_string_equal(message.text, "");
}

/* Negative offsets are clamped, also for positions, so that queries and keys of a sequence begin together. */
TH_TEST(positions_follow_clamped_offsets)
{
    enum { PACKED = 7 }; /* with offsets of queries and of keys */
    TL_PROBLEM problem = make(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, &sets[PACKED], 20);
    problem.attention.array[TH_OFFSETS].values[0] = -3.0;
    problem.attention.array[TH_OFFSETS_K].values[0] = -5.0;
    tl_expect(session, &problem, "clamped offsets");
}

/* A layer over a cache, call after call, computes the rows of the causal layer over all tokens. */
TH_TEST(generation)
{
    TL_PROBLEM step = make_cached(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1);
    const int64_t batch = step.attention.desc.batch, width = step.desc.width;
    clmgk_attention_desc a = step.attention.desc;
    a.use_lengths = 0;
    a.alignment = CLMGK_ALIGN_BOTTOM_RIGHT;
    a.length = a.length_k = CAPACITY;
    clmgk_layer_desc d = tl_desc(&step);
    d.cache_capacity = 0;
    d.attention = &a;
    TL_PROBLEM whole = tl_make(&d, 17); /* the same weights */
    TL_ANSWER answer;
    clmgk_layer *const layer = tl_layer(session, &step);
    for (clmgk_layer_array array = CLMGK_LAYER_ARRAY_WEIGHT_QKV; array <= CLMGK_LAYER_ARRAY_NORM_BIAS; array++)
        if (whole.array[array].used)
            memcpy(whole.array[array].values, step.array[array].values, step.array[array].count * sizeof(double));
    const clmgk_ref_layer reference = tl_reference(&whole);
    assert_true(clmgk_ref_layer_solve(&reference, false, &answer));
    double *const out = calloc((size_t)(batch * CAPACITY * width), sizeof(double));
    assert_non_null(out);
    for (int64_t n = 0; n < CAPACITY; n++) {
        for (int64_t b = 0; b < batch; b++)
            memcpy(step.array[CLMGK_LAYER_ARRAY_X].values + b * width,
                   whole.array[CLMGK_LAYER_ARRAY_X].values + (b * CAPACITY + n) * width,
                   (size_t)width * sizeof(double));
        th_fill(&step.attention, TH_LENGTHS, (double)(n + 1));
        TL_DEVICE device = tl_upload(session, &step, layer);
        tl_enqueue(layer, session->queue, &device, TH_FORWARD);
        tl_download(session, &step, &device, false);
        for (int64_t b = 0; b < batch; b++)
            memcpy(out + (b * CAPACITY + n) * width, step.array[CLMGK_LAYER_ARRAY_OUT].values + b * width,
                   (size_t)width * sizeof(double));
    }
    th_message message;
    clmgk_ref_check_array(&answer.outputs, CLMGK_REF_LAYER_OUT, out, message.text, sizeof(message.text));
    assert_string_equal(message.text, "");
    free(out);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* A weight and its gradient. */
typedef struct weight {
    clmgk_layer_array array, gradient;
} weight;

static const weight weights[] = {
#define WEIGHT(name, ...) {CLMGK_LAYER_ARRAY_##name, CLMGK_LAYER_ARRAY_GRAD_##name},
    CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, WEIGHT)
#undef WEIGHT
};

enum { STEPS = 200, LEARNT = 144 };

/* Adam's step (Kingma and Ba 2015); the moments of its numbers lie in m and v. */
static void learn(th_array *x, const th_array *gradient, int step, double *m, double *v)
{
    for (size_t n = 0; n < x->count; n++) {
        const double g = gradient->values[n];
        m[n] += 0.1 * (g - m[n]);
        v[n] += 0.01 * (g * g - v[n]);
        x->values[n] -= 0.01 * m[n] / (1.0 - pow(0.9, step)) / (sqrt(v[n] / (1.0 - pow(0.99, step))) + 1e-8);
    }
}

static void learn_all(tl_problem *problem, int step, double *moments[TH_COUNT(weights)])
{
    for (size_t n = 0; n < TH_COUNT(weights); n++) {
        th_array *const x = &problem->array[weights[n].array];
        if (weights[n].array <= CLMGK_LAYER_ARRAY_X2 || !x->used)
            continue;
        moments[n] = moments[n] ? moments[n] : calloc(2 * x->count, sizeof(double));
        assert_non_null(moments[n]);
        learn(x, &problem->array[weights[n].gradient], step, moments[n], moments[n] + x->count);
    }
}

/* The squared distance of the output to the target; its gradient becomes dout. */
static double loss_of(th_session *session, clmgk_layer *layer, tl_problem *problem, const double *target)
{
    double loss = 0.0;
    TL_DEVICE device = tl_upload(session, problem, layer);
    tl_enqueue(layer, session->queue, &device, TH_FORWARD);
    tl_download(session, problem, &device, false);
    for (size_t n = 0; n < LEARNT; n++) {
        const double error = problem->array[CLMGK_LAYER_ARRAY_OUT].values[n] - target[n];
        problem->array[CLMGK_LAYER_ARRAY_GRAD_OUT].values[n] = 2.0 * error;
        loss += error * error;
    }
    return loss;
}

/* All weights of a layer learn a few tokens by heart. */
TH_TEST(a_layer_learns)
{
    static const tl_case set = {
        .layer = {.use_bias = 1, .use_bias_o = 1, .residual = 1, .norm = CLMGK_NORM_PRE, .width = 24},
        .attention = {.batch = 1, .length = LEARNT / 24}};
    TL_PROBLEM problem = make(CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, &set, 18);
    clmgk_layer *const layer = tl_layer(session, &problem);
    double target[LEARNT], *moments[TH_COUNT(weights)] = {0};
    double first = 0.0, loss = 0.0;
    uint64_t state = 19;
    assert_int_equal(problem.array[CLMGK_LAYER_ARRAY_OUT].count, LEARNT);
    for (size_t n = 0; n < LEARNT; n++)
        target[n] = th_normal(&state);
    for (int step = 1; step <= STEPS; step++) {
        loss = loss_of(session, layer, &problem, target);
        first = step == 1 ? loss : first;
        tl_run_with(session, &problem, layer);
        learn_all(&problem, step, moments);
    }
    for (size_t n = 0; n < TH_COUNT(weights); n++)
        free(moments[n]);
    print_message("loss %g to %g in %d steps\n", first, loss, (int)STEPS);
    assert_true(loss < 0.01 * first);
}
