/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numeric tests make a problem from a descriptor and a seed, lay out its arrays on the device with canaries in every
 * byte that is no element, run it through the public API, and compare the results with the reference.
 *
 * On an error the functions fail the current cmocka test, so only the test's own thread may call them.
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

/* Variables whose content is freed at the end of their block. */
#define TH_PROBLEM    __attribute__((unused, cleanup(th_problem_free))) th_problem
#define TH_DEVICE     __attribute__((unused, cleanup(th_device_free))) th_device
#define TH_REF_ANSWER __attribute__((unused, cleanup(clmgk_ref_answer_free))) clmgk_ref_answer
#define TH_REF_ARRAYS __attribute__((unused, cleanup(clmgk_ref_arrays_free))) clmgk_ref_arrays

/* Values for sweeps. The variants with components come last. */
extern const clmgk_variant th_variants[4]; /* of the mixture family */
extern const clmgk_variant th_admixtures[7];
extern const clmgk_variant th_linears[9];
extern const clmgk_dtype th_dtypes[CLMGK_DTYPES];
extern const clmgk_score th_scores[2];
extern const clmgk_estep th_esteps[2];

/* One line about what is wrong. th_say writes it, unless it is NULL, and returns false. */
typedef struct th_message {
    char text[512];
} th_message;
bool th_say(th_message *message, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The error of the last call in the test's own thread: th_expect_ok(call(..., &th_error)). th_expect_error requires a
 * status, and words of the message. Both clear the error. */
extern clmgk_error th_error;
void th_expect_ok(clmgk_status status);
void th_expect_error(clmgk_status status, clmgk_status expected, const char *words);
/* The same; the message must be one line that has the field's name and its value. */
void th_expect_refusal(clmgk_status status, clmgk_status expected, const char *field, const char *value);
/* The same of a descriptor's check. */
void th_expect_refused(const clmgk_attention_desc *desc, clmgk_status status, const char *field, const char *value);

/* ---- one context for a test program -------------------------------------------------------------------------- */

#define TH_ENGINE_PLACE(name, ...) TH_PLACE_OF_##name,
enum { CLMGK_ENGINE_LIST(TH_ENGINE_PLACE) TH_ENGINES };

typedef struct th_session {
    clmgk_device_info info; /* of the device that CLMGK_DEVICE names */
    cl_context cl;
    cl_command_queue queue; /* in order */
    clmgk_context *context;
    clmgk_engine engine[TH_ENGINES]; /* the engines that the device offers; the one made for it is first */
    const char *parameters[TH_ENGINES];
    const char *backward_parameters[TH_ENGINES];
    size_t engines;
    bool named;   /* CLMGK_TEST_ENGINE names the engine */
    bool full;    /* CLMGK_TEST_FULL=1: sweep everything */
    size_t cases; /* runs compared with the reference */
    size_t plans;
    size_t built;      /* programs that were compiled */
    size_t loaded;     /* programs from the cache */
    double built_ms;   /* time spent compiling them */
    size_t program;    /* number of the last plan's program, counted for each engine in the order of making */
    clmgk_plan **kept; /* one plan of every program, so that it stays in memory */
    size_t kept_count;
    clmgk_layer **layers; /* every layer, kept likewise */
    size_t layer_count;
} th_session;

/* Set-up and tear-down of a cmocka group. *state becomes the session; the tear-down prints what was built. */
int th_session_open(void **state);
/* A context whose programs are in `cache_dir`, as clmgk_context_options has it, without what was tuned here. */
clmgk_context *th_open_context(cl_context cl, cl_device_id device, const char *cache_dir);
int th_session_close(void **state);

/*
 * Defines a test. A program runs its tests in the order of its file; they share `session`. TH_FULL_TEST: the test runs
 * only in the full tier; quick tests must exercise the same code (tests/mutations checks that). TH_HOST_TEST: the test
 * needs no device. TH_TEST_OF: a test with a state of its own.
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

/* Runs the program's tests. A program without a main gets one that only calls this. */
int th_run_tests(void);

/* Whether CLMGK_TEST_FULL=1 is set. */
bool th_is_full(void);

/* A queue. It is in order if the device has no other. */
cl_command_queue th_queue(const th_session *session, bool out_of_order);

/* Calls `run` in `count` threads at once, and waits for all of them. Each gets its own worker of `size` bytes. */
void th_run_threads(void *(*run)(void *), void *workers, size_t size, size_t count);

/* The first member of a worker whose thread enqueues `rounds` calls, each behind the event of the one before. */
typedef struct th_chain {
    cl_command_queue queue;
    bool (*enqueue)(void *worker, cl_uint num_wait, const cl_event *wait_list, cl_event *event);
    int rounds;
    clmgk_error error; /* of the call that failed */
    bool ok;           /* no call, and nothing of OpenCL, failed */
} th_chain;
/* For th_run_threads: enqueues a worker's chain, and waits for its end. Uses no cmocka, which has one thread alone. */
void *th_run_chain(void *worker);

/* A plan of `desc`, counted in the session, which keeps a plan of every program until it is closed. */
clmgk_plan *th_plan(th_session *session, const clmgk_attention_desc *desc, clmgk_engine engine, const char *parameters);
clmgk_plan *th_plan_of(th_session *session, const clmgk_attention_desc *desc, const clmgk_plan_options *options);
/* The same, but returns NULL and a message if it fails. */
clmgk_plan *th_try_plan(th_session *session, const clmgk_attention_desc *desc, const clmgk_plan_options *options,
                        th_message *message);

/* Whether the session's engines are matrix units that a CPU emulates, about a hundred times as slow as its own engine.
 */
bool th_is_emulated(const th_session *session);

/* Gives mixed heads bf16 in place of f32 if the session's engine is the matrix engine, which lacks these products. */
void th_fit_type(const th_session *session, clmgk_attention_desc *desc);

/* Whether the session's engine number `n` has, for a variant, all parameters that a text "name=value,..." names. */
bool th_has_parameters(const th_session *session, size_t n, clmgk_variant variant, const char *parameters);

/* Options of a plan for the session's engine number `n`, with which one program serves problems of all sizes. */
clmgk_plan_options th_options(const th_session *session, size_t n);

/* Parameters of one engine, for tables of them. */
typedef struct th_block {
    clmgk_engine engine;
    const char *parameters;
} th_block;

/* ---- problems ------------------------------------------------------------------------------------------------- */

/* Short names of the arrays, with the numbers of clmgk_array. */
typedef enum th_name {
#define TH_NAME(name, ...)      TH_##name,
#define TH_GRAD_NAME(name, ...) TH_GRAD_##name,
    CLMGK_ARRAY_LIST(TH_NAME, TH_GRAD_NAME, TH_NAME)
#undef TH_NAME
#undef TH_GRAD_NAME
        TH_ARRAYS
} th_name;

/* Whether a forward call reads the array; whether it writes it; whether the array is a gradient. */
bool th_is_input(th_name name);
bool th_is_output(th_name name);
/* Heads with a softmax of their own. */
static inline int64_t th_softmax_heads(const clmgk_attention_desc *desc)
{
    return desc->mix_after_heads > 0 ? desc->mix_after_heads : desc->heads;
}

bool th_is_gradient(th_name name);

/* The calls of a plan. */
typedef enum th_pass { TH_FORWARD, TH_BACKWARD, TH_STATISTICS, TH_COMBINE, TH_MASK, TH_APPEND } th_pass;

#define TH_RANK 5 /* axes (b, h, r, n, d) of any array; those it lacks are 1 */

/* An array: dense values in axis order on the host, and where its elements lie on the device. */
typedef struct th_array {
    bool used;
    size_t element; /* bytes; of a block, in arrays of blocks */
    size_t block;   /* numbers of an element */
    clmgk_dtype dtype;
    bool integer; /* int32 */
    int64_t shape[TH_RANK];
    int64_t stride[TH_RANK]; /* in elements; the last axis of an array of blocks has numbers */
    size_t count;
    double *values;
    size_t home;     /* the array in whose buffer it lies: itself, or for example TH_Q for packed Q, K and V */
    uint64_t offset; /* of its first element, in elements */
} th_array;

typedef struct th_problem {
    clmgk_attention_desc desc; /* resolved */
    uint64_t seed;             /* of dropout and noise */
    uint32_t accumulate;       /* set of clmgk_gradient: gradients that are added to their arrays */
    int64_t parts;             /* of TH_COMBINE */
    th_array array[TH_ARRAYS];
} th_problem;

/*
 * Random arrays for `desc` (struct_size may be 0): standard normals, priors in (0,1), variances from D/2 to 3D/2,
 * lengths and offsets anywhere on the axis, an eighth of the bias -inf, any classes of blocks, slopes in (0, 1/2),
 * noise in (0, 1). Tests may change values before the run. There are arrays for all gradients and statistics that the
 * descriptor asks for, and for dL.
 */
th_problem th_problem_make(const clmgk_attention_desc *desc, uint64_t seed);
void th_problem_free(th_problem *problem);

/* Replaces the problem's arrays of partial results by arrays for `parts` of them. */
void th_add_parts(th_problem *problem, int64_t parts);

/* A descriptor's length_k for `count` keys, which may be 0. */
int64_t th_keys(int64_t count);

/* Two heads of one awkward size. Most tests share it, so that they build few programs. Admixture family: two local
 * heads, and three global ones if the numbers may differ. */
clmgk_attention_desc th_small_desc(clmgk_variant variant, int64_t length, int64_t length_k);

/* A bias. Bits 0, 1 and 2 of `axes` say whether its axes H, N and S have the size 1. */
void th_set_bias_axes(clmgk_attention_desc *desc, size_t axes);

/* A small problem that has every array: sMGK with priors, variances and lengths. */
clmgk_attention_desc th_full_desc(void);

/* A descriptor by its sizes B, H, G, M, N, S, D, E; 0 is the default. */
typedef struct th_sizes {
    int64_t batch, heads, kv_heads, components, length, length_k, head_size, value_size;
} th_sizes;
clmgk_attention_desc th_sized_desc(clmgk_variant variant, th_sizes sizes);

/* A descriptor with a storage type for each array. */
typedef struct th_mix {
    clmgk_variant variant;
    clmgk_dtype q;
    clmgk_storage k, v, o;
    int64_t head_size, value_size;
} th_mix;
clmgk_attention_desc th_mix_desc(const th_mix *mix);

/* Two batches, whose queries and keys have lengths of their own. */
void th_set_lengths(clmgk_attention_desc *desc);
/* Number n of a sweep over windows and alignments. */
enum { TH_WINDOWS = 8 };
void th_set_window(clmgk_attention_desc *desc, size_t n);
/* Number n of a sweep over packed sequences and their masks. `keys`: so many, in sequences of their own lengths; 0: as
 * many as queries, in the same sequences. */
void th_set_packing(clmgk_attention_desc *desc, int64_t sequences, int64_t keys, size_t n);
/* Number n of a sweep over splits of the keys: five problems of each storage type, the later types with sinks. */
void th_set_split(clmgk_attention_desc *desc, size_t n);
/* Random sizes, masks and axes of a bias: nothing that makes another program. There are up to `most_kv_heads` heads of
 * keys, and for each up to as many heads of queries. */
void th_set_random_masks(clmgk_attention_desc *desc, int64_t most_kv_heads, uint64_t *state);

/* Number n of a sweep over the sink of one head: below, among and above the logits, and none. Some rows have no key. */
enum { TH_SINK_LOGITS = 6 };
th_problem th_sinks_problem(clmgk_attention_desc desc, int64_t head, size_t n);
/* Three components and the hard E-step, which ties: component 1 has the keys of component 0. */
th_problem th_tied_problem(clmgk_attention_desc desc);
/* Row number n of a list is NaN: a row of Q, K or V in one batch and head. There are 40 queries and 200 keys. */
enum { TH_POISONS = 5 };
th_problem th_poisoned_problem(clmgk_attention_desc desc, int64_t head, size_t n, uint64_t seed);
/* Two batches with lengths up to 70 rows and 70 keys. Queries, keys, values, dO, dL and priors beyond are NaN. */
th_problem th_padded_problem(clmgk_attention_desc desc, uint64_t seed);
/* Q, K and V interleaved token by token in one buffer [B,N,3,H,D], tokens first in O too; or, if the descriptor asks
 * for gradients, these interleaved likewise. Causal; all heads have the size D. */
th_problem th_packed_problem(clmgk_attention_desc desc, uint64_t seed);
/* Queries and keys that lie far from 0, all in one direction. */
th_problem th_far_problem(clmgk_attention_desc desc);
/* A bias that hides all keys of every third row in one head, the heads taking turns; sinks, ALiBi, all gradients. */
th_problem th_hidden_rows_problem(clmgk_attention_desc desc);

/* Multiplies an array by `factor`, unless the problem lacks it; sets all elements of an array; sets one element. */
void th_scale(th_problem *problem, th_name name, double factor);
/* Moves all rows by one vector of about that size: with queries and keys (or shifts), gaussian scores stay as they are,
 * while what they are computed from grows. */
void th_move(th_problem *problem, th_name name, double distance, uint64_t seed);
void th_fill(th_problem *problem, th_name name, double value);
void th_set(th_problem *problem, th_name name, int64_t b, int64_t h, int64_t r, int64_t n, int64_t d, double value);

/* The next number of a random sequence: any, uniform in [0,1), or of the standard normal distribution. */
uint64_t th_random(uint64_t *state);
double th_uniform(uint64_t *state);
double th_normal(uint64_t *state);
/* A number of low .. high; true with the probability 1 / one_in. */
int64_t th_pick(uint64_t *state, int64_t low, int64_t high);
bool th_chance(uint64_t *state, int64_t one_in);

/* Irregular numbers in (-1, 1), the same in every run; *state is 0 before the first array. */
void th_fill_irregularly(double *values, size_t count, double *state);
/* Random123's known answers of philox4x32 with 10 rounds. */
typedef struct th_philox_answer {
    uint32_t counter[4], key[2], words[4];
} th_philox_answer;
extern const th_philox_answer th_philox_answers[3];

/* Sets the rows from `first` on of batch b to NaN, in every head and component, if the array is used. */
void th_poison(th_problem *problem, th_name name, int64_t b, int64_t first);
/* Sets row n of a head to NaN, in every component. */
void th_poison_row(th_problem *problem, th_name name, int64_t b, int64_t h, int64_t n);
/* Compressed tables of at most length_k keys: the problem's own may have any number of pages. */
void th_fit_tables(th_problem *problem);
/* Whether all entries that keys in use need are pages. */
bool th_has_pages(const th_problem *problem);
/* Sets what no key in use needs: rows of pages to NaN, entries of the table to numbers that are no pages. */
void th_poison_pages(th_problem *problem);
/* Reverses the order of tokens. */
void th_reverse_tokens(th_problem *problem, th_name name);

/* A bias for four kinds of rows: all keys are hidden; all but the last; all of the first 128 (two tiles); the bias of
 * some keys is enormous. Heads take turns. */
void th_hide_keys(th_problem *problem);
/* Adds a random set of gradients to their arrays. The values there are of the gradients' own size, because the storage
 * type rounds the sum. */
void th_accumulate_some(th_problem *problem, uint64_t *state);
/* Copies one array, or all inputs, as far as both problems use them. */
void th_copy_values(th_problem *to, const th_problem *from, th_name name);
void th_copy_inputs(th_problem *to, const th_problem *from);
/* Rounds the values to their storage types, so that the reference gets the same numbers as the device. */
void th_round_values(th_session *session, th_problem *problem, th_pass pass);
/* Requires that an array has the same bits in both problems. */
void th_expect_equal_bits(const th_problem *one, const th_problem *other, th_name name);

/* Gives all strided arrays of a training pass the layout [B, tokens, heads, components, size + gap]: `query_heads` of
 * Q, `key_heads` of K. dO has it too, or one row for all. */
void th_put_tokens_first(clmgk_attention_desc *desc, int64_t query_heads, int64_t key_heads, int64_t components,
                         int64_t gap, bool one_grad_o);
/* Gives two heads of keys `group` heads of queries each; `masks` % 4: none, causal with lengths, a window, causal. */
typedef struct th_group {
    int64_t length, length_k, group;
    bool tokens_first; /* packed if there is one query */
} th_group;
void th_share_keys(clmgk_attention_desc *desc, const th_group *shape, size_t masks);
/* Array number n begins at element step n + first. */
void th_offset_arrays(th_problem *problem, uint64_t step, uint64_t first);

/* The place of element `flat` of the dense order, in elements from the start of its memory; writes its value there
 * (rounded), and reads it back. */
size_t th_place(const th_array *array, size_t flat);
void th_put(const th_array *array, unsigned char *memory, size_t flat);
void th_get(const th_array *array, const unsigned char *memory, size_t flat);

/* ---- runs ------------------------------------------------------------------------------------------------------ */

/* A buffer of one run on the device. */
typedef struct th_device_buffer {
    size_t bytes; /* 0: no buffer */
    unsigned char *image;
    unsigned char *output; /* for each byte: whether it belongs to an element of an output */
    cl_mem memory;
} th_device_buffer;

/* In this order: makes an image full of canaries; writes an array's values into it (the array then has the rounded
 * values), or marks the place of an output; makes the memory, if there are any bytes; reads the memory back (free). */
void th_make_image(th_device_buffer *buffer, size_t bytes);
void th_write_values(const th_array *array, th_device_buffer *buffer);
void th_mark_output(const th_array *array, th_device_buffer *buffer);
void th_make_memory(const th_session *session, th_device_buffer *buffer);
unsigned char *th_read_back(const th_session *session, const th_device_buffer *buffer);

/* Whether all bytes that belong to no output are unchanged. `whole`: the outputs too. */
bool th_has_canaries(const th_device_buffer *buffer, const unsigned char *bytes, size_t name, bool whole,
                     th_message *message);
/* Reads an output, every element of which must have been written. `added`: the values before the run are subtracted. */
bool th_take_output(th_array *array, const unsigned char *bytes, size_t name, bool added, th_message *message);

typedef struct th_device {
    th_pass pass;
    uint32_t accumulate;
    th_device_buffer buffer[TH_ARRAYS];
    clmgk_attention_args args;
} th_device;

/*
 * Writes the arrays to new buffers with canaries around and between elements; outputs stay unset. The problem's values
 * are rounded to what the device holds. `workspace`: bytes that the plan asks for.
 */
th_device th_upload(const th_session *session, th_problem *problem, size_t workspace);
th_device th_upload_for(const th_session *session, th_problem *problem, th_pass pass, size_t workspace);

/* Enqueues the pass that the arrays were uploaded for. */
void th_enqueue(clmgk_plan *plan, cl_command_queue queue, const th_device *device, cl_uint num_wait,
                const cl_event *wait_list, cl_event *event);

/* Reads everything back after the run. Canaries and inputs must be unchanged, and every element of an output written.
 * Outputs become values of the problem; for accumulated ones only the amount that was added. */
void th_download(const th_session *session, th_problem *problem, const th_device *device);
/* Requires that no byte was written. */
void th_expect_untouched(const th_session *session, const th_device *device);
void th_device_free(th_device *device);

/* Host arrays of a problem in their storage types, from offset 0. Outputs, and all bytes between and behind elements,
 * are 0xff: NaN, or -1 as a length. The arguments point to all arrays. */
typedef struct th_host {
    unsigned char *bytes[TH_ARRAYS];
    size_t size[TH_ARRAYS];
    clmgk_host_args args;
} th_host;
th_host th_host_make(th_problem *problem);
void th_host_free(th_host *host);
#define TH_HOST __attribute__((unused, cleanup(th_host_free))) th_host

/* Reads an output; all other bytes of its memory must still be 0xff. */
void th_host_take(const th_host *host, th_problem *problem, th_name name);
/* Requires that no output was written. */
void th_host_expect_unwritten(const th_host *host);
void th_set_host_array(clmgk_host_args *args, th_name name, void *memory);

/* A forward run on the session's engine number `n`, or on any engine with any parameters: upload, plan, enqueue, wait,
 * download. */
void th_run(th_session *session, th_problem *problem, size_t n);
void th_run_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters);

/* The same for any pass and plan. A backward pass needs O and L, which a forward run leaves in the problem. */
void th_run_pass(th_session *session, th_problem *problem, th_pass pass, const clmgk_plan_options *options);
/* The same, but returns false and a message if a pass wrote where it must not, or left an output unwritten. */
bool th_try_pass(th_session *session, th_problem *problem, th_pass pass, const clmgk_plan_options *options,
                 th_message *message);

/* The problem for the reference. `integers` holds arrays that it points to, until th_reference_free. */
typedef struct th_reference {
    clmgk_ref_problem problem;
    clmgk_ref_gathered gathered;
    int32_t *integers[TH_ARRAYS];
} th_reference;
th_reference th_reference_of(const th_problem *problem);
void th_reference_free(th_reference *reference);

/* Whether an array agrees with the reference within the bound: O or L; the new state, if there is one; a gradient or a
 * statistic. */
bool th_matches(const th_problem *problem, th_name name, const clmgk_ref_answer *answer, th_message *message);
bool th_matches_state(const th_problem *problem, th_message *message);
bool th_matches_array(const th_problem *problem, th_name name, const clmgk_ref_arrays *exact, th_message *message);

/* Bounds with the plain formula's error in problems that differ in the last places of their inputs (neighbours.c). */
void th_widen_outputs(const th_problem *problem, clmgk_ref_answer *answer);
void th_widen_arrays(const th_problem *problem, bool gradients, clmgk_ref_arrays *arrays);

/* Compares O, L, denominators and the new state with the reference's answer. */
void th_check(th_session *session, const th_problem *problem, clmgk_engine engine, const clmgk_ref_answer *answer);

/* The reference's answer for all rows, or for a sample if that takes long. The caller frees it. */
clmgk_ref_answer th_solve(const th_problem *problem);

/* Runs `parts` forward passes over the keys cut[n] .. cut[n + 1] - 1, and combines them. The result must be that of one
 * pass over all keys. */
void th_expect_combined(th_session *session, th_problem *problem, const clmgk_plan_options *options, int64_t parts,
                        const int64_t *cut);

/* Runs forward and compares the result with the reference. */
void th_expect_forward(th_session *session, th_problem *problem, const clmgk_plan_options *options);
void th_expect_with(th_session *session, th_problem *problem, clmgk_engine engine, const char *parameters);

/* Whether the other engines also run a problem that the device's own engine has run: in full every problem, else a
 * third of the seeds of every tenth program. On a CPU the SIMT engine's programs take five times as long to compile,
 * and are slow unless a compiler optimises them. */
bool th_other_engines(const th_session *session, const th_problem *problem);
/* Whether the last plan's program is one of these tenth ones. */
bool th_is_tenth_program(const th_session *session);

/* Runs the problem on the engines that th_other_engines chooses, and compares; the same for random arrays of `desc`. */
void th_expect(th_session *session, th_problem *problem);
void th_expect_desc(th_session *session, const clmgk_attention_desc *desc, uint64_t seed);

/* Keeps the linear family's denominators away from 0: numbers that mix heads, and states' sums, become positive, noise
 * small. */
void th_keep_sums(th_problem *problem);

/* Whether a sweep takes number `index`: in full every number, else every `step`th. */
bool th_takes(const th_session *session, size_t index, size_t step);

/*
 * Number `index` of a sweep over programs. In full every engine runs each, else the other engines run every fourth: on
 * a CPU a program of the SIMT engine takes seconds to build.
 */
void th_sweep(th_session *session, th_problem *problem, size_t index);
void th_sweep_desc(th_session *session, const clmgk_attention_desc *desc, uint64_t seed, size_t index);

/* ---- gradients and statistics ----------------------------------------------------------------------------------- */

/* Forward, then backward. */
void th_run_training(th_session *session, th_problem *problem, const clmgk_plan_options *options);
/* The same, and compares the gradients with the reference. */
void th_expect_training(th_session *session, th_problem *problem, const clmgk_plan_options *options);

/* An engine, with the same parameters of both passes (NULL: its own). */
clmgk_plan_options th_options_of(clmgk_engine engine, const char *parameters);
/* Forward, and backward if the problem has gradients; compares the results with the reference. */
void th_expect_passes(th_session *session, th_problem *problem, const clmgk_plan_options *options);
/* The same for `count` shapes (in full four times as many) of one program, from number `first` on, drawn from `seed`:
 * lengths, masks, rows with gaps; arrays of every second one begin at odd elements. In the quick tier large problems
 * have one batch, and one head of keys. */
void th_expect_shapes(th_session *session, clmgk_attention_desc desc, const clmgk_plan_options *options, uint64_t seed,
                      size_t first, size_t count);

/* Requires that the reference's gradient `which` is the derivative of the loss by x[count], numbers that `p` reads.
 * `positive`: they must not fall below 0. */
void th_expect_derivatives(const char *name, const clmgk_ref_problem *p, const clmgk_ref_arrays *gradients, int which,
                           double *x, size_t count, bool positive);

/* Requires that the reference's outputs are its weights times V, and that its statistics follow from the weights. `p`
 * has no state, or one whose C is 0. */
void th_expect_weights(const char *name, const clmgk_ref_problem *p);

/* Requires that a gradient that was not asked for does not exist, and that the other gradients do not depend on it. */
void th_expect_wanted_gradients_only(const clmgk_ref_problem *p);

/* The reference's gradients, or statistics, that the descriptor asks for. The caller frees them. */
clmgk_ref_arrays th_solve_gradients(const th_problem *problem);
clmgk_ref_arrays th_solve_statistics(const th_problem *problem);

/* Compares the problem's gradients, or statistics, with the reference's. */
void th_check_gradients(th_session *session, const th_problem *problem, clmgk_engine engine,
                        const clmgk_ref_arrays *exact);
void th_check_statistics(th_session *session, const th_problem *problem, clmgk_engine engine,
                         const clmgk_ref_arrays *exact);

/* Runs the problem and compares with the reference: on the device's own engine, or on all engines if `all` or in full.
 */
void th_expect_gradients(th_session *session, th_problem *problem, bool all);
void th_expect_statistics(th_session *session, th_problem *problem, bool all);

/* The first shapes of a sweep over training, the awkward ones. */
enum { TH_CORNERS = 8 };
/* Sets batch, heads, lengths, masks, and the axes of a bias for number `number` of a sweep. None of them makes another
 * program. */
void th_set_shape(clmgk_attention_desc *desc, size_t number, uint64_t *state);

/*
 * Requires that both passes compute the same P_ij, except for the rounding of L_i, which all keys of a row share. V and
 * dO are replaced, so that O and dV of the first head show P_ij for TH_PROBES rows and keys. The problem must have at
 * least as many rows, keys and value elements, one head of V for each head, and dV, but no dropout.
 */
enum { TH_PROBES = 8 };
void th_expect_equal_weights(th_session *session, th_problem *problem, const clmgk_plan_options *options);

/* Makes nearly equal keys with scores of about 10^4, where a float's step changes a weight by a thousandth. A third of
 * the keys are equal, so they must have equal weights. */
void th_make_rivals(th_problem *problem, uint64_t seed);

/* The set of all gradients that such a problem has. */
uint32_t th_all_gradients(const clmgk_attention_desc *desc);

/* Whether `text` has `word` as a whole word: "length_k" does not have "length". Every text has the empty word. */
bool th_has_word(const char *text, const char *word);

/* Describes the problem in one line. */
void th_describe(const th_problem *problem, clmgk_engine engine, char *text, size_t capacity);

#endif
