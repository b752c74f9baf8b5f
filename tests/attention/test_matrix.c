/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix engine, whose fragments are emulated where there are no matrix units: the mixture family, both passes.
 * Each case is a program for each pass. */
#include "harness/harness.h"

#include "engine/units.clh"

#include <math.h>
#include <stdio.h>

static void expect(th_session *session, th_problem *problem, const char *parameters)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, parameters);
    th_expect_passes(session, problem, &options);
}

/* Lengths around those of blocks (16 rows) and tiles (16 keys), masks, gaps between rows and odd offsets: run-time
 * properties of one program. */
static void expect_shapes(th_session *session, clmgk_attention_desc desc, size_t first, size_t count)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    th_expect_shapes(session, desc, &options, 7 * (uint64_t)desc.variant + first, first, count);
}

static const clmgk_attention_desc softmax_f16 = {.dtype = CLMGK_DTYPE_F16,
                                                 .head_size = 24,
                                                 .value_size = 40,
                                                 .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V};

TH_TEST(softmax_in_both_passes)
{
    expect_shapes(session, softmax_f16, 0, session->full ? 10 : 8);
}

/* The likelihood reads keys alone, of several tiles. */
TH_TEST(likelihood)
{
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    clmgk_attention_desc desc = {
        .variant = CLMGK_VARIANT_GAUSSIAN, .dtype = CLMGK_DTYPE_BF16, .head_size = 8, .value_size = 8};
    desc.statistics = CLMGK_STATISTIC_NLL;
    for (size_t n = 0; n < 6; n++) {
        if (!th_takes(session, n + n / 2, 2)) /* a row block or several; whole tiles, several, part of one */
            continue;
        desc.length = n % 2 == 0 ? 16 : 70;
        desc.length_k = n < 2 ? 64 : n < 4 ? 150 : 17;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        clmgk_ref_arrays exact = th_solve_statistics(&problem);
        th_run_pass(session, &problem, TH_STATISTICS, &options);
        th_check_statistics(session, &problem, options.engine, &exact);
        clmgk_ref_arrays_free(&exact);
    }
}

/* ---- f16 beyond the range of its exponents --------------------------------------------------------------------- */

/* Multiplies every second row of a dense array, of `size` numbers, from row `first` on. */
static void scale_rows(th_array *array, int64_t size, size_t first, double factor)
{
    for (size_t i = 0; i < array->count; i++)
        if (i / (size_t)size % 2 == first)
            array->values[i] *= factor;
}

/* Each row of a gradient has the reference's numbers, relative to the largest of that row. The bound of other tests
 * allows dS to be rounded to f16 as it is, and with it the loss of all dS below 2^-25. */
static void expect_rows(const th_problem *problem, th_name name, const double *exact, int64_t size)
{
    const double *const given = problem->array[name].values;
    for (size_t row = 0; row < problem->array[name].count / (size_t)size; row++) {
        double largest = 0.0, error = 0.0;
        for (size_t i = row * (size_t)size; i < (row + 1) * (size_t)size; i++) {
            largest = fmax(largest, fabs(exact[i]));
            error = fmax(error, fabs(given[i] - exact[i]));
        }
        if (!(error <= largest / 128.0))
            fail_msg("row %zu: an error of %g, the largest number is %g", row, error, largest);
    }
}

/* Factors of a problem's arrays, by powers of two; of every second row (Q: of its first feature alone). */
typedef struct magnitudes {
    int q, k, v, grad_o, other_grad_o;
    double low_key; /* logit of every second key */
} magnitudes;

static th_problem problem_of(const magnitudes *m)
{
    clmgk_attention_desc desc = softmax_f16;
    desc.length = 70;
    desc.length_k = 90;
    th_problem problem = th_problem_make(&desc, 5);
    th_array *const q = &problem.array[TH_Q], *const k = &problem.array[TH_K];
    for (size_t i = 0; i < q->count && m->low_key != 0.0; i += (size_t)desc.head_size)
        q->values[i] = 1.0;
    for (size_t i = 0; i < k->count && m->low_key != 0.0; i += (size_t)desc.head_size)
        k->values[i] = i / (size_t)desc.head_size % 2 == 1 ? m->low_key * sqrt((double)desc.head_size) : 0.0;
    th_scale(&problem, TH_Q, ldexp(1.0, m->q));
    th_scale(&problem, TH_K, ldexp(1.0, m->k));
    th_scale(&problem, TH_V, ldexp(1.0, m->v));
    th_scale(&problem, TH_GRAD_O, ldexp(1.0, m->grad_o));
    scale_rows(&problem.array[TH_GRAD_O], desc.value_size, 1, ldexp(1.0, m->other_grad_o));
    th_fill(&problem, TH_GRAD_LSE, 0.0); /* else it is the larger part of dS */
    return problem;
}

/* dS below 2^-24 and above 65,504, in all rows, in every second row of dQ, and in every second row of dK. Other
 * gradients may be beyond f16. */
TH_TEST(gradients_of_all_sizes_in_f16)
{
    static const struct {
        magnitudes m;
        th_name name;
    } cases[] = {{{-12, 12, -6, -16, 0, 0.0}, TH_GRAD_Q},                                           /* dS of 2^-26 */
                 {{12, -12, -6, -16, 0, 0.0}, TH_GRAD_K}, {{12, -12, 12, 10, 0, 0.0}, TH_GRAD_Q},   /* dS of 2^20 */
                 {{-12, 12, 12, 10, 0, 0.0}, TH_GRAD_K},  {{-12, 12, -6, -16, 20, 0.0}, TH_GRAD_Q}, /* 2^-26 and 2^-6 */
                 {{12, -12, 0, 0, 0, -14.0}, TH_GRAD_K}};                                           /* 2^-24 and 2^-4 */
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        TH_PROBLEM problem = problem_of(&cases[n].m);
        th_run_pass(session, &problem, TH_FORWARD, &options);
        th_round_values(session, &problem, TH_BACKWARD);
        TH_REF_ARRAYS exact = th_solve_gradients(&problem);
        th_run_pass(session, &problem, TH_BACKWARD, &options);
        session->cases++;
        expect_rows(&problem, cases[n].name, exact.exact[cases[n].name == TH_GRAD_K],
                    problem.desc.head_size); /* gradients of Q and K are the first two */
    }
}

/* Scores whose maxima grow from tile to tile by less and by more than a lazy maximum allows. */
TH_TEST(growing_scores_in_f16)
{
    static const double steps[] = {0.05, 0.1, 0.3, 1.0};
    for (size_t n = 0; n < TH_COUNT(steps); n++) {
        clmgk_attention_desc desc = softmax_f16;
        desc.length = 20;
        desc.length_k = 150;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_array *const q = &problem.array[TH_Q], *const k = &problem.array[TH_K];
        for (size_t i = 0; i < q->count; i += (size_t)desc.head_size)
            q->values[i] = sqrt((double)desc.head_size);
        for (int64_t key = 0; key < desc.length_k; key++)
            k->values[key * desc.head_size] = steps[n] * (double)key;
        expect(session, &problem, NULL);
    }
}

/* Near 0, and where the products for dQ and dK nearly cancel what rows and keys add themselves. */
TH_TEST(components_in_both_passes)
{
    clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_MGK,
                                 .dtype = CLMGK_DTYPE_BF16,
                                 .components = 3,
                                 .prior_shape = CLMGK_PRIOR_HMS,
                                 .variance_shape = CLMGK_VARIANCE_HM,
                                 .head_size = 5,
                                 .value_size = 7,
                                 .gradients =
                                     CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR};
    expect_shapes(session, desc, 3, 6);
    desc.length = 100;
    desc.length_k = 200;
    TH_PROBLEM far = th_far_problem(desc);
    expect(session, &far, NULL);
}

/* Registers do not hold the sums of five components, so the backward pass takes one after the other. */
TH_FULL_TEST(components_in_turns)
{
    const clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_MGK,
                                       .dtype = CLMGK_DTYPE_F16,
                                       .components = 5,
                                       .prior_shape = CLMGK_PRIOR_HMS,
                                       .head_size = 44,
                                       .value_size = 36,
                                       .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V |
                                                    CLMGK_GRADIENT_PRIOR};
    expect_shapes(session, desc, 4, 3);
}

/* The factored form multiplies a weight by sums of priors: of any size, and in f16 a row's weights have a scale. */
TH_FULL_TEST(shifted_keys_in_both_passes)
{
    static const double priors[] = {1e-9, 3e7};
    clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_SMGK,
                                 .dtype = CLMGK_DTYPE_F16,
                                 .prior_shape = CLMGK_PRIOR_M,
                                 .head_size = 32,
                                 .value_size = 16,
                                 .gradients =
                                     CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_SHIFT};
    expect_shapes(session, desc, 5, 5);
    desc.length = 30;
    desc.length_k = 60;
    for (size_t n = 0; n < TH_COUNT(priors); n++) {
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_fill(&problem, TH_PRIOR, priors[n]);
        expect(session, &problem, NULL);
    }
    desc.length = 50;
    desc.length_k = 70;
    TH_PROBLEM far = th_far_problem(desc);
    expect(session, &far, NULL);
}

/* Products of f16 and bf16, in full either for the queries. */
TH_TEST(two_types_in_a_product)
{
    clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_F16,
                                 .dtype_k = CLMGK_STORAGE_BF16,
                                 .dtype_v = CLMGK_STORAGE_F16,
                                 .dtype_o = CLMGK_STORAGE_BF16,
                                 .head_size = 16,
                                 .value_size = 16};
    expect_shapes(session, desc, 2, 3);
    if (!session->full)
        return;
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.dtype_k = CLMGK_STORAGE_F16;
    expect_shapes(session, desc, 5, 3);
}

/* Weights of V's type beside a finer O. The bound of the precision that allows them holds, and that of f32 does not. */
TH_TEST(results_finer_than_values)
{
    static const clmgk_attention_desc descs[] = {
        {.dtype = CLMGK_DTYPE_BF16, .dtype_o = CLMGK_STORAGE_F32, .precision = CLMGK_PRECISION_BF16},
        {.dtype = CLMGK_DTYPE_F16, .dtype_o = CLMGK_STORAGE_F32, .precision = CLMGK_PRECISION_TF32},
        {.dtype = CLMGK_DTYPE_BF16, .dtype_o = CLMGK_STORAGE_F16, .precision = CLMGK_PRECISION_BF16}};
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    for (size_t n = 0; n < (session->full ? TH_COUNT(descs) : 1); n++) {
        clmgk_attention_desc desc = descs[n];
        desc.head_size = 24;
        desc.value_size = 40;
        expect_shapes(session, desc, 5, 3);
        desc.length = 37;
        desc.length_k = 70;
        TH_PROBLEM problem = th_problem_make(&desc, 1);
        th_run_pass(session, &problem, TH_FORWARD, &options);
        problem.desc.precision = CLMGK_PRECISION_EXACT;
        TH_REF_ANSWER exact = th_solve(&problem);
        if (desc.dtype_o == CLMGK_STORAGE_F32)
            assert_false(clmgk_ref_check(&exact, problem.array[TH_O].values, NULL).ok);
    }
}

/* f32 factors, which units multiply in parts of fewer bits, within the bound of f32. The case after this has components
 * in every tier. */
TH_TEST(singles_forward)
{
    static const clmgk_attention_desc descs[] = {{.head_size = 24, .value_size = 40},
                                                 {.variant = CLMGK_VARIANT_MGK,
                                                  .components = 3,
                                                  .prior_shape = CLMGK_PRIOR_HMS,
                                                  .head_size = 5,
                                                  .value_size = 7}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(descs) : 1); n++)
        expect_shapes(session, descs[n], 4 * n, 4);
}

/* Terms of keys that are far larger than scores, in rows whose weight sinks take: O has the scores' errors. */
TH_TEST(singles_far_from_the_origin)
{
    const clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_MGK,
                                       .estep = CLMGK_ESTEP_HARD,
                                       .components = 3,
                                       .use_sinks = 1,
                                       .head_size = 16,
                                       .value_size = 7,
                                       .length = 50,
                                       .length_k = 70};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        TH_PROBLEM problem = th_problem_make(&desc, seed);
        for (th_name name = TH_Q; name <= TH_K; name++)
            th_move(&problem, name, 64.0, 1);
        th_fill(&problem, TH_SINKS, 60.0);
        expect(session, &problem, NULL);
    }
}

/* Plans with gradients: a factor is the sum of three bf16 (precision tf32: of two). */
TH_TEST(singles_in_both_passes)
{
    enum { QKV = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V };
    static const clmgk_attention_desc descs[] = {
        {.head_size = 24, .value_size = 40, .gradients = QKV},
        {.head_size = 24, .value_size = 40, .gradients = QKV, .precision = CLMGK_PRECISION_TF32},
        {.variant = CLMGK_VARIANT_MGK,
         .components = 3,
         .prior_shape = CLMGK_PRIOR_HMS,
         .head_size = 5,
         .value_size = 7,
         .gradients = QKV | CLMGK_GRADIENT_PRIOR}};
    for (size_t n = 0; n < (session->full ? TH_COUNT(descs) : 1); n++)
        expect_shapes(session, descs[n], 4 * n, 4);
}

/* Scores of about 10^4, of keys that are nearly equal. The upper slices of neighbouring features cancel each other, so
 * that a score is what the products of other slices add up to. */
static void make_cancelling(th_problem *problem, uint64_t seed)
{
    const clmgk_attention_desc *const d = &problem->desc;
    uint64_t state = seed;
    for (int64_t e = 0; e < d->head_size; e += 2) {
        const double key = 1e5 * (1.2 + 0.1 * th_normal(&state)), rest = 100.0 * th_normal(&state);
        for (int64_t j = 0; j < d->length_k; j++) {
            th_set(problem, TH_K, 0, 0, 0, j, e, key);
            th_set(problem, TH_K, 0, 0, 0, j, e + 1, rest - key + 0.02 * th_normal(&state));
        }
        for (int64_t i = 0; i < d->length; i++) {
            const double query = 10.0 * th_normal(&state);
            th_set(problem, TH_Q, 0, 0, 0, i, e, query);
            th_set(problem, TH_Q, 0, 0, 0, i, e + 1, query);
        }
    }
}

/* The backward pass adds up a score's products of slices in the order of the forward pass: where a float's step is
 * 10^-3, another order would show. The programs are those of the case above. */
TH_TEST(singles_weigh_alike)
{
    enum { QKV = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V };
    clmgk_attention_desc desc = {.length = 70, .length_k = 70, .head_size = 24, .value_size = 40, .gradients = QKV};
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    TH_PROBLEM problem = th_problem_make(&desc, 3);
    make_cancelling(&problem, 1);
    th_expect_equal_weights(session, &problem, &options);
}

/* Factors that are rounded, to the sum of two bf16. Their bound holds, and that of f32 does not. */
TH_TEST(singles_of_less_precision)
{
    clmgk_attention_desc desc = {.head_size = 24, .value_size = 40, .length = 37, .length_k = 70};
    const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, NULL);
    desc.precision = CLMGK_PRECISION_TF32;
    expect_shapes(session, desc, 5, 3);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    th_run_pass(session, &problem, TH_FORWARD, &options);
    problem.desc.precision = CLMGK_PRECISION_EXACT;
    TH_REF_ANSWER exact = th_solve(&problem);
    assert_false(clmgk_ref_check(&exact, problem.array[TH_O].values, NULL).ok);
}

/* Ranges of keys side by side, a row for each fragment's place, and two fragments of rows to a warp. */
TH_TEST(ranges_of_keys)
{
    clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_BF16, .head_size = 16, .value_size = 16, .causal = 1};
    desc.length = 37;
    desc.length_k = 101;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    expect(session, &problem, "splits=4,row-tiles=2,warps=2,key-tiles=4");
}

/* Keys of two components, so large that values have one place (cl/engine/matrix/backward.clh). Rows see three of four
 * tiles, the last of which is not whole. */
TH_TEST(values_in_one_place)
{
    clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_MGK,
                                 .components = 2,
                                 .dtype = CLMGK_DTYPE_BF16,
                                 .head_size = 64,
                                 .value_size = 64,
                                 .length = 20,
                                 .length_k = 201,
                                 .use_window = 1,
                                 .window_left = 130,
                                 .window_right = 3,
                                 .gradients = CLMGK_GRADIENT_Q};
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    expect(session, &problem, "splits=1,row-tiles=1,warps=1,key-tiles=8");
}

/* Ranges of all blocks but the first, whose rows have O at once: in the array's type, in pairs of columns or (an odd
 * number of them) one by one. A mask leaves their order as it is. The last problem's sinks are so far above all logits
 * that only the large values' products with weights do not underflow. */
TH_TEST(ranges_of_the_last_blocks)
{
    static const char parameters[] = "splits=4,split-from=1,row-tiles=1,warps=1,key-tiles=2";
    for (size_t n = 0; n < 5; n++) {
        clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_BF16, .head_size = 16, .use_sinks = 1};
        desc.batch = desc.heads = n == 3 ? 1 : 2;
        desc.length = n == 3 ? 16 : 37; /* one block, which is not split */
        desc.length_k = 101;
        desc.value_size = n % 2 == 0 ? 16 : 13;
        desc.causal = n == 1;
        desc.use_lengths = desc.use_lengths_q = n == 2;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        if (n == 4) {
            th_fill(&problem, TH_SINKS, 92.0);
            th_scale(&problem, TH_V, 1e30);
        }
        expect(session, &problem, parameters);
    }
}

/* The queries of heads that share keys fill a block, where their rows are at equal distances; masks count queries. */
TH_TEST(packed_query_heads)
{
    static const th_group shapes[] = {{1, 70, 3, false},  {5, 101, 3, false}, {7, 40, 5, false},
                                      {15, 33, 2, false}, {1, 50, 8, true},   {3, 64, 2, true}};
    for (size_t n = 0; n < 4 * TH_COUNT(shapes); n++) {
        if (!th_takes(session, n, 3)) /* every shape, every mask */
            continue;
        clmgk_attention_desc desc = {.dtype = CLMGK_DTYPE_BF16, .head_size = 16, .value_size = 16};
        th_share_keys(&desc, &shapes[n / 4], n);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        expect(session, &problem, "splits=2");
    }
}

/* ---- edges of the ring of tiles: programs of softmax_in_both_passes -------------------------------------------- */

static clmgk_attention_desc edge_desc(int64_t length, int64_t length_k)
{
    return (clmgk_attention_desc){.dtype = CLMGK_DTYPE_F16,
                                  .head_size = 24,
                                  .value_size = 40,
                                  .length = length,
                                  .length_k = length_k,
                                  .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V};
}

/* Tiles whose copies are under way when the mask hides them from a whole block of rows, and rows that see no key. */
TH_TEST(hidden_tiles_and_rows_without_keys)
{
    static const struct {
        int64_t length, length_k, left, right;
    } cases[] = {{40, 70, 8, 2}, {50, 20, 0, 0}, {36, 12, -1, 0}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_attention_desc desc = edge_desc(cases[n].length, cases[n].length_k);
        desc.use_window = 1;
        desc.window_left = cases[n].left;
        desc.window_right = cases[n].right;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        expect(session, &problem, NULL);
    }
}

/* The last tile is full, or has one key; the next one would lie beyond the arrays, which end at a guard page if there
 * is a guard layer. */
TH_TEST(last_tiles)
{
    for (int64_t keys = 32; keys <= 33; keys++) {
        const clmgk_attention_desc desc = edge_desc(keys, keys);
        TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)keys);
        expect(session, &problem, NULL);
    }
}

/* Padding holds NaN, between the rows too. */
TH_TEST(padding_that_is_not_a_number)
{
    static const int64_t lengths[] = {19, 3}, lengths_q[] = {9, 20};
    clmgk_attention_desc desc = edge_desc(20, 23);
    desc.batch = 2;
    desc.heads = desc.kv_heads = desc.components = 1;
    desc.use_lengths = desc.use_lengths_q = 1;
    th_put_tokens_first(&desc, 1, 1, 1, 3, false);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    for (int64_t b = 0; b < desc.batch; b++) {
        th_set(&problem, TH_LENGTHS, b, 0, 0, 0, 0, (double)lengths[b]);
        th_set(&problem, TH_LENGTHS_Q, b, 0, 0, 0, 0, (double)lengths_q[b]);
        th_poison(&problem, TH_K, b, lengths[b]);
        th_poison(&problem, TH_V, b, lengths[b]);
        th_poison(&problem, TH_Q, b, lengths_q[b]);
        th_poison(&problem, TH_GRAD_O, b, lengths_q[b]);
    }
    expect(session, &problem, NULL);
}

/* Packed sequences whose neighbours hold NaN and infinities, in the middle of tiles. */
TH_TEST(packed_neighbours)
{
    static const double offsets[] = {0, 21, 21, 40, 50};
    clmgk_attention_desc desc = edge_desc(50, 50);
    desc.gradients = 0;
    desc.sequences = 4;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    for (int64_t t = 0; t < (int64_t)TH_COUNT(offsets); t++)
        th_set(&problem, TH_OFFSETS, t, 0, 0, 0, 0, offsets[t]);
    for (int64_t n = 40; n < 50; n++) {
        th_poison_row(&problem, TH_K, 0, 0, n);
        th_set(&problem, TH_V, 0, 0, 0, n, 1, (double)INFINITY);
    }
    th_poison_row(&problem, TH_V, 0, 0, 0);
    expect(session, &problem, NULL);
}

/* Gaussian scores, where the products for dQ and dK nearly cancel what the rows and keys add themselves. */
TH_FULL_TEST(far_from_the_origin)
{
    static const clmgk_dtype dtypes[] = {CLMGK_DTYPE_F16, CLMGK_DTYPE_BF16, CLMGK_DTYPE_F32};
    for (size_t n = 0; n < TH_COUNT(dtypes); n++) {
        const clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_MGK,
                                           .dtype = dtypes[n],
                                           .precision = n == 2 ? CLMGK_PRECISION_TF32 : CLMGK_PRECISION_EXACT,
                                           .components = 2,
                                           .head_size = 24,
                                           .value_size = 16,
                                           .length = 50,
                                           .length_k = 70,
                                           .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V};
        TH_PROBLEM problem = th_far_problem(desc);
        expect(session, &problem, NULL);
    }
}

/* ---- mixed heads ------------------------------------------------------------------------------------------------ */

/* th_set_shape gives heads that share values, and a last block with fewer heads than it could hold. */
static const clmgk_attention_desc mixed_bf16 = {
    .variant = CLMGK_VARIANT_HARD_FISH, .dtype = CLMGK_DTYPE_BF16, .components = 2, .head_size = 24, .value_size = 40};

TH_TEST(mixed_heads_in_both_passes)
{
    clmgk_attention_desc desc = mixed_bf16;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_MIX;
    expect_shapes(session, desc, 0, session->full ? 9 : 6);
}

/* Without dV all heads share a tile, and each copies the next one's values and dO over its own: as those of one mixture
 * (below) in every tier. */
TH_FULL_TEST(mixed_heads_without_gradients_of_values)
{
    clmgk_attention_desc desc = mixed_bf16;
    desc.gradients = CLMGK_GRADIENT_K;
    expect_shapes(session, desc, 0, 6);
}

/* Noise of each head, relu, dropout, bias, ALiBi, soft-cap, sinks; three products; four heads in registers. */
TH_TEST(mixed_heads_with_all_modifiers)
{
    clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_GFISH,
                                 .dtype = CLMGK_DTYPE_F16,
                                 .components = 3,
                                 .head_size = 5,
                                 .value_size = 7,
                                 .use_mix_weight = 1,
                                 .use_mix_offset = 1,
                                 .use_alibi = 1,
                                 .use_sinks = 1,
                                 .softcap = 3.0,
                                 .dropout = 0.25,
                                 .use_bias = 1,
                                 .bias_batch = 1,
                                 .bias_heads = 5,
                                 .bias_length = 50,
                                 .bias_length_k = 70,
                                 .causal = 1,
                                 .heads = 5,
                                 .length = 50,
                                 .length_k = 70};
    desc.gradients = th_all_gradients(&desc);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    expect(session, &problem, "heads=4,key-tiles=2,splits=1");
}

/* One softmax for all heads, and ranges of keys side by side. */
TH_TEST(one_mixture_for_all_heads)
{
    clmgk_attention_desc desc = {.variant = CLMGK_VARIANT_HARD_MISH,
                                 .dtype = CLMGK_DTYPE_BF16,
                                 .components = 9,
                                 .head_size = 16,
                                 .value_size = 32,
                                 .heads = 3,
                                 .length = 37,
                                 .length_k = 101,
                                 .gradients =
                                     CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_MIX};
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    expect(session, &problem, "splits=4,row-tiles=2,warps=2,key-tiles=4");
}

/* ---- layouts of other units -------------------------------------------------------------------------------------- */

#define OF_INPUTS (CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V)

/* A descriptor's shapes with the layout of a unit. */
static void expect_layout(th_session *session, const clmgk_attention_desc *desc, int unit, size_t count)
{
    char parameters[16];
    (void)snprintf(parameters, sizeof(parameters), "emulates=%d", unit);
    clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, parameters);
    options.backward_parameters = parameters;
    th_expect_shapes(session, *desc, &options, (uint64_t)unit, 0, count);
}

/* Waves of 64 of AMD's mfma in both passes, and tiles of 8 columns; in full the other layouts. */
TH_TEST(layouts_of_units)
{
    static const clmgk_attention_desc forward = {.dtype = CLMGK_DTYPE_BF16, .head_size = 24, .value_size = 40};
    static const int others[] = {MATRIX_DPAS_8, MATRIX_WMMA, MATRIX_WMMA_12};
    expect_layout(session, &softmax_f16, MATRIX_MFMA, 4);
    for (size_t n = 0; n < (session->full ? TH_COUNT(others) : 1); n++)
        expect_layout(session, &forward, others[n], 4);
}

/* Both passes of both families with all layouts. */
TH_FULL_TEST(layouts_of_units_everywhere)
{
    const clmgk_attention_desc descs[] = {softmax_f16,
                                          {.variant = CLMGK_VARIANT_MGK,
                                           .dtype = CLMGK_DTYPE_BF16,
                                           .components = 3,
                                           .prior_shape = CLMGK_PRIOR_HMS,
                                           .head_size = 44,
                                           .value_size = 36,
                                           .dropout = 0.2,
                                           .gradients = OF_INPUTS | CLMGK_GRADIENT_PRIOR},
                                          {.variant = CLMGK_VARIANT_SMGK,
                                           .dtype = CLMGK_DTYPE_F16,
                                           .components = 2,
                                           .head_size = 120,
                                           .value_size = 16,
                                           .gradients = OF_INPUTS | CLMGK_GRADIENT_SHIFT},
                                          {.variant = CLMGK_VARIANT_HARD_FISH,
                                           .dtype = CLMGK_DTYPE_BF16,
                                           .components = 3,
                                           .head_size = 20,
                                           .value_size = 24,
                                           .gradients = OF_INPUTS | CLMGK_GRADIENT_MIX},
                                          {.variant = CLMGK_VARIANT_MISH,
                                           .dtype = CLMGK_DTYPE_F16,
                                           .components = 2,
                                           .head_size = 32,
                                           .value_size = 64,
                                           .gradients = OF_INPUTS}};
    for (int unit = MATRIX_MFMA; unit <= MATRIX_DPAS_8; unit++)
        for (size_t n = 0; n < TH_COUNT(descs); n++)
            expect_layout(session, &descs[n], unit, 2);
}

/* Arrays that its products do not take, and families that it lacks. */
TH_TEST(other_problems_are_refused)
{
    static const struct {
        clmgk_attention_desc desc;
        const char *words, *parameters;
    } cases[] = {
        {{.value_size = 129}, "at most 128 numbers", NULL},
        {{.dtype = CLMGK_DTYPE_F16, .dtype_k = CLMGK_STORAGE_F32, .gradients = CLMGK_GRADIENT_Q}, "one type", NULL},
        {{.variant = CLMGK_VARIANT_HARD_FISH, .precision = CLMGK_PRECISION_TF32}, "slices of f32", NULL},
        {{.dtype_o = CLMGK_STORAGE_F16, .gradients = CLMGK_GRADIENT_V}, "one for V and O", NULL},
        {{.dtype = CLMGK_DTYPE_F16, .dtype_k = CLMGK_STORAGE_BF16, .gradients = CLMGK_GRADIENT_Q}, "one type", NULL},
        {{.dtype = CLMGK_DTYPE_BF16, .dtype_v = CLMGK_STORAGE_F16, .gradients = CLMGK_GRADIENT_V}, "one type", NULL},
        {{.dtype = CLMGK_DTYPE_BF16, .dtype_o = CLMGK_STORAGE_F16}, "finer weights", NULL},
        {{.dtype = CLMGK_DTYPE_F16, .dtype_o = CLMGK_STORAGE_F32}, "finer weights", NULL},
        {{.dtype = CLMGK_DTYPE_F16, .variant = CLMGK_VARIANT_HARD_FISH, .components = 9}, "8 global heads", NULL},
        {{.dtype = CLMGK_DTYPE_F16, .variant = CLMGK_VARIANT_LINEAR}, "softmax", NULL},
        {{.dtype = CLMGK_DTYPE_F32}, "no products of f32", "emulates=5"},
        {{.dtype = CLMGK_DTYPE_F16}, "key-tiles: expected a multiple of 4", "emulates=5,key-tiles=2"},
        {{.dtype = CLMGK_DTYPE_F16, .value_size = 128}, "warps: expected at least 2", "emulates=9,warps=1"}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_attention_desc desc = cases[n].desc;
        const clmgk_plan_options options = th_options_of(CLMGK_ENGINE_MATRIX, cases[n].parameters);
        clmgk_plan *plan = NULL;
        desc.struct_size = sizeof(desc);
        desc.heads = 2;
        desc.length = 8;
        desc.head_size = 16;
        th_expect_error(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error), CLMGK_ERROR_UNSUPPORTED,
                        cases[n].words);
    }
}
