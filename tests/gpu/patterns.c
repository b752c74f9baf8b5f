/* SPDX-License-Identifier: Apache-2.0 */
/* How fast work-items read rows: one row each, or one row shared by several. */
#include "probe.h"

#include "device/device.h"

#include <stdlib.h>

extern const mgk_embedded_file probe_kernels[];

enum { GROUP = 256, GROUPS_PER_UNIT = 8, ROW_BYTES = 256, ROW_FLOATS = 64, REPETITIONS = 5 };
#define MOST_BYTES (INT64_C(1) << 30)

static const char *const patterns[] = {"lane_is_row", "lane_is_row_vload", "lane_is_feature"};

/* The buffers, and how a kernel is launched on them. */
typedef struct reading {
    cl_mem sums, rows;
    size_t items;
    cl_uint count; /* rows of a work-item */
} reading;

/* Every work-item reads the same number of rows, and together they read all of the buffer. */
static tool_exit make_reading(const probe_context *probe, reading *r, tool_error *error)
{
    const float one = 1.0F;
    const clmgk_device_info *const info = &probe->device.info;
    const int64_t room = (int64_t)TOOL_MIN(info->max_allocation_bytes, info->global_memory_bytes / 4);
    const int64_t bytes = probe->bytes ? probe->bytes : TOOL_MIN(room, MOST_BYTES);
    r->items = (size_t)GROUP * GROUPS_PER_UNIT * info->compute_units;
    r->count = (cl_uint)TOOL_MAX(bytes / ((int64_t)r->items * ROW_BYTES), 1);
    const size_t rows_bytes = r->items * r->count * ROW_BYTES;
    TOOL_TRY(tool_make_buffer(&probe->device, r->items * sizeof(float), NULL, &r->sums, error));
    TOOL_TRY(tool_make_buffer(&probe->device, rows_bytes, NULL, &r->rows, error));
    return tool_check_cl(
        clEnqueueFillBuffer(probe->device.queue, r->rows, &one, sizeof(one), 0, rows_bytes, 0, NULL, NULL),
        "clEnqueueFillBuffer", error);
}

static tool_exit time_once(const probe_context *probe, const reading *r, cl_kernel kernel, double *ms,
                           tool_error *error)
{
    const size_t group = GROUP;
    TOOL_TRY(tool_check_cl(clFinish(probe->device.queue), "clFinish", error));
    const double start = tool_now_ms();
    TOOL_TRY(
        tool_check_cl(clEnqueueNDRangeKernel(probe->device.queue, kernel, 1, NULL, &r->items, &group, 0, NULL, NULL),
                      "clEnqueueNDRangeKernel", error));
    const cl_int code = clFinish(probe->device.queue);
    *ms = tool_now_ms() - start;
    return tool_check_cl(code, "clFinish", error);
}

/* Every row holds ones: a work-item's sum is the number of its floats. */
static tool_exit check_sums(const probe_context *probe, const reading *r, bool *right, tool_error *error)
{
    float *const sums = calloc(r->items, sizeof(*sums));
    if (!sums)
        return tool_fail_memory(error, "sums");
    const cl_int code =
        clEnqueueReadBuffer(probe->device.queue, r->sums, CL_TRUE, 0, r->items * sizeof(*sums), sums, 0, NULL, NULL);
    *right = true;
    for (size_t i = 0; i < r->items; i++)
        *right = *right && sums[i] == (float)r->count * ROW_FLOATS;
    free(sums);
    return tool_check_cl(code, "clEnqueueReadBuffer", error);
}

static tool_exit measure(const probe_context *probe, const reading *r, cl_kernel kernel, const char *name,
                         tool_error *error)
{
    double ms[REPETITIONS];
    bool right = false;
    const double bytes = (double)r->items * r->count * ROW_BYTES;
    cl_int code = clSetKernelArg(kernel, 0, sizeof(r->sums), &r->sums);
    if (code == CL_SUCCESS)
        code = clSetKernelArg(kernel, 1, sizeof(r->rows), &r->rows);
    if (code == CL_SUCCESS)
        code = clSetKernelArg(kernel, 2, sizeof(r->count), &r->count);
    TOOL_TRY(tool_check_cl(code, "clSetKernelArg", error));
    /* the first finishes compiling */
    TOOL_TRY(time_once(probe, r, kernel, &ms[0], error));
    for (size_t i = 0; i < REPETITIONS; i++)
        TOOL_TRY(time_once(probe, r, kernel, &ms[i], error));
    TOOL_TRY(check_sums(probe, r, &right, error));
    const tool_spread spread = tool_spread_of(ms, REPETITIONS);
    return probe_append(probe,
                        json_pack("{s:s, s:f, s:f, s:f, s:b}", "case", name, "bytes", bytes, "ms", spread.median,
                                  "gbps", bytes / (spread.median * 1e6), "right", right),
                        error);
}

static tool_exit measure_all(const probe_context *probe, cl_program program, tool_error *error)
{
    reading r = {0};
    tool_exit status = make_reading(probe, &r, error);
    for (size_t i = 0; status == TOOL_DONE && i < TOOL_COUNT(patterns); i++) {
        cl_int code = CL_SUCCESS;
        cl_kernel kernel = clCreateKernel(program, patterns[i], &code);
        status = tool_check_cl(code, "clCreateKernel", error);
        if (status == TOOL_DONE) {
            status = measure(probe, &r, kernel, patterns[i], error);
            clReleaseKernel(kernel);
        }
    }
    tool_release_buffer(r.sums);
    tool_release_buffer(r.rows);
    return status;
}

tool_exit probe_patterns(const probe_context *probe, tool_error *error)
{
    probe_program made = probe_build(probe, probe_kernels[0].text, "-cl-std=CL1.2");
    tool_exit status = tool_check_cl(made.code, "clBuildProgram", error);
    if (status == TOOL_DONE)
        status = measure_all(probe, made.program, error);
    probe_release(&made);
    return status;
}
