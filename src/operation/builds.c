/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the programs of several steps at the same time, for drivers whose compilers run in parallel. */
#include "operation/builds.h"

/* Threads beside the caller's. */
#define MOST_THREADS 7

/* Builds program after program until none is left. Failures are left to the caller, who asks for each again. */
static void *work(void *argument)
{
    mgk_builds *const builds = argument;
    for (;;) {
        pthread_mutex_lock(&builds->mutex);
        const size_t i = builds->next++;
        pthread_mutex_unlock(&builds->mutex);
        if (i >= builds->count)
            return NULL;
        mgk_build *const one = &builds->build[i];
        clmgk_error ignored;
        double ms = 0.0;
        if (mgk_program_get(builds->context, one->file, one->options, one->mods, &one->program, &one->origin, &ms,
                            &ignored) != CLMGK_OK)
            one->program = NULL;
    }
}

static void add(mgk_builds *builds, const mgk_step *step)
{
    if (step->enqueue != NULL || step->options.failed || builds->count == MGK_MOST_BUILDS)
        return;
    builds->build[builds->count++] = (mgk_build){
        .file = step->file, .options = step->options.data, .mods = step->mods, .origin = CLMGK_PROGRAM_MEMORY};
}

void mgk_builds_run(mgk_builds *builds, clmgk_context *context, mgk_steps *const *lists, size_t count)
{
    pthread_t threads[MOST_THREADS];
    size_t started = 0;
    *builds = (mgk_builds){.context = context};
    if (!context->facts.parallel_builds || pthread_mutex_init(&builds->mutex, NULL) != 0)
        return;
    for (size_t i = 0; i < count; ++i)
        for (size_t k = 0; k < lists[i]->count; ++k)
            add(builds, &lists[i]->step[k]);
    while (started < MOST_THREADS && started + 1 < builds->count &&
           mgk_thread_start(&threads[started], work, builds, NULL) == CLMGK_OK)
        ++started;
    (void)work(builds);
    for (size_t i = 0; i < started; ++i)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&builds->mutex);
}

clmgk_program_origin mgk_builds_release(mgk_builds *builds)
{
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    for (size_t i = 0; i < builds->count; ++i) {
        origin = builds->build[i].origin > origin ? builds->build[i].origin : origin;
        mgk_program_release(builds->build[i].program);
    }
    builds->count = 0;
    return origin;
}
