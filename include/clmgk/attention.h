/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: describe a problem, plan it, enqueue it.
 *
 *     clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;      fill in; zero means default
 *     clmgk_plan_create(context, &desc, NULL, &plan, &error);     validates and compiles; no later call compiles
 *     clmgk_enqueue_forward(plan, queue, &args, 0, NULL, &event, &error);
 *     clmgk_enqueue_backward(plan, queue, &args, 0, NULL, &event, &error);        desc.gradients
 *     clmgk_enqueue_statistics(plan, queue, &args, 0, NULL, &event, &error);      desc.statistics
 *     clmgk_enqueue_mask(plan, queue, &args, 0, NULL, &event, &error);            desc.mask_mod, desc.use_mask_blocks
 *     clmgk_enqueue_append(plan, queue, &args, 0, NULL, &event, &error);          desc.append
 *
 * Programs that have their arrays in host memory and make no OpenCL calls use clmgk_attention_forward_host,
 * _backward_host and _statistics_host.
 *
 * Symbols: B batch, H query heads, G key/value heads (query head h reads head floor(h G / H)), N queries, S keys,
 * D query/key head size, E value head size, M components per key, F features (linear family). In the admixture variants
 * and their linear forms M counts the global heads of Q and K, and H the local heads of O. Formulas: variants.h.
 */
#ifndef CLMGK_ATTENTION_H
#define CLMGK_ATTENTION_H

#include "arrays.h"
#include "context.h"

#define CLMGK_NO_KEYS (-1) /* value of clmgk_attention_desc.length_k for a problem without keys */

#define CLMGK_MAX_HEAD_SIZE   576  /* largest D and E */
#define CLMGK_MAX_COMPONENTS  1024 /* largest M of the mixture family */
#define CLMGK_MAX_MIXED_HEADS 256  /* largest M and H of the admixture variants */
#define CLMGK_MAX_FEATURES    4096 /* largest R of a projection */

/*
 * Layout of an array. `strided` = 0: dense, in the axis order stated with the array; the other fields are ignored.
 * `strided` = 1: element (b, h, r, n, d) is b*batch + h*head + r*component + n*token + d elements from the array's
 * start; the innermost axis is always contiguous. Strides are in elements and non-negative. Any order of the axes in
 * memory is allowed (heads first, tokens first, packed QKV). Inputs may have strides of 0 (broadcast); elements of O,
 * L, dQ, dK and dV may not overlap. Strides of axes that the array lacks are ignored. An array in blocks
 * (Q8_0, Q4_0) is an array of blocks: its last axis has D / 32 or E / 32 of them, and strides, offsets, shapes and
 * counts count blocks.
 */
typedef struct clmgk_layout {
    int32_t strided;
    int64_t batch;
    int64_t head;
    int64_t component; /* K of MGK and MLK only */
    int64_t token;
} clmgk_layout;

#define CLMGK_MAX_CAPTURES     8
#define CLMGK_MAX_CAPTURE_AXES 4
#define CLMGK_MAX_NUMBERS      16

/* Element types of captured arrays; the first ones as in clmgk_dtype. */
typedef enum clmgk_capture_type {
    CLMGK_CAPTURE_F32 = 0,
    CLMGK_CAPTURE_F16 = 1,
    CLMGK_CAPTURE_BF16 = 2,
    CLMGK_CAPTURE_I32 = 3
} clmgk_capture_type;

/* An array that the text of a score or mask reads. Its elements are the call's array capture_<number in the list>. */
typedef struct clmgk_capture {
    const char *name;                        /* in the text; NULL: none, the list ends here */
    clmgk_capture_type type;                 /* I32: an int, the others a float */
    int32_t axes;                            /* 1 .. CLMGK_MAX_CAPTURE_AXES */
    int64_t shape[CLMGK_MAX_CAPTURE_AXES];   /* each 1 .. 2^30 */
    int32_t strided;                         /* 0: dense; `strides` are ignored */
    int64_t strides[CLMGK_MAX_CAPTURE_AXES]; /* 1: strides in elements, 0 or more; the gradient's array is dense */
} clmgk_capture;

/*
 * One attention problem. B, H, G, N and S are at most 2^30 each (else OVERFLOW). Zero is the default of every field
 * except struct_size. The structure may grow: the library reads struct_size bytes and takes missing fields as zero.
 */
typedef struct clmgk_attention_desc {
    size_t struct_size; /* sizeof(clmgk_attention_desc); CLMGK_ATTENTION_DESC_INIT sets it */

    clmgk_variant variant;
    clmgk_dtype dtype; /* storage type of Q, and by default of K, V, O and all gradients: dtype_k, dtype_grad_q below */
    clmgk_score score; /* MGK and SMGK: any; other variants accept only DEFAULT and their own score */
    clmgk_estep estep;

    int64_t batch;      /* B >= 1; 0 is 1 */
    int64_t heads;      /* H >= 1; 0 is 1 */
    int64_t kv_heads;   /* G, a divisor of H; 0 is H. Admixture variants: heads of V only; K has M heads */
    int64_t components; /* M >= 1. 0 is the default: 2 for MGK, SMGK, MLK and SMLK; H for the admixture variants,
                           or mix_after_heads (TALKING_HEADS accepts only that number); 1 for SOFTMAX, GAUSSIAN and
                           LINEAR (they accept only 1) */
    int64_t length;     /* N >= 0; 0: no queries, an empty output */
    int64_t length_k;   /* S >= 1; 0 is N; CLMGK_NO_KEYS: no keys (O is 0, L is -inf) */
    int64_t head_size;  /* D, 1 .. CLMGK_MAX_HEAD_SIZE */
    int64_t value_size; /* E, 1 .. CLMGK_MAX_HEAD_SIZE; 0 is D */

    clmgk_layout q;   /* [B,H,N,D]; admixture variants: [B,M,N,D] */
    clmgk_layout k;   /* [B,G,S,D], MGK and MLK: [B,G,M,S,D], admixture variants: [B,M,S,D] */
    clmgk_layout v;   /* [B,G,S,E] */
    clmgk_layout o;   /* [B,H,N,E] */
    clmgk_layout lse; /* [B,H,N], with mix_after_heads [B,A,N]: `token` is the stride of the last axis */

    clmgk_prior_shape prior_shape;       /* SOFTMAX, LINEAR and the admixture variants accept only UNIFORM */
    clmgk_variance_shape variance_shape; /* mixture family: any (M is 1 for SOFTMAX and GAUSSIAN); admixture and linear
                                            families: only NUMBER */
    double variance;                     /* sigma^2 > 0 with CLMGK_VARIANCE_NUMBER; 0 is sqrt(D). Admixture family: only
                                            sqrt(D); to change the scale, multiply the mixing. Linear family: only 0 */

    int32_t causal;            /* 1: query i does not see keys beyond its diagonal d(i) */
    clmgk_alignment alignment; /* of the diagonal; only causal, use_window and use_alibi read it */
    int32_t use_lengths;       /* 1: keys j >= lengths[b] are hidden, and their contents are never used */
    int32_t use_lengths_q;     /* 1: rows i >= lengths_q[b] give O = 0 and L = -inf */
    int32_t resolved;          /* 1: clmgk_attention_validate resolved it; then length_k = 0 means no keys */

    /* Sliding window around the diagonal d(i) of `alignment`: with use_window = 1 row i sees only the keys with
     * -window_left <= j - d(i) <= window_right. -1, or any value larger than every distance, means no limit. With
     * causal = 1 as well, a key must satisfy both conditions to be seen. */
    int32_t use_window;
    int64_t window_left;
    int64_t window_right;

    /* Packed sequences: T = sequences > 0. The batch is 1. The axes N and S hold T sequences back to back; sequence t
     * consists of rows offsets[t] .. offsets[t+1] - 1. A row sees only keys of its own sequence. Positions i and j, and
     * N and S in the formulas of alignment and window, count within the sequence. The random numbers use t as b. Bias
     * and a prior [H,M,S] index the packed axes. Not allowed with use_lengths_q.
     *
     * With use_lengths each sequence has a cache of its own: K is [T,G,S,D] (MGK [T,G,M,S,D], admixture variants
     * [T,M,S,D]) and V [T,G,S,E], their layouts' `batch` the stride of T; sequence t has the keys 0 .. lengths[t] - 1
     * of its cache, and S is the room of each. Prefill and decoding may be mixed: a sequence may have any number of
     * queries and of keys, also 0. Bias and prior then index the keys of a cache. The softmax families only, for
     * inference: UNSUPPORTED with gradients or statistics; use_offsets_k must be 0. */
    int64_t sequences;
    int32_t use_offsets_k; /* 1: keys have their own offsets (offsets_k); 0: keys use `offsets` (needs N = S) */

    /* Additive bias, f32, dense [bias_batch,bias_heads,bias_length,bias_length_k], added to every component's scaled
     * score. Any finite number is legal, including masks of -1e9 or -FLT_MAX: if all keys of a row have the same bias,
     * the row attends as without a bias, as far as f32 resolves the sum of score and bias. -inf hides the key.
     * bias_batch must divide B: batch b uses bias b mod bias_batch. The other axes are 1 or full. 0 means the full axis
     * (B, H, N, S). */
    int32_t use_bias;
    int64_t bias_batch;
    int64_t bias_heads;
    int64_t bias_length;
    int64_t bias_length_k;

    int32_t use_alibi; /* 1: adds -slopes[h] |j - d(i)| */
    int32_t use_sinks; /* 1: every row's denominator and L include a logit sinks[h] that has no key and no value */
    double softcap;    /* c > 0: score s becomes c tanh(s/c), before prior, bias, ALiBi and masks. Needs one component
                        * and dot scores, or the admixture family (s = A_h / sqrt(D)). 0: no soft-cap */
    double dropout;    /* probability p, 0 <= p < 1, of dropping a normalised weight; kept weights are divided by 1 - p.
                        * L ignores dropout. clmgk_dropout_mask gives the mask; the seed is an argument of the call */

    /* Further passes of the plan. */
    uint32_t gradients;  /* set of clmgk_gradient that clmgk_enqueue_backward computes; 0: no backward pass */
    uint32_t statistics; /* set of clmgk_statistic that clmgk_enqueue_statistics computes; 0: no statistics */
    int32_t combine;     /* 1: the plan has clmgk_enqueue_combine */

    clmgk_layout grad_o; /* dO [B,H,N,E]; may have strides of 0 */
    clmgk_layout grad_q; /* dQ, shape of Q */
    clmgk_layout grad_k; /* dK, shape of K */
    clmgk_layout grad_v; /* dV, shape of V */

    /* Admixture family. */
    int32_t use_mix_weight; /* GFISH, HARD_GFISH, LGFISH, LHARD_GFISH. 1: w is an array; 0: w is 1 */
    int32_t use_mix_offset; /* GFISH, HARD_GFISH. 1: c is an array; 0: c is 0 */
    int32_t shared_noise;   /* FISH, MISH, GFISH, LFISH, LMISH, LGFISH. 1: all heads use the eps of head 0 */

    /* Linear family. It supports causal, alignment, lengths, lengths_q and packed sequences; all other masks and
     * modifiers, statistics and combine must be 0. */
    double guard;           /* finite, >= 0, in the range of f32: added to every denominator */
    double feature_epsilon; /* finite, >= 0, in the range of f32: RELU: added to every feature; else 0 */
    int64_t features;      /* F. FAVOR: R, the number of rows of the projection, 1 .. CLMGK_MAX_FEATURES. The other maps
                              fix F (D or 2 D nu), and 0 stands for it */
    clmgk_feature feature; /* the map phi */
    int32_t feature_order; /* nu of DPFP, 1 to 3; 0 is 1. Other maps: 0 */
    int32_t use_state;     /* 1: the caller passes in a state, which every row sees */
    int32_t use_new_state; /* 1: the forward pass writes the state after all keys. Both: packed sequences have states in
                              a pool alone (state_pool) */

    /* 1: the forward pass also writes lse_low, the low-order part of L that the f32 array lse cannot hold, and the
     * backward pass requires it. Then P has full precision and sums to 1 over a row within rounding, however large L
     * is: for example in rows whose keys all have a large negative bias (-1e9), or whose scores are huge. Not available
     * in the linear family. */
    int32_t use_lse_low;

    /* Storage types of K, of V, and of O and dO, if they differ from Q's: for example a cache of keys and
     * values in f16 for queries in f32. All arithmetic is in f32, whatever the types. K and V may each have one of
     * CLMGK_CACHE_DTYPE_LIST (8-bit floats and integers, ggml's blocks), in batches, caches and pages, in the softmax
     * families and for inference: UNSUPPORTED with gradients and statistics. The engine MATRIX has no mixed heads
     * beside an array in f32 or in blocks, and no backward pass where K's type differs from Q's, or O's from V's. It
     * rounds weights of 16 bits to V's type and is UNSUPPORTED where O's is finer, unless `precision` allows V's (TF32
     * for f16, BF16 for bf16): for example O in f32 beside Q, K and V in bf16 with EXACT, which AUTO gives to another
     * engine. */
    clmgk_storage dtype_k;
    clmgk_storage dtype_v;
    clmgk_storage dtype_o;

    /* Precision of the products of f32 or f16 arrays that the plan may use for speed. EXACT: an output may be off
     * by 3 e + c m, where e is the error of the formula computed with whole matrices in f32 (rounded where arrays
     * are), m the largest exact element, and c = 3e-6 in f32, 5e-4 in f16 and 4e-3 in bf16; a gradient by 5 e + 2 c
     * m (f32: 5 e + 1e-5 m). TF32 and BF16: both the formula that defines e and the plan first round the factors of
     * products, and the vectors whose distances are computed, to that type (the plan may round less coarsely); c is
     * then at least 1e-3 (TF32) or 4e-3 (BF16). A plan uses the lower precision only where a unit of the device is
     * faster with it (TF32: NVIDIA's GPUs, f32 arrays, but not of mixed heads, in the linear family all; TF32 and
     * BF16: weights of V in 16 bits where O is finer, by the engine MATRIX; BF16: AMX
     * of x86 CPUs, or AVX512-BF16 of AMD's, also where the arrays have several types; of f16 arrays alone AMX-FP16
     * multiplies the numbers themselves, also with EXACT); else it is as exact as without this field. All passes of
     * a plan use the same. In the linear family the factors are features, states and gradients, which are f32
     * whatever the arrays are; exponents of FAVOR are never rounded. */
    clmgk_precision precision;

    /* GFISH, HARD_GFISH: the hidden layer (docs/admixture.md). U = mix_hidden, 1 .. CLMGK_MAX_MIXED_HEADS: heads are
     * mixed by U hidden units, A_h = sum_u w_hu relu(sum_k p_uk (G_k + sigma_k eps_u) + b_u) + c_h, with p [U,M],
     * b [U] and w [H,U]. eps of unit u is that of a head of the same number (with shared_noise, of unit 0). 0: no
     * hidden layer. The linear forms and the engine MATRIX have none. */
    int64_t mix_hidden;
    int32_t use_mix_hidden_offset; /* with mix_hidden > 0. 1: b is an array; 0: b is 0 */

    /* A score and a mask of the caller's own, in the language of docs/scores.md; NULL: none. The score replaces every
     * component's scaled score s, after a soft-cap and before prior, bias, ALiBi and masks; a pair for which the mask
     * is false is hidden. The texts read captured arrays and numbers by name. Their elements and values are arrays of
     * the call: new ones compile nothing. A read outside of a captured array takes the nearest element. Texts and names
     * are only read until the plan is made, or the call that takes the descriptor returns. Not in the linear family,
     * which has no scores. */
    const char *score_mod;
    const char *mask_mod;
    clmgk_capture captures[CLMGK_MAX_CAPTURES];
    const char *numbers[CLMGK_MAX_NUMBERS]; /* names, up to the first NULL */

    /* Admixture family: mixing after the softmax (docs/admixture.md). A = mix_after_heads, 1 .. CLMGK_MAX_MIXED_HEADS:
     * the M global heads are mixed into A heads, each with a softmax, and their weights by m [H,A] into those of the H
     * heads of O: O_h = (sum_a m_ha P_a) V_h. Then A takes the place of H in all arrays but O and dO: L, p, w, c,
     * slopes, sinks and the bias are those of the A heads, and dropout and noise are drawn for them. G divides H as
     * without. 0: O_h = P_h V_h. The linear forms and the engine MATRIX have none; combine must be 0. */
    int64_t mix_after_heads;

    /* Storage types of dQ, dK and dV, if they differ from those of Q, K and V; 0: their array's. Gradients in f32 of
     * arrays in 16 bits can be added up over calls or devices without rounding each part. The type says how a result is
     * stored, not how it is computed. */
    clmgk_storage dtype_grad_q;
    clmgk_storage dtype_grad_k;
    clmgk_storage dtype_grad_v;

    /* 1: queries and keys have positions of their own, in the arrays positions and positions_k: numbers 0 .. 2^30 - 1
     * in any order, also equal ones. They take the places of the indices i and j, and the query's position that of its
     * diagonal d(i), in causal masks, windows, ALiBi, score_mod, mask_mod, dropout and noise; `alignment` is not read.
     * So a sequence may be permuted, or cut into pieces that stand anywhere: each row gives what it gave in order, if
     * its keys and positions moved with their tokens. Lengths, offsets, a bias and a prior [H,M,S] go by index as
     * without. Tiles of keys that the positions of a block of queries hide as a whole are not computed. Not in the
     * linear family, whose sums go in the order of the keys; UNSUPPORTED: the engine MATRIX. */
    int32_t use_positions;

    /* Coordinates of the random numbers of dropout and noise, where a call has a part of the batches or heads: b and h
     * are first_batch + b and first_head + h of all_heads heads; 0 of all_heads: of the heads of the call. (Packed
     * sequences count as batches.) So the parts have the numbers of the whole. */
    int64_t first_batch;
    int64_t first_head;
    int64_t all_heads;

    /* Keys and values in pages. page_size > 0: K and V are pools of `pages` pages with page_size keys each: K is
     * [pages,G,page_size,D] (MGK [pages,G,M,page_size,D], admixture variants [pages,M,page_size,D]), V
     * [pages,G,page_size,E], with any strides; their layouts' `batch` is the stride of pages. So [pages,page_size,G,D],
     * and K and V in one buffer, are strides and offsets. Key j of batch b is row j mod page_size of page
     * page_table[b, floor(j / page_size)]; tables may share pages. S is the room of each batch: at most, and by
     * default, table_pages * page_size; lengths say how much is in use. Entries that no key in use needs are not read.
     *
     * use_page_offsets: the compressed form. page_table has table_pages entries for all batches, those of b from
     * page_offsets[b] to page_offsets[b + 1] - 1, and last_page[b] keys of its last page are in use. There are no
     * lengths then, and alignment LENGTHS counts from these keys.
     *
     * Packed sequences (T in the place of B) have pages in the place of caches, with or without use_lengths; see there.
     * The softmax families, without mixing after the softmax. For inference: UNSUPPORTED with gradients and statistics.
     * Numbers on the device are not checked: pages outside of the pools count as the nearest one, and nothing else is
     * read. clmgk_check_pages checks a table in host memory.
     *
     * A pool is one buffer, of at most clmgk_device_info.max_allocation_bytes. Several buffers are several pools: a
     * call of the same plan for each, with the sequences whose pages it has. A sequence with pages in two pools, or
     * more, is divided into ranges of keys, one in each, and clmgk_enqueue_combine joins the parts (docs/training.md).
     */
    int64_t page_size; /* any from 1 on; 0: no pages */
    int64_t pages;
    int64_t table_pages;
    int32_t use_page_offsets;

    /* 1: the keys of a backward call are a part of those that its O and L are of (partial results, below). The passes
     * else take it that sums over a row's keys are complete. */
    int32_t partial_keys;

    /* Classes of blocks of pairs (clmgk_enqueue_mask). Kernels leave out blocks that the mask hides, and evaluate no
     * mask in blocks that it leaves whole. A block has mask_block_q queries and mask_block_k keys, powers of two from
     * 16 to 2^20; 0 is 64. use_mask_blocks = 1: the classes are the call's array mask_blocks, of mask_blocks_batch
     * batches and mask_blocks_heads heads, each 1 or full (0: full). 0: a mask_mod that reads captured arrays is
     * classified anew in each call, in the workspace, if there are at least 4 blocks on either axis; other masks need
     * no classes, and packed sequences with pages have none. use_mask_blocks is not for packed sequences, nor beside
     * use_positions: these have classes by each call alone, of blocks of a sequence's own tokens. */
    int32_t use_mask_blocks;
    int64_t mask_block_q;
    int64_t mask_block_k;
    int64_t mask_blocks_batch;
    int64_t mask_blocks_heads;

    /* New keys and values (clmgk_enqueue_append). R = append > 0: a call writes up to R tokens into K and V, which are
     * pools of pages, or caches. append_k is [R,G,D] (MGK [R,G,M,D], admixture variants [R,M,D]) and append_v [R,G,E],
     * with Q's storage type and any strides: so parts of a packed QKV; the layouts' `batch` is ignored. The first
     * append_rotary_size elements (0: all D, else even, at most 512) of each key are rotated by its token's position,
     * with append_rotary_base >= 1 (0: 10000) and the pairs of clmgk_rotary. Not in the linear family. K and V
     * may have any type, to which the new numbers are rounded: see clmgk_enqueue_append. */
    int64_t append; /* 0: the plan has no clmgk_enqueue_append */
    clmgk_layout append_k;
    clmgk_layout append_v;
    clmgk_rotary append_rotary;
    int64_t append_rotary_size;
    double append_rotary_base;

    /* A prefix that all sequences share, in pages of the pools (cascade attention): Y = prefix_pages > 0. The first
     * prefix_length[0] keys (at most Y page_size) by prefix_table come before each sequence's own, which its table,
     * lengths and masks are of; every row sees all of them. So, if no sequence has more queries than own keys, O
     * and L are those of sequences whose keys begin with the prefix. One part of the pass takes the rows of all
     * sequences together over the prefix, which is read once for many rows; the other takes each sequence's own keys;
     * and the parts are combined, in one call. Only with packed sequences and pages, without window, ALiBi, bias,
     * dropout, noise, score_mod, mask_mod, a prior [H,M,S], a causal mask aligned TOP_LEFT and sizes_at_call, for which
     * a key's place counts. */
    int64_t prefix_pages;

    /* 1: calls have sizes of their own, in args.sizes (clmgk_call_sizes), and the descriptor's are their limits: one
     * plan, compiled once, serves a cache that grows, and batches of any lengths. Engine, parameters and programs are
     * those that suit the limits: at most 4 queries have the form for few rows, which calls of a plan with a limit of
     * more don't have. A plan of fixed sizes may be faster. */
    int32_t sizes_at_call;

    /* Linear family. 1: O_i = C_i^T Phi_i, without a denominator. The sums have their true size, so nothing prevents an
     * overflow: feature maps EXP and FAVOR need exponents whose products fit f32, and O its type. States are the same
     * as with denominators. guard must be 0. */
    int32_t unnormalised;

    /* Linear family, for inference: states of many sequences in a pool. P = state_pool > 0: the arrays of states have
     * P places, [P,H,F,E] and so on. A batch or, which this allows, a packed sequence t goes on with the state of place
     * state_slots[t] (use_state) and leaves its new one at place new_state_slots[t] (use_new_state). A number that is
     * not a place, for example -1, means no state: of zeros, or not stored. Other places are not written. The two may
     * be one place of one pool, state_c and new_state_c the same array: old states are read before new ones are
     * written. So one call takes prompts and single tokens, of old and new sequences, in any order. Two sequences must
     * not leave their states at one place, and none may read a place that another one writes:
     * clmgk_check_state_slots tells. UNSUPPORTED with gradients. */
    int64_t state_pool;

    /* Scales of K and V in E4M3, E5M2 or INT8: the numbers are the stored ones times the scale of their row. 1: the
     * call has the array scale_k, f32, with the shape of K without D: [B,G,S] (MGK [B,G,M,S], admixture variants
     * [B,M,S]; caches and pages as K: [T,G,S], [pages,G,page_size]), or scale_v, that of V without E. Dense, or by the
     * layout's strides, of which any may be 0: with `token` = 0 a head has one scale, with all of them 0 the array.
     * Scales are finite. They multiply products and weights in f32, so stored integers are multiplied exactly. 0: the
     * numbers are the stored ones. Blocks have scales of their own. */
    int32_t use_scale_k;
    int32_t use_scale_v;
    clmgk_layout scale_k;
    clmgk_layout scale_v;
} clmgk_attention_desc;

#define CLMGK_ATTENTION_DESC_INIT CLMGK_INIT(clmgk_attention_desc)

/*
 * Checks a descriptor; needs no device. Returns OK, or INVALID_VALUE, INVALID_SHAPE, OVERFLOW or UNSUPPORTED with a
 * message that names the field, its value and the expected value. On success `resolved`, if not NULL, receives the
 * descriptor with every default filled in: axes, score, variance (sqrt(D)), and strides with `strided` = 1.
 * `resolved` may be `desc`. Its length_k is the number of keys: 0, not CLMGK_NO_KEYS, if there are none; its field
 * `resolved` = 1 tells other functions so. `resolved` has the same version as `desc`: the function writes
 * desc->struct_size bytes.
 */
CLMGK_API clmgk_status clmgk_attention_validate(const clmgk_attention_desc *desc, clmgk_attention_desc *resolved,
                                                clmgk_error *error);

/* Source of a pass's engine and parameters (tuning.h). */
#define CLMGK_TUNING_SOURCE_LIST(X)                                                                                    \
    X(CLASS, 0, "class") /* not tuned: defaults of the device's class, fitted to the shape */                          \
    X(ARCHITECTURE, 2, "architecture")                                                                                 \
    X(DEVICE, 3, "device")                                                                                             \
    X(NEAREST, 4, "nearest")                                                                                           \
    X(BUCKET, 5, "bucket")                                                                                             \
    X(CALLER, 6, "caller") /* clmgk_plan_options named parameters */

typedef enum clmgk_tuning_source {
#define CLMGK_TUNING_ENUM(name, value, ...) CLMGK_TUNING_##name = (value),
    CLMGK_TUNING_SOURCE_LIST(CLMGK_TUNING_ENUM)
#undef CLMGK_TUNING_ENUM
} clmgk_tuning_source;

/* Options of a plan. All zero: the library decides. All passes of a plan use one engine, because the backward pass must
 * round scores as the forward pass did; an engine that cannot run one of the passes is used for none. With Gaussian
 * scores and SMGK the backward pass also uses the forward pass's `lanes`, unless backward_parameters names them. A
 * backward pass accepts O and L of another plan only if both plans have the same engine, `lanes` and `unit`, and, if
 * there are at most four queries, both have gradients: without them few queries have a form of their own. */
typedef struct clmgk_plan_options {
    size_t struct_size;  /* sizeof(clmgk_plan_options) */
    clmgk_engine engine; /* of all passes. AUTO: the library chooses. A named engine: tuned values of other engines are
                          * ignored */
    /* Kernel parameters in place of the defaults: "name=value,name=value" with the names of clmgk_plan_info.parameters
     * (tuning.h lists them); parameters not named keep their defaults. NULL: tuned values, else the defaults. "": the
     * defaults. An unknown name or a value outside its range is an error. */
    const char *parameters;          /* of the forward pass */
    const char *backward_parameters; /* of the backward pass and the statistics; ignored in a plan that has neither. If
                                      * it names `lanes` or `unit`, give them the same values as in `parameters`, so
                                      * that both passes round scores alike; this is not checked */
} clmgk_plan_options;

#define CLMGK_PLAN_OPTIONS_INIT CLMGK_INIT(clmgk_plan_options)

/*
 * A plan: one descriptor on one context, compiled. Immutable. Threads may share it and enqueue it on several queues at
 * once (a short internal lock covers setting arguments and enqueueing).
 */
typedef struct clmgk_plan clmgk_plan;

/*
 * Makes a plan: validates the descriptor; chooses engine and parameters of each pass that the descriptor asks for
 * (forward always); takes the programs from memory or the cache on disk, or compiles them (seconds on some devices);
 * and runs each kernel once on an empty problem, because some drivers finish compiling at the first launch. Blocks.
 * Plans of one context share programs, and it keeps the 64 that were released last: a plan that differs from an earlier
 * one only in sizes of the same kind (docs/training.md) takes well below a millisecond.
 * `options` may be NULL. Thread-safe.
 * Errors: those of clmgk_attention_validate, and INVALID_VALUE (options), UNSUPPORTED, COMPILE, OUT_OF_*, OPENCL.
 */
CLMGK_API clmgk_status clmgk_plan_create(clmgk_context *context, const clmgk_attention_desc *desc,
                                         const clmgk_plan_options *options, clmgk_plan **out, clmgk_error *error);

/*
 * Whether clmgk_plan_create can make a plan of these: OK, or the status and the reason with which it would fail.
 * Compiles nothing and allocates no device memory, but the first call of a context, or the first plan, tests the
 * device's sub-groups and matrix units, if it has any, with small kernels. A plan can fail nevertheless: COMPILE,
 * OUT_OF_*, OPENCL. `options` may be NULL. Thread-safe.
 */
CLMGK_API clmgk_status clmgk_attention_supported(clmgk_context *context, const clmgk_attention_desc *desc,
                                                 const clmgk_plan_options *options, clmgk_error *error);

/* Releases a plan; the context keeps its programs for a time. Enqueued work is not affected. NULL is allowed. Must not
 * be called while another thread is in an enqueue function with the same plan. */
CLMGK_API void clmgk_plan_release(clmgk_plan *plan);

/* The choices that were made for a plan. The strings live as long as the plan. Local and private memory, parameters,
 * options and kernel are those of a pass's main kernel. */
typedef struct clmgk_plan_info {
    size_t struct_size;  /* sizeof(clmgk_plan_info); CLMGK_PLAN_INFO_INIT sets it */
    clmgk_engine engine; /* of all passes */
    clmgk_program_origin origin;
    double compile_ms;        /* time spent on loading or compiling the programs */
    uint64_t workspace_bytes; /* the maximum over all passes: see clmgk_attention_args.workspace */
    uint64_t local_bytes;     /* local memory of a work-group */
    uint64_t private_bytes;   /* private arrays of a work-item, as declared in the kernel */
    const char *parameters;   /* "name=value,...": the kernel parameters in use */
    const char *options;      /* compiler options */
    const char *kernel;       /* kernel name */

    /* The backward pass; AUTO, 0 and NULL in a plan without gradients. */
    clmgk_engine backward_engine; /* the same as `engine` */
    uint64_t backward_workspace_bytes;
    const char *backward_parameters;
    const char *backward_options;
    const char *backward_kernel;

    clmgk_tuning_source tuning; /* of the forward pass's engine and parameters */
    clmgk_tuning_source backward_tuning;

    clmgk_program_keeper keeper; /* who keeps the plan's programs for the next process */

    /* Private memory of a work-item as the driver reports it for the compiled kernel (CL_KERNEL_PRIVATE_MEM_SIZE): on a
     * GPU, the bytes that do not fit in registers. 0: none, or not reported. */
    uint64_t driver_private_bytes;
    uint64_t backward_driver_private_bytes;

    /* Why a program of the plan is not kept, so that the next process will compile it again; "": all are kept. */
    const char *cache_note;
    const char *engine_reason; /* why this engine was chosen, and why each engine tried before cannot run all passes */

    clmgk_precision precision; /* of the products, in all passes; EXACT where the plan makes no use of the descriptor's.
                                * If the caller's parameters differ, the lower */
} clmgk_plan_info;

#define CLMGK_PLAN_INFO_INIT CLMGK_INIT(clmgk_plan_info)

/* Fills `info`. Fails only on NULL arguments and a wrong struct_size (INVALID_VALUE). */
CLMGK_API clmgk_status clmgk_plan_get_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error);

/* Bytes of workspace that suffice for any pass. 0: no workspace is needed; leave clmgk_attention_args.workspace empty
 * (OpenCL creates no buffers of 0 bytes). Returns 0 for a NULL plan. Never grows as N S. */
CLMGK_API size_t clmgk_plan_workspace_size(const clmgk_plan *plan);

/*
 * The sizes of a call, with the descriptor's meanings and defaults: zero of batch is 1, of length_k as many keys as
 * queries, or those of a whole table of pages; a layout with `strided` = 0 is dense. Packed sequences stay packed. Axes
 * that follow the descriptor's are those of the call: of the bias (an axis of 1 stays 1), a prior [H,M,S], classes of
 * blocks, lengths, offsets, positions and tables. Captured arrays keep their shapes, and pools of pages their number of
 * pages.
 */
typedef struct clmgk_call_sizes {
    size_t struct_size;  /* sizeof(clmgk_call_sizes) */
    int64_t batch;       /* each at most the descriptor's */
    int64_t length;      /* 0: no queries */
    int64_t length_k;    /* CLMGK_NO_KEYS: none */
    int64_t sequences;   /* 0 unless the descriptor has packed sequences */
    int64_t table_pages; /* 0 unless the descriptor has pages: then 0 is the descriptor's */
    clmgk_layout q, k, v, o, lse;
    clmgk_layout grad_o, grad_q, grad_k, grad_v; /* with gradients */
    int64_t append;                              /* new tokens; 0: the descriptor's */
    clmgk_layout append_k, append_v;             /* with append */
    clmgk_layout scale_k, scale_v;               /* with use_scale_k and use_scale_v */
} clmgk_call_sizes;

#define CLMGK_CALL_SIZES_INIT CLMGK_INIT(clmgk_call_sizes)

/*
 * The bytes of workspace that any pass of a plan with sizes_at_call = 1 needs for a call of these sizes, never more
 * than clmgk_plan_workspace_size. Errors: INVALID_VALUE (NULL, a plan without sizes_at_call), and those of a call with
 * such sizes: INVALID_VALUE, INVALID_SHAPE (also beyond a limit), OVERFLOW.
 */
CLMGK_API clmgk_status clmgk_plan_call_workspace_size(const clmgk_plan *plan, const clmgk_call_sizes *sizes,
                                                      size_t *bytes, clmgk_error *error);

/*
 * The arrays of a call, all on the device: a field for each line of CLMGK_ARRAY_LIST (arrays.h). The layout is the
 * descriptor's; arrays without a layout there are dense, and f32 or int32. The structure serves all passes of all
 * plans. A pass ignores arrays of other passes. It is an error to pass an array of the pass that the descriptor does
 * not use.
 *
 *   q, k, v         inputs. Statistics do not use v
 *   o, lse          O and L (natural logarithm; -inf for a row without visible keys). Forward and combine: outputs, lse
 *                   optional. Backward: inputs, both required, as the forward pass wrote them. Statistics: ignored. The
 *                   linear family has no L
 *   lse_low         layout of lse: L is lse + lse_low; 0 where lse is -inf. Only with use_lse_low. Forward and combine:
 *                   an optional output; backward: a required input, as the forward pass wrote it
 *   prior           pi, shape prior_shape: required unless UNIFORM
 *   variance        sigma^2, shape variance_shape: required unless NUMBER
 *   shift           b [H,M,D]: required for SMGK and SMLK
 *   lengths         int32 [B], packed sequences [T]: required with use_lengths
 *   lengths_q       int32 [B]: required with use_lengths_q
 *   positions       int32 [B,N] and positions_k int32 [B,S]: required with use_positions
 *   offsets         int32 [T+1]: required with sequences > 0; first 0, last N, ascending
 *   offsets_k       int32 [T+1]: required with use_offsets_k; first 0, last S, ascending
 *   page_table      int32 [B,table_pages], packed sequences [T,table_pages], compressed [table_pages]: required with
 *                   page_size > 0
 *   page_offsets    int32 [B+1], packed sequences [T+1]: required with use_page_offsets; ascending from 0 or more
 *   last_page       int32 [B], packed sequences [T]: required with use_page_offsets; 0 .. page_size
 *   scale_k         f32, shape of K without D, layout scale_k: required with use_scale_k
 *   scale_v         f32, shape of V without E, layout scale_v: required with use_scale_v. clmgk_enqueue_append writes
 *                   scales of INT8; a call without append_v takes no scale_v
 *   bias            [bias_batch,bias_heads,bias_length,bias_length_k]: required with use_bias
 *   slopes          [H]: required with use_alibi
 *   sinks           [H]: required with use_sinks
 *   mix             p [H,M]; MISH, HARD_MISH, LMISH, LHARD_MISH: [M]; with mix_hidden: [U,M]. Any real numbers;
 *                   required for the admixture variants
 *   mix_weight      w [H,M]; with mix_hidden: [H,U]. Required with use_mix_weight
 *   mix_offset      c [H]: required with use_mix_offset. Affects only L, because c is the same for all keys
 *   mix_hidden_offset  b [U]: required with use_mix_hidden_offset
 *   mix_after       m [H,A], any real numbers: required with mix_after_heads = A > 0. The other arrays of heads then
 *                   have A of them: above
 *   noise           sigma [M] >= 0: required for FISH, MISH, GFISH and their linear forms. A negative or NaN sigma
 *                   gives NaN in all rows; 0 gives exactly the results of the variant without noise
 *   projection      w [R,D]: required for FAVOR (clmgk_draw_projection makes one)
 *   capture_0, ...  the captured arrays of score_mod and mask_mod, in the order of desc.captures, with their types:
 *                   required where the descriptor has them
 *   numbers         f32: the values of desc.numbers, in their order; required if it has any
 *   state_c, ...    the state: see below. state_c [B,H,F,E], state_z [B,H,F], state_m [B,H]; admixture variants:
 *                   [B,H,M,F,E], [B,M,F], [B]. Required inputs with use_state; m only for EXP and FAVOR
 *   new_state_c, ...  likewise with use_new_state: required outputs of the forward pass. With state_pool = P > 0 the
 *                   first axis of all of them is P
 *   state_slots     int32 [B], packed sequences [T]: required with state_pool > 0 and use_state; new_state_slots
 *                   likewise with use_new_state
 *   denominator     [B,H,N,2]: two numbers a and c for each row, whose denominator is a e^c. The backward pass uses
 *                   them to recompute the weights. (FAVOR without mixed heads: the denominator of query features
 *                   without the factor e^(-|y|^2 / 2) of clmgk_feature, which cancels. Unnormalised: 1 and 0, or 0 and
 *                   0 in rows beyond the length.) Forward: an optional output; backward: a required input, as the
 *                   forward pass wrote it
 *   grad_o          dO [B,H,N,E], storage type, layout grad_o: required for gradients
 *   grad_lse        dL, layout of L: optional. Ignored in rows whose L is -inf
 *   grad_new_state_c, grad_new_state_z  the gradients of the stored C and z of the new state: optional with
 *                   use_new_state; 0 if omitted
 *   grad_q, ...     gradients in the set desc.gradients: required outputs, each with the shape of its array ([M] for a
 *                   uniform prior, [1] for a variance given as a number)
 *   responsibilities  gamma [B,H,M,N,S]; packed sequences: N and S are the packed axes. This array, counts, new_prior
 *                   and nll are required outputs if the set desc.statistics contains them
 *   counts          shape of the prior ([M] if uniform); counts of several batches or devices may be added up
 *   new_prior       shape of counts
 *   nll             [B,H]; packed sequences: [T,H]; 0 where no row sees a key
 *   append_k, append_v  new keys and values, storage type of Q, layouts append_k and append_v: required with
 *                   append > 0; a call without append_v and v appends keys alone
 *   append_slots    int32 [R]: the slot of each token, required with append > 0
 *   append_positions  int32 [R]: required with append_rotary
 *   prefix_table    int32 [Y], and prefix_length int32 [1], 0 .. Y page_size: required with prefix_pages > 0. As with
 *                   page_table, numbers on the device are not checked, and nothing outside of the pools is read
 *   parts_o         storage type, dense [parts,B,H,N,E]: required input of combine
 *   parts_lse       dense [parts,B,H,N]: required input of combine; parts_lse_low likewise, optional with use_lse_low
 *   workspace       clmgk_plan_workspace_size bytes, or for sizes of a call clmgk_plan_call_workspace_size (offset in
 *                   bytes, a multiple of 4); ignored by a pass without workspace. Concurrent enqueues need distinct
 *                   workspaces
 *
 * State of the linear family. C = sum_j psi_j v_j^T and z = sum_j psi_j, summed over the keys of the state passed in
 * and over all keys j < lengths[b], independent of causality and alignment; psi_j = sum_r pi_r(j) phi(k_jr) with the
 * query head's own pi and b. Large exponents of EXP and FAVOR would overflow, so their states have a log scale m: the
 * true sums are e^m times the stored numbers. There is one m for each batch and head (admixture variants: one for each
 * batch, shared by all heads). The m that the call writes is the largest exponent (x_d of EXP, w_f . y - |y|^2 / 2 of
 * FAVOR) of all keys in components with a positive prior, or the m passed in if that is larger and the state passed in
 * is not all zeros; 0 if there are no keys. A state of zeros with any finite m means no keys. All features share m: a
 * feature that is smaller than the largest by a factor of e^87 or more is stored as 0, and later calls do not see it.
 * The new state may not share memory with the old one, unless they are places of a pool (state_pool). Decoding takes N
 * = S = 1 (or a few tokens) with causal, use_state and use_new_state. Gradients of a state refer to the stored numbers,
 * with m constant.
 *
 * Values. Calls do not check values of device arrays, but no access is ever out of range. Lengths are clamped to 0 ..
 * S (0 .. N), offsets to their axis. A sequence whose end precedes its start is empty; rows outside every sequence are
 * not written. A negative or NaN prior or variance gives NaN in its rows. An infinite number of Q, K or V may give NaN
 * where the formula has an infinity or a weight of 0: on the engine MATRIX, if one of them is f32. Scores must be in
 * the range of f32: beyond it (|q| |k| above 1e38) rows are NaN or, with Gaussian scores, as if they saw no key. Sums
 * over keys are divided last, by a denominator of at most 2^16 for each key: a row may have infinities or NaN in O if a
 * number of V that it sees exceeds FLT_MAX / (2^16 n), n the number of keys that it sees; then so may any gradient. In
 * the linear family the sums of products of features and values must be in the range of f32.
 *
 * Keys that lengths and packing hide are never used. Keys that other masks hide have a weight of 0, which leaves a NaN
 * or an infinity NaN. If K or V has one at key j, O and L may be NaN of rows from which a bias of -inf hides j, and of
 * rows from which causality or the window hides it, but which would see it if they were moved by at most 2048 positions
 * (with use_positions: of all rows of its batch or sequence); no other row that does not see j is reached. With
 * causality, a window or a bias, any element of a gradient may be NaN if such a row is reached, or if Q, dO or dL has a
 * NaN or an infinity in a row that lengths and packing leave.
 *
 * Only the diagonal of alignment LENGTHS uses lengths beyond S (up to 2^29, or S if that is more): then the last
 * lengths[b] - S tokens are not among the keys, but every row keeps its position among all tokens.
 *
 * Aliasing. Inputs may alias each other. Outputs and workspace may share a cl_mem with other arrays, but no element of
 * an output may belong to any other array of the call. Calls refuse an output that shares a byte with another array of
 * the same cl_mem, or of sub-buffers of one cl_mem. The test is exact for interleaved arrays (packed dQKV), except for
 * layouts with so many interleaved axes that the search would take long: calls accept these unchecked. Calls do not
 * detect memory that is shared in other ways (one host pointer, SVM).
 *
 * Access flags. Kernels must be allowed to read inputs (not CL_MEM_WRITE_ONLY), to write outputs (not
 * CL_MEM_READ_ONLY), and to read and write gradients and workspace.
 */
typedef struct clmgk_attention_args {
    size_t struct_size;  /* sizeof(clmgk_attention_args) */
    uint64_t seed;       /* of dropout and noise; use the same for forward and backward of one training step */
    uint32_t accumulate; /* set of clmgk_gradient: these gradients are added to the values in their arrays, the others
                            overwrite them. Gradients that the plan does not compute are ignored */
    int64_t parts;       /* number of parts of combine: 1 .. 2^20 */
    const clmgk_call_sizes *sizes; /* of a plan with sizes_at_call = 1; NULL: the descriptor's */
#define CLMGK_ARGS_FIELD(name, field, ...)      clmgk_buffer field;
#define CLMGK_ARGS_GRAD_FIELD(name, field, ...) clmgk_buffer grad_##field;
    CLMGK_ARRAY_LIST(CLMGK_ARGS_FIELD, CLMGK_ARGS_GRAD_FIELD, CLMGK_ARGS_FIELD)
#undef CLMGK_ARGS_FIELD
#undef CLMGK_ARGS_GRAD_FIELD
} clmgk_attention_args;

#define CLMGK_ATTENTION_ARGS_INIT CLMGK_INIT(clmgk_attention_args)

/* Pointer to the field of an array; NULL for a value outside the enumeration. */
CLMGK_API clmgk_buffer *clmgk_array_buffer(clmgk_attention_args *args, clmgk_array array);

/*
 * Properties of an array of a resolved descriptor. All return 0 (ABSENT) for a value outside the enumeration, and for a
 * NULL descriptor.
 *
 *   shape         sizes and strides; rank 0: the descriptor does not use the array
 *   count         number of elements; 0: no elements, or the descriptor does not use the array
 *   bytes         size that a buffer needs after the array's offset: to the end of the last element, gaps included
 *   element_size  bytes per element; of an array in blocks: per block
 *   dtype         type of a floating-point array's elements; F32 for all other arrays
 *   presence      whether a call of the pass requires, accepts or rejects the array
 *   is_output     1: a call of the pass writes the array, if it takes it
 *
 *     clmgk_attention_validate(&desc, &desc, &error);
 *     args.q.memory = clCreateBuffer(context, CL_MEM_READ_ONLY, clmgk_array_bytes(&desc, CLMGK_ARRAY_Q), NULL, &code);
 *
 * PARTS_O, PARTS_LSE and PARTS_LSE_LOW have the shape of one part. The workspace's size is the plan's.
 */
CLMGK_API clmgk_shape clmgk_array_shape(const clmgk_attention_desc *resolved, clmgk_array array);
CLMGK_API int64_t clmgk_array_count(const clmgk_attention_desc *resolved, clmgk_array array);
CLMGK_API int64_t clmgk_array_bytes(const clmgk_attention_desc *resolved, clmgk_array array);
CLMGK_API size_t clmgk_array_element_size(const clmgk_attention_desc *resolved, clmgk_array array);
CLMGK_API clmgk_dtype clmgk_array_dtype(const clmgk_attention_desc *resolved, clmgk_array array);
CLMGK_API clmgk_presence clmgk_array_presence(const clmgk_attention_desc *resolved, clmgk_pass pass, clmgk_array array);
CLMGK_API int32_t clmgk_array_is_output(const clmgk_attention_desc *resolved, clmgk_pass pass, clmgk_array array);

/*
 * Checks the numbers of pages of a resolved descriptor's call, which calls on device arrays take as they are: entries
 * in use must be pages of the pool, offsets ascending, last pages at most page_size, and no sequence longer than S.
 * INVALID_VALUE, with a message that names the element. Arrays that the descriptor does not use are ignored and may be
 * NULL. clmgk_attention_forward_host calls it.
 */
CLMGK_API clmgk_status clmgk_check_pages(const clmgk_attention_desc *resolved, const int32_t *page_table,
                                         const int32_t *page_offsets, const int32_t *last_page, const int32_t *lengths,
                                         clmgk_error *error);

/*
 * Checks the places of states of a resolved descriptor's call with a pool (state_pool), which calls on device arrays
 * take as they are: each is -1 or a place of the pool, and no two sequences write one. one_pool = 1: state_c and
 * new_state_c are one array, so that no sequence may read a place that another one writes. INVALID_VALUE, with a
 * message that names the element; OUT_OF_HOST_MEMORY. An array that the descriptor does not use is ignored and may be
 * NULL. clmgk_attention_forward_host calls it.
 */
CLMGK_API clmgk_status clmgk_check_state_slots(const clmgk_attention_desc *resolved, const int32_t *state_slots,
                                               const int32_t *new_state_slots, int32_t one_pool, clmgk_error *error);

/*
 * Enqueues the forward pass on `queue`, a queue of the plan's context and device, in order or out of order. Never
 * compiles and never waits for the device. The pass begins after the num_wait events of `wait_list` (as in
 * clEnqueueNDRangeKernel). `event`, if not NULL, receives an event that completes with the pass; the caller releases
 * it. Thread-safe as far as OpenCL is; threads may share the plan and the queue.
 * Errors: INVALID_VALUE (NULL, queue or wait list), INVALID_BUFFER (missing, too small, of another context, not a
 * buffer, not accessible, or an output that shares elements), OUT_OF_*, OPENCL. After INVALID_* nothing was enqueued.
 * Other errors may occur between the kernels of a pass: outputs and workspace are then undefined, and in use until the
 * queue has finished.
 */
CLMGK_API clmgk_status clmgk_enqueue_forward(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                             cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                             clmgk_error *error);

/*
 * ---- backward -------------------------------------------------------------------------------------------------
 *
 * With P_ijr = exp(s_ijr - L_i), dP_ij = dO_i . v_j (with dropout: times 1/(1-p) if the weight is kept, else 0),
 * delta_i = dO_i . O_i, a_ij the weight of v_j in O_i, and dL the gradient of L (0 if omitted):
 *
 *     dS_ijr = P_ijr (dP_ij - delta_i + dL_i)       (hard E-step: only the largest component; of equals, the first)
 *     dV_j = sum_i a_ij dO_i     dQ, dK, dvariance, dshift, dbias, dsinks from dS by the chain rule
 *     dprior_r(j) = sum_i exp(s_ijr - log pi_r(j) - L_i) (dP_ij - delta_i + dL_i)
 *
 * Admixture family, P_hij = exp(A_hij / sqrt(D) - L_hi) and dA_hij = P_hij (dP_hij - delta_hi + dL_hi) / sqrt(D):
 *
 *     dG_kij = sum_h p_hk dA_hij         dQ_k = dG_k K_k         dK_k = dG_k^T Q_k
 *     dp_hk = sum_ij dA_hij (G_kij + sigma_k eps_hij)            (MISH: summed over h too)
 *     dsigma_k = sum_h p_hk sum_ij dA_hij eps_hij
 *
 * Generalised, with x_hkij = p_hk (G_kij + sigma_k eps_hij): each term above has the factor w_hk if x > 0 and is 0
 * otherwise (relu's derivative at 0 is 0); dw_hk = sum_ij dA_hij relu(x_hkij); dc_h = sum_ij dA_hij.
 *
 * Linear family, with den_i the denominator of O_i, Phi_i the query's factor (phi(q_i); admixture variants: the
 * concatenated mixed features of all global heads) and psi_j the key's factor:
 *
 *     g_i = dO_i / den_i,   t_i = -(dO_i . O_i) / den_i          both 0 where den_i is 0; unnormalised: dO_i and 0
 *     dPhi_i = sum_j (v_j . g_i + t_i) psi_j
 *     dpsi_j = sum_i (v_j . g_i + t_i) Phi_i
 *     dv_j = sum_i (psi_j . Phi_i) g_i
 *
 * The chain rule gives dQ, dK, dprior, dshift, dmix, dmix_weight and dnoise from these. The state passed in has the
 * gradients dC = sum_i Phi_i g_i^T and dz = sum_i t_i Phi_i, plus the gradient of the new state.
 *
 * A gradient has the shape of its array; a uniform prior counts as [M], a variance given as a number as [1]. P is
 * recomputed from Q, K and L: no array grows as N S, except the gradient of a bias of that size. Every run with the
 * same plan parameters gives the same bits.
 *
 * Accuracy: both passes round scores alike, so rounding errors of large scores cancel. The rounding of L to f32 gives P
 * a relative error of up to 2^-22 |L|, common to a row; P never exceeds 1. With use_lse_low P has no such error.
 * O is rounded as well: in a row with nearly all its weight on one key, dP and delta are nearly equal, and their
 * difference is mostly rounding error, 2^-22 of |dP| + sum |dO O|. The gradient dpi of a component is computed without
 * the component's prior. If the prior is 0 or tiny, and the component would outweigh all others by more than 2^128
 * without it, dpi exceeds the range of f32 (infinite, or NaN if its terms have both signs); no other gradient is
 * affected.
 */

/*
 * Enqueues the backward pass of a plan whose descriptor has `gradients`. INVALID_VALUE for a plan without gradients and
 * for unknown bits in `accumulate`. Otherwise like clmgk_enqueue_forward.
 */
CLMGK_API clmgk_status clmgk_enqueue_backward(clmgk_plan *plan, cl_command_queue queue,
                                              const clmgk_attention_args *args, cl_uint num_wait,
                                              const cl_event *wait_list, cl_event *event, clmgk_error *error);

/*
 * ---- expectation and maximisation (MGK paper section 2.3, Eq. 8) -----------------------------------------------
 *
 *     gamma_ijr = exp(s_ijr - w_ij) (soft), one-hot at the arg max (hard); 0 where j is hidden from i
 *     N_r(j) = sum gamma_ijr over b and i (and j for [H,M], and h for [M])
 *     new pi_r(j) = N_r(j) / sum_r' N_r'(j), or the given pi where that sum is 0
 *     nll = -(1/N) sum_i log( (1/S) sum_jr pi_r(j) N(q_i; k_jr, sigma_r^2 I) ), over rows and their visible keys
 *           (gaussian scores only; of the bias only -inf counts; ALiBi, sinks and score_mod are ignored)
 */

/* Enqueues the statistics of a plan whose descriptor has `statistics`. Otherwise like clmgk_enqueue_forward. */
CLMGK_API clmgk_status clmgk_enqueue_statistics(clmgk_plan *plan, cl_command_queue queue,
                                                const clmgk_attention_args *args, cl_uint num_wait,
                                                const cl_event *wait_list, cl_event *event, clmgk_error *error);

/*
 * ---- masks of blocks --------------------------------------------------------------------------------------------
 *
 * The array mask_blocks has an int32 for each block of mask_block_q queries and mask_block_k keys: element (b, h, m,
 * n), dense, is the class of the pairs i / mask_block_q = m, j / mask_block_k = n. An axis of batches or heads that is
 * 1 serves all of them.
 *
 *     0       hidden: no pair of the block is visible
 *     2       whole: all pairs are visible, as far as other masks show them; mask_mod is not evaluated
 *     other   mask_mod decides for each pair; without mask_mod, all are visible
 *
 * The caller may fill the array, with or without a mask_mod. Beside a mask_mod its classes must agree with it: 0 only
 * where it is false for all pairs, 2 only where it is true for all. If they do not, it depends on the plan whether the
 * pairs of such a block are visible. clmgk_enqueue_mask fills the array from a mask_mod: once for all layers and steps
 * whose mask, captured arrays, numbers and lengths are the same.
 */

/*
 * Enqueues the classification of all blocks by the mask of a plan whose descriptor has use_mask_blocks = 1 and
 * mask_mod: reads its captured arrays and numbers, and writes mask_blocks. A class other than 1 is always right: the
 * ranges of positions, and of the elements that a block reads, prove it. Masks of comparisons, logic, sums, products,
 * minima, maxima and `?:` are classified; where other functions of floats decide, and where a block reads more than
 * mask_block_q mask_block_k elements of an array, blocks are of class 1. Needs no workspace. Otherwise like
 * clmgk_enqueue_forward.
 */
CLMGK_API clmgk_status clmgk_enqueue_mask(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                          cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                          clmgk_error *error);

/*
 * ---- new keys and values ----------------------------------------------------------------------------------------
 *
 * Slot number s is row s mod page_size of page floor(s / page_size); without pages it is row s mod S of cache
 * floor(s / S), a batch or a sequence. There are at most 2^31 - 1 slots. A token with a negative slot, or one beyond
 * the last, is left out: so a call may have fewer than R tokens. If two tokens have the same slot, it is undefined
 * which of them it holds afterwards. Elements of other slots are not written.
 */

/*
 * Enqueues a plan's append, in one kernel: element (t, g, d) of append_k, rotated by append_positions[t] if the
 * descriptor has append_rotary and rounded to K's type, becomes element (g, d) of slot append_slots[t] of K; and
 * append_v's of V. K and V are outputs, so no two of their elements may share memory. Needs no workspace.
 * INVALID_VALUE: a plan without `append`; INVALID_BUFFER: v, append_v or scale_v (with use_scale_v) without the others.
 * Otherwise like clmgk_enqueue_forward.
 *
 * Types of caches. E4M3, E5M2: x / scale with use_scale_k, which reads the slot's scale from scale_k, else x; rounded
 * to nearest even, and beyond the largest number that one. INT8: with use_scale_k the call writes the slot's scale, max
 * |x| / 127 over the row, to scale_k, an output (no two scales may share memory), and the integers nearest to x /
 * scale; else those nearest to x. Q8_0, Q4_0: the bits of ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref for
 * f32 numbers, where the scale of a block is a normal f32. A NaN or an infinity makes NaN of its row (INT8 with scales)
 * or block. V likewise.
 */
CLMGK_API clmgk_status clmgk_enqueue_append(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                            cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                            clmgk_error *error);

/*
 * ---- partial results --------------------------------------------------------------------------------------------
 *
 * Combines the attentions O^p, L^p over disjoint ranges of keys, p = 0 .. parts-1 (from several devices, or pages of a
 * cache), into the attention over all keys:
 *
 *     L_i = log sum_p exp(L_i^p)          O_i = sum_p exp(L_i^p - L_i) O_i^p
 *
 * Only one of the parts may include sinks. With dtype_o F32 and use_lse_low no part is rounded beyond f32, however many
 * there are: then parts may have parts_lse_low, which their forward passes wrote as lse_low.
 *
 * Gradients over a part of the keys: clmgk_enqueue_backward of a plan with partial_keys = 1, with those keys, and O and
 * L of all keys. Its dK and dV are complete; the sum of the parts' dQ is that of all keys. dsinks is complete in each
 * part.
 */

/* Enqueues the combination with a plan whose descriptor has combine = 1. INVALID_VALUE for another plan and for `parts`
 * outside its range; OVERFLOW if the size of the parts exceeds 64 bits. Needs no workspace. Otherwise like
 * clmgk_enqueue_forward. */
CLMGK_API clmgk_status clmgk_enqueue_combine(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                             cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                             clmgk_error *error);

/*
 * ---- random numbers ---------------------------------------------------------------------------------------------
 *
 * Philox4x32-10 (Salmon et al. 2011): computes four random words from a counter and a key; the result is the same on
 * every device. No argument may be NULL; `words` may be `counter`.
 */
CLMGK_API void clmgk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

/*
 * The dropout mask of rows first_row .. first_row + rows - 1 and keys first_key .. first_key + keys - 1 of (b, h),
 * where b is the batch or the packed sequence. Writes 1 for a kept and 0 for a dropped weight to mask[rows,keys]
 * (caller's host memory, row by row). With p the descriptor's dropout and H its heads, the generator has key = (low,
 * high 32 bits of seed), counter = (floor(j/4), i, b H + h, 0), each word modulo 2^32; the weight is dropped if random
 * word number j mod 4 is below floor(p 2^32). INVALID_VALUE: NULL, a number that is negative or above 2^30, p outside
 * [0,1), H < 1 or h >= H.
 */
CLMGK_API clmgk_status clmgk_dropout_mask(double dropout, uint64_t seed, int64_t heads, int64_t b, int64_t h,
                                          int64_t first_row, int64_t rows, int64_t first_key, int64_t keys,
                                          uint8_t *mask, clmgk_error *error);

/*
 * The noise of rows first_row .. first_row + rows - 1 and keys first_key .. first_key + keys - 1 of (b, h), where b is
 * the batch or the packed sequence, and h = 0 with shared_noise. Writes eps_hij, the standard normal numbers that the
 * kernels draw, to noise[rows,keys] (caller's host memory, row by row). Unit u of a hidden layer has the noise of
 * b H + u: of head u mod H of batch b + floor(u / H). With H the descriptor's heads, the generator
 * has key = (low, high 32 bits of seed), counter = (floor(j/4), i, b H + h, 1); its words w_0 .. w_3 serve four
 * attention keys: with u = (w_0 + 1/2) / 2^32 and v = (w_1 + 1/2) / 2^32, eps = sqrt(-2 ln u) cos(2 pi v) for the first
 * and sqrt(-2 ln u) sin(2 pi v) for the second; w_2 and w_3 give the other two in the same way. The kernels use the
 * same operations: their results are bit for bit the same on devices with a correctly rounded square root.
 * INVALID_VALUE: NULL, a number that is negative or above 2^30, H < 1 or h >= H.
 */
CLMGK_API clmgk_status clmgk_noise_tile(uint64_t seed, int64_t heads, int64_t b, int64_t h, int64_t first_row,
                                        int64_t rows, int64_t first_key, int64_t keys, float *noise,
                                        clmgk_error *error);

/*
 * Draws a projection w for FAVOR (clmgk_feature): writes it to projection[features,head_size] (caller's host memory).
 * With D = head_size, the rows of each block 0 .. D-1, D .. 2D-1, ... are orthogonal to each other. The direction of a
 * row is uniform, and its length is that of a vector of D standard normal numbers, as if the rows were drawn
 * independently. Method: clmgk_noise_tile's formula gives g_fd with counter = (floor(d/4), f, 0, 2), and l_fd with
 * counter = (floor(d/4), f, 1, 2); Gram-Schmidt in double precision makes the rows of g orthogonal in order, and row f
 * is scaled to the length of l_f. The result is the same on every machine, except for the last bit.
 * INVALID_VALUE: NULL, features not in 1 .. CLMGK_MAX_FEATURES, head_size not in 1 .. CLMGK_MAX_HEAD_SIZE.
 * OUT_OF_HOST_MEMORY.
 */
CLMGK_API clmgk_status clmgk_draw_projection(uint64_t seed, int64_t features, int64_t head_size, float *projection,
                                             clmgk_error *error);

/*
 * The arrays of clmgk_attention_args as pointers to their first elements in host memory. Q, K, V, O, their gradients
 * and captured arrays have the descriptor's types (f16, bf16: uint16_t bit patterns; types of 8 bits and blocks:
 * bytes); other arrays are float or int32_t. NULL: no array. There is no workspace. The backward pass reads o and lse;
 * in the linear family it reads o and denominator.
 */
typedef struct clmgk_host_args {
    size_t struct_size; /* sizeof(clmgk_host_args) */
    uint64_t seed;
    uint32_t accumulate;
/* NOLINTBEGIN(bugprone-macro-parentheses): a declared field takes none */
#define CLMGK_HOST_IN const
#define CLMGK_HOST_OUT
#define CLMGK_HOST_STORAGE(access, field) CLMGK_HOST_##access void *field;
#define CLMGK_HOST_F32(access, field)     CLMGK_HOST_##access float *field;
#define CLMGK_HOST_I32(access, field)     CLMGK_HOST_##access int32_t *field;
#define CLMGK_HOST_BYTE(access, field)
#define CLMGK_HOST_CAPTURE(access, field)                   CLMGK_HOST_##access void *field;
#define CLMGK_HOST_FIELD(name, field, element, access, ...) CLMGK_HOST_##element(access, field)
#define CLMGK_HOST_GRADIENT(name, field, element, ...)      CLMGK_HOST_##element(OUT, grad_##field)
#define CLMGK_HOST_STATISTIC(name, field, ...)              CLMGK_HOST_F32(OUT, field)
    /* NOLINTEND(bugprone-macro-parentheses) */
    CLMGK_ARRAY_LIST(CLMGK_HOST_FIELD, CLMGK_HOST_GRADIENT, CLMGK_HOST_STATISTIC)
#undef CLMGK_HOST_IN
#undef CLMGK_HOST_OUT
#undef CLMGK_HOST_STORAGE
#undef CLMGK_HOST_F32
#undef CLMGK_HOST_I32
#undef CLMGK_HOST_BYTE
#undef CLMGK_HOST_CAPTURE
#undef CLMGK_HOST_FIELD
#undef CLMGK_HOST_GRADIENT
#undef CLMGK_HOST_STATISTIC
} clmgk_host_args;

#define CLMGK_HOST_ARGS_INIT CLMGK_INIT(clmgk_host_args)

/*
 * Counts the reads of captured arrays that lie outside of them, and so take the nearest element: a wrong index gives
 * wrong results, but no error. Counted are reads that C would make: of mask_mod in the pairs of a query and a key that
 * lengths, sequences, causality and window leave, of score_mod in those that mask_mod leaves, too, for each head and
 * component. The bias is not looked at, and s counts as 0. Of `args` only the arrays that this needs are read, in host
 * memory: captured arrays, numbers, lengths, offsets, positions and last pages. For tests and debugging: one thread
 * computes each pair. INVALID_VALUE, INVALID_BUFFER for a missing array, OUT_OF_HOST_MEMORY.
 */
CLMGK_API clmgk_status clmgk_count_reads_outside(const clmgk_attention_desc *desc, const clmgk_host_args *args,
                                                 int64_t *count, clmgk_error *error);

/*
 * The forward pass on host arrays, in one blocking call: picks a device by `selector` (as clmgk_select_device; NULL:
 * the default), copies the arrays to it, runs the pass, and writes O (and L, the denominator and the new state if their
 * pointers are not NULL). Elements in the gaps of O and L keep their values. The call also checks values
 * (INVALID_VALUE): lengths must be within 0 .. S (0 .. N); offsets ascending from 0 to the size of the axis; priors and
 * noise finite and non-negative; variances finite and positive; the mixing and the projection finite; the bias without
 * +inf and NaN. An error leaves all outputs unchanged. The descriptor's gradients, statistics and combine must be legal
 * but have no effect. Each call makes a context and a plan: applications that call often should keep a plan instead.
 */
CLMGK_API clmgk_status clmgk_attention_forward_host(const char *selector, const clmgk_attention_desc *desc,
                                                    const clmgk_host_args *args, clmgk_error *error);

/* The backward pass on host arrays: computes the gradients of the descriptor's set `gradients`. Otherwise like
 * clmgk_attention_forward_host. */
CLMGK_API clmgk_status clmgk_attention_backward_host(const char *selector, const clmgk_attention_desc *desc,
                                                     const clmgk_host_args *args, clmgk_error *error);

/* The statistics of host arrays: computes the descriptor's set `statistics`. Otherwise like
 * clmgk_attention_forward_host. */
CLMGK_API clmgk_status clmgk_attention_statistics_host(const char *selector, const clmgk_attention_desc *desc,
                                                       const clmgk_host_args *args, clmgk_error *error);

#endif
