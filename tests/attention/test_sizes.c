/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose calls have sizes of their own, within the descriptor's. */
#include "harness/harness.h"

#include <string.h>

static clmgk_attention_desc limits_of(clmgk_variant variant, int64_t batch, int64_t length, int64_t length_k)
{
    clmgk_attention_desc desc = th_small_desc(variant, length, length_k);
    desc.batch = batch;
    desc.sizes_at_call = 1;
    return desc;
}

/* The descriptor of a call alone. */
static clmgk_attention_desc call_desc(const clmgk_attention_desc *limits, int64_t batch, int64_t length,
                                      int64_t length_k)
{
    clmgk_attention_desc desc = *limits;
    desc.batch = batch;
    desc.length = length;
    desc.length_k = th_keys(length_k);
    desc.sizes_at_call = 0;
    return desc;
}

static clmgk_call_sizes sizes_of(const clmgk_attention_desc *resolved)
{
    clmgk_call_sizes sizes = CLMGK_CALL_SIZES_INIT;
    sizes.batch = resolved->batch;
    sizes.length = resolved->length;
    sizes.length_k = resolved->length_k > 0 ? resolved->length_k : CLMGK_NO_KEYS;
    sizes.sequences = resolved->sequences;
    sizes.table_pages = resolved->table_pages;
    sizes.q = resolved->q;
    sizes.k = resolved->k;
    sizes.v = resolved->v;
    sizes.o = resolved->o;
    sizes.lse = resolved->lse;
    sizes.grad_o = resolved->grad_o;
    sizes.grad_q = resolved->grad_q;
    sizes.grad_k = resolved->grad_k;
    sizes.grad_v = resolved->grad_v;
    sizes.append = resolved->append;
    sizes.append_k = resolved->append_k;
    sizes.append_v = resolved->append_v;
    sizes.scale_k = resolved->scale_k;
    sizes.scale_v = resolved->scale_v;
    return sizes;
}

/* Uploads a problem, with the workspace that its call needs. `sizes`: NULL: the descriptor's. */
static th_device upload_for(const th_session *session, th_problem *problem, th_pass pass, clmgk_plan *plan,
                            const clmgk_call_sizes *sizes)
{
    size_t bytes = clmgk_plan_workspace_size(plan);
    if (sizes != NULL)
        th_expect_ok(clmgk_plan_call_workspace_size(plan, sizes, &bytes, &th_error));
    assert_true(bytes <= clmgk_plan_workspace_size(plan));
    th_device device = th_upload_for(session, problem, pass, bytes);
    device.args.sizes = sizes;
    return device;
}

static th_device upload(const th_session *session, th_problem *problem, clmgk_plan *plan, const clmgk_call_sizes *sizes)
{
    return upload_for(session, problem, TH_FORWARD, plan, sizes);
}

/* Runs a pass of a problem as a call of these sizes. */
static void run_sizes(th_session *session, clmgk_plan *plan, th_problem *problem, th_pass pass,
                      const clmgk_call_sizes *sizes)
{
    TH_DEVICE device = upload_for(session, problem, pass, plan, sizes);
    th_enqueue(plan, session->queue, &device, 0, NULL, NULL);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    th_download(session, problem, &device);
}

/* Runs a pass of a problem as a call of a plan for any sizes. */
static void run_call(th_session *session, clmgk_plan *plan, th_problem *problem, th_pass pass)
{
    const clmgk_call_sizes sizes = sizes_of(&problem->desc);
    run_sizes(session, plan, problem, pass, &sizes);
}

static clmgk_engine engine_of(const clmgk_plan *plan)
{
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    return info.engine;
}

static void expect_answer(th_session *session, const clmgk_plan *plan, th_problem *problem)
{
    TH_REF_ANSWER answer = th_solve(problem);
    th_check(session, problem, engine_of(plan), &answer);
}

/* Runs a problem as a call of a plan for any sizes, and compares with the reference. */
static void expect_call(th_session *session, clmgk_plan *plan, th_problem *problem)
{
    run_call(session, plan, problem, TH_FORWARD);
    expect_answer(session, plan, problem);
}

/* A plan of fixed sizes with the same parameters gives the same bits. `parameters`: NULL: those of the plan. */
static void expect_same_bits(th_session *session, clmgk_plan *plan, const th_problem *problem, const char *parameters)
{
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = info.engine;
    options.parameters = parameters != NULL ? parameters : info.parameters;
    TH_PROBLEM other = th_problem_make(&problem->desc, 1);
    th_copy_inputs(&other, problem);
    th_run_pass(session, &other, TH_FORWARD, &options);
    th_expect_equal_bits(problem, &other, TH_O);
    th_expect_equal_bits(problem, &other, TH_LSE);
}

static const int64_t lengths[][3] = {{1, 1, 1},  {2, 40, 40}, {1, 7, 301}, {3, 70, 1},
                                     {1, 33, 0}, {2, 0, 20},  {3, 97, 64}, {1, 70, 300}};

/* Calls of all sizes; with the plan's own, too. */
static void sweep(th_session *session, const clmgk_attention_desc *limits, size_t engine, const char *parameters)
{
    clmgk_plan *const plan = th_plan(session, limits, session->engine[engine], parameters);
    for (size_t n = 0; n < TH_COUNT(lengths); n++) {
        const clmgk_attention_desc desc = call_desc(limits, lengths[n][0], lengths[n][1], lengths[n][2]);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        expect_call(session, plan, &problem);
        if (lengths[n][1] > 4 && n < 4)
            expect_same_bits(session, plan, &problem, NULL);
    }
    clmgk_plan_release(plan);
}

TH_TEST(any_sizes)
{
    clmgk_attention_desc desc = limits_of(CLMGK_VARIANT_SOFTMAX, 3, 100, 301);
    desc.causal = 1;
    for (size_t n = 0; n < (session->full ? session->engines : 2) && n < session->engines; n++)
        sweep(session, &desc, n, NULL);
}

/* Scales of any layout: of each row, of each head, or one of all. */
TH_TEST(caches_with_scales)
{
    clmgk_attention_desc limits = limits_of(CLMGK_VARIANT_SOFTMAX, 2, 40, 200);
    limits.head_size = limits.value_size = 64;
    limits.dtype_k = CLMGK_STORAGE_INT8;
    limits.dtype_v = CLMGK_STORAGE_E4M3;
    limits.use_scale_k = limits.use_scale_v = 1;
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[0], NULL);
    for (size_t n = 0; n < 3; n++) {
        clmgk_attention_desc desc = call_desc(&limits, 1 + (int64_t)n % 2, 40 - 7 * (int64_t)n, 200 - 51 * (int64_t)n);
        if (n > 0)
            desc.scale_v = (clmgk_layout){.strided = 1, .head = n == 1};
        TH_PROBLEM problem = th_problem_make(&desc, 1); /* with the scales of the other problem, below */
        expect_call(session, plan, &problem);
        expect_same_bits(session, plan, &problem, NULL);
    }
    clmgk_plan_release(plan);
}

/* Each new length of a cache is a call of the same programs, in one range of keys or several. */
TH_TEST(a_growing_cache)
{
    const clmgk_attention_desc desc = limits_of(CLMGK_VARIANT_SOFTMAX, 2, 1, 2100);
    for (size_t n = 0; n < 2 && n < session->engines; n++) {
        clmgk_plan *const plan = th_plan(session, &desc, session->engine[n], NULL);
        for (int64_t keys = 1; keys <= 2100; keys += session->full ? 1 : keys < 40 ? 7 : 512) {
            const clmgk_attention_desc step = call_desc(&desc, 1 + keys % 2, 1, keys);
            TH_PROBLEM problem = th_problem_make(&step, (uint64_t)keys);
            expect_call(session, plan, &problem);
            if (keys == 8)
                expect_same_bits(session, plan, &problem, "");
        }
        clmgk_plan_release(plan);
    }
}

/* A call of the sizes of the one before takes its plan; one that differs in a number does not. */
TH_TEST(equal_sizes_again)
{
    enum { N = 7, S = 60 };
    static const int64_t row = 20, heads = 2;
    const clmgk_attention_desc limits = limits_of(CLMGK_VARIANT_SOFTMAX, 2, N, S);
    clmgk_attention_desc calls[3];
    for (int n = 0; n < 3; n++)
        calls[n] = call_desc(&limits, 2, N, n == 2 ? S - 1 : S);
    calls[1].v = (clmgk_layout){.strided = 1, .batch = S * heads * row, .head = row, .token = heads * row};
    static const int order[] = {0, 0, 1, 0, 2, 2, 1, 1, 0};
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[0], NULL);
    for (size_t i = 0; i < TH_COUNT(order); i++) {
        TH_PROBLEM problem = th_problem_make(&calls[order[i]], i);
        expect_call(session, plan, &problem);
    }
    /* sizes that are all 0 mean no queries, no sizes the descriptor's */
    const clmgk_call_sizes none = CLMGK_CALL_SIZES_INIT;
    size_t bytes = 0;
    th_expect_ok(clmgk_plan_call_workspace_size(plan, &none, &bytes, &th_error));
    TH_PROBLEM whole = th_problem_make(&calls[0], 1);
    run_sizes(session, plan, &whole, TH_FORWARD, NULL);
    expect_answer(session, plan, &whole);
    clmgk_plan_release(plan);
}

/* All variants, with every array whose shape follows the sizes. */
static clmgk_attention_desc rich_limits(size_t n, clmgk_variant variant)
{
    clmgk_attention_desc desc = limits_of(variant, 3, 80, 120);
    desc.use_bias = n % 2 == 0;
    desc.bias_batch = n % 4 == 0 ? 3 : 0;
    if (desc.use_bias)
        th_set_bias_axes(&desc, n);
    desc.use_lengths = n % 3 != 0;
    desc.use_lengths_q = n % 3 == 1;
    desc.alignment = (clmgk_alignment)(n % 3);
    desc.causal = n % 4 == 1;
    desc.use_alibi = desc.use_sinks = n % 5 == 0;
    if (variant == CLMGK_VARIANT_MGK)
        desc.prior_shape = CLMGK_PRIOR_HMS;
    return desc;
}

static void sweep_rich(th_session *session, clmgk_variant variant, size_t n, size_t engine)
{
    const clmgk_attention_desc limits = rich_limits(n, variant);
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[engine], NULL);
    static const int64_t sizes[][3] = {{1, 1, 120}, {3, 80, 7}, {2, 5, 0}, {1, 65, 66}};
    for (size_t i = 0; i < TH_COUNT(sizes); i++) {
        clmgk_attention_desc desc = call_desc(&limits, sizes[i][0], sizes[i][1], sizes[i][2]);
        if (desc.use_bias) {
            desc.bias_batch = limits.bias_batch == 1 ? 1 : 0;
            th_set_bias_axes(&desc, n);
        }
        TH_PROBLEM problem = th_problem_make(&desc, i);
        expect_call(session, plan, &problem);
    }
    clmgk_plan_release(plan);
}

TH_TEST(arrays_of_the_call)
{
    sweep_rich(session, CLMGK_VARIANT_MGK, 4, 0);
    sweep_rich(session, CLMGK_VARIANT_HARD_FISH, 1, 0);
}

TH_FULL_TEST(all_variants)
{
    for (size_t engine = 0; engine < session->engines; engine++) {
        const bool emulated = session->engine[engine] == CLMGK_ENGINE_MATRIX; /* its compilations take long */
        for (size_t n = 0; n < (emulated ? 1 : TH_COUNT(th_variants)); n++)
            sweep_rich(session, th_variants[n], n, engine);
        for (size_t n = 0; !emulated && n < TH_COUNT(th_admixtures); n++)
            sweep_rich(session, th_admixtures[n], n, engine);
    }
}

/* ---- backward and statistics ------------------------------------------------------------------------------------- */

/* The gradients of calls of all sizes. `axes`: of the bias. */
static void sweep_training(th_session *session, clmgk_attention_desc limits, size_t axes, size_t engine)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 80, 120}, {2, 5, 70}, {3, 0, 5}, {1, 65, 0}, {1, 80, 1}};
    limits.gradients = th_all_gradients(&limits);
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[engine], NULL);
    for (size_t n = 0; n < TH_COUNT(sizes); n++) {
        clmgk_attention_desc desc = call_desc(&limits, sizes[n][0], sizes[n][1], sizes[n][2]);
        if (desc.use_bias) {
            desc.bias_batch = limits.bias_batch == 1 ? 1 : 0;
            th_set_bias_axes(&desc, axes);
        }
        TH_PROBLEM problem = th_problem_make(&desc, n);
        th_keep_sums(&problem);
        run_call(session, plan, &problem, TH_FORWARD);
        run_call(session, plan, &problem, TH_BACKWARD);
        TH_REF_ARRAYS exact = th_solve_gradients(&problem);
        th_check_gradients(session, &problem, session->engine[engine], &exact);
    }
    clmgk_plan_release(plan);
}

TH_TEST(training)
{
    for (size_t n = 0; n < 2 && n < session->engines; n++)
        sweep_training(session, rich_limits(4, CLMGK_VARIANT_MGK), 4, n);
    sweep_training(session, rich_limits(1, CLMGK_VARIANT_HARD_FISH), 1, 0);
    clmgk_attention_desc desc = limits_of(CLMGK_VARIANT_MLK, 3, 80, 120);
    desc.causal = 1;
    sweep_training(session, desc, 0, 0);
}

TH_FULL_TEST(training_of_all_variants)
{
    for (size_t engine = 0; engine < session->engines; engine++) {
        if (session->engine[engine] == CLMGK_ENGINE_MATRIX) /* its compilations take long */
            continue;
        for (size_t n = 0; n < 2 * TH_COUNT(th_variants); n++)
            sweep_training(session, rich_limits(n, th_variants[n / 2]), n, engine);
        for (size_t n = 0; n < TH_COUNT(th_admixtures); n++)
            sweep_training(session, rich_limits(n, th_admixtures[n]), n, engine);
        for (size_t n = 0; n < TH_COUNT(th_linears); n++) {
            clmgk_attention_desc desc = limits_of(th_linears[n], 3, 80, 120);
            desc.causal = n % 2 == 0;
            desc.use_state = desc.use_new_state = n % 3 == 0;
            sweep_training(session, desc, 0, engine);
        }
    }
}

/* dQ's copies, of ranges of keys, follow the call. */
TH_TEST(ranges_of_keys_in_training)
{
    clmgk_attention_desc limits = limits_of(CLMGK_VARIANT_SOFTMAX, 2, 300, 1500);
    limits.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[0], NULL);
    for (int64_t n = 0; n < 3; n++) {
        const clmgk_attention_desc desc = call_desc(&limits, 1 + n / 2, 30, 1500 - 700 * n);
        TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)n);
        run_call(session, plan, &problem, TH_FORWARD);
        run_call(session, plan, &problem, TH_BACKWARD);
        TH_REF_ARRAYS exact = th_solve_gradients(&problem);
        th_check_gradients(session, &problem, session->engine[0], &exact);
    }
    clmgk_plan_release(plan);
}

TH_TEST(statistics)
{
    clmgk_attention_desc limits = limits_of(CLMGK_VARIANT_MGK, 3, 80, 120);
    limits.prior_shape = CLMGK_PRIOR_HM;
    limits.statistics = CLMGK_STATISTIC_ALL;
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[0], NULL);
    for (int64_t n = 0; n < 3; n++) {
        const clmgk_attention_desc desc = call_desc(&limits, 1 + n, 1 + 33 * n, 120 - 50 * n);
        TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)n);
        run_call(session, plan, &problem, TH_STATISTICS);
        TH_REF_ARRAYS exact = th_solve_statistics(&problem);
        th_check_statistics(session, &problem, session->engine[0], &exact);
    }
    clmgk_plan_release(plan);
}

/* ---- sequences, and calls at once -------------------------------------------------------------------------------- */

/* Packed sequences, whose number follows the call, and caches with a room that does. */
TH_TEST(packed_sequences)
{
    clmgk_attention_desc limits = limits_of(CLMGK_VARIANT_SOFTMAX, 1, 150, 150);
    limits.sequences = 9;
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[0], NULL);
    limits.use_lengths = 1;
    clmgk_plan *const caches = th_plan(session, &limits, session->engine[0], NULL);
    for (int64_t n = 0; n < 4; n++) {
        clmgk_attention_desc desc = call_desc(&limits, 1, 1 + n * 37, 1 + n * 37);
        desc.sequences = 1 + n * 2;
        desc.use_lengths = 0;
        TH_PROBLEM problem = th_problem_make(&desc, (uint64_t)n);
        expect_call(session, plan, &problem);
        desc.use_lengths = 1;
        desc.length_k = 150 - n * 37;
        TH_PROBLEM of_caches = th_problem_make(&desc, (uint64_t)n);
        expect_call(session, caches, &of_caches);
    }
    clmgk_plan_release(plan);
    clmgk_plan_release(caches);
}

/* Calls in flight at once, each with sizes, arrays and a workspace of its own. */
TH_TEST(calls_in_flight)
{
    enum { CALLS = 4 };
    const clmgk_attention_desc limits = limits_of(CLMGK_VARIANT_SOFTMAX, 2, 1, 2100);
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[0], NULL);
    cl_command_queue queue = th_queue(session, true);
    th_problem problems[CALLS];
    th_device devices[CALLS];
    clmgk_call_sizes sizes[CALLS];
    for (int n = 0; n < CALLS; n++) {
        const clmgk_attention_desc desc = call_desc(&limits, 1 + n % 2, 1, 2100 - 690 * n);
        problems[n] = th_problem_make(&desc, (uint64_t)n);
        sizes[n] = sizes_of(&problems[n].desc);
        devices[n] = upload(session, &problems[n], plan, &sizes[n]);
    }
    for (int n = 0; n < CALLS; n++)
        th_enqueue(plan, queue, &devices[n], 0, NULL, NULL);
    assert_int_equal(clFinish(queue), CL_SUCCESS);
    for (int n = 0; n < CALLS; n++) {
        th_download(session, &problems[n], &devices[n]);
        TH_REF_ANSWER answer = th_solve(&problems[n]);
        th_check(session, &problems[n], session->engine[0], &answer);
        th_device_free(&devices[n]);
        th_problem_free(&problems[n]);
    }
    clReleaseCommandQueue(queue);
    clmgk_plan_release(plan);
}

/* Without sizes a call has the descriptor's, and its layouts. */
TH_TEST(sizes_of_the_descriptor)
{
    clmgk_attention_desc desc = limits_of(CLMGK_VARIANT_SOFTMAX, 3, 100, 301);
    desc.causal = 1;
    clmgk_plan *const plan = th_plan(session, &desc, session->engine[0], NULL);
    desc.sizes_at_call = 0;
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    TH_DEVICE device = th_upload(session, &problem, clmgk_plan_workspace_size(plan));
    th_enqueue(plan, session->queue, &device, 0, NULL, NULL);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    th_download(session, &problem, &device);
    TH_REF_ANSWER answer = th_solve(&problem);
    th_check(session, &problem, session->engine[0], &answer);
    clmgk_plan_release(plan);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(th_session *session, clmgk_plan *plan, const th_device *device, clmgk_call_sizes sizes,
                   clmgk_status status, const char *field, const char *value)
{
    size_t bytes = 0;
    th_device own = *device;
    own.args.sizes = &sizes;
    th_expect_refusal(clmgk_enqueue_forward(plan, session->queue, &own.args, 0, NULL, NULL, &th_error), status, field,
                      value);
    th_expect_refusal(clmgk_plan_call_workspace_size(plan, &sizes, &bytes, &th_error), status, field, value);
}

TH_TEST(refused_sizes)
{
    clmgk_attention_desc limits = limits_of(CLMGK_VARIANT_SOFTMAX, 3, 100, 301);
    limits.causal = 1;
    clmgk_plan *const plan = th_plan(session, &limits, session->engine[0], NULL);
    const clmgk_attention_desc desc = call_desc(&limits, 2, 40, 50);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    const clmgk_call_sizes good = sizes_of(&problem.desc);
    TH_DEVICE device = upload(session, &problem, plan, &good);
    const struct {
        size_t field;
        int64_t value;
        clmgk_status status;
        const char *name, *shown;
    } cases[] = {{offsetof(clmgk_call_sizes, batch), 4, CLMGK_ERROR_INVALID_SHAPE, "sizes.batch", "4"},
                 {offsetof(clmgk_call_sizes, length), 101, CLMGK_ERROR_INVALID_SHAPE, "sizes.length", "101"},
                 {offsetof(clmgk_call_sizes, length_k), 302, CLMGK_ERROR_INVALID_SHAPE, "sizes.length_k", "302"},
                 {offsetof(clmgk_call_sizes, length), -1, CLMGK_ERROR_INVALID_VALUE, "length", "-1"},
                 {offsetof(clmgk_call_sizes, length_k), -2, CLMGK_ERROR_INVALID_VALUE, "length_k", "-2"},
                 {offsetof(clmgk_call_sizes, table_pages), 1, CLMGK_ERROR_INVALID_VALUE, "table_pages", "1"},
                 {offsetof(clmgk_call_sizes, append), 1, CLMGK_ERROR_INVALID_SHAPE, "sizes.append", "1"},
                 {offsetof(clmgk_call_sizes, append), -1, CLMGK_ERROR_INVALID_VALUE, "append", "-1"},
                 {offsetof(clmgk_call_sizes, o.token), 1, CLMGK_ERROR_INVALID_SHAPE, "o", "1"},
                 {offsetof(clmgk_call_sizes, q.head), -1, CLMGK_ERROR_INVALID_SHAPE, "q.head", "-1"}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_call_sizes bad = good;
        memcpy((char *)&bad + cases[n].field, &cases[n].value, sizeof(int64_t));
        refuse(session, plan, &device, bad, cases[n].status, cases[n].name, cases[n].shown);
    }
    clmgk_call_sizes longer = good; /* than the arrays */
    longer.length_k = 301;
    longer.k = longer.v = (clmgk_layout){0};
    device.args.sizes = &longer;
    th_expect_error(clmgk_enqueue_forward(plan, session->queue, &device.args, 0, NULL, NULL, &th_error),
                    CLMGK_ERROR_INVALID_BUFFER, "k");
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    th_expect_untouched(session, &device);
    clmgk_plan *const fixed = th_plan(session, &desc, session->engine[0], NULL);
    device.args.sizes = &good;
    th_expect_error(clmgk_enqueue_forward(fixed, session->queue, &device.args, 0, NULL, NULL, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "sizes_at_call = 0");
    clmgk_plan_release(fixed);
    clmgk_plan_release(plan);
}

TH_HOST_TEST(refused_descriptors)
{
    size_t bytes = 0;
    clmgk_attention_desc desc = limits_of(CLMGK_VARIANT_SOFTMAX, 1, 5, 9);
    th_expect_ok(clmgk_attention_validate(&desc, NULL, &th_error));
    desc.sizes_at_call = 2;
    th_expect_refusal(clmgk_attention_validate(&desc, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "sizes_at_call",
                      "2");
    th_expect_error(clmgk_plan_call_workspace_size(NULL, NULL, &bytes, &th_error), CLMGK_ERROR_INVALID_VALUE, "plan");
}
