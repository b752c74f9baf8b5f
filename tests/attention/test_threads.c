/* SPDX-License-Identifier: Apache-2.0 */
/* One plan used by several threads on several queues; wait lists and events; release while work is in flight. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 12 };

static clmgk_attention_desc test_desc(clmgk_variant variant)
{
    return th_small_desc(variant, 65, 130);
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

/* A thread's problem and buffers. All threads share the plan. */
typedef struct worker {
    th_chain chain;
    clmgk_plan *plan;
    th_problem problem;
    th_device device;
    clmgk_ref_answer answer;
} worker;

/* No cmocka here: this is not the test's thread. */
static bool enqueue_once(void *user, cl_uint num_wait, const cl_event *wait_list, cl_event *event)
{
    worker *const w = user;
    return clmgk_enqueue_forward(w->plan, w->chain.queue, &w->device.args, num_wait, wait_list, event,
                                 &w->chain.error) == CLMGK_OK;
}

static void start_worker(th_session *session, worker *w, clmgk_plan *plan, const clmgk_attention_desc *desc,
                         cl_command_queue queue, uint64_t seed)
{
    *w = (worker){.chain = {.queue = queue, .enqueue = enqueue_once, .rounds = ROUNDS},
                  .plan = plan,
                  .problem = th_problem_make(desc, seed)};
    w->device = th_upload(session, &w->problem, clmgk_plan_workspace_size(plan));
    w->answer = th_solve(&w->problem);
}

static void finish_worker(th_session *session, worker *w, clmgk_engine engine)
{
    if (!w->chain.ok)
        fail_msg("%s", w->chain.error.message);
    th_download(session, &w->problem, &w->device);
    th_check(session, &w->problem, engine, &w->answer);
    th_device_free(&w->device);
    clmgk_ref_answer_free(&w->answer);
    th_problem_free(&w->problem);
}

/* `shared`: all threads use one queue. */
static void threads_on_one_plan(th_session *session, clmgk_variant variant, size_t engine, bool out_of_order,
                                bool shared)
{
    const clmgk_attention_desc desc = test_desc(variant);
    clmgk_plan *const plan = th_plan(session, &desc, session->engine[engine], session->parameters[engine]);
    worker workers[THREADS];
    cl_command_queue queues[THREADS];
    for (size_t n = 0; n < THREADS; n++) {
        queues[n] = th_queue(session, out_of_order);
        start_worker(session, &workers[n], plan, &desc, queues[shared ? 0 : n], n);
    }
    th_run_threads(th_run_chain, workers, sizeof(workers[0]), THREADS);
    for (size_t n = 0; n < THREADS; n++) {
        finish_worker(session, &workers[n], session->engine[engine]);
        assert_int_equal(clReleaseCommandQueue(queues[n]), CL_SUCCESS);
    }
    clmgk_plan_release(plan);
}

TH_TEST(threads_and_queues)
{
    for (size_t n = 0; n < session->engines * 4; n++)
        threads_on_one_plan(session, n % 2 == 0 ? CLMGK_VARIANT_MGK : CLMGK_VARIANT_SMGK, n / 4, n % 4 >= 2,
                            n % 4 == 1);
}

/* One thread that makes a plan while others make the same one. */
typedef struct maker {
    clmgk_context *context;
    clmgk_attention_desc desc;
    clmgk_plan *plan;
    clmgk_program_origin origin;
    clmgk_error error;
    bool ok;
} maker;

static void *make_plan(void *argument)
{
    maker *const m = argument;
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    m->ok = clmgk_plan_create(m->context, &m->desc, NULL, &m->plan, &m->error) == CLMGK_OK &&
            clmgk_plan_get_info(m->plan, &info, &m->error) == CLMGK_OK;
    m->origin = info.origin;
    return NULL;
}

/* However many threads ask for a program at once, a context builds or loads it once. */
TH_TEST(plans_made_at_once)
{
    maker makers[THREADS];
    clmgk_context *context = NULL;
    size_t fetched = 0;
    th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, NULL, &context, &th_error));
    for (size_t n = 0; n < THREADS; n++)
        makers[n] = (maker){.context = context, .desc = test_desc(CLMGK_VARIANT_GAUSSIAN)};
    th_run_threads(make_plan, makers, sizeof(makers[0]), THREADS);
    for (size_t n = 0; n < THREADS; n++) {
        if (!makers[n].ok)
            fail_msg("%s", makers[n].error.message);
        fetched += makers[n].origin != CLMGK_PROGRAM_MEMORY;
        clmgk_plan_release(makers[n].plan);
    }
    assert_int_equal(fetched, 1);
    clmgk_context_release(context);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static cl_int status_of(cl_event event)
{
    cl_int status = CL_COMPLETE;
    assert_int_equal(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL),
                     CL_SUCCESS);
    return status;
}

/* Nothing starts before the wait list's events, and enqueue does not wait for them. */
TH_TEST(wait_lists_hold_work_back)
{
    for (size_t e = 0; e < session->engines * 2; e++) {
        const clmgk_attention_desc desc = test_desc(CLMGK_VARIANT_SMGK);
        const clmgk_engine engine = session->engine[e / 2];
        clmgk_plan *const plan = th_plan(session, &desc, engine, session->parameters[e / 2]);
        cl_command_queue queue = th_queue(session, e % 2 == 1);
        worker w;
        start_worker(session, &w, plan, &desc, queue, e);
        cl_int code = CL_SUCCESS;
        cl_event gates[2];
        for (size_t n = 0; n < 2; n++) {
            gates[n] = clCreateUserEvent(session->cl, &code);
            assert_int_equal(code, CL_SUCCESS);
        }
        cl_event done = NULL;
        assert_int_equal(clmgk_enqueue_forward(plan, queue, &w.device.args, 2, gates, &done, &w.chain.error), CLMGK_OK);
        assert_non_null(done);
        assert_int_equal(clFlush(queue), CL_SUCCESS);
        assert_int_equal(clSetUserEventStatus(gates[0], CL_COMPLETE), CL_SUCCESS);
        assert_int_not_equal(status_of(done), CL_COMPLETE);
        th_expect_untouched(session, &w.device);
        assert_int_equal(clSetUserEventStatus(gates[1], CL_COMPLETE), CL_SUCCESS);
        assert_int_equal(clWaitForEvents(1, &done), CL_SUCCESS);
        assert_int_equal(status_of(done), CL_COMPLETE);
        w.chain.ok = true;
        finish_worker(session, &w, engine);
        assert_int_equal(clReleaseEvent(done), CL_SUCCESS);
        for (size_t n = 0; n < 2; n++)
            assert_int_equal(clReleaseEvent(gates[n]), CL_SUCCESS);
        assert_int_equal(clReleaseCommandQueue(queue), CL_SUCCESS);
        clmgk_plan_release(plan);
    }
}

/* Work that waits is still done after its plan and context have been released. */
TH_TEST(release_while_in_flight)
{
    for (size_t e = 0; e < session->engines; e++) {
        const clmgk_attention_desc desc = test_desc(CLMGK_VARIANT_MGK);
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        clmgk_context *context = NULL;
        clmgk_plan *plan = NULL;
        options.engine = session->engine[e];
        options.parameters = session->parameters[e];
        th_expect_ok(clmgk_context_create(session->cl, session->info.device_id, NULL, &context, &th_error));
        th_expect_ok(clmgk_plan_create(context, &desc, &options, &plan, &th_error));
        clmgk_context_release(context);
        worker w;
        start_worker(session, &w, plan, &desc, session->queue, e);
        cl_int code = CL_SUCCESS;
        cl_event gate = clCreateUserEvent(session->cl, &code);
        assert_int_equal(code, CL_SUCCESS);
        assert_int_equal(clmgk_enqueue_forward(plan, session->queue, &w.device.args, 1, &gate, NULL, &w.chain.error),
                         CLMGK_OK);
        clmgk_plan_release(plan);
        assert_int_equal(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
        assert_int_equal(clFinish(session->queue), CL_SUCCESS);
        w.chain.ok = true;
        finish_worker(session, &w, session->engine[e]);
        assert_int_equal(clReleaseEvent(gate), CL_SUCCESS);
    }
}

/* One in-order queue, many problems in a row without a wait between them. */
TH_TEST(many_in_flight)
{
    const clmgk_attention_desc desc = test_desc(CLMGK_VARIANT_SOFTMAX);
    clmgk_plan *const plan = th_plan(session, &desc, CLMGK_ENGINE_AUTO, NULL);
    worker workers[8];
    for (size_t n = 0; n < TH_COUNT(workers); n++)
        start_worker(session, &workers[n], plan, &desc, session->queue, n);
    for (size_t n = 0; n < TH_COUNT(workers); n++)
        workers[n].chain.ok = clmgk_enqueue_forward(plan, session->queue, &workers[n].device.args, 0, NULL, NULL,
                                                    &workers[n].chain.error) == CLMGK_OK;
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    for (size_t n = 0; n < TH_COUNT(workers); n++)
        finish_worker(session, &workers[n], CLMGK_ENGINE_AUTO);
    clmgk_plan_release(plan);
}

/* ---- training --------------------------------------------------------------------------------------------------- */

/* Elements of Q (and, with its value size, O), K and V, as test_desc has them. */
#define Q_COUNT        ((size_t)2 * 65 * 17)
#define K_COUNT        ((size_t)2 * 130 * 17)
#define LSE_COUNT      ((size_t)2 * 65)
#define GRADIENT_COUNT (Q_COUNT + 2 * K_COUNT)

/* Buffers of one forward and backward pass; dQ, dK and dV lie behind each other. */
typedef struct trainer {
    th_chain chain;
    clmgk_plan *plan;
    cl_mem memory[7];
    clmgk_attention_args args;
} trainer;

static clmgk_attention_desc training_desc(void)
{
    clmgk_attention_desc desc = test_desc(CLMGK_VARIANT_SOFTMAX);
    desc.value_size = desc.head_size;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return desc;
}

/* The same numbers in every trainer's buffers. */
static clmgk_buffer random_buffer(const th_session *session, trainer *t, size_t slot, size_t count)
{
    float *const values = calloc(count, sizeof(float));
    uint64_t state = slot;
    cl_int code = CL_SUCCESS;
    assert_non_null(values);
    for (size_t n = 0; n < count; n++)
        values[n] = (float)(2.0 * th_uniform(&state) - 1.0);
    t->memory[slot] =
        clCreateBuffer(session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, count * sizeof(float), values, &code);
    assert_int_equal(code, CL_SUCCESS);
    free(values);
    return (clmgk_buffer){t->memory[slot], 0};
}

/* Enqueues both passes, one after the other. Uses no cmocka, so other threads may call it, too. */
static bool train_once(void *user, cl_uint num_wait, const cl_event *wait_list, cl_event *done)
{
    trainer *const t = user;
    cl_event between = NULL;
    if (clmgk_enqueue_forward(t->plan, t->chain.queue, &t->args, num_wait, wait_list, &between, &t->chain.error) !=
        CLMGK_OK)
        return false;
    const bool ok =
        clmgk_enqueue_backward(t->plan, t->chain.queue, &t->args, 1, &between, done, &t->chain.error) == CLMGK_OK;
    clReleaseEvent(between);
    return ok;
}

static void open_trainer(th_session *session, trainer *t, clmgk_plan *plan, cl_command_queue queue)
{
    *t = (trainer){.chain = {.queue = queue, .enqueue = train_once, .rounds = ROUNDS}, .plan = plan};
    t->args = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    t->args.q = random_buffer(session, t, 0, Q_COUNT);
    t->args.k = random_buffer(session, t, 1, K_COUNT);
    t->args.v = random_buffer(session, t, 2, K_COUNT);
    t->args.o = random_buffer(session, t, 3, Q_COUNT + LSE_COUNT);
    t->args.lse = (clmgk_buffer){t->memory[3], Q_COUNT};
    t->args.workspace = random_buffer(session, t, 4, clmgk_plan_workspace_size(plan) / sizeof(float) + 1);
    t->args.grad_o = random_buffer(session, t, 5, Q_COUNT);
    t->args.grad_q = random_buffer(session, t, 6, GRADIENT_COUNT);
    t->args.grad_k = (clmgk_buffer){t->memory[6], Q_COUNT};
    t->args.grad_v = (clmgk_buffer){t->memory[6], Q_COUNT + K_COUNT};
}

static void close_trainer(trainer *t)
{
    for (size_t n = 0; n < TH_COUNT(t->memory); n++)
        assert_int_equal(clReleaseMemObject(t->memory[n]), CL_SUCCESS);
}

static void read_gradients(th_session *session, const trainer *t, float *gradients)
{
    assert_int_equal(clEnqueueReadBuffer(session->queue, t->memory[6], CL_TRUE, 0, GRADIENT_COUNT * sizeof(float),
                                         gradients, 0, NULL, NULL),
                     CL_SUCCESS);
}

/* Threads with out-of-order queues and one plan of several kernels get the same bits as one thread alone. */
TH_TEST(threads_train)
{
    static float alone[GRADIENT_COUNT];
    static float together[GRADIENT_COUNT];
    const clmgk_attention_desc desc = training_desc();
    clmgk_plan *const plan = th_plan(session, &desc, CLMGK_ENGINE_AUTO, NULL);
    trainer trainers[THREADS];
    trainer one;
    open_trainer(session, &one, plan, session->queue);
    assert_true(train_once(&one, 0, NULL, NULL));
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    read_gradients(session, &one, alone);
    close_trainer(&one);
    for (size_t n = 0; n < THREADS; n++)
        open_trainer(session, &trainers[n], plan, th_queue(session, true));
    th_run_threads(th_run_chain, trainers, sizeof(trainers[0]), THREADS);
    for (size_t n = 0; n < THREADS; n++) {
        if (!trainers[n].chain.ok)
            fail_msg("%s", trainers[n].chain.error.message);
        read_gradients(session, &trainers[n], together);
        assert_memory_equal(alone, together, sizeof(alone));
        assert_int_equal(clReleaseCommandQueue(trainers[n].chain.queue), CL_SUCCESS);
        close_trainer(&trainers[n]);
    }
    clmgk_plan_release(plan);
}

/* The first kernel of a pass waits for the wait list, and so do the kernels after it. */
TH_TEST(wait_lists_hold_training_back)
{
    static float before[GRADIENT_COUNT];
    static float after[GRADIENT_COUNT];
    const clmgk_attention_desc desc = training_desc();
    clmgk_plan *const plan = th_plan(session, &desc, CLMGK_ENGINE_AUTO, NULL);
    trainer t;
    cl_int code = CL_SUCCESS;
    cl_event gate = clCreateUserEvent(session->cl, &code);
    cl_event done = NULL;
    assert_int_equal(code, CL_SUCCESS);
    open_trainer(session, &t, plan, th_queue(session, true));
    read_gradients(session, &t, before);
    assert_true(train_once(&t, 1, &gate, &done));
    assert_int_equal(clFlush(t.chain.queue), CL_SUCCESS);
    assert_int_not_equal(status_of(done), CL_COMPLETE);
    read_gradients(session, &t, after);
    assert_memory_equal(before, after, sizeof(before));
    clmgk_plan_release(plan); /* the work that waits keeps what it needs */
    assert_int_equal(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    assert_int_equal(clWaitForEvents(1, &done), CL_SUCCESS);
    read_gradients(session, &t, after);
    assert_memory_not_equal(before, after, sizeof(before));
    assert_int_equal(clReleaseEvent(gate), CL_SUCCESS);
    assert_int_equal(clReleaseEvent(done), CL_SUCCESS);
    assert_int_equal(clReleaseCommandQueue(t.chain.queue), CL_SUCCESS);
    close_trainer(&t);
}
