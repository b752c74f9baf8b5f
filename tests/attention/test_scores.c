/* SPDX-License-Identifier: Apache-2.0 */
/* Scores and masks of the caller's own: the descriptor. */
#include "harness/harness.h"

#include <string.h>

static clmgk_attention_desc small_desc(void)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = CLMGK_VARIANT_SOFTMAX;
    desc.heads = 2;
    desc.length = 5;
    desc.head_size = 8;
    desc.score_mod = "c * tanh(s / c) + t[h, clamp(i - j, -2, 2) + 2]";
    desc.mask_mod = "doc[b, i] == doc[b, j]";
    desc.captures[0] = (clmgk_capture){.name = "t", .type = CLMGK_CAPTURE_F16, .axes = 2, .shape = {2, 5}};
    desc.captures[1] = (clmgk_capture){
        .name = "doc", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {1, 5}, .strided = 1, .strides = {0, 2}};
    desc.numbers[0] = "c";
    return desc;
}

TH_HOST_TEST(test_arrays_of_texts)
{
    clmgk_attention_desc desc = small_desc();
    desc.gradients = CLMGK_GRADIENT_CAPTURE_0 | CLMGK_GRADIENT_NUMBERS;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    const clmgk_shape table = clmgk_array_shape(&desc, CLMGK_ARRAY_CAPTURE_0);
    assert_int_equal(table.rank, 2);
    assert_string_equal(table.axes, "yz");
    assert_int_equal(table.size[0], 2);
    assert_int_equal(table.stride[0], 5);
    assert_int_equal(clmgk_array_dtype(&desc, CLMGK_ARRAY_CAPTURE_0), CLMGK_DTYPE_F16);
    assert_int_equal(clmgk_array_bytes(&desc, CLMGK_ARRAY_CAPTURE_0), 20);
    assert_int_equal(clmgk_array_bytes(&desc, CLMGK_ARRAY_GRAD_CAPTURE_0), 40);
    assert_int_equal(clmgk_array_bytes(&desc, CLMGK_ARRAY_CAPTURE_1), 36);
    assert_int_equal(clmgk_array_count(&desc, CLMGK_ARRAY_NUMBERS), 1);
    assert_int_equal(clmgk_array_count(&desc, CLMGK_ARRAY_GRAD_NUMBERS), 1);
    assert_int_equal(clmgk_array_shape(&desc, CLMGK_ARRAY_CAPTURE_2).rank, 0);
    assert_int_equal(clmgk_array_presence(&desc, CLMGK_PASS_FORWARD, CLMGK_ARRAY_CAPTURE_1), CLMGK_REQUIRED);
    assert_int_equal(clmgk_array_presence(&desc, CLMGK_PASS_BACKWARD, CLMGK_ARRAY_GRAD_CAPTURE_1), CLMGK_ABSENT);
    th_expect_ok(clmgk_attention_validate(&desc, NULL, &th_error)); /* once more */
}

/* A change of small_desc(), and its message. */
typedef struct wrong {
    void (*change)(clmgk_attention_desc *desc);
    clmgk_status status;
    const char *message;
} wrong;

#define CHANGE(name, statement)                                                                                        \
    static void name(clmgk_attention_desc *desc)                                                                       \
    {                                                                                                                  \
        statement;                                                                                                     \
    }
CHANGE(misspell, desc->score_mod = "s +\n tt[h, 0]")
CHANGE(mask_by_float, desc->mask_mod = "t[h, 0]")
CHANGE(make_linear, desc->variant = CLMGK_VARIANT_LINEAR)
CHANGE(drop_texts, desc->score_mod = desc->mask_mod = NULL)
CHANGE(drop_arrays, (drop_texts(desc), desc->captures[0].name = NULL))
CHANGE(other_type, desc->captures[1].type = (clmgk_capture_type)4)
CHANGE(no_axes, desc->captures[0].axes = 0)
CHANGE(five_axes, desc->captures[0].axes = 5)
CHANGE(empty_axis, desc->captures[0].shape[1] = 0)
CHANGE(long_axis, desc->captures[0].shape[1] = (INT64_C(1) << 30) + 1)
CHANGE(half_strided, desc->captures[0].strided = 2)
CHANGE(backwards, desc->captures[1].strides[1] = -1)
CHANGE(take_name, desc->captures[0].name = "exp")
CHANGE(same_name, desc->numbers[0] = "t")
CHANGE(ints, desc->gradients = CLMGK_GRADIENT_CAPTURE_1)
CHANGE(absent, desc->gradients = CLMGK_GRADIENT_CAPTURE_0 << 2)
CHANGE(no_numbers, (desc->gradients = CLMGK_GRADIENT_NUMBERS, desc->numbers[0] = NULL))
static void read_anywhere(clmgk_attention_desc *desc)
{
    desc->score_mod = "s + t[i, j]";
    desc->captures[0].shape[0] = 257;
    desc->captures[0].shape[1] = 256;
    desc->gradients = CLMGK_GRADIENT_CAPTURE_0;
}

static void more_than_64_bits(clmgk_attention_desc *desc)
{
    desc->captures[0].axes = 3;
    for (int axis = 0; axis < 3; ++axis)
        desc->captures[0].shape[axis] = INT64_C(1) << 30;
}

static const wrong wrongs[] = {
    {misspell, CLMGK_ERROR_INVALID_VALUE, "score_mod: line 2, column 2: unknown name 'tt'; nearest: 't'"},
    {mask_by_float, CLMGK_ERROR_INVALID_VALUE, "mask_mod: line 1, column 1: the mask is a float"},
    {make_linear, CLMGK_ERROR_INVALID_VALUE, "score_mod: expected NULL with variant linear, which has no scores"},
    {drop_texts, CLMGK_ERROR_INVALID_VALUE, "captures: expected none, or score_mod or mask_mod with them"},
    {drop_arrays, CLMGK_ERROR_INVALID_VALUE, "numbers: expected none, or score_mod or mask_mod with them"},
    {other_type, CLMGK_ERROR_INVALID_VALUE, "captures[1].type: 4: expected 0 to 3"},
    {no_axes, CLMGK_ERROR_INVALID_VALUE, "captures[0].axes: 0: expected 1 to 4"},
    {five_axes, CLMGK_ERROR_INVALID_VALUE, "captures[0].axes: 5: expected 1 to 4"},
    {empty_axis, CLMGK_ERROR_INVALID_SHAPE, "captures[0].shape[1]: 0: expected 1 to 1073741824"},
    {long_axis, CLMGK_ERROR_INVALID_SHAPE, "captures[0].shape[1]: 1073741825: expected 1 to 1073741824"},
    {half_strided, CLMGK_ERROR_INVALID_VALUE, "captures[0].strided: 2: expected 0 or 1"},
    {backwards, CLMGK_ERROR_INVALID_SHAPE, "captures[1].strides[1]: -1: expected 0 or more"},
    {more_than_64_bits, CLMGK_ERROR_OVERFLOW, "captures[0]: its size in elements does not fit in 64 bits"},
    {take_name, CLMGK_ERROR_INVALID_VALUE, "captures: the name 'exp' is built in"},
    {same_name, CLMGK_ERROR_INVALID_VALUE, "numbers: the name 't' is taken twice"},
    {ints, CLMGK_ERROR_INVALID_VALUE, "gradients: CAPTURE_1: expected score_mod, and floats in captures[1]"},
    {absent, CLMGK_ERROR_INVALID_VALUE, "gradients: CAPTURE_2: expected score_mod, and floats in captures[2]"},
    {no_numbers, CLMGK_ERROR_INVALID_VALUE, "gradients: NUMBERS: expected score_mod with numbers"},
    {read_anywhere, CLMGK_ERROR_UNSUPPORTED, "gradients: CAPTURE_0: 't' has 65792 elements, and an index that depends"},
};

TH_HOST_TEST(test_wrong_texts)
{
    for (size_t n = 0; n < TH_COUNT(wrongs); ++n) {
        clmgk_attention_desc desc = small_desc();
        wrongs[n].change(&desc);
        th_expect_error(clmgk_attention_validate(&desc, NULL, &th_error), wrongs[n].status, wrongs[n].message);
    }
}
