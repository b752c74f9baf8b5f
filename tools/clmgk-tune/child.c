/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's side of a candidate's process: starts it, waits for its end, takes its answer. */
#include "tune.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_MS     1e9   /* eleven days: the longest wait, whatever the limit of a candidate is */
#define MAX_ANSWER  16384 /* a pipe holds it */
#define END_MS      2000  /* an ended process is gone by then */
#define WORKER_ARGS 5     /* the program, the option and its values */

/* In the new process: the leader of a group, with what drivers start to compile. What they print goes nowhere. */
static void become_worker(int out, char **argv)
{
    sigset_t none;
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    sigemptyset(&none);
    if (nowhere >= 0 && setpgid(0, 0) == 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(nowhere, STDERR_FILENO) >= 0 &&
        sigprocmask(SIG_SETMASK, &none, NULL) == 0)
        execv("/proc/self/exe", argv);
    _exit(TOOL_SYSTEM_ERROR);
}

tool_exit tune_child_start(const tune_setup *setup, json_t *job, double limit_ms, tune_child *child, tool_error *error)
{
    int out[2] = {-1, -1};
    char *text = job ? json_dumps(job, JSON_COMPACT) : NULL;
    char **const argv = calloc((size_t)setup->argc + WORKER_ARGS, sizeof(char *));
    json_decref(job);
    *child = (tune_child){.process = text && argv && tool_make_pipe(out) == 0 ? 0 : -1,
                          .end_ms = tool_now_ms() + fmin(limit_ms, MOST_MS)};
    if (child->process == 0) {
        char *const words[WORKER_ARGS] = {setup->argv[0], TUNE_WORKER_OPTION, (char *)setup->folder,
                                          (char *)setup->selector, text};
        memcpy(argv, words, sizeof(words));
        memcpy(argv + WORKER_ARGS, setup->argv + 1, (size_t)(setup->argc - 1) * sizeof(char *));
        child->process = fork();
        if (child->process == 0)
            become_worker(out[1], argv);
        close(out[1]);
        child->from = out[0];
    }
    free(argv);
    free(text);
    if (child->process < 0) {
        child->process = 0;
        return tool_fail(error, TOOL_SYSTEM_ERROR, "no process for candidates: %s", strerror(errno));
    }
    (void)setpgid(child->process, child->process); /* whichever of the two is first */
    tool_outputs_add_process(setup->outputs, child->process);
    return TOOL_DONE;
}

tool_exit tune_child_finish(const tune_setup *setup, tune_child *child, bool *hung, json_t **answer, tool_error *error)
{
    struct pollfd ready = {.fd = child->from, .events = POLLIN};
    const struct timespec pause = {.tv_nsec = 2000000};
    const pid_t process = child->process;
    char text[MAX_ANSWER];
    int count = 0;
    do
        count = poll(&ready, 1, (int)fmax(0, child->end_ms - tool_now_ms()));
    while (count < 0 && errno == EINTR);
    *hung = count == 0;
    const ssize_t length = *hung ? 0 : read(child->from, text, sizeof(text));
    *answer = length > 0 ? json_loadb(text, (size_t)length, 0, NULL) : NULL;
    close(child->from);
    child->process = 0;
    kill(-process, SIGKILL); /* it may hang in its end; and what a driver may have started */
    tool_outputs_remove_process(setup->outputs, process);
    for (const double end = tool_now_ms() + END_MS; tool_now_ms() < end; (void)nanosleep(&pause, NULL))
        if (waitpid(process, NULL, WNOHANG) != 0)
            return TOOL_DONE;
    return tool_fail(error, TOOL_NO_DEVICE, "the driver does not give back a process that was ended");
}
