/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's structure, for the functions that make and enqueue plans. */
#ifndef MGK_PLAN_H
#define MGK_PLAN_H

#include "attention/core/family.h"
#include "device/extents.h"
#include "tuning/database.h"

/* A compiled pass of a plan. */
typedef struct mgk_compiled_pass {
    clmgk_engine engine;
    mgk_pass_plan plan;
    mgk_text parameters;
    clmgk_tuning_source source; /* of engine and parameters */
} mgk_compiled_pass;

/* An array of the plan, as each call needs it. */
typedef struct mgk_plan_array {
    mgk_extent extent; /* of PARTS_O and PARTS_LSE: one part's */
    size_t element;    /* bytes */
    clmgk_presence presence[CLMGK_PASSES];
} mgk_plan_array;

struct clmgk_plan {
    clmgk_context *context;
    clmgk_attention_desc desc; /* resolved */
    mgk_plan_array array[CLMGK_ARRAYS];
    const mgk_family *family;
    bool untuned; /* ignore tuned values, which do not work here */
    mgk_limits limits;
    mgk_compiled_pass *pass[CLMGK_PASSES]; /* NULL: not requested by the descriptor */
    clmgk_plan_info info;
};

/* The caller's options, checked; their strings stay the caller's. NULL: the defaults. */
clmgk_status mgk_plan_read_options(const clmgk_plan_options *options, clmgk_plan_options *read, clmgk_error *error);

/* clmgk_attention_validate for a `resolved` of this version, whatever the size of `desc`. */
clmgk_status mgk_attention_resolve(const clmgk_attention_desc *desc, clmgk_attention_desc *resolved,
                                   clmgk_error *error);

/* The tuning bucket of a resolved descriptor. The statistics use the backward pass's. */
mgk_tuning_key mgk_attention_key(const clmgk_attention_desc *desc, clmgk_pass pass);

/* Whether the pass of a resolved descriptor can be planned with a tuned engine and parameters: INVALID_VALUE, with the
 * reason, if not. Compiles nothing. */
clmgk_status mgk_plan_try(clmgk_context *context, const clmgk_attention_desc *desc, clmgk_pass which,
                          clmgk_engine engine, const char *parameters, clmgk_error *error);

#endif
