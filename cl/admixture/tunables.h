/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel parameter that the admixture family adds to the engines', in the form of engine/lane/tunables.h. */
#ifndef MGK_ADMIXTURE_TUNABLES_H
#define MGK_ADMIXTURE_TUNABLES_H

#define MGK_ADMIXTURE_TUNABLES(T)                                                                                      \
    T(heads, "heads", "HEADS", 0, 0, "heads (backward: value heads) that a work-group holds", 1, 2, 4, 8, 16, 32, 64,  \
      128, 256)

#endif
