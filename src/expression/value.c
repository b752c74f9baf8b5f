/* SPDX-License-Identifier: Apache-2.0 */
/* Values in double precision. Ints wrap; a divisor of 0 gives 0; a float to int saturates. */
#include "expression/expression.h"

#include <math.h>

static double wrap(uint32_t x)
{
    return x <= INT32_MAX ? (double)x : (double)x - 4294967296.0;
}

static double saturate(double x)
{
    return isnan(x) ? 0 : x <= INT32_MIN ? INT32_MIN : x >= INT32_MAX ? INT32_MAX : trunc(x);
}

static double apply_int(mgk_operation operation, const double *x)
{
    const int64_t a = (int64_t)x[0], b = (int64_t)x[1];
    switch (operation) {
    case MGK_ADD:
        return wrap((uint32_t)(a + b));
    case MGK_SUBTRACT:
        return wrap((uint32_t)(a - b));
    case MGK_MULTIPLY:
        return wrap((uint32_t)(a * b));
    case MGK_DIVIDE:
        return b == 0 ? 0 : wrap((uint32_t)(a / b));
    case MGK_REMAINDER:
        return b == 0 ? 0 : (double)(a % b);
    case MGK_NEGATE:
        return wrap((uint32_t)-a);
    default: /* MGK_ABS */
        return wrap((uint32_t)(a < 0 ? -a : a));
    }
}

static double apply_float(mgk_operation operation, const double *x)
{
    switch (operation) {
    case MGK_ADD:
        return x[0] + x[1];
    case MGK_SUBTRACT:
        return x[0] - x[1];
    case MGK_MULTIPLY:
        return x[0] * x[1];
    case MGK_DIVIDE:
        return x[0] / x[1];
    case MGK_NEGATE:
        return -x[0];
    case MGK_ABS:
        return fabs(x[0]);
    case MGK_FLOOR:
        return floor(x[0]);
    case MGK_EXP:
        return exp(x[0]);
    case MGK_LOG:
        return log(x[0]);
    case MGK_LOG1P:
        return log1p(x[0]);
    case MGK_SQRT:
        return sqrt(x[0]);
    case MGK_RSQRT:
        return 1 / sqrt(x[0]);
    case MGK_TANH:
        return tanh(x[0]);
    case MGK_SIN:
        return sin(x[0]);
    case MGK_COS:
        return cos(x[0]);
    case MGK_POW:
        return pow(x[0], x[1]);
    case MGK_ERF:
        return erf(x[0]);
    default: /* MGK_SIGMOID */
        return 1 / (1 + exp(-x[0]));
    }
}

double mgk_apply(const mgk_node *node, const double *x)
{
    const mgk_operation operation = (mgk_operation)node->operation;
    switch (operation) {
    case MGK_LESS:
        return x[0] < x[1];
    case MGK_LESS_EQUAL:
        return x[0] <= x[1];
    case MGK_EQUAL:
        return x[0] == x[1];
    case MGK_AND:
        return x[0] != 0 && x[1] != 0;
    case MGK_OR:
        return x[0] != 0 || x[1] != 0;
    case MGK_NOT:
        return x[0] == 0;
    case MGK_SELECT:
        return x[0] != 0 ? x[1] : x[2];
    case MGK_TO_INT:
        return saturate(x[0]);
    case MGK_TO_FLOAT:
        return (double)(float)x[0];
    case MGK_MIN:
        return x[1] < x[0] ? x[1] : x[0];
    case MGK_MAX:
        return x[0] < x[1] ? x[1] : x[0];
    default:
        return node->from == MGK_FLOAT ? apply_float(operation, x) : apply_int(operation, x);
    }
}

static double clamp_index(double index, int64_t extent)
{
    return index < 0 ? 0 : index >= (double)extent ? (double)(extent - 1) : index;
}

int64_t mgk_element(const mgk_node *read, const mgk_values *array, const double *values)
{
    int64_t element = 0;
    for (int a = 0; a < read->count; ++a)
        element += (int64_t)clamp_index(values[read->arguments[a]], array->extents[a]) * array->strides[a];
    return element;
}

static double evaluate_node(const mgk_node *node, const mgk_inputs *inputs, const double *values)
{
    switch (node->operation) {
    case MGK_CONSTANT:
        return node->value;
    case MGK_NAME:
        return inputs->names[node->slot];
    case MGK_NUMBER:
        return inputs->numbers[node->slot];
    case MGK_READ:
        return inputs->captures[node->slot].data[mgk_element(node, &inputs->captures[node->slot], values)];
    default:
        break;
    }
    double x[MGK_READ_AXES] = {0};
    for (int a = 0; a < node->count; ++a)
        x[a] = values[node->arguments[a]];
    return mgk_apply(node, x);
}

double mgk_evaluate(const mgk_expression *expression, const mgk_inputs *inputs, double *values)
{
    for (size_t n = 0; n < expression->count; ++n)
        values[n] = evaluate_node(&expression->nodes[n], inputs, values);
    return values[expression->count - 1];
}

double mgk_evaluate_single(const mgk_expression *expression, const mgk_inputs *inputs, double *values)
{
    for (size_t n = 0; n < expression->count; ++n) {
        values[n] = evaluate_node(&expression->nodes[n], inputs, values);
        if (expression->nodes[n].type == MGK_FLOAT)
            values[n] = (double)(float)values[n];
    }
    return values[expression->count - 1];
}

/* Whether C would evaluate argument `a`. */
static bool needs_argument(const mgk_node *node, const double *values, int a)
{
    const double first = values[node->arguments[0]];
    switch (node->operation) {
    case MGK_SELECT:
        return a == 0 || a == (first != 0 ? 1 : 2);
    case MGK_AND:
        return a == 0 || first != 0;
    case MGK_OR:
        return a == 0 || first == 0;
    default:
        return true;
    }
}

size_t mgk_reads_outside(const mgk_expression *expression, const mgk_inputs *inputs, const double *values, bool *needed)
{
    size_t outside = 0;
    for (size_t n = 0; n < expression->count; ++n)
        needed[n] = n == expression->count - 1;
    for (size_t n = expression->count; n-- > 0;) {
        const mgk_node *const node = &expression->nodes[n];
        bool inside = true;
        for (int a = 0; needed[n] && a < node->count; ++a) {
            const double index = values[node->arguments[a]];
            if (needs_argument(node, values, a))
                needed[node->arguments[a]] = true;
            if (node->operation == MGK_READ)
                inside = inside && index == clamp_index(index, inputs->captures[node->slot].extents[a]);
        }
        outside += !inside;
    }
    return outside;
}
