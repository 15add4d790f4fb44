/* Programs that compute in rounds until their input ends. After each round they print its number and the result so far. */
#ifndef ROUNDS_H
#define ROUNDS_H

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Number K of the numbers that round ROUND adds to the result. */
static inline uint32_t delta(uint32_t round, uint32_t k) { return round * 1000003u + k * 97u; }

static inline void must(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "%s: error %d\n", what, code);
    exit(70);
}

/* Prints the result of a round and pauses. Returns whether another round follows: the input has not ended. */
static inline int end_round(uint32_t round, uint32_t result, long pause_us) {
    printf("%u %u\n", round, result);
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, 0) == 0 && (nanosleep(&(struct timespec){pause_us / 1000000, pause_us % 1000000 * 1000}, NULL), 1);
}

/* KERNELS KERNEL_US PAUSE_US */
struct options { uint32_t kernels; uint64_t kernel_ns; long pause_us; };
static inline struct options options(int argc, char **argv) {
    if (argc < 4) exit(64);
    return (struct options){(uint32_t)atol(argv[1]), strtoull(argv[2], NULL, 10) * 1000, atol(argv[3])};
}

#endif
