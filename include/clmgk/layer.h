/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The multi-head attention layer: projections, attention of any family, output projection, residual, layer
 * normalisation; forward and backward.
 *
 *     clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT;      fill in; zero means default
 *     clmgk_layer_create(context, &desc, NULL, &layer, &error);      validates and compiles; no later call compiles
 *     clmgk_layer_get_info(layer, &info, &error);                    sizes of activations and workspace
 *     clmgk_enqueue_layer_forward(layer, queue, &args, 0, NULL, &event, &error);
 *     clmgk_enqueue_layer_backward(layer, queue, &args, 0, NULL, &event, &error);
 *
 * With the symbols of attention.h, W the width of the model, and W2 and W3 the widths of a second and a third input:
 *
 *     Y = X [B,N,W], normalised if norm is PRE
 *     Z = Y, or the second input X2 [B,S,W2], not normalised (cross-attention)
 *     Z' = Z, or the third input X3 [B,S,W3], not normalised (cross-attention with a separate input for the values)
 *     Q = Y W_Q^T + b_Q      K = Z W_K^T + b_K      V = Z' W_V^T + b_V
 *     qk_norm: each head's q becomes q g / sqrt(mean(q^2) + norm_epsilon) with a gain g [D]; k likewise with its own g
 *     rotary: each head's q and k are rotated by their positions (clmgk_rotary)
 *     O = attention(Q, K, V)                            attention.h, any variant
 *     R = dropout(concat(O) W_O^T + b_O) + X            X with residual only
 *     out = LN(R) with norm POST, else R                LN(x) = (x - mean) / sqrt(variance + norm_epsilon) gain + bias
 *
 * (MGK paper sections 1.1 and A.11; LRB paper Eq. 8; FiSH paper section 1.1.) H D and H E need not equal W.
 */
#ifndef CLMGK_LAYER_H
#define CLMGK_LAYER_H

#include "attention.h"

/* Position of the layer normalisation. */
#define CLMGK_NORM_LIST(X)                                                                                             \
    X(NONE, 0, "none")                                                                                                 \
    X(POST, 1, "post") /* out = LN(R) */                                                                               \
    X(PRE, 2, "pre")   /* X is normalised before the projections; the residual is X itself */

typedef enum clmgk_norm {
#define CLMGK_NORM_ENUM(name, value, ...) CLMGK_NORM_##name = (value),
    CLMGK_NORM_LIST(CLMGK_NORM_ENUM)
#undef CLMGK_NORM_ENUM
} clmgk_norm;

/*
 * The layer's own arrays, in a list like CLMGK_ARRAY_LIST (arrays.h):
 *
 *     A(NAME, field, ELEMENT, ACCESS, passes, axes, has)   passes: forward, backward; r required, o optional, - absent
 *     G(NAME, field, ELEMENT, bit, axes, has)              gradient of the array NAME, in grad_field
 *
 * Arrays are dense, with the axes in the listed order: B batch, N queries, S keys, W width, U width_k, T width_v; q, k,
 * v, o: the columns of all heads of Q, K, V, O; p = q + k + v; D head size; C capacity of the cache (for the order of
 * the cache's axes see clmgk_layer_desc).
 *
 * Columns:
 *
 *     q   [H,D]; admixture variants [M,D]
 *     k   [G,D]; MGK and MLK [G,M,D] (M projections for each key head, MGK paper option A); admixture variants [M,D]
 *     v   [G,E]
 *     o   [H,E]
 *
 * A weight matrix has a row for each column of its result, as in torch.nn.Linear: Q = Y W_Q^T. With packed_weights,
 * weight_qkv holds the rows of W_Q, then W_K, then W_V, and bias_qkv holds b_Q, b_K and b_V in this order (as
 * in_proj_weight and in_proj_bias of torch.nn.MultiheadAttention).
 */
#define CLMGK_LAYER_ARRAY_LIST(A, G)                                                                                   \
    A(X, x, STORAGE, IN, "rr", "BNW", true)                                                                            \
    A(X2, x2, STORAGE, IN, "rr", "BSU", d->cross)                                                                      \
    A(WEIGHT_QKV, weight_qkv, STORAGE, IN, "rr", "pW", d->packed_weights)                                              \
    A(WEIGHT_Q, weight_q, STORAGE, IN, "rr", "qW", !d->packed_weights)                                                 \
    A(WEIGHT_K, weight_k, STORAGE, IN, "rr", "kU", !d->packed_weights)                                                 \
    A(WEIGHT_V, weight_v, STORAGE, IN, "rr", "vT", !d->packed_weights)                                                 \
    A(WEIGHT_O, weight_o, STORAGE, IN, "rr", "Wo", true)                                                               \
    A(BIAS_QKV, bias_qkv, F32, IN, "r-", "p", d->use_bias && d->packed_weights)                                        \
    A(BIAS_Q, bias_q, F32, IN, "r-", "q", d->use_bias && !d->packed_weights)                                           \
    A(BIAS_K, bias_k, F32, IN, "r-", "k", d->use_bias && !d->packed_weights)                                           \
    A(BIAS_V, bias_v, F32, IN, "r-", "v", d->use_bias && !d->packed_weights)                                           \
    A(BIAS_O, bias_o, F32, IN, "r-", "W", d->use_bias_o)                                                               \
    A(GAIN_Q, gain_q, F32, IN, "rr", "D", d->qk_norm)                                                                  \
    A(GAIN_K, gain_k, F32, IN, "rr", "D", d->qk_norm)                                                                  \
    A(NORM_GAIN, norm_gain, F32, IN, "rr", "W", d->norm != CLMGK_NORM_NONE)                                            \
    A(NORM_BIAS, norm_bias, F32, IN, "rr", "W", d->norm != CLMGK_NORM_NONE)                                            \
    A(POSITIONS, positions, I32, IN, "rr", "B", d->use_positions)                                                      \
    A(CACHE_K, cache_k, STORAGE, OUT, "r-", "PkC", d->cache_capacity > 0)                                              \
    A(CACHE_V, cache_v, STORAGE, OUT, "r-", "PvC", d->cache_capacity > 0)                                              \
    A(OUT, out, STORAGE, OUT, "r-", "BNW", true)                                                                       \
    A(GRAD_OUT, grad_out, STORAGE, IN, "-r", "BNW", true)                                                              \
    G(X, x, STORAGE, 1, "BNW", true)                                                                                   \
    G(X2, x2, STORAGE, 2, "BSU", d->cross)                                                                             \
    G(WEIGHT_QKV, weight_qkv, STORAGE, 4, "pW", d->packed_weights)                                                     \
    G(WEIGHT_Q, weight_q, STORAGE, 8, "qW", !d->packed_weights)                                                        \
    G(WEIGHT_K, weight_k, STORAGE, 16, "kU", !d->packed_weights)                                                       \
    G(WEIGHT_V, weight_v, STORAGE, 32, "vT", !d->packed_weights)                                                       \
    G(WEIGHT_O, weight_o, STORAGE, 64, "Wo", true)                                                                     \
    G(BIAS_QKV, bias_qkv, F32, 128, "p", d->use_bias && d->packed_weights)                                             \
    G(BIAS_Q, bias_q, F32, 256, "q", d->use_bias && !d->packed_weights)                                                \
    G(BIAS_K, bias_k, F32, 512, "k", d->use_bias && !d->packed_weights)                                                \
    G(BIAS_V, bias_v, F32, 1024, "v", d->use_bias && !d->packed_weights)                                               \
    G(BIAS_O, bias_o, F32, 2048, "W", d->use_bias_o)                                                                   \
    G(GAIN_Q, gain_q, F32, 4096, "D", d->qk_norm)                                                                      \
    G(GAIN_K, gain_k, F32, 8192, "D", d->qk_norm)                                                                      \
    G(NORM_GAIN, norm_gain, F32, 16384, "W", d->norm != CLMGK_NORM_NONE)                                               \
    G(NORM_BIAS, norm_bias, F32, 32768, "W", d->norm != CLMGK_NORM_NONE)                                               \
    A(ACTIVATIONS, activations, BYTE, OUT, "or", "", true)                                                             \
    A(WORKSPACE, workspace, BYTE, OUT, "oo", "", true)                                                                 \
    A(X3, x3, STORAGE, IN, "rr", "BST", d->cross_v)                                                                    \
    G(X3, x3, STORAGE, 65536, "BST", d->cross_v)

typedef enum clmgk_layer_array {
#define CLMGK_LAYER_ENUM(name, ...)      CLMGK_LAYER_ARRAY_##name,
#define CLMGK_LAYER_GRAD_ENUM(name, ...) CLMGK_LAYER_ARRAY_GRAD_##name,
    CLMGK_LAYER_ARRAY_LIST(CLMGK_LAYER_ENUM, CLMGK_LAYER_GRAD_ENUM)
#undef CLMGK_LAYER_ENUM
#undef CLMGK_LAYER_GRAD_ENUM
        CLMGK_LAYER_ARRAYS
} clmgk_layer_array;

/* Sets of gradients. */
typedef enum clmgk_layer_gradient {
#define CLMGK_LAYER_GRADIENT_ENUM(name, field, element, bit, ...) CLMGK_LAYER_GRADIENT_##name = (bit),
    CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, CLMGK_LAYER_GRADIENT_ENUM)
#undef CLMGK_LAYER_GRADIENT_ENUM
        CLMGK_LAYER_GRADIENT_ALL = 131071
} clmgk_layer_gradient;

/* One layer. Zero is the default of every field except struct_size. The structure may grow, like clmgk_attention_desc.
 */
typedef struct clmgk_layer_desc {
    size_t struct_size; /* sizeof(clmgk_layer_desc); CLMGK_LAYER_DESC_INIT sets it */

    /*
     * The attention inside the layer: variant, dtype (of all STORAGE arrays of the layer but the cache), B, H, G, M, N,
     * S, D, E, masks and modifiers, score and mask as text (with a cache i counts the new tokens, j the cache's),
     * state. Its `gradients` may name its parameters (prior, variance, shift, bias, sinks, mix..., captured arrays,
     * numbers, state), but not q, k and v. Its precision holds for the layer's products, too (gemm.h). Its layouts (the
     * layer chooses them), statistics, combine, use_positions, use_mask_blocks, append, and without a cache pages must
     * be zero. Without a second input and without a cache S is N; with a cache S is cache_capacity (0 stands for it).
     * With sizes_at_call the sizes are limits of calls. The library reads the structure only during the call.
     */
    const clmgk_attention_desc *attention;

    int64_t width;   /* W >= 1, of X and the output */
    int64_t width_k; /* W2, of X2; 0 is W. Must be W without `cross` and with packed_weights */

    int32_t cross;          /* 1: keys and values come from x2 (with cross_v, below: only keys) */
    int32_t packed_weights; /* 1: weight_qkv and bias_qkv; 0: separate arrays for Q, K and V */
    int32_t use_bias;       /* 1: adds b_Q, b_K, b_V */
    int32_t use_bias_o;     /* 1: adds b_O */
    int32_t residual;       /* 1: adds X */
    int32_t qk_norm;        /* 1: RMS normalisation of each head's q and k */
    clmgk_norm norm;
    clmgk_rotary rotary;
    int32_t use_positions; /* 1: rotary positions come from the array `positions` (clmgk_layer_validate). Not with a
                            * second input, a cache or packed sequences */
    int64_t rotary_size;   /* P, even, 2 .. D; 0 is D (which must be even) */
    double rotary_base;    /* >= 1; 0 is 10000 */
    double norm_epsilon;   /* > 0, of layer and query/key normalisation; 0 is 1e-5 */
    double dropout;        /* probability p, 0 <= p < 1, of dropping an element of the output projection's result; kept
                            * elements are divided by 1 - p. As in clmgk_dropout_mask, element (b,n,w) uses random word
                            * number w mod 4 of counter (floor(w/4), n, b, 3). attention->dropout applies to the
                            * attention weights */

    /*
     * C > 0: the layer has a cache of keys and values with room for C tokens of each sequence. Requires a layer without
     * a backward pass, self-attention, attention->use_lengths and alignment LENGTHS. lengths[b] counts the tokens of
     * sequence b, including the N new ones: new token n has position lengths[b] - N + n. The call writes the token's
     * key and value to that row of cache_k and cache_v, and attends to rows 0 .. lengths[b] - 1. Caches have the axes
     * cache_k [B,G,C,D] (MGK [B,G,M,C,D]; admixture variants [B,M,C,D]) and cache_v [B,G,C,E]. One layer object serves
     * all lengths. Not with packed sequences or the linear family, which has a state instead.
     *
     * With attention->page_size the cache is in pages: cache_k [pages,G,page_size,D] (MGK [pages,G,M,page_size,D];
     * admixture variants [pages,M,page_size,D]) and cache_v [pages,G,page_size,E]. Row n of sequence b is where the
     * call's page_table says (attention.h); C is at most table_pages * page_size. A token whose entry is no page is
     * not stored. Not with use_page_offsets.
     *
     * The cache may have types of its own, attention->dtype_k and dtype_v: new keys and values are rounded to them as
     * by clmgk_enqueue_append (attention.h), and the attention reads what is stored. With use_scale_k and use_scale_v
     * the inner scale_k and scale_v are the scales of the cache's rows: of INT8 dense, and written; of E4M3 and E5M2
     * with any strides, and read. Elements of Q8_0 and Q4_0 are blocks: cache_k [B,G,C,D/32].
     *
     * Overflow: a token whose position is not in 0 .. C - 1 is not stored, and stored tokens stay unchanged. Every new
     * token, stored or not, keeps its position for rotation, causality, window and ALiBi. So the output of a stored
     * token is the same as with a larger cache, if causality hides later tokens. A token that is not stored does not
     * see itself; it sees the tokens in the cache that mask and window admit. If they admit none, its heads are 0. The
     * caller supplies the lengths, on the device: a length above C means that the sequence has outgrown its cache.
     */
    int64_t cache_capacity;

    uint32_t gradients;  /* set of clmgk_layer_gradient that the backward pass computes. If this and
                            attention->gradients are 0, there is no backward pass, and no activations are kept */
    uint32_t accumulate; /* subset of `gradients`: these are added to the values in their arrays, the others overwrite
                            them */

    int64_t width_v; /* W3, of X3; 0 is W2. Must be W2 without `cross_v`, and W with packed_weights */
    int32_t cross_v; /* 1: values come from x3, like `value` of torch.nn.MultiheadAttention. Only with `cross` */
} clmgk_layer_desc;

#define CLMGK_LAYER_DESC_INIT CLMGK_INIT(clmgk_layer_desc)

/*
 * Checks a descriptor; needs no device. Like clmgk_attention_validate; the message names the field ("attention.heads:
 * ..."). On success `resolved` receives the descriptor, and `attention` the descriptor of the attention inside, both
 * with all defaults filled in. `attention` also has the layouts and gradients that the layer gives it;
 * resolved->attention points to it. Either both pointers are NULL or neither is.
 *
 * Rotary positions of token n:
 *
 *     default             n
 *     packed sequences    the index within the token's sequence
 *     cache               lengths[b] - N + n
 *     use_positions       positions[b] - N + n
 *
 * So positions[b], like lengths[b], counts the tokens of a sequence up to the last new one. With it, a call that takes
 * a state of the linear family can continue at the position where the previous call ended. SMGK and SMLK add the shift
 * to the rotated key. The linear family rotates q and k before the feature map.
 */
CLMGK_API clmgk_status clmgk_layer_validate(const clmgk_layer_desc *desc, clmgk_layer_desc *resolved,
                                            clmgk_attention_desc *attention, clmgk_error *error);

/* Number of elements (0: not used) and bytes of an array of a resolved descriptor, like clmgk_array_count and
 * clmgk_array_bytes. Both return 0 for ACTIVATIONS and WORKSPACE, whose sizes are in clmgk_layer_info. */
CLMGK_API int64_t clmgk_layer_array_count(const clmgk_layer_desc *resolved, clmgk_layer_array array);
CLMGK_API int64_t clmgk_layer_array_bytes(const clmgk_layer_desc *resolved, clmgk_layer_array array);

/* A layer: one descriptor on one context, compiled. Immutable; threads may share it, like a clmgk_plan. */
typedef struct clmgk_layer clmgk_layer;

/* Makes a layer, like clmgk_plan_create, with the plans of its products (clmgk_gemm_plan_create) and of its attention.
 * `options` apply to the attention's plan; they may be NULL. Errors: those of clmgk_layer_validate, clmgk_plan_create
 * and clmgk_gemm_plan_create. */
CLMGK_API clmgk_status clmgk_layer_create(clmgk_context *context, const clmgk_layer_desc *desc,
                                          const clmgk_plan_options *options, clmgk_layer **out, clmgk_error *error);

/* Releases a layer, like clmgk_plan_release. */
CLMGK_API void clmgk_layer_release(clmgk_layer *layer);

typedef struct clmgk_layer_info {
    size_t struct_size;                /* sizeof(clmgk_layer_info); CLMGK_LAYER_INFO_INIT sets it */
    uint64_t activation_bytes;         /* kept from forward to backward; 0: no backward pass, or it needs none */
    uint64_t workspace_bytes;          /* workspace of a forward call */
    uint64_t backward_workspace_bytes; /* workspace of a backward call; 0: none */
    double compile_ms;                 /* time spent on making the layer */
    const char *provider;              /* provider of the projections' products (gemm.h) */
    const char *note;                  /* why a product is slow or less accurate here; "": no product is */
    const clmgk_plan *attention;       /* for clmgk_plan_get_info; lives as long as the layer */
} clmgk_layer_info;

#define CLMGK_LAYER_INFO_INIT CLMGK_INIT(clmgk_layer_info)

/* Fills `info`. Fails only on NULL arguments and a wrong struct_size (INVALID_VALUE). */
CLMGK_API clmgk_status clmgk_layer_get_info(const clmgk_layer *layer, clmgk_layer_info *info, clmgk_error *error);

/*
 * The arrays of a call, all on the device. The descriptor determines which arrays are required
 * (CLMGK_LAYER_ARRAY_LIST).
 *
 *   attention    parameters of the attention inside (lengths, prior, mix, state, ...), their gradients, the seed
 *                (of both dropouts and of noise), accumulate, and with attention->sizes_at_call the sizes of the call
 *                (NULL: the descriptor's): batch, length, sequences, table_pages, and length_k, which is 0 or that of
 *                a second input, or the capacity of the call's cache (0: the most). They have one token and one key
 *                at least, and no strided layouts; activations of a forward call serve a backward call of equal sizes.
 *                Errors: those of clmgk_plan_call_workspace_size. Its q, k, v, o, lse, lse_low, denominator, grad_o,
 *                grad_lse, grad_q, grad_k, grad_v and workspace stay empty: the layer supplies them
 *   activations  info.activation_bytes: written by the forward pass, read by the backward pass
 *   workspace    info.workspace_bytes; for a backward call info.backward_workspace_bytes. Concurrent calls need
 *                distinct workspaces
 *
 * Offsets of activations and workspace are in bytes, and multiples of 64. Omit an array whose size is 0.
 *
 * NaN and infinities in inputs and weights propagate to the output. Aliasing: as in attention.h, inputs may alias each
 * other, and an output may not share an element with any other array of the call. Exception: grad_x may be the memory
 * of grad_out if it has the same offset and grad_x is not accumulated. Access flags: as in attention.h. Kernels also
 * read `out` where the residual, a bias, dropout or the normalisation is applied to it; where a provider runs on the
 * host (gemm.h), the host must be allowed to map what it multiplies (CL_MEM_HOST_...).
 */
typedef struct clmgk_layer_args {
    size_t struct_size;                    /* sizeof(clmgk_layer_args): CLMGK_LAYER_ARGS_INIT sets it */
    const clmgk_attention_args *attention; /* NULL: none */
#define CLMGK_LAYER_FIELD(name, field, ...)      clmgk_buffer field;
#define CLMGK_LAYER_GRAD_FIELD(name, field, ...) clmgk_buffer grad_##field;
    CLMGK_LAYER_ARRAY_LIST(CLMGK_LAYER_FIELD, CLMGK_LAYER_GRAD_FIELD)
#undef CLMGK_LAYER_FIELD
#undef CLMGK_LAYER_GRAD_FIELD
} clmgk_layer_args;

#define CLMGK_LAYER_ARGS_INIT CLMGK_INIT(clmgk_layer_args)

/* Pointer to the field of an array; NULL for a value outside the enumeration. */
CLMGK_API clmgk_buffer *clmgk_layer_array_buffer(clmgk_layer_args *args, clmgk_layer_array array);

/*
 * Enqueue a pass, like clmgk_enqueue_forward and clmgk_enqueue_backward. Both check all arrays before they enqueue
 * anything. The backward pass takes the inputs, parameters and seed of the forward call, and the activations that it
 * wrote; it does not modify the activations, and ignores biases. INVALID_VALUE for the backward pass of a layer without
 * gradients.
 */
CLMGK_API clmgk_status clmgk_enqueue_layer_forward(clmgk_layer *layer, cl_command_queue queue,
                                                   const clmgk_layer_args *args, cl_uint num_wait,
                                                   const cl_event *wait_list, cl_event *event, clmgk_error *error);
CLMGK_API clmgk_status clmgk_enqueue_layer_backward(clmgk_layer *layer, cl_command_queue queue,
                                                    const clmgk_layer_args *args, cl_uint num_wait,
                                                    const cl_event *wait_list, cl_event *event, clmgk_error *error);

/* Names, as in variants.h. The name of an array is that of its field. */
CLMGK_API const char *clmgk_norm_name(clmgk_norm norm);
CLMGK_API clmgk_status clmgk_norm_from_name(const char *name, clmgk_norm *norm, clmgk_error *error);
CLMGK_API const char *clmgk_layer_array_name(clmgk_layer_array array);
CLMGK_API clmgk_status clmgk_layer_array_from_name(const char *name, clmgk_layer_array *array, clmgk_error *error);

#endif
