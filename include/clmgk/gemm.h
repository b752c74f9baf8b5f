/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products: C = alpha op(A) op(B) + beta C, a single product or a strided batch.
 *
 *     clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;      fill in; zero means default
 *     clmgk_gemm_plan_create(context, &desc, NULL, &plan, &error);      chooses a provider, compiles
 *     clmgk_enqueue_gemm(plan, queue, &args, 0, NULL, &event, &error);
 *
 * Providers compute the products. A provider is another library, or this library's own kernels. Other libraries are
 * loaded at the first call that needs one, and stay loaded; if a library is missing, its provider is unavailable.
 *
 *     onednn, openblas    run on the host's CPU, if the device is that CPU and runs native kernels (PoCL, Intel's CPU
 *                         runtime). They use the same buffers, without copies
 *     matrix              this library's kernels for the matrix units of GPUs: NVIDIA's, and of f16 and bf16 AMD's and
 *                         Intel's, where a probe and a comparison find them right. Other devices emulate the units, for
 *                         tests: only plans that name it take it there, and it is slow
 *     clblast             any OpenCL device
 *     clmgk               this library's kernels: any device, all types and shapes. Made for few rows (m), where
 *                         reading B takes most of the time
 *
 * clmgk_gemm_provider_state lists a build's providers and their abilities on a device. A plan uses the fastest measured
 * provider (tuning.h). If there is no measurement, it uses the first provider of this list that supports the problem,
 * except that "clmgk" comes first up to m = 8. clmgk_gemm_info names the provider and, if it is slow, the reason.
 *
 * Accuracy: with e the exact value of an element, S = |alpha| sum |a b| + |beta c|, and u = 2^-24 (2^-11 if
 * clmgk_gemm_info.sums is f16),
 *
 *     |C - e| <= (k + 4) u S + r |e| + k 2^-125    r = 2^-24 (f32), 2^-11 (f16), 2^-8 (bf16)
 *
 * (plus 2^-24 if C is f16, for its subnormal numbers), as long as no sum leaves the range of its type. If
 * clmgk_gemm_info.precision is not EXACT, the factors are first rounded with a relative error of up to v = 2^-11 (TF32)
 * or 2^-8 (BF16), which adds 2 v (1 + v) S to the bound; a product with a factor near the largest f32 may then be
 * infinite. The provider "matrix" has two exceptions for f32: it may change a factor below 2^-110 by up to 2^-134,
 * which can exceed the bound if the other factor is above 2^9, and an infinite factor may give NaN. Bits may depend on
 * provider and parameters. One plan gives the same bits for the same arrays, except that a host library's bits may
 * change with its number of threads.
 */
#ifndef CLMGK_GEMM_H
#define CLMGK_GEMM_H

#include "tuning.h"

/*
 * A product, or a batch of products of one shape. Matrices are row-major: element (i, j) of stored matrix b of the
 * batch is at b*stride + i*ld + j. Zero is the default of every field except struct_size; m, n and k are at most 2^30
 * and may be 0.
 */
typedef struct clmgk_gemm_desc {
    size_t struct_size; /* sizeof(clmgk_gemm_desc); CLMGK_GEMM_DESC_INIT sets it */

    clmgk_dtype dtype;   /* of A, B and C */
    int32_t transpose_a; /* 1: A is stored [k,m], 0: [m,k] */
    int32_t transpose_b; /* 1: B is stored [n,k], 0: [k,n] */
    int64_t m;
    int64_t n;
    int64_t k;     /* 0: C = beta C */
    int64_t batch; /* 1 .. 2^30; 0 is 1 */

    int64_t lda; /* elements from row to row, at least the length of a stored row; 0: dense */
    int64_t ldb;
    int64_t ldc;

    int64_t stride_a; /* elements from matrix to matrix; 0: dense (rows times ld) */
    int64_t stride_b;
    int64_t stride_c;    /* matrices of C may be interleaved but may not share elements */
    int32_t broadcast_a; /* 1: one A for the whole batch (then stride_a is 0) */
    int32_t broadcast_b;

    double alpha; /* finite, in the range of f32; 0 is 1 */
    double beta;  /* finite, in the range of f32; 0: C is written, never read */

    clmgk_precision precision; /* the least that the factors of f32 products may have; used where it is faster */
} clmgk_gemm_desc;

#define CLMGK_GEMM_DESC_INIT CLMGK_INIT(clmgk_gemm_desc)

/* Checks a descriptor; needs no device. Returns OK, or INVALID_VALUE, INVALID_SHAPE or OVERFLOW with a message that
 * names the field, its value and the expected value. On success `resolved`, if not NULL, receives the descriptor with
 * every default filled in; the function writes desc->struct_size bytes. `resolved` may be `desc`. */
CLMGK_API clmgk_status clmgk_gemm_validate(const clmgk_gemm_desc *desc, clmgk_gemm_desc *resolved, clmgk_error *error);

/* ---- providers ------------------------------------------------------------------------------------------------ */

/* Name of provider number `index`, including providers that this build lacks; NULL past the last. */
CLMGK_API const char *clmgk_gemm_provider(size_t index);

typedef struct clmgk_gemm_provider_info {
    size_t struct_size; /* sizeof(clmgk_gemm_provider_info); CLMGK_GEMM_PROVIDER_INFO_INIT sets it */
    const char *name;
    uint32_t dtypes;  /* set of 1 << clmgk_dtype that the provider can multiply on the device; 0: none */
    char reason[256]; /* why dtypes are missing; empty if none is missing */
} clmgk_gemm_provider_info;

#define CLMGK_GEMM_PROVIDER_INFO_INIT CLMGK_INIT(clmgk_gemm_provider_info)

/* The abilities of provider number `index` on a device. INVALID_VALUE: no such provider or device. */
CLMGK_API clmgk_status clmgk_gemm_provider_state(cl_device_id device, size_t index, clmgk_gemm_provider_info *info,
                                                 clmgk_error *error);

/* ---- plans ---------------------------------------------------------------------------------------------------- */

/* Options of a plan. All zero: the library decides. */
typedef struct clmgk_gemm_options {
    size_t struct_size;   /* sizeof(clmgk_gemm_options) */
    const char *provider; /* NULL: any. A named provider is never replaced: UNSUPPORTED, with the reason, if it fails */
    /*
     * NULL: tuned values, else the defaults. "": the defaults. Other text: "name=value,...". With provider "clblast",
     * of the tables clblast-xgemm, clblast-xgemmdirect and clblast-routine (tuning.h), of each all names or none; with
     * provider "matrix", any names of the table gemm-matrix.
     */
    const char *parameters;
} clmgk_gemm_options;

#define CLMGK_GEMM_OPTIONS_INIT CLMGK_INIT(clmgk_gemm_options)

/* A plan: one descriptor on one context, compiled. Immutable. Threads may share it and enqueue it on several queues at
 * once. */
typedef struct clmgk_gemm_plan clmgk_gemm_plan;

/*
 * Makes a plan. Blocks: CLBlast compiles (10 s, the first time on a device) and runs once on scratch memory of a
 * similar shape, so that no enqueue compiles. `options` may be NULL. Thread-safe.
 *
 * CLBlast's parameters are global to the process. If a plan has tuned parameters, or parameters from the caller, making
 * the plan sets them with CLBlastOverrideParameters. An enqueue sets them again (microseconds) if another plan has
 * changed them for the device and dtype in between. Other users of CLBlast in the process then get these parameters
 * too. CLBlast cannot restore its own defaults: after the first override, plans made with the defaults use the values
 * set last, with memory and programs that CLBlast makes on demand: such an enqueue may compile, and wait while another
 * plan is made (seconds). CLBlast keeps its programs, and with them the OpenCL context, until the process ends. It
 * prints a line on stderr when an OpenCL call fails.
 *
 * Errors: those of clmgk_gemm_validate, and INVALID_VALUE (options), UNSUPPORTED (no provider supports the problem; the
 * message gives the reason of each), COMPILE, OUT_OF_*, OPENCL. A provider whose kernels do not compile or run on the
 * device is passed over like one that does not support the problem, unless it is named.
 */
CLMGK_API clmgk_status clmgk_gemm_plan_create(clmgk_context *context, const clmgk_gemm_desc *desc,
                                              const clmgk_gemm_options *options, clmgk_gemm_plan **out,
                                              clmgk_error *error);

/* Releases a plan. Enqueued work is not affected: host memory that it still needs returns to the context's allocator
 * shortly after the work ends, possibly on a thread of the OpenCL runtime. NULL is allowed. Must not be called while
 * another thread is in clmgk_enqueue_gemm with the same plan. */
CLMGK_API void clmgk_gemm_plan_release(clmgk_gemm_plan *plan);

/* The choices that were made for a plan. The strings live as long as the plan. */
typedef struct clmgk_gemm_info {
    size_t struct_size;         /* sizeof(clmgk_gemm_info); CLMGK_GEMM_INFO_INIT sets it */
    const char *provider;       /* as in clmgk_gemm_provider; "none" for an empty product */
    clmgk_tuning_source tuning; /* of provider and parameters */
    const char *parameters;     /* "": the provider's defaults; matrix: all values in use */
    const char *note;           /* why the product is slow or less accurate here; "": it is neither */
    clmgk_dtype sums;           /* type of the products' sums: f32, or f16 (CLBlast's f16) */
    double compile_ms;          /* time that the provider spent on making the plan */
    uint64_t workspace_bytes;   /* see clmgk_gemm_args.workspace */
    int32_t cached;             /* 1: there is nothing to compile, or the driver keeps the compiled programs */
    clmgk_precision precision;  /* of the factors; EXACT where the plan makes no use of the descriptor's */
} clmgk_gemm_info;

#define CLMGK_GEMM_INFO_INIT CLMGK_INIT(clmgk_gemm_info)

/* Fills `info`. Fails only on NULL arguments and a wrong struct_size (INVALID_VALUE). */
CLMGK_API clmgk_status clmgk_gemm_plan_get_info(const clmgk_gemm_plan *plan, clmgk_gemm_info *info, clmgk_error *error);

/* Bytes of workspace that an enqueue of the plan needs; 0 for a NULL plan. clblast: at most the size of A, B and C
 * together, each axis rounded up to tiles. matrix: C in f32 for each range of k, where few blocks of C would leave the
 * device idle (parameter splits). */
CLMGK_API size_t clmgk_gemm_plan_workspace_size(const clmgk_gemm_plan *plan);

/* The matrices of one call, on the device. Inputs may alias each other; no element of C or of the workspace may belong
 * to another array of the call. An array without elements may be NULL. Providers on the host refuse buffers that the
 * host may not read and write (CL_MEM_HOST_...). */
typedef struct clmgk_gemm_args {
    size_t struct_size; /* sizeof(clmgk_gemm_args) */
    clmgk_buffer a;
    clmgk_buffer b;
    clmgk_buffer c;
    clmgk_buffer workspace; /* clmgk_gemm_plan_workspace_size bytes (offset in bytes, a multiple of 4). Concurrent
                               enqueues need distinct workspaces */
} clmgk_gemm_args;

#define CLMGK_GEMM_ARGS_INIT CLMGK_INIT(clmgk_gemm_args)

/*
 * Enqueues the product on `queue`, a queue of the plan's context and device, in order or out of order. Never waits for
 * the device, but for CLBlast with parameters that were changed (clmgk_gemm_plan_create). The product begins after the
 * events of `wait_list`. `event`, if not NULL, receives an event that completes with the product; the caller releases
 * it. Thread-safe. Errors: INVALID_VALUE (NULL, queue or wait list), INVALID_BUFFER (missing, too small, of another
 * context, not a buffer, not accessible, or C or the workspace shares elements: as in attention.h), UNSUPPORTED
 * (clblast: offset plus extent reaches 2^31 elements), OUT_OF_*, OPENCL. After OUT_OF_* or OPENCL, C and workspace are
 * undefined, and in use until the queue has finished.
 */
CLMGK_API clmgk_status clmgk_enqueue_gemm(const clmgk_gemm_plan *plan, cl_command_queue queue,
                                          const clmgk_gemm_args *args, cl_uint num_wait, const cl_event *wait_list,
                                          cl_event *event, clmgk_error *error);

/* ---- tuning --------------------------------------------------------------------------------------------------- */

/* Like clmgk_tuning_store, for the bucket of a product: its dtype, precision and transposes, and m, n and k rounded to
 * powers of two. tuned->choice is a provider, tuned->parameters as in clmgk_gemm_options. */
CLMGK_API clmgk_status clmgk_gemm_tuning_store(clmgk_context *context, const char *cache_dir,
                                               const clmgk_gemm_desc *desc, const clmgk_tuned *tuned,
                                               clmgk_error *error);

/* Like clmgk_gemm_tuning_store, for all CLBlast products of a dtype on the context's device, independent of shape. */
CLMGK_API clmgk_status clmgk_gemm_tuning_store_device(clmgk_context *context, const char *cache_dir, clmgk_dtype dtype,
                                                      const clmgk_tuned *tuned, clmgk_error *error);

#endif
