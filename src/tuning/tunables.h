/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel parameters: their names, the macros that carry them, and the values they may take. */
#ifndef MGK_TUNABLES_H
#define MGK_TUNABLES_H

#include "base/base.h"

/* One parameter of an engine. Its default stands beside the kernel; a plan always states all of them. */
typedef struct mgk_tunable {
    const char *name;  /* as in clmgk_plan_options.parameters */
    const char *macro; /* as in cl/; NULL: a run-time number */
    int values[8];     /* allowed, ascending; ends with 0 (or is full) */
    const char *meaning;
} mgk_tunable;

/* A set of parameters with the values in use. */
#define MGK_MAX_TUNABLES 8
typedef struct mgk_tunables {
    const mgk_tunable *table;
    size_t count;
    int value[MGK_MAX_TUNABLES];
    bool fixed[MGK_MAX_TUNABLES]; /* given by the caller: not to be changed */
} mgk_tunables;

/* The parameters of an engine, all values 0. */
mgk_tunables mgk_tunables_of(clmgk_engine engine);

/* Index of the parameter with this name, which must exist. */
size_t mgk_tunable_index(const mgk_tunables *tunables, const char *name);
int mgk_tunable_get(const mgk_tunables *tunables, const char *name);

/* Sets a default: no effect where the caller gave a value. */
void mgk_tunable_default(mgk_tunables *tunables, const char *name, int value);

/* Reads "name=value,name=value". INVALID_VALUE for an unknown name or a value that is not allowed. */
clmgk_status mgk_tunables_read(mgk_tunables *tunables, const char *text, clmgk_error *error);

/* Appends " -DMACRO=value" of each, or "name=value,..." . */
void mgk_tunables_options(const mgk_tunables *tunables, mgk_text *text);
void mgk_tunables_print(const mgk_tunables *tunables, mgk_text *text);

#endif
