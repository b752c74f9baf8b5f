/* SPDX-License-Identifier: Apache-2.0 */
/* Layers whose calls have sizes of their own, within the descriptor's, against the reference, and against layers of
 * other limits. Their programs are those of test_layer. */
#include "harness/layer.h"

#include <string.h>

/* Sizes of a call; keys of a second input. */
typedef struct call {
    int64_t batch, length, length_k, sequences;
} call;

/* The last call of each set has the limits. The calls of a list differ in which is the most: tokens of the batch (also
 * beyond the rows that a work-group sums at once), or length. */
typedef struct set {
    tl_case options;
    clmgk_variant variant;
    clmgk_dtype dtype;
    call calls[5];
} set;

static const set sets[] = {
    {{.name = "packed weights, biases, normalised after",
      .layer = {.packed_weights = 1, .use_bias = 1, .use_bias_o = 1, .residual = 1, .norm = CLMGK_NORM_POST}},
     CLMGK_VARIANT_SOFTMAX,
     CLMGK_DTYPE_F32,
     {{.batch = 1, .length = 7},
      {.batch = 3, .length = 5},
      {.batch = 1, .length = 40},
      {.batch = 2, .length = 8},
      {.batch = 3, .length = 40}}},
    {{.name = "second and third input, query and key normalisation",
      .layer = {.cross = 1,
                .cross_v = 1,
                .width_k = 23,
                .width_v = 31,
                .qk_norm = 1,
                .use_bias = 1,
                .norm = CLMGK_NORM_PRE}},
     CLMGK_VARIANT_SOFTMAX,
     CLMGK_DTYPE_F16,
     {{.batch = 3, .length = 1, .length_k = 9},
      {.batch = 1, .length = 19, .length_k = 2},
      {.batch = 2, .length = 6, .length_k = 41},
      {.batch = 2, .length = 19, .length_k = 5},
      {.batch = 3, .length = 19, .length_k = 41}}},
    {{.name = "packed sequences, rotation, dropout",
      .layer = {.packed_weights = 1, .rotary = CLMGK_ROTARY_HALVES, .rotary_size = 16, .residual = 1, .dropout = 0.25},
      .attention = {.causal = 1}},
     CLMGK_VARIANT_SOFTMAX,
     CLMGK_DTYPE_F32,
     {{.batch = 1, .length = 30, .sequences = 1},
      {.batch = 1, .length = 6, .sequences = 3},
      {.batch = 1, .length = 49, .sequences = 2},
      {.batch = 1, .length = 50, .sequences = 3},
      {.batch = 1, .length = 50, .sequences = 4}}},
    {{.name = "grouped heads, lengths",
      .layer = {.use_bias = 1},
      .attention = {.heads = 4, .kv_heads = 2, .use_lengths = 1}},
     CLMGK_VARIANT_MGK,
     CLMGK_DTYPE_F32,
     {{.batch = 1, .length = 7},
      {.batch = 3, .length = 2},
      {.batch = 2, .length = 33},
      {.batch = 1, .length = 40},
      {.batch = 3, .length = 40}}},
    {{.name = "linear", .layer = {.use_bias = 1, .use_bias_o = 1, .norm = CLMGK_NORM_PRE}, .attention = {.causal = 1}},
     CLMGK_VARIANT_LINEAR,
     CLMGK_DTYPE_F32,
     {{.batch = 1, .length = 7},
      {.batch = 3, .length = 2},
      {.batch = 2, .length = 33},
      {.batch = 1, .length = 70},
      {.batch = 3, .length = 70}}},
};

static tl_problem make(const set *s, const call *sizes, bool at_call, uint64_t seed)
{
    clmgk_attention_desc a = th_small_desc(s->variant, sizes->length, 1);
    clmgk_layer_desc d = s->options.layer;
    a.length_k = sizes->length_k;
    a.dtype = s->dtype;
    a.batch = sizes->batch;
    a.sequences = sizes->sequences;
    a.sizes_at_call = at_call;
    a.causal = s->options.attention.causal;
    a.use_lengths = s->options.attention.use_lengths;
    if (s->options.attention.heads > 0) {
        a.heads = s->options.attention.heads;
        a.kv_heads = s->options.attention.kv_heads;
    }
    d.attention = &a;
    d.width = 37;
    a.gradients = th_all_gradients(&a) & ~(uint32_t)(CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V);
    d.gradients = tl_all_gradients(&d);
    return tl_make(&d, seed);
}

static clmgk_layer *make_layer(th_session *session, const set *s, const call *limits)
{
    TL_PROBLEM problem = make(s, limits, true, 1);
    return tl_layer(session, &problem);
}

/* Runs both passes as calls of these sizes. NULL: of the descriptor's. */
static void run(th_session *session, clmgk_layer *layer, tl_problem *problem, const call *given)
{
    clmgk_call_sizes sizes = CLMGK_CALL_SIZES_INIT;
    TL_DEVICE device = tl_upload(session, problem, layer);
    for (size_t pass = TH_FORWARD; given && pass <= TH_BACKWARD; pass++) {
        sizes.batch = given->batch;
        sizes.length = given->length;
        sizes.length_k = given->length_k;
        sizes.sequences = given->sequences;
        device.attention[pass].args.sizes = &sizes;
    }
    tl_enqueue(layer, session->queue, &device, TH_FORWARD);
    tl_enqueue(layer, session->queue, &device, TH_BACKWARD);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    tl_download(session, problem, &device, true);
}

/* All outputs of both passes. */
static void expect_same_bits(const tl_problem *one, const tl_problem *other)
{
    for (size_t n = 0; n < CLMGK_LAYER_ARRAYS; n++)
        if (one->array[n].used &&
            memcmp(one->array[n].values, other->array[n].values, one->array[n].count * sizeof(double)) != 0)
            fail_msg("%s: other bits", clmgk_layer_array_name((clmgk_layer_array)n));
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (one->attention.array[name].used)
            th_expect_equal_bits(&one->attention, &other->attention, name);
}

/* A layer of such sizes alone has the same bits. */
static void expect_bits_of_other_limits(th_session *session, const set *s, const call *sizes, const tl_problem *problem,
                                        uint64_t seed)
{
    TL_PROBLEM other = make(s, sizes, true, seed);
    run(session, make_layer(session, s, sizes), &other, NULL);
    expect_same_bits(problem, &other);
}

TH_TEST(calls_of_any_sizes)
{
    for (size_t n = 0; n < TH_COUNT(sets); n++) {
        const set *const s = &sets[n];
        clmgk_layer *const layer = make_layer(session, s, &s->calls[4]);
        for (uint64_t i = 0; i < TH_COUNT(s->calls); i++) {
            TL_ANSWER answer;
            TL_PROBLEM problem = make(s, &s->calls[i], false, i);
            TL_DEVICE rounded = tl_upload(session, &problem, layer); /* the values become what the device holds */
            const clmgk_ref_layer reference = tl_reference(&problem);
            assert_true(clmgk_ref_layer_solve(&reference, true, &answer));
            run(session, layer, &problem, i == 4 ? NULL : &s->calls[i]);
            tl_check(session, &problem, &answer, s->options.name);
            if (i == 2 || i == 3)
                expect_bits_of_other_limits(session, s, &s->calls[i], &problem, i);
        }
    }
}

/* Products of up to eight rows have one provider, so the forward pass of fixed sizes has the same parameters. */
TH_TEST(calls_have_the_bits_of_fixed_sizes)
{
    for (size_t n = 0; n < TH_COUNT(sets); n += 3) {
        const set *const s = &sets[n];
        TL_PROBLEM problem = make(s, &s->calls[0], false, 5);
        TL_PROBLEM fixed = make(s, &s->calls[0], false, 5);
        run(session, make_layer(session, s, &s->calls[4]), &problem, &s->calls[0]);
        run(session, tl_layer(session, &fixed), &fixed, NULL);
        const th_array *const one = &problem.array[CLMGK_LAYER_ARRAY_OUT], *const other =
                                                                               &fixed.array[CLMGK_LAYER_ARRAY_OUT];
        assert_memory_equal(one->values, other->values, one->count * sizeof(double));
    }
}

/* Passes of different sizes take turns: each keeps the activations of its own sizes. */
TH_TEST(passes_of_different_sizes_take_turns)
{
    const set *const s = &sets[0];
    clmgk_layer *const layer = make_layer(session, s, &s->calls[4]);
    TL_PROBLEM first = make(s, &s->calls[1], false, 1);
    TL_PROBLEM second = make(s, &s->calls[2], false, 2);
    TL_PROBLEM alone = make(s, &s->calls[1], false, 1);
    run(session, layer, &alone, &s->calls[1]);
    clmgk_call_sizes sizes[2] = {CLMGK_CALL_SIZES_INIT, CLMGK_CALL_SIZES_INIT};
    TL_DEVICE one = tl_upload(session, &first, layer);
    TL_DEVICE two = tl_upload(session, &second, layer);
    tl_device *const devices[2] = {&one, &two};
    for (size_t i = 0; i < 2; i++) {
        sizes[i].batch = s->calls[1 + i].batch;
        sizes[i].length = s->calls[1 + i].length;
        devices[i]->attention[TH_FORWARD].args.sizes = devices[i]->attention[TH_BACKWARD].args.sizes = &sizes[i];
    }
    for (th_pass pass = TH_FORWARD; pass <= TH_BACKWARD; pass++)
        for (size_t i = 0; i < 2; i++)
            tl_enqueue(layer, session->queue, devices[i], pass);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    tl_download(session, &first, &one, true);
    expect_same_bits(&first, &alone);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* A thread's calls, forward and backward in turn, of sizes of their own. All threads share the layer. */
typedef struct worker {
    th_chain chain;
    clmgk_layer *layer;
    clmgk_call_sizes sizes;
    tl_problem problem;
    tl_device device;
    th_pass next;
} worker;

/* No cmocka here: this is not the test's thread. */
static bool enqueue_next(void *user, cl_uint num_wait, const cl_event *wait_list, cl_event *event)
{
    worker *const w = user;
    const bool forward = w->next == TH_FORWARD;
    const clmgk_layer_args args = tl_args(&w->device, w->next);
    w->next = forward ? TH_BACKWARD : TH_FORWARD;
    return (forward ? clmgk_enqueue_layer_forward : clmgk_enqueue_layer_backward)(
               w->layer, w->chain.queue, &args, num_wait, wait_list, event, &w->chain.error) == CLMGK_OK;
}

/* The bits are those of a call alone. */
TH_TEST(threads_share_a_layer)
{
    enum { THREADS = 3, ROUNDS = 10 };
    const set *const s = &sets[0];
    clmgk_layer *const layer = make_layer(session, s, &s->calls[4]);
    worker workers[THREADS];
    for (uint64_t n = 0; n < THREADS; n++) {
        worker *const w = &workers[n];
        const call *const sizes = &s->calls[1 + n];
        *w = (worker){.chain = {.queue = th_queue(session, n == 1), .enqueue = enqueue_next, .rounds = ROUNDS},
                      .layer = layer,
                      .sizes = CLMGK_CALL_SIZES_INIT,
                      .problem = make(s, sizes, false, n),
                      .next = TH_FORWARD};
        w->sizes.batch = sizes->batch;
        w->sizes.length = sizes->length;
        w->device = tl_upload(session, &w->problem, layer);
        for (th_pass pass = TH_FORWARD; pass <= TH_BACKWARD; pass++)
            w->device.attention[pass].args.sizes = &w->sizes;
    }
    th_run_threads(th_run_chain, workers, sizeof(workers[0]), THREADS);
    for (uint64_t n = 0; n < THREADS; n++) {
        worker *const w = &workers[n];
        if (!w->chain.ok)
            fail_msg("%s", w->chain.error.message);
        TL_PROBLEM alone = make(s, &s->calls[1 + n], false, n);
        run(session, layer, &alone, &s->calls[1 + n]);
        tl_download(session, &w->problem, &w->device, true);
        expect_same_bits(&w->problem, &alone);
        tl_device_free(&w->device);
        tl_free(&w->problem);
        assert_int_equal(clReleaseCommandQueue(w->chain.queue), CL_SUCCESS);
    }
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

/* Limits without a token admit no call. */
static void expect_no_empty_limits(void)
{
    clmgk_attention_desc a = th_small_desc(CLMGK_VARIANT_SOFTMAX, 3, 0), resolved = CLMGK_ATTENTION_DESC_INIT;
    clmgk_layer_desc d = CLMGK_LAYER_DESC_INIT, all = CLMGK_LAYER_DESC_INIT;
    a.sizes_at_call = 1;
    d.attention = &a;
    d.width = 8;
    d.cross = 1;
    assert_int_equal(clmgk_layer_validate(&d, &all, &resolved, &th_error), CLMGK_ERROR_INVALID_SHAPE);
    assert_non_null(strstr(th_error.message, "attention.length_k: 0"));
    a.length = 0;
    a.length_k = 3;
    assert_int_equal(clmgk_layer_validate(&d, &all, &resolved, &th_error), CLMGK_ERROR_INVALID_SHAPE);
    assert_non_null(strstr(th_error.message, "attention.length: 0"));
}

TH_TEST(sizes_beyond_the_limits_are_refused)
{
    enum { SIZE = 8, LENGTH = 20, CAPACITY = 24 };
    static const struct {
        bool cached;
        call sizes;
        clmgk_status status;
        const char *field;
    } cases[] = {
        {false, {.batch = 4, .length = 3}, CLMGK_ERROR_INVALID_SHAPE, "attention.sizes.batch: 4"},
        {false, {.batch = -1, .length = 3}, CLMGK_ERROR_INVALID_VALUE, "attention.batch: -1"},
        {false, {.batch = 1, .length = LENGTH + 1}, CLMGK_ERROR_INVALID_SHAPE, "attention.sizes.length: 21"},
        {false, {.batch = 1, .length = 0}, CLMGK_ERROR_INVALID_SHAPE, "attention.sizes.length: 0"},
        {false, {.batch = 1, .length = 3, .length_k = 4}, CLMGK_ERROR_INVALID_SHAPE, "attention.sizes.length_k: 4"},
        {false, {.batch = 1, .length = 3, .sequences = 1}, CLMGK_ERROR_INVALID_SHAPE, "attention.sizes.sequences: 1"},
        {true, {.batch = 1, .length = 5, .length_k = 4}, CLMGK_ERROR_INVALID_SHAPE, "attention.sizes.length_k: 4"},
        {true, {.batch = 1, .length = 5, .length_k = 25}, CLMGK_ERROR_INVALID_SHAPE, "attention.sizes.length_k: 25"},
        {true,
         {.batch = 1, .length = 5, .length_k = CLMGK_NO_KEYS},
         CLMGK_ERROR_INVALID_SHAPE,
         "attention.sizes.length_k"},
    };
    clmgk_layer *layers[3] = {NULL}; /* without and with a cache, of fixed sizes */
    for (int i = 0; i < 3; i++) {
        clmgk_attention_desc a = th_small_desc(CLMGK_VARIANT_SOFTMAX, LENGTH, 1);
        clmgk_layer_desc d = CLMGK_LAYER_DESC_INIT;
        a.batch = 3;
        a.length_k = 0;
        a.sizes_at_call = i < 2;
        a.use_lengths = i == 1;
        a.alignment = i == 1 ? CLMGK_ALIGN_LENGTHS : CLMGK_ALIGN_BOTTOM_RIGHT;
        d.attention = &a;
        d.width = SIZE;
        d.cache_capacity = i == 1 ? CAPACITY : 0;
        th_expect_ok(clmgk_layer_create(session->context, &d, NULL, &layers[i], &th_error));
    }
    expect_no_empty_limits();
    clmgk_attention_args inner = CLMGK_ATTENTION_ARGS_INIT;
    clmgk_layer_args args = CLMGK_LAYER_ARGS_INIT;
    clmgk_call_sizes sizes = CLMGK_CALL_SIZES_INIT;
    args.attention = &inner;
    inner.sizes = &sizes;
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        sizes.batch = cases[n].sizes.batch;
        sizes.length = cases[n].sizes.length;
        sizes.length_k = cases[n].sizes.length_k;
        sizes.sequences = cases[n].sizes.sequences;
        const clmgk_status status =
            clmgk_enqueue_layer_forward(layers[cases[n].cached], session->queue, &args, 0, NULL, NULL, &th_error);
        if (status != cases[n].status || !strstr(th_error.message, cases[n].field))
            fail_msg("case %zu: %s: %s", n, clmgk_status_name(status), th_error.message);
    }
    sizes = (clmgk_call_sizes)CLMGK_CALL_SIZES_INIT;
    sizes.batch = 1;
    sizes.length = 3;
    assert_int_equal(clmgk_enqueue_layer_forward(layers[2], session->queue, &args, 0, NULL, NULL, &th_error),
                     CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(th_error.message, "attention.sizes: given"));
    sizes.v.strided = 1;
    assert_int_equal(clmgk_enqueue_layer_forward(layers[0], session->queue, &args, 0, NULL, NULL, &th_error),
                     CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(th_error.message, "attention.sizes.v.strided: 1"));
    sizes.v.strided = 0;
    sizes.struct_size = 3;
    assert_int_equal(clmgk_enqueue_layer_forward(layers[0], session->queue, &args, 0, NULL, NULL, &th_error),
                     CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(th_error.message, "attention.sizes"));
    for (int i = 0; i < 3; i++)
        clmgk_layer_release(layers[i]);
}
