/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3, 128 bits, compiled in: nothing to link. */
#include "base/base.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

mgk_hash mgk_hash_bytes(const void *data, size_t length)
{
    const XXH128_hash_t hash = XXH3_128bits(data, length);
    return (mgk_hash){.low = hash.low64, .high = hash.high64};
}
