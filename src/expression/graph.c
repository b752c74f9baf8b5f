/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: every node once, constants folded, commutative arguments in one order; copies of a node and its arguments. */
#include "expression/expression.h"

#include <math.h>
#include <string.h>

void mgk_graph_free(mgk_graph *graph)
{
    mgk_free(graph->allocator, graph->nodes);
    mgk_free(graph->allocator, graph->table);
    *graph = (mgk_graph){.allocator = graph->allocator};
}

clmgk_status mgk_graph_status(const mgk_graph *graph, clmgk_error *error)
{
    if (graph->failed)
        return mgk_fail_memory(error, "an expression");
    if (graph->full)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "the expression and its derivatives have more than %d operations", MGK_GRAPH_NODES);
    return CLMGK_OK;
}

/* ---- every node once --------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static uint64_t hash_node(const mgk_graph *graph, const mgk_node *node)
{
    uint64_t bits;
    memcpy(&bits, &node->value, sizeof(bits));
    uint64_t hash = mix(bits, node->operation | (uint64_t)node->type << 8 | (uint64_t)node->from << 16 |
                                  (uint64_t)node->slot << 32);
    for (int a = 0; a < node->count; ++a)
        hash = mix(hash, graph->nodes[node->arguments[a]].hash);
    return hash;
}

static bool same_node(const mgk_node *a, const mgk_node *b)
{
    return a->hash == b->hash && a->operation == b->operation && a->type == b->type && a->from == b->from &&
           a->slot == b->slot && a->count == b->count &&
           (a->value == b->value || (isnan(a->value) && isnan(b->value))) &&
           memcmp(a->arguments, b->arguments, sizeof(a->arguments)) == 0;
}

/* The slot of the table that has the node, or the empty one where it belongs. */
static size_t find_slot(const mgk_graph *graph, const mgk_node *node)
{
    size_t slot = (size_t)node->hash & (graph->slots - 1);
    while (graph->table[slot] != MGK_NONE && !same_node(&graph->nodes[graph->table[slot]], node))
        slot = (slot + 1) & (graph->slots - 1);
    return slot;
}

static bool enlarge_table(mgk_graph *graph)
{
    const size_t slots = graph->slots ? 2 * graph->slots : 256;
    int32_t *const table = mgk_alloc(graph->allocator, slots, sizeof(*table));
    if (!table)
        return false;
    mgk_free(graph->allocator, graph->table);
    graph->table = table;
    graph->slots = slots;
    memset(table, 0xff, slots * sizeof(*table));
    for (size_t n = 0; n < graph->count; ++n)
        table[find_slot(graph, &graph->nodes[n])] = (int32_t)n;
    return true;
}

/* The bits of names that come through arguments; i - j counts as the difference. */
static uint32_t dependence(const mgk_graph *graph, const mgk_node *node)
{
    if (node->operation == MGK_NAME)
        return 1u << node->slot;
    uint32_t depends = node->operation == MGK_READ ? MGK_ON_DATA : 0;
    for (int a = 0; a < node->count; ++a)
        depends |= graph->nodes[node->arguments[a]].depends;
    const bool plain = node->operation == MGK_SUBTRACT && graph->nodes[node->arguments[0]].operation == MGK_NAME &&
                       graph->nodes[node->arguments[1]].operation == MGK_NAME;
    return plain && depends == (MGK_ON(ROW) | MGK_ON(KEY)) ? MGK_ON_DIFFERENCE : depends;
}

static int32_t add_node(mgk_graph *graph, mgk_node node)
{
    if (graph->failed || graph->full)
        return 0;
    node.hash = hash_node(graph, &node);
    node.depends = dependence(graph, &node);
    if (2 * graph->count >= graph->slots && !enlarge_table(graph)) {
        graph->failed = true;
        return 0;
    }
    const size_t slot = find_slot(graph, &node);
    if (graph->table[slot] != MGK_NONE)
        return graph->table[slot];
    graph->full = graph->count >= MGK_GRAPH_NODES;
    graph->failed = !graph->full &&
                    !mgk_grow(graph->allocator, (void **)&graph->nodes, &graph->capacity, graph->count, sizeof(node));
    if (graph->failed || graph->full)
        return 0;
    graph->nodes[graph->count] = node;
    graph->table[slot] = (int32_t)graph->count;
    return (int32_t)graph->count++;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

int32_t mgk_make_constant(mgk_graph *graph, mgk_type type, double value)
{
    const mgk_node node = {.operation = MGK_CONSTANT,
                           .type = (uint8_t)type,
                           .value = type == MGK_FLOAT ? (isnan(value) ? (double)NAN : (double)(float)value) : value};
    return add_node(graph, node);
}

int32_t mgk_make_leaf(mgk_graph *graph, mgk_operation operation, mgk_type type, uint32_t slot)
{
    return add_node(graph, (mgk_node){.operation = (uint8_t)operation, .type = (uint8_t)type, .slot = slot});
}

int32_t mgk_make_read(mgk_graph *graph, mgk_type type, uint32_t capture, const int32_t *indices, int axes)
{
    mgk_node node = {
        .operation = MGK_READ, .type = (uint8_t)type, .from = MGK_INT, .count = (uint8_t)axes, .slot = capture};
    memcpy(node.arguments, indices, (size_t)axes * sizeof(*indices));
    return add_node(graph, node);
}

static mgk_type result_type(mgk_operation operation, mgk_type from)
{
    switch (operation) {
    case MGK_LESS:
    case MGK_LESS_EQUAL:
    case MGK_EQUAL:
        return MGK_BOOL;
    case MGK_TO_INT:
        return MGK_INT;
    case MGK_TO_FLOAT:
        return MGK_FLOAT;
    default:
        return from;
    }
}

/* The operation of constants; of others a node. */
static int32_t make_operation(mgk_graph *graph, mgk_node node)
{
    if (graph->failed || graph->full)
        return 0;
    node.from = graph->nodes[node.arguments[node.count - 1]].type;
    node.type = (uint8_t)result_type((mgk_operation)node.operation, (mgk_type)node.from);
    double values[MGK_READ_AXES] = {0};
    bool constant = node.operation <= MGK_FOLDED;
    for (int a = 0; a < node.count; ++a) {
        constant = constant && graph->nodes[node.arguments[a]].operation == MGK_CONSTANT;
        values[a] = graph->nodes[node.arguments[a]].value;
    }
    if (constant)
        return mgk_make_constant(graph, (mgk_type)node.type, mgk_apply(&node, values));
    return add_node(graph, node);
}

int32_t mgk_make_unary(mgk_graph *graph, mgk_operation operation, int32_t a)
{
    if (!graph->failed && !graph->full && (operation == MGK_NOT || operation == MGK_NEGATE) &&
        graph->nodes[a].operation == operation)
        return graph->nodes[a].arguments[0];
    return make_operation(graph, (mgk_node){.operation = (uint8_t)operation, .count = 1, .arguments = {a}});
}

static bool is_constant(const mgk_graph *graph, int32_t node, double value)
{
    return graph->nodes[node].operation == MGK_CONSTANT && graph->nodes[node].value == value;
}

/* x * 1, x / 1, x && true, x || false, x && x, and their kin; MGK_NONE for others. */
static int32_t simpler(mgk_graph *graph, mgk_operation operation, int32_t a, int32_t b)
{
    const bool product = operation == MGK_MULTIPLY || operation == MGK_AND;
    if (((product || operation == MGK_DIVIDE) && is_constant(graph, b, 1)) ||
        (operation == MGK_OR && is_constant(graph, b, 0)))
        return a;
    if ((product && is_constant(graph, a, 1)) || (operation == MGK_OR && is_constant(graph, a, 0)))
        return b;
    if (operation != MGK_AND && operation != MGK_OR)
        return MGK_NONE;
    const double absorbing = operation == MGK_OR;
    if (a == b || is_constant(graph, a, absorbing))
        return a;
    return is_constant(graph, b, absorbing) ? b : MGK_NONE;
}

int32_t mgk_make_binary(mgk_graph *graph, mgk_operation operation, int32_t a, int32_t b)
{
    if (graph->failed || graph->full)
        return 0;
    const int32_t found = simpler(graph, operation, a, b);
    if (found != MGK_NONE)
        return found;
    const bool commutes = operation == MGK_ADD || operation == MGK_MULTIPLY || operation == MGK_EQUAL;
    const bool swap = commutes && graph->nodes[a].hash > graph->nodes[b].hash;
    return make_operation(
        graph, (mgk_node){.operation = (uint8_t)operation, .count = 2, .arguments = {swap ? b : a, swap ? a : b}});
}

int32_t mgk_make_select(mgk_graph *graph, int32_t condition, int32_t a, int32_t b)
{
    if (graph->failed || graph->full)
        return 0;
    const mgk_node *const test = &graph->nodes[condition];
    if (test->operation == MGK_CONSTANT)
        return test->value != 0 ? a : b;
    if (a == b)
        return a;
    if (test->operation == MGK_NOT)
        return mgk_make_select(graph, test->arguments[0], b, a);
    return make_operation(graph, (mgk_node){.operation = MGK_SELECT, .count = 3, .arguments = {condition, a, b}});
}

int32_t mgk_make_conversion(mgk_graph *graph, mgk_type type, int32_t a)
{
    if (graph->failed || graph->full || graph->nodes[a].type == type)
        return a;
    const mgk_type from = (mgk_type)graph->nodes[a].type;
    if (type == MGK_BOOL) {
        const int32_t zero = mgk_make_constant(graph, from, 0);
        return mgk_make_unary(graph, MGK_NOT, mgk_make_binary(graph, MGK_EQUAL, a, zero));
    }
    if (type == MGK_INT)
        return mgk_make_unary(graph, MGK_TO_INT, a);
    return mgk_make_unary(graph, MGK_TO_FLOAT, from == MGK_BOOL ? mgk_make_unary(graph, MGK_TO_INT, a) : a);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Appends `root` after its arguments, depth first; `place` has the new numbers, MGK_NONE for nodes not yet copied. */
static void copy_nodes(const mgk_graph *graph, int32_t root, int32_t *stack, int32_t *place, mgk_expression *copy)
{
    size_t depth = 0;
    stack[depth++] = root;
    while (depth > 0) {
        const mgk_node *const node = &graph->nodes[stack[depth - 1]];
        int next = 0;
        while (next < node->count && place[node->arguments[next]] != MGK_NONE)
            ++next;
        if (next < node->count) {
            stack[depth++] = node->arguments[next];
            continue;
        }
        const int32_t done = stack[--depth];
        place[done] = (int32_t)copy->count;
        mgk_node *const target = &copy->nodes[copy->count++];
        *target = *node;
        for (int a = 0; a < node->count; ++a)
            target->arguments[a] = place[node->arguments[a]];
    }
}

mgk_expression *mgk_extract(const mgk_graph *graph, int32_t root)
{
    const size_t most = (size_t)root + 1;
    mgk_expression *copy = mgk_alloc(graph->allocator, 1, sizeof(mgk_expression) + most * sizeof(mgk_node));
    int32_t *const memory = mgk_alloc(graph->allocator, 2 * most, sizeof(int32_t));
    if (copy && memory) {
        memset(memory, 0xff, 2 * most * sizeof(int32_t));
        copy_nodes(graph, root, memory, memory + most, copy);
    } else {
        mgk_free(graph->allocator, copy);
        copy = NULL;
    }
    mgk_free(graph->allocator, memory);
    return copy;
}
