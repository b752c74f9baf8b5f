/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of values. Those of ints are exact bounds (cl/attention/ranges.clh); those of floats grow with each operation
 * by more than any rounding that OpenCL allows, and are everything where a function is not monotone or may be NaN.
 */
#include "expression/expression.h"

#define FUNCTION static inline
#include "attention/ranges.clh"

#include <float.h>
#include <math.h>

static const mgk_range everything = {-INFINITY, INFINITY, true};
static const mgk_range either = {0, 1, false};

static mgk_range decided(bool value)
{
    return (mgk_range){value, value, false};
}

static mgk_range join(mgk_range a, mgk_range b)
{
    return (mgk_range){a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high, a.nan || b.nan};
}

/* The range of a function's values at the corners of its arguments' ranges. Where one is NaN, all may be. */
static mgk_range corners(const mgk_node *node, mgk_range a, mgk_range b)
{
    mgk_range range = {INFINITY, -INFINITY, a.nan || b.nan};
    for (int corner = 0; corner < 4; ++corner) {
        const double x[MGK_READ_AXES] = {corner & 1 ? a.high : a.low, corner & 2 ? b.high : b.low};
        const double y = mgk_apply(node, x);
        if (isnan(y))
            return everything;
        range = join(range, (mgk_range){y, y, false});
    }
    return range;
}

/* ---- ints -------------------------------------------------------------------------------------------------------- */

static mgk_range int_range(const mgk_node *node, mgk_range a, mgk_range b)
{
    const mod_range x = {(mgk_i64)a.low, (mgk_i64)a.high}, y = {(mgk_i64)b.low, (mgk_i64)b.high};
    mod_range range = range_any();
    switch (node->operation) {
    case MGK_ADD:
        range = range_add(x, y);
        break;
    case MGK_SUBTRACT:
        range = range_sub(x, y);
        break;
    case MGK_MULTIPLY:
        range = range_mul(x, y);
        break;
    case MGK_DIVIDE:
        range = range_div(x, y);
        break;
    case MGK_REMAINDER:
        range = range_mod(x, y);
        break;
    case MGK_NEGATE:
        range = range_neg(x);
        break;
    case MGK_ABS:
        range = range_abs(x);
        break;
    default:
        break;
    }
    return (mgk_range){(double)range.low, (double)range.high, false};
}

static double largest(mgk_range a)
{
    return fmax(fabs(a.low), fabs(a.high));
}

static mgk_range abs_range(mgk_range a)
{
    return (mgk_range){a.low > 0 ? a.low : a.high < 0 ? -a.high : 0, largest(a), a.nan};
}

/* ---- floats ------------------------------------------------------------------------------------------------------ */

/* Each of OpenCL's functions is right to 16 units of the last place; numbers too small for their type may become 0. */
static mgk_range rounded(mgk_range a)
{
    const double part = 0x1p-18, least = 2 * (double)FLT_MIN, large = 0.999 * (double)FLT_MAX;
    const double low = fmin(a.low - part * fabs(a.low) - least, large);
    const double high = fmax(a.high + part * fabs(a.high) + least, -large);
    return (mgk_range){a.low == INFINITY ? large
                       : low < -large    ? -INFINITY
                                         : low,
                       a.high == -INFINITY ? -large
                       : high > large      ? INFINITY
                                           : high,
                       a.nan};
}

/* A device may take a number too small for its type for 0. */
static mgk_range flushed(mgk_range a)
{
    return (mgk_range){a.low > 0 && a.low < FLT_MIN ? 0 : a.low, a.high < 0 && a.high > -FLT_MIN ? 0 : a.high, a.nan};
}

static bool has_zero(mgk_range a)
{
    return a.low <= 0 && a.high >= 0;
}

static mgk_range multiply_floats(const mgk_node *node, mgk_range a, mgk_range b)
{
    const bool undefined = (has_zero(a) && isinf(largest(b))) || (has_zero(b) && isinf(largest(a)));
    return undefined ? everything : corners(node, a, b);
}

static mgk_range divide_floats(const mgk_node *node, mgk_range a, mgk_range b)
{
    return b.low > FLT_MIN || b.high < -FLT_MIN ? corners(node, a, b) : everything;
}

/* Whether the function of one argument rises or falls, or has no value, in all of the range. */
static bool is_monotone(mgk_operation operation, mgk_range a)
{
    switch (operation) {
    case MGK_LOG:
    case MGK_SQRT:
    case MGK_RSQRT:
        return a.low >= FLT_MIN;
    case MGK_LOG1P:
        return a.low > -1;
    case MGK_SIN:
    case MGK_COS:
        return false;
    default:
        return true;
    }
}

static mgk_range float_range(const mgk_node *node, mgk_range a, mgk_range b)
{
    const mgk_operation operation = (mgk_operation)node->operation;
    switch (operation) {
    case MGK_NEGATE:
        return (mgk_range){-a.high, -a.low, a.nan};
    case MGK_ABS:
        return abs_range(a);
    case MGK_FLOOR:
        return (mgk_range){floor(a.low), floor(a.high), a.nan};
    case MGK_DIVIDE:
        return rounded(divide_floats(node, a, b));
    case MGK_POW:
        return a.low >= FLT_MIN ? rounded(corners(node, a, b)) : everything;
    case MGK_MULTIPLY:
        return rounded(multiply_floats(node, a, b));
    case MGK_ADD:
    case MGK_SUBTRACT:
        return rounded(corners(node, a, b));
    default:
        return is_monotone(operation, a) ? rounded(corners(node, a, a)) : everything;
    }
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* One of a and b; where their order is not known, and either is NaN, both are possible. */
static mgk_range extreme(const mgk_node *node, mgk_range a, mgk_range b)
{
    const mgk_range range = node->operation == MGK_MIN ? (mgk_range){fmin(a.low, b.low), fmin(a.high, b.high), false}
                                                       : (mgk_range){fmax(a.low, b.low), fmax(a.high, b.high), false};
    return a.nan || b.nan ? (mgk_range){join(a, b).low, join(a, b).high, true} : range;
}

static mgk_range compare(mgk_operation operation, mgk_range a, mgk_range b)
{
    const bool nan = a.nan || b.nan;
    if (operation == MGK_EQUAL && (a.high < b.low || b.high < a.low))
        return decided(false);
    if (operation == MGK_LESS ? a.low >= b.high : operation == MGK_LESS_EQUAL && a.low > b.high)
        return decided(false);
    const bool always = operation == MGK_LESS         ? a.high < b.low
                        : operation == MGK_LESS_EQUAL ? a.high <= b.low
                                                      : a.low == a.high && b.low == b.high && a.low == b.low;
    return always && !nan ? decided(true) : either;
}

static mgk_range to_int_range(const mgk_node *node, mgk_range a)
{
    const mgk_range range = corners(node, (mgk_range){a.low, a.high, false}, a);
    return a.nan ? join(range, decided(false)) : range;
}

static mgk_range operation_range(const mgk_node *node, const mgk_range *x)
{
    const mgk_operation operation = (mgk_operation)node->operation;
    switch (operation) {
    case MGK_LESS:
    case MGK_LESS_EQUAL:
    case MGK_EQUAL:
        return compare(operation, x[0], x[1]);
    case MGK_AND:
        return (mgk_range){fmin(x[0].low, x[1].low), fmin(x[0].high, x[1].high), false};
    case MGK_OR:
        return (mgk_range){fmax(x[0].low, x[1].low), fmax(x[0].high, x[1].high), false};
    case MGK_NOT:
        return (mgk_range){1 - x[0].high, 1 - x[0].low, false};
    case MGK_SELECT:
        return x[0].low == 1 ? x[1] : x[0].high == 0 ? x[2] : join(x[1], x[2]);
    case MGK_TO_INT:
        return to_int_range(node, x[0]);
    case MGK_TO_FLOAT:
        return corners(node, x[0], x[0]);
    case MGK_MIN:
    case MGK_MAX:
        return extreme(node, x[0], x[1]);
    default:
        return node->from == MGK_FLOAT ? float_range(node, x[0], x[1]) : int_range(node, x[0], x[1]);
    }
}

static mgk_range node_range(const mgk_node *node, const mgk_bounds *bounds, const mgk_range *ranges)
{
    mgk_range x[MGK_READ_AXES] = {{0}};
    for (int a = 0; a < node->count; ++a)
        x[a] = ranges[node->arguments[a]];
    const double value = node->operation == MGK_NUMBER ? bounds->numbers[node->slot] : node->value;
    switch (node->operation) {
    case MGK_CONSTANT:
    case MGK_NUMBER:
        return isnan(value) ? everything : flushed((mgk_range){value, value, false});
    case MGK_NAME:
        return bounds->names[node->slot];
    case MGK_READ:
        return flushed(bounds->read(bounds->user, node->slot, node->count, x));
    default:
        return operation_range(node, x);
    }
}

mgk_range mgk_evaluate_range(const mgk_expression *expression, const mgk_bounds *bounds, mgk_range *ranges)
{
    for (size_t n = 0; n < expression->count; ++n)
        ranges[n] = node_range(&expression->nodes[n], bounds, ranges);
    return ranges[expression->count - 1];
}
