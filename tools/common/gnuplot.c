/* SPDX-License-Identifier: Apache-2.0 */
#include "gnuplot.h"

#include <ctype.h>
#include <errno.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Runs gnuplot with standard input and output on these files, and waits. */
static tool_exit run_gnuplot(FILE *input, FILE *output, char *argument, tool_error *error)
{
    char *const arguments[] = {"gnuplot", argument, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    int state = 0;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return tool_fail_memory(error, "a call of gnuplot");
    posix_spawn_file_actions_adddup2(&actions, fileno(input), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(output), STDOUT_FILENO);
    const int code = posix_spawnp(&child, "gnuplot", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code != 0)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "pictures need the program gnuplot, which could not be started: %s",
                         strerror(code));
    while (waitpid(child, &state, 0) < 0) {
        if (errno != EINTR)
            return tool_fail(error, TOOL_SYSTEM_ERROR, "gnuplot: %s", strerror(errno));
    }
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "gnuplot failed");
    return TOOL_DONE;
}

tool_exit tool_gnuplot_begin(FILE **script, tool_error *error)
{
    *script = tmpfile();
    return *script ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "no temporary file: %s", strerror(errno));
}

tool_exit tool_gnuplot_check(tool_error *error)
{
    FILE *nothing = NULL;
    TOOL_TRY(tool_gnuplot_begin(&nothing, error));
    const tool_exit status = run_gnuplot(nothing, nothing, "--version", error);
    fclose(nothing);
    return status;
}

tool_exit tool_gnuplot_run(FILE *script, FILE *picture, tool_error *error)
{
    if (fflush(script) != 0 || fseek(script, 0, SEEK_SET) != 0)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "the script for gnuplot: %s", strerror(errno));
    return run_gnuplot(script, picture, NULL, error);
}

void tool_gnuplot_quoted(const char *text, FILE *script)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', script);
        fputc(iscntrl((unsigned char)*text) ? ' ' : *text, script); /* a quoted text ends with its line */
    }
}
