/* SPDX-License-Identifier: Apache-2.0 */
/* The list of arrays: their shapes, strides and presence in every pass. */
#include "attention/plan.h"
#include "harness/harness.h"

#include <stdio.h>
#include <string.h>

/* "q BHND 2,2,9,5 180,90,5,1 4 rrr-": axes, sizes, strides, bytes of an element, passes, of which the last is
 * left out where it is absent. Empty: not used. */
static void describe(const clmgk_attention_desc *desc, clmgk_array array, char *text, size_t size)
{
    const clmgk_shape shape = clmgk_array_shape(desc, array);
    char sizes[96] = "", strides[96] = "", passes[CLMGK_PASSES + 1] = "";
    int64_t count = shape.rank > 0;
    text[0] = '\0';
    for (int axis = 0; axis < shape.rank; axis++) {
        const char *const comma = axis > 0 ? "," : "";
        snprintf(sizes + strlen(sizes), sizeof(sizes) - strlen(sizes), "%s%d", comma, (int)shape.size[axis]);
        snprintf(strides + strlen(strides), sizeof(strides) - strlen(strides), "%s%d", comma, (int)shape.stride[axis]);
        count *= shape.size[axis];
    }
    for (int pass = 0; pass < CLMGK_PASSES; pass++)
        passes[pass] = "-or"[clmgk_array_presence(desc, (clmgk_pass)pass, array)];
    if (passes[CLMGK_PASS_MASK] == '-')
        passes[CLMGK_PASS_MASK] = '\0';
    assert_int_equal(clmgk_array_count(desc, array), count);
    if (strcmp(passes, "----") != 0)
        snprintf(text, size, "%s %s %s %s %zu %s", clmgk_array_get_info(array)->name, shape.axes, sizes, strides,
                 clmgk_array_element_size(desc, array), passes);
}

/* The arrays that a descriptor uses, in the order of the list. */
static void expect_arrays(const clmgk_attention_desc *desc, const char *const *expected)
{
    clmgk_attention_desc resolved;
    clmgk_error error = {0};
    if (clmgk_attention_validate(desc, &resolved, &error) != CLMGK_OK)
        fail_msg("%s", error.message);
    for (int array = 0; array < CLMGK_ARRAYS; array++) {
        char text[256];
        describe(&resolved, (clmgk_array)array, text, sizeof(text));
        if (text[0] == '\0')
            continue;
        assert_non_null(*expected);
        assert_string_equal(text, *expected++);
    }
    assert_null(*expected);
}

/* A type for each array; a gradient has its array's. Callers of an older structure have one type for all. */
TH_HOST_TEST(types_of_arrays)
{
    static const struct {
        clmgk_array array;
        clmgk_dtype dtype, older;
    } cases[] = {{CLMGK_ARRAY_Q, CLMGK_DTYPE_BF16, CLMGK_DTYPE_BF16},
                 {CLMGK_ARRAY_K, CLMGK_DTYPE_F32, CLMGK_DTYPE_BF16},
                 {CLMGK_ARRAY_V, CLMGK_DTYPE_F16, CLMGK_DTYPE_BF16},
                 {CLMGK_ARRAY_O, CLMGK_DTYPE_BF16, CLMGK_DTYPE_BF16},
                 {CLMGK_ARRAY_LSE, CLMGK_DTYPE_F32, CLMGK_DTYPE_F32},
                 {CLMGK_ARRAY_GRAD_K, CLMGK_DTYPE_F32, CLMGK_DTYPE_BF16},
                 {CLMGK_ARRAY_GRAD_V, CLMGK_DTYPE_F16, CLMGK_DTYPE_BF16},
                 {CLMGK_ARRAY_GRAD_O, CLMGK_DTYPE_BF16, CLMGK_DTYPE_BF16}};
    clmgk_attention_desc desc = {.struct_size = sizeof(desc),
                                 .dtype = CLMGK_DTYPE_BF16,
                                 .dtype_k = CLMGK_STORAGE_F32,
                                 .dtype_v = CLMGK_STORAGE_F16,
                                 .length = 5,
                                 .head_size = 7};
    clmgk_attention_desc older = desc;
    older.struct_size = offsetof(clmgk_attention_desc, dtype_k);
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    th_expect_ok(clmgk_attention_validate(&older, &older, &th_error));
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        assert_int_equal(clmgk_array_dtype(&desc, cases[n].array), cases[n].dtype);
        assert_int_equal(clmgk_array_dtype(&older, cases[n].array), cases[n].older);
    }
    assert_non_null(strstr(mgk_attention_key(&desc, CLMGK_PASS_FORWARD).exact, "dtype=bf16 "));
    assert_non_null(strstr(mgk_attention_key(&desc, CLMGK_PASS_FORWARD).exact, " k=f32 v=f16"));
    desc.dtype_k = desc.dtype_v = CLMGK_STORAGE_BF16; /* Q's type, named */
    assert_null(strstr(mgk_attention_key(&desc, CLMGK_PASS_FORWARD).exact, " k="));
    desc.dtype_grad_q = CLMGK_STORAGE_F32;
    desc.dtype_grad_v = CLMGK_STORAGE_F16;
    assert_int_equal(clmgk_array_dtype(&desc, CLMGK_ARRAY_GRAD_Q), CLMGK_DTYPE_F32);
    assert_int_equal(clmgk_array_dtype(&desc, CLMGK_ARRAY_GRAD_K), CLMGK_DTYPE_BF16);
    assert_int_equal(clmgk_array_dtype(&desc, CLMGK_ARRAY_GRAD_V), CLMGK_DTYPE_F16);
    assert_int_equal(clmgk_array_dtype(&desc, CLMGK_ARRAY_Q), CLMGK_DTYPE_BF16);
    desc.dtype_o = (clmgk_storage)(1 + CLMGK_DTYPES);
    th_expect_refusal(clmgk_attention_validate(&desc, NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "dtype_o", "4");
}

TH_HOST_TEST(arrays_of_a_mixture)
{
    clmgk_attention_desc desc = th_sized_desc(CLMGK_VARIANT_MGK, (th_sizes){2, 4, 2, 3, 5, 6, 7, 8});
    desc.dtype = CLMGK_DTYPE_F16;
    desc.prior_shape = CLMGK_PRIOR_HMS;
    desc.use_lengths = desc.use_bias = desc.combine = 1;
    desc.bias_heads = 1;
    desc.bias_batch = 2;
    desc.gradients = CLMGK_GRADIENT_K | CLMGK_GRADIENT_VARIANCE | CLMGK_GRADIENT_BIAS;
    desc.statistics = CLMGK_STATISTIC_RESPONSIBILITIES;
    desc.q = (clmgk_layout){.strided = 1, .batch = 140, .head = 7, .token = 28};
    static const char *const expected[] = {"q BHND 2,4,5,7 140,7,28,1 2 rrr-",
                                           "k BGMSD 2,2,3,6,7 252,126,42,7,1 2 rrr-",
                                           "v BGSE 2,2,6,8 96,48,8,1 2 rr--",
                                           "o BHNE 2,4,5,8 160,40,8,1 2 rr-r",
                                           "lse BHN 2,4,5 20,5,1 4 or-o",
                                           "prior HMS 4,3,6 18,6,1 4 rrr-",
                                           "lengths B 2 1 4 rrr-",
                                           "bias bhns 2,1,5,6 30,30,6,1 4 rrr-",
                                           "grad_o BHNE 2,4,5,8 160,40,8,1 2 -r--",
                                           "grad_lse BHN 2,4,5 20,5,1 4 -o--",
                                           "grad_k BGMSD 2,2,3,6,7 252,126,42,7,1 2 -r--",
                                           "grad_variance 1 1 1 4 -r--",
                                           "grad_bias bhns 2,1,5,6 30,30,6,1 4 -r--",
                                           "responsibilities BHMNS 2,4,3,5,6 360,90,30,6,1 4 --r-",
                                           "parts_o BHNE 2,4,5,8 160,40,8,1 2 ---r",
                                           "parts_lse BHN 2,4,5 20,5,1 4 ---r",
                                           "workspace    1 oooo",
                                           NULL};
    expect_arrays(&desc, expected);
}

TH_HOST_TEST(arrays_of_packed_sequences)
{
    clmgk_attention_desc desc =
        th_sized_desc(CLMGK_VARIANT_SMGK, (th_sizes){.heads = 2, .length = 5, .length_k = 6, .head_size = 3});
    desc.prior_shape = CLMGK_PRIOR_HM;
    desc.variance_shape = CLMGK_VARIANCE_M;
    desc.sequences = 4;
    desc.use_offsets_k = 1;
    desc.statistics = CLMGK_STATISTIC_NLL | CLMGK_STATISTIC_COUNTS;
    static const char *const expected[] = {"q BHND 1,2,5,3 30,15,3,1 4 r-r-",
                                           "k BGSD 1,2,6,3 36,18,3,1 4 r-r-",
                                           "v BGSE 1,2,6,3 36,18,3,1 4 r---",
                                           "o BHNE 1,2,5,3 30,15,3,1 4 r---",
                                           "lse BHN 1,2,5 10,5,1 4 o---",
                                           "prior HM 2,2 2,1 4 r-r-",
                                           "variance M 2 1 4 r-r-",
                                           "shift HMD 2,2,3 6,3,1 4 r-r-",
                                           "offsets t 5 1 4 r-r-",
                                           "offsets_k t 5 1 4 r-r-",
                                           "counts HM 2,2 2,1 4 --r-",
                                           "nll TH 4,2 2,1 4 --r-",
                                           "workspace    1 o-o-",
                                           NULL};
    expect_arrays(&desc, expected);
}

TH_HOST_TEST(arrays_of_mixed_heads)
{
    clmgk_attention_desc desc = th_sized_desc(CLMGK_VARIANT_MISH, (th_sizes){0, 4, 0, 3, 5, CLMGK_NO_KEYS, 2, 1});
    desc.use_sinks = desc.use_alibi = 1;
    desc.gradients = CLMGK_GRADIENT_MIX;
    static const char *const expected[] = {"q BMND 1,3,5,2 30,10,2,1 4 rr--",
                                           "k BMSD 1,3,0,2 6,2,2,1 4 rr--",
                                           "v BGSE 1,4,0,1 4,1,1,1 4 rr--",
                                           "o BHNE 1,4,5,1 20,5,1,1 4 rr--",
                                           "lse BHN 1,4,5 20,5,1 4 or--",
                                           "slopes H 4 1 4 rr--",
                                           "sinks H 4 1 4 rr--",
                                           "mix M 3 1 4 rr--",
                                           "noise M 3 1 4 rr--",
                                           "grad_o BHNE 1,4,5,1 20,5,1,1 4 -r--",
                                           "grad_lse BHN 1,4,5 20,5,1 4 -o--",
                                           "grad_mix M 3 1 4 -r--",
                                           "workspace    1 oo--",
                                           NULL};
    expect_arrays(&desc, expected);
}

TH_HOST_TEST(arrays_of_a_hidden_layer)
{
    clmgk_attention_desc desc = th_sized_desc(CLMGK_VARIANT_HARD_GFISH, (th_sizes){1, 4, 4, 3, 5, 6, 2, 1});
    desc.mix_hidden = 7;
    desc.use_mix_hidden_offset = 1;
    desc.gradients = CLMGK_GRADIENT_MIX | CLMGK_GRADIENT_MIX_WEIGHT | CLMGK_GRADIENT_MIX_HIDDEN_OFFSET;
    static const char *const expected[] = {"q BMND 1,3,5,2 30,10,2,1 4 rr--",
                                           "k BMSD 1,3,6,2 36,12,2,1 4 rr--",
                                           "v BGSE 1,4,6,1 24,6,1,1 4 rr--",
                                           "o BHNE 1,4,5,1 20,5,1,1 4 rr--",
                                           "lse BHN 1,4,5 20,5,1 4 or--",
                                           "mix UM 7,3 3,1 4 rr--",
                                           "mix_hidden_offset U 7 1 4 rr--",
                                           "grad_o BHNE 1,4,5,1 20,5,1,1 4 -r--",
                                           "grad_lse BHN 1,4,5 20,5,1 4 -o--",
                                           "grad_mix UM 7,3 3,1 4 -r--",
                                           "grad_mix_weight HU 4,7 7,1 4 -r--",
                                           "grad_mix_hidden_offset U 7 1 4 -r--",
                                           "workspace    1 oo--",
                                           NULL};
    expect_arrays(&desc, expected);
}

/* All arrays of heads with a softmax have A of them. */
TH_HOST_TEST(arrays_of_heads_mixed_after_the_softmax)
{
    clmgk_attention_desc desc = th_sized_desc(CLMGK_VARIANT_GFISH, (th_sizes){1, 4, 2, 3, 5, 6, 2, 1});
    desc.mix_after_heads = 7;
    desc.use_mix_weight = desc.use_mix_offset = desc.use_alibi = desc.use_sinks = desc.use_lse_low = desc.use_bias = 1;
    desc.gradients = CLMGK_GRADIENT_MIX | CLMGK_GRADIENT_MIX_AFTER | CLMGK_GRADIENT_SINKS;
    static const char *const expected[] = {"q BMND 1,3,5,2 30,10,2,1 4 rr--",
                                           "k BMSD 1,3,6,2 36,12,2,1 4 rr--",
                                           "v BGSE 1,2,6,1 12,6,1,1 4 rr--",
                                           "o BHNE 1,4,5,1 20,5,1,1 4 rr--",
                                           "lse BAN 1,7,5 35,5,1 4 or--",
                                           "bias bhns 1,7,5,6 210,30,6,1 4 rr--",
                                           "slopes A 7 1 4 rr--",
                                           "sinks A 7 1 4 rr--",
                                           "mix AM 7,3 3,1 4 rr--",
                                           "mix_weight AM 7,3 3,1 4 rr--",
                                           "mix_offset A 7 1 4 rr--",
                                           "mix_after HA 4,7 7,1 4 rr--",
                                           "noise M 3 1 4 rr--",
                                           "grad_o BHNE 1,4,5,1 20,5,1,1 4 -r--",
                                           "grad_lse BAN 1,7,5 35,5,1 4 -o--",
                                           "grad_sinks A 7 1 4 -r--",
                                           "grad_mix AM 7,3 3,1 4 -r--",
                                           "grad_mix_after HA 4,7 7,1 4 -r--",
                                           "lse_low BAN 1,7,5 35,5,1 4 or--",
                                           "workspace    1 oo--",
                                           NULL};
    expect_arrays(&desc, expected);
}

TH_HOST_TEST(arrays_of_a_linear_state)
{
    clmgk_attention_desc desc = th_sized_desc(CLMGK_VARIANT_SMLK, (th_sizes){2, 4, 2, 3, 5, 6, 7, 8});
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.feature = CLMGK_FEATURE_FAVOR;
    desc.features = 9;
    desc.use_state = desc.use_new_state = 1;
    desc.gradients = CLMGK_GRADIENT_SHIFT | CLMGK_GRADIENT_STATE_C | CLMGK_GRADIENT_STATE_Z;
    static const char *const expected[] = {"q BHND 2,4,5,7 140,35,7,1 2 rr--",
                                           "k BGSD 2,2,6,7 84,42,7,1 2 rr--",
                                           "v BGSE 2,2,6,8 96,48,8,1 2 rr--",
                                           "o BHNE 2,4,5,8 160,40,8,1 2 rr--",
                                           "shift HMD 4,3,7 21,7,1 4 rr--",
                                           "projection FD 9,7 7,1 4 rr--",
                                           "state_c BHFE 2,4,9,8 288,72,8,1 4 rr--",
                                           "state_z BHF 2,4,9 36,9,1 4 rr--",
                                           "state_m BH 2,4 4,1 4 rr--",
                                           "new_state_c BHFE 2,4,9,8 288,72,8,1 4 r---",
                                           "new_state_z BHF 2,4,9 36,9,1 4 r---",
                                           "new_state_m BH 2,4 4,1 4 r---",
                                           "denominator BHN2 2,4,5,2 40,10,2,1 4 or--",
                                           "grad_o BHNE 2,4,5,8 160,40,8,1 2 -r--",
                                           "grad_new_state_c BHFE 2,4,9,8 288,72,8,1 4 -o--",
                                           "grad_new_state_z BHF 2,4,9 36,9,1 4 -o--",
                                           "grad_shift HMD 4,3,7 21,7,1 4 -r--",
                                           "grad_state_c BHFE 2,4,9,8 288,72,8,1 4 -r--",
                                           "grad_state_z BHF 2,4,9 36,9,1 4 -r--",
                                           "workspace    1 oo--",
                                           NULL};
    expect_arrays(&desc, expected);
}

/* A state of mixed heads has one z for all; maps whose features cannot overflow have no m. */
TH_HOST_TEST(arrays_of_a_linear_state_of_mixed_heads)
{
    clmgk_attention_desc desc = th_sized_desc(
        CLMGK_VARIANT_LGFISH, (th_sizes){.batch = 2, .heads = 4, .components = 3, .length = 5, .head_size = 2});
    desc.feature = CLMGK_FEATURE_DPFP;
    desc.feature_order = 2;
    desc.use_new_state = desc.use_mix_weight = 1;
    static const char *const expected[] = {"q BMND 2,3,5,2 30,10,2,1 4 r---",
                                           "k BMSD 2,3,5,2 30,10,2,1 4 r---",
                                           "v BGSE 2,4,5,2 40,10,2,1 4 r---",
                                           "o BHNE 2,4,5,2 40,10,2,1 4 r---",
                                           "mix HM 4,3 3,1 4 r---",
                                           "mix_weight HM 4,3 3,1 4 r---",
                                           "noise M 3 1 4 r---",
                                           "new_state_c BHMFE 2,4,3,8,2 192,48,16,2,1 4 r---",
                                           "new_state_z BMF 2,3,8 24,8,1 4 r---",
                                           "denominator BHN2 2,4,5,2 40,10,2,1 4 o---",
                                           "workspace    1 o---",
                                           NULL};
    expect_arrays(&desc, expected);
    desc.feature = CLMGK_FEATURE_EXP;
    desc.feature_order = 0;
    assert_int_equal(clmgk_attention_validate(&desc, &desc, NULL), CLMGK_OK);
    assert_int_equal(clmgk_array_count(&desc, CLMGK_ARRAY_NEW_STATE_M), 2);
}

/* Every field of a call is found by its array's number. Invalid numbers of arrays and passes are refused. */
TH_HOST_TEST(fields_and_numbers)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    clmgk_attention_desc desc = {.struct_size = sizeof(desc), .length = 5, .length_k = 6, .head_size = 7};
    const clmgk_array none[] = {CLMGK_ARRAYS, (clmgk_array)-1};
    assert_int_equal(clmgk_attention_validate(&desc, &desc, NULL), CLMGK_OK);
    assert_ptr_equal(clmgk_array_buffer(&args, CLMGK_ARRAY_Q), &args.q);
    assert_ptr_equal(clmgk_array_buffer(&args, CLMGK_ARRAY_GRAD_MIX_OFFSET), &args.grad_mix_offset);
    assert_ptr_equal(clmgk_array_buffer(&args, CLMGK_ARRAY_NLL), &args.nll);
    assert_ptr_equal(clmgk_array_buffer(&args, CLMGK_ARRAY_WORKSPACE), &args.workspace);
    assert_null(clmgk_array_buffer(NULL, CLMGK_ARRAY_Q));
    for (size_t n = 0; n < TH_COUNT(none); n++) {
        assert_null(clmgk_array_buffer(&args, none[n]));
        assert_null(clmgk_array_get_info(none[n]));
        assert_int_equal(clmgk_array_shape(&desc, none[n]).rank, 0);
        assert_int_equal(clmgk_array_count(&desc, none[n]), 0);
        assert_int_equal(clmgk_array_bytes(&desc, none[n]), 0);
        assert_int_equal(clmgk_array_element_size(&desc, none[n]), 0);
        assert_int_equal(clmgk_array_presence(&desc, CLMGK_PASS_FORWARD, none[n]), CLMGK_ABSENT);
    }
    assert_int_equal(clmgk_array_presence(&desc, CLMGK_PASSES, CLMGK_ARRAY_Q), CLMGK_ABSENT);
    assert_int_equal(clmgk_array_get_info(CLMGK_ARRAY_GRAD_SINKS)->gradient, CLMGK_GRADIENT_SINKS);
    assert_int_equal(clmgk_array_get_info(CLMGK_ARRAY_NEW_PRIOR)->statistic, CLMGK_STATISTIC_NEW_PRIOR);
}

/* Room for strided arrays and for empty ones. */
TH_HOST_TEST(bytes_of_arrays)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.dtype = CLMGK_DTYPE_F16;
    desc.heads = 2;
    desc.length = 3;
    desc.length_k = CLMGK_NO_KEYS;
    desc.head_size = 4;
    desc.o = (clmgk_layout){.strided = 1, .batch = 1000, .head = 5, .token = 10};
    assert_int_equal(clmgk_attention_validate(&desc, &desc, NULL), CLMGK_OK);
    assert_int_equal(clmgk_array_bytes(&desc, CLMGK_ARRAY_Q), 2 * 3 * 4 * 2);
    assert_int_equal(clmgk_array_bytes(&desc, CLMGK_ARRAY_K), 0);
    assert_int_equal(clmgk_array_bytes(&desc, CLMGK_ARRAY_O), (5 + 2 * 10 + 4) * 2);
    assert_int_equal(clmgk_array_bytes(&desc, CLMGK_ARRAY_LSE), 2 * 3 * 4);
    assert_int_equal(clmgk_array_bytes(&desc, CLMGK_ARRAY_BIAS), 0);
}
