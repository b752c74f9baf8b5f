/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze.h"

/* Rows are made once for all analyses that need one matrix at a time, and once for those that need rows of all
 * matrices. */
static tool_exit solve(const analyze_arguments *arguments, analyze_population *population, analyze_results *results,
                       tool_error *error)
{
    const bool *const wanted = population->wanted;
    const bool pairs = wanted[ANALYZE_DISTANCES] || wanted[ANALYZE_COMPONENTS];
    const bool alone = wanted[ANALYZE_RANK] || !pairs;
    population->total = population->members * population->rows * ((pairs ? 1 : 0) + (alone ? 1 : 0));
    TOOL_TRY(analyze_observations_create(population, &results->observations, error));
    if (alone)
        TOOL_TRY(analyze_ranks_solve(population, arguments, &results->observations, &results->ranks, error));
    if (pairs)
        TOOL_TRY(analyze_pairs_solve(population, arguments->fraction, alone ? NULL : &results->observations,
                                     &results->pairs, error));
    return TOOL_DONE;
}

static tool_exit announce(const analyze_arguments *arguments, const analyze_population *population,
                          tool_outputs *outputs, analyze_plot *plots, tool_error *error)
{
    static const bool drawn[] = {
#define DRAWN(name, text, drawn) drawn,
        ANALYZE_LIST(DRAWN)
#undef DRAWN
    };
    for (int kind = 0; arguments->plots && kind < ANALYZE_KINDS; kind++) {
        if (drawn[kind] && population->wanted[kind])
            TOOL_TRY(analyze_announce(arguments, analyze_name((analyze_kind)kind), outputs, &plots[kind], error));
    }
    return tool_refuse_inputs(&arguments->problem, outputs, error);
}

static tool_exit analyze(const analyze_arguments *arguments, tool_outputs *outputs, tool_error *error)
{
    analyze_population population = {0};
    analyze_results results = {.population = &population};
    analyze_plot plots[ANALYZE_KINDS] = {{.path = ""}};
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, analyze_population_open(arguments, &population, error), done);
    TOOL_TRY_GOTO(status, announce(arguments, &population, outputs, plots, error), done);
    TOOL_TRY_GOTO(status, solve(arguments, &population, &results, error), done);
    if (arguments->plots)
        TOOL_TRY_GOTO(status, analyze_draw(arguments, &results, plots, outputs, error), done);
    TOOL_TRY_GOTO(status, tool_outputs_commit(outputs, error), done);
    status = analyze_report(arguments, &results, plots, error);
done:
    analyze_observations_free(&population, &results.observations);
    analyze_ranks_free(&population, &results.ranks);
    analyze_pairs_free(&results.pairs);
    analyze_population_close(&population);
    return status;
}

int main(int argc, char **argv)
{
    tool_error error = {.message = ""};
    analyze_arguments arguments = {0};
    tool_outputs *outputs = NULL;
    bool finished = false;
    tool_exit status = analyze_parse(argc, argv, &arguments, &finished, &error);
    if (status == TOOL_DONE && !finished) {
        status = tool_outputs_create(&outputs, &error);
        if (status == TOOL_DONE)
            status = arguments.theorems ? analyze_theorems(&arguments, outputs, &error)
                                        : analyze(&arguments, outputs, &error);
        tool_outputs_destroy(outputs);
    }
    return tool_report(&analyze_program, status, &error);
}
