/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: choose engine and parameters, build programs, prepare kernels. */
#include "attention/plan.h"
#include "engine/engine.h"

/* Most attempts with smaller work-groups if a compiled kernel does not fit. */
#define MOST_AGAIN 4

/* The first version's size. */
enum { LEAST_OPTIONS_SIZE = offsetof(clmgk_plan_options, backward_parameters) };

clmgk_status mgk_plan_read_options(const clmgk_plan_options *options, clmgk_plan_options *read, clmgk_error *error)
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

static clmgk_status try_engine(clmgk_plan *plan, clmgk_pass which, clmgk_engine engine, mgk_parameters parameters,
                               clmgk_error *error)
{
    mgk_compiled_pass *const pass = plan->pass[which];
    mgk_device_facts facts = plan->context->facts;
    facts.info.max_work_group = plan->limits.group;
    facts.info.local_memory_bytes = plan->limits.local;
    if (engine == CLMGK_ENGINE_SIMT)
        facts.sub_group = mgk_context_sub_group(plan->context);
    mgk_steps_clear(&pass->plan.steps, &plan->context->allocator);
    pass->plan.tunables = (mgk_tunables){0};
    pass->engine = engine;
    return mgk_family_plan(plan->family, &plan->desc, &facts, engine, parameters, which, &pass->plan, error);
}

/* The choice of a pass's engine and parameters. */
typedef struct choice {
    clmgk_plan *plan;
    clmgk_pass which;
    clmgk_engine wanted;      /* AUTO: any */
    const char *given;        /* the caller's parameters */
    const char *const *names; /* parameters that the backward pass takes from the forward pass; NULL: none */
    mgk_text followed;        /* their values */
} choice;

static clmgk_status try_choice(choice *c, clmgk_engine engine, const char *text, mgk_origin origin, clmgk_error *error)
{
    const bool follows = c->names != NULL && engine == c->plan->pass[CLMGK_PASS_FORWARD]->engine;
    const mgk_parameters parameters = {.text = text, .origin = origin, .followed = follows ? c->followed.data : NULL};
    return try_engine(c->plan, c->which, engine, parameters, error);
}

/* The requested engine; or the device's default (backward: the forward pass's, for the same scores), or, if that can't,
 * another. Each pass chooses separately. */
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

/* Whether the backward pass computes the same scores as the forward pass. */
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

/* The best tuned entry that is legal here; *found: whether there is any. Fails only without memory. */
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

/* The forward pass's values of the parameters that affect scores. */
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

/* Free `followed`, also after a failure. */
static clmgk_status make_choice(clmgk_plan *plan, clmgk_pass which, const clmgk_plan_options *options, choice *c,
                                clmgk_error *error)
{
    /* the combination has none worth choosing */
    const char *const parameters[CLMGK_PASSES] = {options->parameters, options->backward_parameters,
                                                  options->backward_parameters, NULL};
    *c = (choice){.plan = plan,
                  .which = which,
                  .wanted = options->engine,
                  .given = parameters[which],
                  .followed = {.allocator = &plan->context->allocator}};
    plan->pass[which] = mgk_alloc(&plan->context->allocator, 1, sizeof(*plan->pass[which]));
    if (plan->pass[which] == NULL)
        return mgk_fail_memory(error, "a plan's pass");
    return which == CLMGK_PASS_BACKWARD ? follow_forward(c, error) : CLMGK_OK;
}

/* Takes the caller's parameters, else tuned values, else the defaults. The combination has no parameters. */
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

/* Plans a pass as if these were its tuned values. */
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

/* ---- programs ----------------------------------------------------------------------------------------------- */

static clmgk_status compile(clmgk_plan *plan, clmgk_error *error)
{
    const double start = mgk_now_ms();
    mgk_steps *lists[CLMGK_PASSES];
    size_t count = 0;
    for (int i = 0; i < CLMGK_PASSES; ++i)
        if (plan->pass[i] != NULL)
            lists[count++] = &plan->pass[i]->plan.steps;
    const clmgk_status status = mgk_steps_make(plan->context, lists, count, &plan->limits, &plan->info.origin, error);
    plan->info.compile_ms = mgk_now_ms() - start;
    return status;
}

/* Of the first program that is not kept; programs live as long as the plan. */
static const char *cache_note(const clmgk_plan *plan)
{
    if (plan->context->keeper == CLMGK_KEEPER_NOBODY)
        return "no files are used: cache_dir or CLMGK_CACHE_DIR is empty, or neither HOME nor XDG_CACHE_HOME is a path";
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        const mgk_steps *const steps = plan->pass[i] != NULL ? &plan->pass[i]->plan.steps : NULL;
        for (size_t k = 0; steps != NULL && k < steps->count; ++k)
            if (steps->step[k].program->unsaved.message[0] != '\0')
                return steps->step[k].program->unsaved.message;
    }
    return "";
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
    info->cache_note = cache_note(plan);
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        if (plan->pass[i] == NULL)
            continue;
        MGK_TRY(print_parameters(plan, plan->pass[i], error));
        const uint64_t workspace = mgk_steps_workspace_size(&plan->pass[i]->plan.steps);
        if (workspace > info->workspace_bytes)
            info->workspace_bytes = workspace;
    }
    const mgk_compiled_pass *const forward = plan->pass[CLMGK_PASS_FORWARD];
    const mgk_step *const kernel = &forward->plan.steps.step[forward->plan.steps.main];
    info->engine = forward->engine;
    info->tuning = forward->source;
    info->local_bytes = kernel->local_bytes;
    info->private_bytes = kernel->private_bytes;
    info->parameters = forward->parameters.data;
    info->options = kernel->options.data;
    info->kernel = kernel->name;
    info->driver_private_bytes = kernel->needs.private_bytes;

    const mgk_compiled_pass *const backward = plan->pass[CLMGK_PASS_BACKWARD];
    if (backward == NULL)
        return CLMGK_OK;
    const mgk_step *const keys = &backward->plan.steps.step[backward->plan.steps.main];
    info->backward_engine = backward->engine;
    info->backward_tuning = backward->source;
    info->backward_workspace_bytes = mgk_steps_workspace_size(&backward->plan.steps);
    info->backward_parameters = backward->parameters.data;
    info->backward_options = keys->options.data;
    info->backward_kernel = keys->name;
    info->backward_driver_private_bytes = keys->needs.private_bytes;
    return CLMGK_OK;
}

static void free_passes(clmgk_plan *plan)
{
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        mgk_compiled_pass *const pass = plan->pass[i];
        if (pass != NULL) {
            mgk_steps_clear(&pass->plan.steps, NULL);
            mgk_text_free(&pass->parameters);
        }
        mgk_free(&plan->context->allocator, pass);
        plan->pass[i] = NULL;
    }
}

static clmgk_status choose_and_compile(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    free_passes(plan);
    plan->limits.narrowed = false;
    plan->info = (clmgk_plan_info){.origin = CLMGK_PROGRAM_MEMORY};
    for (int i = 0; i < CLMGK_PASSES; ++i)
        if (mgk_pass_is_wanted(&plan->desc, (clmgk_pass)i))
            MGK_TRY(add_pass(plan, (clmgk_pass)i, options, error));
    return compile(plan, error);
}

/* Repeats with smaller work-groups while a kernel does not fit. */
static clmgk_status choose_until_it_fits(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    clmgk_status status = choose_and_compile(plan, options, error);
    for (int again = 0; status != CLMGK_OK && plan->limits.narrowed && again < MOST_AGAIN; ++again)
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

/* Takes the defaults if kernels don't compile or run with tuned values, for example after a driver's update. */
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
    plan->limits.group = context->facts.info.max_work_group;
    plan->limits.local = context->facts.info.local_memory_bytes;
}

static void list_arrays(clmgk_plan *plan)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        mgk_plan_array *const line = &plan->array[i];
        const clmgk_shape shape = mgk_array_used_shape(&plan->desc, (clmgk_array)i);
        line->element = mgk_array_element_size(&plan->desc, (clmgk_array)i);
        line->extent =
            shape.rank > 0 ? mgk_extent_of(shape.rank, shape.size, shape.stride, line->element) : mgk_extent_dense(0);
        for (int pass = 0; pass < CLMGK_PASSES; ++pass)
            line->presence[pass] = mgk_array_presence(&plan->desc, (clmgk_pass)pass, (clmgk_array)i);
    }
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
    MGK_TRY(mgk_attention_resolve(desc, &resolved, error));
    MGK_TRY(mgk_plan_read_options(options, &chosen, error));

    clmgk_plan *plan = mgk_alloc(&context->allocator, 1, sizeof(*plan));
    if (plan == NULL)
        return mgk_fail_memory(error, "a plan");
    mgk_context_retain(context);
    plan_begin(plan, context, &resolved);

    clmgk_status status;
    list_arrays(plan);
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
    mgk_free(&context->allocator, plan);
    clmgk_context_release(context);
}

clmgk_status clmgk_plan_get_info(const clmgk_plan *plan, clmgk_plan_info *info, clmgk_error *error)
{
    if (plan == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "plan: NULL: expected a plan");
    MGK_TRY(mgk_struct_room(info, "info", MGK_SIZE_WITH(clmgk_plan_info, backward_driver_private_bytes), error));
    mgk_struct_write(info, 0, &plan->info, sizeof(plan->info));
    return CLMGK_OK;
}

size_t clmgk_plan_workspace_size(const clmgk_plan *plan)
{
    return plan == NULL ? 0 : (size_t)plan->info.workspace_bytes;
}
