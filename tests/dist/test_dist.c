/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over several ranks of one process, each a thread with an OpenCL context of its own: results against the
 * reference, by every schedule, of tokens in several orders; orders of tokens; faults of one rank.
 */
#include "clmgk/dist.h"
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 61, MOST_RANKS = 3 };

/* Which token stands where: each rank's tokens, one rank after the other. */
typedef struct cut {
    int32_t ranks;
    int32_t tokens[TOKENS];
    int64_t lengths[MOST_RANKS];
} cut;

static int64_t first_of(const cut *c, int32_t rank)
{
    int64_t first = 0;
    for (int32_t r = 0; r < rank; r++)
        first += c->lengths[r];
    return first;
}

/* A rank's thread. */
typedef struct worker {
    const th_problem *whole;
    const cut *cut;
    clmgk_dist_local *local;
    clmgk_dist_schedule schedule;
    int32_t rank;
    double timeout;
    int64_t heads;             /* 0: the problem's */
    bool absent;               /* it does nothing */
    double *result[TH_ARRAYS]; /* of the rank's tokens */
    clmgk_status status;
    clmgk_error error;
} worker;

/* A rank's OpenCL and plan. */
typedef struct place {
    cl_context cl;
    cl_command_queue queue;
    clmgk_context *context;
    clmgk_dist_plan *plan;
    cl_mem memory[TH_ARRAYS];
} place;

static clmgk_status failed(worker *w, const char *what)
{
    w->error.status = CLMGK_ERROR_OPENCL;
    (void)snprintf(w->error.message, sizeof(w->error.message), "%s", what);
    return CLMGK_ERROR_OPENCL;
}

static bool is_own(th_name name)
{
    return name <= TH_LSE || name == TH_LSE_LOW || name == TH_POSITIONS || name == TH_POSITIONS_K ||
           name == TH_GRAD_O || name == TH_GRAD_LSE || (name >= TH_GRAD_Q && name <= TH_GRAD_V);
}

static bool is_result(th_name name)
{
    return name == TH_O || name == TH_LSE || (name >= TH_GRAD_Q && name <= TH_GRAD_V);
}

/* Arrays that all ranks have alike. */
static bool is_shared(th_name name)
{
    return th_is_input(name) && !is_own(name);
}

/* Rows before an axis of tokens: [lists, tokens, size]; positions are [batch, tokens]. */
static int64_t lists_of(const th_array *array, th_name name)
{
    return name == TH_POSITIONS || name == TH_POSITIONS_K ? array->shape[0]
                                                          : array->shape[0] * array->shape[1] * array->shape[2];
}

static int64_t size_of(const th_array *array, th_name name)
{
    return name == TH_POSITIONS || name == TH_POSITIONS_K ? 1 : array->shape[4];
}

/* Copies a rank's tokens out of the whole's values, or back. */
static void move(const cut *c, int32_t rank, th_array *whole, th_name name, double *own, bool back)
{
    const int64_t lists = lists_of(whole, name), size = size_of(whole, name), count = c->lengths[rank];
    for (int64_t list = 0; list < lists; list++)
        for (int64_t n = 0; n < count; n++) {
            double *const there = whole->values + (list * TOKENS + c->tokens[first_of(c, rank) + n]) * size;
            double *const here = own + (list * count + n) * size;
            memcpy(back ? there : here, back ? here : there, (size_t)size * sizeof(double));
        }
}

static int64_t count_of(const worker *w, th_name name)
{
    const th_array *const array = &w->whole->array[name];
    return is_shared(name) ? (int64_t)array->count
                           : lists_of(array, name) * size_of(array, name) * w->cut->lengths[w->rank];
}

static clmgk_status make_memory(worker *w, place *p, th_name name)
{
    const th_array *const array = &w->whole->array[name];
    const size_t count = (size_t)count_of(w, name), bytes = count * array->element;
    void *const elements = calloc(count + 1, array->element);
    double *const values = calloc(count + 1, sizeof(double));
    cl_int code = CL_SUCCESS;
    if (elements && values && count > 0) {
        th_array source = *array;
        if (is_shared(name))
            memcpy(values, source.values, count * sizeof(double));
        else
            move(w->cut, w->rank, &source, name, values, false);
        if (array->integer)
            for (size_t n = 0; n < count; n++)
                ((int32_t *)elements)[n] = (int32_t)values[n];
        else
            clmgk_ref_store(array->dtype, values, count, elements);
        p->memory[name] = clCreateBuffer(p->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, elements, &code);
    }
    free(elements);
    free(values);
    return elements && values && code == CL_SUCCESS ? CLMGK_OK : failed(w, "clCreateBuffer");
}

static clmgk_status take_result(worker *w, const place *p, th_name name)
{
    const th_array *const array = &w->whole->array[name];
    const size_t count = (size_t)count_of(w, name);
    void *const elements = calloc(count + 1, array->element);
    w->result[name] = calloc(count + 1, sizeof(double));
    cl_int code = CL_SUCCESS;
    if (elements && count > 0)
        code =
            clEnqueueReadBuffer(p->queue, p->memory[name], CL_TRUE, 0, count * array->element, elements, 0, NULL, NULL);
    if (elements && w->result[name])
        clmgk_ref_load(array->dtype, elements, count, w->result[name]);
    free(elements);
    return code == CL_SUCCESS ? CLMGK_OK : failed(w, "clEnqueueReadBuffer");
}

static clmgk_status open_place(worker *w, place *p)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    cl_int code = CL_SUCCESS;
    if (clmgk_select_device(getenv("CLMGK_DEVICE"), &info, &w->error) != CLMGK_OK)
        return w->error.status;
    p->cl = clCreateContext(NULL, 1, &info.device_id, NULL, NULL, &code);
    p->queue = p->cl ? clCreateCommandQueue(p->cl, info.device_id, 0, &code) : NULL;
    if (!p->queue)
        return failed(w, "clCreateContext");
    return clmgk_context_create(p->cl, info.device_id, NULL, &p->context, &w->error);
}

static void close_place(place *p)
{
    clmgk_dist_plan_release(p->plan);
    for (size_t n = 0; n < TH_ARRAYS; n++)
        if (p->memory[n])
            clReleaseMemObject(p->memory[n]);
    clmgk_context_release(p->context);
    if (p->queue)
        clReleaseCommandQueue(p->queue);
    if (p->cl)
        clReleaseContext(p->cl);
}

static clmgk_status make_plan(worker *w, place *p)
{
    clmgk_attention_desc desc = w->whole->desc;
    clmgk_dist_transport transport;
    const int64_t keys = w->cut->lengths[w->rank];
    desc.resolved = 0;
    desc.length = keys;
    desc.length_k = keys > 0 ? keys : CLMGK_NO_KEYS;
    if (w->heads > 0)
        desc.heads = w->heads;
    desc.all_heads = 0;
    desc.q = desc.k = desc.v = desc.o = desc.lse = (clmgk_layout){0};
    desc.grad_o = desc.grad_q = desc.grad_k = desc.grad_v = (clmgk_layout){0};
    const clmgk_dist_desc d = {.struct_size = sizeof(d),
                               .attention = &desc,
                               .lengths_k = w->cut->lengths,
                               .schedule = w->schedule,
                               .timeout = w->timeout};
    const clmgk_status status = clmgk_dist_local_transport(w->local, w->rank, &transport, &w->error);
    return status != CLMGK_OK ? status
                              : clmgk_dist_plan_create(p->context, p->queue, &d, &transport, NULL, &p->plan, &w->error);
}

static clmgk_status run_passes(worker *w, place *p)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    clmgk_status status = CLMGK_OK;
    args.seed = w->whole->seed;
    for (th_name name = 0; name < TH_ARRAYS && status == CLMGK_OK; name++)
        if (w->whole->array[name].used && (is_own(name) || is_shared(name))) {
            status = make_memory(w, p, name);
            clmgk_array_buffer(&args, (clmgk_array)name)->memory = p->memory[name];
        }
    if (status == CLMGK_OK)
        status = clmgk_dist_forward(p->plan, &args, &w->error);
    if (status == CLMGK_OK)
        status = clmgk_dist_backward(p->plan, &args, &w->error);
    for (th_name name = 0; name < TH_ARRAYS && status == CLMGK_OK; name++)
        if (is_result(name))
            status = take_result(w, p, name);
    return status;
}

static void *run_rank(void *argument)
{
    worker *const w = argument;
    place p = {0};
    if (w->absent)
        return NULL;
    w->status = open_place(w, &p);
    if (w->status == CLMGK_OK)
        w->status = make_plan(w, &p);
    if (w->status == CLMGK_OK)
        w->status = run_passes(w, &p);
    close_place(&p);
    return NULL;
}

static void run_ranks(const th_problem *whole, const cut *c, clmgk_dist_schedule schedule, worker *workers)
{
    clmgk_dist_local *local = NULL;
    th_expect_ok(clmgk_dist_local_create(c->ranks, &local, &th_error));
    for (int32_t r = 0; r < c->ranks; r++) {
        workers[r].whole = whole;
        workers[r].cut = c;
        workers[r].local = local;
        workers[r].schedule = schedule;
        workers[r].rank = r;
        workers[r].timeout = workers[r].timeout > 0 ? workers[r].timeout : 600;
    }
    th_run_threads(run_rank, workers, sizeof(workers[0]), (size_t)c->ranks);
    clmgk_dist_local_release(local);
}

/* ---- results -------------------------------------------------------------------------------------------------------
 */

static clmgk_attention_desc whole_desc(clmgk_variant variant)
{
    clmgk_attention_desc desc = th_small_desc(variant, TOKENS, TOKENS);
    desc.use_positions = desc.causal = desc.use_lse_low = 1;
    desc.dropout = 0.125;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return desc;
}

static th_problem whole_problem(const clmgk_attention_desc *desc)
{
    th_problem problem = th_problem_make(desc, 1);
    for (int64_t b = 0; b < problem.desc.batch; b++)
        for (int64_t n = 0; n < TOKENS; n++) {
            th_set(&problem, TH_POSITIONS, b, n, 0, 0, 0, (double)n);
            th_set(&problem, TH_POSITIONS_K, b, n, 0, 0, 0, (double)n);
        }
    for (th_name name = 0; name < TH_ARRAYS; name++) /* to the storage types */
        for (size_t n = 0; problem.array[name].used && !problem.array[name].integer && n < problem.array[name].count;
             n++) {
            unsigned char element[sizeof(float)];
            clmgk_ref_store(problem.array[name].dtype, &problem.array[name].values[n], 1, element);
            clmgk_ref_load(problem.array[name].dtype, element, 1, &problem.array[name].values[n]);
        }
    return problem;
}

static void expect_results(th_session *session, th_problem *problem, const cut *c, clmgk_dist_schedule schedule)
{
    worker workers[MOST_RANKS] = {{0}};
    run_ranks(problem, c, schedule, workers);
    for (int32_t r = 0; r < c->ranks; r++) {
        if (workers[r].status != CLMGK_OK)
            fail_msg("rank %d of %d, schedule %d: %s", (int)r, (int)c->ranks, (int)schedule, workers[r].error.message);
        for (th_name name = 0; name < TH_ARRAYS; name++)
            if (workers[r].result[name])
                move(c, r, &problem->array[name], name, workers[r].result[name], true);
    }
    TH_REF_ANSWER answer = th_solve(problem);
    TH_REF_ARRAYS exact = th_solve_gradients(problem);
    th_check(session, problem, session->engine[0], &answer);
    th_check_gradients(session, problem, session->engine[0], &exact);
    for (int32_t r = 0; r < c->ranks; r++)
        for (size_t name = 0; name < TH_ARRAYS; name++)
            free(workers[r].result[name]);
}

static cut make_cut(clmgk_dist_order order, int32_t ranks)
{
    cut c = {.ranks = ranks};
    th_expect_ok(clmgk_dist_permutation(order, TOKENS, ranks, c.tokens, c.lengths, &th_error));
    return c;
}

/* Rank 1 has nothing, and rank 2 little. */
static cut uneven_cut(void)
{
    cut c = {.ranks = 3, .lengths = {TOKENS - 5, 0, 5}};
    for (int32_t n = 0; n < TOKENS; n++)
        c.tokens[n] = n;
    return c;
}

static void expect_schedules(th_session *session, clmgk_attention_desc desc, size_t count)
{
    const cut cuts[] = {make_cut(CLMGK_DIST_ZIGZAG, 2), uneven_cut(), make_cut(CLMGK_DIST_STRIPES, 3),
                        make_cut(CLMGK_DIST_ZIGZAG, 1)};
    for (size_t n = 0; n < (session->full ? 2 * TH_COUNT(cuts) : count); n++) {
        TH_PROBLEM problem = whole_problem(&desc);
        expect_results(session, &problem, &cuts[n / 2 % TH_COUNT(cuts)],
                       n % 2 == 0 ? CLMGK_DIST_RING : CLMGK_DIST_ALL_GATHER);
    }
}

TH_TEST(softmax)
{
    expect_schedules(session, whole_desc(CLMGK_VARIANT_SOFTMAX), 3);
}

/* dQ depends on the sum of dS over a row's keys, which a part of them does not have. */
TH_TEST(gaussian_scores)
{
    expect_schedules(session, whole_desc(CLMGK_VARIANT_MGK), 1);
}

TH_FULL_TEST(other_variants)
{
    static const clmgk_variant variants[] = {CLMGK_VARIANT_SMGK, CLMGK_VARIANT_FISH};
    for (size_t n = 0; n < TH_COUNT(variants); n++)
        expect_schedules(session, whole_desc(variants[n]), 1);
}

/* Gradients and O in f32. */
TH_FULL_TEST(arrays_of_bf16)
{
    clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.dtype_o = desc.dtype_grad_q = desc.dtype_grad_k = desc.dtype_grad_v = CLMGK_STORAGE_F32;
    expect_schedules(session, desc, 1);
}

/* ---- faults --------------------------------------------------------------------------------------------------------
 */

TH_TEST(a_rank_that_does_not_come)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    TH_PROBLEM problem = whole_problem(&desc);
    const cut c = make_cut(CLMGK_DIST_ZIGZAG, 2);
    worker workers[MOST_RANKS] = {{.timeout = 0.05}, {.absent = true}};
    run_ranks(&problem, &c, CLMGK_DIST_RING, workers);
    assert_int_equal(workers[0].status, CLMGK_ERROR_COMMUNICATION);
    assert_non_null(strstr(workers[0].error.message, "rank 1: no answer in time"));
}

TH_TEST(ranks_of_different_problems)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    TH_PROBLEM problem = whole_problem(&desc);
    const cut c = make_cut(CLMGK_DIST_ZIGZAG, 2);
    worker workers[MOST_RANKS] = {{0}, {.heads = 4}};
    run_ranks(&problem, &c, CLMGK_DIST_ALL_GATHER, workers);
    bool told = false;
    for (int r = 0; r < 2; r++) {
        assert_true(workers[r].status == CLMGK_ERROR_INVALID_SHAPE || workers[r].status == CLMGK_ERROR_COMMUNICATION);
        told = told || workers[r].status == CLMGK_ERROR_INVALID_SHAPE;
    }
    assert_true(told);
}

/* One rank's descriptor is refused: the other learns it at once. */
TH_TEST(a_rank_that_gives_up)
{
    const clmgk_attention_desc desc = whole_desc(CLMGK_VARIANT_SOFTMAX);
    TH_PROBLEM problem = whole_problem(&desc);
    const cut c = make_cut(CLMGK_DIST_ZIGZAG, 2);
    worker workers[MOST_RANKS] = {{0}, {.timeout = -1}};
    workers[1].timeout = 1e12;
    run_ranks(&problem, &c, CLMGK_DIST_RING, workers);
    assert_int_equal(workers[1].status, CLMGK_ERROR_INVALID_VALUE);
    assert_int_equal(workers[0].status, CLMGK_ERROR_COMMUNICATION);
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

/* ---- orders --------------------------------------------------------------------------------------------------------
 */

/* Every token once; and each rank's visible pairs of a causal sequence within 2 % of the mean. */
static void expect_balance(clmgk_dist_order order, int64_t count, int32_t ranks)
{
    int32_t *const tokens = calloc((size_t)count, sizeof(*tokens));
    bool *const seen = calloc((size_t)count, sizeof(*seen));
    int64_t lengths[8];
    assert_true(tokens && seen && ranks <= 8);
    th_expect_ok(clmgk_dist_permutation(order, count, ranks, tokens, lengths, &th_error));
    const double mean = (double)count * (double)(count + 1) / 2 / ranks;
    int64_t first = 0;
    for (int32_t r = 0; r < ranks; r++) {
        double pairs = 0;
        for (int64_t n = first; n < first + lengths[r]; n++) {
            assert_false(seen[tokens[n]]);
            assert_true(n == first || tokens[n] > tokens[n - 1]);
            seen[tokens[n]] = true;
            pairs += tokens[n] + 1;
        }
        assert_true(fabs(pairs - mean) < 0.02 * mean);
        first += lengths[r];
    }
    assert_int_equal(first, count);
    free(tokens);
    free(seen);
}

TH_HOST_TEST(balanced_orders)
{
    for (int32_t ranks = 1; ranks <= 8; ranks++) {
        expect_balance(CLMGK_DIST_ZIGZAG, 3824, ranks);
        expect_balance(CLMGK_DIST_STRIPES, 3824, ranks);
    }
    int32_t token;
    int64_t length;
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, 1, 0, &token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "ranks", "0");
    th_expect_refusal(clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, -1, 1, &token, &length, &th_error),
                      CLMGK_ERROR_INVALID_VALUE, "count", "-1");
}
