/* SPDX-License-Identifier: Apache-2.0 */
/* A layer with a cache over a thousand steps, two sequences of different lengths: nothing is compiled after the layer
 * is made, every step is a row of one causal pass, and a full cache keeps its tokens. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, STEPS = 1000, CAPACITY = 990, LATE = 300, HEADS = 2, SIZE = 8, WIDTH = 12, COLUMNS = HEADS * SIZE };
enum { TOKENS = BATCH * CAPACITY * WIDTH, CACHE = BATCH * CAPACITY * COLUMNS, ROWS = BATCH * WIDTH };

static size_t made; /* programs and kernels */

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): names that the linker's --wrap gives */
cl_int __real_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data);
cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data);
cl_kernel __real_clCreateKernel(cl_program program, const char *name, cl_int *code);
cl_kernel __wrap_clCreateKernel(cl_program program, const char *name, cl_int *code);

cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data)
{
    made++;
    return __real_clBuildProgram(program, count, devices, options, notify, data);
}

cl_kernel __wrap_clCreateKernel(cl_program program, const char *name, cl_int *code)
{
    made++;
    return __real_clCreateKernel(program, name, code);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

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

static clmgk_layer *make_layer(const th_session *session, int64_t length, bool cached, clmgk_layer_args *args)
{
    const clmgk_attention_desc attention = attention_of(length, cached);
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT;
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    clmgk_layer *layer = NULL;
    desc.attention = &attention;
    desc.width = WIDTH;
    desc.packed_weights = 1;
    desc.use_bias = 1;
    desc.residual = 1;
    desc.norm = CLMGK_NORM_PRE;
    desc.rotary = CLMGK_ROTARY_PAIRS;
    desc.cache_capacity = cached ? CAPACITY : 0;
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

/* ---- steps ------------------------------------------------------------------------------------------------------- */

typedef struct generation {
    const th_session *session;
    clmgk_layer *layer;
    const clmgk_layer_args *args;
    const float *x, *expected; /* [B,CAPACITY,WIDTH] */
} generation;

/* The second sequence begins late; beyond the capacity the last token comes again. Returns whether both have room. */
static bool take_step(const generation *g, int step, double *worst)
{
    const cl_int lengths[BATCH] = {step + 1, step < LATE ? 0 : step + 1 - LATE};
    const bool full = lengths[0] > CAPACITY;
    float row[ROWS];
    size_t token[BATCH];
    for (size_t b = 0; b < BATCH; b++) {
        const int last = lengths[b] > CAPACITY ? CAPACITY - 1 : lengths[b] - 1;
        token[b] = b * CAPACITY + (size_t)(last < 0 ? 0 : last);
        memcpy(row + b * WIDTH, g->x + token[b] * WIDTH, WIDTH * sizeof(float));
    }
    assert_int_equal(
        clEnqueueWriteBuffer(g->session->queue, g->args->x.memory, CL_TRUE, 0, sizeof(row), row, 0, NULL, NULL),
        CL_SUCCESS);
    assert_int_equal(clEnqueueWriteBuffer(g->session->queue, g->args->attention->lengths.memory, CL_TRUE, 0,
                                          sizeof(lengths), lengths, 0, NULL, NULL),
                     CL_SUCCESS);
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
    return !full;
}

TH_TEST(steps_are_rows_of_one_pass)
{
    static float x[TOKENS], expected[TOKENS], before[2][CACHE], after[CACHE];
    clmgk_layer_args whole = CLMGK_LAYER_ARGS_INIT;
    clmgk_attention_args inner = CLMGK_ATTENTION_ARGS_INIT;
    fill(x, TOKENS, 1.0, 4);
    make_weights(session, &whole);
    clmgk_layer_args args = whole;
    clmgk_layer *layer = make_layer(session, CAPACITY, false, &whole);
    whole.x = new_buffer(session, TOKENS, x);
    whole.out = new_buffer(session, TOKENS, NULL);
    th_expect_ok(clmgk_enqueue_layer_forward(layer, session->queue, &whole, 0, NULL, NULL, &th_error));
    read_back(session, whole.out, TOKENS, expected);
    clmgk_layer_release(layer);

    layer = make_layer(session, 1, true, &args);
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
        assert_int_equal(take_step(&g, step, &worst), step < CAPACITY);
    }
    assert_int_equal(made, 0);
    print_message("%d steps: largest difference from one pass %.1e\n", STEPS, worst);
    assert_true(worst < 1e-5);
    for (size_t i = 0; i < 2; i++) { /* the first sequence's was full */
        read_back(session, caches[i], CACHE, after);
        assert_memory_equal(before[i], after, sizeof(after) / BATCH);
    }

    clmgk_layer_release(layer);
    const clmgk_buffer buffers[] = {whole.weight_qkv, whole.weight_o, whole.bias_qkv,  whole.norm_gain, whole.norm_bias,
                                    whole.x,          whole.out,      whole.workspace, args.x,          args.out,
                                    args.cache_k,     args.cache_v,   args.workspace,  inner.lengths};
    for (size_t i = 0; i < TH_COUNT(buffers); i++)
        assert_int_equal(clReleaseMemObject(buffers[i].memory), CL_SUCCESS);
}
