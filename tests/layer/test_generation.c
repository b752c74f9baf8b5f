/* SPDX-License-Identifier: Apache-2.0 */
/* Text token by token: nothing is compiled after the layer is made, and every step is a row of one causal pass. With a
 * cache, over a thousand steps of two sequences of different lengths, of which one fills it; with a state, by parts. */
#include "harness/harness.h"
#include "harness/made.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, STEPS = 1000, CAPACITY = 990, LATE = 300, HEADS = 2, SIZE = 8, WIDTH = 12, COLUMNS = HEADS * SIZE };
enum { TOKENS = BATCH * CAPACITY * WIDTH, CACHE = BATCH * CAPACITY * COLUMNS, ROWS = BATCH * WIDTH };

/* ---- the layer --------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc attention_of(int64_t length, bool cached)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.batch = BATCH;
    desc.heads = HEADS;
    desc.length = length;
    desc.head_size = SIZE;
    desc.causal = 1;
    desc.use_lengths = cached;
    desc.alignment = cached ? CLMGK_ALIGN_LENGTHS : CLMGK_ALIGN_BOTTOM_RIGHT;
    return desc;
}

static clmgk_layer *make_layer(const th_session *session, const clmgk_attention_desc *attention, clmgk_layer_args *args)
{
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT;
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    clmgk_layer *layer = NULL;
    desc.attention = attention;
    desc.width = WIDTH;
    desc.packed_weights = 1;
    desc.use_bias = 1;
    desc.residual = 1;
    desc.norm = CLMGK_NORM_PRE;
    desc.rotary = CLMGK_ROTARY_PAIRS;
    desc.cache_capacity = attention->use_lengths ? CAPACITY : 0;
    desc.use_positions = attention->use_state;
    th_expect_ok(clmgk_layer_create(session->context, &desc, NULL, &layer, &th_error));
    th_expect_ok(clmgk_layer_get_info(layer, &info, &th_error));
    assert_int_equal(info.activation_bytes, 0);
    args->workspace.memory =
        clCreateBuffer(session->cl, CL_MEM_READ_WRITE, (size_t)info.workspace_bytes + 1, NULL, NULL);
    assert_non_null(args->workspace.memory);
    return layer;
}

static clmgk_buffer new_buffer(const th_session *session, size_t count, const float *values)
{
    float *const copy = malloc(count * sizeof(float));
    assert_non_null(copy);
    memset(copy, 0xff, count * sizeof(float));
    if (values)
        memcpy(copy, values, count * sizeof(float));
    const cl_mem memory =
        clCreateBuffer(session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, count * sizeof(float), copy, NULL);
    assert_non_null(memory);
    free(copy);
    return (clmgk_buffer){memory, 0};
}

static void read_back(const th_session *session, clmgk_buffer buffer, size_t count, float *values)
{
    assert_int_equal(
        clEnqueueReadBuffer(session->queue, buffer.memory, CL_TRUE, 0, count * sizeof(float), values, 0, NULL, NULL),
        CL_SUCCESS);
}

static void write_to(const th_session *session, clmgk_buffer buffer, size_t bytes, const void *values)
{
    assert_int_equal(clEnqueueWriteBuffer(session->queue, buffer.memory, CL_TRUE, 0, bytes, values, 0, NULL, NULL),
                     CL_SUCCESS);
}

static void release_all(const clmgk_buffer *buffers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(clReleaseMemObject(buffers[i].memory), CL_SUCCESS);
}

static void fill(float *values, size_t count, double scale, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(scale * th_normal(&seed));
}

static void make_weights(const th_session *session, clmgk_layer_args *args)
{
    enum { QKV = 3 * COLUMNS, PACKED = QKV * WIDTH, OUTPUT = WIDTH * COLUMNS };
    float values[PACKED];
    fill(values, PACKED, 0.5, 1);
    args->weight_qkv = new_buffer(session, PACKED, values);
    fill(values, OUTPUT, 0.5, 2);
    args->weight_o = new_buffer(session, OUTPUT, values);
    fill(values, QKV, 0.5, 3);
    args->bias_qkv = new_buffer(session, QKV, values);
    args->norm_gain = new_buffer(session, WIDTH, values);
    args->norm_bias = new_buffer(session, WIDTH, values + WIDTH);
}

static void release_weights(const clmgk_layer_args *args)
{
    const clmgk_buffer weights[] = {args->weight_qkv, args->weight_o, args->bias_qkv, args->norm_gain, args->norm_bias};
    release_all(weights, TH_COUNT(weights));
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

typedef struct generation {
    const th_session *session;
    clmgk_layer *layer;
    const clmgk_layer_args *args;
    const float *x, *expected; /* [B,CAPACITY,WIDTH] */
} generation;

/* The second sequence begins late; beyond the capacity the last token comes again. */
static void take_step(const generation *g, int step, double *worst)
{
    const cl_int lengths[BATCH] = {step + 1, step < LATE ? 0 : step + 1 - LATE};
    float row[ROWS];
    size_t token[BATCH];
    for (size_t b = 0; b < BATCH; b++) {
        const int last = lengths[b] > CAPACITY ? CAPACITY - 1 : lengths[b] - 1;
        token[b] = b * CAPACITY + (size_t)(last < 0 ? 0 : last);
        memcpy(row + b * WIDTH, g->x + token[b] * WIDTH, WIDTH * sizeof(float));
    }
    write_to(g->session, g->args->x, sizeof(row), row);
    write_to(g->session, g->args->attention->lengths, sizeof(lengths), lengths);
    th_expect_ok(clmgk_enqueue_layer_forward(g->layer, g->session->queue, g->args, 0, NULL, NULL, &th_error));
    read_back(g->session, g->args->out, ROWS, row);
    for (size_t i = 0; i < ROWS; i++) {
        const size_t b = i / WIDTH, c = i % WIDTH;
        if (lengths[b] == 0) /* it sees nothing: the residual is left */
            assert_float_equal(row[i], g->x[token[b] * WIDTH + c], 0.0F);
        else if (lengths[b] <= CAPACITY)
            *worst = fmax(*worst, fabs((double)row[i] - g->expected[token[b] * WIDTH + c]));
        assert_true(isfinite(row[i]));
    }
}

/* What a pass over the whole and one with caches have. */
static void release_both(clmgk_layer_args *whole, const clmgk_layer_args *args, const clmgk_attention_args *inner)
{
    const clmgk_buffer buffers[] = {whole->x,      whole->out,    whole->workspace, args->x,       args->out,
                                    args->cache_k, args->cache_v, args->workspace,  inner->lengths};
    release_weights(whole);
    release_all(buffers, TH_COUNT(buffers));
}

/* One pass over all tokens: `count` numbers of x and of the output. */
static void run_whole(th_session *session, const clmgk_attention_desc *attention, clmgk_layer_args *args, size_t count,
                      const float *x, float *out)
{
    clmgk_layer *const layer = make_layer(session, attention, args);
    args->x = new_buffer(session, count, x);
    args->out = new_buffer(session, count, NULL);
    th_expect_ok(clmgk_enqueue_layer_forward(layer, session->queue, args, 0, NULL, NULL, &th_error));
    read_back(session, args->out, count, out);
    clmgk_layer_release(layer);
}

TH_TEST(steps_are_rows_of_one_pass)
{
    static float x[TOKENS], expected[TOKENS], before[2][CACHE], after[CACHE];
    clmgk_layer_args whole = CLMGK_LAYER_ARGS_INIT;
    clmgk_attention_args inner = CLMGK_ATTENTION_ARGS_INIT;
    fill(x, TOKENS, 1.0, 4);
    make_weights(session, &whole);
    clmgk_layer_args args = whole;
    clmgk_attention_desc attention = attention_of(CAPACITY, false);
    run_whole(session, &attention, &whole, TOKENS, x, expected);

    attention = attention_of(1, true);
    clmgk_layer *const layer = make_layer(session, &attention, &args);
    inner.lengths = new_buffer(session, BATCH, NULL);
    args.attention = &inner;
    args.x = new_buffer(session, ROWS, NULL);
    args.out = new_buffer(session, ROWS, NULL);
    args.cache_k = new_buffer(session, CACHE, NULL);
    args.cache_v = new_buffer(session, CACHE, NULL);
    const generation g = {session, layer, &args, x, expected};
    const clmgk_buffer caches[2] = {args.cache_k, args.cache_v};
    double worst = 0.0;
    made = 0;
    for (int step = 0; step < STEPS; step++) {
        if (step == CAPACITY)
            for (size_t i = 0; i < 2; i++)
                read_back(session, caches[i], CACHE, before[i]);
        take_step(&g, step, &worst);
    }
    assert_int_equal(made, 0);
    print_message("%d steps: largest difference from one pass %.1e\n", STEPS, worst);
    assert_true(worst < 1e-5);
    for (size_t i = 0; i < 2; i++) { /* the first sequence's was full */
        read_back(session, caches[i], CACHE, after);
        assert_memory_equal(before[i], after, sizeof(after) / BATCH);
    }

    clmgk_layer_release(layer);
    release_both(&whole, &args, &inner);
}

/* One layer with sizes_at_call takes the prompt, chunks and single tokens. */
TH_TEST(one_layer_takes_prompt_and_steps)
{
    enum { PROMPT = 300, CHUNK = BATCH * PROMPT * WIDTH };
    static const int chunks[] = {PROMPT, 1, 1, 7, 1, 64, 1};
    static float x[TOKENS], expected[TOKENS], chunk[CHUNK];
    clmgk_layer_args whole = CLMGK_LAYER_ARGS_INIT;
    clmgk_attention_args inner = CLMGK_ATTENTION_ARGS_INIT;
    clmgk_call_sizes sizes = CLMGK_CALL_SIZES_INIT;
    fill(x, TOKENS, 1.0, 4);
    make_weights(session, &whole);
    clmgk_layer_args args = whole;
    clmgk_attention_desc attention = attention_of(CAPACITY, false);
    run_whole(session, &attention, &whole, TOKENS, x, expected);

    attention = attention_of(PROMPT, true);
    attention.sizes_at_call = 1;
    clmgk_layer *const layer = make_layer(session, &attention, &args);
    inner.lengths = new_buffer(session, BATCH, NULL);
    inner.sizes = &sizes;
    args.attention = &inner;
    args.x = new_buffer(session, CHUNK, NULL);
    args.out = new_buffer(session, CHUNK, NULL);
    args.cache_k = new_buffer(session, CACHE, NULL);
    args.cache_v = new_buffer(session, CACHE, NULL);
    double worst = 0.0;
    int done = 0;
    made = 0;
    for (size_t c = 0; c < TH_COUNT(chunks); c++) {
        const size_t piece = (size_t)chunks[c] * WIDTH, first = (size_t)done * WIDTH;
        done += chunks[c];
        const cl_int lengths[BATCH] = {done, done};
        for (size_t b = 0; b < BATCH; b++)
            memcpy(chunk + b * piece, x + b * CAPACITY * WIDTH + first, piece * sizeof(float));
        sizes.batch = BATCH;
        sizes.length = chunks[c];
        write_to(session, args.x, BATCH * piece * sizeof(float), chunk);
        write_to(session, inner.lengths, sizeof(lengths), lengths);
        th_expect_ok(clmgk_enqueue_layer_forward(layer, session->queue, &args, 0, NULL, NULL, &th_error));
        read_back(session, args.out, BATCH * piece, chunk);
        for (size_t i = 0; i < BATCH * piece; i++) {
            const float exact = expected[i / piece * CAPACITY * WIDTH + first + i % piece];
            worst = fmax(worst, fabs((double)chunk[i] - exact));
            assert_true(isfinite(chunk[i]));
        }
    }
    assert_int_equal(made, 0);
    print_message("%d tokens: largest difference from one pass %.1e\n", done, worst);
    assert_true(worst < 1e-5);

    clmgk_layer_release(layer);
    release_both(&whole, &args, &inner);
}

/* ---- a state ----------------------------------------------------------------------------------------------------- */

/* The linear family. A state does not tell the position that it goes on from. */
TH_TEST(states_go_on)
{
    enum {
        LENGTH = 40,
        PART = 4,
        PIECE = PART * WIDTH,
        ALL = BATCH * LENGTH * WIDTH,
        SUMS = BATCH * HEADS * SIZE,
        STATE = SUMS * SIZE
    };
    float x[ALL], expected[ALL], part[BATCH * PIECE], zeros[STATE] = {0};
    clmgk_layer_args whole = CLMGK_LAYER_ARGS_INIT;
    clmgk_attention_args inner = CLMGK_ATTENTION_ARGS_INIT;
    clmgk_attention_desc attention = attention_of(LENGTH, false);
    attention.variant = CLMGK_VARIANT_LINEAR;
    fill(x, ALL, 1.0, 5);
    make_weights(session, &whole);
    clmgk_layer_args args = whole;
    run_whole(session, &attention, &whole, ALL, x, expected);

    attention.length = PART;
    attention.use_state = 1;
    attention.use_new_state = 1;
    clmgk_layer *const layer = make_layer(session, &attention, &args);
    inner.state_c = new_buffer(session, STATE, zeros);
    inner.state_z = new_buffer(session, SUMS, zeros);
    inner.new_state_c = new_buffer(session, STATE, NULL);
    inner.new_state_z = new_buffer(session, SUMS, NULL);
    args.attention = &inner;
    args.positions = new_buffer(session, BATCH, NULL);
    args.x = new_buffer(session, TH_COUNT(part), NULL);
    args.out = new_buffer(session, TH_COUNT(part), NULL);
    double worst = 0.0;
    made = 0;
    for (size_t first = 0; first < LENGTH; first += PART) {
        const cl_int positions[BATCH] = {(cl_int)first + PART, (cl_int)first + PART};
        for (size_t b = 0; b < BATCH; b++)
            memcpy(part + b * PIECE, x + (b * LENGTH + first) * WIDTH, PIECE * sizeof(float));
        write_to(session, args.x, sizeof(part), part);
        write_to(session, args.positions, sizeof(positions), positions);
        th_expect_ok(clmgk_enqueue_layer_forward(layer, session->queue, &args, 0, NULL, NULL, &th_error));
        read_back(session, args.out, TH_COUNT(part), part);
        for (size_t i = 0; i < TH_COUNT(part); i++) {
            const size_t b = i / PIECE, at = (b * LENGTH + first) * WIDTH + i % PIECE;
            const double error = fabs((double)part[i] - expected[at]);
            worst = isnan(error) ? INFINITY : fmax(worst, error);
        }
        const clmgk_buffer c = inner.state_c, z = inner.state_z; /* old and new change places */
        inner.state_c = inner.new_state_c, inner.state_z = inner.new_state_z;
        inner.new_state_c = c, inner.new_state_z = z;
    }
    assert_int_equal(made, 0);
    print_message("%d tokens: largest difference from one pass %.1e\n", LENGTH, worst);
    assert_true(worst < 1e-5);

    clmgk_layer_release(layer);
    release_weights(&whole);
    const clmgk_buffer buffers[] = {whole.x,       whole.out,         whole.workspace,  args.x,
                                    args.out,      args.workspace,    args.positions,   inner.state_c,
                                    inner.state_z, inner.new_state_c, inner.new_state_z};
    release_all(buffers, TH_COUNT(buffers));
}
