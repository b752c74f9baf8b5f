/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients and statistics: runs, and the reference's answers. */
#include "harness/harness.h"

#include <math.h>

static const int64_t corner[TH_CORNERS][2] = {{0, 5}, {5, 0}, {1, 130}, {70, 1}, {1, 1}, {64, 64}, {65, 129}, {33, 31}};

void th_set_shape(clmgk_attention_desc *desc, size_t number, uint64_t *state)
{
    const bool packed = desc->sequences > 0;
    desc->batch = packed ? 1 : th_pick(state, 1, 4);
    desc->kv_heads = th_pick(state, 1, 3);
    desc->heads = desc->kv_heads * th_pick(state, 1, 2);
    desc->length = number < TH_CORNERS ? corner[number][0] : th_pick(state, 2, 140);
    desc->length_k = th_keys(number < TH_CORNERS ? corner[number][1] : th_pick(state, 2, 200));
    desc->use_offsets_k = packed;
    desc->causal = th_chance(state, 2);
    desc->use_window = th_chance(state, 3);
    desc->window_left = th_pick(state, -1, 70);
    desc->window_right = th_pick(state, -1, 70);
    if (!desc->use_window)
        desc->window_left = desc->window_right = 0;
    desc->use_lengths = !packed && th_chance(state, 2);
    desc->use_lengths_q = !packed && th_chance(state, 3);
    desc->alignment = (clmgk_alignment)th_pick(state, 0, desc->use_lengths ? 2 : 1);
    if (desc->use_bias) {
        desc->bias_batch = th_chance(state, 2) ? 1 : desc->batch == 4 ? 2 : desc->batch;
        desc->bias_heads = th_chance(state, 2) ? 1 : desc->heads;
    }
}

uint32_t th_all_gradients(const clmgk_attention_desc *desc)
{
    const uint32_t traits = clmgk_variant_traits(desc->variant);
    const bool mixed = (traits & CLMGK_TRAIT_ADMIXTURE) != 0, linear = (traits & CLMGK_TRAIT_LINEAR) != 0;
    uint32_t set = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    set |= mixed ? CLMGK_GRADIENT_MIX : linear ? 0 : CLMGK_GRADIENT_VARIANCE;
    if ((traits & CLMGK_TRAIT_GENERALISED) != 0)
        set |= CLMGK_GRADIENT_MIX_WEIGHT | (linear ? 0 : CLMGK_GRADIENT_MIX_OFFSET);
    if (desc->mix_hidden > 0)
        set |= CLMGK_GRADIENT_MIX_HIDDEN_OFFSET;
    if (desc->mix_after_heads > 0)
        set |= CLMGK_GRADIENT_MIX_AFTER;
    if ((traits & CLMGK_TRAIT_NOISE) != 0)
        set |= CLMGK_GRADIENT_NOISE;
    if ((traits & CLMGK_TRAIT_PRIOR) != 0)
        set |= CLMGK_GRADIENT_PRIOR;
    if ((traits & CLMGK_TRAIT_SHIFT) != 0)
        set |= CLMGK_GRADIENT_SHIFT;
    if (desc->use_state)
        set |= CLMGK_GRADIENT_STATE_C | CLMGK_GRADIENT_STATE_Z;
    if (desc->use_bias)
        set |= CLMGK_GRADIENT_BIAS;
    if (desc->use_sinks)
        set |= CLMGK_GRADIENT_SINKS;
    for (int c = 0; desc->score_mod && c < CLMGK_MAX_CAPTURES && desc->captures[c].name; c++)
        set |= desc->captures[c].type == CLMGK_CAPTURE_I32 ? 0 : (uint32_t)CLMGK_GRADIENT_CAPTURE_0 << c;
    if (desc->score_mod && desc->numbers[0])
        set |= CLMGK_GRADIENT_NUMBERS;
    return set;
}

void th_run_training(th_session *session, th_problem *problem, const clmgk_plan_options *options)
{
    th_run_pass(session, problem, TH_FORWARD, options);
    th_run_pass(session, problem, TH_BACKWARD, options);
}

/* Element (n, d) of the first head of an array. */
static double *element(const th_problem *problem, th_name name, int64_t n, int64_t d)
{
    const th_array *const array = &problem->array[name];
    return array->values + n * array->shape[TH_RANK - 1] + d;
}

void th_expect_equal_weights(th_session *session, th_problem *problem, const clmgk_plan_options *options)
{
    const int64_t rows = problem->desc.length, keys = problem->desc.length_k;
    /* P and the weights that O and dV show are rounded to the arrays' type, or to the products' precision */
    const bool rounded = problem->desc.dtype == CLMGK_DTYPE_BF16 || problem->desc.precision == CLMGK_PRECISION_BF16;
    const bool halves = problem->desc.dtype == CLMGK_DTYPE_F16;
    const double room = 4e-6 + (rounded ? 0x1p-6 : halves ? 0x1p-9 : 0.0);
    const double visible = halves ? 0x1p-14 : 1e-9; /* below 2^-14 f16 has fewer digits */
    th_fill(problem, TH_V, 0.0);
    th_fill(problem, TH_GRAD_O, 0.0);
    for (int64_t n = 0; n < TH_PROBES; n++) {
        *element(problem, TH_V, n * (keys - 1) / (TH_PROBES - 1), n) = 1.0;
        *element(problem, TH_GRAD_O, n * (rows - 1) / (TH_PROBES - 1), n) = 1.0;
    }
    th_run_training(session, problem, options);
    session->cases++;
    for (int64_t m = 0; m < TH_PROBES; m++) {
        double least = (double)INFINITY, most = 0.0;
        for (int64_t n = 0; n < TH_PROBES; n++) {
            const double forward = *element(problem, TH_O, m * (rows - 1) / (TH_PROBES - 1), n);
            const double backward = *element(problem, TH_GRAD_V, n * (keys - 1) / (TH_PROBES - 1), m);
            assert_true(isfinite(forward) && isfinite(backward) && backward <= 1.0);
            if (forward < visible)
                continue;
            /* a weight of 1, the limit, may lack part of the error that the row's weights share */
            least = backward < 1.0 ? fmin(least, backward / forward) : least;
            most = fmax(most, backward / forward);
        }
        char text[512];
        th_describe(problem, options->engine, text, sizeof(text));
        /* with lse_low P has no error that is common to a row */
        const bool exact = problem->desc.use_lse_low && most > 0.0 && (least < 1.0 - room || most > 1.0 + room);
        if (exact || most > least * (1.0 + room))
            fail_msg("%s, row %d of the probes: backward weighs keys %.9g to %.9g times as forward", text, (int)m,
                     least, most);
    }
}

void th_make_rivals(th_problem *problem, uint64_t seed)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const int64_t components = (clmgk_variant_traits(d->variant) & CLMGK_TRAIT_KEYS) != 0 ? d->components : 1;
    const int64_t heads = (clmgk_variant_traits(d->variant) & CLMGK_TRAIT_ADMIXTURE) != 0 ? d->components : d->kv_heads;
    uint64_t state = seed;
    th_scale(problem, TH_Q, 30.0);
    for (int64_t n = 0; n < heads * components * d->length_k; n++)
        for (int64_t e = 0; e < d->head_size; e++) {
            const double apart = n % 3 == 0 ? 0.0 : 0.02 * th_normal(&state);
            th_set(problem, TH_K, 0, n / d->length_k / components, n / d->length_k % components, n % d->length_k, e,
                   e % 2 == 0 ? 400.0 + apart : -100.0 + apart);
        }
}

static clmgk_ref_arrays solve(const th_problem *problem,
                              bool (*reference_of)(const clmgk_ref_problem *, uint32_t, clmgk_ref_arrays *),
                              uint32_t which)
{
    clmgk_ref_arrays exact;
    th_reference reference = th_reference_of(problem);
    assert_true(reference_of(&reference.problem, which, &exact));
    th_reference_free(&reference);
    return exact;
}

clmgk_ref_arrays th_solve_gradients(const th_problem *problem)
{
    return solve(problem, clmgk_ref_solve_gradients, problem->desc.gradients);
}

clmgk_ref_arrays th_solve_statistics(const th_problem *problem)
{
    return solve(problem, clmgk_ref_solve_statistics, problem->desc.statistics);
}

bool th_matches_array(const th_problem *problem, th_name name, const clmgk_ref_arrays *exact, th_message *message)
{
    const th_array *const array = &problem->array[name];
    const int which = (int)name - (int)(name < TH_RESPONSIBILITIES ? TH_GRAD_Q : TH_RESPONSIBILITIES);
    message->text[0] = '\0';
    assert_true(array->used && (int64_t)array->count == exact->count[which]);
    clmgk_ref_check_array(exact, which, array->values, message->text, sizeof(message->text));
    return message->text[0] == '\0';
}

/* Compares arrays: number `which` of the exact ones with number first + which of the problem. */
static void check_arrays(th_session *session, const th_problem *problem, clmgk_engine engine,
                         const clmgk_ref_arrays *exact, th_name first)
{
    session->cases++;
    for (unsigned which = 0; which < CLMGK_REF_ARRAYS; which++) {
        char text[512];
        th_message message;
        if ((exact->set >> which & 1U) == 0 || th_matches_array(problem, first + which, exact, &message))
            continue;
        th_describe(problem, engine, text, sizeof(text));
        fail_msg("%s: %s", text, message.text);
    }
}

void th_check_gradients(th_session *session, const th_problem *problem, clmgk_engine engine,
                        const clmgk_ref_arrays *exact)
{
    check_arrays(session, problem, engine, exact, TH_GRAD_Q);
}

void th_check_statistics(th_session *session, const th_problem *problem, clmgk_engine engine,
                         const clmgk_ref_arrays *exact)
{
    check_arrays(session, problem, engine, exact, TH_RESPONSIBILITIES);
}

void th_expect_training(th_session *session, th_problem *problem, const clmgk_plan_options *options)
{
    th_run_training(session, problem, options);
    TH_REF_ARRAYS exact = th_solve_gradients(problem); /* of the values as the device holds them */
    th_check_gradients(session, problem, options->engine, &exact);
}

clmgk_plan_options th_options_of(clmgk_engine engine, const char *parameters)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = engine;
    options.parameters = options.backward_parameters = parameters;
    return options;
}

void th_expect_passes(th_session *session, th_problem *problem, const clmgk_plan_options *options)
{
    th_run_pass(session, problem, TH_FORWARD, options);
    TH_REF_ANSWER answer = th_solve(problem);
    th_check(session, problem, options->engine, &answer);
    if (problem->desc.gradients == 0)
        return;
    th_round_values(session, problem, TH_BACKWARD);
    TH_REF_ARRAYS exact = th_solve_gradients(problem);
    th_run_pass(session, problem, TH_BACKWARD, options);
    th_check_gradients(session, problem, options->engine, &exact);
}

/* Kernels that nothing optimises take long where a CPU computes what matrix units would: one batch, and one head of
 * keys. */
static void make_quick(clmgk_attention_desc *desc)
{
    enum { PAIRS = 25000 };
    if (desc->batch * desc->heads * desc->length * desc->length_k <= PAIRS)
        return;
    desc->batch = 1;
    desc->heads /= desc->kv_heads;
    desc->kv_heads = 1;
    desc->bias_batch = desc->bias_heads = desc->use_bias;
}

void th_expect_shapes(th_session *session, clmgk_attention_desc desc, const clmgk_plan_options *options, uint64_t seed,
                      size_t first, size_t count)
{
    for (size_t n = first; n < first + (session->full ? 4 * count : count); n++) {
        th_set_shape(&desc, n, &seed);
        if (!session->full)
            make_quick(&desc);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (th_name name = TH_Q; n % 2 == 1 && name <= TH_O; name++)
            problem.array[name].offset = 2 * (uint64_t)name + 1; /* no piece of a row is aligned */
        th_expect_passes(session, &problem, options);
    }
}

void th_expect_gradients(th_session *session, th_problem *problem, bool all)
{
    const size_t engines = all || session->full ? session->engines : 1;
    clmgk_ref_arrays exact = {0};
    for (size_t n = 0; n < engines; n++) {
        const clmgk_plan_options options = th_options(session, n);
        th_run_training(session, problem, &options);
        if (n == 0)
            exact = th_solve_gradients(problem); /* of the values as the device holds them */
        th_check_gradients(session, problem, options.engine, &exact);
    }
    clmgk_ref_arrays_free(&exact);
}

void th_expect_statistics(th_session *session, th_problem *problem, bool all)
{
    const size_t engines = all || session->full ? session->engines : 1;
    clmgk_ref_arrays exact = {0};
    for (size_t n = 0; n < engines; n++) {
        const clmgk_plan_options options = th_options(session, n);
        th_run_pass(session, problem, TH_STATISTICS, &options);
        if (n == 0)
            exact = th_solve_statistics(problem);
        th_check_statistics(session, problem, options.engine, &exact);
    }
    clmgk_ref_arrays_free(&exact);
}
