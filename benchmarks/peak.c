/* SPDX-License-Identifier: Apache-2.0 */
/* The most a device can do: fused multiply-adds out of registers, copying through memory, reading it.
 *
 * A peak is the best of many short windows, spread over the whole run: other work on the machine takes away from some
 * of them, hardly from all. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FMA_OPERATIONS  (2.0 * 16 * 8)           /* a round of peak.cl for each float: 2 CHAINS UNROLL */
#define TILE_OPERATIONS (4 * 2.0 * 16 * 16 * 32) /* a round of peak.cl's products of tiles */
#define MIN_ROUNDS      16
#define MAX_ROUNDS      (1 << 28)
#define FMA_MS          100.0
#define FMA_PAUSE_MS    250.0
#define COPY_GROUP      256
#define MEMORY_PAUSE_MS 2000.0
#define MEMORY_PASSES   3  /* through the buffers */
#define MAX_LAUNCHES    64 /* a window of copying or reading */
#define CPU_SLICES      16 /* of the buffers, for shorter windows */
#define CPU_BYTES       ((uint64_t)128 << 20)
#define CPU_UNIT_BYTES  ((uint64_t)32 << 20) /* cores in groups have a last-level cache for each group */
#define GPU_BYTES       ((uint64_t)1 << 30)
#define BEYOND_CACHE    4 /* times the last-level cache that the device states */
#define BYTES_UNIT      ((uint64_t)1 << 20)
#define THOROUGH_S      0.25 /* a size: with less, all that is done several times here is done less often */

/* peak.cl, embedded at build time (cmake/embed_files.cmake). */
typedef struct mgk_embedded_file {
    const char *name;
    const char *text;
    size_t length;
} mgk_embedded_file;
extern const mgk_embedded_file bench_kernels[];

typedef struct kernel_arg {
    size_t size;
    const void *value;
} kernel_arg;

/* Work-items of one slice of the arrays, and the slice that comes next. */
typedef struct peak_launch {
    cl_kernel kernel;
    size_t global, local;
    size_t slices, slice;
} peak_launch;

struct bench_probe {
    int width, vector_width; /* floats that are multiplied, and moved, at once */
    cl_program program;
    peak_launch fma, tile, copy, read; /* tile: no kernel where plans have no such unit */
    cl_mem sums;                       /* what the kernels compute */
    double fma_end_ms, memory_end_ms;
    double thoroughness; /* at most 1; less where the cases are measured for moments only */
};

/* ---- windows ------------------------------------------------------------------------------------------------ */

static tool_exit time_window(const tool_device *device, peak_launch *launch, int launches, double *ms,
                             tool_error *error)
{
    const double start = tool_now_ms();
    for (int i = 0; i < launches; i++) {
        const size_t offset = launch->slice * launch->global;
        launch->slice = (launch->slice + 1) % launch->slices;
        TOOL_TRY(tool_check_cl(clEnqueueNDRangeKernel(device->queue, launch->kernel, 1, &offset, &launch->global,
                                                      &launch->local, 0, NULL, NULL),
                               "clEnqueueNDRangeKernel", error));
    }
    const cl_int code = clFinish(device->queue);
    *ms = tool_now_ms() - start;
    return tool_check_cl(code, "clFinish", error);
}

/* Sets all arguments of a kernel. */
static tool_exit set_args(cl_kernel kernel, cl_uint count, const kernel_arg *args, tool_error *error)
{
    for (cl_uint i = 0; i < count; i++) {
        TOOL_TRY(tool_check_cl(clSetKernelArg(kernel, i, args[i].size, args[i].value), "clSetKernelArg", error));
    }
    return TOOL_DONE;
}

/* Pieces of work that last `ms` at the best rate so far. */
static int fit_window(double ms, double best_per_ms, double piece, int least, int most)
{
    const double count = ms * best_per_ms / piece;
    return count < least ? least : count > most ? most : (int)count;
}

static int how_often(const bench_probe *probe, int count)
{
    return (int)ceil(count * probe->thoroughness);
}

/* ---- multiply-adds ------------------------------------------------------------------------------------------ */

static tool_exit measure_tiles(bench_device *device, double window_ms, tool_error *error)
{
    bench_probe *const probe = device->probe;
    const double operations = TILE_OPERATIONS * (double)probe->tile.global;
    const cl_int rounds = fit_window(window_ms, 1e6 * device->peaks.matrix_gflops, operations, MIN_ROUNDS, MAX_ROUNDS);
    const kernel_arg args[] = {{sizeof(probe->sums), &probe->sums}, {sizeof(rounds), &rounds}};
    double ms = 0;
    TOOL_TRY(set_args(probe->tile.kernel, TOOL_COUNT(args), args, error));
    TOOL_TRY(time_window(&device->tool, &probe->tile, 1, &ms, error));
    device->peaks.matrix_gflops = fmax(device->peaks.matrix_gflops, operations * rounds / (ms * 1e6));
    return TOOL_DONE;
}

static tool_exit measure_fma(bench_device *device, double window_ms, tool_error *error)
{
    bench_probe *const probe = device->probe;
    const float factor = 0.999F, term = 0.001F;
    const double operations = FMA_OPERATIONS * probe->width * (double)probe->fma.global;
    const cl_int rounds = fit_window(window_ms, 1e6 * device->peaks.fma_gflops, operations, MIN_ROUNDS, MAX_ROUNDS);
    const kernel_arg args[] = {{sizeof(probe->sums), &probe->sums},
                               {sizeof(rounds), &rounds},
                               {sizeof(factor), &factor},
                               {sizeof(term), &term}};
    double ms = 0;
    TOOL_TRY(set_args(probe->fma.kernel, TOOL_COUNT(args), args, error));
    TOOL_TRY(time_window(&device->tool, &probe->fma, 1, &ms, error));
    device->peaks.fma_gflops = fmax(device->peaks.fma_gflops, operations * rounds / (ms * 1e6));
    return TOOL_DONE;
}

/* Short windows find the moments in which all units are free, however busy the machine is; in long ones the launch
 * weighs nothing and clocks rise. The first windows of a run only find out how much work that is. */
static tool_exit measure_windows(bench_device *device, tool_error *error)
{
    static const struct {
        double ms;
        int count;
    } windows[] = {{0.5, 16}, {1, 16}, {4, 2}, {16, 1}};
    for (size_t i = 0; i < TOOL_COUNT(windows); i++) {
        const int count = how_often(device->probe, windows[i].count);
        for (int n = 0; n < count; n++) {
            TOOL_TRY(measure_fma(device, windows[i].ms, error));
            if (device->probe->tile.kernel)
                TOOL_TRY(measure_tiles(device, windows[i].ms, error));
        }
    }
    device->probe->fma_end_ms = tool_now_ms();
    return TOOL_DONE;
}

tool_exit bench_probe_compute(bench_device *device, tool_error *error)
{
    const double end = tool_now_ms() + FMA_MS * device->probe->thoroughness;
    do
        TOOL_TRY(measure_windows(device, error));
    while (tool_now_ms() < end);
    return TOOL_DONE;
}

tool_exit bench_probe_between(bench_device *device, tool_error *error)
{
    const bool wanted = device->probe && tool_now_ms() - device->probe->fma_end_ms >= FMA_PAUSE_MS;
    return wanted ? measure_windows(device, error) : TOOL_DONE;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* The best of several windows, the first of which finish compiling and touch all pages. */
static tool_exit best_window(const bench_device *device, peak_launch *launch, double bytes, double *gbps,
                             tool_error *error)
{
    const double least_ms = device->tool.info.device_class == CLMGK_DEVICE_CPU ? 1 : 8;
    const size_t windows = (size_t)how_often(device->probe, MEMORY_PASSES) * launch->slices;
    for (size_t i = 0; i < windows; i++) {
        const int launches = fit_window(least_ms, 1e6 * *gbps, bytes, 1, MAX_LAUNCHES);
        double ms = 0;
        TOOL_TRY(time_window(&device->tool, launch, launches, &ms, error));
        *gbps = fmax(*gbps, bytes * launches / (ms * 1e6));
    }
    return TOOL_DONE;
}

static tool_exit measure_copy(bench_device *device, const cl_mem buffers[2], uint64_t bytes, tool_error *error)
{
    peak_launch *const copy = &device->probe->copy;
    const uint64_t slice = bytes / copy->slices;
    const kernel_arg args[] = {{sizeof(buffers[0]), &buffers[0]}, {sizeof(buffers[1]), &buffers[1]}};
    copy->global = slice / ((size_t)device->probe->vector_width * sizeof(float));
    TOOL_TRY(set_args(copy->kernel, TOOL_COUNT(args), args, error));
    return best_window(device, copy, 2.0 * (double)slice, &device->peaks.copy_gbps, error);
}

static tool_exit measure_read(bench_device *device, cl_mem buffer, uint64_t bytes, tool_error *error)
{
    bench_probe *const probe = device->probe;
    const size_t vector = (size_t)probe->vector_width * sizeof(float);
    const cl_int count = (cl_int)(bytes / probe->read.slices / vector / probe->read.global / 4 * 4);
    /* A CPU's cores read runs of memory, a GPU's work-items read side by side. */
    const cl_int step = device->tool.info.device_class == CLMGK_DEVICE_CPU ? 1 : (cl_int)probe->read.global;
    const kernel_arg args[] = {
        {sizeof(probe->sums), &probe->sums}, {sizeof(buffer), &buffer}, {sizeof(count), &count}, {sizeof(step), &step}};
    TOOL_TRY(set_args(probe->read.kernel, TOOL_COUNT(args), args, error));
    return best_window(device, &probe->read, (double)count * (double)probe->read.global * (double)vector,
                       &device->peaks.read_gbps, error);
}

/* Bytes of each of the two buffers: beyond the last cache, as far as the device has room. */
static uint64_t choose_bytes(const clmgk_device_info *info, uint64_t *wanted)
{
    cl_ulong cache = 0;
    if (clGetDeviceInfo(info->device_id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, sizeof(cache), &cache, NULL) != CL_SUCCESS)
        cache = 0;
    const bool cpu = info->device_class == CLMGK_DEVICE_CPU;
    const uint64_t room = info->global_memory_bytes / 4;
    *wanted =
        TOOL_MAX(cpu ? TOOL_MAX(CPU_BYTES, CPU_UNIT_BYTES * info->compute_units) : GPU_BYTES, BEYOND_CACHE * cache);
    return TOOL_MIN(*wanted, TOOL_MIN(info->max_allocation_bytes, room)) / BYTES_UNIT * BYTES_UNIT;
}

tool_exit bench_probe_memory(bench_device *device, tool_error *error)
{
    const float one = 1.0F;
    cl_mem buffers[2] = {NULL, NULL};
    cl_int code = CL_SUCCESS;
    tool_exit status = TOOL_DONE;
    const uint64_t bytes = choose_bytes(&device->tool.info, &device->peaks.wanted_bytes);
    if (device->peaks.buffer_bytes && tool_now_ms() - device->probe->memory_end_ms < MEMORY_PAUSE_MS)
        return TOOL_DONE;
    device->peaks.buffer_bytes = bytes;
    for (size_t i = 0; i < TOOL_COUNT(buffers); i++)
        TOOL_TRY_GOTO(status, tool_make_buffer(&device->tool, bytes, NULL, &buffers[i], error), done);
    /* Pages that nobody has written may all be one page of zeros in the cache. */
    code = clEnqueueFillBuffer(device->tool.queue, buffers[1], &one, sizeof(one), 0, bytes, 0, NULL, NULL);
    TOOL_TRY_GOTO(status, tool_check_cl(code, "clEnqueueFillBuffer", error), done);
    TOOL_TRY_GOTO(status, measure_copy(device, buffers, bytes, error), done);
    TOOL_TRY_GOTO(status, measure_read(device, buffers[1], bytes, error), done);
    device->probe->memory_end_ms = tool_now_ms();
done:
    for (size_t i = 0; i < TOOL_COUNT(buffers); i++)
        tool_release_buffer(buffers[i]);
    return status;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

static int widest_vector(const clmgk_device_info *info)
{
    static const int widths[] = {16, 8, 4};
    for (size_t i = 0; i < TOOL_COUNT(widths); i++) {
        if (info->native_float_lanes >= (uint32_t)widths[i])
            return widths[i];
    }
    return 1;
}

static void print_type(int width, char *text, size_t size)
{
    if (width > 1)
        snprintf(text, size, "float%d", width);
    else
        snprintf(text, size, "float");
}

/* A CPU's unit for bf16 numbers, as in peak.cl; 0: none that plans may use. If they may, its instructions are permitted
 * here, too. */
static int tiles_of(const tool_device *device)
{
    static const struct {
        const char *name;
        int tiles;
    } units[] = {{"amx", 1}, {"amx-fp16", 1}, {"avx512-bf16", 2}};
    clmgk_matrix_unit_info unit = CLMGK_MATRIX_UNIT_INFO_INIT;
    if (clmgk_context_get_matrix_unit(device->library, &unit, NULL) != CLMGK_OK)
        return 0;
    for (size_t i = 0; i < TOOL_COUNT(units); i++)
        if (strcmp(unit.name, units[i].name) == 0)
            return units[i].tiles;
    return 0;
}

static tool_exit build_program(const tool_device *device, bench_probe *probe, int tiles, tool_error *error)
{
    char real[16], vector[16], options[64];
    const char *text = bench_kernels[0].text;
    cl_int code = CL_SUCCESS;
    print_type(probe->width, real, sizeof(real));
    print_type(probe->vector_width, vector, sizeof(vector));
    snprintf(options, sizeof(options), "-DREAL=%s -DVECTOR=%s -DTILES=%d", real, vector, tiles);
    probe->program = clCreateProgramWithSource(device->context, 1, &text, &bench_kernels[0].length, &code);
    TOOL_TRY(tool_check_cl(code, "clCreateProgramWithSource", error));
    code = clBuildProgram(probe->program, 1, &device->info.device_id, options, NULL, NULL);
    return tool_check_cl(code, "clBuildProgram", error);
}

static tool_exit make_kernel(const bench_probe *probe, const char *name, cl_kernel *kernel, tool_error *error)
{
    cl_int code = CL_SUCCESS;
    *kernel = clCreateKernel(probe->program, name, &code);
    return tool_check_cl(code, "clCreateKernel", error);
}

tool_exit bench_probe_open(bench_device *device, double seconds, tool_error *error)
{
    const clmgk_device_info *info = &device->tool.info;
    const bool cpu = info->device_class == CLMGK_DEVICE_CPU;
    const size_t units = info->compute_units;
    bench_probe *const probe = calloc(1, sizeof(*probe));
    TOOL_TRY(tool_check_memory(probe, "the measurement of peaks", error));
    device->probe = probe;
    probe->thoroughness = fmin(1, seconds / THOROUGH_S);
    probe->width = widest_vector(info);
    probe->vector_width = cpu || probe->width > 4 ? probe->width : 4;
    /* So many work-groups for each unit that it matters little which of them end last. */
    probe->fma.global = units * (cpu ? 32 : 32768);
    probe->read.global = units * (cpu ? 32 : 2048);
    probe->fma.local = probe->read.local = cpu ? 1 : 256;
    probe->copy.local = COPY_GROUP;
    probe->tile.global = probe->fma.global;
    probe->tile.local = 1;
    probe->fma.slices = probe->tile.slices = 1;
    probe->copy.slices = probe->read.slices = cpu ? CPU_SLICES : 1;
    const int tiles = tiles_of(&device->tool);
    TOOL_TRY(build_program(&device->tool, probe, tiles, error));
    if (tiles)
        TOOL_TRY(make_kernel(probe, "tile_peak", &probe->tile.kernel, error));
    TOOL_TRY(make_kernel(probe, "fma_peak", &probe->fma.kernel, error));
    TOOL_TRY(make_kernel(probe, "copy_peak", &probe->copy.kernel, error));
    TOOL_TRY(make_kernel(probe, "read_peak", &probe->read.kernel, error));
    const size_t bytes = probe->fma.global * (size_t)probe->vector_width * sizeof(float);
    return tool_make_buffer(&device->tool, bytes, NULL, &probe->sums, error);
}

void bench_probe_close(bench_device *device)
{
    bench_probe *const probe = device->probe;
    if (!probe)
        return;
    const cl_kernel kernels[] = {probe->fma.kernel, probe->tile.kernel, probe->copy.kernel, probe->read.kernel};
    for (size_t i = 0; i < TOOL_COUNT(kernels); i++) {
        if (kernels[i])
            clReleaseKernel(kernels[i]);
    }
    if (probe->program)
        clReleaseProgram(probe->program);
    tool_release_buffer(probe->sums);
    free(probe);
    device->probe = NULL;
}
