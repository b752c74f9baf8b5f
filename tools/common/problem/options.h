/* SPDX-License-Identifier: Apache-2.0 */
/* Options that describe a problem, shared by programs: their lines of --help, and their places in a program's table. */
#ifndef TOOL_PROBLEM_OPTIONS_H
#define TOOL_PROBLEM_OPTIONS_H

#include "tool.h"

#define TOOL_FILES CLMGK_ARRAY_PARTS_O /* arrays before it may have an option */

/* X(array, option, argument, help): A is a file or numbers, F a file. */
#define TOOL_INPUT_LIST(X)                                                                                             \
    X(Q, "q", "F", "queries [B,H,N,D]; mixed heads: [B,M,N,D] (required)")                                             \
    X(K, "k", "F",                                                                                                     \
      "keys [B,G,S,D] (one component) or [B,G,M,S,D], G divides H; mixed heads:\n"                                     \
      "[B,M,S,D] (required)")                                                                                          \
    X(V, "v", "F", "values [B,G,S,E]")                                                                                 \
    X(PRIOR, "prior", "A", "[M], [H,M] or [H,M,S]: gaussian, mgk, smgk, mlk, smlk; default 1/M")                       \
    X(VARIANCE, "variance", "A", "sigma^2: one number, [M] or [H,M]: softmax, gaussian, mgk, smgk; default sqrt(D)")   \
    X(SHIFT, "shift", "F", "b [H,M,D]: smgk, smlk, required; its second axis is M")                                    \
    X(LENGTHS, "lengths", "F", "key lengths: integers [B] from 0 to S; or a list, 7,3; with --offsets [T]")            \
    X(LENGTHS_Q, "lengths-q", "F", "query lengths: integers [B] from 0 to N; or a list")                               \
    X(OFFSETS, "offsets", "F",                                                                                         \
      "packed sequences: integers [T+1], from 0 to N, ascending; B is 1, and the axes N\n"                             \
      "and S hold T sequences back to back; with --lengths, --k and --v are caches, T in the\n"                        \
      "place of B, of which so many keys are in use")                                                                  \
    X(OFFSETS_K, "offsets-k", "F", "offsets of the keys, from 0 to S; default: --offsets")                             \
    X(POSITIONS, "positions", "F",                                                                                     \
      "positions of the queries: integers [B,N], 0 or more, in any order, for masks, windows,\n"                       \
      "ALiBi, texts, dropout and noise in the place of indices; needs --positions-k")                                  \
    X(POSITIONS_K, "positions-k", "F", "positions of the keys: integers [B,S]; needs --positions")                     \
    X(PAGE_TABLE, "page-table", "F",                                                                                   \
      "pages of each batch, integers [B,C]: --k and --v are then pools of pages of K keys,\n"                          \
      "[P,G,K,D] (or [P,G,M,K,D]; mixed heads: [P,M,K,D]) and [P,G,K,E]; with --offsets [T,C]")                        \
    X(PAGE_OFFSETS, "page-offsets", "F",                                                                               \
      "where the pages of each batch begin in a compressed page table [C]: integers [B+1]")                            \
    X(LAST_PAGE, "last-page", "F", "with --page-offsets: keys in use of each batch's last page, integers [B]")         \
    X(SCALE_K, "scale-k", "F",                                                                                         \
      "scales of K's rows, with --dtype-k e4m3, e5m2 or int8: [B,G,S] or [B,G,M,S]; mixed heads:\n"                    \
      "[B,M,S]; the numbers of --k are then rounded as they are, and multiplied afterwards")                           \
    X(SCALE_V, "scale-v", "F", "scales of V's rows, likewise [B,G,S]")                                                 \
    X(BIAS, "bias", "F",                                                                                               \
      "added to the scaled scores: [B,H,N,S]; any axis may be 1, the first any divisor of\n"                           \
      "B; -inf hides a key")                                                                                           \
    X(SLOPES, "alibi", "A", "slopes [H]: adds -slope |j - d(i)|, d(i) the diagonal")                                   \
    X(SINKS, "sinks", "A", "[H]: adds a logit without a key to every row")                                             \
    X(MIX, "mix", "A",                                                                                                 \
      "p [H,M], in a list row by row: fish, hard-fish, gfish, hard-gfish and their linear forms,\n"                    \
      "talking-heads (H = M); p [M]: mish, hard-mish and their linear forms; required with mixed heads")               \
    X(MIX_WEIGHT, "mix-weight", "A",                                                                                   \
      "w [H,M]: gfish, hard-gfish, lgfish, lhard-gfish; default 1. gfish, hard-gfish:\n"                               \
      "w [H,U] with p [U,M] makes a hidden layer of U units")                                                          \
    X(MIX_OFFSET, "mix-offset", "A", "c [H]: gfish, hard-gfish; default 0")                                            \
    X(MIX_HIDDEN_OFFSET, "mix-hidden-offset", "A", "b [U] of the hidden layer; needs --mix-weight; default 0")         \
    X(MIX_AFTER, "mix-after", "F",                                                                                     \
      "m [H,A]: mixes the weights of A heads after their softmax, in all variants with mixed\n"                        \
      "heads but the linear ones; p, w, c, L, sinks, slopes and the bias then have A heads")                           \
    X(NOISE, "noise", "A", "sigma [M]: fish, mish, gfish, lfish, lmish, lgfish, required")                             \
    X(PROJECTION, "projection", "F", "[R,D]: favor, required")                                                         \
    X(MASK_BLOCKS, "mask-blocks", "F",                                                                                 \
      "classes of blocks of pairs: integers [B,H,m,n], B and H may be 1, for m blocks of\n"                            \
      "queries and n of keys: 0 hidden, 2 visible, others as --mask-mod says; without it visible")

/* Arrays of a call's results and gradients, for programs that compute them. */
#define TOOL_OUTPUT_LIST(X)                                                                                            \
    X(GRAD_O, "grad-out", "F", "dO [B,H,N,E]: runs the backward pass too")                                             \
    X(GRAD_LSE, "grad-lse", "F", "dL [B,H,N]; default 0")                                                              \
    X(O, "out", "F", "writes O [B,H,N,E]")                                                                             \
    X(LSE, "lse", "F", "writes L [B,H,N], the natural log-sum-exp; -inf for a row without keys")                       \
    X(GRAD_Q, "dq", "F", "writes dQ; every gradient has the shape of its array")                                       \
    X(GRAD_K, "dk", "F", "writes dK")                                                                                  \
    X(GRAD_V, "dv", "F", "writes dV")                                                                                  \
    X(GRAD_PRIOR, "dprior", "F", "writes the prior's gradient; [M] by default")                                        \
    X(GRAD_VARIANCE, "dvariance", "F", "writes the variance's gradient; [1] by default")                               \
    X(GRAD_SHIFT, "dshift", "F", "writes the shift's gradient")                                                        \
    X(GRAD_BIAS, "dbias", "F", "writes the bias's gradient")                                                           \
    X(GRAD_SINKS, "dsinks", "F", "writes the sinks' gradient")                                                         \
    X(GRAD_MIX, "dmix", "F", "writes the mixing's gradient")                                                           \
    X(GRAD_MIX_WEIGHT, "dmix-weight", "F", "writes the mixing weights' gradient; [H,M] by default")                    \
    X(GRAD_MIX_OFFSET, "dmix-offset", "F", "writes the mixing offsets' gradient; [H] by default")                      \
    X(GRAD_MIX_HIDDEN_OFFSET, "dmix-hidden-offset", "F", "writes the hidden offsets' gradient; [U] by default")        \
    X(GRAD_MIX_AFTER, "dmix-after", "F", "writes the gradient of the mixing after the softmax")                        \
    X(GRAD_NOISE, "dnoise", "F", "writes the gradient of the noise's sigma")                                           \
    X(RESPONSIBILITIES, "responsibilities", "F",                                                                       \
      "writes gamma [B,H,M,N,S], the share of each component in its key's weight (small N S only)")                    \
    X(COUNTS, "counts", "F",                                                                                           \
      "writes N_r, the sums of gamma, in the prior's shape ([M] by default); counts of\n"                              \
      "several runs may be added")                                                                                     \
    X(NEW_PRIOR, "new-prior", "F", "writes the M-step's prior, in the prior's shape")                                  \
    X(NLL, "nll", "F", "writes the queries' negative log-likelihood [B,H] (packed: [T,H]): gaussian scores")

/* Arrays that other options stand for, or none does: labels. */
#define TOOL_LABEL_LIST(X)                                                                                             \
    X(STATE_C, "state-in.c", "F", NULL)                                                                                \
    X(STATE_Z, "state-in.z", "F", NULL)                                                                                \
    X(STATE_M, "state-in.m", "F", NULL)                                                                                \
    X(NEW_STATE_C, "state-out.c", "F", NULL)                                                                           \
    X(NEW_STATE_Z, "state-out.z", "F", NULL)                                                                           \
    X(NEW_STATE_M, "state-out.m", "F", NULL)                                                                           \
    X(CAPTURE_0, "capture.0", "F", NULL)                                                                               \
    X(CAPTURE_1, "capture.1", "F", NULL)                                                                               \
    X(CAPTURE_2, "capture.2", "F", NULL)                                                                               \
    X(CAPTURE_3, "capture.3", "F", NULL)                                                                               \
    X(CAPTURE_4, "capture.4", "F", NULL)                                                                               \
    X(CAPTURE_5, "capture.5", "F", NULL)                                                                               \
    X(CAPTURE_6, "capture.6", "F", NULL)                                                                               \
    X(CAPTURE_7, "capture.7", "F", NULL)                                                                               \
    X(NUMBERS, "numbers", "F", NULL)                                                                                   \
    X(GRAD_CAPTURE_0, "grad-capture.0", "F", NULL)                                                                     \
    X(GRAD_CAPTURE_1, "grad-capture.1", "F", NULL)                                                                     \
    X(GRAD_CAPTURE_2, "grad-capture.2", "F", NULL)                                                                     \
    X(GRAD_CAPTURE_3, "grad-capture.3", "F", NULL)                                                                     \
    X(GRAD_CAPTURE_4, "grad-capture.4", "F", NULL)                                                                     \
    X(GRAD_CAPTURE_5, "grad-capture.5", "F", NULL)                                                                     \
    X(GRAD_CAPTURE_6, "grad-capture.6", "F", NULL)                                                                     \
    X(GRAD_CAPTURE_7, "grad-capture.7", "F", NULL)                                                                     \
    X(GRAD_NUMBERS, "grad-numbers", "F", NULL)                                                                         \
    X(LSE_LOW, "lse-low", "F", NULL)                                                                                   \
    X(DENOMINATOR, "denominator", "F", NULL)                                                                           \
    X(GRAD_NEW_STATE_C, "grad-state-out.c", "F", NULL)                                                                 \
    X(GRAD_NEW_STATE_Z, "grad-state-out.z", "F", NULL)                                                                 \
    X(GRAD_STATE_C, "dstate-in.c", "F", NULL)                                                                          \
    X(GRAD_STATE_Z, "dstate-in.z", "F", NULL)

/* Arrays from TOOL_FILES on, without an option. */
#define TOOL_OTHER_LIST(X)                                                                                             \
    X(PARTS_O, )                                                                                                       \
    X(PARTS_LSE, )                                                                                                     \
    X(PARTS_LSE_LOW, )                                                                                                 \
    X(APPEND_K, )                                                                                                      \
    X(APPEND_V, )                                                                                                      \
    X(APPEND_SLOTS, )                                                                                                  \
    X(APPEND_POSITIONS, )                                                                                              \
    X(PREFIX_TABLE, )                                                                                                  \
    X(PREFIX_LENGTH, )                                                                                                 \
    X(STATE_SLOTS, )                                                                                                   \
    X(NEW_STATE_SLOTS, )                                                                                               \
    X(WORKSPACE, )

/* Every array has one line in one of the lists; one without does not compile. */
#define TOOL_LINE_OF(array, ...)        TOOL_LINE_OF_##array,
#define TOOL_NEEDS_LINE(name, ...)      TOOL_ARRAY_##name = TOOL_LINE_OF_##name,
#define TOOL_GRAD_NEEDS_LINE(name, ...) TOOL_ARRAY_GRAD_##name = TOOL_LINE_OF_GRAD_##name,
enum {
    TOOL_INPUT_LIST(TOOL_LINE_OF) TOOL_OUTPUT_LIST(TOOL_LINE_OF) TOOL_LABEL_LIST(TOOL_LINE_OF)
        TOOL_OTHER_LIST(TOOL_LINE_OF) TOOL_LINES
};
enum { CLMGK_ARRAY_LIST(TOOL_NEEDS_LINE, TOOL_GRAD_NEEDS_LINE, TOOL_NEEDS_LINE) };

/* Rows 1 to 7, or 1 to 15, of an option that may be given again. */
#define TOOL_AGAIN_7(X, option, name, value)                                                                           \
    X(option##_1, name, value, NULL)                                                                                   \
    X(option##_2, name, value, NULL)                                                                                   \
    X(option##_3, name, value, NULL)                                                                                   \
    X(option##_4, name, value, NULL)                                                                                   \
    X(option##_5, name, value, NULL)                                                                                   \
    X(option##_6, name, value, NULL)                                                                                   \
    X(option##_7, name, value, NULL)
#define TOOL_AGAIN_15(X, option, name, value)                                                                          \
    TOOL_AGAIN_7(X, option, name, value)                                                                               \
    X(option##_8, name, value, NULL)                                                                                   \
    X(option##_9, name, value, NULL)                                                                                   \
    X(option##_10, name, value, NULL)                                                                                  \
    X(option##_11, name, value, NULL)                                                                                  \
    X(option##_12, name, value, NULL)                                                                                  \
    X(option##_13, name, value, NULL)                                                                                  \
    X(option##_14, name, value, NULL)                                                                                  \
    X(option##_15, name, value, NULL)

/* X(NAME, option, argument, help) */
#define TOOL_PROBLEM_OPTIONS(X)                                                                                        \
    X(LAYOUT, "layout", "ORDER",                                                                                       \
      "axes of Q, K, V, O and their gradients: bhnd, heads first (default), or bnhd,\n"                                \
      "tokens first: [B,N,H,D], [B,S,G,D] or [B,S,G,M,D], [B,S,G,E], [B,N,H,E]")                                       \
    X(HEADS, "heads", "H", "mish, hard-mish and their linear forms: local heads; default: heads of dO, or of V")       \
    X(SHARED_NOISE, "shared-noise", NULL, "variants with noise: the same random numbers for all heads")                \
    X(FEATURE, "feature", "NAME", "linear family: elu1 (default), relu, exp, dpfp or favor")                           \
    X(FEATURE_ORDER, "feature-order", "NU", "order of feature map dpfp: 1 (default), 2 or 3")                          \
    X(GUARD, "guard", "X", "linear family: added to every denominator; default 0")                                     \
    X(UNNORMALISED, "unnormalised", NULL, "linear family: O without a denominator")                                    \
    X(FEATURE_EPSILON, "feature-epsilon", "X", "feature map relu: added to every feature; default 0")                  \
    X(STATE_IN, "state-in", "P",                                                                                       \
      "linear family: the state of earlier keys, which every query sees: P.c.npy\n"                                    \
      "[B,H,F,E] and P.z.npy [B,H,F]; mixed heads: [B,H,M,F,E] and [B,M,F]")                                           \
    X(SCORE, "score", "NAME", "dot or gaussian (default): mgk and smgk")                                               \
    X(ESTEP, "estep", "NAME", "soft (default) or hard: softmax, gaussian, mgk, smgk")                                  \
    X(CAUSAL, "causal", NULL, "hide keys beyond the diagonal")                                                         \
    X(CAUSAL_ALIGN, "causal-align", "WHERE",                                                                           \
      "the diagonal: bottom-right (default), top-left, or lengths (the end of\n"                                       \
      "each sequence's keys)")                                                                                         \
    X(WINDOW, "window", "L,R", "hide keys more than L before or R after the diagonal; -1: no limit")                   \
    X(SOFTCAP, "softcap", "X", "scores s become X tanh(s/X): dot scores of one component, or mixed scores")            \
    X(SCORE_MOD, "score-mod", "TEXT",                                                                                  \
      "an expression that replaces the scaled score s, as 's + t[h, i - j + 9]'; not in the\n"                         \
      "linear family (docs/scores.md)")                                                                                \
    X(MASK_MOD, "mask-mod", "TEXT", "a condition that hides a pair where it is false, as 'j <= i'")                    \
    X(MASK_BLOCK, "mask-block", "Q,K",                                                                                 \
      "queries and keys of a block of a mask, powers of two from 16 on; default 64,64")                                \
    X(CAPTURE_0, "capture", "NAME=F",                                                                                  \
      "an array that these texts read, of floats or ints; given again for each, up to 8")                              \
    TOOL_AGAIN_7(X, CAPTURE, "capture", "NAME=F")                                                                      \
    X(NUMBER_0, "number", "NAME=X", "a number in these texts, a float; given again for each, up to 16")                \
    TOOL_AGAIN_15(X, NUMBER, "number", "NAME=X")                                                                       \
    X(DROPOUT, "dropout", "P", "drops weights with probability P, 0 <= P < 1")                                         \
    X(SEED, "seed", "U64", "seed of dropout and noise; default 0")                                                     \
    X(DTYPE, "dtype", "TYPE",                                                                                          \
      "storage of Q on the device:" TOOL_DTYPE_NAMES "; default f16 if Q is float16,\n"                                \
      "else f32")                                                                                                      \
    X(DTYPE_K, "dtype-k", "TYPE",                                                                                      \
      "storage of K, and of dK without --dtype-grad; default: as --dtype. In the softmax\n"                            \
      "families, for inference, also" TOOL_CACHE_DTYPE_NAMES)                                                          \
    X(DTYPE_V, "dtype-v", "TYPE", "storage of V, likewise")

/* The same for programs that compute O; a label in others. */
#define TOOL_O_OPTIONS(X)                                                                                              \
    X(DTYPE_O, "dtype-o", "TYPE", "storage of O and its gradient; default: as --dtype")                                \
    X(DTYPE_GRAD, "dtype-grad", "TYPE", "storage of dQ, dK and dV; default: each as its array")                        \
    X(GRAD_CAPTURE_0, "grad-capture", "NAME=F",                                                                        \
      "writes the gradient of a captured array of floats; given again for each")                                       \
    TOOL_AGAIN_7(X, GRAD_CAPTURE, "grad-capture", "NAME=F")                                                            \
    X(GRAD_NUMBER_0, "grad-number", "NAME=F", "writes the gradient of a number, [1]; given again for each")            \
    TOOL_AGAIN_15(X, GRAD_NUMBER, "grad-number", "NAME=F")                                                             \
    X(PRECISION, "precision", "NAME",                                                                                  \
      "exact (default), or the least precision of products of f32 or f16 arrays that\n"                                \
      "may be used for speed: tf32 or bf16")

#define TOOL_PROBLEM_OPTION_NUMBER(name, ...) TOOL_OPTION_##name,
enum {
    TOOL_OPTION_VARIANT = TOOL_STANDARD_OPTION_COUNT,
    TOOL_OPTION_ARRAYS, /* from here in the order of clmgk_array */
    TOOL_OPTION_LAST_ARRAY = TOOL_OPTION_ARRAYS + (int)TOOL_FILES - 1,
    TOOL_PROBLEM_OPTIONS(TOOL_PROBLEM_OPTION_NUMBER) TOOL_O_OPTIONS(TOOL_PROBLEM_OPTION_NUMBER)
        TOOL_PROBLEM_OPTION_COUNT /* the first of the program's own */
};

/* A program's table: TOOL_STANDARD_OPTIONS, TOOL_PROBLEM_ROWS, TOOL_OUTPUT_LIST by TOOL_ARRAY_ROW and TOOL_O_OPTIONS
 * by TOOL_PROBLEM_ROW, or by TOOL_HIDDEN_ROW and TOOL_HIDDEN_OPTION in a program that computes none of them; then from
 * TOOL_PROBLEM_OPTION_COUNT on its own. */
#define TOOL_ARRAY_ROW(array, ...) [TOOL_OPTION_ARRAYS + CLMGK_ARRAY_##array] = {__VA_ARGS__},
#define TOOL_HIDDEN_ROW(array, name, argument, help)                                                                   \
    [TOOL_OPTION_ARRAYS + CLMGK_ARRAY_##array] = {name, argument, NULL},
#define TOOL_PROBLEM_ROW(name, ...)                      [TOOL_OPTION_##name] = {__VA_ARGS__},
#define TOOL_HIDDEN_OPTION(name, option, argument, help) [TOOL_OPTION_##name] = {option, argument, NULL},
#define TOOL_PROBLEM_ROWS                                                                                              \
    [TOOL_OPTION_VARIANT] = {"variant", "NAME",                                                                        \
                             "softmax, gaussian, mgk, smgk; mixed heads: fish, hard-fish, mish, hard-mish,\n"          \
                             "gfish, hard-gfish, talking-heads; linear family: linear, mlk, smlk, lfish,\n"            \
                             "lhard-fish, lmish, lhard-mish, lgfish, lhard-gfish (required)"},                         \
    TOOL_INPUT_LIST(TOOL_ARRAY_ROW) TOOL_LABEL_LIST(TOOL_ARRAY_ROW) TOOL_PROBLEM_OPTIONS(TOOL_PROBLEM_ROW)

#endif
