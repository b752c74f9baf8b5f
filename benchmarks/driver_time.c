/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program has functions of OpenCL's names, which libraries call in the place of the loader's; they call those, and
 * take the time. All that libclmgk calls while it enqueues is here.
 */
#include "driver_time.h"

#include "tool.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOADER "libOpenCL.so.1"

/* A thread's, since these functions have no argument for it. */
static _Thread_local struct {
    bool running;
    bench_driver_time sum;
} own;

static double now_us(void)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

void bench_driver_begin(void)
{
    own.sum = (bench_driver_time){0, 0};
    own.running = true;
}

bench_driver_time bench_driver_end(void)
{
    own.running = false;
    return own.sum;
}

static double start_call(void)
{
    return own.running ? now_us() : 0;
}

static void end_call(double start)
{
    if (own.running) {
        own.sum.us += now_us() - start;
        own.sum.calls++;
    }
}

/* The loader's function; the process cannot go on without it. */
static void *find(const char *name)
{
    void *const loader = dlopen(LOADER, RTLD_NOW | RTLD_LOCAL);
    void *const found = loader ? dlsym(loader, name) : NULL;
    if (!found)
        abort();
    return found;
}

#define CALLED_BY_LIBRARIES __attribute__((visibility("default")))
#define TIMED(result, name, parameters, ...)                                                                           \
    CALLED_BY_LIBRARIES CL_API_ENTRY result CL_API_CALL name parameters                                                \
    {                                                                                                                  \
        static _Atomic(void *) known;                                                                                  \
        void *symbol = atomic_load_explicit(&known, memory_order_relaxed);                                             \
        result(CL_API_CALL *next) parameters = NULL;                                                                   \
        if (!symbol) {                                                                                                 \
            symbol = find(#name);                                                                                      \
            atomic_store_explicit(&known, symbol, memory_order_relaxed);                                               \
        }                                                                                                              \
        memcpy(&next, &symbol, sizeof(next)); /* C has no conversion from object to function pointers */               \
        const double start = start_call();                                                                             \
        result answer = next(__VA_ARGS__);                                                                             \
        end_call(start);                                                                                               \
        return answer;                                                                                                 \
    }

TIMED(cl_int, clSetKernelArg, (cl_kernel kernel, cl_uint index, size_t size, const void *value), kernel, index, size,
      value)
TIMED(cl_int, clEnqueueNDRangeKernel,
      (cl_command_queue queue, cl_kernel kernel, cl_uint axes, const size_t *offset, const size_t *global,
       const size_t *local, cl_uint count, const cl_event *list, cl_event *event),
      queue, kernel, axes, offset, global, local, count, list, event)
TIMED(cl_int, clEnqueueNativeKernel,
      (cl_command_queue queue, void(CL_CALLBACK *function)(void *), void *arguments, size_t bytes, cl_uint buffers,
       const cl_mem *list, const void **places, cl_uint count, const cl_event *wait, cl_event *event),
      queue, function, arguments, bytes, buffers, list, places, count, wait, event)
TIMED(cl_int, clEnqueueBarrierWithWaitList,
      (cl_command_queue queue, cl_uint count, const cl_event *list, cl_event *event), queue, count, list, event)
TIMED(cl_int, clEnqueueMarkerWithWaitList,
      (cl_command_queue queue, cl_uint count, const cl_event *list, cl_event *event), queue, count, list, event)
TIMED(void *, clEnqueueMapBuffer,
      (cl_command_queue queue, cl_mem memory, cl_bool wait, cl_map_flags flags, size_t offset, size_t bytes,
       cl_uint count, const cl_event *list, cl_event *event, cl_int *code),
      queue, memory, wait, flags, offset, bytes, count, list, event, code)
TIMED(cl_int, clEnqueueUnmapMemObject,
      (cl_command_queue queue, cl_mem memory, void *place, cl_uint count, const cl_event *list, cl_event *event), queue,
      memory, place, count, list, event)
TIMED(cl_int, clFlush, (cl_command_queue queue), queue)
TIMED(cl_mem, clCreateSubBuffer,
      (cl_mem memory, cl_mem_flags flags, cl_buffer_create_type type, const void *info, cl_int *code), memory, flags,
      type, info, code)
TIMED(cl_int, clSetMemObjectDestructorCallback,
      (cl_mem memory, void(CL_CALLBACK *function)(cl_mem memory, void *data), void *data), memory, function, data)
TIMED(cl_int, clRetainMemObject, (cl_mem memory), memory)
TIMED(cl_int, clReleaseMemObject, (cl_mem memory), memory)
TIMED(cl_int, clRetainEvent, (cl_event event), event)
TIMED(cl_int, clReleaseEvent, (cl_event event), event)
TIMED(cl_int, clRetainKernel, (cl_kernel kernel), kernel)
TIMED(cl_int, clReleaseKernel, (cl_kernel kernel), kernel)
TIMED(cl_int, clGetMemObjectInfo, (cl_mem memory, cl_mem_info name, size_t size, void *value, size_t *real), memory,
      name, size, value, real)
TIMED(cl_int, clGetEventInfo, (cl_event event, cl_event_info name, size_t size, void *value, size_t *real), event, name,
      size, value, real)
TIMED(cl_int, clGetCommandQueueInfo,
      (cl_command_queue queue, cl_command_queue_info name, size_t size, void *value, size_t *real), queue, name, size,
      value, real)
TIMED(cl_int, clGetContextInfo, (cl_context context, cl_context_info name, size_t size, void *value, size_t *real),
      context, name, size, value, real)
