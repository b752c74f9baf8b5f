/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a plan's engine and of the parameters of each pass. All passes have one engine, because the backward
 * pass must round its scores as the forward pass does. An engine that can't do one of them is left out for all.
 */
#include "attention/core/formulas.h"
#include "attention/plan.h"
#include "attention/verdicts.h"

#include <stdio.h>
#include <string.h>

/* Engines in the order of their ranks, and the engines that can't do all passes. */
typedef struct engine_list {
    mgk_ranked ranked[MGK_ENGINES];
    bool refused[MGK_ENGINES];
    char reasons[CLMGK_ERROR_MESSAGE_SIZE]; /* of the engines that refused: "...; ..." */
    mgk_matrix_unit unit;                   /* that engines may use */
} engine_list;

/* The choice of a pass's parameters. */
typedef struct choice {
    clmgk_plan *plan;
    const engine_list *list;
    clmgk_pass which;
    const mgk_engine *wanted; /* NULL: any of the list */
    const char *given;        /* the caller's parameters */
    const char *const *names; /* parameters that the backward pass takes from the forward pass; NULL: none */
    mgk_text followed;        /* their values */
} choice;

/* ---- engines ------------------------------------------------------------------------------------------------ */

static bool may_try(const engine_list *list, size_t place)
{
    return list->ranked[place].rank.points > MGK_RANK_NONE && !list->refused[place];
}

/* Place in the list of the best engine left; MGK_ENGINES: there is none. */
static size_t best_place(const engine_list *list)
{
    size_t place = 0;
    while (place < MGK_ENGINES && !may_try(list, place))
        ++place;
    return place;
}

static size_t place_of(const engine_list *list, const mgk_engine *engine)
{
    size_t place = 0;
    while (list->ranked[place].engine != engine)
        ++place;
    return place;
}

static void refuse(engine_list *list, size_t place, const char *reason)
{
    list->refused[place] = true;
    mgk_add_reason(list->reasons, sizeof(list->reasons), NULL, reason);
}

static clmgk_status fail_by_rank(const mgk_ranked *one, clmgk_error *error)
{
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine %s: %s", clmgk_engine_name(one->engine->value),
                    one->rank.reason);
}

/* No engine is left. */
static clmgk_status fail_all(engine_list *list, clmgk_error *error)
{
    for (size_t i = 0; i < MGK_ENGINES; ++i) {
        clmgk_error reason;
        if (list->ranked[i].rank.points == MGK_RANK_NONE && fail_by_rank(&list->ranked[i], &reason) != CLMGK_OK)
            refuse(list, i, reason.message);
    }
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s", list->reasons);
}

/* ---- a pass ------------------------------------------------------------------------------------------------- */

/* The device's facts, with the findings of the probes that the plan needs. */
static mgk_device_facts facts_of(const clmgk_plan *plan, bool exchanges)
{
    mgk_device_facts facts = plan->context->facts;
    const int known = mgk_engines_newest_unit(&facts, &plan->desc), most = plan->attempt.newest_unit;
    if (known > 0)
        facts.matrix_unit =
            mgk_context_matrix_unit(plan->context, mgk_matrix_unit_includes(known, most) ? most : known);
    if (exchanges)
        facts.sub_group = mgk_context_sub_group(plan->context);
    return facts;
}

static clmgk_status try_engine(const choice *c, const mgk_engine *engine, const char *text, mgk_origin origin,
                               clmgk_error *error)
{
    clmgk_plan *const plan = c->plan;
    mgk_compiled_pass *const pass = plan->pass[c->which];
    const mgk_device_facts found = facts_of(plan, engine->exchanges);
    mgk_device_facts facts = mgk_engine_facts(engine, &found);
    facts.info.max_work_group = plan->limits.group;
    facts.info.local_memory_bytes = plan->limits.local;
    facts.dynamic_local = plan->attempt.dynamic_local;
    mgk_steps_clear(&pass->plan.steps, &plan->context->allocator);
    pass->plan.tunables = (mgk_tunables){0};
    pass->engine = engine->value;
    pass->plan.mods = mgk_has_texts(&plan->desc) ? &plan->mods : NULL;
    const bool follows = c->names != NULL && engine->value == plan->pass[CLMGK_PASS_FORWARD]->engine;
    /* values of one size, for all */
    const bool near = plan->desc.sizes_at_call && origin == MGK_ORIGIN_TUNED;
    const mgk_pass_request request = {.desc = &plan->desc,
                                      .limits = &plan->desc,
                                      .most_splits = plan->desc.sizes_at_call ? 1 : 0,
                                      .facts = &facts,
                                      .engine = engine->value,
                                      .parameters = {.text = text,
                                                     .origin = near ? MGK_ORIGIN_NEAR : origin,
                                                     .followed = follows ? c->followed.data : NULL},
                                      .pass = c->which};
    MGK_TRY(mgk_family_plan(plan->family, &request, &pass->plan, error));
    return plan->desc.sizes_at_call ? mgk_sized_begin(plan, c->which, &request, error) : CLMGK_OK;
}

static clmgk_status choose_default(const choice *c, clmgk_error *error)
{
    const bool named = c->given != NULL && c->given[0] != '\0';
    const mgk_engine *const engine = c->wanted != NULL ? c->wanted : c->list->ranked[best_place(c->list)].engine;
    c->plan->pass[c->which]->source = named ? CLMGK_TUNING_CALLER : CLMGK_TUNING_CLASS;
    return try_engine(c, engine, c->given, MGK_ORIGIN_CALLER, error);
}

/* True if the backward pass computes the same scores as the forward pass. */
static bool scores_agree(const choice *c)
{
    const mgk_compiled_pass *const forward = c->plan->pass[CLMGK_PASS_FORWARD];
    const mgk_compiled_pass *const own = c->plan->pass[c->which];
    bool agree = forward->engine == own->engine;
    for (const char *const *name = c->names; agree && name != NULL && *name != NULL; ++name)
        agree = mgk_tunable_get(&forward->plan.tunables, (mgk_tunable_name){*name}) ==
                mgk_tunable_get(&own->plan.tunables, (mgk_tunable_name){*name});
    return agree;
}

static clmgk_status try_measured(const choice *c, const mgk_tuning_choice *entry, const mgk_engine *engine,
                                 clmgk_error *error)
{
    const mgk_origin origin = entry->source == CLMGK_TUNING_BUCKET ? MGK_ORIGIN_TUNED : MGK_ORIGIN_NEAR;
    return entry->choice != NULL ? try_engine(c, engine, entry->parameters, origin, error) : choose_default(c, error);
}

/* True if measured values may name an engine: an entry of another driver must not lead to an emulation. */
static bool may_be_measured(const mgk_ranked *one)
{
    return one->rank.points > MGK_RANK_TESTS;
}

/* Engine of an entry, which names none where the defaults were the fastest; NULL: the plan can't take it. */
static const mgk_engine *engine_of_entry(const choice *c, const mgk_tuning_choice *entry)
{
    const mgk_engine *const named = entry->choice != NULL ? mgk_engine_named(entry->choice) : c->list->ranked[0].engine;
    const size_t place = named != NULL ? place_of(c->list, named) : MGK_ENGINES;
    const bool fits =
        named != NULL &&
        (c->wanted != NULL ? c->wanted == named : may_try(c->list, place) && may_be_measured(&c->list->ranked[place]));
    return fits ? named : NULL;
}

/* Takes the best tuned entry that is legal here; *found: whether there is any. Fails only without memory. */
static clmgk_status choose_tuned(const choice *c, bool *found, clmgk_error *error)
{
    const clmgk_context *const context = c->plan->context;
    const mgk_tuning_key key = mgk_attention_key(&c->plan->desc, c->which);
    mgk_tuning_choice entry;
    *found = false;
    for (size_t rank = 0; !*found && mgk_tuning_find(context->tuning, &context->facts, &key, rank, &entry); ++rank) {
        const mgk_engine *const engine = engine_of_entry(c, &entry);
        if (engine == NULL)
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

/* Takes the forward pass's values of the parameters that affect scores. */
static clmgk_status follow_forward(choice *c, clmgk_error *error)
{
    const mgk_compiled_pass *const forward = c->plan->pass[CLMGK_PASS_FORWARD];
    c->names = mgk_engine_of(forward->engine)->sum_tunables[c->plan->family->sums(&c->plan->desc)];
    for (const char *const *name = c->names; *name != NULL; ++name)
        mgk_text_printf(&c->followed, "%s%s=%d", c->followed.length == 0 ? "" : ",", *name,
                        mgk_tunable_get(&forward->plan.tunables, (mgk_tunable_name){*name}));
    return c->followed.failed ? mgk_fail_memory(error, "a plan's parameters") : CLMGK_OK;
}

/* Free `followed`, also after a failure. `wanted`: the forward pass's engine, for the other passes. */
static clmgk_status make_choice(clmgk_plan *plan, const engine_list *list, clmgk_pass which, const mgk_engine *wanted,
                                const clmgk_plan_options *options, choice *c, clmgk_error *error)
{
    /* the others have no parameters worth choosing */
    const char *const parameters[CLMGK_PASSES] = {options->parameters, options->backward_parameters,
                                                  options->backward_parameters};
    const char *const own = plan->attempt.parameters[which];
    *c =
        (choice){.plan = plan,
                 .list = list,
                 .which = which,
                 .wanted = which == CLMGK_PASS_FORWARD ? wanted : mgk_engine_of(plan->pass[CLMGK_PASS_FORWARD]->engine),
                 .given = own != NULL ? own : parameters[which],
                 .followed = {.allocator = &plan->context->allocator}};
    plan->pass[which] = mgk_alloc(&plan->context->allocator, 1, sizeof(*plan->pass[which]));
    if (plan->pass[which] == NULL)
        return mgk_fail_memory(error, "a plan's pass");
    return which == CLMGK_PASS_BACKWARD ? follow_forward(c, error) : CLMGK_OK;
}

/* Takes the caller's parameters, else tuned values, else the defaults. The combination and the mask have none. */
static clmgk_status add_pass(clmgk_plan *plan, const engine_list *list, clmgk_pass which, const mgk_engine *wanted,
                             const clmgk_plan_options *options, clmgk_error *error)
{
    choice c;
    bool found = false;
    clmgk_status status = make_choice(plan, list, which, wanted, options, &c, error);
    if (status == CLMGK_OK && c.given == NULL && which < CLMGK_PASS_COMBINE && !plan->untuned)
        status = choose_tuned(&c, &found, error);
    if (status == CLMGK_OK && !found)
        status = choose_default(&c, error);
    mgk_text_free(&c.followed);
    return status;
}

/* ---- all passes --------------------------------------------------------------------------------------------- */

void mgk_plan_free_passes(clmgk_plan *plan)
{
    for (int i = 0; i < CLMGK_PASSES; ++i) {
        mgk_compiled_pass *const pass = plan->pass[i];
        if (pass != NULL) {
            mgk_steps_clear(&pass->plan.steps, NULL);
            mgk_text_free(&pass->parameters);
            mgk_sized_free(plan->context, pass->sized);
        }
        mgk_free(&plan->context->allocator, pass);
        plan->pass[i] = NULL;
    }
}

/* Adds the passes up to `last` that the descriptor asks for. */
static clmgk_status add_passes(clmgk_plan *plan, const engine_list *list, clmgk_pass last, const mgk_engine *wanted,
                               const clmgk_plan_options *options, clmgk_error *error)
{
    mgk_plan_free_passes(plan);
    for (clmgk_pass which = CLMGK_PASS_FORWARD; which <= last; ++which)
        if (mgk_pass_is_wanted(&plan->desc, which))
            MGK_TRY(add_pass(plan, list, which, wanted, options, error));
    return CLMGK_OK;
}

/* Adds the passes on the best engine that can do all of them. */
static clmgk_status choose_engine(clmgk_plan *plan, engine_list *list, clmgk_pass last,
                                  const clmgk_plan_options *options, clmgk_error *error)
{
    for (size_t place; (place = best_place(list)) < MGK_ENGINES;) {
        clmgk_error failure = {.status = CLMGK_OK};
        const clmgk_status status = add_passes(plan, list, last, NULL, options, &failure);
        /* the caller's parameters may belong to one engine alone: an error with that engine is a refusal of another */
        const bool refusal =
            status == CLMGK_ERROR_UNSUPPORTED || (status == CLMGK_ERROR_INVALID_VALUE && list->reasons[0] != '\0');
        if (!refusal) {
            if (status != CLMGK_OK && error != NULL)
                *error = failure;
            return status;
        }
        refuse(list, place_of(list, mgk_engine_of(plan->pass[CLMGK_PASS_FORWARD]->engine)), failure.message);
    }
    return fail_all(list, error);
}

/* Notes why the device's matrix units can't be used, if an array has a type of theirs. */
static void why_no_units(engine_list *list, const clmgk_plan *plan)
{
    for (size_t i = 0; i < MGK_ENGINES; ++i) {
        const mgk_ranked *const one = &list->ranked[i];
        bool takes_some = false;
        for (clmgk_array array = CLMGK_ARRAY_Q; array <= CLMGK_ARRAY_V; ++array)
            takes_some = takes_some || (one->engine->dtypes >> mgk_array_dtype(&plan->desc, array) & 1U) != 0;
        if (one->rank.points == MGK_RANK_NONE && takes_some && mgk_engine_has_unit(one->engine, &plan->context->facts))
            mgk_add_reason(list->unit.why, sizeof(list->unit.why), NULL, one->rank.reason);
    }
}

static engine_list list_engines(const clmgk_plan *plan)
{
    const mgk_device_facts facts = facts_of(plan, false);
    engine_list list = {.reasons = "", .unit = facts.matrix_unit};
    mgk_engines_rank(&facts, &plan->desc, list.ranked);
    if (list.unit.why[0] == '\0')
        why_no_units(&list, plan);
    for (size_t i = 0; i < MGK_ENGINES; ++i) {
        clmgk_error wrong;
        list.refused[i] = list.ranked[i].engine == plan->attempt.left_out;
        if (!mgk_verdict_allows(plan->context, plan->family, list.ranked[i].engine->value, &wrong))
            refuse(&list, i, wrong.message);
    }
    return list;
}

/* Notes the plan's matrix units, and why it has no newer ones. */
static void explain_units(clmgk_plan *plan, const engine_list *list)
{
    char units[CLMGK_ERROR_MESSAGE_SIZE + sizeof(list->unit.why)] = "";
    const size_t begin = strlen(plan->engine_reason);
    if (plan->attempt.refused_units[0] != '\0')
        mgk_add_reason(units, sizeof(units), NULL, plan->attempt.refused_units);
    if (list->unit.why[0] != '\0')
        mgk_add_reason(units, sizeof(units), NULL, list->unit.why);
    if (units[0] != '\0' || plan->unit > 0)
        (void)snprintf(plan->engine_reason + begin, sizeof(plan->engine_reason) - begin, "; %s%s%s%s",
                       plan->unit > 0 ? "matrix units: " : "no matrix units",
                       mgk_matrix_unit_name(&plan->context->facts, plan->unit), units[0] != '\0' ? ": " : "", units);
}

/* Notes why the plan has its engine, and why better ones, or better matrix units, are not used. */
static void explain(clmgk_plan *plan, const engine_list *list, bool named)
{
    const mgk_compiled_pass *const forward = plan->pass[CLMGK_PASS_FORWARD];
    const bool measured = forward->source != CLMGK_TUNING_CLASS && forward->source != CLMGK_TUNING_CALLER;
    const char *const own = named      ? "named by the options"
                            : measured ? "named by measured values"
                                       : list->ranked[place_of(list, mgk_engine_of(forward->engine))].rank.reason;
    (void)snprintf(plan->engine_reason, sizeof(plan->engine_reason), "%s%s%s", own,
                   list->reasons[0] != '\0' ? "; " : "", list->reasons);
    explain_units(plan, list);
}

static clmgk_status choose_up_to(clmgk_plan *plan, clmgk_pass last, const clmgk_plan_options *options,
                                 engine_list *list, clmgk_error *error)
{
    const mgk_engine *const named = mgk_engine_of(options->engine);
    if (named == NULL)
        return choose_engine(plan, list, last, options, error);
    const mgk_ranked *const own = &list->ranked[place_of(list, named)];
    if (own->rank.points == MGK_RANK_NONE)
        return fail_by_rank(own, error);
    return add_passes(plan, list, last, named, options, error);
}

clmgk_status mgk_plan_choose(clmgk_plan *plan, const clmgk_plan_options *options, clmgk_error *error)
{
    engine_list list = list_engines(plan);
    plan->unit = 0;
    MGK_TRY(choose_up_to(plan, (clmgk_pass)(CLMGK_PASSES - 1), options, &list, error));
    plan->unit = plan->pass[CLMGK_PASS_FORWARD]->plan.block.unit;
    explain(plan, &list, options->engine != CLMGK_ENGINE_AUTO);
    return CLMGK_OK;
}

/* ---- measured values ---------------------------------------------------------------------------------------- */

/* Plans a pass as if these were its tuned values. */
static clmgk_status try_tuned(clmgk_plan *plan, engine_list *list, clmgk_pass which, clmgk_engine engine,
                              const char *parameters, clmgk_error *error)
{
    const clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    const mgk_engine *const tuned = mgk_engine_of(engine);
    choice c;
    if (which != CLMGK_PASS_FORWARD)
        MGK_TRY(choose_up_to(plan, CLMGK_PASS_FORWARD, &options, list, error));
    clmgk_status status = make_choice(plan, list, which, tuned, &options, &c, error);
    if (status == CLMGK_OK)
        status = try_engine(&c, tuned, parameters, MGK_ORIGIN_TUNED, error);
    if (status == CLMGK_OK && !scores_agree(&c))
        status =
            mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                     "parameters: \"%s\": the backward pass must compute scores as the forward pass does: "
                     "expected engine %s with %s",
                     parameters != NULL ? parameters : "", clmgk_engine_name(plan->pass[CLMGK_PASS_FORWARD]->engine),
                     c.followed.data != NULL ? c.followed.data : "any parameters");
    mgk_text_free(&c.followed);
    return status;
}

void mgk_plan_begin(clmgk_plan *plan, clmgk_context *context, const clmgk_attention_desc *resolved)
{
    plan->context = context;
    plan->desc = *resolved;
    plan->family = mgk_family_of(resolved->variant);
    plan->attempt = (mgk_attempt)MGK_FIRST_ATTEMPT;
    plan->limits.group = context->facts.info.max_work_group;
    plan->limits.local = context->facts.info.local_memory_bytes;
}

/* Plans without gradients, and with: the kernels of a plan that has no gradients serve plans that have them. */
enum { FORMULAS = 2 };

/* Notes what a mask depends on. NULL: there is none. */
static void read_mask(const mgk_expression *mask, mgk_mod_texts *mods)
{
    const uint32_t depends = mask != NULL ? mask->nodes[mask->count - 1].depends : 0;
    mods->mask_reads = (depends & MGK_ON_DATA) != 0;
    mods->mask_of_batch = (depends & MGK_ON(BATCH)) != 0;
    mods->mask_of_head = (depends & (MGK_ON(HEAD) | MGK_ON(KV_HEAD))) != 0;
}

clmgk_status mgk_plan_read_texts(clmgk_plan *plan, clmgk_error *error)
{
    const clmgk_attention_desc *const d = &plan->desc;
    const clmgk_allocator *const allocator = &plan->context->allocator;
    MGK_TRY(mgk_mask_to_window(allocator, &plan->desc, error));
    if (!mgk_has_texts(d))
        return CLMGK_OK;
    clmgk_attention_desc without = *d;
    without.gradients = 0;
    plan->formulas = mgk_alloc(allocator, FORMULAS, sizeof(*plan->formulas));
    if (plan->formulas == NULL)
        return mgk_fail_memory(error, "a plan's formulas");
    MGK_TRY(mgk_formulas_of(&without, allocator, &plan->formulas[0], error));
    MGK_TRY(mgk_formulas_of(d, allocator, &plan->formulas[1], error));
    plan->mods.code = plan->formulas[0].code.data;
    plan->mods.mask_code = plan->formulas[0].mask_code.data;
    read_mask(plan->formulas[0].mask, &plan->mods);
    plan->mods.gradient_code = plan->formulas[1].code.data;
    plan->mods.reads = (int)plan->formulas[1].read_count;
    int64_t gradients = 0;
    for (int c = 0; c < mgk_count_captures(d); ++c) {
        mgk_capture *const capture = &plan->mods.capture[c];
        for (int axis = 0; axis < d->captures[c].axes; ++axis) {
            capture->stride[axis] = d->captures[c].strides[axis];
            capture->extent[axis] = (mgk_i32)d->captures[c].shape[axis];
        }
        capture->gradient = gradients;
        gradients += mgk_array_count(d, (clmgk_array)(CLMGK_ARRAY_GRAD_CAPTURE_0 + c));
    }
    return CLMGK_OK;
}

void mgk_plan_end(clmgk_plan *plan)
{
    mgk_plan_free_passes(plan);
    mgk_constants_free(plan->context, &plan->mods.captures);
    for (int n = 0; plan->formulas != NULL && n < FORMULAS; ++n)
        mgk_formulas_free(&plan->formulas[n]);
    mgk_free(&plan->context->allocator, plan->formulas);
}

clmgk_status mgk_plan_try(clmgk_context *context, const clmgk_attention_desc *desc, clmgk_pass which,
                          clmgk_engine engine, const char *parameters, clmgk_error *error)
{
    clmgk_plan *const plan = mgk_alloc(&context->allocator, 1, sizeof(*plan));
    if (plan == NULL)
        return mgk_fail_memory(error, "a plan");
    mgk_plan_begin(plan, context, desc);
    clmgk_status status = mgk_plan_read_texts(plan, error);
    engine_list list = list_engines(plan);
    const mgk_ranked *const own = &list.ranked[place_of(&list, mgk_engine_of(engine))];
    if (status == CLMGK_OK)
        status =
            may_be_measured(own) ? try_tuned(plan, &list, which, engine, parameters, error) : fail_by_rank(own, error);
    mgk_plan_end(plan);
    mgk_free(&context->allocator, plan);
    if (status == CLMGK_ERROR_UNSUPPORTED && error != NULL)
        error->status = CLMGK_ERROR_INVALID_VALUE;
    return status == CLMGK_ERROR_UNSUPPORTED ? CLMGK_ERROR_INVALID_VALUE : status;
}
