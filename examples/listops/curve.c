/* SPDX-License-Identifier: Apache-2.0 */
/* Curves of training: a table, and a picture by gnuplot. */
#include "training.h"

#include <errno.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void print(output *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print(output *o, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = NULL;
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) {
        fail(EXIT_SYSTEM, "out of memory");
    }
    output_write(o, text, (size_t)length);
    free(text);
}

void curve_write(const char *path, const run *r)
{
    output o = output_open(path);
    print(&o, "step\tloss\taccuracy\ttest\n");
    for (int64_t i = 0; i < r->progress.points; ++i) {
        const point *const p = &r->progress.curve[i];
        print(&o, "%" PRId64 "\t%.6f\t%.6f\t", p->step, p->loss, p->accuracy);
        if (p->test_accuracy >= 0.0) {
            print(&o, "%.6f\n", p->test_accuracy);
        } else {
            print(&o, "-\n");
        }
    }
    output_commit(&o);
}

/* gnuplot's commands: loss above, accuracy below. */
static void write_script(FILE *script, const series *list, size_t count)
{
    (void)fputs("set terminal svg size 900,800 dynamic font 'sans-serif,13' background rgb 'white'\n"
                "set multiplot layout 2,1\nset grid ytics lc rgb '#dddddd'\nset border 3\nset tics nomirror\n"
                "set key outside right top\nset xlabel 'step'\n",
                script);
    for (size_t s = 0; s < count; ++s) {
        (void)fprintf(script, "$s%zu << END\n", s);
        for (int64_t i = 0; i < list[s].count; ++i) {
            const point *const p = &list[s].points[i];
            (void)fprintf(script, "%" PRId64 " %.6f %.6f\n", p->step, p->loss, p->accuracy);
        }
        (void)fputs("END\n", script);
    }
    for (int column = 2; column <= 3; ++column) {
        (void)fprintf(script, "set ylabel '%s of training'\nplot ", column == 2 ? "loss" : "accuracy");
        for (size_t s = 0; s < count; ++s) {
            (void)fprintf(script, "%s$s%zu using 1:%d with lines lw 2 title '%s'", s > 0 ? ", " : "", s, column,
                          list[s].name);
        }
        (void)fputc('\n', script);
    }
}

void curve_plot(const char *path, const series *list, size_t count)
{
    char *const arguments[] = {"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    int state = 0;
    FILE *const script = tmpfile();
    output o = output_open(path);
    if (script == NULL || posix_spawn_file_actions_init(&actions) != 0) {
        (void)unlink(o.temporary);
        fail(EXIT_SYSTEM, "%s: no temporary file: %s", path, strerror(errno));
    }
    write_script(script, list, count);
    rewind(script);
    (void)posix_spawn_file_actions_adddup2(&actions, fileno(script), STDIN_FILENO);
    (void)posix_spawn_file_actions_adddup2(&actions, fileno(o.stream), STDOUT_FILENO);
    const bool started = posix_spawnp(&child, "gnuplot", &actions, NULL, arguments, environ) == 0;
    while (started && waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)fclose(script);
    if (!started || !WIFEXITED(state) || WEXITSTATUS(state) != 0) {
        (void)unlink(o.temporary);
        fail(EXIT_SYSTEM, "%s: %s", path, started ? "gnuplot failed" : "the program gnuplot could not be started");
    }
    output_commit(&o);
}
