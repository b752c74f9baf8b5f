/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel parameters that the linear family adds to the engines', in the form of engine/lane/tunables.h. */
#ifndef MGK_LINEAR_TUNABLES_H
#define MGK_LINEAR_TUNABLES_H

#define MGK_LINEAR_TUNABLES(T)                                                                                         \
    T(chunk, "chunk", "CHUNK", 32, 32, "tokens of a chunk", 16, 32, 64)                                                \
    T(feature_block, "feature-block", "FEATURE_BLOCK", 0, 0, "features computed at a time", 16, 32, 64)

#endif
