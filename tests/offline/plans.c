/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the kernel configurations that plans make for the problems below, on a GPU and a CPU that need not be here,
 * a line each: engine, name, file, options. compile.py compiles them, and configurations.txt has some, which a test
 * compares. With the arguments `steps`, a name of the matrix engine's configurations and fields of the descriptor:
 * steps.h, for tests/simulator.
 */
#include "attention/core/family.h"
#include "engine/shuffles.clh"
#include "engine/units.clh"
#include "gemm/gemm.h"
#include "layer/rows.h"
#include "offline/products.h"
#include "offline/steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of f32 arrays; their products have the precision that their name states. */
#define NAME_OF_TF32  "tf32"
#define NAME_OF_TEXTS "-texts-" /* a score and a mask as texts */
#define NAME_OF_PAGES "-pages-" /* keys and values in pages */
#define NAME_OF_AFTER "-after-" /* heads mixed after the softmax, too */

static clmgk_precision precision_of(const char *name)
{
    return strstr(name, NAME_OF_TF32) != NULL ? CLMGK_PRECISION_TF32 : CLMGK_PRECISION_EXACT;
}

typedef struct problem {
    const char *name;
    clmgk_variant variant;
    clmgk_dtype dtype;
    int64_t components, head_size, value_size; /* components: of 8 heads, where scores are mixed across heads */
    bool dot, hard, arrays; /* dot score in place of the variant's own; hard E-step; prior and variance, w and c as
                               arrays */
    clmgk_pass pass;
    bool modified; /* with every mask and modifier, and lse_low */
} problem;

static const problem problems[] = {
    {"softmax-32", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 32, 32, false, false, false, CLMGK_PASS_FORWARD, false},
    {"softmax-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"softmax-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 128, 128, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"gaussian-8", CLMGK_VARIANT_GAUSSIAN, CLMGK_DTYPE_F32, 1, 8, 8, false, false, false, CLMGK_PASS_FORWARD, false},
    {"softmax-256", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 256, 256, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-512", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 512, 512, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-192-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 192, 128, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-f16-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-bf16-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"gaussian-64", CLMGK_VARIANT_GAUSSIAN, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"mgk2-32", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 32, 32, false, false, false, CLMGK_PASS_FORWARD, false},
    {"mgk2-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"mgk2-128", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 128, 128, false, false, false, CLMGK_PASS_FORWARD, false},
    {"mgk2-f16-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"mgk2-dot-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, true, false, false, CLMGK_PASS_FORWARD, false},
    {"mgk2-hard-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, true, false, CLMGK_PASS_FORWARD, false},
    {"mgk2-arrays-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_FORWARD, false},
    {"mgk4-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 4, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"smgk2-32", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 32, 32, false, false, false, CLMGK_PASS_FORWARD, false},
    {"smgk2-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"smgk2-128", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 128, 128, false, false, false, CLMGK_PASS_FORWARD, false},
    {"smgk2-bf16-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"smgk2-arrays-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_FORWARD, false},
    {"smgk4-hard-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 4, 64, 64, false, true, false, CLMGK_PASS_FORWARD, false},
    {"softmax-modified-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     true},
    {"mgk2-modified-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F16, 2, 64, 64, false, false, true, CLMGK_PASS_FORWARD, true},
    {"gaussian-texts-64", CLMGK_VARIANT_GAUSSIAN, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"gaussian-texts-64", CLMGK_VARIANT_GAUSSIAN, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"hard-fish2-texts-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false,
     CLMGK_PASS_BACKWARD, false},
    {"gaussian-pages-64", CLMGK_VARIANT_GAUSSIAN, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"hard-fish2-pages-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"softmax-combine", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false, CLMGK_PASS_COMBINE,
     false},
    {"softmax-bf16-8", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 8, 8, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"softmax-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"softmax-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 128, 128, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"softmax-modified-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     true},
    {"mgk2-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"mgk2-hard-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, true, false, CLMGK_PASS_BACKWARD, false},
    {"mgk2-arrays-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F16, 2, 64, 64, false, false, true, CLMGK_PASS_BACKWARD, true},
    {"smgk2-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"smgk2-arrays-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_BACKWARD, true},
    {"mgk2-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_STATISTICS, false},
    {"smgk2-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_STATISTICS, true},
    {"hard-fish2-32", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 32, 32, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"hard-fish2-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"hard-fish2-128", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 128, 128, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"fish2-64", CLMGK_VARIANT_FISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"hidden2-64", CLMGK_VARIANT_HARD_GFISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_FORWARD, false},
    {"gfish2-arrays-64", CLMGK_VARIANT_GFISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_FORWARD,
     false},
    {"hard-mish2-64", CLMGK_VARIANT_HARD_MISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"mish2-bf16-64", CLMGK_VARIANT_MISH, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"talking-heads8-64", CLMGK_VARIANT_TALKING_HEADS, CLMGK_DTYPE_F32, 8, 64, 64, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"talking-heads8-after-64", CLMGK_VARIANT_TALKING_HEADS, CLMGK_DTYPE_F32, 8, 64, 64, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"fish2-modified-64", CLMGK_VARIANT_FISH, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     true},
    {"hard-fish2-32", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 32, 32, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"hard-fish2-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"hard-fish2-128", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 128, 128, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"fish2-64", CLMGK_VARIANT_FISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"hidden2-64", CLMGK_VARIANT_HARD_GFISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_BACKWARD,
     false},
    {"gfish2-arrays-64", CLMGK_VARIANT_GFISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, true, CLMGK_PASS_BACKWARD,
     false},
    {"mish2-bf16-64", CLMGK_VARIANT_MISH, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"talking-heads8-64", CLMGK_VARIANT_TALKING_HEADS, CLMGK_DTYPE_F32, 8, 64, 64, false, false, false,
     CLMGK_PASS_BACKWARD, false},
    {"talking-heads8-after-64", CLMGK_VARIANT_TALKING_HEADS, CLMGK_DTYPE_F32, 8, 64, 64, false, false, false,
     CLMGK_PASS_BACKWARD, false},
    {"fish2-modified-64", CLMGK_VARIANT_FISH, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     true},
};

/* The matrix engine's, with the gradients that training of Q, K and V needs. */
static const problem matrices[] = {
    {"softmax-bf16-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-f16-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-bf16-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 128, 128, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-f16-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 128, 128, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"mgk2-bf16-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"mgk2-bf16-128", CLMGK_VARIANT_MGK, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, false, CLMGK_PASS_FORWARD, false},
    {"mgk4-bf16-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_BF16, 4, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"smgk2-bf16-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"smgk2-bf16-128", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-bf16-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"softmax-f16-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"softmax-bf16-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 128, 128, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"softmax-f16-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 128, 128, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"mgk2-bf16-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"mgk2-bf16-128", CLMGK_VARIANT_MGK, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"hard-fish2-bf16-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"hard-mish2-f16-64", CLMGK_VARIANT_HARD_MISH, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"hard-fish2-bf16-128", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"hard-mish2-bf16-128", CLMGK_VARIANT_HARD_MISH, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"hard-fish2-bf16-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false,
     CLMGK_PASS_BACKWARD, false},
    {"hard-fish2-f16-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"smgk2-bf16-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"hard-fish2-bf16-128", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, false,
     CLMGK_PASS_BACKWARD, false},
    {"hard-mish2-bf16-128", CLMGK_VARIANT_HARD_MISH, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, false,
     CLMGK_PASS_BACKWARD, false},
    {"smgk2-bf16-128", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"softmax-f32-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-f32-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 128, 128, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"mgk4-f32-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 4, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"smgk2-f32-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"softmax-tf32-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"softmax-f32-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"softmax-f32-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 128, 128, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"softmax-tf32-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"mgk2-f32-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"smgk2-f32-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
    {"softmax-bf16-texts-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 64, 64, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"softmax-bf16-texts-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 64, 64, false, false, false,
     CLMGK_PASS_BACKWARD, false},
};

/* A configuration of the linear family; `arrays`: prior, w, an incoming state. */
typedef struct linear_problem {
    const char *name;
    clmgk_variant variant;
    clmgk_feature feature;
    clmgk_dtype dtype;
    int64_t components, size;
    bool causal, arrays, packed;
} linear_problem;

/* The matrix engine's. */
static const linear_problem rounded_linears[] = {
    {"linear-tf32-64", CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_ELU1, CLMGK_DTYPE_F32, 1, 64, false, false, false},
    {"linear-causal-tf32-64", CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_ELU1, CLMGK_DTYPE_F32, 1, 64, true, false, false},
    {"smlk2-favor-tf32-64", CLMGK_VARIANT_SMLK, CLMGK_FEATURE_FAVOR, CLMGK_DTYPE_BF16, 2, 64, true, true, false},
    {"lgfish2-tf32-32", CLMGK_VARIANT_LGFISH, CLMGK_FEATURE_EXP, CLMGK_DTYPE_F32, 2, 32, true, true, false},
};

static const linear_problem linears[] = {
    {"linear-64", CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_ELU1, CLMGK_DTYPE_F32, 1, 64, false, false, false},
    {"linear-causal-64", CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_ELU1, CLMGK_DTYPE_F32, 1, 64, true, false, false},
    {"linear-relu-f16-128", CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_RELU, CLMGK_DTYPE_F16, 1, 128, true, false, true},
    {"linear-dpfp-32", CLMGK_VARIANT_LINEAR, CLMGK_FEATURE_DPFP, CLMGK_DTYPE_F32, 1, 32, true, true, false},
    {"mlk2-64", CLMGK_VARIANT_MLK, CLMGK_FEATURE_ELU1, CLMGK_DTYPE_F32, 2, 64, true, true, false},
    {"smlk2-favor-64", CLMGK_VARIANT_SMLK, CLMGK_FEATURE_FAVOR, CLMGK_DTYPE_BF16, 2, 64, true, true, false},
    {"lfish2-exp-64", CLMGK_VARIANT_LFISH, CLMGK_FEATURE_EXP, CLMGK_DTYPE_F32, 2, 64, true, false, false},
    {"lgfish2-64", CLMGK_VARIANT_LGFISH, CLMGK_FEATURE_ELU1, CLMGK_DTYPE_F32, 2, 64, true, true, false},
};

/* On a small GPU whose local memory is ordinary memory. */
static const problem directs[] = {
    {"softmax-direct-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"mgk2-direct-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F16, 2, 64, 64, false, false, true, CLMGK_PASS_BACKWARD, false},
    {"hard-fish2-direct-32", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_BF16, 2, 32, 32, false, false, false,
     CLMGK_PASS_FORWARD, false},
};

/* Enough heads for all units: a work-group of the lane engine has all keys of its rows. */
static const problem batches[] = {
    {"softmax-batch-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_BACKWARD,
     false},
    {"mgk2-batch-f16-8", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F16, 2, 8, 8, false, false, true, CLMGK_PASS_BACKWARD, false},
    {"smgk2-batch-32", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F32, 2, 32, 32, false, false, true, CLMGK_PASS_BACKWARD, false},
};

/* With 1, 2, 4 queries, for which engines have forms of their own. */
static const problem decoding[] = {
    {"softmax-few-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"mgk2-few-128", CLMGK_VARIANT_MGK, CLMGK_DTYPE_BF16, 2, 128, 128, false, false, true, CLMGK_PASS_FORWARD, false},
    {"smgk2-few-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, false},
    {"softmax-few-modified-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false,
     CLMGK_PASS_FORWARD, true},
    {"gaussian-few-192-128", CLMGK_VARIANT_GAUSSIAN, CLMGK_DTYPE_F32, 1, 192, 128, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"mgk4-few-128", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 4, 128, 128, false, false, true, CLMGK_PASS_FORWARD, true},
    {"hard-fish2-few-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
    {"fish2-few-64", CLMGK_VARIANT_FISH, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD, true},
    {"talking-heads8-few-64", CLMGK_VARIANT_TALKING_HEADS, CLMGK_DTYPE_F32, 8, 64, 64, false, false, false,
     CLMGK_PASS_FORWARD, false},
    {"smgk2-few-pages-64", CLMGK_VARIANT_SMGK, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
     false},
};

/* Arrays of several types; `length` queries. */
typedef struct mixed_problem {
    problem problem;
    clmgk_storage dtype_k, dtype_v, dtype_o; /* 0: as Q */
    int64_t length;
} mixed_problem;

static const mixed_problem several_types[] = {
    {{"softmax-mixed-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
      false},
     CLMGK_STORAGE_F16,
     CLMGK_STORAGE_F16,
     CLMGK_STORAGE_F32,
     4096},
    {{"mgk2-mixed-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_F32, 2, 64, 64, false, false, false, CLMGK_PASS_BACKWARD, false},
     CLMGK_STORAGE_F16,
     CLMGK_STORAGE_BF16,
     CLMGK_STORAGE_F16,
     4096},
    {{"softmax-few-mixed-128", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 128, 128, false, false, false,
      CLMGK_PASS_FORWARD, false},
     CLMGK_STORAGE_F16,
     CLMGK_STORAGE_F16,
     CLMGK_STORAGE_F32,
     1},
    {{"mgk2-few-mixed-64", CLMGK_VARIANT_MGK, CLMGK_DTYPE_BF16, 2, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
      false},
     CLMGK_STORAGE_F16,
     CLMGK_STORAGE_F32,
     CLMGK_STORAGE_F32,
     2},
    {{"softmax-append-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32, 1, 64, 64, false, false, false, CLMGK_PASS_APPEND,
      false},
     CLMGK_STORAGE_F16,
     CLMGK_STORAGE_BF16,
     CLMGK_STORAGE_F32,
     512},
};

/* The matrix engine's caches: in pages, and of types that a tile's rows are converted from. */
static const mixed_problem caches[] = {
    {{"softmax-bf16-pages-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_BF16, 1, 64, 64, false, false, false,
      CLMGK_PASS_FORWARD, false},
     CLMGK_STORAGE_AS_Q,
     CLMGK_STORAGE_AS_Q,
     CLMGK_STORAGE_AS_Q,
     4096},
    {{"softmax-f16-e4m3-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
      false},
     CLMGK_STORAGE_E4M3,
     CLMGK_STORAGE_E4M3,
     CLMGK_STORAGE_AS_Q,
     4096},
    {{"softmax-f16-pages-e4m3-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false,
      CLMGK_PASS_FORWARD, false},
     CLMGK_STORAGE_E4M3,
     CLMGK_STORAGE_E4M3,
     CLMGK_STORAGE_AS_Q,
     4096},
    {{"softmax-f16-q8_0-64", CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F16, 1, 64, 64, false, false, false, CLMGK_PASS_FORWARD,
      false},
     CLMGK_STORAGE_Q8_0,
     CLMGK_STORAGE_Q8_0,
     CLMGK_STORAGE_AS_Q,
     4096},
    {{"hard-fish2-f16-pages-int8-64", CLMGK_VARIANT_HARD_FISH, CLMGK_DTYPE_F16, 2, 64, 64, false, false, false,
      CLMGK_PASS_FORWARD, false},
     CLMGK_STORAGE_INT8,
     CLMGK_STORAGE_E5M2,
     CLMGK_STORAGE_AS_Q,
     4096},
};

static const char *const pass_names[CLMGK_PASSES] = {[CLMGK_PASS_FORWARD] = "",
                                                     [CLMGK_PASS_BACKWARD] = "backward-",
                                                     [CLMGK_PASS_STATISTICS] = "statistics-",
                                                     [CLMGK_PASS_COMBINE] = "",
                                                     [CLMGK_PASS_APPEND] = ""};

static mgk_device_facts facts_of(clmgk_device_class device_class, const char *vendor)
{
    mgk_device_facts facts = {.runtime = MGK_RUNTIME_OTHER, .usable = true};
    (void)snprintf(facts.info.vendor, sizeof(facts.info.vendor), "%s", vendor);
    facts.info.device_class = device_class;
    facts.info.compute_units = 64;
    facts.info.native_float_lanes = device_class == CLMGK_DEVICE_CPU ? 16 : 1;
    facts.info.global_memory_bytes = UINT64_C(16) << 30;
    facts.info.max_allocation_bytes = UINT64_C(4) << 30;
    facts.info.local_memory_bytes = UINT64_C(48) << 10;
    facts.info.max_work_group = 1024;
    facts.work_item_limit = 1024;
    if (mgk_gpu_of(&facts) == MGK_GPU_NVIDIA) { /* an H200: plans depend on its waves, and its compiler has options */
        facts.runtime = MGK_RUNTIME_NVIDIA;
        facts.info.compute_units = 132;
        (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "sm_90");
    }
    return facts;
}

/* NVIDIA's, whose compiler takes PTX in assembly, with its matrix units. */
static mgk_device_facts facts_with_ptx(int unit)
{
    enum { WARP = 32 };
    mgk_device_facts facts = facts_of(CLMGK_DEVICE_GPU, "NVIDIA Corporation");
    facts.sub_group = (mgk_sub_group){.size = WARP, .shuffle = SHUFFLE_PTX};
    facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = unit};
    return facts;
}

/* wgmma's, of compute capability 9.0; `cuda`: with the local memory that a launch in CUDA may have. */
static mgk_device_facts hopper_facts(bool cuda)
{
    enum { MOST_LOCAL = 227 << 10 };
    mgk_device_facts facts = facts_with_ptx(MATRIX_WGMMA);
    if (cuda) {
        (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "sm_90");
        facts.dynamic_local = MOST_LOCAL;
    }
    return facts;
}

static mgk_device_facts small_facts(void)
{
    mgk_device_facts facts = facts_of(CLMGK_DEVICE_GPU, "");
    facts.info.compute_units = 8;
    facts.info.local_memory_bytes = UINT64_C(32) << 10;
    facts.info.max_work_group = facts.work_item_limit = 64;
    facts.local_is_global = true;
    return facts;
}

/* All gradients that the problem has, but those of bias and sinks without modifiers. */
static uint32_t gradients_of(const problem *p)
{
    const uint32_t traits = clmgk_variant_traits(p->variant);
    const bool mixed = (traits & CLMGK_TRAIT_ADMIXTURE) != 0;
    uint32_t set = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    set |= mixed ? CLMGK_GRADIENT_MIX : CLMGK_GRADIENT_VARIANCE;
    if (!mixed && p->variant != CLMGK_VARIANT_SOFTMAX)
        set |= CLMGK_GRADIENT_PRIOR;
    if (p->variant == CLMGK_VARIANT_SMGK)
        set |= CLMGK_GRADIENT_SHIFT;
    if ((traits & CLMGK_TRAIT_GENERALISED) != 0)
        set |= CLMGK_GRADIENT_MIX_WEIGHT | CLMGK_GRADIENT_MIX_OFFSET;
    if (p->variant == CLMGK_VARIANT_HARD_GFISH)
        set |= CLMGK_GRADIENT_MIX_HIDDEN_OFFSET;
    if ((traits & CLMGK_TRAIT_NOISE) != 0)
        set |= CLMGK_GRADIENT_NOISE;
    if (strstr(p->name, NAME_OF_AFTER) != NULL)
        set |= CLMGK_GRADIENT_MIX_AFTER;
    if (strstr(p->name, NAME_OF_TEXTS) != NULL)
        set |= CLMGK_GRADIENT_NUMBERS | CLMGK_GRADIENT_CAPTURE_0;
    if (p->modified)
        set |= CLMGK_GRADIENT_BIAS | CLMGK_GRADIENT_SINKS;
    return set;
}

/* A score and a mask, which read a number and a captured array of each type. */
static void set_texts(clmgk_attention_desc *desc)
{
    static const char *const names[] = {"t", "u", "v", "w"};
    desc->score_mod = "x * s + t[j] + u[j] + v[j]";
    desc->mask_mod = "w[i, j] > 0";
    desc->numbers[0] = "x";
    for (int type = 0; type <= CLMGK_CAPTURE_I32; ++type) {
        const bool ints = type == CLMGK_CAPTURE_I32;
        desc->captures[type] = (clmgk_capture){.name = names[type],
                                               .type = (clmgk_capture_type)type,
                                               .axes = ints ? 2 : 1,
                                               .shape = {desc->length_k, ints ? desc->length_k : 0}};
    }
}

/* What the pass, the arrays and the modifiers need in the descriptor. */
static void ask(const problem *p, clmgk_attention_desc *desc)
{
    const bool mixed = (clmgk_variant_traits(p->variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
    desc->prior_shape = p->arrays && !mixed ? CLMGK_PRIOR_HMS : CLMGK_PRIOR_UNIFORM;
    desc->variance_shape = p->arrays && !mixed ? CLMGK_VARIANCE_HM : CLMGK_VARIANCE_NUMBER;
    desc->use_mix_weight = desc->use_mix_offset = p->arrays && mixed;
    if (p->variant == CLMGK_VARIANT_HARD_GFISH) /* it stands for hidden layers */
        desc->mix_hidden = 8, desc->use_mix_hidden_offset = 1;
    desc->mix_after_heads = strstr(p->name, NAME_OF_AFTER) != NULL ? desc->heads : 0;
    desc->gradients = p->pass == CLMGK_PASS_BACKWARD ? gradients_of(p) : 0;
    desc->statistics = p->pass == CLMGK_PASS_STATISTICS ? CLMGK_STATISTIC_ALL : 0;
    desc->combine = p->pass == CLMGK_PASS_COMBINE;
    desc->append = p->pass == CLMGK_PASS_APPEND ? desc->length : 0;
    desc->append_rotary = p->pass == CLMGK_PASS_APPEND ? CLMGK_ROTARY_HALVES : CLMGK_ROTARY_NONE;
    desc->sequences = p->modified ? 4 : 0;
    desc->use_offsets_k = p->modified && desc->length != desc->length_k;
    desc->use_bias = desc->use_alibi = desc->use_sinks = desc->use_lse_low = p->modified;
    desc->dropout = p->modified ? 0.1 : 0.0;
    desc->softcap = p->modified && (mixed || p->variant == CLMGK_VARIANT_SOFTMAX) ? 30.0 : 0.0;
    if (strstr(p->name, NAME_OF_TEXTS) != NULL) {
        set_texts(desc);
        desc->use_positions = 1;
    }
    if (strstr(p->name, NAME_OF_PAGES) != NULL) {
        enum { PAGE = 16 };
        desc->page_size = PAGE;
        desc->pages = desc->table_pages = desc->length_k / PAGE;
    }
}

#define NAME_OF_UNIT(unit, name, ...) [unit] = "matrix-" name,
static const char *const direct_units[MATRIX_UNITS] = {MATRIX_DIRECT_UNITS(NAME_OF_UNIT)};

/* The engine, with the maker of the GPU, or its matrix unit: defaults and options depend on it. */
static const char *engine_of(clmgk_engine engine, const mgk_device_facts *facts)
{
    if (direct_units[facts->matrix_unit.unit] != NULL)
        return direct_units[facts->matrix_unit.unit];
    if (facts->matrix_unit.unit >= MATRIX_AMX)
        return "lane-amx";
    switch (mgk_gpu_of(facts)) {
    case MGK_GPU_NVIDIA:
        return engine == CLMGK_ENGINE_MATRIX ? "matrix-nvidia" : "simt-nvidia";
    case MGK_GPU_INTEL:
        return "simt-intel";
    default:
        return clmgk_engine_name(engine);
    }
}

/* For CUDA only kernels that OpenCL has not, too, or that have other parameters. */
static int print_given(const char *name, clmgk_attention_desc desc, clmgk_pass pass, clmgk_engine engine,
                       const mgk_device_facts *facts, const char *parameters)
{
    clmgk_error error = {0};
    const mgk_pass_request request = {.desc = &desc,
                                      .limits = &desc,
                                      .facts = facts,
                                      .engine = engine,
                                      .parameters = {.text = parameters, .origin = MGK_ORIGIN_CALLER},
                                      .pass = pass};
    const mgk_mod_texts texts = {.code = "", .gradient_code = "", .reads = 1};
    mgk_pass_plan plan = {.mods = &texts};
    clmgk_status status = clmgk_attention_validate(&desc, &desc, &error);
    if (status == CLMGK_OK)
        status = mgk_family_plan(mgk_family_of(desc.variant), &request, &plan, &error);
    if (status != CLMGK_OK)
        (void)fprintf(stderr, "%s: %s\n", name, error.message);
    for (size_t i = 0; i < plan.steps.count; ++i) {
        const mgk_step *const step = &plan.steps.step[i];
        const bool differs = facts->dynamic_local == 0 || step->dynamic_local > 0 || parameters != NULL;
        if (status == CLMGK_OK && differs &&
            (i == 0 || strcmp(step->file, step[-1].file) != 0 ||
             strcmp(step->options.data, step[-1].options.data) != 0))
            (void)printf("%s %s%s %s %s\n", engine_of(engine, facts), pass_names[pass], name, step->file,
                         step->options.data);
    }
    mgk_steps_clear(&plan.steps, NULL);
    return status == CLMGK_OK ? 0 : 1;
}

static int print_plan(const char *name, clmgk_attention_desc desc, clmgk_pass pass, clmgk_engine engine,
                      const mgk_device_facts *facts)
{
    return print_given(name, desc, pass, engine, facts, NULL);
}

static bool has_scales(clmgk_storage storage)
{
    return storage >= CLMGK_STORAGE_E4M3 && storage <= CLMGK_STORAGE_INT8;
}

static clmgk_attention_desc desc_of(const mixed_problem *x, int64_t batch)
{
    const problem *const p = &x->problem;
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = p->variant;
    desc.dtype = p->dtype;
    desc.dtype_k = x->dtype_k;
    desc.dtype_v = x->dtype_v;
    desc.dtype_o = x->dtype_o;
    desc.use_scale_k = has_scales(x->dtype_k);
    desc.use_scale_v = has_scales(x->dtype_v);
    if (strstr(p->name, "-batch-f16-") != NULL)
        desc.dtype_grad_q = desc.dtype_grad_k = desc.dtype_grad_v = CLMGK_STORAGE_F32;
    desc.components = p->components;
    desc.head_size = p->head_size;
    desc.value_size = p->value_size;
    desc.batch = batch;
    desc.heads = 8;
    desc.length = x->length;
    desc.length_k = 4096;
    desc.score = p->dot ? CLMGK_SCORE_DOT : CLMGK_SCORE_DEFAULT;
    desc.estep = p->hard ? CLMGK_ESTEP_HARD : CLMGK_ESTEP_SOFT;
    ask(p, &desc);
    return desc;
}

static int print_mixed(const mixed_problem *x, int64_t batch, clmgk_engine engine, const mgk_device_facts *facts)
{
    return print_plan(x->problem.name, desc_of(x, batch), x->problem.pass, engine, facts);
}

static int print(const problem *p, int64_t batch, int64_t length, clmgk_engine engine, const mgk_device_facts *facts)
{
    const mixed_problem x = {.problem = *p, .length = length};
    return print_mixed(&x, batch, engine, facts);
}

enum { MATRIX_BATCH = 8 }; /* a block of rows has all keys */

static clmgk_attention_desc matrix_desc(const problem *p)
{
    enum { LENGTH = 4096 };
    const mixed_problem x = {.problem = *p, .length = LENGTH};
    clmgk_attention_desc desc = desc_of(&x, MATRIX_BATCH);
    desc.precision = precision_of(p->name);
    if (p->pass == CLMGK_PASS_BACKWARD)
        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V |
                         (p->variant == CLMGK_VARIANT_SMGK ? CLMGK_GRADIENT_SHIFT : 0) |
                         ((clmgk_variant_traits(p->variant) & CLMGK_TRAIT_ADMIXTURE) != 0 ? CLMGK_GRADIENT_MIX : 0);
    return desc;
}

/* Configurations of wgmma have the others' names with this behind, and then that of CUDA. */
#define WGMMA_SUFFIX "-wgmma"
#define CUDA_SUFFIX  "-cuda"
#define TURNS_SUFFIX "-turns" /* two groups of warps take turns; some forward passes */
#define TURNS        "unit=2,warps=8"
enum { NAME_SIZE = 64 };

/* Not backward passes of mixed heads with more sums than registers hold. */
static bool takes_wgmma(const problem *p)
{
    enum { MOST_COLUMNS = 256 };
    return (clmgk_variant_traits(p->variant) & CLMGK_TRAIT_ADMIXTURE) == 0 || p->pass == CLMGK_PASS_FORWARD ||
           p->components * p->head_size <= MOST_COLUMNS;
}

static int print_turns(void)
{
    static const char *const names[] = {"softmax-bf16-64", "softmax-bf16-128", "mgk2-bf16-128"};
    const mgk_device_facts hopper = hopper_facts(true);
    int failed = 0;
    for (size_t i = 0; i < MGK_COUNT(matrices) * MGK_COUNT(names); ++i) {
        const problem *const p = &matrices[i % MGK_COUNT(matrices)];
        char name[NAME_SIZE];
        if (p->pass != CLMGK_PASS_FORWARD || strcmp(p->name, names[i / MGK_COUNT(matrices)]) != 0)
            continue;
        (void)snprintf(name, sizeof(name), "%s" WGMMA_SUFFIX CUDA_SUFFIX TURNS_SUFFIX, p->name);
        failed |= print_given(name, matrix_desc(p), p->pass, CLMGK_ENGINE_MATRIX, &hopper, TURNS);
    }
    return failed;
}

static int print_matrices(const mgk_device_facts *nvidia, const mgk_device_facts *gpu)
{
    int failed = 0;
    char options[MGK_UNIT_OPTIONS];
    const char *probe = mgk_matrix_unit_probe(nvidia, nvidia->matrix_unit.unit, options, sizeof(options));
    (void)printf("matrix-nvidia unit-probe %s %s\n", probe, options);
    probe = mgk_matrix_unit_probe(nvidia, MATRIX_WGMMA, options, sizeof(options));
    (void)printf("matrix-nvidia group-probe %s %s\n", probe, options);
    for (size_t i = 0; i < MGK_COUNT(matrices); ++i) {
        const problem *const p = &matrices[i];
        failed |= print_plan(p->name, matrix_desc(p), p->pass, CLMGK_ENGINE_MATRIX, gpu);
        failed |= print_plan(p->name, matrix_desc(p), p->pass, CLMGK_ENGINE_MATRIX, nvidia);
    }
    for (size_t i = 0; i < 2 * MGK_COUNT(matrices); ++i) {
        const bool cuda = i >= MGK_COUNT(matrices);
        const mgk_device_facts hopper = hopper_facts(cuda);
        const problem *const p = &matrices[i % MGK_COUNT(matrices)];
        char name[NAME_SIZE];
        if (!takes_wgmma(p))
            continue;
        (void)snprintf(name, sizeof(name), "%s" WGMMA_SUFFIX "%s", p->name, cuda ? CUDA_SUFFIX : "");
        failed |= print_plan(name, matrix_desc(p), p->pass, CLMGK_ENGINE_MATRIX, &hopper);
    }
    return failed | print_turns();
}

static int print_caches(const mgk_device_facts *nvidia, const mgk_device_facts *hopper, const mgk_device_facts *gpu)
{
    int failed = 0;
    for (size_t i = 0; i < MGK_COUNT(caches); ++i) {
        char name[NAME_SIZE];
        failed |= print_mixed(&caches[i], MATRIX_BATCH, CLMGK_ENGINE_MATRIX, gpu);
        failed |= print_mixed(&caches[i], MATRIX_BATCH, CLMGK_ENGINE_MATRIX, nvidia);
        (void)snprintf(name, sizeof(name), "%s" WGMMA_SUFFIX, caches[i].problem.name);
        failed |= print_plan(name, desc_of(&caches[i], MATRIX_BATCH), CLMGK_PASS_FORWARD, CLMGK_ENGINE_MATRIX, hopper);
    }
    return failed;
}

/* True if both passes have a block, as a plan needs. */
static bool fits_direct(const clmgk_attention_desc *given, const mgk_device_facts *facts)
{
    clmgk_attention_desc desc = *given;
    mgk_pass_request request = {.desc = &desc, .limits = &desc, .facts = facts, .engine = CLMGK_ENGINE_MATRIX};
    clmgk_status status = clmgk_attention_validate(&desc, &desc, NULL);
    for (clmgk_pass pass = CLMGK_PASS_FORWARD; status == CLMGK_OK && pass <= CLMGK_PASS_BACKWARD; ++pass) {
        mgk_pass_plan plan = {.mods = NULL};
        request.pass = pass;
        if (pass == CLMGK_PASS_FORWARD || desc.gradients != 0)
            status = mgk_family_plan(mgk_family_of(desc.variant), &request, &plan, NULL);
        mgk_steps_clear(&plan.steps, NULL);
    }
    return status == CLMGK_OK;
}

static void print_probe(const mgk_device_facts *facts)
{
    char options[MGK_UNIT_OPTIONS];
    const int unit = facts->matrix_unit.unit;
    const char *const probe = mgk_matrix_unit_probe(facts, unit, options, sizeof(options));
    (void)printf("%s probe %s %s\n", direct_units[unit], probe, options);
}

/* Of AMD's units, with the blocks that plans have; problems that registers do not hold have none. */
static int print_direct(int unit)
{
    enum { LOCAL_BYTES = 65536 };
    mgk_device_facts facts = facts_of(CLMGK_DEVICE_GPU, "Advanced Micro Devices, Inc.");
    int failed = 0;
    facts.info.local_memory_bytes = LOCAL_BYTES;
    facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = unit};
    print_probe(&facts);
    for (size_t i = 0; i < MGK_COUNT(matrices); ++i) {
        const problem *const p = &matrices[i];
        const clmgk_attention_desc desc = matrix_desc(p);
        if (p->dtype != CLMGK_DTYPE_F32 && mgk_engine_rank(&mgk_engine_matrix, &facts, &desc).points > MGK_RANK_TESTS &&
            fits_direct(&desc, &facts))
            failed |= print_plan(p->name, desc, p->pass, CLMGK_ENGINE_MATRIX, &facts);
    }
    return failed | offline_print_direct(direct_units[unit], &facts);
}

/* Of Intel's units the probes, whose types a compiler can check (tests/offline/dpas.h). */
static void print_intel_probe(int unit, int sub_group)
{
    mgk_device_facts facts = facts_of(CLMGK_DEVICE_GPU, "Intel(R) Corporation");
    facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = unit};
    facts.least_sub_group = sub_group;
    print_probe(&facts);
}

static int print_directs(void)
{
    const int failed = print_direct(MATRIX_MFMA) | print_direct(MATRIX_WMMA) | print_direct(MATRIX_WMMA_12);
    print_intel_probe(MATRIX_DPAS, 16);
    print_intel_probe(MATRIX_DPAS_8, 8);
    return failed;
}

static clmgk_attention_desc linear_desc(const linear_problem *p, clmgk_pass pass)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    const uint32_t traits = clmgk_variant_traits(p->variant);
    desc.variant = p->variant;
    desc.dtype = p->dtype;
    desc.components = p->components;
    desc.head_size = desc.value_size = p->size;
    desc.heads = 8;
    desc.length = desc.length_k = 4096;
    desc.feature = p->feature;
    desc.features = p->feature == CLMGK_FEATURE_FAVOR ? 128 : 0;
    desc.causal = p->causal;
    desc.sequences = p->packed ? 4 : 0;
    desc.use_state = p->arrays;
    desc.prior_shape = p->arrays && (traits & CLMGK_TRAIT_PRIOR) != 0 ? CLMGK_PRIOR_HMS : CLMGK_PRIOR_UNIFORM;
    desc.use_mix_weight = p->arrays && (traits & CLMGK_TRAIT_GENERALISED) != 0;
    desc.precision = precision_of(p->name);
    for (unsigned bit = 0; pass == CLMGK_PASS_BACKWARD && (CLMGK_GRADIENT_ALL >> bit) != 0; ++bit) {
        clmgk_attention_desc wanted = desc; /* all gradients that the problem has */
        wanted.gradients = 1U << bit;
        if (clmgk_attention_validate(&wanted, &wanted, NULL) == CLMGK_OK)
            desc.gradients |= 1U << bit;
    }
    return desc;
}

/* Whether a configuration of the pass has the name. */
static bool has_name(const char *own, clmgk_pass pass, const char *name)
{
    const size_t length = strlen(pass_names[pass]);
    return strncmp(name, pass_names[pass], length) == 0 && strcmp(name + length, own) == 0;
}

/* The steps of a problem like that of the configuration of this name; statistics-...: of a forward configuration's
 * statistics. */
static int print_steps(const char *full_name, int count, char **texts)
{
    const char *const suffix = strstr(full_name, WGMMA_SUFFIX);
    const bool cuda = suffix != NULL && strstr(suffix, CUDA_SUFFIX) != NULL;
    const mgk_device_facts facts = suffix != NULL ? hopper_facts(cuda) : facts_with_ptx(MATRIX_MMA);
    char name[NAME_SIZE];
    (void)snprintf(name, sizeof(name), "%.*s", suffix != NULL ? (int)(suffix - full_name) : NAME_SIZE - 1, full_name);
    for (size_t i = 0; i < MGK_COUNT(matrices); ++i) {
        problem p = matrices[i];
        if (p.pass == CLMGK_PASS_FORWARD && has_name(p.name, CLMGK_PASS_STATISTICS, name))
            p.pass = CLMGK_PASS_STATISTICS;
        if (has_name(p.name, p.pass, name))
            return offline_print_steps(matrix_desc(&p), p.pass, &facts, count, texts);
    }
    for (size_t i = 0; i < MGK_COUNT(caches); ++i)
        if (has_name(caches[i].problem.name, CLMGK_PASS_FORWARD, name))
            return offline_print_steps(desc_of(&caches[i], MATRIX_BATCH), CLMGK_PASS_FORWARD, &facts, count, texts);
    for (size_t i = 0; i < MGK_COUNT(rounded_linears); ++i)
        for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass <= CLMGK_PASS_BACKWARD; ++pass)
            if (has_name(rounded_linears[i].name, pass, name))
                return offline_print_steps(linear_desc(&rounded_linears[i], pass), pass, &facts, count, texts);
    (void)fprintf(stderr, "%s: no configuration of the matrix engine\n", full_name);
    return 1;
}

/* Swin's windows: a bias that all of them share. */
static int print_windows(const mgk_device_facts *facts)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.batch = 64;
    desc.heads = 3;
    desc.length = 49;
    desc.head_size = 32;
    desc.use_bias = 1;
    desc.bias_batch = 1;
    int failed = print_plan("softmax-windows-32", desc, CLMGK_PASS_FORWARD, CLMGK_ENGINE_LANE, facts);
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    failed |= print_plan("softmax-windows-32", desc, CLMGK_PASS_BACKWARD, CLMGK_ENGINE_LANE, facts);
    desc.variant = CLMGK_VARIANT_MGK;
    return failed | print_plan("mgk2-windows-32", desc, CLMGK_PASS_FORWARD, CLMGK_ENGINE_LANE, facts);
}

/* Of the lane engine on PoCL and a CPU with AMX, also for f16: those of the matrix engine's problems that it serves,
 * and one with several types. */
static int print_tiles(void)
{
    enum { LEAST = 32 };
    static const char *const probe_names[] = {"tile-probe", "tile-probe-f16"};
    int failed = 0;
    char options[MGK_UNIT_OPTIONS];
    mgk_device_facts facts = facts_of(CLMGK_DEVICE_CPU, "GenuineIntel");
    facts.runtime = MGK_RUNTIME_POCL;
    facts.simd_vectors = facts.x86_avx512dq = facts.x86_two_units = facts.x86_amx = facts.x86_amx_f16 = true;
    facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = MATRIX_AMX_F16};
    for (int unit = MATRIX_AMX; unit <= MATRIX_AMX_F16; ++unit) {
        const char *const probe = mgk_matrix_unit_probe(&facts, unit, options, sizeof(options));
        (void)printf("lane-amx %s %s %s\n", probe_names[unit - MATRIX_AMX], probe, options);
    }
    for (size_t i = 0; i < MGK_COUNT(matrices); ++i) {
        const problem *const p = &matrices[i];
        if (p->dtype != CLMGK_DTYPE_F32 && p->head_size >= LEAST && p->value_size >= LEAST)
            failed |= print_plan(p->name, matrix_desc(p), p->pass, CLMGK_ENGINE_LANE, &facts);
    }
    clmgk_attention_desc desc = matrix_desc(&matrices[0]);
    desc.variant = CLMGK_VARIANT_MGK;
    desc.components = 2;
    desc.dtype = CLMGK_DTYPE_F32;
    desc.dtype_k = CLMGK_STORAGE_F16;
    desc.dtype_v = CLMGK_STORAGE_BF16;
    desc.precision = CLMGK_PRECISION_BF16;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass <= CLMGK_PASS_BACKWARD; ++pass)
        failed |= print_plan("mgk2-types-64", desc, pass, CLMGK_ENGINE_LANE, &facts);
    return failed;
}

static int print_linear(const linear_problem *p, clmgk_pass pass, clmgk_engine engine, const mgk_device_facts *facts)
{
    return print_plan(p->name, linear_desc(p, pass), pass, engine, facts);
}

/* The kernels of a layer's rows: their sizes are not compiled in. */
static void print_rows(clmgk_engine engine, clmgk_dtype dtype, const mgk_device_facts *facts)
{
    static const mgk_norm_rows norm = {.rows = 4096, .length = 1024, .width = 512};
    static const mgk_heads_rows heads = {.rows = 4096, .length = 1024};
    mgk_steps steps = {.count = 0};
    const mgk_rows_list list = {&steps, facts, dtype};
    mgk_rows_norm(&list, &norm);
    mgk_rows_heads_forward(&list, &heads);
    for (size_t i = 0; i < steps.count; ++i)
        (void)printf("%s layer-%s %s %s\n", engine_of(engine, facts), clmgk_dtype_name(dtype), steps.step[i].file,
                     steps.step[i].options.data);
    mgk_steps_clear(&steps, NULL);
}

/* The library's own products. */
static void print_product(clmgk_engine engine, clmgk_dtype dtype, const mgk_device_facts *facts)
{
    clmgk_context context = {.facts = *facts};
    mgk_steps steps = {.count = 0};
    clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
    desc.dtype = dtype;
    desc.m = 1;
    desc.n = desc.k = 512;
    desc.transpose_b = 1;
    clmgk_gemm_plan plan = {.context = &context, .steps = &steps};
    if (mgk_gemm_resolve(&desc, &plan.desc, NULL) == CLMGK_OK && mgk_gemm_own.plan(&plan, "", NULL) == CLMGK_OK)
        (void)printf("%s product-%s %s %s\n", engine_of(engine, facts), clmgk_dtype_name(dtype), steps.step[0].file,
                     steps.step[0].options.data);
    mgk_steps_clear(&steps, NULL);
}

int main(int count, char **arguments)
{
    if (count >= 3 && strcmp(arguments[1], "steps") == 0)
        return print_steps(arguments[2], count - 3, arguments + 3);
    const mgk_device_facts with_ptx = facts_with_ptx(MATRIX_MMA), hopper = facts_with_ptx(MATRIX_WGMMA);
    if (count >= 2 && strcmp(arguments[1], "product") == 0)
        return offline_print_product(&hopper, count - 2, arguments + 2);
    const mgk_device_facts gpu = facts_of(CLMGK_DEVICE_GPU, "Advanced Micro Devices, Inc.");
    const mgk_device_facts nvidia = facts_of(CLMGK_DEVICE_GPU, "NVIDIA Corporation");
    const mgk_device_facts intel = facts_of(CLMGK_DEVICE_GPU, "Intel(R) Corporation");
    const mgk_device_facts cpu = facts_of(CLMGK_DEVICE_CPU, ""), small = small_facts();
    int failed = 0;
    for (size_t i = 0; i < MGK_COUNT(problems); ++i) {
        failed |= print(&problems[i], 1, 4096, CLMGK_ENGINE_SIMT, &gpu);
        failed |= print(&problems[i], 1, 4096, CLMGK_ENGINE_SIMT, &nvidia);
        failed |= print(&problems[i], 1, 4096, CLMGK_ENGINE_SIMT, &intel);
        failed |= print(&problems[i], 1, 4096, CLMGK_ENGINE_LANE, &cpu);
    }
    for (size_t i = 0; i < MGK_COUNT(directs); ++i)
        failed |= print(&directs[i], 1, 4096, CLMGK_ENGINE_SIMT, &small);
    for (size_t i = 0; i < MGK_COUNT(batches); ++i)
        failed |= print(&batches[i], 64, 4096, CLMGK_ENGINE_LANE, &cpu);
    failed |= print_windows(&cpu);
    for (size_t i = 0; i < MGK_COUNT(decoding); ++i) {
        failed |= print(&decoding[i], 1, INT64_C(1) << i % 3, CLMGK_ENGINE_SIMT, &gpu);
        failed |= print(&decoding[i], 1, INT64_C(1) << i % 3, CLMGK_ENGINE_SIMT, &nvidia);
        failed |= print(&decoding[i], 1, INT64_C(1) << i % 3, CLMGK_ENGINE_SIMT, &intel);
        failed |= print(&decoding[i], 1, INT64_C(1) << i % 3, CLMGK_ENGINE_LANE, &cpu);
    }
    for (size_t i = 0; i < MGK_COUNT(several_types); ++i) {
        failed |= print_mixed(&several_types[i], 1, CLMGK_ENGINE_SIMT, &gpu);
        failed |= print_mixed(&several_types[i], 1, CLMGK_ENGINE_SIMT, &nvidia);
        failed |= print_mixed(&several_types[i], 1, CLMGK_ENGINE_SIMT, &intel);
        failed |= print_mixed(&several_types[i], 1, CLMGK_ENGINE_LANE, &cpu);
    }
    for (size_t i = 0; i < MGK_COUNT(linears); ++i) {
        for (int pass = CLMGK_PASS_FORWARD; pass <= (i % 2 == 1 ? CLMGK_PASS_BACKWARD : CLMGK_PASS_FORWARD); ++pass) {
            if (linears[i].size <= 64) { /* larger tiles do not fit local memory */
                failed |= print_linear(&linears[i], (clmgk_pass)pass, CLMGK_ENGINE_SIMT, &gpu);
                failed |= print_linear(&linears[i], (clmgk_pass)pass, CLMGK_ENGINE_SIMT, &nvidia);
                failed |= print_linear(&linears[i], (clmgk_pass)pass, CLMGK_ENGINE_SIMT, &intel);
            }
            failed |= print_linear(&linears[i], (clmgk_pass)pass, CLMGK_ENGINE_LANE, &cpu);
        }
    }
    for (size_t i = 0; i < MGK_COUNT(rounded_linears); ++i)
        for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass <= CLMGK_PASS_BACKWARD; ++pass)
            failed |= print_linear(&rounded_linears[i], pass, CLMGK_ENGINE_MATRIX, &with_ptx);
    failed |= print_matrices(&with_ptx, &gpu);
    failed |= print_caches(&with_ptx, &hopper, &gpu);
    failed |= print_directs();
    failed |= offline_print_fragments(&gpu, &with_ptx, &hopper);
    failed |= print_tiles();
    for (int dtype = CLMGK_DTYPE_F32; dtype <= CLMGK_DTYPE_BF16; ++dtype) {
        print_rows(CLMGK_ENGINE_SIMT, (clmgk_dtype)dtype, &gpu);
        print_rows(CLMGK_ENGINE_SIMT, (clmgk_dtype)dtype, &nvidia);
        print_rows(CLMGK_ENGINE_SIMT, (clmgk_dtype)dtype, &intel);
        print_rows(CLMGK_ENGINE_LANE, (clmgk_dtype)dtype, &cpu);
        print_product(CLMGK_ENGINE_SIMT, (clmgk_dtype)dtype, &gpu);
        print_product(CLMGK_ENGINE_SIMT, (clmgk_dtype)dtype, &nvidia);
        print_product(CLMGK_ENGINE_SIMT, (clmgk_dtype)dtype, &intel);
        print_product(CLMGK_ENGINE_LANE, (clmgk_dtype)dtype, &cpu);
    }
    return failed;
}
