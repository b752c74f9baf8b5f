/* SPDX-License-Identifier: Apache-2.0 */
/* The search through the cases of attention: attention.c has the cases, candidate.c candidates, decision.c the results.
 */
#ifndef TUNE_ATTENTION_H
#define TUNE_ATTENTION_H

#include "session.h"

#define MAX_ENGINES 4

/* The tunables of an engine in a family, in the form that the search takes. */
typedef struct engine_space {
    point_space points;
    const char *name, *table; /* of the engine, of its tunables */
    clmgk_context *library;
    const bench_case *item;                           /* its points are asked for; NULL: any */
    bool looked_at[BENCH_PASSES], near[BENCH_PASSES]; /* as an engine that is not the default */
} engine_space;

typedef struct candidate {
    size_t space; /* its engine's */
    point values;
    double ratio; /* of its time to the defaults'; not positive: it failed */
} candidate;

/* Kernels that have the same tunables: what is learnt of one says something about the others. */
typedef struct kernel_set {
    engine_space spaces[MAX_ENGINES];
    tune_space tables[MAX_ENGINES]; /* the same for the search */
    size_t count;
    tune_search *search[BENCH_PASSES];
    double points; /* legal ones of all spaces */
} kernel_set;

typedef struct tuned_case {
    session *base;
    size_t group, index; /* as jobs name it */
    const bench_case *item;
    kernel_set *set; /* of its variant */
    tune_result *result;
    size_t usual;                    /* space of the engine that is used without tuning */
    candidate defaults[MAX_ENGINES]; /* each engine's */
    bool available[MAX_ENGINES];
    int number;    /* of the search; -1: not begun */
    bool finished; /* the search has ended */
    bool measured; /* by this run */
    double default_ms;
    double more_ms; /* than a candidate's limit: for its runs */
    candidate best;
    double end_ms;
} tuned_case;

/* ---- candidate.c ------------------------------------------------------------------------------------------------- */

clmgk_tuned_pass candidate_pass(const bench_case *item);

/* Jobs on a case. `extra` is merged into the job; its reference is taken. The answer of `ask` is base->reply. */
tool_exit candidate_send(const tuned_case *c, size_t child, const char *job, json_t *extra, tool_error *error);
tool_exit candidate_ask(const tuned_case *c, const char *job, json_t *extra, tool_error *error);

/* The engine and the parameters that an object names; false: none of this case. */
bool candidate_read(const tuned_case *c, const json_t *object, candidate *found);
bool candidate_equal(const tuned_case *c, const candidate *a, const candidate *b);

/* The text of its parameters that differ from the defaults' (`all`: of all). */
point_text candidate_text(const tuned_case *c, const candidate *x, bool all);

/* Tells the search a candidate's ratio. */
tool_exit candidate_tell(const tuned_case *c, const candidate *x, tool_error *error);

/* Tells the search what an earlier run measured; *best is the fastest of it. */
tool_exit candidate_recall(const tuned_case *c, candidate *best, tool_error *error);

/* Times a candidate in turn with the defaults; more than `stop` times the best time so far is slow. `defaults`: those
 * of the candidate's engine, which become its values. */
tool_exit candidate_measure(tuned_case *c, candidate *x, bool defaults, double stop, tool_error *error);

/* Compares a candidate with the reference on awkward shapes, before it may count as the fastest. A wrong one would
 * mislead the search; its ratio becomes negative. */
tool_exit candidate_check(tuned_case *c, candidate *x, tool_error *error);

/* Measures a candidate; the best so far that is right stays. */
tool_exit candidate_try(tuned_case *c, candidate *x, tool_error *error);

/* Compiles and measures the next few candidates. w->finished: there are none. */
tool_exit candidate_try_batch(tuned_case *c, tool_error *error);

/* ---- decision.c -------------------------------------------------------------------------------------------------- */

/* The best candidate, if it is right and faster, or else what an earlier turn has proven, or else the defaults, into
 * the cache. */
tool_exit decision_settle(tuned_case *c, tool_error *error);

/* How the work on a case ended, in the history. */
tool_exit decision_remember(const tuned_case *c, tool_error *error);

/* The same of an earlier run into the result; NULL: none, or it was refused. */
const json_t *decision_recall(tuned_case *c);

#endif
