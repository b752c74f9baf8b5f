/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault layer: makes the Nth OpenCL call fail and counts the program's references to objects.
 * Armed by FAULT_OPENCL (fault_state.h) or, in process, through fault_layer_state; reports at exit.
 *
 * A failing call has done nothing, but for waits, which have waited: a real failed wait leaves work running, and then
 * a program that frees its host arrays would be the layer's victim. Releases never fail: nobody can act on that.
 */
#include "fault_state.h"
#include "layer.h"

#include <string.h>

const char layer_name[] = "fault layer";

static fault_state state = {.kind = "OpenCL calls"};
static fault_state contexts = {.kind = "OpenCL contexts"}; /* live: made, released or not */

fault_state *fault_layer_state(void);
fault_state *fault_layer_state(void)
{
    return &state;
}

static cl_int due(const char *function)
{
    return fault_due(&state, function) ? atomic_load(&state.code) : CL_SUCCESS;
}

static cl_int made(cl_int code, const void *object)
{
    if (code == CL_SUCCESS && object != NULL)
        atomic_fetch_add(&state.live, 1);
    return code;
}

/* `function` has made an object. */
static void created(const char *function, cl_int code, const void *object)
{
    if (made(code, object) == CL_SUCCESS && strcmp(function, "clCreateContext") == 0)
        atomic_fetch_add(&contexts.live, 1);
}

static cl_int made_event(cl_int code, const cl_event *event)
{
    return code == CL_SUCCESS && event != NULL ? made(code, *event) : code;
}

static cl_int dropped(cl_int code)
{
    if (code == CL_SUCCESS)
        atomic_fetch_sub(&state.live, 1);
    return code;
}

/* X(function, parameters, arguments) of the calls that only give a status. */
#define STATUS_CALLS(X)                                                                                                \
    X(clGetPlatformIDs, (cl_uint n, cl_platform_id * p, cl_uint * count), (n, p, count))                               \
    X(clGetPlatformInfo, (cl_platform_id p, cl_platform_info i, size_t s, void *v, size_t *r), (p, i, s, v, r))        \
    X(clGetDeviceIDs, (cl_platform_id p, cl_device_type t, cl_uint n, cl_device_id * d, cl_uint * c), (p, t, n, d, c)) \
    X(clGetDeviceInfo, (cl_device_id d, cl_device_info i, size_t s, void *v, size_t *r), (d, i, s, v, r))              \
    X(clGetContextInfo, (cl_context c, cl_context_info i, size_t s, void *v, size_t *r), (c, i, s, v, r))              \
    X(clGetCommandQueueInfo, (cl_command_queue q, cl_command_queue_info i, size_t s, void *v, size_t *r),              \
      (q, i, s, v, r))                                                                                                 \
    X(clGetMemObjectInfo, (cl_mem m, cl_mem_info i, size_t s, void *v, size_t *r), (m, i, s, v, r))                    \
    X(clSetMemObjectDestructorCallback, (cl_mem m, void(CL_CALLBACK * notify)(cl_mem memory, void *user), void *user), \
      (m, notify, user))                                                                                               \
    X(clBuildProgram,                                                                                                  \
      (cl_program p, cl_uint n, const cl_device_id *d, const char *options,                                            \
       void(CL_CALLBACK * notify)(cl_program program, void *user), void *user),                                        \
      (p, n, d, options, notify, user))                                                                                \
    X(clGetProgramInfo, (cl_program p, cl_program_info i, size_t s, void *v, size_t *r), (p, i, s, v, r))              \
    X(clGetProgramBuildInfo, (cl_program p, cl_device_id d, cl_program_build_info i, size_t s, void *v, size_t *r),    \
      (p, d, i, s, v, r))                                                                                              \
    X(clSetKernelArg, (cl_kernel k, cl_uint i, size_t s, const void *v), (k, i, s, v))                                 \
    X(clGetKernelInfo, (cl_kernel k, cl_kernel_info i, size_t s, void *v, size_t *r), (k, i, s, v, r))                 \
    X(clGetKernelArgInfo, (cl_kernel k, cl_uint n, cl_kernel_arg_info i, size_t s, void *v, size_t *r),                \
      (k, n, i, s, v, r))                                                                                              \
    X(clGetKernelWorkGroupInfo,                                                                                        \
      (cl_kernel k, cl_device_id d, cl_kernel_work_group_info i, size_t s, void *v, size_t *r), (k, d, i, s, v, r))    \
    X(clGetEventInfo, (cl_event e, cl_event_info i, size_t s, void *v, size_t *r), (e, i, s, v, r))                    \
    X(clGetEventProfilingInfo, (cl_event e, cl_profiling_info i, size_t s, void *v, size_t *r), (e, i, s, v, r))       \
    X(clSetEventCallback,                                                                                              \
      (cl_event e, cl_int t, void(CL_CALLBACK * notify)(cl_event event, cl_int status, void *user), void *user),       \
      (e, t, notify, user))                                                                                            \
    X(clSetUserEventStatus, (cl_event e, cl_int s), (e, s))                                                            \
    X(clFlush, (cl_command_queue q), (q))

#define WAIT_CALLS(X)                                                                                                  \
    X(clWaitForEvents, (cl_uint n, const cl_event *events), (n, events))                                               \
    X(clFinish, (cl_command_queue q), (q))

/* Calls whose last argument receives an event. */
#define ENQUEUE_CALLS(X)                                                                                               \
    X(clEnqueueReadBuffer,                                                                                             \
      (cl_command_queue q, cl_mem m, cl_bool b, size_t o, size_t s, void *p, cl_uint n, const cl_event *w,             \
       cl_event *event),                                                                                               \
      (q, m, b, o, s, p, n, w, event))                                                                                 \
    X(clEnqueueWriteBuffer,                                                                                            \
      (cl_command_queue q, cl_mem m, cl_bool b, size_t o, size_t s, const void *p, cl_uint n, const cl_event *w,       \
       cl_event *event),                                                                                               \
      (q, m, b, o, s, p, n, w, event))                                                                                 \
    X(clEnqueueCopyBuffer,                                                                                             \
      (cl_command_queue q, cl_mem a, cl_mem b, size_t ao, size_t bo, size_t s, cl_uint n, const cl_event *w,           \
       cl_event *event),                                                                                               \
      (q, a, b, ao, bo, s, n, w, event))                                                                               \
    X(clEnqueueFillBuffer,                                                                                             \
      (cl_command_queue q, cl_mem m, const void *p, size_t ps, size_t o, size_t s, cl_uint n, const cl_event *w,       \
       cl_event *event),                                                                                               \
      (q, m, p, ps, o, s, n, w, event))                                                                                \
    X(clEnqueueUnmapMemObject, (cl_command_queue q, cl_mem m, void *p, cl_uint n, const cl_event *w, cl_event *event), \
      (q, m, p, n, w, event))                                                                                          \
    X(clEnqueueNDRangeKernel,                                                                                          \
      (cl_command_queue q, cl_kernel k, cl_uint d, const size_t *o, const size_t *g, const size_t *l, cl_uint n,       \
       const cl_event *w, cl_event *event),                                                                            \
      (q, k, d, o, g, l, n, w, event))                                                                                 \
    X(clEnqueueNativeKernel,                                                                                           \
      (cl_command_queue q, void(CL_CALLBACK * f)(void *), void *args, size_t s, cl_uint count, const cl_mem *m,        \
       const void **places, cl_uint n, const cl_event *w, cl_event *event),                                            \
      (q, f, args, s, count, m, places, n, w, event))                                                                  \
    X(clEnqueueMarkerWithWaitList, (cl_command_queue q, cl_uint n, const cl_event *w, cl_event *event),                \
      (q, n, w, event))                                                                                                \
    X(clEnqueueBarrierWithWaitList, (cl_command_queue q, cl_uint n, const cl_event *w, cl_event *event),               \
      (q, n, w, event))

/* X(type, function, parameters before errcode_ret, arguments): the calls that make an object. */
#define CREATE_CALLS(X)                                                                                                \
    X(cl_context, clCreateContext,                                                                                     \
      (const cl_context_properties *p, cl_uint n, const cl_device_id *d,                                               \
       void(CL_CALLBACK * notify)(const char *text, const void *info, size_t size, void *user), void *user,            \
       cl_int *errcode_ret),                                                                                           \
      (p, n, d, notify, user, &code))                                                                                  \
    X(cl_command_queue, clCreateCommandQueue,                                                                          \
      (cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int * errcode_ret), (c, d, p, &code))           \
    X(cl_mem, clCreateBuffer, (cl_context c, cl_mem_flags f, size_t s, void *p, cl_int *errcode_ret),                  \
      (c, f, s, p, &code))                                                                                             \
    X(cl_mem, clCreateSubBuffer,                                                                                       \
      (cl_mem m, cl_mem_flags f, cl_buffer_create_type t, const void *i, cl_int *errcode_ret), (m, f, t, i, &code))    \
    X(cl_program, clCreateProgramWithSource,                                                                           \
      (cl_context c, cl_uint n, const char **text, const size_t *length, cl_int *errcode_ret),                         \
      (c, n, text, length, &code))                                                                                     \
    X(cl_program, clCreateProgramWithBinary,                                                                           \
      (cl_context c, cl_uint n, const cl_device_id *d, const size_t *length, const unsigned char **binary,             \
       cl_int *status, cl_int *errcode_ret),                                                                           \
      (c, n, d, length, binary, status, &code))                                                                        \
    X(cl_kernel, clCreateKernel, (cl_program p, const char *name, cl_int *errcode_ret), (p, name, &code))              \
    X(cl_event, clCreateUserEvent, (cl_context c, cl_int * errcode_ret), (c, &code))

/* X(kind, type): clRetain<kind> and clRelease<kind>. */
#define OBJECTS(X)                                                                                                     \
    X(Context, cl_context)                                                                                             \
    X(CommandQueue, cl_command_queue)                                                                                  \
    X(MemObject, cl_mem)                                                                                               \
    X(Program, cl_program)                                                                                             \
    X(Kernel, cl_kernel)                                                                                               \
    X(Event, cl_event)                                                                                                 \
    X(Device, cl_device_id)

#define DEFINE_STATUS(function, parameters, arguments)                                                                 \
    static cl_int CL_API_CALL fault_##function parameters                                                              \
    {                                                                                                                  \
        const cl_int code = due(#function);                                                                            \
        return code != CL_SUCCESS ? code : layer_next.function arguments;                                              \
    }
#define DEFINE_WAIT(function, parameters, arguments)                                                                   \
    static cl_int CL_API_CALL fault_##function parameters                                                              \
    {                                                                                                                  \
        const cl_int code = due(#function);                                                                            \
        const cl_int waited = layer_next.function arguments;                                                           \
        return code != CL_SUCCESS ? code : waited;                                                                     \
    }
#define DEFINE_ENQUEUE(function, parameters, arguments)                                                                \
    static cl_int CL_API_CALL fault_##function parameters                                                              \
    {                                                                                                                  \
        const cl_int code = due(#function);                                                                            \
        return code != CL_SUCCESS ? code : made_event(layer_next.function arguments, event);                           \
    }
#define DEFINE_CREATE(type, function, parameters, arguments)                                                           \
    static type CL_API_CALL fault_##function parameters                                                                \
    {                                                                                                                  \
        cl_int code = due(#function);                                                                                  \
        const type object = code != CL_SUCCESS ? NULL : layer_next.function arguments;                                 \
        created(#function, code, object);                                                                              \
        if (errcode_ret != NULL)                                                                                       \
            *errcode_ret = code;                                                                                       \
        return object;                                                                                                 \
    }
#define DEFINE_OBJECT(kind, type)                                                                                      \
    static cl_int CL_API_CALL fault_clRetain##kind(type object)                                                        \
    {                                                                                                                  \
        const cl_int code = due("clRetain" #kind);                                                                     \
        return code != CL_SUCCESS ? code : made(layer_next.clRetain##kind(object), object);                            \
    }                                                                                                                  \
    static cl_int CL_API_CALL fault_clRelease##kind(type object)                                                       \
    {                                                                                                                  \
        return dropped(layer_next.clRelease##kind(object));                                                            \
    }

STATUS_CALLS(DEFINE_STATUS)
WAIT_CALLS(DEFINE_WAIT)
ENQUEUE_CALLS(DEFINE_ENQUEUE)
CREATE_CALLS(DEFINE_CREATE)
OBJECTS(DEFINE_OBJECT)

/* The two that give an object or a pointer in a way of their own. */
static cl_int CL_API_CALL fault_clCreateKernelsInProgram(cl_program program, cl_uint capacity, cl_kernel *kernels,
                                                         cl_uint *count)
{
    cl_uint number = 0;
    cl_int code = due("clCreateKernelsInProgram");
    if (code == CL_SUCCESS)
        code = layer_next.clCreateKernelsInProgram(program, capacity, kernels, &number);
    if (code == CL_SUCCESS && kernels != NULL)
        atomic_fetch_add(&state.live, number);
    if (code == CL_SUCCESS && count != NULL)
        *count = number;
    return code;
}

static void *CL_API_CALL fault_clEnqueueMapBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                                  cl_map_flags flags, size_t offset, size_t size, cl_uint num_wait,
                                                  const cl_event *wait_list, cl_event *event, cl_int *errcode_ret)
{
    cl_int code = due("clEnqueueMapBuffer");
    void *mapped = NULL;
    if (code == CL_SUCCESS)
        mapped = layer_next.clEnqueueMapBuffer(queue, memory, blocking, flags, offset, size, num_wait, wait_list, event,
                                               &code);
    (void)made_event(code, event);
    if (errcode_ret != NULL)
        *errcode_ret = code;
    return mapped;
}

#define INSTALL(function, ...)              table->function = fault_##function;
#define INSTALL_CREATE(type, function, ...) table->function = fault_##function;
#define INSTALL_OBJECT(kind, type)                                                                                     \
    table->clRetain##kind = fault_clRetain##kind;                                                                      \
    table->clRelease##kind = fault_clRelease##kind;

void layer_install(cl_icd_dispatch *table)
{
    STATUS_CALLS(INSTALL)
    WAIT_CALLS(INSTALL)
    ENQUEUE_CALLS(INSTALL)
    CREATE_CALLS(INSTALL_CREATE)
    OBJECTS(INSTALL_OBJECT)
    table->clCreateKernelsInProgram = fault_clCreateKernelsInProgram;
    table->clEnqueueMapBuffer = fault_clEnqueueMapBuffer;
    fault_arm_from_environment(&state, "FAULT_OPENCL", CL_OUT_OF_RESOURCES);
}

static void __attribute__((destructor)) report(void)
{
    fault_report(&state);
    fault_report(&contexts);
}
