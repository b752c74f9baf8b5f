/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a score or a mask: precedence, types, names. */
#include "expression/words.h"

#include <stdio.h>
#include <string.h>

typedef struct let {
    mgk_word name;
    int32_t node;
} let;

typedef struct parser {
    mgk_reader reader;
    mgk_graph *graph;
    const mgk_symbols *symbols;
    bool mask;
    int depth;
    size_t let_count;
    let lets[MGK_TEXT_LETS];
} parser;

typedef enum function_kind { REAL, SAME_TYPE, CLAMP, RELU, GELU, CONVERSION } function_kind;

typedef struct function {
    const char *name;
    function_kind kind;
    int arguments;
    int what; /* mgk_operation; of a conversion mgk_type */
} function;

static const function functions[] = {
    {"exp", REAL, 1, MGK_EXP},
    {"log", REAL, 1, MGK_LOG},
    {"log1p", REAL, 1, MGK_LOG1P},
    {"sqrt", REAL, 1, MGK_SQRT},
    {"rsqrt", REAL, 1, MGK_RSQRT},
    {"tanh", REAL, 1, MGK_TANH},
    {"sin", REAL, 1, MGK_SIN},
    {"cos", REAL, 1, MGK_COS},
    {"floor", REAL, 1, MGK_FLOOR},
    {"pow", REAL, 2, MGK_POW},
    {"erf", REAL, 1, MGK_ERF},
    {"sigmoid", REAL, 1, MGK_SIGMOID},
    {"abs", SAME_TYPE, 1, MGK_ABS},
    {"min", SAME_TYPE, 2, MGK_MIN},
    {"max", SAME_TYPE, 2, MGK_MAX},
    {"clamp", CLAMP, 3, 0},
    {"relu", RELU, 1, 0},
    {"gelu", GELU, 1, 0},
    {"int", CONVERSION, 1, MGK_INT},
    {"float", CONVERSION, 1, MGK_FLOAT},
    {"bool", CONVERSION, 1, MGK_BOOL},
};

static const char *const names[] = {
#define NAME_TEXT(name, text, ...) text,
    MGK_NAME_LIST(NAME_TEXT)
#undef NAME_TEXT
};

static const mgk_type name_types[] = {
#define NAME_TYPE(name, text, code, range, type) type,
    MGK_NAME_LIST(NAME_TYPE)
#undef NAME_TYPE
};

enum { SCORE_NAMES = MGK_NAME_ROW }; /* the names before it are those of scores alone */

static const char *const keywords[] = {"let", "true", "false"};
static const char *const type_names[] = {"bool", "int", "float"};

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The place of the word in a list of texts, each `step` bytes after the one before; -1: it is not there. */
static int find_text(const mgk_word *word, const void *list, size_t count, size_t step)
{
    for (size_t n = 0; n < count; ++n) {
        if (mgk_word_is(word, *(const char *const *)((const char *)list + n * step)))
            return (int)n;
    }
    return -1;
}

#define FIND(word, list)                find_text(word, list, MGK_COUNT(list), sizeof((list)[0]))
#define FIND_IN(word, list, list_count) find_text(word, list, list_count, sizeof((list)[0]))

static bool is_built_in(const mgk_word *word)
{
    return FIND(word, names) >= 0 || FIND(word, functions) >= 0 || FIND(word, keywords) >= 0;
}

static clmgk_status check_symbol(const mgk_symbols *symbols, const char *name, size_t others, const char *field,
                                 clmgk_error *error)
{
    if (!name || !mgk_is_identifier(name))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "%s: the name is '%.80s': expected letters, digits and _, %d at most, no digit first", field,
                        name ? name : "", MGK_SYMBOL_BYTES);
    const mgk_word word = {.kind = MGK_WORD_NAME, .start = name, .length = (int)strlen(name)};
    if (is_built_in(&word))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: the name '%s' is built in: expected another", field,
                        name);
    const size_t captures = others < symbols->capture_count ? others : symbols->capture_count;
    if (FIND_IN(&word, symbols->captures, captures) >= 0 || FIND_IN(&word, symbols->numbers, others - captures) >= 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: the name '%s' is taken twice: expected another", field,
                        name);
    return CLMGK_OK;
}

clmgk_status mgk_symbols_check(const mgk_symbols *symbols, clmgk_error *error)
{
    if (symbols->capture_count > MGK_CAPTURES)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "captures: %zu: expected at most %d", symbols->capture_count,
                        MGK_CAPTURES);
    if (symbols->number_count > MGK_NUMBERS)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "numbers: %zu: expected at most %d", symbols->number_count,
                        MGK_NUMBERS);
    for (size_t c = 0; c < symbols->capture_count; ++c) {
        const mgk_symbol *const capture = &symbols->captures[c];
        MGK_TRY(check_symbol(symbols, capture->name, c, "captures", error));
        if (capture->axes < 1 || capture->axes > MGK_READ_AXES)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "captures: '%s' has %d axes: expected 1 to %d",
                            capture->name, capture->axes, MGK_READ_AXES);
    }
    for (size_t n = 0; n < symbols->number_count; ++n)
        MGK_TRY(check_symbol(symbols, symbols->numbers[n], symbols->capture_count + n, "numbers", error));
    return CLMGK_OK;
}

/* The nearest of a list's texts, if it is nearer than *distance. */
static void find_nearest(const mgk_word *word, const void *list, size_t count, size_t step, int *distance,
                         const char **nearest)
{
    for (size_t n = 0; n < count; ++n) {
        const char *const text = *(const char *const *)((const char *)list + n * step);
        const int found = mgk_word_distance(word, text);
        if (found < *distance) {
            *distance = found;
            *nearest = text;
        }
    }
}

static int32_t fail_unknown(parser *p, const mgk_word *word, bool called)
{
    const char *nearest = NULL;
    char let_name[MGK_SYMBOL_BYTES + 1];
    const size_t hidden = p->mask ? SCORE_NAMES : 0;
    int distance = word->length < 5 ? word->length : 4; /* names farther away are no help */
    find_nearest(word, functions, MGK_COUNT(functions), sizeof(functions[0]), &distance, &nearest);
    if (!called) {
        find_nearest(word, p->symbols->captures, p->symbols->capture_count, sizeof(mgk_symbol), &distance, &nearest);
        find_nearest(word, p->symbols->numbers, p->symbols->number_count, sizeof(const char *), &distance, &nearest);
        find_nearest(word, keywords, MGK_COUNT(keywords), sizeof(keywords[0]), &distance, &nearest);
        find_nearest(word, names + hidden, MGK_COUNT(names) - hidden, sizeof(names[0]), &distance, &nearest);
    }
    for (size_t n = 0; n < p->let_count && !called; ++n) {
        char text[MGK_SYMBOL_BYTES + 1];
        (void)snprintf(text, sizeof(text), "%.*s", p->lets[n].name.length, p->lets[n].name.start);
        const char *const before = nearest;
        find_nearest(word, &(const char *){text}, 1, sizeof(const char *), &distance, &nearest);
        if (nearest != before)
            nearest = memcpy(let_name, text, sizeof(text));
    }
    return mgk_reader_fail(&p->reader, word, "unknown %s '%.*s'%s%s%s", called ? "function" : "name",
                           word->length < 64 ? word->length : 64, word->start, nearest ? "; nearest: '" : "",
                           nearest ? nearest : "", nearest ? "'" : "");
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static mgk_type type_of(const parser *p, int32_t node)
{
    return p->reader.status == CLMGK_OK && !p->graph->failed && !p->graph->full ? (mgk_type)p->graph->nodes[node].type
                                                                                : MGK_INT;
}

static int32_t converted(parser *p, mgk_type type, int32_t node)
{
    return p->reader.status == CLMGK_OK ? mgk_make_conversion(p->graph, type, node) : 0;
}

static mgk_type wider(mgk_type a, mgk_type b)
{
    return a > b ? a : b;
}

/* Arithmetic and comparisons have ints or floats. */
static int32_t combine(parser *p, const mgk_word *sign, mgk_operation operation, int32_t a, int32_t b)
{
    if (!mgk_reader_step(&p->reader))
        return 0;
    mgk_type type = wider(wider(type_of(p, a), type_of(p, b)), MGK_INT);
    if (operation == MGK_AND || operation == MGK_OR)
        type = MGK_BOOL;
    if (operation == MGK_REMAINDER && type == MGK_FLOAT)
        return mgk_reader_fail(&p->reader, sign, "'%%' with a float: expected two ints");
    a = converted(p, type, a);
    b = converted(p, type, b);
    return mgk_make_binary(p->graph, operation, a, b);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static int32_t parse_expression(parser *p);
static int32_t parse_unary(parser *p);

static bool next_is(const parser *p, const char *sign)
{
    return mgk_word_is(&p->reader.word, sign);
}

static void expect(parser *p, const char *sign, const char *what)
{
    if (next_is(p, sign))
        mgk_reader_next(&p->reader);
    else
        mgk_reader_expected(&p->reader, what);
}

/* Expressions up to the sign `close`, of which the first `count` are kept. Returns how many there are. */
static int parse_list(parser *p, const char *open, const char *close, const char *what, int32_t *list, int count)
{
    int found = 0;
    expect(p, open, open[0] == '(' ? "'(' after a function's name" : "'[' after an array's name");
    do {
        const int32_t node = parse_expression(p);
        if (found < count)
            list[found] = node;
        ++found;
    } while (next_is(p, ",") && (mgk_reader_next(&p->reader), true));
    expect(p, close, what);
    return found;
}

static int32_t parse_read(parser *p, const mgk_word *name, int capture)
{
    const mgk_symbol *const symbol = &p->symbols->captures[capture];
    int32_t indices[MGK_READ_AXES] = {0};
    const int found = parse_list(p, "[", "]", "',' or ']'", indices, symbol->axes);
    if (p->reader.status == CLMGK_OK && found != symbol->axes)
        return mgk_reader_fail(&p->reader, name, "'%s' has %d %s: found %d %s", symbol->name, symbol->axes,
                               symbol->axes == 1 ? "axis" : "axes", found, found == 1 ? "index" : "indices");
    for (int a = 0; a < symbol->axes; ++a) {
        if (type_of(p, indices[a]) == MGK_FLOAT)
            return mgk_reader_fail(&p->reader, name, "index %d of '%s' is a float: expected an int, as int(x) makes",
                                   a + 1, symbol->name);
        indices[a] = converted(p, MGK_INT, indices[a]);
    }
    if (!mgk_reader_step(&p->reader))
        return 0;
    return mgk_make_read(p->graph, symbol->type, (uint32_t)capture, indices, symbol->axes);
}

static int32_t real(parser *p, double value)
{
    return mgk_make_constant(p->graph, MGK_FLOAT, value);
}

/* x (1 + erf(x / sqrt(2))) / 2 */
static int32_t make_gelu(mgk_graph *graph, int32_t x)
{
    const int32_t half = mgk_make_constant(graph, MGK_FLOAT, 0.5);
    const int32_t root = mgk_make_constant(graph, MGK_FLOAT, 0.70710678118654752440);
    const int32_t error = mgk_make_unary(graph, MGK_ERF, mgk_make_binary(graph, MGK_MULTIPLY, x, root));
    const int32_t sum = mgk_make_binary(graph, MGK_ADD, mgk_make_constant(graph, MGK_FLOAT, 1), error);
    return mgk_make_binary(graph, MGK_MULTIPLY, mgk_make_binary(graph, MGK_MULTIPLY, x, half), sum);
}

static int32_t make_call(parser *p, const function *f, int32_t *x)
{
    const mgk_operation operation = (mgk_operation)f->what;
    mgk_type type = f->kind == REAL || f->kind == GELU ? MGK_FLOAT : MGK_INT;
    if (f->kind == CONVERSION)
        return converted(p, (mgk_type)f->what, x[0]);
    for (int a = 0; a < f->arguments; ++a)
        type = wider(type, type_of(p, x[a]));
    for (int a = 0; a < f->arguments; ++a)
        x[a] = converted(p, type, x[a]);
    switch (f->kind) {
    case CLAMP:
        return mgk_make_binary(p->graph, MGK_MIN, mgk_make_binary(p->graph, MGK_MAX, x[0], x[1]), x[2]);
    case RELU:
        return mgk_make_binary(p->graph, MGK_MAX, mgk_make_constant(p->graph, type, 0), x[0]);
    case GELU:
        return make_gelu(p->graph, x[0]);
    default:
        return f->arguments == 1 ? mgk_make_unary(p->graph, operation, x[0])
                                 : mgk_make_binary(p->graph, operation, x[0], x[1]);
    }
}

static int32_t parse_call(parser *p, const mgk_word *name, const function *f)
{
    int32_t x[3] = {0};
    const int found = parse_list(p, "(", ")", "',' or ')'", x, f->arguments);
    if (p->reader.status == CLMGK_OK && found != f->arguments)
        return mgk_reader_fail(&p->reader, name, "'%s' takes %d argument%s: found %d", f->name, f->arguments,
                               f->arguments == 1 ? "" : "s", found);
    return mgk_reader_step(&p->reader) ? make_call(p, f, x) : 0;
}

static int32_t parse_name(parser *p)
{
    const mgk_word name = mgk_reader_next(&p->reader);
    const int f = FIND(&name, functions), n = FIND(&name, names), k = FIND(&name, keywords);
    if (f >= 0)
        return parse_call(p, &name, &functions[f]);
    if (k > 0)
        return mgk_make_constant(p->graph, MGK_BOOL, k == 1);
    if (n >= 0 && n < SCORE_NAMES && p->mask)
        return mgk_reader_fail(&p->reader, &name, "a mask has no '%s', which scores have", names[n]);
    if (n >= 0)
        return mgk_make_leaf(p->graph, MGK_NAME, name_types[n], (uint32_t)n);
    const int capture = FIND_IN(&name, p->symbols->captures, p->symbols->capture_count);
    if (capture >= 0)
        return parse_read(p, &name, capture);
    const int number = FIND_IN(&name, p->symbols->numbers, p->symbols->number_count);
    if (number >= 0)
        return mgk_make_leaf(p->graph, MGK_NUMBER, MGK_FLOAT, (uint32_t)number);
    for (size_t l = 0; l < p->let_count; ++l) {
        const mgk_word *const other = &p->lets[l].name;
        if (other->length == name.length && memcmp(other->start, name.start, (size_t)name.length) == 0)
            return p->lets[l].node;
    }
    return fail_unknown(p, &name, next_is(p, "("));
}

static bool enter(parser *p)
{
    if (p->reader.status == CLMGK_OK && p->depth >= MGK_TEXT_DEPTH)
        mgk_reader_fail(&p->reader, &p->reader.word, "too deep: expected at most %d levels", MGK_TEXT_DEPTH);
    p->depth += p->reader.status == CLMGK_OK;
    return p->reader.status == CLMGK_OK;
}

/* After '(': a conversion "(int) x", or an expression in parentheses. */
static int32_t parse_parentheses(parser *p)
{
    const int type = FIND(&p->reader.word, type_names);
    if (type >= 0) {
        const mgk_reader before = p->reader;
        mgk_reader_next(&p->reader);
        if (next_is(p, ")")) {
            mgk_reader_next(&p->reader);
            const int32_t x = enter(p) ? parse_unary(p) : 0;
            --p->depth;
            return converted(p, (mgk_type)type, x);
        }
        p->reader = before; /* "(int(x))" */
    }
    const int32_t x = parse_expression(p);
    expect(p, ")", "')'");
    return x;
}

static int32_t parse_operand(parser *p)
{
    const mgk_word word = p->reader.word;
    if (word.kind == MGK_WORD_NAME && FIND(&word, keywords) != 0)
        return parse_name(p);
    if (word.kind == MGK_WORD_INT || word.kind == MGK_WORD_FLOAT) {
        mgk_reader_next(&p->reader);
        return word.kind == MGK_WORD_FLOAT ? real(p, word.value) : mgk_make_constant(p->graph, MGK_INT, word.value);
    }
    if (next_is(p, "(")) {
        mgk_reader_next(&p->reader);
        return parse_parentheses(p);
    }
    return mgk_reader_expected(&p->reader, "a number, a name or '('");
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static int32_t parse_unary(parser *p)
{
    if (!next_is(p, "-") && !next_is(p, "!") && !next_is(p, "+"))
        return parse_operand(p);
    if (!enter(p))
        return 0;
    const mgk_word sign = mgk_reader_next(&p->reader);
    int32_t x = parse_unary(p);
    --p->depth;
    x = converted(p, *sign.start == '!' ? MGK_BOOL : wider(type_of(p, x), MGK_INT), x);
    if (*sign.start == '+' || !mgk_reader_step(&p->reader))
        return x;
    return mgk_make_unary(p->graph, *sign.start == '!' ? MGK_NOT : MGK_NEGATE, x);
}

/* Binary operators, by precedence; a SWAPPED one has its arguments the other way round, a NEGATED one's result. */
static const struct {
    const char *sign;
    int precedence;
    mgk_operation operation;
    bool swapped, negated;
} operators[] = {
    {"||", 1, MGK_OR, false, false},         {"&&", 2, MGK_AND, false, false},       {"==", 3, MGK_EQUAL, false, false},
    {"!=", 3, MGK_EQUAL, false, true},       {"<", 4, MGK_LESS, false, false},       {">", 4, MGK_LESS, true, false},
    {"<=", 4, MGK_LESS_EQUAL, false, false}, {">=", 4, MGK_LESS_EQUAL, true, false}, {"+", 5, MGK_ADD, false, false},
    {"-", 5, MGK_SUBTRACT, false, false},    {"*", 6, MGK_MULTIPLY, false, false},   {"/", 6, MGK_DIVIDE, false, false},
    {"%", 6, MGK_REMAINDER, false, false},
};

static int32_t parse_binary(parser *p, int precedence)
{
    int32_t left = parse_unary(p);
    for (;;) {
        const int found = FIND(&p->reader.word, operators);
        if (found < 0 || operators[found].precedence < precedence)
            return left;
        const mgk_word sign = mgk_reader_next(&p->reader);
        const int32_t right = parse_binary(p, operators[found].precedence + 1);
        const bool swapped = operators[found].swapped;
        left = combine(p, &sign, operators[found].operation, swapped ? right : left, swapped ? left : right);
        if (operators[found].negated && p->reader.status == CLMGK_OK)
            left = mgk_make_unary(p->graph, MGK_NOT, left);
    }
}

static int32_t parse_expression(parser *p)
{
    if (!enter(p))
        return 0;
    int32_t result = parse_binary(p, 1);
    if (next_is(p, "?")) {
        mgk_reader_next(&p->reader);
        int32_t a = parse_expression(p);
        expect(p, ":", "':' of '? :'");
        int32_t b = parse_expression(p);
        const mgk_type type = wider(type_of(p, a), type_of(p, b));
        const int32_t condition = converted(p, MGK_BOOL, result);
        a = converted(p, type, a);
        b = converted(p, type, b);
        result = mgk_reader_step(&p->reader) ? mgk_make_select(p->graph, condition, a, b) : 0;
    }
    --p->depth;
    return result;
}

/* ---- the text ---------------------------------------------------------------------------------------------------- */

static void parse_let(parser *p)
{
    mgk_reader_next(&p->reader);
    const mgk_word name = p->reader.word;
    if (name.kind != MGK_WORD_NAME) {
        mgk_reader_expected(&p->reader, "a name after 'let'");
        return;
    }
    bool taken = is_built_in(&name) || FIND_IN(&name, p->symbols->captures, p->symbols->capture_count) >= 0 ||
                 FIND_IN(&name, p->symbols->numbers, p->symbols->number_count) >= 0;
    for (size_t l = 0; l < p->let_count; ++l) {
        const mgk_word *const other = &p->lets[l].name;
        taken = taken || (other->length == name.length && memcmp(other->start, name.start, (size_t)name.length) == 0);
    }
    if (taken)
        mgk_reader_expected(&p->reader, "a name that is not taken");
    else if (name.length > MGK_SYMBOL_BYTES)
        mgk_reader_fail(&p->reader, &name, "a name is too long: expected at most %d letters", MGK_SYMBOL_BYTES);
    else if (p->let_count == MGK_TEXT_LETS)
        mgk_reader_fail(&p->reader, &name, "too many names: expected at most %d", MGK_TEXT_LETS);
    mgk_reader_next(&p->reader);
    expect(p, "=", "'='");
    const int32_t node = parse_expression(p);
    expect(p, ";", "an operator or ';'");
    if (p->reader.status == CLMGK_OK)
        p->lets[p->let_count++] = (let){.name = name, .node = node};
}

/* The whole text; its value is a float, or of a mask a bool. */
static int32_t parse_text(parser *p)
{
    mgk_reader_next(&p->reader);
    while (next_is(p, "let"))
        parse_let(p);
    const mgk_word first = p->reader.word;
    const int32_t root = parse_expression(p);
    if (p->reader.word.kind != MGK_WORD_END)
        mgk_reader_expected(&p->reader, "an operator or the end of the text");
    if (p->reader.status == CLMGK_OK && p->mask && type_of(p, root) == MGK_FLOAT)
        mgk_reader_fail(&p->reader, &first, "the mask is a float: expected a condition");
    return converted(p, p->mask ? MGK_BOOL : MGK_FLOAT, root);
}

clmgk_status mgk_parse(mgk_graph *graph, const mgk_symbols *symbols, const char *text, bool mask, const char *field,
                       int32_t *root, clmgk_error *error)
{
    if (strlen(text) > MGK_TEXT_BYTES)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: the text is longer than %d bytes", field,
                        MGK_TEXT_BYTES);
    parser *const p = mgk_alloc(graph->allocator, 1, sizeof(*p));
    if (!p)
        return mgk_fail_memory(error, field);
    p->reader = (mgk_reader){.at = text, .line_start = text, .line = 1, .field = field, .error = error};
    p->graph = graph;
    p->symbols = symbols;
    p->mask = mask;
    *root = parse_text(p);
    const clmgk_status status = p->reader.status;
    mgk_free(graph->allocator, p);
    return status != CLMGK_OK ? status : mgk_graph_status(graph, error);
}
