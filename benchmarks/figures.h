/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Curves of operations, parameters and memory over N, D, H and M, as figures of the papers have them, and of every
 * variant: what they show, as data, and its values by clmgk/counts.h. No device is needed.
 */
#ifndef BENCH_FIGURES_H
#define BENCH_FIGURES_H

#include "tool.h"

/* What is counted: layers of attention with their projections, each with a feed-forward network of two products, and an
 * embedding. Matrices alone, without biases and normalisation. */
typedef struct figure_model {
    const char *name;
    int64_t layers, width, heads;
    int64_t head_size; /* 0: the width by the heads */
    int64_t length;
    int64_t sequences;                /* of an example */
    int64_t feed_forward, vocabulary; /* 0: none */
} figure_model;

typedef enum figure_quantity {
    FIGURE_OF_PANEL,
    FIGURE_INFERENCE, /* operations of a forward pass */
    FIGURE_TRAINING,  /* of a forward and a backward pass */
    FIGURE_PARAMETERS,
    FIGURE_ALL_PARAMETERS,   /* with the embedding */
    FIGURE_INFERENCE_MEMORY, /* bytes, f32: all parameters, and the arrays of one layer */
    FIGURE_TRAINING_MEMORY,  /* all parameters and their gradients, the arrays of all layers, and gradients of one's */
    FIGURE_QUANTITIES
} figure_quantity;

typedef enum figure_axis { FIGURE_LENGTH, FIGURE_WIDTH, FIGURE_HEADS, FIGURE_COMPONENTS, FIGURE_AXES } figure_axis;

typedef struct figure_curve {
    const char *label;
    clmgk_variant variant;
    int64_t share;      /* it has 1 / share of the heads that it is compared with */
    int64_t components; /* 0: none; of an axis FIGURE_COMPONENTS its values */
    int64_t width;      /* 0: the axis', or the model's */
    figure_quantity quantity;
    bool given_prior; /* not a parameter */
} figure_curve;

/* Points that can be measured, of curves of this width; high 0: none. */
typedef struct figure_range {
    int64_t width, low, high;
} figure_range;

typedef struct figure_panel {
    const char *title;
    figure_quantity quantity;
    figure_axis axis;
    const figure_model *model;
    int64_t batch;
    bool ratio;             /* to the baseline */
    clmgk_variant baseline; /* with all heads */
    const int64_t *at;
    size_t at_count;
    const figure_curve *curves;
    size_t curve_count;
    figure_range measured;
} figure_panel;

typedef struct figure {
    const char *name, *title;
    size_t columns; /* of panels */
    const figure_panel *panels;
    size_t panel_count;
} figure;

extern const figure bench_figures[];
extern const size_t bench_figure_count;

const char *figure_quantity_name(figure_quantity quantity);
const char *figure_axis_name(figure_axis axis);

/* One attention of a model. */
typedef struct figure_setting {
    const figure_model *model;
    clmgk_variant variant;
    int64_t heads, components, width, head_size, length, batch;
    bool given_prior;
} figure_setting;

/* A point of a curve, and the baseline at the same place. */
typedef struct figure_point {
    const figure_panel *panel;
    const figure_curve *curve;
    figure_quantity quantity;
    int64_t at;
    figure_setting own, baseline;
    double value, baseline_value;
    bool measurable;
    double measured, baseline_measured; /* milliseconds, of memory bytes; 0: not measured */
} figure_point;

/* What the point is drawn at. */
double figure_drawn(const figure_point *point);
/* The same as measured; 0: it was not. */
double figure_drawn_measured(const figure_point *point);

/* Counts point number `at` of a curve. */
tool_exit figure_count_point(const figure_panel *panel, const figure_curve *curve, size_t at, figure_point *point,
                             tool_error *error);

/* Numbers of the papers' text and tables beside ours. */
typedef struct figure_claim {
    const char *where, *what, *unit;
    double printed;
    bool at_least; /* "more than" the printed number */
    double counted;
} figure_claim;

#define FIGURE_CLAIMS 4

tool_exit figure_count_claims(figure_claim claims[FIGURE_CLAIMS], tool_error *error);

#endif
