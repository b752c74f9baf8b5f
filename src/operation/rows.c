/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels over rows: vectors on CPUs, work-groups on GPUs. */
#include "operation/rows.h"

#include "device/flags.h"

mgk_row_form mgk_rows_form(const mgk_device_facts *facts)
{
    if (facts->info.device_class != CLMGK_DEVICE_CPU)
        return (mgk_row_form){.lanes = 4, .group = 64, .team = 16};
    return (mgk_row_form){.lanes = facts->info.native_float_lanes >= 16 ? 16 : 8, .group = 1, .team = 1};
}

void mgk_rows_options(const mgk_device_facts *facts, clmgk_dtype dtype, mgk_text *options)
{
    const mgk_row_form form = mgk_rows_form(facts);
    const bool pocl = facts->runtime == MGK_RUNTIME_POCL;
    const mgk_flags flags = {.TYPE_Q = (int)dtype,
                             .GROUP_SIZE = form.group,
                             .KERNEL_CALLS = pocl && form.group == 1,
                             .WIDE_VECTORS = pocl && form.lanes == 16 && facts->x86_avx512dq};
    mgk_text_printf(options, "-cl-std=CL1.2");
    mgk_flags_options(&flags, options);
    mgk_text_printf(options, " -DLANES=%d", form.lanes);
}

void mgk_rows_most_registers(const mgk_device_facts *facts, mgk_text *options)
{
    if (mgk_gpu_of(facts) == MGK_GPU_INTEL)
        mgk_text_printf(options, " " MGK_MOST_REGISTERS);
}
