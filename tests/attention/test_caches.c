/* SPDX-License-Identifier: Apache-2.0 */
/* Caches of keys and values: packed queries over one for each sequence, prefill and decoding mixed. */
#include "harness/harness.h"
#include "harness/made.h"

#define FUNCTION static inline
#include "attention/shares.clh"

#include <math.h>
#include <string.h>

/* Queries and keys of the sequences of a batch: prefill, decoding, a new part of a prompt, none of one or both. */
enum { SEQUENCES = 6, ROOM = 200 };
static const int64_t queries[SEQUENCES] = {1, 40, 0, 17, 3, 1}, keys[SEQUENCES] = {199, 40, 70, 0, 64, 1};

/* A problem of them; what is beyond the lengths is NaN. */
static th_problem mixed_problem(const th_session *session, clmgk_attention_desc desc, uint64_t seed)
{
    th_fit_type(session, &desc);
    desc.sequences = SEQUENCES;
    desc.use_lengths = 1;
    desc.length = 0;
    for (size_t t = 0; t < SEQUENCES; t++)
        desc.length += queries[t];
    desc.length_k = ROOM;
    th_problem problem = th_problem_make(&desc, seed);
    double offset = 0.0;
    for (size_t t = 0; t < SEQUENCES; t++) {
        offset += (double)queries[t];
        problem.array[TH_OFFSETS].values[t + 1] = offset;
        problem.array[TH_LENGTHS].values[t] = (double)keys[t];
        th_poison(&problem, TH_K, (int64_t)t, keys[t]);
        th_poison(&problem, TH_V, (int64_t)t, keys[t]);
    }
    return problem;
}

static clmgk_attention_desc desc_of(clmgk_variant variant, size_t n)
{
    clmgk_attention_desc desc = th_small_desc(variant, 1, 1);
    desc.causal = n % 2 == 0;
    desc.use_window = n % 3 == 1;
    desc.window_left = desc.use_window ? 33 : 0;
    desc.window_right = desc.use_window ? 5 : 0;
    desc.alignment = (clmgk_alignment)(n % 3);
    return desc;
}

TH_TEST(caches_of_packed_sequences)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_MGK, CLMGK_VARIANT_HARD_FISH};
    for (size_t n = 0; n < TH_COUNT(variants) * 6; n++) {
        TH_PROBLEM problem = mixed_problem(session, desc_of(variants[n / 6], n), n);
        th_expect(session, &problem);
    }
}

/* The keys of a sequence are cut into ranges by its own length. */
TH_TEST(caches_in_ranges)
{
    for (size_t n = 0; n < session->engines; n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 0);
        desc.use_sinks = 1; /* a range without keys has it */
        TH_PROBLEM problem = mixed_problem(session, desc, n);
        th_expect_with(session, &problem, session->engine[n],
                       session->engine[n] == CLMGK_ENGINE_LANE ? "splits=4,panels=1" : "splits=4");
    }
}

/* Bias and prior index a cache's own keys; the last query of every row's sequence sees the last key. */
TH_FULL_TEST(caches_with_terms_of_keys)
{
    for (size_t n = 0; n < 8; n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_MGK, n);
        desc.use_bias = 1;
        th_set_bias_axes(&desc, n);
        desc.use_alibi = desc.use_sinks = 1;
        desc.prior_shape = CLMGK_PRIOR_HMS;
        TH_PROBLEM problem = mixed_problem(session, desc, n);
        th_expect(session, &problem);
    }
}

/* Random lengths and heads, all variants. */
TH_FULL_TEST(random_caches)
{
    for (size_t n = 0; n < 120; n++) {
        uint64_t state = n;
        const bool mixed = n % 2 == 1;
        clmgk_attention_desc desc = desc_of(
            mixed ? th_admixtures[n / 2 % TH_COUNT(th_admixtures)] : th_variants[n / 2 % TH_COUNT(th_variants)], n);
        desc.sequences = th_pick(&state, 1, 9);
        desc.use_lengths = 1;
        th_fit_type(session, &desc);
        desc.length = th_pick(&state, 0, 200);
        desc.length_k = th_keys(th_pick(&state, 0, 300));
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect(session, &problem);
    }
}

/* ---- calls of one plan ------------------------------------------------------------------------------------------- */

/* Queries and keys of call number n: as above; a prompt among single tokens, and one sequence with nearly all keys; a
 * prompt alone. There are 62 queries in each. */
static void set_lengths(th_problem *problem, size_t n)
{
    double offset = 0.0;
    for (int64_t t = 0; t < SEQUENCES; t++) {
        const int64_t rows[] = {queries[t], t == 3 ? 57 : 1, t == 2 ? 62 : 0};
        const int64_t used[] = {keys[t], t == 4 ? ROOM : t == 3 ? 60 : t, t == 2 ? 62 : 150};
        offset += (double)rows[n];
        problem->array[TH_OFFSETS].values[t + 1] = offset;
        problem->array[TH_LENGTHS].values[t] = (double)used[n];
    }
}

/* Three calls with other lengths and, in pages, other tables. Nothing is compiled after the plan is made. */
static void expect_calls(th_session *session, const clmgk_attention_desc *desc, size_t engine)
{
    clmgk_plan *const plan = th_plan(session, desc, session->engine[engine], session->parameters[engine]);
    const size_t before = made;
    for (size_t n = 0; n < 3; n++) {
        TH_PROBLEM problem = th_problem_make(desc, n);
        set_lengths(&problem, n);
        if (desc->page_size > 0)
            th_poison_pages(&problem);
        for (int64_t t = 0; t < SEQUENCES && desc->page_size == 0; t++) {
            th_poison(&problem, TH_K, t, (int64_t)problem.array[TH_LENGTHS].values[t]);
            th_poison(&problem, TH_V, t, (int64_t)problem.array[TH_LENGTHS].values[t]);
        }
        TH_DEVICE device = th_upload(session, &problem, clmgk_plan_workspace_size(plan));
        th_enqueue(plan, session->queue, &device, 0, NULL, NULL);
        assert_int_equal(clFinish(session->queue), CL_SUCCESS);
        th_download(session, &problem, &device);
        TH_REF_ANSWER answer = th_solve(&problem);
        th_check(session, &problem, session->engine[engine], &answer);
    }
    assert_int_equal(made, before);
    clmgk_plan_release(plan);
}

TH_TEST(a_plan_serves_any_lengths)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 0);
    desc.sequences = SEQUENCES;
    desc.use_lengths = 1;
    desc.length = 62;
    desc.length_k = ROOM;
    clmgk_attention_desc paged = desc;
    paged.page_size = 16;
    paged.table_pages = (ROOM + 15) / 16;
    paged.pages = 20; /* sequences share them */
    for (size_t n = 0; n < session->engines; n++) {
        expect_calls(session, &desc, n);
        expect_calls(session, &paged, n);
    }
}

/* ---- ranges of keys ---------------------------------------------------------------------------------------------- */

/* No range is longer than an even share of all keys, or the least, or what a problem's ranges must be; and there are
 * hardly more ranges than wanted. */
static void expect_shares(const int *tiles, int problems, int wanted, int splits, int least)
{
    int64_t all = 0, ranges = 0;
    for (int t = 0; t < problems; t++)
        all += tiles[t];
    for (int t = 0; t < problems; t++) {
        const int share = tiles_of_range(tiles[t], all, wanted, splits, least), own = (tiles[t] + splits - 1) / splits;
        const int64_t even = all / wanted + 1, most = even > least ? even : least;
        assert_in_range(share, 1, most > own ? most : own);
        assert_true((tiles[t] + share - 1) / share <= splits);
        ranges += (tiles[t] + share - 1) / share;
    }
    assert_true(ranges <= wanted + problems);
}

TH_HOST_TEST(long_sequences_have_more_ranges)
{
    enum { MOST = 64 };
    int tiles[MOST];
    uint64_t state = 3;
    for (int t = 0; t < MOST; t++)
        tiles[t] = t == 5 ? 500 : 6; /* 8,000 keys among 100 */
    expect_shares(tiles, MOST, 16, 16, 1);
    assert_int_equal(tiles_of_range(500, 500 + 63 * 6, 16, 16, 1), (500 + 63 * 6) / 16 + 1);
    assert_int_equal(tiles_of_range(6, 500 + 63 * 6, 16, 16, 1), 6);
    for (int n = 0; n < 2000; n++) {
        const int problems = (int)th_pick(&state, 1, MOST);
        for (int t = 0; t < problems; t++)
            tiles[t] = (int)th_pick(&state, 0, 2000) >> (n + t) % 11;
        expect_shares(tiles, problems, (int)th_pick(&state, 1, 300), (int)th_pick(&state, 1, 64),
                      (int)th_pick(&state, 1, 9));
    }
}

TH_HOST_TEST(every_block_has_a_turn)
{
    static const unsigned int cases[][2] = {{5, 3}, {64, 39}, {1000, 617}, {4097, 2531}};
    bool had[4097];
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        memset(had, 0, sizeof(had));
        for (unsigned int turn = 0; turn < cases[n][0]; turn++) {
            const unsigned int block = spread_block(turn, cases[n][0], cases[n][1]);
            assert_true(block < cases[n][0] && !had[block]);
            had[block] = true;
        }
    }
}

TH_HOST_TEST(refused_caches)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 0);
    desc.sequences = 2;
    desc.length = 5;
    desc.length_k = 9;
    desc.use_lengths = 1;
    th_expect_ok(clmgk_attention_validate(&desc, NULL, &th_error));
    clmgk_attention_desc bad = desc;
    bad.use_offsets_k = 1;
    th_expect_refusal(clmgk_attention_validate(&bad, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "use_offsets_k", "1");
    bad = desc;
    bad.gradients = CLMGK_GRADIENT_Q;
    th_expect_error(clmgk_attention_validate(&bad, NULL, &th_error), CLMGK_ERROR_UNSUPPORTED, "gradients");
    bad = desc;
    bad.use_lengths_q = 1;
    th_expect_refusal(clmgk_attention_validate(&bad, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "use_lengths_q", "1");
    bad = th_small_desc(CLMGK_VARIANT_LINEAR, 5, 9);
    bad.sequences = 2;
    bad.use_lengths = 1;
    th_expect_refusal(clmgk_attention_validate(&bad, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "use_lengths", "1");
}
