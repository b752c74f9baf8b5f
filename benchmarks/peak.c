/* SPDX-License-Identifier: Apache-2.0 */
/* What a device can do at most: fused multiply-adds out of registers, copying through memory, reading it. */
#include "bench.h"

#include "device/device.h"

#define FMA_OPERATIONS (2.0 * 16 * 8) /* a round of peak.cl: 2 CHAINS UNROLL, a lane */
#define FMA_MS         60.0
#define REPETITIONS    3
#define COPY_BYTES     ((size_t)128 << 20) /* of each of the two buffers: beyond caches */

extern const mgk_embedded_file bench_kernels[]; /* peak.cl, embedded at build time */

typedef struct peak_launch {
    cl_kernel kernel;
    size_t global, local;
} peak_launch;

static tool_exit time_launch(const tool_device *device, const peak_launch *launch, double *ms, tool_error *error)
{
    const double start = tool_now_ms();
    cl_int code =
        clEnqueueNDRangeKernel(device->queue, launch->kernel, 1, NULL, &launch->global, &launch->local, 0, NULL, NULL);
    if (code != CL_SUCCESS)
        return tool_fail_cl(error, code, "clEnqueueNDRangeKernel");
    code = clFinish(device->queue);
    *ms = tool_now_ms() - start;
    return code == CL_SUCCESS ? TOOL_DONE : tool_fail_cl(error, code, "clFinish");
}

/* The shortest of several runs: a peak is what the device can do, whatever else disturbed it. */
static tool_exit shortest_launch(const tool_device *device, const peak_launch *launch, double *ms, tool_error *error)
{
    for (int i = 0; i < REPETITIONS; i++) {
        double one = 0;
        TOOL_TRY(time_launch(device, launch, &one, error));
        if (i == 0 || one < *ms)
            *ms = one;
    }
    return TOOL_DONE;
}

static int vector_width(const clmgk_device_info *info)
{
    static const int widths[] = {16, 8, 4};
    for (size_t i = 0; i < TOOL_COUNT(widths); i++) {
        if (info->native_float_lanes >= (uint32_t)widths[i])
            return widths[i];
    }
    return 1;
}

/* Sets all arguments of a kernel. */
static tool_exit set_args(cl_kernel kernel, cl_uint count, const mgk_kernel_arg *args, tool_error *error)
{
    for (cl_uint i = 0; i < count; i++) {
        const cl_int code = clSetKernelArg(kernel, i, args[i].size, args[i].value);
        if (code != CL_SUCCESS)
            return tool_fail_cl(error, code, "clSetKernelArg");
    }
    return TOOL_DONE;
}

static tool_exit measure_fma(const tool_device *device, cl_kernel kernel, int width, double *gflops, tool_error *error)
{
    const bool cpu = device->info.device_class == CLMGK_DEVICE_CPU;
    peak_launch launch = {kernel, 0, cpu ? 1 : 256};
    launch.global = (size_t)device->info.compute_units * (cpu ? 32 : 4096);
    const float factor = 0.999F, term = 0.001F;
    cl_int rounds = 64;
    cl_mem out = NULL;
    double ms = 0;
    tool_exit status = TOOL_DONE;
    TOOL_TRY(tool_make_buffer(device, launch.global * (size_t)width * sizeof(float), NULL, &out, error));
    const mgk_kernel_arg args[] = {
        {sizeof(out), &out}, {sizeof(rounds), &rounds}, {sizeof(factor), &factor}, {sizeof(term), &term}};
    do { /* the first launches also finish the driver's compiling */
        rounds *= 2;
        TOOL_TRY_GOTO(status, set_args(kernel, TOOL_COUNT(args), args, error), done);
        TOOL_TRY_GOTO(status, time_launch(device, &launch, &ms, error), done);
    } while (ms < FMA_MS && rounds < 1 << 28);
    TOOL_TRY_GOTO(status, shortest_launch(device, &launch, &ms, error), done);
    *gflops = FMA_OPERATIONS * width * rounds * (double)launch.global / (ms * 1e6);
done:
    tool_release_buffer(out);
    return status;
}

/* The shortest run with these arguments, behind one that finishes compiling. */
static tool_exit time_memory(const tool_device *device, const peak_launch *launch, const mgk_kernel_arg *args,
                             cl_uint count, double *ms, tool_error *error)
{
    TOOL_TRY(set_args(launch->kernel, count, args, error));
    TOOL_TRY(time_launch(device, launch, ms, error));
    return shortest_launch(device, launch, ms, error);
}

/* A buffer with a number everywhere: pages that nobody has written may all be one page of zeros in the cache. */
static tool_exit make_filled(const tool_device *device, size_t bytes, cl_mem *buffer, tool_error *error)
{
    const float one = 1.0F;
    TOOL_TRY(tool_make_buffer(device, bytes, NULL, buffer, error));
    const cl_int code = clEnqueueFillBuffer(device->queue, *buffer, &one, sizeof(one), 0,
                                            bytes / sizeof(one) * sizeof(one), 0, NULL, NULL);
    return code == CL_SUCCESS ? TOOL_DONE : tool_fail_cl(error, code, "clEnqueueFillBuffer");
}

static tool_exit measure_copy(const tool_device *device, cl_kernel kernel, int width, double *gbps, tool_error *error)
{
    const uint64_t limit = device->info.max_allocation_bytes;
    const size_t bytes = limit && limit < COPY_BYTES ? (size_t)limit / (1 << 16) * (1 << 16) : COPY_BYTES;
    const peak_launch launch = {kernel, bytes / ((size_t)width * sizeof(float)), 256};
    cl_mem to = NULL, from = NULL;
    double ms = 0;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, make_filled(device, bytes, &to, error), done);
    TOOL_TRY_GOTO(status, make_filled(device, bytes, &from, error), done);
    const mgk_kernel_arg args[] = {{sizeof(to), &to}, {sizeof(from), &from}};
    TOOL_TRY_GOTO(status, time_memory(device, &launch, args, TOOL_COUNT(args), &ms, error), done);
    *gbps = 2e-6 * (double)bytes / ms;
done:
    tool_release_buffer(to);
    tool_release_buffer(from);
    return status;
}

static tool_exit measure_read(const tool_device *device, cl_kernel kernel, int width, double *gbps, tool_error *error)
{
    const bool cpu = device->info.device_class == CLMGK_DEVICE_CPU;
    const uint64_t limit = device->info.max_allocation_bytes;
    const size_t vector = (size_t)width * sizeof(float);
    const peak_launch launch = {kernel, (size_t)device->info.compute_units * (cpu ? 32 : 2048), cpu ? 1 : 256};
    const size_t bytes = limit && limit < COPY_BYTES ? (size_t)limit : COPY_BYTES;
    const cl_int count = (cl_int)(bytes / vector / launch.global / 4 * 4), step = cpu ? 1 : (cl_int)launch.global;
    const size_t read = (size_t)count * launch.global * vector;
    cl_mem out = NULL, from = NULL;
    double ms = 0;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, tool_make_buffer(device, launch.global * vector, NULL, &out, error), done);
    TOOL_TRY_GOTO(status, make_filled(device, read, &from, error), done);
    const mgk_kernel_arg args[] = {
        {sizeof(out), &out}, {sizeof(from), &from}, {sizeof(count), &count}, {sizeof(step), &step}};
    TOOL_TRY_GOTO(status, time_memory(device, &launch, args, TOOL_COUNT(args), &ms, error), done);
    *gbps = 1e-6 * (double)read / ms;
done:
    tool_release_buffer(out);
    tool_release_buffer(from);
    return status;
}

static tool_exit build_program(const tool_device *device, int width, cl_program *program, tool_error *error)
{
    char options[32];
    const char *text = bench_kernels[0].text;
    cl_int code = CL_SUCCESS;
    snprintf(options, sizeof(options), "-DWIDTH=%d", width);
    *program = clCreateProgramWithSource(device->context, 1, &text, &bench_kernels[0].length, &code);
    if (code != CL_SUCCESS)
        return tool_fail_cl(error, code, "clCreateProgramWithSource");
    code = clBuildProgram(*program, 1, &device->info.device_id, options, NULL, NULL);
    return code == CL_SUCCESS ? TOOL_DONE : tool_fail_cl(error, code, "clBuildProgram");
}

tool_exit bench_measure_peaks(bench_device *device, tool_error *error)
{
    const int width = vector_width(&device->tool.info);
    bench_peaks peaks = {0, 0, 0};
    cl_program program = NULL;
    cl_kernel fma = NULL, copy = NULL, read = NULL;
    cl_int code = CL_SUCCESS;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, build_program(&device->tool, width, &program, error), done);
    fma = clCreateKernel(program, "fma_peak", &code);
    if (fma)
        copy = clCreateKernel(program, "copy_peak", &code);
    if (copy)
        read = clCreateKernel(program, "read_peak", &code);
    if (!read) {
        status = tool_fail_cl(error, code, "clCreateKernel");
        goto done;
    }
    TOOL_TRY_GOTO(status, measure_fma(&device->tool, fma, width, &peaks.fma_gflops, error), done);
    TOOL_TRY_GOTO(status, measure_copy(&device->tool, copy, width, &peaks.copy_gbps, error), done);
    TOOL_TRY_GOTO(status, measure_read(&device->tool, read, width, &peaks.read_gbps, error), done);
    if (peaks.fma_gflops > device->peaks.fma_gflops)
        device->peaks.fma_gflops = peaks.fma_gflops;
    if (peaks.copy_gbps > device->peaks.copy_gbps)
        device->peaks.copy_gbps = peaks.copy_gbps;
    if (peaks.read_gbps > device->peaks.read_gbps)
        device->peaks.read_gbps = peaks.read_gbps;
done:
    if (fma)
        clReleaseKernel(fma);
    if (copy)
        clReleaseKernel(copy);
    if (read)
        clReleaseKernel(read);
    if (program)
        clReleaseProgram(program);
    return status;
}
