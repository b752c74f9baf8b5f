/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's side of the process for candidates: it starts the process, sends requests, and ends it if it does not
 * answer. */
#include "tune.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define END_MS      2000 /* a killed process ends within this time, unless the driver holds it */
#define MOST_MS     1e9  /* eleven days: the longest wait, whatever the limit of a candidate is */
#define MAX_ANSWER  (1 << 20)
#define WORKER_ARGS 4 /* the option with its two values, and the end of the list */

struct tune_child {
    tool_outputs *outputs; /* ends the process on signals */
    pid_t process;         /* 0: none */
    int to, from;
    char *text; /* what came and is not yet a line */
    size_t length, capacity;
    char **argv;
    char selector[32]; /* of the device */
};

/* ---- making ---------------------------------------------------------------------------------------------------- */

tool_exit tune_child_create(const clmgk_device_info *device, tool_outputs *outputs, const char *folder, int argc,
                            char **argv, tune_child **out, tool_error *error)
{
    tune_child *const child = calloc(1, sizeof(*child));
    TOOL_TRY(tool_check_memory(child, "a process", error));
    child->to = child->from = -1;
    child->outputs = outputs;
    snprintf(child->selector, sizeof(child->selector), "%" PRIu32 ":%" PRIu32, device->platform_index,
             device->device_index);
    child->argv = calloc((size_t)argc + WORKER_ARGS, sizeof(char *));
    if (!child->argv) {
        free(child);
        return tool_fail_memory(error, "a process");
    }
    child->argv[0] = argv[0];
    child->argv[1] = TUNE_WORKER_OPTION;
    child->argv[2] = (char *)folder;
    child->argv[3] = child->selector;
    for (int i = 1; i < argc; i++)
        child->argv[i + 3] = argv[i];
    *out = child;
    return TOOL_DONE;
}

/* ---- starting and ending ----------------------------------------------------------------------------------------- */

static void close_ends(tune_child *child)
{
    if (child->to >= 0)
        close(child->to);
    if (child->from >= 0)
        close(child->from);
    child->to = child->from = -1;
    child->length = 0;
}

static void pause_ms(long ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* False: the driver holds the process, which cannot be ended. */
static bool end_process(tune_child *child)
{
    close_ends(child);
    if (child->process == 0)
        return true;
    kill(-child->process, SIGKILL);
    tool_outputs_remove_process(child->outputs, child->process);
    for (double end = tool_now_ms() + END_MS; tool_now_ms() < end; pause_ms(5)) {
        if (waitpid(child->process, NULL, WNOHANG) != 0) {
            child->process = 0;
            return true;
        }
    }
    child->process = 0;
    return false;
}

void tune_child_destroy(tune_child *child)
{
    if (!child)
        return;
    (void)end_process(child);
    free(child->argv);
    free(child->text);
    free(child);
}

/* Spawns it with the pipes as its standard input and output; what drivers print goes nowhere. */
static int spawn(tune_child *child, const int in[2], const int out[2])
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    int code = posix_spawn_file_actions_init(&actions);
    if (code != 0)
        return code;
    code = posix_spawnattr_init(&attributes);
    if (code == 0) {
        sigemptyset(&none);
        (void)posix_spawnattr_setsigmask(&attributes, &none);
        (void)posix_spawnattr_setpgroup(&attributes, 0); /* with what drivers start to compile */
        (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
        code = posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
        if (code == 0)
            code = posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
        if (code == 0)
            code = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
        if (code == 0)
            code = posix_spawn(&child->process, "/proc/self/exe", &actions, &attributes, child->argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

static tool_exit start(tune_child *child, tool_error *error)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    int code = tool_make_pipe(in);
    if (code == 0)
        code = tool_make_pipe(out);
    if (code == 0)
        code = spawn(child, in, out);
    if (in[0] >= 0)
        close(in[0]);
    if (out[1] >= 0)
        close(out[1]);
    child->to = in[1];
    child->from = out[0];
    if (code == 0) {
        tool_outputs_add_process(child->outputs, child->process);
        return TOOL_DONE;
    }
    child->process = 0;
    close_ends(child);
    return tool_fail(error, TOOL_SYSTEM_ERROR, "no process for candidates: %s", strerror(code));
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static bool send_line(const tune_child *child, const char *text)
{
    for (size_t done = 0, length = strlen(text); done < length;) {
        const ssize_t put = write(child->to, text + done, length - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        done += (size_t)put;
    }
    return true;
}

static bool has_room(tune_child *child)
{
    if (child->capacity - child->length > 4096)
        return true;
    char *const larger = child->capacity < MAX_ANSWER ? realloc(child->text, child->capacity + 65536) : NULL;
    if (!larger)
        return false;
    child->text = larger;
    child->capacity += 65536;
    return true;
}

/* Reads until a line is there. */
static tune_reply receive(tune_child *child, double limit_ms, json_t **answer)
{
    const double end = tool_now_ms() + limit_ms;
    while (has_room(child)) {
        char *const line_end = child->length ? memchr(child->text, '\n', child->length) : NULL;
        if (line_end) {
            *answer = json_loadb(child->text, (size_t)(line_end - child->text), 0, NULL);
            child->length = 0;
            return *answer ? TUNE_ANSWERED : TUNE_DIED;
        }
        const double left = end - tool_now_ms();
        struct pollfd ready = {.fd = child->from, .events = POLLIN};
        const int count = left > 0 ? poll(&ready, 1, 1 + (int)TOOL_MIN(left, MOST_MS)) : 0;
        if (count < 0 && errno == EINTR)
            continue;
        if (count == 0)
            return TUNE_HUNG;
        const ssize_t got = read(child->from, child->text + child->length, child->capacity - child->length);
        if (got <= 0)
            return TUNE_DIED;
        child->length += (size_t)got;
    }
    return TUNE_DIED;
}

tool_exit tune_child_send(tune_child *child, json_t *job, tool_error *error)
{
    char *text = job ? json_dumps(job, JSON_COMPACT) : NULL;
    json_decref(job);
    TOOL_TRY(tool_check_memory(text, "a job", error));
    const tool_exit status = child->process ? TOOL_DONE : start(child, error);
    if (status == TOOL_DONE && !(send_line(child, text) && send_line(child, "\n")))
        close_ends(child); /* it has died: that shows when its answer is waited for */
    free(text);
    return status;
}

tool_exit tune_child_receive(tune_child *child, double limit_ms, tune_reply *reply, json_t **answer, tool_error *error)
{
    *answer = NULL;
    *reply = child->from >= 0 ? receive(child, limit_ms, answer) : TUNE_DIED;
    if (*reply != TUNE_ANSWERED && !end_process(child))
        return tool_fail(error, TOOL_NO_DEVICE, "the driver does not give back a process that was ended");
    return TOOL_DONE;
}
