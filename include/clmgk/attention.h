/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: describe a problem, plan it, enqueue it.
 *
 *     clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;      fill in; zero means default
 *     clmgk_plan_create(context, &desc, NULL, &plan, &error);     validates, compiles: the only step that does
 *     clmgk_enqueue_forward(plan, queue, &args, 0, NULL, &event, &error);
 *     clmgk_enqueue_backward(plan, queue, &args, &gradients, 0, NULL, &event, &error);      desc.gradients
 *     clmgk_enqueue_statistics(plan, queue, &args, &statistics, 0, NULL, &event, &error);   desc.statistics
 *
 * or, with arrays on the host and no OpenCL in sight, clmgk_attention_forward_host and its companions.
 *
 * Symbols: B batch, H query heads, G key/value heads (query head h reads head floor(h G / H)), N queries, S keys,
 * D query/key head size, E value head size, M components per key (admixture family: global heads of Q and K, while H
 * counts the local heads of O). Formulas: variants.h.
 */
#ifndef CLMGK_ATTENTION_H
#define CLMGK_ATTENTION_H

#include "context.h"

/* Largest D and E, and largest M, for which kernels are made; the largest M and H of the admixture family. */
#define CLMGK_MAX_HEAD_SIZE   512
#define CLMGK_MAX_COMPONENTS  1024
#define CLMGK_MAX_MIXED_HEADS 256

/*
 * Where an array's elements lie. `strided` = 0: dense, in the axis order stated with the array; the other fields
 * are ignored. `strided` = 1: element (b, h, r, n, d) lies at b*batch + h*head + r*component + n*token + d elements
 * from the array's start; the innermost axis is always contiguous. Strides are in elements, not negative, and may
 * come in any order of size (heads first, tokens first, packed QKV). Inputs may have strides of 0 (broadcast);
 * O, L, dQ, dK and dV may not have two elements in one place. Axes that an array lacks ignore their stride.
 */
typedef struct clmgk_layout {
    int32_t strided;
    int64_t batch;
    int64_t head;
    int64_t component; /* K of MGK only */
    int64_t token;
} clmgk_layout;

/*
 * One attention problem. B, H, G, N and S are at most 2^30 each (OVERFLOW beyond). Every field's zero is its default,
 * except struct_size. The structure may grow: a library reads as many bytes as struct_size says and takes the rest as
 * zero.
 */
typedef struct clmgk_attention_desc {
    size_t struct_size; /* sizeof(clmgk_attention_desc); CLMGK_ATTENTION_DESC_INIT sets it */

    clmgk_variant variant;
    clmgk_dtype dtype; /* storage type of Q, K, V, O and their gradients */
    clmgk_score score; /* MGK and SMGK only; the other variants accept their own score and DEFAULT */
    clmgk_estep estep;

    int64_t batch;      /* B >= 1; 0 is 1 */
    int64_t heads;      /* H >= 1; 0 is 1 */
    int64_t kv_heads;   /* G divides H; 0 is H. Admixture family: heads of V alone */
    int64_t components; /* M >= 1; 0 is 2 for MGK and SMGK, H for the admixture family (TALKING_HEADS: only H), 1 for
                           SOFTMAX and GAUSSIAN (which take no other value) */
    int64_t length;     /* N >= 0: 0 is zero queries (an empty output) */
    int64_t length_k;   /* S >= 0: 0 is zero keys (O is 0, L is -inf) */
    int64_t head_size;  /* D, 1 .. CLMGK_MAX_HEAD_SIZE */
    int64_t value_size; /* E, 1 .. CLMGK_MAX_HEAD_SIZE; 0 is D */

    clmgk_layout q;   /* [B,H,N,D]; admixture family: [B,M,N,D] */
    clmgk_layout k;   /* [B,G,S,D], MGK: [B,G,M,S,D], admixture family: [B,M,S,D] */
    clmgk_layout v;   /* [B,G,S,E] */
    clmgk_layout o;   /* [B,H,N,E] */
    clmgk_layout lse; /* [B,H,N]: here `token` is the stride of the last axis */

    clmgk_prior_shape prior_shape;       /* not with SOFTMAX, nor the admixture family */
    clmgk_variance_shape variance_shape; /* any; M is 1 for SOFTMAX and GAUSSIAN; admixture family: NUMBER */
    double variance;                     /* sigma^2 > 0 with CLMGK_VARIANCE_NUMBER; 0 is sqrt(D), the only one that the
                                            admixture family knows: another scale goes into the mixing */

    int32_t causal;            /* 1: hide keys beyond the diagonal */
    clmgk_alignment alignment; /* of the diagonal */
    int32_t use_lengths;       /* 1: keys j >= lengths[b] are hidden; their memory is never used */
    int32_t use_lengths_q;     /* 1: rows i >= lengths_q[b] give O = 0 and L = -inf */

    /* Sliding window around the diagonal d(i) of `alignment`: with use_window = 1 row i sees only the keys with
     * -window_left <= j - d(i) <= window_right; -1 is no limit, as is a number that no distance reaches. With causal,
     * both hold. */
    int32_t use_window;
    int64_t window_left;
    int64_t window_right;

    /* Packed sequences: T = sequences > 0. The batch is 1, the axes N and S hold T sequences back to back, sequence t
     * the rows offsets[t] .. offsets[t+1] - 1. A row sees the keys of its own sequence only; positions i and j, the
     * lengths N and S of alignment and window, and b of the random numbers are the sequence's own. Bias and a prior
     * [H,M,S] index the packed axes. Not with use_lengths or use_lengths_q. */
    int64_t sequences;
    int32_t use_offsets_k; /* 1: keys have offsets of their own (offsets_k); 0: those of the queries (needs N = S) */

    /* Additive bias, f32, dense [bias_batch,bias_heads,bias_length,bias_length_k], added to every component's scaled
     * score; -inf hides the key. bias_batch n divides B and is used as b mod n; the others are 1 or the full axis.
     * 0: the full axis (of B, H, N, S). */
    int32_t use_bias;
    int64_t bias_batch;
    int64_t bias_heads;
    int64_t bias_length;
    int64_t bias_length_k;

    int32_t use_alibi; /* 1: adds -slopes[h] |j - d(i)| */
    int32_t use_sinks; /* 1: a logit sinks[h] without key and value joins every row's denominator and L */
    double softcap;    /* c > 0: score s becomes c tanh(s/c), before prior, bias, ALiBi and masks. One component and dot
                        * scores, or the admixture family (s = A_h / sqrt(D)). 0: none */
    double dropout;    /* probability p, 0 <= p < 1, that a weight is dropped after normalising; those kept are divided
                        * by 1 - p; L is without dropout. The mask: clmgk_dropout_mask; its seed is an argument */

    /* What else the plan can do. */
    uint32_t gradients;  /* set of clmgk_gradient: what clmgk_enqueue_backward computes; 0: no backward pass */
    uint32_t statistics; /* set of clmgk_statistic: what clmgk_enqueue_statistics computes; 0: nothing */
    int32_t combine;     /* 1: clmgk_enqueue_combine can be used */

    clmgk_layout grad_o; /* dO [B,H,N,E]; may have strides of 0 */
    clmgk_layout grad_q; /* dQ, shape of Q */
    clmgk_layout grad_k; /* dK, shape of K */
    clmgk_layout grad_v; /* dV, shape of V */

    /* Admixture family. */
    int32_t use_mix_weight; /* GFISH, HARD_GFISH. 1: w is an array; 0: w is 1 */
    int32_t use_mix_offset; /* GFISH, HARD_GFISH. 1: c is an array; 0: c is 0 */
    int32_t shared_noise;   /* FISH, MISH, GFISH. 1: one eps for all heads, that of head 0 */
} clmgk_attention_desc;

#define CLMGK_ATTENTION_DESC_INIT CLMGK_INIT(clmgk_attention_desc)

/*
 * Checks a descriptor without any device. OK, or INVALID_VALUE, INVALID_SHAPE, OVERFLOW, UNSUPPORTED with a message
 * that names the field, its value and what was expected. On success `resolved`, if not NULL, receives the descriptor
 * with every default filled in: axes, score, variance (sqrt(D)), and strides with `strided` = 1. It may be `desc`.
 */
CLMGK_API clmgk_status clmgk_attention_validate(const clmgk_attention_desc *desc, clmgk_attention_desc *resolved,
                                                clmgk_error *error);

/* Where a pass's engine and parameters came from (tuning.h). */
typedef enum clmgk_tuning_source {
    CLMGK_TUNING_CLASS = 0, /* not tuned: defaults of the device's class, fitted to the shape */
    CLMGK_TUNING_ARCHITECTURE = 2,
    CLMGK_TUNING_DEVICE = 3,
    CLMGK_TUNING_NEAREST = 4,
    CLMGK_TUNING_BUCKET = 5,
    CLMGK_TUNING_CALLER = 6 /* clmgk_plan_options named parameters */
} clmgk_tuning_source;

/* How a plan is made. All zero: the library decides. */
typedef struct clmgk_plan_options {
    size_t struct_size;  /* sizeof(clmgk_plan_options) */
    clmgk_engine engine; /* with one named, only what was tuned for it is taken */
    /* Kernel parameters that replace the defaults, "name=value,name=value" with the names that
     * clmgk_plan_info.parameters shows (tuning.h lists them); those not named keep their defaults. NULL: what was
     * tuned, else the defaults. "": the defaults. An unknown name or a value outside its range is an error. */
    const char *parameters;          /* of the forward pass */
    const char *backward_parameters; /* of the backward pass and the statistics: clmgk_plan_info.backward_parameters */
} clmgk_plan_options;

#define CLMGK_PLAN_OPTIONS_INIT CLMGK_INIT(clmgk_plan_options)

/*
 * A plan: one descriptor on one context, compiled. Immutable; may be shared by threads and enqueued from several
 * threads on several queues at once (a short internal lock covers setting arguments and enqueueing).
 */
typedef struct clmgk_plan clmgk_plan;

/*
 * Makes a plan: validates, chooses engine and parameters of each pass that the descriptor asks for (forward always),
 * takes the programs from memory, from the cache on disk, or compiles them (seconds on some devices), and runs each
 * kernel once over nothing, so that drivers that finish compiling at the first launch have done so. Blocks. `options`
 * may be NULL. Thread-safe.
 * Errors: those of clmgk_attention_validate, and INVALID_VALUE (options), UNSUPPORTED, COMPILE, OUT_OF_*, OPENCL.
 */
CLMGK_API clmgk_status clmgk_plan_create(clmgk_context *context, const clmgk_attention_desc *desc,
                                         const clmgk_plan_options *options, clmgk_plan **out, clmgk_error *error);

/* Releases a plan. Enqueued work keeps what it needs. NULL is allowed. Not to be called while another thread is in
 * an enqueue function with the same plan. */
CLMGK_API void clmgk_plan_release(clmgk_plan *plan);

/* Where a plan's programs came from: of several, the farthest. */
typedef enum clmgk_program_origin {
    CLMGK_PROGRAM_MEMORY = 0, /* built earlier in the same context */
    CLMGK_PROGRAM_DISK = 1,   /* from the cache's file; the driver may still compile it (NVIDIA: it is PTX) */
    CLMGK_PROGRAM_BUILT = 2   /* given to the driver as source: what it has kept itself, it does not compile again */
} clmgk_program_origin;

/* What a plan chose. The strings live as long as the plan. Engine, local and private memory, parameters, options and
 * kernel are those of a pass's main kernel. */
typedef struct clmgk_plan_info {
    clmgk_engine engine; /* of the forward pass */
    clmgk_program_origin origin;
    double compile_ms;        /* time that getting the programs took: short where the driver has kept them */
    uint64_t workspace_bytes; /* see clmgk_attention_args.workspace: the most of all passes */
    uint64_t local_bytes;     /* local memory of a work-group */
    uint64_t private_bytes;   /* private arrays of a work-item, as declared in the kernel */
    const char *parameters;   /* "name=value,...": the kernel parameters in use */
    const char *options;      /* the compiler's options */
    const char *kernel;       /* the kernel's name */

    /* The same of the backward pass; AUTO, 0 and NULL in a plan without gradients. */
    clmgk_engine backward_engine;
    uint64_t backward_workspace_bytes;
    const char *backward_parameters;
    const char *backward_options;
    const char *backward_kernel;

    clmgk_tuning_source tuning; /* of the forward pass's engine and parameters */
    clmgk_tuning_source backward_tuning;

    clmgk_program_keeper keeper; /* who keeps the plan's programs for the next process */

    /* Private memory of a work-item as the driver reports it after compiling: on a GPU, what does not fit in registers
     * (CL_KERNEL_PRIVATE_MEM_SIZE). 0: none, or not reported. */
    uint64_t driver_private_bytes;
    uint64_t backward_driver_private_bytes;
} clmgk_plan_info;

/* Fills `info`. Fails only on NULL arguments (INVALID_VALUE). */
CLMGK_API clmgk_status clmgk_plan_get_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error);

/* Bytes of workspace that any one enqueue of the plan needs; 0 for a NULL plan. Never grows as N S. */
CLMGK_API size_t clmgk_plan_workspace_size(const clmgk_plan *plan);

/* A place in a buffer: `offset` is in elements of the array's own type, any alignment of elements. */
typedef struct clmgk_buffer {
    cl_mem memory; /* NULL: not given */
    uint64_t offset;
} clmgk_buffer;

/*
 * The arrays of one forward pass, all on the device, shapes as in the descriptor. Values of device arrays are not
 * checked: lengths are clamped to 0 .. S (0 .. N), offsets to their axis (a sequence that would end before it begins
 * is empty; rows that no sequence covers are not written), a negative or NaN prior or variance gives NaN in its rows,
 * and nothing is ever read or written out of range.
 * Inputs may alias each other. Outputs and workspace may lie in the same cl_mem as other arrays, but no element of
 * an output may be an element of any other array of the call.
 */
typedef struct clmgk_attention_args {
    size_t struct_size; /* sizeof(clmgk_attention_args) */
    clmgk_buffer q, k, v;
    clmgk_buffer o;
    clmgk_buffer lse;       /* optional: L, f32, natural logarithm, -inf for a row without visible key */
    clmgk_buffer prior;     /* f32, prior_shape; required unless it is UNIFORM */
    clmgk_buffer variance;  /* f32, variance_shape; required unless it is NUMBER */
    clmgk_buffer shift;     /* f32 b [H,M,D]: SMGK, required */
    clmgk_buffer lengths;   /* int32 [B]: required with use_lengths */
    clmgk_buffer lengths_q; /* int32 [B]: required with use_lengths_q */
    clmgk_buffer workspace; /* clmgk_plan_workspace_size bytes (offset in bytes, a multiple of 4); ignored by a pass
                               that needs none. Concurrent enqueues need distinct ones */
    clmgk_buffer offsets;   /* int32 [T+1]: required with sequences > 0; first 0, last N, ascending */
    clmgk_buffer offsets_k; /* int32 [T+1]: required with use_offsets_k; first 0, last S, ascending */
    clmgk_buffer bias;      /* f32: required with use_bias */
    clmgk_buffer slopes;    /* f32 [H]: required with use_alibi */
    clmgk_buffer sinks;     /* f32 [H]: required with use_sinks */
    uint64_t seed;          /* of dropout and noise; forward and backward of one step use the same */

    /* Admixture family, all f32, dense. */
    clmgk_buffer mix;        /* p [H,M]; MISH, HARD_MISH: [M]. Any real numbers; required */
    clmgk_buffer mix_weight; /* w [H,M]: required with use_mix_weight */
    clmgk_buffer mix_offset; /* c [H]: required with use_mix_offset. Enters L alone: the same for all keys */
    clmgk_buffer noise; /* sigma [M] >= 0: FISH, MISH, GFISH, required. A negative or NaN one gives NaN in all rows;
                           0 is exactly the form without noise */
} clmgk_attention_args;

#define CLMGK_ATTENTION_ARGS_INIT CLMGK_INIT(clmgk_attention_args)

/*
 * Enqueues the forward pass on `queue`, a queue of the plan's context and device, in order or out of order. It never
 * compiles and never waits for the device. It begins after the events of `wait_list` (num_wait of them; as in
 * clEnqueueNDRangeKernel). `event`, if not NULL, receives the event of its end: the caller releases it.
 * Thread-safe for one plan and one queue as far as OpenCL is.
 * Errors: INVALID_VALUE (NULL, queue or wait list), INVALID_BUFFER (missing, too small, of another context),
 * OUT_OF_*, OPENCL. On one of the first two nothing was enqueued. After one of the others, which may come in the middle
 * of a pass of several kernels, outputs and workspace are undefined, and in use until the queue is finished.
 */
CLMGK_API clmgk_status clmgk_enqueue_forward(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                             cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                             clmgk_error *error);

/*
 * ---- backward -------------------------------------------------------------------------------------------------
 *
 * With P_ijr = exp(s_ijr - L_i), dP_ij = dO_i . v_j, delta_i = dO_i . O_i and a gradient dL of L (0 where not given):
 *
 *     dS_ijr = P_ijr (dP_ij - delta_i + dL_i)       (hard E-step: only the component that is the arg max, the first)
 *     dV_j = sum_i a_ij dO_i     dQ, dK, dvariance, dshift, dbias, dsinks from dS by the chain rule
 *     dprior_r(j) = sum_i exp(s_ijr - log pi_r(j) - L_i) (dP_ij - delta_i + dL_i)
 *
 * Admixture family, P_hij = exp(A_hij / sqrt(D) - L_hi) and dA_hij = P_hij (dP_hij - delta_hi + dL_hi) / sqrt(D):
 *
 *     dG_kij = sum_h p_hk dA_hij         dQ_k = dG_k K_k         dK_k = dG_k^T Q_k
 *     dp_hk = sum_ij dA_hij (G_kij + sigma_k eps_hij)            (MISH: summed over h too)
 *     dsigma_k = sum_h p_hk sum_ij dA_hij eps_hij
 *
 * generalised, x_hkij = p_hk (G_kij + sigma_k eps_hij): each of these terms has the factor w_hk where x > 0 and is 0
 * elsewhere (relu's derivative at 0 is 0), dw_hk = sum_ij dA_hij relu(x_hkij), dc_h = sum_ij dA_hij.
 *
 * Gradients have the shape of what they are the gradient of; a uniform prior counts as [M], a variance that is a
 * number as [1]. P is recomputed from Q, K and L: no array grows as N S, unless it is the gradient of such a bias. The
 * results are the same, bit for bit, in every run with the same parameters of the plan.
 *
 * Accuracy: scores are rounded alike in both passes, so that what rounding does to large ones cancels. P has the
 * rounding of L, which is an f32: a relative error of up to 2^-22 |L| that is common to a row. O is rounded as well:
 * where a row has nearly all its weight on one key, dP - delta is the rounding of two numbers that are nearly equal,
 * 2^-22 of them. dpi of a component whose prior is 0 or tiny is made without the prior, and leaves f32 (infinite, or
 * NaN where its terms have both signs) if the component would outweigh all others by more than 2^128; no other gradient
 * is affected.
 */
typedef enum clmgk_gradient {
    CLMGK_GRADIENT_Q = 1,
    CLMGK_GRADIENT_K = 2, /* SMGK: of the one key that all components share */
    CLMGK_GRADIENT_V = 4,
    CLMGK_GRADIENT_PRIOR = 8, /* not with SOFTMAX; 0 with the hard E-step */
    CLMGK_GRADIENT_VARIANCE = 16,
    CLMGK_GRADIENT_SHIFT = 32,        /* SMGK */
    CLMGK_GRADIENT_BIAS = 64,         /* needs use_bias */
    CLMGK_GRADIENT_SINKS = 128,       /* needs use_sinks */
    CLMGK_GRADIENT_MIX = 256,         /* admixture family */
    CLMGK_GRADIENT_MIX_WEIGHT = 512,  /* GFISH, HARD_GFISH: also of a w that is 1 by default */
    CLMGK_GRADIENT_MIX_OFFSET = 1024, /* the same, of c; 0 without dL */
    CLMGK_GRADIENT_NOISE = 2048       /* FISH, MISH, GFISH */
} clmgk_gradient;
#define CLMGK_GRADIENT_ALL 4095

/* The gradients of one backward pass. Those of the descriptor's set `gradients` are required, others may not be given.
 * No element of an output may be an element of any other array of the call. */
typedef struct clmgk_gradient_args {
    size_t struct_size;    /* sizeof(clmgk_gradient_args) */
    clmgk_buffer grad_o;   /* dO, storage type, layout grad_o: required */
    clmgk_buffer grad_lse; /* dL, f32, layout of L; optional. Ignored in rows whose L is -inf */
    clmgk_buffer grad_q;   /* dQ, dK, dV: storage type, layouts grad_q, grad_k, grad_v */
    clmgk_buffer grad_k;
    clmgk_buffer grad_v;
    clmgk_buffer grad_prior;      /* f32, dense, prior_shape ([M] for a uniform prior) */
    clmgk_buffer grad_variance;   /* f32, dense, variance_shape ([1] for a number) */
    clmgk_buffer grad_shift;      /* f32 [H,M,D] */
    clmgk_buffer grad_bias;       /* f32, shape of the bias */
    clmgk_buffer grad_sinks;      /* f32 [H] */
    uint32_t accumulate;          /* set of clmgk_gradient: these are added to what their array holds, the others
                                     overwrite it. Those that the plan does not compute are ignored */
    clmgk_buffer grad_mix;        /* f32, shape of p */
    clmgk_buffer grad_mix_weight; /* f32 [H,M] */
    clmgk_buffer grad_mix_offset; /* f32 [H] */
    clmgk_buffer grad_noise;      /* f32 [M] */
} clmgk_gradient_args;

#define CLMGK_GRADIENT_ARGS_INIT CLMGK_INIT(clmgk_gradient_args)

/*
 * Enqueues the backward pass of a plan whose descriptor has `gradients`. args->o and args->lse are inputs here, both
 * required: the forward pass's own. Everything else as clmgk_enqueue_forward; INVALID_VALUE for a plan without
 * gradients, and for a number in `accumulate` that is no set.
 */
CLMGK_API clmgk_status clmgk_enqueue_backward(clmgk_plan *plan, cl_command_queue queue,
                                              const clmgk_attention_args *args, const clmgk_gradient_args *gradients,
                                              cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                              clmgk_error *error);

/*
 * ---- expectation and maximisation (MGK paper section 2.3, Eq. 8) -----------------------------------------------
 *
 *     gamma_ijr = exp(s_ijr - w_ij) (soft), one-hot at the arg max (hard); 0 where j is hidden from i
 *     N_r(j) = sum gamma_ijr over b and i (and j for [H,M], and h for [M])
 *     new pi_r(j) = N_r(j) / sum_r' N_r'(j), the given pi where that sum is 0
 *     nll = -(1/N) sum_i log( (1/S) sum_jr pi_r(j) N(q_i; k_jr, sigma_r^2 I) ), over the rows and keys that see each
 *           other (gaussian scores only; bias counts only where it hides, ALiBi and sinks not at all)
 */
typedef enum clmgk_statistic {
    CLMGK_STATISTIC_RESPONSIBILITIES = 1, /* gamma: an array of B H M N S numbers */
    CLMGK_STATISTIC_COUNTS = 2,           /* N_r */
    CLMGK_STATISTIC_NEW_PRIOR = 4,
    CLMGK_STATISTIC_NLL = 8
} clmgk_statistic;
#define CLMGK_STATISTIC_ALL 15

/* All f32, dense; those of the descriptor's set `statistics` are required, others may not be given. */
typedef struct clmgk_statistic_args {
    size_t struct_size;            /* sizeof(clmgk_statistic_args) */
    clmgk_buffer responsibilities; /* [B,H,M,N,S]; packed: of the packed axes */
    clmgk_buffer counts;           /* shape of the prior ([M] for a uniform one); the sums of several batches or
                                      devices may be added */
    clmgk_buffer new_prior;        /* the same shape */
    clmgk_buffer nll;              /* [B,H]; packed: [T,H]; 0 where no row sees a key */
} clmgk_statistic_args;

#define CLMGK_STATISTIC_ARGS_INIT CLMGK_INIT(clmgk_statistic_args)

/* Enqueues the statistics of a plan whose descriptor asks for some. Of `args`, v, o and lse are ignored. Otherwise as
 * clmgk_enqueue_backward. */
CLMGK_API clmgk_status clmgk_enqueue_statistics(clmgk_plan *plan, cl_command_queue queue,
                                                const clmgk_attention_args *args,
                                                const clmgk_statistic_args *statistics, cl_uint num_wait,
                                                const cl_event *wait_list, cl_event *event, clmgk_error *error);

/*
 * ---- partial results --------------------------------------------------------------------------------------------
 *
 * Attention over all keys from attentions over disjoint ranges of them, p = 0 .. parts-1 (of several devices, or of a
 * cache's pages):
 *
 *     L_i = log sum_p exp(L_i^p)          O_i = sum_p exp(L_i^p - L_i) O_i^p
 *
 * A logit that is no key's (sinks) must be in one of the parts only.
 */
typedef struct clmgk_combine_args {
    size_t struct_size;     /* sizeof(clmgk_combine_args) */
    int64_t parts;          /* 1 .. 2^20 */
    clmgk_buffer parts_o;   /* storage type, dense [parts,B,H,N,E] */
    clmgk_buffer parts_lse; /* f32, dense [parts,B,H,N] */
    clmgk_buffer o;         /* storage type, layout of O */
    clmgk_buffer lse;       /* optional: f32, layout of L */
} clmgk_combine_args;

#define CLMGK_COMBINE_ARGS_INIT CLMGK_INIT(clmgk_combine_args)

/* Enqueues the combination with a plan whose descriptor has combine = 1 (INVALID_VALUE for another, and for a number
 * of parts outside its range). It needs no workspace. Otherwise as clmgk_enqueue_forward. */
CLMGK_API clmgk_status clmgk_enqueue_combine(clmgk_plan *plan, cl_command_queue queue, const clmgk_combine_args *args,
                                             cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                             clmgk_error *error);

/*
 * ---- random numbers ---------------------------------------------------------------------------------------------
 *
 * Philox4x32-10 (Salmon et al. 2011): four words of a counter and a key, the same on every device. No argument may be
 * NULL; `words` may be `counter`.
 */
CLMGK_API void clmgk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

/*
 * The dropout mask of rows first_row .. first_row + rows - 1 and keys first_key .. first_key + keys - 1 of (b, h), b
 * the batch or the packed sequence: mask[rows,keys] (caller's memory, row by row) becomes 1 where the weight is kept,
 * 0 where it is dropped. Host only. With p the descriptor's dropout and H its heads:
 * key = (low, high 32 bits of seed), counter = (floor(j/4), i, b H + h, 0), dropped where word j mod 4 < floor(p 2^32);
 * the counter's words are taken modulo 2^32.
 * INVALID_VALUE: NULL, a negative number or one beyond 2^30, p outside [0,1), H < 1 or h >= H.
 */
CLMGK_API clmgk_status clmgk_dropout_mask(double dropout, uint64_t seed, int64_t heads, int64_t b, int64_t h,
                                          int64_t first_row, int64_t rows, int64_t first_key, int64_t keys,
                                          uint8_t *mask, clmgk_error *error);

/*
 * The noise of rows first_row .. first_row + rows - 1 and keys first_key .. first_key + keys - 1 of (b, h), b the batch
 * or the packed sequence, h = 0 with shared_noise: noise[rows,keys] (caller's memory, row by row) becomes eps_hij, the
 * standard normal numbers that the kernels draw. Host only. With H the descriptor's heads:
 * key = (low, high 32 bits of seed), counter = (floor(j/4), i, b H + h, 1); words w_0 .. w_3 belong to four keys:
 * u = (w_0 + 1/2) / 2^32, v = (w_1 + 1/2) / 2^32, eps = sqrt(-2 ln u) cos(2 pi v) for the first, sin for the second
 * key; w_2 and w_3 likewise for the other two. The kernels compute it by the same operations: bit for bit the same
 * on devices whose square root is correctly rounded.
 * INVALID_VALUE: NULL, a negative number or one beyond 2^30, H < 1 or h >= H.
 */
CLMGK_API clmgk_status clmgk_noise_tile(uint64_t seed, int64_t heads, int64_t b, int64_t h, int64_t first_row,
                                        int64_t rows, int64_t first_key, int64_t keys, float *noise,
                                        clmgk_error *error);

/*
 * The same arrays on the host. Q, K, V, O hold elements of the descriptor's dtype (f16, bf16: uint16_t bit patterns),
 * the others as in clmgk_attention_args. NULL: not given. In backward, o and lse are inputs: they are only read.
 */
typedef struct clmgk_host_args {
    size_t struct_size; /* sizeof(clmgk_host_args) */
    const void *q;
    const void *k;
    const void *v;
    void *o;
    float *lse;
    const float *prior;
    const float *variance;
    const float *shift;
    const int32_t *lengths;
    const int32_t *lengths_q;
    const int32_t *offsets;
    const int32_t *offsets_k;
    const float *bias;
    const float *slopes;
    const float *sinks;
    uint64_t seed;
    const float *mix;
    const float *mix_weight;
    const float *mix_offset;
    const float *noise;
} clmgk_host_args;

#define CLMGK_HOST_ARGS_INIT CLMGK_INIT(clmgk_host_args)

/*
 * The forward pass on host arrays, in one blocking call: picks a device by `selector` (as clmgk_select_device; NULL
 * is the default), moves the arrays, runs, and writes O (and L if given). Elements between the strides of O and L
 * keep their values. Here the values are checked too: lengths within 0 .. S (0 .. N), offsets that begin with 0, end
 * with the axis and ascend, priors not negative, infinite or NaN, variances positive and finite, noise not negative,
 * infinite or NaN, the mixing finite, no +inf or NaN in the bias (INVALID_VALUE). On an error no output is touched. The
 * descriptor's gradients, statistics and combine are not looked at beyond being legal. Makes a context and a plan for
 * each call: programs that call often should keep a plan.
 */
CLMGK_API clmgk_status clmgk_attention_forward_host(const char *selector, const clmgk_attention_desc *desc,
                                                    const clmgk_host_args *args, clmgk_error *error);

/* The gradients, as in clmgk_gradient_args, on the host. */
typedef struct clmgk_host_gradients {
    size_t struct_size; /* sizeof(clmgk_host_gradients) */
    const void *grad_o;
    const float *grad_lse;
    void *grad_q;
    void *grad_k;
    void *grad_v;
    float *grad_prior;
    float *grad_variance;
    float *grad_shift;
    float *grad_bias;
    float *grad_sinks;
    uint32_t accumulate;
    float *grad_mix;
    float *grad_mix_weight;
    float *grad_mix_offset;
    float *grad_noise;
} clmgk_host_gradients;

#define CLMGK_HOST_GRADIENTS_INIT CLMGK_INIT(clmgk_host_gradients)

/* The backward pass on host arrays: args->o and args->lse hold the forward pass's results; what is wanted is the
 * descriptor's set `gradients`. Otherwise as clmgk_attention_forward_host. */
CLMGK_API clmgk_status clmgk_attention_backward_host(const char *selector, const clmgk_attention_desc *desc,
                                                     const clmgk_host_args *args, const clmgk_host_gradients *gradients,
                                                     clmgk_error *error);

/* The statistics, as in clmgk_statistic_args, on the host. */
typedef struct clmgk_host_statistics {
    size_t struct_size; /* sizeof(clmgk_host_statistics) */
    float *responsibilities;
    float *counts;
    float *new_prior;
    float *nll;
} clmgk_host_statistics;

#define CLMGK_HOST_STATISTICS_INIT CLMGK_INIT(clmgk_host_statistics)

/* The statistics of host arrays, the descriptor's set `statistics`: v, o and lse of `args` are ignored. Otherwise as
 * clmgk_attention_forward_host. */
CLMGK_API clmgk_status clmgk_attention_statistics_host(const char *selector, const clmgk_attention_desc *desc,
                                                       const clmgk_host_args *args,
                                                       const clmgk_host_statistics *statistics, clmgk_error *error);

#endif
