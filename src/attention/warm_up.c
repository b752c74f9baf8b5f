/* SPDX-License-Identifier: Apache-2.0 */
/* Plans made in the background, by one thread, one after another. */
#include "clmgk/warm_up.h"
#include "attention/plan.h"

enum { MOST_TEXTS = 2 + CLMGK_MAX_CAPTURES + CLMGK_MAX_NUMBERS };

typedef struct item {
    clmgk_attention_desc desc; /* resolved; its strings are the item's */
    char *texts[MOST_TEXTS];
    clmgk_plan *plan;  /* NULL: not made, or taken */
    clmgk_error error; /* why it was not made */
} item;

struct clmgk_warm_up {
    clmgk_context *context;
    clmgk_plan_options options; /* its strings are the job's */
    char *parameters[2];
    pthread_t thread;
    mgk_monitor monitor; /* guards the following fields; changed: `settled` grew */
    bool cancelled;
    size_t settled; /* items that have a plan or a reason */
    size_t count;
    item items[];
};

/* ---- the thread ---------------------------------------------------------------------------------------------------
 */

static bool is_cancelled(clmgk_warm_up *job)
{
    pthread_mutex_lock(&job->monitor.mutex);
    const bool cancelled = job->cancelled;
    pthread_mutex_unlock(&job->monitor.mutex);
    return cancelled;
}

/* Only the thread writes an item, before it is settled. */
static void settle(clmgk_warm_up *job)
{
    pthread_mutex_lock(&job->monitor.mutex);
    ++job->settled;
    pthread_cond_broadcast(&job->monitor.changed);
    pthread_mutex_unlock(&job->monitor.mutex);
}

static void *make_plans(void *argument)
{
    clmgk_warm_up *const job = argument;
    for (size_t i = 0; i < job->count; ++i) {
        item *const it = &job->items[i];
        if (is_cancelled(job))
            (void)mgk_fail(&it->error, CLMGK_ERROR_CANCELLED, "plan %zu: cancelled before it was begun", i);
        else
            (void)clmgk_plan_create(job->context, &it->desc, &job->options, &it->plan, &it->error);
        settle(job);
    }
    return NULL;
}

/* ---- start and end -------------------------------------------------------------------------------------------------
 */

static clmgk_status copy_text(clmgk_warm_up *job, const char **text, char **copy, clmgk_error *error)
{
    if (*text == NULL)
        return CLMGK_OK;
    *text = *copy = mgk_strdup(&job->context->allocator, *text);
    return *copy != NULL ? CLMGK_OK : mgk_fail_memory(error, "a plan's texts");
}

/* Score and mask, and the names in them. */
static clmgk_status copy_texts(clmgk_warm_up *job, item *it, clmgk_error *error)
{
    clmgk_attention_desc *const d = &it->desc;
    char **copy = it->texts;
    MGK_TRY(copy_text(job, &d->score_mod, copy++, error));
    MGK_TRY(copy_text(job, &d->mask_mod, copy++, error));
    for (int c = 0; c < CLMGK_MAX_CAPTURES; ++c)
        MGK_TRY(copy_text(job, &d->captures[c].name, copy++, error));
    for (int n = 0; n < CLMGK_MAX_NUMBERS; ++n)
        MGK_TRY(copy_text(job, &d->numbers[n], copy++, error));
    return CLMGK_OK;
}

static clmgk_status copy_descs(clmgk_warm_up *job, const clmgk_attention_desc *const *descs, clmgk_error *error)
{
    for (size_t i = 0; i < job->count; ++i) {
        clmgk_error failure = {.status = CLMGK_OK};
        const clmgk_status status = mgk_attention_resolve(descs[i], &job->items[i].desc, &failure);
        if (status != CLMGK_OK)
            return mgk_fail(error, status, "descs[%zu]: %s", i, failure.message);
        MGK_TRY(copy_texts(job, &job->items[i], error));
    }
    return CLMGK_OK;
}

static void free_job(clmgk_warm_up *job)
{
    clmgk_context *const context = job->context;
    for (size_t i = 0; i < MGK_COUNT(job->parameters); ++i)
        mgk_free(&context->allocator, job->parameters[i]);
    for (size_t i = 0; i < job->count; ++i)
        for (size_t n = 0; n < MOST_TEXTS; ++n)
            mgk_free(&context->allocator, job->items[i].texts[n]);
    mgk_free(&context->allocator, job);
    clmgk_context_release(context);
}

static clmgk_status fill_and_start(clmgk_warm_up *job, const clmgk_attention_desc *const *descs,
                                   const clmgk_plan_options *options, clmgk_error *error)
{
    MGK_TRY(copy_descs(job, descs, error));
    MGK_TRY(mgk_plan_read_options(options, &job->options, error));
    MGK_TRY(copy_text(job, &job->options.parameters, &job->parameters[0], error));
    MGK_TRY(copy_text(job, &job->options.backward_parameters, &job->parameters[1], error));
    MGK_TRY(mgk_monitor_init(&job->monitor, error));
    const clmgk_status status = mgk_thread_start(&job->thread, make_plans, job, error);
    if (status != CLMGK_OK)
        mgk_monitor_destroy(&job->monitor);
    return status;
}

clmgk_status clmgk_warm_up_start(clmgk_context *context, const clmgk_attention_desc *const *descs, size_t count,
                                 const clmgk_plan_options *options, clmgk_warm_up **out, clmgk_error *error)
{
    if (context == NULL || descs == NULL || out == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s",
                        context == NULL ? "context" : (descs == NULL ? "descs" : "out"),
                        context == NULL ? "a context" : (descs == NULL ? "descriptors" : "room for the job"));
    clmgk_warm_up *const job = count <= SIZE_MAX / sizeof(item) - 1
                                   ? mgk_alloc(&context->allocator, 1, sizeof(*job) + count * sizeof(item))
                                   : NULL;
    if (job == NULL)
        return mgk_fail_memory(error, "a warm-up");
    job->context = context;
    job->count = count;
    mgk_context_retain(context);
    const clmgk_status status = fill_and_start(job, descs, options, error);
    if (status != CLMGK_OK)
        free_job(job);
    else
        *out = job;
    return status;
}

void clmgk_warm_up_cancel(clmgk_warm_up *job)
{
    if (job == NULL)
        return;
    pthread_mutex_lock(&job->monitor.mutex);
    job->cancelled = true;
    pthread_mutex_unlock(&job->monitor.mutex);
}

void clmgk_warm_up_release(clmgk_warm_up *job)
{
    if (job == NULL)
        return;
    clmgk_warm_up_cancel(job);
    pthread_join(job->thread, NULL);
    mgk_monitor_destroy(&job->monitor);
    for (size_t i = 0; i < job->count; ++i)
        clmgk_plan_release(job->items[i].plan);
    free_job(job);
}

/* ---- results --------------------------------------------------------------------------------------------------------
 */

static clmgk_status fail_without_job(clmgk_error *error)
{
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "job: NULL: expected a warm-up");
}

clmgk_status clmgk_warm_up_progress(clmgk_warm_up *job, size_t *done, size_t *count, clmgk_error *error)
{
    if (job == NULL)
        return fail_without_job(error);
    pthread_mutex_lock(&job->monitor.mutex);
    if (done != NULL)
        *done = job->settled;
    pthread_mutex_unlock(&job->monitor.mutex);
    if (count != NULL)
        *count = job->count;
    return CLMGK_OK;
}

/* Waits until the first `count` items are settled; the caller unlocks. */
static void lock_settled(clmgk_warm_up *job, size_t count)
{
    pthread_mutex_lock(&job->monitor.mutex);
    while (job->settled < count)
        pthread_cond_wait(&job->monitor.changed, &job->monitor.mutex);
}

static clmgk_status failure_of(const item *it, clmgk_error *error)
{
    if (it->error.status != CLMGK_OK && error != NULL)
        *error = it->error;
    return it->error.status;
}

clmgk_status clmgk_warm_up_wait(clmgk_warm_up *job, clmgk_error *error)
{
    if (job == NULL)
        return fail_without_job(error);
    clmgk_status status = CLMGK_OK;
    lock_settled(job, job->count);
    for (size_t i = 0; i < job->count && status == CLMGK_OK; ++i)
        status = failure_of(&job->items[i], error);
    pthread_mutex_unlock(&job->monitor.mutex);
    return status;
}

clmgk_status clmgk_warm_up_take(clmgk_warm_up *job, size_t index, clmgk_plan **out, clmgk_error *error)
{
    if (job == NULL)
        return fail_without_job(error);
    if (out == NULL || index >= job->count)
        return out == NULL ? mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "out: NULL: expected room for the plan")
                           : mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "index: %zu: expected less than %zu", index,
                                      job->count);
    item *const it = &job->items[index];
    lock_settled(job, index + 1);
    clmgk_status status = failure_of(it, error);
    if (status == CLMGK_OK && it->plan == NULL)
        status = mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "index: %zu: its plan was taken before", index);
    if (status == CLMGK_OK) {
        *out = it->plan;
        it->plan = NULL;
    }
    pthread_mutex_unlock(&job->monitor.mutex);
    return status;
}
