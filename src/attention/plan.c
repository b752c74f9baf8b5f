/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: engine and parameters chosen, programs built, kernels ready. */
#include "attention/plan.h"
#include "attention/core/key.h"
#include "engine/engine.h"

#include <inttypes.h>
#include <string.h>

/* Smaller work-groups that are tried where a compiled kernel does not fit. */
#define MOST_AGAIN 4

/* Grids from this size on are compiled apart by PoCL. */
#define LARGE_GRID 65000

/* The first version's size. */
enum { LEAST_OPTIONS_SIZE = offsetof(clmgk_plan_options, backward_parameters) };

static clmgk_status read_options(const clmgk_plan_options *options, clmgk_plan_options *read, clmgk_error *error)
{
    *read = (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    if (options == NULL)
        return CLMGK_OK;
    MGK_TRY(mgk_struct_read(options, "options", LEAST_OPTIONS_SIZE, read, sizeof(*read), error));
    if (clmgk_engine_name(read->engine) == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "options.engine: %d: expected a clmgk_engine",
                        (int)read->engine);
    return CLMGK_OK;
}

/* ---- engine and parameters ---------------------------------------------------------------------------------- */

static bool is_wanted(const clmgk_attention_desc *desc, clmgk_pass pass)
{
    switch (pass) {
    case CLMGK_PASS_BACKWARD:
        return desc->gradients != 0;
    case CLMGK_PASS_STATISTICS:
        return desc->statistics != 0;
    case CLMGK_PASS_COMBINE:
        return desc->combine != 0;
    default:
        return true;
    }
}

static const char *parameters_of(const clmgk_plan_options *options, clmgk_pass pass)
{
    switch (pass) {
    case CLMGK_PASS_FORWARD:
        return options->parameters;
    case CLMGK_PASS_COMBINE: /* has none that are worth choosing */
        return NULL;
    default:
        return options->backward_parameters;
    }
}

static void free_options(mgk_pass_plan *plan)
{
    for (size_t i = 0; i < MGK_MAX_STEPS; ++i)
        mgk_text_free(&plan->step[i].options);
}

static clmgk_status try_engine(clmgk_plan *plan, clmgk_pass which, clmgk_engine engine, mgk_parameters parameters,
                               clmgk_error *error)
{
    mgk_compiled_pass *const pass = plan->pass[which];
    mgk_device_facts facts = plan->context->facts;
    facts.info.max_work_group = plan->group_limit;
    facts.info.local_memory_bytes = plan->local_limit;
    free_options(&pass->plan);
    memset(&pass->plan, 0, sizeof(pass->plan));
    for (size_t i = 0; i < MGK_MAX_STEPS; ++i)
        pass->plan.step[i].options.allocator = &plan->context->allocator;
    pass->engine = engine;
    return mgk_family_plan(plan->family, &plan->desc, &facts, engine, parameters, which, &pass->plan, error);
}

/* A pass whose engine and parameters are to be chosen. */
typedef struct choice {
    clmgk_plan *plan;
    clmgk_pass which;
    clmgk_engine wanted;      /* AUTO: any */
    const char *given;        /* the caller's parameters */
    const char *const *names; /* what the backward pass must have of the forward pass; NULL: nothing */
    mgk_text followed;        /* their values */
} choice;

static clmgk_status try_choice(choice *c, clmgk_engine engine, const char *text, mgk_origin origin, clmgk_error *error)
{
    const bool follows = c->names != NULL && engine == c->plan->pass[CLMGK_PASS_FORWARD]->engine;
    const mgk_parameters parameters = {.text = text, .origin = origin, .followed = follows ? c->followed.data : NULL};
    return try_engine(c->plan, c->which, engine, parameters, error);
}

/* The engine asked for; or the device's own (that of the forward pass, for the same scores) and, where that can't,
 * another: each pass for itself. */
static clmgk_status choose_default(choice *c, clmgk_error *error)
{
    const bool named = c->given != NULL && c->given[0] != '\0';
    c->plan->pass[c->which]->source = named ? CLMGK_TUNING_CALLER : CLMGK_TUNING_CLASS;
    if (c->wanted != CLMGK_ENGINE_AUTO)
        return try_choice(c, c->wanted, c->given, MGK_ORIGIN_CALLER, error);
    const clmgk_engine first =
        c->names != NULL ? c->plan->pass[CLMGK_PASS_FORWARD]->engine : c->plan->context->facts.info.engine;
    const clmgk_status status = try_choice(c, first, c->given, MGK_ORIGIN_CALLER, error);
    if (status != CLMGK_ERROR_UNSUPPORTED)
        return status;
    clmgk_error ignored;
    for (size_t i = 0; i < MGK_ENGINES; ++i)
        if (mgk_engines[i]->value != first &&
            try_choice(c, mgk_engines[i]->value, c->given, MGK_ORIGIN_CALLER, &ignored) == CLMGK_OK)
            return CLMGK_OK;
    return try_choice(c, first, c->given, MGK_ORIGIN_CALLER, error);
}

/* Whether the backward pass makes its scores as the forward pass does. */
static bool scores_agree(const choice *c)
{
    const mgk_compiled_pass *const forward = c->plan->pass[CLMGK_PASS_FORWARD];
    const mgk_compiled_pass *const own = c->plan->pass[c->which];
    bool agree = c->names == NULL || forward->engine == own->engine;
    for (const char *const *name = c->names; agree && name != NULL && *name != NULL; ++name)
        agree = mgk_tunable_get(&forward->plan.tunables, *name) == mgk_tunable_get(&own->plan.tunables, *name);
    return agree;
}

static clmgk_status try_measured(choice *c, const mgk_tuning_choice *entry, clmgk_engine engine, clmgk_error *error)
{
    const mgk_origin origin = entry->source == CLMGK_TUNING_BUCKET ? MGK_ORIGIN_TUNED : MGK_ORIGIN_NEAR;
    return entry->choice != NULL ? try_choice(c, engine, entry->parameters, origin, error) : choose_default(c, error);
}

/* The best of what was measured that is legal here; *found: whether there is one. Fails only without memory. */
static clmgk_status choose_tuned(choice *c, bool *found, clmgk_error *error)
{
    const clmgk_context *const context = c->plan->context;
    const mgk_tuning_key key = mgk_attention_key(&c->plan->desc, c->which);
    mgk_tuning_choice entry;
    *found = false;
    for (size_t rank = 0; !*found && mgk_tuning_find(context->tuning, &context->facts, &key, rank, &entry); ++rank) {
        const mgk_engine *const named = entry.choice != NULL ? mgk_engine_named(entry.choice) : NULL;
        const clmgk_engine engine = named != NULL ? named->value : context->facts.info.engine;
        if ((entry.choice != NULL && named == NULL) || (c->wanted != CLMGK_ENGINE_AUTO && c->wanted != engine))
            continue;
        clmgk_error passed_over;
        const clmgk_status status = try_measured(c, &entry, engine, &passed_over);
        if (status == CLMGK_ERROR_OUT_OF_HOST_MEMORY)
            return mgk_fail_memory(error, "a plan");
        *found = status == CLMGK_OK && scores_agree(c);
        c->plan->pass[c->which]->source = entry.source;
    }
    return CLMGK_OK;
}

/* What the forward pass has of the parameters that its scores depend on. */
static clmgk_status follow_forward(choice *c, clmgk_error *error)
{
    const mgk_compiled_pass *const forward = c->plan->pass[CLMGK_PASS_FORWARD];
    if (c->plan->family->rounds_by_engine(&c->plan->desc))
        c->names = mgk_engine_of(forward->engine)->sum_tunables;
    for (const char *const *name = c->names; name != NULL && *name != NULL; ++name)
        mgk_text_printf(&c->followed, "%s%s=%d", c->followed.length == 0 ? "" : ",", *name,
                        mgk_tunable_get(&forward->plan.tunables, *name));
    return c->followed.failed ? mgk_fail_memory(error, "a plan's parameters") : CLMGK_OK;
}

/* followed: to be freed, also after a failure. */
static clmgk_status make_choice(clmgk_plan *plan, clmgk_pass which, const clmgk_plan_options *options, choice *c,
                                clmgk_error *error)
{
    *c = (choice){.plan = plan,
                  .which = which,
                  .wanted = options->engine,
                  .given = parameters_of(options, which),
                  .followed = {.allocator = &plan->context->allocator}};
    plan->pass[which] = mgk_alloc(&plan->context->allocator, 1, sizeof(*plan->pass[which]));
    if (plan->pass[which] == NULL)
        return mgk_fail_memory(error, "a plan's pass");
    return which == CLMGK_PASS_BACKWARD ? follow_forward(c, error) : CLMGK_OK;
}

/* The caller's parameters, what was tuned, the defaults. The combination has no parameters. */
static clmgk_status add_pass(clmgk_plan *plan, clmgk_pass which, const clmgk_plan_options *options, clmgk_error *error)
{
    choice c;
    bool found = false;
    clmgk_status status = make_choice(plan, which, options, &c, error);
    if (status == CLMGK_OK && c.given == NULL && which != CLMGK_PASS_COMBINE && !plan->untuned)
        status = choose_tuned(&c, &found, error);
    if (status == CLMGK_OK && !found)
        status = choose_default(&c, error);
    mgk_text_free(&c.followed);
    return status;
}

/* As a pass whose tuned values are these. */
static clmgk_status try_tuned(clmgk_plan *plan, clmgk_pass which, clmgk_engine engine, const char *parameters,
                              clmgk_error *error)
{
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    choice c;
    if (which == CLMGK_PASS_BACKWARD)
        MGK_TRY(add_pass(plan, CLMGK_PASS_FORWARD, &options, error));
    clmgk_status status = make_choice(plan, which, &options, &c, error);
    if (status == CLMGK_OK)
        status = try_choice(&c, engine, parameters, MGK_ORIGIN_TUNED, error);
    if (status == CLMGK_OK && !scores_agree(&c))
        status =
            mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                     "parameters: \"%s\": the backward pass must make its scores as the forward pass does: "
                     "expected engine %s with %s",
                     parameters != NULL ? parameters : "", clmgk_engine_name(plan->pass[CLMGK_PASS_FORWARD]->engine),
                     c.followed.data != NULL ? c.followed.data : "any parameters");
    mgk_text_free(&c.followed);
    return status;
}

/* ---- launches ----------------------------------------------------------------------------------------------- */

/* What the call brings, before the other arguments. */
static mgk_bound bound_of(const mgk_kernel_plan *step, const mgk_call *call)
{
    mgk_bound bound = {
        .seed_low = (mgk_u32)call->seed, .seed_high = (mgk_u32)(call->seed >> 32), .parts = (mgk_i32)call->parts};
    for (size_t i = 0; i < step->buffers; ++i) {
        const clmgk_array array = step->buffer[i];
        const size_t unit = array == CLMGK_ARRAY_WORKSPACE ? sizeof(float) : 1;
        bound.offset[i] = (mgk_i64)(call->arrays[array]->offset / unit);
        bound.given |= (mgk_u32)(call->arrays[array]->memory != NULL) << i;
        bound.added |= (mgk_u32)(call->added >> array & 1u) << i;
    }
    return bound;
}

clmgk_status mgk_launch_step(const mgk_compiled_pass *pass, size_t step, const mgk_launch *launch, const void *args,
                             const mgk_call *call, cl_command_queue queue, cl_uint num_wait, const cl_event *wait_list,
                             cl_event *event, clmgk_error *error)
{
    const mgk_kernel_plan *const plan = &pass->plan.step[step];
    const cl_mem *const stand_in = &pass->program[step]->context->stand_in;
    unsigned char bound[MGK_ARGUMENT_BYTES];
    mgk_kernel_arg list[1 + MGK_SLOTS];
    memcpy(bound, args, plan->args_bytes);
    const mgk_bound of_call = bound_of(plan, call);
    memcpy(bound, &of_call, sizeof(of_call));
    list[0] = (mgk_kernel_arg){plan->args_bytes, bound};
    for (size_t i = 0; i < plan->buffers; ++i) {
        const cl_mem *const memory = &call->arrays[plan->buffer[i]]->memory;
        list[i + 1] = (mgk_kernel_arg){sizeof(cl_mem), *memory != NULL ? memory : stand_in};
    }
    return mgk_launch_kernel(queue, pass->kernel[step], launch, plan->buffers + 1, list, num_wait, wait_list, event,
                             error);
}

mgk_call mgk_empty_call(void)
{
    static const clmgk_buffer nothing = {NULL, 0};
    mgk_call call = {.seed = 0};
    for (size_t i = 0; i < CLMGK_ARRAYS; ++i)
        call.arrays[i] = &nothing;
    return call;
}

/* The smallest grid that runs the same compiled code. */
static mgk_launch warm_up_launch(const clmgk_context *context, const mgk_launch *launch)
{
    const bool apart = context->facts.runtime == MGK_RUNTIME_POCL;
    mgk_launch small = *launch;
    for (cl_uint i = 0; i < launch->dimensions; ++i)
        if (!apart || small.global[i] < LARGE_GRID)
            small.global[i] = small.local[i];
    return small;
}

/* Runs a kernel over nothing (all-zero arguments), so that drivers which finish compiling at the first launch do it
 * here. */
static clmgk_status warm_up(const clmgk_context *context, const mgk_compiled_pass *pass, size_t step,
                            cl_command_queue queue, clmgk_error *error)
{
    static const unsigned char args[MGK_ARGUMENT_BYTES] = {0};
    const mgk_call call = mgk_empty_call();
    const mgk_launch launch = warm_up_launch(context, &pass->plan.step[step].launch);
    const clmgk_status status = mgk_launch_step(pass, step, &launch, args, &call, queue, 0, NULL, NULL, error);
    const cl_int code = clFinish(queue);
    return status == CLMGK_OK && code != CL_SUCCESS ? mgk_fail_cl(error, code, "clFinish") : status;
}

/* ---- programs ----------------------------------------------------------------------------------------------- */

/* What a compiler makes of a kernel can take more of the device than was planned, and a launch would only say that
 * resources are missing. Another plan may do with the limits that are left here. The work-groups of kernels without
 * local memory have one size: whether it fits, their first run tells (rusticl states less than it takes). */
static clmgk_status check_fit(clmgk_plan *plan, const mgk_kernel_plan *kernel, const mgk_kernel_needs *needs,
                              clmgk_error *error)
{
    const uint64_t local = plan->context->facts.info.local_memory_bytes;
    const size_t items = kernel->launch.local[0];
    if (kernel->local_bytes > 0 && needs->work_group != 0 && items > needs->work_group) {
        plan->narrowed = needs->work_group < plan->group_limit;
        plan->group_limit = needs->work_group;
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "kernel %s: a work-group of %zu, the device takes %zu of this kernel", kernel->name, items,
                        needs->work_group);
    }
    if (needs->local_bytes > local) {
        plan->narrowed = kernel->local_bytes > 0;
        plan->local_limit = kernel->local_bytes > 0 ? kernel->local_bytes - 1 : local;
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "kernel %s: %" PRIu64 " bytes of local memory, the device has %" PRIu64, kernel->name,
                        needs->local_bytes, local);
    }
    return CLMGK_OK;
}

static clmgk_status compile_step(clmgk_plan *plan, mgk_compiled_pass *pass, size_t step, cl_command_queue queue,
                                 clmgk_error *error)
{
    const mgk_kernel_plan *const kernel = &pass->plan.step[step];
    double ignored = 0.0;
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    MGK_TRY(mgk_program_get(plan->context, kernel->file, kernel->options.data, &pass->program[step], &origin, &ignored,
                            error));
    if (origin > plan->info.origin)
        plan->info.origin = origin;
    cl_int code = CL_SUCCESS;
    pass->kernel[step] = clCreateKernel(pass->program[step]->program, kernel->name, &code);
    if (pass->kernel[step] == NULL)
        return mgk_fail_cl(error, code, "clCreateKernel");
    const mgk_kernel_needs needs = mgk_kernel_measure(pass->kernel[step], plan->context->device);
    MGK_TRY(check_fit(plan, kernel, &needs, error));
    if (step == pass->plan.main)
        pass->needs = needs;
    return warm_up(plan->context, pass, step, queue, error);
}

/* Saved when all kernels have run: PoCL adds each kernel's code to its program's binary at the first launch. */
static clmgk_status compile_pass(clmgk_plan *plan, mgk_compiled_pass *pass, cl_command_queue queue, clmgk_error *error)
{
    for (size_t i = 0; i < pass->plan.steps; ++i)
        MGK_TRY(compile_step(plan, pass, i, queue, error));
    return CLMGK_OK;
}

static clmgk_status compile(clmgk_plan *plan, clmgk_error *error)
{
    const double start = mgk_now_ms();
    cl_int code = CL_SUCCESS;
    clmgk_status status = CLMGK_OK;
    cl_command_queue queue = clCreateCommandQueue(plan->context->context, plan->context->device, 0, &code);
    if (queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    for (int i = 0; status == CLMGK_OK && i < CLMGK_PASSES; ++i)
        if (plan->pass[i] != NULL)
            status = compile_pass(plan, plan->pass[i], queue, error);
    clReleaseCommandQueue(queue);
    for (int i = 0; status == CLMGK_OK && i < CLMGK_PASSES; ++i)
        for (size_t k = 0; plan->pass[i] != NULL && k < plan->pass[i]->plan.steps; ++k)
            mgk_program_save(plan->pass[i]->program[k]);
    plan->info.compile_ms = mgk_now_ms() - start;
    return status;
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

static clmgk_status print_parameters(const clmgk_plan *plan, mgk_compiled_pass *pass, clmgk_error *error)
{
    pass->parameters.allocator = &plan->context->allocator;
    mgk_tunables_print(&pass->plan.tunables, &pass->parameters);
    return pass->parameters.failed ? mgk_fail_memory(error, "a plan's parameters") : CLMGK_OK;
}

static clmgk_status describe(clmgk_plan *plan, clmgk_error *error)
{
    clmgk_plan_info *const info = &plan->info;
    info->keeper = plan->context->keeper;
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        if (plan->pass[i] == NULL)
            continue;
        MGK_TRY(print_parameters(plan, plan->pass[i], error));
        if (plan->pass[i]->plan.workspace_bytes > info->workspace_bytes)
            info->workspace_bytes = plan->pass[i]->plan.workspace_bytes;
    }
    const mgk_compiled_pass *const forward = plan->pass[CLMGK_PASS_FORWARD];
    const mgk_kernel_plan *const kernel = &forward->plan.step[forward->plan.main];
    info->engine = forward->engine;
    info->tuning = forward->source;
    info->local_bytes = kernel->local_bytes;
    info->private_bytes = kernel->private_bytes;
    info->parameters = forward->parameters.data;
    info->options = kernel->options.data;
    info->kernel = kernel->name;
    info->driver_private_bytes = forward->needs.private_bytes;

    const mgk_compiled_pass *const backward = plan->pass[CLMGK_PASS_BACKWARD];
    if (backward == NULL)
        return CLMGK_OK;
    info->backward_engine = backward->engine;
    info->backward_tuning = backward->source;
    info->backward_workspace_bytes = backward->plan.workspace_bytes;
    info->backward_parameters = backward->parameters.data;
    info->backward_options = backward->plan.step[backward->plan.main].options.data;
    info->backward_kernel = backward->plan.step[backward->plan.main].name;
    info->backward_driver_private_bytes = backward->needs.private_bytes;
    return CLMGK_OK;
}

static void free_pass(const clmgk_context *context, mgk_compiled_pass *pass)
{
    for (size_t i = 0; i < MGK_MAX_STEPS; ++i) {
        if (pass->kernel[i] != NULL)
            clReleaseKernel(pass->kernel[i]);
        mgk_program_release(pass->program[i]);
    }
    free_options(&pass->plan);
    mgk_text_free(&pass->parameters);
    mgk_free(&context->allocator, pass);
}

static void free_passes(clmgk_plan *plan)
{
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        if (plan->pass[i] != NULL)
            free_pass(plan->context, plan->pass[i]);
        plan->pass[i] = NULL;
    }
}

static clmgk_status choose_and_compile(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    free_passes(plan);
    plan->narrowed = false;
    plan->info = (clmgk_plan_info){.origin = CLMGK_PROGRAM_MEMORY};
    for (int i = 0; i < CLMGK_PASSES; ++i)
        if (is_wanted(&plan->desc, (clmgk_pass)i))
            MGK_TRY(add_pass(plan, (clmgk_pass)i, options, error));
    return compile(plan, error);
}

/* Again with smaller work-groups while a kernel does not fit. */
static clmgk_status choose_until_it_fits(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    clmgk_status status = choose_and_compile(plan, options, error);
    for (int again = 0; status != CLMGK_OK && plan->narrowed && again < MOST_AGAIN; ++again)
        status = choose_and_compile(plan, options, error);
    return status;
}

static bool is_tuned(const clmgk_plan *plan)
{
    bool tuned = false;
    for (int i = 0; i < CLMGK_PASSES; ++i)
        tuned = tuned || (plan->pass[i] != NULL && plan->pass[i]->source != CLMGK_TUNING_CLASS &&
                          plan->pass[i]->source != CLMGK_TUNING_CALLER);
    return tuned;
}

/* Tuned values with which the kernels don't compile or run, as may be after a driver's update, give way to the
 * defaults. */
static clmgk_status make_passes(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    clmgk_error failure = {.status = CLMGK_OK};
    const clmgk_status status = choose_until_it_fits(plan, options, &failure);
    if (status != CLMGK_OK && status != CLMGK_ERROR_OUT_OF_HOST_MEMORY && is_tuned(plan)) {
        plan->untuned = true;
        return choose_until_it_fits(plan, options, error);
    }
    if (status != CLMGK_OK && error != NULL)
        *error = failure;
    return status;
}

static void plan_begin(clmgk_plan *plan, clmgk_context *context, const clmgk_attention_desc *resolved)
{
    plan->context = context;
    plan->desc = *resolved;
    plan->family = mgk_family_of(resolved->variant);
    plan->group_limit = context->facts.info.max_work_group;
    plan->local_limit = context->facts.info.local_memory_bytes;
}

clmgk_status mgk_plan_try(clmgk_context *context, const clmgk_attention_desc *desc, clmgk_pass which,
                          clmgk_engine engine, const char *parameters, clmgk_error *error)
{
    clmgk_plan *const plan = mgk_alloc(&context->allocator, 1, sizeof(*plan));
    if (plan == NULL)
        return mgk_fail_memory(error, "a plan");
    plan_begin(plan, context, desc);
    const clmgk_status status = try_tuned(plan, which, engine, parameters, error);
    free_passes(plan);
    mgk_free(&context->allocator, plan);
    if (status == CLMGK_ERROR_UNSUPPORTED && error != NULL)
        error->status = CLMGK_ERROR_INVALID_VALUE;
    return status == CLMGK_ERROR_UNSUPPORTED ? CLMGK_ERROR_INVALID_VALUE : status;
}

clmgk_status clmgk_plan_create(clmgk_context *context, const clmgk_attention_desc *desc,
                               const clmgk_plan_options *options, clmgk_plan **out, clmgk_error *error)
{
    if (context == NULL || out == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", context == NULL ? "context" : "out",
                        context == NULL ? "a context" : "room for the plan");
    clmgk_attention_desc resolved;
    clmgk_plan_options chosen;
    MGK_TRY(clmgk_attention_validate(desc, &resolved, error));
    MGK_TRY(read_options(options, &chosen, error));

    clmgk_plan *plan = mgk_alloc(&context->allocator, 1, sizeof(*plan));
    if (plan == NULL)
        return mgk_fail_memory(error, "a plan");
    if (pthread_mutex_init(&plan->mutex, NULL) != 0) {
        mgk_free(&context->allocator, plan);
        return mgk_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "no mutex for a plan");
    }
    mgk_context_retain(context);
    plan_begin(plan, context, &resolved);

    clmgk_status status;
    MGK_TRY_GOTO(status, make_passes(plan, &chosen, error), fail);
    MGK_TRY_GOTO(status, describe(plan, error), fail);
    *out = plan;
    return CLMGK_OK;
fail:
    clmgk_plan_release(plan);
    return status;
}

void clmgk_plan_release(clmgk_plan *plan)
{
    if (plan == NULL)
        return;
    clmgk_context *const context = plan->context;
    free_passes(plan);
    pthread_mutex_destroy(&plan->mutex);
    mgk_free(&context->allocator, plan);
    clmgk_context_release(context);
}

clmgk_status clmgk_plan_get_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error)
{
    if (plan == NULL || info == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", plan == NULL ? "plan" : "info",
                        plan == NULL ? "a plan" : "room for the information");
    *info = plan->info;
    return CLMGK_OK;
}

size_t clmgk_plan_workspace_size(const clmgk_plan *plan)
{
    return plan == NULL ? 0 : (size_t)plan->info.workspace_bytes;
}
