/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel parameters of the admixture family, in the form of engine/lane_tunables.h: the engines' and one more. */
#ifndef MGK_ADMIXTURE_TUNABLES_H
#define MGK_ADMIXTURE_TUNABLES_H

#include "engine/lane_tunables.h"
#include "engine/simt_tunables.h"

#define MGK_ADMIXTURE_TUNABLES(T)                                                                                      \
    T(heads, "heads", "HEADS", 0, 0, "heads (backward: value heads) that a work-group holds", 1, 2, 4, 8, 16, 32, 64,  \
      128, 256)

#define MGK_ADMIXTURE_LANE_TUNABLES(T) MGK_LANE_TUNABLES(T) MGK_ADMIXTURE_TUNABLES(T)
#define MGK_ADMIXTURE_SIMT_TUNABLES(T) MGK_SIMT_TUNABLES(T) MGK_ADMIXTURE_TUNABLES(T)

#endif
