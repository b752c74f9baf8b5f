/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's structure, for the functions that make and enqueue plans. */
#ifndef MGK_PLAN_H
#define MGK_PLAN_H

#include "attention/core/family.h"
#include "device/extents.h"
#include "tuning/database.h"

/* An array of the plan, as each call needs it. */
typedef struct mgk_plan_array {
    mgk_extent extent; /* of PARTS_O, PARTS_LSE and PARTS_LSE_LOW: one part's */
    size_t element;    /* bytes */
    clmgk_presence presence[CLMGK_PASSES];
} mgk_plan_array;

/* A call with sizes of its own. */
typedef struct mgk_sized_call {
    clmgk_attention_desc desc;
    mgk_plan_array array[CLMGK_ARRAYS];
    mgk_pass_plan pass; /* its steps run the plan's kernels */
} mgk_sized_call;

/* The description from which calls with sizes of their own plan the pass, and the last of these, which serves calls of
 * equal sizes. */
typedef struct mgk_sized_pass {
    mgk_device_facts facts;
    char *given, *followed; /* parameters; NULL: none */
    mgk_origin origin;
    bool has_last; /* this and what follows: guarded by the context's monitor */
    clmgk_call_sizes sizes;
    mgk_sized_call last;
} mgk_sized_pass;

/* A compiled pass of a plan. */
typedef struct mgk_compiled_pass {
    clmgk_engine engine;
    mgk_pass_plan plan;
    mgk_text parameters;
    clmgk_tuning_source source; /* of engine and parameters */
    mgk_sized_pass *sized;      /* NULL: calls have no sizes of their own */
} mgk_compiled_pass;

/* Limits of an attempt: the engines, units and parameters that a plan may use. */
typedef struct mgk_attempt {
    int newest_unit;                              /* of matrix units; MGK_ANY_UNIT: no limit */
    const mgk_engine *left_out;                   /* NULL: none */
    const char *parameters[CLMGK_PASSES];         /* in place of the options'; NULL: the options' */
    uint64_t dynamic_local;                       /* as in mgk_device_facts */
    char refused_units[CLMGK_ERROR_MESSAGE_SIZE]; /* newer units that failed here, with their reasons */
    int unit;                                     /* mgk_plan_make: the unit of the plan, or of the failure */
} mgk_attempt;
enum { MGK_ANY_UNIT = -1 };
#define MGK_FIRST_ATTEMPT                                                                                              \
    {                                                                                                                  \
        .newest_unit = MGK_ANY_UNIT                                                                                    \
    }

/* The plan's form for CUDA: a plan of the same problem with more local memory. */
typedef struct mgk_cuda_form {
    clmgk_plan *plan; /* NULL: CUDA launches the plan's own kernels */
    char reason[4 * CLMGK_ERROR_MESSAGE_SIZE];
} mgk_cuda_form;

struct clmgk_plan {
    clmgk_context *context;
    clmgk_attention_desc desc; /* resolved */
    mgk_plan_array array[CLMGK_ARRAYS];
    const mgk_family *family;
    struct mgk_formulas *formulas; /* of the descriptor's texts: without gradients, and with; NULL: it has none */
    mgk_mod_texts mods;
    bool untuned; /* ignore tuned values, which do not work here */
    mgk_attempt attempt;
    int unit; /* the matrix unit that it uses; 0: none */
    mgk_limits limits;
    mgk_compiled_pass *pass[CLMGK_PASSES]; /* NULL: not requested by the descriptor */
    char engine_reason[2 * CLMGK_ERROR_MESSAGE_SIZE];
    clmgk_plan_info info;
    mgk_cuda_form *cuda_form; /* NULL: not prepared; guarded by the context's monitor */
};

/* The caller's options, checked; their strings stay the caller's. NULL: the defaults. */
clmgk_status mgk_plan_read_options(const clmgk_plan_options *options, clmgk_plan_options *read, clmgk_error *error);

/* clmgk_attention_validate for a `resolved` of this version, whatever the size of `desc`. */
clmgk_status mgk_attention_resolve(const clmgk_attention_desc *desc, clmgk_attention_desc *resolved,
                                   clmgk_error *error);

/* The resolved descriptor of a call of these sizes, of a plan with the descriptor `limits`. */
clmgk_status mgk_attention_resize(const clmgk_attention_desc *limits, const clmgk_call_sizes *sizes,
                                  clmgk_attention_desc *desc, clmgk_error *error);

/* A call's layout of an array; NULL: it is dense, or has the descriptor's. */
clmgk_layout *mgk_call_layout(clmgk_call_sizes *sizes, clmgk_array array);

/* Reads a caller's sizes. */
clmgk_status mgk_call_sizes_read(const clmgk_call_sizes *given, const char *name, clmgk_call_sizes *sizes,
                                 clmgk_error *error);

/* The tuning bucket of a resolved descriptor. The statistics use the backward pass's. */
mgk_tuning_key mgk_attention_key(const clmgk_attention_desc *desc, clmgk_pass pass);

/* Makes a plan within an attempt's limits, from a resolved descriptor and options that were read. Programs that need a
 * verdict may lack one. */
clmgk_status mgk_plan_make(clmgk_context *context, const clmgk_attention_desc *resolved,
                           const clmgk_plan_options *options, mgk_attempt *attempt, clmgk_plan **out,
                           clmgk_error *error);

/* If programs of the plan need a verdict, compares its results for a small problem with those of another engine, and
 * judges its programs. UNSUPPORTED, with the reason, if they are wrong. */
clmgk_status mgk_plan_verify(clmgk_plan *plan, clmgk_error *error);

/* The same for a plan with MGK_DYNAMIC_LOCAL, which runs in CUDA: compares it with `usual`, a plan of the same problem
 * without. The device is the thread's current one. NULL, NULL: mgk_plan_verify. */
clmgk_status mgk_plan_verify_in_cuda(const clmgk_plan *plan, const clmgk_plan *usual, mgk_cuda *cuda,
                                     clmgk_error *error);

/* Loads the programs of a plan's passes; the device is the thread's current one. */
clmgk_status mgk_plan_load_in_cuda(clmgk_plan *plan, mgk_cuda *cuda, clmgk_error *error);

/* Makes a plan's form for CUDA, once; the device is the thread's current one. *launched: the plan whose kernels CUDA
 * launches. */
clmgk_status mgk_cuda_form_make(clmgk_plan *plan, mgk_cuda *cuda, clmgk_plan **launched, clmgk_error *error);
const mgk_cuda_form *mgk_cuda_form_of(const clmgk_plan *plan);

/* Sets the fields that the choice of passes needs; then reads the texts of the descriptor. */
void mgk_plan_begin(clmgk_plan *plan, clmgk_context *context, const clmgk_attention_desc *resolved);
clmgk_status mgk_plan_read_texts(clmgk_plan *plan, clmgk_error *error);

/* Frees what these and the choice made. */
void mgk_plan_end(clmgk_plan *plan);

/* Chooses one engine for all passes that the descriptor asks for, and the parameters of each, in place of an earlier
 * choice. Compiles nothing, but for the probe of sub-groups. UNSUPPORTED, with each engine's reason, if none can do all
 * passes. */
clmgk_status mgk_plan_choose(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error);
void mgk_plan_free_passes(clmgk_plan *plan);

/* Frees a pass's. */
void mgk_sized_free(const clmgk_context *context, mgk_sized_pass *sized);

/* Adds kernels for all sizes of calls to a pass that has been planned for the limits, and keeps what calls need. */
clmgk_status mgk_sized_begin(clmgk_plan *plan, clmgk_pass which, const mgk_pass_request *request, clmgk_error *error);

/* Plans the pass for sizes; NULL: the descriptor's. Allocates nothing. */
clmgk_status mgk_sized_plan(const clmgk_plan *plan, clmgk_pass which, const clmgk_call_sizes *sizes,
                            mgk_sized_call *call, clmgk_error *error);

/* True of calls that have the same plan. */
bool mgk_same_sizes(const clmgk_call_sizes *a, const clmgk_call_sizes *b);

/* The arrays of a descriptor. */
void mgk_plan_list_arrays(const clmgk_attention_desc *desc, mgk_plan_array array[CLMGK_ARRAYS]);

/* Checks that a call has a plan with the pass, and arguments: INVALID_VALUE if not. */
clmgk_status mgk_plan_check_call(const clmgk_plan *plan, clmgk_pass pass, const void *args, clmgk_error *error);

/* Enqueues a pass in OpenCL, or, if `cuda` is given, in CUDA on addresses. `args` is a copy for this call. */
clmgk_status mgk_plan_enqueue(clmgk_plan *plan, clmgk_pass pass, clmgk_attention_args *args, const mgk_queue_place *at,
                              const mgk_cuda_place *cuda, clmgk_error *error);

/* Checks that the pass of a resolved descriptor can be planned with a tuned engine and parameters: INVALID_VALUE, with
 * the reason, if not. Compiles nothing. */
clmgk_status mgk_plan_try(clmgk_context *context, const clmgk_attention_desc *desc, clmgk_pass which,
                          clmgk_engine engine, const char *parameters, clmgk_error *error);

/* The pointer in an array's field; NULL: none. Not const, because OpenCL's signatures are not; inputs are only read. */
void *mgk_host_pointer(const clmgk_host_args *args, clmgk_array array);

#endif
