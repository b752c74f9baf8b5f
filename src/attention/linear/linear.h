/* SPDX-License-Identifier: Apache-2.0 */
/* The linear family: common code of its passes. */
#ifndef MGK_LINEAR_H
#define MGK_LINEAR_H

#include "attention/core/attention.h"
#include "linear/buffers.clh"
#include "linear/tunables.h"

MGK_TUNABLE_NAMES(MGK_LINEAR_TUNABLES)

/* A pass under construction. */
typedef struct mgk_linear_pass {
    const mgk_attention_request *request;
    mgk_pass_plan *plan;
    mgk_tunables tunables;
    mgk_block block; /* of the kernels with an engine */
    mgk_flags flags; /* of all kernels of the pass */
    mgk_linear_args args;
    int chunk, feature_block, value_block;
    int64_t problems; /* (b, h) */
} mgk_linear_pass;

/* True if keys join a causal pass's state one by one: where vectors make that faster than products (STEPS_FASTER of
 * cl/engine/product.clh). */
static inline bool mgk_linear_by_steps(const mgk_linear_pass *pass)
{
    return pass->request->desc->causal && pass->request->engine->private_tiles && pass->block.unit == 0;
}

/* Floats between the rows of local tiles (TILE_ROW of engine/local_product.clh). */
#define MGK_LINEAR_PAD 4

/* Needs of a pass's kernels. */
typedef struct mgk_linear_costs {
    int64_t (*tiles)(const mgk_linear_pass *pass); /* floats of a work-group's tiles */
    bool whole_values; /* a work-group needs all values of a token: blocks of them would not save tiles */
} mgk_linear_costs;

/* Reads the parameters and chooses the others, so that the tiles fit in local memory; sets flags and arguments.
 * UNSUPPORTED if they don't fit. */
clmgk_status mgk_linear_begin(const mgk_attention_request *request, const mgk_linear_costs *costs, mgk_pass_plan *plan,
                              mgk_linear_pass *pass, clmgk_error *error);

/* True if the map reads its inputs from a tile (MAP_TILE of linear/features.clh). */
bool mgk_linear_has_inputs(const mgk_linear_pass *pass);

/* Numbers of a state: STATE_FLOATS, SLOT_FLOATS of linear/block.clh. */
int64_t mgk_linear_state_floats(const mgk_linear_pass *pass);
int64_t mgk_linear_slot_floats(const mgk_linear_pass *pass);

/* Appends linear_projection, if the map has one, and places its region. */
void mgk_linear_add_projection(mgk_linear_pass *pass);

/* Appends a kernel of the pass: with `groups` work-groups of the engine, or (0) a work-item for each of `items`. */
void mgk_linear_add(mgk_linear_pass *pass, const char *file, const char *name, mgk_binding *bind, int64_t groups,
                    int64_t items);

clmgk_status mgk_linear_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);
clmgk_status mgk_linear_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

#endif
