/* SPDX-License-Identifier: Apache-2.0 */
/* Positions of tokens, in any order, in all that depends on them; and the coordinates of random numbers. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

/* Two batches of masked rows with dropout; positions may be equal, and go beyond the keys' number. */
static clmgk_attention_desc placed_desc(clmgk_variant variant, int64_t length, int64_t length_k)
{
    clmgk_attention_desc desc = th_small_desc(variant, length, length_k);
    desc.batch = 2;
    desc.use_positions = 1;
    desc.dropout = 0.25;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return desc;
}

/* Number n of a sweep over masks, none of which makes another program. */
static void set_mask(clmgk_attention_desc *desc, size_t n)
{
    desc->causal = n % 2 == 0;
    desc->use_window = n % 3 != 0;
    desc->window_left = desc->use_window ? 30 : 0;
    desc->window_right = desc->use_window && n % 4 == 1 ? 5 : desc->use_window ? -1 : 0;
    desc->use_lengths = desc->use_lengths_q = desc->sequences == 0 && n % 5 == 4;
}

/* ---- against the reference --------------------------------------------------------------------------------------- */

static void expect_masks(th_session *session, clmgk_attention_desc desc, size_t first, size_t count)
{
    const size_t end = first + (session->full ? 3 * count : count);
    for (size_t n = first; n < end; n++) {
        set_mask(&desc, n);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_expect_gradients(session, &problem, session->full || n + 1 == end);
    }
}

TH_TEST(softmax)
{
    clmgk_attention_desc desc = placed_desc(CLMGK_VARIANT_SOFTMAX, 70, 150);
    desc.use_alibi = 1;
    expect_masks(session, desc, 0, 6);
}

TH_TEST(mixed_heads)
{
    expect_masks(session, placed_desc(CLMGK_VARIANT_FISH, 70, 150), 1, 4);
}

TH_FULL_TEST(other_variants)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_MGK, CLMGK_VARIANT_SMGK, CLMGK_VARIANT_GFISH,
                                             CLMGK_VARIANT_TALKING_HEADS};
    for (size_t v = 0; v < TH_COUNT(variants); v++)
        expect_masks(session, placed_desc(variants[v], 40, 90), v, 3);
}

/* Packed sequences, texts and few queries have programs of their own. */
TH_FULL_TEST(other_programs)
{
    clmgk_attention_desc packed = placed_desc(CLMGK_VARIANT_SOFTMAX, 130, 130);
    packed.batch = 1;
    packed.sequences = 3;
    expect_masks(session, packed, 1, 3);
    clmgk_attention_desc texts = placed_desc(CLMGK_VARIANT_SOFTMAX, 70, 90);
    texts.score_mod = "s - 0.01 * float(abs(i - j))";
    texts.mask_mod = "(i + j) % 7 != 0";
    expect_masks(session, texts, 0, 3);
    clmgk_attention_desc few = placed_desc(CLMGK_VARIANT_SOFTMAX, 2, 300);
    few.gradients = 0;
    for (size_t n = 0; n < 3; n++) {
        set_mask(&few, n);
        TH_PROBLEM problem = th_problem_make(&few, n);
        th_expect(session, &problem);
    }
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

enum { TOKENS = 90, STEP = 37 }; /* without a common divisor */

static int64_t place_of(int64_t token)
{
    return token * STEP % TOKENS;
}

/* Whether the array's axis n has the tokens. */
static bool is_of_tokens(th_name name)
{
    static const th_name names[] = {TH_Q,      TH_K,        TH_V,      TH_O,      TH_LSE,
                                    TH_GRAD_O, TH_GRAD_LSE, TH_GRAD_Q, TH_GRAD_K, TH_GRAD_V};
    for (size_t n = 0; n < TH_COUNT(names); n++)
        if (names[n] == name)
            return true;
    return false;
}

/* Moves token n of an array to place_of(n), or back. */
static void move_tokens(const th_array *from, th_array *to, bool back)
{
    const int64_t size = from->shape[4], tokens = from->shape[3];
    for (size_t row = 0; row * (size_t)size < from->count; row++) {
        const int64_t token = (int64_t)row % tokens, list = (int64_t)row / tokens;
        const int64_t target = (list * tokens + place_of(token)) * size, source = (int64_t)row * size;
        memcpy(to->values + (back ? source : target), from->values + (back ? target : source),
               (size_t)size * sizeof(double));
    }
}

/* A causal sequence whose tokens are in order. */
static clmgk_attention_desc ordered_desc(void)
{
    clmgk_attention_desc desc = placed_desc(CLMGK_VARIANT_SOFTMAX, TOKENS, TOKENS);
    desc.use_alibi = 1;
    desc.causal = 1;
    return desc;
}

static void set_positions(th_problem *problem, bool permuted)
{
    for (int64_t b = 0; b < problem->desc.batch; b++)
        for (int64_t n = 0; n < TOKENS; n++)
            for (th_name name = TH_POSITIONS; name <= TH_POSITIONS_K; name++)
                th_set(problem, name, b, permuted ? place_of(n) : n, 0, 0, 0, (double)n);
}

/* A permuted sequence gives each row what it gave in order, dropout included. */
TH_TEST(permutations_change_nothing)
{
    const clmgk_attention_desc desc = ordered_desc();
    const clmgk_plan_options options = th_options(session, 0);
    TH_PROBLEM ordered = th_problem_make(&desc, 1), permuted = th_problem_make(&desc, 1);
    set_positions(&ordered, false);
    set_positions(&permuted, true);
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (ordered.array[name].used && is_of_tokens(name))
            move_tokens(&ordered.array[name], &permuted.array[name], false);
    th_run_training(session, &permuted, &options);
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (ordered.array[name].used && is_of_tokens(name))
            move_tokens(&permuted.array[name], &ordered.array[name], true);
    TH_REF_ARRAYS exact = th_solve_gradients(&ordered);
    th_check_gradients(session, &ordered, options.engine, &exact);
    clmgk_attention_desc plain = desc;
    plain.use_positions = 0;
    TH_PROBLEM indexed = th_problem_make(&plain, 1);
    for (th_name name = 0; name < TH_POSITIONS; name++)
        if (indexed.array[name].used)
            memcpy(indexed.array[name].values, ordered.array[name].values, indexed.array[name].count * sizeof(double));
    TH_REF_ARRAYS alike = th_solve_gradients(&indexed);
    th_check_gradients(session, &indexed, options.engine, &alike);
}

/* A part of the batches and heads has the random numbers that it has within the whole, and those of another part are
 * others. */
TH_TEST(parts_have_the_numbers_of_the_whole)
{
    clmgk_attention_desc desc = ordered_desc(), part = desc;
    const clmgk_plan_options options = th_options(session, 0);
    part.batch = 1;
    part.heads = part.kv_heads = 1;
    part.all_heads = 2;
    TH_PROBLEM whole = th_problem_make(&desc, 1);
    set_positions(&whole, true);
    assert_true(desc.heads == 2);
    th_run_training(session, &whole, &options);
    for (int64_t list = 0; list < 4; list++) {
        part.first_batch = list / 2;
        part.first_head = list % 2;
        TH_PROBLEM one = th_problem_make(&part, 1);
        set_positions(&one, true);
        for (th_name name = TH_Q; name < TH_ARRAYS; name++)
            if (one.array[name].used && is_of_tokens(name) && name != TH_O && name != TH_LSE && !th_is_gradient(name))
                memcpy(one.array[name].values, whole.array[name].values + (size_t)list * one.array[name].count,
                       one.array[name].count * sizeof(double));
        th_set(&one, TH_SLOPES, 0, 0, 0, 0, 0, whole.array[TH_SLOPES].values[list % 2]);
        th_run_training(session, &one, &options);
        for (size_t n = 0; n < one.array[TH_O].count; n++)
            assert_true(one.array[TH_O].values[n] ==
                        whole.array[TH_O].values[(size_t)list * one.array[TH_O].count + n]);
        TH_REF_ARRAYS exact = th_solve_gradients(&one);
        th_check_gradients(session, &one, options.engine, &exact);
    }
}

/* ---- refusals -----------------------------------------------------------------------------------------------------
 */

static void expect_refused(clmgk_attention_desc desc, clmgk_status status, const char *field, const char *reason)
{
    desc.struct_size = sizeof(desc);
    th_expect_refusal(clmgk_attention_validate(&desc, NULL, &th_error), status, field, reason);
}

TH_HOST_TEST(problems_without_positions)
{
    clmgk_attention_desc desc = {.length = 8, .head_size = 8, .use_positions = 1};
    desc.variant = CLMGK_VARIANT_LINEAR;
    expect_refused(desc, CLMGK_ERROR_INVALID_VALUE, "use_positions", "linear");
    desc.variant = CLMGK_VARIANT_GAUSSIAN;
    desc.statistics = CLMGK_STATISTIC_NLL;
    expect_refused(desc, CLMGK_ERROR_UNSUPPORTED, "NLL", "use_positions");
    desc.statistics = 0;
    desc.heads = 4;
    desc.first_head = 2;
    desc.all_heads = 5;
    expect_refused(desc, CLMGK_ERROR_INVALID_VALUE, "all_heads", "6");
    desc.first_batch = -1;
    expect_refused(desc, CLMGK_ERROR_INVALID_VALUE, "first_batch", "-1");
}

TH_HOST_TEST(positions_of_host_arrays)
{
    enum { N = 2, D = 4 };
    float q[N * D] = {0}, o[N * D];
    int32_t positions[N] = {0, 1 << 30};
    clmgk_attention_desc desc = {.struct_size = sizeof(desc), .length = N, .head_size = D, .use_positions = 1};
    clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
    args.q = args.k = args.v = q;
    args.o = o;
    args.positions = positions;
    th_expect_refusal(clmgk_attention_forward_host(NULL, &desc, &args, &th_error), CLMGK_ERROR_INVALID_BUFFER,
                      "positions_k", "NULL");
    args.positions_k = positions;
    th_expect_refusal(clmgk_attention_forward_host(NULL, &desc, &args, &th_error), CLMGK_ERROR_INVALID_VALUE,
                      "positions[1]", "1073741823");
}
