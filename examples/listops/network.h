/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An encoder that classifies sequences, forward and backward. With N rows, the tokens of all sequences of a batch one
 * after another (packed: nothing is padded), width W, hidden width U:
 *
 *     x_0 [N,W] = words[token] + places[position]
 *     r_l [N,W] = x_l + attention(LN(x_l)) W_o^T + b_o            the library's layer, any variant
 *     x_(l+1)   = r_l + gelu(LN(r_l) W_1^T + b_1) W_2^T + b_2     W_1 [U,W], W_2 [W,U]
 *     logits [T,10] = LN(x_last) of the sequence's first row (or the mean of all), times W_c^T, + b_c
 *
 * All parameters are one buffer, their gradients another: one kernel is the optimiser, one write a checkpoint.
 */
#ifndef LISTOPS_NETWORK_H
#define LISTOPS_NETWORK_H

#include "common.h"
#include "generator.h"

enum { MAX_LAYERS = 8, MAX_PARAMETERS = 200 };

typedef struct settings {
    clmgk_variant variant;
    int32_t heads, components; /* components 0: the variant's default */
    int32_t layers, width, head_size, hidden;
    int32_t rows;                   /* N: tokens of a batch */
    int32_t min_length, max_length; /* of a sequence */
    bool em;                        /* priors by the M-step in place of gradients */
    bool first;                     /* the sequence's first row is its class's, not the mean of all */
    uint64_t seed;                  /* of the first weights */
} settings;

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Sequences, as many as fit, one after another. The rows that are left are a sequence of their own, the last one,
 * without an answer; those before the first one are empty. */
typedef struct batch {
    int32_t rows, capacity;      /* N; sequences, the one of the rest included */
    int32_t first, count, used;  /* the first sequence with an answer, how many there are, their tokens */
    int32_t *tokens, *positions; /* [N] */
    int32_t *offsets;            /* [capacity + 1] */
    int32_t *answers;            /* [capacity], -1: none */
} batch;

void batch_open(batch *b, const settings *s);
void batch_close(batch *b);

/* Fills the batch with examples from number `index` on, but not `end`; returns the first that is not in it. */
uint64_t batch_fill(batch *b, const task *t, stream from, uint64_t index, uint64_t end);

/* ---- parameters -------------------------------------------------------------------------------------------------- */

typedef enum beginning { BEGIN_ZERO, BEGIN_ONE, BEGIN_NORMAL, BEGIN_PLACES, BEGIN_SHARE } beginning;

/* An array of parameters, at `at` floats of the buffer. */
typedef struct parameter {
    char name[40];
    size_t at, count;
    beginning begin;
    float scale; /* of normal numbers: their deviation; BEGIN_SHARE: the value */
} parameter;

/* In this order: matrices, which decay; arrays whose gradients are sums over rows that our kernels make; the rest;
 * those that may not be negative. Each begins at a multiple of 16 floats. */
typedef struct parameters {
    parameter list[MAX_PARAMETERS];
    size_t arrays, numbers; /* numbers: without gaps */
    size_t decays, summed, summed_end, floored, count;
} parameters;

/* ---- the network ------------------------------------------------------------------------------------------------- */

#define KERNEL_LIST(X)                                                                                                 \
    X(embed)                                                                                                           \
    X(embed_words_backward)                                                                                            \
    X(embed_places_backward)                                                                                           \
    X(norm)                                                                                                            \
    X(norm_backward)                                                                                                   \
    X(gelu)                                                                                                            \
    X(gelu_backward)                                                                                                   \
    X(add_partial)                                                                                                     \
    X(add_bias)                                                                                                        \
    X(pool)                                                                                                            \
    X(classify)                                                                                                        \
    X(classify_backward)                                                                                               \
    X(pool_backward)                                                                                                   \
    X(adamw)

enum {
#define KERNEL_NUMBER(name) KERNEL_##name,
    KERNEL_LIST(KERNEL_NUMBER)
#undef KERNEL_NUMBER
        KERNELS
};

/* Products: hidden = norm W_1^T; next += a W_2^T; da = g W_2; dW_2 = g^T a; dn = dh W_1; dW_1 = dh^T n; and of
 * network_project, QKV = norm W_qkv^T. */
enum {
    PRODUCT_HIDDEN,
    PRODUCT_NEXT,
    PRODUCT_GRAD_A,
    PRODUCT_GRAD_W2,
    PRODUCT_GRAD_N,
    PRODUCT_GRAD_W1,
    PRODUCT_QKV,
    PRODUCTS
};

/* Parameters of a layer, and what its passes keep. */
typedef struct encoder_layer {
    clmgk_layer_args args;
    clmgk_attention_args attention;
    const parameter *weight_qkv, *bias_qkv, *norm_gain, *norm_bias; /* of the library's layer */
    const parameter *prior;                                         /* NULL: the variant has none */
    const parameter *gain, *bias, *w1, *b1, *w2, *b2;
    clmgk_buffer r, normalised, statistics, hidden, a, next;
} encoder_layer;

typedef struct network {
    device *device;
    settings settings;
    int32_t sequences; /* capacity of a batch */
    parameters layout;
    uint64_t first_bytes; /* of the device's buffers before this network */

    cl_program program;
    cl_kernel kernel[KERNELS];
    clmgk_layer *attention_layer;              /* serves all layers */
    clmgk_attention_desc attention;            /* as the layer resolved it */
    int64_t q_columns, k_columns, qkv_columns; /* of Q; of K; of Q, K and V side by side */
    clmgk_gemm_plan *product[PRODUCTS];
    clmgk_plan *maximisation; /* NULL: priors have gradients */
    int32_t count;            /* sequences with an answer in the batch that is loaded */

    encoder_layer layer[MAX_LAYERS];
    const parameter *words, *places, *last_gain, *last_bias, *w_class, *b_class;
    clmgk_buffer values, gradients, mean, square, partial; /* of all parameters; AdamW's averages; sums of blocks */
    clmgk_buffer tokens, positions, offsets, used_offsets, answers;
    clmgk_buffer x, y, last_statistics, pooled, results, dlogits;
    clmgk_buffer gradient, gradient_hidden, gradient_norm; /* [N,W], [N,U], [N,W] */
    clmgk_buffer qkv, workspace, product_workspace, maximisation_workspace, new_prior;
    float *host_results;
} network;

/* Sum of losses and number of right answers of a batch. */
typedef struct score {
    double loss;
    int64_t right, count;
} score;

void network_open(network *n, device *d, const settings *s);
void network_close(network *n);
uint64_t network_bytes(const network *n); /* on the device */

void network_load(network *n, const batch *b);    /* copies a batch to the device */
void network_forward(network *n, uint64_t seed);  /* of the batch; `seed`, of noise */
void network_backward(network *n, uint64_t seed); /* all gradients, of the mean loss */
score network_score(network *n);                  /* waits for the forward pass's results */
void network_maximise(network *n);                /* the M-step: all priors from the batch */
void network_adamw(network *n, int64_t step, float rate, float decay);

/* Q, K and V of a layer for the batch, into n->qkv [N, qkv_columns], after a forward pass. */
void network_project(network *n, int32_t layer);

/* Seconds of attention alone, forward and backward, of one layer of the batch. Needs network_project. */
typedef struct attention_timer {
    clmgk_plan *plan;
    clmgk_attention_args args;
    clmgk_buffer owned[8];
    size_t owned_count;
} attention_timer;

void attention_timer_open(attention_timer *t, network *n);
double attention_timer_run(attention_timer *t, network *n);
void attention_timer_close(attention_timer *t);

#endif
