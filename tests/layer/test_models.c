/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of models exported to files (models/README.md): with their weights, unchanged, the layer computes their
 * outputs and gradients. */
#include "harness/harness.h"
#include "npy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All elements of folder/name.npy: floats, or 32-bit integers as they are. */
typedef struct numbers {
    void *values;
    size_t count;
} numbers;

static numbers read_numbers(const char *folder, const char *name)
{
    char path[512];
    tool_error error = {0};
    npy_file file = {.stream = NULL};
    assert_in_range(snprintf(path, sizeof(path), "%s/%s/%s.npy", MODELS_FOLDER, folder, name), 1, sizeof(path) - 1);
    tool_exit status = npy_open(name, path, &file, &error);
    const numbers n = {calloc((size_t)file.header.count + 1, sizeof(float)), (size_t)file.header.count};
    assert_non_null(n.values);
    if (status == TOOL_DONE)
        status = npy_is_float(file.header.type) ? npy_read(&file, CLMGK_DTYPE_F32, n.values, &error)
                                                : npy_read_i32(&file, n.values, &error);
    npy_close(&file);
    if (status != TOOL_DONE)
        fail_msg("%s: %s", path, error.message);
    return n;
}

/* ---- a model ----------------------------------------------------------------------------------------------------- */

typedef struct model {
    const char *folder;
    const clmgk_layer_desc *desc;
    bool joined_biases; /* the model has b_Q, b_K and b_V in one array, the layer in three */
} model;

/* The array in whose memory this one lies. */
static clmgk_layer_array home_of(const model *m, clmgk_layer_array array)
{
    const bool input = array == CLMGK_LAYER_ARRAY_BIAS_K || array == CLMGK_LAYER_ARRAY_BIAS_V;
    const bool output = array == CLMGK_LAYER_ARRAY_GRAD_BIAS_K || array == CLMGK_LAYER_ARRAY_GRAD_BIAS_V;
    if (m->joined_biases && input)
        return CLMGK_LAYER_ARRAY_BIAS_Q;
    return m->joined_biases && output ? CLMGK_LAYER_ARRAY_GRAD_BIAS_Q : array;
}

static const char *file_of(const model *m, clmgk_layer_array array)
{
    if (m->joined_biases && array == CLMGK_LAYER_ARRAY_BIAS_Q)
        return "bias_qkv";
    if (m->joined_biases && array == CLMGK_LAYER_ARRAY_GRAD_BIAS_Q)
        return "grad_bias_qkv";
    return clmgk_layer_array_name(array);
}

static bool is_gradient(clmgk_layer_array array)
{
    return strncmp(clmgk_layer_array_name(array), "grad_", 5) == 0 && array != CLMGK_LAYER_ARRAY_GRAD_OUT;
}

static bool is_output(clmgk_layer_array array)
{
    return array == CLMGK_LAYER_ARRAY_OUT || is_gradient(array);
}

static clmgk_buffer new_buffer(const th_session *session, size_t bytes, const void *data)
{
    cl_int code = CL_SUCCESS;
    const cl_mem_flags flags = CL_MEM_READ_WRITE | (data ? CL_MEM_COPY_HOST_PTR : 0);
    if (bytes == 0)
        return (clmgk_buffer){NULL, 0};
    const cl_mem memory = clCreateBuffer(session->cl, flags, bytes, (void *)data, &code);
    assert_int_equal(code, CL_SUCCESS);
    return (clmgk_buffer){memory, 0};
}

/* A buffer for each array: of an output NaN. */
static void make_arrays(const th_session *session, const model *m, const clmgk_layer_desc *resolved,
                        clmgk_layer_args *args)
{
    for (int i = 0; i < CLMGK_LAYER_ARRAYS; i++) {
        const clmgk_layer_array array = (clmgk_layer_array)i, home = home_of(m, array);
        const size_t count = (size_t)clmgk_layer_array_count(resolved, array);
        clmgk_buffer *const buffer = clmgk_layer_array_buffer(args, array);
        if (count == 0)
            continue;
        if (home != array) { /* each behind the one before */
            *buffer = *clmgk_layer_array_buffer(args, (clmgk_layer_array)(i - 1));
            buffer->offset += (uint64_t)clmgk_layer_array_count(resolved, (clmgk_layer_array)(i - 1));
            continue;
        }
        const numbers n = read_numbers(m->folder, file_of(m, array));
        if (strcmp(file_of(m, array), clmgk_layer_array_name(array)) == 0)
            assert_int_equal(n.count, count);
        if (is_output(array))
            memset(n.values, 0xff, n.count * sizeof(float));
        *buffer = new_buffer(session, n.count * sizeof(float), n.values);
        free(n.values);
    }
}

static void release_arrays(const model *m, clmgk_layer_args *args)
{
    for (int i = 0; i < CLMGK_LAYER_ARRAYS; i++) {
        const clmgk_buffer *const buffer = clmgk_layer_array_buffer(args, (clmgk_layer_array)i);
        if (buffer->memory && home_of(m, (clmgk_layer_array)i) == (clmgk_layer_array)i)
            assert_int_equal(clReleaseMemObject(buffer->memory), CL_SUCCESS);
    }
}

/* Within the library's bound of error (golden/README.md): the plain formula's is at most 5e-7 of the largest value, as
 * the exporter prints. */
static void expect_array(const th_session *session, const model *m, clmgk_layer_array array, clmgk_buffer buffer)
{
    const char *const name = file_of(m, array);
    const numbers n = read_numbers(m->folder, name);
    const float *const expected = n.values;
    float *const got = malloc(n.count * sizeof(float));
    assert_non_null(got);
    assert_int_equal(
        clEnqueueReadBuffer(session->queue, buffer.memory, CL_TRUE, 0, n.count * sizeof(float), got, 0, NULL, NULL),
        CL_SUCCESS);
    double largest = 0.0, worst = 0.0;
    for (size_t i = 0; i < n.count; i++) {
        const double error = fabs((double)got[i] - expected[i]);
        largest = fmax(largest, fabs((double)expected[i]));
        worst = isnan(error) ? INFINITY : fmax(worst, error);
    }
    const double bound = (is_gradient(array) ? 1.2e-5 : 4e-6) * largest;
    print_message("%s %s: largest error %.1e, of %.1e\n", m->folder, name, worst, largest);
    if (worst > bound)
        fail_msg("%s %s: error %g: expected at most %g", m->folder, name, worst, bound);
    free(got);
    free(n.values);
}

static void expect_model(const th_session *session, const model *m)
{
    clmgk_layer_desc resolved = CLMGK_LAYER_DESC_INIT;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    clmgk_layer *layer = NULL;
    th_expect_ok(clmgk_layer_validate(m->desc, &resolved, &attention, &th_error));
    th_expect_ok(clmgk_layer_create(session->context, m->desc, NULL, &layer, &th_error));
    th_expect_ok(clmgk_layer_get_info(layer, &info, &th_error));

    clmgk_layer_args args = CLMGK_LAYER_ARGS_INIT;
    clmgk_attention_args inner = CLMGK_ATTENTION_ARGS_INIT;
    const numbers lengths = read_numbers(m->folder, "lengths");
    assert_int_equal(lengths.count, attention.batch);
    inner.lengths = new_buffer(session, lengths.count * sizeof(int32_t), lengths.values);
    free(lengths.values);
    args.attention = &inner;
    make_arrays(session, m, &resolved, &args);
    args.activations = new_buffer(session, info.activation_bytes, NULL);
    args.workspace =
        new_buffer(session, (size_t)fmax((double)info.workspace_bytes, (double)info.backward_workspace_bytes), NULL);

    th_expect_ok(clmgk_enqueue_layer_forward(layer, session->queue, &args, 0, NULL, NULL, &th_error));
    if (m->desc->gradients != 0)
        th_expect_ok(clmgk_enqueue_layer_backward(layer, session->queue, &args, 0, NULL, NULL, &th_error));
    for (int i = 0; i < CLMGK_LAYER_ARRAYS; i++) {
        const clmgk_layer_array array = (clmgk_layer_array)i;
        const clmgk_buffer buffer = *clmgk_layer_array_buffer(&args, array);
        if (buffer.memory && is_output(array) && home_of(m, array) == array)
            expect_array(session, m, array, buffer);
    }
    release_arrays(m, &args);
    assert_int_equal(clReleaseMemObject(inner.lengths.memory), CL_SUCCESS);
    clmgk_layer_release(layer);
}

TH_HOST_TEST(fields_of_arrays)
{
    clmgk_layer_args args = CLMGK_LAYER_ARGS_INIT;
    assert_ptr_equal(clmgk_layer_array_buffer(&args, CLMGK_LAYER_ARRAY_X), &args.x);
    assert_ptr_equal(clmgk_layer_array_buffer(&args, CLMGK_LAYER_ARRAY_GRAD_WEIGHT_O), &args.grad_weight_o);
    assert_ptr_equal(clmgk_layer_array_buffer(&args, CLMGK_LAYER_ARRAY_WORKSPACE), &args.workspace);
    assert_null(clmgk_layer_array_buffer(&args, CLMGK_LAYER_ARRAYS));
    assert_null(clmgk_layer_array_buffer(NULL, CLMGK_LAYER_ARRAY_X));
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static clmgk_attention_desc padded_attention(int64_t heads, int64_t length, int64_t head_size)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.batch = 2;
    desc.heads = heads;
    desc.length = length;
    desc.head_size = head_size;
    desc.use_lengths = 1;
    return desc;
}

static clmgk_layer_desc layer_of(const clmgk_attention_desc *attention, int64_t width)
{
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT;
    desc.attention = attention;
    desc.width = width;
    desc.use_bias = 1;
    desc.use_bias_o = 1;
    return desc;
}

/* The attention block of a pretrained encoder, over two sentences. */
TH_TEST(pretrained_encoder)
{
    const clmgk_attention_desc attention = padded_attention(12, 12, 32);
    clmgk_layer_desc desc = layer_of(&attention, 384);
    desc.residual = 1;
    desc.norm = CLMGK_NORM_POST;
    desc.norm_epsilon = 1e-12;
    expect_model(session, &(model){.folder = "minilm", .desc = &desc});
}

enum { HEADS = 3, SIZE = 8, WIDTH = HEADS * SIZE, LENGTH = 7 };

/* torch.nn.MultiheadAttention. */
TH_TEST(packed_weights)
{
    const clmgk_attention_desc attention = padded_attention(HEADS, LENGTH, SIZE);
    clmgk_layer_desc desc = layer_of(&attention, WIDTH);
    desc.packed_weights = 1;
    desc.gradients = CLMGK_LAYER_GRADIENT_X | CLMGK_LAYER_GRADIENT_WEIGHT_QKV | CLMGK_LAYER_GRADIENT_BIAS_QKV |
                     CLMGK_LAYER_GRADIENT_WEIGHT_O | CLMGK_LAYER_GRADIENT_BIAS_O;
    expect_model(session, &(model){.folder = "torch-self", .desc = &desc});
}

/* The first half of torch.nn.TransformerEncoderLayer. */
TH_TEST(residual_and_norm)
{
    const clmgk_attention_desc attention = padded_attention(HEADS, LENGTH, SIZE);
    clmgk_layer_desc desc = layer_of(&attention, WIDTH);
    desc.packed_weights = 1;
    desc.residual = 1;
    desc.norm = CLMGK_NORM_POST;
    desc.gradients = CLMGK_LAYER_GRADIENT_X | CLMGK_LAYER_GRADIENT_WEIGHT_QKV | CLMGK_LAYER_GRADIENT_BIAS_QKV |
                     CLMGK_LAYER_GRADIENT_WEIGHT_O | CLMGK_LAYER_GRADIENT_BIAS_O | CLMGK_LAYER_GRADIENT_NORM_GAIN |
                     CLMGK_LAYER_GRADIENT_NORM_BIAS;
    expect_model(session, &(model){.folder = "torch-encoder", .desc = &desc});
}

/* torch.nn.MultiheadAttention with kdim and vdim: weights apart, biases in one array. */
static clmgk_layer_desc cross_of(const clmgk_attention_desc *attention)
{
    clmgk_layer_desc desc = layer_of(attention, WIDTH);
    desc.cross = 1;
    desc.width_k = 20;
    desc.gradients = CLMGK_LAYER_GRADIENT_X | CLMGK_LAYER_GRADIENT_X2 | CLMGK_LAYER_GRADIENT_WEIGHT_Q |
                     CLMGK_LAYER_GRADIENT_WEIGHT_K | CLMGK_LAYER_GRADIENT_WEIGHT_V | CLMGK_LAYER_GRADIENT_WEIGHT_O |
                     CLMGK_LAYER_GRADIENT_BIAS_Q | CLMGK_LAYER_GRADIENT_BIAS_K | CLMGK_LAYER_GRADIENT_BIAS_V |
                     CLMGK_LAYER_GRADIENT_BIAS_O;
    return desc;
}

TH_TEST(second_input)
{
    clmgk_attention_desc attention = padded_attention(HEADS, LENGTH, SIZE);
    attention.length_k = 9;
    const clmgk_layer_desc desc = cross_of(&attention);
    expect_model(session, &(model){.folder = "torch-cross", .desc = &desc, .joined_biases = true});
}

/* The same with different key and value. */
TH_TEST(third_input)
{
    clmgk_attention_desc attention = padded_attention(HEADS, LENGTH, SIZE);
    attention.length_k = 9;
    clmgk_layer_desc desc = cross_of(&attention);
    desc.cross_v = 1;
    desc.width_v = 28;
    desc.gradients |= CLMGK_LAYER_GRADIENT_X3;
    expect_model(session, &(model){.folder = "torch-key-value", .desc = &desc, .joined_biases = true});
}
