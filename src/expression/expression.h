/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores and masks of a user's own, as a line of text: the parser, derivatives, values, and OpenCL C.
 *
 * A graph holds typed nodes, each once; a node's arguments come before it. Texts are parsed into a graph, which
 * simplifies what it can and adds derivatives as more nodes. An expression is a copy of the nodes that one of them
 * needs, in an order that depends on the formula alone: the canonical form. Nothing is evaluated lazily: every
 * operation has a value for all arguments, and no loop here is a recursion but the parser's, which is bounded.
 */
#ifndef MGK_EXPRESSION_H
#define MGK_EXPRESSION_H

#include "base/base.h"

/* Limits of a text. */
#define MGK_TEXT_BYTES   65536
#define MGK_TEXT_DEPTH   64
#define MGK_TEXT_LETS    256
#define MGK_TEXT_STEPS   100000 /* tokens and operations */
#define MGK_GRAPH_NODES  65536  /* with the derivatives */
#define MGK_SYMBOL_BYTES 63
#define MGK_CAPTURES     8
#define MGK_READ_AXES    4
#define MGK_NUMBERS      16

typedef enum mgk_type { MGK_BOOL, MGK_INT, MGK_FLOAT } mgk_type;

/* X(NAME, "text", "OpenCL C", "OpenCL C of its range", type): the built-in names. The first two are of score texts
 * only. */
#define MGK_NAME_LIST(X)                                                                                               \
    X(SCORE, "s", "s", "", MGK_FLOAT)                                                                                  \
    X(COMPONENT, "r", "mod_const_int(pair.r)", "", MGK_INT)                                                            \
    X(ROW, "i", "pair.i", "tile.i", MGK_INT)                                                                           \
    X(KEY, "j", "pair.j", "tile.j", MGK_INT)                                                                           \
    X(BATCH, "b", "mod_const_int(pair.b)", "tile.b", MGK_INT)                                                          \
    X(HEAD, "h", "mod_const_int(pair.h)", "tile.h", MGK_INT)                                                           \
    X(KV_HEAD, "g", "mod_const_int(pair.g)", "tile.g", MGK_INT)                                                        \
    X(QUERIES, "N", "mod_const_int(pair.queries)", "tile.queries", MGK_INT)                                            \
    X(KEYS, "S", "mod_const_int(pair.keys)", "tile.keys", MGK_INT)

typedef enum mgk_name {
#define MGK_NAME_ENUM(name, ...) MGK_NAME_##name,
    MGK_NAME_LIST(MGK_NAME_ENUM)
#undef MGK_NAME_ENUM
        MGK_NAMES
} mgk_name;

/* The names that a node depends on: a bit for each name, and these. i - j alone is neither ROW nor KEY. */
#define MGK_ON(name)      (1u << MGK_NAME_##name)
#define MGK_ON_DIFFERENCE (1u << MGK_NAMES)
#define MGK_ON_DATA       (2u << MGK_NAMES) /* an element of a captured array */

/*
 * X(NAME, arguments, "OpenCL C of floats", "OpenCL C of ints", "OpenCL C of ranges of ints", "OpenCL C of ranges of
 * floats"): the operations; %0, %1, %2 are arguments. "": such a range is not known. FOLDED marks the last one that the
 * graph computes on constants: what comes later depends on the machine's library of functions.
 */
#define MGK_OPERATION_LIST(X)                                                                                          \
    X(CONSTANT, 0, "", "", "", "")                                                                                     \
    X(NAME, 0, "", "", "", "")                                                                                         \
    X(NUMBER, 0, "", "", "", "")                                                                                       \
    X(READ, -1, "", "", "", "")                                                                                        \
    X(ADD, 2, "%0 + %1", "mod_add_int(%0, %1)", "range_add(%0, %1)", "floats_add(%0, %1)")                             \
    X(SUBTRACT, 2, "%0 - %1", "mod_sub_int(%0, %1)", "range_sub(%0, %1)", "floats_sub(%0, %1)")                        \
    X(MULTIPLY, 2, "%0 * %1", "mod_mul_int(%0, %1)", "range_mul(%0, %1)", "floats_mul(%0, %1)")                        \
    X(DIVIDE, 2, "%0 / %1", "mod_div_int(%0, %1)", "range_div(%0, %1)", "")                                            \
    X(REMAINDER, 2, "", "mod_mod_int(%0, %1)", "range_mod(%0, %1)", "")                                                \
    X(NEGATE, 1, "-%0", "mod_sub_int(mod_const_int(0), %0)", "range_neg(%0)", "floats_neg(%0)")                        \
    X(LESS, 2, "mod_less(%0, %1)", "mod_less_int(%0, %1)", "range_less(%0, %1)", "floats_less(%0, %1)")                \
    X(LESS_EQUAL, 2, "mod_less_equal(%0, %1)", "mod_less_equal_int(%0, %1)", "range_less_equal(%0, %1)",               \
      "floats_less_equal(%0, %1)")                                                                                     \
    X(EQUAL, 2, "mod_equal(%0, %1)", "mod_equal_int(%0, %1)", "range_equal(%0, %1)", "floats_equal(%0, %1)")           \
    X(AND, 2, "", "%0 & %1", "range_min(%0, %1)", "")                                                                  \
    X(OR, 2, "", "%0 | %1", "range_max(%0, %1)", "")                                                                   \
    X(NOT, 1, "", "~%0", "range_not(%0)", "")                                                                          \
    X(SELECT, 3, "mod_select(%0, %1, %2)", "mod_select_int(%0, %1, %2)", "range_select(%0, %1, %2)",                   \
      "floats_select(%0, %1, %2)")                                                                                     \
    X(TO_INT, 1, "mod_int_of(%0)", "-%0", "%0", "floats_to_int(%0)")                                                   \
    X(TO_FLOAT, 1, "", "mod_float_of(%0)", "floats_of_ints(%0)", "")                                                   \
    X(MIN, 2, "mod_min(%0, %1)", "mod_min_int(%0, %1)", "range_min(%0, %1)", "floats_min(%0, %1)")                     \
    X(MAX, 2, "mod_max(%0, %1)", "mod_max_int(%0, %1)", "range_max(%0, %1)", "floats_max(%0, %1)")                     \
    X(ABS, 1, "mod_abs(%0)", "mod_abs_int(%0)", "range_abs(%0)", "floats_abs(%0)")                                     \
    X(FLOOR, 1, "mod_floor(%0)", "", "", "floats_floor(%0)")                                                           \
    X(EXP, 1, "mod_exp(%0)", "", "", "")                                                                               \
    X(LOG, 1, "mod_log(%0)", "", "", "")                                                                               \
    X(LOG1P, 1, "mod_log1p(%0)", "", "", "")                                                                           \
    X(SQRT, 1, "mod_sqrt(%0)", "", "", "")                                                                             \
    X(RSQRT, 1, "mod_rsqrt(%0)", "", "", "")                                                                           \
    X(TANH, 1, "mod_tanh(%0)", "", "", "")                                                                             \
    X(SIN, 1, "mod_sin(%0)", "", "", "")                                                                               \
    X(COS, 1, "mod_cos(%0)", "", "", "")                                                                               \
    X(POW, 2, "mod_pow(%0, %1)", "", "", "")                                                                           \
    X(ERF, 1, "mod_erf(%0)", "", "", "")                                                                               \
    X(SIGMOID, 1, "mod_const(1.0f) / (mod_const(1.0f) + mod_exp(-%0))", "", "", "")

typedef enum mgk_operation {
#define MGK_OPERATION_ENUM(name, ...) MGK_##name,
    MGK_OPERATION_LIST(MGK_OPERATION_ENUM)
#undef MGK_OPERATION_ENUM
        MGK_OPERATIONS,
    MGK_FOLDED = MGK_FLOOR
} mgk_operation;

typedef struct mgk_node {
    uint8_t operation; /* mgk_operation */
    uint8_t type;      /* mgk_type */
    uint8_t from;      /* the arguments' type, of a SELECT the branches'; a READ's have INT */
    uint8_t count;     /* arguments */
    uint32_t slot;     /* mgk_name; the number; the capture */
    uint32_t depends;
    int32_t arguments[MGK_READ_AXES];
    double value;  /* CONSTANT; a float's value is one of float */
    uint64_t hash; /* of the formula: the order of a sum's terms is that of their hashes */
} mgk_node;

/* The names that a text may use besides the built-in ones. */
typedef struct mgk_symbol {
    const char *name;
    mgk_type type; /* captured arrays: INT or FLOAT */
    int axes;
} mgk_symbol;

typedef struct mgk_symbols {
    const mgk_symbol *captures;
    size_t capture_count;
    const char *const *numbers;
    size_t number_count;
} mgk_symbols;

/* INVALID_VALUE, with the reason, for names that are no identifiers, taken twice or built in, and for numbers of axes.
 */
clmgk_status mgk_symbols_check(const mgk_symbols *symbols, clmgk_error *error);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

#define MGK_NONE (-1) /* no node: a derivative that is 0 everywhere */

typedef struct mgk_graph {
    const clmgk_allocator *allocator;
    mgk_node *nodes;
    size_t count, capacity;
    int32_t *table; /* of nodes by their content */
    size_t slots;
    bool failed, full; /* without memory, or with too many nodes: functions return 0 */
} mgk_graph;

void mgk_graph_free(mgk_graph *graph);

/* OK, or the reason why the graph has failed. */
clmgk_status mgk_graph_status(const mgk_graph *graph, clmgk_error *error);

/* Nodes with arguments of the types that the operation takes. Each returns a node of the graph, which may be simpler.
 */
int32_t mgk_make_constant(mgk_graph *graph, mgk_type type, double value);
int32_t mgk_make_leaf(mgk_graph *graph, mgk_operation operation, mgk_type type, uint32_t slot);
int32_t mgk_make_read(mgk_graph *graph, mgk_type type, uint32_t capture, const int32_t *indices, int axes);
int32_t mgk_make_unary(mgk_graph *graph, mgk_operation operation, int32_t a);
int32_t mgk_make_binary(mgk_graph *graph, mgk_operation operation, int32_t a, int32_t b);
int32_t mgk_make_select(mgk_graph *graph, int32_t condition, int32_t a, int32_t b);
/* The node as another type: C's conversions; a float to INT saturates, NaN gives 0. */
int32_t mgk_make_conversion(mgk_graph *graph, mgk_type type, int32_t a);

/* Parses the text of a score (a float) or of a mask (a bool) into *root. `field` names the text in messages. */
clmgk_status mgk_parse(mgk_graph *graph, const mgk_symbols *symbols, const char *text, bool mask, const char *field,
                       int32_t *root, clmgk_error *error);

/*
 * The derivative of a float by the node `by`, a leaf or a read: a node, or MGK_NONE where it is 0 everywhere. At kinks:
 * abs and relu have 0; min, max and clamp take their first argument's where both are equal; `?:` has the derivative of
 * the branch that it takes; floor and conversions to integers have 0; pow has 0 by its exponent where its value is 0.
 */
int32_t mgk_derive(mgk_graph *graph, int32_t root, int32_t by);

/* ---- expressions ------------------------------------------------------------------------------------------------- */

typedef struct mgk_expression {
    size_t count; /* the last node is the value */
    mgk_node nodes[];
} mgk_expression;

/* A copy of what `root` needs (mgk_free); NULL without memory. */
mgk_expression *mgk_extract(const mgk_graph *graph, int32_t root);

/* An array in double precision, for values. */
typedef struct mgk_values {
    const double *data;
    int64_t extents[MGK_READ_AXES], strides[MGK_READ_AXES];
} mgk_values;

typedef struct mgk_inputs {
    double names[MGK_NAMES];
    const double *numbers;
    const mgk_values *captures;
} mgk_inputs;

/* The value of every node, in double precision; ints and floats converted from ints are rounded as kernels do.
 * Returns the last one. */
double mgk_evaluate(const mgk_expression *expression, const mgk_inputs *inputs, double *values);

/* The same, with every float rounded to f32. */
double mgk_evaluate_single(const mgk_expression *expression, const mgk_inputs *inputs, double *values);

/* Reads outside of their arrays that C, which evaluates lazily, would make, after mgk_evaluate. `needed` has room for a
 * flag for each node. */
size_t mgk_reads_outside(const mgk_expression *expression, const mgk_inputs *inputs, const double *values,
                         bool *needed);

/* The element that a read takes: each index is clamped to its axis. */
int64_t mgk_element(const mgk_node *read, const mgk_values *array, const double *values);

/* One operation on numbers. */
double mgk_apply(const mgk_node *node, const double *arguments);

/* ---- bands ------------------------------------------------------------------------------------------------------- */

/* Pairs with low <= j - d(i) <= high, d(i) = i, or i + S - N if `at_end`; INT64_MIN, INT64_MAX: no limit. */
typedef struct mgk_band {
    int64_t low, high;
    bool at_end;
} mgk_band;

/* Whether a mask leaves just such pairs, as conditions of sums of i, j, N, S and ints tell, which are at most `most`.
 */
bool mgk_find_band(const mgk_expression *mask, int64_t most, mgk_band *band);

/* ---- OpenCL C ---------------------------------------------------------------------------------------------------- */

/* Appends a function of this name over cl/attention/mods.clh; `score`: it has the parameter s. NULL: it returns the
 * constant `otherwise`, a float; a bool unless `score`. */
void mgk_print_function(mgk_text *text, const char *name, bool score, const mgk_expression *expression,
                        const char *otherwise);

/* The same of the place of a read, the expression's last node, in a dense array of the captured one's shape. */
void mgk_print_place(mgk_text *text, const char *name, const mgk_expression *expression);

/* Appends a function of this name: the range of a mask over a tile of pairs (cl/attention/ranges.clh,
 * float_ranges.clh). `reads`: it reads elements of captured arrays (cl/attention/classes.clh); else they may be
 * anything. NULL: 1. */
void mgk_print_ranges(mgk_text *text, const char *name, bool reads, const mgk_expression *mask);

/* ---- a problem's score and mask ---------------------------------------------------------------------------------- */

/* How far a read's element depends on the pair: the least of these classes that holds. A gradient's sum runs over what
 * it does not depend on. All depend on batch and heads, too. */
typedef enum mgk_index_class {
    MGK_INDEX_HEAD, /* on nothing else */
    MGK_INDEX_ROW,
    MGK_INDEX_KEY,
    MGK_INDEX_DIFFERENCE, /* i - j */
    MGK_INDEX_ANY
} mgk_index_class;

#define MGK_READS 32 /* of arrays with gradients */

/* A read of an array with a gradient in the score. */
typedef struct mgk_read {
    uint32_t capture;
    mgk_index_class index;
    mgk_expression *place; /* its last node is the read */
    mgk_expression *slope; /* the score's derivative by the element */
} mgk_read;

typedef struct mgk_formula_texts {
    mgk_symbols symbols;
    const char *score, *mask; /* NULL: none */
    uint32_t gradients;       /* bit c: of captured array c; bit MGK_CAPTURES: of the numbers */
} mgk_formula_texts;

/*
 * `mask_code`: mask_mod_block of cl/attention/mask.cl.
 * `code`, in this order: score_mod, score_mod_slope (by s), mask_mod, mask_mod_tile, which are there always; of a mask
 * that reads captured arrays mask_mod_block, for cl/attention/classify.clh; with a gradient of
 * the numbers score_mod_by_number_<n> for each; score_mod_by_read_<k> and score_mod_place_<k> for each read; at the end
 * score_mod_add_numbers and score_mod_add_reads, which add the gradients of a pair. They depend on the texts' canonical
 * form, and on the gradients, alone.
 */
typedef struct mgk_formulas {
    const clmgk_allocator *allocator;
    mgk_expression *score, *mask;           /* NULL: none */
    mgk_expression *slope;                  /* by s; NULL: 0 */
    mgk_expression *by_number[MGK_NUMBERS]; /* NULL: 0, or not asked for */
    mgk_read reads[MGK_READS];
    size_t read_count;
    mgk_text code, mask_code;
} mgk_formulas;

/* INVALID_VALUE for wrong texts and symbols. *formulas, which is overwritten, needs mgk_formulas_free after success. */
clmgk_status mgk_formulas_make(const clmgk_allocator *allocator, const mgk_formula_texts *texts, mgk_formulas *formulas,
                               clmgk_error *error);
void mgk_formulas_free(mgk_formulas *formulas);

#endif
