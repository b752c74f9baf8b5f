/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

/* Everything after the command line. */
static tool_exit run(const run_arguments *arguments, run_outputs *outputs, tool_error *error)
{
    tool_problem problem = {0};
    run_execution execution = {0};
    run_check_result check = {0};
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, run_problem_open(arguments, &problem, error), done);
    TOOL_TRY_GOTO(status, run_announce(arguments, outputs, error), done);
    TOOL_TRY_GOTO(status, run_execute(arguments, &problem, &execution, error), done);
    /* First of all: checking and timing may take long, and be interrupted. */
    TOOL_TRY_GOTO(status, run_write(arguments, &problem, &execution, outputs, error), done);
    if (arguments->check)
        TOOL_TRY_GOTO(status, run_check(&problem, &execution, &check, error), done);
    if (arguments->repeat > 0)
        TOOL_TRY_GOTO(status, run_time(&problem, arguments->repeat, &execution, error), done);
    status = run_report(arguments, &problem, &execution, arguments->check ? &check : NULL, error);
done:
    run_close(&execution);
    tool_problem_close(&problem);
    return status;
}

int main(int argc, char **argv)
{
    tool_error error = {.message = ""};
    run_arguments arguments;
    run_outputs outputs = {0};
    bool finished = false;
    tool_exit status = run_parse(argc, argv, &arguments, &finished, &error);
    if (status == TOOL_DONE && !finished) {
        status = tool_outputs_create(&outputs.files, &error);
        if (status == TOOL_DONE)
            status = run(&arguments, &outputs, &error);
        tool_outputs_destroy(outputs.files);
    }
    return tool_report(&run_program, status, &error);
}
