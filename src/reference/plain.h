/* SPDX-License-Identifier: Apache-2.0 */
/* The plain formula: what a careful program without tiles computes in f32. Its error sets the bound. */
#ifndef CLMGK_REFERENCE_PLAIN_H
#define CLMGK_REFERENCE_PLAIN_H

#include "reference/problem.h"

/* The order in which every sum of the formula is taken. */
typedef enum ref_order { REF_ORDER_FORWARD, REF_ORDER_BACKWARD, REF_ORDER_BLOCKED, REF_ORDERS } ref_order;

/* How |q - k|^2 is computed: from the difference, or as |q|^2 - 2 q.k + |k|^2. Dot scores know only the first. */
typedef enum ref_distance { REF_DISTANCE_DIRECT, REF_DISTANCE_EXPANDED, REF_DISTANCES } ref_distance;

typedef struct ref_plain ref_plain;

/* Room for the rows of one problem; NULL: out of memory. */
ref_plain *ref_plain_new(const clmgk_ref_problem *problem);
void ref_plain_free(ref_plain *plain);

/* One row: O into o[E] (of the storage type's values) and L into *lse. */
void ref_plain_row(ref_plain *plain, ref_row row, ref_order order, ref_distance distance, double *o, double *lse);

#endif
