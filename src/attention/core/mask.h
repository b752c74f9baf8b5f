/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of blocks of pairs: their sizes, and who makes them (cl/attention/classify.clh, mask.cl). */
#ifndef MGK_MASK_H
#define MGK_MASK_H

#include "attention/core/attention.h"

/* Checks the descriptor's fields of blocks, and fills in defaults. */
clmgk_status mgk_resolve_mask_blocks(clmgk_attention_desc *desc, clmgk_error *error);

/* Sets the pass's classes: the call's array, or for a mask that reads captured arrays a region of the workspace, which
 * the first kernel that reads them fills before. */
void mgk_mask_begin(const mgk_attention_request *request, mgk_pass_plan *plan);

/* Plans the pass that fills the call's array. */
clmgk_status mgk_attention_plan_mask(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

#endif
