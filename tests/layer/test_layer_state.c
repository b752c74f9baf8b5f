/* SPDX-License-Identifier: Apache-2.0 */
/* The linear family's state in the place of a cache: a sequence in parts gives what it gives at once, also with rotary
 * positions, which go on where the part before ended. */
#include "clmgk/layer.h"
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TOKENS = 6, PARTS = 2, WIDTH = 24, NUMBERS = BATCH * TOKENS * WIDTH };

static clmgk_buffer make_buffer(const th_session *session, int64_t bytes, const void *values)
{
    cl_int code = CL_SUCCESS;
    const clmgk_buffer buffer = {clCreateBuffer(session->cl, CL_MEM_READ_WRITE, (size_t)bytes + 64, NULL, &code), 0};
    assert_int_equal(code, CL_SUCCESS);
    if (values)
        assert_int_equal(
            clEnqueueWriteBuffer(session->queue, buffer.memory, CL_TRUE, 0, (size_t)bytes, values, 0, NULL, NULL),
            CL_SUCCESS);
    return buffer;
}

/* Random numbers, the same ones for an array of any layer of this kind. */
static clmgk_buffer make_array(const th_session *session, const clmgk_layer_desc *desc, clmgk_layer_array array)
{
    const int64_t count = clmgk_layer_array_count(desc, array);
    uint64_t state = (uint64_t)array + 1;
    float *const values = calloc((size_t)count + 1, sizeof(float));
    assert_non_null(values);
    for (int64_t n = 0; n < count; n++)
        values[n] = (float)th_normal(&state) * 0.3f;
    const clmgk_buffer buffer = make_buffer(session, count * (int64_t)sizeof(float), values);
    free(values);
    return buffer;
}

/* All that a layer needs to be called. */
typedef struct called {
    clmgk_layer_desc desc;
    clmgk_attention_desc attention;
    clmgk_layer *layer;
    clmgk_layer_args args;
    clmgk_attention_args inner;
} called;

static void open_layer(const th_session *session, int64_t length, bool state, called *c)
{
    static const clmgk_layer_array arrays[] = {CLMGK_LAYER_ARRAY_X, CLMGK_LAYER_ARRAY_WEIGHT_QKV,
                                               CLMGK_LAYER_ARRAY_WEIGHT_O, CLMGK_LAYER_ARRAY_OUT};
    clmgk_error error;
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT;
    attention.variant = CLMGK_VARIANT_LINEAR;
    attention.batch = BATCH;
    attention.heads = 2;
    attention.length = length;
    attention.head_size = 16;
    attention.causal = 1;
    attention.use_state = attention.use_new_state = state;
    desc.attention = &attention;
    desc.width = WIDTH;
    desc.packed_weights = 1;
    desc.rotary = CLMGK_ROTARY_HALVES;
    desc.use_positions = state;
    memset(c, 0, sizeof(*c));
    c->desc.struct_size = sizeof(c->desc);
    c->attention.struct_size = sizeof(c->attention);
    assert_int_equal(clmgk_layer_validate(&desc, &c->desc, &c->attention, &error), CLMGK_OK);
    assert_int_equal(clmgk_layer_create(session->context, &desc, NULL, &c->layer, &error), CLMGK_OK);
    assert_int_equal(clmgk_layer_get_info(c->layer, &info, &error), CLMGK_OK);
    c->args.struct_size = sizeof(c->args);
    c->inner.struct_size = sizeof(c->inner);
    c->args.attention = &c->inner;
    for (size_t n = 0; n < TH_COUNT(arrays); n++)
        *clmgk_layer_array_buffer(&c->args, arrays[n]) = make_array(session, &c->desc, arrays[n]);
    c->args.workspace = make_buffer(session, (int64_t)info.workspace_bytes, NULL);
}

static void close_layer(called *c)
{
    for (int n = 0; n < CLMGK_LAYER_ARRAYS; n++) {
        const cl_mem memory = clmgk_layer_array_buffer(&c->args, (clmgk_layer_array)n)->memory;
        if (memory)
            clReleaseMemObject(memory);
    }
    clmgk_layer_release(c->layer);
}

/* Tokens first .. of each sequence of x [BATCH,TOKENS,WIDTH] go in, those of `out` come back. */
static void run(const th_session *session, called *c, int64_t first, const float *x, float *out)
{
    clmgk_error error;
    const size_t row = (size_t)c->attention.length * WIDTH;
    for (size_t b = 0; b < BATCH; b++)
        assert_int_equal(clEnqueueWriteBuffer(session->queue, c->args.x.memory, CL_TRUE, b * row * sizeof(float),
                                              row * sizeof(float), x + (b * TOKENS + (size_t)first) * WIDTH, 0, NULL,
                                              NULL),
                         CL_SUCCESS);
    const clmgk_status status = clmgk_enqueue_layer_forward(c->layer, session->queue, &c->args, 0, NULL, NULL, &error);
    if (status != CLMGK_OK)
        fail_msg("%s", error.message);
    for (size_t b = 0; b < BATCH; b++)
        assert_int_equal(clEnqueueReadBuffer(session->queue, c->args.out.memory, CL_TRUE, b * row * sizeof(float),
                                             row * sizeof(float), out + (b * TOKENS + (size_t)first) * WIDTH, 0, NULL,
                                             NULL),
                         CL_SUCCESS);
}

TH_TEST(a_state_goes_on)
{
    static const float zeros[4096];
    float x[NUMBERS], whole[NUMBERS], parts[NUMBERS];
    uint64_t state = 7;
    called all, part;
    for (size_t n = 0; n < NUMBERS; n++)
        x[n] = (float)th_normal(&state);
    open_layer(session, TOKENS, false, &all);
    open_layer(session, TOKENS / PARTS, true, &part);
    run(session, &all, 0, x, whole);

    clmgk_buffer c[2], z[2];
    for (size_t n = 0; n < 2; n++) {
        c[n] = make_buffer(session, clmgk_array_bytes(&part.attention, CLMGK_ARRAY_STATE_C), zeros);
        z[n] = make_buffer(session, clmgk_array_bytes(&part.attention, CLMGK_ARRAY_STATE_Z), zeros);
    }
    for (int n = 0; n < PARTS; n++) {
        const int32_t tokens = (n + 1) * TOKENS / PARTS, positions[BATCH] = {tokens, tokens};
        part.args.positions = make_buffer(session, sizeof(positions), positions);
        part.inner.state_c = c[n % 2];
        part.inner.state_z = z[n % 2];
        part.inner.new_state_c = c[1 - n % 2];
        part.inner.new_state_z = z[1 - n % 2];
        run(session, &part, n * TOKENS / PARTS, x, parts);
        clReleaseMemObject(part.args.positions.memory);
        part.args.positions.memory = NULL;
    }
    for (size_t n = 0; n < NUMBERS; n++)
        assert_float_equal(parts[n], whole[n], 1e-5f);
    for (size_t n = 0; n < 2; n++) {
        clReleaseMemObject(c[n].memory);
        clReleaseMemObject(z[n].memory);
    }
    close_layer(&all);
    close_layer(&part);
}
