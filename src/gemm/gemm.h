/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: providers and plans. Only src/gemm includes other BLAS libraries. */
#ifndef MGK_GEMM_H
#define MGK_GEMM_H

#include "clmgk/gemm.h"
#include "operation/step.h"
#include "tuning/database.h"
#include "tuning/tunables.h"

typedef struct mgk_gemm_provider mgk_gemm_provider;

struct clmgk_gemm_plan {
    clmgk_context *context;
    clmgk_gemm_desc desc; /* resolved */
    const mgk_gemm_provider *provider;
    void *state; /* the provider's */
    mgk_steps *steps;
    mgk_text parameters; /* empty: data NULL */
    mgk_text note;
    clmgk_gemm_info info;
    bool any_rows; /* calls may have fewer tokens than desc: mgk_gemm_resize */
};

/* A call's buffers, checked against the descriptor. */
enum { MGK_GEMM_A, MGK_GEMM_B, MGK_GEMM_C, MGK_GEMM_WORKSPACE };

struct mgk_gemm_provider {
    const char *name;
    bool is_host;     /* a host library behind native kernels */
    int64_t few_rows; /* the provider comes first for products of up to this many rows */

    /* Checks that it can multiply elements of this type on the device. UNSUPPORTED, with the reason, is a normal
     * answer. */
    clmgk_status (*applicable)(const mgk_device_facts *facts, clmgk_dtype dtype, clmgk_error *error);

    /* Why a plan takes it only if the caller names it; NULL, or an answer of NULL: a plan may choose it. */
    const char *(*only_named)(const mgk_device_facts *facts);

    /* Checks that it understands the parameters; "" is always valid. */
    clmgk_status (*check_parameters)(const char *parameters, clmgk_error *error);

    /* Makes plan->state, fills the provider's part of plan->info, and appends steps unless the provider has `enqueue`;
     * it may also make them (mgk_steps_make). The product is not empty. After a failure the caller calls `release`. */
    clmgk_status (*plan)(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error);
    /* Checks that a call's matrices may lie so far behind the beginnings of their buffers; NULL: anywhere. For callers
     * of mgk_steps_enqueue, which does not ask. */
    clmgk_status (*check_offsets)(const clmgk_gemm_plan *plan, const mgk_call *call, clmgk_error *error);
    /* Enqueues the product of a library that enqueues by itself, as the plan's only step; `plan` is the
     * clmgk_gemm_plan. */
    clmgk_status (*enqueue)(const void *plan, const mgk_call *call, const mgk_queue_place *at, clmgk_error *error);
    /* Appends the steps of a call, whose tokens are fewer than the plan's: `plan` is the call's copy. Allocates and
     * compiles nothing. NULL: products have fixed sizes. */
    clmgk_status (*resize)(clmgk_gemm_plan *plan, clmgk_error *error);
    void (*release)(clmgk_gemm_plan *plan); /* releases plan->state; NULL: there is none */
};

/* The providers in order of preference, apart from `few_rows`. A provider that the build lacks says so when it is
 * tried. */
extern const mgk_gemm_provider mgk_gemm_onednn;
extern const mgk_gemm_provider mgk_gemm_openblas;
extern const mgk_gemm_provider mgk_gemm_fragments;
extern const mgk_gemm_provider mgk_gemm_clblast;
extern const mgk_gemm_provider mgk_gemm_own;
extern const mgk_gemm_provider *const mgk_gemm_providers[5];

/* For products without a sum: C = beta C, or nothing to do. Not in the list of providers. */
extern const mgk_gemm_provider mgk_gemm_scale;

/* clmgk_gemm_plan_create. `any_rows`: the desc's tokens are a limit of calls (mgk_gemm_resize). */
clmgk_status mgk_gemm_plan_make(clmgk_context *context, const clmgk_gemm_desc *desc, const clmgk_gemm_options *options,
                                bool any_rows, clmgk_gemm_plan **out, clmgk_error *error);

/* Makes `call` a copy of a plan for any rows, for a product of this many tokens: rows of A as it is stored, and so of
 * C, or with transpose_a (then without transpose_b) the numbers of each sum. Its steps, in call->steps, run the plan's
 * kernels; it is not released. */
clmgk_status mgk_gemm_resize(const clmgk_gemm_plan *plan, int64_t tokens, clmgk_gemm_plan *call, clmgk_error *error);

/* Checks that a plan may choose the provider by itself, and that it can multiply elements of a type on the device.
 * UNSUPPORTED, with the reason, is a normal answer. */
clmgk_status mgk_gemm_is_eligible(const mgk_gemm_provider *provider, const mgk_device_facts *facts, clmgk_error *error);
clmgk_status mgk_gemm_may_choose(const mgk_gemm_provider *provider, const mgk_device_facts *facts, clmgk_dtype dtype,
                                 clmgk_error *error);

/* The provider of this name; NULL if there is none. */
const mgk_gemm_provider *mgk_gemm_provider_named(const char *name);

/* ---- measured values ----------------------------------------------------------------------------------------- */

/* The bucket of a resolved descriptor, and the bucket of CLBlast's values for any shape. */
mgk_tuning_key mgk_gemm_key(const clmgk_gemm_desc *desc);
mgk_tuning_key mgk_gemm_device_key(clmgk_dtype dtype);

/* Checks that a plan could use the provider and parameters. */
clmgk_status mgk_gemm_check_tuned(const char *choice, const char *parameters, clmgk_error *error);

/* Tables of CLBlast's parameters, also in a build without CLBlast. */
enum { MGK_CLBLAST_TABLES = 3 };
extern const mgk_tunable_table *const mgk_clblast_tables[MGK_CLBLAST_TABLES];

/* The parameters of products by matrix units. */
extern const mgk_tunable_table *const mgk_gemm_fragments_table;

/* Appends the step of a plan with these parameters, for a device with these facts, including its unit and
 * sub-groups. */
typedef clmgk_status mgk_gemm_step_maker(clmgk_gemm_plan *plan, const mgk_device_facts *facts, const char *parameters,
                                         clmgk_error *error);

/* Appends the step of products by matrix units. */
mgk_gemm_step_maker mgk_gemm_fragments_step;

/* Judges the program of a plan's step if it needs a verdict (docs/gpu.md). `parameters`: all of the step's.
 * UNSUPPORTED, with the reason, if it is wrong. */
clmgk_status mgk_gemm_verify(const clmgk_gemm_plan *plan, const mgk_device_facts *facts, const char *parameters,
                             mgk_gemm_step_maker *make_step, clmgk_error *error);

/* A trial of a small product: of numbers with so few digits that all sums are exact. Begins with the fields that the
 * caller sets. */
typedef struct mgk_gemm_trial {
    const clmgk_context *context;
    clmgk_gemm_desc desc; /* resolved; batches share A and B */
    size_t offset;        /* of each matrix in its buffer, in elements */
    float scale;          /* of A's and B's numbers, which else are -1, 0 and 1 */
    int fill;             /* C's bytes before: 0xff: NaN */
    cl_command_queue queue;
    cl_mem a, b, c, workspace;
    bool wrong;             /* an element of the last matrix of C is */
    double value, expected; /* this one */
} mgk_gemm_trial;

/* Makes the queue and the buffers. Then the caller enqueues the product. `end` releases all, also after a failure. */
clmgk_status mgk_gemm_trial_begin(mgk_gemm_trial *trial, size_t workspace, clmgk_error *error);
/* Compares elements of at most so many rows and columns, all over C with its edges, within a relative error. */
clmgk_status mgk_gemm_trial_check(mgk_gemm_trial *trial, int64_t probes, double bound, clmgk_error *error);
void mgk_gemm_trial_end(mgk_gemm_trial *trial);

/* ---- shapes --------------------------------------------------------------------------------------------------- */

/* A stored matrix. */
typedef struct mgk_gemm_matrix {
    int64_t rows;
    int64_t columns;
    int64_t ld;
    int64_t stride;
} mgk_gemm_matrix;

/* clmgk_gemm_validate for a `resolved` of this version, whatever the size of `desc`. */
clmgk_status mgk_gemm_resolve(const clmgk_gemm_desc *desc, clmgk_gemm_desc *resolved, clmgk_error *error);

/* A matrix of a resolved descriptor. */
mgk_gemm_matrix mgk_gemm_a(const clmgk_gemm_desc *desc);
mgk_gemm_matrix mgk_gemm_b(const clmgk_gemm_desc *desc);
mgk_gemm_matrix mgk_gemm_c(const clmgk_gemm_desc *desc);

/* The elements from the batch's first to one past its last. False on overflow. */
bool mgk_gemm_extent(const mgk_gemm_matrix *matrix, int64_t batch, int64_t *extent);

size_t mgk_gemm_element(clmgk_dtype dtype);

/* ---- our own kernels of products ------------------------------------------------------------------------------ */

/* Parts of `size` in `count`, the last one shorter. */
int64_t mgk_gemm_parts(int64_t count, int64_t size);

/* Binds the arguments of a kernel that divides C into blocks (gemm/product_args.clh), and states the plan's sums and
 * the keeper of its program. Returns the number of blocks. */
int64_t mgk_gemm_bind_product(clmgk_gemm_plan *plan, mgk_step *step, int64_t rows, int64_t columns);

/* The same for ranges of `range` numbers of K, whose sums are in the workspace; appends the step that adds them up. */
int64_t mgk_gemm_bind_ranges(clmgk_gemm_plan *plan, mgk_step *step, int64_t rows, int64_t columns, int64_t range);

/* The unit, in bytes, in which the plan's steps count the offset of a workspace. A caller's may begin at any float. */
size_t mgk_gemm_workspace_unit(const clmgk_gemm_plan *plan);

/* MGK_HOST_...: accesses of a library on the host to a buffer of the plan's steps. */
int mgk_gemm_host_access(const clmgk_gemm_plan *plan, int buffer);

/* ---- host providers ------------------------------------------------------------------------------------------- */

/* Checks that the device is the host's CPU and runs native kernels. */
clmgk_status mgk_gemm_host_device(const mgk_device_facts *facts, clmgk_error *error);

/* Checks the parameters of a provider without any. */
clmgk_status mgk_gemm_no_parameters(const char *parameters, clmgk_error *error);

/* A provider whose library this build lacks. */
#define MGK_GEMM_ABSENT(id, library, host)                                                                             \
    static clmgk_status absent(const mgk_device_facts *facts, clmgk_dtype dtype, clmgk_error *error)                   \
    {                                                                                                                  \
        (void)facts;                                                                                                   \
        (void)dtype;                                                                                                   \
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "this build has no " library);                                 \
    }                                                                                                                  \
    const mgk_gemm_provider mgk_gemm_##id = {                                                                          \
        .name = #id, .is_host = (host), .applicable = absent, .check_parameters = mgk_gemm_no_parameters}

typedef struct mgk_gemm_host mgk_gemm_host;

/* Multiplies, on a thread of the OpenCL runtime; it cannot fail. */
typedef void mgk_gemm_host_multiply(const mgk_gemm_host *host, const clmgk_gemm_desc *desc, const void *a,
                                    const void *b, void *c);

/* A host library's part of a plan; pending native kernels keep it alive. */
struct mgk_gemm_host {
    clmgk_allocator allocator;
    mgk_gemm_host_multiply *multiply;
    void (*release)(mgk_gemm_host *host); /* releases `library`; NULL: nothing to do */
    void *library;                        /* the provider's */
    cl_mem anchor; /* lives as long as the plan and its commands; releasing it frees this structure */
};

/* Makes plan->state a mgk_gemm_host. On success it owns `library`. */
clmgk_status mgk_gemm_host_create(clmgk_gemm_plan *plan, mgk_gemm_host_multiply *multiply,
                                  void (*release)(mgk_gemm_host *), void *library, clmgk_error *error);
clmgk_status mgk_gemm_host_enqueue(const void *plan, const mgk_call *call, const mgk_queue_place *at,
                                   clmgk_error *error);
void mgk_gemm_host_release(clmgk_gemm_plan *plan);

#endif
