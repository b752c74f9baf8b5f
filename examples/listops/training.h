/* SPDX-License-Identifier: Apache-2.0 */
/* A run: its options, its state between steps, training and evaluation. */
#ifndef LISTOPS_TRAINING_H
#define LISTOPS_TRAINING_H

#include "network.h"

/* What a run is. The same plan on the same device gives the same bits. */
typedef struct plan {
    task task;
    settings settings;
    int64_t steps, warm_up;
    double rate, decay; /* AdamW: rate after the warm-up, falling to 0 at the last step; decay of matrices */
    int64_t em_every;   /* steps from M-step to M-step, with settings.em */
    int64_t report;     /* steps from point to point of the curve */
    int64_t test_every; /* steps from test to test while training; 0: only at the end */
    int64_t test_count; /* sequences of the test at the end; while training a quarter of them */
} plan;

/* The plan as text: what a checkpoint belongs to. For free(). */
char *plan_describe(const plan *p);

/* A point of the curve: means since the one before. */
typedef struct point {
    int64_t step;
    double loss, accuracy, test_accuracy; /* test: negative if none was made here */
} point;

/* State of a run between two steps: what a checkpoint has beside the parameters. */
typedef struct progress {
    int64_t step;     /* steps done */
    uint64_t example; /* the next one */
    int64_t tokens;   /* read so far */
    double seconds;   /* spent on steps */
    score since;      /* the last point of the curve */
    point *curve;
    int64_t points;
} progress;

typedef struct run {
    plan plan;
    network network;
    progress progress;
    batch batch;
} run;

void run_open(run *r, device *d, const plan *p);
void run_close(run *r);

/* What is asked for while training. */
typedef struct watch {
    const char *name; /* of the run, for messages */
    const char
        *checkpoint; /* file; NULL: none. Written every `save` steps (0: never), and when training ends or stops */
    int64_t save;
    int64_t until; /* stops there, as an interruption would; 0: never */
    bool quiet;    /* no lines on stderr */
} watch;

/* Trains from where the run is to its last step. False: it stopped before (a signal, watch->until). */
bool run_train(run *r, const watch *w);

/* Loss and accuracy on the first `count` examples of the test's stream. */
score run_test(run *r, int64_t count);

/* One step; returns after its end. For measuring. */
void run_step(run *r);

/* FNV-1a over the parameters' bits. */
uint64_t run_digest(const run *r);

/* Signals that stop training after the current step. */
void catch_signals(void);
bool is_stopped(void);

/* ---- checkpoints (checkpoint.c) ---------------------------------------------------------------------------------- */

/* Writes the run's state: whole or not at all. */
void checkpoint_save(const run *r, const char *path);

/* Reads it; false if there is no such file. A file that is damaged, of another version or of another plan ends the
 * program, and stays as it is. */
bool checkpoint_load(run *r, const char *path);

/* ---- curves (curve.c) -------------------------------------------------------------------------------------------- */

typedef struct series {
    const char *name;
    const point *points;
    int64_t count;
} series;

void curve_write(const char *path, const run *r);                    /* tab-separated */
void curve_plot(const char *path, const series *list, size_t count); /* SVG, by gnuplot */

/* ---- arrays (export.c) ------------------------------------------------------------------------------------------- */

/* Q, K, V of every layer for the first sequences of the test, and all parameters of its attention, as files of a folder
 * that clmgk-run reads. */
void export_arrays(run *r, const char *folder);

/* ---- comparison (compare.c) -------------------------------------------------------------------------------------- */

typedef struct comparison {
    const char *variants; /* "softmax:8,mgk:4,..." */
    const char *folder;   /* of the runs' checkpoints; the comparison goes on from there */
    int64_t seeds;
    const char *plot; /* NULL: none */
    bool json;
} comparison;

/* Trains all variants with all seeds, and prints the table. False: stopped before. */
bool compare(device *d, const plan *p, const comparison *c, const watch *w);

/* Times steps of one variant (or, by compare, several in turn): median seconds of a step and of its attention. */
typedef struct timing {
    double step, attention;
} timing;

void measure(run *const *runs, size_t count, int64_t rounds, timing *timings);

/* "mgk:4", "mgk:3x4" (components x heads), "hard-fish:2x8": into the settings. */
void parse_variant(const char *text, settings *s);

#endif
