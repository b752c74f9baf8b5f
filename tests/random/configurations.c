/* SPDX-License-Identifier: Apache-2.0 */
#include "random/random.h"

#include <string.h>

#define LANE         .engine = CLMGK_ENGINE_LANE
#define SIMT         .engine = CLMGK_ENGINE_SIMT
#define MATRIX       .engine = CLMGK_ENGINE_MATRIX
#define V(name)      .variant = CLMGK_VARIANT_##name
#define SIZES(d, e)  .head_size = (d), .value_size = (e)
#define F16          .dtype = CLMGK_DTYPE_F16
#define BF16         .dtype = CLMGK_DTYPE_BF16
#define KEYS(name)   .dtype_k = CLMGK_STORAGE_##name
#define VALUES(name) .dtype_v = CLMGK_STORAGE_##name
#define KEY_SCALE    .use_scale_k = 1
#define VALUE_SCALE  .use_scale_v = 1
#define OUT(name)    .dtype_o = CLMGK_STORAGE_##name
#define DOT          .score = CLMGK_SCORE_DOT
#define HARD         .estep = CLMGK_ESTEP_HARD
#define PRIOR        .prior_shape = CLMGK_PRIOR_M
#define VARIANCE     .variance_shape = CLMGK_VARIANCE_M
#define BIAS         .use_bias = 1
#define ALIBI        .use_alibi = 1
#define SINKS        .use_sinks = 1
#define SOFTCAP      .softcap = 1.0
#define DROPOUT      .dropout = 0.5
#define PACKED       .sequences = 1, .use_offsets_k = 1
#define CAUSAL       .causal = 1
#define STATE        .use_state = 1
#define HIDDEN(u)    .mix_hidden = (u), .use_mix_hidden_offset = 1
#define MAP(name)    .feature = CLMGK_FEATURE_##name
#define ALL          .gradients = CLMGK_GRADIENT_ALL
#define STATISTICS   .statistics = CLMGK_STATISTIC_ALL

static const rd_configuration listed[] = {
    {LANE, .desc = {V(SOFTMAX), SIZES(16, 16), BIAS, SINKS, SOFTCAP, DROPOUT, ALL}},
    {LANE, .desc = {V(SOFTMAX), SIZES(32, 16), F16, VARIANCE, BIAS, .bias_length_k = 1, ALIBI, PACKED, ALL}},
    {SIMT, .desc = {V(SOFTMAX), SIZES(8, 16), ALIBI, SINKS, SOFTCAP, DROPOUT, PACKED, ALL}},
    {LANE, .desc = {V(GAUSSIAN), SIZES(8, 16), PRIOR, SINKS, STATISTICS, ALL}},
    {SIMT, .desc = {V(GAUSSIAN), SIZES(16, 32), F16, PRIOR, VARIANCE, BIAS, .bias_length = 1, ALL}},
    {LANE, .desc = {V(MGK), SIZES(16, 16), .components = 2, SINKS, ALL}},
    {LANE, .wide = true,
     .desc = {V(MGK), SIZES(16, 16), .components = 3, DOT, HARD, PRIOR, VARIANCE, BIAS, ALIBI, STATISTICS, ALL}},
    {LANE, .desc = {V(MGK), SIZES(16, 8), .components = 2, BF16, PRIOR, SINKS, ALIBI, PACKED, STATISTICS, ALL}},
    {SIMT, .desc = {V(MGK), SIZES(16, 16), .components = 2, DOT, PRIOR, VARIANCE, SINKS, DROPOUT, ALL}},
    {LANE, .splits = 2,
     .desc = {V(MGK), SIZES(8, 8), .components = 1, DOT, F16, PRIOR, VARIANCE, BIAS, SOFTCAP, DROPOUT, PACKED,
              .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR, STATISTICS}},
    {LANE, .desc = {V(SMGK), SIZES(8, 8), .components = 2, PRIOR, SINKS, ALL}},
    {LANE, .wide = true, .desc = {V(SMGK), SIZES(64, 16), .components = 2, PRIOR, VARIANCE, DROPOUT, ALL}},
    {LANE,
     .desc = {V(SMGK), SIZES(16, 16), .components = 3, DOT, BF16, PRIOR, VARIANCE, BIAS, ALIBI, DROPOUT, PACKED, ALL}},
    {SIMT, .desc = {V(SMGK), SIZES(16, 8), .components = 2, HARD, VARIANCE, SINKS, STATISTICS, ALL}},
    {LANE, .few = 4, .splits = 4, .desc = {V(SMGK), SIZES(8, 16), .components = 2, PRIOR, BIAS, SINKS}},
    {LANE, .ratio = 1, .desc = {V(FISH), SIZES(16, 16), .components = 2, .mix_after_heads = 3, BIAS, SINKS, ALL}},
    {LANE, .ratio = 2, .desc = {V(HARD_FISH), SIZES(32, 16), .components = 3, F16, ALIBI, SOFTCAP, DROPOUT, ALL}},
    {LANE, .ratio = 3, .desc = {V(MISH), SIZES(16, 16), .components = 2, SINKS, PACKED, ALL}},
    {SIMT, .ratio = 2,
     .desc = {V(HARD_MISH), SIZES(16, 16), .components = 2, BIAS, .bias_heads = 1, SINKS, SOFTCAP, ALL}},
    {LANE, .ratio = 1, .wide = true,
     .desc = {V(GFISH), SIZES(16, 16), .components = 2, .use_mix_weight = 1, .use_mix_offset = 1, BIAS,
              .bias_length_k = 1, SOFTCAP, DROPOUT, PACKED, ALL}},
    {LANE, .ratio = 2, .splits = 2,
     .desc = {V(HARD_GFISH), SIZES(16, 16), .components = 3, BF16, .use_mix_weight = 1, ALIBI, SINKS, ALL}},
    {LANE, .ratio = 1, .desc = {V(TALKING_HEADS), SIZES(16, 16), .components = 2, BIAS, ALIBI, DROPOUT, PACKED, ALL}},
    {SIMT, .ratio = 1,
     .desc = {V(FISH), SIZES(16, 16), .components = 2, .mix_after_heads = 2, .shared_noise = 1, BIAS,
              .bias_length_k = 1, ALIBI, DROPOUT,
              .gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_BIAS | CLMGK_GRADIENT_MIX | CLMGK_GRADIENT_NOISE}},
    /* several types */
    {LANE, .few = 4, .splits = 4, .desc = {V(SOFTMAX), SIZES(16, 16), KEYS(F16), VALUES(F16)}},
    {LANE, .desc = {V(MGK), SIZES(16, 16), .components = 2, KEYS(BF16), VALUES(F16), PRIOR, DROPOUT, STATISTICS, ALL}},
    {SIMT, .desc = {V(SOFTMAX), SIZES(16, 16), BF16, KEYS(F16), VALUES(F16), OUT(F32), SINKS, ALL}},
    {LANE, .ratio = 2, .desc = {V(HARD_FISH), SIZES(16, 16), .components = 2, KEYS(F16), VALUES(BF16), OUT(F16), ALL}},
    /* a hidden layer */
    {LANE, .ratio = 2,
     .desc = {V(GFISH), SIZES(16, 16), .components = 2, HIDDEN(5), .use_mix_weight = 1, SINKS, SOFTCAP, ALL}},
    {SIMT, .ratio = 1, .desc = {V(HARD_GFISH), SIZES(16, 16), .components = 3, F16, HIDDEN(3), BIAS, DROPOUT, ALL}},
};

/* Linear family. */
static const rd_configuration linears[] = {
    {LANE, .desc = {V(LINEAR), SIZES(16, 16), MAP(EXP), CAUSAL, PACKED, ALL}},
    {LANE, .splits = 4, .desc = {V(MLK), SIZES(32, 16), .components = 2, F16, PRIOR, CAUSAL, STATE, ALL}},
    {SIMT, .desc = {V(MLK), SIZES(16, 16), .components = 3, PRIOR, MAP(FAVOR), .features = 32, ALL}},
    {LANE, .desc = {V(SMLK), SIZES(16, 16), .components = 2, PRIOR, MAP(DPFP), .feature_order = 2, ALL}},
    {LANE, .ratio = 2, .splits = 4, .desc = {V(LFISH), SIZES(16, 16), .components = 2, MAP(RELU), ALL}},
    {LANE, .ratio = 1,
     .desc = {V(LHARD_FISH), SIZES(16, 16), .components = 3, MAP(FAVOR), .features = 16, CAUSAL, ALL}},
    {LANE, .ratio = 2, .desc = {V(LMISH), SIZES(16, 32), .components = 2, BF16, .shared_noise = 1, PACKED, ALL}},
    {SIMT, .ratio = 1, .splits = 2, .desc = {V(LHARD_MISH), SIZES(16, 16), .components = 2, CAUSAL, ALL}},
    {LANE, .ratio = 1,
     .desc = {V(LGFISH), SIZES(16, 16), .components = 2, .use_mix_weight = 1, MAP(EXP), CAUSAL, STATE, ALL}},
    {LANE, .ratio = 2, .desc = {V(LHARD_GFISH), SIZES(16, 16), .components = 2, .use_mix_weight = 1, ALL}},
    {LANE, .desc = {V(MLK), SIZES(16, 16), .components = 2, KEYS(F16), VALUES(BF16), PRIOR, ALL}}, /* several types */
};

/* Matrix engine: 16-bit types alone. The quick tier has the first two, because the emulation of its units compiles
 * slowly. */
static const rd_configuration matrices[] = {
    {MATRIX, .desc = {V(SOFTMAX), SIZES(16, 16), BF16, ALIBI, SINKS, .gradients = CLMGK_GRADIENT_Q}},
    {MATRIX, .ratio = 2, .desc = {V(MISH), SIZES(16, 16), .components = 2, F16, SINKS}},
    {MATRIX, .splits = 4, .desc = {V(MGK), SIZES(16, 32), .components = 2, F16, PRIOR, SINKS, DROPOUT, ALL}},
    {MATRIX, .ratio = 2, .desc = {V(FISH), SIZES(16, 16), .components = 2, BF16, SINKS, SOFTCAP, ALL}},
    {MATRIX, .desc = {V(SMGK), SIZES(32, 16), .components = 2, BF16, PRIOR, VARIANCE, BIAS, PACKED, STATISTICS, ALL}},
    {MATRIX, .ratio = 3, .splits = 2, .desc = {V(HARD_MISH), SIZES(16, 16), .components = 3, F16, ALIBI, PACKED, ALL}},
    {MATRIX, .desc = {V(SOFTMAX), SIZES(16, 16), F16, BIAS, ALIBI, SOFTCAP, DROPOUT, ALL}},
    {MATRIX, .desc = {V(GAUSSIAN), SIZES(16, 16), BF16, PRIOR, VARIANCE, SINKS, BIAS, .bias_length_k = 1, ALL}},
    {MATRIX, .desc = {V(MGK), SIZES(16, 16), .components = 3, DOT, HARD, F16, PRIOR, VARIANCE, STATISTICS, ALL}},
    {MATRIX, .ratio = 2, .desc = {V(MISH), SIZES(32, 16), .components = 2, BF16, BIAS, DROPOUT, ALL}},
    {MATRIX, .ratio = 1,
     .desc = {V(GFISH), SIZES(16, 32), .components = 3, F16, .use_mix_weight = 1, .use_mix_offset = 1, SINKS, ALL}},
    {MATRIX, .ratio = 2,
     .desc = {V(HARD_GFISH), SIZES(16, 16), .components = 2, BF16, .use_mix_weight = 1, ALIBI, PACKED, ALL}},
    {MATRIX, .ratio = 3, .desc = {V(HARD_FISH), SIZES(16, 16), .components = 2, F16, BIAS, SINKS, DROPOUT, ALL}},
    {MATRIX, .ratio = 1, .desc = {V(TALKING_HEADS), SIZES(16, 16), .components = 4, F16, BIAS, SOFTCAP, PACKED, ALL}},
    {MATRIX, .few = 4, .splits = 4, .desc = {V(SOFTMAX), SIZES(16, 16), BF16, KEYS(F16), VALUES(F16), OUT(BF16)}},
};

/* Where an optimising compiler has most to rearrange; on the lane engine a program of each kind as it is used. The
 * quick tier has numbers 0 and 4, one of each engine; number 2 takes longer than both. */
static const rd_configuration optimised[] = {
    {LANE, .desc = {V(SOFTMAX), SIZES(16, 16), BIAS, SINKS, SOFTCAP, DROPOUT, ALL}},
    {LANE, .wide = true,
     .desc = {V(SMGK), SIZES(16, 16), .components = 3, BF16, PRIOR, VARIANCE, SINKS, STATISTICS, ALL}},
    {LANE, .desc = {V(MGK), SIZES(64, 32), .components = 2, F16, PRIOR, ALIBI, PACKED, ALL}},
    {LANE, .ratio = 2, .desc = {V(GFISH), SIZES(32, 16), .components = 2, .use_mix_weight = 1, BIAS, DROPOUT, ALL}},
    {SIMT, .ratio = 2,
     .desc = {V(HARD_GFISH), SIZES(16, 16), .components = 2, .use_mix_weight = 1, BIAS, DROPOUT, ALL}},
    {SIMT, .desc = {V(SMGK), SIZES(16, 16), .components = 2, PRIOR, SINKS, ALL}},
};

/* Keys and values in pages, for inference. The quick tier has the first two. */
static const rd_configuration paged[] = {
    {LANE, .paged = true, .desc = {V(SOFTMAX), SIZES(16, 16), BIAS, SINKS}},
    {SIMT, .paged = true, .desc = {V(MGK), SIZES(16, 16), .components = 2, F16, PRIOR, PACKED}},
    {LANE, .paged = true, .few = 4, .splits = 4, .desc = {V(SOFTMAX), SIZES(16, 16), KEYS(F16), VALUES(F16)}},
    {LANE, .paged = true, .desc = {V(SMGK), SIZES(16, 8), .components = 2, BF16, PRIOR, VARIANCE, ALIBI, PACKED}},
    {LANE, .paged = true, .ratio = 2, .desc = {V(HARD_FISH), SIZES(32, 16), .components = 3, SINKS, PACKED}},
    {SIMT, .paged = true, .ratio = 2, .desc = {V(MISH), SIZES(16, 16), .components = 2, BIAS, SOFTCAP}},
    {SIMT, .paged = true, .few = 4, .splits = 4, .desc = {V(GAUSSIAN), SIZES(16, 32), F16, PRIOR, SINKS, PACKED}},
    {LANE, .paged = true, .wide = true, .splits = 2,
     .desc = {V(MGK), SIZES(64, 16), .components = 3, DOT, HARD, PRIOR, DROPOUT}},
    {SIMT, .paged = true, .splits = 2, .desc = {V(SOFTMAX), SIZES(64, 64), BF16, ALIBI, SOFTCAP, PACKED}},
    {MATRIX, .paged = true, .desc = {V(GAUSSIAN), SIZES(16, 16), F16, PRIOR, SINKS, PACKED}},
};

/* Keys and values in types of caches. The quick tier has the first two. */
static const rd_configuration typed[] = {
    {LANE, .desc = {V(SOFTMAX), SIZES(32, 32), KEYS(INT8), VALUES(E5M2), KEY_SCALE, VALUE_SCALE, SINKS}},
    {SIMT, .paged = true, .desc = {V(SOFTMAX), SIZES(32, 16), F16, KEYS(Q8_0), VALUES(INT8), VALUE_SCALE, PACKED}},
    {LANE, .few = 4, .splits = 4, .desc = {V(SOFTMAX), SIZES(64, 64), KEYS(Q4_0), VALUES(Q8_0), BIAS}},
    {LANE, .paged = true, .few = 4,
     .desc = {V(MGK), SIZES(16, 16), .components = 2, KEYS(E4M3), VALUES(INT8), KEY_SCALE, VALUE_SCALE, PRIOR}},
    {SIMT, .desc = {V(GAUSSIAN), SIZES(16, 32), KEYS(INT8), VALUES(F16), KEY_SCALE, PRIOR, SINKS}},
    {LANE, .paged = true, .ratio = 2,
     .desc = {V(HARD_FISH), SIZES(32, 16), .components = 3, KEYS(E5M2), VALUES(INT8), KEY_SCALE, VALUE_SCALE}},
    {SIMT, .ratio = 2, .desc = {V(MISH), SIZES(32, 32), .components = 2, KEYS(INT8), VALUES(Q4_0), KEY_SCALE, SOFTCAP}},
    {LANE, .wide = true, .desc = {V(SMGK), SIZES(16, 16), .components = 2, BF16, KEYS(E4M3), VALUES(E4M3), PRIOR}},
    {MATRIX, .paged = true,
     .desc = {V(SOFTMAX), SIZES(32, 16), BF16, KEYS(INT8), VALUES(E4M3), KEY_SCALE, VALUE_SCALE, SINKS}},
};

size_t rd_listed(const rd_configuration **list)
{
    *list = listed;
    return TH_COUNT(listed);
}

size_t rd_listed_linear(const rd_configuration **list)
{
    *list = linears;
    return TH_COUNT(linears);
}

size_t rd_listed_matrix(const rd_configuration **list)
{
    *list = matrices;
    return TH_COUNT(matrices);
}

size_t rd_listed_pages(const rd_configuration **list)
{
    *list = paged;
    return TH_COUNT(paged);
}

size_t rd_listed_types(const rd_configuration **list)
{
    *list = typed;
    return TH_COUNT(typed);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

const char *const rd_option_names[RD_OPTIONS] = {"bias",  "alibi", "sinks",     "softcap",    "dropout", "packed",
                                                 "prior", "sigma", "gradients", "statistics", "simt",    "half"};

uint32_t rd_options_of(const rd_configuration *configuration)
{
    const clmgk_attention_desc *const d = &configuration->desc;
    const bool has[RD_OPTIONS] = {d->use_bias != 0,
                                  d->use_alibi != 0,
                                  d->use_sinks != 0,
                                  d->softcap > 0.0,
                                  d->dropout > 0.0,
                                  d->sequences > 0,
                                  d->prior_shape != CLMGK_PRIOR_UNIFORM,
                                  d->variance_shape != CLMGK_VARIANCE_NUMBER,
                                  d->gradients != 0,
                                  d->statistics != 0,
                                  configuration->engine == CLMGK_ENGINE_SIMT,
                                  d->dtype != CLMGK_DTYPE_F32};
    uint32_t set = 0;
    for (size_t n = 0; n < RD_OPTIONS; n++)
        set |= (uint32_t)has[n] << n;
    return set;
}

/* ---- classes of D and E ------------------------------------------------------------------------------------------ */

int64_t rd_class_below(const clmgk_attention_desc *desc, int64_t size)
{
    const bool linear = (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_LINEAR) != 0;
    if (size <= 16) /* the first of what the library rounds up to */
        return size <= 8 || linear ? 0 : 8;
    return (size + 15) / 16 * 16 - 16;
}

/* ---- random ones ------------------------------------------------------------------------------------------------- */

static void draw_modifiers(clmgk_attention_desc *d, uint64_t *state)
{
    d->use_bias = th_chance(state, 2);
    d->bias_length = d->use_bias && th_chance(state, 4);
    d->bias_length_k = d->use_bias && th_chance(state, 4);
    d->use_alibi = th_chance(state, 3);
    d->use_sinks = th_chance(state, 2);
    d->dropout = th_chance(state, 3) ? 0.5 : 0.0;
    d->sequences = d->use_offsets_k = th_chance(state, 4);
}

static void draw_mixture(clmgk_attention_desc *d, uint64_t *state)
{
    const bool several = d->variant == CLMGK_VARIANT_MGK || d->variant == CLMGK_VARIANT_SMGK;
    d->components = several ? th_pick(state, 1, 4) : 1;
    if (several)
        d->score = th_scores[th_pick(state, 0, 1)];
    d->estep = th_esteps[th_chance(state, 4)];
    if (d->variant != CLMGK_VARIANT_SOFTMAX && !th_chance(state, 3))
        d->prior_shape = CLMGK_PRIOR_M;
    if (th_chance(state, 2))
        d->variance_shape = CLMGK_VARIANCE_M;
    const bool dot = d->variant == CLMGK_VARIANT_SOFTMAX || d->score == CLMGK_SCORE_DOT;
    d->softcap = dot && d->components == 1 && th_chance(state, 3) ? 1.0 : 0.0;
    d->statistics = th_chance(state, 4) ? CLMGK_STATISTIC_ALL : 0;
}

static void draw_admixture(clmgk_attention_desc *d, uint64_t *state)
{
    const uint32_t traits = clmgk_variant_traits(d->variant);
    d->components = th_pick(state, 1, 4);
    d->softcap = th_chance(state, 4) ? 1.0 : 0.0;
    if ((traits & CLMGK_TRAIT_GENERALISED) != 0) {
        d->use_mix_weight = !th_chance(state, 3);
        d->use_mix_offset = !th_chance(state, 3);
    }
    if ((traits & CLMGK_TRAIT_NOISE) != 0)
        d->shared_noise = th_chance(state, 3);
}

static void draw_linear(clmgk_attention_desc *d, uint64_t *state)
{
    const uint32_t traits = clmgk_variant_traits(d->variant);
    d->components = d->variant == CLMGK_VARIANT_LINEAR ? 1 : th_pick(state, 1, 3);
    d->feature = (clmgk_feature)th_pick(state, CLMGK_FEATURE_ELU1, CLMGK_FEATURE_FAVOR);
    d->feature_order = d->feature == CLMGK_FEATURE_DPFP ? (int32_t)th_pick(state, 1, 3) : 0;
    d->features = d->feature == CLMGK_FEATURE_FAVOR ? 16 * th_pick(state, 1, 4) : 0;
    d->causal = th_chance(state, 2);
    d->sequences = d->use_offsets_k = th_chance(state, 4);
    d->use_state = d->sequences == 0 && th_chance(state, 2);
    if ((traits & CLMGK_TRAIT_PRIOR) != 0 && !th_chance(state, 3))
        d->prior_shape = CLMGK_PRIOR_M;
    d->use_mix_weight = (traits & CLMGK_TRAIT_GENERALISED) != 0 && !th_chance(state, 3);
    d->shared_noise = (traits & CLMGK_TRAIT_NOISE) != 0 && th_chance(state, 3);
}

/* Of the generalised forms. */
static void draw_hidden(clmgk_attention_desc *d, uint64_t *state)
{
    const uint32_t traits = clmgk_variant_traits(d->variant) & (CLMGK_TRAIT_GENERALISED | CLMGK_TRAIT_LINEAR);
    if (traits != CLMGK_TRAIT_GENERALISED || th_chance(state, 2))
        return;
    d->mix_hidden = th_pick(state, 1, 12); /* more than 8: a loop */
    d->use_mix_hidden_offset = !th_chance(state, 3);
}

/* Of all variants of the family but the one that ties numbers of heads. */
static void draw_after(clmgk_attention_desc *d, uint64_t *state)
{
    const uint32_t traits = clmgk_variant_traits(d->variant);
    if ((traits & CLMGK_TRAIT_ADMIXTURE) == 0 || (traits & (CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_SQUARE)) != 0)
        return;
    if (th_chance(state, 3))
        d->mix_after_heads = th_pick(state, 1, 6);
}

/* Types of K, V and O, each Q's or another. */
static void draw_types(clmgk_attention_desc *d, uint64_t *state)
{
    clmgk_storage *const types[] = {&d->dtype_k, &d->dtype_v, &d->dtype_o};
    for (size_t n = 0; n < TH_COUNT(types); n++)
        *types[n] = (clmgk_storage)th_pick(state, CLMGK_STORAGE_AS_Q, CLMGK_DTYPES);
}

/* Products of bf16 where the device gains by them. Where terms nearly cancel, only rounding is left of a gradient: in
 * sums over all rows, and where a small variance multiplies scores. AMX takes no tiles of 16 keys. */
static void allow_bf16(rd_configuration *out)
{
    clmgk_attention_desc *const d = &out->desc;
    d->precision = CLMGK_PRECISION_BF16;
    d->gradients &= CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    d->variance_shape = CLMGK_VARIANCE_NUMBER;
    out->wide = true;
}

static rd_configuration random_configuration(uint64_t seed, uint64_t index)
{
    static const int64_t sizes[] = {8, 16, 32, 64};
    uint64_t state = seed ^ (index * 0x9e3779b97f4a7c15U);
    rd_configuration out = {.engine = th_chance(&state, 3) ? CLMGK_ENGINE_SIMT : CLMGK_ENGINE_LANE,
                            .wide = th_chance(&state, 4),
                            .ratio = th_pick(&state, 1, 3)};
    clmgk_attention_desc *const d = &out.desc;
    const bool mixed = th_chance(&state, 3), linear = index % 4 == 3;
    d->variant = linear  ? th_linears[th_pick(&state, 0, TH_COUNT(th_linears) - 1)]
                 : mixed ? th_admixtures[th_pick(&state, 0, TH_COUNT(th_admixtures) - 1)]
                         : th_variants[th_pick(&state, 0, TH_COUNT(th_variants) - 1)];
    d->dtype = th_chance(&state, 2) ? CLMGK_DTYPE_F32 : th_dtypes[th_pick(&state, 0, CLMGK_DTYPES - 1)];
    d->head_size = sizes[th_pick(&state, 0, 3)];
    d->value_size = sizes[th_pick(&state, 0, 3)];
    if (linear) {
        draw_linear(d, &state);
    } else {
        draw_modifiers(d, &state);
        mixed ? draw_admixture(d, &state) : draw_mixture(d, &state);
    }
    if ((clmgk_variant_traits(d->variant) & CLMGK_TRAIT_SQUARE) != 0)
        out.ratio = 1;
    if (th_chance(&state, 8)) {
        out.few = mixed || linear ? 0 : 4;
        out.splits = (int64_t)1 << th_pick(&state, 0, 2);
    } else {
        d->gradients = th_chance(&state, 3) ? (uint32_t)th_random(&state) & CLMGK_GRADIENT_ALL : CLMGK_GRADIENT_ALL;
    }
    if (th_chance(&state, 3)) /* last, so that the other draws stay as they are */
        draw_types(d, &state);
    if (th_chance(&state, 4))
        allow_bf16(&out);
    draw_hidden(d, &state);
    draw_after(d, &state);
    return out;
}

/* For the matrix engine, of f32 arrays (not of mixed heads): exact products, or those of factors that are rounded to
 * tf32. */
static rd_configuration random_singles_configuration(uint64_t seed, uint64_t index)
{
    rd_configuration out = random_configuration(seed, 4 * index + 1); /* none of the linear family */
    clmgk_attention_desc *const d = &out.desc;
    uint64_t state = seed ^ index;
    if ((clmgk_variant_traits(d->variant) & CLMGK_TRAIT_ADMIXTURE) != 0)
        return out;                            /* of the engine that it has */
    const bool forward = th_chance(&state, 2); /* which has products of its own */
    out.engine = CLMGK_ENGINE_MATRIX;
    d->gradients = forward ? 0 : d->gradients;
    d->statistics = forward ? 0 : d->statistics;
    d->dtype = CLMGK_DTYPE_F32;
    d->dtype_k = d->dtype_v = CLMGK_STORAGE_AS_Q;
    d->dtype_o = forward && th_chance(&state, 4) ? CLMGK_STORAGE_F16 : CLMGK_STORAGE_AS_Q;
    d->precision = th_chance(&state, 4) ? CLMGK_PRECISION_TF32 : CLMGK_PRECISION_EXACT;
    if (d->precision == CLMGK_PRECISION_TF32) { /* of parameters' gradients, such scores may leave nothing to check */
        d->gradients &= CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
        d->statistics = 0;
    }
    out.splits = (int64_t)1 << th_pick(&state, 0, 2);
    return out;
}

/* For the matrix engine: of its families, with 16-bit types, in the backward pass one for Q and K and one for V and O.
 */
static rd_configuration random_matrix_configuration(uint64_t seed, uint64_t index)
{
    rd_configuration out = random_configuration(seed, 4 * index); /* none of the linear family */
    clmgk_attention_desc *const d = &out.desc;
    uint64_t state = seed ^ index;
    const bool forward = d->gradients == 0 && d->statistics == 0;
    out.engine = CLMGK_ENGINE_MATRIX;
    d->mix_hidden = d->mix_after_heads = 0; /* another engine's */
    d->use_mix_hidden_offset = 0;
    d->dtype = th_chance(&state, 2) ? CLMGK_DTYPE_F16 : CLMGK_DTYPE_BF16;
    d->dtype_k = forward && th_chance(&state, 3) ? CLMGK_STORAGE_F16 : CLMGK_STORAGE_AS_Q;
    d->dtype_o = d->dtype_v = th_chance(&state, 3) ? CLMGK_STORAGE_F16 : CLMGK_STORAGE_AS_Q;
    return out;
}

/* For the matrix engine, of the linear family, whose products there are of tf32. Where terms nearly cancel, as in
 * gradients of parameters and states, only rounding is left. */
static rd_configuration random_matrix_linear_configuration(uint64_t seed, uint64_t index)
{
    static const char *const parameters[] = {"", "chunk=16,feature-block=16,warps=2", "chunk=32", "warps=1"};
    uint64_t state = seed ^ index;
    rd_configuration out = random_configuration(seed, 4 * index + 3);
    clmgk_attention_desc *const d = &out.desc;
    out.engine = CLMGK_ENGINE_MATRIX;
    out.parameters = parameters[th_pick(&state, 0, TH_COUNT(parameters) - 1)];
    d->precision = th_chance(&state, 4) ? CLMGK_PRECISION_BF16 : CLMGK_PRECISION_TF32;
    d->gradients &= CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return out;
}

/* ---- broad ones -------------------------------------------------------------------------------------------------- */

typedef enum {
    BROAD_LANE,
    BROAD_AMX,
    BROAD_SIMT,
    BROAD_MATRIX,
    BROAD_SINGLES,
    BROAD_LINEAR,
    BROAD_LINEAR_AMX,
    BROADS
} broad_kind;

/* "": those that a plan chooses. */
static const char *broad_parameters(broad_kind kind, bool few, bool mixed, uint64_t *state)
{
    enum { CHOICES = 4 };
    static const char *const lists[BROADS][CHOICES] = {
        [BROAD_LANE] = {"", "lanes=8,vectors=2,panels=2,tile=32", "vectors=4,panels=1,tile=16", "block=16,unroll=1"},
        [BROAD_AMX] = {"unit=3", "unit=3,vectors=1,panels=2,tile=32", "unit=3,panels=4", "unit=3,tile=32,block=16"},
        [BROAD_SIMT] = {"", "rows=4,keys=1,row-threads=4", "row-threads=2,key-threads=8,rows=1,keys=4",
                        "rows=1,keys=2,features=8,values=4"},
        [BROAD_MATRIX] = {"", "warps=2,row-tiles=2,key-tiles=4", "key-tiles=4", "warps=4,row-tiles=1,key-tiles=8"},
        [BROAD_LINEAR] = {"", "chunk=16,feature-block=16", "chunk=32,feature-block=32", "chunk=64"},
        [BROAD_LINEAR_AMX] = {"unit=3", "unit=3,chunk=16,feature-block=16", "unit=3,chunk=32,feature-block=32",
                              "unit=3,chunk=64"}};
    static const char *const fews[CHOICES] = {"", "tile=16", "lanes=8", "block=4,unroll=8"};
    static const char *const mixtures[BROADS][CHOICES] = {
        [BROAD_LANE] = {"heads=1", "lanes=8,heads=2", "heads=4,vectors=1", "heads=1,tile=32"},
        [BROAD_AMX] = {"unit=3,heads=1", "unit=3,vectors=1,heads=2", "unit=3,heads=4", "unit=3"},
        [BROAD_SIMT] = {"heads=1", "rows=1,keys=2,heads=2", "features=8,values=4,heads=4", ""},
        [BROAD_MATRIX] = {"heads=1", "heads=2,key-tiles=4", "heads=4", ""}};
    const broad_kind row = kind == BROAD_SINGLES ? BROAD_MATRIX : kind;
    const char *const *const list = few && kind == BROAD_LANE ? fews : mixed ? mixtures[row] : lists[row];
    return list[th_pick(state, 0, CHOICES - 1)];
}

/* Of the tiles of AMX, which has no heads of 16: arrays in bf16, or of types whose products are in bf16, or in f16. */
static void suit_amx(rd_configuration *out, uint64_t *state)
{
    enum { ROUNDED, IN_BF16, IN_F16 };
    clmgk_attention_desc *const d = &out->desc;
    const int64_t types = th_pick(state, ROUNDED, IN_F16);
    d->head_size = th_chance(state, 2) ? 32 : 64;
    d->value_size = th_chance(state, 2) ? 32 : 64;
    d->precision = CLMGK_PRECISION_EXACT;
    d->mix_after_heads = 0; /* its kernels use no tiles */
    if (types == ROUNDED) {
        allow_bf16(out);
        return;
    }
    d->dtype = types == IN_F16 ? CLMGK_DTYPE_F16 : CLMGK_DTYPE_BF16;
    d->dtype_k = d->dtype_v = d->dtype_o = CLMGK_STORAGE_AS_Q;
}

/* The parameters of AMX but its unit: few CPUs multiply f16, and there plans take it themselves. */
static const char *without_unit(const char *parameters)
{
    const char *const comma = strchr(parameters, ',');
    return comma ? comma + 1 : "";
}

static bool is_linear(broad_kind kind)
{
    return kind == BROAD_LINEAR || kind == BROAD_LINEAR_AMX;
}

static void broaden(rd_configuration *out, broad_kind kind, uint64_t *state)
{
    static const int64_t sizes[] = {8, 16, 32, 48, 64, 80, 96, 128};
    clmgk_attention_desc *const d = &out->desc;
    const bool mixed = (clmgk_variant_traits(d->variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
    out->broad = true;
    if (kind == BROAD_AMX) {
        suit_amx(out, state);
        out->few = 0;
    } else if (kind == BROAD_LINEAR_AMX) {
        allow_bf16(out);
        out->splits = (int64_t)1 << th_pick(state, 0, 2);
    } else if (kind != BROAD_LINEAR) {
        d->head_size = sizes[th_pick(state, 0, TH_COUNT(sizes) - 1)];
        d->value_size = sizes[th_pick(state, 0, TH_COUNT(sizes) - 1)];
    }
    if (d->components > 1 && !is_linear(kind) && th_chance(state, 4))
        d->components = th_pick(state, 5, mixed ? 6 : 9);
    d->use_lse_low = !is_linear(kind) && th_chance(state, 3);
    if (!is_linear(kind) && kind != BROAD_AMX && !mixed && th_chance(state, 3)) {
        out->few = 4;
        out->splits = (int64_t)1 << th_pick(state, 0, 2);
        d->gradients = 0;
    }
    if (d->statistics != 0 && th_chance(state, 2))
        d->statistics &= (uint32_t)th_random(state);
    out->parameters = broad_parameters(kind, out->few > 0, mixed && !is_linear(kind), state);
    if (kind == BROAD_AMX && d->dtype == CLMGK_DTYPE_F16 && d->precision == CLMGK_PRECISION_EXACT)
        out->parameters = without_unit(out->parameters);
}

static rd_configuration broad_configuration(uint64_t seed, uint64_t index)
{
    const broad_kind kind = (broad_kind)(index % BROADS);
    const uint64_t other = seed + 1;
    uint64_t state = (seed + 2) ^ (index * 0x9e3779b97f4a7c15U);
    rd_configuration out = kind == BROAD_MATRIX    ? random_matrix_configuration(other, index)
                           : kind == BROAD_SINGLES ? random_singles_configuration(other, index)
                                                   : random_configuration(other, 4 * index + (is_linear(kind) ? 3 : 0));
    if (kind == BROAD_LANE || kind == BROAD_AMX || kind == BROAD_LINEAR_AMX)
        out.engine = CLMGK_ENGINE_LANE;
    if (kind == BROAD_SIMT)
        out.engine = CLMGK_ENGINE_SIMT;
    broaden(&out, kind, &state);
    return out;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Arrays of all types, with strides of their own; reads outside of them take the nearest element. With packed sequences
 * b counts these. Blocks so small that a mask of few keys has classes. */
static void add_texts(clmgk_attention_desc *d)
{
    if ((clmgk_variant_traits(d->variant) & CLMGK_TRAIT_LINEAR) != 0)
        return;
    d->score_mod = "(0.5 * s + x * tanh(s / 8)) * (r + 1) + t[h, clamp(i - j, -4, 4) + 4] - 0.5 * w[b, g, j]";
    d->mask_mod = "(i + 2 * j) % 5 != 3 && (doc[b, i] == doc[b, j] || y < 0 || j < S / 2)";
    d->captures[0] = (clmgk_capture){
        .name = "t", .type = CLMGK_CAPTURE_F16, .axes = 2, .shape = {5, 9}, .strided = 1, .strides = {31, 3}};
    d->captures[1] = (clmgk_capture){
        .name = "w", .type = CLMGK_CAPTURE_BF16, .axes = 3, .shape = {3, 2, 50}, .strided = 1, .strides = {1, 151, 3}};
    d->captures[2] = (clmgk_capture){.name = "doc", .type = CLMGK_CAPTURE_I32, .axes = 2, .shape = {2, 60}};
    d->numbers[0] = "x";
    d->numbers[1] = "y";
    d->mask_block_q = d->mask_block_k = 16;
}

rd_configuration rd_configuration_of(uint64_t seed, uint64_t number)
{
    if (number >= RD_TEXTS) {
        rd_configuration out = rd_configuration_of(seed, number - RD_TEXTS);
        add_texts(&out.desc);
        if (out.desc.score_mod != NULL && out.parameters != NULL && strncmp(out.parameters, "unit=", 5) == 0)
            out.parameters = without_unit(out.parameters); /* no kernels for AMX have texts */
        return out;
    }
    if (number >= RD_BROAD)
        return broad_configuration(seed, (number - RD_BROAD) / RD_SHARED);
    if (number >= RD_TYPES && number < RD_LISTED)
        return typed[(number - RD_TYPES) % TH_COUNT(typed)];
    if (number >= RD_PAGES && number < RD_LISTED)
        return paged[(number - RD_PAGES) % TH_COUNT(paged)];
    if (number >= RD_MATRIX_LINEAR && number < RD_LISTED)
        return random_matrix_linear_configuration(seed, (number - RD_MATRIX_LINEAR) / RD_SHARED);
    if (number >= RD_MATRIX_SINGLES && number < RD_LISTED)
        return random_singles_configuration(seed, (number - RD_MATRIX_SINGLES) / RD_SHARED);
    if (number >= RD_MATRIX_RANDOM && number < RD_LISTED)
        return random_matrix_configuration(seed, (number - RD_MATRIX_RANDOM) / RD_SHARED);
    if (number >= RD_MATRIX && number < RD_LISTED)
        return matrices[(number - RD_MATRIX) % TH_COUNT(matrices)];
    if (number >= RD_LINEAR && number < RD_LISTED)
        return linears[number % TH_COUNT(linears)];
    if (number < RD_LISTED)
        return listed[number % TH_COUNT(listed)];
    if (number < RD_OPTIMISED)
        return optimised[number % TH_COUNT(optimised)];
    return random_configuration(seed, (number - RD_OPTIMISED) / RD_SHARED);
}
