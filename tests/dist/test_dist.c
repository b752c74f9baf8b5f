/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over several ranks of one process, each a thread with an OpenCL context of its own: results against the
 * reference, by every schedule, of tokens in several orders; orders of tokens; faults of one rank.
 */
#include "dist/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 61, MANY_TOKENS = 3824 };

/* ---- results ----------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc whole_desc(clmgk_variant variant)
{
    clmgk_attention_desc desc = th_small_desc(variant, TOKENS, TOKENS);
    desc.use_positions = desc.causal = desc.use_lse_low = desc.use_sinks = 1;
    desc.dropout = 0.125;
    desc.gradients = th_all_gradients(&desc);
    return desc;
}

/* Of a token in the order of the whole: within its sequence. */
static double position_of(const th_problem *problem, int64_t token)
{
    const double *const offsets = problem->array[TH_OFFSETS].values;
    double first = 0;
    for (int64_t t = 0; t < problem->desc.sequences; t++)
        first = offsets[t] <= (double)token ? offsets[t] : first;
    return (double)token - first;
}

static th_problem whole_problem(const clmgk_attention_desc *desc)
{
    th_problem problem = th_problem_make(desc, 1);
    for (int64_t b = 0; desc->use_positions && b < problem.desc.batch; b++)
        for (int64_t n = 0; n < problem.desc.length; n++) {
            th_set(&problem, TH_POSITIONS, b, n, 0, 0, 0, position_of(&problem, n));
            th_set(&problem, TH_POSITIONS_K, b, n, 0, 0, 0, position_of(&problem, n));
        }
    tr_round(&problem);
    return problem;
}

static void expect_results(th_session *session, th_problem *problem, const tr_cut *c, clmgk_dist_schedule schedule)
{
    const clmgk_plan_options options = th_options(session, 0);
    tr_run_whole(problem, c, &options, schedule);
    TH_REF_ANSWER answer = th_solve(problem);
    TH_REF_ARRAYS exact = th_solve_gradients(problem);
    th_check(session, problem, options.engine, &answer);
    th_check_gradients(session, problem, options.engine, &exact);
}

/* Queries and keys of a token stay together. */
static void join_kinds(tr_cut *c)
{
    memcpy(c->tokens[TR_KEYS], c->tokens[TR_QUERIES], sizeof(c->tokens[0]));
    memcpy(c->lengths[TR_KEYS], c->lengths[TR_QUERIES], sizeof(c->lengths[0]));
}

static tr_cut make_cut(clmgk_dist_order order, int64_t tokens, int32_t ranks)
{
    tr_cut c = {.ranks = ranks};
    th_expect_ok(clmgk_dist_permutation(order, tokens, NULL, 0, ranks, c.tokens[0], c.lengths[0], &th_error));
    join_kinds(&c);
    return c;
}

/* Rank 1 has nothing, and rank 2 little. */
static tr_cut uneven_cut(void)
{
    tr_cut c = {.ranks = 3, .lengths = {{TOKENS - 5, 0, 5}}};
    for (int32_t n = 0; n < TOKENS; n++)
        c.tokens[0][n] = n;
    join_kinds(&c);
    return c;
}

/* Schedules and cuts, the most telling ones first. */
static void expect_schedules(th_session *session, clmgk_attention_desc desc, size_t count)
{
    const bool split = (clmgk_variant_traits(desc.variant) & CLMGK_TRAIT_ADMIXTURE) == 0;
    const tr_cut cuts[] = {make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 2), uneven_cut(),
                           make_cut(CLMGK_DIST_STRIPES, TOKENS, 3), make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 1)};
    const struct {
        clmgk_dist_schedule schedule;
        int cut;
    } runs[] = {{CLMGK_DIST_RING, 0},       {CLMGK_DIST_ALL_TO_ALL, 1}, {CLMGK_DIST_ALL_GATHER, 0},
                {CLMGK_DIST_RING, 1},       {CLMGK_DIST_ALL_GATHER, 1}, {CLMGK_DIST_RING, 2},
                {CLMGK_DIST_ALL_TO_ALL, 0}, {CLMGK_DIST_RING, 3}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(runs) : count); n++) {
        const tr_cut *const c = &cuts[runs[n].cut];
        TH_PROBLEM problem = whole_problem(&desc);
        if (runs[n].schedule != CLMGK_DIST_ALL_TO_ALL || (split && problem.desc.kv_heads >= c->ranks))
            expect_results(session, &problem, c, runs[n].schedule);
    }
}

/* Three groups of two heads. */
TH_TEST(softmax)
{
    clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    desc.heads = 6;
    desc.kv_heads = 3;
    desc.batch = 2;
    expect_schedules(session, desc, 4);
}

/* Each rank has one of two sub-devices. */
TH_TEST(sub_devices)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    TH_PROBLEM problem = whole_problem(&desc);
    tr_cut c = make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 2);
    c.sub_devices = true;
    expect_results(session, &problem, &c, CLMGK_DIST_RING);
}

/* dQ depends on the sum of dS over a row's keys, which a part of them does not have. Borders of ranks cut sequences. */
TH_TEST(packed_gaussian_scores)
{
    clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_MGK);
    desc.sequences = 4;
    expect_schedules(session, desc, 1);
}

TH_FULL_TEST(other_variants)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_MGK, CLMGK_VARIANT_SMGK, CLMGK_VARIANT_FISH};
    for (size_t n = 0; n < TH_COUNT(variants); n++)
        expect_schedules(session, whole_desc(variants[n]), 1);
}

/* Three groups of two heads; keys of their own. */
TH_FULL_TEST(packed_sequences)
{
    clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    desc.heads = 6;
    desc.kv_heads = 3;
    desc.sequences = 7;
    expect_schedules(session, desc, 4);
    desc.use_offsets_k = 1;
    expect_schedules(session, desc, 4);
}

/* Gradients and O in f32. */
TH_FULL_TEST(arrays_of_bf16)
{
    clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.dtype_o = desc.dtype_grad_q = desc.dtype_grad_k = desc.dtype_grad_v = CLMGK_STORAGE_F32;
    expect_schedules(session, desc, 1);
}

/* Every rank's rows and keys in f32 parts: results are as exact as one device's, whatever the number of ranks. */
static void expect_exactness(th_session *session, th_problem *problem, const tr_cut *c, clmgk_dist_schedule schedule,
                             const clmgk_ref_answer *answer, const clmgk_ref_arrays *exact, const double *one)
{
    const clmgk_plan_options options = th_options(session, 0);
    double sums[TR_RESULTS] = {0};
    tr_run_whole(problem, c, &options, schedule);
    th_check(session, problem, options.engine, answer);
    th_check_gradients(session, problem, options.engine, exact);
    tr_add_errors(problem, answer, exact, sums);
    for (size_t n = 0; n < TR_RESULTS; n++) {
        const double ratio = sqrt(sums[n] / one[n]);
        print_message("%s, %d ranks, schedule %d, array %d: error / one device's: %.3f\n",
                      clmgk_dtype_name(problem->desc.dtype), (int)c->ranks, (int)schedule, (int)tr_results[n], ratio);
        assert_true(ratio <= 1.2);
    }
    if (c->ranks == TR_RANKS)
        tr_expect_equal_bits(problem, c, &options, schedule);
}

static void expect_exact_ranks(th_session *session, clmgk_dtype dtype)
{
    const clmgk_plan_options options = th_options(session, 0);
    double one[TR_RESULTS] = {0};
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, MANY_TOKENS, MANY_TOKENS);
    desc.heads = desc.kv_heads = 5;
    desc.head_size = desc.value_size = 128;
    desc.causal = desc.use_positions = 1;
    desc.dtype = dtype;
    desc.dtype_o = desc.dtype_grad_q = desc.dtype_grad_k = desc.dtype_grad_v = CLMGK_STORAGE_F32;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    TH_PROBLEM problem = whole_problem(&desc);
    desc.use_positions = 0; /* they are the indices, of which the reference takes none that a row does not see */
    TH_PROBLEM in_order = whole_problem(&desc);
    TH_REF_ANSWER answer = th_solve(&in_order);
    TH_REF_ARRAYS exact = th_solve_gradients(&in_order);
    th_run_training(session, &problem, &options);
    tr_add_errors(&problem, &answer, &exact, one);
    for (int32_t ranks = 1; ranks <= TR_RANKS; ranks++)
        for (clmgk_dist_schedule s = CLMGK_DIST_ALL_GATHER; s <= CLMGK_DIST_ALL_TO_ALL; s++) {
            const tr_cut c = make_cut(CLMGK_DIST_ZIGZAG, MANY_TOKENS, ranks);
            if (ranks > 1 || s == CLMGK_DIST_ALL_GATHER) /* one rank has no schedule */
                expect_exactness(session, &problem, &c, s, &answer, &exact, one);
        }
}

TH_FULL_TEST(many_tokens)
{
    expect_exact_ranks(session, CLMGK_DTYPE_F32);
    expect_exact_ranks(session, CLMGK_DTYPE_BF16);
}

/* States and their gradients over ranks, one of which has no tokens. */
static void expect_scan(th_session *session, clmgk_variant variant, clmgk_feature feature, bool causal)
{
    const tr_cut c = uneven_cut();
    clmgk_attention_desc desc = th_small_desc(variant, TOKENS, TOKENS);
    desc.feature = feature;
    desc.causal = causal;
    desc.batch = 2;
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_keep_sums(&problem);
    tr_round(&problem);
    expect_results(session, &problem, &c, CLMGK_DIST_AUTO);
}

TH_TEST(linear_attention)
{
    expect_scan(session, CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_EXP, true);
}

TH_FULL_TEST(linear_family)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_MLK, CLMGK_VARIANT_LHARD_GFISH, CLMGK_VARIANT_SMLK,
                                             CLMGK_VARIANT_LINEAR, CLMGK_VARIANT_LHARD_FISH};
    for (size_t v = 0; v < TH_COUNT(variants); v++)
        for (int causal = 0; causal < 2; causal++)
            expect_scan(session, variants[v], v % 2 == 0 ? CLMGK_FEATURE_EXP : CLMGK_FEATURE_ELU1, causal);
}

/* What a schedule cannot do is refused by name, by all ranks. */
TH_TEST(refusals)
{
    clmgk_attention_desc mixed = whole_desc(CLMGK_VARIANT_FISH), few = whole_desc(CLMGK_VARIANT_SOFTMAX), text = few;
    few.kv_heads = 1;
    text.mask_mod = "i - j < 10 * (h + 1)";
    const struct {
        const clmgk_attention_desc *desc;
        const char *words;
    } cases[] = {{&mixed, "attention.variant: its heads are mixed: not with the schedule ALL_TO_ALL"},
                 {&few, "attention.kv_heads: less than ranks: not with the schedule ALL_TO_ALL"},
                 {&text, "attention.mask_mod: it reads h: not with the schedule ALL_TO_ALL"}};
    const tr_cut c = make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 2);
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        TH_PROBLEM problem = whole_problem(cases[n].desc);
        tr_rank ranks[TR_RANKS] = {{0}};
        tr_run(&problem, &c, NULL, CLMGK_DIST_ALL_TO_ALL, ranks);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(ranks[r].status, CLMGK_ERROR_UNSUPPORTED);
            assert_non_null(strstr(ranks[r].error.message, cases[n].words));
        }
    }
}

/* ---- faults --------------------------------------------------------------------------------------------------------
 */

TH_TEST(a_rank_that_does_not_come)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    TH_PROBLEM problem = whole_problem(&desc);
    const tr_cut c = make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 2);
    tr_rank ranks[TR_RANKS] = {{.timeout = 0.05}, {.fault = TR_ABSENT}};
    tr_run(&problem, &c, NULL, CLMGK_DIST_RING, ranks);
    assert_int_equal(ranks[0].status, CLMGK_ERROR_COMMUNICATION);
    assert_non_null(strstr(ranks[0].error.message, "rank 1: no answer in time"));
}

/* A rank that dies, leaves early or sends another number of bytes, at several places of the passes: the others' calls
 * fail within their time, with a reason. */
static void expect_failure(clmgk_dist_schedule schedule, tr_fault fault, int exchanges, const char *words)
{
    clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    desc.heads = 6;
    desc.kv_heads = 3;
    desc.batch = 2;
    TH_PROBLEM problem = whole_problem(&desc);
    const tr_cut c = make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 3);
    const double timeout = fault == TR_SHORTENS ? 600 : 2;
    tr_rank ranks[TR_RANKS] = {
        {.timeout = timeout}, {.timeout = timeout, .fault = fault, .exchanges = exchanges}, {.timeout = timeout}};
    bool told = false;
    tr_run(&problem, &c, NULL, schedule, ranks);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(ranks[r].status, CLMGK_ERROR_COMMUNICATION);
        told = told || strstr(ranks[r].error.message, words) != NULL;
    }
    if (!told)
        fail_msg("%s; %s; %s", ranks[0].error.message, ranks[1].error.message, ranks[2].error.message);
    tr_free(ranks, 3);
}

TH_TEST(a_rank_that_dies)
{
    expect_failure(CLMGK_DIST_RING, TR_DIES, 4, "no answer in time");
    expect_failure(CLMGK_DIST_ALL_TO_ALL, TR_DIES, 7, "no answer in time");
    for (int exchanges = 0; session->full && exchanges < 9; exchanges++)
        for (clmgk_dist_schedule s = CLMGK_DIST_ALL_GATHER; s <= CLMGK_DIST_ALL_TO_ALL; s++)
            expect_failure(s, TR_DIES, exchanges, "no answer in time");
}

TH_TEST(a_rank_that_leaves_early)
{
    expect_failure(CLMGK_DIST_RING, TR_LEAVES, 0, "no answer in time");
}

TH_TEST(a_rank_that_sends_another_message)
{
    expect_failure(CLMGK_DIST_RING, TR_SHORTENS, 3, "bytes: expected");
}

TH_TEST(ranks_of_different_problems)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    TH_PROBLEM problem = whole_problem(&desc);
    const tr_cut c = make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 2);
    tr_rank ranks[TR_RANKS] = {{0}, {.heads = 4}};
    tr_run(&problem, &c, NULL, CLMGK_DIST_ALL_GATHER, ranks);
    bool told = false;
    for (int r = 0; r < 2; r++) {
        assert_true(ranks[r].status == CLMGK_ERROR_INVALID_SHAPE || ranks[r].status == CLMGK_ERROR_COMMUNICATION);
        told = told || ranks[r].status == CLMGK_ERROR_INVALID_SHAPE;
    }
    assert_true(told);
}

/* One rank's descriptor is refused: the other learns it at once. */
TH_TEST(a_rank_that_gives_up)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    TH_PROBLEM problem = whole_problem(&desc);
    const tr_cut c = make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 2);
    tr_rank ranks[TR_RANKS] = {{0}, {.timeout = -1}};
    ranks[1].timeout = 1e12;
    tr_run(&problem, &c, NULL, CLMGK_DIST_RING, ranks);
    assert_int_equal(ranks[1].status, CLMGK_ERROR_INVALID_VALUE);
    assert_int_equal(ranks[0].status, CLMGK_ERROR_COMMUNICATION);
}

/* Offsets that leave out a token of one rank are refused by all. */
TH_TEST(offsets_of_fewer_tokens)
{
    clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_MGK);
    desc.sequences = 4;
    TH_PROBLEM problem = whole_problem(&desc);
    const tr_cut c = make_cut(CLMGK_DIST_ZIGZAG, TOKENS, 2);
    tr_rank ranks[TR_RANKS] = {{0}};
    problem.array[TH_OFFSETS].values[desc.sequences] = TOKENS - 1;
    tr_run(&problem, &c, NULL, CLMGK_DIST_RING, ranks);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, CLMGK_ERROR_INVALID_VALUE);
        assert_non_null(strstr(ranks[r].error.message, "offsets of rank 0: expected them to ascend from 0 to its"));
    }
}

TH_HOST_TEST(messages_of_another_size)
{
    clmgk_dist_local *local = NULL;
    clmgk_dist_transport ends[2];
    void *sent = NULL, *received = NULL;
    char bytes[8] = "";
    th_expect_ok(clmgk_dist_local_create(2, &local, &th_error));
    for (int32_t r = 0; r < 2; r++)
        th_expect_ok(clmgk_dist_local_transport(local, r, &ends[r], &th_error));
    const clmgk_dist_exchange out = {.send = bytes, .send_bytes = 4, .to = 1};
    const clmgk_dist_exchange in = {.receive = bytes, .receive_bytes = 8, .from = 0};
    th_expect_ok(ends[0].begin(ends[0].state, &out, &sent, &th_error));
    th_expect_ok(ends[1].begin(ends[1].state, &in, &received, &th_error));
    th_expect_error(ends[1].wait(ends[1].state, received, 1, &th_error), CLMGK_ERROR_COMMUNICATION, "4 bytes");
    ends[1].cancel(ends[1].state);
    th_expect_error(ends[0].wait(ends[0].state, sent, 60, &th_error), CLMGK_ERROR_COMMUNICATION, "gave up");
    th_expect_refusal(clmgk_dist_local_transport(local, 2, &ends[0], &th_error), CLMGK_ERROR_INVALID_VALUE, "rank",
                      "2");
    clmgk_dist_local_release(local);
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

/* What a plan of the first of two ranks is made of. */
typedef struct call {
    clmgk_attention_desc attention;
    clmgk_dist_desc desc;
    clmgk_dist_transport transport;
    clmgk_context *context;
    cl_command_queue queue;
    int64_t lengths_k[2];
    bool no_attention, no_lengths;
} call;

static call good_call(const th_session *session, clmgk_dist_local *local)
{
    call c = {.attention = CLMGK_ATTENTION_DESC_INIT, .desc = CLMGK_DIST_DESC_INIT, .lengths_k = {6, 7}};
    c.attention.heads = 2;
    c.attention.length = 5;
    c.attention.length_k = 6;
    c.attention.head_size = 8;
    c.attention.causal = c.attention.use_positions = 1;
    c.desc.timeout = 1;
    c.context = session->context;
    c.queue = session->queue;
    th_expect_ok(clmgk_dist_local_transport(local, 0, &c.transport, &th_error));
    return c;
}

static clmgk_status try_call(const call *c)
{
    clmgk_dist_desc desc = c->desc;
    clmgk_dist_plan *plan = NULL;
    desc.attention = c->no_attention ? NULL : &c->attention;
    desc.lengths_k = c->no_lengths ? NULL : c->lengths_k;
    const clmgk_status status =
        clmgk_dist_plan_create(c->context, c->queue, &desc, &c->transport, NULL, &plan, &th_error);
    assert_null(plan);
    return status;
}

#define REFUSED(change, status, words)                                                                                 \
    do {                                                                                                               \
        call c = good_call(session, local);                                                                            \
        c.change;                                                                                                      \
        th_expect_error(try_call(&c), CLMGK_ERROR_##status, words);                                                    \
    } while (0)

TH_TEST(arguments_that_are_none)
{
    clmgk_dist_local *local = NULL;
    clmgk_dist_plan *plan = NULL;
    th_expect_ok(clmgk_dist_local_create(2, &local, &th_error));
    REFUSED(context = NULL, INVALID_VALUE, "context: NULL");
    REFUSED(queue = NULL, INVALID_VALUE, "queue: NULL");
    REFUSED(no_attention = true, INVALID_VALUE, "desc.attention: NULL");
    REFUSED(no_lengths = true, INVALID_VALUE, "desc.lengths_k: NULL");
    REFUSED(desc.struct_size = 8, INVALID_VALUE, "struct_size");
    REFUSED(attention.struct_size = 8, INVALID_VALUE, "struct_size");
    REFUSED(transport.rank = 2, INVALID_VALUE, "rank 2 of 2");
    REFUSED(transport.ranks = CLMGK_DIST_MAX_RANKS + 1, INVALID_VALUE, "of 4097");
    REFUSED(transport.struct_size = 0, INVALID_VALUE, "transport");
    REFUSED(transport.begin = NULL, INVALID_VALUE, "transport");
    REFUSED(transport.wait = NULL, INVALID_VALUE, "transport");
    REFUSED(transport.cancel = NULL, INVALID_VALUE, "transport");

    const call c = good_call(session, local);
    const clmgk_status bad = CLMGK_ERROR_INVALID_VALUE;
    th_expect_error(clmgk_dist_plan_create(c.context, c.queue, NULL, &c.transport, NULL, &plan, &th_error), bad,
                    "desc: NULL");
    th_expect_error(clmgk_dist_plan_create(c.context, c.queue, &c.desc, NULL, NULL, &plan, &th_error), bad,
                    "transport");
    th_expect_error(clmgk_dist_plan_create(c.context, c.queue, &c.desc, &c.transport, NULL, NULL, &th_error), bad,
                    "out: NULL");
    th_expect_error(clmgk_dist_forward(NULL, NULL, &th_error), bad, "plan: NULL");
    th_expect_error(clmgk_dist_backward(NULL, NULL, &th_error), bad, "plan: NULL");
    th_expect_error(clmgk_dist_local_create(2, NULL, &th_error), bad, "out: NULL");
    th_expect_error(clmgk_dist_local_transport(NULL, 0, NULL, &th_error), bad, "local: NULL");
    th_expect_error(clmgk_dist_local_transport(local, 0, NULL, &th_error), bad, "out: NULL");
    clmgk_dist_local_release(local);
    th_expect_refusal(clmgk_dist_local_create(0, &local, &th_error), bad, "ranks", "0");
    assert_null(local);
    clmgk_dist_plan_release(NULL);
    clmgk_dist_local_release(NULL);
}

TH_TEST(problems_that_no_plan_takes)
{
    clmgk_dist_local *local = NULL;
    th_expect_ok(clmgk_dist_local_create(2, &local, &th_error));
    REFUSED(desc.schedule = (clmgk_dist_schedule)5, INVALID_VALUE, "schedule: 5");
    REFUSED(desc.schedule = (clmgk_dist_schedule)-1, INVALID_VALUE, "schedule: -1");
    REFUSED(desc.timeout = 0, INVALID_VALUE, "timeout: 0");
    REFUSED(desc.timeout = -1, INVALID_VALUE, "timeout: -1");
    REFUSED(desc.timeout = (double)NAN, INVALID_VALUE, "timeout: nan");
    REFUSED(desc.timeout = (double)INFINITY, INVALID_VALUE, "timeout: inf");
    REFUSED(attention.heads = -1, INVALID_VALUE, "heads: -1");
    REFUSED(attention.use_positions = 0, INVALID_VALUE, "use_positions: 0: expected 1 with causal");
    REFUSED(attention.k.strided = 1, UNSUPPORTED, "expected K, V, dK and dV to be dense");
    REFUSED(attention.statistics = CLMGK_STATISTIC_NLL, UNSUPPORTED, "statistics: NLL");
    REFUSED(lengths_k[1] = -1, INVALID_VALUE, "lengths_k[1]: -1");
    REFUSED(lengths_k[1] = (INT64_C(1) << 30) + 1, INVALID_VALUE, "lengths_k[1]: 1073741825");
    REFUSED(lengths_k[0] = 7, INVALID_SHAPE, "lengths_k[0]: 7: expected length_k = 6");
    REFUSED(lengths_k[1] = (INT64_C(1) << 30) - 5, OVERFLOW, "1073741825 keys");
    clmgk_dist_local_release(local);
}

#define REFUSED_BY(own, change, words)                                                                                 \
    do {                                                                                                               \
        call c = good_call(session, local);                                                                            \
        c.desc.schedule = CLMGK_DIST_##own;                                                                            \
        c.attention.change;                                                                                            \
        th_expect_error(try_call(&c), CLMGK_ERROR_UNSUPPORTED, words);                                                 \
    } while (0)

TH_TEST(problems_of_one_device)
{
    clmgk_dist_local *local = NULL;
    th_expect_ok(clmgk_dist_local_create(2, &local, &th_error));
    REFUSED_BY(AUTO, use_bias = 1, "use_bias: 1: not over several ranks");
    REFUSED_BY(AUTO, append = 3, "append: new keys and values: not over");
    REFUSED_BY(ALL_GATHER, use_lengths = 1, "use_lengths: 1: not over");
    REFUSED_BY(ALL_GATHER, dtype_v = CLMGK_STORAGE_INT8, "dtype_v: a type of caches: not over");
    REFUSED_BY(ALL_GATHER, gradients = CLMGK_GRADIENT_K; c.attention.dtype_grad_k = CLMGK_STORAGE_BF16,
                                                         "dtype_grad_k: not f32: not with the schedule ALL_GATHER");
    REFUSED_BY(RING, gradients = CLMGK_GRADIENT_V;
               c.attention.dtype_grad_v = CLMGK_STORAGE_F16, "dtype_grad_v: not f32: not with the schedule RING");
    REFUSED_BY(RING, dtype_o = CLMGK_STORAGE_BF16, "dtype_o: not f32: not with the schedule RING");
    REFUSED_BY(RING, use_positions = 0; c.attention.variant = CLMGK_VARIANT_LINEAR, "variant: the linear family");
    REFUSED_BY(ALL_TO_ALL, use_lengths_q = 1, "use_lengths_q: 1: not with the schedule ALL_TO_ALL");
    REFUSED_BY(ALL_TO_ALL, score_mod = "h + s", "score_mod: it reads h: not with");
    REFUSED_BY(ALL_TO_ALL, q.strided = 1, "expected all arrays to be dense");
    REFUSED_BY(SCAN, causal = 0, "variant: not of the linear family");
    REFUSED_BY(SCAN, use_positions = 0; c.attention.variant = CLMGK_VARIANT_LINEAR; c.attention.length = 6;
               c.attention.sequences = 2, "sequences: packed sequences: not with the schedule SCAN");
    REFUSED_BY(SCAN, use_positions = 0; c.attention.variant = CLMGK_VARIANT_LINEAR, "length_k: with a causal mask");
    clmgk_dist_local_release(local);
}

/* ---- orders --------------------------------------------------------------------------------------------------------
 */

/* What a token of a causal document sees. */
static double pairs_of(const int32_t *offsets, int64_t documents, int32_t token)
{
    int64_t document = 0;
    while (document + 1 < documents && offsets[document + 1] <= token)
        document++;
    return token - offsets[document] + 1;
}

/* Every token once; each rank's visible pairs within 2 % of the mean, and its tokens likewise. */
static void expect_balance(clmgk_dist_order order, const int32_t *offsets, int64_t documents, int32_t ranks)
{
    const int64_t count = offsets[documents];
    int32_t *const tokens = calloc((size_t)count, sizeof(*tokens));
    bool *const seen = calloc((size_t)count, sizeof(*seen));
    int64_t lengths[8], first = 0;
    double all = 0;
    assert_true(tokens && seen && ranks <= 8);
    th_expect_ok(clmgk_dist_permutation(order, count, offsets, documents, ranks, tokens, lengths, &th_error));
    for (int32_t token = 0; token < count; token++)
        all += pairs_of(offsets, documents, token);
    for (int32_t r = 0; r < ranks; r++) {
        double pairs = 0;
        for (int64_t n = first; n < first + lengths[r]; n++) {
            assert_false(seen[tokens[n]]);
            assert_true(n == first || tokens[n] > tokens[n - 1]);
            seen[tokens[n]] = true;
            pairs += pairs_of(offsets, documents, tokens[n]);
        }
        if (!(fabs(pairs * ranks - all) < 0.02 * all))
            fail_msg("order %d, %d ranks, %d documents: rank %d has %g of %g pairs", (int)order, (int)ranks,
                     (int)documents, (int)r, pairs, all);
        assert_true(fabs((double)(lengths[r] * ranks - count)) < 0.02 * (double)count);
        first += lengths[r];
    }
    assert_int_equal(first, count);
    free(tokens);
    free(seen);
}

/* One document; a long one behind short ones; equal ones; lengths of all kinds, some of 0. */
TH_HOST_TEST(balanced_orders)
{
    static const int32_t one[] = {0, 3824}, skewed[] = {0, 10, 30, 70, 150, 400, 500, 3824},
                         equal[] = {0, 400, 800, 1200, 1600, 2000};
    int32_t mixed[41] = {0};
    uint64_t state = 5;
    for (size_t n = 1; n < TH_COUNT(mixed); n++)
        mixed[n] = mixed[n - 1] + (int32_t)th_pick(&state, 0, th_chance(&state, 8) ? 2000 : 100);
    for (int32_t ranks = 1; ranks <= 8; ranks++) {
        expect_balance(CLMGK_DIST_ZIGZAG, one, 1, ranks);
        expect_balance(CLMGK_DIST_STRIPES, one, 1, ranks);
        expect_balance(CLMGK_DIST_DOCUMENTS, one, 1, ranks);
        expect_balance(CLMGK_DIST_DOCUMENTS, skewed, TH_COUNT(skewed) - 1, ranks);
        expect_balance(CLMGK_DIST_DOCUMENTS, equal, TH_COUNT(equal) - 1, ranks);
        expect_balance(CLMGK_DIST_DOCUMENTS, mixed, TH_COUNT(mixed) - 1, ranks);
    }
}

/* One document without a rest is a zig-zag. */
TH_HOST_TEST(documents_of_few_tokens)
{
    static const int32_t all[] = {0, 0, 16}, none[] = {0, 0}, few[] = {0, 1, 3};
    int32_t tokens[16], zigzag[16];
    int64_t lengths[4];
    th_expect_ok(clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, 16, NULL, 0, 2, zigzag, lengths, &th_error));
    th_expect_ok(clmgk_dist_permutation(CLMGK_DIST_DOCUMENTS, 16, all, 2, 2, tokens, lengths, &th_error));
    assert_memory_equal(tokens, zigzag, sizeof(tokens));
    th_expect_ok(clmgk_dist_permutation(CLMGK_DIST_DOCUMENTS, 0, none, 1, 4, tokens, lengths, &th_error));
    assert_int_equal(lengths[0] + lengths[1] + lengths[2] + lengths[3], 0);
    th_expect_ok(clmgk_dist_permutation(CLMGK_DIST_DOCUMENTS, 3, few, 2, 4, tokens, lengths, &th_error));
    assert_int_equal(lengths[0] + lengths[1] + lengths[2] + lengths[3], 3);
}

TH_HOST_TEST(orders_that_are_none)
{
    static const int32_t falling[] = {0, 2, 1}, short_of[] = {0, 2}, late[] = {1, 3};
    int32_t token[3];
    int64_t length;
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, 1, NULL, 0, 0, token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "ranks", "0");
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, -1, NULL, 0, 1, token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "count", "-1");
    th_expect_refusal(clmgk_dist_permutation((clmgk_dist_order)3, 1, NULL, 0, 1, token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "order", "3");
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, 1, NULL, 0, 1, NULL, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "tokens", "NULL");
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, 1, NULL, 0, 1, token, NULL, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "lengths", "NULL");
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_DOCUMENTS, 3, NULL, 0, 1, token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "offsets", "0");
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_DOCUMENTS, 1, falling, 2, 1, token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "offsets", "2");
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_DOCUMENTS, 3, short_of, 1, 1, token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "offsets", "2");
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_DOCUMENTS, 3, late, 1, 1, token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "offsets", "1");
}
