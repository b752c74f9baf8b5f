/* SPDX-License-Identifier: Apache-2.0 */
/* Every misuse of descriptors and plans: the status, and a message that names what is wrong and its value. The calls
 * that enqueue: test_enqueue.c. */
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields of a structure, changed by data ---------------------------------------------------------------------- */

typedef struct change {
    size_t offset;
    size_t size; /* 0: no change; a double where `real` is not 0 */
    int64_t value;
    double real;
} change;

#define DESC(field, number)                                                                                            \
    {                                                                                                                  \
        offsetof(clmgk_attention_desc, field), sizeof(((clmgk_attention_desc *)0)->field), (number), 0.0               \
    }
#define DESC_REAL(field, number)                                                                                       \
    {                                                                                                                  \
        offsetof(clmgk_attention_desc, field), sizeof(double), 0, (number)                                             \
    }

static void apply(void *structure, const change *changes, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        unsigned char *const field = (unsigned char *)structure + changes[n].offset;
        const int32_t narrow = (int32_t)changes[n].value;
        if (changes[n].real != 0.0)
            memcpy(field, &changes[n].real, sizeof(double));
        else if (changes[n].size == sizeof(int64_t))
            memcpy(field, &changes[n].value, sizeof(int64_t));
        else if (changes[n].size == sizeof(int32_t))
            memcpy(field, &narrow, sizeof(int32_t));
    }
}

static clmgk_attention_desc good_desc(void)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.heads = 4;
    desc.length = 5;
    desc.length_k = 6;
    desc.head_size = 8;
    return desc;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

typedef struct bad_desc {
    change changes[5];
    clmgk_status status;
    const char *field; /* in the message */
    const char *value;
} bad_desc;

#define VALUE    CLMGK_ERROR_INVALID_VALUE
#define SHAPE    CLMGK_ERROR_INVALID_SHAPE
#define BIG      ((int64_t)1 << 40)
#define OF(name) DESC(variant, CLMGK_VARIANT_##name)
#define DPFP     DESC(feature, CLMGK_FEATURE_DPFP)
#define FAVOR    DESC(feature, CLMGK_FEATURE_FAVOR)

static const bad_desc bad_descs[] = {
    {{DESC(struct_size, 0)}, VALUE, "struct_size", "0"},
    {{DESC(variant, 1000)}, VALUE, "variant", "1000"},
    {{DESC(variant, -1)}, VALUE, "variant", "-1"},
    {{DESC(dtype, 3)}, VALUE, "dtype", "3"},
    {{DESC(precision, 3)}, VALUE, "precision", "3"},
    {{DESC(precision, -1)}, VALUE, "precision", "-1"},
    {{DESC(score, 3)}, VALUE, "score", "3"},
    {{DESC(score, CLMGK_SCORE_GAUSSIAN)}, VALUE, "score", "2"},
    {{DESC(variant, CLMGK_VARIANT_GAUSSIAN), DESC(score, CLMGK_SCORE_DOT)}, VALUE, "score", "1"},
    {{DESC(estep, 2)}, VALUE, "estep", "2"},
    {{DESC(batch, -1)}, VALUE, "batch", "-1"},
    {{DESC(heads, -2)}, VALUE, "heads", "-2"},
    {{DESC(kv_heads, -1)}, VALUE, "kv_heads", "-1"},
    {{DESC(kv_heads, 3)}, SHAPE, "kv_heads", "3"},
    {{DESC(kv_heads, 8)}, SHAPE, "kv_heads", "8"},
    {{DESC(components, -1)}, VALUE, "components", "-1"},
    {{DESC(components, 2)}, VALUE, "components", "2"},
    {{DESC(variant, CLMGK_VARIANT_MGK), DESC(components, 1025)}, VALUE, "components", "1025"},
    {{DESC(length, -1)}, VALUE, "length", "-1"},
    {{DESC(length_k, -7)}, VALUE, "length_k", "-7"},
    {{DESC(length_k, -2)}, VALUE, "length_k", "CLMGK_NO_KEYS"},
    {{DESC(length_k, CLMGK_NO_KEYS), DESC(resolved, 1)}, VALUE, "length_k", "-1"},
    {{DESC(resolved, 2)}, VALUE, "resolved", "2"},
    {{DESC(head_size, 0)}, VALUE, "head_size", "0"},
    {{DESC(head_size, -1)}, VALUE, "head_size", "-1"},
    {{DESC(head_size, 577)}, VALUE, "head_size", "577"},
    {{DESC(value_size, -1)}, VALUE, "value_size", "-1"},
    {{DESC(value_size, 577)}, VALUE, "value_size", "577"},
    {{DESC(prior_shape, 4)}, VALUE, "prior_shape", "4"},
    {{DESC(prior_shape, CLMGK_PRIOR_M)}, VALUE, "prior_shape", "softmax"},
    {{DESC(variance_shape, 3)}, VALUE, "variance_shape", "3"},
    {{DESC_REAL(variance, -1.5)}, VALUE, "variance", "-1.5"},
    {{DESC_REAL(variance, (double)NAN)}, VALUE, "variance", "nan"},
    {{DESC_REAL(variance, (double)INFINITY)}, VALUE, "variance", "inf"},
    {{DESC_REAL(variance, 1e-50)}, VALUE, "1e-50", "4.24e-39 to 3.4e+38"},
    {{DESC(variance_shape, CLMGK_VARIANCE_M), DESC_REAL(variance, 2.0)}, VALUE, "variance", "2"},
    {{DESC(causal, 2)}, VALUE, "causal", "2"},
    {{DESC(causal, -1)}, VALUE, "causal", "-1"},
    {{DESC(alignment, 3)}, VALUE, "alignment", "3"},
    {{DESC(alignment, CLMGK_ALIGN_LENGTHS)}, VALUE, "alignment", "use_lengths"},
    {{DESC(use_lengths, 2)}, VALUE, "use_lengths", "2"},
    {{DESC(use_lengths_q, -1)}, VALUE, "use_lengths_q", "-1"},
    {{DESC(q.strided, 2)}, VALUE, "q.strided", "2"},
    {{DESC(q.strided, 1), DESC(q.token, -8)}, SHAPE, "q.token", "-8"},
    {{DESC(k.strided, 1), DESC(k.head, -1)}, SHAPE, "k.head", "-1"},
    {{DESC(v.strided, 1), DESC(v.batch, -1)}, SHAPE, "v.batch", "-1"},
    {{DESC(o.strided, 1), DESC(o.token, 8), DESC(o.head, 0)}, SHAPE, "o", "0"},
    {{DESC(o.strided, 1), DESC(o.token, 7), DESC(o.head, 64)}, SHAPE, "o", "7"},
    {{DESC(lse.strided, 1), DESC(lse.token, 1), DESC(lse.head, 4)}, SHAPE, "lse", "4"},
    {{DESC(batch, BIG), DESC(heads, BIG)}, CLMGK_ERROR_OVERFLOW, "", ""},
    {{DESC(length, BIG), DESC(batch, BIG)}, CLMGK_ERROR_OVERFLOW, "", ""},
    {{DESC(length, BIG)}, CLMGK_ERROR_OVERFLOW, "length", "1099511627776"},
    {{DESC(length_k, INT64_MAX)}, CLMGK_ERROR_OVERFLOW, "length_k", "9223372036854775807"},
    {{DESC(k.strided, 1), DESC(k.token, INT64_MAX / 2), DESC(length_k, 9)}, CLMGK_ERROR_OVERFLOW, "k", ""},

    {{DESC(use_window, 2)}, VALUE, "use_window", "2"},
    {{DESC(use_window, 1), DESC(window_left, -2)}, VALUE, "window_left", "-2"},
    {{DESC(window_left, 64)}, VALUE, "window_left", "use_window = 1"},
    {{DESC(window_right, -5)}, VALUE, "window_right", "use_window = 1"},
    {{DESC(bias_batch, 1)}, VALUE, "bias_batch", "use_bias = 1"},
    {{DESC(bias_heads, 4)}, VALUE, "bias_heads", "use_bias = 1"},
    {{DESC(bias_length, 1)}, VALUE, "bias_length", "use_bias = 1"},
    {{DESC(bias_length_k, 1)}, VALUE, "bias_length_k", "use_bias = 1"},
    {{DESC(use_window, 1), DESC(window_left, -1), DESC(window_right, INT64_MIN)},
     VALUE,
     "window_right",
     "-9223372036854775808"},
    {{DESC(sequences, -1)}, VALUE, "sequences", "-1"},
    {{DESC(sequences, BIG)}, CLMGK_ERROR_OVERFLOW, "sequences", "1099511627776"},
    {{DESC(sequences, 2)}, SHAPE, "length_k", "6"}, /* N = 5 */
    {{DESC(sequences, 2), DESC(length_k, 5), DESC(batch, 2)}, SHAPE, "batch", "2"},
    {{DESC(sequences, 2), DESC(use_offsets_k, 1), DESC(use_lengths, 1)}, VALUE, "use_offsets_k", "sequences"},
    {{DESC(sequences, 2), DESC(length_k, 5), DESC(use_lengths_q, 1)}, VALUE, "use_lengths_q", "sequences"},
    {{DESC(sequences, 2), DESC(use_offsets_k, 1), DESC(alignment, CLMGK_ALIGN_LENGTHS)},
     VALUE,
     "alignment",
     "use_lengths"},
    {{DESC(use_offsets_k, 1)}, VALUE, "use_offsets_k", "sequences"},
    {{DESC(use_offsets_k, 2)}, VALUE, "use_offsets_k", "2"},
    {{DESC(use_bias, -1)}, VALUE, "use_bias", "-1"},
    {{DESC(use_bias, 1), DESC(bias_batch, -1)}, VALUE, "bias_batch", "-1"},
    {{DESC(use_bias, 1), DESC(bias_batch, 2)}, SHAPE, "bias_batch", "2"},
    {{DESC(use_bias, 1), DESC(batch, 6), DESC(bias_batch, 4)}, SHAPE, "bias_batch", "4"},
    {{DESC(use_bias, 1), DESC(bias_heads, 2)}, SHAPE, "bias_heads", "2"}, /* H = 4 */
    {{DESC(use_bias, 1), DESC(bias_length, 6)}, SHAPE, "bias_length", "6"},
    {{DESC(use_bias, 1), DESC(bias_length_k, 5)}, SHAPE, "bias_length_k", "5"},
    {{DESC(use_bias, 1), DESC(bias_length_k, -6)}, VALUE, "bias_length_k", "-6"},
    {{DESC(use_bias, 1), DESC(bias_heads, BIG)}, CLMGK_ERROR_OVERFLOW, "bias_heads", "1099511627776"},
    {{DESC(use_alibi, 2)}, VALUE, "use_alibi", "2"},
    {{DESC(use_sinks, 3)}, VALUE, "use_sinks", "3"},
    {{DESC_REAL(softcap, -1.0)}, VALUE, "softcap", "-1"},
    {{DESC_REAL(softcap, (double)NAN)}, VALUE, "softcap", "nan"},
    {{DESC_REAL(softcap, (double)INFINITY)}, VALUE, "softcap", "inf"},
    {{DESC_REAL(softcap, 3.5e38)}, VALUE, "softcap: 3.5e+38", "2.94e-39 to 3.4e+38"},
    {{DESC_REAL(softcap, 2.5e-39), DESC(use_bias, 1)}, VALUE, "softcap", "2.5e-39"},
    {{DESC_REAL(softcap, 30.0), DESC(variant, CLMGK_VARIANT_GAUSSIAN)},
     VALUE,
     "softcap",
     "dot scores of one component"},
    {{DESC_REAL(softcap, 30.0), DESC(variant, CLMGK_VARIANT_MGK), DESC(score, CLMGK_SCORE_DOT)},
     VALUE,
     "softcap",
     "dot scores of one component"},
    {{DESC_REAL(dropout, -0.25)}, VALUE, "dropout", "-0.25"},
    {{DESC_REAL(dropout, 1.0)}, VALUE, "dropout", "1"},
    {{DESC_REAL(dropout, (double)NAN)}, VALUE, "dropout", "nan"},
    {{DESC_REAL(dropout, (double)INFINITY)}, VALUE, "dropout", "inf"},
    {{DESC(gradients, 33554432)}, VALUE, "gradients", "33554432"},
    {{DESC(gradients, -1)}, VALUE, "gradients", "4294967295"},
    {{DESC(gradients, CLMGK_GRADIENT_PRIOR)}, VALUE, "gradients", "PRIOR"},
    {{DESC(gradients, CLMGK_GRADIENT_SHIFT)}, VALUE, "gradients", "SHIFT"},
    {{DESC(gradients, CLMGK_GRADIENT_SHIFT), DESC(variant, CLMGK_VARIANT_MGK)}, VALUE, "gradients", "SHIFT"},
    {{DESC(gradients, CLMGK_GRADIENT_BIAS)}, VALUE, "gradients", "use_bias"},
    {{DESC(gradients, CLMGK_GRADIENT_SINKS | CLMGK_GRADIENT_Q)}, VALUE, "gradients", "use_sinks"},
    {{DESC(statistics, 16)}, VALUE, "statistics", "16"},
    {{DESC(statistics, CLMGK_STATISTIC_NLL)}, VALUE, "statistics", "gaussian"},
    {{DESC(combine, 2)}, VALUE, "combine", "2"},
    {{DESC(grad_o.strided, 2)}, VALUE, "grad_o.strided", "2"},
    {{DESC(grad_o.strided, 1), DESC(grad_o.token, -1)}, SHAPE, "grad_o.token", "-1"},
    {{DESC(grad_q.strided, 1), DESC(grad_q.head, -3)}, SHAPE, "grad_q.head", "-3"},
    {{DESC(gradients, CLMGK_GRADIENT_Q), DESC(grad_q.strided, 1), DESC(grad_q.token, 8)}, SHAPE, "grad_q", "0"},
    {{DESC(gradients, CLMGK_GRADIENT_K), DESC(grad_k.strided, 1), DESC(grad_k.token, 7), DESC(grad_k.head, 64)},
     SHAPE,
     "grad_k",
     "7"},
    {{DESC(gradients, CLMGK_GRADIENT_V), DESC(grad_v.strided, 1), DESC(grad_v.token, 8), DESC(grad_v.head, 47)},
     SHAPE,
     "grad_v",
     "47"},
    {{DESC(gradients, CLMGK_GRADIENT_Q), DESC(grad_o.strided, 1), DESC(grad_o.token, INT64_MAX / 2)},
     CLMGK_ERROR_OVERFLOW,
     "grad_o",
     ""},
    {{DESC(statistics, CLMGK_STATISTIC_RESPONSIBILITIES), DESC(length, 1 << 30), DESC(length_k, 1 << 30)},
     CLMGK_ERROR_OVERFLOW,
     "responsibilities",
     ""},
    {{DESC(use_bias, 1), DESC(length, 1 << 30), DESC(length_k, 1 << 30)}, CLMGK_ERROR_OVERFLOW, "bias", ""},

    /* admixture family: what it has not, and what the others have not; H = 4 */
    {{OF(HARD_FISH), DESC(score, CLMGK_SCORE_GAUSSIAN)}, VALUE, "score", "hard-fish"},
    {{OF(MISH), DESC(estep, CLMGK_ESTEP_HARD)}, VALUE, "estep", "mish"},
    {{OF(GFISH), DESC(prior_shape, CLMGK_PRIOR_HM)}, VALUE, "prior_shape", "gfish"},
    {{OF(FISH), DESC(variance_shape, CLMGK_VARIANCE_M)}, VALUE, "variance_shape", "fish"},
    {{OF(FISH), DESC_REAL(variance, 2.5)}, VALUE, "variance", "2.5"},
    {{OF(TALKING_HEADS), DESC(statistics, CLMGK_STATISTIC_COUNTS)}, VALUE, "statistics", "talking-heads"},
    {{OF(HARD_FISH), DESC(statistics, CLMGK_STATISTIC_NLL)}, VALUE, "statistics", "hard-fish"},
    {{OF(GFISH), DESC(use_mix_weight, 2)}, VALUE, "use_mix_weight", "2"},
    {{OF(GFISH), DESC(use_mix_offset, -1)}, VALUE, "use_mix_offset", "-1"},
    {{OF(GFISH), DESC(shared_noise, 2)}, VALUE, "shared_noise", "2"},
    {{OF(GFISH), DESC(mix_hidden, -1)}, VALUE, "mix_hidden", "-1"},
    {{OF(HARD_GFISH), DESC(mix_hidden, 257)}, VALUE, "mix_hidden", "257"},
    {{OF(FISH), DESC(mix_hidden, 4)}, VALUE, "mix_hidden", "fish"},
    {{OF(TALKING_HEADS), DESC(mix_hidden, 1)}, VALUE, "mix_hidden", "talking-heads"},
    {{DESC(mix_hidden, 4)}, VALUE, "mix_hidden", "softmax"},
    {{OF(GFISH), DESC(use_mix_hidden_offset, 1)}, VALUE, "use_mix_hidden_offset", "mix_hidden > 0"},
    {{OF(GFISH), DESC(mix_hidden, 4), DESC(use_mix_hidden_offset, 2)}, VALUE, "use_mix_hidden_offset", "2"},
    {{OF(MISH), DESC(use_mix_hidden_offset, 1)}, VALUE, "use_mix_hidden_offset", "mish"},
    {{OF(GFISH), DESC(gradients, CLMGK_GRADIENT_MIX_HIDDEN_OFFSET)}, VALUE, "gradients", "mix_hidden > 0"},
    {{OF(FISH), DESC(mix_after_heads, -1)}, VALUE, "mix_after_heads", "-1"},
    {{OF(HARD_MISH), DESC(mix_after_heads, 257)}, VALUE, "mix_after_heads", "257"},
    {{DESC(mix_after_heads, 4)}, VALUE, "mix_after_heads", "softmax"},
    {{OF(TALKING_HEADS), DESC(mix_after_heads, 3), DESC(components, 4)}, SHAPE, "components", "mix_after_heads = 3"},
    {{OF(FISH), DESC(mix_after_heads, 4), DESC(combine, 1)}, VALUE, "combine", "mix_after_heads = 4"},
    {{OF(FISH), DESC(gradients, CLMGK_GRADIENT_MIX_AFTER)}, VALUE, "gradients", "mix_after_heads > 0"},
    {{OF(FISH), DESC(mix_after_heads, 3), DESC(use_bias, 1), DESC(bias_heads, 2)}, SHAPE, "bias_heads", "1 or 3"},
    {{OF(FISH), DESC(gradients, CLMGK_GRADIENT_MIX_HIDDEN_OFFSET)}, VALUE, "gradients", "MIX_HIDDEN_OFFSET"},
    {{OF(FISH), DESC(use_mix_weight, 1)}, VALUE, "use_mix_weight", "fish"},
    {{OF(TALKING_HEADS), DESC(use_mix_offset, 1)}, VALUE, "use_mix_offset", "talking-heads"},
    {{OF(HARD_GFISH), DESC(shared_noise, 1)}, VALUE, "shared_noise", "hard-gfish"},
    {{DESC(use_mix_weight, 1)}, VALUE, "use_mix_weight", "softmax"},
    {{OF(MGK), DESC(use_mix_offset, 1)}, VALUE, "use_mix_offset", "mgk"},
    {{OF(SMGK), DESC(shared_noise, 1)}, VALUE, "shared_noise", "smgk"},
    {{OF(FISH), DESC(components, -1)}, VALUE, "components", "-1"},
    {{OF(FISH), DESC(components, 257)}, VALUE, "components", "257"},
    {{OF(HARD_MISH), DESC(heads, 257), DESC(components, 2)}, VALUE, "heads", "257"},
    {{OF(TALKING_HEADS), DESC(components, 3)}, SHAPE, "components", "heads = 4"},
    {{OF(TALKING_HEADS), DESC(components, 5)}, SHAPE, "components", "heads = 4"},
    {{OF(HARD_FISH), DESC(components, 3), DESC(kv_heads, 3)}, SHAPE, "kv_heads", "3"},
    {{OF(FISH), DESC(gradients, CLMGK_GRADIENT_PRIOR)}, VALUE, "gradients", "PRIOR"},
    {{OF(FISH), DESC(gradients, CLMGK_GRADIENT_VARIANCE)}, VALUE, "gradients", "VARIANCE"},
    {{OF(FISH), DESC(gradients, CLMGK_GRADIENT_SHIFT)}, VALUE, "gradients", "SHIFT"},
    {{OF(SMGK), DESC(gradients, CLMGK_GRADIENT_MIX)}, VALUE, "gradients", "MIX"},
    {{OF(HARD_FISH), DESC(gradients, CLMGK_GRADIENT_MIX_WEIGHT)}, VALUE, "gradients", "MIX_WEIGHT"},
    {{OF(MISH), DESC(gradients, CLMGK_GRADIENT_MIX_OFFSET)}, VALUE, "gradients", "MIX_OFFSET"},
    {{OF(HARD_GFISH), DESC(gradients, CLMGK_GRADIENT_NOISE)}, VALUE, "gradients", "NOISE"},
    {{OF(TALKING_HEADS), DESC(gradients, CLMGK_GRADIENT_NOISE | CLMGK_GRADIENT_Q)}, VALUE, "gradients", "NOISE"},
    {{OF(HARD_FISH), DESC(heads, 1), DESC(components, 2), DESC(gradients, CLMGK_GRADIENT_Q), DESC(grad_q.strided, 1)},
     SHAPE,
     "grad_q",
     "0"}, /* two global heads in one place, though there is one local head */
    {{OF(GFISH), DESC_REAL(softcap, -2.0)}, VALUE, "softcap", "-2"},

    /* linear family: what it has not, and what the others have not; D = 8 */
    {{OF(LINEAR), DESC(score, CLMGK_SCORE_DOT)}, VALUE, "score", "linear"},
    {{OF(MLK), DESC(estep, CLMGK_ESTEP_HARD)}, VALUE, "estep", "mlk"},
    {{OF(LINEAR), DESC(prior_shape, CLMGK_PRIOR_M)}, VALUE, "prior_shape", "linear"},
    {{OF(LFISH), DESC(prior_shape, CLMGK_PRIOR_HM)}, VALUE, "prior_shape", "lfish"},
    {{OF(SMLK), DESC(variance_shape, CLMGK_VARIANCE_M)}, VALUE, "variance_shape", "smlk"},
    {{OF(MLK), DESC_REAL(variance, 2.5)}, VALUE, "variance", "2.5"},
    {{OF(LINEAR), DESC(use_window, 1)}, VALUE, "use_window", "linear"},
    {{OF(LINEAR), DESC(use_bias, 1)}, VALUE, "use_bias", "linear"},
    {{OF(LMISH), DESC(use_alibi, 1)}, VALUE, "use_alibi", "lmish"},
    {{OF(SMLK), DESC(use_sinks, 1)}, VALUE, "use_sinks", "smlk"},
    {{OF(LHARD_FISH), DESC_REAL(softcap, 2.0)}, VALUE, "softcap", "lhard-fish"},
    {{OF(LINEAR), DESC_REAL(dropout, 0.5)}, VALUE, "dropout", "linear"},
    {{OF(MLK), DESC(statistics, CLMGK_STATISTIC_NEW_PRIOR)}, VALUE, "statistics", "mlk"},
    {{OF(LINEAR), DESC(combine, 1)}, VALUE, "combine", "linear"},
    {{OF(LGFISH), DESC(use_mix_offset, 1)}, VALUE, "use_mix_offset", "lgfish"},
    {{OF(LGFISH), DESC(mix_hidden, 4)}, VALUE, "mix_hidden", "not a product of features"},
    {{OF(LFISH), DESC(mix_after_heads, 4)}, VALUE, "mix_after_heads", "no softmax"},
    {{OF(LHARD_GFISH), DESC(use_mix_hidden_offset, 1)}, VALUE, "use_mix_hidden_offset", "lhard-gfish"},
    {{OF(LHARD_MISH), DESC(shared_noise, 1)}, VALUE, "shared_noise", "lhard-mish"},
    {{OF(LINEAR), DESC(components, 2)}, VALUE, "components", "linear"},
    {{OF(MLK), DESC(components, 1025)}, VALUE, "components", "1025"},
    {{OF(LFISH), DESC(components, 257)}, VALUE, "components", "257"},
    {{OF(LINEAR), DESC(feature, 5)}, VALUE, "feature", "0 to 4"},
    {{OF(LINEAR), DESC(feature_order, 1)}, VALUE, "feature_order", "elu1"},
    {{OF(LINEAR), DPFP, DESC(feature_order, 4)}, VALUE, "feature_order", "1 to 3"},
    {{OF(LINEAR), DPFP, DESC(feature_order, -1)}, VALUE, "feature_order", "1 to 3"},
    {{OF(LINEAR), DPFP, DESC(features, 8)}, VALUE, "features", "0 or 16"},
    {{OF(LINEAR), DESC(features, 9)}, VALUE, "features", "0 or 8"},
    {{OF(LINEAR), FAVOR}, VALUE, "features", "its projection"},
    {{OF(LINEAR), FAVOR, DESC(features, CLMGK_MAX_FEATURES + 1)}, VALUE, "features", "4097"},
    {{OF(LINEAR), DESC_REAL(guard, -1.0)}, VALUE, "guard", "-1"},
    {{OF(LINEAR), DESC_REAL(guard, (double)NAN)}, VALUE, "guard", "nan"},
    {{OF(LINEAR), DESC_REAL(guard, 1e39)}, VALUE, "guard", "1e+39"},
    {{OF(LINEAR), DESC_REAL(guard, 1e-60)}, VALUE, "guard", "1e-60"},
    {{OF(LINEAR), DESC_REAL(feature_epsilon, 0.5)}, VALUE, "feature_epsilon", "feature elu1"},
    {{OF(LINEAR), DESC_REAL(feature_epsilon, -1.0)}, VALUE, "feature_epsilon", "-1"},
    {{OF(LINEAR), DESC(unnormalised, 2)}, VALUE, "unnormalised", "2"},
    {{OF(LFISH), DESC(unnormalised, 1), DESC_REAL(guard, 0.5)}, VALUE, "guard", "no denominators"},
    {{OF(LINEAR), DESC(use_state, 2)}, VALUE, "use_state", "2"},
    {{OF(LINEAR), DESC(use_new_state, -1)}, VALUE, "use_new_state", "-1"},
    {{OF(LINEAR), DESC(use_state, 1), DESC(sequences, 2), DESC(use_offsets_k, 1)}, VALUE, "use_state", "packed"},
    {{OF(LFISH), DESC(use_new_state, 1), DESC(sequences, 2), DESC(use_offsets_k, 1)}, VALUE, "use_new_state", "packed"},
    {{OF(LINEAR), DESC(gradients, CLMGK_GRADIENT_STATE_C)}, VALUE, "gradients", "use_state = 1"},
    {{OF(LINEAR), DESC(gradients, CLMGK_GRADIENT_PRIOR)}, VALUE, "gradients", "PRIOR"},
    {{OF(MLK), DESC(gradients, CLMGK_GRADIENT_VARIANCE)}, VALUE, "gradients", "VARIANCE"},
    {{OF(LGFISH), DESC(gradients, CLMGK_GRADIENT_MIX_OFFSET)}, VALUE, "gradients", "MIX_OFFSET"},
    {{OF(LINEAR), DESC(batch, 1 << 20), DESC(heads, 1 << 20), DESC(value_size, 512)},
     CLMGK_ERROR_OVERFLOW,
     "features",
     ""},
    {{DESC(feature, CLMGK_FEATURE_RELU)}, VALUE, "feature", "softmax"},
    {{OF(MGK), DESC(feature_order, 1)}, VALUE, "feature_order", "mgk"},
    {{OF(FISH), DESC(features, 8)}, VALUE, "features", "fish"},
    {{DESC_REAL(guard, 0.5)}, VALUE, "guard", "softmax"},
    {{DESC_REAL(feature_epsilon, 0.5)}, VALUE, "feature_epsilon", "softmax"},
    {{OF(GFISH), DESC(unnormalised, 1)}, VALUE, "unnormalised", "gfish"},
    {{DESC(use_state, 1)}, VALUE, "use_state", "softmax"},
    {{OF(TALKING_HEADS), DESC(use_new_state, 1)}, VALUE, "use_new_state", "talking-heads"},
    {{DESC(gradients, CLMGK_GRADIENT_STATE_Z)}, VALUE, "gradients", "STATE_Z"},
    {{DESC(sequences, 2), DESC(use_lengths, 1), DESC(use_positions, 1)},
     CLMGK_ERROR_UNSUPPORTED,
     "use_positions",
     "in order"},
    {{OF(GAUSSIAN), DESC(sequences, 2), DESC(use_lengths, 1), DESC(statistics, CLMGK_STATISTIC_NLL)},
     CLMGK_ERROR_UNSUPPORTED,
     "statistics",
     "inference"},
    {{OF(LINEAR), DESC(sequences, 2), DESC(use_lengths, 1)}, VALUE, "use_lengths", "linear"},
    {{OF(GAUSSIAN), DESC(use_positions, 1), DESC(statistics, CLMGK_STATISTIC_NLL)},
     CLMGK_ERROR_UNSUPPORTED,
     "use_positions",
     "indices"},
    {{DESC(page_size, 8), DESC(pages, 3), DESC(table_pages, 2), DESC(use_page_offsets, 1), DESC(use_lengths, 1)},
     VALUE,
     "use_lengths",
     "last_page"},
    {{DESC(page_size, 1 << 20), DESC(pages, 1 << 12), DESC(table_pages, 1), DESC(append, 3)},
     CLMGK_ERROR_OVERFLOW,
     "append",
     "2^31"},
    {{OF(LFISH), DESC(append, 3)}, VALUE, "append", "lfish"},
};

TH_TEST(bad_descriptors)
{
    for (size_t n = 0; n < TH_COUNT(bad_descs); n++) {
        const bad_desc *const bad = &bad_descs[n];
        clmgk_attention_desc desc = good_desc();
        clmgk_attention_desc resolved = good_desc();
        clmgk_plan *plan = NULL;
        apply(&desc, bad->changes, TH_COUNT(bad->changes));
        th_expect_refusal(clmgk_attention_validate(&desc, &resolved, &th_error), bad->status, bad->field, bad->value);
        assert_int_equal(clmgk_attention_validate(&desc, NULL, NULL), bad->status);
        th_expect_refusal(clmgk_plan_create(session->context, &desc, NULL, &plan, &th_error), bad->status, bad->field,
                          bad->value);
        assert_null(plan);
    }
}

TH_TEST(defaults_are_filled_in)
{
    const clmgk_attention_desc desc = good_desc();
    clmgk_attention_desc resolved;
    clmgk_error error = {.message = "as it was"};
    th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
    assert_string_equal(error.message, "as it was");
    assert_int_equal(resolved.batch, 1);
    assert_int_equal(resolved.kv_heads, 4);
    assert_int_equal(resolved.components, 1);
    assert_int_equal(resolved.value_size, 8);
    assert_int_equal(resolved.score, CLMGK_SCORE_DOT);
    assert_true(resolved.variance == sqrt(8.0));
    assert_true(resolved.q.strided == 1 && resolved.q.token == 8 && resolved.q.head == 40 && resolved.q.batch == 160);
    assert_true(resolved.k.token == 8 && resolved.k.head == 48 && resolved.lse.token == 1 && resolved.lse.head == 5);

    assert_true(resolved.bias_batch == 0 && resolved.bias_length == 0); /* no bias: as they were */
    assert_true(resolved.grad_q.strided == 1 && resolved.grad_q.token == 8 && resolved.grad_v.head == 48);

    clmgk_attention_desc mixture = good_desc();
    mixture.variant = CLMGK_VARIANT_MGK;
    th_expect_ok(clmgk_attention_validate(&mixture, &mixture, &th_error)); /* in place */
    assert_true(mixture.components == 2 && mixture.score == CLMGK_SCORE_GAUSSIAN);
    assert_true(mixture.k.component == 48 && mixture.k.head == 96);

    th_expect_ok(clmgk_attention_validate(&mixture, &mixture, &th_error)); /* and again */
    th_expect_refusal(clmgk_attention_validate(NULL, NULL, &th_error), VALUE, "desc", "NULL");
}

/* 0 keys are as many as queries, CLMGK_NO_KEYS none: also where what was resolved is given again. */
TH_TEST(keys_are_resolved)
{
    static const int64_t keys[][3] = {{5, 0, 5}, {5, 7, 7}, {5, CLMGK_NO_KEYS, 0}, {0, 0, 0}, {0, 7, 7}};
    for (size_t n = 0; n < TH_COUNT(keys); n++) {
        clmgk_attention_desc desc = good_desc();
        desc.length = keys[n][0];
        desc.length_k = keys[n][1];
        for (int again = 0; again < 2; again++) {
            th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
            assert_int_equal(desc.length_k, keys[n][2]);
            assert_int_equal(clmgk_array_shape(&desc, CLMGK_ARRAY_K).size[2], keys[n][2]);
        }
    }
    clmgk_attention_desc packed = good_desc(); /* one text of offsets for both */
    packed.length_k = 0;
    packed.sequences = 2;
    th_expect_ok(clmgk_attention_validate(&packed, NULL, &th_error));
}

/* Defaults of masks and modifiers, and what they need no more than that. */
TH_TEST(modifiers_are_resolved)
{
    clmgk_attention_desc desc = good_desc();
    clmgk_attention_desc resolved;
    desc.batch = 6;
    desc.use_bias = 1;
    desc.bias_batch = 3;
    desc.bias_heads = 1;
    desc.use_window = 1;
    desc.window_left = 0;
    desc.window_right = INT64_MAX; /* no key is that far */
    desc.softcap = 50.0;
    desc.dropout = 0.999;
    desc.gradients =
        CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_VARIANCE | CLMGK_GRADIENT_BIAS;
    desc.grad_o.strided = 1; /* one element in every place */
    desc.statistics = CLMGK_STATISTIC_COUNTS | CLMGK_STATISTIC_NEW_PRIOR;
    th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
    assert_true(resolved.bias_batch == 3 && resolved.bias_heads == 1);
    assert_true(resolved.bias_length == 5 && resolved.bias_length_k == 6);
    assert_true(resolved.window_left == 0 && resolved.window_right == -1);
    assert_true(resolved.softcap == 50.0 && resolved.dropout == 0.999 && resolved.gradients == desc.gradients);
    assert_true(resolved.grad_o.batch == 0 && resolved.grad_o.head == 0 && resolved.grad_o.token == 0);
    assert_true(resolved.grad_k.token == 8 && resolved.grad_k.head == 48 && resolved.grad_k.batch == 192);
    th_expect_ok(clmgk_attention_validate(&resolved, &resolved, &th_error)); /* and again */

    clmgk_attention_desc unused = good_desc(); /* fields that say nothing without their flag */
    unused.window_left = -1;
    unused.grad_k.strided = 1; /* overlapping, were there a gradient */
    th_expect_ok(clmgk_attention_validate(&unused, &resolved, &th_error));

    clmgk_attention_desc packed = good_desc();
    packed.sequences = 3;
    packed.use_offsets_k = 1;
    packed.use_bias = 1;
    packed.alignment = CLMGK_ALIGN_TOP_LEFT;
    th_expect_ok(clmgk_attention_validate(&packed, &resolved, &th_error));
    assert_true(resolved.bias_batch == 1 && resolved.bias_length_k == 6);
    packed.use_offsets_k = 0;
    packed.length_k = packed.length;
    th_expect_ok(clmgk_attention_validate(&packed, &resolved, &th_error));

    clmgk_attention_desc empty = good_desc(); /* an axis of 0 is a full one */
    empty.length_k = CLMGK_NO_KEYS;
    empty.use_bias = 1;
    empty.gradients = CLMGK_GRADIENT_BIAS;
    th_expect_ok(clmgk_attention_validate(&empty, &resolved, &th_error));
    assert_int_equal(resolved.bias_length_k, 0);
}

/* Every variant of the admixture family: defaults, and all that it may be asked for. */
TH_TEST(admixtures_are_resolved)
{
    for (size_t n = 0; n < TH_COUNT(th_admixtures); n++) {
        const uint32_t traits = clmgk_variant_traits(th_admixtures[n]);
        const bool square = (traits & CLMGK_TRAIT_SQUARE) != 0;
        clmgk_attention_desc desc = good_desc();
        clmgk_attention_desc resolved;
        desc.variant = th_admixtures[n];
        th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
        assert_true(resolved.components == 4 && resolved.kv_heads == 4 && resolved.score == CLMGK_SCORE_DOT);
        assert_true(resolved.variance == sqrt(8.0));

        desc.components = square ? 4 : 6; /* more global than local heads */
        desc.kv_heads = 2;
        desc.use_bias = desc.use_alibi = desc.use_sinks = 1;
        desc.softcap = 30.0;
        desc.dropout = 0.5;
        desc.use_mix_weight = desc.use_mix_offset = (traits & CLMGK_TRAIT_GENERALISED) != 0;
        desc.shared_noise = (traits & CLMGK_TRAIT_NOISE) != 0;
        desc.gradients = th_all_gradients(&desc);
        desc.combine = 1;
        th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
        assert_true(resolved.q.head == 40 && resolved.q.batch == 40 * desc.components);
        assert_true(resolved.k.head == 48 && resolved.k.batch == 48 * desc.components);
        assert_true(resolved.v.batch == 96 && resolved.o.batch == 160 && resolved.lse.batch == 20);
        assert_true(resolved.grad_q.batch == resolved.q.batch && resolved.grad_k.batch == resolved.k.batch);
        th_expect_ok(clmgk_attention_validate(&resolved, &desc, &th_error)); /* and again */
        assert_memory_equal(&desc, &resolved, sizeof(desc));

        desc = good_desc();
        desc.variant = th_admixtures[n];
        desc.heads = desc.components = CLMGK_MAX_MIXED_HEADS;
        th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
    }
    assert_int_equal(clmgk_variant_traits(CLMGK_VARIANT_SOFTMAX), 0);
    assert_int_equal(clmgk_variant_traits((clmgk_variant)1000), 0);
}

/* Every variant of the linear family: defaults, and all that it may be asked for. */
TH_TEST(linears_are_resolved)
{
    static const int64_t features[] = {8, 8, 8, 48, 5};
    for (size_t n = 0; n < 5 * TH_COUNT(th_linears); n++) {
        const uint32_t traits = clmgk_variant_traits(th_linears[n / 5]);
        const bool mixed = (traits & CLMGK_TRAIT_ADMIXTURE) != 0;
        clmgk_attention_desc desc = good_desc();
        clmgk_attention_desc resolved;
        desc.variant = th_linears[n / 5];
        th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
        assert_int_equal(resolved.components, mixed ? 4 : desc.variant == CLMGK_VARIANT_LINEAR ? 1 : 2);
        assert_true(resolved.features == 8 && resolved.variance == 0.0 && resolved.score == CLMGK_SCORE_DEFAULT);

        desc.feature = (clmgk_feature)(n % 5);
        desc.feature_order = desc.feature == CLMGK_FEATURE_DPFP ? 3 : 0;
        desc.features = desc.feature == CLMGK_FEATURE_FAVOR ? 5 : 0;
        desc.use_state = desc.use_new_state = desc.causal = desc.use_lengths = desc.use_lengths_q = 1;
        desc.alignment = CLMGK_ALIGN_LENGTHS;
        desc.guard = 1e-6;
        desc.use_mix_weight = (traits & CLMGK_TRAIT_GENERALISED) != 0;
        desc.shared_noise = (traits & CLMGK_TRAIT_NOISE) != 0;
        desc.gradients = th_all_gradients(&desc);
        th_expect_ok(clmgk_attention_validate(&desc, &resolved, &th_error));
        assert_int_equal(resolved.features, features[n % 5]);
        th_expect_ok(clmgk_attention_validate(&resolved, &desc, &th_error)); /* and again */
        assert_memory_equal(&desc, &resolved, sizeof(desc));
    }
}

/* A caller with a newer, longer structure: taken if it asks for nothing that this library does not know. */
TH_TEST(newer_callers)
{
    struct {
        clmgk_attention_desc known;
        int64_t added[2];
    } newer = {good_desc(), {0, 0}}, resolved;
    memset(&resolved, 0xff, sizeof(resolved));
    newer.known.struct_size = sizeof(newer);
    th_expect_ok(clmgk_attention_validate(&newer.known, &resolved.known, &th_error));
    assert_int_equal(resolved.known.struct_size, sizeof(resolved));
    assert_true(resolved.added[0] == 0 && resolved.added[1] == 0);
    assert_int_equal(clmgk_array_count(&resolved.known, CLMGK_ARRAY_Q), 4 * 5 * 8);
    newer.added[1] = 1;
    th_expect_refusal(clmgk_attention_validate(&newer.known, NULL, &th_error), VALUE, "struct_size", "");
    newer.known.struct_size = SIZE_MAX;
    th_expect_refusal(clmgk_attention_validate(&newer.known, NULL, &th_error), VALUE, "struct_size", "at most");
}

/* A caller that was compiled when the descriptor ended with the query lengths: what lies behind is not its. */
TH_TEST(older_callers)
{
    const size_t first = offsetof(clmgk_attention_desc, use_window);
    const clmgk_attention_desc desc = good_desc();
    clmgk_attention_desc older, resolved, expected;
    memset(&older, 0xff, sizeof(older));
    memset(&resolved, 0xff, sizeof(resolved));
    memcpy(&older, &desc, first);
    older.struct_size = first;
    th_expect_ok(clmgk_attention_validate(&desc, &expected, &th_error));
    th_expect_ok(clmgk_attention_validate(&older, &resolved, &th_error));
    assert_memory_equal(&resolved.variant, &expected.variant, first - offsetof(clmgk_attention_desc, variant));
    assert_int_equal(resolved.struct_size, first);
    assert_memory_equal((char *)&resolved + first, (char *)&older + first, sizeof(older) - first); /* as it was */
    assert_int_equal(clmgk_array_shape(&resolved, CLMGK_ARRAY_K).rank, 4);
    assert_int_equal(clmgk_array_presence(&resolved, CLMGK_PASS_BACKWARD, CLMGK_ARRAY_GRAD_Q), CLMGK_ABSENT);
    clmgk_plan *plan = NULL;
    th_expect_ok(clmgk_plan_create(session->context, &resolved, NULL, &plan, &th_error));
    clmgk_plan_release(plan);
    older.struct_size = first - 1; /* there is no older one than the first */
    th_expect_refusal(clmgk_attention_validate(&older, &resolved, &th_error), VALUE, "struct_size", "");
    assert_int_equal(clmgk_array_shape(&older, CLMGK_ARRAY_K).rank, 0);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

TH_TEST(bad_plan_arguments)
{
    const clmgk_attention_desc desc = good_desc();
    clmgk_plan *plan = NULL;
    th_expect_refusal(clmgk_plan_create(NULL, &desc, NULL, &plan, &th_error), VALUE, "context", "NULL");
    th_expect_refusal(clmgk_plan_create(session->context, NULL, NULL, &plan, &th_error), VALUE, "desc", "NULL");
    th_expect_refusal(clmgk_plan_create(session->context, &desc, NULL, NULL, &th_error), VALUE, "out", "NULL");
    th_expect_refusal(clmgk_attention_supported(NULL, &desc, NULL, &th_error), VALUE, "context", "NULL");
    th_expect_refusal(clmgk_attention_supported(session->context, NULL, NULL, &th_error), VALUE, "desc", "NULL");
    assert_int_equal(clmgk_plan_create(session->context, NULL, NULL, &plan, NULL), VALUE);

    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.struct_size = 0;
    th_expect_refusal(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error), VALUE, "struct_size",
                      "0");
    options = (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    options.engine = (clmgk_engine)9;
    th_expect_refusal(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error), VALUE, "engine", "9");
    assert_null(plan);

    /* options from before the backward pass: what lies behind is not read */
    options = (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    options.struct_size = offsetof(clmgk_plan_options, backward_parameters);
    options.backward_parameters = "nothing=1";
    clmgk_attention_desc trained = good_desc();
    trained.gradients = CLMGK_GRADIENT_Q;
    th_expect_ok(clmgk_plan_create(session->context, &trained, &options, &plan, &th_error));
    clmgk_plan_release(plan);
    plan = NULL;
    options.struct_size = sizeof(options);
    th_expect_refusal(clmgk_plan_create(session->context, &trained, &options, &plan, &th_error), VALUE, "parameters",
                      "nothing=1");
    assert_null(plan);
}

/* Each parameter of a plan by its own name with values that cannot be, and text that is no list. */
TH_TEST(bad_parameters)
{
    static const char *const texts[] = {"nothing=1", "nothing", "=1", ",", "nothing=", "a=1,b=2"};
    static const char *const values[] = {"0", "-1", "1000000", "x", "1x", "", "99999999999999999999"};
    const clmgk_attention_desc desc = good_desc();
    for (size_t e = 0; e < session->engines; e++) {
        clmgk_plan *const good = th_plan(session, &desc, session->engine[e], NULL);
        clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        clmgk_plan *plan = NULL;
        options.engine = session->engine[e];
        th_expect_ok(clmgk_plan_get_info(good, &info, &th_error));
        clmgk_plan_release(th_plan(session, &desc, session->engine[e], info.parameters)); /* its own are accepted */
        for (size_t n = 0; n < TH_COUNT(texts); n++) {
            options.parameters = texts[n];
            th_expect_refusal(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error), VALUE,
                              "parameters", "");
            assert_null(plan);
        }
        for (size_t n = 0; n < TH_COUNT(values); n++) {
            char text[128];
            const int name = (int)strcspn(info.parameters, "=");
            assert_in_range(name, 1, 64);
            snprintf(text, sizeof(text), "%.*s=%s", name, info.parameters, values[n]);
            options.parameters = text;
            th_expect_refusal(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error), VALUE,
                              "parameters", values[n]);
            assert_null(plan);
        }
        char twice[512];
        snprintf(twice, sizeof(twice), "%s,%s", info.parameters, info.parameters);
        options.parameters = twice;
        th_expect_refusal(clmgk_plan_create(session->context, &desc, &options, &plan, &th_error), VALUE, "parameters",
                          "expected each name once");
        assert_null(plan);
        clmgk_plan_release(good);
    }
}

TH_TEST(plan_queries)
{
    const clmgk_attention_desc desc = good_desc();
    clmgk_plan *const plan = th_plan(session, &desc, CLMGK_ENGINE_AUTO, NULL);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    th_expect_refusal(clmgk_plan_get_info(NULL, &info, &th_error), VALUE, "plan", "NULL");
    th_expect_refusal(clmgk_plan_get_info(plan, NULL, &th_error), VALUE, "info", "NULL");
    info.struct_size = offsetof(clmgk_plan_info, origin);
    th_expect_refusal(clmgk_plan_get_info(plan, &info, &th_error), VALUE, "info.struct_size", "");
    info.struct_size = sizeof(info);
    assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
    assert_int_equal(info.struct_size, sizeof(info));
    assert_int_equal(info.engine, session->info.engine);
    assert_int_equal(info.workspace_bytes, clmgk_plan_workspace_size(plan));
    assert_true(info.parameters && strchr(info.parameters, '=') && info.options && info.kernel && info.kernel[0]);
    assert_true(!info.backward_parameters && !info.backward_options && !info.backward_kernel);
    assert_true(info.backward_engine == CLMGK_ENGINE_AUTO && info.backward_workspace_bytes == 0);
    assert_int_equal(clmgk_plan_workspace_size(NULL), 0);
    clmgk_plan_release(plan);
    clmgk_plan_release(NULL);
}

TH_TEST(context_queries)
{
    clmgk_matrix_unit_info unit = CLMGK_MATRIX_UNIT_INFO_INIT;
    clmgk_first_use_info use = CLMGK_FIRST_USE_INFO_INIT;
    th_expect_refusal(clmgk_context_get_matrix_unit(NULL, &unit, &th_error), VALUE, "context", "NULL");
    th_expect_refusal(clmgk_context_get_matrix_unit(session->context, NULL, &th_error), VALUE, "info", "NULL");
    th_expect_refusal(clmgk_context_get_first_use(NULL, &use, &th_error), VALUE, "context", "NULL");
    th_expect_refusal(clmgk_context_get_first_use(session->context, NULL, &th_error), VALUE, "info", "NULL");
    unit.struct_size = use.struct_size = 8;
    th_expect_refusal(clmgk_context_get_matrix_unit(session->context, &unit, &th_error), VALUE, "info.struct_size",
                      "8");
    th_expect_refusal(clmgk_context_get_first_use(session->context, &use, &th_error), VALUE, "info.struct_size", "8");
}

/* docs/training.md: a decoding plan's program serves every capacity and mask. */
TH_TEST(lengths_share_a_program)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.heads = 8;
    desc.length = 1;
    desc.length_k = 64;
    desc.head_size = 16;
    for (int64_t n = 0; n < 12; n++) {
        desc.batch = 1 + n;
        desc.kv_heads = INT64_C(8) >> n % 4;
        desc.length_k = 64 + 20 * n;
        desc.causal = desc.use_lengths = n % 2 == 0;
        desc.alignment = desc.causal ? CLMGK_ALIGN_LENGTHS : CLMGK_ALIGN_BOTTOM_RIGHT;
        clmgk_plan *const other = th_plan(session, &desc, CLMGK_ENGINE_AUTO, NULL);
        clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
        th_expect_ok(clmgk_plan_get_info(other, &info, &th_error));
        if (n >= 4) /* heads that share keys are rows of a block: the first ones of each number may be compiled */
            assert_int_equal(info.origin, CLMGK_PROGRAM_MEMORY);
        clmgk_plan_release(other);
    }
}

/* What the backward pass chose, and that it is given back what it told. */
TH_TEST(backward_queries)
{
    clmgk_attention_desc desc = good_desc();
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    clmgk_plan *const plan = th_plan(session, &desc, CLMGK_ENGINE_AUTO, NULL);
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan_info again = CLMGK_PLAN_INFO_INIT;
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    assert_int_equal(info.backward_engine, session->info.engine);
    assert_true(info.backward_workspace_bytes <= info.workspace_bytes);
    assert_int_equal(info.workspace_bytes, clmgk_plan_workspace_size(plan));
    assert_true(info.backward_parameters && strchr(info.backward_parameters, '='));
    assert_true(info.backward_options && info.backward_kernel && strcmp(info.backward_kernel, info.kernel) != 0);

    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan *same = NULL;
    options.engine = info.engine;
    options.parameters = info.parameters;
    options.backward_parameters = info.backward_parameters;
    th_expect_ok(clmgk_plan_create(session->context, &desc, &options, &same, &th_error));
    th_expect_ok(clmgk_plan_get_info(same, &again, &th_error));
    assert_string_equal(again.backward_parameters, info.backward_parameters);
    assert_string_equal(again.backward_options, info.backward_options);
    assert_int_equal(again.origin, CLMGK_PROGRAM_MEMORY);
    clmgk_plan_release(same);

    char text[128];
    same = NULL;
    snprintf(text, sizeof(text), "%.*s=77", (int)strcspn(info.backward_parameters, "="), info.backward_parameters);
    options.backward_parameters = text;
    th_expect_refusal(clmgk_plan_create(session->context, &desc, &options, &same, &th_error), VALUE, "parameters",
                      "77");
    assert_null(same);
    clmgk_plan_release(plan);
}

/* Kernels and drivers count work-groups in 32 bits; a plan is refused before anything is launched. */
TH_TEST(too_many_groups)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    clmgk_plan *plan = NULL;
    desc.dtype = CLMGK_DTYPE_F16;
    desc.batch = desc.heads = desc.kv_heads = 1 << 16;
    desc.length = desc.length_k = desc.head_size = desc.value_size = 1;
    for (int backward = 0; backward < 2; backward++) {
        desc.gradients = backward ? CLMGK_GRADIENT_V : 0;
        th_expect_error(clmgk_plan_create(session->context, &desc, NULL, &plan, &th_error), CLMGK_ERROR_UNSUPPORTED,
                        "work-groups");
    }
    assert_null(plan);
}
