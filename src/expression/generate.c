/* SPDX-License-Identifier: Apache-2.0 */
/* OpenCL C of an expression: a variable for each operation, in the canonical order. Nothing depends on the locale. */
#include "expression/expression.h"

#include <string.h>

/* The codes of an operation: of floats, of ints, of ranges of ints, of ranges of floats. */
static const char *const codes[][4] = {
#define OPERATION_CODES(name, count, floats, ints, ranges, float_ranges) {floats, ints, ranges, float_ranges},
    MGK_OPERATION_LIST(OPERATION_CODES)
#undef OPERATION_CODES
};

static const char *const name_codes[][2] = {
#define NAME_CODE(name, text, code, range, type) {code, range},
    MGK_NAME_LIST(NAME_CODE)
#undef NAME_CODE
};

static unsigned bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static void print_constant(mgk_text *text, const mgk_node *node)
{
    if (node->type == MGK_FLOAT)
        mgk_text_printf(text, "mod_const(as_float(0x%08xu))", bits_of((float)node->value));
    else
        mgk_text_printf(text, "mod_const_int(%d)", node->type == MGK_BOOL ? -(int)node->value : (int)node->value);
}

/* A node as an argument. */
static void print_operand(mgk_text *text, const mgk_node *nodes, int32_t n)
{
    const mgk_node *const node = &nodes[n];
    if (node->operation == MGK_CONSTANT)
        print_constant(text, node);
    else if (node->operation == MGK_NAME)
        mgk_text_printf(text, "%s", name_codes[node->slot][0]);
    else if (node->operation == MGK_NUMBER)
        mgk_text_printf(text, "mod_number(data, %u)", (unsigned)node->slot);
    else
        mgk_text_printf(text, "t%d", (int)n);
}

/* The place of a read's element: a call of this function for each index. */
static void print_place(mgk_text *text, const char *function, const mgk_node *nodes, const mgk_node *read)
{
    for (int a = read->count - 1; a >= 0; --a) {
        mgk_text_printf(text, "%s(data.captures + %u, %d, ", function, (unsigned)read->slot, a);
        print_operand(text, nodes, read->arguments[a]);
        mgk_text_printf(text, ", ");
    }
    mgk_text_printf(text, "mod_begin()");
    for (int a = 0; a < read->count; ++a)
        mgk_text_printf(text, ")");
}

/* Vectors are of pairs that differ by i or j. */
static void print_read(mgk_text *text, const mgk_node *nodes, const mgk_node *node)
{
    const unsigned slot = (unsigned)node->slot;
    const uint32_t varying = MGK_ON(SCORE) | MGK_ON(ROW) | MGK_ON(KEY) | MGK_ON_DIFFERENCE;
    mgk_text_printf(text, "mod_%s_%u(data.c%u, ", (node->depends & varying) == 0 ? "read" : "gather", slot, slot);
    print_place(text, "mod_at", nodes, node);
    mgk_text_printf(text, ")");
}

/* A code, with the arguments as `print` writes them. */
static void print_code(mgk_text *text, const char *code, const mgk_node *nodes, const mgk_node *node,
                       void (*print)(mgk_text *, const mgk_node *, int32_t))
{
    while (*code != '\0') {
        const size_t plain = strcspn(code, "%");
        mgk_text_append(text, code, plain);
        code += plain;
        if (*code == '%') {
            print(text, nodes, node->arguments[code[1] - '0']);
            code += 2;
        }
    }
}

/* tanh(x / c) of a c that all pairs share. Its quotient is a product, as in a soft-cap: tanh hides the rounding. */
static const mgk_node *capped_quotient(const mgk_node *nodes, const mgk_node *node)
{
    const mgk_node *const quotient = node->operation == MGK_TANH ? &nodes[node->arguments[0]] : NULL;
    if (quotient == NULL || quotient->operation != MGK_DIVIDE || quotient->from != MGK_FLOAT)
        return NULL;
    const int divisor = nodes[quotient->arguments[1]].operation;
    return divisor == MGK_CONSTANT || divisor == MGK_NUMBER ? quotient : NULL;
}

static void print_operation(mgk_text *text, const mgk_node *nodes, const mgk_node *node)
{
    const mgk_node *const quotient = capped_quotient(nodes, node);
    if (quotient != NULL)
        print_code(text, "mod_tanh(%0 * (mod_const(1.0f) / %1))", nodes, quotient, print_operand);
    else
        print_code(text, codes[node->operation][node->from != MGK_FLOAT], nodes, node, print_operand);
}

static const char *type_code(mgk_type type)
{
    return type == MGK_FLOAT ? "mod_float" : "mod_int";
}

/* A variable for each operation before node `end`. */
static void print_variables(mgk_text *text, const mgk_node *nodes, int32_t end)
{
    for (int32_t n = 0; n < end; ++n) {
        const mgk_node *const node = &nodes[n];
        if (node->operation < MGK_READ)
            continue;
        mgk_text_printf(text, "    const %s t%d = ", type_code((mgk_type)node->type), (int)n);
        if (node->operation == MGK_READ)
            print_read(text, nodes, node);
        else
            print_operation(text, nodes, node);
        mgk_text_printf(text, ";\n");
    }
}

void mgk_print_place(mgk_text *text, const char *name, const mgk_expression *expression)
{
    const mgk_node *const nodes = expression->nodes;
    const int32_t last = (int32_t)expression->count - 1;
    const mgk_node *const read = &nodes[last];
    mgk_text_printf(text,
                    "FUNCTION mod_place %s(const mod_float s, const struct mod_pair pair, const struct mod_data data)\n"
                    "{\n",
                    name);
    print_variables(text, nodes, last);
    mgk_text_printf(text, "    return ");
    print_place(text, "mod_dense", nodes, read);
    mgk_text_printf(text, ";\n}\n");
}

void mgk_print_function(mgk_text *text, const char *name, bool score, const mgk_expression *expression,
                        const char *otherwise)
{
    const mgk_node *const nodes = expression ? expression->nodes : NULL;
    const int32_t last = expression ? (int32_t)expression->count - 1 : 0;
    const mgk_type type = nodes ? (mgk_type)nodes[last].type : score ? MGK_FLOAT : MGK_BOOL;
    const bool shared = !score && nodes && (nodes[last].depends & MGK_ON_DATA) != 0; /* reads are long */
    mgk_text_printf(text, "%sFUNCTION %s %s(%sconst struct mod_pair pair, const struct mod_data data)\n{\n",
                    shared ? "SHARED_" : "", type_code(type), name, score ? "const mod_float s, " : "");
    if (nodes)
        print_variables(text, nodes, last + 1);
    mgk_text_printf(text, "    return ");
    if (nodes)
        print_operand(text, nodes, last);
    else
        mgk_text_printf(text, "%s", otherwise);
    mgk_text_printf(text, ";\n}\n");
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

static const char *range_code(const mgk_node *node)
{
    return codes[node->operation][node->from == MGK_FLOAT ? 3 : 2];
}

static void print_unknown(mgk_text *text, const mgk_node *node)
{
    mgk_text_printf(text, node->type == MGK_FLOAT  ? "floats_any()"
                          : node->type == MGK_BOOL ? "range_either()"
                                                   : "range_any()");
}

/* A node's range as an argument. */
static void print_range(mgk_text *text, const mgk_node *nodes, int32_t n)
{
    const mgk_node *const node = &nodes[n];
    if (node->operation == MGK_CONSTANT && node->type == MGK_FLOAT)
        mgk_text_printf(text, "floats_at(as_float(0x%08xu))", bits_of((float)node->value));
    else if (node->operation == MGK_CONSTANT)
        mgk_text_printf(text, "range_of(%d, %d)", (int)node->value, (int)node->value);
    else if (node->operation == MGK_NUMBER)
        mgk_text_printf(text, "floats_at(data.numbers[%u])", (unsigned)node->slot);
    else if (node->operation == MGK_NAME)
        mgk_text_printf(text, "%s", name_codes[node->slot][1]);
    else
        mgk_text_printf(text, "t%d", (int)n);
}

static void print_read_range(mgk_text *text, const mgk_node *nodes, const mgk_node *node)
{
    const unsigned slot = (unsigned)node->slot;
    mgk_text_printf(text, "read_range_%u(&data.captures[%u], data.c%u, most, %d", slot, slot, slot, node->count);
    for (int a = 0; a < MGK_READ_AXES; ++a) {
        mgk_text_printf(text, ", ");
        if (a < node->count)
            print_range(text, nodes, node->arguments[a]);
        else
            mgk_text_printf(text, "range_of(0, 0)");
    }
    mgk_text_printf(text, ")");
}

void mgk_print_ranges(mgk_text *text, const char *name, bool reads, const mgk_expression *mask)
{
    const mgk_node *const nodes = mask ? mask->nodes : NULL;
    const int32_t count = mask ? (int32_t)mask->count : 0;
    mgk_text_printf(text, "FUNCTION mod_range %s(const struct mod_tile tile, const struct mod_data data%s)\n{\n", name,
                    reads ? ", const mgk_i64 most" : "");
    for (int32_t n = 0; n < count; ++n) {
        const mgk_node *const node = &nodes[n];
        if (node->operation < MGK_READ)
            continue;
        mgk_text_printf(text, "    const %s t%d = ", node->type == MGK_FLOAT ? "mod_float_range" : "mod_range", (int)n);
        if (node->operation == MGK_READ && reads)
            print_read_range(text, nodes, node);
        else if (node->operation == MGK_READ || range_code(node)[0] == '\0')
            print_unknown(text, node);
        else
            print_code(text, range_code(node), nodes, node, print_range);
        mgk_text_printf(text, ";\n");
    }
    mgk_text_printf(text, "    return ");
    if (nodes)
        print_range(text, nodes, count - 1);
    else
        mgk_text_printf(text, "range_of(1, 1)");
    mgk_text_printf(text, ";\n}\n");
}
