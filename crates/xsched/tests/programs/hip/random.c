/* Real rocRAND: generates random numbers on a new stream and on the default stream, and prints the result of each call. */
#include <stdio.h>
#include "hip.h"

typedef struct generator *rocrand_generator;
int rocrand_create_generator(rocrand_generator *, int kind);
int rocrand_set_stream(rocrand_generator, hipStream_t);
int rocrand_generate_uniform(rocrand_generator, float *, size_t);
int rocrand_generate_normal(rocrand_generator, float *, size_t, float, float);
int rocrand_destroy_generator(rocrand_generator);

enum { PSEUDO_RANDOM = 400, COUNT = 1 << 16 };

int main(void) {
    rocrand_generator generator;
    hipStream_t stream;
    float *numbers;
    printf("stream %d, memory %d\n", hipStreamCreate(&stream), hipMalloc((void **)&numbers, COUNT * sizeof(float)));
    printf("create %d\n", rocrand_create_generator(&generator, PSEUDO_RANDOM));
    for (int n = 0; n < 2; n++) {
        printf("uniform %d\n", rocrand_generate_uniform(generator, numbers, COUNT));
        printf("normal %d\n", rocrand_generate_normal(generator, numbers, COUNT, 0, 1));
        printf("wait %d\n", hipStreamSynchronize(n == 0 ? NULL : stream));
        printf("stream %d\n", rocrand_set_stream(generator, stream));
    }
    printf("destroy %d, last error %d\n", rocrand_destroy_generator(generator), hipGetLastError());
    return 0;
}
