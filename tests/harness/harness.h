/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the numeric tests share: a problem made from a descriptor and a seed, its arrays laid out on the device with
 * canaries in every byte that is no element, a run through the public API, a check against the reference.
 *
 * All functions fail the current cmocka test themselves; none may be called from a thread that is not the test's.
 */
#ifndef CLMGK_TEST_HARNESS_H
#define CLMGK_TEST_HARNESS_H

#include "clmgk/clmgk.h"
#include "reference/reference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TH_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Variables whose content is freed where their block ends. */
#define TH_PROBLEM    __attribute__((unused, cleanup(th_problem_free))) th_problem
#define TH_DEVICE     __attribute__((unused, cleanup(th_device_free))) th_device
#define TH_REF_ANSWER __attribute__((unused, cleanup(clmgk_ref_answer_free))) clmgk_ref_answer
#define TH_REF_ARRAYS __attribute__((unused, cleanup(clmgk_ref_arrays_free))) clmgk_ref_arrays

/* What the tests run over. The variants with components come last. */
extern const clmgk_variant th_variants[4]; /* of the mixture family */
extern const clmgk_variant th_admixtures[7];
extern const clmgk_variant th_linears[9];
extern const clmgk_dtype th_dtypes[CLMGK_DTYPES];
extern const clmgk_score th_scores[2];
extern const clmgk_estep th_esteps[2];

/* One line that says what is wrong; th_say writes it and is false. */
typedef struct th_message {
    char text[512];
} th_message;
bool th_say(th_message *message, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Where a call of the test's own thread leaves its error: th_expect_ok(call(..., &th_error)), or the status and words
 * of the message that are to be there. Both clear it. */
extern clmgk_error th_error;
void th_expect_ok(clmgk_status status);
void th_expect_error(clmgk_status status, clmgk_status expected, const char *words);
/* The same, of a message of one line that names a field and has its value. */
void th_expect_refusal(clmgk_status status, clmgk_status expected, const char *field, const char *value);

/* ---- one context for a test program -------------------------------------------------------------------------- */

#define TH_ENGINE_PLACE(name, ...) TH_PLACE_OF_##name,
enum { CLMGK_ENGINE_LIST(TH_ENGINE_PLACE) TH_ENGINES };

typedef struct th_session {
    clmgk_device_info info; /* of the device that CLMGK_DEVICE names */
    cl_context cl;
    cl_command_queue queue; /* in order */
    clmgk_context *context;
    clmgk_engine engine[TH_ENGINES]; /* those that the device offers, its own first */
    const char *parameters[TH_ENGINES];
    const char *backward_parameters[TH_ENGINES];
    size_t engines;
    bool full;    /* CLMGK_TEST_FULL=1: sweep everything */
    size_t cases; /* runs compared with the reference */
    size_t plans;
    size_t built;      /* programs compiled */
    size_t loaded;     /* programs from the cache */
    double built_ms;   /* time that took */
    size_t program;    /* the last plan's, by the order in which its engine's programs were made */
    clmgk_plan **kept; /* one plan of every program, so that it stays in memory */
    size_t kept_count;
    clmgk_layer **layers; /* all that were made, likewise */
    size_t layer_count;
} th_session;

/* Set-up and tear-down of a cmocka group: *state becomes the session. The latter prints what was built. */
int th_session_open(void **state);
int th_session_close(void **state);

/*
 * A program's tests, run in the order of its file; `session` is the group's. TH_FULL_TEST: of the full tier alone,
 * others exercise the same text in the quick tier (tests/mutations shows that). TH_HOST_TEST: needs no device.
 * TH_TEST_OF: any other state.
 *
 *     TH_TEST(sums_are_one)
 *     {
 *         ...
 *     }
 */
#define TH_TEST(name)      TH_TEST_OF(name, th_session *session, .session = true)
#define TH_FULL_TEST(name) TH_TEST_OF(name, th_session *session, .session = true, .full = true)
#define TH_HOST_TEST(name) TH_TEST_OF(name, const void *no_state, .session = false)
#define TH_TEST_OF(function, state_type, ...)                                                                          \
    static void function(state_type __attribute__((unused)));                                                          \
    static void run_##function(void **state)                                                                           \
    {                                                                                                                  \
        function(*state);                                                                                              \
    }                                                                                                                  \
    static void __attribute__((constructor)) add_##function(void)                                                      \
    {                                                                                                                  \
        th_add_test(&(th_test){.name = #function, .run = run_##function, .line = __LINE__, __VA_ARGS__});              \
    }                                                                                                                  \
    static void function(state_type __attribute__((unused)))

typedef struct th_test {
    const char *name;
    CMUnitTestFunction run;
    CMFixtureFunction set_up, tear_down;
    int line;
    bool session, full;
} th_test;
void th_add_test(const th_test *test);

/* Runs them. A program without a main gets one that does this alone. */
int th_run_tests(void);

/* CLMGK_TEST_FULL=1. */
bool th_is_full(void);

/* A queue, in order where the device has no other. */
cl_command_queue th_queue(const th_session *session, bool out_of_order);

/* Calls `run` in `count` threads at once, each with a worker of its own of `size` bytes, and waits for all of them. */
void th_run_threads(void *(*run)(void *), void *workers, size_t size, size_t count);

/* Enqueues `rounds` calls, each behind the event of the one before, and waits for the last. False where a call or
 * OpenCL fails. No cmocka: also for other threads. */
typedef bool (*th_enqueue_call)(void *user, cl_uint num_wait, const cl_event *wait_list, cl_event *event);
bool th_chain(cl_command_queue queue, int rounds, th_enqueue_call enqueue, void *user);

/* A plan of `desc`, counted in the session, which keeps a plan of every program until it is closed. */
clmgk_plan *th_plan(th_session *session, const clmgk_attention_desc *desc, clmgk_engine engine, const char *parameters);
clmgk_plan *th_plan_of(th_session *session, const clmgk_attention_desc *desc, const clmgk_plan_options *options);
/* NULL, and a message, where there is none. */
clmgk_plan *th_try_plan(th_session *session, const clmgk_attention_desc *desc, const clmgk_plan_options *options,
                        th_message *message);

/* Whether the session's engine number `n` has all kernel parameters that a text "name=value,..." names, for a variant.
 */
bool th_has_parameters(const th_session *session, size_t n, clmgk_variant variant, const char *parameters);

/* The options of the session's engine number `n`: one program of a kind serves problems of every size. */
clmgk_plan_options th_options(const th_session *session, size_t n);

/* ---- problems ------------------------------------------------------------------------------------------------- */

/* The arrays by short names; of the same numbers as clmgk_array. */
typedef enum th_name {
#define TH_NAME(name, ...)      TH_##name,
#define TH_GRAD_NAME(name, ...) TH_GRAD_##name,
    CLMGK_ARRAY_LIST(TH_NAME, TH_GRAD_NAME, TH_NAME)
#undef TH_NAME
#undef TH_GRAD_NAME
        TH_ARRAYS
} th_name;

/* Whether a forward call reads the array, whether it writes it, whether it is the gradient of one. */
bool th_is_input(th_name name);
bool th_is_output(th_name name);
bool th_is_gradient(th_name name);

/* What a plan can be asked to enqueue. Each uses the arrays that its arguments have. */
typedef enum th_pass { TH_FORWARD, TH_BACKWARD, TH_STATISTICS, TH_COMBINE } th_pass;

#define TH_RANK 5 /* axes (b, h, r, n, d) of any array; those it lacks are 1 */

/* An array: dense values in axis order on the host, and where its elements lie on the device. */
typedef struct th_array {
    bool used;
    size_t element; /* bytes */
    clmgk_dtype dtype;
    bool integer; /* int32 */
    int64_t shape[TH_RANK];
    int64_t stride[TH_RANK]; /* in elements */
    size_t count;
    double *values;
    size_t home;     /* the array in whose buffer it lies: itself, or e.g. TH_Q for packed QKV */
    uint64_t offset; /* of its first element, in elements */
} th_array;

typedef struct th_problem {
    clmgk_attention_desc desc; /* resolved */
    uint64_t seed;             /* of dropout and noise */
    uint32_t accumulate;       /* set of clmgk_gradient: added to what the arrays hold */
    int64_t parts;             /* of TH_COMBINE */
    th_array array[TH_ARRAYS];
} th_problem;

/*
 * Random arrays for `desc` (struct_size may be 0): standard normals, priors in (0,1), variances from D/2 to 3D/2,
 * lengths over the whole axis, offsets anywhere on it, an eighth of the bias -inf, slopes in (0, 1/2), noise in (0, 1).
 * Values may be changed before the run. There are arrays for all gradients and statistics that the descriptor asks for,
 * and dL.
 */
th_problem th_problem_make(const clmgk_attention_desc *desc, uint64_t seed);
void th_problem_free(th_problem *problem);

/* Gives the problem arrays for `parts` partial results, in place of those it has. */
void th_add_parts(th_problem *problem, int64_t parts);

/* Puts three arrays from `first` on into the first one's buffer, `step` elements apart. */
void th_interleave(th_problem *problem, th_name first, size_t offset, size_t step);

/* A descriptor's length_k for `count` keys, which may be 0. */
int64_t th_keys(int64_t count);

/* Two heads of one awkward size, which most tests share: few programs. Admixture family: two local heads, three global
 * ones where they may differ. */
clmgk_attention_desc th_small_desc(clmgk_variant variant, int64_t length, int64_t length_k);

/* A bias whose axes H, N and S are 1 by the bits of `axes`. */
void th_set_bias_axes(clmgk_attention_desc *desc, size_t axes);

/* A small problem that has every array: sMGK with priors, variances and lengths. */
clmgk_attention_desc th_full_desc(void);

/* Multiplies an array by `factor` (one that the problem lacks: nothing); sets all of an array, or one element. */
void th_scale(th_problem *problem, th_name name, double factor);
void th_fill(th_problem *problem, th_name name, double value);
void th_set(th_problem *problem, th_name name, int64_t b, int64_t h, int64_t r, int64_t n, int64_t d, double value);

/* The next number of a random sequence, one uniform in [0,1), one of the standard normal distribution. */
uint64_t th_random(uint64_t *state);
double th_uniform(uint64_t *state);
double th_normal(uint64_t *state);
/* One of low .. high; true once in `one_in` times. */
int64_t th_pick(uint64_t *state, int64_t low, int64_t high);
bool th_chance(uint64_t *state, int64_t one_in);

/* Fixed irregular numbers in (-1, 1); *state is 0 before the first array. */
void th_fill_irregularly(double *values, size_t count, double *state);
/* Random123's known answers of philox4x32 with 10 rounds. */
typedef struct th_philox_answer {
    uint32_t counter[4], key[2], words[4];
} th_philox_answer;
extern const th_philox_answer th_philox_answers[3];

/* NaN in the rows `first` and up of batch b, in every head and component. Nothing in an array that is not used. */
void th_poison(th_problem *problem, th_name name, int64_t b, int64_t first);
/* Component `to` of the keys becomes a copy of component `from`. */
void th_copy_component(th_problem *problem, int64_t to, int64_t from);
/* The token axis backwards. */
void th_reverse_tokens(th_problem *problem, th_name name);

/* Row n of head h of batch b becomes NaN in every component. */
void th_poison_row(th_problem *problem, th_name name, int64_t b, int64_t h, int64_t n);
/* Gives two batches lengths up to 70 rows and 70 keys. Queries, keys, values, dO, dL and priors beyond are NaN. */
void th_pad(th_problem *problem);
/* The bias hides all keys of some rows, all keys but the last or all beyond the first two tiles of others; further rows
 * get enormous biases. Heads take turns. */
void th_hide_keys(th_problem *problem);
/* The bias hides all keys of every third row in one head; heads take turns. */
void th_hide_rows(th_problem *problem);
/* A random set of gradients accumulates. The values to add to are of the gradients' own size, because a storage type
 * rounds the sum. */
void th_accumulate_some(th_problem *problem, uint64_t *state);
/* Copies one array, or all inputs, that both problems use. */
void th_copy_values(th_problem *to, const th_problem *from, th_name name);
void th_copy_inputs(th_problem *to, const th_problem *from);
/* Rounds the values as the storage type holds them, so that the reference sees the numbers that the device sees. */
void th_round_values(th_session *session, th_problem *problem, th_pass pass);
/* An array has the same bits in both problems. */
void th_expect_equal_bits(const th_problem *one, const th_problem *other, th_name name);

/* Gives all strided arrays of a training pass the layout [B, tokens, heads, components, size + gap]: `query_heads` of
 * Q, `key_heads` of K. dO has it too, or one row for all. */
void th_put_tokens_first(clmgk_attention_desc *desc, int64_t query_heads, int64_t key_heads, int64_t components,
                         int64_t gap, bool one_grad_o);
/* Array number n begins at element step n + first. */
void th_offset_arrays(th_problem *problem, uint64_t step, uint64_t first);

/* Where element `flat` of the dense order lies, in elements from the start of its memory; its value to that memory
 * (rounded) and back. */
size_t th_place(const th_array *array, size_t flat);
void th_put(const th_array *array, unsigned char *memory, size_t flat);
void th_get(const th_array *array, const unsigned char *memory, size_t flat);

/* ---- runs ------------------------------------------------------------------------------------------------------ */

/* The device side of one run. */
typedef struct th_device_buffer {
    size_t bytes; /* 0: no buffer */
    unsigned char *image;
    unsigned char *output; /* per byte: belongs to an element of an output */
    cl_mem memory;
} th_device_buffer;

/* Its image, all canaries; an array's values in it (the array's become what is stored), or the room of an output; its
 * memory, where it has bytes; the memory's bytes (free). */
void th_make_image(th_device_buffer *buffer, size_t bytes);
void th_write_values(const th_array *array, th_device_buffer *buffer);
void th_mark_output(const th_array *array, th_device_buffer *buffer);
void th_make_memory(const th_session *session, th_device_buffer *buffer);
unsigned char *th_read_back(const th_session *session, const th_device_buffer *buffer);

/* What is no output still has its bytes. `whole`: neither have the outputs changed. */
bool th_has_canaries(const th_device_buffer *buffer, const unsigned char *bytes, size_t name, bool whole,
                     th_message *message);
/* Every element was written, and becomes a value; `added`: to what was there, which is left out of the values. */
bool th_take_output(th_array *array, const unsigned char *bytes, size_t name, bool added, th_message *message);

typedef struct th_device {
    th_pass pass;
    uint32_t accumulate;
    th_device_buffer buffer[TH_ARRAYS];
    clmgk_attention_args args;
} th_device;

/*
 * Writes the arrays to new buffers, canaries around and between elements, outputs unset; the problem's values become
 * what the device holds (rounded). `workspace`: bytes that the plan asks for.
 */
th_device th_upload(const th_session *session, th_problem *problem, size_t workspace);
th_device th_upload_for(const th_session *session, th_problem *problem, th_pass pass, size_t workspace);

/* Enqueues the pass that the arrays were uploaded for; fails the test on an error. */
void th_enqueue(clmgk_plan *plan, cl_command_queue queue, const th_device *device, cl_uint num_wait,
                const cl_event *wait_list, cl_event *event);

/* Reads everything back after the run: canaries and inputs unchanged, every output element written; outputs become
 * values of the problem, those that are accumulated what was added to them. */
void th_download(const th_session *session, th_problem *problem, const th_device *device);
/* The same; false, and a message, in place of a failed test. */
bool th_try_download(const th_session *session, th_problem *problem, const th_device *device, th_message *message);
/* Nothing at all was written. */
void th_expect_untouched(const th_session *session, const th_device *device);
void th_device_free(th_device *device);

/* Host arrays of a problem in the storage type, from offset 0; between, behind and in what is written 0xff everywhere:
 * NaN, or -1 as a length. The arguments have all of them. */
typedef struct th_host {
    unsigned char *bytes[TH_ARRAYS];
    size_t size[TH_ARRAYS];
    clmgk_host_args args;
} th_host;
th_host th_host_make(th_problem *problem);
void th_host_free(th_host *host);
#define TH_HOST __attribute__((unused, cleanup(th_host_free))) th_host

/* An output becomes values of the problem; all else in its memory must still be 0xff. */
void th_host_take(const th_host *host, th_problem *problem, th_name name);
/* No output was written. */
void th_host_expect_unwritten(const th_host *host);
void th_set_host_array(clmgk_host_args *args, th_name name, void *memory);

/* Upload, plan, enqueue, wait, download: on the session's engine number `n`, or on any with any parameters. */
void th_run(th_session *session, th_problem *problem, size_t n);
void th_run_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters);

/* The same for any pass and plan. For gradients O and L must be there: a forward run leaves them. */
void th_run_pass(th_session *session, th_problem *problem, th_pass pass, const clmgk_plan_options *options);
/* False, and a message, where what came back is not what a pass may leave. */
bool th_try_pass(th_session *session, th_problem *problem, th_pass pass, const clmgk_plan_options *options,
                 th_message *message);

/* The problem for the reference; `integers` keeps what it points to until th_reference_free. */
typedef struct th_reference {
    clmgk_ref_problem problem;
    int32_t *integers[TH_ARRAYS];
} th_reference;
th_reference th_reference_of(const th_problem *problem);
void th_reference_free(th_reference *reference);

/* Whether O or L is the reference's answer, whether a gradient or a statistic is, within the bound. */
bool th_matches(const th_problem *problem, th_name name, const clmgk_ref_answer *answer, th_message *message);
bool th_matches_state(const th_problem *problem, th_message *message); /* the new one, if there is any */
bool th_matches_array(const th_problem *problem, th_name name, const clmgk_ref_arrays *exact, th_message *message);

/* Holds O, L, denominators and the new state against the reference's answer for a problem. */
void th_check(th_session *session, const th_problem *problem, clmgk_engine engine, const clmgk_ref_answer *answer);

/* The reference's answer: all rows, or a sample where that takes long. The caller frees it. */
clmgk_ref_answer th_solve(const th_problem *problem);

/* Forward passes over the keys cut[n] .. cut[n + 1] - 1 (`parts` of them), combined, are that over all keys. */
void th_expect_combined(th_session *session, th_problem *problem, const clmgk_plan_options *options, int64_t parts,
                        const int64_t *cut);

/* th_run_with, and its result held against the reference. */
void th_expect_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters);

/* Whether engines that are not the device's own take this problem, which that one has run: in full all, else every
 * third seed of every fifth program. On a CPU the SIMT engine's programs take three times as long to compile, and
 * those that no compiler has optimised are slow. */
bool th_other_engines(const th_session *session, const th_problem *problem);
/* The same of every fifth program's problems alone. */
bool th_is_fifth_program(const th_session *session);

/* Runs the problem on these engines and checks it; the same for random arrays of `desc`. */
void th_expect(th_session *session, th_problem *problem);
void th_expect_desc(th_session *session, const clmgk_attention_desc *desc, uint64_t seed);

/* Whether a sweep takes number `index`: all in full, else every `step`th. */
bool th_takes(const th_session *session, size_t index, size_t step);

/*
 * For number `index` of a sweep over programs: unless the sweep is to be full, an engine that is not the device's own
 * takes every fourth. On a CPU a program of the SIMT engine takes seconds to build.
 */
void th_sweep(th_session *session, th_problem *problem, size_t index);
void th_sweep_desc(th_session *session, const clmgk_attention_desc *desc, uint64_t seed, size_t index);

/* ---- gradients and statistics ----------------------------------------------------------------------------------- */

/* Forward, then backward. */
void th_run_training(th_session *session, th_problem *problem, const clmgk_plan_options *options);

/* The reference's gradient `which` is that of the loss in x[count], numbers that `p` reads; `positive`: none is below
 * 0. */
void th_expect_derivatives(const char *name, const clmgk_ref_problem *p, const clmgk_ref_arrays *gradients, int which,
                           double *x, size_t count, bool positive);

/* The reference's weights times V are its outputs, and its responsibilities and likelihoods its statistics. `p` has no
 * state, or one whose C is 0. */
void th_expect_weights(const char *name, const clmgk_ref_problem *p);

/* Gradients that are not asked for are not there, and change nothing of the others. */
void th_expect_wanted_gradients_only(const clmgk_ref_problem *p);

/* The reference's answer for all that the descriptor asks for; the caller frees it. */
clmgk_ref_arrays th_solve_gradients(const th_problem *problem);
clmgk_ref_arrays th_solve_statistics(const th_problem *problem);

/* Holds the problem's gradients or statistics against the reference's. */
void th_check_gradients(th_session *session, const th_problem *problem, clmgk_engine engine,
                        const clmgk_ref_arrays *exact);
void th_check_statistics(th_session *session, const th_problem *problem, clmgk_engine engine,
                         const clmgk_ref_arrays *exact);

/* Runs, solves and checks: on the device's own engine, on all if `all` or the sweep is to be full. */
void th_expect_gradients(th_session *session, th_problem *problem, bool all);
void th_expect_statistics(th_session *session, th_problem *problem, bool all);

/* The first shapes of a sweep over training, the awkward ones. */
enum { TH_CORNERS = 8 };
/* Batch, heads, lengths, masks, and the axes of a bias: number `number` of a sweep. Nothing that makes another program.
 */
void th_set_shape(clmgk_attention_desc *desc, size_t number, uint64_t *state);

/*
 * That both passes give key j the same part of row i, but for the rounding of L_i, which all keys of a row have in
 * common. O and dV of the first head are made to show P_ij for TH_PROBES rows and keys, whatever V and dO were. The
 * problem has as many rows, keys and value elements at least, heads of V for all heads, wants dV, and has no dropout.
 */
enum { TH_PROBES = 8 };
void th_expect_equal_weights(th_session *session, th_problem *problem, const clmgk_plan_options *options);

/* Makes the keys compete at scores of 10^4, a float's step of which changes a weight by a thousandth: they are nearly
 * equal and far from 0. A third of them are equal, which no rounding may weigh differently. */
void th_make_rivals(th_problem *problem, uint64_t seed);

/* Every gradient that a problem of this kind has. */
uint32_t th_all_gradients(const clmgk_attention_desc *desc);

/* Whether `text` holds `word` as a whole: "length" is not in "length_k". An empty word is in any text. */
bool th_has_word(const char *text, const char *word);

/* One line that says which problem it is. */
void th_describe(const th_problem *problem, clmgk_engine engine, char *text, size_t capacity);

#endif
