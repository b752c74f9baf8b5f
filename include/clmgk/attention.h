/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: describe a problem, plan it, enqueue it.
 *
 *     clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;      fill in; zero means default
 *     clmgk_plan_create(context, &desc, NULL, &plan, &error);     validates, compiles: the only step that does
 *     clmgk_enqueue_forward(plan, queue, &args, 0, NULL, &event, &error);
 *
 * or, with arrays on the host and no OpenCL in sight, clmgk_attention_forward_host.
 *
 * Symbols: B batch, H query heads, G key/value heads (query head h reads head floor(h G / H)), N queries, S keys,
 * D query/key head size, E value head size, M components per key. Formulas: variants.h.
 */
#ifndef CLMGK_ATTENTION_H
#define CLMGK_ATTENTION_H

#include "context.h"

/* Largest D and E, and largest M, for which kernels are made. */
#define CLMGK_MAX_HEAD_SIZE  512
#define CLMGK_MAX_COMPONENTS 1024

/*
 * Where an array's elements lie. `strided` = 0: dense, in the axis order stated with the array; the other fields
 * are ignored. `strided` = 1: element (b, h, r, n, d) lies at b*batch + h*head + r*component + n*token + d elements
 * from the array's start; the innermost axis is always contiguous. Strides are in elements, not negative, and may
 * come in any order of size (heads first, tokens first, packed QKV). K and V may have strides of 0 (broadcast);
 * O and L may not have two elements in one place. Axes that an array lacks ignore their stride.
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
    clmgk_dtype dtype; /* storage type of Q, K, V, O */
    clmgk_score score; /* MGK and SMGK only; the other variants accept their own score and DEFAULT */
    clmgk_estep estep;

    int64_t batch;      /* B >= 1; 0 is 1 */
    int64_t heads;      /* H >= 1; 0 is 1 */
    int64_t kv_heads;   /* G divides H; 0 is H */
    int64_t components; /* M >= 1; 0 is 2 for MGK and SMGK, 1 for the others (which take no other value) */
    int64_t length;     /* N >= 0: 0 is zero queries (an empty output) */
    int64_t length_k;   /* S >= 0: 0 is zero keys (O is 0, L is -inf) */
    int64_t head_size;  /* D, 1 .. CLMGK_MAX_HEAD_SIZE */
    int64_t value_size; /* E, 1 .. CLMGK_MAX_HEAD_SIZE; 0 is D */

    clmgk_layout q;   /* [B,H,N,D] */
    clmgk_layout k;   /* [B,G,S,D], MGK: [B,G,M,S,D] */
    clmgk_layout v;   /* [B,G,S,E] */
    clmgk_layout o;   /* [B,H,N,E] */
    clmgk_layout lse; /* [B,H,N]: here `token` is the stride of the last axis */

    clmgk_prior_shape prior_shape;       /* not with SOFTMAX */
    clmgk_variance_shape variance_shape; /* any; M is 1 for SOFTMAX and GAUSSIAN */
    double variance;                     /* sigma^2 > 0 with CLMGK_VARIANCE_NUMBER; 0 is sqrt(D) */

    int32_t causal;            /* 1: hide keys beyond the diagonal */
    clmgk_alignment alignment; /* of the diagonal */
    int32_t use_lengths;       /* 1: keys j >= lengths[b] are hidden; their memory is never used */
    int32_t use_lengths_q;     /* 1: rows i >= lengths_q[b] give O = 0 and L = -inf */
} clmgk_attention_desc;

#define CLMGK_ATTENTION_DESC_INIT CLMGK_INIT(clmgk_attention_desc)

/*
 * Checks a descriptor without any device. OK, or INVALID_VALUE, INVALID_SHAPE, OVERFLOW, UNSUPPORTED with a message
 * that names the field, its value and what was expected. On success `resolved`, if not NULL, receives the descriptor
 * with every default filled in: axes, score, variance (sqrt(D)), and strides with `strided` = 1. It may be `desc`.
 */
CLMGK_API clmgk_status clmgk_attention_validate(const clmgk_attention_desc *desc, clmgk_attention_desc *resolved,
                                                clmgk_error *error);

/* How a plan is made. All zero: the library decides. */
typedef struct clmgk_plan_options {
    size_t struct_size; /* sizeof(clmgk_plan_options) */
    clmgk_engine engine;
    /* Kernel parameters that replace the defaults, "name=value,name=value" with the names that
     * clmgk_plan_info.parameters shows; NULL: defaults. An unknown name or a value outside its range is an error. */
    const char *parameters;
} clmgk_plan_options;

#define CLMGK_PLAN_OPTIONS_INIT CLMGK_INIT(clmgk_plan_options)

/*
 * A plan: one descriptor on one context, compiled. Immutable; may be shared by threads and enqueued from several
 * threads on several queues at once (a short internal lock covers setting arguments and enqueueing).
 */
typedef struct clmgk_plan clmgk_plan;

/*
 * Makes a plan: validates, chooses engine and parameters, takes the program from memory, from the cache on disk, or
 * compiles it (seconds on some devices), and runs the kernel once over nothing, so that drivers that finish
 * compiling at the first launch have done so. Blocks. `options` may be NULL. Thread-safe.
 * Errors: those of clmgk_attention_validate, and INVALID_VALUE (options), UNSUPPORTED, COMPILE, OUT_OF_*, OPENCL.
 */
CLMGK_API clmgk_status clmgk_plan_create(clmgk_context *context, const clmgk_attention_desc *desc,
                                         const clmgk_plan_options *options, clmgk_plan **out, clmgk_error *error);

/* Releases a plan. Enqueued work keeps what it needs. NULL is allowed. Not to be called while another thread is in
 * an enqueue function with the same plan. */
CLMGK_API void clmgk_plan_release(clmgk_plan *plan);

/* Where a plan's program came from. */
typedef enum clmgk_program_origin {
    CLMGK_PROGRAM_MEMORY = 0, /* built earlier in the same context */
    CLMGK_PROGRAM_DISK = 1,   /* from the cache's file */
    CLMGK_PROGRAM_BUILT = 2   /* compiled from source */
} clmgk_program_origin;

/* What a plan chose. The strings live as long as the plan. */
typedef struct clmgk_plan_info {
    clmgk_engine engine;
    clmgk_program_origin origin;
    double compile_ms;        /* time that getting the program took */
    uint64_t workspace_bytes; /* see clmgk_attention_args.workspace */
    uint64_t local_bytes;     /* local memory of a work-group */
    uint64_t private_bytes;   /* private arrays of a work-item, as declared in the kernel */
    const char *parameters;   /* "name=value,...": the kernel parameters in use */
    const char *options;      /* the compiler's options */
    const char *kernel;       /* the kernel's name */
} clmgk_plan_info;

/* Fills `info`. Fails only on NULL arguments (INVALID_VALUE). */
CLMGK_API clmgk_status clmgk_plan_get_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error);

/* Bytes of workspace that one enqueue of the plan needs; 0 for a NULL plan. Never grows as N S. */
CLMGK_API size_t clmgk_plan_workspace_size(const clmgk_plan *plan);

/* A place in a buffer: `offset` is in elements of the array's own type, any alignment of elements. */
typedef struct clmgk_buffer {
    cl_mem memory; /* NULL: not given */
    uint64_t offset;
} clmgk_buffer;

/*
 * The arrays of one forward pass, all on the device, shapes as in the descriptor. Values of device arrays are not
 * checked: lengths are clamped to 0 .. S (0 .. N), a negative or NaN prior or variance gives NaN in its rows, and
 * nothing is ever read or written out of range.
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
    clmgk_buffer workspace; /* clmgk_plan_workspace_size bytes (offset in bytes); ignored if that is 0.
                               Concurrent enqueues need distinct ones */
} clmgk_attention_args;

#define CLMGK_ATTENTION_ARGS_INIT CLMGK_INIT(clmgk_attention_args)

/*
 * Enqueues the forward pass on `queue`, a queue of the plan's context and device, in order or out of order. It never
 * compiles and never waits for the device. It begins after the events of `wait_list` (num_wait of them; as in
 * clEnqueueNDRangeKernel). `event`, if not NULL, receives the event of its end: the caller releases it.
 * Thread-safe for one plan and one queue as far as OpenCL is.
 * Errors: INVALID_VALUE (NULL, queue or wait list), INVALID_BUFFER (missing, too small, of another context),
 * OUT_OF_*, OPENCL. On an error nothing was enqueued.
 */
CLMGK_API clmgk_status clmgk_enqueue_forward(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args,
                                             cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                             clmgk_error *error);

/*
 * The same arrays on the host. Q, K, V, O hold elements of the descriptor's dtype (f16, bf16: uint16_t bit patterns),
 * the others as in clmgk_attention_args. NULL: not given.
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
} clmgk_host_args;

#define CLMGK_HOST_ARGS_INIT CLMGK_INIT(clmgk_host_args)

/*
 * The forward pass on host arrays, in one blocking call: picks a device by `selector` (as clmgk_select_device; NULL
 * is the default), moves the arrays, runs, and writes O (and L if given). Elements between the strides of O and L
 * keep their values. Here the values are checked too: lengths within 0 .. S (0 .. N), priors not negative or NaN,
 * variances positive and finite (INVALID_VALUE). On an error no output is touched.
 * Makes a context and a plan for each call: programs that call often should keep a plan.
 */
CLMGK_API clmgk_status clmgk_attention_forward_host(const char *selector, const clmgk_attention_desc *desc,
                                                    const clmgk_host_args *args, clmgk_error *error);

#endif
