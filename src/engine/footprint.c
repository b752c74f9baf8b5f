/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include <inttypes.h>

int mgk_few_rows(const mgk_footprint *footprint)
{
    if (!footprint->few_rows || footprint->rows > MGK_FEW_ROWS)
        return 0;
    return footprint->rows <= 1 ? 1 : footprint->rows == 2 ? 2 : 4;
}

bool mgk_has_singles(const clmgk_attention_desc *desc)
{
    const uint32_t single = 1U << CLMGK_DTYPE_F32, blocks = 1U << CLMGK_DTYPE_Q8_0 | 1U << CLMGK_DTYPE_Q4_0;
    const clmgk_dtype k = mgk_dtype_of(desc, desc->dtype_k), v = mgk_dtype_of(desc, desc->dtype_v);
    return mgk_is_cache_type(k) || mgk_is_cache_type(v) ? (mgk_dtypes_of(desc) & (single | blocks)) != 0
                                                        : ((1U << desc->dtype | 1U << k | 1U << v) & single) != 0;
}

clmgk_precision mgk_weights_precision(const clmgk_attention_desc *desc)
{
    const clmgk_dtype v = mgk_dtype_of(desc, desc->dtype_v), o = mgk_dtype_of(desc, desc->dtype_o);
    if (v == CLMGK_DTYPE_BF16 && o != CLMGK_DTYPE_BF16)
        return CLMGK_PRECISION_BF16;
    return v == CLMGK_DTYPE_F16 && o == CLMGK_DTYPE_F32 ? CLMGK_PRECISION_TF32 : CLMGK_PRECISION_EXACT;
}

clmgk_status mgk_check_group(const char *engine, uint64_t threads, uint64_t local_bytes, const mgk_device_facts *facts,
                             clmgk_error *error)
{
    if (threads > facts->info.max_work_group || threads > facts->work_item_limit)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine %s: a work-group of %" PRIu64 ", the device takes %" PRIu64, engine, threads,
                        facts->info.max_work_group);
    if (local_bytes > facts->info.local_memory_bytes)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine %s: value_size and components need %" PRIu64
                        " bytes of local memory, the device has %" PRIu64,
                        engine, local_bytes, facts->info.local_memory_bytes);
    return CLMGK_OK;
}
