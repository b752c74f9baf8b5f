/* SPDX-License-Identifier: Apache-2.0 */
/* A device: the time that each case gets, its candidates, the proof of the best one, and the report. */
#include "tune.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_COMPILERS   4     /* processes that compile at the same time */
#define PRODUCT_PART    0.2   /* of the budget */
#define TURN_MS         20e3  /* of a case, in its first turn, and more in each of the next ones */
#define MORE_BATCHES    3     /* of candidates, in each turn than in the last one */
#define DEFAULT_MORE_MS 120e3 /* the defaults are no candidates: without them a case can't be measured */
#define LIMIT_RUNS      200   /* of the defaults: what a candidate may take beside compiling */
#define OTHER_LIMIT_MS  15e3  /* another engine, compiling included: it is a guess */
#define PAIRS_MS        250.0 /* pairs of runs of a candidate and the defaults: from LEAST_PAIRS to MOST_PAIRS */
#define LEAST_PAIRS     2
#define MOST_PAIRS      15
#define PROOF_MS        1500.0 /* those of the winner: from MIN_PROOF to MAX_PROOF */
#define MIN_PROOF       5
#define MAX_PROOF       31
#define MAX_PROVEN      3                             /* candidates, the fastest first, until one is */
#define WORTH           (1 - CLMGK_TUNING_LEAST_GAIN) /* a plan takes no entry that gains less */
#define SAY_MS          5000.0                        /* between lines about a case at work */
#define PAUSE_NS        2000000                       /* between looks at a process */
#define END_MS          2000.0                        /* a killed process is gone by then */

typedef struct session {
    const tune_options *options;
    tool_device device;        /* for the cache's entries: nothing is run on it */
    char path[TUNE_PATH_SIZE]; /* of the history */
    FILE *history;
    tune_list list;
    tune_case *c;                   /* at work */
    json_t *counts;                 /* of candidates and how they lost; NULL: lines of earlier runs are read */
    json_t *line;                   /* of the latest candidate; NULL: its time was cut */
    json_t *jobs[MAX_COMPILERS];    /* lines of candidates that are compiled or run, */
    pid_t processes[MAX_COMPILERS]; /* and their processes; 0: ended */
    double start_ms, said_ms;
    double kill_ms; /* of the case at work: no candidate goes on */
    bool worked;    /* a case had its turn */
} session;

/* The ratio of a case's fastest candidate; 1: none is faster than the defaults. */
static double best_of(const tune_case *c)
{
    tune_candidate x;
    return fmin(1, tune_fastest(c, NULL, &x));
}

/* A line about a case. */
static void say(session *s, const tune_case *c, FILE *stream)
{
    const json_t *const r = c->result;
    const double ms = tool_json_number_of(r, "default_ms"), ratio = tool_json_number_of(r, "ratio");
    s->said_ms = tool_now_ms();
    fprintf(stream, "clmgk-tune: %zu of %zu: %s: ", (size_t)(c - s->list.cases) + 1, s->list.count, c->name);
    if (!r)
        fprintf(stream, "no result yet, the fastest takes %.2f of the defaults' time", best_of(c));
    else if (tool_json_text_of(r, "message"))
        fprintf(stream, "not run here: %s", tool_json_text_of(r, "message"));
    else if (ratio < 1)
        fprintf(stream, "%.3f -> %.3f ms (%.1f %%) with %s %s", ms, ratio * ms, 100 * (ratio - 1),
                tool_json_text_of(r, TUNE_CHOICE_KEY(c)), tool_json_text_of(r, "parameters"));
    else
        fprintf(stream, "%.3f ms, nothing faster than the defaults", ms);
    fprintf(stream, "; %zu tried, %.0f of %.0f s\n", c->tried, 1e-3 * (s->said_ms - s->start_ms), s->options->budget_s);
}

static void count(const session *s, const char *name)
{
    if (s->counts)
        (void)json_object_set_new(s->counts, name, json_integer((json_int_t)tool_json_number_of(s->counts, name) + 1));
}

/* A line about a candidate, or about the defaults alone. */
static void take_candidate(const session *s, tune_case *c, const json_t *line)
{
    const json_t *const usual = json_object_get(line, "usual");
    const char *const choice = tool_json_text_of(line, "choice"),
                      *const parameters = tool_json_text_of(line, "parameters"),
                      *const lost = tool_json_text_of(line, "lost");
    if (usual) {
        snprintf(c->usual, sizeof(c->usual), "%s", tool_json_text_of(usual, "choice"));
        (void)json_object_set(c->defaults, c->usual, json_object_get(usual, "parameters"));
        tune_note(c, c->usual, tool_json_text_of(usual, "parameters"), 1);
        c->default_ms = tool_json_number_of(line, "default_ms");
    }
    if (!choice || json_equal(json_object_get(line, "parameters"), json_object_get(c->defaults, choice)))
        return;
    if (json_is_true(json_object_get(line, "first")))
        (void)json_object_set(c->defaults, choice, lost ? json_null() : json_object_get(line, "parameters"));
    if (parameters)
        tune_note(c, choice, parameters, lost ? -1 : tool_json_number_of(line, "ratio"));
    tune_learn(&s->list, c, line);
    c->tried += s->counts != NULL;
    count(s, "tried");
    if (lost)
        count(s, lost);
    else if ((double)json_array_size(json_object_get(line, "ratios")) < tool_json_number_of(line, "pairs"))
        count(s, "stopped_early");
}

/* A crash may have left half a line: the next one begins behind it. */
static tool_exit open_history(const char *path, bool keep, FILE **stream, tool_error *error)
{
    *stream = fopen(path, "a+e");
    if (*stream && flock(fileno(*stream), LOCK_EX | LOCK_NB) != 0)
        return tool_fail(error, TOOL_SYSTEM_ERROR,
                         "%s: another clmgk-tune is measuring this device: expected it to end first", path);
    if (!*stream || (!keep && ftruncate(fileno(*stream), 0) != 0))
        return tool_fail(error, TOOL_SYSTEM_ERROR, "%s: %s", path, strerror(errno));
    if (fseek(*stream, -1, SEEK_END) == 0 && fgetc(*stream) != '\n')
        (void)write(fileno(*stream), "\n", 1);
    rewind(*stream);
    return TOOL_DONE;
}

/* Takes in what is new. What is no JSON, as half a line left by a crash, is skipped; what the device refused is tried
 * again by a later run. */
static void read_history(session *s)
{
    char *text = NULL;
    size_t room = 0;
    clearerr(s->history); /* the end may have moved */
    for (ssize_t length = 0; (length = getline(&text, &room, s->history)) > 0;) {
        json_t *const line = json_loadb(text, (size_t)length, 0, NULL);
        tune_case *const c = tune_find_case(&s->list, json_object_get(line, "case"));
        json_t **const place = c && tool_json_text_of(line, "outcome") ? &c->result : &s->line;
        if (c && place == &s->line)
            take_candidate(s, c, line);
        if (c && (place == &s->line || s->counts || !tool_json_text_of(line, "message"))) {
            json_decref(*place);
            *place = json_incref(line);
        }
        json_decref(line);
    }
    free(text);
}

static tool_exit add_line(session *s, json_t *line, tool_error *error)
{
    TOOL_TRY(tune_history_add(s->path, line, error));
    read_history(s);
    return TOOL_DONE;
}

/* In the new process: the leader of a group, with what drivers start to compile. What they print goes nowhere. One that
 * hangs or waits must not outlive its parent. */
static void become_worker(char **argv, pid_t parent)
{
    sigset_t none;
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    sigemptyset(&none);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && nowhere >= 0 && setpgid(0, 0) == 0 &&
        dup2(nowhere, STDOUT_FILENO) >= 0 && dup2(nowhere, STDERR_FILENO) >= 0 &&
        sigprocmask(SIG_SETMASK, &none, NULL) == 0)
        execv("/proc/self/exe", argv);
    _exit(TOOL_SYSTEM_ERROR);
}

/* Starts process n for a candidate of the case at work (NULL: what a plan takes from the cache), or for its proof. */
static tool_exit start(session *s, const tune_candidate *x, bool proof, int n, tool_error *error)
{
    const tune_case *const c = s->c;
    const double pair_ms = c->default_ms > 0 ? 2 * c->default_ms : PAIRS_MS;
    const double pairs = proof ? fmin(fmax(PROOF_MS / pair_ms, MIN_PROOF), MAX_PROOF)
                               : fmin(fmax(PAIRS_MS / pair_ms, LEAST_PAIRS), MOST_PAIRS);
    char selector[32];
    const bool named = x && x->parameters[0];
    snprintf(selector, sizeof(selector), "%u:%u", s->device.info.platform_index, s->device.info.device_index);
    s->jobs[n] = json_pack("{s:O, s:b, s:s*, s:s*, s:b, s:s*, s:f, s:i, s:f}", "case", c->what, "cached", !x, "choice",
                           x ? x->choice : NULL, "parameters", named ? x->parameters : NULL, "first", x && !named,
                           "change", x && x->change[0] ? x->change : NULL, "from", x ? x->from : 0, "pairs", (int)pairs,
                           "best", proof ? 0 : best_of(c));
    json_t *const all = json_pack("{s:s, s:s, s:s, s:O}", "folder", s->options->folder, "history", s->path, "device",
                                  selector, "line", s->jobs[n]);
    char *const text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    const pid_t parent = getpid();
    const pid_t process = text && setenv(TUNE_JOB, text, 1) == 0 ? fork() : -1;
    if (process == 0)
        become_worker(s->options->argv, parent);
    const int code = errno;
    (void)unsetenv(TUNE_JOB);
    json_decref(all);
    free(text);
    if (process < 0)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "no process for candidates: %s", strerror(code));
    (void)setpgid(process, process); /* whichever of the two is first */
    tool_outputs_add_process(s->options->outputs, process);
    s->processes[n] = process;
    return TOOL_DONE;
}

/* Waits for a process; false: it still runs at `end_ms`. */
static bool wait_for(session *s, pid_t process, int options, double end_ms, int *status)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    while (waitpid(process, status, WNOHANG | options) == 0) {
        if (tool_now_ms() >= end_ms)
            return false;
        (void)nanosleep(&pause, NULL);
        if (tool_now_ms() > s->said_ms + SAY_MS)
            say(s, s->c, stderr);
    }
    return true;
}

/* Lets a process go on until the candidate is compiled, or until its end: then s->line is the result, or NULL if the
 * case's time has ended before the candidate's. */
static tool_exit go_on(session *s, int n, tool_error *error)
{
    const pid_t process = s->processes[n];
    const double more_ms = s->c->default_ms > 0 ? LIMIT_RUNS * s->c->default_ms : DEFAULT_MORE_MS;
    const double limit_ms = tool_now_ms() + 1e3 * s->options->candidate_s + more_ms;
    int status = 0, ignored = 0;
    (void)kill(-process, SIGCONT);
    const bool late = !wait_for(s, process, WUNTRACED, fmin(limit_ms, s->kill_ms), &status);
    if (!late && WIFSTOPPED(status))
        return TOOL_DONE;
    (void)kill(-process, SIGKILL); /* it may hang, also in its end; and what its driver may have started */
    tool_outputs_remove_process(s->options->outputs, process);
    if (late && !wait_for(s, process, 0, tool_now_ms() + END_MS, &ignored))
        return tool_fail(error, TOOL_NO_DEVICE, "the driver does not give back a process that was ended");
    s->processes[n] = 0;
    json_decref(s->line);
    s->line = NULL;
    if (!late && WIFEXITED(status) && WEXITSTATUS(status) == TOOL_SYSTEM_ERROR)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "%s: a line can't be written", s->path);
    const bool told = !late && WIFEXITED(status) && WEXITSTATUS(status) == TOOL_DONE;
    if (told) /* its line may have been read with that of another process */
        read_history(s);
    if (told || (late && s->kill_ms < limit_ms))
        return TOOL_DONE;
    return add_line(s,
                    tool_json_merge(json_incref(s->jobs[n]),
                                    json_pack("{s:s, s:s}", "lost", late ? "hung" : "crashed", "message", "no answer")),
                    error);
}

static tool_exit finish(session *s, int n, tool_error *error)
{
    while (s->processes[n] > 0)
        TOOL_TRY(go_on(s, n, error));
    json_decref(s->jobs[n]);
    s->jobs[n] = NULL;
    return TOOL_DONE;
}

static tool_exit run(session *s, const tune_candidate *x, bool proof, tool_error *error)
{
    TOOL_TRY(start(s, x, proof, 0, error));
    return finish(s, 0, error);
}

static bool is_good(const session *s)
{
    return s->line && !tool_json_text_of(s->line, "lost");
}

/* Measures the defaults, the reference for all candidates, and what a plan takes now: from the cache, a bucket near by,
 * or the library's own measurements. c->begun: false if the device can't run them, or there was no time. */
static tool_exit measure_defaults(session *s, tune_case *c, tool_error *error)
{
    TOOL_TRY(run(s, NULL, false, error));
    c->begun = is_good(s);
    c->finished = s->line && !c->begun;
    json_t *const why = c->finished ? json_object_get(s->line, "message") : NULL;
    return why ? add_line(s, json_pack("{s:O, s:s, s:O}", "case", c->what, "outcome", "refused", "message", why), error)
               : TOOL_DONE;
}

/* Measures the other choices' defaults. Engines are guesses, which have little time. */
static tool_exit look_at_others(session *s, tune_case *c, double end_ms, tool_error *error)
{
    const char *choice = NULL;
    for (size_t i = 0; c->kind != TUNE_CLBLAST; i++) {
        choice = c->item ? clmgk_engine_name((clmgk_engine)(CLMGK_ENGINE_LANE + i)) : clmgk_gemm_provider(i);
        if (!choice)
            break;
        if (!tune_may_look(&s->list, c, &s->device, i, choice))
            continue;
        tune_candidate x = {.from = 0};
        snprintf(x.choice, sizeof(x.choice), "%s", choice);
        s->kill_ms = c->item ? fmin(end_ms, tool_now_ms() + OTHER_LIMIT_MS) : end_ms;
        TOOL_TRY(run(s, &x, false, error));
        if (!s->line)
            (void)json_object_set_new(c->defaults, choice, json_null());
    }
    return TOOL_DONE;
}

/* The next few candidates: compiled at the same time, measured one after another. */
static tool_exit try_batch(session *s, tune_case *c, tool_error *error)
{
    const int compilers = c->item ? (int)fmin(fmax((double)sysconf(_SC_NPROCESSORS_ONLN), 2), MAX_COMPILERS) : 1;
    tune_candidate next;
    int n = 0;
    for (; n < compilers && tune_propose(&s->list, c, &s->device, &next); n++)
        TOOL_TRY(start(s, &next, false, n, error));
    c->finished = n == 0;
    for (int i = 0; i < n; i++)
        TOOL_TRY(go_on(s, i, error));
    for (int i = 0; i < n; i++)
        TOOL_TRY(finish(s, i, error));
    return TOOL_DONE;
}

/* Faster beyond noise: the median of the ratios with twice its standard error, from the median distance. */
static bool beats_default(double *ratios, size_t number, double *median)
{
    double distance[MAX_PROOF];
    *median = tool_spread_of(ratios, number).median;
    for (size_t i = 0; i < number; i++)
        distance[i] = fabs(ratios[i] - *median);
    const double error = 1.2533 * 1.4826 * tool_spread_of(distance, number).median / sqrt((double)number);
    return *median <= WORTH && *median + 2 * error < 1;
}

/* Compares the best candidate with the defaults once more, and longer: best->from is below 1 if it is faster. A process
 * has one pair of runs with CLBlast's parameters: several are asked. */
static tool_exit prove(session *s, tune_case *c, tune_candidate *best, tool_error *error)
{
    double ratios[MAX_PROOF];
    size_t number = 0;
    do {
        s->kill_ms = fmax(s->kill_ms, tool_now_ms() + 5 * PROOF_MS + 6 * MIN_PROOF * c->default_ms);
        TOOL_TRY(run(s, best, true, error));
        for (size_t i = 0; i < json_array_size(json_object_get(s->line, "ratios")); i++)
            ratios[number++ % MAX_PROOF] = json_number_value(json_array_get(json_object_get(s->line, "ratios"), i));
    } while (is_good(s) && number < MIN_PROOF);
    if (is_good(s) && beats_default(ratios, number, &best->from))
        return TOOL_DONE;
    best->from = 1; /* it only seemed to be faster */
    if (!s->line)
        return TOOL_DONE;
    count(s, "not_confirmed");
    tune_note(c, best->choice, best->parameters, 1);
    return TOOL_DONE;
}

static json_t *make_result(const tune_case *c, const tune_candidate *x)
{
    tune_candidate changes;
    tune_changes(x->parameters, tool_json_text_of(c->defaults, x->choice), &changes);
    return json_pack("{s:O, s:s, s:s, s:s, s:f, s:f, s:f}", "case", c->what, "outcome",
                     x->from < 1 ? "faster" : "default", TUNE_CHOICE_KEY(c), x->choice, "parameters",
                     changes.parameters, "default_ms", c->default_ms, "tuned_ms", x->from * c->default_ms, "ratio",
                     x->from);
}

/* The best candidate, if it is faster, or else what was proven before, or else the defaults, into the cache. Where
 * nothing was compared with the defaults there is no result. */
static tool_exit settle(session *s, tune_case *c, tool_error *error)
{
    const double before = c->result ? fmin(WORTH, tool_json_number_of(c->result, "ratio")) : WORTH;
    tune_candidate x = {.from = 1}, usual = {.from = 1};
    json_t *result = NULL;
    for (int i = 0; i < MAX_PROVEN && !result && tune_fastest(c, NULL, &x) < before; i++) {
        TOOL_TRY(prove(s, c, &x, error));
        result = x.from < 1 ? make_result(c, &x) : NULL;
    }
    snprintf(usual.choice, sizeof(usual.choice), "%s", c->usual);
    if (!result && c->result)
        result = json_copy(c->result);
    else if (!result && (c->tried > 0 || c->finished))
        result = make_result(c, &usual);
    if (!result)
        return TOOL_DONE;
    TOOL_TRY(add_line(s, result, error));
    return tune_store(c, s->device.library, error);
}

/* One turn of a case: few candidates in the first round, so that all cases have theirs soon, then more. A later turn
 * continues where this one ended. */
static tool_exit take_turn(session *s, tune_case *c, int round, double end_ms, tool_error *error)
{
    s->c = c;
    s->kill_ms = end_ms;
    if (!c->begun)
        TOOL_TRY(measure_defaults(s, c, error));
    if (!c->begun)
        return TOOL_DONE;
    TOOL_TRY(look_at_others(s, c, end_ms, error));
    const bool enough = end_ms >= tool_now_ms() + TURN_MS;
    s->kill_ms = fmin(end_ms, tool_now_ms() + (round + 1) * TURN_MS);
    for (int i = 0; i <= MORE_BATCHES * round && !c->finished && (i == 0 || tool_now_ms() < s->kill_ms); i++)
        TOOL_TRY(try_batch(s, c, error));
    c->tried += c->tried == 0 && enough; /* they had long enough, and none finished */
    return settle(s, c, error);
}

/* Cases without a result in the first round, then those that promise an improvement. Attention leaves products a part
 * of the budget. The very first case has its turn however small it is. *worked: whether any had its turn. */
static tool_exit take_round(session *s, int round, bool *worked, tool_error *error)
{
    *worked = false;
    for (tune_case *c = s->list.cases; c < s->list.cases + s->list.count; c++) {
        const double part = c->item && s->options->product_count > 0 ? 1 - PRODUCT_PART : 1;
        const double end_ms = s->worked ? s->start_ms + 1e3 * part * s->options->budget_s : INFINITY;
        if (c->finished || (round == 0 && c->result) || tool_now_ms() >= end_ms)
            continue;
        TOOL_TRY(take_turn(s, c, round, end_ms, error));
        say(s, c, stderr);
        s->worked = *worked = true;
    }
    return TOOL_DONE;
}

static tool_exit take_all(session *s, tool_error *error)
{
    bool worked = true;
    fprintf(stderr, "clmgk-tune: %s: %zu %s, budget %.0f s\n", s->device.info.name, s->list.count,
            tool_plural(s->list.count, "case", "cases"), s->options->budget_s);
    s->said_ms = tool_now_ms();
    read_history(s);
    for (const tune_case *c = s->list.cases; c < s->list.cases + s->list.count; c++)
        if (c->result)
            say(s, c, stderr);
    s->counts = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "tried", 0, "stopped_early", 0, "failed", 0, "hung", 0,
                          "crashed", 0, "wrong", 0, "not_confirmed", 0);
    for (int round = 0; round < 2 || worked; round++)
        TOOL_TRY(take_round(s, round, &worked, error));
    return TOOL_DONE;
}

static json_t *case_json(const tune_case *c)
{
    json_t *const times = json_object(), *object = json_copy(c->what), *defaults = NULL;
    const char *choice = NULL;
    tune_candidate x;
    json_object_foreach(c->defaults, choice, defaults)
    {
        (void)json_object_set_new(times, choice, tool_json_number(tune_fastest(c, choice, &x) * c->default_ms));
    }
    object = tool_json_merge(object, json_pack("{s:s, s:n, s:n, s:n, s:n, s:n, s:n, s:I, s:o}", "outcome", "unmeasured",
                                               "message", TUNE_CHOICE_KEY(c), "parameters", "default_ms", "tuned_ms",
                                               "ratio", "tried", (json_int_t)c->tried, "ms", times));
    (void)json_object_update(object, c->result);
    (void)json_object_del(object, "case");
    return object;
}

/* The device, its cases, and what was gained. */
static json_t *report(const session *s)
{
    json_t *cases = json_array(), *products = json_array(), *clblast = NULL;
    double logs = 0, measured = 0;
    for (const tune_case *c = s->list.cases; c < s->list.cases + s->list.count; c++) {
        const double ratio = c->item ? tool_json_number_of(c->result, "ratio") : 0;
        logs -= ratio > 0 ? log(ratio) : 0;
        measured += ratio > 0;
        if (c->kind != TUNE_CLBLAST)
            tool_json_append(c->item ? &cases : &products, case_json(c));
        else if (c->result)
            clblast = case_json(c);
    }
    return tool_json_merge(tool_json_device(&s->device.info),
                           json_pack("{s:o, s:o, s:o?, s:O, s:f, s:f}", "cases", cases, "products", products, "clblast",
                                     clblast, "candidates", s->counts, "geometric_mean_speedup",
                                     exp(logs / fmax(1, measured)), "seconds", 1e-3 * (tool_now_ms() - s->start_ms)));
}

tool_exit tune_device(const tune_options *options, const clmgk_device_info *device, json_t **found, tool_error *error)
{
    session s = {.options = options, .start_ms = tool_now_ms()};
    clmgk_tuning_info cache = CLMGK_TUNING_INFO_INIT;
    static const char empty[] = "clmgk-tuning 1\n"; /* whether the cache can be written */
    TOOL_TRY(tune_get_cache(&cache, true, error));
    TOOL_TRY(tool_check_library(clmgk_tuning_import(NULL, empty, sizeof(empty) - 1, NULL, &error->library), error));
    tune_history_name(cache.path, device, s.path);
    tool_exit status = open_history(s.path, options->resume, &s.history, error);
    if (status == TOOL_DONE)
        status = tool_device_open_info(device, &s.device, error);
    if (status == TOOL_DONE)
        status = tune_make_cases(options, &s.list, error);
    if (status == TOOL_DONE)
        status = take_all(&s, error);
    if (status == TOOL_DONE)
        *found = report(&s);
    for (const tune_case *c = s.list.cases; *found && !options->json && c < s.list.cases + s.list.count; c++)
        say(&s, c, stdout);
    if (*found && !options->json)
        printf("%s, %s: geometric mean of the gain in attention %.1f %%\n", device->name, device->platform,
               100 * (tool_json_number_of(*found, "geometric_mean_speedup") - 1));
    for (int i = 0; i < MAX_COMPILERS; i++)
        json_decref(s.jobs[i]);
    json_decref(s.line);
    json_decref(s.counts);
    tune_free_cases(&s.list);
    tool_device_close(&s.device);
    if (s.history)
        (void)fclose(s.history);
    return status;
}
