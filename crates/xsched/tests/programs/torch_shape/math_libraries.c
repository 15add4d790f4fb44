/* AMD's libraries on a stream: handles for each thread and stream, with a workspace of the framework's own memory. */
#include <stdalign.h>
#include "shape.h"

#define STATUS(call) status |= (call)

enum { MAX_STREAMS = 4, WORKSPACE = 8 << 20 };

/* What a thread needs for the libraries on one stream. */
struct handles {
    hipStream_t stream;
    void *products, *light_products, *convolutions, *workspace;
};

static struct handles *handles_for(hipStream_t stream) {
    static _Thread_local struct handles all[MAX_STREAMS];
    static _Thread_local int count;
    for (int n = 0; n < count; n++)
        if (all[n].stream == stream) return &all[n];
    if (count == MAX_STREAMS) exit(74);
    all[count].stream = stream;
    all[count].workspace = c10_allocate(WORKSPACE, stream);
    return &all[count++];
}

#ifdef HAVE_ROCBLAS
int rocblas_create_handle(void **);
int rocblas_set_stream(void *, hipStream_t);
int rocblas_set_workspace(void *, void *, size_t);
int rocblas_sgemm(void *, int, int, int, int, int, const float *, const float *, int, const float *, int, const float *, float *, int);

static void matrix_products(struct handles *handles) {
    enum { SIZE = 64, NOT_TRANSPOSED = 111 };
    hipStream_t stream = handles->stream;
    const float one = 1, zero = 0;
    int status = 0;
    if (handles->products == NULL) {
        STATUS(rocblas_create_handle(&handles->products));
        STATUS(rocblas_set_stream(handles->products, stream));
        STATUS(rocblas_set_workspace(handles->products, handles->workspace, WORKSPACE));
    }
    float *a = c10_allocate(SIZE * SIZE * sizeof *a, stream), *b = c10_allocate(SIZE * SIZE * sizeof *b, stream);
    for (int n = 0; n < 4; n++)
        STATUS(rocblas_sgemm(handles->products, NOT_TRANSPOSED, NOT_TRANSPOSED, SIZE, SIZE, SIZE, &one, a, SIZE, a, SIZE, &zero, b, SIZE));
    MUST(hipStreamSynchronize(stream));
    printf("rocBLAS: %d\n", status);
    c10_free(a);
    c10_free(b);
}
#endif

#ifdef HAVE_HIPBLASLT
int hipblasLtCreate(void **);
int hipblasLtMatmulDescCreate(void **, int, int);
int hipblasLtMatmulDescDestroy(void *);
int hipblasLtMatrixLayoutCreate(void **, int, uint64_t, uint64_t, int64_t);
int hipblasLtMatrixLayoutDestroy(void *);
int hipblasLtMatmulPreferenceCreate(void **);
int hipblasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t);
int hipblasLtMatmulPreferenceDestroy(void *);
int hipblasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, void *, int *);
int hipblasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *, void *, void *,
                    const void *, void *, size_t, hipStream_t);

static void light_products(struct handles *handles) {
    enum { SIZE = 64, COMPUTE_FLOAT = 2, FLOAT = 0, MAX_WORKSPACE = 1 };
    /* Of one result: the algorithm is its first field. */
    alignas(16) char found[1024] = {0};
    void *product = NULL, *layout = NULL, *preference = NULL;
    const float one = 1, zero = 0;
    const uint64_t workspace = WORKSPACE;
    int status = 0, count = 0;
    hipStream_t stream = handles->stream;
    float *a = c10_allocate(SIZE * SIZE * sizeof *a, stream), *b = c10_allocate(SIZE * SIZE * sizeof *b, stream);
    if (handles->light_products == NULL) STATUS(hipblasLtCreate(&handles->light_products));
    STATUS(hipblasLtMatmulDescCreate(&product, COMPUTE_FLOAT, FLOAT));
    STATUS(hipblasLtMatrixLayoutCreate(&layout, FLOAT, SIZE, SIZE, SIZE));
    STATUS(hipblasLtMatmulPreferenceCreate(&preference));
    STATUS(hipblasLtMatmulPreferenceSetAttribute(preference, MAX_WORKSPACE, &workspace, sizeof workspace));
    if (status == 0)
        STATUS(hipblasLtMatmulAlgoGetHeuristic(handles->light_products, product, layout, layout, layout, layout, preference, 1, found, &count));
    if (status == 0 && count == 1)
        STATUS(hipblasLtMatmul(handles->light_products, product, &one, a, layout, a, layout, &zero, b, layout, b, layout, found,
                               handles->workspace, WORKSPACE, stream));
    MUST(hipStreamSynchronize(stream));
    STATUS(hipblasLtMatmulPreferenceDestroy(preference));
    STATUS(hipblasLtMatrixLayoutDestroy(layout));
    STATUS(hipblasLtMatmulDescDestroy(product));
    printf("hipBLASLt: %d, algorithms %d\n", status, count);
    c10_free(a);
    c10_free(b);
}
#endif

#ifdef HAVE_MIOPEN
int miopenCreateWithStream(void **, hipStream_t);
/* Only the handle: Debian's library expects the compiler of its kernels in the directory in which it was built. */
static void convolutions(struct handles *handles) {
    int status = 0;
    if (handles->convolutions == NULL) STATUS(miopenCreateWithStream(&handles->convolutions, handles->stream));
    printf("MIOpen: %d\n", status);
}
#endif

#ifdef HAVE_ROCRAND
int rocrand_create_generator(void **, int);
int rocrand_set_stream(void *, hipStream_t);
int rocrand_generate_uniform(void *, float *, size_t);
int rocrand_destroy_generator(void *);
static void random_numbers(hipStream_t stream) {
    enum { COUNT = 10000, PHILOX = 404 };
    void *generator = NULL;
    int status = 0;
    float *numbers = c10_allocate(COUNT * sizeof *numbers, stream);
    STATUS(rocrand_create_generator(&generator, PHILOX));
    STATUS(rocrand_set_stream(generator, stream));
    STATUS(rocrand_generate_uniform(generator, numbers, COUNT));
    MUST(hipStreamSynchronize(stream));
    STATUS(rocrand_destroy_generator(generator));
    printf("rocRAND: %d\n", status);
    c10_free(numbers);
}
#endif

#ifdef HAVE_HIPFFT
typedef struct hipfft *hipfftHandle;
int hipfftPlan1d(hipfftHandle *, int, int, int);
int hipfftSetStream(hipfftHandle, hipStream_t);
int hipfftExecC2C(hipfftHandle, void *, void *, int);
int hipfftDestroy(hipfftHandle);
static void transforms(hipStream_t stream) {
    enum { SIZE = 1024, COMPLEX_TO_COMPLEX = 0x29, FORWARD = -1 };
    hipfftHandle plan = NULL;
    int status = 0;
    float *data = c10_allocate(2 * SIZE * sizeof *data, stream);
    STATUS(hipfftPlan1d(&plan, SIZE, COMPLEX_TO_COMPLEX, 1));
    if (status == 0) {
        STATUS(hipfftSetStream(plan, stream));
        STATUS(hipfftExecC2C(plan, data, data, FORWARD));
        MUST(hipStreamSynchronize(stream));
        STATUS(hipfftDestroy(plan));
    }
    printf("hipFFT: %d\n", status);
    c10_free(data);
}
#endif

void at_math_libraries(hipStream_t stream) {
    struct handles *handles = handles_for(stream);
    (void)handles;
#ifdef HAVE_ROCBLAS
    matrix_products(handles);
#endif
#ifdef HAVE_HIPBLASLT
    light_products(handles);
#endif
#ifdef HAVE_MIOPEN
    convolutions(handles);
#endif
#ifdef HAVE_ROCRAND
    random_numbers(stream);
#endif
#ifdef HAVE_HIPFFT
    transforms(stream);
#endif
    printf("libraries: last error %d\n", (int)hipGetLastError());
}
