/* SPDX-License-Identifier: Apache-2.0 */
#include "training.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

void catch_signals(void)
{
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESETHAND}; /* the second one ends the program */
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
    (void)signal(SIGXFSZ, SIG_IGN); /* writing beyond a limit is an error of the write */
}

bool is_stopped(void)
{
    return stopped != 0;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

void run_open(run *r, device *d, const plan *p)
{
    *r = (run){.plan = *p};
    r->progress.curve = allocate((size_t)(p->steps / p->report + 2), sizeof(point));
    network_open(&r->network, d, &p->settings);
    batch_open(&r->batch, &p->settings);
}

void run_close(run *r)
{
    network_close(&r->network);
    batch_close(&r->batch);
    free(r->progress.curve);
}

/* Rises over the warm-up, then falls to 0. */
static float rate_at(const plan *p, int64_t step)
{
    if (step < p->warm_up) {
        return (float)(p->rate * (double)(step + 1) / (double)p->warm_up);
    }
    return (float)(p->rate * (double)(p->steps - step) / (double)(p->steps - p->warm_up));
}

static void enqueue_step(run *r, int64_t step)
{
    const uint64_t seed = random_bits(r->plan.settings.seed, (uint64_t)step);
    network_forward(&r->network, seed);
    network_backward(&r->network, seed);
    if (r->plan.settings.em && (step + 1) % r->plan.em_every == 0) {
        network_maximise(&r->network);
    }
    network_adamw(&r->network, step + 1, rate_at(&r->plan, step), (float)r->plan.decay);
}

void run_step(run *r)
{
    (void)batch_fill(&r->batch, &r->plan.task, STREAM_TRAINING, 0, UINT64_MAX);
    network_load(&r->network, &r->batch);
    enqueue_step(r, r->plan.warm_up);
    (void)network_score(&r->network);
    CL(clFinish(r->network.device->queue));
}

score run_test(run *r, int64_t count)
{
    score total = {0};
    batch b;
    batch_open(&b, &r->plan.settings);
    for (uint64_t next = 0; next < (uint64_t)count;) {
        next = batch_fill(&b, &r->plan.task, STREAM_TEST, next, (uint64_t)count);
        network_load(&r->network, &b);
        network_forward(&r->network, 0);
        const score s = network_score(&r->network);
        total = (score){total.loss + s.loss, total.right + s.right, total.count + s.count};
    }
    batch_close(&b);
    return total;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static void print_line(const run *r, const watch *w, const point *last)
{
    const progress *const p = &r->progress;
    const double left = p->seconds / (double)p->step * (double)(r->plan.steps - p->step);
    if (w->quiet) {
        return;
    }
    (void)fprintf(stderr, "%s  step %" PRId64 "/%" PRId64 "  loss %.3f  accuracy %.3f", w->name, p->step, r->plan.steps,
                  last->loss, last->accuracy);
    if (last->test_accuracy >= 0.0) {
        (void)fprintf(stderr, "  test %.3f", last->test_accuracy);
    }
    (void)fprintf(stderr, "  %.0f tokens/s  %d:%02d left\n", (double)p->tokens / p->seconds, (int)left / 60,
                  (int)left % 60);
}

static void add_point(run *r, const watch *w)
{
    const plan *const p = &r->plan;
    progress *const at = &r->progress;
    point *const next = &at->curve[at->points++];
    const double count = (double)at->since.count;
    const bool tests = p->test_every > 0 && at->step % p->test_every == 0;
    *next = (point){at->step, at->since.loss / count, (double)at->since.right / count, -1.0};
    if (tests) {
        const score s = run_test(r, (p->test_count + 3) / 4);
        next->test_accuracy = (double)s.right / (double)s.count;
    }
    at->since = (score){0};
    print_line(r, w, next);
}

/* One step. While the device works on it, the next batch is made. */
static void train_step(run *r, batch *next)
{
    progress *const at = &r->progress;
    const double start = now_seconds();
    network_load(&r->network, &r->batch);
    enqueue_step(r, at->step);
    at->tokens += r->batch.used;
    at->example += (uint64_t)r->batch.count;
    (void)batch_fill(next, &r->plan.task, STREAM_TRAINING, at->example, UINT64_MAX);
    const score s = network_score(&r->network);
    at->since = (score){at->since.loss + s.loss, at->since.right + s.right, at->since.count + s.count};
    ++at->step;
    at->seconds += now_seconds() - start;
}

bool run_train(run *r, const watch *w)
{
    progress *const at = &r->progress;
    const int64_t end = w->until > 0 && w->until < r->plan.steps ? w->until : r->plan.steps;
    batch next;
    if (at->step >= end) {
        return at->step == r->plan.steps;
    }
    batch_open(&next, &r->plan.settings);
    (void)batch_fill(&r->batch, &r->plan.task, STREAM_TRAINING, at->example, UINT64_MAX);
    while (at->step < end && !is_stopped()) {
        train_step(r, &next);
        const batch old = r->batch;
        r->batch = next, next = old;
        if (at->step % r->plan.report == 0 || at->step == r->plan.steps) {
            add_point(r, w);
        }
        if (w->checkpoint && w->save > 0 && at->step % w->save == 0 && at->step < end) {
            checkpoint_save(r, w->checkpoint);
        }
    }
    batch_close(&next);
    if (w->checkpoint) {
        checkpoint_save(r, w->checkpoint);
    }
    return at->step == r->plan.steps;
}

uint64_t run_digest(const run *r)
{
    const size_t bytes = r->network.layout.count * sizeof(float);
    unsigned char *const values = allocate(bytes, 1);
    uint64_t hash = 0xCBF29CE484222325U;
    device_read(r->network.device, r->network.values, bytes, values);
    for (size_t i = 0; i < bytes; ++i) {
        hash = (hash ^ values[i]) * 0x100000001B3U;
    }
    free(values);
    return hash;
}
