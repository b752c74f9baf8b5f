/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MGK_BUILDS_H
#define MGK_BUILDS_H

#include "operation/step.h"

enum { MGK_MOST_BUILDS = 4 * MGK_MAX_STEPS };

typedef struct mgk_build {
    const char *file, *options, *mods;
    mgk_program *program; /* NULL: it could not be built */
    clmgk_program_origin origin;
} mgk_build;

/* The programs of lists of steps. */
typedef struct mgk_builds {
    clmgk_context *context;
    mgk_build build[MGK_MOST_BUILDS];
    size_t count;
    pthread_mutex_t mutex; /* guards `next` */
    size_t next;           /* the first that no thread has taken */
} mgk_builds;

/* Where the driver compiles in parallel, builds all programs and keeps them in the context's list; else does nothing.
 * Threads of its own end before it returns. Release with mgk_builds_release when the steps have their programs. */
void mgk_builds_run(mgk_builds *builds, clmgk_context *context, mgk_steps *const *lists, size_t count);

/* The slowest way by which any of the programs was had. */
clmgk_program_origin mgk_builds_release(mgk_builds *builds);

#endif
