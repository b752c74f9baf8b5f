/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention variants, and the small enumerations of a problem description.
 *
 * CLMGK_VARIANT_LIST is the only list of variants: command-line names, validation, tests and benchmarks derive from it.
 * A new variant is a new line there; a new family is a new line in CLMGK_FAMILY_LIST.
 */
#ifndef CLMGK_VARIANTS_H
#define CLMGK_VARIANTS_H

#include "status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * X(NAME, value, "command-line name", family, TRAITS). Values are pinned. In the formulas h_i is row i of the output O.
 *
 * Mixture family. Log-weight s_ijr of component r of key j for query i, with prior pi and variance sigma^2:
 *
 *     dot       s_ijr = log pi_r(j) + q_i . k_jr / sigma_r^2                     (MGK paper Eq. 6)
 *     gaussian  s_ijr = log pi_r(j) - |q_i - k_jr|^2 / (2 sigma_r^2)             (MGK paper Eq. 7)
 *     w_ij = logsumexp_r s_ijr (soft E-step)  or  max_r (s_ijr - log pi_r(j)) (hard E-step)
 *     h_i = sum_j softmax_j(w_ij) v_j,        L_i = logsumexp_j w_ij
 *
 *     SOFTMAX    one component, dot, no prior: q.k / sqrt(D) unless a variance is given
 *     GAUSSIAN   one component, gaussian
 *     MGK        M components, each with its own keys
 *     SMGK       M components that are shifts of one key: k_jr = k_j + b_r. If all components share one sigma, it costs
 *                about as much as one component: one exponential per pair of query and key. Only pairs where the
 *                components' contributions to the weight differ by a factor of 2^64 or more take M exponentials
 *
 * Admixture family. Scores of M global heads are mixed into scores of H local heads (FiSH paper Eqs. 9 to 12); M and H
 * are independent. p [H,M] is the mixing, of any sign; sigma [M] the standard deviation of the noise; the kernels draw
 * the standard normal eps_h [N,S]:
 *
 *     G_kij = q_ki . k_kj                                                                   k = 1 .. M
 *     A_hij = sum_k p_hk (G_kij + sigma_k eps_hij)                                          (Eqs. 9 and 10)
 *     A_hij = sum_k w_hk relu(p_hk (G_kij + sigma_k eps_hij)) + c_h    generalised          (Eq. 12)
 *     h_hi = sum_j softmax_j(A_hij / sqrt(D)) v_hj,       L_hi = logsumexp_j (A_hij / sqrt(D))
 *
 *     FISH, HARD_FISH     p [H,M]; with and without noise
 *     MISH, HARD_MISH     p [M], the same for all heads (Eq. 11)
 *     GFISH, HARD_GFISH   the generalised form; with mix_hidden = U > 0 a hidden layer, p [U,M] and w [H,U]:
 *                         A_hij = sum_u w_hu relu(sum_k p_uk (G_kij + sigma_k eps_uij) + b_u) + c_h
 *     TALKING_HEADS       HARD_FISH with M = H: pre-softmax talking-heads attention (Shazeer et al. 2020)
 *
 * Linear family. Time and memory grow as N + S, not as N S. With a feature map phi: R^D -> R^F (CLMGK_FEATURE_LIST), no
 * scale, and sums over the keys that query i sees (MGK paper section 2.4):
 *
 *     C_i = sum_j sum_r pi_r(j) phi(k_jr) v_j^T,      z_i = sum_j sum_r pi_r(j) phi(k_jr)
 *     h_i = C_i^T phi(q_i) / (z_i . phi(q_i) + guard)
 *
 *     LINEAR              one component, no prior
 *     MLK                 M components, each with its own keys
 *     SMLK                M components that are shifts of one key: k_jr = k_j + b_r
 *
 * Linear family with M global heads mixed into H local ones. The FiSH paper names these forms without a formula; this
 * library takes phi(q_ki) . phi(k_kj) as the kernel of a global head, and adds the noise to the queries' features f:
 *
 *     C_hki = sum_j phi(k_kj) v_hj^T,      z_ki = sum_j phi(k_kj),      x_hkif = phi(q_ki)_f + sigma_k eps_hif
 *     h_hi = sum_k p_hk C_hki^T x_hki / (sum_k p_hk z_ki . x_hki + guard)
 *     generalised: w_hk relu(p_hk x_hki), feature by feature, instead of p_hk x_hki
 *
 *     LFISH, LHARD_FISH, LMISH, LHARD_MISH, LGFISH, LHARD_GFISH      as FISH, HARD_FISH, ... above, but without c
 *
 * A descriptor with unnormalised = 1 has the numerators alone: h_i = C_i^T phi(q_i). Else, where the denominator is
 * exactly 0 (no visible key, or features that are all 0), h_i is 0 and contributes no gradients. With signed p the
 * denominator may have either sign. (C, z) over all keys is the state, which a call can
 * write and a later call can take as input (attention.h). There is no log-sum-exp L.
 */
#define CLMGK_VARIANT_LIST(X)                                                                                          \
    X(SOFTMAX, 0, "softmax", mixture, 0)                                                                               \
    X(GAUSSIAN, 1, "gaussian", mixture, CLMGK_TRAIT_PRIOR)                                                             \
    X(MGK, 2, "mgk", mixture, CLMGK_TRAIT_PRIOR | CLMGK_TRAIT_KEYS)                                                    \
    X(SMGK, 3, "smgk", mixture, CLMGK_TRAIT_PRIOR | CLMGK_TRAIT_SHIFT)                                                 \
    X(FISH, 4, "fish", admixture, CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE)                                           \
    X(HARD_FISH, 5, "hard-fish", admixture, CLMGK_TRAIT_ADMIXTURE)                                                     \
    X(MISH, 6, "mish", admixture, CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE | CLMGK_TRAIT_SHARED_MIX)                  \
    X(HARD_MISH, 7, "hard-mish", admixture, CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_SHARED_MIX)                            \
    X(GFISH, 8, "gfish", admixture, CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE | CLMGK_TRAIT_GENERALISED)               \
    X(HARD_GFISH, 9, "hard-gfish", admixture, CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_GENERALISED)                         \
    X(TALKING_HEADS, 10, "talking-heads", admixture, CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_SQUARE)                       \
    X(LINEAR, 11, "linear", linear, CLMGK_TRAIT_LINEAR)                                                                \
    X(MLK, 12, "mlk", linear, CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_PRIOR | CLMGK_TRAIT_KEYS)                               \
    X(SMLK, 13, "smlk", linear, CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_PRIOR | CLMGK_TRAIT_SHIFT)                            \
    X(LFISH, 14, "lfish", linear, CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE)                      \
    X(LHARD_FISH, 15, "lhard-fish", linear, CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_ADMIXTURE)                                \
    X(LMISH, 16, "lmish", linear,                                                                                      \
      CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE | CLMGK_TRAIT_SHARED_MIX)                         \
    X(LHARD_MISH, 17, "lhard-mish", linear, CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_SHARED_MIX)       \
    X(LGFISH, 18, "lgfish", linear,                                                                                    \
      CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_NOISE | CLMGK_TRAIT_GENERALISED)                        \
    X(LHARD_GFISH, 19, "lhard-gfish", linear, CLMGK_TRAIT_LINEAR | CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_GENERALISED)

#define CLMGK_FAMILY_LIST(X)                                                                                           \
    X(mixture)                                                                                                         \
    X(admixture)                                                                                                       \
    X(linear)

typedef enum clmgk_variant {
#define CLMGK_VARIANT_ENUM(name, value, ...) CLMGK_VARIANT_##name = (value),
    CLMGK_VARIANT_LIST(CLMGK_VARIANT_ENUM)
#undef CLMGK_VARIANT_ENUM
} clmgk_variant;

/*
 * Storage types of Q, K, V and O. Sums and statistics are always f32. X(NAME, value, name, exponent_bits,
 * significand_bits, has_infinity): a number is a sign bit, exponent bits and the significand's bits after the point,
 * as in IEEE 754 with subnormal numbers. has_infinity 0: the largest exponent also holds numbers, and a NaN has all
 * exponent and significand bits set. A new type is a line here, and its loads and stores in cl/base/elements.clh.
 */
#define CLMGK_DTYPE_LIST(X)                                                                                            \
    X(F32, 0, "f32", 8, 23, 1)                                                                                         \
    X(F16, 1, "f16", 5, 10, 1)  /* IEEE binary16; needs no cl_khr_fp16 */                                              \
    X(BF16, 2, "bf16", 8, 7, 1) /* the upper half of an f32 */

/*
 * Types that only K and V may have, in attention over a cache (clmgk_attention_desc.dtype_k, dtype_v). X(NAME, value,
 * name, exponent_bits, significand_bits, has_infinity, block, bytes): the first as above; elements of a block, and its
 * bytes. A block of 32 is, in bytes and bit for bit, that of ggml's type of the name, and its elements follow each
 * other along D or E:
 *
 *     Q8_0    d, an f16; 32 int8 q. Element j is q[j] d
 *     Q4_0    d, an f16; 16 bytes. The lower four bits of byte j, of value n, are element j: (n - 8) d; the upper four
 *             bits are element j + 16
 */
#define CLMGK_CACHE_DTYPE_LIST(X)                                                                                      \
    X(E4M3, 3, "e4m3", 4, 3, 0, 1, 1) /* OCP's 8-bit float: at most 448; 0x7f and 0xff are NaN */                      \
    X(E5M2, 4, "e5m2", 5, 2, 1, 1, 1) /* OCP's 8-bit float: the upper half of an f16 */                                \
    X(INT8, 5, "int8", 0, 7, 0, 1, 1) /* an integer, -128 to 127 */                                                    \
    X(Q8_0, 6, "q8_0", 0, 7, 0, 32, 34)                                                                                \
    X(Q4_0, 7, "q4_0", 0, 3, 0, 32, 18)

typedef enum clmgk_dtype {
#define CLMGK_DTYPE_ENUM(name, value, ...) CLMGK_DTYPE_##name = (value),
    CLMGK_DTYPE_LIST(CLMGK_DTYPE_ENUM) CLMGK_CACHE_DTYPE_LIST(CLMGK_DTYPE_ENUM)
#undef CLMGK_DTYPE_ENUM
} clmgk_dtype;

/* Number of storage types of all arrays, and with those of K and V alone, which follow them. */
#define CLMGK_DTYPE_PLACE(name, ...) CLMGK_DTYPE_PLACE_##name,
enum { CLMGK_DTYPE_LIST(CLMGK_DTYPE_PLACE) CLMGK_DTYPES };
enum { CLMGK_CACHE_DTYPES_BEGIN = CLMGK_DTYPES - 1, CLMGK_CACHE_DTYPE_LIST(CLMGK_DTYPE_PLACE) CLMGK_ALL_DTYPES };
#undef CLMGK_DTYPE_PLACE

/* The storage type of an array that may differ from Q's. */
typedef enum clmgk_storage {
    CLMGK_STORAGE_AS_Q = 0, /* Q's */
#define CLMGK_STORAGE_ENUM(name, value, ...) CLMGK_STORAGE_##name = 1 + (value),
    CLMGK_DTYPE_LIST(CLMGK_STORAGE_ENUM) CLMGK_CACHE_DTYPE_LIST(CLMGK_STORAGE_ENUM)
#undef CLMGK_STORAGE_ENUM
} clmgk_storage;

/*
 * The lowest precision that the caller allows for products of arrays; sums are always f32. X(NAME, value, name). A plan
 * uses a lower precision only where a hardware unit of the device is faster with it; clmgk_plan_info.precision tells
 * which precision the plan uses.
 */
#define CLMGK_PRECISION_LIST(X)                                                                                        \
    X(EXACT, 0, "exact") /* as exact as the arrays' types allow */                                                     \
    X(TF32, 1, "tf32")   /* factors rounded to 10 bits after the point, with the exponents of f32 */                   \
    X(BF16, 2, "bf16")   /* factors rounded to 7 bits after the point, with the exponents of f32 */

typedef enum clmgk_precision {
#define CLMGK_PRECISION_ENUM(name, value, ...) CLMGK_PRECISION_##name = (value),
    CLMGK_PRECISION_LIST(CLMGK_PRECISION_ENUM)
#undef CLMGK_PRECISION_ENUM
} clmgk_precision;

/* Properties of a storage type. */
typedef struct clmgk_dtype_info {
    const char *name;
    size_t bytes; /* of an element; of a block */
    int exponent_bits;
    int significand_bits; /* after the point; of integers, the bits beside the sign */
    int32_t has_infinity;
    double largest;      /* the largest finite number; of integers, and of a block with d = 1, the largest integer */
    double least_normal; /* the smallest positive number with the full significand; of integers 1 */
    int32_t block;       /* elements of a block; 1: there are no blocks */
} clmgk_dtype_info;

/* Score between a query and a key (MGK paper Eqs. 6 and 7). */
#define CLMGK_SCORE_LIST(X)                                                                                            \
    X(DEFAULT, 0, "default") /* SOFTMAX, admixture family: dot; GAUSSIAN, MGK, SMGK: gaussian */                       \
    X(DOT, 1, "dot")                                                                                                   \
    X(GAUSSIAN, 2, "gaussian")

typedef enum clmgk_score {
#define CLMGK_SCORE_ENUM(name, value, ...) CLMGK_SCORE_##name = (value),
    CLMGK_SCORE_LIST(CLMGK_SCORE_ENUM)
#undef CLMGK_SCORE_ENUM
} clmgk_score;

/* Combination of a key's components (MGK paper section 2.3, Remark 3). */
#define CLMGK_ESTEP_LIST(X)                                                                                            \
    X(SOFT, 0, "soft") /* log-sum-exp over components */                                                               \
    X(HARD, 1, "hard") /* the largest component, without the prior */

typedef enum clmgk_estep {
#define CLMGK_ESTEP_ENUM(name, value, ...) CLMGK_ESTEP_##name = (value),
    CLMGK_ESTEP_LIST(CLMGK_ESTEP_ENUM)
#undef CLMGK_ESTEP_ENUM
} clmgk_estep;

/* Position of the diagonal d(i) of query i: a causal mask hides key j if j > d(i). */
#define CLMGK_ALIGNMENT_LIST(X)                                                                                        \
    X(BOTTOM_RIGHT, 0, "bottom-right") /* d(i) = i + S - N: the last query sees the last key */                        \
    X(TOP_LEFT, 1, "top-left")         /* d(i) = i */                                                                  \
    X(LENGTHS, 2, "lengths")           /* d(i) = i + lengths[b] - N: for a cache of keys; needs use_lengths */

typedef enum clmgk_alignment {
#define CLMGK_ALIGN_ENUM(name, value, ...) CLMGK_ALIGN_##name = (value),
    CLMGK_ALIGNMENT_LIST(CLMGK_ALIGN_ENUM)
#undef CLMGK_ALIGN_ENUM
} clmgk_alignment;

/*
 * Feature map phi of the linear family: maps the D elements x of an unscaled query or key to F features.
 *
 *     ELU1    x + 1 where x > 0, else exp(x); F = D
 *     RELU    max(x, 0) + feature_epsilon, with derivative 0 at x = 0; F = D
 *     EXP     exp(x); F = D
 *     DPFP    deterministic parameter-free projection (Schlag et al. 2021) of order nu: with r = [relu(x), relu(-x)],
 *             feature 2 D (i - 1) + m is r_m r_((m - i) mod 2D), i = 1 .. nu, m = 0 .. 2D - 1; F = 2 D nu
 *     FAVOR   positive random features (Choromanski et al. 2021): with y = x / D^(1/4), feature f is
 *             exp(w_f . y - |y|^2 / 2) / sqrt(R), with w_f row f of the projection [R,D]; F = R
 *
 * EXP and FAVOR accept exponents of any size in any features: the kernels shift each feature and each row by its own
 * maximum. The f32 rounding error of an exponent, 6e-8 of its size, becomes a relative error of a weight. For exponents
 * beyond about 1e7 (inputs of FAVOR around 1e4) outputs are finite means of values, but their weights are meaningless,
 * and gradients may have any value. States keep features down to e^-87 of the largest one (attention.h). With the other
 * maps, denominators below 2^-126 count as 0.
 */
#define CLMGK_FEATURE_LIST(X)                                                                                          \
    X(ELU1, 0, "elu1")                                                                                                 \
    X(RELU, 1, "relu")                                                                                                 \
    X(EXP, 2, "exp")                                                                                                   \
    X(DPFP, 3, "dpfp")                                                                                                 \
    X(FAVOR, 4, "favor")

typedef enum clmgk_feature {
#define CLMGK_FEATURE_ENUM(name, value, ...) CLMGK_FEATURE_##name = (value),
    CLMGK_FEATURE_LIST(CLMGK_FEATURE_ENUM)
#undef CLMGK_FEATURE_ENUM
} clmgk_feature;

/* Shape of the prior pi. Priors are non-negative and need not sum to 1. */
typedef enum clmgk_prior_shape {
    CLMGK_PRIOR_UNIFORM = 0, /* no array: pi = 1/M */
    CLMGK_PRIOR_M = 1,       /* [M] */
    CLMGK_PRIOR_HM = 2,      /* [H,M] */
    CLMGK_PRIOR_HMS = 3      /* [H,M,S] */
} clmgk_prior_shape;

/* Shape of the variance sigma^2. */
typedef enum clmgk_variance_shape {
    CLMGK_VARIANCE_NUMBER = 0, /* the descriptor's field `variance`, shared by all heads and components */
    CLMGK_VARIANCE_M = 1,      /* device array [M] */
    CLMGK_VARIANCE_HM = 2      /* device array [H,M] */
} clmgk_variance_shape;

/*
 * The kernel engines. Each computes a block of query rows against a tile of keys.
 *
 *     LANE     for SIMD CPUs: a vector lane holds a query
 *     SIMT     for GPUs: work-items of a work-group share tiles in local memory
 *     MATRIX   for GPUs with units that multiply small matrices: f16, bf16 and (heads of up to 128 numbers) f32 arrays
 *              of the mixture and admixture families, all passes. Elsewhere, for callers who name it, these units are
 *              emulated
 */
#define CLMGK_ENGINE_LIST(X)                                                                                           \
    X(LANE, 1, lane)                                                                                                   \
    X(SIMT, 2, simt)                                                                                                   \
    X(MATRIX, 3, matrix)

typedef enum clmgk_engine {
    CLMGK_ENGINE_AUTO = 0, /* the library chooses from device facts */
#define CLMGK_ENGINE_ENUM(NAME, value, name) CLMGK_ENGINE_##NAME = (value),
    CLMGK_ENGINE_LIST(CLMGK_ENGINE_ENUM)
#undef CLMGK_ENGINE_ENUM
} clmgk_engine;

/*
 * Rotary positions. The first P = rotary_size elements of a head form P/2 pairs. Pair c is rotated by the angle
 * position rotary_base^(-2c/P): (x, y) -> (x cos - y sin, x sin + y cos). Angles are accurate to 10^-6 at any position.
 */
#define CLMGK_ROTARY_LIST(X)                                                                                           \
    X(NONE, 0, "none")                                                                                                 \
    X(HALVES, 1, "halves") /* pair c is elements c and c + P/2 (GPT-NeoX, Llama in transformers) */                    \
    X(PAIRS, 2, "pairs")   /* pair c is elements 2c and 2c + 1 (GPT-J, the original paper) */

typedef enum clmgk_rotary {
#define CLMGK_ROTARY_ENUM(name, value, ...) CLMGK_ROTARY_##name = (value),
    CLMGK_ROTARY_LIST(CLMGK_ROTARY_ENUM)
#undef CLMGK_ROTARY_ENUM
} clmgk_rotary;

/* Traits of variants: bits of a set. */
typedef enum clmgk_variant_trait {
    CLMGK_TRAIT_ADMIXTURE = 1,   /* Q and K have M heads, mixed by p: admixture family and its linear forms */
    CLMGK_TRAIT_NOISE = 2,       /* noise of standard deviation sigma: FISH, MISH, GFISH; LFISH, LMISH, LGFISH */
    CLMGK_TRAIT_SHARED_MIX = 4,  /* p is [M]: MISH, HARD_MISH; LMISH, LHARD_MISH */
    CLMGK_TRAIT_GENERALISED = 8, /* has w, and c unless linear: GFISH, HARD_GFISH; LGFISH, LHARD_GFISH */
    CLMGK_TRAIT_SQUARE = 16,     /* M = H: TALKING_HEADS */
    CLMGK_TRAIT_PRIOR = 32,      /* components have a prior: GAUSSIAN, MGK, SMGK; MLK, SMLK */
    CLMGK_TRAIT_KEYS = 64,       /* each component has its own keys: MGK; MLK */
    CLMGK_TRAIT_SHIFT = 128,     /* components are shifts of one key: SMGK; SMLK */
    CLMGK_TRAIT_LINEAR = 256     /* linear family: features instead of scores, a state, no L */
} clmgk_variant_trait;

/* The variant's set of traits; 0 for a value outside the enumeration. */
CLMGK_API uint32_t clmgk_variant_traits(clmgk_variant variant);

/*
 * Names. ..._name returns the name of an enumeration's value as on the command line: "softmax", "f32", "lane", ...;
 * NULL for a value outside the enumeration. ..._from_name is its inverse, in this header and in the others: it stores
 * the value of a name. If there is no such name, or for NULL, it returns INVALID_VALUE with a message that lists all
 * names, and stores nothing.
 */
CLMGK_API const char *clmgk_variant_name(clmgk_variant variant);
CLMGK_API clmgk_status clmgk_variant_from_name(const char *name, clmgk_variant *variant, clmgk_error *error);
CLMGK_API const char *clmgk_dtype_name(clmgk_dtype dtype);
/* The type's properties; all zero for a value outside the enumeration. */
CLMGK_API clmgk_dtype_info clmgk_dtype_get_info(clmgk_dtype dtype);
CLMGK_API clmgk_status clmgk_dtype_from_name(const char *name, clmgk_dtype *dtype, clmgk_error *error);
CLMGK_API const char *clmgk_precision_name(clmgk_precision precision);
CLMGK_API clmgk_status clmgk_precision_from_name(const char *name, clmgk_precision *precision, clmgk_error *error);
CLMGK_API const char *clmgk_score_name(clmgk_score score);
CLMGK_API clmgk_status clmgk_score_from_name(const char *name, clmgk_score *score, clmgk_error *error);
CLMGK_API const char *clmgk_estep_name(clmgk_estep estep);
CLMGK_API clmgk_status clmgk_estep_from_name(const char *name, clmgk_estep *estep, clmgk_error *error);
CLMGK_API const char *clmgk_alignment_name(clmgk_alignment alignment);
CLMGK_API clmgk_status clmgk_alignment_from_name(const char *name, clmgk_alignment *alignment, clmgk_error *error);
CLMGK_API const char *clmgk_feature_name(clmgk_feature feature);
CLMGK_API clmgk_status clmgk_feature_from_name(const char *name, clmgk_feature *feature, clmgk_error *error);
CLMGK_API const char *clmgk_rotary_name(clmgk_rotary rotary);
CLMGK_API clmgk_status clmgk_rotary_from_name(const char *name, clmgk_rotary *rotary, clmgk_error *error);
CLMGK_API const char *clmgk_engine_name(clmgk_engine engine);
CLMGK_API clmgk_status clmgk_engine_from_name(const char *name, clmgk_engine *engine, clmgk_error *error);

#endif
