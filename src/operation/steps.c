/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of steps: compiles, binds and launches their kernels. */
#include "operation/builds.h"

#include <inttypes.h>
#include <string.h>

/* PoCL compiles grids from this size on separately; so many work-groups are surely one. */
#define LARGE_GRID   ((size_t)65000)
#define LARGE_ENOUGH ((size_t)65536)

mgk_call mgk_empty_call(void)
{
    static const clmgk_buffer nothing = {NULL, 0};
    mgk_call call = {.seed = 0};
    for (size_t i = 0; i < MGK_CALL_BUFFERS; ++i)
        call.buffers[i] = &nothing;
    return call;
}

void mgk_steps_clear(mgk_steps *steps, const clmgk_allocator *allocator)
{
    for (size_t i = 0; i < MGK_MAX_STEPS; ++i) {
        if (steps->step[i].kernel != NULL)
            clReleaseKernel(steps->step[i].kernel);
        mgk_program_release(steps->step[i].program);
        mgk_text_free(&steps->step[i].options);
    }
    if (steps->made)
        pthread_mutex_destroy(&steps->mutex);
    memset(steps, 0, sizeof(*steps));
    for (size_t i = 0; i < MGK_MAX_STEPS; ++i)
        steps->step[i].options.allocator = allocator;
}

void mgk_steps_clear_call(mgk_steps *steps)
{
    memset(steps, 0, sizeof(*steps));
    for (size_t i = 0; i < MGK_MAX_STEPS; ++i)
        steps->step[i].options.failed = true;
}

mgk_i64 mgk_steps_region(mgk_steps *steps, int64_t floats)
{
    const uint64_t begin = mgk_aligned_workspace(steps->workspace_bytes);
    steps->workspace_bytes = begin + (uint64_t)floats * sizeof(float);
    return (mgk_i64)(begin / sizeof(float));
}

uint64_t mgk_aligned_workspace(uint64_t offset)
{
    return (offset + MGK_WORKSPACE_ALIGNMENT - 1) / MGK_WORKSPACE_ALIGNMENT * MGK_WORKSPACE_ALIGNMENT;
}

uint64_t mgk_steps_workspace_size(const mgk_steps *steps)
{
    const uint64_t bytes = steps->workspace_bytes;
    return bytes > 0 ? bytes + MGK_WORKSPACE_ALIGNMENT - sizeof(float) : 0;
}

/* ---- kernels of another list ------------------------------------------------------------------------------------ */

/* The list's step with the kernel of `step`; NULL: it has none. */
static mgk_step *find(mgk_steps *steps, const mgk_step *step)
{
    for (size_t i = 0; i < steps->count; ++i) {
        mgk_step *const one = &steps->step[i];
        if (one->enqueue == NULL && one->key.low == step->key.low && one->key.high == step->key.high &&
            strcmp(one->name, step->name) == 0)
            return one;
    }
    return NULL;
}

clmgk_status mgk_steps_borrow(mgk_steps *steps, mgk_steps *owner, clmgk_error *error)
{
    steps->owner = owner;
    for (size_t i = 0; i < steps->count; ++i) {
        mgk_step *const step = &steps->step[i];
        if (step->enqueue != NULL)
            continue;
        step->made = find(owner, step);
        if (step->made == NULL)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "kernel %s: the plan has none for these sizes", step->name);
    }
    return CLMGK_OK;
}

clmgk_status mgk_steps_add(mgk_steps *steps, mgk_steps *more, clmgk_error *error)
{
    steps->any_size = true;
    for (size_t i = 0; i < more->count; ++i) {
        mgk_step *const same = find(steps, &more->step[i]);
        if (same != NULL) {
            if (same->launch.global[0] < more->step[i].launch.global[0])
                same->launch = more->step[i].launch;
            continue;
        }
        if (steps->count == MGK_MAX_STEPS)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "sizes_at_call: expected at most %d kernels of a pass",
                            MGK_MAX_STEPS);
        mgk_step *const last = &steps->step[steps->count++];
        mgk_text_free(&last->options);
        *last = more->step[i];
        more->step[i].options = (mgk_text){.allocator = last->options.allocator};
    }
    return CLMGK_OK;
}

/* ---- arguments ---------------------------------------------------------------------------------------------- */

void mgk_step_bind(mgk_step *step, const void *args, size_t args_bytes, const mgk_step_buffer *list, size_t count)
{
    memcpy(step->args, args, args_bytes);
    step->args_bytes = args_bytes;
    for (size_t i = 0; i < count; ++i) {
        if (!list[i].needed)
            continue;
        if (step->buffers < MGK_BUFFERS)
            step->buffer[step->buffers] = list[i].number;
        ++step->buffers;
    }
}

void mgk_step_append(mgk_step *step, const void *args, size_t bytes)
{
    if (step->args_bytes + bytes <= sizeof(step->args))
        memcpy(step->args + step->args_bytes, args, bytes);
    step->args_bytes += bytes;
}

/* Kernels count work-groups in 32 bits, and so do drivers. */
static clmgk_status check_groups(const mgk_step *step, clmgk_error *error)
{
    const mgk_launch *const launch = &step->launch;
    double groups = 1.0;
    for (cl_uint i = 0; i < launch->dimensions; ++i)
        groups *= launch->local[i] > 0 ? (double)launch->global[i] / (double)launch->local[i] : 1.0;
    return groups <= INT32_MAX
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "kernel %s: %.0f work-groups: expected at most %" PRId32,
                          step->name, groups, INT32_MAX);
}

clmgk_status mgk_step_check(const mgk_step *step, clmgk_error *error)
{
    enum { POINTER = 8, START = sizeof(mgk_i64) };
    MGK_TRY(check_groups(step, error));
    const size_t bytes = step->args_bytes + step->buffers * (POINTER + START);
    if (step->buffers > MGK_BUFFERS || bytes > MGK_ARGUMENT_BYTES)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "kernel %s: %zu buffers, with them %zu bytes of arguments: expected at most %d buffers and the "
                        "%d bytes that OpenCL guarantees",
                        step->name, step->buffers, bytes, MGK_BUFFERS, MGK_ARGUMENT_BYTES);
    return CLMGK_OK;
}

/* ---- launches ----------------------------------------------------------------------------------------------- */

/* A buffer of a kernel. */
static clmgk_buffer buffer_of(const mgk_step *step, const mgk_call *call, size_t i)
{
    if (step->buffer[i] != MGK_CALL_CONSTANTS)
        return *call->buffers[step->buffer[i]];
    return (clmgk_buffer){call->cuda != NULL ? step->constants->in_cuda : step->constants->memory, 0};
}

/* The call's part of a kernel's arguments. */
static mgk_bound bound_of(const mgk_step *step, const mgk_call *call)
{
    mgk_bound bound = {
        .seed_low = (mgk_u32)call->seed, .seed_high = (mgk_u32)(call->seed >> 32), .parts = (mgk_i32)call->parts};
    for (size_t i = 0; i < step->buffers; ++i) {
        const clmgk_buffer buffer = buffer_of(step, call, i);
        bound.given |= (mgk_u32)(buffer.memory != NULL) << i;
        bound.aligned |= (mgk_u32)(buffer.offset % MGK_ALIGNED == 0) << i;
        bound.added |= (mgk_u32)(step->buffer[i] < 64 ? call->added >> step->buffer[i] & 1u : 0) << i;
    }
    return bound;
}

/* `args`: the kernel's structure, without the call's part. `function`: of a call in CUDA. */
static clmgk_status launch(const mgk_step *step, mgk_cuda_function function, const mgk_launch *grid, const void *args,
                           const mgk_call *call, const mgk_queue_place *at, clmgk_error *error)
{
    const mgk_step *const made = step->made != NULL ? step->made : step;
    const cl_mem *const stand_in =
        call->cuda != NULL ? mgk_cuda_stand_in(call->cuda->cuda) : &made->program->context->stand_in;
    const mgk_bound bound = bound_of(step, call);
    enum { FIRST = 2 }; /* the first buffer's argument */
    unsigned char bytes[MGK_ARGUMENT_BYTES];
    mgk_i64 starts[MGK_BUFFERS];
    cl_mem memory[MGK_BUFFERS];
    mgk_kernel_arg list[FIRST + MGK_BUFFERS];
    memcpy(bytes, args, step->args_bytes);
    memcpy(bytes, &bound, sizeof(bound));
    list[0] = (mgk_kernel_arg){step->args_bytes, bytes};
    list[1] = (mgk_kernel_arg){step->buffers * sizeof(starts[0]), starts};
    for (size_t i = 0; i < step->buffers; ++i) {
        const clmgk_buffer buffer = buffer_of(step, call, i);
        starts[i] = (mgk_i64)buffer.offset;
        memory[i] = buffer.memory != NULL ? buffer.memory : *stand_in;
        list[FIRST + i] = (mgk_kernel_arg){sizeof(cl_mem), &memory[i]};
    }
    if (call->cuda != NULL)
        return mgk_cuda_launch(call->cuda, function, grid, made->dynamic_local, FIRST + step->buffers, list, error);
    return mgk_launch_kernel(at->queue, made->kernel, grid, FIRST + step->buffers, list, at->num_wait, at->wait_list,
                             at->event, error);
}

/* The index of the first step from `step` on that has work, or the number of steps. */
static size_t next_step(const mgk_steps *steps, size_t step)
{
    while (step < steps->count && steps->step[step].enqueue == NULL && steps->step[step].launch.global[0] == 0)
        ++step;
    return step;
}

/* Each step waits for the previous step, because the queue may be out of order. A stream of CUDA is in order, and has
 * no events here. */
static clmgk_status launch_all(const mgk_steps *steps, const mgk_call *call, const mgk_queue_place *at,
                               clmgk_error *error)
{
    clmgk_status status = CLMGK_OK;
    cl_event before = NULL;
    for (size_t i = next_step(steps, 0), next = 0; status == CLMGK_OK && i < steps->count; i = next) {
        const mgk_step *const step = &steps->step[i];
        next = next_step(steps, i + 1);
        cl_event done = NULL;
        const mgk_queue_place here = {at->queue, before != NULL ? 1 : at->num_wait,
                                      before != NULL ? &before : at->wait_list,
                                      next < steps->count ? &done : at->event};
        const mgk_cuda_function function = step->made != NULL ? step->made->function : step->function;
        status = step->enqueue != NULL ? step->enqueue(step->state, call, &here, error)
                                       : launch(step, function, &step->launch, step->args, call, &here, error);
        if (before != NULL)
            clReleaseEvent(before);
        before = done;
    }
    return status;
}

clmgk_status mgk_fail_unprepared(clmgk_error *error)
{
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: expected one that clmgk_plan_prepare_cuda has prepared");
}

/* All steps get their functions at once. */
static bool is_prepared(const mgk_steps *steps)
{
    return steps->step[0].function != NULL;
}

clmgk_status mgk_steps_enqueue(mgk_steps *steps, const mgk_call *call, const mgk_queue_place *at, clmgk_error *error)
{
    if (next_step(steps, 0) == steps->count) { /* an empty problem still orders events */
        if (call->cuda != NULL)
            return CLMGK_OK;
        static const mgk_launch nothing = {.dimensions = 1};
        return mgk_launch_kernel(at->queue, NULL, &nothing, 0, NULL, at->num_wait, at->wait_list, at->event, error);
    }
    mgk_steps *const owner = steps->owner != NULL ? steps->owner : steps;
    pthread_mutex_lock(&owner->mutex);
    const clmgk_status status =
        call->cuda == NULL || is_prepared(owner) ? launch_all(steps, call, at, error) : mgk_fail_unprepared(error);
    pthread_mutex_unlock(&owner->mutex);
    return status;
}

/* ---- programs ----------------------------------------------------------------------------------------------- */

/* The smallest grid that runs the same compiled code as `grid`. */
static mgk_launch warm_up_grid(const clmgk_context *context, const mgk_launch *grid)
{
    const bool apart = context->facts.runtime == MGK_RUNTIME_POCL;
    mgk_launch small = *grid;
    for (cl_uint i = 0; i < grid->dimensions; ++i) {
        const size_t groups = apart && grid->global[i] >= LARGE_GRID ? LARGE_ENOUGH : 1;
        if (groups * grid->local[i] < grid->global[i])
            small.global[i] = groups * grid->local[i];
    }
    return small;
}

/* Runs a kernel on an empty problem (all-zero arguments), because some drivers finish compiling at the first launch. */
static clmgk_status run_on_nothing(const mgk_step *step, const mgk_launch *grid, cl_command_queue queue,
                                   clmgk_error *error)
{
    static const unsigned char args[MGK_ARGUMENT_BYTES] = {0};
    const mgk_call call = mgk_empty_call();
    const mgk_queue_place at = {queue, 0, NULL, NULL};
    const clmgk_status status = launch(step, NULL, grid, args, &call, &at, error);
    const cl_int code = clFinish(queue);
    return status == CLMGK_OK ? mgk_check_cl(error, code, "clFinish") : status;
}

/* `any_size`: runs the code of smaller grids, too. */
static clmgk_status warm_up(const clmgk_context *context, const mgk_step *step, bool any_size, cl_command_queue queue,
                            clmgk_error *error)
{
    const mgk_launch grid = warm_up_grid(context, &step->launch);
    mgk_launch one = grid;
    memcpy(one.global, one.local, sizeof(one.global));
    if (any_size && grid.global[0] > one.global[0])
        MGK_TRY(run_on_nothing(step, &one, queue, error));
    return run_on_nothing(step, &grid, queue, error);
}

/* A kernel whose local memory the device does not take. Lowers `limits` for another plan. */
static clmgk_status refuse_local(const mgk_step *step, uint64_t local, mgk_limits *limits, clmgk_error *error)
{
    limits->narrowed = step->local_bytes > 0;
    limits->local = step->local_bytes > 0 ? step->local_bytes - 1 : local;
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                    "kernel %s: %" PRIu64 " bytes of local memory, the device has %" PRIu64, step->name,
                    step->needs.local_bytes, local);
}

/* For compute capability 9.0 NVIDIA's driver adds to a kernel's local memory what each work-group takes for itself. A
 * kernel that needs more than the device states only for that is refused if its first run fails. */
static bool run_decides(const clmgk_context *context, const mgk_step *step)
{
    enum { OF_GROUP = 1024 };
    const uint64_t local = context->facts.info.local_memory_bytes;
    return context->facts.runtime == MGK_RUNTIME_NVIDIA && step->needs.local_bytes > local &&
           step->needs.local_bytes - OF_GROUP <= local;
}

/* A compiled kernel may need more of the device than planned, and a launch would only report missing resources. Lowers
 * `limits` for another plan. Kernels without local memory have a fixed work-group size, which their first run tests
 * (rusticl reports a lower limit than it accepts). */
static clmgk_status check_fit(const clmgk_context *context, const mgk_step *step, mgk_limits *limits,
                              clmgk_error *error)
{
    const mgk_kernel_needs *const needs = &step->needs;
    const uint64_t local = context->facts.info.local_memory_bytes;
    const size_t items = step->launch.local[0];
    if (step->local_bytes > 0 && needs->work_group != 0 && items > needs->work_group) {
        limits->narrowed = needs->work_group < limits->group;
        limits->group = needs->work_group;
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "kernel %s: a work-group of %zu work-items: the device takes %zu for this kernel", step->name,
                        items, needs->work_group);
    }
    return needs->local_bytes > local && !run_decides(context, step) ? refuse_local(step, local, limits, error)
                                                                     : CLMGK_OK;
}

static clmgk_status compile_step(clmgk_context *context, mgk_step *step, bool any_size, cl_command_queue queue,
                                 mgk_limits *limits, clmgk_program_origin *origin, clmgk_error *error)
{
    double ignored = 0.0;
    clmgk_program_origin own = CLMGK_PROGRAM_MEMORY;
    if (step->enqueue != NULL)
        return CLMGK_OK;
    if (step->options.failed)
        return mgk_fail_memory(error, "compiler options");
    MGK_TRY(mgk_step_check(step, error));
    MGK_TRY(
        mgk_program_get(context, step->file, step->options.data, step->mods, &step->program, &own, &ignored, error));
    *origin = own > *origin ? own : *origin;
    cl_int code = CL_SUCCESS;
    step->kernel = clCreateKernel(step->program->program, step->name, &code);
    if (step->kernel == NULL)
        return mgk_fail_cl(error, code, "clCreateKernel");
    step->needs = mgk_kernel_measure(step->kernel, context->device);
    MGK_TRY(check_fit(context, step, limits, error));
    if (step->dynamic_local > 0) /* OpenCL can't launch it */
        return CLMGK_OK;
    const clmgk_status status = warm_up(context, step, any_size, queue, error);
    return status != CLMGK_OK && status != CLMGK_ERROR_OUT_OF_HOST_MEMORY && run_decides(context, step)
               ? refuse_local(step, context->facts.info.local_memory_bytes, limits, error)
               : status;
}

static clmgk_status compile(clmgk_context *context, mgk_steps *steps, cl_command_queue queue, mgk_limits *limits,
                            clmgk_program_origin *origin, clmgk_error *error)
{
    if (pthread_mutex_init(&steps->mutex, NULL) != 0)
        return mgk_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "no mutex for a plan");
    steps->made = true;
    for (size_t i = 0; i < steps->count; ++i)
        MGK_TRY(compile_step(context, &steps->step[i], steps->any_size, queue, limits, origin, error));
    return CLMGK_OK;
}

/* Saves programs after all kernels have run: PoCL adds a kernel's code to its program's binary at the first launch. */
clmgk_status mgk_steps_make(clmgk_context *context, mgk_steps *const *lists, size_t count, mgk_limits *limits,
                            clmgk_program_origin *origin, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    clmgk_status status = CLMGK_OK;
    mgk_builds builds;
    cl_command_queue queue = clCreateCommandQueue(context->context, context->device, 0, &code);
    if (queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    mgk_builds_run(&builds, context, lists, count);
    for (size_t i = 0; status == CLMGK_OK && i < count; ++i)
        status = compile(context, lists[i], queue, limits, origin, error);
    const clmgk_program_origin built = mgk_builds_release(&builds);
    *origin = built > *origin ? built : *origin;
    clReleaseCommandQueue(queue);
    for (size_t i = 0; status == CLMGK_OK && i < count; ++i)
        for (size_t k = 0; k < lists[i]->count; ++k)
            if (lists[i]->step[k].program != NULL)
                mgk_program_save(lists[i]->step[k].program);
    return status;
}

/* ---- CUDA --------------------------------------------------------------------------------------------------- */

static clmgk_status prepare(mgk_cuda *cuda, const mgk_step *step, mgk_cuda_function *function, clmgk_error *error)
{
    static const unsigned char args[MGK_ARGUMENT_BYTES] = {0};
    const mgk_cuda_place place = {cuda, mgk_cuda_own_stream()};
    const mgk_queue_place none = {NULL, 0, NULL, NULL};
    const mgk_launch grid = warm_up_grid(step->program->context, &step->launch);
    mgk_call call = mgk_empty_call();
    MGK_TRY(
        mgk_cuda_get_function(cuda, step->program, step->name, &step->launch, step->dynamic_local, function, error));
    call.cuda = &place;
    MGK_TRY(launch(step, *function, &grid, args, &call, &none, error));
    return mgk_cuda_wait(&place, error);
}

clmgk_status mgk_steps_prepare_cuda(mgk_cuda *cuda, mgk_steps *steps, clmgk_error *error)
{
    mgk_cuda_function functions[MGK_MAX_STEPS] = {NULL};
    pthread_mutex_lock(&steps->mutex);
    const bool prepared = is_prepared(steps);
    pthread_mutex_unlock(&steps->mutex);
    for (size_t i = 0; i < steps->count && !prepared; ++i)
        MGK_TRY(prepare(cuda, &steps->step[i], &functions[i], error));
    pthread_mutex_lock(&steps->mutex);
    for (size_t i = 0; i < steps->count && !prepared; ++i)
        steps->step[i].function = functions[i];
    pthread_mutex_unlock(&steps->mutex);
    return CLMGK_OK;
}
