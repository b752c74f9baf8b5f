/* SPDX-License-Identifier: Apache-2.0 */
/* Every misuse of layers gives a status and a message with the wrong field and its value. Nothing is written. */
#include "harness/layer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE  CLMGK_ERROR_INVALID_VALUE
#define SHAPE  CLMGK_ERROR_INVALID_SHAPE
#define BUFFER CLMGK_ERROR_INVALID_BUFFER
#define BIG    (INT64_C(1) << 40)

/* ---- descriptors --------------------------------------------------------------------------------------------------
 */

typedef struct bad_desc {
    clmgk_layer_desc layer;
    clmgk_attention_desc attention;
    clmgk_status status;
    const char *field; /* in the message */
    const char *value;
} bad_desc;

#define L(...) .layer = {__VA_ARGS__}
#define A(...) .attention = {__VA_ARGS__}
/* A cache that would be right. */
#define CACHED   .cache_capacity = 8
#define OF_CACHE .use_lengths = 1, .alignment = CLMGK_ALIGN_LENGTHS

static const bad_desc bad_descs[] = {
    {L(.width = -1), .status = VALUE, .field = "width", .value = "-1"},
    {L(.width = BIG), .status = CLMGK_ERROR_OVERFLOW, .field = "width", .value = "1099511627776"},
    {L(.width_k = -2), .status = VALUE, .field = "width_k", .value = "-2"},
    {L(.width_k = 7), .status = SHAPE, .field = "width_k", .value = "cross"},
    {L(.cross = 1, .packed_weights = 1, .width_k = 7), .status = SHAPE, .field = "width_k", .value = "packed_weights"},
    {L(.width_v = -3), .status = VALUE, .field = "width_v", .value = "-3"},
    {L(.width_v = BIG), .status = CLMGK_ERROR_OVERFLOW, .field = "width_v", .value = "1099511627776"},
    {L(.width_v = 7), .status = SHAPE, .field = "width_v", .value = "cross_v"},
    {L(.cross = 1, .width_v = 7), .status = SHAPE, .field = "width_v", .value = "cross_v"},
    {L(.cross = 1, .width_k = 7, .width_v = 12), .status = SHAPE, .field = "width_v", .value = "width_k = 7"},
    {L(.cross = 1, .cross_v = 1, .packed_weights = 1, .width_v = 7), .status = SHAPE, .field = "width_v",
     .value = "packed_weights"},
    {L(.cross_v = 1), .status = VALUE, .field = "cross_v", .value = "cross = 0"},
    {L(.cross = 1, .cross_v = 2), .status = VALUE, .field = "cross_v", .value = "2"},
    {L(.cross = 2), .status = VALUE, .field = "cross", .value = "2"},
    {L(.packed_weights = -1), .status = VALUE, .field = "packed_weights", .value = "-1"},
    {L(.use_bias = 2), .status = VALUE, .field = "use_bias", .value = "2"},
    {L(.use_bias_o = 3), .status = VALUE, .field = "use_bias_o", .value = "3"},
    {L(.residual = 2), .status = VALUE, .field = "residual", .value = "2"},
    {L(.qk_norm = 2), .status = VALUE, .field = "qk_norm", .value = "2"},
    {L(.norm = (clmgk_norm)3), .status = VALUE, .field = "norm", .value = "3"},
    {L(.rotary = (clmgk_rotary)3), .status = VALUE, .field = "rotary", .value = "3"},
    {L(.rotary_size = 4), .status = VALUE, .field = "rotary_size", .value = "rotary"},
    {L(.rotary_base = 4.0), .status = VALUE, .field = "rotary_base", .value = "rotary"},
    {L(.rotary = CLMGK_ROTARY_PAIRS, .rotary_size = 5), .status = VALUE, .field = "rotary_size", .value = "5"},
    {L(.rotary = CLMGK_ROTARY_PAIRS, .rotary_size = 10), .status = VALUE, .field = "rotary_size", .value = "10"},
    {L(.rotary = CLMGK_ROTARY_PAIRS), A(.head_size = 9), .status = VALUE, .field = "rotary_size", .value = "9"},
    {L(.rotary = CLMGK_ROTARY_PAIRS, .rotary_base = 0.5), .status = VALUE, .field = "rotary_base", .value = "0.5"},
    {L(.rotary = CLMGK_ROTARY_PAIRS, .rotary_base = (double)NAN), .status = VALUE, .field = "rotary_base",
     .value = "nan"},
    {L(.use_positions = 2), .status = VALUE, .field = "use_positions", .value = "2"},
    {L(.use_positions = 1), .status = VALUE, .field = "use_positions", .value = "rotary"},
    {L(.use_positions = 1, .rotary = CLMGK_ROTARY_PAIRS, .cross = 1), .status = VALUE, .field = "use_positions",
     .value = "cross"},
    {L(.norm_epsilon = -1.0), .status = VALUE, .field = "norm_epsilon", .value = "-1"},
    {L(.norm_epsilon = 1e-60), .status = VALUE, .field = "norm_epsilon", .value = "1e-60"},
    {L(.dropout = 1.0), .status = VALUE, .field = "dropout", .value = "1"},
    {L(.dropout = (double)NAN), .status = VALUE, .field = "dropout", .value = "nan"},
    {L(.gradients = 131072), .status = VALUE, .field = "gradients", .value = "131072"},
    {L(.gradients = CLMGK_LAYER_GRADIENT_X3, .cross = 1), .status = VALUE, .field = "gradients", .value = "X3"},
    {L(.gradients = CLMGK_LAYER_GRADIENT_X2), .status = VALUE, .field = "gradients", .value = "X2"},
    {L(.gradients = CLMGK_LAYER_GRADIENT_WEIGHT_QKV), .status = VALUE, .field = "gradients", .value = "WEIGHT_QKV"},
    {L(.gradients = CLMGK_LAYER_GRADIENT_WEIGHT_K, .packed_weights = 1), .status = VALUE, .field = "gradients",
     .value = "WEIGHT_K"},
    {L(.gradients = CLMGK_LAYER_GRADIENT_BIAS_O), .status = VALUE, .field = "gradients", .value = "BIAS_O"},
    {L(.gradients = CLMGK_LAYER_GRADIENT_NORM_GAIN), .status = VALUE, .field = "gradients", .value = "NORM_GAIN"},
    {L(.gradients = 1, .accumulate = 9), .status = VALUE, .field = "accumulate", .value = "9"},

    {A(.head_size = -1), .status = VALUE, .field = "attention.head_size", .value = "-1"},
    {A(.kv_heads = 3), .status = SHAPE, .field = "attention.kv_heads", .value = "3"},
    {A(.length_k = 6), .status = SHAPE, .field = "attention.length_k", .value = "6"},
    {A(.sequences = 2, .use_offsets_k = 1), .status = VALUE, .field = "attention.use_offsets_k", .value = "cross"},
    {A(.q = {.strided = 1}), .status = VALUE, .field = "attention.q.strided", .value = "1"},
    {A(.grad_v = {.strided = 1}), .status = VALUE, .field = "attention.grad_v.strided", .value = "1"},
    {A(.gradients = CLMGK_GRADIENT_K), .status = VALUE, .field = "attention.gradients", .value = "2"},
    {A(.statistics = 1), .status = VALUE, .field = "attention.statistics", .value = "1"},
    {A(.combine = 1), .status = VALUE, .field = "attention.combine", .value = "1"},
    {A(.use_positions = 1), .status = CLMGK_ERROR_UNSUPPORTED, .field = "attention.use_positions", .value = "1"},
    {A(.page_size = 4), .status = CLMGK_ERROR_UNSUPPORTED, .field = "attention.page_size", .value = "4"},
    {A(.sequences = 2, .use_lengths = 1), .status = CLMGK_ERROR_UNSUPPORTED, .field = "attention.sequences",
     .value = "2"},
    {A(.use_mask_blocks = 1), .status = CLMGK_ERROR_UNSUPPORTED, .field = "attention.use_mask_blocks", .value = "1"},
    {A(.append = 3), .status = CLMGK_ERROR_UNSUPPORTED, .field = "attention.append", .value = "3"},
    {A(.batch = 1 << 29, .length = 4), .status = CLMGK_ERROR_OVERFLOW, .field = "attention.batch",
     .value = "536870912"},

    {L(CACHED), A(OF_CACHE, .page_size = 4, .pages = 9, .table_pages = 1), .status = SHAPE,
     .field = "attention.length_k", .value = "8"},
    {L(CACHED),
     A(.alignment = CLMGK_ALIGN_LENGTHS, .page_size = 4, .pages = 9, .table_pages = 9, .use_page_offsets = 1),
     .status = CLMGK_ERROR_UNSUPPORTED, .field = "attention.use_page_offsets", .value = "1"},
    {L(.cache_capacity = -1), A(OF_CACHE), .status = VALUE, .field = "cache_capacity", .value = "-1"},
    {L(.cache_capacity = BIG), A(OF_CACHE), .status = CLMGK_ERROR_OVERFLOW, .field = "", .value = "1099511627776"},
    {L(CACHED), .status = VALUE, .field = "cache_capacity", .value = "use_lengths"},
    {L(CACHED), A(.use_lengths = 1), .status = VALUE, .field = "cache_capacity", .value = "alignment"},
    {L(CACHED, .cross = 1), A(OF_CACHE), .status = VALUE, .field = "cache_capacity", .value = "cross"},
    {L(CACHED, .gradients = 1), A(OF_CACHE), .status = VALUE, .field = "cache_capacity", .value = "gradients"},
    {L(CACHED), A(OF_CACHE, .length_k = 9), .status = SHAPE, .field = "attention.length_k", .value = "9"},
    {L(CACHED), A(OF_CACHE, .length = 9), .status = VALUE, .field = "cache_capacity", .value = "attention.length"},
    {A(.dtype_k = CLMGK_STORAGE_INT8), .status = CLMGK_ERROR_UNSUPPORTED, .field = "attention.dtype_k",
     .value = "one type"},
    {L(CACHED), A(OF_CACHE, .dtype_o = CLMGK_STORAGE_BF16), .status = CLMGK_ERROR_UNSUPPORTED,
     .field = "attention.dtype_k", .value = "except a cache"},
    {L(CACHED), A(OF_CACHE, .dtype_v = CLMGK_STORAGE_Q4_0), .status = SHAPE, .field = "attention.value_size",
     .value = "8"},
    {L(CACHED), A(OF_CACHE, .dtype_k = CLMGK_STORAGE_INT8, .use_scale_k = 1, .scale_k = {.strided = 1}),
     .status = VALUE, .field = "attention.scale_k.strided", .value = "1"},
    {L(CACHED), A(OF_CACHE, .variant = CLMGK_VARIANT_LINEAR), .status = VALUE, .field = "", .value = ""},
};

/* The rest of a descriptor that would be right. */
static void complete(clmgk_layer_desc *layer, clmgk_attention_desc *attention)
{
    layer->struct_size = sizeof(*layer);
    layer->width = layer->width != 0 ? layer->width : 12;
    layer->attention = attention;
    attention->struct_size = sizeof(*attention);
    attention->heads = 2;
    attention->length = attention->length != 0 ? attention->length : 5;
    attention->head_size = attention->head_size != 0 ? attention->head_size : 8;
}

TH_HOST_TEST(descriptors)
{
    for (size_t n = 0; n < TH_COUNT(bad_descs); n++) {
        bad_desc bad = bad_descs[n];
        complete(&bad.layer, &bad.attention);
        clmgk_layer_desc resolved = CLMGK_LAYER_DESC_INIT;
        clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
        th_expect_refusal(clmgk_layer_validate(&bad.layer, &resolved, &attention, &th_error), bad.status, bad.field,
                          bad.value);
        assert_null(resolved.attention);
    }
}

TH_HOST_TEST(pointers_and_sizes)
{
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT, resolved = CLMGK_LAYER_DESC_INIT;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    complete(&desc, &attention);
    th_expect_ok(clmgk_layer_validate(&desc, NULL, NULL, &th_error));
    th_expect_refusal(clmgk_layer_validate(&desc, &resolved, NULL, &th_error), VALUE, "attention", "NULL");
    th_expect_refusal(clmgk_layer_validate(&desc, NULL, &attention, &th_error), VALUE, "resolved", "NULL");
    th_expect_refusal(clmgk_layer_validate(NULL, NULL, NULL, &th_error), VALUE, "desc", "NULL");
    desc.attention = NULL;
    th_expect_refusal(clmgk_layer_validate(&desc, NULL, NULL, &th_error), VALUE, "attention", "NULL");
    desc.attention = &attention;
    desc.struct_size = 8;
    th_expect_refusal(clmgk_layer_validate(&desc, NULL, NULL, &th_error), VALUE, "struct_size", "8");
    desc.struct_size = sizeof(desc);
    desc.width = 0;
    th_expect_refusal(clmgk_layer_validate(&desc, NULL, NULL, &th_error), VALUE, "width", "0");
}

/* A resolved descriptor has its defaults, and resolves to itself. */
TH_HOST_TEST(resolved_descriptors)
{
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT, once = CLMGK_LAYER_DESC_INIT, twice = CLMGK_LAYER_DESC_INIT;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT, first = attention, second = attention;
    complete(&desc, &attention);
    desc.rotary = CLMGK_ROTARY_HALVES;
    desc.gradients = CLMGK_LAYER_GRADIENT_X;
    th_expect_ok(clmgk_layer_validate(&desc, &once, &first, &th_error));
    assert_int_equal(once.width_k, 12);
    assert_int_equal(once.width_v, 12);
    assert_int_equal(once.rotary_size, 8);
    assert_true(once.rotary_base == 10000.0 && once.norm_epsilon == 1e-5);
    assert_ptr_equal(once.attention, &first);
    assert_int_equal(first.length_k, 5);
    assert_int_equal(first.gradients, CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V);
    th_expect_ok(clmgk_layer_validate(&once, &twice, &second, &th_error));
    once.attention = twice.attention = NULL;
    assert_memory_equal(&twice, &once, sizeof(once));
    assert_memory_equal(&second, &first, sizeof(first));
}

/* Shapes by hand: M key projections for each of G key heads; a linear layer's and an admixture's. */
TH_HOST_TEST(shapes)
{
    static const struct {
        clmgk_attention_desc attention;
        int64_t q, k, v, o;
    } cases[] = {
        {{.variant = CLMGK_VARIANT_MGK, .heads = 6, .kv_heads = 2, .components = 3, .value_size = 5}, 48, 48, 10, 30},
        {{.variant = CLMGK_VARIANT_SMGK, .heads = 6, .kv_heads = 2, .components = 3}, 48, 16, 16, 48},
        {{.variant = CLMGK_VARIANT_FISH, .heads = 6, .kv_heads = 3, .components = 2, .value_size = 4}, 16, 16, 12, 24},
        {{.variant = CLMGK_VARIANT_LMISH, .heads = 4, .components = 2}, 16, 16, 32, 32},
    };
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_layer_desc desc = {
            .struct_size = sizeof(desc), .width = 12, .width_k = 9, .width_v = 4, .cross = 1, .cross_v = 1};
        clmgk_attention_desc attention = cases[n].attention, inner = CLMGK_ATTENTION_DESC_INIT;
        attention.struct_size = sizeof(attention);
        attention.batch = 3;
        attention.length = 5;
        attention.length_k = 7;
        attention.head_size = 8;
        desc.attention = &attention;
        th_expect_ok(clmgk_layer_validate(&desc, &desc, &inner, &th_error));
        assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_X), 3 * 5 * 12);
        assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_X2), 3 * 7 * 9);
        assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_X3), 3 * 7 * 4);
        assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_WEIGHT_Q), cases[n].q * 12);
        assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_WEIGHT_K), cases[n].k * 9);
        assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_WEIGHT_V), cases[n].v * 4);
        assert_int_equal(clmgk_layer_array_bytes(&desc, CLMGK_LAYER_ARRAY_WEIGHT_O), cases[n].o * 12 * 4);
        assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_BIAS_Q), 0);
        assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_WEIGHT_QKV), 0);
    }
}

/* A cache of blocks counts them. */
TH_HOST_TEST(sizes_of_caches)
{
    const clmgk_attention_desc given = {.struct_size = sizeof(given),
                                        .batch = 3,
                                        .heads = 2,
                                        .head_size = 64,
                                        .length = 1,
                                        .dtype = CLMGK_DTYPE_F16,
                                        .dtype_k = CLMGK_STORAGE_Q4_0,
                                        .dtype_v = CLMGK_STORAGE_E4M3,
                                        .use_lengths = 1,
                                        .alignment = CLMGK_ALIGN_LENGTHS};
    clmgk_attention_desc inner = CLMGK_ATTENTION_DESC_INIT;
    clmgk_layer_desc desc = {.struct_size = sizeof(desc), .attention = &given, .width = 12, .cache_capacity = 10};
    th_expect_ok(clmgk_layer_validate(&desc, &desc, &inner, &th_error));
    assert_int_equal(clmgk_layer_array_count(&desc, CLMGK_LAYER_ARRAY_CACHE_K), 3 * 2 * 10 * 2);
    assert_int_equal(clmgk_layer_array_bytes(&desc, CLMGK_LAYER_ARRAY_CACHE_K), 3 * 2 * 10 * 2 * 18);
    assert_int_equal(clmgk_layer_array_bytes(&desc, CLMGK_LAYER_ARRAY_CACHE_V), 3 * 2 * 10 * 64);
    assert_int_equal(clmgk_layer_array_bytes(&desc, CLMGK_LAYER_ARRAY_X), 3 * 12 * 2);
}

TH_HOST_TEST(names)
{
    clmgk_norm norm = CLMGK_NORM_NONE;
    clmgk_rotary rotary = CLMGK_ROTARY_NONE;
    clmgk_layer_array array = CLMGK_LAYER_ARRAY_X;
    th_expect_ok(clmgk_norm_from_name("pre", &norm, &th_error));
    th_expect_ok(clmgk_rotary_from_name("pairs", &rotary, &th_error));
    th_expect_ok(clmgk_layer_array_from_name("grad_weight_o", &array, &th_error));
    assert_int_equal(norm, CLMGK_NORM_PRE);
    assert_int_equal(rotary, CLMGK_ROTARY_PAIRS);
    assert_int_equal(array, CLMGK_LAYER_ARRAY_GRAD_WEIGHT_O);
    assert_string_equal(clmgk_norm_name(CLMGK_NORM_POST), "post");
    assert_string_equal(clmgk_rotary_name(CLMGK_ROTARY_HALVES), "halves");
    assert_string_equal(clmgk_layer_array_name(CLMGK_LAYER_ARRAY_WEIGHT_QKV), "weight_qkv");
    assert_null(clmgk_norm_name((clmgk_norm)3));
    assert_null(clmgk_layer_array_name(CLMGK_LAYER_ARRAYS));
    th_expect_error(clmgk_norm_from_name("both", &norm, &th_error), VALUE, "post");
}

/* ---- calls --------------------------------------------------------------------------------------------------------
 */

static tl_problem make(uint32_t accumulate)
{
    clmgk_attention_desc attention = th_small_desc(CLMGK_VARIANT_SOFTMAX, 19, 19);
    clmgk_layer_desc desc = {
        .attention = &attention, .width = 37, .use_bias = 1, .norm = CLMGK_NORM_POST, .residual = 1};
    attention.batch = 2;
    attention.use_lengths = 1;
    desc.gradients = tl_all_gradients(&desc);
    desc.accumulate = accumulate;
    return tl_make(&desc, 1);
}

/* What a call is given wrong. */
typedef enum mistake {
    NO_MEMORY,  /* a required array is missing */
    UNUSED,     /* one is there that the layer does not use */
    TOO_LATE,   /* an offset leaves no room */
    MISALIGNED, /* an offset of bytes that is none */
    ALIASED     /* an output is `other` */
} mistake;

typedef struct bad_call {
    th_pass pass;
    mistake mistake;
    clmgk_layer_array array, other;
} bad_call;

#define OF_LAYER(name) CLMGK_LAYER_ARRAY_##name

static const bad_call bad_calls[] = {
    {TH_FORWARD, NO_MEMORY, OF_LAYER(X), 0},
    {TH_FORWARD, NO_MEMORY, OF_LAYER(WEIGHT_K), 0},
    {TH_FORWARD, NO_MEMORY, OF_LAYER(BIAS_V), 0},
    {TH_FORWARD, NO_MEMORY, OF_LAYER(NORM_GAIN), 0},
    {TH_FORWARD, NO_MEMORY, OF_LAYER(OUT), 0},
    {TH_FORWARD, NO_MEMORY, OF_LAYER(ACTIVATIONS), 0},
    {TH_BACKWARD, NO_MEMORY, OF_LAYER(GRAD_OUT), 0},
    {TH_BACKWARD, NO_MEMORY, OF_LAYER(WEIGHT_O), 0},
    {TH_BACKWARD, NO_MEMORY, OF_LAYER(GRAD_WEIGHT_Q), 0},
    {TH_BACKWARD, NO_MEMORY, OF_LAYER(GRAD_BIAS_K), 0},
    {TH_BACKWARD, NO_MEMORY, OF_LAYER(ACTIVATIONS), 0},
    {TH_BACKWARD, NO_MEMORY, OF_LAYER(WORKSPACE), 0},
    {TH_FORWARD, UNUSED, OF_LAYER(X2), 0},
    {TH_FORWARD, UNUSED, OF_LAYER(X3), 0},
    {TH_FORWARD, UNUSED, OF_LAYER(WEIGHT_QKV), 0},
    {TH_FORWARD, UNUSED, OF_LAYER(CACHE_K), 0},
    {TH_FORWARD, UNUSED, OF_LAYER(BIAS_O), 0},
    {TH_BACKWARD, UNUSED, OF_LAYER(GRAD_GAIN_Q), 0},
    {TH_BACKWARD, UNUSED, OF_LAYER(GRAD_X3), 0},
    {TH_FORWARD, TOO_LATE, OF_LAYER(WEIGHT_V), 0},
    {TH_FORWARD, TOO_LATE, OF_LAYER(OUT), 0},
    {TH_FORWARD, TOO_LATE, OF_LAYER(ACTIVATIONS), 0},
    {TH_BACKWARD, TOO_LATE, OF_LAYER(GRAD_NORM_GAIN), 0},
    {TH_FORWARD, MISALIGNED, OF_LAYER(ACTIVATIONS), 0},
    {TH_BACKWARD, MISALIGNED, OF_LAYER(WORKSPACE), 0},
    {TH_FORWARD, ALIASED, OF_LAYER(OUT), OF_LAYER(X)},
    {TH_BACKWARD, ALIASED, OF_LAYER(GRAD_X), OF_LAYER(X)},
    {TH_BACKWARD, ALIASED, OF_LAYER(GRAD_WEIGHT_Q), OF_LAYER(WEIGHT_Q)},
    {TH_BACKWARD, ALIASED, OF_LAYER(GRAD_WEIGHT_Q), OF_LAYER(GRAD_OUT)},
    {TH_BACKWARD, ALIASED, OF_LAYER(GRAD_BIAS_Q), OF_LAYER(GRAD_BIAS_K)},
};

static void spoil(clmgk_layer_args *args, const bad_call *call)
{
    clmgk_buffer *const buffer = clmgk_layer_array_buffer(args, call->array);
    switch (call->mistake) {
    case NO_MEMORY:
        buffer->memory = NULL;
        break;
    case UNUSED:
        *buffer = args->x;
        break;
    case TOO_LATE:
        buffer->offset = 1 << 20;
        break;
    case MISALIGNED:
        buffer->offset += 4;
        break;
    case ALIASED:
        *buffer = *clmgk_layer_array_buffer(args, call->other);
        break;
    }
}

static clmgk_status enqueue(const th_session *session, clmgk_layer *layer, th_pass pass, const clmgk_layer_args *args)
{
    return (pass == TH_FORWARD ? clmgk_enqueue_layer_forward
                               : clmgk_enqueue_layer_backward)(layer, session->queue, args, 0, NULL, NULL, &th_error);
}

/* A caller that was compiled when the structures ended with `accumulate` and `workspace`: one input of keys and values,
 * whatever lies behind. */
TH_TEST(older_callers)
{
    enum { OLD_DESC = offsetof(clmgk_layer_desc, width_v), OLD_ARGS = offsetof(clmgk_layer_args, x3) };
    TL_PROBLEM problem = make(0);
    clmgk_layer_desc older, resolved;
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    const clmgk_layer_desc desc = tl_desc(&problem);
    memset(&older, 0xff, sizeof(older));
    memset(&resolved, 0xff, sizeof(resolved));
    memcpy(&older, &desc, OLD_DESC);
    older.struct_size = resolved.struct_size = OLD_DESC;
    th_expect_ok(clmgk_layer_validate(&older, &resolved, &attention, &th_error));
    assert_int_equal(resolved.cross_v, -1); /* as it was */
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++)
        assert_int_equal(clmgk_layer_array_count(&resolved, array), clmgk_layer_array_count(&desc, array));

    clmgk_layer *layer = NULL;
    th_expect_ok(clmgk_layer_create(session->context, &resolved, NULL, &layer, &th_error));
    TL_DEVICE device = tl_upload(session, &problem, layer);
    for (th_pass pass = TH_FORWARD; pass <= TH_BACKWARD; pass++) {
        clmgk_layer_args args = tl_args(&device, pass);
        args.struct_size = OLD_ARGS;
        memset((char *)&args + OLD_ARGS, 0xff, sizeof(args) - OLD_ARGS);
        th_expect_ok(enqueue(session, layer, pass, &args));
        args.struct_size = OLD_ARGS - 1; /* there is no older one than the first */
        th_expect_error(enqueue(session, layer, pass, &args), VALUE, "struct_size");
    }
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    clmgk_layer_release(layer);
}

/* Not a byte of any array was written. */
static void expect_untouched(const th_session *session, const tl_device *device)
{
    for (size_t name = 0; name < CLMGK_LAYER_ARRAYS; name++) {
        const th_device_buffer *const buffer = &device->buffer[name];
        th_message message;
        if (buffer->bytes == 0)
            continue;
        unsigned char *const bytes = th_read_back(session, buffer);
        if (!th_has_canaries(buffer, bytes, name, true, &message))
            fail_msg("%s: %s", clmgk_layer_array_name((clmgk_layer_array)name), message.text);
        free(bytes);
    }
}

TH_TEST(buffers)
{
    TL_PROBLEM problem = make(0);
    clmgk_layer *const layer = tl_layer(session, &problem);
    TL_DEVICE device = tl_upload(session, &problem, layer);
    for (size_t n = 0; n < TH_COUNT(bad_calls); n++) {
        const bad_call *const call = &bad_calls[n];
        clmgk_layer_args args = tl_args(&device, call->pass);
        spoil(&args, call);
        th_expect_error(enqueue(session, layer, call->pass, &args), BUFFER, clmgk_layer_array_name(call->array));
    }
    clmgk_layer_args args = tl_args(&device, TH_FORWARD);
    clmgk_attention_args inner = *args.attention;
    args.attention = NULL;
    th_expect_error(enqueue(session, layer, TH_FORWARD, &args), BUFFER, "attention.lengths");
    args.attention = &inner;
    inner.q = args.x;
    th_expect_error(enqueue(session, layer, TH_FORWARD, &args), BUFFER, "attention.q");
    inner.q.memory = NULL;
    inner.struct_size = 4;
    th_expect_error(enqueue(session, layer, TH_FORWARD, &args), VALUE, "struct_size");
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    expect_untouched(session, &device);
}

/* Puts a buffer of the same size and other flags in an array's place, for one call, which is refused. */
static void expect_flags_refused(const th_session *session, clmgk_layer *layer, const tl_device *device,
                                 clmgk_layer_array array, cl_mem_flags flags)
{
    clmgk_layer_args args = tl_args(device, TH_FORWARD);
    clmgk_buffer *const buffer = clmgk_layer_array_buffer(&args, array);
    size_t bytes = 0;
    cl_int code = clGetMemObjectInfo(buffer->memory, CL_MEM_SIZE, sizeof(bytes), &bytes, NULL);
    assert_int_equal(code, CL_SUCCESS);
    buffer->memory = clCreateBuffer(session->cl, flags, bytes, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    th_expect_error(enqueue(session, layer, TH_FORWARD, &args), BUFFER, clmgk_layer_array_name(array));
    clReleaseMemObject(buffer->memory);
}

/* Buffers that a host library, or the kernel of the residual, may not access are refused before anything is enqueued.
 */
TH_TEST(access_flags)
{
    TL_PROBLEM problem = make(0);
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    clmgk_layer *const layer = tl_layer(session, &problem);
    TL_DEVICE device = tl_upload(session, &problem, layer);
    clmgk_layer_desc desc = tl_desc(&problem);
    th_expect_ok(clmgk_layer_get_info(layer, &info, &th_error));
    if (strcmp(info.provider, "onednn") == 0 || strcmp(info.provider, "openblas") == 0) {
        expect_flags_refused(session, layer, &device, OF_LAYER(WEIGHT_O), CL_MEM_HOST_NO_ACCESS);
        expect_flags_refused(session, layer, &device, OF_LAYER(WEIGHT_Q), CL_MEM_HOST_WRITE_ONLY);
        expect_flags_refused(session, layer, &device, OF_LAYER(ACTIVATIONS), CL_MEM_HOST_READ_ONLY);
    }
    expect_untouched(session, &device);

    clmgk_attention_desc attention = problem.attention.desc;
    attention.gradients = 0;
    desc.attention = &attention;
    desc.gradients = 0; /* without them the residual is added in `out` */
    TL_PROBLEM alone = tl_make(&desc, 1);
    clmgk_layer *const plain = tl_layer(session, &alone);
    TL_DEVICE forward = tl_upload(session, &alone, plain);
    expect_flags_refused(session, plain, &forward, OF_LAYER(OUT), CL_MEM_WRITE_ONLY);
    expect_untouched(session, &forward);
}

/* dX may have dout's memory, unless it is added to what is there. */
TH_TEST(added_in_place)
{
    TL_PROBLEM problem = make(CLMGK_LAYER_GRADIENT_X);
    clmgk_layer *const layer = tl_layer(session, &problem);
    TL_DEVICE device = tl_upload(session, &problem, layer);
    clmgk_layer_args args = tl_args(&device, TH_BACKWARD);
    args.grad_x = args.grad_out;
    th_expect_error(enqueue(session, layer, TH_BACKWARD, &args), BUFFER, "grad_x");
}

TH_TEST(objects)
{
    TL_PROBLEM problem = make(0);
    clmgk_layer *const layer = tl_layer(session, &problem), *none = NULL;
    TL_DEVICE device = tl_upload(session, &problem, layer);
    clmgk_layer_args args = tl_args(&device, TH_FORWARD);
    const clmgk_layer_desc desc = tl_desc(&problem);
    clmgk_layer_info info = {.struct_size = 4};
    th_expect_error(enqueue(session, NULL, TH_FORWARD, &args), VALUE, "layer");
    th_expect_error(enqueue(session, layer, TH_FORWARD, NULL), VALUE, "args");
    th_expect_error(clmgk_enqueue_layer_forward(layer, NULL, &args, 0, NULL, NULL, &th_error), VALUE, "queue");
    th_expect_error(clmgk_enqueue_layer_forward(layer, session->queue, &args, 1, NULL, NULL, &th_error), VALUE, "wait");
    args.struct_size = 8;
    th_expect_error(enqueue(session, layer, TH_FORWARD, &args), VALUE, "struct_size");
    th_expect_error(clmgk_layer_create(NULL, &desc, NULL, &none, &th_error), VALUE, "context");
    th_expect_error(clmgk_layer_create(session->context, &desc, NULL, NULL, &th_error), VALUE, "out");
    th_expect_error(clmgk_layer_create(session->context, NULL, NULL, &none, &th_error), VALUE, "desc");
    th_expect_error(clmgk_layer_get_info(NULL, &info, &th_error), VALUE, "layer");
    th_expect_error(clmgk_layer_get_info(layer, NULL, &th_error), VALUE, "info");
    th_expect_error(clmgk_layer_get_info(layer, &info, &th_error), VALUE, "struct_size");
    assert_null(none);
    clmgk_layer_release(NULL);
    expect_untouched(session, &device);
}

/* A layer without gradients has no backward pass, keeps no activations and needs none. */
TH_TEST(forward_alone)
{
    TL_PROBLEM whole = make(0);
    clmgk_layer_desc desc = tl_desc(&whole);
    desc.gradients = 0;
    clmgk_attention_desc attention = whole.attention.desc;
    attention.gradients = 0;
    desc.attention = &attention;
    TL_PROBLEM problem = tl_make(&desc, 1);
    clmgk_layer *const layer = tl_layer(session, &problem);
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    th_expect_ok(clmgk_layer_get_info(layer, &info, &th_error));
    assert_int_equal(info.activation_bytes, 0);
    assert_int_equal(info.backward_workspace_bytes, 0);
    TL_DEVICE device = tl_upload(session, &problem, layer);
    const clmgk_layer_args args = tl_args(&device, TH_BACKWARD);
    th_expect_error(enqueue(session, layer, TH_BACKWARD, &args), VALUE, "gradients");
}

/* A NaN in a weight reaches everything that depends on it, and nothing else. */
TH_TEST(not_a_number)
{
    TL_PROBLEM problem = make(0);
    th_fill(&problem.attention, TH_LENGTHS, 19.0);
    problem.array[OF_LAYER(WEIGHT_O)].values[0] = (double)NAN;
    tl_run(session, &problem);
    const th_array *const out = &problem.array[OF_LAYER(OUT)], *const grad = &problem.array[OF_LAYER(GRAD_WEIGHT_V)];
    for (size_t n = 0; n < out->count; n++) /* by the normalisation in every element */
        assert_true(isnan(out->values[n]));
    for (size_t n = 0; n < grad->count; n++)
        assert_true(isnan(grad->values[n]));
}
