/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels over rows: vectors on CPUs, work-groups on GPUs. */
#include "operation/rows.h"

#include <inttypes.h>
#include <math.h>

#define PI 3.14159265358979323846

mgk_row_form mgk_rows_form(const mgk_device_facts *facts)
{
    if (facts->info.device_class != CLMGK_DEVICE_CPU)
        return (mgk_row_form){.lanes = 4, .group = 64, .team = 16};
    return (mgk_row_form){.lanes = facts->info.native_float_lanes >= 16 ? 16 : 8, .group = 1, .team = 1};
}

mgk_flags mgk_rows_flags(const mgk_device_facts *facts, mgk_flags flags)
{
    const mgk_row_form form = mgk_rows_form(facts);
    const bool pocl = facts->runtime == MGK_RUNTIME_POCL;
    flags.GROUP_SIZE = form.group;
    flags.KERNEL_CALLS = pocl && form.group == 1;
    flags.WIDE_VECTORS = pocl && form.lanes == 16 && facts->x86_avx512dq;
    return flags;
}

void mgk_rows_options(const mgk_device_facts *facts, mgk_flags flags, mgk_text *options)
{
    flags = mgk_rows_flags(facts, flags);
    mgk_text_printf(options, "-cl-std=CL1.2");
    mgk_flags_options(&flags, options);
    mgk_text_printf(options, " -DLANES=%d", mgk_rows_form(facts).lanes);
}

void mgk_rows_most_registers(const mgk_device_facts *facts, mgk_text *options)
{
    if (mgk_gpu_of(facts) == MGK_GPU_INTEL)
        mgk_text_printf(options, " " MGK_MOST_REGISTERS);
}

/* ---- rotary positions -------------------------------------------------------------------------------------------- */

clmgk_status mgk_resolve_rotary(const mgk_rotary_fields *x, clmgk_error *error)
{
    if (x->rotary == CLMGK_ROTARY_NONE) {
        if (*x->size == 0 && *x->base == 0.0)
            return CLMGK_OK;
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "%srotary_%s: %g: expected 0 without rotary positions (%srotary)", x->prefix,
                        *x->size != 0 ? "size" : "base", *x->size != 0 ? (double)*x->size : *x->base, x->prefix);
    }
    if (*x->size == 0)
        *x->size = x->head_size;
    const int64_t kernel = 2 * (int64_t)MGK_MOST_PAIRS, most = x->head_size < kernel ? x->head_size : kernel;
    if (*x->size < 2 || *x->size > most || *x->size % 2 != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "%srotary_size: %" PRId64 ": expected an even number from 2 to %s = %" PRId64 ", at most %d",
                        x->prefix, *x->size, x->head, x->head_size, 2 * MGK_MOST_PAIRS);
    if (*x->base == 0.0)
        *x->base = 10000.0;
    if (!(*x->base >= 1.0) || isinf(*x->base))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%srotary_base: %g: expected 1 or more, or 0 for 10000",
                        x->prefix, *x->base);
    return CLMGK_OK;
}

/* 2^64 x, 0 <= x <= 1. */
static mgk_i64 fraction_of(double x)
{
    const uint64_t bits = x < 1.0 ? (uint64_t)ldexp(x, 64) : UINT64_MAX;
    return (mgk_i64)bits;
}

mgk_rotary_args mgk_rotary_of(clmgk_rotary rotary, int64_t size, double base)
{
    mgk_rotary_args args = {.form = (mgk_i32)rotary};
    if (rotary == CLMGK_ROTARY_NONE)
        return args;
    args.pairs = (mgk_i32)(size / 2);
    for (int i = 0; i < MGK_TURNS; ++i) {
        const double step = -2.0 * i / (double)size;
        args.fast[i] = fraction_of(pow(base, step));
        args.slow[i] = fraction_of(pow(base, step * MGK_TURNS) / (2.0 * PI));
    }
    return args;
}
