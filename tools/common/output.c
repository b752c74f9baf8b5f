/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include "folder.h"
#include "resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIGNALS = 3 };
static const int signal_numbers[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

/* Where handlers write the signal's number; -1: nobody waits for it. A handler knows nothing else. */
static volatile sig_atomic_t signal_pipe = -1;

typedef struct output_file {
    const char *option;
    const char *path;
    char *target;    /* absolute, without links */
    char *temporary; /* in the target's folder; NULL: not there */
    FILE *stream;
} output_file;

struct tool_outputs {
    pthread_mutex_t mutex; /* guards the temporary files and the farewell, against the thread that waits for signals */
    pthread_t watcher;
    int pipe[2];
    bool caught[SIGNALS];
    struct sigaction before[SIGNALS];
    tool_folder folder;
    char *farewell; /* NULL: none */
    int farewell_stream;
    pid_t processes[TOOL_MAX_PROCESSES]; /* 0: none */
    size_t count;
    output_file file[TOOL_MAX_OUTPUTS];
};

/* ---- signals ------------------------------------------------------------------------------------------------ */

static void remove_temporaries(tool_outputs *outputs)
{
    for (size_t i = 0; i < outputs->count; i++) {
        if (outputs->file[i].temporary)
            unlink(outputs->file[i].temporary);
    }
    for (size_t i = 0; i < TOOL_MAX_PROCESSES; i++) {
        if (outputs->processes[i] > 0)
            kill(-outputs->processes[i], SIGKILL);
    }
}

/* Past stdio, whose locks other threads may hold. */
static void say_farewell(const tool_outputs *outputs)
{
    const char *text = outputs->farewell;
    signal(SIGPIPE, SIG_IGN);
    while (text && *text) {
        const ssize_t put = write(outputs->farewell_stream, text, strlen(text));
        if (put < 0 && errno != EINTR)
            return;
        text += put > 0 ? put : 0;
    }
}

/* Ends the process by `number`, as if it had never been caught. */
static void end_by_signal(int number)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    kill(getpid(), number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    _exit(128 + number);
}

/* Any thread may be the one that is interrupted: libraries start some before main. Drivers whose compiler catches these
 * signals, too, call the handler that was there before. */
static void pass_on(int number)
{
    const int code = errno;
    const unsigned char byte = (unsigned char)number;
    if (signal_pipe >= 0 && write((int)signal_pipe, &byte, 1) != 1)
        _exit(128 + number);
    errno = code;
}

static void *watch_signals(void *user)
{
    tool_outputs *const outputs = user;
    unsigned char number = 0;
    ssize_t got = 0;
    do
        got = read(outputs->pipe[0], &number, 1);
    while (got < 0 && errno == EINTR);
    if (got != 1)
        return NULL;
    pthread_mutex_lock(&outputs->mutex);
    remove_temporaries(outputs); /* the mutex is never given back: no temporary file is made after this */
    say_farewell(outputs);
    end_by_signal(number);
    return NULL;
}

/* Those of the three that the caller of the program does not ignore (nohup does). */
static void catch_signals(tool_outputs *outputs)
{
    signal_pipe = outputs->pipe[1];
    for (size_t i = 0; i < SIGNALS; i++) {
        struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
        sigemptyset(&action.sa_mask);
        if (sigaction(signal_numbers[i], NULL, &outputs->before[i]) == 0 && outputs->before[i].sa_handler != SIG_IGN)
            outputs->caught[i] = sigaction(signal_numbers[i], &action, NULL) == 0;
    }
}

static void release_signals(const tool_outputs *outputs)
{
    for (size_t i = 0; i < SIGNALS; i++) {
        if (outputs->caught[i])
            (void)sigaction(signal_numbers[i], &outputs->before[i], NULL);
    }
    signal_pipe = -1;
}

static void close_pipe(const tool_outputs *outputs)
{
    close(outputs->pipe[0]);
    close(outputs->pipe[1]);
}

tool_exit tool_outputs_create(tool_outputs **out, tool_error *error)
{
    tool_outputs *const outputs = calloc(1, sizeof *outputs);
    TOOL_TRY(tool_check_memory(outputs, "the output files", error));
    signal(SIGXFSZ, SIG_IGN);
    int code = tool_make_pipe(outputs->pipe);
    if (code != 0) {
        free(outputs);
        return tool_fail(error, TOOL_SYSTEM_ERROR, "no pipe for signals: %s", strerror(code));
    }
    pthread_mutex_init(&outputs->mutex, NULL);
    code = pthread_create(&outputs->watcher, NULL, watch_signals, outputs);
    if (code != 0) {
        close_pipe(outputs);
        pthread_mutex_destroy(&outputs->mutex);
        free(outputs);
        return tool_fail(error, TOOL_SYSTEM_ERROR, "no thread for signals: %s", strerror(code));
    }
    catch_signals(outputs);
    *out = outputs;
    return TOOL_DONE;
}

void tool_outputs_destroy(tool_outputs *outputs)
{
    if (!outputs)
        return;
    release_signals(outputs);
    close(outputs->pipe[1]); /* the thread that reads the other end ends, whatever else may fail */
    pthread_join(outputs->watcher, NULL);
    close(outputs->pipe[0]);
    remove_temporaries(outputs);
    tool_folder_remove(&outputs->folder);
    for (size_t i = 0; i < outputs->count; i++) {
        output_file *const file = &outputs->file[i];
        if (file->stream)
            fclose(file->stream);
        free(file->temporary);
        free(file->target);
    }
    free(outputs->farewell);
    pthread_mutex_destroy(&outputs->mutex);
    free(outputs);
}

tool_exit tool_outputs_make_folder(tool_outputs *outputs, const char **path, tool_error *error)
{
    const int code = tool_folder_make(&outputs->folder);
    *path = outputs->folder.path;
    return code == 0 ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "no temporary folder: %s", strerror(code));
}

/* Replaces the first process that is `from` by `to`. */
static void replace_process(tool_outputs *outputs, pid_t from, pid_t to)
{
    pthread_mutex_lock(&outputs->mutex);
    for (size_t i = 0; i < TOOL_MAX_PROCESSES; i++) {
        if (outputs->processes[i] == from) {
            outputs->processes[i] = to;
            break;
        }
    }
    pthread_mutex_unlock(&outputs->mutex);
}

void tool_outputs_add_process(tool_outputs *outputs, pid_t process)
{
    replace_process(outputs, 0, process);
}

void tool_outputs_remove_process(tool_outputs *outputs, pid_t process)
{
    replace_process(outputs, process, 0);
}

tool_exit tool_outputs_print(tool_outputs *outputs, const char *text, FILE *stream, char *farewell, tool_error *error)
{
    pthread_mutex_lock(&outputs->mutex);
    const bool printed = fputs(text, stdout) != EOF && fflush(stdout) == 0;
    const int code = errno;
    free(outputs->farewell);
    outputs->farewell = farewell;
    outputs->farewell_stream = fileno(stream);
    pthread_mutex_unlock(&outputs->mutex);
    return printed ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "standard output: %s", strerror(code));
}

/* ---- announcing --------------------------------------------------------------------------------------------- */

static tool_exit fail_output(tool_error *error, const output_file *file, const char *why)
{
    return tool_fail(error, TOOL_SYSTEM_ERROR, "--%s %s: cannot be written: %s", file->option, file->path, why);
}

static char *join(const char *left, const char *middle, const char *right)
{
    const size_t size = strlen(left) + strlen(middle) + strlen(right) + 1;
    char *const text = malloc(size);
    if (text)
        snprintf(text, size, "%s%s%s", left, middle, right);
    return text;
}

/* The folder of an absolute path, with its slash. */
static char *folder_of(const char *target)
{
    return strndup(target, (size_t)(strrchr(target, '/') - target) + 1);
}

static tool_exit check_folder(const output_file *file, tool_error *error)
{
    char *const folder = folder_of(file->target);
    TOOL_TRY(tool_check_memory(folder, file->path, error));
    const bool writable = access(folder, W_OK | X_OK) == 0;
    const int code = errno;
    free(folder);
    return writable ? TOOL_DONE : fail_output(error, file, strerror(code));
}

static tool_exit check_target(const output_file *file, tool_error *error)
{
    struct stat facts;
    const bool exists =
        stat(file->path, &facts) == 0; /* also what has no path of its own, such as a pipe below /dev/fd */
    if (!exists && errno != ENOENT)
        return fail_output(error, file, strerror(errno));
    if (exists && !S_ISREG(facts.st_mode))
        return fail_output(error, file, "there is something that is not a regular file");
    if (exists && access(file->target, W_OK) != 0)
        return fail_output(error, file, strerror(errno));
    return check_folder(file, error);
}

tool_exit tool_check_output_name(const char *option, const char *name, tool_error *error)
{
    if (strcmp(name, "-") == 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s -: expected a file name: it is not written to stdout (./- is a file of that name)",
                         option);
    if (name[0] == '\0' || name[strlen(name) - 1] == '/')
        return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected a file name", option, name);
    return TOOL_DONE;
}

tool_exit tool_outputs_add(tool_outputs *outputs, const char *option, const char *path, size_t *index,
                           tool_error *error)
{
    TOOL_TRY(tool_check_output_name(option, path, error));
    if (outputs->count == TOOL_MAX_OUTPUTS)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: more than %d outputs", option, path, TOOL_MAX_OUTPUTS);
    output_file file = {.option = option, .path = path};
    TOOL_TRY(tool_resolve_output(option, path, &file.target, error));
    tool_exit status = TOOL_DONE;
    for (size_t i = 0; i < outputs->count; i++) {
        if (strcmp(outputs->file[i].target, file.target) == 0) {
            status = tool_fail(error, TOOL_BAD_INPUT, "--%s and --%s name the same file, %s", outputs->file[i].option,
                               option, path);
            goto fail;
        }
    }
    TOOL_TRY_GOTO(status, check_target(&file, error), fail);
    *index = outputs->count;
    outputs->file[outputs->count++] = file;
    return TOOL_DONE;
fail:
    free(file.target);
    return status;
}

tool_exit tool_outputs_refuse_input(const tool_outputs *outputs, const char *option, const char *path,
                                    tool_error *error)
{
    char *const resolved = realpath(path, NULL);
    if (!resolved)
        return TOOL_DONE; /* reading it will tell */
    tool_exit status = TOOL_DONE;
    for (size_t i = 0; i < outputs->count && status == TOOL_DONE; i++) {
        if (strcmp(outputs->file[i].target, resolved) == 0)
            status = tool_fail(error, TOOL_BAD_INPUT, "--%s would overwrite the input --%s %s", outputs->file[i].option,
                               option, path);
    }
    free(resolved);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

#define NAME_ATTEMPTS 100

/* The permissions of the target; a new one's are the umask's business. */
static mode_t mode_of(const char *target, bool *exists)
{
    struct stat facts;
    *exists = stat(target, &facts) == 0;
    return *exists ? facts.st_mode & 0777 : 0666;
}

/* Creates a file beside the target that nobody else has, with the target's permissions; its name goes to *name. -1:
 * errno tells. */
static int create_beside(const char *target, char **name)
{
    char suffix[64];
    int descriptor = -1;
    bool exists = false;
    const mode_t mode = mode_of(target, &exists);
    char *const folder = folder_of(target);
    errno = ENOMEM;
    for (int attempt = 0; folder && attempt < NAME_ATTEMPTS; attempt++) {
        snprintf(suffix, sizeof suffix, "%ld-%d.tmp", (long)getpid(), attempt);
        *name = join(folder, ".clmgk-", suffix);
        if (!*name)
            break;
        descriptor = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (descriptor >= 0 || errno != EEXIST)
            break;
        free(*name);
        *name = NULL;
    }
    const int code = errno;
    if (descriptor >= 0 && exists)
        (void)fchmod(descriptor, mode); /* the umask may have taken some of them */
    if (descriptor < 0) {
        free(*name);
        *name = NULL;
    }
    free(folder);
    errno = code;
    return descriptor;
}

tool_exit tool_outputs_open(tool_outputs *outputs, size_t index, FILE **stream, tool_error *error)
{
    output_file *const file = &outputs->file[index];
    tool_exit status = TOOL_DONE;
    pthread_mutex_lock(&outputs->mutex);
    const int descriptor = create_beside(file->target, &file->temporary);
    if (descriptor < 0) {
        status = fail_output(error, file, strerror(errno));
        goto done;
    }
    file->stream = fdopen(descriptor, "wb");
    if (!file->stream) {
        status = fail_output(error, file, strerror(errno));
        close(descriptor);
        goto done;
    }
    *stream = file->stream;
done:
    pthread_mutex_unlock(&outputs->mutex);
    return status;
}

static tool_exit complete(output_file *file, tool_error *error)
{
    FILE *const stream = file->stream;
    file->stream = NULL;
    const bool written = fflush(stream) == 0 && fsync(fileno(stream)) == 0;
    const int code = errno;
    const bool closed = fclose(stream) == 0;
    if (!written || !closed)
        return fail_output(error, file, strerror(written ? errno : code));
    return TOOL_DONE;
}

static tool_exit rename_all(tool_outputs *outputs, tool_error *error)
{
    for (size_t i = 0; i < outputs->count; i++) {
        output_file *const file = &outputs->file[i];
        if (!file->temporary)
            continue;
        if (rename(file->temporary, file->target) != 0)
            return fail_output(error, file, strerror(errno));
        free(file->temporary);
        file->temporary = NULL;
    }
    return TOOL_DONE;
}

tool_exit tool_outputs_commit(tool_outputs *outputs, tool_error *error)
{
    for (size_t i = 0; i < outputs->count; i++) {
        if (outputs->file[i].stream)
            TOOL_TRY(complete(&outputs->file[i], error));
    }
    pthread_mutex_lock(&outputs->mutex);
    const tool_exit status = rename_all(outputs, error);
    pthread_mutex_unlock(&outputs->mutex);
    return status;
}
