/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random problems over ranks, each drawn from its number: uneven and empty shards, tokens dealt in any order, positions
 * permuted, masks, documents and packed sequences that shards cut, grouped heads. Results are held against the
 * reference, against themselves in a second run, and their errors against those of one device.
 */
#include "dist/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 90, PLACES = 128 };

/* What makes a program. */
typedef struct configuration {
    clmgk_variant variant;
    clmgk_feature feature;
    clmgk_dtype dtype;
    double dropout;
    double softcap;
    bool low, sinks, alibi, documents, hard, weight, arrays, packed;
    bool all; /* gradients */
} configuration;

static const configuration configurations[] = {
    {.variant = CLMGK_VARIANT_SOFTMAX, .dropout = 0.125, .low = true, .sinks = true, .all = true},
    {.variant = CLMGK_VARIANT_MGK, .dropout = 0.125, .low = true, .sinks = true, .all = true},
    /* the full tier's */
    {.variant = CLMGK_VARIANT_SOFTMAX, .documents = true, .low = true},
    {.variant = CLMGK_VARIANT_SOFTMAX, .dtype = CLMGK_DTYPE_BF16, .alibi = true, .softcap = 2.0},
    {.variant = CLMGK_VARIANT_SOFTMAX, .dtype = CLMGK_DTYPE_F16, .dropout = 0.5},
    {.variant = CLMGK_VARIANT_SMGK, .arrays = true, .low = true, .all = true},
    {.variant = CLMGK_VARIANT_MGK, .hard = true, .documents = true},
    {.variant = CLMGK_VARIANT_FISH, .dropout = 0.25, .low = true, .sinks = true, .all = true},
    {.variant = CLMGK_VARIANT_GFISH, .weight = true, .dtype = CLMGK_DTYPE_BF16, .all = true},
    {.variant = CLMGK_VARIANT_TALKING_HEADS, .alibi = true},
    {.variant = CLMGK_VARIANT_SOFTMAX, .packed = true, .alibi = true, .low = true},
    {.variant = CLMGK_VARIANT_MGK, .packed = true, .dropout = 0.125, .all = true},
};
enum { QUICK_CONFIGURATIONS = 2 };

/* The linear family's, by states: draws number DRAWS and more, in the full tier. */
static const configuration linear[] = {
    {.variant = CLMGK_VARIANT_LINEAR, .feature = CLMGK_FEATURE_EXP, .all = true},
    {.variant = CLMGK_VARIANT_MLK, .feature = CLMGK_FEATURE_ELU1, .dtype = CLMGK_DTYPE_BF16, .all = true},
};
enum { DRAWS = 200, LINEAR_DRAWS = 20 };

/* A problem, and who has its tokens. */
typedef struct draw {
    th_problem problem;
    tr_cut cut;
    clmgk_dist_schedule schedule;
} draw;

/* Of tokens that are dealt out; sequences stay together in a rank's. */
typedef enum dealing { IN_ORDER, IN_ORDER_OF_RANK, IN_ANY_ORDER } dealing;

static int compare_tokens(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Deals tokens out: in their order or shuffled, with borders anywhere, so that ranks may have none. */
static void deal(tr_cut *cut, tr_kind kind, int64_t count, dealing how, uint64_t *state)
{
    int32_t *const tokens = cut->tokens[kind];
    const bool shuffled = th_chance(state, 2) && how != IN_ORDER, even = th_chance(state, 4);
    for (int64_t n = 0; n < count; n++) {
        const int64_t other = shuffled ? th_pick(state, 0, n) : n;
        tokens[n] = tokens[other];
        tokens[other] = (int32_t)n;
    }
    int64_t left = count;
    for (int32_t r = 0; r < cut->ranks; r++) {
        const int64_t last = cut->ranks - 1 - r;
        const int64_t taken = last == 0 ? left : even ? left / (last + 1) : th_pick(state, 0, left);
        cut->lengths[kind][r] = th_chance(state, 6) && last > 0 ? 0 : taken;
        if (how == IN_ORDER_OF_RANK)
            qsort(tokens + count - left, (size_t)cut->lengths[kind][r], sizeof(*tokens), compare_tokens);
        left -= cut->lengths[kind][r];
    }
}

/* Any places, each once or twice; documents of any lengths. */
static void set_places(th_problem *problem, uint64_t *state)
{
    for (th_name name = TH_POSITIONS; name <= TH_POSITIONS_K; name++) {
        th_array *const array = &problem->array[name];
        const int64_t step = 2 * th_pick(state, 0, PLACES / 2 - 1) + 1;
        for (size_t n = 0; n < array->count; n++)
            array->values[n] = (double)((int64_t)n * step % PLACES);
    }
    th_array *const document = &problem->array[TH_CAPTURE_0];
    for (size_t n = 0; document->used && n < document->count; n++)
        document->values[n] = n == 0 ? 0 : document->values[n - 1] + (th_chance(state, 20) ? 1 : 0);
}

static clmgk_attention_desc draw_desc(const configuration *from, uint64_t *state)
{
    const uint32_t traits = clmgk_variant_traits(from->variant);
    const bool mixed = (traits & CLMGK_TRAIT_ADMIXTURE) != 0;
    clmgk_attention_desc d = th_small_desc(from->variant, th_pick(state, th_chance(state, 10) ? 0 : 5, MOST),
                                           th_pick(state, th_chance(state, 10) ? 0 : 1, MOST));
    d.dtype = from->dtype;
    d.dtype_o = d.dtype_grad_q = d.dtype_grad_k = d.dtype_grad_v = CLMGK_STORAGE_F32;
    d.batch = from->packed ? 1 : th_pick(state, 1, 2);
    d.sequences = from->packed ? th_pick(state, 1, 9) : 0;
    d.use_offsets_k = from->packed;
    if (!mixed) {
        d.kv_heads = th_pick(state, 1, 3);
        d.heads = d.kv_heads * th_pick(state, 1, 2);
    }
    d.use_positions = 1;
    d.causal = th_chance(state, 2);
    d.use_window = th_chance(state, 3);
    d.window_left = d.use_window ? th_pick(state, -1, 60) : 0;
    d.window_right = d.use_window ? th_pick(state, -1, 60) : 0;
    d.use_lengths_q = th_chance(state, 4) && !from->packed;
    d.use_lse_low = from->low;
    d.use_alibi = from->alibi;
    d.use_sinks = from->sinks;
    d.use_mix_weight = d.use_mix_offset = from->weight;
    d.softcap = from->softcap;
    d.dropout = from->dropout;
    d.estep = from->hard ? CLMGK_ESTEP_HARD : CLMGK_ESTEP_SOFT;
    d.prior_shape = from->arrays ? CLMGK_PRIOR_HM : CLMGK_PRIOR_UNIFORM;
    d.variance_shape = from->arrays ? CLMGK_VARIANCE_HM : CLMGK_VARIANCE_NUMBER;
    d.gradients = from->all ? th_all_gradients(&d) : CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    if (from->documents) {
        d.captures[0] = (clmgk_capture){.name = "doc", .type = CLMGK_CAPTURE_I32, .axes = 1, .shape = {PLACES}};
        d.mask_mod = "doc[i] == doc[j]";
    }
    return d;
}

/* A causal sequence has as many queries as keys. */
static clmgk_attention_desc draw_linear_desc(const configuration *from, uint64_t *state)
{
    const int64_t length = th_pick(state, 1, MOST);
    const bool causal = th_chance(state, 2);
    clmgk_attention_desc d = th_small_desc(from->variant, length, causal ? length : th_pick(state, 1, MOST));
    d.feature = from->feature;
    d.causal = causal;
    d.dtype = from->dtype;
    d.dtype_o = d.dtype_grad_q = d.dtype_grad_k = d.dtype_grad_v = CLMGK_STORAGE_F32;
    d.batch = th_pick(state, 1, 2);
    d.gradients = th_all_gradients(&d);
    return d;
}

static draw make_linear_draw(uint64_t number)
{
    uint64_t state = number * 0x9e3779b97f4a7c15U + 77;
    const clmgk_attention_desc desc = draw_linear_desc(&linear[number % TH_COUNT(linear)], &state);
    draw d = {.problem = th_problem_make(&desc, number), .schedule = CLMGK_DIST_AUTO};
    d.cut.ranks = (int32_t)th_pick(&state, 1, TR_RANKS);
    deal(&d.cut, TR_QUERIES, d.problem.desc.length, IN_ORDER, &state);
    deal(&d.cut, TR_KEYS, d.problem.desc.length_k, IN_ORDER, &state);
    if (desc.causal)
        memcpy(d.cut.lengths[TR_KEYS], d.cut.lengths[TR_QUERIES], sizeof(d.cut.lengths[0]));
    th_keep_sums(&d.problem);
    tr_round(&d.problem);
    return d;
}

static bool can_split(const draw *d)
{
    const bool mixed = (clmgk_variant_traits(d->problem.desc.variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
    return !mixed && d->problem.desc.kv_heads >= d->cut.ranks && !d->problem.desc.use_lengths_q;
}

static draw make_draw(bool full, uint64_t number)
{
    uint64_t state = number * 0x9e3779b97f4a7c15U + 77;
    const configuration *const from =
        &configurations[number % (full ? TH_COUNT(configurations) : QUICK_CONFIGURATIONS)];
    const clmgk_attention_desc desc = draw_desc(from, &state);
    draw d = {.problem = th_problem_make(&desc, number)};
    d.cut.ranks = (int32_t)th_pick(&state, full ? 1 : 2, full ? 4 : 3);
    const dealing how = from->packed ? IN_ORDER_OF_RANK : IN_ANY_ORDER;
    deal(&d.cut, TR_QUERIES, d.problem.desc.length, desc.use_lengths_q ? IN_ORDER : how, &state);
    deal(&d.cut, TR_KEYS, d.problem.desc.length_k, how, &state);
    set_places(&d.problem, &state);
    d.schedule = can_split(&d) && th_chance(&state, 3) ? CLMGK_DIST_ALL_TO_ALL
                 : th_chance(&state, 3)                ? CLMGK_DIST_ALL_GATHER
                                                       : CLMGK_DIST_RING;
    d.problem.accumulate = th_chance(&state, 3) ? (uint32_t)th_random(&state) & desc.gradients : 0;
    tr_round(&d.problem);
    return d;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Sums over problems of squared errors, relative to the results' mean squares: of ranks and of one device. */
typedef struct errors {
    double ranks[TR_RESULTS], one[TR_RESULTS];
} errors;

static void expect_right(const draw *d, uint64_t number, const clmgk_ref_answer *answer, const clmgk_ref_arrays *exact)
{
    th_message message = {""};
    bool right = th_matches(&d->problem, TH_O, answer, &message) &&
                 (!d->problem.array[TH_LSE].used || th_matches(&d->problem, TH_LSE, answer, &message));
    for (th_name name = 0; right && name < TH_ARRAYS; name++)
        right = !th_is_gradient(name) || !d->problem.array[name].used ||
                th_matches_array(&d->problem, name, exact, &message);
    if (!right)
        fail_msg("problem %d, %d ranks, schedule %d: %s", (int)number, (int)d->cut.ranks, (int)d->schedule,
                 message.text);
}

static void expect_draw(th_session *session, uint64_t number, errors *sums)
{
    const clmgk_plan_options options = th_options(session, 0);
    draw d = number < DRAWS ? make_draw(session->full, number) : make_linear_draw(number);
    tr_run_whole(&d.problem, &d.cut, &options, d.schedule);
    TH_REF_ANSWER answer = th_solve(&d.problem);
    TH_REF_ARRAYS exact = th_solve_gradients(&d.problem);
    expect_right(&d, number, &answer, &exact);
    tr_add_errors(&d.problem, &answer, &exact, sums->ranks);
    if (number % 4 == 3)
        tr_expect_equal_bits(&d.problem, &d.cut, &options, d.schedule);
    d.problem.accumulate = 0;
    th_run_training(session, &d.problem, &options);
    tr_add_errors(&d.problem, &answer, &exact, sums->one);
    session->cases++;
    th_problem_free(&d.problem);
}

/* Partial results in f32 cost nearly nothing. */
TH_TEST(random_problems)
{
    errors sums = {{0}, {0}};
    for (uint64_t number = 0; number < (session->full ? DRAWS + LINEAR_DRAWS : 6); number++)
        expect_draw(session, number, &sums);
    for (size_t n = 0; n < TR_RESULTS; n++) {
        const double ratio = sqrt(sums.ranks[n] / sums.one[n]);
        print_message("array %d: error over ranks / on one device: %.3f\n", (int)tr_results[n], ratio);
        assert_true(ratio <= 1.2 || !session->full); /* few problems say little */
    }
}
