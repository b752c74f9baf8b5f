/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel parameters: tables of their names, values, defaults and constraints, and sets of values in use. */
#ifndef MGK_TUNABLES_H
#define MGK_TUNABLES_H

#include "base/base.h"
#include "clmgk/tuning.h"

/* Most parameters of a table. */
#define MGK_MAX_TUNABLES 20

/* A parameter of a table. */
typedef struct mgk_tunable {
    clmgk_tunable shown;
    const char *macro; /* the macro in cl/; NULL: a run-time number */
} mgk_tunable;

/*
 * The name of a parameter. In code MGK_NAMED(row_threads) is "row-threads", and compiles only where the identifier is
 * declared: by MGK_TUNABLE_TABLE, or by MGK_TUNABLE_NAMES of a list.
 */
typedef struct mgk_tunable_name {
    const char *text; /* the identifier, with _ for -, or the name as shown */
} mgk_tunable_name;

#define MGK_TUNABLE_NAMED(id, ...)  typedef char mgk_tunable_named_##id;
#define MGK_TUNABLE_NAMES(TUNABLES) TUNABLES(MGK_TUNABLE_NAMED)
#define MGK_NAMED(id)               ((mgk_tunable_name){MGK_NAMED_TEXT(id)})
#define MGK_NAMED_TEXT(id)          (&#id[0 * sizeof(mgk_tunable_named_##id)]) /* in a constant list */

/* The parameters of an engine, or of another library's kernel. */
typedef struct mgk_tunable_table {
    const char *name;
    const mgk_tunable *tunables;
    size_t count;
    const char *const *constraints; /* expressions of the tunables' names, with _ for - */
    size_t constraint_count;
    bool (*holds)(size_t constraint, const int32_t *values);
} mgk_tunable_table;

/*
 * Defines `static const mgk_tunable_table PREFIX_table` from a list of tunables T(identifier, name, macro, CPU default,
 * GPU default, meaning, values...) and a list of constraints C(expression of identifiers), as in
 * cl/engine/lane/tunables.h.
 */
#define MGK_TUNABLE_COUNT(...) (sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))
#define MGK_TUNABLE_ROW(id, name, macro, cpu, gpu, meaning, ...)                                                       \
    {{sizeof(clmgk_tunable), name, meaning, {__VA_ARGS__}, MGK_TUNABLE_COUNT(__VA_ARGS__), cpu, gpu}, macro},
#define MGK_TUNABLE_PLACE(id, ...)         place_of_##id,
#define MGK_TUNABLE_VALUE(id, ...)         const int32_t id = given_[place_of_##id];
#define MGK_TUNABLE_UNUSED(id, ...)        (void)(id);
#define MGK_TUNABLE_CONSTRAINT_TEXT(...)   #__VA_ARGS__,
#define MGK_TUNABLE_CONSTRAINT_RESULT(...) (__VA_ARGS__),
#define MGK_TUNABLE_TABLE(prefix, table_name, TUNABLES, CONSTRAINTS)                                                   \
    MGK_TUNABLE_NAMES(TUNABLES)                                                                                        \
    static const mgk_tunable prefix##_tunables[] = {TUNABLES(MGK_TUNABLE_ROW)};                                        \
    static const char *const prefix##_constraints[] = {CONSTRAINTS(MGK_TUNABLE_CONSTRAINT_TEXT) NULL};                 \
    static bool prefix##_holds(size_t which_, const int32_t *given_)                                                   \
    {                                                                                                                  \
        enum { TUNABLES(MGK_TUNABLE_PLACE) };                                                                          \
        TUNABLES(MGK_TUNABLE_VALUE)                                                                                    \
        TUNABLES(MGK_TUNABLE_UNUSED)                                                                                   \
        const bool results_[] = {CONSTRAINTS(MGK_TUNABLE_CONSTRAINT_RESULT) true};                                     \
        return results_[which_];                                                                                       \
    }                                                                                                                  \
    _Static_assert(MGK_COUNT(prefix##_tunables) <= MGK_MAX_TUNABLES, "room for " table_name);                          \
    static const mgk_tunable_table prefix##_table = {table_name,                                                       \
                                                     prefix##_tunables,                                                \
                                                     MGK_COUNT(prefix##_tunables),                                     \
                                                     prefix##_constraints,                                             \
                                                     MGK_COUNT(prefix##_constraints) - 1,                              \
                                                     prefix##_holds}

/* Parameters that a family adds to every engine's, and the names of the resulting tables, indexed by clmgk_engine. */
typedef struct mgk_added_tunables {
    const char *const *tables;
    const mgk_tunable *tunables;
    size_t count;
    const char *const *unused; /* engines' parameters that its kernels ignore, ended by NULL; NULL: none */
} mgk_added_tunables;

/* The source of a value; a higher source replaces a lower one. NEAR: tuned for another bucket or device; such values
 * never set parameters that depend on the shape (default 0). */
typedef enum mgk_origin { MGK_ORIGIN_DEFAULT = 0, MGK_ORIGIN_NEAR, MGK_ORIGIN_TUNED, MGK_ORIGIN_CALLER } mgk_origin;

/* A set of parameters with the values in use, and one more element that stands for every parameter that the set
 * lacks. */
typedef struct mgk_tunables {
    const char *name;
    const mgk_tunable_table *table;
    const mgk_added_tunables *added; /* after the table's; NULL: none */
    int32_t value[MGK_MAX_TUNABLES + 1];
    mgk_origin origin[MGK_MAX_TUNABLES + 1];
} mgk_tunables;

/* Parameters as text, "name=value,..."; NULL: none. */
typedef struct mgk_parameters {
    const char *text;
    mgk_origin origin;    /* of the values */
    const char *followed; /* values of another pass, used in place of defaults */
} mgk_parameters;

/* The parameters of a table, all values 0. */
mgk_tunables mgk_tunables_of(const mgk_tunable_table *table);

size_t mgk_tunables_count(const mgk_tunables *tunables);
const mgk_tunable *mgk_tunables_at(const mgk_tunables *tunables, size_t index);

/* True if the family's kernels ignore the parameter. */
bool mgk_tunable_is_unused(const mgk_tunables *tunables, size_t index);

/* The index of the parameter with this name; MGK_MAX_TUNABLES, whose value is always a default of 0, if the set lacks
 * it. */
size_t mgk_tunable_index(const mgk_tunables *tunables, mgk_tunable_name name);
int mgk_tunable_get(const mgk_tunables *tunables, mgk_tunable_name name);

/* True if the value is a default. */
bool mgk_tunable_is_default(const mgk_tunables *tunables, mgk_tunable_name name);

/* The table's default for a class of devices. */
int mgk_tunable_base(const mgk_tunables *tunables, mgk_tunable_name name, clmgk_device_class device_class);

/* Sets all defaults to the table's; a plan then reduces them. */
void mgk_tunables_begin(mgk_tunables *tunables, clmgk_device_class device_class);

/* Sets a default; no effect if the value has another source. */
void mgk_tunable_default(mgk_tunables *tunables, mgk_tunable_name name, int value);

/* Limits a value that was tuned for another shape. */
void mgk_tunable_at_most(mgk_tunables *tunables, mgk_tunable_name name, int value);

/* Reads parameters. INVALID_VALUE for an unknown name or a value that is not allowed. */
clmgk_status mgk_tunables_read(mgk_tunables *tunables, const mgk_parameters *parameters, clmgk_error *error);

/* Checks the table's constraints; without `complete`, only the constraints whose values are all given (no defaults).
 * INVALID_VALUE, with the constraint and its values. */
clmgk_status mgk_tunables_check(const mgk_tunables *tunables, bool complete, clmgk_error *error);

/* Appends " -DMACRO=value" for each parameter; appends "name=value,...". */
void mgk_tunables_options(const mgk_tunables *tunables, mgk_text *text);
void mgk_tunables_print(const mgk_tunables *tunables, mgk_text *text);

#endif
