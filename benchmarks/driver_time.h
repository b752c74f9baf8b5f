/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a thread's time passes inside calls of OpenCL. */
#ifndef BENCH_DRIVER_TIME_H
#define BENCH_DRIVER_TIME_H

typedef struct bench_driver_time {
    double us;
    int calls;
} bench_driver_time;

/* From here on this thread's calls of OpenCL are timed, by this program and by libraries. */
void bench_driver_begin(void);
bench_driver_time bench_driver_end(void);

#endif
