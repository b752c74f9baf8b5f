/* SPDX-License-Identifier: Apache-2.0 */
/* A compute unit's room for work-groups: as the driver states it, else the least of the maker's processors. */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

#define KIB << 10

/* NVIDIA's room by compute capability, from the CUDA programming guide's table. OpenCL states only the registers. */
static const struct {
    int capability; /* from this one on */
    uint32_t work_items, work_groups;
    uint64_t local_bytes;
} multiprocessors[] = {
    {0, 1024, 16, 48 KIB},   {52, 2048, 32, 96 KIB},   {53, 2048, 32, 64 KIB},   {61, 2048, 32, 96 KIB},
    {62, 2048, 32, 64 KIB},  {70, 2048, 32, 96 KIB},   {75, 1024, 16, 64 KIB},   {80, 2048, 32, 164 KIB},
    {86, 1536, 16, 100 KIB}, {87, 1536, 16, 164 KIB},  {88, 1536, 16, 100 KIB},  {89, 1536, 24, 100 KIB},
    {90, 2048, 32, 228 KIB}, {110, 1536, 24, 228 KIB}, {120, 1536, 24, 100 KIB},
};

int mgk_nvidia_capability(const mgk_device_facts *facts)
{
    const char *const architecture = facts->info.architecture;
    return strncmp(architecture, "sm_", 3) == 0 ? (int)strtol(architecture + 3, NULL, 10) : 0;
}

static mgk_unit multiprocessor_of(const mgk_device_facts *facts)
{
    enum { OF_GROUP = 1 KIB };
    const int capability = mgk_nvidia_capability(facts);
    size_t i = MGK_COUNT(multiprocessors) - 1;
    while (multiprocessors[i].capability > capability)
        --i;
    return (mgk_unit){.registers = 65536,
                      .work_items = multiprocessors[i].work_items,
                      .work_groups = multiprocessors[i].work_groups,
                      .local_bytes = multiprocessors[i].local_bytes,
                      .local_of_group = OF_GROUP};
}

/* Intel's GPUs: OpenCL's compute units are vector engines, and several share a work-group. */
static mgk_unit vector_engine_of(const mgk_device_facts *facts)
{
    return (mgk_unit){
        .registers = 8192, .work_items = 128, .work_groups = 8, .local_bytes = facts->info.local_memory_bytes};
}

static mgk_unit usual_unit_of(const mgk_device_facts *facts)
{
    return (mgk_unit){
        .registers = 65536, .work_items = 1024, .work_groups = 16, .local_bytes = facts->info.local_memory_bytes};
}

mgk_unit mgk_unit_of(const mgk_device_facts *facts)
{
    if (facts->info.device_class == CLMGK_DEVICE_CPU)
        return (mgk_unit){.registers = 0};
    const mgk_gpu gpu = mgk_gpu_of(facts);
    mgk_unit unit = gpu == MGK_GPU_NVIDIA  ? multiprocessor_of(facts)
                    : gpu == MGK_GPU_INTEL ? vector_engine_of(facts)
                                           : usual_unit_of(facts);
    if (facts->unit_registers > 0)
        unit.registers = facts->unit_registers;
    if (facts->unit_local_bytes > unit.local_bytes)
        unit.local_bytes = facts->unit_local_bytes;
    if (facts->info.local_memory_bytes > unit.local_bytes)
        unit.local_bytes = facts->info.local_memory_bytes;
    return unit;
}
