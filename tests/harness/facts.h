/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up devices, for tests that compile nothing. */
#ifndef CLMGK_TEST_FACTS_H
#define CLMGK_TEST_FACTS_H

#include "device/device.h"

static inline mgk_device_facts th_facts(clmgk_device_class device_class)
{
    mgk_device_facts facts = {.usable = true, .work_item_limit = 1024};
    facts.info.device_class = device_class;
    facts.simd_vectors = device_class == CLMGK_DEVICE_CPU;
    facts.info.compute_units = 8;
    facts.info.native_float_lanes = device_class == CLMGK_DEVICE_CPU ? 16 : 1;
    facts.info.local_memory_bytes = UINT64_C(64) << 10;
    facts.info.max_work_group = 1024;
    facts.info.global_memory_bytes = UINT64_C(16) << 30;
    facts.info.max_allocation_bytes = UINT64_C(4) << 30;
    return facts;
}

#endif
