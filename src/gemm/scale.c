/* SPDX-License-Identifier: Apache-2.0 */
/* Products without a sum (k = 0) and empty products: our own kernel scales C by beta. */
#include "device/flags.h"
#include "gemm/gemm.h"
#include "gemm/scale_args.clh"

#define MGK_GEMM_BUFFER(NAME, name, type, needed) {MGK_GEMM_##NAME, needed},

static clmgk_status scale_plan(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    enum { GROUP = 64 };
    static const mgk_step_buffer list[] = {MGK_GEMM_SCALE_BUFFERS(MGK_GEMM_BUFFER)};
    const clmgk_gemm_desc *const desc = &plan->desc;
    const mgk_flags flags = {.TYPE_Q = (int)desc->dtype};
    const mgk_gemm_scale_args args = {.stride = desc->stride_c,
                                      .ld = desc->ldc,
                                      .elements = desc->batch * desc->m *
                                                  desc->n, /* at most C's extent: elements are disjoint */
                                      .rows = (mgk_i32)desc->m,
                                      .columns = (mgk_i32)desc->n,
                                      .beta = (float)desc->beta};
    (void)parameters;
    (void)error;
    if (desc->beta == 1.0 || args.elements == 0) /* nothing changes */
        return CLMGK_OK;
    mgk_step *const step = &plan->steps->step[plan->steps->count++];
    step->file = "gemm/scale.cl";
    step->name = "gemm_scale";
    mgk_text_printf(&step->options, "-cl-std=CL1.2");
    mgk_flags_options(&flags, &step->options);
    step->launch = (mgk_launch){1, {((size_t)args.elements + GROUP - 1) / GROUP * GROUP}, {GROUP}};
    mgk_step_bind(step, &args, sizeof(args), list, MGK_COUNT(list));
    return CLMGK_OK;
}

const mgk_gemm_provider mgk_gemm_scale = {.name = "none", .plan = scale_plan};
