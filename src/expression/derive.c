/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives, node by node from the one that is derived by to the root. MGK_NONE stands for 0. */
#include "expression/expression.h"

#include <string.h>

static int32_t real(mgk_graph *graph, double value)
{
    return mgk_make_constant(graph, MGK_FLOAT, value);
}

static int32_t or_zero(mgk_graph *graph, int32_t d)
{
    return d == MGK_NONE ? real(graph, 0) : d;
}

/* d times a factor, d plus another, minus d. */
static int32_t scaled(mgk_graph *graph, int32_t d, int32_t factor)
{
    return d == MGK_NONE ? MGK_NONE : mgk_make_binary(graph, MGK_MULTIPLY, d, factor);
}

static int32_t sum(mgk_graph *graph, int32_t d, int32_t other)
{
    return d == MGK_NONE ? other : other == MGK_NONE ? d : mgk_make_binary(graph, MGK_ADD, d, other);
}

static int32_t negated(mgk_graph *graph, int32_t d)
{
    return d == MGK_NONE ? MGK_NONE : mgk_make_unary(graph, MGK_NEGATE, d);
}

/* The branches' derivatives by a condition. */
static int32_t choice(mgk_graph *graph, int32_t condition, int32_t da, int32_t db)
{
    return da == db ? da : mgk_make_select(graph, condition, or_zero(graph, da), or_zero(graph, db));
}

static int32_t square(mgk_graph *graph, int32_t x)
{
    return mgk_make_binary(graph, MGK_MULTIPLY, x, x);
}

/* One over 1 + x, and one minus x. */
static int32_t quotient(mgk_graph *graph, int32_t d, int32_t x)
{
    return d == MGK_NONE ? MGK_NONE : mgk_make_binary(graph, MGK_DIVIDE, d, x);
}

static int32_t one_minus(mgk_graph *graph, int32_t x)
{
    return mgk_make_binary(graph, MGK_SUBTRACT, real(graph, 1), x);
}

/* dy/dx of a function of one argument. */
static int32_t slope(mgk_graph *graph, mgk_operation operation, int32_t x, int32_t y)
{
    switch (operation) {
    case MGK_EXP:
        return y;
    case MGK_LOG:
        return quotient(graph, real(graph, 1), x);
    case MGK_LOG1P:
        return quotient(graph, real(graph, 1), sum(graph, real(graph, 1), x));
    case MGK_SQRT:
        return quotient(graph, real(graph, 0.5), y);
    case MGK_RSQRT:
        return scaled(graph, quotient(graph, y, x), real(graph, -0.5));
    case MGK_TANH:
        return one_minus(graph, square(graph, y));
    case MGK_SIN:
        return mgk_make_unary(graph, MGK_COS, x);
    case MGK_COS:
        return negated(graph, mgk_make_unary(graph, MGK_SIN, x));
    case MGK_ERF:
        return scaled(graph, mgk_make_unary(graph, MGK_EXP, negated(graph, square(graph, x))),
                      real(graph, 1.12837916709551257390));
    default: /* MGK_SIGMOID */
        return scaled(graph, y, one_minus(graph, y));
    }
}

static int32_t derive_abs(mgk_graph *graph, int32_t x, int32_t dx)
{
    const int32_t zero = real(graph, 0);
    const int32_t rising = mgk_make_binary(graph, MGK_LESS, zero, x);
    const int32_t falling = mgk_make_binary(graph, MGK_LESS, x, zero);
    return choice(graph, falling, negated(graph, dx), choice(graph, rising, dx, MGK_NONE));
}

static int32_t derive_pow(mgk_graph *graph, const int32_t *x, int32_t y, int32_t da, int32_t db)
{
    const int32_t less = mgk_make_binary(graph, MGK_SUBTRACT, x[1], real(graph, 1));
    const int32_t by_base =
        da == MGK_NONE ? MGK_NONE : scaled(graph, scaled(graph, da, x[1]), mgk_make_binary(graph, MGK_POW, x[0], less));
    if (db == MGK_NONE)
        return by_base;
    const int32_t by_exponent = scaled(graph, scaled(graph, db, y), mgk_make_unary(graph, MGK_LOG, x[0]));
    const int32_t zero = mgk_make_binary(graph, MGK_EQUAL, y, real(graph, 0));
    return sum(graph, by_base, choice(graph, zero, MGK_NONE, by_exponent));
}

/* The derivative of node y, whose arguments x have the derivatives da, db, dc. */
static int32_t derive_node(mgk_graph *graph, mgk_operation operation, const int32_t *x, int32_t y, const int32_t *d)
{
    switch (operation) {
    case MGK_ADD:
        return sum(graph, d[0], d[1]);
    case MGK_SUBTRACT:
        return sum(graph, d[0], negated(graph, d[1]));
    case MGK_MULTIPLY:
        return sum(graph, scaled(graph, d[0], x[1]), scaled(graph, d[1], x[0]));
    case MGK_DIVIDE:
        return quotient(graph, sum(graph, d[0], negated(graph, scaled(graph, d[1], y))), x[1]);
    case MGK_NEGATE:
        return negated(graph, d[0]);
    case MGK_SELECT:
        return choice(graph, x[0], d[1], d[2]);
    case MGK_MIN:
        return choice(graph, mgk_make_binary(graph, MGK_LESS, x[1], x[0]), d[1], d[0]);
    case MGK_MAX:
        return choice(graph, mgk_make_binary(graph, MGK_LESS, x[0], x[1]), d[1], d[0]);
    case MGK_ABS:
        return derive_abs(graph, x[0], d[0]);
    case MGK_POW:
        return derive_pow(graph, x, y, d[0], d[1]);
    case MGK_FLOOR:
        return MGK_NONE;
    default:
        return scaled(graph, d[0], slope(graph, operation, x[0], y));
    }
}

int32_t mgk_derive(mgk_graph *graph, int32_t root, int32_t by)
{
    int32_t *const derivatives = mgk_alloc(graph->allocator, (size_t)root + 1, sizeof(*derivatives));
    graph->failed = graph->failed || !derivatives;
    for (int32_t n = 0; n <= root && !graph->failed && !graph->full; ++n) {
        const mgk_node node = graph->nodes[n];
        int32_t d[MGK_READ_AXES] = {MGK_NONE, MGK_NONE, MGK_NONE, MGK_NONE};
        bool zero = true;
        for (int a = 0; a < node.count && node.operation != MGK_READ && node.type == MGK_FLOAT; ++a) {
            d[a] = derivatives[node.arguments[a]];
            zero = zero && d[a] == MGK_NONE;
        }
        derivatives[n] = n == by ? real(graph, 1)
                         : zero  ? MGK_NONE
                                 : derive_node(graph, (mgk_operation)node.operation, node.arguments, n, d);
    }
    const int32_t derivative = graph->failed || graph->full ? 0 : derivatives[root];
    mgk_free(graph->allocator, derivatives);
    return derivative;
}
